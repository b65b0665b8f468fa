# %% [markdown] lesson={"part": "IV Efficiency", "builds": "softmax in one pass, tiles, memory measured, a Triton kernel line by line"}
# # 34 · FlashAttention
#
# **After this lesson you will be able to**
#
# - say whether a computation waits for arithmetic or for memory, and show it with numbers of your own machine;
# - compute a softmax over numbers that you see only once, a few at a time, and prove that nothing is lost;
# - build attention, forward and backward, that never holds the matrix of scores, and measure what that saves;
# - read a Triton kernel line by line, and run it without a GPU;
# - say in honest sentences what FlashAttention 1, 2 and 3 each changed.
#
# **You need** lessons 03, 10 and 13. **It takes** about 65 minutes to read and try; all cells together run in about a
# minute on a laptop.

# %% [markdown]
# ## 1 The problem: a matrix that nobody asked for
#
# Attention takes three matrices with a row for each token, and gives back one. On the way it makes another one, with a
# row *and* a column for each token. How large is that, for a play by Shakespeare, character by character?

# %%
import ast
import math
import os
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # for section 10; before anybody imports Triton
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from txlib import plots
from txcourse import explore, figures
from txcourse.lesson import expect, prove_equal, show_source
from txlib.data import shakespeare, shipped

torch.set_num_threads(1)                                           # timings of one thread repeat best

# %% [markdown]
# Four bytes per number, a head of 64:

# %%
play = shakespeare().validation
for n in (1024, 8192, len(play)):
    print(f"{n:8,} characters: q, k, v and the output {4 * n * 64 * 4 / 1e6:8.1f} MB, "
          f"scores {n * n * 4 / 1e6:10,.0f} MB per head")

# %% [markdown]
# Head by head, with 64 numbers of 4 bytes each in a row. A whole play in one piece: what goes in and comes out fits
# into a corner of your memory; the scores of a single head, 49 GB, are more than most computers have. And yet each
# score is needed only for a moment: to become a weight, and to multiply one row of values.
#
# So here is the wish: **the same numbers, without the matrix.** Not another pattern, as in lesson 31, and not an
# approximation, as in lesson 32: the same output, up to rounding. Many tried to save *operations*. Dao et al. (2022)
# saved *memory traffic*, and got what the others had promised: attention that is several times faster. Why should that
# help? Measure.

# %% [markdown]
# ## 2 What does attention wait for?
#
# Lesson 13 asked what a token waits for when a model writes. Ask the same of attention. A processor does two things: it
# computes, and it moves numbers between itself and memory. Each has a top speed. Find out yours: a large product of
# matrices for the one, a copy of a large tensor for the other. (A multiplication and an addition count as two
# operations.)


# %%
def seconds(compute, repeats=5):
    times = []
    for _ in range(repeats):
        start = time.process_time()                # the processor's: other programs do not count
        compute()
        times.append(time.process_time() - start)
    return min(times)


# %% [markdown]
# Both top speeds, and what they are to each other:

# %% tags=["nbval-ignore-output"]
a, b = torch.randn(2, 1024, 1024)                                  # (1024, 1024) each
large = torch.randn(16 * 1024 * 1024)              # 64 MB: more than fits beside the processor
target = torch.empty_like(large)
peak = 2 * 1024**3 / seconds(lambda: a @ b)        # n² sums of n products
bandwidth = 2 * 4 * len(large) / seconds(lambda: target.copy_(large))  # each number is read and written
print(f"operations {peak / 1e9:6.1f} billion per second")
print(f"memory     {bandwidth / 1e9:6.1f} billion bytes per second")
print(f"while one byte travels, {peak / bandwidth:.1f} operations could be done")
expect("Operations per byte", peak / bandwidth, 1, 60)

# %% [markdown]
# That last number is the machine's *ridge*. A computation that does fewer operations for each byte that it moves has to
# wait for memory, however fast the arithmetic is. On a GPU the ridge is far higher: an A100 does 312 trillion
# operations per second (in 16 bits, on matrices), and its memory delivers 1.5 to 2 trillion bytes: 150 to 200
# operations per byte.
#
# How many does attention do? Take its steps one by one, for $n$ = 4096 tokens and $d$ = 64. Count operations and the
# bytes that must travel *at least*: each input read once, each output written once. (A softmax is five operations per
# score: the maximum, a subtraction, an exponential, the sum, a division. The mask takes one byte per score, a quarter
# of a number.)

# %%
n, d = 4096, 64
q, k, v = torch.randn(3, n, d)                                     # (n, d) each
score = q @ k.T                                                    # (n, n)
hidden = torch.ones(n, n).triu(1).bool()                           # (n, n): True = in the future
never = torch.tensor(-torch.inf)
weight = score.softmax(dim=-1)                                     # (n, n)
square, tall = torch.empty(n, n), torch.empty(n, d)                # for the results, beforehand
steps = {                                          # what, operations, numbers that travel
    "q kᵀ": (lambda: torch.matmul(q, k.T, out=square), 2 * n * n * d, n * n + 2 * n * d),
    "mask": (lambda: torch.where(hidden, never, score, out=square), n * n, 2.25 * n * n),
    "softmax": (lambda: torch.softmax(score, dim=-1, out=square), 5 * n * n, 2 * n * n),
    "weights · v": (lambda: torch.matmul(weight, v, out=tall), 2 * n * n * d, n * n + 2 * n * d),
}

# %% [markdown]
# Each step is timed by itself:

