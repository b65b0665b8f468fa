# %% [markdown] lesson={"part": "I Attention", "builds": "residuals, normalization, feed-forward"}
# # 06 · The block: residual, normalisation, feed-forward
#
# **After this lesson you will be able to**
#
# - say what attention alone cannot do, and show it with numbers;
# - write residual connections, layer norm, RMS norm and the feed-forward network from bare torch;
# - wire them into a Transformer block, pre-norm and post-norm, and say which of them needs a warm-up, and why;
# - build Adam, and say what its two moments, the bias correction and ε are for;
# - count a block's parameters and operations in your head.
#
# **You need** lessons 03 to 05. **It takes** about 110 minutes to read and try; all cells together run in about a
# minute on a laptop. Most of that is 75 tiny language models that we train to see which parts matter.

# %% [markdown]
# ## 1 The problem: attention alone does not go deep
#
# You can build attention with many heads (lesson 04), and tell it the order of its words (lesson 05). One layer mixes
# words once. Deep learning has a habit here: stack it. So let us put twelve attention layers on top of each other, and
# send a real sentence through, the one that we follow through these lessons. The word vectors are random, as they are
# before any training.

# %%
import math

import torch
import torch.nn.functional as F
from torch import nn

from txlib import plots
from txlib.attention import MultiHeadAttention, causal
from txlib.data import translation
from txlib.layers import sinusoidal
from txcourse import figures
from txcourse.lesson import expect, progress, prove_equal, show_source

pairs = translation("games", max_words=12).train
sentence = next(english for _, english in pairs if english == "The orcs have attacked the humans.")
words = sentence.lower().replace(".", " .").split()
n, d_model, heads = len(words), 64, 4
print(words)

# %% [markdown]
# Twelve attention layers with random matrices, and the words as random vectors plus their positions (lesson 05). We
# keep what each layer hands to the next.


# %%
def attention_layer():
    layer = MultiHeadAttention(d_model, heads, bias=False)
    for weight in layer.parameters():
        nn.init.xavier_uniform_(weight)                      # keeps the size of what passes through
    return layer


torch.manual_seed(0)
table = {word: torch.randn(d_model) for word in words}             # a random vector per word
# (1, n, d_model)
sent = torch.stack([table[word] for word in words])[None] + sinusoidal(n, d_model)
layers = [attention_layer() for _ in range(12)]
streams = [sent]                                                 # what each layer hands to the next
with torch.no_grad():
    for layer in layers:
        streams.append(layer(streams[-1]))                         # (1, n, d_model)

# %% [markdown]
# Here are the vectors at four places, one row per word (the first 12 of 64 dimensions). Compare the rows.

# %%
figures.vectors(
    {name: streams[depth][0, :, :12]
     for name, depth in {"input": 0, "layer 1": 1, "layer 2": 2, "layer 4": 4}.items()},
    rows=words, title="After a few attention layers, every word has the same vector",
    alt="Four tables of seven words by 12 dimensions. In the input all rows differ. After layer 1 "
    "they resemble each other, after layer 2 they nearly agree, after layer 4 all rows look "
    "the same.",
)

# %% [markdown]
# Each output is an average (lesson 03), and averages of averages end in one grand average: as words come to agree, so
# do their weights. Let us put a number on it. Take away the mean over all words; what is left is what tells words
# *apart*. Divide its length by that of the whole. This share is 1 when the mean is 0, so that nothing is common to all
# words, and 0 when they are all the same.

# %%
def apart(x):                                                      # x (..., n, d_model)
    mean = x.mean(dim=-2, keepdim=True)                    # (..., 1, d_model): what all words share
    return ((x - mean).norm() / x.norm()).item()


for depth in (0, 1, 2, 3):
    print(f"layers: {depth}   share that tells words apart: {apart(streams[depth]):.0e}")
print("layers: 4   less than one part in a million:", apart(streams[4]) < 1e-6)

# %% [markdown]
# This is *rank collapse*: the matrix of word vectors shrinks to rank 1. Dong et al. (2021) proved that it happens
# doubly exponentially with depth: a layer does not halve the difference, it roughly *cubes* it. Cubing
# triples the exponent: compare the lines with 2 and 3 layers. (After four, all that is left is the rounding error of
# 32-bit numbers, near $10^{-7}$.)
#
# Training can hardly repair this, because next to no gradient gets through. Suppose the loss wants the outputs of
# *orcs* and *humans* to differ. How strongly does it pull at the input?


# %%
def pull(depth, residual=False):
    x = sent.clone().requires_grad_()                              # (1, n, d_model)
    y = x
    for layer in layers[:depth]:
        y = y + layer(y) if residual else layer(y)                 # (1, n, d_model)
    (y[0, words.index("orcs")] - y[0, words.index("humans")]).sum().backward()
    return x.grad.norm().item()


for depth in (1, 2, 3):
    print(f"layers: {depth}   gradient at the input: {pull(depth):.0e}")
print(f"layers: 4   less than a millionth of that with 1 layer: {pull(4) < 1e-6 * pull(1)}")

# %% [markdown]
# Four layers, and the gradient is a rounding error.
#
# There is a second thing that attention cannot do. Give it a sentence of *one* word. The softmax over one key is 1,
# whatever the score. What remains are the value and the output projections: a matrix. And twelve matrices in a row are
# one matrix. A linear map treats a sum as the sum of its parts, and that can be checked:

# %%
torch.manual_seed(0)
a, b = torch.randn(2, 1, 1, d_model)               # two sentences of one word, (1, 1, d_model) each


def twelve_layers(x):
    for layer in layers:
        x = layer(x)                                               # (1, 1, d_model)
    return x


with torch.no_grad():
    whole, parts = twelve_layers(a + b), twelve_layers(a) + twelve_layers(b)  # (1, 1, d_model) each
    prove_equal(whole, parts, tolerance=1e-4, what="f(a + b) and f(a) + f(b)")

# %% [markdown]
# So attention chooses *where* to look, but what it brings from there passes through matrices only. It moves
# information; it does not work on it. The block that this lesson builds mends both. Each layer *adds* to what is there
# instead of replacing it, and a small network does the work on each word.

# %% [markdown]
# ## 2 The idea in one picture
#
# Read it from the bottom. The thick line is the *residual stream*: one vector per word, on its way from the embedding
# to the output. Attention reads the stream and adds what it found. The feed-forward network reads the stream and adds
# what it worked out. Nobody replaces anything. Norms keep the sizes in hand; the two wirings differ in where they
# stand.

# %%
figures.block()

# %% [markdown]
# Here is what attention alone lacks, and what mends it. With that, the list is complete:
#
# | Attention alone … | What mends it | Where |
# | --- | --- | --- |
# | does not see the order of words | positions | lesson 05 |
# | looks at the future, too, where it should predict it | a causal mask | lesson 03 |
# | averages values, and computes nothing with what it found | a feed-forward network for each word | 3.3 |
# | makes all words alike when stacked, and lets no gradient through | residual connections | 3.1 |
# | leaves the stream's size to chance once things are added up | normalisation | 3.2 |
#
# Stack this block $N$ times, and you have the body of a Transformer. Vaswani et al. (2017) used post-norm, with
# $N = 6$. Most language models since GPT-2 use pre-norm. By section 6 you will know why.

# %% [markdown]
# ## 3 Build it step by step
#
# ### 3.1 The residual connection
#
# $$x \leftarrow x + f(x)$$
#
# That is all (He et al. 2016). If $f$ does nothing, $x$ passes. And the derivative is $1 + f'(x)$: the gradient has a
# way around $f'$, unless $f'$ is just $-1$. An addition needs two vectors of one length, so $f$ must lead from $d$
# dimensions back to $d$. (Slides that draw a residual around a layer from $d_1$ to $d_2$ mean $d_1 = d_2$.) The same
# twelve layers, with the same weights, as an addition:

# %%
x, added = sent, [sent]
with torch.no_grad():
    for layer in layers:
        x = x + layer(x)                                           # (1, n, d_model)
        added.append(x)
plots.lines(
    {"with residual": (range(13), [apart(x) for x in added]),
     "without": (range(13), [apart(x) for x in streams])},
    title="The residual keeps words apart", xlabel="attention layers",
    ylabel="share that tells words apart",
    yscale="log", marker="o",
    alt="The share that tells words apart on a logarithmic axis. Without residual it falls to one "
    "in ten million within four layers and stays there. With it, it stays between 1 and 0.01 "
    "over twelve layers.",
)

