# %% [markdown]
# # Exercise 03 · Attention
#
# Six tasks, 16 points, about 75 minutes. They use what [lesson 03](../notebooks/03_attention.ipynb) built, on
# problems that the lesson left out. Tasks 1 to 3 are the core and take about 30 minutes; tasks 4 to 6 are for those who
# want more.
#
# Replace each `raise NotImplementedError` with your answer, run the cell, then run the check below it. A check tells you
# what differs, and often why. Check as often as you like. Write attention yourself: an answer that calls a
# function of torch or txlib for it is flagged for your teacher.

# %% tags=["parameters"]
seed = 0

# %%
import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from txgrade import Inputs, check

# %% tags=["variant"]
from txgrade import variant

# The example of task 1: the width, two dot products, and their weights.
WIDTH, GOOD, RIVAL, SHARE, REST = variant(
    (64, 13, 5, 0.731, 0.269), (16, 9, 1, 0.881, 0.119), (100, 17, 7, 0.731, 0.269), (36, 15, 3, 0.881, 0.119)
)

# %% [markdown]
# ### Task 1 · How much better must it be?   ●●○○○ · 8 minutes · 2 points
#
# A query meets one good key and a number of `rivals`, all of width $d_k$. The rivals' dot products with the query are
# all the same. By how much must the good key's dot product be larger, *before* anything is divided, so that it gets the
# share `share` of the attention? (The margin is negative if the share is small enough.)
#
# For example, with $d_k = {{WIDTH}}$ and one rival, the dot products {{GOOD}} and {{RIVAL}} are the scores {{GOOD}}/√{{WIDTH}} and {{RIVAL}}/√{{WIDTH}}, and the weights
# {{SHARE}} and {{REST}}. So `margin({{SHARE}}, 1, {{WIDTH}})` is {{GOOD - RIVAL}}, nearly.
#
# <details><summary>Hint 1: from scores to weights</summary>
#
# Let the rivals' score be 0 and the good key's $g$. What is its weight among 1 + `rivals` keys?
# </details>
# <details><summary>Hint 2: invert it</summary>
#
# Solve $\text{share} = e^g / (e^g + \text{rivals})$ for $e^g$.
# </details>
# <details><summary>Hint 3: scores and dot products</summary>
#
# $g$ is a difference of *scores*. The dot products are larger than the scores. By which factor?
# </details>

# %% nbgrader={"grade_id": "margin", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def margin(share: float, rivals: int, d_k: int) -> float:
    """How much larger the good key's dot product must be than each rival's."""
    ### BEGIN SOLUTION
    return math.log(share / (1 - share) * rivals) * math.sqrt(d_k)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-margin", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("margin") as show:
    show([margin(SHARE, 1, WIDTH), margin(float(show.rand()), 1, WIDTH)], f"d_k = {WIDTH}, one rival: share {SHARE}, and another")
    share, rivals, d_k = 0.3 + 0.6 * float(show.rand()), show.random_size(2, 60), show.random_size(5, 300)
    show(margin(share, rivals, d_k), f"share {share:.2f}, {rivals} rivals, d_k = {d_k}")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")
mistake("margin", lambda share, rivals, d_k: math.log(share / (1 - share) * rivals),
        "That is the difference of the *scores*. A score is a dot product divided by √d_k, so the dot products differ by "
        "√d_k times as much.")
mistake("margin", lambda share, rivals, d_k: math.log(share / (1 - share) * rivals) / math.sqrt(d_k),
        "You divide by √d_k. The scores are the dot products divided by it; going back, you multiply.")
mistake("margin", lambda share, rivals, d_k: math.log(share / (1 - share) * rivals) * d_k,
        "You multiply by d_k. Scores are divided by its *root*.")
mistake("margin", lambda share, rivals, d_k: math.log(share / (1 - share)) * math.sqrt(d_k),
        "Right for one rival. With more, each of them takes its share: the sum below the fraction has 1 + `rivals` terms.")
