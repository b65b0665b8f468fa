# %% [markdown]
# # 06 · The block: residual, normalisation, feed-forward
#
# **After this lesson you will be able to**
#
# - say what attention alone cannot do, and show it with numbers;
# - write residual connections, layer norm, RMS norm and the feed-forward network from bare torch;
# - wire them into a Transformer block, pre-norm and post-norm, and say which of them needs a warm-up, and why;
# - count a block's parameters and operations in your head.
#
# **You need** lessons 03 to 05. **It takes** about 60 minutes to read and try; all cells together run in about a
# minute on a laptop. Most of that is seven small language models that we train to see which parts matter.

# %% [markdown]
# ## 1 The problem: attention alone does not go deep
#
# You can build attention with many heads (lesson 04), and tell it the order of its words (lesson 05). One layer mixes
# words once. Deep learning has a habit here: stack it. So let us put twelve attention layers on top of each other, and
# send a real sentence through. The word vectors are random, as they are before any training.

# %%
import math

import torch
import torch.nn.functional as F
from torch import nn

from txlib import plots
from txlib.attention import MultiHeadAttention, causal
from txlib.data import translation
from txlib.layers import sinusoidal
from txlib.course.lesson import expect, progress, prove_equal, show_source

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
        nn.init.xavier_uniform_(weight)                            # keeps the size of what passes through
    return layer


torch.manual_seed(0)
table = {word: torch.randn(d_model) for word in words}             # a random vector a word
sent = torch.stack([table[word] for word in words])[None] + sinusoidal(n, d_model)        # (1, n, d_model)
layers = [attention_layer() for _ in range(12)]
streams = [sent]                                                   # what each layer hands to the next
with torch.no_grad():
    for layer in layers:
        streams.append(layer(streams[-1]))                         # (1, n, d_model)

# %% [markdown]
# Here are the vectors at four places, one row a word (the first 12 of 64 dimensions). Compare the rows.

# %%
plots.vectors(
    {name: streams[depth][0, :, :12] for name, depth in {"input": 0, "layer 1": 1, "layer 2": 2, "layer 4": 4}.items()},
    rows=words, title="After a few attention layers, every word has the same vector",
    alt="Four tables of seven words by 12 dimensions. In the input all rows differ. After layer 1 they resemble each "
    "other, after layer 2 they nearly agree, after layer 4 all rows look the same.",
)

# %% [markdown]
# Each output is an average (lesson 03), and averages of averages end in one grand average: as words come to agree, so do
# their weights. Let us put a number on it.
# Take away the mean over all words; what is left is what tells words *apart*. Its share of the whole is 1 when the
# words have nothing in common, and 0 when they are all the same.

# %%
def apart(x):                                                      # x (..., n, d_model)
    mean = x.mean(dim=-2, keepdim=True)                            # (..., 1, d_model): what all words share
    return ((x - mean).norm() / x.norm()).item()


for depth in (0, 1, 2, 3):
    print(f"layers: {depth}   share that tells words apart: {apart(streams[depth]):.0e}")
print(f"layers: 4   less than one part in a million: {apart(streams[4]) < 1e-6}")

# %% [markdown]
# This is *rank collapse*: the matrix of word vectors shrinks to rank 1. Dong et al. (2021) proved that it happens
# doubly exponentially with depth: a layer does not halve the difference, it roughly *cubes* it. Compare the
# exponents line by line.
#
# Training can hardly repair this, because next to no gradient gets through. Suppose the loss wants the outputs of *orcs* and
# *humans* to differ. How strongly does it pull at the input?


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
a, b = torch.randn(2, 1, 1, d_model)                               # two sentences of one word, (1, 1, d_model) each


def twelve_layers(x):
    for layer in layers:
        x = layer(x)                                               # (1, 1, d_model)
    return x


with torch.no_grad():
    whole, parts = twelve_layers(a + b), twelve_layers(a) + twelve_layers(b)     # (1, 1, d_model) each
    prove_equal(whole, parts, tolerance=1e-4, what="f(a + b) and f(a) + f(b)")

# %% [markdown]
# So attention chooses *where* to look, but what it brings from there passes through matrices only. It moves
# information; it does not work on it. The block that this lesson builds mends both. Each layer *adds* to what is there
# instead of replacing it, and a small network does the work on each word.

