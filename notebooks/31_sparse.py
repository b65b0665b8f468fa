# %% [markdown] lesson={"part": "IV Efficiency", "builds": "windows, gaps, global tokens, random blocks: drawn, counted, run block by block; blocks chosen by the query; sinks"}
# # 31 · Sparse patterns, drawn and chosen
#
# **After this lesson you will be able to**
#
# - draw, count and run the patterns of Longformer, Big Bird and the Sparse Transformer;
# - say how far a position sees through a stack of layers, by powers of a matrix, and what random pairs do for it;
# - explain why a mask alone saves nothing, and write the loop that does save;
# - measure what each pattern loses, on a task that one fact decides and on one that needs all of them;
# - let each query choose its blocks, and say what the choice can miss;
# - break a trained model by evicting its first token, and see which cure helps.
#
# **You need** lessons 03 and 30. **It takes** about 60 minutes to read and try; all cells together run in about a
# minute on a laptop.

# %% [markdown]
# ## 1 The problem: which pairs?
#
# Lesson 30 ended with a wish: *a lot from nearby, a little from everywhere*. *Twelfth Night* has 110,828 characters,
# so 12 billion pairs. If each character sees 256 on either side, half a percent of them is left. But *which* half
# percent? Each choice forbids something. After each pattern of this lesson we ask three questions: How many pairs are
# left? How far does news travel? And does a machine really do less?

# %% tags=["recorded"]
import json
import time

import torch
import torch.nn.functional as F
from IPython.display import display
from torch import nn

from txcourse import explore, figures
from txcourse.lesson import (
    expect, predict, predicted, progress, prove_equal, show_source)
from txlib import attention as library
from txlib.attention import Mask, MultiHeadAttention
from txlib.layers import FeedForward, LayerNorm
from txlib.paths import DATA

torch.set_num_threads(1)  # so that timings are comparable

# %% [markdown]
# ## 2 Draw and count
#
# ### 2.1 Longformer
#
# `Mask(rule)` of lesson 03 makes a mask of a function of positions, and `&`, `|`, `~` combine masks. A **sliding
# window** of radius $r$; the same with gaps (**dilated**); a few **global tokens** that see all and are seen by all:


# %% tags=["recorded"]
def window(radius):
    return Mask(lambda query, key: (query - key).abs() <= radius)


def dilated(radius, gap):  # every gap-th position, `radius` of them on either side
    far = Mask(lambda query, key: (query - key).abs() <= radius * gap)
    return far & Mask(lambda query, key: (query - key) % gap == 0)


def global_at(*positions):
    seen = torch.tensor(positions)
    return Mask(lambda query, key: torch.isin(query, seen) | torch.isin(key, seen))


# %% [markdown]
# Beltagy et al. (2020) show their Longformer in one figure of four squares. Here it is, rebuilt. Each row is a query,
# and filled cells are the keys that it sees:

# %% jupyter={"source_hidden": true}
figures.longformer(window, dilated, global_at)

# %% [markdown]
# - **(b)** The meaning of a word is mostly settled by its neighbors. (Mind the unit. The paper's $w$, and
#   `attention_window` in Hugging Face's models, is the *whole* width, $w = 2r$.)
# - **(c)** The same number of keys per query, spread further apart, as in the dilated convolutions of lesson 30.
# - **(d)** A few positions that must know all of the text, such as `[CLS]`, or the words of a question. Each token can
#   read there what they have gathered. How many are global, and which, depends on the task.
#
# Count on paper: six positions, $r = 1$. The two at the ends have 2 keys, the other four have 3: 16 pairs. In general
# each query has $2r + 1$ keys, except that at either end $r + \dots + 2 + 1 = r(r+1)/2$ are missing. With gaps of
# $\delta$, that happens in each of $\delta$ interleaved texts. $g$ global tokens at the front take $g$ rows and
# $g$ columns, and leave a window on $n - g$ positions:
#
# $$\text{window: } n(2r+1) - r(r+1) \qquad \text{dilated: } n(2r+1) - \delta\, r(r+1)$$
#
# $$\text{window + global: } 2gn - g^2 + (n-g)(2r+1) - r(r+1)$$


# %%
def in_window(n, r, gap=1):
    return n * (2 * r + 1) - gap * r * (r + 1)