mistake("margin", lambda share, rivals, d_k: math.log(share / (1 - share) * (rivals + 1)) * math.sqrt(d_k),
        "You count the good key as a rival of itself. Its share is e^g, divided by e^g + `rivals`.")
mistake("margin", lambda share, rivals, d_k: math.log(share * rivals) * math.sqrt(d_k),
        "You compare the share with 1. Compare it with what the rivals get together, 1 − `share`.")
mistake("margin", lambda share, rivals, d_k: math.log10(share / (1 - share) * rivals) * math.sqrt(d_k),
        "That is a logarithm to base 10. The softmax uses e: take the natural one, `math.log`.")
mistake("margin", lambda share, rivals, d_k: math.log2(share / (1 - share) * rivals) * math.sqrt(d_k),
        "That is a logarithm to base 2. The softmax uses e: take the natural one, `math.log`.")
mistake("margin", lambda share, rivals, d_k: share / (1 - share) * rivals * math.sqrt(d_k),
        "That is the *ratio* of the exponentials. The difference of the scores is its logarithm.")
mistake("margin", lambda share, rivals, d_k: -math.log(share / (1 - share) * rivals) * math.sqrt(d_k),
        "The sign is turned round: this is how much *lower* the rivals lie, with a minus.")
alternative("margin", lambda share, rivals, d_k:
            d_k**0.5 * (math.log(share) - math.log1p(-share) + math.log(rivals)))

# %% [markdown]
# ### Task 2 · A mask with a prefix   ●●○○○ · 7 minutes · 2 points
#
# Some models read a question in both directions, and write the answer word by word (Raffel et al. 2020, section 3.2.1).
# The first `prefix` of `n` positions are the question: *every* query may attend to them, including those in the question.
# The rest is the answer, and there a query $i$ may attend to key $j$ only where $j \le i$. Return the boolean mask.
#
# <details><summary>Hint 1: draw it</summary>
#
# For `n` = 5 and `prefix` = 2, draw 5 rows of 5 cells. Which two columns are full?
# </details>
# <details><summary>Hint 2: two conditions</summary>
#
# A key may be seen because it is in the past, *or* because it is in the question.
# </details>
# <details><summary>Hint 3: which of the two positions?</summary>
#
# Whether a key belongs to the question depends on $j$ alone, not on $i$.
# </details>

# %% nbgrader={"grade_id": "prefix-mask", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def prefix_mask(n: int, prefix: int) -> Bool[Tensor, "query key"]:
    """True where query i may attend to key j."""
    ### BEGIN SOLUTION
    position = torch.arange(n)
    return (position <= position[:, None]) | (position < prefix)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-prefix-mask", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("prefix-mask") as show:
    show(prefix_mask(5, 2), "n = 5, prefix = 2")
    for _ in range(3):
        prefix = show.random_size(3, 12)
        n = prefix + show.random_size(3, 12)
        show([prefix_mask(n, prefix), prefix_mask(n, 0)], f"n = {n}, prefix = {prefix}; and prefix = 0")
    n = show.random_size(4, 12)
    show([prefix_mask(n, n), prefix_mask(n, n - 1), prefix_mask(1, 0)],
         f"n = {n}, all of it the question, and all but one; and n = 1, prefix = 0")

# %% tags=["mistakes"]
def past(n):
    return torch.ones(n, n).tril().bool()


def before(n, prefix):
    return (torch.arange(n) < prefix).expand(n, n)


mistake("prefix-mask", lambda n, prefix: past(n),
        "This is the causal mask. Inside the question, a query may also look ahead, to the question's other words.")
mistake("prefix-mask", lambda n, prefix: past(n) | before(n, prefix).T,
        "The question's *queries* see everything, the answer too. It is the question's *keys* that are seen by all: the "
        "condition is on j.")
mistake("prefix-mask", lambda n, prefix: past(n) | before(n, prefix + 1),
        "One word too many: positions 0 to `prefix` − 1 are the question, so it is `<`, not `<=`.")
mistake("prefix-mask", lambda n, prefix: past(n) & before(n, prefix),
        "You demand both conditions. A key may be seen because it is in the past *or* in the question: `|`.")