# %% [markdown]
# ## 2 The idea in one picture
#
# Read it from the bottom. The thick line is the *residual stream*: one vector a word, on its way from the embedding to
# the output. Attention reads the stream and adds what it found. The feed-forward network reads the stream and adds what
# it worked out. Nobody replaces anything. Norms keep the sizes in hand; the two wirings differ in where they stand.

# %%
plots.block()

# %% [markdown]
# Stack this block $N$ times, and you have the body of a Transformer. Vaswani et al. (2017) used post-norm, with
# $N = 6$. Most language models since GPT-2 use pre-norm. By section 5 you will know why.

# %% [markdown]
# ## 3 Build it step by step
#
# ### 3.1 The residual connection
#
# $$x \leftarrow x + f(x)$$
#
# That is all (He et al. 2016). If $f$ does nothing, $x$ passes. And the derivative is $1 + f'(x)$: the gradient has a way
# around $f'$, unless $f'$ is just $-1$. The same twelve layers, with the same weights, as an addition:

# %%
x, added = sent, [sent]
with torch.no_grad():
    for layer in layers:
        x = x + layer(x)                                           # (1, n, d_model)
        added.append(x)
plots.lines(
    {"with residual": (range(13), [apart(x) for x in added]), "without": (range(13), [apart(x) for x in streams])},
    title="The residual keeps words apart", xlabel="attention layers", ylabel="share that tells words apart",
    yscale="log", marker="o",
    alt="The share that tells words apart on a logarithmic axis. Without residual it falls to one in ten million "
    "within four layers and stays there. With it, it stays between 1 and 0.01 over twelve layers.",
)

# %% [markdown]
# The words still drift together, since each layer adds some of the common average. But slowly, and training can work
# against it, because now the gradient arrives. How large is it, compared with a model that has no layer at all, where
# the output *is* the input?

# %%
nothing = pull(0)                                                  # the gradient when the output is the input
for depth in (1, 2, 4):
    print(f"layers: {depth:2}   gradient at the input: {pull(depth, residual=True) / nothing:.1f} times that of no layer")
print(f"layers: 12   more than 100 times that of no layer: {pull(12, residual=True) > 100 * nothing}")

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
# (Ba et al. 2016, equation 4.) Gain starts at 1 and bias at 0; both are learned.


# %%
def layer_norm(x, gain, bias, eps=1e-5):                           # x (..., d_model); gain, bias (d_model,)
    mean = x.mean(dim=-1, keepdim=True)                            # (..., 1): one number a word
    variance = (x - mean).square().mean(dim=-1, keepdim=True)      # (..., 1): divided by d, not d - 1
    return gain * (x - mean) / (variance + eps).sqrt() + bias      # (..., d_model)


gain, bias = 1 + 0.1 * torch.randn(d_model), 0.1 * torch.randn(d_model)
mine = layer_norm(added[12], gain, bias)
prove_equal(mine, F.layer_norm(added[12], (d_model,), gain, bias), what="Ours and torch's layer norm")

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
print("words that noticed:", [word for word, change in zip(words, moved, strict=True) if change > 0])

# %% [markdown]
# ### Why not batch norm?
#
# Batch norm, which image networks use, takes the mean and the variance of each *dimension*, over all words of all
# sentences in the batch. Then a word's result depends on its neighbours in the batch, and on the padding. Watch: the
# same two sentences, first padded to 7 words, then to 14, as if a longer sentence had joined the batch.


# %%
def batch_norm(x):                                                 # x (sentence, n, d_model)
    mean = x.mean(dim=(0, 1))                                      # (d_model,): over words and sentences
    variance = x.var(dim=(0, 1), correction=0)                     # (d_model,)
    return (x - mean) / (variance + 1e-5).sqrt()                   # (sentence, n, d_model)


short = torch.cat([sent[:, :3], torch.zeros(1, 4, d_model)], dim=1)              # (1, 7, d_model): 3 words, 4 padding
batch = torch.cat([sent, short])                                   # (2, 7, d_model)
longer = F.pad(batch, (0, 0, 0, 7))                                # (2, 14, d_model): 7 more of padding, nothing else
for name, norm in {"batch norm": batch_norm, "layer norm": lambda x: F.layer_norm(x, (d_model,))}.items():
    before, after = norm(batch)[0], norm(longer)[0, :n]            # (n, d_model): the first sentence, both times
    print(f"{name}: more padding changes a sentence by {(after - before).norm() / before.norm():.0%}")

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
# (lesson 13). On a vector whose mean is 0 both are the same.


