# %% [markdown]
# # Exercise 23 · Sets
#
# Five tasks, 14 points, about 75 minutes. They belong to lesson [23 Sets](../notebooks/23_sets.ipynb). Run the cells from
# the top; fill in where it says *your turn*, then run the check below it. You may check as often as you like. Tasks 1
# to 3 are the core, about 36 minutes; the others are for those who want more.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0

# %%
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from txgrade import check

# %% [markdown]
# ### Task 1 · How far does it move?   ●●○○○ · 10 minutes · 2 points
#
# The lesson's test said *invariant*, *equivariant* or *neither*, after one shuffle. A number says more: how far is a
# function from being either? Given are `f`, a set `x` of $n$ rows, and several orders. Return two numbers, each the
# largest over **all** orders and all entries:
#
# - the invariance gap: $|f(Px) - f(x)|$;
# - the equivariance gap: $|f(Px) - P f(x)|$; infinite where $f(x)$ is not a matrix of $n$ rows.
#
# The check tries them on both sides of a cross-attention, too: shuffle those who look, or those who are looked at.
#
# <details><summary>Hint 1: what is Px?</summary>
#
# `x[order]`, and likewise for the rows of the output.
# </details>
# <details><summary>Hint 2: when is there a P f(x)?</summary>
#
# If `f(x)` has two dimensions, and its first is $n$.
# </details>
# <details><summary>Hint 3: the largest over all</summary>
#
# Collect `(a - b).abs().max().item()` for each order, then take `max`.
# </details>

# %% nbgrader={"grade_id": "gaps", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def gaps(
    f: Callable[[Float[Tensor, "n d"]], Tensor], x: Float[Tensor, "n d"], orders: list[Int[Tensor, "n"]]
) -> tuple[float, float]:
    """How far f moves at most when rows of x are shuffled: from f(x), and from f(x) shuffled alike."""
    ### BEGIN SOLUTION
    before = f(x)
    rows = before.dim() == 2 and len(before) == len(x)
    moved = [f(x[order]) for order in orders]
    invariance = max((after - before).abs().max().item() for after in moved)
    if not rows:
        return invariance, math.inf
    pairs = zip(moved, orders, strict=True)
    return invariance, max((after - before[order]).abs().max().item() for after, order in pairs)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-gaps", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("gaps", atol=1e-4) as show:
    n = show.random_size(5, 8)
    x, y, w = show.randn(n, 3), show.randn(n + 2, 3), show.randn(3, 3)
    orders = [show.permutation(n) for _ in range(4)]
    places = torch.arange(1.0, n + 1)[:, None]
    show([gaps(lambda x: x @ w, x, orders), gaps(lambda x: (x * x).sum(dim=0), x, orders)], "each row alone; a sum")
    show(gaps(lambda x: x * places, x, orders), "rows times their places")
    show(gaps(lambda x: x.cumsum(dim=0), x, orders), "running sums")
    show([gaps(lambda x: (x @ y.T).softmax(dim=-1) @ y, x, orders), gaps(lambda x: x[-1] @ w, x, orders)],
         "those who look; the last row")
    turned = [show.permutation(n + 2) for _ in range(3)]
    show([gaps(lambda y: (x @ y.T).softmax(dim=-1) @ y, y, turned), gaps(lambda y: y.T @ y @ w, y, turned)],
         "those who are looked at; products of columns")
    show([gaps(lambda x: (x * places) @ w[0], x, orders), gaps(lambda x: (x * places).sum(), x, orders),
          gaps(lambda x: (x * places)[:, None], x, orders)], "a number for each row; a single number; a matrix for each row")
    show([gaps(lambda x: x * places, x, orders[:1]), gaps(lambda x: x - places, x, [torch.arange(n), orders[1]])],
         "a single order; two orders, of which one leaves all in place")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")
for difference in ("after - before → before - after", "after - before[order] → before[order] - after"):
    equivalent("gaps", difference, "The sign goes: only the size of a difference counts.")


