# %% [markdown]
# # Exercise 41 · Learning from rewards and preferences
#
# Six tasks, 15 points, about 65 minutes. They belong to lesson
# [41 Learning from rewards and preferences](../notebooks/41_rewards.ipynb). Tasks 1 to 3 are the *core*, about 30 minutes;
# tasks 4 to 6 are *more*. Run the cells from the top; fill in where it says *your turn*, then run the check below it. You may
# check as often as you like.
#
# Write the answers yourself: one that calls txlib, or what a task rules out, is flagged for your teacher, if you have one.

# %% tags=["parameters"]
seed = 0

# %%
import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from txgrade import check

# %% [markdown]
# ### Task 1 · The step, by hand   ●●○○○ · 10 minutes · 2 points
#
# The lesson let PyTorch differentiate REINFORCE. Write down what arrives at the logits. For each token that was drawn, the
# gradient of its log-probability is one at the token minus the probabilities; it is multiplied by the advantage of the
# *whole* answer. With probabilities 0.5, 0.3, 0.2, the second token drawn, and an advantage of 2:
#
# $$2 \cdot \big((0, 1, 0) - (0.5, 0.3, 0.2)\big) = (-1, 1.4, -0.4)$$
#
# `logit_steps` returns this for every token of several answers, divided by the number of tokens that count (`mask` is `True`
# there, in at least one place). Tokens that don't count get 0. Return the direction that *raises* the expected reward. Don't
# use autograd.
#
# <details><summary>Hint 1: one at the token</summary>
#
# `torch.nn.functional.one_hot(tokens, vocab)` has the shape of the logits.
# </details>
# <details><summary>Hint 2: one number per answer</summary>
#
# `advantages[:, None, None]` multiplies every token and every logit of its answer.
# </details>
# <details><summary>Hint 3: what doesn't count</summary>
#
# Multiply by `mask[..., None]`, and divide by `mask.sum()`: over all answers together.
# </details>

# %% nbgrader={"grade_id": "logit-steps", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def logit_steps(
    logits: Float[Tensor, "answer n vocab"], tokens: Int[Tensor, "answer n"], advantages: Float[Tensor, "answer"],
    mask: Bool[Tensor, "answer n"],
) -> Float[Tensor, "answer n vocab"]:
    """The gradient of the mean of advantage · log p(token) over all tokens that count."""
    ### BEGIN SOLUTION
    p = logits.softmax(dim=-1)
    drawn = torch.nn.functional.one_hot(tokens, logits.shape[-1])
    return advantages[:, None, None] * (drawn - p) * mask[..., None] / mask.sum()
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-logit-steps", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("logit-steps") as show:
    logits = torch.tensor([[[0.5, 0.3, 0.2]]]).log()
    for token in show.permutation(3).tolist():
        one = logit_steps(logits, torch.tensor([[token]]), torch.tensor([2.0]), torch.tensor([[True]]))
        show(one, f"one answer of one token, probabilities 0.5, 0.3, 0.2, token {token}, advantage 2")
    for size, n in ((show.random_size(3, 5), 2), (show.random_size(6, 8), show.random_size(4, 5))):
        vocab = show.random_size(5, 7)
        logits, tokens = 2 * show.randn(size, n, vocab), show.randint(0, vocab, size, n)
        advantages = show.randn(size)
        show(logit_steps(logits, tokens, advantages, torch.ones(size, n).bool()), f"{size} answers, all {n} tokens count")
        lengths = torch.cat([torch.tensor([n, 1]), show.randint(1, n + 1, size - 2)])
        show(logit_steps(logits, tokens, advantages, torch.arange(n) < lengths[:, None]), f"{size} answers of different lengths")

# %% tags=["mistakes"]
import torch.nn.functional as F

from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")
AUTOGRAD = ("backward", "requires_grad_", "torch.autograd", "torch.func")
forbid("logit-steps", AUTOGRAD)


def stepped(towards=lambda drawn, p: drawn - p, soft=lambda z: z.softmax(dim=-1), factor=lambda a: a[:, None, None],
            masked=lambda x, mask: x * mask[..., None], over=lambda x, mask: x / mask.sum()):
    """The step with one part exchanged."""
    def answer(logits, tokens, advantages, mask):
        drawn = F.one_hot(tokens, logits.shape[-1]).float()
        return over(masked(factor(advantages) * towards(drawn, soft(logits)), mask), mask)
    return answer


mistake("logit-steps", stepped(towards=lambda drawn, p: p - drawn),
        "The sign: this is the gradient of the *loss*, along which rewards fall. Take one at the token minus the probabilities.")
mistake("logit-steps", stepped(towards=lambda drawn, p: drawn),
        "The probabilities are missing: what makes one token likelier makes all others less likely. Subtract $p$.")
mistake("logit-steps", stepped(towards=lambda drawn, p: drawn + p), "The probabilities are *subtracted*: one at the token minus $p$.")
mistake("logit-steps", stepped(towards=lambda drawn, p: -p), "The one at the token that was drawn is missing.")
mistake("logit-steps", stepped(towards=lambda drawn, p: drawn * (1 - p)),
        "Only the token that was drawn moves. The logits of all others move as well, by $-p$.")
mistake("logit-steps", stepped(towards=lambda drawn, p: drawn * p - p),
        "One at the token, not its probability: the step is larger if the token was unlikely.")
mistake("logit-steps", stepped(towards=lambda drawn, p: (drawn - p) * (drawn * p).sum(dim=-1, keepdim=True)),
        "This is the gradient of the probability. REINFORCE follows that of its *logarithm*, because likely tokens are drawn more often.")
mistake("logit-steps", stepped(soft=lambda z: z.softmax(dim=1)), "Your softmax runs over the tokens of an answer. It runs over the vocabulary, the last axis.")
mistake("logit-steps", stepped(soft=lambda z: z.softmax(dim=0)), "Your softmax runs over the answers. It runs over the vocabulary, the last axis.")
mistake("logit-steps", stepped(soft=lambda z: z.log_softmax(dim=-1)), "You subtract log-probabilities. Subtract the probabilities.")
mistake("logit-steps", stepped(soft=lambda z: z), "You subtract the logits. Subtract the probabilities: softmax first.")
mistake("logit-steps", stepped(factor=lambda a: torch.ones(len(a), 1, 1)), "The advantages are missing: each answer's tokens are multiplied by its own.")
mistake("logit-steps", stepped(factor=lambda a: a.mean()), "All answers get the mean advantage. Each has its own.")
mistake("logit-steps", stepped(factor=lambda a: a.abs()[:, None, None]), "A negative advantage pushes *away* from what was drawn: keep its sign.")
mistake("logit-steps", stepped(factor=lambda a: 1 / a[:, None, None]), "You divide by the advantage. Multiply by it.")
mistake("logit-steps", stepped(masked=lambda x, mask: x), "Tokens that don't count still move their logits. Multiply by `mask[..., None]`.")
mistake("logit-steps", stepped(masked=lambda x, mask: x * ~mask[..., None]), "The mask is inverted: tokens count where it is `True`.")
mistake("logit-steps", stepped(over=lambda x, mask: x), "The division is missing: by the number of tokens that count.")
mistake("logit-steps", stepped(over=lambda x, mask: x / mask.numel()), "You divide by the number of all tokens. Only those that count are counted.")
mistake("logit-steps", stepped(over=lambda x, mask: x / len(mask)), "You divide by the number of answers. Divide by the number of tokens that count.")
mistake("logit-steps", stepped(over=lambda x, mask: x / mask.sum(dim=1)[:, None, None] / len(mask)),
        "You take the mean over each answer's tokens first, so tokens of long answers weigh less. Divide by the tokens of all answers together.")
