# %% [markdown]
# # Exercise 10 · GPT
#
# Six tasks, 17 points, about 80 minutes. They belong to lesson [10 GPT](../notebooks/10_gpt.ipynb). Tasks 1 to 3 are the
# *core* and take about 30 minutes; tasks 4 to 6 are *more*. Run the cells from the top; fill in where it says *your turn*,
# then run the check below it. You may check as often as you like.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher.

# %% tags=["parameters"]
seed = 0

# %%
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from txgrade import check

# %% tags=["variant"]
from txgrade import variant

IGNORE_INDEX = variant(-100, -1, -2, -999)  # the label that does not count, in tasks 1 and 2
# The example of task 3: a Llama's name, layers, d_model and d_ff.
NAME, LAYERS, WIDTH, D_FF = variant(
    ("7B", 32, 4096, 11_008), ("13B", 40, 5120, 13_824), ("33B", 60, 6656, 17_920), ("65B", 80, 8192, 22_016)
)

# %% [markdown]
# ### Task 1 · Texts of different lengths in one batch   ●●○○○ · 8 minutes · 3 points
#
# Each text is a list of at least two tokens. In each, every token but the last is read, and every token but the first
# is predicted. Return two matrices, one row per text: what is read, and the labels. Both are as wide as the longest
# text needs. Fill up at the end: what is read with `pad_id`, the labels with −{{-IGNORE_INDEX}}, which no loss counts.
#
# Beware: as in GPT-2, `pad_id` may also be a real token, such as the one that ends a text. Inside a text it counts.
#
# <details><summary>Hint 1: how wide?</summary>
#
# A text of 5 tokens has 4 questions. So the width is one less than the longest text has tokens.
# </details>
# <details><summary>Hint 2: which is which?</summary>
#
# For one text: it reads `text[:-1]`, its labels are `text[1:]`.
# </details>
# <details><summary>Hint 3: how to fill up</summary>
#
# A list times a number repeats it: `[{{IGNORE_INDEX}}] * 3`. Fill by *length*; do not look for `pad_id` in the labels.
# </details>

# %% nbgrader={"grade_id": "shift", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def inputs_and_labels(
    texts: list[list[int]], pad_id: int
) -> tuple[Int[Tensor, "text n"], Int[Tensor, "text n"]]:
    """What is read, filled up with pad_id, and what is to be predicted, filled up with {{IGNORE_INDEX}}."""
    ### BEGIN SOLUTION
    n = max(len(text) for text in texts) - 1
    read = [text[:-1] + [pad_id] * (n + 1 - len(text)) for text in texts]
    labels = [text[1:] + [IGNORE_INDEX] * (n + 1 - len(text)) for text in texts]
    return torch.tensor(read), torch.tensor(labels)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-shift", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("shift") as show:
    for label, pad_id in (("pad_id occurs nowhere", 99), ("pad_id ends each text", 7)):
        lengths = [show.random_size(2, 4), 6, show.random_size(2, 5), 2]
        texts = [[*show.randint(10, 50, length - 1).tolist(), 7] for length in lengths]
        texts[1][2] = 7
        read, labels = inputs_and_labels(texts, pad_id)
        show(read, f"read, {label}")
        show(labels, f"labels, {label}")
    show(list(inputs_and_labels([show.randint(10, 50, show.random_size(2, 5)).tolist()], 0)), "one text: read, labels")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")


def filled(rows, value, left=False):
    n = max(len(row) for row in rows)
    more = [[value] * (n - len(row)) for row in rows]
    return torch.tensor([m + row if left else row + m for row, m in zip(rows, more, strict=True)])


def by_value(texts, pad_id):
    read, labels = (filled(part, pad_id) for part in ([t[:-1] for t in texts], [t[1:] for t in texts]))
    return read, labels.masked_fill(labels == pad_id, IGNORE_INDEX)


def last_token_read(texts, pad_id):
    return filled(texts, pad_id), filled([text[1:] + [IGNORE_INDEX] for text in texts], IGNORE_INDEX)


def shifted_as_a_whole(texts, pad_id):
    whole = filled(texts, pad_id)
    return whole[:, :-1], filled(texts, IGNORE_INDEX)[:, 1:]


def cut_to_the_shortest(texts, pad_id):
    n = min(len(text) for text in texts)
    return torch.tensor([text[: n - 1] for text in texts]), torch.tensor([text[1:n] for text in texts])


mistake("shift", by_value,
        "You replace every `pad_id` among the labels by −{{-IGNORE_INDEX}}. But `pad_id` may be a real token, here the one that ends "
        "a text, and then the model never learns to stop. Fill up by length.")
mistake("shift", lambda texts, pad_id: (inputs_and_labels(texts, pad_id)[0],) * 2,
        "Labels and input are the same. Then the model learns to repeat what it reads. Labels are one token later.")
mistake("shift", lambda texts, pad_id: (filled([t[1:] for t in texts], pad_id), filled([t[:-1] for t in texts], IGNORE_INDEX)),
        "You shift the wrong way: this predicts the token *before*. Read `text[:-1]`, predict `text[1:]`.")
