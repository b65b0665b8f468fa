# %% [markdown]
# # Exercise 07 · The encoder–decoder Transformer
#
# Five tasks, 12 points, about 55 minutes. [Lesson 07](../notebooks/07_transformer.ipynb) has all you need. Run the
# cells from the top; fill in where it says *your turn*. A check compares what your function returns with what it
# should return, and knows the usual mistakes. Try as often as you like.
#
# Special tokens: padding 0, start (`BOS`) 1, end (`EOS`) 2. A label of −100 is not counted. A mask is boolean, and
# `True` means *may attend*.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0
mode = "learn"

# %%
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from txlib.grading import check

PAD, BOS, EOS = 0, 1, 2

# %% [markdown]
# ### Task 1 · The learning rate   ●○○○○ · 6 minutes · 2 points
#
# Equation 3 of the paper: the learning rate of step $t$, counted from 1.
#
# $$\text{lr}(t) = d_\text{model}^{-0.5} \cdot \min\!\left(t^{-0.5},\; t \cdot \text{warmup}^{-1.5}\right)$$
#
# <details><summary>Hint 1: which of the two?</summary>
#
# The smaller one. Before `warmup` that is the rising line, after it the falling root.
# </details>
# <details><summary>Hint 2: powers</summary>
#
# `x ** -0.5` is $1/\sqrt{x}$.
# </details>
# <details><summary>Hint 3: a test of your own</summary>
#
# At `t = warmup` both terms are equal: $1/\sqrt{\text{warmup}}$.
# </details>

# %% nbgrader={"grade_id": "learning-rate", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def learning_rate(step: int, d_model: int, warmup: int) -> float:
    """Vaswani et al. 2017, equation 3."""
    ### BEGIN SOLUTION
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-learning-rate", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("learning-rate", rtol=1e-4, atol=1e-9) as show:
    for step in (1, 1000, 4000, 16000):
        show(learning_rate(step, 512, 4000), f"step {step}, d_model 512, warmup 4000")
    step, d_model, warmup = show.random_size(100, 900), 16 * show.random_size(2, 9), show.random_size(20, 90)
    show(learning_rate(step, d_model, warmup), f"step {step}, d_model {d_model}, warmup {warmup}")

# %% tags=["mistakes"]
from txlib.grading import alternative, forbid, mistake

forbid("*", "txlib")
mistake("learning-rate", lambda step, d_model, warmup: d_model**-0.5 * max(step**-0.5, step * warmup**-1.5),
        "You take the *larger* term. Then the rate starts huge, and grows without end after the warm-up.")
mistake("learning-rate", lambda step, d_model, warmup: min(step**-0.5, step * warmup**-1.5),
        "The factor $d_{model}^{-0.5}$ is missing: wide models get a smaller rate.")
mistake("learning-rate", lambda step, d_model, warmup: d_model**-0.5 * step**-0.5,
        "There is no warm-up: the very first step has the highest rate of all.")
mistake("learning-rate", lambda step, d_model, warmup: d_model**-0.5 * min(step**-0.5, step / warmup),
        "The rising line ends at 1, not where the falling curve begins: it is `step * warmup ** -1.5`.")
mistake("learning-rate", lambda step, d_model, warmup: d_model**-0.5 * step * warmup**-1.5,
        "It only rises. Take the smaller of the two terms; the other one falls: `step ** -0.5`.")
mistake("learning-rate", lambda step, d_model, warmup: d_model**-0.5 * min(step**-0.5, step * warmup**-0.5),
        "`warmup` has the power −0.5. The rising line is `step * warmup ** -1.5`.")
mistake("learning-rate", lambda step, d_model, warmup: d_model**-0.5 * min(step**-0.5, (step * warmup) ** -1.5),
        "The power −1.5 takes in `step`. It belongs to `warmup` alone: `step * warmup ** -1.5`.")
mistake("learning-rate", lambda step, d_model, warmup: min(d_model**-0.5 * step**-0.5, step * warmup**-1.5),
        "$d_{model}^{-0.5}$ multiplies the first term only. It stands before the minimum, and scales both.")