# %%
def rms_norm(x, gain, eps=1e-6):                                   # x (..., d_model); gain (d_model,)
    return gain * x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()       # (..., d_model)


prove_equal(rms_norm(sent, gain), F.rms_norm(sent, (d_model,), gain, 1e-6), what="Ours and torch's RMS norm")
centred = sent - sent.mean(dim=-1, keepdim=True)                   # (1, n, d_model)
prove_equal(rms_norm(centred, gain), layer_norm(centred, gain, 0.0, eps=1e-6), what="RMS and layer norm at mean 0")

# %% [markdown]
# As a module, with the gain, which torch calls `weight`, and the bias to learn. It calls torch's function, which we have
# just shown to be ours, because that does all the steps in one go.


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
        self.widen, self.narrow = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.activation = activation

    def forward(self, x):                                          # (..., d_model)
        return self.narrow(self.activation(self.widen(x)))         # through (..., d_ff) back to (..., d_model)


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
print(f"f(a + b) differs from f(a) + f(b) by {gap.norm() / feed_forward(a + b).norm():.0%} of its size")

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
    alt="Three curves. relu is 0 for negative x and x above. gelu and silu are smooth, and dip a little below 0 for "
    "negative x, silu further than gelu.",
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
# Here is one entry in the middle, for four values of $x W_1$. Where $x W_g$ is negative, the gate is nearly shut: little
# passes, whatever $x W_1$ says. Where it is positive, $x W_1$ passes, the more the further the gate is open, and with
# its own sign.

# %%
gate = torch.linspace(-4, 2, 121)                                  # (121,): one entry of x W_g, which silu sees
plots.lines(
    {f"x W₁ = {value}": (gate.tolist(), (silu(gate) * other).tolist())
     for value, other in {"2": 2.0, "1": 1.0, "0.5": 0.5, "−1": -1.0}.items()},
    title="SwiGLU: x W₁ passes where the gate is open", xlabel="x W_g, what opens the gate", ylabel="silu(x W_g) · x W₁",
    alt="Four curves of silu times 2, 1, 0.5 and −1. All are near 0 where x W_g is negative. Where it is positive, "
    "they rise with x W₁, and fall where x W₁ is negative.",
)

# %% [markdown]
# A gate needs three matrices instead of two; models that use it take $d_\text{ff} = \frac{8}{3} d$ instead of $4d$, so
# that the cost stays.

# %% [markdown]
# **Where the parameters are.** Attention has four matrices of $d \times d$, the feed-forward network two of
# $d \times 4d$. So $4d^2$ against $8d^2$:

# %%
def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


mixing, computing = parameters(MultiHeadAttention(512, 8)), parameters(FeedForward(512, 2048))
print(f"attention {mixing:,}, feed-forward {computing:,}: {computing / (mixing + computing):.0%} of both together")

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
print(f"{(dropped == 0).float().mean():.0%} are zero, the others {dropped.max():.3f}, the mean is {dropped.mean():.2f}")

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
        self.self_attention, self.self_attention_norm = MultiHeadAttention(d_model, heads), LayerNorm(d_model)
        self.feed_forward, self.feed_forward_norm = FeedForward(d_model, d_ff), LayerNorm(d_model)
        self.wiring, self.dropout = wiring, nn.Dropout(dropout)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)

    def forward(self, x, mask=None):                               # (batch, n, d_model)
        x = self.wiring(x, lambda y: self.dropout(self.self_attention(y, mask=mask)), self.self_attention_norm)
        return self.wiring(x, lambda y: self.dropout(self.feed_forward(y)), self.feed_forward_norm)


# %% [markdown]
# ## 4 See it work: the gradient in each layer
#
# To see gradients that mean something, we need a real task: guess the next character of English text. The model is a
# stack of blocks between an embedding and a prediction. (Lesson 08 is about such models. Here it is our test bench.)
#
# Pre-norm hands on a stream that no norm has touched, so it gets one more norm at the very end.