# %% tags=["nbval-ignore-output"]
points, spent = {}, {}
for name, (compute, operations, numbers) in steps.items():
    spent[name] = seconds(compute, repeats=3)
    points[name] = operations / (4 * numbers), operations / spent[name]
    print(f"{name:12} {points[name][0]:5.1f} operations per byte, {1000 * spent[name]:6.1f} ms")
share = (spent["mask"] + spent["softmax"]) / sum(spent.values())
print(f"mask and softmax: {6 / (4 * d + 6):.0%} of the operations, {share:.0%} of the time")

# %% [markdown]
# Two steps with hardly any operations take a good part of the time. They touch each of the $n^2$ numbers, do next to
# nothing with it, and put it back. Draw the *roofline* of lesson 13 (Williams et al. 2009) once more, now over
# operations per byte: under its slope memory is the limit, under the flat part arithmetic. The ridge is where they
# meet. No step can be above the roof; how far below it a step stays depends on how it is programmed.

# %% tags=["nbval-ignore-output"]
seen = "; ".join(f"{name} at {x:.1f} per byte: {y:.2g} per second" for name, (x, y) in points.items())
figures.roofline(
    points, peak=peak, bandwidth=bandwidth,
    title="Mask and softmax sit under the slope: memory limits them",
    alt="Operations per second against operations per byte on logarithmic scales, with a roof that "
    f"rises and then is flat. {seen}",
)

# %% [markdown]
# (The results were written to memory that had been handed out before. Where each step makes a new tensor, as usual, the
# two take longer still. And however fast the arithmetic became, they could rise to the slope and no further.)
#
# On a GPU, whose ridge lies further to the right, the two products wait for memory as well: with 32 operations per
# byte (64 in 16 bits) they lie below a ridge of 150. All of attention does. So the way to a faster attention is not
# fewer operations. It is **fewer journeys**: take a few numbers into the small, fast memory beside the arithmetic, do
# *everything* with them that will ever be done, and write down only the result.
#
# | A100 (Dao et al. 2022, figure 1) | size | speed |
# | --- | --- | --- |
# | SRAM, beside the arithmetic | 20 MB in all, 192 kB for each of 108 processors | 19 TB per second |
# | HBM, "the GPU's memory" | 40 GB | 1.5 TB per second |
#
# A CPU's caches play the same part. What stands in the way is the softmax.

# %%
del score, weight, hidden, square, a, b, large, target             # a quarter of a gigabyte

# %% [markdown]
# ## 3 The idea in one picture
#
# Cut the matrix of scores into tiles. Take one tile of queries, and walk along the keys: make the scores of one tile,
# use them up, forget them. (Orange is at hand, blue is done and forgotten, grey is still to come. White: the mask hides
# it, so it is never made.)

# %%
walk = [(2, 0), (2, 1), (2, 2), (3, 0)]
before = [(row, column) for row in range(2) for column in range(row + 1)]
figures.tiles(
    (4, 4), walk, ["first keys", "next keys", "the diagonal", "next queries"], done=before,
    title="One tile at a time; what is done is forgotten",
    alt="A causal 4 by 4 matrix of tiles, once for each step. One tile is at hand, from the first keys "
    "to the diagonal, then the next row of queries; tiles right of the diagonal stay white.",
    hidden=[(row, column) for row in range(4) for column in range(row + 1, 4)],
)

# %% [markdown]
# But a softmax needs the *whole row*: each weight is divided by the sum over all keys. The first tile can't know that
# sum. This is the one problem that FlashAttention has to solve, and the solution is older than it: Milakov &
# Gimelshein (2018).
#
# ## 4 A softmax over numbers that pass by
#
# ### 4.1 Why three passes
#
# $$\text{softmax}(x)_i = \frac{e^{x_i - m}}{\sum_j e^{x_j - m}}, \qquad m = \max_j x_j$$
#
# Why $m$? Without it $e^{x}$ overflows: 32 bits end near $e^{88}$. Subtracting $m$ changes nothing, as it cancels, and
# makes every exponent at most 0. But it costs a pass of its own: one for $m$, one for the sum, one for the result.

# %%
x = torch.tensor([2.0, 1.0, 5.0, 3.0, 9.0, 8.0])                   # (6,): the scores of one query
m = x.max()                                                        # pass 1
l = (x - m).exp().sum()                                            # pass 2
print("safe  ", ((x - m).exp() / l).tolist()[:3])                  # pass 3
print("unsafe", ((100 * x).exp() / (100 * x).exp().sum()).tolist()[:3], "with scores of 100 times x")

# %% [markdown]
# ### 4.2 The trick: a sum that can be corrected
#
# Suppose you have seen some of the numbers, and know their maximum $m$ and their sum $l = \sum e^{x_j - m}$. Now comes
# a larger one, and the maximum becomes $m'$. Must you go back? No. Every term of the sum was made with the wrong
# maximum, and *all of them are wrong by the same factor*:
#
# $$\sum_j e^{x_j - m'} = \sum_j e^{x_j - m}\, e^{m - m'} = l \; e^{m - m'}$$
#
# So: rescale the old sum by $e^{m - m'}$, add the new term, go on.


# %%
def one_pass(numbers):
    m, l = -math.inf, 0.0
    for x in numbers:
        greater = max(m, x)
        l = l * math.exp(m - greater) + math.exp(x - greater)      # what was, rescaled, and what comes
        m = greater
        print(f"saw {x:.0f}: maximum {m:.0f}, sum {l:.4f}")
    return m, l


