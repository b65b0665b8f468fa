# %% [markdown] lesson={"part": "I Attention", "builds": "sinusoidal, learned, relative, rotary, ALiBi"}
# # 05 · Where am I? Positions
#
# **After this lesson you will be able to**
#
# - show that attention alone does not see the order of words;
# - build the usual remedies: learned, sinusoidal, ALiBi, Shaw's relative positions, rotary;
# - say for each whether it knows *places* or *distances*, and prove it with numbers;
# - predict, and measure, what each does on a text longer than any it was trained on.
#
# **You need** lessons 03 and 04, sine and cosine. **It takes** about 65 minutes to read and try; all cells together run
# in about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: attention reads a bag of words
#
# A **bag of words** says which words a text has, and how often, but not in which order. Lesson 04 proved that attention
# reads nothing more. Here is what that means.

# %% tags=["recorded"]
import json
import re

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from txlib import plots
from txlib.attention import attention, causal, sliding_window
from txlib.data import translation
from txlib.paths import DATA
from txcourse import explore, figures
from txcourse.lesson import (
    expect, predict, predicted, progress, prove_equal, show_source)


# %% [markdown]
# Here are two real sentences from games, nearly opposite in meaning, with exactly the same words:

# %% tags=["recorded"]
def words(sentence):
    return re.findall(r"\w+", sentence.lower())


texts = translation("games")
english = [sentence for _, sentence in texts.train]
castle = [sentence for sentence in english if "castle" in sentence]
won = next(s for s in castle if s.startswith("Your soldiers defeated the enemy"))
lost = next(s for s in castle if s.startswith("The enemy defeated your"))
print(won, lost, sep="\n")
print("same words:", sorted(words(won)) == sorted(words(lost)))

# %% [markdown]
# Give every word a random vector, and let each sentence attend to itself, with random projections. What does attention
# find for the word *enemy* in the two sentences?

# %%
torch.manual_seed(0)
d_model = 64
vocabulary = sorted({word for sentence in english for word in words(sentence)})
vector = dict(zip(vocabulary, torch.randn(len(vocabulary), d_model), strict=True))
w_q, w_k, w_v = torch.randn(3, d_model, d_model) / d_model**0.5


def attend(x):  # (n, d_model)
    q, k, v = ((x @ w)[None, None] for w in (w_q, w_k, w_v))  # one batch, one head
    return attention(q, k, v)[0, 0]  # (n, d_model)


def vectors_of(sentence):
    return torch.stack([vector[word] for word in words(sentence)])  # (n, d_model)


at_won, at_lost = (words(sentence).index("enemy") for sentence in (won, lost))
prove_equal(attend(vectors_of(won))[at_won], attend(vectors_of(lost))[at_lost],
            what="The enemy who won and the enemy who lost")

# %% [markdown]
# The same vector. No later layer can tell the two apart, because nothing is left to tell them by. In general, if a
# matrix $P$ shuffles rows, $\text{attend}(P x) = P\,\text{attend}(x)$: attention is **permutation equivariant** (lesson
# 04, section 2). Here it is in numbers, on the sentence that we follow through lessons 03 to 09. Exchange its two
# nouns, and look at the weight that *attacked* gives to each word:

# %%
followed = "The orcs have attacked the humans.", "The humans have attacked the orcs."
for sentence in followed:
    x = vectors_of(sentence)  # (n, d_model)
    weight = ((x @ w_q) @ (x @ w_k).T / d_model**0.5).softmax(dim=-1)  # (query, key)
    named = zip(words(sentence), weight[3], strict=True)
    print("  ".join(f"{word} {each:.2f}" for word, each in named))

# %% [markdown]
# Each word gets the same weight in both, wherever it is, so the weighted sum of the values is the same. Who attacked
# whom is lost.
#
# Does it matter for real text? Count the sentences of our data that become another real sentence when their words are
# rearranged.

# %%
bags = {}
for order in {tuple(words(sentence)) for sentence in english}:
    bags.setdefault(tuple(sorted(order)), []).append(" ".join(order))
twins = sorted(sorted(orders) for orders in bags.values() if len(orders) > 1)
print(len(twins), "bags of words with more than one order, for example:")
for number in (1, 4, 9):
    print("   ", " / ".join(twins[number]))

# %% [markdown]
# What should a good remedy do? Three wishes:
#
# 1. **Distinct.** No two positions look the same.
# 2. **Distance.** "The word before me" is one rule, wherever I am. An adjective precedes its noun anywhere in the text.
# 3. **Longer.** It still works on texts longer than those it was trained on.
#
# We will tick them off at the end.

# %% [markdown]
# ## 2 The idea in one picture
#
# The weight that a query gives to a key comes out of a short chain: word vector, query and key, score, weight. Position
# can enter at three places. (One remedy, Shaw's in section 4, has a side door: it also adds to the values.)

# %% jupyter={"source_hidden": true}
figures.entrances(
    title="Position can enter through three doors, and Shaw's side door",
    alt="A chain of five boxes: word vector, query and key, score, weight, average of values. "
    "Learned and sinusoidal positions add a vector between the first two. Rotary turns query and "
    "key. ALiBi, T5 and Shaw change the score. Shaw also adds to the values, at the last box.",
)

# %% [markdown]
# A second difference decides more than the door. Some remedies tell a word its **place**: "you are word 7". Others tell
# a pair its **distance**: "this key is two before you".
#
# Throughout, positions count from 0, $i$ is the position of the query and $j$ that of the key. The distance is always
# $j - i$: negative for keys in the past. (In a table of places alone, $i$ is the place and $c$ counts pairs of
# dimensions.)

# %% [markdown]
# ## 3 Places: add a vector to the word
#
# ### Learned
#
# The simplest way to grant the first wish is to keep a second table, with one vector $p_i$ for each position, and to
# add row $i$ to word $i$.
#
# $$x_i \leftarrow x_i + p_i$$
#
# On paper: if *enemy* is $(1, 0)$, $p_1 = (0, 2)$ and $p_4 = (0, 5)$, then the enemy at position 1 is $(1, 2)$ and at
# position 4 it is $(1, 5)$. Training finds out what to put into the table. (Gehring et al. 2017; BERT and GPT-2 do
# this.) Does it tell our two enemies apart? And after one backward pass on a sentence of 8 words, which rows of a table
# of 12 have a gradient to learn from?

# %%
torch.manual_seed(0)
table = torch.randn(12, d_model, requires_grad=True)  # (position, d_model)


