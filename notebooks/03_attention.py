# %% [markdown] lesson={"part": "I Attention", "builds": "a soft lookup: queries, keys, values, scaling, masks"}
# # 03 · Attention as a soft lookup
#
# **After this lesson you will be able to**
#
# - explain attention as a dictionary lookup that answers with a mixture;
# - write it in four lines of torch, and say the shape of every tensor in it;
# - show by measurement why scores are divided by $\sqrt{d_k}$, and why a mask comes before the softmax;
# - count what attention costs.
#
# Lesson 02 met attention inside a recurrent network: a score, a softmax, an average. Here you study it by itself. (You
# can also start the course here.)
#
# **You need** matrix products, the softmax, and a little torch. **It takes** about 60 minutes to read and try; all
# cells together run in about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: a dictionary that only knows exact matches
#
# Here are some real sentences, German on the left, English on the right. They come from the dialogues of free computer
# games, and the whole course uses them.

# %% tags=["recorded"]
import re
from collections import Counter

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from txlib import plots
from txcourse import explore, figures
from txcourse.lesson import expect, predict, predicted, progress
from txcourse.lesson import prove_equal, show_source
from txlib.data import translation

pairs = translation("games", max_words=12).train
for german, english in [pair for pair in pairs if len(pair[0]) <= 40][100:1600:300]:
    print(f"{german:42} {english}")
print(f"… {len(pairs):,} pairs in all")

# %% [markdown]
# One of them stays with us through lesson 09. Each lesson shows what its part does to this sentence:

# %%
wanted = "The orcs have attacked the humans."
our_pair = next(pair for pair in pairs if pair[1] == wanted)
print(" | ".join(our_pair))

# %% [markdown]
# The main verb comes last in German and fourth in English, so translating word by word, in order, will not do. Suppose
# we only want to look each word up. Python has such a lookup, the `dict`: you give it a **query**, it compares
# the query with its **keys**, and it returns the **value** of the key that is equal.

# %%
dictionary = {"könig": "king", "ork": "orc", "schwert": "sword"}
for query in ("könig", "könige", "orks"):
    print(f"{query:8} → {dictionary.get(query, 'nothing')}")

# %% [markdown]
# **It is brittle.** *Könige* is nearly *König*, but "nearly" does not exist for a `dict`. And **it cannot learn.** Move
# a query a little, and the answer stays exactly the same until it jumps. There is no slope to follow downhill, so no
# gradient can improve the keys.
#
# Both problems have the same cure. Let each key match *to a degree*, and answer with a mixture of all values, each
# weighted by how well its key matches. That is **attention**. By the end of this lesson it will read sentence pairs
# like those above and work out, for many words and without being told, which German word belongs to which English one.

# %% [markdown]
# ## 2 The idea in one picture
#
# How can a lookup know "nearly"? Let keys and queries be vectors: the larger their dot product, the better the match.
# Below, five keys point in directions from 0° to 120°, and the query points at 63°, close to the third key. A **hard**
# lookup puts all of the weight on the best key. A **soft** lookup divides it among the keys, by the softmax, which
# section 3 takes apart.

# %%
angle = torch.tensor([0.0, 30.0, 60.0, 90.0, 120.0]).deg2rad()
key = torch.stack([angle.cos(), angle.sin()], dim=-1)  # (key, 2): five arrows
query = torch.tensor([[0.45, 0.89]])  # (query, 2): one arrow, at about 63°
score = query @ key.T  # (query, key): how well each matches
hard = F.one_hot(score.argmax(dim=-1), 5).float()  # (query, key)
soft = (4 * score).softmax(dim=-1)  # (query, key); 4 sharpens the picture

# %% [markdown]
# All keys have length 1. Otherwise a long key would match better just because it is long. The weights of both lookups:

# %% jupyter={"source_hidden": true}
plots.heatmap(
    torch.cat([hard, soft]), rows=["hard", "soft"], columns=["0°", "30°", "60°", "90°", "120°"],
    title="A soft lookup gives near misses some weight", xlabel="direction of the key", ylabel="lookup", size=0.7,
    alt="Weights for five keys. Hard: all on the key at 60 degrees. Soft: most there, less on 90 and 30 degrees.",
)

# %% [markdown]
# The soft weights are positive, they add up to 1, and they change smoothly as the query turns. So a gradient can tell
# the query where to turn and the keys where to move.
#
# Try it. The five keys get the values 10 to 50. Turn the query with its arrow or with the sliders. How do you bring the
# soft answer as close to the hard one as you like? (If you see no sliders, run the cell.)

# %%
explore.lookup(key, torch.arange(10.0, 51.0, 10.0), query[0], scale=4,
               names=["0°", "30°", "60°", "90°", "120°"])

# %% [markdown]
# <details><summary>Answer</summary>
#
# The hard answer jumps from one value to the next, halfway between two keys. The soft answer glides. Make the query
# longer: all differences between scores grow with it, and the soft weights approach the hard ones.
# </details>