m_online, l_online = one_pass(x.tolist())
prove_equal(torch.tensor([m_online, l_online]), torch.stack([m, l]), what="One pass and two passes")

# %% [markdown]
# Watch the sum: at 5 and at 9 it collapses to little more than 1, because next to the new maximum all that went before
# hardly counts. Nothing is lost; it is only measured by another yardstick.
#
# ### 4.3 Two halves make a whole
#
# The same rule joins two sums that were made apart, each with its own maximum. So the order does not matter, nor how
# the numbers were split: tiles are allowed.


# %%
def join(one, other):
    (m1, l1), (m2, l2) = one, other
    m = torch.maximum(m1, m2)
    return m, l1 * (m1 - m).exp() + l2 * (m2 - m).exp()


halves = [(half.max(), (half - half.max()).exp().sum()) for half in x.split(3)]
joined = join(*halves)
prove_equal(torch.stack(joined), torch.stack([m, l]), what="Two halves joined, and the whole")
prove_equal(torch.stack(join(*halves[::-1])), torch.stack([m, l]), what="In the other order, too: they")

# %% [markdown]
# ### 4.4 The values come along
#
# We do not even want the weights. We want their average of the values, $o / l$ with $o = \sum_j e^{x_j - m}\, v_j$.
# This sum has the same wrong factor when the maximum changes, so it is rescaled in the same way; it is divided by $l$
# only once, at the very end. One step of the walk takes in a whole tile $S$ of scores, a row for each query, and its
# values $V$. What is new has a prime:
#
# $$m' = \max(m, \text{rowmax}\, S) \qquad P = e^{S - m'} \qquad l' = e^{m - m'} l + \text{rowsum}\, P \qquad
# o' = e^{m - m'} o + P V$$


# %%
def take_in(m, l, o, S, V):    # (rows, 1), (rows, 1), (rows, d); (rows, columns), (columns, d)
    greater = torch.maximum(m, S.amax(dim=-1, keepdim=True))       # (rows, 1)
    P = (S - greater).exp()                                        # (rows, columns)
    rescale = (m - greater).exp()                                  # (rows, 1)
    return greater, rescale * l + P.sum(dim=-1, keepdim=True), rescale * o + P @ V


# %% [markdown]
# That is the heart of FlashAttention. The rest is book-keeping.
#
# ## 5 Attention in tiles
#
# First the scores of one tile. `rows` and `columns` are the positions of its queries and keys.


# %%
def tile_of_scores(q, k, rows, columns, is_causal):
    S = q[rows] @ k[columns].T * q.shape[-1] ** -0.5               # (rows, columns)
    return S.masked_fill(columns > rows[:, None], -torch.inf) if is_causal else S


# %% [markdown]
# Now the walk. Two details: the maximum starts at the lowest finite number, not at $-\infty$. If the mask hides a whole
# tile from a query (a window can), the new maximum would be $-\infty$ too, and $-\infty - (-\infty)$ is not a number.
# And beside the output we keep one number per query, $L = m + \ln l = \ln \sum_j e^{x_j}$: the logarithm of the
# softmax's denominator, as it would be without $m$. (It pays off in section 7.)


# %%
def forward_in_tiles(q, k, v, is_causal=False, tile=64, step=take_in):       # (n, d) each
    out, L = torch.empty_like(q), q.new_empty(len(q))              # (n, d), (n,)
    for rows in torch.arange(len(q)).split(tile):
        m = q.new_full((len(rows), 1), torch.finfo(q.dtype).min)   # (rows, 1)
        l, o = torch.zeros_like(m), torch.zeros_like(q[rows])      # (rows, 1), (rows, d)
        for columns in torch.arange(len(k)).split(tile):
            if is_causal and columns[0] > rows[-1]:
                break                                  # all in the future: not even looked at
            S = tile_of_scores(q, k, rows, columns, is_causal)     # (rows, columns)
            m, l, o = step(m, l, o, S, v[columns])
        out[rows], L[rows] = o / l, (m + l.log())[:, 0]
    return out, L


# %% [markdown]
# The definition for comparison, and the proof. 500 is no multiple of 64: the last tiles are narrower, nothing else.


# %%
def definition(q, k, v, is_causal=False):
    S = q @ k.T * q.shape[-1] ** -0.5                              # (n, n)
    if is_causal:
        S = S.masked_fill(torch.ones_like(S).triu(1).bool(), -torch.inf)
    return S.softmax(dim=-1) @ v                                   # (n, d)


torch.manual_seed(0)
q, k, v = torch.randn(3, 500, 64)                                  # (n, d) each
for is_causal in (False, True):
    out, L = forward_in_tiles(q, k, v, is_causal)
    prove_equal(out, definition(q, k, v, is_causal), what="Tiles and definition")

# %% [markdown]
# See it work: one query with 8 keys, in tiles of 2. After each tile $o / l$ is the right answer *for the keys so far*
# (the cell checks it); the next tile corrects it.

# %%
lowest = torch.finfo(torch.float32).min
states, m, l, o = [], torch.full((1, 1), lowest), torch.zeros(1, 1), torch.zeros(1, 64)
S = torch.tensor([[2.0, 1.0, 5.0, 3.0, 9.0, 8.0, 4.0, 0.0]])       # (1, 8)
for columns in torch.arange(8).split(2):
    m, l, o = take_in(m, l, o, S[:, columns], v[columns])
    states.append(f"m = {m.item():.0f}\nl = {l.item():.2f}")
    so_far = S[:, : columns[-1] + 1].softmax(dim=-1) @ v[: columns[-1] + 1]         # (1, d)
    torch.testing.assert_close(o / l, so_far)
