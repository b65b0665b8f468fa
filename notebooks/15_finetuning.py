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
# **You need** lessons 10 and 14. **It takes** about 60 minutes to read and try; after section 4 is a good place for a
# break. All cells together run in about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: two labels
#
# *In her left hand* and *they left*: one spelling, two words. For each meaning of five such words we have two labeled
# sentences, and no more. Can a program tell the meanings apart in all other sentences? We also have the encoder that
# lesson 14 pre-trained. It has read a million words.

# %% tags=["recorded"]
import json
import random
from collections import defaultdict, namedtuple
from copy import deepcopy
from statistics import mean

import torch
import torch.nn.functional as F
from torch import nn

from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress, prove_equal
from txlib import load_pretrained, plots
from txlib.data import pad, shipped, word_senses
from txlib.devices import default_device
from txlib.paths import DATA
from txlib.text import BytePairEncoder

# %% [markdown]
# Load the encoder, its tokenizer and the sentences, and read two of them:

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
# We turn a word in a sentence into a vector in four ways. The first two are **baselines**, simple rivals that every
# result must be compared with: *counting* marks the token to the left of the word and the one to its right; the
# *neighbors' embeddings* are these two rows of BERT's table, one after the other. The third is BERT's last vector *of
# the word*, which has read the whole sentence. A control goes with it: the same network with random weights.


# %% tags=["recorded"]
torch.manual_seed(0)
untrained = type(encoder)(encoder.config).to(here).eval()


@torch.no_grad()
def views(text, word):
    ids = torch.tensor([CLS, *encode(text)[:60], SEP], device=here)  # (n,)
    i = [pieces.token(id) for id in ids.tolist()].index("▁" + word)
    neighbors = ids[[i - 1, i + 1]]  # (2,)
    table = encoder.embedding.weight  # (vocab, d_model)
    return {
        "counting neighbors": F.one_hot(neighbors, len(table)).flatten().float(),
        "neighbors' embeddings": table[neighbors].flatten(),
        "BERT's last layer": encoder(ids[None]).last_hidden_state[0, i],
        "random weights": untrained(ids[None]).last_hidden_state[0, i],
    }


# %% [markdown]
# The rule is the same for all: average the labeled vectors of each meaning, and give every other sentence the meaning
# of the more similar average (cosine, lesson 01). If (1, 0) and (0.8, 0.6) are labeled 0, their average is (0.9, 0.3),
# and a new vector (0.6, 0.8) has cosine 0.82 with it.


# %% tags=["recorded"]
def by_averages(vectors, labels, count, rng):  # (text, d), (text,)
    x = F.normalize(vectors, dim=-1)  # (text, d)
    shown = []  # the labeled texts of each meaning
    for meaning in (0, 1):
        texts = (labels == meaning).nonzero()[:, 0].tolist()
        shown.append(rng.sample(texts, count))
    average = torch.stack([x[texts].mean(dim=0) for texts in shown])  # (2, d)
    cosine = x @ F.normalize(average, dim=-1).T  # (text, meaning)
    right = (cosine.argmax(dim=-1) == labels).float()  # (text,)
    right[shown[0] + shown[1]] = float("nan")  # these were not asked
    return right.nanmean().item()


# %% [markdown]
# Take the mean over five words and 20 draws of the labeled sentences:

# %%
COUNTS = (1, 2, 4, 8)
right = defaultdict(list)  # (view, count) → fractions, one for each word and draw
for word, texts in progress([*senses.items()], "reading"):
    labels = torch.tensor([label for _, label in texts])  # (text,)
    read = [views(text, word) for text, _ in texts]
    for name in read[0]:
        vectors = torch.stack([view[name] for view in read]).cpu()  # (text, d)
        for count in COUNTS:
            for draw in range(20):
                fraction = by_averages(vectors, labels, count, random.Random(draw))
                right[name, count].append(fraction)
expect("BERT, two labels per meaning", mean(right["BERT's last layer", 2]), 0.9, 0.99)

# %% [markdown]
# The figure shows the means for all four:

# %% jupyter={"source_hidden": true}
curves = {name: [mean(right[name, count]) for count in COUNTS] for name in views("left", "left")}
plots.lines(
    {name: (COUNTS, curve) for name, curve in curves.items()}, xscale="log", marker="o",
    title="With two labels per meaning, BERT does as well as the best baseline with eight",
    xlabel="labeled sentences per meaning", ylabel="meaning right (a coin: 0.5)",
    alt="Lines over 1, 2, 4 and 8 labels per meaning: " + "; ".join(f"{name} {curve[0]:.2f} to {curve[-1]:.2f}" for name, curve in curves.items()))

# %% [markdown]
# This is what pre-training buys. With two labels per meaning BERT is right 19 times in 20; the neighbors' embeddings
# need eight for that. The same network with random weights is little better than a coin: with each of three seeds
# (`data/few_labels.py`) it gets 54 to 55% with one label, and 62 to 64% with eight. (Neighbors are a strong baseline,
# since the sentences were found by a rule that reads one or two neighbors. BERT had read most of the sentences before,
# but never a meaning.)

