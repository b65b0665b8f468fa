# %% [markdown] lesson={"part": "I Attention", "builds": "multi-head attention and cross-attention"}
# # 04 · Many heads, self- and cross-attention
#
# **After this lesson you will be able to**
#
# - say why self-attention projects its words three times, and show what happens without;
# - prove in two lines what attention does when words change places;
# - say what a single head cannot do, and show it by measurement;
# - build multi-head attention, and say the shape of every tensor in it;
# - spot the reshape that mixes up words without an error;
# - let one sentence attend to another: cross-attention, with its padding mask on the right axis.
#
# **You need** [lesson 03](03_attention.ipynb); section 1 also looks back at lessons 01 and 02.
#
# **It takes** about 65 minutes to read and try; all cells together run in about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: a sentence that looks at itself
#
# *The animal didn't cross the street because it was too tired.* What was tired? Now end the sentence with *too wide*,
# and *it* is something else. No vector of *it* alone can tell: the answer is elsewhere in the sentence. So let the
# words of a sentence look at each other. That is **self-attention**: queries, keys and values all come from the same
# words. (Lesson 15 counts what the heads of trained models make of *it*.)
#
# ### A hidden state, or looking back
#
# A recurrent net (lesson 02) also brings *animal* to *it*, but inside one vector, the **hidden state**, which every
# word on the way rewrites. Take the simplest one, $h \leftarrow \frac12 h + \frac12 x$, on paper. Once *animal* is
# read, it is half of $h$. Six words later, at *it*, one part in 128 is left. Gates slow this down; looking back avoids
# it.
#
# | | a hidden state | looking back |
# | --- | --- | --- |
# | what word $i$ has of the past | one vector, rewritten at each word | the vectors of all words, unchanged |
# | steps from word $j$ to word $i$ | $i - j$ | 1 |
# | training | one word after another | all words at once |
# | memory, and work for each new word | always the same | grows with the text |
#
# The last row is the price. Parts II and IV are about paying less.

# %% tags=["recorded"]
import json
import re
from collections import Counter
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.functional import jacobian

from txlib import plots
from txlib.attention import MultiHeadAttention, attention, causal
from txlib.data import translation
from txlib.paths import DATA
from txcourse import explore, figures
from txcourse.lesson import (
    expect, predict, predicted, progress, prove_equal, show_source)

# %% [markdown]
# ### First try: compare the words as they are
#
# We follow lesson 03's sentence pair, first its English side: *The orcs have attacked the humans.* The word *attacked*
# should find out who did it, and to whom. The simplest self-attention has nothing to learn: each word asks with its own
# vector $x_i$, and is found by the same vector. The scores are $x_i \cdot x_j / \sqrt d$.
#
# Try it on paper with two numbers for each word, *how much of a noun* and *how much of a verb*: let *orcs* and *humans*
# be $(2, 0)$ and *attacked* be $(0, 2)$. Before the division, *attacked* scores 4 with itself and 0 with both nouns.
#
# Now with real vectors, made as in lesson 01: by counting which words occur within two words of each other in game
# dialogues. `python data/five_words.py` stored those of our five words, 64 numbers each, all vectors equally long.
# Guess first: in the row of *attacked*, which word gets the highest score? And in the row of *orcs*, which comes
# second?

# %%
stored = json.loads((DATA / "five_words.json").read_text())
sentence = ["the", "orcs", "have", "attacked", "the", "humans"]
x = torch.tensor([stored[word] for word in sentence])  # (n, d)
score = x @ x.T / 64**0.5  # (n, n)
weight = score.softmax(dim=-1)  # (n, n)

# %% [markdown]
# As a picture, with the scores divided by 8 once more, so that each word has 1 with itself:

# %% jupyter={"source_hidden": true}
plots.heads(
    torch.stack([score / 8, weight]), names=["score ÷ 8", "weight"],
    rows=sentence, columns=sentence, numbers=True, size=0.55,
    title="Words compared as they are: each finds itself",
    alt="Two tables of six words by six words. In both, the largest number of each row is on "
    "the diagonal. In the table of scores, the upper right half mirrors the lower left.",
)

# %% [markdown]
# Two things are wrong, and better vectors would not help.
#
# **Every word finds itself.** $x_i \cdot x_i$ is the squared length, and among vectors of equal length no dot product
# is larger (the Cauchy–Schwarz inequality). So each row puts nearly all its weight on its own word (*the* shares it
# with its twin), and the word receives what it already was. Second comes what *resembles* the word: for *orcs*,
# *humans*, though the word it needs is *attacked*.
#
# **Looking is mutual.** $x_i \cdot x_j = x_j \cdot x_i$: the score of *orcs* with *humans* is that of *humans* with
# *orcs*. But a verb may need its subject more than the subject needs the verb.
#
# Our sentence is no exception: over the 826 sentences of the test set, a word's weight on itself is 88% on average
# (stored in the same file).