words = "; ".join(states).replace("\n", ", ")
figures.tiles(
    (1, 4), [(0, column) for column in range(4)], states,
    title="Each tile corrects the maximum and the sum",
    alt=f"Four steps along one row of four tiles; maximum and sum below each: {words}",
)

# %% [markdown]
# Now all of it, with the first eight queries and keys of the proof above: press *next*, and watch what is in fast
# memory. Where a maximum rises, the old sums are multiplied by less than 1. Then change the tile, and switch on the
# causal mask: which tiles does the walk leave out? (If you see no buttons, run the cell.)

# %%
explore.flash(q[:8], k[:8], v[:8])

# %% [markdown]
# <details><summary>The answer</summary>
#
# It leaves out the tiles that lie entirely above the diagonal, since the mask hides all of their scores: 6 of 16 with
# tiles of 2, 1 of 4 with tiles of 4, 28 of 64 with tiles of 1.
# </details>
#
# Whatever the tiles, the last `o / l` of a query is the same.
#
# ## 6 What it saves, measured
#
# How large is the largest tensor that is ever made? torch tells about every operation if asked. (A *dispatch mode* sees
# them all; a view counts as what it is a view of.)


# %%
class Largest(TorchDispatchMode):
    """Notes the largest tensor that is made inside `with Largest() as seen:`, in numbers."""
    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(each, torch.Tensor):
                self.numbers = max(self.numbers, each.untyped_storage().nbytes() // each.element_size())
        return result


# %% [markdown]
# Run both ways from 128 tokens to 2,048, and note the largest:

# %%
lengths, largest = [128, 256, 512, 1024, 2048], {"definition": [], "tiles of 64": []}
for n in lengths:
    q, k, v = (torch.randn(n, 64) for _ in range(3))               # (n, d) each
    for name, compute in (("definition", definition), ("tiles of 64", forward_in_tiles)):
        with Largest() as seen:
            compute(q, k, v)
        largest[name].append(seen.numbers)
print({name: f"{numbers[-1]:,}" for name, numbers in largest.items()}, "numbers at n =", n)

# %% [markdown]
# Doubling the length again and again, on logarithmic axes:

# %%
plots.lines(
    {name: (lengths, numbers) for name, numbers in largest.items()},
    title="The definition's largest tensor grows with n²",
    xlabel="length n", ylabel="numbers", xscale="log", yscale="log",
    alt=f"Two lines on logarithmic scales; at n = {n} the definition makes "
    f"{largest['definition'][-1]:,} numbers at once, the tiles {largest['tiles of 64'][-1]:,}.",
)

# %% [markdown]
# One line has slope 2, the other slope 1: nothing that the tiles make is larger than the output itself.
#
# And journeys? Count the numbers that travel between slow and fast memory, each time a step reads or writes. The
# definition writes the scores, reads them, writes the weights, reads them: $4n^2 + 4nd$. The tiles read $q$ once, write
# the output once, and read all of $k$ and $v$ once *per tile of queries*: $2nd + 2nd \cdot n / B$.

# %%
def travels(n, d, tile):
    return 4 * n * n + 4 * n * d, 2 * n * d + 2 * n * d * math.ceil(n / tile)


for tile in (16, 64, 128, 256):
    plain, tiled = travels(4096, 64, tile)
    print(f"tiles of {tile:3} queries: {plain / 1e6:.0f} million numbers travel in the definition, "
          f"{tiled / 1e6:5.1f} in tiles: ratio {plain / tiled:.1f}")

# %% [markdown]
# The larger the tile, the fewer journeys. With tiles of 16, more travels than in the definition: the gain is lost. And
# a tile can only be as large as fast memory allows. If that holds $M$ numbers, $B$ is about $M / d$, up to a constant
# factor (the paper takes $M / 4d$; task 6 of the exercise counts exactly). Put it into $2nd \cdot n / B$, and you have
# the paper's theorem 2: $\Theta(n^2 d^2 / M)$ in tiles against $\Theta(nd + n^2)$. Journeys are fewer by a factor, but
# they stay quadratic in $n$, and so do operations. Only the memory that is *occupied* has become linear.

# %% [markdown]
# ## 7 The way back: compute it again
#
# To train, we need gradients, and backpropagation wants the weights $P$: all $n^2$ of them, kept from the forward pass.
# What does torch keep for the definition?


# %%
def kept(compute, *inputs):
    """Bytes that wait for the backward pass."""
    tensors = {}
    def note(tensor):
        tensors[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        compute(*inputs)
    return sum(tensors.values())


q, k, v = (torch.randn(1024, 64, requires_grad=True) for _ in range(3))      # (n, d) each
print(f"definition: {kept(definition, q, k, v) / 1e6:.1f} MB; q, k and v: {3 * q.nbytes / 1e6:.1f} MB")

# %% [markdown]
# The 4.2 MB on top of $q$, $k$ and $v$ are $P$. FlashAttention does not keep it. It computes every tile of scores
# *again* on the way back. More operations, fewer journeys: you know by now which of the two is cheaper. From $L$, a
# tile's weights come in one step, without a second walk: $P = e^{S - L}$.
#
# The rest is the chain rule. Write $dX$ for the gradient of the loss with respect to $X$, and let $dO$ be the one that
# arrives at the output $O = PV$. In a softmax, $\partial P_{ik} / \partial S_{ij} = P_{ik}\,([j = k] - P_{ij})$, where
# $[j = k]$ is 1 if $j$ is $k$, else 0: raising one score raises its own weight, and lowers the others of its row in
# proportion to their size.
#
# $$dV = P^\top dO \qquad dP = dO\, V^\top \qquad dS_{ij} = P_{ij}\Big(dP_{ij} - \sum_k P_{ik}\, dP_{ik}\Big) \qquad
# dQ = \tfrac{1}{\sqrt d}\, dS\, K \qquad dK = \tfrac{1}{\sqrt d}\, dS^\top Q$$
#
# The third is the softmax's gradient, and it has a sum over the whole row again! But that sum is an old acquaintance:
#
# $$\sum_k P_{ik}\, dP_{ik} = \sum_k P_{ik} \sum_c dO_{ic} V_{kc} = \sum_c dO_{ic} \sum_k P_{ik} V_{kc}
# = \sum_c dO_{ic}\, O_{ic} =: D_i$$
#
# A row of the output times a row of its gradient: $d$ numbers, no matrix. Two numbers per query, $L_i$ and $D_i$, stand
# for all that we did not keep.


# %%
def backward_in_tiles(q, k, v, out, L, d_out, is_causal=False, tile=64):
    scale = q.shape[-1] ** -0.5
    dq, dk, dv = (torch.zeros_like(each) for each in (q, k, v))    # (n, d) each
    D = (d_out * out).sum(dim=-1, keepdim=True)                    # (n, 1)
    for rows in torch.arange(len(q)).split(tile):
        for columns in torch.arange(len(k)).split(tile):
            if is_causal and columns[0] > rows[-1]:
                break
            S = tile_of_scores(q, k, rows, columns, is_causal)     # (rows, columns)
            P = (S - L[rows, None]).exp()                          # (rows, columns)
            dS = P * (d_out[rows] @ v[columns].T - D[rows])        # (rows, columns)
            dv[columns] += P.T @ d_out[rows]
            dk[columns] += dS.T @ q[rows] * scale
            dq[rows] += dS @ k[columns] * scale
    return dq, dk, dv


# %% [markdown]
# A pair of forward and backward that torch does not know becomes an `autograd.Function`. What `save_for_backward` gets
# is all that waits.


# %%
class Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        out, L = forward_in_tiles(q, k, v, is_causal)
        ctx.save_for_backward(q, k, v, out, L)
        ctx.is_causal = is_causal
        return out

    @staticmethod
    def backward(ctx, d_out):
        return *backward_in_tiles(*ctx.saved_tensors, d_out, ctx.is_causal), None  # none for is_causal


# %% [markdown]
# Three questions. Are the gradients those that autograd finds for the definition? Do they agree with finite differences,
# on a few numbers in double precision (`gradcheck`)? And how much is kept for the way back?

# %%
d_out = torch.randn(1024, 64)                                      # (n, d)
ours = torch.autograd.grad(Flash.apply(q, k, v, True), (q, k, v), d_out)
exact = torch.autograd.grad(definition(q, k, v, True), (q, k, v), d_out)
for name, mine, theirs in zip(("dq", "dk", "dv"), ours, exact, strict=True):
    prove_equal(mine, theirs, tolerance=1e-4, what=f"{name} in tiles and by autograd")
few = [torch.randn(5, 3, dtype=torch.double, requires_grad=True) for _ in range(3)]   # (n, d) each
print("finite differences agree:", torch.autograd.gradcheck(lambda *qkv: Flash.apply(*qkv, True), few))
tiles, plain = kept(lambda *qkv: Flash.apply(*qkv, False), q, k, v), kept(definition, q, k, v)
print(f"kept for the way back: {tiles / 1e6:.1f} MB, definition {plain / 1e6:.1f} MB")

# %% [markdown]
# ## 8 Break it: forget to rescale
#
# The most natural mistake is to leave out `rescale`. How bad is it? That depends on something that should not matter at
# all: the *order of the keys*. Sort them by the score that one query gives them, both ways, and shuffle them.


# %%
def forgetful(m, l, o, S, V):
    greater = torch.maximum(m, S.amax(dim=-1, keepdim=True))       # (rows, 1)
    P = (S - greater).exp()                                        # (rows, columns)
    return greater, l + P.sum(dim=-1, keepdim=True), o + P @ V     # the old sums keep their old maximum


with torch.no_grad():
    query, order = 3 * q[:1], (q[:1] @ k.T)[0].argsort()  # (1, d), (n,): worst to best key
    exact = definition(query, k, v)                                # (1, d)
    orders = {"rising": order, "shuffled": torch.randperm(1024), "falling": order.flip(0)}
    for name, places in orders.items():
        wrong, _ = forward_in_tiles(query, k[places], v[places], step=forgetful)
        print(f"scores {name:8}: relative error {(wrong - exact).norm() / exact.norm():7.1%}")

# %% [markdown]
# With the best key first, the mistake is *invisible*: the maximum never changes, so there is nothing to rescale. With
# the best key last it is ruinous: every tile before counts as if its own best key were the best of all. A test with one
# lucky order would have passed. That is why the exercise, and the library's tests, try several inputs.
#
# The other famous shortcut is to leave out the maximum. The result is right as long as scores are small. Take scores of
# three sizes, and count the weights that come out as *nan*, "not a number". (They lack the factor $1/\sqrt d$, so they
# are large.)

# %%
with torch.no_grad():
    for size in (1, 5, 25):
        S = size * q[:4] @ k.T                                     # (4, n)
        bare = S.exp() / S.exp().sum(dim=-1, keepdim=True)         # (4, n)
        lost, wrong = bare.isnan().float().mean(), bare.isnan().any(dim=-1).float().mean()
        print(f"largest score {S.max():6.0f}: {lost:4.0%} of the weights are no numbers,", end=" ")
        print(f"{wrong:4.0%} of the rows wrong")

# %% [markdown]
# One percent looks harmless. It is not: one score beyond 88 makes the sum infinite, and $\infty / \infty$ is not a
# number. All other weights of that row are then something finite divided by $\infty$: 0. So where a single weight is
# lost, the whole row is wrong, and nothing raises an error.
#
# ## 9 Open the library
#
# The library's function is the one you have built. It works on many heads at once, lets heads share keys, and skips
# what a window hides; `Tiles` holds that book-keeping. `band` says how far back and ahead a query sees, and `wide`
# turns 16 bits into 32, for the sums.

# %%
from txlib.attention import FlashAttention, FlashConfig, TiledAttention, causal, sliding_window
from txlib.attention.flash import tiled_backward, tiled_forward

show_source(tiled_forward)

# %% [markdown]
# Two texts of 300 tokens, and the same for both. (300 is no multiple of the tile.)

# %%
q, k, v = (torch.randn(2, 300, 64, requires_grad=True) for _ in range(3))    # (batch, n, d) each
theirs = TiledAttention.apply(q, k, v, True)                       # (batch, n, d)
for sentence in range(2):
    mine = Flash.apply(q[sentence], k[sentence], v[sentence], True)          # (n, d)
    prove_equal(mine, theirs[sentence], what="Yours and the library's")
show_source(tiled_backward)

# %% [markdown]
# Your five products, in your order. Names differ: `biggest`, `total` and `mixed` are $m$, $l$ and $o$; `lse`
# (log-sum-exp) is $L$, `delta` is $D$.
#
# ### One keyword in any model
#
# Nothing is approximated, so a model that was trained with dense attention can be *run* with FlashAttention. Here is
# the small Llama of lesson 17, twice: as it comes, and with one entry of its config changed.

# %%
from txlib import load_pretrained
from txlib.models import GPT
from txlib.text import load_tokenizer

folder = shipped("glassllm-en")
dense = load_pretrained(folder).float().eval()
config = replace(dense.config, block=dense.config.block.replace(mechanism=FlashConfig()))
flash = GPT(config).eval()
flash.load_state_dict(dense.state_dict())
text = "Alice was beginning to get very tired of sitting by her sister on the bank."
ids = torch.tensor([load_tokenizer(folder).encode(text)])          # (1, n)
with torch.no_grad():
    prove_equal(flash(ids).logits, dense(ids).logits, tolerance=1e-4, what="Both models")
    losses = [model(ids, labels=ids).loss for model in (dense, flash)]
    print(f"loss of both on {ids.shape[1]} tokens: {losses[0]:.3f}, {losses[1]:.3f}")

# %% [markdown]
# And a mask is still a rule. A tile that is hidden as a whole is never made, so the cost of a window of $w$ keys grows
# with $n \cdot w$, not with $n^2$. (Tiles that the mask cuts through are made whole. The library's have 128 queries and
# keys: so `causal()` costs a little more than half, and this window about twice $4 n w d$.)

# %%
heads = [torch.randn(1, 1, 2048, 64) for _ in range(3)]            # (batch, heads, n, d) each
for mask in (None, causal(), causal() & sliding_window(128)):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        FlashAttention()(*heads, mask)
    print(f"{str(mask):40} {counter.get_total_flops() / 1e6:7.0f} million operations")

# %% [markdown]
# ## 10 A kernel, line by line
#
# Our tiles save memory, but they are Python: each small product is a separate call, and its result goes out to memory
# and comes back. To keep a tile *in* fast memory, the whole walk has to be one program for the GPU, a *kernel*. They
# used to be written in C++. Triton (Tillet et al. 2019) lets you write them in a Python of its own: you write what
# **one program does with one tile** of queries, and as many programs as there are such tiles run side by side.
#
# Here are the library's. First, how a tile comes in. `x` is an address: where the tensor begins in memory. `place *
# length + row` is the number of a row, times `WIDTH` is where it begins; `inside` says which of these addresses exist,
# so that no length needs to be a multiple of anything. (`PADDED` is `WIDTH` rounded up to a power of two: Triton has no
# other tiles.)


# %%
kernels = Path(find_spec("txlib.attention.flash_triton").origin).read_text(encoding="utf-8")


def kernel(name):
    from IPython.display import Markdown
    functions = (node for node in ast.parse(kernels).body if isinstance(node, ast.FunctionDef))
    found = next(each for each in functions if each.name == name)
    return Markdown(f"```python\n{ast.get_source_segment(kernels, found)}\n```")


kernel("load")

# %% [markdown]
# (It is read as text, because importing it needs Triton, which you may not have.) And now the walk. Read it next to
# your own `forward_in_tiles` and `take_in`:

# %%
kernel("forward_kernel")

# %% [markdown]
# | In the kernel | In your code |
# | --- | --- |
# | `tl.program_id(0)`: which program am I? `place` is the head, `first` the first query of its tile | `for rows in …`: the outer loop is gone, its turns are programs |
# | `load(q, …)` once, before the loop | `q[rows]` |
# | `place // group` | (nothing: `group` heads of queries share one head of keys, lesson 16) |
# | `range(tl.maximum(first - greatest, 0), …, COLUMNS)` | `for columns in …` with its `break`; a query sees the keys that stand `least` to `greatest` positions before it |
# | `tl.dot(q_tile, tl.trans(k_tile)) * scale` | `q[rows] @ k[columns].T * scale` |
# | `if … on_edge(…): score = hide(…)` | `masked_fill`, but only in tiles that the mask cuts through |
# | `greater`, `weight`, `rescale`, `total`, `mixed` | `take_in`, line by line |
# | `tl.exp2` | `exp`: GPUs compute $2^x$ faster, so `scale` holds a factor $\log_2 e$, and $e^x = 2^{x \log_2 e}$ |
# | `weight.to(TYPE)` | (nothing: in training, products are in 16 bits, sums in 32) |
# | `store(out, mixed / total)` once, after the loop | `out[rows] = o / l` |
#
# `tl.constexpr` marks what is known before the kernel is compiled: sizes of tiles, types. Everything else is known when
# it is called. `mixed`, `total` and `biggest` live in registers from the first key to the last. **That** is the point
# of it all: in this loop only `k` and `v` travel.
#
# A kernel needs a GPU, or Triton's *interpreter*, which runs the programs one after another in numpy. It is very slow
# and very honest. (Triton comes with torch on a Linux machine with a GPU; elsewhere on Linux, `pip install triton`.
# Without it, the next cell says so, and nothing that follows needs it.)

# %% tags=["nbval-ignore-output"]
if find_spec("triton") is None:
    print("Triton is not installed here: the kernel stays something to read.")
else:
    from txlib.attention.flash_triton import TritonAttention
    on = "cuda" if torch.cuda.is_available() else "cpu"
    q, k, v = torch.randn(3, 1, 40, 16, device=on)         # (batch, n, d) each: 3 × 3 tiles of 16
    start = time.perf_counter()
    out = TritonAttention.apply(q, k, v, True)                     # (batch, n, d)
    print(f"{1000 * (time.perf_counter() - start):.0f} ms on {on}")
    prove_equal(out, TiledAttention.apply(q, k, v, True), what="The kernel and the tiles in PyTorch")

# %% [markdown]
# The library's tests run the same kernels, forward and backward, in the interpreter, and let Triton's compiler
# translate them for a GPU that is not there. On a GPU, `FlashConfig()` uses them without being asked.
#
# ## 11 What it costs
#
# Count first. The definition has two products forward and four backward. FlashAttention makes the scores a second time,
# so five backward. But with a causal mask it makes little more than half of the tiles: those up to the diagonal.

# %%
def operations(compute, n=1024):
    inputs = [torch.randn(n, 64, requires_grad=True) for _ in range(3)]      # (n, d) each
    with FlopCounterMode(display=False) as counter:
        compute(*inputs).sum().backward()
    return counter.get_total_flops() / (2 * n * n * 64)


print(f"definition       {operations(lambda *qkv: definition(*qkv, True)):.2f} products of n × n × d")
print(f"tiles            {operations(lambda *qkv: Flash.apply(*qkv, False)):.2f}")
print(f"tiles, causal    {operations(lambda *qkv: Flash.apply(*qkv, True)):.2f}")

# %% [markdown]
# Then measure, forward and backward. The last column is torch's own kernel: the same algorithm in C++ for the CPU,
# which `scaled_dot_product_attention`, and so `DenseAttention`, has called all along.


# %% tags=["nbval-ignore-output"]
def there_and_back(compute, n):
    inputs = [torch.randn(n, 64, requires_grad=True) for _ in range(3)]      # (n, d) each
    return 1000 * seconds(lambda: compute(*inputs).sum().backward(), repeats=3)


def torchs(q, k, v):
    return F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None], is_causal=True)


