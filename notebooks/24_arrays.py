# %% [markdown] lesson={"part": "III Beyond text", "builds": "invariance, Deep Sets, the Set Transformer, learned clustering; the Perceiver for pixels, bytes and both; Perceiver IO"}
# # 24 · Sets and arrays
#
# **After this lesson you will be able to**
#
# - test whether a function is invariant or equivariant, and make an invariant one out of an equivariant one;
# - say, by counting, what a mean, a sum and a maximum can't tell apart, and build Deep Sets;
# - build attention for sets step by step: MAB, SAB, pooling by attention, inducing points;
# - train a network that finds clusters in one forward pass, and compare it with EM and with the truth;
# - build a Perceiver, which reads pixels, bytes, or both at once, and say what its positions are good for;
# - ask it for outputs of any number and kind with queries: Perceiver IO.
#
# **You need** lessons 03 to 06, 05 most of all; 08, 14 and 19 help. **It takes** about 100 minutes to read and try;
# all cells together run in about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: some things have no order
#
# A sentence has an order, and a picture has rows. What about the measurements of one patient, the stars in one
# photograph, the points that a laser found on one chair? They are a **set**: any number of elements, in no order. Let
# us make one from a handwritten digit: the places that hold ink.

# %% tags=["recorded"]
import json
import math
from itertools import combinations_with_replacement

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from txlib import plots
from txcourse import figures
from txcourse.lesson import expect, progress, prove_equal, show_source
from txlib.paths import DATA

torch.set_num_threads(1)  # for tensors this small, more threads only wait

# %% [markdown]
# Digits of $8 \times 8$ pixels come with the course:

# %%
from txlib.data import digits

torch.manual_seed(0)
pictures = digits()
image = pictures.train.pixel_values[3, 0]                           # (row, column): 8 × 8, ink is 1
points = (image > 0.5).nonzero().float()  # (n, 2): row and column of each inked pixel
n = len(points)
some = points[torch.randperm(n)][:5].tolist()
print("a few points of a", pictures.train.labels[3].item(), "in some order:", some)
print(f"{n} points can be listed in {n}! = {math.factorial(n):.1e} orders")

# %% [markdown]
# All these lists are the same digit. A function of a set must not care which of them it is given. There are two ways
# of not caring. With $P$ for any permutation of the rows of $x$:
#
# $$\text{invariant:}\quad f(Px) = f(x) \qquad\qquad \text{equivariant:}\quad f(Px) = P f(x)$$
#
# Lesson 05 had the second: self-attention without positions gives shuffled tokens in, shuffled outputs out. It was a
# defect there. Here it is what we want, and yet not enough: *which digit is it?* is one answer for the whole set, and
# that one has to be **invariant**. Who is what? Guess each line before you run the next cell.

# %%
torch.manual_seed(0)
row, gru, each_alone = nn.Linear(2 * n, 8), nn.GRU(2, 8, batch_first=True), nn.Linear(2, 8)
to_q, to_k, to_v = (nn.Linear(2, 8) for _ in range(3))


def self_attention(x):                                              # (batch, n, 2): (batch, n, 8)
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
def kind(f, x):                                                     # x: (batch, n, d)
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
# Could one not take any network, and show it shuffled sets until it has learnt to ignore the order? Sixteen points
# have twenty million million orders, a seventeenth point makes that seventeen times as many, and so on. Better to
# build the network so that it *can't* see the order.
#
# The plan in one picture, drawn to scale for $n = 12$ elements: what each kind of attention in this lesson writes
# down.

# %%
figures.products(
    {"SAB (§ 3)": [("n × n", 6, 6)], "PMA (§ 3)": [("k × n", 0.6, 6)],
     "ISAB (§ 3)": [("m × n", 1.5, 6), ("n × m", 6, 1.5)],
     "Perceiver (§ 5)": [("m × n", 1.5, 6), ("m × m", 1.5, 1.5)]},
    title="Scores: all pairs, or few rows that stand between",
    alt="Scores to scale for 12 elements. SAB: a square n × n. PMA: a thin strip k × n. ISAB: a "
    "strip m × n and one n × m. Perceiver: a strip m × n, then a small square m × m.",
)

# %% [markdown]
# ## 2 Pooling without attention
#
# ### 2.1 What a mean can't see
#
# Three pools are as old as statistics: mean, sum, maximum. How much of a set survives them? Take bags of one to four
# numbers, each from 1 to 4 (a bag is a set that may hold an element twice). There are $4 + 10 + 20 + 35 = 69$ such
# bags. How many of them does each pool tell apart? On paper: sums are whole numbers from 1 to 16, so 16. A maximum is
# one of 4. (And the mean?)
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
# bare numbers it keeps a single fraction, and only 19 fractions occur.) The maximum knows who is there, not how
# often. Its 15 are the non-empty subsets of four numbers.
#
# ### 2.2 Deep Sets
#
# So it depends on $\phi$, and $\phi$ can be learnt. Zaheer et al. (2017, § 2.2) put it into one formula, with two
# networks, $\phi$ for each element and $\rho$ for the whole:
#
# $$f(x) = \rho\Big(\sum_i \phi(x_i)\Big)$$
#
# They prove more than that it is invariant. If the elements come from a countable set, *every* invariant function can
# be written so. (One-hot shows why: the sum has kept everything. For real numbers and continuous $\phi$ and $\rho$,
# which networks are, the pooled vector must be at least as wide as the largest set, or some functions are out of
# reach: Wagstaff et al. 2019.) "Can be written" says nothing about "is learnt", as you will see.


# %% tags=["recorded"]
class Pool(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):                                           # (batch, n, d): (batch, 1, d)
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
# 0 and 1 (theirs between 0 and 100). We train on sets of one to ten numbers, as they did, and test on larger ones,
# too. One training loop serves the whole lesson. It warms the learning rate up, lets it fall at the end, and clips
# gradients:


# %% tags=["recorded"]
def fit(model, loss_of, steps, rate=1e-3, what=None):       # loss_of(model): a batch's loss
    optimiser = torch.optim.Adam(model.parameters())
    for step in progress(range(steps), what) if what else range(steps):
        loss = loss_of(model)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.param_groups[0]["lr"] = rate * min(1, (step + 1) / 50, 2 * (1 - step / steps))
        optimiser.step()
    return model


# %% [markdown]
# The sets, and how wrong a model is on them:


# %% tags=["recorded"]
SIZES = 5, 10, 20, 50, 200                                          # to test on


def numbers(size, n):
    x = torch.rand(size, n, 1)
    return x, x.amax(dim=(1, 2))                                    # (size, n, 1), (size,)


def wrong_by(model, n=None, size=64):                               # mean distance from the largest
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

