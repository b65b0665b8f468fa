# %% [markdown] lesson={"part": "II Language models", "builds": "the cache, batches, fewer bits, speculative decoding"}
# # 13 · Decoding fast: the same text in less time
#
# **After this lesson you will be able to**
#
# - build a cache of keys and values, prove that it changes nothing, and count what it saves and what it takes;
# - write for several prompts at once without spoiling any of them;
# - say what a token waits for, arithmetic or memory, from two numbers of a machine, and check it with a clock;
# - round weights to 8 bits and fewer, and measure what that costs;
# - build speculative decoding, derive its rule, and test that its texts are distributed as before.
#
# **You need** lessons 03 to 06, 10 and 11. **It takes** about 80 minutes to read and try; after section 5 is a good
# place for a break. All cells together run in about a minute on a laptop. Nothing is trained here.

# %% [markdown]
# ## 1 The problem: the whole past, once more for each token
#
# We write with the small real model of lesson 11: less than a million parameters, trained on Lewis Carroll's books.

# %%
import copy
import time
from dataclasses import replace

import torch
import torch.nn.functional as F

from txlib import plots
from txlib.attention import attention, causal
from txcourse.lesson import expect, progress, prove_equal, show_source
from txlib.data import shipped
from txlib.models import GPT, GPTConfig
from txlib.models.pretrained import load_pretrained
from txlib.text import load_tokenizer

# %% [markdown]
# Its size, and what the formulas of this lesson will call it:

# %%
model = load_pretrained(shipped("glassllm-en"), dtype=torch.float32)
model.config = replace(model.config, max_length=2048)    # trained on 128; beyond, only speed matters
tokenizer = load_tokenizer(shipped("glassllm-en"))
encode, decode = tokenizer.encode, tokenizer.decode
V, L, d = model.config.vocab_size, model.config.layers, model.config.block.d_model
N = sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)    # in matrices
print(f"{N:,} parameters in matrices, {L} blocks of width {d}, {V:,} different tokens")

HUMAN = """Alice was beginning to get very tired of sitting by her sister on the
bank, and of having nothing to do: once or twice she had peeped into
the book her sister was reading, but it had no pictures or
conversations in it, “and what is the use of a book,” thought Alice
“without pictures or conversations?”
"""


# %% [markdown]
# This is the loop of lesson 11, *predict, choose, append*, with greedy choice. At each step the model reads all tokens
# so far, to predict one:


# %%
def milliseconds(step, repeats=10):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        times.append(1000 * (time.perf_counter() - start))
    return min(times)                                              # the least disturbed


@torch.no_grad()
def write(ids, new):
    for _ in range(new):
        logits = model(torch.tensor([ids])).logits[0, -1]          # (vocab,)
        ids = [*ids, logits.argmax().item()]
    return ids


# %% [markdown]
# It writes. And how long does one more token take, when there are many already?

# %% tags=["nbval-ignore-output"]
print(decode(write(encode("Alice was"), 40)), end="\n\n")
for length in (8, 128, 1024):
    ids = torch.randint(V, (1, length))                            # (1, length)
    with torch.no_grad():
        print(f"one more token after {length:5,}: {milliseconds(lambda: model(ids)):5.1f} ms")

# %% [markdown]
# (Beyond 128 tokens this model has learned nothing, but it computes.) The longer the text, the longer you wait for each
# token: 1,023 of 1,024 positions were computed for the token before, too. Must they be computed again?

# %% [markdown]
# ## 2 The past never changes
#
# Under a causal mask, position $i$ sees positions $0 \dots i$ only. In the first block, its key and value are made of
# its own embedding. Its output is a mixture of values up to $i$. So its vector in the stream depends on tokens
# $0 \dots i$ only; that vector is all that the second block makes its key and value from; and so on upwards, block by
# block. Whatever is appended later, **the keys and values of the past stay as they are**. Without the mask this is
# false: each position would see the new token, and from the second block on everything would change.
#
# To see it, we run the model through its parts by hand (the blocks of lesson 06, the rotation of lesson 05), and note
# the keys. Two heads of queries share one head of keys and values here, `repeat_interleave` hands them out; lesson 16
# explains why.


# %%
def project(layer, x, offset=0):                                   # x (batch, n, d_model)
    q, k, v = (layer.split(part(x)) for part in (layer.query, layer.key, layer.value))
    return layer.rotary(q, offset=offset), layer.rotary(k, offset=offset), v  # (batch, heads, n, d_k)