mistake("learning-rate", lambda step, d_model, warmup: warmup**0.5 * min(step**-0.5, step * warmup**-1.5),
        "This has its peak at 1, as in the lesson's figure. Asked for is the rate itself, with $d_{model}^{-0.5}$.")
mistake("learning-rate", lambda step, d_model, warmup: learning_rate(step, d_model, 4000),
        "`warmup` is always 4000. Use the `warmup` you are given.")
mistake("learning-rate", lambda step, d_model, warmup: learning_rate(step, 512, warmup),
        "`d_model` is always 512. Use the `d_model` you are given.")
mistake("learning-rate", lambda step, d_model, warmup: d_model**-0.5 * min(1.0, step / warmup),
        "It rises and then stays. Behind the warm-up the rate falls: `step ** -0.5`.")
mistake("learning-rate", lambda step, d_model, warmup: torch.tensor(learning_rate(step, d_model, warmup)),
        "The number is right, but a learning rate is a `float`, not a tensor.")
mistake("learning-rate", lambda step, d_model, warmup: d_model**0.5 * min(step**-0.5, step * warmup**-1.5),
        "`d_model` has the wrong sign in its power: you multiply by its root instead of dividing.")
mistake("learning-rate", lambda step, d_model, warmup: learning_rate(step + 1, d_model, warmup),
        "Your steps are one too late: `step` counts from 1 already.")
alternative("learning-rate", lambda step, d_model, warmup:
            (d_model * warmup) ** -0.5 * (step / warmup if step < warmup else (warmup / step) ** 0.5))

# %% [markdown]
# ### Task 2 · Shift right   ●●○○○ · 8 minutes · 2 points
#
# In training the decoder reads the labels moved one place to the right, with `BOS` in front; the last label drops
# out. Where a −100 remains, put `PAD`: −100 is no word, and has no embedding. The labels themselves must stay as they
# were.
#
# <details><summary>Hint 1: two pieces</summary>
#
# A column of `BOS`, and all labels but the last column.
# </details>
# <details><summary>Hint 2: which calls</summary>
#
# `torch.full_like`, `torch.cat` along `dim=1`, `masked_fill`.
# </details>
# <details><summary>Hint 3: the first piece</summary>
#
# `torch.full_like(labels[:, :1], BOS)` is (batch, 1), filled with `BOS`.
# </details>

# %% nbgrader={"grade_id": "shift-right", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def shift_right(labels: Int[Tensor, "batch target"]) -> Int[Tensor, "batch target"]:
    """What the decoder reads while it predicts the labels."""
    ### BEGIN SOLUTION
    shifted = torch.cat([torch.full_like(labels[:, :1], BOS), labels[:, :-1]], dim=1)
    return shifted.masked_fill(shifted == -100, PAD)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-shift-right", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("shift-right") as show:
    n = show.random_size(3, 5)
    words = show.randint(10, 99, 2, n)                             # (sentence, n)
    labels = torch.full((2, n + 3), -100)                          # (sentence, n + 3)
    labels[0, :n], labels[0, n] = words[0], EOS
    labels[1, :n], labels[1, n + 1], labels[1, n + 2] = words[1], 55, EOS
    labels[1, n] = 44
    show(shift_right(labels), f"a sentence of {n} words, padded, and one of {n + 2}")
    show(labels, "the labels afterwards")
    show(shift_right(torch.tensor([[EOS]])), "an empty sentence")

# %% tags=["mistakes"]
forbid("shift-right", ("transformers",))


def filled(shifted):
    return shifted.masked_fill(shifted == -100, PAD)


def shift_in_place(labels):
    labels[:, 1:] = labels[:, :-1].clone()
    labels[:, 0] = BOS
    return labels.masked_fill_(labels == -100, PAD)


def shift_left(labels):
    return filled(torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], EOS)], dim=1))


def shifted_from(start, labels):
    return torch.cat([torch.full_like(labels[:, :1], start), labels[:, :-1]], dim=1)


def filled_in_place(labels):
    labels[labels == -100] = PAD
    return shifted_from(BOS, labels)


mistake("shift-right", filled_in_place,
        "The result is right, but your function has replaced the −100 in the labels themselves. The loss would count the "
        "padding. Make a new tensor: `masked_fill` without the underscore.")