# %% [markdown]
# The maximum wins, of course: it *is* the answer, and $\phi$ has only to pass the number on. The sum is passable on
# sizes that it has seen, and lost beyond: twenty times the elements make sums twenty times as large, which $\rho$ has
# never met. The mean does not explode, but has nothing to go by: among 200 numbers one large one hardly moves it.
#
# So the pool decides what is easy. Must *we* choose it, for each task anew? An attention layer could learn to.

# %% [markdown]
# ## 3 Attention that pools
#
# ### 3.1 Between mean and maximum
#
# Let a query $s$ look at all elements: $\sum_i w_i x_i$ with $w = \text{softmax}(s \cdot x_i)$. The result is
# **invariant**, since both the sum and the softmax run over the elements. What kind of pool is it? For plain numbers
# $s$ is a number, too, and we can try all of them:

# %%
five = torch.tensor([0.1, 0.35, 0.4, 0.7, 0.9])                     # (n,)
steepness = torch.linspace(-60, 60, 121)                            # (queries,)
pooled = (steepness[:, None] * five).softmax(dim=-1) @ five         # (queries,)
for s in (-60, 0, 60):
    print(f"s = {s:3}: {pooled[steepness == s].item():.3f}")
plots.lines(
    {"pooled": (steepness.tolist(), pooled.tolist())}, xlabel="query s", ylabel="softmax(s x) · x",
    title="One query slides from the least to the greatest", mark=("s = 0: the mean", 0),
    alt="The pooled value of five numbers over the query s: 0.1, their minimum, for very negative "
    "s; their mean 0.49 at s = 0; 0.9, their maximum, for large s; a smooth S between.",
)

# %% [markdown]
# Minimum, mean, maximum, and all between, with one number that gradients can move. A *sum* it is not: weights add up
# to one, so attention can't count. (In 2.1's words: like the mean, it sees proportions.)
#
# ### 3.2 MAB: one block of attention
#
# Now with vectors, heads and a residual. The **multihead attention block** of Lee et al. (2019, eq. 6 and 7) lets a
# set $x$ look at a set $y$: queries are made of $x$, keys and values of $y$. Then it works on each row by itself
# (rFF, a row-wise feed-forward layer; below it is one linear layer and a ReLU):
#
# $$h = x + \text{Multihead}(x, y, y) \qquad \text{MAB}(x, y) = h + \text{rFF}(h)$$
#
# The paper has a LayerNorm around each line, and an output matrix $W^O$ in the heads. The authors' own code, which we
# follow here, has neither as its default, and adds to the *projected* query in place of $x$, which can then have
# another width. Paper and code divide scores by $\sqrt d$, where $d$ is the width of *all* heads together. Lesson 04
# took the width of one head.


# %% tags=["recorded"]
class MAB(nn.Module):
    def __init__(self, d_x, d_y, d, heads=4):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(d_x, d), nn.Linear(d_y, d), nn.Linear(d_y, d)
        self.linear, self.heads = nn.Linear(d, d), heads

    def forward(self, x, y):  # (batch, n, d_x), (batch, m, d_y)
        x, k, v = self.query(x), self.key(y), self.value(y)  # (batch, n, d), (batch, m, d) twice
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (x, k, v))
        weights = (q @ k.mT / x.shape[-1] ** 0.5).softmax(dim=-1)   # (batch, heads, n, m)
        h = x + (weights @ v).transpose(1, 2).flatten(2)            # (batch, n, d)
        return h + self.linear(h).relu()


# %% [markdown]
# ### 3.3 SAB and PMA
#
# A **set attention block** is a set that looks at itself. **Pooling by multihead attention** is $k$ learnt vectors,
# the *seeds*, that look at the set: whatever its size, $k$ rows come out. (The paper's formula, eq. 11, has one more
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

    def forward(self, x):                                           # (batch, n, d): (batch, k, d)
        return self.mab(self.seeds.expand(len(x), -1, -1), x)


# %% [markdown]
# Section 1's test says what they are. (The third is a whole **Set Transformer**: an encoder of SABs, a pool, and
# after it another SAB, in which the $k$ results see each other.)

# %%
torch.manual_seed(0)
x = torch.randn(1, 9, 2)                                            # (batch, n, d)
blocks = {"SAB": SAB(2, 16), "PMA": nn.Sequential(nn.Linear(2, 16), PMA(16, 3)),
          "SAB, PMA, SAB": nn.Sequential(SAB(2, 16), PMA(16, 3), SAB(16, 16))}
for name, block in blocks.items():
    print(f"{name:14} {tuple(block(x).shape)}  {kind(block, x)}")

# %% [markdown]
# ### 3.4 Inducing points: from $n^2$ to $n \cdot m$
#
# SAB compares every pair. For a thousand points that is a million scores per head and layer. An **induced** set
# attention block puts $m$ learnt points between: they look at the set, and then the set looks at what they have seen.
#
# $$\text{ISAB}_m(x) = \text{MAB}(x, \; \text{MAB}(I, x)), \qquad I \in \mathbb R^{m \times d}$$
#
# (The name comes from Gaussian processes, where a few inducing points stand for all data.) Every element still hears
# of every other, but through $m$ mouths. On paper, for $n = 1000$ and $m = 16$: $n^2 = 1{,}000{,}000$ scores against
# $2nm = 32{,}000$, 31 times fewer.


# %% tags=["recorded"]
class ISAB(nn.Module):
    def __init__(self, d_in, d, m=16):
        super().__init__()
        self.points = nn.Parameter(nn.init.xavier_uniform_(torch.empty(m, d)))
        self.inner, self.outer = MAB(d, d_in, d), MAB(d_in, d, d)

    def forward(self, x):  # (batch, n, d_in): (batch, n, d)
        seen = self.inner(self.points.expand(len(x), -1, -1), x)   # (batch, m, d)
        return self.outer(x, seen)


# %% [markdown]
# It has two blocks, so twice the projections. Does it pay? Count all operations, on tensors without data:


# %%
def operations(block, n, d=64):
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        block.to("meta")(torch.empty(1, n, d))
    return counter.get_total_flops()


lengths = [16, 64, 256, 1024, 4096]
counted = {"SAB": [operations(SAB(64, 64), n) for n in lengths],
           "ISAB, m = 16": [operations(ISAB(64, 64), n) for n in lengths]}
for n, dense, induced in zip(lengths, *counted.values(), strict=True):
    print(f"n = {n:4}: SAB {dense / 1e6:8.1f} million, ISAB {induced / 1e6:6.1f} million: "
          f"{dense / induced:5.1f} times")

# %% [markdown]
# For small sets it doesn't: 16 inducing points for 16 elements are only a detour. At 64 both cost the same (the
# exercise works out why). Then the square decides: in the end, four times the elements bring nearly four times the
# gain.
#
# Is ISAB the dense block, computed faster? No. It is another function, with a bottleneck in it: no more than $m$
# different things can be said about the set. (Linformer, in lesson 32, also has a thin waist. But there a learnt
# matrix mixes *positions*, which a set does not have. Here *attention* decides what goes into each of the $m$.)
#
# ### 3.5 The largest number again
#
# Three *random* seeds each (not PMA's), trained and tested as in 2.3; `data/flocks.py` has run these cells for you:


# %% tags=["recorded"]
LARGEST = {"mean": lambda: deep_sets("mean", 1, 1), "sum": lambda: deep_sets("sum", 1, 1),
           "max": lambda: deep_sets("max", 1, 1),
           "SAB, PMA": lambda: nn.Sequential(SAB(1, 32), SAB(32, 32), PMA(32), nn.Linear(32, 1))}

# %% [markdown]
# The errors, one column per size, three seeds in each. (They are tested on other sets than in 2.3, so the first of
# each three differs a little from the numbers there.)

# %%
recorded = json.loads((DATA / "flocks.json").read_text())
print("wrong by, in hundredths; sets of")
print(f"{'':10}", "   ".join(f"{size:^20}" for size in SIZES))
for name, seeds in recorded["largest"].items():                     # seed → an error for each size
    by_size = zip(*seeds.values(), strict=True)
    columns = (" ".join(f"{100 * each:6.2f}" for each in errors) for errors in by_size)
    print(f"{name:10}", "   ".join(columns))

# %% [markdown]
# Nobody told the attention which pool to be, and on every size it is nearer to the largest number than the mean. It
# can't win against `max`: if you know the right pool, take it. And on sizes that it has not seen it gets worse, but
# unlike the sum it does so slowly, and levels off. Why? The simplest picture of it is 3.1's pool with a fixed query
# $s$. The more numbers there are, the more of them stand close below the largest and take their share of the weight.
# For very many numbers between 0 and 1 the pooled value tends to $\int x e^{sx} dx / \int e^{sx} dx \approx 1 - 1/s$:
# a query of 15 ends up 0.07 below the largest, and no further.

# %% [markdown]
# ## 4 Clustering, learnt
#
# ### 4.1 The task
#
# So far attention has been a detour to `max`. Now for something that none of the three pools does by itself. A
# **mixture of Gaussians** is $k$ round clouds in the plane: cloud $j$ has the share $\pi_j$ of the points, the mean
# $\mu_j$ and the standard deviation $\sigma_j$. Given only the points, find the clouds. Here $k = 3$, means anywhere
# between $-4$ and $4$, $\sigma = 0.3$; every way of sharing out the points is equally likely (that is `Dirichlet`
# with ones):


# %% tags=["recorded"]
def mixtures(size, n, k=3):
    pi = torch.distributions.Dirichlet(torch.ones(k)).sample((size,))   # (size, k): shares
    mean, deviation = 8 * torch.rand(size, k, 2) - 4, torch.full((size, k, 2), 0.3)
    return draw(pi, mean, deviation, n), (pi, mean, deviation)


def draw(pi, mean, deviation, n):  # (size, n, 2): points of these clouds
    cloud = torch.multinomial(pi, n, replacement=True)[..., None].expand(-1, -1, 2)  # (size, n, 2)
    mean, deviation = mean.gather(1, cloud), deviation.gather(1, cloud)  # of each point
    return mean + deviation * torch.randn_like(mean)


# %% [markdown]
# How good is an answer? Ask how likely it makes the points. Cloud $j$ gives to a point $x$ the density
# $\mathcal N(x; \mu_j, \sigma_j)$, and the mixture the sum of all:
#
# $$\log p(x) = \log \sum_j \pi_j\, \mathcal N(x; \mu_j, \sigma_j) = \text{logsumexp}_j \Big( \log \pi_j -
# \sum_{a \in \{1, 2\}} \Big[ \frac{(x_a - \mu_{ja})^2}{2 \sigma_{ja}^2} + \log \sigma_{ja} \Big] - \log 2\pi \Big)$$
#
# The densities of far clouds are as small as $e^{-300}$, which is 0 in float32. So we add them up by `logsumexp`, and
# never leave the logarithm. (The formula has a deviation for each axis, $a = 1, 2$. Ours are equal, but neither EM
# nor the network will be told so.)


# %% tags=["recorded"]
def joint(x, pi, mean, deviation):  # (size, n, k): log of share × density
    away = (x[:, :, None] - mean[:, None]) / deviation[:, None]     # (size, n, k, 2)
    density = -(away.square() / 2 + deviation.log()[:, None]).sum(dim=-1) - math.log(2 * math.pi)
    return pi.log()[:, None] + density


def log_likelihood(x, clouds):                                      # per point: (size,)
    return joint(x, *clouds).logsumexp(dim=-1).mean(dim=-1)


# %% [markdown]
# ### 4.2 The classic: EM
#
# **Expectation maximisation** starts from a guess and repeats two steps. E: how much of each point belongs to each
# cloud? (A softmax over clouds. Attention's cousin: each point attends to the clouds.) M: give each cloud the share,
# the mean and the deviation of what belongs to it.


# %% tags=["recorded"]
def em(x, clouds, steps):
    for _ in range(steps):
        share = joint(x, *clouds).softmax(dim=-1)                   # E: (size, n, k)
        total = share.sum(dim=1) + 1e-6                             # (size, k)
        mean = share.mT @ x / total[..., None]                      # M: (size, k, 2)
        away = (x[:, :, None] - mean[:, None]).square()             # (size, n, k, 2)
        variance = (share[..., None] * away).sum(dim=1) / total[..., None]
        clouds = total / total.sum(dim=-1, keepdim=True), mean, (variance + 1e-3).sqrt()
    return clouds


def some_start(x, k=3):                                             # k of the points, large clouds
    chosen = torch.rand(x.shape[:2]).argsort(dim=-1)[:, :k, None].expand(-1, -1, 2)
    return torch.full((len(x), k), 1 / k), x.gather(1, chosen), torch.ones(len(x), k, 2)


# %% [markdown]
# Each round makes the points more likely, which one can prove. But it starts anew for every set, and climbs the
# nearest hill, not the highest; so one starts several times, and keeps what is likeliest. We draw 500 mixtures, 30
# points each, and keep 200 *more* points of each mixture aside:

# %%
torch.manual_seed(99)
flocks, truth = mixtures(500, 30)                                   # (500, 30, 2): seen
fresh = draw(*truth, 200)  # (500, 200, 2): of the same clouds


def report(name, clouds):
    seen, unseen = (log_likelihood(x, clouds).mean().item() for x in (flocks, fresh))
    print(f"{name:28} on the points it saw {seen:6.2f}, on fresh ones {unseen:7.2f}")
    return unseen


# %% [markdown]
# EM after 1, 5, 20 and 100 rounds from one start; and after 20 rounds from five starts, of which the likeliest is
# kept:

# %%
report("the truth", truth)
start = some_start(flocks)
for steps in (1, 5, 20, 100):
    report(f"EM, {steps:3} rounds", em(flocks, start, steps))
tries = [em(flocks, some_start(flocks), 20) for _ in range(5)]
best = torch.stack([log_likelihood(flocks, each) for each in tries]).argmax(dim=0)      # (500,)
chosen = (torch.stack(each)[best, range(500)] for each in zip(*tries, strict=True))
several = report("EM, best of 5 starts", tuple(chosen))

# %% [markdown]
# Look at the two columns. After 20 rounds EM makes *its* points more likely than the truth does; yet fresh ones
# become less and less likely after round 5: it fits the noise. Two points that happen to lie close are a fine small
# cloud to it. Several starts make it worse: of all hills the highest is the one that fits the noise best.
#
# ### 4.3 The network: many sets, one pass
#
# The other way is to learn what *sets in general* look like. A Set Transformer reads the points. Three learnt seeds
# pool them, one for each cloud, and each becomes five numbers: a logit for the share, two for the mean, two for the
# deviations. The loss is minus the log-likelihood: nobody ever tells it the true clouds. Clustering is paid for once,
# in training; afterwards each new set costs one forward pass. This is called **amortised** inference.


# %% tags=["recorded"]
def clouds_of(out):                                                 # (size, k, 5)
    return out[..., 0].softmax(dim=-1), out[..., 1:3], F.softplus(out[..., 3:]) + 0.01


def set_transformer(block, d=48):
    return nn.Sequential(block(2, d), block(d, d), PMA(d, 3), SAB(d, d), nn.Linear(d, 5))


def unlikely(model):                                                # the loss of a batch
    x, _ = mixtures(32, int(torch.randint(20, 41, ())))
    return -log_likelihood(x, clouds_of(model(x))).mean()


# %% [markdown]
# Train it. (It takes some seconds. The loss of the truth would be about 1.2.)

# %%
kept = []


def watched(model):                                                 # the same loss, written down
    kept.append(unlikely(model))
    return kept[-1]


torch.manual_seed(0)
finder = fit(set_transformer(SAB), watched, 700, rate=2e-3, what="The network")
smooth = torch.stack(kept).detach().view(-1, 70).mean(dim=-1)       # (10,)
print("loss, means of 70 batches:", " ".join(f"{each:.2f}" for each in smooth))

# %% [markdown]
# In one forward pass it clusters all 500 sets, none of which it has seen:

# %%
with torch.no_grad():
    found = clouds_of(finder(flocks))
expect("log-likelihood of fresh points", report("one forward pass", found), -3.5, -1.5)
polished = report("… and one round of EM", em(flocks, found, 1))

# %% [markdown]
# Four of the test sets, with the truth and what the network found, drawn at two standard deviations:

# %%
figures.clusters(
    flocks[:4], {"truth": truth[1:], "network": tuple(each[:4] for each in found[1:])},
    title="Clusters found in one forward pass",
    alt="Four sets of 30 points in the plane, in up to three heaps. Solid circles show the true "
    "clouds, dashed ones those of the network; some are wider than the true ones, and one may "
    "cover two.",
)

# %% [markdown]
# The third set is solved. In the others some heaps have two ellipses, a tight one and a wider one, and in the first
# two sets one ellipse must do for two clouds. Where the network is unsure, it draws wide: caution. In the fourth set
# one true cloud has not given a single point, so nobody could find it.
#
# Now compare the numbers with EM's. On the points that both have seen EM is ahead from five rounds on, and in the end
# by far. On fresh points the network is: ahead of EM after 1, 5, 20 or 100 rounds, and from five starts. It has met
# 22,400 sets in training, and knows what they are like: clouds are not as small as two points that happen to lie
# close. One round of EM after it makes the seen points likelier and the fresh ones less likely: there is the noise
# again.
#
# ### 4.4 Three seeds, and sizes that were never seen
#
# `data/flocks.py` has trained Deep Sets (a wider net, for fairness, and the maximum for its pool), SABs and ISABs for
# 1,000 steps with three random seeds. Each model has seen 20 to 40 points. Here are its log-likelihoods of fresh
# points after it has read 10, 30, 100 or 300:


# %% tags=["recorded"]
def deep_clouds(how):
    return nn.Sequential(deep_sets(how, 2, 15, d=96), nn.Flatten(), nn.Unflatten(-1, (3, 5)))


CLUSTERS = {"Deep Sets, max": lambda: deep_clouds("max"),
            "SAB": lambda: set_transformer(SAB), "ISAB, m = 16": lambda: set_transformer(ISAB)}
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
        scores.append(log_likelihood(draw(*clouds, 200), clouds_of(model(x))).mean().item())
    return scores


# %% [markdown]
# One line per model, three seeds in each column; and the column of 30 points as a picture:

# %%
ranges = {}
print(f"{'points read:':16}", "  |  ".join(f"{n:^22}" for n in READ))
for name, seeds in recorded["clusters"].items():                    # seed → a score for each size
    by_read = zip(*seeds.values(), strict=True)
    print(f"{name:16}", "  |  ".join("  ".join(f"{e:6.2f}" for e in three) for three in by_read))
    at_30 = [each[READ.index(30)] for each in seeds.values()]
    ranges[name] = min(at_30), sum(at_30) / len(at_30), max(at_30)
plots.ranges(
    ranges, title="Elements that see each other cluster better",
    xlabel="log-likelihood of fresh points, per point",
    alt="Log-likelihood of fresh points after 30 were read, three seeds. " + "; ".join(
        f"{name}: {low:.2f} to {high:.2f}" for name, (low, _, high) in ranges.items()),
)

# %% [markdown]
# With 30 points both Set Transformers are ahead of Deep Sets, in every seed. Its $\phi$ sees one point alone, so all
# comparing of points is left to $\rho$, after the pool; in an SAB a point first looks who is near. The 16 inducing
# points lose nothing here.
#
# Now read along a line. With 100 or 300 points, more than any model has seen, the Set Transformers get *better*: more
# points show the clouds more clearly, and the truth is at about $-1.25$. Deep Sets doesn't profit. With ten points
# all are bad. In part they must be, since a cloud of which no point was drawn can't be found; in part it is a size on
# which they were not trained.

# %% [markdown]
# ## 5 The Perceiver: any array
#
# ### 5.1 Stay with the few
#
# ISAB goes to the $m$ points, and back to all $n$ elements, in each layer. Pooling goes to $k$ seeds, and stays.
# Jaegle et al. (2021) put the two together: go to $m$ learnt vectors **early**, and stay there for all the *deep*
# part of the network. They call these vectors **latents**, and the model **Perceiver**:
#
# - a **cross-attention**: $m$ latents look at the input, an array of $n$ rows. It costs $m \cdot n$ scores.
# - a **latent Transformer**: a few ordinary blocks on the latents alone. Each costs $m^2$, and has never heard of
#   $n$.
# - again, with another look at the input, as often as you like; at the end the mean of the latents is the answer.
#
# "Array" means: rows of numbers, whatever they are. Pixels, bytes, points, sound. The network is the same.
#
# One class does both kinds of attention. It is lesson 06's pre-norm block. The input has another width than the
# latents, and a norm of its own (`width` is that of queries, keys and values):


