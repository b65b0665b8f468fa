# %% [markdown] lesson={"part": "III Beyond text", "builds": "the Perceiver for pixels, bytes and both; Perceiver IO"}
# # 24 · Arrays: Perceiver and Perceiver IO
#
# **After this lesson you will be able to**
#
# - build a Perceiver, which reads pixels, bytes, or both at once, and count what its latents save;
# - say what position features are good for, and compare a Perceiver fairly with a linear layer;
# - see what its latents look at;
# - ask it for outputs of any number and kind with queries: Perceiver IO.
#
# **You need** lessons 06 and 23; 14 and 19 help. **It takes** about 60 minutes to read and try; all cells together run
# in about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: inputs with too many rows
#
# We have lesson 23's blocks: inducing points that read a set of any size, and seeds that pool it. What is missing is a
# deep network on them that does not pay for the size of its input in every layer. A photograph has 50,176 pixels:
# self-attention on them would compare 2.5 billion pairs in each head of each layer.

# %% tags=["recorded"]
import json
import math
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from txlib import plots
from txlib.data import digits
from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress
from txcourse.lesson import prove_equal, show_source

torch.set_num_threads(1)  # for tensors this small, more threads only wait

# %% [markdown]
# ## 2 The idea: stay with the few
#
# ISAB goes to the $m$ points, and back to all $n$ elements, in each layer. Pooling goes to $k$ seeds, and stays.
# Jaegle et al. (2021) put the two together: go to $m$ learned vectors **early**, and stay there for all the *deep*
# part of the network. They call these vectors **latents**, and the model **Perceiver**:
#
# - a **cross-attention**: $m$ latents look at the input, an array of $n$ rows. It costs $m \cdot n$ scores.
# - a **latent Transformer**: a few ordinary blocks on the latents alone. Each costs $m^2$, whatever $n$ is.
# - again, with another look at the input, as often as you like; at the end a linear layer answers from
#   their mean.
#
# "Array" means: rows of numbers, whatever they are. Pixels, bytes, points, sound. The network is the same.

# %% jupyter={"source_hidden": true}
figures.perceiver(
    title="A few latents read a long array, and all depth stays with them",
    alt="On the left a tall column, the array with n rows. Lines from all of them lead to a short column, the latents with "
    "m rows: look, n times m. An arrow to the latents again: blocks, m squared each. Another, into which the array leads "
    "once more: look again, blocks. A last arrow: mean, answer.",
)

# %% [markdown]
# ### 2.1 Build it
#
# We have the idea. What is missing is a block that looks. One class does both kinds of attention. It is lesson 06's
# pre-norm block. The input has a width of its own, and its own norm (`width` is that of queries, keys and
# values):


# %% tags=["recorded"]
def attend(q, k, v, heads):  # (batch, m | n, width) each
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (q, k, v))
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)  # (batch, heads, m, n)
    mixed = (weights @ v).transpose(1, 2).flatten(start_dim=2)  # (batch, m, width)
    return mixed, weights


# %% [markdown]
# Around it are the projections, the residuals and the norms:


# %% tags=["recorded"]
class Look(nn.Module):  # of x at y; of x at itself, if there is no y
    def __init__(self, d, d_y=None, heads=4, width=None):
        super().__init__()
        self.heads, width, read = heads, width or d, d_y or d
        self.query, self.key = nn.Linear(d, width), nn.Linear(read, width)
        self.value, self.output = nn.Linear(read, width), nn.Linear(width, d)
        self.norm_x = nn.LayerNorm(d)
        self.norm_y = nn.LayerNorm(d_y) if d_y else None
        self.ffn = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.norm = nn.LayerNorm(d)

    def forward(self, x, y=None):  # (batch, m, d), (batch, n, d_y)
        normed = self.norm_x(x)
        y = normed if y is None else self.norm_y(y)
        q, k, v = self.query(normed), self.key(y), self.value(y)
        mixed, self.weights = attend(q, k, v, self.heads)  # weights: to look at
        x = x + self.output(mixed)
        return x + self.ffn(self.norm(x))  # (batch, m, d)


# %% [markdown]
# The model. Looks after the first one share their weights, and so do the latent blocks: the second round is the same
# layers once more. (A recurrent net in depth, as in lesson 19. The first look has its own weights, because
# sharing it as well made training unstable: section 4.1 of the paper.) The looks at the input have one head, as wide as
# its rows.


# %% tags=["recorded"]
class Perceiver(nn.Module):
    def __init__(self, d_in, labels, m=8, d=48, layers=1, rounds=2):
        super().__init__()
        self.latents = nn.Parameter(0.02 * torch.randn(m, d))
        self.first, self.again = (Look(d, d_in, heads=1, width=d_in) for _ in range(2))
        self.think = nn.ModuleList(Look(d) for _ in range(layers))
        self.answer, self.rounds = nn.Linear(d, labels), rounds

    def forward(self, array):  # (batch, n, d_in)
        x = self.latents.expand(len(array), -1, -1)  # (batch, m, d)
        for number in range(self.rounds):
            x = (self.again if number else self.first)(x, array)
            for block in self.think:
                x = block(x)
        return self.answer(x.mean(dim=1))  # (batch, labels)


