# %% [markdown] lesson={"part": "I Attention", "builds": "a translator, BLEU and beam search"}
# # 09 · Translation: real sentences, and the results of 2017
#
# **After this lesson you will be able to**
#
# - train the Transformer on sentence pairs: label smoothing, warm-up, batches by length;
# - build BLEU by hand, and say what it penalizes;
# - write a translation greedily and with a beam, and say what a beam costs;
# - compare the recipe of 2017 with a newer one, fairly;
# - count the parameters and the training cost of the paper's models, and read its table of results critically.
#
# **You need** lessons 01 and 08. **It takes** about 65 minutes to read and try; all cells together run in about a
# minute on a laptop. After section 3 is a good place for a break.

# %% [markdown]
# ## 1 From letters to sentences
#
# Lesson 08's Transformer reverses strings without a mistake. Can it translate *Die Menschen haben die Orks
# angegriffen!*, word by word *The humans have the orcs attacked!*? Three trained translators are bundled with the
# course. Let each of them try.

# %% tags=["recorded"]
import json
import math
import random
from collections import Counter

import torch
import torch.nn.functional as F

from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress, prove_equal
from txlib import data, generation, models, plots, training
from txlib.layers import BlockConfig
from txlib.text import Tokenizer, load_tokenizer

# %% [markdown]
# They write:

# %%
from txlib.models.pretrained import load_pretrained

exchanged = "Die Menschen haben die Orks angegriffen!"
bundled = {"one vector": "games-de-en-rnn-plain", "looks back": "games-de-en-rnn",
           "Transformer": "games-de-en"}
for name, folder in bundled.items():
    folder = data.shipped(folder)
    trained = load_pretrained(folder, dtype=torch.float32)
    translator = generation.Translator(trained, load_tokenizer(folder))
    print(f"{name:11} {translator.translate([exchanged])[0]}")

# %% [markdown]
# The first two are lesson 02's recurrent nets. One vector has lost who attacked whom; the net that looks back gets that
# right, but the verb wrong. The Transformer makes no mistake. (It is also three times as large, and was trained more
# than ten times as long. Section 6 has a fair contest.)
#
# This lesson trains such a Transformer, and measures how good it is. Real sentences add three difficulties: tens of
# thousands of words, few examples of each, and no single right answer. The model hardly changes; everything around it
# does.
#
# The sentences come from free computer games, each in German and in English. We train on the short ones, to save
# time.

# %% tags=["recorded"]
everything = data.translation("games")  # split into train, validation and test
short = data.translation("games", max_words=8)  # those with at most 8 English words
print(f"{len(everything.train):,} training pairs, {len(short.train):,} of them short")
for source, target in random.Random(0).sample(short.test, 4):
    print(f"{source:46} {target}")

# %% [markdown]
# Lesson 01's byte-pair encoding cuts words into pieces; `▁` is the space before a word. One vocabulary serves both
# languages, so that names and common pieces are shared.

# %% tags=["recorded"]
pairs = everything.train
vocabulary = Tokenizer.train([side for pair in pairs for side in pair], size=4000)
PAD, BOS, EOS = vocabulary.pad_id, vocabulary.bos_id, vocabulary.eos_id
print([vocabulary.token(id) for id in vocabulary.encode("Die Zwergenkönige schlafen.")])
sides = [vocabulary.encode_batch(side) for side in zip(*short.train)]
encoded = list(zip(*sides, strict=True))  # (source ids, target ids) of each pair

# %% [markdown]
# The model is lesson 08's, from the library: $d = 192$ with 4 heads, three blocks in each stack, and some choices that
# are newer than the paper. You know pre-norm (lesson 06) and rotary positions (lesson 05; `rotary_half` pairs
# entries across the halves). There are no biases, and dropout is back. The other two options are explained where they
# matter: `zero_output` in section 2.4, `qk_norm` in section 6.

# %% tags=["recorded"]
config = BlockConfig.of_sizes(
    d_model=192, heads=4, d_ff=768, bias=False, dropout=0.25, qk_norm="layer",
    position="rotary_half", zero_output=True,
)
sizes = models.TransformerConfig(
    len(vocabulary), config, 3, 3, pad_id=PAD, bos_id=BOS, eos_id=EOS,
)
torch.manual_seed(0)
model = models.Transformer(sizes)
print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters")

# %% [markdown]
# ## 2 Train it
#
# ### 2.1 The loss: cross-entropy with smoothed labels
#
# The paper changes the loss: it does not ask for probability 1 on the right token. **Label smoothing** takes
# $\epsilon = 0.1$ of it away, and spreads that equally over all tokens (§5.4). With four tokens, the first right, the
# target (1, 0, 0, 0) becomes (0.925, 0.025, 0.025, 0.025). In general, for a vocabulary of $V$ tokens:
#
# $$q(k) = (1 - \epsilon)\,[k = y] + \frac{\epsilon}{V} \qquad\qquad \text{loss} = -\sum_k q(k) \log p(k)$$
#
# ($[k = y]$ is 1 for the right token and 0 for all others. Torch's cross-entropy has an option for it, which checks
# ours.) Why smooth? Plain cross-entropy rewards a larger logit of the right token without end. With smoothing there is
# a best logit, and beyond it the loss rises.


# %% tags=["recorded"]
def smoothed_loss(logits, labels, smoothing=0.1):  # (batch, target, vocab), …
    counted = labels != -100  # (batch, target): padding is not counted
    log_p = logits[counted].log_softmax(dim=-1)  # (counted, vocab)
    right = log_p.gather(-1, labels[counted][:, None])[:, 0]  # (counted,)
    loss = (1 - smoothing) * right + smoothing * log_p.mean(dim=-1)
    return -loss.mean()


