# %% [markdown]
# # Exercise 09 · Translation
#
# Three tasks, 10 points, about 45 minutes. [Lesson 09](../notebooks/09_translation.ipynb) has the ideas; here you use
# them elsewhere. Tasks 1 and 2 are the *core*, task 3 is *more*. Run the cells from the top; fill in where it says
# *your turn*. A check compares what your function returns with what it should return, and knows the usual mistakes. Try
# as often as you like.
#
# A label of −100 is not counted.
#
# Write the answers yourself: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0

# %%
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from txgrade import check

# %% tags=["variant"]
from txgrade import variant

EMPTY = variant(0.0, 1.0, 0.5, 0.25)  # the precision of a hypothesis without n-grams, which conventions differ on

# %% [markdown]
# ### Task 1 · Several references   ●●○○○ · 12 minutes · 3 points
#
# A sentence has many good translations, so test sets often come with several references per sentence (Papineni et al.
# 2002 had up to four). Then an n-gram of the hypothesis may count as often as in the *one* reference that has it most.
# For example, if *the* occurs twice in one reference and once in another, it may count twice, not three times.
#
# Return the modified precision for runs of `n` words: such matches, added up over all sentences, divided by the number
# of n-grams in all hypotheses. `references[i]` lists the references of `hypotheses[i]`. If all hypotheses are too short
# to hold an n-gram, return `EMPTY`, which is {{EMPTY}} here. (There are several conventions for that.)
#
# <details><summary>Hint 1: counting</summary>
#
# A `Counter` of tuples, `tuple(words[at : at + n])`, for the hypothesis and for each reference.
# </details>
# <details><summary>Hint 2: several references</summary>
#
# Two `Counter`s have an operation that keeps the larger count of each n-gram. Join all references of a sentence with it.
# </details>
# <details><summary>Hint 3: then clip</summary>
#
# … and one that keeps the smaller count. What remains are the matches. Divide only after the last sentence.
# </details>

# %% nbgrader={"grade_id": "several-references", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def modified_precision(hypotheses: list[list[str]], references: list[list[list[str]]], n: int) -> float:
    """Clipped against the reference that has an n-gram most, pooled over all sentences."""
    ### BEGIN SOLUTION
    def n_grams(words):
        return Counter(tuple(words[at : at + n]) for at in range(len(words) - n + 1))

    matches = count = 0
    for hypothesis, several in zip(hypotheses, references, strict=True):
        most = Counter()
        for reference in several:
            most |= n_grams(reference)
        found = n_grams(hypothesis)
        matches += (found & most).total()
        count += found.total()
    return matches / count if count else EMPTY
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-several-references", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("several-references") as show:
    known = ["the", "a", "orcs", "have", "come"]

    def sentence(low, high):
        return [known[word] for word in show.randint(0, 5, show.random_size(low, high)).tolist()]

    one = [["the"] * 4 + ["orcs"]], [[["the", "orcs", "the", "a"], ["have", "the", "orcs"]]]
    for n in (1, 2, 3):
        hypotheses = [sentence(4, 14), sentence(4, 7), sentence(2, 3), sentence(1, 1)]
        references = [[sentence(5, 12) for _ in range(several)] for several in (3, 2, 1, 3)]
        references[0][1] += hypotheses[0][-4:]
        show([modified_precision(*one, n), modified_precision(hypotheses, references, n)],
             f"{n} words: one sentence, four sentences")
    empty = modified_precision([["orcs"]], [[["orcs"]]], 2)
    show([empty, modified_precision([sentence(8, 15)], [[sentence(8, 15)]], 1)], "no 2-grams; one reference")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")
forbid("several-references", ("sacrebleu", "nltk"))


def run_of(words, at, n):
    return words[at : at + n]


