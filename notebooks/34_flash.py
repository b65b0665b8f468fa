# %% [markdown] lesson={"part": "IV Efficiency", "builds": "softmax in one pass, attention in tiles forward and backward, memory and traffic counted, a Triton kernel of your own"}
# # 34 · FlashAttention
#
# **After this lesson you will be able to**
#
# - say whether arithmetic or memory sets a computation's limit, and draw the roofline of your own machine;
# - compute a softmax over numbers that you see only once, a few at a time, and prove that nothing is lost;
# - build attention, forward and backward, that never holds the matrix of scores, and measure what that saves;
# - write a Triton kernel, run it without a GPU, and say what a production kernel adds;
# - say precisely what FlashAttention 1, 2 and 3 each changed.
#
# **You need** lessons 03, 10 and 13; 30 helps. **It takes** about 65 minutes to read and try; all cells together run in
# about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: a matrix made to be thrown away
#
# Attention takes three matrices with a row for each token, and gives back one. On the way it makes another one, with a
# row *and* a column for each token. How large is that, for a play by Shakespeare, character by character?

# %%
import inspect
import math
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # for section 7; before Triton is imported
from torch.utils._python_dispatch import TorchDispatchMode

from txcourse import explore, figures
from txcourse.lesson import expect, predict, predicted, prove_equal, show_source
from txlib.data import shakespeare, shipped

torch.set_num_threads(1)  # timings on one thread vary least

# %% [markdown]
# Four bytes per number, a head of 64:

# %%
play = shakespeare().validation
for n in (1024, 8192, len(play)):
    print(f"{n:8,} characters: q, k, v and the output {4 * n * 64 * 4 / 1e6:8.1f} MB, "
          f"scores {n * n * 4 / 1e6:10,.0f} MB per head")

# %% [markdown]
# For the whole play, inputs and output fit into a corner of memory; the scores of one head alone need 49 GB, more
# than most computers have. And yet each score is needed only for a moment: to become a weight, and to multiply one
# row of values.
#
# So here is the wish: **the same numbers, without the matrix.** Not another pattern, as in lesson 31, and not an
# approximation, as in lesson 32: the same output, up to rounding. Many tried to save *operations*. Dao et al. (2022)
# saved *memory traffic*, and got what the others had promised: attention that is several times faster. Why should that
# help? Measure.

# %% [markdown]
# ## 2 What does attention wait for?
#
# A processor does two things: it computes, and it moves numbers between itself and memory. Each has a top speed.
# Measure yours: a large product of matrices for the one, a copy of a large tensor for the other. (A multiplication and
# an addition count as two operations.)


# %%
def seconds(compute, repeats=5):
    times = []
    for _ in range(repeats):
        start = time.process_time()  # the processor's: other programs do not count
        compute()
        times.append(time.process_time() - start)
    return min(times)


# %% [markdown]
# Both top speeds, and their ratio:

# %% tags=["nbval-ignore-output"]
a, b = torch.randn(2, 1024, 1024)  # (1024, 1024) each
large = torch.randn(16 * 1024 * 1024)  # 64 MB: more than fits next to the processor
target = torch.empty_like(large)
peak = 2 * 1024**3 / seconds(lambda: a @ b)  # n² sums of n products
traffic = 2 * 4 * len(large)  # bytes: each number is read and written
bandwidth = traffic / seconds(lambda: target.copy_(large))
print(f"operations {peak / 1e9:6.1f} billion per second")
print(f"memory     {bandwidth / 1e9:6.1f} billion bytes per second")
print(f"while one byte travels, {peak / bandwidth:.1f} operations could be done")
expect("Operations per byte", peak / bandwidth, 1, 60)

# %% [markdown]
# That last number is the machine's **ridge**. A computation that does fewer operations for each byte that it moves
# can't reach the top speed of arithmetic: memory does not deliver fast enough. On a GPU the ridge is far higher: an
# A100 does 312 trillion operations per second (in 16 bits, on matrices), and its memory delivers 1.5 to 2 trillion
# bytes: 150 to 200 operations per byte.
#
# How many does attention do? Take its steps one by one, for $n$ = 4096 tokens and $d$ = 64. Count operations and the
# bytes that must travel *at least*: each input read once, each output written once. (A softmax is five operations per
# score: the maximum, a subtraction, an exponential, the sum, a division. The mask takes one byte per score, a quarter
# of a number.)

# %%
n, d = 4096, 64
q, k, v = torch.randn(3, n, d)  # (n, d) each
score = q @ k.T  # (n, n)
hidden = torch.ones(n, n).triu(1).bool()  # (n, n): True = in the future
never = torch.tensor(-torch.inf)
weight = score.softmax(dim=-1)  # (n, n)
square, tall = torch.empty(n, n), torch.empty(n, d)  # for the results, beforehand
product = 2 * n * n * d, n * n + 2 * n * d  # operations, numbers that travel
steps = {
    "q kᵀ": (lambda: torch.matmul(q, k.T, out=square), *product),
    "mask": (lambda: torch.where(hidden, never, score, out=square),
             n * n, 2.25 * n * n),
    "softmax": (lambda: torch.softmax(score, dim=-1, out=square), 5 * n * n, 2 * n * n),
    "weights · v": (lambda: torch.matmul(weight, v, out=tall), *product),
}

