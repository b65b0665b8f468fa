# %% [markdown]
# # Exercise 19 · The Universal Transformer
#
# Six tasks, 16 points, about 75 minutes. They belong to lesson
# [19 The Universal Transformer](../notebooks/19_universal.ipynb). Run the cells from the top; fill in where it says *your
# turn*, then run the check below it. You may check as often as you like. Tasks 1, 2 and 4 are the core, about 32 minutes;
# the others are for those who want more.
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

from txgrade import check

# %% [markdown]
# ### Task 1 · A stack with exits   ●●○○○ · 8 minutes · 2 points
#
# A stack can stop early as well. Give each of its layers an output, and take the first answer that is sure enough: an
# *early exit*. `logits` holds each layer's answer for each text. A text leaves the stack at the first layer whose
# likeliest class has a probability of **at least** `threshold`; if there is none, at the last layer. Return two tensors:
# each text's class, as the layer where it leaves says, and that layer, counted from 1.
#
# <details><summary>Hint 1: sure of what?</summary>
#
# Sure means a high probability: take the softmax over the classes, then the largest.
# </details>
# <details><summary>Hint 2: the first layer where something is true</summary>
#
# `argmax` of zeros and ones gives the place of the first 1: `sure.int().argmax(dim=0)`.
# </details>
# <details><summary>Hint 3: and if none is?</summary>
#
# Then that `argmax` says 0, the *first* layer. Make the last row True beforehand: the last layer always answers.
# </details>

# %% nbgrader={"grade_id": "exits", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def leave_early(
    logits: Float[Tensor, "layers batch classes"], threshold: float
) -> tuple[Int[Tensor, "batch"], Int[Tensor, "batch"]]:
    """Each text's class, and the layer that gave it, from 1 on."""
    ### BEGIN SOLUTION
    best, answer = logits.softmax(dim=-1).max(dim=-1)              # (layers, batch) each
    sure = best >= threshold
    sure[-1] = True
    layer = sure.int().argmax(dim=0)                               # (batch,): the first that is sure
    return answer.gather(0, layer[None])[0], layer + 1
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-exits", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("exits") as show:
    layers, classes = show.random_size(5, 8), show.random_size(3, 6)
    growing = torch.linspace(0.3, 2, layers)[:, None, None]
    logits = 2 * growing * show.randn(layers, 12, classes)
    show(leave_early(logits, 0.8), f"{layers} layers, {classes} classes, threshold 0.8")
    show(leave_early(0.1 * logits, 0.9), "no layer is sure")
    show(leave_early(2 * show.randn(4, 4, 4), 0.6), "as many layers as texts and classes, threshold 0.6")
    show(leave_early(show.randn(1, 5, classes), 0.9), "a single layer")
    certain = show.randn(layers, 6, classes)                               # one layer of each text, not the last, is
    certain[show.randint(0, layers - 1, 6), torch.arange(6), show.randint(0, classes, 6)] += 200      # wholly sure: p = 1
    show(leave_early(certain, 1.0), "threshold 1, which one layer of each text reaches exactly")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")
equivalent("exits", "answer.gather(0, layer[None])[0] → answer.gather(0, layer[None])[-1]",
           "`gather` gives a single row here: the first is the last.")


def exits_with(sure_of, value=lambda logits: logits.softmax(-1), last=True, count=1):
    """Leaving early with something wrong."""
    def answer(logits, threshold):
        best, answers = value(logits).max(-1)
        sure = sure_of(best, threshold)
        if last:
            sure[-1] = True
        layer = sure.int().argmax(0)
        return answers.gather(0, layer[None])[0], layer + count
    return answer


def reached(best, threshold):
    return best >= threshold


def surest(logits, threshold):
    best, answers = logits.softmax(-1).max(-1)
    layer = best.argmax(0)
    return answers.gather(0, layer[None])[0], layer + 1


def last_answer(logits, threshold):
    return logits[-1].argmax(-1), leave_early(logits, threshold)[1]


mistake("exits", exits_with(reached, last=False),
        "A text that no layer is sure of leaves at the *first* layer: `argmax` of nothing but zeros is 0. The last layer "
        "always answers.")
mistake("exits", exits_with(reached, count=0), "Layers are counted from 1 here: the first one is 1.")
mistake("exits", exits_with(reached, value=lambda logits: logits),
        "You compare the threshold with the logits. It is a probability: take the softmax over the classes first.")
