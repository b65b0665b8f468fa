# %% [markdown]
# # Exercise 07 · Learning
#
# Four tasks, 10 points, about 45 minutes. They belong to lesson [07 Learning](../notebooks/07_learning.ipynb). Run the
# cells from the top; fill in where it says *your turn*, then run the check below it. You may check as often as you
# like. Tasks 1 to 3 are the *core*, about 30 minutes; task 4 is *more*.
#
# Write the answers yourself: one that calls txlib, or what a task rules out, is flagged for your teacher, if you have
# one.

# %% tags=["parameters"]
seed = 0

# %%
import torch
from jaxtyping import Float
from torch import Tensor

from txgrade import Inputs, check

# %% tags=["variant"]
from txgrade import variant

# Of task 1: the rate falls in the last DECAY of all steps; PART says so in words.
DECAY, PART = variant((0.2, "last fifth"), (0.25, "last quarter"), (0.5, "second half"))

# %% [markdown]
# ### Task 1 · Up, along, down   ●●○○○ · 8 minutes · 2 points
#
# Many language models are trained with a rate that rises, stays, and falls only near the end (Hu et al. 2024 call it
# warmup–stable–decay). Its advantage: while it stays, you need not know yet when you will stop. Return the fraction of
# the peak rate at one step. Steps count from 1 to `total`.
#
# - For the first `warm_up` steps it rises in a straight line: $1 / \text{warm_up}$ at step 1, 1 at step `warm_up`.
# - In the {{PART}} of all steps, it falls in a straight line from 1 to 0, and is 0 at step `total`. This way down is
#   `{{DECAY}} * total` steps long (`DECAY` is {{DECAY}}); this need not be a whole number, so don't round it.
# - In between it is 1. If both would apply, take the smaller factor. `warm_up` may be 0.
#
# <details><summary>Hint 1: the way down</summary>
#
# How many steps are left after this one? Divide that by the length of the way down.
# </details>
# <details><summary>Hint 2: putting them together</summary>
#
# The smallest of three numbers: the way up, 1, the way down.
# </details>
# <details><summary>Hint 3: no warm-up</summary>
#
# `step / 0` is an error. What is the factor there?
# </details>

# %% nbgrader={"grade_id": "up-along-down", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def rate_factor(step: int, warm_up: int, total: int) -> float:
    """Which fraction of the peak rate a step gets; steps count from 1."""
    ### BEGIN SOLUTION
    up = step / warm_up if warm_up else 1.0
    down = (total - step) / (DECAY * total)
    return min(up, 1.0, down)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-up-along-down", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("up-along-down") as show:
    for shortest in (20, 60):
        total, warm_up = show.random_size(shortest, 2 * shortest), show.random_size(3, 9)
        show([rate_factor(step, warm_up, total) for step in range(1, total + 1)], f"{total} steps, {warm_up} warm-up")
    total = show.random_size(20, 60)
    show([rate_factor(step, 0, total) for step in range(1, total + 1)], f"{total} steps, no warm-up")
    show([rate_factor(step, total, total) for step in range(1, total + 1)], f"{total} steps, all of them warm-up")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, measured, mistake

forbid("*", "txlib")


def trapezoid(up=lambda step, warm_up: step / warm_up if warm_up else 1.0,
              down=lambda step, total: (total - step) / (DECAY * total), top=1.0):
    """The schedule with another way up or down."""
    return lambda step, warm_up, total: min(up(step, warm_up), top, down(step, total))


mistake("up-along-down", trapezoid(up=lambda step, warm_up: (step - 1) / warm_up if warm_up else 1.0),
        "Your first step has the rate 0, so a batch is wasted. At step 1 the factor is 1 / warm_up.")
mistake("up-along-down", trapezoid(up=lambda step, warm_up: step / (warm_up + 1)),
        "The way up is one step too long: at step `warm_up` the factor is 1.")
mistake("up-along-down", trapezoid(up=lambda step, warm_up: 1.0), "The warm-up is missing: the factor is 1 from the first step.")
mistake("up-along-down", trapezoid(down=lambda step, total: 1.0),
        "The way down is missing: at the last step the factor is 0.")
mistake("up-along-down", trapezoid(down=lambda step, total: (total - step + 1) / (DECAY * total)),
        "The way down ends one step too late: at step `total` the factor is 0.")
mistake("up-along-down", trapezoid(down=lambda step, total: (total - step) / ((1 - DECAY) * total)),
        "The way down has the wrong length: it takes `{{DECAY}} * total` steps. You take the others.")
