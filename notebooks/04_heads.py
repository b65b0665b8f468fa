# %% [markdown] lesson={"part": "I Attention", "builds": "multi-head attention and cross-attention"}
# # 04 · Many heads, self- and cross-attention
#
# **After this lesson you will be able to**
#
# - say why self-attention projects its words three times, and show what happens without;
# - prove in two lines what attention does when words change places;
# - say what a single head cannot do, and show it by measurement;
# - build multi-head attention, and say the shape of every tensor in it;
# - spot the reshape that mixes up words without an error;
# - let one sentence attend to another: cross-attention, with its padding mask on the right axis;
# - save memory with fewer keys and values, and time with a cache.
#
# **You need** [lesson 03](03_attention.ipynb). **It takes** about 100 minutes to read and try; all cells together run
# in about a minute and a half on a laptop.

# %% [markdown]
# ## 1 The problem: a sentence that looks at itself
#
# *The animal didn't cross the street because it was too tired.* Who was tired? Now end the sentence with *too wide*,
# and *it* is another thing. No vector made for *it* alone can know: the answer stands elsewhere in the sentence. So let
# the words of a sentence look at each other. That is **self-attention**: queries, keys and values all come from the
# same words. (What the heads of trained models do with *it*, lesson 15 counts.)
#
# We follow the sentence pair of lesson 03, here its English side: *The orcs have attacked the humans.* The word
# *attacked* should find out who did it, and to whom. First the data, made into numbers as in lesson 03: 0 is padding, 1
# is any word that is not common.

# %%
import re
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn

from txlib import plots
from txlib.attention import attention, causal
from txcourse import explore, figures
from txcourse.lesson import expect, progress, prove_equal, show_source
from txlib.data import translation

# %% [markdown]
# The sentences are those of lesson 03, from the dialogues of computer games. The English ones will do for now; the
# German ones wait for section 8.


# %%
def words(sentence):
    return re.findall(r"\w+", sentence.lower())


def vocabulary(sentences, at_least=20):
    count = Counter(word for sentence in sentences for word in words(sentence))
    common = (word for word, times in count.most_common() if times >= at_least)
    return {word: id for id, word in enumerate(common, start=2)}


def encode(sentences, ids):
    rows = [torch.tensor([ids.get(word, 1) for word in words(each)]) for each in sentences]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)  # (sentence, longest)


# %% [markdown]
# In this course $n$ is the length of the sequence that asks, and $m$ the length of the *memory*, the sequence that
# answers. From section 8 on, the German side is the memory.

# %%
splits = translation("games", max_words=12)
pairs, held_out = ([p for p in split if all(3 <= len(words(s)) <= 12 for s in p)]
                   for split in splits[:2])
(german, english), (german_test, english_test) = zip(*pairs), zip(*held_out)
german_ids, english_ids = vocabulary(german), vocabulary(english)
source, target = encode(german, german_ids), encode(english, english_ids)  # (…, m), (…, n)
source_test, target_test = encode(german_test, german_ids), encode(english_test, english_ids)
size = len(english_ids) + 2
print(f"{len(pairs):,} pairs to learn from, {len(held_out)} to test; "
      f"{size - 2} common English words")

# %% [markdown]
# ### First try: compare the words as they are
#
# Take vectors in which words that are used alike are alike. Lesson 01 made such vectors from counts: which words
# stand within two places of each other, how much more often than chance, and the strongest directions of that table.
# Here we keep 64 of them, and make all vectors equally long.
#
# Then comes the simplest self-attention there is, with nothing to learn: each word asks with its own vector, and is
# found by its own vector. The scores are $x_i \cdot x_j / \sqrt d$. Guess first: in the row of *attacked*, which word
# will get the highest score? And in the row of *orcs*, which will come second?

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
ids = vocabulary(english, at_least=10)                      # more words: "attacked" is rare
text = encode(english, ids)                                 # (sentence, n)
near = torch.zeros(len(ids) + 2, len(ids) + 2)              # (word, neighbour)
for apart in (1, 2):
    both = text[:, :-apart].flatten(), text[:, apart:].flatten()  # (pair,) twice
    near.index_put_(both, torch.ones(len(both[0])), accumulate=True)
near = (near + near.T).index_fill_(0, torch.tensor(0), 0).index_fill_(1, torch.tensor(0), 0)
chance = near.sum(dim=0) * near.sum(dim=1, keepdim=True) / near.sum()
ppmi = (near / chance).log().nan_to_num(0.0, neginf=0.0).clamp(min=0)  # (word, neighbour)
u, s, _ = torch.svd_lowrank(ppmi, q=64, niter=4)            # (word, 64), (64,)
vector = F.normalize(u * s.sqrt(), dim=-1) * 64**0.5        # (word, 64): all equally long

# %% [markdown]
# Here are the scores of the six words with each other, and the weights that the softmax makes of them. (The scores
# are drawn divided by 8, so that a word has 1 with itself; the softmax gets them undivided.)

# %% tags=["nbval-ignore-output"]
sentence = words("The orcs have attacked the humans.")
x = vector[[ids[word] for word in sentence]]                # (n, d)
score = x @ x.T / 64**0.5                                   # (n, n)
plots.heads(
    torch.stack([score / 8, score.softmax(dim=-1)]), names=["score ÷ 8", "weight"],
    rows=sentence, columns=sentence, numbers=True, size=0.55,
    title="Words compared as they are",
    alt="Two tables of six words by six words. In both, the largest number of each row stands on "
    "the diagonal. In the table of scores, the upper right half mirrors the lower left.",
)

# %% [markdown]
# Two things are wrong, and no better vectors would mend them.
#
# **Every word finds itself.** $x_i \cdot x_i$ is the squared length. Among vectors of equal length no dot product is
# larger (the Cauchy–Schwarz inequality). So each row puts nearly all its weight on its own word (*the* shares it with
# its twin), and the word receives what it was already. And the second best is what *resembles* the word: *orcs* looks
# at *humans*, though the word it needs is *attacked*.
#
# **Looking is mutual.** $x_i \cdot x_j = x_j \cdot x_i$: as much as *orcs* looks for *humans*, *humans* looks for
# *orcs*. But a verb may need its subject more than the subject needs the verb.
#
# On all test sentences:

# %% tags=["nbval-ignore-output"]
x = vector[encode(english_test, ids)]                       # (sentence, n, d)
real = encode(english_test, ids) > 0                        # (sentence, n)
score = x @ x.mT / 64**0.5                                  # (sentence, n, n)
weight = score.masked_fill(~real[:, None], -1e9).softmax(dim=-1)  # (sentence, n, n)
own = weight.diagonal(dim1=1, dim2=2)[real].mean().item()
even = (1 / real.sum(dim=-1, keepdim=True)).expand_as(real)[real].mean()
print(f"a word's weight on itself: {own:.0%}; if it looked at all words alike: {even:.0%}")
print(f"largest difference between score ij and score ji: {(score - score.mT).abs().max():.0e}")
expect("Weight on itself", own, 0.85, 1.0)

# %% [markdown]
# ## 2 Self-attention: three roles, three projections
#
# A word plays three roles, and they need not look alike. What it *looks for* is its query; what it can be *found by*,
# its key; what it *hands over*, its value. So give each role a matrix of its own, to be learned:
#
# $$q_i = x_i W^Q, \qquad k_j = x_j W^K, \qquad v_j = x_j W^V$$
#
# with vectors as rows, $W^Q$ and $W^K$ of $d_\text{model}$ rows and $d_k$ columns, and $W^V$ of $d_\text{model}$ rows
# and $d_v$ columns. Now *attacked* can look for nouns without being one. Written out, a score is
#
# $$q_i \cdot k_j = x_i \, \underbrace{W^Q (W^K)^\top}_{M} \, x_j^\top$$
#
# That is a **bilinear form**: linear in $x_i$, and linear in $x_j$. The table $M$,
# $d_\text{model} \times d_\text{model}$, says how much feature $a$ of the one who asks wants feature $b$ of the one
# who answers. Our first try was the special case where $M$ is the identity. (Luong et al. 2015,
# [arXiv:1508.04025](https://arxiv.org/abs/1508.04025), section 3.1, score with such an $M$ directly. Bahdanau's
# additive score, built in lesson 02 and named at the end of lesson 03, has a small network in its place.)
#
# Why two matrices, and not one $M$? Count.

