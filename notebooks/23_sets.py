# %% [markdown] lesson={"part": "III Beyond text", "builds": "invariance, Deep Sets, the Set Transformer, clusters found in one pass, compared with EM"}
# # 23 · Sets
#
# **After this lesson you will be able to**
#
# - test whether a function is invariant or equivariant, and make an invariant one out of an equivariant one;
# - say, by counting, what a mean, a sum and a maximum can't tell apart, and build Deep Sets;
# - build attention for sets step by step: MAB, SAB, pooling by attention, inducing points;
# - train a network that finds clusters in one forward pass, and compare it fairly with EM: what it learned is the
#   prior, and what it saves is the search.
#
# **You need** lessons 03 to 06, 05 most of all. **It takes** about 65 minutes to read and try; all cells together run
# in about half a minute on a laptop.

# %% [markdown]
# ## 1 The problem: some things have no order
#
# We have attention for sequences and grids: a sentence has an order, and a picture has rows. What is missing is a
# network for things without an order: the measurements of one patient, the stars in one photograph, the
# points that a laser found on one chair. Each is a **set**: any number of elements, in no order. Let us make one from
# a handwritten digit: the places that hold ink.

# %% tags=["recorded"]
import json
import math
import time
from functools import partial
from itertools import combinations_with_replacement

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from txlib import plots
from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress
from txcourse.lesson import prove_equal, show_source
from txlib.paths import DATA

torch.set_num_threads(1)  # for tensors this small, more threads only wait

# %% [markdown]
# Digits of $8 \times 8$ pixels come with the course:

# %%
from txlib.data import digits

torch.manual_seed(0)
train = digits().train
image = train.pixel_values[3, 0]  # (row, column): 8 × 8, ink is 1
points = (image > 0.5).nonzero().float()  # (n, 2): row and column of each inked pixel
n = len(points)
some = points[torch.randperm(n)][:5].tolist()
print("a few points of a", train.labels[3].item(), "in some order:", some)
print(f"{n} points can be listed in {n}! = {math.factorial(n):.1e} orders")

# %% [markdown]
# All these lists are the same digit. A function of a set must not care which of them it is given. There are two ways
# of not caring. With $P$ for any permutation of the rows of $x$:
#
# $$\text{invariant:}\quad f(Px) = f(x) \qquad\qquad \text{equivariant:}\quad f(Px) = P f(x)$$
#
# Lesson 05 had the second: put shuffled tokens into self-attention without positions, and shuffled outputs come out.
# That was a defect there. Here it is what we want, and yet not enough: *which digit is it?* is one answer for the whole
# set, and that one has to be **invariant**. Which is which? Guess each line before you run the next cell.

# %%
torch.manual_seed(0)
row, each_alone = nn.Linear(2 * n, 8), nn.Linear(2, 8)
gru = nn.GRU(2, 8, batch_first=True)
to_q, to_k, to_v = (nn.Linear(2, 8) for _ in range(3))


def self_attention(x):  # (batch, n, 2): (batch, n, 8)
    return (to_q(x) @ to_k(x).mT / 8**0.5).softmax(dim=-1) @ to_v(x)


functions = {"one linear layer for all": lambda x: row(x.flatten(1)),
             "recurrent net, last state": lambda x: gru(x)[0][:, -1],
             "recurrent net, all states": lambda x: gru(x)[0],
             "each point by itself": each_alone, "self-attention": self_attention,
             "mean of the points": lambda x: x.mean(dim=1),
             "self-attention, then mean": lambda x: self_attention(x).mean(dim=1)}

# %% [markdown]
# The test shuffles once, and looks at what has moved:


# %%
def kind(f, x):  # x: (batch, n, d)
    order = torch.randperm(x.shape[1])
    before, after = f(x), f(x[:, order])
    if torch.allclose(before, after, atol=1e-5):
        return "invariant"
    follows = before.dim() == 3 and torch.allclose(before[:, order], after, atol=1e-5)
    return "equivariant" if follows else "neither"


for name, f in functions.items():
    print(f"{name:26} {kind(f, points[None] / 8)}")

# %% [markdown]
# The last line is the recipe of this whole lesson: **equivariant layers, then an invariant pool**. The proof that it
# always works is one line: shuffle the input, and equivariant layers shuffle their rows in the same way; the pool
# does not care in which order rows stand.
#
# Why not take any network, and show it shuffled sets until it has learned to ignore the order? Sixteen points
# have twenty trillion orders, a seventeenth point makes that seventeen times as many, and so on. Better to
# build the network so that it *can't* see the order.
#
# The plan in one picture, drawn to scale for $n = 12$ elements: the scores of each kind of attention in this lesson and
# the next. (Section 3 explains the names; $k$ and $m$ count a few learned vectors.)

# %% jupyter={"source_hidden": true}
figures.products(
    {"SAB (§ 3)": [("n × n", 6, 6)], "PMA (§ 3)": [("k × n", 0.6, 6)],
     "ISAB (§ 3)": [("m × n", 1.5, 6), ("n × m", 6, 1.5)],
     "Perceiver (lesson 24)": [("m × n", 1.5, 6), ("m × m", 1.5, 1.5)]},
    title="Scores: all pairs, or a few rows in between",
    alt="Scores to scale for 12 elements. SAB: a square n × n. PMA: a thin strip k × n. ISAB: a "
    "strip m × n and one n × m. Perceiver: a strip m × n, then a small square m × m.",
)