torch.manual_seed(0)
example = data.collate(encoded[:2], BOS, EOS, PAD)
labels = example.labels  # (batch, target)
logits = torch.randn(*labels.shape, len(vocabulary))  # (batch, target, vocab)
theirs = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
prove_equal(smoothed_loss(logits, labels), theirs, what="Ours and torch's loss")

# %% [markdown]
# The best prediction is the target itself: 0.9 for the right token, 0.1/4000 for each other. So the best lead of the
# right logit is $\log (0.9 \cdot 4000 / 0.1) = 10.5$. The loss there is the target's entropy,
# $0.9 \log \frac{1}{0.9} + 0.1 \log \frac{4000}{0.1} = 0.09 + 1.06 = 1.15$. Give the right token some logit and all
# others 0, and let it grow:

# %% jupyter={"source_hidden": true}
figures.label_smoothing(len(vocabulary))

# %% [markdown]
# Even a model that knew every next token could not get below 1.15.
#
# ### 2.2 The learning rate: warm up, then slow down
#
# A rate that starts high can ruin the first steps (lesson 07). So the paper's rule (equation 3, with warmup = 4000;
# often named *Noam* after an author) has a warm-up:
#
# $$\text{lr}(t) = d_\text{model}^{-0.5} \cdot \min\!\left(t^{-0.5},\; t \cdot \text{warmup}^{-1.5}\right)$$
#
# On paper, with a warmup of 4, $4^{-1.5} = 1/8$: for $t = 1, 2, 4$ the minimum is 1/8, 2/8, 4/8, a straight line. After
# that it is $1/\sqrt{t}$: 1/4 for $t = 16$, and it falls without end. Today, if the length of a run is known, a
# straight line down to 0 is usual.


# %% tags=["recorded"]
def noam(step, d_model, warmup=4000):
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def up_and_down(step, steps, warmup):
    return min(step / warmup, (steps + 1 - step) / (steps + 1 - warmup))


# %% [markdown]
# Both schedules, drawn with their peak at 1 (the paper's is $7.0 \cdot 10^{-4}$ for base, whose $d_\text{model}$ is
# 512):

# %% jupyter={"source_hidden": true}
figures.schedules({"the paper's": lambda step: noam(step, d_model=512),
                   "up and down": lambda step: up_and_down(step, 20_000, 800)})

# %% [markdown]
# ### 2.3 Batches by length
#
# Padding is computed like everything else, and thrown away. So sentences of similar length should share a batch, and a
# batch should have a budget of *tokens*, not of sentences. How much padding does that save?

# %% tags=["recorded"]
def batch_of(group):
    return data.collate([encoded[index] for index in group], BOS, EOS, PAD)


lengths = [(len(source) + 1, len(target) + 1) for source, target in encoded]
by_length = data.batches_by_length(lengths, 1000, seed=0)
as_they_come = [range(at, at + 60) for at in range(0, len(encoded) - 60, 60)]
for name, groups in {"as they come": as_they_come, "by length": by_length}.items():
    padding = data.padding_share([batch_of(group) for group in groups])
    print(f"{name:13} {padding:.0%} of all positions are padding")

# %% [markdown]
# ### 2.4 The loop
#
# The paper's optimizer is Adam with $\beta = (0.9, 0.98)$. We use AdamW with the same $\beta$ for the embedding and the
# norms, and lesson 07's **Muon** ([Jordan et al. 2024](https://kellerjordan.github.io/posts/muon/)) for the matrices
# inside the blocks. The library puts both behind one object, `optimizers`. Each has its own peak rate, and `set_factor`
# multiplies both by the schedule's value, from 0 to 1.
#
# One step: predict, measure, differentiate, clip, update. (`collate` has shifted the target right.)


# %% tags=["recorded"]
def learn(model, optimizer, batch, rate):
    inputs = batch.input_ids, batch.attention_mask, batch.decoder_input_ids
    loss = smoothed_loss(model(*inputs).logits, batch.labels)
    model.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.set_factor(rate)
    optimizer.step()
    return loss.item()


# %% [markdown]
# And the loop. The rate rises for a tenth of the steps:

# %% tags=["recorded"]
from txlib.devices import default_device

device = default_device()