print("     n   definition   your tiles   torch's kernel   (ms, there and back; tiles skip the hidden)")
for n in (256, 1024, 3072):
    times = [there_and_back(compute, n) for compute in (
        lambda *qkv: definition(*qkv, True), lambda *qkv: Flash.apply(*qkv, True), torchs)]
    print(f"{n:6}   {times[0]:10.1f}   {times[1]:10.1f}   {times[2]:14.1f}")

# %% [markdown]
# Short sequences: your tiles lose, because Python calls each small product by itself, and every call costs time. Long
# ones: they come close to the definition, and hold no matrix. (They also skip what the mask hides; the definition makes
# all of it.) The kernel in C++ shows what the idea is worth once Python is gone. On a GPU the gap is wider, as the
# ridge lies further to the right: for GPT-2 medium's attention, Dao et al. (2022, figure 2) count 75 billion operations
# where the definition has 67, 4.4 GB of traffic where it has 40, and 7 ms where it takes 42.
#
# ## 12 One, two, three
#
# **FlashAttention** (2022) is tiles, online softmax and recomputation, in one kernel: all that you have built, with the
# loops the other way round, keys outside and queries inside: so the unfinished outputs travel, too, once per tile of
# keys. Training GPT-2 became about 3 times as fast as with Hugging Face's implementation of the time, and sequences of
# 16,000 tokens and more became possible.
#
# **FlashAttention-2** (2023) does not change the mathematics. Queries are outside, so that each program owns its
# output and nobody waits; programs share out the *length*, not only heads and sentences, so that a GPU is busy with one
# long text as well; the output is divided once at the end, and $L$ is kept in place of $m$ and $l$, because on a GPU an
# operation outside a matrix product costs some 16 times as much as one inside. It is about twice as fast as its
# predecessor: 50 to 73 % of an A100's peak.
#
# **FlashAttention-3** (Shah et al. 2024) is for one family of GPUs, Hopper. There, copying and products run by
# themselves once they are started. So while one group of threads takes its exponentials, another one's products run;
# 8-bit numbers become usable by scaling each block on its own and by a random rotation that spreads outliers. 1.5 to 2
# times as fast as its predecessor on an H100: up to 740 trillion operations per second in 16 bits, 75 % of the peak.
#
# None of them is sub-quadratic, and none is an approximation. They moved the point at which the quadratic wall hurts,
# and so made many of its approximations unnecessary: for some ten thousand tokens, exact attention is simply fast.

