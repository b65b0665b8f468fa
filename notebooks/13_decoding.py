# %% [markdown] lesson={"part": "II Language models", "builds": "the cache, batches, fewer bits, speculative decoding"}
# # 13 · Decoding fast: the same text in less time
#
# **After this lesson you will be able to**
#
# - build a cache of keys and values, prove that it changes nothing, and count what it saves and what it takes;
# - write for several prompts at once without spoiling any of them;
# - say from two numbers of a machine whether a token waits for arithmetic or for memory, and check it with a clock;
# - round weights to 8 bits or fewer, and measure what that costs;
# - build speculative decoding, derive its rule, and test that it draws from the model's own distribution.
#
# **You need** lessons 03 to 06, 10 and 11. **It takes** about 65 minutes to read and try; after section 4 is a good
# place for a break. All cells together run in about a minute on a laptop. Nothing is trained here.

# %% [markdown]
# ## 1 The problem: the whole past, once more for each token
#
# We have a model that writes: the one of lesson 11, with fewer than a million parameters, trained on Lewis Carroll's
# books. What is missing is speed.

# %%
import copy
import timeit
from dataclasses import replace

import torch
import torch.nn.functional as F

from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress, prove_equal
from txcourse.lesson import show_source
from txlib import generation, load_pretrained, plots
from txlib.attention import attention, causal, full
from txlib.data import shipped
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
# This is the loop of lesson 11, *predict, choose, append*, with greedy choice. To predict one token, the model reads
# all tokens so far:


# %%
@torch.no_grad()
def write(ids, new):
    for _ in range(new):
        logits = model(torch.tensor([ids])).logits[0, -1]  # (vocab,)
        ids = [*ids, logits.argmax().item()]
    return ids


print(decode(write(encode("Alice was"), 40)))

# %% [markdown]
# The longer the text, the longer you wait for each token. For the 1,024th, the model computes 1,022 positions that it
# already computed for the token before. Must it compute them again?

# %% [markdown]
# ## 2 Keep the past
#
# ### 2.1 The past never changes
#
# Under a causal mask, position $i$ sees positions $0 \dots i$ only. In the first block, its key and value are made of
# its own embedding, and its output is a mixture of values up to $i$. From that the second block makes its key and
# value, and so on. Whatever is appended later, **the keys and values of the past stay as they are**.
#
# What does a new token need of the past? On paper, with one number for each key and value: two old tokens have the keys
# 0 and 0 and the values 4 and 8. The new one has the query 1, the key $\ln 2$ and the value 10. Its scores are 0, 0 and
# $\ln 2$, the softmax makes them ¼, ¼ and ½, and its output is ¼ · 4 + ¼ · 8 + ½ · 10 = 8. No old *query* was used.
# With five tokens of four numbers each, is the newest row alone the last row of the whole matrix?

# %%
q, k, v = torch.randn(3, 5, 4)  # (n, d_k) each
past_only = torch.ones(5, 5, dtype=torch.bool).tril()  # (query, key)
scores = (q @ k.T / 2).masked_fill(~past_only, -torch.inf)  # (query, key); 2 is √d_k
newest = (q[-1] @ k.T / 2).softmax(dim=-1) @ v  # (d_k,): one query, all keys and values
prove_equal(newest, (scores.softmax(dim=-1) @ v)[-1], what="The newest row and the last one")

# %% [markdown]
# So keep the keys and values of each block, in a **key–value cache**, and compute everything else for the new token
# only. To write five tokens after a prompt of one, the loop of section 1 computes $1 + 2 + 3 + 4 + 5 = 15$ positions.
# With the cache it computes 5, the blue ones:

# %% jupyter={"source_hidden": true}
figures.cached_steps("Alice was not a bit", title="With a cache, each step computes one position")

# %% [markdown]
# ### 2.2 The cache in code
#
# We run the model through its parts by hand: the blocks of lesson 06, the heads of lesson 04, the rotation by position
# of lesson 05. In this model, two query heads share one head of keys and values, a **KV head**; `repeat_interleave`
# hands it to both. (Lesson 16 explains why.)


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
# where several tokens come at once, the causal mask must be shifted: with two tokens in the cache and two new ones, the
# rows are 1 1 1 0 and 1 1 1 1. The library's masks are rules; `shift` moves the rule, and `dense` writes it out as a
# matrix. (`forget` skips the first detail, for an experiment in section 2.3.)


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
# left in the cache. Which tokens' keys will differ without the mask, and from which block on?

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
# Block by block and token by token, how far the keys moved, as a fraction of their length:

# %% jupyter={"source_hidden": true}
plots.heatmap(
    torch.stack(list(change.values())), title="The mask keeps the past as it was", xlabel="token", ylabel="",
    rows=list(change), columns=[tokenizer.tokenizer.id_to_token(id).replace("▁", "␣") for id in ids],
    alt="Changes of keys by block and token. With the causal mask only the last three tokens' keys move; without it all do, "
    "from block 1 on.",
)

# %% [markdown]
# Without the mask, block 0 makes its keys from each token alone, and from block 1 on each vector has seen the new
# tokens. With the mask the past can be kept. And the logits? Compare the text in pieces (20 tokens, 7, then one by one)
# with all of it at once, without a cache:

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
# **Break it.** The classic error is to `forget` the offset. No shape is wrong, but each new query and key is rotated as
# if it were at position 0. Will you notice?


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
# No error, no warning: only the text shows it, or a proof like the one above.
#
# ## 3 What the cache saves, and what it takes
#
# Is the cache worth its memory? Count multiplications and additions. Each weight in a matrix costs 2 operations per
# position (lesson 06), so the five tokens of section 2.1 cost $2N \cdot 15$ without the cache and $2N \cdot 5$ with it.
# Attention adds $4d$ for each query and key in each of $L$ layers: $2d$ for the score, $2d$ for the mixing. The pairs
# of query and key are $1 + 4 + 9 + 16 + 25 = 55$ without the cache, $1 + 2 + 3 + 4 + 5 = 15$ with it. For $n$ tokens:
#
# $$\text{without: } \sum_{i=1}^{n}\left(2Ni + 4dLi^2\right) \approx Nn^2 + \tfrac43 dLn^3
# \qquad\qquad \text{with: } \sum_{i=1}^{n}\left(2N + 4dLi\right) \approx 2Nn + 2dLn^2$$

# %%
for n in (32, 1024):
    steps = range(1, n + 1)
    without = sum(2 * N * i + 4 * d * L * i**2 for i in steps)
    cached = sum(2 * N + 4 * d * L * i for i in steps)
    print(f"{n:5,} tokens: {without / cached:3.0f} times fewer operations with the cache")

# %% [markdown]
# Now the clock: milliseconds for *one more* token after $n$. Without the cache we time the library's model, whose
# attention is faster than ours.


# %% tags=["nbval-ignore-output"]
def milliseconds(run, repeats):  # the best of several runs
    run()  # the first one is slower: memory must be found
    return 1000 * min(timeit.repeat(run, number=1, repeat=repeats))


for length in (128, 1024):  # past 128 it has learned nothing, but it computes
    ids, cache = torch.randint(V, (1, length)), {}  # (1, length)
    forward(ids[:, :-1], cache)
    with torch.no_grad():
        full_ms = milliseconds(lambda: model(ids), 10)
    cached_ms = milliseconds(lambda: forward(ids[:, -1:], dict(cache)), 60)
    print(f"{length:5,} tokens: {full_ms:6.1f} ms; with the cache {cached_ms:4.1f} ms")
expect("Times faster with the cache, at 1,024 tokens", full_ms / cached_ms, 4, 500)

# %% [markdown]
# It is faster, but not by as much as the count says: for this one token, the cache saves a factor of $n$, here 128 and
# 1,024. A single token waits for something other than arithmetic: in so small a model mostly, we think, for the start
# of many small operations, in a large one for memory (section 5). And nothing is free. The cache holds a key and a
# value for each layer, each KV head and each of the $n$ positions. Ours has 4 layers with 2 KV heads of width 32, so
# one token leaves $2 \cdot 4 \cdot 2 \cdot 32 = 512$ numbers behind:
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
# And large models? Take one text as long as each model's context, in half precision:

# %%
from txlib.models.sizes import GPT2, GPT3, LLAMA, MIXTRAL, count_parameters

GIANTS = {"GPT-2 small": GPT2["small"], "Llama 7B": LLAMA["7b"],
          "Mixtral 8x7B": MIXTRAL["8x7b"], "GPT-3 175B": GPT3["175b"]}