# %%
class CharacterModel(nn.Module):
    def __init__(self, wiring, block=Block, blocks=8, d_model=32, heads=2, length=32):
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(len(alphabet), d_model) * d_model**-0.5)
        self.blocks = nn.ModuleList(block(d_model, heads, 4 * d_model, wiring) for _ in range(blocks))
        self.last_norm = nn.Identity() if wiring in (post_norm, bare) else LayerNorm(d_model)
        self.position, self.mask = sinusoidal(length, d_model), causal().dense(length)

    def stream(self, ids):                                         # (batch, n)
        x = F.embedding(ids, self.embedding) * self.embedding.shape[1] ** 0.5 + self.position
        for block in self.blocks:
            x = block(x, self.mask)                                # (batch, n, d_model)
        return self.last_norm(x)

    def forward(self, ids):
        self.last = self.stream(ids)                               # (batch, n, d_model), kept for looking at
        return self.last @ self.embedding.T                        # (batch, n, character): a score for each


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


torch.set_num_threads(1)                                           # for models this small, more threads only wait
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
            sum(weight.grad.square().sum() for weight in block.parameters() if weight.grad is not None).sqrt()
            for block in model.blocks
        ])
    return total / starts                                          # (block,)


# %% [markdown]
# First the wirings without norms, beside pre-norm:

# %%
wirings = {"pre-norm": pre_norm, "post-norm": post_norm}
wirings |= {"no residual": no_residual, "no norm": no_norm, "neither": bare}
gradient = {name: gradient_of_blocks(wiring) for name, wiring in progress(wirings.items(), "gradients")}
plots.lines(
    {name: gradient[name].tolist() for name in ("pre-norm", "no norm", "neither")},
    title="No norms: gradients explode. No residuals either: they vanish",
    xlabel="block (16 is next to the output)", ylabel="gradient norm", yscale="log",
    alt="Gradient norm of each of 16 blocks on a logarithmic axis. Pre-norm stays near 1. No norm: from about 1 at the "
    "output up to over 1000 at the input. Neither: from about 1 at the output down to below 0.001 at the input.",
)

# %% [markdown]
# The residual alone lets gradients explode on their way down, and the bare stack lets them vanish. A block needs both
# parts. Now the finer question: where to put the norm.

# %%
plots.lines(
    {name: gradient[name].tolist() for name in ("pre-norm", "post-norm", "no residual")},
    title="Post-norm pulls hardest at the last blocks, pre-norm evenly", xlabel="block (16 is next to the output)",
    ylabel="gradient norm",
    alt="Gradient norm of each of 16 blocks. Pre-norm: from about 1 in the first block slowly down to one half. "
    "Post-norm: from about one half up to nearly 2 in the last block. No residual rises more steeply, to nearly 4.",
)

# %% [markdown]
# Xiong et al. (2020, theorem 1) worked out how the gradient of the *last* block depends on the number $N$ of blocks.
# In post-norm it does not. In pre-norm it shrinks like $1/\sqrt{N}$, because the stream, which the last norm divides
# by its size, has grown like $\sqrt{N}$. Measure it:

# %% tags=["nbval-ignore-output"]
for blocks in (4, 8, 16, 24):
    pre, post = (gradient_of_blocks(wiring, blocks)[-1] for wiring in (pre_norm, post_norm))
    times = pre * blocks**0.5
    print(f"{blocks:2} blocks: gradient of the last, pre-norm {pre:.2f} (times √N {times:.1f}), post-norm {post:.1f}")

# %% [markdown]
# So post-norm pulls hardest at its last blocks, however deep it is. Whether that hurts, training must show.
#
# ## 5 Use it: pre-norm against post-norm, with and without warm-up
#
# The original Transformer is post-norm, and its authors raised the learning rate slowly from 0 over the first 4,000
# steps. What is this *warm-up* good for? We train the character model with 8 blocks four times: two wirings, each with
# and without a warm-up of 150 steps. At each step we note the loss, and how much of the stream tells characters apart.


# %%
def train(wiring, warm_up=0, block=Block, steps=300, what="training"):
    torch.manual_seed(0)
    model, losses, kept = CharacterModel(wiring, block), [], []
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98), fused=True)
    for step in progress(range(1, steps + 1), what):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, step / warm_up) if warm_up else 3e-3
        loss = loss_of(model, *batch_of_text(16))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        kept.append(apart(model.last.detach()))
    return losses, kept