mistake("logit-steps", stepped(over=lambda x, mask: x * mask.sum()), "You multiply by the number of tokens. Divide by it.")


def by_autograd(logits, tokens, advantages, mask):
    logits = logits.clone().requires_grad_()
    log_p = logits.log_softmax(dim=-1).gather(-1, tokens[..., None])[..., 0]
    ((advantages[:, None] * log_p * mask).sum() / mask.sum()).backward()
    return logits.grad


alternative("logit-steps", by_autograd)

# %% [markdown]
# ### Task 2 · The baseline of the others   ●●○○○ · 10 minutes · 2 points
#
# The mean of a group includes the answer that is compared with it, so part of its own reward is subtracted again. RLOO,
# REINFORCE leave-one-out (Ahmadian et al. 2024), takes the mean of the *others*. Rewards 1, 0, 0, 0 become
#
# $$1 - 0 = 1, \qquad 0 - \tfrac13 = -\tfrac13, \qquad -\tfrac13, \qquad -\tfrac13.$$
#
# Nothing is divided by a standard deviation. Here the answers come in any order: `prompt[i]` is the number of the prompt
# that answer $i$ belongs to. These numbers may be any integers, and groups have different sizes. An answer that is alone with
# its prompt has nothing to be compared with: its advantage is 0.
#
# <details><summary>Hint 1: who belongs together?</summary>
#
# `prompt[:, None] == prompt[None, :]` is `True` where two answers have the same prompt.
# </details>
# <details><summary>Hint 2: the others</summary>
#
# Make the diagonal of this matrix `False`. Times the rewards, it gives the sum of each answer's others.
# </details>
# <details><summary>Hint 3: alone</summary>
#
# Without others, 0 divided by 0 is NaN. `torch.where(count > 0, …, 0.0)` replaces it.
# </details>

# %% nbgrader={"grade_id": "leave-one-out", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def leave_one_out(rewards: Float[Tensor, "answer"], prompt: Int[Tensor, "answer"]) -> Float[Tensor, "answer"]:
    """Each reward minus the mean reward of the other answers to the same prompt."""
    ### BEGIN SOLUTION
    others = prompt[:, None] == prompt[None, :]                    # (answer, answer)
    others = others.float().fill_diagonal_(0)
    count = others.sum(dim=1)                                      # (answer,)
    baseline = others @ rewards / count                            # NaN if alone
    return torch.where(count > 0, rewards - baseline, 0.0)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-leave-one-out", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("leave-one-out") as show:
    place = show.permutation(4)
    show(leave_one_out(torch.tensor([1.0, 0.0, 0.0, 0.0])[place], torch.tensor([7, 7, 7, 7])), "one prompt, one right answer of four")
    for sizes in ((2, 3), (show.random_size(2, 3), show.random_size(4, 6), 3)):
        prompt = torch.cat([torch.full((size,), 5 - 3 * i) for i, size in enumerate(sizes)])
        prompt = prompt[show.permutation(len(prompt))]
        show(leave_one_out(show.rand(len(prompt)), prompt), f"groups of {', '.join(map(str, sizes))}, mixed")
    prompt = torch.tensor([4, 9, 4, 100, 4, 9])
    show(leave_one_out(1 + show.rand(6), prompt), "prompts 4, 9, 4, 100, 4, 9: one answer is alone")
    show(leave_one_out((show.rand(9) < 0.5).float(), show.randint(0, 3, 9)), "nine answers that are right or wrong, prompts 0 to 2")

# %% tags=["mistakes"]
def left_out(belong=lambda prompt: prompt[:, None] == prompt[None, :], self_too=False,
             number=lambda count: count.clamp(min=1), compare=lambda rewards, baseline: rewards - baseline, alone=0.0):
    """RLOO with one part exchanged."""
    def answer(rewards, prompt):
        others = belong(prompt).float()
        others = others if self_too else others.fill_diagonal_(0)
        count = others.sum(dim=1)
        result = compare(rewards, others @ rewards / number(count))
        return result if alone is None else torch.where(count > 0, result, torch.as_tensor(alone) + 0 * rewards)
    return answer


def standardized(rewards, prompt):
    result = leave_one_out(rewards, prompt)
    for number in prompt.unique():
        group = prompt == number
        if group.sum() > 1:
            result[group] = result[group] / (rewards[group].std() + 1e-6)
    return result


def neighbors(rewards, prompt):
    result = torch.zeros_like(rewards)
    start = 0
    for at in range(1, len(prompt) + 1):
        if at == len(prompt) or prompt[at] != prompt[start]:
            group = rewards[start:at]
            if len(group) > 1:
                result[start:at] = group - (group.sum() - group) / (len(group) - 1)
            start = at
    return result


mistake("leave-one-out", left_out(self_too=True),
        "The mean includes the answer's own reward, as GRPO's does. Leave it out: make the diagonal 0.")
mistake("leave-one-out", left_out(belong=lambda prompt: torch.ones(len(prompt), len(prompt))),
        "Each answer is compared with the answers to *all* prompts. Take the others with the same prompt.")
mistake("leave-one-out", left_out(belong=lambda prompt: torch.ones(len(prompt), len(prompt)), self_too=True),
        "You subtract the mean of all rewards. Each answer is compared with the *others* that have the same prompt.")
mistake("leave-one-out", left_out(belong=lambda prompt: prompt[:, None] != prompt[None, :]),
        "Each answer is compared with the answers to *other* prompts. Take those with the same prompt: `==`.")
mistake("leave-one-out", left_out(number=lambda count: count, alone=None), "An answer that is alone gets NaN, 0 divided by 0. Its advantage is 0.")
mistake("leave-one-out", left_out(alone=None),
        "An answer that is alone keeps its whole reward. Nothing tells whether that is good for this prompt: its advantage is 0.")
mistake("leave-one-out", left_out(number=lambda count: count + 1),
        "You divide the others' sum by the size of the whole group. There is one less of them.")
mistake("leave-one-out", left_out(number=lambda count: 1.0), "You subtract the *sum* of the others. Divide it by their number.")
mistake("leave-one-out", left_out(number=lambda count: count.clamp(min=1).max()),
        "You divide by the size of the largest group. Each group has its own size.")
mistake("leave-one-out", left_out(number=lambda count: count.clamp(min=2)), "In a group of two there is just one other answer: divide by 1.")
mistake("leave-one-out", left_out(compare=lambda rewards, baseline: baseline - rewards),
        "The sign: an answer that is better than the others has a *positive* advantage.")
mistake("leave-one-out", left_out(compare=lambda rewards, baseline: rewards + baseline), "The others' mean is *subtracted*.")
mistake("leave-one-out", left_out(compare=lambda rewards, baseline: baseline), "This is the baseline. Subtract it from each reward.")
mistake("leave-one-out", left_out(compare=lambda rewards, baseline: rewards), "The baseline is missing: subtract the mean of the others.")
mistake("leave-one-out", standardized, "You divide by the standard deviation, as GRPO does. RLOO doesn't.")
mistake("leave-one-out", neighbors, "Only answers that follow each other are taken for a group. They come in any order.")


def in_loops(rewards, prompt):
    result = []
    for i in range(len(rewards)):
        others = [rewards[j].item() for j in range(len(rewards)) if j != i and prompt[j] == prompt[i]]
        result.append(rewards[i].item() - sum(others) / len(others) if others else 0.0)
    return torch.tensor(result)


