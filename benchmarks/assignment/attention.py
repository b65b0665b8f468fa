# %% [markdown]
# # Attention in seven cells
#
# Three tasks, 6 points.

# %% tags=["parameters"]
seed = 0
mode = "learn"

# %%
import torch

from txgrade import check

# %% [markdown]
# ### Task 1 · Scores   ●○○○○ · 5 minutes · 2 points
#
# Compare every query with every key: the dot product, divided by $\sqrt{d_k}$.

# %% nbgrader={"grade_id": "scores", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def scores(q, k):
    """(…, query, d_k) and (…, key, d_k) give (…, query, key)."""
    ### BEGIN SOLUTION
    return q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-scores", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("scores") as show:
    n, m, d_k = show.random_size(2, 4), show.random_size(5, 6), show.random_size(7, 9)
    show(scores(show.randn(n, d_k), show.randn(m, d_k)), "no batch")
    show(scores(show.randn(2, n, d_k), show.randn(2, m, d_k)), "a batch of two")

# %% [markdown]
# ### Task 2 · The causal mask   ●●○○○ · 5 minutes · 2 points
#
# A boolean matrix that is `True` exactly where query $i$ may look at key $j$.

# %% nbgrader={"grade_id": "causal-mask", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def causal_mask(n):
    """(query, key)"""
    ### BEGIN SOLUTION
    position = torch.arange(n)
    return position[:, None] >= position[None, :]
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-causal-mask", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("causal-mask") as show:
    for n in (1, 2, show.random_size(3, 9), show.random_size(10, 40), show.random_size(10, 40)):
        show(causal_mask(n), f"n = {n}")

# %% [markdown]
# ### Task 3 · Attention   ●●●○○ · 10 minutes · 2 points
#
# Each query's mixture of the values that it may see.

# %% nbgrader={"grade_id": "attention", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def attention(q, k, v, mask):
    """(…, query, d_v)"""
    ### BEGIN SOLUTION
    return scores(q, k).masked_fill(~mask, float("-inf")).softmax(-1) @ v
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-attention", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("attention") as show:
    n, d_k, d_v = show.random_size(3, 5), show.random_size(6, 8), show.random_size(2, 3)
    q, k, v = 2 * show.randn(n, d_k), show.randn(n, d_k), show.randn(n, d_v)
    show(attention(q, k, v, torch.ones(n, n).bool()), "nothing is hidden")
    show(attention(q, k, v, torch.ones(n, n).tril().bool()), "causal")

# %% tags=["mistakes"]
from txgrade import mistake

mistake("scores", lambda q, k: q @ k.transpose(-2, -1), "The division by √d_k is missing.")
mistake("scores", lambda q, k: q @ k.transpose(-2, -1) / q.shape[-1], "You divide by d_k, not by its square root.")
mistake("scores", lambda q, k: q @ k.transpose(-2, -1) * q.shape[-1] ** 0.5, "You multiply by √d_k.")
mistake("causal-mask", lambda n: torch.ones(n, n).triu().bool(), "This lets each query see the *future*.")
mistake("causal-mask", lambda n: torch.ones(n, n).tril(-1).bool(), "A token may look at itself.")
mistake("causal-mask", lambda n: ~causal_mask(n), "The mask is inverted.")
mistake("attention", lambda q, k, v, mask: scores(q, k).softmax(-1) @ v, "The mask is not used.")
mistake("attention", lambda q, k, v, mask: (scores(q, k).softmax(-1) * mask) @ v, "Mask before the softmax, not after.")
mistake("attention", lambda q, k, v, mask: scores(q, k).masked_fill(~mask, float("-inf")).softmax(-1),
        "These are the weights; the mixture of the values is missing.")
