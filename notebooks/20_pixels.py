# %% [markdown] lesson={"part": "III Beyond text", "builds": "attention over pixels, non-local blocks, local attention against convolution; what each is told about pictures"}
# # 20 · Pixels as tokens
#
# **After this lesson you will be able to**
#
# - say what `Linear` and `@` do to a tensor with four axes, and move channels to where attention wants them;
# - say what a convolution and an attention layer are told about pictures (inductive bias), and test for it;
# - write attention over the pixels of a picture, in all forms of the non-local block, and put it into a trained network
#   without breaking it;
# - write stand-alone local attention next to the convolution that it replaces, and count parameters and operations of
#   both.
#
# **You need** lessons 04 to 06; lesson 03's masks. **It takes** about 60 minutes to read and try; all cells together
# run in about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: pictures have no words
#
# So far everything was a sentence: a row of tokens. What is the token of a picture? The imports:

# %% tags=["recorded"]
import json
import time

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from txlib import plots
from txlib.attention import Mask
from txcourse.lesson import expect, predict, predicted, progress
from txcourse.lesson import prove_equal, show_source

torch.set_num_threads(1)  # so that timings are comparable

# %% [markdown]
# The data: **Fashion-MNIST**, small gray photographs of clothes in ten classes (Xiao et al. 2017). The course ships a
# part of it.

# %% tags=["recorded"]
from txlib.data import fashion

clothes = fashion()
mean, deviation = 0.286, 0.353  # of the training pixels


def as_input(pictures):  # from 0 … 1 to mean 0 and deviation 1
    return (pictures.pixel_values - mean) / deviation, pictures.labels


train_x, train_y = as_input(clothes.train)  # (10000, 1, 28, 28), (10000,)
test_x, test_y = as_input(clothes.test)  # (2000, 1, 28, 28), (2000,)
names = clothes.train.names

# %% [markdown]
# A batch of pictures has four axes: *N* pictures, *C* channels (here one, in color photographs three), *H* rows, *W*
# columns. torch wants them in this order, NCHW: the training pictures are $10000 \times 1 \times 28 \times 28$.

# %% jupyter={"source_hidden": true}
plots.pictures(
    torch.stack([test_x[test_y == each][0, 0] for each in range(10)]), names=names, columns=5,
    title="Ten classes; some pairs are hard to tell apart",
    alt="Ten small gray photographs on black: " + ", ".join(names) + ".",
)

# %% [markdown]
# Let each pixel be a token, and let attention compare every pair. How many pairs is that? A picture of Fashion-MNIST
# has $28 \cdot 28$ pixels; networks for photographs usually get $224 \cdot 224$.

# %%
for side in (28, 224):
    n = side * side
    print(f"{side:3} × {side:3}: n = {n:6,} pixels, {n * n:13,} pairs; "
          f"scores of one head: {4 * n * n / 1e9:6.3f} GB")

# %% [markdown]
# So there are two problems. **Where?** A row of pixels has forgotten which of them are neighbors, and attention does
# not ask. **How many?** Attention grows with the square of the length, and here the length is a square already. This
# lesson and the next have three answers: few pixels (the non-local block, deep inside a network, where pictures have
# become small), few neighbors (local attention), and few tokens (patches, lesson 21).
#
# ## 2 The idea in one picture
#
# We have pixels, and attention. What has one to do with the other? Take a task in which nothing is learned. A picture
# is noisy. To clean a pixel, average it with others: the noise averages out. With *which* others?
#
# - **By place**: with its neighbors, near ones most. That is a blur. A blur is a convolution: around each pixel
#   the same weights, whatever is there.
# - **By content**: with pixels that *look alike*, wherever they are. Describe pixel $i$ by the $5 \times 5$ pixels
#   around it, $p_i$, and give pixel $j$ the weight $e^{-\lVert p_i - p_j \rVert^2 / h}$. These are the **non-local
#   means** of Buades, Coll and Morel (2005).
#
# Write the second one out, and you will recognize it:
#
# $$\frac{-\lVert p_i - p_j\rVert^2}{h} = \frac{2\, p_i^\top p_j - \lVert p_j \rVert^2 - \lVert p_i\rVert^2}{h}
# \qquad\Rightarrow\qquad
# y_i = \sum_j \mathrm{softmax}_j\Big(\frac{2\, p_i^\top p_j - \lVert p_j\rVert^2}{h}\Big)\, x_j$$
#
# The last term is the same for all $j$, so softmax drops it. Queries and keys are patches, values are pixels: this is
# attention, and thirteen years later networks took over its name (section 5).


# %%
def by_content(noisy, h=0.5):  # (N, 1, H, W)
    patches = F.unfold(noisy, 5, padding=2).mT  # (N, K, 25), K = H · W pixels
    length = (patches**2).sum(dim=-1)  # (N, K)
    score = 2 * patches @ patches.mT - length[:, None, :]  # (N, K, K)
    return (score / h).softmax(dim=-1)  # (N, K, K)


def by_place(side, spread=0.6):
    along = torch.arange(float(side))
    place = torch.cartesian_prod(along, along)  # (K, 2): row and column
    far = torch.cdist(place, place)  # (K, K)
    return (-(far**2) / (2 * spread**2)).softmax(dim=-1)  # (K, K)


# %% [markdown]
# Fifty pictures with noise, cleaned in both ways. A picture's numbers go from 0, black, to 1, white; the error is the
# root of the mean square. (`h` and `spread` are about the best for each, on these same fifty pictures.)

