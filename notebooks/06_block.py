# %% [markdown] lesson={"part": "I Attention", "builds": "residuals, normalization, feed-forward; the block, in a file of your own"}
# # 06 · The block: residual, normalization, feed-forward
#
# **After this lesson you will be able to**
#
# - say what attention alone cannot do, and show it with numbers;
# - write residual connections, layer norm, RMS norm and the feed-forward network in bare torch;
# - wire them into a Transformer block, pre-norm or post-norm, and measure what each part contributes;
# - count a block's parameters and operations in your head.
#
# **You need** lessons 03 to 05. **It takes** about 60 minutes to read and try; all cells together run in about a
# minute on a laptop.

# %% [markdown]
# ## 1 The problem: attention alone does not go deep
#
# We have attention with many heads (lesson 04), and it knows the order of its words (lesson 05). What is missing is
# depth. The habit in deep learning is simple: stack the layer. So send lesson 03's sentence through twelve attention
# layers, and look at what comes out.

# %% tags=["recorded"]
import json

import torch
import torch.nn.functional as F
from torch import nn

from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress, prove_equal
from txlib import plots
from txlib.attention import causal
from txlib.data import translation
from txlib.layers import sinusoidal

# %% [markdown]
# The word vectors are random, as they are before any training; positions are added.

# %% tags=["recorded"]
words = "the orcs have attacked the humans .".split()
n, d_model, heads = len(words), 64, 4

torch.manual_seed(0)
table = {word: torch.randn(d_model) for word in words}
vectors = torch.stack([table[word] for word in words])[None]  # (1, n, d_model)
sent = vectors + sinusoidal(n, d_model)  # (1, n, d_model)

# %% [markdown]
# Next comes lesson 03's attention:

# %% tags=["recorded"]
def attention(q, k, v, mask=None):  # q (batch, heads, n, d_k); k, v (…, m, d_k)
    score = q @ k.mT / k.shape[-1] ** 0.5  # (batch, heads, n, m)
    if mask is not None:
        score = score.masked_fill(~mask, -torch.inf)
    return score.softmax(dim=-1) @ v  # (batch, heads, n, d_k)

# %% [markdown]
# Lesson 04's heads go around it: project, split, attend, join, project.

# %% tags=["recorded"]
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, heads, bias=True):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(d_model, d_model, bias=bias) for _ in range(4))

    def split(self, x):  # (batch, n, d_model) to (batch, heads, n, d_k)
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, memory=None, mask=None):
        memory = x if memory is None else memory  # (batch, m, d_model)
        k, v = self.split(self.key(memory)), self.split(self.value(memory))
        out = attention(self.split(self.query(x)), k, v, mask)
        return self.output(out.transpose(1, 2).flatten(2))  # (batch, n, d_model)

# %% [markdown]
# Now twelve attention layers with random matrices, at Xavier's scale, which roughly keeps the size of what passes
# through (lesson 07). We keep what each layer hands to the next.

# %% tags=["recorded"]
def xavier(module):
    for weight in module.parameters():
        if weight.dim() == 2:  # a matrix, not a bias or a gain
            nn.init.xavier_uniform_(weight)


layers = []
for _ in range(12):
    layers.append(MultiHeadAttention(d_model, heads, bias=False))
    xavier(layers[-1])

streams = [sent]
with torch.no_grad():
    for layer in layers:
        streams.append(layer(streams[-1]))  # (1, n, d_model)

# %% [markdown]
# Here are the vectors at four depths, one row per word (the first 12 of 64 dimensions; red is positive, blue negative;
# each table has its own color scale). Compare the rows.

# %% jupyter={"source_hidden": true}
figures.vectors(
    {"input" if depth == 0 else f"layer {depth}": streams[depth][0, :, :12] for depth in (0, 1, 2, 4)},
    rows=words, title="After a few attention layers, every word has the same vector",
    alt="Four tables of seven words by 12 dimensions. In the input all rows differ. After layer 1 they resemble each "
    "other, after layer 2 they nearly agree, after layer 4 all rows look the same.")

# %% [markdown]
# Two words are enough to see why. Let them be the numbers 4 and 2, and let attention give each word 60% of itself and
# 40% of the other:
#
# $$0.6 \cdot 4 + 0.4 \cdot 2 = 3.2 \qquad 0.6 \cdot 2 + 0.4 \cdot 4 = 2.8$$
#
# The difference has shrunk from 2 to 0.4. One more layer, and it is 0.08. And it gets worse: as the words become alike,
# so do their weights, and 60 to 40 becomes 50 to 50.
#
# For seven words of 64 numbers we need one number for "alike". Subtract the mean over all words; what is left tells
# words *apart*. Divide its length by the length of the whole. For 4 and 2 that is
# $\sqrt{1^2 + 1^2} / \sqrt{4^2 + 2^2} = 0.32$. The fraction is 0 if all words are the same, and 1 if their mean is 0.

# %% tags=["recorded"]
def apart(x):  # (..., n, d_model)
    mean = x.mean(dim=-2, keepdim=True)  # what all words have in common
    return ((x - mean).norm() / x.norm()).item()