mistake("shift-right", lambda labels: filled(shifted_from(EOS, labels)),
        "The first token is `EOS`. It is the start token, `BOS`, that tells the decoder to begin.")
mistake("shift-right", lambda labels: shifted_from(BOS, labels).masked_fill(shifted_from(BOS, labels) == -100, EOS),
        "You put `EOS` where a −100 remains. A sentence ends once; what follows is `PAD`.")
mistake("shift-right", lambda labels: shifted_from(BOS, labels).masked_fill(shifted_from(BOS, labels) == -100, BOS),
        "You put `BOS` where a −100 remains. A sentence begins once; what follows its end is `PAD`.")
mistake("shift-right", lambda labels: shifted_from(BOS, labels).masked_fill(labels == -100, PAD),
        "An `EOS` has become `PAD`. You look for −100 in the labels; look for it in what you have shifted.")
mistake("shift-right", lambda labels: filled(torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], PAD)], dim=1)),
        "This shifts to the *left*, and there is no `BOS`: the decoder would read the word after the one it is to write.")
mistake("shift-right", lambda labels: filled(torch.cat([torch.full_like(labels[:1], BOS), labels[:-1]], dim=0)),
        "The *sentences* are shifted. Words stand along `dim=1`.")
mistake("shift-right", lambda labels: filled(labels.roll(1, dims=1)),
        "`roll` brings the *last* label to the front. The decoder must begin with `BOS`.")
mistake("shift-right", lambda labels: filled(torch.cat([torch.full_like(labels[:, :1], PAD), labels[:, :-1]], dim=1)),
        "The first token is padding. It is the start token, `BOS`, that tells the decoder to begin.")
mistake("shift-right", lambda labels: torch.cat([torch.full_like(labels[:, :1], BOS), labels[:, :-1]], dim=1),
        "A −100 is left in the decoder's input. It is no word: an embedding has no row −100. Put `PAD` there.")
mistake("shift-right", lambda labels: filled(torch.cat([torch.full_like(labels[:, :1], BOS), labels], dim=1)),
        "The result is one longer than the labels. Leave out the last column.")
mistake("shift-right", lambda labels: filled(labels),
        "Nothing is shifted. Position $t$ reads the very word that it is to write, and learns to copy.")
mistake("shift-right", shift_left, "This shifts to the *left*: the decoder reads the word after the one it is to write.")
mistake("shift-right", shift_in_place,
        "The result is right, but your function has overwritten the labels, which the loss still needs. Make a new tensor.")
mistake("shift-right", lambda labels: filled(labels).index_fill(1, torch.tensor([0]), BOS),
        "`BOS` replaces the first word instead of standing before it. All others must move one place.")
alternative("shift-right", lambda labels: torch.nn.functional.pad(
    labels.masked_fill(labels == -100, PAD), (1, 0), value=BOS)[:, :-1])

# %% [markdown]
# ### Task 3 · The decoder's mask   ●●○○○ · 8 minutes · 2 points
#
# Sentences of different lengths stand in one batch, each filled up, at the end or in front. Build the mask for the decoder's
# self-attention: query $i$ may attend to key $j$ if $j$ is not later than $i$, *and* key $j$ of that sentence is a real
# token. `attention_mask` is 1 at real tokens. The result is (batch, 1, n, n): the axis of 1 is for the heads.
#
# (The lesson's decoder did without the second condition: its padding stands at the end, where no real word looks.
# Where padding may stand in front, you need both.)
#
# <details><summary>Hint 1: two masks</summary>
#
# One is the same for all sentences, one the same for all queries. `&` joins them.
# </details>
# <details><summary>Hint 2: the causal one</summary>
#
# `torch.ones(n, n).tril().bool()` broadcasts against four axes.
# </details>
# <details><summary>Hint 3: the other</summary>
#
# It belongs to the *keys*, the last axis: `attention_mask.bool()[:, None, None, :]`.
# </details>