# %% [markdown]
# What sharing saves, for the paper's ImageNet model (512 latents of width 1024, eight looks, six blocks after each),
# from the library's table of sizes:

# %%
from dataclasses import replace

from txlib.models.sizes import PERCEIVER, count_parameters

imagenet = PERCEIVER["imagenet"]
apart = replace(imagenet, distinct_cross=8, distinct_blocks=8)
for name, config in {"shared": imagenet, "not shared": apart}.items():
    print(f"{name:13} {count_parameters(config) / 1e6:6.1f} million parameters")

# %% [markdown]
# ## 3 What it saves: $n \cdot m$ against $n^2$
#
# We have the model. What is missing is the count. Six layers of self-attention on the 16 rows of the picture above make
# $6 \cdot 16^2 = 1536$ scores per head; one look by 4 latents and six latent blocks make $16 \cdot 4 + 6 \cdot 4^2 =
# 160$. In general it is $6n^2$ against $nm + 6m^2$. For a photograph of $224 \times 224 = 50{,}176$ pixels and $m =
# 512$, that is 15 billion against 27 million. What a further block costs no longer depends on $n$: ten more add $10
# m^2$. All operations, feed-forward networks included:


# %%
def counted_in(build, n):  # operations, on tensors without data
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        build()(torch.empty(1, n, 64))
    return counter.get_total_flops()


architectures = {
    "6 layers on the array": lambda: nn.Sequential(*(Look(64) for _ in range(6))),
    "Perceiver, m = 64": lambda: Perceiver(64, 10, m=64, d=64, layers=6, rounds=1),
}
lengths = [64, 256, 1024, 4096, 16384, 65536]
costs = {name: [counted_in(build, n) / 1e9 for n in lengths]
         for name, build in architectures.items()}
for n, dense, few in zip(lengths, *costs.values(), strict=True):
    print(f"n = {n:6,}: {dense:9.3f} and {few:6.3f} billion: {dense / few:6.1f} times")

# %% [markdown]
# The same as a picture:

# %% jupyter={"source_hidden": true}
plots.lines(
    {name: (lengths, each) for name, each in costs.items()}, xscale="log", yscale="log", marker="o",
    title="The array's cost ends up quadratic in n, the latents' linear", xlabel="rows of the input, n",
    ylabel="billion operations",
    alt="Operations over n from 64 to 65,536, both logarithmic. Six layers on the array rise ever "
    "steeper, in the end with the square of n. The Perceiver is flat at first, then rises in "
    "proportion to n, thousands of times below.",
)

# %% [markdown]
# And on the clock? Here is a forward pass of each, on one thread. Your numbers will differ from ours; the ratio should
# grow:

# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def milliseconds(model, n):
    array, taken = torch.randn(1, n, 64), []
    for _ in range(3):
        start = time.process_time()
        model(array)
        taken.append(1000 * (time.process_time() - start))
    return min(taken)


# %% [markdown]
# The fastest of three runs, for three lengths:

# %% tags=["nbval-ignore-output"]
built = [build() for build in architectures.values()]
for n in (256, 1024, 2048):
    dense, few = (milliseconds(model, n) for model in built)
    print(f"n = {n:5,}: {dense:7.1f} ms on the array, {few:5.1f} ms by latents: "
          f"{dense / few:5.1f} times")

# %% [markdown]
# ## 4 Read pixels
#
# ### 4.1 Where is what: Fourier features
#
# We have a reader that is cheap. What is missing is what it needs to know about an input. Latents look at the array by
# attention, and attention doesn't see order. Without further help a Perceiver treats a picture as a bag of gray values.
# So each row of the array must *say* where it is. It could give its coordinates, $p = (\text{row}, \text{column})$,
# scaled to $[-1, 1]$. But a linear function of $p$ alone only rises or only falls along a line. The norm before the
# look bends it into one broad hump at best. With waves of many frequencies a query can pick out any place (the idea
# of lesson 05's sinusoids). For $p = 0.5$ and the frequencies 1 and 2 the sines are $\sin(\pi/2) = 1$ and
# $\sin \pi = 0$, the cosines $\cos(\pi/2) = 0$ and $\cos \pi = -1$: together $(0.5, 1, 0, 0, -1)$. In general,
# for each coordinate $p$ and $b$ frequencies $f$ from 1 to half the number of points along it:
#
# $$\big[\,p,\; \sin(\pi f_1 p), \dots, \sin(\pi f_b p),\; \cos(\pi f_1 p), \dots, \cos(\pi f_b p)\,\big]$$
#
# From $-1$ to $1$ a wave of frequency $f$ goes up and down $f$ times. The fastest that a grid can show changes its
# sign from point to point, one wave per two points (Nyquist): hence the half.


# %% tags=["recorded"]
def fourier(p, bands, points):  # (…, coordinates), in [-1, 1]
    f = torch.linspace(1, points / 2, bands)  # (bands,)
    angle = math.pi * (p[..., None] * f).flatten(start_dim=-2)  # every p · f
    return torch.cat([p, angle.sin(), angle.cos()], dim=-1)


def grid(side):  # (side², 2): row and column of each pixel
    along = torch.linspace(-1, 1, side)
    return torch.cartesian_prod(along, along)


