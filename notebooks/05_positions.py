# %% [markdown] lesson={"part": "I Attention", "builds": "sinusoidal, learned, relative, rotary, ALiBi"}
# # 05 · Where am I? Positions
#
# **After this lesson you will be able to**
#
# - show that attention alone does not see the order of words;
# - build the usual remedies: learned, sinusoidal, ALiBi, Shaw's relative positions, rotary;
# - say for each whether it knows *positions* or *distances*, and prove it with numbers;
# - predict, and measure, what each does on a text longer than any it was trained on.
#
# **You need** lessons 03 and 04, sine and cosine. **It takes** about 60 minutes to read and try; all cells together run
# in about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: attention reads a bag of words
#
# A **bag of words** says which words a text has, and how often, but not in which order. Lesson 04 proved that attention
# reads nothing more. What does that cost us?

# %% tags=["recorded"]
import json
import re

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from txcourse import explore, figures
from txcourse.lesson import expect, predict, predicted, progress, prove_equal
from txlib import plots
from txlib.attention import attention, causal, sliding_window
from txlib.data import translation

# %% [markdown]
# Take the sentence that we follow through lessons 03 to 09, and swap its nouns. The two sentences mean opposite
# things, with exactly the same words:

# %% tags=["recorded"]
def words(sentence):
    return re.findall(r"\w+", sentence.lower())


texts = translation("games")  # pairs of German and English sentences
ours = "The orcs have attacked the humans."
exchanged = "The humans have attacked the orcs."
print("same words:", sorted(words(ours)) == sorted(words(exchanged)))

# %% [markdown]
# Give every word a random vector, and let each sentence attend to itself, with random projections. What does attention
# find for *attacked*, and what for *orcs*, in each?

# %%
torch.manual_seed(0)
d_model = 64
vector = {word: torch.randn(d_model) for word in sorted(set(words(ours)))}
w_q, w_k, w_v = torch.randn(3, d_model, d_model) / d_model**0.5


def attend(x):  # (n, d_model)
    q, k, v = ((x @ w)[None, None] for w in (w_q, w_k, w_v))  # one batch, one head
    return attention(q, k, v)[0, 0]  # (n, d_model)


def vectors_of(sentence):
    return torch.stack([vector[word] for word in words(sentence)])  # (n, d_model)


found, found_exchanged = attend(vectors_of(ours)), attend(vectors_of(exchanged))
prove_equal(found[3], found_exchanged[3], what="Attacked by orcs, attacked by humans")
prove_equal(found[1], found_exchanged[5], what="Orcs who attack, orcs who are attacked")

# %% [markdown]
# The same vectors. No later layer can tell who attacked, because nothing is left to tell it by. In general, if a
# matrix $P$ shuffles rows, $\text{attend}(P x) = P\,\text{attend}(x)$: attention is **permutation equivariant** (lesson
# 04, section 2).
#
# The weights show why. Here is the weight that *attacked* gives to each word:

# %%
for sentence in (ours, exchanged):
    x = vectors_of(sentence)  # (n, d_model)
    weight = ((x @ w_q) @ (x @ w_k).T / d_model**0.5).softmax(dim=-1)  # (query, key)
    named = zip(words(sentence), weight[3], strict=True)
    print("  ".join(f"{word} {each:.2f}" for word, each in named))

# %% [markdown]
# Each word gets the same weight in both, so the weighted sum of the values is the same.
#
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
# Where can a position get in? The weight that a query gives to a key comes out of a short chain with three doors.
# After the weights, a side door leads to the values; only Shaw uses it:

# %% jupyter={"source_hidden": true}
figures.entrances()

# %% [markdown]
# What a remedy tells matters more than its door. Some tell a word its **position**: "you are word 7". Others tell a
# pair of words its **distance**: "this key is two before you".
#
# Positions count from 0. The query is at position $i$, the key at $j$, and the distance is $j - i$: negative for keys
# in the past.

# %% [markdown]
# ## 3 Positions: add a vector to the word
#
# ### Learned
#
# The first wish is the easiest. Keep a second table, with one vector $p_i$ for each position, and add row $i$ to word
# $i$.
#
# $$x_i \leftarrow x_i + p_i$$
#
# On paper: if *orcs* is $(1, 0)$, $p_1 = (0, 2)$ and $p_5 = (0, 4)$, then *orcs* at position 1 is $(1, 2)$ and at
# position 5 it is $(1, 4)$. Training fills the table. (Gehring et al. 2017; BERT and GPT-2 do this.)
#
# Does it tell the two kinds of orcs apart? And after one backward pass on a sentence of 6 words, which rows of a table
# of 12 have a gradient to learn from?

# %%
torch.manual_seed(0)
table = torch.randn(12, d_model, requires_grad=True)  # (position, d_model)


def attend_learned(sentence):
    x = vectors_of(sentence)  # (n, d_model)
    return attend(x + table[: len(x)])  # (n, d_model)