# %% [markdown]
# ## 2 Pooling without attention
#
# ### 2.1 What a mean can't see
#
# We have equivariant layers. What is missing is the pool. Three are as old as statistics: mean, sum, maximum. How much
# of a set survives them? Take bags of one to four numbers, each from 1 to 4 (a bag is a set that may hold an element
# twice). There are $4 + 10 + 20 + 35 = 69$ such bags. How many of them does each pool tell apart? On paper: sums are
# whole numbers from 1 to 16, so 16. A maximum is one of 4. (And the mean?)
#
# What if each number is first written as a **one-hot vector**, as $\phi(2) = (0, 1, 0, 0)$, and then pooled column by
# column? Before you run: which pool now tells *all* 69 apart, and why do the others not?

# %%
bags = [torch.tensor(bag) for size in (1, 2, 3, 4)
        for bag in combinations_with_replacement((1, 2, 3, 4), size)]  # (size,) each
pools = {"mean": lambda x: x.mean(dim=-2), "sum": lambda x: x.sum(dim=-2),
         "max": lambda x: x.amax(dim=-2)}
encodings = {"the numbers themselves": lambda bag: bag[:, None].double(),
             "one-hot": lambda bag: F.one_hot(bag - 1, 4).double()}
for encoding, phi in encodings.items():
    for name, pool in pools.items():
        different = {tuple(pool(phi(bag)).tolist()) for bag in bags}
        print(f"{encoding:22}  {name:4}: {len(different):2} of {len(bags)} told apart")

# %% [markdown]
# The sum of one-hot vectors *counts*: so many ones, so many twos. Nothing is lost but the order. The mean keeps the
# proportions and forgets the size: {1, 2} and {1, 1, 2, 2} look alike. (The 69 bags have 51 different proportions. Of
# bare numbers it keeps a single fraction, and only 19 fractions occur.) The maximum knows which are there, not how
# often. Its 15 are the non-empty subsets of four numbers.
#
# ### 2.2 Deep Sets
#
# So what survives depends on $\phi$, and $\phi$ can be learned. Take the bag {2, 2, 4}: one-hot,
# $\phi(2) + \phi(2) + \phi(4) = (0, 2, 0, 1)$, and a second network could turn these counts into any answer. Zaheer et
# al. (2017, § 2.2) put it into one formula, with two networks, $\phi$ for each element and $\rho$ for the whole:
#
# $$f(x) = \rho\Big(\sum_i \phi(x_i)\Big)$$
#
# They prove more than that it is invariant. If the elements come from a countable set, *every* invariant function can
# be written so. (One-hot shows why: the sum has kept everything. For real numbers and continuous $\phi$ and $\rho$,
# which networks are, the pooled vector must be at least as wide as the largest set, or some functions are out of
# reach: Wagstaff et al. 2019.) "Can be written" says nothing about "is learned", as you will see.


# %% tags=["recorded"]
class Pool(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):  # (batch, n, d): (batch, 1, d)
        pooled = {"mean": torch.mean, "sum": torch.sum, "max": torch.amax}[self.how]
        return pooled(x, dim=1, keepdim=True)


def deep_sets(how, d_in, d_out, d=64):  # (batch, n, d_in): (batch, 1, d_out)
    phi = nn.Linear(d_in, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d)
    rho = nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d_out)
    return nn.Sequential(*phi, Pool(how), *rho)


# %% [markdown]
# ### 2.3 The largest number
#
# A task that a child can do, from Lee et al. (2019, § 5.1): given a set of numbers, say the largest. Ours lie between
# 0 and 1 (theirs between 0 and 100). We train on sets of one to ten numbers, as they did, and test on larger ones
# as well. One training loop serves the whole lesson. It warms the learning rate up, lets it fall at the end, and clips
# gradients:


# %% tags=["recorded"]
def fit(model, loss_of, steps, rate=1e-3, what=None):  # loss_of(model): a batch's loss
    optimizer = torch.optim.Adam(model.parameters())
    for step in progress(range(steps), what) if what else range(steps):
        loss = loss_of(model)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        factor = min(1, (step + 1) / 50, 2 * (1 - step / steps))
        optimizer.param_groups[0]["lr"] = rate * factor
        optimizer.step()
    return model


# %% [markdown]
# The sets, and how wrong a model is on them:


# %% tags=["recorded"]
SIZES = 5, 10, 20, 50, 200  # to test on


def numbers(size, n):
    x = torch.rand(size, n, 1)
    return x, x.amax(dim=(1, 2))  # (size, n, 1), (size,)


def wrong_by(model, n=None, size=64):  # mean distance from the largest
    x, largest = numbers(size, n or int(torch.randint(1, 11, ())))
    return (model(x).flatten() - largest).abs().mean()


# %% [markdown]
# Three pools, then. Which of them will be right on sets of 200 numbers, twenty times as many as they have seen?

# %%
largest = {}
for how in pools:
    torch.manual_seed(0)
    largest[how] = fit(deep_sets(how, 1, 1), wrong_by, 600, what=how)
print("wrong by, in hundredths; sets of  ", "".join(f"{size:8}" for size in SIZES))
for how, model in largest.items():
    with torch.no_grad():
        errors = [100 * wrong_by(model, size, 1000).item() for size in SIZES]
    print(f"  pooled by {how:24}", "".join(f"{each:8.2f}" for each in errors))
with torch.no_grad():
    says = [largest["mean"](numbers(1000, n)[0]).mean().item() for n in SIZES]
print("  the mean pool answers, on average ", "".join(f"{each:8.2f}" for each in says))

# %% [markdown]
# The maximum wins, of course: it *is* the answer, and $\phi$ has only to pass the number on. The sum is passable on
# sizes that it has seen, and lost beyond: twenty times the elements make sums twenty times as large, which $\rho$ has
# never met (our explanation). The mean does not explode. But it has forgotten how many there are (2.1): large sets look
# to it like small ones, and it answers about 0.87 at every size, while the largest of 200 is nearly 1.
#
# So the pool decides what is easy. Must *we* choose it, for each task anew? An attention layer could learn to.