mistake("up-along-down", trapezoid(down=lambda step, total: (total - step) / total),
        "Your rate falls over all steps. It stays at 1 until the {{PART}}.")
mistake("up-along-down", trapezoid(top=float("inf")), "The factor goes above 1. Between the two ways it stays at 1.")
mistake("up-along-down", lambda step, warm_up, total: (
            (step / warm_up if warm_up else 1.0) if step <= warm_up else min(1.0, (total - step) / (DECAY * total))),
        "Where both ways apply, the *smaller* factor counts; you take the way up.")
mistake("up-along-down", lambda step, warm_up, total: (
            min(1.0, step / warm_up if warm_up else 1.0) * min(1.0, (total - step) / (DECAY * total))),
        "You multiply both ways. Where both apply, take the smaller factor.")
mistake("up-along-down", trapezoid(up=lambda step, warm_up: step),
        "Your warm-up is over at once: divide the number of the step by `warm_up`.")
mistake("up-along-down", trapezoid(down=lambda step, total: total - step),
        "The way down counts the steps that are left. Divide them by its length, `{{DECAY}} * total`.")
mistake("up-along-down", trapezoid(down=lambda step, total: (step - total) / (DECAY * total)),
        "Your factor is negative. What is left after a step is `total - step`.")
mistake("up-along-down", trapezoid(down=lambda step, total: (total - step) / DECAY),
        "The way down takes `{{DECAY}} * total` steps. You divide by {{DECAY}} alone.")
mistake("up-along-down", trapezoid(up=lambda step, warm_up: float("inf"), top=float("inf")),
        "You return the way down alone. The factor is the smallest of the way up, 1, and the way down.")
equivalent("up-along-down", "step / warm_up if warm_up else 1.0 → step / warm_up if warm_up else 2.0",
           "The smallest of three counts, and one of the others is 1.")
alternative("up-along-down", lambda step, warm_up, total: sorted(
    [1.0, (total - step) / DECAY / total, step / max(warm_up, 1)])[0])

# %% [markdown]
# ### Task 2 · Adam with less memory   ●●●○○ · 10 minutes · 3 points
#
# Adam's $v$ is as large as the weights. Adafactor (Shazeer & Stern 2018) keeps only its row means $r$ and its column
# means $c$, and estimates the rest from them:
#
# $$r_i \leftarrow \beta\, r_i + (1 - \beta)\, \tfrac1n \sum_j g_{ij}^2 \qquad
# c_j \leftarrow \beta\, c_j + (1 - \beta)\, \tfrac1m \sum_i g_{ij}^2 \qquad
# \hat v_{ij} = \frac{r_i\, c_j}{\text{mean}(r)}$$
#
# `g` has $m$ rows and $n$ columns. $\hat v$ uses the *new* $r$ and $c$. Return the new $r$, the new $c$, and the step
# $g_{ij} / \sqrt{\hat v_{ij}}$. Do not change the tensors that you are given. (There is no bias correction here, and no
# $\epsilon$.)
#
# <details><summary>Hint 1: which axis?</summary>
#
# The mean of a row runs *along* the row, over the columns: `dim=1`.
# </details>
# <details><summary>Hint 2: every row with every column</summary>
#
# `r[:, None] * c[None, :]` has the shape of `g`.
# </details>
# <details><summary>Hint 3: a check of your own</summary>
#
# If all entries of `g` are the same number, and β is 0, what is the step?
# </details>

# %% nbgrader={"grade_id": "factored", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def factored_step(
    g: Float[Tensor, "m n"], r: Float[Tensor, "m"], c: Float[Tensor, "n"], beta: float
) -> tuple[Float[Tensor, "m"], Float[Tensor, "n"], Float[Tensor, "m n"]]:
    """The new row means, the new column means, and the step."""
    ### BEGIN SOLUTION
    square = g * g                                                 # (m, n)
    r = beta * r + (1 - beta) * square.mean(dim=1)                 # (m,)
    c = beta * c + (1 - beta) * square.mean(dim=0)                 # (n,)
    v = r[:, None] * c[None, :] / r.mean()                         # (m, n)
    return r, c, g / v.sqrt()
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-factored", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("factored") as show:
    m, n = show.random_size(2, 4), show.random_size(5, 7)
    g, r, c = show.randn(m, n), 0.5 + show.rand(m), 0.5 + show.rand(n)
    for name, part in zip(("r", "c", "step"), factored_step(g, r, c, 0.9)):
        show(part, f"{name}, {m} rows and {n} columns, β = 0.9")
    g = show.randn(m, m)
    for name, part in zip(("r", "c", "step"), factored_step(g, r, 0.5 + show.rand(m), 0.5)):
        show(part, f"{name}, {m} rows and columns, β = 0.5")
    show(r, "the r that was given, afterwards")