# %% [markdown]
# ## 3 The equation, one step at a time
#
# The picture had scores sharpened by a 4 that we made up. Here is the real recipe, first for one query by hand. It has
# 64 entries, and its dot products with four keys are 13, 24, 20 and 12. Divide them by $\sqrt{64} = 8$, exponentiate,
# and divide by the sum:

# %%
product = torch.tensor([13.0, 24.0, 20.0, 12.0])  # (key,): one query, four keys
score = product / 64**0.5  # (key,)
power = score.exp()  # (key,)
weight = power / power.sum()  # (key,)
for name, numbers in {"score": score, "e^score": power, "weight": weight}.items():
    print(f"{name:8}", "".join(f"{number:8.3f}" for number in numbers))

# %% [markdown]
# If the four values are 10, 20, 30 and 40, the answer is $0.121 \cdot 10 + 0.480 \cdot 20 + 0.291 \cdot 30 + 0.107
# \cdot 40 = 23.8$. That is the whole computation. For all queries at once (Vaswani et al. 2017, equation 1):
#
# $$\text{attention}(Q, K, V) = \text{softmax}\!\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V$$
#
# Each row of $Q$ is a query, each row of $K$ a key, each row of $V$ the value that belongs to that key. Queries and
# keys have $d_k$ entries, and it is *their* width under the root; values may have another width, $d_v$.
#
# Now our pair. Three English words are the queries, the six German words the keys and values. Nothing is trained yet:
# all vectors are random (so even the two *die* differ), and only the shapes matter. (In a Transformer, queries, keys
# and values are computed from the
# words by three learned matrices, $W^Q$, $W^K$ and $W^V$. Lesson 04 adds them.)

# %%
torch.manual_seed(37)
english_words = ["orcs", "attacked", "humans"]
german_words = ["die", "orks", "haben", "die", "menschen", "angegriffen"]
d_k, d_v = 8, 5
q = torch.randn(3, d_k)  # (query, d_k): one row per English word
k = torch.randn(6, d_k)  # (key, d_k): one row per German word
v = torch.randn(6, d_v)  # (key, d_v): one row per German word

# %% [markdown]
# **Step 1: scores.** Compare every query with every key. One matrix product computes all the dot products at once.
# (Why the division? Section 4.)

# %%
score = q @ k.T / d_k**0.5  # (query, key)
plots.heatmap(
    score, rows=english_words, columns=german_words, size=0.7,
    title="Step 1: a score for each pair of words", diverging=True, bar="score",
    alt="A table of three English words by six German words with a positive or "
    "negative score in each cell, and a color bar: blue below 0, red above.",
)

# %% [markdown]
# **Step 2: weights.** The **softmax** turns each *row* into weights that add up to 1: it exponentiates, so that all are
# positive, and divides by the sum. It runs along the key axis, the last one, because each query has one unit of
# attention to spend. (The numbers that go into a softmax are called **logits**; here, these are the scores. You will
# meet the word wherever a model chooses among alternatives.)

# %%
weight = score.softmax(dim=-1)  # (query, key)
print("each query spends", [f"{total:.1f}" for total in weight.sum(dim=-1)])
plots.heatmap(
    weight, rows=english_words, columns=german_words, size=0.7,
    title="Step 2: each row adds up to 1",
    alt="The same table after the softmax: all cells between 0 and 1, and each row "
    "adds up to 1.",
)

# %% [markdown]
# (The vectors are random, so the table says nothing about the words yet.)
#
# **Step 3: mix.** Each query receives the average of all values, weighted by its row.

# %%
out = weight @ v  # (query, d_v)
print("out has shape", tuple(out.shape), "- one mixture of values for each query")

# %% [markdown]
# Here is all of it as a function. The `...` in the shapes stands for any leading axes, such as a batch of sentences:
# the function treats each of them separately.


# %%
def attention(q, k, v):
    score = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5  # (..., query, key)
    weight = score.softmax(dim=-1)  # (..., query, key)
    return weight @ v  # (..., query, d_v)


# %% [markdown]
# Check the matrix products against the plainest version: one query at a time, one key at a time, with nothing but
# numbers and loops.

# %%
def attention_by_loops(q, k, v):
    rows = []
    for query in q:
        score = []
        for key in k:
            product = sum(a * b for a, b in zip(query, key))
            score.append(product / len(query) ** 0.5)
        total = sum(s.exp() for s in score)
        rows.append(sum(s.exp() / total * value for s, value in zip(score, v)))
    return torch.stack(rows)  # (query, d_v)


by_loops = attention_by_loops(q, k, v)
prove_equal(attention(q, k, v), by_loops, what="Matrix products and loops")

# %% [markdown]
# ### Two consequences worth knowing
#
# **A mixture stays inside.** Weights are positive and sum to 1, so each output entry is between the smallest and the
# largest value it was mixed from. Attention moves information around. It cannot create a number beyond all it saw.
#
# **Order does not matter.** Shuffle the German words, keys together with their values, and the output is the same: a
# sum has no first and no last term. So attention alone cannot tell *dog bites man* from *man bites dog*. Lesson 05
# fixes that.

# %%
shuffled = torch.tensor([2, 0, 5, 3, 1, 4])
of_shuffled = attention(q, k[shuffled], v[shuffled])
prove_equal(of_shuffled, attention(q, k, v), what="Shuffled or not")