# %% nbgrader={"grade_id": "decoder-mask", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def decoder_mask(attention_mask: Int[Tensor, "batch n"]) -> Bool[Tensor, "batch 1 n n"]:
    """True where a query may attend to a key."""
    ### BEGIN SOLUTION
    n = attention_mask.shape[1]
    return torch.ones(n, n).tril().bool() & attention_mask.bool()[:, None, None, :]
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-decoder-mask", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("decoder-mask") as show:
    n = show.random_size(5, 9)
    lengths = torch.tensor([n, *show.randint(1, n, 4).tolist()])   # (sentence,)
    attention_mask = (torch.arange(n) < lengths[:, None]).long()   # (sentence, n)
    show(decoder_mask(attention_mask), f"lengths {lengths.tolist()}")
    show(decoder_mask(attention_mask.flip(1)), "the same sentences, padded in front")
    show(decoder_mask(torch.tensor([[1]])), "one sentence of one word")

# %% tags=["mistakes"]
def parts_of(attention_mask):
    n, real = attention_mask.shape[1], attention_mask.bool()
    return torch.ones(n, n).tril().bool(), real[:, None, None, :], real[:, None, :, None]


def causal_only(attention_mask):
    past, keys, _ = parts_of(attention_mask)
    return past.expand(len(keys), 1, -1, -1).clone()


def padding_only(attention_mask):
    past, keys, _ = parts_of(attention_mask)
    return keys.expand(-1, -1, len(past), -1).clone()


def either(attention_mask):
    past, keys, _ = parts_of(attention_mask)
    return past | keys


def of_queries(attention_mask):
    past, _, queries = parts_of(attention_mask)
    return past & queries


def upper(attention_mask):
    past, keys, _ = parts_of(attention_mask)
    return past.T & keys


def strict(attention_mask):
    past, keys, _ = parts_of(attention_mask)
    return past.tril(-1) & keys


mistake("decoder-mask", causal_only, "Padding is not hidden: the keys of short sentences are open to the end.")
mistake("decoder-mask", lambda attention_mask: (
            decoder_mask((torch.arange(attention_mask.shape[1]) < attention_mask.sum(1)[:, None]).long())),
        "You count the real tokens, and take them to stand in front. Where the padding is in front, these are the wrong "
        "ones: read `attention_mask` itself.")
mistake("decoder-mask", padding_only, "The future is not hidden. Join in the causal mask with `&`.")
mistake("decoder-mask", either, "You join with `|`, *or*. A key must be past *and* real: `&`.")
mistake("decoder-mask", of_queries,
        "The rows of padding are empty: the padding mask lies along the *queries*. It is the keys that must not be read: "
        "put `attention_mask` on the last axis, and only there.")
mistake("decoder-mask", upper, "The causal mask is the wrong way round: each query sees the future, and not the past.")
mistake("decoder-mask", strict, "A token may look at itself. The diagonal is `True`; without it the first word sees nothing.")
mistake("decoder-mask", lambda attention_mask: ~decoder_mask(attention_mask),
        "The mask is inverted. Here `True` means *may attend*.")
mistake("decoder-mask", lambda attention_mask: decoder_mask(attention_mask)[:, 0],
        "The axis for the heads is missing: (batch, 1, n, n). Without it, sentences would be taken for heads.")
mistake("decoder-mask", lambda attention_mask: parts_of(attention_mask)[0][None, None],
        "This is the causal mask alone, one for all sentences. Join in the padding of each sentence with `&`.")
mistake("decoder-mask", lambda attention_mask: parts_of(attention_mask)[1],
        "This is the padding mask alone, (batch, 1, 1, n). Join in the causal mask with `&`; that also gives the shape.")
mistake("decoder-mask", lambda attention_mask: parts_of(attention_mask)[0] & ~parts_of(attention_mask)[1],
        "The padding is inverted: you allow *only* padding. `attention_mask` is 1 at real tokens already.")
mistake("decoder-mask", lambda attention_mask: decoder_mask(attention_mask).long(),
        "The numbers are right, but a mask is boolean: use `&` on booleans, or `.bool()` at the end.")
mistake("decoder-mask", lambda attention_mask: torch.zeros(decoder_mask(attention_mask).shape).masked_fill(
            ~decoder_mask(attention_mask), float("-inf")),
        "This is a mask to *add* to the scores, 0 and −∞. In this course a mask is boolean: `True` where a query may look.")