# %% [markdown]
# ## 2 Self-attention: three roles, three projections
#
# So far, a word finds only what resembles it. It should be able to look for something else.
#
# A word plays three roles, and they need not look alike: what it *looks for*, its query; what it can be *found by*, its
# key; what it *hands over*, its value. Give each role a matrix of its own, to be learned. On paper again, with one
# noun, *orcs* $= (1, 0)$, and one verb, *attacked* $= (0, 1)$. Let the query be the second number and the key the
# first. Then
#
# | | query | key |
# | --- | --- | --- |
# | *orcs* | 0 | 1 |
# | *attacked* | 1 | 0 |
#
# and *attacked* scores $1 \cdot 1 = 1$ with *orcs*, but 0 with itself, while *orcs* scores 0 with *attacked*. Both
# problems are gone. In general, with vectors as rows,
#
# $$q_i = x_i W^Q, \qquad k_j = x_j W^K, \qquad v_j = x_j W^V$$
#
# where $W^Q$ and $W^K$ have $d_\text{model}$ rows and $d_k$ columns, and $W^V$ has $d_v$ columns. A score is
#
# $$q_i \cdot k_j = x_i \, \underbrace{W^Q (W^K)^\top}_{M} \, x_j^\top$$
#
# That is a **bilinear form**: linear in $x_i$ and linear in $x_j$. The table $M$, $d_\text{model} \times
# d_\text{model}$, says how much feature $a$ of the word that asks wants feature $b$ of the word that answers. In the
# first try, $M$ was the identity. (Luong et al. 2015, [arXiv:1508.04025](https://arxiv.org/abs/1508.04025), section
# 3.1, learn such an $M$ directly.)
#
# Why two matrices, and not one $M$? Count.

# %%
torch.manual_seed(0)
w_q, w_k = torch.randn(2, 64, 8) / 64**0.5  # each (d_model, d_k)
M = w_q @ w_k.T  # (d_model, d_model)
prove_equal((x @ w_q) @ (x @ w_k).T, x @ M @ x.T, what="Scores by two matrices, by M")
print(f"M has rank {torch.linalg.matrix_rank(M)}; is M symmetric? {M.allclose(M.T)}")
print(f"numbers to learn: {w_q.numel() + w_k.numel():,}, or {M.numel():,} in a free M")

# %% [markdown]
# $M$ has **low rank**, at most $d_k$: a head compares words in $d_k$ respects only. In exchange it has fewer numbers to
# learn, and compares short vectors. To look for one thing, that is often enough.
#
# ### What happens when words change places
#
# Let $P$ be a matrix that puts the rows of $X$ into another order, so that $P^\top P$ is the identity. Then
#
# 1. the scores are $(PX) M (PX)^\top = P \, (X M X^\top) \, P^\top$: the same table with rows and columns reordered,
#    and a softmax along each row doesn't mind; call the weights $P A P^\top$;
# 2. the output is $P A P^\top \cdot P X W^V = P \, (A X W^V)$: the same output vectors, reordered.
#
# This is **equivariance**: shuffle the words, and each word's output moves with it, unchanged. No word notices where
# anything is. Let *orcs* and *humans* change places, and look at *attacked*.

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
# To *attacked*, both sentences are the same, whatever the matrices. So word vectors must also say where a word is
# (lesson 05); until then, each position simply has a learned vector that is added to the word's.
#
# ### Measured: one want
#
# A task in which nothing can be guessed: six words, drawn at random from 20, sit in a ring. **Each must name the word
# on its left**; the first one's left neighbor is the last. That is one *want*. After attention, one linear layer names
# the word. (`wants` lists the places to name: −1 is left, 1 is right. `attend` is the part that we will swap out;
# `classifier` is the layer that names the words.)

# %%
def asked(text, wants):  # (text, n)
    moved = [text.roll(-want, dims=1) for want in wants]  # each (text, n)
    return torch.stack(moved, dim=-1)  # (text, n, want)


class Neighbors(nn.Module):
    def __init__(self, attend, wants, classifier=nn.Linear, d_model=64):
        super().__init__()
        self.attend, self.wants = attend(d_model), wants
        self.word, self.position = nn.Embedding(20, d_model), nn.Embedding(6, d_model)
        self.classifier = classifier(d_model, 20 * len(wants))

    def forward(self, text):  # (text, n)
        x = self.word(text) + self.position.weight  # (text, n, d_model)
        logits = self.classifier(self.attend(x))  # (text, n, 20 · wants)
        return logits.unflatten(-1, (len(self.wants), 20))  # (text, n, want, 20)


# %% [markdown]
# Here is a **head**: three projections and lesson 03's attention. The library's `attention` is the function that you
# built there. It takes four axes, (batch, heads, length, $d_k$), and for now there is one head.


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
# `OneHead` adds a fourth projection, for the output. Its rival uses one projection for queries and keys.


# %%
class OneHead(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.head = Head(d_model, d_model)
        self.output = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):  # (batch, n, d_model)
        return self.output(self.head(x))  # (batch, n, d_model)


class OneProjection(OneHead):
    def __init__(self, d_model):
        super().__init__(d_model)
        self.head.key = self.head.query  # asks and is found by the same


# %% [markdown]
# The training loop is that of lesson 03. Texts are new in each step, so a model can't learn them by heart.