mistake("shift", lambda texts, pad_id: (inputs_and_labels(texts, pad_id)[0], filled([t[1:] for t in texts], pad_id)),
        "The labels are filled up with `pad_id`. Then the loss counts them, and the model learns to write padding. Use −{{-IGNORE_INDEX}}.")
mistake("shift", lambda texts, pad_id: (filled([t[:-1] for t in texts], IGNORE_INDEX), inputs_and_labels(texts, pad_id)[1]),
        "What is read is filled up with −{{-IGNORE_INDEX}}. That is no token, and the embedding has no such row. Use `pad_id` there.")
mistake("shift", last_token_read,
        "The last token of each text is also read, although nothing is predicted after it. That costs a column: read "
        "`text[:-1]`.")
mistake("shift", lambda texts, pad_id: (filled([t[:-1] for t in texts], pad_id, left=True),
                                        filled([t[1:] for t in texts], IGNORE_INDEX, left=True)),
        "You fill up at the *front*. Here texts start at the left, and the filling goes to the end. (There, the causal mask "
        "hides it from all real tokens.)")
mistake("shift", shifted_as_a_whole,
        "You fill up first and cut then, so short texts still read their last token. Take `text[:-1]` of each text, then fill up.")
mistake("shift", cut_to_the_shortest,
        "All texts are cut to the length of the shortest. Fill up the short ones instead, so that no token is lost.")
alternative("shift", lambda texts, pad_id: (filled([t[:-1] for t in texts], pad_id), filled([t[1:] for t in texts], IGNORE_INDEX)))

# %% [markdown]
# ### Task 2 · Bits per character   ●●○○○ · 8 minutes · 3 points
#
# A model with longer tokens makes fewer, harder guesses, so losses *per token* cannot be compared between tokenizers.
# Bits *per character* can. Given the scores of a batch, the labels (−{{-IGNORE_INDEX}} does not count), and the number of
# characters that the counted labels stand for: how many bits does the model need for a character?
#
# `logits[b, t]` already predicts `labels[b, t]`: don't shift anything.
#
# <details><summary>Hint 1: one token</summary>
#
# It costs $-\log p(\text{label})$, where $p$ is the softmax of the logits along the last axis.
# </details>
# <details><summary>Hint 2: sum or mean?</summary>
#
# Sum over all labels that count, of the whole batch. Then divide by the characters, not by the tokens.
# </details>
# <details><summary>Hint 3: from nats to bits</summary>
#
# A nat is more than a bit: $1 / \ln 2 = 1.44$ bits.
# </details>

# %% nbgrader={"grade_id": "bits", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def bits_per_character(
    logits: Float[Tensor, "batch n vocab"], labels: Int[Tensor, "batch n"], characters: int
) -> Float[Tensor, ""]:
    """Cross-entropy of all labels that count, in bits, for each of the characters that they stand for."""
    ### BEGIN SOLUTION
    nats = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")
    return nats / math.log(2) / characters
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-bits", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("bits") as show:
    labels = show.randint(0, 8, 2, 4)
    show(bits_per_character(torch.zeros(2, 4, 8), labels, 16), "8 tokens, all equally likely, of 2 characters each")
    size = show.random_size(5, 8)
    logits, labels = 2 * show.randn(3, size, 9), show.randint(1, 9, 3, size)
    labels[0, 2:], labels[2, size - 1 :] = IGNORE_INDEX, IGNORE_INDEX
    show(bits_per_character(logits, labels, 4 * size), "three texts, two of them filled up")

# %% tags=["mistakes"]
def nats(logits, labels, reduction="sum"):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX, reduction=reduction)


def all_counted(logits, labels, characters):
    return nats(logits, labels.clamp(min=0)) / math.log(2) / characters


def mean_of_texts(logits, labels, characters):
    each = torch.stack([nats(a[None], b[None], "mean") for a, b in zip(logits, labels, strict=True)]).mean()
    return each * (labels != IGNORE_INDEX).sum() / math.log(2) / characters


