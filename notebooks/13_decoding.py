# %% [markdown] lesson={"part": "II Language models", "builds": "the cache, batches, fewer bits, speculative decoding"}
# # 13 · Decoding fast: the same text in less time
#
# **After this lesson you will be able to**
#
# - build a cache of keys and values, prove that it changes nothing, and count what it saves and what it takes;
# - write for several prompts at once without spoiling any of them;
# - say, from two numbers of a machine, whether a token waits for arithmetic or for memory, and check it with a clock;
# - round weights to 8 bits and fewer, and measure what that costs;
# - build speculative decoding, derive its rule, and test that its texts are distributed as before.
#
# **You need** lessons 03 to 06, 10 and 11. **It takes** about 65 minutes to read and try; after section 4 is a good
# place for a break. All cells together run in about a minute on a laptop. Nothing is trained here.

# %% [markdown]
# ## 1 The problem: the whole past, once more for each token
#
# We have a model that writes: the one of lesson 11, with less than a million parameters, trained on Lewis Carroll's
# books. What is missing is speed.

# %%
import copy
import timeit
from dataclasses import replace

import torch
import torch.nn.functional as F

from txcourse import figures
from txcourse.lesson import (
    expect, predict, predicted, progress, prove_equal, show_source,
)
from txlib import load_pretrained, plots
from txlib.attention import attention, causal, full
from txlib.data import shipped
from txlib.generation import accept, generate
from txlib.generation import speculate as library_speculate
from txlib.layers import BlockConfig, PackedLinear, pack_weights
from txlib.models import GPT, GPTConfig
from txlib.text import load_tokenizer

# %% [markdown]
# Its size, and what the formulas of this lesson call it:

# %%
model = load_pretrained(shipped("glassllm-en"), dtype=torch.float32)
model.config = replace(model.config, max_length=2048)  # past 128, only speed matters
tokenizer = load_tokenizer(shipped("glassllm-en"))
encode, decode = tokenizer.encode, tokenizer.decode
V, L, d = model.config.vocab_size, model.config.layers, model.config.block.d_model
N = sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)
print(f"N = {N:,} weights in matrices, L = {L} blocks, width d = {d}, V = {V:,} tokens")

# %% [markdown]
# This is the loop of lesson 11, *predict, choose, append*, with greedy choice. At each step the model reads all tokens
# so far to predict one:


# %%
def milliseconds(run, repeats=10):
    return 1000 * min(timeit.repeat(run, number=1, repeat=repeats))


@torch.no_grad()
def write(ids, new):
    for _ in range(new):
        logits = model(torch.tensor([ids])).logits[0, -1]  # (vocab,)
        ids = [*ids, logits.argmax().item()]
    return ids


# %% [markdown]
# It writes:

# %%
print(decode(write(encode("Alice was"), 40)))

# %% [markdown]
# But the longer the text, the longer you wait for each token. For the 1,024th token, 1,023 positions are computed that
# were computed for the token before as well. Must they be computed again?

# %% [markdown]
# ## 2 Keep the past
#
# ### 2.1 The past never changes
#
# Under a causal mask, position $i$ sees positions $0 \dots i$ only. In the first block, its key and value are made of
# its own embedding. Its output is a mixture of values up to $i$. So its vector in the stream depends on tokens
# $0 \dots i$ only; the second block makes its key and value from that vector; and so on upwards, block by block.
# Whatever is appended later, **the keys and values of the past stay as they are**.
#
# And what does the new token need of the past? Its query is compared with all keys and mixes all values. Nothing else:
# old *queries* have done their work.
#
# So keep the keys and values of each block, in a **key–value cache**, and compute everything else for the new token
# only. To write five tokens the loop of section 1 computes $1 + 2 + 3 + 4 + 5 = 15$ positions. With the cache it
# computes 5, the blue ones:

# %% jupyter={"source_hidden": true}
line = "Alice was not a bit".split()
figures.token_grid(
    {f"step {i + 1}": [(word, "computed" if j == i else "reused") for j, word in enumerate(line[: i + 1])]
     for i in range(5)},
    {"computed": "computed in this step", "reused": "keys and values read from the cache"},
    title="With a cache, each step computes one position",
    alt="A staircase of five rows, one for each step, with the tokens Alice, was, not, a, bit. In each row the last "
    "token is blue, computed in this step, and all tokens before it are gray, read from the cache.",
)

# %% [markdown]
# ### 2.2 The cache in code
#
# We run the model through its parts by hand: the blocks of lesson 06, the heads of lesson 04, the rotation of lesson
# 05. Two query heads share one head of keys and values here, a **KV head**; `repeat_interleave` hands it to both, and
# lesson 16 explains why.


# %%
def project(layer, x, offset=0):  # x (batch, n, d_model)
    q = layer.split(layer.query(x))  # (batch, heads, n, d_k)
    k = layer.split(layer.key(x))  # (batch, kv_heads, n, d_k)
    v = layer.split(layer.value(x))  # (batch, kv_heads, n, d_k)
    return layer.rotary(q, offset=offset), layer.rotary(k, offset=offset), v


def mix(layer, q, k, v, allowed):
    group = layer.heads // layer.kv_heads
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    mixed = attention(q, k, v, allowed)  # (batch, heads, n, d_k)
    return layer.output(mixed.transpose(1, 2).flatten(2))  # (batch, n, d_model)


# %% [markdown]
# Two details matter. A new token is rotated by *its* position, which is the number of tokens in the cache, not 0. And
# where several new tokens come at once, as the prompt does, the causal mask must be moved: row $i$ is position
# past + $i$.


# %%
def attend(layer, x, cache, block, mask=causal(), forget=False):
    past = cache[block][0].shape[2] if block in cache else 0
    q, k, v = project(layer, x, offset=0 if forget else past)
    if past:
        old_k, old_v = cache[block]  # (batch, kv_heads, past, d_k) each
        k, v = torch.cat([old_k, k], dim=2), torch.cat([old_v, v], dim=2)
    cache[block] = k, v  # (batch, kv_heads, past + new, d_k) each
    allowed = mask.shift(past).dense(x.shape[1], k.shape[2])
    return mix(layer, q, k, v, allowed)  # (batch, new, d_model)


# %% [markdown]
# Around it, the whole model is as in lesson 10:


# %%
@torch.no_grad()
def forward(ids, cache, **options):  # ids (batch, new)
    x = model.embedding(ids)  # (batch, new, d_model)
    for number, block in enumerate(model.decoder.layers):
        normed = block.self_attention_norm(x)  # (batch, new, d_model)
        x = x + attend(block.self_attention, normed, cache, number, **options)
        x = x + block.feed_forward(block.feed_forward_norm(x))
    return model.logits(model.decoder.norm(x))  # (batch, new, vocab)


# %% [markdown]
# ### 2.3 Does it change anything?
#
# Two texts differ in their last three tokens only. Read each with the causal mask and without, and compare the keys
# that are left in the cache. Which tokens' keys will differ without the mask, and from which block on?

# %%
ids = encode("Alice was not a bit hurt, and she")
other = [*ids[:-3], *encode(" very glad to")][: len(ids)]  # the last three differ
change = {}
for name, mask in {"causal": causal(), "no mask": full()}.items():
    one, two = {}, {}
    forward(torch.tensor([ids]), one, mask=mask)
    forward(torch.tensor([other]), two, mask=mask)
    for block in range(L):
        before, after = one[block][0][0], two[block][0][0]  # (kv_heads, n, d_k)
        moved = (after - before).norm(dim=(0, 2)) / before.norm(dim=(0, 2))  # (n,)
        change[f"{name}, block {block}"] = moved

# %% [markdown]
# Block by block and token by token:

# %% jupyter={"source_hidden": true}
plots.heatmap(
    torch.stack(list(change.values())), title="The mask keeps the past as it was", xlabel="token", ylabel="",
    rows=list(change), columns=[tokenizer.tokenizer.id_to_token(id).replace("Ġ", "␣") for id in ids],
    alt="A table of relative changes, rows: four blocks with the causal mask and four without, "
    "columns: tokens. With the causal mask only the last three columns are not 0. Without it "
    "the keys of all tokens move from block 1 on.",
)

# %% [markdown]
# Without the mask, block 0 makes its keys from each token alone, and from block 1 on each vector has seen the new
# tokens. With the mask the past can be kept. And the logits? The text in pieces, 20 tokens, 7, then one by one, against
# all at once without a cache:

# %%
HUMAN = """Alice was beginning to get very tired of sitting by her sister on the
bank, and of having nothing to do: once or twice she had peeped into
the book her sister was reading, but it had no pictures or
conversations in it, “and what is the use of a book,” thought Alice
“without pictures or conversations?”
"""
ids = torch.tensor([encode(HUMAN)[:60]])  # (1, n)
cache = {}
pieces = [forward(piece, cache) for piece in ids.split([20, 7, *[1] * 33], dim=1)]
with torch.no_grad():
    uncached = model(ids).logits  # (1, n, vocab)
cached = torch.cat(pieces, dim=1)  # (1, n, vocab)
prove_equal(cached, uncached, tolerance=1e-4, what="Logits with and without the cache")

# %% [markdown]
# **Break it.** The classic error is to `forget` the offset. No shape is wrong, and each new query and key is rotated
# as if it stood at position 0. Will you notice?


# %%
def write_cached(ids, new=25, forget=False):
    cache, unread = {}, torch.tensor([ids])  # (1, new): the prompt, then one token
    for _ in range(new):
        logits = forward(unread, cache, forget=forget)  # (1, new, vocab)
        unread = logits[:, -1:].argmax(dim=-1)  # (1, 1)
        ids = [*ids, unread.item()]
    return ids


rabbit = encode("The White Rabbit")
print(f"right:\n{decode(write_cached(rabbit))}\n")
print(f"without the offset:\n{decode(write_cached(rabbit, forget=True))}")

# %% [markdown]
# ## 3 What the cache saves, and what it takes
#
# We have a cache that changes no text. Is it worth its memory? Count multiplications and additions. Each weight in a
# matrix costs 2 operations per position (lesson 06), so 5 tokens cost $2N \cdot 15$ without the cache and $2N \cdot 5$
# with it. Scores and mixing cost $4d$ for each query and key in each of $L$ layers. For $n$ tokens after a prompt of
# one:
#
# $$\text{without: } \sum_{i=1}^{n}\left(2Ni + 4dLi^2\right) \approx Nn^2 + \tfrac43 dLn^3
# \qquad\qquad \text{with: } \sum_{i=1}^{n}\left(2N + 4dLi\right) \approx 2Nn + 2dLn^2$$

# %%
from torch.utils.flop_counter import FlopCounterMode


def counted(new, with_cache):
    cache, one = {}, torch.ones(1, 1, dtype=torch.long)  # (1, 1)
    with FlopCounterMode(display=False) as counter:
        for i in range(1, new + 1):
            forward(one, cache) if with_cache else forward(one.expand(1, i), {})
    return counter.get_total_flops()


n = 32
slow, fast = counted(n, False), counted(n, True)
without = sum(2 * N * i + 4 * d * L * i**2 for i in range(1, n + 1))
cached = sum(2 * N + 4 * d * L * i for i in range(1, n + 1))
print(f"{n} tokens: {slow / fast:.1f} times fewer operations with the cache;",
      f"the formulas agree: {(slow, fast) == (without, cached)}")

# %% [markdown]
# Now the clock: milliseconds for *one more* token after $n$. Without the cache we time the library's model, whose
# attention is faster than ours.

# %% tags=["nbval-ignore-output"]
for length in (8, 128, 1024):  # past 128 it has learned nothing, but it computes
    ids, cache = torch.randint(V, (1, length)), {}  # (1, length)
    forward(ids[:, :-1], cache)
    with torch.no_grad():
        without = milliseconds(lambda: model(ids), 5)
    cached = milliseconds(lambda: forward(ids[:, -1:], dict(cache)))
    print(f"{length:5,} tokens: {without:6.1f} ms; with the cache {cached:4.1f} ms")
expect("Times faster with the cache, at 1,024 tokens", without / cached, 4, 500)

# %% [markdown]
# Nothing is free. The cache holds a key and a value for each layer, each KV head and each of the $n$ positions. Ours
# has 4 layers with 2 KV heads of width 32, so one token leaves $2 \cdot 4 \cdot 2 \cdot 32 = 512$ numbers behind:
#
# $$\text{bytes} = 2 \cdot L \cdot h_\text{kv} \cdot d_k \cdot n \cdot \text{bytes per number}$$


