# %% [markdown] lesson={"part": "IV Efficiency", "builds": "what a block costs, counted and measured; the table of 2017 row by row; why contexts ended at 512"}
# # 30 · The quadratic wall
#
# **After this lesson you will be able to**
#
# - say what happens to a cost when the text gets twice as long, and read the exponent off a measured line;
# - count what a block costs, and say from which length on attention's scores cost more than everything else;
# - say how much memory the scores take, what a fused kernel changes about that, and what it cannot change;
# - check the famous table of attention, recurrent and convolutional layers row by row, on real layers;
# - say why contexts ended at 512 and 1,024, what a text loses when you just cut it, and which ways lead round the wall.
#
# **You need** lessons 02, 04, 06, 10 and 13. **It takes** about 80 minutes to read and try; all cells together run in
# half a minute on a laptop. Nothing is trained here.

# %% [markdown]
# ## 1 The problem: read a whole play
#
# *Hamlet*, and GPT-2's tokenizer from lesson 01:

# %%
import time

import torch
import torch.nn.functional as F
from torch import nn

from txlib import plots
from txlib.attention import DenseConfig
from txcourse import figures
from txcourse.lesson import expect, prove_equal, show_source
from txlib.data import shipped
from txlib.data.shakespeare import plays
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig
from txlib.paths import DATA
from txlib.text import BytePairEncoder

play = plays()["hamlet"]
gpt2 = BytePairEncoder.from_gpt2(DATA / "gpt2-bpe/encoder.json", DATA / "gpt2-bpe/vocab.bpe")
ids = torch.tensor(gpt2.encode(play))                              # (n,)
print(f"{len(play):,} characters, {len(ids):,} tokens; GPT-2 reads 1,024 of them at a time")

# %% [markdown]
# Why not all of them? Let us try, with a small GPT: two blocks of width 256, four heads. Its weights are random, since
# time and memory do not depend on what it has learned. `fused=False` says that attention computes its scores as the
# equation does, all of them, written out. (What the other way changes is section 6.)
#
# We ask for the next token after the first $n$, and double $n$, again and again. Carefully: before each step we look
# ahead, and stop where the next one, reckoned at six times the last, might take more than five seconds, or the scores
# of one block more than a gigabyte. The time is the processor's, on one thread, so that other programs hardly count.

# %%
torch.set_num_threads(1)
torch.manual_seed(0)
heads, d = 4, 256
block = BlockConfig.of_sizes(d, heads, 4 * d, position="rotary", mechanism=DenseConfig(fused=False))
model = GPT(GPTConfig(len(gpt2), block, layers=2, max_length=len(ids))).eval()


@torch.no_grad()
def seconds(n):
    start = time.process_time()
    model.logits(model.decode(ids[None, :n])[:, -1:])              # (1, 1, vocab): the last one only
    return time.process_time() - start


# %% [markdown]
# The first call warms up, and is thrown away. Of two more at each length the faster counts.

