# %% [markdown] lesson={"part": "I Attention", "builds": "recurrent nets, gates, Bahdanau's attention"}
# # 02 · Sequence to sequence
#
# **After this lesson you will be able to**
#
# - build a recurrent net and a GRU by hand, and say what gates are for, with an experiment;
# - put two of them together into a translator, and measure where one vector for a whole sequence is not enough;
# - build Bahdanau's attention, train it, and read its alignments;
# - count the steps that wait for one another, and say why people wanted to get rid of recurrence.
#
# **You need** lesson 01, matrix products, and the chain rule. **It takes** about 65 minutes to read and try; all cells
# together run in about a minute and a half on a laptop.

# %% [markdown]
# ## 1 The problem: from one sequence to another
#
# Lesson 01 turned text into a row of vectors. What is missing is a way to turn one row into another, such as a sentence
# into its translation: Chinese to English in one of the lectures, German to English here.

# %% tags=["recorded"]
import json
import random
import re
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn

from txlib import plots
from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress
from txcourse.lesson import prove_equal, show_source
from txlib.data import collate, shipped, translation
from txlib.paths import DATA
from txlib.text import Tokenizer

# %% [markdown]
# The sentences come from dialogues in free computer games, and the whole course uses them. Could you translate them
# word by word, with a dictionary? Look at what *Ziel* becomes. The last pair will stay with us through lesson 09.

# %% tags=["recorded"]
german_pairs = translation("games", "de-en")
print(f"{len(german_pairs.train):,} pairs to learn, {len(german_pairs.test):,} to test")
for german, english in german_pairs.train:
    if re.search(r"\bZiel\b", german) and len(german) < 50:
        print(f"{german:50} {english}")
our_pair = next(p for p in german_pairs.train
                if p[1] == "The orcs have attacked the humans.")
print(" | ".join(our_pair))
unequal = sum(len(g.split()) != len(e.split()) for g, e in german_pairs.train)
print(f"{unequal / len(german_pairs.train):.0%} of the pairs differ in length")

# %% [markdown]
# What *Ziel* becomes depends on the words around it. There are two more difficulties: in our pair the words come in
# another order, and in nearly three pairs of four the two sides differ in length.
#
# So we want a function from a sequence of *any* length to another of *any* length, where each output may depend on
# *every* input. A matrix has a fixed size. What can do it?

# %% [markdown]
# ## 2 A net that reads
#
# We have a vector for each word, and need one function for any number of them. Read the way you read this line: from
# left to right, keeping in mind what you have read. What is kept in mind is the **state**. Each word changes it, by the
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
# with $g = \tanh$, and $h_0 = 0$. Such a net is called **recurrent**, since its output is fed back as an input.

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
def compare(cell, theirs, parameters, what):  # parameters in torch's order
    theirs.load_state_dict(dict(zip(theirs.state_dict(), parameters)))
    vectors = torch.randn(3, 20, 8)  # (batch, length, width)
    mine = torch.stack(read(cell, vectors), dim=1)
    prove_equal(mine, theirs(vectors)[0], what=what)


torch.manual_seed(0)
cell = Plain(8)  # torch has a second bias, where one is enough
ours = cell.U.weight, cell.W.weight, cell.U.bias, torch.zeros(8)
compare(cell, nn.RNN(8, 8, batch_first=True), ours, "Your states and nn.RNN's")

# %% [markdown]
# ### A test: how did the sentence begin?
#
# To translate a sentence, you read all of it and then begin with its first words. So the last state must still know the
# first word. Does it? We take German sentences that begin with one of the 16 most frequent first tokens, let the net
# read to the end, and ask the last state which one it was. The tokens are lesson 01's byte pairs:

# %% tags=["recorded"]
vocabulary = Tokenizer.load(shipped("games-de-en") / "tokenizer.json")


def encoded(pairs):
    rows = vocabulary.encode_batch([german for german, _ in pairs])
    return [ids for ids in rows if 4 <= len(ids) <= 27]


to_read = encoded(german_pairs.train)
starters = [id for id, _ in Counter(ids[0] for ids in to_read).most_common(16)]
print([vocabulary.token(id) for id in starters])

# %% [markdown]
# Sentences of equal length go into one group, so that nothing needs padding. `beginnings` returns the right answers, as
# numbers from 0 to 15:

# %% tags=["recorded"]
def by_length(rows):
    groups = {}
    for ids in rows:
        if ids[0] in starters:
            groups.setdefault(len(ids), []).append(ids)
    return {n: torch.tensor(group) for n, group in sorted(groups.items())}


to_learn = by_length(to_read)
to_test = by_length(encoded(german_pairs.test + german_pairs.validation))


def beginnings(ids):  # (batch, length)
    return torch.tensor([starters.index(id) for id in ids[:, 0].tolist()])  # (batch,)