print(f"{'':13}{'KiB a token':>12}{'tokens':>8}{'cache, GiB':>12}{'weights':>9}")
for label, config in GIANTS.items():
    n, weights = config.max_length, 2 * count_parameters(config)
    print(f"{label:13}{cache_bytes(config, 1) / 2**10:12,.0f}{n:8,}"
          f"{cache_bytes(config, n) / 2**30:12.2f}{weights / 2**30:9.1f}")

# %% [markdown]
# For Llama 7B, the cache of thirteen texts of full length is as large as the model: that limits how many users a GPU
# can serve at once. Mixtral has 8 KV heads per layer instead of 32, all else equal, so a quarter of the cache per
# token: that is what grouped queries are for (lesson 16).

# %% [markdown]
# ## 4 Several prompts at once
#
# A server writes for many users. Their prompts have different lengths, but a batch is a rectangle, so the short ones
# are padded. On which side? In lesson 08 it was the right one. Here the model goes on at the *end* of the prompt. Where
# does the next token land?

# %% jupyter={"source_hidden": true}
figures.padding_sides(
    "The", "Alice was beginning to", title="On the right, padding comes between a prompt and its next token",
    alt="Two batches of two prompts, The and Alice was beginning to. Padded on the right, three boxes of padding stand "
    "between The and its new token. Padded on the left, they stand before The, and the new token follows it directly.",
)

# %% [markdown]
# Try both sides, and compare each prompt's next-token distribution with what it is when alone. We count the probability
# that is in the wrong place, half the sum of all differences: for (0.5, 0.3, 0.2) and (0.4, 0.4, 0.2) it is 0.1.

# %%
rows = [encode("The"), encode("Alice was beginning to"),
        encode("“I don’t think they play at all fairly,” said")]
PAD, longest = 0, max(map(len, rows))
gaps = [longest - len(row) for row in rows]
right = torch.tensor([row + [PAD] * gap for row, gap in zip(rows, gaps)])  # (batch, n)
left = torch.tensor([[PAD] * gap + row for row, gap in zip(rows, gaps)])  # (batch, n)
mask = torch.tensor([[0] * gap + [1] * (longest - gap) for gap in gaps])  # (batch, n)


@torch.no_grad()
def next_tokens(ids, mask=None):  # (batch, n) each
    return model(ids, mask).logits[:, -1].softmax(dim=-1)  # (batch, vocab)


# %% [markdown]
# Make your guess before you run them:

# %% jupyter={"source_hidden": true}
predict(
    "padding-side", "Which batches leave all three distributions as they are alone?",
    "all of them: padding means nothing", "padded left, with or without a mask", "only padded left with a mask",
)

# %% [markdown]
# Each prompt alone, then the three batches. (The third prompt is the longest, so it has no padding.)

# %%
alone = torch.cat([next_tokens(torch.tensor([row])) for row in rows])  # (batch, vocab)
batches = {"padded right, last column": next_tokens(right),
           "padded left, no mask": next_tokens(left),
           "padded left, with the mask": next_tokens(left, mask)}
print("probability in the wrong place, for each prompt:")
for name, p in batches.items():
    misplaced = (p - alone).abs().sum(dim=-1) / 2  # (batch,)
    print(f"{name:28}", *(f"{x:6.1%}" for x in misplaced))
predicted("padding-side", "only padded left with a mask")

# %% [markdown]
# On the right, the last column is padding, and the model continues *that*. Reading the last *real* token instead does
# not help for long: the new token lands after the padding, too far away from its prompt, even if the padding is masked
# (unless positions are counted without it).
#
# So pad on the left, with a mask. With rotary positions that is all, because they only know distances. With *learned*
# positions (GPT-2), the first real token must also be position 0, so positions are counted with
# `(mask.cumsum(dim=1) - 1).clamp(min=0)`: for the mask 0 0 1 1 1 they are 0 0 0 1 2.
#
# **What servers do.** With **continuous batching** (*Orca*, Yu et al. 2022), a new text takes over a row of the batch
# as soon as one ends. **Paged attention** (Kwon et al. 2023) cuts the cache into blocks of 16 tokens, which may lie
# anywhere in memory, instead of reserving room for the longest possible text. [Lesson 44](44_serving.ipynb) builds such
# a server.

