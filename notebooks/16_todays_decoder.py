# %% [markdown] lesson={"part": "II Language models", "builds": "RMSNorm, SwiGLU, rotary, shared and latent keys, QK-norm: one swap at a time"}
# # 16 · Today's decoder: from GPT-2 to Llama, and on
#
# **After this lesson you will be able to**
#
# - name the parts that changed between GPT-2 (2019) and today's open models, and build each of them;
# - say what each swap bought in *your* measurements: loss, memory, stability, or nothing beyond the noise;
# - count the cache of a real model, and say why query heads share keys and values.
#
# **You need** lessons 05, 06, 10 and 13. **It takes** about 60 minutes to read and try; all cells together run in about
# a minute on a laptop. Most of that is ten small language models, trained one after another.

# %% [markdown]
# ## 1 The problem: a file that your GPT cannot hold
#
# In lesson 10 you built GPT-2. Here is a real model of today's kind, small enough to be bundled with the course:
# 852,608 parameters, trained by its author on the books of Lewis Carroll. Like nearly all models today it is a folder.
# First the imports:

# %% tags=["recorded"]
import time
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import nn

from txlib import plots
from txlib.data import shakespeare, shipped
from txlib.paths import DATA
from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress, prove_equal

# %% [markdown]
# The folder's largest file holds the tensors. Here are the names and shapes of those in the first of four blocks, and
# of those outside the blocks:

# %%
with safe_open(shipped("glassllm-en") / "model.safetensors", "pt") as file:
    for name in file.keys():
        if "layers" not in name or "layers.0" in name:
            print(f"{name:48} {file.get_slice(name).get_shape()}")

# %% [markdown]
# Compare with the GPT of lesson 10, tensor by tensor. What is different?
#
# - There is no table of positions, and not a single bias.
# - The norms have a `weight` only: a gain.
# - The feed-forward network has *three* matrices, and 341 entries in the middle where you expect 4 · 128 = 512.
# - Keys and values are only half as wide as queries: 64 rows, not 128.
#
# Your GPT has no place for these numbers. In this lesson we put each new part into the same small model, one at a time,
# and measure what it does. In lesson 17 your own model will hold this file, and write.

# %% [markdown]
# ## 2 The idea in one picture
#
# Here is where these differences belong. Read both towers from the bottom. The wiring is the same: pre-norm blocks on a
# residual stream, and one last norm, as in lesson 06.

# %% jupyter={"source_hidden": true}
figures.decoders()

# %% [markdown]
# On the left, Radford et al. (2019). On the right, the block of Llama 2 70B and Llama 3, and of Mistral, Qwen and most
# others; the first Llama (Touvron et al. 2023) still had one KV head (of keys and values, lesson 13) per query head.
# Each part is older than Llama. Which parts make the model *simpler* (section 4), *better* (section 5) and *smaller in
# use* (section 6)? Section 7 asks the same about what came after Llama.

# %% [markdown]
# ## 3 The test bench
#
# We have two decoders on paper. What is missing is a small model whose parts can be swapped, and the same training for
# all. It learns from twelve plays by Shakespeare, character by character, and is tested on another:

# %% tags=["recorded"]
texts = shakespeare()
alphabet = sorted(set(texts.train))
number = {character: id for id, character in enumerate(alphabet)}


def encode(text):  # (length,)
    return torch.tensor([number[letter] for letter in text if letter in number])


train_ids, test_ids = encode(texts.train), encode(texts.validation)

# %% [markdown]
# ### 3.1 GPT-2, with parts that can be swapped
#
# Attention is lesson 04's, cut into methods, so that a swap can change one of them and inherit the others. `s` holds
# the settings.


# %% tags=["recorded"]
class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.d_k = s.d_model // s.heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(s.d_model, s.d_model, s.bias) for _ in range(4))

    def split(self, x):  # (batch, n, heads · d_k) to (batch, heads, n, d_k)
        return x.unflatten(-1, (-1, self.d_k)).transpose(1, 2)

    def make_heads(self, x):  # (batch, n, d_model)
        return [self.split(make(x)) for make in (self.query, self.key, self.value)]

    def mix(self, q, k, v):  # (batch, heads, n, d_k) each
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x):  # (batch, n, d_model)
        mixed = self.mix(*self.make_heads(x))  # (batch, heads, n, d_k)
        return self.output(mixed.transpose(1, 2).flatten(2))


# %% [markdown]
# The feed-forward network is lesson 06's, with GPT-2's gelu. The block is lesson 06's as well, pre-norm.