print(f"4 and 2: {apart(torch.tensor([[4.0], [2.0]])):.2f}")
for depth in (0, 1, 2, 3):
    print(f"layers: {depth}   tells words apart: {apart(streams[depth]):.0e}")
print("layers: 4   less than one part in a million:", apart(streams[4]) < 1e-6)

# %% [markdown]
# This is **rank collapse**: the matrix of word vectors shrinks to rank 1, to copies of a single row. Dong et al. (2021)
# proved that it goes faster than by halves: each layer roughly *cubes* the fraction. Compare the lines for 2 and 3
# layers. (After four, only the rounding error of 32-bit numbers is left.)
#
# Training would have a hard time repairing this stack: next to no gradient gets through. Suppose the loss wants the
# outputs of *orcs* and *humans* to differ. How strongly does it pull at the input?

# %%
def pull(depth, residual=False):
    x = sent.clone().requires_grad_()  # (1, n, d_model)
    y = x
    for layer in layers[:depth]:
        y = y + layer(y) if residual else layer(y)  # (1, n, d_model)
    difference = y[0, words.index("orcs")] - y[0, words.index("humans")]  # (d_model,)
    difference.sum().backward()
    return x.grad.norm().item()


for depth in (1, 2, 3):
    print(f"layers: {depth}   gradient at the input: {pull(depth):.0e}")
print("layers: 4   less than a millionth of the first:", pull(4) < 1e-6 * pull(1))

# %% [markdown]
# There is a second thing that attention cannot do. Give it a sentence of *one* word. The softmax over one key is 1,
# whatever the score. What remains are the value and the output projections: a matrix. Twelve matrices in a row are one
# matrix, so the whole map $f$ is *linear*: $f(a + b) = f(a) + f(b)$. Check it:

# %%
torch.manual_seed(0)
f = nn.Sequential(*layers)
a, b = torch.randn(2, 1, 1, d_model)  # two sentences of one word
with torch.no_grad():
    prove_equal(f(a + b), f(a) + f(b), tolerance=1e-4, what="f(a + b) and f(a) + f(b)")

# %% [markdown]
# So attention moves information between words, but within a word it only applies a matrix. The block of this lesson
# fixes both problems.

# %% [markdown]
# ## 2 The idea in one picture
#
# Each problem has a remedy, and the first remedy needs another one. The figure shows where they go; read it from the
# bottom. The thick line is the **residual stream**: one vector per word, on its way from the embedding to the output.
# Attention reads the stream and adds what it found. The feed-forward network reads the stream and adds what it
# computed. Nothing is replaced, so the stream grows, and norms keep its size in check. The two *wirings*, pre-norm and
# post-norm, differ in where the norms are.

# %%
figures.block()

# %% [markdown]
# With these parts, the list of what attention alone lacks is complete:
#
# | Attention alone … | The remedy | Where |
# | --- | --- | --- |
# | does not see the order of words | positions | lesson 05 |
# | looks at the future where it should predict it | a causal mask | lesson 03 |
# | averages values, and computes nothing with what it found | a feed-forward network for each word | 3.3 |
# | makes all words alike when stacked, and lets no gradient through | residual connections | 3.1 |
# | leaves the stream's size to chance once things are added up | normalization | 3.2 |
#
# Stack this block $L$ times, and you have the body of a Transformer. Vaswani et al. (2017) used post-norm, with six
# blocks. Most language models since GPT-2 use pre-norm. Lesson 07 asks why.

# %% [markdown]
# ## 3 Build it step by step
#
# ### 3.1 The residual connection
#
# Attention layers erase what came in. So give it a way around them:
#
# $$x \leftarrow x + f(x)$$
#
# That is all (He et al. 2016). If $f$ is 0, $x$ passes unchanged. And the derivative is $1 + f'(x)$: the gradient has a
# way around $f'$. Take twelve layers, each with the slope 0.1. Without residuals, the slope of all together is
# $0.1^{12}$, a millionth of a millionth. With residuals it is $1.1^{12} = 3.1$.
#
# (An addition needs two vectors of the same length, so $f$ must map $d$ dimensions to $d$.) Here are the same twelve
# layers, with the same weights, as additions:

# %%
x, added = sent, [sent]
with torch.no_grad():
    for layer in layers:
        x = x + layer(x)  # (1, n, d_model)
        added.append(x)

# %% [markdown]
# What fraction tells words apart now?

# %% jupyter={"source_hidden": true}
plots.lines(
    {name: (range(13), [apart(x) for x in each]) for name, each in (("with residual", added), ("without", streams))},
    title="The residual keeps words apart", xlabel="attention layers", ylabel="fraction that tells words apart",
    yscale="log", marker="o",
    alt="The fraction that tells words apart on a logarithmic axis. Without residual it falls to one in ten million within "
    "four layers and stays there. With it, it falls slowly, from 0.7 to below 0.1 over twelve layers.")

# %% [markdown]
# The words still drift together, but slowly. Does the gradient arrive now? Compare it with a model without any layer,
# where the output *is* the input:

# %%
nothing = pull(0)  # the gradient when the output is the input
for depth in (1, 2, 4):
    growth = pull(depth, residual=True) / nothing
    print(f"layers: {depth:2}   gradient: {growth:.1f} times that of no layer")