mistake("exits", exits_with(reached, value=lambda logits: logits.softmax(1)),
        "The softmax runs over the batch. Take it over a text's classes, the last axis.")
mistake("exits", exits_with(lambda best, threshold: best > threshold),
        "A text also leaves when its probability equals the threshold: at least, not more than.")
mistake("exits", exits_with(lambda best, threshold: best <= threshold),
        "The comparison is the wrong way round: these are the first layers that are *not* sure.")
mistake("exits", surest,
        "This takes the *surest* layer, which you know only after computing them all. Take the first that is sure enough: it "
        "saves the rest.")
mistake("exits", last_answer, "The layers are right, but the classes are the last layer's. Take the answer of the layer where the text leaves.")


def layer_by_layer(logits, threshold):
    answers, left = [], []
    for text in range(logits.shape[1]):
        for layer, row in enumerate(logits[:, text].softmax(-1), 1):
            if row.max() >= threshold or layer == len(logits):
                answers.append(row.argmax())
                left.append(layer)
                break
    return torch.stack(answers), torch.tensor(left)


alternative("exits", layer_by_layer)

# %% [markdown]
# ### Task 2 · One decision for a whole text   ●●○○○ · 10 minutes · 3 points
#
# In the lesson each position halts by itself. Now a *text* halts as a whole: in each step its halting probability is
# the **mean over its real positions**. Padding, where `real` is `False`, does not count; each text has at least one real
# position. Add these means up, step by step. A text halts at the first step $N$ at which the sum is **greater** than the
# threshold, or at the last step. Return each text's $N$, counted from 1, and its remainder $R = 1 -$ the sum *before*
# step $N$.
#
# <details><summary>Hint 1: a mean without padding</summary>
#
# Multiply by `real[:, :, None]`, sum over the positions, and divide by the number of real ones.
# </details>
# <details><summary>Hint 2: which step?</summary>
#
# Sums only grow. So N is 1 plus the number of steps after which the text is still running. Leave the last step out of that
# count: it ends the text in any case.
# </details>
# <details><summary>Hint 3: the sum before step N</summary>
#
# `F.pad(total, (1, 0))` puts a 0 in front of the sums. Its entry N − 1 is the sum of all steps before step N.
# </details>

# %% nbgrader={"grade_id": "text-halts", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def halt_together(
    p: Float[Tensor, "batch n steps"], real: Bool[Tensor, "batch n"], threshold: float
) -> tuple[Int[Tensor, "batch"], Float[Tensor, "batch"]]:
    """The step at which each text halts, and its remainder."""
    ### BEGIN SOLUTION
    mean = (p * real[:, :, None]).sum(dim=1) / real.sum(dim=1, keepdim=True)          # (batch, steps)
    total = mean.cumsum(dim=-1)                                    # (batch, steps)
    N = 1 + (total[:, :-1] <= threshold).sum(dim=-1)               # (batch,)
    return N, 1 - F.pad(total, (1, 0)).gather(1, N[:, None] - 1)[:, 0]
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-text-halts", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("text-halts") as show:
    n, T = show.random_size(5, 9), show.random_size(6, 9)
    real = torch.stack([show.permutation(n) < size for size in (n, n - 1, n - 2, 2, n, 3)])
    p = show.rand(6, n, T) * torch.tensor([0.9, 0.3, 0.5, 0.7, 0.05, 0.4])[:, None, None]
    p = torch.where(real[..., None], p, 0.95)
    show(halt_together(p, real, 0.99), "six texts, some with padding anywhere")
    show(halt_together(p, real, 0.25), "the same, threshold 0.25, which some reach at the first step")
    show(halt_together(p[:, :, :1], real, 0.25), "the same with only one step")
    show(halt_together(torch.full((1, 2, 4), 0.25), torch.ones(1, 2, dtype=torch.bool), 0.5), "the sum equals the threshold exactly")

# %% tags=["mistakes"]
def together(mean=lambda p, real: (p * real[:, :, None]).sum(1) / real.sum(1, keepdim=True),
             sums=lambda mean: mean.cumsum(-1), running=lambda total, threshold: total <= threshold, last=True, count=1, before=True):
    """Halting as a text, with something wrong."""
    def answer(p, real, threshold):
        total = sums(mean(p, real))
        still = running(total, threshold)
        N = 1 + (still[:, :-1] if last else still).sum(-1)
        at = (N - 1 if before else N).clamp(max=total.shape[1])
        return N - 1 + count, 1 - F.pad(total, (1, 0)).gather(1, at[:, None])[:, 0]
    return answer