# %%
def attend(q, k, v, heads):                                         # (batch, m | n, width) each
    q, k, v = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in (q, k, v))
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)       # (batch, heads, m, n)
    return (weights @ v).transpose(1, 2).flatten(start_dim=2)       # (batch, m, width)


# %% [markdown]
# Around it the projections, the residuals and the norms:


# %%
class Look(nn.Module):                              # of x at y; of x at itself, if there is no y
    def __init__(self, d, d_y=None, heads=4, width=None):
        super().__init__()
        self.heads, width, read = heads, width or d, d_y or d
        self.query, self.key, self.value = (nn.Linear(each, width) for each in (d, read, read))
        self.output = nn.Linear(width, d)
        self.norm_x, self.norm_y = nn.LayerNorm(d), nn.LayerNorm(d_y) if d_y else None
        self.ffn = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.norm = nn.LayerNorm(d)

    def forward(self, x, y=None):                                   # (batch, m, d), (batch, n, d_y)
        x_ = self.norm_x(x)
        y = x_ if y is None else self.norm_y(y)
        x = x + self.output(attend(self.query(x_), self.key(y), self.value(y), self.heads))
        return x + self.ffn(self.norm(x))                           # (batch, m, d)


# %% [markdown]
# The model. Looks after the first one share their weights, and so do the latent blocks: the second round is the same
# layers once more. (A recurrent net in depth, as in lesson 19. The first look has weights of its own, since sharing
# it, too, made training unstable: § 4.1 of the paper.)


# %%
class Perceiver(nn.Module):
    def __init__(self, d_in, labels, m=8, d=48, layers=1, rounds=2):
        super().__init__()
        self.latents = nn.Parameter(0.02 * torch.randn(m, d))
        self.first, self.again = (Look(d, d_in, heads=1, width=d_in) for _ in range(2))
        self.think = nn.ModuleList(Look(d) for _ in range(layers))
        self.answer, self.rounds = nn.Linear(d, labels), rounds

    def forward(self, array):                                       # (batch, n, d_in)
        x = self.latents.expand(len(array), -1, -1)                 # (batch, m, d)
        for number in range(self.rounds):
            x = (self.again if number else self.first)(x, array)
            for block in self.think:
                x = block(x)
        return self.answer(x.mean(dim=1))                           # (batch, labels)


# %% [markdown]
# What sharing saves, for the paper's ImageNet model (512 latents of width 1024, eight looks, six blocks after each),
# from the library's table of sizes:

# %%
from dataclasses import replace

from txlib.models.sizes import PERCEIVER, count_parameters

imagenet = PERCEIVER["imagenet"]
apart = replace(imagenet, distinct_cross=8, distinct_blocks=8)
for name, config in {"shared": imagenet, "each its own": apart}.items():
    print(f"{name:13} {count_parameters(config) / 1e6:6.1f} million parameters")

# %% [markdown]
# ### 5.2 Counted: $n \cdot m$ against $n^2$
#
# Six layers of self-attention on $n$ rows make $6n^2$ scores per head. One look and six latent blocks:
# $nm + 6m^2$. For a photograph of $224 \times 224 = 50{,}176$ pixels and $m = 512$: 15 thousand million against 27
# million. Depth no longer depends on $n$: ten more blocks add $10 m^2$. All operations, feed-forward networks included:


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
    print(f"n = {n:6,}: {dense:9.3f} and {few:6.3f} thousand million: {dense / few:6.1f} times")

# %% [markdown]
# The same as a picture:

# %%
plots.lines(
    {name: (lengths, each) for name, each in costs.items()}, xscale="log", yscale="log", marker="o",
    title="Latents make depth independent of the input", xlabel="rows of the input, n",
    ylabel="thousand million operations",
    alt="Operations over n from 64 to 65,536, both logarithmic. Six layers on the array rise ever "
    "steeper, in the end with the square of n. The Perceiver is flat at first, then rises in "
    "proportion to n, thousands of times below.",
)

# %% [markdown]
# And on the clock? A forward pass of each, one thread. Your numbers will differ from ours; the ratio should grow:

# %% tags=["nbval-ignore-output"]
import time


@torch.no_grad()
def milliseconds(model, n):
    array, taken = torch.randn(1, n, 64), []
    for _ in range(3):
        start = time.process_time()
        model(array)
        taken.append(1000 * (time.process_time() - start))
    return min(taken)


# %% [markdown]
# The least of three runs, for three lengths:

# %% tags=["nbval-ignore-output"]
built = [build() for build in architectures.values()]
for n in (256, 1024, 2048):
    dense, few = (milliseconds(model, n) for model in built)
    print(f"n = {n:5,}: {dense:7.1f} ms on the array, {few:5.1f} ms by latents: "
          f"{dense / few:5.1f} times")

# %% [markdown]
# ### 5.3 Where is what: Fourier features
#
# Latents look at the array by attention, and attention doesn't see order. Without further help a Perceiver treats a
# picture as a bag of grey values. So each row of the array must *say* where it stands. One could give it the
# coordinates, $p = (\text{row}, \text{column})$, scaled to $[-1, 1]$. But then two neighbours differ by little, and a
# linear layer can hardly tell them apart. Waves of many frequencies can (the idea of lesson 05's sinusoids). For each
# coordinate $p$ and $b$ frequencies $f$ from 1 to half the number of points along it:
#
# $$\big[\,p,\; \sin(\pi f_1 p), \dots, \sin(\pi f_b p),\; \cos(\pi f_1 p), \dots, \cos(\pi f_b p)\,\big]$$
#
# From $-1$ to $1$ a wave of frequency $f$ goes up and down $f$ times. The fastest that a grid can show changes its
# sign from point to point, one wave per two points (Nyquist): hence the half.


# %%
def fourier(p, bands, points):                                      # (…, coordinates), in [-1, 1]
    f = torch.linspace(1, points / 2, bands)                        # (bands,)
    angle = math.pi * (p[..., None] * f).flatten(start_dim=-2)      # (…, coordinates · bands)
    return torch.cat([p, angle.sin(), angle.cos()], dim=-1)  # (…, coordinates · (2 bands + 1))


def grid(side):  # (side², 2): row and column of each pixel
    along = torch.linspace(-1, 1, side)
    return torch.cartesian_prod(along, along)


# %% [markdown]
# Eight points in a row, with four frequencies:

# %%
line = torch.linspace(-1, 1, 8)[:, None]                            # (8, 1)
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
# $7/2$, not $8/2$: the paper's rule goes a little too far. On 224 points nobody notices.

# %% [markdown]
# Now train on digits, $8 \times 8$ pixels: an array of 64 rows, the ink and 18 numbers that say where. Three runs:
# with Fourier features, with the two coordinates alone, and without any position. What will the third one reach?
# (Guessing is right in 10 %.)

# %%
where = fourier(grid(8), 4, 8)                                      # (64, 18)
positions = {"Fourier features": where, "two coordinates": grid(8), "no positions": where[:, :0]}
train, test = pictures.train, pictures.test


def as_array(ink, where):  # (batch, 1, 8, 8): (batch, 64, 1 + …)
    return torch.cat([ink.flatten(1)[..., None], where.expand(len(ink), -1, -1)], dim=-1)


def reading(where):                                                 # the loss of a batch of digits
    def loss(model):
        some = torch.randint(len(train), (64,))
        return F.cross_entropy(model(as_array(train.pixel_values[some], where)), train.labels[some])
    return loss


# %% [markdown]
# Three models, the same seed, 300 batches of 64 digits each:

# %%
readers, right = {}, {}
for name, where_ in positions.items():
    torch.manual_seed(0)
    readers[name] = fit(Perceiver(1 + where_.shape[1], 10), reading(where_), 300, 3e-3, name)
    with torch.no_grad():
        guess = readers[name](as_array(test.pixel_values, where_)).argmax(dim=-1)
    right[name] = 100 * (guess == test.labels).float().mean().item()
    print(f"{name:17} {right[name]:3.0f} % right")

# %% [markdown]
# Without positions it has learnt nothing in 300 steps: which grey values a digit is made of says next to nothing
# about which digit it is. Two coordinates say *where*, in principle; but to find a stroke in them a network needs
# long training. Fourier features hand it the places ready to compare. (One seed each, one length of training. The
# gaps are wide.)
#
# What is a Perceiver, then, in section 1's words?

# %%
with torch.no_grad():
    some = as_array(test.pixel_values[:4], where)                   # (4, 64, 19)
    print("rows of the array in another order:", kind(readers["Fourier features"], some))
    order = torch.randperm(64)
    moved = test.pixel_values[:4].flatten(1)[:, order].view(4, 1, 8, 8)
    for name, reader in readers.items():
        same = torch.allclose(reader(as_array(test.pixel_values[:4], positions[name])),
                              reader(as_array(moved, positions[name])), atol=1e-4)
        print(f"pixels moved to other places, {name}: the answer", "stays" if same else "changes")

# %% [markdown]
# It is **invariant**: a network for sets. What makes a picture of a set is that each element carries its place with
# it. Shuffle the rows, ink and place together, and nothing happens. Move the ink to other places, and it is another
# picture, except to the one that sees no places. No layer knows that pixels have neighbours. Convolutions do, and
# usually are better when pictures are as few as here. The Perceiver has to learn it from data, and is the same model
# for whatever comes next.

# %% [markdown]
# ### 5.4 Bytes, and both at once
#
# What comes next is text, as bytes, without any tokenizer. A row of the array is now the embedding of a byte, 16
# numbers, and 13 numbers that say where it stands. And because all is one array, a picture and a text can be put into
# **one**, one below the other. Rows of both kinds need one width, and something that tells them apart. The paper does
# both at once (§ 4.2): it fills each up with a learnt vector of its kind.


# %%
def filled(array, kind):                                            # (batch, rows, …), (…,)
    return torch.cat([array, kind.expand(*array.shape[:2], -1)], dim=-1)    # (batch, rows, width)


# %% [markdown]
# A picture's rows, a text's rows, or both, one below the other:


# %%
class Arrays(nn.Module):
    def __init__(self, width=34, letters=24):
        super().__init__()
        self.embedding = nn.Embedding(256, 16)
        self.place = fourier(torch.linspace(-1, 1, letters)[:, None], 6, letters)   # (letters, 13)
        self.kinds = nn.ParameterList(0.3 * torch.randn(width - d) for d in (19, 29))

    def forward(self, ink=None, text=None):  # (batch, 1, 8, 8), (batch, letters)
        rows = []
        if ink is not None:
            rows.append(filled(as_array(ink, where), self.kinds[0]))
        if text is not None:
            letters = [self.embedding(text), self.place.expand(len(text), -1, -1)]
            rows.append(filled(torch.cat(letters, dim=-1), self.kinds[1]))
        return torch.cat(rows, dim=1)                               # (batch, 64 + letters, width)


# %% [markdown]
# The task: a digit and a sentence at once. *Which digit is it? Is the sentence German or English?* (Sentences are
# those of lesson 09, their first 24 bytes.) One Perceiver with 12 logits, ten for the digit and two for the language:

# %%
from txlib.data import translation

pairs = translation("games", max_words=12)


def sentences(pairs):  # (batch, 24) bytes, (batch,): 1 = English
    english = torch.randint(2, (len(pairs),))
    chosen = [pair[is_english] for pair, is_english in zip(pairs, english.tolist(), strict=True)]
    return torch.tensor([list(each.encode()[:24].ljust(24)) for each in chosen]), english


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
    some, others = torch.randint(len(train), (48,)), torch.randint(len(pairs.train), (48,))
    text, english = sentences([pairs.train[i] for i in others.tolist()])
    ink, digit_is = train.pixel_values[some], train.labels[some]
    left_out = int(torch.randint(3, ()))
    digit, language = model(None if left_out == 1 else ink, None if left_out == 2 else text)
    loss = 0 if left_out == 1 else F.cross_entropy(digit, digit_is)
    return loss + (0 if left_out == 2 else F.cross_entropy(language, english))


# %% [markdown]
# Then the test, with both, with the picture alone, with the sentence alone:

# %%
torch.manual_seed(0)
reader = fit(Reader(), of_both, 500, rate=5e-3, what="The reader")
text, english = sentences(pairs.test[: len(test)])
given = {"both": (test.pixel_values, text), "the picture alone": (test.pixel_values, None),
         "the sentence alone": (None, text)}
for name, arrays in given.items():
    with torch.no_grad():
        digit, language = (each.argmax(dim=-1) for each in reader(*arrays))
    print(f"{name:19} {len(test)} tests: digit right {(digit == test.labels).float().mean():4.0%}, "
          f"language right {(language == english).float().mean():4.0%}")

# %% [markdown]
# One set of weights reads pictures, sentences, or both. What is not there it can only guess: one in ten, one in two.
# The language it tells better from the sentence alone than from both (one run, 360 tests), perhaps because eight latents
# have to share their room. No part of the network was told what a pixel or a letter is. (What if it is always trained
# on both? Try it: give `left_out` a 0. Then ask about a picture that comes alone.)