# %% [markdown]
# ## 2 One encoder, five heads
#
# ### 2.1 The idea in one picture
#
# Pre-train once, for days (BERT) or for an hour (ours). Then, for each task, put *one linear layer* on top, the orange
# box.

# %% jupyter={"source_hidden": true}
figures.task_heads()

# %% [markdown]
# $T_i$ is the encoder's last vector of token $i$, and $C$ its `pooled` vector (lesson 14). The weights $W$, $S$, $E$
# and $v$ are new, and small:
#
# | task | input | what comes out |
# | --- | --- | --- |
# | label, for a text or a pair | `[CLS] A [SEP]`, or `[CLS] A [SEP] B [SEP]` | $\text{softmax}(W C)$ over the labels |
# | tags | `[CLS] A [SEP]` | $\text{softmax}(W T_i)$ over the tags, for each $i$ |
# | span | `[CLS] question [SEP] text [SEP]` | $\text{softmax}_i(S \cdot T_i)$ and $\text{softmax}_i(E \cdot T_i)$ over the positions |
# | multiple choice | `[CLS] A [SEP] B_c [SEP]` for each $c$ | $\text{softmax}_c(v \cdot C_c)$ over the choices |
#
# (Devlin et al. 2019, §4 and figure 4.) With $d = 128$ and two labels the new layer has 258 numbers, biases included;
# the encoder has more than a million.
#
# ### 2.2 Real data for each
#
# The texts to label are reviews. The pairs are verses: does the second say what the first says? In half of the pairs
# the second is a *neighbor* of the right one instead. Spans and tags come from Shakespeare, by a rule: *who says this
# line?*, and which words are names of the play's own characters? Choices follow SWAG (Zellers et al. 2018), which the
# paper uses: the beginning of a verse, its own ending, and those of three verses nearby. Here are a question, a tagged
# line and a choice:

# %% tags=["recorded"]
from txlib.data import reviews, sentence_pairs, spans, tags, verse_endings

question = min(spans().train, key=lambda question: len(question.context))
print(question.question, "→", question.answer, f"(character {question.start})")
with_names = [tagged for tagged in tags().train if "I-PER" in tagged.tags]
print(*(f"{word}/{tag}" for word, tag in zip(*with_names[7])))
begun, endings, true_ending = verse_endings().test[420]
print(begun)
for c, ending in enumerate(endings):
    print(c, "✓" if c == true_ending else " ", ending)

# %% [markdown]
# ### 2.3 Rows and targets
#
# Each task becomes rows (A, B, target); B is `None` where there is one text. For a span, the target is two positions in
# the row, those of its first and last token:


# %% tags=["recorded"]
def of_span(asked):
    question, answer = encode(asked.question), pieces.encode(asked.answer)
    before = pieces.encode(asked.context[: asked.start])
    after = pieces.encode(asked.context[asked.start + len(asked.answer) :])
    start = len(question) + 2 + len(before)  # [CLS] and [SEP] come first
    return question, [*before, *answer, *after], (start, start + len(answer) - 1)


a, b, (start, end) = of_span(question)
row = [CLS, *a, SEP, *b, SEP]
print(f"{start} to {end} of {len(row)} tokens: {pieces.decode(row[start : end + 1])}")

# %% [markdown]
# For tags, the target is a label for the first piece of each word; further pieces, `[CLS]` and `[SEP]` get −100, which
# no loss counts. So a long word counts no more than a short one (Devlin et al. 2019, §5.3):


# %% tags=["recorded"]
def of_tags(tagged):
    ids, labels = [], [-100]  # [CLS]
    for word, tag in zip(tagged.words, tagged.tags):
        parts = encode(word)
        ids += parts
        labels += [int(tag != "O"), *[-100] * (len(parts) - 1)]
    return ids, None, [*labels, -100]  # [SEP]


a, _, labels = of_tags(with_names[7])
for id, label in zip([CLS, *a, SEP], labels):
    print(f"{pieces.token(id)}/{label}", end=" ")

# %% [markdown]
# The target of a review or a pair is its label. A question with four choices is four rows, each with the number of the
# right one. Turn all training data into rows:


# %% tags=["recorded"]
def rows_of(question):
    begun, endings, right = question
    return [(encode(begun)[:40], encode(ending)[:40], right) for ending in endings]


everyone = [(encode(text)[:40], None, label) for text, label in reviews().train]
verse_pairs = [(encode(a), encode(b), label) for a, b, label in sentence_pairs().train]
all_spans = [row for row in map(of_span, spans().train) if len(row[0] + row[1]) <= 220]
all_tags = [of_tags(tagged) for tagged in with_names]
choices = [rows_of(question) for question in verse_endings().train]
print(f"{len(everyone):,} reviews, {len(verse_pairs):,} pairs, {len(all_tags):,} lines",
      f"with names, {len(all_spans):,} spans, {len(choices):,} choices")

# %% [markdown]
# ### 2.4 A batch
#
# Rows of different lengths become one batch, as in lesson 14: pieces, a mask of the real ones, and segments (0 for A, 1
# for B).

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


short = [(encode("he left"), None, 0), (encode("he left"), encode("he went"), 1)]
for name, tensor in zip(("input_ids", "attention_mask", "segments"), collate(short)):
    print(f"{name:14} {tensor.tolist()}")