alternative("decoder-mask", lambda attention_mask: torch.stack(
    [torch.ones_like(row).outer(row).tril().bool()[None] for row in attention_mask]))

# %% [markdown]
# ### Task 4 · The smoothed loss   ●●●○○ · 13 minutes · 3 points
#
# The target distribution gives $1 - \epsilon$ to the label and shares $\epsilon$ equally among *all* $V$ words, the label
# included:
#
# $$q(k) = (1 - \epsilon)\,[k = y] + \frac{\epsilon}{V} \qquad\qquad \text{loss} = -\sum_k q(k) \log p(k)$$
#
# Return the mean over the labels that count. Labels of −100 don't. (`F.cross_entropy` does all that in one call; here
# you are to write it with `log_softmax`. The check looks at numbers only, but a grader is told who calls it.)
#
# <details><summary>Hint 1: throw away first</summary>
#
# `counted = labels != -100`; then `logits[counted]` is (counted, vocab), and `labels[counted]` is (counted,).
# </details>
# <details><summary>Hint 2: two terms</summary>
#
# $\sum_k q(k) \log p(k)$ is $(1 - \epsilon) \log p(y)$ plus $\epsilon$ times the *mean* of all $\log p(k)$.
# </details>
# <details><summary>Hint 3: log p of the labels</summary>
#
# `log_p.gather(-1, labels[counted][:, None])[:, 0]`.
# </details>

# %% nbgrader={"grade_id": "smoothed-loss", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def smoothed_loss(
    logits: Float[Tensor, "batch target vocab"], labels: Int[Tensor, "batch target"], smoothing: float
) -> Float[Tensor, ""]:
    """Mean cross-entropy with smoothed labels; -100 is not counted."""
    ### BEGIN SOLUTION
    counted = labels != -100
    log_p = logits[counted].log_softmax(dim=-1)
    of_label = log_p.gather(-1, labels[counted][:, None])[:, 0]
    return -((1 - smoothing) * of_label + smoothing * log_p.mean(dim=-1)).mean()
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-smoothed-loss", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("smoothed-loss") as show:
    n, vocab = show.random_size(4, 6), show.random_size(5, 9)
    logits, labels = 2 * show.randn(2, n, vocab), show.randint(0, vocab, 2, n)
    labels[1, 2:] = -100
    show(smoothed_loss(logits, labels, 0.1), f"{n} and 2 words, vocabulary of {vocab}, smoothing 0.1")
    show(smoothed_loss(logits, labels, 0.4), "the same with smoothing 0.4")
    show(smoothed_loss(logits, labels, 0.0), "without smoothing")

# %% tags=["mistakes"]
def smoothing_others(logits, labels, smoothing):
    v = logits.shape[-1]
    return smoothed_loss(logits, labels, smoothing * v / (v - 1))


def over_padding(logits, labels, smoothing):
    return smoothed_loss(logits, labels, smoothing) * (labels != -100).float().mean()


def as_a_sum(logits, labels, smoothing):
    return smoothed_loss(logits, labels, smoothing) * (labels != -100).sum()


def without_log(logits, labels, smoothing):
    counted = labels != -100
    p = logits[counted].softmax(dim=-1)
    of_label = p.gather(-1, labels[counted][:, None])[:, 0]
    return -((1 - smoothing) * of_label + smoothing * p.mean(dim=-1)).mean()


def from_logits(logits, labels, smoothing):
    counted = labels != -100
    of_label = logits[counted].gather(-1, labels[counted][:, None])[:, 0]
    return -((1 - smoothing) * of_label + smoothing * logits[counted].mean(dim=-1)).mean()


def with_sum(logits, labels, smoothing):
    counted = labels != -100
    log_p = logits[counted].log_softmax(dim=-1)
    of_label = log_p.gather(-1, labels[counted][:, None])[:, 0]
    return -((1 - smoothing) * of_label + smoothing * log_p.sum(dim=-1)).mean()


def padding_as_word(logits, labels, smoothing):
    return smoothed_loss(logits, labels.clamp(min=0), smoothing)


forbid("smoothed-loss", ("cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss"),
       ("aten.nll_loss_forward", "aten.nll_loss_nd", "aten.cross_entropy_loss"))