def attend_learned(sentence):
    x = vectors_of(sentence)  # (n, d_model)
    return attend(x + table[: len(x)])  # (n, d_model)


one = attend_learned(won)[at_won]  # (d_model,)
other = attend_learned(lost)[at_lost]  # (d_model,)
print(f"the enemies now differ by {(one - other).norm() / one.norm():.0%}")
attend_learned(won).sum().backward()
learning = table.grad.norm(dim=-1).nonzero().flatten()  # (rows that learn,)
print("rows with a gradient:", learning.tolist(), "of 12")


# %% [markdown]
# A row learns only from sentences long enough to reach it. If every sentence had 8 words, rows 8 and up would keep
# their random start values. And for the 13th word there is no row at all. Remember this for section 6.
#
# ### Sinusoidal
#
# Can a formula fill the table, so that every position has a row? Think of a clock with many hands, numbered
# $c = 0, 1, 2, \dots$, each slower than the one before. Each hand is two numbers, its sine and its cosine, and all
# hands together say what time it is. With two hands, one turning by 1 radian per position, the other by 0.1, position 3
# is
#
# $$(\sin 3,\ \cos 3,\ \sin 0.3,\ \cos 0.3) = (0.14,\ -0.99,\ 0.30,\ 0.96).$$
#
# Vaswani et al. (2017, §3.5) take $d_\text{model}/2$ hands. The first turns about once in 6 positions. Of 32 hands, the
# last turns once in about 47,000.
#
# $$\text{PE}(i, 2c) = \sin(i\,\omega_c) \qquad \text{PE}(i, 2c+1) = \cos(i\,\omega_c)
# \qquad \omega_c = 10000^{-2c/d_\text{model}}$$

# %% tags=["recorded"]
def frequency(d):
    return 10000 ** (-torch.arange(0, d, 2) / d)  # (d / 2,): ω of each hand, falling


def sinusoidal(n, d):
    angle = torch.arange(n)[:, None] * frequency(d)  # (n, d / 2)
    pairs = torch.stack([angle.sin(), angle.cos()], dim=-1)  # (n, d / 2, 2)
    return pairs.reshape(n, d)  # (n, d): sin, cos, sin, cos, …


position = sinusoidal(60, 64)  # (position, d_model)

# %% [markdown]
# In the picture red is $+1$, white 0 and blue $-1$. On the right the hands have hardly left their start in 40
# positions: their sines are still white, their cosines still red.

# %% jupyter={"source_hidden": true}
plots.heatmap(
    position[:40], title="Fast waves on the left, slow ones on the right", xlabel="dimension",
    ylabel="position", numbers=False, diverging=True, size=0.08, bar="entry",
    alt="A table of 40 positions by 64 dimensions. The left columns swing quickly between -1 and "
    "1; to the right they become slower until they hardly change.",
)

# %% [markdown]
# **Two places know their distance.** Why pairs of sine *and* cosine? Multiply two rows of the table. Each hand
# contributes $\sin a \sin b + \cos a \cos b = \cos(a - b)$, so
#
# $$\text{PE}(i) \cdot \text{PE}(j) = \sum_c \cos\big((j - i)\,\omega_c\big).$$
#
# The places are gone. Only the distance is left: along each diagonal of the table of all dot products, every number is
# the same. (Three before and three after give the same number, since $\cos(-a) = \cos(a)$. To tell before from after,
# the projections must help.)
#
# All this depends on both columns of a pair having *one* frequency. The formula is sometimes misprinted, in some slides
# for instance, with the exponent $(2c+1)/d$ for the cosine. Try both:

# %%
dot = position @ position.T  # (position, position)
column = torch.arange(60)[:, None] * 10000 ** (-torch.arange(d_model) / d_model)
misprint = torch.where(torch.arange(d_model) % 2 == 0, column.sin(), column.cos())
wrong = misprint @ misprint.T  # (position, position)
for name, each in {"pairs of one frequency": dot, "each column its own": wrong}.items():
    print(f"{name}: dot products at distance 3 spread by {each.diagonal(3).std():.4f}")

# %% [markdown]
# Here is the right one as a picture (dark is large):

# %% jupyter={"source_hidden": true}
plots.heatmap(
    dot[:40, :40], title="The dot product depends on the distance alone", xlabel="place $j$",
    ylabel="place $i$", numbers=False, size=0.1, bar="dot product",
    alt="A 40 by 40 table of dot products, darkest on the main diagonal. Each diagonal has one "
    "color; they fade in waves with the distance from the main diagonal.",
)


# %% [markdown]
# **A shift is a rotation.** To move from position $i$ to $i + s$, every hand turns by a fixed angle $a = s\,\omega_c$,
# wherever it was:
#
# $$\begin{pmatrix} \sin(i\,\omega_c + a) \\ \cos(i\,\omega_c + a) \end{pmatrix} =
# \begin{pmatrix} \cos a & \sin a \\ -\sin a & \cos a \end{pmatrix}
# \begin{pmatrix} \sin i\,\omega_c \\ \cos i\,\omega_c \end{pmatrix}$$
#
# The matrix does not know $i$. So one matrix $R_s$, with these small rotations along its diagonal, does it for all
# positions. This is why the authors hoped that a model could learn to attend by distance: "three words back" is one
# linear map, and the projections to queries and keys are linear maps.

# %%
def shift_matrix(s, d):
    a = s * frequency(d)  # (d / 2,): how far each hand turns
    entries = [a.cos(), a.sin(), -a.sin(), a.cos()]
    blocks = torch.stack(entries, dim=-1).reshape(-1, 2, 2)  # (d / 2, 2, 2)
    return torch.block_diag(*blocks)  # (d, d)


turned = position[:-3] @ shift_matrix(3, d_model).T  # (position, d_model)
prove_equal(turned, position[3:], tolerance=1e-4, what="Turned by 3 and shifted by 3")

# %% [markdown]
# **Keep the words louder than their places.** Every row of the table has the length $\sqrt{d_\text{model}/2}$, since
# each hand contributes $\sin^2 + \cos^2 = 1$. Word vectors are often initialized with variance $1/d_\text{model}$, so
# that their length is about 1. Add the two, and the place drowns out the word. Vaswani et al. (§3.4) multiply word
# vectors by $\sqrt{d_\text{model}}$. They give no reason; this is a common explanation.

# %%
torch.manual_seed(0)
for d in (64, 512):
    word, place = torch.randn(1000, d) * d**-0.5, sinusoidal(1000, d)  # (1000, d) each
    for name, scaled in (("forgotten", word), ("scaled by √d", word * d**0.5)):
        fraction = scaled.square().sum() / (scaled + place).square().sum()
        print(f"d_model {d:3}, {name:12}: the word makes up {fraction:5.1%}",
              "of the squared length of the sum")


