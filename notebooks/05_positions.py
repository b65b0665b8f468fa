# %% [markdown] lesson={"part": "I Attention", "builds": "sinusoidal, learned, relative, rotary, ALiBi"}
# # 05 · Where am I? Positions
#
# **After this lesson you will be able to**
#
# - show that attention alone does not see the order of words;
# - build the six usual remedies: learned, sinusoidal, Shaw's relative positions, the skewing trick, rotary, ALiBi;
# - say for each whether it knows *places* or *distances*, and prove it with numbers;
# - predict, and measure, what each does on a text longer than any it was trained on.
#
# **You need** lessons 03 and 04, sine and cosine. **It takes** about 90 minutes to read and try; all cells together run
# in about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: attention reads a bag of words
#
# A *bag of words* says which words a text has, and how often, but not in which order. We will see that attention reads
# nothing more. What the lesson needs for it is bare torch, and what you built before: attention, masks and heads.

# %%
import re

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from txlib import plots
from txlib.attention import MultiHeadAttention, attention, causal, sliding_window
from txlib.data import translation
from txcourse import explore, figures
from txcourse.lesson import expect, progress, prove_equal, show_source

# %% [markdown]
# Two real sentences from games, as good as opposite in meaning, with exactly the same words:

# %%
def words(sentence):
    return re.findall(r"\w+", sentence.lower())


texts = translation("games")
english = [sentence for _, sentence in texts.train]
won = next(s for s in english if "castle" in s and s.startswith("Your soldiers defeated the enemy"))
lost = next(s for s in english if "castle" in s and s.startswith("The enemy defeated your"))
print(won, lost, sep="\n")
print("same words:", sorted(words(won)) == sorted(words(lost)))

# %% [markdown]
# Give every word a random vector, and let each sentence attend to itself. The weights need no training to make the
# point, so the projections are random too. What does attention find for the word *enemy* in the two sentences?

# %%
torch.manual_seed(0)
d_model = 64
vocabulary = sorted({word for sentence in english for word in words(sentence)})
# word → (d_model,)
vector = dict(zip(vocabulary, torch.randn(len(vocabulary), d_model), strict=True))
w_q, w_k, w_v = torch.randn(3, d_model, d_model) * d_model**-0.5   # (3, d_model, d_model)


def attend(x):                                                     # (n, d_model)
    # (batch, heads, n, d_model): one batch, one head
    q, k, v = ((x @ w)[None, None] for w in (w_q, w_k, w_v))
    return attention(q, k, v)[0, 0]                                # (n, d_model)


def found(sentence, word):
    x = torch.stack([vector[w] for w in words(sentence)])          # (n, d_model)
    return attend(x)[words(sentence).index(word)]                  # (d_model,)


prove_equal(found(won, "enemy"), found(lost, "enemy"),
    what="The enemy who won and the enemy who lost")

# %% [markdown]
# The same vector, to the last digit that counts. No later layer can tell the two apart, because nothing is left to tell
# them by. Is this a curiosity of one pair? Take 300 real sentences, shuffle the words of each, and compare. If
# $P$ shuffles rows, we will find
#
# $$\text{attend}(P x) = P\,\text{attend}(x).$$
#
# The output is shuffled in the same way, and otherwise unchanged. This is called *permutation equivariance*. The proof
# takes two lines. Let $S$ be the scores of $x$, and $V = xW_V$. Then
#
# $$S' = (PxW_Q)(PxW_K)^\top = P S P^\top \qquad\qquad
# \text{softmax}(P S P^\top)\, P V = P\,\text{softmax}(S)\, P^\top P V = P\,\text{attend}(x),$$
#
# because the softmax of a row does not care in which order the row's numbers stand, and $P^\top P = 1$. On the real
# sentences:

# %%
gap = 0.0
for sentence in english[:300]:
    x = torch.stack([vector[w] for w in words(sentence)])          # (n, d_model)
    shuffle = torch.randperm(len(x))                               # (n,)
    gap = max(gap, (attend(x[shuffle]) - attend(x)[shuffle]).abs().max().item())
print("300 shuffled sentences; largest difference below 0.00001:", gap < 1e-5)

# %% [markdown]
# Here it is in numbers, on the sentence that we follow through lessons 03 to 08. Exchange its two nouns, and look at
# the row of *attacked*: the weight that it gives to each word.

# %%
def weights_of(sentence, word):
    x = torch.stack([vector[w] for w in words(sentence)])          # (n, d_model)
    q, k = x @ w_q, x @ w_k                                        # (n, d_model) each
    weight = (q @ k.T / d_model**0.5).softmax(dim=-1)              # (query, key)
    return weight[words(sentence).index(word)]                     # (key,)


followed = "The orcs have attacked the humans.", "The humans have attacked the orcs."
for sentence in followed:
    named = zip(words(sentence), weights_of(sentence, "attacked"), strict=True)
    print("  ".join(f"{word} {weight:.2f}" for word, weight in named))

# %% [markdown]
# Each word gets the same weight in both, wherever it stands, and so the sum is the same. Who attacked whom is lost.
# Keep these two rows in mind.
#
# Does it matter for real text? Count the sentences of our data that become another real sentence, of other
# word order, when their words are rearranged.

# %%
bags = {}
for order in {tuple(words(sentence)) for sentence in english}:
    bags.setdefault(tuple(sorted(order)), []).append(" ".join(order))
twins = sorted(sorted(orders) for orders in bags.values() if len(orders) > 1)
print(len(twins), "bags of words with more than one order, for example:")
for number in (1, 4, 9):
    print("   ", " / ".join(twins[number]))

# %% [markdown]
# ## 2 The idea in one picture
#
# The weight that a query gives to a key comes out of a short chain: word vector, query and key, score, weight. Position
# can enter at three places, and each remedy of this lesson uses one of these doors. The names are new; each gets a
# section of its own. (Shaw's has a side door, too: it also adds to the values.)

# %%
figures.entrances(
    title="Position can enter through three doors, and Shaw's side door",
    alt="A chain of five boxes: word vector, query and key, score, weight, average of values. "
    "Learned and sinusoidal positions add a vector between the first two. Rotary turns query and "
    "key. Shaw, skewed and ALiBi change the score. Shaw also adds to the values, at the last box.",
)

# %% [markdown]
# There is a second difference, and it decides more than the door. Some remedies tell a word its **place**: "you are
# word 7". Others tell a pair its **distance**: "this key stands two before you". Language cares mostly about distance:
# an adjective stands before its noun, wherever the two are.
#
# Throughout, positions count from 0, $i$ is the position of the query and $j$ that of the key. The distance is always
# $j - i$: negative for keys in the past. (In a table of places alone, $i$ is the place and $c$ counts pairs of
# dimensions; the paper calls them *pos* and *i*.)

# %% [markdown]
# ## 3 Learned: a vector for each place
#
# The simplest remedy. Beside the table of word vectors, keep a second table with one vector $p_i$ for each position,
# add row $i$ to word $i$, and let training find out what to put there:
#
# $$x_i \leftarrow x_i + p_i$$
#
# (Gehring et al. 2017; BERT and GPT-2 do this, and for some years most systems did.) Does this tell our two enemies
# apart?

# %%
torch.manual_seed(0)
max_length = 12
table = torch.randn(max_length, d_model, requires_grad=True)       # (position, d_model)


