# %% [markdown] lesson={"part": "III Beyond text", "builds": "pixels as tokens, non-local blocks, local attention against convolution, the Vision Transformer; what each is told about pictures"}
# # 21 · Vision: pixels as tokens
#
# **After this lesson you will be able to**
#
# - say what `Linear` and `@` do to a tensor with four axes, and move channels to where attention wants them;
# - write attention over the pixels of a picture, in all forms of the non-local block, and put it into a network that
#   works already without breaking it;
# - write stand-alone local attention beside the convolution that it replaces, and count parameters, operations and
#   memory of both;
# - build a Vision Transformer, see the grid that its positions have learned, and follow its attention back to the
#   picture;
# - measure what little data does to it, and what augmentation mends.
#
# **You need** lessons 04 to 06; lesson 03's masks. **It takes** about 105 minutes to read and try; all cells together
# run in about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: pictures have no words
#
# So far everything was a sentence: a row of tokens. What is the token of a picture? What we need today:

# %% tags=["recorded"]
import json
import time

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from txlib import plots
from txlib.attention import Mask, MultiHeadAttention
from txcourse.lesson import expect, progress, prove_equal, show_source
from txlib.layers import FeedForward, LayerNorm

torch.set_num_threads(1)                                    # so that timings are comparable

# %% [markdown]
# And what it is about: **Fashion-MNIST**, small grey photographs of clothes in ten classes (Xiao et al. 2017).
# The course ships a part of it.

# %% tags=["recorded"]
from txlib.data import fashion

clothes = fashion()
mean, deviation = 0.286, 0.353                              # of the training pixels


def as_input(pictures):                                     # from 0 … 1 to mean 0 and deviation 1
    return (pictures.pixel_values - mean) / deviation, pictures.labels


train_x, train_y = as_input(clothes.train)                  # (10000, 1, 28, 28), (10000,)
test_x, test_y = as_input(clothes.test)                     # (2000, 1, 28, 28), (2000,)
names = clothes.train.names

# %% [markdown]
# A batch of pictures has four axes: *N* pictures, *C* channels (here one, in colour photographs three), *H* rows, *W*
# columns. torch wants them in this order, NCHW:

# %%
print(f"training {tuple(train_x.shape)}, test {tuple(test_x.shape)}")
plots.pictures(
    torch.stack([test_x[test_y == each][0, 0] for each in range(10)]), names=names, columns=5,
    title="Ten classes; some pairs are hard to tell apart",
    alt="Ten small grey photographs on black: " + ", ".join(names) + ".",
)

# %% [markdown]
# Let each pixel be a token, and let attention compare each with each. How many pairs is that? A picture of
# Fashion-MNIST has $28 \cdot 28$ pixels; networks for photographs usually get $224 \cdot 224$.

# %%
for side in (28, 224):
    n = side * side
    print(f"{side:3} × {side:3}: n = {n:6,} pixels, {n * n:13,} pairs; "
          f"scores of one head: {4 * n * n / 1e9:6.3f} GB")

# %% [markdown]
# So there are two problems. **Where?** A row of pixels has forgotten which of them are neighbours, and attention does
# not ask. **How many?** Attention grows with the square of the length (lesson 04), and here the length is a
# square already. This lesson has three
# answers: few pixels (the non-local block, deep inside a network, where pictures have become small), few neighbours
# (local attention), and few tokens (patches).
#
# ## 2 The idea in one picture
#
# What has attention to do with pictures at all? Take a task in which nothing is learned. A picture is noisy. To clean
# a pixel, average it with others: the noise averages out. With *which* others?
#
# - **By place**: with its neighbours, the nearer the more. That is a blur. A blur is a convolution: around each pixel
#   the same weights, whatever is there.
# - **By content**: with pixels that *look alike*, wherever they are. Describe pixel $i$ by the $5 \times 5$ pixels
#   around it, $p_i$, and give pixel $j$ the weight $e^{-\lVert p_i - p_j \rVert^2 / h}$. These are the **non-local
#   means** of Buades, Coll and Morel (2005).
#
# Write the second out, and you know it:
#
# $$\frac{-\lVert p_i - p_j\rVert^2}{h} = \frac{2\, p_i^\top p_j - \lVert p_j \rVert^2 - \lVert p_i\rVert^2}{h}
# \qquad\Rightarrow\qquad
# y_i = \sum_j \mathrm{softmax}_j\Big(\frac{2\, p_i^\top p_j - \lVert p_j\rVert^2}{h}\Big)\, x_j$$
#
# The last term is the same for all $j$, so softmax drops it. Queries and keys are patches, values are pixels: this is
# attention, and twelve years later networks took over its name (section 5).


# %%
def by_content(noisy, h=0.5):                               # (N, 1, H, W)
    patches = F.unfold(noisy, 5, padding=2).mT              # (N, K, 25), K = H · W pixels
    score = 2 * patches @ patches.mT - (patches**2).sum(dim=-1)[:, None, :]  # (N, K, K)
    return (score / h).softmax(dim=-1)                      # (N, K, K)


def by_place(side, spread=0.6):
    place = torch.cartesian_prod(torch.arange(side), torch.arange(side)).float()  # (K, 2)
    return (-(torch.cdist(place, place) ** 2) / (2 * spread**2)).softmax(dim=-1)  # (K, K)


# %% [markdown]
# Fifty pictures with noise, cleaned in both ways. A picture's numbers go from 0, black, to 1, white; the error is the
# root of the mean square. (`h` and `spread` are about the best for each.)

# %%
torch.manual_seed(0)
clean = clothes.test.pixel_values[:50]                      # (50, 1, 28, 28)
noisy = clean + 0.15 * torch.randn_like(clean)              # (50, 1, 28, 28)
ways = {"place": by_place(28).expand(50, -1, -1), "content": by_content(noisy)}  # (50, K, K) each
cleaned = {name: (weight @ noisy.flatten(2).mT).mT.view_as(clean) for name, weight in ways.items()}
for name, shown in {"not cleaned": noisy, **cleaned}.items():
    print(f"{name:11}: error {(shown - clean).pow(2).mean().sqrt():.3f}")

# %% [markdown]
# Content wins. What does it look at? One pixel of one picture, and what it takes from all others. (The darker the
# orange, the more: drawn is the root of each weight, or the many small ones would not be seen.)

# %%
one, (row, column) = 1, (14, 6)                             # a pixel of a sleeve
at, dim = 28 * row + column, 0.5 * clean[one, 0]            # (28, 28)
taken = [weight[one, at].view(28, 28).sqrt() for weight in ways.values()]  # (28, 28) each
for weight in taken:
    weight[row, column] = 0                                 # what it takes from itself is not shown
plots.pictures(
    torch.stack([noisy[one, 0], dim, dim, cleaned["place"][one, 0], cleaned["content"][one, 0]]),
    heat=torch.stack([torch.zeros(28, 28), *taken, *torch.zeros(2, 28, 28)]), span=(0, 1), size=1.8,
    names=["noisy", *(f"weights by {name}" for name in ways), *(f"cleaned by {name}" for name in ways)],
    title="By place: what is near. By content: other bits of plain cloth, near and far",
    marks=[(row, column)] * 5,
    alt="A pullover five times, one pixel of its sleeve marked. Noisy; with the weights by place, "
    "a spot around the pixel; with the weights by content, scattered over plain cloth; cleaned by "
    "place, blurred; cleaned by content, flat where it is flat, with its edges kept.",
)

# %% [markdown]
# Keep these two words, *place* and *content*, for the rest of the lesson. A convolution weighs by place alone.
# Attention, as lesson 03 has it, weighs by content alone. Local attention with relative positions will weigh by both.
#
# ## 3 More than two axes
#
# All matrices so far had a batch axis in front, sometimes one for heads. Pictures bring more. There are two rules, and
# they suffice for any number of axes:
#
# - `Linear(a, b)` acts on the **last** axis, of size $a$. All others are batch.
# - `@` multiplies matrices that stand in the **last two** axes. All others are batch, and are broadcast.
#
# Guess the three shapes before you read them:

# %%
x = torch.randn(100, 2, 3, 4)
A, B = torch.randn(11, 9, 2, 3), torch.randn(11, 9, 3, 4)
print("Linear(4, 11) on (100, 2, 3, 4):      ", tuple(nn.Linear(4, 11)(x).shape))
print("(11, 9, 2, 3) @ (11, 9, 3, 4):        ", tuple((A @ B).shape))
print("(11, 1, 2, 3) @ (9, 3, 4), broadcast: ", tuple((A[:, :1] @ B[0]).shape))
by_hand = torch.stack([torch.stack([A[i, j] @ B[i, j] for j in range(9)]) for i in range(11)])
prove_equal(A @ B, by_hand, what="99 products at once and one by one")