# %% [markdown]
# There is another way to say it: a residual layer starts with a *bias towards the identity*. To pass on what it got, it
# has to learn nothing but a small $f$; a bare layer would have to learn the identity matrix. How much of the input is
# left in the output, before training?

# %%
with torch.no_grad():
    said = layers[0](sent)                                         # (1, n, d_model)
    for name, out in {"f(x)": said, "x + f(x)": sent + said}.items():
        print(f"cosine between x and {name:8}: {F.cosine_similarity(sent, out, dim=-1).mean():.2f}")

# %% [markdown]
# Back to the figure. The words still drift together, since each layer adds some of the common average. But they drift
# slowly, and training can work against it, because now the gradient arrives. How large is it, compared with a model
# that has no layer at all, where the output *is* the input?

# %%
nothing = pull(0)                                        # the gradient when the output is the input
for depth in (1, 2, 4):
    grown = pull(depth, residual=True) / nothing
    print(f"layers: {depth:2}   gradient at the input: {grown:.1f} times that of no layer")
print("layers: 12   more than 100 times that of no layer:", pull(12, residual=True) > 100 * nothing)

# %% [markdown]
# It arrives too well: with each layer it grows, and after twelve it is more than a hundred times what it was. The
# stream itself grows, too:

# %%
for depth in (0, 4, 8, 12):
    print(f"after {depth:2} layers the entries of the stream have size {added[depth].std():3.0f}")

# %% [markdown]
# Every addition makes the vectors longer; longer vectors make larger scores; larger scores make the softmax hard
# (lesson 03). Something has to keep the size in hand.

# %% [markdown]
# ### 3.2 Layer normalisation
#
# Take *one* word's vector $x$, with $d$ entries. Subtract their mean, divide by their standard deviation, and then let
# the model choose a size and an offset for each entry:
#
# $$\mu = \frac{1}{d}\sum_i x_i \qquad \sigma^2 = \frac{1}{d}\sum_i (x_i - \mu)^2 \qquad
# \text{norm}(x) = \text{gain} \odot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \text{bias}$$
#
# (Ba et al. 2016, equation 4.) Gain starts at 1 and bias at 0; both are learned. (You may meet slides that say "unit
# mean" or print $\mu$ without the $1/d$. The mean becomes *zero*; it is the variance that becomes one.)


# %%
def layer_norm(x, gain, bias, eps=1e-5):                   # x (..., d_model); gain, bias (d_model,)
    mean = x.mean(dim=-1, keepdim=True)                            # (..., 1): one number per word
    variance = (x - mean).square().mean(dim=-1, keepdim=True)    # (..., 1): divided by d, not d - 1
    return gain * (x - mean) / (variance + eps).sqrt() + bias      # (..., d_model)


gain, bias = 1 + 0.1 * torch.randn(d_model), 0.1 * torch.randn(d_model)
mine = layer_norm(added[12], gain, bias)
theirs = F.layer_norm(added[12], (d_model,), gain, bias)          # (1, n, d_model)
prove_equal(mine, theirs, what="Ours and torch's layer norm")

# %% [markdown]
# Three details that people get wrong, each measured:
#
# - **The variance is the biased one.** `torch.var` divides by $d - 1$ unless told otherwise.
# - **eps stands inside the root.** It matters for small vectors. For a vector of equal entries, it is what saves you
#   from 0 / 0.
# - **The axis is the last one.** Each word is normalised by itself. Change one word, and the others do not notice.

# %%
with_var = (sent - sent.mean(dim=-1, keepdim=True)) / (sent.var(dim=-1, keepdim=True) + 1e-5).sqrt()
plain = F.layer_norm(sent, (d_model,))                             # (1, n, d_model), gain 1, bias 0
print(f"divided by d - 1, everything shrinks to {with_var.norm() / plain.norm():.4f}")

tiny = 1e-3 * torch.tensor([1.0, -1.0, 1.0, -1.0])                 # (4,), its deviation is 0.001
inside, outside = tiny / (tiny.square().mean() + 1e-5).sqrt(), tiny / (tiny.std(correction=0) + 1e-5)
print(f"a tiny vector: eps inside the root {inside[0]:.2f}, outside {outside[0]:.2f}")
print("equal entries:", F.layer_norm(torch.full((4,), 7.0), (4,)).tolist())

changed = sent.clone()
changed[0, 1] = torch.randn(d_model)                               # another word in place of "orcs"
moved = (F.layer_norm(changed, (d_model,)) - plain).abs().amax(dim=-1)[0]        # (n,)
noticed = [word for word, change in zip(words, moved, strict=True) if change > 0]
print("words that noticed:", noticed)

# %% [markdown]
# ### Why not batch norm?
#
# Batch norm, which image networks use, takes the mean and the variance of each *dimension*, over all words of all
# sentences in the batch. Then a word's result depends on its neighbours in the batch, and on the padding. Watch: the
# same two sentences, first padded to 7 words, then to 14, as if a longer sentence had joined the batch.


# %%
def batch_norm(x):                                                 # x (sentence, n, d_model)
    mean = x.mean(dim=(0, 1))                                 # (d_model,): over words and sentences
    variance = x.var(dim=(0, 1), correction=0)                     # (d_model,)
    return (x - mean) / (variance + 1e-5).sqrt()                   # (sentence, n, d_model)


# (1, 7, d_model): 3 words, 4 padding
short = torch.cat([sent[:, :3], torch.zeros(1, 4, d_model)], dim=1)
batch = torch.cat([sent, short])                                   # (2, 7, d_model)
longer = F.pad(batch, (0, 0, 0, 7))              # (2, 14, d_model): 7 more of padding, nothing else
for norm in (batch_norm, lambda x: F.layer_norm(x, (d_model,))):
    before, after = norm(batch)[0], norm(longer)[0, :n]           # (n, d_model): the first sentence
    change = (after - before).norm() / before.norm()
    name = "batch norm" if norm is batch_norm else "layer norm"
    print(f"{name}: more padding changes a sentence by {change:.0%}")

# %% [markdown]
# The zeros of the padding pull every variance down, so that all else is blown up. But padding is not language, and
# nothing should depend on it. Layer norm looks at one word only, so it cannot.
#
# ### RMS norm
#
# Zhang & Sennrich (2019) asked whether the mean matters. Leave it out, and divide by the root of the mean square:
#
# $$\text{rms}(x) = \text{gain} \odot \frac{x}{\sqrt{\frac{1}{d}\sum_i x_i^2 + \epsilon}}$$
#
# One sum fewer, and no bias. They found that models train as well with it, in less time; Llama and many others use it
# (lesson 16). On a vector whose mean is 0 both are the same.


# %%
def rms_norm(x, gain, eps=1e-6):                                 # x (..., d_model); gain (d_model,)
    return gain * x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()       # (..., d_model)


prove_equal(rms_norm(sent, gain), F.rms_norm(sent, (d_model,), gain, 1e-6),
    what="Ours and torch's RMS norm")
centred = sent - sent.mean(dim=-1, keepdim=True)                   # (1, n, d_model)
prove_equal(rms_norm(centred, gain), layer_norm(centred, gain, 0.0, eps=1e-6),
    what="RMS and layer norm at mean 0")

# %% [markdown]
# As a module, with the gain, which torch calls `weight`, and the bias to learn. It calls torch's function, which we
# have just shown to be ours, because that does all the steps in one go.


# %%
class LayerNorm(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x):                                          # (..., d_model)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias)


# %% [markdown]
# ### 3.3 The feed-forward network
#
# Now the part that computes. It widens each word's vector from $d$ to $d_\text{ff}$ entries, usually $4d$, bends them
# with an activation function, and narrows the result back to $d$:
#
# $$\text{FFN}(x) = \text{activation}(x W_1 + b_1)\, W_2 + b_2$$
#
# (Vaswani et al. 2017, equation 2, with relu.) Each entry in the middle is a question, asked by a column of $W_1$: how
# much of this pattern is in the vector? If the answer is yes, a row of $W_2$ is added to the stream.


# %%
class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff, activation=F.relu):
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.activation = activation

    def forward(self, x):                                          # (..., d_model)
        # through (..., d_ff) back to (..., d_model)
        return self.down_proj(self.activation(self.up_proj(x)))


# %% [markdown]
# It works on each word by itself, with the same weights for all: it is *position-wise*. And it is not linear, unlike
# the twelve layers above.