# %%
def cache_bytes(config, n, width=2):  # width: bytes per number, 2 in half precision
    block = config.block
    kv_heads = block.attention.kv_heads or block.attention.heads
    return 2 * config.layers * kv_heads * block.head_dim * n * width


cache = {}
forward(torch.ones(1, 100, dtype=torch.long), cache)
held = sum(k.nbytes + v.nbytes for k, v in cache.values())
print(f"100 tokens: {held:,} bytes; formula {cache_bytes(model.config, 100, 4):,}")

# %% [markdown]
# And the large ones? Their sizes are in the library. One text, as long as each model's context:

# %%
from txlib.models.sizes import GPT2, GPT3, LLAMA, MIXTRAL, count_parameters

GIANTS = {"GPT-2 small": GPT2["small"], "GPT-2 XL": GPT2["xl"],
          "Llama 7B": LLAMA["7b"], "Mixtral 8x7B": MIXTRAL["8x7b"],
          "GPT-3 175B": GPT3["175b"]}
print(f"{'':13}{'KiB a token':>12}{'tokens':>8}{'cache, GiB':>12}{'weights':>9}")
for label, config in GIANTS.items():
    n, weights = config.max_length, 2 * count_parameters(config)
    print(f"{label:13}{cache_bytes(config, 1) / 2**10:12,.0f}{n:8,}"
          f"{cache_bytes(config, n) / 2**30:12.2f}{weights / 2**30:9.1f}")

# %% [markdown]
# Half a mebibyte per token for Llama 7B: thirteen texts of full length, and the cache is as large as the model. That
# limits how many users a GPU can serve at once. Mixtral has as many layers as Llama 7B and heads of the same width, but
# 8 KV heads instead of 32, so a quarter of the cache: that is what grouped queries are for (lesson 16).

# %% [markdown]
# ## 4 Several prompts at once
#
# A server writes for many users. Their prompts have different lengths, but a batch is a rectangle, so the short ones
# are padded. On which side? In lesson 08 the padding was on the right. Here the *end* of the prompt is where the model
# goes on. Where does the next token land?

# %% jupyter={"source_hidden": true}
words_of = {"right": ["The", None, None, None, "new"], "left": [None, None, None, "The", "new"]}
longest = ["Alice", "was", "beginning", "to", "new"]


def padded_row(words):
    return [("", "padding") if word is None else (word, "kept" if word == "new" else "reused") for word in words]


figures.token_grid(
    {"padded right": padded_row(words_of["right"]), " ": padded_row(longest), "  ": [None] * 5,
     "padded left": padded_row(words_of["left"]), "   ": padded_row(longest)},
    {"reused": "prompt", "padding": "padding", "kept": "the next token"},
    title="On the right, padding comes between a prompt and its next token", width=1.0,
    alt="Two batches of two prompts, The and Alice was beginning to. Padded on the right, three boxes of padding stand "
    "between The and its new token. Padded on the left, they stand before The, and the new token follows it directly.",
)

# %% [markdown]
# Try the ways, and compare each prompt's next-token distribution with what it is alone. Between two distributions we
# count the probability that is in the wrong place: for (0.5, 0.3, 0.2) and (0.4, 0.4, 0.2) it is 0.1.

# %%
rows = [encode("The"), encode("Alice was beginning to"),
        encode("“I don’t think they play at all fairly,” said")]
n, PAD = max(map(len, rows)), 0  # tokens of the longest
right = torch.tensor([row + [PAD] * (n - len(row)) for row in rows])  # (batch, n)
left = torch.tensor([[PAD] * (n - len(row)) + row for row in rows])  # (batch, n)
mask = torch.tensor([[0] * (n - len(row)) + [1] * len(row) for row in rows])


@torch.no_grad()
def next_tokens(ids, mask=None):  # (batch, n) each
    return model(ids, mask).logits[:, -1].softmax(dim=-1)  # (batch, vocab)


def misplaced(p, q):  # (..., vocab) each
    return (p - q).abs().sum(dim=-1) / 2  # (...,)


# %% [markdown]
# Guess first:

# %% jupyter={"source_hidden": true}
predict(
    "padding-side", "Which batches leave all three distributions as they are alone?",
    "all of them: padding means nothing", "padded left, with or without a mask", "only padded left with a mask",
)

# %%
alone = torch.cat([next_tokens(torch.tensor([row])) for row in rows])  # (batch, vocab)
ways = {"padded right, last column": (right, None),
        "padded left, no mask": (left, None),
        "padded left, with the mask": (left, mask)}
print("probability in the wrong place, for each prompt:")
for name, batch in ways.items():
    print(f"{name:28}", *(f"{x:6.1%}" for x in misplaced(next_tokens(*batch), alone)))
predicted("padding-side", "only padded left with a mask")

# %% [markdown]
# (The third prompt needs no padding.) On the right, the last column is padding, and the model continues *that*. You
# might read the last *real* token instead. But then the new token goes after the padding, too far away from its prompt,
# even if the padding is masked:

# %%
for gap in (0, 1, 4, 16):
    ids = torch.tensor([[*rows[1], *[PAD] * gap, *encode(" very")]])  # (1, length)
    seen = torch.tensor([[1] * len(rows[1]) + [0] * gap + [1]])  # (1, length)
    p = next_tokens(ids, seen)  # (1, vocab)
    near = near if gap else p
    print(f"a gap of {gap:2}: {misplaced(p, near)[0]:.1%} in the wrong place")
print("positions, padded left:", (mask.cumsum(dim=1) - 1).clamp(min=0)[1].tolist())

# %% [markdown]
# So pad on the left, with a mask. With rotary positions that is all, because they only know distances. With *learned*
# positions (GPT-2) one more thing is needed: the first real token must be position 0, wherever it stands. So count
# the real tokens, as the last line does for the second prompt.
#
# **What servers do.** Texts end at different steps, and a batch that waits for its longest text leaves the other rows
# idle. With **continuous batching** (*Orca*, Yu et al. 2022), a new request takes a row as soon as a text ends:

# %% jupyter={"source_hidden": true}
slots = {"row 1": "AAADDDDD", "row 2": "BBBBBBB.", "row 3": "CCEEEEFF"}
figures.token_grid(
    {name: [("", "dropped") if text == "." else (text, "computed") for text in texts] for name, texts in slots.items()},
    {"computed": "a token of the text with this letter", "dropped": "idle"},
    title="Six texts in three rows: a free row is given away at once", width=0.6,
    alt="Three rows of eight steps. Row 1: text A for three steps, then D for five. Row 2: B for seven steps, then "
    "idle. Row 3: C for two steps, E for four, F for two.",
)

# %% [markdown]
# Nor do they reserve room for the longest possible text. **Paged attention** (Kwon et al. 2023) cuts the cache into
# blocks of 16 tokens, which may lie anywhere in memory, and keeps a list of them for each text. Texts with the same
# beginning can share blocks.

# %% [markdown]
# ## 5 What a token waits for
#
# We can serve many users in one batch. Why should we? Look at what one step does. With one text, each weight takes part
# in 2 operations, and its 4 bytes must be fetched from memory: half an operation per byte. With 8 texts it is fetched
# once and used for 16 operations: 4 per byte. In general, with $B$ texts, the **arithmetic intensity** is
#
# $$\frac{\text{operations}}{\text{bytes}} = \frac{2NB}{4N} = \frac{B}{2}
# \qquad\qquad \text{time} \ge \max\left(\frac{2NB}{\text{operations per second}},\;
# \frac{4N}{\text{bytes per second}}\right)$$
#
# Both must be done; the slower one decides. What can your machine do? Multiply two large matrices, where each number
# is used thousands of times. And read an array too large for the processor's own memory, using each number once.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
square, array = torch.randn(2048, 2048), torch.ones(100_000_000)  # 16 MB, 400 MB
rate = 2 * 2048**3 / milliseconds(lambda: square @ square, 5) * 1000  # operations/s
reading = 4 * len(array) / milliseconds(array.sum, 5) * 1000  # bytes/s
print(f"{rate / 1e9:.0f} GFLOP/s, {reading / 1e9:.0f} GB/s:",
      f"{rate / reading:.0f} operations while one byte arrives")
print(f"reading and arithmetic take equally long at {2 * rate / reading:.0f} texts")
del array

# %% [markdown]
# With one text the intensity is ½, and this machine could do several operations while one byte arrives. So one token
# waits for *memory*. On GPUs the gap is wider still. An A100 with 80 GB
# computes 312 TFLOP/s in 16 bits and reads 2.04 TB/s (its data sheet): 153 operations per byte. In 16 bits the
# intensity is $B$, so with fewer than about 150 texts at once it mostly waits.
#
# Check it with the clock. Our small model fits into the processor's own memory, so it would prove nothing. Take
# GPT-2 small's twelve blocks instead, with random weights.

# %% tags=["nbval-ignore-output"]
sizes = BlockConfig.of_sizes(768, 12, 3072, position="rotary")
big = GPT(GPTConfig(V, sizes, layers=12)).eval()
weights = sum(weight.numel() for weight in big.parameters() if weight.dim() == 2)
took = {}
for B in progress([1, 2, 4, 8, 16, 32], "timing"):
    ids = torch.zeros(B, 1, dtype=torch.long)  # (batch, 1)
    with torch.no_grad():
        took[B] = milliseconds(lambda: big(ids), 6)
limit = {B: 1000 * max(2 * weights * B / rate, 4 * weights / reading) for B in took}
for B, ms in took.items():
    print(f"{B:2} texts: {ms:5.1f} ms per step, at best {limit[B]:5.1f} ms")
expect("Tokens per second: 16 texts against 1", 16 * took[1] / took[16], 3, 16)

# %% [markdown]
# The same as a speed, next to what the two limits allow:

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
plots.lines(
    {"measured": (list(took), [1000 * B / ms for B, ms in took.items()]),
     "at best": (list(took), [1000 * B / limit[B] for B in took])},
    xscale="log", yscale="log",
    marker="o", dashed=["at best"], title="Many texts share one reading of the weights",
    xlabel="texts in the batch, B", ylabel="tokens per second, together",
    alt="Tokens per second against the batch size, both logarithmic. The dashed limit rises in "
    "proportion to the batch, then becomes level where arithmetic takes longer than reading. "
    "The measured line lies below it.",
)

# %% [markdown]
# The dashed line is called a **roofline**: sloping where memory limits, level where arithmetic does. Under the slope,
# more texts cost little. What is measured stays below the limit.
#
# This makes a *server* fast, but not *your* text: one token still takes one reading of all weights. (And each text has
# its own cache to be read, which is not shared; at long contexts that limits the batch.) A single text has two levers:
# make the weights smaller, or get more than one token out of each reading.

# %% [markdown]
# ## 6 Fewer bits
#
# If a token waits for bytes, move fewer. A weight in float32 has 4 bytes; a whole number from −127 to 127 has one. Take
# the row (0.50, −1.27, 0.023). Its largest weight must become 127, so the **scale** is $1.27/127 = 0.01$; divided by it
# and rounded the row is (50, −127, 2), and times 0.01 again (0.50, −1.27, 0.020). Only the last one has changed, by
# less than half a scale:
#
# $$s_r = \frac{\max_c |W_{rc}|}{127} \qquad\qquad Q_{rc} = \text{round}\left(\frac{W_{rc}}{s_r}\right)
# \qquad\qquad W_{rc} \approx s_r\, Q_{rc}$$
#
# This is **quantization**, symmetric, with one scale per row (also *absmax*; Dettmers et al. 2022, §2). Why a scale for
# each row? One weight of unusual size makes the scale large for all that share it. Put one such **outlier** into a
# matrix, and look at all rows but its own:


# %%
def quantize(weight, bits=8, dim=1):  # (out, in); dim=None: one scale for all
    largest = weight.abs().amax(dim, keepdim=True)  # (out, 1) or (1, 1)
    scale = largest / (2 ** (bits - 1) - 1)  # (out, 1), or one number
    return (weight / scale).round().to(torch.int8), scale


