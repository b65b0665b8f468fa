# %% [markdown] lesson={"part": "I Attention", "builds": "recurrent nets, gates, Bahdanau's attention"}
# # 02 · Sequence to sequence
#
# **After this lesson you will be able to**
#
# - build a recurrent net and a GRU by hand, and say what gates are for, with an experiment;
# - put two of them together into a translator, and measure where one vector for a whole sequence is not enough;
# - build Bahdanau's attention, train it, and read its alignments;
# - count the steps that wait for one another, and say why people wanted to be rid of recurrence.
#
# **You need** lesson 01, matrix products, and the chain rule. **It takes** about 65 minutes to read and try; all cells
# together run in about a minute and a half on a laptop.

# %% [markdown]
# ## 1 The problem: from one sequence to another
#
# Lesson 01 turned text into a row of vectors. What is missing is a way to turn one row into another: a sentence into
# its translation, for example. (In one of the lectures the task is Chinese to English. Ours are German and French to
# English.)

# %% tags=["recorded"]
import json
import random
import time
from collections import Counter

import torch
import torch.nn.functional as F
from IPython.display import display
from safetensors.torch import load_file
from torch import nn

from txlib import plots
from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress
from txcourse.lesson import prove_equal, show_source
from txlib.data import batches_by_length, collate, shipped, translation
from txlib.paths import DATA
from txlib.text import Tokenizer

# %% [markdown]
# The sentences are dialogues of free computer games, and the whole course uses them. (They are few: the systems at the
# end of section 7 learned English–French from 12 million pairs and more.) Could one translate with a dictionary, word
# by word? Look at what the French *bonjour* becomes.

# %% tags=["recorded"]
german_pairs = translation("games", "de-en")
french_pairs = translation("games", "fr-en")
for pairs in (german_pairs, french_pairs):
    for foreign, english in [p for p in pairs.train if len(p[0]) <= 38][100:1300:300]:
        print(f"{foreign:40} {english}")
    print(f"… {len(pairs.train):,} pairs to learn, {len(pairs.test):,} to test on\n")
for french, english in [p for p in french_pairs.train if "bonjour" in p[0].lower()][:6]:
    print(f"{french:50} {english}")

# %% [markdown]
# It depends on the words around it. And the pair below, which will stay with us through lesson 09, shows two more
# difficulties: the words come in another order, and the two sides can have different lengths.

# %%
our_pair = next(p for p in german_pairs.train
                if p[1] == "The orcs have attacked the humans.")
print(" | ".join(our_pair))
lengths = [(len(german.split()), len(english.split()))
           for german, english in german_pairs.train]
unequal = sum(g != e for g, e in lengths) / len(lengths)
longest = max(g for g, _ in lengths)
print(f"different number of words: {unequal:.0%}; the longest has {longest} words")

# %% [markdown]
# So we want a function from a sequence of *any* length to another of *any* length, where each output may depend on
# *every* input. A matrix has a fixed size, so it can't do that. What can?

# %% [markdown]
# ## 2 A net that reads
#
# We have a vector for each word, and need one function for any number of them. Read as you read this line: from left
# to right, and keep in mind what you have read. What is kept in mind is the **state**. Each word changes it, by the
# same rule at every position. First with a state of a single number:

# %%
h = 0.0
for x in (1.0, 0.0, 0.0, -1.0):  # four "words"
    h = torch.tanh(torch.tensor(0.5 * h + x)).item()
    print(f"read {x:4}: h = tanh(0.5 · h + x) = {h:5.2f}")

# %% [markdown]
# The first word is still there after the second and the third, only weaker. Now a vector $h_t$ of fixed width, and
# matrices instead of the 0.5 (Elman 1990):
#
# $$h_t = g(W h_{t-1} + U x_t + b)$$
#
# with $g = \tanh$, and $h_0 = 0$. That is a **recurrent** net, since its output recurs as its input. Think of a
# notebook with a single page: to write something down, you have to write over something else.