def measuring(together=max, take=lambda before, order: before[order], alone=math.inf, distance=lambda d: d.abs().max(),
              chosen=lambda orders: orders, from_what=lambda before: before, rows=lambda before, x: before.dim() == 2 and len(before) == len(x)):
    """The two gaps with one part exchanged."""
    def answer(f, x, orders):
        before, orders = f(x), chosen(orders)
        moved = [f(x[order]) for order in orders]
        invariance = together([distance(after - from_what(before)).item() for after in moved])
        if not rows(before, x):
            return invariance, alone
        return invariance, together([distance(after - take(before, order)).item()
                                     for after, order in zip(moved, orders, strict=True)])
    return answer


mistake("gaps", measuring(chosen=lambda orders: orders[:1]),
        "Only the first order is tried. One shuffle may leave in place just what matters: take the largest over all.")
mistake("gaps", measuring(together=lambda values: sum(values) / len(values)),
        "You average over the orders. One order that moves the output is enough to break the promise: take the largest.")
mistake("gaps", measuring(take=lambda before, order: before[order.argsort()]),
        "The outputs are shuffled the other way round. Row $i$ of `x[order]` is row `order[i]` of `x`, so compare with `before[order]`.")
mistake("gaps", measuring(take=lambda before, order: before),
        "The second gap is the first one once more: $P f(x)$ is the output of the *unshuffled* set, then shuffled.")
for wrong in (measuring(from_what=lambda before: 0 * before), measuring(take=lambda before, order: 0 * before)):
    mistake("gaps", wrong, "That is the size of the output itself. A gap is a *difference*: subtract the output of the unshuffled set.")
mistake("gaps", measuring(rows=lambda before, x: before.dim() > 0 and len(before) == len(x)),
        "An output with $n$ entries need not be a matrix. Only for one of two dimensions is the second gap asked for.")
mistake("gaps", measuring(alone=0.0),
        "An output without a row for each element can't be equivariant. Its gap is infinite, not 0.")
mistake("gaps", measuring(distance=lambda d: d.max()),
        "The sign is lost: without `abs`, an output that only falls seems not to move.")
mistake("gaps", measuring(distance=lambda d: d.abs().mean()),
        "You average over the entries. The largest one is asked for.")


def one_by_one(f, x, orders):
    invariance, equivariance, before = 0.0, 0.0, f(x)
    for order in orders:
        after = f(x.index_select(0, order))
        invariance = max(invariance, float(torch.linalg.vector_norm(after - before, torch.inf)))
        if before.ndim == 2 and before.shape[0] == x.shape[0]:
            equivariance = max(equivariance, float(torch.linalg.vector_norm(after - before[order], torch.inf)))
        else:
            equivariance = float("inf")
    return invariance, equivariance


alternative("gaps", one_by_one)

# %% [markdown]
# ### Task 2 · Pool sets of different sizes   ●●●○○ · 14 minutes · 3 points
#
# A batch holds sets of different sizes, filled up to the largest: of set $b$ the first `sizes[b]` rows are elements,
# and **whatever stands in the others must change nothing**, not even infinity or NaN. Pool each with $k$ seeds and
# several heads: queries are the seeds as they are, keys $x W_K$, values $x W_V$. Each head takes its part of the
# width $d$, in order, and divides its scores by the root of *its own* width. Add what the heads find, side by side,
# to the seeds. An empty set leaves the seeds as they are. (No `scaled_dot_product_attention`, please.)
#
# <details><summary>Hint 1: padding first</summary>
#
# `torch.arange(n) < sizes[:, None]` says which rows are real. Set the others to 0 before any product: zero times NaN
# is NaN.
# </details>
# <details><summary>Hint 2: and again</summary>
#
# A row of zeros has a score of 0 and would get its share. Scores of padding must be $-\infty$ before the softmax.
# </details>
# <details><summary>Hint 3: the empty set</summary>
#
# A softmax over nothing but $-\infty$ is NaN. Put zeros in place of the weights of padding, after the softmax.
# </details>

