# %% [markdown]
# # Exercise 42 · Judging, and thinking longer
#
# Six tasks, 16 points, about 60 minutes. They belong to lesson
# [42 Judging, and thinking longer](../notebooks/42_judging.ipynb). Tasks 1 to 3 are the *core*, about 25 minutes; tasks 4
# to 6 are *more*. Run the cells from the top; fill in where it says *your turn*, then run the check below it. You may
# check as often as you like.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0

# %%
import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from txgrade import check

# %% [markdown]
# ### Task 1 · Is the second model better?   ●●●○○ · 10 minutes · 3 points
#
# Two models have answered the same tasks, several times each: `one[i, j]` is the score of the first model's answer $j$ to
# task $i$. The second may have given another number of answers per task. Return the bootstrap interval of how much *higher*
# the second model's mean score is. What is drawn again are the tasks, not the single answers: answers to one task are too
# much alike. Each row of `rows` holds the tasks of one draw, the same for both models.
#
# `level` is 0.95 for the middle 95% of the draws. Tensors have a method `quantile`.
#
# <details><summary>Hint 1: one number per task</summary>
#
# First take the mean over the answers of each task, for both models; then the difference. It is a vector, one per task.
# </details>
# <details><summary>Hint 2: all draws at once</summary>
#
# `gaps[rows]` has the shape of `rows`: (draw, task).
# </details>
# <details><summary>Hint 3: which quantiles?</summary>
#
# For 0.95 those at 0.025 and 0.975. Half of what is left out is on either side.
# </details>

# %% nbgrader={"grade_id": "gain", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def gain(
    one: Float[Tensor, "task answers"], other: Float[Tensor, "task more_answers"], rows: Int[Tensor, "draw task"], level: float
) -> tuple[float, float]:
    """The bootstrap interval of the second model's mean score minus the first one's."""
    ### BEGIN SOLUTION
    gaps = other.mean(dim=1) - one.mean(dim=1)                    # (task,)
    means = gaps[rows].mean(dim=1)                                # (draw,)
    edge = (1 - level) / 2
    return means.quantile(edge).item(), means.quantile(1 - edge).item()
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-gain", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("gain") as show:
    for level, answers in ((0.95, (3, 3)), (0.8, (2, 5)), (0.5, (1, 4))):
        tasks = show.random_size(5, 9)
        one, other = show.rand(tasks, answers[0]), show.rand(tasks, answers[1])
        rows = show.randint(0, tasks, 40, tasks)
        show(list(gain(one, other, rows, level)), f"{tasks} tasks, {answers[0]} and {answers[1]} answers, level {level}")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")


def resampled(gaps=lambda one, other: other.mean(dim=1) - one.mean(dim=1), edge=lambda level: (1 - level) / 2,
              means=lambda gaps, rows: gaps[rows].mean(dim=1), ends=None):
    """The bootstrap with one part exchanged."""
    def answer(one, other, rows, level):
        drawn, low = means(gaps(one, other), rows), edge(level)
        if ends is not None:
            return ends(drawn)
        return drawn.quantile(low).item(), drawn.quantile(1 - low).item()
    return answer


def each_its_own(one, other, rows, level):
    means = other.mean(dim=1)[rows].mean(dim=1) - one.mean(dim=1)[rows.flip(0)].mean(dim=1)
    return means.quantile((1 - level) / 2).item(), means.quantile((1 + level) / 2).item()


def of_the_second(one, other, rows, level):
    means = other.mean(dim=1)[rows].mean(dim=1)
    return means.quantile((1 - level) / 2).item(), means.quantile((1 + level) / 2).item()


mistake("gain", resampled(gaps=lambda one, other: one.mean(dim=1) - other.mean(dim=1)),
        "The sign: how much *higher* is the second model, `other` minus `one`.")
