# %% [markdown]
# # 04 · Many heads, and cross-attention
#
# **After this lesson you will be able to**
#
# - say what a single head cannot do, and show it by measurement;
# - build multi-head attention, and say the shape of every tensor in it;
# - spot the reshape that mixes up words without an error;
# - let one sentence attend to another: cross-attention, with its padding mask on the right axis;
# - save memory with fewer keys and values, and time with a cache.
#
# **You need** [lesson 03](03_attention.ipynb). **It takes** about 60 minutes to read and try; all cells together run
# in about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: one row, two wants
#
# The word *attacked* wants to know two things: who did it, and to whom. Attention gives it one row of weights, and the
# row adds up to 1. So a single head can spend half on each noun. Here is what it hears:

# %%
import torch
import torch.nn.functional as F
from torch import nn

from txlib import plots
from txlib.attention import attention, causal
from txlib.data import translation
from txlib.course.lesson import expect, progress, prove_equal, show_source

torch.manual_seed(0)
first = ["the", "orcs", "have", "attacked", "the", "humans"]
second = ["the", "humans", "have", "attacked", "the", "orcs"]
vector = {word: torch.randn(8) for word in first}                  # word → (8,)
value = [torch.stack([vector[word] for word in sentence]) for sentence in (first, second)]     # two of (key, 8)
weight = torch.tensor([0, 0.5, 0, 0, 0, 0.5])                      # (key,): the row of "attacked"
prove_equal(weight @ value[0], weight @ value[1], what='What "attacked" hears in the two sentences')

# %% [markdown]
# An average has forgotten which part came from where. Two rows of weights keep them apart: one looks at the doer, the
# other at the victim, and the answers stand side by side.

# %%
who, whom = F.one_hot(torch.tensor([1, 5]), 6).float()             # two of (key,): all weight on one word
heard = [torch.cat([who @ v, whom @ v]) for v in value]            # two of (16,)
print(f"with two rows the sentences differ by {(heard[0] - heard[1]).norm():.1f}")

# %% [markdown]
# ### The same on real sentences
#
# Would training find a way around it? Let us try on a small task that real text can answer without a teacher: **each
# word must name its left neighbour and its right neighbour.** Two wants, once more.
#
# The words become numbers as in lesson 03: 0 is padding, 1 is any word that is not common.

# %%
import re
from collections import Counter


def words(sentence):
    return re.findall(r"\w+", sentence.lower())


def vocabulary(sentences, at_least=20):
    count = Counter(word for sentence in sentences for word in words(sentence))
    return {word: id for id, word in enumerate((w for w, c in count.most_common() if c >= at_least), start=2)}


def encode(sentences, ids):
    rows = [torch.tensor([ids.get(word, 1) for word in words(sentence)]) for sentence in sentences]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)       # (sentence, longest)


# %% [markdown]
# The sentences are those of lesson 03, from the dialogues of computer games. The English ones will do for now; the
# German ones wait for section 6.

# %%
splits = translation("games", max_words=12)
pairs, held_out = ([p for p in split if all(3 <= len(words(s)) <= 12 for s in p)] for split in splits[:2])
(german, english), (german_test, english_test) = zip(*pairs), zip(*held_out)
german_ids, english_ids = vocabulary(german), vocabulary(english)
source, target = encode(german, german_ids), encode(english, english_ids)          # (sentence, m), (sentence, n)
source_test, target_test = encode(german_test, german_ids), encode(english_test, english_ids)
size = len(english_ids) + 2
print(f"{len(pairs):,} pairs to learn from, {len(held_out)} to test; {size - 2} common English words")

# %% [markdown]
# Here is attention with one head as a module: three learned projections that make queries, keys and values, and a
# fourth for the output. The library's `attention` is the function that you built in lesson 03. It wants four axes,
# (batch, heads, length, d_k), and for now there is one head.


