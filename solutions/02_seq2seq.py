# %% [markdown]
# # Exercise 02 · Sequence to sequence
#
# Seven tasks, 20 points, about 90 minutes. They use what [lesson 02](../notebooks/02_seq2seq.ipynb) built, on
# problems that the lesson left out. Tasks 1 to 3 are the core and take about 30 minutes; tasks 4 to 7 are for those who
# want more.
#
# Replace each `raise NotImplementedError` with your answer, run the cell, then run the check below it. A check tells you
# what differs, and often why. You may check as often as you like.

# %% tags=["parameters"]
seed = 0

# %%
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from txgrade import check

# %% tags=["variant"]
from txgrade import variant

N, SKIP = variant((10, 4), (14, 4), (17, 5), (20, 6))  # the example of task 1
SHARP = variant(2, 1.5, 2.5, 3)  # of the bell in task 5

# %% [markdown]
# ### Task 1 · A recurrent net with shortcuts   ●●○○○ · 8 minutes · 2 points
#
# Give each state a second past, $k$ words ago: $h_t = g(W h_{t-1} + V h_{t-k} + U x_t + b)$. (El Hihi and Bengio had this
# idea in 1995.) A sentence has $n$ words, and `skip` is $k$. Count two things. On the shortest path from the first *word*
# to the *last state*, how many lines are there, including the line from the word into its own state? And how many steps
# must wait for one another until all $n$ states are computed? Computing $h_1$ is also a step.
#
# For example, with `n` = {{N}} and `skip` = {{SKIP}}, the last state is {{N - 1}} places from the first. {{(N - 1) // SKIP:Words}} long jumps and a short one
# lead there, and before them one line from the word into its state: {{(N - 1) // SKIP + 2}} lines. So the answer is the
# pair ({{(N - 1) // SKIP + 2}}, {{N}}).
#
# <details><summary>Hint 1: jumps</summary>
#
# The state of the last word is `n - 1` places from that of the first. Jumps have length `skip` or 1, and go forward
# only.
# </details>
# <details><summary>Hint 2: as many long ones as fit</summary>
#
# How many times does `skip` fit into `n - 1`, and what is left?
# </details>
# <details><summary>Hint 3: does a shortcut shorten the wait?</summary>
#
# $h_t$ needs $h_{t-k}$, and it still needs $h_{t-1}$.
# </details>

# %% nbgrader={"grade_id": "short-cuts", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def lines_and_steps(n: int, skip: int) -> tuple[int, int]:
    """Lines from the first word to the last state, and steps that wait for one another."""
    ### BEGIN SOLUTION
    return 1 + (n - 1) // skip + (n - 1) % skip, n
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-short-cuts", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("short-cuts") as show:
    show(lines_and_steps(N, SKIP), f"n = {N}, skip = {SKIP}")
    for _ in range(3):
        skip = show.random_size(4, 9)
        n = skip * show.random_size(3, 9) + show.random_size(2, skip - 1) + 1
        show(lines_and_steps(n, skip), f"n = {n}, skip = {skip}")
    skip, jumps = show.random_size(4, 30), show.random_size(2, 30)
    show([lines_and_steps(n, skip) for n in (skip * jumps, skip * jumps + 1, skip * jumps + 2)],
         f"skip = {skip}, and n = {skip * jumps}, one more, two more")
    show([lines_and_steps(n, skip) for n in (1, skip - 1, skip, skip + 1)],
         f"skip = {skip}, and n = 1, {skip - 1}, {skip}, {skip + 1}")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")