def mix(layer, q, k, v, allowed):                                  # (batch, heads, n, d_k) each
    k, v = (each.repeat_interleave(layer.heads // layer.kv_heads, dim=1) for each in (k, v))
    return layer.output(attention(q, k, v, allowed).transpose(1, 2).flatten(2))  # (batch, n, d_model)


@torch.no_grad()
def keys_of(ids, allowed):
    x, keys = model.embedding(torch.tensor([ids])), []             # (1, n, d_model)
    for block in model.decoder.layers:
        q, k, v = project(block.self_attention, block.self_attention_norm(x))
        keys.append(k)
        x = x + mix(block.self_attention, q, k, v, allowed)
        x = x + block.feed_forward(block.feed_forward_norm(x))
    return torch.stack(keys)[:, 0]                                 # (layer, kv_heads, n, d_k)


# %% [markdown]
# Take two texts that differ in their last three tokens only. Which keys will differ, with the causal mask and without?
# Decide first.

# %%
ids = encode("Alice was not a bit hurt, and she")
other = [*ids[:-3], *encode(" very glad to")][: len(ids)]          # the last three tokens differ
n = len(ids)
moved = []
for allowed in (causal().dense(n), torch.ones(1, 1, n, n).bool()):
    one, two = keys_of(ids, allowed), keys_of(other, allowed)      # (layer, kv_heads, n, d_k)
    moved.append((one - two).norm(dim=(1, 3)) / one.norm(dim=(1, 3)))            # (layer, n)
for kind, change in zip(("with the mask", "without a mask"), moved, strict=True):
    print(f"{kind}: earlier keys change by up to {change[:, :-3].max():.1g} of their length")

# %% [markdown]
# Block by block and token by token:

# %%
plots.heatmap(
    torch.cat(moved), title="The mask keeps the past as it was", xlabel="token", ylabel="",
    rows=[f"{kind}, block {i}" for kind in ("causal", "no mask") for i in range(4)],
    columns=[tokenizer.tokenizer.id_to_token(id) for id in ids],
    alt="A table of relative changes, rows: four blocks with the causal mask and four without, "
    "columns: tokens. With the causal mask only the last three columns are not 0. Without it "
    "the keys of all tokens move from block 1 on.",
)

# %% [markdown]
# ## 3 Build the cache
#
# What does the new token need of the past? Its own query, compared with all keys, mixes all values. Nothing else.
# Old *queries* have done their work. One head, to see it:

# %%
torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 1, 6, 32)                              # (batch, heads, n, d_k) each
whole = attention(q, k, v, causal().dense(6))                      # (batch, heads, n, d_k)
newest = attention(q[:, :, -1:], k, v)                             # no mask: it may see all
prove_equal(newest[0, 0, 0], whole[0, 0, -1], what="The new query alone and the last row of all")

# %% [markdown]
# So keep $K$ and $V$ of each layer, compute all else for the new tokens only, and append theirs. Two details: the new
# token is turned by *its* position, which is the number of tokens in the cache, not by 0; and where several new
# tokens come at once, as the prompt does, the causal mask must be moved: row $i$ is position past + $i$.


# %%
def attend_cached(layer, x, cache, number, forget=False):  # cache: number of the layer → (k, v)
    past = cache[number][0].shape[2] if number in cache else 0
    q, k, v = project(layer, x, offset=0 if forget else past)      # (batch, heads, new, d_k) each
    if past:
        k, v = (torch.cat(pair, dim=2) for pair in zip(cache[number], (k, v), strict=True))
    cache[number] = k, v  # (batch, kv_heads, past + new, d_k)
    allowed = causal().shift(past).dense(x.shape[1], past + x.shape[1])  # (1, 1, new, past + new)
    return mix(layer, q, k, v, allowed)                            # (batch, new, d_model)


# %% [markdown]
# The whole model, around it:


# %%
@torch.no_grad()
def forward(ids, cache, forget=False):                             # ids (batch, new)
    x = model.embedding(ids)                                       # (batch, new, d_model)
    for number, block in enumerate(model.decoder.layers):
        normed = block.self_attention_norm(x)
        x = x + attend_cached(block.self_attention, normed, cache, number, forget)
        x = x + block.feed_forward(block.feed_forward_norm(x))
    return model.logits(model.decoder.norm(x))                     # (batch, new, vocab)


# %% [markdown]
# Does it change anything? The text in pieces, 20 tokens, 7, then one by one; against all at once, without a cache:

# %%
ids = torch.tensor([encode(HUMAN)[:60]])                           # (1, n)
cache, parts = {}, []
for piece in ids.split([20, 7, *[1] * 33], dim=1):
    parts.append(forward(piece, cache))                            # (1, new, vocab)
with torch.no_grad():
    uncached = model(ids).logits                                   # (1, n, vocab)
prove_equal(torch.cat(parts, dim=1), uncached, tolerance=1e-4, what="Logits with and without the cache")

# %% [markdown]
# **Break it.** The classic error is to `forget` the offset. No shape is wrong, and each new query and key is turned
# as if it stood at position 0. Will you notice?


# %%
def write_cached(ids, new=25, forget=False):
    cache, news = {}, torch.tensor([ids])  # (1, new): first the prompt, then one token
    for _ in range(new):
        news = forward(news, cache, forget)[:, -1:].argmax(dim=-1)               # (1, 1)
        ids = [*ids, news.item()]
    return ids


rabbit = encode("The White Rabbit")
print(f"right:\n{decode(write_cached(rabbit))}\n")
print(f"without the offset:\n{decode(write_cached(rabbit, forget=True))}")

# %% [markdown]
# ## 4 What the cache saves, and what it takes
#
# Count multiplications and additions. Let $N$ be the number of parameters in matrices: each costs 2 operations per
# token (lesson 06). Scores and mixing cost $4d$ for each pair of query and key, in each of $L$ layers. To write $n$
# tokens from a prompt of one:
#
# $$\text{without: } \sum_{i=1}^{n}\left(2Ni + 4dLi^2\right) \approx Nn^2 + \tfrac43 dLn^3
# \qquad\qquad \text{with: } \sum_{i=1}^{n}\left(2N + 4dLi\right) \approx 2Nn + 2dLn^2$$

# %%
from torch.utils.flop_counter import FlopCounterMode


def counted(new, cached):
    cache, ids = {}, torch.ones(1, 1, dtype=torch.long)            # (1, 1)
    with FlopCounterMode(display=False) as counter:
        for i in range(1, new + 1):
            forward(ids, cache) if cached else forward(ids.expand(1, i), {})
    return counter.get_total_flops()


for new in (8, 16, 32):
    slow, fast = counted(new, False), counted(new, True)
    formula = (sum(2 * N * i + 4 * d * L * i**2 for i in range(1, new + 1)),
               sum(2 * N + 4 * d * L * i for i in range(1, new + 1)))
    print(f"{new:2} tokens: {slow / 1e6:3.0f} MFLOP without, {fast / 1e6:2.0f} with a cache,", end=" ")
    print(f"{slow / fast:4.1f} times fewer; the formulas agree: {(slow, fast) == formula}")

# %% [markdown]
# Now the clock: milliseconds for *one more* token after $n$. With the cache it hardly rises at this size: only the
# one new query meets all keys. Without it, two ways are timed: our `forward`, which writes out all scores, and the
# library's model of section 1, which leaves them to torch's own attention.

# %% tags=["nbval-ignore-output"]
lengths = [64, 128, 256, 512, 1024]
waits = {"no cache, ours": [], "no cache, library": [], "with cache": []}
for length in progress(lengths, "timing"):
    ids, cache = torch.randint(V, (1, length)), {}                 # (1, length)
    forward(ids[:, :-1], cache)
    with torch.no_grad():
        waits["no cache, ours"].append(milliseconds(lambda: forward(ids, {})))
        waits["no cache, library"].append(milliseconds(lambda: model(ids)))
        waits["with cache"].append(milliseconds(lambda: forward(ids[:, -1:], dict(cache))))
plots.lines(
    {label: (lengths, ms) for label, ms in waits.items()}, xscale="log", yscale="log",
    marker="o", title="With a cache, the next token costs far less",
    xlabel="tokens so far", ylabel="milliseconds per token",
    alt="Milliseconds for one token against the length, logarithmic. Without a cache it rises "
    "with the length, for our forward pass more steeply than for the library's. With a cache it "
    "is far lower and rises much less.",
)

# %% [markdown]
# At the longest text:

# %% tags=["nbval-ignore-output"]
ours, library, cached = (ms[-1] for ms in waits.values())
expect("Times faster with the cache, at 1,024 tokens", ours / cached, 4, 2000)
expect("The same against the library's model", library / cached, 4, 500)

# %% [markdown]
# Nothing is free. The cache holds a key and a value, for each layer, each key–value head, each of the $n$ positions:
#
# $$\text{bytes} = 2 \cdot L \cdot h_\text{kv} \cdot d_k \cdot n \cdot \text{bytes per number}$$


# %%
def cache_bytes(config, n, each=2):  # each: bytes per number; 2 in half precision
    block = config.block
    kv_heads = block.attention.kv_heads or block.attention.heads
    return 2 * config.layers * kv_heads * block.head_dim * n * each


cache = {}
forward(torch.ones(1, 100, dtype=torch.long), cache)
held = sum(each.numel() * each.element_size() for pair in cache.values() for each in pair)
formula = cache_bytes(model.config, 100, each=4)
print(f"ours, 100 tokens in 4 bytes: {held:,} bytes; the formula says {formula:,}")

# %% [markdown]
# And the large ones? Their sizes are in the library. One text, as long as each model's context:

# %%
from txlib.models.sizes import GPT2, GPT3, LLAMA, MIXTRAL, count_parameters

GIANTS = {"GPT-2 small": GPT2["small"], "GPT-2 XL": GPT2["xl"], "Llama 7B": LLAMA["7b"],
          "Mixtral 8x7B": MIXTRAL["8x7b"], "GPT-3 175B": GPT3["175b"]}
for label, config in GIANTS.items():
    n, weights = config.max_length, 2 * count_parameters(config)
    print(f"{label:13} {cache_bytes(config, 1) / 2**10:5,.0f} KiB per token; {n:6,} tokens take "
          f"{cache_bytes(config, n) / 2**30:4.2f} GiB, the weights {weights / 2**30:5.1f} GiB")

# %% [markdown]
# Half a mebibyte per token for Llama 7B: thirteen texts of full length, and the cache is as large as the model. That,
# not arithmetic, limits how many users a GPU can serve at once. Mixtral has as many layers and a head as wide as
# Llama 7B's, but 8 key–value heads instead of 32, so a quarter of the cache: that is what grouped queries are for
# (lesson 16). (GiB are units of $2^{30}$ bytes. Lesson 10's 9.7 GB for GPT-3 are the same 9.00 GiB.)

# %% [markdown]
# ## 5 Several prompts at once
#
# A server writes for many people. Their prompts have different lengths, but a batch is a rectangle, so the short ones
# are filled up. On which side? In lesson 08 the padding stood on the right. Here the *end* of the prompt is where the
# model goes on, so let us try all ways, and compare each prompt's next-token distribution with what it is alone.

# %%
prompts = ["The", "Alice was beginning to", "“I don’t think they play at all fairly,” said"]
rows = [encode(prompt) for prompt in prompts]
n, PAD = max(map(len, rows)), 0
right = torch.tensor([row + [PAD] * (n - len(row)) for row in rows])             # (batch, n)
left = torch.tensor([[PAD] * (n - len(row)) + row for row in rows])              # (batch, n)
mask = torch.tensor([[0] * (n - len(row)) + [1] * len(row) for row in rows])     # 1 = a real token
with torch.no_grad():
    alone = torch.cat([model(torch.tensor([row])).logits[:, -1].softmax(dim=-1) for row in rows])


def misplaced(p, q):  # (..., vocab) each: the share that differs
    return (p - q).abs().sum(dim=-1) / 2                           # (...,)


# %% [markdown]
# Which of the three rows below will show zeros?

# %%
@torch.no_grad()
def wrong_by(ids, mask=None):                                      # (batch, n) each
    p = model(ids, mask).logits[:, -1].softmax(dim=-1)             # (batch, vocab)
    return "  ".join(f"{change:6.1%}" for change in misplaced(p, alone))


print("share of the probability that is in the wrong place, for each prompt:")
print(f"padded right, last column    {wrong_by(right)}")
print(f"padded left, no mask         {wrong_by(left)}")
print(f"padded left, with the mask   {wrong_by(left, mask)}")

# %% [markdown]
# The third prompt is the longest; it needs no padding, so nothing happens to it. On the right, the last column of the
# others is padding, and the model continues *that*. You might read the last *real* token instead; that is right for
# the first new token. But where does the new token go? After the padding. There it is too far away from the prompt,
# even if the padding is masked:


# %%
@torch.no_grad()
def second_token(row, gap):
    """The distribution after one more token, which stands `gap` places too far; the gap is masked."""
    ids = torch.tensor([[*row, *[PAD] * gap, *encode(" very")]])   # (1, length)
    mask = torch.tensor([[1] * len(row) + [0] * gap + [1]])        # (1, length)
    return model(ids, mask).logits[0, -1].softmax(dim=-1)          # (vocab,)


for gap in (1, 4, 16, 64):
    change = misplaced(second_token(rows[1], gap), second_token(rows[1], 0))
    print(f"a gap of {gap:2}: {change:.1%} of the probability in the wrong place")

# %% [markdown]
# So pad on the left, with a mask. (On the right it works too, if each row then writes at its own place: real servers
# keep each text's cache apart and have no padding at all.) With rotary positions that is all, because they only know
# distances. With *learned* positions (GPT-2) there is one more thing: the first real token must be position 0, wherever
# it stands. Count the real tokens. Here with a GPT-2 in small, with random weights:

# %%
from txlib.layers import BlockConfig

torch.manual_seed(0)
small = BlockConfig.of_sizes(64, 4, 256, position="learned")
gpt2 = GPT(GPTConfig(V, small, layers=2, max_length=64, init_std=0.5)).eval()
places = {"by columns": torch.arange(n).expand(3, n),
          "by real tokens": (mask.cumsum(dim=1) - 1).clamp(min=0)}
allowed = mask.bool()[:, None, None, :] & causal().dense(n)        # (batch, 1, n, n)
with torch.no_grad():
    own = torch.cat([gpt2(torch.tensor([row])).logits[:, -1].softmax(dim=-1) for row in rows])
    for label, position in places.items():
        x = gpt2.embedding(left) + gpt2.position.weight[position]  # (batch, n, d_model)
        p = gpt2.logits(gpt2.decoder(x, allowed)[:, -1]).softmax(dim=-1)         # (batch, vocab)
        changes = "  ".join(f"{each:6.1%}" for each in misplaced(p, own))
        print(f"positions counted {label:15} {changes}")

# %% [markdown]
# ## 6 What a token waits for
#
# Why write for many at once at all? Look at what one step does. Each weight takes part in one multiplication and one
# addition per text: with $B$ texts in the batch, $2NB$ operations. And each weight must be fetched from memory, once
# per step, however many texts there are: $4N$ bytes in float32. The ratio is the **arithmetic intensity**:
#
# $$\frac{\text{operations}}{\text{bytes}} = \frac{2NB}{4N} = \frac{B}{2}
# \qquad\qquad \text{time} \ge \max\left(\frac{2NB}{\text{operations per second}},\;
# \frac{4N}{\text{bytes per second}}\right)$$
#
# Both must be done; the slower one decides. What can your machine do? Multiply two large matrices, where each number
# that is fetched is used thousands of times. And read an array too large for the processor's own memory, using each
# number once.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
square, array = torch.randn(2048, 2048), torch.ones(100_000_000)   # 16 MB, 400 MB
rate = 2 * 2048**3 / milliseconds(lambda: square @ square) * 1000  # operations per second
reading = 4 * len(array) / milliseconds(array.sum) * 1000       # bytes per second
balance = rate / reading
print(f"{rate / 1e9:.0f} GFLOP/s, {reading / 1e9:.0f} GB/s:", end=" ")
print(f"{balance:.0f} operations while one byte arrives.")
print(f"Reading and arithmetic take equally long at {2 * balance:.0f} texts")
del array

# %% [markdown]
# With one text the intensity is ½ operation per byte, and this machine could do several meanwhile. So its arithmetic
# units are idle most of the time: one token waits for *memory*. On GPUs the gap is wider still. An A100 with 80 GB
# computes 312 TFLOP/s in 16 bits and reads 2.04 TB/s (its data sheet): 153 operations per byte. In 16 bits, intensity
# is $B$: with fewer than about 150 texts at once it mostly waits.
#
# Check it with the clock. Our little model fits into the processor's own memory, so it would prove nothing. Take
# GPT-2 small's twelve blocks instead, with random weights: what they say does not matter here. Before you look: how
# much longer will a step for 4 texts take than a step for 1?

# %% tags=["nbval-ignore-output"]
big = GPT(GPTConfig(V, BlockConfig.of_sizes(768, 12, 3072, position="rotary"), layers=12)).eval()
weights = sum(weight.numel() for weight in big.parameters() if weight.dim() == 2)
batches = [1, 2, 4, 8, 16, 32, 64]
took = dict.fromkeys(batches, float("inf"))
with torch.no_grad():
    for _ in progress(range(8), "timing steps"):              # in turns, so that a busy moment hits all
        for B in batches:
            step = milliseconds(lambda: big(torch.zeros(B, 1, dtype=torch.long)), 1)
            took[B] = min(took[B], step)
limit = [1000 * max(2 * weights * B / rate, 4 * weights / reading) for B in batches]
for B, measured, least in zip(batches, took.values(), limit, strict=True):
    print(f"{B:2} texts: {measured:5.1f} ms per step (at best {least:5.1f} ms),", end=" ")
    print(f"{1000 * B / measured:4.0f} tokens per second")

# %% [markdown]
# The same as a speed, beside what the two limits allow:

# %% tags=["nbval-ignore-output"]
speeds = {
    "measured": [1000 * B / ms for B, ms in took.items()],
    "at best": [1000 * B / ms for B, ms in zip(batches, limit, strict=True)],
}
plots.lines(
    {label: (batches, values) for label, values in speeds.items()}, xscale="log", yscale="log",
    marker="o", dashed=["at best"], title="Many texts share one reading of the weights",
    xlabel="texts in the batch, B", ylabel="tokens per second, together",
    alt="Tokens per second against the batch size, both logarithmic. The dashed limit rises in "
    "proportion to the batch, then becomes level where arithmetic takes longer than reading. "
    "The measured line lies below it, furthest at small batches.",
)

# %% [markdown]
# What sixteen texts at once gain:

# %% tags=["nbval-ignore-output"]
expect("Tokens per second: 16 texts against 1", speeds["measured"][4] / speeds["measured"][0], 3, 16)

# %% [markdown]
# The dashed line is called a **roofline**: sloping where memory limits, level where arithmetic does. Under the slope,
# more texts cost little: in the run stored here, a step for 4 texts took 1.6 times as long as a step for 1. Even 16
# texts, where the line is level already, took only about two and a half times as long. A roofline is a limit: what is
# measured stays below it, here most of all for small batches. Nor is it as smooth: 2 texts took no less time than 4,
# since torch multiplies some numbers of rows better than others. That is the first lever. It makes a *server* fast, but not *your*
# text: one token still takes one reading of all weights. (And each text brings its own cache to be read, which is not
# shared; at long contexts that limits the batch.) There are two levers for a single text: make the weights smaller, or
# get more than one token out of each reading. Sections 7 and 8.

# %% [markdown]
# ## 7 Fewer bits
#
# If a token waits for bytes, move fewer. A weight in float32 has 4 bytes; a whole number from −127 to 127 has one.
# Round each weight to a multiple of a *step*, and store which multiple. How large a step? The largest weight of a row
# must still fit:
#
# $$s_r = \frac{\max_c |W_{rc}|}{127} \qquad\qquad Q_{rc} = \text{round}\left(\frac{W_{rc}}{s_r}\right)
# \qquad\qquad W_{rc} \approx s_r\, Q_{rc}$$
#
# This is *symmetric quantisation, one scale per row* (also: absmax; Dettmers et al. 2022, §2).


# %%
def quantise(weight, bits=8, dim=1):  # (out, in); dim=None: one step for all
    largest = weight.abs().max() if dim is None else weight.abs().amax(dim, keepdim=True)
    step = largest / (2 ** (bits - 1) - 1)                         # (out, 1), or a number
    return (weight / step).round().to(torch.int8), step


weight = model.decoder.layers[0].feed_forward.up_proj.weight.detach()   # (d_ff, d_model)
q, step = quantise(weight)
error = (weight - q * step).norm() / weight.norm()
bytes_now = q.numel() + 4 * step.numel()
print(f"{4 * weight.numel():,} bytes become {bytes_now:,}; the error is {error:.2%} of the matrix")
half_a_step = bool(((weight - q * step).abs() <= 0.5001 * step).all())
print("no weight is off by more than half a step:", half_a_step)

# %% [markdown]
# Why a step for each row? One weight of unusual size makes the step large for all that share it. Put one such
# **outlier** into the matrix: which error will rise more, with one step for the whole matrix, or with one per row?

# %%
spoiled = weight.clone()
spoiled[3, 5] = 20 * weight.abs().max()
for label, matrix in (("as it is", weight), ("with an outlier", spoiled)):
    for shared, dim in (("whole matrix", None), ("each row", 1)):
        q, step = quantise(matrix, dim=dim)
        rest = torch.arange(len(matrix)) != 3                      # all rows but the outlier's
        error = (matrix - q * step)[rest].norm() / matrix[rest].norm()
        print(f"{label:16} one step for {shared:12} error in the other rows {error:6.2%}")

# %% [markdown]
# Now the whole model, and not the error of its weights but of its *predictions*: its perplexity on the human text. With
# fewer and fewer bits, where does it break?


# %%
@torch.no_grad()
def rounded(bits, dim=1):
    """The model with each matrix rounded; it still computes in float32."""
    other = copy.deepcopy(model)
    for weight in other.parameters():
        if weight.dim() == 2:
            q, step = quantise(weight, bits, dim)
            weight.copy_(q * step)
    return other


@torch.no_grad()
def perplexity(model):
    ids = torch.tensor([encode(HUMAN)])                            # (1, n)
    return F.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:]).exp().item()


