# %% [markdown] lesson={"part": "II Language models", "builds": "RMSNorm, SwiGLU, rotary, grouped and latent queries; a real Llama loaded by hand"}
# # 16 · Today's decoder: from GPT-2 to Llama
#
# **After this lesson you will be able to**
#
# - name the parts that changed between GPT-2 (2019) and Llama (2023), and build each of them;
# - say what each swap bought in *your* measurements: loss, time, memory, or nothing that you can tell from noise;
# - count the cache of a real model, and say why queries share keys and values;
# - read a checkpoint by hand, fill your own model with it, and find out which part is wired wrongly when the text looks
#   odd.
#
# **You need** lessons 05, 06, 10 and 13. **It takes** about 100 minutes to read and try; all cells together run in a
# good minute on a laptop. Most of that is eleven small language models, trained one after another.

# %% [markdown]
# ## 1 The problem: a file that your GPT cannot hold
#
# In lesson 10 you built GPT-2. Here is a real model of today's kind, small enough to come with the course: 852,608
# parameters, trained by its author on the books of Lewis Carroll. It lies in a folder as nearly all models do today:
# `config.json` says what to build, `model.safetensors` holds the numbers. Read the first.

# %%
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from txlib import plots
from txlib.data import reviews, shakespeare, verses
from txcourse import figures
from txcourse.lesson import expect, progress, prove_equal, show_source
from txlib.data import shipped

folder = shipped("glassllm-en")
config = json.loads((folder / "config.json").read_text())
for name in ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
             "num_key_value_heads", "intermediate_size", "rms_norm_eps", "rope_theta",
             "tie_word_embeddings"):
    print(f"{name:20} {config[name]}")

# %% [markdown]
# The second file needs no library either. A safetensors file is eight bytes that say how long the header is, the
# header, and then nothing but numbers. The header is JSON: name, type, shape, and from which byte to which. There is
# no code in it, so a file from a stranger cannot run any (a pickle can).

# %%
raw = bytearray((folder / "model.safetensors").read_bytes())
length = int.from_bytes(raw[:8], "little")
header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
header.pop("__metadata__", None)
for name, entry in sorted(header.items()):
    if "layers" not in name or "layers.0" in name:
        print(f"{name:48} {entry['dtype']} {tuple(entry['shape'])}")
numbers = sum(torch.Size(entry["shape"]).numel() for entry in header.values())
print(f"{len(header)} tensors, {numbers:,} numbers")

# %% [markdown]
# Compare with the GPT of lesson 10, tensor by tensor. What is different?
#
# - There is no table of positions, and not a single bias.
# - The norms have a `weight` only: a gain.
# - The feed-forward network has *three* matrices, and 341 entries in the middle where you expect 4 · 128 = 512.
# - Keys and values are only half as wide as queries: 64 rows, not 128.
#
# Your GPT has no place for these numbers. By the end of this lesson you will have a model that has, and it will write.
# On the way we put each new part into the same small model, one at a time, and measure what it does.

# %% [markdown]
# ## 2 The idea in one picture
#
# Read both from the bottom. The wiring is the same: pre-norm blocks on a residual stream, and one last norm, as in
# lesson 06. Only the parts have changed.

# %%
figures.decoders()

# %% [markdown]
# Radford et al. (2019) made the left one, and the right one is the block of Llama 2 70B and Llama 3 (Touvron
# et al. 2023 made the first Llama, which still had as many keys and values as queries. Mistral, Qwen and most others
# share them, too.) No part
# was invented there. They were picked because each had been found to be cheaper, or better, or both.
#
# ## 3 The test bench
#
# Twelve plays by Shakespeare to learn from, character by character, and another one to test on.

# %%
texts = shakespeare()
alphabet = sorted(set(texts.train))
number = {character: id for id, character in enumerate(alphabet)}
train_ids, test_ids = (
    torch.tensor([number[character] for character in text if character in number])
    for text in (texts.train, texts.validation)
)
print(f"{len(train_ids):,} characters to learn from, {len(test_ids):,} to test on,", end=" ")
print(f"{len(alphabet)} different ones")

# %% [markdown]
# ### 3.1 GPT-2, with parts that can be swapped
#
# The settings hold sizes, and they hold the *parts themselves*, as classes. To swap a part is then one word:
# `replace(gpt2, norm=RMSNorm)`. The sizes are tiny, so that a dozen models fit into a minute.


# %%
@dataclass(frozen=True)
class Settings:
    attention: type
    feed_forward: type
    norm: type = nn.LayerNorm
    eps: float = 1e-5                                              # of the norms
    bias: bool = True
    learned_positions: bool = True
    rotate: Callable[[Tensor], Tensor] | None = None           # what turns queries and keys (section 6)
    kv_heads: int = 4                                         # pairs of key and value heads (section 8)
    tied: bool = True                                          # the embedding is the output matrix, too
    vocab: int = len(alphabet)
    d_model: int = 64
    heads: int = 4
    d_ff: int = 256
    blocks: int = 2
    length: int = 32


# %% [markdown]
# Attention is lesson 04's, cut into two methods, because later parts will only change the first: making the heads.


# %%
class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads, self.d_k = s.heads, s.d_model // s.heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(s.d_model, s.d_model, s.bias) for _ in range(4))

    def make_heads(self, x):                                       # (batch, n, d_model)
        parts = self.query(x), self.key(x), self.value(x)          # (batch, n, heads · d_k) each
        return [rearrange(part, "b n (h d) -> b h n d", d=self.d_k) for part in parts]

    def forward(self, x):
        q, k, v = self.make_heads(x)                               # (batch, heads, n, d_k) each
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)      # (batch, heads, n, d_k)
        return self.output(rearrange(mixed, "b h n d -> b n (h d)"))


# %% [markdown]
# The feed-forward network is lesson 06's, with GPT-2's gelu.


# %%
class Gelu(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.up_proj = nn.Linear(s.d_model, s.d_ff, s.bias)
        self.down_proj = nn.Linear(s.d_ff, s.d_model, s.bias)

    def forward(self, x):                                          # (batch, n, d_model)
        return self.down_proj(F.gelu(self.up_proj(x), approximate="tanh"))  # via (batch, n, d_ff)


# %% [markdown]
# The block is pre-norm: each part reads the normed stream, and adds to the bare one.


# %%
class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.attention, self.attention_norm = s.attention(s), s.norm(s.d_model, s.eps)
        self.feed_forward, self.feed_forward_norm = s.feed_forward(s), s.norm(s.d_model, s.eps)

    def forward(self, x):                                          # (batch, n, d_model)
        x = x + self.attention(self.attention_norm(x))             # (batch, n, d_model)
        return x + self.feed_forward(self.feed_forward_norm(x))


# %% [markdown]
# And the decoder. Where `tied` is set, the embedding's matrix serves as the output matrix too (lesson 10). Every
# matrix starts with a spread of 1 / √columns, so that what it makes is about as large as what it reads.


# %%
class Decoder(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embedding = nn.Embedding(s.vocab, s.d_model)
        self.position = nn.Embedding(s.length, s.d_model) if s.learned_positions else None
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.blocks))
        self.norm = s.norm(s.d_model, s.eps)
        self.output = None if s.tied else nn.Linear(s.d_model, s.vocab, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)

    def forward(self, ids):                                        # (batch, n)
        x = self.embedding(ids)                                    # (batch, n, d_model)
        x = x if self.position is None else x + self.position.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)                                           # (batch, n, d_model)
        return self.norm(x) @ (self.output or self.embedding).weight.T        # (batch, n, vocab)