# %% tags=["nbval-ignore-output"]
seconds(256)                                                       # the first call is slower
taken, n = {}, 256
while 6 * taken.get(n // 2, 0) < 5 and 4 * heads * n**2 < 1e9:
    taken[n] = min(seconds(n) for _ in range(2))
    print(f"{n:6,} tokens: {taken[n]:6.3f} s; scores of one block {4 * heads * n**2 / 1e6:6.1f} MB")
    n *= 2

# %% [markdown]
# Before you go on: at the last doubling, by how much did the time grow? And how long would the play take, if each
# further doubling costs four times as much?

# %% tags=["nbval-ignore-output"]
from txlib.training.memory import available_memory

last, length = max(taken), len(ids)
free = available_memory() or 8e9                                   # bytes; 8 GB where nobody knows
print(f"the last doubling took {taken[last] / taken[last // 2]:.1f} times as long")
print(f"the whole play: {taken[last] * (length / last) ** 2:,.0f} s for one token, "
      f"and {4 * heads * length**2 / 1e9:.1f} GB for the scores of one block")
longest = int((free / (2 * 4 * heads)) ** 0.5)
print(f"{free / 1e9:.0f} GB are free here: room for the scores and attention weights", end=" ")
print(f"of {longest:,} tokens")

# %% [markdown]
# And that is a model of two narrow blocks. GPT-2 small has twelve, with twelve heads each instead of four. So a laptop
# gives up somewhere in the middle of the play, by running out of memory, and well before that by taking longer than you
# care to wait. This is the quadratic wall. Where exactly does it stand, and what is it made of?

# %% [markdown]
# ## 2 How costs grow: a primer
#
# Forget models for a moment. Here are four things that one can do with a list of $n$ words. We count *steps*, not
# seconds: a step is one look at one word, or one comparison of two.
#
# - **look up** the first word;
# - **search** for a word that is not there;
# - **sort** them;
# - **compare** each word with each word that stands before it.

# %%
from functools import cmp_to_key


def look_up(words):
    return len(words[:1])


def search(words):
    return len([word == "penguin" for word in words])              # not in Hamlet: it looks at all


def sort(words):
    compared = []
    sorted(words, key=cmp_to_key(lambda a, b: compared.append(1) or (a > b) - (a < b)))
    return len(compared)


def compare(words):
    return len([words[i] == words[j] for i in range(len(words)) for j in range(i)])


# %% [markdown]
# **The experiment is always the same: double $n$, and see what the cost is multiplied by.** Decide first, for each of
# the four.

# %% jupyter={"outputs_hidden": true} tags=["hide-output"]
words = play.split()
for task in (look_up, search, sort, compare):
    counts = [task(words[:n]) for n in (500, 1000, 2000)]
    grown = ", ".join(f"× {after / before:.2f}" for before, after in zip(counts, counts[1:]))
    print(f"{task.__name__:8} {'  '.join(f'{count:9,}' for count in counts)}   each doubling {grown}")

# %% [markdown]
# | | Doubling $n$ multiplies it by | Written | For example |
# | --- | --- | --- | --- |
# | constant | 1 | $O(1)$ | to look up a word's vector |
# | linear | 2 | $O(n)$ | to read a text once |
# | $n \log n$ | a little more than 2 | $O(n \log n)$ | to sort |
# | quadratic | 4 | $O(n^2)$ | to compare each with each |
# | exponential | itself: the cost is squared | $O(2^n)$ | to try every selection of $n$ words: each one in or out |
#
# $O(\cdot)$ keeps only how a cost *grows*. It drops what is added and does not grow as fast, and it drops constant
# factors: `compare` takes $n(n-1)/2$ steps, and is $O(n^2)$. So $O$ alone does not tell you which of two costs is
# higher. It tells you which one is higher *in the end*. Where that end begins is a question about constants, and this
# lesson will ask it three times.
#
# If a cost is $c\,n^p$, then its logarithm is $\log c + p \log n$. On two logarithmic axes that is a straight line, and
# its slope is the exponent $p$. One doubling is enough to read it:
#
# $$p = \log_2 \frac{\text{cost}(2n)}{\text{cost}(n)}$$

# %%
from math import log2


def exponent(shorter, longer):                                     # the costs at n and at 2n
    return log2(longer / shorter)


sizes = [2**k for k in range(3, 12)]
counts = {task.__name__: [task(words[:n]) for n in sizes] for task in (look_up, search, sort, compare)}
print({name: round(exponent(*costs[-2:]), 2) for name, costs in counts.items()})

# %% [markdown]
# And the same numbers drawn, on two logarithmic axes:

# %%
plots.lines(
    {name: (sizes, costs) for name, costs in counts.items()}, xscale="log", yscale="log", marker="o",
    title="On logarithmic axes the slope is the exponent", xlabel="words n", ylabel="steps",
    alt="Steps against the number of words, both logarithmic. Look up: flat at 1. Search: a straight "
    "line of slope 1. Sort: a little above it and a little steeper. Compare: slope 2, from 28 steps at "
    "8 words to 2 million at 2,048.",
)

# %% [markdown]
# ## 3 The idea in one picture
#
# Attention is `compare`: each token with each. What does it hold in memory? The tokens are a strip, $n$ rows of width
# $d$. The scores are a square, $n \times n$, for each head. To scale:

# %%
figures.areas(
    (128, 256, 512), 128, title="Double the length: the strip doubles, the square quadruples",
    alt="Three pairs of areas to scale, width 128. At 128 tokens strip and square are equal, 16,384 "
    "numbers each. At 256 tokens 32,768 and 65,536; at 512 tokens 65,536 and 262,144.",
)


# %% [markdown]
# At $n = d$ both are equally large. From there on the square is the larger of the two, and it pulls away. These are
# areas: numbers to hold. From where on the square also costs more *operations* is another question, and it comes next.

# %% [markdown]
# ## 4 Count a block
#
# ### 4.1 The parts
#
# A block from bare torch, as in lessons 04 and 06, cut into three parts so that each can be counted alone. (Norms,
# residuals and biases are left out: they cost next to nothing. Masks are, too: they change no product. And `project`
# applies the output projection to $x$ as well: for counting, any $n \times d$ numbers will do.)

# %%
class Block(nn.Module):
    def __init__(self, d, heads, d_ff):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.up_proj, self.down_proj = nn.Linear(d, d_ff, bias=False), nn.Linear(d_ff, d, bias=False)

    def project(self, x):                                          # (n, d): all four projections
        return self.query(x), self.key(x), self.value(x), self.output(x)

    def mix(self, q, k, v):                                        # (n, d) each
        q, k, v = (each.unflatten(1, (self.heads, -1)).transpose(0, 1) for each in (q, k, v))
        score = q @ k.mT / q.shape[-1] ** 0.5                      # (heads, n, n)
        return (score.softmax(dim=-1) @ v).transpose(0, 1).flatten(1)      # (n, d)

    def feed_forward(self, x):                                     # (n, d), via (n, d_ff)
        return self.down_proj(F.gelu(self.up_proj(x)))


# %% [markdown]
# The equations. A product of an $a \times b$ with a $b \times c$ matrix takes $2abc$ operations, a multiplication and
# an addition each. So, with $d_\text{ff} = 4d$:
#
# $$\underbrace{4 \cdot 2 n d^2}_{\text{projections}} \;+\;
# \underbrace{2 n^2 d}_{\text{scores}} + \underbrace{2 n^2 d}_{\text{mixing}} \;+\;
# \underbrace{2 \cdot 2 n d \cdot 4d}_{\text{feed-forward}} \;=\; 24\, n d^2 + 4\, n^2 d$$
#
# The number of heads does not appear: $h$ heads have $h$ squares, and each entry of one takes $d/h$ multiplications
# instead of $d$.
#
# torch counts for us. We do it on the *meta* device, where tensors have a shape and no content. Nothing is computed and
# nothing is held, so we may count any length we like, with GPT-2's width of 768:

# %%
from torch.utils.flop_counter import FlopCounterMode


def operations(compute, *inputs):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        compute(*inputs)
    return counter.get_total_flops()


def counted(n, d, heads=12):
    with torch.device("meta"):
        part, x = Block(d, heads, 4 * d), torch.empty(n, d)        # (n, d): a shape without content
    calls = (part.project, x), (part.mix, x, x, x), (part.feed_forward, x)
    return [operations(*call) for call in calls]


# %% [markdown]
# Does torch count what the equation says? Each part, from a paragraph to a book:

# %%
for n in (256, 1024, 4096, 16_384, 50_000):
    counts, d = counted(n, 768), 768
    assert counts == [8 * n * d**2, 4 * n**2 * d, 16 * n * d**2]   # the equation, part by part
    share = counts[1] / sum(counts)
    print(f"n {n:6,}: {sum(counts) / 1e9:7,.1f} GFLOP per block; scores and mixing {share:5.1%}")

# %% [markdown]
# ### 4.2 Three crossovers
#
# Projections and feed-forward network are $O(n d^2)$, scores and mixing $O(n^2 d)$. Which is larger? $O$ says: the
# second, in the end. The constants say where. Scores and mixing, $4n^2d$, overtake
#
# - the projections, $8nd^2$, at $n = 2d$ (lesson 04);
# - the feed-forward network, $16nd^2$, at $n = 4d$ (lesson 06);
# - everything else together, $24nd^2$, at $n = 6d$.
#
# So their share of a block is
#
# $$\frac{4n^2d}{24nd^2 + 4n^2d} = \frac{n}{n + 6d}$$
#
# It depends on $n/d$ alone. Guess: GPT-3 reads 2,048 tokens at a width of 12,288. What part of its operations are
# scores and mixing?

# %% jupyter={"outputs_hidden": true} tags=["hide-output"]
widths = {"d = 128": 128, "GPT-2, 768": 768, "Llama 7B, 4,096": 4096, "GPT-3, 12,288": 12_288}
lengths = [2**k for k in range(7, 18)]
shares = {name: [100 * n / (n + 6 * d) for n in lengths] for name, d in widths.items()}
for n, d in ((1024, 768), (2048, 12_288), (6 * 4096, 4096)):
    projections, mixing, network = counted(n, d, heads=d // 64)
    part = mixing / (projections + mixing + network)
    print(f"n {n:6,}, d {d:6,}: counted {part:5.1%}, n / (n + 6d) {n / (n + 6 * d):5.1%}")

# %% [markdown]
# The formula holds to the digit. Here it is for every length:

# %%
plots.lines(
    {name: (lengths, share) for name, share in shares.items()}, xscale="log",
    title="The wider the model, the further away the wall", xlabel="length n",
    ylabel="scores and mixing (% of a block)",
    alt="Share of scores and mixing against the length from 128 to 131,072, logarithmic, for four "
    "widths. Each curve rises slowly, then steeply, and reaches half at six times the width: 768, "
    "4,608, 24,576 and 73,728 tokens.",
)


# %% [markdown]
# 2.7 %. "Attention is the expensive part" is false for GPT-3 at its own length, and for every model at the length of
# a tweet. The wall stands at $6d$, and far beyond it the square is nearly everything. Most models of this course have a
# $d$ of 64 to 256: there the wall is so close that you can run into it. (For GPT-3 even 2.7 % is too much. We count
# each layer as dense. In the real model, layers that see everything alternate with layers that see only a band: Brown
# et al. 2020, section 2.1.)
#
# (We count the whole square, as the counter does. A causal kernel may skip the half above the diagonal. Then $4n^2d$
# becomes $2n^2d$, and each crossover moves to twice the length. The exponent stays.)
#
# ### 4.3 And the clock?
#
# Operations are a promise. Do the seconds keep it? Each part by itself, at $d = 128$, with four heads. By the count,
# the square overtakes the projections at 256 tokens and the feed-forward network at 512. Guess: on the clock, will it
# be there, earlier, or later?

# %% tags=["nbval-ignore-output"]
def milliseconds(compute, *inputs, repeats=5):                     # the least disturbed run
    times = []
    with torch.no_grad():
        for _ in range(repeats):
            start = time.process_time()
            compute(*inputs)
            times.append(1000 * (time.process_time() - start))
    return min(times)


part, lengths = Block(128, 4, 512), [64, 128, 256, 512, 1024, 2048, 4096]
clock = {"projections": [], "scores and mixing": [], "feed-forward": []}
for n in lengths:
    x = torch.randn(n, 128)                                        # (n, d)
    for name, parts in (("projections", part.project), ("feed-forward", part.feed_forward)):
        clock[name].append(milliseconds(parts, x))
    clock["scores and mixing"].append(milliseconds(part.mix, x, x, x))

# %% [markdown]
# Look for two places: where the line of scores and mixing crosses each of the others.

# %% jupyter={"outputs_hidden": true} tags=["nbval-ignore-output", "hide-output"]
plots.lines(
    {name: (lengths, times) for name, times in clock.items()}, xscale="log", yscale="log", marker="o",
    title="On the clock the square wins earlier than counted", xlabel="length n",
    ylabel="milliseconds", mark=("n = 2d", 256),
    alt="Milliseconds of three parts of a block against the length, both logarithmic. Projections and "
    "feed-forward network rise with slope 1. Scores and mixing begin below both, rise with slope 2, "
    "and end far above both.",
)

# %% [markdown]
# Read off the slopes as well, over the last two doublings:

# %% tags=["nbval-ignore-output"]
for name, times in clock.items():
    slope = exponent(times[-3], times[-1]) / 2                     # over the last two doublings
    print(f"{name:18} slope {slope:.2f}")
    low, high = (1.6, 2.9) if "scores" in name else (0.8, 1.4)
    expect(f"Slope of {name}", slope, low, high)

# %% [markdown]
# Slopes of about one, and of two or more. But on our machine both crossings come early, at about 150 and 350 tokens.
# The counter counts products only, and between the two products stands a softmax, an exponential for each of the
# $h\,n^2$ entries. And each entry is written to memory and read again, several times, while in the projections a number
# that has been fetched is used hundreds of times (lesson 16, section 6). Where the line is steeper than 2, between 512
# and 2,048 tokens, the scores grow from 4 to 67 MB: more than most processors' caches hold. So there are two walls: one
# of operations, one of memory.

# %% [markdown]
# ## 5 The wall of memory
#
# One head's scores are $n^2$ numbers of 4 bytes. For 50,000 tokens, a little less than *Hamlet*:
#
# $$50{,}000^2 \cdot 4 \text{ bytes} = 10^{10} \text{ bytes} = 10 \text{ GB. Per head, per block.}$$
#
# Don't believe it, measure it. A `TorchDispatchMode` sees every tensor that torch makes. Ours remembers how large the
# largest was:

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


# %% [markdown]
# Around any computation it says how many bytes the largest tensor took:

# %%
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
print(f"measured: {', '.join(f'{each / 1e6:.2f} MB' for each in held)}; slope {slope:.2f}")
print(f"along that line, n = 50,000: {held[-1] * (50_000 / lengths[-1]) ** slope / 1e9:.1f} GB")
meta = [torch.empty(50_000, 64, device="meta")] * 3                # (n, d_k) each
print(f"on the meta device         : {largest(head.mix, *meta) / 1e9:.1f} GB")

# %% [markdown]
# And it is not one such square. The softmax makes a second one. GPT-2 small has 12 heads in each of 12 blocks; when it
# writes, it needs the squares of one block at a time. When it is *trained*, the backward pass needs the attention
# weights of all blocks again. What a training keeps, `activation_memory` adds up without running it (lesson 10). One
# text of $n$ tokens, once with all scores written out, once with torch's fused kernel. How much will four times the
# length cost, in each column?

# %%
from dataclasses import replace

from txlib.models.sizes import GPT2, build
from txlib.training.memory import activation_memory


def kept(n, fused):                                                # GB kept for the backward pass
    small = GPT2["small"]
    block = small.block.replace(dropout=0.0, attention_dropout=0.0, mechanism=DenseConfig(fused=fused))
    text = torch.empty(1, n, dtype=torch.long)                     # (1, n)
    long = build(replace(small, block=block, max_length=n))
    return activation_memory(long, {"input_ids": text, "labels": text}) / 1e9


for n in (256, 1024, 4096):
    print(f"n {n:5,}: written out {kept(n, False):6.2f} GB, fused {kept(n, True):5.2f} GB")


# %% [markdown]
# Four times the length takes six times the memory in the first column, then nine times, rising towards sixteen. In the
# second column it takes four times, twice. What has happened there?

# %% [markdown]
# ## 6 What a fused kernel changes, and what not
#
# `F.scaled_dot_product_attention` never writes the square down. It takes a few queries at a time, and lets them meet a
# few keys at a time: a small *tile* of the square. From tile to tile it keeps a running softmax (the largest score and
# the sum so far), and it forgets each tile of scores once it has been used. (The idea is called FlashAttention, Dao et
# al. 2022; lesson 34 builds it.) So the largest tensor is the output, $n \times d$:

# %%
def fused(q, k, v):                                                # (n, d_k) each
    return F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])[0, 0]