# %%
torch.manual_seed(0)
feed_forward = FeedForward(d_model, 4 * d_model)
with torch.no_grad():
    together = feed_forward(sent)                                  # (1, n, d_model)
    one_by_one = torch.stack([feed_forward(word) for word in sent[0]])[None]     # (1, n, d_model)
    prove_equal(together, one_by_one, what="The whole sentence and word by word")
    gap = feed_forward(a + b) - feed_forward(a) - feed_forward(b)  # (1, 1, d_model)
    share = gap.norm() / feed_forward(a + b).norm()
print(f"f(a + b) differs from f(a) + f(b) by {share:.0%} of its size")

# %% [markdown]
# **Which activation?** The original has relu, which cuts off all below 0. BERT and GPT have gelu, a smooth relu: it is
# $x\,\Phi(x)$, where $\Phi(x)$ is the chance that a standard normal number is below $x$. GPT-2 computes it by an
# approximation with tanh. silu, also called swish, is $x$ times the sigmoid of $x$.


# %%
def gelu(x):
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2               # x Φ(x), exactly


def gelu_tanh(x):
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def silu(x):
    return x * torch.sigmoid(x)


x = torch.linspace(-4, 2, 241)                                     # (241,)
curves = {"relu": F.relu, "gelu": gelu, "silu": silu}
plots.lines(
    {name: (x.tolist(), curve(x).tolist()) for name, curve in curves.items()},
    title="Smooth activations dip below 0 before they rise", xlabel="x", ylabel="activation(x)",
    alt="Three curves. relu is 0 for negative x and x above. gelu and silu are smooth, and dip a "
    "little below 0 for negative x, silu further than gelu.",
)

# %% [markdown]
# The two forms of gelu would lie on top of each other, so only one is drawn. How much do they differ?

# %%
prove_equal(gelu(x), F.gelu(x), what="Ours and torch's gelu")
prove_equal(gelu_tanh(x), F.gelu(x, approximate="tanh"), what="Ours and torch's tanh form")
print(f"the two forms differ by at most {(gelu(x) - gelu_tanh(x)).abs().max():.5f}")

# %% [markdown]
# Little, but every block adds its share. If you load weights that were trained with one form, compute with that form.
#
# **Gates.** Shazeer (2020) multiplies two projections: one passes through silu and acts as a *gate* for the other.
#
# $$\text{SwiGLU}(x) = \big(\text{silu}(x W_g) \odot x W_1\big)\, W_2$$
#
# Here is one entry in the middle, for four values of $x W_1$. Where $x W_g$ is negative, the gate is nearly shut:
# little passes, whatever $x W_1$ says. Where it is positive, $x W_1$ passes, the more the further the gate is open, and
# with its own sign.

# %%
gate = torch.linspace(-4, 2, 121)                      # (121,): one entry of x W_g, which silu sees
plots.lines(
    {f"x W₁ = {value}": (gate.tolist(), (silu(gate) * other).tolist())
     for value, other in {"2": 2.0, "1": 1.0, "0.5": 0.5, "−1": -1.0}.items()},
    title="SwiGLU: x W₁ passes where the gate is open", xlabel="x W_g, what opens the gate",
    ylabel="silu(x W_g) · x W₁",
    alt="Four curves of silu times 2, 1, 0.5 and −1. All are near 0 where x W_g is negative. "
    "Where it is positive, they rise with x W₁, and fall where x W₁ is negative.",
)

# %% [markdown]
# A gate needs three matrices instead of two; models that use it take $d_\text{ff} = \frac{8}{3} d$ instead of $4d$, so
# that the cost stays the same.

# %% [markdown]
# **Where the parameters are.** Attention has four matrices of $d \times d$, the feed-forward network two of
# $d \times 4d$. So $4d^2$ against $8d^2$:

# %%
def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


mixing, computing = parameters(MultiHeadAttention(512, 8)), parameters(FeedForward(512, 2048))
share = computing / (mixing + computing)
print(f"attention {mixing:,}, feed-forward {computing:,}: {share:.0%} of both together")

# %% [markdown]
# Two thirds of a block's parameters sit here.

# %% [markdown]
# ### 3.4 Dropout
#
# While training, set a random share of the entries to 0, so that no part can lean on one single number. Divide the
# rest by the share that is kept: then the expected value stays the same, and nothing has to change when dropout is
# switched off.


# %%
def dropout(x, share):
    keep = (torch.rand_like(x) >= share).float()                   # 1 = keep
    return x * keep / (1 - share)


torch.manual_seed(0)
dropped = dropout(torch.ones(1_000_000), 0.1)                      # (1000000,)
print(f"{(dropped == 0).float().mean():.0%} are zero, the others {dropped.max():.3f},",
      f"the mean is {dropped.mean():.2f}")

# %% [markdown]
# In the block, dropout acts on the *branch*, before the addition. On the stream itself it would erase what all earlier
# layers have written.

# %% [markdown]
# ### 3.5 The block
#
# A *wiring* says how stream, sub-layer and norm are put together. Here are the two of the picture, and three broken
# ones for later.


# %%
def pre_norm(x, sublayer, norm):
    return x + sublayer(norm(x))


def post_norm(x, sublayer, norm):
    return norm(x + sublayer(x))


def no_residual(x, sublayer, norm):
    return sublayer(norm(x))


def no_norm(x, sublayer, norm):
    return x + sublayer(x)


def bare(x, sublayer, norm):
    return sublayer(x)


# %% [markdown]
# The block has two sub-layers, each with a norm of its own, and hands both to the same wiring.


# %%
class Block(nn.Module):
    def __init__(self, d_model, heads, d_ff, wiring=pre_norm, dropout=0.0):
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, heads)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.self_attention_norm, self.feed_forward_norm = LayerNorm(d_model), LayerNorm(d_model)
        self.wiring, self.dropout = wiring, nn.Dropout(dropout)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)

    def forward(self, x, mask=None):                               # (batch, n, d_model)
        def mix(y):
            return self.dropout(self.self_attention(y, mask=mask))

        x = self.wiring(x, mix, self.self_attention_norm)
        return self.wiring(x, lambda y: self.dropout(self.feed_forward(y)), self.feed_forward_norm)


# %% [markdown]
# Follow one word through both: the length of the vector of *attacked*, and its first three numbers, after each
# sub-layer.

# %%
def show_word(what, x, word=words.index("attacked")):              # x (1, n, d_model)
    numbers = " ".join(f"{number:5.2f}" for number in x[0, word, :3])
    print(f"   {what:22} length {x[0, word].norm():5.2f}   begins {numbers}")


for name, wiring in {"pre-norm": pre_norm, "post-norm": post_norm}.items():
    torch.manual_seed(0)
    block, x = Block(d_model, heads, 4 * d_model), sent
    print(name)
    with torch.no_grad():
        show_word("enters", x)
        x = wiring(x, block.self_attention, block.self_attention_norm)
        show_word("after attention", x)
        show_word("after feed-forward", wiring(x, block.feed_forward, block.feed_forward_norm))

# %% [markdown]
# In pre-norm what came in is still there, as one part of a sum, and the vector has become longer. (What is added is no
# trifle, even before training: look at the third number.) In post-norm each norm sets the length to $\sqrt{64} = 8$:
# it shifts and rescales the whole sum, and what came in with it.
#
# ## 4 See it work: the gradient in each layer
#
# To see gradients that mean something, we need a real task: guess the next character of English text. The model is a
# stack of blocks between an embedding and a prediction. (Lesson 10 is about such models. Here it is our test bench.)
#
# Pre-norm hands on a stream that no norm has touched, so it gets one more norm at the very end.


# %%
class CharacterModel(nn.Module):
    def __init__(self, wiring, block=Block, blocks=8, d_model=32, heads=2, length=32):
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(len(alphabet), d_model) * d_model**-0.5)
        stack = [block(d_model, heads, 4 * d_model, wiring) for _ in range(blocks)]
        self.blocks = nn.ModuleList(stack)
        self.last_norm = nn.Identity() if wiring in (post_norm, bare) else LayerNorm(d_model)
        self.position, self.mask = sinusoidal(length, d_model), causal().dense(length)

    def stream(self, ids):                                         # (batch, n)
        x = F.embedding(ids, self.embedding) * self.embedding.shape[1] ** 0.5 + self.position
        for block in self.blocks:
            x = block(x, self.mask)                                # (batch, n, d_model)
        return self.last_norm(x)

    def forward(self, ids):
        self.last = self.stream(ids)                      # (batch, n, d_model), kept for looking at
        return self.last @ self.embedding.T                # (batch, n, character): a score for each