mistake("gain", each_its_own, "The two models get different draws. The same row of tasks belongs to both: that is what makes it paired.")
mistake("gain", of_the_second, "This is the second model's own interval. Asked for is the difference of both.")
mistake("gain", resampled(gaps=lambda one, other: other[:, 0] - one[:, 0]), "Only the first answers count here. Take the mean over all answers to a task.")
mistake("gain", resampled(gaps=lambda one, other: other.sum(dim=1) - one.sum(dim=1)),
        "You add up the answers of a task. The models may have given different numbers of them: take means.")
mistake("gain", resampled(edge=lambda level: 1 - level), "You leave out `1 - level` on *each* side. It is half of that on each.")
mistake("gain", resampled(edge=lambda level: (1 + level) / 2), "The ends are exchanged: the low one comes first.")
mistake("gain", resampled(edge=lambda level: 0.025), "Your level is always 95%. It is an argument.")
mistake("gain", resampled(edge=lambda level: 0.0), "These are the least and the greatest of all draws. Take the quantiles.")
mistake("gain", resampled(means=lambda gaps, rows: gaps[rows].sum(dim=1)), "You add up over the tasks of a draw. A score is their *mean*.")
mistake("gain", resampled(means=lambda gaps, rows: gaps[rows].mean(dim=0)), "The mean is over the wrong axis: one mean per draw, over its tasks.")
mistake("gain", resampled(means=lambda gaps, rows: gaps), "Nothing is drawn: these are quantiles of the tasks' own differences. Use `rows`.")
mistake("gain", resampled(means=lambda gaps, rows: gaps[rows].median(dim=1).values), "That is a median. The score of a draw is the *mean* of its tasks.")
mistake("gain", resampled(ends=lambda drawn: (drawn.mean().item(), drawn.mean().item())), "That is the mean of all draws. An interval has two ends.")


def by_loop(one, other, rows, level):
    means = sorted(sum(float(other[i].mean() - one[i].mean()) for i in row) / len(row) for row in rows.tolist())

    def at(q):
        place = q * (len(means) - 1)
        below = min(math.floor(place), len(means) - 2)
        return means[below] + (place - below) * (means[below + 1] - means[below])
    return at((1 - level) / 2), at((1 + level) / 2)


alternative("gain", by_loop)

# %% [markdown]
# ### Task 2 · All of k   ●●○○○ · 8 minutes · 2 points
#
# pass@k asks whether *at least one* of $k$ answers is right. An assistant that books flights should be right *every* time:
# what is the probability that **all** of $k$ answers are right (Yao et al. 2024 write pass^k)? `correct[i, j]` says whether
# answer $j$ to task $i$ is right. Estimate it for each task without bias, by counting choices of $k$ of the task's answers;
# return the mean over the tasks.
#
# <details><summary>Hint 1: on paper</summary>
#
# Five answers, three right. Of the ten pairs, three have two right answers: 0.3, and not $0.6^2 = 0.36$.
# </details>
# <details><summary>Hint 2: counting</summary>
#
# `math.comb(c, k)` choices hold only right answers, of `math.comb(n, k)`.
# </details>

# %% nbgrader={"grade_id": "all-of-k", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def all_of_k(correct: Bool[Tensor, "task answer"], k: int) -> float:
    """The probability that k answers to a task are all right, on average over the tasks."""
    ### BEGIN SOLUTION
    n = correct.shape[1]
    by_task = [math.comb(c, k) / math.comb(n, k) for c in correct.sum(dim=1).tolist()]
    return sum(by_task) / len(by_task)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-all-of-k", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("all-of-k") as show:
    for n, k in ((5, 2), (8, 3), (4, 4), (6, 1)):
        tasks = show.random_size(4, 7)
        correct = show.rand(tasks, n) < 0.8
        correct[0] = True
        show(all_of_k(correct, k), f"{tasks} tasks with {n} answers, k = {k}")
    show(all_of_k(torch.zeros(2, 3, dtype=torch.bool), 2), "nothing is right")

# %% tags=["mistakes"]
def by_task(estimate):
    """The mean over the tasks of an estimate for n answers, c right."""
    def answer(correct, k):
        n = correct.shape[1]
        return sum(estimate(n, c, k) for c in correct.sum(dim=1).tolist()) / len(correct)
    return answer