def by_group_means(rewards, prompt):
    _, group, size = prompt.unique(return_inverse=True, return_counts=True)
    mean = torch.zeros(len(size)).index_add(0, group, rewards) / size
    own = size[group]
    return (rewards - mean[group]) * own / (own - 1).clamp(min=1)


alternative("leave-one-out", in_loops)
alternative("leave-one-out", by_group_means)
for change in ("others.sum(dim=1) → others.sum(dim=0)", "others @ rewards → rewards @ others"):
    equivalent("leave-one-out", change, "The matrix is symmetric: its rows are its columns.")

# %% [markdown]
# ### Task 3 · Where the push ends   ●●●○○ · 12 minutes · 3 points
#
# The clip of PPO and GRPO has one width for both directions. DAPO (Yu et al. 2025, section 3.1) gives it two: a token may
# rise further than it may fall, so that rare tokens have a chance. The gain of one token with ratio $\rho$ and advantage $A$:
#
# $$\min\big(\rho A,\ \text{clamp}(\rho,\ 1 - \text{low},\ 1 + \text{high})\, A\big)$$
#
# `pushes`: the derivative of each gain by the token's log-probability, without autograd. Its ratio is
# $\rho = e^{\log p - \log p_\text{old}}$, so $\rho$ differentiated by $\log p$ is $\rho$ itself. Where the gain is flat, the
# push is 0, and also at the limit where that begins. With low = 0.2, high = 0.28 and $A = -2$, for example, ratios of 0.7, 0.9
# and 1.5 are pushed by 0, −1.8 and −3.
#
# `stopped`: of the tokens that count (`mask`), the fraction which the clip has stopped. Tokens of an answer with advantage 0
# have no push either, but it wasn't the clip. Watch this fraction whenever you train with a clip.
#
# <details><summary>Hint 1: which limit?</summary>
#
# Draw the gain over $\rho$, for $A = 1$ and for $A = -1$. Each has one flat side only.
# </details>
# <details><summary>Hint 2: both signs at once</summary>
#
# `torch.where(A > 0, …, …)` chooses between two conditions, here `ratio < …` and `ratio > …`.
# </details>
# <details><summary>Hint 3: stopped</summary>
#
# The push is 0 and the advantage isn't. Ratios are never 0.
# </details>

# %% nbgrader={"grade_id": "clip-push", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def pushes(
    ratio: Float[Tensor, "answer n"], advantages: Float[Tensor, "answer"], low: float, high: float
) -> Float[Tensor, "answer n"]:
    """The derivative of each token's clipped gain by its log-probability."""
    ### BEGIN SOLUTION
    A = advantages[:, None]
    free = torch.where(A > 0, ratio < 1 + high, ratio > 1 - low)
    return ratio * A * free
    ### END SOLUTION


def stopped(
    ratio: Float[Tensor, "answer n"], advantages: Float[Tensor, "answer"], mask: Bool[Tensor, "answer n"], low: float, high: float
) -> float:
    """Which fraction of the tokens that count the clip has stopped."""
    ### BEGIN SOLUTION
    flat = (pushes(ratio, advantages, low, high) == 0) & (advantages != 0)[:, None]
    return ((flat & mask).sum() / mask.sum()).item()
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-clip-push", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("clip-push") as show:
    ratio = torch.tensor([[0.5, 0.7, 0.9, 1.0, 1.1, 1.25, 1.5]])
    for A in (1 + show.rand(1), -1 - show.rand(1)):
        show(pushes(ratio, A, 0.2, 0.28), f"A = {A.item():.2f}, low = 0.2, high = 0.28, ratios {ratio[0].tolist()}")
    ratio = torch.tensor([[0.75, 1.5, 0.5, 1.25]]).repeat(2, 1)
    show(pushes(ratio, torch.stack([-1 - show.rand(1), 1 + show.rand(1)])[:, 0], 0.25, 0.5), "low = 0.25, high = 0.5: ratios at these limits")
    for low, high in ((0.2, 0.2), (0.1, 0.4), (0.4, 0.1)):
        size, n = show.random_size(4, 6), show.random_size(5, 7)
        ratio, advantages = (0.5 * show.randn(size, n)).exp(), show.randn(size)
        show(pushes(ratio, advantages, low, high), f"{size} answers, low = {low}, high = {high}")
        advantages[show.random_size(0, size - 1)] = 0.0
        mask = torch.arange(n) < show.randint(1, n + 1, size, 1)
        show([stopped(ratio, advantages, mask, low, high), stopped(ratio, advantages, mask | True, low, high)],
             f"{size} answers, low = {low}, high = {high}, one advantage is 0: the fraction stopped, and if all tokens count")

# %% tags=["mistakes"]
forbid("clip-push", AUTOGRAD)


def clipped(free=lambda A, ratio, low, high: torch.where(A > 0, ratio < 1 + high, ratio > 1 - low),
            push=lambda ratio, A, free, low, high: ratio * A * free,
            count=lambda push, A, mask: ((push == 0) & (A != 0) & mask).sum() / mask.sum()):
    """Both functions with one part exchanged."""
    def pushed(ratio, advantages, low, high):
        A = advantages[:, None]
        return push(ratio, A, free(A, ratio, low, high), low, high)

    def fraction(ratio, advantages, mask, low, high):
        return float(count(pushed(ratio, advantages, low, high), advantages[:, None], mask))

    return {"pushes": pushed, "stopped": fraction}


mistake("clip-push", clipped(free=lambda A, ratio, low, high: (ratio < 1 + high) & (ratio > 1 - low)),
        "You stop on both sides. With $A > 0$ only a token that has *risen* too far is stopped; one that has fallen is still pushed up.")
mistake("clip-push", clipped(free=lambda A, ratio, low, high: torch.where(A > 0, ratio > 1 - low, ratio < 1 + high)),
        "The sides are exchanged: with $A > 0$ the push ends at $1 + \\text{high}$, with $A < 0$ at $1 - \\text{low}$.")
mistake("clip-push", clipped(free=lambda A, ratio, low, high: torch.where(A > 0, ratio < 1 + low, ratio > 1 - high)),
        "`low` and `high` are exchanged: a token may rise to $1 + \\text{high}$ and fall to $1 - \\text{low}$.")
mistake("clip-push", clipped(free=lambda A, ratio, low, high: torch.where(A > 0, ratio < 1 + high, ratio > 1 - high)),
        "`low` has no effect: a token may fall to $1 - \\text{low}$.")
mistake("clip-push", clipped(free=lambda A, ratio, low, high: torch.where(A > 0, ratio < 1 + low, ratio > 1 - low)),
        "`high` has no effect: a token may rise to $1 + \\text{high}$.")
mistake("clip-push", clipped(free=lambda A, ratio, low, high: ratio < 1 + high),
        "With a negative advantage the push ends *below* 1, at $1 - \\text{low}$. A token that has risen is still pushed down.")
mistake("clip-push", clipped(free=lambda A, ratio, low, high: torch.where(A > 0, ratio < 1 + high, ratio > 1 + low)),
        "With a negative advantage the limit is $1 - \\text{low}$, below 1.")
mistake("clip-push", clipped(free=lambda A, ratio, low, high: torch.where(A > 0, ratio > 1 + high, ratio < 1 - low)),
        "This pushes only *beyond* the limits. Inside it pushes, beyond the gain is flat.")
mistake("clip-push", clipped(free=lambda A, ratio, low, high: torch.where(A > 0, ratio <= 1 + high, ratio >= 1 - low)),
        "A token exactly at its limit is still pushed. There the push is 0 already.")