# %% tags=["recorded"]
class Plain(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.U = nn.Linear(width, width)
        self.W = nn.Linear(width, width, bias=False)

    def forward(self, h, x):  # (batch, width), (batch, width)
        return torch.tanh(self.W(h) + self.U(x))  # (batch, width)


def read(cell, x):  # (batch, length, width)
    states = [torch.zeros_like(x[:, 0])]  # h_0
    for x_t in x.unbind(dim=1):  # (batch, width)
        states.append(cell(states[-1], x_t))
    return states[1:]  # h_1 … h_n, each (batch, width)


# %% [markdown]
# One rule, any length. PyTorch ships it as `nn.RNN`. Given the same weights, do the two agree?

# %%
torch.manual_seed(0)
cell, theirs = Plain(8), nn.RNN(8, 8, batch_first=True)
with torch.no_grad():
    theirs.weight_ih_l0.copy_(cell.U.weight)
    theirs.bias_ih_l0.copy_(cell.U.bias)
    theirs.weight_hh_l0.copy_(cell.W.weight)
    theirs.bias_hh_l0.zero_()  # a second bias, where one is enough
vectors = torch.randn(3, 20, 8)  # (batch, length, width)
mine = torch.stack(read(cell, vectors), dim=1)
prove_equal(mine, theirs(vectors)[0], what="Your states and nn.RNN's")

# %% [markdown]
# ### A test: how did the sentence begin?
#
# To translate a sentence, you begin with its first words, after having read all of it. So the last state must still
# know the first word. Does it? We take German sentences that begin with one of the 16 most frequent first tokens, let
# the net read to the end, and ask the last state which one it was. The tokens are lesson 01's byte pairs, and the
# sentences are sorted into groups of equal length, so that nothing needs padding (the folded cell does that):

# %% jupyter={"source_hidden": true} tags=["recorded"]
vocabulary = Tokenizer.load(shipped("games-de-en") / "tokenizer.json")


def by_length(sentences, starters=None):
    rows = [ids for ids in vocabulary.encode_batch(sentences) if 4 <= len(ids) <= 27]
    if starters is None:
        starters = [id for id, _ in Counter(row[0] for row in rows).most_common(16)]
    groups = {}
    for row in rows:
        if row[0] in starters:
            groups.setdefault(len(row), []).append(row)
    return {n: torch.tensor(group) for n, group in sorted(groups.items())}, starters


to_learn, starters = by_length([german for german, _ in german_pairs.train])
to_test, _ = by_length([german for german, _ in german_pairs.test + german_pairs.validation], starters)


def beginnings(ids):  # (batch, length)
    return torch.tensor([starters.index(id) for id in ids[:, 0].tolist()])  # (batch,)


print([vocabulary.token(id) for id in starters])

# %% [markdown]
# The model is an embedding, a cell that reads, and 16 logits of the last state:

# %% tags=["recorded"]
class Reader(nn.Module):
    def __init__(self, cell, width=64):
        super().__init__()
        self.embedding = nn.Embedding(len(vocabulary), width)
        self.cell, self.output = cell(width), nn.Linear(width, 16)

    def states(self, ids):  # (batch, length)
        return read(self.cell, self.embedding(ids))  # each (batch, width)

    def forward(self, ids):
        return self.output(self.states(ids)[-1])  # (batch, 16)


# %% [markdown]
# Three hundred steps of 64 sentences, with Adam (lesson 07 takes it apart). We **clip**: if the vector of all gradients
# is longer than 1, it is scaled to length 1, so that one wild batch does no harm.

# %% tags=["recorded"]
def learn_beginnings(cell, seed, steps=300):
    torch.manual_seed(seed)
    rng, model = random.Random(seed), Reader(cell)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    groups = list(to_learn.values())
    sizes = [len(group) for group in groups]
    for _ in progress(range(steps), f"{cell.__name__}, seed {seed}"):
        group = rng.choices(groups, sizes)[0]
        ids = group[torch.randint(len(group), (64,))]  # (64, length)
        loss = F.cross_entropy(model(ids), beginnings(ids))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


# %% [markdown]
# And how often is it right, on test sentences of different lengths?

# %% tags=["recorded"]
SPANS = [(4, 7), (8, 11), (12, 15), (16, 19), (20, 27)]  # tokens


@torch.no_grad()
def share_known(model):
    shares = []
    for low, high in SPANS:
        groups = [ids for n, ids in to_test.items() if low <= n <= high]
        right = [model(ids).argmax(dim=-1) == beginnings(ids) for ids in groups]
        shares.append(torch.cat(right).float().mean().item())
    return shares


# %% [markdown]
# Guessing is right one time in 16; always saying the most frequent token, about one time in five.

# %% tags=["nbval-ignore-output"]
plain = learn_beginnings(Plain, seed=0)
for (low, high), share in zip(SPANS, share_known(plain)):
    print(f"{low:2} to {high} tokens: first token known {share:4.0%}")
expect("Known after 20 to 27 tokens", share_known(plain)[-1], 0.1, 0.75)

# %% [markdown]
# It forgets: it knows at most six in ten of the first tokens even in short sentences, and fewer than half in long ones.

# %% [markdown]
# ## 3 What a net can learn to keep
#
# We have a net that reads, and it forgets. Why did it not *learn* to remember? To learn that, the loss at the end must
# tell the *beginning* what to change. That message is the gradient, and it passes through every step in between. Take a
# state of one number again, $h_t = \tanh(w\,h_{t-1})$. Near 0, tanh has a slope of 1, so each step multiplies the
# gradient by $w$. After 20 steps:

# %%
for w in (0.5, 0.9, 1.0, 1.5):
    print(f"w = {w}: the gradient is multiplied by {w**20:.1e}")

# %% [markdown]
# Half of a half of a half is soon nothing: the gradient **vanishes**. With a weight above 1 it **explodes**. In a net
# of any width the chain rule multiplies matrices instead of numbers:
#
# $$\frac{\partial\,\text{loss}}{\partial h_t} = \frac{\partial\,\text{loss}}{\partial h_n}
# \prod_{k=t+1}^{n} \operatorname{diag}(1 - h_k^2)\, W$$
#
# (Gradients are rows here, so the factor of the last step comes first.) $1 - h_k^2$ is the slope of the tanh, at most
# 1. A product of twenty matrices that all shrink a vector is next to nothing; of twenty that all stretch it, it is
# gigantic (Bengio et al. 1994). We measure it on sentences of 24 tokens: how large is the gradient at each distance
# from the end, compared with that at the end?

# %% tags=["recorded"]
def gradient_by_distance(model):  # averaged over sentences
    ids = to_test[24]
    states = model.states(ids)
    for h in states:
        h.retain_grad()
    F.cross_entropy(model.output(states[-1]), beginnings(ids)).backward()
    sizes = torch.stack([h.grad.norm(dim=-1) for h in reversed(states)])
    relative = sizes / sizes[0]  # (distance, sentence)
    return relative.clamp(min=1e-30).log().mean(dim=-1).exp().tolist()


# %% [markdown]
# (A figure at the end of this section shows the result.)
#
# ### Gates
#
# So give the net a state that is not written anew at each step, but *kept*, unless something says otherwise. Keep a
# part $z$ of it, and take the rest, $1 - z$, from a new proposal: $h_t = (1 - z)\,n_t + z\,h_{t-1}$. What is left of
# $h_0$ after 20 steps is $z^{20}$: nothing for $z = 0.5$, 36% for $z = 0.95$, everything for $z = 1$. And let the net
# compute $z$ itself, for each entry of the state, from the word and the state. Such a number between 0 and 1 is a
# **gate**: how far is the door open? The **gated recurrent unit** (GRU; Cho et al. 2014) has two:
#
# $$\begin{aligned}
# r_t &= \sigma(U_r x_t + W_r h_{t-1} + b_r) &&\text{reset: how much of the past the proposal sees}\\
# z_t &= \sigma(U_z x_t + W_z h_{t-1} + b_z) &&\text{update: how much of the past is kept}\\
# n_t &= \tanh(U_n x_t + b_n + r_t \odot (W_n h_{t-1} + b'_n)) &&\text{the proposal}\\
# h_t &= (1 - z_t) \odot n_t + z_t \odot h_{t-1}
# \end{aligned}$$
#
# ($\sigma$ is the sigmoid, $\odot$ multiplies entry by entry.) Where $z_t = 1$, the state passes unchanged, and so does
# its gradient: it is multiplied by 1, not by $W$. These are PyTorch's equations. Papers differ: in some, $z$ and
# $1 - z$ change places, and $r_t$ multiplies $h_{t-1}$ *before* the matrix. (The older **LSTM**, Hochreiter and
# Schmidhuber 1997, has a second state, the memory cell, for the same purpose. Its third gate, which lets it forget,
# came later: Gers et al. 2000. You build one in the exercise.)

# %% tags=["recorded"]
class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.U = nn.Linear(width, 3 * width)
        self.W = nn.Linear(width, 3 * width)

    def forward(self, h, x):  # (batch, width), (batch, width)
        Ur, Uz, Un = self.U(x).chunk(3, dim=-1)  # each (batch, width)
        Wr, Wz, Wn = self.W(h).chunk(3, dim=-1)  # each (batch, width)
        r, z = torch.sigmoid(Ur + Wr), torch.sigmoid(Uz + Wz)
        n = torch.tanh(Un + r * Wn)  # (batch, width): the proposal
        return (1 - z) * n + z * h  # (batch, width)


# %% [markdown]
# Is it PyTorch's?

# %%
cell, theirs = Gated(8), nn.GRU(8, 8, batch_first=True)
weights = cell.U.weight, cell.W.weight, cell.U.bias, cell.W.bias
theirs.load_state_dict(dict(zip(theirs.state_dict(), weights)))
mine = torch.stack(read(cell, vectors), dim=1)
prove_equal(mine, theirs(vectors)[0], what="Your states and nn.GRU's")

# %% [markdown]
# We repeat the test:

# %% tags=["nbval-ignore-output"]
gated = learn_beginnings(Gated, seed=0)
for (low, high), share in zip(SPANS, share_known(gated)):
    print(f"{low:2} to {high} tokens: first token known {share:4.0%}")

# %% [markdown]
# Nothing is forgotten. Are gates the reason?
#
# ### Break it: gates that do not hold, and a net without gates that does
#
# If the open road is what counts, then we can close it in a gated net, and open it in a plain one. We make three
# changes, each only to the *start*:
#
# - `held`: a gated net whose update gates begin with a bias of 3, so that $z \approx 0.95$;
# - `shut`: the same with a bias of −3, so that $z \approx 0.05$: gates that keep nothing;
# - `identity`: a *plain* net whose $W$ begins as the identity matrix (Le et al. 2015), and a small $U$.

# %% tags=["recorded"]
def held(width, bias=3.0):
    cell = Gated(width)
    nn.init.constant_(cell.U.bias[width : 2 * width], bias)  # the second of r, z, n
    return cell


def shut(width):
    return held(width, bias=-3.0)


def identity(width):
    cell = Plain(width)
    nn.init.eye_(cell.W.weight)
    cell.U.weight.data.mul_(0.3)
    return cell


# %% [markdown]
# Which of the three will remember the first word?

# %% jupyter={"source_hidden": true}
predict(
    "open-road", "Which of the three remember the first word after 20 tokens and more?",
    "held only", "held and identity", "all three", "held and shut",
)

# %% [markdown]
# Each was trained like the two above, with three seeds (`python data/looking_back.py 0 1 2` does it again). What they
# know at the end, and what their gradients were at the start:

# %% jupyter={"source_hidden": true}
recorded = json.loads((DATA / "looking_back.json").read_text())
print("first token known after 20 to 27 tokens, three seeds")
for name, seeds in recorded["first token"].items():
    print(f"{name:10}", "  ".join(f"{run['known'][-1]:4.0%}" for run in seeds.values()))
kinds = {"Plain": "plain", "shut": "gated, shut", "Gated": "gated", "held": "gated, held", "identity": "identity"}
display(plots.lines(
    {
        label: (range(24), [10**size for size in recorded["first token"][name]["0"]["new"]])
        for name, label in kinds.items()
    },
    yscale="log", title="What reaches the beginning before anything is learned",
    xlabel="tokens back from the end", ylabel="gradient, relative to the end",
    alt="Gradient against distance in new nets, logarithmic; all but two fall in straight lines. At 20 tokens it is "
    "three trillionths with gates that are shut, a five-millionth in the plain net, 1 in 30,000 in the gated one. With "
    "gates that are held it is 0.3, in the plain net that starts from the identity 0.1.",
))
predicted("open-road", "held and identity")

# %% [markdown]
# Gates that keep nothing do not help: `shut` forgets like the plain net. And a net without any gate remembers, if it
# starts from the identity. So it is not gates as such. What counts is that the gradient reaches the first word *at the
# start*. (After training it need not any more: in the `identity` nets it is then as small as in the plain ones.) Gates
# are one way to an open road, and one that a net can open for itself: a new GRU's gates are half open, little gets
# through, but enough to learn to open them.

# %% [markdown]
# ## 4 One net reads, another writes
#
# We have a net that can read a sequence and remember it. What is missing is a net that writes. Cho et al. and Sutskever
# et al. (both 2014) use two recurrent nets. The **encoder** reads the source, $x_1 \dots x_n$, into states
# $h_1 \dots h_n$, and its last state becomes one vector, the **context** $c$. The **decoder** has states
# $s_1, s_2, \dots$ of its own. It starts from $c$, and writes one token $y_t$ after the other, until it writes an end
# token:
#
# $$s_t = \text{GRU}(s_{t-1}, [y_{t-1}, c]) \qquad y_t \text{ from the logits of } [s_t, y_{t-1}, c]$$
#
# All that the decoder ever learns of the source is $c$. (Cho et al. hand it to every step, as here; with Sutskever
# et al. it is the decoder's first state and no more. $h$ is the encoder's state in this lesson. From lesson 04 on it
# is the number of heads.)

# %% jupyter={"source_hidden": true}
figures.recurrent_translator(
    "Die Orks haben die Menschen angegriffen !".split(),
    "The orcs have attacked the humans .".split(),
    title="All that the decoder knows of the sentence is one vector",
    alt="Below, seven encoder states in a row, each fed by a German word and linked to both neighbors. From the first "
    "and the last one an arrow leads to a box c. From c, arrows lead to all eight decoder states above. All but the "
    "first write an English word and hand it on to the next.",
)

# %% [markdown]
# Three design choices, the same as in the library. The encoder reads from both ends: one GRU from the left and one from
# the right, each with half the width, and $h_i$ is both states, concatenated. $c$ takes the last state of each; the GRU
# from the right ends at the first word. And one matrix holds the vectors of all tokens and gives the logits as well.
#
# In training, the decoder gets as $y_{t-1}$ the token that *should* be there, whatever it would have written itself
# (*teacher forcing*; more in lesson 08). `context` is a method of its own, because it is what section 5 changes: here
# it does not look at $s$ at all.

# %% tags=["recorded"]
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from txlib.layers import TokenEmbedding


class Translator(nn.Module):
    def __init__(self, vocab_size, width):
        super().__init__()
        self.embedding = TokenEmbedding(vocab_size, width)  # rows, times √width
        self.encoder = nn.GRU(
            width, width // 2, bidirectional=True, batch_first=True)
        self.start = nn.Linear(width, width)
        self.decoder = nn.GRU(2 * width, width, batch_first=True)
        self.combine = nn.Linear(3 * width, width)

    def encode(self, input_ids, attention_mask):  # (batch, source); 1 = a real token
        lengths = attention_mask.sum(dim=1)  # so that no state reads padding
        x = pack_padded_sequence(self.embedding(input_ids), lengths,
                                 batch_first=True, enforce_sorted=False)
        h, _ = self.encoder(x)
        return pad_packed_sequence(h, batch_first=True)[0]  # (batch, source, width)

    def ends(self, h, attention_mask):  # where each of the two GRUs has read it all
        half, last = h.shape[-1] // 2, attention_mask.sum(dim=1) - 1
        from_left = h[torch.arange(len(h)), last, :half]  # (batch, width / 2)
        return torch.cat([from_left, h[:, 0, half:]], dim=-1)  # (batch, width)

    def context(self, s, h, attention_mask):  # c, and the weights of h
        return self.ends(h, attention_mask), None

    def step(self, y, s, c):  # each (batch, width)
        _, s = self.decoder(torch.cat([y, c], dim=-1)[:, None], s[None])
        out = torch.tanh(self.combine(torch.cat([s[0], y, c], dim=-1)))
        return s[0], out @ self.embedding.weight.T  # s_t, and logits (batch, vocab)

    def decode(self, decoder_input_ids, h, attention_mask):
        s = torch.tanh(self.start(self.ends(h, attention_mask)))  # s_0
        logits, weights = [], []
        for y in self.embedding(decoder_input_ids).unbind(dim=1):  # (batch, width)
            c, a = self.context(s, h, attention_mask)
            s, scores = self.step(y, s, c)
            logits.append(scores)
            weights.append(a)
        return torch.stack(logits, dim=1), weights  # (batch, target, vocab)


# %% [markdown]
# ### A task that needs the whole source: write it backward
#
# Before real sentences, a task in which we know what has to be remembered: everything. The source is a row of random
# letters, and the target is the same row backward. The library's `collate` makes a batch of it:

# %% tags=["recorded"]
PAD, BOS, EOS = vocabulary.pad_id, vocabulary.bos_id, vocabulary.eos_id  # 0, 1, 2
LETTERS = "abcdefghijklmnopqrst"  # letter i has the id 4 + i


def reversals(lengths, rng):
    rows = [[rng.randrange(4, 24) for _ in range(n)] for n in lengths]
    return collate([(row, row[::-1]) for row in rows], BOS, EOS, PAD)


# %% [markdown]
# One batch of two rows, one of them shorter. Say what each of the four tensors is for before you read on:

# %%
for name, tensor in vars(reversals([4, 2], random.Random(0))).items():
    print(f"{name:18} {tensor.tolist()}")

# %% [markdown]
# The source ends with the end token, 2, and 0 is padding, which the mask marks. The decoder's input begins with the
# start token, 1, and is the target, shifted by one. The labels are what it should write at each position; where there
# is nothing to write they are −100, which no loss counts. The training loop is that of section 2, with a loss for every
# token:

# %% tags=["recorded"]
def learn(model, batches, what):
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for batch in progress(batches, what):
        h = model.encode(batch.input_ids, batch.attention_mask)
        logits, _ = model.decode(batch.decoder_input_ids, h, batch.attention_mask)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


# %% [markdown]
# After training there is no target to read. To write, the decoder takes the likeliest token, feeds it back, and goes
# on. This is **greedy decoding**.

# %% tags=["recorded"]
@torch.no_grad()
def write(model, batch, longest):
    mask = batch.attention_mask
    h = model.encode(batch.input_ids, mask)
    s = torch.tanh(model.start(model.ends(h, mask)))
    ids, written = torch.full((len(h),), BOS), []  # (batch,)
    for _ in range(longest):
        c, _ = model.context(s, h, mask)
        s, logits = model.step(model.embedding(ids), s, c)
        ids = logits.argmax(dim=-1)  # (batch,)
        written.append(ids)
    return torch.stack(written, dim=1)  # (batch, longest)


# %% [markdown]
# Five hundred batches of rows of 2 to 16 letters. Then count the right letters, also in rows longer than any it was
# trained on.

# %% tags=["recorded"]
def learn_to_reverse(kind, seed):
    torch.manual_seed(seed)
    rng, model = random.Random(seed), kind(24, width=64)
    lengths = [rng.randint(2, 16) for _ in range(500)]
    batches = [reversals([n] * 64, rng) for n in lengths]
    return learn(model, batches, f"{kind.__name__}, seed {seed}")


def letters_right(model, n):
    batch = reversals([n] * 200, random.Random(n))
    return (write(model, batch, n) == batch.labels[:, :n]).float().mean().item()


# %% [markdown]
# How long may the row be before one vector of 64 numbers is not enough? Guess, then run it.

# %% tags=["nbval-ignore-output"]
ROWS = [4, 8, 12, 16, 24]
one_vector = learn_to_reverse(Translator, seed=0)
print("right letters:", {n: f"{letters_right(one_vector, n):.0%}" for n in ROWS})

# %% [markdown]
# Four letters are no problem. Then it gets worse, although rows of up to 16 were in its training: one vector has to
# hold all letters. (Guessing gets one in 20.)

# %% [markdown]
# ## 5 Look back
#
# We have a decoder that knows the source by one vector, and one vector is not enough. You would not translate like
# that. You read the sentence, and then, for each word you write, you look back at the part that you need now. Bahdanau,
# Cho and Bengio (2015) let the decoder do the same. The encoder has made a state for each word, $h_1 \dots h_n$, and so
# far nearly all were thrown away. Keep them. For each step, mix a context of its own. With three states of one number
# each, and scores that say how well each fits what is about to be written:

# %%
h = torch.tensor([4.0, 7.0, 1.0])  # three encoder states
e = torch.tensor([0.0, 2.0, -1.0])  # their scores
a = e.softmax(dim=0)  # e^0, e^2, e^-1, divided by their sum
print("weights", " ".join(f"{weight:.2f}" for weight in a))
print(f"context {(a * h).sum():.2f}")

# %% [markdown]
# The best score gets most of the weight, and the context is close to its state. With vectors:
#
# $$e_{t,i} = v^\top \tanh(W s_{t-1} + U h_i) \qquad
# a_{t,i} = \frac{\exp e_{t,i}}{\sum_j \exp e_{t,j}} \qquad c_t = \sum_i a_{t,i} h_i$$
#
# The **score** $e_{t,i}$ is computed by a small net that reads both vectors and is trained with everything else. It is
# called **additive**, because it adds them. The softmax turns the scores of one step into weights that add up to 1.
# (Some lectures omit the softmax and use the raw scores as weights. Then $c_t$ would grow with the length of the
# sentence.) The context is the mixture. No word is further away than any other: each is *one* step from where it is
# needed.

# %% tags=["recorded"]
class Additive(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)  # W: of the state that asks
        self.key = nn.Linear(width, width, bias=False)  # U: of those that answer
        self.v = nn.Parameter(torch.randn(width) * width**-0.5)

    def forward(self, s, h, attention_mask):  # (batch, width), (batch, source, width)
        both = torch.tanh(self.query(s)[:, None] + self.key(h))
        score = both @ self.v  # (batch, source)
        score = score.masked_fill(attention_mask == 0, -1e9)  # no weight for padding
        return score.softmax(dim=-1)  # (batch, source)


class Attending(Translator):
    def __init__(self, vocab_size, width):
        super().__init__(vocab_size, width)
        self.attention = Additive(width)

    def context(self, s, h, attention_mask):
        a = self.attention(s, h, attention_mask)  # (batch, source)
        return (a[:, None] @ h)[:, 0], a  # (batch, width): the mixture


# %% [markdown]
# In the translator, only `context` has changed. Lesson 03 explains the two names: what asks is the *query*, what it is
# compared with are the *keys*. Now the same letters, the same batches, the same number of steps. Before you look: will
# the gap grow with the length, or is attention better by the same amount everywhere?

# %% tags=["nbval-ignore-output"]
attending = learn_to_reverse(Attending, seed=0)
for n in ROWS:
    print(f"{n:2} letters: one vector {letters_right(one_vector, n):4.0%}, "
          f"attention {letters_right(attending, n):4.0%}")
expect("Right letters of 16, attention", letters_right(attending, 16), 0.7, 1.0)

# %% [markdown]
# Three seeds of each, recorded by the same command as in section 3:

# %% jupyter={"source_hidden": true}
names = {"Translator": "one vector", "Attending": "attention"}
mean = {
    label: torch.tensor(list(recorded["reversal"][name].values())).mean(dim=0).tolist() for name, label in names.items()
}
for name, label in names.items():
    print(f"{label:10}", "; ".join(" ".join(f"{share:4.0%}" for share in run) for run in recorded["reversal"][name].values()))
plots.lines(
    {label: (ROWS, shares) for label, shares in mean.items()}, marker="o", title="One vector is not enough",
    mark=("longest in training", 16), xlabel="letters in the row", ylabel="right letters (mean of three seeds)",
    alt="Share of right letters against the length of the row. "
    + "; ".join(f"{label}: " + ", ".join(f"{share:.0%}" for share in shares) for label, shares in mean.items())
    + " at 4, 8, 12, 16 and 24 letters.",
)

# %% [markdown]
# With one vector, four letters are no problem, and of sixteen three in four are wrong; with attention, sixteen are
# nearly perfect. Up to the longest rows of the training, the gap grows with the length. At 24 letters both get worse:
# neither has met so long a row.
#
# All steps of the decoder at once make a table: one row for each letter to be written, one column for each that was
# read. We look at eight new letters:

# %%
@torch.no_grad()
def look(model, batch):  # -> (batch, target, source)
    h = model.encode(batch.input_ids, batch.attention_mask)
    _, weights = model.decode(batch.decoder_input_ids, h, batch.attention_mask)
    return torch.stack(weights, dim=1)


row = reversals([8], random.Random(1))
weights_of_row = look(attending, row)[0]  # (target, source)

# %% [markdown]
# The table of weights:

# %% jupyter={"source_hidden": true}
letters = [LETTERS[id - 4] for id in row.input_ids[0, :-1].tolist()]
plots.heatmap(
    weights_of_row, rows=[*reversed(letters), "⟨end⟩"], columns=[*letters, "⟨end⟩"], size=0.5,
    title="It goes through the row backward", xlabel="looks at", ylabel="is to write",
    alt="Attention weights of eight letters written backward: the largest weight of each row lies on or next to the "
    "diagonal from the top right to the bottom left.",
)

# %% [markdown]
# The model was never told where to look. It learned that from letters and their reversals alone. (In some rows of the
# table the darkest cell is one column off.)
#
# ### Break it: look elsewhere
#
# Does the trained model need to look exactly there? Change nothing but its weights $a$: every state gets the same, or
# each weight moves to the next position. Guess what is left.

# %% tags=["nbval-ignore-output"]
class Elsewhere(Attending):
    def context(self, s, h, attention_mask):
        a = self.change(self.attention(s, h, attention_mask))  # (batch, source)
        return (a[:, None] @ h)[:, 0], a


other = Elsewhere(24, width=64)
other.load_state_dict(attending.state_dict())
for name, change in {
    "as trained": lambda a: a,
    "all the same": lambda a: torch.full_like(a, 1 / a.shape[1]),
    "shifted by one": lambda a: a.roll(1, dims=1),
}.items():
    other.change = change
    print(f"{name:14} {letters_right(other, 12):4.0%} of 12 letters right")

# %% [markdown]
# So it depends on where it looks. With the same weight for every state, little more than guessing is left. The state
# next door is not useless. Our explanation: both GRUs carry something of a letter on to its neighbors.

# %% [markdown]
# ## 6 Real sentences
#
# We have a mechanism that plainly wins where everything must be remembered. Does it win on sentences, of which much can
# be guessed? Two models of these classes come with the course, one with one vector and one with attention. Each learned
# for 5,000 steps from all 29,300 German pairs; together that took 17 minutes of one CPU core. This made them, with the
# library's loop:
#
# ```
# python data/recurrent_translators.py
# ```
#
# The folded cell loads them, and makes batches of sentences of about the same length.

# %% jupyter={"source_hidden": true}
from txlib.recipes.translation import bleu


def load(model, name):
    """The library can stack layers, so it has longer names for the first one."""
    weights = load_file(shipped(name) / "model.safetensors")
    names = {each: each.replace("_layers.0.cell", "") for each in weights}
    model.load_state_dict({names[each]: weight.float() for each, weight in weights.items()})
    return model.eval()


def encode_pairs(pairs, vocabulary):
    return list(zip(*(vocabulary.encode_batch(side) for side in zip(*pairs)), strict=True))


def batches_of(encoded, tokens=4000):
    groups = batches_by_length([(len(a) + 1, len(b) + 1) for a, b in encoded], tokens, seed=0)
    return [(group, collate([encoded[index] for index in group], BOS, EOS, PAD)) for group in groups]


def translate(model, sentences):
    results = {}
    for group, batch in batches_of([(ids, []) for ids in vocabulary.encode_batch(sentences)]):
        for index, ids in zip(group, write(model, batch, 40).tolist(), strict=True):
            results[index] = vocabulary.decode(ids[: ids.index(EOS)] if EOS in ids else ids)
    return [results[index] for index in range(len(sentences))]


german, english = zip(*german_pairs.test, strict=True)
words = [len(sentence.split()) for sentence in german]
models = {
    "one vector": load(Translator(len(vocabulary), 160), "games-de-en-rnn-plain"),
    "attention": load(Attending(len(vocabulary), 160), "games-de-en-rnn"),
}
for name, model in models.items():
    print(f"{name:10} {sum(weight.numel() for weight in model.parameters()):,} parameters")

# %% [markdown]
# Two test sentences, which no training has seen, one short and one long:

# %% tags=["nbval-ignore-output"]
written = {name: translate(model, german) for name, model in models.items()}
for index in (words.index(5, 60), words.index(14)):
    print(f"{german[index]}\n    human:      {english[index]}")
    for name, translations in written.items():
        print(f"    {name + ':':11} {translations[index]}")

# %% [markdown]
# None of the four is a good translation. Both models have learned how sentences of these games sound; only the one with
# attention keeps the name *Asheviere*. We need numbers, by the length of the source. The first is the loss per token,
# given the right beginning. As a control we also hand each target the source of *another* sentence of about the same
# length. (The loss is in natural logarithms; the unit is called a **nat**. Blind guessing among 4,000 tokens has
# $\ln 4000 = 8.3$.) The second number is **BLEU**: how many runs of up to four words a translation shares with a
# human's, from 0 to 100 (lesson 09 builds it).
#
# Before you look: with letters, the gap grew with the length. Does it with sentences?

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
LENGTHS = [(1, 4), (5, 9), (10, 14), (15, 26)]  # words of the source


@torch.no_grad()
def loss_by_length(model, shift=0):  # nats per token; shift 1: another source
    total, count = torch.zeros(len(LENGTHS)), torch.zeros(len(LENGTHS))
    for group, batch in batches_of(encode_pairs(german_pairs.test, vocabulary)):
        ids = batch.input_ids.roll(shift, dims=0)
        mask = batch.attention_mask.roll(shift, dims=0)
        logits, _ = model.decode(batch.decoder_input_ids, model.encode(ids, mask), mask)
        losses = F.cross_entropy(logits.mT, batch.labels, reduction="none")
        for index, row, labels in zip(group, losses, batch.labels, strict=True):
            span = next(i for i, (_, high) in enumerate(LENGTHS) if words[index] <= high)
            total[span] += row.sum()
            count[span] += (labels >= 0).sum()
    return total / count


right = {name: loss_by_length(model) for name, model in models.items()}
wrong = {name: loss_by_length(model, shift=1) for name, model in models.items()}
print("             right source: loss      BLEU            another source: loss")
print("words        1 vector  attention   1 vec.   att.    1 vector  attention")
for i, (low, high) in enumerate(LENGTHS):
    some = [index for index, count in enumerate(words) if low <= count <= high]
    scores = [bleu([written[name][index] for index in some], [english[index] for index in some]) for name in models]
    losses = [losses[name][i].item() for losses in (right, wrong) for name in models]
    print(
        f"{low:2} to {high:2}  {losses[0]:12.2f} {losses[1]:10.2f} {scores[0]:8.1f} {scores[1]:6.1f}"
        f"{losses[2]:12.2f} {losses[3]:10.2f}"
    )
middles = [sum(span) / 2 for span in LENGTHS]
plots.lines(
    {name: (middles, losses.tolist()) for name, losses in right.items()}, marker="o",
    title="On real sentences attention is better by the same amount at every length",
    xlabel="words of the source", ylabel="loss (nats per token)",
    alt="Loss per token against sentence length. Both lines rise, in parallel: one vector from "
    + f"{right['one vector'][0]:.1f} to {right['one vector'][-1]:.1f}, attention from {right['attention'][0]:.1f} to "
    + f"{right['attention'][-1]:.1f}.",
)

# %% [markdown]
# No. Attention is better at every length, by about a third of a nat, and its BLEU is three to five times as high (one
# training run of each). But the gap does *not* grow, as it did with letters. Our explanation, which we have not tested:
# both models learned for a few minutes from few sentences, and on long ones they lack more than memory. (Bahdanau et
# al. trained for days, and there the gap grows: their figure 2.)
#
# The two columns on the right warn of a tempting measure. One could call the difference between another source and the
# right one "what the source is worth". It is larger with attention at every length, but part of it is that attention is
# *misled* more by a wrong source.

# %% [markdown]
# ### Where does it look?
#
# We hand the model with attention our pair, and stop it where it is about to write *orcs*. (The pair is from the
# training set; the ones below are not.)

# %% jupyter={"source_hidden": true}
def tokens(ids, vocabulary):
    return [vocabulary.token(id).replace("▁", "") for id in ids]


(source, target), = encode_pairs([our_pair], vocabulary)
ours = look(models["attention"], collate([(source, target)], BOS, EOS, PAD))[0]  # (target, source)
rows, columns = ([*tokens(ids, vocabulary), "⟨end⟩"] for ids in (target, source))
at = rows.index("orcs")
figures.recurrent_translator(
    columns, rows, weights=ours[at], step=at,
    title="For each word that it writes, the decoder mixes a context of its own",
    alt="The same two rows of states. The decoder's state before orcs asks; from each encoder state a line leads to the "
    "context c of the token orcs, the thicker, the larger its weight. By far the thickest comes from Orks.",
)

# %% [markdown]
# All its steps at once make an **alignment**: which word was translated from which.

# %% jupyter={"source_hidden": true}
plots.heatmap(
    ours, rows=rows, columns=columns, size=0.55,
    title="orcs is found; the verb at the end is not, yet", xlabel="looks at", ylabel="is to write",
    alt="Attention weights of our pair. The and orcs look at Die and Orks, humans at Menschen. The rows "
    "between scatter about the diagonal; attack looks at haben, and hardly at angegriffen, at the end.",
)

# %% [markdown]
# Where it is sure, it is right: *The* looks at *Die*, *orcs* at *Orks*, *humans* at *Menschen*. The verb is harder, as
# German splits it in two. *have* and *attack* both look at *haben*, its first half. Of *angegriffen*, at the end,
# *attack* takes 0.11; *ed* spreads its weight and puts slightly more there (0.26) than elsewhere. (The larger model of
# lesson 09 does look at the end.)
#
# ### Reordered, and found by a rule
#
# An attention map in a textbook may have been picked because it is pretty. So let a rule pick ours. Say that a token of
# the target *points* at a source token if it gives that one more weight than all the others together. Two tokens
# *cross* if the later one points further to the left. We count crossings in all test pairs with at most 12 target
# tokens, and take the pair that has most; of several, the one whose largest weights are largest on average. The folded
# cell searches all pairs and draws the winner:

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
def crossings(a):  # (target, source)
    sure = a.amax(dim=-1) > 0.5  # (target,)
    place = a.argmax(dim=-1)[sure]  # where they point
    return (place[:, None] > place).triu(1).sum().item()  # an earlier, a later one


def search(model, pairs, vocabulary):
    encoded = [pair for pair in encode_pairs(pairs, vocabulary) if len(pair[1]) <= 12]
    found = []
    for group, batch in batches_of(encoded):
        for index, a in zip(group, look(model, batch), strict=True):
            source, target = encoded[index]
            a = a[: len(target), : len(source)]  # without end tokens and padding
            found.append((crossings(a), a.amax(dim=-1).mean().item(), source, target, a))
    return sorted(found, key=lambda one: one[:2], reverse=True)


german_maps = search(models["attention"], german_pairs.test, vocabulary)
count, _, source, target, a = german_maps[0]
plots.heatmap(
    a, rows=tokens(target, vocabulary), columns=tokens(source, vocabulary), numbers=False, size=0.4,
    title=f"Most crossings: {count}", xlabel="looks at", ylabel="is to write", bar="weight",
    alt="Attention weights of Sie dürfen sich dem Imperator nicht nähern and You may not approach the Emperor. not "
    "looks at nicht, near the end; Emperor, later, looks back at Imperator, before it.",
)

# %% [markdown]
# *not* is third in English, and *nicht* last but one in German, after the emperor: the decoder jumps ahead, and for
# *Emperor* it comes back. (The three pieces of *Emperor* make it three crossings.) No fixed order could do that.
#
# French moves other things than German: adjectives follow their nouns. (The paper translates *into* French. In its own
# map *zone économique européenne* looks at *European Economic Area* from its end to its beginning.) A third model
# translates from French. How much does it cross?

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
french = Tokenizer.load(shipped("games-fr-en-rnn") / "tokenizer.json")
french_model = load(Attending(len(french), 160), "games-fr-en-rnn")
french_maps = search(french_model, french_pairs.test, french)
for name, maps in {"German": german_maps, "French": french_maps}.items():
    none = sum(count == 0 for count, *_ in maps) / len(maps)
    sure = torch.cat([a.amax(dim=-1) > 0.5 for *_, a in maps]).float().mean()
    print(f"{name}: no crossing in {none:.1%} of {len(maps)} pairs; "
          f"{sure:.0%} of the rows point")

# %% [markdown]
# Does French need no reordering, then? A map is evidence of what the model did, and not of what is in the language.
# Only about one row in five points anywhere; in the others the model spreads its weight. So where a French adjective
# has changed places with its noun, this model does not say so clearly enough for our rule.
#
# ### Additive, or an inner product?
#
# The score may be any function of the two vectors. Luong et al. (2015) tried simpler ones: the bilinear $s^\top W h$,
# and the plain inner product $s^\top h$. Lesson 03 takes the inner product. Why, if the additive one can compute more?
# Let 64 queries meet 64 keys in each of 16 sentences. Both scores take equally many multiplications. But the additive
# one holds a vector of $d$ numbers for each *pair*, since the tanh comes before the sum; all inner products together
# are one matrix product. Guess how many times as long the additive score takes.

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
def milliseconds(work, repeats=9):  # the fastest of them
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - start))
    return min(times)