def by_position(reduce):
    def answer(p, real, threshold):
        total = p.cumsum(-1)
        N = 1 + (total[..., :-1] <= threshold).sum(-1)
        N = reduce(N, real)
        mean = ((p * real[:, :, None]).sum(1) / real.sum(1, keepdim=True)).cumsum(-1)
        return N, 1 - F.pad(mean, (1, 0)).gather(1, N[:, None] - 1)[:, 0]
    return answer


equivalent("text-halts", "F.pad(total, (1, 0)).gather(1, N[:, None] - 1)[:, 0] → F.pad(total, (1, 0)).gather(1, N[:, None] - 1)[:, -1]",
           "`gather` gives a single column here.")
for sides in ("(1, 1)", "(1, 2)", "(1, -1)"):
    equivalent("text-halts", f"(1, 0) → {sides}",
               "N - 1 is smaller than the number of steps: the last sum, and anything after it, is never read.")

mistake("text-halts", together(mean=lambda p, real: p.sum(1) / real.sum(1, keepdim=True)),
        "You divide by the number of real positions, but the padding's probabilities are still in the sum.")
mistake("text-halts", together(sums=lambda mean: mean.cumsum(0)),
        "The sums run over the texts. Each text adds up its own steps: the last axis.")
mistake("text-halts", together(running=lambda total, threshold: total >= threshold),
        "You count the steps at which a text has already halted. N is 1 plus the number of steps after which it is *still "
        "running*.")
mistake("text-halts", together(mean=lambda p, real: p.mean(1)),
        "Padding counts in the mean. A short text in a long batch would then halt when its padding says so.")
mistake("text-halts", together(mean=lambda p, real: (p * real[:, :, None]).mean(1)),
        "Padding is set to 0, but the mean still divides by all positions. Divide by the number of real ones.")
mistake("text-halts", together(mean=lambda p, real: (p * real[:, :, None]).sum(1)),
        "You add the probabilities of the positions, so a long text halts at once. Take their mean.")
mistake("text-halts", together(running=lambda total, threshold: total < threshold),
        "A text whose sum only *equals* the threshold keeps running: it halts where the sum is greater.")
mistake("text-halts", together(last=False),
        "A text that never reaches the threshold gets one step too many. The last step ends it in any case.")
mistake("text-halts", together(count=0), "Steps are counted from 1.")
mistake("text-halts", together(before=False),
        "The remainder leaves out step N's own probability: 1 minus the sum *before* it, so that all weights sum to 1.")
mistake("text-halts", by_position(lambda N, real: (N * real).amax(1)),
        "Here each position halts by itself, and the text with its slowest one. Take the mean of the probabilities first, then "
        "sum.")


def step_by_step(p, real, threshold):
    Ns, Rs = [], []
    for each, mask in zip(p, real, strict=True):
        total = torch.zeros(())
        for t, now in enumerate(each[mask].mean(0), 1):
            if total + now > threshold or t == p.shape[-1]:
                Ns.append(t)
                Rs.append(1 - total)
                break
            total = total + now
    return torch.tensor(Ns), torch.stack(Rs)


alternative("text-halts", step_by_step)

# %% [markdown]
# ### Task 3 · Halting as a lottery   ●●●○○ · 10 minutes · 2 points
#
# PonderNet (Banino et al. 2021) reads the halting unit in another way. $\lambda_t$ is the probability of halting at
# step $t$ *if the position has not halted before*. So it halts at exactly step $t$ with probability
#
# $$q_t = \lambda_t \prod_{s < t} (1 - \lambda_s)$$
#
# and the last step gets all that is left, so that $q$ sums to 1. There is no threshold, and everything has a gradient:
# the loss is the *expected* one, $\sum_t q_t\, L_t$. From `lam`, which holds $\lambda_1, \lambda_2, \dots$ of each
# position, return $q$ and the expected number of steps $\sum_t t\, q_t$, with steps counted from 1.
#
# <details><summary>Hint 1: the product</summary>
#
# `(1 - lam).cumprod(dim=-1)` gives the probability of running on *after* step t. You need it one step earlier.
# </details>
# <details><summary>Hint 2: one step earlier</summary>
#
# Call that product `past`. Shift it to the right and begin with 1: `F.pad(past[:, :-1], (1, 0), value=1.0)`.
# </details>
# <details><summary>Hint 3: the last step</summary>
#
# There $\lambda$ counts as 1, whatever `lam` says.
# </details>