# %% nbgrader={"grade_id": "pool", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def pool(
    x: Float[Tensor, "batch n d"],
    sizes: Int[Tensor, "batch"],
    seeds: Float[Tensor, "k d"],
    w_k: Float[Tensor, "d d"],
    w_v: Float[Tensor, "d d"],
    heads: int,
) -> Float[Tensor, "batch k d"]:
    """The seeds, plus what each finds in the real elements of each set."""
    ### BEGIN SOLUTION
    padding = torch.arange(x.shape[1]) >= sizes[:, None]           # (batch, n)
    x = x.masked_fill(padding[..., None], 0.0)
    q, k, v = (each.unflatten(-1, (heads, -1)).transpose(-2, -3) for each in (seeds, x @ w_k, x @ w_v))
    scores = q @ k.mT / q.shape[-1] ** 0.5                         # (batch, heads, k, n)
    hidden = padding[:, None, None]                                # (batch, 1, 1, n)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1).masked_fill(hidden, 0.0)
    return seeds + (weights @ v).transpose(1, 2).flatten(start_dim=2)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-pool", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("pool") as show:
    for heads in (1, 2, 3):
        n, d, k = show.random_size(4, 6), 6, show.random_size(1, 3)
        weights = show.randn(k, d), show.randn(d, d), show.randn(d, d)
        show(pool(show.randn(2, n, d), torch.tensor([n, n]), *weights, heads), f"full sets, {heads} heads")
    n, k = show.random_size(5, 7), show.random_size(2, 3)
    x, weights = show.randn(3, n, 4), (show.randn(k, 4), show.randn(4, 4), show.randn(4, 4))
    show(pool(x, torch.tensor([n, 2, 1]), *weights, 2), "sets of different sizes")
    x[1, 2:], x[2, 1:] = torch.inf, torch.nan
    show(pool(x, torch.tensor([n, 2, 1]), *weights, 2), "the same, and other things in the padding")
    show(pool(x, torch.tensor([n, 2, 0]), *weights, 2), "one set is empty")
    show(pool(show.randn(2, 1, 4), torch.tensor([1, 0]), *weights, 4), "sets of one and of none, heads one number wide")
    show(pool(show.randn(4, 4, 4), torch.tensor([4, 3, 1, 2]), show.randn(4, 4), *weights[1:], 2), "as many sets as seeds, elements and entries")

# %% tags=["mistakes"]
forbid("pool", ("scaled_dot_product_attention", "multi_head_attention_forward", "torch.nn.MultiheadAttention"), "attention")


def pooling(clean=True, hide=True, after=True, width=None, residual=True,
            split=lambda each, heads: each.unflatten(-1, (heads, -1)).transpose(-2, -3),
            join=lambda out: out.transpose(1, 2).flatten(start_dim=2), empty=lambda place, sizes: place >= sizes, key=True, value=True,
            root=lambda q: q.shape[-1], dim=-1):
    """Masked pooling with one part exchanged."""
    def answer(x, sizes, seeds, w_k, w_v, heads):
        padding = empty(torch.arange(x.shape[1]), sizes[:, None])
        if clean:
            x = x.masked_fill(padding[..., None], 0.0)
        q, k, v = (split(each, heads) for each in (seeds, x @ w_k if key else x, x @ w_v if value else x))
        scores = q @ k.mT / (root(q) if width is None else width(seeds.shape[-1], heads)) ** 0.5
        hidden = padding[:, None, None]
        weights = (scores.masked_fill(hidden, -torch.inf) if hide else scores).softmax(dim=dim)
        weights = weights.masked_fill(hidden, 0.0) if after else weights
        return (seeds if residual else 0) + join(weights @ v)
    return answer


for fill in ("x.masked_fill(padding[..., None], 0.0) → x.masked_fill(padding[..., None], 1.0)",
             "scores.masked_fill(hidden, -torch.inf).softmax(dim=-1).masked_fill(hidden, 0.0) → "
             "scores.masked_fill(hidden, -torch.inf).softmax(dim=-1).masked_fill(hidden, 1.0)"):
    equivalent("pool", fill, "Padding has values of 0 *and* weights of 0: one of the two is enough, if the other is finite.")

for empty in (lambda place, sizes: place < sizes, lambda place, sizes: place <= sizes):
    mistake("pool", pooling(empty=empty), "The mask is inverted: the first `sizes[b]` rows are the elements, and what comes after them is padding.")
mistake("pool", pooling(key=False), "The keys are not projected: they are $x W_K$.")
mistake("pool", pooling(value=False), "The values are not projected: they are $x W_V$.")
for root in (lambda q: q.shape[-2], lambda q: q.shape[0]):
    mistake("pool", pooling(root=root), "You divide by the root of another size. It is a head's own width: the last axis of its queries.")