def train(model, groups):
    model.to(device).train()
    optimizer, losses = training.optimizers(model, lr=3e-3, muon_lr=0.02), []
    for step, group in enumerate(progress(groups, "training from nothing"), start=1):
        rate = up_and_down(step, len(groups), warmup=len(groups) // 10)
        losses.append(learn(model, optimizer, batch_of(group).to(device), rate))
    return losses

# %% [markdown]
# We give it 80 batches of at most 1,000 tokens, source and target together, in random order. That takes a quarter of a
# minute.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
losses = train(model, data.batches_by_length(lengths, 1000, seed=0)[:80])
for start in (0, 10, 20, 40, 70):
    mean = sum(losses[start : start + 10]) / 10
    print(f"steps {start + 1}–{start + 10}: loss {mean:.1f}")
expect("Loss at the end", sum(losses[-10:]) / 10, 4.7, 6.3)

# %% [markdown]
# The start is a surprise: guessing blindly among 4,000 tokens costs $\log 4000 = 8.3$, and this is worse. Lesson 08
# suggested why: a new model bets on the token that it has just read. `zero_output` makes the bet larger. With it, the
# last matrix of each sub-layer starts at 0, so at first each block only passes its input on. What comes out of the
# decoder is the vector of the token just read, and that token's own row of the embedding fits it best. Two fresh models
# show both, with `zero_output` and without:

# %%
from dataclasses import replace

inputs = example.input_ids, example.attention_mask, example.decoder_input_ids
for zero in (True, False):
    torch.manual_seed(0)
    block = replace(config, zero_output=zero)
    fresh = models.Transformer(replace(sizes, block=block)).eval()
    logits = fresh(*inputs).logits  # (batch, target, vocab)
    bets = (logits.argmax(dim=-1) == inputs[2])[labels != -100]  # (counted,)
    print(f"{zero!s:5}: loss {smoothed_loss(logits, labels):4.1f},",
          f"bets on the token just read {bets.float().mean():.0%}")

# %% [markdown]
# ## 3 How good is it?
#
# ### 3.1 A quarter of a minute
#
# What does the trained model write for sentences that it has not seen? Lesson 08 wrote greedily. The library's
# `beam_search` does the same with `num_beams=1` (section 4 builds it, and explains the other options).


# %% tags=["recorded"]
def translate(model, sentences, beams=1, power=0.6):
    sources = [(source, []) for source in vocabulary.encode_batch(sentences)]
    batch = data.collate(sources, BOS, EOS, PAD).to(device)
    written = generation.beam_search(
        model.eval(), batch.input_ids, batch.attention_mask,
        max_new_tokens=20, num_beams=beams, length_penalty=power)
    return [vocabulary.decode(ids) for ids in written]


german, english = zip(*short.test[::3], strict=True)  # every third test sentence
middle = [i for i, line in enumerate(german) if len(line.split()) in (4, 5, 6)]
shown = random.Random(0).sample(middle, 4)  # of four to six words, drawn at random

# %% [markdown]
# Four of them, after our 80 steps:

# %% tags=["nbval-ignore-output"]
first = translate(model, german)
for index in shown:
    print(f"{german[index]}\n    human: {english[index]}\n    model: {first[index]}")

# %% [markdown]
# It has learned how English sentences in these games begin and end. In between it stammers. Does anything come from the
# source? Section 3.4 finds out.
#
# ### 3.2 BLEU, by hand
#
# We need a number. **BLEU** (Papineni et al. 2002; lesson 02 named it) compares a translation, the *hypothesis*, with a
# human's, the *reference*. It counts **n-grams**, runs of $n$ words. What is a word? WMT, the yearly contest in machine
# translation, has a rule called *13a*, which separates punctuation from words. `sacrebleu` (Post 2018), the program
# that papers use, has it:

# %%
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a


def words(text):
    return Tokenizer13a()(text).split()


def n_grams(words, n):
    return Counter(tuple(words[at : at + n]) for at in range(len(words) - n + 1))


print(words("The orcs have 1,500 gold."))
print(n_grams(words("the the the orcs"), 2))

# %% [markdown]
# The fraction of the hypothesis's n-grams that are also in the reference is its *precision*. But plain precision is
# easily fooled: in *the the the the*, every word is in the reference. So BLEU clips: an n-gram counts at most as often
# as the reference has it. That is the **modified precision** $p_n$. Here a stammering hypothesis has three *the*, and
# the reference two:

# %% jupyter={"source_hidden": true}
figures.clipped_counts(
    "the orcs have attacked the the humans".split(),
    "the orcs have attacked the humans .".split(),
    title="One “the” too many costs a match at every length",
)

# %% [markdown]
# The same in code. (For two `Counter`s, `&` keeps the smaller count.)

# %%
hypothesis = words("the orcs have attacked the the humans")
reference = words("the orcs have attacked the humans .")
for n in (1, 2, 3, 4):
    written, allowed = n_grams(hypothesis, n), n_grams(reference, n)
    print(f"n = {n}: {(written & allowed).total()} of {written.total()}")

# %% [markdown]
# The counts are *pooled*: matches and n-grams are added up over all sentences before dividing, since a single sentence
# often has no run of four in common with its reference. The four precisions are combined by a geometric mean, here
# $(\frac67 \cdot \frac56 \cdot \frac35 \cdot \frac24)^{1/4} = 0.68$.
#
# Precision alone would reward a model that writes only the words it is sure of. Hence the **brevity penalty**: if all
# hypotheses have $c = 8$ words and the references $r = 12$, the score is multiplied by $e^{1 - 12/8} = 0.61$.
#
# $$\text{BLEU} = 100 \cdot \min\left(1, e^{1 - r/c}\right) \cdot (p_1\, p_2\, p_3\, p_4)^{1/4}$$

# %%
def parts(hypotheses, references):
    pairs = [(words(h), words(r)) for h, r in zip(hypotheses, references, strict=True)]
    precisions = []
    for n in (1, 2, 3, 4):
        counts = [(n_grams(h, n), n_grams(r, n)) for h, r in pairs]
        matches = sum((h & r).total() for h, r in counts)  # clipped, pooled
        precisions.append(matches / max(1, sum(h.total() for h, _ in counts)))
    c, r = (sum(map(len, side)) for side in zip(*pairs))
    return precisions, min(1.0, math.exp(1 - r / max(1, c)))


def bleu(hypotheses, references):
    precisions, brevity = parts(hypotheses, references)
    return 100 * brevity * math.prod(precisions) ** 0.25


# %% [markdown]
# Near 0 means that hardly any run of four words is shared; 100 means identical. Even the best system of section 7
# reaches only 28 on German news and 42 on French. (There is more than one good translation.) Compare ours with
# `sacrebleu`'s on damaged references: each without its second word.

# %%
import sacrebleu


def prove_bleu(hypotheses, what):
    theirs = sacrebleu.corpus_bleu(hypotheses, [english]).score
    scores = bleu(hypotheses, english), theirs
    ours, theirs = torch.tensor(scores, dtype=torch.float64)
    prove_equal(ours, theirs, tolerance=1e-6, what=f"{what}: our BLEU and sacrebleu's")


damaged = [" ".join(line.split()[:1] + line.split()[2:]) for line in english]
prove_bleu(damaged, "Damaged references")

# %% [markdown]
# How large is each part of BLEU, here and for what your model wrote?


# %% tags=["nbval-ignore-output"]
def show_parts(name, texts):
    precisions, brevity = parts(texts, english)
    row = "  ".join(f"p{n} {p:4.0%}" for n, p in enumerate(precisions, start=1))
    print(f"{name:19} {row}  brevity {brevity:.2f}  BLEU {bleu(texts, english):.1f}")


show_parts("damaged references", damaged)
show_parts("your model", first)
expect("BLEU after 80 steps", bleu(first, english), 0, 6)

# %% [markdown]
# In the first line every word is right, but about one in six is missing. Longer runs break at each gap:
# $(1.00 \cdot 0.81 \cdot 0.73 \cdot 0.67)^{1/4} = 0.79$. The brevity penalty accounts for the missing words, and
# $0.79 \cdot 0.83 = 0.66$. (If some $p_n$ is 0, so is our BLEU.)
#
# ### 3.3 Longer, and much longer
#
# Section 1's third translator is the same model after 20,000 steps on all pairs, short and long:
#
# ```
# txlib train translation --data games --preset course --r-drop 3 --steps 20000 --out runs/course
# ```
#
# (*R-Drop*, Liang et al. 2021, reads each batch twice, with different dropout, and penalizes the difference between the
# two predictions. What is saved is a moving average of the weights.) Its BLEU on the whole test set, written greedily:

# %%
from txlib.paths import DATA

folder = data.shipped("games-de-en")
result = json.loads((folder / "result.json").read_text())
minutes = result["cpu_seconds"] / 60
print(f"{result['steps']:,} steps, {minutes:.0f} min of one CPU core:",
      f"BLEU {result['bleu_greedy']:.1f}")

# %% [markdown]
# How does it translate our four sentences?

# %% tags=["nbval-ignore-output"]
final = load_pretrained(folder, dtype=torch.float32).to(device)
loaded = translate(final, german)
for index in shown:
    print(f"{german[index]}\n    human:        {english[index]}")
    print(f"    80 steps:     {first[index]}\n    20,000 steps: {loaded[index]}")
prove_bleu(loaded, "After 20,000 steps")
expect("BLEU after 20,000 steps", bleu(loaded, english), 24, 30)

# %% [markdown]
# The meaning often arrives, in English order. A rare word like *Aas* (carrion) is only copied.
#
# Try a sentence of yours: the model knows orcs and spaceships better than taxes. The last two sentences are lesson 03's
# and section 1's; they differ only in the order of the nouns:

# %% tags=["nbval-ignore-output"]
orcs = "Die Orks haben die Menschen angegriffen!"
mine = ["Wo ist der König?", "Ich habe kein Gold.", orcs, exchanged]
for sentence, written in zip(mine, translate(final, mine), strict=True):
    print(f"{sentence:42} → {written}")

# %% [markdown]
# ### 3.4 Break it: another sentence's German
#
# Does the model read its source, or has it only learned English? Keep each English reference, and give the model the
# German of another sentence. If it reads its source, the loss must rise. (We compute the loss without smoothing, so
# that it can reach 0.)

# %% tags=["recorded"]
@torch.no_grad()
def loss_given(model, sources, targets):  # nats per token
    sides = map(vocabulary.encode_batch, (sources, targets))
    batch = data.collate(list(zip(*sides, strict=True)), BOS, EOS, PAD).to(device)
    inputs = batch.input_ids, batch.attention_mask, batch.decoder_input_ids
    logits = model.eval()(*inputs).logits  # (batch, target, vocab)
    return F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten()).item()