mistake("smoothed-loss", smoothing_others,
        "You share ε among the *other* V − 1 words. That is another definition; here the label gets its part of ε, too: "
        "the mean runs over all V.")
mistake("smoothed-loss", over_padding,
        "The sum is right, but you divide it by all positions, padding too. Divide by the number of labels that count.")
mistake("smoothed-loss", as_a_sum, "You return the sum. The task asks for the mean over the labels that count.")
mistake("smoothed-loss", without_log, "These are probabilities, not their logarithms. Use `log_softmax`.")
mistake("smoothed-loss", from_logits,
        "The logits are used as if they were log-probabilities. They are not normalised yet: `log_softmax` first.")
mistake("smoothed-loss", with_sum, "ε is to be *shared* among all words: the mean of their log-probabilities, not the sum.")
mistake("smoothed-loss", lambda logits, labels, smoothing: smoothed_loss(logits, labels, 1 - smoothing),
        "ε and 1 − ε are swapped: the label gets the small part.")
mistake("smoothed-loss", lambda logits, labels, smoothing: smoothed_loss(logits, labels, 0.0),
        "The labels are not smoothed at all: this is the plain cross-entropy.")
mistake("smoothed-loss", padding_as_word, "The labels of −100 are counted as if they were word 0. Leave them out.")
mistake("smoothed-loss", lambda logits, labels, smoothing: -smoothed_loss(logits, labels, smoothing),
        "The sign is missing. A log-probability is negative, a loss is positive.")


def target_of(labels, vocab, smoothing):
    """The labels that count, and q for each."""
    label = labels[labels != -100]
    return label, torch.full((len(label), vocab), smoothing / vocab)


def overwritten(logits, labels, smoothing):
    label, q = target_of(labels, logits.shape[-1], smoothing)
    q[torch.arange(len(label)), label] = 1 - smoothing
    return -(q * logits[labels != -100].log_softmax(dim=-1)).sum(dim=-1).mean()


def over_the_vocabulary(logits, labels, smoothing):
    return smoothed_loss(logits, labels, smoothing) / logits.shape[-1]


def more_than_one(logits, labels, smoothing):
    return smoothed_loss(logits, labels, smoothing) + smoothing * smoothed_loss(logits, labels, 0.0)


def padding_in_one_term(logits, labels, smoothing):
    everywhere = -logits.log_softmax(dim=-1).mean()
    return (1 - smoothing) * smoothed_loss(logits, labels, 0.0) + smoothing * everywhere


def by_sentence(logits, labels, smoothing):
    each = [smoothed_loss(*pair, smoothing) for pair in zip(logits[:, None], labels[:, None], strict=True)]
    return torch.stack(each).mean()


def along_the_sentence(logits, labels, smoothing):
    log_p, counted = logits.log_softmax(dim=1), labels != -100
    of_label = log_p[counted].gather(-1, labels[counted][:, None])[:, 0]
    return -((1 - smoothing) * of_label + smoothing * log_p[counted].mean(dim=-1)).mean()


def beyond_the_floor(logits, labels, smoothing):
    label, q = target_of(labels, logits.shape[-1], smoothing)
    q[torch.arange(len(label)), label] += 1 - smoothing
    return smoothed_loss(logits, labels, smoothing) + torch.xlogy(q, q).sum(dim=-1).mean()


def each_word(logits, labels, smoothing):
    log_p = logits[labels != -100].log_softmax(dim=-1)
    of_label = log_p.gather(-1, labels[labels != -100][:, None])[:, 0]
    return -((1 - smoothing) * of_label + smoothing * log_p.mean(dim=-1))


mistake("smoothed-loss", overwritten,
        "The label's own share of ε is missing: you *set* its q to 1 − ε. Add 1 − ε to the ε / V that it has already.")
mistake("smoothed-loss", over_the_vocabulary,
        "You divide by V as well: a mean over words *and* vocabulary. Sum over the vocabulary; take the mean over the "
        "labels that count.")
mistake("smoothed-loss", more_than_one,
        "The label keeps its full weight of 1. It gets 1 − ε, so that all of q adds up to 1.")
mistake("smoothed-loss", padding_in_one_term,
        "The term with ε counts the padding, too. Throw the labels of −100 away before both terms.")