# %% [markdown]
# Each step is timed by itself:

# %% tags=["nbval-ignore-output"]
points, spent = {}, {}
for name, (compute, operations, numbers) in steps.items():
    spent[name] = seconds(compute, repeats=3)
    points[name] = operations / (4 * numbers), operations / spent[name]
    print(f"{name:12} {points[name][0]:5.1f} operations per byte, "
          f"{1000 * spent[name]:6.1f} ms")
part = (spent["mask"] + spent["softmax"]) / sum(spent.values())
print(f"mask and softmax: {6 / (4 * d + 6):.0%} of operations, {part:.0%} of the time")

# %% [markdown]
# Two steps with hardly any operations take a good part of the time. They touch each of the $n^2$ numbers, do next to
# nothing with it, and put it back. Draw the **roofline** of lesson 13 (Williams et al. 2009) once more, now over
# operations per byte: its slope is what memory allows, its flat part what arithmetic allows. The ridge is where they
# meet. No step can be above the roof. How far below it a step stays depends on how it is programmed and on what it
# computes: the flat part is that of products, and an exponential takes far longer than a multiplication. On one
# thread a softmax may wait for its exponentials, not for memory (lesson 30).

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
figures.roofline(
    points, peak=peak, bandwidth=bandwidth,
    title="Mask and softmax are under the slope, the products under the flat roof",
)

# %% [markdown]
# On a GPU, whose ridge is further to the right, the two products are under the slope as well: their 31 operations per
# byte (62 in 16 bits) are below a ridge of 150. So the way to a faster attention is not fewer operations. It is **fewer
# journeys**: take a few numbers into the small, fast memory next to the arithmetic, do *everything* with them that will
# ever be done, and write down only the result. These are the two memories of an A100 (Dao et al. 2022, figure 1), and
# what should travel:

# %% jupyter={"source_hidden": true}
figures.two_memories(title="Scores stay in fast memory; only tiles travel")

# %% [markdown]
# A CPU's caches play the same part. What is in the way is the softmax.

# %% [markdown]
# ## 3 A softmax over numbers that pass by
#
# ### 3.1 The idea, and why it seems impossible
#
# Cut the matrix of scores into tiles. Take one tile of queries, and walk along the keys: make the scores of one tile,
# use them up, forget them. (Orange is at hand, blue is done and forgotten, gray is still to come. White: the mask hides
# it, so it is never made.)

# %% jupyter={"source_hidden": true}
figures.causal_walk(title="One tile at a time; what is done is forgotten")

# %% [markdown]
# But a softmax needs the *whole row*: each weight is divided by the sum over all keys. The first tile can't know that
# sum. This is the one problem that FlashAttention has to solve, and its solution is older (Milakov & Gimelshein 2018).
#
# $$\text{softmax}(x)_i = \frac{e^{x_i - m}}{\sum_j e^{x_j - m}}, \qquad m = \max_j x_j$$
#
# Why $m$? Without it $e^{x}$ overflows: 32 bits end near $e^{88}$. Subtracting $m$ changes nothing, as it cancels, and
# makes every exponent at most 0. But it costs another pass: one for $m$, one for the sum, one for the result.

# %%
x = torch.tensor([2.0, 1.0, 5.0, 3.0, 9.0, 8.0])  # (6,): the scores of one query
largest = x.max()  # m, pass 1
total = (x - largest).exp().sum()  # l, pass 2
print("safe  ", ((x - largest).exp() / total).tolist()[:3])  # pass 3
large = 100 * x
print("unsafe", (large.exp() / large.exp().sum()).tolist()[:3], "with 100 times x")

# %% [markdown]
# ### 3.2 A sum that can be corrected
#
# Suppose you have seen some of the numbers, and know their maximum $m$ and their sum $l = \sum e^{x_j - m}$. Now comes
# a larger one, and the maximum becomes $m'$. Must you go back? No. Every term of the sum was made with the wrong
# maximum, and *all of them are wrong by the same factor*:
#
# $$\sum_j e^{x_j - m'} = \sum_j e^{x_j - m}\, e^{m - m'} = l \; e^{m - m'}$$
#
# After 2 and 1 the sum is $1 + e^{-1} = 1.37$. Then comes 5: the old sum shrinks to $1.37 \cdot e^{-3} = 0.07$, and
# the new term is 1.


# %%
def one_pass(numbers):
    m, l = -math.inf, 0.0
    for x in numbers:
        greater = max(m, x)
        l = l * math.exp(m - greater) + math.exp(x - greater)  # old, rescaled, and new
        m = greater
        print(f"saw {x:.0f}: maximum {m:.0f}, sum {l:.4f}")
    return m, l


in_one = torch.tensor(one_pass(x.tolist()))
prove_equal(in_one, torch.stack([largest, total]), what="One pass and two passes")

# %% [markdown]
# At 5 and at 9 the sum collapses to little more than 1: next to the new maximum, all that went before hardly counts.
#
# ### 3.3 Two halves make a whole
#
# The same rule joins two sums that were made apart, each with its own maximum. So the order does not matter, nor how
# the numbers were split: tiles are allowed.


# %%
def join(one, other):
    (m1, l1), (m2, l2) = one, other
    m = torch.maximum(m1, m2)
    return m, l1 * (m1 - m).exp() + l2 * (m2 - m).exp()


