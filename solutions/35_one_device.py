# %% [markdown]
# # Exercise 35 · One device
#
# Three tasks, 6 points, about 30 minutes, all of them the core. They belong to lesson
# [35 One device](../notebooks/35_one_device.ipynb). Run the cells from the top; fill in where it says *your turn*, then run
# the check below it. You may check as often as you like.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0

# %%
import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from txgrade import check

# %% [markdown]
# ### Task 1 · The best scale   ●●○○○ · 8 minutes · 2 points
#
# These are the gradients of a step, in 32 bits. Return the largest power of two $S$ for which no $S \cdot$ gradient is
# beyond float16's largest number, 65,504. Scaled by that $S$, some gradients that are not zero still become zero in float16:
# return their fraction of all that are not zero as well. Two floats.
#
# <details><summary>Hint 1: which gradient decides?</summary>
#
# The one with the largest absolute value, of all tensors.
# </details>
# <details><summary>Hint 2: a power of two</summary>
#
# `2.0 ** math.floor(math.log2(65504 / largest))`. The exponent may be negative.
# </details>
# <details><summary>Hint 3: what is lost?</summary>
#
# `(S * gradient).half() == 0`, but only where `gradient != 0`.
# </details>

# %% nbgrader={"grade_id": "scale", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def best_scale(gradients: list[Float[Tensor, "..."]]) -> tuple[float, float]:
    """The largest safe power of two, and the fraction of gradients that still vanish."""
    ### BEGIN SOLUTION
    every = torch.cat([gradient.flatten() for gradient in gradients])
    every = every[every != 0]
    scale = 2.0 ** math.floor(math.log2(65504 / every.abs().max().item()))
    return scale, ((scale * every).half() == 0).float().mean().item()
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-scale", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("scale") as show:
    wide = [show.randn(6, 5) * 10 ** (-12 * show.rand(6, 5)), show.randn(7) * 1e-3]
    show(best_scale(wide), "gradients of very different sizes")
    large = [1e6 * show.randn(4, 4), show.randn(50) * 10 ** (-10 * show.rand(50))]
    large[0] *= show.random_size(1, 60)
    show(best_scale(large), "the first tensor has very large ones")
    show(best_scale(large[::-1]), "in the other order")
    half = torch.cat([torch.zeros(20), 10 ** -(6 + 6 * show.rand(60))])
    show(best_scale([half, torch.tensor([-7.0 * show.random_size(1, 500)])]), "some of them zero, the largest negative")
    show([best_scale([half, torch.tensor([largest])]) for largest in (65_503.0, 65_504.0, 65_505.0)],
         "the largest just below, at and above 65,504")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", ("txlib", "__closure__", "cell_contents"))


def scaled(pick=lambda g: torch.cat([each.flatten() for each in g]), largest=lambda every: every.abs().max(),
           power=lambda x: 2.0 ** math.floor(math.log2(x)), without_zeros=True, lost=lambda s, e: (s * e).half() == 0):
    """The scale with something wrong."""
    def answer(gradients):
        every = pick(gradients)
        whole = torch.cat([each.flatten() for each in gradients])
        whole = whole[whole != 0] if without_zeros else whole
        scale = power(65504 / largest(every).item())
        return scale, lost(scale, whole).float().mean().item()
    return answer


mistake("scale", scaled(pick=lambda g: g[0]), "Only the first tensor is asked. One overflow anywhere spoils the step.")
mistake("scale", scaled(largest=lambda every: every.max() if (every > 0).any() else every.abs().max()),
        "Negative gradients overflow as well: take absolute values.")
mistake("scale", scaled(power=lambda x: x), "This is not a power of two. Others round every gradient a second time.")
mistake("scale", scaled(power=lambda x: 2.0 ** math.ceil(math.log2(x))), "Rounded up: the largest gradient overflows.")
mistake("scale", scaled(power=lambda x: 2.0**16), "2¹⁶ is where a scaler begins. Here the gradients themselves say what is best.")
mistake("scale", scaled(power=lambda x: max(1.0, 2.0 ** math.floor(math.log2(x)))),
        "The scale may be below 1, where gradients are too large as they are.")
mistake("scale", scaled(without_zeros=False), "The share counts zeros that were zero before. They have lost nothing.")
mistake("scale", scaled(lost=lambda s, e: e.half() == 0), "The share is that without scaling. Multiply by S first.")
mistake("scale", scaled(lost=lambda s, e: (s * e).abs() < 2.0**-14),
        "Below 2⁻¹⁴ float16 has fewer digits, but its numbers go on down to 2⁻²⁴. Only what is rounded to zero is lost.")
mistake("scale", scaled(largest=lambda every: every.abs().mean()), "The mean does not overflow; the largest does.")


def by_doubling(gradients):
    every = torch.cat([each.flatten() for each in gradients]).double()
    every, scale = every[every != 0], 2.0**40
    while (scale * every).abs().max() > 65504:
        scale /= 2
    return scale, ((scale * every).half() == 0).double().mean().item()