mistake("smoothed-loss", by_sentence,
        "This is a mean of the sentences' means, so a word in a short sentence weighs more. Take one mean over all words.")
mistake("smoothed-loss", along_the_sentence,
        "The softmax runs along the sentence. A probability is shared out among the *vocabulary*: `dim=-1`.")
mistake("smoothed-loss", beyond_the_floor,
        "This is how far p is from q: the entropy of q is subtracted (the *KL divergence*). It has the same gradient, but "
        "asked for is −Σ q log p as it stands.")
mistake("smoothed-loss", each_word, "You return one loss a word. The task asks for their mean.")
mistake("smoothed-loss", lambda logits, labels, smoothing: smoothed_loss(logits, labels, 0.1),
        "Your smoothing is always 0.1. Use the `smoothing` you are given.")
mistake("smoothed-loss", lambda logits, labels, smoothing: smoothed_loss(logits, labels, smoothing).item(),
        "The number is right, but without a tensor there is no gradient. Leave out `.item()`.")
alternative("smoothed-loss", lambda logits, labels, smoothing: torch.nn.functional.cross_entropy(
    logits.flatten(0, 1), labels.flatten(), ignore_index=-100, label_smoothing=smoothing))

# %% [markdown]
# ### Task 5 · Greedy decoding   ●●●●○ · 20 minutes · 3 points
#
# `step(written)` is a decoder: it takes all tokens written so far, (batch, length), `BOS` included, and returns logits
# (batch, length, vocab); the logits at position $t$ predict the token *after* position $t$. It keeps no cache, so it
# needs the whole beginning each time.
#
# Write the likeliest token, append it, go on. Stop when every sentence of the batch has its `EOS`, or after
# `max_length` tokens. Return the tokens without `BOS`. What stands behind a sentence's first `EOS` must be `PAD`.
#
# <details><summary>Hint 1: the loop</summary>
#
# Begin with a column of `BOS`. Each round: logits, the last position, argmax over the vocabulary, append.
# </details>
# <details><summary>Hint 2: finished sentences</summary>
#
# Keep `done`, (batch,), all `False` at first. Where it is `True`, write `PAD` instead of the argmax. Then update it:
# `done | (word == EOS)`.
# </details>
# <details><summary>Hint 3: nearly the answer</summary>
#
# `word = step(written)[:, -1].argmax(dim=-1).masked_fill(done, PAD)`
# </details>

# %% nbgrader={"grade_id": "greedy", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def greedy(step: Callable[[Tensor], Tensor], batch: int, max_length: int) -> Int[Tensor, "batch written"]:
    """At each step the likeliest token, until all sentences have ended."""
    ### BEGIN SOLUTION
    written = torch.full((batch, 1), BOS)
    done = torch.zeros(batch, dtype=torch.bool)
    for _ in range(max_length):
        word = step(written)[:, -1].argmax(dim=-1).masked_fill(done, PAD)
        written = torch.cat([written, word[:, None]], dim=1)
        done = done | (word == EOS)
        if done.all():
            break
    return written[:, 1:]
    ### END SOLUTION

# %% [markdown]
# The check decodes with this little model. Each next token depends on *all* tokens so far, and each sentence has an
# end of its own.

# %%
def toy_decoder(ends: list[int], offset: int, vocab: int = 12) -> Callable[[Tensor], Tensor]:
    """A decoder whose sentence i writes ends[i] words and then EOS."""

    def step(written):                                             # (batch, length)
        length = torch.arange(1, written.shape[1] + 1)             # (length,): tokens read at each position
        word = 3 + (written.cumsum(dim=1) * 5 + length * offset) % (vocab - 3)   # (batch, length): from 3 on
        word = torch.where(length > torch.tensor(ends)[:, None], EOS, word)      # (batch, length)
        return 4 * torch.nn.functional.one_hot(word, vocab) - torch.linspace(0, 1, vocab)   # (batch, length, vocab)

    return step