# %% [markdown]
# Two coordinates and four frequencies make $2 + 2 \cdot 2 \cdot 4 = 18$ numbers. Eight points in a row, with four
# frequencies:

# %% jupyter={"source_hidden": true}
line = torch.linspace(-1, 1, 8)[:, None]  # (8, 1)
waves = [f"{wave} {f}" for wave in ("sin", "cos") for f in (1, 2, 3, 4)]
plots.heatmap(
    fourier(line, 4, 8), title="Each place has a pattern of its own", diverging=True, numbers=False,
    columns=["p", *waves], rows=[f"{each:.2f}" for each in line[:, 0].tolist()], size=0.45,
    xlabel="feature", ylabel="p",
    alt="Eight rows for eight places from -1 to 1, nine columns: the place itself, four sines, "
    "four cosines, of rising frequency. No two rows are equal. The columns sin 3 and sin 4 are.",
)

# %% [markdown]
# Two columns are equal: sin 3 and sin 4. With both ends on the grid, eight points have seven steps, and the limit is
# $7/2$, not $8/2$: the paper's rule goes a little too far. With its 64 frequencies on 224 points no two columns
# are equal. (And only $p$ tells the first place from the last: there all waves of whole frequencies agree.)

# %% [markdown]
# ### 4.2 Three readers, and a rival
#
# Now train on digits, $8 \times 8$ pixels: an array of 64 rows, the ink and 18 numbers that say where. Three readers:
# with Fourier features, with the two coordinates alone, and without any position. And a rival that has a weight
# for each place: one linear layer on the 64 pixels in their order, at ten times the learning rate.
# (Guessing gets 10%.)

# %% jupyter={"source_hidden": true}
predict(
    "perceiver-digits", "300 batches each: which reads the most test digits right?",
    "the Perceiver with Fourier features", "the linear layer", "they are equal",
)

# %% tags=["recorded"]
train, test = digits().train, digits().test
where = fourier(grid(8), 4, 8)  # (64, 18)
positions = {"Fourier features": where, "two coordinates": grid(8),
             "no positions": where[:, :0]}


def as_array(ink, where):  # (batch, 1, 8, 8): (batch, 64, 1 + …)
    rows = where.expand(len(ink), -1, -1)  # (batch, 64, …)
    return torch.cat([ink.flatten(1)[..., None], rows], dim=-1)


def fit(model, loss_of, steps, rate, what):  # loss_of(model): a batch's loss
    optimizer = torch.optim.Adam(model.parameters())
    for step in progress(range(steps), what):
        loss = loss_of(model)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        factor = min(1, (step + 1) / 50, 2 * (1 - step / steps))
        optimizer.param_groups[0]["lr"] = rate * factor
        optimizer.step()
    return model


# %% [markdown]
# The readers should differ in nothing but what they are told. So all rows get 19 numbers: where positions are missing,
# learned numbers take their place, the same in each row. (A row of ink alone would even be invisible. The LayerNorm
# before the look makes 0 of any single number.)


# %% tags=["recorded"]
def filled(array, filler):  # (batch, rows, …), (…,)
    filler = filler.expand(*array.shape[:2], -1)  # (batch, rows, …)
    return torch.cat([array, filler], dim=-1)  # (batch, rows, width)


class DigitReader(nn.Module):
    def __init__(self, place):  # (64, …)
        super().__init__()
        self.place = place
        self.filler = nn.Parameter(0.3 * torch.randn(18 - place.shape[1]))
        self.perceiver = Perceiver(19, 10)

    def forward(self, ink):  # (batch, 1, 8, 8)
        return self.perceiver(filled(as_array(ink, self.place), self.filler))


# %% [markdown]
# The same seed and 300 batches of 64 digits for each:


# %% tags=["recorded", "nbval-ignore-output"]
def train_reader(model, rate=3e-3, steps=300, what="The digits"):
    def loss_of(model):
        some = torch.randint(len(train), (64,))
        return F.cross_entropy(model(train.pixel_values[some]), train.labels[some])

    fit(model, loss_of, steps, rate, what)
    with torch.no_grad():
        guess = model(test.pixel_values).argmax(dim=-1)
    return 100 * (guess == test.labels).float().mean().item()


# %% [markdown]
# Three readers, and the rival:

# %%
readers, accuracy = {}, {}
for name, place in positions.items():
    torch.manual_seed(0)
    readers[name] = DigitReader(place)
    accuracy[name] = train_reader(readers[name], what=name)
torch.manual_seed(0)
linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
accuracy["a linear layer"] = train_reader(linear, rate=3e-2, what="linear")
for name, percent in accuracy.items():
    print(f"{name:17} accuracy {percent:.0f}%")
expect("The linear layer's accuracy (%)", accuracy["a linear layer"], 85, 93)

# %% jupyter={"source_hidden": true}
predicted("perceiver-digits", "the linear layer", "It has a weight for each pixel.")

# %% [markdown]
# That was one seed, a short training and one rate. `data/arrays.py` has trained each with three seeds, and for longer,
# and those that are told places at a higher rate as well. It also has a rival for the reader without positions, which
# sees a bag of gray values: a linear layer on the 64 values, sorted.

