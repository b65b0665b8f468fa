# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Exercise 09 · Everything an exercise can ask
#
# Five tasks, 14 points. Run the cells from the top; fill in where it says *your turn*. Please write the softmax yourself.

# %% tags=["parameters"]
seed = 0

# %%
import matplotlib.pyplot as plt
import torch
from jaxtyping import Float
from torch import Tensor, nn

from txgrade import check

# %% [markdown]
# ### Task 1 · Two sums   ●○○○○ · 5 minutes · 3 points
#
# `double` gives each number twice; `total` adds the numbers up, 0 for none. Each counts by itself.

# %% nbgrader={"grade_id": "double-sum", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def double(x: Float[Tensor, " n"]) -> Float[Tensor, " 2n"]:
    """[a, b] becomes [a, a, b, b]."""
    # BEGIN SOLUTION
    return x.repeat_interleave(2)
    # END SOLUTION


def total(x: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """The sum of all numbers."""
    # BEGIN SOLUTION
    return x.sum()
    # END SOLUTION

# %% nbgrader={"grade_id": "check-double-sum", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("double-sum") as show:
    x = show.randn(show.random_size(2, 6))
    show.call(double, x, label="double", points=1)
    show.call(total, x, label="total", points=1)
    show.call(lambda one: [total(one), total(one[:0])], show.randn(1), label="totals of one and of nothing", points=1)
    ## BEGIN HIDDEN TESTS
    show.call(total, show.randn(2000), label="total of many", points=1)
    ## END HIDDEN TESTS

# %% tags=["mistakes"]
from txgrade import allow, alternative, due, forbid, measured, mistake

due("2026-12-01 23:59", timezone="Europe/Zurich", grace_minutes=10, per_day=0.1, at_most=0.5)

allow("double-sum", "nansum", reason="`total` is a sum, by whatever name.")
mistake("double-sum", {"double": lambda x: x.repeat(2)},
        "`repeat` puts the whole behind the whole: a, b, a, b. Each number is to stand beside its twin.")
mistake("double-sum", {"total": lambda x: x.mean()}, "This is the mean, not the sum.")
mistake("double-sum", {"double": lambda x: 2 * x}, "`double` is to repeat the numbers, not to multiply them.")
mistake("double-sum", {"total": lambda x: x[0] + total(x[1:])}, "There may be no numbers at all: then the sum is 0.")
mistake("double-sum", {"double": lambda x: x.repeat(2), "total": lambda x: x.cumsum(0)},
        "Neither yet: `total` is one number, and `double` is to keep twins together.")
alternative("double-sum", {"double": lambda x: torch.stack([x, x], 1).flatten(), "total": lambda x: x @ torch.ones_like(x)})

# %% [markdown]
# ### Task 2 · Draw a wave   ●○○○○ · 5 minutes · 2 points
#
# Draw sin(x) over x as a line, in axes of their own. Name the x axis `x` and the y axis `sin x`. Return the axes.

# %% nbgrader={"grade_id": "plot-curve", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def plot_curve(x: Float[Tensor, " n"]) -> plt.Axes:
    """The axes of a new figure, with the wave in it."""
    ### BEGIN SOLUTION
    _, axes = plt.subplots(figsize=(4, 2.5), layout="constrained")
    axes.plot(x, x.sin())
    axes.set(xlabel="x", ylabel="sin x")
    return axes
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-plot-curve", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("plot-curve") as show:
    show.axes(plot_curve(show.randn(show.random_size(4, 9)).cumsum(0)), what=("lines", "labels"))

# %% tags=["mistakes"]
def drawn(x, y, xlabel="x", ylabel="sin x"):
    _, axes = plt.subplots()
    axes.plot(x, y)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    return axes


def scattered(x):
    axes = drawn([], [])
    axes.lines[0].remove()
    axes.scatter(x, x.sin())
    return axes


mistake("plot-curve", lambda x: drawn(x, x.cos()), "This is the cosine.")
mistake("plot-curve", lambda x: drawn(x.sin(), x), "The two axes are swapped.")
mistake("plot-curve", lambda x: drawn(x, x.sin(), "", ""), "Name both axes: `x` and `sin x`.")
mistake("plot-curve", scattered, "These are dots. Draw a line: `plot`.")
alternative("plot-curve", lambda x: drawn(x.tolist(), [float(each.sin()) for each in x]))

# %% [markdown]
# ### Task 3 · Fit a line   ●●○○○ · 10 minutes · 4 points
#
# Train a linear model, y ≈ w x + b, on the points given. The grader measures its mean squared error on points that are
# not in this notebook: all points of the task below 0.05, half of them below 0.5.

# %%
def noisy_points(private):
    """Points near a line of some slope and height from 1 to 2: x and y, and the line."""
    slope, height = (1 + private.rand(2)).tolist()
    x = private.randn(64, 1)
    return x, slope * x + height + 0.1 * private.randn(64, 1), (slope, height)

# %% nbgrader={"grade_id": "fit-line", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def fit_line(x: Float[Tensor, "n 1"], y: Float[Tensor, "n 1"]) -> nn.Linear:
    """A trained model."""
    ### BEGIN SOLUTION
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(300):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-fit-line", "grade": true, "points": 4, "solution": false, "locked": true, "schema_version": 3}
with check("fit-line") as show:
    x, y = show.private(lambda private: noisy_points(private)[:2])
    show.weights(fit_line(x, y), "the line")

# %% tags=["mistakes"]
@torch.no_grad()
def on_unseen_points(shown, private):
    _, _, (slope, height) = noisy_points(private)
    model = nn.Linear(1, 1)
    model.load_state_dict(shown[0])
    x = private.randn(1000, 1)
    error = float((model(x) - (slope * x + height)).square().mean())
    share = 1 if error < 0.05 else 0.5 if error < 0.5 else 0
    return share, f"The mean squared error on points not seen is {error:.3f}."


def untrained(x, y):
    return nn.Linear(1, 1)


def without_bias(x, y):
    model = fit_line(x, y)
    model.bias.data.zero_()
    return model


def too_short(x, y):
    model = fit_line(x, y)
    model.weight.data += 0.5
    model.bias.data += 0.2
    return model


measured("fit-line", on_unseen_points)
mistake("fit-line", untrained, "The model is returned as it was made, untrained.")
mistake("fit-line", without_bias, "The bias is missing.")
mistake("fit-line", too_short, "It is on its way. Train longer.")


def least_squares(x, y):
    slope, height = torch.linalg.lstsq(torch.cat([x, torch.ones_like(x)], 1), y).solution
    return {"weight": slope[None], "bias": height}


alternative("fit-line", least_squares)

# %% [markdown]
# ### Task 4 · Explain the mask   ●●○○○ · 5 minutes · 2 points
#
# Why may a decoder not see the next word while it is trained? Two or three sentences.

# %% [markdown] nbgrader={"grade_id": "explain-mask", "solution": true, "grade": true, "points": 2, "locked": false, "schema_version": 3}
# <!-- BEGIN SOLUTION -->
# It would learn to copy the next word instead of predicting it, and when it writes, there is no next word to copy.
# <!-- END SOLUTION -->

# %% [markdown] tags=["rubric"]
# 1 point: it could copy what it is to predict. 1 point: while it writes, the next word is not there.

# %% [markdown]
# ### Task 5 · Softmax, row by row   ●●○○○ · 5 minutes · 3 points
#
# Write it with `exp` and `sum`. Large scores must not overflow.

# %% nbgrader={"grade_id": "softmax-rows", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def softmax_rows(x: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    """Each row becomes positive and adds up to 1."""
    ### BEGIN SOLUTION
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-softmax-rows", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("softmax-rows") as show:
    x = show.randn(show.random_size(2, 4), show.random_size(5, 7))
    show(softmax_rows(x), "ordinary scores")
    show(softmax_rows(1000 * x), "large scores")
    ### BEGIN HIDDEN TESTS
    show(softmax_rows(x - 1e4), "low scores")
    ### END HIDDEN TESTS

# %% tags=["mistakes"]
forbid("softmax-rows", ("softmax", "log_softmax", "Softmax"), operators=("aten._softmax", "aten._log_softmax", "aten._safe_softmax"))

mistake("softmax-rows", lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
        "Large scores overflow: `exp(1000)` is infinite. Subtract each row's largest score first.")
mistake("softmax-rows", lambda x: x.softmax(0), "This runs down the columns. Each *row* is to add up to 1.")
mistake("softmax-rows", lambda x: (x - x.amax(-1, keepdim=True)).exp(), "The division by the row's sum is missing.")
alternative("softmax-rows", lambda x: x.softmax(-1))

# %%
check.summary()
