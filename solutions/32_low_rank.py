# %% [markdown]
# # Exercise 32 · Low rank, kernels, compression
#
# Seven tasks, 20 points, about 100 minutes. They belong to lesson
# [32 Low rank, kernels, compression](../notebooks/32_low_rank.ipynb). Tasks 1 to 3 are the *core* and take about
# 30 minutes; tasks 4 to 7 are *more*. Run the cells from the top; fill in where it says *your turn*, then run the check
# below it. You may check as often as you like.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher. Cost is
# never measured by the clock. `spent = cost(answer, *inputs)` runs an answer once: `spent.operations` counts the operations of
# all matrix products, plus one for every number that a step writes (a view writes none); `spent.largest` is the size of the
# largest tensor made on the way, in numbers; `spent.value` is what came back. You may use it yourself. Numbers that an answer
# moves to NumPy or to Python lists can't be counted, so that is refused.

# %% tags=["parameters"]
seed = 0

# %%
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from txgrade import check, cost

# %% [markdown]
# ### Task 1 · How many directions?   ●●○○○ · 8 minutes · 2 points
#
# The best matrix of rank $k$ keeps the $k$ largest singular values. What it leaves out is also a matrix: the root of the
# sum of its squared entries is the root of the sum of the squares of the *other* singular values. Return the smallest
# $k$ for which that is at most `tolerance` times the same root for the whole of $P$. It may be 0.
#
# <details><summary>Hint 1: which numbers?</summary>
#
# `torch.linalg.svdvals(P)`, sorted, the largest first.
# </details>
# <details><summary>Hint 2: what is left out</summary>
#
# For $k = 0$ all squares, for $k = 1$ all but the first … Turn the squares round, and `cumsum` gives these sums.
# </details>
# <details><summary>Hint 3: which k?</summary>
#
# Count how many of the sums are still too large: that is $k$.
# </details>

# %% nbgrader={"grade_id": "directions", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def directions(P: Float[Tensor, "rows columns"], tolerance: float) -> int:
    """The smallest rank that leaves out at most this fraction of the matrix."""
    ### BEGIN SOLUTION
    squares = torch.linalg.svdvals(P.double()) ** 2                # (values,)
    left_out = squares.flip(0).cumsum(0).flip(0)                   # (values,): with 0, 1, 2, … kept
    return int((left_out > tolerance**2 * squares.sum()).sum())
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-directions", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("directions") as show:
    for n in (show.random_size(6, 9), show.random_size(10, 14)):
        P = (show.randn(n, n) * torch.linspace(0.1, 3, n)).softmax(dim=-1)
        show([directions(P, tolerance) for tolerance in (0.02, 0.1, 0.3, 0.6)], f"{n} tokens, four tolerances")
    wide = show.randn(show.random_size(4, 6), 3) @ show.randn(3, show.random_size(7, 9))
    show([directions(wide, 1e-3), directions(wide, 0.5), directions(wide, 1.5)], "a matrix that is not square, of rank 3")
    shifted = torch.eye(2 * show.random_size(5, 15) + 1).roll(1, dims=1)
    show([directions(shifted, 0.5), directions(shifted, 0.9)], "each token looks at the next one")
    show([directions(0 * shifted, 0.5), directions(shifted, 0.01)], "a matrix of zeros, and one of which nearly all is kept")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")


def too_large(values, limit=lambda t: t**2):
    """A count of what is left out, of some kind of values."""
    def answer(P, tolerance):
        each = values(P.double())
        left_out = each.flip(0).cumsum(0).flip(0)
        return int((left_out > limit(tolerance) * each.sum()).sum())
    return answer


mistake("directions", too_large(torch.linalg.svdvals, lambda t: t),
        "You sum the singular values themselves. The size of a matrix is the root of the sum of their *squares*.")
mistake("directions", too_large(lambda P: torch.linalg.svdvals(P) ** 2, lambda t: t),
        "The sum of squares is compared with the tolerance. Take the root of both sums, or square the tolerance.")
mistake("directions", lambda P, tolerance: directions(P, tolerance) + 1,
        "One too many: with $k$ values kept, the value number $k + 1$ is the first that is left out.")
mistake("directions", lambda P, tolerance: max(directions(P, tolerance), 1),
        "It may be 0: where the tolerance is more than 1, or all is 0, nothing has to be kept.")
mistake("directions", lambda P, tolerance: directions(P, tolerance / float(P.norm().clamp(min=1e-30))),
        "What is left out is compared with the tolerance itself. It may be that fraction *of the whole*: multiply by the root of the "
        "sum of all squares.")
mistake("directions", lambda P, tolerance: min(P.shape) - directions(P, tolerance),
        "You count the sums that are small enough. $k$ is how many are still too large.")
mistake("directions", lambda P, tolerance: directions(P, tolerance) or (min(P.shape) if not P.any() else 0),
        "At most: where what is left out is exactly as large as it may be, that is enough. A matrix of zeros needs no direction.")
equivalent("directions", "squares.flip(0).cumsum(0).flip(0) → squares.flip(0).cumsum(0)",
           "How many of the sums are too large does not depend on their order.")
mistake("directions", lambda P, tolerance: int(
    (torch.linalg.svdvals(P.double()) > tolerance * torch.linalg.svdvals(P.double())[0]).sum()),
        "Each value is compared with the largest one. What counts is how large *all those left out* are together.")