# %% nbgrader={"grade_id": "lottery", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def lottery(lam: Float[Tensor, "batch steps"]) -> tuple[Float[Tensor, "batch steps"], Float[Tensor, "batch"]]:
    """The probability of halting at each step, and the expected number of steps."""
    ### BEGIN SOLUTION
    come = F.pad((1 - lam[:, :-1]).cumprod(dim=-1), (1, 0), value=1.0)                # (batch, steps)
    q = torch.cat([come[:, :-1] * lam[:, :-1], come[:, -1:]], dim=-1)                 # (batch, steps)
    return q, (q * torch.arange(1, lam.shape[-1] + 1)).sum(dim=-1)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-lottery", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("lottery") as show:
    T = show.random_size(4, 8)
    lam = (show.rand(3, T) * 0.8 + 0.1).requires_grad_()
    q, steps = lottery(lam)
    show(q.detach(), f"{T} steps")
    show(steps.detach(), "expected numbers of steps")
    steps.sum().backward()
    show(lam.grad, "the gradient of the expected number of steps")
    sure = show.rand(4, T)
    sure[0, 1], sure[1, 0], sure[2, -1], sure[3, :-1] = 1.0, 0.0, 0.0, 0.0
    show(lottery(sure), "some are sure to halt, or not to halt, at a step")
    show(lottery(show.rand(2, 1)), "a single step")

# %% tags=["mistakes"]
def chances(come=lambda lam: F.pad((1 - lam).cumprod(-1)[:, :-1], (1, 0), value=1.0), rest=True, first=1):
    """The lottery with something wrong."""
    def answer(lam):
        own = torch.cat([lam[:, :-1], torch.ones_like(lam[:, :1])], -1) if rest else lam
        q = come(lam) * own
        return q, (q * torch.arange(first, lam.shape[-1] + first)).sum(-1)
    return answer


def as_act(lam):
    total = F.pad(lam.cumsum(-1)[:, :-1], (1, 0))
    q = torch.minimum(lam, (1 - total).clamp(min=0))
    q = torch.cat([q[:, :-1], 1 - q[:, :-1].sum(-1, keepdim=True)], -1)
    return q, (q * torch.arange(1, lam.shape[-1] + 1)).sum(-1)


def normalised(lam):
    q = lam / lam.sum(-1, keepdim=True)
    return q, (q * torch.arange(1, lam.shape[-1] + 1)).sum(-1)


def without_gradient(lam):
    q, _ = lottery(lam)
    return q, (q.detach() * torch.arange(1, lam.shape[-1] + 1)).sum(-1) + 0 * lam.sum(-1)


mistake("lottery", chances(rest=False),
        "The chances sum to less than 1: the last step must take all that is left.")
mistake("lottery", chances(come=lambda lam: (1 - lam).cumprod(-1)),
        "The product includes step t itself. To halt *at* t, a position must only have passed the steps before it.")
mistake("lottery", chances(first=0), "The steps are counted from 0 in the expectation. The first step is 1.")
mistake("lottery", as_act,
        "This is the lesson's halting: probabilities summed up to 1. Here λ is the chance of halting *if the position is still "
        "running*, so multiply the chances of *not* having halted.")
def expecting(q=lambda come, lam: come[:, :-1] * lam[:, :-1], come=lambda past: past.cumprod(-1), expect=lambda each: each.sum(-1)):
    """The lottery with another product or another sum."""
    def answer(lam):
        came = F.pad(come(1 - lam[:, :-1]), (1, 0), value=1.0)
        shares = torch.cat([q(came, lam), came[:, -1:]], dim=-1)
        return shares, expect(shares * torch.arange(1, lam.shape[-1] + 1))
    return answer


mistake("lottery", expecting(q=lambda come, lam: come[:, :-1]),
        "These are the chances of *reaching* step t. To halt there, multiply by λ.")
mistake("lottery", expecting(q=lambda come, lam: lam[:, :-1]),
        "λ is the chance of halting *if the position is still running*. Multiply by the chance that it is.")
mistake("lottery", expecting(come=lambda past: past.cumprod(0)),
        "The product runs over the batch. It runs over the steps before t: the last axis.")
for expect in (lambda each: each.sum(-2), lambda each: each.sum()):
    mistake("lottery", expecting(expect=expect), "Each row of λ has an expectation of its own: sum over its steps, the last axis.")