mistake("clip-push", clipped(free=lambda A, ratio, low, high: torch.where(A > 0, ratio <= 1 + high, ratio > 1 - low)),
        "A token exactly at its limit is still pushed. There the push is 0 already.")
mistake("clip-push", clipped(free=lambda A, ratio, low, high: torch.where(A > 0, ratio < 1 + high, ratio >= 1 - low)),
        "A token exactly at its limit is still pushed. There the push is 0 already.")
mistake("clip-push", clipped(free=lambda A, ratio, low, high: torch.where(A > 0, ratio < 1, ratio > 1 - low)),
        "With $A > 0$ the push ends at a ratio of 1. A token may rise further, to $1 + \\text{high}$.")
mistake("clip-push", clipped(free=lambda A, ratio, low, high: torch.where(A > 0, ratio < 1 + high, ratio > 1)),
        "With $A < 0$ the push ends at a ratio of 1. A token may fall further, to $1 - \\text{low}$.")
mistake("clip-push", clipped(free=lambda A, ratio, low, high: torch.ones_like(ratio)),
        "Nothing is ever clipped. Find out where the gain is flat; there the push is 0.")
mistake("clip-push", clipped(push=lambda ratio, A, free, low, high: A * free),
        "The ratio is missing. The derivative of $\\rho = e^{\\log p - \\log p_\\text{old}}$ by $\\log p$ is $\\rho$ itself.")
mistake("clip-push", clipped(push=lambda ratio, A, free, low, high: ratio * free), "The advantage is missing.")
mistake("clip-push", clipped(push=lambda ratio, A, free, low, high: ratio * A.sign() * free), "The size of the advantage counts, not only its sign.")
mistake("clip-push", clipped(push=lambda ratio, A, free, low, high: -ratio * A * free), "The sign: this is the derivative of the loss. The *gain* is asked for.")
mistake("clip-push", clipped(push=lambda ratio, A, free, low, high: A / ratio * free), "You divide by the ratio. Multiply by it.")
mistake("clip-push", clipped(push=lambda ratio, A, free, low, high: ratio.clamp(1 - low, 1 + high) * A),
        "This clamps the push. Where the gain is flat, its derivative is 0.")
mistake("clip-push", clipped(push=lambda ratio, A, free, low, high: torch.minimum(ratio * A, ratio.clamp(1 - low, 1 + high) * A)),
        "This is the gain itself. Its derivative is 0 where the gain is flat.")
mistake("clip-push", clipped(push=lambda ratio, A, free, low, high: ratio * A * ~free),
        "The condition is inverted: the push is 0 where the gain is flat, and $\\rho A$ elsewhere.")
mistake("clip-push", clipped(count=lambda push, A, mask: ((push == 0) & (A != 0)).sum() / mask.sum()),
        "`stopped` also counts tokens that don't count. Look only where `mask` is `True`.")
mistake("clip-push", clipped(count=lambda push, A, mask: ((push == 0) & (A != 0) & mask).float().mean()),
        "`stopped` divides by the number of all tokens. Divide by the number of those that count.")
mistake("clip-push", clipped(count=lambda push, A, mask: ((push == 0) & mask).sum() / mask.sum()),
        "`stopped` includes the tokens with advantage 0. It wasn't the clip that stopped those.")
mistake("clip-push", clipped(count=lambda push, A, mask: ((push != 0) & mask).sum() / mask.sum()),
        "This is the fraction that is *not* stopped.")
mistake("clip-push", clipped(count=lambda push, A, mask: ((push == 0) & (A != 0) & mask).sum()), "`stopped` is a fraction: divide by the tokens that count.")
mistake("clip-push", clipped(count=lambda push, A, mask: ((push == 0) & (A == 0) & mask).sum() / mask.sum()),
        "These are the tokens with advantage 0. The clip stops those whose advantage is *not* 0.")


def one_by_one(ratio, advantages, low, high):
    result = torch.zeros_like(ratio)
    for i in range(ratio.shape[0]):
        for j in range(ratio.shape[1]):
            rho, A = ratio[i, j].item(), advantages[i].item()
            flat = rho >= 1 + high if A > 0 else rho <= 1 - low
            result[i, j] = 0.0 if flat else rho * A
    return result


def tokens_stopped(ratio, advantages, mask, low, high):
    A = advantages[:, None]
    flat = ((A > 0) & (ratio >= 1 + high)) | ((A < 0) & (ratio <= 1 - low))
    return float(flat[mask].float().mean())


alternative("clip-push", {"pushes": one_by_one, "stopped": tokens_stopped})
equivalent("clip-push", "A > 0 → A >= 0", "With an advantage of 0 the push is 0 on either side.")

# %% [markdown]
# ### Task 4 · A mean over what?   ●●○○○ · 8 minutes · 2 points
#
# The loss of a batch of answers is $-\sum_{i,t} w_{it}\, g_{it}$, with a gain $g_{it}$ for token $t$ of answer $i$. What people
# argue about is the weight $w$. Return it for three methods:
#
# | `over` | The mean is taken | Used by |
# | --- | --- | --- |
# | `"tokens"` | over all tokens that count | DAPO |
# | `"answers"` | over the tokens of each answer first, then over all answers | GRPO |
# | `"fixed"` | over all answers × the longest length allowed, whether or not tokens count | Liu et al. 2025 |
#
# For answers of 1 and 3 tokens, at most 4 allowed, a token that counts has the weight ¼ (`"tokens"`), ½ in the short and ⅙
# in the long answer (`"answers"`), or ⅛ (`"fixed"`). The longest length allowed is the width of `mask`. An answer of no
# tokens is still an answer: its weights are 0, not NaN, and it is counted among the answers. At least one token counts. For any other
# `over`, raise a `ValueError` that names it.
#
# <details><summary>Hint 1: where</summary>
#
# The mask itself, times one number per batch or per answer.
# </details>
# <details><summary>Hint 2: an empty answer</summary>
#
# `mask.sum(dim=1, keepdim=True).clamp(min=1)`.
# </details>

# %% nbgrader={"grade_id": "token-weights", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def token_weights(mask: Bool[Tensor, "answer n"], over: str) -> Float[Tensor, "answer n"]:
    """The weight of each token's gain in the loss; over: "tokens", "answers" or "fixed"."""
    ### BEGIN SOLUTION
    if over == "tokens":
        return mask / mask.sum()
    if over == "answers":
        return mask / mask.sum(dim=1, keepdim=True).clamp(min=1) / len(mask)
    if over == "fixed":
        return mask / mask.numel()
    raise ValueError(f'over={over!r}; choose "tokens", "answers" or "fixed"')
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-token-weights", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("token-weights") as show:
    for at_least in (1, 0):
        size, n = show.random_size(3, 6), show.random_size(7, 12)
        lengths = torch.cat([torch.tensor([at_least, n - 1]), show.randint(1, n, size - 2)])
        mask = torch.arange(n) < lengths[show.permutation(size)][:, None]
        for over in ("tokens", "answers", "fixed"):
            show(token_weights(mask, over), f'{size} answers, at most {n} tokens{"" if at_least else ", one answer is empty"}: "{over}"')
    size, n = show.random_size(3, 6), show.random_size(7, 12)
    mask = torch.arange(n) < show.randint(1, n, size, 1)
    show([show.call(token_weights, mask, "words"), token_weights(mask, "answers")], 'over = "words" is an error; "answers"')