x = torch.randn(512, 64)                                           # (n, d_k)
prove_equal(fused(x, x, x), head.mix(x, x, x), what="Fused and written out")
for n in (512, 1024, 2048):
    x = [torch.randn(n, 64)] * 3                                   # (n, d_k) each
    print(f"n {n:5,}: written out {largest(head.mix, *x) / 1e6:5.2f} MB,", end=" ")
    print(f"fused {largest(fused, *x) / 1e6:4.2f} MB")

# %% [markdown]
# That is a wall torn down: with linear memory, attention over 50,000 tokens fits into any laptop. But it is only one
# wall of the two.
# **Every pair still meets.** The $4n^2d$ operations are all there. Look at the clock (and predict the slopes first):

# %% tags=["nbval-ignore-output"]
lengths = [1024, 2048, 4096, 8192]
inputs = {n: [torch.randn(n, 64)] * 3 for n in lengths}             # q, k, v: (n, d_k) each
times = {"fused": [milliseconds(fused, *inputs[n], repeats=3) for n in lengths]}
times["written out"] = [milliseconds(head.mix, *inputs[n], repeats=3) for n in lengths[:3]]
for name, measured in times.items():
    print(f"{name:11} {'  '.join(f'{each:6.1f}' for each in measured)} ms;"
          f" slope {exponent(measured[0], measured[-1]) / (len(measured) - 1):.2f}")