def one_after_the_other(P, tolerance):
    values, k = torch.linalg.svd(P.double()).S.tolist(), 0
    whole = sum(value**2 for value in values) ** 0.5
    while sum(value**2 for value in values[k:]) ** 0.5 > tolerance * whole:
        k += 1
    return k


alternative("directions", one_after_the_other)

# %% [markdown]
# ### Task 2 · Linformer, with padding   ●●●○○ · 12 minutes · 3 points
#
# `E` and `F` were made for sequences of up to `longest` tokens, these have `n`: use the first `n` columns. Sequences
# differ in length: of text `b` only the first `lengths[b]` keys and values are real, the others are padding, and
# **whatever is there must change nothing**. No $n \times n$ tensor, please: we look at the largest one.
#
# Queries of padding may give anything finite; we don't look at them.
#
# <details><summary>Hint 1: on which side?</summary>
#
# `E` is (keys, longest) and mixes positions: it is on the left, `E[:, :n] @ k`.
# </details>
# <details><summary>Hint 2: a mask on the scores?</summary>
#
# Too late. A mixture holds a bit of every key. Padding must be zero *before* it is mixed.
# </details>
# <details><summary>Hint 3: which are real?</summary>
#
# `torch.arange(n) < lengths[:, None]` is (batch, n). It needs an axis for heads and one for features. Use
# `masked_fill` or `torch.where`: zero times infinity is no zero.
# </details>