def softmax_over_places(logits, labels, characters):
    log_p = logits.log_softmax(dim=1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return -(log_p * (labels != IGNORE_INDEX)).sum() / math.log(2) / characters


def shifted_again(logits, labels, characters):
    return nats(logits[:, :-1], labels[:, 1:]) / math.log(2) / characters


def with_log2(logits, labels, characters):
    p = logits.softmax(dim=-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]      # (batch, n)
    return -(p.log2() * (labels != IGNORE_INDEX)).sum() / characters


mistake("bits", lambda logits, labels, characters: nats(logits, labels) / characters,
        "This is in nats. Divide by ln 2 for bits.")
mistake("bits", lambda logits, labels, characters: nats(logits, labels) * math.log(2) / characters,
        "You multiply by ln 2. A bit is the smaller unit, so there are more of them: divide.")
mistake("bits", lambda logits, labels, characters: nats(logits, labels, "mean") / math.log(2),
        "This is per *token*. Sum over the tokens and divide by the characters.")
mistake("bits", lambda logits, labels, characters: nats(logits, labels, "mean") / math.log(2) / characters,
        "You divide twice: `cross_entropy` already takes the mean over the tokens. Use `reduction=\"sum\"`.")
mistake("bits", all_counted,
        "Labels of −{{-IGNORE_INDEX}} are counted, as if they were a token. They fill up and cost nothing.")
mistake("bits", lambda logits, labels, characters: nats(logits, labels, "mean") * labels.numel() / math.log(2) / characters,
        "The mean is over the labels that count, and you multiply it by the number of *all* positions. Use `reduction=\"sum\"`.")
mistake("bits", mean_of_texts,
        "A mean of the texts' means: a token in a short text then weighs more than one in a long text. Sum over all.")
mistake("bits", lambda logits, labels, characters: -nats(logits, labels) / math.log(2) / characters,
        "The sign is wrong: a logarithm of a probability is negative, a cost is not.")
mistake("bits", softmax_over_places,
        "The softmax runs along the text. Each *position* has a distribution over the vocabulary: use the last axis.")
mistake("bits", shifted_again,
        "You shift once too often. `logits[b, t]` already predicts `labels[b, t]`.")
mistake("bits", lambda logits, labels, characters: 2 ** (nats(logits, labels) / math.log(2) / characters),
        "This is a perplexity, a number of choices. The task asks for its logarithm, the bits.")
mistake("bits", lambda logits, labels, characters: nats(logits, labels) / math.log(2),
        "These are the bits of all characters together. Divide them by `characters`.")
alternative("bits", with_log2)
if IGNORE_INDEX == -100:
    equivalent("bits", "F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX, reduction='sum') → "
               "F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction='sum')",
               "−100 is what torch leaves out by itself.")

# %% [markdown]
# ### Task 3 · Count any GPT   ●●●○○ · 12 minutes · 3 points
#
# The lesson's formula holds for GPT-2. Write one that also holds for its relatives:
#
# - `context=None`: nothing is learned about positions (rotary, say). Otherwise each of the `context` positions has a
#   learned vector.
# - `tied=False`: the output has its own matrix from `d_model` to `vocab`, never with a bias.
# - `bias=False`: no matrix has a bias, and norms have a gain only.
# - `swiglu=True`: the feed-forward network has a third matrix, from `d_model` to `d_ff`.
#
# A block has attention (four matrices from `d_model` to `d_model`), a feed-forward network (one matrix from `d_model` to
# `d_ff`, one back) and two norms. One last norm is on top of all blocks. Count with a formula, not with `txlib.models`.
#
# <details><summary>Hint 1: biases</summary>
#
# A matrix from $a$ to $b$ has $ab$ weights and, with `bias`, $b$ more. A norm has $d$, with `bias` $2d$.
# </details>
# <details><summary>Hint 2: what is outside the blocks?</summary>
#
# Token vectors, perhaps positions, the last norm, perhaps an output matrix.
# </details>
# <details><summary>Hint 3: a number to try</summary>
#
# Llama {{NAME}}: `gpt_parameters(32_000, {{LAYERS}}, {{WIDTH}}, {{D_FF:_}}, None, tied=False, bias=False, swiglu=True)` should be
# {{64_000 * WIDTH + LAYERS * (4 * WIDTH * WIDTH + 3 * WIDTH * D_FF + 2 * WIDTH) + WIDTH:,}}.
# </details>

# %% nbgrader={"grade_id": "count", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def gpt_parameters(
    vocab: int, layers: int, d_model: int, d_ff: int, context: int | None,
    tied: bool = True, bias: bool = True, swiglu: bool = False,
) -> int:
    """How many numbers a decoder learns."""
    ### BEGIN SOLUTION
    norm = 2 * d_model if bias else d_model
    attention = 4 * (d_model * d_model + d_model * bias)
    widening = (2 if swiglu else 1) * (d_model * d_ff + d_ff * bias)
    narrowing = d_ff * d_model + d_model * bias
    embedding = vocab * d_model
    positions = 0 if context is None else context * d_model
    output = 0 if tied else vocab * d_model
    return embedding + positions + layers * (attention + widening + narrowing + 2 * norm) + norm + output
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-count", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("count") as show:
    vocab, layers, d = show.random_size(90, 300), show.random_size(3, 9), 4 * show.random_size(4, 9)
    d_ff, context = 3 * d + show.random_size(1, d - 1), show.random_size(20, 60)
    show.call(gpt_parameters, vocab, layers, d, d_ff, context, label="as GPT-2", points=1)
    show.call(gpt_parameters, vocab, layers, d, d_ff, None, label="without positions", points=0.5)
    show.call(gpt_parameters, vocab, layers, d, d_ff, context, tied=False, label="not tied", points=0.5)
    show.call(gpt_parameters, vocab, layers, d, d_ff, context, bias=False, label="without biases", points=0.5)
    llama = {"tied": False, "bias": False, "swiglu": True}
    show.call(gpt_parameters, vocab, layers, d, d_ff, None, **llama, label="as Llama", points=0.5)
    show.call(gpt_parameters, vocab, layers, d, d_ff, context, swiglu=True, label="with biases and a gate", points=0.5)

# %% tags=["mistakes"]
from txlib.layers import BlockConfig
from txlib.models import GPTConfig
from txlib.models.sizes import count_parameters