sizes = [f"{added[depth].std():.0f}" for depth in (0, 4, 8, 12)]
print("size of the stream's entries after 0, 4, 8, 12 layers:", *sizes)

# %% [markdown]
# It arrives, and it grows with each layer. So does the stream. Longer vectors make larger scores, and one key takes
# everything (lesson 03). Something has to keep the size in check.

# %% [markdown]
# ### 3.2 Layer normalization
#
# The stream grows, so whatever reads it needs a fixed size. Take one word with the four numbers 1, 3, 5, 7. Their
# mean is 4; subtract it: −3, −1, 1, 3. The mean square of these is $(9 + 1 + 1 + 9) / 4 = 5$.
# Divide by $\sqrt 5 = 2.24$: −1.34, −0.45, 0.45, 1.34. They now have mean 0 and variance 1. Multiply the word by ten,
# and the result is the same.
#
# For a vector $x$ with $d$ entries, the model may then choose a size and an offset for each entry:
#
# $$\mu = \frac{1}{d}\sum_i x_i \qquad \sigma^2 = \frac{1}{d}\sum_i (x_i - \mu)^2 \qquad
# \text{norm}(x) = \text{gain} \odot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \text{bias}$$
#
# This is **layer norm** (Ba et al. 2016, equation 4). Gain starts at 1 and bias at 0; both are learned. (Some slides
# say "unit mean". The mean becomes *zero*; it is the variance that becomes one.)

# %%
def layer_norm(x, gain, bias, eps=1e-5):  # x (..., d_model); gain, bias (d_model,)
    mean = x.mean(dim=-1, keepdim=True)  # (..., 1): one number per word
    variance = (x - mean).square().mean(dim=-1, keepdim=True)  # over d, not d - 1
    return gain * (x - mean) / (variance + eps).sqrt() + bias  # (..., d_model)


print(layer_norm(torch.tensor([1.0, 3.0, 5.0, 7.0]), gain=1.0, bias=0.0))
gain, bias = 1 + 0.1 * torch.randn(d_model), 0.1 * torch.randn(d_model)
mine = layer_norm(added[12], gain, bias)  # (1, n, d_model)
theirs = F.layer_norm(added[12], (d_model,), gain, bias)
prove_equal(mine, theirs, what="Ours and torch's layer norm")

# %% [markdown]
# Three details are easy to get wrong. The variance is the *biased* one; `torch.var` divides by $d - 1$ unless told
# otherwise. eps is *inside* the root: a vector with the standard deviation 0.001 is divided by
# $\sqrt{10^{-6} + 10^{-5}} = 0.0033$ and ends with 0.30 (outside, with 0.99). The axis is the *last* one: each word is
# normalized by itself, whatever its neighbors are.

# %% [markdown]
# ### Why not batch norm?
#
# Many image networks use batch norm. It takes the mean and the variance of each *dimension*, over all words of all
# sentences in the batch, padding included. Pad the same two sentences first to 7 words, then to 14, as if a longer
# sentence had joined the batch:

# %%
def batch_norm(x):  # (sentence, n, d_model)
    mean = x.mean(dim=(0, 1))  # (d_model,): over words and sentences
    variance = x.var(dim=(0, 1), correction=0)  # (d_model,)
    return (x - mean) / (variance + 1e-5).sqrt()  # (sentence, n, d_model)


def without_gain(x):
    return F.layer_norm(x, (d_model,))


short = F.pad(sent[:, :3], (0, 0, 0, 4))  # (1, 7, d_model): 3 words, 4 padding
batch = torch.cat([sent, short])  # (2, 7, d_model)
longer = F.pad(batch, (0, 0, 0, 7))  # (2, 14, d_model): 7 more padding, nothing else
for name, norm in {"batch norm": batch_norm, "layer norm": without_gain}.items():
    before, after = norm(batch)[0], norm(longer)[0, :n]  # (n, d_model): the sentence
    change = (after - before).norm() / before.norm()
    print(f"{name}: more padding changes a sentence by {change:.0%}")

# %% [markdown]
# The zeros of the padding pull every variance down, which inflates everything else. (One can leave the padding out. But
# then a word still depends on which sentences share its batch.) Layer norm looks at one word only, so it depends on
# neither.
#
# ### RMS norm
#
# Zhang & Sennrich (2019) asked whether the mean matters. Leave it out, and divide by the root of the mean square. For
# 1, 3, 5, 7 that is $\sqrt{(1 + 9 + 25 + 49) / 4} = 4.58$, and the word becomes 0.22, 0.65, 1.09, 1.53.
#
# $$\text{rms}(x) = \text{gain} \odot \frac{x}{\sqrt{\frac{1}{d}\sum_i x_i^2 + \epsilon}}$$
#
# Their models train as well with it, in less time; Llama and many others use it (lesson 16). On a vector whose mean is
# 0 both norms are the same.

# %%
def rms_norm(x, gain, eps=1e-6):  # x (..., d_model); gain (d_model,)
    return gain * x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()