# %% [markdown]
# ## 4 Why divide by $\sqrt{d_k}$?
#
# Take a query and a key whose entries are independent, with mean 0 and variance 1. Each product of two entries has
# variance 1, and the dot product adds up $d_k$ of them. So its variance is $d_k$, and its typical size $\sqrt{d_k}$:
# with 64 dimensions, dot products of 8 and −8 are ordinary.
#
# The softmax turns a *difference* of scores into a *ratio* of weights. A difference of 8 is a ratio of
# $e^8 \approx 3000$. One key takes nearly everything, and the lookup is hard again.
#
# An example by hand. With $d_k = 64$, a query has the dot products 13 and 5 with two keys. The scores are
# $13/\sqrt{64} = 13/8 = 1.625$ and $5/8 = 0.625$. Their difference is 1, so the first weight is $e$ times the second:
# 0.73 and 0.27. Undivided, the difference is 8, and the weights are 0.9997 and 0.0003.
#
# Now take a thousand random queries and 32 keys, at three widths:

# %%
torch.manual_seed(0)
for width in (4, 64, 1024):
    query = torch.randn(1000, width)  # (query, d_k)
    key = torch.randn(32, width)  # (key, d_k)
    raw = query @ key.T  # (query, key)
    top = [s.softmax(dim=-1).amax(dim=-1).mean() for s in (raw, raw / width**0.5)]
    print(f"d_k {width:4}: dot products spread ±{raw.std():4.1f}; "
          f"the best of 32 keys takes {top[0]:4.0%}, scaled {top[1]:4.0%}")

# %% [markdown]
# Dividing by $\sqrt{d_k}$ brings the variance back to 1, whatever the width. Now the part that hurts: the *gradient*.
# When one weight is 1 and all others are 0, the softmax is flat. No small change of the scores changes the weights, so
# nothing can be learned from a wrong choice. What has to learn is the query, so we measure the gradient that reaches
# it.

# %%
for name, scale in (("scaled", 1024**-0.5), ("unscaled", 1.0)):
    torch.manual_seed(0)
    query = torch.randn(1000, 1024, requires_grad=True)  # (query, d_k)
    key, value = torch.randn(32, 1024), torch.randn(32, 1)  # (key, d_k), (key, 1)
    weight = (query @ key.T * scale).softmax(dim=-1)  # (query, key)
    (weight @ value).sum().backward()
    size = query.grad.norm(dim=-1)  # (query,): each query's gradient
    print(f"{name:8}  median gradient {size.median():.1g}; "
          f"{(size < 0.001).float().mean():3.0%} of queries below 0.001")

# %% [markdown]
# Unscaled, the median gradient is a hundred times smaller. So the scale keeps the lookup soft *at the start of
# training*. Later the model can make its scores as large as it likes by growing its vectors. Section 6 shows what it
# learns without the scale.

# %% [markdown]
# ## 5 Masks: what may not be seen
#
# So far every query sees every key. Often it must not.
#
# - **Padding.** Sentences in one batch have different lengths. Short ones are filled up with a dummy token, which is
#   not a word and must get no attention.
# - **The future.** A model that learns to write the next word must not see that word. Query $i$ may look at key $j$
#   where $j \le i$: at itself and the past. This mask is called **causal**.
#
# In this course a **mask** is a boolean matrix, and `True` means *may attend*. (Beware: some libraries use the opposite
# convention.) How do we take the forbidden keys out? Three attempts, on four words with the causal mask. For each: what
# do its rows add up to, and how much of all attention looks ahead?

# %%
torch.manual_seed(1)
n = 4
score = torch.randn(n, n)  # (query, key)
allowed = torch.ones(n, n).tril().bool()  # (query, key): True where j ≤ i
tries = {
    "mask after softmax": score.softmax(dim=-1).masked_fill(~allowed, 0.0),
    "score 0 before": score.masked_fill(~allowed, 0.0).softmax(dim=-1),
    "score −∞ before": score.masked_fill(~allowed, float("-inf")).softmax(dim=-1),
}
for name, weight in tries.items():
    future = weight.masked_fill(allowed, 0.0).sum() / n
    total = weight.sum(dim=-1)  # (query,)
    print(f"{name:20} rows add up to {total.min():.2f} … {total.max():.2f}; "
          f"ahead: {future:.0%}")

# %% [markdown]
# Here are all weights of each attempt:

# %% jupyter={"source_hidden": true}
plots.heads(
    torch.stack(list(tries.values())), names=list(tries), numbers=True, size=0.55,
    rows=["0", "1", "2", "3"], columns=["0", "1", "2", "3"],
    title="Only −∞ before the softmax hides the future and spends all attention",
    alt="Three 4 by 4 weight tables. First: the future is 0 but rows do not add up "
    "to 1. Second: the future gets weight. Third: the future is 0 and every row adds "
    "up to 1.",
)