# %%
torch.manual_seed(0)
clean = clothes.test.pixel_values[:50]  # (50, 1, 28, 28)
noisy = clean + 0.15 * torch.randn_like(clean)  # (50, 1, 28, 28)
ways = {"place": by_place(28).expand(50, -1, -1), "content": by_content(noisy)}
shown = {"not cleaned": noisy}
for name, weight in ways.items():  # (50, K, K)
    shown[name] = (weight @ noisy.flatten(2).mT).mT.view_as(clean)
for name, pictures in shown.items():
    print(f"{name:11}: error {(pictures - clean).pow(2).mean().sqrt():.3f}")

# %% [markdown]
# Content wins. What does it look at? One pixel of one picture, and what it takes from all others. (The stronger the
# orange, the more: drawn is the root of each weight, or the many small ones would not be seen.)

# %% jupyter={"source_hidden": true}
one, (row, column) = 1, (14, 6)  # a pixel of a sleeve
dim = 0.25 * clean[one, 0]  # (28, 28)
taken = [weight[one, 28 * row + column].view(28, 28).sqrt() for weight in ways.values()]
for weight in taken:
    weight[row, column] = 0  # what it takes from itself is not shown
plots.pictures(
    torch.stack([noisy[one, 0], dim, dim, clean[one, 0], shown["place"][one, 0], shown["content"][one, 0]]),
    heat=torch.stack([torch.zeros(28, 28), *taken, *torch.zeros(3, 28, 28)]), span=(0, 1), size=2.2, columns=3,
    names=["noisy", "weights by place", "weights by content", "clean", "cleaned by place", "cleaned by content"],
    title="By place: what is near. By content: other bits of plain cloth, near and far",
    marks=[(row, column)] * 6,
    alt="A pullover six times, one pixel of its sleeve marked. Above: noisy; with the weights by place, a spot around "
    "the pixel; with the weights by content, scattered over plain cloth. Below: clean; cleaned by place, blurred; "
    "cleaned by content, flat where it is flat, with its edges kept.",
)

# %% [markdown]
# Keep these two words, *place* and *content*, for the rest of the lesson. A convolution weighs by place alone.
# Attention, as lesson 03 has it, weighs by content alone. Local attention with relative positions will weigh by both.
#
# ## 3 More than two axes
#
# We want layers that learn such weights. What is missing is a way to feed them pictures: all matrices so far had a
# batch axis in front, sometimes one for heads, and pictures bring more. Two rules suffice for any number of axes:
#
# - `Linear(a, b)` acts on the **last** axis, of size $a$. All others are batch.
# - `@` multiplies the matrices in the **last two** axes. All others are batch, and are broadcast.
#
# Guess the three shapes before you read them:

# %%
x = torch.randn(100, 2, 3, 4)
A, B = torch.randn(11, 9, 2, 3), torch.randn(11, 9, 3, 4)
print("Linear(4, 11) on (100, 2, 3, 4):      ", tuple(nn.Linear(4, 11)(x).shape))
print("(11, 9, 2, 3) @ (11, 9, 3, 4):        ", tuple((A @ B).shape))
print("(11, 1, 2, 3) @ (9, 3, 4), broadcast: ", tuple((A[:, :1] @ B[0]).shape))
products = [A[i, j] @ B[i, j] for i in range(11) for j in range(9)]
by_hand = torch.stack(products).view(11, 9, 2, 4)
prove_equal(A @ B, by_hand, what="99 products at once and one by one")

# %% [markdown]
# `Linear(4, 11)` has not asked what the axis of size 4 *means*. On a batch of pictures, NCHW, the last axis is
# *columns*. `nn.Linear(28, 5)(train_x)` runs without an error, and mixes the left edge with the right. What queries,
# keys and values should mix are channels: a token is a pixel, and its vector is the pixel's channels. So the channels
# must become the last axis, and both axes of place one: $N \times C \times H \times W \;\to\; N \times K \times C$ with
# $K = H \cdot W$.
#
# The most common mistake here is `reshape`. It does not move anything: it takes the numbers in the order in which
# they lie in memory, and puts in new line breaks.

# %%
x = torch.arange(24).view(1, 3, 2, 4)  # (N, C, H, W): channel 0 holds 0 to 7
right = rearrange(x, "n c h w -> n (h w) c")  # (N, K, C)
wrong = x.reshape(1, 8, 3)  # (N, K, C), it says
print("first pixel, moved:   ", right[0, 0].tolist())
print("first pixel, reshaped:", wrong[0, 0].tolist())

# %% [markdown]
# The first pixel's three channels are 0, 8 and 16. The wrong one has three *neighbors* of channel 0. Its shape is
# right, no error appears, and a network even learns something with it. `rearrange`, of the library einops, names each
# axis: before the arrow as it is, after it as you want it. That rules this mistake out. (In torch alone:
# `x.flatten(2).mT`, first join, then swap.)
#
# One more identity for what follows. A convolution with a $1 \times 1$ kernel sees a single pixel: it *is* a `Linear`
# on the channels, the same for each pixel.

# %%
torch.manual_seed(0)
x, conv, linear = torch.randn(2, 3, 6, 5), nn.Conv2d(3, 8, 1), nn.Linear(3, 8)
linear.weight.data, linear.bias.data = conv.weight.data[:, :, 0, 0], conv.bias.data
pixels = linear(rearrange(x, "n c h w -> n (h w) c"))  # (N, K, 8)
moved = rearrange(pixels, "n (h w) c -> n c h w", h=6)  # (N, 8, H, W)
prove_equal(conv(x), moved, what="A 1 × 1 convolution and a Linear on channels")