# %% [markdown]
# From two bits to eight, with one step for a whole matrix and with one for each row:

# %%
widths = [2, 3, 4, 5, 6, 7, 8]
ladders = {label: [perplexity(rounded(bits, dim)) for bits in widths]
           for label, dim in (("one step per matrix", None), ("one step per row", 1))}
for label, values in ladders.items():
    print(f"{label:20}", "  ".join(f"{bits}: {x:,.1f}" for bits, x in zip(widths, values, strict=True)))

# %% [markdown]
# Against the model as it is, in 32 bits:

# %%
plots.lines(
    {label: (widths, values) for label, values in ladders.items()}
    | {"32 bits": ([2, 8], [perplexity(model)] * 2)},
    yscale="log", marker="o", dashed=["32 bits"],
    title="Eight bits cost nothing, four little, two everything",
    xlabel="bits per weight", ylabel="perplexity on the human text",
    alt="Perplexity against bits per weight from 2 to 8. Down to about 5 bits both lines lie on "
    "the dashed line of the unrounded model; at 4 one step per row stays close while one per "
    "matrix leaves it; below 3 bits both rise steeply.",
)

# %% [markdown]
# (Real 4-bit models use one step for 32 to 128 weights, and place the steps with more care.)
#
# Is it faster? Not by itself. If you unpack the bytes to floats and then multiply, you write and read *more* than
# before. A special kernel has to multiply what it reads at once, in the processor's registers. The library's
# `pack_weights` uses such a kernel, FBGEMM, where the processor is an x86. Measure all three, on one matrix that is
# too large for the processor's own memory:

# %% tags=["nbval-ignore-output"]
from txlib.layers import PackedLinear

torch.manual_seed(0)
layer, x = torch.nn.Linear(8192, 8192, bias=False), torch.randn(1, 8192)         # 256 MiB
q, step = quantise(layer.weight.detach())
ways = {"float32": lambda: layer(x), "int8, unpacked first": lambda: F.linear(x, q * step)}
try:
    packed = PackedLinear(layer.weight, None, "int8").eval()
    ways["int8, special kernel"] = lambda: packed(x)
except ValueError as error:
    print(error)  # no such kernel on this processor
with torch.no_grad():
    for label, way in ways.items():
        print(f"{label:22} {milliseconds(way, 5):6.1f} ms")
del layer, q

# %% [markdown]
# With a good kernel, a quarter of the bytes takes a quarter of the time or less. Unpacking first is far slower than
# not rounding at all.
#
# ## 8 Speculative decoding
#
# The other lever: more than one token for each reading of the weights. Section 6 says that several *texts* cost
# little more than one, as they share that reading. Several *positions* of one text share it, too. How much longer
# will a call with five of them take?

# %% tags=["nbval-ignore-output"]
with torch.no_grad():
    one, five = (milliseconds(lambda: big(torch.zeros(1, new, dtype=torch.long)), 5) for new in (1, 5))