for dim in (-2, 0):
    mistake("pool", pooling(dim=dim), "The softmax runs over the wrong axis. Each seed's weights add up to 1 over the *elements*, the last axis.")
mistake("pool", lambda x, sizes, seeds, *weights: seeds.expand(len(x), -1, -1), "The sets are not looked at: add what the heads find in them to the seeds.")
mistake("pool", pooling(clean=False),
        "Infinity or NaN in the padding comes through: zero times NaN is NaN. Clean the padding before any product, with `masked_fill`.")
mistake("pool", pooling(hide=False),
        "Padding takes its share: a row of zeros has a score of 0, and softmax gives it a weight. To mask the weights afterwards is "
        "too late, as those of the real elements then sum to less than 1. Scores of padding must be $-\\infty$.")
mistake("pool", pooling(after=False),
        "An empty set gives NaN: softmax of nothing but $-\\infty$. It has to leave the seeds as they are.")
mistake("pool", pooling(width=lambda d, heads: d),
        "The scores are divided by the root of the whole width. Here each head divides by the root of its own.")
mistake("pool", pooling(width=lambda d, heads: 1), "The scores are not divided by the root of the head's width.")
mistake("pool", pooling(residual=False), "The seeds themselves are missing: what the heads find is *added* to them.")
mistake("pool", pooling(join=lambda out: out.flatten(start_dim=2).unflatten(-1, (out.shape[2], -1))),
        "The heads are put together in the wrong order: move the head axis beside the features before you flatten.")


def set_by_set(x, sizes, seeds, w_k, w_v, heads):
    pooled = []
    for each, size in zip(x, sizes.tolist(), strict=True):
        parts = []
        for q, k, v in zip(*(t.chunk(heads, dim=-1) for t in (seeds, each[:size] @ w_k, each[:size] @ w_v)), strict=True):
            parts.append(torch.softmax(q @ k.T / math.sqrt(q.shape[1]), dim=1) @ v)
        pooled.append(seeds + torch.cat(parts, dim=1))
    return torch.stack(pooled)


alternative("pool", set_by_set)

# %% tags=["variant"]
from txgrade import variant

NOBODY, SHARE = variant((0, "1"), (1, "e"), (2, "e^2"), (3, "e^3"))  # of task 3: nobody's score, and e to its power

# %% [markdown]
# ### Task 3 · Attention that can count   ●●●○○ · 12 minutes · 3 points
#
# Softmax weights sum to one, so a pool by attention sees proportions, and can't count. One small change fixes it.
# Let there always be one more element, *nobody*, with the score {{NOBODY}} and the value 0:
#
# $$w_i = \frac{e^{s_i}}{{{SHARE}} + \sum_j e^{s_j}} \qquad \text{pooled} = \sum_i w_i v_i$$
#
# Write it for scores of any size, $\pm 1000$ too (no NaN), and for sets that are empty ($n = 0$: zeros come out).
# Then say how it counts: if all $n$ values are 1 and all scores are the same $s$, the result is
# $p = n e^s / ({{SHARE}} + n e^s)$. Given $p$ and $s$, return $n$.
#
# <details><summary>Hint 1: nobody is an element</summary>
#
# Put a column with nobody's score beside the others (`F.pad(scores, (0, 1), value={{NOBODY}})`), take torch's softmax,
# leave the last column out.
# </details>
# <details><summary>Hint 2: why not exp?</summary>
#
# $e^{1000}$ is infinite in float32, and infinity divided by infinity is NaN. torch's softmax subtracts the largest score
# first.
# </details>
# <details><summary>Hint 3: back from p</summary>
#
# Solve $p ({{SHARE}} + n e^s) = n e^s$ for $n$.
# </details>

# %% nbgrader={"grade_id": "nobody", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def pool_with_nobody(
    scores: Float[Tensor, "*batch n"], values: Float[Tensor, "*batch n d"]
) -> Float[Tensor, "*batch d"]:
    """The values, weighted by a softmax over the elements and nobody."""
    ### BEGIN SOLUTION
    weights = F.pad(scores, (0, 1), value=NOBODY).softmax(dim=-1)[..., :-1]        # (*batch, n)
    return (weights[..., None, :] @ values)[..., 0, :]
    ### END SOLUTION