mistake("lottery", normalised, "λ divided by its sum is a distribution, but another one: to reach a late step, a position must not have halted at any "
        "earlier one.")
mistake("lottery", without_gradient, "The numbers are right, but the expectation passes no gradient. The price of thinking must reach λ.")


def survivors(lam):
    left, q = torch.ones(len(lam)), []
    for t in range(lam.shape[-1] - 1):
        q.append(left * lam[:, t])
        left = left * (1 - lam[:, t])
    q = torch.stack([*q, left], dim=-1)
    return q, q @ torch.arange(1.0, lam.shape[-1] + 1)


alternative("lottery", survivors)

# %% [markdown]
# ### Task 4 · Compute only what still runs   ●●●●○ · 14 minutes · 4 points
#
# The lesson's loop computes positions that have halted, and throws the result away. Do better, for one text: `state` has a
# row per position. You are given
#
# - `step(rows, everything)`: the block. It takes the states of *some* positions, lets them attend to `everything`, the
#   states of **all** positions, and returns new states for the rows;
# - `done(rows)`: `True` for each row that has thought enough. Ask it about the **new** states.
#
# In each step, update the positions that are still running, and no others; all of them read the states from *before* the
# step. At first all are running. A position that is done keeps its state, and can still be read. Stop when all are done,
# or after `most` steps. Return the last states, and how many steps each position took. Leave the tensor `state` that you
# were given unchanged. We count the rows that `step` is given, and a call with zero rows is one too many.
#
# <details><summary>Hint 1: which ones are running?</summary>
#
# Keep `running`, a tensor of position numbers. It begins as `torch.arange(len(state))`.
# </details>
# <details><summary>Hint 2: putting rows back</summary>
#
# `state = state.index_copy(0, running, new)` makes a new tensor with these rows replaced.
# </details>
# <details><summary>Hint 3: which ones are left?</summary>
#
# `running = running[~done(new)]`. Stop when none is left.
# </details>

# %% nbgrader={"grade_id": "running-only", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def think(
    state: Float[Tensor, "n d"],
    step: Callable[[Tensor, Tensor], Tensor],
    done: Callable[[Tensor], Tensor],
    most: int,
) -> tuple[Float[Tensor, "n d"], Int[Tensor, "n"]]:
    """The states after each position has thought as long as it needs, and the steps taken."""
    ### BEGIN SOLUTION
    running, steps = torch.arange(len(state)), torch.zeros(len(state), dtype=torch.long)
    for _ in range(most):
        if not len(running):
            break
        new = step(state[running], state)                          # (running, d)
        state = state.index_copy(0, running, new)
        steps[running] += 1
        running = running[~done(new)]
    return state, steps
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-running-only", "grade": true, "points": 4, "solution": false, "locked": true, "schema_version": 3}
with check("running-only") as show:
    def counted(weight):
        """A block, and a function that reports how many rows it was given, call by call."""
        given = []

        def step(rows, everything):
            given.append(len(rows))
            return torch.tanh((rows @ weight @ everything.T).softmax(dim=-1) @ everything + 0.9 * rows + 0.1)

        return step, lambda: list(given)

    def done_above(limit):
        return lambda rows: rows.norm(dim=-1) > limit

    d, n = 4, show.random_size(6, 9)
    start, weight = 0.6 * show.randn(n, d) * torch.linspace(0.2, 1.6, n)[:, None], 0.5 * show.randn(d, d)
    for limit, most, case in ((1.1, 8, "at most 8 steps"), (5.0, 3, "no position is ever done, at most 3 steps"),
                              (0.0, 4, "every position is done after one step"), (1.1, 1, "at most one step")):
        step, report = counted(weight)
        show(think(start, step, done_above(limit), most), case)
        show(report(), f"{case}: rows that step was given, call by call")
    show(start, "the states that you were given, afterwards")

# %% tags=["mistakes"]
equivalent("running-only", "break → continue", "When no position is left, further rounds do nothing.")


def thinking(read=lambda state, running: state, put=None, ask=None):
    """The loop with something wrong."""
    def answer(state, step, done, most):
        running, steps = torch.arange(len(state)), torch.zeros(len(state), dtype=torch.long)
        for _ in range(most):
            if not len(running):
                break
            old = state[running]
            new = step(old, read(state, running))
            state = state.index_copy(0, running, new)
            steps[running] += 1
            running = running[~done(new if ask is None else ask(old, new))]
        return state, steps
    return answer


