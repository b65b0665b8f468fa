# %% [markdown] lesson={"part": "I Attention", "builds": "recurrent nets, gates, Bahdanau's attention"}
# # 02 · Sequence to sequence
#
# **After this lesson you will be able to**
#
# - build a recurrent net and a GRU by hand, and say what the gates are for, with a measurement;
# - put two of them together into a translator, and measure where one vector for a whole sentence is no longer enough;
# - explain Bahdanau's attention as the cure, build it, and read its alignments;
# - count the steps that wait for one another, and say why people wanted to be rid of recurrence.
#
# **You need** lesson 01, matrix products, and the chain rule. **It takes** about 90 minutes to read and try; all cells
# together run in about a minute and a half on a laptop.

# %% [markdown]
# ## 1 The problem: from one sequence to another
#
# Lesson 01 turned text into a row of vectors. Now we want to turn one row into another: a sentence into its
# translation. First, what we need:

# %%
import json
import random
import time
from collections import Counter

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from txlib import plots
from txcourse import figures
from txcourse.lesson import expect, progress, prove_equal, show_source
from txlib.data import batches_by_length, collate, shipped, translation
from txlib.text import Tokenizer

# %% [markdown]
# The sentences are dialogues of free computer games, in German or French, and in English. The whole course uses them.

# %%
german_pairs, french_pairs = translation("games", "de-en"), translation("games", "fr-en")
for pairs in (german_pairs, french_pairs):
    for foreign, english in [pair for pair in pairs.train if len(pair[0]) <= 38][100:1300:300]:
        print(f"{foreign:40} {english}")
    print(f"… {len(pairs.train):,} pairs to learn from, {len(pairs.test):,} to test on\n")

# %% [markdown]
# (That is little. The nets that section 8 is about learned English to French from 12 million pairs and more.)
#
# Could one translate with a dictionary, word by word? What is the English for *bonjour*?

# %%
greetings = [pair for pair in french_pairs.train if "bonjour" in pair[0].lower()]
for french, english in greetings[:8]:
    print(f"{french:50} {english}")

# %% [markdown]
# It depends on what stands around it. And this pair, which goes with us through lessons 02 to 08, shows two more
# reasons: the words come in another order, and the two sides have different lengths.

# %%
our_pair = next(p for p in german_pairs.train if p[1] == "The orcs have attacked the humans.")
print(" | ".join(our_pair))
lengths = [(len(german.split()), len(english.split())) for german, english in german_pairs.train]
unequal = sum(g != e for g, e in lengths) / len(lengths)
print(f"different number of words: {unequal:.0%}; the longest has {max(g for g, _ in lengths)} words")

# %% [markdown]
# So we want a function from a sequence of *any* length to another of *any* length, where each output may depend on
# *every* input. A matrix has a fixed size; it can't do that. What can?

# %% [markdown]
# ## 2 A net that reads
#
# Read as you read this line: from left to right, and keep in mind what you have read. What is kept in mind is a vector
# of fixed width, the **state** $h_t$. Each new word $x_t$ changes it, by the same rule at every place (Elman 1990):
#
# $$h_t = g(W h_{t-1} + U x_t + b)$$
#
# with $g = \tanh$, and $h_0 = 0$. That is a **recurrent** net, since its output recurs as its input. Think of a
# notebook with a single page: to write something down, you have to write over something else.


# %%
class Plain(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.U, self.W = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, h, x):                                # (batch, width), (batch, width)
        return torch.tanh(self.W(h) + self.U(x))            # (batch, width)


def read(cell, x):                                          # (batch, length, width)
    states = [torch.zeros_like(x[:, 0])]                    # h_0
    for x_t in x.unbind(dim=1):                             # (batch, width)
        states.append(cell(states[-1], x_t))
    return states[1:]                                       # h_1 … h_n, each (batch, width)


# %% [markdown]
# One rule, any length. torch has it ready, as `nn.RNN`. With the same weights, do both read alike?

# %%
torch.manual_seed(0)
cell, theirs = Plain(8), nn.RNN(8, 8, batch_first=True)
with torch.no_grad():
    theirs.weight_ih_l0.copy_(cell.U.weight)
    theirs.bias_ih_l0.copy_(cell.U.bias)
    theirs.weight_hh_l0.copy_(cell.W.weight)
    theirs.bias_hh_l0.zero_()                               # a second bias, where one is enough
x = torch.randn(3, 20, 8)                                   # (batch, length, width)
prove_equal(torch.stack(read(cell, x), dim=1), theirs(x)[0], what="Your states and nn.RNN's")

# %% [markdown]
# ### A test: how did the sentence begin?
#
# Whoever translates a sentence begins with its first words, after having read all of it. So the last state must still
# know the first word. Does it? We take German sentences that begin with one of the 16 most frequent first tokens, let
# the net read to the end, and ask the last state which one it was. (The tokens are lesson 01's byte pairs, from the
# vocabulary of a translator that comes with the course.)

# %%
vocabulary = Tokenizer.load(shipped("games-de-en") / "tokenizer.json")


def by_length(sentences, starters=None):
    rows = [ids for ids in vocabulary.encode_batch(sentences) if 4 <= len(ids) <= 27]
    starters = starters or [id for id, _ in Counter(row[0] for row in rows).most_common(16)]
    groups = {}
    for row in rows:
        if row[0] in starters:
            groups.setdefault(len(row), []).append(row)
    return {n: torch.tensor(group) for n, group in sorted(groups.items())}, starters


to_learn, starters = by_length([german for german, _ in german_pairs.train])
to_test, _ = by_length([german for german, _ in german_pairs.test + german_pairs.validation], starters)
print([vocabulary.token(id) for id in starters])

# %% [markdown]
# The sentences lie in groups of equal length, so nothing needs padding. The model is an embedding, a cell that reads,
# and 16 logits of the last state:


# %%
class Reader(nn.Module):
    def __init__(self, cell, width=64):
        super().__init__()
        self.embedding = nn.Embedding(len(vocabulary), width)
        self.cell, self.output = cell(width), nn.Linear(width, 16)

    def states(self, ids):                                  # (batch, length)
        return read(self.cell, self.embedding(ids))         # h_1 … h_n, each (batch, width)

    def forward(self, ids):
        return self.output(self.states(ids)[-1])            # (batch, 16)


def beginnings(ids):                                        # (batch, length)
    return torch.tensor([starters.index(id) for id in ids[:, 0].tolist()])  # (batch,)


# %% [markdown]
# Three hundred steps of 64 sentences, with Adam (lesson 06 takes it apart). If all gradients together, as one long
# vector, are longer than 1, they are shortened to length 1, so that a wild one does no harm.


# %%
def learn_beginnings(cell, seed, steps=300):
    torch.manual_seed(seed)
    dice, model = random.Random(seed), Reader(cell)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    counts = [len(group) for group in to_learn.values()]
    for _ in progress(range(steps), f"{cell.__name__}, start {seed}"):
        group = dice.choices(list(to_learn.values()), counts)[0]
        ids = group[torch.randint(len(group), (64,))]       # (64, length)
        loss = F.cross_entropy(model(ids), beginnings(ids))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


# %% [markdown]
# And how often it is right, for test sentences of some lengths:


# %%
@torch.no_grad()
def share_right(model, shortest, longest):
    groups = [ids for n, ids in to_test.items() if shortest <= n <= longest]
    right = [model(ids).argmax(dim=-1) == beginnings(ids) for ids in groups]
    return torch.cat(right).float().mean().item()


# %% [markdown]
# Guessing gives one in 16; always the most frequent one, about one in five. Where this course says that one thing is
# better than another, it tries three random starts:

# %% tags=["nbval-ignore-output"]
plain = [learn_beginnings(Plain, seed) for seed in (1, 2, 3)]
SPANS = [(4, 7), (8, 11), (12, 15), (16, 19), (20, 23), (24, 27)]
for shortest, longest in SPANS:
    shares = "  ".join(f"{share_right(model, shortest, longest):4.0%}" for model in plain)
    print(f"{shortest:2} to {longest:2} tokens: first token known  {shares}")
expect("Known after 20 to 27 tokens, the best start", max(share_right(m, 20, 27) for m in plain), 0.15, 0.75)

# %% [markdown]
# It forgets, and on the whole the more, the longer the sentence is.
#
# ### The vanishing gradient
#
# Or has it never learned to remember? To learn it, the loss at the end must tell the *beginning* what to change. By the
# chain rule, that message passes through every step in between:
#
# $$\frac{\partial\,\text{loss}}{\partial h_t} = \frac{\partial\,\text{loss}}{\partial h_n}
# \prod_{k=t+1}^{n} \operatorname{diag}(1 - h_k^2)\, W$$
#
# (Gradients are rows here, so the factor of the last step stands first.) Each step multiplies by $W$ and by the slope
# of the tanh, $1 - h_k^2$, which is at most 1. A product of twenty matrices that all shrink a vector is next to
# nothing; of twenty that all stretch it, it is gigantic (Bengio et al. 1994). We measure it, on sentences of 24 tokens:
# how large is the gradient at each distance from the end, compared with that at the end?


# %% tags=["nbval-ignore-output"]
def gradient_by_distance(model):                            # at 24 tokens, averaged over sentences
    ids = to_test[24]
    states = model.states(ids)
    for h in states:
        h.retain_grad()
    F.cross_entropy(model.output(states[-1]), beginnings(ids)).backward()
    sizes = torch.stack([h.grad.norm(dim=-1) for h in reversed(states)])  # (distance, sentence)
    return (sizes / sizes[0]).clamp(min=1e-30).log().mean(dim=-1).exp().tolist()


torch.manual_seed(1)
curves = {"plain, new": gradient_by_distance(Reader(Plain))}
curves["plain, trained"] = gradient_by_distance(plain[0])
print("15 tokens back:", {name: f"{curve[15]:.0e}" for name, curve in curves.items()})

# %% [markdown]
# The first word is told next to nothing. So *that* is why it is forgotten: a net can only learn to keep what it gets
# told to keep.
#
# ### Gates
#
# The cure is a state that is not written anew at each step, but *kept*, unless something says otherwise. A **gate** is
# a number between 0 and 1 for each entry of the state, computed from the word and the state: how far is the door open?
# The **gated recurrent unit** (GRU; Cho et al. 2014) has two:
#
# $$\begin{aligned}
# r_t &= \sigma(U_r x_t + W_r h_{t-1} + b_r) &&\text{reset: how much of the past the proposal sees}\\
# z_t &= \sigma(U_z x_t + W_z h_{t-1} + b_z) &&\text{update: how much of the past is kept}\\
# n_t &= \tanh(U_n x_t + b_n + r_t \odot (W_n h_{t-1} + b'_n)) &&\text{the proposal}\\
# h_t &= (1 - z_t) \odot n_t + z_t \odot h_{t-1}
# \end{aligned}$$
#
# ($\sigma$ is the sigmoid, $\odot$ multiplies entry by entry.) Look at the last line. Where $z_t = 1$, the state passes
# unchanged, and so does its gradient: it is multiplied by 1, not by $W$. This is how torch has it. Papers differ: in
# some, $z$ and $1 - z$ change places, and $r_t$ multiplies $h_{t-1}$ *before* the matrix. (The older LSTM, Hochreiter
# and Schmidhuber 1997, has a second state, the memory cell, for the same purpose. Its third gate, which lets it forget,
# came later: Gers et al. 2000.)


# %%
class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.U, self.W = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)

    def forward(self, h, x):                                # (batch, width), (batch, width)
        Ur, Uz, Un = self.U(x).chunk(3, dim=-1)             # each (batch, width)
        Wr, Wz, Wn = self.W(h).chunk(3, dim=-1)             # each (batch, width)
        r, z = torch.sigmoid(Ur + Wr), torch.sigmoid(Uz + Wz)
        n = torch.tanh(Un + r * Wn)                         # (batch, width): the proposal
        return (1 - z) * n + z * h                          # (batch, width)


cell, theirs = Gated(8), nn.GRU(8, 8, batch_first=True)
weights = cell.U.weight, cell.W.weight, cell.U.bias, cell.W.bias
theirs.load_state_dict(dict(zip(theirs.state_dict(), weights)))
prove_equal(torch.stack(read(cell, x), dim=1), theirs(x)[0], what="Your states and nn.GRU's")

# %% [markdown]
# The same test, the same sentences, the same number of steps:

# %% tags=["nbval-ignore-output"]
gated = [learn_beginnings(Gated, seed) for seed in (1, 2, 3)]
known = {"plain": plain, "gated": gated}
plots.lines(
    {f"{name} {start}": ([sum(span) / 2 for span in SPANS], [share_right(m, *span) for span in SPANS])
     for name, models in known.items() for start, m in enumerate(models, start=1)},
    title="With gates, the first word is remembered", marker="o",
    xlabel="length of the sentence (tokens)", ylabel="share of first tokens known",
    alt="Share of first tokens known against sentence length, three starts each. Gated: all at 1. "
    "Plain: between 0.3 and 0.6 for short sentences, and less for long ones.",
)

# %% [markdown]
# And what reaches the beginning? Before you look: will the gradient of a *new* gated net, which has learned nothing
# yet, vanish too?

# %% tags=["nbval-ignore-output"]
torch.manual_seed(1)
curves["gated, new"] = gradient_by_distance(Reader(Gated))
curves["gated, trained"] = gradient_by_distance(gated[0])
plots.lines(
    {name: (range(24), curve) for name, curve in curves.items()}, yscale="log",
    title="Trained gates let the gradient through", xlabel="tokens back from the end",
    ylabel="gradient, relative to the end",
    alt="Gradient against distance, logarithmic. Plain, new and trained, and gated, new, fall in "
    "straight lines to between a thousandth of a percent and far less. Gated, trained, stays level "
    "near 0.7 at every distance.",
)

# %% [markdown]
# It does. Gates are no magic: a new one stands half open, $z \approx 1/2$, and half of a half of a half is soon
# nothing. But it vanishes more slowly, and a little must get through for the gates to learn. Then they open wide,
# $z \approx 1$, in the entries that carry the first word: the trained net hands it on, and the gradient comes back
# along the same way, with most of its size. The numbers:

# %% tags=["nbval-ignore-output"]
for name, curve in curves.items():
    print(f"{name:14} per step × {curve[20] ** (1 / 20):.2f};  20 tokens back {curve[20]:.0e}")