# %% [markdown]
# **Add, or concatenate?** Adding mixes two things in the same dimensions. Why not $[x_i; p_i]$? Multiply that by a
# matrix whose upper half is $W_x$ and whose lower half is $W_p$, and it is a sum again, $x_i W_x + p_i W_p$. Adding is
# the special case $W_p = W_x$, with half of the matrix. (Nor does a position have to be a number along a line: Wang et
# al. 2019 encode where a word is in the sentence's syntax tree.)

# %% [markdown]
# ## 4 Distances: change the score
#
# A place is distinct, but "two before me" has to be learned from it. If distance is what counts, why not say it
# directly, where query and key meet?
#
# ### A number for each distance: ALiBi and T5
#
# Press et al. (2022) subtract a penalty from the score that grows with the distance. Say three keys score 2 each, at
# the distances $-2$, $-1$ and 0. With a penalty of ½ per step the scores become 1, 1.5 and 2: what is far away fades.
#
# $$\text{score}_{ij} = \frac{q_i \cdot k_j}{\sqrt{d_k}} - \text{slope}_t\,|j - i| \qquad\qquad
# \text{slope}_t = 2^{-8t/h}, \quad t = 1 \dots h$$
#
# Each of the $h$ heads has its own fixed slope (the paper's $m$); nothing is learned. (The formula is for $h$ a power
# of two; the library handles others.) To see the slopes alone, make all words alike, and look at the weights of the
# last of 40 queries.

# %% tags=["recorded"]
def alibi(n, heads):
    slope = 2.0 ** (-8 / heads * torch.arange(1, heads + 1))  # (heads,)
    distance = torch.arange(n)[None, :] - torch.arange(n)[:, None]  # (query, key)
    return -slope[:, None, None] * distance.abs()  # (heads, query, key)


alike = torch.zeros(1, 4, 40, 8)  # (batch, heads, n, d_k)
bias = alibi(40, 4)[None]  # (1, heads, query, key)
_, weight = attention(alike, alike, alike, causal(), bias=bias, return_weights=True)

# %% [markdown]
# One curve per head:

# %% jupyter={"source_hidden": true}
last = weight[0, :, -1]  # (heads, key): the last query's weights
plots.lines(
    {f"slope 1/{4**head}": (range(-39, 1), last[head - 1].tolist()) for head in (1, 2, 3, 4)},
    title="With all words alike, steep heads look near, flat ones everywhere",
    xlabel="distance of the key", ylabel="attention weight",
    alt="Four curves of attention weight over distances from -39 to 0. The steepest head puts "
    "nearly all weight on the last dozen words; the flattest spreads it almost evenly.",
)


# %% [markdown]
# T5 (Raffel et al. 2020, §2.1) adds a number as well, but *learns* it: one for each head and each **bucket** of
# distances. Near distances have a bucket each; far ones share buckets, which get wider with the distance.
#
# ### A vector for each distance: Shaw
#
# A number says how much a distance counts, whatever the query is. Shaw et al. (2018) let the query have its say. For
# each distance they learn a vector $a^K$, which they add to the key, and a vector $a^V$, which they add to the value:
#
# $$\text{score}_{ij} = \frac{q_i \cdot (k_j + a^K_{ij})}{\sqrt{d_k}} \qquad\qquad
# \text{out}_i = \sum_j \alpha_{ij}\,(v_j + a^V_{ij})$$
#
# Here $\alpha_{ij}$ is the softmax of $\text{score}_{ij}$ over $j$. So the score can say "I like what is just before
# me", and the output can say "what I found was just before me".
#
# **Which row?** There are $2n - 1$ distances. To keep the tables small, far distances share a row: the distance $j - i$
# is *clipped* to $-k \dots k$. Then $k$ is added, because rows count from 0. With $k = 3$, distance $-5$ is clipped to
# $-3$, which is row 0. (This $k$ is the paper's letter for the farthest distance that counts. It has nothing to do with
# the keys $k_j$.) First the naive way, which is the equation as it is:

# %% tags=["recorded"]
def buckets(n, k):
    position = torch.arange(n)  # (n,)
    distance = position[None, :] - position[:, None]  # (query, key): j − i
    return distance.clamp(-k, k) + k  # (query, key): 0 … 2k