halves = [(half.max(), (half - half.max()).exp().sum()) for half in x.split(3)]
joined, backward = join(*halves), join(*halves[::-1])
whole = torch.stack([largest, total])
prove_equal(torch.stack(joined), whole, what="Two halves joined, and the whole")
prove_equal(torch.stack(backward), whole, what="In the other order, they")

# %% [markdown]
# Others use this rule as well. When a model writes one token, its keys are split among the processors and joined at
# the end (Flash-Decoding); in **ring attention** (Liu et al. 2023) the parts are on different machines.
#
# ### 3.4 Values are corrected as well
#
# We do not even want the weights. We want their average of the values, $o / l$ with $o = \sum_j e^{x_j - m}\, v_j$.
# This sum has the same wrong factor when the maximum changes, so it is rescaled in the same way; it is divided by $l$
# only once, at the very end. One step of the walk takes in a whole tile $S$ of scores, a row for each query, and its
# values $V$. What is new has a prime:
#
# $$m' = \max(m, \text{rowmax}\, S) \qquad P = e^{S - m'} \qquad l' = e^{m - m'} l + \text{rowsum}\, P \qquad
# o' = e^{m - m'} o + P V$$


# %%
def take_in(m, l, o, S, V):  # (rows, 1) twice, (rows, d), (rows, columns), (columns, d)
    greater = torch.maximum(m, S.amax(dim=-1, keepdim=True))  # (rows, 1)
    P = (S - greater).exp()  # (rows, columns)
    rescale = (m - greater).exp()  # (rows, 1)
    l, o = rescale * l + P.sum(dim=-1, keepdim=True), rescale * o + P @ V
    return greater, l, o


# %% [markdown]
# See it work on one query with 8 keys, in tiles of 2. After each tile $o / l$ is the right answer *for the keys so far*
# (the cell checks it); the next tile corrects it.

# %%
V = torch.randn(8, 64)  # (n, d)
S = torch.tensor([[2.0, 1.0, 5.0, 3.0, 9.0, 8.0, 4.0, 0.0]])  # (1, 8)
m = torch.full((1, 1), torch.finfo(torch.float32).min)  # the lowest finite number
l, o, states = torch.zeros(1, 1), torch.zeros(1, 64), []
for columns in torch.arange(8).split(2):
    m, l, o = take_in(m, l, o, S[:, columns], V[columns])
    states.append(f"m = {m.item():.0f}\nl = {l.item():.2f}")
    seen = columns[-1] + 1
    torch.testing.assert_close(o / l, S[:, :seen].softmax(dim=-1) @ V[:seen])

# %% jupyter={"source_hidden": true}
figures.tiles(
    (1, 4), [(0, column) for column in range(4)], states,
    texts={(0, 0): "2  1", (0, 1): "5  3", (0, 2): "9  8", (0, 3): "4  0"},
    title="Each tile corrects the maximum and the sum",
    alt="Four steps along one row of four tiles, with scores 2 1, 5 3, 9 8 and 4 0; maximum "
    "and sum below each: " + "; ".join(states).replace("\n", ", "),
)

# %% [markdown]
# ## 4 Attention in tiles
#
# First the scores of one tile; `rows` and `columns` are the positions of its queries and keys.


# %%
def tile_of_scores(q, k, rows, columns, is_causal):
    S = q[rows] @ k[columns].T * q.shape[-1] ** -0.5  # (rows, columns)
    return S.masked_fill(columns > rows[:, None], -torch.inf) if is_causal else S


# %% [markdown]
# Now the walk. Two details: the maximum starts at the lowest finite number, not at $-\infty$. If the mask hides a whole
# tile from a query (a window can), the new maximum would be $-\infty$ as well, and $-\infty - (-\infty)$ is not a
# number. And besides the output we keep one number per query, $L = m + \ln l = \ln \sum_j e^{x_j}$: the logarithm of
# the softmax's denominator, as it would be without $m$.


# %%
def forward_in_tiles(q, k, v, is_causal=False, tile=64, step=take_in):  # (n, d) each
    out, L = torch.empty_like(q), q.new_empty(len(q))  # (n, d), (n,)
    for rows in torch.arange(len(q)).split(tile):
        m = q.new_full((len(rows), 1), torch.finfo(q.dtype).min)  # (rows, 1)
        l, o = torch.zeros_like(m), torch.zeros_like(q[rows])  # (rows, 1), (rows, d)
        for columns in torch.arange(len(k)).split(tile):
            if is_causal and columns[0] > rows[-1]:
                break  # all in the future: not even looked at
            S = tile_of_scores(q, k, rows, columns, is_causal)  # (rows, columns)
            m, l, o = step(m, l, o, S, v[columns])
        out[rows], L[rows] = o / l, (m + l.log())[:, 0]
    return out, L


# %% [markdown]
# The definition for comparison, and the proof. 500 is not a multiple of 64, so the last tiles are narrower.


# %%
def definition(q, k, v, is_causal=False):
    S = q @ k.T * q.shape[-1] ** -0.5  # (n, n)
    if is_causal:
        S = S.masked_fill(torch.ones_like(S).triu(1).bool(), -torch.inf)
    return S.softmax(dim=-1) @ v  # (n, d)