expect("Gradient 20 tokens back, gated and trained", curves["gated, trained"][20], 0.3, 1.1)

# %% [markdown]
# ## 3 A translator: one net reads, another writes
#
# Now the answer of Cho et al. and Sutskever et al. (both 2014): use two recurrent nets. The **encoder** reads the
# source and turns it into one vector, the **context** $c$. The **decoder** starts from it, and writes one word after
# the other, until it writes a special end token:
#
# $$h_t = g_\text{enc}(h_{t-1}, x_t) \qquad c = q(h_1 \dots h_{T_x}) \qquad
# s_t = g_\text{dec}(s_{t-1}, y_{t-1}, c) \qquad y_t = g_\text{out}(s_t, y_{t-1}, c)$$
#
# $x_t$ are the source's words, $T_x$ of them, and $y_t$ the target's; $y_0$ is a special start token. $h$ are the
# encoder's states and $s$ the decoder's. All that the decoder ever learns of the source is $c$. (Cho et al. hand it to
# every step, as here; with Sutskever et al. it is the decoder's first state and no more. $h$ is the encoder's state in
# this lesson. From lesson 04 on it is the number of heads.)

# %%
figures.recurrent_translator(
    "Die Orks haben die Menschen angegriffen !".split(),
    "The orcs have attacked the humans .".split(),
    title="All that the decoder knows of the sentence is one vector",
    alt="Below, seven encoder states in a row, each fed by a German word and by the state before. From "
    "the last one an arrow leads to a box c. From c, arrows lead to all seven decoder states above, "
    "each of which writes an English word and hands it on to the next.",
)

# %% [markdown]
# Four choices, which you will also find in the library. $g_\text{enc}$ and $g_\text{dec}$ are GRUs. The encoder reads
# from both ends: one GRU from the left and one from the right, each with half the width; $h_i$ is both states side by
# side. $q$ takes the last state of each (the GRU from the right ends at the first word), and
# $s_0 = \tanh(\text{start}(c))$. One matrix holds the vectors of all tokens, and is used again for the logits.


# %%
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from txlib.layers import TokenEmbedding


class Translator(nn.Module):
    def __init__(self, vocab_size, width):
        super().__init__()
        self.embedding = TokenEmbedding(vocab_size, width)  # a row for each token, times √width
        self.encoder = nn.GRU(width, width // 2, bidirectional=True, batch_first=True)
        self.start = nn.Linear(width, width)
        self.decoder = nn.GRU(2 * width, width, batch_first=True)
        self.combine = nn.Linear(3 * width, width)

    def encode(self, input_ids, attention_mask):            # (batch, source); 1 = a real token
        x, lengths = self.embedding(input_ids), attention_mask.sum(dim=1)
        x = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.encoder(x)[0], batch_first=True)[0]  # (batch, source, width)


# %% [markdown]
# (A batch holds sentences of different lengths, filled up with padding. `pack_padded_sequence` tells the GRU where each
# one ends, so that none reads padding.) Next, $q$, and one step of the decoder; the class gets these methods further
# down. `context` is a method of its own, because it is what section 5 will change: here it does not look at $s$ at all.


# %%
def q(h, attention_mask):                                   # (batch, source, width)
    half, end = h.shape[-1] // 2, attention_mask.sum(dim=1) - 1
    forwards = h[torch.arange(len(h)), end, :half]          # (batch, width / 2): the last real token's
    return torch.cat([forwards, h[:, 0, half:]], dim=-1)    # (batch, width)


def context(self, s, h, attention_mask):                    # -> c and the weights of h
    return q(h, attention_mask), None


def step(self, y, s, c):                                    # each (batch, width)
    _, s = self.decoder(torch.cat([y, c], dim=-1)[:, None], s[None])
    out = torch.tanh(self.combine(torch.cat([s[0], y, c], dim=-1)))  # (batch, width)
    return s[0], out @ self.embedding.weight.T              # s_t, and logits (batch, vocab)


# %% [markdown]
# In training, the decoder gets as $y_{t-1}$ the word that *should* stand there, whatever it would have written itself.
# So its input is the target, moved one place to the right. (This is *teacher forcing*; more in lesson 08.)


# %%
def decode(self, decoder_input_ids, h, attention_mask):     # (batch, target), (batch, source, width)
    s, logits, weights = torch.tanh(self.start(q(h, attention_mask))), [], []
    for y in self.embedding(decoder_input_ids).unbind(dim=1):  # (batch, width)
        c, a = self.context(s, h, attention_mask)
        s, scores = self.step(y, s, c)
        logits.append(scores)
        weights.append(a)
    return torch.stack(logits, dim=1), weights              # (batch, target, vocab)


Translator.context, Translator.step, Translator.decode = context, step, decode

# %% [markdown]
# Next, batches of sentences of about the same length. `collate` makes one: it appends the end token, pads, and moves
# the target to the right; a label of −100 is padding, which no loss counts.

# %%
PAD, BOS, EOS = vocabulary.pad_id, vocabulary.bos_id, vocabulary.eos_id


def encode_pairs(pairs):
    return list(zip(*(vocabulary.encode_batch(side) for side in zip(*pairs)), strict=True))


def batches_of(encoded, tokens):
    groups = batches_by_length([(len(a) + 1, len(b) + 1) for a, b in encoded], tokens, seed=0)
    return [(group, collate([encoded[index] for index in group], BOS, EOS, PAD)) for group in groups]


# %% [markdown]
# The training loop is the one of section 2, with a whole sentence's loss:


# %%
def learn(model, batches, what):
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=3e-3), []
    for _, batch in progress(batches, what):
        h = model.encode(batch.input_ids, batch.attention_mask)
        logits, _ = model.decode(batch.decoder_input_ids, h, batch.attention_mask)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


# %% [markdown]
# See it learn, for 20 seconds, on sentences of at most 8 words. Blind guessing among the 4,000 tokens has a loss of
# $\ln 4000 = 8.3$. (The logarithm is the natural one, and so the unit is called a **nat**.)

# %% tags=["nbval-ignore-output"]
short = encode_pairs(translation("games", max_words=8).train)
torch.manual_seed(0)
small = Translator(len(vocabulary), 96)
losses = learn(small, batches_of(short, 700)[:200], "training from nothing")
smooth = torch.tensor(losses).unfold(0, 20, 1).mean(dim=-1).tolist()
plots.lines(
    {"training": (range(20, 20 + len(smooth)), smooth)}, title="It learns",
    xlabel="training step", ylabel="loss (nats), mean of 20",
    alt="The loss falls from about 7.5, quickly at first, to about 5 after 200 steps.",
)

# %% [markdown]
# It works, and it is far from done. Two models of this kind come with the course: one as you have built it, and one
# with what section 5 adds. Each has learned for 5,000 steps from all 29,300 pairs; together that took 17 minutes of
# one CPU core. This made them, with the library's loop:
#
# ```
# python data/recurrent_translators.py
# ```
#
# Their weights fit into our class. (The library can stack layers, so it has longer names for the first one.)


# %%
def load(model, name):
    weights = load_file(shipped(name) / "model.safetensors")
    names = {each: each.replace("_layers.0.cell", "") for each in weights}
    model.load_state_dict({names[each]: weight.float() for each, weight in weights.items()})
    return model.eval()