# %% nbgrader={"grade_id": "linformer", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def linformer(
    q: Float[Tensor, "batch heads n d"],
    k: Float[Tensor, "batch heads n d"],
    v: Float[Tensor, "batch heads n d"],
    E: Float[Tensor, "keys longest"],
    F: Float[Tensor, "keys longest"],
    lengths: Int[Tensor, "batch"],
) -> Float[Tensor, "batch heads n d"]:
    """softmax(q (E k)ᵀ / √d) F v, over the real keys."""
    ### BEGIN SOLUTION
    n, d = q.shape[-2:]
    padding = (torch.arange(n) >= lengths[:, None])[:, None, :, None]                   # (batch, 1, n, 1)
    k, v = k.masked_fill(padding, 0.0), v.masked_fill(padding, 0.0)
    weights = (q @ (E[:, :n] @ k).mT / d**0.5).softmax(dim=-1)     # (batch, heads, n, keys)
    return weights @ (F[:, :n] @ v)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-linformer", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("linformer") as show:
    def drawn(n, d, keys, longest, heads=2):
        qkv = [2 * show.randn(2, heads, n, d) for _ in range(3)]
        E, F = (show.randn(keys, longest) / longest**0.5 for _ in "EF")
        return (*qkv, E, F, torch.tensor([n, n // 2]))


    n, d = show.random_size(7, 10), show.random_size(3, 6)
    q, k, v, E, F_, lengths = drawn(n, d, d + 1, n + show.random_size(1, 4), heads=3)
    real = [linformer(q, k, v, E, F_, lengths)[b, :, :length] for b, length in enumerate(lengths.tolist())]
    show(real[0], "a text without padding")
    show(real[1], "a text with padding")
    k[1, :, n // 2 :], v[1, :, n // 2 :] = 1e4, torch.inf
    show(linformer(q, k, v, E, F_, lengths)[1, :, : n // 2], "the same, and other things in the padding")
    show(linformer(*drawn(6, 6, 6, 6))[0], "as many tokens, features and mixtures")
    short = drawn(5, 3, 2, 9)
    show(linformer(*short[:5], torch.tensor([1, 4]))[1, :, :4], "all but the last token are real")
    many = cost(linformer, *drawn(128, 4, 8, 128))
    show([show.sketch(many.value[0]), show.sketch(many.value[1, :, :64]), many.largest <= 2 * 2 * 128 * 8],
         "128 tokens: a few sums over the outputs of both texts; and no tensor is larger than n × keys, or than the input")

# %% tags=["mistakes"]
def mixed(first=lambda x, n, lengths: x, E=lambda E, n: E[:, :n], F=lambda E, F, n: F[:, :n], scale=lambda d, keys: d,
          hidden=lambda n, lengths: torch.arange(n) >= lengths[:, None], clean=(True, True), axis=-1):
    """Linformer with one part exchanged."""
    def answer(q, k, v, e, f, lengths):
        n, d = q.shape[-2:]
        padding = hidden(n, lengths)[:, None, :, None]
        k, v = (x if not cleaned else x.masked_fill(padding, 0.0) if first is None else first(x, n, lengths)
                for x, cleaned in zip((k, v), clean))
        weights = (q @ (E(e, n) @ k).mT / scale(d, len(e)) ** 0.5).softmax(dim=axis)
        return weights @ (F(e, f, n) @ v)
    return answer


def on_features(q, k, v, E, F, lengths):
    n, d = q.shape[-2:]
    padding = (torch.arange(n) >= lengths[:, None])[:, None, :, None]
    k, v = k.masked_fill(padding, 0.0), v.masked_fill(padding, 0.0)
    if d != n or len(E) != n:
        return torch.zeros_like(q)
    return (q @ (k @ E.T).mT / d**0.5).softmax(dim=-1) @ (v @ F.T)


def dense_weights(q, k, v, E, F, lengths):
    n, d = q.shape[-2:]
    padding = (torch.arange(n) >= lengths[:, None])[:, None, :, None]
    k, v = k.masked_fill(padding, 0.0), v.masked_fill(padding, 0.0)
    weights = (q @ (E[:, :n] @ k).mT / d**0.5).softmax(dim=-1)
    return (weights @ F[:, :n]) @ v


mistake("linformer", mixed(first=lambda x, n, lengths: x),
        "Padding leaks: it is mixed into every key. Set padded keys and values to zero before `E` and `F` mix them.")
mistake("linformer", on_features,
        "You mix along the wrong axis. `E` has a column for each *position*, and is on the left of the keys.")
mistake("linformer", mixed(first=None, F=lambda E, F, n: E[:, :n]), "`E` also mixes the values. They have `F`.")
mistake("linformer", mixed(first=None, scale=lambda d, keys: keys),
        "The scores are divided by the root of the number of mixtures. It is still the width of a key, $d$, that they sum over.")
mistake("linformer", mixed(first=None, scale=lambda d, keys: 1), "The scores are not divided by $\\sqrt d$.")
mistake("linformer", mixed(first=None, E=lambda E, n: E[:, -n:], F=lambda E, F, n: F[:, -n:]),
        "You use the last columns of `E` and `F`. Position 0 belongs to the first one.")
mistake("linformer", lambda q, k, v, E, F, lengths: mixed()(
    q, *(x * (torch.arange(x.shape[2]) < lengths[:, None])[:, None, :, None] for x in (k, v)), E, F, lengths),
        "Zero times infinity is not zero: where padding holds infinity, your product is NaN. Use `masked_fill` or `torch.where`.")
mistake("linformer", mixed(first=None, clean=(True, False)),
        "The keys are clean, but padding leaks into the *values*. Set both to zero.")
mistake("linformer", mixed(first=None, clean=(False, True)),
        "The values are clean, but padding leaks into the *keys*. Set both to zero.")
mistake("linformer", mixed(first=None, hidden=lambda n, lengths: torch.arange(n) > lengths[:, None]),
        "Off by one: the first token of the padding is taken for real. Positions 0 … lengths − 1 are real.")
mistake("linformer", mixed(first=None, hidden=lambda n, lengths: torch.arange(n) >= lengths[:, None] - 1),
        "Off by one: the last real token is taken for padding. Positions 0 … lengths − 1 are real.")
mistake("linformer", mixed(first=None, axis=-2),
        "This softmax runs over the queries. Each query shares out 1 among the mixed *keys*: the last axis.")
mistake("linformer", dense_weights,
        "The numbers are right, but `weights @ F` is an $n \\times n$ matrix, which Linformer is there to avoid. Mix the "
        "values first.")


def with_where(q, k, v, E, F, lengths):
    n, d = q.shape[-2:]
    real = (torch.arange(n)[None, :] < lengths[:, None])[:, None, :, None]
    k = torch.einsum("en,bhnd->bhed", E[:, :n], torch.where(real, k, torch.zeros(())))
    v = torch.einsum("en,bhnd->bhed", F[:, :n], torch.where(real, v, torch.zeros(())))
    return torch.softmax(q @ k.transpose(-1, -2) / d**0.5, dim=-1) @ v


alternative("linformer", with_where)

# %% tags=["variant"]
from txgrade import variant

PLUS, BELOW = variant((1, "e^x"), (2, "e^x + 1"), (3, "e^x + 2"), (4, "e^x + 3"))  # of task 3: beside elu; and what that is below 0

# %% [markdown]
# ### Task 3 · Linear, and counted   ●●●○○ · 10 minutes · 3 points
#
# Write $\phi(x) = \text{elu}(x) + {{PLUS}}$ and linear attention without a mask,
# $o_i = \phi(q_i) \cdot \sum_j \phi(k_j) v_j^\top \,/\, \phi(q_i) \cdot \sum_j \phi(k_j)$. Twice the length must cost twice
# as much, not four times. (The bracket!)
#
# <details><summary>Hint 1: which sum first?</summary>
#
# `k.mT @ v` is (d, value_dim), for any number of keys.
# </details>
# <details><summary>Hint 2: the denominator</summary>
#
# Sum the keys' features over the keys, then take the product with each query's features: (n, 1).
# </details>
# <details><summary>Hint 3: elu</summary>
#
# `F.elu(x) + {{PLUS}}` is $x + {{PLUS}}$ for positive $x$ and ${{BELOW}}$ for negative. It is always positive, so no denominator is 0.
# </details>

# %% nbgrader={"grade_id": "linear", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def features(x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
    """elu(x) + {{PLUS}}."""
    ### BEGIN SOLUTION
    return F.elu(x) + PLUS
    ### END SOLUTION


def linear_attention(
    q: Float[Tensor, "*batch queries d"], k: Float[Tensor, "*batch keys d"], v: Float[Tensor, "*batch keys value_dim"]
) -> Float[Tensor, "*batch queries value_dim"]:
    """Each query's mean of the values, with weights φ(q) · φ(k)."""
    ### BEGIN SOLUTION
    q, k = features(q), features(k)
    total = q @ k.sum(dim=-2)[..., None]                           # (*batch, queries, 1)
    return q @ (k.mT @ v) / total
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-linear", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("linear") as show:
    show(features(3 * show.randn(show.random_size(3, 6), 4)), "features")
    for shape in ((), (2,), (2, 3)):
        q, k, v = show.randn(*shape, show.random_size(2, 4), 5), show.randn(*shape, 6, 5), show.randn(*shape, 6, 3)
        show(linear_attention(3 * q, k, v), f"batch {shape}, 6 keys")
    short, long = (cost(linear_attention, *show.randn(3, n, 4)) for n in (256, 512))
    show({"outputs": [show.sketch(short.value), show.sketch(long.value)],
          "times as many operations": round(long.operations / max(short.operations, 1))},
         "256 and 512 tokens: a few sums over the outputs, and what twice the length costs")

# %% tags=["mistakes"]
def with_features(phi, attend=None):
    """Both functions, with other features or another attention."""
    def answer(q, k, v):
        q, k = phi(q), phi(k)
        return q @ (k.mT @ v) / (q @ k.sum(dim=-2)[..., None])
    return {"features": phi, "linear_attention": attend or answer}


def given(x):
    return F.elu(x) + PLUS


mistake("linear", with_features(F.elu),
        "Your features may be negative, and so may weights; a denominator can even be 0. Add {{PLUS}}.")
mistake("linear", with_features(F.relu), "That is relu. Below 0, `elu(x) + {{PLUS}}` is ${{BELOW}}$, never 0.")
mistake("linear", with_features(torch.exp), "That is $e^x$, also for positive $x$. There, `elu(x) + {{PLUS}}` is $x + {{PLUS}}$.")
if PLUS > 1:
    mistake("linear", with_features(lambda x: F.elu(x) + 1), "These are the lesson's features. Here $\\phi(x)$ is elu(x) + {{PLUS}}.")
mistake("linear", with_features(given, lambda q, k, v: given(q) @ (given(k).mT @ v)),
        "The denominator is missing: weights must sum to 1.")
mistake("linear", with_features(given, lambda q, k, v: given(q) @ (given(k).mT @ v) / given(q).sum(dim=-1, keepdim=True)),
        "You divide by the sum of the query's features. The weights are φ(q) · φ(k): sum *them* over the keys.")
mistake("linear", with_features(given, lambda q, k, v: given(q) @ (given(k).mT @ v) / k.shape[-2]),
        "You divide by the number of keys. Weights are not all 1: divide by their sum.")
mistake("linear", with_features(given, lambda q, k, v: q @ (given(k).mT @ v) / (q @ given(k).sum(dim=-2)[..., None])),
        "The queries have no features. φ is applied to both.")
mistake("linear", with_features(given, lambda q, k, v: given(q) @ (k.mT @ v) / (given(q) @ k.sum(dim=-2)[..., None])),
        "The keys have no features. φ is applied to both.")
mistake("linear", with_features(given, lambda q, k, v: q @ (k.mT @ v) / (q @ k.sum(dim=-2)[..., None])),
        "Neither queries nor keys have features here: the weights are q · k, which may be negative. Apply φ to both.")
mistake("linear", with_features(given, lambda q, k, v: given(q) @ (given(k).mT @ v) / (given(q) @ k.sum(dim=-2)[..., None])),
        "Below the fraction the keys have no features. The weights there are the same as above: φ(q) · φ(k).")


def left_bracket(q, k, v):
    weights = given(q) @ given(k).mT
    return weights / weights.sum(dim=-1, keepdim=True) @ v


mistake("linear", with_features(given, left_bracket),
        "The numbers are right, but this is quadratic: φ(q) φ(k)ᵀ has an entry for each pair, and twice the length costs four "
        "times as much. Move the bracket: φ(q) (φ(k)ᵀ v).")


def with_ones(q, k, v):
    q, k = (torch.where(x > 0, x + PLUS, x.exp() + PLUS - 1) for x in (q, k))
    sums = torch.einsum("...kf,...kv->...fv", k, F.pad(v, (0, 1), value=1.0))
    out = q @ sums
    return out[..., :-1] / out[..., -1:]


alternative("linear", with_features(lambda x: torch.where(x > 0, x + PLUS, x.exp() + PLUS - 1), with_ones))

# %% [markdown]
# ### Task 4 · Causal, in chunks   ●●●●○ · 16 minutes · 4 points
#
# The way in which libraries train linear attention. `q` and `k` have their features already; all are positive. Go through
# the sequence in chunks of `chunk` positions; the last one may be shorter. For each chunk, a query takes
#
# - from **all chunks before**: $q_i \cdot S$ and $q_i \cdot z$, with $S = \sum_j k_j v_j^\top$ and $z = \sum_j k_j$ of the
#   keys so far;
# - from **its own chunk**: the products $q_i \cdot k_j$ for $j \le i$, written out.
#
# Add the two, divide, then put the chunk's keys into $S$ and $z$. Return the outputs and the last $S$. No tensor may hold
# $n \times n$ numbers, nor a state for each position.
#
# <details><summary>Hint 1: the loop</summary>
#
# `for q_c, k_c, v_c in zip(q.split(chunk), k.split(chunk), v.split(chunk))`.
# </details>
# <details><summary>Hint 2: inside</summary>
#
# `scores = (q_c @ k_c.T).tril()`. Above: `scores @ v_c + q_c @ S`. Below: `scores.sum(-1) + q_c @ z`.
# </details>
# <details><summary>Hint 3: what is the order?</summary>
#
# First the outputs, then `S = S + k_c.T @ v_c`. The other way round the chunk would see itself twice, and its future.
# </details>

# %% nbgrader={"grade_id": "chunks", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def in_chunks(
    q: Float[Tensor, "n m"], k: Float[Tensor, "n m"], v: Float[Tensor, "n d"], chunk: int
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "m d"]]:
    """Causal linear attention of one head, and its state after the last position."""
    ### BEGIN SOLUTION
    S, z, out = torch.zeros(q.shape[1], v.shape[1]), torch.zeros(q.shape[1]), []        # (m, d), (m,)
    for q_c, k_c, v_c in zip(q.split(chunk), k.split(chunk), v.split(chunk)):
        scores = (q_c @ k_c.T).tril()                              # (chunk, chunk)
        total = scores.sum(dim=-1) + q_c @ z                       # (chunk,)
        out.append((scores @ v_c + q_c @ S) / total[:, None])
        S, z = S + k_c.T @ v_c, z + k_c.sum(dim=0)
    return torch.cat(out), S
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-chunks", "grade": true, "points": 4, "solution": false, "locked": true, "schema_version": 3}
with check("chunks") as show:
    for n, chunk in ((show.random_size(8, 9), 3), (7, 3), (12, 4), (show.random_size(3, 5), 1), (5, 8)):
        q, k, v = 0.1 + show.rand(n, 4), 0.1 + 2 * show.rand(n, 4), show.randn(n, 3)
        out, S = in_chunks(q, k, v, chunk)
        show(out, f"n = {n}, chunks of {chunk}")
        show(S, f"n = {n}, chunks of {chunk}: the state")
    short, long = (cost(in_chunks, *(0.1 + show.rand(n, 8) for _ in "qkv"), 16) for n in (256, 512))
    show({"outputs and states": [show.sketch(part) for spent in (short, long) for part in spent.value],
          "times as many operations": round(long.operations / max(short.operations, 1)),
          "no tensor is larger than n × chunk": short.largest <= 256 * 16},
         "256 and 512 positions, chunks of 16: a few sums over the results, and what they cost")

# %% tags=["mistakes"]
def chunked(inside=lambda s: s.tril(), first=False, carry=True, below=lambda scores, q, z: scores.sum(dim=-1) + q @ z,
            above=lambda scores, v, q, S: scores @ v + q @ S):
    """The loop over chunks with one part exchanged."""
    def answer(q, k, v, chunk):
        S, z, out = torch.zeros(q.shape[1], v.shape[1]), torch.zeros(q.shape[1]), []
        for q_c, k_c, v_c in zip(q.split(chunk), k.split(chunk), v.split(chunk), strict=True):
            if first:
                S, z = S + k_c.T @ v_c, z + k_c.sum(dim=0)
            scores = inside(q_c @ k_c.T)
            seen, sums = (S, z) if carry else (0 * S, 0 * z)
            out.append(above(scores, v_c, q_c, seen) / below(scores, q_c, sums)[:, None])
            if not first:
                S, z = S + k_c.T @ v_c, z + k_c.sum(dim=0)
        return torch.cat(out), S
    return answer


def all_pairs(q, k, v, chunk):
    weights = (q @ k.T).tril()
    return weights @ v / weights.sum(dim=-1, keepdim=True), k.T @ v


def all_states(q, k, v, chunk):
    S = (k[:, :, None] * v[:, None, :]).cumsum(dim=0)
    return (q[:, None] @ S)[:, 0] / (q * k.cumsum(dim=0)).sum(dim=-1, keepdim=True), S[-1]


def a_whole_first(q, k, v, chunk):
    whole = len(q) // chunk * chunk
    out, S = in_chunks(q[:whole], k[:whole], v[:whole], chunk) if whole else (v[:0], torch.zeros(q.shape[1], v.shape[1]))
    return torch.cat([out, torch.zeros(len(q) - whole, v.shape[1])]), S


mistake("chunks", chunked(inside=lambda s: s),
        "Inside a chunk each query sees all keys, also later ones: the *future* of its chunk. Keep $j \\le i$, with `tril`.")
mistake("chunks", chunked(inside=lambda s: s.tril(-1), below=lambda s, q, z: s.sum(dim=-1) + q @ z + 1e-9),
        "Off by one: no query sees its own key. The diagonal belongs to the past.")
mistake("chunks", chunked(first=True),
        "The chunk's keys go into the state before its queries have read it: they count twice, and later ones are seen. Outputs "
        "first, then the state.")
mistake("chunks", chunked(carry=False),
        "Each chunk sees itself only. Add what its queries take from the state, above and below the fraction.")
mistake("chunks", chunked(below=lambda s, q, z: s.sum(dim=-1)),
        "The denominator sums over the chunk alone. The weights of all earlier keys belong to it: `q_c @ z`.")
mistake("chunks", chunked(below=lambda s, q, z: torch.ones(len(s))), "The denominator is missing.")
mistake("chunks", chunked(below=lambda s, q, z: q @ z),
        "The denominator sums over the chunks before only. The chunk's own weights belong to it: `scores.sum(-1)`.")
mistake("chunks", chunked(below=lambda s, q, z: s.sum(dim=-2) + q @ z),
        "The chunk's weights are summed over the queries. Each query needs the sum over its *keys*: the last axis.")
mistake("chunks", chunked(above=lambda s, v, q, S: s @ v),
        "Above the fraction the state is missing: what a query takes from all chunks before is `q_c @ S`.")
mistake("chunks", chunked(above=lambda s, v, q, S: q @ S),
        "Above the fraction the chunk itself is missing: `scores @ v_c`.")
mistake("chunks", lambda q, k, v, chunk: (in_chunks(q, k, v, chunk)[0], k[-1:].T @ v[-1:]),
        "The state holds the last key only. It is the sum over *all* keys so far.")
mistake("chunks", a_whole_first, "The last positions are left out where the length is no multiple of the chunk.")
mistake("chunks", all_pairs,
        "The numbers are right, but all pairs are written out: $n \\times n$. Only those inside a chunk may be.")
mistake("chunks", all_states,
        "The numbers are right, but a state is kept for every position, $n \\times m \\times d$ numbers. One at a time is "
        "enough.")


def one_at_a_time(q, k, v, chunk):
    S, z, out = torch.zeros(q.shape[1], v.shape[1]), torch.zeros(q.shape[1]), []
    for q_t, k_t, v_t in zip(q, k, v, strict=True):
        S, z = S + torch.outer(k_t, v_t), z + k_t
        out.append(q_t @ S / (q_t @ z))
    return torch.stack(out), S


alternative("chunks", one_at_a_time)

# %% [markdown]
# ### Task 5 · What is left of a key   ●●●○○ · 8 minutes · 2 points
#
# A state that forgets: $S_t = \alpha_t S_{t-1} + k_t v_t^\top$. For the parallel form we need the matrix of what is left of
# key $j$ when query $i$ reads: $L_{ij} = \alpha_{j+1} \cdots \alpha_i$ for $j \le i$ (on the diagonal 1, a product of nothing),
# else 0. An $\alpha$ may be exactly 0: a token that wipes everything out. So don't divide, and take no logarithms.
#
# <details><summary>Hint 1: what divides?</summary>
#
# $L_{ij}$ is the product up to $i$ divided by the product up to $j$. With an α of 0 that is 0 / 0.
# </details>
# <details><summary>Hint 2: a product down a column</summary>
#
# In column $j$ the factors start below the diagonal. Make a matrix that has $\alpha_i$ there and 1 elsewhere, and take
# `cumprod(dim=0)`.
# </details>
# <details><summary>Hint 3: above the diagonal</summary>
#
# `tril()` at the end.
# </details>

# %% nbgrader={"grade_id": "left-over", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def left_over(alpha: Float[Tensor, "n"]) -> Float[Tensor, "query key"]:
    """How much of each key is left when each query reads the state."""
    ### BEGIN SOLUTION
    n = len(alpha)
    factors = torch.where(torch.ones(n, n).tril(-1).bool(), alpha[:, None], 1.0)        # (query, key)
    return factors.cumprod(dim=0).tril()
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-left-over", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("left-over") as show:
    alpha = 0.3 + 0.7 * show.rand(show.random_size(4, 7))
    show(left_over(alpha), "all larger than 0")
    alpha = 0.3 + 0.7 * show.rand(show.random_size(6, 9))
    alpha[show.random_size(2, 4)] = 0.0
    show(left_over(alpha), "one token wipes everything out")
    show(left_over(torch.ones(show.random_size(2, 12))), "nothing is forgotten")
    alpha = 0.3 + 0.7 * show.rand(show.random_size(4, 7))
    alpha[[0, -1]] = 0.0
    show([left_over(alpha), left_over(alpha[:1]), left_over(alpha[1:3])], "the first and the last token wipe out; one token; two")

# %% tags=["mistakes"]
def by_division(alpha):
    products = alpha.cumprod(0)
    return (products[:, None] / products[None, :]).tril()


def factors_of(alpha, below):
    return torch.where(torch.ones(len(alpha), len(alpha)).tril(below).bool(), alpha[:, None], 1.0)


mistake("left-over", by_division,
        "Right as long as no α is 0; then you divide 0 by 0. Multiply from each key downwards: `cumprod`.")
mistake("left-over", lambda alpha: factors_of(alpha, 0).cumprod(dim=0).tril(),
        "Off by one: $\\alpha_j$ is in the product of key $j$ itself. It fades what came *before* $j$: start with $\\alpha_{j+1}$.")
mistake("left-over", lambda alpha: factors_of(alpha, -1).cumprod(dim=0),
        "Above the diagonal there are ones: queries see the future. There it is 0.")
mistake("left-over", lambda alpha: left_over(alpha).mT, "Exchanged: a row belongs to a query, a column to a key.")
mistake("left-over", lambda alpha: factors_of(alpha, -1).tril(),
        "Only the last α has been applied. A key fades at every step since: a product.")
def below_diagonal(alpha):
    return torch.ones(len(alpha), len(alpha)).tril(-1).bool()


mistake("left-over", lambda alpha: torch.where(below_diagonal(alpha), alpha[None, :], 1.0).cumprod(dim=0).tril(),
        "Each column holds its own key's $\\alpha_j$ everywhere. In row $i$ the factor is $\\alpha_i$: `alpha[:, None]`.")
mistake("left-over", lambda alpha: factors_of(alpha, -1).cumprod(dim=1).tril(),
        "This multiplies along the rows. A key fades from query to query: *down* its column, `dim=0`.")
mistake("left-over", lambda alpha: torch.where(below_diagonal(alpha), 1.0, alpha[:, None]).cumprod(dim=0).tril(),
        "The ones and the α have changed places: the α belong *below* the diagonal.")
mistake("left-over", lambda alpha: factors_of(alpha.roll(1), -1).cumprod(dim=0).tril(),
        "Off by one: query $i$ reads after its own $\\alpha_i$ has been applied, so the product ends with $\\alpha_i$.")


def by_loops(alpha):
    n = len(alpha)
    return torch.stack([torch.stack([alpha[j + 1 : i + 1].prod() if j <= i else torch.tensor(0.0) for j in range(n)])
                        for i in range(n)])


alternative("left-over", by_loops)

# %% [markdown]
# ### Task 6 · Compressed, and causal   ●●●●○ · 14 minutes · 3 points
#
# Memory-compressed attention of one head. Each window of `factor` keys, side by side, times `weight_k`
# (factor · d rows, d columns) is one key; values likewise with `weight_v`. A query sees the windows whose last token is not later than itself. If `n` is no multiple of
# `factor`, the last tokens are in no whole window, and no query sees them; a text shorter than `factor` has no window at
# all. A query that sees no window gets zeros (not NaN). No tensor larger than $n \times n\,/$ `factor`, or than the inputs,
# please: we look at the largest one.
#
# <details><summary>Hint 1: windows</summary>
#
# Cut off the rest: `x[: n // factor * factor]`. Then `.unflatten(0, (-1, factor)).flatten(1)` is (windows, factor · d).
# </details>
# <details><summary>Hint 2: who sees what?</summary>
#
# Window $w$ ends with token `factor * w + factor - 1`.
# </details>
# <details><summary>Hint 3: a row without any</summary>
#
# softmax of a row of $-\infty$ is NaN. `nan_to_num` after the softmax, or `masked_fill` with what is not allowed.
# </details>

# %% nbgrader={"grade_id": "compressed", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def compressed(
    q: Float[Tensor, "n d"],
    k: Float[Tensor, "n d"],
    v: Float[Tensor, "n d"],
    weight_k: Float[Tensor, "wide d"],
    weight_v: Float[Tensor, "wide d"],
    factor: int,
) -> Float[Tensor, "n d"]:
    """Attention to windows that have ended."""
    ### BEGIN SOLUTION
    n, d = q.shape
    windows = n // factor
    k, v = (x[: windows * factor].reshape(windows, factor * d) @ w for x, w in ((k, weight_k), (v, weight_v)))
    ends = factor * torch.arange(windows) + factor - 1             # (windows,)
    allowed = torch.arange(n)[:, None] >= ends                     # (n, windows)
    scores = (q @ k.T / d**0.5).masked_fill(~allowed, -torch.inf)
    return scores.softmax(dim=-1).masked_fill(~allowed, 0.0) @ v
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-compressed", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("compressed") as show:
    for n, factor in ((show.random_size(3, 4) * 3, 3), (show.random_size(2, 3) * 4 + 2, 4), (5, 1), (2, 3), (4, 4)):
        q, k, v = 2 * show.randn(n, 3), show.randn(n, 3), show.randn(n, 3)
        weights = show.randn(3 * factor, 3), show.randn(3 * factor, 3)
        show(compressed(q, k, v, *weights, factor), f"n = {n}, factor {factor}")
    many = cost(compressed, *show.randn(3, 128, 2), show.randn(16, 2), show.randn(16, 2), 8)
    show([show.sketch(many.value), many.largest <= 128 * 16],
         "128 tokens, factor 8: a few sums over the outputs; and no tensor is larger than n × n / factor")

# %% tags=["mistakes"]
def compressing(end=None, w_v=lambda wk, wv: wv, rest=False, nothing=0.0, scale=lambda d, f: d, order=lambda x: x,
                apart=lambda factor: factor, sees=lambda query, end: query >= end, axis=-1):
    """Compressed attention with one part exchanged."""
    def answer(q, k, v, weight_k, weight_v, factor):
        n, d = q.shape
        if rest:
            k, v = (F.pad(x, (0, 0, 0, -n % factor)) for x in (k, v))
        windows = len(k) // factor
        k, v = (order(x[: windows * factor].unflatten(0, (windows, factor))).flatten(1) @ w
                for x, w in ((k, weight_k), (v, w_v(weight_k, weight_v))))
        last = factor - 1 if end is None else end(factor)
        ends = apart(factor) * torch.arange(windows) + last
        if rest:
            ends = ends.clamp(max=n - 1)
        allowed = sees(torch.arange(n)[:, None], ends)
        scores = (q @ k.T / scale(d, factor) ** 0.5).masked_fill(~allowed, -torch.inf)
        weights = scores.softmax(dim=axis)
        return (weights if nothing is None else weights.masked_fill(~allowed, nothing)) @ v
    return answer


def masked_keys(q, k, v, weight_k, weight_v, factor):
    n, d = q.shape
    windows = n // factor
    k, v = (x[: windows * factor].reshape(windows, factor * d) @ w for x, w in ((k, weight_k), (v, weight_v)))
    k, v = (x.repeat_interleave(factor, 0) for x in (k, v))
    allowed = torch.arange(n)[:, None] >= (torch.arange(len(k)) // factor + 1) * factor - 1
    scores = (q @ k.T / d**0.5).masked_fill(~allowed, -torch.inf)
    return scores.softmax(dim=-1).masked_fill(~allowed, 0.0) @ v


mistake("compressed", compressing(end=lambda f: 0),
        "A query sees windows that have only begun, and in them tokens of the *future*. Wait until the window's last token.")
mistake("compressed", compressing(end=lambda f: f),
        "Off by one: a window may be seen by the query at its last token; that token is no future to itself.")
mistake("compressed", compressing(apart=lambda factor: 1),
        "The windows end one token apart here. They are side by side: the next one ends `factor` tokens later.")
mistake("compressed", compressing(sees=lambda query, end: query <= end),
        "The wrong way round: a query sees the windows that are still to end. It is those that have ended.")
mistake("compressed", compressing(axis=-2),
        "This softmax runs over the queries. Each query shares out 1 among the *windows*: the last axis.")
mistake("compressed", compressing(nothing=None),
        "NaN: the first queries see no window, and softmax of nothing but $-\\infty$ is NaN. Give zeros.")
mistake("compressed", compressing(rest=True),
        "The rest is filled up with zeros and seen as a window. Tokens that make no whole window are not seen.")
mistake("compressed", compressing(w_v=lambda wk, wv: wk), "The values are compressed with the keys' weights.")
mistake("compressed", compressing(scale=lambda d, f: d * f),
        "The scores are divided by the root of a whole window's width. A compressed key is $d$ wide again.")
mistake("compressed", compressing(scale=lambda d, f: 1), "The scores are not divided by $\\sqrt d$.")
mistake("compressed", compressing(order=lambda x: x.flip(1)), "The tokens of a window are in reverse order: the first comes first.")
mistake("compressed", masked_keys,
        "The numbers are right, but you repeat each window's key for all of its tokens: $n \\times n$ scores, and nothing is "
        "saved.")


def by_convolution(q, k, v, weight_k, weight_v, factor):
    n, d = q.shape
    if n < factor:
        return torch.zeros_like(v)
    k, v = (F.conv1d(x.T[None], w.view(factor, d, d).permute(2, 1, 0), stride=factor)[0].T
            for x, w in ((k, weight_k), (v, weight_v)))
    seen = (torch.arange(n) + 1) // factor
    hidden = torch.arange(len(k)) >= seen[:, None]
    return (q @ k.T * d**-0.5).masked_fill(hidden, -torch.inf).softmax(dim=-1).nan_to_num(0.0) @ v


alternative("compressed", by_convolution)

# %% [markdown]
# ### Task 7 · Investigate: how much does a state hold?   ●●●●● · 30 minutes · 3 points
#
# In the lesson, smaller states remembered fewer guests, and of two feature maps one only learned faster. What else makes a
# state hold more? Copy `feast`, `Host`, `Use`, `train`, `linear_attention` and the lesson's
# imports into new cells below this one, where you may use all of `txlib`; write a `mechanism_of` that returns `Use(…)` for
# each of your settings, and give `train` an argument `d_model` for `Host`. (The copy of `linear_attention` replaces
# task 3's.) Vary **two** of these: the width (64, 128), the
# number of heads (1, 2, 8) at equal width, the feature map (`elu + 1`, `relu`, softmax over the features, the squares of
# all pairs of features), the number of training batches. Use 32 guests and two seeds at least.
#
# Count for each how many numbers its state has. Say in two or three sentences what helps, whether it is the *size* of
# the state that decides, and what your runs can't tell. Hand in a table of your numbers and your text. A person reads it.

# %% [markdown] nbgrader={"grade_id": "capacity", "solution": true, "grade": true, "points": 3, "locked": false, "schema_version": 3}
# <!-- BEGIN SOLUTION -->
# 32 guests, batches of 32, two seeds, right answers in percent. The state counts a column for the denominator.
#
# | features | heads | numbers in the state | right after 250 batches | after 1,000 |
# | --- | --- | --- | --- | --- |
# | elu + 1 | 1 of 64 | 4,160 | 46, 49 | 100, 100 |
# | elu + 1 | 2 of 32 | 2,112 | 39, 41 | 100, 100 |
# | elu + 1 | 8 of 8 | 576 | 20, 21 | 82, 83 |
# | relu | 1 of 64 | 4,160 | 98, 98 | 100, 100 |
# | relu | 2 of 32 | 2,112 | 96, 97 | 100, 100 |
# | relu | 8 of 8 | 576 | 58, 63 | 85, 86 |
# | softmax | 1 of 64 | 4,160 | 93, 94 | 95, 95 |
# | softmax | 2 of 32 | 2,112 | 98, 95 | 100, 100 |
# | softmax | 8 of 8 | 576 | 63, 64 | 86, 86 |
#
# Fewer heads of the same model have wider keys, and $h (d/h)^2$ numbers: a larger state, which holds more. The feature map
# decides how fast a model learns: after 250 batches relu and softmax are far ahead of elu + 1, after 1,000 hardly at all.
# Size does not decide alone: one softmax over 64 features is behind two over 32, in a state twice as large. What the runs
# can't tell: two seeds, one learning rate, one task in which names are asked for by themselves; and with eight heads all
# three may still be learning.
# <!-- END SOLUTION -->

# %% [markdown] tags=["rubric"]
# 1 point: a table of at least four settings with two seeds each, two things varied one at a time, and the size of each state,
# heads · features · (width of a value + 1). 1 point: what helps, as the table has it: at equal width, more heads make the
# state *smaller* (h · (d/h)²), and other features change at least how fast it learns. 1 point: caution: few seeds, short
# training (a loss that still falls says nothing of capacity), one task.

# %%
check.summary()