# %% [markdown]
# `Linear(4, 11)` has not asked what the axis of size 4 *means*. On a batch of pictures, NCHW, the last axis is
# *columns*. `nn.Linear(28, 5)(train_x)` runs without an error, and mixes the left edge with the right. What attention
# wants mixed are channels: a token is a pixel, and its vector is the pixel's channels. So the channels must become
# the last axis, and both axes of place one: $N \times C \times H \times W \;\to\; N \times K \times C$ with
# $K = H \cdot W$.
#
# Here is the commonest mistake with it. `reshape` does not move anything: it takes the numbers in the order in which
# they lie in memory, and puts in new line breaks.

# %%
x = torch.arange(24).view(1, 3, 2, 4)  # (N, C, H, W): channel 0 holds 0 to 7, channel 1 8 to 15
right = rearrange(x, "n c h w -> n (h w) c")                # (N, K, C)
wrong = x.reshape(1, 8, 3)                                  # (N, K, C), it says
print("first pixel, moved:   ", right[0, 0].tolist())
print("first pixel, reshaped:", wrong[0, 0].tolist())

# %% [markdown]
# The first pixel's three channels are 0, 8 and 16. The wrong one has three *neighbours* of channel 0. Its shape is
# right, no error appears, and a network even learns something with it. `rearrange` of the library einops names each
# axis, on the left as it is and on the right as it shall be, and so can't make this mistake. (In torch alone:
# `x.flatten(2).mT`, first join, then swap.)
#
# One more identity for what follows. A convolution with a $1 \times 1$ kernel sees a single pixel: it *is* a `Linear`
# on the channels, the same for each pixel.

# %%
torch.manual_seed(0)
x, conv, linear = torch.randn(2, 3, 6, 5), nn.Conv2d(3, 8, 1), nn.Linear(3, 8)
linear.weight.data, linear.bias.data = conv.weight.data[:, :, 0, 0], conv.bias.data
moved = rearrange(linear(rearrange(x, "n c h w -> n (h w) c")), "n (h w) c -> n c h w", h=6)
prove_equal(conv(x), moved, what="A 1 × 1 convolution and a Linear on channels")

# %% [markdown]
# ## 4 From convolution to attention over pixels
#
# A convolution with a $k \times k$ kernel computes pixel $(i, j)$ of its output from the neighbourhood
# $\mathcal N_k(i, j)$, the $k \times k$ pixels around it:
#
# $$y_{ij} = \sum_{(a,b)\, \in\, \mathcal N_k(i,j)} W_{a-i,\, b-j}\; x_{ab}$$
#
# One matrix $W$ for each *offset*, learned, and the same for all pictures. Attention over pixels takes from everywhere,
# and how much depends on both pixels:
#
# $$y_{ij} = \sum_{(a,b)} \mathrm{softmax}_{ab}\Big(\frac{q_{ij}^\top k_{ab}}{\sqrt{d_k}}\Big)\, v_{ab}
# \qquad q = W_Q x,\quad k = W_K x,\quad v = W_V x$$
#
# As a layer for pictures, NCHW → NKC → NCHW:


# %% tags=["recorded"]
class AttentionLayer2d(nn.Module):
    def __init__(self, dim_x, dim_k, dim_v):
        super().__init__()
        self.query, self.key = nn.Linear(dim_x, dim_k), nn.Linear(dim_x, dim_k)
        self.value = nn.Linear(dim_x, dim_v)

    def forward(self, x):                                   # (N, dim_x, H, W)
        pixels = rearrange(x, "n c h w -> n (h w) c")       # (N, K, dim_x)
        q, k, v = self.query(pixels), self.key(pixels), self.value(pixels)
        score = q @ k.mT / q.shape[-1] ** 0.5               # (N, K, K)
        out = score.softmax(dim=-1) @ v                     # (N, K, dim_v)
        return rearrange(out, "n (h w) c -> n c h w", h=x.shape[2])  # (N, dim_v, H, W)


# %% [markdown]
# **Break it.** Lesson 05 showed that attention without positions does not notice order. In pictures: exchange the
# pixels of a picture in some order, and the layer gives the same answers, exchanged. Does a convolution?

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
x, order = torch.randn(2, 8, 14, 14), torch.randperm(196)


def exchange(x):  # (N, C, H, W): the same new order for all pictures
    return x.flatten(2)[..., order].view_as(x)


layers = {"attention over pixels": AttentionLayer2d(8, 16, 8),
          "convolution 3 × 3": nn.Conv2d(8, 8, 3, padding=1), "convolution 1 × 1": nn.Conv2d(8, 8, 1)}
for name, layer in layers.items():
    before, after = exchange(layer(x)), layer(exchange(x))  # (N, 8, 14, 14) each
    print(f"{name:21} largest difference {(before - after).abs().max():.1e}")

# %% [markdown]
# A layer that works by place notices; one that works by content alone can't. To the attention layer a picture is a
# *bag* of pixels. Section 6 measures what that costs.
#
# And the price? On paper, per pixel: a $3 \times 3$ convolution from $C$ to $C$ channels makes $9 C^2$ products; the
# attention layer $3 C^2$ for queries, keys and values, and $2 K C$ for scores and sums. With $C = 32$ they are equal
# where $6 \cdot 32 = 2 K$: at $K = 96$ pixels, a picture of less than $10 \times 10$. (An operation is a product or a
# sum, so twice as many.)


# %% tags=["recorded"]
def operations(layer, *inputs):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(*inputs)
    return counter.get_total_flops()


# %% [markdown]
# Both layers, on pictures of several sizes:

# %%
for side in (7, 14, 28, 56):
    x, K = torch.randn(1, 32, side, side), side * side
    paper = 2 * K * 9 * 32**2, 2 * K * (3 * 32**2 + 2 * K * 32)
    layers = nn.Conv2d(32, 32, 3, padding=1), AttentionLayer2d(32, 32, 32)
    one, other = (operations(layer, x) / 1e6 for layer in layers)
    print(f"{side:2} × {side:2}: convolution {one:6.1f} million, attention {other:7.1f};"
          f" on paper {paper[0] / 1e6:6.1f}, {paper[1] / 1e6:7.1f}")

# %% [markdown]
# Twice the side, four times the pixels: four times the convolution, and nearly sixteen times the attention. So the
# first answer to "how many?" is: *not at the beginning of a network*. Convolutional networks shrink their pictures on
# the way; deep inside there are 14 × 14 or 7 × 7 places left, with many channels each.
#
# ## 5 The non-local block
#
# Wang et al. (2018) put attention into networks that existed and worked, for videos. The operation is written so
# generally that all kinds fit in:
#
# $$y_i = \frac{1}{\mathcal C(x)} \sum_j f(x_i, x_j)\, g(x_j)$$
#
# | form | $f(x_i, x_j)$ | $\mathcal C(x)$ |
# | --- | --- | --- |
# | Gaussian (the "vanilla" one: no $\theta$, no $\varphi$) | $e^{x_i^\top x_j}$ | $\sum_j f(x_i, x_j)$ |
# | embedded Gaussian | $e^{\theta(x_i)^\top \varphi(x_j)}$ | $\sum_j f(x_i, x_j)$ |
# | dot product | $\theta(x_i)^\top \varphi(x_j)$ | $K$, the number of positions |
# | concatenation | $\mathrm{ReLU}(w_f^\top [\theta(x_i), \varphi(x_j)])$ | $K$ |
#
# $\theta$ and $\varphi$ are $1 \times 1$ convolutions (for films $1 \times 1 \times 1$): queries and keys. $g$ gives
# the values. An exponential divided by its sum is a softmax, so the second form is attention as you know it, without
# the $\sqrt{d_k}$. (So the paper has it. The program that its authors published divides by it.) The last two have no
# softmax, and their weights need not sum to one: those of the dot product may be negative, those of the concatenation
# may all be zero, or all large. $1/K$ makes an average of the sum, so that it does not grow with the picture. (The
# paper calls this number $N$. Here $N$ counts the pictures of a batch.)
#
# (A lecture may show the second form as $y = \mathrm{softmax}(x^\top W_\theta^\top W_\varphi\, x)\, g(x)$ with $x$ of
# shape channels × positions. Check the shapes: the softmax is $K \times K$, and $g(x) = W_g x$ is channels × $K$.
# They don't fit. It must be $y = \mathrm{softmax}(\dots)\,(W_g x)^\top$, or each pixel a row from the start, as here.)
#
# The block around it makes two decisions that later work has kept. It is a **bottleneck**: inside, there are half as
# many channels. And it is a **residual**: $z_i = W_z\, y_i + x_i$.


# %% tags=["recorded"]
class NonLocal(nn.Module):
    def __init__(self, dim, form="embedded", zero=True):
        super().__init__()
        self.form, inner = form, dim // 2                   # the bottleneck
        self.theta, self.phi, self.g = (nn.Linear(dim, inner) for _ in range(3))
        self.to_score = nn.Linear(2 * inner, 1, bias=False)  # w_f, for the concatenation alone
        self.out = nn.Linear(inner, dim)                    # W_z
        if zero:                                            # it begins as the identity
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

    def forward(self, x):                                   # (N, C, H, W), or (N, C, T, H, W)
        places = x.flatten(2).mT                            # (N, K, C): any number of axes of place
        y = self.weights(places) @ self.g(places)           # (N, K, C / 2)
        return x + self.out(y).mT.reshape(x.shape)          # as x