# %% [markdown]
# The text is the English side of our sentence pairs, one after the other. A batch is cut from it at random places, and
# each character is to predict the next.

# %%
text = "\n".join(english for _, english in pairs)
alphabet = sorted(set(text))
number = {character: id for id, character in enumerate(alphabet)}
encoded = torch.tensor([number[character] for character in text])  # (length of the text,)


def batch_of_text(size, length=32):
    start = torch.randint(len(encoded) - length, (size,))          # (batch,)
    chunk = encoded[start[:, None] + torch.arange(length + 1)]     # (batch, n + 1)
    return chunk[:, :-1], chunk[:, 1:]                             # what is read, what comes next


def loss_of(model, read, following):
    return F.cross_entropy(model(read).flatten(0, 1), following.flatten())


torch.set_num_threads(1)                             # for models this small, more threads only wait
print(f"{len(encoded):,} characters, {len(alphabet)} different ones")

# %% [markdown]
# Now 16 blocks, not trained, one batch. How large is the gradient of each block's weights? We average over four random
# starts.


# %%
def gradient_of_blocks(wiring, blocks=16, starts=4):
    total = torch.zeros(blocks)
    for start in range(starts):
        torch.manual_seed(start)
        model = CharacterModel(wiring, blocks=blocks)
        loss_of(model, *batch_of_text(32)).backward()
        total += torch.tensor([
            sum(w.grad.square().sum() for w in block.parameters() if w.grad is not None).sqrt()
            for block in model.blocks
        ])
    return total / starts                                          # (block,)


# %% [markdown]
# First the wirings without norms, beside pre-norm:

# %%
wirings = {"pre-norm": pre_norm, "post-norm": post_norm}
wirings |= {"no residual": no_residual, "no norm": no_norm, "neither": bare}
gradient = {}
for name, wiring in progress(wirings.items(), "gradients"):
    gradient[name] = gradient_of_blocks(wiring)
plots.lines(
    {name: gradient[name].tolist() for name in ("pre-norm", "no norm", "neither")},
    title="No norms: gradients explode. No residuals either: they vanish",
    xlabel="block (16 is next to the output)", ylabel="gradient norm", yscale="log",
    alt="Gradient norm of each of 16 blocks on a logarithmic axis. Pre-norm stays near 1. No "
    "norm: from about 1 at the output up to over 1000 at the input. Neither: from about 1 at "
    "the output down to below 0.001 at the input.",
)

# %% [markdown]
# The residual alone lets gradients explode on their way down, and the bare stack lets them vanish. A block needs both
# parts. Now the finer question: where to put the norm.

# %%
plots.lines(
    {name: gradient[name].tolist() for name in ("pre-norm", "post-norm", "no residual")},
    title="Post-norm pulls hardest at the last blocks, pre-norm evenly",
    xlabel="block (16 is next to the output)",
    ylabel="gradient norm",
    alt="Gradient norm of each of 16 blocks. Pre-norm: from about 1 in the first block slowly "
    "down to one half. Post-norm: from about one half up to nearly 2 in the last block. No "
    "residual rises more steeply, to nearly 4.",
)

# %% [markdown]
# Xiong et al. (2020, theorem 1) worked out a bound for the gradient of the *last* block, and how it depends on the
# number $N$ of blocks. In post-norm it does not. In pre-norm it shrinks like $1/\sqrt{N}$, because the stream, which
# the last norm divides by its size, has grown like $\sqrt{N}$. Measure it:

# %% tags=["nbval-ignore-output"]
for blocks in (4, 8, 16, 24):
    pre, post = (gradient_of_blocks(wiring, blocks)[-1] for wiring in (pre_norm, post_norm))
    times = pre * blocks**0.5
    print(f"{blocks:2} blocks: gradient of the last, pre-norm {pre:.2f} (times √N {times:.1f}),",
          f"post-norm {post:.1f}")

# %% [markdown]
# So post-norm pulls hardest at its last blocks, however deep it is. Whether that hurts, training must show.
#
# ### The landscape, with residuals and without
#
# A gradient is the slope at one point. What does the land around it look like? Li et al. (2018) draw it: take the
# weights, choose two random directions, and compute the loss on a grid of small moves along both. So that large and
# small weights move alike, each row of a matrix gets a random direction of the row's own length. (The paper calls this
# *filter normalisation*.)

# %%
def random_direction(model):
    for weight in model.parameters():
        random = torch.randn_like(weight)
        if weight.dim() == 2:  # norms and biases stay where they are
            yield random * weight.norm(dim=1, keepdim=True) / random.norm(dim=1, keepdim=True)
        else:
            yield torch.zeros_like(weight)


@torch.no_grad()
def landscape(model, points=13):
    torch.manual_seed(1)
    batch, start = batch_of_text(32, 16), [weight.clone() for weight in model.parameters()]
    first, second = list(random_direction(model)), list(random_direction(model))
    grid = torch.linspace(-1, 1, points)
    return [[loss_at(model, start, first, second, x, y, batch) for x in grid] for y in grid]

# %% [markdown]
# One point of the grid: move the weights, and look at the loss.

# %% tags=["nbval-ignore-output"]
def loss_at(model, start, first, second, x, y, batch):
    for weight, here, one, two in zip(model.parameters(), start, first, second, strict=True):
        weight.copy_(here + x * one + y * two)
    return loss_of(model, *batch).item()


def dents(surface):  # the points of the grid that lie lower than all four neighbours: (row, column) each
    z = torch.tensor(surface)
    around = torch.stack([z[:-2, 1:-1], z[2:, 1:-1], z[1:-1, :-2], z[1:-1, 2:]])
    return [(row + 1, column + 1) for row, column in (z[1:-1, 1:-1] < around).all(dim=0).nonzero().tolist()]


lands = {}
for name, wiring in {"with residuals": pre_norm, "without": no_residual}.items():
    torch.manual_seed(0)
    lands[name] = landscape(CharacterModel(wiring, blocks=6, length=16))
    print(f"{name}: points of the grid that lie lower than their four neighbours: {len(dents(lands[name]))}")

# %% [markdown]
# Both models are fresh, six blocks deep, and differ in the residual connection alone. The cross is where the weights
# are, and the dots are the points just counted.

# %%
plots.landscapes(
    lands, dots={name: dents(surface) for name, surface in lands.items()},
    title="Before training: a bowl with residuals, dented ground without",
    alt="Two maps of the loss around random start weights, which a cross marks. With residuals the "
    "level lines are rings around one low place. Without residuals they are ragged, with a dip "
    "beside the deepest place, and dots mark several small dents.",
)

# %% [markdown]
# With residuals there is one bowl. Without, the lines are ragged, and the ground is dented. Most of the dents are too
# shallow for a level line to go round them, yet a slope in one of them leads nowhere. That is the paper's point, made
# with deep image networks, where it is far more drastic. Be careful with such maps, though: two directions out of
# 79,000 show little, and this is the land at the start. Where a model without residuals *ends*, we found a smooth bowl
# again: a deep hollow of its own, at the loss of guessing by the characters' frequencies alone. It is smooth there
# because nothing is left that could make it rugged.
#
# ## 5 Adam, taken apart
#
# Since lesson 02 each model was trained by Adam (Kingma & Ba 2015), and nobody has said what that is. Here it matters.
# The plain rule, *gradient descent*, moves each weight against its gradient $g$:
#
# $$\theta \leftarrow \theta - \eta\, g$$
#
# One learning rate $\eta$ for all. But how different are the gradients that it has to serve?

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
model = CharacterModel(pre_norm, blocks=6, length=16)
loss_of(model, *batch_of_text(8, 16)).backward()
for name in ("embedding", "blocks.0.self_attention.query.weight",
    "blocks.0.feed_forward.down_proj.weight",
             "blocks.0.self_attention_norm.weight", "blocks.0.self_attention.key.bias"):
    print(f"{name:37} typical gradient {model.get_parameter(name).grad.square().mean().sqrt():.0e}")