def everybody(state, step, done, most):
    running, steps = torch.ones(len(state), dtype=torch.bool), torch.zeros(len(state), dtype=torch.long)
    for _ in range(most):
        if not running.any():
            break
        new = step(state, state)
        state = torch.where(running[:, None], new, state)
        steps += running
        running = running & ~done(state)
    return state, steps


def one_after_the_other(state, step, done, most):
    state, steps = state.clone(), torch.zeros(len(state), dtype=torch.long)
    running = list(range(len(state)))
    for _ in range(most):
        left = []
        for position in running:
            state[position] = step(state[position : position + 1], state)[0]
            steps[position] += 1
            if not done(state[position : position + 1])[0]:
                left.append(position)
        running = left
    return state, steps


def never_halting(state, step, done, most):
    steps = torch.zeros(len(state), dtype=torch.long)
    for _ in range(most):
        state = step(state, state)
        steps += 1
        if done(state).all():
            break
    return state, steps


def in_place(state, step, done, most):
    running, steps = torch.arange(len(state)), torch.zeros(len(state), dtype=torch.long)
    for _ in range(most):
        if not len(running):
            break
        new = step(state[running], state)
        state[running] = new
        steps[running] += 1
        running = running[~done(new)]
    return state, steps


def empty_calls(state, step, done, most):
    running, steps = torch.arange(len(state)), torch.zeros(len(state), dtype=torch.long)
    for _ in range(most):
        new = step(state[running], state)
        state = state.index_copy(0, running, new)
        steps[running] += 1
        running = running[~done(new)]
    return state, steps


mistake("running-only", thinking(read=lambda state, running: state[running]),
        "Positions that are done can no longer be read. They have halted, not left: give `step` the states of all positions.")
mistake("running-only", everybody,
        "The states are right, but `step` was given all positions each time. Give it only the rows that are still running.")
mistake("running-only", one_after_the_other,
        "Positions are updated one after the other, and later ones read the new states of earlier ones. Within a step, all must "
        "read the states from before it.")
mistake("running-only", never_halting,
        "No position halts before all are done. Each must keep its state from the moment it is done itself.")
mistake("running-only", thinking(ask=lambda old, new: old),
        "You ask `done` about the states before the step. Ask about the new ones.")
mistake("running-only", empty_calls,
        "`step` is called with zero rows when no position is left. Stop the loop instead.")
mistake("running-only", in_place,
        "The numbers are right, but the caller's own tensor is overwritten. Make a new one, with `index_copy` or a `clone`.")


def with_a_mask(state, step, done, most):
    state, running = state.clone(), torch.ones(len(state), dtype=torch.bool)
    steps = torch.zeros(len(state), dtype=torch.long)
    while running.any() and steps.max() < most:
        state[running] = step(state[running], state.clone())
        steps += running
        running[running.clone()] = ~done(state[running])
    return state, steps


alternative("running-only", with_a_mask)

# %% tags=["variant"]
from txgrade import variant

BLOCK = variant(12, 8, 14, 16)  # of task 5: times d², the parameters of a block

# %% [markdown]
# ### Task 5 · Sizes with a loop inside   ●●●○○ · 10 minutes · 2 points
#
# A model of recurrent depth has `before` blocks, then `core` blocks that are looped `r` times (all of them, one after the
# other, in each round), then `after` blocks. Each block has ${{BLOCK}} d^2$ parameters. Around them is one embedding,
# `vocab` × `d`, which is also the output matrix. Count no biases, norms or halting. Return three numbers:
#
# 1. all parameters;
# 2. operations per token: two for each use of a matrix's parameter. Reading the embedding is a look-up and costs none; the
#    output matrix is used once. Leave out attention's scores;
# 3. how many times a block's intermediate values are *kept* in training, if the backward pass goes through only the last
#    `k` rounds of the loop (all of them, if `k` is larger than `r`), and through all blocks before and after. A block that
#    is used in three of these rounds counts three times.
#
# <details><summary>Hint 1: what does r change?</summary>
#
# Not the parameters. It multiplies how often the core's parameters are used.
# </details>
# <details><summary>Hint 2: the embedding</summary>
#
# One matrix, counted once as parameters; used once, as the output matrix: 2 · vocab · d operations.
# </details>
# <details><summary>Hint 3: how many rounds are kept?</summary>
#
# `min(k, r)`, each with `core` blocks.
# </details>