def how_many(p: float, s: float) -> float:
    """The number of elements, each of score s and value 1, that pool to p."""
    ### BEGIN SOLUTION
    return p / (1 - p) * math.exp(NOBODY - s)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-nobody", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("nobody", rtol=1e-3) as show:
    for n in (show.random_size(2, 4), show.random_size(5, 9)):
        show(pool_with_nobody(2 * show.randn(n), show.randn(n, 3)), f"{n} elements", points=1)
    large = torch.tensor([[1000.0, 999.0, -5.0], [-1000.0, -1.0, 2.0]])
    show(pool_with_nobody(large, show.randn(2, 3, show.random_size(2, 4))), "scores of 1000, and a batch", points=1)
    show([pool_with_nobody(torch.zeros(0), torch.zeros(0, 3)), pool_with_nobody(torch.zeros(2, 0), torch.zeros(2, 0, 3)),
          pool_with_nobody(show.randn(1) - 3, show.randn(1, 2))], "an empty set; two of them; a single element", points=1)
    show(pool_with_nobody(show.randn(3, 3), show.randn(3, 3, 3)), "as many sets as elements", points=1)
    p, s = 0.1 + 0.8 * show.rand(1).item(), show.randn(1).item()
    show([how_many(p, s), how_many(p, 0.0)], f"how many pool to {p:.2f} at a score of {s:.2f}? And at a score of 0?", points=2)

# %% tags=["mistakes"]
def with_nobody(weigh=None, count=None):
    """Both functions, with other weights or another way back."""
    def answer(scores, values):
        return (weigh(scores)[..., None, :] @ values)[..., 0, :]
    return {"pool_with_nobody": answer if weigh else pool_with_nobody, "how_many": count or how_many}


def right_weights(scores):
    return F.pad(scores, (0, 1), value=NOBODY).softmax(dim=-1)[..., :-1]


mistake("nobody", with_nobody(lambda s: s.softmax(dim=-1)),
        "That is the ordinary softmax: its weights add up to 1, however many there are. Nobody takes a share, too.")
mistake("nobody", with_nobody(lambda s: s.exp() / (math.exp(NOBODY) + s.exp().sum(dim=-1, keepdim=True))),
        "Right on paper, NaN in float32: $e^{1000}$ is infinite. Let torch's softmax do it, with one more score of {{NOBODY}}.")
mistake("nobody", with_nobody(lambda s: torch.sigmoid(s - NOBODY)),
        "That is a sigmoid of each score. Here all elements share *one* denominator: ${{SHARE}} + \\sum_j e^{s_j}$.")
mistake("nobody", with_nobody(lambda s: F.pad(s, (0, 1), value=NOBODY + 1).softmax(dim=-1)[..., :-1]),
        "Nobody's score is {{NOBODY + 1}} here. It should be {{NOBODY}}, so that ${{SHARE}}$ stands in the denominator.")
if NOBODY:
    mistake("nobody", with_nobody(lambda s: F.pad(s, (0, 1)).softmax(dim=-1)[..., :-1]),
            "Nobody's score is 0 here. It should be {{NOBODY}}, so that ${{SHARE}}$ stands in the denominator.")
    mistake("nobody", with_nobody(count=lambda p, s: p / (1 - p) * math.exp(-s)),
            "The way back takes nobody's part for 1. It is ${{SHARE}}$.")
mistake("nobody", with_nobody(lambda s: F.pad(s, (1, 0), value=NOBODY).softmax(dim=-1)[..., :-1]),
        "Off by one: nobody stands first, but the *last* weight is left out. Every element gets its neighbour's weight.")
mistake("nobody", with_nobody(lambda s: s.exp() / (len(s) * math.exp(NOBODY) + s.exp().sum(dim=-1, keepdim=True)) if s.dim() == 1 and len(s)
                              and s.abs().max() < 80 else right_weights(s)),
        "You add ${{SHARE}}$ for each element. There is one nobody in all.")