# %% tags=["mistakes"]
METHODS = {
    "tokens": lambda mask: mask / mask.sum(),
    "answers": lambda mask: mask / mask.sum(dim=1, keepdim=True).clamp(min=1) / len(mask),
    "fixed": lambda mask: mask / mask.numel(),
}


def weighed(otherwise=None, **changed):
    """The three methods with one exchanged."""
    def answer(mask, over):
        methods = {**METHODS, **changed}
        if over not in methods:
            if otherwise:
                return otherwise(mask)
            raise ValueError(over)
        return methods[over](mask)
    return answer


mistake("token-weights", weighed(answers=lambda mask: mask / mask.sum(dim=1, keepdim=True) / len(mask)),
        "An empty answer's weights are NaN, 0 divided by 0. They are 0: clamp its length to at least 1.")
mistake("token-weights", weighed(answers=lambda mask: mask / mask.sum(dim=1, keepdim=True).clamp(min=1)),
        "`\"answers\"`: the mean over the answers is missing. Divide by their number.")
mistake("token-weights", weighed(answers=lambda mask: mask / mask.sum(dim=1, keepdim=True).clamp(min=1) / mask.any(dim=1).sum()),
        "`\"answers\"`: an empty answer is still an answer. Divide by the number of all answers.")
mistake("token-weights", weighed(answers=lambda mask: mask / mask.sum(dim=0, keepdim=True).clamp(min=1) / len(mask)),
        "`\"answers\"`: you count the answers that have a token at this place. Count the tokens of each answer, `dim=1`.")
mistake("token-weights", weighed(answers=lambda mask: mask / mask.sum(dim=1, keepdim=True).clamp(min=1) / mask.shape[1]),
        "`\"answers\"`: you divide by the longest length allowed. Divide by the number of answers.")
mistake("token-weights", weighed(answers=lambda mask: mask / mask.sum(dim=1, keepdim=True).clamp(min=1) * len(mask)),
        "`\"answers\"`: you multiply by the number of answers. Divide by it.")
mistake("token-weights", weighed(answers=lambda mask: mask / mask.sum(dim=1, keepdim=True).clamp(min=2) / len(mask)),
        "`\"answers\"`: in an answer of one token, this token has the whole weight of its answer.")
mistake("token-weights", weighed(answers=lambda mask: 1 / mask.sum(dim=1, keepdim=True).clamp(min=1).expand(mask.shape) / len(mask)),
        "`\"answers\"`: tokens that don't count have a weight. Multiply by the mask.")
mistake("token-weights", weighed(tokens=lambda mask: mask / mask.numel()), "`\"tokens\"`: only tokens that count are counted.")
mistake("token-weights", weighed(tokens=lambda mask: torch.ones(mask.shape) / mask.sum()),
        "`\"tokens\"`: tokens that don't count have a weight. Multiply by the mask.")
mistake("token-weights", weighed(tokens=lambda mask: mask / len(mask)), "`\"tokens\"`: you divide by the number of answers. Divide by the number of tokens that count.")
mistake("token-weights", weighed(tokens=lambda mask: mask.float()), "`\"tokens\"`: the division by the number of tokens that count is missing.")
mistake("token-weights", weighed(fixed=lambda mask: mask / len(mask)), "`\"fixed\"`: divide by the longest length allowed as well, the width of `mask`.")
mistake("token-weights", weighed(fixed=lambda mask: mask / mask.shape[1]), "`\"fixed\"`: divide by the number of answers as well.")
mistake("token-weights", weighed(fixed=lambda mask: mask.float()), "`\"fixed\"`: the division by answers × longest length is missing.")
mistake("token-weights", weighed(fixed=lambda mask: mask / (len(mask) * mask.sum(dim=1).max())),
        "`\"fixed\"`: you take the longest answer of the batch, which differs from batch to batch. Take what is *allowed*: the width of `mask`.")
mistake("token-weights", weighed(fixed=lambda mask: torch.ones(mask.shape) / mask.numel()),
        "`\"fixed\"`: tokens that don't count have a weight. Multiply by the mask.")
mistake("token-weights", weighed(tokens=METHODS["answers"], answers=METHODS["tokens"]), "`\"tokens\"` and `\"answers\"` are exchanged.")
mistake("token-weights", weighed(answers=lambda mask: mask / len(mask)),
        "`\"answers\"`: the mean over the tokens of each answer is missing. Divide by its length as well.")
mistake("token-weights", weighed(otherwise=METHODS["fixed"]), "An unknown `over` is taken for `\"fixed\"`. Raise a `ValueError`, or a typo trains another model.")
mistake("token-weights", weighed(otherwise=METHODS["tokens"]), "An unknown `over` is taken for `\"tokens\"`. Raise a `ValueError`, or a typo trains another model.")
mistake("token-weights", weighed(otherwise=lambda mask: None), "An unknown `over` gives `None`. Raise a `ValueError`.")


def answer_by_answer(mask, over):
    if over not in ("tokens", "answers", "fixed"):
        raise ValueError(f"no such mean: {over}")
    result = torch.zeros(mask.shape)
    for i, length in enumerate(mask.sum(dim=1).tolist()):
        each = {"tokens": int(mask.sum()), "answers": len(mask) * length, "fixed": len(mask) * mask.shape[1]}[over]
        if length:
            result[i, mask[i]] = 1 / each
    return result


alternative("token-weights", answer_by_answer)

# %% [markdown]
# ### Task 5 · Find the hole   ●●●○○ · 12 minutes · 3 points
#
# A model is to learn to sort lists, and to find the square root of a number above 0. Right is
#
# - the list in rising order, each number as often as it was given;
# - a number from 0 up whose square differs from `x` by at most 0.25.
#
# The two checkers below are to reward this. They accept all right answers, and some wrong ones. Find such an answer before the
# model does: `cheat_order` and `cheat_root` return an answer that is rewarded and wrong, for every list of at least two numbers,
# and for every `x` above 1.
#
# Then write checkers without a hole, `strict_order` and `strict_root`. The check tries them on right answers and on various wrong
# ones, your own among them. A checker must not reject a right answer either. And the hole that you
# have found need not be the only one.
#
# <details><summary>Hint 1: the list</summary>
#
# What does `set` forget?
# </details>
# <details><summary>Hint 2: the root</summary>
#
# Which two numbers have the square 4? And what is `float("nan") > 0.25`, what is `not` of it?
# </details>
# <details><summary>Hint 3: strict</summary>
#
# Say what is right, instead of excluding what is wrong. Comparisons with NaN are always `False`.
# </details>

# %%
def is_in_order(numbers: list[int], answer: list[int]) -> bool:
    """Rewards a list in rising order that holds the numbers given. It has a hole."""
    rises = all(a <= b for a, b in zip(answer, answer[1:]))
    return rises and set(answer) == set(numbers)


def is_root(x: float, answer: float) -> bool:
    """Rewards a square root of x. It has holes."""
    return not abs(answer * answer - x) > 0.25

# %% nbgrader={"grade_id": "find-the-hole", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def cheat_order(numbers: list[int]) -> list[int]:
    """A wrong answer that `is_in_order` rewards."""
    ### BEGIN SOLUTION
    return [*sorted(numbers), max(numbers)]
    ### END SOLUTION


def cheat_root(x: float) -> float:
    """A wrong answer that `is_root` rewards."""
    ### BEGIN SOLUTION
    return -(x**0.5)
    ### END SOLUTION


def strict_order(numbers: list[int], answer: list[int]) -> bool:
    """Is this the list in rising order, each number as often as it was given?"""
    ### BEGIN SOLUTION
    return answer == sorted(numbers)
    ### END SOLUTION


