# %% [markdown]
# # Exercise 03 · Attention
#
# Five tasks, 12 points, about 45 minutes. They follow [lesson 03](../notebooks/03_attention.ipynb).
#
# Replace each `raise NotImplementedError` by your answer, run the cell, then run the check below it. A check tells you
# what differs, and often why. You may check as often as you like. Please write attention yourself: the functions of
# torch and txlib that already do it are not the point here.

# %% tags=["parameters"]
seed = 0
mode = "learn"

# %%
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from txlib.grading import check

# %% [markdown]
# ### Task 1 · Scores   ●○○○○ · 5 minutes · 2 points
#
# Compare every query with every key: the dot product, divided by $\sqrt{d_k}$. One matrix product is enough. It must
# also work with further axes in front, such as a batch.
#
# <details><summary>Hint 1: which shape comes out?</summary>
#
# One row a query, one column a key.
# </details>
# <details><summary>Hint 2: how do the shapes fit?</summary>
#
# (n, d) times (d, m) gives (n, m). So the keys have to be turned over. `.T` turns over *all* axes; which two do you want?
# </details>
# <details><summary>Hint 3: which size is d_k?</summary>
#
# The size of the last axis of `q`. Its square root is `d_k ** 0.5`.
# </details>

# %% nbgrader={"grade_id": "scores", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def scores(q: Float[Tensor, "*batch n d_k"], k: Float[Tensor, "*batch m d_k"]) -> Float[Tensor, "*batch n m"]:
    """How well each key matches each query."""
    ### BEGIN SOLUTION
    return q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-scores", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("scores") as show:
    n, m, d_k = show.random_size(2, 4), show.random_size(5, 6), show.random_size(7, 9)
    show(scores(show.randn(n, d_k), show.randn(m, d_k)), f"n = {n}, m = {m}, d_k = {d_k}")
    show(scores(show.randn(2, n, d_k), show.randn(2, m, d_k)), "a batch of two")

# %% tags=["mistakes"]
from txlib.grading import alternative, forbid, mistake

forbid("*", "txlib")
forbid("scores", ("scaled_dot_product_attention", "flex_attention", "MultiheadAttention", "multi_head_attention_forward"))
mistake("scores", lambda q, k: q @ k.transpose(-2, -1), "The division by √d_k is missing.")
mistake("scores", lambda q, k: q @ k.transpose(-2, -1) / q.shape[-1],
        "You divide by d_k. The spread of a dot product grows with its *square root*.")
mistake("scores", lambda q, k: q @ k.transpose(-2, -1) * q.shape[-1] ** 0.5, "You multiply by √d_k instead of dividing.")
mistake("scores", lambda q, k: q @ k.transpose(-2, -1) / k.shape[-2] ** 0.5,
        "You divide by the root of the number of keys. It is the *width* d_k that makes dot products grow.")
mistake("scores", lambda q, k: q @ k.transpose(-2, -1) / q.shape[0] ** 0.5,
        "You divide by the root of the size of the *first* axis. d_k is the size of the last one.")
mistake("scores", lambda q, k: q @ k.T / q.shape[-1] ** 0.5,
        "One sentence works, a batch does not: `.T` turns over *all* axes. Use `k.transpose(-2, -1)`.")
mistake("scores", lambda q, k: k @ q.transpose(-2, -1) / q.shape[-1] ** 0.5,
        "This has a row for each key. Each *query* gets a row.")
alternative("scores", lambda q, k: torch.einsum("...nd,...md->...nm", q, k) / q.shape[-1] ** 0.5)
alternative("scores", lambda q, k: (q / q.shape[-1] ** 0.25) @ (k / k.shape[-1] ** 0.25).mT)

# %% [markdown]
# ### Task 2 · The causal mask   ●●○○○ · 5 minutes · 2 points
#
# While it writes word 4, a decoder must not read word 5. Return a boolean matrix that is `True` exactly where query $i$
# may attend to key $j$. It must work for any `n`, also 1.
#
# <details><summary>Hint 1: which way round?</summary>
#
# Row 0 belongs to the first query. How many keys may it see?
# </details>
# <details><summary>Hint 2: a condition on two numbers</summary>
#
# Query $i$ may see key $j$ when $j \le i$. Can you build one column of all $i$ and one row of all $j$?
# </details>
# <details><summary>Hint 3: broadcasting</summary>
#
# `position[:, None] >= position[None, :]` compares every row number with every column number.
# </details>