others = german[1:] + german[:1]  # to each translation, another sentence's German

# %% [markdown]
# After 80 steps the model stammered. Was there anything of the source in it?

# %%
predict(
    "wrong-source", "After 80 steps: with another's German, the loss",
    "stays: the source is not read yet", "rises by less than 1", "rises by more than 2",
)

# %% [markdown]
# The model of 80 steps, and that of 20,000:

# %% tags=["nbval-ignore-output"]
rise = {}
for name, net in {"80 steps": model, "20,000 steps": final}.items():
    own, wrong = (loss_given(net, side, english) for side in (german, others))
    rise[name] = wrong - own
    print(f"{name:12} own German {own:.2f}, another's {wrong:.2f}")
expect("What the wrong German costs after 80 steps", rise["80 steps"], 0.1, 1)
expect("What it costs after 20,000 steps", rise["20,000 steps"], 2, 4)
predicted("wrong-source", "rises by less than 1")

# %% [markdown]
# Blind guessing costs 8.3. After 80 steps most of the gain, about 2.6, comes with *any* German: it is English. Only
# about 0.5 comes from the right one. When does the rest come in? `python data/half_trained.py 0 1 2` trained the same
# model for 1,280 steps with three seeds and looked six times. What did the first one write? The numbers in the figure
# say how much lower the loss is with its own German than with another's.

# %%
looked = json.loads((DATA / "half_trained.json").read_text())
half_trained = {int(step): found for step, found in looked["0"].items()}
print(f"{german[shown[2]]}\n    human: {english[shown[2]]}")
for step, found in half_trained.items():
    print(f"{step:5} steps, BLEU {found['bleu']:4.1f}: {found['written'][2]}")
worth = [run["1280"]["another's"] - run["1280"]["own"] for run in looked.values()]
print("lower with its own German at 1,280 steps, three seeds:",
      *(f"{each:.1f}" for each in worth))
