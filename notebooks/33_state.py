# %% [markdown] lesson={"part": "IV Efficiency", "builds": "a memory of fixed size: sums, gates, the delta rule, chunks; Mamba-2 and Gated DeltaNet; hybrids"}
# # 33 · A state instead of a cache
#
# **After this lesson you will be able to**
#
# - write to a memory that is one matrix, and read from it, on paper and in code;
# - say what a sum, a gate and the delta rule do when a key gets a new value, and what that does to all other keys;
# - break the delta rule, and say from one number why it explodes;
# - compute it in chunks, equal to the loop, and read Mamba-2, RetNet, Gated DeltaNet and Kimi Linear as one recurrence;
# - say how many pairs a state can hold, and test whether a layer or something else explains a result.
#
# **You need** lessons 03, 10 and 32 (section 4); 13 helps. **It takes** about 60 minutes to read and try; all cells
# together run in about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: a cache that grows with every token
#
# A decoder keeps the keys and values of all tokens so far, and each new token looks at all of them (lesson 13). Lesson
# 32 took the softmax out of attention, and what remained was a recurrent net whose state is a matrix:
#
# $$S_t = S_{t-1} + k_t v_t^\top \qquad o_t = S_t^\top q_t$$
#
# (As there from section 4.4 on, we leave out feature maps and denominators.) What does a state save when a text is
# written token by token?

# %% tags=["recorded"]
import json
import time
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from txlib import plots
from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress
from txcourse.lesson import prove_equal, show_source
from txlib.paths import DATA

torch.set_num_threads(1)  # for tensors this small, more threads only wait

# %% [markdown]
# One step of each, for eight heads of width 64:

# %%
heads, width, longest = 8, 64, 10_000
query = torch.randn(heads, 1, width)
keys, values = torch.randn(2, heads, longest, width).unbind()  # (heads, longest, …)
state = torch.zeros(heads, width, width)


def with_cache(n):  # a new token looks at n keys
    weights = (query @ keys[:, :n].mT / width**0.5).softmax(dim=-1)  # (heads, 1, n)
    return weights @ values[:, :n]


def with_state(n):  # it adds its own pair, and reads
    return query @ (state + keys[:, n - 1 : n].mT @ values[:, n - 1 : n])


# %% [markdown]
# Bytes and time per token, after 100, 1,000 and 10,000 tokens (your times will differ from ours):

# %% tags=["nbval-ignore-output"]
def milliseconds(compute, *inputs, runs=20):
    taken = []
    for _ in range(runs):
        start = time.perf_counter()
        compute(*inputs)
        taken.append(1000 * (time.perf_counter() - start))
    return min(taken)


for n in (100, 1000, longest):
    print(f"{n:6,} tokens: cache {2 * 4 * heads * n * width:10,} bytes,",
          f"{milliseconds(with_cache, n):6.2f} ms;",
          f"state {4 * state.numel():,} bytes, {milliseconds(with_state, n):.2f} ms")

# %% [markdown]
# After 10,000 tokens the cache is 312 times as large as the state, and it goes on growing. So the state is cheap. What
# is missing is a reason to trust it: what does such a matrix remember, and could one write to it in a better way than
# by adding?

# %% [markdown]
# ## 2 A matrix to write to and to read from
#
# ### 2.1 On paper
#
# Take a hotel with two guests. A guest's name is a **key** of two numbers, a room is a **value** of two numbers: floor
# and door. Romeo, $k = (1, 0)$, gets floor 3, door 1. To write is to add the **outer product** $k v^\top$: each number
# of the key times each number of the value. To read is to multiply by the key again:
#
# $$S = \begin{pmatrix} 1 \\ 0 \end{pmatrix} \begin{pmatrix} 3 & 1 \end{pmatrix}
# = \begin{pmatrix} 3 & 1 \\ 0 & 0 \end{pmatrix} \qquad S^\top k = 1 \cdot (3, 1) + 0 \cdot (0, 0) = (3, 1)$$
#
# Juliet, $k = (0, 1)$, gets floor 2, door 5. Her key points to the other row. Both steps in code, for one state or many
# (the dots):

# %% tags=["recorded"]
def read(S, q):  # (…, d, m), (…, d): (…, m)
    return (q[..., None, :] @ S)[..., 0, :]


def add(S, k, v):  # (…, d, m), (…, d), (…, m): the next state
    return S + k[..., :, None] * v[..., None, :]


# %% [markdown]
# A third guest, Mercutio, has a key that overlaps with both: $(0.6, 0.8)$, floor 7, door 7. Redo the three answers on
# paper before you run the cell.

# %%
romeo, juliet, mercutio = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
S = torch.zeros(2, 2)
S = add(S, romeo, torch.tensor([3.0, 1.0]))
S = add(S, juliet, torch.tensor([2.0, 5.0]))
print("Romeo", read(S, romeo).tolist(), " Juliet", read(S, juliet).tolist())
S = add(S, mercutio, torch.tensor([7.0, 7.0]))
for name, key in {"Romeo": romeo, "Juliet": juliet, "Mercutio": mercutio}.items():
    print(f"with Mercutio, {name:8}", [round(x, 2) for x in read(S, key).tolist()])

# %% [markdown]
# A key reads its own value times $|k|^2 = 1$, plus every other value times the overlap of both keys: Romeo reads
# $(3, 1) + 0.6 \cdot (7, 7)$. Two numbers have room for two directions at right angles. The third has to share.
#
# ### 2.2 As a loop, and as a matrix
#
# The loop goes from token to token. In matrices, the same overlaps are the entries of $q k^\top$, cut off above the
# diagonal (`tril`), since no token reads what is yet to be written:

# %%
torch.manual_seed(0)
n, d = 12, 8
q, k = F.normalize(torch.randn(2, n, d), dim=-1).unbind()  # (n, d) each, of length 1
v = torch.randn(n, d)