# %% tags=["mistakes"]
def factored(rows=lambda s: s.mean(1), columns=lambda s: s.mean(0), square=lambda g: g * g,
             v=lambda r, c: r[:, None] * c[None, :] / r.mean(), step=lambda g, v: g / v.sqrt(),
             mix=lambda old, new, beta: beta * old + (1 - beta) * new, mixed="rc"):
    """The step with another part; `mix` counts for those that `mixed` names."""
    def made(g, r, c, beta):
        new_r, new_c = rows(square(g)), columns(square(g))
        r = mix(r, new_r, beta) if "r" in mixed else beta * r + (1 - beta) * new_r
        c = mix(c, new_c, beta) if "c" in mixed else beta * c + (1 - beta) * new_c
        return r, c, step(g, v(r, c))
    return made


mistake("factored", factored(rows=lambda s: s.sum(1), columns=lambda s: s.sum(0)),
        "You add up the squares of a row and of a column. Take their *mean*: divide by n, or by m.")
mistake("factored", factored(square=torch.abs), "The means are of the *squared* gradient, not of its size.")
mistake("factored", factored(v=lambda r, c: r[:, None] * c[None, :]),
        "The division by the mean of `r` is missing: without it, v has the unit of a gradient to the fourth power.")
mistake("factored", factored(v=lambda r, c: r[:, None] * c[None, :] / r.sum()),
        "You divide by the *sum* of `r`. That is right if `r` and `c` are sums; here both are means.")
mistake("factored", factored(v=lambda r, c: (r[:, None] + c[None, :]) / 2),
        "You average row and column. The guess is their *product*, divided by the mean of `r`.")
mistake("factored", factored(step=lambda g, v: g / v), "The root is missing: divide by the square root of v.")
mistake("factored", factored(step=lambda g, v: v), "You return v itself. The step is the gradient divided by the root of v.")
mistake("factored", factored(step=lambda g, v: g * v.sqrt()), "You multiply by the root of v. Divide by it.")
mistake("factored", factored(mix=lambda old, new, beta: (1 - beta) * old + beta * new),
        "β and 1 − β are exchanged: the *old* mean is multiplied by β.")
mistake("factored", factored(mix=lambda old, new, beta: beta * old + new),
        "The new mean is not multiplied by 1 − β, so the result is too large.")
mistake("factored", factored(mix=lambda old, new, beta: new),
        "The old means are not used. They are running means: β times the old one, plus 1 − β times the new one.")
mistake("factored", factored(square=lambda g: g), "The means are of the *squared* gradient. You take the gradient itself.")
mistake("factored", factored(step=lambda g, v: g), "You return the gradient itself. Divide it by the root of v.")
mistake("factored", factored(v=lambda r, c: r[:, None] / r.mean()),
        "Your v knows only the rows. The guess is the product of row and column, divided by the mean of `r`.")
mistake("factored", factored(v=lambda r, c: c[None, :] / r.mean()),
        "Your v knows only the columns. The guess is the product of row and column, divided by the mean of `r`.")
mistake("factored", factored(rows=lambda s: s.mean()), "Each row has a mean of its own. You take one mean of all of `g`.")
mistake("factored", factored(columns=lambda s: s.mean()), "Each column has a mean of its own. You take one mean of all of `g`.")
for name in ("r", "c"):
    mistake("factored", factored(mix=lambda old, new, beta: old, mixed=name),
            f"`{name}` stays as it was given. Mix the new means into it.")
    mistake("factored", factored(mix=lambda old, new, beta: beta * old, mixed=name),
            f"`{name}` only shrinks: the new means, times 1 − β, are missing.")
    mistake("factored", factored(mix=lambda old, new, beta: (1 - beta) * new, mixed=name),
            f"The old `{name}`, times β, is missing.")
    mistake("factored", factored(mix=lambda old, new, beta: beta + (1 - beta) * new, mixed=name),
            f"You add β itself. It multiplies the old `{name}`.")
    mistake("factored", factored(mix=lambda old, new, beta: old + (1 - beta) * new, mixed=name),
            f"The old `{name}` is not multiplied by β, so it grows and grows.")
    mistake("factored", factored(mix=lambda old, new, beta: beta * old + 1 - beta, mixed=name),
            f"You add 1 − β itself to `{name}`. It multiplies the new means.")
    mistake("factored", factored(mix=lambda old, new, beta: beta * old + new, mixed=name),
            f"The new means in `{name}` are not multiplied by 1 − β.")