# %%
from txlib.paths import DATA

recorded = json.loads((DATA / "arrays.json").read_text())
for name, runs in recorded.items():
    print(name)
    for steps, seeds in runs.items():
        print(f"{steps:>8} batches:", " ".join(f"{each:.1f}%" for each in seeds.values()))

# %% [markdown]
# After 300 batches the linear layer, with 650 parameters, is ahead in each start, at either rate. Our explanation: it
# has a weight for each place from the start, while the Perceiver is told the places in its rows and has to learn what
# to do with them. That is the price of generality. After 1,500 the two are level, and the Perceiver can read what no
# linear layer can: any number of rows, of any kind.
#
# Two coordinates say *where*, in principle, but stay behind Fourier features at both rates and lengths. Our
# explanation: to find a stroke in two coordinates, the network has to build something like waves itself; Fourier
# features hand it places ready to compare. Without positions the reader gets about a quarter of the digits at best, a
# little more than the linear layer on sorted values.
#
# What do the eight latents of the first reader look at? Their weights in the first look, in orange over one digit:

# %% jupyter={"source_hidden": true}
perceiver = readers["Fourier features"].perceiver
with torch.no_grad():
    perceiver(as_array(test.pixel_values, where))
first = perceiver.first.weights[:, 0]  # (batch, latent, pixel)
looks = {"first": first, "second": perceiver.again.weights[:, 0]}
plots.pictures(
    test.pixel_values[:1, 0].expand(8, -1, -1), heat=first[0].view(8, 8, 8), names=[f"latent {i}" for i in range(8)],
    columns=4, title="Latents look where a stroke might have been", alt="The same digit eight times, each with the "
    "weights of one latent laid over it. The strongest are on dark pixels next to the strokes; latents 0, 2, 4 and 6 "
    "look at the same spot, to the left of the middle, and 3 and 7 share another, in the top row.",
)

# %% [markdown]
# Not at the strokes: at dark spots next to them. Is that so for all test digits, and in the second look as well?

# %%
blank = test.pixel_values.flatten(1) < 0.25  # (batch, 64): no ink there
varies = train.pixel_values.flatten(1).var(dim=0)  # (64,): from digit to digit
for name, weights in looks.items():  # (batch, latent, 64) each
    entropy = -(weights * (weights + 1e-9).log()).sum(dim=-1)  # (batch, latent)
    on_blank = (weights * blank[:, None]).sum(dim=-1).mean()
    favorite = weights.mean(dim=0).argmax(dim=-1)  # (latent,)
    print(f"{name:6} look: over {entropy.exp().mean():.0f} pixels,",
          f"{on_blank:.0%} on blank ones;",
          f"variance of ink at the favorites {varies[favorite].mean():.2f}")
print(f"of all pixels {blank.float().mean():.0%} are blank;",
      f"mean variance of ink {varies.mean():.2f}")

# %% [markdown]
# In the first look it is. (Over how many pixels a weight is spread is $e$ to the power of its entropy: 64 equal weights
# give 64.) The first look prefers blank pixels, and its favorites are places where ink varies much from digit to digit.
# Our reading: there, *no* ink says much. A 0 has none in the middle, a 7 none at the lower left. Four latents look at
# nearly the same spot: nothing in training asks them to differ, unlike lesson 23's seeds. But the second look is spread
# over nearly everything.
#
# What is a Perceiver, then, in lesson 23's words? Shuffle the rows of the array; then move the ink to other places:

# %%
torch.manual_seed(0)
order, four = torch.randperm(64), test.pixel_values[:4]  # four digits
moved = four.flatten(1)[:, order].view(4, 1, 8, 8)
with torch.no_grad():
    rows = as_array(four, where)  # (4, 64, 19)
    stays = torch.allclose(perceiver(rows), perceiver(rows[:, order]), atol=1e-4)
    print("rows in another order: the answer", "stays" if stays else "changes")
    for name, reader in readers.items():
        stays = torch.allclose(reader(four), reader(moved), atol=1e-4)
        print(f"pixels moved, {name}: the answer", "stays" if stays else "changes")

# %% [markdown]
# It is **invariant**: a network for sets. What makes a picture of a set is that each element carries its place with
# it. Shuffle the rows, ink and place together, and nothing happens. Move the ink to other places, and it is another
# picture, except to the reader that sees no places. A convolution knows that pixels have neighbors; no layer here
# does. The Perceiver has to learn it from data, and is the same model for whatever comes next.

# %% [markdown]
# ## 5 Bytes, and both at once
#
# We have a reader of pixels. What comes next is text, as bytes, without any tokenizer. A row of the array is now the
# embedding of a byte, 16 numbers, and 13 numbers that say where it stands. And because all is one array, a picture and
# a text can be put into **one**, the text below the picture. Rows of both kinds need one width, and something that
# tells them apart. Filling them up does both at once, as in the paper (§ 4.2): each kind has a learned filler of its
# own.