def pooled(correct, k):
    return math.comb(int(correct.sum()), k) / math.comb(correct.numel(), k)


mistake("all-of-k", by_task(lambda n, c, k: 1 - math.comb(n - c, k) / math.comb(n, k)), "That is pass@k, *at least one* right. All of the k have to be.")
mistake("all-of-k", by_task(lambda n, c, k: (c / n) ** k), "$(c/n)^k$ is too high on average. Count the choices: $\\binom{c}{k} / \\binom{n}{k}$.")
mistake("all-of-k", by_task(lambda n, c, k: math.comb(n - c, k) / math.comb(n, k)), "That is the probability that all are *wrong*.")
mistake("all-of-k", by_task(lambda n, c, k: 1 - math.comb(c, k) / math.comb(n, k)), "That is the probability that one of them is wrong. Asked for is the opposite.")
mistake("all-of-k", by_task(lambda n, c, k: c / n), "That is k = 1. All of k answers are right less often.")
mistake("all-of-k", by_task(lambda n, c, k: float(c >= k)), "This asks whether k answers are right at all. Count in how many *choices* of k all are.")
mistake("all-of-k", by_task(lambda n, c, k: math.comb(c, k)), "Divide by the number of all choices, $\\binom{n}{k}$.")
mistake("all-of-k", pooled, "You throw the answers of all tasks together. The k answers belong to one task: estimate per task, then average.")
mistake("all-of-k", lambda correct, k: all_of_k(correct, k) * len(correct), "You add up over the tasks. Return their mean.")
mistake("all-of-k", lambda correct, k: correct[:, :k].all(dim=1).float().mean().item(),
        "Only the first k answers count here. All choices of k do, which is far more precise.")
mistake("all-of-k", lambda correct, k: math.prod(correct.float().mean().item() for _ in range(k)),
        "That is the overall score to the power k. Tasks differ: estimate each, then average.")


def by_combinations(correct, k):
    from itertools import combinations
    found = [float(all(chosen)) for row in correct.tolist() for chosen in combinations(row, k)]
    return sum(found) / len(found)


alternative("all-of-k", by_combinations)

# %% [markdown]
# ### Task 3 · A weighted vote   ●●○○○ · 8 minutes · 2 points
#
# Several answers to one task, as texts, and a weight for each: how much a checker trusts it. Return the answer whose weights
# add up to the most. An empty text could not be read and has no vote. Of answers that are tied, the one that was written
# first wins. If no answer could be read, return `None`. Weights are 0 or more.
#
# <details><summary>Hint 1: a dictionary</summary>
#
# `totals[answer] = totals.get(answer, 0) + weight`, for each answer that is not empty.
# </details>
# <details><summary>Hint 2: ties</summary>
#
# A dictionary keeps its order, and `max` returns the first of those tied.
# </details>

# %% nbgrader={"grade_id": "vote", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def vote(answers: Sequence[str], weights: Sequence[float]) -> str | None:
    """The answer with the largest sum of weights."""
    ### BEGIN SOLUTION
    totals: dict[str, float] = {}
    for answer, weight in zip(answers, weights):
        if answer:
            totals[answer] = totals.get(answer, 0) + weight
    return max(totals, key=totals.get) if totals else None
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-vote", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("vote") as show:
    for count in (7, 9, show.random_size(10, 14)):
        least = show.random_size(10, 9000)
        answers = [str(least + x) for x in show.randint(0, 4, count).tolist()]
        show(vote(answers, [x / 4 for x in show.randint(1, 8, count).tolist()]), f"{count} answers")
    show(vote(["7", "9", "9", "9"], [2.0, 0.5, 0.5, 0.5]), "one is trusted more than three")
    show(vote(["7", "9", "9", "9"], [1.0, 0.5, 0.5, 0.5]), "three together outweigh the most trusted")
    show(vote(["9", "7", "7", "9", "8"], [0.5, 1.0, 0.25, 0.75, 1.0]), "tied: 9 was written first")
    show(vote(["3", "8", "8", "3"], [0.5, 1.0, 0.25, 0.75]), "tied: 3 was written first")
    show(vote(["", "5", "", "6"], [3.0, 0.5, 3.0, 0.25]), "two that can't be read")
    show(vote(["4", "3"], [0.0, 0.0]), "no weight at all")
    show([vote(["", ""], [1.0, 1.0]), vote([], [])], "none can be read")