def attend_learned(sentence):
    x = torch.stack([vector[w] for w in words(sentence)])          # (n, d_model)
    return attend(x + table[: len(x)])                             # (n, d_model)


enemy = [attend_learned(s)[words(s).index("enemy")] for s in (won, lost)]      # two of (d_model,)
apart = (enemy[0] - enemy[1]).norm() / enemy[0].norm()
print(f"the two enemies now differ by {apart:.0%} of their length")

# %% [markdown]
# Problem solved? Here is the catch. The sentence has 8 words. After one step of training, which rows can have learned
# anything?

# %%
attend_learned(won).sum().backward()
learning = table.grad.norm(dim=-1).nonzero().flatten()             # (rows that learn,)
print("rows with a gradient:", learning.tolist(), "of", max_length)

# %% [markdown]
# And the sentence that we follow? Without positions, each word found the same in both orders. Now:

# %%
with torch.no_grad():
    one, other = (dict(zip(words(s), attend_learned(s), strict=True)) for s in followed)
for word in ("orcs", "have", "attacked", "humans"):                # each found a vector of (d_model,)
    change = (one[word] - other[word]).norm() / one[word].norm()
    print(f"{word:8} what it finds differs by {change:.0%} of its length")

# %% [markdown]
# These weights are random, and they happen to make *attacked* look mostly at the first *the*, so it changes least. But
# there is a difference now, and training can enlarge it.
#
# A row of the table learns only from sentences long enough to reach it. Were all sentences of 8 words, row 8 and later
# would keep their random start values. And for the 13th word of a sentence there is no row at all. Remember this for
# section 9.

# %% [markdown]
# ## 4 Sinusoidal: places from a formula
#
# Can a formula fill the table, so that every position has a row? Vaswani et al. (2017, §3.5) take waves of falling
# frequency:
#
# $$\text{PE}(i, 2c) = \sin(i\,\omega_c) \qquad \text{PE}(i, 2c+1) = \cos(i\,\omega_c)
# \qquad \omega_c = 10000^{-2c/d_\text{model}}$$
#
# Think of a clock with many hands, numbered $c = 0, 1, 2, \dots$ The first hand turns fast, about once in 6 positions.
# With 64 dimensions there are 32 hands, and the last turns once in about 47,000. Each hand is two numbers, its sine and
# its cosine, and all hands together say what time it is.
#
# In the picture red is $+1$, white 0 and blue $-1$. On the right the hands have hardly left their start in 40
# positions: their sines are still white, their cosines still red. That makes the stripes.


# %%
def frequency(d):
    return 10000 ** (-torch.arange(0, d, 2) / d)                 # (d / 2,): ω of each hand, falling


def sinusoidal(n, d):
    angle = torch.arange(n)[:, None] * frequency(d)                # (n, d / 2)
    # (n, d): sin, cos, sin, cos, …
    return torch.stack([angle.sin(), angle.cos()], dim=-1).reshape(n, d)


position = sinusoidal(60, d_model)                                 # (position, d_model)
plots.heatmap(
    position[:40], title="Fast waves on the left, slow ones on the right", xlabel="dimension",
    ylabel="position", numbers=False, diverging=True, size=0.08, bar="entry",
    alt="A table of 40 positions by 64 dimensions. The left columns swing quickly between -1 and "
    "1; to the right they become slower until they hardly change.",
)

# %% [markdown]
# ### Two places know their distance
#
# Why pairs of sine *and* cosine? Multiply two rows of the table. Each hand contributes
# $\sin a \sin b + \cos a \cos b = \cos(a - b)$, so
#
# $$\text{PE}(i) \cdot \text{PE}(j) = \sum_c \cos\big((j - i)\,\omega_c\big).$$
#
# The places are gone. Only the distance is left. Look: along each diagonal of the table of all dot products, every
# number is the same. (Dark is large. Three before and three after give the same number, since
# $\cos(-a) = \cos(a)$. The side has to come from the projections, and the next part says how.)

# %%
dot = position @ position.T                                        # (position, position)
spread = max(dot.diagonal(s).std().item() for s in range(-50, 51))
print("largest spread along a diagonal below 0.0001:", spread < 1e-4)
plots.heatmap(
    dot[:40, :40], title="The dot product depends on the distance alone", xlabel="place $j$",
    ylabel="place $i$", numbers=False, size=0.1, bar="dot product",
    alt="A 40 by 40 table of dot products, darkest on the main diagonal. Each diagonal has one "
    "colour; they fade in waves with the distance from the main diagonal.",
)

# %% [markdown]
# It hangs on both columns of a pair having *one* frequency. The formula is sometimes misprinted, with the exponent
# $(2c+1)/d$ for the cosine (so in slides on the Universal Transformer). Try it:

# %%
# (position, d_model)
column = torch.arange(60)[:, None] * 10000 ** (-torch.arange(d_model) / d_model)
misprint = torch.where(torch.arange(d_model) % 2 == 0, column.sin(), column.cos())
wrong = misprint @ misprint.T                                      # (position, position)
for name, each in {"pairs of one frequency": dot, "each column its own": wrong}.items():
    print(f"{name}: dot products at distance 3 spread by {each.diagonal(3).std():.4f}")

# %% [markdown]
# ### A shift is a rotation
#
# To move from position $i$ to $i + s$, every hand turns by a fixed angle $a = s\,\omega_c$, wherever it stood:
#
# $$\begin{pmatrix} \sin(i\,\omega_c + a) \\ \cos(i\,\omega_c + a) \end{pmatrix} =
# \begin{pmatrix} \cos a & \sin a \\ -\sin a & \cos a \end{pmatrix}
# \begin{pmatrix} \sin i\,\omega_c \\ \cos i\,\omega_c \end{pmatrix}$$
#
# The matrix does not know $i$. So one matrix $R_s$ does it for all positions: these small rotations along its diagonal.
# This is why the authors hoped that a model could learn to attend by distance: "three words back" is one linear map,
# and the projections to queries and keys are linear maps.

# %%
def shift_matrix(s, d):
    a = s * frequency(d)                                         # (d / 2,): how far each hand turns
    # (d / 2, 2, 2)
    block = torch.stack([a.cos(), a.sin(), -a.sin(), a.cos()], dim=-1).reshape(-1, 2, 2)
    return torch.block_diag(*block)                                # (d, d)


turned = position[:-3] @ shift_matrix(3, d_model).T                # (position, d_model)
prove_equal(turned, position[3:], tolerance=1e-4, what="Turned by 3 and shifted by 3")

# %% [markdown]
# ### What is odd breaks
#
# A hand needs two numbers, so the width must be even. With an odd one, there is nowhere to put the last cosine:

# %%
try:
    sinusoidal(4, 5)
except RuntimeError as error:
    print(error)

# %% [markdown]
# True, but not helpful: the message does not name the cause. Wait for the library's.
#
# ### Keep the words louder than their places
#
# Every row of the table has the length $\sqrt{d_\text{model}/2}$, since each hand contributes $\sin^2 + \cos^2 = 1$.
# Word vectors are often initialized with variance $1/d_\text{model}$, so that their length is about 1. Add the two,
# and the place drowns the word. Vaswani et al. (§3.4) multiply word vectors by
# $\sqrt{d_\text{model}}$. They give no reason; this one is ours.