# %%
class Arrays(nn.Module):
    def __init__(self, width=34, letters=24):
        super().__init__()
        self.embedding = nn.Embedding(256, 16)
        line = torch.linspace(-1, 1, letters)[:, None]  # (letters, 1)
        self.place = fourier(line, 6, letters)  # (letters, 13)
        widths = 1 + 18, 16 + 13  # ink and place; byte and place
        self.kinds = nn.ParameterList(0.3 * torch.randn(width - d) for d in widths)

    def forward(self, ink=None, text=None):  # (batch, 1, 8, 8), (batch, letters)
        rows = []
        if ink is not None:
            rows.append(filled(as_array(ink, where), self.kinds[0]))
        if text is not None:
            letters = [self.embedding(text), self.place.expand(len(text), -1, -1)]
            rows.append(filled(torch.cat(letters, dim=-1), self.kinds[1]))
        return torch.cat(rows, dim=1)  # (batch, 64 + letters, width)


# %% [markdown]
# The task: a digit and a sentence at once. *Which digit is it? Is the sentence German or English?* (Sentences are
# those of lesson 09, their first 24 bytes.) One Perceiver with 12 logits, ten for the digit and two for the language:

# %%
from txlib.data import translation

pairs = translation("games", max_words=12)


def sentences(pairs):  # (batch, 24) bytes, (batch,): 1 = English
    english, rows = torch.randint(2, (len(pairs),)), []
    for pair, is_english in zip(pairs, english.tolist()):
        rows.append(list(pair[is_english].encode()[:24].ljust(24)))
    return torch.tensor(rows), english


# %% [markdown]
# The model is an array and a Perceiver:


# %%
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.arrays, self.perceiver = Arrays(), Perceiver(34, 12)

    def forward(self, ink=None, text=None):
        return self.perceiver(self.arrays(ink, text)).split([10, 2], dim=-1)


# %% [markdown]
# The array may hold both, or either. So a third of the batches shows both, a third the picture alone, a third the
# sentence alone; what is not there is not asked for:


# %%
def of_both(model):
    some = torch.randint(len(train), (48,))
    others = torch.randint(len(pairs.train), (48,))
    text, english = sentences([pairs.train[i] for i in others.tolist()])
    given = int(torch.randint(3, ()))  # 0: both, 1: text alone, 2: ink alone
    digit, language = model(None if given == 1 else train.pixel_values[some],
                            None if given == 2 else text)
    loss = 0 if given == 1 else F.cross_entropy(digit, train.labels[some])
    return loss + (0 if given == 2 else F.cross_entropy(language, english))


# %% [markdown]
# Then the test, with both, with the picture alone, with the sentence alone:

# %%
torch.manual_seed(0)
reader = fit(Reader(), of_both, 500, rate=5e-3, what="The reader")
text, english = sentences(pairs.test[: len(test)])
ink = test.pixel_values
for name, arrays in {"both": (ink, text), "the picture alone": (ink, None),
                     "the sentence alone": (None, text)}.items():
    with torch.no_grad():
        digit, language = (logits.argmax(dim=-1) for logits in reader(*arrays))
    print(f"{name:19} accuracy: digit {(digit == test.labels).float().mean():4.0%},",
          f"language {(language == english).float().mean():4.0%}")

# %% [markdown]
# Is that good? For the digit, 4.2 had a rival. For the language, the simplest one is a linear layer that knows how
# often each byte occurs, and nothing about order. It sees as many sentences:


# %%
def byte_counts(text):  # (batch, 24) → (batch, 256)
    return F.one_hot(text, 256).sum(dim=1).float()


def of_counts(model):
    some = torch.randint(len(pairs.train), (48,))
    text, english = sentences([pairs.train[i] for i in some.tolist()])
    return F.cross_entropy(model(byte_counts(text)), english)


for seed in range(3):
    torch.manual_seed(seed)
    counting = fit(nn.Linear(256, 2), of_counts, 333, rate=3e-2, what="Counting")
    right = counting(byte_counts(text)).argmax(dim=-1) == english
    print(f"counts of bytes, seed {seed}: language {right.float().mean():.0%}")

# %% [markdown]
# One set of weights reads pictures, sentences, or both. What is not there it can only guess: one in ten, one in two.
# Each simple rival is better at its one task: 4.2's linear layer reads 90% of the digits, and counts of bytes tell the
# language of 92% to 94% of the sentences. The Perceiver also reads the digit less well than 4.2's reader, which learned
# nothing else (87%), and tells the language better from the sentence alone than from both (one run, 360 tests), perhaps
# because eight latents have to share their room. What it has that the rivals lack is one model for all three cases.
# Only the array knows what a pixel or a letter is; the Perceiver that reads it does not. (What if it is always trained
# on both? Try it: let `given` be 0. Then ask about a picture that comes alone.)

# %% [markdown]
# ## 6 Perceiver IO: ask for what you want
#
# ### 6.1 Output queries
#
# We have one answer per input, a single vector. What if the answer is itself an array: a value for each pixel, a
# letter for each gap? Perceiver IO (Jaegle et al. 2022) adds the mirror image of the first look. Make an **output
# query** for each number that you want, which says *what* is wanted. The queries look at the latents:
#
# $$\text{latents} = \text{Look}(Z, x), \quad \text{blocks} \dots, \qquad
# \text{answer}_i = \text{Look}(\text{query}_i, \text{latents})$$
#
# $o$ queries cost $o \cdot m$. They don't see each other, so you may ask for some now and for others later. (You have
# met the idea: PMA's seeds are output queries; only they are always the same.)

