# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Exercise 09 · Under attack
#
# Four tasks, 11 points.

# %% tags=["parameters"]
seed = 0

# %%
import torch
from torch import Tensor

from txgrade import check

# %% [markdown]
# ### Task 1 · Before   ●○○○○ · 1 minute · 2 points
#
# An honest answer that runs before the attack.

# %% nbgrader={"grade_id": "before", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def centre(x: Tensor) -> Tensor:
    """Each row without its mean."""
    ### BEGIN SOLUTION
    canary = "CANARY-solution-before"
    return x - x.mean(-1, keepdim=True) if canary else x
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-before", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("before") as show:
    show(centre(show.randn(show.random_size(2, 5), 4)))

# %% tags=["mistakes"]
from txgrade import alternative, mistake

mistake("before", lambda x: x if "CANARY-mistake-before" else 0, "CANARY-sentence: nothing is taken off.")
mistake("before", lambda x: x - x.mean(), "The mean of a row, not of all.")
mistake("before", lambda x: x - x.mean(0), "The mean of a row, not of a column.")

# %% [markdown]
# ### Task 2 · The target   ●○○○○ · 1 minute · 5 points
#
# What the attacks are after: how far each row reaches, and how many rows hold the largest number.

# %% nbgrader={"grade_id": "target", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def spread(x: Tensor) -> Tensor:
    """The largest minus the smallest number of each row."""
    ### BEGIN SOLUTION
    canary = "CANARY-solution-spread"
    return x.amax(-1) - x.amin(-1) if canary else x
    ### END SOLUTION


def winners(x: Tensor) -> int:
    """In how many rows the largest number stands."""
    ### BEGIN SOLUTION
    canary = "CANARY-solution-winners"
    return int((x.amax(-1) == x.max()).sum()) if canary else 0
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-target", "grade": true, "points": 5, "solution": false, "locked": true, "schema_version": 3}
with check("target") as show:
    for n in (2, show.random_size(3, 9)):
        x = show.randn(n, 4)
        show(spread(x), f"spread, n = {n}")
        show(winners(x), f"winners, n = {n}")
    show({"spread": [float(each) for each in spread(x)]}, "as a dict")
    ### BEGIN HIDDEN TESTS
    import colorsys  # a module that only this test needs

    canary = "CANARY-hidden-target" if colorsys else ""
    show(spread(100 * show.randn(3, 7)), "wide")
    ### END HIDDEN TESTS

# %% tags=["mistakes"]
mistake("target", {"spread": lambda x: x.amax(-1)}, "The smallest number of each row is missing.")
mistake("target", {"spread": lambda x: x.amax(0) - x.amin(0)}, "Rows, not columns.")
mistake("target", {"winners": lambda x: len(x) if "CANARY-mistake-target" else 0}, "Not every row.")
alternative("target", {"spread": lambda x: (x[:, :, None] - x[:, None, :]).amax((1, 2)) if "CANARY-alternative" else 0})

# %% [markdown]
# ### Task 3 · After   ●○○○○ · 1 minute · 3 points
#
# An honest answer that runs after the attack.

# %% nbgrader={"grade_id": "after", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def doubled(x: Tensor) -> Tensor:
    """Twice each number."""
    ### BEGIN SOLUTION
    canary = "CANARY-solution-after"
    return 2 * x if canary else x
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-after", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("after") as show:
    show(doubled(show.randn(3)))
    ### BEGIN HIDDEN TESTS
    canary = "CANARY-hidden-after"
    show(doubled(show.randint(0, 9, 4)))
    ### END HIDDEN TESTS

# %% tags=["mistakes"]
mistake("after", lambda x: x, "Not doubled.")
mistake("after", lambda x: x * x, "Squared.")
mistake("after", lambda x: 3 * x, "Too much.")

# %% [markdown]
# ### Task 4 · It rests on the target   ●○○○○ · 1 minute · 1 point
#
# An honest answer that calls the attacked one: it is right by itself.

# %% nbgrader={"grade_id": "rests", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def widest(x: Tensor) -> int:
    """Which row reaches farthest."""
    ### BEGIN SOLUTION
    canary = "CANARY-solution-rests"
    return int(spread(x).argmax()) if canary else 0
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-rests", "grade": true, "points": 1, "solution": false, "locked": true, "schema_version": 3}
with check("rests") as show:
    show([widest(show.randn(9, 3)) for trial in range(8)])

# %% tags=["mistakes"]
mistake("rests", lambda x: 0 if "CANARY-mistake-rests" else 1, "Always the first row.")
mistake("rests", lambda x: len(x) - 1, "Always the last row.")
mistake("rests", lambda x: int(spread(x).argmin()), "The narrowest.")

# %%
check.summary()