# %% [markdown]
# ## 13 Quiz
#
# Decide first, then open an answer.
#
# **1. A step reads 1 GB, does 2 billion operations on it, and writes 1 GB. The machine does 100 billion operations and
# moves 10 GB per second. How do you make it faster?**
#
# <details><summary>A. With half of the operations</summary>
#
# They take 0.02 s. The journeys take 0.2 s.
# </details>
# <details><summary>B. By doing it together with the step before or after it</summary>
#
# Right. If the numbers are there anyway, one of the two journeys is saved, or both.
# </details>
# <details><summary>C. With more processors on the same memory</summary>
#
# They would wait together.
# </details>
#
# **2. So far $m = 2$ and $l = 3$. The next number is 2. What are $m$ and $l$ now?**
#
# <details><summary>A. m = 2, l = 4</summary>
#
# Right. The maximum stays, so nothing is rescaled, and $e^{2 - 2} = 1$ is added.
# </details>
# <details><summary>B. m = 2, l = 3 + e²</summary>
#
# Terms of the sum are $e^{x - m}$, not $e^x$.
# </details>
# <details><summary>C. m = 4, l = 4</summary>
#
# $m$ is a maximum, not a sum.
# </details>
#
# **3. What must be kept for the backward pass, besides $q$, $k$, $v$ and the output?**
#
# <details><summary>A. The weights of the last tile</summary>
#
# All weights are computed again, tile by tile.
# </details>
# <details><summary>B. The maximum and the sum of every tile</summary>
#
# Only those of the whole row count, and they are one number: $L = m + \ln l$.
# </details>
# <details><summary>C. One number per query</summary>
#
# Right: $L$. ($D$ is made from the output and its gradient when that has arrived.)
# </details>
#
# **4. Your implementation agrees with the definition on random data to 1e-6. A colleague's data has its largest scores
# at the end, and the output is wrong. What do you look at first?**
#
# <details><summary>A. The rescaling</summary>
#
# Right. It does something only when the maximum rises, and how much it rises depends on the data. (But with random
# data it should not agree either: how many tiles did the test have?)
# </details>
# <details><summary>B. The type: 32 bits are too few</summary>
#
# With the maximum subtracted, exponents are at most 0, wherever the large scores stand.
# </details>
# <details><summary>C. The tile size</summary>
#
# It changes what travels, and not the result.
# </details>
#
# **5. Twice the text. What happens to FlashAttention's operations and memory?**
#
# <details><summary>A. Both double</summary>
#
# Each query still meets each key.
# </details>
# <details><summary>B. Four times the operations, twice the memory</summary>
#
# Right. The wall of lesson 30 stands, for time; for memory it is gone.
# </details>
# <details><summary>C. Four times both</summary>
#
# That is the definition.
# </details>