# %% [markdown]
# ### 3.2 The same training for all
#
# Same text, same batches, same number of steps: AdamW, a short warm-up, then a straight line down to 0. We note the
# loss on the unseen play, the time of a step, and what a token leaves behind in the cache (lesson 13): a key and a
# value in each block.

# %%
import time

torch.set_num_threads(1)                                 # for models this small, more threads only wait


def windows(ids, starts, n=32):
    chunk = ids[starts[:, None] + torch.arange(n + 1)]             # (batch, n + 1)
    return chunk[:, :-1], chunk[:, 1:]                             # what is read, what comes next


@torch.no_grad()
def test_loss(model):
    starts = torch.arange(0, 1000 * 100, 100)                      # (1000,): all over the play
    read, following = windows(test_ids, starts)                    # (1000, n) each
    return F.cross_entropy(model(read).flatten(0, 1), following.flatten()).item()


# %% [markdown]
# Each training makes a row of the table that we fill in this lesson.


# %%
@dataclass
class Row:
    name: str
    loss: float
    milliseconds: float
    model: nn.Module

    def __post_init__(self):
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        heads = [block.attention for block in self.model.blocks]
        kept = sum(each.key.out_features + each.value.out_features for each in heads)
        self.cache = 2 * kept  # bytes per token; real models keep 2-byte numbers

    def __str__(self):
        return (f"{self.name:16} loss {self.loss:.3f} | {self.parameters:,} parameters | "
                f"{self.milliseconds:4.1f} ms per step | cache {self.cache:,} bytes per token")


# %% [markdown]
# And the training itself. The time is the processor's, so that other programs do not count.