mistake("short-cuts", lambda n, skip: ((n - 1) // skip + (n - 1) % skip, n),
        "The first line leads from the word into its own state. It counts, too.")
for places_of in (lambda n, skip: n // skip + n % skip, lambda n, skip: n // skip + (n - 1) % skip,
                  lambda n, skip: (n - 1) // skip + n % skip):
    mistake("short-cuts", lambda n, skip, places_of=places_of: (1 + places_of(n, skip), n),
            "From the first of n words to the last it is n − 1 places, not n.")
mistake("short-cuts", lambda n, skip: (1 + (n - 1) // skip + n - 1, n),
        "You make the long jumps, and then the whole way again in short ones. Short ones cover only what is left: "
        "`(n - 1) % skip`.")
mistake("short-cuts", lambda n, skip: (1 + (n - 1) % skip, n),
        "You count the short jumps only. Each long jump is a line, too.")
mistake("short-cuts", lambda n, skip: (1 + -(-(n - 1) // skip), n),
        "With one more long jump you land behind the last word, and a recurrent net can't go back: the rest takes short "
        "jumps.")
mistake("short-cuts", lambda n, skip: (1 + (n - 1) // skip, n),
        "Long jumps alone end before the last word. What is left takes short ones.")
mistake("short-cuts", lambda n, skip: (n, n),
        "That is the way without short cuts. The distance gets shorter.")
mistake("short-cuts", lambda n, skip: (1 + (n - 1) // skip + (n - 1) % skip,) * 2,
        "The distance is right. But every state still needs the one before it: short cuts shorten the way of the "
        "information, not the waiting.")
mistake("short-cuts", lambda n, skip: (1 + (n - 1) // skip + (n - 1) % skip, -(-n // skip)),
        "The distance is right. But every state still needs the one before it, so nothing can be computed side by side.")


def by_search(n, skip):
    lines = [1]
    for place in range(1, n):
        lines.append(1 + min(lines[place - jump] for jump in (1, skip) if jump <= place))
    return lines[-1], len(lines)


alternative("short-cuts", by_search)

# %% [markdown]
# ### Task 2 · The source written backwards   ●●○○○ · 8 minutes · 2 points
#
# Sutskever et al. (2014, section 3.3) feed the encoder each source backwards, so that its first words are fresh when the
# decoder starts with them. Reverse a whole batch. Three things stay as they are: the padding after each sentence, the end
# token, which is the last real one, and the batch's shape.
#
# For example, if 2 is the end token and 0 is padding, `[7, 8, 9, 2, 0]` becomes `[9, 8, 7, 2, 0]`. A source that is only
# the end token stays unchanged.
#
# <details><summary>Hint 1: where does a token come from?</summary>
#
# In a sentence of `m` tokens, not counting its end token, position `i` gets the token from position `m - 1 - i`.
# </details>
# <details><summary>Hint 2: all sentences at once</summary>
#
# Build a matrix of positions, in the shape of `input_ids`; `input_ids.gather(1, positions)` then reads all of them.
# </details>
# <details><summary>Hint 3: the rest</summary>
#
# `torch.where(condition, one, other)`: where `i < m` the mirrored position, elsewhere the position itself.
# </details>

# %% nbgrader={"grade_id": "backwards", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def backwards(
    input_ids: Int[Tensor, "batch source"], attention_mask: Int[Tensor, "batch source"]
) -> Int[Tensor, "batch source"]:
    """Each sentence's words in the opposite order; attention_mask is 1 for a real token, 0 for padding at the end."""
    ### BEGIN SOLUTION
    place = torch.arange(input_ids.shape[1]).expand_as(input_ids)
    words = attention_mask.sum(dim=1, keepdim=True) - 1
    return input_ids.gather(1, torch.where(place < words, words - 1 - place, place))
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-backwards", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("backwards") as show:
    show(backwards(torch.tensor([[7, 8, 9, 2, 0]]), torch.tensor([[1, 1, 1, 1, 0]])), "the example")
    for _ in range(2):
        lengths = torch.tensor([show.random_size(3, 5), show.random_size(6, 9), 1, 10])
        mask = (torch.arange(10) < lengths[:, None]).long()
        ids = show.randint(3, 50, 4, 10).scatter(1, lengths[:, None] - 1, 2) * mask
        show(backwards(ids, mask), f"{lengths.tolist()} tokens, the end token included")

# %% tags=["mistakes"]
def places(ids, turned):
    return ids.gather(1, turned)


def at(ids):
    return torch.arange(ids.shape[1]).expand_as(ids)


def real(mask):
    return mask.sum(dim=1, keepdim=True)


mistake("backwards", lambda ids, mask: ids.flip(1),
        "The whole row is turned round, so padding stands in front. It has to stay at the end.")
mistake("backwards", lambda ids, mask: places(ids, torch.where(at(ids) < real(mask), real(mask) - 1 - at(ids), at(ids))),
        "The end token now stands first. It stays behind the words: turn round one token less.")
mistake("backwards", lambda ids, mask: places(ids, torch.where(at(ids) < ids.shape[1] - 1, ids.shape[1] - 2 - at(ids), at(ids))),
        "All sentences are turned round as if they were as long as the batch. Each has a length of its own: its row of "
        "the mask, summed.")
mistake("backwards", lambda ids, mask: places(ids, torch.where(at(ids) < real(mask) - 1, (real(mask) - at(ids)) % ids.shape[1], at(ids))),
        "Off by two: of m words the first comes from place m − 1, and m is one less than the number of real tokens.")
mistake("backwards", lambda ids, mask: places(ids, torch.where(at(ids) < real(mask) - 1, real(mask) - 1 - at(ids), at(ids))),
        "Off by one: of m words the first comes from place m − 1. Place m has the end token.")
mistake("backwards", lambda ids, mask: ids, "Nothing has changed places.")


def by_loops(input_ids, attention_mask):
    turned = input_ids.clone()
    for row, mask in zip(turned, attention_mask):
        words = int(mask.sum()) - 1
        row[:words] = row[:words].flip(0)
    return turned


alternative("backwards", by_loops)

# %% [markdown]
# ### Task 3 · Weights from another library   ●●●○○ · 12 minutes · 3 points
#
# A colleague has trained a GRU in a library of her own. Her equations are those of the lesson, with two differences: as
# in Bahdanau et al. (2015), the update gate is reversed, $h_t = (1 - z_t) \odot h_{t-1} + z_t \odot n_t$; and there is
# a single bias, on the word's side, and none on the state's side. Her layout also differs: each matrix, and the bias,
# holds three blocks of `d` rows in the order $z, r, n$.
#
# `nn.GRU` wants the blocks in the order $r, z, n$, its own update gate, and two biases. Return its four tensors, so that
# it computes exactly what hers does. Fill the bias that you don't need with zeros.
#
# <details><summary>Hint 1: the gate</summary>
#
# Her $z$ must become 1 minus torch's. What is $1 - \sigma(a)$, written as a sigmoid?
# </details>
# <details><summary>Hint 2: which numbers make up a?</summary>
#
# $U_z x$, $W_z h$ and $b_z$: all three.
# </details>
# <details><summary>Hint 3: where does the bias go?</summary>
#
# In torch's equation of $n_t$, one of the two biases is multiplied by the reset gate. Hers is not.
# </details>

# %% nbgrader={"grade_id": "port", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def port(
    U: Float[Tensor, "3*d inputs"], W: Float[Tensor, "3*d d"], b: Float[Tensor, "3*d"]
) -> tuple[Float[Tensor, "3*d inputs"], Float[Tensor, "3*d d"], Float[Tensor, "3*d"], Float[Tensor, "3*d"]]:
    """Torch's weight_ih, weight_hh, bias_ih and bias_hh."""
    ### BEGIN SOLUTION
    def blocks(matrix):
        z, r, n = matrix.chunk(3)
        return torch.cat([r, -z, n])

    return blocks(U), blocks(W), blocks(b), torch.zeros_like(b)
    ### END SOLUTION

# %%
def reads(weights: tuple[Tensor, ...], x: Float[Tensor, "batch length inputs"]) -> Float[Tensor, "batch length d"]:
    """The states of torch's GRU with these four tensors."""
    gru = nn.GRU(weights[0].shape[1], weights[1].shape[1], batch_first=True)
    gru.load_state_dict(dict(zip(gru.state_dict(), weights)))
    with torch.no_grad():
        return gru(x)[0]

# %% nbgrader={"grade_id": "check-port", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("port") as show:
    for length in (1, 6):
        d, inputs = show.random_size(3, 5), show.random_size(6, 8)
        U, W, b = show.randn(3 * d, inputs), show.randn(3 * d, d), show.randn(3 * d)
        show(reads(port(U, W, b), show.randn(2, length, inputs)), f"{length} words, {d} units: what torch's GRU reads")

# %% tags=["mistakes"]
def ported(U, W, b, order="rzn", negate=(True, True, True), bias="ih"):
    def blocks(matrix, turned):
        named = dict(zip("zrn", matrix.chunk(3)))
        named["z"] = -named["z"] if turned else named["z"]
        return torch.cat([named[name] for name in order])

    both = blocks(b, negate[2]), torch.zeros_like(b)
    return blocks(U, negate[0]), blocks(W, negate[1]), *(both if bias == "ih" else both[::-1])


mistake("port", lambda U, W, b: ported(U, W, b, negate=(False,) * 3),
        "The blocks are in place, but the update gate is still hers: what she keeps, torch forgets. $1 - σ(a) = σ(-a)$.")
mistake("port", lambda U, W, b: ported(U, W, b, negate=(True, True, False)),
        "The gate's bias belongs in the sigmoid: it has to change its sign with the rest.")
mistake("port", lambda U, W, b: ported(U, W, b, negate=(True, False, False)),
        "Only $U_z$ has changed its sign. $W_z$ and $b_z$ stand in the same sigmoid.")
mistake("port", lambda U, W, b: ported(U, W, b, order="zrn", negate=(False,) * 3),
        "These are her matrices as they were. torch takes the first block for r, and turns z round.")
mistake("port", lambda U, W, b: ported(U, W, b, order="zrn"),
        "The blocks are in her order, z, r, n. torch takes the first one for r.")
mistake("port", lambda U, W, b: ported(U, W, b, bias="hh"),
        "The bias stands on the side of the state. There torch multiplies the proposal's part of it by the reset gate; "
        "hers is not.")


def one_minus(U, W, b):
    def blocks(matrix):
        z, r, n = matrix.chunk(3)
        return torch.cat([r, 1 - z, n])

    return blocks(U), blocks(W), blocks(b), torch.zeros_like(b)


mistake("port", one_minus, "1 − z is taken of the *weights*. It has to hold for what comes out of the sigmoid.")


def shared_bias(U, W, b):
    weight_ih, weight_hh, bias, none = ported(U, W, b)
    d = len(b) // 3
    half = torch.cat([bias[: 2 * d] / 2, none[2 * d :]])
    return weight_ih, weight_hh, bias - half, half


alternative("port", shared_bias)

# %% [markdown]
# ### Task 4 · An LSTM, by hand   ●●●○○ · 14 minutes · 3 points
#
# The LSTM (Hochreiter and Schmidhuber 1997; Gers et al. 2000) is older than the GRU and keeps two things from step to
# step: the state $h_t$, which it shows, and the **memory cell** $c_t$, to which it *adds*. Both start at 0.
#
# $$\begin{aligned}
# i_t &= \sigma(U_i x_t + W_i h_{t-1} + b_i) &&\text{input: how much of the proposal is added}\\
# f_t &= \sigma(U_f x_t + W_f h_{t-1} + b_f) &&\text{forget: how much of the memory is kept}\\
# g_t &= \tanh(U_g x_t + W_g h_{t-1} + b_g) &&\text{the proposal}\\
# o_t &= \sigma(U_o x_t + W_o h_{t-1} + b_o) &&\text{output: how much of the memory is shown}\\
# c_t &= f_t \odot c_{t-1} + i_t \odot g_t \qquad h_t = o_t \odot \tanh(c_t)
# \end{aligned}$$
#
# `U`, `W` and `b` hold four blocks of `d` rows each, in PyTorch's order $i, f, g, o$. Return $h_1 \dots h_n$ for a batch.
# Don't use `nn.LSTM`, `nn.LSTMCell` or their functions: the check compares your numbers with theirs.
#
# <details><summary>Hint 1: one product for all four gates</summary>
#
# `x_t @ U.T + h @ W.T + b` has shape `(batch, 4 * d)`; `.chunk(4, dim=-1)` cuts it into its four blocks.
# </details>
# <details><summary>Hint 2: the loop</summary>
#
# `for x_t in x.unbind(dim=1):` visits the words. Two tensors carry over from one step to the next, `h` and `c`.
# </details>
# <details><summary>Hint 3: what is returned</summary>
#
# Collect each `h` in a list. `torch.stack(states, dim=1)` makes a tensor of shape `(batch, length, d)`.
# </details>

# %% nbgrader={"grade_id": "lstm", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def lstm(
    x: Float[Tensor, "batch length inputs"],
    U: Float[Tensor, "4*d inputs"],
    W: Float[Tensor, "4*d d"],
    b: Float[Tensor, "4*d"],
) -> Float[Tensor, "batch length d"]:
    """All states of an LSTM that starts from zeros."""
    ### BEGIN SOLUTION
    h = c = torch.zeros(len(x), W.shape[1])
    states = []
    for x_t in x.unbind(dim=1):
        i, f, g, o = (x_t @ U.T + h @ W.T + b).chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        states.append(h)
    return torch.stack(states, dim=1)
    ### END SOLUTION

# %% [markdown]
# Your own comparison with PyTorch, if you want to see it before the check:
#
# ```python
# theirs = nn.LSTM(5, 4, batch_first=True)
# U, W, b_ih, b_hh = (weight.detach() for weight in theirs.parameters())
# x = torch.randn(2, 6, 5)
# (lstm(x, U, W, b_ih + b_hh) - theirs(x)[0]).abs().max()
# ```

# %% nbgrader={"grade_id": "check-lstm", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("lstm") as show:
    for length in (1, 2, 7):
        d, inputs = show.random_size(3, 5), show.random_size(6, 8)
        U, W, b = show.randn(4 * d, inputs), show.randn(4 * d, d), show.randn(4 * d)
        show(lstm(show.randn(2, length, inputs), U, W, b), f"{length} words, {d} units")

# %% tags=["mistakes"]
forbid("lstm", ("torch.nn.LSTM", "torch.nn.LSTMCell", "torch.lstm", "torch.lstm_cell"), ("aten.lstm", "aten.lstm_cell"))


def cells(x, U, W, b, order="ifgo", start=0.0, shown=torch.tanh, proposal=torch.tanh, carry=True, keep=None, out="h",
          admit=lambda i: i, release=lambda o: o):
    h = torch.zeros(len(x), W.shape[1])
    c, states = torch.full_like(h, start), []
    for x_t in x.unbind(dim=1):
        part = dict(zip(order, (x_t @ U.T + h @ W.T + b).chunk(4, dim=-1)))
        i, f, o = (part[name].sigmoid() for name in "ifo")
        f = keep(i) if keep else f
        c = (f * c if carry else 0) + admit(i) * proposal(part["g"])
        h = release(o) * shown(c)
        states.append(h if out == "h" else c)
    return torch.stack(states, dim=1)


mistake("lstm", lambda *args: cells(*args, order="ifog"),
        "The last two blocks have changed places: PyTorch's order is i, f, g, o.")
mistake("lstm", lambda *args: cells(*args, order="figo"),
        "Input and forget gate have changed places: PyTorch's order is i, f, g, o.")
mistake("lstm", lambda *args: cells(*args, shown=lambda c: c),
        r"The memory is shown through a tanh: $h_t = o_t \odot \tanh(c_t)$.")
mistake("lstm", lambda *args: cells(*args, proposal=torch.sigmoid),
        "The proposal g is a tanh, so that it can also take something away. Only the three gates are sigmoids.")
mistake("lstm", lambda *args: cells(*args, proposal=lambda g: g), "The tanh of the proposal g is missing.")
mistake("lstm", lambda *args: cells(*args, carry=False),
        r"The memory is made anew at each step. It is *added* to: keep $f_t \odot c_{t-1}$.")
mistake("lstm", lambda *args: cells(*args, keep=lambda i: 1 - i),
        "You keep 1 − i of the memory, as a GRU does. An LSTM has a forget gate of its own.")
mistake("lstm", lambda *args: cells(*args, keep=torch.ones_like),
        "Nothing is ever forgotten, as in 1997. Here the memory is multiplied by the forget gate.")
mistake("lstm", lambda *args: cells(*args, out="c"), "You return the memory cells. What an LSTM shows is h.")
mistake("lstm", lambda x, U, W, b: cells(x, U, 0 * W, b), "The state before is not used: each gate reads the word *and* the last state.")
mistake("lstm", lambda x, U, W, b: cells(x, U, W, 0 * b), "The bias is missing.")
mistake("lstm", lambda *args: cells(*args, start=1.0), "The memory starts at 0.")
mistake("lstm", lambda x, U, W, b: cells(x, 0 * U, W, b), "The word is not used: each gate reads the word *and* the last state.")
mistake("lstm", lambda *args: cells(*args, proposal=torch.ones_like),
        "The proposal g is missing: the input gate lets a part of *it* in.")
mistake("lstm", lambda *args: cells(*args, admit=torch.ones_like),
        "The input gate is missing: all of the proposal goes in.")
mistake("lstm", lambda *args: cells(*args, shown=torch.ones_like), "The memory is missing: the output gate shows a part of tanh(c).")
mistake("lstm", lambda *args: cells(*args, release=torch.ones_like), "The output gate is missing: all of the memory is shown.")
mistake("lstm", lambda *args: cells(*args).transpose(0, 1),
        "Your time comes first. The result is (batch, length, d): stack along `dim=1`.")
mistake("lstm", lambda *args: cells(*args).transpose(1, 2),
        "Your time comes last. The result is (batch, length, d): stack along `dim=1`.")
equivalent("lstm", ".chunk(4, dim=-1) → .chunk(4, dim=1)", "Of one step, (batch, 4 d), the last axis is axis 1.")


def by_units(x, U, W, b):
    parts = zip(U.chunk(4), W.chunk(4), b.chunk(4))
    gates = [lambda x_t, h, u=u, w=w, bias=bias: F.linear(x_t, u, bias) + F.linear(h, w) for u, w, bias in parts]
    h, c, states = torch.zeros(len(x), W.shape[1]), torch.zeros(len(x), W.shape[1]), []
    for t in range(x.shape[1]):
        i, f, g, o = (gate(x[:, t], h) for gate in gates)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        states.append(h)
    return torch.stack(states, 1)


alternative("lstm", by_units)

# %% [markdown]
# ### Task 5 · A window that the decoder moves   ●●●○○ · 12 minutes · 3 points
#
# For a long source it is wasteful to score every word, when most of them are far from the position being translated. In
# *local attention* (Luong et al. 2015, section 3.2) the decoder first says where it is, at $p$, any number such as 6.3.
# It attends only to the positions $i$ with $|i - p| \le D$, both ends of this window included, as if there were no
# others, and then favors the middle:
# $a_i = \text{softmax}(e)_i \cdot \exp\!\big(-(i - p)^2 / (2 \sigma^2)\big)$ with $\sigma = D / {{SHARP}}$. As in the paper, these
# weights are *not* made to sum to 1 afterwards.
#
# Padding gets nothing, as always. If no real word is in the window, all weights are 0.
#
# <details><summary>Hint 1: two conditions</summary>
#
# A position takes part if it is real *and* in the window. Positions count from 0.
# </details>
# <details><summary>Hint 2: before or after the softmax?</summary>
#
# "As if there were no others" is a mask: before. The bell curve multiplies *weights*: after.
# </details>
# <details><summary>Hint 3: an empty window</summary>
#
# The softmax of nothing but −∞ is `nan`. Lesson 03 comes back to this: set what may not be seen to 0 afterwards.
# </details>

# %% nbgrader={"grade_id": "local", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def local_weights(
    score: Float[Tensor, "batch source"], p: Float[Tensor, "batch"], D: int, real: Bool[Tensor, "batch source"]
) -> Float[Tensor, "batch source"]:
    """How much the decoder takes from each place; `real` is False for padding."""
    ### BEGIN SOLUTION
    away = torch.arange(score.shape[1]) - p[:, None]
    seen = real & (away.abs() <= D)
    weight = score.masked_fill(~seen, torch.finfo(score.dtype).min).softmax(dim=-1).masked_fill(~seen, 0.0)
    return weight * (-(away**2) / (2 * (D / SHARP) ** 2)).exp()
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-local", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("local") as show:
    for D in (2, 3):
        length = show.random_size(10, 14)
        real = torch.arange(length) < torch.tensor([length, length - 3, 4])[:, None]
        p = torch.tensor([5.0, length - 4.0, 2.0]) + show.rand(3)
        show(local_weights(show.randn(3, length), p, D, real), f"D = {D}, {length} places, p = {p.tolist()}")
    p, D = torch.tensor([0.0, 4.0, show.random_size(5, 7), 11.0]), show.random_size(2, 4)
    show(local_weights(show.randn(4, 12), p, D, torch.ones(4, 12).bool()),
         f"D = {D}, whole numbers p = {p.tolist()}: both ends of the window take part")
    p, real = torch.tensor([2.5, 9.5]), torch.arange(12) < torch.tensor([12, 5])[:, None]
    show(local_weights(show.randn(2, 12), p, 2, real), "the second one's window holds padding only")

# %% tags=["mistakes"]
def windowed(score, p, D, real, sigma=1 / SHARP, after=True, window=True, shift=0.0):
    away = torch.arange(score.shape[1]) + shift - p[:, None]
    seen = real & (away.abs() <= D) if window else real
    bell = -(away**2) / (2 * (sigma * D) ** 2)
    score = score if after else score + bell
    weight = score.masked_fill(~seen, torch.finfo(score.dtype).min).softmax(-1).masked_fill(~seen, 0.0)
    return weight * bell.exp() if after else weight


def without_zeros(score, p, D, real):
    away = torch.arange(score.shape[1]) - p[:, None]
    hidden = score.masked_fill(~(real & (away.abs() <= D)), float("-inf"))
    return hidden.softmax(dim=-1) * (-(away**2) / (2 * (D / SHARP) ** 2)).exp()


def cut_after(score, p, D, real):
    away = torch.arange(score.shape[1]) - p[:, None]
    weight = score.masked_fill(~real, torch.finfo(score.dtype).min).softmax(dim=-1)
    return weight * (real & (away.abs() <= D)) * (-(away**2) / (2 * (D / SHARP) ** 2)).exp()


def with_bell(score, p, D, real, bell):
    """The right weights, multiplied by another bell of the distance and σ."""
    away = torch.arange(score.shape[1]) - p[:, None]
    seen = real & (away.abs() <= D)
    hidden = score.masked_fill(~seen, torch.finfo(score.dtype).min)
    return hidden.softmax(dim=-1).masked_fill(~seen, 0.0) * bell(away, D / SHARP)


def turned_out(score, p, D, real, inside=lambda away, D: away.abs() >= D, dim=-1):
    """Another condition for the window, or a softmax along another axis."""
    away = torch.arange(score.shape[1]) - p[:, None]
    seen = real & inside(away, D)
    weight = score.masked_fill(~seen, torch.finfo(score.dtype).min).softmax(dim=dim).masked_fill(~seen, 0.0)
    return weight * (-(away**2) / (2 * (D / SHARP) ** 2)).exp()


mistake("local", without_zeros, "Where the window holds padding only, the softmax divides 0 by 0. Those weights are 0.")
mistake("local", cut_after,
        "You cut the window out after the softmax, so places outside have taken their share. They must not take part.")
mistake("local", lambda *args: windowed(*args, sigma=2 / SHARP), "The bell is twice as wide as it should be: σ is D/{{SHARP}}.")
mistake("local", lambda *args: windowed(*args, window=False),
        "Every place takes part. Outside of the window the bell is small, but not 0, and the softmax runs over too much.")
mistake("local", lambda *args: windowed(*args, after=False),
        "Your weights sum to 1. The bell multiplies *weights*, after the softmax, and what comes out is left as it is.")
mistake("local", lambda *args: with_bell(*args, lambda away, sigma: 1.0),
        "The bell is missing: weights fall off with the distance from p.")
mistake("local", lambda *args: with_bell(*args, lambda away, sigma: (-(away**2)).exp()),
        "The bell has no width: its exponent is divided by 2σ², with σ = D/{{SHARP}}.")
mistake("local", lambda *args: with_bell(*args, lambda away, sigma: (-(away**2) / sigma**2).exp()),
        "In the bell's exponent the 2 is missing: divide by 2σ².")
mistake("local", lambda *args: with_bell(*args, lambda away, sigma: (-(away**2) / (2 * sigma)).exp()),
        "In the bell's exponent σ is not squared: divide by 2σ².")
mistake("local", lambda *args: with_bell(*args, lambda away, sigma: (-away.abs() / (2 * sigma**2)).exp()),
        "In the bell's exponent the distance is not squared.")
mistake("local", lambda score, p, D, real: (-((torch.arange(score.shape[1]) - p[:, None])**2) / (2 * (D / SHARP)**2)).exp(),
        "That is the bell alone. It multiplies the weights of the softmax.")
mistake("local", lambda *args: turned_out(*args, inside=lambda away, D: away.abs() < D),
        "A place at the distance D takes part, too: `<=`.")
mistake("local", lambda *args: turned_out(*args),
        "The window is turned round: places *outside* of it take part.")
mistake("local", lambda *args: turned_out(*args, inside=lambda away, D: away <= D),
        "Your window has one end only: what is far away on the other side takes part. Compare the distance, `abs`, with D.")
mistake("local", lambda *args: turned_out(*args, inside=lambda away, D: away.abs() <= D, dim=0),
        "The softmax runs over the sentences of the batch. It runs over the places of one source: the last axis.")
mistake("local", lambda score, p, D, real: windowed(score, 0 * p, D, real),
        "p is not used: the window stays at the beginning.")
mistake("local", lambda *args: windowed(*args, shift=1.0), "Places count from 0, as everywhere in torch.")
mistake("local", lambda score, p, D, real: windowed(score, p, D, torch.ones_like(real)),
        "Padding gets a share. A place must be real *and* in the window.")
mistake("local", lambda score, p, D, real: windowed(score, p.round(), D, real),
        "p is rounded. It is any number, and moving it a little moves the weights a little: so it can be learned.")
mistake("local", lambda score, p, D, real: windowed(score, p, D, real) * 0 + windowed(torch.zeros_like(score), p, D, real),
        "The scores are not used: only the place counts.")


def by_rows(score, p, D, real):
    weight = torch.zeros_like(score)
    for row in range(len(score)):
        seen = [i for i in range(score.shape[1]) if real[row, i] and abs(i - float(p[row])) <= D]
        for i, share in zip(seen, score[row, seen].softmax(dim=-1)):
            weight[row, i] = share * torch.exp(-(SHARP**2) * (i - p[row]) ** 2 / (2 * D**2))
    return weight


alternative("local", by_rows)
equivalent("local", "torch.arange(score.shape[1]) - p[:, None] → p[:, None] - torch.arange(score.shape[1])",
           "Only the size of the distance and its square are used.")

# %% [markdown]
# ### Task 6 · How good is an alignment?   ●●●●○ · 14 minutes · 3 points
#
# Two people have linked the words of a sentence pair by hand. Links $S$ are *sure*, links $P$ *possible*; a sure link
# is also possible, even where $P$ does not repeat it. A model's links $A$ have the **alignment error rate** (Och and
# Ney 2003)
#
# $$\text{AER} = 1 - \frac{|A \cap S| + |A \cap P|}{|A| + |S|}$$
#
# The model attends from *tokens* to *tokens*; people link *words*. So first merge the tokens into words. A target word
# looks at a source word as much as its tokens do on average, and at *all* of the source word's tokens together. Then each
# target word gets exactly one link, to the source word it looks at most (in a tie, to the first of them); these links are
# $A$. `source_word[i]` says to which word token $i$ belongs; words count from 0. Links are pairs (target word, source
# word).
#
# <details><summary>Hint 1: sums and means</summary>
#
# A target word has one unit of attention to spend, however many tokens it has: the mean over its rows. What its source
# word's tokens get adds up: the sum over columns.
# </details>
# <details><summary>Hint 2: with a matrix</summary>
#
# `F.one_hot(source_word)` is a matrix (token, word) of zeros and ones. Multiplying by it adds up columns.
# </details>
# <details><summary>Hint 3: sets</summary>
#
# Python's sets do the rest: `A & S`, `A & (P | S)`, `len`.
# </details>

# %% nbgrader={"grade_id": "error-rate", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def error_rate(
    weights: Float[Tensor, "target source"],
    target_word: Int[Tensor, "target"],
    source_word: Int[Tensor, "source"],
    sure: set[tuple[int, int]],
    possible: set[tuple[int, int]],
) -> float:
    """The alignment error rate of attention weights."""
    ### BEGIN SOLUTION
    rows, columns = F.one_hot(target_word).float(), F.one_hot(source_word).float()
    words = rows.T @ weights @ columns / rows.sum(dim=0)[:, None]
    links = {(word, place) for word, place in enumerate(words.argmax(dim=-1).tolist())}
    return 1 - (len(links & sure) + len(links & (sure | possible))) / (len(links) + len(sure))
    ### END SOLUTION

# %%
def linked_pair(show, words: int) -> tuple:
    """A made-up sentence pair: attention weights of its tokens, their words, and links by hand."""
    sides = [torch.arange(words).repeat_interleave(show.randint(1, 4, words)) for _ in range(2)]
    weights = (2 * show.randn(len(sides[0]), len(sides[1]))).softmax(dim=-1)
    order = show.permutation(words).tolist()
    weights = weights + 0.5 * (torch.tensor(order)[sides[0]][:, None] == sides[1])
    sure = {(word, order[word]) for word in range(0, words, 2)} | {(words - 1, order[0])}
    possible = {(word, order[word]) for word in range(words) if word % 4}     # it repeats some of the sure ones
    return weights / weights.sum(dim=-1, keepdim=True), *sides, sure, possible

# %% nbgrader={"grade_id": "check-error-rate", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("error-rate") as show:
    perfect = torch.tensor([[0.9, 0.1, 0.0], [0.0, 0.5, 0.5]]), torch.tensor([0, 1]), torch.tensor([0, 1, 1])
    show(error_rate(*perfect, {(0, 0)}, {(1, 1)}), "each word is linked as by hand")
    for words in (show.random_size(4, 6), show.random_size(7, 9), show.random_size(10, 12)):
        pairs = [linked_pair(show, words) for _ in range(8)]
        show([error_rate(*pair) for pair in pairs], f"eight pairs of {words} words")

# %% tags=["mistakes"]
def rate(weights, target_word, source_word, sure, possible, columns="sum", rows="mean", dim=-1, both=True, one=True):
    down, across = F.one_hot(target_word).float(), F.one_hot(source_word).float()
    across = across / across.sum(dim=0) if columns == "mean" else across
    words = down.T @ weights @ across
    best = words.argmax(dim=dim).tolist()
    links = {(i, j) if dim == -1 else (j, i) for i, j in enumerate(best)}
    possible = sure | possible if both else possible
    share = (len(links & sure) + len(links & possible)) / (len(links) + len(sure))
    return 1 - share if one else share


def first_tokens(weights, target_word, source_word, sure, possible):
    first = [target_word.tolist().index(word) for word in range(int(target_word.max()) + 1)]
    return rate(weights[first], torch.arange(len(first)), source_word, sure, possible)


def of_tokens(weights, target_word, source_word, sure, possible):
    best = weights.argmax(dim=-1)
    links = {(int(word), int(source_word[place])) for word, place in zip(target_word, best)}
    return 1 - (len(links & sure) + len(links & (sure | possible))) / (len(links) + len(sure))


def plain_share(weights, target_word, source_word, sure, possible):
    words = F.one_hot(target_word).float().T @ weights @ F.one_hot(source_word).float()
    links = set(enumerate(words.argmax(dim=-1).tolist()))
    return 1 - len(links & (sure | possible)) / len(links)


mistake("error-rate", lambda *args: rate(*args, both=False),
        "A sure link is possible, too: a model's sure link counts in both places. Take S and P together.")
mistake("error-rate", lambda weights, target_word, source_word, sure, possible: rate(
            weights, target_word, source_word, sure, possible) - len(
            set(enumerate((F.one_hot(target_word).float().T @ weights @ F.one_hot(source_word).float()).argmax(dim=-1).tolist()))
            & sure & possible) / (int(target_word.max()) + 1 + len(sure)),
        "A sure link that P repeats is counted twice among the possible ones. Take the *union* of S and P.")
mistake("error-rate", lambda *args: rate(*args, one=False), "That is the share that is right. The error rate is 1 minus it.")
mistake("error-rate", lambda *args: rate(*args, columns="mean"),
        "You average over the source word's tokens, so a word of three tokens counts a third. What they get adds up.")
mistake("error-rate", lambda *args: rate(*args, dim=0),
        "You link each *source* word to the target word that looks at it most. Here the target's words choose.")
mistake("error-rate", first_tokens, "You use the first token of each target word only. The others have looked, too.")
mistake("error-rate", of_tokens,
        "You link each *token*, and then name the words. A word of three tokens then may have three links; it has one.")
def charged(charge):
    """The rate, divided by something else than |A| + |S|."""
    def answer(weights, target_word, source_word, sure, possible):
        links = set(range(int(target_word.max()) + 1))
        right = rate(weights, target_word, source_word, sure, possible, one=False) * (len(links) + len(sure))
        return 1 - right / charge(len(links), len(sure))
    return answer


for charge in (lambda links, sure: links, lambda links, sure: sure, lambda links, sure: 2 * links):
    mistake("error-rate", charged(charge),
            "You divide by one of the two counts alone. It is |A| + |S|: what the model said, and what it should have said.")
mistake("error-rate", plain_share,
        "That is the share of links which are not even possible. The formula also charges for sure links that are missing.")


def with_loops(weights, target_word, source_word, sure, possible):
    links = set()
    for word in sorted(set(target_word.tolist())):
        row = weights[target_word == word].mean(dim=0)
        total = [float(row[source_word == other].sum()) for other in sorted(set(source_word.tolist()))]
        links.add((word, max(range(len(total)), key=total.__getitem__)))
    possible = possible | sure
    return 1 - (len(links & sure) + len(links & possible)) / (len(links) + len(sure))


alternative("error-rate", with_loops)
for change in ("rows.T @ weights @ columns / rows.sum(dim=0)[:, None] → rows.T @ weights @ columns * rows.sum(dim=0)[:, None]",
               "rows.T @ weights @ columns / rows.sum(dim=0)[:, None] → rows.T @ weights @ columns",
               "rows.sum(dim=0) → rows.mean(dim=0)"):
    equivalent("error-rate", change, "A positive factor for each target word doesn't change which source word it looks at most.")

# %% [markdown]
# ### Task 7 · Investigate: forty steps back   ●●●●● · 21 minutes · 4 points
#
# A sequence is 40 random symbols out of 8. The net below reads it and must say which symbol came *first*. A GRU could
# do it: hold the update gate at 1. But trained as in the lesson, on 130 batches of 64 sequences, it is no better than
# guessing: one in eight. Lesson 02 measured why. Find a way for it to learn.
#
# Return a trained `Memory`. You may change how it *starts*, what it is *trained on*, and how; not what it *is*. The
# grader asks it about 500 new sequences of 40 symbols: at least 95% right earns all points, at least 50% half, anything
# less none. Stay below half a minute of computing; an answer that exceeds the grader's time limit earns nothing.
#
# This one is open: there are several ways, and they come from different parts of the lesson. When you have found one,
# try to explain why it helps, with `gradient_by_distance`, and look for a second one.

# %%
class Memory(nn.Module):
    """Reads symbols, and says which one came first."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 32)
        self.gru = nn.GRU(32, 32, batch_first=True)
        self.output = nn.Linear(32, 8)

    def forward(self, symbols: Int[Tensor, "batch length"]) -> Float[Tensor, "batch 8"]:
        return self.output(self.gru(self.embedding(symbols))[0][:, -1])


def draw(count: int, length: int, seed: int) -> Int[Tensor, "count length"]:
    """Random sequences of symbols."""
    return torch.randint(8, (count, length), generator=torch.Generator().manual_seed(seed))


def as_in_the_lesson(model: Memory, steps: int = 130, lr: float = 1e-2) -> Memory:
    """Train on sequences of 40 symbols. From an ordinary start this does not succeed."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for step in range(steps):
        symbols = draw(64, 40, seed=step)
        loss = F.cross_entropy(model(symbols), symbols[:, 0])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


def gradient_by_distance(model: Memory) -> list[float]:
    """The gradient at the symbol k places before the end, compared with that at the end."""
    symbols = draw(64, 40, seed=1)
    x = model.embedding(symbols).detach().requires_grad_()             # (sequence, 40, width)
    F.cross_entropy(model.output(model.gru(x)[0][:, -1]), symbols[:, 0]).backward()
    size = x.grad.norm(dim=-1).mean(dim=0).flip(0)                     # (distance,)
    return (size / size[0]).tolist()

# %% nbgrader={"grade_id": "forty-back", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def remember() -> Memory:
    """A net that has learned to remember the first of 40 symbols."""
    ### BEGIN SOLUTION
    # A new update gate stands half open, so that the gradient halves at each step. Start it near 1: a bias of 4 makes
    # z = 0.98, and 0.98 to the power of 40 is still 0.4. (torch's blocks are r, z, n.)
    model = Memory()
    with torch.no_grad():
        model.gru.bias_ih_l0[32:64] = 4.0
    return as_in_the_lesson(model)
    ### END SOLUTION

# %% [markdown]
# To see how far you are, run this in a cell of your own:
#
# ```python
# symbols = draw(500, 40, seed=12345)
# (remember()(symbols).argmax(dim=-1) == symbols[:, 0]).float().mean()
# ```

# %% nbgrader={"grade_id": "check-forty-back", "grade": true, "points": 4, "solution": false, "locked": true, "schema_version": 3}
with check("forty-back", operators=False) as show:
    show.weights(remember(), "your trained net")

# %% tags=["mistakes"]
from txgrade import measured


def of_new_sequences(shown, private):
    model = Memory()
    model.load_state_dict(shown[0])
    symbols = private.randint(0, 8, 500, 40)
    with torch.no_grad():
        right = (model(symbols).argmax(dim=-1) == symbols[:, 0]).float().mean().item()
    return (1 if right >= 0.95 else 0.5 if right >= 0.5 else 0), f"{right:.0%} of 500 first symbols are known."


measured("forty-back", of_new_sequences)
mistake("forty-back", lambda: Memory(), "The net is as it was made: nothing was learned.")
mistake("forty-back", lambda: as_in_the_lesson(Memory(), steps=20), "From an ordinary start the gradient does not reach the first symbol.")


def last_one():
    model = Memory()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(10):
        symbols = draw(64, 40, seed=step)
        loss = F.cross_entropy(model(symbols), symbols[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


mistake("forty-back", last_one, "It has been trained to name the *last* symbol.")


def growing():
    model = Memory()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(130):
        symbols = draw(64, max(2, min(40, 40 * (step + 1) // 100)), seed=step)
        loss = F.cross_entropy(model(symbols), symbols[:, 0])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


alternative("forty-back", growing)

# %% [markdown]
# ### How far are you?

# %%
check.summary()