def miscounted(wrong):
    """The right count plus something wrong."""
    def count(vocab, layers, d_model, d_ff, context, tied=True, bias=True, swiglu=False):
        right = gpt_parameters(vocab, layers, d_model, d_ff, context, tied, bias, swiglu)
        return right + wrong(vocab, layers, d_model, d_ff, context, tied, bias, swiglu)
    return count


def counted_on_meta(vocab, layers, d_model, d_ff, context, tied=True, bias=True, swiglu=False):
    block = BlockConfig.of_sizes(
        d_model, 1, d_ff, norm="layer", bias=bias, activation="swiglu" if swiglu else "gelu",
        position="none" if context is None else "learned",
    )
    return count_parameters(GPTConfig(vocab, block, layers=layers, max_length=context or 1, tie_embeddings=tied))


mistake("count", miscounted(lambda V, N, d, f, c, tied, bias, swiglu: -(2 * d if bias else d)),
        "The last norm is missing: with pre-norm, there is one on top of all blocks.")
mistake("count", miscounted(lambda V, N, d, f, c, tied, bias, swiglu: V * d if tied else 0),
        "Tied, the output uses the embedding's own matrix: it is *one* matrix, and counts once.")
mistake("count", miscounted(lambda V, N, d, f, c, tied, bias, swiglu: 0 if tied else -V * d),
        "With `tied=False` the output has a matrix of its own: vocab · d_model more.")
mistake("count", miscounted(lambda V, N, d, f, c, tied, bias, swiglu: -N * f if bias and swiglu else 0),
        "The gate is a matrix like the one that widens: with biases it also has one, of `d_ff` numbers.")
mistake("count", miscounted(lambda V, N, d, f, c, tied, bias, swiglu: V if not tied else 0),
        "The output matrix has no bias.")
mistake("count", miscounted(lambda V, N, d, f, c, tied, bias, swiglu: V if bias and not tied else 0),
        "The output matrix never has a bias, not even with `bias=True`.")
mistake("count", miscounted(lambda V, N, d, f, c, tied, bias, swiglu: 1024 * d if c is None else 0),
        "With `context=None` nothing is learned about positions: rotary angles are computed.")
mistake("count", miscounted(lambda V, N, d, f, c, tied, bias, swiglu: 0 if bias else (2 * N + 1) * d),
        "With `bias=False` the norms have no bias either: only a gain of d_model numbers.")
mistake("count", miscounted(lambda V, N, d, f, c, tied, bias, swiglu: -N * d * f if swiglu else 0),
        "SwiGLU has *three* matrices: the gate, the widening and the narrowing one.")
mistake("count", miscounted(lambda V, N, d, f, c, tied, bias, swiglu: N * (d - f) if bias else 0),
        "The bias of the widening matrix has d_ff numbers: as many as its output.")
mistake("count", miscounted(lambda V, N, d, f, c, tied, bias, swiglu: N * (f - d) if bias else 0),
        "The bias of the narrowing matrix has d_model numbers: as many as its output.")
mistake("count", miscounted(lambda V, N, d, f, c, tied, bias, swiglu: N * 2 * d * (4 * d - f)),
        "The width in the middle is taken for 4 · d_model. Use `d_ff`.")
mistake("count", lambda vocab, layers, d_model, d_ff, context, tied=True, bias=True, swiglu=False: (
    (vocab + (context or 0)) * d_model + layers * (12 * d_model**2 + 13 * d_model) + 2 * d_model),
        "This is GPT-2's formula. It holds for d_ff = 4 · d_model, with biases, tied and without a gate. Here each part counts "
        "by itself.")


def counted(whole=lambda blocks, rest: blocks + rest, **changed):
    """A count with some parts changed: each a function of (V, N, d, f, context, bias, swiglu)."""
    def count(vocab, layers, d_model, d_ff, context, tied=True, bias=True, swiglu=False):
        given = V, N, d, f, c, b, s = vocab, layers, d_model, d_ff, context, bias, swiglu
        part = {
            "norms": 2 * (d + d * b), "last": d + d * b, "attention": 4 * (d * d + d * b),
            "widening": (1 + s) * (d * f + f * b), "narrowing": f * d + d * b,
            "tokens": V * d, "places": 0 if c is None else c * d, "output": V * d,
        } | {name: number(*given) for name, number in changed.items()}
        blocks = N * (part["norms"] + part["attention"] + part["widening"] + part["narrowing"])
        return whole(blocks, part["tokens"] + part["places"] + part["last"] + (0 if tied else part["output"]))
    return count


MATRICES = "A matrix is missing: a block has four in attention and two in its network, three with `swiglu`."
for changed in (
    {"attention": lambda V, N, d, f, c, b, s: d * d + d * b},
    {"attention": lambda V, N, d, f, c, b, s: 0},
    {"attention": lambda V, N, d, f, c, b, s: 3 * (d * d + d * b)},
    {"widening": lambda V, N, d, f, c, b, s: 0},
    {"widening": lambda V, N, d, f, c, b, s: d * f + f * b},
    {"narrowing": lambda V, N, d, f, c, b, s: 0},
):
    mistake("count", counted(**changed), MATRICES)