def precision(hypotheses, references, n, *, join="most", clip=True, pool=True, over="hypothesis", last=1, run=run_of):
    def n_grams(words):
        return Counter(tuple(run(words, at, n)) for at in range(len(words) - (n if last < 2 else 0) + last % 2))

    all_matches, all_counts = [], []
    for hypothesis, several in zip(hypotheses, references, strict=True):
        counts = [n_grams(each) for each in several]
        there = counts[0]
        for each in counts[1:] if join != "first" else []:
            there = there | each if join == "most" else there + each if join == "sum" else there & each
        found = n_grams(hypothesis)
        matches = (found & there).total() if clip else sum(k for gram, k in found.items() if gram in there)
        if clip in ("once", "none", "there"):
            matches = {"once": len(found.keys() & there.keys()), "none": found.total(), "there": there.total()}[clip]
        all_matches.append(matches)
        all_counts.append({"hypothesis": found.total(), "reference": there.total(), "lengths": len(hypothesis) - n + 1}[over])
    if not pool:
        shares = [m / c if c else EMPTY for m, c in zip(all_matches, all_counts, strict=True)]
        return sum(shares) / len(shares)
    return sum(all_matches) / sum(all_counts) if sum(all_counts) else EMPTY


def matches_of(hypotheses, references, n):
    shares = [(precision([hypothesis], [several], n), max(0, len(hypothesis) - n + 1))
              for hypothesis, several in zip(hypotheses, references, strict=True)]
    return round(sum(share * count for share, count in shares)) if any(count for _, count in shares) else EMPTY


def of_distinct(hypotheses, references, n):
    def n_grams(words):
        return {tuple(words[at : at + n]) for at in range(len(words) - n + 1)}

    found = [n_grams(each) for each in hypotheses]
    there = [set().union(*map(n_grams, several)) for several in references]
    count = sum(map(len, found))
    return sum(len(a & b) for a, b in zip(found, there, strict=True)) / count if count else EMPTY


mistake("several-references", lambda *a: precision(*a, clip=False),
        "Nothing is clipped: *the the the* gets three points. An n-gram counts at most as often as a reference has it.")
mistake("several-references", lambda *a: precision(*a, join="sum"),
        "You add up the references' counts. What may count is the count of the *one* reference that has it most.")
mistake("several-references", lambda *a: precision(*a, join="first"),
        "Only the first reference is read. Join all of them.")
mistake("several-references", lambda *a: precision(*a, join="least"),
        "An n-gram counts only where *every* reference has it. One of them is enough: keep the larger count.")
mistake("several-references", lambda *a: precision(*a, pool=False),
        "This is the mean of the sentences' precisions. Add up matches and n-grams over all sentences, then divide once.")
mistake("several-references", lambda *a: precision(*a, over="reference"),
        "You divide by the references' n-grams: that is recall. Precision divides by the hypotheses'.")
mistake("several-references", lambda *a: precision(*a, clip="once"),
        "Each n-gram counts once at most. One that occurs twice in hypothesis and reference counts twice.")
mistake("several-references", of_distinct,
        "You count *different* n-grams, in sets. Repetitions count, up to the clip: use `Counter`s.")
mistake("several-references", lambda *a: precision(*a, last=0),
        "The last n-gram of each sentence is missing: there are `len(words) - n + 1` of them.")
mistake("several-references", lambda hypotheses, references, n: modified_precision(hypotheses, references, 1),
        "`n` is not used: these are single words each time.")
mistake("several-references", lambda *a: 100 * modified_precision(*a), "A precision is a share, from 0 to 1.")
for run in (lambda words, at, n: words[at:n], lambda words, at, n: words[at:at]):
    mistake("several-references", lambda *a, run=run: precision(*a, run=run),
            "A run of `n` words that begins at `at` ends before `at + n`: `words[at : at + n]`.")
for last in (2, 3):
    mistake("several-references", lambda *a, last=last: precision(*a, last=last),
            "At the end of each sentence your runs have fewer than `n` words. The last whole one begins at `len(words) - n`.")
mistake("several-references", matches_of,
        "This is the number of matches. Divide it by the number of n-grams in all hypotheses.")
mistake("several-references", lambda *a: precision(*a, clip="none"),
        "Every n-gram of the hypotheses counts as a match. Only those count that a reference also has.")
