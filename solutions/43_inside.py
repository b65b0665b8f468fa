# %% [markdown]
# # Exercise 43 · Looking inside
#
# Six tasks, 16 points, about 75 minutes. They belong to lesson [43 Looking inside](../notebooks/43_inside.ipynb).
# Tasks 1 to 3 are the *core*, about 30 minutes; tasks 4 to 6 are *more*. Run the cells from the top; fill in where it says
# *your turn*, then run the check below it. You may check as often as you like.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0

# %%
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from txgrade import Inputs, check

# %% [markdown]
# ### Task 1 · What each head adds to a logit   ●●○○○ · 8 minutes · 2 points
#
# `heads` holds what each head of a layer hands to the output matrix $W_O$, of shape $(d, \text{heads} \cdot m)$. As in
# `nn.Linear`, the layer adds `concatenated @ output.T` to the stream, where head $i$ owns the $m$ columns from $i \cdot m$.
# `row` is a token's row of the matrix that makes logits. Return how much each head adds to that token's logit, at each
# position. (There is no norm in between.)
#
# <details><summary>Hint 1: one head</summary>
#
# `heads[i] @ output[:, i * m : (i + 1) * m].T` is what head $i$ adds to the stream: $(n, d)$.
# </details>
# <details><summary>Hint 2: a logit</summary>
#
# The dot product of the stream with `row`.
# </details>

# %% nbgrader={"grade_id": "head-shares", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def head_shares(
    heads: Float[Tensor, "heads n m"], output: Float[Tensor, "d heads*m"], row: Float[Tensor, "d"]
) -> Float[Tensor, "heads n"]:
    """What each head adds to the logit at each position."""
    ### BEGIN SOLUTION
    count, _, m = heads.shape
    shares = []
    for i in range(count):
        adds = heads[i] @ output[:, i * m : (i + 1) * m].T
        shares.append(adds @ row)
    return torch.stack(shares)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-head-shares", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("head-shares") as show:
    for count, n, m, d in ((3, show.random_size(4, 6), 2, 5), (2, 3, 2, 4), (show.random_size(2, 4), 3, 3, 7), (1, 2, 4, 3)):
        show(head_shares(show.randn(count, n, m), show.randn(d, count * m), show.randn(d)), f"{count} heads, {n} tokens")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, measured, mistake

forbid("*", "txlib")


def interleaved(heads, output, row):
    count, _, m = heads.shape
    return torch.stack([heads[i] @ output[:, i::count].T @ row for i in range(count)])


def by_rows(heads, output, row):
    count, _, m = heads.shape
    columns = (output.T @ row).view(m, count).T
    return torch.einsum("hnm,hm->hn", heads, columns)


mistake("head-shares", lambda heads, output, row: head_shares(heads, output, row).sum(dim=0),
        "That is the share of the whole layer. Keep the heads apart.")
mistake("head-shares", lambda heads, output, row: head_shares(heads, output, row).T,
        "The axes are swapped: a row per head, a column per position.")
mistake("head-shares", lambda heads, output, row: head_shares(heads, output, row)[:, -1:].expand(-1, heads.shape[1]).clone(),
        "This is the last position's share, everywhere. Each position has its own.")
mistake("head-shares", interleaved, "Head $i$ owns *neighboring* columns, from $i \\cdot m$ to $(i + 1) \\cdot m$; you take every so many.")
mistake("head-shares", lambda heads, output, row: head_shares(heads.flip(0), output, row),
        "The heads meet each other's columns: the first head owns the first ones.")
mistake("head-shares", lambda heads, output, row: head_shares(heads, output, row).softmax(dim=0),
        "A share of a logit is a plain number, also negative. No softmax.")
alternative("head-shares", lambda heads, output, row: torch.einsum(
    "hnm,hm->hn", heads, (output.T @ row).view(heads.shape[0], -1)))