def shaw_naive(q, k, v, a_k, a_v):
    bucket = buckets(q.shape[-2], len(a_k) // 2)  # (query, key)
    key = k[..., None, :, :] + a_k[bucket]  # (..., query, key, d_k)
    value = v[..., None, :, :] + a_v[bucket]  # (..., query, key, d_k)
    score = torch.einsum("...id,...ijd->...ij", q, key) / q.shape[-1] ** 0.5
    weight = score.softmax(dim=-1)  # (..., query, key)
    return torch.einsum("...ij,...ijd->...id", weight, value)  # (..., query, d_k)


# %% [markdown]
# That makes a tensor of shape (query, key, d_k): a vector for every pair. For music of 2,048 events with $d$ = 512, the
# keys of all heads together take 8.6 GB in every layer. So multiply out:
#
# $$q_i \cdot (k_j + a^K_{ij}) = q_i \cdot k_j + q_i \cdot a^K_{ij}$$
#
# The first part is ordinary attention. In the second there are only $2k + 1$ different vectors! Let each query meet
# each of them once: a small matrix, one column per bucket. Then each pair *picks* its number from its query's row. In
# the picture $k = 1$, so there are three buckets: 0 for the past, 1 for the word itself, 2 for the future. The number
# **32** means: query 3, bucket 2. (Queries count from 1 here.)

# %% jupyter={"source_hidden": true}
bucket = buckets(4, 1)  # (query, key)
by_bucket = 10 * torch.arange(1, 5)[:, None] + torch.arange(3)  # (query, bucket)
picked = by_bucket.gather(1, bucket)  # (query, key)
steps = {"one per bucket": by_bucket, "which bucket?": bucket, "picked: one per key": picked}
figures.rearranging(
    steps, {name: matrix % 10 for name, matrix in steps.items()}, format="{:d}",
    title="Few products, picked many times",
    alt="Three matrices. First four queries by three buckets: 10, 11, 12 in the first row, 40, "
    "41, 42 in the last. Then the bucket of each query and key: 1 on the diagonal, 0 below, 2 "
    "above. Then each query's number of that bucket, by query and key: the last row is 40, "
    "40, 40, 41.",
)


# %% [markdown]
# The picking is one call: `gather(-1, bucket)` reads, in each row, the columns that `bucket` names. What it gives is a
# **bias** on the scores, and `attention` takes one. (`expand` repeats the bucket matrix for each batch and head,
# without copying it.)

# %% tags=["recorded"]
def shaw_bias(q, a_k):  # (batch, heads, n, d_k); (bucket, d_k)
    n, rows = q.shape[-2], len(a_k)
    bucket = buckets(n, rows // 2).expand(*q.shape[:-1], n)  # (…, query, key)
    by_bucket = q @ a_k.T / q.shape[-1] ** 0.5  # (…, query, bucket)
    return by_bucket.gather(-1, bucket)  # (…, query, key)


# %% [markdown]
# With the values it goes the other way. First *add up* the weights that fall into the same bucket, then let each sum
# meet its vector once: in the last row of the picture, the three weights of bucket 0 become one number. `scatter_add`
# is `gather` backward: it adds each number to the column that its bucket names.

# %% tags=["recorded"]
def shaw_values(weight, a_v):  # (…, query, key); (bucket, d_k)
    n, rows = weight.shape[-1], len(a_v)
    bucket = buckets(n, rows // 2).expand_as(weight)  # (…, query, key)
    empty = weight.new_zeros(*weight.shape[:-1], rows)  # (…, query, bucket)
    return empty.scatter_add(-1, bucket, weight) @ a_v  # (…, query, d_k)


def shaw(q, k, v, a_k, a_v, mask=None):
    bias = shaw_bias(q, a_k)  # (…, query, key)
    out, weight = attention(q, k, v, mask, bias=bias, return_weights=True)
    return out + shaw_values(weight, a_v)  # (…, query, d_k)


torch.manual_seed(0)
q, k, v = torch.randn(3, 2, 4, 10, 16)  # (batch, heads, n, d_k) each
a_k, a_v = torch.randn(2, 2 * 3 + 1, 16)  # (bucket, d_k) each
naive = shaw_naive(q, k, v, a_k, a_v)  # (batch, heads, n, d_k)
prove_equal(shaw(q, k, v, a_k, a_v), naive, what="Naive and efficient")


# %% [markdown]
# Huang et al. (2019) did not clip: they learned a vector for *every* distance to the past. They also found that a
# reshape can do the picking. This **skewing** is built in [lesson 22](22_music.ipynb), section 4.

# %% [markdown]
# ## 5 Rotary: turn the queries and the keys
#
# Sinusoidal positions hold a distance in their dot product, but they are *added* to words, and words and places get
# mixed in all later products. Su et al. (2021) keep the good part. Take neighboring entries of the query, $(q_0, q_1)$,
# $(q_2, q_3)$ and so on, as arrows in a plane. Turn each by an angle of position times $\omega_c$, and do the same to
# keys.
#
# On paper, with one pair, and a quarter turn per position: the query $(1, 0)$ at position 3 has turned three times and
# is $(0, -1)$. The key $(1, 0)$ at position 2 is $(-1, 0)$. Their product is 0, and at positions 7 and 6 it is 0 again.
# At positions 3 and 3, or 6 and 6, it is 1.
#
# $$\begin{pmatrix} q'_{2c} \\ q'_{2c+1} \end{pmatrix} =
# \begin{pmatrix} \cos i\omega_c & -\sin i\omega_c \\ \sin i\omega_c & \cos i\omega_c \end{pmatrix}
# \begin{pmatrix} q_{2c} \\ q_{2c+1} \end{pmatrix}$$
#
# The frequencies are the old ones, with $d_k$ instead of $d_\text{model}$, because this happens in each head.

# %% tags=["recorded"]
def rotate(x):
    angle = torch.arange(x.shape[-2])[:, None] * frequency(x.shape[-1])  # (n, d_k / 2)
    even, odd = x[..., 0::2], x[..., 1::2]  # (..., n, d_k / 2): each pair's entries
    turned = [even * angle.cos() - odd * angle.sin(),
              even * angle.sin() + odd * angle.cos()]
    return torch.stack(turned, dim=-1).flatten(-2)  # (..., n, d_k): side by side again


# %% [markdown]
# One vector at six positions:

# %% jupyter={"source_hidden": true}
same = torch.tensor([1.0, 0.0] * 8).expand(6, 16)  # (n, d_k): one vector at six positions
figures.turns(
    rearrange(rotate(same), "n (pair two) -> pair n two", two=2)[:4],
    title="Six positions, the first four of eight pairs: each turns at its own speed",
    alt="Four circles with arrows for positions 0 to 5. In the first the arrow goes most of the "
    "way around; in the second a quarter; in the last it hardly moves.",
)

# %% [markdown]
# When you compare two arrows, only the angle between them counts. If the query has turned by $i\,\omega_c$ and the key
# by $j\,\omega_c$, that angle has changed by $(j - i)\,\omega_c$. Write $R_i$ for the whole turn at position $i$, all
# pairs at once. Turning back is $R_i^\top$, so
#
# $$(R_i\, q) \cdot (R_j\, k) = q^\top R_i^\top R_j\, k = q \cdot (R_{j-i}\, k).$$
#
# The score depends on words and distance, never on the place. We measure: one query and one key, the key always 3
# before the query, at 100 different places.

# %%
torch.manual_seed(0)
one_q, one_k = torch.randn(2, 16)  # (d_k,) each
turned_q = rotate(one_q.expand(103, 16))  # (place, d_k)
turned_k = rotate(one_k.expand(103, 16))  # (place, d_k)
score = turned_q @ turned_k.T  # (query's place, key's place)
print("key 3 before the query at places 3, 50 and 102: ",
      *(f"{score[place, place - 3]:7.3f}" for place in (3, 50, 102)))
print("query at place 50, keys at distances -3, 0 and 3:",
      *(f"{score[50, 50 + distance]:7.3f}" for distance in (-3, 0, 3)))
prove_equal(score.diagonal(-3), score[50, 47].expand(100), what="Scores at all places")
prove_equal(turned_q.norm(dim=-1), one_q.norm().expand(103), what="Lengths")

# %% [markdown]
# One distance, one score, at all places. Other distances have other scores, and before is not after. Nothing is
# learned, nothing is added to the words, and lengths stay. Most of today's language models use rotary positions.
#
# Turn them yourself. The circles are the first four of the eight pairs of the same query and key, the curve below is
# their score over all distances. Move one position, then both together: which arrows turn, and what stays? (If you see
# only the curve, run the cell.)

# %%
explore.rotary(one_q, one_k)


# %% [markdown]
# **Two layouts, one idea.** Which two entries make a pair does not matter, as long as queries and keys agree. The paper
# pairs neighbors: (0, 1), (2, 3), … and so did Llama's own code. Files converted for `transformers` pair across the
# halves: (0, $d_k/2$), (1, $d_k/2 + 1$), … One is the other with its dimensions reordered. Mix them up when you load a
# model, and it produces nonsense without any error message.

# %%
def rotate_half(x):
    angle = torch.arange(x.shape[-2])[:, None] * frequency(x.shape[-1])  # (n, d_k / 2)
    first, second = x.chunk(2, dim=-1)  # (..., n, d_k / 2) each
    turned = [first * angle.cos() - second * angle.sin(),
              first * angle.sin() + second * angle.cos()]
    return torch.cat(turned, dim=-1)  # (..., n, d_k)


order = torch.cat([torch.arange(0, 16, 2), torch.arange(1, 16, 2)])  # evens, odds
prove_equal(rotate_half(q[..., order]), rotate(q)[..., order],
            what="Half layout on reordered dimensions, and ours")
gap = rotate_half(q) @ rotate_half(k).mT - rotate(q) @ rotate(k).mT
print(f"without reordering, the scores differ by up to {gap.abs().max():.1f}")

# %% [markdown]
# ## 6 See it work: which one reads best?
#
# Now each does the same job: guess the next letter of real English text. The model sees 32 letters, and is asked for
# the next one after each of them. It is small: one attention layer, and a little network that reads its result together
# with the letter itself.
#
# First the text: all English sentences in one long line, letters as numbers, rare characters as 0.

# %% tags=["recorded"]
N, LONG, d_model, heads = 32, 128, 64, 4  # train on 32 letters, test on 128
splits = texts.train, texts.test
train, test = (" ".join(s for _, s in split).lower() for split in splits)
letters = sorted(letter for letter in set(train) if train.count(letter) >= 100)
ids = {letter: id for id, letter in enumerate(letters, start=1)}
train, test = (torch.tensor([ids.get(letter, 0) for letter in text])
               for text in (train, test[:25_600]))
V = len(letters) + 1
print(f"{len(train):,} letters to train on, {len(test):,} to test on, {V} different")


# %% [markdown]
# The model, in small steps. First the doors of section 2's picture, a method for each; here they all stay shut:

# %% tags=["recorded"]
class Doors(nn.Module):
    def place(self, x):  # first door: the word vectors
        return x

    def turn(self, x):  # second door: queries and keys
        return x

    def bias(self, q):  # third door: the scores
        return None

    def side(self, weight):  # side door: the values
        return 0


# %% [markdown]
# Then a reader around them. By itself it reads without positions. First its parts:

# %% tags=["recorded"]
class Parts(Doors):
    def __init__(self, scale=d_model**0.5):
        super().__init__()
        self.scale, self.mask = scale, causal()
        self.word = nn.Parameter(torch.randn(V, d_model) * d_model**-0.5)
        self.project = nn.Linear(d_model, 3 * d_model)
        self.read = nn.Sequential(
            nn.Linear(2 * d_model, 4 * d_model), nn.ReLU(), nn.Linear(4 * d_model, V))


# %% [markdown]
# Then what it computes. (With the pattern `"b n (three h d) -> three b h n d"`, `rearrange` cuts one wide projection
# into q, k and v, and each into heads.)

# %% tags=["recorded"]
class Reader(Parts):
    def forward(self, ids):  # (batch, n)
        x = self.place(self.scale * self.word[ids])  # (batch, n, d_model)
        pattern = "b n (three h d) -> three b h n d"
        q, k, v = rearrange(self.project(x), pattern, three=3, h=heads)
        q, k, bias = self.turn(q), self.turn(k), self.bias(q)
        found, self.weight = attention(
            q, k, v, self.mask, bias=bias, return_weights=True)
        found = rearrange(found + self.side(self.weight), "b h n d -> b n (h d)")
        return self.read(torch.cat([x, found], dim=-1))  # (batch, n, V)


# %% [markdown]
# Each remedy opens its own door. At the first:

# %% tags=["recorded"]
class Learned(Reader):
    def __init__(self, **options):
        super().__init__(**options)
        self.table = nn.Parameter(torch.randn(LONG, d_model))

    def place(self, x):
        return x + self.table[: x.shape[1]]


class Sinusoidal(Reader):
    def place(self, x):
        return x + sinusoidal(x.shape[1], d_model)


# %% [markdown]
# At the second door, and at the third with a number for each distance: *A number* is T5's idea with Shaw's buckets.
# (`steeper` is for a test below.)

# %% tags=["recorded"]
class Rotating(Reader):
    def turn(self, x):
        return rotate(x)


class Alibi(Reader):
    def __init__(self, steeper=1, **options):
        super().__init__(**options)
        self.steeper = steeper  # a factor for all slopes

    def bias(self, q):
        return self.steeper * alibi(q.shape[-2], heads)[None]  # (1, heads, query, key)


class OneNumber(Reader):
    def __init__(self, k=8, **options):
        super().__init__(**options)
        self.k, self.number = k, nn.Parameter(torch.zeros(heads, 2 * k + 1))

    def bias(self, q):
        return self.number[:, buckets(q.shape[-2], self.k)][None]


# %% [markdown]
# And Shaw's, at the third and the side door. *Unclipped*, with a row for each distance, is there to compare.

# %% tags=["recorded"]
class Shaw(Reader):
    def __init__(self, k=8, **options):
        super().__init__(**options)
        self.a_k = nn.Parameter(torch.randn(2 * k + 1, d_model // heads) * 0.25)
        self.a_v = nn.Parameter(torch.randn(2 * k + 1, d_model // heads) * 0.25)

    def bias(self, q):
        return shaw_bias(q, self.a_k)

    def side(self, weight):
        return shaw_values(weight, self.a_v)


class Unclipped(Shaw):
    def __init__(self, **options):
        super().__init__(k=LONG - 1, **options)


# %% [markdown]
# All kinds of readers; a batch of text for them; and the test, which keeps the loss of each place of the window, to
# show where a reader fails.

# %% tags=["recorded"]
kinds = {"learned": Learned, "sinusoidal": Sinusoidal, "ALiBi": Alibi,
         "a number": OneNumber, "Shaw": Shaw, "unclipped": Unclipped,
         "rotary": Rotating, "none": Reader}


def some_text():
    start = torch.randint(len(train) - N, (16, 1))  # (batch, 1): anywhere
    window = train[start + torch.arange(N + 1)]  # (batch, N + 1)
    return window[:, :-1], window[:, 1:]  # (batch, N) each: letters, the next ones


@torch.no_grad()
def loss_by_place(model, n):
    windows = test[: (len(test) - 1) // n * n + 1]  # as many whole windows as there are
    logits, truth = model(windows[:-1].view(-1, n)), windows[1:].view(-1, n)
    return F.cross_entropy(logits.mT, truth, reduction="none").mean(dim=0)  # (n,)


# %% [markdown]
# The training is the same for all: same text, same batches, 300 steps. Only the class differs.

# %% tags=["recorded"]
def fit(kind, seed, steps=300, **options):
    torch.manual_seed(seed)
    model = kinds[kind](**options)
    torch.manual_seed(seed)  # the same batches, however many numbers the model drew
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for _ in range(steps):
        ids, truth = some_text()
        loss = F.cross_entropy(model(ids).flatten(0, 1), truth.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model


# %% [markdown]
# The simplest **baseline** is a table of letter pairs: how often does each letter follow each other letter? It needs no
# attention, only the last letter. A model that does no better has learned nothing from the letters before that one. A
# table of triples looks up the last two. The loss is the cross-entropy in *nats*; guessing blindly among 43 characters
# would cost $\ln 43 = 3.8$ of them. Which readers will do best? Guess.

# %%
def loss_of_table(row):  # row(text): where to look up each next letter
    seen, asked = row(train), row(test)  # (number,) each
    count, one = torch.full((V * V, V), 0.1), torch.tensor(1.0)
    count.index_put_((seen, train[-len(seen) :]), one, accumulate=True)
    chance = count / count.sum(dim=-1, keepdim=True)  # (row, next letter)
    return -chance[asked, test[-len(asked) :]].log().mean().item()


tables = {"table of pairs": loss_of_table(lambda text: text[:-1]),
          "table of triples": loss_of_table(lambda text: V * text[:-2] + text[1:-1])}
print("  ".join(f"{name}: {loss:.2f}" for name, loss in tables.items()))
predict("positions", "Which readers will have the lowest loss on 32 letters?",
        "learned and sinusoidal: they know places", "ALiBi: it fades with the distance",
        "Shaw, unclipped and rotary: a query asks for distances",
        "all alike, even none")

# %% [markdown]
# We train one of each here. One start could be luck, so `python data/positions.py 0 1 2` trained each from three, with
# these cells. Is the order more than chance? We compare two groups: the readers whose queries ask for distances, and
# those that know places. It is more than chance if the worst seed of the first is better than the best of the second.

# %% tags=["nbval-ignore-output"]
torch.set_num_threads(1)  # small models: more threads only wait
models = {kind: fit(kind, seed=0) for kind in progress(kinds, "eight readers")}
recorded = json.loads((DATA / "positions.json").read_text())
short = {kind: [run["short"] for run in recorded[kind].values()] for kind in kinds}
for kind, model in models.items():
    print(f"{kind:>10} here {loss_by_place(model, N).mean():.2f}, recorded",
          *(f"{loss:.3f}" for loss in short[kind]))
distances = short["Shaw"] + short["unclipped"] + short["rotary"]
gap = min(short["learned"] + short["sinusoidal"]) - max(distances)
expect("Best run with places minus worst with distances", gap, 0, 0.3)
predicted("positions", "Shaw, unclipped and rotary: a query asks for distances")

# %% [markdown]
# Each dot is the mean of three seeds; its line goes from the best to the worst. The colors say what a reader knows;
# gray ones know neither:

# %% jupyter={"source_hidden": true}
rows = {name: (loss, loss, loss) for name, loss in tables.items()}
for kind, losses in short.items():
    rows[kind] = min(losses), sum(losses) / 3, max(losses)
plots.ranges(
    dict(sorted(rows.items(), key=lambda row: row[1][1])),
    groups={"places": ["learned", "sinusoidal"], "distances": ["Shaw", "unclipped", "rotary", "a number", "ALiBi"]},
    xlabel="loss on new text (nats per letter)", mark=tables["table of pairs"],
    title="Any position beats none; the best three readers know distances",
    alt="; ".join(f"{kind}: " + ", ".join(f"{loss:.2f}" for loss in losses) for kind, losses in short.items())
    + "".join(f"; {name}: {loss:.2f}" for name, loss in tables.items()),
)

# %% [markdown]
# **Break it: no positions.** The reader without positions is a little better than the table of pairs. It sees which
# letters have occurred, not where. Any position helps a lot. Shaw, unclipped and rotary help most. Our explanation:
# "the letter before me" is one rule at every place, and they need to learn it only once.
#
# The best of them only reach the table of triples. That is no failure of positions: the table counted all of the text,
# 1.6 million letters, while a reader saw $300 \cdot 16 \cdot 32$, about 150,000. What we compare here are positions,
# not the best way to guess letters.
#
# (The causal mask itself tells a little: a letter with much to look at must be late. Deeper models without positions
# learn to use that, see Haviv et al. 2022, [arXiv:2203.16634](https://arxiv.org/abs/2203.16634).)
#
# What do the heads of each reader look at? Here is the mean weight that each head gives to each distance, on new text:

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
weights = {}
for kind in ("learned", "ALiBi", "Shaw", "rotary"):
    model = models[kind]
    model(test[: 200 * N].view(-1, N))
    weights[kind] = model.weight.detach()  # (batch, heads, query, key)

figures.weight_by_distance(
    weights, title="Most heads look one letter back; ALiBi's cannot single it out",
    alt="Mean attention weight of four heads each of four readers, by distances 0 to -8. Learned, "
    "Shaw and rotary: the largest weight is on distance -1; for the last two, much of the "
    "rest is on -2. ALiBi: weight is spread over all distances; only the steepest head prefers -1.",
)

# %% [markdown]
# ALiBi does worse, and the picture suggests why. It prefers near letters, but its slopes are gentle, and no head can
# single out "one back" or "two back": even the steepest spreads its weight over many letters. If so, steeper slopes
# must help. The record has ALiBi with all slopes 16 times as steep, and a second test: the sinusoidal reader without
# the $\sqrt{d_\text{model}}$ of section 3. Does the loss fall in the first, and rise in the second, with every seed?

# %%
for kind in ("ALiBi", "ALiBi, 16 × as steep", "sinusoidal", "sinusoidal, not scaled"):
    print(f"{kind:>22}", *(f"{run['short']:.3f}" for run in recorded[kind].values()))

# %% [markdown]
# Both, with every seed. With steep slopes ALiBi is as good as rotary: it was the gentle slopes that kept it from the
# nearest letters. (*A number* could single them out as well, but its numbers start at 0, and in 300 steps they have not
# grown far: our explanation.) ALiBi was made for another purpose, which comes next.
#
# ### Longer than it was trained for
#
# All readers were trained on 32 letters. Now they read 128, and we look at the loss place by place, as a mean over the
# three recorded seeds. Decide first: which of them will hold beyond place 32, which will fail at once, and which
# slowly? The results are folded away (a click on the three dots opens them). One column for each 32 places:

# %% tags=["hide-output"] jupyter={"outputs_hidden": true}
def over_seeds(kind, what):
    runs = [run[what] for run in recorded[kind].values()]
    return torch.tensor(runs).mean(dim=0)  # (16,): means of 8 places each


long = {kind: over_seeds(kind, "long") for kind in kinds}  # (16,) each
print(f"{'places':>14}   1–32  33–64  65–96  97–128")
for kind, loss in long.items():
    print(f"{kind:>14}", *(f"{part.mean():6.2f}" for part in loss.split(N // 8)))
print(f"{'table of pairs':>14}", *[f"{tables['table of pairs']:6.2f}"] * 4)

# %% [markdown]
# As curves; a point is the mean of the 8 places that end there.

# %% tags=["hide-output"] jupyter={"outputs_hidden": true, "source_hidden": true}
plots.lines(
    {kind: (range(8, LONG + 1, 8), loss.tolist()) for kind, loss in long.items()},
    mark=("trained to here", N), dashed=["none"], xlabel="place in the text",
    title="With positions, only Shaw and ALiBi stay flat beyond place 32",
    ylabel="loss (nats), mean of 8 places", height=4.4,
    alt="Loss by place, a color for each kind, none dashed. Up to 32 and from 97 to 128: " + "; ".join(
        f"{kind} {loss[:4].mean():.2f} and {loss[12:].mean():.2f}" for kind, loss in long.items()),
)

# %% [markdown]
# (Places are counted from 1 here, as in the figure.) Three of the eight end up clearly worse than the table of pairs.
#
# - **None** falls back to just that table. It knows no places that could be new to it.
# - **Learned** fails at once, as predicted: the rows of the 33rd place and all later ones have never been trained.
# - **Sinusoidal** also fails at once. Its rows exist, but the model has never met their slow hands at those angles. A
#   formula gives a *value* for every place. It does not give the model *practice* with it.
# - **Rotary** knows distances only, and still it fails: more slowly, but in the end worst of all. At place 100 there
#   are distances down to −99. None beyond −31 occurred in training, and they turn the slow pairs to angles never seen.
# - **Unclipped** has the same problem, but milder: its rows for far distances still have their random start values.
# - **Shaw** stays flat. Unclipped differs from it in nothing else, so it is the clipping: every distance beyond 8 uses
#   a row that was trained often.
# - **ALiBi** stays flat, and this is what it was made for: what is far is quietly faded out. *A number* is clipped as
#   well, but nothing in it fades: the more far letters there are, the more of the weight they take.
#
# Is it true that rotary and unclipped fail because of distances, learned and sinusoidal because of places, and *a
# number* because of too many letters? Then we can tell them apart. Let every letter see the last 32 only, by a mask.
# Now no distance is new, and no letter sees more than 32 letters, itself included, while the places are still new.

# %%
predict("window", "With a window, which read beyond place 32 as they did just before?",
        "learned and sinusoidal", "unclipped, rotary and a number", "all five",
        "none of the five")

# %% [markdown]
# The same models, with another mask. First our own rotary reader, then the record:

# %% tags=["nbval-ignore-output"]
models["rotary"].mask = causal() & sliding_window(N - 1)  # 32 letters
rescued = loss_by_place(models["rotary"], LONG)[N:].mean().item()
expect("Our rotary reader's loss beyond 32, with the window", rescued, 1.85, 2.15)
for kind in ("learned", "sinusoidal", "unclipped", "rotary", "a number"):
    window = over_seeds(kind, "window")  # (16,)
    print(f"{kind:>11}: loss at 25–32 {long[kind][3]:.2f}, beyond",
          f"{long[kind][4:].mean():.2f}, and {window[4:].mean():.2f} with the window")
predicted("window", "unclipped, rotary and a number",
          "For them nothing is new; for the others the places still are.")

# %% [markdown]
# The window fixes rotary, unclipped and *a number*, and leaves the two that know places broken. Press et al. (2022,
# figure 1) report failures of the same kind for large sinusoidal and rotary models. So why is rotary everywhere? It
# reads well within its length and needs no table, and the rest can be repaired: today's models are fine-tuned for a
# while at the longer length, with lower frequencies (lesson 17).
#
# (So "attention cannot go beyond the length it was trained on" is true of learned tables, and false as a rule.)
#
# ### All on one page
#
# The last three columns are the wishes of section 1:
#
# | | enters | knows | numbers to learn | distinct | distance | longer |
# | --- | --- | --- | --- | --- | --- | --- |
# | learned | added to words | places | max_length · d_model | yes | no | no: at max_length it ends |
# | sinusoidal | added to words | places | none | yes | in its products | no |
# | ALiBi | score | distances | none | yes | yes, but only fading | yes |
# | T5 | score | bucketed distances | h · buckets | near ones | yes | with a window (*a number*) |
# | Shaw | score and value | clipped distances | 2 (2k + 1) · d_k per layer | near ones | yes | yes |
# | skewed (lesson 22) | score | past distances | h · max_length · d_k per layer | yes | yes | with a window |
# | rotary | query and key | distances | none | yes | yes | with a window |

# %% [markdown]
# ## 7 Open the library, and count
#
# Everything you built is in `txlib`. Rotary is a module that `MultiHeadAttention` calls on queries and keys. ALiBi and
# T5's numbers are *biases*, which a layer hands to any mechanism. Shaw's vectors also meet the values, so
# `ShawAttention` is a mechanism itself.

# %%
from txlib.attention import AlibiBias, DenseAttention, ShawAttention
from txlib.layers import Rotary
from txlib.layers import sinusoidal as library_sinusoidal

show_source(library_sinusoidal, Rotary)

# %% [markdown]
# You will recognize your own lines. New are `layout="concatenated"`, which puts all sines first, as the released code
# of the paper does; `offset`, the position of the first row, for writing word by word with a cache (lesson 13); and
# `scaling`, which slows the turns for longer texts (lesson 17). With the same tables, do both give the same numbers?

# %%
torch.manual_seed(0)
library_shaw = ShawAttention(16, max_distance=3)
mine = sinusoidal(60, 64)  # (position, d_model)
prove_equal(mine, library_sinusoidal(60, 64), what="Your sinusoids and ours")
prove_equal(rotate(q), Rotary(16)(q), what="Your rotary and ours")
mine = shaw(q, k, v, library_shaw.keys, library_shaw.values)  # (batch, heads, n, d_k)
prove_equal(mine, library_shaw(q, k, v), what="Your Shaw and ours")
far = AlibiBias(4)(q, 10)  # (1, heads, query, key)
mine = attention(q, k, v, bias=alibi(10, 4)[None])  # (batch, heads, n, d_k)
prove_equal(mine, DenseAttention()(q, k, v, bias=far), what="Your ALiBi and ours")

# %% [markdown]
# What does it cost? Adding or turning costs a few $n\,d$ operations, little compared with attention's $4n^2d$. ALiBi
# costs $n^2$ additions, Shaw's bias a matrix product with $2k + 1$ columns. Only the naive Shaw form hurts, in memory:
# $n^2 d_k$ numbers instead of $n^2$. Does the clock agree? It also counts the reading and writing of every tensor in
# between, so expect even rotary to show, ALiBi to be like it, Shaw clearly slower, and the naive form far behind.

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
from timeit import repeat

x = torch.randn(1, 4, 512, 64)  # (batch, heads, n, d_k): queries, keys and values
a = torch.randn(2 * 16 + 1, 64)  # (bucket, d_k)
ways = {
    "no positions": lambda: attention(x, x, x, causal()),
    "rotary": lambda: attention(rotate(x), rotate(x), x, causal()),
    "ALiBi": lambda: attention(x, x, x, causal(), bias=alibi(512, 4)[None]),
    "Shaw": lambda: shaw(x, x, x, a, a, causal()),
    "Shaw, naive": lambda: shaw_naive(x, x, x, a, a),
}
for name, way in ways.items():
    fastest = min(repeat(way, number=1, repeat=4))  # of four runs, in seconds
    print(f"{name:>12}: {1000 * fastest:.0f} milliseconds")

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. Shaw, $k = 2$, a sentence of 10 words. How many rows does the table $a^K$ have, and which row do query 7 and key
# 1 use?**
#
# <details><summary>A. 5 rows; row 0</summary>
#
# Right. Distances −2 … 2 make 5 rows. The distance is $1 - 7 = -6$, clipped to −2; adding 2 gives row 0.
# </details>
# <details><summary>B. 5 rows; row 4</summary>
#
# That is the far *future*: it would be $i - j$. The distance is key minus query, $1 - 7 = -6$.
# </details>
# <details><summary>C. 19 rows; row 3</summary>
#
# That is without clipping: $-6 + 9 = 3$ in a table of $2 \cdot 10 - 1$ rows.
# </details>
#
# **2. Rotary turns queries and keys. Why not values?**
#
# <details><summary>A. It would cost too much time</summary>
#
# Turning is cheap compared with attention. That is not the reason.
# </details>
# <details><summary>B. Values are never compared with each other; the places would stay in the output</summary>
#
# Right. In a score the two turns meet, and only their difference is left. A value is passed on as it is, and would
# arrive turned by its absolute place.
# </details>
# <details><summary>C. Values have no pairs of dimensions</summary>
#
# Any even width has. Nothing forbids it; it just does not do what you want.
# </details>
#
# **3. Sinusoidal positions exist for every place. Why did our reader fail beyond place 32?**
#
# <details><summary>A. The formula repeats itself after 32 places</summary>
#
# The slowest hand needs more than 40,000 places for one round. No two rows are alike.
# </details>
# <details><summary>B. A formula for the input is no training for the layers that read it</summary>
#
# Right. The rows are new to the projections, and what those make of them is not defined by anything they have learned.
# </details>
# <details><summary>C. The word vectors were not scaled</summary>
#
# They were, in this run. And without the scale it is worse even within the first 32 places.
# </details>
#
# **4. You decode word by word with a cache and rotary positions, and turn every new query and key as position 0. What
# happens?**
#
# <details><summary>A. An error</summary>
#
# All shapes fit. Lesson 13 tries it.
# </details>
# <details><summary>B. All scores are as if all words were at the same place</summary>
#
# Right. Every angle is 0, so every distance is 0: you have switched positions off.
# </details>
# <details><summary>C. Nothing: only distances count, and they are the same</summary>
#
# They would be, if all were moved by the *same* amount. Word 5 is moved by 5 and word 2 by 2, so the distance between
# them changes from −3 to 0.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - Attention treats a sentence as a bag of words: shuffle in, same shuffle out.
# - Learned and sinusoidal vectors tell each word its place; the sinusoids hold distances in their dot products.
# - ALiBi fades with distance, T5 learns a number and Shaw a vector for each distance. Rotary gets distances by turning
#   queries and keys.
# - Reading letters, Shaw and rotary beat added places; so does ALiBi, if its slopes are steep. Beyond the trained
#   length only Shaw (clipped) and ALiBi (fading) read as well as before; a window rescues the other distances, but not
#   places.
# - The naive Shaw form needs $n^2 d_k$ numbers per head; picking avoids that. In our run, rotary and ALiBi took about
#   half again as long as no positions, Shaw nearly three times, the naive form a hundred times.
#
# **Read** Vaswani et al. 2017, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762), sections 3.4 and 3.5. Shaw et al.
# 2018, [arXiv:1803.02155](https://arxiv.org/abs/1803.02155), sections 3.1 to 3.3. Raffel et al. 2020, *T5*,
# [arXiv:1910.10683](https://arxiv.org/abs/1910.10683), section 2.1. Huang et al. 2019, *Music Transformer*,
# [arXiv:1809.04281](https://arxiv.org/abs/1809.04281), section 3.4. Su et al. 2021, *RoFormer*,
# [arXiv:2104.09864](https://arxiv.org/abs/2104.09864), sections 3.2 and 3.4. Press et al. 2022,
# [arXiv:2108.12409](https://arxiv.org/abs/2108.12409), sections 2 and 3. Wang et al. 2019, *Self-Attention with
# Structural Position Representations*, [arXiv:1909.00383](https://arxiv.org/abs/1909.00383).
#
# **Do** the exercise [05_positions](../exercises/exercise_05_positions.ipynb). Then go on to
# [06 The block](06_block.ipynb).