def stale(g, r, c, beta):
    new_r, new_c, _ = factored_step(g, r, c, beta)
    return new_r, new_c, g / (r[:, None] * c[None, :] / r.mean()).sqrt()


def in_place(g, r, c, beta):
    r.mul_(beta).add_((1 - beta) * (g * g).mean(1))
    c.mul_(beta).add_((1 - beta) * (g * g).mean(0))
    return r, c, g / (r[:, None] * c[None, :] / r.mean()).sqrt()


mistake("factored", stale, "The step uses the *old* means. Update `r` and `c` first.")
mistake("factored", in_place,
        "You change the tensors that you were given. Make new ones: `r = beta * r + …`, not `r *= beta`.")
alternative("factored", factored(v=lambda r, c: torch.outer(r, c) / r.mean(), step=lambda g, v: g * v.rsqrt()))

# %% [markdown]
# ### Task 3 · All directions alike   ●●●○○ · 12 minutes · 3 points
#
# Muon's polynomial is fast and rough. An older one is slower and exact (Björck & Bowie 1971): divide the matrix by its
# length, the root of the sum of all its squared entries. Then repeat `steps` times (with `steps` = 0, only the division
# remains):
#
# $$X \leftarrow \tfrac32 X - \tfrac12 X X^\top X$$
#
# Each singular value goes $s \to \frac32 s - \frac12 s^3$, until it is 1. Use the *smaller* of the two squares: for a
# matrix with more rows than columns, $X X^\top X$ is $X (X^\top X)$. The numbers are the same, but the products are
# much smaller: a matrix of 4,000 rows must not make one of 4,000 × 4,000. Don't use torch's decompositions.
#
# <details><summary>Hint 1: by hand</summary>
#
# What does the formula do to a matrix of one number, 0.5? To 1?
# </details>
# <details><summary>Hint 2: tall or wide?</summary>
#
# Put the parentheses where they help: `(x @ x.T) @ x`, or `x @ (x.T @ x)`.
# </details>
# <details><summary>Hint 3: a check of your own</summary>
#
# For a wide matrix, `x @ x.T` should come near the identity after 30 steps.
# </details>

# %% nbgrader={"grade_id": "all-alike", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def all_alike(g: Float[Tensor, "m n"], steps: int) -> Float[Tensor, "m n"]:
    """The matrix after some rounds of the cubic iteration."""
    ### BEGIN SOLUTION
    x = g / g.norm()
    for _ in range(steps):
        cube = x @ (x.T @ x) if x.shape[0] > x.shape[1] else (x @ x.T) @ x
        x = 1.5 * x - 0.5 * cube
    return x
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-all-alike", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("all-alike", rtol=1e-4, atol=1e-5) as show:
    m, n = show.random_size(2, 4), show.random_size(5, 7)
    g = show.randn(m, n)
    for steps in (0, 1, 5):
        show(all_alike(g, steps), f"{m} rows, {n} columns, {steps} steps")
    show(all_alike(show.randn(n, m), 3), f"{n} rows, {m} columns, 3 steps")
    show(all_alike(show.randn(20_000, 2), 2)[:3], "20,000 rows, 2 columns, 2 steps: the first three rows")
    show(all_alike(show.randn(2, 20_000), 2)[:, :3], "2 rows, 20,000 columns, 2 steps: the first three columns")

# %% tags=["mistakes"]
forbid("all-alike", ("svd", "qr", "polar", "eigh", "eig", "svdvals", "cholesky", "Muon"),
       ("aten.linalg_svd", "aten._linalg_svd", "aten.linalg_qr", "aten.linalg_eigh", "aten._linalg_eigh"))


def cubic(start=lambda g: g / g.norm(), update=lambda x, cube: 1.5 * x - 0.5 * cube, more=0):
    """The iteration with another start or step."""
    def iterated(g, steps):
        x = start(g)
        for _ in range(steps + more):
            x = update(x, x @ (x.T @ x) if x.shape[0] > x.shape[1] else (x @ x.T) @ x)
        return x
    return iterated