print(f"a call with 1 new token {one:.0f} ms, with 5 new tokens {five:.0f} ms")
expect("Five tokens in one call, against one", five / one, 0.8, 3)
del big

# %% [markdown]
# In the run stored here, five took about twice as long as one. If only reading counted, they would be free; twice is
# still far from five times. But we do not have the next five tokens: that is the point of decoding. So *guess* them,
# with something cheap: the **draft**. Then call the model once with all guesses. It says at each place what it would
# have predicted, so we see which guesses were good. Keep those up to the first bad one. (Leviathan et al. 2023; Chen
# et al. 2023.)
#
# With greedy choice it is plain what a good guess is: the model's own likeliest token. But with sampling?
#
# ### 8.1 The rule
#
# At some place, the draft has drawn a token $x$ from its distribution $q$. The model's is $p$. We want the result to be
# distributed as $p$, *exactly*. Keeping every guess gives $q$. Where the draft likes $x$ more than the model does,
# $q(x) > p(x)$, it comes too often. So keep it only with probability $p(x)/q(x)$; otherwise always:
#
# $$P(x \text{ guessed and kept}) = q(x)\,\min\left(1, \frac{p(x)}{q(x)}\right) = \min\big(p(x), q(x)\big)$$
#
# To $p(x)$, then, $p(x) - \min(p(x), q(x)) = \max(0, p(x) - q(x))$ is missing. So when a guess is refused, draw from
# *that*, normalised. Does it fit? A guess is kept with probability
#
# $$\alpha = \sum_x \min\big(p(x), q(x)\big)$$
#
# and refused with $1 - \alpha$, which is just the sum of what is missing. So a refused guess fills each gap exactly,
# and $P(x) = p(x)$. (Leviathan et al., appendix A.1.)


# %%
def keep_or_redraw(guess, q, p):                                   # guess (n,); q, p (vocab,)
    refused = torch.rand(len(guess)) * q[guess] >= p[guess]  # (n,): kept with probability p / q
    missing = (p - q).clamp(min=0)  # (vocab,): multinomial normalises
    return torch.where(refused, missing.multinomial(len(guess), replacement=True), guess)