def strict_root(x: float, answer: float) -> bool:
    """Is this a number from 0 up whose square differs from x by at most 0.25?"""
    ### BEGIN SOLUTION
    return answer >= 0 and abs(answer * answer - x) <= 0.25
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-find-the-hole", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("find-the-hole") as show:
    for repeated in (True, False):
        rising = (show.randint(0, 5, 1) + show.randint(1, 4, show.random_size(4, 6)).cumsum(dim=0)).tolist()
        right = [rising[0], *rising] if repeated else rising
        numbers = [right[i] for i in show.permutation(len(right)).tolist()]
        answers = [right, numbers, rising, [*rising, rising[-1]], right[1:], right[::-1], [*right[:-1], right[-1] + 1], []]
        answers = [answers[i] for i in show.permutation(8).tolist()]
        cheat = cheat_order(list(numbers))
        paid = [is_in_order(numbers, cheat), strict_order(list(numbers), list(cheat))]
        show([*paid, *(strict_order(list(numbers), list(answer)) for answer in answers)],
             f"{numbers}: your cheat by the old and by your checker; then {', '.join(map(str, answers))}")
    for x in (2 + 3 * show.rand(2)).tolist():
        root = x**0.5
        answers = [root, root + 0.05, root - 0.05, root + 0.2, root - 0.2, -root, 0.05 - root, math.nan, math.inf, 0.0]
        answers = [answers[i] for i in show.permutation(10).tolist()]
        cheat = cheat_root(x)
        paid = [is_root(x, cheat), strict_root(x, cheat)]
        show([*paid, *(strict_root(x, answer) for answer in answers)],
             f"x = {x:.2f}: your cheat by the old and by your checker; then {', '.join(f'{answer:.2f}' for answer in answers)}")
    cases = [(2.0, 1.5), (2.5, 1.5), (0.125, 0.0), (0.125, -0.25), (0.125, 0.5), (0.5, 1.0), (0.5, math.nan)]
    cases = [cases[i] for i in show.permutation(7).tolist()]
    show([strict_root(*case) for case in cases], f"x and answer: {', '.join(map(str, cases))}")
    for x in (1.1, 10 + 50 * show.rand(1).item()):
        show([is_root(x, cheat_root(x)), strict_root(x, cheat_root(x)), strict_root(x, x**0.5), strict_root(x, show.random_size(10, 20))],
             f"x = {x:.2f}: your cheat by the old and by your checker; its root; a number far above")

# %% tags=["mistakes"]
def holes(order=lambda numbers: [*sorted(numbers), max(numbers)], root=lambda x: -(x**0.5),
          strict=lambda numbers, answer: answer == sorted(numbers), near=lambda x, answer: answer >= 0 and abs(answer**2 - x) <= 0.25):
    """The four functions with one exchanged."""
    return {"cheat_order": order, "cheat_root": root, "strict_order": strict, "strict_root": near}


def rises(answer):
    return all(a <= b for a, b in zip(answer, answer[1:], strict=False))


NOT_PAID = "`cheat_order` returns an answer that is not rewarded. Its list must rise, and hold the given numbers and no others."
mistake("find-the-hole", holes(order=sorted), "`cheat_order` returns the right answer. Find one that is rewarded and *wrong*.")
mistake("find-the-hole", holes(order=lambda numbers: sorted(numbers)[::-1]), NOT_PAID)
mistake("find-the-hole", holes(order=lambda numbers: [*sorted(numbers), max(numbers) + 1]), NOT_PAID)
mistake("find-the-hole", holes(order=lambda numbers: [*sorted(numbers), min(numbers)]), NOT_PAID)
mistake("find-the-hole", holes(order=lambda numbers: []), NOT_PAID)
mistake("find-the-hole", holes(order=lambda numbers: sorted(numbers)[1:]),
        "`cheat_order` leaves a number out. Where it was given only once, the set of numbers has changed, and that is noticed.")
mistake("find-the-hole", holes(order=lambda numbers: sorted(set(numbers))),
        "`cheat_order` drops repeated numbers. If none is repeated, its answer is right. What always works?")
for near in (0.0, 0.01):
    mistake("find-the-hole", holes(root=lambda x, near=near: x**0.5 + near),
            "`cheat_root` returns a right answer: its square is near enough to x. Find one that is rewarded and *wrong*.")
for far in (0.0, math.inf):
    mistake("find-the-hole", holes(root=lambda x, far=far: far),
            "`cheat_root` returns an answer that is not rewarded: its square is too far from x. Which other number has the right square?")
mistake("find-the-hole", holes(root=lambda x: -x), "`cheat_root` returns $-x$, whose square is $x^2$. That is near x only where x is near 1.")
mistake("find-the-hole", holes(strict=lambda numbers, answer: rises(answer) and set(answer) == set(numbers)),
        "`strict_order` still has the hole: a `set` forgets how often a number was there.")
mistake("find-the-hole", holes(strict=lambda numbers, answer: rises(answer) and set(answer) == set(numbers) and len(answer) == len(numbers)),
        "`strict_order` counts the numbers, but 2, 3, 3 has as many as 2, 2, 3, and the same set. How often is *each* there?")
mistake("find-the-hole", holes(strict=lambda numbers, answer: sorted(answer) == sorted(numbers)),
        "`strict_order` no longer looks at the order of the answer.")
mistake("find-the-hole", holes(strict=lambda numbers, answer: answer == sorted(set(numbers))),
        "`strict_order` rejects right answers: a number that was given twice must be there twice.")
mistake("find-the-hole", holes(strict=lambda numbers, answer: rises(answer) and len(answer) == len(numbers)),
        "`strict_order` accepts other numbers than those that were given.")
mistake("find-the-hole", holes(strict=lambda numbers, answer: answer == numbers), "`strict_order` compares with the list before it was sorted.")
mistake("find-the-hole", holes(strict=lambda numbers, answer: answer != sorted(numbers)), "`strict_order` is inverted: it accepts what is wrong.")
mistake("find-the-hole", holes(strict=lambda numbers, answer: False), "`strict_order` rejects everything, right answers as well.")
mistake("find-the-hole", holes(near=lambda x, answer: False), "`strict_root` rejects everything, right answers as well.")
mistake("find-the-hole", holes(near=lambda x, answer: not abs(answer**2 - x) > 0.25), "`strict_root` is the old checker, with its holes.")
mistake("find-the-hole", holes(near=lambda x, answer: abs(answer**2 - x) <= 0.25), "`strict_root` accepts negative numbers.")
mistake("find-the-hole", holes(near=lambda x, answer: not answer < 0 and not abs(answer**2 - x) > 0.25),
        "`strict_root` accepts NaN: it is not below 0, and not above 0.25 either. Ask for `answer >= 0` and `… <= 0.25`.")
mistake("find-the-hole", holes(near=lambda x, answer: answer > 0 and abs(answer**2 - x) <= 0.25),
        "`strict_root` rejects 0, which is near enough to the root of a small number.")
mistake("find-the-hole", holes(near=lambda x, answer: answer >= 0 and abs(answer**2 - x) < 0.25),
        "`strict_root` rejects a square that differs by exactly 0.25: *at most* 0.25 is right.")
mistake("find-the-hole", holes(near=lambda x, answer: answer >= 0 and answer**2 - x <= 0.25),
        "`strict_root` accepts squares that are far too small: take the absolute difference.")
mistake("find-the-hole", holes(near=lambda x, answer: answer >= 0 and x - answer**2 <= 0.25),
        "`strict_root` accepts squares that are far too large: take the absolute difference.")