alternative("scale", by_doubling)

# %% [markdown]
# ### Task 2 · Repair the means   ●●●○○ · 10 minutes · 2 points
#
# Some code cannot be changed. On each of several devices (called *ranks*), for each part of its batch, it takes the *mean* loss
# over the tokens that count, and hands you the gradient of that, with the number of tokens. Where a part has no token that
# counts, mean and gradient are 0 / 0: no numbers. Return the gradient of the mean loss over all tokens of all ranks.
#
# If there is no token at all, return zeros.
#
# <details><summary>Hint 1: from a mean to a sum</summary>
#
# A mean times its number of tokens is the sum.
# </details>
# <details><summary>Hint 2: what is not a number</summary>
#
# 0 · nan is nan. `torch.where(tokens > 0, …, 0)` chooses, and does not multiply.
# </details>
# <details><summary>Hint 3: shapes</summary>
#
# `tokens[..., None]` is (ranks, parts, 1). Sum over the first two axes, divide by `tokens.sum().clamp(min=1)`.
# </details>

# %% nbgrader={"grade_id": "mend", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def mend(gradients: Float[Tensor, "ranks parts N"], tokens: Int[Tensor, "ranks parts"]) -> Float[Tensor, "N"]:
    """The gradient of the mean over all tokens, from gradients of means."""
    ### BEGIN SOLUTION
    count = tokens[..., None]                                      # (ranks, parts, 1)
    sums = torch.where(count > 0, count * gradients, 0.0)          # (ranks, parts, N)
    return sums.sum(dim=(0, 1)) / tokens.sum().clamp(min=1)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-mend", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("mend") as show:
    gradients = show.randn(3, 2, 5)
    show(mend(gradients, torch.full((3, 2), 7)), "equally many tokens everywhere")
    tokens = torch.tensor([[show.random_size(1, 50) for _ in range(2)] for _ in range(3)])
    show(mend(gradients, tokens), f"tokens {tokens.tolist()}")
    gradients[1, 0], tokens[1, 0] = torch.nan, 0
    show(mend(gradients, tokens), "one part without tokens")
    show(mend(torch.full((2, 2, 5), torch.nan), torch.zeros(2, 2, dtype=torch.long)), "no token at all")
    only = torch.full((2, 3, 4), torch.nan)
    only[1, 2] = show.randn(4)
    show([mend(only, torch.tensor([[0, 0, 0], [0, 0, count]])) for count in (1, 2)], "one token, or two, in a single part of one rank")

# %% tags=["mistakes"]
def weighed(weight=lambda t: t / t.sum(), clean=True):
    """The sum with something wrong."""
    def answer(gradients, tokens):
        share = torch.nan_to_num(weight(tokens.float()), posinf=0.0, neginf=0.0)[..., None]
        gradients = gradients.nan_to_num() if clean else gradients
        return (share * gradients).sum(dim=(0, 1))
    return answer


mistake("mend", weighed(lambda t: torch.ones_like(t) / t.numel()),
        "This is the mean of the means. A token of a short part then counts for more than one of a long part.")
mistake("mend", weighed(lambda t: (t > 0) / (t > 0).sum()),
        "This is the mean of the means that exist. A token of a short part still counts for more.")
mistake("mend", weighed(lambda t: torch.ones_like(t)), "The means are added. Their sum grows with the number of ranks.")
mistake("mend", weighed(lambda t: t), "This is the gradient of the *sum* over all tokens. Divide by their number.")
mistake("mend", weighed(lambda t: t / t.sum(dim=1, keepdim=True) / len(t)),
        "Within a rank it is right; but ranks are averaged as if all had the same number of tokens.")
mistake("mend", weighed(lambda t: t / t.sum(dim=0, keepdim=True) / t.shape[1]),
        "Each part is right over the ranks; but parts are averaged as if all had the same number of tokens.")
mistake("mend", weighed(lambda t: t / t.sum(), clean=False),
        "The weights are right, but 0 · nan is nan: one empty part spoils the whole gradient. Choose with `torch.where`.")
def summed(weight=lambda count: count, axes=(0, 1), total=lambda tokens: tokens.sum().clamp(min=1)):
    """Sums, chosen where there are tokens, with something wrong."""
    def answer(gradients, tokens):
        count = tokens[..., None]
        return torch.where(count > 0, weight(count) * gradients, 0.0).sum(dim=axes) / total(tokens)
    return answer


mistake("mend", summed(weight=lambda count: 1),
        "The means are added and divided by the number of tokens. First make a sum of each mean: multiply by its tokens.")
for axes in ((0, 2), (0, 1, 2)):
    mistake("mend", summed(axes=axes), "The numbers of the gradient are added up, too. Sum over ranks and parts only.")