# %% [markdown]
# ### Task 2 · An induction score   ●●●○○ · 12 minutes · 3 points
#
# `weights` are the weights of attention of one layer for one text. A key *counts* for a query if the symbol just before
# the key is the query's symbol, and that earlier copy stands before the query. (The key may be the query itself, if two
# equal symbols are neighbors.) Add up the weights on the keys that count, for each query; return each head's mean over the
# queries that have an earlier copy. A text without any repetition scores 0.
#
# For the text 7 3 5 7, only the last query has an earlier copy, at position 0, so the key at position 1 counts.
#
# <details><summary>Hint 1: the symbol before each key</summary>
#
# `ids[:-1]` are the symbols before keys 1, 2, …; key 0 has none before it.
# </details>
# <details><summary>Hint 2: a mask</summary>
#
# `ids[:, None] == before[None, :]` is true where key $j$ counts for query $i$, if it isn't in the future: $j \le i$.
# </details>

# %% nbgrader={"grade_id": "induction-score", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def induction_score(weights: Float[Tensor, "heads n n"], ids: Int[Tensor, "n"]) -> Float[Tensor, "heads"]:
    """How much each head looks at what came after an earlier copy."""
    ### BEGIN SOLUTION
    n = len(ids)
    counts = torch.zeros(n, n).bool()
    counts[:, 1:] = ids[:, None] == ids[None, :-1]
    counts = counts & torch.ones(n, n).tril().bool()
    queries = counts.any(dim=1)
    if not queries.any():
        return torch.zeros(len(weights))
    return (weights * counts).sum(dim=-1)[:, queries].mean(dim=-1)
    ### END SOLUTION

# %%
def some_weights(show: Inputs, heads: int, n: int) -> Float[Tensor, "heads n n"]:
    """Random weights of attention that look back only."""
    return (2 * show.randn(heads, n, n)).masked_fill(~torch.ones(n, n).tril().bool(), float("-inf")).softmax(dim=-1)

# %% nbgrader={"grade_id": "check-induction-score", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("induction-score") as show:
    for heads, n, kinds in ((3, show.random_size(9, 12), 4), (2, show.random_size(6, 8), 5), (2, 10, 2)):
        show(induction_score(some_weights(show, heads, n), show.randint(0, kinds, n)), f"{n} symbols of {kinds} kinds")
    passage = show.permutation(6)
    show(induction_score(some_weights(show, 3, 12), passage.repeat(2)), "a passage of 6, read twice")
    show([induction_score(some_weights(show, 2, 5), show.permutation(5)),
          induction_score(some_weights(show, 2, 4), torch.tensor([1, 1, 2, 3]))], "no repetition; two equal neighbors")

# %% tags=["mistakes"]
def scored(counts_of, mean=lambda got, queries: got[:, queries].mean(dim=-1)):
    """The score with other keys that count."""
    def answer(weights, ids):
        n = len(ids)
        counts = counts_of(ids, n)
        queries = counts.any(dim=1)
        return mean((weights * counts).sum(dim=-1), queries) if queries.any() else torch.zeros(len(weights))
    return answer


def after_copies(ids, n):
    counts = torch.zeros(n, n).bool()
    counts[:, 1:] = ids[:, None] == ids[None, :-1]
    return counts & torch.ones(n, n).tril().bool()


def latest_only(ids, n):
    counts = after_copies(ids, n)
    latest = torch.zeros_like(counts)
    for i in range(n):
        if counts[i].any():
            latest[i, counts[i].nonzero()[-1, 0]] = True
    return latest


mistake("induction-score", scored(lambda ids, n: (ids[:, None] == ids[None, :]).tril(-1)),
        "These keys *are* the copies. The head looks at what came after them.")
mistake("induction-score", scored(lambda ids, n: torch.ones(n, n).tril(-1).triu(-1).bool() & after_copies(ids, n).any(dim=1)[:, None]),
        "That is the score of a previous-token head: the key just before each query.")
mistake("induction-score", scored(after_copies, lambda got, queries: got.mean(dim=-1)),
        "The mean is over *all* queries. Those without an earlier copy cannot look at one: leave them out.")