# %% [markdown]
# In a fresh model a factor of five lies between the first four. (The last one is a curiosity: a key's bias adds the
# same number to all scores of a query, and the softmax does not see it. Its true gradient is 0; what you see is
# rounding.) And they change: as training settles, gradients shrink, each at its own pace. A rate that suits one weight
# is too small or too large for another. So Adam gives each weight a step of its own. It keeps two running means, called
# *moments*, of the gradient and of its square:
#
# $$m \leftarrow \beta_1 m + (1 - \beta_1)\, g \qquad v \leftarrow \beta_2 v + (1 - \beta_2)\, g^2$$
#
# Both start at 0, so at first they are too small. After $t$ steps of a constant gradient, $m$ is $(1 - \beta_1^t)\, g$.
# Divide by that factor, and the mean is right from the first step on. This is the *bias correction*:
#
# $$\hat m = \frac{m}{1 - \beta_1^t} \qquad \hat v = \frac{v}{1 - \beta_2^t} \qquad
# \theta \leftarrow \theta - \eta\, \frac{\hat m}{\sqrt{\hat v} + \epsilon}$$
#
# (This $m$ is Adam's letter; it has nothing to do with the memory's length.) Vaswani et al. take $\beta_1 = 0.9$,
# $\beta_2 = 0.98$, $\epsilon = 10^{-9}$.

# %%
# all have the shape of the weight; t counts from 1
def adam(g, m, v, t, betas=(0.9, 0.98), eps=1e-9):
    m += (1 - betas[0]) * (g - m)  # the running means, brought up to date in place
    v += (1 - betas[1]) * (g * g - v)
    m_hat, v_hat = m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)
    return m_hat / (v_hat.sqrt() + eps)                # the step, in units of the learning rate

# %% [markdown]
# Around it, an optimizer that remembers $m$ and $v$ of each weight. **AdamW** (Loshchilov & Hutter 2019) adds one line:
# *weight decay*, which draws each weight a little towards 0. It acts on the weight directly. Were it added to the
# gradient, as an L2 penalty is, the division by $\sqrt{\hat v}$ would take most of it away where gradients are large.

# %%
class Adam:
    def __init__(self, parameters, lr, rule=adam, weight_decay=0.0, **options):
        self.parameters, self.lr, self.rule = list(parameters), lr, rule
        self.weight_decay, self.options, self.t = weight_decay, options, 0
        self.m = [torch.zeros_like(weight) for weight in self.parameters]
        self.v = [torch.zeros_like(weight) for weight in self.parameters]

    @torch.no_grad()
    def step(self):
        self.t += 1
        for weight, m, v in zip(self.parameters, self.m, self.v, strict=True):
            weight -= self.lr * self.weight_decay * weight
            weight -= self.lr * self.rule(weight.grad, m, v, self.t, **self.options)

# %% [markdown]
# Is it torch's? Twenty steps of both, on the same gradients, from the same start. (The same *gradients*, because of
# the key's bias: out of rounding noise Adam makes steps of full size, and noise is never twice the same.)

# %%
def both_walk(theirs, ours, steps=20):
    for _ in range(steps):
        model.zero_grad()
        loss_of(model, *batch_of_text(8, 16)).backward()
        for weight, copy in zip(model.parameters(), ours.parameters, strict=True):
            copy.grad = weight.grad.clone()
        theirs.step()
        ours.step()
    return torch.cat([weight.detach().flatten() for weight in ours.parameters])   # (all weights,)


for kind, decay in ((torch.optim.Adam, 0.0), (torch.optim.AdamW, 0.1)):
    options = {"lr": 3e-3, "betas": (0.9, 0.98), "eps": 1e-9}
    copies = [weight.detach().clone() for weight in model.parameters()]
    ours = Adam(copies, weight_decay=decay, **options)
    walked = both_walk(kind(model.parameters(), weight_decay=decay, **options), ours)
    # (all weights,)
    theirs = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    prove_equal(walked, theirs, what=f"Ours and torch's {kind.__name__}")

# %% [markdown]
# ### What each part does
#
# **The first step** tells a lot. There $\hat m = g$ and $\hat v = g^2$, so the step is $g / |g|$: each weight moves by
# exactly $\eta$, up or down, whatever the size of its gradient. This is bold, since it rests on a single batch. Only
# when gradients disagree from batch to batch does $|\hat m|$ fall below $\sqrt{\hat v}$, and steps become shorter.
#
# **Without bias correction** the first steps are wrong by a factor that needs no training to see: let the gradient be
# always 1.

# %%
def uncorrected(g, m, v, t, betas=(0.9, 0.98), eps=1e-9):
    adam(g, m, v, t, betas)
    return m / (v.sqrt() + eps)


def walk(rule, betas, steps=300):
    m, v = torch.zeros(2, 1)
    return [rule(torch.ones(1), m, v, t, betas=betas).item() for t in range(1, steps + 1)]


plots.lines(
    {"corrected": walk(adam, (0.9, 0.999)), "not, β₂ = 0.98": walk(uncorrected, (0.9, 0.98)),
     "not, β₂ = 0.999": walk(uncorrected, (0.9, 0.999))}, dashed=["corrected"],
    title="Uncorrected, the first steps are up to seven times too long", xlabel="step",
    ylabel="step, in learning rates",
    alt="Length of a step for a constant gradient. Corrected it is 1 throughout. Uncorrected with "
    "β₂ 0.98 it rises to 1.5 and is back at 1 after 200 steps. With β₂ 0.999 it rises to "
    "nearly 7 and is still at 2 after 300.",
)

# %% [markdown]
# $\sqrt v$ is slower to fill than $m$, so the quotient is too large. With $\beta_2 = 0.98$ that is harmless, with
# torch's default, 0.999, it is not, if the learning rate is high already.
#
# **Without the second moment** all weights share one rate again, and only the smoothed gradient is left. This is
# gradient descent with *momentum*.

# %%
def no_second_moment(g, m, v, t, betas=(0.9, 0.98)):
    adam(g, m, v, t, betas)
    return m / (1 - betas[0] ** t)


def walk_down(seed, steps=150, **options):
    torch.manual_seed(seed)
    model, losses = CharacterModel(pre_norm, blocks=6, length=16), []
    optimizer = Adam(model.parameters(), **options)
    for _ in range(steps):
        loss = loss_of(model, *batch_of_text(8, 16))
        model.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-20:]) / 20

# %% [markdown]
# Now break it, and measure: the loss after 150 steps, pre-norm, from three seeds each. The momentum gets our rate, and
# then the best of the rates that we tried for it.

# %% tags=["nbval-ignore-output"]
trials = {
    "Adam": {"lr": 1e-2, "betas": (0.9, 0.999)},
    "without bias correction": {"lr": 1e-2, "betas": (0.9, 0.999), "rule": uncorrected},
    "without second moment": {"lr": 1e-2, "rule": no_second_moment},
    "  at its best rate, 1": {"lr": 1.0, "rule": no_second_moment},
}
cases = [(name, seed) for name in trials for seed in range(3)]
after = {name: [] for name in trials}
for name, seed in progress(cases, "training 12 models"):
    after[name].append(walk_down(seed, **trials[name]))
for name, losses in after.items():
    print(f"{name:24} losses", *(f"{loss:.2f}" for loss in losses))
expect("Worst of three, Adam", max(after["Adam"]), 2.4, 2.7)
expect("Best of three, without bias correction", min(after["without bias correction"]), 2.7, 3.2)
expect("Best of three, momentum at its best rate", min(after["  at its best rate, 1"]), 2.6, 2.95)

# %% [markdown]
# Both parts earn their place. A confession: at 3e-3, with either $\beta_2$, leaving out the correction cost us nothing.
# It is an insurance for the first steps, as warm-up is.
#
# **And $\epsilon$?** It is there against a division by 0, and decides what counts as *no gradient*. The step for a
# weight whose gradient is always the same:

# %%
for g in (1e-2, 1e-6, 1e-9, 1e-11):
    print(f"gradient {g:.0e}: a step of", end=" ")
    for eps in (1e-9, 1e-8, 1e-3):
        step = adam(torch.tensor(g), torch.zeros(()), torch.zeros(()), 1, eps=eps).item()
        print(f"{step:.3f} for ε = {eps:.0e}", end="\n" if eps == 1e-3 else ", ")