weight = model.decoder.layers[0].feed_forward.up_proj.weight.detach()  # (d_ff, d_model)
spoiled = weight.clone()
spoiled[3, 5] = 20 * weight.abs().max()
rest = torch.arange(len(weight)) != 3  # all rows but the outlier's
for label, matrix in {"as it is": weight, "with an outlier": spoiled}.items():
    for shared, dim in {"the matrix": None, "each row": 1}.items():
        q, scale = quantize(matrix, dim=dim)
        error = (matrix - q * scale)[rest].norm() / matrix[rest].norm()
        print(f"{label:16} one scale for {shared:11} error {error:6.2%}")

# %% [markdown]
# Now the whole model, and not the error of its weights but that of its *predictions*: its perplexity on 100 tokens of
# Carroll. (It was trained on this very author, so it is low. Only the differences matter here.) With fewer and fewer
# bits, where does it break?


# %%
def rounded(bits, dim=1):  # it still computes in float32
    other = copy.deepcopy(model)
    for weight in other.parameters():
        if weight.dim() == 2:
            q, scale = quantize(weight.data, bits, dim)
            weight.data = q * scale
    return other


def perplexity(model):
    ids = torch.tensor([encode(HUMAN)])  # (1, n)
    with torch.no_grad():
        logits = model(ids).logits[0]  # (n, vocab)
    return F.cross_entropy(logits[:-1], ids[0, 1:]).exp().item()


widths = [2, 3, 4, 5, 6, 7, 8]
ladders = {"one scale per matrix": [perplexity(rounded(bits, None)) for bits in widths],
           "one scale per row": [perplexity(rounded(bits)) for bits in widths]}

# %% jupyter={"source_hidden": true}
plots.lines(
    {label: (widths[1:], values[1:]) for label, values in ladders.items()}
    | {"32 bits": ([3, 8], [perplexity(model)] * 2)},
    yscale="log", marker="o", dashed=["32 bits"],
    title="On these 100 tokens, eight bits cost nothing and four little",
    xlabel="bits per weight", ylabel="perplexity",
    alt="Perplexity against bits per weight from 3 to 8. Down to about 5 bits both lines lie on "
    "the dashed line of the unrounded model; at 4 one scale per row stays close while one per "
    "matrix leaves it; at 3 both rise.",
)

# %% [markdown]
# (Real 4-bit models use one scale for 32 to 128 weights, and place the
# levels with more care.)
#
# Is it faster? Not by itself. If you unpack the bytes to floats first, you write and read *more* than before. A special
# **kernel** has to multiply what it reads at once. The library's `pack_weights` uses such a kernel, FBGEMM, where the
# processor has one. It does more than we did: it also rounds the layer's *input* on the fly, to 128 levels, so that
# whole numbers are multiplied with whole numbers (*dynamic* quantization). So measure its time *and* its error, on a
# matrix that is too large for the processor's own memory, and the perplexity of our model with it:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
layer, x = torch.nn.Linear(8192, 8192, bias=False), torch.randn(1, 8192)  # 256 MiB
q, scale = quantize(layer.weight.detach())
ways = {"float32": layer, "int8, unpacked first": lambda x: F.linear(x, q * scale)}
if "fbgemm" in torch.backends.quantized.supported_engines:
    ways["int8, special kernel"] = PackedLinear(layer.weight, None, "int8").eval()
    packed = pack_weights(copy.deepcopy(model), "int8")
    expect("Perplexity with packed weights", perplexity(packed), 25, 28)
with torch.no_grad():
    for label, way in ways.items():
        error = (way(x) - layer(x)).norm() / layer(x).norm()
        wait = milliseconds(lambda: way(x), 3)
        print(f"{label:21} {wait:6.1f} ms, error {error:.2%}")
del layer, q

# %% [markdown]
# With a good kernel, a quarter of the bytes takes a quarter of the time or less. Unpacking first is far slower than
# not rounding at all. The rounded input adds to the error of the output, but the model as a whole does not mind: with
# 8-bit weights *and* inputs its perplexity is still that of 32 bits, to within one. (In large models inputs have
# outliers as well: LLM.int8() is about those.)

# %% [markdown]
# ## 7 Speculative decoding
#
# The other lever: more than one token for each reading of the weights. Several *texts* share a reading. Several
# *positions* of one text share it as well. How much longer does a call with five of them take?

# %% tags=["nbval-ignore-output"]
ids = torch.zeros(1, 5, dtype=torch.long)  # (1, new)
with torch.no_grad():
    one, five = (milliseconds(lambda: big(ids[:, :new]), 5) for new in (1, 5))
expect("Five tokens in one call, against one", five / one, 0.8, 3)
del big

# %% [markdown]
# Far less than five times as long. But we do not have the next five tokens. So *guess* them with something cheap, the
# **draft**. Then call the model once with all guesses. At each of them it says what it would have predicted, so we see
# which guesses were good, and keep those up to the first bad one (Leviathan et al. 2023; Chen et al. 2023).
#
# ### 7.1 The rule
#
# With greedy choice it is plain what a good guess is: the model's own likeliest token. But with sampling? The draft has
# drawn a token $x$ from its distribution $q$; the model's is $p$. We want the result to be distributed as $p$,
# *exactly*. Four tokens, with small numbers:

# %% jupyter={"source_hidden": true}
figures.overlap(
    {"she": 0.60, "was": 0.25, "the": 0.10, "rabbit": 0.05}, {"she": 0.30, "was": 0.30, "the": 0.10, "rabbit": 0.30},
    title="Green is kept; orange is refused, and fills the blue gaps",
    alt="Bars for four tokens, draft q against model p. The overlap, the smaller of the two, is green: she 0.30, was "
    "0.25, the 0.10, rabbit 0.05. On top of she, 0.30 too much. On top of was 0.05 and of rabbit 0.25 missing.",
)