# %% [markdown]
# ## 3 Attention that pools
#
# ### 3.1 Between mean and maximum
#
# We have three fixed pools. What is missing is one that learns. Let a query $s$ look at all elements: $\sum_i w_i x_i$
# with $w = \text{softmax}(s \cdot x_i)$. The result is **invariant**, since both the sum and the softmax run over the
# elements. What kind of pool is it? For plain numbers $s$ is also a number, and we can try all of them:

# %%
five = torch.tensor([0.1, 0.35, 0.4, 0.7, 0.9])  # (n,)
steepness = torch.linspace(-60, 60, 121)  # (queries,)
pooled = (steepness[:, None] * five).softmax(dim=-1) @ five  # (queries,)
for s in (-60, 0, 60):
    print(f"s = {s:3}: {pooled[steepness == s].item():.3f}")

# %% jupyter={"source_hidden": true}
plots.lines(
    {"pooled": (steepness.tolist(), pooled.tolist())}, xlabel="query s", ylabel="softmax(s x) · x",
    title="One query slides from the least to the greatest", mark=("s = 0: the mean", 0),
    alt="The pooled value of five numbers over the query s: 0.1, their minimum, for very negative "
    "s; their mean 0.49 at s = 0; 0.9, their maximum, for large s; a smooth S between.",
)

# %% [markdown]
# Minimum, mean, maximum, and all between, with one number that gradients can move. A *sum* it is not: weights sum to
# one, so attention can't count. (In 2.1's words: like the mean, it sees proportions.)
#
# ### 3.2 MAB: one block of attention
#
# Now with vectors, heads and a residual. The **multihead attention block** of Lee et al. (2019, eq. 6 and 7) lets a
# set $x$ look at a set $y$: queries are made of $x$, keys and values of $y$. Then it works on each row by itself
# (rFF, a row-wise feed-forward layer; below it is one linear layer and a ReLU):
#
# $$h = x + \text{Multihead}(x, y, y) \qquad \text{MAB}(x, y) = h + \text{rFF}(h)$$
#
# We follow the authors' code, which differs from their paper:
#
# | | the paper | the authors' code, and ours |
# | --- | --- | --- |
# | LayerNorm | around each line | none by default |
# | output matrix $W^O$ in the heads | yes | no |
# | what is added to the heads' result | $x$ | the *projected* query, which may have another width |
#
# Both divide scores by $\sqrt d$, where $d$ is the width of *all* heads together. Lesson 04 took the width of one head.


# %% tags=["recorded"]
class MAB(nn.Module):
    def __init__(self, d_x, d_y, d, heads=4):
        super().__init__()
        self.query = nn.Linear(d_x, d)
        self.key, self.value = nn.Linear(d_y, d), nn.Linear(d_y, d)
        self.linear, self.heads = nn.Linear(d, d), heads

    def forward(self, x, y):  # (batch, n, d_x), (batch, m, d_y)
        x, k, v = self.query(x), self.key(y), self.value(y)  # (batch, n | m, d)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for part in (x, k, v))  # (batch, heads, n | m, d / heads)
        scores = q @ k.mT / x.shape[-1] ** 0.5  # (batch, heads, n, m)
        self.weights = scores.softmax(dim=-1)  # kept, to look at
        h = x + (self.weights @ v).transpose(1, 2).flatten(2)  # (batch, n, d)
        return h + self.linear(h).relu()


# %% [markdown]
# ### 3.3 SAB and PMA
#
# A **set attention block** lets a set look at itself. **Pooling by multihead attention** lets $k$ learned vectors, the
# **seeds**, look at the set: whatever its size, $k$ rows come out. (The paper's formula, eq. 11, has one more
# rFF before it; its experiments leave that out.)
#
# $$\text{SAB}(x) = \text{MAB}(x, x) \qquad\qquad
# \text{PMA}_k(x) = \text{MAB}(S, x), \quad S \in \mathbb R^{k \times d}$$


# %% tags=["recorded"]
class SAB(nn.Module):
    def __init__(self, d_in, d):
        super().__init__()
        self.mab = MAB(d_in, d_in, d)

    def forward(self, x):  # (batch, n, d_in): (batch, n, d)
        return self.mab(x, x)


# %% [markdown]
# The seeds are parameters, like any weight:


# %% tags=["recorded"]
class PMA(nn.Module):
    def __init__(self, d, k=1):
        super().__init__()
        self.seeds = nn.Parameter(nn.init.xavier_uniform_(torch.empty(k, d)))
        self.mab = MAB(d, d, d)

    def forward(self, x):  # (batch, n, d): (batch, k, d)
        return self.mab(self.seeds.expand(len(x), -1, -1), x)


# %% [markdown]
# Section 1's test says what they are. (The last of the three is a whole **Set Transformer**: an encoder of SABs, a
# pool, and another SAB, in which the $k$ results see each other.)

# %%
torch.manual_seed(0)
x = torch.randn(1, 9, 2)  # (batch, n, d)
blocks = {"SAB": SAB(2, 16), "PMA": nn.Sequential(nn.Linear(2, 16), PMA(16, 3)),
          "SAB, PMA, SAB": nn.Sequential(SAB(2, 16), PMA(16, 3), SAB(16, 16))}
for name, block in blocks.items():
    print(f"{name:14} {tuple(block(x).shape)}  {kind(block, x)}")