# %% [markdown]
# The first attempt leaves rows that do not add up to 1: the first word has spent most of its attention on the future
# and loses it. In the second, a score of 0 does not mean "no match". It is an ordinary score, and $e^0 = 1$ earns an
# ordinary weight. Only $-\infty$ works: $e^{-\infty} = 0$, and the other keys get everything. (Masking is often said
# to set a weight to 0. That is the result; what you set is the score.)
#
# One trap is left. What if a query may look at *nothing*, for example because its whole sentence is padding?

# %%
nothing = torch.zeros(1, 3).bool()  # (query, key): all forbidden
score = torch.tensor([[0.3, 1.2, -0.5]])  # (query, key)
hidden = score.masked_fill(~nothing, float("-inf"))  # (query, key)
print("with −∞:               ", hidden.softmax(dim=-1).tolist())
lowest = torch.finfo(score.dtype).min
shown = score.masked_fill(~nothing, lowest)  # (query, key)
weight = shown.softmax(dim=-1)  # (query, key): no NaN, but weights
print("with the lowest number:", [round(w, 2) for w in weight[0].tolist()])
print("and zero afterwards:   ", weight.masked_fill(~nothing, 0.0)[0].tolist())

# %% [markdown]
# $-\infty$ everywhere makes the softmax divide 0 by 0, and one `nan` spreads through the whole model within a step. So
# we use the lowest finite number before the softmax, and set the weights to zero afterward. (In any other row that
# number does what −∞ does: its exponential is 0.) A query that may attend to nothing then gets zeros. This is our final
# version:


# %% tags=["recorded"]
def attention(q, k, v, mask=None, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    score = q @ k.transpose(-2, -1) * scale  # (..., query, key)
    if mask is None:
        return score.softmax(dim=-1) @ v
    score = score.masked_fill(~mask, torch.finfo(score.dtype).min)
    weight = score.softmax(dim=-1).masked_fill(~mask, 0.0)  # (..., query, key)
    return weight @ v  # (..., query, d_v)


# %% [markdown]
# ## 6 See it work: learning a dictionary from sentence pairs
#
# We have all the parts and can keep the promise of section 1. All we are given is sentence pairs: no alignment,
# no dictionary. Give every English word a query vector, and every German word a key vector and a value vector, all
# random. Can attention find out which words belong together?
#
# The trick is a guessing game. Take 32 pairs and mix them up. Given an English sentence, which of the 32 German ones is
# its partner? Each English word looks itself up in a German sentence. What it finds is a mixture of values. If that
# mixture resembles the word's own *query* vector, the word counts as found, and the sentences probably belong together.
# *king* should be found in a sentence with *König*, and nowhere else. To win, each English word has to learn what to
# look for, and each German word which queries to match and what to answer.
#
# On paper, let *king* have the query $(2, 1)$. In its partner sentence it finds a mixture, say $(1, 1)$; the dot
# product says that they are alike: $2 \cdot 1 + 1 \cdot 1 = 3$. In another sentence it finds $(-1, 1)$, which gives
# $-1$. The softmax of 3 and −1 is 0.98 and 0.02: with this word alone, the guess would be right. A sentence's number is
# the mean over its words. (In the code, the dot products are divided by $\sqrt d$ as well.)
#
# One round, from two sentences to their place in the table:

# %% jupyter={"source_hidden": true}
figures.guessing_game(
    ["the", "orcs", "attacked"], ["orks", "haben", "angegriffen"],
    torch.tensor([[0.4, 0.35, 0.25], [0.85, 0.05, 0.1], [0.1, 0.2, 0.7]]), sentences=6,
    title="Each pair of sentences gets one number; partners should get the largest",
    alt="From left to right: three English words, each linked to three German words by lines, the thicker, the larger "
    "the weight; lines of the same thickness lead on to three mixtures. Each mixture is multiplied with its query; "
    "the mean of the three products goes into one cell on the diagonal of a table of 6 English by 6 German sentences.",
)

# %% [markdown]
# (The weights in the drawing are made up, and six sentences stand for 32.)
#
# ### The game in code
#
# First the words as numbers: 0 is padding, 1 is any rare word.

# %% tags=["recorded"]
def words(sentence):
    return re.findall(r"\w+", sentence.lower())


def vocabulary(sentences, at_least=10):
    count = Counter(word for sentence in sentences for word in words(sentence))
    common = (word for word, times in count.most_common() if times >= at_least)
    return {word: id for id, word in enumerate(common, start=2)}


def encode(sentences, ids):
    rows = [[ids.get(word, 1) for word in words(sentence)] for sentence in sentences]
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


pairs = [pair for pair in pairs if all(3 <= len(words(side)) <= 12 for side in pair)]
german_text, english_text = zip(*pairs)
german_ids, english_ids = vocabulary(german_text), vocabulary(english_text)
german_rows = encode(german_text, german_ids)  # (pair, m)
english_rows = encode(english_text, english_ids)  # (pair, n)
print(f"{len(pairs):,} pairs; {len(german_ids):,} and {len(english_ids):,} words")

# %% [markdown]
# Every word gets its random vectors:


# %% tags=["recorded"]
def random_tables(seed, d=128):
    torch.manual_seed(seed)
    queries = torch.randn(len(english_ids) + 2, d, requires_grad=True)
    keys = torch.randn(len(german_ids) + 2, d, requires_grad=True)
    values = torch.randn(len(german_ids) + 2, d, requires_grad=True)
    return queries, keys, values


untrained = random_tables(seed=1)

# %% [markdown]
# First the plain way: one English sentence and one German sentence. Each English word looks itself up, and we measure
# how similar the answer is to its query, on average over the words.


# %% tags=["recorded"]
def match_two(english, german, q_table, k_table, v_table):  # ids without padding
    q = q_table[english]  # (n, d)
    found = attention(q, k_table[german], v_table[german])  # (n, d)
    alike = (found * q).sum(dim=-1) * q.shape[-1] ** -0.5  # (n,): found · query, scaled
    return alike.mean()


def match_by_loops(count, tables):
    table = torch.empty(count, count)  # (english, german)
    for i in range(count):
        for j in range(count):
            english, german = english_rows[i], german_rows[j]
            table[i, j] = match_two(english[english > 0], german[german > 0], *tables)
    return table.detach()


print("            German 0  German 1")
for number, row in enumerate(match_by_loops(2, untrained).tolist()):
    print(f"English {number} ", "".join(f"{score:10.2f}" for score in row))

# %% [markdown]
# Two pairs take four calls, one per cell of this table; 32 pairs would take 1,024. Our `attention` does them in one, in
# three steps. Padded to 12 words, the 32 English sentences are put into one line of 384 queries, `(384, d)`. The keys
# keep an axis in front that counts the German sentences, `(32, 12, d)`. The queries lack that axis, so torch repeats
# them for each German sentence (**broadcasting**), and each query finds 32 mixtures: `(32, 384, d)`. Padding is masked.


# %% tags=["recorded"]
def match(batch, q_table, k_table, v_table, scale=None):
    english, german = english_rows[batch], german_rows[batch]  # (pair, n), (pair, m)
    q = q_table[english].flatten(0, 1)  # (pair · n, d): words in a line
    k, v = k_table[german], v_table[german]  # (german, m, d)
    mask = (german > 0)[:, None]  # (german, 1, m)
    found = attention(q, k, v, mask, scale)  # (german, pair · n, d)
    alike = (found * q).sum(dim=-1) * q.shape[-1] ** -0.5  # (german, pair · n)
    by_sentence = alike.unflatten(-1, english.shape)  # (german, english, n)
    real = english > 0  # (english, n): not padding
    return ((by_sentence * real).sum(dim=-1) / real.sum(dim=-1)).T  # (english, german)


by_loops = match_by_loops(4, untrained)
at_once = match(torch.arange(4), *untrained)
prove_equal(at_once, by_loops, what="At once and by loops")

# %% [markdown]
# ### Play it
#
# Row $i$ of the result should be largest in column $i$, the true partner. That is a classification with 32 classes: the
# row's 32 numbers are its logits, and cross-entropy is its loss. Guessing blindly costs $\ln 32 \approx 3.5$. This is
# the whole training:


# %% tags=["recorded"]
def play(scale=128**-0.5, seed=1, steps=600, what="learning words"):
    tables = random_tables(seed)
    optimizer, losses = torch.optim.Adam(tables, lr=0.01), []
    for _ in progress(range(steps), what):
        batch = torch.randint(len(pairs), (32,))  # (pair,)
        loss = F.cross_entropy(match(batch, *tables, scale=scale), torch.arange(32))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [table.detach() for table in tables], losses


# %% [markdown]
# One run takes a few seconds. Then we let it guess, among sentences it was trained on (we are after the dictionary, not
# the game):

# %% tags=["nbval-ignore-output"]
(q_table, k_table, v_table), losses = play()
won = []
for batch in torch.arange(3200).split(32):  # a hundred rounds
    best = match(batch, q_table, k_table, v_table).argmax(dim=-1)
    won.append(best == torch.arange(32))
print(f"it finds the partner of {torch.cat(won).float().mean():.0%} of 3,200 sentences")
expect("Loss at the end", sum(losses[-50:]) / 50, 0.4, 1.4)

# %% [markdown]
# Here are the probabilities of one round, before and after. Each row is an English sentence, each column a German one,
# and the true partners are on the diagonal. Note the color bars: each table has its own.

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
figures.before_and_after(
    match(torch.arange(32), *untrained).softmax(dim=-1),
    match(torch.arange(32), q_table, k_table, v_table).softmax(dim=-1),
    names=["before training", "after 600 steps"], xlabel="German sentence", ylabel="English sentence",
    title="Training lights up the diagonal: partners find each other",
    alt="Two 32 by 32 tables of probabilities, each with its scale. Before training the largest is below 0.1, and the "
    "diagonal cannot be seen. After training the scale goes to 1, and most rows have their largest probability "
    "on the diagonal.",
)

# %% [markdown]
# About two guesses in three are right.
#
# ### What did it learn?
#
# Let our English sentence look at its German partner.

# %% tags=["nbval-ignore-output"]
german_words, english_words = map(words, our_pair)
q = q_table[[english_ids[word] for word in english_words]]  # (query, d)
k = k_table[[german_ids[word] for word in german_words]]  # (key, d)
score = q @ k.T / 128**0.5  # (query, key)
plots.heatmap(
    score.softmax(dim=-1), rows=english_words, columns=german_words, size=0.75,
    title="Each word looks for its translation",
    xlabel="key (German)", ylabel="query (English)",
    alt="Attention weights of our English sentence on its German translation; for "
    "most rows the largest weight is on the word's own translation, also where the "
    "word order differs.",
)

# %% [markdown]
# The model was never told that *orcs* means *Orks*. It found out, because looking there helped it win. Most rows are
# clear. (*The* divides its weight evenly between the two *die*: equal words have equal keys, and nothing says which
# comes first.) *Attacked* is a rarer word and a less certain one: *angegriffen*, at the far end of the sentence, is
# ahead, but only just.
#
# Here is the whole computation, from the 128 products of a query with a key to the mixture of the values. Hide
# *angegriffen*: which words get its weight? And which word of the English sentence is surest of its partner?

# %% tags=["nbval-ignore-output"]
v = v_table[[german_ids[word] for word in german_words]]  # (key, d)
explore.one_query(
    q, k, v, rows=english_words, columns=german_words, query="attacked")

# %% [markdown]
# <details><summary>Answer</summary>
#
# All the others, in proportion to the weights they already had: the softmax divides by a smaller sum, so each remaining
# weight grows by the same factor. The surest word is *orcs*: its weight on *orks* rounds to 1.00.
# </details>
#
# One sentence can be luck, so we count. Here are 40 common words with their translations. For each we ask which of
# *all* German words has the best key. With about 1,500 to choose from, chance would hardly get one right. A ✗ marks a
# word that prefers another key.

# %% tags=["recorded"]
REAL = """king könig · sword schwert · orcs orks · dead tot · we wir · they sie
gold gold · night nacht · elves elfen · father vater · war krieg · water wasser
river fluss · men männer · and und · now jetzt · must müssen · here hier
blood blut · fire feuer · all alle · undead untote · help hilfe · i ich · my mein
brother bruder · battle schlacht · enemy feind · time zeit · north norden
south süden · what was · who wer · where wo · ship schiff · yes ja · thanks danke
dwarves zwerge · world welt · trolls trolle"""
real = [tuple(entry.split()) for entry in REAL.replace("\n", " · ").split(" · ")]


def right_words(q_table, k_table):
    german = [None, None, *german_ids]  # word of each id
    query = q_table[[english_ids[english] for english, _ in real]]  # (query, d)
    score = query @ k_table.T  # (query, word)
    best = score[:, 2:].argmax(dim=-1) + 2  # (query,): id of the best German word
    return [(asked, german[id], german[id] == true)
            for (asked, true), id in zip(real, best)]


# %% [markdown]
# This is the dictionary of this run:

# %% tags=["nbval-ignore-output"]
learned = right_words(q_table, k_table)
marked = [f"{asked}→{best}{'' if right else ' ✗'}" for asked, best, right in learned]
for line in range(0, 40, 8):
    print("   ".join(marked[line : line + 8]))
expect("Words right, of 40", sum(right for *_, right in learned), 16, 40)

# %% [markdown]
# Some misses are another form of the right word, like *untoten* for *undead*. Others are plainly wrong. Our
# explanation: the game rewards a word only as far as it helps to recognize the sentence.
#
# The strongest simple rival only counts: which German word is most often in the partner sentence when this English word
# is in its own, compared with how often each occurs at all?

# %%
in_german, in_english, together = Counter(), Counter(), Counter()
for german, english in pairs:
    here, there = set(words(german)), set(words(english))
    in_german.update(here)
    in_english.update(there)
    together.update((e, g) for e in there for g in here)


def dice(english, german):  # 1 if they always occur together
    return 2 * together[english, german] / (in_english[english] + in_german[german])


right = sum(max(german_ids, key=lambda german: dice(english, german)) == true
            for english, true in real)
print(f"counting: {right} of 40 right")

# %% [markdown]
# Counting makes the better dictionary, so you don't need attention for this. What the game shows is that a lookup can
# be *learned*, by gradient alone, from a goal that mentions no words.
#
# ### Break it: no $\sqrt{d_k}$
#
# Now the same game, the same data and the same random starts, with one thing changed: `scale=1`.

# %% jupyter={"source_hidden": true}
predict(
    "no-scale", "What happens without the scale?",
    "the loss does not fall",
    "the loss falls, and the dictionary is as good",
    "the loss falls, but most of the dictionary is wrong",
)

# %% tags=["nbval-ignore-output"]
tables, unscaled = play(scale=1.0)
answers = right_words(*tables[:2])
for name, run in (("with", losses), ("without", unscaled)):
    print(f"loss {name} the scale: {sum(run[-50:]) / 50:.2f}")
expect("Words right, of 40", sum(right for *_, right in answers), 0, 14)
predicted("no-scale", "the loss falls, but most of the dictionary is wrong")

# %% [markdown]
# One game could be luck. So `python data/soft_lookup.py 1 2 3` ran these cells from three starts. It also recorded how
# hard the lookup was before and after the game: the weight that a word gives to its best key, averaged over 300
# sentences and their partners. And since the unscaled game lags behind, the record also holds scaled games that stop
# at 200 steps, at about the *same* loss. (Start 1 is the one above; a repetition may differ by a word.)

# %%
import json

from txlib.paths import DATA

recorded = json.loads((DATA / "soft_lookup.json").read_text())
for name, games in recorded.items():
    print(name)
    for game in games.values():
        before, after = game["best weight"]
        print(f"   loss {game['last loss']:.2f}, {game['words right']} of 40 words "
              f"right; weight of the best key {before:.2f} → {after:.2f}")

# %% [markdown]
# The loss does fall, from every start, but only about one word in eight is right, instead of more than half. The lag
# does not explain it. Stopped at a loss of about 1.6, the scaled games already know about twenty words; the unscaled
# ones, at 1.4 to 1.6, know five. The unscaled games lower their loss without the dictionary. Why? Look at the weights.
#
# With the scale, the lookup begins soft and hardens *while it learns*. Without it, the lookup is hard before anything
# has been learned: chance has given nearly nine tenths of each word's attention to one key. Our explanation: a hard
# lookup returns only one value. It learns to be a good answer, whatever word it belongs to, and so confirms the choice
# that chance made.
#
# So a falling loss does not prove that a part works. Look inside.

# %% [markdown]
# ## 7 The library, and what it costs
#
# You have written attention and seen it learn. Where can you get it ready-made, and what does it cost?
#
# ### Open the library
#
# `txlib` also has this function, in two parts: `attention_weights`, and `attention`, which mixes the values with these
# weights. Here is how the first one computes them. Scale, scores, mask, softmax and zeros are yours; `bias` is for
# lesson 05, `softcap` and `sinks` are for lesson 16. `as_dense` turns the rules that you are about to see into tensors.

# %%
from txlib.attention import Mask, attention_weights
from txlib.attention import causal, global_tokens, padding, sliding_window
from txlib.attention import attention as library_attention

show_source(attention_weights, last=11)

# %% [markdown]
# The library's tensors have four axes: (batch, heads, length, head_dim). Heads come in lesson 04; until then there is
# only one. Do both give the same numbers? We try a batch of three, with a causal mask and one sentence that is all
# padding.

# %%
torch.manual_seed(0)
q, k, v = torch.randn(3, 3, 1, 6, 16)  # each (batch, heads, length, head_dim)
mask = causal().dense(6) & padding([6, 4, 0]).dense(6)  # (batch, 1, query, key)
theirs = library_attention(q, k, v, mask)  # (batch, heads, query, d_v)
prove_equal(attention(q, k, v, mask), theirs, what="Your attention and the library's")
prove_equal(theirs[2], torch.zeros(1, 6, 16), what="The all-padding sentence and zeros")

# %% [markdown]
# The library's masks are small rules on positions. `sliding_window(2)` allows two positions on either side.
# `global_tokens([0])` lets position 0 see all positions, and all positions see it. Combine rules with `&` (both allow
# it), `|` (either allows it) and `~` (the opposite). You can write other rules in one line: in the last of these masks,
# a word sees itself and every second word before it. The row of query 6 shows what word 6 may look at.

# %%
every_second = Mask(lambda query, key: (query - key) % 2 == 0)
plots.mask(
    {
        "causal()": causal(),
        "sliding_window(2)": sliding_window(2),
        "~causal()": ~causal(),
        "window | global": sliding_window(2) | global_tokens([0]),
        "causal() & (window | global)":
            causal() & (sliding_window(2) | global_tokens([0])),
        "your own rule": causal() & every_second,
    },
    length=12,
    title="Masks combine with and, or, not",
)

# %% [markdown]
# Combine some yourself. The view begins with the fifth mask, its window doubled. How must the three rules be combined
# so that the first word also sees the future, and no other word does?

# %%
explore.masks(causal() & (sliding_window(4) | global_tokens([0])), length=12)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `(causal() & sliding_window(4)) | global_tokens([0])` lets the first word see everything. The other words keep to
# their window and the past, and all of them see the first word, which is in their past anyway.
# </details>
#
# ### What it costs
#
# Every query meets every key: $n$ queries and $n$ keys make $n^2$ scores, each a dot product of $d_k$ multiplications
# and $d_k$ additions. Mixing values of the same width costs as much again. Together that is $4 n^2 d_k$ floating-point
# operations. Count them with torch's own counter:

# %%
from torch.utils.flop_counter import FlopCounterMode

d = 64
for n in (128, 256, 512, 1024):
    q = k = v = torch.randn(1, 1, n, d)  # (batch, heads, n, d_k)
    with FlopCounterMode(display=False) as counter:
        attention(q, k, v)
    counted, memory = counter.get_total_flops(), n * n * 4 / 2**20
    formula = 4 * n * n * d
    print(f"n {n:5}: {counted / 1e6:6.1f} MFLOP counted, 4n²d = {formula / 1e6:6.1f}; "
          f"the scores take {memory:5.2f} MiB")

# %% [markdown]
# Twice the length takes four times the work and four times the memory. [Lesson 30](30_wall.ipynb) measures the time,
# and Part IV attacks this square.

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. A causal model has computed these scores, already scaled, before its mask is applied. What is the weight
# $\alpha_{2,2}$ of the second query on the second key?** (Rows are queries, columns keys, both counted from 1.)
#
# | | key 1 | key 2 | key 3 | key 4 |
# | --- | --- | --- | --- | --- |
# | query 1 | 1 | 0 | −1 | −1 |
# | query 2 | 1 | 1 | −1 | 0 |
# | query 3 | 0 | 1 | 1 | −1 |
# | query 4 | −1 | −1 | 2 | 1 |
#
# <details><summary>A. 1</summary>
#
# No. A score of 1 is not a weight of 1. The weight depends on the other scores in the row that the mask leaves.
# </details>
# <details><summary>B. 1/2</summary>
#
# Right. The second query may see keys 1 and 2 only. Both scores are 1, so both get the same weight: $e^1/(e^1+e^1) =
# 1/2$.
# </details>
# <details><summary>C. About 0.40</summary>
#
# That is the softmax over all four keys: $e/(e+e+e^{-1}+e^0)$. The second query may not look at keys 3 and 4.
# </details>
# <details><summary>D. About 0.47</summary>
#
# Here the softmax ran down the column, over the queries 2, 3 and 4 that may see key 2: $e/(e+e+e^{-1})$. The weights
# belong to the query, so it runs along the row.
# </details>
#
# **2. A query and a key of 64 entries each have the dot product 13. The values have 256 entries. What is the score?**
#
# <details><summary>A. 13</summary>
#
# That is the dot product. Next to another key with dot product 5, the weights would be about 3000 to 1.
# </details>
# <details><summary>B. 13/√64 = 1.625</summary>
#
# Right. The root of the width of keys (and queries): that many products were added up.
# </details>
# <details><summary>C. 13/√256 ≈ 0.81</summary>
#
# The width of the *values* has no part in the score. They are mixed only afterward.
# </details>
# <details><summary>D. 13/64 ≈ 0.20</summary>
#
# That divides too much. A dot product of independent entries grows with the *root* of the width, not with the width.
# </details>
#
# **3. You multiply all queries by 10. What happens to the weights?**
#
# <details><summary>A. Nothing: the softmax normalizes</summary>
#
# It normalizes the sum, not the differences. Adding the same number to all scores of a row changes nothing;
# multiplying them does.
# </details>
# <details><summary>B. They come closer to a hard lookup</summary>
#
# Right. All differences of scores grow tenfold, and the ratios of weights with them.
# </details>
# <details><summary>C. They come closer to equal weights</summary>
#
# That would be dividing by 10: as scores approach 0, all weights approach $1/m$.
# </details>
#
# **4. Queries (7, 16), keys (9, 16), values (9, 5): what shape has the output?**
#
# <details><summary>A. (7, 5)</summary>
#
# Right. One row per query, as wide as a value. The 9 keys are summed over, the 16 is used up by the dot products.
# </details>
# <details><summary>B. (9, 5)</summary>
#
# The keys are what is mixed, so their number disappears. Each *query* gets an answer.
# </details>
# <details><summary>C. (7, 16)</summary>
#
# Queries and keys only decide the weights. What is returned is made of values.
# </details>
#
# **5. A sentence of 5 words is padded to 8, and you forget the padding mask. What goes wrong?**
#
# <details><summary>A. An error: shapes do not match</summary>
#
# If only. All shapes fit, and nothing complains.
# </details>
# <details><summary>B. Every word spends part of its attention on words that do not exist</summary>
#
# Right. And how much depends on how far the sentence was padded, so the same sentence gives different results in
# different batches.
# </details>
# <details><summary>C. Only the outputs at the padding are wrong, and those are never read</summary>
#
# Without a mask, the real words also mix in the padding's values.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - Attention is a lookup that answers with a mixture: scores, softmax along the keys, average of the values.
# - Because it is smooth, it can be trained. From sentence pairs alone, it learned the translations of 22 to 26 of 40
#   common words (counting finds 37).
# - Dividing by $\sqrt{d_k}$, the root of the width of the keys, starts training with scores near 1 in size and a
#   softmax soft enough to learn from.
# - A mask puts $-\infty$ before the softmax. A query with nothing to see gets zeros.
# - Attention ignores order, and it costs $4n^2d$ operations and $n^2$ numbers.
#
# **Read** Vaswani et al. 2017, *Attention Is All You Need*, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762),
# section 3.2.1 and footnote 4, which is the argument of our section 4. Bahdanau et al. 2015,
# [arXiv:1409.0473](https://arxiv.org/abs/1409.0473), section 3.1, where the soft lookup between two languages began;
# their score is *additive*, $v^\top \tanh(W s + U h)$ (lesson 02). Graves et al. 2014, *Neural Turing Machines*,
# [arXiv:1410.5401](https://arxiv.org/abs/1410.5401), on reading a memory by content: a cosine, a learned sharpness, and
# the softmax.
#
# **Do** the exercise [03_attention](../exercises/exercise_03_attention.ipynb). Then go on to
# [04 Many heads, self- and cross-attention](04_heads.ipynb).