# %% [markdown]
# With a tiny $\epsilon$, even a gradient of a billionth moves its weight by half a learning rate, as the key's bias has
# shown. With a large one, Adam turns into momentum with a rate of $\eta / \epsilon$.
#
# Adam's price is memory: beside each weight and its gradient, $m$ and $v$. That is 16 bytes per weight in float32,
# instead of 8.
#
# ## 6 Use it: learning rate × wiring × warm-up
#
# The original Transformer is post-norm, and its authors raised the learning rate slowly from 0 over the first 4,000
# steps. What is this *warm-up* good for? One guess follows from section 5: Adam's first steps have full length, while
# $\hat v$ rests on a few batches (Liu et al. 2020b call this the variance of the adaptive rate). Another follows from
# section 4: post-norm pulls hard at its last blocks.
#
# We train a small character model (6 blocks, 150 steps) on a grid: four rates, two wirings, with and without a warm-up
# of 75 steps, three seeds each. At each step we note three things: the loss, how much of the stream tells characters
# apart, and the gradient of the first block's values.

# %%
def train(wiring, lr=3e-3, warm_up=0, seed=0, block=Block, steps=150):
    torch.manual_seed(seed)
    model = CharacterModel(wiring, block, blocks=6, length=16)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.98), fused=True)
    run = {"loss": [], "apart": [], "gradient": []}
    for step in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = lr * min(1.0, step / warm_up) if warm_up else lr
        loss = loss_of(model, *batch_of_text(8, 16))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run["loss"].append(loss.item())
        run["apart"].append(apart(model.last.detach()))
        run["gradient"].append(model.blocks[0].self_attention.value.weight.grad.norm().item())
    return run

# %% [markdown]
# Two simple rivals tell us what a loss means. One knows how frequent each character is, and nothing else. The other has
# counted all *pairs* of characters, and guesses from the last character alone.

# %%
count = torch.zeros(len(alphabet), len(alphabet))  # (last character, next character)
count.index_put_((encoded[:-1], encoded[1:]), torch.tensor(1.0), accumulate=True)
alone = count.sum(dim=0) / count.sum()                             # (character,)
pair = count / count.sum(dim=1, keepdim=True).clamp(min=1)  # (last, next): each row adds up to 1
by_frequency = -(alone * alone.clamp(min=1e-9).log()).sum().item()
by_pairs = -(count / count.sum() * pair.clamp(min=1e-9).log()).sum().item()
print(f"loss by frequency {by_frequency:.2f}, by pairs {by_pairs:.2f} nats per character")

# %% [markdown]
# Now the grid. Decide first: in which of the sixteen cells will the model stay at the loss of the frequencies? Does a
# warm-up help both wirings, at all rates?

# %% tags=["nbval-ignore-output"]
rates, SEEDS = (3e-4, 1e-3, 3e-3, 1e-2), 3
settings = {"pre-norm": (pre_norm, 0), "pre-norm,\nwarm-up": (pre_norm, 75),
            "post-norm": (post_norm, 0), "post-norm,\nwarm-up": (post_norm, 75)}
cells = [(rate, name, seed) for rate in rates for name in settings for seed in range(SEEDS)]
runs = {}
for rate, name, seed in progress(cells, "training 48 models"):
    wiring, warm_up = settings[name]
    runs[rate, name, seed] = train(wiring, rate, warm_up, seed)

# %% [markdown]
# Have you decided? Then unfold the result (a click on the three dots). Each cell shows the mean loss of the last 20
# steps, over three seeds.

# %% tags=["nbval-ignore-output", "hide-output"] jupyter={"outputs_hidden": true}
def last_losses(rate, name):                                       # one per seed
    return [sum(runs[rate, name, seed]["loss"][-20:]) / 20 for seed in range(SEEDS)]


# (rate, setting, seed)
ending = torch.tensor([[last_losses(rate, name) for name in settings] for rate in rates])
plots.heatmap(
    ending.mean(dim=-1), rows=[f"{rate:g}" for rate in rates], columns=list(settings), size=1.0,
    xlabel="wiring", ylabel="learning rate", bar="loss (nats)", span=(2.4, 3.3),
    title="Where does it learn? Loss after 150 steps, mean of three seeds",
    alt="A table of losses, four learning rates by four settings: " + "; ".join(
        f"{name.replace(chr(10), ' ')} at {rate:g}: {ending[i, j].mean():.2f}"
        for i, rate in enumerate(rates) for j, name in enumerate(settings)),
)

# %% [markdown]
# Means hide what seeds do. Here are both columns of post-norm, seed by seed, and some ranges to expect.

# %% tags=["nbval-ignore-output", "hide-output"] jupyter={"outputs_hidden": true}
for rate in rates:
    with_warm_up = " ".join(f"{loss:.2f}" for loss in last_losses(rate, "post-norm,\nwarm-up"))
    without = " ".join(f"{loss:.2f}" for loss in last_losses(rate, "post-norm"))
    print(f"post-norm at {rate:<6g} without warm-up: {without}   with: {with_warm_up}")
expect("Worst pre-norm loss at 3e-3 and 1e-2", ending[2:, :2].max().item(), 2.45, 2.75)
expect("Best post-norm loss without warm-up, all rates", ending[:, 2].min().item(), 2.75, 3.1)
expect("Best post-norm loss with warm-up, at 3e-3", ending[2, 3].min().item(), 2.65, 2.95)
expect("Best post-norm loss at 1e-2", ending[3, 2:].min().item(), 3.05, 3.3)

# %% [markdown]
# Read it column by column. **Pre-norm** learns best at 3e-3 and 1e-2; at 3e-4 it is only slow, and a warm-up costs it
# time, no more. **Post-norm** without warm-up does not learn well at any of the four rates: the low ones are slow, the
# high ones stop at the frequencies. With a warm-up it learns at 3e-3, with two of the three seeds in our run; at 1e-2
# this warm-up is too short. The paper's own is 4,000 steps long, for a rate that peaks at 7e-4.
#
# What happens to the runs that stop? Look at 3e-3. You know what to look for: do the vectors still tell the characters
# apart?

# %% tags=["nbval-ignore-output"]
chosen = {name.replace("\n", " "): runs[3e-3, name, 0]
          for name in ("pre-norm", "post-norm", "post-norm,\nwarm-up")}
plots.lines(
    {name: run["apart"] for name, run in chosen.items()}, yscale="log",
    title="At 3e-3 without warm-up, post-norm collapses", xlabel="training step",
    ylabel="share that tells characters apart",
    alt="The share that tells characters apart during training, logarithmic, rate 3e-3. Pre-norm "
    "dips and comes back near one half. Post-norm with warm-up falls later and comes back. "
    "Post-norm without warm-up falls and stays low.",
)

# %% [markdown]
# And the gradient that could bring them back? Its mean over the last 20 steps, at the first block:

# %% tags=["nbval-ignore-output"]
for name, run in chosen.items():
    pulled = sum(run["gradient"][-20:]) / 20
    print(f"{name:18} share apart {run['apart'][-1]:7.0e}   gradient at block 1: {pulled:7.0e}")
collapsed, alive = chosen["post-norm"], chosen["pre-norm"]
shrunk = sum(collapsed["gradient"][-20:]) / sum(alive["gradient"][-20:])
expect("Share apart at the end, post-norm", collapsed["apart"][-1], 0, 0.05)
expect("Its gradient, as a part of pre-norm's", shrunk, 0, 0.1)

# %% [markdown]
# Rank collapse again, and this time training itself causes it. All models first learn the easiest thing there is, the
# frequencies; for that, all positions may be the same, and they drift together. In pre-norm the input is still in the
# stream, and the model finds its way back. In post-norm, with steps this large, the difference is gone after a few
# dozen steps, and with it the gradient, as in section 1. A warm-up keeps the first steps so small that enough of the
# difference is left.
#
# So post-norm is not wrong, it is harder to start. Where it does train to the end, its results can even be a little
# better (Liu et al. 2020a).

# %% [markdown]
# ## 7 Break it
#
# Take the pre-norm block apart, one piece at a time: no residual; no norm; no feed-forward network, only attention. And
# a finer cut: a norm that works as ever on the way forward, but lets no gradient through its mean and its deviation.
# (Xu et al. 2019 call it *DetachNorm*. With it they asked what layer norm is good for: the tidy numbers, or the
# gradient?)

# %%
class AttentionOnly(Block):
    def forward(self, x, mask=None):                               # (batch, n, d_model)
        return self.wiring(x, lambda y: self.self_attention(y, mask=mask), self.self_attention_norm)


class DetachedNorm(LayerNorm):
    def forward(self, x):                                          # (..., d_model)
        mean = x.mean(dim=-1, keepdim=True).detach()
        deviation = (x.var(dim=-1, keepdim=True, correction=0) + 1e-5).sqrt().detach()   # (..., 1)
        return self.weight * (x - mean) / deviation + self.bias


