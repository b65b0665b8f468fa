# %% [markdown] lesson={"part": "IV Efficiency", "builds": "windows, gaps, global tokens, random blocks: drawn, counted, run block by block; what each of them loses"}
# # 31 · Sparse patterns
#
# **After this lesson you will be able to**
#
# - draw, count and run the patterns of Longformer, Big Bird and the Sparse Transformer: windows, gaps, global tokens,
#   random blocks, strides;
# - say how far a position sees through a stack of layers, and prove it twice: with powers of a matrix, and with
#   gradients;
# - explain why a mask alone saves nothing, and write the loop that does save: operations, memory and time;
# - show what random pairs are good for, and what they are not;
# - measure what each pattern loses, on a task that one fact decides, and on one that needs all of them.
#
# **You need** lessons 03 and 30. **It takes** about 90 minutes to read and try; all cells together run in about a
# minute on a laptop.

# %% [markdown]
# ## 1 The problem: which pairs?
#
# Lesson 30 ended with a wish: *a lot from nearby, a little from everywhere*. What we need today:

# %% tags=["recorded"]
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

from txlib import plots
from txlib.attention import Mask, MultiHeadAttention
from txcourse import explore
from txcourse.lesson import expect, progress, prove_equal, show_source
from txlib.data import shakespeare, shipped
from txlib.layers import FeedForward, LayerNorm

torch.set_num_threads(1)                                    # so that timings are comparable

# %% [markdown]
# And what it is about: *Twelfth Night*, a play of Shakespeare that no model of this course has been trained on.

# %%
play = shakespeare().validation
n = len(play)
print(f"{play[:60]!r} … {n:,} characters")
print(f"all pairs          {n * n:15,}   scores of one head: {4 * n * n / 1e9:5.1f} GB")
print(f"256 on either side {n * 513:15,}   scores of one head: {4 * n * 513 / 1e9:5.1f} GB")

# %% [markdown]
# Half a percent of the pairs. But *which* half percent? That is a choice, and each choice forbids something. This
# lesson makes the choices of three papers, and after each it asks three questions: how many pairs are left? How far
# does news travel? And does a machine really do less?

# %% [markdown]
# ## 2 The idea in one picture
#
# Lesson 03 has rules for masks: `Mask(rule)` makes one of a function of positions, and `&`, `|`, `~` combine them.
# There, `sliding_window` and `global_tokens` came ready-made. Today you write them. A window of radius $r$; the same
# with gaps; a few chosen positions that see all and are seen by all:


# %% tags=["recorded"]
def window(radius):
    return Mask(lambda query, key: (query - key).abs() <= radius)


def dilated(radius, gap):  # every gap-th position, `radius` of them on either side
    far = Mask(lambda query, key: (query - key).abs() <= radius * gap)
    return far & Mask(lambda query, key: (query - key) % gap == 0)


def seen_by_all(*chosen):                                   # and they see all
    chosen = torch.tensor(chosen)
    return Mask(lambda query, key: torch.isin(query, chosen) | torch.isin(key, chosen))


everything = Mask(lambda query, key: query + key >= 0)


# %% [markdown]
# Beltagy et al. (2020) show their Longformer in one figure of four squares. Here it is, rebuilt. Each row is a query,
# and filled cells are the keys that it sees:

# %%
longformer = {
    "(a) all pairs": everything,
    "(b) sliding window": {"window": window(3)},
    "(c) dilated window": {"window": dilated(3, 2)},
    "(d) global + window": {"global": seen_by_all(0, 1, 9, 17), "window": window(3)},
}
plots.mask(
    longformer, length=24, title="Four patterns of Longformer's figure 2",
    alt="Four squares of 24 queries by 24 keys. (a) all filled. (b) a band of seven cells along the "
    "diagonal. (c) a band twice as wide in which every second cell is filled. (d) the band of (b), "
    "and four full rows and the same four columns.",
)

# %% [markdown]
# - **(b)** A word's meaning is mostly settled by its neighbours. Each position sees $r$ on either side. (Mind the
#   unit. The paper's $w$, and `attention_window` in Hugging Face's models, is the *whole* width, $w = 2r$.)
# - **(c)** As many keys per query, spread further apart, as in the dilated convolutions of lesson 02's ByteNet.
# - **(d)** A few positions that must know all of the text, such as `[CLS]` where it is to be classified, or the words
#   of a question about it. The pattern is symmetric: what they have gathered, everybody can read there.
#
# How many are global, and which, is up to you and your task. The window is the same for all tasks.

# %% [markdown]
# ## 3 Count
#
# ### 3.1 Longformer
#
# In the middle of a text each query has $2r + 1$ keys. At the end of the text the last query misses $r$ of them, the
# one before it $r - 1$, and so on: $r + \dots + 2 + 1 = r(r+1)/2$; and as many at the beginning. With gaps of
# $\delta$ the same happens in each of $\delta$ interleaved texts. $g$ global tokens at the front take $g$ rows and
# $g$ columns, and leave a window on $n - g$ positions:
#
# $$\text{window: } n(2r+1) - r(r+1) \qquad \text{dilated: } n(2r+1) - \delta\, r(r+1)$$
#
# $$\text{window + global: } 2gn - g^2 + (n-g)(2r+1) - r(r+1)$$
#
# All grow like $n$. (They hold as soon as the text is longer than the window's reach to one side.) Count cells, and
# compare. The dilated window here has half the radius and gaps of 2, so it spans as much as the window, with half of
# the keys:


# %%
def in_window(n, r, gap=1):
    return n * (2 * r + 1) - gap * r * (r + 1)