def sum_loop(q, k, v):
    S, outs = torch.zeros(k.shape[-1], v.shape[-1]), []
    for q_t, k_t, v_t in zip(q, k, v, strict=True):
        S = add(S, k_t, v_t)
        outs.append(read(S, q_t))
    return torch.stack(outs)  # (n, d)


matrix = (q @ k.T).tril() @ v
prove_equal(sum_loop(q, k, v), matrix, tolerance=1e-6, what="Loop and matrix")

# %% [markdown]
# ### 2.3 It overwrites nothing
#
# Romeo moves to floor 1, door 4. The picture shows the state as a small matrix. A key on its left says which rows, a
# value above it is written, a value below it is read. These three colors stay the same in the whole lesson.

# %% jupyter={"source_hidden": true}
first, second, hers = torch.tensor([[3.0, 1.0], [1.0, 4.0], [2.0, 5.0]])


def four_accesses(step):
    S, touches = torch.zeros(2, 2), []
    for name, key, value in (("Romeo arrives", romeo, first), ("Juliet arrives", juliet, hers),
                             ("Romeo moves", romeo, second)):
        S = step(S, key, value)
        touches.append(figures.Touch(name, key, value, S))
    return [*touches, figures.Touch("where is Romeo?", romeo, read(S, romeo), S, reads=True)]


figures.state_steps(
    {"sum": four_accesses(add)}, title="A sum keeps both of Romeo's rooms: floor 4, door 5",
    alt="The state after each of three writes and one read. Romeo's row is 3, 1; Juliet's 2, 5. "
    "When Romeo moves to 1, 4, his row becomes 4, 5, and that is what is read.",
)

# %% [markdown]
# The answer, floor 4, door 5, is a room that no one was ever given. A sum **overwrites nothing and forgets nothing**.
# (Softmax alone doesn't either: two equal keys get equal weights, and, if it is sharp, out comes the mean of both
# rooms, $(2, 2.5)$. It needs positions to prefer the later one. But its cache still holds both, and the state doesn't.)

# %% [markdown]
# ## 3 Change what is there
#
# ### 3.1 A gate forgets everybody
#
# The old room has to go. Lesson 32 (section 4.4) had a **gate**: before each write, multiply the state by
# $0 \le \alpha_t \le 1$. With $\alpha = \frac12$, Romeo's first room has faded twice when his second is added, and he
# reads $\frac14 (3, 1) + (1, 4) = (1.75, 4.25)$: nearer to the new room. But Juliet reads half of hers, and she did
# not move.
#
# ### 3.2 Write what is missing
#
# The **delta rule** first *reads* what the key returns now, and writes only the difference. Romeo's key returns
# $(3, 1)$; he should have $(1, 4)$; missing is $(1, 4) - (3, 1) = (-2, 3)$. Added to his row, this makes it $(1, 4)$.
# Juliet's row is not touched. In general, with a **writing strength** $0 \le \beta \le 1$:
#
# $$S_t = S_{t-1} + \beta_t\, k_t \big(v_t - S_{t-1}^\top k_t\big)^\top
# = \big(I - \beta_t k_t k_t^\top\big) S_{t-1} + \beta_t\, k_t v_t^\top$$
#
# The second form shows that old content is removed *along $k_t$ only*. Where does the rule come from? Take the squared
# error $\frac12 |S^\top k - v|^2$: its gradient is $k\,(S^\top k - v)^\top$. So each token makes one step of gradient
# descent on its own pair, with rate $\beta$: the layer learns while it reads (Schlag et al. 2021, §4.2; the rule itself
# is from Widrow and Hoff 1960).

# %%
def fade(S, k, v, alpha=0.5):
    return add(alpha * S, k, v)


def correct(S, k, v, beta=1.0):
    return add(S, k, beta * (v - read(S, k)))


# %% [markdown]
# The same accesses with all three:

# %% jupyter={"source_hidden": true}
figures.state_steps(
    {"sum": four_accesses(add), "gate, ½": four_accesses(fade), "delta rule": four_accesses(correct)},
    title="Only the delta rule gives Romeo his new room, and leaves Juliet hers",
    alt="Three rows of four small matrices. With a sum Romeo's row ends as 4, 5. With a gate of one "
    "half it ends as 1.75, 4.25, and Juliet's row has faded to 1, 2.5. With the delta rule his row "
    "is 1, 4 and hers still 2, 5.",
)

# %% [markdown]
# ### 3.3 Guests who move
#
# Two keys at right angles make it easy. Now 16 guests with random names of length 1 in 32 dimensions, and 64 rooms with
# random vectors. Each guest arrives once, then some of them move, again and again. 300 such hotels at once:


# %%
def moving(moves, seed, size=300, guests=16, d=32):
    torch.manual_seed(seed)
    names = F.normalize(torch.randn(size, guests, d), dim=-1)
    arrivals = torch.rand(size, guests).argsort(dim=-1)  # each once, in some order
    who = torch.cat([arrivals, torch.randint(guests, (size, moves))], dim=1)
    where = torch.randint(64, who.shape)  # (size, writes)
    last = torch.empty(size, guests, dtype=torch.long)
    for guest, room in zip(who.split(1, dim=1), where.split(1, dim=1), strict=True):
        last.scatter_(1, guest, room)
    return names, who, where, last


torch.manual_seed(0)
rooms = F.normalize(torch.randn(64, 32), dim=-1)  # (room, d)

# %% [markdown]
# In the end each guest is asked for; the answer is the room that fits best what is read. Two rivals keep all pairs, as
# a cache does: a sharp softmax, and one that also prefers what was written later (by a fixed bonus per step, like
# ALiBi of lesson 05).


# %%
def by_state(hotel, step):
    names, who, where, last = hotel
    S = torch.zeros(len(who), names.shape[-1], rooms.shape[-1])
    each = torch.arange(len(who))
    for guest, room in zip(who.T, where.T, strict=True):  # (size,) each
        S = step(S, names[each, guest], rooms[room])
    return ((names @ S @ rooms.T).argmax(dim=-1) == last).float().mean().item()