# %% [markdown]
# The model is an embedding, a cell that reads, and 16 logits from the last state (scores for a softmax):

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
# We train for 300 steps of 64 sentences, with the optimizer Adam (lesson 07 takes it apart). We **clip**: if the vector
# of all gradients is longer than 1, it is scaled to length 1, so that one wild batch does no harm.

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
# And how often is it right, on unseen sentences of different lengths?

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

# %% [markdown]
# It forgets: it knows at most six in ten of the first tokens even in short sentences, and fewer than half in long ones.

# %% [markdown]
# ## 3 What a net can learn to keep
#
# We have a net that reads, and it forgets. Why didn't it *learn* to remember? To learn that, the loss at the end must
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
# (Gradients are rows here, so the factor of the last step comes first.) The slope of the tanh, $1 - h_k^2$, never
# exceeds 1. A product of twenty matrices that all shrink a vector is next to nothing; of twenty that all stretch it, it
# is gigantic (Bengio et al. 1994).
#
# ### Gates
#
# So give the net a state that is *kept*, unless something says otherwise. Keep a part $z$ of it, and take the rest,
# $1 - z$, from a proposal $n_t$: $h_t = (1 - z)\,n_t + z\,h_{t-1}$. What is left of $h_0$ after 20 steps is $z^{20}$: a
# millionth for $z = 0.5$, 36% for $z = 0.95$, everything for $z = 1$. And let the net compute $z$ itself, for each
# entry of the state, from the word and the state. Such a number between 0 and 1 is a **gate**. The **gated recurrent
# unit** (GRU; Cho et al. 2014) has two: $z$, and $r$, which says how much of the old state the proposal sees. One step
# with single numbers, where each 2 and each −1 is a weight that training might find:

# %%
h, x = torch.tensor(0.5), torch.tensor(1.0)  # the state so far, and a word
r = torch.sigmoid(2 * h - x)  # half of the state for the proposal
z = torch.sigmoid(2 * h + 2 * x)  # nearly all of the state is kept
n = torch.tanh(-x + r * 2 * h)  # the proposal
new = (1 - z) * n + z * h
print(f"r = {r:.2f}, z = {z:.2f}, n = {n:.2f}")
print(f"h = {1 - z:.2f} · {n:.2f} + {z:.2f} · {h:.2f} = {new:.2f}")

# %% [markdown]
# The proposal, −0.46, is far from the state, but gets a weight of only 0.05: the state hardly moves. With vectors:
#
# $$\begin{aligned}
# r_t &= \sigma(U_r x_t + W_r h_{t-1} + b_r) &&\text{reset: how much of the past the proposal sees}\\
# z_t &= \sigma(U_z x_t + W_z h_{t-1} + b_z) &&\text{update: how much of the past is kept}\\
# n_t &= \tanh(U_n x_t + b_n + r_t \odot (W_n h_{t-1} + b'_n)) &&\text{the proposal}\\
# h_t &= (1 - z_t) \odot n_t + z_t \odot h_{t-1}
# \end{aligned}$$
#
# ($\sigma$ is the sigmoid, $\odot$ multiplies entry by entry.) Where $z_t = 1$, the state passes unchanged, and so does
# its gradient: it is multiplied by 1, not by $W$. These are PyTorch's equations. In some papers $z$ and $1 - z$ change
# places, and $r_t$ multiplies $h_{t-1}$ *before* the matrix. (The older **LSTM**, Hochreiter and Schmidhuber 1997, has
# a second state, the memory cell, for the same purpose; its forget gate was added by Gers et al. 2000. You build one in
# the exercise.)

# %% tags=["recorded"]
class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.U = nn.Linear(width, 3 * width)
        self.W = nn.Linear(width, 3 * width)

    def forward(self, h, x):  # (batch, width), (batch, width)
        Ur, Uz, Un = self.U(x).chunk(3, dim=-1)  # each (batch, width)
        Wr, Wz, Wn = self.W(h).chunk(3, dim=-1)  # each (batch, width)
        r = torch.sigmoid(Ur + Wr)  # (batch, width): reset
        z = torch.sigmoid(Uz + Wz)  # (batch, width): update
        n = torch.tanh(Un + r * Wn)  # (batch, width): the proposal
        return (1 - z) * n + z * h  # (batch, width)


# %% [markdown]
# (`U` and `W` hold the three matrices of $x_t$ and of $h_{t-1}$ in one, as PyTorch does; `chunk` takes them apart.) Is
# it PyTorch's? And does it remember?

# %% tags=["nbval-ignore-output"]
cell = Gated(8)
ours = cell.U.weight, cell.W.weight, cell.U.bias, cell.W.bias
compare(cell, nn.GRU(8, 8, batch_first=True), ours, "Your states and nn.GRU's")
gated = learn_beginnings(Gated, seed=0)
print("first token known:", [f"{share:.0%}" for share in share_known(gated)])