r, g = 256, 4                                               # Longformer's own window, w = 512
for n in (1024, 4096):
    both = 2 * g * n - g * g + in_window(n - g, r)
    compared = {
        "window": (window(r), in_window(n, r)),
        "dilated by 2": (dilated(r // 2, 2), in_window(n, r // 2, 2)),
        "window + 4 global": (seen_by_all(*range(g)) | window(r), both),
    }
    for name, (mask, formula) in compared.items():
        print(f"n = {n:5,}  {name:17}  counted {mask.pairs(n):9,}  formula {formula:9,}", end="")
        print(f"  {formula / n**2:5.1%} of all")

# %% [markdown]
# With 4,096 positions and a window of 512, Longformer computes an eighth of the square. At 512 positions it would
# save only a quarter. **A sparse pattern is worth its trouble when $n$ is many times its width.**

# %% [markdown]
# ### 3.2 Big Bird
#
# Zaheer et al. (2020) think of attention as a graph: positions are its nodes, and a pair that is computed is an edge.
# Which few edges keep such a graph well connected? Their answer has three parts: **random** ones, a **window**, and
# **global** nodes. And they deal in *blocks*, of 64 positions each in the base model: a block of queries sees a block
# of keys, 64 by 64 pairs, or it does not. Why blocks? A processor that fetches 64 neighbouring keys for 64
# neighbouring queries works at full speed; one that fetches single keys waits.
#
# So a table of blocks says it all. Random blocks are drawn among those that the other parts leave:


# %% tags=["recorded"]
def big_bird(blocks, random=2, window=3, first=1, last=1, seed=0):
    row, column = torch.arange(blocks)[:, None], torch.arange(blocks)
    near = (row - column).abs() <= window // 2              # (query block, key block)
    chosen = (torch.arange(blocks) < first) | (torch.arange(blocks) >= blocks - last)
    everywhere = chosen[:, None] | chosen                   # (query block, key block)
    drawn, generator = torch.zeros_like(near), torch.Generator().manual_seed(seed)
    for each in range(first, blocks - last):
        left = (~(near | everywhere)[each]).nonzero()[:, 0]  # (blocks that are left,)
        drawn[each, left[torch.randperm(len(left), generator=generator)[:random]]] = True
    return {"random": drawn, "window": near, "global": everywhere}


# %% [markdown]
# From a table of blocks to a mask, and from several masks to one:

# %% tags=["recorded"]
def by_blocks(table, size=1):
    return Mask(lambda query, key: table[query // size, key // size])


def either(masks):
    first, *others = masks
    for each in others:
        first = first | each
    return first


# %% [markdown]
# The paper's figure 1, with $r = 2$ random blocks, a window of $w = 3$ and $g = 2$ global blocks. (Mind the letters:
# Big Bird's $r$ counts random blocks, and its $w$ is a whole width.) The paper draws single positions where we draw
# blocks, and both of its global ones stand at the front. In the authors' code, which we follow, half of them stand at
# the end.

# %%
parts = {name: by_blocks(table) for name, table in big_bird(16).items()}
plots.mask(
    {
        "(a) random, r = 2": {"random": parts["random"]},
        "(b) window, w = 3": {"window": parts["window"]},
        "(c) global, g = 2": {"global": parts["global"]},
        "(d) Big Bird": parts,
    },
    length=16, title="After Big Bird's figure 1: here each cell is a block",
    alt="Four squares of 16 by 16 blocks. (a) two scattered cells in each row but the first and last. "
    "(b) a band of three along the diagonal. (c) the first and last row, and the first and last "
    "column. (d) all three on top of each other, in three colours.",
)

# %% [markdown]
# Count again. A query block sees at most $g + w + r$ blocks; global blocks see all. In the base model that is
# $(2 + 3 + 3) \cdot 64 = 512$ keys for each query that is not global, however long the text is.

# %%
for n in (1024, 4096, 16384):
    tables = big_bird(n // 64, random=3)
    blocks = torch.stack(list(tables.values())).any(dim=0).sum().item()
    pairs = blocks * 64**2
    print(f"n = {n:6,}: {pairs / n:5.1f} keys per query on average; {pairs / n**2:5.1%} of all pairs")
cells = either(by_blocks(table, 64) for table in big_bird(16, random=3).values()).pairs(1024)
blocks = torch.stack(list(big_bird(16, random=3).values())).any(dim=0).sum().item()
print(f"n = 1,024 counted by blocks: {blocks * 64**2:,}; by cells: {cells:,}")

# %% [markdown]
# More than 512 on average, since the two global blocks see everything: 128 queries with $n$ keys each. In a long text
# they add nearly 128 to the average. So it approaches 640, and stays there.
#
# ### 3.3 Causal: strides and fixed columns
#
# A model that writes must not see what comes. Any pattern has its causal form: `causal & pattern`. For a window that
# is its left half, with the query itself $r + 1$ keys.
#
# Child et al. (2019), who began all this with the Sparse Transformer, thought causally from the start. Two of
# their steps together should lead from anywhere to any earlier place. With a *stride* of $l$:
#
# - **strided**: the last $l$ positions; and every $l$-th of all before. Good for images row by row, with $l$ the
#   row's length: left neighbours, and what is above.
# - **fixed**: what lies before it in its own stretch of $l$; and the last $c$ positions of each earlier stretch,
#   which so learn to summarise it. Good for text, which has no period.

# %%
causal = Mask(lambda query, key: query >= key)


def steps_of(stride):
    return Mask(lambda query, key: (query - key) % stride == 0)


def stretch(size):
    return Mask(lambda query, key: query // size == key // size)


def summaries(stride, columns):
    return Mask(lambda query, key: key % stride >= stride - columns)


# %% [markdown]
# Drawn, with the near part in one colour and the far part in another:

# %%
strided = {"far": causal & steps_of(6), "near": causal & window(6)}
fixed = {"far": causal & summaries(6, 1), "near": causal & stretch(6)}
plots.mask(
    {"causal": causal, "causal window": {"near": causal & window(6)}, "strided, l = 6": strided,
     "fixed, l = 6, c = 1": fixed},
    length=24, title="Causal forms; right, the Sparse Transformer's two patterns",
    alt="Four lower triangles of 24 by 24. All filled; a band left of the diagonal; that band with "
    "every sixth diagonal; small triangles along the diagonal with every sixth column.",
)

# %% [markdown]
# A window of $l$ and every $l$-th: about $l + i/l$ keys for query $i$. What stride is cheapest? For the last query,
# $l + n/l$ is smallest where both parts are equal, at $l = \sqrt n$. So strided attention has $O(n\sqrt n)$ pairs. In
# the end that is more than any window has, and in return it gets anywhere in two steps. All on one pair of axes:

# %%
def in_strided(n):
    stride = round(n**0.5)
    return sum(min(i, stride) + 1 + max(0, i // stride - 1) for i in range(n))


print("counted and by formula:", (causal & (window(32) | steps_of(32))).pairs(1024), in_strided(1024))
lengths = [2**k for k in range(8, 17)]
pairs = {
    "all": [n * n for n in lengths],
    "strided, l = √n": [in_strided(n) for n in lengths],
    "Big Bird": [min(n * n, n * 512 + 2 * 64 * n) for n in lengths],
    "window, r = 64": [in_window(n, 64) for n in lengths],
}

# %% [markdown]
# (The formula's three terms: the window; the query itself; and the steps that lie beyond the window.)

# %%
plots.lines(
    {name: (lengths, counts) for name, counts in pairs.items()}, xscale="log", yscale="log", marker="o",
    xlabel="length n", ylabel="pairs", title="Slopes of 2, 1.5 and 1",
    alt="Pairs against length, both logarithmic, 256 to 65,536. All pairs climb steepest, to 4 "
    "billion. Strided attention climbs with slope 1.5, Big Bird and the window with slope 1.",
)

# %% [markdown]
# Big Bird begins as the full square: up to 512 positions its blocks cover everything. Then it leaves with slope 1.
# Strided attention begins below this window, and overtakes it before 8,192 positions.
#
# Before we go on, play with Longformer's and Big Bird's patterns. What share of Big Bird's pairs is due to its global
# blocks at 32 positions, and at 128? How wide must Longformer's window be to have as many pairs? (The random blocks are
# the library's: the same idea, drawn in another way than above. If you see no sliders, run the cell.)

# %%
explore.patterns()

# %% [markdown]
# <details><summary>The answers</summary>
#
# Half of the pairs at 32 positions, 46% at 128. The share hardly changes, because all parts grow in proportion to the
# length: far from the edges, the global blocks add 16 pairs per position, window and random blocks 20.
#
# With its two global tokens, Longformer needs a radius of about 19 at 32 positions and of 16 at 128.
# </details>

# %% [markdown]
# ## 4 How far does a stack see?
#
# One layer of a window reaches $r$ to either side. But my neighbour, whom I see in layer 2, has seen *its* neighbours
# in layer 1. Write the pattern as a matrix $A$ with $A_{ij} = 1$ where $i$ may see $j$. The product counts the ways
# by which news gets from $j$ to $i$ in two layers,
#
# $$(A A)_{ij} = \sum_k A_{ik} A_{kj}$$
#
# and after $L$ layers $i$ knows something of $j$ exactly where $(A^L)_{ij} > 0$.


# %%
def reaches(layers):                                        # a list of masks, the first layer first
    table = torch.eye(length)                               # (n, n): at first everybody knows itself
    for mask in layers:
        allowed = mask.dense(length)[0, 0].float()          # (n, n)
        table = (allowed @ table > 0).float()               # (n, n)
    return table.bool()


length, middle = 65, 32
for name, mask in {"window(2)": window(2), "dilated(2, 3)": dilated(2, 3)}.items():
    for L in (1, 2, 3):
        seen = reaches([mask] * L)[middle].nonzero()[:, 0] - middle
        print(f"{name:13} {L} layers: from {seen.min():3} to {seen.max():2}, {len(seen):2} positions")

# %% [markdown]
# A window grows by $r$ on either side with each layer: $2Lr + 1$ positions, the paper's "$\ell \times w$". Mistral 7B
# has a causal window of 4,096 and 32 layers: $32 \cdot 4096 = 131{,}072$ tokens, in theory.
#
# Dilation reaches $\delta$ times as far, "$\ell \times d \times w$". But look at *how many* positions that are. From
# $-18$ to $18$ there are 37. Three layers see 13 of them. What is in the gaps? Guess, before you look at the next
# figure: do more layers fill them?

# %%
gaps = {
    "3 layers, gaps of 3": by_blocks(reaches([dilated(2, 3)] * 3)),
    "12 layers, gaps of 3": by_blocks(reaches([dilated(2, 3)] * 12)),
    "gaps of 1, then 3, 3": by_blocks(reaches([dilated(2, 1), dilated(2, 3), dilated(2, 3)])),
}
plots.mask(
    gaps, length=40, title="Equal gaps in all layers split the text into three that never meet",
    alt="Three squares of 40 by 40. With gaps of 3 in all layers the filled cells are every third "
    "diagonal, after 12 layers as after 3. With a first layer without gaps the band is solid.",
)

# %% [markdown]
# Never. If all steps are multiples of 3, so are all sums of steps. The text has become three texts that do not know
# of each other. One layer without gaps mends it, and it belongs *below*: first gather the neighbours, then leap. The
# Longformer that writes text, character by character, does that. It leaves dilation to the upper layers, and there to
# two heads of each; the other heads go on without. (The pretrained encoder has no gaps at all: they made it worse,
# probably because its weights began as those of RoBERTa, which knew none.)
#
# Now the other patterns. What share of all positions does a position know of, after each layer?

# %%
length = 256
patterns = {
    "window": window(4),
    "dilated": dilated(4, 4),
    "window + 1 global": window(4) | seen_by_all(0),
    "Big Bird": either(by_blocks(table, 4) for table in big_bird(length // 4).values()),
}
known = {}                                                  # name → per cent, after 0 to 6 layers
for name, mask in patterns.items():
    known[name] = [100 * reaches([mask] * L).float().mean().item() for L in range(7)]

# %% [markdown]
# As lines:

# %%
plots.lines(
    {name: (range(7), shares) for name, shares in known.items()}, marker="o", xlabel="layers",
    ylabel="positions known of (%)", title="One global token, and two layers reach everything",
    alt="Share of 256 positions known after 0 to 6 layers. " + "; ".join(
        f"{name}: {shares[2]:.0f} % after 2, {shares[6]:.0f} % after 6"
        for name, shares in known.items()) + ".",
)

# %% [markdown]
# From anywhere to a global token is one step, from there to anywhere another. Windows need about $n / r$ layers for
# the same. And the dilated pattern knows of no more positions than the window, only of others, further away.
#
# ### Do gradients agree?
#
# The matrix says what *could* arrive. In a network there are products, norms and a softmax on the way. So ask the
# network: put any numbers in, and see which inputs the output at one position has a gradient for. Four attention
# layers with residuals and random weights, one pattern in each:

# %%
torch.manual_seed(0)
length = 96
layers = nn.ModuleList(MultiHeadAttention(16, 2) for _ in range(4))


def felt(masks, position):                                  # which inputs this output depends on
    x = torch.randn(1, length, 16, requires_grad=True)      # (1, n, d_model)
    h = x
    for layer, mask in zip(layers, masks):
        h = h + layer(h, mask=mask.dense(length))           # (1, n, d_model)
    h[0, position].sum().backward()
    return x.grad[0].abs().sum(dim=-1) > 0                  # (n,)


# %% [markdown]
# Ask it for four stacks, at position 50 of 96:

# %%
stacks = {
    "window": [window(5)] * 4,
    "gaps 1, 2, 4, 8": [dilated(2, gap) for gap in (1, 2, 4, 8)],
    "global, 2 layers": [window(2) | seen_by_all(0)] * 2,
    "strided": [causal & window(8), causal & steps_of(8)],
}
for name, masks in stacks.items():
    prove_equal(felt(masks, 50), reaches(masks)[50], what=f"{name:17} gradients and powers")

# %% [markdown]
# They agree to the last position. (The strided stack has one kind of step in each of its two layers, as in the
# paper's first form, and position 50 knows of all 51 that it may.) What a position *may* know is settled by the
# pattern. Whether it learns to is another matter: section 7.

# %% [markdown]
# ## 5 A mask alone saves nothing
#
# Now run it. Here is attention with a mask, as in lesson 03. We count operations, and we note the largest tensor, as
# in lesson 30. The window lets 3 % of the pairs through. Guess: what share of the operations is left?

# %%
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode


class Largest(TorchDispatchMode):
    bytes = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        out = operator(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.bytes = max(self.bytes, out.nbytes)
        return out


# %% [markdown]
# With it, the two numbers of any computation:

# %%
def cost(compute, *inputs):                                 # operations, bytes of the largest tensor
    with torch.no_grad(), Largest() as seen, FlopCounterMode(display=False) as counter:
        compute(*inputs)
    return counter.get_total_flops(), seen.bytes


# %% [markdown]
# And attention, with all pairs and with the window:

# %%
def masked(q, k, v, allowed):                               # (n, d_k) each, (n, n)
    score = q @ k.T / q.shape[-1] ** 0.5                    # (query, key)
    return score.masked_fill(~allowed, float("-inf")).softmax(dim=-1) @ v  # (query, d_v)


torch.manual_seed(0)
n, d_k, mask = 2048, 64, window(32)
q, k, v = torch.randn(3, n, d_k)                            # (n, d_k) each
allowed = mask.dense(n)[0, 0]                               # (query, key)
for name, each in {"all pairs": torch.ones_like(allowed), "window": allowed}.items():
    operations, largest = cost(masked, q, k, v, each)
    print(f"{name:10} {each.float().mean():4.0%} of the pairs,", end=" ")
    print(f"{operations / 1e6:5,.0f} million operations, largest tensor {largest / 2**20:.0f} MiB")

# %% [markdown]
# All of them. Every score is computed, and then 97 of 100 are thrown away. A mask says what may be seen. It does not
# say what need not be computed: a matrix product knows no holes. (Many an implementation that calls itself sparse
# stops here.)
#
# ### 5.1 Gather what is alive
#
# Cut queries and keys into blocks. For each block of queries, find the blocks of keys of which at least one pair is
# allowed, the *live* ones. Gather them, and attend to them alone. Within them the mask is still needed, for the
# edges.

# %%
zero = torch.tensor(0)


def live_blocks(mask, n, size):
    pairs = mask.dense(n)[0, 0].view(n // size, size, n // size, size)  # True where allowed
    return pairs.any(dim=3).any(dim=1)                      # (query block, key block)


def block_sparse(q, k, v, mask, live, size):                # (n, d_k) each, (blocks, blocks)
    out, position = torch.empty_like(v), torch.arange(len(q)).view(-1, size)  # (blocks, size)
    for i, row in zip(position, live):                      # (size,), (blocks,)
        j = position[row].flatten()                         # (live · size,): the keys to gather
        allowed = mask.at(zero, zero, i[:, None], j)  # (size, live · size): batch, head, query, key
        out[i] = masked(q[i], k[j], v[j], allowed)          # (size, d_v)
    return out


# %% [markdown]
# (`mask.at(batch, head, query, key)` asks a rule about positions. Ours know no batches and heads: 0.)

# %%
live = live_blocks(mask, n, 64)
sparse = block_sparse(q, k, v, mask, live, 64)              # (n, d_v)
prove_equal(sparse, masked(q, k, v, allowed), what="Block by block and masked")
print(f"{live.sum()} of {live.numel()} blocks are alive, {live.float().mean():.1%}")
costs = {"masked": cost(masked, q, k, v, allowed),
         "block by block": cost(block_sparse, q, k, v, mask, live, 64)}
for name, (operations, largest) in costs.items():
    print(f"{name:15} {operations / 1e6:7,.1f} million operations,", end=" ")
    print(f"largest tensor {largest / 2**20:5.2f} MiB")

# %% [markdown]
# The same numbers from an eleventh of the operations, and the $n \times n$ tensor is gone. The largest one left is
# the output itself. The same function runs *any* mask; only `live` changes:

# %%
to_run = {
    "window": window(32),
    "dilated": dilated(32, 4),
    "window + 4 global": window(32) | seen_by_all(*range(4)),
    "Big Bird": either(by_blocks(table, 64) for table in big_bird(n // 64).values()),
    "strided, causal": causal & (window(45) | steps_of(45)),
    "all": everything,
}
whole = cost(masked, q, k, v, allowed)[0]
for name, each in to_run.items():
    live = live_blocks(each, n, 64)
    sparse, whole_square = block_sparse(q, k, v, each, live, 64), masked(q, k, v, each.dense(n)[0, 0])
    prove_equal(sparse, whole_square, what=f"{name:18}")
    share = cost(block_sparse, q, k, v, each, live, 64)[0] / whole
    print(f"    pairs allowed {each.pairs(n) / n**2:6.1%}, operations {share:6.1%}")

# %% [markdown]
# Read the two columns. Big Bird, made of blocks, pays for what it uses. A dilated window has a key in every block
# that it crosses, and pays for all of them. Strided attention has a live pair in *every* block of its triangle: half
# of the square, for 3 % of the pairs. **What counts is not how many pairs are allowed, but how many blocks they
# touch.** (Longformer has a kernel of its own for gaps; its version in blocks, the one used for the pretrained
# models, does without them. For a stride, Child et al. sort the positions by their place in the stretch first: then
# the keys of a query are neighbours. The exercise does that for a dilated window.)

# %% [markdown]
# ### 5.2 What size?
#
# Small blocks follow the edge of a pattern more closely. Large blocks make fewer, larger products. The clock
# (processor time, one thread) decides:


# %%
def milliseconds(compute, *inputs, repeats=3):
    times = []
    for _ in range(repeats):
        start = time.process_time()
        with torch.no_grad():
            compute(*inputs)
        times.append(1000 * (time.process_time() - start))
    return min(times)


# %% [markdown]
# Blocks of 8 to 256:

# %% tags=["nbval-ignore-output"]
print(f"all pairs, masked: {milliseconds(masked, q, k, v, allowed):.1f} ms")
for size in (8, 16, 32, 64, 128, 256):
    live = live_blocks(mask, n, size)
    wasted = live.sum().item() * size**2 / mask.pairs(n)
    print(f"blocks of {size:3}: {wasted:.1f} pairs computed per pair allowed, "
          f"{milliseconds(block_sparse, q, k, v, mask, live, size):5.1f} ms")

# %% [markdown]
# Blocks of 8 compute the fewest pairs and take the longest: 256 small steps, each with its own overhead. Between 32 and
# 64 it is best. (The library's default is 64.)
#
# ### 5.3 The clock against the length

# %% tags=["nbval-ignore-output"]
lengths, taken = [256, 512, 1024, 2048, 4096], {"all pairs, masked": [], "block by block": []}
for n in lengths:
    q, k, v = torch.randn(3, n, d_k)                        # (n, d_k) each
    allowed, live = mask.dense(n)[0, 0], live_blocks(mask, n, 64)
    taken["all pairs, masked"].append(milliseconds(masked, q, k, v, allowed))
    taken["block by block"].append(milliseconds(block_sparse, q, k, v, mask, live, 64))
plots.lines(
    {name: (lengths, times) for name, times in taken.items()}, xscale="log", yscale="log", marker="o",
    xlabel="length n", ylabel="milliseconds", title="The square, and a straight line of slope 1",
    alt="Time against length, logarithmic. " + "; ".join(
        f"{name}: {times[0]:.1f} ms at 256, {times[-1]:.0f} ms at 4,096"
        for name, times in taken.items()),
)

# %% [markdown]
# What the last doubling of the length does to the time:

# %% tags=["nbval-ignore-output"]
for name, times in taken.items():
    print(f"{name:18} {times[-1] / times[-2]:.1f} times the time")
expect("Times as fast at 4,096", taken["all pairs, masked"][-1] / taken["block by block"][-1], 4, 60)

# %% [markdown]
# The loop's time doubles with the length, as it should. The square's should grow fourfold, and at the last step it
# grew sevenfold on our machine: the scores take 64 MiB by now, and no longer fit into the processor's caches (lesson
# 03). At 256 positions the loop still loses: four small steps cost more than one product.
#
# Two things are not yet right about our loop. `live_blocks` asks about all pairs, so the *plan* is quadratic, if only
# once per mask and in single bytes. For a window one needs no pairs at all: the block of queries from $a$ to $b$ sees
# the keys from $a - r$ to $b + r$, and that is arithmetic. And it runs head by head, text by text. The library's
# version (section 9) does neither.

# %% [markdown]
# ## 6 What are random pairs good for?
#
# At first sight, nothing: why should a word look at a word that was drawn by lot? The answer is an old one. In a
# village where everybody knows only neighbours, news takes a long time from end to end. Let a few people have one
# friend in a random place, and suddenly everybody is a few steps from everybody: a *small world* (Watts and Strogatz
# 1998). Count steps between positions:


# %%
def mean_steps(allowed):                                    # (n, n)
    n = len(allowed)
    known, total, step = torch.eye(n), 0.0, 0
    while known.mean() < 1:
        step, before = step + 1, known.sum()
        known = (allowed.float() @ known > 0).float()       # (n, n): who is reached in this many steps
        total += step * (known.sum() - before).item()
    return total / (n * n - n)


def with_random(allowed, count, seed=0):  # each position sees so many others, drawn by lot
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(allowed.shape, generator=generator)
    drawn = drawn.masked_fill(allowed, 2)                   # (n, n): 2 is never among the least
    return allowed.scatter(1, drawn.topk(count, largest=False).indices, True)  # (n, n)


# %% [markdown]
# On 256 positions with two neighbours on either side:

# %%
near = window(2).dense(256)[0, 0]                           # (n, n)
for count in (0, 1, 2, 4):
    wider = mean_steps(window(2 + count // 2).dense(256)[0, 0])
    print(f"{count} random keys more: {mean_steps(with_random(near, count)):5.1f} steps on average; "
          + (f"{count} near ones more: {wider:5.1f}" if count % 2 == 0 else ""))
print(f"one global token: {mean_steps(near | seen_by_all(0).dense(256)[0, 0]):.1f}")

# %% [markdown]
# 43 steps, and with one random key each it is 4.4. Two more *neighbours* on top of four bring 43 down to 29; two
# random ones, to below 4. And how does it grow?

# %%
lengths = [32, 64, 128, 256, 512]
steps = {"window": [], "window + 1 random": [], "window + 1 global": []}
for n in lengths:
    near = window(2).dense(n)[0, 0]                         # (n, n)
    steps["window"].append(mean_steps(near))
    steps["window + 1 random"].append(mean_steps(with_random(near, 1)))
    steps["window + 1 global"].append(mean_steps(near | seen_by_all(0).dense(n)[0, 0]))
plots.lines(
    {name: (lengths, values) for name, values in steps.items()}, xscale="log", yscale="log", marker="o",
    title="Random pairs: each doubling adds less than one step", xlabel="length n",
    ylabel="steps on average",
    alt="Average steps between two positions, 32 to 512, logarithmic axes. " + "; ".join(
        f"{name}: {values[0]:.1f} to {values[-1]:.1f}" for name, values in steps.items()),
)

# %% [markdown]
# Windows alone: linear in $n$. With random keys: logarithmic. A global token beats both, at two steps for any length;
# what it is worth, the next section says. Big Bird has all three kinds, and its authors prove that such a pattern,
# thanks to the global tokens, can still compute everything that full attention can: it is a universal approximator,
# and Turing complete. Read the small print, though: *given enough layers*. Their section 3.4 names a task that full
# attention does in one layer: for each of $n$ vectors, find the one that is furthest from it. Any sparse pattern with
# $\tilde O(n)$ edges (the tilde drops logarithms) needs nearly $n$ layers for it, under an assumption that is usual
# in the theory of complexity. The task is of the kind "each position looks for one particular other".

# %% [markdown]
# ## 7 What is lost?
#
# A pattern says what can be known. To see what is *learned*, we train readers, on two tasks that differ in one thing.
# A text has 64 lines. A line may say *who* holds *which thing* (sixteen people, sixty-four things), and it may ask
# who holds some other thing.
#
# - **One fact for all.** A single line names somebody, the others are empty. Every line must know who was named.
# - **Each its own question.** Every line holds a fact, and every line asks about one line's thing, nearly always
#   another's.
#
# In both, distances up to 63 occur.

# %% tags=["recorded"]
n, d_model, people = 64, 64, 16
NOBODY, NOTHING = people, n                                 # two more ids


def one_fact(size):                                         # a single line says who; everybody asks
    at, king = torch.randint(n, (size, 1)), torch.randint(people, (size, 1))  # (size, 1) each
    who = torch.full((size, n), NOBODY).scatter(1, at, king)  # (size, n)
    nothing = torch.full((size, n), NOTHING)
    return who, nothing, nothing, king.expand(size, n), (torch.arange(n) - at).abs()  # (size, n) each


# %% [markdown]
# In the second, `asking` says how many lines have a question, from the end on. Where none is asked the right answer
# is −100, which torch's cross-entropy does not count:

# %% tags=["recorded"]
def own_question(size, asking=n):                           # n facts; the last so many lines ask
    who, thing = torch.randint(people, (size, n)), torch.rand(size, n).argsort(dim=-1)  # (size, n)
    about = torch.rand(size, n).argsort(dim=-1)             # (size, n): the line that each asks about
    asks = torch.arange(n) >= n - asking                    # (n,)
    ask = torch.where(asks, thing.gather(1, about), NOTHING)  # (size, n)
    right = torch.where(asks, who.gather(1, about), -100)   # (size, n): −100 does not count
    return who, thing, ask, right, (torch.arange(n) - about).abs()


# %% [markdown]
# The reader: two pre-norm blocks (lesson 06) with four heads, and no positions at all. What it needs stands in the
# lines themselves, and where a line may look is up to the mask.

# %% tags=["recorded"]
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.network = MultiHeadAttention(d_model, 4), FeedForward(d_model, 2 * d_model)
        self.norm_1, self.norm_2 = LayerNorm(d_model), LayerNorm(d_model)

    def forward(self, x, allowed):                          # (batch, n, d_model), (1, 1, n, n)
        x = x + self.attention(self.norm_1(x), mask=allowed)  # (batch, n, d_model)
        return x + self.network(self.norm_2(x))             # (batch, n, d_model)


# %% [markdown]
# A line is the sum of its vectors; for the thing that it asks for, one more matrix:

# %% tags=["recorded"]
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.who, self.thing = nn.Embedding(people + 1, d_model), nn.Embedding(n + 1, d_model)
        self.asks = nn.Linear(d_model, d_model, bias=False)  # a thing asked for
        self.blocks, self.output = nn.ModuleList([Block(), Block()]), nn.Linear(d_model, people)

    def forward(self, who, thing, ask, allowed):            # (batch, n) each
        x = self.who(who) + self.thing(thing) + self.asks(self.thing(ask))  # (batch, n, d_model)
        for block in self.blocks:
            x = block(x, allowed)                           # (batch, n, d_model)
        return self.output(x)                               # (batch, n, people)


# %% [markdown]
# And the training. All else being equal, only the mask differs:

# %% tags=["recorded"]
def train(draw, mask, steps, seed=0, lr=1e-2, what="training"):
    torch.manual_seed(seed)
    model, allowed = Reader(), mask.dense(n)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.98), fused=True)
    for step in progress(range(steps), what):
        optimizer.param_groups[0]["lr"] = lr * min(1, (step + 1) / 30) * (1 - 0.9 * step / steps)
        who, thing, ask, right, _ = draw(32)                # (batch, n) each
        loss = F.cross_entropy(model(who, thing, ask, allowed).flatten(0, 1), right.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


# %% [markdown]
# Four patterns. For the small text a window of 8 on either side; Big Bird in blocks of four lines. `by_distance`
# measures a reader on new texts, for distances 0 to 3, 4 to 7, and so on:

# %% tags=["recorded"]
PATTERNS = {
    "window": window(8),
    "window + 1 global": window(8) | seen_by_all(0),
    "Big Bird": either(by_blocks(table, 4) for table in big_bird(n // 4).values()),
    "all pairs": everything,
}


@torch.no_grad()
def by_distance(model, draw, mask, width=4):  # share of right answers, per group of distances
    torch.manual_seed(99)
    who, thing, ask, right, far = draw(300)
    correct = (model(who, thing, ask, mask.dense(n)).argmax(dim=-1) == right).float()  # (size, n)
    groups = [(right != -100) & (far // width == group) for group in range(n // width)]
    return [correct[group].mean().item() for group in groups]


# %% [markdown]
# What the four compute, and what they reach:

# %%
length = n
for name, mask in PATTERNS.items():
    two = reaches([mask] * 2).float().mean()
    print(f"{name:18} {mask.pairs(n) / n**2:4.0%} of the pairs; two layers reach {two:4.0%}")

# %% [markdown]
# Big Bird computes half of all pairs, since the text has sixteen blocks only. It is meant for longer ones, and has an
# advantage here.
#
# Guess before you go on. In which of the two tasks will the window with its one global token do as well as all pairs?
# And how far will the plain window get, whose two layers reach 16 lines?
#
# One run of each task, here and now:

# %% tags=["nbval-ignore-output"]
mask = PATTERNS["window + 1 global"]
for task, steps, low, high in ((one_fact, 100, 0.9, 1), (own_question, 150, 0.02, 0.2)):
    reader = train(task, mask, steps, what=f"{task.__name__}, window + 1 global")
    right = by_distance(reader, task, mask)
    shares = ", ".join(f"{4 * group}–{4 * group + 3}: {right[group]:.0%}" for group in (0, 3, 7))
    print(f"{task.__name__}, right at distances {shares}")
    expect("Right answers at distances 28 to 31", right[7], low, high)

# %% [markdown]
# One run is an anecdote. `data/far_away.py` has trained all of them with three seeds each, by the cells of this
# lesson:

# %%
from txlib.paths import DATA

recorded = json.loads((DATA / "far_away.json").read_text())


def mean_right(task, name):                                 # of the seeds, in percent
    runs = torch.tensor(list(recorded[task][name].values()))  # (seed, group of distances)
    return (100 * runs.mean(dim=0)).tolist()


# %% [markdown]
# Drawn, a point for every four distances:

# %%
def figure(task, title):
    middles = [4 * group + 1.5 for group in range(n // 4)]
    series = {name: mean_right(task, name) for name in PATTERNS}
    alt = "Right answers against distance, mean of three seeds. " + "; ".join(
        f"{name}: {right[0]:.0f} % at 0–3, {right[7]:.0f} % at 28–31" for name, right in series.items())
    series = {name: (middles, right) for name, right in series.items()}
    return plots.lines(series, title=title, alt=alt, marker="o", xlabel="distance of the fact",
                       ylabel="right answers (%)")


# %% [markdown]
# The first task, mean of three seeds:

# %%
figure("one fact", "One fact for all: a single global token is enough")

# %% [markdown]
# Look at the plain window first. It is right up to a distance of 16 and guesses beyond; one of sixteen people is 6 %.
# Its two layers have learned to hand the news on, and they hand it on exactly as far as section 4 says. (The point
# between, distances 16 to 19, holds 16 and three that are out of reach.) With one global token nothing is lost at any
# distance: it hears the fact in the first layer, and everybody hears it from there in the second. Big Bird has
# several such tokens.

# %%
figure("own question", "Each its own question: what is not seen directly is lost")

# %% [markdown]
# The same patterns, the same two layers, the same reach. Now the plain window is right up to a distance of 8, what
# *one* layer sees, and nothing was handed on. The global token, through which everything could pass, has brought next
# to nothing, except at the largest distances. Big Bird answers between a third and a half of the questions at
# distances from 8 to 47, and all of them from 56 on. Which ones? Those whose fact it sees directly:

# %%
far = (torch.arange(n)[:, None] - torch.arange(n)).abs() // 4  # (query, key): group of distances
for name in ("window", "window + 1 global", "Big Bird"):
    allowed = PATTERNS[name].dense(n)[0, 0].float()         # (query, key)
    seen = torch.tensor([allowed[far == group].mean() for group in range(n // 4)])  # (groups,)
    guessed = seen + (1 - seen) / people                    # (groups,)
    right = torch.tensor(mean_right("own question", name)) / 100  # (groups,)
    print(f"{name:18} at distances 28–31 {seen[7]:4.0%} seen directly,", end=" ")
    print(f"so {guessed[7]:4.0%} expected, {right[7]:4.0%} right;", end=" ")
    print(f"largest difference {(guessed - right).abs().max():.0%}")

# %% [markdown]
# Take the share of pairs that a pattern allows at a distance, add one in sixteen of the rest for lucky guesses, and
# you have the figure, to within three points. You also have its rise on the right: where the fact is that far away,
# fact and question stand at opposite ends of the text, and at the ends stand the global lines. **In 150 batches no
# relay was learned.** Think of what it would take. A line in between would have to pass on all facts that it sees, in
# one vector, without knowing which of them will be asked for; for the global token that is 64 facts. It is lesson
# 02's single context vector again. (Is it room that is lacking, or training? That is the exercise's last task.)
#
# This is the small print of section 6, seen. And it says what to do: **make those global who ask.** Suppose only the
# last eight lines have a question. (Each text now has eight answers to learn from instead of 64; so we train for 250
# batches, not 150.) Let those eight see everything:

# %%
for name, words in {"all pairs": "all pairs", "askers": "window + the askers"}.items():
    runs = [sum(run) / len(run) for run in recorded["eight ask"][name].values()]
    print(f"{words:20} right at all distances, each seed:", "  ".join(f"{each:.1%}" for each in runs))
for r, g, size in ((8, 8, n), (256, 8, 4096)):
    share = (2 * g * size - g * g + in_window(size - g, r)) / size**2
    print(f"n = {size:5,}, radius {r:3}, {g} that ask: {share:4.0%} of the pairs")

# %% [markdown]
# As good as all pairs, for eight rows and columns more than the window. That is what Longformer does with a question
# about a document: the question's tokens are global. Which tokens are to be global is no detail. It is the knowledge
# about your task that the pattern needs.

# %% [markdown]
# ## 8 Global tokens with matrices of their own
#
# A global token gathers a whole text, the others look around. That is not the same job, so Longformer gives it a
# second set of projections. A token that is *not* global uses $W_Q, W_K, W_V$, also where it looks at a global one. A
# global token's row comes from $W_Q^g, W_K^g, W_V^g$, for its query and for all keys and values that it meets:


# %%
def longformer_layer(x, local, own, pattern, chosen):       # (n, d_model); (3, d_model, d_k)
    q, k, v = (x @ W for W in local)                        # (n, d_k) each
    out = masked(q, k, v, pattern)                          # (n, d_k)
    q, k, v = (x @ W for W in own)                          # (n, d_k) each
    all_pairs = torch.ones(len(chosen), len(x), dtype=torch.bool)  # (global, n)
    out[chosen] = masked(q[chosen], k, v, all_pairs)        # (global, d_k): their rows are replaced
    return out


# %% [markdown]
# If both sets are equal, nothing may change:

# %%
torch.manual_seed(0)
chosen = [0, 20]
x, local, own = torch.randn(48, 32), torch.randn(3, 32, 16) / 6, torch.randn(3, 32, 16) / 6
pattern = (window(4) | seen_by_all(*chosen)).dense(48)[0, 0]  # (n, n)
one_set = longformer_layer(x, local, local, pattern, chosen)
prove_equal(one_set, masked(*(x @ W for W in local), pattern), what="Twice the same set, and one set")
two_sets = longformer_layer(x, local, own, pattern, chosen)
changed = (two_sets - one_set).abs().amax(dim=1).nonzero()[:, 0]
print("rows that another second set changes:", changed.tolist())

# %% [markdown]
# They begin as copies of the first set, so that a pretrained model can be turned into a Longformer without breaking
# it. What they cost: $3(d^2 + d)$ more parameters per layer, with RoBERTa's 768 dimensions and 12 layers 21 million.
#
# ## 9 Open the library
#
# All patterns of this lesson are in `txlib.attention`, and they are the same:

# %%
from txlib import attention as library

twins = {
    "window": (window(3), library.sliding_window(3)),
    "dilated": (dilated(3, 2), library.dilated(3, 2)),
    "strided": (either(strided.values()), library.strided(6)),
    "fixed": (either(fixed.values()), library.sparse_fixed(6, 1)),
    "Big Bird": (either(by_blocks(t, 4) for t in big_bird(12, random=0).values()),
                 library.bigbird(4, random=0)),
}

# %% [markdown]
# Each by hand, and as the library has it:

# %%
for name, (ours, theirs) in twins.items():
    tables = ours.dense(48).float(), theirs.dense(48).float()  # (1, 1, n, n) each
    prove_equal(*tables, what=f"{name:8} by hand and the library's")
ours = either(by_blocks(table, 4) for table in big_bird(12).values()).dense(48).sum(dim=-1)
theirs = library.bigbird(4, random=2).dense(48).sum(dim=-1)
prove_equal(ours, theirs, what="Big Bird with random blocks, keys per query,")

# %% [markdown]
# (Random blocks are drawn in another way there, the same on every machine; so we compare how many keys each query
# sees. With no arguments, `bigbird()` is the paper's base model.)
#
# Join the library's rules yourself, beginning with `strided(6)`. Keep radius and stride alike: which has the fewest
# pairs at 1,024 positions? Not 32, though $\sqrt n$ was the best for the last query. What stands under the root for all
# queries together? (If you see no controls, run the cell.)

# %%
explore.masks(library.strided(6), length=24)

# %% [markdown]
# <details><summary>The answer</summary>
#
# A query has $n/2$ keys before it on average. So $l = \sqrt{n/2} \approx 22.6$: the fewest pairs, 45,585, are at 23.
# </details>
#
# What runs them is `BlockSparseAttention`. It does what our loop does, for whole batches and all heads, forward and
# backward, without keeping any weights. On a GPU it leaves the live blocks to PyTorch's FlexAttention.

# %%
show_source(library.BlockSparseAttention.forward, library.BlockSparseAttention.by_blocks)

# %% [markdown]
# Same numbers, same gradients:

# %%
torch.manual_seed(0)
mechanism, n = library.BlockSparseAttention(block_size=32), 256
q, k, v = torch.randn(3, 1, 2, n, 16, requires_grad=True)   # (batch, heads, n, d_k) each
big = library.bigbird(16, random=2) & library.causal()
out = mechanism(q, k, v, big)                               # (batch, heads, n, d_k)
allowed = big.dense(n)[0, 0]                                # (n, n)
ours = torch.stack([masked(q[0, h], k[0, h], v[0, h], allowed) for h in range(2)])[None]
prove_equal(out, ours, what="Values, block by block and masked")
weight = torch.randn_like(out)
one, two = (torch.autograd.grad((each * weight).sum(), k, retain_graph=True)[0] for each in (out, ours))
prove_equal(one, two, what="Gradients of the keys")

# %% [markdown]
# And its plan asks about no pairs. Blocks of rules that the library knows are found by arithmetic, as in the
# exercise. A million positions:

# %% tags=["nbval-ignore-output"]
start = time.process_time()
plan = library.bigbird().blocks(1_000_000, size=64)
print(f"{plan.live:,} of {15_625**2:,} blocks alive, found in {time.process_time() - start:.2f} s")

# %% [markdown]
# Longformer's layer, with the two sets of matrices, takes a marker per token, as in Hugging Face's models
# (`global_attention_mask`):

# %%
layer = library.LongformerAttention(32, 1, mask=library.sliding_window(4), bias=False)
marked = torch.zeros(1, 48, dtype=torch.long)               # (batch, n)
marked[0, chosen] = 1
with torch.no_grad():
    theirs = layer(x[None], global_attention_mask=marked)[0]  # (n, d_model)
    sets = [[getattr(layer, name + end).weight.T for name in ("query", "key", "value")]
            for end in ("", "_global")]
    ours = longformer_layer(x, *sets, pattern, chosen)      # (n, d_model), one head
    prove_equal(layer.output(ours), theirs, what="Longformer's layer by hand and the library's")

# %% [markdown]
# `load_pretrained` reads whole checkpoints of both models, in Hugging Face's format.
#
# ## 10 On a real text
#
# ### 10.1 The whole play at once
#
# Back to *Twelfth Night*, 110,828 characters, 12 billion pairs. Two heads of width 32, a window of 64 on either side
# and one global character in front; random vectors, since it is the cost that we want to see. Guess how long it
# takes.

# %% tags=["nbval-ignore-output"]
n = len(play)
q, k, v = torch.randn(3, 1, 2, n, 32)                       # (batch, heads, n, d_k) each
mechanism = library.BlockSparseAttention()
whole_play = library.sliding_window(64) | library.global_tokens([0])
start = time.process_time()
_, largest = cost(mechanism, q, k, v, whole_play)
seconds = time.process_time() - start
print(f"{whole_play.pairs(n):,} pairs of {n * n:,}, in {seconds:.1f} s")
print(f"largest tensor {largest / 1e6:.0f} MB; all scores would be {2 * 4 * n * n / 1e9:.0f} GB")
expect("Seconds", seconds, 0, 30)

# %% [markdown]
# ### 10.2 A window on a model that knew none
#
# The course's BERT (lesson 14) was trained with all pairs, on texts of up to 256 tokens. Put a window on it, change
# nothing else: how much worse does it fill gaps in a play that it has not read? A share of 15 % of the tokens is
# masked.

# %%
from txlib.models.pretrained import load_pretrained
from txlib.text import load_tokenizer

bert = load_pretrained(shipped("bert-tiny"), dtype=torch.float32).eval()
tokenizer = load_tokenizer(shipped("bert-tiny"))
CLS, SEP, MASK = (tokenizer.special_tokens[name] for name in ("[CLS]", "[SEP]", "[MASK]"))
lines = " " + " ".join(play.split())                        # it has never seen a line break
pieces = torch.tensor(tokenizer.encode(lines, special_tokens=False)[: 16 * 254]).view(16, 254)
ids = F.pad(F.pad(pieces, (1, 0), value=CLS), (0, 1), value=SEP)  # (texts, 256)
torch.manual_seed(0)
hidden = (torch.rand(ids.shape) < 0.15) & (ids != CLS) & (ids != SEP)  # (texts, 256)
asked = torch.where(hidden, MASK, ids)                      # (texts, 256)


# %% [markdown]
# The loss at the gaps, with windows of several widths; and with `[CLS]` and `[SEP]`, first and last, as global
# tokens:

# %%
@torch.no_grad()
def gap_loss(mask):
    logits = bert(asked, mask=mask).prediction_logits       # (texts, 256, vocab)
    return F.cross_entropy(logits[hidden], ids[hidden]).item()


for radius in (2, 4, 8, 16, 32, 64, 128, 256):
    alone = library.sliding_window(radius)
    ends = library.global_tokens([0, 255])
    print(f"radius {radius:3}: loss {gap_loss(alone):.2f} nats; with global ends", end=" ")
    print(f"{gap_loss(alone | ends):.2f}")

# %% [markdown]
# Most of what it uses lies within eight tokens on either side: 5.2 nats, where all 256 give 4.9. And it uses the rest,
# too: up to a radius of 64 each doubling helps, on the whole less and less; from there on it is level. Two global
# tokens help most where the window is narrow, though nobody has trained them for it: half a nat at radius 2. (Do they
# carry news, or are they a place for attention to rest on? These numbers don't say; the next section knows of the
# second.)
#
# ## 11 What became of it
#
# The Sparse Transformer wrote raw bytes of images, text and music, up to a million of them. **GPT-3** took its idea
# along: layers with all pairs and "locally banded sparse" ones in turn (lesson 10). **Longformer** (window 512, 4,096
# tokens) and **Big Bird** became the encoders for long documents: questions about several pages, summaries, genomes.
#
# Then fused kernels made the full square cheap in memory (lesson 34), and for some years most large models computed
# all pairs again. What survived is the simplest pattern. **Mistral 7B** (Jiang et al. 2023) has a window of 4,096 in
# every layer. **Gemma 2** takes windows and all pairs in turn, **Gemma 3** (2025) five layers of windows of 1,024 to
# one with all pairs: the cache of a window does not grow.
#
# **StreamingLLM** (Xiao et al. 2024) found that a trained model with a window falls apart as soon as the first few
# tokens leave it, and is well again when those few stay visible: *attention sinks*, global tokens that nobody had
# planned. And patterns can be learned: **Native Sparse Attention** (Yuan et al. 2025) scores whole blocks cheaply,
# and computes the best ones. That is an answer to our section 7: to see the right one among many directly, somebody
# must first find out which one it is.

# %% [markdown]
# ## 12 Quiz
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
# **3. Somebody computes scores for all pairs, sets those outside a window to −∞, and calls it linear attention. What
# has become smaller?**
#
# <details><summary>A. The operations</summary>
#
# Every score has been computed.
# </details>
# <details><summary>B. The memory</summary>
#
# The $n \times n$ tensor is there, and a mask of the same size beside it.
# </details>
# <details><summary>C. Neither</summary>
#
# Right. What shrinks is only what may be seen.
# </details>
#
# **4. Strided attention allows 3 % of the pairs of a text of 2,048. In blocks of 64 it costs half of the square.
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
# <details><summary>A. The first ten of the contract, for they have seen everything after one layer</summary>
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
# ## 13 Summary
#
# - A window has $n(2r+1) - r(r+1)$ pairs, $g$ global tokens add $g$ rows and columns, Big Bird has $g + w + r$ blocks
#   per block of queries, a stride of $\sqrt n$ about $n \sqrt n$ pairs.
# - What a stack can know are the non-zero entries of a product of matrices. Windows: $Lr$ to either side. Equal gaps
#   in all layers: texts that never meet. One global token: everything in two layers.
# - A mask alone saves nothing. What saves is to gather live blocks, and the cost is the number of *blocks* that a
#   pattern touches.
# - Random pairs turn a path of about $n$ steps into one of about $\log n$.
# - One fact for all goes through a global token without loss. Sixty-four facts, each with its own question, did not:
#   in 150 batches no relay was learned, and what was not seen directly was guessed. Make those global who ask.
#
# **Read** Beltagy et al. 2020, *Longformer*, [arXiv:2004.05150](https://arxiv.org/abs/2004.05150), section 3. Zaheer
# et al. 2020, *Big Bird*, [arXiv:2007.14062](https://arxiv.org/abs/2007.14062), sections 2 and 3.4. Child et al.
# 2019, *Generating Long Sequences with Sparse Transformers*, [arXiv:1904.10509](https://arxiv.org/abs/1904.10509),
# section 4. Watts and Strogatz 1998, *Collective dynamics of 'small-world' networks*, Nature 393. Xiao et al. 2024,
# *Efficient Streaming Language Models with Attention Sinks*, [arXiv:2309.17453](https://arxiv.org/abs/2309.17453),
# section 3. Jiang et al. 2023, *Mistral 7B*, [arXiv:2310.06825](https://arxiv.org/abs/2310.06825), section 2. Yuan et
# al. 2025, *Native Sparse Attention*, [arXiv:2502.11089](https://arxiv.org/abs/2502.11089), section 3.
#
# **Do** the exercise [31_sparse](../exercises/exercise_31_sparse.ipynb). Then go on to
# [32 Low rank, kernels, compression](32_low_rank.ipynb).