theirs = F.rms_norm(sent, (d_model,), gain, 1e-6)  # (1, n, d_model)
prove_equal(rms_norm(sent, gain), theirs, what="Ours and torch's RMS norm")
centered = sent - sent.mean(dim=-1, keepdim=True)  # (1, n, d_model)
as_layer_norm = layer_norm(centered, gain, bias=0.0, eps=1e-6)
prove_equal(rms_norm(centered, gain), as_layer_norm, what="Both norms at mean 0")

# %% [markdown]
# We use layer norm, as a module that learns the gain, which torch calls `weight`, and the bias. It calls torch's
# function, which does all the steps in one go.

# %% tags=["recorded"]
class LayerNorm(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x):  # (..., d_model)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias)


# %% [markdown]
# ### 3.3 The feed-forward network
#
# We can stack now, but everything is still a weighted average. Which part computes? No matrix can compute the absolute
# value of a number. Two questions can: "how positive?" and "how negative?" Keep only the positive answers, and add them
# up.
#
# $$3 \to (3, -3) \to (3, 0) \to 3 \qquad\qquad -3 \to (-3, 3) \to (0, 3) \to 3$$
#
# These are two small matrices with relu between them, which sets everything below 0 to 0. The **feed-forward network**
# does this to each word's vector. It widens the vector from $d$ to $d_\text{ff}$ entries, usually $4d$, applies an
# activation function, and narrows the result back to $d$:
#
# $$\text{FFN}(x) = \text{activation}(x W_1 + b_1)\, W_2 + b_2$$
#
# (Vaswani et al. 2017, equation 2, with relu.) Each entry in the middle is a question, asked by a column of $W_1$. The
# larger the answer, the more of a row of $W_2$ is added to the stream.

# %% tags=["recorded"]
class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff, activation=F.relu):
        super().__init__()
        self.up_proj = nn.Linear(d_model, d_ff)
        self.down_proj = nn.Linear(d_ff, d_model)
        self.activation = activation

    def forward(self, x):  # (..., d_model), by way of (..., d_ff)
        return self.down_proj(self.activation(self.up_proj(x)))


# %% [markdown]
# It works on each word by itself, with the same weights for all: it is **position-wise**. And it is not linear, unlike
# the twelve layers above: in the example, 3 and −3 give 3 each, but their sum 0 gives 0.
#
# **Which activation?** The original has relu. BERT and GPT have gelu, a smooth relu: $x\,\Phi(x)$, where $\Phi(x)$ is
# the probability that a standard normal number is below $x$. For $x = 1$ that is $1 \cdot 0.84$, for $x = -1$ it is
# $-1 \cdot 0.16$. (GPT-2 approximates it with tanh. Use the form that the weights were trained with.) silu, also called
# swish, is $x$ times the sigmoid of $x$. Newer models multiply two projections, $\text{silu}(x W_g) \odot x W_1$:
# **SwiGLU** (Shazeer 2020; lesson 16).
#
# ### 3.4 Dropout
#
# One part acts in training only. **Dropout** sets a random fraction of the entries to 0, so that the model cannot rely
# on any single number. The rest is divided by the fraction that is kept, so that the expected value stays the same.
# With $p = 0.5$, the numbers 1, 2, 3, 4 may become 0, 4, 6, 0, or 2, 0, 0, 8.
#
# In the block, dropout acts on the *branch*: `x + dropout(sublayer(norm(x)))`. On the stream it would erase what
# earlier layers have written. The models below train so briefly that they go without it; lesson 09's translator has it.

# %% [markdown]
# ### 3.5 The block
#
# How are the parts connected? A *wiring* puts together stream, norm and *sub-layer*, which is attention or the
# feed-forward network. Here are the two of the picture.

# %% tags=["recorded"]
def pre_norm(x, sublayer, norm):
    return x + sublayer(norm(x))


def post_norm(x, sublayer, norm):
    return norm(x + sublayer(x))


# %% [markdown]
# The block has two sub-layers, each with its norm, and both have the same wiring.

# %% tags=["recorded"]
class TransformerBlock(nn.Module):
    def __init__(self, d_model, heads, d_ff, wiring=pre_norm):
        super().__init__()
        self.wiring = wiring
        self.self_attention = MultiHeadAttention(d_model, heads)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.self_attention_norm = LayerNorm(d_model)
        self.feed_forward_norm = LayerNorm(d_model)
        xavier(self)

    def forward(self, x, mask=None):  # (batch, n, d_model)
        def attend(y):
            return self.self_attention(y, mask=mask)

        x = self.wiring(x, attend, self.self_attention_norm)
        return self.wiring(x, self.feed_forward, self.feed_forward_norm)


# %% [markdown]
# In pre-norm the stream is a plain sum: the embedding, and everything that was added to it. In post-norm each norm
# rescales the whole sum, so what came earlier is scaled again and again, twice per block.

# %% [markdown]
# ## 4 See it work: take out one part at a time
#
# Does the block need each of its parts? The task: guess the next character of English text, with six blocks between an
# embedding and a prediction. (Lesson 10 is about such models.) Pre-norm hands on a stream that no norm has touched, so
# the model has a *last norm* after its blocks. Post-norm needs none.