WEIGHTS = "Biases are counted where the weights are not: a matrix from $a$ to $b$ also has $ab$ weights."
for changed in (
    {"attention": lambda V, N, d, f, c, b, s: 4 * d * b},
    {"widening": lambda V, N, d, f, c, b, s: (1 + s) * f * b},
    {"narrowing": lambda V, N, d, f, c, b, s: d * b},
):
    mistake("count", counted(**changed), WEIGHTS)
BIASES = "Biases are missing: with `bias=True` each matrix of a block has one, and each norm."
for changed in (
    {"attention": lambda V, N, d, f, c, b, s: 4 * d * d},
    {"widening": lambda V, N, d, f, c, b, s: (1 + s) * d * f},
    {"narrowing": lambda V, N, d, f, c, b, s: d * f},
    {"norms": lambda V, N, d, f, c, b, s: 2 * d, "last": lambda V, N, d, f, c, b, s: d},
    {"norms": lambda V, N, d, f, c, b, s: 2 * d},
):
    mistake("count", counted(**changed), BIASES)
ALWAYS = "With `bias=False` no matrix has a bias."
for changed in (
    {"attention": lambda V, N, d, f, c, b, s: 4 * (d * d + d)},
    {"widening": lambda V, N, d, f, c, b, s: (1 + s) * (d * f + f)},
    {"narrowing": lambda V, N, d, f, c, b, s: d * f + d},
):
    mistake("count", counted(**changed), ALWAYS)
ONE = "A bias has as many numbers as its matrix has outputs, not one."
for changed in (
    {"attention": lambda V, N, d, f, c, b, s: 4 * (d * d + b)},
    {"widening": lambda V, N, d, f, c, b, s: (1 + s) * (d * f + b)},
    {"narrowing": lambda V, N, d, f, c, b, s: d * f + b},
):
    mistake("count", counted(**changed), ONE)
mistake("count", counted(norms=lambda V, N, d, f, c, b, s: d + d * b),
        "A block has *two* norms, one before attention and one before the network.")
mistake("count", counted(norms=lambda V, N, d, f, c, b, s: 0), "The norms of the blocks are missing: two in each.")
for tokens in (lambda V, N, d, f, c, b, s: 0, lambda V, N, d, f, c, b, s: V, lambda V, N, d, f, c, b, s: d):
    mistake("count", counted(tokens=tokens), "Each of the `vocab` tokens has a vector of d_model numbers.")
mistake("count", counted(places=lambda V, N, d, f, c, b, s: 0),
        "The positions are missing: unless `context` is `None`, each of its positions has a vector.")
mistake("count", counted(places=lambda V, N, d, f, c, b, s: c or 0),
        "What is learned for a position is a *vector*, d_model numbers.")
for output in (lambda V, N, d, f, c, b, s: V, lambda V, N, d, f, c, b, s: d):
    mistake("count", counted(output=output), "The output matrix goes from d_model to `vocab`: it has their product of weights.")
mistake("count", lambda vocab, layers, *rest, **kinds: (
    gpt_parameters(vocab, 0, *rest, **kinds) + gpt_parameters(0, 1, *rest, **kinds) - gpt_parameters(0, 0, *rest, **kinds)),
        "There are `layers` blocks, and you count one.")
mistake("count", lambda vocab, layers, *rest, **kinds: (
    gpt_parameters(0, layers, *rest, **kinds) - gpt_parameters(0, 0, *rest, **kinds)),
        "Only the blocks are counted. Outside them are the token vectors, perhaps positions, the last norm, perhaps an "
        "output matrix.")
alternative("count", counted_on_meta)
alternative("count", counted())

# %% [markdown]
# ### Task 4 · Pack documents into blocks   ●●●○○ · 10 minutes · 2 points
#
# Large models are not trained on texts that are filled up. Instead, the end token is written after *each* document, all
# documents are joined into one long text, and that is cut into blocks. To predict `n` tokens, a block needs `n + 1`: all but
# the last are read, all but the first predicted. No token within the blocks goes unpredicted, except the very first one; so
# each block starts with the token that the one before ended with. Tokens at the end that do not fill a block are dropped.
# There are always enough for one block.
#
# <details><summary>Hint 1: the long text</summary>
#
# `[token for document in documents for token in [*document, end_id]]`
# </details>
# <details><summary>Hint 2: where do blocks start?</summary>
#
# At 0, n, 2n … Each is n + 1 long, so neighbors share one token.
# </details>
# <details><summary>Hint 3: how many are there?</summary>
#
# A text of $m$ tokens has $m - 1$ predictions, in groups of $n$: `(m - 1) // n` blocks.
# </details>

# %% nbgrader={"grade_id": "pack", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def pack(documents: list[list[int]], end_id: int, n: int) -> Int[Tensor, "block length"]:
    """Blocks of n + 1 tokens; each begins with the last token of the one before."""
    ### BEGIN SOLUTION
    text = torch.tensor([token for document in documents for token in [*document, end_id]])
    return text.unfold(0, n + 1, n)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-pack", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("pack") as show:
    documents = [show.randint(10, 99, show.random_size(low, low + 4)).tolist() for low in (5, 3, 8, 4)]
    show(pack(documents, 1, 4), "four documents, n = 4")
    show(pack([[11, 12, 13, 14]], 1, 2), "one document that fills two blocks, n = 2")
    show(pack([[11, 12, 13, 14]], 1, 3), "one token is left over, n = 3")
    show(pack([[11, 12], [], [13, 14, 15, 16]], 1, 2), "one document is empty, n = 2")