torch.manual_seed(0)
given = torch.randn(3, 500, 64)  # q, k, v: (n, d) each
for is_causal in (False, True):
    out, L = forward_in_tiles(*given, is_causal)
    prove_equal(out, definition(*given, is_causal), what="Tiles and definition")

# %% [markdown]
# Here are its first eight queries and keys: press *next*, and watch what is in fast memory. Where a maximum rises, the
# old sums are multiplied by less than 1. Then change the tile, and switch on the causal mask: which tiles does the walk
# leave out? (If you see no buttons, run the cell.)

# %%
explore.flash(*given[:, :8])

# %% [markdown]
# <details><summary>The answer</summary>
#
# It leaves out the tiles that lie entirely above the diagonal, since the mask hides all of their scores: 6 of 16 with
# tiles of 2, 1 of 4 with tiles of 4, 28 of 64 with tiles of 1. Whatever the tiles, the last `o / l` of a query is the
# same.
# </details>
#
# ### What it saves
#
# How large is the largest tensor that is ever made? Lesson 30's dispatch mode sees every tensor that torch makes; here
# it counts numbers:


# %%
class Largest(TorchDispatchMode):
    numbers = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        out = operator(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.numbers = max(self.numbers, out.numel())
        return out


# %% [markdown]
# Both ways, from 128 tokens to 2,048:

# %%
lengths, most = [128, 256, 512, 1024, 2048], {"definition": [], "tiles of 64": []}
for n in lengths:
    random = [torch.randn(n, 64) for _ in range(3)]  # q, k, v: (n, d) each
    for name, compute in zip(most, (definition, forward_in_tiles)):
        with Largest() as seen:
            compute(*random)
        most[name].append(seen.numbers)
for name, numbers in most.items():
    print(f"{name:11} {numbers[-1]:9,} numbers at n = {n:,},",
          f"{numbers[-1] / numbers[-2]:.0f} times as many as at half of it")

# %% [markdown]
# Twice the length makes the definition's largest tensor four times as large, the tiles' twice: nothing that the tiles
# make is larger than the output itself.
#
# And the journeys? Count the numbers that travel between slow and fast memory. The definition writes the scores, reads
# them, writes the weights, reads them: $4n^2 + 4nd$. The tiles read $q$ once, write the output once, and read all of
# $k$ and $v$ once *per tile of queries*: $2nd + 2nd \cdot n / B$ with $B$ queries in a tile. At $n = 4096$ and $d = 64$
# the definition moves 68 million numbers. Tiles of 16 move 135 million, twice as many; tiles of 64 move 34, tiles
# of 256 move 9. (Section 7 counts them for a kernel of yours.)
#
# A tile can only be as large as fast memory allows. If that holds $M$ numbers, $B$ is about $M / d$, up to a constant
# factor (the paper takes $M / 4d$; task 6 of the exercise counts exactly). Put it into $2nd \cdot n / B$, and you have
# the paper's theorem 2: $\Theta(n^2 d^2 / M)$ in tiles against $\Theta(nd + n^2)$. There are fewer journeys by a factor
# of about $M / d^2$, but they stay quadratic in $n$, and so do operations. Only the memory that is *occupied* has
# become linear.

# %% [markdown]
# ## 5 Backward: compute it again
#
# To train, we need gradients, and backpropagation wants the weights $P$: all $n^2$ of them, kept from the forward pass.
# What does torch keep for the definition?


# %%
def kept(compute, *inputs):
    """Bytes that are kept for the backward pass."""
    tensors = {}
    def note(tensor):
        tensors[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        compute(*inputs)
    return sum(tensors.values())


learned = [torch.randn(1024, 64, requires_grad=True) for _ in range(3)]  # q, k, v
print(f"q, k and v {3 * learned[0].nbytes / 1e6:.1f} MB, "
      f"kept for the definition {kept(definition, *learned) / 1e6:.1f} MB")

# %% [markdown]
# The 4.2 MB on top of $q$, $k$ and $v$ are $P$. FlashAttention does not keep it. It computes every tile of scores
# *again* in the backward pass: more operations, fewer journeys, and you know by now which of the two counts. From $L$,
# a tile's weights come in one step, without a second walk: $P = e^{S - L}$.
#
# The rest is the chain rule. Write $dX$ for the gradient of the loss with respect to $X$, and let $dO$ be the one that
# arrives at the output $O = PV$. In a softmax, $\partial P_{ik} / \partial S_{ij} = P_{ik}\,([j = k] - P_{ij})$, where
# $[j = k]$ is 1 if $j$ is $k$, else 0: raising one score raises its own weight, and lowers the others of its row in
# proportion to their size.
#
# On paper first, for one query: two keys with weights 0.75 and 0.25 and the values 1 and 0 make the output 0.75. If the
# gradient 1 arrives there, $dP = (1, 0)$, the mean of $dP$ by the weights is 0.75, and the scores get
# $0.75 \cdot (1 - 0.75)$ and $0.25 \cdot (0 - 0.75)$: up and down by 0.1875. In general:
#
# $$dV = P^\top dO \qquad dP = dO\, V^\top \qquad dS_{ij} = P_{ij}\Big(dP_{ij} - \sum_k P_{ik}\, dP_{ik}\Big) \qquad
# dQ = \tfrac{1}{\sqrt d}\, dS\, K \qquad dK = \tfrac{1}{\sqrt d}\, dS^\top Q$$
#
# The third is the softmax's gradient, and it has a sum over the whole row again! But that sum needs no row of $P$:
#
# $$\sum_k P_{ik}\, dP_{ik} = \sum_k P_{ik} \sum_c dO_{ic} V_{kc} = \sum_c dO_{ic} \sum_k P_{ik} V_{kc}
# = \sum_c dO_{ic}\, O_{ic} =: D_i$$
#
# A row of the output times a row of its gradient (above, $0.75 \cdot 1$): $d$ numbers, no matrix. Two numbers per
# query, $L_i$ and $D_i$, replace all that we did not keep.


# %%
def backward_in_tiles(q, k, v, out, L, d_out, is_causal=False, tile=64):
    scale = q.shape[-1] ** -0.5
    dq, dk, dv = (torch.zeros_like(each) for each in (q, k, v))  # (n, d) each
    D = (d_out * out).sum(dim=-1, keepdim=True)  # (n, 1)
    for rows in torch.arange(len(q)).split(tile):
        for columns in torch.arange(len(k)).split(tile):
            if is_causal and columns[0] > rows[-1]:
                break
            S = tile_of_scores(q, k, rows, columns, is_causal)  # (rows, columns)
            P = (S - L[rows, None]).exp()  # (rows, columns)
            dS = P * (d_out[rows] @ v[columns].T - D[rows])  # (rows, columns)
            dv[columns] += P.T @ d_out[rows]
            dk[columns] += dS.T @ q[rows] * scale
            dq[rows] += dS @ k[columns] * scale
    return dq, dk, dv


# %% [markdown]
# A pair of forward and backward that torch does not know becomes an `autograd.Function`. Only what goes into
# `save_for_backward` is kept.


# %%
class Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal, tile=64):
        out, L = forward_in_tiles(q, k, v, is_causal, tile)
        ctx.save_for_backward(q, k, v, out, L)
        ctx.options = is_causal, tile
        return out

    @staticmethod
    def backward(ctx, d_out):
        gradients = backward_in_tiles(*ctx.saved_tensors, d_out, *ctx.options)
        return *gradients, None, None  # none for is_causal and tile


# %% [markdown]
# Three questions. Are the gradients those that autograd finds for the definition? Do they agree with finite
# differences, on a few numbers in double precision (`gradcheck`)? And how much is kept?

# %%
d_out = torch.randn(1024, 64)  # (n, d)
ours = torch.autograd.grad(Flash.apply(*learned, True), learned, d_out)
exact = torch.autograd.grad(definition(*learned, True), learned, d_out)
for name, mine, theirs in zip(("dq", "dk", "dv"), ours, exact, strict=True):
    prove_equal(mine, theirs, tolerance=1e-4, what=f"{name} in tiles and by autograd")


def causal_flash(q, k, v):
    return Flash.apply(q, k, v, True)


few = [torch.randn(5, 3, dtype=torch.double, requires_grad=True) for _ in range(3)]
print("finite differences agree:", torch.autograd.gradcheck(causal_flash, few))
print(f"kept {kept(causal_flash, *learned) / 1e6:.1f} MB")

# %% [markdown]
# ## 6 Break it: forget to rescale
#
# The most natural mistake is to leave out `rescale`. How bad is it? That depends on something that should not matter at
# all: the *order of the keys*. Sort them by the score that one query gives them (a query three times as long as the
# others, so that few keys count), both ways, and shuffle them.


# %%
def forgetful(m, l, o, S, V):
    greater = torch.maximum(m, S.amax(dim=-1, keepdim=True))  # (rows, 1)
    P = (S - greater).exp()  # (rows, columns)
    return greater, l + P.sum(dim=-1, keepdim=True), o + P @ V  # nothing is rescaled


# %% [markdown]
# In which order is the mistake worst?

# %% jupyter={"source_hidden": true}
predict("flash-order", "In which order of the keys is the output most wrong?",
        "best key first", "best key last", "shuffled", "equally wrong in all three")

# %% [markdown]
# Have you decided?

# %%
with torch.no_grad():
    queries, keys, values = learned  # (n, d) each
    query = 3 * queries[:1]  # (1, d)
    order = (query @ keys.T)[0].argsort()  # (n,): worst to best
    exact = definition(query, keys, values)  # (1, d)
    orders = {"best key last": order, "shuffled": torch.randperm(1024),
              "best key first": order.flip(0)}
    for name, places in orders.items():
        wrong, _ = forward_in_tiles(query, keys[places], values[places], step=forgetful)
        error = (wrong - exact).norm() / exact.norm()
        print(f"{name:14}: relative error {error:7.1%}")
predicted("flash-order", "best key last")

# %% [markdown]
# With the best key first, the mistake is *invisible*: the maximum never changes, so there is nothing to rescale. With
# the best key last it is ruinous: every tile before counts as if its own best key were the best of all. A test with one
# lucky order would have passed. So test several.

# %% [markdown]
# ## 7 A kernel of your own
#
# Our tiles save memory, but they are Python: each small product is a separate call, and its result travels to memory
# and back. To keep a tile *in* fast memory, the whole walk has to be one program for the GPU, a **kernel**.
# Triton (Tillet et al. 2019) lets you write kernels in a subset of Python: you write what **one program does with one
# tile** of queries, and as many programs as there are such tiles run side by side.
#
# ### 7.1 Memory is one line
#
# A kernel knows no tensors, only addresses: memory is one long line of numbers, and a tensor is where it begins. Row 2
# of a matrix with 16 columns, which begins at 100, has the addresses 132 to 147. `tl.load` brings the numbers at some
# addresses into fast memory, `tl.store` writes a tile back; nothing else touches slow memory. Here is a stand-in for
# Triton's language, in torch, as far as our kernel needs it. It counts what travels:


# %%
class StandIn:
    constexpr, float32 = int, torch.float32
    arange, zeros, full = torch.arange, torch.zeros, torch.full
    exp, maximum, max, sum = torch.exp, torch.maximum, torch.amax, torch.sum
    dot, trans = torch.matmul, torch.t

    def __init__(self, *tensors):  # slow memory: one line
        self.memory = torch.cat(tensors).flatten()
        self.program = self.moved = 0

    def program_id(self, axis):  # which of the programs am I?
        return self.program

    def load(self, address):
        self.moved += address.numel()
        return self.memory[address]

    def store(self, address, tile):
        self.moved += address.numel()
        self.memory[address] = tile


# %% [markdown]
# ### 7.2 Nineteen lines
#
# Now the kernel: one head, no mask, and sizes that divide evenly. Read it next to `take_in`: the outer loop over tiles
# of queries is gone, because each turn is now one program. (`tl.constexpr` marks what is known before the kernel is
# compiled: sizes of tiles.)


# %%
tl = StandIn(torch.empty(0))


def my_kernel(q, k, v, out, n, scale,
              D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, d = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, D)
    Q = tl.load(q + row[:, None] * D + d)  # (ROWS, D)
    m = tl.full((ROWS,), -1e30, dtype=tl.float32)
    l = tl.zeros((ROWS,), dtype=tl.float32)
    o = tl.zeros((ROWS, D), dtype=tl.float32)
    for first in range(0, n, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        K = tl.load(k + column[:, None] * D + d)  # (COLUMNS, D)
        V = tl.load(v + column[:, None] * D + d)  # (COLUMNS, D)
        S = tl.dot(Q, tl.trans(K)) * scale  # (ROWS, COLUMNS)
        greater = tl.maximum(m, tl.max(S, 1))  # (ROWS,)
        P = tl.exp(S - greater[:, None])
        rescale = tl.exp(m - greater)
        l = rescale * l + tl.sum(P, 1)
        o = rescale[:, None] * o + tl.dot(P, V)
        m = greater
    tl.store(out + row[:, None] * D + d, o / l[:, None])


# %% [markdown]
# `m`, `l` and `o` stay in registers from the first key to the last. **That** is the point of it all: in this loop only
# `K` and `V` travel. Run the programs one after another, for 128 tokens, and compare what traveled with the formula
# $2nd + 2nd \cdot n / B$ of section 4:

# %%
short, size = torch.randn(3, 128, 16), 128 * 16  # q, k, v: (n, d) each; n · d
for ROWS in (16, 32, 64):
    tl = StandIn(*short, torch.zeros(128, 16))
    for tl.program in range(128 // ROWS):
        my_kernel(0, size, 2 * size, 3 * size, 128, 16**-0.5, 16, ROWS, 16)
    out = tl.memory[3 * size :].view(128, 16)
    torch.testing.assert_close(out, definition(*short))
    formula = 2 * size + 2 * size * 128 // ROWS
    print(f"tiles of {ROWS} queries: {tl.moved:6,} numbers moved, formula {formula:6,}")

# %% [markdown]
# ### 7.3 The same text, in Triton
#
# Put `@triton.jit` on top of the same text, and Triton compiles it for a GPU. Without a GPU its *interpreter* runs the
# programs one after another in numpy, slowly. (Triton comes with torch on a Linux machine with a GPU; elsewhere on
# Linux, `pip install triton`. Nothing that follows needs it.)

# %% tags=["nbval-ignore-output"]
if find_spec("triton") is None:
    print("Triton is not installed here: the stand-in has run your kernel.")
else:
    head = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
    Path("my_kernel.py").write_text(head + inspect.getsource(my_kernel))
    sys.modules.pop("my_kernel", None)  # a kernel that you have changed is read again
    from my_kernel import my_kernel as in_triton

    there = short.to("cuda" if torch.cuda.is_available() else "cpu")
    out = torch.empty_like(there[0])  # (n, d)
    in_triton[(128 // 32,)](*there, out, 128, 16**-0.5, D=16, ROWS=32, COLUMNS=16)
    prove_equal(out, definition(*there), tolerance=1e-2 if there.is_cuda else 1e-5,
                what=f"Your kernel in Triton on {there.device} and the definition")

# %% [markdown]
# `in_triton[(4,)]` starts four programs; tensors become addresses by themselves.
#
# ### 7.4 What production adds
#
# The library's forward kernel takes the same walk. Read its loop, and find your lines in it:

# %% jupyter={"source_hidden": true}
from textwrap import dedent

from IPython.display import Markdown

kernels = Path(find_spec("txlib.attention.flash_triton").origin).read_text("utf-8")
begin = kernels.index("    for left in range(")
loop = kernels[begin : kernels.index("    total = tl.maximum(")]
Markdown(f"```python\n{dedent(loop)}```")

# %% [markdown]
# `biggest`, `total` and `mixed` are your `m`, `l` and `o`. What is new comes in four groups:
#
# - **Any length, any mask.** `load` and `store` leave out addresses beyond the end. `range` begins and ends at the keys
#   that the mask shows to this tile, and `on_edge` and `hide` mask scores only in tiles that the mask cuts through.
# - **Many heads.** `place` is the head; `place // group` lets heads of queries share one head of keys (lesson 16).
# - **Speed.** `exp2` instead of `exp`: GPUs compute $2^x$ faster, so `scale` holds a factor $\log_2 e$. Products in 16
#   bits, sums in 32. Sizes of tiles are tried out on the GPU, and the fastest is kept.
# - **Training.** $L$ is stored as well, and two more kernels compute the gradients, one walking along the keys and one
#   along the queries, so that no two programs write to the same place.
#
# In any of the library's models the mechanism is one entry of the config. Nothing is approximated, so a model trained
# with dense attention runs with it. The source below the checks shows how its tiles leave out the keys that a mask
# hides.

# %%
from dataclasses import replace

from txlib import load_pretrained
from txlib.attention import FlashConfig, TiledAttention
from txlib.attention.flash import Tiles
from txlib.models import GPT

dense = load_pretrained(shipped("glassllm-en")).float().eval()
block = dense.config.block.replace(mechanism=FlashConfig())
flash = GPT(replace(dense.config, block=block)).eval()
flash.load_state_dict(dense.state_dict())
ids = torch.randint(100, (1, 50))  # (1, n)
some = torch.randn(3, 1, 300, 64)  # q, k, v
with torch.no_grad():
    prove_equal(flash(ids).logits, dense(ids).logits, tolerance=1e-4, what="The models")
    theirs = TiledAttention.apply(*some, True)[0]  # (n, d)
    prove_equal(Flash.apply(*some[:, 0], True), theirs, what="Your tiles and the library's")
show_source(Tiles.of_columns)

# %% [markdown]
# ### 7.5 Masks as rules: FlexAttention (second reading)
#
# A kernel for each mask? torch's **FlexAttention** (Dong et al. 2024) writes it for you: you give a rule, `mask_mod`,
# that says for a query and a key whether they meet; it compiles the rule into a kernel of tiles, and skips the tiles in
# which no pair meets. Here is what today's long-context models combine. Several documents share a row and must not see
# each other; each token sees a *window* of 64 and the first four tokens of its document, the **sinks** (lesson 31).
# Then the same mask by our rules. (On a CPU, without compiling, FlexAttention computes the whole square, and warns.)

# %% tags=["nbval-ignore-output"]
import warnings

from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from txlib.attention import (
    DenseAttention, causal, documents, global_tokens, sliding_window)

document = torch.arange(256) // 128  # (n,): two documents of 128 tokens


def mask_mod(batch, head, query, key):
    near = (query - key <= 64) | (key % 128 < 4)  # or a document's first four
    return (query >= key) & near & (document[query] == document[key])


heads = torch.randn(3, 1, 2, 256, 64)  # q, k, v: (batch, heads, n, d) each
tiles = create_block_mask(mask_mod, None, None, 256, 256, device="cpu", BLOCK_SIZE=64)
sinks = global_tokens([0, 1, 2, 3, 128, 129, 130, 131])
ours = causal() & (sliding_window(64) | sinks) & documents([128, 128])
with warnings.catch_warnings(action="ignore"):
    prove_equal(flex_attention(*heads, block_mask=tiles),
                DenseAttention()(*heads, ours), what="FlexAttention and our rules")
print(f"{tiles.sparsity():.0f}% of the tiles are never made")

# %% [markdown]
# (Of the 16 tiles, 6 are above the diagonal and 4 between the documents. In documents this short the window hides no
# whole tile.)
#
# ### 7.6 What it costs
#
# Count products of $n \times n \times d$ first. The definition has two forward and four backward. FlashAttention makes
# the scores a second time, so five backward: seven instead of six. But with a causal mask it makes little more than
# half of the tiles. Then measure, forward and backward. The last column is torch's own kernel: the same algorithm in
# C++ for the CPU, which `scaled_dot_product_attention`, and so `DenseAttention`, has called all along.


# %% tags=["nbval-ignore-output"]
def forward_and_backward(compute, n):
    inputs = [torch.randn(n, 64, requires_grad=True) for _ in range(3)]  # (n, d) each
    return 1000 * seconds(lambda: compute(*inputs).sum().backward(), repeats=3)


def torchs(*q_k_v):
    heads = (x[None, None] for x in q_k_v)  # (batch, heads, n, d) each
    return F.scaled_dot_product_attention(*heads, is_causal=True)


print("     n     definition    tiles of 64   tiles of 256   torch's kernel (ms, causal)")
for n in (256, 1024, 3072):
    times = [forward_and_backward(compute, n) for compute in (
        lambda *q_k_v: definition(*q_k_v, True), causal_flash,
        lambda *q_k_v: Flash.apply(*q_k_v, True, 256), torchs)]
    print(f"{n:6}" + "".join(f"   {ms:12.1f}" for ms in times))

# %% [markdown]
# Tiles of 64 lose to the definition, although they skip what the mask hides. Python calls each small product by itself,
# and every call costs time: at 3,072 tokens, tiles of 256 need a fifteenth of the calls, make slightly *more* scores,
# and are far ahead of the definition. The kernel in C++ shows what the idea is
# worth once Python is gone.
#
# And on a GPU? For GPT-2 medium's attention, Dao et al. (2022, figure 2) count 75 billion operations where the
# definition has 67, 4.4 GB of traffic where it has 40, and 7 ms where it takes 42. Ours was measured on the GPU that is
# named below, by `benchmarks/gpu.py`: the library's Triton kernel, torch's kernel and FlexAttention, all compiled, in
# 16 bits, with a causal mask and with a window of 256, forward. (A trillion operations per second is a TFLOP/s. Hidden
# scores don't count as operations.)

# %% jupyter={"source_hidden": true}
import json

from txlib.paths import DATA

gpu = json.loads((DATA / "gpu_attention.json").read_text())
print(f"{gpu['device']}, {gpu['date']}: {gpu['peak']:.0f} TFLOP/s at most")
for mask, speeds in gpu["TFLOP/s"].items():
    for length, kernels in speeds.items():
        row = "  ".join(f"{name} {speed:5.1f}" for name, speed in kernels.items())
        print(f"{mask:10} n {int(length):6,}:  {row}")

# %% [markdown]
# At 16,384 tokens with a causal mask, ours and FlexAttention work at more than a third of the peak. torch's kernel
# knows no windows: it makes every tile below the diagonal, so with a window of 256 the fraction of its work that counts
# shrinks with the length. The speed of kernels that skip tiles hardly falls with the length, or rises. (At 1,024 tokens
# ours is behind both, with either mask; with the window it stays behind FlexAttention.)
#
# ### 7.7 One, two, three
#
# **FlashAttention** (2022) is tiles, online softmax and recomputation, in one kernel. It is what you have built, with
# the loops swapped: keys outside, queries inside. So the unfinished outputs travel as well, once per tile of keys.
#
# **FlashAttention-2** (2023) does not change the mathematics. Queries are outside, so each program owns its output and
# none waits for another; programs divide the *length*, not only heads and sentences, so a GPU is busy with one long
# text as well. The output is divided once, at the end, because on a GPU an operation outside a matrix product costs
# some 16 times as much as one inside. And $L$ is kept instead of $m$ and $l$: one number per query to write and read
# instead of two. It is about twice as fast as its predecessor: 50 to 73% of an A100's peak.
#
# **FlashAttention-3** (Shah et al. 2024) is for one family of GPUs, Hopper. There, copying and products run by
# themselves once they are started. So while one group of threads takes its exponentials, another one's products run;
# 8-bit numbers become usable by scaling each block on its own and by a random rotation that spreads outliers. It is 1.5
# to 2 times as fast as its predecessor on an H100: up to 740 trillion operations per second in 16 bits, 75% of the
# peak.
#
# None of them is sub-quadratic, and none is an approximation: they moved the point at which the quadratic wall hurts.

# %% [markdown]
# ## 8 Quiz
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
# They would all wait for it.
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
# **4. Your implementation passes its one test, to 1e-6. A colleague's data has its largest scores at the end, and the
# output is wrong. What do you look at first?**
#
# <details><summary>A. The rescaling</summary>
#
# Right. It does something only when the maximum rises from one tile to the next. A test of a single tile never needs
# it, nor does one with the best key first.
# </details>
# <details><summary>B. The type: 32 bits are too few</summary>
#
# With the maximum subtracted, exponents are at most 0, wherever the large scores are.
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
# Right. The wall of lesson 30 remains for time; for memory it is gone.
# </details>
# <details><summary>C. Four times both</summary>
#
# That is the definition.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - Operations per byte say whether arithmetic or memory sets the limit. Softmax and mask are far below any machine's
#   ridge; on a GPU, all of attention is.
# - A running maximum and a running sum make a softmax over numbers that pass by: when the maximum changes, all that was
#   summed up is wrong by the same factor. Values are summed up in the same way.
# - In tiles, no $n \times n$ tensor ever exists. One number per query, $L$, is kept.
# - The backward pass computes the scores again, and replaces the row sum of the softmax's gradient by $D =
#   \text{rowsum}(dO \circ O)$: 7 products instead of 6, and far less traffic.
# - A kernel is what one program does with one tile; memory is a line of addresses, and only loads and stores travel.
# - The numbers are those of the definition. Time stays quadratic, memory becomes linear.
#
# **Read** Milakov & Gimelshein 2018, *Online normalizer calculation for softmax*,
# [arXiv:1805.02867](https://arxiv.org/abs/1805.02867), section 3. Dao et al. 2022, *FlashAttention: Fast and
# Memory-Efficient Exact Attention with IO-Awareness*, [arXiv:2205.14135](https://arxiv.org/abs/2205.14135), sections 2
# and 3. Dao 2023, *FlashAttention-2*, [arXiv:2307.08691](https://arxiv.org/abs/2307.08691), section 3. Shah et al.
# 2024, *FlashAttention-3*, [arXiv:2407.08608](https://arxiv.org/abs/2407.08608), section 3. Williams et al. 2009,
# *Roofline*, Communications of the ACM 52(4).
#
# **Do** the exercise [34_flash](../exercises/exercise_34_flash.ipynb). Then go on to
# [35 One device](35_one_device.ipynb).