attacker, attacked = attend_learned(ours)[1], attend_learned(exchanged)[5]  # (d_model,)
print(f"the orcs now differ by {(attacker - attacked).norm() / attacker.norm():.0%}")
attend_learned(ours).sum().backward()
learning = table.grad.norm(dim=-1).nonzero().flatten()  # (rows that learn,)
print("rows with a gradient:", learning.tolist(), "of 12")


# %% [markdown]
# A row learns only from sentences long enough to reach it; here rows 6 and up keep their random start values. And for
# the 13th word there is no row at all. This will matter in section 6.
#
# ### Sinusoidal
#
# Can a formula fill the table, so that every position has a row? Think of a clock with many hands, numbered
# $c = 0, 1, 2, \dots$, each slower than the one before. All hands together tell the time. Each hand is two numbers, its
# sine and its cosine. If one hand turns by 1 radian per position and another by 0.1, position 3 is
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
# **Two rows reveal their distance.** Why pairs of sine *and* cosine? Take the dot product of two rows. Each hand
# contributes $\sin a \sin b + \cos a \cos b = \cos(a - b)$, so
#
# $$\text{PE}(i) \cdot \text{PE}(j) = \sum_c \cos\big((j - i)\,\omega_c\big).$$
#
# The positions are gone; only the distance is left. (Three before and three after give the same number, since
# $\cos(-a) = \cos(a)$. To tell before from after, the projections must help.)
#
# This needs *one* frequency for both columns of a pair. (Some slides misprint the formula, with the exponent $(2c+1)/d$
# for the cosine. Then the sum is no longer a cosine of the distance.)
#
# The picture shows the first 40 rows on the left, with red for $+1$, white for 0 and blue for $-1$. The hands on its
# right side have hardly moved. The dot products of all pairs of rows are on the right (dark is large): every diagonal
# has one color, since it has one distance.

# %% jupyter={"source_hidden": true}
figures.sinusoids(position[:40])


# %% [markdown]
# **A shift is a rotation** (second reading). A hand that turns by 1 radian per position gets from position 3 to 5, or
# from 7 to 9, by the same turn of 2. In general, from position $i$ to $i + s$ each hand turns by $a = s\,\omega_c$,
# wherever it was:
#
# $$\begin{pmatrix} \sin(i\,\omega_c + a) \\ \cos(i\,\omega_c + a) \end{pmatrix} =
# \begin{pmatrix} \cos a & \sin a \\ -\sin a & \cos a \end{pmatrix}
# \begin{pmatrix} \sin i\,\omega_c \\ \cos i\,\omega_c \end{pmatrix}$$
#
# The matrix does not know $i$. So one matrix $R_s$, with these small rotations along its diagonal, shifts all
# positions, and the authors hoped that a model could therefore learn to attend by distance.

# %%
def shift_matrix(s, d):
    a = s * frequency(d)  # (d / 2,): how far each hand turns
    entries = [a.cos(), a.sin(), -a.sin(), a.cos()]
    blocks = torch.stack(entries, dim=-1).reshape(-1, 2, 2)  # (d / 2, 2, 2)
    return torch.block_diag(*blocks)  # (d, d)


turned = position[:-3] @ shift_matrix(3, d_model).T  # (position, d_model)
prove_equal(turned, position[3:], tolerance=1e-4, what="Turned by 3 and shifted by 3")

# %% [markdown]
# **Keep the words louder than their positions.** Every row of the table has the length $\sqrt{d_\text{model}/2}$, since
# each hand contributes $\sin^2 + \cos^2 = 1$. With $d_\text{model} = 64$ its square is 32. Word vectors often start
# with variance $1/d_\text{model}$, so their squared length is about 1: 1/33 of the two squares together, or 3%.
# Multiplied by $\sqrt{d_\text{model}}$ its squared length is 64, and its part is 64/96, or 67%. Vaswani et al. (§3.4)
# do this. They give no reason; this is a common explanation. Section 6 tests it.
#
# **Add, or concatenate?** (Second reading.) A position could also be put next to its word: $[x_i; p_i]$. A projection
# follows, whose matrix has an upper half $W_x$ for the word and a lower half $W_p$ for the position: it makes $x_i W_x
# + p_i W_p$. So adding is the special case $W_x = W_p$. (A position need not be a number along a line: Wang et al. 2019
# encode where a word is in the syntax tree.)

# %% [markdown]
# ## 4 Distances: change the score
#
# Positions are distinct, but "two before me" has to be learned from them. A distance can be stated directly, where
# query and key meet: in the score.
#
# ### A number for each distance: ALiBi and T5
#
# Press et al. (2022) subtract a penalty from the score, and it grows with the distance. Say three keys score 2 each, at
# the distances $-2$, $-1$ and 0. With a penalty of ½ per step the scores become 1, 1.5 and 2: distant keys fade.
#
# $$\text{score}_{ij} = \frac{q_i \cdot k_j}{\sqrt{d_k}} - \text{slope}_t\,|j - i| \qquad\qquad
# \text{slope}_t = 2^{-8t/h}, \quad t = 1 \dots h$$
#
# Each of the $h$ heads, numbered by $t$, has its own fixed slope (the paper's $m$); nothing is learned. To see the
# slopes alone, make all words alike and look at the last of 40 queries.