# %%
def train(name, settings, seed=0, steps=240, rate=6e-3):
    torch.manual_seed(seed)
    starts, model, times = torch.randint(len(train_ids) - 33, (steps, 24)), Decoder(settings), []
    optimizer = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.95), fused=True)
    for step in progress(range(steps), name):
        begun = time.process_time()
        optimizer.param_groups[0]["lr"] = rate * min((step + 1) / 25, (steps - step) / (steps - 25))
        read, following = windows(train_ids, starts[step])         # (batch, n) each
        loss = F.cross_entropy(model(read).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.process_time() - begun)
    return Row(name, test_loss(model), 1000 * sorted(times)[steps // 2], model)


# %% [markdown]
# Now GPT-2, twice: only the chance changes, that is the first weights and the batches. How far apart are the two?
# Whatever a swap does must be larger than that, or it is noise.

# %% tags=["nbval-ignore-output"]
gpt2 = Settings(Attention, Gelu)
table = {"GPT-2": train("GPT-2", gpt2)}
again = train("GPT-2, seed 1", gpt2, seed=1)
print(table["GPT-2"])
print(f"another seed: loss {again.loss:.3f}, {abs(again.loss - table['GPT-2'].loss):.3f} away")
expect("Loss of GPT-2", table["GPT-2"].loss, 2.3, 2.55)

# %% [markdown]
# ## 4 Swap 1: RMS norm
#
# You know it from lesson 06: do not subtract the mean, divide by the root of the mean square.
#
# $$\text{rms}(x) = \text{gain} \odot \frac{x}{\sqrt{\frac{1}{d}\sum_i x_i^2 + \epsilon}}$$
#
# One detail is new. Large models compute in 16 bits, and the largest number that half precision can hold is 65,504.
# Squares get there fast. So the square, the mean and the root are computed in 32 bits, whatever comes in.


# %%
class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):                                          # (..., size)
        wide = x.float()                                           # (..., size): in 32 bits
        scale = (wide.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()          # (..., 1): 1 / √
        return self.weight * (wide * scale).type_as(x)             # (..., size)


norm = RMSNorm(64, 1e-6).half()
for size in (1, 100, 300):
    x = torch.full((64,), float(size)).half()                      # (size,)
    careless = x * (x.square().mean() + 1e-6).rsqrt()              # (size,): all in 16 bits
    print(f"entries of {size:3}: careless {careless[0].item():.2f}, in 32 bits {norm(x)[0].item():.2f}")

# %% [markdown]
# An entry of 300 is nothing special in the residual stream of a large model. Its square is 90,000, which in half
# precision is infinity, and everything divided by infinity is 0. No error, no NaN; the word is simply gone.
#
# Now the swap. Against which claim do we measure? Zhang & Sennrich (2019) say: as good, and faster, because there is
# less to compute.

# %% tags=["nbval-ignore-output"]
x = torch.randn(10, 64)                                            # (n, size)
prove_equal(RMSNorm(64, 1e-6)(x), F.rms_norm(x, (64,), eps=1e-6), what="Ours and torch's")
with_rms = replace(gpt2, norm=RMSNorm)
table["RMS norm"] = train("RMS norm", with_rms)
print(table["GPT-2"], table["RMS norm"], sep="\n")

# %% [markdown]
# The loss is practically the same: the difference is much smaller than between two seeds. And the time? Compare your two
# numbers. On our CPU ours is no faster, because torch computes layer norm in one go, and ours takes five steps. Zhang &
# Sennrich compared like with like and saved 7 to 64 %. What remains for sure: one idea fewer, at no cost.

# %% [markdown]
# ## 5 Swap 2: SwiGLU
#
# Shazeer (2020) replaces the first matrix by two. One goes through silu and opens or closes a *gate*; the other says
# what is to pass.
#
# $$\text{SwiGLU}(x) = \big(\text{silu}(x W_\text{gate}) \odot x W_\text{up}\big)\, W_\text{down}$$
#
# **Keep it fair.** Three matrices of $d \times d_\text{ff}$ instead of two are half as many parameters again. To
# compare like with like, make them narrower: $3 \cdot d \cdot d_\text{ff}' = 2 \cdot d \cdot d_\text{ff}$ gives
# $d_\text{ff}' = \frac23 d_\text{ff}$. That is where the 341 of our file comes from: $\frac23 \cdot 4 \cdot 128 =
# 341.33$, rounded down. Ours becomes $\frac23 \cdot 256 = 171$, rounded up.


# %%
class SwiGLU(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(s.d_model, s.d_ff, s.bias) for _ in range(2))
        self.down_proj = nn.Linear(s.d_ff, s.d_model, s.bias)

    def forward(self, x):                                          # (batch, n, d_model)
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # by way of (batch, n, d_ff)


# %% [markdown]
# Put it in:

# %% tags=["nbval-ignore-output"]
gated = replace(with_rms, feed_forward=SwiGLU, d_ff=171)
table["SwiGLU"] = train("SwiGLU", gated)
print(table["RMS norm"], table["SwiGLU"], sep="\n")

# %% [markdown]
# Did it gain? If so, less than two seeds differ. Shazeer measured a gain of 2 to 3 % of the loss, on a model two
# thousand times as large, trained for half a million steps; ours learns for 240. Never conclude from a small run that a
# part is useless, only that *this run cannot show it*.
#
# Why should it help at all? A gelu unit asks one question and passes on the answer. A gated unit *multiplies* two
# answers, so it can say "this, if that". Shazeer's paper offers no more explanation: it attributes the success "to
# divine benevolence".

# %% [markdown]
# ## 6 Swap 3: rotary positions
#
# Lesson 05 built them: no table is added to the words; in every block each query and each key is turned, pair by pair
# of its dimensions, by position times frequency. The score then knows the distance, and nothing has to be learned.
#
# Which dimensions make a pair? The paper (Su et al. 2021) pairs neighbours, (0, 1), (2, 3), …, and so did Llama's
# own code; `transformers`' files are converted to pair halves, (0, d/2), (1, d/2 + 1), … Here are both. `base` and `stretch` are for section 13.


# %%
def angles(n, d_k, base=10000.0, stretch=1.0):
    frequency = base ** (-torch.arange(0, d_k, 2) / d_k)           # (d_k / 2,): falling
    return torch.arange(n)[:, None] / stretch * frequency          # (n, d_k / 2)


def turn(first, second, angle):                                    # (..., n, d_k / 2) each
    cos, sin = angle.cos(), angle.sin()                            # (n, d_k / 2) each
    return first * cos - second * sin, first * sin + second * cos  # (..., n, d_k / 2) each


def rotate_pairs(x, **options):                                    # (..., n, d_k): pairs are neighbours
    turned = turn(x[..., 0::2], x[..., 1::2], angles(*x.shape[-2:], **options))
    return torch.stack(turned, dim=-1).flatten(-2)                 # (..., n, d_k)


def rotate_halves(x, **options):                                # (..., n, d_k): pairs lie d_k / 2 apart
    turned = turn(*x.chunk(2, dim=-1), angles(*x.shape[-2:], **options))
    return torch.cat(turned, dim=-1)                               # (..., n, d_k)


# %% [markdown]
# ### Two layouts: the same up to an order of rows
#
# Queries come out of a matrix. Row $r$ of it makes dimension $r$ of the query. So if we put the rows of *each head* in
# another order, evens first and odds after them, the query's dimensions change places in the same way, and what were
# neighbours are now halves. Do it to queries and keys alike, and every score stays what it was: a dot product does not
# mind the order of its terms.

# %%
def to_halves(weight, heads):                             # (heads · d_k, d_model): rows of a projection
    """In each head the pairs' firsts, then their seconds."""
    return rearrange(weight, "(h c two) d -> (h two c) d", h=heads, two=2)


torch.manual_seed(0)
x = torch.randn(10, 64)                                            # (n, d_model)
w_q, w_k = torch.randn(2, 64, 64) / 8                              # (heads · d_k, d_model) each


def scores(w_q, w_k, rotate):
    q, k = (rearrange(x @ w.T, "n (h d) -> h n d", h=4) for w in (w_q, w_k))    # (heads, n, d_k) each
    return rotate(q) @ rotate(k).mT                                # (heads, query, key)


paper = scores(w_q, w_k, rotate_pairs)                             # (heads, query, key)
moved = scores(to_halves(w_q, 4), to_halves(w_k, 4), rotate_halves)            # (heads, query, key)
prove_equal(moved, paper, what="Pairs, and halves with reordered rows,")
gap = (scores(w_q, w_k, rotate_halves) - paper).abs()              # (heads, query, key)
print(f"without reordering: at position 0 off by {gap[:, 0, 0].max():.1f},", end=" ")
print(f"elsewhere by up to {gap.max():.1f}")

# %% [markdown]
# So a model may use either layout, and one written for the other layout can be converted, without training, by moving
# rows. The author of our checkpoint trained it with pairs; the file in the folder has its rows moved, because
# `transformers` turns halves. Values and the output matrix stay as they are. (Why? Section 16 asks.)
#
# The part itself is a few lines: make the heads as before, then turn queries and keys.


# %%
class RotaryAttention(Attention):
    def __init__(self, s):
        super().__init__(s)
        self.rotate = s.rotate

    def turn(self, q, k):                                          # (batch, heads, n, d_k) each
        return self.rotate(q), self.rotate(k)

    def make_heads(self, x):                                       # (batch, n, d_model)
        q, k, v = super().make_heads(x)                            # (batch, heads, n, d_k) each
        return *self.turn(q, k), v


# %% [markdown]
# Out with the learned table, in with the rotation:

# %% tags=["nbval-ignore-output"]
rotary = replace(gated, attention=RotaryAttention, rotate=rotate_halves, learned_positions=False)
table["rotary"] = train("rotary", rotary)
print(table["SwiGLU"], table["rotary"], sep="\n")
expect("What rotary gains", table["SwiGLU"].loss - table["rotary"].loss, 0.1, 0.35)

# %% [markdown]
# Here is a swap that you can see without a magnifying glass. The little model has only 240 steps to find out what
# matters in a text, and "the character just before" is the first thing. With learned positions it must discover that
# rule 32 times, once for each place. With rotary positions it is one rule. How much of the gap is left after a long
# training, our minute cannot tell.
#
# ## 7 Swap 4: no biases
#
# GPT-2 adds a bias after every matrix. PaLM (Chowdhery et al. 2022, section 2) and Llama leave them all out; the
# authors of PaLM report that large models then train more steadily. No model of ours is large enough to check that. But
# does anything get lost?

# %% tags=["nbval-ignore-output"]
no_biases = replace(rotary, bias=False)
table["no biases"] = train("no biases", no_biases)
print(table["rotary"], table["no biases"], sep="\n")

# %% [markdown]
# A little better or a little worse, depending on the seed. Take them out, and nothing is missed.
#
# ## 8 Swap 5: queries that share keys and values
#
# This one is about memory. While a model writes, each block keeps a key and a value of every token so far: the cache.
# For Llama 7B with 32 blocks, 32 heads and $d_k = 128$, in 2-byte numbers:
#
# $$2 \cdot \text{blocks} \cdot \text{kv heads} \cdot d_k \cdot 2 \text{ bytes}$$

# %%
def cache_bytes(blocks, kv_heads, d_k, tokens=1, bytes=2):
    return 2 * blocks * kv_heads * d_k * tokens * bytes            # a key and a value


print(f"Llama 7B: {cache_bytes(32, 32, 128):,} bytes per token")
print(f"for 2048 tokens: {cache_bytes(32, 32, 128, 2048) / 1e9:.2f} GB")

# %% [markdown]
# Half a megabyte for a single *token*. The weights are 13.5 GB, so with thirteen readers at a time the caches are
# larger than the model. And it is slow, too: for each new token, all of it has to be read once.
#
# Do 32 heads need 32 different keys for the same word? Shazeer (2019) gave all query heads *one* pair of key and value:
# multi-query attention. Ainslie et al. (2023) took the middle: groups of queries share a pair. Grouped-query attention,
# with as many pairs as you can afford. (A *pair* is now one head of keys and its head of values; in section 6 it was two
# dimensions that turn together.)

# %%
figures.shared_heads(
    8, (8, 2, 1), title="Fewer pairs of key and value: each is read by a group of queries",
    names=["8 pairs: multi-head", "2 pairs: grouped-query", "1 pair: multi-query"],
    alt="Three panels of eight query heads. Left, each has a key-value pair of its own. Middle, "
    "the first four share "
    "one, the last four another. Right, all eight share one.",
)

# %% [markdown]
# To compute with them, each pair is repeated for its group. The order matters: query heads 0 … 3 read pair 0, so the
# pairs have to stand as 0 0 0 0 1 1 1 1. torch has two functions whose names sound alike:

# %%
pair = torch.arange(2)                                             # (kv_heads,)
print("repeat_interleave(4):", pair.repeat_interleave(4).tolist())
print("repeat(4):           ", pair.repeat(4).tolist(), " <- the heads take turns: no groups")

# %% [markdown]
# Both give the right shape. A model that is trained with either works just as well: it is only the query heads that are
# numbered differently. But *loaded* weights need the order they were trained with; section 12 measures how much.


# %%
class GroupedAttention(RotaryAttention):
    def __init__(self, s):
        super().__init__(s)
        self.key, self.value = (nn.Linear(s.d_model, s.kv_heads * self.d_k, s.bias) for _ in range(2))

    def share(self, kv):                                           # (batch, kv_heads, n, d_k)
        return kv.repeat_interleave(self.heads // kv.shape[1], dim=1)        # (batch, heads, n, d_k)

    def make_heads(self, x):                                       # (batch, n, d_model)
        q, k, v = super().make_heads(x)                            # k and v: (batch, kv_heads, n, d_k)
        return q, self.share(k), self.share(v)


# %% [markdown]
# Keys and values now have fewer rows. So that the number of parameters stays, the feed-forward network gets what they
# save: 21 entries for two pairs, 32 for one. (Llama 2 did the same when they compared; Touvron et al. 2023b, A.2.1.)

# %% tags=["nbval-ignore-output"]
grouped = replace(no_biases, attention=GroupedAttention, kv_heads=2, d_ff=171 + 21)
multi_query = replace(grouped, kv_heads=1, d_ff=171 + 32)
table["2 pairs"] = train("2 pairs", grouped)
table["1 pair"] = train("1 pair", multi_query)
print(table["no biases"], table["2 pairs"], table["1 pair"], sep="\n")

# %% [markdown]
# Half of the cache, or three quarters, is gone, and the loss is where it was, within the noise. Ainslie et al. found
# much the same at scale: 8 pairs are nearly as good as 64, and a single one is a little worse. A training step takes as
# long as before, since training has no cache.
#
# Does it save time when the model *writes*? The cache must be read once for each new token, and the queries of a group
# can share the reading. (They must not repeat the pairs for it: that would copy the cache first. A group of queries is
# multiplied with its pair at once.) One new token, 32 heads of 64, and 4096 tokens in the cache:

# %% tags=["nbval-ignore-output"]
def one_step(kv_heads, n=4096, heads=32, d_k=64):
    q = torch.randn(kv_heads, heads // kv_heads, d_k)            # (kv_heads, group, d_k): one new token
    k, v = torch.randn(2, kv_heads, n, d_k)                        # (kv_heads, n, d_k) each: the cache
    times = []
    for _ in range(9):
        begun = time.process_time()
        (q @ k.mT / d_k**0.5).softmax(dim=-1) @ v                  # (kv_heads, group, d_k)
        times.append(time.process_time() - begun)
    return 1000 * min(times)


reading = {kv_heads: one_step(kv_heads) for kv_heads in (32, 8, 1)}
for kv_heads, milliseconds in reading.items():
    size = cache_bytes(1, kv_heads, 64, 4096, bytes=4) / 1e6
    print(f"pairs {kv_heads:2}: {size:4.0f} MB to read, {milliseconds:4.1f} ms")

# %% [markdown]
# Less to read, less time, though not quite in proportion.
#
# ### Real models
#
# What would each of these models keep for its full context, with its own number of pairs, with one pair per head, and
# with a single pair? The numbers are from their papers and `config.json` files.

# %%
real = {                                                           # blocks, heads, pairs, d_k, context
    "GPT-2 xl": (48, 25, 25, 64, 1024),
    "Llama 7B": (32, 32, 32, 128, 2048),
    "Llama 2 70B": (80, 64, 8, 128, 4096),
    "Mistral 7B": (32, 32, 8, 128, 8192),
    "Llama 3.1 8B": (32, 32, 8, 128, 131072),
}
print("GB of cache for a full context    own pairs   a pair per head   multi-query")
for name, (blocks, heads, pairs, d_k, context) in real.items():
    own, every, single = (cache_bytes(blocks, kv, d_k, context) / 1e9 for kv in (pairs, heads, 1))
    print(f"{name:13} {context:7,} tokens  {pairs:3} pairs {own:9.2f} {every:15.2f} {single:13.3f}")

# %% [markdown]
# A context of 131,072 tokens with a pair per head would need 69 GB, for *one* reader. (Mistral keeps even less than the
# table says: each of its layers sees only the last 4096 tokens.)
#
# ### Two more ways to a small cache
#
# **Windows in some layers.** Gemma 3 (2025) lets five of six layers see the last 1,024 tokens only, and the sixth sees
# the whole past. A window's cache holds a window. For 131,072 tokens the cache shrinks to

# %%
context, window = 131_072, 1024
print(f"{(5 * window + context) / (6 * context):.1%} of what six full layers would keep")

# %% [markdown]
# In `txlib` the block's config takes one mask per layer: `mask=(sliding_window(1023),) * 5 + (causal(),)` for six
# layers (1,023 back, and the token itself). The cache forgets by itself.
#
# **Latent attention** (DeepSeek-V2, 2024, section 2.1). Heads that share a pair differ in their queries only. Why not
# keep all heads apart, and store something small from which their keys and values can be *computed*? From the token's
# vector $x$ make one short vector, $c = W_{down}\, x$, the *latent* one, and store only that. Each head has matrices
# $W_{UK}$ and $W_{UV}$ of its own (U for up): its key is $W_{UK}\, c$, its value $W_{UV}\, c$.

# %%
torch.manual_seed(0)
heads, d_k, latent, n = 4, 16, 24, 10
c = torch.randn(n, latent)                                       # (n, latent): all that the cache holds
up_key, up_value = torch.randn(2, heads, d_k, latent)              # (heads, d_k, latent) each
q = torch.randn(heads, 1, d_k)                                     # (heads, 1, d_k): one new token
k, v = c @ up_key.mT, c @ up_value.mT                              # (heads, n, d_k) each
written_out = (q @ k.mT / d_k**0.5).softmax(dim=-1) @ v            # (heads, 1, d_k)

# %% [markdown]
# But then, must all keys be computed anew for each token that is written? No: a score is
# $q \cdot (W_{UK}\, c) = (W_{UK}^\top q) \cdot c$. So multiply the one *query* by $W_{UK}^\top$ instead (`turned`,
# though nothing is rotated here), and attend to the stored vectors themselves. Values likewise: mix the stored vectors
# first, then multiply once by $W_{UV}$.

# %%
turned = q @ up_key                                                # (heads, 1, latent)
weights = (turned @ c.T / d_k**0.5).softmax(dim=-1)                # (heads, 1, n)
absorbed = (weights @ c) @ up_value.mT                             # (heads, 1, d_k)
what = "Attention to the stored vectors and to keys and values"
prove_equal(absorbed, written_out, tolerance=1e-4, what=what)
print(f"numbers per token and layer: keys and values {2 * heads * d_k}, latent {latent}")
print(f"DeepSeek-V2, 128 heads of 128: keys and values {2 * 128 * 128:,}, latent {512 + 64}")

# %% [markdown]
# 57 times less. (With 60 layers and 2-byte numbers, that is 69 KB per token instead of 3.9 MB.) In this form it is
# multi-query attention with one wide key, which is the value, too; yet each head has, in effect, a key of its own.
#
# 512 is the latent vector. The other 64 are the price of rotary positions: a rotation, another one for each place,
# would stand between $W_{UK}$ and the query, and $W_{UK}$ could not be moved past it. So DeepSeek does not rotate those
# keys. It adds one small key, the same for all heads, that alone is rotated.

# %% [markdown]
# ## 9 Two more parts that you will meet
#
# ### QK-norm
#
# Scores are products of queries and keys, and nothing keeps those small. When they grow, the softmax hardens, and
# training with a high learning rate can break. Dehghani et al. (2023) therefore normalise queries and keys; Qwen 3 and
# OLMo 2 do it with RMS norm. Qwen 3, as here, over each head, before turning; the gain is learned.


# %%
class NormedAttention(GroupedAttention):
    def __init__(self, s):
        super().__init__(s)
        self.query_norm, self.key_norm = (RMSNorm(self.d_k, s.eps) for _ in range(2))

    def turn(self, q, k):                                          # (batch, heads | kv_heads, n, d_k)
        return super().turn(self.query_norm(q), self.key_norm(k))


# %% [markdown]
# Train it like the others. And then both again, with ten times the learning rate:

# %% tags=["nbval-ignore-output"]
normed = replace(grouped, attention=NormedAttention)
table["QK-norm"] = train("QK-norm", normed)
hot = {name: train(f"{name}, rate × 10", settings, rate=6e-2)
       for name, settings in (("2 pairs", grouped), ("QK-norm", normed))}
print(table["2 pairs"], table["QK-norm"], sep="\n")
print("with ten times the learning rate:", {name: f"{row.loss:.2f}" for name, row in hot.items()})
expect("What QK-norm gains at that rate", hot["2 pairs"].loss - hot["QK-norm"].loss, 0.05, 0.5)

# %% [markdown]
# At the usual rate nobody needs it: the difference is noise. With ten times the rate the plain model learns clearly
# worse, and the one with QK-norm ends where it ended before. That is what it is for: where a training costs millions,
# nobody can try ten learning rates.
#
# ### Tied or not
#
# GPT-2 uses one matrix for the embedding and the output. Llama 7B has two. Whether that matters depends on how much of
# a model the matrix is:

# %%
known = {                                                          # vocabulary, d_model, parameters
    "GPT-2 small": (50_257, 768, 124_439_808), "Llama 7B": (32_000, 4096, 6_738_415_616),
    "Llama 3.2 1B": (128_256, 2048, 1_235_814_400), "our file": (1024, 128, 852_608),
}
for name, (vocabulary, d_model, total) in known.items():
    share = vocabulary * d_model / total
    print(f"{name:12}: {vocabulary:7,} × {d_model:4}, {share:5.1%} of {total:13,} parameters")

# %% [markdown]
# A large model hardly notices a second one. A small one with a large vocabulary cannot afford it: Llama 3.2 1B is tied
# again, and so is our file. It is a question of size, not of year.
#
# In our small model, `replace(grouped, tied=False)` adds 4,032 parameters, and made the loss a little worse with each
# of five seeds; the table in section 10 has the numbers. In so short a training, a second matrix to learn is a burden
# rather than a help.
#
# ## 10 All swaps on one page

# %% tags=["nbval-ignore-output"]
for row in table.values():
    print(row)

# %% [markdown]
# One seed can deceive. We have trained each of them with five, 0 to 4, and "untied" with them (you can:
# `train("SwiGLU", gated, seed=1)`). A change is against the row above, seed by seed; for QK-norm and untied, against
# 2 pairs.
#
# | | mean loss | change: mean | of five, from … to | what it buys |
# | --- | --- | --- | --- | --- |
# | GPT-2 | 2.409 | | | |
# | RMS norm | 2.405 | −0.004 | −0.017 … +0.007 | simpler |
# | SwiGLU | 2.391 | −0.014 | −0.059 … +0.002 | not to be told from noise here |
# | rotary | 2.193 | −0.198 | −0.238 … −0.175 | **a lower loss** |
# | no biases | 2.194 | +0.001 | −0.048 … +0.040 | simpler |
# | 2 pairs | 2.195 | +0.001 | −0.029 … +0.056 | **half the cache** |
# | 1 pair | 2.210 | +0.014 | −0.017 … +0.050 | **a quarter of the cache** |
# | QK-norm | 2.201 | +0.006 | −0.008 … +0.033 | high learning rates (section 9) |
# | untied | 2.226 | +0.031 | +0.008 … +0.074 | nothing here: a new matrix to learn |
#
# The changes as a figure, a dot at the mean and a line from the least to the greatest of five seeds:

# %%
changes = {
    "RMS norm": (-0.017, -0.004, 0.007), "SwiGLU": (-0.059, -0.014, 0.002),
    "rotary": (-0.238, -0.198, -0.175), "no biases": (-0.048, 0.001, 0.040),
    "2 pairs": (-0.029, 0.001, 0.056), "1 pair": (-0.017, 0.014, 0.050),
    "QK-norm": (-0.008, 0.006, 0.033), "untied": (0.008, 0.031, 0.074),
}
plots.ranges(
    changes, title="One swap lowers the loss: rotary", mark=0.0,
    xlabel="change of the loss (nats per character), five seeds",
    alt="A dot and a range for each swap. Rotary lies far to the left, from -0.24 to -0.18. Untied "
    "lies to the right of 0. All others cross 0.",
)

# %% [markdown]
# So there is one swap for quality that even a minute of training shows, one for memory, and several that keep the
# quality and make the model simpler. None makes our training clearly faster: look at the milliseconds. That is how this
# decoder came about, part by part. Nobody threw GPT-2 away.

# %% [markdown]
# ## 11 The real checkpoint
#
# Now the file of section 1. Take the settings from its config. (Its eps is 1e-6, and its context 128 tokens.)

# %%
real_settings = replace(
    grouped, vocab=config["vocab_size"], d_model=config["hidden_size"],
    heads=config["num_attention_heads"], kv_heads=config["num_key_value_heads"],
    d_ff=config["intermediate_size"], blocks=config["num_hidden_layers"],
    length=config["max_position_embeddings"], eps=config["rms_norm_eps"],
    tied=config["tie_word_embeddings"],
)

# %% [markdown]
# Then each tensor's bytes become numbers, and each name becomes ours. That is all there is to a loader: a table of
# names. `load_state_dict` refuses missing names, unknown names and wrong shapes.

# %%
NAMES = {
    "model.": "", "embed_tokens": "embedding", "layers": "blocks",
    "self_attn": "attention", "mlp": "feed_forward",
    "q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output",
    "input_layernorm": "attention_norm", "post_attention_layernorm": "feed_forward_norm",
}


def our_name(name):
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def tensor(entry):
    first, last = entry["data_offsets"]
    return torch.frombuffer(data[first:last], dtype=torch.float16).view(entry["shape"]).float()


# %% [markdown]
# Fill the model. `<All keys matched successfully>` is torch's way to say that nothing was missing and nothing was left.

# %%
weights = {our_name(name): tensor(entry) for name, entry in header.items()}
real = Decoder(real_settings)
print(real.load_state_dict(weights))
for name in sorted(header):
    if "layers.0" in name:
        print(f"{name:48} → {our_name(name)}")

# %% [markdown]
# The tokens are another file of the folder: a byte-pair vocabulary of 1,024 (lesson 01), run by the `tokenizers`
# library. Then let it write, at temperature 0.7, the likeliest forty tokens allowed (lesson 11):

# %%
from txlib.generation import keep_top_k
from txlib.text import load_tokenizer

tokenizer = load_tokenizer(folder)


@torch.no_grad()
def write(model, prompt, tokens=40, seed=0):
    torch.manual_seed(seed)
    ids = tokenizer.encode(prompt)
    for _ in range(tokens):
        logits = keep_top_k(model(torch.tensor([ids]))[0, -1] / 0.7, 40)       # (vocab,)
        ids.append(logits.softmax(dim=-1).multinomial(1).item())
    return tokenizer.decode(ids)


# %% [markdown]
# Here it is, the first text that your own Llama writes:

# %% tags=["nbval-ignore-output"]
print(write(real, "Alice was beginning to", tokens=100))

# %% [markdown]
# Spelling, quotation marks, Alice and the Queens, and no sense: that is what 0.85 million parameters can do. But every
# part of your decoder now does what it was trained to do. Is that proved? Not by a text that looks right; section 12
# will show how little that means. So compare all numbers with the library's, which reads the same folder:

# %%
from txlib.models.pretrained import load_pretrained

library = load_pretrained(folder, dtype=torch.float32)
rhyme = "The Queen of Hearts, she made some tarts, all on a summer day."
ids = torch.tensor([tokenizer.encode(rhyme)])                      # (1, n)
with torch.no_grad():
    prove_equal(real(ids), library(ids).logits, tolerance=1e-4, what="Your logits and the library's")

# %% [markdown]
# How well does it read? Its loss on real English: the opening of *Alice's Adventures in Wonderland*, which it has
# learned from, then texts that it has never seen: the Bible in today's English, Shakespeare, reviews of dresses.
# `loss_by_place` cuts a text into windows of n tokens and keeps the places apart; we need that in section 13.

# %%
opening = (
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having "
    "nothing to do: once or "
    "twice she had peeped into the book her sister was reading, but it had no pictures or "
    "conversations in it, “and "
    "what is the use of a book,” thought Alice “without pictures or conversations?”"
)


@torch.no_grad()
def loss_by_place(model, text, n=128):
    ids = torch.tensor(tokenizer.encode(text))
    n = min(n, len(ids) - 1)
    ids = ids[: (len(ids) - 1) // n * n + 1]                       # as many whole windows as there are
    logits = model(ids[:-1].view(-1, n))                           # (window, n, vocab)
    losses = F.cross_entropy(logits.flatten(0, 1), ids[1:], reduction="none")  # (window · n,)
    return losses.view(-1, n).mean(dim=0)                          # (n,)


# %% [markdown]
# Four texts, 20,000 characters of each but the opening, which is only three lines. Compare them per *character*: where
# the vocabulary knows few of a text's words, it cuts them into many small tokens, which are easier to guess one by one.
# A model that knows nothing has $\ln 1024 = 6.93$ nats per token.

# %%
def nats(model, text):
    per_token = loss_by_place(model, text).mean().item()
    return per_token, per_token * len(tokenizer.encode(text)) / len(text)


play = texts.validation[:20_000]
samples = {
    "Shakespeare": play,
    "reviews": " ".join(review.text for review in reviews().test)[:20_000],
    "Bible of today": " ".join(modern for _, modern in verses().test)[:20_000],
    "Alice, opening": opening,
}
read = {name: nats(real, text) for name, text in samples.items()}
for name, (per_token, per_character) in read.items():
    print(f"{name:15} {per_token:.2f} nats per token, {per_character:.2f} per character")

# %% [markdown]
# As a figure:

# %%
plots.bars(
    {name: per_character for name, (_, per_character) in read.items()}, format="{:.2f}",
    title="It reads what it has learned from best", xlabel="loss (nats per character)",
    alt="Bars of the loss in nats per character: Shakespeare 2.2, reviews 2.1, Bible of today 2.0, "
    "the opening of "
    "Alice 1.2.",
)

# %% [markdown]
# Per token the reviews look worst by far. But their tokens are longer, 2.7 characters against 2.1 in Shakespeare, and
# a longer token is harder to guess. Per character Shakespeare is the hardest of the four. So never compare losses per
# token between two texts, or two vocabularies.

# %% [markdown]
# Are your numbers the usual ones?

# %% tags=["nbval-ignore-output"]
expect("Loss on Shakespeare, per token", read["Shakespeare"][0], 4.6, 4.95)
expect("Loss on the opening of Alice, per token", read["Alice, opening"][0], 3.4, 4.1)

# %% [markdown]
# ## 12 Break it: what a wrong part looks like
#
# Every fault below loads without an error, since all shapes fit. One wrong part at a time. Guess first: which of these
# would you notice from its text alone?
#
# - the rotary layout: pairs for halves; or no rotation at all;
# - the groups: `repeat` for `repeat_interleave`;
# - the first two matrices of SwiGLU exchanged;
# - the norms' gains left at 1;
# - eps 1e-5, which many models have, for 1e-6; and eps 0.01.


# %%
class WrongGroups(GroupedAttention):
    def share(self, kv):                                           # (batch, kv_heads, n, d_k)
        return kv.repeat(1, self.heads // kv.shape[1], 1, 1)       # (batch, heads, n, d_k): 0 1 0 1


EXCHANGE = {"gate_proj": "up_proj", "up_proj": "gate_proj"}
exchanged = {".".join(EXCHANGE.get(part, part) for part in name.split(".")): weight
             for name, weight in weights.items()}
no_gains = {name: torch.ones_like(weight) if name.endswith("norm.weight") else weight
            for name, weight in weights.items()}
faults = {
    "all right": (real_settings, weights),
    "eps 1e-5": (replace(real_settings, eps=1e-5), weights),
    "no gains": (real_settings, no_gains),
    "wrong groups": (replace(real_settings, attention=WrongGroups), weights),
    "eps 0.01": (replace(real_settings, eps=0.01), weights),
    "pairs for halves": (replace(real_settings, rotate=rotate_pairs), weights),
    "gate exchanged": (real_settings, exchanged),
    "no rotation": (replace(real_settings, rotate=lambda x: x), weights),
}

# %% [markdown]
# Load each of them, and measure the loss on the play.


# %%
def load(settings, weights):
    model = Decoder(settings)
    model.load_state_dict(weights)
    return model.eval()


broken = {name: load(*fault) for name, fault in faults.items()}
wrong = {name: loss_by_place(model, play).mean().item() for name, model in broken.items()}
cost = {name: abs(round(wrong[name] - wrong["all right"], 4)) for name in wrong if name != "all right"}
plots.bars(
    cost, title="Only eps 1e-5 goes unpunished",
    xlabel="what the fault adds to the loss on Shakespeare (nats per token)",
    alt="What each fault adds to the loss: "
    + "; ".join(f"{name} {loss:.2f}" for name, loss in cost.items()),
)

# %% [markdown]
# And what do they write? All with the same seed:

# %% tags=["nbval-ignore-output"]
for name, model in broken.items():
    print(f"{name:17}", write(model, "Alice was beginning to", tokens=25).replace("\n", " "))

# %% [markdown]
# Are your costs the usual ones?

# %% tags=["nbval-ignore-output"]
costs = {
    "eps 1e-5": (-0.01, 0.01), "no gains": (0.1, 0.6), "wrong groups": (0.2, 0.8), "eps 0.01": (0.2, 1),
    "pairs for halves": (0.4, 1.2), "gate exchanged": (0.4, 1.3), "no rotation": (0.6, 1.6),
}
for name, (low, high) in costs.items():
    expect(f"Cost of {name}", wrong[name] - wrong["all right"], low, high)

# %% [markdown]
# Look at the texts again. With wrong groups or the wrong rotary layout there are still words, names and quotation
# marks; if you had no text of the right model beside it, you might blame the model's size. That is why porting a model
# ends with a comparison of *numbers*.
#
# And eps? Between 1e-6 and 1e-5 there is nothing to be seen. It is added to the mean squares; how large are those? The
# first norm reads the embedding:

# %%
mean_squares = real.embedding.weight.square().mean(dim=-1)         # (vocab,)
print(f"mean squares of the token vectors: {mean_squares.min():.4f} to {mean_squares.max():.4f}")

# %% [markdown]
# Beside such numbers 1e-5 vanishes as 1e-6 does, while 0.01 is as large as they are. So this model cannot tell you
# whether you have read its eps correctly. One with smaller numbers could.

# %% [markdown]
# ## 13 Longer than ever before
#
# The model was trained on 128 tokens. There is no table that ends there, so nothing stops you from giving it 512. In
# lesson 05 a small reader failed at that. Does a real model? And can it be helped without training? Two proposals, each
# one line here:
#
# - **Interpolate** (Chen et al. 2023): squeeze the positions. With `stretch=4`, position 512 is turned as far as 128
#   was; no angle is new, but neighbours are now a quarter of a step apart.
# - **Raise the base**: with a larger base the slow pairs turn more slowly, so that at 512 they have not left the known
#   angles, while the fast pairs, which tell neighbours apart, stay as they are. (Code Llama, Rozière et al. 2023, went
#   from 10,000 to a million. You will also meet the idea under the name *NTK-aware* scaling.)
#
# **YaRN** (Peng et al. 2023) decides pair by pair: it interpolates the slow pairs, leaves the fast ones alone, takes
# something between for those in the middle, and sharpens the softmax a little. Llama 3.1 does nearly the same, without
# the sharpening.

# %%
longer = {
    "as it is": rotate_halves,
    "interpolated × 4": partial(rotate_halves, stretch=4.0),
    "base × 16": partial(rotate_halves, base=160_000.0),
}
by_place = {
    name: loss_by_place(
        load(replace(real_settings, rotate=rotate), weights), texts.validation[:45_000], n=512)
    for name, rotate in longer.items()
}                                                                  # (512,) each

# %% [markdown]
# Each point is the mean of the 64 places up to it:

# %%
plots.lines(
    {name: (range(64, 513, 32), loss.unfold(0, 64, 32).mean(dim=-1).tolist())
     for name, loss in by_place.items()},
    title="Beyond 128 tokens it fails, unless the slow pairs turn more slowly",
    xlabel="place in the text", ylabel="loss (nats per token)", mark=("128 tokens", 128),
    alt="Loss against place, with a dotted line at 128. As it is: near 4.8 up to the line, then "
    "rising to 5.5. "
    "Interpolated: flat near 5.4 from the beginning. Base times 16: flat near 4.9 all the way.",
)

# %% [markdown]
# In numbers:

# %% tags=["nbval-ignore-output"]
for name, loss in by_place.items():
    print(f"{name:16}: {loss[:128].mean():.1f} up to place 128, {loss[128:].mean():.1f} beyond")
before, beyond = ({name: loss[part].mean().item() for name, loss in by_place.items()}
                  for part in (slice(128), slice(128, None)))
expect("What the untouched model loses beyond 128", beyond["as it is"] - before["as it is"], 0.4, 0.9)
expect("What the larger base saves beyond 128", beyond["as it is"] - beyond["base × 16"], 0.3, 0.7)

# %% [markdown]
# Untouched, the model is lost beyond its length, as lesson 05 predicted. Interpolation makes it as bad *everywhere*:
# the pairs that tell "one back" from "two back" now turn by a quarter of what it knows. Chen et al. say so, too: they
# train on for a thousand steps, and then it works. The larger base costs a little at once and holds all the way. But
# look at *what* holds: the loss at place 500 is no lower than at place 100. The model does not fall apart any more;
# that it makes use of 500 tokens is not shown. For that, too, models are trained on at the new length.

# %% [markdown]
# ## 14 Open the library
#
# In `txlib` there is one decoder, `GPT`. What you swapped by class, its config says by name: `norm="rms"`,
# `activation="swiglu"`, `position="rotary_half"`, `kv_heads=2`, `bias=False`. (With `qk_norm="layer"`
# it takes layer norm, as Dehghani et al. do.) `RotaryConfig(scaling=…)` is the third way of section 13 to reach beyond the trained length, as Llama 3.1
# has it: only the slow pairs turn more slowly. The parts, as the library has them:

# %%
from txlib.layers import BlockConfig, FeedForward, Rotary
from txlib.layers import RMSNorm as LibraryRMSNorm
from txlib.models import GPT, GPTConfig

show_source(LibraryRMSNorm, FeedForward, Rotary)

# %% [markdown]
# Your two trained models, the first and the grouped one, go into it by another table of names.


# %%
LIBRARY_NAMES = {"blocks": "decoder.layers", ".attention": ".self_attention"}


def into_library(model, config):
    weights = {}
    for name, weight in model.state_dict().items():
        for ours, theirs in LIBRARY_NAMES.items():
            name = name.replace(ours, theirs)
        weights["decoder." + name if name.startswith("norm") else name] = weight
    library = GPT(config)
    library.load_state_dict(weights)
    return library.eval()


# %% [markdown]
# Two configs, and the same numbers come out:

# %%
old = BlockConfig.of_sizes(64, 4, 256, activation="gelu_tanh", position="learned")
new = BlockConfig.of_sizes(
    64, 4, 192, norm="rms", activation="swiglu", bias=False, position="rotary_half", kv_heads=2)
ids = test_ids[:32][None]                                          # (1, n)
in_library = {}
for name, block in (("GPT-2", old), ("2 pairs", new)):
    sizes = GPTConfig(len(alphabet), block, layers=2, max_length=32)
    mine, library = table[name].model, into_library(table[name].model, sizes)
    in_library[name] = library
    with torch.no_grad():
        what = f"Your {name} and the library's GPT"
        prove_equal(mine(ids), library(ids).logits, tolerance=1e-4, what=what)

# %% [markdown]
# The real ones differ in nothing but numbers and names. Here is what three of them say differently. (No `kv_heads`
# means a pair for each head; a dash, that the model has no such part. GPT-2 rotates nothing, and `experts` are what
# lesson 18 is about.)

# %%
from dataclasses import fields

from txlib.layers import RotaryConfig
from txlib.models.sizes import GPT2, LLAMA, MIXTRAL, build, count_parameters


def settings(block):
    parts = {name: getattr(block, name) for name in ("attention", "ffn", "position", "norm")}
    inside = {
        f"{name}.{field.name}": getattr(part, field.name)
        for name, part in parts.items()
        for field in fields(part)
    }
    return {"d_model": block.d_model, "position": block.position.name, **inside}


three = {"GPT-2": GPT2["small"], "Llama 7B": LLAMA["7b"], "Mixtral 8x7B": MIXTRAL["8x7b"]}
columns = [settings(config.block) for config in three.values()]
print(" " * 19, *(f"{name:13}" for name in three))
for name in dict.fromkeys(name for column in columns for name in column):
    values = [str(column.get(name, "–")) for column in columns]
    if len(set(values)) > 1 and "dropout" not in name:
        print(f"{name:19}", *(f"{value:13}" for value in values))

# %% [markdown]
# Is it really Llama? Count its parameters. The models are built on the *meta* device, where tensors have a shape but
# no memory, so that 47 billion fit into a laptop. The published number of Llama 7B is 6,738,415,616.

# %%
LLAMA_3_1B = replace(
    LLAMA["7b"], vocab_size=128_256, layers=16, max_length=131_072, tie_embeddings=True,
    block=LLAMA["7b"].block.replace(
        d_model=2048, d_ff=8192, kv_heads=8, norm_eps=1e-5,
        position=RotaryConfig(base=5e5, layout="half")),
)
for name, sizes in (three | {"Llama 3.2 1B": LLAMA_3_1B}).items():
    print(f"{name:13} {count_parameters(sizes):14,} parameters")

# %% [markdown]
# ## 15 What it costs
#
# The formula for the cache, against what the library keeps. First your small models: read 32 characters, and weigh the
# cache.

# %%
for name, library in in_library.items():
    cache = library.new_cache()
    library.decode(ids, cache=cache)
    kept = sum(kv.nbytes for block in cache for kv in (block.self_attention.k, block.self_attention.v))
    print(f"{name:8} keeps {kept:6,} bytes in 4-byte numbers; formula {2 * table[name].cache * 32:6,}")

# %% [markdown]
# Then a model that fits into no laptop: Llama 2 70B, on the meta device. One reader with 4096 tokens, in 2-byte
# numbers, as it was made and with a pair for each head.

# %%
from txlib.training.memory import generation_memory

block_70b = LLAMA["7b"].block.replace(d_model=8192, heads=64, d_ff=28_672, norm_eps=1e-5)
for pairs in (8, 64):
    sizes = replace(LLAMA["7b"], layers=80, max_length=4096, block=block_70b.replace(kv_heads=pairs))
    needed = generation_memory(build(sizes), batch=1, length=4096, dtype=torch.float16)
    print(f"{pairs:2} pairs: {count_parameters(sizes):,} parameters, "
          f"weights {needed.weights / 1e9:.0f} GB, cache {needed.cache / 1e9:.2f} GB, "
          f"{80 * needed.cache / 1e9:.0f} GB for 80 readers")

# %% [markdown]
# With a pair per head, eighty readers need far more memory for their caches than for the model. With eight pairs they
# need less. That, and the time to read it all for each token, is the reason for grouped queries.

# %% [markdown]
# ## 16 Quiz
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
# There are three matrices against two, so two thirds. The one that leads back has become narrower, too.
# </details>
#
# **2. A checkpoint was trained with rotary pairs, your code turns halves. You reorder the rows of the query and the key
# matrices. What about values and the output matrix?**
#
# <details><summary>A. They stay as they are</summary>
#
# Right. Values are not turned, so nothing pairs up their dimensions, and the output matrix reads values.
# </details>
# <details><summary>B. The values' rows too, since keys and values belong together</summary>
#
# They belong to the same token, but a value's dimensions meet the columns of the output matrix. Reorder one of the two,
# and they no longer fit.
# </details>
# <details><summary>C. All four, or none</summary>
#
# All four would give the right result only if the output matrix's *columns* were reordered with the values' rows. It is
# not needed.
# </details>
#
# **3. 32 query heads share 8 pairs of key and value, $d_k$ = 128. How does the cache compare with 32 pairs, and how the
# work of computing scores?**
#
# <details><summary>A. Both are a quarter</summary>
#
# Every one of the 32 queries still meets a key of every token. The number of products stays.
# </details>
# <details><summary>B. The cache is a quarter, the work is the same</summary>
#
# Right. What is saved is memory, and the time to *read* it. When one token is written at a time, that is most of the
# time.
# </details>
# <details><summary>C. The cache is the same, the work is a quarter</summary>
#
# It is the other way round: keys and values are what the cache holds.
# </details>
#
# **4. You load a model. It writes English words in odd sentences, without any error. Which fault is excluded?**
#
# <details><summary>A. The wrong rotary layout</summary>
#
# That is how it looks: words, names, commas. See section 12.
# </details>
# <details><summary>B. A matrix with a wrong shape</summary>
#
# Right. `load_state_dict` would have refused it. All faults of section 12 have the right shapes.
# </details>
# <details><summary>C. Groups formed with <code>repeat</code></summary>
#
# Same shape, wrong order, and the text still has words.
# </details>
#
# **5. With interpolation by 4, a model trained on 128 tokens reads 512. Without more training its loss is worse even on
# the first 128. Why?**
#
# <details><summary>A. Angles appear that it has never seen</summary>
#
# That is what happens *without* interpolation. Squeezed positions stay within 0 … 128.
# </details>
# <details><summary>B. Neighbours are now a quarter of a step apart</summary>
#
# Right. "The token before me" has another angle than the one it has learned. A short training puts it right.
# </details>
# <details><summary>C. The cache is too small</summary>
#
# There is no cache in that measurement, and a cache changes no result.
# </details>

# %% [markdown]
# ## 17 Summary
#
# - Llama is GPT-2's wiring with other parts: RMS norm, SwiGLU, rotary positions, shared keys and values, no biases.
# - Measured on small models: rotary lowers the loss, shared pairs halve the cache at no cost, the rest is noise here.
# - Rotary's two layouts are the same up to the order of the query and key rows within each head.
# - The cache is 2 · blocks · pairs · $d_k$ numbers per token; grouped queries divide it by the size of a group. Windows
#   in most layers, or one latent vector for all heads, make it smaller still.
# - A checkpoint is names, shapes and numbers. What is wired wrongly still loads and still writes: compare numbers.
#
# **Read** Touvron et al. 2023, *LLaMA*, [arXiv:2302.13971](https://arxiv.org/abs/2302.13971), section 2. Zhang &
# Sennrich 2019, *Root Mean Square Layer Normalization*, [arXiv:1910.07467](https://arxiv.org/abs/1910.07467), section
# 4. Shazeer 2020, *GLU Variants Improve Transformer*, [arXiv:2002.05202](https://arxiv.org/abs/2002.05202). Su et
# al. 2021, *RoFormer*, [arXiv:2104.09864](https://arxiv.org/abs/2104.09864), section 3. Shazeer 2019, *Fast Transformer
# Decoding*, [arXiv:1911.02150](https://arxiv.org/abs/1911.02150), section 3. Ainslie et al. 2023, *GQA*,
# [arXiv:2305.13245](https://arxiv.org/abs/2305.13245), section 2. Dehghani et al. 2023, *Scaling Vision Transformers to
# 22 Billion Parameters*, [arXiv:2302.05442](https://arxiv.org/abs/2302.05442), section 2. Chen et al. 2023, *Extending
# Context Window of Large Language Models via Positional Interpolation*,
# [arXiv:2306.15595](https://arxiv.org/abs/2306.15595), section 2. Rozière et al. 2023, *Code Llama*,
# [arXiv:2308.12950](https://arxiv.org/abs/2308.12950), section 2.4. Touvron et al. 2023b, *Llama 2*,
# [arXiv:2307.09288](https://arxiv.org/abs/2307.09288), appendix A.2.1. DeepSeek-AI 2024, *DeepSeek-V2*,
# [arXiv:2405.04434](https://arxiv.org/abs/2405.04434), section 2.1. Peng et al. 2023, *YaRN*,
# [arXiv:2309.00071](https://arxiv.org/abs/2309.00071), section 3. Gemma Team 2025, *Gemma 3*,
# [arXiv:2503.19786](https://arxiv.org/abs/2503.19786), section 2.
#
# **Do** the exercise [16_todays_decoder](../exercises/exercise_16_todays_decoder.ipynb). Then go on to
# [18 Mixture of experts](18_experts.ipynb).