# %%
torch.manual_seed(0)
d_model, d_k = 64, 8
x = torch.randn(6, d_model)                                 # (n, d_model)
w_q, w_k = torch.randn(2, d_model, d_k) / d_model**0.5      # each (d_model, d_k)
M = w_q @ w_k.T                                             # (d_model, d_model)
prove_equal((x @ w_q) @ (x @ w_k).T, x @ M @ x.T, what="Scores by two matrices and by M")
print(f"M has rank {torch.linalg.matrix_rank(M)}; does M equal its transpose? {M.allclose(M.T)}")
print(f"numbers to learn: {w_q.numel() + w_k.numel():,} in the two, {M.numel():,} in a free M")
print(f"to multiply for one new word: {2 * d_model * d_k:,}, or {d_model * d_model:,}")

# %% [markdown]
# $M$ has **low rank**, at most $d_k$: a head compares words in $d_k$ respects only. In exchange it has fewer numbers
# to learn, and compares short vectors. For one want, that is often enough.
#
# ### What happens when words change places
#
# Let $P$ be a matrix that puts the rows of $X$ into another order, so that $P^\top P$ is the identity. Then
#
# 1. the scores are $(PX) M (PX)^\top = P \, (X M X^\top) \, P^\top$: the same table, rows and columns re-ordered, and a
#    softmax along each row doesn't mind; call the weights $P A P^\top$;
# 2. the output is $P A P^\top \cdot P X W^V = P \, (A X W^V)$: the same output vectors, re-ordered.
#
# This is **equivariance**: shuffle the words, and each word's output goes along with it, unchanged. No word notices
# where anything stands. Let *orcs* and *humans* change places, and look at *attacked*.

# %%
first = ["the", "orcs", "have", "attacked", "the", "humans"]
second = ["the", "humans", "have", "attacked", "the", "orcs"]
w_v = torch.randn(d_model, d_model) / d_model**0.5          # (d_model, d_model)


def self_attention(sentence):
    x = vector[[ids[word] for word in sentence]]            # (n, d_model)
    q, k, v = (x @ w for w in (w_q, w_k, w_v))              # (n, d_k), (n, d_k), (n, d_v)
    return (q @ k.T / d_k**0.5).softmax(dim=-1) @ v         # (n, d_v)


out, exchanged = self_attention(first), self_attention(second)  # each (n, d_v)
prove_equal(out[[0, 5, 2, 3, 4, 1]], exchanged, what="Exchanged outputs, and outputs exchanged")
prove_equal(out[3], exchanged[3], what='What "attacked" hears in the two sentences')

# %% [markdown]
# So to *attacked*, both sentences are the same, whatever the matrices. Word vectors must also say where a word stands.
# Lesson 05 is about how; here each place simply gets a vector of its own, which is learned and added to the word's.
#
# ### Measured: one want
#
# A small task that real text can answer without a teacher: **each word must name its left neighbour.** A word's vector
# is the sum of what it is and where it stands. After attention, one linear layer names the word on the left. (A second
# layer, for the word on the right, waits for section 3.) The first and the last word are not asked.


# %%
class Neighbours(nn.Module):
    def __init__(self, attend, d_model):
        super().__init__()
        self.attend = attend
        self.word, self.place = nn.Embedding(size, d_model), nn.Embedding(12, d_model)
        self.left, self.right = nn.Linear(d_model, size), nn.Linear(d_model, size)

    def forward(self, ids):                                 # (batch, n)
        x = self.word(ids) + self.place.weight[: ids.shape[1]]  # (batch, n, d_model)
        heard = self.attend(x, (ids > 0)[:, None, None])[:, 1:-1]  # (batch, n - 2, d_model)
        real = ids[:, 2:] > 0                               # (batch, n - 2): not padding
        named = self.left(heard[real]), self.right(heard[real])  # (word, vocabulary) twice
        return *named, ids[:, :-2][real], ids[:, 2:][real]  # and the truth, (word,) twice


# %% [markdown]
# Its part that attends can be exchanged. We try three: words as they are; one projection for queries and keys together;
# and one each. Here is the last, attention with one head, as we will use it from here on. It has a fourth projection,
# for the output. The library's `attention` is the function that you built in lesson 03. It wants four axes, (batch,
# heads, length, $d_k$), and for now there is one head.