slope = exponent(times["fused"][0], times["fused"][-1]) / 3
expect("Slope of the fused kernel's time", slope, 1.6, 2.3)


# %% [markdown]
# It is faster by a factor, here 1.1 to 2.2, because the square no longer travels to memory and back. But it climbs with
# a slope of 2 all the same, and a factor of four would buy just one doubling. The honest sum: since fused kernels, the
# *memory* of the scores no longer limits the length of a text (what remains grows in proportion), and *time* still
# does. (Do not ask `FlopCounterMode` for proof here: torch's counter does not know the CPU's fused kernel, and reports
# zero. On the meta device, where attention is taken apart, it counts the same $4n^2d$.)

# %% [markdown]
# ## 7 The table, row by row
#
# Why pay for a square at all? Because of what it buys. Vaswani et al. (2017, section 4, Table 1) compare four kinds of
# layers, for $n$ positions of width $d$, kernels of width $k$, and neighbourhoods of $r$ positions:
#
# | Layer | Operations | Sequential steps | Longest path |
# | --- | --- | --- | --- |
# | self-attention | $O(n^2 \cdot d)$ | $O(1)$ | $O(1)$ |
# | recurrent | $O(n \cdot d^2)$ | $O(n)$ | $O(n)$ |
# | convolutional | $O(k \cdot n \cdot d^2)$ | $O(1)$ | $O(\log_k n)$ |
# | self-attention, restricted | $O(r \cdot n \cdot d)$ | $O(1)$ | $O(n / r)$ |
#
# Lesson 02 gave the idea, on graphs. Now check all twelve entries, on layers that run. Each is causal, so that the last
# position can only hear of the first one if something carries the news.
#
# ### 7.1 Four layers
#
# The table counts scores and mixing of self-attention, without projections, so we leave them out. The recurrent layer
# is $h_t = \tanh(W h_{t-1} + U x_t)$, which torch has. The convolution reads the $k$ last positions.

# %%
def attention(x):                                                  # (n, d)
    score = (x @ x.mT) / x.shape[1] ** 0.5                         # (n, n)
    later = torch.ones_like(score, dtype=torch.bool).triu(1)       # (n, n): True = not yet written
    return score.masked_fill(later, -torch.inf).softmax(dim=-1) @ x       # (n, d)


def convolution(x, weight, dilation=1):                            # (n, d), (d, d, k)
    past = F.pad(x.T, (dilation * (weight.shape[2] - 1), 0))       # (d, past + n)
    return F.conv1d(past[None], weight, dilation=dilation)[0].T    # (n, d)


def restricted(x, r):                                              # (n, d)
    near = F.pad(x, (0, 0, r - 1, 0)).unfold(0, r, 1)              # (n, d, r): each one's r last
    exists = torch.arange(len(x))[:, None] > torch.arange(r - 2, -2, -1)  # (n, r)
    score = (x[:, None] @ near)[:, 0] / x.shape[1] ** 0.5          # (n, r)
    weight = score.masked_fill(~exists, -torch.inf).softmax(dim=-1)
    return (near @ weight[..., None])[..., 0]                      # (n, d)


# %% [markdown]
# `unfold` lays a window over the rows: position $i$ sees $i - r + 1 \dots i$. Nowhere is there an $n \times n$ tensor.
# Is it right? With $r = n$ nothing is restricted:

# %%
torch.manual_seed(0)
x = torch.randn(48, 16)                                            # (n, d)
prove_equal(restricted(x, 48), attention(x), what="A neighbourhood of all, and attention")


# %% [markdown]
# ### 7.2 First column: operations
#
# Count each layer, and count it again with $n$ doubled, $d$ doubled, and $k$ or $r$ doubled. The exponent of each is
# $\log_2$ of what comes out. Which row will be the only one with a 2 under $n$? Which ones have a 2 under $d$?

# %%
def layer(name, n, d, width):                                      # a layer, ready to be called
    x = torch.randn(n, d)                                          # (n, d)
    if name == "recurrent":
        rnn = nn.RNN(d, d, bias=False, batch_first=True)
        return lambda: rnn(x[None])
    weight = torch.randn(d, d, width)                              # (d, d, k)
    return {"self-attention": lambda: attention(x), "restricted": lambda: restricted(x, width),
            "convolutional": lambda: convolution(x, weight)}[name]


# %% [markdown]
# Now count, and double one size at a time:

# %% tags=["hide-output"] jupyter={"outputs_hidden": true}
LAYERS = "self-attention", "recurrent", "convolutional", "restricted"
for name in LAYERS:
    n, d, width = 64, 32, 4
    base, *doubled = (operations(layer(name, *size)) for size in (
        (n, d, width), (2 * n, d, width), (n, 2 * d, width), (n, d, 2 * width)))
    powers = [f"{exponent(base, each):.0f}" for each in doubled]
    print(f"{name:15} {base:9,} operations; exponent of n {powers[0]}, of d {powers[1]}, "
          f"of k or r {powers[2]}")