# %% tags=["mistakes"]
def joined(documents, before=(), behind=()):
    return torch.tensor([token for document in documents for token in [*before, *document, *behind]])


def apart(documents, end_id, n):
    text = joined(documents, behind=[end_id])
    return text[: len(text) // (n + 1) * (n + 1)].view(-1, n + 1)


def between(documents, end_id, n):
    return joined(documents, behind=[end_id])[:-1].unfold(0, n + 1, n)


def padded(documents, end_id, n):
    text = joined(documents, behind=[end_id])
    return F.pad(text, (0, -(len(text) - 1) % n), value=end_id).unfold(0, n + 1, n)


def one_by_one(documents, end_id, n):
    parts = [torch.tensor([*document, end_id]) for document in documents]
    return torch.cat([part.unfold(0, n + 1, n) for part in parts if len(part) > n])


mistake("pack", apart,
        "The blocks share no token. Then the first token of each block is never predicted. Start each block with the last "
        "token of the one before.")
mistake("pack", lambda documents, end_id, n: joined(documents, behind=[end_id]).unfold(0, n, n),
        "The blocks have n tokens. To predict n tokens, a block needs n + 1.")
mistake("pack", lambda documents, end_id, n: joined(documents, behind=[end_id]).unfold(0, n + 1, 1),
        "A block starts at every token. Then each token is predicted n times in an epoch. Start at 0, n, 2n …")
mistake("pack", lambda documents, end_id, n: joined(documents).unfold(0, n + 1, n),
        "The end token is missing. Without it, the model takes the next document for the continuation of this one, and "
        "never learns to stop.")
mistake("pack", lambda documents, end_id, n: joined(documents, before=[end_id]).unfold(0, n + 1, n),
        "You put the end token *before* each document. It belongs after it, even after the last one.")
mistake("pack", between,
        "You put the end token only *between* documents. The last one also ends.")
mistake("pack", padded, "You fill up the last block. Tokens that do not fill a block are dropped.")
mistake("pack", one_by_one,
        "You cut each document by itself, and its rest is lost. Join all documents first: a block may hold several.")
alternative("pack", lambda documents, end_id, n: torch.stack([
    part for part in joined(documents, behind=[end_id]).unfold(0, n + 1, 1)[::n]]))

# %% [markdown]
# ### Task 5 · The loss of a long text   ●●●●○ · 15 minutes · 3 points
#
# A text is longer than the context. If you cut it into windows one after the other, each window starts without any past,
# which makes the model look worse than it is. So let the windows overlap. They start at 0, `stride`, 2 · `stride` …; each
# reads up to `context` tokens and predicts the one after each of them. Count only predictions that no earlier window has
# made, so that each token but the first counts once. Return the mean over all of them, in nats.
#
# `model` takes ids of shape (1, n), n at most `context`, and returns logits of shape (1, n, vocab). `stride` is at most
# `context`. The text may be shorter than a window, and the last window may be shorter than the others.
#
# <details><summary>Hint 1: one window</summary>
#
# `window = ids[start : start + context + 1]`: it reads `window[:-1]` and predicts `window[1:]`.
# </details>
# <details><summary>Hint 2: what is new?</summary>
#
# In the first window, everything. In each later one, the first `context - stride` predictions have been made before.
# </details>
# <details><summary>Hint 3: when to stop, and what to divide by</summary>
#
# Stop when a window reaches the end of the text. Add up losses, and divide once, by `len(ids) - 1`.
# </details>

# %% nbgrader={"grade_id": "stride", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def strided_loss(
    model: Callable[[Tensor], Tensor], ids: Int[Tensor, "length"], context: int, stride: int
) -> Float[Tensor, ""]:
    """Mean cross-entropy of all tokens but the first, over windows that overlap."""
    ### BEGIN SOLUTION
    total, predicted = torch.zeros(()), 1                          # how many tokens are done; the first has no past
    for start in range(0, len(ids) - 1, stride):
        window = ids[start : start + context + 1]                  # (up to context + 1,)
        loss = F.cross_entropy(model(window[None, :-1])[0], window[1:], reduction="none")
        total = total + loss[predicted - start - 1 :].sum()
        predicted = start + len(window)
        if predicted == len(ids):
            break
    return total / (len(ids) - 1)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-stride", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("stride") as show:
    vectors, scores = show.randn(9, 6), show.randn(6, 9)

    def toy(ids):                                                  # (1, n)
        """It looks back only: the mean of all vectors so far makes the scores."""
        if ids.shape[1] > 8:
            raise ValueError(f"the model reads 8 tokens at most, not {ids.shape[1]}")
        x = vectors[ids].cumsum(dim=1) / torch.arange(1, ids.shape[1] + 1)[:, None]      # (1, n, 6)
        return 2 * x @ scores                                      # (1, n, 9)

    ids = show.randint(0, 9, 40)
    n = 8 * show.random_size(2, 4)
    for more, label in ((show.random_size(3, 8), "the last is shorter"), (1, "all are whole"), (2, "the last predicts one token")):
        show(strided_loss(toy, ids[: n + more], 8, 8), f"{n + more} tokens, windows one after the other; {label}")
    for stride in (1, 3, show.random_size(4, 7)):
        n = show.random_size(25, 32)
        show(strided_loss(toy, ids[:n], 8, stride), f"{n} tokens, context 8, stride {stride}")
    n = show.random_size(3, 7)
    show([strided_loss(toy, ids[:few], 8, 3) for few in (n, 2, 9, 10)], f"texts of {n}, 2, 9 and 10 tokens, stride 3")