# %% [markdown]
# ### 3.4 Inducing points: from $n^2$ to $n \cdot m$
#
# SAB compares every pair. For a thousand points that is a million scores per head and layer. An **induced** set
# attention block puts $m$ learned points between: they look at the set, and then the set looks at what they have seen.
#
# $$\text{ISAB}_m(x) = \text{MAB}(x, \; \text{MAB}(I, x)), \qquad I \in \mathbb R^{m \times d}$$
#
# (The name comes from Gaussian processes, where a few inducing points stand for all data.) Every element still learns
# of every other, but only through $m$ go-betweens. On paper, for $n = 1000$ and $m = 16$: $n^2 = 1{,}000{,}000$ scores
# against $2nm = 32{,}000$, 31 times fewer.


# %% tags=["recorded"]
class ISAB(nn.Module):
    def __init__(self, d_in, d, m=16):
        super().__init__()
        self.points = nn.Parameter(nn.init.xavier_uniform_(torch.empty(m, d)))
        self.inner, self.outer = MAB(d, d_in, d), MAB(d_in, d, d)

    def forward(self, x):  # (batch, n, d_in): (batch, n, d)
        seen = self.inner(self.points.expand(len(x), -1, -1), x)  # (batch, m, d)
        return self.outer(x, seen)


# %% [markdown]
# It has two blocks, so twice the projections. Is it worth it? Count all operations, on tensors without data:


# %%
def operations(block, n, d=64):
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        block.to("meta")(torch.empty(1, n, d))
    return counter.get_total_flops()


lengths = [16, 64, 256, 1024, 4096]
counted = {"SAB": [operations(SAB(64, 64), n) for n in lengths],
           "ISAB, m = 16": [operations(ISAB(64, 64), n) for n in lengths]}
for length, dense, induced in zip(lengths, *counted.values(), strict=True):
    print(f"n = {length:4}: SAB {dense / 1e6:8.1f} million, ISAB {induced / 1e6:6.1f}:",
          f"{dense / induced:5.1f} times")

# %% [markdown]
# For small sets it doesn't: 16 inducing points for 16 elements are only a detour. At 64 both cost the same (lesson
# 24's exercise works out why). Then the square decides: in the end, four times the elements bring nearly four times the
# gain.
#
# Is ISAB the dense block, computed faster? No. It is another function, with a bottleneck in it: no more than $m$
# different things can be said about the set. (Linformer, in lesson 32, also has a thin waist. But there a learned
# matrix mixes *positions*, which a set does not have. Here *attention* decides what goes into each of the $m$.)
#
# ### 3.5 The largest number again
#
# Three *random* seeds each (not PMA's), trained and tested as in 2.3; `data/flocks.py` has run these cells for you:


# %% tags=["recorded"]
def attention_pool():
    return nn.Sequential(SAB(1, 32), SAB(32, 32), PMA(32), nn.Linear(32, 1))


LARGEST = {how: partial(deep_sets, how, 1, 1) for how in ("mean", "sum", "max")}
LARGEST["SAB, PMA"] = attention_pool

# %% [markdown]
# The errors, one column per size, three seeds in each. (They are tested on other sets than in 2.3, so the first of
# each three differs a little from the numbers there.)

# %%
recorded = json.loads((DATA / "flocks.json").read_text())
print("wrong by, in hundredths; sets of")
print(f"{'':10}", "   ".join(f"{size:^20}" for size in SIZES))
for name, seeds in recorded["largest"].items():  # seed → an error for each size
    by_size = zip(*seeds.values(), strict=True)
    columns = (" ".join(f"{100 * each:6.2f}" for each in errors) for errors in by_size)
    print(f"{name:10}", "   ".join(columns))

# %% [markdown]
# Nothing told the attention which pool to be, and on every size its error is smaller than the mean pool's. It does not
# reach `max`: if you know the right pool, take it. And on sizes that it has not seen it gets worse, but unlike the sum
# it does so slowly. Why? The simplest picture of it is 3.1's pool with a fixed query
# $s$. The more numbers there are, the more of them are just below the largest and take part of the weight.
# For very many numbers between 0 and 1 the pooled value tends to $\int x e^{sx} dx / \int e^{sx} dx \approx 1 - 1/s$:
# a query of 15 ends up 0.07 below the largest, and no further.

# %% [markdown]
# ## 4 Clustering, learned
#
# ### 4.1 The task
#
# We have seen attention as a detour to `max`. What is missing is a task that needs it: something that none of the
# three pools does by itself. A **mixture of Gaussians** is $k$ round clouds in the plane: cloud $j$ has the fraction
# $\pi_j$ of the points, the mean $\mu_j$ and the standard deviation $\sigma_j$. Given only the points, find the
# clouds. Here $k = 3$, means anywhere between $-4$ and $4$, $\sigma = 0.3$; every division of the points among the
# clouds is equally likely (that is `Dirichlet` with ones):


# %% tags=["recorded"]
def mixtures(size, n, k=3):
    pi = torch.distributions.Dirichlet(torch.ones(k)).sample((size,))  # (size, k)
    mean, deviation = 8 * torch.rand(size, k, 2) - 4, torch.full((size, k, 2), 0.3)
    return draw(pi, mean, deviation, n), (pi, mean, deviation)


def draw(pi, mean, deviation, n):  # (size, n, 2): points of these clouds
    cloud = torch.multinomial(pi, n, replacement=True)  # (size, n)
    cloud = cloud[..., None].expand(-1, -1, 2)  # (size, n, 2)
    mean, deviation = mean.gather(1, cloud), deviation.gather(1, cloud)  # of each point
    return mean + deviation * torch.randn_like(mean)


# %% [markdown]
# One such set, with its three clouds drawn at two standard deviations:

# %% jupyter={"source_hidden": true}
torch.manual_seed(2)
one, one_truth = mixtures(1, 30)
figures.clusters(
    one, {"truth": one_truth[1:]}, title="Thirty points from three clouds",
    alt="Points in the plane in three heaps, a circle around each: the true clouds.",
)