d, n = 160, 64
s, h, v = torch.randn(16, n, d), torch.randn(16, n, d), torch.randn(d)
additive = milliseconds(lambda: torch.tanh(s[:, :, None] + h[:, None]) @ v)  # (batch, n, n)
inner = milliseconds(lambda: s @ h.mT)  # (batch, n, n)
print(
    f"the additive score holds {16 * n * n * d:,} numbers, the inner product {16 * n * n:,}; "
    f"it takes {additive / inner:.0f} times as long"
)

# %% [markdown]
# And quality? Where people compared them carefully (Britz et al. 2017), the additive score was a little better at most
# widths, by less than one BLEU. At the largest width the inner product fell far behind. Vaswani et al. (2017, §3.2.1)
# suspect that with wide vectors its scores grow large, unless they are scaled. Lesson 03 shows it, and what the scale
# is for.
#
# ### Open the library
#
# `txlib` has the score and the translator. $U h$, which does not depend on the decoder, is computed once per sentence
# (`project`), and not at each step as in ours. With the same weights, both give the same numbers:

# %%
from txlib.attention import AdditiveAttention
from txlib.models import Seq2Seq
from txlib.models.pretrained import load_pretrained

batch = collate(encode_pairs(german_pairs.test[:40], vocabulary), BOS, EOS, PAD)
source, mask, target = batch.input_ids, batch.attention_mask, batch.decoder_input_ids
real = batch.labels >= 0  # (batch, target)
for name, file in {"one vector": "rnn-plain", "attention": "rnn"}.items():
    library = load_pretrained(shipped(f"games-de-en-{file}"), dtype=torch.float32)
    library.eval()
    with torch.no_grad():
        mine, _ = models[name].decode(target, models[name].encode(source, mask), mask)
        theirs = library(source, mask, target).logits  # (batch, target, vocab)
    prove_equal(mine[real], theirs[real], tolerance=1e-4, what=f"{name}: the logits")