# %% jupyter={"source_hidden": true}
figures.perceiver(
    asked=10, title="The queries' look mirrors the first one",
    alt="The array, the look and the latents as before, once. On the right, lines from all latents lead to a column of o "
    "answers: look, o times m. A query for each says what is wanted.",
)

# %% [markdown]
# The two models side by side:
#
# | | Perceiver (2021) | Perceiver IO (2022) |
# | --- | --- | --- |
# | reads the input | again and again (eight times on ImageNet) | once |
# | blocks between | shared weights | each its own for language, shared on ImageNet |
# | answers | mean of the latents, one linear layer | as many output queries as you like |
# | good for | a class | a class, a pixel, a byte, several tasks at once |


# %%
class PerceiverIO(nn.Module):
    def __init__(self, d_in, d_query, m=16, d=48, layers=2):
        super().__init__()
        self.latents = nn.Parameter(0.02 * torch.randn(m, d))
        self.first = Look(d, d_in, heads=1, width=d_in)
        self.think = nn.ModuleList(Look(d) for _ in range(layers))
        self.ask = Look(d_query, d, heads=1, width=d)
        self.answer = nn.Linear(d_query, 1)

    def forward(self, array, queries):  # (batch, n, d_in), (o, d_query)
        x = self.first(self.latents.expand(len(array), -1, -1), array)
        for block in self.think:
            x = block(x)  # (batch, m, d)
        asked = self.ask(queries.expand(len(array), -1, -1), x)  # (batch, o, d_query)
        return self.answer(asked)[..., 0]  # (batch, o)


# %% [markdown]
# ### 6.2 See the rest of the picture
#
# Hide 40 of a digit's 64 pixels. Usually one would write zeros there, and a mask. Here they are simply **left out**:
# the array has 24 rows. The query for a pixel is its place, in slower waves than those of the array; the answer, how
# much ink is there.


# %%
slow = fourier(grid(8), 4, 5)  # (64, 18): frequencies 1 to 2.5


def some_pixels(ink, keep=24):  # (batch, 1, 8, 8)
    kept = torch.rand(len(ink), 64).argsort(dim=-1)[:, :keep]  # (batch, keep): places
    seen = ink.flatten(1).gather(1, kept)[..., None]  # (batch, keep, 1)
    return torch.cat([seen, where[kept]], dim=-1), kept  # (batch, keep, 19)


# %% [markdown]
# The loss is the squared error of all 64 answers:


# %%
def painted(model):
    ink = train.pixel_values[torch.randint(len(train), (32,))]
    return (model(some_pixels(ink)[0], slow) - ink.flatten(1)).square().mean()


torch.manual_seed(0)
painter = fit(PerceiverIO(19, 18), painted, 700, rate=8e-3, what="The painter")

# %% [markdown]
# Is it good? Three rivals: the mean of all training pictures; for each pixel the nearest one that can be seen; and the
# best *linear* guess, which knows from the training pictures how every pixel varies with every other: with $\Sigma$
# their covariance, hidden pixels are $\mu_h + \Sigma_{hs} \Sigma_{ss}^{-1} (x_s - \mu_s)$. (A small number on the
# diagonal keeps the inverse tame.) With one pixel seen and one hidden: if both have mean 0.5, the seen one has the
# variance 0.10, their covariance is 0.05, and 0.9 is seen, the guess is $0.5 + 0.05 / 0.10 \cdot (0.9 - 0.5) = 0.7$.

# %%
torch.manual_seed(0)
array, kept = some_pixels(test.pixel_values)
hidden = torch.ones(len(test), 64).scatter(1, kept, 0).bool()  # (batch, 64)
ink, known = test.pixel_values.flatten(1), train.pixel_values.flatten(1)
mean, covariance = known.mean(dim=0), known.T.cov() + 1e-3 * torch.eye(64)
guessed = mean.repeat(len(test), 1)  # (batch, 64)
for answer, seen, x in zip(guessed, kept, ink):
    inner = covariance[seen][:, seen]  # (keep, keep)
    answer += covariance[:, seen] @ torch.linalg.solve(inner, (x - mean)[seen])

# %% [markdown]
# The errors on hidden pixels:

# %%
nearest = torch.cdist(grid(8).expand(len(test), -1, -1), grid(8)[kept]).argmin(dim=-1)
with torch.no_grad():
    answers = {"the network": painter(array, slow),
               "the nearest seen pixel": array[..., 0].gather(1, nearest),
               "the mean picture": mean.expand_as(ink),
               "the best linear guess": guessed}
for name, answer in answers.items():
    error = (answer - ink)[hidden].square().mean()
    print(f"{name:22} squared error on hidden pixels {error:.4f}")

# %% [markdown]
# The network's error is a quarter lower than the mean picture's: what was seen says something about the rest. Copying a
# neighbor is far worse (strokes are narrow, we think). And the linear guess is clearly better than the network. Our
# explanation, as for the digits' labels: 700 training steps do not make up for what the rival is given, here every pair
# of pixels. But the
# linear guess answers for these 64 places and no others.
#
# Queries need not be on the grid. Ask at $32 \times 32$ places, for a model that has only ever seen
# $8 \times 8$:

# %%
with torch.no_grad():
    fine = painter(array[:6], fourier(grid(32), 4, 5)).view(6, 32, 32)
seen = torch.full((6, 64), torch.nan)  # hidden
seen = seen.scatter(1, kept[:6], ink[:6].gather(1, kept[:6]))
small = [seen, answers["the network"][:6], ink[:6]]  # (6, 64) each
seen, answered, true = (F.interpolate(part.view(6, 1, 8, 8), scale_factor=4)[:, 0]
                        for part in small)  # (6, 32, 32) each
named = {"seen": seen, "8 × 8": answered, "32 × 32": fine, "true": true}

# %% [markdown]
# Six test digits, side by side; hidden pixels are gray:

# %% jupyter={"source_hidden": true}
mosaic = [F.pad(each, (1, 1, 1, 1)).transpose(0, 1).flatten(1) for each in named.values()]
picture = plots.heatmap(
    torch.cat(mosaic).clamp(0, 1), size=0.028, numbers=False, xlabel="", ylabel="", bar="ink",
    title="What was seen, what was answered, the truth", columns=[" "] * 204,
    rows=[name if row == 16 else " " for name in named for row in range(34)],
    alt="Four rows of six digits. Above, the 24 pixels seen, in a field of hidden ones. Then the "
    "answers at 8 × 8 places, and at 32 × 32: smooth strokes, with ghosts of others. Below the true digits.",
)
picture.axes[0].set_facecolor("0.75")
picture

# %% [markdown]
# Strokes, with smooth edges that no training picture has, and ghosts of strokes that are not there. The answers follow
# what was seen where there was something to see, and are blurred where several digits would fit: the mean of what is
# possible has the least squared error. (Why slow waves? Between the points of the grid training never looked. Try the
# array's own, which go up to frequency 4: `where` and `fourier(grid(32), 4, 8)`.)
#
# Break it: queries that don't say where. Take the Fourier features out of the *queries* alone, and ask with
# zeros:

# %% jupyter={"source_hidden": true}
predict(
    "blind-queries", "What does the painter answer if no query says where?",
    "the mean picture", "one gray for the whole picture", "noise",
)

# %% [markdown]
# All 64 queries are now the same:

# %%
with torch.no_grad():
    blind = painter(array, torch.zeros_like(slow))  # (batch, 64)
apart = (blind.amax(dim=-1) - blind.amin(dim=-1)).max()
print(f"largest difference between two pixels of one picture: {apart:.6f}")
print(f"squared error on hidden pixels {(blind - ink)[hidden].square().mean():.4f}")
gray = (known.mean() - ink)[hidden].square().mean()
print(f"the mean gray of the training, everywhere {gray:.4f}")
predicted("blind-queries", "one gray for the whole picture")

# %% [markdown]
# Equal questions get equal answers: one gray for a whole picture. All that the answer knows of *where* comes in with
# the query. (It is even the wrong gray: the mean gray everywhere has a smaller error. A query of zeros never
# occurred in training.)
#
# ### 6.3 Language, byte by byte
#
# For masked language modelling (lesson 14) the queries are 2,048 learned vectors, one for each position; the answers
# are bytes. The published model reads 2,048 bytes with 256 latents, and thinks in 26 layers of width 1,280. Bytes
# instead of pieces make a text about four times as long. What would that cost a BERT, in scores per head and layer,
# and what here? On paper first:
#
# $$\text{BERT, } n = 512 \text{ pieces:}\; n^2 = 262{,}144 \qquad \text{on bytes, } n = 2048:\; 4{,}194{,}304
# \qquad \text{a latent layer:}\; 256^2 = 65{,}536$$
#
# And $2 \cdot 2048 \cdot 256$ once, to look in and to ask. That is how it can afford to do without a tokenizer. At
# equal cost it matches a BERT that reads pieces on GLUE, lesson 15's set of tasks, and is well ahead of one that
# reads bytes (§ 4.1 of the paper).

# %%
language = PERCEIVER["language"]
m, n = language.latents, language.max_length
print(f"{count_parameters(language):,} parameters; scores per head:")
print(f"{language.layers} latent layers {language.layers * m * m:,},",
      f"in and out {2 * n * m:,}")
print(f"{language.layers} layers on the bytes themselves {language.layers * n * n:11,}")

# %% [markdown]
# ## 7 Open the library
#
# We have both models. In the library they are configs, whose weights are in the same order as ours:

# %%
from txlib import models
from txlib.layers import BlockConfig, fourier_features, grid_positions

show_source(models.Perceiver.forward, models.PerceiverIO.forward)

# %% [markdown]
# Their weights become ours:


# %%
def with_weights_of(mine, theirs):
    with torch.no_grad():
        for a, b in zip(theirs.parameters(), mine.parameters(), strict=True):
            a.copy_(b)
    return theirs


block = BlockConfig.of_sizes(d_model=48, heads=4, d_ff=96, activation="gelu")
config = models.PerceiverConfig(
    block=block, d_input=19, latents=8, layers=1, repeats=2, labels=10)