# %% [markdown]
# How good is an answer? Ask how likely it makes the points. A point at the center of a cloud with $\sigma = 0.3$ that
# has a third of the points gets the density $\frac13 \cdot \frac{1}{2\pi \cdot 0.09} = 0.59$; its logarithm is
# $-0.53$. At two deviations from the center it is $-2.53$. In general cloud $j$ gives to a point $x$ the density
# $\mathcal N(x; \mu_j, \sigma_j)$, and the mixture the sum of all:
#
# $$\log p(x) = \log \sum_j \pi_j\, \mathcal N(x; \mu_j, \sigma_j) = \text{logsumexp}_j \Big( \log \pi_j -
# \sum_{a \in \{1, 2\}} \Big[ \frac{(x_a - \mu_{ja})^2}{2 \sigma_{ja}^2} + \log \sigma_{ja} \Big] - \log 2\pi \Big)$$
#
# The densities of far clouds are as small as $e^{-300}$, which is 0 in float32. So we add them up by `logsumexp`, and
# never leave the logarithm. (The formula has a deviation for each axis, $a = 1, 2$. Ours are equal.)


# %% tags=["recorded"]
def joint(x, pi, mean, deviation):  # (size, n, k): log of π × density
    away = (x[:, :, None] - mean[:, None]) / deviation[:, None]  # (size, n, k, 2)
    exponent = away.square() / 2 + deviation.log()[:, None]  # (size, n, k, 2)
    return pi.log()[:, None] - exponent.sum(dim=-1) - math.log(2 * math.pi)


def log_likelihood(x, clouds):  # per point: (size,)
    return joint(x, *clouds).logsumexp(dim=-1).mean(dim=-1)


# %% [markdown]
# ### 4.2 The classic: EM
#
# **Expectation maximization** (EM) starts from a guess and repeats two steps. E: how much of each point belongs to each
# cloud? (A softmax over clouds, a cousin of attention: each point attends to the clouds.) M: give each cloud the
# fraction, the mean and the deviation of what belongs to it. With `sigma` given, the deviation is known and stays.


# %% tags=["recorded"]
def em(x, clouds, steps, sigma=None):
    for _ in range(steps):
        belongs = joint(x, *clouds).softmax(dim=-1)  # E: (size, n, k)
        total = belongs.sum(dim=1) + 1e-6  # (size, k)
        mean = belongs.mT @ x / total[..., None]  # M: (size, k, 2)
        away = (x[:, :, None] - mean[:, None]).square()  # (size, n, k, 2)
        variance = (belongs[..., None] * away).sum(dim=1) / total[..., None]
        deviation = (variance + 1e-3).sqrt()  # (size, k, 2)
        if sigma is not None:
            deviation = torch.full_like(deviation, sigma)
        clouds = total / total.sum(dim=-1, keepdim=True), mean, deviation
    return clouds


def some_start(x, k=3):  # k of the points, large clouds
    chosen = torch.rand(x.shape[:2]).argsort(dim=-1)[:, :k, None]  # (size, k, 1)
    mean = x.gather(1, chosen.expand(-1, -1, 2))  # (size, k, 2)
    return torch.full((len(x), k), 1 / k), mean, torch.ones(len(x), k, 2)


# %% [markdown]
# Watch it on the set above, from three random points and large clouds:

# %% jupyter={"source_hidden": true}
torch.manual_seed(2)
start, rounds = some_start(one), (0, 1, 5, 20)
states = [em(one, start, steps) for steps in rounds]
figures.clusters(
    one.expand(4, -1, -1), {"truth": tuple(part.expand(4, -1, -1) for part in one_truth[1:]),
                            "EM": tuple(torch.cat(parts) for parts in list(zip(*states))[1:])},
    names=["the start", "1 round", "5 rounds", "20 rounds"], title="EM climbs from where it starts",
    alt="The same thirty points four times, with the true clouds and those of EM after 0, 1, 5 and 20 rounds: three "
    "wide circles around points of two heaps; they grow over all points; one fits a heap and two stretch; each has its "
    "heap.",
)

# %% [markdown]
# Each round of EM makes the points more likely, which one can prove. (Our code adds 1e-3 to each variance, so that a
# cloud around a single point can't shrink to nothing, where the likelihood has no bound.) But EM starts anew for every
# set, and climbs the nearest hill, not the highest; so one starts several times, and keeps what is likeliest. To judge,
# we draw 500 mixtures of 30 points each, and keep 200 *more* points of each mixture aside:

# %%
torch.manual_seed(99)
flocks, truth = mixtures(500, 30)  # (500, 30, 2): seen
fresh = draw(*truth, 200)  # (500, 200, 2): of the same clouds


def report(name, clouds):
    seen, unseen = (log_likelihood(x, clouds).mean().item() for x in (flocks, fresh))
    print(f"{name:28} on the points it saw {seen:6.2f}, on fresh ones {unseen:7.2f}")
    return unseen


# %% [markdown]
# EM after 1, 5, 20 and 100 rounds from one start; and after 20 rounds from five starts, of which the likeliest is
# kept:


# %%
def best_of(starts, sigma=None):  # for each set, the start that makes it likeliest
    tries = [em(flocks, some_start(flocks), 20, sigma) for _ in range(starts)]
    scores = torch.stack([log_likelihood(flocks, each) for each in tries])
    best = scores.argmax(dim=0)  # (500,)
    return tuple(torch.stack(part)[best, range(500)] for part in zip(*tries))


report("the truth", truth)
start_flocks = some_start(flocks)
for steps in (1, 5, 20, 100):
    report(f"EM, rounds: {steps}", em(flocks, start_flocks, steps))
several = report("EM, best of 5 starts", best_of(5))