# %% nbgrader={"grade_id": "loop-sizes", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def sizes(vocab: int, d: int, before: int, core: int, after: int, r: int, k: int) -> tuple[int, int, int]:
    """Parameters, operations per token, and how many blocks' values are kept for the backward pass."""
    ### BEGIN SOLUTION
    block, embedding = BLOCK * d * d, vocab * d
    parameters = embedding + (before + core + after) * block
    operations = 2 * (embedding + (before + r * core + after) * block)
    return parameters, operations, before + min(k, r) * core + after
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-loop-sizes", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("loop-sizes") as show:
    show(sizes(1000, 10, 1, 2, 3, 5, 4), "a small one")
    drawn = show.random_size(500, 900), show.random_size(20, 40), 2, show.random_size(3, 6), 1, show.random_size(9, 32), 8
    show(sizes(*drawn), f"vocab, d, before, core, after, r, k = {drawn}")
    show(sizes(700, 12, 2, 4, 1, 3, 8), "fewer rounds than k")
    show(sizes(700, 12, 0, show.random_size(2, 5), 3, 6, 6), "as many rounds as k; no block before the loop")

# %% tags=["mistakes"]
def sizes_with(parameters=lambda *s: 0, operations=lambda *s: 0, kept=lambda *s: 0):
    """The right sizes plus something wrong."""
    def answer(*s):
        right = sizes(*s)
        return tuple(each + wrong(*s) for each, wrong in zip(right, (parameters, operations, kept), strict=True))
    return answer


mistake("loop-sizes", sizes_with(parameters=lambda v, d, b, c, a, r, k: (r - 1) * c * BLOCK * d * d),
        "The core's parameters are counted once for each round. It is the same core each time.")
mistake("loop-sizes", sizes_with(operations=lambda v, d, b, c, a, r, k: -2 * (r - 1) * c * BLOCK * d * d),
        "Operations count each parameter once, but the core's are used in every round.")
mistake("loop-sizes", sizes_with(operations=lambda v, d, b, c, a, r, k: 2 * (r - 1) * (b + a) * BLOCK * d * d),
        "You loop all blocks. Only the core is looped; the blocks before and after are used once.")
mistake("loop-sizes", sizes_with(parameters=lambda v, d, b, c, a, r, k: v * d),
        "Embedding and output are one and the same matrix: count it once.")
mistake("loop-sizes", sizes_with(operations=lambda v, d, b, c, a, r, k: 2 * v * d),
        "Reading an embedding looks up a row; nothing is multiplied. Only the output matrix computes.")