mistake("prefix-mask", lambda n, prefix: before(n, prefix),
        "Only the question is seen. A word of the answer may also look at the answer's earlier words, and at itself.")
mistake("prefix-mask", lambda n, prefix: ~(past(n) | before(n, prefix)),
        "This is `True` where looking is *forbidden*. In this course `True` means may attend.")
mistake("prefix-mask", lambda n, prefix: past(n).T | before(n, prefix),
        "The answer's words look at the *future*. Row i belongs to query i; it may see j ≤ i.")
mistake("prefix-mask", lambda n, prefix: torch.ones(n, n).tril(-1).bool() | before(n, prefix),
        "A word of the answer may look at itself, too: j ≤ i.")
mistake("prefix-mask", lambda n, prefix: (past(n) | before(n, prefix)).float(),
        "The pattern is right, but these are numbers. A mask is boolean.")
mistake("prefix-mask", lambda n, prefix: torch.ones(n, n).bool(), "Everything is `True`: nothing is hidden.")
alternative("prefix-mask", lambda n, prefix: torch.ones(n, n).tril().index_fill(1, torch.arange(prefix), 1).bool())

# %% [markdown]
# ### Task 3 · Only the best few   ●●●○○ · 13 minutes · 3 points
#
# With a memory of a million keys, most get next to nothing, and yet each costs something in the mixture. So let each
# query attend only to the `best` keys that match it best, as if there were no others: their shares add up to 1. (Gupta
# et al. 2021 save memory with this.) Scores are scaled as always. `best` is at least 1 and at most $m$, the number of
# keys. Keys that tie for the last rank may all stay; the check has no ties. It must also work with further axes in front,
# such as a batch.
#
# <details><summary>Hint 1: it is a mask</summary>
#
# A mask that depends on the scores. What is masked *before* the softmax leaves its share to the others.
# </details>
# <details><summary>Hint 2: where is the border?</summary>
#
# `score.topk(best, dim=-1).values` has each query's `best` largest scores, in descending order. Which of them
# is the lowest that may stay?
# </details>
# <details><summary>Hint 3: which value hides a key?</summary>
#
# The one whose exponential is 0. `score.masked_fill(condition, value)` writes it where the condition is `True`.
# </details>

# %% nbgrader={"grade_id": "best-few", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def attention_to_best(
    q: Float[Tensor, "*batch n d_k"], k: Float[Tensor, "*batch m d_k"], v: Float[Tensor, "*batch m d_v"], best: int
) -> Float[Tensor, "*batch n d_v"]:
    """Each query's mixture of the values whose keys match it best."""
    ### BEGIN SOLUTION
    score = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    lowest = score.topk(best, dim=-1).values[..., -1:]
    return score.masked_fill(score < lowest, float("-inf")).softmax(dim=-1) @ v
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-best-few", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("best-few") as show:
    n, m, d_k, d_v = show.random_size(3, 4), show.random_size(8, 9), show.random_size(5, 7), show.random_size(2, 3)
    q, k, v = 2 * show.randn(n, d_k), show.randn(m, d_k), show.randn(m, d_v)
    show(attention_to_best(q, k, v, m), f"all {m} keys: ordinary attention")
    show([attention_to_best(q, k, v, 3), attention_to_best(q, k, v, 1)], f"the best 3 of {m} keys, and the best one")
    q, k, v = show.randn(2, n, d_k), show.randn(2, m, d_k), show.randn(2, m, d_v)
    show(attention_to_best(q, k, v, 5), "a batch, the best 5")
    q, k, v = show.randn(2, 3, n, d_k), show.randn(2, 3, m, d_k), show.randn(2, 3, m, d_v)
    show(attention_to_best(q, k, v, 4), "two axes in front, the best 4")

# %% tags=["mistakes"]
def score_of(q, k):
    return q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5


def lowest_of(score, best, dim=-1):
    return score.topk(best, dim=dim).values.narrow(dim, best - 1, 1)