figures.sources(half_trained)

# %% [markdown]
# At first both curves fall together: what the model learns then does not depend on the German. (The learning rate of
# that run rises for 128 steps, so at 80 it is behind yours.) Then they part. With another's German the loss stops
# falling near 5; the rest needs the right source. The gap grows from 0.2 to about 2.1, and to 2.8 in the model of
# 20,000 steps. (That is more than what the source is worth, since a wrong one also misleads a model that reads. A model
# of English alone would tell the two apart.) The sentences tell the same story: *I will be a moment* is English about
# something else; then *I want* is read, and *grenades* not yet.
#
# ### 3.5 The chain of probabilities, in numbers
#
# Lesson 08 said: $p(y \mid x)$ is a product, one factor per token. Here are the factors of the orcs' sentence. (This
# pair is in the *training* set, so the model may know it better than it should.)

# %% tags=["nbval-ignore-output"]
followed = short.train.index((orcs, "The orcs have attacked the humans."))
batch = data.collate([encoded[followed]], BOS, EOS, PAD).to(device)
inputs = batch.input_ids, batch.attention_mask, batch.decoder_input_ids
with torch.no_grad():
    log_p = final(*inputs).logits[0].log_softmax(dim=-1)  # (target, vocab)
factors = log_p.gather(-1, batch.labels[0][:, None])[:, 0].exp()  # (target,)
target = [vocabulary.token(id) for id in batch.labels[0].tolist()]
for token, factor in zip(target, factors.tolist(), strict=True):
    print(f"{token:>8} {factor:.2f} {'█' * round(30 * factor)}")
loss = -factors.log().mean()
print(f"product {factors.prod():.3f}, loss {loss:.2f}, perplexity {loss.exp():.2f}")

# %% [markdown]
# The loss is the mean of $-\log p$, and the **perplexity** is $e$ to that power. A perplexity of 2 means: as unsure as
# if it chose between two equally likely tokens each time. The product is small mainly because of one token: the German
# ends in an exclamation mark, and the human wrote a period. And even where all is clear, the factors stay at about 0.9,
# as label smoothing asks.
#
# ## 4 Beam search
#
# ### 4.1 Keep several beginnings
#
# Greedy search takes the best token and never looks back. Suppose *The* has probability 0.6 and *A* 0.4. But after
# *The* no word has more than 0.3, and after *A* one has 0.9. Greedy search writes *The …*, worth at most 0.18, and
# misses *A …*, worth 0.36. **Beam search** keeps the best few beginnings, its hypotheses. It extends each by its best
# tokens, and keeps the best of the results. Here it keeps two, in blue; under each token is the product so far:

# %% jupyter={"source_hidden": true}
figures.beams(
    [
        [(0, "The", 0.6), (0, "A", 0.4)],
        [(0, "king", 0.3), (0, "orc", 0.25), (1, "man", 0.9), (1, "ship", 0.05)],
        [(1, "<eos>", 0.6), (1, "is", 0.3), (0, "<eos>", 0.8), (0, "who", 0.1)],
    ],
    num_beams=2, title="A beam of two finds what greedy search misses",
    alt="A tree from left to right. Kept: The 0.60 and A 0.40; then The king 0.18 and A man 0.36; then "
    "The king, end, 0.11 and A man, end, 0.29. Dropped: The orc, A ship, The king is, A man who.",
)

# %% [markdown]
# Hypotheses that end (here both, in the last step) are put aside, until as many have ended as the beam is wide. The
# paper's beam is four.
#
# In practice one adds logarithms instead of multiplying. Each token makes such a sum smaller, which favors short
# sentences. Three tokens with the sum −1.5 lose against two with −1.4. The remedy is to divide by $((5 + n)/6)^\alpha$,
# with $n$ the number of tokens (Wu et al. 2016, §7). With the paper's $\alpha = 0.6$ (§6.1) that makes −1.26 and −1.28,
# and the longer one wins. In code, a hypothesis is a pair: its sum, and its tokens so far. `extended` lengthens one by
# each of its likeliest tokens.


# %%
def normalized(score, ids, power=0.6):
    return score / ((5 + len(ids) - 1) / 6) ** power  # BOS is not counted


def extended(model, memory, mask, score, written, most):
    read = torch.tensor([written], device=memory.device)  # (1, length)
    hidden = model.decode(read, memory, mask)  # (1, length, d_model)
    log_p = model.logits(hidden[0, -1]).log_softmax(dim=-1)  # (vocab,)
    best = log_p.topk(most)
    return [(score + p, [*written, token])
            for p, token in zip(best.values.tolist(), best.indices.tolist())]


# %% [markdown]
# The search, for one sentence. (Each hypothesis gets $k + 1$ extensions, since one may be the end: that leaves $k$ to
# continue with.)


# %%
@torch.no_grad()
def beam(model, source_ids, beams=4, max_length=20):  # (1, source)
    mask, going, ended = torch.ones_like(source_ids), [(0.0, [BOS])], []
    memory = model.encode(source_ids, mask)  # (1, source, d_model)
    for _ in range(max_length):
        grown = [longer for score, written in going
                 for longer in extended(model, memory, mask, score, written, beams + 1)]
        grown.sort(reverse=True)  # the largest sums first
        ended += [(score, ids) for score, ids in grown[:beams] if ids[-1] == EOS]
        going = [(score, ids) for score, ids in grown if ids[-1] != EOS][:beams]
        if len(ended) >= beams:
            break
    return max(ended or going, key=lambda hypothesis: normalized(*hypothesis))