if not NOBODY:
    equivalent("nobody", "F.pad(scores, (0, 1), value=NOBODY) → F.pad(scores, (0, 1))", "Nobody's score is 0 here, as the padding is by default.")
    equivalent("nobody", "NOBODY - s → -s", "Nobody's score is 0 here.")
equivalent("nobody", "(weights[..., None, :] @ values)[..., 0, :] → (weights[..., None, :] @ values)[..., -1, :]",
           "The product has a single row for each set.")

mistake("nobody", with_nobody(lambda s: F.pad(s, (0, 1), value=NOBODY).softmax(dim=0)[..., :-1]),
        "The softmax runs over the batch. Each set's elements share with nobody: the last axis.")
for count in (lambda p, s: p * math.exp(NOBODY - s), lambda p, s: math.exp(NOBODY - s)):
    mistake("nobody", with_nobody(count=count), "The way back misses a part: from $p ({{SHARE}} + n e^s) = n e^s$ comes $p / (1 - p)$.")
mistake("nobody", with_nobody(count=lambda p, s: p / (1 - p) * math.exp(NOBODY)),
        "The way back forgets the score $s$: each element counts $e^s$, so divide by it.")
mistake("nobody", with_nobody(count=lambda p, s: p / (1 - p) * math.exp(NOBODY + s)), "The way back multiplies by $e^s$, where it should divide.")
mistake("nobody", with_nobody(count=lambda p, s: (1 - p) / p * math.exp(NOBODY - s)),
        "The fraction is upside down: solve $p ({{SHARE}} + n e^s) = n e^s$ once more.")


def by_logsumexp(scores, values):
    total = torch.logsumexp(torch.cat([scores, torch.full_like(scores.sum(-1, keepdim=True), NOBODY)], dim=-1), dim=-1, keepdim=True)
    return torch.einsum("...n,...nd->...d", torch.exp(scores - total), values)


alternative("nobody", {"pool_with_nobody": by_logsumexp, "how_many": lambda p, s: p * math.exp(NOBODY) / (math.exp(s) - p * math.exp(s))})

# %% [markdown]
# ### Task 4 · How likely? Clouds of any shape   ●●●●○ · 14 minutes · 3 points
#
# The lesson's clouds were stretched along the axes alone. Let cloud $j$ have a full covariance
# $\Sigma_j = L_j L_j^\top$, given by the lower triangle $L_j$ with a positive diagonal, in any dimension $d$. Its
# log-density is
#
# $$\log \mathcal N(x) = -\tfrac12 \big\lVert L^{-1} (x - \mu) \big\rVert^2 - \sum_a \log L_{aa} - \tfrac d2 \log 2\pi$$
#
# Shares are given as logits, $\pi = \text{softmax}(\text{logits})$. Return $\log \sum_j \pi_j \mathcal N_j(x)$ for
# each point, also where every density is 0 in float32. (Without `torch.distributions`.)
#
# <details><summary>Hint 1: the inverse of a triangle</summary>
#
# `torch.linalg.solve_triangular(L, away.mT, upper=False)` solves $L z = $ away for all points: `away.mT` is (k, d,
# points).
# </details>
# <details><summary>Hint 2: shares</summary>
#
# `logits.log_softmax(dim=-1)`. They add up to 1; the logits don't.
# </details>
# <details><summary>Hint 3: the sum over clouds</summary>
#
# `torch.logsumexp` along the axis of the clouds, never `exp`, `sum`, `log`.
# </details>