HIDDEN = float("-inf")
forbid("best-few",
       ("scaled_dot_product_attention", "flex_attention", "MultiheadAttention", "multi_head_attention_forward"),
       "attention")


def to_best(q, k, v, best, score=score_of, value=HIDDEN, dim=-1, axis=-1):
    score = score(q, k)
    return score.masked_fill(score < lowest_of(score, best, dim), value).softmax(axis) @ v


def weights_cut(q, k, v, best):
    weight = score_of(q, k).softmax(-1)
    return weight.masked_fill(weight < lowest_of(weight, best), 0.0) @ v


def kept_the_worst(q, k, v, best):
    score = score_of(q, k)
    return score.masked_fill(score > -lowest_of(-score, best), HIDDEN).softmax(-1) @ v


def over_queries(q, k, v, best):
    score = score_of(q, k)
    best = min(best, score.shape[-2])
    return score.masked_fill(score < lowest_of(score, best, -2), HIDDEN).softmax(-1).nan_to_num() @ v


def averaged(q, k, v, best):
    score = score_of(q, k)
    weight = (score >= lowest_of(score, best)).float()
    return weight / weight.sum(-1, keepdim=True) @ v


def first_of_them(q, k, v, best):
    score = score_of(q, k)
    return score.masked_fill(torch.arange(score.shape[-1]) >= best, HIDDEN).softmax(-1) @ v


mistake("best-few", lambda q, k, v, best: to_best(q, k, v, best, score=lambda q, k: q @ k.transpose(-2, -1)),
        "The scores are not divided by √d_k: too few keys get too much.")
mistake("best-few", lambda q, k, v, best: to_best(q, k, v, k.shape[-2]),
        "All keys take part: this is ordinary attention. `best` is not used.")
mistake("best-few", lambda q, k, v, best: to_best(q, k, v, best, value=0.0),
        "A score of 0 does not hide a key: its weight is e⁰ = 1, divided by the sum. Use −∞.")
for axis in (-2, 0, 1):
    mistake("best-few", lambda q, k, v, best, axis=axis: to_best(
                q, k, v, best, score=lambda q, k: q @ k.transpose(-2, -1) / q.shape[axis] ** 0.5),
            "You divide by the root of another size of `q`. d_k is the size of its *last* axis, whatever stands in front.")
for dim, axis in ((1, -1), (-1, 1), (1, 1)):
    mistake("best-few", lambda q, k, v, best, dim=dim, axis=axis: to_best(
                q, k, v, min(best, score_of(q, k).shape[dim]), dim=dim, axis=axis).nan_to_num(),
            "This works on matrices. With a batch in front, axis 1 is no longer that of the keys: count from the end, "
            "`dim=-1`.")
mistake("best-few", lambda q, k, v, best: score_of(q, k).masked_fill(
            score_of(q, k) < lowest_of(score_of(q, k), best), HIDDEN).softmax(-1),
        "These are the weights. Mix the values with them: `@ v`.")
mistake("best-few", lambda q, k, v, best: score_of(q, k).masked_fill(
            score_of(q, k) > lowest_of(score_of(q, k), best), HIDDEN).softmax(-1) @ v,
        "The comparison is turned round: you hide what is *above* the border.")
mistake("best-few", lambda q, k, v, best: score_of(q, k).masked_fill(
            score_of(q, k) <= lowest_of(score_of(q, k), best), HIDDEN).softmax(-1) @ v,
        "You hide the border itself, too, so there is one key too few, and none where `best` is 1. Hide what is *below* it.")
mistake("best-few", weights_cut,
        "You cut after the softmax, so rows no longer sum to 1: what was spent on the other keys is lost.")
mistake("best-few", kept_the_worst, "You keep the keys that match *worst*.")
mistake("best-few", over_queries,
        "You choose the best *queries* of each key. Each query chooses its keys: `topk` along the last axis.")
mistake("best-few", lambda q, k, v, best: to_best(q, k, v, max(1, best - 1)),
        "One key too few: where `best` are to stay, the lowest of them stays, too. Hide what is *below* it.")