asking = block.replace(d_model=18, heads=1, head_dim=48, d_ff=36)
config_io = models.PerceiverIOConfig(
    block=block, d_input=19, latents=16, layers=2, decoder=asking,
    query_residual=True, outputs=1)

# %% [markdown]
# The reader of digits and the painter, once more:

# %%
theirs = with_weights_of(perceiver, models.Perceiver(config))
theirs_io = with_weights_of(painter, models.PerceiverIO(config_io))
with torch.no_grad():
    features = fourier_features(grid_positions(8, 8), 4, (8, 8))
    prove_equal(where, features, what="Fourier features")
    rows = as_array(test.pixel_values, where)  # (batch, 64, 19)
    prove_equal(perceiver(rows), theirs(rows).logits, tolerance=1e-4, what="Perceiver")
    asked = theirs_io(array, slow[None]).logits[..., 0]
    prove_equal(painter(array, slow), asked, tolerance=1e-4, what="Perceiver IO")

# %% [markdown]
# `txlib.models` also has `PerceiverForMaskedLM`. `load_pretrained` reads
# the published byte model, `deepmind/language-perceiver`, from its folder. On the command line, `txlib train perceiver`
# trains one model for pixels, bytes, and both.

# %% [markdown]
# ### 7.1 Where these ideas live on
#
# A few learned vectors that read many rows: once you know the shape, you meet it everywhere.
#
# - **Multi-modal models.** A picture is hundreds of rows for a language model. Flamingo's *resampler* (Alayrac et al.
#   2022) turns any number of them into 64 with a Perceiver; BLIP-2's *Q-Former* (Li et al. 2023) has 32 learned
#   queries for the same purpose. Many models that read text, pictures and sound put everything into one array,
#   as you did in section 5.
# - **Detection.** DETR (Carion et al. 2020) asks 100 learned *object queries* which objects are in a picture. They are
#   output queries, and their answer is a set.
#
# And why are not all models Perceivers? Whatever the latents have not picked up is lost. (Lessons 32 and 33 have other
# memories of fixed size.) A model that writes text token by token wants to look up *every* earlier token. Where the
# answer is short and the input long, latents are a bargain.

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. A Perceiver reads color pictures without position features. Which change of a picture changes its answer?**
#
# <details><summary>A. Turning it upside down</summary>
#
# The same colors in other places: the same bag.
# </details>
# <details><summary>B. Making all of its pixels redder</summary>
#
# Right. Colors are all that it sees.
# </details>
# <details><summary>C. Both</summary>
#
# It can't see where a pixel is.
# </details>
#
# **2. A Perceiver has 512 latents and reads 50,176 pixels once. You add six blocks to its latent Transformer. How many
# more scores per head does it compute?**
#
# <details><summary>A. 6 · 512²</summary>
#
# Right: 1.6 million. The latents no longer know how many pixels there were.
# </details>
# <details><summary>B. 6 · 512 · 50,176</summary>
#
# Only another look at the input would cost that.
# </details>
# <details><summary>C. 6 · 50,176²</summary>
#
# That is six layers of self-attention on the pixels.
# </details>
#
# **3. Perceiver IO is asked for 10,000 pixels instead of 64. What costs more?**
#
# <details><summary>A. The last look alone</summary>
#
# Right: 10,000 · m scores. Input and latents don't know how much will be asked.
# </details>
# <details><summary>B. Everything, as the answer has to be computed in all layers</summary>
#
# That would be so in a Transformer whose rows are the pixels.
# </details>
# <details><summary>C. Nothing</summary>
#
# Each query is a row of the last cross-attention.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - A Perceiver moves to $m$ latents early and stays there: $nm + Lm^2$. It is a network for sets; what the rows say
#   about their places and kinds makes pictures, texts, or both of them.
# - Generality costs: after a short training a linear layer with a weight for each pixel was better, and on short
#   sentences a linear layer on counts of bytes.
# - Perceiver IO asks: an output query for each number that is wanted.
#
# That ends Part III. Once more, each lesson had one question:
#
# | | The question | The answer |
# | --- | --- | --- |
# | 20 | What if the input is a picture? | pixels are tokens; what is near has to be told: by a window, or by offsets |
# | 21 | And if it has too many pixels? | patches are tokens; which are neighbors is learned, from many pictures |
# | 22 | What if it is music? | time and voices on a grid; distances, learned and skewed into place, carry the bars |
# | 23 | What if it has no order? | equivariant layers, and a pool that forgets the order |
# | 24 | What if it has too many parts? | a few latents that read them all, and queries that ask |
#
# In all five the block stayed nearly as it was. What changed is what a token is, and what it is told of its place.
# Part IV asks what all this costs.
#
# **Read** Jaegle et al. 2021, *Perceiver*, [arXiv:2103.03206](https://arxiv.org/abs/2103.03206), section 3. Jaegle et
# al. 2022, *Perceiver IO*, [arXiv:2107.14795](https://arxiv.org/abs/2107.14795), sections 3 and 4.
#
# **Do** the exercise [24_arrays](../exercises/exercise_24_arrays.ipynb). Then go on to [30 The quadratic
# wall](30_wall.ipynb), where all that attention costs is counted.
