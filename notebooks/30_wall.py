# %% [markdown] lesson={"part": "IV Efficiency", "builds": "what a block costs, counted and measured; the table of 2017 row by row; why contexts ended at 512"}
# # 30 · The quadratic wall
#
# **After this lesson you will be able to**
#
# - say what happens to a cost when the text gets twice as long, and read the exponent off a measured line;
# - count what a block costs, and say from which length on attention's scores cost more than everything else;
# - say how much memory the scores take, what a fused kernel changes about that, and what it cannot change;
# - check the famous table of attention, recurrent and convolutional layers row by row, on real layers;
# - say why contexts ended at 512 and 1,024, what is lost when you simply cut a text off, and which ways lead around
#   the wall.
#
# **You need** lessons 02, 04, 06, 10 and 13. **It takes** about 65 minutes to read and try; all cells together run in
# a minute on a laptop. Nothing is trained here.

# %% [markdown]
# ## 1 The problem: read a whole play
#
# Attention works (Part I), and it writes text (Part II). What is missing is length. Take *Hamlet*, and GPT-2's
# tokenizer from lesson 01:

# %%
import time

import torch
import torch.nn.functional as F
from torch import nn

from txlib.attention import DenseConfig
from txcourse import figures
from txcourse.lesson import expect, keep_memory, predict, predicted, prove_equal, show_source
from txlib.data.shakespeare import plays
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig
from txlib.paths import DATA
from txlib.text import BytePairEncoder

play = plays()["hamlet"]
files = DATA / "gpt2-bpe/encoder.json", DATA / "gpt2-bpe/vocab.bpe"
gpt2 = BytePairEncoder.from_gpt2(*files)
ids = torch.tensor(gpt2.encode(play))  # (n,)
print(f"{len(play):,} characters, {len(ids):,} tokens; GPT-2 reads 1,024 at a time")

# %% [markdown]
# Why not all of them? Let us try, with a small GPT: two blocks of width 256, four heads. Its weights are random, since
# time and memory do not depend on what it has learned. `fused=False` says that attention writes all of its scores out,
# as the equation does. (Section 4 shows the other way.)
#
# We ask for the next token after the first $n$, and double $n$ again and again. We stop where the next length might
# take more than five seconds, or the scores of one block a gigabyte. The time is
# the processor's, on one thread, so that other programs hardly count. `keep_memory` lets the process keep the memory
# that it has been given, so that the clock does not count the operating system, which hands it over page by page.

# %%
torch.set_num_threads(1)
keep_memory()
torch.manual_seed(0)
heads, d = 4, 256
dense = DenseConfig(fused=False)
block = BlockConfig.of_sizes(d, heads, 4 * d, position="rotary", mechanism=dense)
model = GPT(GPTConfig(len(gpt2), block, layers=2, max_length=len(ids))).eval()


@torch.no_grad()
def seconds(n):
    start = time.process_time()
    model.logits(model.decode(ids[None, :n])[:, -1:])  # (1, 1, vocab)
    return time.process_time() - start


# %% [markdown]
# Of two runs at each length, the faster counts.