# %% tags=["mistakes"]
def windows_of(model, ids, context, stride, stop=True):
    """(start, losses) of each window."""
    for start in range(0, len(ids) - 1, stride):
        window = ids[start : start + context + 1]
        yield start, F.cross_entropy(model(window[None, :-1])[0], window[1:], reduction="none")
        if stop and start + len(window) == len(ids):
            return


def everything_counts(model, ids, context, stride):
    return torch.cat([losses for _, losses in windows_of(model, ids, context, stride)]).mean()


def mean_of_means(model, ids, context, stride):
    new = [losses[context - stride if start else 0 :].mean() for start, losses in windows_of(model, ids, context, stride)]
    return torch.stack(new).mean()


def first_window_cut(model, ids, context, stride):
    new = [losses[context - stride :] for _, losses in windows_of(model, ids, context, stride)]
    return torch.cat(new).sum() / (len(ids) - 1)


def first_part(model, ids, context, stride):
    new = [losses[:stride] for _, losses in windows_of(model, ids, context, stride, stop=False)]
    return torch.cat(new).sum() / (len(ids) - 1)


def without_rest(model, ids, context, stride):
    starts = [(start, losses) for start, losses in windows_of(model, ids, context, stride) if len(losses) == context or not start]
    return torch.cat([losses[context - stride if start else 0 :] for start, losses in starts]).mean()


def stride_from_the_end(model, ids, context, stride):
    new = [losses[-stride if start else 0 :] for start, losses in windows_of(model, ids, context, stride)]
    return torch.cat(new).sum() / (len(ids) - 1)


def not_shifted(model, ids, context, stride):
    total, predicted = torch.zeros(()), 0
    for start in range(0, len(ids), stride):
        window = ids[start : start + context]
        loss = F.cross_entropy(model(window[None])[0], window, reduction="none")
        total, predicted = total + loss[predicted - start :].sum(), start + len(window)
        if predicted == len(ids):
            break
    return total / len(ids)


def inside_windows(model, ids, context, stride):
    losses = []
    for start in range(0, len(ids) - 1, stride):
        window = ids[start : start + context]
        loss = F.cross_entropy(model(window[None])[0, :-1], window[1:], reduction="none")
        losses.append(loss[max(0, context - stride - 1) if start else 0 :])
        if start + len(window) == len(ids):
            break
    return torch.cat(losses).mean()


mistake("stride", everything_counts,
        "Predictions in the overlap count twice or more. Count only those that no earlier window has made.")
mistake("stride", lambda model, ids, context, stride: strided_loss(model, ids, context, context),
        "The stride has no effect: the windows follow one another without overlap. Start them at 0, stride, 2 · stride …")
mistake("stride", mean_of_means,
        "A mean of the windows' means. The windows have different numbers of new predictions: add up all, divide once.")
mistake("stride", first_window_cut,
        "The first window loses its beginning. There is no window before it, so *all* its predictions are new.")
mistake("stride", first_part,
        "You count the *first* predictions of each window, those with the shortest past. Count the last ones: that is what "
        "the overlap is for.")
mistake("stride", without_rest, "The last window is shorter, and you leave it out. Its tokens also count.")
mistake("stride", stride_from_the_end,
        "The last window may be short. Then fewer than `stride` of its predictions are new. Leave out the first `context - "
        "stride` of a window instead.")
mistake("stride", not_shifted,
        "The model is asked for the token that it has just read. Predict the next one: labels are one position later.")
mistake("stride", inside_windows,
        "A window predicts inside itself only, so its last position has no label. Take `context + 1` tokens: read all but the "
        "last.")
mistake("stride", lambda model, ids, context, stride: strided_loss(model, ids, context, stride).exp(),
        "This is the perplexity. The task asks for its logarithm, the mean loss.")
mistake("stride", lambda model, ids, context, stride: strided_loss(model, ids, context, stride) * (len(ids) - 1),
        "This is the sum. Divide by the number of predictions, `len(ids) - 1`.")
mistake("stride", lambda model, ids, context, stride: strided_loss(model, ids, context, stride) / math.log(2),
        "This is in bits. Nats come right out of `cross_entropy`.")


def gathered(model, ids, context, stride):
    losses = [part[context - stride if start else 0 :] for start, part in windows_of(model, ids, context, stride)]
    return torch.cat(losses).mean()


def all_but_last_window(model, ids, context, stride):
    *_, (start, losses) = windows_of(model, ids, context, stride)
    return losses[context - stride if start else 0 :].sum() / (len(ids) - 1)