def by_cache(hotel, bonus=0.0):
    names, who, where, last = hotel
    written = names.gather(1, who[..., None].expand(-1, -1, names.shape[-1]))
    scores = 50 * names @ written.mT + bonus * torch.arange(who.shape[1])
    out = scores.softmax(dim=-1) @ rooms[where]  # (size, guests, d)
    return ((out @ rooms.T).argmax(dim=-1) == last).float().mean().item()


# %% jupyter={"source_hidden": true}
predict(
    "state-moves", "After 64 moves, who still knows where most of the 16 guests are?",
    "the sum, if the state is large enough", "a gate, with the best constant α", "the delta rule, with β = 1",
)

# %% [markdown]
# A gate's $\alpha$ and the bonus are chosen for each number of moves, on hotels of another seed. The delta rule gets
# $\beta = 1$, and no choice.

# %%
alphas, bonuses = (0.9, 0.93, 0.95, 0.97, 0.99, 1.0), (0.5, 1.0, 2.0, 4.0)
right = {name: [] for name in ("sum", "delta rule", "best gate", "cache, softmax",
                               "cache, later preferred")}
for moves in (0, 8, 16, 32, 64):
    hotel = moving(moves, seed=9)
    alpha = max(alphas, key=lambda a: by_state(hotel, partial(fade, alpha=a)))
    bonus = max(bonuses, key=lambda b: by_cache(hotel, b))
    for seed in range(3):
        hotel = moving(moves, seed)
        found = (by_state(hotel, add), by_state(hotel, correct),
                 by_state(hotel, partial(fade, alpha=alpha)), by_cache(hotel),
                 by_cache(hotel, bonus))
        for results, percent in zip(right.values(), found, strict=True):
            results.append(percent)

# %% [markdown]
# Each line is one of three seeds:

# %% jupyter={"source_hidden": true}
by_seed = {name: (100 * torch.tensor(results).view(5, 3).T).tolist() for name, results in right.items()}
plots.lines(
    {name: ([0, 8, 16, 32, 64], runs) for name, runs in by_seed.items()}, marker="o", width=7.4,
    title="At equal size the delta rule keeps up with the moves",
    xlabel="moves of 16 guests", ylabel="guests found (%)",
    alt="Guests found after 0 and 64 moves, three seeds each. " + "; ".join(
        f"{name}: " + " and ".join(", ".join(f"{run[at]:.0f}%" for run in runs) for at in (0, -1))
        for name, runs in by_seed.items()) + ".",
)

# %% jupyter={"source_hidden": true}
predicted("state-moves", "the delta rule, with β = 1", "It removes the old room, and only that.")

# %% [markdown]
# Without moves, all five find nearly every guest. Then the sum gets worse with every move, and so does plain softmax,
# although it has kept every pair: it averages all rooms that a guest ever had. A gate has to compromise: if it forgets
# old rooms quickly, it also forgets those who stayed. The delta rule needs no compromise. Only the cache that prefers
# later pairs does better, and by the end it has kept five times as many pairs as there are guests.

# %% [markdown]
# ### 3.4 Break it
#
# **β = 0**: nothing is ever written. **α = 1**: a gate that never closes is the sum. And **keys that do not have
# length 1**? On paper: Romeo's key is $(2, 0)$, and his room is one number, 3. The state begins at 0. Missing is 3; the
# row becomes $2 \cdot 3 = 6$. Write the *same* pair again: he reads $2 \cdot 6 = 12$; missing is $3 - 12 = -9$; the row
# becomes $6 + 2 \cdot (-9) = -12$.

# %% jupyter={"source_hidden": true}
predict(
    "state-explodes", "The same pair is written again and again, with a key of length 2 and β = 1. What is read?",
    "it swings around 3 and settles there", "it grows to 12 and stays", "it swings ever further",
)

# %%
for length, beta in ((1.0, 1.0), (2.0, 1.0), (2.0, 0.4)):
    S, key, reads = torch.zeros(2, 1), length * romeo, []
    for _ in range(7):
        S = correct(S, key, torch.tensor([3.0]), beta)
        reads.append(read(S, key).item())
    print(f"|k| = {length:g}, β = {beta:g}:", "  ".join(f"{x:.4g}" for x in reads))

# %% jupyter={"source_hidden": true}
predicted("state-explodes", "it swings ever further", "Each write multiplies the error by 1 − 4 = −3.")

# %% [markdown]
# Along the key, a write multiplies the error by $1 - \beta |k|^2$. Between $-1$ and $1$ the error shrinks; at
# $\beta |k|^2 > 2$ it explodes; with $|k| = 1$ and $0 \le \beta \le 1$ it never can. Hence these layers divide
# each key by its length. The same with random keys, as a layer would make them without a norm:

# %%
torch.manual_seed(0)
k, v = torch.randn(64, 32), torch.randn(64, 32)  # |k|² is about 32
for name, key in {"length 1": F.normalize(k, dim=-1), "not normalized": k}.items():
    S, sizes = torch.zeros(32, 32), []
    for k_t, v_t in zip(key, v, strict=True):
        S = correct(S, k_t, v_t)
        sizes.append(S.norm().item())
    print(f"{name:15} size of S after 4, 16, 64 tokens:",
          "  ".join(f"{sizes[t - 1]:.3g}" for t in (4, 16, 64)))

# %% [markdown]
# ### 3.5 How many pairs fit
#
# Now without moves: $n$ pairs, written once. How many can a state of $d \times d$ numbers hold?
#
# - *Exactly*: $S^\top k_i = v_i$ for all $i$ is a system of $n$ linear equations for each column of $S$. It has a
#   solution for any values if and only if the keys are independent, so for at most $n = d$ pairs. Beyond that, the
#   **best possible state** (least squares) leaves $1 - d/n$ of the squared values unexplained.
# - *The sum*, with random keys of length 1: each of the other $n - 1$ pairs adds a squared overlap of $1/d$ on average,
#   so the squared error is $(n - 1)/d$.
# - *A cache* has no such limit. It keeps all keys and values, and is shown below with a sharp softmax.