# %% [markdown]
# All twelve exponents are the table's. And its constants, which $O$ hides? Self-attention $4n^2d$, recurrent $4nd^2$
# ($W h$ and $U x$, $2d^2$ each), convolutional $2knd^2$, restricted $4rnd$:

# %%
n, d, width = 64, 32, 4
formula = 4 * n**2 * d, 4 * n * d**2, 2 * width * n * d**2, 4 * width * n * d
for name, expected in zip(LAYERS, formula, strict=True):
    assert operations(layer(name, n, d, width)) == expected, name
print("the counts are those of the formulas:", ", ".join(f"{each:,}" for each in formula))


# %% [markdown]
# So self-attention takes fewer operations than a recurrent layer as long as $n < d$, as the paper says: a sentence of
# 40 words at a width of 512. But mind what is compared. With its four projections, $8nd^2$ more, an attention layer
# never takes fewer than a plain recurrent one. Against an LSTM, whose four gates take $16nd^2$, it does up to $n = 2d$.
# It is not operations that decided between them. It is the next column.
#
# ### 7.3 Second column: steps that wait
#
# How many computations must wait for one another, whatever machine you have? Autograd writes down what was computed
# from what: each result has a node, and each node knows the ones before it. The longest chain in this graph is what no
# machine can do at the same time. (A whole matrix product is one node, and so is a softmax: one step each, as in the
# table.)

# %%
def chain(out):                                                    # nodes in the longest chain
    lengths, waiting = {}, [out.grad_fn]
    while waiting:
        before = [node for node, _ in waiting[-1].next_functions if node is not None]
        missing = [node for node in before if node not in lengths]
        if missing:
            waiting += missing
        else:
            node = waiting.pop()
            lengths[node] = 1 + max((lengths[each] for each in before), default=0)
    return lengths[out.grad_fn]


# %% [markdown]
# Each layer is run at three lengths, so that there is a graph to walk through:

# %%
def traced(name, n, d=16, width=4):
    x = torch.randn(n, d, requires_grad=True)                      # (n, d)
    weight, rnn = torch.randn(d, d, width), nn.RNN(d, d, batch_first=True)
    return {"self-attention": attention, "recurrent": lambda x: rnn(x[None])[0],
            "restricted": lambda x: restricted(x, width),
            "convolutional": lambda x: convolution(x, weight)}[name](x)


for name in LAYERS:
    print(f"{name:15} chains of", ", ".join(f"{chain(traced(name, n)):3}" for n in (16, 32, 64)),
          "nodes for n = 16, 32, 64")

# %% [markdown]
# Only the recurrent layer waits for its own past. The other chains do not know how long the text is. What does waiting
# cost? Here are the operations of each layer, its time on one thread, and what it gets done in a nanosecond. Guess
# which gets the most done, and which the least.

# %% jupyter={"outputs_hidden": true} tags=["nbval-ignore-output", "hide-output"]
n, d = 2048, 64
for name in LAYERS:
    compute = layer(name, n, d, 4)
    spent, work = milliseconds(compute, repeats=3), operations(compute)
    print(f"{name:15} {work / 1e6:7.1f} MFLOP in {spent:5.1f} ms: {work / spent / 1e6:5.1f} per ns")


# %% [markdown]
# The convolution is one large product, and gets the most done. The recurrent layer is 2,048 small ones, one after
# another, and gets less than a twentieth of that done. On a GPU with thousands of units the gap becomes a gulf, since one
# small product can't keep them busy. (Our restricted layer gets the least done, for another reason: its products are
# tiny, and each neighbourhood is copied. Lesson 31 does better.)
#
# ### 7.4 Third column: the longest path
#
# How many layers must the news from the first position pass until it is heard at the last? Ask the gradient. If
# the last output does not depend on the first input, its gradient there is exactly 0. So stack layers until it is not:

# %%
def layers_needed(apply, n, d=8):
    torch.manual_seed(0)
    x = torch.randn(n, d, requires_grad=True)                      # (n, d)
    asked = torch.randn(d)                                         # a sum of all entries might cancel
    y, number = x, 0
    while True:
        y, number = apply(y, number), number + 1
        (gradient,) = torch.autograd.grad(y[-1] @ asked, x, retain_graph=True)  # (n, d)
        if gradient[0].abs().max() > 0:
            return number


# %% [markdown]
# Four kinds of layer to stack. The third is a **dilated** convolution: its $k$ inputs are further apart in each layer,
# 1, 3, 9 … positions:

# %%
kernel = torch.randn(8, 8, 3) / 24**0.5                            # (d, d, k): k = 3
stacks = {
    "self-attention": lambda y, number: attention(y),
    "convolutional": lambda y, number: convolution(y, kernel),
    "dilated": lambda y, number: convolution(y, kernel, dilation=3**number),
    "restricted": lambda y, number: restricted(y, 9),
}

# %% [markdown]
# A recurrent layer needs one layer. But inside it the news passes through $n$ steps, one per position, and may fade in
# each (lesson 02), so its path is $n$. The others:

# %%
lengths = [9, 27, 81, 243]
needed = {name: [layers_needed(apply, n) for n in lengths] for name, apply in stacks.items()}
for name, layers in needed.items():
    print(f"{name:15} layers for n = 9, 27, 81, 243:", "  ".join(f"{each:3}" for each in layers))
paths = {"recurrent (steps)": lengths} | needed

# %% [markdown]
# With the steps of the recurrent layer beside them:

# %%
plots.lines(
    {name: (lengths, path) for name, path in paths.items()}, xscale="log", yscale="log", marker="o",
    title="Attention hears the first token at once, however far it is", xlabel="length n",
    ylabel="layers, or steps, on the path",
    alt="Layers that the news from the first position passes until the last one, against the length, "
    "logarithmic. " + "; ".join(f"{name}: {', '.join(map(str, path))}" for name, path in paths.items())
    + " for 9, 27, 81 and 243 positions.",
)

# %% [markdown]
# Read it against the table. Self-attention: 1, always. Restricted: with $r = 9$ each layer looks 8 back, so about $n/8$
# layers: the price of leaving the square. And the convolution? The table says $\log_k n$, but the measured line is as
# steep as the recurrent one's: about $n/(k-1)$. It is the *dilated* convolution, whose $k$ inputs stand ever further
# apart from layer to layer, that needs $\log_3 n$ layers: 2, 3, 4, 5. The paper says so in its text: $O(n/k)$ for
# contiguous kernels, $O(\log_k n)$ for dilated ones.
#
# What an output can depend on is its **receptive field**. With $L$ layers of width $k$ it has $1 + L (k - 1)$ positions.
# With dilation the gaps add up: it grows $k$-fold with each layer where they are $1, k, k^2 \dots$, as here, and about
# doubles where they are $1, 2, 4 \dots$, whatever $k$ is. The library has the formula:

# %%
from txlib.layers.convolution import receptive_field

for n, plain, dilated in zip(lengths, needed["convolutional"], needed["dilated"], strict=True):
    sees, fewer = (receptive_field(3, [1] * (plain - less)) for less in (0, 1))
    wide, narrow = (receptive_field(3, [3**i for i in range(dilated - less)]) for less in (0, 1))
    print(f"n {n:3}: {plain:3} layers see {sees:3}, one fewer {fewer:3}; "
          f"{dilated} dilated ones {wide:3}, one fewer {narrow:3}")

# %% [markdown]
# Two translators were built of convolutions: ByteNet (Kalchbrenner et al. 2016), dilated by 1, 2, 4 … and without
# attention, and ConvS2S (Gehring et al. 2017), with attention in every decoder layer. Both are in the library
# (`txlib.models.ByteNet`, `txlib.models.ConvSeq2Seq`). All positions of a layer are computed at once, so they train in
# parallel, and their paths are short, but not 1. How they fare against recurrent nets is in lesson 02, section 7.
#
# That is the bargain of 2017: no waiting, and a path of one, for a square of scores. At 30 words and a width of 512 the
# square was 1 % of the block. Nobody had to think about the wall, until texts grew.

# %% [markdown]
# ## 8 Why 512, why 1,024?
#
# BERT reads 512 tokens, GPT-2 1,024. Nothing in the equations says so. Three things did:
#
# - **The table of positions has that many rows** (lesson 05). A learned position that was never trained does not exist.
#   Sinusoidal or rotary positions have no such last row.
# - **Memory in training.** Scores were written out then. Section 5 shows what 4,096 would have cost in GPT-2's
#   smallest model: 13 GB for *one* text, when a large GPU had 16 or 32.
# - **Time.** Devlin et al. (2019, appendix A.2) trained BERT on 128 tokens for nine tenths of all steps, and on 512
#   only at the end, because long sequences are "disproportionately expensive".
#
# All three have moved since: rotary positions, fused kernels, machines. Here are models at their full length. Three
# numbers for each: the scores' share of the operations; the scores of one block if they were written out in 16 bits;
# and the cache of keys and values (lesson 13). Widths and feed-forward networks are each model's own, so we count
# instead of using $n/(n+6d)$.

# %%
from txlib.layers import RotaryConfig, TransformerBlock
from txlib.models.sizes import BERT, GPT3, LLAMA

llama_7b = LLAMA["7b"]
llama_8b = replace(llama_7b, max_length=131_072,
                   block=llama_7b.block.replace(
                       d_ff=14_336, kv_heads=8, position=RotaryConfig(base=5e5, layout="half")))
FAMILIES = {
    "BERT base, 2018": BERT["base"], "GPT-2 small, 2019": GPT2["small"], "GPT-3, 2020": GPT3["175b"],
    "Llama 7B, 2023": llama_7b, "Llama 3.1 8B, 2024": llama_8b,
}


# %% [markdown]
# Each config is built on the meta device, and its operations are counted:

# %%
def of_its_block(config):
    n, block = config.max_length, config.block.replace(dropout=0.0, attention_dropout=0.0)
    with torch.device("meta"):
        whole = operations(TransformerBlock(block), torch.empty(1, n, block.d_model))
    pairs = block.attention.heads * n**2
    kv_heads = block.attention.kv_heads or block.attention.heads
    cache = 2 * config.layers * kv_heads * block.head_dim * n     # numbers
    return n, 4 * pairs * block.head_dim / whole, 2 * pairs / 1e9, 2 * cache / 1e9


for name, config in FAMILIES.items():
    n, share, scores, cache = of_its_block(config)
    kept = "no cache" if "BERT" in name else f"cache {cache:6.2f} GB"
    print(f"{name:19} n {n:7,}: scores {share:4.0%} of the operations, "
          f"{scores:8,.2f} GB per block; {kept}")

# %% [markdown]
# For years the share stayed small: models grew wider as they grew longer. The last row is another world. Its scores
# would take a terabyte per block. Fused kernels are what makes such a model possible. And when its context is full,
# most of its work is the square: 83 %, or 71 % if the kernel skips the half that is masked. (The sizes are from
# Llama Team 2024. Gemini 1.5 was tested on ten million tokens, Gemini Team 2024; how its attention is computed was not
# published.)
#
# **When a model writes**, the square hides. With a cache, one new token meets $n$ old ones: $4nd$ operations per block
# beside $24d^2$, and the cache grows by one row. *Linear*, per token. But a text is many tokens:
#
# $$\sum_{i=1}^{n} 4 i d \approx 2 n^2 d$$
#
# That is half of the square, the half below the diagonal, spread over time. And the cache must be *read* for each
# token, 17 GB of it in the last row. Lesson 13 measured that waiting for memory. Lesson 16 showed how sharing keys and
# values makes the cache four times smaller than it would be (that is in the last row already).

# %% [markdown]
# ## 9 Break it: just cut the text
#
# The cheapest way round the wall: let the model read the last 512 tokens and forget the rest. What is lost?
#
# ### 9.1 In a real model
#
# The small real Llama of lesson 17 reads 128 tokens. We give it *Twelfth Night*, in pieces, and note its loss at each
# place of a piece. At place $i$ it has $i$ tokens to go by. That is the loss of a model cut to a context of $i$.

# %% tags=["nbval-ignore-output"]
from txlib.data import shakespeare
from txlib.models.pretrained import load_pretrained
from txlib.text import load_tokenizer

llama, tokenizer = load_pretrained(shipped("glassllm-en")), load_tokenizer(shipped("glassllm-en"))
text = torch.tensor(tokenizer.encode(shakespeare().validation))    # (tokens,)
pieces = text[: 200 * 129].view(200, 129)                          # (pieces, n + 1)
with torch.no_grad():
    logits = llama.float()(pieces[:, :-1]).logits                  # (pieces, n, vocab)
losses = F.cross_entropy(logits.flatten(0, 1), pieces[:, 1:].flatten(), reduction="none")
by_place = losses.view(200, 128).mean(dim=0)                       # (n,)
for low, high in ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, 64), (65, 128)):
    loss, count = by_place[low - 1 : high].mean(), 200 * (high - low + 1)
    print(f"{low:3} to {high:3} tokens of context: loss {loss:.2f} nats, the mean of {count:,}")