mistake("find-the-hole", holes(near=lambda x, answer: answer >= 0), "`strict_root` doesn't look at the square.")
mistake("find-the-hole", holes(near=lambda x, answer: answer <= 0 and abs(answer**2 - x) <= 0.25),
        "`strict_root` accepts negative numbers, and rejects those above 0. It's the other way round.")
mistake("find-the-hole", holes(near=lambda x, answer: answer >= 0 and abs(answer**2 - x) >= 0.25),
        "`strict_root` accepts squares that are far from x, and rejects near ones.")
mistake("find-the-hole", holes(near=lambda x, answer: answer >= 0 and abs(answer - x) <= 0.25),
        "`strict_root` compares the answer itself with x. Compare its square.")
mistake("find-the-hole", holes(near=lambda x, answer: answer == x**0.5),
        "`strict_root` rejects right answers: the square may differ by up to 0.25.")
mistake("find-the-hole", holes(near=lambda x, answer: answer >= 0 and abs(answer - x**0.5) <= 0.25),
        "`strict_root` measures how far the *root* is off. The square may differ by 0.25.")
mistake("find-the-hole", holes(near=lambda x, answer: answer >= 0 or abs(answer**2 - x) <= 0.25), "`strict_root` asks for one condition. Both must hold: `and`.")


def counted(numbers, answer):
    return rises(answer) and len(answer) == len(numbers) and all(answer.count(each) == numbers.count(each) for each in numbers)


def finite(x, answer):
    return not math.isnan(answer) and answer >= 0 and -0.25 <= answer * answer - x <= 0.25


equivalent("find-the-hole", "answer * answer - x → x - answer * answer", "An absolute difference has no sign.")
alternative("find-the-hole", {"cheat_order": lambda numbers: [min(numbers), *sorted(numbers)], "cheat_root": lambda x: math.nan,
                              "strict_order": counted, "strict_root": finite})

# %% [markdown]
# ### Task 6 · When is enough?   ●●●○○ · 12 minutes · 3 points
#
# People err. If a fraction $\varepsilon$ of the pairs was labeled the wrong way round, DPO's loss becomes (Mitchell 2023)
#
# $$-(1 - \varepsilon) \log \sigma(\beta m) - \varepsilon \log \sigma(-\beta m).$$
#
# IPO (Azar et al. 2023, eq. 17) takes a square instead: $\big(m - \frac{1}{2\tau}\big)^2$. Here $m$ is the lesson's difference: how
# much more the model has raised the chosen answer than the rejected one.
#
# `dpo_slope` and `ipo_slope`: the derivative of each loss by $m$, without autograd. `rests_at`: at which $m$ DPO and IPO come to
# rest, because the slope is 0. Without errors ($\varepsilon = 0$) DPO never does: return `math.inf`. $\varepsilon$ is below ½.
#
# On paper, with $\beta = 0.5$ and $m = 0$: DPO's slope is −0.25 for $\varepsilon = 0$, and −0.2 for $\varepsilon = 0.1$.
#
# <details><summary>Hint 1: the derivative of log σ</summary>
#
# $\frac{d}{dz} \log \sigma(z) = 1 - \sigma(z) = \sigma(-z)$.
# </details>
# <details><summary>Hint 2: DPO's slope</summary>
#
# With $\sigma(-z) = 1 - \sigma(z)$ it becomes $\beta \big(\sigma(\beta m) - (1 - \varepsilon)\big)$.
# </details>
# <details><summary>Hint 3: at rest</summary>
#
# $\sigma(\beta m) = 1 - \varepsilon$. The inverse of σ is $\log \frac{p}{1 - p}$.
# </details>

# %% nbgrader={"grade_id": "comes-to-rest", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def dpo_slope(m: Float[Tensor, "pair"], beta: float, epsilon: float = 0.0) -> Float[Tensor, "pair"]:
    """The derivative of DPO's loss by m, of each pair, if a fraction epsilon of the labels is wrong."""
    ### BEGIN SOLUTION
    return beta * ((beta * m).sigmoid() - (1 - epsilon))
    ### END SOLUTION


def ipo_slope(m: Float[Tensor, "pair"], tau: float) -> Float[Tensor, "pair"]:
    """The derivative of IPO's loss by m, of each pair."""
    ### BEGIN SOLUTION
    return 2 * (m - 1 / (2 * tau))
    ### END SOLUTION


def rests_at(beta: float, epsilon: float, tau: float) -> tuple[float, float]:
    """The m at which DPO rests (math.inf if it never does), and the m at which IPO does."""
    ### BEGIN SOLUTION
    dpo = math.log((1 - epsilon) / epsilon) / beta if epsilon else math.inf
    return dpo, 1 / (2 * tau)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-comes-to-rest", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("comes-to-rest") as show:
    for beta, epsilon in ((0.5, 0.1), (0.1, 0.3), (2.0, 0.0)):
        m = torch.cat([torch.zeros(1), 2 / beta * show.randn(show.random_size(4, 6))])
        show(dpo_slope(m, beta, epsilon), f"DPO's slope at 0 and at random m, β = {beta}, ε = {epsilon}")
    show(dpo_slope(3 * show.randn(5), 0.4), "DPO's slope, β = 0.4, without ε")
    for tau in (0.1, 0.8):
        show(ipo_slope(2 * show.randn(show.random_size(4, 6)), tau), f"IPO's slope at random m, τ = {tau}")
    beta, epsilon, tau = 0.1 + show.rand(1).item(), 0.05 + 0.4 * show.rand(1).item(), 0.1 + show.rand(1).item()
    for error in (epsilon, 0.0, epsilon / 20):
        dpo, ipo = rests_at(beta, error, tau)
        show(ipo, f"where IPO rests, τ = {tau:.2f}")
        show([dpo, ipo], f"where both rest, β = {beta:.2f}, ε = {error:.3f}, τ = {tau:.2f}")

# %% tags=["mistakes"]
forbid("comes-to-rest", AUTOGRAD)


def resting(dpo=lambda m, beta, epsilon: beta * ((beta * m).sigmoid() - (1 - epsilon)), ipo=lambda m, tau: 2 * (m - 1 / (2 * tau)),
            at=lambda beta, epsilon: math.log((1 - epsilon) / epsilon) / beta if epsilon else math.inf, there=lambda tau: 1 / (2 * tau)):
    """The three functions with one part exchanged."""
    return {"dpo_slope": lambda m, beta, epsilon=0.0: dpo(m, beta, epsilon), "ipo_slope": ipo,
            "rests_at": lambda beta, epsilon, tau: (at(beta, epsilon), there(tau))}


mistake("comes-to-rest", resting(dpo=lambda m, beta, epsilon: -beta * ((beta * m).sigmoid() - (1 - epsilon))),
        "DPO's slope has the wrong sign: at $m = 0$ the loss falls when $m$ rises, so the slope is negative.")
mistake("comes-to-rest", resting(dpo=lambda m, beta, epsilon: (beta * m).sigmoid() - (1 - epsilon)),
        "This is the derivative by $\\beta m$. By $m$ it is β times that.")
mistake("comes-to-rest", resting(dpo=lambda m, beta, epsilon: beta * (m.sigmoid() - (1 - epsilon))), "DPO's σ takes $\\beta m$: β is missing inside.")
mistake("comes-to-rest", resting(dpo=lambda m, beta, epsilon: beta * ((m / beta).sigmoid() - (1 - epsilon))), "DPO's σ takes $\\beta m$: multiply, instead of dividing.")
mistake("comes-to-rest", resting(dpo=lambda m, beta, epsilon: beta * ((beta * m).sigmoid() - 1)),
        "ε is missing in DPO's slope: the second term pulls $m$ back.")