# %% tags=["nbval-ignore-output"]
seconds(256)  # the first call is slower
taken, n = {}, 256
while 6 * taken.get(n // 2, 0) < 5 and 4 * heads * n**2 < 1e9:
    taken[n] = min(seconds(n) for _ in range(2))
    print(f"{n:6,} tokens: {taken[n]:6.3f} s;",
          f"scores of one block {4 * heads * n**2 / 1e6:6.1f} MB")
    n *= 2

# %% [markdown]
# Before you go on: at the last doubling, by how much did the time grow? And how long would the play take, if each
# further doubling costs four times as much?

# %% tags=["nbval-ignore-output"]
last, length = max(taken), len(ids)
print(f"the last doubling took {taken[last] / taken[last // 2]:.1f} times as long")
print(f"the whole play: {taken[last] * (length / last) ** 2:,.0f} s for one token, "
      f"and {4 * heads * length**2 / 1e9:.1f} GB for the scores of one block")

# %% [markdown]
# And that is a model of two narrow blocks; GPT-2 small has twelve, with twelve heads each. This is the **quadratic
# wall**. Where exactly is it, and what is it made of?

# %% [markdown]
# ## 2 How costs grow: a primer
#
# Here are four things that one can do with a list of $n$ words. We count *steps*, not seconds: a step is one look at
# one word, or one comparison of two.
#
# - **look up** the first word (one step by definition);
# - **search** for a word that is not there;
# - **sort** them;
# - **compare** each word with each word before it.

# %%
from functools import cmp_to_key


def look_up(words):
    return 1


def search(words):
    return len([word == "penguin" for word in words])  # not in Hamlet: it looks at all


def sort(words):
    steps = []

    def in_order(a, b):
        steps.append((a, b))
        return (a > b) - (a < b)

    sorted(words, key=cmp_to_key(in_order))
    return len(steps)


def compare(words):
    return len([words[i] == words[j] for i in range(len(words)) for j in range(i)])

# %% [markdown]
# **The experiment is always the same: double $n$, and see what the cost is multiplied by.** Decide first, for each of
# the four.

# %%
words = play.split()
for task in (look_up, search, sort, compare):
    counts = [task(words[:n]) for n in (500, 1000, 2000)]
    few, more, most = counts
    print(f"{task.__name__:8} {few:9,} {more:9,} {most:9,}",
          f"  doublings: × {more / few:.2f}, × {most / more:.2f}")

# %% [markdown]
# | | Doubling $n$ multiplies it by | Written | For example |
# | --- | --- | --- | --- |
# | constant | 1 | $O(1)$ | to look up a word's vector |
# | linear | 2 | $O(n)$ | to read a text once |
# | $n \log n$ | a little more than 2 | $O(n \log n)$ | to sort |
# | quadratic | 4 | $O(n^2)$ | to compare every pair |
# | exponential | itself: the cost is squared | $O(2^n)$ | to try every selection of $n$ words: each one in or out |
#
# $O(\cdot)$ keeps only how a cost *grows*. It drops what is added and does not grow as fast, and it drops constant
# factors: `compare` takes $n(n-1)/2$ steps, and is $O(n^2)$. So $O$ tells you which of two costs is higher *in the
# end*. Where that end begins is a question about constants, and this lesson will ask it three times.
#
# If a cost is $c\,n^p$, then its logarithm is $\log c + p \log n$. On two logarithmic axes that is a straight line, and
# its slope is the exponent $p$. One doubling is enough to read it: from 3 to 12 seconds is a factor of 4, and
# $\log_2 4 = 2$.
#
# $$p = \log_2 \frac{\text{cost}(2n)}{\text{cost}(n)}$$

# %%
from math import log2


def exponent(shorter, longer):  # the costs at n and at 2n
    return log2(longer / shorter)


sizes = [2**k for k in range(3, 12)]
counts = {task.__name__: [task(words[:n]) for n in sizes]
          for task in (look_up, search, sort, compare)}
print({name: round(exponent(*costs[-2:]), 2) for name, costs in counts.items()})

# %% [markdown]
# The same numbers, on two logarithmic axes:

# %% jupyter={"source_hidden": true}
figures.exponents(sizes, counts)

# %% [markdown]
# ## 3 Count a block
#
# ### 3.1 A strip and a square
#
# We can read exponents; now read attention's. It is `compare`: each token with each. What does it hold in memory? The
# tokens are a strip, $n$ rows of width $d$. The scores are a square, $n \times n$, for each head. To scale:

# %% jupyter={"source_hidden": true}
figures.areas(
    (128, 256, 512), 128, title="Double the length: the strip doubles, the square quadruples",
    alt="Three pairs of areas to scale, width 128. At 128 tokens strip and square are equal, 16,384 "
    "numbers each. At 256 tokens 32,768 and 65,536; at 512 tokens 65,536 and 262,144.",
)


# %% [markdown]
# At $n = d$ both are equally large, and from there on the square pulls away. These are numbers to store. From where on
# does the square also cost more *operations*?
#
# ### 3.2 The parts
#
# A product of an $a \times b$ with a $b \times c$ matrix takes $2abc$ operations, a multiplication and an addition
# each: $2 \times 3$ times $3 \times 2$ makes four numbers from three products each, 24 operations. Here is a block from
# bare torch, as in lessons 04 and 06, cut into three parts so that each can be counted alone. (Norms, residuals, biases
# and masks are left out: they change no product.)

# %%
class Block(nn.Module):
    def __init__(self, d, heads, d_ff):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(d, d, bias=False) for _ in range(4))
        self.up_proj = nn.Linear(d, d_ff, bias=False)
        self.down_proj = nn.Linear(d_ff, d, bias=False)

    def project(self, x):  # (n, d): all four; for counting, W_O may read x as well
        return self.query(x), self.key(x), self.value(x), self.output(x)

    def mix(self, q, k, v):  # (n, d) each
        q, k, v = (x.unflatten(1, (self.heads, -1)).transpose(0, 1) for x in (q, k, v))
        score = q @ k.mT / q.shape[-1] ** 0.5  # (heads, n, n)
        return (score.softmax(dim=-1) @ v).transpose(0, 1).flatten(1)  # (n, d)

    def feed_forward(self, x):  # (n, d), via (n, d_ff)
        return self.down_proj(F.gelu(self.up_proj(x)))


# %% [markdown]
# With $d_\text{ff} = 4d$ the whole block takes
#
# $$\underbrace{4 \cdot 2 n d^2}_{\text{projections}} \;+\;
# \underbrace{2 n^2 d}_{\text{scores}} + \underbrace{2 n^2 d}_{\text{mixing}} \;+\;
# \underbrace{2 \cdot 2 n d \cdot 4d}_{\text{feed-forward}} \;=\; 24\, n d^2 + 4\, n^2 d$$
#
# The number of heads does not appear: $h$ heads have $h$ squares, and each entry of one takes $d/h$ multiplications
# instead of $d$. Does torch count the same? We ask on the *meta* device, where tensors have a shape and no content, so
# we may count any length, with GPT-2's width of 768:

# %%
from torch.utils.flop_counter import FlopCounterMode


def operations(compute, *inputs):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        compute(*inputs)
    return counter.get_total_flops()


def counted(n, d, heads=12):
    with torch.device("meta"):
        part, x = Block(d, heads, 4 * d), torch.empty(n, d)  # shapes without content
    calls = (part.project, x), (part.mix, x, x, x), (part.feed_forward, x)
    return [operations(*call) for call in calls]


d = 768
for n in (256, 1024, 4096, 16_384, 50_000):
    parts = counted(n, d)
    assert parts == [8 * n * d**2, 4 * n**2 * d, 16 * n * d**2]  # the equation
    whole = sum(parts)
    print(f"n {n:6,}: {whole / 1e9:7,.1f} GFLOP; scores and mixing {parts[1] / whole:5.1%}")


# %% [markdown]
# ### 3.3 Three crossovers
#
# Projections and feed-forward network are $O(n d^2)$, scores and mixing $O(n^2 d)$. Which is larger? $O$ says: the
# second, in the end. The constants say where. Scores and mixing, $4n^2d$, overtake
#
# - the projections, $8nd^2$, at $n = 2d$;
# - the feed-forward network, $16nd^2$, at $n = 4d$ (together with the projections at $n = 2d$: lesson 06);
# - everything else together, $24nd^2$, at $n = 6d$.
#
# So they take this fraction of a block:
#
# $$\frac{4n^2d}{24nd^2 + 4n^2d} = \frac{n}{n + 6d}$$
#
# It depends on $n/d$ alone. Guess: GPT-3 reads 2,048 tokens at a width of 12,288. What fraction of its operations are
# scores and mixing?