# %%
def errors(n, d, seed, size=60):  # squared error of what is read, per squared value
    torch.manual_seed(seed)
    k, v = F.normalize(torch.randn(2, size, n, d), dim=-1).unbind()
    S = torch.zeros(size, d, d)
    for k_t, v_t in zip(k.unbind(1), v.unbind(1), strict=True):
        S = correct(S, k_t, v_t)
    best = torch.linalg.pinv(k) @ v  # least squares
    outs = {"sum": k @ (k.mT @ v), "delta rule": k @ S, "best possible state": k @ best,
            "cache, softmax": (50 * k @ k.mT).softmax(dim=-1) @ v}
    return {name: (o - v).square().sum(-1).mean().item() for name, o in outs.items()}


for side in (16, 32, 64):
    for pairs in (side, 2 * side):
        e = errors(pairs, side, seed=0)
        print(f"d = {side}, n = {pairs:3}: sum {e['sum']:.2f},",
              f"theory {(pairs - 1) / side:.2f};",
              f"best state {e['best possible state']:.2f},",
              f"theory {1 - side / pairs:.2f}")

# %% [markdown]
# Over the number of pairs, $d = 32$, three seeds:

# %% jupyter={"source_hidden": true}
ns = [4, 8, 16, 24, 32, 40, 48, 64]
runs = [[errors(n, 32, seed) for n in ns] for seed in range(3)]
plots.lines(
    {name: (ns, [[e[name] for e in run] for run in runs]) for name in runs[0][0]},
    title="A state of 32 × 32 holds at most 32 pairs exactly, a cache all of them", marker="o", mark=("n = d", 32),
    xlabel="pairs, written once", ylabel="squared error of what is read",
    alt="Squared error over 4 to 64 pairs, three seeds each. The sum rises along (n - 1) / d to 2. The delta "
    "rule rises more slowly, to about 1. The best possible state has no error up to 32 pairs, "
    "then rises to one half. A cache with softmax has hardly any error at any number of pairs.",
)

# %% [markdown]
# Theory and measurement agree. Pairs grow with $d$, and a state's memory with $d^2$. A cache has hardly any error: for
# many pairs that are written once, nothing here is as good. The delta rule is between the sum and the best state: it
# takes one step per pair and never returns to it. Is it then also better than a sum if only the *nearest room* counts,
# as above? Without moves it found fewer guests (the left end of the picture before). Task 5 of the exercise finds out
# why.

# %% [markdown]
# ## 4 The same in chunks
#
# We have a loop, and a loop of 10,000 small steps is slow: a GPU waits, and training has to go back through all of
# them. A sum can be taken in **chunks**: pairs of one chunk as a masked product, all that is older through the state.
# The delta rule looks harder. What a token writes depends on what it reads, and that depends on what the
# tokens before it have written.

# %% jupyter={"source_hidden": true}
figures.chunks(
    16, 4, title="Pairs of a chunk are computed; the rest is in S",
    alt="A lower triangle of 16 tokens. On the diagonal four triangles of four tokens each, pairs of one "
    "chunk. Below them rectangles: what is older is read through the state S.",
)

# %% [markdown]
# Two tokens on paper, $\beta = 1$ and an empty state. Call what is written $u$. The first writes $u_1 = v_1$. The
# second reads what the first has left at its key, $(k_2 \cdot k_1)\, u_1$, and writes the rest. With
# $k_2 \cdot k_1 = 0.6$:
#
# $$u_1 = v_1, \quad u_2 = v_2 - 0.6\, u_1 \qquad\Longleftrightarrow\qquad
# \begin{pmatrix} 1 & 0 \\ 0.6 & 1 \end{pmatrix} \begin{pmatrix} u_1 \\ u_2 \end{pmatrix}
# = \begin{pmatrix} v_1 \\ v_2 \end{pmatrix}$$
#
# A triangular system: all $u$ of a chunk at once, without computing a single state in between. With $\beta$, and a
# state $S$ from before the chunk (Yang et al. 2024b, §3):
#
# $$\big(I + \text{tril}(\beta\, k k^\top, -1)\big)\, u = \beta\,(v - k S) \qquad
# o = q S + \text{tril}(q k^\top)\, u \qquad S \leftarrow S + k^\top u$$


# %%
def delta_loop(q, k, v, beta, alpha):  # (n, d) twice, (n, m), (n, 1) twice
    S, outs = torch.zeros(k.shape[-1], v.shape[-1]), []
    for q_t, k_t, v_t, beta_t, alpha_t in zip(q, k, v, beta, alpha, strict=True):
        S = correct(alpha_t * S, k_t, v_t, beta_t)
        outs.append(read(S, q_t))
    return torch.stack(outs)


def delta_chunks(q, k, v, beta, size=64):
    S, outs = torch.zeros(k.shape[-1], v.shape[-1]), []
    parts = zip(*(x.split(size) for x in (q, k, v, beta)), strict=True)
    for q_c, k_c, v_c, beta_c in parts:
        system = torch.eye(len(k_c)) + (beta_c * (k_c @ k_c.T)).tril(-1)
        u = torch.linalg.solve_triangular(system, beta_c * (v_c - k_c @ S), upper=False)
        outs.append(q_c @ S + (q_c @ k_c.T).tril() @ u)
        S = S + k_c.T @ u
    return torch.cat(outs)


# %% [markdown]
# (The loop has a gate as well, for the next section; $\alpha = 1$ is none.) Equal, whatever the size of a chunk:

# %%
torch.manual_seed(0)
n, d = 1000, 64
q, k, v = F.normalize(torch.randn(3, n, d), dim=-1).unbind()
beta, no_gate = torch.rand(n, 1), torch.ones(n, 1)
exact = delta_loop(q, k, v, beta, no_gate)
for size in (1, 7, 64, 1000):
    out = delta_chunks(q, k, v, beta, size)
    prove_equal(exact, out, tolerance=1e-6, what=f"Loop and chunks of {size}")

# %% [markdown]
# How large should a chunk be? With $C$ tokens, each takes about $3.5\,C d$ multiplications for pairs (overlaps, scores,
# mixing, and half as many for the triangular system), and $3d^2$ for reading twice and updating. Time for 1,000 tokens:

# %% tags=["nbval-ignore-output"]
print(f"the loop: {milliseconds(delta_loop, q, k, v, beta, no_gate, runs=3):.0f} ms")
for size in (4, 16, 64, 256, 1000):
    took = milliseconds(delta_chunks, q, k, v, beta, size, runs=5)
    print(f"chunks of {size:4}: {took:5.1f} ms; multiplications per token:",
          f"pairs {3.5 * size * d:9,.0f}, state {3 * d * d:,}")

# %% [markdown]
# Small chunks wait for Python, as the loop does; very large ones compute $n^2$ pairs again. Around $C = d$ both parts
# of the bill are about equal.

# %% [markdown]
# ## 5 One family
#
# ### 5.1 State-space duality
#
# A second school came to the same recurrence from control theory: a **state-space model** has a state $h$ that a matrix
# $A_t$ moves on and an input $x_t$ changes, and its output is read off by a third matrix. Mamba-2 (Dao and Gu 2024, §5
# to 7) lets $A_t$ be one number $\alpha_t$ per head, chosen by the token:
#
# $$h_t = \alpha_t\, h_{t-1} + B_t\, (\Delta_t x_t)^\top \qquad y_t = h_t^\top C_t$$
#
# Put $S$ for $h$, $k$ for $B$, $v$ for $\Delta x$ (the input, scaled by how long the step is), $q$ for $C$: it is gated
# linear attention, symbol for symbol. And $\alpha$ comes from the same $\Delta$: $\alpha_t = e^{-\Delta_t a}$ with a
# learned $a$ per head, so a token with a long step writes much and forgets much. That the recurrence equals a masked
# product, $(L \circ C B^\top)(\Delta x)$, is **state-space duality**; lesson 32 (section 4.4) has checked it in code.
#
# ### 5.2 Both at once
#
# A gate wipes out everything; the delta rule replaces one thing. **Gated DeltaNet** (Yang et al. 2025) does both:
# $S \leftarrow \alpha_t S$, then correct. In a chunk, a pair fades by what has passed between its two tokens,
# lesson 32's matrix $L$:


# %% tags=["recorded"]
def gated_chunk(S, q, k, v, beta, alpha, corrects=True):  # (…, d, m), (…, C, d) …
    passed = alpha.log().cumsum(dim=-2)  # (…, C, 1): since the chunk began
    left = (passed - passed.mT).tril().exp().tril()  # (…, C, C): L
    if corrects:
        missing = beta * (v - passed.exp() * (k @ S))
        overlap = (beta * left * (k @ k.mT)).tril(-1)
        v = torch.linalg.solve_triangular(
            overlap, missing, upper=False, unitriangular=True)
    out = passed.exp() * (q @ S) + left * (q @ k.mT) @ v
    last = passed[..., -1:, :]
    return last.exp() * S + (k * (last - passed).exp()).mT @ v, out


# %% [markdown]
# (`corrects=False` leaves out the delta rule. `unitriangular` puts ones on the diagonal.) It must equal the loop:

# %%
alpha = torch.rand(n, 1) ** 0.1  # (n, 1): most near 1
gated = delta_loop(q, k, v, beta, alpha)
S, outs = torch.zeros(d, d), []
for part in zip(*(x.split(64) for x in (q, k, v, beta, alpha)), strict=True):
    S, out = gated_chunk(S, *part)
    outs.append(out)
prove_equal(gated, torch.cat(outs), tolerance=1e-6, what="Gated: loop and chunks")

# %% [markdown]
# Yang et al. expect the gate to help where a topic ends, and the delta rule where single facts change. Section 6.3
# measures each rule by itself.
#
# ### 5.3 Who writes what
#
# All of these layers are $S_t = \text{kept} + k_t\, (\text{written})^\top$, read by $q_t$:
#
# | Layer | is kept | is written |
# | --- | --- | --- |
# | linear attention (Katharopoulos et al. 2020) | $S$ | $v$ |
# | RetNet (Sun et al. 2023) | $\alpha S$, one constant per head | $v$ |
# | Gated linear attention (Yang et al. 2024) | $\text{diag}(\alpha_t)\, S$: a gate for each feature of the key | $v$ |
# | Mamba-2 (Dao and Gu 2024) | $\alpha_t S$ | $\Delta_t x_t$ |
# | DeltaNet (Yang et al. 2024b) | $S$ | $\beta_t (v_t - S^\top k_t)$ |
# | Gated DeltaNet (Yang et al. 2025) | $\alpha_t S$ | $\beta_t (v_t - \alpha_t S^\top k_t)$ |
# | Kimi Delta Attention (Kimi Team 2025) | $\text{diag}(\alpha_t)\, S$ | $\beta_t (v_t - (\text{diag}(\alpha_t) S)^\top k_t)$ |
#
# Around the recurrence the last four also share three parts: keys of length 1 (in those with the delta rule), a norm
# after reading, and a **short convolution** before: each token's queries, keys and values are made of the last four
# tokens, not of one. Keep that part in mind.

# %% [markdown]
# ## 6 Trained
#
# ### 6.1 A race, and what it does not show
#
# We have the mechanisms by hand. What is missing is training: which layer *learns* to remember? The library's race
# (`benchmarks/mixers.py`) trained small decoders of width 64 with thirteen mixers, 28 seconds each, three seeds. (Equal
# time is not equal training: on recall softmax saw more than 1,100 batches, DeltaNet some 780, Kimi's layer 270.) Two
# of its tasks: **recall** the values of 8 keys, each written once; and say the last value of each of 4 keys after 12
# writes, **overwriting**.