def one_too_few(model, ids, context, stride):
    new = [losses[context - stride + 1 if start else 1 :] for start, losses in windows_of(model, ids, context, stride)]
    return torch.cat(new).sum() / (len(ids) - 1)


def too_long_for_it(model, ids, context, stride):
    return F.cross_entropy(model(ids[None, : context + 1])[0, :-1], ids[1 : context + 2])


mistake("stride", all_but_last_window, "Only the last window counts. Add up the new losses of all windows.")
mistake("stride", one_too_few,
        "You drop one prediction of each window. Of the first all are new; of each later one, all after `context - stride`.")
mistake("stride", lambda model, ids, context, stride: (
            strided_loss(model, ids, context, stride) * (len(ids) - 1) / len(ids)),
        "You divide by the number of tokens. The first is not predicted: there are `len(ids) - 1` predictions.")
mistake("stride", too_long_for_it,
        "The model gets `context + 1` tokens. Of such a window it reads all but the last.")
alternative("stride", gathered)
alternative("stride", lambda model, ids, context, stride: torch.cat([
    losses[context - stride if start else 0 :] for start, losses in windows_of(model, ids, context, stride, stop=False)
    if start == 0 or len(losses) > context - stride]).mean())
for end in ("len(ids) + 1", "len(ids)"):
    equivalent("stride", f"range(0, len(ids) - 1, stride) → range(0, {end}, stride)",
               "The window that reaches the end comes before, and ends the loop.")
equivalent("stride", "model(window[None, :-1])[0] → model(window[None, :-1])[-1]", "There is one text.")
for change in ("if predicted == len(ids): → (deleted)", "if predicted == len(ids): → if False", "break → continue"):
    equivalent("stride", change, "Later windows have no new predictions: their sums are 0.")

# %% [markdown]
# ### Task 6 · Investigate: how much of its past does a model use?   ●●●●● · 25 minutes · 3 points
#
# A context of 128 tokens does not mean that 128 tokens are used. `loss_by_position` gives the loss of the bundled Llama at
# each position of its windows: at position 0 it has seen one token; at position 126, the last one, 127.
#
# Where does the curve become flat? Compare Shakespeare with clothing reviews. Then find out *what* is used: give the
# model the last 16 tokens of windows of a play, and before them 112 others: the right past, a past from elsewhere in the same
# play, or the right past with its tokens shuffled. How much does each of these cost on the 16? What does the model take from
# far away: the words, their order, or only the kind of text?
#
# Measure in new cells below this one; here you may use all of `txlib`. Hand in what you found as text, with a table of your
# numbers. Your teacher reads it.

# %%
from txlib import load_pretrained
from txlib.data import reviews, shakespeare, shipped
from txlib.text import load_tokenizer

FOLDER = shipped("glassllm-en")
LLAMA, TOKENIZER = load_pretrained(FOLDER, dtype=torch.float32).eval(), load_tokenizer(FOLDER)
TEXTS = {"a play": shakespeare().validation, "reviews": " ".join(review.text for review in reviews().test)}


def whole_windows(text: str, n: int = 128) -> Int[Tensor, "window length"]:
    """All whole windows of n tokens, one after the other."""
    ids = torch.tensor(TOKENIZER.encode(text))
    return ids[: len(ids) // n * n].view(-1, n)


@torch.no_grad()
def loss_by_position(windows: Int[Tensor, "window length"]) -> Float[Tensor, "positions"]:
    """The mean loss at each position: of predicting token i + 1 from tokens 0 … i."""
    logits = torch.cat([LLAMA(part).logits for part in windows.split(50)])      # (window, length, vocab)
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), windows[:, 1:], reduction="none").mean(dim=0)

# %% [markdown] nbgrader={"grade_id": "use-of-the-past", "solution": true, "grade": true, "points": 3, "locked": false, "schema_version": 3}
# <!-- BEGIN SOLUTION -->
# Mean loss by tokens seen, nats (all of both texts):
#
# | tokens seen | 1 | 2 | 3–4 | 5–8 | 9–16 | 17–32 | 33–64 | 65–127 |
# | --- | --- | --- | --- | --- | --- | --- | --- | --- |
# | Shakespeare | 5.48 | 5.00 | 4.90 | 4.91 | 4.81 | 4.84 | 4.80 | 4.77 |
# | reviews | 6.03 | 5.69 | 5.52 | 5.44 | 5.58 | 5.60 | 5.55 | 5.58 |
#
# The curve is flat from about four tokens on; in plays a little is gained up to the end (0.03 nats for the second
# half), in reviews nothing. The same last 16 tokens of a play, after four pasts of 112 tokens: the right one 4.69, one
# from elsewhere 4.80, the right one shuffled 4.81, none 4.83. So the past saves 0.14
# nats, and nearly all of that needs the right words in their order; that the text is a play at all saves 0.02 or 0.03. The
# model is small and was trained on one author, so this says nothing about large ones.
# <!-- END SOLUTION -->

# %% [markdown] tags=["rubric"]
# 1 point: loss against position for two texts, from enough windows that the curve is not noise. 1 point: where it becomes
# flat, as the numbers show it. 1 point: the three pasts compared on the same last tokens, with a
# conclusion that the numbers carry, and a limit of it (one small model).

# %%
check.summary()