# %% [markdown]
# With three or four tokens the loss is 0.8 nats lower than with one; what comes beyond them hardly matters. (Don't read
# much into the ups and downs: the first lines average only a few hundred losses each.) If that were the whole truth,
# nobody would need long contexts. But this model is small, it learned from other books, in pieces of 128 tokens, and so
# it has never had a reason to look further. Ask the *text*, not the model.
#
# ### 9.2 In the text
#
# Many words of *Hamlet* are neither frequent nor alone: they occur two to ten times. Names, places, plots, poison. When
# such a word comes back, how far away was it mentioned last? If that lies beyond the context, then to the model the
# word is new. Guess: for what part of them does a context of 1,024 tokens suffice?

# %% jupyter={"outputs_hidden": true} tags=["hide-output"]
import re
from collections import Counter

found = [(word.group().lower(), word.start()) for word in re.finditer(r"[A-Za-z']+", play)]
times = Counter(word for word, _ in found)
tokens_per_character, seen, distances = len(ids) / len(play), {}, []
for word, place in found:
    if 2 <= times[word] <= 10:
        if word in seen:
            distances.append((place - seen[word]) * tokens_per_character)  # in tokens
        seen[word] = place
contexts = [2**k for k in range(7, 17)]
in_view = [100 * sum(each <= n for each in distances) / len(distances) for n in contexts]
print(f"{len(distances):,} times such a word comes back; its last mention is in view:")
print("  ".join(f"{n:,}: {share:.0f} %" for n, share in zip(contexts, in_view, strict=True)))

# %% [markdown]
# Every doubling of the context brings a few more into view:

# %%
plots.lines(
    {"last mention in view": (contexts, in_view)}, xscale="log", marker="o", mark=("GPT-2", 1024),
    title="With 1,024 tokens, most rare words look new", xlabel="context (tokens)",
    ylabel="rare words that come back (%)",
    alt="Share of returning rare words whose last mention is within the context, against its length: "
    + ", ".join(f"{share:.0f} % at {n:,}" for n, share in zip(contexts, in_view, strict=True)) + ".",
)

# %% [markdown]
# For less than a quarter of them. To have half of them in view takes more than 4,096 tokens.
#
# ### 9.3 In a compressor
#
# One more witness, and a plain one. A compressor is a model of text, too: what it can predict, it need not store.
# `lzma` looks for repetitions within a window, and you choose how large that is. How many bits does a character of the
# play take?

# %% tags=["nbval-ignore-output"]
import lzma