# %% [markdown]
# Look at the two columns. After 20 rounds EM makes *its* points more likely than the truth does; yet after round 5
# fresh ones become less likely: it fits the noise. To EM, two points that happen to be close look like a fine small
# cloud. Several starts make it worse: of all hills the highest is the one that fits the noise best.
#
# ### 4.3 The network: many sets, one pass
#
# The other way is to learn what *sets in general* look like. A Set Transformer reads the points. Three learned seeds
# pool them, one for each cloud, and each becomes five numbers: a logit for the fraction, two for the mean, two for the
# deviations. The loss is minus the log-likelihood: it is never told the true clouds. Clustering is paid for once,
# in training; afterwards each new set costs one forward pass. This is called **amortized** inference.


# %% tags=["recorded"]
def clouds_of(out):  # (size, k, 5)
    return out[..., 0].softmax(dim=-1), out[..., 1:3], F.softplus(out[..., 3:]) + 0.01


def set_transformer(block, d=48):
    pooled = PMA(d, 3), SAB(d, d)
    return nn.Sequential(block(2, d), block(d, d), *pooled, nn.Linear(d, 5))


def unlikely(model):  # the loss of a batch
    x, _ = mixtures(32, int(torch.randint(20, 41, ())))
    return -log_likelihood(x, clouds_of(model(x))).mean()


# %% [markdown]
# Train it. (It takes some seconds. The loss of the truth would be about 1.2.)

# %%
kept = []


def watched(model):  # the same loss, written down
    loss = unlikely(model)
    kept.append(loss.detach())
    return loss


torch.manual_seed(0)
finder = fit(set_transformer(SAB), watched, 700, rate=2e-3, what="The network")
smooth = torch.stack(kept).view(-1, 70).mean(dim=-1)  # (10,)
print("loss, means of 70 batches:", " ".join(f"{each:.2f}" for each in smooth))

# %% [markdown]
# In one forward pass it clusters all 500 sets, none of which it has seen:

# %%
with torch.no_grad():
    found = clouds_of(finder(flocks))
expect("log-likelihood of fresh points", report("one forward pass", found), -3.5, -1.5)
polished = report("… and one round of EM", em(flocks, found, 1))

# %% [markdown]
# Compare with EM's numbers. On the points that both have seen, EM is ahead; on fresh points, the network. It is
# tempting to say that the network is better at clustering. But it has met 22,400 sets in training, all with $\sigma =
# 0.3$. It has been *told*: clouds are not as small as two points that happen to be close. EM has not. Be fair, and
# tell EM.

# %% jupyter={"source_hidden": true}
predict(
    "em-told", "EM is told σ = 0.3 and gets five starts. On fresh points, compared with the network?",
    "it is still behind: it fits the noise", "about equal", "it is ahead",
)

# %%
report("EM told σ, one start", em(flocks, start_flocks, 20, sigma=0.3))
for seed in range(3):  # other starts each time
    torch.manual_seed(seed)
    started = time.perf_counter()
    five = best_of(5, sigma=0.3)
    searched = time.perf_counter() - started
    told = report("EM told σ, best of 5", five)
torch.manual_seed(0)
informed = best_of(20, sigma=0.3)
report("EM told σ, best of 20", informed)
expect("EM told σ, best of 5, fresh points", told, -2.0, -1.7)

# %% jupyter={"source_hidden": true}
predicted("em-told", "it is ahead", "With σ known, more starts help: the highest hill is now the right one.")

# %% [markdown]
# EM that knows the deviation wins, given several starts: they now help instead of hurting, and with a single one it is
# far behind. (The networks of 4.4, trained for 1,000 steps instead of 700, score about what EM does with five starts,
# though on other sets, and less than with twenty.) Does the network take the deviation from the points, or does it know
# it beforehand? Show it clouds that are smaller or larger than any in its training:

# %%
torch.manual_seed(99)
for sigma in (0.1, 0.3, 0.6):
    pi, mean, deviation = mixtures(500, 30)[1]
    x = draw(pi, mean, torch.full_like(deviation, sigma), 30)  # (500, 30, 2)
    with torch.no_grad():
        answer = clouds_of(finder(x))[2].median()
    print(f"true deviation {sigma}, the network's {answer:.2f}")

# %% [markdown]
# It says about 0.3, nearly whatever it sees. So the network has learned a part of the **prior**: what sets in general
# look like. (Its loss does not ask for that. On the points that are read, EM's noisy clouds score better than the
# truth. Our explanation: the network can't fit each set so closely, and falls back on what sets have in common.) What
# it saves is the search:

# %% tags=["nbval-ignore-output"]
started = time.perf_counter()
with torch.no_grad():
    finder(flocks)
passed = time.perf_counter() - started
print(f"500 sets: EM, 5 · 20 rounds {1000 * searched:.0f} ms,",
      f"one forward pass {1000 * passed:.0f} ms")

# %% [markdown]
# That is the bargain of amortized inference: pay once, in training, and each answer is one pass. And the prior need not
# be written down, as long as we can draw sets from it. If you can write it down, and have time to search, EM may be
# better, as it is here.
#
# Four of the test sets, with the truth and what the network found:

# %% jupyter={"source_hidden": true}
display(figures.clusters(
    flocks[:4], {"truth": truth[1:], "network": tuple(part[:4] for part in found[1:])},
    title="The network: one pass, and some ellipses wide",
    alt="Four sets of 30 points in the plane, in up to three heaps. Solid circles show the true clouds, dashed ones "
    "those of the network; some are wider than the true ones, and in the third set two stretch over two clouds.",
))
figures.clusters(
    flocks[:4], {"truth": truth[1:], "EM told σ": tuple(part[:4] for part in informed[1:])},
    title="EM that is told σ, best of twenty",
    alt="The same four sets with the true clouds and those of EM, which all have the true size and are in place, "
    "except one in the fourth set, whose third cloud has no points.",
)