plain = load(Translator(len(vocabulary), 160), "games-de-en-rnn-plain")
print(f"{sum(weight.numel() for weight in plain.parameters()):,} parameters")

# %% [markdown]
# To write, take the likeliest next word, feed it back, and go on until the end token. This is *greedy* decoding.


# %%
@torch.no_grad()
def write(model, batch, longest=50):
    h = model.encode(batch.input_ids, batch.attention_mask)
    s = torch.tanh(model.start(q(h, batch.attention_mask)))
    word, written = torch.full((len(h),), BOS), []          # (batch,)
    for _ in range(longest):
        c, _ = model.context(s, h, batch.attention_mask)
        s, logits = model.step(model.embedding(word[:, None])[:, 0], s, c)
        word = logits.argmax(dim=-1)                        # (batch,)
        written.append(word)
        if (torch.stack(written) == EOS).any(dim=0).all():
            break
    return torch.stack(written, dim=1).tolist()             # (batch, length)


# %% [markdown]
# Sentences of one length go together; then each takes its place again:


# %%
def translate(model, sentences):
    results = {}
    for group, batch in batches_of([(ids, []) for ids in vocabulary.encode_batch(sentences)], 4000):
        for index, ids in zip(group, write(model, batch), strict=True):
            results[index] = vocabulary.decode(ids[: ids.index(EOS)] if EOS in ids else ids)
    return [results[index] for index in range(len(sentences))]


# %% [markdown]
# The test sentences, which no training has seen, a few short ones and a few long ones:

# %% tags=["nbval-ignore-output"]
german, english = zip(*german_pairs.test, strict=True)
by_plain = translate(plain, german)
words = [len(sentence.split()) for sentence in german]
for low, high in ((4, 5), (14, 15)):
    for index in [i for i, count in enumerate(words) if low <= count <= high][3:60:19]:
        print(f"{german[index]}\n    human: {english[index]}\n    model: {by_plain[index]}")

# %% [markdown]
# It has learned how sentences of these games go, and little of what these say: here and there a beginning fits (*I*,
# *But*), then it goes on fluently about something else. Is the length to blame, and by how much? We need a number.
# **BLEU** counts how many runs of up to four words a translation shares with a human's, from 0 to 100 (lesson 08 builds
# it). Here it is for the test sentences by length:

# %% tags=["nbval-ignore-output"]
from txlib.recipes.translation import bleu

LENGTHS = [(1, 4), (5, 9), (10, 14), (15, 26)]              # words of the source


def bleu_by_length(hypotheses):
    scores = []
    for low, high in LENGTHS:
        some = [index for index, count in enumerate(words) if low <= count <= high]
        scores.append(bleu([hypotheses[i] for i in some], [english[i] for i in some]))
    return scores


plain_scores = bleu_by_length(by_plain)
for (low, high), score in zip(LENGTHS, plain_scores):
    print(f"{low:2} to {high:2} words: {sum(low <= count <= high for count in words):3} sentences, BLEU {score:4.1f}")

# %% [markdown]
# BLEU so near 0 is a blunt tool. So ask more directly: how much does the model *use* the source? We hand the decoder the
# right target, and measure its loss per token twice: with the right source, and with that of another sentence of about
# the same length. The difference is what the source is **worth**, in nats per token.


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def token_losses(model, batch, order):                      # -> (batch, target), 0 where no token is
    h = model.encode(batch.input_ids[order], batch.attention_mask[order])
    logits, _ = model.decode(batch.decoder_input_ids, h, batch.attention_mask[order])
    return F.cross_entropy(logits.mT, batch.labels, ignore_index=-100, reduction="none")


# %% [markdown]
# `order` says which source each target gets. Now by the length of the source:


# %% tags=["nbval-ignore-output"]
def worth_by_length(model):
    gained, count = torch.zeros(len(LENGTHS)), torch.zeros(len(LENGTHS))
    for group, batch in batches_of(encode_pairs(german_pairs.test), 4000):
        right = torch.arange(len(group))
        gain = token_losses(model, batch, right.roll(1)) - token_losses(model, batch, right)
        for index, row, labels in zip(group, gain, batch.labels, strict=True):
            place = next(i for i, (low, high) in enumerate(LENGTHS) if low <= words[index] <= high)
            gained[place] += row.sum()
            count[place] += (labels >= 0).sum()
    return (gained / count).tolist()


plain_worth = worth_by_length(plain)
print("worth of the source, nats per token:", [round(nats, 2) for nats in plain_worth])

# %% [markdown]
# The longer the sentence, the less a token of its translation gets from it. One vector has to do for all of them. That
# alone proves little: perhaps long sentences are just harder. Keep these numbers until section 5, where a rival with
# the same GRUs reads the same sentences.

# %% [markdown]
# ## 4 Near and far
#
# Look at this sentence: *The **chef** who fed us all through the long winter **was** tired.* It is the chef who was
# tired, not the winter, though the winter stands next to *was*. What belongs together is far apart in the line. In our
# pair it is the two halves of a German verb, *haben … angegriffen*. How far apart do they stand in our sentences? We
# count where an auxiliary is followed by a participle (*ge…t* or *ge…en*) at the end. (That passes over verbs with a
# prefix, such as our own *an-ge-griffen*.)

# %%
HELPERS = {"habe", "hast", "hat", "haben", "habt", "bin", "bist", "ist", "sind", "seid", "wurde", "wurden"}


def verb_distance(sentence):                                # words from the auxiliary to the participle
    row = sentence.strip(".!?…\"'").split()
    found = [place for place, word in enumerate(row) if word.lower() in HELPERS]
    if found and row[-1].startswith("ge") and row[-1].endswith(("t", "en")):
        return len(row) - 1 - found[-1]


distances = sorted(filter(None, map(verb_distance, (german for german, _ in german_pairs.train))))
print(f"{len(distances):,} such verbs; their halves are {distances[len(distances) // 2]} words apart (median),")
print(f"in one case of ten {distances[len(distances) * 9 // 10]} or more; at most {distances[-1]}")

# %% [markdown]
# How far two words must travel before they meet is their **interaction distance**. In a recurrent net it is *linear*:
# from word $i$ to word $j$ it takes $|i - j|$ steps, and each of them may overwrite what it carries. Neighbours meet at
# once, everything else later. This *locality* is baked into the net, before it has seen a single sentence. It is a good
# first guess about language, since neighbours do belong together more often than not. But where it is wrong, the net
# has to learn against it.
#
# How local is our trained encoder? We ask how much the last state moves when the vector of a word $k$ places before it
# moves a little:

# %% tags=["nbval-ignore-output"]
def influence(model, ids, back=12):                         # (batch, length): sentences of one length
    x = model.embedding(ids).detach().requires_grad_()      # (batch, length, width)
    h, _ = model.encoder(x)                                 # (batch, length, width)
    half = h.shape[-1] // 2
    torch.manual_seed(0)
    (h[:, -1, :half] @ torch.randn(half, 16)).sum().backward()  # the forward half, at the end
    return x.grad.norm(dim=-1).mean(dim=0).flip(0)[: back + 1]  # (distance,)


moved = influence(plain, torch.cat([ids for n, ids in to_test.items() if n == 20]))
print("share of the influence of the last 13 tokens on the last state:")
for k, share in enumerate((moved / moved.sum()).tolist()):
    print(f"{k:3} back {share:4.0%} {'█' * round(60 * share)}")