# %% [markdown]
# ## 14 Summary
#
# - Operations per byte decide whether a computation waits for arithmetic or for memory. Softmax and mask wait for
#   memory; on a GPU, all of attention does.
# - A running maximum and a running sum make a softmax over numbers that pass by: when the maximum changes, all that was
#   summed up is wrong by one factor. Values are summed up in the same way.
# - In tiles, no $n \times n$ tensor ever exists. One number per query, $L$, is kept.
# - The way back computes the scores again, and replaces the row sum of the softmax's gradient by $D = \text{rowsum}(dO
#   \circ O)$: 7 products in place of 6, and far less traffic.
# - The numbers are those of the definition. Time stays quadratic, memory becomes linear.
#
# **Read** Milakov & Gimelshein 2018, *Online normalizer calculation for softmax*,
# [arXiv:1805.02867](https://arxiv.org/abs/1805.02867), section 3. Dao et al. 2022, *FlashAttention: Fast and
# Memory-Efficient Exact Attention with IO-Awareness*, [arXiv:2205.14135](https://arxiv.org/abs/2205.14135), sections 2
# and 3. Dao 2023, *FlashAttention-2*, [arXiv:2307.08691](https://arxiv.org/abs/2307.08691), section 3. Shah et al.
# 2024, *FlashAttention-3*, [arXiv:2407.08608](https://arxiv.org/abs/2407.08608), section 3. Williams et al. 2009,
# *Roofline*, Communications of the ACM 52(4).
#
# **Do** the exercise [34_flash](../exercises/exercise_34_flash.ipynb). Lesson 35, [training at scale](35_scale.ipynb), is the last one.