mistake("several-references", lambda *a: precision(*a, clip="there"),
        "You count the references' n-grams, also those that the hypothesis doesn't have.")
mistake("several-references", lambda *a: precision(*a, over="lengths"),
        "A sentence shorter than `n` has no n-grams; `len(words) - n + 1` is negative there.")


def without_counters(hypotheses, references, n):
    matches, count = 0, 0
    for hypothesis, several in zip(hypotheses, references, strict=True):
        runs = [[each[at : at + n] for at in range(len(each) - n + 1)] for each in (hypothesis, *several)]
        for number, gram in enumerate(runs[0]):
            count += 1
            matches += runs[0][: number + 1].count(gram) <= max(other.count(gram) for other in runs[1:])
    return matches / count if count else EMPTY


alternative("several-references", without_counters)

# %% [markdown]
# ### Task 2 · Learn from a teacher   ●●●○○ · 13 minutes · 3 points
#
# Label smoothing gives a share $\epsilon$ of the target to *all* tokens alike. But a large model, the *teacher*, knows
# better which other tokens would do: *King* and *king*, say, not *King* and *sword*. A small model that learns from
# its probabilities learns more per sentence (*distillation*: Hinton et al. 2015; for translation, Kim & Rush 2016).
#
# Let $\tau(k)$ be the teacher's probability of token $k$, $y$ the label, and $\epsilon$ the argument `share`:
#
# $$q(k) = (1 - \epsilon)\,[k = y] + \epsilon\, \tau(k) \qquad\qquad \text{loss} = -\sum_k q(k) \log p(k)$$
#
# Return the mean over the labels that count; those of −100 don't. You are given logits of both models. No gradient may
# reach the teacher. Write it with `log_softmax` and `softmax`. (The check looks at numbers only, but a call of
# `F.cross_entropy` or `F.kl_div` is flagged for your teacher.)
#
# <details><summary>Hint 1: discard first</summary>
#
# `counted = labels != -100`; index both logits and the labels with it.
# </details>
# <details><summary>Hint 2: two terms</summary>
#
# Put $q$ into the sum: one term picks $\log p(y)$, the other weighs *all* $\log p(k)$ with the teacher's probabilities.
# </details>
# <details><summary>Hint 3: the pieces</summary>
#
# `gather` picks, `.detach()` stops gradients, and the second term is a sum over the vocabulary, not a mean.
# </details>

# %% nbgrader={"grade_id": "teacher", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def distilled_loss(
    logits: Float[Tensor, "batch target vocab"],
    teacher_logits: Float[Tensor, "batch target vocab"],
    labels: Int[Tensor, "batch target"],
    share: float,
) -> Float[Tensor, ""]:
    """Mean cross-entropy with targets that are mixed with a teacher's probabilities; -100 is not counted."""
    ### BEGIN SOLUTION
    counted = labels != -100
    log_p = logits[counted].log_softmax(dim=-1)
    teacher = teacher_logits[counted].detach().softmax(dim=-1)
    of_label = log_p.gather(-1, labels[counted][:, None])[:, 0]
    return -((1 - share) * of_label + share * (teacher * log_p).sum(dim=-1)).mean()
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-teacher", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("teacher") as show:
    n, vocab = show.random_size(4, 6), show.random_size(5, 9)
    logits, teacher_logits = 2 * show.randn(2, n, vocab), 3 * show.randn(2, n, vocab)        # (2, n, vocab) each
    labels = show.randint(0, vocab, 2, n)                          # (2, n)
    labels[1, 2:] = -100
    show(distilled_loss(logits, teacher_logits, labels, 0.3), f"{n} and 2 words, vocabulary of {vocab}, share 0.3")
    show([distilled_loss(logits, teacher_logits, labels, share) for share in (0.0, 1.0)],
         "no teacher, and nothing but the teacher")
    logits.requires_grad_(), teacher_logits.requires_grad_()
    distilled_loss(logits, teacher_logits, labels, 0.5).backward()
    show([logits.grad, teacher_logits.grad], "the gradients of both")