# %% tags=["mistakes"]
def tallied(count=lambda weight: weight, skip=lambda answer: not answer, join=lambda total, weight: total + weight, pick=max, empty=None):
    """The vote with one part exchanged."""
    def answer(answers, weights):
        totals = {}
        for each, weight in zip(answers, weights):
            if not skip(each):
                totals[each] = join(totals.get(each, 0), count(weight))
        return pick(totals, key=totals.get) if totals else empty
    return answer


def mean_weight(answers, weights):
    groups = {}
    for each, weight in zip(answers, weights):
        if each:
            groups.setdefault(each, []).append(weight)
    return max(groups, key=lambda each: sum(groups[each]) / len(groups[each])) if groups else None


for start in (1, -1, 2):
    equivalent("vote", f"totals.get(answer, 0) → totals.get(answer, {start})", "Each answer gets as much in addition, once.")
mistake("vote", lambda answers, weights: None, "No answer is ever counted. Return the one with the largest sum of weights.")
mistake("vote", tallied(count=lambda weight: 1), "Each answer has one vote here. Add up the *weights*.")
mistake("vote", tallied(join=max), "This takes the single most trusted answer. The weights of equal answers add up.")
mistake("vote", tallied(join=lambda total, weight: weight), "Each answer keeps its last weight only. Add it to what is there.")
mistake("vote", mean_weight, "This compares mean weights, so votes do not add up. Take the sum.")
mistake("vote", tallied(skip=lambda answer: False), "An empty text has a vote here. It could not be read: leave it out.")
mistake("vote", tallied(pick=min), "This is the answer with the *least* weight.")
mistake("vote", tallied(pick=lambda totals, key: max(reversed(list(totals)), key=key)), "Of those tied you return the last. The one written *first* wins.")
mistake("vote", tallied(pick=lambda totals, key: max(sorted(totals), key=key)), "Of those tied you return the first in the alphabet. The one *written* first wins.")
mistake("vote", tallied(empty=""), "If none could be read, return `None`, not an empty text.")
mistake("vote", tallied(pick=lambda totals, key: next(iter(totals))), "This returns the first answer. The largest sum of weights wins.")


def by_sorting(answers, weights):
    readable = [each for each in dict.fromkeys(answers) if each]
    sums = [-sum(weight for other, weight in zip(answers, weights) if other == each) for each in readable]
    return sorted(zip(sums, range(len(sums)), readable))[0][2] if readable else None


alternative("vote", by_sorting)

# %% [markdown]
# ### Task 4 · Could it be luck?   ●●●○○ · 10 minutes · 3 points
#
# On the same tasks, `only_one` were solved by the first model alone and `only_other` by the second alone. The rest tell
# nothing. If the models were equally good, each of these $n$ tasks would have gone to either by the toss of a coin. Return the
# probability of a split that is *at least as uneven* as this one, in either direction (the sign test). Without any such
# task it is 1.
#
# <details><summary>Hint 1: on paper</summary>
#
# 1 against 3: of the 16 outcomes of four tosses, those with 0, 1, 3 or 4 heads count: $(1 + 4 + 4 + 1) / 16 = 0.625$.
# </details>
# <details><summary>Hint 2: uneven</summary>
#
# With $x$ heads of $n$, the split is $x$ against $n - x$: its gap is $|2x - n|$.
# </details>