# %%
class OneHead(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.query, self.key, self.value, self.output = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def forward(self, x, mask):                             # (batch, n, d_model), (batch, 1, 1, n)
        q, k, v = (project(x)[:, None] for project in (self.query, self.key, self.value))
        mixed, weight = attention(q, k, v, mask, return_weights=True)  # (batch, 1, n, d_model)
        self.weight = weight.detach()                       # (batch, 1, n, n), to look at later
        return self.output(mixed[:, 0])                     # (batch, n, d_model)


# %% [markdown]
# The other two are the same with less to learn:


# %%
class SharedProjection(OneHead):
    def __init__(self, d_model):
        super().__init__(d_model)
        self.key = self.query                               # asks and is found by the same


class AsTheyAre(OneHead):
    def __init__(self, d_model):
        super().__init__(d_model)
        self.query = self.key = self.value = nn.Identity()


# %% [markdown]
# Training is a loop like that of lesson 03. `right=False` asks for the left neighbour only. A layer that names words
# gives one score per word of the vocabulary; such scores before the softmax are the **logits** that you met there.


# %%
def play(attend, right=True, d_model=64, steps=200, seed=0):
    torch.manual_seed(seed)
    model = Neighbours(attend(d_model), d_model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
    for _ in range(steps):
        batch = target[torch.randint(len(target), (64,))]   # (64, n)
        left_logits, right_logits, at_left, at_right = model(batch)
        loss = F.cross_entropy(left_logits, at_left)
        if right:
            loss = loss + F.cross_entropy(right_logits, at_right)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


# %% [markdown]
# On sentences that it has not seen we count how often the left neighbour is named correctly, how often the right one,
# and how often both.


# %%
@torch.no_grad()
def shares_named(model):
    left, right, at_left, at_right = model(target_test)     # logits twice, (word,) twice
    common = (at_left > 1) & (at_right > 1)                 # (word,): neighbours with a name
    left = (left.argmax(dim=-1) == at_left)[common]
    right = (right.argmax(dim=-1) == at_right)[common]
    return [each.float().mean().item() for each in (left, right, left & right)]


# %% [markdown]
# Each way is trained from three starts, as everywhere in this course where one thing is called better than another: a
# difference that is no larger than that between two starts is none. Which of the three ways can learn to look left?

# %% tags=["nbval-ignore-output"]
for name, attend in (("as they are", AsTheyAre), ("one projection", SharedProjection),
                     ("query and key", OneHead)):
    starts = progress(range(3), f"{name}, three starts")
    left = [shares_named(play(attend, right=False, seed=seed))[0] for seed in starts]
    print(f"{name:15} left neighbour named correctly: " + "  ".join(f"{s:.0%}" for s in left))
expect("The last way's worst start", min(left), 0.85, 1.0)

# %% [markdown]
# As they are, words mostly find themselves, and the word on the left can only be guessed from the word itself. One
# projection for both roles gets part of the way, and not from every start equally far. Its scores are mutual: if word
# 4 matches word 3 well, word 3 matches word 4 just as well. To look left, word 4 must match word 3 better than word
# 5, and word 5 must match word 4 better than word 6. So each pair of neighbours must match better than the pair after
# it, and that ladder is long. With a query *and* a key, "I look for the place before mine" is one matrix.
#
# ## 3 One row, two wants
#
# Now back to *attacked*, which wants to know two things: who did it, and to whom. Attention gives it one row of
# weights, and the row adds up to 1. So a single head can spend half on each noun. Suppose it does, whatever their
# order:

# %%
noun_weight = torch.tensor([0, 0.5, 0, 0, 0, 0.5])          # (key,): the row of "attacked"
value = [vector[[ids[word] for word in each]] for each in (first, second)]  # two of (key, d)
prove_equal(noun_weight @ value[0], noun_weight @ value[1], what='What "attacked" hears, once more')

# %% [markdown]
# An average has forgotten which part came from where. Two rows of weights keep them apart: one looks at the doer, the
# other at the victim, and the answers stand side by side.

# %%
who, whom = F.one_hot(torch.tensor([1, 5]), 6).float()      # two of (key,): all weight on one word
heard = [torch.cat([who @ v, whom @ v]) for v in value]     # two of (2 · d,)
print(f"with two rows the sentences differ by {(heard[0] - heard[1]).norm():.1f}")

# %% [markdown]
# Would training find a way around it? Ask the neighbour task for both sides, left *and* right. Two wants, once more,
# and one head. For what share of the words do you expect both neighbours to be named correctly?

# %% tags=["nbval-ignore-output"]
one = [play(OneHead, seed=seed) for seed in progress(range(3), "one head, three starts")]
for model in one:
    left, right, both = shares_named(model)
    print(f"named correctly: left neighbour {left:.0%}, right {right:.0%}, both {both:.0%}")
both_one = max(shares_named(model)[2] for model in one)
expect("Share of words that name both neighbours, one head, best start", both_one, 0.0, 0.6)

# %% [markdown]
# What does the head look at? Here are its weights for our sentence. (The first and the last row mean nothing: those
# words were never asked. And *attacked* is too rare for this vocabulary: the model sees it as a 1.)


# %% tags=["nbval-ignore-output"]
def look(model, title, alt):
    model(encode([" ".join(sentence)], english_ids))
    return plots.heads(model.attend.weight[0], rows=sentence, columns=sentence, size=0.55,
                       title=title, alt=alt, numbers=True)


look(one[0], "One head: one row for two neighbours",
     "Attention weights of six words on each other. The words between the first and the last "
     "have one row of weights each for both neighbours.")

# %% [markdown]
# A head may share itself out, and then cannot tell which half came from where; or it gives up one side altogether, and
# names the other. Which way out training finds depends on where it starts.
#
# Could it not spend 0.7 on the left and 0.3 on the right, and so mark them? The result is still one sum of two word
# vectors. A linear layer that reads the word with the weight 0.3 out of that sum would read the louder one even more
# clearly.
#
# What we want is two rows of weights for each word.

# %% [markdown]
# ## 4 The idea in one picture
#
# Do not use the wide query, key and value whole. Cut each into $h$ narrow strips, and let each set of strips attend
# on its own, with its own weights. This is a *head*. At the end put the heads' answers side by side again, and mix
# them with one more projection.

# %%
figures.multihead(
    4, title="Cut into strips: each head attends on its own",
    alt="From left to right: x is projected to Q, K and V; each is cut into four coloured "
    "strips; strips of one colour make one head's weight matrix and one narrow mixture; the "
    "four mixtures are joined and projected to the output.",
)

# %% [markdown]
# The strips are narrower, so nothing gets bigger: $h$ heads with $d_k = d_\text{model}/h$ columns each are as wide as
# one head with all of them.

# %% [markdown]
# ## 5 The equation
#
# $$\text{MultiHead}(Q, K, V) = \text{concat}(\text{head}_1, \dots, \text{head}_h)\, W^O$$
# $$\text{head}_i = \text{attention}(Q W_i^Q,\; K W_i^K,\; V W_i^V)$$
#
# (Vaswani et al. 2017, section 3.2.2.) Each $W_i^Q$ and $W_i^K$ has $d_\text{model}$ rows and $d_k$ columns, and
# $W_i^V$ has $d_v$ columns. Side by side the heads' answers have $h \cdot d_v$ columns, so $W^O$ is $(h \cdot d_v)
# \times d_\text{model}$. Mostly, and here, $d_v = d_k = d_\text{model} / h$; then $W^O$ is square. In self-attention
# $Q$, $K$ and $V$ are all the same $x$.
#
# The scale belongs to the head, too, not to the model: a head's dot products add up $d_k = d_\text{model}/h$
# products, so they are divided by $\sqrt{d_\text{model}/h}$, not by $\sqrt{d_\text{model}}$. `attention` does that by
# itself: it reads the width from the queries that it is given.
#
# Written down word for word, with a loop over the heads:


# %%
class LoopedHeads(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.query, self.key, self.value = (
            nn.ModuleList(nn.Linear(d_model, d_model // heads, bias=False) for _ in range(heads))
            for _ in range(3))
        self.output = nn.Linear(d_model, d_model, bias=False)  # h · d_v columns in, d_model out

    def forward(self, x, mask=None):                        # (batch, n, d_model), (batch, 1, 1, n)
        answers, weights = [], []
        for projections in zip(self.query, self.key, self.value):
            q, k, v = (project(x)[:, None] for project in projections)  # each (batch, 1, n, d_k)
            answer, weight = attention(q, k, v, mask, return_weights=True)
            answers.append(answer[:, 0])                    # (batch, n, d_v)
            weights.append(weight.detach())                 # (batch, 1, n, n)
        self.weight = torch.cat(weights, dim=1)             # (batch, heads, n, n)
        return self.output(torch.cat(answers, dim=-1))      # (batch, n, d_model)


# %% [markdown]
# Give the neighbour task two of these heads, each half as wide. Everything else stays the same: data, steps,
# learning rate, and the number of parameters.

# %% tags=["nbval-ignore-output"]
starts = progress(range(3), "two heads, three starts")
two = [play(lambda d_model: LoopedHeads(d_model, heads=2), seed=seed) for seed in starts]
for model in two:
    left, right, both = shares_named(model)
    print(f"named correctly: left neighbour {left:.0%}, right {right:.0%}, both {both:.0%}")
for name, model in (("one head", one[0]), ("two heads", two[0])):
    parameters = sum(p.numel() for p in model.attend.parameters())
    print(f"{name}: {parameters:,} parameters in attention")
expect("Share of words that name both neighbours, two heads, worst start",
       min(shares_named(model)[2] for model in two), 0.75, 1.0)

# %% [markdown]
# The same task, and nearly solved. What do the two heads look at?

# %% tags=["nbval-ignore-output"]
look(two[0], "Two heads, two rows for each word",
     "Two weight matrices of six words on each other. Between the first and the last row, "
     "nearly all weight of one stands just left of the diagonal, and of the other just right.")

# %% [markdown]
# One looks left, the other right. Nobody told the heads to share out the work. They came to it because it brings the
# loss down. (Again, look at the rows between the first and the last.)

# %% [markdown]
# ## 6 Build it: all heads at once
#
# The loop is slow: many small matrix products where a few large ones would do. Three observations remove it.
#
# 1. $h$ narrow projections side by side are one wide projection, `(d_model, d_model)`.
# 2. To attend, each head needs an axis of its own: `(batch, heads, n, d_k)`.
# 3. `attention` works on the last two axes. Batch and heads in front go along.
#
# We take it step by step, with a batch of 2, 6 words, 8 columns and 4 heads. **Step 1: project.**

# %%
torch.manual_seed(0)
batch, n, d_model, heads = 2, 6, 8, 4
d_k = d_model // heads
x = torch.randn(batch, n, d_model)                          # (batch, n, d_model)
query, key, value, output = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
q, k, v = query(x), key(x), value(x)                        # each (batch, n, d_model)

# %% [markdown]
# **Step 2: split.** Of the 8 columns of each word, head 0 gets the first two, head 1 the next two, and so on. (The
# equation counts heads from 1, Python from 0.) Dividing the last axis in two is a `view`. The head axis then stands
# after the words, and `transpose` brings it before them.


# %%
def split(x, heads):                                        # (batch, n, d_model)
    batch, n, d_model = x.shape
    x = x.view(batch, n, heads, d_model // heads)           # (batch, n, heads, d_k)
    return x.transpose(1, 2)                                # (batch, heads, n, d_k)


print("q is", tuple(q.shape), "and split", tuple(split(q, heads).shape))
prove_equal(split(q, heads)[:, 1], q[:, :, 2:4], what="Head 1 and columns 2 and 3 of each word")

# %% [markdown]
# ### The trap
#
# Why two lines? `x.view(batch, heads, n, d_k)` gives the same shape in one. Try it on an `x` that is easy to read: each
# word's row is filled with the word's own number. Then every cell below says which word it comes from; in each head it
# should be words 0, 1, 2, 3, 4, 5.

# %%
numbered = torch.arange(n).float().view(1, n, 1).repeat(1, 1, d_model)  # (1, n, d_model)
right = split(numbered, heads)                              # (1, heads, n, d_k)
wrong = numbered.view(1, heads, n, d_k)                     # (1, heads, n, d_k): no error
print("same shape:", right.shape == wrong.shape)
plots.heatmap(
    torch.cat([right[0, :, :, 0], wrong[0, :, :, 0]]), size=0.55,
    xlabel="row of the head", ylabel="",
    rows=[f"{how}, head {head}" for how in ("right", "wrong") for head in range(heads)],
    columns=[str(i) for i in range(n)], title="With view alone, words are mixed up",
    alt="Which word each row of each head was cut from. Split correctly, every head holds words "
    "0 to 5 in order. Wrong: head 0 holds pieces of words 0 and 1 only, head 3 of words 4 and 5.",
)

# %% [markdown]
# A `view` never moves a number in memory. It only counts the same numbers off in other portions. In memory, all 8
# numbers of word 0 come first, then all of word 1. So the wrong head 0 takes the first 12 numbers, which are word 0 and
# half of word 1, and believes they are six words.
#
# Remember the rule: **divide an axis with `view`, swap axes with `transpose`, never swap with `view`.**
#
# **Step 3: attend**, in all heads of all sentences at once.

# %%
mixed = attention(split(q, heads), split(k, heads), split(v, heads))  # (batch, heads, n, d_k)
print("mixed is", tuple(mixed.shape))

# %% [markdown]
# **Step 4: join.** The way back, in the opposite order: first bring the heads after the words, then merge the last two
# axes. (`reshape`, because after a transpose the numbers no longer lie in order, and `view` would refuse.)


# %%
def join(x):                                                # (batch, heads, n, d_k)
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)  # (batch, n, heads * d_k)


prove_equal(join(split(q, heads)), q, what="Split and joined again, and the original")

# %% [markdown]
# **Step 5: the output projection** $W^O$. Up to here no head has heard from any other. $W^O$ mixes their columns.

# %%
out = output(join(mixed))                                   # (batch, n, d_model)
print("out is", tuple(out.shape), "- the same as x, so that layers can be stacked")

# %% [markdown]
# ### Does it equal the equation?
#
# Take the loop version, and cut its narrow matrices out of our wide ones. A `Linear` stores its matrix as (out, in), so
# head $i$'s columns are rows of `weight`.

# %%
looped = LoopedHeads(d_model, heads)
with torch.no_grad():
    for narrow, wide in ((looped.query, query), (looped.key, key), (looped.value, value)):
        for part, rows in zip(narrow, wide.weight.split(d_k)):  # (d_k, d_model) each
            part.weight.copy_(rows)
    looped.output.weight.copy_(output.weight)
prove_equal(out, looped(x), what="All heads at once and the loop of the equation")

# %% [markdown]
# ### Break it: how far does the mix-up go?
#
# Wrong shapes stop a program. Wrong order does not, so you need a test. Here is a good one: use a causal mask, and
# ask by gradient which words each output depends on: where the gradient is 0, a word has no influence. Query $i$ may
# attend to key $j$ where $j \le i$: itself and its past, everything up to the diagonal, nothing beyond. (Some write
# $j < i$. Then a word could not see itself, and the first word could see nothing.)

# %%
def influence(split, join):
    inputs = torch.randn(1, n, d_model, requires_grad=True)  # (1, n, d_model)
    q, k, v = (split(project(inputs), heads) for project in (query, key, value))
    out = output(join(attention(q, k, v, mask=causal())))   # (1, n, d_model)
    rows = []
    for i in range(n):
        (gradient,) = torch.autograd.grad(out[0, i].sum(), inputs, retain_graph=True)
        rows.append(gradient[0].abs().sum(dim=-1))          # (n,): output i, by input
    return (torch.stack(rows) > 1e-7).float()               # (n, n): 1 where i depends on j


# %% [markdown]
# Three versions: the right one; one that splits correctly, but merges the heads without transposing back; one that
# takes the shortcut both ways.

# %%
def split_wrong(x, heads):
    return x.view(x.shape[0], heads, x.shape[1], -1)        # (batch, heads, n, d_k): no transpose


def join_wrong(x):
    return x.reshape(x.shape[0], x.shape[2], -1)            # (batch, n, d_model): no transpose


# %% [markdown]
# Six words have 15 places in the future, above the diagonal, and 21 on it and below.

# %%
versions = {"right": (split, join), "merged without transpose": (split, join_wrong),
            "both wrong": (split_wrong, join_wrong)}
reach = torch.stack([influence(*each) for each in versions.values()])  # (version, n, n)
for name, matrix in zip(versions, reach):
    future, past = int(matrix.triu(1).sum()), int((1 - matrix).tril().sum())
    print(f"{name:24} future seen: {future:2} of 15 places   past missing: {past:2} of 21 places")
plots.heads(
    reach, names=list(versions), size=0.42, bar=False,
    title="Which words reach which output, under a causal mask",
    xlabel="input word", ylabel="output word",
    alt="Input words that reach each output. Right: all up to the diagonal. Merged without "
    "transpose: nearly all, future too. Both wrong: only the word itself and at most the one "
    "before it.",
)

# %% [markdown]
# Merged without the transpose, the model reads the future through a mask that forbids it. It will score wonderfully in
# training, and fail when it has to write by itself.
#
# With both shortcuts the mask holds, by luck: all pieces still lie in the order of the text. A head is now a short
# stretch of the text, so a word sees itself and at most the word before it, and the rest of its past is gone. The two
# mistakes hide each other in `join(split(x)) == x`, and a test for the future alone would pass. So test both halves.

# %% [markdown]
# ## 7 What more heads cost
#
# The matrices have the same size for any $h$. And the operations? Multiplying an $(a, b)$ by a $(b, c)$ matrix takes
# $abc$ multiplications and as many additions. So the four projections take $4 \cdot 2nd^2 = 8nd^2$ operations, for
# short with $d$ for $d_\text{model}$, and scores and mixing $2n^2d$ each. Let torch count, for $d_\text{model} = 128$
# and a sentence of 64 words:

# %%
from torch.utils.flop_counter import FlopCounterMode

n, d_model = 64, 128
project = [nn.Linear(d_model, d_model, bias=False) for _ in range(4)]
x = torch.randn(1, n, d_model)                              # (1, n, d_model)
for heads in (1, 2, 4, 8, 16):
    with FlopCounterMode(display=False) as counter:
        q, k, v = (split(each(x), heads) for each in project[:3])  # each (1, heads, n, d_k)
        out = project[3](join(attention(q, k, v)))          # (1, n, d_model)
    parameters = sum(each.weight.numel() for each in project)
    print(f"{heads:2} heads of {d_model // heads:3} columns: {parameters:,} parameters, "
          f"{counter.get_total_flops():,} operations, {heads * n * n:6,} weights")
print(f"by hand: 4d² = {4 * d_model**2:,} parameters, "
      f"8nd² + 4n²d = {8 * n * d_model**2 + 4 * n**2 * d_model:,} operations")

# %% [markdown]
# Parameters and operations do not depend on $h$. The scores of one head cost $2n^2 d_k$, and $h$ heads with $h \cdot
# d_k = d_\text{model}$ columns cost $2n^2 d_\text{model}$. One thing does grow: there are $h$ weight matrices, so
# $hn^2$ weights to hold and to exponentiate.

# %% [markdown]
# ## 8 Self-attention and cross-attention
#
# Nothing says that the queries must come from the same sentence as the keys and values.
#
# | | queries from | keys and values from | weights |
# | --- | --- | --- | --- |
# | self-attention | $x$, $n$ words | $x$, $n$ words | $(n, n)$ |
# | cross-attention | $x$, $n$ words | the *memory*, $m$ words | $(n, m)$ |
#
# In a translator the English side asks, and the German sentence is the memory. One more argument makes our module do
# both. This is the whole of multi-head attention:


# %%
class ManyHeads(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def forward(self, x, memory=None, mask=None):           # (batch, n, d_model), (batch, m, …)
        memory = x if memory is None else memory
        q = split(self.query(x), self.heads)                # (batch, heads, n, d_k)
        k = split(self.key(memory), self.heads)             # (batch, heads, m, d_k)
        v = split(self.value(memory), self.heads)           # (batch, heads, m, d_k)
        mixed, weight = attention(q, k, v, mask, return_weights=True)  # (batch, heads, n, d_k)
        self.weight = weight.detach()                       # (batch, heads, n, m), to look at later
        return self.output(join(mixed))                     # (batch, n, d_model)


# %% [markdown]
# Try it on a batch of three real pairs. $n$ and $m$ differ, and German sentences shorter than $m$ are padded. (So are
# the English ones, but what a padding query finds is never read.) The mask belongs to the *keys*: it says which
# German words are real. Its shape is (batch, 1, 1, m): the same for each head and each query.

# %%
torch.manual_seed(0)
chosen = [pair for pair in pairs if len(words(pair[0])) == 5 + len(words(pair[1]))][:3]
m_ids = encode([german for german, _ in chosen], german_ids)  # (3, m)
n_ids = encode([english for _, english in chosen], english_ids)  # (3, n)
m_x = torch.randn(*m_ids.shape, 32)                         # (3, m, d_model)
n_x = torch.randn(*n_ids.shape, 32)                         # (3, n, d_model)
layer, mask = ManyHeads(32, heads=4), (m_ids > 0)[:, None, None]  # mask: (3, 1, 1, m)
out = layer(n_x, m_x, mask)                                 # (3, n, d_model)
print(f"m = {m_ids.shape[1]}  n = {n_ids.shape[1]}  out {tuple(out.shape)}  "
      f"weights {tuple(layer.weight.shape)}")
print("real German words:", (m_ids > 0).sum(dim=-1).tolist())
padding = layer.weight * ~mask                              # (3, heads, n, m): what goes to padding
print(f"attention spent on padding: {padding.sum():.0f}")

# %% [markdown]
# The output has as many rows as there are *queries*. How would you notice a missing mask? Pad the German sentences
# further. A padded sentence is still the same sentence, so nothing may change. (The mask must grow, too: `F.pad` fills
# with 0, here `False`.)

# %%
longer = F.pad(m_x, (0, 0, 0, 4))                           # (3, m + 4, d_model): more padding
out_longer = layer(n_x, longer, F.pad(mask, (0, 4)))        # (3, n, d_model)
prove_equal(out_longer, out, what="Outputs with more padding and without")
change = (layer(n_x, longer) - layer(n_x, m_x)).norm() / out.norm()
print(f"without a mask the output changes by {change:.0%}")

# %% [markdown]
# ## 9 See it work: fill the gap
#
# Now we train a small cross-attention model on real pairs. Its task: one English word is hidden. You see the word
# before it, the word after it, and the whole German sentence. Which word is it?
#
# > Der König ist tot. → *the* ? *is*
#
# The query is made of the two neighbours and the place of the gap. It must find, in the German sentence, the word
# that belongs there. The answer is read from what attention returns, and from nothing else. Each word of a sentence
# is hidden in turn, and these $n$ gaps are $n$ queries, asked at once.


# %%
class Gap(nn.Module):
    def __init__(self, attend, d_model=128):
        super().__init__()
        sizes = size, size, len(german_ids) + 2, 12, 12
        tables = [nn.Embedding(rows, d_model) for rows in sizes]
        for table in tables:
            nn.init.normal_(table.weight, std=0.2)
        self.before, self.after, self.german, self.gap_place, self.german_place = tables
        self.attend, self.name = attend, nn.Linear(d_model, size)

    def forward(self, source, target):                      # (batch, m), (batch, n)
        n, m = target.shape[1], source.shape[1]
        before = F.pad(target[:, :-1], (1, 0))              # (batch, n): the word before the gap
        after = F.pad(target[:, 1:], (0, 1))                # (batch, n): and the one after it
        x = self.before(before) + self.after(after) + self.gap_place.weight[:n]  # (batch, n, …)
        memory = self.german(source) + self.german_place.weight[:m]  # (batch, m, d_model)
        found = self.attend(x, memory, (source > 0)[:, None, None])  # (batch, n, d_model)
        return self.name(found[target > 1])                 # (gap, word): for common words only


# %% [markdown]
# Training, with a learning rate that rises quickly and then falls to nearly zero (lesson 08 says why):


# %%
def train(attend, steps=400, batch=64, seed=0, what=""):
    torch.manual_seed(seed)
    model = Gap(attend())
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.008, steps, pct_start=0.1)
    for _ in progress(range(steps), what) if what else range(steps):
        chosen = torch.randint(len(pairs), (batch,))        # (pair,)
        german, english = source[chosen], target[chosen]    # (batch, m), (batch, n)
        loss = F.cross_entropy(model(german, english), english[english > 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model


# %% [markdown]
# A test on new sentences gives two numbers. One is the share of gaps that are filled correctly. The other is the loss:
# minus the natural logarithm of the probability that the hidden word got, on average. Its unit is the *nat*. A loss of
# 3 nats is a probability of $e^{-3}$, or 1 in 20.


# %%
@torch.no_grad()
def test(model, source=source_test):
    logits, truth = model(source, target_test), target_test[target_test > 1]  # (gap, word), (gap,)
    right = (logits.argmax(dim=-1) == truth).float().mean()
    return F.cross_entropy(logits, truth).item(), right.item()


# %% [markdown]
# With four heads:

# %% tags=["nbval-ignore-output"]
model = train(lambda: ManyHeads(128, heads=4), what="filling gaps")
loss, right = test(model)
expect("Gaps filled correctly", right, 0.4, 0.55)
expect("Loss on new sentences", loss, 2.7, 3.3)

# %% [markdown]
# More than four gaps in ten, among some 800 words to choose from. How much of that comes from German? Hand each English
# sentence the German of its neighbour in the list, and see.

# %% tags=["nbval-ignore-output"]
loss_wrong, right_wrong = test(model, source_test.roll(1, dims=0))
expect("Gaps filled correctly with another sentence's German", right_wrong, 0.0, 0.25)

# %% [markdown]
# Less than half of that is left. (A wrong sentence also misleads, so a model that had never seen German might do a
# little better. But this one lives on German.)
#
# ### What do the heads look at?
#
# Here is a new sentence. Row *king* is the gap at *king*: the model is told *the* and *of* only, and where the gap is.


# %% tags=["nbval-ignore-output"]
def draw(number):
    german, english = german_test[number], english_test[number]
    model(encode([german], german_ids), encode([english], english_ids))
    return plots.heads(
        model.attend.weight[0], rows=words(english), columns=words(german), numbers=True,
        title="Four heads, four ways to look", xlabel="German word", ylabel="hidden word",
        alt="Four matrices, English gaps by German words. Some heads put much weight on the hidden "
        "word's translation; others look at other places.",
    )


draw(english_test.index("I am the king of this domain!"))

# %% [markdown]
# Heads differ: in row *king*, some put nearly all their weight on *könig*, others next to none. (Row *domain* means
# little: the word is too rare to have been asked for in training.) The same with lines, one head at a time:

# %% tags=["nbval-ignore-output"]
number = english_test.index("I am the king of this domain!")
explore.heads(model.attend.weight[0], rows=words(english_test[number]),
                    columns=words(german_test[number]))

# %% [markdown]
# One sentence can be lucky, so we count over all test sentences. For common words with a known translation, what share
# of a head's weight goes to the translation of the *hidden* word, which the query has not seen? And to the translation
# of the word before and after the gap, which it has?

# %%
KNOWN = """king könig · orcs orks · dead tot · we wir · they sie · gold gold · elves elfen
father vater · war krieg · water wasser · river fluss · men männer · and und · now jetzt
must müssen · here hier · all alle · i ich · undead untote · help hilfe · my mein · time zeit
north norden · what was · who wer · where wo · yes ja · is ist · not nicht · in in · will wird
will werden · you ihr · to zu · of von · the der · the die · the das"""
known = torch.zeros(size, len(german_ids) + 2).bool()       # (English, German): a translation?
for entry in KNOWN.replace("\n", " · ").split(" · "):
    english_word, german_word = entry.split()
    known[english_ids[english_word], german_ids[german_word]] = True


def share(asked, weight):                                   # (sentence, n), (…, heads, n, m)
    here = known[asked[:, :, None], source_test[:, None]]   # (sentence, n, m): where it stands
    rows = here.any(dim=-1) & (target_test > 0)             # (sentence, n): it stands somewhere
    return (weight * here[:, None]).sum(dim=-1).transpose(1, 2)[rows].mean(dim=0)  # (heads,)


# %% [markdown]
# For comparison, the column *by chance* is what a head would get that looks at all real words alike.

# %% tags=["nbval-ignore-output"]
test(model)
weight = model.attend.weight                                # (sentence, heads, n, m)
real = (source_test > 0).float()                            # (sentence, m)
evenly = (real / real.sum(dim=-1, keepdim=True))[:, None, None]  # (sentence, 1, 1, m)
asked = {"hidden word": target_test, "word before": F.pad(target_test[:, :-1], (1, 0)),
         "word after": F.pad(target_test[:, 1:], (0, 1))}
print("translation of   by chance   " + "   ".join(f"head {head}" for head in range(4)))
for name, ids in asked.items():
    shares = "   ".join(f"{s:6.0%}" for s in share(ids, weight))
    print(f"{name:15} {share(ids, evenly)[0]:9.0%}    {shares}")
expect("Best head's share on the hidden word", share(target_test, weight).amax().item(), 0.4, 0.85)

# %% [markdown]
# So the heads have shared out the work. Some are finders: about half of their weight, or more, goes to a word that
# the query has never seen, only inferred from the gap's surroundings. The others put little more on it than chance
# would. And the neighbours, which the query has seen? Most heads look up their translations no more than chance would,
# or less. In our run one of the finders makes an exception: it gives the word before the gap twice that share.
#
# Are those superfluous? Turn a head off, by setting to zero the part of $W^O$ that its answer meets (in torch,
# columns of `weight`, which is stored as (out, in)), and see how much worse the model gets.

# %% tags=["nbval-ignore-output"]
import copy


def without(model, head):
    model = copy.deepcopy(model)
    d_k = model.attend.output.weight.shape[1] // model.attend.heads
    with torch.no_grad():                                   # this head's columns, (d_model, d_k)
        model.attend.output.weight[:, head * d_k : (head + 1) * d_k] = 0.0
    return test(model)[0]


plots.bars(
    {f"without head {head}": without(model, head) - loss for head in range(4)},
    xlabel="rise of the loss (nats)", title="What each head is worth",
    alt="How much the test loss rises without each of the four heads, one bar per head.",
)

# %% [markdown]
# The best finder is missed most. The second finder is missed no more than the rest, presumably because the first
# still finds the word without it. But those that find little are missed as well: what stands beside the word you
# need, and at the other places of the sentence, seems to help to choose and to inflect it. A single head would have to
# put all of that into one average.

# %% [markdown]
# ## 10 Break it: how many heads?
#
# Same width, same parameters, same data; only $h$ changes. More heads are more ways to look, but they are narrower:
# with 32, each query and key has 4 entries to describe what it looks for. Guess how it goes on new sentences: does
# the loss fall all the way to 32, or does it turn? (Three starts each, with a shorter training, so that it takes half
# a minute.)

# %% tags=["nbval-ignore-output", "hide-output"] jupyter={"outputs_hidden": true}
def three_losses(attend, steps=220, batch=32):
    return [test(train(attend, steps, batch, seed=seed))[0] for seed in range(3)]


losses = {}
for heads in progress((1, 2, 4, 8, 16, 32), "1 to 32 heads, three starts each"):
    losses[heads] = three_losses(lambda: ManyHeads(128, heads))
mean = {heads: sum(three) / 3 for heads, three in losses.items()}
for heads, three in losses.items():
    print(f"h = {heads:2}  " + "  ".join(f"{one:.2f}" for one in three))
expect("What 8 heads gain over 1", mean[1] - mean[8], 0.05, 0.6)

# %% [markdown]
# One line per start, and their mean:

# %% tags=["nbval-ignore-output", "hide-output"] jupyter={"outputs_hidden": true}
curves = {f"start {seed}": (list(losses), [three[seed] for three in losses.values()])
          for seed in range(3)}
plots.lines(
    {**curves, "mean": (list(mean), list(mean.values()))}, xscale="log", marker="o",
    dashed=["mean"], xlabel="heads", ylabel="loss on new sentences (nats)",
    title="Loss against the number of heads, same parameters",
    alt="Test loss against the number of heads, 1 to 32, each twice the one before, for three "
    "starts. It falls, most from 1 to 2, and least from 16 to 32.",
)

# %% [markdown]
# The first doubling brings most, the last one least: 16 and 32 heads differ no more than two starts do. Here it does
# not turn. In the paper it does. Vaswani et al. (table 3, rows A) measured a model a hundred times as large, in BLEU, a
# score of translations from 0 to 100 that lesson 08 explains. Its optimum was 8 to 16 heads; 1 head was 0.9 worse than
# the best, and 32 fell back by 0.4. How many heads are best depends on the task and on the width. In both of these, one
# is too few.
#
# ### Break it: the trap, in training
#
# And the wrong `split` and `join`? Does training notice? Three starts again, to compare with `losses[4]`.


# %% tags=["nbval-ignore-output"]
class MixedUp(ManyHeads):
    def forward(self, x, memory, mask):                     # (batch, n, d_model), (batch, m, …)
        q, k, v = (split_wrong(project(each), self.heads)   # (batch, heads, n | m, d_k)
                   for project, each in ((self.query, x), (self.key, memory), (self.value, memory)))
        return self.output(join_wrong(attention(q, k, v, mask)))  # (batch, n, d_model)


mixed_up = three_losses(lambda: MixedUp(128, heads=4))
print("right split: loss " + "  ".join(f"{each:.2f}" for each in losses[4]))
print("wrong split: loss " + "  ".join(f"{each:.2f}" for each in mixed_up))
expect("What the wrong reshape costs, at least", min(mixed_up) - max(losses[4]), 0.1, 2.0)

# %% [markdown]
# No error, no `nan`, and the loss goes down. Just a model that is worse than it should be: it has four heads, and a
# higher loss than the right model with one. This is what most mistakes in attention look like.

# %% [markdown]
# ## 11 Open the library
#
# `txlib`'s module is the same five steps; find them in `forward`. New are biases, and `kv_heads` and `cache`, which
# the next two sections explain. Pass over the rest for now: `rotary` and `position_bias` tell positions (lesson 05),
# `mechanism` and `mask` are places for other kinds of attention, `head_dim` and `memory_dim` set widths, `scale`
# (inside: `scale_correction`) another scale; `qk_norm` and `dropout` help in training.

# %%
from txlib.attention import KeyValueCache, MultiHeadAttention, padding, recording

show_source(MultiHeadAttention)

# %% [markdown]
# Its four layers have the same names as ours, so the weights of our trained model simply load.

# %%
library = MultiHeadAttention(128, heads=4, bias=False)
library.load_state_dict(model.attend.state_dict())
torch.manual_seed(0)
x, memory = torch.randn(3, 5, 128), torch.randn(3, 7, 128)  # (batch, n, d_model), (batch, m, …)
mask = padding([7, 4, 2]).dense(5, 7)                       # (batch, 1, n, m)
prove_equal(model.attend(x, memory, mask), library(x, memory, mask=mask),
            what="Your cross-attention and the library's")
prove_equal(model.attend(x, mask=causal()), library(x, mask=causal()),
            what="Your self-attention and the library's")

# %% [markdown]
# And torch's own. It keeps the three input matrices stacked in one, and its masks are *the other way round*: `True`
# means *may not attend*.

# %%
theirs = nn.MultiheadAttention(128, num_heads=4, bias=False, batch_first=True)
with torch.no_grad():
    stacked = [library.query.weight, library.key.weight, library.value.weight]
    theirs.in_proj_weight.copy_(torch.cat(stacked))         # (3 · d_model, d_model)
    theirs.out_proj.weight.copy_(library.output.weight)
out, _ = theirs(x, memory, memory, key_padding_mask=~mask[:, 0, 0])  # (batch, n, d_model)
prove_equal(library(x, memory, mask=mask), out, tolerance=1e-4, what="The library's and torch's")

# %% [markdown]
# To look at the weights of any model built with the library, open a `recording`. It keeps them under each layer's name;
# `""` is the layer itself.

# %%
with recording(library) as seen:
    library(x, memory, mask=mask)
weight = seen[""][0]                                        # (batch, heads, n, m)
print(f"recorded: {tuple(weight.shape)}; on padding: {(weight * ~mask).sum():.0f}")

# %% [markdown]
# ## 12 Fewer keys and values: grouped queries
#
# A model that writes must keep the keys and values of all words so far (the next section shows how). With many layers
# and long texts they fill the memory. The remedy: let several query heads share one key head and one value head.
#
# - `kv_heads = heads`: what we have, multi-head attention.
# - `1 < kv_heads < heads`: *grouped-query attention* (Ainslie et al. 2023).
# - `kv_heads = 1`: *multi-query attention* (Shazeer 2019).
#
# With four query heads and two key heads, query heads 0 and 1 use key head 0, and query heads 2 and 3 use key head 1:
# neighbours share. So each key head is repeated in place, `repeat_interleave`. (`repeat` would lay the whole row out
# twice: 0, 1, 0, 1.)

# %%
kv_head = torch.arange(2)                                   # (kv_heads,)
print("repeat_interleave:", kv_head.repeat_interleave(2).tolist())
print("repeat:           ", kv_head.repeat(2).tolist())


def grouped(layer, x, kv_heads, mask=None):                 # (batch, n, d_model)
    q = split(layer.query(x), layer.heads)                  # (batch, heads, n, d_k)
    k, v = split(layer.key(x), kv_heads), split(layer.value(x), kv_heads)  # (batch, kv_heads, …)
    times = layer.heads // kv_heads
    k = k.repeat_interleave(times, dim=1)                   # (batch, heads, n, d_k)
    v = v.repeat_interleave(times, dim=1)                   # (batch, heads, n, d_k)
    return layer.output(join(attention(q, k, v, mask)))     # (batch, n, d_model)


layer = MultiHeadAttention(128, heads=8, kv_heads=2, bias=False)
prove_equal(grouped(layer, x, 2, causal()), layer(x, mask=causal()),
            what="Your grouped heads and the library's")

# %% [markdown]
# How much is saved? Count what is kept, for one layer and 64 words; then the same for a large model, whose sizes are
# those of Llama 2 70B: 80 layers, 64 heads of 128 columns, 4,096 words, 2 bytes per number.

# %%
for kv_heads in (8, 4, 2, 1):
    cache = KeyValueCache()
    layer = MultiHeadAttention(128, heads=8, kv_heads=kv_heads, bias=False)
    layer(torch.randn(1, 64, 128), cache=cache)
    large = 2 * 80 * (64 // 8 * kv_heads) * 128 * 4096 * 2 / 2**30  # keys and values, in GiB
    parameters = sum(p.numel() for p in layer.parameters())
    kept = cache.k.numel() + cache.v.numel()
    print(f"kv_heads {kv_heads} of 8: {parameters:,} parameters, {kept:6,} numbers kept; "
          f"{large:5.2f} GiB kept in the large model")

# %% [markdown]
# Llama 2 70B has 8 key heads for its 64 query heads, which is `kv_heads 1 of 8` in this table: 1.25 GiB for each text
# instead of 10. And what does it cost in quality? Train the gap model once more, with the library's module, all 8 query
# heads sharing one key and one value head.

# %% tags=["nbval-ignore-output"]
class Shared(MultiHeadAttention):
    def forward(self, x, memory, mask):                     # our Gap hands the mask over as third
        return super().forward(x, memory, mask=mask)


shared = three_losses(lambda: Shared(128, heads=8, kv_heads=1, bias=False))
runs = {"8 heads, 8 of keys and values": losses[8], "8 heads, 1 of keys and values": shared,
        "1 head in all": losses[1]}
for name, three in runs.items():
    print(f"{name:30} loss " + "  ".join(f"{each:.2f}" for each in three))
expect("What sharing costs", sum(shared) / 3 - mean[8], -0.1, 0.3)

# %% [markdown]
# One set of keys and values for eight heads costs about half of what a single head costs, and makes the cache eight
# times smaller. (It also has fewer parameters than the other two, which may be part of the cost.) Between the two,
# with a few key heads, Ainslie et al. found a quality close to that of the full set.

# %% [markdown]
# ## 13 Word by word: the key–value cache
#
# A decoder writes one word, appends it, and asks again. With a causal mask, the earlier words never see the new one. So
# their keys and values stay what they were: compute them once, and keep them. For a new word only *its* query, key and
# value are needed.


# %%
@torch.no_grad()
def write(layer, x):                                        # (1, n, d_model), word by word
    k, v, out = [], [], []
    for t in range(x.shape[1]):
        new = x[:, t : t + 1]                               # (1, 1, d_model)
        k.append(split(layer.key(new), layer.heads))        # (1, heads, 1, d_k)
        v.append(split(layer.value(new), layer.heads))      # (1, heads, 1, d_k)
        q = split(layer.query(new), layer.heads)            # (1, heads, 1, d_k)
        mixed = attention(q, torch.cat(k, dim=2), torch.cat(v, dim=2))  # (1, heads, 1, d_k)
        out.append(layer.output(join(mixed)))               # (1, 1, d_model)
    return torch.cat(out, dim=1)                            # (1, n, d_model)


# %% [markdown]
# No mask is needed: what lies in the future has not been written yet. Compare it with the whole text at once under a
# causal mask, and with writing that keeps nothing and begins again for each word:


# %%
@torch.no_grad()
def write_again(layer, x):                                  # the whole text for each new word
    texts = (x[:, : t + 1] for t in range(x.shape[1]))      # each (1, t + 1, d_model)
    return torch.cat([layer(text, mask=causal())[:, -1:] for text in texts], dim=1)


torch.manual_seed(0)
layer = MultiHeadAttention(128, heads=8, bias=False)
x = torch.randn(1, 32, 128)                                 # (1, n, d_model)
prove_equal(write(layer, x), layer(x, mask=causal()), what="Word by word and all at once")
prove_equal(write(layer, x), write_again(layer, x), what="With a cache and without")

# %% [markdown]
# The library's cache does the same, and takes several words at a time as well.

# %%
with torch.no_grad():
    cache = KeyValueCache()
    parts = [layer(part, mask=causal(), cache=cache) for part in x.split([20, 1, 11], dim=1)]
prove_equal(torch.cat(parts, dim=1), layer(x, mask=causal()), what="In three parts and all at once")

# %% [markdown]
# And the work? Count the operations for writing $n$ words.

# %%
for n in (16, 64, 256):
    x, work = torch.randn(1, n, 128), []                    # (1, n, d_model)
    for way in (write_again, write):
        with FlopCounterMode(display=False) as counter:
            way(layer, x)
        work.append(counter.get_total_flops())
    without_cache, with_cache = work
    print(f"{n:3} words: {without_cache / 1e6:7.1f} MFLOP without a cache, "
          f"{with_cache / 1e6:5.1f} with: {without_cache / with_cache:5.1f} times less")

# %% [markdown]
# Without a cache, $1 + 2 + \dots + n \approx n^2/2$ words are projected, most of them again and again. With it, each of
# the $n$ words is projected once. That is why nearly every program that writes text with a Transformer keeps one, and
# why its size, in section 12, matters.

# %% [markdown]
# ## 14 What it costs
#
# Back to section 7: the four projections cost $8nd^2$ operations, scores and mixing $4n^2d$. Which is larger? They
# are equal at $n = 2d$. Here for $d_\text{model} = 512$, as in the paper:

# %%
lengths, d = [16, 64, 256, 1024, 4096, 16384], 512
for n in (64, 1024):
    x = torch.randn(1, n, d)                                # (1, n, d)
    with FlopCounterMode(display=False) as counter:
        ManyHeads(d, heads=8)(x)
    by_hand, counted = 8 * n * d**2 + 4 * n**2 * d, counter.get_total_flops()
    print(f"n {n:4}: counted {counted / 1e6:7.1f} MFLOP, 8nd² + 4n²d = {by_hand / 1e6:7.1f}")

# %% [markdown]
# And drawn over many lengths:

# %%
plots.lines(
    {"projections, 8nd²": (lengths, [8 * n * d**2 for n in lengths]),
     "scores and mixing, 4n²d": (lengths, [4 * n**2 * d for n in lengths])},
    xscale="log", yscale="log", marker="o", xlabel="length n", ylabel="operations",
    title="Below 1,024 words the projections cost more than the attention",
    alt="Operations against length on logarithmic axes for width 512. Projections grow in "
    "proportion to the length, scores and mixing with its square; the lines cross at 1,024.",
)

# %% [markdown]
# The famous square only hurts in long texts. A sentence of 30 words spends nearly everything on projections.
#
# Operations do not depend on $h$. Does the clock? Decide before you run this.

# %% tags=["nbval-ignore-output", "hide-output"] jupyter={"outputs_hidden": true}
import time


@torch.no_grad()
def milliseconds(heads, n=512, repeats=9):
    layer, x, times = ManyHeads(128, heads), torch.randn(1, n, 128), []  # x: (1, n, d_model)
    layer(x)                                                         # the first call is slower
    for _ in range(repeats):
        start = time.perf_counter()
        layer(x)
        times.append(1000 * (time.perf_counter() - start))
    return sorted(times)[repeats // 2]


plots.bars(
    {f"h = {heads}": milliseconds(heads) for heads in (1, 2, 4, 8, 16)},
    xlabel="milliseconds, 512 words", format="{:.1f}", title="The same operations, timed",
    alt="Time of one layer for 1, 2, 4, 8 and 16 heads, one bar each.",
)

# %% [markdown]
# It does, on a CPU. Between few heads the bars may come in any order, since whatever else the machine does shows, too.
# But 16 heads take several times as long as 1 or 2: $hn^2$ weights are written to memory, read, and exponentiated.
# Where they no longer fit into the processor's caches, the time can leap, as in lesson 03. Counting operations
# is not the whole story when memory is the bottleneck. Lesson 34 will build on this.

# %% [markdown]
# ## 15 Quiz
#
# Decide first, then open an answer.
#
# **1. You change a layer with $d_\text{model} = 512$ from 8 heads to 16. How many parameters does it have now?**
#
# <details><summary>A. Twice as many</summary>
#
# Twice as many heads, but each is half as wide: $16 \cdot 32 = 8 \cdot 64 = 512$ columns.
# </details>
# <details><summary>B. As many as before</summary>
#
# Right: $4 \cdot 512^2$, and biases. The matrices are only cut into more strips.
# </details>
# <details><summary>C. Half as many, because $d_k$ is halved</summary>
#
# Each head has half as many. But there are twice as many heads.
# </details>
#
# **2. `x` is (batch, n, d_model). Which line splits the heads?**
#
# <details><summary>A. <code>x.view(batch, heads, n, d_k)</code></summary>
#
# The shape is right, the numbers are not: head 0 gets all columns of the first words, instead of the first columns of
# all words.
# </details>
# <details><summary>B. <code>x.view(batch, n, heads, d_k).transpose(1, 2)</code></summary>
#
# Right. First divide the last axis in two, then swap.
# </details>
# <details><summary>C. <code>x.transpose(1, 2).reshape(batch, heads, n, d_k)</code></summary>
#
# After the transpose it is (batch, d_model, n). Counting off portions of $d_k$ numbers then takes several *words'*
# entries of one column as one row.
# </details>
# <details><summary>D. <code>x.view(batch, n, heads, d_k)</code></summary>
#
# The numbers are right, but attention works on the last two axes. It would let the *heads* of one word attend to each
# other.
# </details>
#
# **3. English words (n = 7) attend to a German sentence (m = 9), batch 5, 4 heads. What shape has the padding mask?**
#
# <details><summary>A. (5, 1, 1, 9)</summary>
#
# Right. It says which of the 9 German words are real, for all heads and all queries alike.
# </details>
# <details><summary>B. (5, 1, 7, 1)</summary>
#
# That says which *queries* are real. It would forbid some of them everything, and let the others look at the padding.
# (`attention` refuses it.)
# </details>
# <details><summary>C. (5, 1, 7, 7)</summary>
#
# The scores are (5, 4, 7, 9). A mask for self-attention does not fit here.
# </details>
#
# **4. What would you lose without $W^O$?**
#
# <details><summary>A. Nothing: the next layer can mix the heads</summary>
#
# It can, but until then column 0 of the result comes from head 0 only. And in a real model the result is *added* to the
# input (lesson 06), which ties each head to fixed columns of it.
# </details>
# <details><summary>B. Each output column would come from one head only</summary>
#
# Right. $W^O$ is where the heads' answers meet.
# </details>
# <details><summary>C. The shape: heads could not be joined</summary>
#
# They are joined before $W^O$, and already have $h \cdot d_k = d_\text{model}$ columns.
# </details>
#
# **5. You halve `kv_heads`. What becomes smaller?**
#
# <details><summary>A. The cache, and the key and value matrices</summary>
#
# Right. Half as many keys and values to make and to keep.
# </details>
# <details><summary>B. The number of weights in the attention matrices</summary>
#
# Each *query* head still has its own row of weights for each word: $h n m$ of them.
# </details>
# <details><summary>C. The output</summary>
#
# It is as wide as the query heads together: $d_\text{model}$.
# </details>

# %% [markdown]
# ## 16 Summary
#
# - One head has one row of weights for each word, and can only average what it wants. $h$ heads have $h$ rows.
# - Project, split, attend, join, project. Parameters and operations do not depend on $h$.
# - `view` divides, `transpose` swaps. Mixed up, words get lost without an error.
# - In cross-attention, queries come from one sentence, keys and values from another; the padding mask is on the key
#   axis.
# - With a cache, writing $n$ words takes the projections of $n$ words, instead of $n^2/2$. Fewer key and value heads
#   make the cache smaller.
#
# **Read** Vaswani et al. 2017, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762), sections 3.2.2 and 3.2.3, and
# table 3, rows A. Michel et al. 2019, [arXiv:1905.10650](https://arxiv.org/abs/1905.10650), on turning heads off in
# real models. Shazeer 2019, [arXiv:1911.02150](https://arxiv.org/abs/1911.02150), and Ainslie et al. 2023,
# [arXiv:2305.13245](https://arxiv.org/abs/2305.13245), on shared keys and values.
#
# **Do** the exercise [04_heads](../exercises/exercise_04_heads.ipynb). Then go on to
# [05 Where am I? Positions](05_positions.ipynb).