# %% [markdown]
# ## 5 What a token waits for
#
# What does a batch gain? Look at one step. With one text, each weight takes part in 2 operations, and its 4 bytes must
# be fetched from memory: half an operation per byte. With 8 texts it is fetched once and used for 16 operations: 4 per
# byte. In general, with $B$ texts, the **arithmetic intensity** is
#
# $$\frac{\text{operations}}{\text{bytes}} = \frac{2NB}{4N} = \frac{B}{2}
# \qquad\qquad \text{time} \ge \max\left(\frac{2NB}{\text{operations per second}},\;
# \frac{4N}{\text{bytes per second}}\right)$$
#
# Both must be done; the slower one decides. What can your machine do? Multiply two matrices, where each number is used
# a thousand times. Then read an array too large for the processor's own memory, using each number once.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
square, array = torch.randn(1024, 1024), torch.ones(50_000_000)  # 4 MB, 200 MB
rate = 2 * 1024**3 / milliseconds(lambda: square @ square, 60) * 1000  # operations/s
reading = 4 * len(array) / milliseconds(array.sum, 30) * 1000  # bytes/s
print(f"{rate / 1e9:.0f} GFLOP/s, {reading / 1e9:.0f} GB/s:",
      f"{rate / reading:.0f} operations while one byte arrives")
print(f"reading and arithmetic take equally long at {2 * rate / reading:.0f} texts")
del array

# %% [markdown]
# With one text the intensity is ½, so one token waits for *memory*. On GPUs the gap is wider still. An A100 with 80 GB
# computes 312 TFLOP/s in 16 bits and reads 2.04 TB/s (its data sheet): 153 operations per byte. In 16 bits the
# intensity is $B$, so below about 150 texts it waits. (This counts the weights only. Each text has a cache of its own,
# so a batch does not share that reading: with thirteen texts of full length, Llama 7B reads as many bytes of cache as
# of weights.)
#
# Check it with the clock. Our small model fits into the processor's own memory, so take the twelve blocks of GPT-2
# small, with random weights.

# %% tags=["nbval-ignore-output"]
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig

sizes = BlockConfig.of_sizes(768, 12, 3072, position="rotary")
big = GPT(GPTConfig(V, sizes, layers=12)).eval()
weights = sum(weight.numel() for weight in big.parameters() if weight.dim() == 2)
took = dict.fromkeys([1, 2, 4, 8, 16, 32], float("inf"))  # batch: ms per step
with torch.no_grad():
    for _ in progress(range(8), "timing"):  # in turn, so that all meet the same load
        for B in took:
            ids = torch.zeros(B, 1, dtype=torch.long)  # (batch, 1)
            took[B] = min(took[B], milliseconds(lambda: big(ids), 2))
limit = {B: 1000 * max(2 * weights * B / rate, 4 * weights / reading) for B in took}
print(f"one step for 1 text: {took[1]:.0f} ms, for 32: {took[32]:.0f} ms")
expect("Tokens per second: 32 texts against 1", 32 * took[1] / took[32], 2, 32)

# %% [markdown]
# Turn milliseconds into tokens per second, and draw them next to the best that the two limits allow:

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
plots.lines(
    {"measured": (list(took), [1000 * B / ms for B, ms in took.items()]),
     "at best": (list(took), [1000 * B / limit[B] for B in took])},
    xscale="log", yscale="log", marker="o", dashed=["at best"],
    title="Together, 32 texts are written several times as fast as one",
    xlabel="texts in the batch, B", ylabel="tokens per second, together",
    alt="The dashed limit rises in proportion to the batch, then becomes level. The measured line rises from "
    f"{1000 / took[1]:.0f} tokens per second with one text to {32000 / took[32]:.0f} with 32.",
)

# %% [markdown]
# The dashed line is called a **roofline**: sloping where memory is the limit, level where arithmetic is. On the slope,
# more texts should cost nothing. Measured, they do cost time, but with many texts, one step takes far less than
# separate steps would. And arithmetic is not what one text waits for: at the rate measured above, two operations for
# each of 86 million weights would take a few milliseconds at most. (If your line begins far below the dashed one, other
# programs were using the memory: run the cell again.)
#
# Is it memory, then? Let one block's weights serve twelve times. The operations are the same; the weights are a
# twelfth, 28 MB. A processor with a larger memory of its own needs to fetch them only once:

# %% tags=["nbval-ignore-output"]
blocks, ids = big.decoder.layers, torch.zeros(1, 1, dtype=torch.long)  # (batch, 1)
ways = {"one block, twelve times": torch.nn.ModuleList([blocks[0]] * 12),
        "twelve blocks": blocks}