# %% [markdown]
# A beam of one is greedy search. How often does a beam of four find something likelier (after division by the length)?

# %% tags=["nbval-ignore-output"]
pairs_found = []  # (by one beam, by four) for each sentence
for index in progress(range(10), "searching"):
    ids = torch.tensor([[*vocabulary.encode(german[index]), EOS]], device=device)
    pairs_found.append((beam(final, ids, beams=1), beam(final, ids)))
gain = [normalized(*four) - normalized(*one) for one, four in pairs_found]
better = [index for index, more in enumerate(gain) if more > 1e-4]
print(f"{len(better)} of 10 are likelier, {sum(g < -1e-4 for g in gain)} less likely")
for index in better[:3]:
    one, four = (vocabulary.decode(written[1:-1]) for _, written in pairs_found[index])
    print(f"\n{german[index]}\n   greedy: {one}\n   beam 4: {four}")

# %% [markdown]
# (A beam can also lose, when four other hypotheses push out the one that greedy would have kept.)
#
# ### 4.2 Open the library
#
# `translate` calls the library's `beam_search`, which works on all sentences at once: a batch has texts × beams rows.
# Its division by the length is yours:

# %%
from txcourse.lesson import show_source
from txlib.generation.search import penalty

show_source(penalty)

# %% [markdown]
# Does it find what yours found? And are its translations better? What is likelier to the model need not be better for a
# reader.

# %% tags=["nbval-ignore-output"]
by_beam = translate(final, german, beams=4)
yours = [vocabulary.decode(written[1:-1]) for _, (_, written) in pairs_found]
same = sum(one == other for one, other in zip(yours, by_beam, strict=False))
print(f"the same as your beam: {same} of {len(yours)}")
expect("BLEU, greedy", bleu(loaded, english), 24, 30)
expect("BLEU, beam of 4", bleu(by_beam, english), 24, 31)
print(f"whole test set: greedy {result['bleu_greedy']:.1f}, beam {result['bleu']:.1f}")

# %% [markdown]
# The beam is ahead, here and on the whole test set of 1,233 sentences. Its price is that the decoder works on four
# beginnings per sentence instead of one.
#
# ## 5 See it work: where does the decoder look?
#
# The trained model needs its source. Where in the source does it find its words? In lesson 08 the cross-attention was
# an anti-diagonal. Here is the last decoder block on the orcs' sentence. Rows are the tokens that it is about to write,
# columns the German tokens. The German verb *angegriffen* is the last word; English *attacked* is the fourth.

# %%
predict(
    "attack-aligned", "In the row of ▁attack, where do most heads look?",
    "▁die, which has the same position", "▁angegriffen", "the end of the sentence",
)

# %% [markdown]
# `recording` keeps each layer's weights, by name:

# %% tags=["nbval-ignore-output"]
from txlib.attention import recording

with torch.no_grad(), recording(final) as seen:
    final(*inputs)
weights = seen["decoder.layers.2.cross_attention"][0][0].cpu()  # (heads, target, …)
source = [vocabulary.token(id) for id in inputs[0][0].tolist()]
partner = {1: "▁Orks", 3: "▁angegriffen", 6: "▁Menschen"}  # of orcs, attack, humans
looks = {row: [source[i] for i in weights[:, row].argmax(dim=-1)] for row in partner}
print("before ▁attack, heads 0 to 3:", *looks[3])
hits = sum(looks[row].count(word) for row, word in partner.items())
expect("Looks, of 12, that meet the word's translation first", hits, 6, 12)
predicted("attack-aligned", "▁angegriffen")

# %% [markdown]
# Here are the whole tables of the four heads:

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
plots.heads(
    weights, rows=target, columns=source, ylabel="is to write", xlabel="looks at",
    title="Before ▁attack, three of four heads look at ▁angegriffen",
    alt="Four tables of weights, English rows and German columns. In the row of ▁attack, heads 1 to 3 "
    "look at ▁angegriffen. Most other rows look at their translations; some scatter, or rest on the end.",
)

# %% [markdown]
# In lesson 03 attention learned a dictionary on purpose. Here the training asked for no alignment, and yet for *orcs*,
# *attack* and *humans* most heads look at the translation first. For *▁have*, one head looks at *haben*, three at
# *angegriffen*: the German perfect is one verb in two places. *ed* only continues a word: it has no partner, and the
# heads rest on the end of the sentence. So, in this sentence, it is a dictionary, but not in every row, nor with every
# head.
#
# ## 6 The recipe of 2017 against ours
#
# How much do the choices that are newer than the paper gain? One is not explained yet: `qk_norm` puts a layer norm on
# each query and each key. The query (30, 40) and the key (3, 4) have the score 250. The norm makes (−1, 1) of both, and
# the score is 2, however long they were. `--preset paper` undoes all the choices: post-norm, sinusoids, biases, no
# `qk_norm`, no `zero_output`, and Adam with equation 3, without clipped gradients. (The runs are short, so the rate
# reaches equation 3's peak after 400 steps instead of 4,000.)
#
# A fair contest gives each net the same *time*, since a step takes longer in some than in others.
# `benchmarks/translators.py` trains translators with 2.8 million parameters each (within 4%) on the same sentences
# (Multi30k, captions of photographs), with three seeds; here are the six that lessons 02 and 09 are about. Each gets as
# many steps as fit into two minutes of one core.

# %%
predict(
    "recipe-2017", "After the same CPU time, how do the two compare in BLEU?",
    "the recipe of 2017 is ahead", "about equal", "the newer choices are ahead",
)

# %% [markdown]
# The recorded result:

# %%
contest = json.loads((DATA / "contest.json").read_text())
for name, entry in contest.items():
    print(f"{name:29} {entry['steps']:5,} steps, BLEU",
          *(f"{score:.1f}" for score in entry["bleu"]))
predicted("recipe-2017", "the newer choices are ahead")

# %% [markdown]
# The worst run of the newer choices is more than eight points ahead of the best with the recipe of 2017. But look at
# the rest: in two minutes, lesson 02's net with attention, trained with Muon, beats that recipe, and a convolutional
# net with attention, trained with Adam, beats both Transformers.
#
# Two warnings. What we measured is speed: the recipe of 2017 was made for 100,000 steps of 25,000 target tokens each,
# and two minutes hold 837 smaller ones. It was run with one peak rate, the paper's; the rates and optimizers of the
# others were chosen in short runs. And all choices changed at once, so this does not say which one
# counts. (Lessons 06 and 07 take norm, rate and warm-up apart.)
#
# ## 7 What it costs, and what it bought
#
# ### 7.1 Base, in one row
#
# The paper's models are specified by five numbers: blocks per stack, $d_\text{model}$, $d_\text{ff}$, heads and $d_k$.
# Base is (6, 512, 2048, 8, 64), sometimes printed as (6, 512, 2048, 64, 8); note that $8 \cdot 64 = 512$. How many
# parameters is that? An attention layer has four $d \times d$ matrices with biases. A feed-forward network has two
# matrices with biases, a norm has $2d$ numbers. An encoder block has one attention and two norms, a decoder block two
# and three. Then one embedding of $V d$, for all three uses. (With post-norm there is no last norm.) The library has
# both models; on torch's *meta* device they have shapes but need no memory.


# %%
from txlib.models.sizes import VASWANI


def count(d, d_ff, vocab=37_000, layers=6):
    attention, norm = 4 * (d * d + d), 2 * d
    feed_forward = 2 * d * d_ff + d_ff + d
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    return layers * (encoder + decoder) + vocab * d


for name, each in VASWANI.items():
    with torch.device("meta"):
        built = models.Transformer(each)
    counted = sum(weight.numel() for weight in built.parameters())
    formula = count(each.block.d_model, each.block.ffn.d_ff)
    print(f"{name:5} formula {formula:11,}, built {counted:11,}")

# %% [markdown]
# The paper says 65 M and 213 M, for a vocabulary of *about* 37,000. No single size gives both: base would need about
# 41,000 tokens, big about 36,000.
#
# ### 7.2 Training
#
# The paper's Table 2 gives the training cost of base as $3.3 \cdot 10^{18}$ operations, of big as $2.3 \cdot 10^{19}$.
#
# <details><summary>Second reading: where these numbers come from</summary>
#
# A footnote says: hours, times 8 GPUs, times the 9.5 TFLOP/s that a P100 sustains. For base that is $12 \cdot 3600
# \cdot 8 \cdot 9.5 \cdot 10^{12} = 3.3 \cdot 10^{18}$; big took 3.5 days. That is what the GPUs *could* have done. What
# was needed? Each weight costs 2 operations per token forward (a product and a sum) and 4 backward, and meets about
# 25,000 tokens in each of 100,000 steps. With 63 million weights that makes $6 \cdot 6.3 \cdot 10^7 \cdot 2.5 \cdot
# 10^4 \cdot 10^5 = 9.5 \cdot 10^{17}$, 29% of it, without attention's scores. Lesson 37 counts exactly, and says what
# such a run costs.
#
# </details>
#
# ### 7.3 The table of 2017
#
# This is the paper's Table 2: BLEU on WMT's test sentences of the year 2014 (*newstest2014*), and the training cost in
# floating-point operations. There are 4.5 million training pairs of English and German, and 36 million of English and
# French (Sutskever et al. 2014 had used 12 million of them). Is the Transformer better *and* cheaper, as the paper
# says?
#
# <details><summary>Who the others are</summary>
#
# ByteNet (Kalchbrenner et al. 2016) and ConvS2S (Gehring et al. 2017) are convolutional. Deep-Att (Zhou et al. 2016)
# and GNMT (Wu et al. 2016) are recurrent, and MoE (Shazeer et al. 2017) adds experts to a recurrent net. An ensemble
# averages several models.
#
# </details>

# %%
# system: BLEU en-de, en-fr; operations en-de, en-fr; None where not given
table = {
    "ByteNet": (23.75, None, None, None),
    "Deep-Att + PosUnk": (None, 39.2, None, 1.0e20),
    "GNMT + RL": (24.6, 39.92, 2.3e19, 1.4e20),
    "ConvS2S": (25.16, 40.46, 9.6e18, 1.5e20),
    "MoE": (26.03, 40.56, 2.0e19, 1.2e20),
    "Deep-Att + PosUnk ensemble": (None, 40.4, None, 8.0e20),
    "GNMT + RL ensemble": (26.30, 41.16, 1.8e20, 1.1e21),
    "ConvS2S ensemble": (26.36, 41.29, 7.7e19, 1.2e21),
    "Transformer base": (27.3, 38.1, 3.3e18, 3.3e18),
    "Transformer big": (28.4, 41.8, 2.3e19, 2.3e19),
}

# %% [markdown]
# As a picture (squares are ensembles; ByteNet is left out, since its cost was not given):

# %% jupyter={"source_hidden": true}
figures.costs(
    {
        "English to German": {name: (row[2], row[0]) for name, row in table.items() if row[2]},
        "English to French": {name: (row[3], row[1]) for name, row in table.items() if row[3]},
    },
    highlight="Transformer", xlabel="training cost (operations)", ylabel="BLEU on newstest2014",
    title="Big is best on both; base is cheapest, and beats its rivals on German only",
    alt="BLEU against training cost. English to German: both Transformers lie above all others; base is the cheapest, big "
    "costs as much as GNMT. English to French: big lies above all others and costs less than a quarter of the cheapest "
    "rival; base is the cheapest by far, and the lowest.")