# %% tags=["mistakes"]
forbid("teacher", ("cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss", "kl_div", "KLDivLoss"),
       ("aten.nll_loss_forward", "aten.nll_loss_nd", "aten.cross_entropy_loss", "aten.kl_div"))


def two_terms(logits, teacher_logits, labels, share, *, counted=None, soft=lambda t: t.softmax(-1), stop=True,
              of=lambda x: x.log_softmax(-1), over=torch.sum):
    counted = labels != -100 if counted is None else counted
    log_p, teacher = of(logits[counted]), soft(teacher_logits.detach()[counted] if stop else teacher_logits[counted])
    of_label = log_p.gather(-1, labels.clamp(min=0)[counted][:, None])[:, 0]
    return (1 - share) * of_label, share * over(teacher * log_p, dim=-1)


def mean_of(terms):
    return -(terms[0] + terms[1]).mean()


def its_choice(teacher):
    return torch.nn.functional.one_hot(teacher.argmax(-1), teacher.shape[-1]).float()


def from_the_teacher(logits, teacher_logits, labels, share):
    return distilled_loss(logits, teacher_logits, labels, share) - share * entropy(teacher_logits[labels != -100])


def entropy(teacher):
    return -(teacher.detach().softmax(-1) * teacher.detach().log_softmax(-1)).sum(-1).mean()


def by_sentence(logits, teacher_logits, labels, share):
    pairs = zip(logits[:, None], teacher_logits[:, None], labels[:, None], strict=True)
    return torch.stack([distilled_loss(*each, share) for each in pairs]).mean()


def mixed_logits(logits, teacher_logits, labels, share):
    mixed = (1 - share) * logits + share * teacher_logits.detach()
    return distilled_loss(mixed, teacher_logits, labels, 0.0)


def padded(labels):
    return torch.ones_like(labels, dtype=torch.bool)


mistake("teacher", lambda logits, teacher, labels, share: mean_of(
            two_terms(logits, teacher, labels, share, soft=lambda t: torch.full_like(t, 1 / t.shape[-1]))),
        "This is label smoothing: ε is shared equally. Share it as the teacher's probabilities say.")
mistake("teacher", lambda *a: mean_of(two_terms(*a, soft=lambda t: t)),
        "The teacher's logits are used as if they were probabilities: `softmax` first.")
mistake("teacher", lambda *a: mean_of(two_terms(*a, soft=its_choice)),
        "You use only the teacher's *best* word. What it knows about all others is what there is to learn.")
mistake("teacher", lambda *a: mean_of(two_terms(*a, stop=False)),
        "A gradient reaches the teacher: it would learn to please its pupil. `.detach()` it.")
mistake("teacher", lambda *a: mean_of(two_terms(*a, over=torch.mean)),
        "The teacher's term is a mean over the vocabulary. Its probabilities are weights already: sum.")
mistake("teacher", lambda *a: mean_of(two_terms(*a, of=lambda x: x.softmax(-1))),
        "These are the pupil's probabilities, not their logarithms. Use `log_softmax`.")
mistake("teacher", lambda *a: mean_of(two_terms(*a, of=lambda x: x)),
        "The logits are used as if they were log-probabilities. They are not normalised yet: `log_softmax` first.")
mistake("teacher", lambda logits, teacher, labels, share: distilled_loss(logits, teacher, labels, 1 - share),
        "The shares are swapped: ε belongs to the teacher.")
mistake("teacher", lambda logits, teacher, labels, share: mean_of(
            two_terms(logits, teacher, labels, share, counted=padded(labels))),
        "The labels of −100 are counted as if they were word 0. Leave them out.")
mistake("teacher", lambda *a: -distilled_loss(*a),
        "The sign is missing. A log-probability is negative, a loss is positive.")
mistake("teacher", lambda logits, teacher, labels, share: distilled_loss(logits, teacher, labels, share)
        * (labels != -100).sum(), "You return the sum. The task asks for the mean over the labels that count.")