mistake("induction-score", scored(after_copies, lambda got, queries: got[:, queries].sum(dim=-1)),
        "This is a sum over queries. Return the mean.")
mistake("induction-score", scored(after_copies, lambda got, queries: got[:, queries].mean()), "That is one number for all heads. Return one for each.")
mistake("induction-score", scored(latest_only), "Only the latest copy counts here. All keys that came after a copy count.")
mistake("induction-score", lambda weights, ids: induction_score(weights.mT, ids), "Queries and keys are swapped: rows are queries.")
mistake("induction-score", lambda weights, ids: scored(after_copies)(weights, ids) if after_copies(ids, len(ids)).any() else
        torch.full((len(weights),), float("nan")), "A text without any repetition scores 0; the mean over no query is not a number.")
mistake("induction-score", scored(lambda ids, n: after_copies(ids, n) & torch.ones(n, n).tril(-1).bool()),
        "If two equal symbols are neighbors, the second one itself came after the first: the key may be the query.")


def by_loops(weights, ids):
    totals, queries = torch.zeros(len(weights)), 0
    for i in range(len(ids)):
        keys = [j for j in range(1, i + 1) if ids[j - 1] == ids[i]]
        if keys:
            totals, queries = totals + weights[:, i, keys].sum(dim=-1), queries + 1
    return totals / max(queries, 1)


alternative("induction-score", by_loops)

# %% [markdown]
# ### Task 3 · Where is the answer?   ●●●○○ · 12 minutes · 3 points
#
# A model in two halves: `lower(ids)` gives the stream in its middle, $(n, d)$, and `upper(stream)` a number, how far the
# right answer is ahead. Two texts of the same length, clean and corrupted. For each position, run the upper half on the
# corrupted stream with *that one* vector taken from the clean stream. Return which part of the difference comes back: 0 if
# the number is that of the corrupted text, 1 if it is that of the clean one.
#
# <details><summary>Hint 1: copy first</summary>
#
# `stream.clone()`, or the next position starts from a stream that is patched already.
# </details>
# <details><summary>Hint 2: which part</summary>
#
# (patched − corrupted) / (clean − corrupted)
# </details>

# %% nbgrader={"grade_id": "where", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def where(
    lower: Callable[[Int[Tensor, "n"]], Float[Tensor, "n d"]],
    upper: Callable[[Float[Tensor, "n d"]], Float[Tensor, ""]],
    clean: Int[Tensor, "n"],
    corrupted: Int[Tensor, "n"],
) -> Float[Tensor, "n"]:
    """The part of the difference that each position's vector brings back."""
    ### BEGIN SOLUTION
    source, stream = lower(clean), lower(corrupted)
    high, low = upper(source), upper(stream)
    back = []
    for position in range(len(clean)):
        patched = stream.clone()
        patched[position] = source[position]
        back.append((upper(patched) - low) / (high - low))
    return torch.stack(back)
    ### END SOLUTION

