# %% [markdown]
# # Exercise 00 · A first check
#
# One task, 1 point, about 5 minutes.

# %% tags=["parameters"]
seed = 0

# %%
import torch
from jaxtyping import Bool
from torch import Tensor

from txgrade import check

# %% [markdown]
# ### Task 1 · Who may look at whom?   ●○○○○ · 2 minutes · 1 point
#
# A word may look at itself and at earlier words. Return `True` exactly there.


# %% nbgrader={"grade_id": "first-mask", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def may_look(length: int) -> Bool[Tensor, "query key"]:
    """True where the word `query` may look at the word `key`."""
    ### BEGIN SOLUTION
    query, key = torch.arange(length)[:, None], torch.arange(length)[None, :]
    return key <= query
    ### END SOLUTION


# %% nbgrader={"grade_id": "check-first-mask", "grade": true, "points": 1, "solution": false, "locked": true, "schema_version": 3}
with check("first-mask") as show:
    for length in (1, 4, show.random_size(6, 9)):
        show(may_look(length), f"{length} words")

# %% tags=["mistakes"]
from txgrade import mistake

mistake(
    "first-mask",
    lambda length: torch.ones(length, length).triu().bool(),
    "Each word looks at the *future*. Row 0 is the first word: it has only itself to look at. "
    "Turn the comparison around.",
)
mistake(
    "first-mask",
    lambda length: torch.ones(length, length).tril(-1).bool(),
    "A word may look at itself, so the diagonal is `True`. The first word now sees nothing at all: use `<=`.",
)
mistake(
    "first-mask",
    lambda length: torch.ones(length, length).triu(1).bool(),
    "Each word looks at the future, and not even at itself.",
)
mistake(
    "first-mask",
    lambda length: torch.eye(length).bool(),
    "Each word looks at itself only. It may also look at all earlier words.",
)
mistake("first-mask", lambda length: torch.ones(length, length).bool(), "Everyone sees everything: nothing is masked.")