# %% nbgrader={"grade_id": "luck", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def luck(only_one: int, only_other: int) -> float:
    """The probability that fair coins split the tasks at least as unevenly."""
    ### BEGIN SOLUTION
    n = only_one + only_other
    gap = abs(only_one - only_other)
    return sum(math.comb(n, x) for x in range(n + 1) if abs(2 * x - n) >= gap) / 2**n
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-luck", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("luck") as show:
    for least, most in ((0, 9), (5, 30), (20, 60)):
        one, other = show.random_size(least, most), show.random_size(least, most)
        show([luck(one, other), luck(other, one)], f"{one} against {other}, and the other way round")
    one = show.random_size(6, 40)
    show([luck(one, 0), luck(0, one)], f"all {one} to one model")
    show([luck(4, 4), luck(0, 0)], "4 against 4, and none")

# %% tags=["mistakes"]
def tail(counts, over=lambda n: 2**n, at_most=math.inf):
    """The probability of the outcomes that count."""
    def answer(only_one, only_other):
        n = only_one + only_other
        return min(sum(math.comb(n, x) for x in range(n + 1) if counts(x, n, only_one, only_other)) / over(n), at_most)
    return answer


equivalent("luck", "only_one - only_other → only_other - only_one", "Only its size counts.")
equivalent("luck", "2 * x - n → n - 2 * x", "Only its size counts.")
equivalent("luck", "n + 1 → n + 2", "There is no way to choose n + 1 of n: `math.comb` gives 0.")
mistake("luck", tail(lambda x, n, a, b: True), "You add up all outcomes. Count those that are at least as uneven as this one.")
mistake("luck", tail(lambda x, n, a, b: x < n and abs(2 * x - n) >= abs(a - b)), "One outcome is missing: all n tasks may go to one model. There are n + 1 values of $x$.")
mistake("luck", tail(lambda x, n, a, b: x >= max(a, b)), "Only one direction counts here. The split may be as uneven in favor of *either* model.")
mistake("luck", tail(lambda x, n, a, b: x <= a), "This adds up one side only, and depends on which model comes first.")
mistake("luck", tail(lambda x, n, a, b: x >= b), "This adds up one side only, and depends on which model comes first.")
mistake("luck", tail(lambda x, n, a, b: abs(2 * x - n) > abs(a - b)), "*At least* as uneven: the split itself counts as well.")
mistake("luck", tail(lambda x, n, a, b: x in (a, b)), "This is the probability of exactly this split. More uneven ones count as well.")
mistake("luck", tail(lambda x, n, a, b: abs(2 * x - n) <= abs(a - b)), "You add up the splits that are *more even*. Those at least as uneven count.")
mistake("luck", tail(lambda x, n, a, b: abs(2 * x - n) >= abs(a - b), over=lambda n: 1), "Divide by the number of all outcomes, $2^n$.")
mistake("luck", tail(lambda x, n, a, b: abs(2 * x - n) >= abs(a - b), over=lambda n: 2 * n or 1), "There are $2^n$ outcomes of $n$ tosses, not $2n$.")
mistake("luck", lambda a, b: 1 - luck(a, b), "That is the probability of a more even split.")
mistake("luck", lambda a, b: 2 * tail(lambda x, n, a, b: x >= max(a, b))(a, b), "Twice one side is above 1 where the split is even: the middle counts once.")
mistake("luck", lambda a, b: tail(lambda x, n, a, b: abs(2 * x - n) >= abs(a - b))(a, b) if a + b else 0.0, "Without any task that tells them apart, luck explains everything: 1.")


def by_one_side(only_one, only_other):
    n, most = only_one + only_other, max(only_one, only_other)
    return min(1.0, 2 * sum(math.comb(n, x) for x in range(most, n + 1)) * 0.5**n)


alternative("luck", by_one_side)