torch.manual_seed(0)
q = torch.tensor([0.60, 0.25, 0.10, 0.05])                         # (vocab,): the draft's
p = torch.tensor([0.30, 0.30, 0.10, 0.30])                         # (vocab,): the model's
guess = q.multinomial(100_000, replacement=True)                   # (n,)
for label, drawn in (("guesses", guess), ("after the rule", keep_or_redraw(guess, q, p))):
    shares = (drawn.bincount(minlength=4) / len(drawn)).tolist()
    print(f"{label:15}", "  ".join(f"{share:.3f}" for share in shares))
print(f"{'the model':15}", "  ".join(f"{share:.3f}" for share in p.tolist()))

# %% [markdown]
# Close. Close enough? The **chi-square test** asks it properly. Add up, over all outcomes, how far the counts $O$ are
# from what is expected, $E$:
#
# $$\chi^2 = \sum_x \frac{(O_x - E_x)^2}{E_x}$$
#
# If the distribution is right, this is about the number of outcomes minus 1, call it $f$, give or take
# $\sqrt{2f}$; that does not grow with the number of draws. If it is wrong, $\chi^2$ grows in proportion to them. Try
# the rule, and two that look almost as good: keep every guess; or, when it is refused, draw from $p$ itself.


# %%
def chi_square(counts, p):                                         # (outcome,) each
    expected = p * counts.sum()                                    # (outcome,)
    return ((counts - expected).square() / expected).sum().item()


def redraw_from_p(guess, q, p):
    refused = torch.rand(len(guess)) * q[guess] >= p[guess]        # (n,)
    return torch.where(refused, p.multinomial(len(guess), replacement=True), guess)


rules = {"the rule": keep_or_redraw, "from p itself": redraw_from_p,
         "keep all": lambda guess, q, p: guess}
for label, rule in rules.items():
    counts = rule(q.multinomial(100_000, replacement=True), q, p).bincount(minlength=4)
    print(f"{label:14} χ² = {chi_square(counts, p):8,.1f}   (right: 3, give or take {6**0.5:.1f})")

# %% [markdown]
# Drawing from $p$ after a refusal looks natural, and is wrong: what was kept already has its share of $p$.
#
# ### 8.2 A draft for nothing
#
# What could guess cheaply? A smaller model with the same tokens; the model's own first layers; the text itself, if it
# repeats. The cheapest that is worth anything is a table: which token follows which? Let the model write a few
# hundred texts, and count its pairs.


# %%
@torch.no_grad()
def write_many(prompt, count, new, seed):
    generator, cache = torch.Generator().manual_seed(seed), model.new_cache(new + 10)
    news = written = torch.tensor([encode(prompt)] * count)        # (count, prompt)
    for _ in range(new):
        p = model(news, cache=cache).logits[:, -1].softmax(dim=-1)               # (count, vocab)
        news = torch.multinomial(p, 1, generator=generator)        # (count, 1)
        written = torch.cat([written, news], dim=1)
    return written                                                 # (count, prompt + new)


beginnings = ["Alice", "The", "“", "It was", "She", "Sylvie"]
pair_counts = torch.zeros(V, V)                                    # (token, next)
for seed, beginning in enumerate(progress(beginnings, "writing texts to count in")):
    texts = write_many(beginning, 64, 100, seed)                   # (text, length)
    pair = texts[:, :-1].flatten(), texts[:, 1:].flatten()
    pair_counts.index_put_(pair, torch.ones(len(pair[0])), accumulate=True)

# %% [markdown]
# Pairs that never occurred must stay possible, so add a little of how often each token occurs at all. Then $\alpha$:
# how large is $\sum_x \min(p(x), q(x))$ on average, on texts that were not counted? The draft knows one token of the
# past, and the model all of them. Guess before you look.

# %%
overall = (pair_counts.sum(dim=0) + 1) / (pair_counts.sum() + V)   # (vocab,): each token's share
table = pair_counts + 5 * overall                                  # (token, next)
table = table / table.sum(dim=-1, keepdim=True)
tested = write_many("The Queen", 48, 80, seed=99)                  # (text, length): not counted
with torch.no_grad():
    p = model(tested).logits.softmax(dim=-1)                       # (text, length, vocab)
    drafts = {"one share for all": overall, "the table of pairs": table[tested],
              "itself in 4 bits": rounded(4)(tested).logits.softmax(dim=-1)}
alphas = {label: torch.minimum(p, q).sum(dim=-1).mean().item() for label, q in drafts.items()}
for label, alpha in alphas.items():
    print(f"{label:20} α = {alpha:.2f}")

# %% [markdown]
# Yours should be near these:

# %% tags=["nbval-ignore-output"]
expect("α of the table of pairs", alphas["the table of pairs"], 0.35, 0.5)
expect("α of 4 bits", alphas["itself in 4 bits"], 0.84, 0.94)

# %% [markdown]
# Four of ten guesses would be kept: much of language is that local. The third draft is the model of section 7, rounded
# to 4 bits; it agrees nearly always, and where bytes are the limit it costs an eighth of the full one.
#
# ### 8.3 The loop
#
# Guess `ahead` tokens. One call of the model, with the cache of section 3, gives $p$ at all their places and one more.
# Check them one after the other. Refused guesses must leave the cache again: cut it to what was kept.


# %%
def checked(guesses, q, p, generator):  # q: rows (vocab,); p (guess + 1, vocab)
    for place, guess in enumerate(guesses):
        chance = torch.rand((), generator=generator)
        if chance * q[place][guess] >= p[place, guess]:  # refused: draw what is missing, and stop
            missing = (p[place] - q[place]).clamp(min=0)           # (vocab,)
            return [*guesses[:place], missing.multinomial(1, generator=generator).item()]
    return [*guesses, p[-1].multinomial(1, generator=generator).item()]  # all kept: one for free


# %% [markdown]
# The loop around it. `shape` makes probabilities of logits, and any sampler of lesson 11 may stand there.


# %%
def cropped(cache, length):
    return {layer: [each[:, :, :length] for each in pair] for layer, pair in cache.items()}