# %% nbgrader={"grade_id": "likely", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def log_likelihood(
    x: Float[Tensor, "points d"],
    logits: Float[Tensor, "k"],
    mean: Float[Tensor, "k d"],
    L: Float[Tensor, "k d d"],
) -> Float[Tensor, "points"]:
    """The log of the mixture's density at each point."""
    ### BEGIN SOLUTION
    away = x - mean[:, None]                                       # (k, points, d)
    z = torch.linalg.solve_triangular(L, away.mT, upper=False)     # (k, d, points)
    size = L.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)          # (k,)
    density = -z.square().sum(dim=1) / 2 - size[:, None] - x.shape[-1] / 2 * math.log(2 * math.pi)
    return (logits.log_softmax(dim=-1)[:, None] + density).logsumexp(dim=0)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-likely", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("likely", rtol=1e-3, atol=1e-3) as show:
    def mixture(k, d):
        L = 0.3 * show.randn(k, d, d).tril(-1) + torch.diag_embed(0.5 + show.rand(k, d))
        return show.randn(k), 2 * show.randn(k, d), L


    for k, d in ((1, 2), (show.random_size(2, 4), 2), (3, show.random_size(3, 5)), (2, 1)):
        show(log_likelihood(2 * show.randn(show.random_size(3, 6), d), *mixture(k, d)), f"{k} clouds in {d} dimensions")
    show(log_likelihood(show.randn(3, 3), *mixture(3, 3)), "three points, three clouds, three dimensions")
    far = torch.tensor([[60.0, -80.0]]) + show.randn(show.random_size(2, 4), 2)
    show(log_likelihood(far, *mixture(3, 2)), "far from all clouds")

# %% tags=["mistakes"]
forbid("likely", "torch.distributions")


def likelihood(shares=lambda logits: logits.log_softmax(dim=-1), solve=lambda L, y: torch.linalg.solve_triangular(L, y, upper=False),
               size=lambda L: L.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1), constant=lambda d: d / 2 * math.log(2 * math.pi),
               together=lambda each: each.logsumexp(dim=0), half=2, middle=lambda mean: mean):
    """The mixture's log-density with one part exchanged."""
    def answer(x, logits, mean, L):
        z = solve(L, (x - middle(mean)[:, None]).mT)
        density = -z.square().sum(dim=1) / half - size(L)[:, None] - constant(x.shape[-1])
        return together(shares(logits)[:, None] + density)
    return answer


mistake("likely", likelihood(together=lambda each: each.exp().sum(dim=0).log()),
        "Far from all clouds every density is 0 in float32, and its logarithm $-\\infty$. Stay in the logarithm: `logsumexp`.")
equivalent("likely", "x - mean[:, None] → mean[:, None] - x", "The distance is squared.")
equivalent("likely", "logits.log_softmax(dim=-1) → logits.log_softmax(dim=0)", "There is one axis.")

mistake("likely", likelihood(middle=lambda mean: 0 * mean), "The distance is that from the origin: subtract the cloud's mean.")
mistake("likely", likelihood(shares=lambda logits: 0 * logits), "The clouds' shares are missing: add `logits.log_softmax(dim=-1)`.")
for constant in (lambda d: 0, lambda d: d / 2, lambda d: d / 2 * math.log(2), lambda d: d / 2 * math.log(math.pi)):
    mistake("likely", likelihood(constant=constant), "The constant is not $\\tfrac d2 \\log 2\\pi$.")
mistake("likely", likelihood(together=lambda each: each.logsumexp(dim=1)),
        "You add up over the points. Each point has a density of its own, to which all clouds add: the first axis.")
mistake("likely", likelihood(shares=lambda logits: logits),
        "The logits are used as log-shares. They don't add up to 1: take `log_softmax`.")
mistake("likely", likelihood(shares=lambda logits: logits.softmax(dim=-1)),
        "A share is added to a log-density. Add its *logarithm*: `log_softmax`.")
mistake("likely", likelihood(size=lambda L: 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)),
        "The size counts twice: $\\tfrac12 \\log \\det \\Sigma$ is the sum of $\\log L_{aa}$, once.")
mistake("likely", likelihood(size=lambda L: torch.zeros(len(L))),
        "The size of a cloud is missing. A wide cloud has a low density: subtract $\\sum_a \\log L_{aa}$.")
mistake("likely", likelihood(constant=lambda d: math.log(2 * math.pi)),
        "The constant is that of two dimensions. In $d$ of them it is $\\tfrac d2 \\log 2\\pi$.")
mistake("likely", likelihood(solve=lambda L, y: L @ y),
        "You multiply by $L$ where you should divide: a wide cloud brings its points *nearer*. Solve $L z = x - \\mu$.")
mistake("likely", likelihood(solve=lambda L, y: torch.linalg.solve_triangular(L.mT, y, upper=True)),
        "That solves with $L^\\top$. $\\Sigma = L L^\\top$, so it is $L^{-1}$ that makes the cloud round.")