# %% [markdown]
# ## 6 Perceiver IO: ask for what you want
#
# ### 6.1 Output queries
#
# A Perceiver's answer is one vector. What if the answer is itself an array: a value for each pixel, a letter for each
# gap? Perceiver IO (Jaegle et al. 2022) adds the mirror image of the first look. Make an **output query** for each
# number that you want, which says *what* is wanted. The queries look at the latents:
#
# $$\text{latents} = \text{Look}(Z, x), \quad \text{blocks} \dots, \qquad
# \text{answer}_i = \text{Look}(\text{query}_i, \text{latents})$$
#
# $o$ queries cost $o \cdot m$. They don't see each other, so you may ask for some now and for others later. (You have
# met the idea: PMA's seeds are output queries; only they are always the same.) The two models side by side:
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
        self.ask, self.answer = Look(d_query, d, heads=1, width=d), nn.Linear(d_query, 1)

    def forward(self, array, queries):                              # (batch, n, d_in), (o, d_query)
        x = self.first(self.latents.expand(len(array), -1, -1), array)
        for block in self.think:
            x = block(x)                                            # (batch, m, d)
        asked = self.ask(queries.expand(len(array), -1, -1), x)     # (batch, o, d_query)
        return self.answer(asked)[..., 0]                           # (batch, o)


# %% [markdown]
# ### 6.2 See the rest of the picture
#
# Hide 40 of a digit's 64 pixels. Usually one would write zeros there, and a mask. Here they are simply **left out**:
# the array has 24 rows. The query for a pixel is its place, in slower waves than those of the array (you will see
# why); the answer, how much ink is there.


# %%
slow = fourier(grid(8), 4, 5)                                       # (64, 18): frequencies 1 to 2.5


def some_pixels(ink, keep=24):                                      # (batch, 1, 8, 8)
    kept = torch.rand(len(ink), 64).argsort(dim=-1)[:, :keep]       # (batch, keep): places
    seen = ink.flatten(1).gather(1, kept)[..., None]                # (batch, keep, 1)
    return torch.cat([seen, where[kept]], dim=-1), kept             # (batch, keep, 19)


# %% [markdown]
# The loss is the squared error of all 64 answers:


# %%
def painted(model):
    ink = train.pixel_values[torch.randint(len(train), (32,))]
    return (model(some_pixels(ink)[0], slow) - ink.flatten(1)).square().mean()


torch.manual_seed(0)
painter = fit(PerceiverIO(19, 18), painted, 700, rate=8e-3, what="The painter")

# %% [markdown]
# Is it good? Two rivals: the mean of all training pictures, and for each pixel the nearest one that can be seen.

# %%
torch.manual_seed(0)
array, kept = some_pixels(test.pixel_values)
hidden = torch.ones(len(test), 64).scatter(1, kept, 0).bool()       # (batch, 64)
ink = test.pixel_values.flatten(1)
nearest = torch.cdist(grid(8).expand(len(test), -1, -1), grid(8)[kept]).argmin(dim=-1)
with torch.no_grad():
    answers = {"the network": painter(array, slow),
               "the nearest seen pixel": array[..., 0].gather(1, nearest),  # (batch, 64)
               "the mean picture": train.pixel_values.flatten(1).mean(dim=0).expand_as(ink)}
for name, answer in answers.items():
    print(f"{name:22} squared error on hidden pixels {(answer - ink)[hidden].square().mean():.4f}")

# %% [markdown]
# A fifth less than the mean picture leaves: what was seen says something about the rest. Copying a neighbour is far
# worse, since strokes are narrow.
#
# Nobody said that queries must stand on the grid. Ask at $32 \times 32$ places, for a model that has only ever seen
# $8 \times 8$:

# %%
with torch.no_grad():
    fine = painter(array[:6], fourier(grid(32), 4, 5)).view(6, 32, 32)
seen = torch.full((6, 64), 0.5)                                     # 0.5: hidden
seen = seen.scatter(1, kept[:6], ink[:6].gather(1, kept[:6]))
small = [seen, answers["the network"][:6], ink[:6]]                 # (6, 64) each
seen, answered, true = (F.interpolate(each.view(6, 1, 8, 8), scale_factor=4)[:, 0]
                        for each in small)
named = {"seen": seen, "8 × 8": answered, "32 × 32": fine, "true": true}    # (6, 32, 32) each

# %% [markdown]
# Six digits of the test, one below the other; hidden pixels are a middling blue:

# %%
mosaic = [F.pad(each, (1, 1, 1, 1)).transpose(0, 1).flatten(1) for each in named.values()]
plots.heatmap(
    torch.cat(mosaic).clamp(0, 1), size=0.028, numbers=False, xlabel="", ylabel="", bar="ink",
    title="What was seen, what was answered, the truth", columns=[" "] * 204,
    rows=[name if row == 16 else " " for name in named for row in range(34)],
    alt="Four rows of six digits. Above, the 24 pixels seen, in a field of hidden ones. Then the "
    "answers at 8 × 8 places, and at 32 × 32: smooth strokes. Below the true digits, much alike.",
)

# %% [markdown]
# Strokes, with smooth edges that no training picture has. They follow what was seen where there was something to see,
# and are blurred where several digits would fit: the mean of what is possible has the least squared error. The fourth
# digit, a 5, has become more of a 0, for want of pixels that tell them apart. (The array's own waves go up to
# frequency 4. As queries they are a bit better *on* the grid, and paint wild things between its points, where
# training never looked. Put `where` and `fourier(grid(32), 4, 8)` in place of the slow waves, and see.)
#
# Break it: queries that don't say where. Take the Fourier features out of the *queries* alone, as zeros in their
# place:

# %%
with torch.no_grad():
    blind = painter(array, torch.zeros_like(slow))                  # (batch, 64)
apart = (blind.amax(dim=-1) - blind.amin(dim=-1)).max()
print(f"largest difference between two pixels of one picture: {apart:.6f}")
print(f"squared error on hidden pixels {(blind - ink)[hidden].square().mean():.4f}")

# %% [markdown]
# Equal questions get equal answers: one grey for a whole picture. All that the answer knows of *where* comes in by
# the query. (It is even the wrong grey, far worse than the mean picture: a query of zeros never occurred in
# training.)
#
# ### 6.3 Language, byte by byte
#
# For masked language modelling (lesson 14) the queries are 2,048 learnt vectors, one for each position; the answers
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
print(f"{language.layers} latent layers {language.layers * m * m:11,}, in and out {2 * n * m:9,}")
print(f"{language.layers} layers on the bytes themselves {language.layers * n * n:11,}")

# %% [markdown]
# ## 7 Open the library
#
# The blocks for sets stand in `txlib.attention`, with masks for sets of different sizes, the paper's formula and the
# code's. The heart of it:

# %%
from txlib import attention as library
from txlib import models
from txlib.layers import BlockConfig, fourier_features, grid_positions