# %% [markdown]
# ### 2.5 Heads and losses
#
# One class serves all tasks. It scores `pooled`, for an output per row, or each token's vector:


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
# All losses are cross-entropies, over labels, tags or choices. For a span the *positions* are the classes: one softmax
# over all tokens for the start, one for the end. If three tokens have the start scores 2, 1 and 0, and the answer
# starts at the first, softmax gives (0.665, 0.245, 0.090), and the start's loss is −log 0.665 = 0.41. `F.cross_entropy`
# wants the classes in axis 1. In logits of (batch, labels) and (batch, n, 2) they are there already; those of tags and
# choices have to be moved:


# %% tags=["recorded"]
def of_each_token(logits, target):  # (batch, n, tags), (batch, n)
    return F.cross_entropy(logits.transpose(1, 2), target)


def of_choice(logits, target):  # (4 · questions, 1), (4 · questions,)
    return F.cross_entropy(logits.view(-1, 4), target[::4])


def targets(drawn):  # of rows
    found = [target for *_, target in drawn]
    of_tokens = isinstance(found[0], list)
    return (pad(found, -100) if of_tokens else torch.tensor(found)).to(here)


# %% [markdown]
# A task has examples, a loss, a head (how many outputs, and whether it reads `pooled`), and a schedule (how many
# steps, and how many examples in each). An example is a list of rows: four for a choice, one for the others.

# %% tags=["recorded"]
Task = namedtuple("Task", "examples loss_of outputs pooled steps batch")
TASKS = {
    "reviews": Task([[row] for row in everyone], F.cross_entropy,
        outputs=2, pooled=True, steps=80, batch=16),
    "pairs": Task([[row] for row in verse_pairs], F.cross_entropy,
        outputs=2, pooled=True, steps=80, batch=16),
    "tags": Task([[row] for row in all_tags], of_each_token,
        outputs=2, pooled=False, steps=50, batch=16),
    "spans": Task([[row] for row in all_spans], F.cross_entropy,
        outputs=2, pooled=False, steps=45, batch=8),
    "choice": Task(choices, of_choice,
        outputs=1, pooled=True, steps=80, batch=8),
}

# %% [markdown]
# A new head can only guess. If it guesses evenly, its loss is about $\log 2 = 0.7$ with two labels, $\log 4 = 1.4$ with
# four choices, and $\log 186 = 5.2$ with 186 positions:

# %% tags=["nbval-ignore-output"]
for name, task in TASKS.items():
    drawn = [*task.examples[0], *task.examples[1]]
    input_ids, *masks = collate(drawn)
    logits = Head(encoder, task.outputs, task.pooled).to(here)(input_ids, *masks)
    print(f"{name:8} {list(input_ids.shape)} → logits {list(logits.shape)},",
          f"loss {task.loss_of(logits, targets(drawn)):.1f}")

# %% [markdown]
# (Random weights may lean to one side. The tags' head leans to *name*, and pays for it: hardly any word is one.)
#
# `txlib.models` has these heads: `BertForSequenceClassification`, `…TokenClassification`, `…QuestionAnswering` and
# `…MultipleChoice`, which differ in their `score`. Same weights, same numbers?

# %%
from txcourse.lesson import show_source
from txlib.models import BertForTokenClassification, Encoder

rows = collate(all_tags[:8])  # (8, n) each
theirs = BertForTokenClassification(encoder.config, base=encoder).to(here).eval()
ours = Head(encoder, 2, pooled=False).to(here).eval()
ours.linear.load_state_dict(theirs.classifier.state_dict())
with torch.no_grad():
    prove_equal(ours(*rows), theirs(*rows).logits, what="Our tagger and the library's")
show_source(BertForTokenClassification.score)

# %% [markdown]
# ## 3 Features or fine-tuning?
#
# A shop has 400 reviews, labeled as friendly or not (*sentiment analysis*). Should we train only the head, or
# everything? There are two ways to use a pre-trained model:
#
# - **feature-based**: the encoder is frozen. It reads each text once, and something small is trained on its vectors.
#   This is how ELMo was used (Peters et al. 2018). A linear layer on frozen vectors is also called a **linear probe**;
# - **fine-tuning**: the head is new, and *everything* is trained, with a small learning rate. This is how GPT-1
#   (Radford et al. 2018) and BERT are used.


# %% tags=["recorded"]
from torch.optim.lr_scheduler import OneCycleLR


def fine_tune(model, task, examples, seed=0, lr=5e-4, what="fine-tuning"):
    torch.manual_seed(seed)
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    schedule = OneCycleLR(optimizer, lr, task.steps, pct_start=0.1)
    for _ in progress(range(task.steps), what):
        chosen = rng.sample(examples, min(task.batch, len(examples)))
        drawn = sum(chosen, [])  # one list of all their rows
        loss = task.loss_of(model(*collate(drawn)), targets(drawn))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


# %% [markdown]
# (The rate rises during a tenth of the steps, then falls, as in lesson 07.) A text's features are the mean of its
# hidden vectors, scaled to length 8. The baseline, *counting words*, has a 1 for each piece that occurs:


# %% tags=["recorded"]
@torch.no_grad()
def text_vectors(examples):
    ids, real, segments = collate(examples)  # (example, n) each
    hidden = encoder(ids, real, segments).last_hidden_state  # (example, n, d_model)
    total = (hidden * real[..., None]).sum(dim=1)  # (example, d_model)
    return 8 * F.normalize(total, dim=-1).cpu()


def bags(examples):  # (review, vocab)
    bag = torch.zeros(len(examples), len(pieces))
    for row, (ids, *_) in zip(bag, examples):
        row[ids] = 1
    return bag


# %% [markdown]
# Both get the same linear layer, with a weight decay of their own:


# %% tags=["recorded"]
def linear_on(features, labels, decay, steps=100):  # (example, feature), (example,)
    layer = nn.Linear(features.shape[1], 2)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.02, weight_decay=decay)
    for _ in range(steps):
        loss = F.cross_entropy(layer(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return layer


def accuracy(logits, examples):
    right = logits.argmax(dim=-1).cpu() == targets(examples).cpu()  # (example,)
    return right.float().mean().item()


judged = [(encode(text)[:40], None, label) for text, label in reviews().test]

# %% [markdown]
# Guess first. There are 400 labels, and 341 other reviews to test on:

# %% jupyter={"source_hidden": true}
predict("four-hundred-reviews", "Which way is best with 400 labeled reviews, on average over three draws?",
        "counting words", "features of our BERT", "fine-tuning it")

# %% [markdown]
# Try each way on one draw of 400. *Random* is the same architecture without any pre-training:

# %% tags=["nbval-ignore-output"]
few = random.Random(0).sample(everyone, 400)
labels, reached = targets(few).cpu(), {}  # (review,)
layer = linear_on(bags(few), labels, decay=0.1)
reached["counting words"] = accuracy(layer(bags(judged)), judged)
layer = linear_on(text_vectors(few), labels, decay=1.0)
reached["features"] = accuracy(layer(text_vectors(judged)), judged)
torch.manual_seed(0)
for name, base in {"random": Encoder(encoder.config), "fine-tuned": encoder}.items():
    head = Head(deepcopy(base), 2, pooled=True).to(here)
    fine_tune(head, TASKS["reviews"], [[row] for row in few], what=name)
    with torch.no_grad():
        reached[name] = accuracy(head(*collate(judged)), judged)
print(*(f"{name:14} {right:.0%}" for name, right in reached.items()), sep="\n")
expect("Right, fine-tuned", reached["fine-tuned"], 0.6, 0.8)

# %% [markdown]
# One draw says little: with 341 reviews each number has a standard deviation of 2.5 points.
# `python data/few_labels.py 0 1 2` has repeated this with three draws of 16 to 400 labels, also with the features of
# MiniLM, a BERT of 22.7 million parameters that was trained on a billion sentence pairs. Is one way ahead of counting
# on the *same* labels? Subtract, draw by draw:

# %%
recorded = json.loads((DATA / "few_labels.json").read_text())
counted = recorded["reviews"]["counting words"]
SIZES, gains = ("16", "64", "400"), {}  # name: least, mean, greatest
for size in SIZES:
    for name in ("BERT's features", "MiniLM's features", "fine-tuned"):
        found = recorded["reviews"][name][size]
        gain = [found[draw] - counted[size][draw] for draw in found]
        gains[f"{size}, {name}"] = (min(gain), mean(gain), max(gain))
print(f"counting words, 400 labels: {mean(counted['400'].values()):.0%} right")
predicted("four-hundred-reviews", "fine-tuning it", "By a few points.")

# %% [markdown]
# In the figure, a dot is the mean of three draws:

# %% jupyter={"source_hidden": true}
plots.ranges(
    gains, title="Only fine-tuning on 400 labels beats counting in all three draws", mark=0.0,
    groups={size: [name for name in gains if name.startswith(f"{size},")] for size in SIZES},
    xlabel="gain over counting words (fraction of test reviews), three draws",
    alt="A dot and a range for each way and number of labels: "
    + "; ".join(f"{name} {low:+.2f} to {high:+.2f}" for name, (low, _, high) in gains.items()),
)

# %% [markdown]
# With 16 and 64 labels each way is within three points of counting, on average. With 400, fine-tuning is ahead in each
# of these three draws, by one to six points, but not in the one that we tried above; MiniLM's features are between
# three behind and five ahead. (In the draw above, the same architecture *without* pre-training stayed more than ten
# points below.) So counting is hard to beat here.
#
# For BERT-base, on names in news (CoNLL, section 5), the paper's Table 7 has F1 96.4 fine-tuned, and with features 96.1
# from the last four layers joined, 94.9 from the last, 91.0 from the embeddings. So features lose little, and each text
# is read once for all tasks.
#
# **Break it.** Why a *small* learning rate? Fine-tune once more, with twenty times the rate. Guess first:

# %% jupyter={"source_hidden": true}
predict("too-large-a-rate", "At twenty times the learning rate, how many reviews are right?",
        "about as many", "a few points fewer", "no more than with random weights")

# %% [markdown]
# Everything else stays as it was:

# %% tags=["nbval-ignore-output"]
head = Head(deepcopy(encoder), 2, pooled=True).to(here)
fine_tune(head, TASKS["reviews"], [[row] for row in few], lr=1e-2, what="too fast")
with torch.no_grad():
    logits = head(*collate(judged))  # (review, label)
print(f"right {accuracy(logits, judged):.0%};",
      f"called friendly {(logits.argmax(dim=-1) == 1).float().mean():.0%}")
predicted("too-large-a-rate", "no more than with random weights")

# %% [markdown]
# It gives every review the same answer. Our suspicion: steps this large overwrite what pre-training has learned, and
# 400 reviews cannot teach it again. If so, the head alone should still learn at this rate, with the encoder frozen; and
# of the two encoders, only the frozen one's features should be worth something afterwards. Recorded, three seeds each:

# %%
for name in recorded["too fast"]["0"]:
    seeds = recorded["too fast"].values()
    print(f"{name:44}", *(f"{run[name]:.0%}" for run in seeds))

# %% [markdown]
# Both predictions hold. The head alone gets 61 to 65%. A linear probe on the frozen encoder's features gets 67 to 72%;
# on those of the encoder that was trained too fast, it does no better than giving every review the same answer.

# %% [markdown]
# ## 4 The other tasks, and their baselines
#
# **Tags.** Few words are names, so never tagging anything is nearly always right. **F1** is the harmonic mean of the
# fraction of tagged words that are names (*precision*) and the fraction of names that are tagged (*recall*). If 3 of 4
# tagged words are names, and 3 of 6 names are tagged, it is $2 \cdot 3 / (4 + 6) = 0.6$. The test play is *Julius
# Caesar*. Of its names only *Portia* also occurs as a name in a training play.

# %% tags=["recorded"]
def counts(said, true):  # (word,) each: hits, words tagged, names
    return [x.sum().item() for x in (said & true, said, true)]


def tag_counts(head, examples):
    with torch.no_grad():
        said = head(*collate(examples)).argmax(dim=-1) == 1  # (batch, n)
    target = targets(examples)  # (batch, n): −100 where nothing counts
    return counts(said & (target >= 0), target == 1)


def f1(hits, said, true):
    return 2 * hits / (said + true)


tested = tags().test[:400]

# %% [markdown]
# The baseline is one line: a word is a name if it has a capital letter and never occurs without one in the training
# plays. It knows nothing of sentences. Which is better?

# %% jupyter={"source_hidden": true}
predict("tagger-or-rule", "Which finds names better?", "the fine-tuned BERT, clearly", "both about the same",
        "the rule, clearly")

# %% [markdown]
# Write the rule, and train the head:

# %% tags=["nbval-ignore-output"]
lowercase = {word for tagged in tags().train for word in tagged.words if word.islower()}


def looks_like_a_name(word):
    return len(word) > 1 and word[0].isupper() and word.lower() not in lowercase


head = Head(deepcopy(encoder), 2, pooled=False).to(here)
tagger = fine_tune(head, TASKS["tags"], TASKS["tags"].examples, what="tags")

# %% [markdown]
# Count the hits, the words tagged, and the names:

# %% tags=["nbval-ignore-output"]
said = [looks_like_a_name(word) for tagged in tested for word in tagged.words]
true = [tag == "I-PER" for tagged in tested for tag in tagged.tags]
found = {
    "fine-tuned": tag_counts(tagger, [of_tags(tagged) for tagged in tested]),
    "the rule": counts(torch.tensor(said), torch.tensor(true)),
}
for name, (hits, tagged, names) in found.items():
    print(f"{name:10} {hits} hits of {tagged} tagged, {names} names: precision",
          f"{hits / tagged:.2f}, recall {hits / names:.2f}, F1 {f1(hits, tagged, names):.2f}")
predicted("tagger-or-rule", "the rule, clearly")

# %% [markdown]
# The rule finds every name, and tags some other words.
#
# **Spans.** The head gives each token a score for being the start and one for being the end. The best span is the pair
# of positions with the highest sum, the end not before the start. If two tokens have the start scores (1, 3) and the
# end scores (4, 0), it is the first token alone, with 5; the highest sum, 3 + 4, would run backward. The baseline finds
# the line, then the name in front of it.
#
# **Pairs and choices.** The baseline counts the words that both texts share: yes to the half of the pairs that shares
# more, and of four endings the one that shares most. As another rival, take BERT without fine-tuning: for pairs the
# cosine of two feature vectors, for choices the next-sentence head of lesson 14.
#
# `data/few_labels.py` has recorded the baselines, and the heads from three seeds, on the encoder and on one with random
# weights:

# %%
print(f"{'':9}{'guess':>6}{'baseline':>10}   fine-tuned, each seed   from random weights")
for task, (guess, baseline) in recorded["baselines"].items():
    ways = (recorded[kind][task].values() for kind in ("tasks", "tasks, random weights"))
    rows = ["  ".join(f"{right:.2f}" for right in seeds) for seeds in ways]
    print(f"{task:9}{guess:6.2f}{baseline:10.2f}   {rows[0]:24}{rows[1]}")
for name, reach in recorded["untrained"].items():
    print(f"not fine-tuned: {name} {reach:.2f}")

# %% [markdown]
# In each of these tasks a rule wins or ties, against heads that trained for only 45 to 80 steps. Our data were made by
# rules, and a rule can undo them. (Labels from people need not be safer: on the reviews of section 3 counting words
# came close.) The span reader is no better than a guess among the speakers. Still, the encoder is worth something: from
# random weights, the same steps teach nothing about pairs and endings, and less about names with two seeds of three. On
# pairs the cosine of frozen features beats the fine-tuned head, which learned nothing with one of the seeds. So look
# for the simplest baseline first, and run more than one seed.

# %% [markdown]
# ## 5 How GPT-1 did it, and how models are compared
#
# ### 5.1 Start, delimiter, extract
#
# Our heads read `[CLS]`, the first token. GPT-1, months earlier (Radford et al. 2018, §3.2), reads from the left, so
# only the last token has seen everything. It puts a new token there, *extract*, and the layer reads its vector. A
# *delimiter*, here `$`, separates two texts (figure 1 of the paper):
#
# | task | rows |
# | --- | --- |
# | classification | `⟨start⟩ i love it ⟨extract⟩` |
# | entailment | `⟨start⟩ a king sleeps $ a man rests ⟨extract⟩` |
# | similarity | both orders: `⟨start⟩ A $ B ⟨extract⟩`, `⟨start⟩ B $ A ⟨extract⟩` |
# | choice | one row per choice: `⟨start⟩ the king $ sleeps ⟨extract⟩`, … |
#
# For a similarity, the vectors of both rows are added before the linear layer; for a choice, each row gets a score, and
# a softmax runs over them. During fine-tuning the model also keeps predicting the next token: the loss is
# $L_\text{task} + 0.5 L_\text{language}$ (§3.2, §4.1). GPT-2 is not fine-tuned at all: it gets the task as text
# (lesson 12).
#
# ### 5.2 The benchmarks by name (second reading)
#
# To say "better", all models must be asked the same. This table is for looking things up. **GLUE** (Wang et al. 2019)
# is a collection of such tasks:
#
# | task | asks | train | head | GPT-1 | BERT-base | BERT-large |
# | --- | --- | --- | --- | --- | --- | --- |
# | MNLI | does B follow from A, contradict it, or neither? | 392,000 | pair | 82.1 | 84.6 | 86.7 |
# | QQP | are these two questions the same? | 363,000 | pair | 70.3 | 71.2 | 72.1 |
# | QNLI | does the sentence answer the question? | 108,000 | pair | 87.4 | 90.5 | 92.7 |
# | SST-2 | is the movie review friendly? | 67,000 | single | 91.3 | 93.5 | 94.9 |
# | CoLA | is the sentence acceptable? | 8,500 | single | 45.4 | 52.1 | 60.5 |
# | STS-B | how alike are both, 0 to 5? | 5,700 | pair, a number | 80.0 | 85.8 | 86.5 |
# | MRPC | do both say the same? | 3,500 | pair | 82.3 | 88.9 | 89.3 |
# | RTE | does B follow from A? | 2,500 | pair | 56.0 | 66.4 | 70.1 |
#
# (Devlin et al. 2019, Table 1: accuracy, but F1 for QQP and MRPC, Spearman's correlation for STS-B, and Matthews' for
# CoLA. MNLI is the *matched* half; the ninth task, WNLI, is left out.) Besides GLUE there are **SQuAD** (Rajpurkar et
# al. 2016), 100,000 questions whose answer is a span in Wikipedia, **CoNLL-2003** for tags of names, and **SWAG** for
# multiple choice, where BERT-base gets 81.6% on the development set, a network on ELMo's features 59.1%, and GPT-1
# 78.0% on the test set (Table 4). BERT was fine-tuned for each of them, with heads like yours. BERT-base's largest gain
# over GPT-1 is on the smallest task: 10.4 points on RTE.
#
# **Beyond English**: *XLM-R* (Conneau et al. 2019) is RoBERTa on 100 languages at once. Fine-tuned on English examples
# only, it does the task in the others as well: on XNLI, which is MNLI in 15 languages, 80.9% on average.
#
# ## 6 What do its heads look at?
#
# The encoder helped to tell meanings apart. What does it do inside? Clark et al. (2019) asked this of BERT-base. Ours
# is small. MiniLM is a real one, 6 layers of 12 heads with $d = 384$; `data/few_labels.py` has run the cells below on
# it and recorded its numbers. Take all attention weights on a text:


# %% tags=["recorded"]
from txlib.attention import recording

bert, ends, tokens_of = deepcopy(encoder).cpu(), (CLS, SEP), encode


@torch.no_grad()
def weights_of(ids):  # [CLS] … [SEP]
    with recording(bert) as seen:
        bert(torch.tensor([ids]))
    weights = [weight[0][0] for weight in seen.values()]  # (head, query, key) each
    return torch.stack(weights)  # (layer, head, query, key)


# %% [markdown]
# ### 6.1 Habits
#
# Measure six things for each head, over real sentences, counting only queries that are ordinary tokens:
#
# - **two back**, **previous** and **next**: the mean weight on the token two to the left, one to the left, one to the
#   right. A head that gives it most of its weight is an **offset head**;
# - **[CLS]** and **[SEP]**: the mean weight on the first and on the last token. (**Separator heads**);
# - **spread**: over what fraction of the tokens the weight is spread. For weights (½, ½, 0, 0) the entropy
#   $H = -\sum_j w_j \log w_j$ is $\log 2$, and $e^H / n = 2/4$; it is 1 when all get the same. (**Broad heads**.)


# %% tags=["recorded"]
def measures(ids):
    weight = weights_of(ids)[:, :, 1:-1]  # (layer, head, n − 2, n)
    entropy = torch.special.entr(weight).sum(dim=-1)  # −w log w: (layer, head, n − 2)
    return {
        "two back": weight.diagonal(-1, -2, -1).mean(dim=-1),  # row r is token r + 1
        "previous": weight.diagonal(0, -2, -1).mean(dim=-1),
        "next": weight.diagonal(2, -2, -1).mean(dim=-1),
        "[CLS]": weight[..., 0].mean(dim=-1), "[SEP]": weight[..., -1].mean(dim=-1),
        "spread": entropy.exp().mean(dim=-1) / len(ids),
    }  # (layer, head) each


# %% [markdown]
# Take the mean over thirty verses and thirty reviews:


# %% tags=["recorded"]
from txlib.data import verses


def habits():
    texts = [modern for _, modern in verses().test[:30]]
    texts += [review.text for review in reviews().test[:30]]
    found = [measures([ends[0], *tokens_of(text)[:38], ends[1]]) for text in texts]
    return {kind: sum(one[kind] for one in found) / len(found) for kind in found[0]}


# %% [markdown]
# Print them with MiniLM's numbers on the right:

# %% tags=["nbval-ignore-output"]
kinds = habits()
print("strongest, heads above one half: our small BERT      MiniLM, recorded")
for kind, values in kinds.items():
    best, above = recorded["MiniLM"]["habits"][kind]
    shown = f"{values.max():.2f}  {(values > 0.5).sum():2} of {values.numel()}"
    print(f"{kind:33}{shown:20}{best:.2f}  {above:2} of 72")

# %% [markdown]
# Both models have offset heads and broad heads. In BERT-base over half of the attention in layers 6 to 10 goes to
# `[SEP]`. Clark et al. think that heads rest there: one that finds nothing must look somewhere, since its weights add
# up to 1. In MiniLM 15 of 72 heads give most of their weight to `[CLS]` instead; in our small BERT no head gives half
# to either on average.
#
# Which heads are these? Here is one sentence, a row per layer and a column per head. Find the offset heads and the
# broad ones. In Jupyter, click on a head to enlarge it.

# %% tags=["nbval-ignore-output"]
from txcourse import explore

ids = [ends[0], *tokens_of("The king's dress was unbelievable."), ends[1]]
names_of = [pieces.token(id) for id in ids]
explore.all_heads(weights_of(ids), rows=names_of, columns=names_of, first=1)

# %% [markdown]
# <details><summary>The answer</summary>
#
# In our small BERT, the offset heads are in layer 1: head 1 looks at the next token, head 3 at the previous one, head 4
# mostly at the one two back. Head 2 is broad; layer 2 is mixed. Layers 3 and 4 agree on `[SEP]`: all heads but one
# give it 40% to 60% of their weight here.
# </details>

# %% [markdown]
# ### 6.2 Grammar
#
# Clark et al. (§4) asked more: does a head find, say, the noun that belongs to an article? They took the word that gets
# the *most* weight as the head's answer, on sentences that people had parsed, next to the best fixed offset. In
# BERT-base single heads found the noun of an article in 94%, the verb of an object in 87%.
#
# We have no parsed sentences, so `data/few_labels.py` makes 160, such as *the man loved the old tree .* There may be
# adjectives in between, so that no fixed offset is always right. The best head and the best offset are chosen on half
# of the sentences and judged on the other half:

# %%
print("                   best offset   best head: our small BERT, MiniLM")
for kind, (small, offset) in recorded["small BERT"]["grammar"].items():
    large = recorded["MiniLM"]["grammar"][kind][0]
    print(f"{kind:19}{offset:11.0%}{small:26.0%}{large:9.0%}")

# %% [markdown]
# In our small BERT the best heads are no better than the best offset, except perhaps for objects (80 sentences judge
# it, and one more or less is 1.2 points); MiniLM's are far better.
#
# ### 6.3 What is *it*?
#
# *The animal didn't cross the street because it was too tired.* What was too tired? And if the end is *too wide*? In a
# famous picture one head of a translation model looks from *it* to *animal*, and with *wide* to *street*. One picture
# is one head. So `data/few_labels.py` asked all heads, on eight such pairs of sentences: *the box does not fit into the
# bag because it is too big* (or *small*), *the fish ate the bread because it was hungry* (or *sweet*) … A head that
# knows what *it* is gives more weight to the first noun in the first sentence, and to the second noun in its twin. How
# many heads do, and how many do the opposite, of all heads in all eight pairs?

# %%
for model in ("small BERT", "MiniLM"):
    correctly, wrong_way, total = recorded[model]["it"]
    print(f"{model:10} {correctly} correctly, {wrong_way} the wrong way, of {total}")

# %% [markdown]
# Hardly any head changes sides: nearly all give more weight to the same noun in both sentences, whatever the end says.
# In MiniLM 23 of the 37 that change do it correctly, and a coin falls as unevenly about one time in five. So a head
# that finds the noun in *one* sentence shows little: give it the twin before you believe it.

# %% [markdown]
# ## 7 Three architectures side by side
#
# You have now built all three. They are made of the same blocks, and differ in which tokens may read which:

# %% jupyter={"source_hidden": true}
figures.architectures()

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
# **Two half-truths.** *“Transformers are autoregressive”*: decoders are. *“They process a text one word after the
# other”*: only while they *write*. In reading and in training all positions are computed at once (lesson 10).
#
# **Why did decoders win where one model is to do everything?** Our explanation: they learn from every token, they
# write, and a task put as text needs no head.
#
# **What it costs.** Ten fine-tuned copies of BERT-base for ten tasks are 1.1 billion numbers, and a text that all ten
# read needs ten passes. With features it is one encoder, ten heads of 1,538 numbers, and one pass. (*Adapters* and
# *LoRA* train a few new numbers per layer.) To fine-tune for longer: `txlib finetune bert --task reviews`.
#
# *Second reading.* **T5** (Raffel et al. 2020) puts every task as text in, text out: `cola sentence: he are here` in,
# `unacceptable` out. It is pre-trained by *span corruption*: one mark replaces each hidden stretch, and the decoder
# writes what was there. *Flan-T5* (Chung et al. 2022) is T5, fine-tuned on some 1,800 tasks worded as instructions.
# **BART** (Lewis et al. 2020) reads a text that is damaged in more ways and writes the whole text anew.
#
# *Speech.* Whisper (Radford et al. 2022) cuts sound into 100 frames per second, each the loudness in 80 bands of
# frequency, and two convolutions halve their number. The rest is an encoder and a decoder as in lesson 08. HuBERT (Hsu
# et al. 2021) is BERT on sound: it guesses the *cluster* of each hidden vector, since sound has no vocabulary.

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. A tagger reads `Cap · ulet · speaks`, tags `I-PER`, `O`. Which labels do the three pieces get?**
#
# <details><summary>A. I-PER, I-PER, O</summary>
#
# Then long words would count more than short ones.
# </details>
# <details><summary>B. I-PER, −100, O</summary>
#
# Right. The first piece speaks for its word, the others are not counted.
# </details>
# <details><summary>C. I-PER, O, O</summary>
#
# *ulet* is the end of a name.
# </details>
#
# **2. You need one vector for a whole sentence from a BERT that was only pre-trained. `pooled`, or the mean of
# `hidden`?**
#
# <details><summary>A. <code>pooled</code>: it was made for that</summary>
#
# It was made for the next-sentence task, and holds what that task needs.
# </details>
# <details><summary>B. The mean of <code>hidden</code>, unless you fine-tune</summary>
#
# Right. Every token's vector had to know its context. With fine-tuning, `pooled` is trained for your task.
# </details>
# <details><summary>C. The vector of the last token</summary>
#
# In a GPT, only the last token has seen everything. In BERT all have.
# </details>
#
# **3. A shop wants to find, among a million reviews, those that mention zippers. Which model reads them?**
#
# <details><summary>A. A large decoder, asked about each review</summary>
#
# It would cost a million passes through the large model, again for each question.
# </details>
# <details><summary>B. An encoder: one vector per review, kept; then one per question</summary>
#
# Right. The million passes are done once; a question costs one more, and a million dot products.
# </details>
# <details><summary>C. An encoder–decoder</summary>
#
# Nothing has to be written here.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - With two labels per meaning, BERT tells a word's meanings apart. Fine-tuned on 400 labeled reviews, it is on
#   average a few points ahead of counting words, but not in every draw.
# - One linear layer makes a classifier, a tagger, a span finder or a chooser.
# - *Feature-based*: the encoder is frozen. *Fine-tuning*: all is trained, at a small rate. Put a baseline into every
#   table, and look at seeds before you rank.
# - GPT-1 reads its answer at the last token, *extract*, the only one that has seen everything.
# - Heads of a real BERT look at a neighbor, at separators, at everything, and some at grammar. One picture is no proof.
# - Encoder: to judge. Decoder: to write. Encoder–decoder: to write from something.
#
# **Read** Devlin et al. 2019, *BERT*, [arXiv:1810.04805](https://arxiv.org/abs/1810.04805), sections 4 and 5.3 and
# figure 4. Radford et al. 2018, *Improving Language Understanding by Generative Pre-Training*, section 3 and figure 1.
# Clark et al. 2019, *What Does BERT Look At?*, [arXiv:1906.04341](https://arxiv.org/abs/1906.04341), sections 3 and 4.
# Wang et al. 2019, *GLUE*, [arXiv:1804.07461](https://arxiv.org/abs/1804.07461), section 3. Conneau et al. 2019,
# *Unsupervised Cross-lingual Representation Learning at Scale* (XLM-R),
# [arXiv:1911.02116](https://arxiv.org/abs/1911.02116), section 5. Raffel et al. 2020, *T5*,
# [arXiv:1910.10683](https://arxiv.org/abs/1910.10683), sections 2.4 and 3.1.
#
# **Do** the exercise [15_finetuning](../exercises/exercise_15_finetuning.ipynb). Then go on to
# [16 Today's decoder](16_todays_decoder.ipynb).