mistake("best-few", lambda q, k, v, best: to_best(q, k, v, 1),
        "Only the very best key is left. `topk(best).values` are in falling order: the border is the last of them.")
mistake("best-few", averaged,
        "The right keys, but all with the same share. Their scores still decide how much each gets.")
mistake("best-few", first_of_them,
        "You keep the *first* keys, not the best. Which are best depends on the query.")
mistake("best-few", lambda q, k, v, best: to_best(q, k, v, best, axis=-2).nan_to_num(),
        "The softmax runs over the queries. Each *query* shares out 1 among its keys: use the last axis.")


def gathered(q, k, v, best):
    top = score_of(q, k).topk(best, dim=-1)
    weight = top.values.softmax(dim=-1)
    return torch.zeros_like(score_of(q, k)).scatter(-1, top.indices, weight) @ v


alternative("best-few", gathered)
alternative("best-few", lambda q, k, v, best: to_best(q, k, v, best, value=-1e9))

# %% [markdown]
# ### Task 4 · In pieces   ●●●●○ · 13 minutes · 3 points
#
# The keys do not fit into memory at once, so they come in parts. For each part, attention over that part's keys alone
# has already been computed, and you get two things: `out[p, i]`, what query $i$ received from part $p$, and
# `log_sum[p, i]`, the logarithm of the sum that its softmax divided by, $\log \sum_j e^{s_{ij}}$. Combine them into
# attention over all keys. (FlashAttention, lesson 34, rests on this.)
#
# Scores may be as large as 1,000, and $e^{1000}$ is more than a `float32` can hold. And a query may see nothing in a
# part: then `log_sum` is −∞ there, and `out` is 0. If it may see nothing in any part, it gets zeros, never `nan`.
#
# <details><summary>Hint 1: how much does a part count?</summary>
#
# Attention over all keys divides by the sum over *all* parts. So part $p$ counts for its sum's share of the whole sum.
# </details>
# <details><summary>Hint 2: shares of exponentials</summary>
#
# $e^{a_p} / \sum_{p'} e^{a_{p'}}$, with $a_p$ = `log_sum[p]`. You know a function that does that, and it subtracts the
# largest first, so that nothing overflows. Along which axis?
# </details>
# <details><summary>Hint 3: nothing at all</summary>
#
# A softmax over −∞ alone is 0 divided by 0. Before it, replace −∞ by the lowest finite number. Do the shares
# matter then, where `out` is 0?
# </details>

# %% nbgrader={"grade_id": "in-pieces", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def combine(out: Float[Tensor, "parts n d_v"], log_sum: Float[Tensor, "parts n"]) -> Float[Tensor, "n d_v"]:
    """Attention over all keys, from attention over each part's keys."""
    ### BEGIN SOLUTION
    share = log_sum.clamp(min=torch.finfo(log_sum.dtype).min).softmax(dim=0)
    return (share[:, :, None] * out).sum(dim=0)
    ### END SOLUTION

# %% [markdown]
# (The check makes the parts from random scores and values, so that you see which case it is.)

# %% nbgrader={"grade_id": "check-in-pieces", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("in-pieces") as show:
    n, d_v = show.random_size(4, 5), show.random_size(2, 3)
    for size, label in ((3, "three parts"), (1000, "scores of ±1,000")):
        scores = [size * show.randn(n, m) / (1 if size == 3 else 3) for m in (4, 3, 6)]
        out = torch.stack([score.softmax(dim=-1) @ show.randn(score.shape[1], d_v) for score in scores])
        show(combine(out, torch.stack([score.logsumexp(dim=-1) for score in scores])), label)
    log_sum, out = show.randn(3, n), show.randn(3, n, d_v)
    log_sum[0, 1], log_sum[:, 2] = float("-inf"), float("-inf")
    out[0, 1], out[:, 2] = 0.0, 0.0
    show(combine(out, log_sum), "query 1 sees nothing in part 0, query 2 nothing at all")