class Detached(Block):
    def __init__(self, d_model, heads, d_ff, wiring):
        super().__init__(d_model, heads, d_ff, wiring)
        self.self_attention_norm = DetachedNorm(d_model)
        self.feed_forward_norm = DetachedNorm(d_model)

# %% [markdown]
# Same text, same steps, rate 3e-3, no warm-up, three seeds. The whole block has been trained already. Decide first:
# which of the four will hurt most, and which least?

# %% tags=["nbval-ignore-output"]
broken = {"no residual": (no_residual, Block), "no norm": (no_norm, Block),
          "no feed-forward": (pre_norm, AttentionOnly), "detached norm": (pre_norm, Detached)}
parts = {"whole block": [runs[3e-3, "pre-norm", seed] for seed in range(SEEDS)]}
cases = [(name, seed) for name in broken for seed in range(SEEDS)]
for name, seed in progress(cases, "training 12 models"):
    wiring, block = broken[name]
    parts.setdefault(name, []).append(train(wiring, seed=seed, block=block))

# %% [markdown]
# The losses jump from batch to batch, so we draw means over 20 steps and three seeds. The dashed lines are the two
# rivals, not runs. The result is folded away again.

# %% tags=["nbval-ignore-output", "hide-output"] jupyter={"outputs_hidden": true}
def curve(group, window=20):
    losses = torch.tensor([run["loss"] for run in group]).mean(dim=0)          # (step,)
    return list(range(window, len(losses) + 1)), losses.unfold(0, window, 1).mean(dim=-1).tolist()


level = {"frequency": ([20, 150], [by_frequency] * 2), "pairs": ([20, 150], [by_pairs] * 2)}
final = {name: [sum(run["loss"][-20:]) / 20 for run in group] for name, group in parts.items()}
plots.lines(
    {name: curve(group) for name, group in parts.items()} | level, dashed=list(level),
    title="A block without one of its parts", xlabel="training step",
    ylabel="loss (nats), mean of 20 steps",
    alt="Loss curves. Mean at the end: "
    + ", ".join(f"{name} {sum(ends) / 3:.2f}" for name, ends in final.items())
    + f"; dashed lines at {by_frequency:.2f}, frequencies, and {by_pairs:.2f}, pairs.",
)

# %% [markdown]
# The figure's numbers, seed by seed, and the share that tells characters apart at the end:

# %% tags=["nbval-ignore-output", "hide-output"] jupyter={"outputs_hidden": true}
for name, ends in final.items():
    share = sum(run["apart"][-1] for run in parts[name]) / SEEDS
    print(f"{name:15} losses", *(f"{loss:.2f}" for loss in ends), f"  share apart {share:.0e}")
expect("Mean loss without residual", sum(final["no residual"]) / 3, 2.9, 3.4)
expect("Mean loss without feed-forward", sum(final["no feed-forward"]) / 3, 2.65, 3.0)
expect("Mean loss, detached norm", sum(final["detached norm"]) / 3, 2.4, 2.75)

# %% [markdown]
# Without the residual all characters collapse into one, as in section 1. Without the norm they nearly do, too, although
# the residual is there; why, this run does not tell. Without the feed-forward network the model does learn, but later,
# and gets less far: it can look things up, but it can do little with what it finds. Be fair, though: it also has only a
# third of the parameters.
#
# And the detached norm? In pre-norm it costs next to nothing. Does it everywhere? Try it where training is hard:
# post-norm at 3e-3 with its warm-up, where the norm stands across the stream.

# %% tags=["nbval-ignore-output"]
detached = []
for seed in progress(range(SEEDS), "training three more"):
    run = train(post_norm, warm_up=75, seed=seed, block=Detached)
    detached.append(sum(run["loss"][-20:]) / 20)
print("post-norm, warm-up, layer norm:   ",
    *(f"{loss:.2f}" for loss in last_losses(3e-3, "post-norm,\nwarm-up")))
print("post-norm, warm-up, detached norm:", *(f"{loss:.2f}" for loss in detached))
expect("Best of three with detached norm, post-norm", min(detached), 3.0, 3.4)

# %% [markdown]
# With the same weights, the numbers on the way forward are the same, yet no seed learns any more. So there, layer norm
# helps by its *gradient*: as Xu et al. found, the derivatives of mean and variance matter more than the tidy numbers.
# That of the mean centres the gradient. That of the variance takes out the part that points along the normalised
# vector, and so makes the gradient smaller. (Both norms divide it by the deviation.)

# %% [markdown]
# ## 8 Open the library
#
# Here is `txlib`'s block. You will recognise `residual`: both wirings in three lines. New are cross-attention for a
# decoder (lesson 08), a cache for writing word by word (you know it from lesson 04; lesson 13 gives it to a whole
# model), and a config that says what to build.

# %%
from txlib.layers import BlockConfig, TransformerBlock
from txlib.layers import FeedForward as LibraryFeedForward
from txlib.layers import LayerNorm as LibraryLayerNorm
from txlib.layers import RMSNorm as LibraryRMSNorm

show_source(TransformerBlock, LibraryFeedForward, LibraryLayerNorm, LibraryRMSNorm)

# %% [markdown]
# The parts have the same names as ours, so weights can be handed over. We shake all of them first: right after the
# start gains are 1 and biases 0, and that would hide a forgotten gain or bias.