# %% [markdown]
# Some of the network's ellipses are wide, and one may cover two clouds: it hedges (our reading). A cloud that has not
# given a single point can't be found at all.
#
# How does it do it? Each of its three seeds looks at the points. Here is how much weight each gives to each point of
# the first set, the mean of the heads:

# %% jupyter={"source_hidden": true}
with torch.no_grad():
    finder(flocks)
looks = finder[2].mab.weights.mean(dim=1)  # (500, seed, n)
figures.clusters(
    flocks[:1].expand(3, -1, -1), {"truth": tuple(part[:1].expand(3, -1, -1) for part in truth[1:]),
                                   "its ellipse": (found[1][0][:, None], found[2][0][:, None])},
    title="Each seed has taken a heap", names=["seed 1", "seed 2", "seed 3"], weights=looks[0],
    alt="The first set three times, with its true clouds; a point is the larger the more weight a seed gives it. Seed 1: the heap on the "
    "right, with a small ellipse around it. Seed 2: the lone point, and a little of the heap beside it, its ellipse "
    "between them. Seed 3: the middle heap and one point of the right heap, its ellipse wide.",
)

# %% [markdown]
# They have divided the work. Seed 1 looks at the heap on the right, seed 2 at the lone point on the left, seed 3 at
# the heap in the middle. Where a seed also looks elsewhere, its ellipse is too wide. One set can mislead, so count on
# all 500: how much of a seed's weight is on a single true cloud? On how many different clouds are the three? And where
# in the plane do they look?

# %%
belongs = joint(flocks, *truth).softmax(dim=-1)  # (500, n, cloud)
share = looks @ belongs  # (500, seed, cloud)
three = (belongs.sum(dim=1) > 0.5).all(dim=-1)  # (500,): each cloud has a point
apart = torch.tensor([len(set(each)) == 3 for each in share.argmax(dim=-1).tolist()])
where = (looks @ flocks)[..., 0].mean(dim=0)  # (seed,): x of what it looks at
largest_cloud = belongs.mean(dim=1).amax(dim=-1).mean()
print(f"a seed has {share.amax(dim=-1).mean():.0%} of its weight on one cloud;",
      f"the largest cloud has {largest_cloud:.0%} of the points")
print(f"three clouds for three seeds: {(apart & three).sum()} of {three.sum()} sets")
print("they look at x =", ", ".join(f"{x:.1f}" for x in where.tolist()))

# %% [markdown]
# About nine tenths of a seed's weight is on one cloud, and in two of three sets in which each cloud has a point, each
# has a seed of its own. They divide the plane: one takes what is on the right, one what is on the left, one what is
# between. The loss never asked for that. It asked for likely points, and three seeds that looked at the same cloud
# would leave the others unlikely. (On the third set above they have failed: two clouds with nearly the same x share two
# wide ellipses.)
#
# ### 4.4 Three seeds, and sizes that were never seen
#
# `data/flocks.py` has trained Deep Sets (96 wide instead of 48, which gives it more parameters than the SABs; with the
# maximum or the mean as its pool), SABs and ISABs for 1,000 steps with three random seeds, on sets of 20 to 40 points.
# Here are its log-likelihoods of fresh points after it has read 10, 30, 100 or 300:


# %% tags=["recorded"]
def deep_clouds(how):
    rows = nn.Flatten(), nn.Unflatten(-1, (3, 5))
    return nn.Sequential(deep_sets(how, 2, 15, d=96), *rows)


CLUSTERS = {"Deep Sets, max": partial(deep_clouds, "max"),
            "Deep Sets, mean": partial(deep_clouds, "mean"),
            "SAB": partial(set_transformer, SAB),
            "ISAB, m = 16": partial(set_transformer, ISAB)}
READ = (10, 30, 100, 300)


# %% [markdown]
# And their score for each number of points:


# %% tags=["recorded"]
@torch.no_grad()
def by_size(model):
    scores = []
    for n in READ:
        torch.manual_seed(n)
        x, clouds = mixtures(500, n)
        unseen = draw(*clouds, 200)  # (500, 200, 2)
        scores.append(log_likelihood(unseen, clouds_of(model(x))).mean().item())
    return scores


# %% [markdown]
# One line per model, three seeds in each column; and the column of 30 points as a picture:

# %%
ranges = {}
print(f"{'points read:':16}", "  |  ".join(f"{n:^22}" for n in READ))
for name in CLUSTERS:
    seeds = recorded["clusters"][name]  # seed → a score for each size
    by_read = zip(*seeds.values(), strict=True)
    columns = ("  ".join(f"{score:6.2f}" for score in three) for three in by_read)
    print(f"{name:16}", "  |  ".join(columns))
    at_30 = [each[READ.index(30)] for each in seeds.values()]
    ranges[name] = min(at_30), sum(at_30) / len(at_30), max(at_30)
everywhere = draw(*mixtures(2000, 30)[1], 200).flatten(0, 1)  # (400000, 2)
one_cloud = torch.distributions.Normal(everywhere.mean(dim=0), everywhere.std(dim=0))
score = one_cloud.log_prob(everywhere).sum(dim=-1).mean()
print(f"one cloud for all sets, whatever was read: {score:.2f}")

# %% jupyter={"source_hidden": true}
plots.ranges(
    ranges, title="With 30 points, elements that see each other cluster better",
    xlabel="log-likelihood of fresh points, per point, after 30 were read",
    alt="Log-likelihood of fresh points after 30 were read, three seeds. " + "; ".join(
        f"{name}: {low:.2f} to {high:.2f}" for name, (low, _, high) in ranges.items()),
)