# %% nbgrader={"grade_id": "causal-mask", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def causal_mask(n: int) -> Bool[Tensor, "query key"]:
    """True where query i may attend to key j."""
    ### BEGIN SOLUTION
    position = torch.arange(n)
    return position[:, None] >= position[None, :]
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-causal-mask", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("causal-mask") as show:
    for n in (1, 2, show.random_size(3, 9), show.random_size(10, 40), show.random_size(10, 40)):
        show(causal_mask(n), f"n = {n}")

# %% tags=["mistakes"]
mistake("causal-mask", lambda n: torch.ones(n, n).triu().bool(),
        "This lets each query see the *future*. Row 0 is the first query: it may see one key only.")
mistake("causal-mask", lambda n: torch.ones(n, n).tril(-1).bool(),
        "A token may look at itself: the diagonal is `True`. (What would the softmax do with the empty first row?)")
mistake("causal-mask", lambda n: torch.ones(n, n).triu(1).bool(),
        "This is `True` where looking is *forbidden*. In this course `True` means may attend.")
mistake("causal-mask", lambda n: torch.ones(n, n).tril(),
        "The pattern is right, but these are numbers. A mask is boolean: add `.bool()`.")
mistake("causal-mask", lambda n: torch.ones(n, n).bool(), "Everything is `True`: nothing is hidden.")
mistake("causal-mask", lambda n: torch.ones(n, n).tril(1).bool(),
        "Each query sees one word of the future: the one it should guess.")
alternative("causal-mask", lambda n: torch.ones(n, n).tril().bool())

# %% [markdown]
# ### Task 3 · Attention with a mask   ●●●○○ · 10 minutes · 3 points
#
# Put it together: scaled scores, the mask, softmax, mixture. `mask` is `True` where a query may attend. You can count
# on each query having at least one key.
#
# <details><summary>Hint 1: in which order?</summary>
#
# What is masked *before* the softmax leaves its share to the others.
# </details>
# <details><summary>Hint 2: which value hides a key?</summary>
#
# The one whose exponential is 0. `score.masked_fill(condition, value)` writes it where the condition is `True`.
# </details>
# <details><summary>Hint 3: along which axis does the softmax run?</summary>
#
# Each query's weights sum to 1, so along the keys: the last axis.
# </details>

# %% nbgrader={"grade_id": "attention", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def attention(
    q: Float[Tensor, "*batch n d_k"],
    k: Float[Tensor, "*batch m d_k"],
    v: Float[Tensor, "*batch m d_v"],
    mask: Bool[Tensor, "n m"],
) -> Float[Tensor, "*batch n d_v"]:
    """Each query's mixture of the values it may see."""
    ### BEGIN SOLUTION
    score = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    weight = score.masked_fill(~mask, float("-inf")).softmax(dim=-1)
    return weight @ v
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-attention", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("attention") as show:
    n, d_k, d_v = show.random_size(3, 5), show.random_size(6, 8), show.random_size(2, 3)
    q, k, v = 2 * show.randn(n, d_k), show.randn(n, d_k), show.randn(n, d_v)
    everything = torch.ones(n, n).bool()
    show(attention(q, k, v, everything), "nothing is hidden")
    show(attention(q, k, v, everything.tril()), "a causal mask")
    show(attention(show.randn(2, n, d_k), show.randn(2, n, d_k), show.randn(2, n, d_v), everything.tril()), "a batch")

# %% tags=["mistakes"]
def score_of(q, k):
    return q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5


HIDDEN = float("-inf")
forbid("attention",
       ("scaled_dot_product_attention", "flex_attention", "MultiheadAttention", "multi_head_attention_forward"),
       ("aten.scaled_dot_product_attention", "aten._scaled_dot_product_flash_attention_for_cpu",
        "aten._scaled_dot_product_flash_attention", "aten._scaled_dot_product_efficient_attention",
        "aten._scaled_dot_product_cudnn_attention", "aten._scaled_dot_product_fused_attention_overrideable",
        "aten._scaled_dot_product_attention_math", "aten._native_multi_head_attention", "aten._safe_softmax"))