# %% tags=["mistakes"]
def combined(out, share):
    return (share[:, :, None] * out).sum(dim=0)


mistake("in-pieces", lambda out, log_sum: combined(out, log_sum.softmax(dim=0)),
        "Query 2 is `nan`: where nothing may be seen in any part, the softmax divides 0 by 0.")
mistake("in-pieces", lambda out, log_sum: combined(out, log_sum.exp() / log_sum.exp().sum(dim=0)),
        "Right as long as the numbers are small. e^1000 is infinite, and infinite by infinite is `nan`: let the softmax "
        "do it. (And where nothing may be seen, you divide 0 by 0.)")
mistake("in-pieces", lambda out, log_sum: out.mean(dim=0),
        "You average the parts. A part with better matching keys counts for more.")
mistake("in-pieces", lambda out, log_sum: out.sum(dim=0),
        "You add up the parts. Each has spent a whole unit of attention already; together they may spend one.")
mistake("in-pieces", lambda out, log_sum: combined(out, log_sum.clamp(min=torch.finfo().min).softmax(dim=1)),
        "The shares of one query must add up to 1 over the *parts*, the first axis. Yours add up to 1 over the queries.")
mistake("in-pieces", lambda out, log_sum: combined(out, log_sum.nan_to_num(neginf=0.0) / log_sum.nan_to_num(
        neginf=0.0).sum(dim=0)),
        "You take shares of the *logarithms*. What adds up are the sums themselves.")
mistake("in-pieces", lambda out, log_sum: out.gather(0, log_sum.argmax(dim=0)[None, :, None].expand(1, -1, out.shape[2]))[0],
        "You take the best part only. The others have their share.")
mistake("in-pieces", lambda out, log_sum: combined(out, log_sum.masked_fill(log_sum.isinf(), 0.0).softmax(dim=0)),
        "0 in place of −∞ is an ordinary logarithm, of the sum 1, so an empty part takes a share from the others.")
mistake("in-pieces", lambda out, log_sum: combined(out, log_sum.sigmoid()),
        "Each part gets a weight of its own, and they don't add up to 1. The parts compete: a softmax over them.")
alternative("in-pieces", lambda out, log_sum: combined(out, log_sum.softmax(dim=0).nan_to_num(0.0)))
alternative("in-pieces", lambda out, log_sum: combined(
    out, (log_sum - log_sum.logsumexp(dim=0)).exp().nan_to_num(0.0)))

# %% tags=["variant"]
from txgrade import variant

# Of task 5: what has to be in memory.
EACH, HELD = variant(
    (1, "All the scores, one number"),
    (2, "All the scores and all the weights, two numbers"),
    (3, "All the scores, the weights and their gradients, three numbers"),
)

# %% [markdown]
# ### Task 5 · How long may the text be?   ●●○○○ · 7 minutes · 2 points
#
# You train one attention layer on `batch` texts at once, with `heads` heads (lesson 04: each has weights of its own).
# Queries and keys are the text's own tokens, so there are as many of the one as of the other. {{HELD}}
# of `size` bytes per query and key, have to be in memory together. You have `memory` bytes for them. How many
# tokens may a text have at most? Return a whole number.
#
# <details><summary>Hint 1: from tokens to bytes</summary>
#
# How many bytes does a text of n tokens take, in all heads? And all texts of the batch?
# </details>
# <details><summary>Hint 2: from bytes to tokens</summary>
#
# How large may n² be?
# </details>
# <details><summary>Hint 3: whole numbers</summary>
#
# `math.isqrt` gives the whole part of a root, exactly.
# </details>