step = dict.fromkeys(ways, float("inf"))  # ms
with torch.no_grad():
    for _ in range(8):  # in turn
        for name, layers in ways.items():
            big.decoder.layers = layers
            step[name] = min(step[name], milliseconds(lambda: big(ids), 2))
print("one step for 1 text:", ", ".join(f"{name} {ms:.0f} ms" for name, ms in step.items()))
part = step["one block, twelve times"] / step["twelve blocks"]
expect("Fraction of the time with one block's weights", part, 0.3, 1.1)

# %% [markdown]
# The arithmetic is the same, and in our run two fifths of the time are gone: that much, at least, was waiting for
# memory. (Why not more? Our explanation: the processor's own memory takes its time as well. If your processor's is
# smaller than 28 MB, nothing changes.)
#
# This makes a *server* fast, but not *your* text: one token still takes one reading of all weights. For a single text
# there are two levers: make the weights smaller, or get more than one token out of each reading.

# %% [markdown]
# ## 6 Fewer bits
#
# If a token waits for bytes, move fewer. A weight in float32 has 4 bytes; a whole number from −127 to 127 has one. Take
# the row (0.50, −1.27, 0.023). Its largest weight must become 127, so the **scale** is $1.27/127 = 0.01$. Divided by it
# and rounded, the row is (50, −127, 2); multiplied by 0.01 again, (0.50, −1.27, 0.020):
#
# $$s_r = \frac{\max_c |W_{rc}|}{127} \qquad\qquad Q_{rc} = \text{round}\left(\frac{W_{rc}}{s_r}\right)
# \qquad\qquad W_{rc} \approx s_r\, Q_{rc}$$
#
# This is **quantization**, symmetric, with one scale per row (also *absmax*; Dettmers et al. 2022, §2). Why a scale for
# each row? One weight of unusual size, an **outlier**, makes the scale large for all that share it, and the
# others lose their digits. Change −1.27 into −127, and see what is left of the other two:


# %%
def quantize(weight, bits=8, dim=1):  # (out, in); dim=None: one scale for all
    largest = weight.abs().amax(dim, keepdim=True)  # (out, 1) or (1, 1)
    scale = largest / (2 ** (bits - 1) - 1)  # 127 for 8 bits
    return (weight / scale).round().to(torch.int8), scale


for largest in (-1.27, -127.0):
    levels, scale = quantize(torch.tensor([[0.50, largest, 0.023]]))  # (1, 3) each
    print(levels[0].tolist(), "times", round(scale.item(), 2))

# %% [markdown]
# Now round the whole model, and measure its *predictions*: the perplexity on 100 tokens of Carroll. (It was trained on
# them, so only the differences matter.) With fewer and fewer bits, where does it break?


# %%
def rounded(bits, dim=1):  # it still computes in float32
    other = copy.deepcopy(model)
    for weight in other.parameters():
        if weight.dim() == 2:
            levels, scale = quantize(weight.data, bits, dim)
            weight.data = levels * scale
    return other


# %% [markdown]
# With one scale per row, and with one per matrix:


# %%
def perplexity(model):
    ids = torch.tensor([encode(HUMAN)])  # (1, n)
    with torch.no_grad():
        logits = model(ids).logits[0]  # (n, vocab)
    return F.cross_entropy(logits[:-1], ids[0, 1:]).exp().item()


widths = [8, 7, 6, 5, 4, 3]  # bits
per_row = [perplexity(rounded(bits)) for bits in widths]
per_matrix = [perplexity(rounded(bits, dim=None)) for bits in widths]
exact = perplexity(model)
print(f"32 bits: {exact:.1f}; 8 bits: {per_row[0]:.1f} per row, {per_matrix[0]:.1f} per matrix")

# %% [markdown]
# The figure goes from 8 bits down to 3:

# %% jupyter={"source_hidden": true}
figures.fewer_bits(
    widths, {"one scale per matrix": per_matrix, "one scale per row": per_row}, exact,
    title="One scale per row: eight bits cost nothing, four little",
)

# %% [markdown]
# With one scale for all, four bits hurt, and three break it; with one per row, even three only hurt. Is it faster? Not
# by itself: if you first unpack the bytes to floats, you write and read *more* than before. A special **kernel** has to
# multiply the bytes as it reads them. With one that also rounds each layer's *input* (*dynamic* quantization), GPT-2
# small wrote 74 tokens per second on one thread instead of 26 (`benchmarks/decode.py`).