# %%
def play(attend, wants, seed=0, classifier=nn.Linear):
    torch.manual_seed(seed)
    model = Neighbors(attend, wants, classifier)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
    for _ in range(300):
        text = torch.randint(20, (64, 6))  # (text, n)
        logits = model(text)  # (text, n, want, 20)
        truth = asked(text, wants)  # (text, n, want)
        loss = F.cross_entropy(logits.flatten(0, 2), truth.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


# %% [markdown]
# `named` counts the words that are named correctly: for each want, and for all wants together. Each way is trained from
# three starts: a difference no larger than that between two starts does not count. Which of the two can learn to look
# left?


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def named(model):
    text = torch.randint(20, (500, 6))  # (text, n)
    right = model(text).argmax(dim=-1) == asked(text, model.wants)  # (text, n, want)
    each, all_of_them = right.float().mean(dim=(0, 1)), right.all(dim=-1).float().mean()
    return [*each.tolist(), all_of_them.item()]


for name, attend in (("one projection", OneProjection), ("query and key", OneHead)):
    starts = progress(range(3), f"{name}, three starts")
    left = [named(play(attend, (-1,), seed=seed))[0] for seed in starts]
    print(f"{name:15} left named:", *(f"{share:.0%}" for share in left))
expect("Query and key, the worst start", min(left), 0.95, 1.0)

# %% [markdown]
# A query *and* a key solve it: "I look for the place before mine" is one matrix. One projection cannot, and the reason
# fits on paper. With it, scores are mutual: $s_{ij} = s_{ji}$. Word 2 must match word 1 better than word 3, so
# $s_{21} > s_{32}$. In the same way $s_{32} > s_{43} > s_{54} > s_{65} > s_{16}$, and word 1, whose left neighbor is
# word 6, needs $s_{16} > s_{21}$: the chain ends where it began, with $s_{21} > s_{21}$. So at least one of the six
# places must fail. The other five, and 1 lucky guess in 20, make 84%. (Training need not reach even that.)

# %% [markdown]
# ## 3 One row, two wants
#
# A head can now look where it wants. But *attacked* wants to know two things: who did it, and to whom. Attention gives
# it one row of weights, and the row adds up to 1. Suppose it spends half on each noun. Then it hears ½ *orcs* + ½
# *humans* in both sentences, and cannot tell who attacked: an equal average has forgotten which part came from where.
# Two rows keep them apart. One looks at the doer, the other at the victim, and the two answers are put side by side:
# (*orcs*, *humans*) in the first sentence, (*humans*, *orcs*) in the second.
#
# Does training find a way around it? Ask for both neighbors, left *and* right.

# %%
predict("one-head", "What will one head do, when it is asked for both neighbors?",
        "name both for most words", "name one side and guess the other", "guess both")

# %% [markdown]
# Three starts:

# %% tags=["nbval-ignore-output"]
both_sides = (-1, 1)
starts = progress(range(3), "one head, three starts")
one = [play(OneHead, both_sides, seed=seed) for seed in starts]
for model in one:
    left, right, both = named(model)
    print(f"named: left neighbor {left:.0%}, right {right:.0%}, both {both:.0%}")
predicted("one-head", "name one side and guess the other")

# %% [markdown]
# The weights for one text, from the first start, show why: each word has one row, and it goes to one neighbor.

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
def look(model, heads, title, alt):
    model(torch.arange(6)[None])
    places = [f"word {i}" for i in range(1, 7)]
    weights = torch.cat([head.weight for head in heads])  # (heads, n, n)
    return plots.heads(weights, rows=places, columns=places, size=0.55,
                       title=title, alt=alt, numbers=True)


look(one[0], [one[0].attend.head], "One head: each row goes to one neighbor",
     "Attention weights of six words on each other, one row of weights for each word. Nearly all "
     "weight of a row is on one of the two neighbors.")

# %% [markdown]
# Could it not spend 0.7 on the left and 0.3 on the right, to mark which is which? A linear layer that can read the word
# with weight 0.3 out of the sum reads the one with 0.7 more clearly still, and names that. But a network with a hidden
# layer can tell the two apart, and in a real block one follows (lesson 06). So the strongest rival is:

# %% tags=["nbval-ignore-output"]
def hidden_layer(entries, logits):
    return nn.Sequential(nn.Linear(entries, 256), nn.ReLU(), nn.Linear(256, logits))


starts = progress(range(3), "one head and a hidden layer, three starts")
for model in [play(OneHead, both_sides, seed, hidden_layer) for seed in starts]:
    left, right, both = named(model)
    print(f"named: left neighbor {left:.0%}, right {right:.0%}, both {both:.0%}")

# %% [markdown]
# So a single head is not helpless: from two of three starts it names both, and from the other it is stuck with one
# side. But there is a simpler way: two rows of weights for each word.

# %% [markdown]
# ## 4 The idea in one picture
#
# What we have is one row of weights per word; what is missing is a second one. So cut the wide query, key and value
# into $h$ narrow strips. Each set of strips attends on its own, with its own weights, as a head of its own. At the
# end the heads' answers are put side by side, and one more projection mixes them.

# %% jupyter={"source_hidden": true}
figures.multihead(
    4, title="Cut into strips: each head attends on its own",
    alt="From left to right: x is projected to Q, K and V; each is cut into four colored "
    "strips. Strips of Q and K of one color make one head's weight matrix; with the strip of V "
    "it gives one narrow mixture. The four mixtures are joined and projected to the output.",
)

# %% [markdown]
# The strips are narrower, so nothing gets bigger: $h$ heads with $d_k = d_\text{model}/h$ columns each are together as
# wide as one head with all of them. Six columns and two heads, on paper: the query $(1, 2, 3, 4, 5, 6)$ becomes
# $(1, 2, 3)$ for head 1 and $(4, 5, 6)$ for head 2. They meet keys of three numbers, and return three numbers each. As
# an equation (Vaswani et al. 2017, section 3.2.2):
#
# $$\text{MultiHead}(Q, K, V) = \text{concat}(\text{head}_1, \dots, \text{head}_h)\, W^O$$
# $$\text{head}_i = \text{attention}(Q W_i^Q,\; K W_i^K,\; V W_i^V)$$
#
# $W_i^Q$ and $W_i^K$ have $d_\text{model}$ rows and $d_k$ columns, and $W_i^V$ has $d_v$ columns. Side by side the
# heads' answers have $h \cdot d_v$ columns, so $W^O$ is $(h \cdot d_v) \times d_\text{model}$. Usually, and here, $d_v
# = d_k = d_\text{model} / h$; then $W^O$ is square. In self-attention $Q$, $K$ and $V$ are all the same $x$.
#
# The scale also belongs to the head: its dot products add up $d_\text{model}/h$ products, so they are divided by
# $\sqrt{d_\text{model}/h}$, not by $\sqrt{d_\text{model}}$. `attention` reads the width from the queries it is given.
#
# The equation word for word, with a loop over the heads:


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
# Give the task two of these heads, one for each want, each half as wide. Data, steps, learning rate and the number of
# parameters stay the same.

# %% tags=["nbval-ignore-output"]
two_heads = partial(LoopedHeads, heads=2)
starts = progress(range(3), "two heads, three starts")
two = [play(two_heads, both_sides, seed=seed) for seed in starts]
for model in two:
    left, right, both = named(model)
    print(f"named: left neighbor {left:.0%}, right {right:.0%}, both {both:.0%}")
worst = min(named(model)[-1] for model in two)
expect("Both neighbors, two heads, the worst start", worst, 0.95, 1.0)

# %% [markdown]
# Solved, from each start. What do the two heads look at?

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
look(two[0], two[0].attend.heads, "Two heads, two rows for each word",
     "Two weight matrices of six words on each other. Nearly all weight of one is just left of "
     "the diagonal, and of the other just right; in both, the ring closes in a corner.")

# %% [markdown]
# One looks left, the other right. Nothing told the heads to divide the work. They settled on it because it lowers the
# loss. (Exercise 04 goes on from here: does each further want need one more head?)

# %% [markdown]
# ## 5 Build it: all heads at once
#
# The loop works, but it takes many small matrix products where a few large ones would do. Three observations remove it.
#
# 1. $h$ narrow projections side by side are one wide projection, `(d_model, d_model)`.
# 2. To attend, each head needs an axis of its own: `(batch, heads, n, d_k)`.
# 3. `attention` works on the last two axes, whatever is in front of them.
#
# We take it step by step, with a batch of 2, 6 words, 8 columns and 4 heads.
#
# **Step 1: project. Step 2: split.** Of the 8 columns of each word, head 0 gets the first two, head 1 the next two, and
# so on. (The equation counts heads from 1, Python from 0.) Dividing the last axis in two is a `view`. The head axis
# then comes after the words, and `transpose` brings it before them.


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
# A `view` never moves a number in memory, where all 8 numbers of word 0 come first, then all of word 1. It cuts the
# same row into different pieces:

# %% jupyter={"source_hidden": true}
figures.memory_tape(
    sentence, heads, d_k, title="With view alone, a head gets words instead of columns",
    alt="A gray tape of 48 numbers, 8 for each of six words. Above it, in the colors of the heads, the right "
    "split: in each word the first two numbers go to head 0, the next two to head 1, and so on. Below, view alone: the "
    "first 12 numbers, a word and a half, go to head 0, the next 12 to head 1, and so on.",
)

# %% [markdown]
# The wrong head 0 takes the first 12 numbers, *the* and half of *orcs*, and treats them as six words of two numbers
# each.
#
# The rule: **divide an axis with `view`, swap axes with `transpose`, never swap with `view`.**
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
# **Step 5: the output projection** $W^O$. Up to here, no head has heard from any other. There is a second way to read
# it. Head $i$'s columns meet only the rows of $W^O$ that belong to them, call them $W_i^O$. So the product is a sum,
# and **heads add**:
#
# $$\text{concat}(\text{head}_1, \dots, \text{head}_h)\, W^O = \sum_i \text{head}_i\, W_i^O$$

# %%
out = output(join(mixed))  # (batch, n, d_model)
w_o = output.weight.T.split(d_k)  # heads of (d_k, d_model)
added = sum(mixed[:, i] @ w_o[i] for i in range(heads))  # (batch, n, d_model)
prove_equal(added, out, what="The sum over the heads and the joined heads, projected")

# %% [markdown]
# So a head is two small maps. $W_i^Q (W_i^K)^\top$, the $M$ of section 2, decides *where* it looks; $W_i^V W_i^O$, also
# of rank $d_k$ at most, decides *what* it adds to the output when it looks there. (Elhage et al. 2021 call them the
# head's **QK and OV circuits**.) A head is switched off by leaving out its term.
#
# ### The whole module
#
# Two arguments are for later: `memory`, the sequence that keys and values come from, for section 6 (until then it is
# `x` itself); and the functions that split and join, so that we can put wrong ones there.


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
# Does it equal the equation? Cut the loop's narrow matrices out of our wide ones. (A `Linear` stores its matrix as
# (out, in), so a head's columns are rows of `weight`.)

# %%
layer, looped = ManyHeads(d_model, heads), LoopedHeads(d_model, heads)
with torch.no_grad():
    for name in ("query", "key", "value"):
        strips = getattr(layer, name).weight.split(d_k)  # heads of (d_k, d_model)
        for head, strip in zip(looped.heads, strips):
            getattr(head, name).weight.copy_(strip)
    looped.output.weight.copy_(layer.output.weight)
prove_equal(layer(inputs), looped(inputs),
            what="All heads at once and the loop of the equation")

# %% [markdown]
# ### Break it: how far does the mix-up go?
#
# Wrong shapes stop a program. Wrong order does not, so you need a test. Here is a good one: use a causal mask, and ask
# by gradient which words each output depends on (torch's `jacobian` gives the gradients of all outputs by all inputs at
# once). Where the gradient is 0, a word has no influence. Query $i$ may attend to key $j$ where $j \le i$: itself and
# its past, nothing beyond. (Some write $j < i$. Then a word could not see itself, and the first word could see
# nothing.)
#
# We test the right layer; one that splits correctly, but merges the heads without transposing back (*join wrong*); and
# one that takes the shortcut in both (*both wrong*). Which of them sees the future? Which loses part of the past?
# Decide before you run it.

# %% tags=["recorded"]
def join_wrong(x):  # (batch, heads, n, d_k)
    return x.reshape(x.shape[0], x.shape[2], -1)  # no transpose


def influence(layer):
    x = torch.randn(1, n, d_model)  # (1, n, d_model)
    change = jacobian(partial(layer, mask=causal()), x)  # output by input: six axes
    return (change.abs().sum(dim=(0, 2, 3, 5)) > 1e-7).float()  # (n, n): 1 if i needs j


layers = {"right": {}, "join wrong": {"join": join_wrong},
          "both wrong": {"split": split_wrong, "join": join_wrong}}
reach = [influence(ManyHeads(d_model, heads, **wrong)) for wrong in layers.values()]
for name, matrix in zip(layers, reach):
    future, past = int(matrix.triu(1).sum()), int((1 - matrix).tril().sum())
    print(f"{name:10} future seen: {future:2} of 15   past missing: {past:2} of 21")

# %% [markdown]
# As a picture; crosses mark what is missing, stars what should not be there:

# %% jupyter={"source_hidden": true}
figures.influence(
    dict(zip(layers, reach)), sentence, title="Which words reach which output, under a causal mask",
    alt="Input words that reach each output. Right: all up to the diagonal. Join wrong: nearly all, and "
    "the future cells are starred. Both wrong: only the word itself and at most the one before it; the "
    "missing past is crossed.",
)

# %% [markdown]
# Merged without the transpose, the model reads the future through a mask that forbids it. With both shortcuts the mask
# holds, by luck, but a head is now a short stretch of the text, so here a word sees itself and at most the word before
# it. The two mistakes hide each other in `join(split(x)) == x`, and a test for the future alone would pass. So test
# both halves.
#
# What does such a leak do in training? Ask the layer for the word on the *right*, the next one, under a causal mask.
# Words are drawn at random, so no honest model can know the next one. Only the last of the six words can be right for
# sure: its right neighbor is the first word of the ring, which lies in its past. For the others there is one lucky
# guess in 20: in all $\frac16 + \frac56 \cdot \frac1{20} = 21\%$.

# %%
predict("heads-leak", "How many of the next words will the wrong join name?",
        "fewer than 21%", "21%", "most of them")

# %% [markdown]
# Three starts of each:

# %% tags=["nbval-ignore-output"]
class Causal(ManyHeads):
    def forward(self, x):  # (batch, n, d_model)
        return super().forward(x, mask=causal())  # (batch, n, d_model)


for name, way in {"right": join, "wrong": join_wrong}.items():
    attend = partial(Causal, heads=4, join=way)
    models = [play(attend, (1,), seed) for seed in progress(range(3), f"join {name}")]
    shares = [named(model)[0] for model in models]
    print(f"join {name}, next word named:", *(f"{share:.0%}" for share in shares))
expect("Wrong join, the worst start", min(shares), 0.7, 0.85)
predicted("heads-leak", "most of them", "It reads the next word.")

# %% [markdown]
# The right layer names what can be known, 21%. The wrong one names what no one can know. (It names five of six: only
# the fourth, like *attacked* in the picture, hears nothing of the future.) It looks like the better model. But where
# the next word is not there yet, because the model itself is to write it, there is nothing to read: lesson 08 shows
# such a model at work. A result that is too good to be true is a bug until you have shown that it is not.

# %% [markdown]
# ## 6 Self-attention and cross-attention
#
# So far a sentence has looked at itself. But nothing says that queries must come from the same sentence as keys and
# values.
#
# | | queries from | keys and values from | weights |
# | --- | --- | --- | --- |
# | **self-attention** | $x$, $n$ words | $x$, $n$ words | $(n, n)$ |
# | **cross-attention** | $x$, $n$ words | the *memory*, $m$ words | $(n, m)$ |
#
# In a translator the English side asks, and the German sentence is the **memory**. `ManyHeads` can do both.
#
# Take three English sentences of 7 words, and their German partners of 9, 5 and 7 words (random vectors will do). $n$
# and $m$ differ, and shorter German sentences are padded to $m = 9$. The mask belongs to the *keys*: it says which
# German words are real. Its shape is (batch, 1, 1, m), the same for each head and each query. (English sentences can be
# padded as well, but what a padding query finds is never read.)

# %%
torch.manual_seed(0)
n_x = torch.randn(3, 7, 32)  # (batch, n, d_model): English
m_x = torch.randn(3, 9, 32)  # (batch, m, d_model): German
real = torch.tensor([9, 5, 7])[:, None]  # (batch, 1): words that are no padding
mask = (torch.arange(9) < real)[:, None, None]  # (batch, 1, 1, m)
cross = ManyHeads(32, heads=4)
found = cross(n_x, m_x, mask)  # (batch, n, d_model)
print(f"found {tuple(found.shape)}, weights {tuple(cross.weight.shape)}")
print(f"attention spent on padding: {(cross.weight * ~mask).sum():.0f}")

# %% [markdown]
# The output has as many rows as there are *queries*. How would you notice a missing mask? Pad the German sentences
# further: nothing may change. (The mask must grow as well: `F.pad` fills with 0, here `False`.)

# %%
longer = F.pad(m_x, (0, 0, 0, 4))  # (batch, m + 4, d_model): more padding
found_longer = cross(n_x, longer, F.pad(mask, (0, 4)))  # (batch, n, d_model)
prove_equal(found_longer, found, what="Outputs with more padding and without")
change = (cross(n_x, longer) - cross(n_x, m_x)).norm() / found.norm()
print(f"without a mask the output changes by {change:.0%}")

# %% [markdown]
# ### Open the library, and torch
#
# What you have built is the library's `MultiHeadAttention`, and torch's `nn.MultiheadAttention`. In the library's
# `attend`, find three of the five steps: `self.project`, `self.split` for `q`, `k` and `v`, and `self.mechanism`, which
# is `attention`. The last line of `forward` joins and projects. Skip the options: `rotary` and `position_bias` belong
# to lesson 05, `cache` and `offset` to lesson 13.

# %%
show_source(MultiHeadAttention.forward, MultiHeadAttention.attend)

# %% [markdown]
# Its four layers have the names of ours, so our weights simply load. torch keeps the three input matrices stacked in
# one, and its masks are *inverted*: `True` means *may not attend*.

# %%
library = MultiHeadAttention(32, heads=4, bias=False)
library.load_state_dict(cross.state_dict())
prove_equal(library(n_x, m_x, mask=mask), found, what="The library's and yours")
theirs = nn.MultiheadAttention(32, num_heads=4, bias=False, batch_first=True)
stacked = [cross.query.weight, cross.key.weight, cross.value.weight]
with torch.no_grad():
    theirs.in_proj_weight.copy_(torch.cat(stacked))  # (3 · d_model, d_model)
    theirs.out_proj.weight.copy_(cross.output.weight)
their_found, _ = theirs(n_x, m_x, m_x, key_padding_mask=~mask[:, 0, 0])
prove_equal(their_found, found, tolerance=1e-4, what="torch's and yours")

# %% [markdown]
# What do more heads cost? Not parameters: there are $4d^2$ for any $h$, with $d$ short for $d_\text{model}$. Nor
# operations: a head's scores cost only $1/h$ as much, and there are $h$ heads (lesson 30 counts). But there are $h$
# weight matrices, so $hn^2$ weights to hold and to exponentiate.
#
# **Two things come later.** A model that writes keeps the keys and values of all words so far; this **cache** is built
# in [lesson 13](13_decoding.ipynb). To keep it small, several query heads can share one head of keys and values,
# **grouped queries**; [lesson 16](16_todays_decoder.ipynb) swaps them in.

# %% [markdown]
# ## 7 See it work: fill the gap
#
# The ring was made for heads. Do they help with real sentences? One English word is hidden; you see the word before it,
# the word after it, and the whole German sentence. Which word is it?
#
# > Der König ist tot. → *the* ? *is*
#
# On paper: between *the* and *is* there is probably a noun. Say that the query therefore scores 0 with *der* and *ist*,
# 3 with *König* and 1 with *tot*. Then softmax gives them the weights 0.04, 0.81, 0.04 and 0.11. If the value of
# *König* is $(1, 0)$, that of *tot* is $(0, 1)$, and the others have $(0, 0)$, then the mixture is $(0.81, 0.11)$. From
# it, a linear layer can name *king* instead of *dead*.
#
# The sentence pairs are those of lesson 03, and so are `words`, `vocabulary` and `encode`, which turn them into
# numbers: 0 is padding, 1 is any word that occurs fewer than 20 times.

# %% tags=["recorded"]
def words(sentence):
    return re.findall(r"\w+", sentence.lower())


def vocabulary(sentences, at_least=20):
    count = Counter(word for sentence in sentences for word in words(sentence))
    common = (word for word, times in count.most_common() if times >= at_least)
    return {word: id for id, word in enumerate(common, start=2)}


def encode(sentences, ids):
    rows = [[ids.get(word, 1) for word in words(sentence)] for sentence in sentences]
    return nn.utils.rnn.pad_sequence(list(map(torch.tensor, rows)), batch_first=True)


# %% [markdown]
# We keep the pairs of 3 to 12 words a side, and encode both sides: German is the source, English the target.

# %% tags=["recorded"]
pairs, held_out = ([p for p in part if all(3 <= len(words(side)) <= 12 for side in p)]
                   for part in translation("games", max_words=12)[:2])
(german, english), (german_test, english_test) = zip(*pairs), zip(*held_out)
german_ids, english_ids = vocabulary(german), vocabulary(english)
source, target = encode(german, german_ids), encode(english, english_ids)
source_test = encode(german_test, german_ids)  # (sentence, m)
target_test = encode(english_test, english_ids)  # (sentence, n)
english_size, german_size = len(english_ids) + 2, len(german_ids) + 2

# %% [markdown]
# The query is the sum of three embeddings: those of the two neighbors and of the gap's position. It must find, in the
# German sentence, the word that belongs there. Each word of a sentence is hidden in turn, so a sentence of $n$ words
# asks $n$ queries at once. German words and their positions are the memory. The answer is read from what attention
# returns, and from nothing else.


# %% tags=["recorded"]
class Gap(nn.Module):
    def __init__(self, attend, d_model=128):
        super().__init__()
        sizes = english_size, english_size, german_size, 12, 12
        self.tables = nn.ModuleList(nn.Embedding(size, d_model) for size in sizes)
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.2)
        self.attend, self.classifier = attend(d_model), nn.Linear(d_model, sizes[0])

    def forward(self, source, target):  # (batch, m), (batch, n)
        before, after, german, gap_place, german_place = self.tables
        x = before(F.pad(target[:, :-1], (1, 0))) + after(F.pad(target[:, 1:], (0, 1)))
        memory = german(source) + german_place.weight[: source.shape[1]]
        mask = (source > 0)[:, None, None]  # (batch, 1, 1, m)
        found = self.attend(x + gap_place.weight[: target.shape[1]], memory, mask)
        return self.classifier(found[target > 1])  # (gap, word): for common words only