r, g = 256, 4  # Longformer's own window, w = 512
print("six positions:", window(1).pairs(6), in_window(6, 1))
for n in (1024, 4096):
    with_global = 2 * g * n - g * g + in_window(n - g, r)
    counts = {"window": (window(r), in_window(n, r)),
              "dilated by 2": (dilated(r // 2, 2), in_window(n, r // 2, 2)),
              "window + 4 global": (global_at(*range(g)) | window(r), with_global)}
    for name, (mask, formula) in counts.items():
        print(f"n = {n:5,}  {name:17}  counted {mask.pairs(n):9,},",
              f"formula {formula:9,}, {formula / n**2:5.1%} of all")

# %% [markdown]
# All grow like $n$. (The dilated one has half as many keys here, spread over the same width.)
# With 4,096 positions and a window of 512, Longformer computes an eighth of the square; with 1,024
# it computes nearly half. **A sparse pattern is worth its trouble when $n$ is many times its width.**

# %% [markdown]
# ### 2.2 Big Bird
#
# Zaheer et al. (2020) think of attention as a graph: positions are nodes, and a pair that is computed is an edge.
# Which few edges keep a graph well connected? Their answer has three parts: **random** ones, a **window**, and
# **global** nodes. They deal in *blocks*, of 64 positions each in the base model: a block of queries sees a block
# of keys, or it does not. A processor that fetches 64 neighboring keys for 64 neighboring queries works at full
# speed; one that fetches single keys waits. So a table of blocks says it all:


# %% tags=["recorded"]
def big_bird(blocks, random=2, width=3, seed=0):
    row, column = torch.arange(blocks)[:, None], torch.arange(blocks)
    near = (row - column).abs() <= width // 2  # (query block, key block)
    ends = (column == 0) | (column == blocks - 1)
    everywhere = ends[:, None] | ends
    drawn, generator = torch.zeros_like(near), torch.Generator().manual_seed(seed)
    for i in range(1, blocks - 1):
        left = (~(near | everywhere)[i]).nonzero()[:, 0]  # blocks that the others leave
        order = torch.randperm(len(left), generator=generator)
        drawn[i, left[order[:random]]] = True
    return {"random": drawn, "window": near, "global": everywhere}


def by_blocks(table, size=1):
    return Mask(lambda query, key: table[query // size, key // size])


def union(tables):
    return torch.stack(list(tables.values())).any(dim=0)


# %% jupyter={"source_hidden": true}
figures.big_bird({name: by_blocks(table) for name, table in big_bird(16).items()})

# %% [markdown]
# (Mind the letters: Big Bird's $r$ counts random blocks, and its $w$ is a whole width. As in the authors' code, one
# of the two global blocks is at the end.) A query block sees at most $g + w + r$ blocks. In the base model that is
# $(2 + 3 + 3) \cdot 64 = 512$ keys for each query that is not global, however long the text is; the two global blocks
# see all $n$, which adds at most 128 to the average:

# %%
for n in (1024, 4096, 16384):
    pairs = union(big_bird(n // 64, random=3)).sum().item() * 64**2
    print(f"n = {n:6,}: {pairs / n:5.1f} keys per query, {pairs / n**2:5.1%} of pairs")

# %% [markdown]
# ### 2.3 Causal: strides and fixed columns
#
# A model that writes must not see what comes. Any pattern has its causal form, `causal & pattern`. Child et al. (2019),
# whose Sparse Transformer made the idea a research program, wanted two steps together to lead from anywhere to any
# earlier position. With a *stride* of $l$:
#
# - **strided**: the last $l$ positions, and every $l$-th of all before. Good for images row by row, with $l$ the
#   length of a row: left neighbors, and what is above.
# - **fixed**: the earlier positions of a query's own segment of $l$, and the last $c$ positions of each earlier
#   segment, which learn to summarize it. Good for text, which has no period.

# %%
causal = Mask(lambda query, key: query >= key)


def every(stride):
    return Mask(lambda query, key: (query - key) % stride == 0)


def same_segment(size):
    return Mask(lambda query, key: query // size == key // size)


def summaries(size, columns):
    return Mask(lambda query, key: key % size >= size - columns)


strided = {"far": causal & every(6), "near": causal & window(6)}
fixed = {"far": causal & summaries(6, 1), "near": causal & same_segment(6)}

# %% jupyter={"source_hidden": true}
figures.causal_forms(causal, causal & window(6), strided, fixed)

# %% [markdown]
# A window of $l$ and every $l$-th: about $l + i/l$ keys for query $i$. For the last query, $l + n/l$ is smallest where
# both parts are equal: at 100 positions, $l = 10$ and 20 keys; in general $l = \sqrt n$. So strided attention has
# $O(n\sqrt n)$ pairs. For long texts that is more than any fixed window, but any earlier position is two steps away.
#
# Now change the patterns of Longformer and Big Bird. What fraction of Big Bird's pairs is due to its global blocks at
# 32 positions, and at 128? How wide must Longformer's window be to have as many pairs? (If you see no sliders, run the
# cell.)

# %%
explore.patterns()

# %% [markdown]
# <details><summary>The answers</summary>
#
# Half of the pairs at 32 positions, 46% at 128. It hardly changes, because all parts grow in proportion to the
# length: far from the edges, the global blocks add 16 pairs per position, window and random blocks 20.
#
# With its two global tokens, Longformer needs a radius of about 19 at 32 positions and of 16 at 128.
# </details>

# %% [markdown]
# ## 3 How far does a stack see?
#
# ### 3.1 Powers of a matrix
#
# We know what one layer sees. But my neighbor, whom I see in layer 2, has seen *its* neighbors in layer 1. Three
# positions, and each sees itself and the one before:
#
# $$A = \begin{pmatrix} 1 & 0 & 0 \\ 1 & 1 & 0 \\ 0 & 1 & 1 \end{pmatrix} \qquad
# A A = \begin{pmatrix} 1 & 0 & 0 \\ 2 & 1 & 0 \\ 1 & 2 & 1 \end{pmatrix}$$
#
# In $A$, position 3 does not see position 1. In $AA$ it does, in one way: via position 2. The product
# $(A A)_{ij} = \sum_k A_{ik} A_{kj}$ counts the ways by which news gets from $j$ to $i$ in two layers; after $L$ layers
# $i$ can know of $j$ where $(A^L)_{ij} > 0$.


# %%
def reaches(layers, n):  # masks, the first layer first
    known = torch.eye(n)  # at first each position knows itself
    for mask in layers:
        known = (mask.dense(n)[0, 0].float() @ known > 0).float()  # (n, n)
    return known.bool()


gaps = dilated(2, 3)
stacks = {
    "1 window": [window(2)], "2 windows": 2 * [window(2)], "3 windows": 3 * [window(2)],
    "3 with gaps of 3": 3 * [gaps], "12 with gaps of 3": 12 * [gaps],
    "gaps of 1, then 3, 3": [window(2), gaps, gaps],
    "gaps of 3, 3, then 1": [gaps, gaps, window(2)],
}
for name, layers in stacks.items():
    seen = reaches(layers, 257)[128].nonzero()[:, 0] - 128
    print(f"{name:20} from {seen.min():3} to {seen.max():2}: {len(seen):2} positions")

# %% [markdown]
# Drawn, the positions that one output can depend on form a cone. Dots are positions, one row per layer, inputs at the
# bottom; what position 12 of the top layer can depend on is colored:

# %% jupyter={"source_hidden": true}
figures.cone(
    {"window": 2 * [window(2)], "gaps of 3": 2 * [gaps], "gaps of 1, then 3": [window(2), gaps]},
    n=25, position=12, title="Gaps reach further; one layer without them fills the cone",
    alt="Three graphs of 25 positions by 2 layers. Window: a solid triangle that widens by 2 positions per layer. Gaps of 3: "
    "wider, but only every third position is colored. Gaps of 1, then 3: wide and solid.",
)

# %% [markdown]
# A window grows by $r$ on either side with each layer: $2Lr + 1$ positions. Mistral 7B has a causal window of
# 4,096 and 32 layers: $32 \cdot 4096 = 131{,}072$ tokens, in theory. Dilation reaches $\delta$ times as far. But count
# the positions: from −18 to 18 there are 37, and three layers see 13 of them. More layers do not fill the gaps: sums of
# multiples of 3 are multiples of 3, and the text has become three texts that never meet. One layer without gaps fixes
# it, at any depth: the reach is a sum of steps, and a sum doesn't depend on their order. (The Longformer that writes
# text has it *below*, so that the lower layers use all of what is near, and leaves dilation to two heads of its upper
# layers.)
#
# (The matrix says what *could* arrive. Whether a model learns to use it is another matter: section 5.)
#
# ### 3.2 What are random pairs good for?
#
# Why should a word look at a word that was drawn by lot? In a village where people know only their neighbors, news
# takes long from end to end. Give each person one friend somewhere at random, and anyone is a few steps from anyone: a
# **small world** (Watts and Strogatz 1998). Big Bird as a graph, with positions on a circle that is open at the top:


# %%
def with_random(mask, count, n, seed=0):  # each position also sees `count` others
    generator = torch.Generator().manual_seed(seed)
    allowed = mask.dense(n)[0, 0]  # (n, n)
    drawn = torch.rand(n, n, generator=generator).masked_fill(allowed, 2)
    nearest = drawn.topk(count, largest=False).indices  # 2 is never among the least
    return by_blocks(allowed.scatter(1, nearest, True))


# %% jupyter={"source_hidden": true}
ring, lot = {"window": window(1)}, {"random": with_random(window(1), 1, 32)}
figures.circle(
    {"window": ring, "+ random": lot | ring, "+ global": {"global": global_at(0)} | ring},
    n=32, title="Chords are shortcuts across the circle",
    alt="Three circles of 32 positions. Window: only neighbors are joined. With random pairs: chords cross the circle in all "
    "directions. With one global token: chords from all positions meet in one point.",
)


# %% [markdown]
# Count the steps between two positions:


# %%
def mean_steps(mask, n):
    allowed, known = mask.dense(n)[0, 0].float(), torch.eye(n)  # (n, n) each
    total, step = 0, 0
    while known.mean() < 1:
        step, before = step + 1, known.sum()
        known = (allowed @ known > 0).float()  # who is reached in this many steps
        total += step * (known.sum() - before).item()
    return total / (n * n - n)


for length in (64, 256, 512):
    masks = {"window": window(2), "twice as wide": window(4),
             "1 random key": with_random(window(2), 1, length),
             "1 global token": window(2) | global_at(0)}
    print(f"n = {length:3}, steps:", ", ".join(
        f"{name} {mean_steps(mask, length):4.1f}" for name, mask in masks.items()))

# %% [markdown]
# Windows alone need steps in proportion to $n$; with random keys the steps grow like $\log n$; a global token needs two
# at any length. Big Bird has all three, and its authors prove that such a pattern can still approximate any continuous
# function of a sequence, and is Turing complete, *given enough layers*. Their section 3.4 names a task that full
# attention does in one layer: for each of $n$ vectors, find the one that is furthest from it. Any sparse pattern with
# $\tilde O(n)$ edges (the tilde drops logarithms) needs nearly $n$ layers for it, under a usual assumption of
# complexity theory. In it, *each position looks for one particular other*.

# %% [markdown]
# ## 4 A mask alone saves nothing
#
# We can count pairs; does a machine compute fewer? Here is attention with a mask, as in lesson 03, and the count of
# operations of lesson 30:

# %%
from torch.utils.flop_counter import FlopCounterMode


def masked(q, k, v, allowed):  # (n, d_k) each, (n, n)
    score = q @ k.T / q.shape[-1] ** 0.5  # (query, key)
    return score.masked_fill(~allowed, -torch.inf).softmax(dim=-1) @ v  # (query, d_v)


def operations(compute, *inputs):
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        compute(*inputs)
    return counter.get_total_flops()


# %% jupyter={"source_hidden": true}
predict(
    "sparse-mask", "A window lets 3% of 2,048² pairs through. What fraction of the operations is left?",
    "3%", "about a tenth", "half", "all of them",
)


# %% [markdown]
# Masked attention, with all pairs and with the window:

# %%
torch.manual_seed(0)
n, d_k, mask = 2048, 64, window(32)
q, k, v = torch.randn(3, n, d_k)  # (n, d_k) each
allowed = mask.dense(n)[0, 0]  # (query, key)
for name, pairs in {"all pairs": torch.ones_like(allowed), "window": allowed}.items():
    print(f"{name:10} {pairs.float().mean():4.0%} of the pairs,",
          f"{operations(masked, q, k, v, pairs) / 1e6:5,.0f} million operations")

# %% jupyter={"source_hidden": true}
predicted("sparse-mask", "all of them", "A matrix product knows no holes.")

# %% [markdown]
# Every score is computed, and then 97 of 100 are thrown away. A mask says what may be seen, not what need not be
# computed. So cut queries and keys into blocks. For each block of queries, find the **live** blocks of keys: those with
# at least one allowed pair. Gather them, and attend to them alone. Within them the mask is still needed, for the edges.


# %%
zero = torch.tensor(0)


def live_blocks(mask, n, size):
    pairs = mask.dense(n)[0, 0].view(n // size, size, n // size, size)
    return pairs.any(dim=3).any(dim=1)  # (query block, key block)


def block_sparse(q, k, v, mask, live, size):  # (n, d_k) each, (blocks, blocks)
    out, position = torch.empty_like(v), torch.arange(len(q)).view(-1, size)
    for i, row in zip(position, live):  # (size,), (blocks,)
        j = position[row].flatten()  # the keys to gather
        allowed = mask.at(zero, zero, i[:, None], j)  # batch and head 0: (query, key)
        out[i] = masked(q[i], k[j], v[j], allowed)  # (size, d_v)
    return out


# %% [markdown]
# The same function runs *any* mask; only `live` changes:

# %%
to_run = {
    "window": window(32),
    "dilated": dilated(32, 4),
    "window + 4 global": window(32) | global_at(*range(4)),
    "Big Bird": by_blocks(union(big_bird(n // 64)), 64),
    "strided, causal": causal & (window(45) | every(45)),
}
whole = operations(masked, q, k, v, allowed)
for name, mask in to_run.items():
    live = live_blocks(mask, n, 64)
    dense = masked(q, k, v, mask.dense(n)[0, 0])
    prove_equal(block_sparse(q, k, v, mask, live, 64), dense, what=f"{name:18}")
    part = operations(block_sparse, q, k, v, mask, live, 64) / whole
    print(f"    pairs {mask.pairs(n) / n**2:5.1%}, operations {part:5.1%}")

# %% [markdown]
# The same outputs, and for the window an eleventh of the operations. Compare the two columns. Big Bird, made of blocks,
# pays for what it uses. A dilated window has a key in every block that it crosses, and pays for all of them. Strided
# attention has a live pair in *every* block of its triangle: half of the square, for 3% of the pairs. **What counts is
# not how many pairs are allowed, but how many blocks they touch.** (For a stride, Child et al. sort the positions
# first: then the keys of a query are neighbors. The exercise does that for a dilated window.)
#
# And the clock? Processor time in milliseconds, one thread, the window of 32:

# %% tags=["nbval-ignore-output"]
def milliseconds(compute, *inputs):
    start = time.process_time()
    with torch.no_grad():
        compute(*inputs)
    return 1000 * (time.process_time() - start)


mask = to_run["window"]
for length in (256, 1024, 2048, 4096):
    qkv = torch.randn(3, length, d_k)  # (n, d_k) each
    square = milliseconds(masked, *qkv, mask.dense(length)[0, 0])
    live = live_blocks(mask, length, 64)
    blocks = milliseconds(block_sparse, *qkv, mask, live, 64)
    print(f"n = {length:5,}: masked {square:6.1f}, block by block {blocks:5.1f}")
expect("Times as fast at 4,096", square / blocks, 4, 100)

# %% [markdown]
# (Not timed: `live_blocks`, which still looks at all $n^2$ pairs. It runs once per pattern and length; the library
# finds the blocks by arithmetic, section 7.) From 1,024 to 4,096, block by block takes three to four times as long. The
# square takes sixteen times, or more (our explanation: its scores no longer fit into the processor's caches).

# %% [markdown]
# ## 5 What is lost?
#
# ### 5.1 Two tasks
#
# We know what *can* be known. To see what is *learned*, train readers on two tasks that differ in one thing. A text
# has 64 lines. A line may say *who* holds *which thing* (16 people, 64 things), and it may ask who holds another thing.
#
# - **One fact for all.** A single line names a person, the others are empty. Every line must know who was named.
# - **Each its own question.** Every line holds a fact, and every line asks about one line's thing.

# %% tags=["recorded"]
n, d_model, people = 64, 64, 16
NOBODY, NOTHING = people, n  # two more ids


def one_fact(size):  # a single line says who; all lines are asked
    at, king = torch.randint(n, (size, 1)), torch.randint(people, (size, 1))
    who = torch.full((size, n), NOBODY).scatter(1, at, king)  # (size, n)
    nothing = torch.full((size, n), NOTHING)
    return who, nothing, nothing, king.expand(size, n), (torch.arange(n) - at).abs()


def own_question(size, asking=n):  # n facts; the last `asking` lines ask
    who, thing = torch.randint(people, (size, n)), torch.rand(size, n).argsort(dim=-1)
    about = torch.rand(size, n).argsort(dim=-1)  # the line that each asks about
    asks = torch.arange(n) >= n - asking  # (n,)
    ask = torch.where(asks, thing.gather(1, about), NOTHING)
    right = torch.where(asks, who.gather(1, about), -100)  # −100 does not count
    return who, thing, ask, right, (torch.arange(n) - about).abs()


# %% [markdown]
# Three lines of a text of the second kind (all five results have the shape (size, n)):

# %%
torch.manual_seed(0)
who, thing, ask, right, far = (x[0].tolist() for x in own_question(1))
for line in (5, 6, 7):
    print(f"line {line}: person {who[line]:2} holds thing {thing[line]:2};",
          f"who holds thing {ask[line]:2}? (person {right[line]}, {far[line]} away)")

# %% [markdown]
# The reader has two pre-norm blocks (lesson 06) with four heads, and no positions: what it needs is in the lines, and
# where a line may look is up to the mask. (`mechanisms` are for section 6.)


# %% tags=["recorded"]
class Block(nn.Module):
    def __init__(self, mechanism=None):
        super().__init__()
        self.attention = MultiHeadAttention(d_model, 4, mechanism=mechanism)
        self.network = FeedForward(d_model, 2 * d_model)
        self.norm_1, self.norm_2 = LayerNorm(d_model), LayerNorm(d_model)

    def forward(self, x, allowed):  # (batch, n, d_model), (1, 1, n, n)
        x = x + self.attention(self.norm_1(x), mask=allowed)
        return x + self.network(self.norm_2(x))


# %% [markdown]
# A line is the sum of its vectors; the thing that it asks for goes through one more matrix:


# %% tags=["recorded"]
class Reader(nn.Module):
    def __init__(self, mechanisms=(None, None)):  # one for each block
        super().__init__()
        self.who = nn.Embedding(people + 1, d_model)
        self.thing = nn.Embedding(n + 1, d_model)
        self.asks = nn.Linear(d_model, d_model, bias=False)
        self.blocks = nn.ModuleList(map(Block, mechanisms))
        self.output = nn.Linear(d_model, people)

    def forward(self, who, thing, ask, allowed):  # (batch, n) each
        x = self.who(who) + self.thing(thing) + self.asks(self.thing(ask))
        for block in self.blocks:
            x = block(x, allowed)  # (batch, n, d_model)
        return self.output(x)  # (batch, n, people)


# %% [markdown]
# Training, in which only the mask differs (`None` allows all pairs):


# %% tags=["recorded"]
def train(draw, mask, steps, seed=0, mechanisms=(None, None), lr=1e-2, what="training"):
    torch.manual_seed(seed)
    model, allowed = Reader(mechanisms), None if mask is None else mask.dense(n)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), fused=True)
    for step in progress(range(steps), what):
        warm_up, decay = min(1, (step + 1) / 30), 1 - 0.9 * step / steps
        optimizer.param_groups[0]["lr"] = lr * warm_up * decay
        who, thing, ask, right, _ = draw(32)  # (batch, n) each
        logits = model(who, thing, ask, allowed)
        optimizer.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), right.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


# %% [markdown]
# Right answers on new texts, for distances 0 to 3, 4 to 7, and so on:


# %% tags=["recorded"]
PATTERNS = {
    "window": window(8),
    "window + 1 global": window(8) | global_at(0),
    "Big Bird": by_blocks(union(big_bird(n // 4)), 4),
    "all pairs": None,
}


@torch.no_grad()
def by_distance(model, draw, mask, width=4):
    torch.manual_seed(99)
    who, thing, ask, right, far = draw(300)
    allowed = None if mask is None else mask.dense(n)
    correct = (model(who, thing, ask, allowed).argmax(dim=-1) == right).float()
    groups = [(right != -100) & (far // width == group) for group in range(n // width)]
    return [correct[group].mean().item() for group in groups]


# %% jupyter={"source_hidden": true}
predict(
    "sparse-tasks", "Where will the window with one global token do as well as all pairs?",
    "in both tasks: two layers reach everything", "with one fact for all only", "with own questions only", "in neither",
)

# %% [markdown]
# One run of each task, here and now:

# %% tags=["nbval-ignore-output"]
mask = PATTERNS["window + 1 global"]
for task, steps, low, high in ((one_fact, 100, 0.9, 1), (own_question, 150, 0.02, 0.2)):
    reader = train(task, mask, steps, what=f"{task.__name__}, window + 1 global")
    right = by_distance(reader, task, mask)
    expect(f"{task.__name__}: right answers at distances 28 to 31", right[7], low, high)

# %% [markdown]
# `data/far_away.py` has trained all of them with three seeds each, by the cells of this
# lesson. Each line below is a seed:

# %% jupyter={"source_hidden": true}
recorded = json.loads((DATA / "far_away.json").read_text())


def by_seed(task, name):  # in percent: (seed, group of distances)
    return 100 * torch.tensor(list(recorded[task][name].values()))


# %% jupyter={"source_hidden": true}
figures.by_distance({name: by_seed("one fact", name).tolist() for name in PATTERNS},
                    title="One fact for all: a single global token is enough")

# %% [markdown]
# (The three upper lines coincide.) The plain window is right up to a distance of 16 and guesses beyond; one of
# sixteen people is 6%. Its two layers have learned to hand the news on, exactly as far as section 3 says. With a
# global token, nothing is lost: it hears the fact in the first layer, and all lines hear it from there in the second.

# %% jupyter={"source_hidden": true}
display(figures.by_distance({name: by_seed("own question", name).tolist() for name in PATTERNS},
                            title="Each its own question: what no head sees directly is lost"))
predicted("sparse-tasks", "with one fact for all only", "A single relay would have to pass on 64 facts, and none was learned.")

# %% [markdown]
# The same patterns, the same reach. Now the plain window is right up to a distance of 8, what *one* layer sees, and
# nothing was handed on. Suppose that a reader answers what it sees directly, and guesses the rest:

# %%
far = (torch.arange(n)[:, None] - torch.arange(n)).abs() // 4  # (query, key)
for name in ("window", "window + 1 global", "Big Bird"):
    allowed = PATTERNS[name].dense(n)[0, 0].float()  # (query, key)
    seen = torch.tensor([allowed[far == group].mean() for group in range(n // 4)])
    expected = 100 * (seen + (1 - seen) / people)
    right = by_seed("own question", name).mean(dim=0)
    print(f"{name:18} at 28–31: {seen[7]:4.0%} seen, {expected[7]:3.0f}% expected,",
          f"{right[7]:3.0f}% right; largest gap {(expected - right).abs().max():.0f}")

# %% [markdown]
# That predicts the whole figure, to within three points, including the rise on the right: when the fact is that far
# away, fact and question are at opposite ends of the text, where the global lines are. **In 150 batches no relay
# was learned.** Think of what it would take: a line in between would have to pass on all facts that it sees, in one
# vector, without knowing which of them will be asked for. It is lesson 02's single context vector again. (Is it room
# or training that is lacking? That is the exercise's last task.)
#
# So **make the askers global.** Suppose only the last eight lines have a question (and train for 250 batches, since
# each text now has eight answers instead of 64). Let those eight see everything:

# %%
for name in ("all pairs", "askers", "first eight"):
    right = by_seed("eight ask", name).mean(1).tolist()
    print(f"{name:11} right at all distances, by seed:", *(f"{x:.1f}%" for x in right))
long, r, g = 4096, 256, 8
pairs = 2 * g * long - g * g + in_window(long - g, r)
print(f"with {long:,} lines: {pairs / long**2:.0%} of the pairs")

# %% [markdown]
# As good as all pairs. With the *first* eight lines global instead (as many pairs), even 600 batches teach only what an
# asker sees itself: on average 20.5 of 64 lines or 32%, which makes 36% with guesses. So which tokens are global is
# where your knowledge of the task enters: Longformer makes the tokens of a question about a document global.
#
# *Second reading.* A global token gathers a text, the others look around. These are different jobs, so Longformer gives
# its global tokens a second set of projections $W_Q^g, W_K^g, W_V^g$. It is the *query* that decides: a global token's
# row comes from the second set, for its query and for all keys and values that it meets; all other rows come from the
# first. The second set begins as a copy of the first, so that a pretrained model is not broken. It costs
# $3(d^2 + d)$ parameters per layer: 21 million in RoBERTa's 12 layers of width 768.

# %% [markdown]
# ### 5.2 Sinks: what a window takes from a trained model
#
# Our readers were trained with their pattern. What if a window comes later, as when a decoder's cache is full and the
# oldest keys are evicted? Xiao et al. (2024) found that trained models fall apart as soon as the *first* tokens leave,
# however little they say, and recover when those few stay visible: **attention sinks**. Why would a model look at a
# first token that says nothing? A softmax must spend its weight of 1 somewhere. On paper: two keys with values 4 and 8
# and scores 0 and 0 give 6, whether the head is needed or not. With a third key of score 5 and value 0, the weights are
# 0.007, 0.007 and 0.987: the head says 0.08, next to nothing.
#
# `data/sinks.py` trains a model that shows it: one layer of attention with two heads. 24 words follow each other with
# fixed probabilities; but after one of the words 0, 1, 2 the word *before* it is repeated. So attention has something
# to do after three words, and should be quiet after the other 21. A special word begins each text. Training sees all
# pairs; then only the last 12 words stay in the cache, ten more than the task needs.
#
# Newer models have other places to rest. **gpt-oss** gives each head a learned score that joins the softmax without a
# key or a value (OpenAI 2025). An **output gate** multiplies what a head says by a sigmoid of the token (Qiu et al.
# 2025). The same model was trained with either.

# %% jupyter={"source_hidden": true}
predict(
    "sparse-sinks", "The first word leaves the cache. Which of the two keeps this model from losing?",
    "the learned sink", "the output gate", "both", "neither",
)

# %% jupyter={"source_hidden": true}
sinks = json.loads((DATA / "sinks.json").read_text())
for cache in ("all words", "the last 12", "the last 12 and the first"):
    print(f"{cache:26} loss by seed:",
          *(f"{run[cache]:.3f}" for run in sinks["plain"].values()), "nats")
for name, seeds in sinks.items():
    lost = [run["the last 12"] - run["all words"] for run in seeds.values()]
    rests = [max(run["quiet"]) for run in seeds.values()]  # of two heads
    print(f"{name:13} loses", *(f"{nats:.3f}" for nats in lost), "nats; rests on the first word:",
          *(f"{weight:.2f}" for weight in rests))
predicted("sparse-sinks", "the output gate", "With it the loss rises by 0.001 to 0.020 nats.")

# %% [markdown]
# With the last 12 words the plain model loses 0.03 to 0.10 nats. Keep the first word as well, and the loss is back, to
# within 0.002 nats: so it was the first word that was missed. The gate cures most of it, and the learned sink does not:
# with two of three seeds it loses more than the plain model. Our explanation is in the last column: nothing keeps a
# head from resting on the first word all the same, and in each run, after words that ask for nothing, one head gives it
# 0.26 to 0.35 of its weight. (gpt-oss trains with windows in every second layer, which the first token soon
# leaves. With the gate, one run rests there as well, at 0.66, but loses only 0.020: what rests there can be gated.)

# %% [markdown]
# ## 6 Chosen, not drawn
#
# ### 6.1 A mean for each block
#
# A drawn pattern can't know where the answer is; all pairs include it, at the price of the square. In between: let each
# query *choose*. **Mixture of block attention** (Lu et al. 2025) keeps the mean key of each block, multiplies the query
# by these few means, and attends to the `top` best blocks. On paper, a query of 1 and four keys, one number each, in
# two blocks:
#
# | | keys | mean | score of the block | best score of a key |
# | --- | --- | --- | --- | --- |
# | block A | 2, 0 | 1 | 1 | 2 |
# | block B | 1, 0.4 | 0.7 | 0.7 | 1 |
#
# With `top` = 1 the query takes block A, and does well. But if A's keys are 3 and −3, its mean is 0: it takes B, and
# misses the best key of all. **A mean can hide a key**, unless training makes the keys of a block easy to find.


# %% tags=["recorded"]
def choose(q, k, size, top):  # (…, n, d_k) each: (…, query, key), True = may see
    means = k.unflatten(-2, (-1, size)).mean(dim=-2)  # (…, blocks, d_k)
    best = (q @ means.mT).topk(top, dim=-1).indices  # (…, query, top)
    picked = torch.zeros(*q.shape[:-1], means.shape[-2], dtype=torch.bool)
    return picked.scatter(-1, best, True).repeat_interleave(size, dim=-1)


# %% [markdown]
# The library's `ChosenBlocks` does the same and gathers, so that only the chosen blocks are computed:

# %%
torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 2, 256, 16)  # (batch, heads, n, d_k)
mechanism = library.ChosenBlocks(block=16, top=3)
dense = F.scaled_dot_product_attention(q, k, v, attn_mask=choose(q, k, 16, 3))
prove_equal(mechanism(q, k, v), dense, tolerance=1e-5, what="Gathered and masked")
part = operations(mechanism, q, k, v) / (2 * 4 * 256**2 * 16)
print(f"operations: {part:.0%} of those of all pairs")

# %% [markdown]
# ### 6.2 Where windows failed
#
# Now the task of 5.1 in which each line asks its own question. Blocks of four lines; each head of each line may choose
# one of the sixteen (a quarter of the pairs that the window has) or two.

# %% tags=["recorded"]
class Chosen(nn.Module):
    def __init__(self, size, top):
        super().__init__()
        self.size, self.top = size, top

    def forward(self, q, k, v, mask=None):
        allowed = choose(q, k, self.size, self.top)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


CHOSEN = {f"{top} of 16 blocks": Chosen(size=4, top=top) for top in (1, 2)}

# %% [markdown]
# Is it the choice that helps? Window and Big Bird show all heads the same pairs. A stronger rival *deals out* random
# blocks to the eight heads of both layers, different ones to each: a head sees as few pairs as before, together they
# see eight times as many.


# %% tags=["recorded"] jupyter={"source_hidden": true}
class Dealt(nn.Module):
    def __init__(self, allowed):  # (4, n, n): True = may see
        super().__init__()
        self.allowed = allowed

    def forward(self, q, k, v, mask=None):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.allowed)


def deal(size, top, seed=0):  # each block of lines deals out to two layers of four heads
    blocks, draw = n // size, torch.Generator().manual_seed(seed)
    order = torch.rand(blocks, blocks, generator=draw).argsort(dim=1)
    dealt = order[:, : 8 * top].view(blocks, 2, 4, top).permute(1, 2, 0, 3)
    table = torch.zeros(2, 4, blocks, blocks).scatter(3, dealt, 1).bool()
    return [Dealt(layer) for layer in table.repeat_interleave(size, 2).repeat_interleave(size, 3)]


# %% jupyter={"source_hidden": true}
predict(
    "sparse-chosen", "How many of the far questions will a reader answer whose heads choose one of 16 blocks each?",
    "none: a choice has no gradient", "about a sixteenth: what a head may see", "at most half: what eight heads may see", "most of them",
)

# %% [markdown]
# Recorded with three seeds (each deals anew), and 600 batches instead of 150. Big Bird is as before, but for 600
# batches as well:

# %% jupyter={"source_hidden": true}
rivals = {"Big Bird": by_seed("longer", "Big Bird").tolist()}
rivals |= {f"1 of 16, {how}": by_seed(how, "1 of 16 blocks").tolist() for how in ("chosen", "dealt out")}
display(figures.by_distance(rivals, title="One chosen block per head finds most facts, at any distance"))
predicted("sparse-chosen", "most of them", "Each head sees a sixteenth, but chooses which.")
for name in CHOSEN:
    for how in ("chosen", "dealt out"):
        right = by_seed(how, name).mean(dim=1).tolist()
        print(f"{name}, {how:9}: right at all distances", *(f"{x:.0f}%" for x in right))

# %% [markdown]
# With one block per head, choosing wins clearly. Dealt out, the blocks show the eight heads half of the text between
# them, and about a quarter of the questions are answered. (Why not half, we have not tested; but a reader that answered
# all that it sees, and guessed the rest, would get 53%, still far behind.)
# With two per head, the heads together miss nothing, and dealing is even ahead of choosing. At this length it is also
# cheaper: comparing 16 means costs a head as much as two more blocks. But dealing has to give each of eight heads an
# eighth of any text. *So the choice pays where the heads together can't see everything*, as in a long text.
#
# The choice itself passes no gradient on. Our explanation: the gradient through the keys that *were* chosen turns
# queries toward the keys that answer them, and a mean that holds such a key then scores higher. Part of what remains
# wrong is, we think, what section 6.1 warned of: three other keys in the block can hide the right one.
#
# ### 6.3 How large models choose
#
# - **Native Sparse Attention** (Yuan et al. 2025, section 3) has three branches: all blocks, each compressed to one key
#   and value; the best blocks, by the scores of the compressed keys; a window. The query's gates add them: outputs 2, 6
#   and 4 with gates 0.1, 0.7 and 0.2 make $0.2 + 4.2 + 0.8 = 5.2$. So the compressed branch passes a gradient to what
#   scores the blocks. In `txlib` it is `NativeSparseConfig`.
# - **DeepSeek Sparse Attention** (DeepSeek-AI 2025, section 2) chooses single keys. A small *indexer* scores every pair
#   with a few narrow heads in 8 bits, $I = \sum_h w_h\, \text{ReLU}(q_h \cdot k)$: two heads with products 2 and −3 and
#   weights 0.5 and 1 give $0.5 \cdot 2 + 1 \cdot 0 = 1$. Attention sees the 2,048 keys with the largest $I$. Since a
#   choice has no gradient, the indexer is trained to imitate the weights of dense attention. It is still quadratic, but
#   cheap. In `txlib` it is part of latent attention, which DeepSeek uses it with: `LatentConfig(rank=512,
#   index_top_k=2048)`.
# - Older ways to choose: **Reformer** (Kitaev et al. 2020) hashes queries and keys, **Routing Transformers** (Roy et
#   al. 2020) cluster them, and each sees its own bucket.

# %% [markdown]
# ## 7 The library, the whole play, and what became of it
#
# ### 7.1 The same patterns
#
# All patterns of this lesson are in `txlib.attention`. Below the checks is one of them in full: its rule, and the
# distances that it allows, which tell the live blocks by arithmetic.

# %%
twins = {
    "window": (window(3), library.sliding_window(3)),
    "dilated": (dilated(3, 2), library.dilated(3, 2)),
    "strided": (strided["far"] | strided["near"], library.strided(6)),
    "fixed": (fixed["far"] | fixed["near"], library.sparse_fixed(6, 1)),
    "Big Bird": (by_blocks(union(big_bird(12, 0)), 4), library.bigbird(4, random=0)),
}
for name, (ours, theirs) in twins.items():
    prove_equal(ours.dense(48).float(), theirs.dense(48).float(), what=f"{name:8}")
show_source(type(library.sliding_window(3)))

# %% [markdown]
# (Random blocks are drawn in another way there, so we compare Big Bird without them.) `BlockSparseAttention` runs any
# of them as our loop does, for whole batches and all heads, forward and backward; on a GPU it leaves the live blocks to
# PyTorch's FlexAttention, whose `mask_mod` is a function of positions like ours. So back to the whole play: 12 billion
# pairs, one head of width 32, a window of 64 and one global character.

# %% tags=["nbval-ignore-output"]
length = 110_828
q, k, v = torch.randn(3, 1, 1, length, 32)  # (batch, heads, length, d_k) each
whole_play = library.sliding_window(64) | library.global_tokens([0])
start = time.process_time()
library.BlockSparseAttention()(q, k, v, whole_play)
seconds = time.process_time() - start
print(f"{whole_play.pairs(length):,} pairs;",
      f"all scores would be {4 * length**2 / 1e9:.0f} GB")
expect("Seconds", seconds, 0, 60)

# %% [markdown]
# `LongformerAttention` has the two sets of projections, and `load_pretrained` reads checkpoints of Longformer and Big
# Bird in Hugging Face's format.
#
# ### 7.2 What became of it
#
# **GPT-3** adopted the Sparse Transformer's idea: layers with all pairs and "locally banded sparse" ones in turn.
# **Longformer** (window 512, 4,096 tokens) and **Big Bird** became encoders for long documents: questions about several
# pages, summaries, genomes. Then fused kernels made the full square cheap in memory (lesson 34), and for some years
# most large models computed all pairs again. What survived is the simplest pattern. **Mistral 7B** (Jiang et al. 2023)
# has a window of 4,096 in every layer, **Gemma 3** (Gemma Team 2025) five layers of windows of 1,024 to one with all
# pairs, **gpt-oss** (OpenAI 2025) windows of 128 in every second layer, with learned sinks. Why? A window's cache does
# not grow. In tokens per layer, at 128,000 tokens: $(5 \cdot 1{,}024 + 128{,}000) / 6 \approx 22{,}000$, a sixth of the
# full cache. And since 2025 patterns are chosen (section 6.3).

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. A model has 12 layers with a window of radius 256 (`attention_window` 512). A text has 4,096 tokens. Can the
# last layer's first token depend on the last token of the text?**
#
# <details><summary>A. Yes: 12 · 512 = 6,144</summary>
#
# 6,144 is the width of the whole field, both sides together. To one side it is half.
# </details>
# <details><summary>B. No: 12 · 256 = 3,072 positions to one side</summary>
#
# Right. With one global token it could, in two layers.
# </details>
# <details><summary>C. No, a window never sees beyond 256</summary>
#
# One layer does not. The stack does.
# </details>
#
# **2. All layers have a window with gaps of 2. What can position 10 never depend on?**
#
# <details><summary>A. Positions further away than L · r · 2</summary>
#
# True for *one* number of layers. More layers reach further.
# </details>
# <details><summary>B. Any position with an odd number</summary>
#
# Right. Sums of even steps are even, in however many layers.
# </details>
# <details><summary>C. Nothing, with enough layers</summary>
#
# With one layer without gaps, yes.
# </details>
#
# **3. Code computes scores for all pairs, sets those outside a window to −∞, and calls it linear attention. What has
# become smaller?**
#
# <details><summary>A. The operations</summary>
#
# Every score has been computed.
# </details>
# <details><summary>B. The memory</summary>
#
# The $n \times n$ tensor is there, and a mask of the same size next to it.
# </details>
# <details><summary>C. Neither</summary>
#
# Right. What shrinks is only what may be seen.
# </details>
#
# **4. Strided attention allows 3% of the pairs of a text of 2,048. In blocks of 64 it costs half of the square.
# Why?**
#
# <details><summary>A. Each block of the lower triangle holds at least one allowed pair</summary>
#
# Right. Blocks are computed whole. What counts is how many are touched.
# </details>
# <details><summary>B. Because it is causal</summary>
#
# That explains the half that is saved, not the other.
# </details>
# <details><summary>C. Because the stride is not a multiple of 64</summary>
#
# With a stride of 64 each block has its diagonal, and is alive all the same.
# </details>
#
# **5. A contract of 4,000 tokens, one question of ten. You may have a window of 256 and ten global tokens. Which
# tokens?**
#
# <details><summary>A. The first ten of the contract, since they have seen everything after one layer</summary>
#
# They have, but without knowing the question: all of the contract would have to fit into ten vectors.
# </details>
# <details><summary>B. The question's ten</summary>
#
# Right. They see each token of the contract directly, and know what they are looking for. Longformer does this.
# </details>
# <details><summary>C. Ten drawn at random</summary>
#
# That makes paths short for all. It does not bring the question to the answer in one step.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - A window has $n(2r+1) - r(r+1)$ pairs, $g$ global tokens add $g$ rows and columns, Big Bird has $g + w + r$ blocks
#   per block of queries, a stride of $\sqrt n$ about $n \sqrt n$ pairs.
# - The nonzero entries of a product of matrices tell what a stack can know. Windows: $Lr$ to either side. Equal gaps in
#   all layers: texts that never meet. One global token: everything in two layers. Random pairs: about $\log n$ steps.
# - A mask alone saves nothing. What saves is to gather live blocks; the cost is the number of *blocks* that are
#   touched.
# - One fact for all goes through a global token without loss. Sixty-four facts, each with its own question, did not.
#   Make the askers global, or let each query choose its blocks. (If the heads together can see all blocks, dealing them
#   out does as well.)
# - A trained head that has nothing to say may rest on the first token. Evict it, and the loss rises. With an output
#   gate it hardly does.
#
# **Read** Beltagy et al. 2020, *Longformer*, [arXiv:2004.05150](https://arxiv.org/abs/2004.05150), section 3. Zaheer
# et al. 2020, *Big Bird*, [arXiv:2007.14062](https://arxiv.org/abs/2007.14062), sections 2 and 3.4. Child et al.
# 2019, *Generating Long Sequences with Sparse Transformers*, [arXiv:1904.10509](https://arxiv.org/abs/1904.10509),
# section 4. Watts and Strogatz 1998, *Collective dynamics of 'small-world' networks*, Nature 393. Xiao et al. 2024,
# *Efficient Streaming Language Models with Attention Sinks*, [arXiv:2309.17453](https://arxiv.org/abs/2309.17453),
# section 3. Lu et al. 2025, *MoBA*, [arXiv:2502.13189](https://arxiv.org/abs/2502.13189), section 2. Yuan et al. 2025,
# *Native Sparse Attention*, [arXiv:2502.11089](https://arxiv.org/abs/2502.11089), section 3. DeepSeek-AI 2025,
# *DeepSeek-V3.2*, [arXiv:2512.02556](https://arxiv.org/abs/2512.02556), section 2.
#
# **Do** the exercise [31_sparse](../exercises/exercise_31_sparse.ipynb). Then go on to
# [32 Low rank, kernels, compression](32_low_rank.ipynb).