mistake("attention", lambda q, k, v, mask: (score_of(q, k) * q.shape[-1] ** 0.5).masked_fill(~mask, HIDDEN).softmax(-1) @ v,
        "The scores are not divided by √d_k: too few keys get too much.")
mistake("attention", lambda q, k, v, mask: score_of(q, k).masked_fill(~mask, HIDDEN).softmax(-2).nan_to_num() @ v,
        "The softmax runs over the queries. Each *query* shares out 1 among the keys: use the last axis.")
mistake("attention", lambda q, k, v, mask: score_of(q, k).masked_fill(~mask, HIDDEN).softmax(0).nan_to_num() @ v,
        "`softmax(0)` runs along the first axis: the queries, or with a batch, the sentences. Use the last axis, `-1`.")
mistake("attention", lambda q, k, v, mask: (score_of(q, k) + (~mask) * HIDDEN).softmax(-1) @ v,
        "0 · ∞ is nan, so adding `(~mask) * -inf` spoils the keys that may be seen. Use `masked_fill`.")
mistake("attention", lambda q, k, v, mask: score_of(q, k).softmax(-1).masked_fill(~mask, 0.0) @ v,
        "You mask after the softmax, so rows no longer sum to 1: what was spent on hidden keys is lost.")
mistake("attention", lambda q, k, v, mask: score_of(q, k).masked_fill(~mask, 0.0).softmax(-1) @ v,
        "A score of 0 does not hide a key: its weight is e⁰ = 1, divided by the sum. Use −∞.")
mistake("attention", lambda q, k, v, mask: score_of(q, k).masked_fill(mask, HIDDEN).softmax(-1) @ v,
        "The mask is inverted: you hide what may be seen. (Where everything is visible, you hide everything, hence nan.)")
mistake("attention", lambda q, k, v, mask: score_of(q, k).softmax(-1) @ v,
        "The mask is not used.")
mistake("attention", lambda q, k, v, mask: score_of(q, k).masked_fill(~mask, HIDDEN).softmax(-1),
        "These are the weights. Mix the values with them: `weight @ v`.")
alternative("attention", lambda q, k, v, mask: (score_of(q, k) + torch.where(mask, 0.0, -1e9)).softmax(-1) @ v)
alternative("attention", lambda q, k, v, mask: torch.einsum(
    "...nm,...md->...nd", (e := score_of(q, k).exp() * mask) / e.sum(-1, keepdim=True), v))

# %% [markdown]
# ### Task 4 · Nothing to see   ●●●○○ · 10 minutes · 2 points
#
# A sentence that is all padding has queries that may see no key at all. Return the *weights* for given scores so that
# such a query's weights are all 0, and every other query's weights sum to 1. Never `nan`, not even inside a batch.
#
# <details><summary>Hint 1: where does nan come from?</summary>
#
# The softmax of a row of −∞ divides 0 by 0.
# </details>
# <details><summary>Hint 2: a number that is low enough</summary>
#
# `torch.finfo(score.dtype).min` is the lowest finite number. What does the softmax make of a row full of it?
# </details>
# <details><summary>Hint 3: and afterwards?</summary>
#
# An empty row now has equal shares. Nobody may have them: fill with 0 where the mask is `False`.
# </details>

# %% nbgrader={"grade_id": "empty-rows", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def masked_softmax(score: Float[Tensor, "n m"], mask: Bool[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    """Weights that are 0 where the mask is False, also in rows where it is False everywhere."""
    ### BEGIN SOLUTION
    score = score.masked_fill(~mask, torch.finfo(score.dtype).min)
    return score.softmax(dim=-1).masked_fill(~mask, 0.0)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-empty-rows", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("empty-rows") as show:
    n, m = show.random_size(3, 5), show.random_size(4, 6)
    mask = show.rand(n, m) > 0.4
    mask[0], mask[1], mask[-1, 0] = False, True, True
    score = 3 * show.randn(n, m)
    show(masked_softmax(score, mask), "row 0 may see nothing")
    show(masked_softmax(score - 200.0, mask), "very low scores")