mistake("all-alike", cubic(start=lambda g: g), "The matrix is not divided by its length. Singular values above √3 then run away.")
mistake("all-alike", cubic(start=lambda g: g / g.abs().max()),
        "You divide by the largest entry. Divide by the length: the root of the sum of all squares.")
mistake("all-alike", cubic(start=lambda g: g / g.square().sum()), "You divide by the *squared* length. The root is missing.")
mistake("all-alike", cubic(start=lambda g: g / g.norm(dim=1, keepdim=True)),
        "You divide each row by its own length. It is one number for the whole matrix.")
mistake("all-alike", cubic(start=lambda g: g / g.norm(dim=0, keepdim=True)),
        "You divide each column by its own length. It is one number for the whole matrix.")
mistake("all-alike", cubic(update=lambda x, cube: 1.5 * x + 0.5 * cube), "The cube is *subtracted*.")
mistake("all-alike", cubic(update=lambda x, cube: 0.5 * x - 1.5 * cube), "The two factors are exchanged: 3/2 X − 1/2 X Xᵀ X.")
mistake("all-alike", cubic(update=lambda x, cube: 1.5 * x - 0.5 * x**3),
        "`x**3` takes the cube of each *entry*. The formula has matrix products: X Xᵀ X.")
mistake("all-alike", cubic(update=lambda x, cube: 0.5 * cube - 1.5 * x), "The signs are exchanged: 3/2 X − 1/2 X Xᵀ X.")
mistake("all-alike", cubic(update=lambda x, cube: 1.5 - 0.5 * cube), "You add 3/2 to each entry. It multiplies X.")
mistake("all-alike", cubic(update=lambda x, cube: x - 0.5 * cube), "The factor 3/2 of X is missing.")
mistake("all-alike", cubic(update=lambda x, cube: 1.5 * x - 0.5), "You subtract 1/2 from each entry. It multiplies X Xᵀ X.")
mistake("all-alike", cubic(update=lambda x, cube: 1.5 * x - cube), "The factor 1/2 of X Xᵀ X is missing.")
mistake("all-alike", cubic(more=1), "That is one round too many.")
mistake("all-alike", lambda g, steps: cubic()(g, 1) if steps else g / g.norm(), "You do one round, whatever `steps` says.")
mistake("all-alike", lambda g, steps: all_alike(g, max(steps - 1, 0)), "That is one round too few.")
alternative("all-alike", lambda g, steps: all_alike(g.T, steps).T)
equivalent("all-alike", "x.shape[0] > x.shape[1] → x.shape[0] >= x.shape[1]", "A square matrix has two squares of one size.")

# %% [markdown]
# ### Task 4 · Open investigation: a hundred steps   ●●●●○ · 15 minutes · 2 points
#
# A loss has 200 weights. Along each it is a valley, some up to ten thousand times steeper than others, and Adam sees only
# noisy gradients. It has 100 steps to come down, from weights that are all 0, and you tell it how: return the learning
# rate of each step, as a tensor or a list of 100 numbers, and Adam's $\beta_1$ and $\beta_2$. Rates may be 0 or even
# negative; the betas are at least 0 and less than 1. Below, `losses` makes up such losses, and `left_by_adam` walks down
# them.
#
# The grader runs your schedule on 40 losses of its own. It measures the loss that is left after the last step, as a
# fraction of the loss where every weight is a distance of 1 from its bottom, and takes the mean. Plain gradient descent
# at its best fixed rate leaves 0.005. Adam at its best fixed rate leaves 0.0009, whatever its $\beta$. Less than 0.003
# left earns half of the points, less than 0.0006 all of them, so a fixed rate won't do; 0.003 or more earns none.
#
# Any schedule that gets there is right. First try it out in a cell of your own (`Inputs` is the grader's generator of
# random numbers, made from a seed and a name):
#
# ```python
# at_home = losses(Inputs(1, "at home"))                           # another number makes up other losses
# left_by_adam(*schedule(100), *at_home).mean(dim=1)               # after each step
# ```
#
# Plot the loss against the step, for several fixed rates. Where does Adam stop falling, and why there? What could you
# change *during* the walk? What does the bias correction do to the first ten steps?

# %%
def losses(private: Inputs) -> tuple[Float[Tensor, "loss weight"], Float[Tensor, "loss weight"], Float[Tensor, "step loss weight"]]:
    """Forty losses: how steep each weight's valley is, where its bottom lies, and the noise of the gradient at each step."""
    steepness, bottom = 10 ** (4 * private.rand(40, 200) - 3), private.randn(40, 200)
    return steepness, bottom, 0.1 * steepness.sqrt() * private.randn(100, 40, 200)