# %% tags=["recorded"]
class Gelu(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.up_proj = nn.Linear(s.d_model, s.d_ff, s.bias)
        self.down_proj = nn.Linear(s.d_ff, s.d_model, s.bias)

    def forward(self, x):  # (batch, n, d_model), by way of (batch, n, d_ff)
        return self.down_proj(F.gelu(self.up_proj(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.attention, self.feed_forward = s.attention(s), s.feed_forward(s)
        self.attention_norm = s.norm(s.d_model, s.eps)
        self.feed_forward_norm = s.norm(s.d_model, s.eps)

    def forward(self, x):  # (batch, n, d_model)
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


# %% [markdown]
# The decoder stacks blocks. `length` is the number of learned positions, if there are any. Where `tied` is set, the
# embedding's matrix is also the output matrix (lesson 10).


# %% tags=["recorded"]
class Decoder(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embedding = nn.Embedding(s.vocab, s.d_model)
        self.position = nn.Embedding(s.length, s.d_model) if s.length else None
        self.blocks = nn.ModuleList(s.block(s) for _ in range(s.blocks))
        self.norm = s.norm(s.d_model, s.eps)
        self.output = None if s.tied else nn.Linear(s.d_model, s.vocab, bias=False)

    def forward(self, ids):  # (batch, n)
        x = self.embedding(ids)  # (batch, n, d_model)
        if self.position is not None:
            x = x + self.position.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ (self.output or self.embedding).weight.T


# %% [markdown]
# The settings hold the sizes and the *parts themselves*, as classes, so swapping a part takes one word:
# `swap(gpt2, norm=RMSNorm)`.

# %% tags=["recorded"]
def swap(settings, **changes):
    return SimpleNamespace(**{**vars(settings), **changes})


gpt2 = SimpleNamespace(
    block=Block, attention=Attention, feed_forward=Gelu, norm=nn.LayerNorm, eps=1e-5,
    bias=True, tied=True,
    vocab=len(alphabet), d_model=64, heads=4, d_ff=256, blocks=2, length=32,
)

# %% [markdown]
# ### 3.2 The same training for all
#
# Models of the same seed read the same batches. We note the loss on the unseen play.

# %% tags=["recorded"]
torch.set_num_threads(1)  # for models this small, more threads only wait


def windows(ids, starts, n=32):
    chunk = ids[starts[:, None] + torch.arange(n + 1)]  # (batch, n + 1)
    return chunk[:, :-1], chunk[:, 1:]  # what is read, what comes next


def loss_of(model, read, following):
    return F.cross_entropy(model(read).flatten(0, 1), following.flatten())


@torch.no_grad()
def test_loss(model):
    starts = torch.arange(0, 1000 * 100, 100)  # (1000,): all over the play
    return loss_of(model, *windows(test_ids, starts)).item()


# %% [markdown]
# The optimizer is AdamW; its rate warms up briefly, then falls in a straight line to 0. Every matrix starts with a
# spread of 1 / √columns, so that its output is about as large as its input.


# %% tags=["recorded"]
def train(settings, seed=0, steps=240, rate=6e-3):
    torch.manual_seed(seed)
    starts, model = torch.randint(len(train_ids) - 33, (steps, 24)), Decoder(settings)
    for weight in model.parameters():
        if weight.dim() == 2:
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), fused=True)
    for step in progress(range(steps), "training"):
        now = rate * min((step + 1) / 25, (steps - step) / (steps - 25))
        optimizer.param_groups[0]["lr"] = now
        optimizer.zero_grad()
        loss_of(model, *windows(train_ids, starts[step])).backward()
        optimizer.step()
    return model


# %% [markdown]
# Each training makes a row of this lesson's table. We measure processor time, so that other programs do not
# count. (Ignore the first row's: torch is still warming up.)

# %% tags=["nbval-ignore-output"]
table, models = {}, {}


def row(name, settings, **options):
    begun = time.process_time()
    model = models[name] = train(settings, **options)
    seconds, loss = time.process_time() - begun, test_loss(model)
    size, table[name] = sum(weight.numel() for weight in model.parameters()), loss
    print(f"{name:14} loss {loss:.3f} | {size:,} parameters | {seconds:.1f} s")


row("GPT-2", gpt2)
row("GPT-2, seed 1", gpt2, seed=1)

# %% [markdown]
# The two differ only in the seed, that is, in the initial weights and the batches. If a swap changes the loss by less
# than this difference, one run cannot tell it from noise.

# %% tags=["nbval-ignore-output"]
expect("Loss of GPT-2", table["GPT-2"], 2.3, 2.55)
predict("swaps", "Five swaps follow. Which will lower the loss by more than the noise?",
        "RMS norm instead of layer norm", "no biases", "SwiGLU instead of gelu",
        "rotary instead of learned positions", "half as many keys and values")

# %% [markdown]
# ## 4 Two swaps that make it simpler
#
# ### 4.1 RMS norm
#
# We have layer norm: subtract the mean, divide by the deviation. Is the mean needed? You know the alternative from
# lesson 06: leave the mean in, and divide by the root of the mean square. For 1, 3, 5, 7 that root is
# $\sqrt{(1 + 9 + 25 + 49)/4} = 4.58$.
#
# $$\text{rms}(x) = \text{gain} \odot \frac{x}{\sqrt{\frac{1}{d}\sum_i x_i^2 + \epsilon}}$$
#
# *Why it should work:* a norm is there to control sizes (lesson 06), and dividing by the size is enough for that. Zhang
# & Sennrich (2019) find it as good, and faster, since there is less to compute.
#
# One detail is new. Large models compute in 16 bits. The largest number that half precision (float16) can hold is
# 65,504; bfloat16, which most models are trained in, reaches as far as 32 bits do, but keeps only two or three digits.
# So the square, the mean and the root are computed in 32 bits, whatever comes in.


# %% tags=["recorded"]
class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):  # (..., size)
        wide = x.float()  # in 32 bits
        scale = (wide.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()  # 1 / √
        return self.weight * (wide * scale).type_as(x)


# %% [markdown]
# What if you are careless, and stay in half precision?

# %%
norm = RMSNorm(64, 1e-6).half()
for size in (1, 100, 300):
    x = torch.full((64,), float(size)).half()  # (size,)
    careless = x * (x.square().mean() + 1e-6).rsqrt()  # all in 16 bits
    print(f"entries of {size:3}: careless {careless[0]:.2f}, ours {norm(x)[0]:.2f}")
x = torch.randn(10, 64)  # (n, size)
theirs = F.rms_norm(x, (64,), eps=1e-6)
prove_equal(RMSNorm(64, 1e-6)(x), theirs, what="Ours and torch's")

# %% [markdown]
# An entry of 300 is nothing special in the residual stream of a large model. Its square, 90,000, is infinity in half
# precision, and everything divided by infinity is 0. No error, no NaN; the token is simply gone.
#
# Swap it in:

# %% tags=["nbval-ignore-output"]
with_rms = swap(gpt2, norm=RMSNorm, eps=1e-6)
row("RMS norm", with_rms)

# %% [markdown]
# The loss changes much less than between two seeds. Our norm is not faster, perhaps because torch computes layer norm
# in one call and ours takes five steps. Zhang & Sennrich compared like with like, and saved 7 to 64% of the time.
#
# ### 4.2 No biases
#
# Each matrix of a block still has a bias. PaLM (Chowdhery et al. 2022, section 2) and Llama leave them all
# out; PaLM's authors report that large models then train more steadily. Ours are too small to check that.
#
# *Why little should be lost:* the bias of a sub-layer's last matrix adds the same vector to every token, which the
# embeddings could nearly hold as well. A key's bias changes all scores of a query by the same amount, and the softmax
# does not notice. (That is so with learned positions; the rotary ones of section 5 turn the bias as well.)

# %% tags=["nbval-ignore-output"]
no_biases = swap(with_rms, bias=False)
row("no biases", no_biases)

# %% [markdown]
# Nothing is missed. (One exception: Qwen 2 kept biases on queries, keys and values. Qwen 3 dropped these as well.)

# %% [markdown]
# ## 5 Two swaps that should make it better
#
# ### 5.1 SwiGLU
#
# We have a network that asks $d_\text{ff}$ questions and passes on the positive answers (lesson 06). What it cannot do
# in one step is *multiply* two answers: "this, if that". Shazeer (2020) replaces the first matrix by two. One goes
# through silu and opens or closes a **gate**; the other says what should pass. Try three gates, with the same content
# 2:

# %%
for gate in (-4.0, 0.5, 4.0):
    opened = F.silu(torch.tensor(gate))
    print(f"gate {gate:4}: silu {opened:5.2f}, times the content {2 * opened:5.2f}")

# %% [markdown]
# A gate of −4 lets next to nothing pass, one of 4 four times the content. For vectors:
#
# $$\text{SwiGLU}(x) = \big(\text{silu}(x W_\text{gate}) \odot x W_\text{up}\big)\, W_\text{down}$$
#
# **Keep it fair.** Three matrices of $d \times d_\text{ff}$ instead of two are half as many parameters again. To
# compare like with like, make them narrower: $3 \cdot d \cdot d_\text{ff}' = 2 \cdot d \cdot d_\text{ff}$ gives
# $d_\text{ff}' = \frac23 d_\text{ff}$. That is where the 341 of our file comes from:
# $\frac23 \cdot 4 \cdot 128 = 341.33$, rounded down. Ours becomes $\frac23 \cdot 256 = 170.67$, rounded up to 171.
# (Later models are wider again: Llama 3 8B has 3.5 $d$, Llama 3.2 1B 4 $d$.)


# %% tags=["recorded"]
class SwiGLU(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.gate_proj = nn.Linear(s.d_model, s.d_ff, s.bias)
        self.up_proj = nn.Linear(s.d_model, s.d_ff, s.bias)
        self.down_proj = nn.Linear(s.d_ff, s.d_model, s.bias)

    def forward(self, x):  # (batch, n, d_model), by way of (batch, n, d_ff)
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


# %% [markdown]
# Swap it in:

# %% tags=["nbval-ignore-output"]
gated = swap(no_biases, feed_forward=SwiGLU, d_ff=171)
row("SwiGLU", gated)

# %% [markdown]
# The gain, if any, is smaller than two seeds differ. Shazeer measured 2 to 3% of the loss, on a model two thousand
# times as large, trained for half a million steps; ours learns for 240. A small run never shows that a part is useless,
# only that *this run cannot show its use*. (He has no explanation, and attributes the success "to divine benevolence".)
#
# ### 5.2 Rotary positions
#
# The table of positions ends at its last row. Lesson 05 built the alternative: nothing is added to
# the words; in every block each query and each key is turned, pair by pair of its dimensions, by position times
# frequency. Positions then enter the score only through their distance.
#
# Which dimensions make a pair? The paper (Su et al. 2021) pairs neighbors, (0, 1), (2, 3), …, and so did Llama's own
# code. `transformers`' files pair halves: (0, $d_k/2$), (1, $d_k/2 + 1$), … Here are both. Eight rows of a head's
# matrix, each pair in one color:

# %% jupyter={"source_hidden": true}
figures.rotary_layouts()

# %% [markdown]
# `turn` rotates the pairs, and the two layouts differ in how they cut a head into pairs:


# %% tags=["recorded"]
def turn(first, second):  # (..., n, d_k / 2) each
    n, pairs = first.shape[-2:]
    frequency = 10_000.0 ** (-torch.arange(pairs) / pairs)  # (pairs,): falling
    angle = torch.arange(n)[:, None] * frequency  # (n, pairs)
    cos, sin = angle.cos(), angle.sin()
    return first * cos - second * sin, first * sin + second * cos


def rotate_neighbors(x):  # (..., n, d_k)
    return torch.stack(turn(x[..., 0::2], x[..., 1::2]), dim=-1).flatten(-2)


def rotate_halves(x):  # (..., n, d_k)
    return torch.cat(turn(*x.chunk(2, dim=-1)), dim=-1)


# %% [markdown]
# Row $r$ of the query matrix makes dimension $r$ of the query. So if we reorder the rows of *each head*, evens first
# and then odds, what were neighbors are now halves. Do it to queries and keys alike, and every score stays the same: a
# dot product does not depend on the order of its terms.

# %%
def to_halves(weight, heads):  # (heads · d_k, d_model): in each head evens, then odds
    rows = weight.unflatten(0, (heads, -1, 2))  # (heads, d_k / 2, 2, d_model)
    return rows.transpose(1, 2).flatten(0, 2)


def scores(x, w_q, w_k, rotate, heads=4):
    q, k = ((x @ w.T).unflatten(-1, (heads, -1)).transpose(0, 1) for w in (w_q, w_k))
    return rotate(q) @ rotate(k).mT  # (heads, query, key)

# %% [markdown]
# Try it with random matrices:

# %%
torch.manual_seed(0)
x, (w_q, w_k) = torch.randn(10, 64), torch.randn(2, 64, 64) / 8  # (n, d_model), …
paper = scores(x, w_q, w_k, rotate_neighbors)  # (heads, query, key)
moved = scores(x, to_halves(w_q, 4), to_halves(w_k, 4), rotate_halves)
prove_equal(moved, paper, what="Neighbors, and halves with reordered rows,")
gap = (scores(x, w_q, w_k, rotate_halves) - paper).abs()  # (heads, query, key)
print(f"without reordering: at position 0 off by {gap[:, 0, 0].max():.1f}, "
      f"elsewhere by up to {gap.max():.1f}")

# %% [markdown]
# So weights can be converted from one layout to the other by moving rows. (Without that, only position 0 is right:
# nothing is turned there.) Our checkpoint was trained with neighbors; the file in the folder has its rows moved. Values
# and the output matrix stay as they are. (Why? The quiz asks.) Now the part itself: make the heads as before, then turn
# queries and keys.


# %% tags=["recorded"]
class RotaryAttention(Attention):
    def __init__(self, s):
        super().__init__(s)
        self.rotate = s.rotate

    def make_heads(self, x):  # (batch, n, d_model)
        q, k, v = super().make_heads(x)  # (batch, heads, n, d_k) each
        return self.rotate(q), self.rotate(k), v


# %% [markdown]
# Swap the learned table for the rotation:

# %% tags=["nbval-ignore-output"]
rotary = swap(gated, length=None, attention=RotaryAttention, rotate=rotate_halves)
row("rotary", rotary)
expect("What rotary gains", table["SwiGLU"] - table["rotary"], 0.1, 0.35)

# %% [markdown]
# This gain is well above the noise. Our explanation: the little model has only 240 steps to find out what matters in a
# text, and "the character just before" comes first. With learned positions it must discover that rule 32 times, once
# for each position. With rotary positions it is one rule. How much of the gap would remain after a long training, our
# minute cannot tell.

# %% [markdown]
# ## 6 A swap that makes it smaller in use: shared keys and values
#
# ### 6.1 What a token leaves behind
#
# All these models have the same price. While a model writes, each block keeps a key and a value of every
# token so far: the cache of lesson 13. For one token in one block of our bench these are 4 heads · 16 numbers, twice:
# 128 numbers, or 256 bytes with 2 bytes each. In general:
#
# $$2 \cdot \text{blocks} \cdot \text{KV heads} \cdot d_k \cdot 2 \text{ bytes}$$

# %%
def cache_bytes(blocks, kv_heads, d_k, tokens=1):
    return 2 * blocks * kv_heads * d_k * tokens * 2  # a key and a value, 2 bytes each


print(f"our bench: {cache_bytes(2, 4, 16):,} bytes per token")
print(f"Llama 7B: {cache_bytes(32, 32, 128):,} bytes per token")
print(f"for 2048 tokens: {cache_bytes(32, 32, 128, 2048) / 1e9:.2f} GB")

# %% [markdown]
# Half a megabyte for a single *token* of Llama 7B. Its weights are 13.5 GB, so with thirteen such users at a time the
# caches are larger than the model. They are slow as well: each new token has to read all of this once.
#
# Do 32 heads really need 32 different keys for one word? Shazeer (2019) gave all query heads *one* KV head:
# **multi-query attention**. Ainslie et al. (2023) let groups of query heads share one: **grouped-query attention**,
# with as many KV heads as you can afford.

# %% jupyter={"source_hidden": true}
figures.shared_heads(
    8, (8, 2, 1), title="Fewer KV heads: each is read by a group of queries",
    names=["8 KV heads: multi-head", "2 KV heads: grouped-query", "1 KV head: multi-query"],
    alt="Three panels of eight query heads. Left, each has its own KV head. Middle, the first "
    "four share one, the last four another. Right, all eight share one.",
)

# %% [markdown]
# To compute with them, repeat each KV head for its group. Query heads 0 … 3 read KV head 0, so the order has to be 0 0
# 0 0 1 1 1 1. torch has two functions whose names sound alike:

# %%
kv = torch.arange(2)  # (kv_heads,)
print("repeat_interleave(4):", kv.repeat_interleave(4).tolist())
print("repeat(4):           ", kv.repeat(4).tolist(), " <- heads take turns: no groups")

# %% [markdown]
# Both give the right shape, and you can *train* with either: only the numbering of the query heads differs. But loaded
# weights need the order they were trained with (lesson 17 measures how much).


# %% tags=["recorded"]
class GroupedAttention(RotaryAttention):
    def __init__(self, s):
        super().__init__(s)
        self.group = s.heads // s.kv_heads
        self.key = nn.Linear(s.d_model, s.kv_heads * self.d_k, s.bias)
        self.value = nn.Linear(s.d_model, s.kv_heads * self.d_k, s.bias)

    def make_heads(self, x):  # (batch, n, d_model)
        q, k, v = super().make_heads(x)  # k, v: (batch, kv_heads, n, d_k)
        return q, self.share(k), self.share(v)

    def share(self, kv):  # (batch, kv_heads, n, d_k) to (batch, heads, n, d_k)
        return kv.repeat_interleave(self.group, dim=1)


# %% [markdown]
# Keys and values now have fewer rows. To keep the number of parameters, we give the feed-forward network what they
# save: 21 entries with two KV heads, 32 with one. (Llama 2's authors compared in the same way; Touvron et al. 2023b,
# A.2.1.)

# %% tags=["nbval-ignore-output"]
grouped = swap(rotary, attention=GroupedAttention, kv_heads=2, d_ff=171 + 21)
row("2 KV heads", grouped)
row("1 KV head", swap(grouped, kv_heads=1, d_ff=171 + 32))
predicted("swaps", "rotary instead of learned positions")

# %% [markdown]
# Half of the cache, or three quarters, is gone, and the loss is where it was, within the noise. Ainslie et al. found
# much the same at scale: 8 KV heads are nearly as good as 64, and a single one is a little worse. Training takes as
# long as before, since it has no cache. But writing gets faster. Take one new token, 32 heads of 64, and 4096 tokens in
# the cache:

# %% tags=["nbval-ignore-output"]
def one_step(kv_heads, n=4096, heads=32, d_k=64):
    q = torch.randn(kv_heads, heads // kv_heads, d_k)  # (kv_heads, group, d_k)
    k, v = torch.randn(2, kv_heads, n, d_k)  # (kv_heads, n, d_k) each: the cache
    begun = time.process_time()
    for _ in range(20):
        (q @ k.mT / d_k**0.5).softmax(dim=-1) @ v  # (kv_heads, group, d_k)
    return 1000 * (time.process_time() - begun) / 20


for kv_heads in (32, 8, 1):
    size, milliseconds = 2 * kv_heads * 4096 * 64 * 4 / 1e6, one_step(kv_heads)
    print(f"KV heads {kv_heads:2}: {size:3.0f} MB to read, {milliseconds:4.1f} ms")

# %% [markdown]
# Less to read, less time. (Here a group's queries are multiplied with their keys at once. Repeating the keys first, as
# our `share` does, would copy the whole cache.)
#
# ### 6.2 Real models
#
# What would each of these models keep for its full context? The numbers are from their papers and `config.json` files.

# %%
real = {  # blocks, heads, KV heads, d_k, context
    "GPT-2 xl": (48, 25, 25, 64, 1024),
    "Llama 7B": (32, 32, 32, 128, 2048),
    "Llama 2 70B": (80, 64, 8, 128, 4096),
    "Mistral 7B": (32, 32, 8, 128, 8192),
    "Llama 3.1 8B": (32, 32, 8, 128, 131_072),
}
for name, (blocks, heads, own, d_k, context) in real.items():
    kept = [cache_bytes(blocks, kv, d_k, context) / 1e9 for kv in (own, heads, 1)]
    print(f"{name:13} GB with {own:2} KV heads {kept[0]:6.2f}, with one per query head "
          f"{kept[1]:6.2f}, with a single one {kept[2]:.3f}")

# %% [markdown]
# Sharing made the cache small, and longer contexts made it grow again: 17 GB for *one* user of Llama 3.1, or 69 GB
# without sharing. (Mistral keeps even less than the table says: each of
# its layers sees only the last 4096 tokens.)
#
# ### 6.3 Two more ways to a small cache
#
# **Windows in most layers.** Gemma 3 (Gemma Team 2025) lets five of six layers see the last 1,024 tokens only, and the
# sixth sees the whole past. A window's cache holds a window. For 131,072 tokens six layers then keep
# $(5 \cdot 1{,}024 + 131{,}072) / (6 \cdot 131{,}072) = 17.3\%$ of what six full layers would keep. In `txlib` a
# block's config takes one mask per layer: `mask=(sliding_window(1023),) * 5 + (causal(),)`.
#
# **Latent attention** (DeepSeek-V2, DeepSeek-AI 2024, section 2.1). Store something small from which each head's keys
# and values can be *computed*: one short vector made from the token's vector $x$, the *latent* $c = W_\text{down}\, x$.
# Each head has its own matrices $W_{UK}$ and $W_{UV}$ (U for up): its key is $W_{UK}\, c$, its value $W_{UV}\, c$.

# %%
torch.manual_seed(0)
heads, d_k, latent, n = 4, 16, 24, 10
c = torch.randn(n, latent)  # (n, latent): all that the cache holds
up_key, up_value = torch.randn(2, heads, d_k, latent)  # (heads, d_k, latent) each
q = torch.randn(heads, 1, d_k)  # (heads, 1, d_k): one new token
k, v = c @ up_key.mT, c @ up_value.mT  # (heads, n, d_k) each
written_out = (q @ k.mT / d_k**0.5).softmax(dim=-1) @ v  # (heads, 1, d_k)

# %% [markdown]
# But then, must all keys be computed anew for each token that is written? No: a score is
# $q \cdot (W_{UK}\, c) = (W_{UK}^\top q) \cdot c$. So multiply the one *query* by $W_{UK}^\top$ instead, and attend to
# the stored vectors themselves. Values likewise: mix the stored vectors first, then multiply once by $W_{UV}$.

# %% jupyter={"source_hidden": true}
figures.latent_attention()

# %% [markdown]
# Compare both ways in numbers:

# %%
asked = q @ up_key  # (heads, 1, latent)
weights = (asked @ c.T / d_k**0.5).softmax(dim=-1)  # (heads, 1, n)
absorbed = (weights @ c) @ up_value.mT  # (heads, 1, d_k)
prove_equal(absorbed, written_out, tolerance=1e-4, what="Both ways")
print(f"numbers per token: keys and values {2 * heads * d_k}, latent {latent}")
print(f"DeepSeek-V2, 128 heads of 128: {2 * 128 * 128:,} against {512 + 64}")

# %% [markdown]
# 57 times less. In this form it is multi-query attention with one wide key that also serves as the value; yet each head
# has, in effect, its own key.
#
# 512 is the latent vector. The other 64 are the price of rotary positions: a rotation, different at each position,
# would come between $W_{UK}$ and the query, and $W_{UK}$ could not be moved past it. So DeepSeek does not rotate those
# keys. It adds one small key, the same for all heads, that alone is rotated.

# %% [markdown]
# ## 7 After Llama: what the settings of newer models are for
#
# ### 7.1 QK-norm, where it is needed
#
# The `config.json` of a model newer than Llama has more entries. Take **QK-norm**. Scores are products of
# queries and keys, and nothing keeps those small. When they grow, the softmax hardens, and training at a high learning
# rate can break. Dehghani et al. (2023) therefore normalize queries and keys; Qwen 3 and OLMo 2 do it with RMS norm.
# Here as in Qwen 3: over each head, before turning, with a learned gain.


# %% tags=["recorded"]
class NormedAttention(GroupedAttention):
    def __init__(self, s):
        super().__init__(s)
        self.query_norm = RMSNorm(self.d_k, s.eps)
        self.key_norm = RMSNorm(self.d_k, s.eps)

    def make_heads(self, x):  # (batch, n, d_model)
        q, k, v = Attention.make_heads(self, x)  # k, v: (batch, kv_heads, n, d_k)
        q, k = self.rotate(self.query_norm(q)), self.rotate(self.key_norm(k))
        return q, self.share(k), self.share(v)


# %% [markdown]
# Guess first:

# %% jupyter={"source_hidden": true}
predict("hot", "At ten times the learning rate, which of the two will learn worse?",
        "the plain one", "the one with QK-norm", "both about the same")

# %% [markdown]
# Train both at ten times the rate:

# %% tags=["nbval-ignore-output"]
normed = swap(grouped, attention=NormedAttention)
row("2 KV, × 10", grouped, rate=6e-2)
row("QK-norm, × 10", normed, rate=6e-2)
gain = table["2 KV, × 10"] - table["QK-norm, × 10"]
expect("What QK-norm gains at that rate", gain, 0.05, 0.5)
predicted("hot", "the plain one")

# %% [markdown]
# The plain model learns clearly worse than at the usual rate (2.198), and the one with QK-norm hardly notices. Did the
# scores grow? Print the largest in each block, on the test windows:


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def largest_scores(model):
    largest = []

    def note(attention, inputs, output):  # called after each attention
        q, k, _ = attention.make_heads(*inputs)  # (batch, heads, n, d_k) each
        scores = q @ k.mT / attention.d_k**0.5  # (batch, heads, n, n)
        largest.append(scores.tril().abs().max().item())

    hooks = [block.attention.register_forward_hook(note) for block in model.blocks]
    test_loss(model)
    for hook in hooks:
        hook.remove()
    return largest


for name in ("2 KV heads", "2 KV, × 10", "QK-norm, × 10"):
    print(f"{name:14}", *(f"{score:7.1f}" for score in largest_scores(models[name])))

# %% [markdown]
# At the usual rate the scores stay below 30. At ten times the rate the plain model's reach the hundreds or a
# thousand, and QK-norm keeps them small. That is what it is for: when a training run costs millions, you cannot try ten
# learning rates.
#
# ### 7.2 Eight more entries
#
# Each changes one part of the block that you have:
#
# | Setting | Seen in | What it changes |
# | --- | --- | --- |
# | soft-capping | Gemma 2 | a score $s$ becomes $50 \tanh(s / 50)$: 5 becomes 4.98, 100 becomes 48 (the logits likewise, at 30) |
# | sink | gpt-oss | one learned number per head joins the softmax, and is then thrown away |
# | output gate | Qwen3-Next | attention's output is multiplied, entry by entry, by $\sigma(W x)$ |
# | norms before and after | Gemma 2 and 3 | what a sub-layer adds is normed, as well as what it reads |
# | norms after only | OLMo 2 | only what it adds is normed; the stream itself stays bare |
# | partial rotary | GPT-NeoX, Qwen3-Next | a quarter of each head is turned |
# | no positions (*NoPE*) | SmolLM3, Llama 4 | in every fourth layer, nothing is turned |
# | untied | Llama 7B | the output matrix is not the embedding |
#
# Why a sink? The weights of a softmax add up to 1, so a head that finds nothing must put its weight *somewhere*, often
# on the first token. With low scores, −4, −5 and −3, the three tokens still get 24%, 9% and 67%. Next to a sink of 0
# they get $(e^{-4} + e^{-5} + e^{-3}) / (1 + e^{-4} + e^{-5} + e^{-3}) = 0.075 / 1.075 = 7\%$ together: the head looks
# at nearly nothing.
#
# ### 7.3 All swaps on one page
#
# One seed can deceive. `data/swaps.py` trained each setting with three, at the usual rate and at ten times that rate.
# Each change is measured, seed by seed, against the model that the swap was made in: for Llama's parts the row above
# (for "1 KV head": rotary), for the later entries "2 KV heads". Guess first:

# %% jupyter={"source_hidden": true}
predict("newer", "At the usual rate, which lowers the loss in each of three seeds?",
        "a sink", "norms after only", "an output gate", "none of them")

# %% [markdown]
# Next to the change, note how much a model's own loss rises at ten times the rate:

# %%
import json

recorded = json.loads((DATA / "swaps.json").read_text())
usual, hot = recorded["usual"], recorded["ten times the rate"]
changes, rises = {}, {}
for name, parent in recorded["parents"].items():
    change = [usual[name][seed] - usual[parent][seed] for seed in usual[name]]
    changes[name] = (min(change), sum(change) / len(change), max(change))
    rise = [hot[name][seed] - usual[name][seed] for seed in usual[name]]
    rises[name] = sum(rise) / len(rise)

# %% [markdown]
# First the usual rate. A dot is the mean, a line goes from the least to the greatest:

# %% jupyter={"source_hidden": true}
display(plots.ranges(
    changes, title="One swap lowers the loss by more than noise: rotary", mark=0.0,
    xlabel="change against the model it was made in (nats per character)",
    alt="A dot and a range for each swap: "
    + "; ".join(f"{name} {low:+.2f} to {high:+.2f}" for name, (low, _, high) in changes.items()),
))
predicted("newer", "none of them")

# %% [markdown]
# One swap lowers the loss by more than noise: rotary. (RMS norm is lower with each seed, but only by 0.01 on average;
# norms before *and* after are higher with each, by 0.02.) Rotating only a quarter of each head loses most of that gain,
# rotating nothing all of it. "Norms after only" and a separate output matrix are worse; our explanation for the second:
# it is one more thing to learn. All else changes the mean by at most 0.02, a third of what two seeds differed by.
#
# Then ten times the rate:

# %% jupyter={"source_hidden": true}
plots.bars(
    dict(sorted(rises.items(), key=lambda rise: rise[1])), format="{:+.2f}",
    title="QK-norm survives ten times the rate, a cap nearly",
    xlabel="rise of the loss at ten times the rate (nats per character), mean of three seeds",
    alt="Bars: " + "; ".join(f"{name} {rise:+.2f}" for name, rise in rises.items()),
)

# %% [markdown]
# Most models lose about 0.2 nats. With QK-norm nothing is lost, and with a cap on the scores 0.08: so most of the
# damage came from scores that had grown too large. ("Norms after only" and "no positions" also lose less, from a worse
# start.)
#
# So in our runs no entry of a newer config lowers the loss. Other reasons are given for them. We
# have measured only the first, and it shows clearly only for QK-norm and capping:
#
# - **stability**: QK-norm, capping, where the norms are placed, the output gate;
# - letting a head **look at nothing**: sinks and the output gate;
# - **longer texts**: partial rotary, NoPE;
# - **more room**, where the model is large: untied. In GPT-2 small the matrix is 31% of all parameters, in Llama 7B
#   2%. In Llama 3.2 1B, with its large vocabulary, it is 21%, and tied again.
#
# ### 7.4 Open the library
#
# In `txlib` there is one decoder, `GPT`. What you swapped by class, its config says by name: `norm="rms"`,
# `activation="swiglu"`, `position="rotary_half"`, `kv_heads=2`, `bias=False`; later, `qk_norm="rms"`, `softcap=50.0`,
# `sinks=True`, `gate=True`, `RotaryConfig(fraction=0.25)`. Latent attention is `LatentConfig(rank=…)`. Two parts, as
# the library has them:

# %%
from txcourse.lesson import show_source
from txlib.layers import BlockConfig, FeedForward
from txlib.layers import RMSNorm as LibraryRMSNorm
from txlib.models import GPT, GPTConfig

show_source(LibraryRMSNorm, FeedForward.forward)

# %% [markdown]
# A table of names puts your trained grouped model into it:

# %%
block = BlockConfig.of_sizes(64, 4, 192, norm="rms", norm_eps=1e-6, activation="swiglu",
                             bias=False, position="rotary_half", kv_heads=2)
library = GPT(GPTConfig(len(alphabet), block, layers=2, max_length=32)).eval()
mine, weights = models["2 KV heads"], {}
for name, weight in mine.state_dict().items():
    name = name.replace(".attention", ".self_attention").replace("blocks", "layers")
    name = name if name.startswith("embedding") else f"decoder.{name}"
    weights[name] = weight
library.load_state_dict(weights)
ids = test_ids[:32][None]  # (1, n)
with torch.no_grad():
    theirs = library(ids).logits
    prove_equal(mine(ids), theirs, tolerance=1e-4, what="Yours and the library's")


# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. A GPT-2 block has $d_\text{ff} = 3072$. You want SwiGLU with the same number of parameters. How wide?**
#
# <details><summary>A. 3072: the width has nothing to do with the gate</summary>
#
# Then you have three matrices instead of two: half as many parameters again.
# </details>
# <details><summary>B. 2048</summary>
#
# Right. $3 \cdot d \cdot 2048 = 2 \cdot d \cdot 3072$.
# </details>
# <details><summary>C. 1536: half, because there are two matrices in front</summary>
#
# There are three matrices against two, so two thirds.
# </details>
#
# **2. A checkpoint was trained with rotary neighbors, your code turns halves. You reorder the rows of the query and the
# key matrices. What about values and the output matrix?**
#
# <details><summary>A. They stay as they are</summary>
#
# Right. Values are not turned, so nothing pairs up their dimensions, and the output matrix reads values.
# </details>
# <details><summary>B. The values' rows too, since keys and values belong together</summary>
#
# A value's dimensions meet the columns of the output matrix. Reorder one of the two, and they no longer fit.
# </details>
# <details><summary>C. All four, or none</summary>
#
# That would work only if the output matrix's *columns* were reordered with the values' rows, and it is not needed.
# </details>
#
# **3. 32 query heads share 8 KV heads, $d_k$ = 128. How does the cache compare with that of 32 KV heads, and how does
# the work of computing scores?**
#
# <details><summary>A. Both are a quarter</summary>
#
# Every one of the 32 queries still meets a key of every token. The number of products stays.
# </details>
# <details><summary>B. The cache is a quarter, the work is the same</summary>
#
# Right. What is saved is memory, and the time to *read* it, which is most of the time when one token is written at a
# time.
# </details>
# <details><summary>C. The cache is the same, the work is a quarter</summary>
#
# It is the other way around: keys and values are what the cache holds.
# </details>
#
# **4. You add QK-norm to your model, and its loss does not change. What have you learned?**
#
# <details><summary>A. QK-norm is useless</summary>
#
# At this rate and size you could not tell. Section 7.1 found where it matters.
# </details>
# <details><summary>B. That at this learning rate your scores did not need it</summary>
#
# Right. Raise the rate, and compare again.
# </details>
# <details><summary>C. That you have wired it wrongly</summary>
#
# An unchanged loss doesn't show it. Compare numbers with another implementation.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - Llama is GPT-2's wiring with other parts: RMS norm, SwiGLU, rotary positions, shared keys and values, no biases.
# - Measured on small models: rotary lowers the loss, shared KV heads halve the cache at no visible cost, and the effect
#   of Llama's other parts cannot be told from noise at the usual rate.
# - Rotary's two layouts are the same up to the order of the query and key rows within each head.
# - The cache is 2 · blocks · KV heads · $d_k$ numbers per token; grouped queries divide it by the size of a group.
#   Windows in most layers, or one latent vector for all heads, make it smaller still.
# - No setting after Llama lowered the loss at the usual rate by more than noise. These settings are for stability
#   (QK-norm and caps, as measured; gates, as reported), for long texts (partial rotary, NoPE), or for heads that find
#   nothing (sinks).
#
# **Read** Touvron et al. 2023, *LLaMA*, [arXiv:2302.13971](https://arxiv.org/abs/2302.13971), section 2. Zhang &
# Sennrich 2019, *Root Mean Square Layer Normalization*, [arXiv:1910.07467](https://arxiv.org/abs/1910.07467), section
# 4. Shazeer 2020, *GLU Variants Improve Transformer*, [arXiv:2002.05202](https://arxiv.org/abs/2002.05202). Su et al.
# 2021, *RoFormer*, [arXiv:2104.09864](https://arxiv.org/abs/2104.09864), section 3. Shazeer 2019, *Fast Transformer
# Decoding*, [arXiv:1911.02150](https://arxiv.org/abs/1911.02150), section 3. Ainslie et al. 2023, *GQA*,
# [arXiv:2305.13245](https://arxiv.org/abs/2305.13245), section 2. Dehghani et al. 2023, *Scaling Vision Transformers to
# 22 Billion Parameters*, [arXiv:2302.05442](https://arxiv.org/abs/2302.05442), section 2. Touvron et al. 2023b, *Llama
# 2*, [arXiv:2307.09288](https://arxiv.org/abs/2307.09288), appendix A.2.1. DeepSeek-AI 2024, *DeepSeek-V2*,
# [arXiv:2405.04434](https://arxiv.org/abs/2405.04434), section 2.1. Gemma Team 2025, *Gemma 3*,
# [arXiv:2503.19786](https://arxiv.org/abs/2503.19786), section 2.
#
# **Do** the exercise [16_todays_decoder](../exercises/exercise_16_todays_decoder.ipynb). Then go on to
# [17 Real checkpoints](17_checkpoints.ipynb).