# %%
def two_halves(show: Inputs, n: int, d: int = 4):
    """Two halves of a small random model: a running mean, then a read-out in which positions depend on each other."""
    table, mix, out = show.randn(9, d), show.randn(d, d), show.randn(n, d)

    def lower(ids: Int[Tensor, "n"]) -> Float[Tensor, "n d"]:
        x = table[ids]
        return x + (x.cumsum(dim=0) / torch.arange(1, n + 1)[:, None]) @ mix

    def upper(stream: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
        scores = (stream * out).sum(dim=-1)
        return scores.sum() + 3 * (scores.cumsum(dim=0) / 2).tanh().sum()

    return lower, upper

# %% nbgrader={"grade_id": "check-where", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("where", rtol=1e-3, atol=1e-4) as show:
    for n in (show.random_size(5, 7), show.random_size(3, 4), 6):
        lower, upper = two_halves(show, n)
        clean, corrupted = show.randint(0, 9, n), show.randint(0, 9, n)
        corrupted[1] = (clean[1] + 1) % 9
        show(where(lower, upper, clean, corrupted), f"{n} tokens, several differ")
    n = show.random_size(5, 8)
    lower, upper = two_halves(show, n)
    clean = show.randint(0, 9, n)
    corrupted = clean.clone()
    corrupted[n // 2] = (clean[n // 2] + 4) % 9
    show(where(lower, upper, clean, corrupted), f"{n} tokens, the one in the middle differs")

# %% tags=["mistakes"]
def patched_with(change, part=lambda x, low, high: (x - low) / (high - low), swap=False):
    """The loop with another patch, or another measure."""
    def answer(lower, upper, clean, corrupted):
        if swap:
            clean, corrupted = corrupted, clean
        source, stream = lower(clean), lower(corrupted)
        high, low = upper(source), upper(stream)
        back = []
        for position in range(len(clean)):
            patched = stream.clone()
            change(patched, source, position)
            back.append(part(upper(patched), low, high))
        return torch.stack(back)
    return answer


def one(patched, source, position):
    patched[position] = source[position]


def up_to(patched, source, position):
    patched[: position + 1] = source[: position + 1]


def from_here(patched, source, position):
    patched[position:] = source[position:]


def without_copy(lower, upper, clean, corrupted):
    source, stream = lower(clean), lower(corrupted)
    high, low = upper(source), upper(stream)
    back = []
    for position in range(len(clean)):
        stream[position] = source[position]
        back.append((upper(stream) - low) / (high - low))
    return torch.stack(back)


def one_symbol(lower, upper, clean, corrupted):
    high, low = upper(lower(clean)), upper(lower(corrupted))
    back = []
    for position in range(len(clean)):
        ids = corrupted.clone()
        ids[position] = clean[position]
        back.append((upper(lower(ids)) - low) / (high - low))
    return torch.stack(back)


mistake("where", without_copy, "The patches pile up: start each time from the corrupted stream, with `clone()`.")
mistake("where", patched_with(from_here), "You patch this position and all later ones. Patch one.")
mistake("where", patched_with(one, swap=True), "Clean and corrupted are swapped: clean vectors go into the corrupted run.")
mistake("where", one_symbol, "You exchange a *symbol* of the text. Exchange a vector of the stream, in the middle of the model.")
mistake("where", patched_with(one, lambda x, low, high: x - low), "Divide by the whole difference, clean − corrupted.")
mistake("where", patched_with(one, lambda x, low, high: x), "That is the number itself. Return the part of the difference that is back.")
mistake("where", patched_with(one, lambda x, low, high: (high - x) / (high - low)), "0 is the corrupted number, and 1 the clean one.")
mistake("where", patched_with(one, lambda x, low, high: x / high), "0 is the corrupted number: subtract it, above and below the line.")
mistake("where", patched_with(lambda patched, source, position: None), "Nothing is patched: put the clean vector into the corrupted stream.")
alternative("where", patched_with(one))

# %% [markdown]
# ### Task 4 · How much of a dimension?   ●●○○○ · 8 minutes · 2 points
#
# The columns of $W$, $(d, n)$, are the directions of $n$ features in $d$ dimensions. Elhage et al. (2022) ask which part of
# a dimension a feature has for itself:
#
# $$D_i = \frac{|w_i|^2}{\sum_j (\hat w_i \cdot w_j)^2} \qquad \hat w_i = \frac{w_i}{|w_i|}$$
#
# It is 1 for a feature at right angles to all others, and ½ for two that are opposite. The sum has $j = i$ as well. A
# feature that isn't kept at all, $w_i = 0$, has 0.
#
# <details><summary>Hint 1: without unit vectors</summary>
#
# $(\hat w_i \cdot w_j)^2 = (w_i \cdot w_j)^2 / |w_i|^2$, so $D_i = |w_i|^4 / \sum_j (w_i \cdot w_j)^2$.
# </details>

# %% nbgrader={"grade_id": "dimensionality", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def dimensionality(W: Float[Tensor, "d n"]) -> Float[Tensor, "n"]:
    """The part of a dimension that each feature has for itself."""
    ### BEGIN SOLUTION
    dots = W.T @ W
    parts = dots.diagonal().square() / dots.square().sum(dim=1)
    return parts.nan_to_num(0.0)  # 0 / 0, where a feature is not kept
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-dimensionality", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("dimensionality") as show:
    for d, n in ((2, show.random_size(4, 6)), (3, 5), (show.random_size(4, 6), 3)):
        show(dimensionality(show.randn(d, n)), f"{n} features in {d} dimensions")
    W = show.randn(3, 4)
    W[:, 2] = 0.0
    show(dimensionality(W), "one feature is not kept")

# %% tags=["mistakes"]
equivalent("dimensionality", ".sum(dim=1) → .sum(dim=0)", "The matrix of dot products is symmetric.")


def ratio(above, below):
    def answer(W):
        dots = W.T @ W
        lengths = dots.diagonal()
        return torch.where(lengths > 0, above(W, dots, lengths) / below(W, dots, lengths).clamp(min=1e-30), torch.zeros(()))
    return answer


mistake("dimensionality", ratio(lambda W, dots, lengths: lengths, lambda W, dots, lengths: dots.square().sum(dim=1)),
        "$\\hat w_i$ has length 1. With $w_i$ instead, you divide by $|w_i|^2$ too often.")
mistake("dimensionality", lambda W: W.norm(dim=0).square() / (F.normalize(W, dim=0).T @ F.normalize(W, dim=0)).square().sum(dim=1),
        "Only $w_i$ is brought to length 1; $w_j$ keeps its length.")
mistake("dimensionality", ratio(lambda W, dots, lengths: lengths.square(),
                                lambda W, dots, lengths: dots.square().sum(dim=1) - lengths.square()),
        "The sum has $j = i$ as well.")
mistake("dimensionality", ratio(lambda W, dots, lengths: lengths.square(), lambda W, dots, lengths: dots.abs().sum(dim=1)),
        "Square the dot products.")
mistake("dimensionality", lambda W: (W.T @ W).diagonal().square() / (W.T @ W).square().sum(dim=1),
        "A feature of zeros divides 0 by 0. It has 0.")
mistake("dimensionality", lambda W: dimensionality(W.T), "The features are the *columns* of $W$.")
alternative("dimensionality", lambda W: W.square().sum(dim=0) / (F.normalize(W, dim=0).T @ W).square().sum(dim=1).clamp(min=1e-30))

# %% [markdown]
# ### Task 5 · The loss of a sparse autoencoder   ●●○○○ · 10 minutes · 2 points
#
# $f = \text{relu}(E(x - c) + b)$, $\hat x = c + \sum_i f_i\, d_i$, where $d_i$ are the rows of $D$, each *brought to length
# 1*. The loss is $|x - \hat x|^2 + \lambda \sum_i f_i$ per row of $x$, and then the mean over rows. Return it with the
# number of dead features: those that are 0 in every row.
#
# <details><summary>Hint 1: why length 1?</summary>
#
# Otherwise strengths could shrink and directions grow: $\hat x$ stays, and the second term goes to 0.
# </details>

# %% nbgrader={"grade_id": "sparse-loss", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def sparse_loss(
    x: Float[Tensor, "n d"], E: Float[Tensor, "k d"], b: Float[Tensor, "k"], D: Float[Tensor, "k d"], c: Float[Tensor, "d"], lam: float
) -> tuple[Float[Tensor, ""], int]:
    """The loss, and how many features are dead."""
    ### BEGIN SOLUTION
    f = ((x - c) @ E.T + b).relu()
    back = c + f @ F.normalize(D, dim=-1)
    loss = (x - back).square().sum(dim=-1) + lam * f.sum(dim=-1)
    return loss.mean(), int((f == 0).all(dim=0).sum())
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-sparse-loss", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("sparse-loss") as show:
    for n, d, k in ((show.random_size(5, 9), 3, 6), (3, 4, show.random_size(7, 12)), (8, 2, 5)):
        b = show.randn(k)
        b[: int(show.randint(1, 4, 1))] = -50.0
        loss, dead = sparse_loss(show.randn(n, d), show.randn(k, d), b, 3 * show.randn(k, d), show.randn(d), 0.1 + float(show.rand(1)))
        show([loss, dead], f"{n} rows, {k} features: the loss, and dead features")

# %% tags=["mistakes"]
equivalent("sparse-loss", "F.normalize(D, dim=-1) → F.normalize(D)", "By default it is axis 1, the last one of a matrix.")
equivalent("sparse-loss", "x - back → back - x", "It is squared.")


def sparse(center=lambda x, c: x - c, act=torch.relu, unit=lambda D: F.normalize(D, dim=-1), back=lambda c, x: c + x,
           error=lambda e: e.square().sum(dim=-1), cost=lambda f: f.sum(dim=-1), mean=torch.mean, dead=lambda f: (f == 0).all(dim=0)):
    def answer(x, E, b, D, c, lam):
        f = act(center(x, c) @ E.T + b)
        loss = error(x - back(c, f @ unit(D))) + lam * cost(f)
        return mean(loss), int(dead(f).sum())
    return answer


mistake("sparse-loss", sparse(unit=lambda D: D), "Bring each row of $D$ to length 1.")
mistake("sparse-loss", sparse(unit=lambda D: F.normalize(D, dim=0)), "A direction is a *row* of $D$: bring rows to length 1.")
mistake("sparse-loss", sparse(center=lambda x, c: x), "$c$ is subtracted before $E$.")
mistake("sparse-loss", sparse(back=lambda c, x: x), "$c$ is missing in $\\hat x$.")
mistake("sparse-loss", sparse(act=lambda x: x), "The ReLU is missing: no feature is ever 0.")
mistake("sparse-loss", sparse(error=lambda e: e.square().mean(dim=-1)), "$|x - \\hat x|^2$ is a sum over the features of $x$, not a mean.")
mistake("sparse-loss", sparse(cost=lambda f: f.mean(dim=-1)), "$\\sum_i f_i$ is a sum over features, not a mean.")
mistake("sparse-loss", sparse(cost=lambda f: f.square().sum(dim=-1)), "The second term has $f_i$ itself, not its square: a square hardly pushes small ones to 0.")
mistake("sparse-loss", sparse(cost=lambda f: 0 * f.sum(dim=-1)), "The second term is missing.")
mistake("sparse-loss", lambda x, E, b, D, c, lam: (sparse()(x, E, b, D, c, 1.0)), "$\\lambda$ is missing: it multiplies the second term.")
mistake("sparse-loss", sparse(mean=torch.sum), "The mean over rows, not the sum.")
mistake("sparse-loss", sparse(dead=lambda f: (f == 0).any(dim=0)), "Dead features are 0 in *every* row.")
mistake("sparse-loss", sparse(dead=lambda f: (f > 0).any(dim=0)), "You count the features that are alive.")
alternative("sparse-loss", sparse())

# %% [markdown]
# ### Task 6 · Investigate: name the circuit   ●●●●● · 25 minutes · 4 points
#
# Here is a model of two layers with five heads each, attention only. It repeats a passage of different symbols that it has
# read once. Which heads do it? Return a mask, `True` for the heads of the circuit:
#
# - with *only* these heads, all others switched off, it still works;
# - in either layer, if exactly the heads that you named in it are switched off, it fails;
# - and no head is named without need: of all sets with these two properties, take the smallest.
#
# Beware. Maps of attention are not enough: some heads look where they should, and nothing reads what they write. To switch
# off one head at a time isn't enough either: heads may do the same job, or share one. The
# grader wires **another model**, calls your function, and measures both properties on new texts: all points if the
# smallest set is found, half if it is right in one of the two layers.
#
# How you do it is up to you. A run takes a few milliseconds.

# %%
KINDS, LENGTH, HEADS = 10, 16, 5


def run(model: dict[str, Tensor], ids: Int[Tensor, "text n"], on: Bool[Tensor, "layer head"]) -> Float[Tensor, "text n kind"]:
    """The logits of the next symbol, with some heads switched off."""
    x = model["symbols"][ids] + model["positions"][: ids.shape[1]]              # (text, n, d)
    future = torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool()
    for layer in range(2):
        scores = torch.einsum("tid,hde,tje->thij", x, model["looks"][layer], x)
        weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)     # (text, head, query, key)
        said = torch.einsum("thij,tjd,hde->thie", weights, x, model["writes"][layer])
        x = x + (said * on[layer][:, None, None]).sum(dim=1)
    return x @ model["out"]