# %% [markdown]
# Training has worked against it. The gates keep something of everything: the token twelve back still weighs more than
# half as much as any near one. (The last one, 0 back, is mostly a full stop.) But the more is kept, the less of each:
# all twenty have to share one state.

# %% [markdown]
# ## 5 The cure: look back
#
# You would not translate like that. You read the sentence, and then, for each word you write, you look back at the part
# that you need now. Bahdanau, Cho and Bengio (2015) let the decoder do the same. The encoder has made a state for each
# word, $h_1 \dots h_{T_x}$, and so far all but the last were thrown away. Keep them all. For each step $t$, mix a
# context of its own:
#
# $$e_{t,i} = v^\top \tanh(W s_{t-1} + U h_i) \qquad
# a_{t,i} = \frac{\exp e_{t,i}}{\sum_j \exp e_{t,j}} \qquad c_t = \sum_i a_{t,i} h_i$$
#
# Read it from left to right. The *score* $e_{t,i}$ says how well word $i$ fits what the decoder is about to write: a
# small net reads both vectors, and is trained with everything else. It is called **additive**, as it adds them. The
# softmax turns the scores of one step into shares that add up to 1. (Some lectures leave it out, and take the scores
# for weights. Then $c_t$ would grow with the length of the sentence.) The context is the mixture. No word is further
# away than any other: each is *one* step from where it is needed.


# %%
class Additive(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)    # W, for the one who asks
        self.key = nn.Linear(width, width, bias=False)      # U, for those who may answer
        self.v = nn.Parameter(torch.randn(width) * width**-0.5)

    def forward(self, s, h, attention_mask):                # (batch, width), (batch, source, width)
        both = torch.tanh(self.query(s)[:, None] + self.key(h))  # (batch, source, width)
        score = both @ self.v                               # (batch, source)
        score = score.masked_fill(attention_mask == 0, -1e9)  # padding gets no share
        return score.softmax(dim=-1)                        # (batch, source)


# %% [markdown]
# In the translator, only `context` changes. The same $s_{t-1}$ that hands over the past now also asks the question.


# %%
class Attending(Translator):
    def __init__(self, vocab_size, width):
        super().__init__(vocab_size, width)
        self.attention = Additive(width)

    def context(self, s, h, attention_mask):
        a = self.attention(s, h, attention_mask)            # (batch, source)
        return (a[:, None] @ h)[:, 0], a                    # (batch, width): the mixture


attending = load(Attending(len(vocabulary), 160), "games-de-en-rnn")
more = sum(weight.numel() for weight in attending.attention.parameters())
print(f"{more:,} parameters more, {more / sum(w.numel() for w in plain.parameters()):.0%}")

# %% [markdown]
# Where does it look? We hand it our pair. (It stands in the training set; further down are pairs that do not.)


# %%
@torch.no_grad()
def look(model, batch):                                     # -> (batch, target, source)
    h = model.encode(batch.input_ids, batch.attention_mask)
    _, weights = model.decode(batch.decoder_input_ids, h, batch.attention_mask)
    return torch.stack(weights, dim=1)


def tokens(ids):
    return [vocabulary.token(id).replace("▁", "") for id in ids]


# %% [markdown]
# One of its steps, the one that writes *orcs*:


# %%
(source, target), = encode_pairs([our_pair])
ours = look(attending, collate([(source, target)], BOS, EOS, PAD))[0]  # (target, source)
at = tokens(target).index("orcs")
figures.recurrent_translator(
    tokens(source), tokens(target), weights=ours[at, : len(source)], step=at,
    title="For each word that it writes, the decoder mixes a context of its own",
    alt="The same two rows of states; the encoder's are now linked in both directions. From each encoder "
    "state a line leads to the context c of the token orcs, the thicker, the larger its weight. By far "
    "the thickest comes from Orks.",
)

# %% [markdown]
# All its steps at once are a table, and the table is an **alignment**: which word was translated from which. Nobody
# told the model. It learned from sentence pairs alone that looking there helps.

# %%
plots.heatmap(
    ours, rows=[*tokens(target), "⟨end⟩"], columns=[*tokens(source), "⟨end⟩"], size=0.55,
    title="orcs is found; the verb at the end is not, yet", xlabel="looks at", ylabel="is to write",
    alt="Attention weights of our pair. The and orcs look at Die and Orks, humans at Menschen. The rows "
    "between scatter about the diagonal; attack looks at haben, and hardly at angegriffen, at the end.",
)

# %% [markdown]
# Where it is sure, it is right: *The* looks at *Die*, *orcs* at *Orks*, *humans* at *Menschen*. The verb is harder, as
# German has parted it. *have* and *attack* both look at *haben*, its first half. *angegriffen*, at the end, gets next to
# nothing, and *ed* no more than a glance. A model learns what is common first: most words stand near the diagonal. (The
# larger one of lesson 08 does look at the end.)

# %% [markdown]
# ### Is it the cure?
#
# The same GRUs, the same data, the same number of steps, and, for once, a single start of each. Before you look: for
# which sentences should the difference be largest?

# %% tags=["nbval-ignore-output"]
by_attending = translate(attending, german)
attending_scores, attending_worth = bleu_by_length(by_attending), worth_by_length(attending)
print("words     BLEU: one vector, attention    worth: one vector, attention, ratio")
for (low, high), *row in zip(LENGTHS, plain_scores, attending_scores, plain_worth, attending_worth):
    print("{:2} to {:2} {:15.1f} {:10.1f} {:21.2f} {:10.2f} {:7.2f}".format(low, high, *row, row[3] / row[2]))
print(f"all sentences: BLEU {bleu(by_plain, english):.1f} and {bleu(by_attending, english):.1f}")

# %% [markdown]
# As a picture:

# %%
middles = [sum(span) / 2 for span in LENGTHS]
plots.lines(
    {"one vector": (middles, plain_worth), "attention": (middles, attending_worth)}, marker="o",
    title="One vector is not enough", xlabel="words of the source",
    ylabel="worth of the source (nats per token)",
    alt="What the source is worth per token, against sentence length. Both lines fall, from 1.3 to 0.5 "
    "with one vector, and from 2.0 to 1.2 with attention.",
)

# %% [markdown]
# Both fall: long sentences *are* harder. But the advantage grows with the length: with attention a token gets 1.6 times
# as much from a short sentence, and 2.1 times as much from a long one. BLEU more than triples. Neither is a good
# translator. Both have learned for a few minutes from few sentences, and the paper's learned for days. Section 8 has
# its numbers, and lesson 08 a better model. But the cure works, and it cost 5 % more parameters.

# %% [markdown]
# ### Reordered, and found by a rule
#
# A map that a lesson shows may have been chosen because it is pretty. So here is a rule instead. Say that a token of the
# target *points* at a source token if it gives that one more weight than all the others together. Two tokens *cross* if
# the later one points further to the left. We count crossings in all held-out pairs with at most 12 target tokens, and take
# the pair that has most; of several, the one whose largest weights are largest on average.


# %%
def crossings(a):                                           # (target, source)
    sure = a.amax(dim=-1) > 0.5                             # (target,)
    place = a.argmax(dim=-1)[sure]                          # where they point
    return (place[:, None] > place).triu(1).sum().item()    # pairs: an earlier one, a later one