# %% [markdown]
# With 30 points both Set Transformers are ahead of Deep Sets, in every seed. Our explanation: the $\phi$ of Deep Sets
# sees one point alone, so $\rho$ must do all comparing, after the pool; in an SAB the points look at each other first.
# The 16 inducing points lose nothing here.
#
# Now read along a line. With 100 or 300 points, more than any model has seen, the Set Transformers get *better*: more
# points show the clouds more clearly, and the truth is at about $-1.25$. Deep Sets does not improve. With ten points,
# fewer than any model has seen, the order changes: the Set Transformers beat one cloud for all sets by 0.1 to 0.8, and
# Deep Sets with a *mean* is far ahead of all others, with about the score that it has at any size. In part ten points
# must be bad, since a cloud of which no point was drawn can't be found. But the mean shows that more was in them.

# %% [markdown]
# ## 5 Open the library
#
# We have our own blocks. The library's are in `txlib.attention`, with masks for sets of different sizes, and with the
# paper's formula as well as the code's:

# %%
from txlib import attention as library

show_source(library.MAB.forward, library.ISAB.forward, library.PMA.forward)

# %% [markdown]
# The same numbers as ours, with the same weights (theirs have `attention.` in some names):

# %%
torch.manual_seed(0)
x, y = torch.randn(2, 9, 48), torch.randn(2, 5, 48)  # (batch, n, d)
blocks = {"MAB": (MAB(48, 48, 48), library.MAB(48, 4), (x, y)),
          "SAB": (SAB(48, 48), library.SAB(48, 4), (x,)),
          "ISAB": (ISAB(48, 48), library.ISAB(48, 4, 16), (x,)),
          "PMA": (PMA(48, 3), library.PMA(48, 4, 3), (x,))}
for what, (mine, theirs, inputs) in blocks.items():
    ours = mine.state_dict()
    names = theirs.state_dict().keys()
    theirs.load_state_dict(
        {name: ours[name.replace("attention.", "")] for name in names})
    prove_equal(mine(*inputs), theirs(*inputs), what=what)

# %% [markdown]
# `txlib.models` also has whole models: `SetTransformer` and `DeepSets`. On the command line, `txlib train sets` trains
# both. Point clouds, particles in a detector, molecules: wherever data are sets, equivariant layers and a pool read
# them.

# %% [markdown]
# ## 6 Quiz
#
# Decide first, then open an answer.
#
# **1. f(x) subtracts the mean of the set from each element. What is f?**
#
# <details><summary>A. Invariant: the mean is</summary>
#
# The mean is, but the result has a row for each element, and they come shuffled if the input does.
# </details>
# <details><summary>B. Equivariant</summary>
#
# Right. Each row depends on its own element and on something invariant. (Zaheer et al.'s equivariant layer is of this
# kind.)
# </details>
# <details><summary>C. Neither</summary>
#
# Shuffle three numbers by hand, and look.
# </details>
#
# **2. A PMA with one seed pools a set. Each element is then put in twice. What happens to the result?**
#
# <details><summary>A. It doubles</summary>
#
# A sum would. Softmax weights sum to one.
# </details>
# <details><summary>B. Nothing</summary>
#
# Right. Each copy gets half the weight. Attention sees proportions, and can't count.
# </details>
# <details><summary>C. It comes nearer to the mean</summary>
#
# The weights of *different* elements keep their ratios.
# </details>
#
# **3. ISAB with m = 32 on sets of 20 elements. How many scores per head, against SAB?**
#
# <details><summary>A. Fewer: 2 · 20 · 32 is linear</summary>
#
# Linear, and larger: 1,280 against 400.
# </details>
# <details><summary>B. More: 1,280 against 400</summary>
#
# Right. In scores it pays when n is larger than 2m; in all operations later (3.4).
# </details>
# <details><summary>C. As many</summary>
#
# n² = 400; 2nm = 1,280.
# </details>
#
# **4. A network clusters better than EM on fresh points. EM was not told the clouds' size; the network was trained on
# sets that all had it. What does the comparison show?**
#
# <details><summary>A. That attention clusters better than EM</summary>
#
# EM that is told the size was ahead.
# </details>
# <details><summary>B. That the network knows something that EM was not told</summary>
#
# Right: a part of the prior. Whether it also searches better, only a rival can show that knows it as well.
# </details>
# <details><summary>C. That EM needs more rounds</summary>
#
# More rounds made fresh points less likely.
# </details>

# %% [markdown]
# ## 7 Summary
#
# - Invariant: f(Px) = f(x). Equivariant: f(Px) = P f(x). Equivariant layers and then an invariant pool are a network
#   for sets.
# - A mean forgets how many, a maximum how often, and a sum grows with the set, into sizes that $\rho$ has not seen.
#   Deep Sets is $\rho(\sum \phi(x_i))$.
# - In a MAB one set looks at another; in a SAB at itself. In PMA learned seeds look at the set, which pools it. In ISAB
#   $m$ learned points stand between: $2nm$ scores instead of $n^2$.
# - Clustering can be learned from likelihood alone: paid for once, then one forward pass per set. What is learned is
#   a part of the prior; here EM that is told $\sigma$, with many starts, is better, and slower.
#
# **Read** Zaheer et al. 2017, *Deep Sets*, [arXiv:1703.06114](https://arxiv.org/abs/1703.06114), section 2. Lee et
# al. 2019, *Set Transformer*, [arXiv:1810.00825](https://arxiv.org/abs/1810.00825), sections 3 and 5. Wagstaff et al.
# 2019, *On the Limitations of Representing Functions on Sets*, [arXiv:1901.09006](https://arxiv.org/abs/1901.09006).
#
# **Do** the exercise [23_sets](../exercises/exercise_23_sets.ipynb). Then go on to [24 Arrays](24_arrays.ipynb), where
# a few learned vectors read anything.