# %% [markdown]
# Keeping every guess gives $q$: *she* comes twice as often as it should. So keep *she* only with probability
# $0.30/0.60 = ½$, and the others always. Then each token is guessed and kept as often as the green bars say. What is
# refused, 0.30, is as much as what is missing, 0.05 for *was* and 0.25 for *rabbit*. So after a refusal, draw from
# *what is missing*: *was* with probability 1/6, *rabbit* with 5/6. In general, a guess is kept with
# $\min(1, p(x)/q(x))$:
#
# $$P(x \text{ guessed and kept}) = q(x)\,\min\left(1, \frac{p(x)}{q(x)}\right) = \min\big(p(x), q(x)\big)$$
#
# So $P(x)$ is still short of $p(x)$ by $\max(0, p(x) - q(x))$. Do the totals match? A guess is kept with probability
#
# $$\alpha = \sum_x \min\big(p(x), q(x)\big)$$
#
# and refused with $1 - \alpha$, which is just the sum of all that is missing. So refused guesses fill each gap exactly,
# and $P(x) = p(x)$ (Leviathan et al., appendix A.1). Two other rules look almost as good: keep every guess; or, after a
# refusal, draw from $p$ itself.


# %%
def keep_or_redraw(guess, q, p, redraw):  # guess (n,); q, p, redraw (vocab,)
    refused = torch.rand(len(guess)) * q[guess] >= p[guess]  # (n,)
    others = redraw.multinomial(len(guess), replacement=True)  # (n,)
    return torch.where(refused, others, guess)


torch.manual_seed(0)
q, p = torch.tensor([0.60, 0.25, 0.10, 0.05]), torch.tensor([0.30, 0.30, 0.10, 0.30])
guess = q.multinomial(100_000, replacement=True)  # (n,)
missing = (p - q).clamp(min=0)  # (vocab,): multinomial normalizes
results = {"keep all": guess, "redraw from p": keep_or_redraw(guess, q, p, p),
           "redraw what is missing": keep_or_redraw(guess, q, p, missing)}
for label, drawn in results.items():
    print(f"{label:23}", (drawn.bincount(minlength=4) / 100_000).numpy().round(3))

# %% [markdown]
# Drawing from $p$ after a refusal is natural, and wrong: what was kept already has its share of $p$. The last rule is
# close. Close enough? The **chi-square test** asks it properly. Add up, over all outcomes, how far the counts $O$ are
# from the expected ones $E$. For a coin that shows 60 heads in 100 throws it is $10^2/50 + 10^2/50 = 4$:
#
# $$\chi^2 = \sum_x \frac{(O_x - E_x)^2}{E_x}$$
#
# If the distribution is right, $\chi^2$ has the mean $f$, the number of outcomes minus 1, and the standard deviation
# $\sqrt{2f}$; neither grows with the number of draws. If it is wrong, $\chi^2$ grows in proportion to them.


# %%
def chi_square(counts, expected):  # (outcome,) each
    return ((counts - expected).square() / expected).sum().item()


for label, drawn in results.items():
    found = chi_square(drawn.bincount(minlength=4), 100_000 * p)
    print(f"{label:23} χ² = {found:8,.1f}; if right: 3 ± {6**0.5:.1f}")

# %% [markdown]
# ### 7.2 A draft that costs nothing
#
# What could guess cheaply? A smaller model with the same tokens; the model's own first layers; the text itself, if it
# repeats. The cheapest that is any good is a table of bigrams (lesson 10). Let the model write a few hundred texts, and
# count which token follows which.


# %%
def write_many(prompt, count, new, seed):
    prompts = [encode(prompt)] * count
    texts = generate(model, prompts, max_new_tokens=new, do_sample=True, seed=seed)
    return torch.tensor(texts)  # (count, new)


bigrams = torch.zeros(V, V)  # (token, next)
for seed, start in enumerate(["Alice", "The", "“", "It was", "She", "Sylvie"]):
    texts = write_many(start, 64, 100, seed)  # (text, length)
    pair = texts[:, :-1].flatten(), texts[:, 1:].flatten()
    bigrams.index_put_(pair, torch.tensor(1.0), accumulate=True)

# %% [markdown]
# Bigrams that never occurred must stay possible, so add a little of how often each token occurs at all. Then $\alpha$:
# how large is $\sum_x \min(p(x), q(x))$ on average, on texts that were not counted? The table knows one token of the
# past, and the model all of them.

# %% jupyter={"source_hidden": true}
predict(
    "bigram-draft", "What share of the guesses of a table of bigrams will be kept?",
    "about one in twenty", "about two in five", "about four in five",
)

# %%
overall = (bigrams.sum(dim=0) + 1) / (bigrams.sum() + V)  # (vocab,)
table = bigrams + 5 * overall  # (token, next)
table = table / table.sum(dim=-1, keepdim=True)
coarse = rounded(4)
tested = write_many("The Queen", 48, 80, seed=99)  # (text, length)
with torch.no_grad():
    p = model(tested).logits.softmax(dim=-1)  # (text, length, vocab)
    drafts = {"frequencies": overall, "bigrams": table[tested],
              "itself in 4 bits": coarse(tested).logits.softmax(dim=-1)}
alphas = {}
for label, q in drafts.items():
    alphas[label] = torch.minimum(p, q).sum(dim=-1).mean().item()
    print(f"{label:17} α = {alphas[label]:.2f}")
predicted("bigram-draft", "about two in five", "Much of language is that local.")

# %% [markdown]
# The third draft is the model of section 6, rounded to 4 bits. It agrees nearly always, and where bytes are the limit
# it costs an eighth of the full one.
#
# ### 7.3 One call by hand
#
# We have a rule for one guess and a draft. Now guess four tokens, one after the other, and call the model once: it
# gives $p$ at the four guesses and at one place more.

# %%
ids = encode("Alice was")
generator = torch.Generator().manual_seed(49)
guesses, q = [], []
for _ in range(4):
    last = [*ids, *guesses][-1]
    q.append(table[last])  # (vocab,)
    guesses.append(table[last].multinomial(1, generator=generator).item())
logits = forward(torch.tensor([ids + guesses]), {})  # (1, length, vocab)
p = logits[0, -5:].softmax(dim=-1)  # (guess + 1, vocab)
for i, guess in enumerate(guesses):
    ratio = (p[i, guess] / q[i][guess]).item()
    print(f"{decode([guess])!r:12} p / q = {ratio:5.2f}: kept with {min(1, ratio):.0%}")

# %% [markdown]
# Check them from left to right. At the first refusal, draw what is missing there, and stop. If all are kept, the last
# row of $p$ gives one more token.