# %% [markdown]
# In training, the learning rate rises quickly and then falls to nearly zero (lesson 07 says why). The loss is minus the
# natural logarithm of the probability given to the hidden word, averaged over the gaps. Its unit is the **nat**: 3 nats
# are a probability of $e^{-3}$, or 1 in 20.


# %% tags=["recorded"]
def train(attend, seed=0, steps=300, batch=64):
    torch.manual_seed(seed)
    model = Gap(attend)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.008, steps, pct_start=0.1)
    for _ in range(steps):
        chosen = torch.randint(len(pairs), (batch,))  # (pair,)
        german, english = source[chosen], target[chosen]  # (batch, m), (batch, n)
        loss = F.cross_entropy(model(german, english), english[english > 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model


# %% [markdown]
# And on the test pairs, the loss and the fraction of gaps that are filled correctly:


# %% tags=["recorded"]
@torch.no_grad()
def test(model, source=source_test):
    logits = model(source, target_test)  # (gap, word)
    truth = target_test[target_test > 1]  # (gap,)
    right = (logits.argmax(dim=-1) == truth).float().mean()
    return F.cross_entropy(logits, truth).item(), right.item()


# %% [markdown]
# Four heads, from three starts, each also tested on wrong German: every English sentence gets its neighbor's in the
# list.

# %% tags=["nbval-ignore-output"]
four = [train(partial(ManyHeads, heads=4), seed)
        for seed in progress(range(3), "four heads, three starts")]
for model in four:
    loss, right = test(model)
    _, right_wrong = test(model, source_test.roll(1, dims=0))
    print(f"loss {loss:.2f}, gaps filled correctly {right:.0%}; "
          f"with another sentence's German {right_wrong:.0%}")
expect("Gaps filled correctly", right, 0.35, 0.5)

# %% [markdown]
# About four gaps in ten, among some 800 words to choose from; without the right German, less than half of that.
#
# ### What do the heads look at?
#
# A new sentence. Row *king* is the gap at *king*: the model is told *the* and *of* only, and where the gap is.

# %% tags=["nbval-ignore-output"]
def weights_of(model, line):
    its_german = german_test[english_test.index(line)]
    model(encode([its_german], german_ids), encode([line], english_ids))
    return model.attend.weight[0], words(line), words(its_german)  # (heads, n, m), …


weight, rows, columns = weights_of(four[0], "I am the king of this domain!")

# %% [markdown]
# Its four heads:

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
plots.heads(
    weight, rows=rows, columns=columns, numbers=True,
    title="Heads differ: three find König for king, one does not", xlabel="German word", ylabel="hidden word",
    alt="Four matrices, English gaps by German words. Some heads put much weight on the hidden "
    "word's translation; others look at other places.",
)

# %% [markdown]
# In row *king*, three heads put most of their weight on *könig*, and one next to none. (Row *domain* means little: the
# word is too rare to have been asked for in training.) Another sentence, one head at a time. Which head finds *könig*
# for *king*, and which *tot* for *dead*? (If you see no menu but only head 3, run the cell.)

# %% tags=["nbval-ignore-output"]
weight, rows, columns = weights_of(four[0], "What's more, King Haldric is dead.")
explore.heads(weight, rows=rows, columns=columns)

# %% [markdown]
# <details><summary>The answer</summary>
#
# In our run, head 0 finds *könig* (.88; head 3 gives it .56), and heads 0, 1 and 2 find *tot*.
# </details>
#
# One sentence can be lucky, so we count over all test sentences: how much of a head's weight goes to the translation of
# the *hidden* word, which the query has not seen? (Heads have no order of their own, so we sort them by that share.)


# %% tags=["nbval-ignore-output"]
def on_translation(model, english_word, german_word):
    test(model)  # leaves its weights
    place = source_test == german_ids[german_word]  # (sentence, m): the translation
    gap = target_test == english_ids[english_word]  # (sentence, n): the hidden word
    gap = gap & place.any(dim=-1, keepdim=True)  # where the sentence has both
    share = (model.attend.weight * place[:, None, None]).sum(dim=-1)
    return share.transpose(1, 2)[gap].mean(dim=0).sort(descending=True).values


for pair in ("king", "könig"), ("we", "wir"), ("gold", "gold"), ("now", "jetzt"):
    shares = [on_translation(model, *pair).tolist() for model in four]
    print(f"{pair[0]:5}", *(" ".join(f"{share:4.0%}" for share in each) + "  "
                            for each in shares))
print(f"one word of {(source_test > 0).sum(dim=-1).float().mean():.0f} would have",
      f"{(1 / (source_test > 0).sum(dim=-1)).mean():.0%} if all had the same weight")

# %% [markdown]
# (Four heads for each of the three starts.) For *king*, *we* and *gold*, at least one head from each start puts most of
# its weight on the translation of a word that the query has not seen, only inferred from what surrounds the gap. *now*
# is harder. Some of the last heads are near the 17% of even weights. (Are those superfluous? Exercise 04 takes heads
# out of a layer; Michel et al. 2019 did so in large models.)
#
# ### Break it: how many heads?
#
# Same width, same number of parameters, same data; only $h$ changes. More heads are more ways to look, but they are
# narrower: with 32, each query and key has 4 entries to describe what it looks for. Does the loss fall all the way to
# 32, or does it rise again? And what does the wrong reshape of section 5 cost here? Guess, then look: `python
# data/many_heads.py 0 1 2` trained each of them with these cells, from three starts.

# %%
recorded = json.loads((DATA / "many_heads.json").read_text())
for name, starts in recorded.items():
    print(f"{name:17} loss", "  ".join(f"{loss:.2f}" for loss in starts.values()))

# %% [markdown]
# Drawn, from the least to the greatest of three starts:

# %% jupyter={"source_hidden": true}
losses = {name: list(starts.values()) for name, starts in recorded.items()}
plots.ranges(
    {name: (min(three), sum(three) / 3, max(three)) for name, three in losses.items()},
    xlabel="loss on new sentences (nats)",
    title="More heads, a lower loss; mixed up, four are worse than one",
    alt="; ".join(f"{name}: " + ", ".join(f"{loss:.2f}" for loss in three) for name, three in losses.items()),
)

# %% [markdown]
# More heads are better on average each time, and here the loss does not rise again. In the paper, too many heads made
# it worse again. Vaswani et al. (table 3, rows A) measured a model more than a hundred times as large, in BLEU, a score
# of translations from 0 to 100 (lesson 09). The optimum was 8 to 16 heads; 1 head was 0.9 below the best, and 32 were
# 0.4 below. The best number may depend on the task, on the width, and on how long you train (ours is short). In both
# cases, one head is too few.
#
# And the wrong reshape? No error, no `nan`, and the loss goes down: just a model that is worse with four heads than the
# right one with a single head. This is what many mistakes in attention look like.

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. `x` is (batch, n, d_model). Which line splits the heads?**
#
# <details><summary>A. <code>x.view(batch, heads, n, d_k)</code></summary>
#
# The shape is right, the numbers are not: head 0 gets all columns of the first words, instead of the first columns of
# all words.
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
# That says which *queries* are real. It would hide everything from some of them, and let the others look at the
# padding. (`attention` refuses it.)
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
# It can, but until then column 0 of the result comes from head 0 only. And in a real model the result is *added* to the
# input (lesson 06), which ties each head to fixed columns of it.
# </details>
# <details><summary>B. Each output column would come from one head only</summary>
#
# Right. $W^O$ is where the heads' answers meet.
# </details>
# <details><summary>C. The shape: heads could not be joined</summary>
#
# They are joined before $W^O$, and already have $h \cdot d_k = d_\text{model}$ columns.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - Self-attention lets the words of a sentence look at each other. Queries and keys need a projection each: without
#   them, looking is mutual, and each word finds itself.
# - One head has one row of weights for each word. $h$ heads have $h$ rows, and what they find is added up by $W^O$.
# - Project, split, attend, join, project. Parameters and operations do not depend on $h$.
# - `view` divides, `transpose` swaps. Mixed up, words get lost, or the future leaks in, without an error.
# - In cross-attention, queries come from one sentence, keys and values from another; the padding mask is on the key
#   axis.
#
# **Read** Vaswani et al. 2017, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762), sections 3.2.2 and 3.2.3, and
# table 3, rows A. Michel et al. 2019, [arXiv:1905.10650](https://arxiv.org/abs/1905.10650), on turning heads off in
# real models. Elhage et al. 2021, *A Mathematical Framework for Transformer Circuits*, on heads that add.
#
# **Do** the exercise [04_heads](../exercises/exercise_04_heads.ipynb). Then go on to
# [05 Where am I? Positions](05_positions.ipynb).