# %% tags=["mistakes"]
forbid("empty-rows", ("scaled_dot_product_attention", "safe_softmax"), "aten._safe_softmax")
mistake("empty-rows", lambda score, mask: score.masked_fill(~mask, HIDDEN).softmax(-1),
        "Row 0 is `nan`: all its scores are −∞, and the softmax divides 0 by 0.")
mistake("empty-rows", lambda score, mask: score.masked_fill(~mask, torch.finfo(score.dtype).min).softmax(-1),
        "Row 0 spreads its attention equally over keys that it may not see. Its weights have to be 0.")
mistake("empty-rows", lambda score, mask: score.softmax(-1).masked_fill(~mask, 0.0),
        "Rows other than 0 no longer sum to 1. Hide the keys before the softmax, too.")
mistake("empty-rows", lambda score, mask: score.masked_fill(~mask, -100.0).softmax(-1).masked_fill(~mask, 0.0),
        "−100 is not low enough: with real scores around −200, the hidden keys take everything.")
mistake("empty-rows", lambda score, mask: ((e := score.exp() * mask) / e.sum(-1, keepdim=True)),
        "You divide by a sum that can be 0: where nothing may be seen, and where all exponentials are too small to store.")
alternative("empty-rows", lambda score, mask: score.masked_fill(~mask, HIDDEN).softmax(-1).nan_to_num(0.0))

# %% [markdown]
# ### Task 5 · What does it cost?   ●●○○○ · 10 minutes · 3 points
#
# A document of `n` tokens, `h` heads, each of width `d_k` for queries, keys and values. Return two whole numbers: the
# floating-point operations of the two matrix products (a dot product of width d counts as d multiplications and d
# additions), and
# the bytes that the scores take in `float32`. Not the softmax.
#
# <details><summary>Hint 1: one score</summary>
#
# One score is a dot product of two vectors of width d_k: how many operations? How many scores are there?
# </details>
# <details><summary>Hint 2: the second product</summary>
#
# Mixing costs as much as scoring.
# </details>
# <details><summary>Hint 3: the bytes</summary>
#
# Each head has its own n × n scores, and a `float32` takes 4 bytes.
# </details>

# %% nbgrader={"grade_id": "cost", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def attention_cost(n: int, h: int, d_k: int) -> tuple[int, int]:
    """Floating-point operations, and bytes of the scores."""
    ### BEGIN SOLUTION
    return 4 * h * n * n * d_k, 4 * h * n * n
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-cost", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("cost") as show:
    n, h, d_k = show.random_size(20, 900), show.random_size(2, 16), show.random_size(5, 128)
    for n, h, d_k in ((10, 1, 3), (4096, 12, 64), (n, h, d_k)):
        show(attention_cost(n, h, d_k), f"n = {n}, h = {h}, d_k = {d_k}")

# %% tags=["mistakes"]
mistake("cost", lambda n, h, d_k: (2 * h * n * n * d_k, 4 * h * n * n),
        "That is one product. There are two: the scores, and the mixture of the values. (Or you count a multiplication "
        "and an addition as one.)")
mistake("cost", lambda n, h, d_k: (4 * h * n * n * d_k, 4 * n * n), "The bytes: each of the h heads has its own scores.")
mistake("cost", lambda n, h, d_k: (4 * h * n * n, 4 * h * n * n * d_k), "The two numbers are swapped: operations first.")
mistake("cost", lambda n, h, d_k: (4 * n * n * d_k, 4 * n * n), "That is one head. Each of the h heads does it.")
mistake("cost", lambda n, h, d_k: (4 * h * n * d_k, 4 * h * n),
        "That grows linearly with n. Every query meets *every* key: n² scores.")
mistake("cost", lambda n, h, d_k: (4 * h * n * n * d_k, h * n * n), "The bytes: each `float32` takes 4 of them.")
mistake("cost", lambda n, h, d_k: (4 * h * n * n * d_k, 4 * h * n * n * d_k),
        "The bytes: a score is one number, however wide the vectors were.")
alternative("cost", lambda n, h, d_k: (h * 2 * (2 * n * n * d_k), h * n * n * 4))

# %% [markdown]
# ### How far are you?

# %%
check.summary()