# %%
def checked(guesses, q, p, generator):  # q: rows (vocab,); p (guess + 1, vocab)
    for i, guess in enumerate(guesses):
        chance = torch.rand((), generator=generator)
        if chance * q[i][guess] >= p[i, guess]:  # refused
            missing = (p[i] - q[i]).clamp(min=0)  # (vocab,)
            return [*guesses[:i], missing.multinomial(1, generator=generator).item()]
    return [*guesses, p[-1].multinomial(1, generator=generator).item()]


tries = {}
for seed in range(4):
    result = checked(guesses, q, p, torch.Generator().manual_seed(seed))
    tries[f"try {seed}"] = result
    print(f"try {seed}: {decode(ids + result)!r}")

# %% [markdown]
# The same four guesses, four times checked:

# %% jupyter={"source_hidden": true}
def verdicts(result):
    kept = len(result) - 1
    cells = [(decode([guess]).strip(), "kept") for guess in guesses[:kept]]
    if kept < len(guesses):
        cells += [(decode([guesses[kept]]).strip(), "refused"), (decode([result[-1]]).strip(), "computed")]
        return cells + [(decode([guess]).strip(), "dropped") for guess in guesses[kept + 1 :]]
    return [*cells, (decode([result[-1]]).strip(), "computed")]


figures.token_grid(
    {name: verdicts(result) for name, result in tries.items()},
    {"kept": "guess kept", "refused": "guess refused", "computed": "drawn by the model", "dropped": "thrown away"},
    title="One call of the model gives one to five tokens", width=1.0,
    alt="One row for each of four tries, with the same four guesses. " + "; ".join(
        f"{name}: " + ", ".join(f"{text} {kind}" for text, kind in verdicts(result)) for name, result in tries.items()),
)

# %% [markdown]
# ### 7.4 The loop
#
# The loop calls this again and again, with the cache of section 2. Refused guesses must leave the cache: it is cut to
# what was kept. `shape` makes probabilities of logits; any sampler of lesson 11 fits in there.


# %%
def softmax(logits):
    return logits.softmax(dim=-1)


def speculate(ids, draft, new, ahead=4, seed=0, shape=softmax):
    generator = torch.Generator().manual_seed(seed)
    cache, calls, past, end = {}, 0, 0, len(ids) + new
    while len(ids) < end:
        guesses, q = [], []
        for _ in range(min(ahead, end - len(ids) - 1)):
            q.append(shape(draft([*ids, *guesses])))  # (vocab,)
            guesses.append(q[-1].multinomial(1, generator=generator).item())
        unread = torch.tensor([[*ids, *guesses][past:]])  # (1, new)
        p = shape(forward(unread, cache)[0, -len(guesses) - 1 :])  # (guess + 1, vocab)
        ids, calls = [*ids, *checked(guesses, q, p, generator)], calls + 1
        past = len(ids) - 1  # the newest token was not read yet
        for block, (k, v) in cache.items():
            cache[block] = k[:, :, :past], v[:, :, :past]
    return ids, calls


# %% [markdown]
# Greedy choice is a distribution as well: all probability on the likeliest token. Then the text must be the very same:


# %%
def greedy(logits):  # (..., vocab)
    return F.one_hot(logits.argmax(dim=-1), V).float()


def by_bigrams(ids):
    return table[ids[-1]].log()  # (vocab,): logits


for prompt in ("Alice was", "The White Rabbit", "“I don’t know,” said"):
    text, calls = speculate(encode(prompt), by_bigrams, 60, shape=greedy)
    same = text == write(encode(prompt), 60)
    print(f"{prompt + ' …':24} the same 60 tokens: {same}; {calls} calls instead of 60")

# %% [markdown]
# And with sampling: the same *distribution*. Write two tokens after *Alice was*, 1,000 times, and look at the second.
# What it should be can be computed: $P(x_2) = \sum_{x_1} p(x_1)\, p(x_2 \mid x_1)$ over all 1,024 first tokens. Rare
# outcomes are counted together.

# %%
start = torch.tensor([encode("Alice was")])  # (1, n)
first = next_tokens(start)[0]  # (vocab,)
every = torch.cat([start.expand(V, -1), torch.arange(V)[:, None]], dim=1)
second = first @ next_tokens(every)  # (vocab,)
drawn = torch.zeros(V)  # (vocab,)
for seed in progress(range(1000), "writing"):
    drawn[speculate(start[0].tolist(), by_bigrams, 2, ahead=2, seed=seed)[0][-1]] += 1
often = 1000 * second >= 10  # (vocab,)
counts = torch.cat([drawn[often], drawn[~often].sum()[None]])  # (outcome,)
expected = 1000 * torch.cat([second[often], second[~often].sum()[None]])  # (outcome,)
f = len(counts) - 1
print(f"χ² = {chi_square(counts, expected):.0f}; if right: {f} ± {(2 * f) ** 0.5:.0f}")

# %% [markdown]
# No sign of a difference.
#
# ### 7.5 How many tokens per call?
#
# Suppose each guess is kept with probability $\alpha = ½$. The first of two guesses counts with ½, the second with ¼,
# as both must be kept, and one token always comes from the model itself: $1 + ½ + ¼ = 1.75$ tokens per call. In
# general, with $\gamma$ guesses (Leviathan et al., equation 1):
#
# $$\text{tokens per call} = 1 + \alpha + \alpha^2 + \dots + \alpha^\gamma = \frac{1 - \alpha^{\gamma+1}}{1 - \alpha}$$
#
# In truth guesses depend on one another: hard places follow hard places. Does the formula hold?


# %%
@torch.no_grad()
def by_four_bits(ids):
    return coarse(torch.tensor([ids])).logits[0, -1]  # (vocab,)


for label, draft in {"bigrams": by_bigrams, "itself in 4 bits": by_four_bits}.items():
    alpha = alphas[label]
    for ahead in (1, 2, 4, 8):
        calls = sum(speculate(ids, draft, 48, ahead, seed)[1] for seed in range(3))
        formula = (1 - alpha ** (ahead + 1)) / (1 - alpha)
        print(f"{label:17} γ = {ahead}: {144 / calls:.1f}, formula {formula:.1f}")