mistake("mend", summed(total=lambda tokens: tokens.sum()), "Where there is no token at all, this is 0 / 0. Zeros were asked for.")
mistake("mend", weighed(lambda t: t / t.numel()),
        "The sums are divided by the number of parts. Divide by the number of tokens.")


def one_by_one(gradients, tokens):
    total = torch.zeros(gradients.shape[-1])
    for row, counts in zip(gradients, tokens):
        for gradient, count in zip(row, counts.tolist()):
            total += count * gradient if count else 0
    return total / max(int(tokens.sum()), 1)


alternative("mend", one_by_one)

# %% [markdown]
# ### Task 3 · What to keep of a deep stack   ●●●○○ · 10 minutes · 2 points
#
# A stack has $L$ blocks. Checkpointing may keep the input of every block, or only of every second, every third …: of every
# $s$-th. In the backward pass, a *segment* of $s$ blocks is then computed again at once, and all that its blocks keep is there
# together: `inside` per block. An input counts 1. (The last segment may be shorter. Its input is kept as well.)
#
# Return the $s$ with the smallest peak, the smaller one of equals, and that peak.
#
# <details><summary>Hint 1: two parts</summary>
#
# Inputs: one per segment, $\lceil L / s \rceil$. And one segment's insides: $s \cdot$ `inside`.
# </details>
# <details><summary>Hint 2: which is best?</summary>
#
# Try all $s$ from 1 to $L$.
# </details>
# <details><summary>Hint 3: on paper</summary>
#
# $L / s + s \cdot \text{inside}$ is smallest at $s = \sqrt{L / \text{inside}}$. But $s$ is a whole number, and $L/s$ is rounded up.
# </details>

# %% nbgrader={"grade_id": "segments", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def segments(L: int, inside: int) -> tuple[int, int]:
    """The length of a segment with the smallest peak, and that peak."""
    ### BEGIN SOLUTION
    def peak(s):
        return math.ceil(L / s) + s * inside

    best = min(range(1, L + 1), key=peak)
    return best, peak(best)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-segments", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("segments") as show:
    show(segments(96, 16), "96 blocks that keep 16")
    show(segments(100, 1), "100 blocks that keep 1")
    show(segments(1, 16), "a single block")
    show([segments(L, 2) for L in (7, 25, 56)], "7, 25 and 56 blocks that keep 2")
    for low, high in ((150, 900), (1000, 3000), (20, 80)):
        L, inside = show.random_size(low, high), show.random_size(3, 20)
        show(segments(L, inside), f"{L} blocks that keep {inside}")

# %% tags=["mistakes"]
def cut(peak=lambda L, s, inside: math.ceil(L / s) + s * inside, pick=None, said=None):
    """The choice with something wrong."""
    def answer(L, inside):
        best = pick(L, inside) if pick else min(range(1, L + 1), key=lambda s: peak(L, s, inside))
        return best, (said or peak)(L, best, inside)
    return answer


mistake("segments", cut(pick=lambda L, inside: 1), "This is one block per segment: the least to compute at once, but L inputs are kept.")
mistake("segments", cut(pick=lambda L, inside: max(1, round(L**0.5))),
        "√L is best where a block's inside counts as much as an input. Here it counts `inside` times as much.")
mistake("segments", cut(peak=lambda L, s, inside: L // s + s * inside), "L / s is rounded down: the shorter last segment has an input, too.")
mistake("segments", cut(peak=lambda L, s, inside: math.ceil(L / s) + s),
        "The segment at hand counts 1 per block. It keeps all of its blocks' insides: s · inside.")
mistake("segments", cut(peak=lambda L, s, inside: math.ceil(L / s) + inside if s > 1 else L + inside),
        "Only one block of the segment is counted. On the way back all s of them are there together.")
mistake("segments", cut(peak=lambda L, s, inside: math.ceil(L / s) * inside + s), "The two parts are exchanged: *inputs* count 1.")
mistake("segments", cut(pick=lambda L, inside: max(1, round((L / inside) ** 0.5))),
        "√(L / inside) is the answer on paper. Whole numbers and the rounding up can make a neighbour better: compare.")
mistake("segments", cut(said=lambda L, s, inside: math.ceil(L / s)), "s is right. The peak lacks the segment that is computed again.")
mistake("segments", lambda L, inside: cut()(L, inside)[::-1], "The two are exchanged: first s, then the peak.")


def from_the_end(L, inside):
    found = (L + 1, L * inside + 1)
    for s in range(L, 0, -1):
        peak = -(-L // s) + s * inside
        found = (s, peak) if peak <= found[1] else found
    return found


alternative("segments", from_the_end)
equivalent("segments", "L + 1 → L + 2", "A segment longer than the stack is never better than one as long as the stack.")
mistake("segments", cut(peak=lambda L, s, inside: s * inside), "The kept inputs are missing: one per segment.")

# %%
check.summary()
