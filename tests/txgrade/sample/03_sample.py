# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Exercise 03 · A sample
#
# Two tasks, 5 points. Run the cells from the top; fill in where it says *your turn*.

# %% tags=["parameters"]
seed = 0

# %%
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from txgrade import check

# %% [markdown]
# ### Task 1 · The causal mask   ●●○○○ · 5 minutes · 2 points
#
# While it writes word 4, a decoder must not read word 5. Return a boolean matrix that is `True` exactly where
# query $i$ may look at key $j$.
#
# <details><summary>Hint 1: which way round?</summary>Row 0 belongs to the first query.</details>

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
    ### BEGIN HIDDEN TESTS
    show(causal_mask(17), "n = 17")
    ### END HIDDEN TESTS

# %% tags=["mistakes"]
from txgrade import alternative, mistake

mistake("causal-mask", lambda n: torch.ones(n, n).triu().bool(),
        "This lets each query see the *future*. Row 0 is the first query: it may see one key only.")
mistake("causal-mask", lambda n: torch.ones(n, n).tril(-1).bool(),
        "A token may look at itself: the diagonal is `True`.")
mistake("causal-mask", lambda n: ~causal_mask(n), "The mask is inverted: `True` means *may attend*.")
mistake("causal-mask", lambda n: torch.ones(n, n).tril(),
        "These are numbers. A mask is a matrix of `bool`.")
alternative("causal-mask", lambda n: torch.ones(n, n).tril().bool())

# %% [markdown]
# ### Task 2 · Scaled dot-product attention   ●●●○○ · 10 minutes · 3 points
#
# Return the output for every query. `mask` is `True` where a query may attend.

# %% nbgrader={"grade_id": "attention", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def attention(
    q: Float[Tensor, "query d_k"], k: Float[Tensor, "key d_k"], v: Float[Tensor, "key d_v"],
    mask: Bool[Tensor, "query key"],
) -> Float[Tensor, "query d_v"]:
    """softmax(q kᵀ / √d_k) v over the keys that the mask allows."""
    ### BEGIN SOLUTION
    scores = q @ k.T / q.shape[-1] ** 0.5
    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-attention", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("attention", rtol=1e-4, atol=1e-5) as show:
    n, d_k, d_v = show.random_size(3, 6), show.random_size(5, 9), 4
    q, k, v = show.randn(n, d_k), show.randn(n, d_k), show.randn(n, d_v)
    show(attention(q, k, v, torch.ones(n, n, dtype=torch.bool)), "everything visible")
    show(attention(q, k, v, causal_mask(n)), "causal")

# %% tags=["mistakes"]
def unscaled(q, k, v, mask):
    return (q @ k.T).masked_fill(~mask, -torch.inf).softmax(-1) @ v


def over_queries(q, k, v, mask):
    return (q @ k.T / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf).softmax(0) @ v


def masked_late(q, k, v, mask):
    return ((q @ k.T / q.shape[-1] ** 0.5).softmax(-1) * mask) @ v


def by_exponentials(q, k, v, mask):
    weights = (torch.einsum("qd,kd->qk", q, k) / q.shape[-1] ** 0.5).exp() * mask
    return weights / weights.sum(-1, keepdim=True) @ v


mistake("attention", unscaled, "The scores are not divided by √d_k.")
mistake("attention", over_queries, "The softmax runs over the queries. Each query's weights must add up to 1.")
mistake("attention", masked_late, "The mask comes after the softmax, so the rows no longer add up to 1.")
mistake("attention", lambda q, k, v, mask: attention(q, k.T, v, mask), "`k` is transposed twice.")
alternative("attention", by_exponentials)

# %%
check.summary()