mistake("teacher", lambda logits, teacher, labels, share: distilled_loss(logits, teacher, labels, share)
        * (labels != -100).float().mean(),
        "The sum is right, but you divide it by all positions, padding too. Divide by the number of labels that count.")
mistake("teacher", from_the_teacher,
        "The teacher's entropy is subtracted (the *KL divergence*). It has the same gradient, but asked for is −Σ q log p.")
mistake("teacher", by_sentence,
        "This is a mean of the sentences' means, so a word in a short sentence weighs more. Take one mean over all words.")
mistake("teacher", mixed_logits,
        "You mix the logits of pupil and teacher. It is the *target* that is mixed: $q$, not $p$.")
mistake("teacher", lambda logits, teacher, labels, share: distilled_loss(logits, teacher, labels, 0.1),
        "The share is always 0.1. Use the `share` you are given.")


def whole_target(logits, teacher_logits, labels, share):
    real = labels != -100
    label = torch.nn.functional.one_hot(labels.clamp(min=0), logits.shape[-1])
    q = (1 - share) * label + share * teacher_logits.detach().softmax(-1)
    return -(q * logits.log_softmax(-1)).sum(-1).masked_select(real).mean()


alternative("teacher", whole_target)


def over_positions(x, log=False):
    return x.log_softmax(-2) if log else x.softmax(-2)


mistake("teacher", lambda *a: mean_of(two_terms(*a, of=lambda x: over_positions(x, log=True))),
        "Your softmax runs over the positions. Each position has a distribution over the *vocabulary*, the last axis.")
mistake("teacher", lambda *a: mean_of(two_terms(*a, soft=over_positions)),
        "Your softmax runs over the positions. Each position has a distribution over the *vocabulary*, the last axis.")
mistake("teacher", lambda *a: -two_terms(*a)[0].mean(),
        "The teacher's term is missing: the loss is to add −ε Σ τ(k) log p(k).")
mistake("teacher", lambda *a: -two_terms(*a)[1].mean(),
        "The label's term is missing: the loss is to add −(1 − ε) log p(y).")
mistake("teacher", lambda logits, teacher, labels, share: mean_of(
            (two_terms(logits, teacher, labels, 0.0)[0], two_terms(logits, teacher, labels, share)[1])),
        "A weight is missing: the label's term has the weight 1 − ε, the teacher's has ε.")
mistake("teacher", lambda logits, teacher, labels, share: mean_of(
            (two_terms(logits, teacher, labels, share)[0], two_terms(logits, teacher, labels, 1.0)[1])),
        "A weight is missing: the label's term has the weight 1 − ε, the teacher's has ε.")
mistake("teacher", lambda *a: mean_of(two_terms(*a, over=lambda x, dim: x.sum())),
        "The teacher's term is summed over all positions, too. Sum over the vocabulary only: `dim=-1`.")
equivalent("teacher", "log_p.gather(-1, labels[counted][:, None])[:, 0] → log_p.gather(-1, labels[counted][:, None])[:, -1]",
           "After `gather` with one index a row, that axis has one entry.")