# %% jupyter={"source_hidden": true}
recorded = json.loads((DATA / "state.json").read_text())
table = {name: {skill: [100 * x for x in seeds.values()] for skill, seeds in row.items()}
         for name, row in recorded["race"].items()}
plots.heatmap(
    torch.tensor([[sum(row[skill]) / 3 for row in table.values()] for skill in ("recall", "overwriting")]).round(),
    title="In the race, softmax only guesses, and DeltaNet recalls", rows=["recall", "overwriting"], columns=list(table),
    xlabel="right answers (%), mean of three seeds", ylabel="", size=0.6, span=(0, 100), bar=False,
    alt="Right answers in percent, mean of three seeds, for thirteen mixers. " + "; ".join(
        f"{name}: " + ", ".join(f"{skill} {sum(seeds) / len(seeds):.0f}" for skill, seeds in row.items())
        for name, row in table.items()) + ".",
)

# %% [markdown]
# Softmax at 26% on *recall*, the task that attention was made for? Naming the value that was written most often
# is right in about a quarter of all cases, so it has learned which values occur, and nothing about their keys. Before
# one writes "the state beats the cache", look at what else differs: layers with the delta rule have a short
# convolution, and softmax has none. To recall, the token of a value must know the key just before it. A convolution
# brings it there. Without one, a first layer of attention has to learn to.

# %% jupyter={"source_hidden": true}
predict(
    "state-control", "What does a layer need to recall 8 pairs within 300 batches?",
    "the delta rule", "the short convolution", "both",
)

# %% [markdown]
# ### 6.2 The control
#
# One small decoder with both to switch: the mixer, and how many tokens the convolution reads (1: none). First the
# tasks. Ids below 16 are values, the others keys; what is asked comes last:


# %% tags=["recorded"]
def text_of(keys, values, asked, answers):
    pairs = torch.stack([16 + keys, values], dim=-1).flatten(1)  # (size, 2 · pairs)
    return torch.cat([pairs, 16 + asked], dim=1), answers


def recalling(size, pairs=8, names=16):
    keys = torch.rand(size, names).argsort(dim=-1)[:, :pairs]  # all different
    values = torch.randint(16, (size, pairs))
    asked = torch.rand(size, pairs).argsort(dim=-1)[:, :8]
    return text_of(keys, values, keys.gather(1, asked), values.gather(1, asked))


# %% [markdown]
# And overwriting, 12 values for 4 keys:


# %% tags=["recorded"]
def overwriting(size):
    once = torch.rand(size, 4).argsort(dim=-1)  # each key at least once
    keys = torch.cat([once, torch.randint(4, (size, 8))], dim=1)
    values, last = torch.randint(16, (size, 12)), torch.empty(size, 4, dtype=torch.long)
    for key, value in zip(keys.split(1, dim=1), values.split(1, dim=1), strict=True):
        last.scatter_(1, key, value)
    return text_of(keys, values, torch.arange(4).expand(size, 4), last)


# %% [markdown]
# The mixers: softmax with rotary positions, or section 5.2's chunk, the whole text at once:


# %% tags=["recorded"]
def rotated(x):  # (…, n, d): lesson 05's rotation, first half with second half
    n, d = x.shape[-2:]
    angle = torch.arange(n)[:, None] * 10_000 ** (-torch.arange(0, d, 2) / d)
    a, b = x.chunk(2, dim=-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def softmax(q, k, v, beta, alpha):  # (batch, heads, n, …) each
    return F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)


def by_rule(q, k, v, beta, alpha, gated, corrects):
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    S = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1])
    return gated_chunk(S, q, k, v, beta, alpha if gated else 0 * alpha + 1, corrects)[1]


# %% [markdown]
# Two parts that all decoders share, the short convolution and a feed-forward network:


# %% tags=["recorded"]
class ShortConvolution(nn.Conv1d):
    def __init__(self, d, kernel):
        super().__init__(d, d, kernel, groups=d)  # each feature by itself

    def forward(self, x):  # (batch, n, d): a token and those just before it
        return super().forward(F.pad(x.mT, (self.kernel_size[0] - 1, 0))).mT


class FeedForward(nn.Sequential):
    def __init__(self, d=64):
        wide, narrow = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        super().__init__(nn.RMSNorm(d), wide, nn.GELU(), narrow)

    def forward(self, x):
        return x + super().forward(x)


# %% [markdown]
# A mixer: norm, convolution, projections, the rule, and a norm of what is read:


# %% tags=["recorded"]
class Mixer(nn.Module):
    def __init__(self, rule, kernel, d=64, heads=4):
        super().__init__()
        self.rule, self.split = rule, nn.Unflatten(-1, (heads, d // heads))
        self.norm, self.output = nn.RMSNorm(d), nn.Linear(d, d, bias=False)
        self.convolution = ShortConvolution(d, kernel)
        self.project = nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(3))
        self.gates = nn.ModuleList(nn.Linear(d, heads) for _ in range(2))

    def forward(self, x):  # (batch, n, d)
        h = self.convolution(self.norm(x))
        q, k, v = (self.split(f(h)).transpose(1, 2) for f in self.project)
        beta, alpha = (f(h).sigmoid().mT[..., None] for f in self.gates)
        out = self.rule(q, k, v, beta, alpha)  # (batch, heads, n, d / heads)
        out = F.rms_norm(out, out.shape[-1:]).transpose(1, 2).flatten(2)
        return x + self.output(out)


# %% [markdown]
# The decoder has two of each:


# %% tags=["recorded"]
rules = {"softmax": softmax, "sum": partial(by_rule, gated=False, corrects=False),
         "gate": partial(by_rule, gated=True, corrects=False),
         "delta rule": partial(by_rule, gated=False, corrects=True)}


def decoder(name, kernel, d=64):
    first, second = (nn.Sequential(Mixer(rules[name], kernel), FeedForward())
                     for _ in range(2))
    for mixer, _ in (first, second):
        nn.init.constant_(mixer.gates[1].bias, 4.0)  # a new gate keeps 98%
    model = nn.Sequential(
        nn.Embedding(80, d), first, second, nn.RMSNorm(d), nn.Linear(d, 16))
    nn.init.normal_(model[0].weight, std=0.02)  # as in the race
    return model


# %% [markdown]
# Training takes 300 batches:


# %% tags=["recorded"]
def fit(model, task, steps, rate=3e-3):
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98))
    for step in progress(range(steps), "training"):
        factor = min(1, (step + 1) / 30) * (1 - step / steps)
        optimizer.param_groups[0]["lr"] = rate * factor
        ids, answers = task(32)
        logits = model(ids)[:, -answers.shape[1]:]  # at what is asked
        F.cross_entropy(logits.flatten(0, 1), answers.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


# %% [markdown]
# Then 500 new texts test it:


# %% tags=["recorded"]
def train(task, name, kernel=4, seed=0, steps=300):
    torch.manual_seed(seed)
    model = decoder(name, kernel)
    fit(model, task, steps)
    torch.manual_seed(99)
    ids, answers = task(500)
    with torch.no_grad():
        right = model(ids)[:, -answers.shape[1]:].argmax(dim=-1) == answers
    return right.float().mean().item()


# %% [markdown]
# Four models, three seeds each, take minutes, so `data/state.py` has recorded their right answers:

# %%
for name, by_kernel in recorded["recall"].items():
    for kernel, seeds in by_kernel.items():
        shown = " ".join(f"{right:4.0%}" for right in seeds.values())
        print(f"{name:10}  {kernel:14}  {shown}")

# %% jupyter={"source_hidden": true}
predicted("state-control", "the short convolution", "Softmax with it recalls; the delta rule without it fails.")

# %% [markdown]
# Both directions agree. Give softmax the convolution, and it recalls. Take it from the delta rule, and that fails like
# softmax. So the race did not show what a state can do and a cache can't. In the control, only the layers that get a
# key and its value side by side learn the task within 300 batches. (Not everything is explained: Gated DeltaNet and
# Mamba-2 have a convolution, and did not recall in the race.)
#
# ### 6.3 Overwriting, live
#
# From here on every mixer has a convolution. Overwriting separates rules whose states have equal sizes. Two live runs,
# some ten seconds each, next to what all four mixers did with three seeds:

# %% tags=["nbval-ignore-output"]
live = {name: train(overwriting, name) for name in ("sum", "delta rule")}
expect("delta rule, overwriting", live["delta rule"], 0.97, 1)
expect("sum, overwriting", live["sum"], 0.5, 0.9)
for name, seeds in recorded["overwriting"].items():
    print(f"{name:10} recorded", " ".join(f"{right:4.0%}" for right in seeds.values()),
          f" live {live[name]:.0%}" if name in live else "")

# %% [markdown]
# The sum stays behind, as it does by hand. The gate comes near the delta rule: among only twelve writes, what is old is
# mostly outdated, and a trained gate depends on the token (our explanation). And softmax is perfect. It has positions,
# so it can prefer the later of two equal keys, and it has kept both. On these tasks a good state reaches the cache, and
# does not pass it. (Eight and twelve pairs fit into these states. Section 3.5 says what comes beyond.)
#
# ### 6.4 Hybrids
#
# So why choose? A **hybrid** has both kinds of layers in a fixed pattern: several with a state, then one with softmax
# and a cache, which looks up what the others have let go. Kimi Linear and Qwen3-Next have three to one. The cache
# shrinks to a quarter; what a state costs hardly counts. Bytes in 16 bits for 32 layers of 8 KV heads, 128 wide:

# %%
def gigabytes(tokens, softmax_layers, layers=32, heads=8, d=128):
    cache = 2 * softmax_layers * heads * d * tokens
    states = (layers - softmax_layers) * heads * d * d
    return 2 * (cache + states) / 1e9


for tokens in (10_000, 100_000, 1_000_000):
    print(f"{tokens:9,} tokens: all softmax {gigabytes(tokens, 32):6.2f} GB,",
          f"3 to 1 {gigabytes(tokens, 8):5.2f}, all states {gigabytes(tokens, 0):.3f}")

# %% [markdown]
# And on real text? In the race, characters of Shakespeare's plays, nats on unseen text (lower is better):

# %%
for name in ("softmax", "window", "linear", "delta", "gated delta", "mamba2", "hybrid"):
    seeds = recorded["plays"][name].values()
    print(f"{name:12}", " ".join(f"{nats:.2f}" for nats in seeds))

# %% [markdown]
# A window of eight characters, Mamba-2 and the hybrid are ahead, the sum ("linear") is last, and gates seem to help:
# gated delta is ahead of delta in each seed (that layer also has an output gate). In 64 characters there is hardly
# anything to look up, and the last eight are enough to be in front. More we can't say. The race gives equal *time*: in
# 28 seconds the window sees 504 to 635 batches, softmax 406 to 544, both delta rules and Mamba-2 only 190 to 272. A
# convolution alone was not enough: delta has one, and after half as many batches it is behind softmax.

# %% [markdown]
# ## 7 Open the library
#
# In `txlib` these layers are mixers: `mixer=DeltaConfig()` in a block takes the place of attention. The heart of it:

# %%
from txlib.attention import delta_rule
from txlib.layers import BlockConfig, DeltaConfig
from txlib.models import GPT, GPTConfig

show_source(delta_rule)

# %% [markdown]
# It is `gated_chunk` with a loop over chunks; `fade` is the logarithm of our $\alpha$. The same numbers as ours:

# %%
inputs = [x[None, None] for x in (q, k, v)]  # (1, 1, n, d) each
out, _ = delta_rule(*inputs, beta.mT[None])
prove_equal(exact, out[0, 0], tolerance=1e-6, what="Delta rule")
out, _ = delta_rule(*inputs, beta.mT[None], fade=alpha.log().mT[None])
prove_equal(gated, out[0, 0], tolerance=1e-6, what="Gated delta rule")

# %% [markdown]
# A hybrid by pattern: three layers with a gated delta rule, one with attention. While it decodes, each layer keeps what
# it needs:

# %%
mixer = DeltaConfig(gated=True, output_gate=True)
pattern = ({"mixer": mixer}, {"mixer": mixer}, {"mixer": mixer}, {})
block = BlockConfig.of_sizes(64, 4, 128, position="rotary", layer_pattern=pattern)
torch.manual_seed(0)
hybrid = GPT(GPTConfig(80, block, layers=4, max_length=512)).eval()
ids, cache = torch.randint(80, (1, 300)), hybrid.new_cache()
with torch.no_grad():
    outs = [hybrid(part, cache=cache).logits for part in ids.split(100, dim=1)]
    once = hybrid(ids).logits
prove_equal(once, torch.cat(outs, dim=1), tolerance=1e-4, what="At once and in parts")
for layer in cache:
    kept = layer.self_attention
    tensors = kept.state if hasattr(kept, "state") else (kept.k, kept.v)
    print(type(kept).__name__, [tuple(x.shape) for x in tensors])

# %% [markdown]
# (The second tensor of a state is what the short convolution needs of the last three tokens.) `Mamba2Config()` and
# `KimiDeltaConfig()` go in the same place; all are equal to transformers' own layers, which the library's tests check,
# and `load_pretrained` reads checkpoints of Qwen3-Next and Mamba-2.

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. A state of the delta rule holds $v$ for the key $k$, $|k| = 1$. The same pair is written again, β = 1. What
# changes?**
#
# <details><summary>A. Reading with k returns 2v</summary>
#
# That is what a sum would do.
# </details>
# <details><summary>B. Nothing</summary>
#
# Right. The difference between $v$ and what is read is 0, and so is what is written.
# </details>
# <details><summary>C. Other keys fade</summary>
#
# A gate does that. The delta rule writes along $k$ only.
# </details>
#
# **2. Keys have length 3. For which β does the error along a key shrink with each write?**
#
# <details><summary>A. For all between 0 and 1</summary>
#
# With β = 1 it is multiplied by $1 - 9 = -8$.
# </details>
# <details><summary>B. For 0 < β < 2/9</summary>
#
# Right: $|1 - 9\beta| < 1$.
# </details>
# <details><summary>C. For none</summary>
#
# A small enough step always helps.
# </details>
#
# **3. Why does a chunk of the delta rule have to solve a triangular system, and a chunk of a gated sum not?**
#
# <details><summary>A. Because of the β</summary>
#
# A sum with strengths β would still be one product.
# </details>
# <details><summary>B. Because what a token writes depends on what the tokens before it have written</summary>
#
# Right. In a sum each token writes $v$, whatever the state holds.
# </details>
# <details><summary>C. Because the state has to be inverted</summary>
#
# Nothing of the state is inverted. The system is as large as the chunk.
# </details>
#
# **4. Layer A with a state and a convolution recalls, softmax layer B without one does not. What do you run next?**
#
# <details><summary>A. More seeds of both</summary>
#
# They make the gap certain, and say nothing about its cause.
# </details>
# <details><summary>B. B with a convolution and A without, each started as the other</summary>
#
# Right. Change one thing at a time, in both directions.
# </details>
# <details><summary>C. Nothing: states win</summary>
#
# See section 6.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - A state is a matrix: write by adding $k v^\top$, read by $S^\top q$. It has the same size after any number of
#   tokens.
# - A sum overwrites nothing, a gate forgets everybody, the delta rule replaces what its own key returns: one step of
#   gradient descent, stable for $\beta |k|^2 < 2$, hence keys of length 1.
# - A state of $d$ rows holds at most $d$ pairs exactly; a cache holds all.
# - In a chunk, what is written solves a triangular system; older content comes through the state. Loop and chunks
#   agree.
# - Mamba-2, RetNet, Gated DeltaNet and Kimi Delta Attention differ in what they keep and what they write. Hybrids add
#   some layers with a cache.
# - Change one thing at a time, in both directions: what looked like a weakness of softmax was a missing convolution.
#
# **Read** Katharopoulos et al. 2020, *Transformers are RNNs*, [arXiv:2006.16236](https://arxiv.org/abs/2006.16236),
# section 3. Yang et al. 2024, *Gated Linear Attention*, [arXiv:2312.06635](https://arxiv.org/abs/2312.06635). Schlag
# et al. 2021, *Linear Transformers Are Secretly Fast Weight Programmers*,
# [arXiv:2102.11174](https://arxiv.org/abs/2102.11174), section 4. Yang et al. 2024b, *Parallelizing Linear Transformers
# with the Delta Rule over Sequence Length*, [arXiv:2406.06484](https://arxiv.org/abs/2406.06484), section 3. Yang et
# al. 2025, *Gated Delta Networks*, [arXiv:2412.06464](https://arxiv.org/abs/2412.06464), section 3. Dao and Gu 2024,
# *Transformers are SSMs*, [arXiv:2405.21060](https://arxiv.org/abs/2405.21060), sections 5 to 7. Sun et al. 2023,
# *Retentive Network*, [arXiv:2307.08621](https://arxiv.org/abs/2307.08621), section 2. Kimi Team 2025, *Kimi Linear*,
# [arXiv:2510.26692](https://arxiv.org/abs/2510.26692), section 4.
#
# **Do** the exercise [33_state](../exercises/exercise_33_state.ipynb). Then go on to
# [34 FlashAttention](34_flash.ipynb), which keeps the cache and every score, and never writes the scores down.