# %% [markdown]
# Two simple rivals tell us what a loss means. One knows how frequent each character is, and nothing else. The other has
# counted all *pairs* of characters, and guesses from the last character alone.

# %%
count = torch.zeros(len(alphabet), len(alphabet))                  # (last character, next character)
count.index_put_((encoded[:-1], encoded[1:]), torch.tensor(1.0), accumulate=True)
alone = count.sum(dim=0) / count.sum()                             # (character,)
pair = count / count.sum(dim=1, keepdim=True).clamp(min=1)         # (last, next): each row adds up to 1
by_frequency = -(alone * alone.clamp(min=1e-9).log()).sum().item()
by_pairs = -(count / count.sum() * pair.clamp(min=1e-9).log()).sum().item()
print(f"loss by frequency {by_frequency:.2f}, by pairs {by_pairs:.2f} nats a character")

# %% [markdown]
# Now train all four. Which of them will pass below the pairs?

# %% tags=["nbval-ignore-output"]
runs = {
    "pre-norm": train(pre_norm, what="pre-norm"),
    "post-norm": train(post_norm, what="post-norm"),
    "post, warm-up": train(post_norm, warm_up=150, what="post-norm, warm-up"),
    "pre, warm-up": train(pre_norm, warm_up=150, what="pre-norm, warm-up"),
}

# %% [markdown]
# The losses jump from batch to batch, so we draw means of 20 steps, and the two rivals as level lines.


# %% tags=["nbval-ignore-output"]
def curves_of(names, window=20):
    smooth = {name: torch.tensor(runs[name][0]).unfold(0, window, 1).mean(dim=-1).tolist() for name in names}
    drawn = {name: (list(range(window, 301)), losses) for name, losses in smooth.items()}
    return drawn | {"frequency": ([window, 300], [by_frequency] * 2), "pairs": ([window, 300], [by_pairs] * 2)}


plots.lines(
    curves_of(runs), title="Post-norm without warm-up learns frequencies only", xlabel="training step",
    ylabel="loss (nats), mean of 20",
    alt="Four loss curves. Pre-norm falls fastest, with or without warm-up, and passes below the line of pairs. "
    "Post-norm with warm-up follows later. Post-norm without warm-up stays on the line of frequencies.",
)

# %% [markdown]
# Are your numbers in the usual range? We compare the mean of the last 50 steps with what we found.

# %% tags=["nbval-ignore-output"]
final = {name: sum(losses[-50:]) / 50 for name, (losses, _) in runs.items()}
expect("Loss, pre-norm", final["pre-norm"], 2.2, 2.5)
expect("Loss, pre-norm with warm-up", final["pre, warm-up"], 2.2, 2.55)
expect("Loss, post-norm", final["post-norm"], 2.9, 3.4)
expect("Loss, post-norm with warm-up", final["post, warm-up"], 2.3, 2.85)

# %% [markdown]
# Post-norm without warm-up sits on the line of frequencies: it gives the same answer at every place of every text. Why?
# You know what to look for. Do its vectors still tell the characters apart?

# %% tags=["nbval-ignore-output"]
plots.lines(
    {name: runs[name][1] for name in ("pre-norm", "post-norm", "post, warm-up")}, yscale="log",
    title="Without warm-up, post-norm collapses and never returns", xlabel="training step",
    ylabel="share that tells characters apart",
    alt="The share that tells characters apart during training, logarithmic. All three fall at first. Pre-norm and "
    "post-norm with warm-up come back up to more than one half. Post-norm without warm-up falls below 0.001 and stays.",
)

# %% [markdown]
# The share after the last step, as a number:

# %% tags=["nbval-ignore-output"]
expect("Share at the end, post-norm", runs["post-norm"][1][-1], 0, 0.01)
expect("Share at the end, post-norm with warm-up", runs["post, warm-up"][1][-1], 0.2, 1)
expect("Share at the end, pre-norm", runs["pre-norm"][1][-1], 0.4, 1)