# %% [markdown]
# ### Task 3 · A better search   ●●●●○ · 20 minutes · 4 points
#
# Here is a small, strange "language" of 8 words. After each beginning the next word has probabilities of its own, which
# no rule predicts: `language(words)` gives the 8 of them. A text has exactly 10 words. Which of the $8^{10}$ texts is
# the likeliest? Nobody can try them all. Each call costs, and you can pay for `calls` of them.
#
# Greedy makes 10 calls, and leaves the rest unused. A beam of width $k$ starts from the empty beginning. Ten times
# over, it extends each beginning by every word, with one call each, and of all results it keeps the $k$ likeliest (all
# of them, if there are no more than $k$). A beam of 6 makes $1 + 9 \cdot 6 = 55$ calls. One of 10 makes
# $1 + 8 + 8 \cdot 10 = 89$: there are only 8 beginnings of one word.
#
# Spend what you have. Take the *widest* beam that needs at most `calls` calls, and return the $k$ texts that it ends
# with, likeliest first. `calls` is at least 10, enough for a beam of 1. No two probabilities are equal.
#
# What does it buy? When your answer is right, try it in a cell of your own; the loop below makes about 50,000 calls and
# takes about 15 seconds. Greedy comes to −7.85 there; from which budget on is more of it hardly worth the price? Answer for
# yourself: this question isn't graded.
#
# ```python
# for calls in (10, 37, 55, 89, 297):
#     best = [search(a_language(number), calls)[0] for number in range(100)]
#     print(calls, sum(log_probability(a_language(number), words) for number, words in enumerate(best)) / 100)
# ```
#
# <details><summary>Hint 1: a start</summary>
#
# Write greedy first, a beam of 1. Then keep two beginnings instead of one.
# </details>
# <details><summary>Hint 2: the bookkeeping</summary>
#
# Keep pairs (sum of log-probabilities, words). One round: call for each beginning, list all extensions, sort, cut.
# </details>
# <details><summary>Hint 3: how wide?</summary>
#
# Of $t$ words there are $8^t$ beginnings, and a beam keeps $\min(k, 8^t)$ of them. Add these up for $t = 0 \dots 9$, and
# try $k = 1, 2, 3 \dots$ as long as the sum is at most `calls`.
# </details>

# %%
WORDS, LENGTH = 8, 10


def a_language(number: int) -> Callable[[list[int]], Tensor]:
    """One of many languages: a function from a beginning to the probabilities of the next word, (8,)."""
    def language(words: list[int]) -> Tensor:
        state = number
        for word in words:
            state = (state * 1_000_003 + word + 1) % 2**31
        return torch.from_numpy(1.5 * np.random.RandomState(state).standard_normal(WORDS)).softmax(dim=-1)

    return language


def log_probability(language: Callable[[list[int]], Tensor], words: list[int]) -> float:
    """The logarithm of a text's probability, the product of its words'."""
    return sum(language(words[:at])[word].log().item() for at, word in enumerate(words))


# %% nbgrader={"grade_id": "search", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def search(language: Callable[[list[int]], Tensor], calls: int) -> list[list[int]]:
    """The texts of the widest beam that needs at most so many calls of `language(words)`, likeliest first."""
    ### BEGIN SOLUTION
    beams = 1
    while sum(min(beams + 1, WORDS**length) for length in range(LENGTH)) <= calls:
        beams += 1
    going = [(0.0, [])]
    for _ in range(LENGTH):
        grown = []
        for total, words in going:
            for word, log_p in enumerate(language(words).log().tolist()):
                grown.append((total + log_p, [*words, word]))
        going = sorted(grown, reverse=True)[:beams]
    return [words for _, words in going]
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-search", "grade": true, "points": 4, "solution": false, "locked": true, "schema_version": 3}
with check("search", operators=False) as show:
    def two_searches(calls):
        languages = [a_language(number) for number in show.randint(0, 2**31, 2).tolist()]
        show([search(language, calls) for language in languages], f"{calls} calls, two languages")

    for calls in (10, show.random_size(11, 18)):
        two_searches(calls)
    for narrow in (show.random_size(3, 4), show.random_size(5, 7)):
        for calls in (9 * narrow, 9 * narrow + 1):
            two_searches(calls)
    wide = show.random_size(10, 13)
    for calls in (73, 80, 81, 8 * wide + 8, 8 * wide + 9):
        two_searches(calls)

# %% tags=["mistakes"]
def calls_of(beams):
    return sum(min(beams, WORDS**length) for length in range(LENGTH))


def widest(calls):
    return max(beams for beams in range(1, calls) if calls_of(beams) <= calls)


def searched(width=widest, length=LENGTH, number=lambda p: p.log(), add=lambda total, log_p: total + log_p,
             best=True, pool=True):
    """A search with something changed."""
    def answer(language, calls):
        beams, going = width(calls), [(0.0, [])]
        for _ in range(length):
            of_each = [sorted(((add(total, log_p), [*words, word]) for word, log_p in
                               enumerate(number(language(words)).tolist())), reverse=best)
                       for total, words in going]
            grown = sorted((lengthened for several in of_each for lengthened in several), reverse=best)
            going = grown[:beams] if pool or len(going) == 1 else [several[0] for several in of_each]
        return [words for _, words in going]
    return answer