# %% [markdown]
# ## 4 From convolution to attention over pixels
#
# We can turn pictures into tokens. What is missing is the layer. A convolution with a $k \times k$ kernel computes
# pixel $(i, j)$ of its output from the neighborhood $\mathcal N_k(i, j)$, the $k \times k$ pixels around it:
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

    def forward(self, x):  # (N, dim_x, H, W)
        pixels = rearrange(x, "n c h w -> n (h w) c")  # (N, K, dim_x)
        q, k, v = self.query(pixels), self.key(pixels), self.value(pixels)
        score = q @ k.mT / q.shape[-1] ** 0.5  # (N, K, K)
        out = score.softmax(dim=-1) @ v  # (N, K, dim_v)
        return rearrange(out, "n (h w) c -> n c h w", h=x.shape[2])  # (N, dim_v, H, W)


# %% [markdown]
# What has each layer been told about pictures, before it has seen any? Two tests. **Move** a picture, and see whether
# the output is the same, moved: this is **translation equivariance**: lesson 05's property, with shifts for
# permutations. And **exchange** its pixels in some other order, and see whether the output is the same, exchanged.
# Guess the six answers.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
x, order = torch.randn(2, 8, 14, 14), torch.randperm(196)


def exchange(x):  # (N, C, H, W): the same new order for all pictures
    return x.flatten(2)[..., order].view_as(x)


def move(x):  # down and right, and around the edges
    return x.roll((2, 3), dims=(2, 3))


big = torch.randn(8 * 196, 8 * 196) / 40  # a weight for each pair of numbers
layers = {"attention over pixels": AttentionLayer2d(8, 16, 8),
          "convolution 3 × 3": nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"),
          "a Linear on all of it": lambda x: F.linear(x.flatten(1), big).view_as(x)}
for name, layer in layers.items():
    gaps = [(f(layer(x)) - layer(f(x))).abs().max() for f in (move, exchange)]
    print(f"{name:21} moved {gaps[0]:.0e}, exchanged {gaps[1]:.0e}")

# %% [markdown]
# (The convolution's padding wraps around here, as the move does. With zeros there, it fails at the edges only.) The
# convolution is told two things: what belongs together is *near*, and a thing is the same thing elsewhere. Attention is
# told more than is true: to it a picture is a *bag* of pixels, and any order is as good as any other. The linear layer
# is told nothing. What a layer is told in this way is its **inductive bias**. What is true of pictures, it need not
# learn from them; what is false, no picture can correct. Section 6.4 measures what this is worth.
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
    paper = 2 * K * (3 * 32**2 + 2 * K * 32)
    layers = nn.Conv2d(32, 32, 3, padding=1), AttentionLayer2d(32, 32, 32)
    one, other = (operations(layer, x) / 1e6 for layer in layers)
    print(f"{side:2} × {side:2}: convolution {one:6.1f} million,"
          f" attention {other:7.1f} (on paper {paper / 1e6:7.1f})")

# %% [markdown]
# Twice the side, four times the pixels: four times the convolution, and in the end nearly sixteen times the attention.
# So the first answer to "how many?" is: *not at the beginning of a network*. Convolutional networks shrink their
# pictures on the way; deep inside there are 14 × 14 or 7 × 7 places left, with many channels each.
#
# ## 5 The non-local block
#
# We have a layer that sees everything, but it is too expensive for the early layers, and blind to places. So Wang et
# al. (2018) added attention to existing video networks, deep inside. They write the operation in a form that fits all
# kinds:
#
# $$y_i = \frac{1}{\mathcal C(x)} \sum_j f(x_i, x_j)\, g(x_j)$$
#
# | form | $f(x_i, x_j)$ | $\mathcal C(x)$ |
# | --- | --- | --- |
# | Gaussian (no $\theta$, no $\varphi$) | $e^{x_i^\top x_j}$ | $\sum_j f(x_i, x_j)$ |
# | embedded Gaussian | $e^{\theta(x_i)^\top \varphi(x_j)}$ | $\sum_j f(x_i, x_j)$ |
# | dot product | $\theta(x_i)^\top \varphi(x_j)$ | $K$, the number of positions |
# | concatenation | $\mathrm{ReLU}(w_f^\top [\theta(x_i), \varphi(x_j)])$ | $K$ |
#
# $\theta$ and $\varphi$ are $1 \times 1$ convolutions: queries and keys. $g$ gives the values. An exponential divided
# by its sum is a softmax, so the second form is attention as you know it, without the $\sqrt{d_k}$. (That is the paper;
# the authors' code divides by it.) The last two have no softmax, and their weights need not sum to one. $1/K$ makes an
# average of the sum, so that it does not grow with the picture. (The paper calls this number $N$.) By hand, two pixels
# with $\theta_1 = (1, 0)$, $\varphi_1 = (1, 0)$, $\varphi_2 = (-1, 2)$: the dot products are 1 and $-1$, so pixel 1's
# weights are $\frac12$ and $-\frac12$ in the third form, and softmax(1, −1) = 0.88 and 0.12 in the second.
#
# (You may see the second form written as $y = \mathrm{softmax}(x^\top W_\theta^\top W_\varphi\, x)\, g(x)$ with $x$ of
# shape channels × positions. Check the shapes: the softmax is $K \times K$, and $g(x) = W_g x$ is channels × $K$.
# They don't fit. It must be $y = \mathrm{softmax}(\dots)\,(W_g x)^\top$, or each pixel a row from the start, as here.)
#
# In the concatenation, $w_f^\top [\theta_i, \varphi_j] = w_1^\top \theta_i + w_2^\top \varphi_j$: two numbers per
# pixel, then a sum for each pair. So no tensor of all pairs with all channels is needed:


# %% tags=["recorded"]
def pair_weights(form, x, q, k, w_f):  # (N, K, C), (N, K, C / 2) twice, (C,)
    if form == "gaussian":
        return (x @ x.mT).softmax(dim=-1)  # (N, K, K)
    if form == "embedded":
        return (q @ k.mT).softmax(dim=-1)
    if form == "dot":
        return q @ k.mT / x.shape[1]
    for_q, for_k = w_f.chunk(2)  # (C / 2,) each
    return F.relu((q @ for_q)[:, :, None] + (k @ for_k)[:, None, :]) / x.shape[1]