def speculate(ids, draft, new, ahead=4, seed=0, shape=lambda logits: logits.softmax(dim=-1)):
    generator = torch.Generator().manual_seed(seed)
    cache, calls, end = {}, 0, len(ids) + new
    while len(ids) < end:
        guesses, q = [], []
        for _ in range(min(ahead, end - len(ids) - 1)):
            q.append(shape(draft([*ids, *guesses])))               # (vocab,)
            guesses.append(q[-1].multinomial(1, generator=generator).item())
        past = cache[0][0].shape[2] if cache else 0
        news = torch.tensor([[*ids, *guesses][past:]])             # (1, new): not in the cache yet
        p = shape(forward(news, cache)[0, -len(guesses) - 1 :])    # (guess + 1, vocab)
        ids, calls = [*ids, *checked(guesses, q, p, generator)], calls + 1
        cache = cropped(cache, len(ids) - 1)  # the newest token was not read yet
    return ids, calls


# %% [markdown]
# Greedy choice is a distribution as well: all probability on the likeliest token. Then the text must be the very same:


# %%
def all_on_the_best(logits):                                       # (..., vocab)
    return F.one_hot(logits.argmax(dim=-1), V).float()


def pairs(ids):
    return table[ids[-1]].log()                                    # (vocab,): logits


for prompt in ("Alice was", "The White Rabbit", "“I don’t know,” said"):
    text, calls = speculate(encode(prompt), pairs, 60, shape=all_on_the_best)
    same = text == write(encode(prompt), 60)
    print(f"{prompt + ' …':26} the same 60 tokens: {same}; {calls} calls instead of 60")

# %% [markdown]
# And with sampling: the same *distribution*. Write two tokens after *Alice was*, 1,500 times, and look at the second.
# What it should be can be computed: $P(x_2) = \sum_{x_1} p(x_1)\, p(x_2 \mid x_1)$ over all 1,024 first tokens. Rare
# outcomes are counted together.

# %%
start = encode("Alice was")
with torch.no_grad():
    first = model(torch.tensor([start])).logits[0, -1].softmax(dim=-1)           # (vocab,)
    every = torch.cat([torch.tensor([start]).expand(V, -1), torch.arange(V)[:, None]], dim=1)
    second = first @ model(every).logits[:, -1].softmax(dim=-1)    # (vocab,)
seeds = progress(range(1500), "writing")
draws = [speculate(start, pairs, 2, ahead=2, seed=seed)[0][-1] for seed in seeds]
drawn = torch.tensor(draws).bincount(minlength=V)                  # (vocab,)
often = second * len(draws) >= 10                                  # (vocab,)
observed = torch.cat([drawn[often], drawn[~often].sum()[None]])    # (outcome,)
expected = torch.cat([second[often], second[~often].sum()[None]])  # (outcome,)
freedom = len(observed) - 1
spread = (2 * freedom) ** 0.5
print(f"χ² = {chi_square(observed, expected):.0f}, expected {freedom} give or take {spread:.0f}")

# %% [markdown]
# Is that too much? 38 lies 1.4 *give-or-takes* above what is expected. By chance alone, about one test in ten goes so
# far.
#
# ### 8.4 How many tokens per call?
#
# Suppose each guess is kept with probability $\alpha$, whatever happened before. The first of $\gamma$ guesses counts
# with $\alpha$, the second with $\alpha^2$, as both must be kept, and so on; and one token always comes from the model
# itself:
#
# $$\text{tokens per call} = 1 + \alpha + \alpha^2 + \dots + \alpha^\gamma = \frac{1 - \alpha^{\gamma+1}}{1 - \alpha}$$
#
# (Leviathan et al., equation 1.) In truth guesses depend on one another: hard places follow hard places. Does the
# formula hold?

# %% tags=["nbval-ignore-output"]
coarse = rounded(4)


@torch.no_grad()
def four_bits(ids):
    return coarse(torch.tensor([ids])).logits[0, -1]               # (vocab,)


guesses, per_call = [1, 2, 4, 8], {}
for label, draft in progress([("table", pairs), ("4 bits", four_bits)], "three texts for each"):
    alpha = alphas["the table of pairs" if label == "table" else "itself in 4 bits"]
    calls = [sum(speculate(start, draft, 80, ahead, seed)[1] for seed in range(3)) for ahead in guesses]
    per_call[label] = guesses, [240 / each for each in calls]
    per_call[f"{label}, formula"] = guesses, [(1 - alpha ** (g + 1)) / (1 - alpha) for g in guesses]

# %% [markdown]
# Solid lines are measured, dashed ones follow the formula:

# %% tags=["nbval-ignore-output"]
plots.lines(
    per_call, marker="o", dashed=["table, formula", "4 bits, formula"],
    title="A better draft is worth looking further ahead", xlabel="guesses per call, γ",
    ylabel="tokens per call",
    alt="Tokens per call against guesses per call, measured and by the formula. With the table "
    "of pairs it is level near 1.7 from four guesses on. With the model in 4 bits it rises "
    "to about 6 at eight guesses.",
)

# %% [markdown]
# It does, to within a tenth. With the table, more than about four guesses are wasted: $1/(1-\alpha) = 1.7$ is the
# limit. With the better draft it is 9. But a better draft costs more. If each guess takes the share $c$ of a call, and
# a call with guesses takes no longer than one without, as where only reading counts, then the text comes faster by the
# factor (Leviathan et al., theorem 3.8)
#
# $$\frac{1 - \alpha^{\gamma+1}}{(1 - \alpha)(\gamma c + 1)}$$

# %%
costs = {"the table of pairs": {"free": 0.0},
         "itself in 4 bits": {"bytes decide, c = 1/8": 1 / 8, "no kernel, c = 1": 1.0}}
for label, kinds in costs.items():
    alpha = alphas[label]
    for cost, c in kinds.items():
        factor = {g: (1 - alpha ** (g + 1)) / (1 - alpha) / (g * c + 1) for g in range(1, 17)}
        best = max(factor, key=factor.get)
        print(f"{label:19} {cost:22} best γ = {best:2}: {factor[best]:.2f} times as fast")

# %% [markdown]
# (The table is free, so more guesses never hurt: 16 is just the largest number tried.) So a good draft with a good
# kernel would make it up to three times as fast, and the same draft without one only slower. (*Up to*, because a call
# with guesses may take longer: above, five positions took twice as long as one.) And here, with the clock? Our model is
# too small to wait for memory, but each call has fixed costs, and some of them are saved:

# %% tags=["nbval-ignore-output"]
ways = {"no draft": (None, 0), "the table of pairs": (pairs, 4), "itself in 4 bits": (four_bits, 4)}
clock = dict.fromkeys(ways, float("inf"))
for _ in progress(range(8), "taking turns"):
    for label, (draft, ahead) in ways.items():
        took_now = milliseconds(lambda: speculate(start, draft, 60, ahead), 1)
        clock[label] = min(clock[label], took_now)
for label, ms in clock.items():
    print(f"{label:20} {ms:4.0f} ms for 60 tokens: {clock['no draft'] / ms:.2f} times as fast")

# %% [markdown]
# The table gains little or nothing where reading the weights is not what you wait for; the draft without a kernel
# loses. *Tokens per call* is a property of draft and model; *tokens per second* is one of the machine, too.

# %% [markdown]
# ## 9 Open the library
#
# `txlib.generation` has all of this: `stream` keeps the cache and pads on the left, `speculate` guesses ahead. Here is
# its rule. It is yours:

# %%
from txlib.generation import accept, generate
from txlib.generation import speculate as library_speculate

show_source(accept)

# %% [markdown]
# Does it write what ours writes? Cached against uncached, together against alone, and ahead against step by step:

# %%
together = generate(model, rows, max_new_tokens=20)
separately = [generate(model, [row], max_new_tokens=20)[0] for row in rows]
print("together as alone:          ", together == separately)
uncached = generate(model, rows, max_new_tokens=20, use_cache=False)
print("with the cache as without:  ", together == uncached)
(greedy,) = generate(model, [rabbit], max_new_tokens=25)
print("the same as our cached loop:", rabbit + greedy == write_cached(rabbit))
theirs = library_speculate(model, pairs, rabbit, max_new_tokens=25)
print("the same with guesses:      ", theirs.tokens == greedy, f"in {theirs.calls} calls")
_, calls = speculate(rabbit, pairs, 25, shape=all_on_the_best)
print("as many calls as ours:      ", calls == theirs.calls)

# %% [markdown]
# And its rule in the case of section 8.1, 20,000 times:

# %%
generator = torch.Generator().manual_seed(1)
q = torch.tensor([[0.60, 0.25, 0.10, 0.05]])                       # (guess, vocab)
p = torch.tensor([[0.30, 0.30, 0.10, 0.30]]).expand(2, 4)          # (guess + 1, vocab)
guess = q[0].multinomial(20_000, replacement=True, generator=generator)
results = torch.tensor([accept([each], q, p, generator)[0] for each in guess.tolist()])
found = chi_square(results.bincount(minlength=4), p[0])
print(f"χ² = {found:.1f}, expected 3 give or take {6**0.5:.1f}")

# %% [markdown]
# A draft may be a function, as here, or another decoder with the same tokens, which then has a cache of its own. The
# share of all guesses that are kept is lower than $\alpha$, as those after a refused one count, too, though nobody
# looks at them:

# %%
options = dict(ahead=8, max_new_tokens=80, do_sample=True, top_p=0.9, seed=0)
found = library_speculate(model, coarse, start, **options)
print(f"{len(found.tokens)} tokens in {found.calls} calls;", end=" ")
print(f"{found.accepted} of {found.guessed} guesses kept")

# %% [markdown]
# ## 10 Quiz
#
# Decide first, then open an answer.
#
# **1. Why is there no cache of queries?**
#
# <details><summary>A. Queries change when a token is appended</summary>
#
# They do not: what holds for keys and values of the past holds for queries, too.
# </details>
# <details><summary>B. Old queries are never asked again</summary>
#
# Right. A query makes its own position's output, and that has been made.
# </details>
# <details><summary>C. It would take too much memory</summary>
#
# It would take half as much again, or more where heads share keys. But even if it were free, nobody would read it.
# </details>
#
# **2. A model has 40 layers, 8 key–value heads of 128, and numbers of 2 bytes. How large is the cache of one text of
# 8,192 tokens?**
#
# <details><summary>A. 1.25 GiB</summary>
#
# Right: $2 \cdot 40 \cdot 8 \cdot 128 \cdot 2 = 163{,}840$ bytes per token, times 8,192.
# </details>
# <details><summary>B. 0.6 GiB</summary>
#
# You counted keys only. Values are kept, too.
# </details>
# <details><summary>C. It cannot be said without the number of query heads</summary>
#
# Queries are not kept. Only heads of keys and values count.
# </details>
#
# **3. Three prompts of different lengths are padded on the right. The texts come out strange, but there is no error.
# What is wrong?**
#
# <details><summary>A. The padding should have been another token</summary>
#
# It does not matter which token it is, as long as nobody looks at it.
# </details>
# <details><summary>B. The short prompts are continued after their padding</summary>
#
# Right. The last column is not their last token, and what they write stands too far away. Pad on the left, with a mask.
# </details>
# <details><summary>C. Batches need greedy search</summary>
#
# Any way to choose works, row by row.
# </details>
#
# **4. A model writes one text at 20 tokens per second, limited by memory. You replace the processor by one that
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
# **5. A draft always guesses the token that the *model* finds likeliest, with $q = 1$ for it. You sample at T = 1. The
# model gives it 0.6. How often is the guess kept, and are the texts still right?**
#
# <details><summary>A. Always kept; the texts become greedier</summary>
#
# It would be so if guesses were kept without the rule. The rule keeps it with $p/q = 0.6$.
# </details>
# <details><summary>B. In 60 % of cases; exactly right</summary>
#
# Right. $\min(p, q)$ is 0.6. When refused, one of the others is drawn with its share, and altogether that is $p$.
# </details>
# <details><summary>C. In 60 % of cases; nearly right</summary>
#
# The rule is exact for *any* draft. A poor draft costs time, not quality.
# </details>

# %% [markdown]
# ## 11 Summary
#
# - Under a causal mask the past's keys and values never change. Keep them:
#   $2 \cdot L \cdot h_\text{kv} \cdot d_k \cdot n$ numbers per text.
# - In a batch, pad on the left, with a mask, and count positions by real tokens.
# - One token waits for memory: all weights are read for $2N$ operations. Batches share that reading.
# - Fewer bits are fewer bytes: 8 bits per weight cost next to nothing, with one step per row. Speed needs a kernel.
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
# [arXiv:2309.06180](https://arxiv.org/abs/2309.06180), on caches of many texts.
#
# **Do** the exercise [13_decoding](../exercises/exercise_13_decoding.ipynb). Then go on to [14 BERT](14_bert.ipynb).