# %% [markdown]
# ### Task 5 · Has it read this text?   ●●●○○ · 9 minutes · 3 points
#
# A text that a model has read holds few tokens that surprise it (Shi et al. 2024). `log_p[i, j]` is the log-probability
# of token $j$ of text $i$; text $i$ has `lengths[i]` tokens, the rest of its row is padding. `least_likely` returns for each
# text the mean of the lowest `fraction` of its log-probabilities; how many these are is rounded *up*.
#
# `separation` says how well such scores tell texts that were read from fresh ones: the fraction of pairs, one of each, in which
# the text that was read has the higher score. A tie counts half.
#
# <details><summary>Hint 1: one text at a time</summary>
#
# `log_p[i, : lengths[i]].sort().values` begins with the lowest.
# </details>
# <details><summary>Hint 2: how many</summary>
#
# `math.ceil(fraction * length)`.
# </details>
# <details><summary>Hint 3: all pairs</summary>
#
# `read[:, None] > fresh[None, :]` is a table with one entry per pair.
# </details>

# %% nbgrader={"grade_id": "has-read", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def least_likely(log_p: Float[Tensor, "text length"], lengths: Int[Tensor, "text"], fraction: float) -> Float[Tensor, "text"]:
    """The mean of each text's lowest log-probabilities."""
    ### BEGIN SOLUTION
    scores = []
    for row, length in zip(log_p, lengths.tolist()):
        lowest = row[:length].sort().values[: math.ceil(fraction * length)]
        scores.append(lowest.mean())
    return torch.stack(scores)
    ### END SOLUTION


def separation(read: Float[Tensor, "read"], fresh: Float[Tensor, "fresh"]) -> float:
    """The fraction of pairs in which the text that was read scores higher."""
    ### BEGIN SOLUTION
    higher, tied = read[:, None] > fresh, read[:, None] == fresh
    return (higher + 0.5 * tied).mean().item()
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-has-read", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("has-read") as show:
    for fraction in (0.25, 0.4, 1.0):
        texts = show.random_size(3, 5)
        lengths = show.randint(5, 10, texts)
        show(least_likely(show.randn(texts, 10) - 2, lengths, fraction), f"{texts} texts of 5 to 9 tokens, the lowest {fraction:.0%}")
    show(least_likely(show.randn(1, 6) - 2, torch.tensor([1]), 0.2), "a text of one token")
    show(separation(show.randn(7) + 0.5, show.randn(5)), "7 that were read, 5 fresh ones")
    ties = show.randint(0, 3, 6).float()
    show([separation(ties, torch.tensor([1.0, 2.0])), separation(torch.ones(3), torch.ones(4))], "with ties")

# %% tags=["mistakes"]
def read_by(take=lambda row, length: row[:length], order=lambda x: x.sort().values, count=lambda fraction, length: math.ceil(fraction * length),
            mean=lambda x: x.mean(), pairs=lambda read, fresh: (read > fresh) + 0.5 * (read == fresh)):
    """Both functions with one part exchanged."""
    def lowest(log_p, lengths, fraction):
        return torch.stack([mean(order(take(row, length))[: count(fraction, length)]) for row, length in zip(log_p, lengths.tolist())])
    return {"least_likely": lowest, "separation": lambda read, fresh: pairs(read[:, None], fresh[None, :]).float().mean().item()}


mistake("has-read", read_by(take=lambda row, length: row), "The padding counts here. Text $i$ ends after `lengths[i]` tokens.")
mistake("has-read", read_by(take=lambda row, length: row, count=lambda fraction, length: math.ceil(fraction * 10)),
        "You take a fraction of the padded length. Each text has its own length.")