# %% tags=["recorded"]
def alibi(n, heads):
    slope = 2.0 ** (-8 / heads * torch.arange(1, heads + 1))  # (heads,)
    distance = torch.arange(n)[None, :] - torch.arange(n)[:, None]  # (query, key)
    return -slope[:, None, None] * distance.abs()  # (heads, query, key)


alike = torch.zeros(1, 4, 40, 8)  # (batch, heads, n, d_k)
bias = alibi(40, 4)[None]  # (1, heads, query, key)
_, weight = attention(alike, alike, alike, causal(), bias=bias, return_weights=True)

# %% [markdown]
# Each head has its curve:

# %% jupyter={"source_hidden": true}
last = weight[0, :, -1]  # (heads, key): the last query's weights
plots.lines(
    {f"slope 1/{4**head}": (range(-39, 1), last[head - 1].tolist()) for head in (1, 2, 3, 4)},
    title="With all words alike, steep heads look near, flat ones everywhere", xlabel="distance of the key",
    ylabel="attention weight", alt="Four curves of attention weight over distances from -39 to 0. The steepest head "
    "puts nearly all weight on the last dozen words; the flattest spreads it almost evenly.")


# %% [markdown]
# T5 (Raffel et al. 2020, §2.1) also adds a number, but *learns* it: one for each head and each **bucket** of
# distances. Near distances have a bucket each; far ones share buckets, which get wider with the distance.
#
# ### A vector for each distance: Shaw
#
# A number says how much a distance counts, whatever the query is. Shaw et al. (2018) let the query decide. For each
# distance they learn two vectors: $a^K$, which is added to the key, and $a^V$, which is added to the value.
#
# $$\text{score}_{ij} = \frac{q_i \cdot (k_j + a^K_{ij})}{\sqrt{d_k}} \qquad\qquad
# \text{out}_i = \sum_j \alpha_{ij}\,(v_j + a^V_{ij})$$
#
# Here $\alpha_{ij}$ is the softmax of $\text{score}_{ij}$ over $j$. Take the query $(1, 0)$ and two equal keys. If the
# distance $-1$ has $a^K = (2, 0)$ and the distance $-2$ has $(0, 2)$, this query prefers the nearer key, since that
# product is larger by 2. The query $(0, 1)$ prefers the other. And $a^V$ tells the output how far each value has come.
#
# **Which row?** A text of $n$ words has $2n - 1$ distances. To keep the tables small, the distance $j - i$ is *clipped*
# to $-k \dots k$. Then $k$ is added, because rows count from 0. With $k = 3$, distance $-5$ is clipped to $-3$, which
# is row 0. (This $k$ is the paper's letter, and has nothing to do with the keys $k_j$.) For five words, a row for each
# query and a column for each key, these are the buckets:
#
# $$\begin{pmatrix} 3 & 4 & 5 & 6 & 6 \\ 2 & 3 & 4 & 5 & 6 \\ 1 & 2 & 3 & 4 & 5 \\ 0 & 1 & 2 & 3 & 4 \\
# 0 & 0 & 1 & 2 & 3 \end{pmatrix}$$
#
# First we write the equation as it is:

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
# That makes a vector for every pair of positions. For music of 2,048 events with $d$ = 512, the keys of all heads
# together take 8.6 GB in every layer. So multiply out:
#
# $$q_i \cdot (k_j + a^K_{ij}) = q_i \cdot k_j + q_i \cdot a^K_{ij}$$
#
# The first part is ordinary attention. The second has only $2k + 1$ different vectors! Let each query meet each of them
# once: a small matrix, one column per bucket. Then each pair *picks* its number from its query's row.
#
# In the picture $k = 1$, so there are three buckets: 0 for the past, 1 for the word itself, 2 for the future. The
# number **12** means query 1, bucket 2. The last query has the buckets 0, 0, 0, 1, and picks 30, 30, 30, 31:

# %% jupyter={"source_hidden": true}
figures.picking()

# %% [markdown]
# The picking is one call: `gather(-1, bucket)` reads, in each row, the columns that `bucket` names. The result is a
# **bias** on the scores, and `attention` takes one. (`expand` repeats the buckets for each batch and head, without
# copying them.)

