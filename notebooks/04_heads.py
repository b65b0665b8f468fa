# %% [markdown] lesson={"part": "I Attention", "builds": "multi-head attention and cross-attention"}
# # 04 · Many heads, self- and cross-attention
#
# **After this lesson you will be able to**
#
# - say why self-attention projects its words three times, and what happens without;
# - prove in two lines what attention does when words change places;
# - measure what a single head cannot do;
# - build multi-head attention, and say the shape of every tensor in it;
# - spot the reshape that mixes up words without an error;
# - let one sentence attend to another, with the padding mask on the right axis.
#
# **You need** [lesson 03](03_attention.ipynb); section 1 also looks back at lessons 01 and 02.
#
# **It takes** about 65 minutes to read and try; all cells together run in about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: a sentence that looks at itself
#
# *The orcs have attacked the humans.* Who attacked, and who was attacked? No vector of *attacked* alone can tell: the
# answer is elsewhere in the sentence. So let the words of a sentence look at each other. That is **self-attention**:
# queries, keys and values all come from the same words. Section 4 shows how it can. (For the famous
# *The animal didn't cross the street because it was too tired*, lesson 15 counts what trained heads make of *it*.)
#
# ### A hidden state, or looking back
#
# A recurrent net (lesson 02) also brings *orcs* to *attacked*, but inside one vector, the **hidden state**, which every
# word on the way rewrites. Take $h \leftarrow \frac12 h + \frac12 x$. Once *orcs* is read, it is half of $h$. Two words
# later, at *attacked*, it is an eighth. Gates slow this down; looking back avoids it.
#
# | | a hidden state | looking back |
# | --- | --- | --- |
# | what word $i$ has of the past | one vector, rewritten at each word | the vectors of all words, unchanged |
# | steps from word $j$ to word $i$ | $i - j$ | 1 |
# | training | one word after another | all words at once |
# | memory, and work for each new word | always the same | grows with the text |
#
# The last row is the price.

# %% tags=["recorded"]
import json
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from txlib import plots
from txlib.attention import attention, causal
from txlib.paths import DATA
from txcourse import explore, figures
from txcourse.lesson import (
    expect, predict, predicted, progress, prove_equal, show_source)

# %% [markdown]
# ### First try: compare the words as they are
#
# The simplest self-attention has nothing to learn: each word asks with its own vector $x_i$ and is found by the same
# vector. The scores are $x_i \cdot x_j / \sqrt d$.
#
# On paper, with two numbers for each word, *how much of a noun* and *how much of a verb*: let *orcs* and *humans* be
# $(2, 0)$ and *attacked* be $(0, 2)$. Before the division, *attacked* scores 4 with itself and 0 with both nouns.
#
# Now with real vectors of 64 numbers, all equally long, made as in lesson 01 by counting which words occur near each
# other (`python data/five_words.py`). Guess first: which word gets the highest score in the row of *attacked*? And
# which comes second in the row of *orcs*?

# %%
stored = json.loads((DATA / "five_words.json").read_text())
sentence = ["the", "orcs", "have", "attacked", "the", "humans"]
x = torch.tensor([stored[word] for word in sentence])  # (n, d)
score = x @ x.T / 64**0.5  # (n, n)
weight = score.softmax(dim=-1)  # (n, n)
print(f"{stored['own']:.0%} of a word's weight is on itself, "
      f"on average over {stored['sentences']} held-out sentences")

# %% [markdown]
# In the left table, the scores are divided by 8 once more, so that each word's score with itself is 1:

# %% jupyter={"source_hidden": true}
plots.heads(
    torch.stack([score / 8, weight]), names=["score ÷ 8", "weight"], rows=sentence, columns=sentence, numbers=True,
    size=0.55, title="Words compared as they are: each finds itself",
    alt="Two tables of six words by six words. In both, the largest number of each row is on the diagonal. In the table "
    "of scores, the upper right half mirrors the lower left.",
)

# %% [markdown]
# Two things are wrong, and better vectors of equal length would not help.
#
# **Every word finds itself.** $x_i \cdot x_i$ is the squared length, and among vectors of equal length no dot product
# is larger. So each row puts nearly all its weight on its own word; only *the* shares it with its twin. Second comes
# what *resembles* the word: for *orcs* that is *humans*, though what it needs is *attacked*.
#
# **Looking is mutual.** $x_i \cdot x_j = x_j \cdot x_i$: the score of *orcs* with *humans* is that of *humans* with
# *orcs*. But a verb may need its subject more than the subject needs the verb.

# %% [markdown]
# ## 2 Self-attention: three roles, three projections
#
# A word must be able to look for something other than itself. So it plays three roles: what it *looks for*, its query;
# what it can be *found by*, its key; what it *hands over*, its value. Give each role its matrix, to be
# learned. On paper again, with one noun, *orcs* $= (1, 0)$, and one verb, *attacked* $= (0, 1)$. Let the query be the
# second number and the key the first:
#
# | | query | key |
# | --- | --- | --- |
# | *orcs* | 0 | 1 |
# | *attacked* | 1 | 0 |
#
# Now *attacked* scores $1 \cdot 1 = 1$ with *orcs* and 0 with itself, and *orcs* scores 0 with *attacked*. Both
# problems are gone. In general, with vectors as rows,
#
# $$q_i = x_i W^Q, \qquad k_j = x_j W^K, \qquad v_j = x_j W^V$$
#
# where $W^Q$ and $W^K$ have $d_\text{model}$ rows and $d_k$ columns, and $W^V$ has $d_v$ columns. A score is
#
# $$q_i \cdot k_j = x_i \, \underbrace{W^Q (W^K)^\top}_{M} \, x_j^\top$$
#
# That is a **bilinear form**: linear in $x_i$ and linear in $x_j$. The table $M$, $d_\text{model} \times
# d_\text{model}$, says how well feature $a$ of the word that asks matches feature $b$ of the word that answers. In the
# first try, $M$ was the identity. Luong et al. (2015, section 3.1) learn such an $M$ directly.
#
# Why learn two matrices, and not any table $M$ (a *free* one)? Count the numbers to learn.