# %% [markdown]
# The search looks at all pairs, without choosing:


# %%
def search(model, pairs):
    encoded = [pair for pair in encode_pairs(pairs) if len(pair[1]) <= 12]
    found = []
    for group, batch in batches_of(encoded, 4000):
        for index, a in zip(group, look(model, batch), strict=True):
            source, target = encoded[index]
            a = a[: len(target), : len(source)]             # without end tokens and padding
            found.append((crossings(a), a.amax(dim=-1).mean().item(), source, target, a))
    return sorted(found, key=lambda each: each[:2], reverse=True)


# %% [markdown]
# And here is the winner:

# %% tags=["nbval-ignore-output"]
german_maps = search(attending, german_pairs.test)
count, _, source, target, a = german_maps[0]
plots.heatmap(
    a, rows=tokens(target), columns=tokens(source), numbers=False, size=0.4,
    title=f"Most crossings: {count}", xlabel="looks at", ylabel="is to write", bar="weight",
    alt="Attention weights of Sie dürfen sich dem Imperator nicht nähern and You may not approach the Emperor. not "
    "looks at nicht, near the end; Emperor, later, looks back at Imperator, before it.",
)

# %% [markdown]
# *not* stands third in English, and *nicht* last but one in German, after the emperor: the decoder jumps ahead, and for
# *Emperor* it comes back. (The three pieces of *Emperor* make it three crossings.) That is what no fixed order could do.

# %% [markdown]
# French moves other things than German: adjectives follow their nouns. (The paper translates *into* French. In its own
# map *zone économique européenne* looks at *European Economic Area* from its end to its beginning.) A third model
# translates from French, with a vocabulary of its own. What will the search find?

# %%
german_vocabulary, vocabulary = vocabulary, Tokenizer.load(shipped("games-fr-en-rnn") / "tokenizer.json")
french_model = load(Attending(len(vocabulary), 160), "games-fr-en-rnn")
french_maps = search(french_model, french_pairs.test)
count, _, source, target, a = french_maps[0]
plots.heatmap(
    a, rows=tokens(target), columns=tokens(source), numbers=False, size=0.4,
    title=f"In French: {count}", xlabel="looks at", ylabel="is to write", bar="weight",
    alt="Attention weights of Très bien Tallin and Very well, Tallin. All of them lie near the diagonal.",
)

# %% [markdown]
# Nothing: not one crossing, so the rule has gone by the weights alone, and shows a plain diagonal. A rule also finds
# what you would not have chosen. Does French need no reordering, then? A map is evidence of what the model did, and not
# of what is in the language. So count over all pairs, and count also how many rows point anywhere at all:

# %% tags=["nbval-ignore-output"]
for name, maps in {"German": german_maps, "French": french_maps}.items():
    none = sum(count == 0 for count, *_ in maps) / len(maps)
    pointing = torch.cat([a.amax(dim=-1) > 0.5 for *_, a in maps]).float().mean()
    print(f"{name}: no crossing in {none:.1%} of {len(maps)} pairs; {pointing:.0%} of the rows point")
vocabulary = german_vocabulary

# %% [markdown]
# Only about one row in five points anywhere. In the others, the model spreads its weight. So where a French adjective
# has changed places with its noun, this model does not say so clearly enough for our rule. From French it is the better
# translator nevertheless, as section 6 shows, perhaps because less has to be moved far.
#
# ### Additive, or an inner product?
#
# The score may be any function of the two vectors. Luong et al. (2015) tried simpler ones: the bilinear $s^\top W h$,
# and the plain inner product $s^\top h$. Lesson 03 takes the inner product, divided by a root. Why, if the additive one
# can compute more? Let 64 queries meet 64 keys in each of 16 sentences. (What reads only one side, $W s$ and $U h$, is
# done beforehand.) Predict first: how many times as long does the additive score take?

# %%
def milliseconds(work, repeats=9):                          # the fastest of them
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - start))
    return min(times)


# %% [markdown]
# What is computed, and what must be held in memory meanwhile:

# %%
d, n = 160, 64
asking, answering = torch.randn(16, n, d), torch.randn(16, n, d)  # (batch, n, d)
v = torch.randn(d)
scorers = {
    "additive": lambda s, h: torch.tanh(s[:, :, None] + h[:, None]) @ v,  # (batch, n, n)
    "inner product": lambda s, h: s @ h.mT,                 # (batch, n, n)
}
for name, width in {"additive": d, "inner product": 1}.items():
    print(f"{name:13} {16 * n * n * d:,} multiplications; {16 * n * n * width:10,} numbers held")

# %% [markdown]
# Equally many multiplications. But the additive score also takes ten million tanh, and they are expensive. And more
# has to be *held*: a vector of $d$ for each pair of a query and a key, since the tanh comes before the sum. An inner
# product never writes its $d$ products down. So all of them together are one matrix product, the thing that processors
# do best. The clock:

# %% tags=["nbval-ignore-output"]
needed = {name: milliseconds(lambda: score(asking, answering)) for name, score in scorers.items()}
print(f"the additive score takes {needed['additive'] / needed['inner product']:.0f} times as long")

# %% [markdown]
# And quality? Where people compared them carefully (Britz et al. 2017), the additive score was a little better at most
# widths, by less than one BLEU. At the largest width the inner product fell far behind. Vaswani et al. (2017, §3.2.1)
# suspect why: with wide vectors its scores grow large, unless they are scaled. Lesson 03 shows it, and what the root is
# for.

# %% [markdown]
# ## 6 Open the library
#
# `txlib` has the score and the translator. Below are the score, and the method in which each step of the decoder asks
# first. You will recognise your lines. What reads the keys alone, $U h$, is computed once per sentence (`project`), and
# not at each step as in ours.

# %%
from txlib.attention import AdditiveAttention
from txlib.generation import Translator as LibraryTranslator
from txlib.models import Seq2Seq
from txlib.models.pretrained import load_pretrained

show_source(AdditiveAttention.project, AdditiveAttention.score, Seq2Seq.attend_before, Seq2Seq.g_out)

# %% [markdown]
# Same weights, same sentences: the same numbers?

# %%
batch = collate(encode_pairs(german_pairs.test[:40]), BOS, EOS, PAD)
inputs = batch.input_ids, batch.attention_mask, batch.decoder_input_ids
for mine, name in ((plain, "rnn-plain"), (attending, "rnn")):
    library = load_pretrained(shipped(f"games-de-en-{name}"), dtype=torch.float32).eval()
    with torch.no_grad():
        logits, _ = mine.decode(inputs[2], mine.encode(*inputs[:2]), inputs[1])  # (batch, target, vocab)
        theirs = library(*inputs).logits                    # (batch, target, vocab)
    real = batch.labels >= 0                                # (batch, target)
    prove_equal(logits[real], theirs[real], tolerance=1e-4, what=f"{name}: your logits and the library's")
theirs = library.alignment(batch.input_ids, batch.decoder_input_ids, batch.attention_mask)
prove_equal(look(attending, batch)[real], theirs[real], what="The alignments")

# %% [markdown]
# The library's class also stacks layers, has LSTMs, and the other scores; `txlib train translation --model rnn` trains
# a larger one than ours. And it searches with a beam (lesson 08), which keeps four beginnings at a time and not only
# the likeliest. All three models were measured on all their test sentences when they had been trained:

# %% tags=["nbval-ignore-output"]
for name in ("games-de-en-rnn-plain", "games-de-en-rnn", "games-fr-en-rnn"):
    result = json.loads((shipped(name) / "result.json").read_text())
    print(f"{name:22} BLEU greedy {result['bleu_greedy']:4.1f}, beam of 4 {result['bleu']:4.1f}")
LibraryTranslator(library, vocabulary).translate(["Wo ist der König?", "Ich habe kein Gold."])

# %% [markdown]
# ## 7 What remains slow
#
# Attention has shortened the way from the source to the target. But both GRUs still go step by step: $h_t$ cannot begin
# before $h_{t-1}$ is done. Draw each net as a graph: the words stand at height 0, and each vector that the net computes
# is a node, at the height of the step in which it can be ready at the earliest. (Only the past is read here, so that
# all can be compared.)


# %%
def recurrent(n):
    return {(t + 1, t): [(0, t)] + [(t, t - 1)] * (t > 0) for t in range(n)}


def convolution(n, width, dilations):                       # one layer for each dilation
    return {(layer, i): [(layer - 1, i - k * gap) for k in range(width) if i - k * gap >= 0]
            for layer, gap in enumerate(dilations, start=1) for i in range(n)}


def attention(n):
    return {(1, i): [(0, j) for j in range(i + 1)] for i in range(n)}


# %% [markdown]
# Four nets read the beginning of section 4's sentence:

# %%
sentence = "The chef who fed us all winter was tired".split()
nets = {
    "recurrent": recurrent(9), "convolution, width 3": convolution(9, 3, [1, 1, 1, 1]),
    "dilated 1, 2, 4, width 3": convolution(9, 3, [1, 2, 4]), "attention": attention(9),
}
figures.reach(
    nets, sentence, title="How the last word gets to know the others, step by step",
    alt="Four graphs over nine words. Recurrent: a staircase of nine steps. Convolution of width 3: four "
    "layers, a triangle that just reaches the first word. Dilated convolution: three layers reach it. "
    "Attention: one layer, with a line from each word.",
)

# %% [markdown]
# Two things can be read off. How many steps must wait for one another, however many processors you have? That is the
# height. And how many lines lie between two words, that is, their interaction distance? (We start at the word itself.
# So in the recurrent net one line, from the word into its own state, comes on top of section 4's $|i - j|$.)


# %%
def top(net, place):                                        # the highest node at a place
    return max(node for node in net if node[1] == place)


def distance(net, word, end):                               # fewest lines from a word to a node
    nodes, lines = {end}, 0
    while (0, word) not in nodes:
        nodes, lines = {other for node in nodes for other in net.get(node, [])}, lines + 1
    return lines


for name, net in nets.items():
    print(f"{name:24} steps {max(net)[0]}; lines from the first word to the last {distance(net, 0, top(net, 8))}, "
          f"from chef to was {distance(net, 1, top(net, 7))}")

# %% [markdown]
# In general, for $n$ words, vectors of width $d$ and a convolution of width $k$ (Vaswani et al. 2017, Table 1):
#
# | | Operations per layer | Steps that wait | Longest distance |
# | --- | --- | --- | --- |
# | recurrent | $O(n\,d^2)$ | $O(n)$ | $O(n)$ |
# | convolution | $O(k\,n\,d^2)$ | $O(1)$ | $O(n/k)$; dilated $O(\log_k n)$ |
# | attention among the words themselves | $O(n^2 d)$ | $O(1)$ | $O(1)$ |
#
# $n\,d^2$: at each of $n$ steps a vector of $d$ meets matrices of $d \times d$. That is not much. Waiting is what makes
# it slow. How slow? We let `nn.GRU` read, and beside it compute *one* matrix product with as many operations.

# %%
d, n = 256, 256
gru, table = nn.GRU(d, d, batch_first=True), torch.randn(2 * d, 3 * d)


def gru_against_product(batch):
    x, rows = torch.randn(batch, n, d), torch.randn(batch * n, 2 * d)
    operations = batch * n * 2 * (d * 3 * d + d * 3 * d)    # U x and W h, three parts each
    assert operations == 2 * rows.shape[0] * 2 * d * 3 * d  # as many as rows @ table
    with torch.no_grad():
        return milliseconds(lambda: gru(x)), milliseconds(lambda: rows @ table)


# %% [markdown]
# For one sentence, and for sixteen side by side:

# %% tags=["nbval-ignore-output"]
for batch in (1, 16):
    reading, product = gru_against_product(batch)
    print(f"{batch:2} sentences of {n}: {n} steps take {reading / product:.1f} times as long as one product")

# %% [markdown]
# And that is a CPU, with a few cores. A GPU has thousands, and most of them would wait. A larger batch helps, as its
# sentences go side by side. But within a sentence nothing does: recurrence **cannot be parallelised** over its length.
# In training this hurts most, since there the whole target is known beforehand, and nothing *else* would have to wait.
#
# ### Another way out: convolutions
#
# The middle panels show it. A convolution computes each vector from its $k$ neighbours, at all places at once: as many
# steps as layers, whatever the length. What a vector can depend on is its **receptive field**. With $L$ layers of width
# $k$ it has $1 + L (k - 1)$ words; with **dilation**, where layer $l$ reads at places $2^{l-1}$ apart, it about doubles
# with each layer. Two translators were built like this: ByteNet (Kalchbrenner et al. 2016), with dilation and
# without attention, and ConvS2S (Gehring et al. 2017), with attention in every decoder layer. Both are in the library
# (`txlib.models.ByteNet`, `txlib.models.ConvSeq2Seq`). They train in parallel, and their distance is short, but not 1.

# %%
def receptive_field(width, dilations):                      # words, the last one included
    return 1 + sum((width - 1) * gap for gap in dilations)


for layers in (1, 2, 4, 8):
    gaps = [2**layer for layer in range(layers)]
    counted = convolution(600, 3, gaps)
    lit = {top(counted, 599)}
    for _ in range(layers):
        lit = {other for node in lit for other in counted[node]}
    assert len(lit) == receptive_field(3, gaps)
    print(f"layers {layers}: {receptive_field(3, [1] * layers):3} words, dilated {receptive_field(3, gaps):4}")

# %% [markdown]
# The third way is the right panel: let the words look at each other by attention, and leave the recurrence out
# altogether. That is the Transformer, and the rest of this course.