# %% [markdown]
# ## 7 Speculative decoding
#
# The other lever is more than one token for each reading of the weights. Several *texts* share a reading, and so do
# several *positions* of one text. How much longer does a call with five of them take?

# %% tags=["nbval-ignore-output"]
ids = torch.zeros(1, 5, dtype=torch.long)  # (1, new)
with torch.no_grad():
    one, five = (milliseconds(lambda: big(ids[:, :new]), 5) for new in (1, 5))
expect("Five tokens in one call, against one", five / one, 0.8, 3)

# %% [markdown]
# Far less than five times as long. But we do not have the next tokens. So *guess* them with something cheap, the
# **draft**, and call the model once with all guesses. It says what it would have predicted at each, so we can keep
# those before the first bad one (Leviathan et al. 2023; Chen et al. 2023).
#
# ### 7.1 The rule
#
# With greedy choice, a good guess is the model's own likeliest token. And with sampling? The draft has drawn a token
# $x$ from its distribution $q$; the model's is $p$. We want the result to be distributed as $p$, *exactly*. Here are
# four tokens, with small numbers:

# %% jupyter={"source_hidden": true}
figures.overlap(
    {"she": 0.60, "was": 0.25, "the": 0.10, "rabbit": 0.05}, {"she": 0.30, "was": 0.30, "the": 0.10, "rabbit": 0.30},
    title="Green is kept; orange is refused, and fills the blue gaps",
    alt="Bars for four tokens, draft q against model p. The overlap, the smaller of the two, is green: she 0.30, was "
    "0.25, the 0.10, rabbit 0.05. On top of she, 0.30 too much. On top of was 0.05 and of rabbit 0.25 missing.",
)

# %% [markdown]
# Keeping every guess gives $q$: *she* comes twice as often as it should. So keep *she* only with probability
# $0.30/0.60 = ½$, and the others always. Then each token is guessed and kept as often as its green bar says. As much is
# refused, 0.30, as is missing: 0.05 for *was* and 0.25 for *rabbit*. So after a refusal, draw from *what is missing*:
# *was* with probability 1/6, *rabbit* with 5/6. In general, a guess is kept with $\min(1, p(x)/q(x))$:
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
print(f"{'the model, p':23}", p.numpy())

# %% [markdown]
# Drawing from $p$ after a refusal is wrong: what was kept has already filled part of $p$. Only the third rule gives
# $p$, to within 0.002, which is the noise of 100,000 draws.
#
# ### 7.2 A draft that costs nothing
#
# A smaller model with the same tokens could guess. A far cheaper draft is a table of bigrams (lesson 10). Let the model
# write a few hundred texts, and count which token follows which.


# %%
def write_many(prompt, count, new, seed):
    sampled = {"max_new_tokens": new, "do_sample": True, "seed": seed}
    texts = generation.generate(model, [encode(prompt)] * count, **sampled)
    return torch.tensor(texts)  # (count, new)


bigrams = torch.zeros(V, V)  # (token, next)
for seed, start in enumerate(["Alice", "The", "“", "It was", "She", "Sylvie"]):
    texts = write_many(start, 64, 100, seed)  # (text, length)
    pairs = V * texts[:, :-1] + texts[:, 1:]  # one number for each pair, as in lesson 10
    bigrams += pairs.flatten().bincount(minlength=V * V).view(V, V)

# %% [markdown]
# The table must also answer after tokens that it has never seen. So add five counts to each row, divided among tokens
# by how often each occurs: after a token that was seen five times, they make up half. Then $\alpha$: how large is
# $\sum_x \min(p(x), q(x))$ on average, on texts that were not counted?

# %% jupyter={"source_hidden": true}
predict(
    "bigram-draft", "How many of the guesses of a table of bigrams will be kept?",
    "about one in twenty", "about two in five", "about four in five",
)

# %% [markdown]
# It has two rivals: the plain frequencies, and the model itself, rounded to 4 bits as in section 6:

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
# Nine in ten of the rounded model's guesses are kept, and where bytes are the limit, it costs an eighth of the full
# one.
#
# ### 7.3 One call by hand
#
# Now guess four tokens, one after the other. `to_p` turns logits into probabilities: here a softmax, in section 7.4 a
# greedy choice.


# %%
def softmax(logits):  # (..., vocab)
    return logits.softmax(dim=-1)


def by_bigrams(ids):
    return table[ids[-1]].log()  # (vocab,): logits