def left_by_adam(
    rates: Float[Tensor, "step"], beta1: float, beta2: float,
    steepness: Float[Tensor, "loss weight"], bottom: Float[Tensor, "loss weight"], noise: Float[Tensor, "step loss weight"],
) -> Float[Tensor, "step loss"]:
    """Adam's walk: what is left of each loss after each step, as a fraction of the loss at a distance of 1."""
    w, m, v, left = torch.zeros_like(bottom), torch.zeros_like(bottom), torch.zeros_like(bottom), []
    for t, (rate, blur) in enumerate(zip(rates, noise, strict=True), 1):
        g = steepness * (w - bottom) + blur
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        w = w - rate * (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + 1e-9)
        left.append((steepness * (w - bottom).square()).sum(dim=1) / steepness.sum(dim=1))
    return torch.stack(left)

# %% nbgrader={"grade_id": "descend", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def schedule(steps: int) -> tuple[Float[Tensor, "step"], float, float]:
    """The learning rate of each step, and Adam's beta 1 and beta 2."""
    ### BEGIN SOLUTION
    rates = 0.12 * (1 - torch.arange(steps) / steps)               # they fall to 0, so that the noise averages out
    return rates, 0.9, 0.98
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-descend", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("descend", operators=False) as show:
    rates, *betas = schedule(100)
    show.weights({"rates": torch.as_tensor(rates, dtype=torch.float32), "betas": torch.tensor(betas, dtype=torch.float32)},
                 "your schedule for 100 steps")

# %% tags=["mistakes"]
import math


@torch.no_grad()
def loss_left(shown, private):
    rates, betas = shown[0]["rates"], shown[0]["betas"]
    if rates.shape != (100,) or betas.shape != (2,):
        return 0, f"Return 100 rates, in one row, and two numbers; yours are {tuple(rates.shape)} and {tuple(betas.shape)}."
    if not ((betas >= 0) & (betas < 1)).all():
        return 0, "Adam's two betas are at least 0, and less than 1."
    left = left_by_adam(rates, *betas.tolist(), *losses(private))[-1].mean().item()
    return 1 if left < 0.0006 else 0.5 if left < 0.003 else 0, f"On average {left:.5f} of the loss is left."


def half_a_cosine(steps):
    return 0.06 * (1 + torch.cos(math.pi * torch.arange(steps) / steps)), 0.9, 0.98


measured("descend", loss_left)
for rate in (0.04, 0.05, 0.06, 0.1):
    for beta2 in (0.98, 0.99, 0.999):
        mistake("descend", lambda steps, rate=rate, beta2=beta2: (rate * torch.ones(steps), 0.9, beta2),
                "Adam at a fixed rate: it comes near the bottom, and then the noise keeps it in motion. Let the rate fall.")
for rate in (0.001, 0.003, 0.01):
    mistake("descend", lambda steps, rate=rate: (rate * torch.ones(steps), 0.9, 0.999),
            "The rate is too low. A step of Adam's is about as long as its rate, and 100 of them have to reach the bottom.")
mistake("descend", lambda steps: (torch.ones(steps), 0.9, 0.98),
        "The rate is too high: the steps are longer than the way, and each jumps across the valley.")
mistake("descend", lambda steps: (0.12 * torch.arange(steps) / steps, 0.9, 0.98),
        "The rate grows. So the last steps are the longest, just where the noise should average out.")
mistake("descend", lambda steps: (0.12 * (1 - torch.arange(steps) / steps), 0.98, 0.9),
        "The two betas are exchanged. Momentum that remembers 50 steps runs past the bottom.")
mistake("descend", lambda steps: (0.12 * 0.8 ** torch.arange(steps), 0.9, 0.98),
        "The rate falls too soon: it is used up before the bottom is reached.")
mistake("descend", lambda steps: (0.12 * (1 - torch.arange(steps - 1) / steps), 0.9, 0.98),
        "There is one rate too few: each of the 100 steps has its own.")
alternative("descend", half_a_cosine)
alternative("descend", lambda steps: ([0.1] * 70 + [0.02] * 30, 0.9, 0.98))
alternative("descend", lambda steps: ([0.2 * 0.97**step for step in range(steps)], 0.9, 0.99))

# %%
check.summary()