# %% [markdown]
# ## 8 What became of it
#
# Bahdanau et al. (2015, Table 1) trained on English and French: with sentences of up to 50 words, one vector reached a
# BLEU of 17.8, attention 26.8. Sutskever et al. (2014) got 34.8 without attention, but with five deep LSTMs of 384 M
# parameters each, 12 million sentence pairs, and the source written backwards, so that its beginning is fresh. Then
# nearly everybody took attention. BLEU on newstest2014, as Vaswani et al. (2017, Table 2) collected it:
#
# | System | made of | English–German | English–French |
# | --- | --- | --- | --- |
# | ByteNet (2016) | dilated convolutions | 23.75 | |
# | Deep-Att + PosUnk (2016) | deep LSTMs, attention | | 39.2 |
# | GNMT + RL (2016) | 8 LSTM layers on each side, attention | 24.6 | 39.92 |
# | ConvS2S (2017) | convolutions, attention in each layer | 25.16 | 40.46 |
# | MoE (2017) | GNMT with experts | 26.03 | 40.56 |
# | Deep-Att + PosUnk, ensemble | | | 40.4 |
# | GNMT + RL, ensemble | | 26.30 | 41.16 |
# | ConvS2S, ensemble | | 26.36 | 41.29 |
# | Transformer, base | attention alone | 27.3 | 38.1 |
# | Transformer, big | attention alone | 28.4 | 41.0 (later versions of the paper: 41.8) |
#
# What each cost to train, and what that says, is in lesson 10, section 10.
#
# Those systems differ in size, data and machines. What if only the kind of net differs? `benchmarks/translators.py`
# gave eight of them the same 29,000 sentence pairs (Multi30k: pictures described, German to English), 2.8 million
# parameters each, within 4 %, and two minutes of one CPU core. BLEU on the test sentences, a beam of 4, three seeds:
#
# | | Steps in two minutes | BLEU: mean (range) | Milliseconds per sentence |
# | --- | --- | --- | --- |
# | a GRU, one vector (as in section 3) | 706 | 17.1 (16.8–17.4) | 9 |
# | ByteNet: dilated convolutions | 549 | 19.3 (19.0–19.5) | 33 |
# | the Transformer, with all that its paper chose | 837 | 24.0 (23.7–24.2) | 12 |
# | LSTMs, four layers on each side, attention | 764 | 25.4 (24.1–26.1) | 20 |
# | a Universal Transformer (lesson 19) | 273 | 26.4 (26.3–26.5) | 33 |
# | a GRU with attention (as in section 5) | 625 | 27.3 (27.1–27.6) | 11 |
# | a Transformer of today (lesson 08) | 648 | 33.4 (32.8–33.7) | 17 |
# | ConvS2S: convolutions, attention in each layer | 1,033 | 34.6 (34.2–34.9) | 11 |
#
# Attention is worth ten points here as there. LSTMs with attention beat ByteNet, ConvS2S beats both, and the Universal
# Transformer the paper's, as published. One order is turned round: after two minutes the paper's Transformer is ten
# points *behind* ConvS2S, and today's recipe only nearly makes up for it. Its rates were chosen for 100,000 steps, on
# eight GPUs, where it does not have to wait as recurrent nets do. A short run on one core rewards what learns early.

# %% [markdown]
# ## 9 Quiz
#
# Decide first, then open an answer.
#
# **1. Why does a plain recurrent net forget the first word of a long sentence?**
#
# <details><summary>A. Its state is too narrow</summary>
#
# The gated net's state was just as wide, and forgot next to nothing. 64 numbers are plenty for one word of sixteen.
# </details>
# <details><summary>B. The loss at the end cannot tell the beginning what to keep</summary>
#
# Right. The gradient is multiplied at every step, by about one half in ours, and after twenty steps next to nothing is
# left.
# </details>
# <details><summary>C. It reads from left to right; from right to left it would not</summary>
#
# Then it would forget the last word instead.
# </details>
#
# **2. In the GRU above, an entry of $z_t$ is 1. What happens to that entry of the state?**
#
# <details><summary>A. It is kept as it is</summary>
#
# Right: $(1 - z) n + z h$ is then $h$. And its gradient is passed on whole.
# </details>
# <details><summary>B. It is written anew, from the proposal</summary>
#
# That is $z = 0$, here and in torch. In Bahdanau et al. (2015) it is the other way round: look at the last line of the
# equations before you copy weights.
# </details>
# <details><summary>C. It is set to 0</summary>
#
# No gate of a GRU can do that alone. $r = 0$ hides the past from the *proposal* only.
# </details>
#
# **3. Two vectors of attention weights, (0.2, 0.5, 0.3) and (2, 5, 3). Which of them can a step of the decoder have?**
#
# <details><summary>A. Both: what counts is which word gets most</summary>
#
# The context would be ten times as long in the second case, and with it everything after it.
# </details>
# <details><summary>B. The first</summary>
#
# Right. They come from a softmax: all positive, and their sum is 1. So the context stays inside the range of the
# states it mixes.
# </details>
# <details><summary>C. The second, before it is scaled</summary>
#
# Those might be the scores, but a score may as well be negative. Weights come after the softmax.
# </details>
#
# **4. Source and target have 20 words each. How many scores does the translator with attention compute?**
#
# <details><summary>A. 20</summary>
#
# That is one step of the decoder. Each step asks anew, with another $s_{t-1}$.
# </details>
# <details><summary>B. 40</summary>
#
# A score belongs to a *pair*, of a word read and a word written.
# </details>
# <details><summary>C. 400, or a few more</summary>
#
# Right: 21 by 21, with the end tokens. For a text of 10,000 words that number becomes a problem (part IV).
# </details>
#
# **5. You replace one GPU by a hundred. Which of these is then trained on one long sentence hardly any faster?**
#
# <details><summary>A. The recurrent net</summary>
#
# Right. Its steps wait for each other, however many processors stand by.
# </details>
# <details><summary>B. The convolutional net</summary>
#
# All places of a layer are computed at once. Only its few layers wait.
# </details>
# <details><summary>C. Attention among all words</summary>
#
# It has more to compute, $n^2$ scores, but all of them at once.
# </details>

# %% [markdown]
# ## 10 Summary
#
# - A recurrent net reads a sequence of any length into a state of fixed width. Every step changes the state, and
#   multiplies the gradient; gates can learn to leave both alone.
# - An encoder and a decoder with one context vector translate. But the longer the sentence, the less each token gets
#   from it, as one vector has to do for all.
# - Attention keeps all states, and mixes a context for each word that is written: score, softmax, average. It finds
#   alignments by itself, reordered ones too.
# - The additive score is a small net; the inner product is one matrix product, and holds $d$ times fewer numbers.
# - Steps that wait for one another remain, $n$ of them. Convolutions wait only for their layers, attention for one.
#
# **Read** Bahdanau, Cho and Bengio 2015, *Neural Machine Translation by Jointly Learning to Align and Translate*,
# [arXiv:1409.0473](https://arxiv.org/abs/1409.0473): sections 2 and 3, figures 2 and 3, and appendix A.1 for the gates
# (with $z$ the other way round). Sutskever et al. 2014, [arXiv:1409.3215](https://arxiv.org/abs/1409.3215), sections 2
# and 3.3; Cho et al. 2014, [arXiv:1406.1078](https://arxiv.org/abs/1406.1078), section 2.3. Luong et al. 2015,
# [arXiv:1508.04025](https://arxiv.org/abs/1508.04025), section 3.1, for the scores; Britz et al. 2017,
# [arXiv:1703.03906](https://arxiv.org/abs/1703.03906), who compared them. Bengio et al. 1994, *Learning Long-Term
# Dependencies with Gradient Descent Is Difficult*; Vaswani et al. 2017, section 4, for the table of section 7.
#
# **Do** the exercise [02_seq2seq](../exercises/exercise_02_seq2seq.ipynb). Then go on to
# [03 Attention as a soft lookup](03_attention.ipynb). It takes the three lines of section 5, score, softmax and
# average, out of the recurrent net, and looks at them by themselves.