raw = play.encode()
for kilobytes in (4, 16, 64, 256):
    window = {"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 1024 * kilobytes}
    packed = lzma.compress(raw, format=lzma.FORMAT_RAW, filters=[window])
    print(f"window of {kilobytes:3} kB (about {1024 * kilobytes * tokens_per_character:6,.0f} tokens): "
          f"{8 * len(packed) / len(raw):.2f} bits per character")

# %% [markdown]
# With the smallest window the play takes 17 % more room than with the largest, which holds all of it. Each step helps
# less than the one before, and each one helps. What stands far away is worth less than what stands near, but it is
# worth something all the way. Keep that in mind when you look for a cheaper pattern than the square: **a lot from
# nearby, a little from everywhere.**

# %% [markdown]
# ## 10 The map: ways round the wall
#
# Tay et al. (2020; 2022) have put dozens of "efficient Transformers" in order. Their families, as what each computes in
# place of the square:

# %%
figures.ways_round(
    title="Six ways round the square",
    alt="Six small squares of queries against keys. Fixed patterns: a band along the diagonal. "
    "Learnable patterns: scattered cells. Memory: a few full rows and columns. Recurrence: blocks "
    "along the diagonal, each with the one before. Low rank: a narrow rectangle, n by k. Kernels: two "
    "narrow rectangles, n by r and r by n.",
)

# %% [markdown]
# | Family | The idea | For example | Operations | Here |
# | --- | --- | --- | --- | --- |
# | fixed patterns | compute only pairs chosen beforehand: near ones, every tenth … | Sparse Transformer (Child et al. 2019), Longformer (Beltagy et al. 2020) | $O(n \sqrt n)$, $O(nr)$ | 20 |
# | learnable patterns | find out which pairs matter, by hashing or clustering | Reformer (Kitaev et al. 2020), Routing Transformer (Roy et al. 2020) | $O(n \log n)$, $O(n \sqrt n)$ | – |
# | memory | a few tokens that read all and are read by all | Set Transformer (Lee et al. 2019), global tokens of Longformer and Big Bird (Zaheer et al. 2020) | $O(nm)$ | 18, 20 |
# | recurrence | segments; each reads what is kept of the one before | Transformer-XL (Dai et al. 2019) | $O(nr)$ | – |
# | low rank | squeeze $n$ keys into $k$ | Linformer (Wang et al. 2020) | $O(nk)$ | 21 |
# | kernels | replace the softmax by a product, and multiply in the other order | Performer (Choromanski et al. 2020), Linear Transformer (Katharopoulos et al. 2020) | $O(nr)$ | 21 |
#
# Many methods are in several families at once: Big Bird has a window, global tokens, *and* random pairs. The edition of
# 2022 adds two that leave the square alone and shrink something else: **downsampling**, which shortens the sequence
# itself (Perceiver), and **sparse models**, which you know from lesson 18.
#
# Two questions to ask each of them, in the next lessons. *What can it no longer see*, and does that matter on real
# text? And *is it faster in seconds*, at a length that you use, than a fused kernel that computes everything?

# %% [markdown]
# ## 11 Open the library
#
# In `txlib` the definition of section 4 is `attention_weights`; `DenseAttention`, which every model has unless told
# otherwise, decides between it and the fused kernel. You have used both with `DenseConfig(fused=…)`.

# %%
from txlib.attention import DenseAttention, attention_weights, causal, sliding_window

show_source(attention_weights, DenseAttention.runs_fused)

# %% [markdown]
# Same numbers, both ways:

# %%
torch.manual_seed(0)
x = torch.randn(3, 300, 64)                                        # q, k, v: (n, d) each
part = Block(64, 4, 256)
q, k, v = x.unflatten(2, (4, -1)).transpose(1, 2)[:, None]         # (1, heads, n, d_k) each
for way in (True, False):
    out = DenseAttention(fused=way)(q, k, v)[0].transpose(0, 1).flatten(1)        # (n, d)
    prove_equal(out, part.mix(*x), what=f"fused={way}: the library's and ours")

# %% [markdown]
# And our restricted attention? A mask says the same: causal, and no further back than $r - 1$. A mask can count its
# pairs without an $n \times n$ tensor:

# %%
x, r = torch.randn(300, 64), 16                                    # (n, d)
mask = causal() & sliding_window(r - 1)
one_head = x[None, None]                                           # (1, 1, n, d)
dense = DenseAttention(fused=False)
out = dense(one_head, one_head, one_head, mask)[0, 0]              # (n, d)
prove_equal(out, restricted(x, r), what="Mask and neighbourhood")
print(f"pairs that the mask allows: {mask.pairs(300):,} of {300 * 300:,};"
      f" at 50,000 tokens {mask.pairs(50_000):,} of {50_000**2:,}")

# %% [markdown]
# What does the dense mechanism *do* with that mask, though? Will it count fewer operations than without?

# %%
without = operations(dense, one_head, one_head, one_head)
masked = operations(dense, one_head, one_head, one_head, mask)
print(f"dense without a mask {without:,}, with it {masked:,};"
      f" our restricted layer {operations(restricted, x, r):,}")

# %% [markdown]
# None saved. Dense attention computes every pair, and then throws most of them away. **A mask says what may be seen,
# not what is computed.** How to turn the one into the other, so that a mask costs hardly more than what it allows, is
# the heart of lesson 31.

# %% [markdown]
# ## 12 Quiz
#
# Decide first, then open an answer.
#
# **1. Which of these statements is CORRECT?** ($n$: length of the text, $d$: width)
#
# <details><summary>A. A self-attention layer is O(n · d²), a recurrent one O(n² · d)</summary>
#
# Exchanged. Attention compares $n^2$ pairs of vectors of width $d$; a recurrent layer multiplies each of $n$ vectors by
# matrices of $d \times d$.
# </details>
# <details><summary>B. A self-attention layer takes O(n) sequential steps, a recurrent one O(1)</summary>
#
# Exchanged again. All scores can be computed at once; a recurrent state has to wait for the one before it.
# </details>
# <details><summary>C. In self-attention the longest path between two positions is O(1), in a recurrent layer O(n)</summary>
#
# Right. Each position reads each other one directly. In the recurrent layer the news passes through every state between
# them.
# </details>
# <details><summary>D. Restricting attention to r neighbours lowers the operations and leaves the longest path as it is</summary>
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
# **3. A model with d = 4,096 and a plain feed-forward network ($d_\text{ff} = 4d$) reads 4,096 tokens. Scores and mixing are**
#
# <details><summary>A. half of the operations: n = d</summary>
#
# At $n = d$ the *areas* of section 3 are equal. The operations have other constants: $4n^2d$ against $24nd^2$.
# </details>
# <details><summary>B. one seventh</summary>
#
# Right: $n/(n+6d) = 1/7$.
# </details>
# <details><summary>C. one third</summary>
#
# That is their share of the *attention* layer, $4n^2d$ of $8nd^2 + 4n^2d$. The feed-forward network is missing.
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
#
# **5. Float32 scores of one head take 10 GB at 50,000 tokens. And at 5,000, in 16 bits?**
#
# <details><summary>A. 500 MB</summary>
#
# That is a tenth of half. But a tenth of the length is a *hundredth* of the square.
# </details>
# <details><summary>B. 50 MB</summary>
#
# Right: a hundredth for the length, half for the bits.
# </details>
# <details><summary>C. 100 MB</summary>
#
# In 32 bits.
# </details>
#
# **6. You add a sliding-window mask of 256 to a model with dense attention, at 16,384 tokens. It becomes**
#
# <details><summary>A. about 64 times faster</summary>
#
# That is what the mask would allow. But a mask alone removes no operation.
# </details>
# <details><summary>B. no faster, unless the mechanism makes use of the mask</summary>
#
# Right. Dense attention computes all pairs and throws most of them away: section 11.
# </details>
# <details><summary>C. slower in each step, but it needs fewer steps</summary>
#
# There is nothing sequential in either.
# </details>

# %% [markdown]
# ## 13 Summary
#
# - Double the length, and see what the cost is multiplied by: 2 is linear, 4 is quadratic. On logarithmic axes the
#   slope is the exponent. $O$ says who is higher in the end, constants say where the end begins.
# - A block costs $24nd^2 + 4n^2d$. Scores and mixing overtake the projections at $n = 2d$, everything else at $6d$; on
#   the clock somewhat earlier. Their share is $n/(n+6d)$: 2.7 % in GPT-3, more than 80 % in a Llama with 131,072
#   tokens.
# - Written out, scores take $n^2$ numbers per head: 10 GB at 50,000. Fused kernels make the memory linear. The
#   operations stay.
# - The square buys attention two things: nothing waits, and the path is a single step. Recurrent layers wait;
#   convolutions and windows need more layers the further the news has to go.
# - 512 and 1,024 were tables of positions, memory and patience, not laws.
# - Cutting the text loses what stands far away: with 1,024 tokens, three out of four rare words that come back look
#   new.
# - A mask says what may be seen, not what is computed.
#
# **Read** Vaswani et al. 2017, *Attention Is All You Need*, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762),
# section 4. Tay et al. 2020, *Efficient Transformers: A Survey*, [arXiv:2009.06732](https://arxiv.org/abs/2009.06732),
# section 3 (its later edition is in ACM Computing Surveys, 2022). Dao et al. 2022, *FlashAttention*,
# [arXiv:2205.14135](https://arxiv.org/abs/2205.14135), sections 2 and 3.1. Brown et al. 2020, *GPT-3*,
# [arXiv:2005.14165](https://arxiv.org/abs/2005.14165), section 2.1. Devlin et al. 2019, *BERT*,
# [arXiv:1810.04805](https://arxiv.org/abs/1810.04805), appendix A.2. Llama Team 2024, *The Llama 3 Herd of Models*,
# [arXiv:2407.21783](https://arxiv.org/abs/2407.21783), section 3.2. Gemini Team 2024, *Gemini 1.5*,
# [arXiv:2403.05530](https://arxiv.org/abs/2403.05530), on long contexts. Of the map: Child et al. 2019,
# [arXiv:1904.10509](https://arxiv.org/abs/1904.10509); Kitaev et al. 2020,
# [arXiv:2001.04451](https://arxiv.org/abs/2001.04451); Roy et al. 2020,
# [arXiv:2003.05997](https://arxiv.org/abs/2003.05997); Dai et al. 2019,
# [arXiv:1901.02860](https://arxiv.org/abs/1901.02860); the others come with their lessons.
#
# **Do** the exercise [30_wall](../exercises/exercise_30_wall.ipynb). Then go on to
# [31 Sparse patterns](31_sparse.ipynb).