# %% [markdown]
# Hardly anything is forgotten. Are the gates the reason?
#
# ### Break it: gates that do not hold, and a net without gates that does
#
# Perhaps what counts is that the gradient has an open road. If so, we can close that road in a gated net and open it in
# a plain one. We make three changes, each only to the *start*:
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
# All five kinds were trained as above, with three seeds (`python data/looking_back.py 0 1 2`). The table shows what they
# know after training. The figure shows new nets, before any training: the gradient at each distance
# from the end of a sentence of 24 tokens, relative to that at the end.

# %% jupyter={"source_hidden": true}
from IPython.display import display

recorded = json.loads((DATA / "looking_back.json").read_text())
print("first token known after 20 to 27 tokens, three seeds")
for name, seeds in recorded["first token"].items():
    print(f"{name:10}", "  ".join(f"{run['known'][-1]:4.0%}" for run in seeds.values()))
new = {name: [10**size for size in seeds["0"]["new"]] for name, seeds in recorded["first token"].items()}
display(plots.lines(
    {name: (range(24), sizes) for name, sizes in new.items()}, yscale="log",
    title="What reaches the beginning before anything is learned",
    xlabel="tokens back from the end", ylabel="gradient, relative to the end",
    alt="Gradient against distance in new nets, logarithmic; all fall in straight lines. At 20 tokens: "
    + ", ".join(f"{name} {sizes[20]:.0e}" for name, sizes in new.items()) + ".",
))
predicted("open-road", "held and identity")

# %% [markdown]
# Gates that keep nothing do not help: `shut` forgets like the plain net. And a net without any gate remembers, if it
# starts from the identity. So gates as such are not the reason. What counts is that enough gets through *at the start*:
# of the first word, going forward, and of the gradient, going backward. (Both take the same road, so this experiment
# can't say which matters more.) After training, less may do: in the `identity` nets at most 2 parts in 10,000 of the
# gradient then reach 20 tokens back. Gates are one way to open the road, and training can open them further. In a
# new GRU, 3 or 4 parts in 100,000 get through 20 tokens; after training, more than half.

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
# All that the decoder ever learns of the source is $c$. (Cho et al. hand it to every step, as here; in Sutskever et al.
# it is only the decoder's first state. Square brackets join vectors end to end; $y_{t-1}$ in them is the token's
# embedding. The drawing leaves out the end tokens.)

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
# First the encoder. It is **bidirectional**: one GRU reads from the left and one from the right, each with half the
# width, and $h_i$ joins their two states. `ends` returns the two states that have read everything; the one from the
# right ends at the first word. (A batch holds sources of one length here. The library pads, and hides the padding with
# a mask; lesson 03 explains masks. Lesson 08 explains the factor $\sqrt{\text{width}}$.)

# %% tags=["recorded"]
from txlib.layers import TokenEmbedding