show_source(AdditiveAttention.project, AdditiveAttention.score,
            Seq2Seq.attend_before, Seq2Seq.g_out)

# %% [markdown]
# The library's class can also stack layers, has LSTMs, and the other scores; `txlib train translation --model rnn`
# trains a larger one than ours. And it searches with a beam (lesson 09), which keeps four beginnings at a time and not
# only the likeliest.

# %% [markdown]
# ## 7 What remains slow, and what became of it
#
# We have a decoder that looks back. But both GRUs still read step by step. Look at this sentence: *The **chef** who fed
# us all through the long winter **was** tired.* It is the chef who was tired, not the winter, though the winter is next
# to *was*. In our pair it is the two halves of a German verb, *haben … angegriffen*.
#
# How far two words must travel before they meet is their **interaction distance**. In a recurrent net it is *linear*:
# from word $i$ to word $j$ it takes $|i - j|$ steps, and each of them may overwrite what it carries. This *locality* is
# baked into the net, before it has seen a single sentence. It is a good first guess about language, since neighbors do
# belong together more often than not. But where it is wrong, the net has to learn against it.
#
# And there is the clock: $h_t$ cannot begin before $h_{t-1}$ is done. Draw each net as a graph: the words are at height
# 0, and each vector that the net computes is a node, at the height of the step in which it can be ready at the
# earliest. (Only the past is read here, so that all can be compared.) Four nets read a shorter version of the chef's
# sentence:

# %% jupyter={"source_hidden": true}
def recurrent(n):
    return {(t + 1, t): [(0, t)] + [(t, t - 1)] * (t > 0) for t in range(n)}


def convolution(n, width, dilations):  # one layer for each dilation
    return {(layer, i): [(layer - 1, i - k * gap)
                         for k in range(width) if i - k * gap >= 0]
            for layer, gap in enumerate(dilations, start=1) for i in range(n)}


def attention(n):
    return {(1, i): [(0, j) for j in range(i + 1)] for i in range(n)}


nets = {
    "recurrent": recurrent(9),
    "convolution, width 3": convolution(9, 3, [1, 1, 1, 1]),
    "dilated 1, 2, 4, width 3": convolution(9, 3, [1, 2, 4]),
    "attention": attention(9),
}

figures.reach(
    nets, "The chef who fed us all winter was tired".split(),
    title="How the last word gets to know the others, step by step",
    alt="Four graphs over nine words. Recurrent: a staircase of nine steps. Convolution of width 3: four "
    "layers, a triangle that just reaches the first word. Dilated convolution: three layers reach it. "
    "Attention: one layer, with a line from each word.",
)

# %% [markdown]
# Two things can be read off. How many steps must wait for one another, however many processors you have? That is the
# height. And how many lines lie between two words? In general, for $n$ words, vectors of width $d$ and a convolution of
# width $k$ (Vaswani et al. 2017, Table 1):
#
# | | Operations per layer | Steps that wait | Longest distance |
# | --- | --- | --- | --- |
# | recurrent | $O(n\,d^2)$ | $O(n)$ | $O(n)$ |
# | convolution | $O(k\,n\,d^2)$ | $O(1)$ | $O(n/k)$; dilated by $1, k, k^2 \dots$ $O(\log_k n)$ |
# | attention among the words themselves | $O(n^2 d)$ | $O(1)$ | $O(1)$ |
#
# The middle row is for **convolutions**: each vector is computed from its $k$ neighbors, at all positions at once.
# [Lesson 30, section 7](30_wall.ipynb) builds them, with the translators that were made of them, and checks every entry
# of the table. The first row's operations, $n\,d^2$, are not many. Waiting is what makes it slow. How slow? We let
# `nn.GRU` read, and compare *one* matrix product with as many operations.