mistake("comes-to-rest", resting(dpo=lambda m, beta, epsilon: (1 - epsilon) * beta * ((beta * m).sigmoid() - 1)),
        "The second term, $-\\varepsilon \\log \\sigma(-\\beta m)$, is missing in DPO's slope.")
mistake("comes-to-rest", resting(dpo=lambda m, beta, epsilon: beta * ((beta * m).sigmoid() - epsilon)),
        "ε and $1 - \\varepsilon$ are exchanged in DPO's slope: most labels are right.")
mistake("comes-to-rest", resting(dpo=lambda m, beta, epsilon: beta * ((beta * m).sigmoid() - (1 + epsilon))),
        "Wrong labels pull $m$ *back*: $\\sigma(\\beta m) - (1 - \\varepsilon)$.")
mistake("comes-to-rest", resting(dpo=lambda m, beta, epsilon: beta * ((1 - epsilon) * ((beta * m).sigmoid() - 1) - epsilon * (beta * m).sigmoid())),
        "The second term of DPO's slope has the wrong sign: inside is $-\\beta m$, and outside is a minus as well.")
mistake("comes-to-rest", resting(dpo=lambda m, beta, epsilon: beta * (beta * m).sigmoid()),
        "$-(1 - \\varepsilon)$ is missing in DPO's slope: this one never changes its sign.")
mistake("comes-to-rest", resting(dpo=lambda m, beta, epsilon: -(1 - epsilon) * F.logsigmoid(beta * m) - epsilon * F.logsigmoid(-beta * m)),
        "This is DPO's loss. Return its derivative by $m$.")
mistake("comes-to-rest", resting(dpo=lambda m, beta, epsilon: (beta * ((beta * m).sigmoid() - (1 - epsilon))).mean()),
        "This is DPO's mean slope. Return one for each pair.")
mistake("comes-to-rest", resting(ipo=lambda m, tau: m - 1 / (2 * tau)), "The derivative of a square has a factor of 2.")
mistake("comes-to-rest", resting(ipo=lambda m, tau: (m - 1 / (2 * tau)).square()), "This is IPO's loss. Return its derivative by $m$.")
mistake("comes-to-rest", resting(ipo=lambda m, tau: 2 * (m - 1 / tau)), "IPO's target in the slope is $1 / (2\\tau)$, half of this.")
mistake("comes-to-rest", resting(ipo=lambda m, tau: 2 * (m - tau / 2)), "IPO's target in the slope is $1 / (2\\tau)$: τ is below the line.")
mistake("comes-to-rest", resting(ipo=lambda m, tau: 2 * (m + 1 / (2 * tau))), "IPO's target is *subtracted* in the slope.")
mistake("comes-to-rest", resting(ipo=lambda m, tau: 2 * (1 / (2 * tau) - m)), "IPO's slope has the wrong sign: below its target the loss falls when $m$ rises.")
mistake("comes-to-rest", resting(ipo=lambda m, tau: 2 * m), "IPO's target is missing in the slope: it doesn't pull towards 0.")
for target in (0.5, 1.0):
    mistake("comes-to-rest", resting(ipo=lambda m, tau, target=target: 2 * (m - target)), "τ is missing in IPO's slope: its target is $1 / (2\\tau)$.")
    mistake("comes-to-rest", resting(there=lambda tau, target=target: target), "`rests_at`, IPO: τ is missing. The square is 0 at $1 / (2\\tau)$.")
mistake("comes-to-rest", resting(at=lambda beta, epsilon: math.log(1 - epsilon) / beta if epsilon else math.inf),
        "`rests_at`, DPO: divide $1 - \\varepsilon$ by ε, inside the logarithm.")
mistake("comes-to-rest", resting(ipo=lambda m, tau: 0 * m - 1 / tau), "$m$ is missing in IPO's slope.")
mistake("comes-to-rest", resting(at=lambda beta, epsilon: math.log((1 - epsilon) / epsilon) if epsilon else math.inf),
        "`rests_at`, DPO: $\\beta m$ is the logarithm, so divide it by β.")
mistake("comes-to-rest", resting(at=lambda beta, epsilon: math.log((1 - epsilon) / epsilon) * beta if epsilon else math.inf),
        "`rests_at`, DPO: divide by β, instead of multiplying.")
mistake("comes-to-rest", resting(at=lambda beta, epsilon: math.log(epsilon / (1 - epsilon)) / beta if epsilon else math.inf),
        "`rests_at`, DPO: upside down, so the sign is wrong. With fewer errors than half, DPO rests above 0.")
mistake("comes-to-rest", resting(at=lambda beta, epsilon: math.log(1 / epsilon) / beta if epsilon else math.inf),
        "`rests_at`, DPO: the inverse of σ is $\\log \\frac{p}{1-p}$, with $p = 1 - \\varepsilon$.")
mistake("comes-to-rest", resting(at=lambda beta, epsilon: (1 - epsilon) / epsilon / beta if epsilon else math.inf), "`rests_at`, DPO: the logarithm is missing.")
mistake("comes-to-rest", resting(at=lambda beta, epsilon: math.log((1 - epsilon) / epsilon) / beta if epsilon else 0.0),
        "`rests_at`, DPO: without errors no finite $m$ is enough. Return `math.inf`.")
mistake("comes-to-rest", resting(at=lambda beta, epsilon: math.inf), "`rests_at`, DPO: with errors it does come to rest. Only for ε = 0 it never does.")
mistake("comes-to-rest", resting(at=lambda beta, epsilon: math.log((1 - epsilon) / epsilon) / beta),
        "`rests_at`, DPO: for ε = 0 this divides by 0. Return `math.inf`.")
mistake("comes-to-rest", resting(there=lambda tau: 1 / tau), "`rests_at`, IPO: the square is 0 at $1 / (2\\tau)$, half of this.")
mistake("comes-to-rest", resting(there=lambda tau: tau / 2), "`rests_at`, IPO: the square is 0 at $1 / (2\\tau)$: τ is below the line.")
mistake("comes-to-rest", resting(there=lambda tau: 2 * tau), "`rests_at`, IPO: the square is 0 at $1 / (2\\tau)$. This is upside down.")
mistake("comes-to-rest", resting(there=lambda tau: 0.0), "`rests_at`, IPO: the square is 0 where $m$ is $1 / (2\\tau)$.")
mistake("comes-to-rest", {"dpo_slope": dpo_slope, "ipo_slope": ipo_slope, "rests_at": lambda beta, epsilon, tau: rests_at(beta, epsilon, tau)[::-1]},
        "`rests_at` returns the two in the wrong order: DPO first.")


def derived(loss):
    def answer(m, *numbers):
        m = m.clone().requires_grad_()
        loss(m, *numbers).sum().backward()
        return m.grad
    return answer


def halved(beta, epsilon, tau):
    if epsilon == 0:
        return math.inf, 0.5 / tau
    return (math.log1p(-epsilon) - math.log(epsilon)) / beta, 0.5 / tau


alternative("comes-to-rest", {
    "dpo_slope": derived(lambda m, beta, epsilon=0.0: -(1 - epsilon) * F.logsigmoid(beta * m) - epsilon * F.logsigmoid(-beta * m)),
    "ipo_slope": derived(lambda m, tau: (m - 1 / (2 * tau)).square()), "rests_at": halved})

# %%
check.summary()