# %% nbgrader={"grade_id": "check-greedy", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("greedy") as show:
    offset, long = show.random_size(1, 8), show.random_size(5, 20)
    show(greedy(toy_decoder([3, long], offset), 2, 25), f"ends after 3 and {long} words; max_length 25")
    offset, long = show.random_size(1, 8), show.random_size(5, 20)
    show(greedy(toy_decoder([4, long + 3], offset), 2, long), f"ends after 4 and {long + 3} words; max_length {long}")
    show(greedy(toy_decoder([0], offset), 1, 5), "an empty sentence")

# %% tags=["mistakes"]
def decode(step, batch, max_length, *, read=lambda w: w, at=-1, stop=all, keep_start=False, pad=True, words=torch.argmax):
    written, done = torch.full((batch, 1), BOS), torch.zeros(batch, dtype=torch.bool)
    for _ in range(max_length):
        word = words(step(read(written))[:, at], dim=-1)
        word = word.masked_fill(done, PAD) if pad else word
        written = torch.cat([written, word[:, None]], dim=1)
        done = done | (word == EOS)
        if stop(done.tolist()):
            break
    return written if keep_start else written[:, 1:]


mistake("greedy", lambda *a: decode(*a, stop=lambda done: False),
        "It never stops at `EOS`: it goes on to `max_length`. Leave the loop once every sentence has ended.")
mistake("greedy", lambda *a: decode(*a, stop=any),
        "It stops as soon as *one* sentence has ended. The others are cut off: wait for all.")
mistake("greedy", lambda *a: decode(*a, read=lambda w: w[:, -1:]),
        "Only the last token is handed to `step`. Without a cache it has forgotten the rest: give it all that is written.")
mistake("greedy", lambda *a: decode(*a, at=0),
        "You read the logits at the *first* position. Those predict the first word, again and again. Take the last: `[:, -1]`.")
mistake("greedy", lambda *a: decode(*a, keep_start=True), "`BOS` is still in the result. Return what comes after it.")
mistake("greedy", lambda *a: decode(*a, pad=False),
        "Behind the first `EOS` of a finished sentence your result holds further tokens. They are no part of it: write `PAD`.")
mistake("greedy", lambda *a: decode(*a, words=torch.argmin), "This takes the *least* likely token: `argmax`.")
mistake("greedy", lambda step, batch, max_length: greedy(step, batch, max_length + 1),
        "The result may be one token too long: `max_length` does not count `BOS`.")


def ended_early(step, batch, max_length, *, start=BOS, lose_end=False, remember=True, drop_last=False):
    written, done = torch.full((batch, 1), start), torch.zeros(batch, dtype=torch.bool)
    for _ in range(max_length):
        word = step(written)[:, -1].argmax(dim=-1)
        ends = done | (word == EOS)
        word = word.masked_fill(ends if lose_end else done, PAD)
        done = ends if remember else word == EOS
        if drop_last and ends.all():
            break
        written = torch.cat([written, word[:, None]], dim=1)
        if done.all():
            break
    return written[:, 1:]


mistake("greedy", lambda *a: ended_early(*a, lose_end=True),
        "The `EOS` itself has become `PAD`. Fill up what stands *behind* it: update `done` after the word is chosen.")
mistake("greedy", lambda *a: ended_early(*a, remember=False),
        "`done` forgets: it only knows who ended in this round. Once ended, always ended: `done | (word == EOS)`.")
mistake("greedy", lambda *a: ended_early(*a, drop_last=True),
        "The last column is missing. Append the tokens first, then leave the loop.")
mistake("greedy", lambda *a: ended_early(*a, start=PAD), "Begin with a column of `BOS`, not of `PAD`.")
mistake("greedy", lambda step, batch, max_length: greedy(step, batch, max_length - 1),
        "The result may be one token short: `max_length` does not count `BOS`.")
mistake("greedy", lambda *a: greedy(*a).tolist(), "The tokens are right, but asked for is a tensor. Leave out `.tolist()`.")


def by_list(step, batch, max_length):
    rows = [[BOS] for _ in range(batch)]
    while len(rows[0]) <= max_length and not all(EOS in row for row in rows):
        best = step(torch.tensor(rows)).argmax(dim=-1)[:, -1].tolist()
        rows = [[*row, PAD if EOS in row else word] for row, word in zip(rows, best, strict=True)]
    return torch.tensor(rows)[:, 1:]


alternative("greedy", by_list)

# %%
check.summary()