mistake("has-read", read_by(order=lambda x: x), "These are the *first* tokens. Sort them: the lowest count.")
mistake("has-read", read_by(order=lambda x: x.sort(descending=True).values), "These are the likeliest tokens. Those that surprise the model count.")
mistake("has-read", read_by(count=lambda fraction, length: max(1, int(fraction * length))), "The number of tokens is rounded down. Round it *up*.")
mistake("has-read", read_by(count=lambda fraction, length: length), "All tokens count here, so `fraction` is not used.")
mistake("has-read", read_by(mean=lambda x: x.sum()), "You add up. Long texts would score low because they are long: take the mean.")
mistake("has-read", read_by(mean=lambda x: x.max()), "That is the threshold, the last of the lowest. Take their mean.")
mistake("has-read", read_by(mean=lambda x: x.min()), "That is the single lowest. Take the mean of the lowest `fraction`.")
mistake("has-read", read_by(mean=lambda x: x.exp().mean()), "These are probabilities. The score is a mean of *log*-probabilities.")
mistake("has-read", read_by(mean=lambda x: -x.mean()), "The sign: a text that was read has the *higher* score. Do not negate.")
mistake("has-read", read_by(pairs=lambda read, fresh: read > fresh), "A tie counts half.")
mistake("has-read", read_by(pairs=lambda read, fresh: read >= fresh), "A tie counts half, not whole.")
mistake("has-read", read_by(pairs=lambda read, fresh: (read < fresh) + 0.5 * (read == fresh)),
        "The direction: count pairs in which the text that was *read* scores higher.")


def by_topk(log_p, lengths, fraction):
    found = torch.zeros(len(log_p))
    for i in range(len(log_p)):
        length = int(lengths[i])
        found[i] = log_p[i, :length].topk(-int(-fraction * length // 1), largest=False).values.mean()
    return found


alternative("has-read", {"least_likely": by_topk, "separation": lambda read, fresh: (
    sum((a > b) + (a == b) / 2 for a in read.tolist() for b in fresh.tolist()) / (len(read) * len(fresh)))})

# %% [markdown]
# ### Task 6 · Investigate: how warm?   ●●●●○ · 15 minutes · 3 points
#
# In the lesson all answers were drawn at temperature 1 (lesson 11). Take the lesson's model of sums and draw answers at three
# temperatures or more, between 0.3 and 2. Measure for each: one answer, pass@k for the largest $k$ that you drew, and the
# majority of as many. Use at least 100 test tasks and 16 answers, and three seeds of the drawing or, better, of the model.
# You may use the lesson's cells.
#
# Hand in a table, and two or three sentences: which temperature is best for what, why, what the simplest baseline gets,
# and what your runs can't tell. A person reads it.

# %% [markdown] nbgrader={"grade_id": "how-warm", "solution": true, "grade": true, "points": 3, "locked": false, "schema_version": 3}
# <!-- BEGIN SOLUTION -->
# 200 test tasks, 16 answers to each, three seeds of the model, right in percent. One greedy answer: 50, 81, 69.
#
# | temperature | one answer | pass@16 | majority of 16 |
# | --- | --- | --- | --- |
# | 0.3 | 37, 52, 50 | 94, 100, 100 | 42, 72, 68 |
# | 0.6 | 28, 34, 34 | 98, 99, 97 | 38, 56, 56 |
# | 1.0 | 18, 21, 21 | 87, 98, 96 | 36, 49, 44 |
# | 1.5 | 13, 13, 14 | 88, 88, 90 | 32, 28, 36 |
#
# One answer gets better the colder it is, and so does the majority; the simplest baseline, one greedy answer, beats the majority
# of 16 at every temperature in all seeds. pass@16 is best at 0.3 or 0.6: there right answers are frequent, and the answers
# still differ. With 200 tasks an interval is about ±7 points wide, so 0.3 and 0.6 tie for pass@16. What the runs can't tell:
# other models and tasks, longer answers (where greedy decoding often loses to a vote), colder than 0.3, where pass@16 must
# fall to the greedy score; and pass@16 presumes a perfect checker.
# <!-- END SOLUTION -->

# %% [markdown] tags=["rubric"]
# 1 point: a table with three temperatures or more, all three measures, the number of tasks and answers, and three seeds.
# 1 point: what it shows: one answer and the majority get better the colder they are, and one greedy answer, the baseline, is
# at least as good as either; pass@k is best in between, since very cold answers repeat each other and very warm ones are rarely
# right. 1 point: caution: an interval or the spread of the seeds; one model, one kind of task, short answers; pass@k presumes
# a perfect checker.

# %%
check.summary()