# %% tags=["recorded"]
def shaw_bias(q, a_k):  # (batch, heads, n, d_k); (bucket, d_k)
    n, rows = q.shape[-2], len(a_k)
    bucket = buckets(n, rows // 2).expand(*q.shape[:-1], n)  # (…, query, key)
    by_bucket = q @ a_k.T / q.shape[-1] ** 0.5  # (…, query, bucket)
    return by_bucket.gather(-1, bucket)  # (…, query, key)


# %% [markdown]
# The values go the other way. First *add up* the weights that fall into the same bucket. If the last query of the
# picture has the weights 0.1, 0.2, 0.3, 0.4, its buckets get $0.1 + 0.2 + 0.3 = 0.6$, 0.4 and 0. Then each sum meets
# its vector once: $0.6\,a^V_0 + 0.4\,a^V_1$. `scatter_add` is `gather` in reverse: it adds each number to the column
# that its bucket names.

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
# Huang et al. (2019) did not clip: they learned a vector for *every* distance to the past, and let a reshape do the
# picking. [Lesson 22](22_music.ipynb), section 4, builds this **skewing**.

# %% [markdown]
# ## 5 Rotary: turn the queries and the keys
#
# Sinusoids hold a distance in their dot product, but they are *added* to words, so words and positions get mixed in all
# later products. Su et al. (2021) keep the good part. Take neighboring entries of the query, $(q_0, q_1)$, $(q_2, q_3)$
# and so on, as arrows in a plane. Turn each by the position times $\omega_c$. Do the same to keys.
#
# On paper, with one pair and a quarter turn per position: the query $(1, 0)$ at position 3 has turned three times and
# is $(0, -1)$. The key $(1, 0)$ at position 2 is $(-1, 0)$. Their product is 0. At positions 7 and 6 it is 0 again; at
# positions 3 and 3, or 6 and 6, it is 1.
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
# Here is one vector at six positions:

# %% jupyter={"source_hidden": true}
same = torch.tensor([1.0, 0.0] * 8).expand(6, 16)  # (n, d_k): one vector at six positions
figures.turns(
    rearrange(rotate(same), "n (pair two) -> pair n two", two=2)[:4],
    title="Six positions, the first four of eight pairs: each turns at its own speed",
    alt="Four circles with arrows for positions 0 to 5. In the first the arrow goes most of the way around; in the "
    "second a quarter; in the last it hardly moves.")

# %% [markdown]
# The product of two arrows depends on the angle between them. If the query turns by $i\,\omega_c$ and the key by
# $j\,\omega_c$, that angle changes by $(j - i)\,\omega_c$. Write $R_i$ for the whole turn at position $i$, all pairs at
# once. Turning back is $R_i^\top$, so
#
# $$(R_i\, q) \cdot (R_j\, k) = q^\top R_i^\top R_j\, k = q \cdot (R_{j-i}\, k).$$
#
# The score depends on words and distance, never on the position. Measure it: the key is always 3 before the query, at
# 100 different positions.

# %%
torch.manual_seed(0)
one_q, one_k = torch.randn(2, 16)  # (d_k,) each
turned_q = rotate(one_q.expand(103, 16))  # (position, d_k)
turned_k = rotate(one_k.expand(103, 16))  # (position, d_k)
score = turned_q @ turned_k.T  # (query's position, key's position)
print("key 3 before the query at positions 3, 50 and 102: ",
      *(f"{score[i, i - 3]:7.3f}" for i in (3, 50, 102)))
print("query at position 50, keys at distances -3, 0 and 3:",
      *(f"{score[50, 50 + distance]:7.3f}" for distance in (-3, 0, 3)))
prove_equal(score.diagonal(-3), score[50, 47].expand(100), what="Scores everywhere")
prove_equal(turned_q.norm(dim=-1), one_q.norm().expand(103), what="Lengths")

# %% [markdown]
# One distance, one score, at all positions. Other distances have other scores, and before is not after. Nothing is
# learned, nothing is added to the words, and lengths stay the same. Most of today's language models use it.
#
# Turn them yourself. The circles are the first four of the eight pairs of this query and key; the curve is their score
# over all distances. Move one position, then both together: what stays the same? (If you see no sliders, run the cell.)

# %%
explore.rotary(one_q, one_k)


# %% [markdown]
# Any two entries can make a pair, as long as queries and keys agree. The paper pairs neighbors; many checkpoints pair
# entries across the halves. Lesson 16 turns one layout into the other.

# %% [markdown]
# ## 6 See it work: which one reads best?
#
# We have met six remedies. Let them compete at one task, guessing the next letter of real English text, after each of
# 32 letters. The text is all English sentences in one long line. Every character, blanks included, counts as a letter
# and becomes a number; rare ones become 0. A batch is cut from it anywhere.

# %% tags=["recorded"]
N, LONG, d_model, heads = 32, 128, 64, 4  # train on 32 letters, test on 128
train_text = " ".join(english for _, english in texts.train).lower()
test_text = " ".join(english for _, english in texts.test).lower()[:25_600]
letters = sorted(each for each in set(train_text) if train_text.count(each) >= 100)
ids = {letter: id for id, letter in enumerate(letters, start=1)}
V = len(letters) + 1


def encode(text):
    return torch.tensor([ids.get(letter, 0) for letter in text])  # (letter,)


train, test = encode(train_text), encode(test_text)
print(f"{len(train):,} letters to train on, {len(test):,} to test on, {V} different")


def some_text():
    start = torch.randint(len(train) - N, (16, 1))  # (batch, 1): anywhere
    window = train[start + torch.arange(N + 1)]  # (batch, N + 1)
    return window[:, :-1], window[:, 1:]  # (batch, N) each: letters, the next ones


# %% [markdown]
# The model, which we call a *reader*, is small: one attention layer, and a little network that reads both what
# attention found and the letter itself. Each door of section 2 is a method.

# %% jupyter={"source_hidden": true}
figures.reader()

# %% [markdown]
# By itself, it keeps all doors shut:

# %% tags=["recorded"]
class Doors(nn.Module):
    mask = causal()

    def add(self, x):  # first door: the word vectors
        return x

    def turn(self, x):  # second door: queries and keys
        return x

    def bias(self, q):  # third door: the scores
        return None

    def side(self, weight):  # side door: the values
        return 0


# %% [markdown]
# The reader itself is the gray boxes of the picture. (With this pattern, `rearrange` cuts one wide projection into
# q, k and v, and each into heads.)

# %% tags=["recorded"]
class Reader(Doors):
    def __init__(self):
        super().__init__()
        self.word = nn.Parameter(torch.randn(V, d_model) * d_model**-0.5)
        self.project = nn.Linear(d_model, 3 * d_model)
        self.read = nn.Sequential(
            nn.Linear(2 * d_model, 4 * d_model), nn.ReLU(), nn.Linear(4 * d_model, V))

    def forward(self, ids):  # (batch, n)
        x = self.add(d_model**0.5 * self.word[ids])  # (batch, n, d_model)
        pattern = "b n (three h d) -> three b h n d"
        q, k, v = rearrange(self.project(x), pattern, three=3, h=heads)
        found, self.weight = attention(self.turn(q), self.turn(k), v, self.mask,
                                       bias=self.bias(q), return_weights=True)
        found = rearrange(found + self.side(self.weight), "b h n d -> b n (h d)")
        return self.read(torch.cat([x, found], dim=-1))  # (batch, n, V)


# %% [markdown]
# All readers are trained the same way: same text, same batches, 300 steps.

# %% tags=["recorded"]
def fit(kind, seed, steps=300):
    torch.manual_seed(seed)
    model = kind()
    torch.manual_seed(seed)  # the same batches for all kinds
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
# The test keeps the loss of each position, to show where a reader fails. The simplest **baseline** is a table of letter
# pairs: how often does one letter follow another? A reader that does no better has learned nothing from the letters
# before the last. A table of triples looks up the last two, one of fours the last three; the last table is counted on
# $300 \cdot 16 \cdot 32 = 153{,}600$ letters, as many as a reader is trained on. (The loss is the cross-entropy
# in *nats*; guessing blindly among 43 characters would cost $\ln 43 = 3.8$ of them.)

# %% tags=["recorded"]
from txcourse.tables import loss_of_table


@torch.no_grad()
def loss_by_position(model, n):
    windows = test[: (len(test) - 1) // n * n + 1]  # as many whole windows as there are
    logits, truth = model(windows[:-1].view(-1, n)), windows[1:].view(-1, n)
    return F.cross_entropy(logits.mT, truth, reduction="none").mean(dim=0)  # (n,)


tables = {"table of pairs": loss_of_table(train, test, last=1),
          "table of triples": loss_of_table(train, test, last=2),
          "table of fours": loss_of_table(train, test, last=3),
          "fours, 153,600 letters": loss_of_table(train[:153_600], test, last=3)}

# %% [markdown]
# **Break it: no positions.** Start with all doors shut. Does such a reader beat the tables?

# %% tags=["nbval-ignore-output"]
torch.set_num_threads(1)  # small models: more threads only wait
blind = loss_by_position(fit(Reader, seed=0), N).mean().item()
expect("Loss without positions", blind, 2.25, 2.35)
print("  ".join(f"{name}: {loss:.2f}" for name, loss in tables.items()))

# %% [markdown]
# It sees which letters have occurred, not where, and is only a little better than the table of pairs. (The causal mask
# tells a little about positions. Deeper models learn to use it: Haviv et al. 2022,
# [arXiv:2203.16634](https://arxiv.org/abs/2203.16634).)
#
# Now open one door after the other: each remedy overrides the method of its door. First `add` and `turn`:

# %% tags=["recorded"]
class Learned(Reader):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(LONG, d_model))

    def add(self, x):
        return x + self.table[: x.shape[1]]


class Sinusoidal(Reader):
    def add(self, x):
        return x + sinusoidal(x.shape[1], d_model)


class Rotating(Reader):
    def turn(self, x):
        return rotate(x)


# %% [markdown]
# Then `bias`, with a penalty, and with a number for each distance: T5's idea with Shaw's buckets.

# %% tags=["recorded"]
class Alibi(Reader):
    def bias(self, q):
        return alibi(q.shape[-2], heads)[None]  # (1, heads, query, key)


class OneNumber(Reader):
    def __init__(self, k=8):
        super().__init__()
        self.k, self.number = k, nn.Parameter(torch.zeros(heads, 2 * k + 1))

    def bias(self, q):
        return self.number[:, buckets(q.shape[-2], self.k)][None]


# %% [markdown]
# And Shaw's, at `bias` and `side`. *Unclipped*, with a row for each distance, is there to compare.

# %% tags=["recorded"]
class Shaw(Reader):
    def __init__(self, k=8):
        super().__init__()
        self.a_k = nn.Parameter(torch.randn(2 * k + 1, d_model // heads) * 0.25)
        self.a_v = nn.Parameter(torch.randn(2 * k + 1, d_model // heads) * 0.25)

    def bias(self, q):
        return shaw_bias(q, self.a_k)

    def side(self, weight):
        return shaw_values(weight, self.a_v)


class Unclipped(Shaw):
    def __init__(self):
        super().__init__(k=LONG - 1)


# %% [markdown]
# Together with the shut one, that makes eight readers:

# %% tags=["recorded"]
kinds = {"learned": Learned, "sinusoidal": Sinusoidal, "ALiBi": Alibi,
         "a number": OneNumber, "Shaw": Shaw, "unclipped": Unclipped,
         "rotary": Rotating, "none": Reader}

# %% [markdown]
# Which of them will do best?

# %%
predict("positions", "Which readers will have the lowest loss on 32 letters?",
        "learned and sinusoidal: they know positions",
        "ALiBi: it fades with the distance",
        "Shaw, unclipped and rotary: a query asks for distances",
        "all alike, even none")

# %% [markdown]
# We train one of each here. One seed could be luck, so `python data/positions.py 0 1 2` trained each with three seeds,
# running these cells. If even the worst run of Shaw, unclipped and rotary beats the best of *learned* and *sinusoidal*,
# we call it more than chance.

# %% tags=["nbval-ignore-output"]
from txlib.paths import DATA

models = {name: fit(kind, seed=0) for name, kind in progress(kinds.items(), "readers")}
print(", ".join(f"{name} {loss_by_position(model, N).mean():.2f}"
                for name, model in models.items()))
recorded = json.loads((DATA / "positions.json").read_text())
short = {name: [run["short"] for run in recorded[name].values()] for name in kinds}
distances = short["Shaw"] + short["unclipped"] + short["rotary"]
gap = min(short["learned"] + short["sinusoidal"]) - max(distances)
expect("Best run with positions minus worst of the three", gap, 0, 0.3)
predicted("positions", "Shaw, unclipped and rotary: a query asks for distances")

# %% [markdown]
# Each dot is the mean of three seeds, and its line goes from the best to the worst. The tables are the last
# four rows; the dotted line marks the table of pairs:

# %% jupyter={"source_hidden": true}
ranked = dict(sorted(short.items(), key=lambda row: sum(row[1])))
figures.seeds(
    ranked | {name: [loss] for name, loss in tables.items()},
    groups={"knows positions": ["learned", "sinusoidal"],
            "knows distances": ["Shaw", "unclipped", "rotary", "a number", "ALiBi"],
            "no reader: counted": list(tables)},
    xlabel="loss on new text (nats per letter)", mark=tables["table of pairs"],
    title="Any position beats none; the best three readers know distances")

# %% [markdown]
# Any position helps a lot; Shaw, unclipped and rotary help most. Our explanation: "the letter before me" is one rule at
# every position, and they need to learn it only once. (That cannot be all: *a number* knows distances as well, and is
# behind both that know positions. We have not tested why.) The best come close to the table of triples. Both tables of
# fours are ahead, even the one counted on no more letters than a reader saw. So if only the loss mattered, one would
# count. These readers are small and briefly trained; they are here to be compared with each other.
#
# What do the heads look at? The figure shows the mean weight that each head gives to each distance, on new text:

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
weights = {}
for name in ("learned", "ALiBi", "Shaw", "rotary"):
    models[name](test[: 200 * N].view(-1, N))
    weights[name] = models[name].weight.detach()  # (batch, heads, query, key)
figures.weight_by_distance(
    weights, title="Most heads look one letter back; ALiBi's cannot single it out",
    alt="Mean attention weight of four heads each of four readers, by distances 0 to -8. Learned, Shaw and rotary: the "
    "largest weight is on distance -1; for the last two, much of the rest is on -2. ALiBi: weight is spread over all "
    "distances; only the steepest head prefers -1.")

# %% [markdown]
# ALiBi does worse, and the picture suggests why: its slopes are gentle, and even the steepest head spreads its weight;
# none can single out "one back" or "two back". If so, steeper slopes must help. And section 3 asked whether positions
# drown a word without its $\sqrt{d_\text{model}}$. Without it, two things change: the word's part of the sum falls
# from 64/96 to 1/33, and the sum gets shorter, from 96 to 33 (squared). So two more controls change one of them each:
# *drowned* has the part 1/33 at the old length, *shorter* the part 64/96 at the new one. All four are in the record:

# %% tags=["recorded"]
class SteepAlibi(Alibi):
    def bias(self, q):
        return 16 * super().bias(q)


class NotScaled(Sinusoidal):
    def add(self, x):
        return super().add(x / d_model**0.5)


class Drowned(NotScaled):
    def add(self, x):
        return (96 / 33) ** 0.5 * super().add(x)


class Shorter(Sinusoidal):
    def add(self, x):
        return super().add(x) / (96 / 33) ** 0.5


controls = {"ALiBi, 16 × as steep": SteepAlibi, "sinusoidal, not scaled": NotScaled,
            "sinusoidal, drowned": Drowned, "sinusoidal, shorter": Shorter}

# %% [markdown]
# Does the loss fall in the first, and rise in the second, with every seed? And which explains that rise,
# *drowned* or *shorter*?

# %%
for name in ("ALiBi", "ALiBi, 16 × as steep", "sinusoidal", "sinusoidal, not scaled",
             "sinusoidal, drowned", "sinusoidal, shorter"):
    losses = [run["short"] for run in recorded[name].values()]
    mean = sum(losses) / len(losses)
    print(f"{name:>22}", *(f"{loss:.3f}" for loss in losses), f"  mean {mean:.3f}")

# %% [markdown]
# It does, with every seed. With steep slopes ALiBi is as good as rotary: the gentle slopes kept it from the nearest
# letters. Without its factor the sinusoidal reader loses 0.17 on average. Drowned at full length it loses 0.14, shorter
# less than 0.05. So the length matters a little, but positions do drown a word that is not scaled. ALiBi was made for
# another purpose, which comes next.
#
# ### Longer than it was trained for
#
# All readers were trained on 32 letters. Now they read 128. Which of them will do as well beyond 32 as before?

# %%
predict("longer", "From position 32 on, which readers keep the loss they had before?",
        "sinusoidal: it has a row for every position", "all that know distances",
        "Shaw and ALiBi", "none of them")

# %% [markdown]
# We take the mean over the three recorded seeds:

# %%
def over_seeds(name, what):
    runs = [run[what] for run in recorded[name].values()]
    return torch.tensor(runs).mean(dim=0)  # (16,): means of 8 positions each


long = {name: over_seeds(name, "long") for name in kinds}  # (16,) each
predicted("longer", "Shaw and ALiBi")

# %% [markdown]
# Each point of a curve is the mean of 8 positions, and the dotted level is the table of pairs:

# %% jupyter={"source_hidden": true}
figures.beyond(
    {"knows positions, or none": {name: long[name] for name in ("learned", "sinusoidal", "none")},
     "knows distances": {name: long[name] for name in ("rotary", "a number", "unclipped", "ALiBi", "Shaw")}},
    trained=N, level=tables["table of pairs"],
    title="Of the seven with an order, only Shaw and ALiBi stay flat beyond 32")

# %% [markdown]
# Three of the eight end up clearly worse than the table of pairs.
#
# - **None** ends level with that table. It knows no positions, so none can be new to it; its slow rise began within
#   the trained length.
# - **Learned** fails at once: the rows from position 32 on have never been trained (section 3).
# - **Sinusoidal** also fails at once. Its rows exist, but the model has never met their slow hands at those angles.
# - **Rotary** fails more slowly, but ends worst of all. At position 99 there are distances down to −99. None beyond
#   −31 occurred in training, and they turn the slow pairs to angles never seen.
# - **Unclipped** has the same problem, but milder: its rows for far distances still have their random start values.
# - **Shaw** stays flat. Unclipped differs from it in nothing else, so it is the clipping: every distance beyond 8 uses
#   a row that was trained often.
# - **ALiBi** stays flat, and this is what it was made for: what is far away fades out. *A number* is clipped as well,
#   but nothing in it fades: the more far letters there are, the more of the weight they take. (Why Shaw, which also
#   shares a row among all far letters, does not suffer from them, we have not tested.)
#
# So our explanation has three causes: new distances (rotary, unclipped), new positions (learned, sinusoidal), and too
# many letters (*a number*). One intervention separates the positions from the other two. Let a mask show every letter
# only the last 32, itself included. Then no distance is new, and there are not too many letters. The positions are new.

# %%
predict("window", "With a window, which read on from 32 as they did just before?",
        "learned and sinusoidal", "unclipped, rotary and a number", "all five",
        "none of the five")

# %% [markdown]
# The same models, with another mask. First our own rotary reader, then the record:

# %% tags=["nbval-ignore-output"]
models["rotary"].mask = causal() & sliding_window(N - 1)  # 32 letters
rescued = loss_by_position(models["rotary"], LONG)[N:].mean().item()
expect("Our rotary reader's loss beyond 32, with the window", rescued, 1.85, 2.15)
for name in ("learned", "sinusoidal", "unclipped", "rotary", "a number"):
    window = over_seeds(name, "window")  # (16,)
    print(f"{name:>11}: loss at 24–31 {long[name][3]:.2f}, beyond",
          f"{long[name][4:].mean():.2f}, and {window[4:].mean():.2f} with the window")
predicted("window", "unclipped, rotary and a number",
          "For them nothing is new; for the others the positions still are.")

# %% [markdown]
# The window fixes rotary, unclipped and *a number*, and leaves the two that know positions broken. (Press et al. 2022,
# figure 1, show such failures of large sinusoidal and rotary models.) So why is rotary everywhere? It reads well
# within its length, it needs no table, and the rest can be repaired by more training, with lower frequencies (lesson
# 17).
#
# ### All on one page
#
# The last three columns are the wishes of section 1:
#
# | | enters | knows | numbers to learn | distinct | distance | longer |
# | --- | --- | --- | --- | --- | --- | --- |
# | learned | added to words | positions | max_length · d_model | yes | no | no: at max_length it ends |
# | sinusoidal | added to words | positions | none | yes | in its products | no |
# | ALiBi | score | distances | none | yes, with a causal mask | yes, but only fading | yes |
# | T5 | score | bucketed distances | h · buckets | near ones | yes | with a window (*a number*) |
# | Shaw | score and value | clipped distances | 2 (2k + 1) · d_k per layer | near ones | yes | yes |
# | skewed (lesson 22) | score | past distances | h · max_length · d_k per layer | yes | yes | with a window |
# | rotary | query and key | distances | none | yes | yes | with a window |

# %% [markdown]
# ## 7 Open the library, and count
#
# Everything you built is in `txlib`. Rotary is a module, ALiBi and T5's numbers are *biases*, and Shaw's is a whole
# attention mechanism, since its vectors also meet the values. Here is the core of two of them:

# %%
from txcourse.lesson import show_source
from txlib.attention import AlibiBias, DenseAttention, ShawAttention
from txlib.layers import Rotary
from txlib.layers import sinusoidal as library_sinusoidal

show_source(library_sinusoidal, Rotary.turn)

# %% [markdown]
# You will recognize your own lines. New are layouts (`"concatenated"` puts all sines first, as the paper's released
# code does; `"half"` pairs entries across the halves), an `offset` for writing with a cache (lesson 13), and `scaling`
# for longer texts (lesson 17). Do yours and the library's give the same numbers?

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
# What does it cost? Adding or turning takes a few $n\,d$ operations, little compared with attention's $4n^2d$. Per
# head, ALiBi adds $n^2$ numbers, and Shaw's bias is a matrix product with $2k + 1$ columns. Only the naive form is
# expensive, in memory: $n^2 d_k$ numbers instead of $n^2$.

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
# That is the far *future*, as if the distance were $i - j$. The distance is key minus query, $1 - 7 = -6$.
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
# <details><summary>B. Values are never compared with each other; the positions would stay in the output</summary>
#
# Right. In a score the two turns meet, and only their difference is left. A value is passed on as it is, and would
# arrive turned by its absolute position.
# </details>
# <details><summary>C. Values have no pairs of dimensions</summary>
#
# Any even width has them. Nothing forbids it; it just does not do what you want.
# </details>
#
# **3. Sinusoidal positions exist for every position. Why did our reader fail from position 32 on?**
#
# <details><summary>A. The formula repeats itself after 32 positions</summary>
#
# The slowest hand needs more than 40,000 positions for one round. No two rows are alike.
# </details>
# <details><summary>B. A formula for the input is no training for the layers that read it</summary>
#
# Right. The rows are new to the projections, and what those make of them is not defined by anything they have learned.
# </details>
# <details><summary>C. The word vectors were not scaled</summary>
#
# They were, in this run. And without the scale it is worse even within the first 32 positions.
# </details>
#
# **4. You decode word by word with a cache and rotary positions, and turn every new query and key as position 0. What
# happens?**
#
# <details><summary>A. An error</summary>
#
# All shapes fit. Lesson 13 tries it.
# </details>
# <details><summary>B. All scores are as if all words were at the same position</summary>
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
# - Learned and sinusoidal vectors tell each word its position; the sinusoids hold distances in their dot products.
#   Words not scaled by $\sqrt{d_\text{model}}$ drown in them.
# - ALiBi fades with distance, T5 learns a number and Shaw a vector for each distance. Rotary gets distances by turning
#   queries and keys.
# - Reading letters, Shaw and rotary beat added positions; so does ALiBi, if its slopes are steep. Beyond the trained
#   length only Shaw (clipped) and ALiBi (fading) read as well as before; a window rescues the other distances, but not
#   positions.
# - The naive Shaw form needs $n^2 d_k$ numbers per head; picking avoids that.
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