def drafted(ids, draft, count, to_p, generator):
    guesses, q = [], []
    for _ in range(count):
        q.append(to_p(draft([*ids, *guesses])))  # (vocab,)
        guesses.append(q[-1].multinomial(1, generator=generator).item())
    return guesses, q


# %% [markdown]
# Then call the model once: it gives $p$ for the four guesses and for one token more.

# %%
ids, generator = encode("Alice was"), torch.Generator().manual_seed(49)
guesses, q = drafted(ids, by_bigrams, 4, softmax, generator)
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


tries = [checked(guesses, q, p, torch.Generator().manual_seed(seed))
         for seed in range(4)]

# %% [markdown]
# These are the same four guesses, checked four times. In each row the model draws the blue token:

# %% jupyter={"source_hidden": true}
texts = [[decode([id]).strip() for id in result] for result in tries]
figures.checked_guesses(
    [decode([id]).strip() for id in guesses], texts, title="From the same four guesses, one call makes two or three tokens",
    alt="One row for each of four tries, with the same four guesses; the last token of each is drawn by the model. "
    + "; ".join(", ".join(text) for text in texts),
)

# %% [markdown]
# ### 7.4 The loop
#
# The loop drafts, calls the model with the cache of section 2, and checks, again and again. On paper: the text has 10
# tokens, and all but the newest are in the cache, 9. With four guesses, the model reads 5 tokens, the newest and the
# guesses, and the cache grows to 14. Two guesses are kept, and one token is drawn: the text has 13 tokens, so the cache
# is cut to 12. What was refused has left it.


# %%
def cut_to(cache, length):
    for block, (k, v) in cache.items():
        cache[block] = k[:, :, :length], v[:, :, :length]


def speculate(ids, draft, new, ahead=4, seed=0, to_p=softmax):
    generator, end = torch.Generator().manual_seed(seed), len(ids) + new
    cache, calls = {}, 0
    while len(ids) < end:
        count = min(ahead, end - len(ids) - 1)
        guesses, q = drafted(ids, draft, count, to_p, generator)
        past = len(ids) - 1 if cache else 0  # the newest token is not in the cache
        unread = torch.tensor([[*ids, *guesses][past:]])  # (1, new)
        p = to_p(forward(unread, cache)[0, -count - 1 :])  # (guess + 1, vocab)
        ids, calls = [*ids, *checked(guesses, q, p, generator)], calls + 1
        cut_to(cache, len(ids) - 1)
    return ids, calls


# %% [markdown]
# With greedy choice, all probability is on the likeliest token. Then the text must be the very same:


# %%
def greedy(logits):  # (..., vocab)
    return F.one_hot(logits.argmax(dim=-1), V).float()


for prompt in ("Alice was", "The White Rabbit", "“I don’t know,” said"):
    text, calls = speculate(encode(prompt), by_bigrams, 60, to_p=greedy)
    same = text == write(encode(prompt), 60)
    print(f"{prompt + ' …':24} the same 60 tokens: {same}; {calls} calls instead of 60")

# %% [markdown]
# With sampling, the *distribution* must be the model's. Guess one token after *Alice was*, check it, and repeat 4,000
# times: what fraction of the first tokens is misplaced, counted as in section 4? Even 4,000 tokens drawn from $p$
# itself differ from it by chance:

# %% tags=["nbval-ignore-output"]
ids, generator = encode("Alice was"), torch.Generator().manual_seed(0)
p = softmax(forward(torch.tensor([ids]), {})[0, -1:])  # (1, vocab)
guessed, first = [], []
for _ in range(4000):
    guesses, q = drafted(ids, by_bigrams, 1, softmax, generator)
    guessed += guesses
    first.append(checked(guesses, q, p.expand(2, -1), generator)[0])
direct = p[0].multinomial(4000, replacement=True, generator=generator).tolist()
for label, drawn in {"guessed": guessed, "checked": first, "from p": direct}.items():
    frequency = torch.tensor(drawn).bincount(minlength=V) / 4000  # (vocab,)
    print(f"{label:8} {(frequency - p[0]).abs().sum() / 2:.1%} misplaced")