# %%
def shaken(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module.eval()


torch.manual_seed(0)
x, mask = torch.randn(2, 10, 64), causal().dense(10)             # (batch, n, d_model), (1, 1, n, n)
for name, wiring in {"pre-norm": pre_norm, "post-norm": post_norm}.items():
    ours = shaken(Block(64, 4, 256, wiring))
    library = TransformerBlock(BlockConfig.of_sizes(64, 4, 256, norm_first=wiring is pre_norm)).eval()
    library.load_state_dict(ours.state_dict())
    prove_equal(ours(x, mask), library(x, mask), what=f"Our {name} block and the library's")

# %% [markdown]
# And torch's own. It keeps the query, key and value matrices in one piece, has other names, and its masks are the other
# way round: `True` means *forbidden*.


# %%
def into_torch(ours, theirs):
    attention, network = ours.self_attention, ours.feed_forward
    for kind in ("weight", "bias"):
        three = (attention.query, attention.key, attention.value)
        joined = torch.cat([getattr(part, kind) for part in three])
        pieces = {
            getattr(theirs.self_attn, f"in_proj_{kind}"): joined,
            getattr(theirs.self_attn.out_proj, kind): getattr(attention.output, kind),
            getattr(theirs.linear1, kind): getattr(network.up_proj, kind),
            getattr(theirs.linear2, kind): getattr(network.down_proj, kind),
            getattr(theirs.norm1, kind): getattr(ours.self_attention_norm, kind),
            getattr(theirs.norm2, kind): getattr(ours.feed_forward_norm, kind),
        }
        for target, value in pieces.items():
            target.data.copy_(value)
    return theirs.eval()


# %% [markdown]
# With our weights in its matrices, torch's layer must say the same as our block:

# %%
for name, wiring in {"pre-norm": pre_norm, "post-norm": post_norm}.items():
    ours = shaken(Block(64, 4, 256, wiring))
    layer = nn.TransformerEncoderLayer(64, 4, 256, norm_first=wiring is pre_norm, batch_first=True)
    theirs = into_torch(ours, layer)(x, src_mask=~mask[0, 0])      # (batch, n, d_model)
    prove_equal(ours(x, mask), theirs, what=f"Our {name} block and torch's")

# %% [markdown]
# ## 9 What it costs
#
# **Parameters.** Attention has four matrices $d \times d$, the feed-forward network $d \times 4d$ and $4d \times d$.
#
# $$4d^2 + 8d^2 = 12 d^2$$
#
# Biases and norms add $13 d$, which is next to nothing. Count:

# %%
for d in (64, 512, 1024):
    block = Block(d, 8, 4 * d)
    counted, formula = parameters(block), 12 * d**2 + 13 * d
    print(f"d {d:4}: {counted:10,} parameters, 12d² + 13d = {formula:10,};",
          f"12d² alone is {12 * d**2 / counted:.1%}")

# %% [markdown]
# And which part has how many?

# %%
block = Block(512, 8, 2048)
parts = {
    "query, key, value": 3 * parameters(block.self_attention.query),
    "output": parameters(block.self_attention.output),
    "up_proj": parameters(block.feed_forward.up_proj),
    "down_proj": parameters(block.feed_forward.down_proj),
    "both norms": parameters(block.self_attention_norm) + parameters(block.feed_forward_norm),
}
plots.bars(
    {name: size / 1e6 for name, size in parts.items()}, xlabel="million parameters", format="{:.3f}",
    title="Two thirds of a block is feed-forward (d = 512)",
    alt="; ".join(f"{name}: {size:,}" for name, size in parts.items()),
)

# %% [markdown]
# **Operations.** A matrix with $p$ parameters costs $2p$ operations per word: a multiplication and an addition each. So
# all matrices together cost $24 n d^2$: attention's projections $8nd^2$, the feed-forward network $16 n d^2$. On top
# come the scores and the mixing, $4n^2d$ (lesson 03), which grow with the square. Attention as a whole overtakes the
# feed-forward network when
#
# $$8nd^2 + 4n^2d = 16nd^2 \quad\Longleftrightarrow\quad n = 2d.$$

# %%
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def operations(module, x):
    plain = sdpa_kernel(SDPBackend.MATH)  # as two matrix products, which can be counted
    with FlopCounterMode(display=False) as counter, torch.no_grad(), plain:
        module(x)
    return counter.get_total_flops()


d = 32
attention_part, feed_forward_part = MultiHeadAttention(d, 4), FeedForward(d, 4 * d)
for n in (d // 2, d, 2 * d, 4 * d, 8 * d):
    x = torch.randn(1, n, d)                                       # (1, n, d_model)
    counted = operations(attention_part, x), operations(feed_forward_part, x)
    formula = 8 * n * d**2 + 4 * n**2 * d, 16 * n * d**2
    print(f"n = {n / d:3g} d: attention {counted[0] / 1e6:4.1f} MFLOP,",
          f"feed-forward {counted[1] / 1e6:4.1f}", end="; ")
    print("as the formulas say" if counted == formula else f"but the formulas say {formula}")

# %% [markdown]
# With $d = 512$ that is $n = 1024$. Below it, "attention is expensive" is a myth: the feed-forward network costs more.
# Scores and mixing alone ($4n^2d$) overtake it at $n = 4d$.

# %% [markdown]
# ## 10 Quiz
#
# Decide first, then open an answer.
#
# **1. Twenty attention layers are stacked with nothing else: no residual, no norm, no feed-forward. What comes out?**
#
# <details><summary>A. A very good mixture of the words</summary>
#
# Mixed it is, but too well. Averages of averages are the same for every word.
# </details>
# <details><summary>B. Practically the same vector for each word</summary>
#
# Right. What tells words apart shrinks doubly exponentially; after four layers it was a rounding error.
# </details>
# <details><summary>C. Zeros: everything vanishes</summary>
#
# The vectors keep a fair size. What vanishes is the *difference* between them.
# </details>
#
# **2. Which of these is the pre-norm block's residual connection?**
#
# <details><summary>A. <code>norm(x + sublayer(x))</code></summary>
#
# That is post-norm. The stream itself passes through the norm.
# </details>
# <details><summary>B. <code>norm(x) + sublayer(norm(x))</code></summary>
#
# A common slip. Here the stream is normalised, too, so nothing passes untouched. Add to `x`, not to `norm(x)`.
# </details>
# <details><summary>C. <code>x + sublayer(norm(x))</code></summary>
#
# Right. The norm stands on the branch, and `x` goes by.
# </details>
#
# **3. x has shape (batch 8, n 20, d 512). How many means does layer norm compute?**
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
# **4. You multiply the input of a pre-norm sub-layer by 10, with a gain of 1 and a bias of 0. What does its branch
# `sublayer(norm(x))` do?**
#
# <details><summary>A. It grows tenfold</summary>
#
# The norm divides by a standard deviation that has grown tenfold, too.
# </details>
# <details><summary>B. Practically nothing</summary>
#
# Right. Norms do not see the size of their input (but for eps). So the larger the stream, the less one block's addition
# turns it. That is where the $1/\sqrt{N}$ of section 4 comes from.
# </details>
# <details><summary>C. It shrinks to a tenth</summary>
#
# Its share of the *sum* shrinks to a tenth. The branch itself stays as it was.
# </details>
#
# **5. d = 768, as in BERT-base. About how many parameters has a block, and at which length does attention cost as much
# as the feed-forward network?**
#
# <details><summary>A. 7 million, at n = 1,536</summary>
#
# Right. $12 \cdot 768^2 = 7.08$ million, and $n = 2d$. BERT reads at most 512 words, so its feed-forward networks cost
# more.
# </details>
# <details><summary>B. 2.4 million, at n = 768</summary>
#
# $4 d^2$ is attention alone. And at $n = d$ its cost is $12nd^2$ against $16nd^2$.
# </details>
# <details><summary>C. 7 million, at any length: two thirds to one third</summary>
#
# Two to one is the share of the *parameters*. The scores have none, but they cost $4n^2d$.
# </details>
#
# **6. The very first step of Adam, after one batch. One weight has the gradient 0.5, another 0.001. How far do they
# move?**
#
# <details><summary>A. The first 500 times as far</summary>
#
# That is gradient descent. Adam divides by the root of the mean square, which here is the gradient's own size.
# </details>
# <details><summary>B. Both by the learning rate</summary>
#
# Right. With the bias correction, the step is $g / |g|$ times the rate. Later, weights whose gradients disagree from
# batch to batch move less.
# </details>
# <details><summary>C. Hardly at all: the moments start at 0</summary>
#
# So they would be too small; the bias correction makes up for exactly that.
# </details>

# %% [markdown]
# ## 11 Summary
#
# - Attention alone makes all words the same, and on a single word it is only a matrix.
# - The residual connection lets words, and gradients, pass. It adds; it never replaces.
# - Layer norm works on one word at a time: mean 0, variance 1 (biased), then a learned gain and bias.
# - The feed-forward network computes, word by word, and holds two thirds of the $12d^2$ parameters.
# - Adam divides a running mean of the gradient by the root of a running mean of its square, so that each weight gets
#   steps of its own size. The bias correction makes the first of them right.
# - Pre-norm learned at a wide range of rates. Post-norm needed a warm-up *and* the right rate, to keep the words apart
#   at the start.
#
# **Read** Vaswani et al. 2017, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762), sections 3.1, 3.3 and 5.4. He et
# al. 2016, *Deep Residual Learning*, [arXiv:1512.03385](https://arxiv.org/abs/1512.03385), section 3. Ba et al. 2016,
# *Layer Normalization*, [arXiv:1607.06450](https://arxiv.org/abs/1607.06450), section 3. Xiong et al. 2020, *On Layer
# Normalization in the Transformer Architecture*, [arXiv:2002.04745](https://arxiv.org/abs/2002.04745), section 3. Zhang
# & Sennrich 2019, *Root Mean Square Layer Normalization*, [arXiv:1910.07467](https://arxiv.org/abs/1910.07467),
# section 4. Shazeer 2020, *GLU Variants Improve Transformer*, [arXiv:2002.05202](https://arxiv.org/abs/2002.05202),
# section 2. Dong et al. 2021, *Attention Is Not All You Need*, [arXiv:2103.03404](https://arxiv.org/abs/2103.03404),
# section 2. Liu et al. 2020a, *Understanding the Difficulty of Training Transformers*,
# [arXiv:2004.08249](https://arxiv.org/abs/2004.08249). Kingma & Ba 2015, *Adam*,
# [arXiv:1412.6980](https://arxiv.org/abs/1412.6980), sections 2 and 3. Loshchilov & Hutter 2019, *Decoupled Weight
# Decay Regularization*, [arXiv:1711.05101](https://arxiv.org/abs/1711.05101), section 2. Liu et al. 2020b, *On the
# Variance of the Adaptive Learning Rate*, [arXiv:1908.03265](https://arxiv.org/abs/1908.03265). Li et al. 2018,
# *Visualizing the Loss Landscape of Neural Nets*, [arXiv:1712.09913](https://arxiv.org/abs/1712.09913), sections 4 and
# 6. Xu et al. 2019, *Understanding and Improving Layer Normalization*,
# [arXiv:1911.07013](https://arxiv.org/abs/1911.07013), section 3.
#
# **Do** the exercise [06_block](../exercises/exercise_06_block.ipynb). Then go on to
# [08 The encoder–decoder Transformer](08_transformer.ipynb).