class Encoder(nn.Module):
    def __init__(self, vocab_size, width):
        super().__init__()
        self.embedding = TokenEmbedding(vocab_size, width)  # rows, times √width
        self.encoder = nn.GRU(
            width, width // 2, bidirectional=True, batch_first=True)

    def encode(self, input_ids):  # (batch, source)
        return self.encoder(self.embedding(input_ids))[0]  # h (batch, source, width)

    def ends(self, h):
        half = h.shape[-1] // 2
        return torch.cat([h[:, -1, :half], h[:, 0, half:]], dim=-1)  # (batch, width)


# %% [markdown]
# `step` is one step of the equation above; `nn.GRUCell` is our `Gated`, but takes the input before the state. One
# matrix holds the vectors of all tokens and also gives the logits. `context` is a method of its own, because section 5
# changes it. Here it makes no use of $s$.

# %% tags=["recorded"]
class Translator(Encoder):
    def __init__(self, vocab_size, width):
        super().__init__(vocab_size, width)
        self.start = nn.Linear(width, width)  # from the ends to s_0
        self.decoder = nn.GRUCell(2 * width, width)
        self.combine = nn.Linear(3 * width, width)

    def context(self, s, h):  # c, and the weights of h: none
        return self.ends(h), None

    def step(self, y, s, c):  # each (batch, width)
        s = self.decoder(torch.cat([y, c], dim=-1), s)
        out = torch.tanh(self.combine(torch.cat([s, y, c], dim=-1)))
        return s, out @ self.embedding.weight.T  # s_t, and logits (batch, vocab)


# %% [markdown]
# `decode` takes all steps in turn. In training, $y_{t-1}$ is the token that *should* be there, whatever the decoder
# would have written itself (**teacher forcing**; more in lesson 08).

# %% tags=["recorded"]
def decode(model, decoder_input_ids, h):
    s = torch.tanh(model.start(model.ends(h)))  # s_0
    logits, weights = [], []
    for y in model.embedding(decoder_input_ids).unbind(dim=1):  # (batch, width)
        c, a = model.context(s, h)
        s, scores = model.step(y, s, c)
        logits.append(scores)
        weights.append(a)
    return torch.stack(logits, dim=1), weights  # (batch, target, vocab)


# %% [markdown]
# ### A task that needs the whole source: write it backward
#
# Before real sentences, here is a task in which everything has to be remembered. The source is a row of random letters,
# and the target is the same row backward. The library's `collate` makes a batch of it. Here is one with two rows.
# Before you read on, say what each of its three tensors is for:

# %% tags=["recorded"]
PAD, BOS, EOS = vocabulary.pad_id, vocabulary.bos_id, vocabulary.eos_id  # 0, 1, 2
LETTERS = "abcdefghijklmnopqrst"  # letter i has the id 4 + i


def reversals(lengths, rng):
    rows = [[rng.randrange(4, 24) for _ in range(n)] for n in lengths]
    return collate([(row, row[::-1]) for row in rows], BOS, EOS, PAD)


batch = reversals([4, 4], random.Random(0))
for name in ("input_ids", "decoder_input_ids", "labels"):
    print(f"{name:18} {getattr(batch, name).tolist()}")

# %% [markdown]
# The source ends with the end token, 2. The decoder's input begins with the start token, 1, and is the target, shifted
# by one. The labels are what it should write at each position. The training loop is that of section 2, with a loss for
# every token:

# %% tags=["recorded"]
def learn(model, batches, what):
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for batch in progress(batches, what):
        h = model.encode(batch.input_ids)
        logits, _ = decode(model, batch.decoder_input_ids, h)
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
def write(model, input_ids, longest):
    h = model.encode(input_ids)
    s = torch.tanh(model.start(model.ends(h)))
    ids, written = torch.full((len(h),), BOS), []  # (batch,)
    for _ in range(longest):
        c, _ = model.context(s, h)
        s, logits = model.step(model.embedding(ids), s, c)
        ids = logits.argmax(dim=-1)  # (batch,)
        written.append(ids)
    return torch.stack(written, dim=1)  # (batch, longest)


# %% [markdown]
# We train on 500 batches of rows of 2 to 16 letters. Then we count the right letters, also in rows longer than any it
# was trained on.

# %% tags=["recorded"]
def learn_to_reverse(kind, seed, width=64, steps=500):
    torch.manual_seed(seed)
    rng, model = random.Random(seed), kind(24, width)
    lengths = [rng.randint(2, 16) for _ in range(steps)]
    batches = [reversals([n] * 64, rng) for n in lengths]
    return learn(model, batches, f"{kind.__name__}, seed {seed}")


def letters_right(model, n):
    batch = reversals([n] * 200, random.Random(n))
    written = write(model, batch.input_ids, n)  # (batch, n)
    return (written == batch.labels[:, :n]).float().mean().item()


# %% [markdown]
# How long may the row be before one vector of 64 numbers is not enough? Guess, then run it.

# %% tags=["nbval-ignore-output"]
ROWS = [4, 8, 12, 16, 24]
one_vector = learn_to_reverse(Translator, seed=0)
print("right letters:", {n: f"{letters_right(one_vector, n):.0%}" for n in ROWS})

# %% [markdown]
# Four letters are no problem. Then it gets worse, although it was trained on rows of up to 16. (Guessing gets one in
# 20.) Our explanation: one vector has to hold all letters. Section 5 puts that to the test.

# %% [markdown]
# ## 5 Look back
#
# We have a decoder that knows the source only through one vector, and it loses most of a long row. You would not
# translate like that. You read the sentence, and then, for each word you write, you look back at the part that you need
# now. Bahdanau, Cho and Bengio (2015) let the decoder do the same. The encoder has made a state for each word, $h_1
# \dots h_n$, and so far nearly all were thrown away. Keep them. For each step, mix a new context. With three states of
# one number each, and scores that say how well each fits what is about to be written:

# %%
h = torch.tensor([4.0, 7.0, 1.0])  # three encoder states
e = torch.tensor([0.0, 2.0, -1.0])  # their scores
a = e.softmax(dim=0)  # e^0, e^2, e^-1, divided by their sum
print("weights", " ".join(f"{weight:.2f}" for weight in a))
print(f"context {(a * h).sum():.2f}")

# %% [markdown]
# The best score gets most of the weight. With vectors:
#
# $$e_{t,i} = v^\top \tanh(W s_{t-1} + U h_i) \qquad
# a_{t,i} = \frac{\exp e_{t,i}}{\sum_j \exp e_{t,j}} \qquad c_t = \sum_i a_{t,i} h_i$$
#
# The **score** $e_{t,i}$ is computed by a small net that reads both vectors and is trained with everything else. It is
# called **additive**, because it adds them. The softmax turns the scores of one step into weights that add up to 1.
# (Some lectures use the raw scores as weights. Then $c_t$ would grow with the length of the sentence.) The context is
# the mixture. No word is further away than any other: each is *one* step from where it is needed.

# %% tags=["recorded"]
class Additive(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)  # W: of the state that asks
        self.key = nn.Linear(width, width, bias=False)  # U: of those that answer
        self.v = nn.Parameter(torch.randn(width) * width**-0.5)

    def forward(self, s, h):  # (batch, width), (batch, source, width)
        both = torch.tanh(self.query(s)[:, None] + self.key(h))
        return (both @ self.v).softmax(dim=-1)  # (batch, source)


# %% [markdown]
# In the translator, only `context` changes. (Lesson 03 explains the two names: what asks is the *query*, what it is
# compared with are the *keys*.)

# %% tags=["recorded"]
class Attending(Translator):
    def __init__(self, vocab_size, width):
        super().__init__(vocab_size, width)
        self.attention = Additive(width)

    def context(self, s, h):
        a = self.attention(s, h)  # (batch, source)
        return (a[:, None] @ h)[:, 0], a  # (batch, width): the mixture


# %% [markdown]
# Now train it on the same batches, for the same number of steps. Before you look: will the gap grow with the length, or
# is attention better by the same amount everywhere?

# %% tags=["nbval-ignore-output"]
attending = learn_to_reverse(Attending, seed=0)
print("right letters:", {n: f"{letters_right(attending, n):.0%}" for n in ROWS})
expect("Right letters of 16, attention", letters_right(attending, 16), 0.7, 1.0)

# %% [markdown]
# ### Does it help to look back, or only to have more?
#
# The new net differs in three ways: it has 8,256 parameters more, it uses all states instead of two, and it *chooses*
# among them. Two rivals tell these apart. The first is the net with one vector, but wider: 72 numbers instead of 64,
# and more parameters than attention has. The second uses all states, each with the same weight. Guess which of them
# comes closer to attention.

# %% tags=["recorded"]
class Even(Translator):
    def context(self, s, h):
        return h.mean(dim=1), None  # (batch, width)


RIVALS = {"one vector": (Translator, 64), "wider": (Translator, 72),
          "same weights": (Even, 64), "attention": (Attending, 64)}

# %% [markdown]
# Here are the right letters in rows of 4, 8, 12, 16 and 24, for three seeds each, recorded by section 3's command. It
# also trained the net with one vector for three times as many steps, in case it only needs more time.

# %% jupyter={"source_hidden": true}
recorded = json.loads((DATA / "looking_back.json").read_text())
runs = {name: list(recorded["reversal"][name].values()) for name in RIVALS}
runs["one vector, 1,500 steps"] = list(recorded["reversal, longer"]["one vector"].values())
for name, three in runs.items():
    kind, width = RIVALS[name.partition(",")[0]]
    parameters = sum(weight.numel() for weight in kind(24, width).parameters())
    print(f"{name:23} {parameters:6,} parameters:", "; ".join(" ".join(f"{share:4.0%}" for share in run) for run in three))
mean = {name: torch.tensor(three).mean(dim=0).tolist() for name, three in runs.items()}
plots.lines(
    {name: (ROWS, shares) for name, shares in mean.items()}, marker="o", mark=("longest in training", 16),
    title="What helps is to choose where to look", width=7.4,
    xlabel="letters in the row", ylabel="right letters (mean of three seeds)",
    alt="Share of right letters at 4, 8, 12, 16 and 24 letters. "
    + "; ".join(f"{name}: " + ", ".join(f"{share:.0%}" for share in shares) for name, shares in mean.items()) + ".",
)

# %% [markdown]
# Neither rival is enough. Of sixteen letters, one vector gets 23 to 25% right, and 26 or 27% after 1,500 steps; the
# wider net gets 26 to 28%, and the mean of all states 24%. Attention gets 93 to 94%. So what helps is not more
# parameters, more states or three times the steps, but choosing. Up to the longest rows of the training, the gap grows
# with the length. At 24 letters, a row longer than any in the training, all get worse.
#
# All steps of the decoder at once make a table: one row for each letter to be written, one column for each that was
# read. We look at eight new letters:

# %%
row = reversals([8], random.Random(1))
with torch.no_grad():
    h = attending.encode(row.input_ids)
    _, weights = decode(attending, row.decoder_input_ids, h)
weights_of_row = torch.stack(weights, dim=1)[0]  # (target, source)

# %% [markdown]
# The table of weights:

# %% jupyter={"source_hidden": true}
letters = [LETTERS[id - 4] for id in row.input_ids[0, :-1].tolist()]
plots.heatmap(
    weights_of_row, rows=[*reversed(letters), "⟨end⟩"], columns=[*letters, "⟨end⟩"], size=0.5, bar="weight",
    title="It goes through the row backward", xlabel="looks at", ylabel="is to write",
    alt="Attention weights of eight letters written backward: the largest weight of each row lies on or next to the "
    "diagonal from the top right to the bottom left.",
)

# %% [markdown]
# The model was never told where to look. (In some rows of the table the darkest cell is one column off.)
#
# ### Break it: look elsewhere
#
# Does the trained model need to look exactly there? Keep everything that it has learned, and change nothing but its
# weights $a$: every state gets the same, or each weight moves to the next position. Guess what is left.

# %% tags=["nbval-ignore-output"]
class Shifted(Attending):
    def context(self, s, h):
        a = self.attention(s, h).roll(1, dims=1)  # (batch, source)
        return (a[:, None] @ h)[:, 0], a


for kind in (Attending, Even, Shifted):
    other = kind(24, width=64)
    other.load_state_dict(attending.state_dict(), strict=False)  # Even has no scores
    print(f"{kind.__name__:10} {letters_right(other, 12):4.0%} of 12 letters right")

# %% [markdown]
# So it depends on where it looks. With equal weights (`Even`), 13% are right, where guessing gets 5%: the net has
# learned hardly any other way. The neighboring state is not useless: our explanation is that a GRU carries letters on.

# %% [markdown]
# ## 6 Real sentences
#
# We have a mechanism that plainly wins where everything must be remembered. Does it win on sentences, where much can be
# guessed? Two models come with the course, one with one vector and one with attention. Each was trained for 5,000 steps
# on all 29,300 pairs. (`python data/recurrent_translators.py` made them. They are of the library's class; the end of
# this section checks that it computes what ours do.) Both translate all test sentences, which neither has seen, by
# greedy decoding (`num_beams=1`). Here are three, picked at random:

# %% tags=["nbval-ignore-output"]
from txlib import generation
from txlib.attention import AdditiveAttention
from txlib.models import Seq2Seq
from txlib.models.pretrained import load_pretrained

files = {"one vector": "rnn-plain", "attention": "rnn"}
models = {name: load_pretrained(shipped(f"games-de-en-{file}"), dtype=torch.float32)
          for name, file in files.items()}
german, english = zip(*german_pairs.test)
written = {name: generation.Translator(model, vocabulary).translate(german, num_beams=1)
           for name, model in models.items()}
for index in random.Random(0).sample(range(len(german)), 3):
    print(f"{german[index]}\n    human:      {english[index]}")
    for name, translations in written.items():
        print(f"    {name + ':':11} {translations[index]}")

# %% [markdown]
# Both models have learned how sentences of these games sound, though not what they mean. To compare
# them in one number, take the loss per token, given the human's words before it. (It is in natural logarithms; the unit
# is called a **nat**. Blind guessing among 4,000 tokens has $\ln 4000 = 8.3$.) With letters, the gap between the two
# nets grew with the length. Does it with sentences? Guess first.

# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def loss(model, pairs):  # of ids; nats per token
    batch = collate(pairs, BOS, EOS, PAD)
    source, mask = batch.input_ids, batch.attention_mask
    return model(source, mask, labels=batch.labels).loss.item()


test_ids = list(zip(*map(vocabulary.encode_batch, (german, english))))
for low, high in ((1, 4), (5, 9), (10, 14), (15, 26)):  # words of the source
    some = [ids for ids, text in zip(test_ids, german)
            if low <= len(text.split()) <= high]
    nats = {name: f"{loss(model, some):.2f}" for name, model in models.items()}
    print(f"{low:2} to {high:2} words, {len(some):3} sentences, loss: {nats}")

# %% [markdown]
# No. Attention is better by about a third of a nat at every length: unlike with letters, the gap hardly grows. Our
# explanation, which we have not tested: both models learned for a few minutes from few sentences, and on long ones they
# lack more than memory. (Bahdanau et al. trained for days, and there the gap grows: their figure 2.)
#
# This is one training run of each, so it ranks these two models, and not the two ideas. For that,
# `benchmarks/translators.py` held a fair contest: the same 29,000 sentence pairs for all (Multi30k, German to English),
# the same 2.8 million parameters (within 4%), two minutes on one CPU core, and three seeds. The field's measure is
# **BLEU**: how many runs of up to four words a translation shares with a human's, from 0 to 100 (lesson 09 builds it).

# %%
contest = json.loads((DATA / "contest.json").read_text())
for name in models:
    print(f"{name:10} BLEU", *(f"{bleu:.1f}" for bleu in contest[name]["bleu"]))

# %% [markdown]
# Attention wins by ten points, with every seed.
#
# ### Where does it look?
#
# We hand the model with attention our pair, and stop it where it is about to write *orcs*. (The pair is from the
# training set; the ones below are not.)

# %%
def align(model, pairs):  # of ids; returns (pair, target, source)
    batch = collate(pairs, BOS, EOS, PAD)
    return model.alignment(
        batch.input_ids, batch.decoder_input_ids, batch.attention_mask)


def pieces(ids):
    return [vocabulary.token(id).replace("▁", "") for id in ids]


our_ids = vocabulary.encode_batch(our_pair)
columns, rows = ([*pieces(ids), "⟨end⟩"] for ids in our_ids)
weights = align(models["attention"], [our_ids])[0]  # (target, source)

# %% [markdown]
# The weights of this one step:

# %% jupyter={"source_hidden": true}
at = rows.index("orcs")
figures.recurrent_translator(
    columns, rows, weights=weights[at], step=at,
    title="For each word that it writes, the decoder mixes a context of its own",
    alt="The same two rows of states. The decoder's state before orcs asks; from each encoder state a line leads to the "
    "context c of the token orcs, the thicker, the larger its weight. By far the thickest comes from Orks.",
)

# %% [markdown]
# Three quarters of the weight is on *Orks*. The weights of all steps make an **alignment**: a guess at which word was
# translated from which.
#
# ### Reordered, and found by a rule
#
# An attention map in a textbook may have been picked because it is pretty. So let a rule pick ours. Say that a token of
# the target *points* at a source token if it gives that one more weight than all the others together. Two tokens
# *cross* if the later one points further to the left. Of all test pairs with at most 12 target tokens we take the one
# with the most crossings; in a tie, the one whose largest weights are largest on average.

# %% tags=["nbval-ignore-output"]
def crossings(a):  # (target, source)
    places = [row.argmax() for row in a if row.max() > 0.5]  # where they point
    return sum(place > later for i, place in enumerate(places) for later in places[i:])


maps = []  # (crossings, mean of the largest weights, ids, weights) of each pair
short = [pair for pair in test_ids if len(pair[1]) <= 12]
for pair, a in zip(short, align(models["attention"], short)):
    a = a[: len(pair[1]), : len(pair[0])]  # without end tokens and padding
    maps.append((int(crossings(a)), a.amax(dim=-1).mean().item(), pair, a))
crossed = sum(count > 0 for count, *_ in maps)
print(f"{crossed} of {len(maps)} pairs have a crossing")

# %% [markdown]
# The winner:

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
count, _, (source, target), a = max(maps, key=lambda one: one[:2])
plots.heatmap(
    a, rows=pieces(target), columns=pieces(source), numbers=False, size=0.4, bar="weight",
    title=f"Reordered: {count} crossings", xlabel="looks at", ylabel="is to write",
    alt="Attention weights of Sie dürfen sich dem Imperator nicht nähern and You may not approach the Emperor. not "
    "looks at nicht, near the end; Emperor, later, looks back at Imperator, before it.",
)

# %% [markdown]
# *not* is third in English, and *nicht* next to last in German, after the emperor: the decoder jumps ahead, and for
# *Emperor* it comes back. (The three pieces of *Emperor* make it three crossings.) No fixed order could do that. But
# such maps are rare. Our explanation: this model mostly spreads its weight, so where German has moved a word, it seldom
# shows that clearly enough for our rule. A map is evidence of what the model did, not of what is in the language.
#
# ### Open the library
#
# Are these models what we have built? To find out, we give our classes their parameters. (The library can stack layers,
# so its names are longer.) On all test pairs whose source has 8 tokens, both must give the same numbers:

# %%
def our_name(key):
    key = key.replace("_layers.0.cell", "")
    return key.removesuffix("_l0") if key.startswith("decoder") else key


batch = collate([pair for pair in test_ids if len(pair[0]) == 8], BOS, EOS, PAD)
real = batch.labels >= 0  # (batch, target): not padding
for kind, (name, library) in zip((Translator, Attending), models.items()):
    mine = kind(len(vocabulary), 160)
    mine.load_state_dict({our_name(key): value
                          for key, value in library.state_dict().items()})
    with torch.no_grad():
        logits, _ = decode(mine, batch.decoder_input_ids, mine.encode(batch.input_ids))
        of_library = library(batch.input_ids, labels=batch.labels).logits
    prove_equal(logits[real], of_library[real], tolerance=1e-4, what=f"{name}: logits")
show_source(AdditiveAttention.score, Seq2Seq.attend_before)

# %% [markdown]
# The library has other scores as well: Luong et al. (2015) tried the bilinear $s^\top W h$, and the plain inner product
# $s^\top h$, which lesson 03 uses. All inner products together are one matrix product; the additive score has to hold a
# vector of $d$ numbers for each *pair*. (Britz et al. 2017 found the additive score slightly better, and at the largest
# width far better. Lesson 03 shows a likely reason.)

# %% [markdown]
# ## 7 What remains slow, and what became of it
#
# We have a decoder that looks back. But its GRUs still work step by step. Look at this sentence: *The **chef** who fed
# us all through the long winter **was** tired.* It is the chef who was tired, though the winter is next to *was*. How
# far two words must travel before they meet is their **interaction distance**. In a recurrent net it is *linear*: from
# word $i$ to word $j$ it takes $|i - j|$ steps, and each of them may overwrite what it carries. Neighbors often do
# belong together, so this *locality* is a good first guess about language. Where it is wrong, the net has to learn
# against it.
#
# And there is the clock: $h_t$ cannot begin before $h_{t-1}$ is done. Draw each net as a graph: the words are at height
# 0, and each vector that the net computes is a node, at the height of the step in which it can be ready at the
# earliest. (Only the past is read here, so that all can be compared.) Four nets read a shorter version of the chef's
# sentence:

# %% jupyter={"source_hidden": true}
figures.reach(
    figures.four_readers(9), "The chef who fed us all winter was tired".split(),
    pair=("chef", "tired"),
    title="Chef and tired meet after seven more steps, or after four layers, three, or one",
    alt="Four graphs over nine words, chef and tired in bold. Recurrent: a staircase of nine steps. "
    "Convolution of width 3: four layers, a triangle that just reaches the first word. Dilated convolution: three "
    "layers reach it. Attention: one layer, with a line from each word.",
)

# %% [markdown]
# The height is the number of steps that must wait for one another, however many processors you have. The distance of
# two words is the number of lines between them. In general, for $n$ words, vectors of width $d$ and a convolution of
# width $k$ (Vaswani et al. 2017, Table 1):
#
# | | Operations per layer | Steps that wait | Longest distance |
# | --- | --- | --- | --- |
# | recurrent | $O(n\,d^2)$ | $O(n)$ | $O(n)$ |
# | convolution | $O(k\,n\,d^2)$ | $O(1)$ | $O(n/k)$; dilated by $1, k, k^2 \dots$ $O(\log_k n)$ |
# | attention among the words themselves | $O(n^2 d)$ | $O(1)$ | $O(1)$ |
#
# The middle row is for **convolutions**: each vector is computed from its $k$ neighbors, at all positions at once;
# *dilated* ones leave gaps that grow from layer to layer (in the third panel, twofold). [Lesson 30, section
# 7](30_wall.ipynb) builds them, checks every entry of the table, and measures what waiting costs. The first row's
# operations are not many. It is the waiting that makes it slow: a GPU has thousands of cores, and most of them have
# nothing to do. A larger batch helps, but within a sentence recurrence **cannot be parallelized**. So let the
# words look at each other by attention, as in the right panel, and leave the recurrence out altogether. That is the
# Transformer, and the rest of this course.
#
# ### What became of it
#
# Bahdanau et al. (2015, Table 1) trained on English and French: with sentences of up to 50 words, one vector reached
# 17.8 BLEU, attention 26.8, nine points more. Sutskever et al. (2014) got 34.8 without attention, but with five LSTMs
# of 384 M parameters each. For what came later, see [lesson 09, section 7.3](09_translation.ipynb).
#
# In section 6's contest, two more nets took part: dilated convolutions (ByteNet) reached 19.3 as the mean of three
# seeds, and convolutions with attention in each layer (ConvS2S) 34.6. How the Transformer fares there is in
# [lesson 09, section 6](09_translation.ipynb).

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
# left. A start that lets more through was enough to learn.
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
# That is $z = 0$, here and in PyTorch. In Bahdanau et al. (2015) the roles are swapped.
# </details>
# <details><summary>C. It is set to 0</summary>
#
# No gate of a GRU can do that alone. $r = 0$ hides the past from the *proposal* only.
# </details>
#
# **3. Source and target have 20 words each. How many scores does the translator with attention compute?**
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
# Right: 21 by 21, with the end tokens.
# </details>
#
# **4. You replace one GPU by a hundred. Which of these is then trained on one long sentence hardly any faster?**
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
# - A recurrent net reads a sequence of any length into a state of fixed width. Every step multiplies the gradient. Our
#   nets learned to keep what is far back only where their start let enough of it through; gates are one way, a start
#   from the identity is another.
# - An encoder and a decoder with one context vector learned to reverse four letters, and failed at sixteen. More
#   parameters or steps hardly helped, nor did the mean of all states. It took attention, which chooses.
# - Attention keeps all states, and mixes a context for each word that is written: score, softmax, average. It finds
#   alignments by itself, now and then reordered ones. On our real sentences it is better by about the same amount at
#   every length.
# - Steps that wait for one another remain, $n$ of them. Convolutions wait only for their layers, attention for one.
#
# **Read** Bahdanau, Cho and Bengio 2015, *Neural Machine Translation by Jointly Learning to Align and Translate*,
# [arXiv:1409.0473](https://arxiv.org/abs/1409.0473): sections 2 and 3, figures 2 and 3, and appendix A.1 for the gates
# (with $z$ and $1 - z$ swapped). Sutskever et al. 2014, [arXiv:1409.3215](https://arxiv.org/abs/1409.3215); Cho et al.
# 2014, [arXiv:1406.1078](https://arxiv.org/abs/1406.1078). Luong et al. 2015,
# [arXiv:1508.04025](https://arxiv.org/abs/1508.04025), and Britz et al. 2017,
# [arXiv:1703.03906](https://arxiv.org/abs/1703.03906), for the scores. Bengio et al. 1994, *Learning Long-Term
# Dependencies with Gradient Descent Is Difficult*, and Le et al. 2015,
# [arXiv:1504.00941](https://arxiv.org/abs/1504.00941), for a start from the identity. Vaswani et al. 2017, section 4,
# for the table of section 7.
#
# **Do** the exercise [02_seq2seq](../exercises/exercise_02_seq2seq.ipynb). Then go on to
# [03 Attention as a soft lookup](03_attention.ipynb). It takes score, softmax and average out of the recurrent net, and
# looks at them by themselves.