# %% [markdown]
# The block around it makes two decisions that later work has kept. It is a **bottleneck**: inside, there are half as
# many channels. And it is a **residual**: $z_i = W_z\, y_i + x_i$.


# %% tags=["recorded"]
class NonLocal(nn.Module):
    def __init__(self, dim, form="embedded", zero=True):
        super().__init__()
        self.form, inner = form, dim // 2  # the bottleneck
        self.theta, self.phi, self.g = (nn.Linear(dim, inner) for _ in range(3))
        self.to_score = nn.Linear(2 * inner, 1, bias=False)  # w_f
        self.out = nn.Linear(inner, dim)  # W_z
        if zero:  # it begins as the identity
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

    def forward(self, x):  # (N, C, H, W); for videos (N, C, T, H, W)
        pixels, w_f = x.flatten(2).mT, self.to_score.weight[0]  # (N, K, C), (C,)
        q, k = self.theta(pixels), self.phi(pixels)  # (N, K, C / 2) each
        self.weights = pair_weights(self.form, pixels, q, k, w_f)  # to look at
        y = self.weights @ self.g(pixels)  # (N, K, C / 2)
        return x + self.out(y).mT.reshape(x.shape)


# %% [markdown]
# How large is it? The paper's block for videos gets $T \times H \times W \times 1024$, and has 512 channels inside:
# four matrices, $3 \cdot (1024 \cdot 512 + 512) + 512 \cdot 1024 + 1024 = 2.1$ million parameters. A clip of
# $4 \times 14 \times 14$ places has $784^2 = 614{,}656$ scores. On Kinetics, 300,000 videos of 400 kinds of action, one
# such block raised the accuracy of a ResNet-50 by about one point, whichever of the four forms it had (the paper's
# Table 2). (Section 7 compares all four with the library's.)
#
# ### 5.1 It begins as the identity
#
# Why is $W_z$ zero at first? So that a new block can be put *into a trained network* and change nothing, until
# training finds a use for it. (The authors do the same in another way: their block ends in a batch normalization whose
# factor starts at zero.) Measure it. First a network that works; we use it for the rest of the lesson. Its layers are
# residual, as in a ResNet. The kind of layer in which pixels meet is an argument:


# %% tags=["recorded"]
def unit(layer, width=32):  # a layer of a convolutional network
    return nn.Sequential(layer, nn.BatchNorm2d(width), nn.ReLU())


class Residual(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.unit = unit(layer)

    def forward(self, x):  # (N, C, H, W)
        return x + self.unit(x)  # (N, C, H, W)


# %% [markdown]
# The network; a convolution is the first mixer:


# %% tags=["recorded"]
def network(mixer, width=32):  # `mixer()` makes a layer in which pixels meet
    return nn.Sequential(
        unit(nn.Conv2d(1, width, 2, stride=2)),  # (N, 32, 14, 14)
        Residual(mixer()), Residual(mixer()),  # (N, 32, 14, 14)
        nn.AvgPool2d(2), Residual(mixer()),  # (N, 32, 7, 7)
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10),  # (N, 10)
    )


def convolution():
    return nn.Conv2d(32, 32, 3, padding=1, bias=False)


# %% [markdown]
# The training, the same for all models of this lesson:


# %% tags=["recorded"]
def train(make, pictures, labels, lr=1e-2, steps=300, seed=0, what="training"):
    torch.manual_seed(seed)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.05)
    for step in progress(range(steps), what):
        factor = min(1, (step + 1) / 30) * (1 - step / steps)
        optimizer.param_groups[0]["lr"] = lr * factor
        batch = torch.randint(len(pictures), (32,))  # (N,)
        F.cross_entropy(model(pictures[batch]), labels[batch]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


# %% [markdown]
# Accuracy is the fraction of right answers:


# %% tags=["recorded"]
@torch.no_grad()
def accuracy(model, pictures, labels):
    guesses = [model(x).argmax(dim=-1) for x in pictures.split(200)]
    return (torch.cat(guesses) == labels).float().mean().item()


# %% [markdown]
# We train it without any block first:

# %% tags=["nbval-ignore-output"]
plain = train(lambda: network(convolution), train_x, train_y, what="convolutional")
before = accuracy(plain, test_x, test_y)
expect("Accuracy (%)", 100 * before, 70, 90)

# %% [markdown]
# Now put a block after its second residual layer, where there are $14 \times 14$ places, without training anything:
# once as the identity, once with $W_z$ as torch initializes it.

# %% jupyter={"source_hidden": true}
predict(
    "non-local-zero", "The accuracy with an untrained block inside, once with W_z = 0, once with a random W_z?",
    "both as before", "as before with zero, much lower with random", "lower in both",
)

# %% tags=["nbval-ignore-output"]
for zero in (True, False):
    torch.manual_seed(0)
    with_block = nn.Sequential(*plain[:3], NonLocal(32, zero=zero), *plain[3:])
    after = accuracy(with_block, test_x, test_y)
    print(f"W_z {'zero' if zero else 'random'}: {after:.1%}, without the block {before:.1%}")

# %% jupyter={"source_hidden": true}
predicted("non-local-zero", "as before with zero, much lower with random")

# %% [markdown]
# Zero changes nothing, to the last digit. Random breaks what has been learned: the layers after it get what they have
# never seen. A new part that begins as the identity can be added anywhere; `BlockConfig`'s `zero_output` is the same
# trick, and adapters such as LoRA begin like this as well.
#
# ### 5.2 What does it look at?
#
# Train the network with the block inside from the start, with the same number of steps and the same seed:


# %% tags=["recorded"]
def with_non_local():
    body = list(network(convolution))
    return nn.Sequential(*body[:3], NonLocal(32), *body[3:])


# %% [markdown]
# The paper draws the strongest arrows: from one place in a video, to a ball or to the people who play with it. Do the
# same: from five places of each picture, one arrow to the place with the largest weight (none where that is the place
# itself). Will they stay near, as a convolution must?

# %% tags=["nbval-ignore-output"]
model = train(with_non_local, train_x, train_y, what="with a non-local block")
expect("Accuracy (%)", 100 * accuracy(model, test_x, test_y), 70, 90)

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
chosen = [0, 3, 5, 8, 11, 16]
starts = [(3, 7), (6, 4), (7, 7), (7, 10), (11, 7)]  # of 14 × 14 places
with torch.no_grad():
    model(test_x[chosen])
arrows = []
for weight in model[3].weights:  # (K, K)
    ends = [divmod(weight[14 * row + column].argmax().item(), 14) for row, column in starts]
    arrows.append([((2 * a + 0.5, 2 * b + 0.5), (2 * c + 0.5, 2 * d + 0.5), 0.4)
                   for (a, b), (c, d) in zip(starts, ends) if (a, b) != (c, d)])
plots.pictures(
    test_x[chosen, 0], arrows=arrows, names=[names[each] for each in test_y[chosen]], size=1.5,
    title="Wherever they start, the strongest arrows meet in a few places",
    alt="Six pictures of clothes, each with up to five arrows from places spread over it. In each, two or "
    "more arrows end in or near one place, often in the dark next to the piece of clothing.",
)

# %% [markdown]
# They don't stay near. And the places that they start from hardly seem to matter. Six pictures easily fool us, so count
# on two hundred:

# %% tags=["nbval-ignore-output"]
with torch.no_grad():
    model(test_x[:200])
weight = model[3].weights  # (200, K, K)
best = weight.argmax(dim=-1)  # (200, K): the strongest key of each query
light = F.avg_pool2d(test_x[:200], 2).flatten(1)  # (200, K)
dark = light < light.amin() + 0.1  # (200, K)
distinct = sum(len(each.unique()) for each in best) / 200
five = weight.mean(dim=1).topk(5).values.sum(dim=-1).mean()
print(f"196 queries of a picture have {distinct:.1f} strongest keys together")
print(f"{five:.0%} of all weight goes to five places of each picture")
print(f"{dark.gather(1, best).float().mean():.0%} of the strongest keys are dark;",
      f"of all places {dark.float().mean():.0%}")

# %% [markdown]
# A picture's 196 queries choose among about seven keys. Does each place ask nearly the same question? Then one map for
# all queries should do as well. Give all of them the mean of their weights, in the trained network:

# %% tags=["nbval-ignore-output"]
def one_map(block, inputs, output):
    mean = block.weights.mean(dim=1, keepdim=True)  # (N, 1, K)
    y = mean @ block.g(inputs[0].flatten(2).mT)  # (N, 1, C / 2)
    return inputs[0] + block.out(y).mT[..., None]  # (N, C, H, W)


own = accuracy(model, test_x, test_y)
hook = model[3].register_forward_hook(one_map)
print(f"own weights {own:.1%}, one map for all {accuracy(model, test_x, test_y):.1%}")
hook.remove()

# %% [markdown]
# Hardly anything is lost: the block tells *all* places the same about the picture as a whole. It reads it off a handful
# of places, mostly in the background. (Our explanation: a convolution has nothing else to say there.) Large networks do
# so as well: Cao et al. (2019, *GCNet*) computed one map for all queries, and lost nothing. Language models have such
# places too, attention sinks (lesson 31). Draw such arrows for a network of yours, but count before you tell a story.
#
# Does the block help? One run can't say. Section 6.4 has three.
#
# ## 6 Local attention instead of convolutions
#
# ### 6.1 The two equations side by side
#
# We have attention *added* to convolutions. Can it stand alone? Ramachandran et al. (2019) *replace* each
# $3 \times 3$ convolution. Attention to all pixels is too expensive in the early layers, so theirs stays where the
# convolution was, in the neighborhood $\mathcal N_k(i,j)$:
#
# $$\text{convolution:}\qquad y_{ij} = \sum_{(a,b)\, \in\, \mathcal N_k(i,j)} W_{a-i,\,b-j}\; x_{ab}$$
#
# $$\text{local attention:}\qquad y_{ij} = \sum_{(a,b)\, \in\, \mathcal N_k(i,j)}
# \mathrm{softmax}_{ab}\big(q_{ij}^\top k_{ab} + q_{ij}^\top r_{a-i,\,b-j}\big)\; v_{ab}$$
#
# The same neighbors, with $k = 3$ nine of them. The convolution has a matrix for each offset: $k^2$ matrices, and
# what it does at an offset is fixed. Attention has three matrices whatever $k$ is, and decides anew at each pixel.
#
# (You may see it without the second score, $q^\top r$. Then attention knows the content of its nine neighbors, but
# not which of them is above and which is below: a bag of nine pixels. With the vectors $r$, one for each *offset*, it
# weighs by content **and** by place. This is Shaw's idea of lesson 05, in two dimensions.)
#
# How do we get "the neighbor at offset $(a, b)$" for all pixels at once? It is the whole picture, shifted. Neighbors
# outside the picture do not exist: they get a score of $-\infty$, as in lesson 03. (The paper does not say what it does
# there. And it has no $\sqrt d$.)


# %% tags=["recorded"]
def neighbors(x, k):  # (…, H, W) → k · k times (…, H, W)
    (height, width), r = x.shape[-2:], k // 2
    padded = F.pad(x, (r, r, r, r))  # (…, H + 2r, W + 2r)
    return [padded[..., a : a + height, b : b + width]
            for a in range(k) for b in range(k)]


def look_around(q, k, v, size, r=None):  # (N, m, d, H, W), m heads; r: (k·k, d)
    scores = [(q * each).sum(dim=2) for each in neighbors(k, size)]  # (N, m, H, W)
    score = torch.stack(scores, dim=2)  # (N, m, k·k, H, W)
    if r is not None:
        score = score + torch.einsum("nmdhw,od->nmohw", q, r)
    inside = torch.stack(neighbors(torch.ones(q.shape[-2:]), size)) > 0
    weight = score.masked_fill(~inside, float("-inf")).softmax(dim=2)
    return sum(weight[:, :, [o]] * each for o, each in enumerate(neighbors(v, size)))


# %% [markdown]
# There are several heads, as in lesson 04, and each has its own scores. Nine vectors $r$ for $k = 3$, 49 for $k = 7$.
# The paper saves: half of each vector says the row offset, the other half the column offset, so $2k$ half vectors
# suffice.


# %% tags=["recorded"]
class LocalAttention(nn.Module):
    def __init__(self, dim, k=3, heads=4, relative=True):
        super().__init__()
        self.k, self.heads, half = k, heads, dim // heads // 2
        self.query, self.key, self.value = (
            nn.Conv2d(dim, dim, 1, bias=False) for _ in range(3))
        tables = (nn.Parameter(torch.randn(k, half)) for _ in range(2))
        self.rows, self.columns = tables if relative else (None, None)

    def forward(self, x):  # (N, C, H, W)
        q, k, v = (rearrange(part(x), "n (m d) h w -> n m d h w", m=self.heads)
                   for part in (self.query, self.key, self.value))
        r = None
        if self.rows is not None:  # row offsets turn slowly, column offsets fast
            rows = self.rows.repeat_interleave(self.k, dim=0)  # (k·k, d / 2)
            r = torch.cat([rows, self.columns.repeat(self.k, 1)], dim=-1)
        return look_around(q, k, v, self.k, r).flatten(1, 2)  # (N, C, H, W)


# %% [markdown]
# ### 6.2 A window in two dimensions is a mask
#
# Write the pixels one row after the other, and the neighborhood is a mask on pairs of positions. Position $p$ is in
# row $\lfloor p / W \rfloor$ and column $p \bmod W$; both may differ by at most $r = (k-1)/2$:


# %%
def window_2d(width, radius):
    near = Mask(lambda query, key: (query // width - key // width).abs() <= radius)
    return near & Mask(lambda query, key: (query % width - key % width).abs() <= radius)


in_a_row = Mask(lambda query, key: (query - key).abs() <= 7)

# %% jupyter={"source_hidden": true}
plots.mask(
    {"sliding window, radius 7": in_a_row, "2-D window, radius 1": window_2d(6, 1)},
    length=36, title="A square neighborhood is three bands with gaps",
    alt="Two squares of 36 queries by 36 keys. Left one broad band of 15 along the diagonal. Right "
    "three narrow bands: along the diagonal, and six cells to either side of it; each is cut into "
    "pieces where a picture's row ends.",
)

# %% [markdown]
# These pictures have rows of six pixels, so the neighbor above and to the left comes $6 + 1 = 7$ positions before. A
# window in one dimension that reaches as far also reaches around the picture's edge. The one in two dimensions does
# not: that is where its bands have gaps. How many pairs? In one direction of length $L > r$ there are
# $L(2r+1) - r(r+1)$: each has $2r+1$, and at either end $r + \dots + 2 + 1$ of them are missing. Rows and columns are
# independent, so for a picture it is the *product*, $\big(H(2r+1) - r(r+1)\big)\big(W(2r+1) - r(r+1)\big)$.
#
# With this mask ordinary attention must give the same numbers (here without the vectors $r_{a-i,\,b-j}$, which section
# 7 includes; here $r$ is the radius):

# %%
from txlib.attention import attention

torch.manual_seed(0)
layer, x = LocalAttention(8, k=3, heads=2, relative=False), torch.randn(2, 8, 5, 6)
mask = window_2d(6, 1)
print(f"pairs counted {mask.pairs(30)}, on paper {(5 * 3 - 2) * (6 * 3 - 2)}")
q, k, v = (rearrange(part(x), "n (m d) h w -> n m (h w) d", m=2)
           for part in (layer.query, layer.key, layer.value))  # (N, m, K, d) each
out = attention(q, k, v, mask, scale=1)  # (N, m, K, d)
out = rearrange(out, "n m (h w) d -> n (m d) h w", h=5)
prove_equal(layer(x), out, what="Shifted pictures and a mask")

# %% [markdown]
# ### 6.3 Count
#
# **Parameters.** A convolution from $C$ to $C$ channels has $k^2 C^2$, attention $3 C^2$, and $k \cdot d$ for $r$. At
# $k = 3$ a third. **Operations** per pixel: $2 k^2 C^2$ against $2 \cdot 3 C^2$ and three times $2 k^2 C$, for the
# scores, for the places, for the sum. What depends on $k$ grows with $C$, not with $C^2$, so attention can afford a
# larger window than the convolution: the paper takes $k = 7$.
#
# Now check the paper's headline: a ResNet-50 with all $3 \times 3$ convolutions replaced, "12% fewer FLOPS and 29%
# fewer parameters". It has sixteen of them: three with 64 channels, four with 128, six with 256 and three with 512.
# Each becomes $3 C^2$ instead of $9 C^2$. And the library can build both networks:

# %%
from txlib.models.sizes import RESNET, count_parameters

saved = sum(n * 6 * C * C for n, C in ((3, 64), (4, 128), (6, 256), (3, 512)))
whole, replaced = (count_parameters(RESNET[name]) for name in ("50", "50-attention"))
print(f"on paper {saved / 1e6:.2f} million fewer")
print(f"counted  {whole / 1e6:.2f} and {replaced / 1e6:.2f} million: "
      f"{(whole - replaced) / 1e6:.2f} fewer, {1 - replaced / whole:.1%}")

# %% [markdown]
# The paper's Table 1 has 25.6 and 18.0 million parameters, 8.2 and 7.2 billion operations ($1 - 7.2 / 8.2$ are its
# 12%), and accuracies on ImageNet of 76.9 and 77.6%. (Our count differs from the one on paper by the vectors $r$. The
# table's row replaces the first convolution as well, which ours keeps.)
#
# Mind what was counted: $3C^2$ are matrices that read *all* channels, for each head, as in lesson 04. The paper's text
# (section 2.2) says something else: each of its eight heads gets a slice of the *input* only. That would be $3C^2/8$,
# 14.7 million in all, 42% fewer. Text and table don't agree; our code follows the table.
#
# **Memory.** Many programs gather the neighborhoods first, with `unfold`: a copy of all keys and of all values for
# each offset, $k^2$ pictures of $C$ channels. Shifting needs scores, $k^2$ numbers per pixel and head, and no copies
# of channels. For a batch of 64 with 32 channels, 4 heads, 28 × 28 and $k = 7$: 315 MB of unfolded keys, 39 MB of
# scores. **And the clock?** FLOPs are not seconds:

# %% tags=["nbval-ignore-output"]
x = torch.randn(64, 32, 14, 14)
layers = {"convolution 3 × 3": convolution(),
          "local attention 3 × 3": LocalAttention(32, 3),
          "local attention 7 × 7": LocalAttention(32, 7),
          "all pixels": AttentionLayer2d(32, 32, 32)}
for name, layer in layers.items():
    start = time.process_time()
    with torch.no_grad():
        for _ in range(5):
            layer(x)
    print(f"{name:21} {1000 * (time.process_time() - start) / 5:6.1f} ms")

# %% [markdown]
# Fewer operations, yet many times slower. Our explanation: convolution kernels have been tuned for decades, and ours is
# a loop over shifts; the paper says itself that there were no such kernels for local attention. Papers count operations
# because they don't depend on who has tuned what. You wait for the clock.
#
# ### 6.4 Who learns better?
#
# The same network as before, with another `mixer`. Six kinds (the five below, and section 5.2's) and six rivals, three
# seeds each; that takes longer than a lesson, so `data/wardrobe.py` has run the cells above and written down what came
# out. Which order do you expect? Think of *place* and *content*.

# %% tags=["recorded"]
mixers = {
    "no neighbors (1 × 1)": lambda: nn.Conv2d(32, 32, 1, bias=False),
    "all pixels, content only": lambda: AttentionLayer2d(32, 32, 32),
    "local 3 × 3, content only": lambda: LocalAttention(32, 3, relative=False),
    "local 3 × 3, relative": lambda: LocalAttention(32, 3),
    "convolution 3 × 3": convolution,
}

# %% [markdown]
# Four rivals *are* told where a pixel is. Two are kinds from above: each of their layers first adds a learned vector
# for each place. As many parameters may help without any places, so these two have a *larger* twin: a hidden layer, or
# longer queries and keys. The last two rivals are a single linear layer from all 784 numbers, and two of them:


# %% tags=["recorded"]
class Placed(nn.Module):
    def __init__(self, layer, dim=32, side=14):
        super().__init__()
        self.layer = layer
        self.place = nn.Parameter(0.3 * torch.randn(dim, side, side))

    def forward(self, x):  # (N, C, H, W)
        return self.layer(x + self.place[:, : x.shape[2], : x.shape[3]])


def hidden(width):  # no neighbors, no places
    return nn.Sequential(nn.Conv2d(32, width, 1, bias=False), nn.ReLU(),
                         nn.Conv2d(width, 32, 1, bias=False))


rivals = {
    "no neighbors, told places": lambda: network(
        lambda: Placed(nn.Conv2d(32, 32, 1, bias=False))),
    "no neighbors, larger": lambda: network(lambda: hidden(114)),
    "all pixels, told places": lambda: network(
        lambda: Placed(AttentionLayer2d(32, 32, 32))),
    "all pixels, larger": lambda: network(lambda: AttentionLayer2d(32, 128, 32)),
    "one linear layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
    "two linear layers": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)),
}

# %% [markdown]
# What does each cost? Torch counts matrix products alone, so the sums of local attention are added by hand:


# %% tags=["recorded"]
def work(model):  # operations per picture
    local = [each for each in model.modules() if isinstance(each, LocalAttention)]
    own = sum(4 * each.k**2 * 32 * side**2 for each, side in zip(local, (14, 14, 7)))
    return operations(model, torch.zeros(1, 1, 28, 28)) + own


# %% jupyter={"source_hidden": true}
predict(
    "mixers-order", "After 300 steps, which is better: attention to all 196 places, or to the nine neighbors (by content alone)?",
    "all places: they include the nine", "the nine, by a little", "the nine, by far",
)

# %% [markdown]
# One line per kind, with the mean of three seeds and their range:

# %% jupyter={"source_hidden": true}
from txlib.paths import DATA

recorded = json.loads((DATA / "wardrobe.json").read_text())
kinds = {}
for name, runs in recorded["mixers"].items():  # seed → what came out
    percent = [100 * run["right"] for run in runs.values()]
    low, middle, high = min(percent), sum(percent) / len(percent), max(percent)
    kinds[name] = low, middle, high
    size, work_of_one = runs["0"]["parameters"], runs["0"]["operations"] / 1e6
    slower, faster = (100 * sum(by[name].values()) / len(by[name]) for by in recorded["rates"].values())
    print(f"{name:26}{size:6,} parameters, {work_of_one:4.1f} million operations: "
          f"{middle:.1f}% ({low:.1f} to {high:.1f}); at rate 0.003 {slower:.1f}%, at 0.03 {faster:.1f}%")

# %% jupyter={"source_hidden": true}
display(predicted("mixers-order", "the nine, by far", "Twelve points, with the same three matrices."))
plots.ranges(
    kinds, xlabel="accuracy on the test (%), mean and range of three seeds",
    title="A neighborhood helps, and so does being told the places",
    groups={"told the places": ["no neighbors, told places", "all pixels, told places", *list(rivals)[-2:]]},
    alt="Mean and range of three seeds, in percent: " + "; ".join(
        f"{name} {middle:.1f} ({low:.1f} to {high:.1f})"
        for name, (low, middle, high) in kinds.items()) + ".",
)

# %% [markdown]
# - **All pixels, by content alone**, beat no neighbors at all by less than three points, with the most operations of
#   all six.
# - **Nine neighbors, by content alone**: twelve points more.
# - **Which of the nine** brings nothing that three seeds could show at this learning rate; at 0.03 it brings 1.3 to
#   2.4 points. (In the paper, on ImageNet, relative positions are better than absolute ones,
#   and these better than none.)
# - **The convolution** is ahead by about two and a half points; at 0.03 it is ahead of *which of the nine* in only one
#   seed of three. It has 2.8 times the parameters and 2.3 times the operations.
# - **An added non-local block**: no difference that three seeds could show; at 0.03 it is behind in each of them, by
#   1.0 to 3.4 points.
# - **Told the places**, all pixels gain nineteen points and beat the convolution. As many parameters without places
#   bring one. So it is the places: a bag has none. Without any neighbors, places bring fourteen points and parameters
#   five (at 0.003, 11.5 and ten).
# - **A linear layer** has a weight for each place and beats all of these in every seed; two layers do as well. Our
#   explanation: these clothes are centered and upright, so *where* the ink is says most of what there is to know. The
#   networks above average over all places at their end.
#
# All of them were trained for 300 steps, in which they saw each picture about once. At 0.003 the
# order is the same; at 0.03, *no neighbors, told places* reaches the convolution, and attention to all pixels is hardly
# ahead of no neighbors at all. Lesson 21 has longer runs.
#
# ## 7 Open the library
#
# All three layers are in txlib. The first has the same parameter names as ours:

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
# The block in its four forms, and local attention with relative positions. (Folded away: it only carries our weights
# under the library's names. Each of the library's heads has its own vectors $r$; ours share them.)

# %% jupyter={"source_hidden": true}
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
mine, theirs = LocalAttention(8, 3, heads=2), library.LocalAttention2d(8, 8, kernel=3, heads=2)
for name in ("query", "key", "value"):
    getattr(theirs, name).weight.data = getattr(mine, name).weight.data
for one, other in ((theirs.row, mine.rows), (theirs.column, mine.columns)):
    one.data = other.data[:, None].expand(-1, 2, -1).clone()  # (k, heads, d / 2)
prove_equal(mine(x), theirs(x), what="Local attention by hand and the library's")
tables = window_2d(6, 1).dense(42), library.window_2d(6, 1).dense(42)  # (1, 1, K, K) each
prove_equal(*(each.float() for each in tables), what="The window as a mask")

# %% [markdown]
# The dot-product form has a surprise. Without a softmax, $(\theta\, \varphi^\top) g = \theta\, (\varphi^\top g)$: done
# from the right, no score is ever written down, and the cost is linear in the number of pixels. That is linear
# attention (lesson 32), already in 2018. (Task 1 of the exercise.)

# %% [markdown]
# ## 8 Quiz
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
# <details><summary>B. Each "pixel" now holds neighboring pixels of one channel</summary>
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

# %% [markdown]
# ## 9 Summary
#
# - `Linear` acts on the last axis, `@` on the last two. To make pixels into tokens, move channels to the end:
#   `rearrange(x, "n c h w -> n (h w) c")`, never `reshape`.
# - A convolution weighs by place, attention by content, local attention with relative positions by both. What a layer
#   is told about its inputs is its inductive bias; a convolution is translation equivariant.
# - A non-local block is attention with a bottleneck and a residual, in four forms. With $W_z = 0$ it begins as the
#   identity.
# - Local attention has $3C^2$ parameters where a convolution has $k^2 C^2$. It keeps the $k \times k$ window, which is
#   a mask with $(H(2r+1) - r(r+1))(W(2r+1) - r(r+1))$ pairs.
#
# **Read** Wang et al. 2018, *Non-local Neural Networks*, [arXiv:1711.07971](https://arxiv.org/abs/1711.07971), section
# 3. Ramachandran et al. 2019, *Stand-Alone Self-Attention in Vision Models*,
# [arXiv:1906.05909](https://arxiv.org/abs/1906.05909), sections 2 and 3. Buades, Coll and Morel 2005, *A non-local
# algorithm for image denoising*, CVPR. Xiao et al. 2017, *Fashion-MNIST*,
# [arXiv:1708.07747](https://arxiv.org/abs/1708.07747).
#
# **Do** the exercise [20_pixels](../exercises/exercise_20_pixels.ipynb). Then go on to [21 The Vision
# Transformer](21_vision.ipynb), which makes do with few tokens: patches.