# %%
widths = {"d = 128": 128, "GPT-2, 768": 768, "Llama 7B, 4,096": 4096,
          "GPT-3, 12,288": 12_288}
for n, d in ((1024, 768), (2048, 12_288), (6 * 4096, 4096)):
    projections, mixing, network = counted(n, d, heads=d // 64)
    part = mixing / (projections + mixing + network)
    print(f"n {n:6,}, d {d:6,}: counted {part:5.1%}, formula {n / (n + 6 * d):5.1%}")

# %% jupyter={"source_hidden": true}
figures.fractions_of_a_block(widths)

# %% [markdown]
# 2.7%. "Attention is the expensive part" is false for GPT-3 at its own length, and for every model at the length of
# a tweet. The wall is at $6d$, and far beyond it the square is nearly everything. Most models of this course have a
# $d$ of 64 to 256: there the wall is so close that you can run into it. (For GPT-3 even 2.7% is too much: half of its
# layers see only a band, Brown et al. 2020, section 2.1. And a causal kernel may skip the half above the diagonal. Then
# $4n^2d$ becomes $2n^2d$, and each crossover moves to twice the length. The exponent stays.)
#
# ### 3.4 And the clock?
#
# Operations are a promise. Do the seconds keep it? Each part by itself, at $d = 128$, with four heads. By the count,
# the square overtakes the projections at 256 tokens and the feed-forward network at 512.

# %% jupyter={"source_hidden": true}
predict(
    "wall-clock", "Where will the square overtake the other parts on the clock?",
    "earlier than counted", "exactly there", "later: large products run faster",
)

# %% [markdown]
# Processor time, the fastest of five runs:


# %%
def milliseconds(compute, *inputs, repeats=5):
    times = []
    with torch.no_grad():
        for _ in range(repeats):
            start = time.process_time()
            compute(*inputs)
            times.append(1000 * (time.process_time() - start))
    return min(times)


# %% [markdown]
# Three parts, from 64 tokens to 4,096:

# %% tags=["nbval-ignore-output"]
part, clocked = Block(128, 4, 512), [64, 128, 256, 512, 1024, 2048, 4096]
clock = {"projections": [], "scores and mixing": [], "feed-forward": []}
for n in clocked:
    x = torch.randn(n, 128)  # (n, d)
    clock["projections"].append(milliseconds(part.project, x))
    clock["feed-forward"].append(milliseconds(part.feed_forward, x))
    clock["scores and mixing"].append(milliseconds(part.mix, x, x, x))
slope = exponent(*clock["scores and mixing"][-2:])
expect("Slope of scores and mixing at the end", slope, 1.4, 3)

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
figures.clock(clocked, clock, title="On the clock the square wins earlier than counted", mark=("n = 2d, for the projections", 256))

# %% jupyter={"source_hidden": true}
predicted("wall-clock", "earlier than counted", "Division, softmax and the traffic to memory are not in the count.")

# %% [markdown]
# Why earlier? The counter counts products only. Between the two products of the square there are a division and a
# softmax: about six operations for each of the $h\,n^2$ entries. Each entry is read and written twice for it, 16 bytes,
# which makes 0.4 operations per byte. (The projections read $x$ and four matrices and write four results: at 1,024
# tokens 47 operations per byte.) On lesson 13's roofline that is far down the slope, where a GPU waits for memory. How
# much of the square's time do they take here?

# %% tags=["nbval-ignore-output"]
n, d, heads = 1024, 128, 4
q, score = torch.randn(heads, n, d // heads), torch.randn(heads, n, n)
products = milliseconds(lambda: (q @ q.mT) @ q)
between = milliseconds(lambda: (score / 5.7).softmax(dim=-1))
count = 6 * heads * n**2  # operations of division and softmax
print(f"division and softmax: {count / (count + 4 * n**2 * d):.0%} of the operations,",
      f"{between / (products + between):.0%} of the square's time")

# %% [markdown]
# Division and softmax have next to no operations and a good part of the time. (Our explanation, for one thread: an
# exponential takes far longer than a multiplication in a matrix product, and each entry is touched several times. On a
# GPU, memory is the limit.) And the square has to be kept somewhere, which is the second wall: memory.

# %% [markdown]
# ## 4 The wall of memory
#
# ### 4.1 Ten gigabytes
#
# One head's scores are $n^2$ numbers of 4 bytes. For 50,000 tokens, a little less than *Hamlet*:
#
# $$50{,}000^2 \cdot 4 \text{ bytes} = 10^{10} \text{ bytes} = 10 \text{ GB. Per head, per block.}$$
#
# A `TorchDispatchMode` sees every tensor that torch makes. Ours remembers how large the largest was:

# %%
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    bytes = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        out = operator(*args, **(kwargs or {}))
        made = [each for each in tree_leaves(out) if isinstance(each, torch.Tensor)]
        self.bytes = max([self.bytes, *(each.nbytes for each in made)])
        return out


def largest(compute, *inputs):
    with Largest() as seen, torch.no_grad():
        compute(*inputs)
    return seen.bytes



# %% [markdown]
# One head of width 64, run for real up to 2,048 tokens. Then two ways to 50,000: along the measured line, and on the
# meta device.

# %%
head = Block(64, 1, 256)
lengths = [256, 512, 1024, 2048]
held = [largest(head.mix, *[torch.randn(n, 64)] * 3) for n in lengths]
slope = exponent(*held[-2:])
print("measured, MB:", *(round(x / 1e6, 2) for x in held), f"; slope {slope:.2f}")
further = held[-1] * (50_000 / lengths[-1]) ** slope
print(f"along that line, n = 50,000: {further / 1e9:.1f} GB")
meta = [torch.empty(50_000, 64, device="meta")] * 3  # (n, d_k) each
print(f"on the meta device         : {largest(head.mix, *meta) / 1e9:.1f} GB")

# %% [markdown]
# And it is not one such square. The softmax makes a second one. GPT-2 small has 12 heads in each of 12 blocks. When it
# is *trained*, the backward pass needs the attention weights of all blocks again. `activation_memory` adds up what a
# training keeps, without running it (lesson 35). One text of $n$ tokens, once with all scores written out, once with
# torch's fused kernel. How much will four times the length cost, in each column?

# %%
from dataclasses import replace

from txlib.models.sizes import GPT2, build
from txlib.training.memory import activation_memory


def kept(n, fused):  # GB kept for the backward pass
    small = GPT2["small"]
    block = small.block.replace(
        dropout=0.0, attention_dropout=0.0, mechanism=DenseConfig(fused=fused))
    text = torch.empty(1, n, dtype=torch.long)  # (1, n)
    long = build(replace(small, block=block, max_length=n))
    return activation_memory(long, {"input_ids": text, "labels": text}) / 1e9


for n in (256, 1024, 4096):
    print(f"{n:5,}: {kept(n, False):.2f} GB written out, {kept(n, True):.2f} GB fused")


# %% [markdown]
# Four times the length takes six times the memory in the first column, then nine times, rising toward sixteen. In the
# second column it takes four times, both times. What has happened there?
#
# ### 4.2 What a fused kernel changes, and what not
#
# `F.scaled_dot_product_attention` never writes the square down. It takes a few queries and a few keys at a time, a
# small *tile* of the square. From tile to tile it keeps a running softmax (the largest score and the sum so far), and
# it forgets the tile's scores. (The idea is called FlashAttention, Dao et al. 2022; lesson 34 builds it.) So the
# largest tensor is the output, $n \times d$:

# %%
def fused(q, k, v):  # (n, d_k) each
    q, k, v = q[None, None], k[None, None], v[None, None]
    return F.scaled_dot_product_attention(q, k, v)[0, 0]


x = torch.randn(512, 64)  # (n, d_k)
prove_equal(fused(x, x, x), head.mix(x, x, x), what="Fused and written out")
for n in (512, 1024, 2048):
    x = [torch.randn(n, 64)] * 3  # (n, d_k) each
    print(f"n {n:5,}: written out {largest(head.mix, *x) / 1e6:5.2f} MB,", end=" ")
    print(f"fused {largest(fused, *x) / 1e6:4.2f} MB")

# %% jupyter={"source_hidden": true}
predict(
    "wall-fused", "And the time of the fused kernel, when the text doubles?", "twice", "a little more than twice", "four times",
)

# %% [markdown]
# With linear memory, attention over 50,000 tokens fits into any laptop. The clock:

# %% tags=["nbval-ignore-output"]
lengths = [1024, 2048, 4096, 8192]
inputs = {n: [torch.randn(n, 64)] * 3 for n in lengths}  # q, k, v: (n, d_k) each
times = {"fused": [milliseconds(fused, *inputs[n], repeats=3) for n in lengths]}
times["written out"] = [milliseconds(head.mix, *inputs[n], repeats=3)
                        for n in lengths[:3]]
for name, measured in times.items():
    print(f"{name:11} {'  '.join(f'{each:6.1f}' for each in measured)} ms;"
          f" slope {exponent(measured[0], measured[-1]) / (len(measured) - 1):.2f}")
slope = exponent(times["fused"][0], times["fused"][-1]) / 3
expect("Slope of the fused kernel's time", slope, 1.6, 2.3)


# %% jupyter={"source_hidden": true}
predicted("wall-fused", "four times", "Every pair still meets: 4n²d operations.")

# %% [markdown]
# It is faster, but by less than a factor of two here. (Our explanation: the square no longer travels to memory and
# back.) And it climbs with a slope of 2 all the same: even a factor of four would buy just one doubling. In short: with
# fused kernels, the *memory* of the scores no longer limits the length of a text, but *time* still does.

# %% [markdown]
# ## 5 The table, row by row
#
# Why pay for a square at all? Because of what it buys. Vaswani et al. (2017, section 4, Table 1) compare four kinds of
# layers, for $n$ positions of width $d$, kernels of width $k$, and neighborhoods of $r$ positions:
#
# | Layer | Operations | Sequential steps | Longest path |
# | --- | --- | --- | --- |
# | self-attention | $O(n^2 \cdot d)$ | $O(1)$ | $O(1)$ |
# | recurrent | $O(n \cdot d^2)$ | $O(n)$ | $O(n)$ |
# | convolutional | $O(k \cdot n \cdot d^2)$ | $O(1)$ | $O(\log_k n)$ |
# | self-attention, restricted | $O(r \cdot n \cdot d)$ | $O(1)$ | $O(n / r)$ |
#
# Lesson 02 gave the idea, on graphs. Now check all twelve entries on layers that run. Each is causal, so that the last
# position hears of the first one only if something carries the news.
#
# ### 5.1 Four layers
#
# The table counts scores and mixing of self-attention, without projections, so we leave them out. The recurrent layer
# is $h_t = \tanh(W h_{t-1} + U x_t)$, which torch has. The convolution reads the last $k$ positions.

# %%
def attention(x):  # (n, d)
    score = (x @ x.mT) / x.shape[1] ** 0.5  # (n, n)
    later = torch.ones_like(score, dtype=torch.bool).triu(1)  # not yet written
    return score.masked_fill(later, -torch.inf).softmax(dim=-1) @ x  # (n, d)


def convolution(x, weight, dilation=1):  # (n, d), (d, d, k)
    past = F.pad(x.T, (dilation * (weight.shape[2] - 1), 0))  # (d, past + n)
    return F.conv1d(past[None], weight, dilation=dilation)[0].T  # (n, d)


def restricted(x, r):  # (n, d)
    near = F.pad(x, (0, 0, r - 1, 0)).unfold(0, r, 1)  # (n, d, r): each one's r last
    exists = torch.arange(len(x))[:, None] > torch.arange(r - 2, -2, -1)  # (n, r)
    score = (x[:, None] @ near)[:, 0] / x.shape[1] ** 0.5  # (n, r)
    weight = score.masked_fill(~exists, -torch.inf).softmax(dim=-1)
    return (near @ weight[..., None])[..., 0]  # (n, d)


# %% [markdown]
# `unfold` lays a window over the rows: position $i$ sees $i - r + 1 \dots i$. Nowhere is there an $n \times n$ tensor.
# Is it right? With $r = n$ nothing is restricted:

# %%
torch.manual_seed(0)
x = torch.randn(48, 16)  # (n, d)
prove_equal(restricted(x, 48), attention(x), what="All as neighbors, and attention")


# %% [markdown]
# ### 5.2 First column: operations
#
# Count each layer, and count it again with $n$ doubled, $d$ doubled, and $k$ or $r$ doubled. The exponent of each is
# $\log_2$ of what comes out. Which row will be the only one with a 2 under $n$? Which ones have a 2 under $d$?

# %%
def layer(name, n, d, width, requires_grad=False):  # a layer, ready to be called
    x = torch.randn(n, d, requires_grad=requires_grad)
    weight, rnn = torch.randn(d, d, width), nn.RNN(d, d, bias=False, batch_first=True)
    layers = {"self-attention": lambda: attention(x), "recurrent": lambda: rnn(x[None])[0],
              "convolutional": lambda: convolution(x, weight),
              "restricted": lambda: restricted(x, width)}
    return layers[name]


LAYERS = "self-attention", "recurrent", "convolutional", "restricted"
n, d, width = 64, 32, 4
for name in LAYERS:
    base = operations(layer(name, n, d, width))
    doubled = (2 * n, d, width), (n, 2 * d, width), (n, d, 2 * width)
    powers = [round(exponent(base, operations(layer(name, *size)))) for size in doubled]
    print(f"{name:15} {base:9,} operations; exponents of n, d, and k or r: {powers}")

# %% [markdown]
# All twelve exponents are the table's. Its constants, which $O$ hides: self-attention $4n^2d$, recurrent $4nd^2$ ($W h$
# and $U x$, $2d^2$ each), convolutional $2knd^2$, restricted $4rnd$. With $n = 64$, $d = 32$ and 4 for $k$ and $r$,
# these are the numbers printed above.
#
# So self-attention takes fewer operations than a recurrent layer as long as $n < d$, as the paper says: a sentence of
# 40 words at a width of 512. But with its four projections, $8nd^2$ more, it never takes fewer than a plain recurrent
# layer. Operations do not speak for attention. The next two columns do.
#
# ### 5.3 Second column: steps that wait
#
# How many computations must wait for one another, whatever machine you have? Autograd writes down what was computed
# from what: each result is a node that knows the ones before it (lesson 02's graphs). The longest chain is what no
# machine can do at the same time. (A whole matrix product is one node, and so is a softmax.)

# %%
def chain(node):  # nodes in the longest chain that ends here
    before = [other for other, _ in node.next_functions if other is not None]
    return 1 + max((chain(other) for other in before), default=0)


for name in LAYERS:
    outs = [layer(name, n, 16, 4, requires_grad=True)() for n in (16, 32, 64)]
    nodes = [chain(out.grad_fn) for out in outs]
    print(f"{name:15} chains of", *nodes, "nodes for n = 16, 32, 64")

# %% [markdown]
# Only the recurrent layer waits for its own past. What does waiting
# cost? Here are the operations of each layer, its time on one thread, and what it gets done in a nanosecond. Guess
# which gets the most done, and which the least.

# %% tags=["nbval-ignore-output"]
n, d = 2048, 64
for name in LAYERS:
    compute = layer(name, n, d, 4)
    spent, work = milliseconds(compute, repeats=3), operations(compute)
    print(f"{name:15} {work / 1e6:7.1f} million operations in {spent:5.1f} ms:",
          f"{work / spent / 1e6:5.1f} per ns")


# %% [markdown]
# The convolution is one large product, and gets the most done. The recurrent layer is 2,048 small ones, one after
# another, and gets a small fraction of that done. On a GPU with thousands of units, we expect a wider gap still. (Our
# restricted layer gets the least done. Our explanation: its products are tiny. Lesson 31 does better.)
#
# ### 5.4 Third column: the longest path
#
# How many layers must news from the first position pass through before the last one hears it? If the last output does
# not depend on the first input, its gradient there is exactly 0. So stack layers until it is not. The fourth kind is a
# **dilated** convolution: its $k$ inputs are further apart in each layer, 1, 3, 9 … positions.

# %%
def layers_needed(apply, n, d=8):
    torch.manual_seed(0)
    x = torch.randn(n, d, requires_grad=True)  # (n, d)
    asked = torch.randn(d)  # a sum of all entries might cancel
    y, number = x, 0
    while True:
        y, number = apply(y, number), number + 1
        (gradient,) = torch.autograd.grad(y[-1] @ asked, x, retain_graph=True)  # (n, d)
        if gradient[0].abs().max() > 0:
            return number


# %% [markdown]
# The four stacks, each a function of what the layer before gave and of the layer's number:

# %%
kernel = torch.randn(8, 8, 3) / 24**0.5  # (d, d, k): k = 3
stacks = {
    "self-attention": lambda y, number: attention(y),
    "convolutional, k = 3": lambda y, number: convolution(y, kernel),
    "dilated, k = 3": lambda y, number: convolution(y, kernel, dilation=3**number),
    "restricted, r = 9": lambda y, number: restricted(y, 9),
}


# %% [markdown]
# A recurrent layer needs one layer. But inside it the news passes through $n$ steps, one per position, and may fade in
# each (lesson 02), so its path is $n$. The others:

# %%
lengths = [9, 27, 81, 243]
needed = {name: [layers_needed(apply, n) for n in lengths]
          for name, apply in stacks.items()}
for name, layers in needed.items():
    print(f"{name:22} layers for n = 9, 27, 81, 243:", *layers)
paths = {"recurrent (steps)": lengths} | needed

# %% jupyter={"source_hidden": true}
figures.longest_paths(lengths, paths)

# %% [markdown]
# Self-attention: 1, always. Restricted: with $r = 9$ each layer looks 8 back, so about $n/8$ layers: the price of
# leaving the square. And the convolution? The table says $\log_k n$, but the measured line is as steep as the recurrent
# one's: about $n/(k-1)$. It is the *dilated* convolution that needs $\log_3 n$ layers: 2, 3, 4, 5. The paper says so in
# its text: $O(n/k)$ for contiguous kernels, $O(\log_k n)$ for dilated ones.
#
# What an output can depend on is its **receptive field**. With $L$ layers of width $k$ it has $1 + L (k - 1)$
# positions: 4 layers of width 3 see 9. With dilation the gaps add up: it grows $k$-fold with each layer where they are
# $1, k, k^2 \dots$, as here, and about doubles where they are $1, 2, 4 \dots$, whatever $k$ is.
#
# Two translators were built of convolutions: ByteNet (Kalchbrenner et al. 2016), dilated by 1, 2, 4 …, and ConvS2S
# (Gehring et al. 2017). Both are in `txlib.models`; lesson 02, section 7, compares them with recurrent nets.
#
# That is the bargain of 2017: no waiting, and a path of one, for a square of scores. At 30 words and a width of 512 the
# square was 1% of the block.

# %% [markdown]
# ## 6 Why 512, and what a cut costs
#
# ### 6.1 Three reasons
#
# We know what the square costs. It sets no limit by itself; yet BERT reads 512 tokens, and GPT-2 1,024. As we
# read it, three things did it:
#
# - **The table of positions has that many rows** (lesson 05). A learned position that was never trained does not exist.
#   Sinusoidal or rotary positions have no such last row.
# - **Memory in training.** Scores were written out then. Section 4 shows what 4,096 would have cost in GPT-2's
#   smallest model: 13 GB for *one* text, when a large GPU had 16 or 32.
# - **Time.** Devlin et al. (2019, appendix A.2) trained BERT on 128 tokens for nine tenths of all steps, and on 512
#   only at the end, because long sequences are "disproportionately expensive".
#
# All three have moved since: rotary positions, fused kernels, machines. Here are models at their full length: the
# scores' fraction of the operations; the scores of one block if they were written out in 16 bits; and the cache of keys
# and values (lesson 13).

# %%
from txlib.layers import RotaryConfig, TransformerBlock
from txlib.models.sizes import BERT, GPT3, LLAMA

llama_7b = LLAMA["7b"]
rotary = RotaryConfig(base=5e5, layout="half")
block = llama_7b.block.replace(d_ff=14_336, kv_heads=8, position=rotary)
llama_8b = replace(llama_7b, max_length=131_072, block=block)
FAMILIES = {"BERT base, 2018": BERT["base"], "GPT-2 small, 2019": GPT2["small"],
            "GPT-3, 2020": GPT3["175b"], "Llama 7B, 2023": llama_7b,
            "Llama 3.1 8B, 2024": llama_8b}


# %% [markdown]
# Each config is built on the meta device, and its operations are counted:

# %%
def of_its_block(config):
    n = config.max_length
    block = config.block.replace(dropout=0.0, attention_dropout=0.0)
    with torch.device("meta"):
        whole = operations(TransformerBlock(block), torch.empty(1, n, block.d_model))
    pairs = block.attention.heads * n**2
    kv_heads = block.attention.kv_heads or block.attention.heads
    cache = 2 * config.layers * kv_heads * block.head_dim * n  # numbers
    return n, 4 * pairs * block.head_dim / whole, 2 * pairs / 1e9, 2 * cache / 1e9


for name, config in FAMILIES.items():
    n, part, scores, cache = of_its_block(config)
    kept = "no cache" if "BERT" in name else f"cache {cache:6.2f} GB"
    print(f"{name:19} n {n:7,}: scores {part:4.0%} of the operations, "
          f"{scores:8,.2f} GB per block; {kept}")

# %% [markdown]
# For years that fraction stayed small: models grew wider as they grew longer. The last row is a different world: its
# scores would take a terabyte per block, so they can't be written out, only computed in pieces. When its context is
# full, most of its work is the square: 83%, or, if the kernel skips the half that is masked,
# $0.415 / (0.415 + 0.17)$ = 71%. (The sizes are from Llama Team 2024.)
#
# **When a model writes**, the square hides. With a cache, one new token meets $n$ old ones: $4nd$ operations per block
# next to $24d^2$, and the cache grows by one row. *Linear*, per token. But a text is many tokens:
#
# $$\sum_{i=1}^{n} 4 i d \approx 2 n^2 d$$
#
# That is half of the square, spread over time. And the cache must be *read* for each token: 17 GB in the last row,
# where shared keys and values (lesson 16) have already made it four times smaller.

# %% [markdown]
# ### 6.2 Break it: simply cut the text off
#
# The cheapest way around the wall: let the model read the last 512 tokens and forget the rest. What is lost? A small
# model won't tell: lesson 10's GPT gains little from what lies before the last three characters. Ask the *text*.
#
# Many words of *Hamlet* occur two to ten times: names, places, plots, poison. When such a word comes back, how many
# tokens ago was it mentioned last? (We count characters, times the play's tokens per character.) If that is beyond the
# context, then to the model the word is new.

# %% jupyter={"source_hidden": true}
predict(
    "wall-rare", "For what fraction of them is a context of 1,024 tokens enough?",
    "less than a quarter", "about half", "three quarters", "nearly all",
)

# %%
import random
import re
from collections import Counter

found = [(word.group().lower(), word.start())
         for word in re.finditer(r"[A-Za-z']+", play)]
frequency = Counter(word for word, _ in found)
contexts = [2**k for k in range(7, 17)]


def in_view(words):  # for each context: how many last mentions are in it, in percent
    seen, distances = {}, []
    for word, (_, start) in zip(words, found):  # at the play's own places
        if 2 <= frequency[word] <= 10:
            if word in seen:
                distances.append((start - seen[word]) * len(ids) / len(play))
            seen[word] = start
    return [100 * sum(far <= n for far in distances) / len(distances) for n in contexts]


spoken = [word for word, _ in found]
views = {"the play": in_view(spoken), "its words, shuffled": in_view(
    random.Random(0).sample(spoken, len(spoken)))}
print("rare words that come back, last mention in view:")
for name, view in views.items():
    print(f"{name:20}", *(f"{n:,}: {percent:.0f}%" for n, percent in zip(contexts, view)))

# %% jupyter={"source_hidden": true}
figures.in_view(contexts, views)

# %% jupyter={"source_hidden": true}
predicted("wall-rare", "less than a quarter", "To have half of them in view takes more than 4,096 tokens.")

# %% [markdown]
# We chose rare words, so most of them *must* be far apart. That is what the second line is for: in the same words,
# shuffled, what comes back is wherever chance puts it. Near by, the play is far ahead: the last 128 tokens hold an
# eighth of the last mentions instead of one in a hundred. From 4,096 tokens on, most of the rise is chance. So a word
# that comes back is near more often than chance would have it, but mostly it is far away, and can be anywhere. Keep
# that in mind when you look for a cheaper pattern than the square: **a lot from nearby, a little from everywhere.**

# %% [markdown]
# ## 7 The map, and the library
#
# ### 7.1 Ways around the wall
#
# Tay et al. (2020; 2022) have put dozens of "efficient Transformers" in order. Their families, as what each computes
# instead of the square:

# %% jupyter={"source_hidden": true}
figures.ways_round(
    title="Six ways around the square",
    alt="Six small squares of queries against keys. Fixed patterns: a band along the diagonal. "
    "Learnable patterns: scattered cells. Memory: a few full rows and columns. Recurrence: blocks "
    "along the diagonal, each with the one before. Low rank: a narrow rectangle, n by k. Kernels: two "
    "narrow rectangles, n by r and r by n.",
)

# %% [markdown]
# | Family | The idea | For example | Operations | Here |
# | --- | --- | --- | --- | --- |
# | fixed patterns | compute only pairs chosen beforehand: near ones, every tenth … | Sparse Transformer (Child et al. 2019), Longformer (Beltagy et al. 2020) | $O(n \sqrt n)$, $O(nr)$ | 31 |
# | learnable patterns | find out which pairs matter, by hashing or clustering | Reformer (Kitaev et al. 2020), Routing Transformer (Roy et al. 2020) | $O(n \log n)$, $O(n \sqrt n)$ | 31 |
# | memory | a few tokens that read all and are read by all | Set Transformer (Lee et al. 2019), global tokens of Longformer and Big Bird (Zaheer et al. 2020) | $O(nm)$ | 23, 31 |
# | recurrence | segments; each reads what is kept of the one before | Transformer-XL (Dai et al. 2019) | $O(nr)$ | – |
# | low rank | squeeze $n$ keys into $k$ | Linformer (Wang et al. 2020) | $O(nk)$ | 32 |
# | kernels | replace the softmax by a product, and multiply in the other order | Performer (Choromanski et al. 2020), Linear Transformer (Katharopoulos et al. 2020) | $O(nr)$ | 32, 33 |
#
# Many methods, like Big Bird, are in several families at once. The edition of
# 2022 adds two that shrink something else: **downsampling**, which shortens the sequence itself (Perceiver, lesson 24),
# and **sparse models** (lesson 18).
#
# Ask each of them two questions. *What can it no longer see*, and does that matter on real text? And *is it faster in
# seconds* than a fused kernel that computes everything?

# %% [markdown]
# ### 7.2 A mask is no saving
#
# In `txlib`, `DenseAttention` is what every model has unless told otherwise. It takes the fused kernel where the method
# shown below finds it faster. Our
# restricted attention is a mask for it, causal and reaching no further back than $r - 1$:

# %%
from txlib.attention import DenseAttention, causal, sliding_window

torch.manual_seed(0)
x, r = torch.randn(300, 64), 16  # (n, d)
mask = causal() & sliding_window(r - 1)
one_head, dense = x[None, None], DenseAttention(fused=False)  # (1, 1, n, d)
out = dense(one_head, one_head, one_head, mask)[0, 0]  # (n, d)
prove_equal(out, restricted(x, r), what="Mask and neighborhood")
print(f"pairs that the mask allows: {mask.pairs(300):,} of {300 * 300:,}")
show_source(DenseAttention.runs_fused)

# %% [markdown]
# What does dense attention *do* with that mask? Does it take fewer operations than without?

# %%
without = operations(dense, one_head, one_head, one_head)
masked = operations(dense, one_head, one_head, one_head, mask)
print(f"dense without a mask {without:,}, with it {masked:,};"
      f" our restricted layer {operations(restricted, x, r):,}")

# %% [markdown]
# It saves none. Dense attention computes every pair, and then throws most of them away. **A mask says what may be seen,
# not what is computed.** How to turn the one into the other, so that a mask costs hardly more than what it allows, is
# the heart of lesson 31.

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. Which of these statements is CORRECT?** ($n$: length of the text, $d$: width)
#
# <details><summary>A. A self-attention layer is O(n · d²), a recurrent one O(n² · d)</summary>
#
# Swapped. Attention compares $n^2$ pairs of vectors of width $d$; a recurrent layer multiplies each of $n$ vectors by
# matrices of $d \times d$.
# </details>
# <details><summary>B. A self-attention layer takes O(n) sequential steps, a recurrent one O(1)</summary>
#
# Swapped again. All scores can be computed at once; a recurrent state has to wait for the one before it.
# </details>
# <details><summary>C. In self-attention the longest path between two positions is O(1), in a recurrent layer O(n)</summary>
#
# Right. Each position reads each other one directly. In the recurrent layer the news passes through every state between
# them.
# </details>
# <details><summary>D. Restricting attention to r neighbors lowers the operations and leaves the longest path as it is</summary>
#
# It lowers the operations, to $O(rnd)$. But news now travels $r - 1$ positions per layer, and the path becomes
# $O(n/r)$.
# </details>
#
# **2. A cost was measured at 1,000, 2,000 and 4,000 tokens: 3, 11 and 43 seconds. What is it, most likely?**
#
# <details><summary>A. Linear</summary>
#
# Then 3 would be followed by about 6 and 12.
# </details>
# <details><summary>B. n log n</summary>
#
# From 1,000 to 2,000 that would be a factor of about 2.2.
# </details>
# <details><summary>C. Quadratic</summary>
#
# Right: factors of 3.7 and 3.9, on the way to 4. What holds the first one back is some constant or linear cost.
# </details>
# <details><summary>D. Exponential</summary>
#
# Then a thousand tokens *more* would multiply the cost by a fixed factor: 3, 11, and at 4,000 already 148.
# </details>
#
# **3. A model with d = 4,096 and a plain feed-forward network ($d_\text{ff} = 4d$) reads 4,096 tokens. Scores and
# mixing are**
#
# <details><summary>A. half of the operations: n = d</summary>
#
# At $n = d$ the *areas* of section 3.1 are equal. The operations have other constants: $4n^2d$ against $24nd^2$.
# </details>
# <details><summary>B. one seventh</summary>
#
# Right: $n/(n+6d) = 1/7$.
# </details>
# <details><summary>C. one third</summary>
#
# That is their fraction of the *attention* layer, $4n^2d$ of $8nd^2 + 4n^2d$. The feed-forward network is missing.
# </details>
#
# **4. What does a fused kernel (FlashAttention) change about attention over n tokens?**
#
# <details><summary>A. It makes it O(n) in operations and in memory</summary>
#
# In memory, yes. The operations stay: every pair still meets.
# </details>
# <details><summary>B. O(n) memory instead of O(n²); the operations stay O(n²)</summary>
#
# Right. It is faster because less is written and read, not because less is computed.
# </details>
# <details><summary>C. Nothing but a constant factor, in time and in memory</summary>
#
# In time, yes. In memory the square itself is gone.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - Double the length, and see what the cost is multiplied by: 2 is linear, 4 is quadratic. On logarithmic axes the
#   slope is the exponent. $O$ says which is higher in the end, constants say where the end begins.
# - A block costs $24nd^2 + 4n^2d$. Scores and mixing overtake the projections at $n = 2d$, everything else at $6d$; on
#   the clock somewhat earlier. Their fraction of a block is $n/(n+6d)$: 2.7% in GPT-3, more than 80% in a Llama with
#   131,072 tokens.
# - Written out, scores take $n^2$ numbers per head: 10 GB at 50,000 tokens. Fused kernels make the memory linear. The
#   operations stay.
# - The square buys attention two things: nothing waits, and the path is a single step. Recurrent layers wait;
#   convolutions and windows need more layers the further the news has to go.
# - 512 and 1,024 came, as we read it, from tables of positions, memory and patience. No law demands them.
# - Cutting the text loses what is far away: with 1,024 tokens, three out of four rare words that come back look
#   new.
# - A mask says what may be seen, not what is computed.
#
# **Read** Vaswani et al. 2017, *Attention Is All You Need*, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762),
# section 4. Tay et al. 2020, *Efficient Transformers: A Survey*, [arXiv:2009.06732](https://arxiv.org/abs/2009.06732),
# section 3. Dao et al. 2022, *FlashAttention*,
# [arXiv:2205.14135](https://arxiv.org/abs/2205.14135), sections 2 and 3.1. Brown et al. 2020, *GPT-3*,
# [arXiv:2005.14165](https://arxiv.org/abs/2005.14165), section 2.1. Devlin et al. 2019, *BERT*,
# [arXiv:1810.04805](https://arxiv.org/abs/1810.04805), appendix A.2. Llama Team 2024, *The Llama 3 Herd of Models*,
# [arXiv:2407.21783](https://arxiv.org/abs/2407.21783), section 3.2.
#
# **Do** the exercise [30_wall](../exercises/exercise_30_wall.ipynb). Then go on to
# [31 Sparse patterns](31_sparse.ipynb).