# %% [markdown]
# Rank collapse again, and this time training itself causes it. All models first learn the easiest thing there is, the
# frequencies; for that, all positions may be the same, and they drift together. In pre-norm the input is still in the
# stream, and the model finds its way back. In post-norm, with steps this large, the difference is gone after a few dozen
# steps. Probably little gradient gets through then, as in section 1; here we have not measured it. A warm-up keeps the
# first steps so small that enough of the difference is left.
#
# So post-norm is not wrong, it is harder to start. Where it does train to the end, its results can even be a little
# better (Liu et al. 2020).

# %% [markdown]
# ## 6 Break it
#
# Take the block apart, one piece at a time: no residual; no norm; no feed-forward network, only attention. Same text,
# same steps, no warm-up. Decide first: which will hurt most?


# %%
class AttentionOnly(Block):
    def forward(self, x, mask=None):                               # (batch, n, d_model)
        return self.wiring(x, lambda y: self.self_attention(y, mask=mask), self.self_attention_norm)


# %% [markdown]
# The whole pre-norm block has been trained already; here are the three that lack a part.

# %% tags=["nbval-ignore-output"]
runs["no residual"] = train(no_residual, what="no residual")
runs["no norm"] = train(no_norm, what="no norm")
runs["no feed-fwd"] = train(pre_norm, block=AttentionOnly, what="no feed-forward")
plots.lines(
    curves_of(["pre-norm", "no residual", "no norm", "no feed-fwd"]),
    title="Without residual or norm nothing is learned but frequencies", xlabel="training step",
    ylabel="loss (nats), mean of 20",
    alt="Four loss curves. The whole pre-norm block falls lowest, below the line of pairs. Without feed-forward it "
    "falls later and ends above the line of pairs. Without residual and without norm it stays on the line of frequencies.",
)

# %% [markdown]
# The figure's numbers, and the share that tells characters apart:

# %% tags=["nbval-ignore-output"]
final = {name: sum(losses[-50:]) / 50 for name, (losses, _) in runs.items()}
expect("Loss without residual", final["no residual"], 2.9, 3.4)
expect("Loss without norm", final["no norm"], 2.9, 4.0)
expect("Loss without feed-forward", final["no feed-fwd"], 2.4, 2.65)
for name in ("pre-norm", "no residual", "no norm", "no feed-fwd"):
    print(f"{name:12} share that tells characters apart at the end: {runs[name][1][-1]:.0e}")

# %% [markdown]
# Without the residual all characters collapse into one, as in section 1. Without the norm they nearly do,
# too, although the residual is there; why, this run does not tell. Without the feed-forward network the model does
# learn, but later, and within these 300 steps it does not get past counting pairs: it can look things up, but it can do
# little with what it finds. Be fair, though: it also has only a third of the parameters.

# %% [markdown]
# ## 7 Open the library
#
# Here is `txlib`'s block. You will recognise `residual`: both wirings in three lines. New are cross-attention for a
# decoder (lesson 07), a cache for generation (lesson 10), and a config that says what to build.

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
x, mask = torch.randn(2, 10, 64), causal().dense(10)               # (batch, n, d_model), (1, 1, n, n)
for name, wiring in {"pre-norm": pre_norm, "post-norm": post_norm}.items():
    ours = shaken(Block(64, 4, 256, wiring))
    library = TransformerBlock(BlockConfig(64, 4, 256, norm_first=wiring is pre_norm)).eval()
    library.load_state_dict(ours.state_dict())
    prove_equal(ours(x, mask), library(x, mask), what=f"Our {name} block and the library's")

# %% [markdown]
# And torch's own. It keeps the query, key and value matrices in one piece, has other names, and its masks are the other
# way round: `True` means *forbidden*.