# %% nbgrader={"grade_id": "longest", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def longest_text(memory: int, batch: int, heads: int, size: int) -> int:
    """How many tokens a text may have at most, so that all of it fits."""
    ### BEGIN SOLUTION
    return math.isqrt(memory // (EACH * batch * heads * size))
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-longest", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("longest") as show:
    for gigabytes in (1, show.random_size(2, 30)):
        batch, heads, size = show.random_size(2, 32), show.random_size(3, 16), show.choice((2, 4))
        show([longest_text(10**10, 1, 1, 4), longest_text(gigabytes * 10**9, batch, heads, size)],
             f"10 GB for one text and one head in float32; {gigabytes} GB, {batch} texts, {heads} heads, {size} bytes")
    n, batch, heads, size = show.random_size(1000, 9000), show.random_size(2, 32), show.random_size(3, 16), show.choice((2, 4))
    just = EACH * batch * heads * size * n * n
    show([longest_text(just, batch, heads, size), longest_text(just - 1, batch, heads, size)],
         f"{just:,} bytes, {batch} texts, {heads} heads, {size} bytes; and one byte less")

# %% tags=["mistakes"]
mistake("longest", lambda memory, batch, heads, size: memory // (EACH * batch * heads * size),
        "That is how large n² may be. n queries meet n keys.")
mistake("longest", lambda memory, batch, heads, size: math.isqrt(memory // (EACH * batch * size)),
        "Each head has scores of its own: `heads` is missing.")
mistake("longest", lambda memory, batch, heads, size: math.isqrt(memory // (EACH * heads * size)),
        "Each text of the batch has scores of its own: `batch` is missing.")
mistake("longest", lambda memory, batch, heads, size: math.isqrt(memory // (EACH * batch * heads)),
        "A number takes `size` bytes.")
mistake("longest", lambda memory, batch, heads, size: math.isqrt(memory // (EACH * size)),
        "That is for one text and one head. Each head of each text has scores of its own.")
mistake("longest", lambda memory, batch, heads, size: math.sqrt(memory / (EACH * batch * heads * size)),
        "The number is right, but it is a fraction. A text has a whole number of tokens: round *down*.")
mistake("longest", lambda memory, batch, heads, size: math.ceil(math.sqrt(memory / (EACH * batch * heads * size))),
        "You round up, and then it no longer fits. (Where the root is whole, it makes no difference.)")
mistake("longest", lambda memory, batch, heads, size: math.isqrt(memory) // (EACH * batch * heads * size),
        "The root is taken too soon: batch, heads and size stand beside n², so divide by them first.")
mistake("longest", lambda memory, batch, heads, size: math.isqrt(memory // (2 * EACH * batch * heads * size)),
        "You count everything twice. Each head has n² pairs: one per query and key.")
if EACH == 1:
    equivalent("longest", "EACH * batch → batch", "EACH is 1 here; in a variant it is not.")
if EACH > 1:
    mistake("longest", lambda memory, batch, heads, size: math.isqrt(memory // (batch * heads * size)),
            "You count one number per query and key. There are {{EACH:words}}.")
alternative("longest", lambda memory, batch, heads, size: int((memory / EACH / batch / heads / size) ** 0.5 + 1e-9))

# %% [markdown]
# ### Task 6 · Investigate: a made-up language   ●●●●● · 25 minutes · 4 points
#
# Nobody has a dictionary of this language, because it has just been made up: 60 words, each with one translation, and
# 1,500 sentence pairs of 3 to 8 words. In the foreign sentences the words come in any order. Words are numbers from 1
# to 60; 0 is padding. Common words are far more common than rare ones.
#
# Find the dictionary. Return two tables, as in lesson 03: a query for each native word and a key for each foreign word
# (row 0 is for padding), so that each native word's best key is its translation. Their width $d$ is up to you; both have
# the same. The grader makes up **another language**, calls your function with its sentences, and counts the words whose
# best key is right: at least 9 in 10 earn all points, at least 7 in 10 half, fewer none. A minute of computing is
# allowed.
#
# This one is open: how you do it is up to you. The game of lesson 03, with a width of 32 and 300 steps, gets about 8
# words in 10 here. Longer training does not help. Find out why, or what does: the width, the batch, the scale,
# rewarding right guesses in both directions? Or do the sentence pairs hold something that the game never asks for?

# %%
def made_up_language(private: Inputs) -> tuple[Int[Tensor, " word"], Int[Tensor, "pair 8"], Int[Tensor, "pair 8"]]:
    """The dictionary (which foreign word translates each native one), native sentences, and foreign sentences."""
    dictionary = torch.cat([torch.zeros(1).long(), 1 + private.permutation(60)])
    commonness = 1 / torch.arange(3.0, 63.0)                       # word w is common in proportion to 1 / (w + 2)
    waiting = -private.rand(1500, 60).log() / commonness           # the 8 words that come first: a draw without repetition
    native = 1 + waiting.topk(8, largest=False).indices
    native *= torch.arange(8) < private.randint(3, 9, 1500, 1)
    order = private.rand(1500, 8).argsort(dim=-1)
    return dictionary, native, dictionary[native].gather(1, order)


def share_right(q: Float[Tensor, "61 d"], k: Float[Tensor, "61 d"], dictionary: Int[Tensor, "61"]) -> float:
    """The share of native words whose best matching key is their translation's."""
    return ((q @ k.T)[1:, 1:].argmax(dim=-1) + 1 == dictionary[1:]).float().mean().item()

# %% nbgrader={"grade_id": "dictionary", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def learn(
    native: Int[Tensor, "pair 8"], foreign: Int[Tensor, "pair 8"]
) -> tuple[Float[Tensor, "61 d"], Float[Tensor, "61 d"]]:
    """A query for each native word, and a key for each foreign word."""
    ### BEGIN SOLUTION
    # A word's translation is there whenever the word is. So count: in how many pairs do two words stand together,
    # compared with what chance gives? The game asks only which sentence it is, and one rare word settles that.
    together = torch.zeros(61, 61)
    for left in native.T:
        for right in foreign.T:
            together.index_put_((left, right), torch.ones(len(left)), accumulate=True)
    chance = together.sum(dim=0) * together.sum(dim=1, keepdim=True) / together.sum()
    return torch.eye(61), (together / chance).nan_to_num(0.0).T.contiguous()
    ### END SOLUTION

# %% [markdown]
# To see how far you are, run this in a cell of your own:
#
# ```python
# dictionary, native, foreign = made_up_language(Inputs(1, "at home"))    # another number makes up another language
# share_right(*learn(native, foreign), dictionary)
# ```

# %% nbgrader={"grade_id": "check-dictionary", "grade": true, "points": 4, "solution": false, "locked": true, "schema_version": 3}
with check("dictionary", operators=False) as show:
    native, foreign = show.private(lambda private: made_up_language(private)[1:])
    q, k = learn(native, foreign)
    show.weights({"q": q, "k": k}, "your two tables")

# %% tags=["mistakes"]
from txgrade import measured


def of_made_up_words(shown, private):
    q, k = shown[0]["q"], shown[0]["k"]
    if q.shape != k.shape or q.shape[:-1] != (61,):
        return 0, f"Both tables should have 61 rows, and the same width; yours are {tuple(q.shape)} and {tuple(k.shape)}."
    right = share_right(q, k, made_up_language(private)[0])
    return (1 if right >= 0.9 else 0.5 if right >= 0.7 else 0), f"{right:.0%} of the words find their translation."


def swapped(native, foreign):
    q, k = learn(native, foreign)
    return k, q


measured("dictionary", of_made_up_words)
forbid("dictionary", ("made_up_language", "share_right", "Inputs"))
mistake("dictionary", lambda native, foreign: (torch.randn(61, 32), torch.randn(61, 32)),
        "The tables are as they were made: nothing was learned.")
mistake("dictionary", swapped, "Queries and keys are swapped: the native words ask.")
mistake("dictionary", lambda native, foreign: learn(native, foreign.roll(1, dims=0)),
        "The sentences of a pair don't belong together any more.")


def raw_counts(native, foreign):
    present = [torch.zeros(len(side), 61).scatter(1, side, 1.0) for side in (native, foreign)]
    return torch.eye(61), (present[1].T @ present[0]).contiguous()


alternative("dictionary", raw_counts)

# %% [markdown]
# ### How far are you?

# %%
check.summary()