# %%
torch.manual_seed(0)
for d in (64, 512):
    word, place = torch.randn(1000, d) * d**-0.5, sinusoidal(1000, d)          # (1000, d) each
    for name, scaled in (("forgotten", word), ("scaled by √d", word * d**0.5)):
        share = scaled.square().sum() / (scaled + place).square().sum()
        print(f"d_model {d:3}, {name:12}: the word makes up {share:5.1%}",
              "of the squared length of the sum")

# %% [markdown]
# You will see in section 9 what it costs to forget this.
#
# ### Add, or put beside?
#
# Adding mixes two things in the same dimensions. Why not *concatenate* them, $[x_i; p_i]$? Multiply that by a matrix
# whose upper half is $W_x$ and whose lower half is $W_p$:
#
# $$[x_i; p_i] \begin{pmatrix} W_x \\ W_p \end{pmatrix} = x_i W_x + p_i W_p$$
#
# So it is again a sum, only that places get a projection of their own. Adding is the special case $W_p = W_x$, and
# saves half of the matrix.

# %%
torch.manual_seed(0)
x = torch.stack([vector[w] for w in words(followed[0])])           # (n, d_model)
w_x, w_p = torch.randn(2, d_model, d_model)                        # (2, d_model, d_model)
beside = torch.cat([x, position[: len(x)]], dim=-1) @ torch.cat([w_x, w_p])        # (n, d_model)
prove_equal(beside, x @ w_x + position[: len(x)] @ w_p, tolerance=1e-4,
    what="Put beside, and two projections added")
prove_equal((x + position[: len(x)]) @ w_x, x @ w_x + position[: len(x)] @ w_x, tolerance=1e-4,
            what="Added, and one projection for both")

# %% [markdown]
# Concatenation would be the safer choice in a narrow model. In a wide one, words and places find room to keep out of
# each other's way, and nearly everybody adds. Nor must a place be a number along a line: Wang et al. (2019) encode
# where a word stands in the sentence's syntax tree.

# %% [markdown]
# ## 5 Shaw: a vector for each distance
#
# If distance is what counts, why not say it directly? Shaw et al. (2018) keep a learned vector $a^K$ for each
# distance, and add it to the key; and a second vector $a^V$, added to the value:
#
# $$\text{score}_{ij} = \frac{q_i \cdot (k_j + a^K_{ij})}{\sqrt{d_k}} \qquad\qquad
# \text{out}_i = \sum_j \alpha_{ij}\,(v_j + a^V_{ij})$$
#
# Here $\alpha_{ij}$ is the softmax of $\text{score}_{ij}$ over $j$. So the score can say "I like what stands just
# before me", and the output can say "what I found stood just before me".
#
# **Which row?** There are $2n - 1$ distances. To keep the tables small, far distances share a row: the distance $j - i$
# is *clipped* to $-k \dots k$. Then $k$ is added, because rows count from 0. (This $k$ is the paper's letter for the
# farthest distance that counts. It has nothing to do with the keys $k_j$.)

# %%
def buckets(n, k):
    position = torch.arange(n)                                     # (n,)
    distance = position[None, :] - position[:, None]               # (query, key): j − i
    return distance.clamp(-k, k) + k                               # (query, key): 0 … 2k


plots.heatmap(
    buckets(8, 3).float(), rows=list("01234567"), columns=list("01234567"), size=0.45,
    title="k = 3: far keys share a row of the table",
    alt="An 8 by 8 table of row numbers, equal along each diagonal: 3 on the main diagonal, 4, 5, "
    "6 to its right, 2, 1, 0 to its left. All keys 3 or more before the query have 0, all 3 "
    "or more after it have 6.",
)

# %% [markdown]
# **First the naive way**, which is the equation as it stands. Picking the row for every pair makes a tensor of shape
# (query, key, d_k), once for keys and once for values.