# %%
torch.manual_seed(0)
w_q, w_k = torch.randn(2, 64, 8) / 64**0.5  # each (d_model, d_k)
M = w_q @ w_k.T  # (d_model, d_model)
prove_equal((x @ w_q) @ (x @ w_k).T, x @ M @ x.T, what="Scores by two matrices, by M")
print(f"M has rank {torch.linalg.matrix_rank(M)}; is M symmetric? {M.allclose(M.T)}")
print(f"numbers to learn: {w_q.numel() + w_k.numel():,}, or {M.numel():,} in a free M")

# %% [markdown]
# $M$ has **low rank**, at most $d_k$: words are compared in $d_k$ respects only. In exchange there are fewer numbers to
# learn, and the vectors to compare are short.
#
# ### What happens when words change places
#
# Let the rows of $X$ be the words $x_i$, and let $P$ be a matrix that puts them into another order, so that $P^\top P$
# is the identity. Then
#
# 1. the scores are $(PX) M (PX)^\top = P \, (X M X^\top) \, P^\top$: the same table with rows and columns reordered,
#    and a softmax along each row doesn't mind; call the weights $P A P^\top$;
# 2. the output is $P A P^\top \cdot P X W^V = P \, (A X W^V)$: the same output vectors, reordered.
#
# This is **equivariance**: shuffle the words, and each word's output moves with it, unchanged. Let *orcs* and *humans*
# change places, and look at *attacked*.

# %%
first = ["the", "orcs", "have", "attacked", "the", "humans"]
second = ["the", "humans", "have", "attacked", "the", "orcs"]
w_v = torch.randn(64, 64) / 64**0.5  # (d_model, d_v)


def self_attention(sentence):
    x = torch.tensor([stored[word] for word in sentence])  # (n, d_model)
    q, k, v = (x @ w for w in (w_q, w_k, w_v))  # (n, d_k), (n, d_k), (n, d_v)
    return (q @ k.T / 8**0.5).softmax(dim=-1) @ v  # (n, d_v)


plain, exchanged = self_attention(first), self_attention(second)  # each (n, d_v)
moved = plain[[0, 5, 2, 3, 4, 1]]  # (n, d_v)
prove_equal(moved, exchanged, what="Exchanged outputs, and outputs exchanged")
prove_equal(plain[3], exchanged[3], what='What "attacked" hears in the two sentences')

# %% [markdown]
# To *attacked*, both sentences are the same. So word vectors must also say where a word is (lesson 05); until then,
# each position simply has a learned vector that is added to the word's.
#
# ### Measured: look left
#
# In our task nothing can be guessed: six words, drawn at random from 20, sit in a ring. **Each must predict the
# word on its left**; the first one's left neighbor is the last. `offsets` lists the neighbors to predict, counted from
# the word: −1 is left, 1 is right. `attend` is the part that we will swap out.

# %%
def neighbors(text, offsets):  # (text, n)
    moved = [text.roll(-offset, dims=1) for offset in offsets]  # each (text, n)
    return torch.stack(moved, dim=-1)  # (text, n, offset)


class Ring(nn.Module):
    def __init__(self, attend, offsets, d_model=64):
        super().__init__()
        self.attend, self.offsets = attend(d_model), offsets
        self.word, self.position = nn.Embedding(20, d_model), nn.Embedding(6, d_model)
        self.classifier = nn.Linear(d_model, 20 * len(offsets))

    def forward(self, text):  # (text, n)
        x = self.word(text) + self.position.weight  # (text, n, d_model)
        logits = self.classifier(self.attend(x))  # (text, n, 20 · offsets)
        return logits.unflatten(-1, (-1, 20))  # (text, n, offset, 20)


# %% [markdown]
# A **head** is three projections and lesson 03's attention. The library's `attention` takes four axes, (batch, heads,
# length, $d_k$), and for now there is one head.


# %%
class Head(nn.Module):
    def __init__(self, d_model, d_k):
        super().__init__()
        self.query, self.key, self.value = (
            nn.Linear(d_model, d_k, bias=False) for _ in range(3))

    def forward(self, x):  # (batch, n, d_model)
        projections = self.query, self.key, self.value
        q, k, v = (project(x)[:, None] for project in projections)  # (batch, 1, n, d_k)
        mixed, weight = attention(q, k, v, return_weights=True)
        self.weight = weight.detach()[:, 0]  # (batch, n, n), to look at later
        return mixed[:, 0]  # (batch, n, d_k)


# %% [markdown]
# `one_head` adds a fourth projection, for the output. Its rival uses one projection for queries and keys.


# %%
def one_head(d_model):
    head = Head(d_model, d_model)
    return nn.Sequential(head, nn.Linear(d_model, d_model, bias=False))


def one_projection(d_model):
    model = one_head(d_model)
    model[0].key = model[0].query  # asks and is found by the same
    return model


# %% [markdown]
# The training loop is lesson 03's. In section 7 it will also get a schedule for the learning rate:


# %% tags=["recorded"]
def train(model, loss_of, optimizer, schedule=None):
    for _ in range(300):
        loss = loss_of(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule:
            schedule.step()
    return model


# %% [markdown]
# Texts are new in each step, so a model can't learn them by heart.


# %%
def ring_loss(model):
    text = torch.randint(20, (64, 6))  # (text, n)
    logits, truth = model(text), neighbors(text, model.offsets)  # (text, n, offset, …)
    return F.cross_entropy(logits.flatten(0, 2), truth.flatten())


def train_ring(attend, offsets, seed):
    torch.manual_seed(seed)
    model = Ring(attend, offsets)
    return train(model, ring_loss, torch.optim.Adam(model.parameters(), lr=0.004))


# %% [markdown]
# `accuracy` returns the fraction of words that are right: for each offset, and for all offsets together. Each model is
# trained from three starts. Which of the two can learn to look left?


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def accuracy(model):
    text = torch.randint(20, (500, 6))  # (text, n)
    truth = neighbors(text, model.offsets)  # (text, n, offset)
    right = model(text).argmax(dim=-1) == truth
    each, together = right.float().mean(dim=(0, 1)), right.all(dim=-1).float().mean()
    return [*each.tolist(), together.item()]


for name, attend in (("one projection", one_projection), ("query and key", one_head)):
    starts = progress(range(3), f"{name}, three starts")
    left = [accuracy(train_ring(attend, (-1,), seed))[0] for seed in starts]
    print(f"{name:15} left neighbor right:", *(f"{fraction:.0%}" for fraction in left))
expect("Query and key, the worst start", min(left), 0.95, 1.0)

# %% [markdown]
# A query *and* a key solve it: "I look for the position before mine" is one matrix. With one projection, some word
# looks the wrong way, and the reason fits on paper: scores are mutual, $s_{ij} = s_{ji}$. Word 2 must match word 1
# better than word 3, so $s_{21} > s_{32}$. In the same way $s_{32} > s_{43} > s_{54} > s_{65} > s_{16}$, and word 1,
# whose left neighbor is word 6, needs $s_{16} > s_{21}$: the chain ends where it began. The other five positions, and 1
# lucky guess in 20, make 84%, the most that any of the three starts reached.

# %% [markdown]
# ## 3 One row of weights, two words to find
#
# A head can now look anywhere. But *attacked* must find two words: who did it, and to whom. Attention gives it one row
# of weights, which adds up to 1. Suppose it spends half on each noun. Then it hears ½ *orcs* + ½ *humans*, and just the
# same when the humans have attacked. Two rows keep them apart: one looks at the doer, the other at the victim, and the
# two answers are put side by side. Then order counts: *orcs* followed by *humans* is not
# *humans* followed by *orcs*.
#
# Does training find a way around this? Ask for both neighbors.

# %% jupyter={"source_hidden": true}
predict("one-head", "What will one head do, when it is asked for both neighbors?",
        "know both for most words", "know one side and guess the other", "guess both")

# %% [markdown]
# Three starts; guessing gets one word in 20:

# %% tags=["nbval-ignore-output"]
def both_neighbors(attend, name):
    starts = progress(range(3), f"{name}, three starts")
    models = [train_ring(attend, (-1, 1), seed) for seed in starts]
    for model in models:
        left, right, both = accuracy(model)
        print(f"left neighbor {left:.0%}, right {right:.0%}, both {both:.0%}")
    return models


one = both_neighbors(one_head, "one head")
for model in one:
    largest = model.attend[0].weight.amax(dim=-1).mean()  # over rows and texts
    print(f"largest weight of a row: {largest:.2f}")
predicted("one-head", "know one side and guess the other")

# %% [markdown]
# From the first start, training spends nearly all of each row on one neighbor (section 4 shows it). From the other two
# it divides each row, about 0.5 for one neighbor and 0.4 for the other, and still names only one of them.
#
# Could unequal weights not mark which is which? They could, but the linear layer that reads the mixture would then
# have to name the quieter of two words as well. Training found no such way. But a network with a hidden
# layer might tell the two apart, and in a real block one follows (lesson 06). So here is the strongest rival:

# %% tags=["nbval-ignore-output"]
def head_and_network(d_model):
    return nn.Sequential(one_head(d_model), nn.Linear(d_model, 256), nn.ReLU(),
                         nn.Linear(256, d_model))


rival = both_neighbors(head_and_network, "one head and a hidden layer")
for attend in (one_head, head_and_network):
    size = sum(weights.numel() for weights in attend(64).parameters())
    print(f"{attend.__name__}: {size:,} parameters")

# %% [markdown]
# So a single head is not helpless: followed by a network, it knows both, from each start. But it takes three times the
# parameters. There is a simpler way: two rows of weights for each word.

# %% [markdown]
# ## 4 The idea in one picture
#
# To get several rows, cut the wide query, key and value into $h$ narrow strips. Each set of strips attends on its own,
# as one head. At the end the heads' answers are put side by side, and one more projection mixes them.

# %% jupyter={"source_hidden": true}
figures.multihead(
    4, title="Cut into strips: each head attends on its own",
    alt="From left to right: x is projected to Q, K and V; each is cut into four colored strips. Strips of Q and K of one "
    "color make one head's weight matrix; with the strip of V it gives one narrow mixture. The four are joined, projected.",
)

# %% [markdown]
# Nothing gets bigger: together, $h$ heads with $d_k = d_\text{model}/h$ columns each are as wide as one head with all
# of them. Six columns and two heads, on paper: the query $(1, 2, 3, 4, 5, 6)$ becomes $(1, 2, 3)$ for head 1 and
# $(4, 5, 6)$ for head 2. They meet keys of three numbers, and return three numbers each. As an equation (Vaswani et al.
# 2017, section 3.2.2):
#
# $$\text{MultiHead}(Q, K, V) = \text{concat}(\text{head}_1, \dots, \text{head}_h)\, W^O$$
# $$\text{head}_i = \text{attention}(Q W_i^Q,\; K W_i^K,\; V W_i^V)$$
#
# Side by side the heads' answers have $h \cdot d_v$ columns, so $W^O$ is $(h \cdot d_v) \times d_\text{model}$.
# Usually, and here, $d_v = d_k = d_\text{model} / h$; then $W^O$ is square. In self-attention $Q$, $K$ and $V$ are all
# the same $x$. A head's scores add up $d_k$ products, so they are divided by *its* $\sqrt{d_k}$, not by
# $\sqrt{d_\text{model}}$.
#
# Here is the equation, word for word, with a loop over the heads ($h$ is called `heads` in the code):


# %%
class LoopedHeads(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = nn.ModuleList(
            Head(d_model, d_model // heads) for _ in range(heads))
        self.output = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):  # (batch, n, d_model)
        answers = [head(x) for head in self.heads]  # each (batch, n, d_v)
        return self.output(torch.cat(answers, dim=-1))  # (batch, n, d_model)


# %% [markdown]
# Give the task two of these heads, each half as wide. All else stays the same, including the number of parameters.

# %% tags=["nbval-ignore-output"]
two = both_neighbors(partial(LoopedHeads, heads=2), "two heads")
worst = min(accuracy(model)[-1] for model in two)
expect("Both neighbors, two heads, the worst start", worst, 0.95, 1.0)

# %% [markdown]
# It is solved, from each start. Here are the weights for one text, from the first start: of section 3's only head and
# of these two.

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
positions = [f"word {i}" for i in range(1, 7)]
plots.heads(
    torch.stack([one[0].attend[0].weight[0], *(head.weight[0] for head in two[0].attend.heads)]),
    names=["the only head", "first of two heads", "second of two heads"],
    rows=positions, columns=positions, title="One head finds one neighbor; two heads find both",
    alt="Three weight matrices of six words. The only head has nearly all its weight just left of the diagonal. Of the "
    "two heads, one has it just left of the diagonal, the other just right; the ring closes in the corners.",
)

# %% [markdown]
# Nothing told the two heads to divide the work. So *attacked* can have both answers: one head for the doer, one for the
# victim. (Exercise 04 asks whether each further offset needs one more head.)

# %% [markdown]
# ## 5 Build it: all heads at once
#
# The loop takes many small matrix products where a few large ones would do. $h$ narrow projections side by side are one
# wide projection, `(d_model, d_model)`; and `attention` works on the last two axes, so the heads only need an axis in
# front of them: `(batch, heads, n, d_k)`. Take a batch of 2, 6 words, 8 columns and 4 heads.
#
# **Step 1: project. Step 2: split.** Of the 8 columns of each word, head 0 gets the first two, head 1 the next two, and
# so on. (The equation counts heads from 1, Python from 0.) A `view` divides the last axis in two. The head axis then
# comes after the words, and `transpose` brings it before them.


# %% tags=["recorded"]
def split(x, heads):  # (batch, n, d_model)
    batch, n, d_model = x.shape
    x = x.view(batch, n, heads, d_model // heads)  # (batch, n, heads, d_k)
    return x.transpose(1, 2)  # (batch, heads, n, d_k)


torch.manual_seed(0)
n, d_model, heads, d_k = 6, 8, 4, 2
inputs = torch.randn(2, n, d_model)  # (batch, n, d_model)
query, key, value, output = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
q, k, v = query(inputs), key(inputs), value(inputs)  # each (batch, n, d_model)
print("q is", tuple(q.shape), "and split", tuple(split(q, heads).shape))
prove_equal(split(q, heads)[:, 1], q[:, :, 2:4], what="Head 1, columns 2 and 3")

# %% [markdown]
# ### The trap
#
# Why two lines? `x.view(batch, heads, n, d_k)` gives the same shape in one. Try it on an `x` that is easy to read, in
# which each word's row is filled with the word's own number. Head 0 should hold words 0, 1, 2, 3, 4, 5.


# %% tags=["recorded"]
def split_wrong(x, heads):  # (batch, n, d_model)
    return x.view(x.shape[0], heads, x.shape[1], -1)  # no transpose, no error


numbered = torch.arange(n).float().view(1, n, 1).repeat(1, 1, d_model)
print("shapes:", *(tuple(way(numbered, heads).shape) for way in (split, split_wrong)))
for name, way in {"right": split, "view alone": split_wrong}.items():
    print(f"{name}: head 0 holds words",
          way(numbered, heads)[0, 0, :, 0].int().tolist())

# %% [markdown]
# A `view` never moves a number in memory, where all 8 numbers of word 0 come first, then all of word 1. It only cuts
# this line of numbers into other pieces:

# %% jupyter={"source_hidden": true}
figures.memory_tape(
    sentence, heads, d_k, title="With view alone, a head gets words instead of columns",
    alt="A gray tape of 48 numbers, 8 for each of six words. Above it, in the colors of the heads, the right "
    "split: in each word the first two numbers go to head 0, the next two to head 1, and so on. Below, view alone: the "
    "first 12 numbers, a word and a half, go to head 0, the next 12 to head 1, and so on.",
)

# %% [markdown]
# The wrong head 0 takes *the* and half of *orcs* and treats them as six words of two numbers each. The rule: **divide
# an axis with `view`, swap axes with `transpose`, never swap with `view`.**
#
# **Step 3: attend**, in all heads of all sentences at once. **Step 4: join**, which is the split undone in the opposite
# order: first bring the heads after the words, then merge the last two axes. (`reshape`, because after a transpose the
# numbers no longer lie in order, and `view` would refuse.)


# %% tags=["recorded"]
def join(x):  # (batch, heads, n, d_k)
    x = x.transpose(1, 2)  # (batch, n, heads, d_k)
    return x.reshape(*x.shape[:2], -1)  # (batch, n, heads · d_k)


q_h, k_h, v_h = (split(each, heads) for each in (q, k, v))  # (batch, heads, n, d_k)
mixed = attention(q_h, k_h, v_h)  # (batch, heads, n, d_k)
prove_equal(join(q_h), q, what="Split and joined again, and the original")

# %% [markdown]
# **Step 5: the output projection** $W^O$. Up to here, no head has heard from any other. Head $i$'s columns meet only
# the rows of $W^O$ that belong to them; call these $W_i^O$. So the product is a sum, and **heads add**:
#
# $$\text{concat}(\text{head}_1, \dots, \text{head}_h)\, W^O = \sum_i \text{head}_i\, W_i^O$$

# %%
out = output(join(mixed))  # (batch, n, d_model)
w_o = output.weight.T.split(d_k)  # heads of (d_k, d_model)
added = sum(mixed[:, i] @ w_o[i] for i in range(heads))  # (batch, n, d_model)
prove_equal(added, out, what="The sum over the heads and the joined heads, projected")

# %% [markdown]
# *Second reading.* So a head is two maps of low rank. $W_i^Q (W_i^K)^\top$, the $M$ of section 2, decides *where* it
# looks; $W_i^V W_i^O$ decides *what* it adds from there. Elhage et al. (2021) call them the head's **QK and OV
# circuits**.
#
# ### The whole module
#
# `memory`, the sequence that keys and values come from, is for section 6. `split` and `join` are arguments, so that we
# can put wrong ones there.


# %% tags=["recorded"]
class ManyHeads(nn.Module):
    def __init__(self, d_model, heads, split=split, join=join):
        super().__init__()
        self.heads, self.split, self.join = heads, split, join
        self.query, self.key, self.value, self.output = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def forward(self, x, memory=None, mask=None):  # (batch, n, d_model), (batch, m, …)
        memory = x if memory is None else memory
        q = self.split(self.query(x), self.heads)  # (batch, heads, n, d_k)
        k = self.split(self.key(memory), self.heads)  # (batch, heads, m, d_k)
        v = self.split(self.value(memory), self.heads)  # (batch, heads, m, d_k)
        mixed, weight = attention(q, k, v, mask, return_weights=True)
        self.weight = weight.detach()  # (batch, heads, n, m), to look at later
        return self.output(self.join(mixed))  # (batch, n, d_model)


# %% [markdown]
# Does it compute what the equation says? Head $i$ of the loop gets its columns of our wide matrices. (A `Linear` stores
# its matrix as (out, in), so they are rows of `weight`.)

# %%
layer, looped = ManyHeads(d_model, heads), LoopedHeads(d_model, heads)
with torch.no_grad():
    for i, head in enumerate(looped.heads):
        strip = slice(i * d_k, (i + 1) * d_k)
        head.query.weight.copy_(layer.query.weight[strip])  # (d_k, d_model)
        head.key.weight.copy_(layer.key.weight[strip])
        head.value.weight.copy_(layer.value.weight[strip])
    looped.output.weight.copy_(layer.output.weight)
prove_equal(layer(inputs), looped(inputs),
            what="All heads at once and the loop of the equation")

# %% [markdown]
# ### Break it: a join without the transpose
#
# Wrong shapes stop a program. Wrong order does not. Split correctly, but merge the heads without transposing back, and
# train the ring once more: each word must predict the word on its *right*, the next one. A causal mask hides it: query
# $i$ sees key $j$ where $j \le i$. Words are drawn at random, so no honest model can know the next one. Only the last
# word's right neighbor, the first of the ring, is in its past. For the others there is one lucky guess in 20: in all
# $\frac16 + \frac56 \cdot \frac1{20} = 21\%$.

# %% jupyter={"source_hidden": true}
predict("heads-leak", "How many of the next words will the wrong join know?",
        "fewer than 21%", "21%", "most of them")

# %% [markdown]
# The wrong join, and a layer with a causal mask:


# %% tags=["recorded"]
def join_wrong(x):  # (batch, heads, n, d_k)
    return x.reshape(x.shape[0], x.shape[2], -1)  # no transpose


class Causal(ManyHeads):
    def forward(self, x):  # (batch, n, d_model)
        return super().forward(x, mask=causal())  # (batch, n, d_model)


# %% [markdown]
# We train each from three starts:

# %% tags=["nbval-ignore-output"]
for name, way in {"right": join, "wrong": join_wrong}.items():
    attend = partial(Causal, heads=4, join=way)
    starts = progress(range(3), f"join {name}")
    models = [train_ring(attend, (1,), seed) for seed in starts]
    found = [accuracy(model)[0] for model in models]
    print(f"join {name}, next word right:", *(f"{fraction:.0%}" for fraction in found))
expect("Wrong join, the worst start", min(found), 0.7, 0.85)
predicted("heads-leak", "most of them", "It reads the next word.")

# %% [markdown]
# The right layer knows what can be known, 21%. The wrong one knows five of six, and looks like the better model: its
# join puts what other words have found, also later ones, into a word's row. But when the model itself is to write the
# next word, there is nothing to read; lesson 08 shows such a model at work. A result that is too good to be true is a
# bug until you have shown that it is not.
#
# (Section 7 trains a model with both shortcuts, in split *and* join.)

# %% [markdown]
# ## 6 Self-attention and cross-attention
#
# A sentence can also look at another one: queries need not come from the same sentence as keys and values.
#
# | | queries from | keys and values from | weights |
# | --- | --- | --- | --- |
# | **self-attention** | $x$, $n$ words | $x$, $n$ words | $(n, n)$ |
# | **cross-attention** | $x$, $n$ words | the *memory*, $m$ words | $(n, m)$ |
#
# In a translator the English side asks, and the German sentence is the **memory**. `ManyHeads` can do both.
#
# Take three English sentences of 7 words, and their German partners of 9, 5 and 7 words, padded to $m = 9$; random
# vectors will do. The mask belongs to the *keys*: it says which German words are real. Its shape is (batch, 1, 1, m),
# the same for each head and each query. What a padding *query* finds is never read.

# %%
torch.manual_seed(0)
english = torch.randn(3, 7, 32)  # (batch, n, d_model): English
german = torch.randn(3, 9, 32)  # (batch, m, d_model): German
real = torch.tensor([9, 5, 7])[:, None]  # (batch, 1): words that are no padding
mask = (torch.arange(9) < real)[:, None, None]  # (batch, 1, 1, m)
cross = ManyHeads(32, heads=4)
found = cross(english, german, mask)  # (batch, n, d_model)
print(f"found {tuple(found.shape)}, weights {tuple(cross.weight.shape)}")
print(f"attention spent on padding: {(cross.weight * ~mask).sum():.0f}")

# %% [markdown]
# To catch a missing mask, pad the German sentences further: nothing should change. (The mask must grow as well: `F.pad`
# fills with 0, here `False`.)

# %%
longer = F.pad(german, (0, 0, 0, 4))  # (batch, m + 4, d_model): more padding
found_longer = cross(english, longer, F.pad(mask, (0, 4)))  # (batch, n, d_model)
prove_equal(found_longer, found, what="Outputs with more padding and without")
change = (cross(english, longer) - cross(english, german)).norm() / found.norm()
print(f"without a mask the output changes by {change:.0%}")

# %% [markdown]
# What do more heads cost? Neither parameters, $4 d_\text{model}^2$ for any $h$, nor operations: a head's scores cost
# only $1/h$ as much. But there are $h$ weight matrices, so $hn^2$ weights to hold and to exponentiate. Two savings come
# later: the **cache**, in which a model that writes keeps the keys and values of all words so far
# ([lesson 13](13_decoding.ipynb)), and **grouped queries**, where several query heads share one head of keys and values
# ([lesson 16](16_todays_decoder.ipynb)).
#
# ### Open the library, and torch (second reading)
#
# What you have built is the library's `MultiHeadAttention`, and torch's `nn.MultiheadAttention`. In the library's
# `attend`, find `self.project`, `self.split`, and `self.mechanism`, which is `attention`. (`rotary` and `position_bias`
# are for lesson 05, `cache` and `offset` for 13.)

# %%
from txlib.attention import MultiHeadAttention

show_source(MultiHeadAttention.attend)

# %% [markdown]
# Its four layers have the names of ours, so our weights simply load. torch keeps the three input matrices stacked in
# one, and its masks are *inverted*: `True` means *may not attend*.

# %%
library = MultiHeadAttention(32, heads=4, bias=False)
library.load_state_dict(cross.state_dict())
prove_equal(library(english, german, mask=mask), found, what="The library's and yours")
theirs = nn.MultiheadAttention(32, num_heads=4, bias=False, batch_first=True)
stacked = [cross.query.weight, cross.key.weight, cross.value.weight]
with torch.no_grad():
    theirs.in_proj_weight.copy_(torch.cat(stacked))  # (3 · d_model, d_model)
    theirs.out_proj.weight.copy_(cross.output.weight)
their_found, _ = theirs(english, german, german, key_padding_mask=~mask[:, 0, 0])
prove_equal(their_found, found, tolerance=1e-4, what="torch's and yours")

# %% [markdown]
# ## 7 See it work: fill the gap
#
# Heads win in a ring that was made for them. Do they help with real sentences? One English word is hidden; you see the
# word before it, the word after it, and the whole German sentence. Which word is it?
#
# > Der König ist tot. → *the* ? *is*
#
# On paper: between *the* and *is* there is probably a noun. Say that the query therefore scores 0 with *der* and *ist*,
# 3 with *König* and 1 with *tot*: softmax gives the weights 0.04, 0.81, 0.04 and 0.11. With the values $(1, 0)$ for
# *König*, $(0, 1)$ for *tot* and $(0, 0)$ for the others, the mixture is $(0.81, 0.11)$: *king* rather than *dead*.
#
# The sentence pairs are lesson 03's, and so are `words`, `vocabulary` and `encode`, which turn them into numbers: 0 is
# padding, 1 is any word that occurs fewer than 20 times. We keep the pairs of 3 to 12 words a side.

# %% tags=["recorded"]
from txcourse.words import encode, vocabulary, words
from txlib.data import translation


def short_pairs(part):
    return [(german, english) for german, english in part
            if 3 <= len(words(german)) <= 12 and 3 <= len(words(english)) <= 12]


corpus = translation("games", max_words=12)
pairs, held_out = short_pairs(corpus.train), short_pairs(corpus.validation)
german_text, english_text = zip(*pairs)
german_held_out, english_held_out = zip(*held_out)
german_ids, english_ids = vocabulary(german_text, 20), vocabulary(english_text, 20)
german_rows = encode(german_text, german_ids)  # (pair, m)
english_rows = encode(english_text, english_ids)  # (pair, n)
german_rows_held_out = encode(german_held_out, german_ids)  # (sentence, m)
english_rows_held_out = encode(english_held_out, english_ids)  # (sentence, n)
english_size, german_size = len(english_ids) + 2, len(german_ids) + 2

# %% [markdown]
# The query is the sum of three embeddings: of the two neighbors and of the gap's position. Each word of a sentence is
# hidden in turn, so a sentence of $n$ words asks $n$ queries at once. German words and their positions are the memory.
# The answer is read from what attention returns, and from nothing else.


# %% tags=["recorded"]
class Gap(nn.Module):
    def __init__(self, attend, d_model=128):
        super().__init__()
        sizes = english_size, english_size, german_size, 12, 12
        self.before, self.after, self.word, self.gap_position, self.position = (
            nn.Embedding(size, d_model) for size in sizes)
        for table in self.children():
            nn.init.normal_(table.weight, std=0.2)
        self.attend, self.classifier = attend(d_model), nn.Linear(d_model, english_size)

    def forward(self, german, english):  # (batch, m), (batch, n)
        left, right = F.pad(english[:, :-1], (1, 0)), F.pad(english[:, 1:], (0, 1))
        x = (self.before(left) + self.after(right)
             + self.gap_position.weight[: left.shape[1]])
        memory = self.word(german) + self.position.weight[: german.shape[1]]
        found = self.attend(x, memory, (german > 0)[:, None, None])  # (batch, n, …)
        return self.classifier(found[english > 1])  # (gap, word): common words only


# %% [markdown]
# In training, the learning rate rises quickly and then falls to nearly zero (lesson 07 says why). The loss is minus the
# natural logarithm of the probability given to the hidden word. Its unit is the **nat**: 3 nats are a probability of
# $e^{-3}$, or 1 in 20.


# %% tags=["recorded"]
def gap_loss(model):
    chosen = torch.randint(len(pairs), (64,))  # (pair,)
    english = english_rows[chosen]  # (batch, n)
    logits = model(german_rows[chosen], english)  # (gap, word)
    return F.cross_entropy(logits, english[english > 1])


def train_gap(attend, seed):
    torch.manual_seed(seed)
    model = Gap(attend)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.008, 300, pct_start=0.1)
    return train(model, gap_loss, optimizer, schedule)


# %% [markdown]
# On the held-out pairs, we measure the loss and the fraction of gaps that are filled correctly:


# %% tags=["recorded"]
@torch.no_grad()
def evaluate(model, german=german_rows_held_out):
    logits = model(german, english_rows_held_out)  # (gap, word)
    truth = english_rows_held_out[english_rows_held_out > 1]  # (gap,)
    right = (logits.argmax(dim=-1) == truth).float().mean()
    return F.cross_entropy(logits, truth).item(), right.item()


# %% [markdown]
# We train four heads from three starts, and also test each on wrong German: every English sentence gets the German of
# its neighbor in the list.

# %% tags=["nbval-ignore-output"]
four = [train_gap(partial(ManyHeads, heads=4), seed)
        for seed in progress(range(3), "four heads, three starts")]
for model in four:
    loss, right = evaluate(model)
    _, with_wrong = evaluate(model, german_rows_held_out.roll(1, dims=0))
    print(f"loss {loss:.2f}, gaps filled correctly {right:.0%}; "
          f"with another sentence's German {with_wrong:.0%}")
expect("Gaps filled correctly", right, 0.35, 0.5)

# %% [markdown]
# About four gaps in ten are filled; with the wrong German, less than half of that.
#
# ### What do the heads look at?
#
# Take one held-out sentence, and hide each of its words in turn. At *king*, the model is told *more* and *Haldric*
# only, and where the gap is. Which head finds *könig* for *king*, and which *tot* for *dead*? Run the cell for a menu
# of the heads, with numbers.

# %% tags=["nbval-ignore-output"]
def weights_of(model, line):
    its_german = german_held_out[english_held_out.index(line)]
    model(encode([its_german], german_ids), encode([line], english_ids))
    return model.attend.weight[0], words(line), words(its_german)  # (heads, n, m), …


weight, rows, columns = weights_of(four[0], "What's more, King Haldric is dead.")
explore.heads(weight, rows=rows, columns=columns)

# %% [markdown]
# <details><summary>The answer</summary>
#
# In our run, head 0 finds *könig* (.88; head 3 gives it .56), and heads 0, 1 and 2 find *tot*.
# </details>
#
# One sentence can be luck, so we count over all held-out sentences: how much of a head's weight goes to the
# translation of the *hidden* word, which the query has not seen? From each start, the best and the worst of the four
# heads:


# %% tags=["nbval-ignore-output"]
def on_translation(model, english_word, german_word):
    evaluate(model)  # leaves its weights
    key = german_rows_held_out == german_ids[german_word]  # (sentence, m)
    query = english_rows_held_out == english_ids[english_word]  # (sentence, n)
    query = query & key.any(dim=-1, keepdim=True)  # only where the sentence has both
    weight = (model.attend.weight * key[:, None, None]).sum(-1)  # (sentence, heads, n)
    return weight.transpose(1, 2)[query].mean(dim=0)  # (heads,)


for pair in (("king", "könig"), ("we", "wir"), ("gold", "gold"), ("now", "jetzt")):
    starts = [on_translation(model, *pair) for model in four]  # each (heads,)
    print(f"{pair[0]:5}",
          *(f"{each.max():5.0%} and {each.min():3.0%}" for each in starts))
lengths = (german_rows_held_out > 0).sum(dim=-1)  # (sentence,)
print(f"even weights would give {(1 / lengths).mean():.0%}")

# %% [markdown]
# For *king*, *we* and *gold*, the best head of each start puts most of its weight on the translation of a word that the
# query has not seen. *now* is harder. Are the worst heads superfluous? Exercise 04 takes heads out of a layer; Michel
# et al. (2019) did so in large models.
#
# ### Break it: how many heads?
#
# Same width, same parameters, same data; only $h$ changes. More heads are more ways to look, but they are narrower:
# with 32, each query and key has 4 entries. Which $h$ has the lowest loss? And what do both shortcuts of section 5 cost
# here?
#
# If more heads win, is it because they look better? `Gap` reads its answer from what attention returns and from nothing
# else, so all that the query knows of the two neighbors must pass through the weights as well. A fair comparison adds
# the query to the answer, as each block of a Transformer does (lesson 06). Two controls come with it: with `ask=0` all
# scores are 0, so the weights are even; with `german=0` there is nothing to find.


# %% tags=["recorded"]
class Added(ManyHeads):
    def __init__(self, d_model, heads, ask=1, german=1):
        super().__init__(d_model, heads)
        self.ask, self.german = ask, german

    def forward(self, x, memory, mask):  # (batch, n, d_model), (batch, m, d_model), …
        found = super().forward(self.ask * x, self.german * memory, mask)
        return x + found  # (batch, n, d_model)


# %% [markdown]
# Guess, then look: `python data/many_heads.py 0 1 2` trained each of them with these cells. Each line runs from the
# lowest to the highest of three starts; the dot is their mean:

# %% jupyter={"source_hidden": true}
recorded = json.loads((DATA / "many_heads.json").read_text())
losses = {name: list(starts.values()) for name, starts in recorded.items()}
added = [name for name in losses if name.startswith("query added")]
plots.ranges(
    {name: (min(three), sum(three) / 3, max(three)) for name, three in losses.items()},
    groups={"attention alone": [name for name in losses if name not in added], "query added": added},
    xlabel="loss on new sentences (nats)",
    title="With the query added, one head is enough",
    alt="; ".join(f"{name}: " + ", ".join(f"{loss:.2f}" for loss in three) for name, three in losses.items()),
)

# %% [markdown]
# Without the query, more heads are better on average each time. With it, the order turns around from each start: one
# head is slightly better than four (2.81 and 2.83 on average), and 32 are worse (2.88). So it is not for looking that
# the first four models need more heads. Our explanation is that more heads let more of the query through.
#
# The controls show how much looking gives, and how much the query. Even weights, which choose no word, have a loss of
# 3.22 with the query, less than four heads without it (3.28). With no German at all it is 3.73. So looking helps, and
# here one head is enough for it.
#
# That is no law. In Vaswani et al. (table 3, rows A), whose blocks also add the query, 8 to 16 heads were best in BLEU
# (lesson 09), where more is better; 1 head was 0.9 below them, and 32 were 0.4 below. How many heads are worthwhile
# depends on the task and on the rest of the network.
#
# And with both shortcuts? No error, no `nan`: just a model whose four heads are worse than one right head (3.65 and
# 3.52). With all its German, it does hardly better than the query alone, which knows only the two neighbors and the
# position (3.73). This is what many mistakes in attention look like.

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. `x` is (batch, n, d_model). Which line splits the heads?**
#
# <details><summary>A. <code>x.view(batch, heads, n, d_k)</code></summary>
#
# The shape is right, the numbers are not: head 0 gets all columns of the first words.
# </details>
# <details><summary>B. <code>x.view(batch, n, heads, d_k).transpose(1, 2)</code></summary>
#
# Right. First divide the last axis in two, then swap.
# </details>
# <details><summary>C. <code>x.view(batch, n, heads, d_k)</code></summary>
#
# The numbers are right, but attention works on the last two axes. It would let the *heads* of one word attend to each
# other.
# </details>
#
# **2. English words (n = 7) attend to a German sentence (m = 9), batch 5, 4 heads. What shape does the padding mask
# have?**
#
# <details><summary>A. (5, 1, 1, 9)</summary>
#
# Right. It says which of the 9 German words are real, for all heads and all queries alike.
# </details>
# <details><summary>B. (5, 1, 7, 1)</summary>
#
# That says which *queries* are real, and lets them look at the padding. (`attention` refuses it.)
# </details>
# <details><summary>C. (5, 1, 7, 7)</summary>
#
# The scores are (5, 4, 7, 9). A mask for self-attention does not fit here.
# </details>
#
# **3. What would you lose without $W^O$?**
#
# <details><summary>A. Nothing: the next layer can mix the heads</summary>
#
# It can, but in a real model the result is first *added* to the input (lesson 06), which would tie each head to fixed
# columns of it.
# </details>
# <details><summary>B. Each output column would come from one head only</summary>
#
# Right. $W^O$ is where the heads' answers meet.
# </details>
# <details><summary>C. The shape: heads could not be joined</summary>
#
# They are joined before $W^O$, and already have $d_\text{model}$ columns.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - In self-attention the words of a sentence look at each other. Queries and keys need a projection each: without them,
#   looking is mutual, and each word finds itself.
# - One head has one row of weights for each word. $h$ heads have $h$ rows, and what they find is added up by $W^O$. Two
#   heads knew both neighbors; for the gaps, one head was enough once the query was added to the answer.
# - Project, split, attend, join, project. Parameters and operations do not depend on $h$.
# - `view` divides, `transpose` swaps. Confuse them, and words get lost, or the future leaks in, without an error.
# - In cross-attention, queries come from one sentence, keys and values from another; the padding mask is on the key
#   axis.
#
# **Read** Vaswani et al. 2017, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762), sections 3.2.2 and 3.2.3, and
# table 3, rows A. Michel et al. 2019, [arXiv:1905.10650](https://arxiv.org/abs/1905.10650), on turning heads off in
# real models. Elhage et al. 2021, *A Mathematical Framework for Transformer Circuits*, on heads that add.
#
# **Do** the exercise [04_heads](../exercises/exercise_04_heads.ipynb). Then go on to
# [05 Where am I? Positions](05_positions.ipynb).