# %% [markdown]
# Its four forms. In the concatenation, $w_f^\top [\theta_i, \varphi_j] = w_1^\top \theta_i + w_2^\top \varphi_j$: two
# numbers per pixel, then a sum for each pair. So no tensor of all pairs with all channels is needed:


# %% tags=["recorded"]
def weights(self, places):                                  # (N, K, C)
    if self.form == "gaussian":
        return (places @ places.mT).softmax(dim=-1)         # (N, K, K)
    q, k = self.theta(places), self.phi(places)             # (N, K, C / 2) each
    if self.form == "embedded":
        return (q @ k.mT).softmax(dim=-1)                   # (N, K, K)
    if self.form == "dot":
        return q @ k.mT / places.shape[1]                   # (N, K, K)
    for_q, for_k = self.to_score.weight[0].chunk(2)         # (C / 2,) each
    return F.relu((q @ for_q)[:, :, None] + (k @ for_k)[:, None, :]) / places.shape[1]  # (N, K, K)


NonLocal.weights = weights

# %% [markdown]
# Does each do what its equation says? A loop over pairs, as slow and as plain as can be, for a video clip of $2 \times
# 3 \times 4$ places:

# %%
torch.manual_seed(0)
clip = torch.randn(1, 6, 2, 3, 4)  # (N, C, T, H, W): time is an axis of place like the others
places = clip.flatten(2).mT[0]                              # (K, C)
for form in ("gaussian", "embedded", "dot", "concatenation"):
    block = NonLocal(6, form, zero=False)
    q, k, f = block.theta(places), block.phi(places), torch.empty(24, 24)
    for i in range(24):
        for j in range(24):
            f[i, j] = {"gaussian": (places[i] @ places[j]).exp(), "embedded": (q[i] @ k[j]).exp(),
                       "dot": q[i] @ k[j],
                       "concatenation": block.to_score(torch.cat([q[i], k[j]])).relu()[0]}[form]
    C = f.sum(dim=1, keepdim=True) if form in ("gaussian", "embedded") else 24
    y = f @ block.g(places) / C                             # (K, C / 2)
    prove_equal(block(clip)[0].flatten(1).mT, places + block.out(y), what=f"{form:13} and its loop")

# %% [markdown]
# How large is it? The paper's block for videos gets $T \times H \times W \times 1024$, and has 512 channels inside.
# Work it out before you look: four matrices, $3 \cdot (1024 \cdot 512 + 512)$ and $512 \cdot 1024 + 1024$. For a clip
# of $4 \times 14 \times 14$ places, how many scores?

# %%
block, n = NonLocal(1024), 4 * 14 * 14
size = sum(each.numel() for name, each in block.named_parameters() if "to_score" not in name)
print(f"parameters: on paper {4 * 1024 * 512 + 3 * 512 + 1024:,}, counted {size:,}")
print(f"{n} places: {n * n:,} scores; without a bottleneck {4 * (1024**2 + 1024):,} parameters")

# %% [markdown]
# ### 5.1 It begins as the identity
#
# Why is $W_z$ zero at first? So that a new block can be put *into a trained network* and change nothing, until
# training finds a use for it. That is what it was made for. (The authors do the same in another way: their block ends
# in a batch normalisation whose factor starts at zero.) Measure it. First a network that works; it is to serve for the
# rest of the lesson. Its layers are residual, as in a ResNet. The kind of layer in which pixels meet is an argument:


# %% tags=["recorded"]
def unit(layer, width=32):                                  # a layer of a convolutional network
    return nn.Sequential(layer, nn.BatchNorm2d(width), nn.ReLU())


class Residual(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.unit = unit(layer)

    def forward(self, x):                                   # (N, C, H, W)
        return x + self.unit(x)                             # (N, C, H, W)


# %% [markdown]
# The network; a convolution is the first mixer:


# %% tags=["recorded"]
def network(mixer, width=32):  # `mixer()` makes a layer in which pixels meet
    return nn.Sequential(
        unit(nn.Conv2d(1, width, 2, stride=2)),  # (N, 32, 14, 14): squares of 2 × 2 pixels
        Residual(mixer()), Residual(mixer()),               # (N, 32, 14, 14)
        nn.AvgPool2d(2), Residual(mixer()),                 # (N, 32, 7, 7)
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10),  # (N, 10)
    )


def convolution():
    return nn.Conv2d(32, 32, 3, padding=1, bias=False)


# %% [markdown]
# And the training, the same for all models of this lesson:


# %% tags=["recorded"]
def train(make, pictures, labels, lr=1e-2, steps=300, augment=None, seed=0, what="training"):
    torch.manual_seed(seed)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.05)
    for step in progress(range(steps), what):
        optimizer.param_groups[0]["lr"] = lr * min(1, (step + 1) / 30) * (1 - step / steps)
        batch = torch.randint(len(pictures), (32,))         # (N,)
        x = pictures[batch] if augment is None else augment(pictures[batch])  # (N, 1, 28, 28)
        F.cross_entropy(model(x), labels[batch]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


# %% [markdown]
# And the share of correct answers:


# %% tags=["recorded"]
@torch.no_grad()
def accuracy(model, pictures, labels):
    right = [model(x).argmax(-1) == y for x, y in zip(pictures.split(200), labels.split(200))]
    return torch.cat(right).float().mean().item()


# %% [markdown]
# First without any block:

# %% tags=["nbval-ignore-output"]
plain = train(lambda: network(convolution), train_x, train_y, what="a convolutional network")
before = accuracy(plain, test_x, test_y)
expect("Right answers (%)", 100 * before, 70, 90)

# %% [markdown]
# Now put a block after its second residual layer, where there are $14 \times 14$ places, without training anything:
# once as the identity, once with $W_z$ as torch draws it. What will each do to the accuracy?

# %% tags=["nbval-ignore-output"]
for zero in (True, False):
    torch.manual_seed(0)
    with_block = nn.Sequential(*plain[:3], NonLocal(32, zero=zero), *plain[3:])
    print(f"W_z {'zero' if zero else 'random'}: {accuracy(with_block, test_x, test_y):.1%}, "
          f"without the block {before:.1%}")

# %% [markdown]
# Zero changes nothing, to the last digit. Random breaks what has been learned: the layers after it get what they have
# never seen. A new part that begins as the identity can be added anywhere; `BlockConfig`'s `zero_output` is the same
# trick, and adapters such as LoRA begin like this, too.
#
# ### 5.2 What does it look at?
#
# Train the network with the block inside from the start:

# %% tags=["recorded"]
def with_non_local():
    body = list(network(convolution))
    return nn.Sequential(*body[:3], NonLocal(32), *body[3:])


# %% [markdown]
# The same number of steps, the same seed:

# %% tags=["nbval-ignore-output"]
model = train(with_non_local, train_x, train_y, what="a network with a non-local block")
expect("Right answers (%)", 100 * accuracy(model, test_x, test_y), 70, 90)

# %% [markdown]
# The paper draws the strongest arrows: from one place in a film, to a ball or to the people who play with it. Do the
# same: from five places of each picture, one arrow to the place with the largest weight (none where that is the place
# itself). Will they stay near, as a convolution must?

# %% tags=["nbval-ignore-output"]
chosen = [0, 3, 5, 8, 11, 16]
starts = [(3, 7), (6, 4), (7, 7), (7, 10), (11, 7)]         # of 14 × 14 places
with torch.no_grad():
    inside = model[:3](test_x[chosen])                      # (6, 32, 14, 14)
    weight = model[3].weights(inside.flatten(2).mT)         # (6, K, K), K = 196
arrows = []
for each in weight:                                         # (K, K)
    ends = [divmod(each[14 * row + column].argmax().item(), 14) for row, column in starts]
    arrows.append([((2 * a + 0.5, 2 * b + 0.5), (2 * c + 0.5, 2 * d + 0.5), 0.4)
                   for (a, b), (c, d) in zip(starts, ends) if (a, b) != (c, d)])
plots.pictures(
    test_x[chosen, 0], arrows=arrows, names=[names[each] for each in test_y[chosen]], size=1.5,
    title="Wherever they start, the strongest arrows meet in a few places",
    alt="Six pictures of clothes, each with five arrows from places spread over the picture. In each "
    "picture most arrows end in the same few places, often in the dark beside the piece of clothing.",
)

# %% [markdown]
# They don't stay near. And the places that they start from hardly seem to matter. Six pictures easily fool us, so count
# on two hundred:

# %% tags=["nbval-ignore-output"]
with torch.no_grad():
    weight = model[3].weights(model[:3](test_x[:200]).flatten(2).mT)  # (200, K, K)
best = weight.argmax(dim=-1)  # (200, K): the strongest key of each query
place = torch.cartesian_prod(torch.arange(14.0), torch.arange(14.0))  # (K, 2)
far = torch.cdist(place, place)                             # (K, K), in places
light = F.avg_pool2d(test_x[:200], 2).flatten(1)            # (200, K)
dark = light < light.amin() + 0.1                           # (200, K)
distinct = sum(len(each.unique()) for each in best) / 200
five = weight.mean(dim=1).topk(5).values.sum(-1).mean()
print(f"the strongest key is {far[torch.arange(196), best].mean():.1f} places away; "
      f"drawn blindly {far.mean():.1f}")
print(f"196 queries of a picture have {distinct:.1f} strongest keys together")
print(f"{five:.0%} of all weight goes to five places of each picture")
print(f"{dark.gather(1, best).float().mean():.0%} of the strongest keys are dark; "
      f"of all places {dark.float().mean():.0%}")

# %% [markdown]
# So each place asks nearly the same question, and gets nearly the same answer: the block has found a way to tell *all*
# places something about the picture as a whole. It reads it off a handful of places, mostly in the background, where a
# convolution has nothing else to say. That this is what non-local blocks learn, in large networks, too, was found soon
# after: Cao et al. (2019, *GCNet*) computed *one* map for all queries, and lost nothing. Language models have
# such places, too: lesson 31 calls them attention sinks. Draw such arrows for a network of yours, but count before you
# tell a story.
#
# Does the block help? One run can't say. Section 6.4 has three.
#
# ## 6 Local attention in place of convolutions
#
# ### 6.1 The two equations side by side
#
# Wang et al. *add* attention to convolutions. Ramachandran et al. (2019) ask whether it can stand alone: *replace*
# each $3 \times 3$ convolution. With all pixels that is too dear in the early layers, so their attention stays where
# the convolution was, in the neighbourhood $\mathcal N_k(i,j)$:
#
# $$\text{convolution:}\qquad y_{ij} = \sum_{(a,b)\, \in\, \mathcal N_k(i,j)} W_{a-i,\,b-j}\; x_{ab}$$
#
# $$\text{local attention:}\qquad y_{ij} = \sum_{(a,b)\, \in\, \mathcal N_k(i,j)}
# \mathrm{softmax}_{ab}\big(q_{ij}^\top k_{ab} + q_{ij}^\top r_{a-i,\,b-j}\big)\; v_{ab}$$
#
# The same neighbours, with $k = 3$ nine of them. The convolution has a matrix for each offset: $k^2$ matrices, and
# what it does at an offset is fixed. Attention has three matrices whatever $k$ is, and decides anew at each pixel.
#
# (A lecture may leave out the second score, $q^\top r$. Then attention knows the content of its nine neighbours, but
# not which of them is above and which is below: a bag of nine pixels. With the vectors $r$, one for each *offset*, it
# weighs by content **and** by place. This is Shaw's idea of lesson 05, in two dimensions.)
#
# There are several heads, as in lesson 04, and each has its own scores. Nine vectors $r$ for $k = 3$, 49 for $k = 7$.
# The paper saves: half of each vector says the row offset, the other half the column offset, so $2k$ half vectors
# suffice. How do we get "the neighbour at offset $(a, b)$" for all pixels at once? It is the whole picture, shifted:


# %% tags=["recorded"]
def neighbours(x, k):                                       # (…, H, W) → k · k times (…, H, W)
    (height, width), r = x.shape[-2:], k // 2
    padded = F.pad(x, (r, r, r, r))                         # (…, H + 2r, W + 2r)
    return [padded[..., a : a + height, b : b + width] for a in range(k) for b in range(k)]


class LocalAttention(nn.Module):
    def __init__(self, dim, k=3, heads=4, relative=True):
        super().__init__()
        self.k, self.heads, half = k, heads, dim // heads // 2
        self.query, self.key, self.value = (nn.Conv2d(dim, dim, 1, bias=False) for _ in range(3))
        tables = (nn.Parameter(torch.randn(k, half)) for _ in range(2))
        self.rows, self.columns = tables if relative else (None, None)

    def relative(self):                                     # r: (k · k, d)
        rows, columns = self.rows.repeat_interleave(self.k, 0), self.columns.repeat(self.k, 1)
        return torch.cat([rows, columns], dim=-1)


# %% [markdown]
# Neighbours outside the picture do not exist: they get a score of $-\infty$, as in lesson 03. (The paper does not say
# what it does there. And it has no $\sqrt d$; nor has the non-local block in its paper.)


# %% tags=["recorded"]
def forward(self, x):                                       # (N, C, H, W)
    q, k, v = (rearrange(each(x), "n (m d) h w -> n m d h w", m=self.heads)
               for each in (self.query, self.key, self.value))
    score = [(q * each).sum(dim=2) for each in neighbours(k, self.k)]  # k · k times (N, m, H, W)
    score = torch.stack(score, dim=2)                       # (N, m, k·k, H, W)
    if self.rows is not None:
        score = score + torch.einsum("nmdhw,od->nmohw", q, self.relative())
    inside = torch.stack(neighbours(torch.ones(x.shape[-2:]), self.k)) > 0  # (k·k, H, W)
    weight = score.masked_fill(~inside, float("-inf")).softmax(dim=2)  # over the neighbours
    out = sum(weight[:, :, [o]] * each for o, each in enumerate(neighbours(v, self.k)))
    return rearrange(out, "n m d h w -> n (m d) h w")       # (N, C, H, W)


LocalAttention.forward = forward

# %% [markdown]
# ### 6.2 A window in two dimensions is a mask
#
# Write the pixels one row after the other, and the neighbourhood is a mask on pairs of positions. Position $p$ stands
# in row $\lfloor p / W \rfloor$ and column $p \bmod W$; both may differ by at most $r = (k-1)/2$:


# %%
def window_2d(width, radius):
    near = Mask(lambda query, key: (query // width - key // width).abs() <= radius)
    return near & Mask(lambda query, key: (query % width - key % width).abs() <= radius)


in_a_row = Mask(lambda query, key: (query - key).abs() <= 7)
plots.mask(
    {"sliding window, radius 7": in_a_row, "2-D window, radius 1": window_2d(6, 1)},
    length=36, title="A square neighbourhood is three bands with gaps",
    alt="Two squares of 36 queries by 36 keys. Left one broad band of 15 along the diagonal. Right "
    "three narrow bands: along the diagonal, and six cells to either side of it; each is cut into "
    "pieces where a picture's row ends.",
)

# %% [markdown]
# These pictures have rows of six pixels, so the neighbour above and to the left stands $6 + 1 = 7$ positions before. A
# window in one dimension that reaches as far also reaches around the picture's edge. The one in two dimensions does
# not: that is where its bands have gaps. How many pairs? In one direction of length $L > r$ there are
# $L(2r+1) - r(r+1)$: each has $2r+1$, and at either end $r + \dots + 2 + 1$ of them are missing. Rows and columns don't
# know of each other, so for a picture it is the *product*, $\big(H(2r+1) - r(r+1)\big)\big(W(2r+1) - r(r+1)\big)$.
#
# And with this mask, and the relative scores as a bias, ordinary attention must give the same numbers:

# %%
from txlib.attention import attention

torch.manual_seed(0)
layer, x = LocalAttention(8, k=3, heads=2), torch.randn(2, 8, 5, 6)
mask = window_2d(6, 1)
print(f"pairs counted {mask.pairs(30)}, on paper {(5 * 3 - 2) * (6 * 3 - 2)}")
q, k, v = (rearrange(each(x), "n (m d) h w -> n m (h w) d", m=2)
           for each in (layer.query, layer.key, layer.value))  # (N, m, K, d) each
row, column = torch.arange(30) // 6, torch.arange(30) % 6
offset = (3 * (row - row[:, None] + 1) + (column - column[:, None] + 1)).clamp(0, 8)  # (query, key)
bias = (q @ layer.relative().T).gather(-1, offset.expand(2, 2, 30, 30))   # (N, m, query, key)
out = rearrange(attention(q, k, v, mask, bias=bias, scale=1), "n m (h w) d -> n (m d) h w", h=5)
prove_equal(layer(x), out, what="Shifted pictures and a mask")

# %% [markdown]
# ### 6.3 Count
#
# **Parameters.** A convolution from $C$ to $C$ channels has $k^2 C^2$, attention $3 C^2$, and $k \cdot d$ for $r$. At
# $k = 3$ a third. **Operations** per pixel: $2 k^2 C^2$ against $2 \cdot 3 C^2$ and three times $2 k^2 C$, for the
# scores, for the places, for the sum. That grows with $C$, not with $C^2$, so attention can afford a larger window
# than the convolution: the paper takes $k = 7$.
#
# Now check the paper's headline on paper: a ResNet-50 with all $3 \times 3$ convolutions replaced, "12 % fewer FLOPS
# and 29 % fewer parameters". ResNet-50 is sixteen bottlenecks: $1 \times 1$ to $C$ channels, $3 \times 3$, $1 \times 1$
# to $4C$. At the three places where the picture shrinks, attention works at the larger size and an average over $2
# \times 2$ follows.


# %%
def resnet50(attention=False, k=7):                         # parameters, operations for 224 × 224
    size, ops, wide = 3 * 64 * 49 + 128, 3 * 64 * 49 * 112**2, 64  # the first layer, 7 × 7
    for blocks, C, side in ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7)):
        for number in range(blocks):
            before = 2 * side if number == 0 and C > 64 else side
            middle = 3 * C * C if attention else 9 * C * C  # parameters
            each = (3 * C * C + 3 * k * k * C) * before**2 if attention else 9 * C * C * side**2
            size += wide * C + middle + 4 * C * C + 2 * (C + C + 4 * C)  # with batch normalisation
            ops += wide * C * before**2 + each + 4 * C * C * side**2
            if number == 0:                                 # the residual's own projection
                size, ops = size + 4 * C * wide + 8 * C, ops + 4 * C * wide * side**2
            wide = 4 * C
    return size + 2048 * 1000 + 1000, 2 * (ops + 2048 * 1000)


# %% [markdown]
# The paper's table prints 25.6 million parameters and 8.2 billion operations for ResNet-50; with attention 18.0
# million and 7.0 billion (7.2 where the first layer is attention, too).

# %%
(size, ops), (less, fewer) = resnet50(), resnet50(attention=True)
print(f"ResNet-50      {size / 1e6:.1f} million parameters, {ops / 1e9:.1f} billion operations")
print(f"with attention {less / 1e6:.1f} million parameters, {fewer / 1e9:.1f} billion operations")
print(f"saved: {1 - less / size:.1%} of the parameters, {1 - fewer / ops:.1%} of the operations")

# %% [markdown]
# The parameters agree to the digit printed (and the paper's 29 % is rounded down). The operations are the paper's row
# with a convolution as first layer. With attention there, too, it prints 7.2 billion; $1 - 7.2 / 8.2$ are the 12 %.
#
# Mind what was counted: $3C^2$ are matrices that read *all* channels, for each head, as in lesson 04. The paper's text
# (section 2.2) says something else: each of its eight heads gets a slice of the *input* only. That would be $3C^2/8$,
# 14.7 million in all, 42 % fewer. Text and table don't agree; our code follows the table.
#
# **Memory.** Many programs gather the neighbourhoods first, with `unfold`: a copy of all keys and of all values for
# each offset, $k^2$ pictures of $C$ channels. Shifting needs scores, $k^2$ numbers per pixel and head, and no copies
# of channels. For a batch of 64 with 32 channels, 4 heads, 28 × 28:

# %%
for k in (3, 7):
    copies, scores = 64 * 32 * k * k * 28 * 28, 64 * 4 * k * k * 28 * 28
    gathered = F.unfold(torch.empty(64, 32, 28, 28), k, padding=k // 2).numel()
    print(f"k = {k}: keys unfolded {4 * gathered / 1e6:5.1f} MB (on paper {4 * copies / 1e6:5.1f}),"
          f" scores {4 * scores / 1e6:4.1f} MB")

# %% [markdown]
# And the clock? FLOPs are not seconds:

# %% tags=["nbval-ignore-output"]
x = torch.randn(64, 32, 14, 14)
layers = {"convolution 3 × 3": convolution(), "local attention 3 × 3": LocalAttention(32, 3),
          "local attention 7 × 7": LocalAttention(32, 7), "all pixels": AttentionLayer2d(32, 32, 32)}
for name, layer in layers.items():
    start = time.process_time()
    with torch.no_grad():
        for _ in range(5):
            layer(x)
    print(f"{name:21} {200 * (time.process_time() - start):6.1f} ms")

# %% [markdown]
# Fewer operations, and many times slower. For convolutions people have tuned their programs for many years; for local
# attention there were none, and the paper says so itself. Papers count operations because they don't depend on who has
# tuned what. You wait for the clock.
#
# ### 6.4 Who learns better?
#
# The same network as before, with another `mixer`. Six kinds (the five below, and section 5.2's), three seeds each;
# that takes longer than a lesson, so `data/wardrobe.py` has run the cells above and written down what came out. Which
# order do you expect? Think of *place* and *content*.

# %% tags=["recorded"]
mixers = {
    "no neighbours (1 × 1)": lambda: nn.Conv2d(32, 32, 1, bias=False),
    "all pixels, content only": lambda: AttentionLayer2d(32, 32, 32),
    "local 3 × 3, content only": lambda: LocalAttention(32, 3, relative=False),
    "local 3 × 3, relative": lambda: LocalAttention(32, 3),
    "convolution 3 × 3": convolution,
}


def work(model):                                            # operations per picture
    local = [each for each in model.modules() if isinstance(each, LocalAttention)]
    own = sum(4 * each.k**2 * 32 * side**2 for each, side in zip(local, (14, 14, 7)))
    return operations(model, torch.zeros(1, 1, 28, 28)) + own  # torch counts matrix products alone


# %% [markdown]
# And what came out:

# %%
from txlib.paths import DATA

recorded = json.loads((DATA / "wardrobe.json").read_text())


def seeds(*names):                                          # accuracies in %, one number per seed
    found = recorded
    for name in names:
        found = found[name]
    return [100 * run["right"] for run in found.values()]


def low_mean_high(values):
    return min(values), sum(values) / len(values), max(values)


# %% [markdown]
# One line per kind, with the mean of three seeds and their range:

# %%
kinds = {name: low_mean_high(seeds("mixers", name)) for name in recorded["mixers"]}
for name, (low, middle, high) in kinds.items():
    run = recorded["mixers"][name]["0"]
    print(f"{name:26} {run['parameters']:6,} parameters, {run['operations'] / 1e6:4.1f} million "
          f"operations: {middle:.1f} % ({low:.1f} to {high:.1f})")

# %% [markdown]
# As a picture:

# %%
plots.ranges(
    kinds, xlabel="right answers on the test (%), mean and range of three seeds",
    title="A small neighbourhood is worth more than all pixels",
    alt="Mean and range of three seeds, in per cent: " + "; ".join(
        f"{name} {middle:.1f} ({low:.1f} to {high:.1f})"
        for name, (low, middle, high) in kinds.items()) + ".",
)

# %% [markdown]
# - **All pixels, by content alone**, beat no neighbours at all by less than three points, with the most operations of
#   all six. A bag of pixels remains a bag.
# - **Nine neighbours, by content alone**: twelve points more. A neighbourhood *is* a place: "somewhere around me" is
#   most of what there is to know.
# - **Which of the nine** brings nothing that three seeds could show. (Don't conclude that it never does. In the paper,
#   on ImageNet, relative positions are better than absolute ones, and these better than none.)
# - **The convolution** is ahead by about two and a half points, and has 2.8 times the parameters and 2.3 times the
#   operations.
# - **A non-local block more**: no difference that three seeds could show.
#
# ## 7 The Vision Transformer
#
# ### 7.1 Few tokens: patches
#
# Dosovitskiy et al. (2021) take the third way out, the plainest. Cut the picture into squares, $16 \times 16$ pixels
# each; write each square's numbers into one vector; multiply by a matrix. That is a token. A picture of $224 \times
# 224$ becomes a sentence of 196 words, and from there on it is an encoder like BERT's (lesson 14). "An image is worth
# 16 × 16 words."
#
# Chunks that don't overlap, each multiplied by the same matrix: you have met that.

# %%
torch.manual_seed(0)
x, conv = torch.randn(2, 3, 32, 32), nn.Conv2d(3, 48, kernel_size=16, stride=16)
patches = rearrange(x, "n c (h a) (w b) -> n (h w) (c a b)", a=16, b=16)  # (N, 4, 768)
tokens = patches @ conv.weight.flatten(1).T + conv.bias     # (N, 4, 48)
prove_equal(tokens, conv(x).flatten(2).mT, what="A matrix on patches, and a convolution")

# %% [markdown]
# So the first layer of a Vision Transformer *is* a convolution, with a kernel as large as its stride. What comes after
# is not. Two more things from BERT: a **class token** in front, a learned vector that belongs to no patch; what becomes
# of it is read out. And **positions**, one learned vector for each patch, added. No one tells them what is beside what.
#
# Our pictures are small, and so are our patches: $4 \times 4$ pixels, 49 tokens. Blocks as lesson 06 has them,
# pre-norm:


# %% tags=["recorded"]
class Block(nn.Module):
    def __init__(self, d=48, heads=4):
        super().__init__()
        self.norm_1, self.attention = LayerNorm(d), MultiHeadAttention(d, heads)
        self.norm_2, self.network = LayerNorm(d), FeedForward(d, 2 * d, activation="gelu")

    def forward(self, x):                                   # (N, 1 + K, d)
        x = x + self.attention(self.norm_1(x))              # (N, 1 + K, d)
        return x + self.network(self.norm_2(x))             # (N, 1 + K, d)


# %% [markdown]
# And the model:


# %% tags=["recorded"]
class ViT(nn.Module):
    def __init__(self, d=48, layers=4, patch=4, positions=True):
        super().__init__()
        self.patch, self.embed = patch, nn.Linear(patch * patch, d)
        self.token = nn.Parameter(torch.zeros(1, 1, d))     # the class token
        table = torch.randn(1, 1 + (28 // patch) ** 2, d) * 0.02 * positions
        self.position = nn.Parameter(table, requires_grad=positions)
        self.blocks = nn.Sequential(*(Block(d) for _ in range(layers)))
        self.norm, self.head = LayerNorm(d), nn.Linear(d, 10)

    def forward(self, x):                                   # (N, 1, 28, 28)
        p = self.patch
        x = rearrange(x, "n c (h a) (w b) -> n (h w) (c a b)", a=p, b=p)  # (N, K, 16)
        x = torch.cat([self.token.expand(len(x), -1, -1), self.embed(x)], dim=1)  # (N, 1 + K, d)
        x = self.blocks(x + self.position)                  # (N, 1 + K, d)
        return self.head(self.norm(x[:, 0]))                # (N, 10): from the class token


# %% [markdown]
# How much work is it, beside the convolutional network? A fair comparison needs to know first:

# %%
with torch.device("meta"):
    for name, each in {"convolutional": network(convolution), "ViT": ViT()}.items():
        size = sum(part.numel() for part in each.parameters())
        work_of_one = operations(each.eval(), torch.empty(1, 1, 28, 28)) / 1e6
        print(f"{name:13} {size:6,} parameters, {work_of_one:.1f} million operations per picture")

# %% [markdown]
# About the same work for one picture; the ViT has 2.8 times the parameters. With the same number of steps and the same
# batches, that makes an honest race in operations (not in seconds, and not in parameters). A short training:

# %% tags=["nbval-ignore-output"]
vit = train(ViT, train_x, train_y, lr=2e-3, what="a Vision Transformer")
expect("Right answers (%)", 100 * accuracy(vit, test_x, test_y), 65, 90)

# %% [markdown]
# Before you believe in any of these networks, give them a rival that knows *nothing* of pictures: two `Linear` layers
# on all 784 pixels. And ask one question more. What if each test picture stands three pixels lower, and three further
# to the right?

# %% tags=["nbval-ignore-output"]
def two_layers():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


rival = train(two_layers, train_x, train_y, lr=2e-3, what="two layers")
moved = torch.roll(test_x, (3, 3), dims=(2, 3))             # (2000, 1, 28, 28)
for name, each in {"convolutional": plain, "ViT": vit, "two layers": rival}.items():
    print(f"{name:13} {operations(each, test_x[:1]) / 1e6:4.1f} million operations: "
          f"{accuracy(each, test_x, test_y):.1%}, moved by 3 {accuracy(each, moved, test_y):.1%}")

# %% [markdown]
# (On a CPU torch's counter does not see the ViT's scores; the 9.4 above has them.) The two layers win, with about a
# hundredth of the operations. How can that be? In Fashion-MNIST each thing stands upright, in the middle, at one size.
# Then a fixed weight for each pixel goes far, and is learned fast. Our 300 steps of 32 pictures are next to nothing for
# networks of several layers; given hours, convolutions reach 90 % and more here.
#
# But move the pictures, by a tenth of their width, and the winner comes last. (`roll` puts what leaves at one edge in
# again at the other, where most pictures are black.) What each of them has been *told* comes out: the convolution, that
# a thing is the same thing elsewhere. The ViT has been told half of it: one matrix for all patches. The two layers have
# only seen what they have seen. Even the convolution loses fourteen points. Its last places are four pixels wide, and
# three pixels are no whole place; and what comes in at the other edge is new to all. Try a move of 4, too.
#
# ### 7.2 Break it: positions
#
# Take away what says where. Three ways: set the trained positions to zero, exchange the patches of each picture (all
# in the same new order), and train a model that has never had any (recorded, three seeds).

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
whole = accuracy(vit, test_x, test_y)
cut = rearrange(test_x, "n c (h a) (w b) -> n (h w) c a b", a=4, b=4)[:, torch.randperm(49)]
shuffled = rearrange(cut, "n (h w) c a b -> n c (h a) (w b)", h=7)
kept = vit.position.detach().clone()
print(f"as trained         {whole:.1%}")
print(f"patches exchanged  {accuracy(vit, shuffled, test_y):.1%}")
vit.position.data.zero_()
print(f"positions zero     {accuracy(vit, test_x, test_y):.1%}")
print(f"both               {accuracy(vit, shuffled, test_y):.1%}")
vit.position.data = kept

# %% [markdown]
# Recorded, three seeds each, beside the convolutional network of about the same work:

# %%
for kind, name in (("transformers", "ViT"), ("transformers", "ViT without positions"),
                   ("mixers", "convolution 3 × 3")):
    print(f"{name:22}", "  ".join(f"{each:.1f} %" for each in seeds(kind, name)))

# %% [markdown]
# The patches' order matters: eight points are lost when they are exchanged. With positions at zero, the model can't
# tell the two apart (the last two numbers are the same): its class token sees a bag of 49 patches. And yet that bag is
# worth a lot. A patch of a sleeve is a sleeve wherever it stands, and a model trained without any positions is only
# three or four points worse. In the paper (five pictures per class of ImageNet; its appendix D.4) it is about three.
#
# Beside the convolution, at about the same operations, the ViT is five points behind, after 300 steps, in which it has
# seen each picture about once.
#
# ### 7.3 What positions have learned
#
# The 49 vectors began as noise, and no loss ever mentioned rows or columns. Compare them: take off
# their mean, which all have in common, and then take the cosine of each with each. Below, the small map in row $i$ and
# column $j$ belongs to the patch there: how much its vector resembles that of each other patch. What do you expect?

# %% tags=["recorded"]
def resemblance(table):                                     # (1, 1 + K, d)
    own = F.normalize(table[0, 1:] - table[0, 1:].mean(dim=0), dim=-1)  # (K, d)
    return own @ own.T                                      # (K, K)


# %% [markdown]
# Bright is alike:

# %% tags=["nbval-ignore-output"]
alike = resemblance(vit.position.detach())                  # (K, K)
plots.pictures(
    alike.view(49, 7, 7), columns=7, size=0.62, span=(-0.4, 0.8),
    title="Near patches have learned similar vectors, and so have both edges",
    alt="Forty-nine small maps of 7 × 7 in a grid of 7 × 7. In most, the brightest cells are the patch "
    "itself and those beside it. In those of the left and right edge both edges are bright.",
)

# %% [markdown]
# As a number: the mean cosine at each distance (rows plus columns apart), beside that of the noise they began as.

# %% tags=["nbval-ignore-output"]
place = torch.cartesian_prod(torch.arange(7.0), torch.arange(7.0))  # (K, 2)
apart = torch.cdist(place, place, p=1)                      # (K, K)
for name, table in {"learned": alike, "noise": resemblance(torch.randn(1, 50, 48))}.items():
    means = (table[apart == distance].mean() for distance in range(1, 9))
    print(f"{name:8} 1 to 8 apart:", "  ".join(f"{each:5.2f}" for each in means))

# %% [markdown]
# Patches side by side resemble each other; three apart they no longer do. So from nothing but labels the model has
# found that its tokens have neighbours. And it has found something that rows and columns would not have told it: the
# left and the right edge are alike. There, clothes show nothing. In the paper's figure, after much longer training,
# rows and columns stand out as straight lines.
#
# ### 7.4 What does it look at? Attention rollout
#
# The class token's weights in the last layer say what it takes from where. But "where" are tokens of the *last* layer,
# each of which has taken from others before. Abnar and Zuidema (2020) follow the way back. Each layer mixes tokens with
# its weights $A$ (the mean of its heads), and the residual passes each one on unchanged, so count both, half and
# half, and multiply the layers:
#
# $$\tilde A^{(l)} = \tfrac12 A^{(l)} + \tfrac12 I \qquad R = \tilde A^{(L)} \cdots \tilde A^{(2)} \tilde A^{(1)}$$
#
# The rows of $R$ still sum to one. The class token's row, without the class token itself, is a map of the picture.
# (Lesson 31 will take the same product, with ones in place of weights, to ask how far a stack of layers can see.)


# %%
from txlib.attention import recording


@torch.no_grad()
def rollout(model, x, residual=0.5):                        # (N, 1, 28, 28)
    with recording(model) as seen:
        model(x)
    R = torch.eye(50)                                       # (1 + K, 1 + K)
    for layer in seen.values():                             # the first layer first
        A = layer[0].mean(dim=1)  # (N, 1 + K, 1 + K): the mean of the heads
        R = (residual * torch.eye(50) + (1 - residual) * A) @ R  # (N, 1 + K, 1 + K)
    return R[:, 0, 1:].view(-1, 7, 7)  # (N, 7, 7): from the class token to the patches


# %% [markdown]
# On the six pictures of section 5.2:

# %% tags=["nbval-ignore-output"]
chosen = [0, 3, 5, 8, 11, 16]
maps = rollout(vit, test_x[chosen])                         # (6, 7, 7)
low = maps.amin((1, 2), keepdim=True)
plots.pictures(
    test_x[chosen, 0], heat=maps - low, names=[names[each] for each in test_y[chosen]], size=1.5,
    title="What the class token has taken, followed back to the input: a few patches",
    alt="Six pictures of clothes, overlaid in orange by how much of each patch is in the class token. "
    "In each one or two patches stand out, such as a heel, the place where legs part, or a hem.",
)

# %% [markdown]
# A map is a claim: "these patches matter". Test it. Black out the eight patches that the map finds most important, and
# compare with eight patches drawn at random. All are chosen *among those that show something*, since black patches
# can't be missed.

# %% tags=["nbval-ignore-output"]
def without(x, score, count=8):  # black out the patches with the highest score
    gone = torch.zeros(len(x), 49).scatter(1, score.flatten(1).topk(count).indices, 1.0)  # (N, K)
    gone = gone.view(-1, 1, 7, 7).repeat_interleave(4, 2).repeat_interleave(4, 3)  # (N, 1, 28, 28)
    return torch.where(gone > 0, x.amin(), x)


torch.manual_seed(0)
x, y = test_x[:1000], test_y[:1000]
light = reduce(x, "n c (h a) (w b) -> n h w", "mean", a=4, b=4)  # (N, 7, 7)
shows = light > light.amin() + 0.05
with torch.no_grad(), recording(vit) as seen:
    vit(x)
last = list(seen.values())[-1][0].mean(dim=1)[:, 0, 1:].view(-1, 7, 7)  # (N, 7, 7)
scores = {"nothing": None, "eight at random": torch.rand_like(light),
          "eight by the last layer": last, "eight by rollout": rollout(vit, x)}
for name, score in scores.items():
    seen_by = x if score is None else without(x, score.masked_fill(~shows, -1))
    print(f"{name:24} black: {accuracy(vit, seen_by, y):.1%}")

# %% [markdown]
# The patches that rollout names are more than decoration: without them the model loses about twice as much as without
# as many others. The last layer alone names them nearly as well. (Here. In deep models, the authors found, it says less
# and less, since each token there is a mixture of all.) And mind what the test does *not* say: a map of what was looked
# at is no reason why. A black square is itself something that the model has never seen.
#
# ## 8 Little data, and what mends it
#
# A convolution is told that neighbours belong together, and that a thing is the same thing one pixel further on. A
# Vision Transformer is told next to nothing, and must learn it from pictures. The paper says what that costs: trained
# on ImageNet's 1.3 million pictures, ViT lost to ResNets of its size; after 300 million, it won.
#
# Our scale is smaller. Ten pictures of each class, a hundred in all; 600 steps, so that each picture is seen about
# two hundred times; both networks, three seeds (recorded).
#
# One more thing can tell a model what a convolution knows: *pictures*. A shoe is the same shoe when it looks to the
# left, or stands two pixels higher. **Augmentation** draws such a copy each time a picture is seen:


# %% tags=["recorded"]
def augment(x):  # (N, 1, 28, 28): half of them mirrored, all moved
    x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(-1), x)
    down, right = torch.randint(-2, 3, (2, len(x), 1, 1))   # (N, 1, 1) each
    rows = (torch.arange(28)[:, None] + down).clamp(0, 27)  # (N, 28, 1)
    columns = (torch.arange(28) + right).clamp(0, 27)       # (N, 1, 28)
    return x[torch.arange(len(x))[:, None, None], 0, rows, columns][:, None]


# %% [markdown]
# A shoe, as the model meets it in eight steps:

# %%
torch.manual_seed(0)
shoe = test_x[test_y == 9][:1]
plots.pictures(
    augment(shoe.expand(8, -1, -1, -1))[:, 0], size=1.1,
    title="One boot, eight times: to the left, to the right, moved",
    alt="Eight small pictures of the same boot, some mirrored, each moved by up to two pixels.",
)

# %% [markdown]
# Guess first: which of the two networks gains more by augmentation?

# %%
few = {name: low_mean_high(seeds("few", name)) for name in recorded["few"]}
for name, (low, middle, high) in few.items():
    print(f"{name:24} {middle:.1f} % ({low:.1f} to {high:.1f})")

# %% [markdown]
# Drawn:

# %%
plots.ranges(
    few, xlabel="right answers on the test (%), mean and range of three seeds", 
    title="A hundred pictures: augmentation mends most of what the ViT lacks",
    alt="After training on a hundred pictures, mean and range of three seeds: " + "; ".join(
        f"{name} {middle:.1f} ({low:.1f} to {high:.1f})"
        for name, (low, middle, high) in few.items()) + ".",
)

# %% [markdown]
# With a hundred pictures the Vision Transformer is more than thirteen points behind. Augmentation brings it nine of
# them; to the convolution it brings one or two, for most of it had been told already. What one model has built in, the
# other can be shown: as more pictures, as copies of those at hand, or, in DeiT, by a teacher.
#
# `txlib train vision --data fashion` trains a larger one for as long as you like.
#
# ## 9 Open the library
#
# All of it is in txlib. The layer, whose parameters have the same names:

# %%
from txlib import attention as library

show_source(library.AttentionLayer2d.forward)

# %% [markdown]
# `mechanism` is any of the course's: dense, FlashAttention, a window. Same numbers with the same weights:

# %%
torch.manual_seed(0)
x = torch.randn(2, 8, 7, 6)
mine, theirs = AttentionLayer2d(8, 16, 12), library.AttentionLayer2d(8, 16, 12)
theirs.load_state_dict(mine.state_dict())
prove_equal(mine(x), theirs(x), what="AttentionLayer2d by hand and the library's")

# %% [markdown]
# The block in its four forms:

# %%
called = {"embedded": "embedded_gaussian", "dot": "dot_product"}
for form in ("gaussian", "embedded", "dot", "concatenation"):
    mine = NonLocal(8, form, zero=False)
    theirs = library.NonLocalBlock(8, called.get(form, form))
    copied = {"g": mine.g, "z": mine.out}
    if form != "gaussian":
        copied |= {"theta": mine.theta, "phi": mine.phi}
    for name, each in copied.items():
        getattr(theirs, name).weight.data = each.weight.data[:, :, None, None]
        getattr(theirs, name).bias.data = each.bias.data
    if form == "concatenation":
        theirs.pair.weight.data = mine.to_score.weight.data
    prove_equal(mine(x), theirs(x), what=f"Non-local block, {form:13}")

# %% [markdown]
# The dot-product form has a surprise. Without a softmax, $(\theta\, \varphi^\top) g = \theta\, (\varphi^\top g)$: done
# from the right, no score is ever written down, and the cost is linear in the number of pixels. That is linear
# attention, which lesson 32 is about, in 2018.
#
# Local attention, with a window as a mask and without:

# %%
torch.manual_seed(0)
mine, theirs = LocalAttention(8, 3, heads=2), library.LocalAttention2d(8, 8, kernel=3, heads=2)
for name in ("query", "key", "value"):
    getattr(theirs, name).weight.data = getattr(mine, name).weight.data
for one, other in ((theirs.row, mine.rows), (theirs.column, mine.columns)):
    one.data = other.data[:, None].expand(-1, 2, -1).clone()  # (k, heads, d / 2)
prove_equal(mine(x), theirs(x), what="Local attention by hand and the library's")
tables = window_2d(6, 1).dense(42), library.window_2d(6, 1).dense(42)  # (1, 1, K, K) each
prove_equal(*(each.float() for each in tables), what="The window as a mask")

# %% [markdown]
# (The library's heads have vectors $r$ of their own; ours share them.) And the Vision Transformer: the encoder that
# BERT has, on patches.

# %% tags=["nbval-ignore-output"]
from txlib.layers import BlockConfig
from txlib.models.vit import ViTConfig, ViTForImageClassification

block = BlockConfig.of_sizes(d_model=48, heads=4, d_ff=96, activation="gelu", position="learned")
theirs = ViTForImageClassification(ViTConfig(28, 4, block, layers=4, channels=1), labels=10).eval()
renamed = {"embed": "base.patches.projection", "token": "base.special", "head": "classifier",
           "position": "base.position.weight", "norm": "base.encoder.norm"}
inside = {"norm_1": "self_attention_norm", "attention": "self_attention",
          "norm_2": "feed_forward_norm", "network": "feed_forward"}

# %% [markdown]
# Each of our parameters goes under the library's name, in the library's shape:

# %% tags=["nbval-ignore-output"]
shapes, state = theirs.state_dict(), {}
for name, value in vit.state_dict().items():
    first, *rest = name.split(".")
    if first == "blocks":
        name = ".".join(["base.encoder.layers", rest[0], inside[rest[1]], *rest[2:]])
    else:
        name = ".".join([renamed[first], *rest])
    state[name] = value.view(shapes[name].shape)
theirs.load_state_dict(state)
with torch.no_grad():
    prove_equal(vit(test_x[:20]), theirs(test_x[:20]).logits, what="The trained ViT and the library's")

# %% [markdown]
# `load_pretrained` reads a ViT in Hugging Face's format, with all its weights. Pictures of another size are taken too:
# the positions are then interpolated, as if they were a small picture themselves, which is what section 7.3 found them
# to be. With the model trained above, on pictures of $56 \times 56$, made from the same ones by doubling each pixel:

# %% tags=["nbval-ignore-output"]
with torch.no_grad():
    large = F.interpolate(test_x[:500], scale_factor=2)     # (500, 1, 56, 56): 196 patches of 4 × 4
    small = theirs(F.avg_pool2d(large, 2)).logits.argmax(-1)
    whole = theirs(large, interpolate_pos_encoding=True).logits.argmax(-1)
for name, said in {"28 × 28, 49 patches": small, "56 × 56, 196 patches": whole}.items():
    print(f"{name:21} {(said == test_y[:500]).float().mean():.1%}")

# %% [markdown]
# It works without a step of training, and loses three of ten correct answers: a patch of $4 \times 4$ now holds a
# quarter of what it held, and such patches the model has never seen. Therefore the paper fine-tunes at the larger size.
#
# ## 10 What it costs for a photograph
#
# Back to $224 \times 224$. What is a token, how many are there, and what do all scores of one head and layer hold? And
# what does all of ViT-B/16 cost (12 layers, $d = 768$)? On paper: each layer has $12 d^2$ parameters in its matrices,
# each token uses them once, and scores and sums take $2 n d$ per token more. Twice that in operations:

# %%
tokens = {"pixels": 224**2, "patches of 4": 56**2, "patches of 14": 16**2, "patches of 16": 14**2}
for name, n in tokens.items():
    print(f"{name:13} n = {n:6,}, {n * n:13,} pairs, {4 * n * n / 1e6:9,.1f} MB of scores")
n, d = 197, 768
paper = 12 * 2 * n * (12 * d * d + 2 * n * d) + 2 * 196 * 768 * d
print(f"ViT-B/16, on paper: {paper / 1e9:.1f} billion operations")

# %% [markdown]
# And counted, on the library's model, without a single number in it (the meta device has shapes only). It has no layer
# for the classes yet; a thousand of them would be 0.8 million parameters more:

# %%
from txlib.models import sizes

with torch.device("meta"):
    model = sizes.build(sizes.VIT["B/16"])
    size = sum(each.numel() for each in model.parameters())
    counted = operations(model, torch.empty(1, 3, 224, 224))
print(f"ViT-B/16: {size / 1e6:.1f} million parameters, {counted / 1e9:.1f} billion operations")
print(f"ResNet-50: {resnet50()[0] / 1e6:.1f} million, {resnet50()[1] / 1e9:.1f} billion")

# %% [markdown]
# Four times a ResNet-50. Papers compare at equal *operations*, or at equal time for training, and say which. "More
# accurate" alone means little. And scores are not the trouble any more: of ViT-B/16's operations, $2nd$ beside $12 d^2$
# are 4 %.
#
# ## 11 What became of it
#
# **DeiT** (Touvron et al. 2021) trained ViT on ImageNet alone, with much augmentation and a convolutional network as
# its teacher: section 8's lesson, at scale. **Swin** (Liu et al. 2021) brought the window back: attention within
# squares of $7 \times 7$ patches, which are shifted by half a square from layer to layer; section 6, with cheaper
# neighbourhoods. **MAE** (He et al. 2022) hides three quarters of the patches and trains to draw them, as BERT does
# with words, and needs no labels. **CLIP** (Radford et al. 2021) has a ViT for pictures and a Transformer for their
# captions, and trains them to agree. **DETR** (Carion et al. 2020) finds things in pictures: on top of a convolutional
# network an encoder, a decoder and a hundred learned queries. Models that talk about pictures feed patches to a decoder
# as if they were words.
#
# And convolutions came back, too: **ConvNeXt** (Liu et al. 2022) took over all that had become usual with ViT, except
# attention, and drew level. Much of what looked like attention's merit was training's.

# %% [markdown]
# ## 12 Quiz
#
# Decide first, then open an answer.
#
# **1. `nn.Linear(64, 10)` is called on a batch of feature maps of shape (32, 64, 7, 7). What happens?**
#
# <details><summary>A. It acts on the 64 channels: (32, 10, 7, 7)</summary>
#
# It acts on the last axis, and that has size 7.
# </details>
# <details><summary>B. An error: the last axis is 7, not 64</summary>
#
# Right, and you are lucky. With maps of 64 × 64 it would have run, on the columns.
# </details>
# <details><summary>C. It flattens everything after the batch first</summary>
#
# Nothing is flattened unless you say so.
# </details>
#
# **2. You want (N, K, C) from (N, C, H, W), and write `x.reshape(N, H * W, C)`. What is wrong?**
#
# <details><summary>A. Nothing, the shape is right</summary>
#
# The shape is. The numbers are not where they belong: reshape moves nothing.
# </details>
# <details><summary>B. Each "pixel" now holds neighbouring pixels of one channel</summary>
#
# Right. Join the places first, then swap: `x.flatten(2).mT`.
# </details>
# <details><summary>C. Rows and columns are exchanged</summary>
#
# They are in order. The channels are not.
# </details>
#
# **3. A non-local block is put into a trained network. Why does nothing change at first?**
#
# <details><summary>A. Its softmax begins uniform</summary>
#
# It need not, and an average of everything would be a change.
# </details>
# <details><summary>B. Its last matrix is zero, and there is a residual</summary>
#
# Right: $z_i = 0 + x_i$.
# </details>
# <details><summary>C. Its $\theta$ and $\varphi$ are zero</summary>
#
# Then all weights would be equal, and the mean of all values would be added.
# </details>
#
# **4. Local attention with $k = 3$, without relative positions. Which of these can it not do, whatever its weights?**
#
# <details><summary>A. Tell a left edge (dark, bright) from a right edge (bright, dark)</summary>
#
# Right. The nine pixels are the same bag in both.
# </details>
# <details><summary>B. Blur</summary>
#
# Equal weights are a blur.
# </details>
# <details><summary>C. Take only from pixels that resemble the middle one</summary>
#
# That is just what content alone can do.
# </details>
#
# **5. A convolution and local attention go from $k = 3$ to $k = 7$. What happens to their parameters?**
#
# <details><summary>A. Both grow by 49/9</summary>
#
# The convolution does: a matrix for each offset.
# </details>
# <details><summary>B. The convolution's grow by 49/9, attention's hardly</summary>
#
# Right: three matrices as before, and a few more vectors of half a head's width.
# </details>
# <details><summary>C. Neither grows, both slide</summary>
#
# A convolution has weights for each offset of its window.
# </details>
#
# **6. A ViT-B/16 trained at 224 × 224 is to read 448 × 448. What is missing?**
#
# <details><summary>A. Nothing: patches are patches</summary>
#
# The patches' matrix fits, the blocks fit. There are 784 patches, and 196 positions.
# </details>
# <details><summary>B. Positions for 588 patches more; interpolate them</summary>
#
# Right, for they form a grid. (And 16 times the pairs.)
# </details>
# <details><summary>C. A larger matrix for the patches</summary>
#
# A patch is 16 × 16 pixels as before.
# </details>

# %% [markdown]
# ## 13 Summary
#
# - `Linear` acts on the last axis, `@` on the last two. To make pixels into tokens, move channels to the end:
#   `rearrange(x, "n c h w -> n (h w) c")`, never `reshape`.
# - A convolution weighs by place, attention by content, local attention with relative positions by both.
# - A non-local block is attention with a bottleneck and a residual, in four forms. With $W_z = 0$ it begins as the
#   identity.
# - Local attention has $3C^2$ parameters where a convolution has $k^2 C^2$. It keeps the $k \times k$ window, which is
#   a mask with $(H(2r+1) - r(r+1))(W(2r+1) - r(r+1))$ pairs.
# - A Vision Transformer is an encoder on patches. Rows and columns are learned, and so is everything else that a
#   convolution is told. That takes pictures.
# - Attention is cheap in operations where channels are many and tokens few. Count before you compare.
#
# **Read** Dosovitskiy et al. 2021, *An Image is Worth 16×16 Words*,
# [arXiv:2010.11929](https://arxiv.org/abs/2010.11929), sections 3 and 4.5. Wang et al. 2018, *Non-local Neural
# Networks*, [arXiv:1711.07971](https://arxiv.org/abs/1711.07971), section 3. Ramachandran et al. 2019, *Stand-Alone
# Self-Attention in Vision Models*, [arXiv:1906.05909](https://arxiv.org/abs/1906.05909), sections 2 and 3. Abnar and
# Zuidema 2020, *Quantifying Attention Flow in Transformers*, [arXiv:2005.00928](https://arxiv.org/abs/2005.00928),
# section 3. Buades, Coll and Morel 2005, *A non-local algorithm for image denoising*, CVPR. Touvron et al. 2021,
# *Training data-efficient image transformers*, [arXiv:2012.12877](https://arxiv.org/abs/2012.12877), section 4. Xiao et
# al. 2017, *Fashion-MNIST*, [arXiv:1708.07747](https://arxiv.org/abs/1708.07747).
#
# **Do** the exercise [21_vision](../exercises/exercise_21_vision.ipynb). Then go on to
# [22 Music](22_music.ipynb).