# %% [markdown]
# It does, to within a few tenths of a token. With bigrams, more than about four guesses are wasted, since
# $1/(1-\alpha) = 1.7$ is the limit; with the better draft it is about 10. But a better draft costs more. If each guess takes
# the fraction $c$ of a call, and a call with guesses takes no longer than one without, divide by $\gamma c + 1$
# (Leviathan et al., theorem 3.8). Where bytes decide, 4 bits cost $c = 1/8$: with eight guesses, 6 tokens for two
# calls' time, about three times as fast. Without a kernel $c = 1$: with four guesses, 4 tokens for five calls' time,
# which is slower than no draft. And on this machine, with the clock? Our model is too small to wait for memory, but
# each call has fixed costs:

# %% tags=["nbval-ignore-output"]
ways = {"no draft": (None, 0), "bigrams": (by_bigrams, 4),
        "itself in 4 bits": (by_four_bits, 4)}
for label, (draft, ahead) in ways.items():
    wait = milliseconds(lambda: speculate(ids, draft, 40, ahead), 3)
    print(f"{label:17} {wait:4.0f} ms for 40 tokens")

# %% [markdown]
# Where reading the weights is not what you wait for, the table gains little, and the draft without a kernel loses.
# *Tokens per call* is a property of draft and model; *tokens per second* is also one of the machine.
#
# ### 7.6 The library
#
# `txlib.generation` has all of this: `stream` keeps the cache and pads on the left, `speculate` guesses ahead. Does it
# write what ours writes? And below is its rule. It is yours.

# %%
separately = [generate(model, [row], max_new_tokens=20)[0] for row in rows]
together = generate(model, rows, max_new_tokens=20)
print("together as alone:          ", together == separately)
(alone,) = generate(model, [rabbit], max_new_tokens=25)
print("the same as our cached loop:", rabbit + alone == write_cached(rabbit))
theirs = library_speculate(model, by_bigrams, rabbit, max_new_tokens=25)
_, calls = speculate(rabbit, by_bigrams, 25, shape=greedy)
print("the same with guesses:      ", theirs.tokens == alone, calls == theirs.calls)
show_source(accept)

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. Why is there no cache of queries?**
#
# <details><summary>A. Queries change when a token is appended</summary>
#
# They do not: what holds for keys and values of the past holds for queries as well.
# </details>
# <details><summary>B. Old queries are never needed again</summary>
#
# Right. A query makes its own position's output, and that has been made.
# </details>
# <details><summary>C. It would take too much memory</summary>
#
# It would. But even if it were free, nothing would read it.
# </details>
#
# **2. A model has 40 layers, 8 KV heads of 128, and numbers of 2 bytes. How large is the cache of one text of 8,192
# tokens?**
#
# <details><summary>A. 1.25 GiB</summary>
#
# Right: $2 \cdot 40 \cdot 8 \cdot 128 \cdot 2 = 163{,}840$ bytes per token, times 8,192.
# </details>
# <details><summary>B. 0.6 GiB</summary>
#
# You counted keys only. Values are kept as well.
# </details>
# <details><summary>C. It cannot be said without the number of query heads</summary>
#
# Queries are not kept. Only KV heads count.
# </details>
#
# **3. A model writes one text at 20 tokens per second, limited by memory. You replace the processor by one that
# computes twice as fast, with the same memory. What happens?**
#
# <details><summary>A. 40 tokens per second</summary>
#
# Arithmetic was not the limit: the units were idle most of the time, and now they are idle longer.
# </details>
# <details><summary>B. Still 20, but larger batches pay</summary>
#
# Right. One token still waits for one reading of the weights. The level part of the roofline rises, so it is reached
# at a larger batch.
# </details>
# <details><summary>C. Still 20, whatever the batch</summary>
#
# For one text, yes. But a batch of many texts reads the weights only once, and then arithmetic counts.
# </details>
#
# **4. A draft always guesses the token that the *model* finds likeliest, with $q = 1$ for it. You sample at T = 1. The
# model gives it 0.6. How often is the guess kept, and are the texts still right?**
#
# <details><summary>A. Always kept; the texts become greedier</summary>
#
# It would be so if guesses were kept without the rule. The rule keeps it with $p/q = 0.6$.
# </details>
# <details><summary>B. In 60% of cases; exactly right</summary>
#
# Right. $\min(p, q)$ is 0.6. When refused, one of the others is drawn from what is missing, and altogether that is $p$.
# </details>
# <details><summary>C. In 60% of cases; nearly right</summary>
#
# The rule is exact for *any* draft. A poor draft costs time, not quality.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - Under a causal mask the past's keys and values never change. Keep them:
#   $2 \cdot L \cdot h_\text{kv} \cdot d_k \cdot n$ numbers per text.
# - In a batch, pad on the left, with a mask, and count positions by real tokens.
# - One token waits for memory: all weights are read for $2N$ operations. Batches share that reading.
# - Fewer bits are fewer bytes: 8 bits per weight cost next to nothing, with one scale per row. Speed needs a kernel,
#   and ours also rounds the inputs.
# - A draft guesses, the model checks all guesses in one call. Keep a guess with $\min(1, p/q)$, else draw from
#   $\max(0, p - q)$: the text is distributed as before, and $\alpha = \sum \min(p, q)$ decides how fast it comes.
#
# **Read** Shazeer 2019, *Fast Transformer Decoding*, [arXiv:1911.02150](https://arxiv.org/abs/1911.02150), section 2
# (memory against arithmetic). Leviathan et al. 2023, *Fast Inference from Transformers via Speculative Decoding*,
# [arXiv:2211.17192](https://arxiv.org/abs/2211.17192), sections 2 and 3. Chen et al. 2023, *Accelerating Large Language
# Model Decoding with Speculative Sampling*, [arXiv:2302.01318](https://arxiv.org/abs/2302.01318). Dettmers et al. 2022,
# *LLM.int8()*, [arXiv:2208.07339](https://arxiv.org/abs/2208.07339), sections 2 and 3. Pope et al. 2022, *Efficiently
# Scaling Transformer Inference*, [arXiv:2211.05102](https://arxiv.org/abs/2211.05102), section 2. Kwon et al. 2023,
# *Efficient Memory Management for Large Language Model Serving with PagedAttention*,
# [arXiv:2309.06180](https://arxiv.org/abs/2309.06180), section 4.
#
# **Do** the exercise [13_decoding](../exercises/exercise_13_decoding.ipynb). Then go on to [14 BERT](14_bert.ipynb).