# %% [markdown]
# The guesses alone are far from the model's distribution. Checked, they are as close to it as the model's own draws.
#
# ### 7.5 How many tokens per call? (second reading)
#
# Suppose each guess is kept with probability $\alpha = ½$. The first of two guesses is kept with ½, the second with ¼,
# since both must pass, and one token always comes from the model itself: 1 + ½ + ¼ = 1.75 tokens per call. In general,
# with $\gamma$ guesses (Leviathan et al., equation 1):
#
# $$\text{tokens per call} = 1 + \alpha + \alpha^2 + \dots + \alpha^\gamma = \frac{1 - \alpha^{\gamma+1}}{1 - \alpha}$$
#
# In truth, guesses may depend on one another, if hard places follow hard places. Does the formula hold?


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
# $1/(1-\alpha) = 1.7$ is the limit; with the better draft it is about 10.
#
# But a better draft costs more. If each guess takes the fraction $c$ of a call, and a call with guesses takes no longer
# than one without, divide by $\gamma c + 1$ (Leviathan et al., theorem 3.8). If only bytes counted, 4 bits would cost
# $c = 1/8$: with eight guesses, 6 tokens for two calls' time, about three times as fast. Our own 4-bit kernel reaches
# $c = 0.36$ with GPT-2 small (`benchmarks/results/decode.json`): with four guesses, 4 tokens for two and a half calls'
# time. Without a kernel $c = 1$: 4 tokens for five calls' time, slower than without a draft. (And the call with guesses
# takes somewhat longer, as section 7's clock showed.) *Tokens per call* is a property of draft and
# model; *tokens per second* is also one of the machine.
#
# ### 7.6 The library
#
# `txlib.generation` has all of this: `generate` keeps the cache and pads on the left, `speculate` guesses ahead. Does
# it write what ours writes? Below the answers is the end of its `accept`, which is our `checked`.

# %%
[text, *_] = generation.generate(model, [rabbit, *rows], max_new_tokens=25)
print("in a batch, as our cached loop:", rabbit + text == write_cached(rabbit))
theirs = generation.speculate(model, by_bigrams, rabbit, max_new_tokens=25)
_, calls = speculate(rabbit, by_bigrams, 25, to_p=greedy)
print("with guesses, as our loop:     ", theirs.tokens == text, theirs.calls == calls)
show_source(generation.accept, last=7)

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. A model has 40 layers, 8 KV heads of 128, and numbers of 2 bytes. How large is the cache of one text of 8,192
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
# **2. A model writes one text at 20 tokens per second, limited by memory. You replace the processor by one that
# computes twice as fast, with the same memory. What happens?**
#
# <details><summary>A. 40 tokens per second</summary>
#
# Arithmetic was not the limit: its units were idle most of the time, and now they are idle even longer.
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
# **3. A draft always guesses the token that the *model* finds likeliest, with $q = 1$ for it. You sample at T = 1. The
# model gives it 0.6. How often is the guess kept, and are the texts still right?**
#
# <details><summary>A. Always kept; the texts become greedier</summary>
#
# That would be so if guesses were kept without the rule. The rule keeps it with $p/q = 0.6$.
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
# - In a large model, one token waits for memory: all weights are read for only $2N$ operations. A batch shares that
#   reading, but each of its texts has a cache of its own to read.
# - Fewer bits are fewer bytes: 8 bits per weight cost next to nothing, with one scale per row. Speed needs a kernel.
# - A draft guesses, the model checks all guesses in one call. Keep a guess with $\min(1, p/q)$, else draw from
#   $\max(0, p - q)$: the text is distributed as before, and $\alpha = \sum \min(p, q)$ decides how fast it comes.
#
# **Read** Shazeer 2019, *Fast Transformer Decoding*, [arXiv:1911.02150](https://arxiv.org/abs/1911.02150), section 2
# (memory against arithmetic). Leviathan et al. 2023, *Fast Inference from Transformers via Speculative Decoding*,
# [arXiv:2211.17192](https://arxiv.org/abs/2211.17192), sections 2 and 3. Chen et al. 2023, *Accelerating Large Language
# Model Decoding with Speculative Sampling*, [arXiv:2302.01318](https://arxiv.org/abs/2302.01318). Dettmers et al. 2022,
# *LLM.int8()*, [arXiv:2208.07339](https://arxiv.org/abs/2208.07339), sections 2 and 3. Kwon et al. 2023, *Efficient
# Memory Management for Large Language Model Serving with PagedAttention*,
# [arXiv:2309.06180](https://arxiv.org/abs/2309.06180), section 4.
#
# **Do** the exercise [13_decoding](../exercises/exercise_13_decoding.ipynb). Then go on to [14 BERT](14_bert.ipynb).