mistake("likely", likelihood(half=1), "The square of the distance is not halved.")
mistake("likely", likelihood(together=lambda each: each.amax(dim=0)),
        "You take the likeliest cloud alone. All of them add to the density of a point.")


def by_inverse(x, logits, mean, L):
    precision = torch.linalg.inv((L @ L.mT).double())
    away = (x[:, None] - mean).double()                            # (points, k, d)
    square = torch.einsum("pka,kab,pkb->pk", away, precision, away)
    each = -square / 2 - torch.logdet((L @ L.mT).double()) / 2 - 0.5 * x.shape[1] * math.log(2 * math.pi)
    return torch.logsumexp(each + torch.log_softmax(logits.double(), -1), dim=-1).float()


alternative("likely", by_inverse)

# %% [markdown]
# ### Task 5 · Investigate: which pool goes beyond its training?   ●●●●● · 25 minutes · 3 points
#
# In the lesson the sum was lost on sets larger than those in training, and the mean was not lost, but not good. Is
# the sum a bad pool, then? It depends on what is asked. Copy `fit`, `Pool`, `deep_sets`, `numbers`, `MAB`, `PMA` and
# the lesson's imports into new cells below this one, where you may use all of `txlib`. Take **two** questions
# of your own about a set of numbers between 0 and 1, for example: how many are there? How many are above ½? What is
# their average? How far apart are the least and the greatest? Train on sizes 1 to 10 with the pools mean, sum, max,
# and PMA (`nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 64), PMA(64), …)`); add task 3's nobody if you
# like. Use two seeds at least. Test on 5, 10, 20 and 50. A run takes a second or two.
#
# Say in two or three sentences which pool goes beyond its training for which question and why, and what your runs
# can't tell. Hand in a table of your numbers and your text. A person reads it.

# %% [markdown] nbgrader={"grade_id": "beyond", "solution": true, "grade": true, "points": 3, "locked": false, "schema_version": 3}
# <!-- BEGIN SOLUTION -->
# How many are above ½ (in tens), and how far apart are the least and the greatest? Mean error in hundredths, 600
# steps, seeds 0 and 1:
#
# | question | pool | 5 | 10 | 20 | 50 |
# | --- | --- | --- | --- | --- | --- |
# | above ½ | mean | 7, 6 | 20, 20 | 67, 69 | 219, 218 |
# | above ½ | sum | 1, 2 | 2, 3 | 4, 4 | 6, 7 |
# | above ½ | max | 9, 10 | 17, 17 | 61, 62 | 212, 210 |
# | above ½ | PMA | 5, 5 | 26, 24 | 75, 73 | 228, 222 |
# | apart | mean | 11, 10 | 9, 10 | 15, 18 | 21, 23 |
# | apart | sum | 11, 14 | 13, 20 | 75, 99 | 277, 358 |
# | apart | max | 0.1, 0.2 | 0.1, 0.1 | 0.1, 0.1 | 0.1, 0.1 |
# | apart | PMA | 2, 1 | 4, 2 | 8, 5 | 11, 8 |
#
# The sum, which was lost on the largest number, is the only pool that goes on counting: with 50 numbers it is off by
# less than one. There the other three can't know how many there are, and are off by 20. For extremes it is the
# maximum (of $\phi(x)$ and of its negative). A pool goes beyond its training where the answer is its own kind of
# summary, so that $\rho$ only passes it on; attention lies between and gets slowly worse. What the runs can't tell:
# two seeds, one width and length of training, numbers from one distribution; and whether $\rho$ would stay a line on
# still larger sets.
# <!-- END SOLUTION -->

# %% [markdown] tags=["rubric"]
# 1 point: a table of two questions, at least three pools with two seeds each, and sizes both seen and unseen. 1
# point: the finding as the table has it, with a reason: a pool goes beyond its training where the answer is its own
# kind of summary (sum: counts, as long as ρ stays a line; mean and attention: proportions and averages; max:
# extremes), because then ρ gets no input of a size that it has never seen. 1 point: caution: few seeds, one range of
# sizes, one width; that ρ may bend outside; an error on unseen sizes says nothing about longer training.

# %%
check.summary()