mistake("search", searched(lambda calls: 1),
        "This is greedy: it keeps one beginning, however many calls it has.")
mistake("search", searched(best=False), "You keep the *least* likely beginnings.")
for beams in (lambda calls: widest(calls) + 1, lambda calls: -(-(calls - 1) // 9)):
    mistake("search", searched(beams),
            "Your beam is too wide: it needs more calls than it has. Round down to the widest one that fits.")
mistake("search", searched(lambda calls: max(1, widest(calls) - 1)),
        "A wider beam fits. It needs one call for the first word, $k$ for each of the next: with 19 calls a beam of 2 fits.")
mistake("search", searched(lambda calls: max(beams for beams in range(1, calls) if calls_of(beams) < calls or calls == 10)),
        "It may need *all* its calls: a beam of 2 fits into 19.")
mistake("search", searched(lambda calls: calls // 10),
        "You pay for $k$ calls in the first round, too. There is one beginning then, the empty one: $1 + 9k$.")
mistake("search", searched(lambda calls: calls // 9),
        "You forget the call for the first word: a beam of $k$ needs $1 + 9k$, as long as $k$ is at most 8.")
mistake("search", searched(lambda calls: (calls - 1) // 9),
        "A beam wider than 8 needs fewer than $1 + 9k$ calls: of one word there are only 8 beginnings to lengthen.")
mistake("search", searched(number=lambda p: p),
        "You add up probabilities. A text's probability is the *product* of its words': add up logarithms.")
mistake("search", searched(add=lambda total, log_p: log_p),
        "Only the last word counts. Rank a beginning by all its words: keep the sum with it.")
mistake("search", searched(length=LENGTH - 1), "The texts are a word short: lengthen ten times.")
mistake("search", searched(length=LENGTH + 1), "The texts are a word too long: lengthen ten times.")
mistake("search", searched(pool=False),
        "Each beginning goes on by itself, with its own best word. Keep the $k$ likeliest of *all* that come out.")
mistake("search", lambda language, calls: search(language, calls)[0],
        "This is the likeliest text alone. Return all that the beam ends with, a list of texts.")
mistake("search", lambda language, calls: search(language, calls)[:1],
        "This is the likeliest text alone. Return all that the beam ends with, a list of texts.")
mistake("search", lambda language, calls: search(language, calls)[::-1], "The likeliest text comes last. Sort downwards.")


def by_topk(language, calls):
    beams, total, texts = widest(calls), torch.zeros(1, dtype=torch.float64), torch.zeros(1, 0, dtype=torch.long)
    for _ in range(LENGTH):
        grown = (total[:, None] + torch.stack([language(words) for words in texts.tolist()]).log()).flatten()
        total, chosen = grown.topk(min(beams, len(grown)))
        texts = torch.cat([texts[chosen // WORDS], chosen[:, None] % WORDS], dim=1)
    return texts.tolist()


alternative("search", by_topk)
alternative("search", searched(lambda calls: min((calls - 1) // 9, 8) if calls < 81 else (calls - 9) // 8))


def by_products(language, calls):
    going = {(): 1.0}
    for _ in range(LENGTH):
        grown = {(*words, word): p * q for words, p in going.items()
                 for word, q in enumerate(language(list(words)).tolist())}
        going = dict(sorted(grown.items(), key=lambda pair: -pair[1])[: widest(calls)])
    return [list(words) for words in going]


alternative("search", by_products)
equivalent("search", "beams = 1 → beams = 0", "A beam of 1 always fits, so the loop goes on to it.")
equivalent("search", "(0.0, []) → (1.0, [])", "All sums begin with the same number: their order stays.")
equivalent("search", ".log() → .log2()", "All sums have the same factor: their order stays.")

# %%
check.summary()