show_source(library.MAB.forward, library.ISAB.forward, library.PMA.forward)

# %% [markdown]
# The same numbers as ours, with the same weights (theirs have `attention.` in some names):

# %%
torch.manual_seed(0)
x, y = torch.randn(2, 9, 48), torch.randn(2, 5, 48)                 # (batch, n, d)
both = {"MAB": (MAB(48, 48, 48), library.MAB(48, 4), (x, y)),
        "SAB": (SAB(48, 48), library.SAB(48, 4), (x,)),
        "ISAB": (ISAB(48, 48), library.ISAB(48, 4, 16), (x,)),
        "PMA": (PMA(48, 3), library.PMA(48, 4, 3), (x,))}
for what, (mine, theirs, inputs) in both.items():
    ours = mine.state_dict()
    names = theirs.state_dict().keys()
    theirs.load_state_dict({name: ours[name.replace("attention.", "")] for name in names})
    prove_equal(mine(*inputs), theirs(*inputs), what=what)

# %% [markdown]
# Both Perceivers are configs. Their weights stand in the same order as ours:


# %%
def with_weights_of(mine, theirs):
    with torch.no_grad():
        for a, b in zip(theirs.parameters(), mine.parameters(), strict=True):
            a.copy_(b)
    return theirs


block = BlockConfig.of_sizes(d_model=48, heads=4, d_ff=96, activation="gelu")
config = models.PerceiverConfig(block=block, d_input=19, latents=8, layers=1, repeats=2, labels=10)
asking = block.replace(d_model=18, heads=1, head_dim=48, d_ff=36)
config_io = models.PerceiverIOConfig(
    block=block, d_input=19, latents=16, layers=2, decoder=asking, query_residual=True, outputs=1)

# %% [markdown]
# The reader of digits and the painter, once more:

# %%
mine = readers["Fourier features"]
theirs = with_weights_of(mine, models.Perceiver(config))
theirs_io = with_weights_of(painter, models.PerceiverIO(config_io))
with torch.no_grad():
    prove_equal(where, fourier_features(grid_positions(8, 8), 4, (8, 8)), what="Fourier features")
    digits_ = as_array(test.pixel_values, where)
    prove_equal(mine(digits_), theirs(digits_).logits, tolerance=1e-4, what="Perceiver")
    asked = theirs_io(array, slow[None]).logits[..., 0]
    prove_equal(painter(array, slow), asked, tolerance=1e-4, what="Perceiver IO")

# %% [markdown]
# `txlib.models` also has whole models: `SetTransformer`, `DeepSets`, `PerceiverForMaskedLM`. `load_pretrained` reads
# the published byte model, `deepmind/language-perceiver`, from its folder. On the command line, `txlib train sets`
# trains Set Transformers and Deep Sets, and `txlib train perceiver` one model for pixels, bytes, and both.

# %% [markdown]
# ## 8 Where these ideas live on
#
# Few learnt vectors that read many rows: once you know the shape, you meet it everywhere.
#
# - **Multi-modal models.** A picture is hundreds of rows for a language model. Flamingo's *resampler* (Alayrac et al.
#   2022) turns any number of them into 64 with a Perceiver; BLIP-2's *Q-Former* (Li et al. 2023) has 32 learnt
#   queries for the same purpose. Foundation models that read text, pictures and sound put everything into one array,
#   as you did in 5.4.
# - **Detection.** DETR (Carion et al. 2020) asks 100 learnt *object queries* which objects are in a picture. They are
#   output queries, and their answer is a set.
# - **Any size.** Point clouds, particles in a detector, molecules: sets, read by equivariant layers and a pool.
#
# And why are not all models Perceivers? Whatever the latents have not taken along is gone. (Lesson 32 has other
# memories of fixed size.) A model that writes text token by token wants to look up *every* earlier token. Where the
# answer is short and the input long, latents are a bargain.

# %% [markdown]
# ## 9 Quiz
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
# A sum would. Softmax weights add up to one.
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
# **4. A Perceiver reads pictures without position features. Which change of a picture changes its answer?**
#
# <details><summary>A. Turning it upside down</summary>
#
# The same grey values in other places: the same bag.
# </details>
# <details><summary>B. Making all of its pixels darker</summary>
#
# Right. Grey values are all that it sees.
# </details>
# <details><summary>C. Both</summary>
#
# It can't see where a pixel stands.
# </details>
#
# **5. Perceiver IO is asked for 10,000 pixels instead of 64. What becomes dearer?**
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
# ## 10 Summary
#
# - Invariant: f(Px) = f(x). Equivariant: f(Px) = P f(x). Equivariant layers and then an invariant pool are a network
#   for sets.
# - A mean forgets how many, a maximum how often, and a sum grows with the set, into sizes that $\rho$ has not seen.
#   Deep Sets is $\rho(\sum \phi(x_i))$.
# - MAB is one look of a set at a set. SAB: at itself. PMA: of learnt seeds, which pools. ISAB: through $m$ learnt
#   points, $2nm$ scores in place of $n^2$.
# - Clustering can be learnt from likelihood alone: paid for once, then one forward pass per set.
# - A Perceiver moves to $m$ latents early and stays there: $nm + Lm^2$. It is a network for sets; what the rows say
#   of their places and kinds makes pictures, texts, or both of them.
# - Perceiver IO asks: an output query for each number that is wanted.
#
# That ends Part III. Once more, each lesson had one question:
#
# | | The question | The answer |
# | --- | --- | --- |
# | 21 | What if the input is a picture? | pixels or patches are tokens; neighbourhood has to be told, or learned |
# | 22 | What if it is music? | time and voices on a grid; distances, learned and skewed into place, carry the bars |
# | 24 | What if it has no order, or too many parts? | a pool that forgets the order; a few latents that read the rest |
#
# In all three the block stayed nearly as it was. What changed is what a token is, and what it is told of its place.
# Part IV asks what all this costs.
#
# **Read** Zaheer et al. 2017, *Deep Sets*, [arXiv:1703.06114](https://arxiv.org/abs/1703.06114), section 2. Lee et
# al. 2019, *Set Transformer*, [arXiv:1810.00825](https://arxiv.org/abs/1810.00825), sections 3 and 5. Wagstaff et al.
# 2019, *On the Limitations of Representing Functions on Sets*, [arXiv:1901.09006](https://arxiv.org/abs/1901.09006).
# Jaegle et al. 2021, *Perceiver*, [arXiv:2103.03206](https://arxiv.org/abs/2103.03206), section 3. Jaegle et al.
# 2022, *Perceiver IO*, [arXiv:2107.14795](https://arxiv.org/abs/2107.14795), sections 3 and 4.
#
# **Do** the exercise [24_arrays](../exercises/exercise_24_arrays.ipynb). Then go on to [30 The quadratic
# wall](30_wall.ipynb), where all that attention costs is counted.