mistake("loop-sizes", sizes_with(operations=lambda v, d, b, c, a, r, k: -2 * v * d), "The output matrix's operations are missing.")
mistake("loop-sizes", sizes_with(operations=lambda *s: -sizes(*s)[1] // 2), "A multiplication and an addition: two operations for each use.")
mistake("loop-sizes", sizes_with(kept=lambda v, d, b, c, a, r, k: (k - min(k, r)) * c),
        "You keep more rounds than there are. If r is smaller than k, all r rounds are kept.")
mistake("loop-sizes", sizes_with(kept=lambda v, d, b, c, a, r, k: (r - min(k, r)) * c),
        "You keep all rounds. The backward pass goes through only the last k, so the other rounds' values can be thrown away.")
mistake("loop-sizes", sizes_with(kept=lambda v, d, b, c, a, r, k: min(k, r) - min(k, r) * c),
        "A round keeps the values of each of its core blocks: multiply by `core`.")
def looped(embedding=lambda v, d: v * d, block=lambda d: BLOCK * d * d, blocks=lambda number: number, around=1):
    """The three numbers with one part exchanged; `around=0` leaves the embedding out of the parameters."""
    def answer(v, d, b, c, a, r, k):
        e, size = embedding(v, d), block(d)
        return around * e + blocks(b + c + a) * size, 2 * (e + blocks(b + r * c + a) * size), b + min(k, r) * c + a
    return answer


def without(number, part):
    """One of the three numbers without the blocks before the loop, of the loop, or after it."""
    def answer(v, d, b, c, a, r, k):
        blocks = [(b, c, a), (b, r * c, a), (b, min(k, r) * c, a)][number][part]
        right = list(sizes(v, d, b, c, a, r, k))
        right[number] -= blocks * (BLOCK * d * d, 2 * BLOCK * d * d, 1)[number]
        return tuple(right)
    return answer


for number, name in enumerate(("parameters", "operations", "kept blocks")):
    for part, which in enumerate(("before the loop", "of the loop", "after the loop")):
        mistake("loop-sizes", without(number, part), f"The {name} leave out the blocks {which}.")
for embedding in (lambda v, d: v, lambda v, d: d):
    mistake("loop-sizes", looped(embedding=embedding), "You count only one side of the embedding: it holds vocab · d numbers.")
mistake("loop-sizes", looped(block=lambda d: BLOCK * d), "A block has {{BLOCK}} · d² parameters, with the *square* of d.")
mistake("loop-sizes", looped(around=0), "The embedding's parameters are missing.")
mistake("loop-sizes", sizes_with(parameters=lambda v, d, b, c, a, r, k: -(b + c + a) * BLOCK * d * d),
        "The blocks' parameters are missing.")
mistake("loop-sizes", sizes_with(parameters=lambda v, d, b, c, a, r, k: (1 - b - c - a) * BLOCK * d * d),
        "You count one block's parameters: multiply by the number of blocks.")
mistake("loop-sizes", sizes_with(operations=lambda v, d, b, c, a, r, k: -2 * (b + r * c + a) * BLOCK * d * d),
        "The blocks' operations are missing.")
mistake("loop-sizes", sizes_with(operations=lambda v, d, b, c, a, r, k: 2 * (1 - b - r * c - a) * BLOCK * d * d),
        "You count the operations of one block: multiply by how many blocks run.")
alternative("loop-sizes", lambda vocab, d, before, core, after, r, k: (
    vocab * d + BLOCK * d**2 * (before + core + after),
    2 * vocab * d + 2 * BLOCK * d**2 * (before + core * r + after),
    before + after + core * (k if k < r else r)))

# %% [markdown]
# ### Task 6 · Investigate: a loop that may run longer   ●●●●● · 23 minutes · 3 points
#
# In the lesson, a loop that was trained with six steps lost answers when it ran for ten. Geiping et al. train
# with a *random* number of steps. Does that help here?
#
# Train a loop without a clock on the lesson's rumors in two ways: always with 6 steps, and with a number drawn from 4 to
# 10 for each batch. (Give `fit` a loss that first sets `model.body.steps` and then returns `rumor_loss(model)`; a run
# takes less than a minute.) Use at least two seeds. Then let each run for 4, 6, 10 and 16 steps (set `model.body.steps`
# again), and measure the right answers with `by_depth`: the means over depths 0 to 5 and over depths 6 to 10. Say in
# two or three sentences what the random number buys, what it costs, and why.
#
# Copy the cells that you need from the lesson into new cells below this one; here you may use all of `txlib`. Hand in a
# table of your numbers and your text. A person reads it.

# %% [markdown] nbgrader={"grade_id": "longer", "solution": true, "grade": true, "points": 3, "locked": false, "schema_version": 3}
# <!-- BEGIN SOLUTION -->
# Two seeds, 300 rumors, right answers at depths 0 to 5 / 6 to 10, in percent:
#
# | | 4 steps | 6 steps | 10 steps | 16 steps |
# | --- | --- | --- | --- | --- |
# | always 6 | 90, 91 / 5, 5 | 100, 99 / 62, 70 | 86, 89 / 90, 89 | 21, 24 / 28, 37 |
# | 4 to 10 | 95, 90 / 18, 10 | 98, 98 / 66, 59 | 97, 97 / 84, 86 | 61, 66 / 70, 71 |
#
# A random number buys endurance: at ten steps shallow lines stay right (97 instead of 86 to 89), and at sixteen, more than
# either has seen, about two thirds survive, where the other loop keeps a quarter. It costs a little at six steps, which
# only one batch in seven practiced, and a little at ten for deep lines. The reason: any state from step 4 on may be read
# out, so an answer that has been found must come out of the block as it went in, as a fixed point. It is not a perfect
# one, or sixteen steps would do no harm. Two seeds agree in all large differences; the small ones may be chance.
# <!-- END SOLUTION -->

# %% [markdown] tags=["rubric"]
# 1 point: a table with both ways of training, two seeds or more, four numbers of steps, shallow and deep lines apart. 1
# point: what is gained (more steps than trained do less harm, or help at depth) and what is lost (fewer steps of
# training for any one number; slower learning), as the table has it, not as the paper has it. 1 point: the reason: an
# answer that may be read at any step must stay once it is found, so that the step becomes a fixed point; and the word of
# caution that few seeds allow.

# %%
check.summary()