# %% [markdown]
# The caption of the table says "at a fraction of the training cost", the abstract even "a small fraction", of the
# result on French. There it holds for big: $2.3 \cdot 10^{19}$ is less than a quarter of the cheapest rival's $1.0
# \cdot 10^{20}$. On German it holds for base: 27.3 is above every rival's BLEU, at a third of ConvS2S's cost. But *big
# on German* costs as much as GNMT, and 2.4 times as much as ConvS2S. And base on French is cheap but beaten by all.
#
# <details><summary>Second reading: three cautions</summary>
#
# For big on French the first version of the paper, like the printed one, has 41.0, which the two better ensembles beat.
# The later versions on arXiv have 41.8, in the table and the abstract; their §6.1 still says 41.0. The costs are
# estimates (hours × a GPU's sustained rate, as above). And each group computed BLEU with its own script, which is
# why `sacrebleu` exists.
#
# </details>

# %% [markdown]
# ### 7.4 The real thing
#
# The first command takes twenty minutes on a laptop. With `--model rnn` it trains Bahdanau's net of lesson 02, at the
# same size; with `--preset paper`, the recipe of 2017; with `--preset base`, the paper's model, for a GPU. (Our
# sentences are far too few for that one.)
#
# ```
# txlib train translation                     # 20 minutes, d = 256, three blocks
# txlib translate --model runs/wesnoth-de-en-small "Wo ist der König?"
# ```

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. A hypothesis is the reference, with its last third cut off. What does BLEU penalize it for?**
#
# <details><summary>A. Nothing: all its n-grams are in the reference</summary>
#
# All four precisions are 1, yes. That is why there is one more factor.
# </details>
# <details><summary>B. Its brevity: $e^{1 - 3/2} \approx 0.61$</summary>
#
# Right: $r/c = 3/2$, and BLEU is 61.
# </details>
# <details><summary>C. The missing words: recall is two thirds, so BLEU is 67</summary>
#
# BLEU has no recall. The brevity penalty replaces it, and knows only lengths, not which words are missing.
# </details>
#
# **2. With label smoothing, ε = 0.1, a model knows every next token. Its best loss is**
#
# <details><summary>A. 0</summary>
#
# It would be 0 if probability 1 were asked for. The smoothed target itself has an entropy.
# </details>
# <details><summary>B. Above 0: the entropy of the smoothed target</summary>
#
# Right. No prediction can have a lower cross-entropy than the target with itself.
# </details>
#
# **3. A beam of 8 finds a translation with a higher log-probability than a beam of 4. Is it a better translation?**
#
# <details><summary>A. Yes: the model prefers it</summary>
#
# The model is not the reader. With wide beams BLEU often falls, since the likeliest texts tend to be too short (Koehn
# and Knowles 2017).
# </details>
# <details><summary>B. It need not be</summary>
#
# Right. The beam improves the search, not the model. What readers prefer must be measured.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - Label smoothing limits confidence. It takes a few lines, as do the schedule and batches by length.
# - BLEU compares hypotheses with references: clipped and pooled n-gram precisions, their geometric mean, and a brevity
#   penalty.
# - A half-trained translator writes English before it reads German. The wrong source shows how much it reads.
# - Greedy search takes the best token. A beam keeps several hypotheses, and compares sums of $\log p$ divided by a
#   power of the length.
# - In short runs of equal cost, the newer choices together beat the recipe of 2017, and convolutions with attention
#   beat both.
# - Base is (6, 512, 2048, 8, 64), 63,082,496 parameters at a vocabulary of 37,000, and took at most $3.3 \cdot 10^{18}$
#   operations. "A fraction of the training cost" is not true of every row of its table.
#
# That ends Part I. Looking back, each lesson had one question:
#
# | | The question | The answer |
# | --- | --- | --- |
# | 01 | How does text become numbers? | bytes, merged into tokens; each picks a row of a table |
# | 02 | What if a sentence does not fit into one vector? | look back at all of its vectors, with learned weights |
# | 03 | How can a lookup be learned? | make it soft: scores, softmax, an average of values |
# | 04 | What if a word wants several things? | several heads; and the keys may come from another sentence |
# | 05 | What tells attention the order? | positions: added to words or to scores, or as a turn of queries and keys |
# | 06, 07 | How does it become deep, and learn? | residuals, norms and a feed-forward network; Adam with a warm-up |
# | 08 | What do these make together? | an encoder and a decoder, which read and write |
# | 09 | Is it any good? | BLEU compares it with what a human wrote |
#
# All of it is still in use. Part II leaves out one half of the model.
#
# **Read** Vaswani et al. 2017, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762): now you can read all of it;
# sections 5 and 6.1 are this lesson. The search: Wu et al. 2016, [arXiv:1609.08144](https://arxiv.org/abs/1609.08144),
# section 7. Two passes that agree: Liang et al. 2021, [arXiv:2106.14448](https://arxiv.org/abs/2106.14448). The
# measure: Papineni et al. 2002, *BLEU*, [ACL P02-1040](https://aclanthology.org/P02-1040/), and Post 2018, *A Call for
# Clarity in Reporting BLEU Scores*, [arXiv:1804.08771](https://arxiv.org/abs/1804.08771).
#
# **Do** the exercise [09_translation](../exercises/exercise_09_translation.ipynb). Part II continues with
# [10 GPT](10_gpt.ipynb): a decoder without an encoder.