# %%
def shaw_naive(q, k, v, a_k, a_v):
    bucket = buckets(q.shape[-2], len(a_k) // 2)                   # (query, key)
    key = k[..., None, :, :] + a_k[bucket]                         # (..., query, key, d_k)
    value = v[..., None, :, :] + a_v[bucket]                       # (..., query, key, d_k)
    score = torch.einsum("...id,...ijd->...ij", q, key) / q.shape[-1] ** 0.5   # (..., query, key)
    return torch.einsum("...ij,...ijd->...id", score.softmax(dim=-1), value)   # (..., query, d_k)


# %% [markdown]
# **Then the efficient way**, in two halves. First the score. Multiply out:
#
# $$q_i \cdot (k_j + a^K_{ij}) = q_i \cdot k_j + q_i \cdot a^K_{ij}$$
#
# The first part is ordinary attention. The second seems to need a vector for each pair. But there are only $2k + 1$
# different vectors! Let each query meet each of them once. That is a small matrix, one column per bucket. Then each
# pair *picks* its number from its query's row. In the picture $k = 1$, so there are three buckets: 0 for the past, 1
# for the word itself, 2 for the future. The number **32** means: query 3, bucket 2. (Queries count from 1 here.)

# %%
bucket = buckets(4, 1)                                             # (query, key)
by_bucket = 10 * torch.arange(1, 5)[:, None] + torch.arange(3)     # (query, bucket)
picked = by_bucket.gather(1, bucket)                               # (query, key)
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
# The picking is one call: `gather(1, bucket)` reads, in each row, the columns that `bucket` names. What it gives is a
# *bias* on the scores, and `attention` takes one. (`expand` below repeats the bucket matrix for each batch and head,
# without copying it, because `gather` wants both of one shape.)

# %%
def shaw_bias(q, a_k):
    scores_by_bucket = q @ a_k.T / q.shape[-1] ** 0.5              # (batch, heads, query, bucket)
    bucket = buckets(q.shape[-2], len(a_k) // 2)                   # (query, key)
    # (batch, heads, query, key)
    return scores_by_bucket.gather(-1, bucket.expand(*q.shape[:-1], -1))

# %% [markdown]
# Now the values, where it goes the other way. $\sum_j \alpha_{ij}\, a^V_{ij}$ again holds few different vectors, so
# first *add up* the weights that fall into the same bucket, then let each sum meet its vector once. In the picture
# above, read from right to left: the last row's three weights of bucket 0 become one number. `scatter_add` is `gather`
# backwards: it adds each number to the column that its bucket names.

# %%
def shaw_values(weight, a_v):                                    # weight (batch, heads, query, key)
    bucket = buckets(weight.shape[-1], len(a_v) // 2).expand(*weight.shape[:-1], -1)
    empty = weight.new_zeros(*weight.shape[:-1], len(a_v))         # (batch, heads, query, bucket)
    return empty.scatter_add(-1, bucket, weight) @ a_v             # (batch, heads, query, d_k)


even = torch.full((4, 4), 0.25)                            # four queries that look everywhere alike
print(shaw_values(even, torch.eye(3)))                        # a row per query, a column per bucket

# %% [markdown]
# The last query has three quarters of its weight in the past. Put both halves around ordinary attention, and compare
# with the naive form:

# %%
def shaw(q, k, v, a_k, a_v, mask=None):
    out, weight = attention(q, k, v, mask, bias=shaw_bias(q, a_k), return_weights=True)
    return out + shaw_values(weight, a_v)                          # (batch, heads, query, d_k)


torch.manual_seed(0)
q, k, v = torch.randn(3, 2, 4, 10, 16)                             # (batch, heads, n, d_k) each
a_k, a_v = torch.randn(2, 2 * 3 + 1, 16)                           # (bucket, d_k) each
prove_equal(shaw(q, k, v, a_k, a_v), shaw_naive(q, k, v, a_k, a_v), what="Naive and efficient")

# %% [markdown]
# ## 6 Skewing: the same scores without picking
#
# Music has long memories. Huang et al. (2019) wanted no clipping: a vector $e_{j-i}$ for every distance to the past,
# $-(n-1) \dots 0$, and for each head:
#
# $$\text{score}_{ij} = \frac{q_i \cdot k_j + q_i \cdot e_{j-i}}{\sqrt{d_k}} \qquad j \le i$$
#
# Picking needs an index for every pair, and the naive way even a vector for every pair. They found that a matrix
# product and a *reshape* do it.
#
# Multiply all queries with all distance vectors, the farthest first. This gives a matrix by (query, distance). But
# attention needs it by (query, key). Watch four queries. The number **32** means: query 3, 2 places back, so distance
# −2. (Queries and keys are counted from 1 in this picture only, so that each number has two digits.)

# %%
n = 4
# (query, distance): farthest first
by_distance = 10 * torch.arange(1, n + 1)[:, None] + torch.arange(n).flip(0)
padded = F.pad(by_distance, (1, 0), value=-1)      # (query, 1 + distance); -1 marks the padding
reshaped = padded.reshape(n + 1, n)                    # (1 + query, key): read row by row, cut anew
dropped = reshaped[1:]                                             # (query, key)
steps = {"by distance": by_distance, "1 pad left": padded, "2 reshape": reshaped,
    "3 drop first row": dropped}
colours = {name: torch.where(matrix < 0, -1, matrix % 10) for name, matrix in steps.items()}
colours["3 drop first row"][torch.ones(n, n).triu(1).bool()] = -2  # keys in the future: left over
figures.rearranging(
    steps, colours, title="Pad, reshape, drop: every score lands under its key",
    alt="Four matrices. First, columns of equal distance 3, 2, 1, 0. Then a column of zeros on "
    "the left. Then the same numbers read row by row into 5 rows of 4. Then without the first "
    "row: equal distances stand on diagonals, distance 0 on the main diagonal; above it are "
    "left-over numbers.",
)

# %% [markdown]
# In the last matrix, row 3 reads 32, 31, 30: key 1 is two back, key 2 one back, key 3 is the query itself. Why does it
# work? The padded rows have 5 numbers, the new ones 4. So each new row begins one place earlier in its padded row than
# the new row before it: with 10, then with 21, with 32, with 43.
#
# Above the diagonal stand left-overs from other rows. That is no harm *if* a causal mask hides the future, and wrong
# without one. (The exercise has a version for both sides.) The test below picks one by one, and compares where the mask
# looks.


# %%
def skew(by_distance):
    *rest, n, _ = by_distance.shape
    padded = F.pad(by_distance, (1, 0))                            # (..., query, 1 + distance)
    return padded.reshape(*rest, n + 1, n)[..., 1:, :]             # (..., query, key)

# %% [markdown]
# And the slow way, as the equation says it, one query and one key at a time:

# %%
e = torch.randn(4, 10, 16)                             # (heads, distance, d_k): distances −9 … 0
skewed = skew(q @ e.mT)                                # (batch, heads, query, key)
picked = torch.zeros_like(skewed)
for i in range(10):
    for j in range(i + 1):                             # the past, and the word itself
        row = 9 + (j - i)                              # distance −9 is row 0, distance 0 is row 9
        picked[:, :, i, j] = (q[:, :, i] * e[:, row]).sum(dim=-1)      # (batch, heads)
seen = torch.ones(10, 10).tril().bool()                            # (query, key)
prove_equal(skewed[..., seen], picked[..., seen],
            what="Skewed and picked one by one, where the causal mask looks,")

# %% [markdown]
# ## 7 Rotary: turn the queries and the keys
#
# Sinusoidal positions hold a distance in their dot product, but they are *added* to words, and words and places get
# mixed in all later products. Su et al. (2021) keep the good part. Take neighbouring entries of the query, $(q_0,
# q_1)$, $(q_2, q_3)$ and so on, as arrows in a plane. Turn each by position times $\omega_c$. Do the same to keys.
#
# $$\begin{pmatrix} q'_{2c} \\ q'_{2c+1} \end{pmatrix} =
# \begin{pmatrix} \cos i\omega_c & -\sin i\omega_c \\ \sin i\omega_c & \cos i\omega_c \end{pmatrix}
# \begin{pmatrix} q_{2c} \\ q_{2c+1} \end{pmatrix}$$
#
# The frequencies are the old ones, with $d_k$ in place of $d_\text{model}$, because this happens in each head.
#
# (For the picture, `rearrange` reshapes and transposes by names: `"n (pair two) -> pair n two"` cuts the last axis into
# pairs of two, and puts the pairs first.)


# %%
def rotate(x):
    angle = torch.arange(x.shape[-2])[:, None] * frequency(x.shape[-1])        # (n, d_k / 2)
    even, odd = x[..., 0::2], x[..., 1::2]         # (..., n, d_k / 2): the two entries of each pair
    turned = [even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()]
    return torch.stack(turned, dim=-1).flatten(-2)         # (..., n, d_k): pairs side by side again


same = torch.tensor([1.0, 0.0] * 8).expand(6, 16)            # (n, d_k): one vector at six positions
figures.turns(
    rearrange(rotate(same), "n (pair two) -> pair n two", two=2)[:4],
    title="Six positions, the first four of eight pairs: each turns at its own speed",
    alt="Four circles with arrows for positions 0 to 5. In the first the arrow goes most of the "
    "way round; in the second a quarter; in the last it hardly moves.",
)

# %% [markdown]
# When you compare two arrows, only the angle between them counts. If the query has turned by $i\,\omega_c$ and the key
# by $j\,\omega_c$, that angle has changed by $(j - i)\,\omega_c$. Write $R_i$ for the whole turn at position $i$, all
# pairs at once. Turning back is $R_i^\top$, so
#
# $$(R_i\, q) \cdot (R_j\, k) = q^\top R_i^\top R_j\, k = q \cdot (R_{j-i}\, k).$$
#
# The score depends on words and distance, never on the place. We measure: one query and one key, the key always 3
# before the query, at 100 different places. Three of them are printed.

# %%
torch.manual_seed(0)
one_q, one_k = torch.randn(2, 16)                                  # (d_k,) each
# (place, d_k) each
turned_q, turned_k = rotate(one_q.expand(103, 16)), rotate(one_k.expand(103, 16))
score = turned_q @ turned_k.T                                      # (query's place, key's place)
print("key 3 before the query at places 3, 50 and 102: ",
      *(f"{score[place, place - 3]:7.3f}" for place in (3, 50, 102)))
print("query at place 50, keys at distances -3, 0 and 3:",
      *(f"{score[50, 50 + distance]:7.3f}" for distance in (-3, 0, 3)))
same_distance = score.diagonal(-3)                                # (100,): all places from 3 to 102
prove_equal(same_distance, score[50, 47].expand(100), what="The scores at all 100 places")
prove_equal(turned_q.norm(dim=-1), one_q.norm().expand(103),
    what="Lengths before and after turning")

# %% [markdown]
# One distance, one score, at all places. Other distances have other scores, and before is not after. Nothing is
# learned, nothing is added to the words, and lengths stay. Rotary is what most of today's language models use.
#
# Turn them yourself. The circles are the first four of the eight pairs of the same query and key, the curve below is
# their score over all distances. Move one position, then both together: which arrows turn, and what stays? (If you see
# no sliders, run the cell.)

# %%
explore.rotary(one_q, one_k)

# %% [markdown]
# The first pair turns by one radian per position, the last hardly at all. But in each pair, the angle between query and
# key changes only with their distance, and so does its product.
#
# ### Two layouts, one idea
#
# Which two entries make a pair does not matter, as long as queries and keys agree. The paper pairs neighbours: (0, 1),
# (2, 3), … and so did Llama's own code. Files converted for `transformers` pair across the halves: (0, $d_k/2$),
# (1, $d_k/2 + 1$), … One is the other with its dimensions reordered. Mix them up when loading a model, and it speaks
# nonsense without an error.


# %%
def rotate_half(x):
    angle = torch.arange(x.shape[-2])[:, None] * frequency(x.shape[-1])        # (n, d_k / 2)
    first, second = x.chunk(2, dim=-1)                             # (..., n, d_k / 2) each
    turned = [first * angle.cos() - second * angle.sin(),
        first * angle.sin() + second * angle.cos()]
    return torch.cat(turned, dim=-1)                               # (..., n, d_k)


# (d_k,): evens first, then odds
order = torch.cat([torch.arange(0, 16, 2), torch.arange(1, 16, 2)])
prove_equal(rotate_half(q[..., order]), rotate(q)[..., order],
    what="Half layout on reordered dimensions, and ours")
prove_equal(rotate_half(q[..., order]) @ rotate_half(k[..., order]).mT, rotate(q) @ rotate(k).mT,
    what="Their scores")
print("without reordering, the scores differ by up to",
      f"{(rotate_half(q) @ rotate_half(k).mT - rotate(q) @ rotate(k).mT).abs().max():.1f}")

# %% [markdown]
# ## 8 ALiBi: farther costs more
#
# The last one is the simplest. Press et al. (2022) subtract a penalty from the score that grows with the distance:
#
# $$\text{score}_{ij} = \frac{q_i \cdot k_j}{\sqrt{d_k}} - \text{slope}_t\,|j - i| \qquad\qquad
# \text{slope}_t = 2^{-8t/h}, \quad t = 1 \dots h$$
#
# Each of the $h$ heads has its own fixed slope (the paper's $m$). A steep head sees little but the last dozen
# words, a flat one sees far. (That is for $h$ a power of two; the library handles others.) To see the slopes alone,
# make all words alike, and look at the weights of the last of 40 queries.


# %%
def alibi(n, heads):
    slope = 2.0 ** (-8 / heads * torch.arange(1, heads + 1))       # (heads,)
    distance = torch.arange(n)[None, :] - torch.arange(n)[:, None]             # (query, key)
    return -slope[:, None, None] * distance.abs()                  # (heads, query, key)


nothing = torch.zeros(1, 4, 40, 8)                         # (batch, heads, n, d_k): all words alike
_, weight = attention(nothing, nothing, nothing, causal(), bias=alibi(40, 4)[None],
    return_weights=True)
last = weight[0, :, -1]                                     # (heads, key): the last query's weights
plots.lines(
    {f"slope 1/{4**head}": (range(-39, 1), last[head - 1].tolist()) for head in (1, 2, 3, 4)},
    title="With all words alike, steep heads look near, flat ones everywhere",
    xlabel="distance of the key",
    ylabel="attention weight",
    alt="Four curves of attention weight over distances from -39 to 0. The steepest head puts "
    "nearly all weight on the last dozen words; the flattest spreads it almost evenly.",
)

# %% [markdown]
# ## 9 See it work: which one reads best?
#
# Now all of them do the same job: guess the next letter of real English text. Order matters here as nowhere else.
# The model sees 32 letters, and is asked for the next one after each of them. It is as small as it can be: one
# attention layer, whose result is put beside the letter itself, and a little network that reads the two.
#
# First the text: all English sentences in one long line, letters as numbers, rare signs as 0.

# %%
N, LONG, d_model, heads = 32, 128, 64, 4                    # train on 32 letters, later test on 128
train, test = (" ".join(s for _, s in split).lower() for split in (texts.train, texts.test))
letters = sorted(letter for letter in set(train) if train.count(letter) >= 100)
ids = {letter: id for id, letter in enumerate(letters, start=1)}
train, test = (torch.tensor([ids.get(letter, 0) for letter in text])
               for text in (train, test[:40_000]))
V = len(letters) + 1
print(f"{len(train):,} letters to train on, {len(test):,} to test on, {V} different ones")


# %% [markdown]
# The model. `place` is the first door, `look` holds the other two, and `forward` knows nothing about positions. (Every
# model has all tables, and trains only those it uses. The learned one and the skewed one have 128 rows, because we will
# test on 128 letters. With the pattern `"b n (three h d) -> three b h n d"`, `rearrange` cuts one wide projection into
# q, k and v, and each into heads.)

# %%
class Reader(nn.Module):
    def __init__(self, kind, scale=d_model**0.5):
        super().__init__()
        self.kind, self.scale, self.mask = kind, scale, causal()
        self.word = nn.Parameter(torch.randn(V, d_model) * d_model**-0.5)
        self.project = nn.Linear(d_model, 3 * d_model)
        wide = 4 * d_model
        self.read = nn.Sequential(nn.Linear(2 * d_model, wide), nn.ReLU(), nn.Linear(wide, V))
        self.table = nn.Parameter(torch.randn(LONG, d_model))      # learned: (position, d_model)
        self.a = nn.Parameter(torch.randn(2, 2 * 8 + 1, 16) * 0.25)  # Shaw, k = 8: (2, bucket, d_k)
        self.e = nn.Parameter(torch.randn(heads, LONG, 16) * 0.25)  # skewed: (heads, distance, d_k)

    def forward(self, ids):                                        # (batch, n)
        x = place(self, self.scale * self.word[ids])               # (batch, n, d_model)
        q, k, v = rearrange(self.project(x), "b n (three h d) -> three b h n d", three=3, h=heads)
        found = rearrange(look(self, q, k, v), "b h n d -> b n (h d)")       # (batch, n, d_model)
        return self.read(torch.cat([x, found], dim=-1))            # (batch, n, V)

# %% [markdown]
# Now the doors. Each kind of position is a line or two, made of the functions that you have built. Only `"none"` uses
# nothing.

# %%
def place(model, x):                                               # (batch, n, d_model)
    if model.kind == "learned":
        return x + model.table[: x.shape[1]]
    return x + sinusoidal(x.shape[1], d_model) if model.kind == "sinusoidal" else x


def look(model, q, k, v):                                          # (batch, heads, n, d_k) each
    n, bias = q.shape[-2], None
    if model.kind == "Shaw":
        return shaw(q, k, v, *model.a, model.mask)
    if model.kind == "skewed":
        bias = skew(q @ model.e[:, -n:].mT) / q.shape[-1] ** 0.5   # (batch, heads, query, key)
    if model.kind == "ALiBi":
        bias = alibi(n, heads)[None]                               # (1, heads, query, key)
    if model.kind == "rotary":
        q, k = rotate(q), rotate(k)
    return attention(q, k, v, model.mask, bias=bias)               # (batch, heads, n, d_k)


# %% [markdown]
# The training is the same for all: same text, same batches, same steps. Only the word `kind` differs. Each kind is
# trained from three seeds, so that we see what is chance.

# %%
def fit(kind, seed, steps=300, **options):
    torch.manual_seed(seed)
    model = Reader(kind, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    # slower and slower, down to 0
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for _ in range(steps):
        start = torch.randint(len(train) - N, (16, 1))            # (batch, 1): anywhere in the text
        window = train[start + torch.arange(N + 1)]                # (batch, N + 1)
        loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model


# %% [markdown]
# The loss is kept for each place of the window, because we will want to see where a reader fails.

# %%
@torch.no_grad()
def loss_by_position(model, n):
    windows = test[: (len(test) - 1) // n * n + 1]              # as many whole windows as there are
    guess = model(windows[:-1].view(-1, n))                        # (window, n, V)
    return F.cross_entropy(guess.mT, windows[1:].view(-1, n), reduction="none").mean(dim=0)   # (n,)


# %% [markdown]
# What should we compare with? A table of letter pairs: how often does each letter follow each other one? It needs no
# attention, only the last letter. Whoever is no better than that has learned nothing from the letters before. The loss
# is the cross-entropy, in *nats*, which means with the natural logarithm. Guessing blindly among 43 signs would cost
# $\ln 43 = 3.8$ of them.

# %% tags=["nbval-ignore-output"]
one = torch.tensor(1.0)
count = torch.full((V, V), 0.1).index_put((train[:-1], train[1:]), one, accumulate=True)
chance = count / count.sum(dim=-1, keepdim=True)                   # (letter, next letter)
pairs = -chance.log()[test[:-1], test[1:]].mean().item()
print(f"loss of the table of pairs: {pairs:.2f} nats per letter")

# %% [markdown]
# Now train. Decide first: rank *none*, *learned*, *sinusoidal*, *ALiBi*, *Shaw*, *skewed* and *rotary*. Which will come
# out lowest, and which no better than the table of pairs? (The answer is folded away below.)

# %% tags=["nbval-ignore-output"]
torch.set_num_threads(1)                             # for models this small, more threads only wait
kinds, SEEDS = ["none", "learned", "sinusoidal", "ALiBi", "Shaw", "skewed", "rotary"], range(3)
models = {}
cases = [(kind, seed) for kind in kinds for seed in SEEDS]
for kind, seed in progress(cases, "training 21 readers"):
    models[kind, seed] = fit(kind, seed)
short = {kind: [loss_by_position(models[kind, seed], N).mean().item() for seed in SEEDS]
         for kind in kinds}

# %% [markdown]
# Have you decided? Then unfold the result (a click on the three dots).

# %% tags=["nbval-ignore-output", "hide-output"] jupyter={"outputs_hidden": true}
plots.bars(
    {"pairs of letters": pairs} | {kind: sum(losses) / 3 for kind, losses in short.items()},
    xlabel="loss on new text (nats per letter), mean of three seeds", title="Seven readers",
    alt="; ".join(f"{kind}: " + ", ".join(f"{loss:.2f}" for loss in losses)
                  for kind, losses in short.items()),
)

# %% [markdown]
# Are your numbers in the usual range? And is the order more than chance? It is if even the worst seed of one group is
# better than the best seed of the other. We compare the three that know distances with the two that know places.

# %% tags=["nbval-ignore-output", "hide-output"] jupyter={"outputs_hidden": true}
for kind, losses in short.items():
    print(f"{kind:>11}", *(f"{loss:.3f}" for loss in losses))
distances = [loss for kind in ("Shaw", "skewed", "rotary") for loss in short[kind]]      # nine runs
places = [loss for kind in ("learned", "sinusoidal") for loss in short[kind]]            # six runs
expect("Mean loss without positions", sum(short["none"]) / 3, 2.2, 2.4)
expect("Mean loss with distances", sum(distances) / 9, 1.85, 2.1)
expect("Mean loss with places", sum(places) / 6, 1.95, 2.2)
expect("Best run with places minus worst with distances", min(places) - max(distances), 0.0, 0.3)

# %% [markdown]
# **Break it: no positions.** The reader without positions is hardly better than the table of pairs. It sees which
# letters have occurred, not where. Any position helps a lot. Shaw, skewed and rotary, which know distances, help most:
# "the letter before me" is the same rule at every place, and they need to learn it only once.
#
# (The causal mask itself tells a little: a letter with much to look at must stand late. Deeper models without positions
# learn to use that, see Haviv et al. 2022, [arXiv:2203.16634](https://arxiv.org/abs/2203.16634).)
#
# ALiBi does worse here, and you can see why in its picture. It prefers near letters, but its fixed slopes are
# gentle, and one layer cannot single out "exactly two back". It was made for another purpose, which comes next.
#
# **Break it: forget the scale.** Here is the sinusoidal reader again, without the $\sqrt{d_\text{model}}$ of section 4.

# %% tags=["nbval-ignore-output"]
forgotten = []
for seed in progress(SEEDS, "training three more"):
    forgotten.append(loss_by_position(fit("sinusoidal", seed, scale=1.0), N).mean().item())
print("sinusoidal with the scale:", *(f"{loss:.2f}" for loss in short["sinusoidal"]))
print("           without:       ", *(f"{loss:.2f}" for loss in forgotten))
cost = sum(forgotten) / 3 - sum(short["sinusoidal"]) / 3
expect("What it costs to forget the scale", cost, 0.05, 0.5)

# %% [markdown]
# Nothing crashed. The model just reads worse, because it has to grow its word vectors against the noise of the places
# first. Most mistakes with positions look like this.
#
# ### Longer than ever before
#
# All readers were trained on 32 letters. Now they read 128, and we look at the loss place by place, as a mean over the
# three seeds. Decide first, and write it down: which of the seven will hold beyond place 32, which will fail at once,
# which slowly? The result is folded away again.

# %% tags=["nbval-ignore-output"]
def over_seeds(kind):
    return torch.stack([loss_by_position(models[kind, seed], LONG) for seed in SEEDS]).mean(dim=0)


long = {kind: over_seeds(kind) for kind in kinds}                  # (LONG,) each

# %% [markdown]
# A point of a curve is the mean of the 8 places that end there. The dotted line is where training ended.

# %% tags=["nbval-ignore-output", "hide-output"] jupyter={"outputs_hidden": true}
smooth = {kind: loss.unfold(0, 8, 4).mean(dim=-1).tolist() for kind, loss in long.items()}
plots.lines(
    {kind: (range(8, LONG + 1, 4), loss) for kind, loss in smooth.items()},
    mark=("trained to here", N), title="Who reads on beyond place 32?", xlabel="place in the text",
    ylabel="loss (nats), mean of 8 places", height=4.4,
    alt="Loss by place. Up to 32 and from 97 to 128: " + "; ".join(
        f"{kind} {loss[:N].mean():.2f} and {loss[96:].mean():.2f}" for kind, loss in long.items()),
)

# %% [markdown]
# Now the same in numbers, one column for each 32 places:

# %% tags=["nbval-ignore-output", "hide-output"] jupyter={"outputs_hidden": true}
print(f"{'places':>11}   1–32  33–64  65–96  97–128")
for kind, loss in long.items():
    print(f"{kind:>11}", *(f"{part.mean():6.2f}" for part in loss.split(N)))
later = {kind: (loss[N:].mean() - loss[:N].mean()).item() for kind, loss in long.items()}
for kind, low, high in (("Shaw", -0.1, 0.1), ("ALiBi", -0.1, 0.1), ("learned", 0.3, 1.6),
                        ("rotary", 0.3, 2.0)):
    expect(f"What {kind} loses beyond 32", later[kind], low, high)

# %% [markdown]
# Read the table slowly; it holds a surprise. (Places are counted from 1 here, as in the figure.) Three of the seven
# end up worse than the table of pairs, which costs 2.38.
#
# - **None** falls back to just that table. It knows no places that could be new to it.
# - **Learned** fails at once, as predicted: the rows of the 33rd place and all later ones have never been trained.
# - **Sinusoidal** fails at once, too. Its rows exist, but the model has never met their slow hands at those angles.
#   A formula gives a *value* for every place. It does not give the model *practice* with it.
# - **Rotary** knows distances only, and still it fails: more slowly, but in the end worst of all. At place 100 there
#   are distances down to −99. None beyond −31 occurred in training, and they turn the slow pairs to angles never seen.
# - **Skewed** has the same problem, but milder: its rows for far distances still have their random start values.
# - **Shaw** stays flat, thanks to clipping: every distance beyond 8 uses a row that was trained often.
# - **ALiBi** stays flat, and this is what it was made for: what is far is quietly faded out.
#
# Is it true that rotary and skewed fail because of distances, and learned and sinusoidal because of places? Then we
# can tell them apart. Let every letter see the last 32 only, by a mask. Now no distance is new, while the places still
# are. Which two of the four will it mend?

# %% tags=["nbval-ignore-output", "hide-output"] jupyter={"outputs_hidden": true}
rescued = {}
for kind in ("learned", "sinusoidal", "skewed", "rotary"):
    for seed in SEEDS:
        models[kind, seed].mask = causal() & sliding_window(N - 1)  # the letter and 31 before it
    rescued[kind] = over_seeds(kind)[N:].mean().item()
    print(f"{kind:>11}: loss beyond 32 is {long[kind][N:].mean():.2f},",
          f"and {rescued[kind]:.2f} with the window")
expect("Rotary's loss beyond 32, with the window", rescued["rotary"], 1.85, 2.15)
expect("Learned's loss beyond 32, with the window", rescued["learned"], 2.3, 3.6)

# %% [markdown]
# So it is. The window mends rotary and skewed completely, and leaves the other two broken. Press et al. (2022, figure
# 1) report failures of the same kind for large sinusoidal and rotary models. Today's rotary models are therefore
# fine-tuned for a while at the longer length, with lower frequencies.
#
# You may have read that attention "cannot go beyond the length it was trained on". That is true of learned tables. As a
# general rule it is false: Shaw's clipped distances and ALiBi go on.

# %% [markdown]
# ### All on one page
#
# | | enters | knows | numbers to learn | beyond the trained length |
# | --- | --- | --- | --- | --- |
# | learned | added to words | places | max_length · d_model | fails; at max_length it ends |
# | sinusoidal | added to words | places | none | fails |
# | Shaw | score and value | clipped distances | 2 (2k + 1) · d_k per layer | holds |
# | skewed | score | past distances | h · max_length · d_k per layer | gets worse slowly; a window mends it |
# | rotary | query and key | distances | none | fails; a window mends it |
# | ALiBi | score | distances | none | holds |

# %% [markdown]
# ## 10 Open the library
#
# Everything you built is in `txlib`. First the two that are added.

# %%
from txlib.attention import AlibiBias, DenseAttention, KeyValueCache, ShawAttention, SkewedBias
from txlib.layers import LearnedPosition, Rotary, SinusoidalPosition
from txlib.layers import sinusoidal as library_sinusoidal

show_source(library_sinusoidal, SinusoidalPosition, LearnedPosition)

# %% [markdown]
# Two things are new. `layout="concatenated"` puts all sines first, as the released code of the paper does, and
# `offset` is the position of the first row, for decoding word by word. `SinusoidalPosition` keeps the rows that it has
# computed, and makes more when a longer text comes. And the errors say what to do:

# %%
prove_equal(sinusoidal(60, 64), library_sinusoidal(60, 64), what="Your sinusoids and the library's")
too_long = torch.zeros(1, 40, 64)
for wrong in (lambda: library_sinusoidal(4, 5), lambda: LearnedPosition(32, 64)(too_long)):
    try:
        wrong()
    except ValueError as error:
        print(error)

# %% [markdown]
# Rotary is a module that `MultiHeadAttention` calls on queries and keys. Skewing and ALiBi are *biases*: a layer hands
# what they compute to any mechanism, which is called as `mechanism(q, k, v, mask, bias=bias)`. Shaw's vectors also meet
# the values, so `ShawAttention` is a mechanism itself; its `weights` are the same weights before they meet the values.

# %%
show_source(Rotary, ShawAttention)

# %% [markdown]
# You will recognise your own lines. What is new is `scaling`: it slows the turns, for texts longer than any that a
# model was trained on (lesson 16). With the same tables, do both give the same numbers?

# %%
torch.manual_seed(0)
library_shaw, library_skewed = ShawAttention(16, max_distance=3), SkewedBias(4, 16, max_length=10)
prove_equal(rotate(q), Rotary(16)(q), what="Rotary, neighbours,")
prove_equal(rotate_half(q), Rotary(16, layout="half")(q), what="Rotary, halves,")
prove_equal(shaw(q, k, v, library_shaw.keys, library_shaw.values), library_shaw(q, k, v),
    what="Shaw")
bias = skew(q @ library_skewed.distances.mT) / 16**0.5             # (batch, heads, query, key)
dense = DenseAttention()                                  # the mechanism that you know, as a module
# what they add for these queries and 10 keys
skewed, far = library_skewed(q, 10), AlibiBias(4)(q, 10)
prove_equal(attention(q, k, v, causal(), bias=bias), dense(q, k, v, causal(), bias=skewed),
    what="Skewed")
prove_equal(attention(q, k, v, bias=alibi(10, 4)[None]), dense(q, k, v, bias=far), what="ALiBi")

# %% [markdown]
# Left-overs above the diagonal are wrong without a causal mask, you remember. The library refuses:

# %%
try:
    MultiHeadAttention(64, 4, position_bias=library_skewed)(torch.randn(2, 10, 64))
except ValueError as error:
    print(error)

# %% [markdown]
# ### Inside many heads, with a cache
#
# Now rotary inside `MultiHeadAttention`. First whole, against your own functions with its weights. Then word by word
# with a cache, as a decoder writes. The third word arrives alone, as a tensor of length 1. It must be turned as
# position 2, not as position 0: the length of the cache is its *offset*. Keys in the cache have been turned already.
# (One word at a time needs no mask, as you know from lesson 04. A causal one does no harm.)

# %%
layer = MultiHeadAttention(64, 4, rotary=Rotary(16))
x = torch.randn(2, 10, 64)                                         # (batch, n, d_model)
whole = layer(x, mask=causal())                                    # (batch, n, d_model)
q, k, v = (rearrange(part(x), "b n (h d) -> b h n d", h=4)
           for part in (layer.query, layer.key, layer.value))
mine = attention(rotate(q), rotate(k), v, causal())                # (batch, heads, n, d_k)
prove_equal(layer.output(rearrange(mine, "b h n d -> b n (h d)")), whole,
    what="Your rotary heads and the library's")
cache = KeyValueCache()
stepwise = torch.cat([layer(x[:, i : i + 1], mask=causal(), cache=cache) for i in range(10)], dim=1)
prove_equal(stepwise, whole, what="Word by word and all at once")

# %% [markdown]
# And with the offset forgotten, on purpose, so that each word is turned as position 0:

# %%
cache = KeyValueCache()
steps = [layer(x[:, i : i + 1], cache=cache, offset=0) for i in range(10)]     # (batch, 1, d_model)
forgot = torch.cat(steps, dim=1)                                   # (batch, n, d_model)
wrong = (forgot - whole)[:, -1].norm() / whole[:, -1].norm()
print(f"with the offset forgotten, the last word's output is off by {wrong:.0%} of its length")

# %% [markdown]
# ## 11 What it costs
#
# Adding or turning costs $n\,d$ operations: nothing beside attention. ALiBi costs $n^2$ additions. Skewing's bias is
# one more matrix product, as large as that of the scores; Shaw's is a smaller one, with $2k + 1$ columns. Only the
# naive Shaw form hurts, in memory: it holds a vector for each *pair*, $n \cdot n \cdot d_k$ numbers. Skewing holds a
# vector for each *distance*, $n \cdot d_k$ numbers, and a score for each pair, $n^2$.
#
# Count it. In lesson 03 `FlopCounterMode` counted operations: while it is switched on by `with`, torch hands it each
# operation, one by one. It is built on `TorchDispatchMode`, of which you can write your own. This one lets each
# operation run, and remembers how many numbers the largest result had.

# %%
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):
    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.numbers = max(self.numbers, out.numel() if isinstance(out, torch.Tensor) else 0)
        return out

# %% [markdown]
# To be fair to all, nothing is clipped: Shaw gets a row for each of the $2n - 1$ distances.

# %%
for n in (64, 128, 256, 512):
    q = k = v = torch.randn(1, 1, n, 64)                           # (batch, heads, n, d_k)
    a = torch.randn(2 * n - 1, 64)                                 # (bucket, d_k): no clipping
    e = torch.randn(1, n, 64)                                      # (heads, distance, d_k)
    with Largest() as naive:
        shaw_naive(q, k, v, a, a)
    with Largest() as gather:
        shaw(q, k, v, a, a)
    with Largest() as skewing:
        skew(q @ e.mT)
    print(f"n {n:3}, largest tensor: naive {naive.numbers:10,} = 64n²; "
          f"gather {gather.numbers:7,} = 2n²-n; skewing {skewing.numbers:7,} = n²+n")

# %% [markdown]
# The naive tensor is $d_k$ times larger: 64 here. For music of 2048 events with $d$ = 512 over 8 heads, it takes 8.6 GB
# in every layer, and the distance vectors 4.2 MB (Huang et al. 2019 print nearly the same). Does the clock agree?

# %% tags=["nbval-ignore-output"]
q = k = v = torch.randn(1, 4, 512, 64)                             # (batch, heads, n, d_k)
a, e = torch.randn(2 * 16 + 1, 64), torch.randn(4, 512, 64)  # (bucket, d_k), (heads, distance, d_k)
ways = {
    "no positions": lambda: attention(q, k, v, causal()),
    "rotary": lambda: attention(rotate(q), rotate(k), v, causal()),
    "ALiBi": lambda: attention(q, k, v, causal(), bias=alibi(512, 4)[None]),
    "skewed": lambda: attention(q, k, v, causal(), bias=skew(q @ e.mT) / 8),
    "Shaw": lambda: shaw(q, k, v, a, a, causal()),
    "Shaw, naive": lambda: shaw_naive(q, k, v, a, a),
}

# %% [markdown]
# Each runs four times, and the fastest run counts.

# %% tags=["nbval-ignore-output"]
import time


def milliseconds(way):
    start = time.perf_counter()
    way()
    return 1000 * (time.perf_counter() - start)


times = {name: min(milliseconds(way) for _ in range(4)) for name, way in ways.items()}
plots.bars(
    times, title="Only the naive form is expensive", format="{:.0f}",
    xlabel="milliseconds for 512 positions, 4 heads",
    alt="Bars of running time: five kinds within a small factor of plain attention, the naive Shaw "
    "form far slower.",
)

# %% [markdown]
# ## 12 Quiz
#
# Decide first, then open an answer.
#
# **1. You shuffle the words of a sentence before self-attention without positions and without a mask. What happens to
# the output?**
#
# <details><summary>A. It stays exactly the same</summary>
#
# Each *word* gets the same vector as before, but words have moved, and their vectors with them.
# </details>
# <details><summary>B. Its rows are shuffled in the same way</summary>
#
# Right. Equivariant: shuffle in, the same shuffle out.
# </details>
# <details><summary>C. It changes in a way that depends on the weights</summary>
#
# Whatever the weights are, scores compare words, not places. Section 1 used random ones.
# </details>
#
# **2. Shaw, $k = 2$, a sentence of 10 words. How many rows has the table $a^K$, and which row do query 7 and key 1
# use?**
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
# **3. Rotary turns queries and keys. Why not values?**
#
# <details><summary>A. It would cost too much time</summary>
#
# Turning is cheap beside attention. That is not the reason.
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
# **4. Sinusoidal positions exist for every place. Why did our reader fail beyond place 32?**
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
# They were, in this run. And without the scale it is worse from the first place on.
# </details>
#
# **5. You decode word by word with a cache and rotary positions, and turn every new query and key as position 0. What
# happens?**
#
# <details><summary>A. An error</summary>
#
# All shapes fit. See section 10.
# </details>
# <details><summary>B. All scores are as if all words stood at the same place</summary>
#
# Right. Every angle is 0, so every distance is 0: you have switched positions off.
# </details>
# <details><summary>C. Nothing: only distances count, and they are the same</summary>
#
# They would be, if all were moved by the *same* amount. Word 5 is moved by 5 and word 2 by 2, so the distance between
# them changes from −3 to 0.
# </details>

# %% [markdown]
# ## 13 Summary
#
# - Attention treats a sentence as a bag of words: shuffle in, same shuffle out.
# - Learned and sinusoidal vectors tell each word its place; the sinusoids hold distances in their dot products.
# - Shaw and skewing score distances with learned vectors. Rotary gets distances by turning queries and keys. ALiBi
#   fades with distance.
# - Reading letters, Shaw, skewing and rotary beat added places. Beyond the trained length only clipped or fading
#   distances held.
# - The naive Shaw form needs $n^2 d_k$ numbers; gather or skewing avoid it. The others cost little beside attention.
#
# **Read** Vaswani et al. 2017, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762), sections 3.4 and 3.5. Shaw et al.
# 2018, [arXiv:1803.02155](https://arxiv.org/abs/1803.02155), sections 3.1 to 3.3. Huang et al. 2019, *Music
# Transformer*, [arXiv:1809.04281](https://arxiv.org/abs/1809.04281), section 3.4. Su et al. 2021, *RoFormer*,
# [arXiv:2104.09864](https://arxiv.org/abs/2104.09864), sections 3.2 and 3.4. Press et al. 2022,
# [arXiv:2108.12409](https://arxiv.org/abs/2108.12409), sections 2 and 3. Wang et al. 2019, *Self-Attention with
# Structural Position Representations*, [arXiv:1909.00383](https://arxiv.org/abs/1909.00383).
#
# **Do** the exercise [05_positions](../exercises/exercise_05_positions.ipynb). Then go on to
# [06 The block](06_block.ipynb).