# %%
class OneHead(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def forward(self, x, mask):                                    # (batch, n, d_model), (batch, 1, 1, n)
        q, k, v = (project(x)[:, None] for project in (self.query, self.key, self.value))  # (batch, 1, n, d_model) each
        mixed, weight = attention(q, k, v, mask, return_weights=True)
        self.weight = weight.detach()                              # (batch, 1, n, n), to look at later
        return self.output(mixed[:, 0])                            # (batch, n, d_model)


# %% [markdown]
# And the task around it. A word's vector is the sum of what it is and where it stands (lesson 05 is about the second
# part). After attention, one linear layer names the word on the left, another the word on the right. The first and the
# last word are not asked: they have one neighbour only.


# %%
class Neighbours(nn.Module):
    def __init__(self, attend, d_model):
        super().__init__()
        self.attend, self.word, self.place = attend, nn.Embedding(size, d_model), nn.Embedding(12, d_model)
        self.left, self.right = nn.Linear(d_model, size), nn.Linear(d_model, size)

    def forward(self, ids):                                        # (batch, n)
        x = self.word(ids) + self.place.weight[: ids.shape[1]]     # (batch, n, d_model)
        heard = self.attend(x, (ids > 0)[:, None, None])[:, 1:-1]  # (batch, n - 2, d_model): not the two ends
        real = ids[:, 2:] > 0                                      # (batch, n - 2): not padding
        asked = ids[:, :-2][real], ids[:, 2:][real]                # (word,), (word,): what should be named
        return self.left(heard[real]), self.right(heard[real]), *asked      # (word, vocabulary) twice, (word,) twice


# %% [markdown]
# Training is a loop like that of lesson 03. Right and left count alike.


# %%
def play(attend, d_model=64, steps=300, seed=0):
    torch.manual_seed(seed)
    model = Neighbours(attend(d_model), d_model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
    for _ in progress(range(steps), "naming neighbours"):
        left, right, at_left, at_right = model(target[torch.randint(len(target), (64,))])
        loss = F.cross_entropy(left, at_left) + F.cross_entropy(right, at_right)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


# %% [markdown]
# On sentences that it has not seen we count three things: how often the left neighbour is named rightly, how often the
# right one, and how often both.


# %%
@torch.no_grad()
def score(model):
    left, right, at_left, at_right = model(target_test)            # (word, vocabulary) twice, (word,) twice
    common = (at_left > 1) & (at_right > 1)                        # (word,): count only neighbours with a name
    left, right = (left.argmax(dim=-1) == at_left)[common], (right.argmax(dim=-1) == at_right)[common]
    both = (left & right).float().mean().item()
    print(f"named rightly: left neighbour {left.float().mean():.0%}, right {right.float().mean():.0%}, both {both:.0%}")
    return both


# %% [markdown]
# One head, then:

# %% tags=["nbval-ignore-output"]
one = play(OneHead)
both_one = score(one)
expect("Share of words that name both neighbours, one head", both_one, 0.0, 0.55)

# %% [markdown]
# It names the one or the other far more often than both. What does the head look at? Here are its weights for one
# sentence. (The first and the last row mean nothing: those words were never asked.)


# %% tags=["nbval-ignore-output"]
def look(model, title, alt):
    sentence = "The orcs have attacked the humans."
    model(encode([sentence], english_ids))
    return plots.heads(model.attend.weight[0], rows=words(sentence), columns=words(sentence), size=0.55, title=title,
                       alt=alt, numbers=True)


look(one, "One head: one row for two neighbours",
     "Attention weights of six words on each other. The words between the first and the last spread their weight over "
     "the left and right neighbour, about half to each.")

# %% [markdown]
# It gives about half to each side, and then it cannot tell which half is which. That is one bad way out. Started from
# other random numbers, it may find another:

# %% tags=["nbval-ignore-output"]
both_again = score(play(OneHead, seed=1))
expect("Share of words that name both neighbours, another start", both_again, 0.0, 0.55)

# %% [markdown]
# A head that names one side nearly always and the other side hardly ever has given up a side altogether.
#
# Could it not spend 0.7 on the left and 0.3 on the right, and so mark them? The result is still one sum of two word
# vectors. A linear layer that reads the word with the weight 0.3 out of that sum would read the louder one even more
# clearly.
#
# What we want is two rows of weights for each word.

# %% [markdown]
# ## 2 The idea in one picture
#
# Do not make one wide query, key and value. Cut each into $h$ narrow strips, and let each set of strips attend on its
# own, with its own weights. This is a *head*. At the end put the heads' answers side by side again, and mix them with
# one more projection.

# %%
plots.multihead(
    4, title="Cut into strips: each head attends on its own",
    alt="From left to right: x is projected to Q, K and V; each is cut into four coloured strips; strips of one colour "
    "make one head's weight matrix and one narrow mixture; the four mixtures are joined and projected to the output.",
)

# %% [markdown]
# The strips are narrower, so nothing gets bigger: $h$ heads with $d_k = d_{model}/h$ columns each are as wide as one
# head with all of them.

# %% [markdown]
# ## 3 The equation
#
# $$\text{MultiHead}(Q, K, V) = \text{concat}(\text{head}_1, \dots, \text{head}_h)\, W^O$$
# $$\text{head}_i = \text{attention}(Q W_i^Q,\; K W_i^K,\; V W_i^V)$$
#
# (Vaswani et al. 2017, section 3.2.2.) Each $W_i^Q$, $W_i^K$ and $W_i^V$ has $d_{model}$ rows and $d_k = d_{model} / h$
# columns; $W^O$ is $d_{model} \times d_{model}$. In self-attention $Q$, $K$ and $V$ are all the same $x$. Written down
# word for word, with a loop over the heads:


# %%
class LoopedHeads(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.query, self.key, self.value = (
            nn.ModuleList(nn.Linear(d_model, d_model // heads, bias=False) for _ in range(heads)) for _ in range(3))
        self.output = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, mask=None):                               # (batch, n, d_model), (batch, 1, 1, n)
        answers, weights = [], []
        for query, key, value in zip(self.query, self.key, self.value):
            q, k, v = query(x)[:, None], key(x)[:, None], value(x)[:, None]         # each (batch, 1, n, d_k)
            answer, weight = attention(q, k, v, mask, return_weights=True)  # (batch, 1, n, d_k), (batch, 1, n, n)
            answers.append(answer[:, 0])
            weights.append(weight.detach())
        self.weight = torch.cat(weights, dim=1)                    # (batch, heads, n, n)
        return self.output(torch.cat(answers, dim=-1))             # (batch, n, d_model)


# %% [markdown]
# Give the neighbour task two of these heads, each half as wide. Everything else stays: data, steps, learning rate, and
# the number of parameters.

# %% tags=["nbval-ignore-output"]
two = play(lambda d_model: LoopedHeads(d_model, heads=2))
both_two = score(two)
for name, model in (("one head", one), ("two heads", two)):
    print(f"{name}: {sum(p.numel() for p in model.attend.parameters()):,} parameters in attention")
expect("Share of words that name both neighbours, two heads", both_two, 0.8, 1.0)

# %% [markdown]
# The same task, and nearly solved. What do the two heads look at?

# %% tags=["nbval-ignore-output"]
look(two, "Two heads: one looks left, the other looks right",
     "Two weight matrices of six words on each other. Between the first and the last row, nearly all weight of one "
     "stands just left of the diagonal, and of the other just right of it.")

# %% [markdown]
# Nobody told the heads to share out the work. It was the only way to bring the loss down. (Again, look at the rows
# between the first and the last.)

# %% [markdown]
# ## 4 Build it: all heads at once
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
x = torch.randn(batch, n, d_model)                                 # (batch, n, d_model)
query, key, value, output = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
q, k, v = query(x), key(x), value(x)                               # each (batch, n, d_model)

# %% [markdown]
# **Step 2: split.** Of the 8 columns of each word, head 0 gets the first two, head 1 the next two, and so on. (The
# equation counts heads from 1, Python from 0.) Dividing the last axis in two is a `view`. The head axis then stands
# behind the words, and `transpose` brings it in front of them.


# %%
def split(x, heads):                                               # (batch, n, d_model)
    batch, n, d_model = x.shape
    x = x.view(batch, n, heads, d_model // heads)                  # (batch, n, heads, d_k)
    return x.transpose(1, 2)                                       # (batch, heads, n, d_k)


print("q is", tuple(q.shape), "and split", tuple(split(q, heads).shape))
prove_equal(split(q, heads)[:, 1], q[:, :, 2:4], what="Head 1 and columns 2 and 3 of each word")

# %% [markdown]
# ### The trap
#
# Why two lines? `x.view(batch, heads, n, d_k)` gives the same shape in one. Try it on an `x` that is easy to read: each
# word's row is filled with the word's own number. Then every cell below says which word it comes from; in each head it
# should be words 0, 1, 2, 3, 4, 5.

# %%
numbered = torch.arange(n).view(1, n, 1).expand(1, n, d_model).float().contiguous()     # (1, n, d_model)
right = split(numbered, heads)                                     # (1, heads, n, d_k)
wrong = numbered.view(1, heads, n, d_k)                            # (1, heads, n, d_k): same shape, no error
print("same shape:", right.shape == wrong.shape)
plots.heatmap(
    torch.cat([right[0, :, :, 0], wrong[0, :, :, 0]]), size=0.55, xlabel="row of the head", ylabel="",
    rows=[f"{how}, head {head}" for how in ("right", "wrong") for head in range(heads)],
    columns=[str(i) for i in range(n)], title="With view alone, words are mixed up",
    alt="Which word each row of each head was cut from. Split rightly, every head holds words 0 to 5 in order. Split "
    "wrongly, head 0 holds pieces of words 0 and 1 only, head 3 of words 4 and 5.",
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
mixed = attention(split(q, heads), split(k, heads), split(v, heads))         # (batch, heads, n, d_k)
print("mixed is", tuple(mixed.shape))

# %% [markdown]
# **Step 4: join.** The way back, in the opposite order: first bring the heads behind the words, then merge the two last
# axes. (`reshape`, because after a transpose the numbers no longer lie in order, and `view` would refuse.)


# %%
def join(x):                                                       # (batch, heads, n, d_k)
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)   # (batch, n, heads * d_k)


prove_equal(join(split(q, heads)), q, what="Split and joined again, and the original")

# %% [markdown]
# **Step 5: the output projection** $W^O$. Until here no head has heard of any other. $W^O$ mixes their columns.

# %%
out = output(join(mixed))                                          # (batch, n, d_model)
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
        for part, rows in zip(narrow, wide.weight.split(d_k)):     # (d_k, d_model) each
            part.weight.copy_(rows)
    looped.output.weight.copy_(output.weight)
prove_equal(out, looped(x), what="All heads at once and the loop of the equation")

# %% [markdown]
# ### Break it: how far does the mix-up go?
#
# Wrong shapes stop a program. Wrong order does not, so you need a test. Here is a good one: use a causal mask, and ask
# by gradient which words each output depends on. It must be itself and its past: everything up to the diagonal, nothing
# beyond.

# %%
def influence(split, join):
    inputs = torch.randn(1, n, d_model, requires_grad=True)        # (1, n, d_model)
    parts = [split(project(inputs), heads) for project in (query, key, value)]          # (1, heads, n, d_k) each
    out = output(join(attention(*parts, mask=causal())))           # (1, n, d_model)
    rows = [torch.autograd.grad(out[0, i].sum(), inputs, retain_graph=True)[0][0].abs().sum(dim=-1) for i in range(n)]
    return (torch.stack(rows) > 1e-7).float()                      # (n, n), output and input: 1 where it depends


# %% [markdown]
# Three versions: the right one; one that merges the heads before it transposes; one that takes the shortcut both ways.

# %%
def split_wrong(x, heads):
    return x.view(x.shape[0], heads, x.shape[1], -1)               # (batch, heads, n, d_k): no transpose


def join_wrong(x):
    return x.reshape(x.shape[0], x.shape[2], -1)                   # (batch, n, d_model): no transpose


# %% [markdown]
# Six words have 15 places in the future, above the diagonal, and 21 on it and below.

# %%
versions = {"right": (split, join), "merged too early": (split, join_wrong), "both wrong": (split_wrong, join_wrong)}
reach = torch.stack([influence(*version) for version in versions.values()])            # (version, n, n)
for name, matrix in zip(versions, reach):
    future, past = int(matrix.triu(1).sum()), int((1 - matrix).tril().sum())
    print(f"{name:16} future seen: {future:2} of 15 places   past missing: {past:2} of 21 places")
plots.heads(
    reach, names=list(versions), size=0.42, title="Which words reach which output, under a causal mask",
    xlabel="input word", ylabel="output word",
    alt="Input words that reach each output. Right: all up to the diagonal. Merged too early: nearly all, future too. "
    "Both wrong: only the word itself and at most the one before it.",
)

# %% [markdown]
# Merged too early, the model reads the future through a mask that forbids it. It will score wonderfully in training,
# and fail when it has to write by itself.
#
# With both shortcuts the mask holds, by luck. A head is now a short stretch of the text, so a word sees itself and at
# most the word before it, and the rest of its past is gone. The two mistakes hide each other in `join(split(x)) == x`, and a
# test for the future alone would pass. So test both halves.

# %% [markdown]
# ## 5 What more heads cost
#
# The matrices have the same size for any $h$. And the operations? Multiplying an $(a, b)$ by a $(b, c)$ matrix takes
# $abc$ multiplications and as many additions. So the four projections take $4 \cdot 2nd^2 = 8nd^2$ operations, for
# short with $d$ for $d_{model}$, and scores and mixing $2n^2d$ each. Let torch count, for $d_{model} = 128$ and a
# sentence of 64 words:

# %%
from torch.utils.flop_counter import FlopCounterMode

n, d_model = 64, 128
project = [nn.Linear(d_model, d_model, bias=False) for _ in range(4)]
x = torch.randn(1, n, d_model)                                     # (1, n, d_model)
for heads in (1, 2, 4, 8, 16):
    with FlopCounterMode(display=False) as counter:
        q, k, v = (split(each(x), heads) for each in project[:3])  # each (1, heads, n, d_k)
        out = project[3](join(attention(q, k, v)))                 # (1, n, d_model)
    parameters = sum(each.weight.numel() for each in project)
    print(f"{heads:2} heads of {d_model // heads:3} columns: {parameters:,} parameters, "
          f"{counter.get_total_flops():,} operations, {heads * n * n:6,} weights")
print(f"by hand: 4d² = {4 * d_model**2:,} parameters, "
      f"8nd² + 4n²d = {8 * n * d_model**2 + 4 * n**2 * d_model:,} operations")

# %% [markdown]
# Parameters and operations do not depend on $h$. The scores of one head cost $2n^2 d_k$, and $h$ heads with
# $h \cdot d_k = d_{model}$ columns cost $2n^2 d_{model}$. One thing does grow: there are $h$ weight matrices, so
# $hn^2$ weights to hold and to exponentiate.

# %% [markdown]
# ## 6 Self-attention and cross-attention
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
        self.query, self.key, self.value, self.output = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def forward(self, x, memory=None, mask=None):                  # (batch, n, d_model), (batch, m, d_model)
        memory = x if memory is None else memory
        q = split(self.query(x), self.heads)                       # (batch, heads, n, d_k)
        k = split(self.key(memory), self.heads)                    # (batch, heads, m, d_k)
        v = split(self.value(memory), self.heads)                  # (batch, heads, m, d_k)
        mixed, weight = attention(q, k, v, mask, return_weights=True)      # (batch, heads, n, d_k), (…, n, m)
        self.weight = weight.detach()                              # (batch, heads, n, m), to look at later
        return self.output(join(mixed))                            # (batch, n, d_model)


# %% [markdown]
# Try it on a batch of three real pairs. $n$ and $m$ differ, and German sentences shorter than $m$ are padded. The mask
# belongs to the *keys*: it says which German words are real. Its shape is (batch, 1, 1, m): the same for each head and
# each query.

# %%
torch.manual_seed(0)
chosen = [pair for pair in pairs if len(words(pair[0])) == 5 + len(words(pair[1]))][:3]
m_ids, n_ids = (encode(side, ids) for side, ids in zip(zip(*chosen), (german_ids, english_ids)))   # (3, m), (3, n)
m_x, n_x = torch.randn(*m_ids.shape, 32), torch.randn(*n_ids.shape, 32)      # (3, m, d_model), (3, n, d_model)
layer, mask = ManyHeads(32, heads=4), (m_ids > 0)[:, None, None]   # mask: (3, 1, 1, m)
out = layer(n_x, m_x, mask)                                        # (3, n, d_model)
print("m =", m_ids.shape[1], " n =", n_ids.shape[1], " out", tuple(out.shape), " weights", tuple(layer.weight.shape))
print("real German words:", (m_ids > 0).sum(dim=-1).tolist())
padding = layer.weight * ~mask                                     # (3, heads, n, m): what goes to padding
print(f"attention spent on padding: {padding.sum():.0f}")

# %% [markdown]
# The output has as many rows as there are *queries*. How would you notice a missing mask? Pad the German sentences
# further. A padded sentence is still the same sentence, so nothing may change. (The mask must grow, too: `F.pad` fills
# with 0, here `False`.)

# %%
longer = F.pad(m_x, (0, 0, 0, 4))                                  # (3, m + 4, d_model): four more padding rows
prove_equal(layer(n_x, longer, F.pad(mask, (0, 4))), out, what="Outputs with and without more padding")
change = (layer(n_x, longer) - layer(n_x, m_x)).norm() / out.norm()
print(f"without a mask the output changes by {change:.0%}")

# %% [markdown]
# ## 7 See it work: fill the gap
#
# Now we train a small cross-attention model on real pairs. Its task: one English word is hidden. You see the word
# before it, the word after it, and the whole German sentence. Which word is it?
#
# > Der König ist tot. → *the* ? *is*
#
# The query is made of the two neighbours and the place of the gap. It must find, in the German sentence, the word that
# belongs there. The answer is read from what attention returns, and from nothing else. Each word of a sentence is
# hidden in its turn, all at once.


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

    def forward(self, source, target):                             # (batch, m), (batch, n)
        before, after = F.pad(target[:, :-1], (1, 0)), F.pad(target[:, 1:], (0, 1))    # (batch, n) each
        x = self.before(before) + self.after(after) + self.gap_place.weight[: target.shape[1]]     # (batch, n, d_model)
        memory = self.german(source) + self.german_place.weight[: source.shape[1]]     # (batch, m, d_model)
        found = self.attend(x, memory, (source > 0)[:, None, None])                    # (batch, n, d_model)
        return self.name(found[target > 1])                        # (gap, word): for common words only


# %% [markdown]
# Training, with a learning rate that rises quickly and then falls to nearly zero (lesson 07 says why):


# %%
def train(attend, steps=400, seed=0, what="filling gaps"):
    torch.manual_seed(seed)
    model = Gap(attend())
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.008, total_steps=steps, pct_start=0.1)
    for _ in progress(range(steps), what):
        batch = torch.randint(len(pairs), (64,))                   # (pair,)
        loss = F.cross_entropy(model(source[batch], target[batch]), target[batch][target[batch] > 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model


# %% [markdown]
# A test on new sentences gives two numbers. One is the share of gaps that are filled rightly. The other is the loss:
# minus the natural logarithm of the probability that the hidden word got, on average. Its unit is the *nat*. A loss of
# 3 nats is a probability of $e^{-3}$, or 1 in 20.


# %%
@torch.no_grad()
def test(model, source=source_test):
    logits, truth = model(source, target_test), target_test[target_test > 1]           # (gap, word), (gap,)
    return F.cross_entropy(logits, truth).item(), (logits.argmax(dim=-1) == truth).float().mean().item()


# %% [markdown]
# With four heads:

# %% tags=["nbval-ignore-output"]
model = train(lambda: ManyHeads(128, heads=4))
loss, right = test(model)
expect("Gaps filled rightly", right, 0.4, 0.55)
expect("Loss on new sentences", loss, 2.7, 3.3)

# %% [markdown]
# More than four gaps in ten, among some 800 words to choose from. How much of that comes from German? Hand each English
# sentence the German of its neighbour in the list, and see.

# %% tags=["nbval-ignore-output"]
loss_wrong, right_wrong = test(model, source_test.roll(1, dims=0))
expect("Gaps filled rightly with another sentence's German", right_wrong, 0.0, 0.25)

# %% [markdown]
# Less than half of that is left. (A wrong sentence also misleads, so a model that had never seen German might do a
# little better. But this one lives on German.)
#
# ### What do the heads look at?
#
# Here is a new sentence. Row *king* is the gap at *king*: the model is told *the* and *of* only, and where the gap is.


# %% tags=["nbval-ignore-output"]
def draw(number):
    english_words, german_words = words(english_test[number]), words(german_test[number])
    model(encode([german_test[number]], german_ids), encode([english_test[number]], english_ids))
    return plots.heads(
        model.attend.weight[0], rows=english_words, columns=german_words, title="Four heads, four ways to look",
        xlabel="German word", ylabel="hidden word",
        alt="Four matrices, English gaps by German words. Some heads put much weight on the hidden word's translation; "
        "others look at other places.",
    )


draw(english_test.index("I am the king of this domain!"))

# %% [markdown]
# Heads differ: in row *king*, some put nearly all their weight on *könig*, others none.
#
# One sentence can be lucky, so we count over all test sentences. For common words with a known translation, what share
# of a head's weight goes to the translation of the *hidden* word, which the query has not seen? And to the translation
# of the word before and after the gap, which it has?

# %%
KNOWN = """king könig · orcs orks · dead tot · we wir · they sie · gold gold · elves elfen · father vater
war krieg · water wasser · river fluss · men männer · and und · now jetzt · must müssen · here hier · all alle · i ich
undead untote · help hilfe · my mein · time zeit · north norden · what was · who wer · where wo · yes ja · is ist
not nicht · in in · will wird · will werden · you ihr · to zu · of von · the der · the die · the das"""
known = torch.zeros(size, len(german_ids) + 2).bool()              # (English, German): a translation?
for entry in KNOWN.replace("\n", " · ").split(" · "):
    english_word, german_word = entry.split()
    known[english_ids[english_word], german_ids[german_word]] = True


def share(asked, weight):                                          # (sentence, n): whose translation; weights
    here = known[asked[:, :, None], source_test[:, None]]          # (sentence, n, m): where it stands
    rows = here.any(dim=-1) & (target_test > 0)                    # (sentence, n): it stands somewhere
    return (weight * here[:, None]).sum(dim=-1).transpose(1, 2)[rows].mean(dim=0)      # (heads,)


# %% [markdown]
# For comparison, the column *by chance* is what a head would get that looks at all real words alike.

# %% tags=["nbval-ignore-output"]
test(model)
weight = model.attend.weight                                       # (sentence, heads, n, m)
evenly = (source_test > 0)[:, None, None] / (source_test > 0).sum(dim=-1)[:, None, None, None]     # (sentence, 1, 1, m)
asked = {"hidden word": target_test, "word before": F.pad(target_test[:, :-1], (1, 0)),
         "word after": F.pad(target_test[:, 1:], (0, 1))}
print("translation of   by chance   " + "   ".join(f"head {head}" for head in range(4)))
for name, ids in asked.items():
    print(f"{name:15} {share(ids, evenly)[0]:9.0%}    " + "   ".join(f"{s:6.0%}" for s in share(ids, weight)))
expect("Best head's share on the hidden word", share(target_test, weight).amax().item(), 0.4, 0.85)

# %% [markdown]
# So the heads have shared out the work. Some are finders: about half of their weight, or more, goes to a word that the
# query has never seen, only inferred from the gap's surroundings. Others hit it far less often.
#
# Are those superfluous? Turn a head off, by setting its columns of $W^O$ to zero, and see how much worse the model
# gets.

# %% tags=["nbval-ignore-output"]
import copy


def without(model, head):
    model = copy.deepcopy(model)
    d_k = model.attend.output.weight.shape[1] // model.attend.heads
    with torch.no_grad():
        model.attend.output.weight[:, head * d_k : (head + 1) * d_k] = 0.0   # (d_model, d_k): this head's columns
    return test(model)[0]


plots.bars(
    {f"without head {head}": without(model, head) - loss for head in range(4)}, xlabel="rise of the loss (nats)",
    title="Every head is missed, some more than others",
    alt="How much the test loss rises without each of the four heads: each rises, by different amounts.",
)

# %% [markdown]
# The best finder is missed most. But the others are missed as well: what stands beside the word you need, and at the
# other places of the sentence, helps to choose and to inflect it. A single head would have to put all of that into one
# average.

# %% [markdown]
# ## 8 Break it: how many heads?
#
# Same width, same parameters, same data; only $h$ changes. How well do new sentences go?

# %% tags=["nbval-ignore-output"]
losses = {4: loss}
for heads in (1, 2, 8, 16):
    losses[heads] = test(train(lambda heads=heads: ManyHeads(128, heads), what=f"h = {heads}"))[0]
losses = dict(sorted(losses.items()))
expect("What 8 heads gain over 1", losses[1] - losses[8], 0.05, 0.6)
plots.lines(
    {"loss": (list(losses), list(losses.values()))}, xscale="log", marker="o", xlabel="heads",
    ylabel="loss on new sentences (nats)", title="The first few heads help most",
    alt="Test loss against the number of heads, 1 to 16, each twice the one before: the first doublings bring most.",
)

# %% [markdown]
# The first few heads bring most; then the curve flattens. More heads are also narrower: with 16, each query and key
# has 8 entries to describe what it looks for. Vaswani et al. measured the same on a model a hundred times as large
# (table 3, rows A), in BLEU, a score of translations from 0 to 100 that lesson 07 explains. There 1 head is 0.9 worse
# than the best, 8 and 16 are equal, and 32 are worse again.
#
# ### Break it: the trap, in training
#
# And the wrong `split` and `join`? Does training notice?


# %% tags=["nbval-ignore-output"]
class MixedUp(ManyHeads):
    def forward(self, x, memory, mask):                            # (batch, n, d_model), (batch, m, d_model)
        q, k, v = (split_wrong(project(each), self.heads)          # (batch, heads, n | m, d_k)
                   for project, each in ((self.query, x), (self.key, memory), (self.value, memory)))
        return self.output(join_wrong(attention(q, k, v, mask)))   # (batch, n, d_model)


loss_mixed, right_mixed = test(train(lambda: MixedUp(128, heads=4), what="wrong reshape"))
print(f"right split: loss {loss:.2f}, {right:.0%} of the gaps; wrong split: loss {loss_mixed:.2f}, {right_mixed:.0%}")
expect("What the wrong reshape costs", loss_mixed - loss, 0.2, 2.0)

# %% [markdown]
# No error, no `nan`, and the loss goes down. Just a model that is worse than it should be. This is what most
# mistakes in attention look like.

# %% [markdown]
# ## 9 Open the library
#
# `txlib`'s module is the same five steps; find them in `forward`. New are biases, and `kv_heads` and `cache`, which
# the next two sections explain. Pass over the rest for now: `rotary` and `position_bias` tell positions (lesson 05),
# `mechanism` and `pattern` are places for other kinds of attention, `joined` is a faster way to keep three projections,
# `stretch` another scale; `qk_norm` and `dropout` help in training.

# %%
from txlib.attention import KeyValueCache, MultiHeadAttention, padding, recording

show_source(MultiHeadAttention)

# %% [markdown]
# Its four layers have the same names as ours, so the weights of our trained model simply load.

# %%
library = MultiHeadAttention(128, heads=4, bias=False)
library.load_state_dict(model.attend.state_dict())
torch.manual_seed(0)
x, memory = torch.randn(3, 5, 128), torch.randn(3, 7, 128)         # (batch, n, d_model), (batch, m, d_model)
mask = padding([7, 4, 2]).dense(5, 7)                              # (batch, 1, n, m)
prove_equal(model.attend(x, memory, mask), library(x, memory, mask=mask), what="Your cross-attention and the library's")
prove_equal(model.attend(x, mask=causal()), library(x, mask=causal()), what="Your self-attention and the library's")

# %% [markdown]
# And torch's own. It keeps the three input matrices stacked in one, and its masks are *the other way round*: `True`
# means *may not attend*.

# %%
theirs = nn.MultiheadAttention(128, num_heads=4, bias=False, batch_first=True)
with torch.no_grad():
    theirs.in_proj_weight.copy_(torch.cat([library.query.weight, library.key.weight, library.value.weight]))
    theirs.out_proj.weight.copy_(library.output.weight)
out, _ = theirs(x, memory, memory, key_padding_mask=~mask[:, 0, 0])          # (batch, n, d_model); mask (batch, m)
prove_equal(library(x, memory, mask=mask), out, tolerance=1e-4, what="The library's and torch's")

# %% [markdown]
# To look at the weights of any model built with the library, open a `recording`.

# %%
with recording(library) as seen:
    library(x, memory, mask=mask)
weight = seen[""][0]                                               # (batch, heads, n, m); "" is the layer itself
print(f"recorded: {tuple(weight.shape)}; on padding: {(weight * ~mask).sum():.0f}")

# %% [markdown]
# ## 10 Fewer keys and values: grouped queries
#
# A model that writes must keep the keys and values of all words so far (the next section shows how). With many layers
# and long texts they fill the memory. The remedy: let several query heads share one key head and one value head.
#
# - `kv_heads = heads`: what we have, multi-head attention.
# - `1 < kv_heads < heads`: *grouped-query attention* (Ainslie et al. 2023).
# - `kv_heads = 1`: *multi-query attention* (Shazeer 2019).
#
# Query heads 0 and 1 use key head 0, query heads 2 and 3 use key head 1: neighbours share. So each key head is repeated
# in place, `repeat_interleave`. (`repeat` would lay the whole row out twice: 0, 1, 0, 1.)

# %%
kv_head = torch.arange(2)                                          # (kv_heads,)
print("repeat_interleave:", kv_head.repeat_interleave(2).tolist(), "   repeat:", kv_head.repeat(2).tolist())


def grouped(layer, x, kv_heads, mask=None):                        # layer: key and value make kv_heads * d_k columns
    q = split(layer.query(x), layer.heads)                         # (batch, heads, n, d_k)
    k, v = split(layer.key(x), kv_heads), split(layer.value(x), kv_heads)              # (batch, kv_heads, n, d_k)
    k, v = (each.repeat_interleave(layer.heads // kv_heads, dim=1) for each in (k, v))         # (batch, heads, n, d_k)
    return layer.output(join(attention(q, k, v, mask)))            # (batch, n, d_model)


layer = MultiHeadAttention(128, heads=8, kv_heads=2)
prove_equal(grouped(layer, x, 2, causal()), layer(x, mask=causal()), what="Your grouped heads and the library's")

# %% [markdown]
# How much is saved? Count what is kept, for one layer and 64 words; then the same for a large model, whose sizes are
# those of Llama 2 70B: 80 layers, 64 heads of 128 columns, 4,096 words, 2 bytes a number.

# %%
for kv_heads in (8, 4, 2, 1):
    cache = KeyValueCache()
    layer = MultiHeadAttention(128, heads=8, kv_heads=kv_heads)
    layer(torch.randn(1, 64, 128), cache=cache)
    large = 2 * 80 * (64 // 8 * kv_heads) * 128 * 4096 * 2 / 2**30         # keys and values, in GiB
    parameters = sum(p.numel() for p in layer.parameters())
    print(f"kv_heads {kv_heads} of 8: {parameters:,} parameters, {cache.k.numel() + cache.v.numel():6,} numbers kept; "
          f"{large:5.2f} GiB kept in the large model")

# %% [markdown]
# Llama 2 70B has 8 key heads for its 64 query heads, which is `kv_heads 1 of 8` in this table: 1.25 GiB for each text
# instead of 10. And what does it cost in quality? Train the gap model once more, with the library's module, all 8 query
# heads sharing one key and one value head.

# %% tags=["nbval-ignore-output"]
class Shared(MultiHeadAttention):
    def forward(self, x, memory, mask):                            # our Gap hands the mask over as third
        return super().forward(x, memory, mask=mask)


loss_shared, _ = test(train(lambda: Shared(128, heads=8, kv_heads=1, bias=False), what="shared keys"))
print(f"8 key and value heads: loss {losses[8]:.2f}; one for all: {loss_shared:.2f}; one head in all: {losses[1]:.2f}")
expect("What sharing costs", loss_shared - losses[8], -0.1, 0.3)

# %% [markdown]
# Eight ways to look at one set of keys lose little against eight sets. One way to look loses much more.

# %% [markdown]
# ## 11 Word by word: the key–value cache
#
# A decoder writes one word, appends it, and asks again. With a causal mask, the earlier words never see the new one. So
# their keys and values stay what they were: compute them once, and keep them. For a new word only *its* query, key and
# value are needed.


# %%
@torch.no_grad()
def write(layer, x):                                               # (1, n, d_model), handed over word by word
    k, v, out = [], [], []
    for t in range(x.shape[1]):
        new = x[:, t : t + 1]                                      # (1, 1, d_model)
        k.append(split(layer.key(new), layer.heads))               # (1, heads, 1, d_k)
        v.append(split(layer.value(new), layer.heads))             # (1, heads, 1, d_k)
        q = split(layer.query(new), layer.heads)                   # (1, heads, 1, d_k)
        mixed = attention(q, torch.cat(k, dim=2), torch.cat(v, dim=2))       # (1, heads, 1, d_k): no mask needed
        out.append(layer.output(join(mixed)))                      # (1, 1, d_model)
    return torch.cat(out, dim=1)                                   # (1, n, d_model)


# %% [markdown]
# No mask is needed: what lies in the future has not been written yet. Compare it with the whole text at once under a
# causal mask, and with writing that keeps nothing and begins again for each word:


# %%
@torch.no_grad()
def write_again(layer, x):                                         # without a cache: the whole text for each new word
    return torch.cat([layer(x[:, : t + 1], mask=causal())[:, -1:] for t in range(x.shape[1])], dim=1)


torch.manual_seed(0)
layer, x = MultiHeadAttention(128, heads=8, bias=False), torch.randn(1, 32, 128)       # x: (1, n, d_model)
prove_equal(write(layer, x), layer(x, mask=causal()), what="Word by word with a cache, and all at once")
prove_equal(write(layer, x), write_again(layer, x), what="With and without a cache")

# %% [markdown]
# The library's cache does the same, and takes several words at a time as well.

# %%
with torch.no_grad():
    cache = KeyValueCache()
    parts = [layer(part, mask=causal(), cache=cache) for part in x.split([20, 1, 11], dim=1)]  # each (1, …, d_model)
prove_equal(torch.cat(parts, dim=1), layer(x, mask=causal()), what="20, 1 and 11 words with a cache, and all at once")

# %% [markdown]
# And the work? Count the operations for writing $n$ words.

# %%
for n in (16, 64, 256):
    x, work = torch.randn(1, n, 128), []                           # (1, n, d_model)
    for way in (write_again, write):
        with FlopCounterMode(display=False) as counter:
            way(layer, x)
        work.append(counter.get_total_flops())
    without_cache, with_cache = work
    print(f"{n:3} words: {without_cache / 1e6:7.1f} MFLOP without a cache, {with_cache / 1e6:5.1f} with: "
          f"{without_cache / with_cache:5.1f} times less")

# %% [markdown]
# Without a cache, the projections alone are done $1 + 2 + \dots + n \approx n^2/2$ times. With it, $n$ times. That is
# why every program that writes text keeps one, and why its size, in section 10, matters.

# %% [markdown]
# ## 12 What it costs
#
# Back to section 5: the four projections cost $8nd^2$ operations, scores and mixing $4n^2d$. Which one rules? They are
# equal at $n = 2d$. Here for $d_{model} = 512$, as in the paper:

# %%
lengths, d = [16, 64, 256, 1024, 4096, 16384], 512
for n in (64, 1024):
    x = torch.randn(1, n, d)                                       # (1, n, d)
    with FlopCounterMode(display=False) as counter:
        ManyHeads(d, heads=8)(x)
    by_hand = 8 * n * d**2 + 4 * n**2 * d
    print(f"n {n:4}: counted {counter.get_total_flops() / 1e6:7.1f} MFLOP, 8nd² + 4n²d = {by_hand / 1e6:7.1f}")
plots.lines(
    {"projections, 8nd²": (lengths, [8 * n * d**2 for n in lengths]),
     "scores and mixing, 4n²d": (lengths, [4 * n**2 * d for n in lengths])},
    xscale="log", yscale="log", marker="o", xlabel="length n", ylabel="operations",
    title="Below 1,024 words the projections cost more than the attention",
    alt="Operations against length on logarithmic axes for width 512. Projections grow in proportion to the length, "
    "scores and mixing with its square; the lines cross at 1,024.",
)

# %% [markdown]
# The famous square only hurts in long texts. A sentence of 30 words spends nearly everything on projections.
#
# Operations do not depend on $h$. Does the clock?

# %% tags=["nbval-ignore-output"]
import time


@torch.no_grad()
def milliseconds(heads, n=512, repeats=9):
    layer, x, times = ManyHeads(128, heads), torch.randn(1, n, 128), []      # x: (1, n, d_model)
    for _ in range(repeats):
        start = time.perf_counter()
        layer(x)
        times.append(1000 * (time.perf_counter() - start))
    return sorted(times)[repeats // 2]


plots.bars(
    {f"h = {heads}": milliseconds(heads) for heads in (1, 2, 4, 8, 16)}, xlabel="milliseconds, 512 words",
    format="{:.1f}", title="Same operations, more time: each head has its own weights",
    alt="Time of one layer for 1, 2, 4, 8 and 16 heads: it grows with the number of heads.",
)

# %% [markdown]
# It does, on a CPU: $hn^2$ weights are written to memory, read, and exponentiated. Counting operations is not the whole
# story when memory is the bottleneck. Lesson 20 builds on this.

# %% [markdown]
# ## 13 Quiz
#
# Decide first, then open an answer.
#
# **1. You change a layer with $d_{model} = 512$ from 8 heads to 16. How many parameters does it have now?**
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
# They are joined before $W^O$, and already have $h \cdot d_k = d_{model}$ columns.
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
# It is as wide as the query heads together: $d_{model}$.
# </details>

# %% [markdown]
# ## 14 Summary
#
# - One head has one row of weights for each word, and can only average what it wants. $h$ heads have $h$ rows.
# - Project, split, attend, join, project. Parameters and operations do not depend on $h$.
# - `view` divides, `transpose` swaps. Mixed up, words get lost without an error.
# - In cross-attention, queries come from one sentence, keys and values from another; the padding mask is on the key
#   axis.
# - Fewer key and value heads make the cache smaller; the cache makes writing $n$ words $n$ projections' work, not
#   $n^2/2$.
#
# **Read** Vaswani et al. 2017, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762), sections 3.2.2 and 3.2.3, and
# table 3, rows A. Michel et al. 2019, [arXiv:1905.10650](https://arxiv.org/abs/1905.10650), on turning heads off in
# real models. Shazeer 2019, [arXiv:1911.02150](https://arxiv.org/abs/1911.02150), and Ainslie et al. 2023,
# [arXiv:2305.13245](https://arxiv.org/abs/2305.13245), on shared keys and values.
#
# **Do** the exercise [04_heads](../exercises/exercise_04_heads.ipynb). Then go on to
# [05 Where am I? Positions](05_positions.ipynb).