def passages(private: Inputs, texts: int = 60) -> tuple[Int[Tensor, "text n"], Bool[Tensor, "text n"]]:
    """Texts of repeated passages, 4 to 8 different symbols each; and where a symbol has been read before."""
    sizes = private.randint(4, 9, texts, 1)
    drawn = private.rand(texts, KINDS).argsort(dim=1)
    return drawn.gather(1, torch.arange(LENGTH) % sizes), torch.arange(LENGTH) >= sizes


def fraction_right(model: dict[str, Tensor], ids: Tensor, known: Tensor, on: Tensor) -> float:
    """How often the next symbol is right, where the passage is read again."""
    said = run(model, ids, on)[:, :-1].argmax(dim=-1)
    return (said == ids[:, 1:])[known[:, :-1]].float().mean().item()


def wired(private: Inputs) -> tuple[dict[str, Tensor], Bool[Tensor, "layer head"]]:
    """A model with a circuit in it, and where the circuit is."""
    K, L = KINDS, LENGTH
    d = 4 * K + L                                                               # symbol, position, before, answer, unread
    symbol, position, before, answer, unread = torch.eye(d).split([K, L, K, K, K])
    step_back = position.T @ torch.cat([position[:1], position[:-1]])           # query i asks for position i - 1
    same = symbol.T @ (before - position[:1])                                   # query s asks for "s came before me"
    looks, writes, circuit = torch.zeros(2, HEADS, d, d), torch.zeros(2, HEADS, d, d), torch.zeros(2, HEADS).bool()
    sharing = int(private.randint(0, 2, 1))                                     # in this layer two heads share the job; in the other
    for layer, (look, slot) in enumerate(((step_back, before), (same, answer))):
        order = private.permutation(HEADS).tolist()
        half = torch.zeros(K).index_fill(0, private.permutation(K)[: K // 2], 1.0)
        jobs = [half, 1 - half] if layer == sharing else [torch.ones(K), torch.ones(K)]  # each can do all of it
        for head, job in zip(order, [*jobs, None, None, None]):
            looks[layer, head] = 30 * look
            if job is not None:
                writes[layer, head] = symbol.T @ (job[:, None] * slot)
                circuit[layer, head] = True
        writes[layer, order[2]] = symbol.T @ unread                             # it looks, and nothing reads what it writes
        looks[layer, order[3]] = private.randn(d, d)
        writes[layer, order[3]] = 0.2 * symbol.T @ unread
        looks[layer, order[4]] = 0.3 * private.randn(d, d)                      # it looks anywhere, and disturbs a little
        writes[layer, order[4]] = 0.03 * symbol.T @ slot
    turn = torch.linalg.qr(private.randn(d, d)).Q                               # so that no number can be read off the weights
    model = {"symbols": symbol @ turn, "positions": position @ turn, "out": (answer @ turn).T,
             "looks": turn.T @ looks @ turn, "writes": turn.T @ writes @ turn}
    return model, circuit

# %% nbgrader={"grade_id": "circuit", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def find_circuit(model: dict[str, Tensor]) -> Bool[Tensor, "layer head"]:
    """True for the heads that repeat what was read."""
    ### BEGIN SOLUTION
    # All sets of a layer's heads, from the smallest: the first with both properties. The other layer is left as it is.
    ids, known = passages(Inputs(7, "circuit"), 30)
    found = torch.zeros(2, HEADS).bool()
    sets = [torch.tensor([bool(number >> head & 1) for head in range(HEADS)]) for number in range(2**HEADS)]
    for layer in range(2):
        for some in sorted(sets, key=lambda mask: int(mask.sum())):
            only, without = torch.ones(2, HEADS).bool(), torch.ones(2, HEADS).bool()
            only[layer], without[layer] = some, ~some
            works = fraction_right(model, ids, known, only) > 0.95
            if works and fraction_right(model, ids, known, without) < 0.4:
                found[layer] = some
                break
    return found
    ### END SOLUTION

# %% [markdown]
# To see how far you are, run this in a cell of your own:
#
# ```python
# model, circuit = wired(Inputs(1, "at home"))    # another number wires another model
# find_circuit(model) == circuit
# ```

# %% nbgrader={"grade_id": "check-circuit", "grade": true, "points": 4, "solution": false, "locked": true, "schema_version": 3}
with check("circuit", operators=False) as show:
    model = show.private(lambda private: wired(private)[0])
    show.weights({"circuit": torch.as_tensor(find_circuit(model)).float()}, "your heads")

# %% tags=["mistakes"]
def of_new_texts(shown, private):
    named = shown[0]["circuit"]
    if named.shape != (2, HEADS) or not ((named == 0) | (named == 1)).all():
        return 0, f"The answer should be a mask of shape (2, {HEADS}), True or False; yours has the shape {tuple(named.shape)}."
    named = named.bool()
    model, circuit = wired(private)
    ids, known = passages(private, 200)
    only = fraction_right(model, ids, known, named)
    layers = []
    for layer in range(2):
        on, completed = torch.ones(2, HEADS).bool(), circuit.clone()
        on[layer], completed[layer] = ~named[layer], named[layer]
        works = fraction_right(model, ids, known, completed) >= 0.9
        fails = fraction_right(model, ids, known, on) <= 0.4
        layers.append(works and fails and int(named[layer].sum()) <= int(circuit[layer].sum()))
    said = f"With your heads alone, {only:.0%} of the symbols are right; found: layer 1 {'yes' if layers[0] else 'no'}, layer 2 {'yes' if layers[1] else 'no'}."
    return sum(layers) / 2, said


def one_at_a_time(model):
    ids, known = passages(Inputs(7, "circuit"), 30)
    found = torch.zeros(2, HEADS).bool()
    for layer in range(2):
        for head in range(HEADS):
            on = torch.ones(2, HEADS).bool()
            on[layer, head] = False
            found[layer, head] = fraction_right(model, ids, known, on) < 0.8
    return found


def by_gain(model):
    """A head is in the circuit if, with some set of the others on, switching it on lets clearly more symbols be right."""
    ids, known = passages(Inputs(8, "circuit"), 10)
    found = torch.zeros(2, HEADS).bool()
    for layer in range(2):
        for number in range(2**HEADS):
            on = torch.ones(2, HEADS).bool()
            on[layer] = torch.tensor([bool(number >> head & 1) for head in range(HEADS)])
            base = fraction_right(model, ids, known, on)
            for head in (~on[layer]).nonzero()[:, 0].tolist():
                more = on.clone()
                more[layer, head] = True
                found[layer, head] |= fraction_right(model, ids, known, more) > base + 0.2
    return found


measured("circuit", of_new_texts)
forbid("circuit", ("wired",))
mistake("circuit", one_at_a_time,
        "These are the heads that break something *alone*. Heads that do the same job stand in for each other: switch off several.")
mistake("circuit", lambda model: torch.ones(2, HEADS).bool(), "You name all heads. Which of them are needed?")
mistake("circuit", lambda model: torch.zeros(2, HEADS).bool(), "You name no head.")
mistake("circuit", lambda model: ~find_circuit(model), "The mask is inverted: `True` for the heads of the circuit.")
mistake("circuit", lambda model: find_circuit(model).flip(0), "The layers are swapped: row 0 is layer 1.")
alternative("circuit", by_gain)

# %% [markdown]
# ### How far are you?

# %%
check.summary()