# %% tags=["nbval-ignore-output"]
d, n = 256, 256
gru, table = nn.GRU(d, d, batch_first=True), torch.randn(2 * d, 3 * d)
for batch_size in (1, 16):
    x = torch.randn(batch_size, n, d)
    rows = torch.randn(batch_size * n, 2 * d)  # U x and W h, three parts each
    with torch.no_grad():
        reading = milliseconds(lambda: gru(x))
        product = milliseconds(lambda: rows @ table)
    print(f"{batch_size:2} sentences of {n}: {n} steps take {reading / product:.1f} "
          "times as long as one product")

# %% [markdown]
# And that is a CPU, with a few cores. A GPU has thousands, and most of them would wait. A larger batch helps, as its
# sentences go in parallel. But within a sentence nothing does: recurrence **cannot be parallelized** over its length.
# It hurts most in training, where the whole target is known in advance and nothing else would have to wait. So let the
# words look at each other by attention, as in the right panel, and leave the recurrence out altogether. That is the
# Transformer, and the rest of this course.
#
# ### What became of it
#
# Bahdanau et al. (2015, Table 1) trained on English and French: with sentences of up to 50 words, one vector reached a
# BLEU of 17.8, attention 26.8. Sutskever et al. (2014) got 34.8 without attention, but with five deep LSTMs of 384 M
# parameters each, 12 million sentence pairs, and the source written backward, so that its beginning is fresh. Then
# nearly everyone adopted attention. The table of 2017, from ByteNet to the Transformer, with what each cost to train,
# is in [lesson 09, section 7.3](09_translation.ipynb).
#
# Those systems differ in size, data and machines. What if only the kind of net differs? `benchmarks/translators.py`
# gave eight of them the same 29,000 sentence pairs (Multi30k: descriptions of pictures, German to English), 2.8 million
# parameters each, within 4%, and two minutes of one CPU core. BLEU on the test sentences, a beam of 4, three seeds:
#
# | | Steps in two minutes | BLEU: mean (range) | Milliseconds per sentence |
# | --- | --- | --- | --- |
# | a GRU, one vector (as in section 4) | 706 | 17.1 (16.8–17.4) | 9 |
# | ByteNet: dilated convolutions | 549 | 19.3 (19.0–19.5) | 33 |
# | the Transformer, with all that its paper chose | 837 | 24.0 (23.7–24.2) | 12 |
# | LSTMs, four layers on each side, attention | 764 | 25.4 (24.1–26.1) | 20 |
# | a Universal Transformer (lesson 19) | 273 | 26.4 (26.3–26.5) | 33 |
# | a GRU with attention (as in section 5) | 625 | 27.3 (27.1–27.6) | 11 |
# | a Transformer of today (lesson 09) | 648 | 33.4 (32.8–33.7) | 17 |
# | ConvS2S: convolutions, attention in each layer | 1,033 | 34.6 (34.2–34.9) | 11 |
#
# Attention is worth ten points here, and nine in Bahdanau's table. LSTMs with attention beat ByteNet, ConvS2S beats
# both, and the Universal Transformer the paper's, as published. One ranking is reversed: after two minutes the paper's
# Transformer is ten points *behind* ConvS2S, and today's recipe only nearly makes up for it. Our explanation: its
# learning rates were chosen for 100,000 steps on eight GPUs, where it need not wait as recurrent nets do. A short run
# on one core rewards what learns early.

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. Why did our plain recurrent net forget the first word of a long sentence?**
#
# <details><summary>A. Its state is too narrow</summary>
#
# The gated net's state was just as wide, and forgot next to nothing. So was that of the plain net that started from the
# identity.
# </details>
# <details><summary>B. As it started, the loss at the end could not tell the beginning what to keep</summary>
#
# Right. The gradient is multiplied at every step, by about one half at first, and after twenty steps next to nothing is
# left. A start that lets it through was enough to learn.
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
# That is $z = 0$, here and in PyTorch. In Bahdanau et al. (2015) the roles are swapped: look at the last line of the
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
# Right. Its steps wait for each other, however many processors are idle.
# </details>
# <details><summary>B. The convolutional net</summary>
#
# All positions of a layer are computed at once. Only its few layers wait.
# </details>
# <details><summary>C. Attention among all words</summary>
#
# It has more to compute, $n^2$ scores, but all of them at once.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - A recurrent net reads a sequence of any length into a state of fixed width. Every step changes the state, and
#   multiplies the gradient. A net learns to keep what is far back only if its start lets the gradient through; gates
#   are one way, a start from the identity is another.
# - An encoder and a decoder with one context vector can reverse four letters, and fail at sixteen: one vector has to
#   hold them all.
# - Attention keeps all states, and mixes a context for each word that is written: score, softmax, average. It finds
#   alignments by itself, reordered ones as well. On our real sentences it is better by the same amount at every length.
# - The additive score is a small net; the inner product is one matrix product, and holds $d$ times fewer numbers.
# - Steps that wait for one another remain, $n$ of them. Convolutions wait only for their layers, attention for one.
#
# **Read** Bahdanau, Cho and Bengio 2015, *Neural Machine Translation by Jointly Learning to Align and Translate*,
# [arXiv:1409.0473](https://arxiv.org/abs/1409.0473): sections 2 and 3, figures 2 and 3, and appendix A.1 for the gates
# (with $z$ and $1 - z$ swapped). Sutskever et al. 2014, [arXiv:1409.3215](https://arxiv.org/abs/1409.3215), sections 2
# and 3.3; Cho et al. 2014, [arXiv:1406.1078](https://arxiv.org/abs/1406.1078), section 2.3. Luong et al. 2015,
# [arXiv:1508.04025](https://arxiv.org/abs/1508.04025), section 3.1, for the scores; Britz et al. 2017,
# [arXiv:1703.03906](https://arxiv.org/abs/1703.03906), who compared them. Bengio et al. 1994, *Learning Long-Term
# Dependencies with Gradient Descent Is Difficult*, and Le et al. 2015,
# [arXiv:1504.00941](https://arxiv.org/abs/1504.00941), for a start from the identity; Vaswani et al. 2017, section 4,
# for the table of section 7.
#
# **Do** the exercise [02_seq2seq](../exercises/exercise_02_seq2seq.ipynb). Then go on to
# [03 Attention as a soft lookup](03_attention.ipynb). It takes the three lines of section 5, score, softmax and
# average, out of the recurrent net, and looks at them by themselves.