# %% tags=["recorded"]
class Stack(nn.Module):
    def __init__(self, d_model, wiring, last_norm, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(
            TransformerBlock(d_model, 2, 4 * d_model, wiring) for _ in range(blocks))
        self.last_norm = LayerNorm(d_model) if last_norm else nn.Identity()

    def forward(self, x, mask):  # (batch, n, d_model)
        self.streams = [x]  # kept, to look at
        for block in self.blocks:
            x = block(x, mask)
            self.streams.append(x)
        return self.last_norm(x)


# %% [markdown]
# An embedding goes below the stack, with 32 dimensions. At the top, the product with each character's embedding gives
# its logit.

# %% tags=["recorded"]
class CharacterModel(nn.Module):
    def __init__(self, wiring=pre_norm, last_norm=True, blocks=6, length=16):
        super().__init__()
        self.embedding = nn.Embedding(len(alphabet), 32)
        nn.init.normal_(self.embedding.weight, std=32**-0.5)
        self.stack = Stack(32, wiring, last_norm, blocks)
        self.position, self.mask = sinusoidal(length, 32), causal().dense(length)

    def forward(self, ids):  # (batch, n)
        x = 32**0.5 * self.embedding(ids) + self.position  # (batch, n, 32)
        return self.stack(x, self.mask) @ self.embedding.weight.T


# %% [markdown]
# The text is the English side of our sentence pairs. A batch is cut from it at random places.

# %% tags=["recorded"]
text = "\n".join(english for _, english in translation("games", max_words=12).train)
alphabet = sorted(set(text))
number = {character: id for id, character in enumerate(alphabet)}
encoded = torch.tensor([number[character] for character in text])  # (character,)


def batch_of_text(size, length=16):
    start = torch.randint(len(encoded) - length, (size,))  # (batch,)
    chunk = encoded[start[:, None] + torch.arange(length + 1)]  # (batch, n + 1)
    return chunk[:, :-1], chunk[:, 1:]  # what is read, what comes next


def loss_of(model, read, following):
    return F.cross_entropy(model(read).flatten(0, 1), following.flatten())


torch.set_num_threads(1)  # for models this small, more threads only wait
print(f"{len(encoded):,} characters, {len(alphabet)} different ones")

# %% [markdown]
# How good is a loss? Two **baselines** tell us. One knows only how frequent each character is. The other has counted
# all *pairs*, and guesses from the last character alone. A model that makes use of attention should beat the second.

# %%
count = torch.zeros(len(alphabet), len(alphabet))  # (last character, next character)
here, following = encoded[:-1], encoded[1:]
count.index_put_((here, following), torch.tensor(1.0), accumulate=True)
single = count.sum(dim=0) / count.sum()  # (character,)
pair = count / count.sum(dim=1, keepdim=True).clamp(min=1)  # (last, next)
by_frequency = -single[following].log().mean().item()
by_pairs = -pair[here, following].log().mean().item()
print(f"loss by frequency {by_frequency:.2f}, by pairs {by_pairs:.2f} nats")

# %% [markdown]
# The candidates: the whole block, in pre-norm; then without residuals, norms, attention, or feed-forward networks.
# Without the networks a model has only a third of the parameters, so it also competes with 18 blocks instead of 6.

# %% tags=["recorded"]
def no_residual(x, sublayer, norm):
    return sublayer(norm(x))


def no_norm(x, sublayer, norm):
    return x + sublayer(x)

# %% [markdown]
# All of them are trained the same way:

# %% tags=["recorded"]
def train(model, lr, steps=600):
    optimizer = torch.optim.Adam(model.parameters(), lr, betas=(0.9, 0.98), fused=True)
    losses = []
    for _ in range(steps):
        loss = loss_of(model, *batch_of_text(8))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# %% [markdown]
# Which part can go? Guess, and count as learning only a clear lead, 0.5 nats over the table of frequencies.

# %%
predict("block-parts", "Without which of them does the model still learn?",
        "residuals", "the blocks' norms", "attention or feed-forward", "none of them")

# %% [markdown]
# Train two of them here. (Losses are means of the last 50 steps.)

# %% tags=["nbval-ignore-output"]
for name, wiring in {"whole block": pre_norm, "no residual": no_residual}.items():
    torch.manual_seed(0)
    losses = train(CharacterModel(wiring), lr=1e-3)
    low, high = (2.3, 2.5) if wiring is pre_norm else (3.0, 3.4)
    expect(f"Loss, {name}", sum(losses[-50:]) / 50, low, high)

# %% [markdown]
# One run is an anecdote, and a rate may suit only one of the models. So `python data/block.py 0 1 2` trained all of
# them with these cells, at two rates, with three seeds each. A dot is the mean of the seeds, and its line goes from the
# best to the worst. The dotted lines mark the two tables.

# %%
from txlib.paths import DATA

recorded = json.loads((DATA / "block.json").read_text())
predicted("block-parts", "attention or feed-forward")

# %% [markdown]
# The figure shows where each run ended, next to both tables:

# %% jupyter={"source_hidden": true}
ends = {name: {rate: [run["loss"][-1] for run in runs.values()] for rate, runs in rates.items()}
        for name, rates in recorded["parts"].items()}
figures.seeds_by_rate(
    ends, levels={"frequencies": by_frequency, "pairs": by_pairs}, xlabel="loss after 600 steps (nats)",
    title="Only the whole block clearly beats a table of pairs")

# %% [markdown]
# Without residuals, or without the norms of the blocks, the model learns the frequencies and hardly more, at either
# rate (one of the six runs without norms has begun to get further). For the norms there is a surprise: leave out the
# last one as well, and it learns, though less than the whole block. (We have not tested why.)
#
# Without attention the model learns, but stays behind the table of pairs; since it never sees an earlier character, it
# cannot win. Without the feed-forward networks it ends level with that table at best; three times as many attention
# layers hardly get further (on average 2.51 against 2.54 at 0.001, and 2.41 both times at 0.003). Our explanation: it
# can look things up, but do little with what it finds. Only the whole block, at 0.003, is clearly better than the pairs
# with every seed. So only there do we see that it uses more than the last character.

# %% [markdown]
# ## 5 Break it: the gradient in each layer
#
# A block needs its parts. But why? Take 16 fresh blocks and one batch. How large is the gradient of each block's
# weights? We take the geometric mean of four random starts: one start may be a thousand times another.

# %%
def gradient_of_blocks(wiring, last_norm, blocks=16, starts=4):
    total = torch.zeros(blocks)
    for start in range(starts):
        torch.manual_seed(start)
        model = CharacterModel(wiring, last_norm, blocks, length=32)
        loss_of(model, *batch_of_text(32, length=32)).backward()
        for index, block in enumerate(model.stack.blocks):
            gradients = [w.grad for w in block.parameters() if w.grad is not None]
            total[index] += sum(g.square().sum() for g in gradients).sqrt().log()
    return (total / starts).exp()  # (block,): geometric means


# %% [markdown]
# We measure five stacks, each with its wiring and whether it has a last norm. One more wiring has neither residual nor
# norm:

# %%
def neither(x, sublayer, norm):
    return sublayer(x)


stacks = {"pre-norm": (pre_norm, True), "post-norm": (post_norm, False),
          "no residual": (no_residual, True), "no norm": (no_norm, True),
          "neither": (neither, False)}
gradient = {}
for name, (wiring, last_norm) in progress(stacks.items(), "gradients"):
    gradient[name] = gradient_of_blocks(wiring, last_norm)

# %% [markdown]
# The gradient travels from the output, at block 16, down to the input. Decide first: without norms, does it grow or
# shrink on its way? And with neither norms nor residuals?

# %% jupyter={"source_hidden": true}
plots.lines(
    {name: (range(16), gradient[name].tolist()[::-1]) for name in stacks},
    title="No norms: the gradient grows. No residuals either: it shrinks",
    xlabel="blocks back from the output", ylabel="gradient norm", yscale="log", width=7.2,
    alt="Gradient norm of each of 16 blocks on a logarithmic axis. No norm: from about 1 at the output up to over 1,000 "
    "at the input. Neither: down to below 0.001. Pre-norm, post-norm and no residual all stay between 0.4 and 6.")

# %% [markdown]
# With residuals but no norms, gradients explode on their way down; with neither, they vanish. (Whether the explosion is
# what stops the model without norms, we have not tested.) But with norms and no residuals they keep their size. So the
# gradient's size is not what stops that model. Is it section 1's collapse?
# Measure the fraction that tells words apart, from the input to the sixth block, before training:

# %% tags=["recorded"]
def apart_by_block(model):
    torch.manual_seed(0)
    model(batch_of_text(32)[0])
    return [apart(x) for x in model.stack.streams]  # input, after block 1, 2, …


for wiring in (pre_norm, post_norm, no_residual):
    torch.manual_seed(0)
    fractions = apart_by_block(CharacterModel(wiring, wiring is not post_norm))
    print(f"{wiring.__name__:11}", *(f"{fraction:.2f}" for fraction in fractions))

# %% [markdown]
# Without residuals the words become alike. But a symptom is not yet a cause. If averaging is the cause, a residual
# around *attention* alone must help, and one around the feed-forward network alone must not. Without attention, no
# residual should be needed. A wiring can tell the sub-layers apart:

# %% tags=["recorded"]
def around_attention(x, sublayer, norm):
    wiring = no_residual if isinstance(sublayer, FeedForward) else pre_norm
    return wiring(x, sublayer, norm)


# %% [markdown]
# (The second model swaps the two wirings. The third leaves attention out, and has no residual.) Guess:

# %%
predict("residual-where", "Rate 0.001, one residual per block: which lets it learn?",
        "attention", "the feed-forward network", "either", "it takes both")

# %% [markdown]
# The same record has these three, with the fraction that tells words apart after the last block and *after* training
# (means, and in parentheses the least and the greatest of three seeds):

# %%
def spread(runs, what):  # seed → what was recorded
    last = [run[what][-1] for run in runs.values()]
    return f"{sum(last) / len(last):.2f} ({min(last):.2f} to {max(last):.2f})"


for name, rates in recorded["residual"].items():
    for rate, runs in rates.items():
        print(f"{name:24} rate {rate}: loss {spread(runs, 'loss')},",
              f"apart {spread(runs, 'apart')}")
predicted("residual-where", "attention")

# %% [markdown]
# At 0.001 it comes out as predicted, with every seed. Around attention the model learns, and its words stay apart;
# around the feed-forward network it does not, and they become alike. Without attention, six feed-forward networks in a
# row need no residual at all: it is not depth as such that stops the learning, but averaging without a way around it.
# (At 0.003 attention's residual alone is not enough with any seed. With two of them its words become alike, but with
# the third they stay apart, at 0.45, and the model hardly learns more. So something else can stop the learning, which
# we have not tested.)
#
# Pre-norm and post-norm both keep words apart, and their gradients arrive. They still learn differently, as lesson 07
# shows.

# %% [markdown]
# ### Second reading: the landscape, with residuals and without
#
# A gradient is the slope at one point. Li et al. (2018) map the landscape around it. Choose two random directions, and
# compute the loss on a grid of moves along both. (Each row of a matrix moves along a random row of the same length:
# *filter normalization*.) Here are two pairs of fresh models, 16 blocks deep. In a pair, start and directions are the
# same, and only one model has residual connections. A cross marks the weights.

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
fresh = {}
for seed in (0, 1):
    for name, wiring in (("with residuals", pre_norm), ("without", no_residual)):
        torch.manual_seed(seed)
        fresh[f"{name}, start {seed}"] = CharacterModel(wiring, blocks=16)
torch.manual_seed(0)
some_text = batch_of_text(32)
figures.loss_landscapes(
    fresh, lambda model: loss_of(model, *some_text), points=11,
    title="With residuals there is one bowl; without them, several dips",
    alt="Four maps of the loss around random start weights, which a cross marks. With residuals the level lines are "
    "rings around one low place, from both starts; without, they are ragged, with several low places.")

# %% [markdown]
# From both starts, the level lines are smoother with residuals than without. (In the paper's trained, deep image
# networks the contrast is far more drastic.) But we see only two directions out of 206,000.

# %% [markdown]
# ## 6 Your own file
#
# We have every part of a block, spread over this notebook. What is missing is one place for them: `my_transformer.py`,
# a file that needs nothing but torch. Lesson 08 continues it. `write_module` looks up the cells that define these
# names, and writes them one below the other.

# %%
from txcourse.lesson import write_module

write_module("my_transformer.py", attention, MultiHeadAttention, LayerNorm,
             FeedForward, xavier, pre_norm, post_norm, TransformerBlock)

# %% [markdown]
# (`%pycat my_transformer.py` shows it.) Does it work? We compare its block with others, and perturb all weights first:
# gains of 1 and biases of 0 would hide a forgotten gain or bias.

# %%
import my_transformer
from txlib import layers as library


def block_of_file(wiring):
    block = my_transformer.TransformerBlock(64, 4, 256, wiring).eval()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return block


torch.manual_seed(0)
x, mask = torch.randn(2, 10, 64), causal().dense(10)  # (batch, n, d_model)
ours = {"pre-norm": block_of_file(my_transformer.pre_norm),
        "post-norm": block_of_file(my_transformer.post_norm)}

# %% [markdown]
# The library's block has the same parts under the same names, so weights can be handed over:

# %%
for name, mine in ours.items():
    config = library.BlockConfig.of_sizes(64, 4, 256, norm_first=name == "pre-norm")
    theirs = library.TransformerBlock(config).eval()
    theirs.load_state_dict(mine.state_dict())
    prove_equal(mine(x, mask), theirs(x, mask), what=f"Your {name} block and txlib's")

# %% [markdown]
# And torch's own. It packs the query, key and value matrices into one, and its masks are inverted: `True` means
# *forbidden*. The rest has other names, in the same order.

# %%
for name, mine in ours.items():
    options = {"norm_first": name == "pre-norm", "batch_first": True}
    theirs = nn.TransformerEncoderLayer(64, 4, 256, **options).eval()
    q, q_bias, k, k_bias, v, v_bias, *rest = mine.parameters()
    packed = [torch.cat([q, k, v]), torch.cat([q_bias, k_bias, v_bias]), *rest]
    theirs.load_state_dict(dict(zip(theirs.state_dict(), packed, strict=True)))
    out = theirs(x, src_mask=~mask[0, 0])  # (batch, n, d_model)
    prove_equal(mine(x, mask), out, what=f"Your {name} block and torch's")

# %% [markdown]
# Open the library: you will recognize both wirings. What is new is cross-attention (lesson 08), a cache for writing
# word by word (lesson 13), and options for later lessons.

# %%
from txcourse.lesson import show_source

opened = library.TransformerBlock
show_source(opened.forward, opened.residual, opened.added)

# %% [markdown]
# ## 7 What it costs
#
# The block works. What does it cost?
#
# **Parameters.** Attention has four matrices $d \times d$, the feed-forward network $d \times 4d$ and $4d \times d$.
#
# $$4d^2 + 8d^2 = 12 d^2$$
#
# Two thirds are feed-forward. Biases and norms add $13 d$, which is next to nothing. Count them:

# %%
def count_parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


for d in (64, 512, 1024):
    block = TransformerBlock(d, 8, 4 * d)
    counted, formula = count_parameters(block), 12 * d**2 + 13 * d
    fraction = count_parameters(block.feed_forward) / counted
    print(f"d {d:4}: {counted:10,} parameters, 12d² + 13d = {formula:10,};",
          f"feed-forward {fraction:.0%}")

# %% [markdown]
# **Operations.** A matrix with $p$ parameters costs $2p$ operations per word: a multiplication and an addition each. So
# all matrices together cost $24 n d^2$: attention's projections $8nd^2$, the feed-forward network $16 n d^2$. In
# addition, the scores and the mixing cost $4n^2d$ (lesson 03), which grows with the square of $n$. Attention as a whole
# overtakes the feed-forward network when
#
# $$8nd^2 + 4n^2d = 16nd^2 \quad\Longleftrightarrow\quad n = 2d.$$
#
# With $d = 512$ that is $n = 1024$. Below it, "attention is expensive" is a myth: the feed-forward network costs more.

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. Which of these is the pre-norm block's residual connection?**
#
# <details><summary>A. <code>norm(x + sublayer(x))</code></summary>
#
# That is post-norm. The stream itself passes through the norm.
# </details>
# <details><summary>B. <code>norm(x) + sublayer(norm(x))</code></summary>
#
# A common slip. Here the stream itself is normalized, so nothing passes untouched. Add to `x`, not to `norm(x)`.
# </details>
# <details><summary>C. <code>x + sublayer(norm(x))</code></summary>
#
# Right. The norm is on the branch, and `x` passes it by.
# </details>
#
# **2. x has shape (batch 8, n 20, d 512). How many means does layer norm compute?**
#
# <details><summary>A. 512</summary>
#
# That is batch norm: one for each dimension, over all words of all sentences.
# </details>
# <details><summary>B. 160</summary>
#
# Right: one for each word, 8 · 20. No word depends on another.
# </details>
# <details><summary>C. 8</summary>
#
# Then all words of a sentence, and its padding, would share one mean.
# </details>
#
# **3. You multiply the input of a pre-norm sub-layer by 10, with a gain of 1 and a bias of 0. What does its branch
# `sublayer(norm(x))` do?**
#
# <details><summary>A. It grows tenfold</summary>
#
# The norm divides by a standard deviation that has grown tenfold as well.
# </details>
# <details><summary>B. Practically nothing</summary>
#
# Right. Norms do not see the size of their input (except for eps). So the larger the stream, the less one block's
# addition turns it.
# </details>
# <details><summary>C. It shrinks to a tenth</summary>
#
# Its fraction of the *sum* shrinks to about a tenth. The branch itself stays as it was.
# </details>
#
# **4. d = 768, as in BERT-base. About how many parameters does a block have, and at which length does attention cost as
# much as the feed-forward network?**
#
# <details><summary>A. 7 million, at n = 1,536</summary>
#
# Right. $12 \cdot 768^2 = 7.08$ million, and $n = 2d$. BERT reads at most 512 tokens, so its feed-forward networks cost
# more.
# </details>
# <details><summary>B. 2.4 million, at n = 768</summary>
#
# $4 d^2$ is attention alone. And at $n = d$ its cost is $12nd^2$ against $16nd^2$.
# </details>
# <details><summary>C. 7 million, at any length: two thirds to one third</summary>
#
# Two to one is the ratio of the *parameters*. The scores have none, but they cost $4n^2d$.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - Attention alone makes all words the same, and on a single word it is only a matrix.
# - The residual connection lets words, and gradients, pass. It adds; it never replaces.
# - Layer norm works on one word at a time: mean 0, variance 1 (biased), then a learned gain and bias. RMS norm leaves
#   out the mean and the bias.
# - The feed-forward network computes, word by word, and holds two thirds of the $12d^2$ parameters.
# - Without residuals, or with no norm but the last, a stack of six learns the characters' frequencies and hardly more.
#   Only the whole block clearly beats a table of pairs.
# - At the lower rate, a residual around attention alone keeps words apart; without attention none is needed.
# - Your block is in `my_transformer.py`, and it computes what torch's does.
#
# **Read** Vaswani et al. 2017, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762), sections 3.1, 3.3 and 5.4. He et
# al. 2016, *Deep Residual Learning*, [arXiv:1512.03385](https://arxiv.org/abs/1512.03385), section 3. Ba et al. 2016,
# *Layer Normalization*, [arXiv:1607.06450](https://arxiv.org/abs/1607.06450), section 3. Zhang & Sennrich 2019, *Root
# Mean Square Layer Normalization*, [arXiv:1910.07467](https://arxiv.org/abs/1910.07467), section 4. Shazeer 2020, *GLU
# Variants Improve Transformer*, [arXiv:2002.05202](https://arxiv.org/abs/2002.05202), section 2. Dong et al. 2021,
# *Attention Is Not All You Need*, [arXiv:2103.03404](https://arxiv.org/abs/2103.03404), section 2. Li et al. 2018,
# *Visualizing the Loss Landscape of Neural Nets*, [arXiv:1712.09913](https://arxiv.org/abs/1712.09913), sections 4
# and 6.
#
# **Do** the exercise [06_block](../exercises/exercise_06_block.ipynb). Then go on to
# [07 Learning](07_learning.ipynb).