# %%
def into_torch(ours, theirs):
    attention, network = ours.self_attention, ours.feed_forward
    for kind in ("weight", "bias"):
        joined = torch.cat([getattr(part, kind) for part in (attention.query, attention.key, attention.value)])
        pieces = {
            getattr(theirs.self_attn, f"in_proj_{kind}"): joined,
            getattr(theirs.self_attn.out_proj, kind): getattr(attention.output, kind),
            getattr(theirs.linear1, kind): getattr(network.widen, kind),
            getattr(theirs.linear2, kind): getattr(network.narrow, kind),
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
# ## 8 What it costs
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
    print(f"d {d:4}: {counted:10,} parameters, 12d² + 13d = {formula:10,}; 12d² alone is {12 * d**2 / counted:.1%}")

# %% [markdown]
# And which part has how many?

# %%
block = Block(512, 8, 2048)
parts = {
    "query, key, value": sum(parameters(getattr(block.self_attention, name)) for name in ("query", "key", "value")),
    "output": parameters(block.self_attention.output),
    "widen": parameters(block.feed_forward.widen),
    "narrow": parameters(block.feed_forward.narrow),
    "both norms": parameters(block.self_attention_norm) + parameters(block.feed_forward_norm),
}
plots.bars(
    {name: size / 1e6 for name, size in parts.items()}, xlabel="million parameters", format="{:.3f}",
    title="Two thirds of a block is feed-forward (d = 512)",
    alt="; ".join(f"{name}: {size:,}" for name, size in parts.items()),
)

# %% [markdown]
# **Operations.** A matrix with $p$ parameters costs $2p$ operations a word: a multiplication and an addition each. So
# all matrices together cost $24 n d^2$: attention's projections $8nd^2$, the feed-forward network $16 n d^2$. On top
# come the scores and the mixing, $4n^2d$ (lesson 03), which grow with the square. Attention as a whole overtakes the
# feed-forward network when
#
# $$8nd^2 + 4n^2d = 16nd^2 \quad\Longleftrightarrow\quad n = 2d.$$

# %%
from torch.utils.flop_counter import FlopCounterMode


def operations(module, x):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(x)
    return counter.get_total_flops()


d = 32
attention_part, feed_forward_part = MultiHeadAttention(d, 4), FeedForward(d, 4 * d)
for n in (d // 2, d, 2 * d, 4 * d, 8 * d):
    x = torch.randn(1, n, d)                                       # (1, n, d_model)
    counted = operations(attention_part, x), operations(feed_forward_part, x)
    formula = 8 * n * d**2 + 4 * n**2 * d, 16 * n * d**2
    print(f"n = {n / d:3g} d: attention {counted[0] / 1e6:4.1f} MFLOP, feed-forward {counted[1] / 1e6:4.1f}", end="; ")
    print("as the formulas say" if counted == formula else f"but the formulas say {formula}")

# %% [markdown]
# With $d = 512$ that is $n = 1024$. Below it, "attention is expensive" is a myth: the feed-forward network costs more.
# Scores and mixing alone ($4n^2d$) overtake it at $n = 4d$.

# %% [markdown]
# ## 9 Quiz
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

# %% [markdown]
# ## 10 Summary
#
# - Attention alone makes all words the same, and on a single word it is only a matrix.
# - The residual connection lets words, and gradients, pass. It adds; it never replaces.
# - Layer norm works on one word at a time: mean 0, variance 1 (biased), then a learned gain and bias.
# - The feed-forward network computes, word by word, and holds two thirds of the $12d^2$ parameters.
# - At our learning rate, post-norm needed a warm-up to keep the words apart at the start. Pre-norm did without.
#
# **Read** Vaswani et al. 2017, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762), sections 3.1, 3.3 and 5.4. He et
# al. 2016, *Deep Residual Learning*, [arXiv:1512.03385](https://arxiv.org/abs/1512.03385), section 3. Ba et al. 2016,
# *Layer Normalization*, [arXiv:1607.06450](https://arxiv.org/abs/1607.06450), section 3. Xiong et al. 2020, *On Layer
# Normalization in the Transformer Architecture*, [arXiv:2002.04745](https://arxiv.org/abs/2002.04745), section 3.
# Zhang & Sennrich 2019, *Root Mean Square Layer Normalization*, [arXiv:1910.07467](https://arxiv.org/abs/1910.07467),
# section 4. Shazeer 2020, *GLU Variants Improve Transformer*, [arXiv:2002.05202](https://arxiv.org/abs/2002.05202),
# section 2. Dong et al. 2021, *Attention Is Not All You Need*, [arXiv:2103.03404](https://arxiv.org/abs/2103.03404),
# section 2. Liu et al. 2020, *Understanding the Difficulty of Training Transformers*,
# [arXiv:2004.08249](https://arxiv.org/abs/2004.08249).
#
# **Do** the exercise [06_block](../exercises/exercise_06_block.ipynb). Then go on to
# [07 The encoder–decoder Transformer](07_transformer.ipynb).
