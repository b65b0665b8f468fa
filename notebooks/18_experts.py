# %% [markdown] lesson={"part": "II Language models", "builds": "routing, memory at equal operations, collapse and its cure"}
# # 18 · Mixture of experts
#
# **After this lesson you will be able to**
#
# - give a model eight times the feed-forward parameters at the same number of operations per token, and show a task in
#   which that wins;
# - write a router, send tokens to experts and bring them back, and prove that nothing got lost;
# - watch a router collapse from an equal start, and derive the loss that prevents it;
# - say what Switch and Mixtral do differently, and count Mixtral's 46.7 billion parameters, of which 12.9 work;
# - look into a router and say honestly what its experts have specialized in.
#
# **You need** lessons 06 and 10. **It takes** about 65 minutes to read and try; all cells together run in about a
# minute on a laptop. Most of that is two small language models.

# %% [markdown]
# ## 1 The problem: every token pays for every parameter
#
# We have a block (lesson 06), and two thirds of its parameters sit in the feed-forward network. What is missing is a
# way to add more of them without paying for all of them at every token. Widen the network, and watch the price:

# %% tags=["recorded"]
import math
import time
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from txlib.layers import FeedForward, LayerNorm
from txcourse.lesson import expect, predict, predicted, progress
from txcourse.lesson import prove_equal, show_source

torch.set_num_threads(1)  # for models this small, more threads only wait
d_model, n = 64, 64

# %% [markdown]
# torch counts operations while a module runs. We divide by the number of tokens.


# %%
def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


def operations(module, x):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(x)
    return counter.get_total_flops() / x[..., 0].numel()  # per token


x = torch.randn(4, n, d_model)  # (batch, n, d_model)
for d_ff in (64, 256, 512):
    network = FeedForward(d_model, d_ff)
    print(f"d_ff {d_ff:3}: {parameters(network):6,} parameters,",
          f"{operations(network, x):7,.0f} operations per token")

# %% [markdown]
# Two operations per parameter. An English comma pays for everything the network has stored about German
# plurals. Can a token pay only for the part that it needs?

# %% [markdown]
# ## 2 The idea in one picture
#
# We have one network for all tokens. What is missing is a choice. Keep many feed-forward networks, the **experts**. A
# **router**, which is one small matrix, gives each token a weight for each expert. The token goes to its $k$ best
# experts only; what they answer is multiplied by the weights and added up. Below there are four experts, and $k = 2$. A
# line's width is the weight.

# %% jupyter={"source_hidden": true}
import json

from txlib import plots
from txlib.paths import DATA
from txcourse import explore, figures

torch.manual_seed(3)
words = ["the", "orcs", "have", "attacked", "the", "humans"]
table = {word: torch.randn(16) for word in words}  # a random vector per word
sent = torch.stack([table[word] for word in words])  # (tokens, d)
likely = (sent @ torch.randn(16, 4) / 2).softmax(dim=-1)  # (tokens, experts)
best = likely.topk(2).indices  # (tokens, 2)
kept = torch.zeros_like(likely).scatter(1, best, likely.gather(1, best))
figures.experts(
    kept / kept.sum(dim=-1, keepdim=True), words, title="Each token visits two of the four experts",
    alt="Six words on the left, four experts in the middle, the six words again on the right. From each word two lines "
    "lead to experts, and from there on to the right. Both times 'the' goes to the same experts.",
)

# %% [markdown]
# The word *the* goes the same way twice, because this router sees a word's vector and nothing else. Experts without a
# line are not even asked: that is the whole saving.
#
# Now with numbers. Three experts would answer 10, 20 and 60, and the router's scores for them are 2, 1 and 0:

# %%
answers = torch.tensor([10.0, 20.0, 60.0])  # (experts,)
p = torch.tensor([2.0, 1.0, 0.0]).softmax(dim=0)  # (experts,)
print("p:", [round(share, 2) for share in p.tolist()])
print(f"k = 1: {p[0]:.2f} · 10 = {p[0] * answers[0]:.1f}")
g = p[:2] / p[:2].sum()  # together 1
print(f"k = 2: {g[0]:.2f} · 10 + {g[1]:.2f} · 20 = {g @ answers[:2]:.1f}")

# %% [markdown]
# The third expert would have said 60, and nobody asked it. As an equation: a token $x$, experts $E_1 \dots E_N$, a
# router $W_r$ with one row per expert.
#
# $$p = \text{softmax}(W_r\, x) \qquad T = \text{the } k \text{ largest of } p \qquad
# y = \sum_{i \in T} g_i\, E_i(x)$$
#
# The $g_i$ are the **gates**. There are two conventions, and you have just computed both:
#
# - **Switch** (Fedus et al. 2021): $k = 1$, $g_i = p_i$.
# - **Mixtral** (Jiang et al. 2024): $k = 2$, $g_i = p_i / \sum_{j \in T} p_j$. The gates of the chosen experts sum to 1.
#
# ($N$ is the number of experts here, as in the papers; in lessons 10 to 13 it counted parameters.) With $k = 1$ the
# second rule would make each gate $p_i / p_i = 1$. Remember this: section 7 breaks it.

# %% [markdown]
# ## 3 Build it
#
# ### 3.1 The router
#
# We have the equation. What is missing is code that doesn't compute the experts nobody asked. From now on sentences do
# not matter: all positions of all sentences are one long list of tokens.


# %% tags=["recorded"]
def route(tokens, router, k):  # (tokens, d_model)
    p = router(tokens).softmax(dim=-1)  # (tokens, experts)
    g, chosen = p.topk(k)  # (tokens, k) each, the likeliest first
    if k > 1:
        g = g / g.sum(dim=-1, keepdim=True)  # Mixtral; Switch keeps p
    return p, g, chosen


# %% [markdown]
# ### 3.2 The definition, at full price
#
# The safest way to compute $y$: let *every* expert compute *every* token, and multiply by 0 what was not chosen. (The
# library's `FeedForward` wants a batch, so `tokens[None]` makes one, and `[0]` takes it away again.)


# %%
def dense_loop(tokens, experts, g, chosen):
    gates = torch.zeros(len(tokens), len(experts)).scatter(1, chosen, g)
    out = torch.zeros_like(tokens)  # (tokens, d_model)
    for i, expert in enumerate(experts):
        out = out + gates[:, i, None] * expert(tokens[None])[0]
    return out


# %% [markdown]
# ### 3.3 The same, without wasted work
#
# Now each expert computes only the tokens that chose it: gather them, compute them, multiply by their gates, and *add*
# each result to its token's row. `index_add` does the last step. (A plain `out[token] = …` would overwrite what the
# token's other expert said.)


# %% tags=["recorded"]
def dispatch(tokens, experts, g, chosen):
    out = torch.zeros_like(tokens)  # (tokens, d_model)
    for i, expert in enumerate(experts):
        token, choice = (chosen == i).nonzero(as_tuple=True)  # which, and as what
        answer = expert(tokens[None, token])[0]  # (its tokens, d_model)
        out = out.index_add(0, token, g[token, choice, None] * answer)
    return out


# %% [markdown]
# Both must give the same numbers, with one expert per token, with two, and with all eight:

# %%
torch.manual_seed(0)
router = nn.Linear(d_model, 8, bias=False)  # d_model -> 8 experts
experts = nn.ModuleList(FeedForward(d_model, 128) for _ in range(8))
tokens = torch.randn(1000, d_model)  # (tokens, d_model)
for k in (1, 2, 8):
    p, g, chosen = route(tokens, router, k)
    with torch.no_grad():
        sparse = dispatch(tokens, experts, g, chosen)  # (tokens, d_model)
        full = dense_loop(tokens, experts, g, chosen)  # (tokens, d_model)
    prove_equal(sparse, full, what=f"k = {k}: both")

# %% [markdown]
# ### 3.4 A layer
#
# The layer fits where a feed-forward network was. It keeps what the router said, so that we can look at it.


# %% tags=["recorded"]
class Mixture(nn.Module):
    def __init__(self, d_model, d_ff, experts, k=1):
        super().__init__()
        self.router = nn.Linear(d_model, experts, bias=False)
        nn.init.normal_(self.router.weight, std=0.02)  # all start equally likely
        self.experts = nn.ModuleList(
            FeedForward(d_model, d_ff) for _ in range(experts))
        self.k = k

    def forward(self, x):  # (batch, n, d_model)
        tokens = x.flatten(0, 1)  # (batch · n, d_model)
        self.p, g, self.chosen = route(tokens, self.router, self.k)
        return dispatch(tokens, self.experts, g, self.chosen).view_as(x)


# %% [markdown]
# Count it, with one expert up to 32, of which each token visits one:

# %%
x, counts = torch.randn(4, n, d_model), (1, 2, 4, 8, 16, 32)
plain, size, work = FeedForward(d_model, 256), [], []
for N in counts:
    layer = Mixture(d_model, 256, N)
    size.append(parameters(layer) / parameters(plain))
    work.append(operations(layer, x) / operations(plain, x))

# %% [markdown]
# Both axes are logarithmic:

# %% jupyter={"source_hidden": true}
plots.lines(
    {"parameters": (counts, size), "operations per token": (counts, work)},
    xscale="log", yscale="log", marker="o",
    title="Parameters grow, operations stay", xlabel="experts", ylabel="times one network",
    alt="Two lines over 1 to 32 experts, logarithmic. Parameters rise in a straight line from 1 to 32. Operations per "
    "token stay at 1, with a rise of a few percent at 32 experts, for the router.",
)

# %% [markdown]
# The small rise is the router: $2 d N$ operations per token. With $d = 64$ you can see it. In Mixtral it is less than a
# ten-thousandth.

# %% [markdown]
# ## 4 See it win: 4,096 facts
#
# We have a layer with eight times the parameters at one network's price. What is missing is a reason to want it. Here
# is a task of pure memory: in 64 towns, 64 goods are sold, each at a price from 0 to 63 that was drawn at random.
# Nothing about a price follows from anything; a model can only store it. The model adds a vector for the town and one
# for the good. Then come one network with a residual connection, and scores for the 64 prices. There is no attention.


# %% tags=["recorded"]
class FactModel(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.town, self.good = nn.Embedding(64, d_model), nn.Embedding(64, d_model)
        self.network, self.output = network, nn.Linear(d_model, 64)
        self.norm_1, self.norm_2 = LayerNorm(d_model), LayerNorm(d_model)

    def forward(self, town, good):  # (batch,) each
        x = (self.town(town) + self.good(good))[:, None]  # (batch, 1, d_model)
        x = x + self.network(self.norm_1(x))
        return self.output(self.norm_2(x))[:, 0]  # (batch, price)


# %% [markdown]
# `balance` and its factor `alpha` keep all experts busy; section 5 derives them. The rest is the usual loop, and it notes
# at each step what fraction of the tokens each expert gets.


# %% tags=["recorded"]
def balance(p, chosen):  # (tokens, experts), (tokens, k)
    experts = p.shape[-1]
    f = F.one_hot(chosen, experts).float().sum(dim=1).mean(dim=0)  # (experts,)
    P = p.mean(dim=0)  # (experts,)
    return experts * (f * P).sum()


def mixtures(model):
    return [layer for layer in model.modules() if isinstance(layer, Mixture)]


# %% [markdown]
# The rate warms up for 30 steps and then falls:


# %% tags=["recorded"]
def fit(model, batch, alpha, steps, what, lr=5e-3):
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), fused=True)
    layers, shares = mixtures(model), []
    for step in progress(range(steps), what):
        factor = min(1, (step + 1) / 30) * (1 - 0.9 * step / steps)
        optimizer.param_groups[0]["lr"] = lr * factor
        inputs, wanted = batch()
        loss = F.cross_entropy(model(*inputs).flatten(0, -2), wanted.flatten())
        penalty = sum(balance(layer.p, layer.chosen) for layer in layers)
        (loss + alpha * penalty).backward()
        optimizer.step()
        optimizer.zero_grad()
        shares.append([layer.chosen.flatten().bincount(minlength=8)
                       / layer.chosen.numel() for layer in layers])
    return shares  # step, block, (experts,)


# %% [markdown]
# 600 batches of 512 facts, so that each fact is seen about 75 times:

# %% tags=["recorded"]
torch.manual_seed(7)
prices = torch.randint(64, (64, 64))  # (town, good): the facts


def some_facts():
    town, good = torch.randint(64, (2, 512))  # (batch,) each
    return (town, good), prices[town, good]


def learn_facts(make, alpha=0.0, steps=600, seed=0, what="facts"):
    torch.manual_seed(seed)
    model = FactModel(make())
    fit(model, some_facts, alpha, steps, what)
    return model


@torch.no_grad()
def known(model):  # the fraction of all facts that it gets right
    town, good = torch.arange(4096) // 64, torch.arange(4096) % 64
    found = model(town, good).argmax(dim=-1)  # (fact,)
    return (found == prices.flatten()).float().mean().item()


# %% [markdown]
# Four networks: one of 64 hidden units; eight such experts, of which each token visits one (**Switch**); eight of half
# the size, of which it visits two; and one network as wide as eight together, at eight times the price.

# %% tags=["recorded"]
dense = partial(FeedForward, d_model, 64)
switch = partial(Mixture, d_model, 64, experts=8)
two_of_eight = partial(Mixture, d_model, 32, experts=8, k=2)
wide = partial(FeedForward, d_model, 512)

# %% jupyter={"source_hidden": true}
predict(
    "facts-known", "The wide network learns all 4,096 facts. At an eighth of its operations, how many do the others learn?",
    "one small network and eight experts know about half each", "the small network about half, eight experts all",
    "both know nearly all: the small one has enough parameters",
)

# %% [markdown]
# Two of them live, at equal operations:

# %% tags=["nbval-ignore-output"]
for name, make, alpha in (("dense, 64", dense, 0.0), ("Switch", switch, 0.01)):
    fraction = known(learn_facts(make, alpha, what=name))
    print(f"{name:10} knows {fraction:.0%} of the facts")

# %% jupyter={"source_hidden": true}
predicted("facts-known", "the small network about half, eight experts all", "Equal operations, eight times the memory.")

# %% [markdown]
# Two more questions. Does the small network lack room, or time? Give it four times as many steps. And is it the router's
# skill that wins? Freeze a random router, so that only the experts can learn (a folded cell makes it).


# %% tags=["recorded"] jupyter={"source_hidden": true}
def frozen():
    layer = switch()
    nn.init.normal_(layer.router.weight)
    layer.router.weight.requires_grad_(False)
    return layer


# %% [markdown]
# `data/experts.py` ran this lesson's cells and recorded what each model knows, with three seeds each:

# %%
recorded = json.loads((DATA / "experts.json").read_text())
for name, seeds in recorded["facts"].items():
    print(f"{name:26}", " ".join(f"{fraction:.0%}" for fraction in seeds.values()))

# %% [markdown]
# At equal operations and equal steps, eight experts know every fact, as the wide network does at eight times the price,
# and the small network less than half. The router needs no skill for that: a random one that never learns sends each fact
# to the same expert every time, so that each expert has an eighth of the facts to learn.
#
# But be fair to the small network: with four times as many steps it learns nearly all. At 64 hidden units it lacked time
# more than room, and what the experts bought was speed. At 16 units it lacks room: after 2,400 steps it knows a third,
# and eight experts of 16 know all.

# %% [markdown]
# ## 5 Does it collapse? From an equal start
#
# We have a layer that stores more. What is missing is a reason why the router should use all of it. Language will show
# whether it does: dialogues of free computer games in German, French and English. One character model is to learn all
# three. A folded cell reads the texts, draws batches with the three languages in equal numbers (`batch_of`), and builds
# lesson 10's model in small: two pre-norm blocks, windows of 64 characters. `make` says what takes the place of the
# feed-forward networks, and that is all that will ever differ.

# %% tags=["recorded"] jupyter={"source_hidden": true}
from collections import Counter

from txlib.attention import MultiHeadAttention, causal
from txlib.data import translation

german, french = translation("games", "de-en"), translation("games", "fr-en")


def texts(split):
    columns = {"German": (german, 0), "French": (french, 0), "English": (german, 1)}
    return {name: "\n".join(pair[side] for pair in getattr(pairs, split))
            for name, (pairs, side) in columns.items()}


train_text, test_text = texts("train"), texts("validation")
frequency = Counter("".join(train_text.values()))
alphabet = sorted(character for character, count in frequency.items() if count >= 100)
number = {character: id for id, character in enumerate(alphabet)}


def encode(text):
    return torch.tensor([number[letter] for letter in text if letter in number])


train_ids = [encode(text) for text in train_text.values()]
test_ids = [encode(text) for text in test_text.values()]


def batch_of(ids, size):
    language, rows = torch.arange(size) % 3, []  # (batch,)
    for which in language:
        start = torch.randint(len(ids[which]) - n, ()).item()
        rows.append(ids[which][start : start + n + 1])
    rows = torch.stack(rows)  # (batch, n + 1)
    return rows[:, :-1], rows[:, 1:], language  # read, to predict, (batch, n) each


class Block(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.attention, self.network = MultiHeadAttention(d_model, 4), network
        self.norm_1, self.norm_2 = LayerNorm(d_model), LayerNorm(d_model)

    def forward(self, x):  # (batch, n, d_model)
        x = x + self.attention(self.norm_1(x), mask=causal())
        return x + self.network(self.norm_2(x))  # (batch, n, d_model)


def mean_shares(shares, steps):  # over these steps: (blocks, experts)
    return torch.stack([torch.stack(blocks) for blocks in shares[steps]]).mean(dim=0)


class CharacterModel(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.embedding = nn.Embedding(len(alphabet), d_model)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.position = nn.Parameter(0.02 * torch.randn(n, d_model))
        self.blocks = nn.Sequential(Block(make()), Block(make()))
        self.norm, self.output = LayerNorm(d_model), nn.Linear(d_model, len(alphabet))

    def forward(self, ids):  # (batch, n)
        x = self.embedding(ids) + self.position  # (batch, n, d_model)
        return self.output(self.norm(self.blocks(x)))  # (batch, n, character)


# %% [markdown]
# Training, and the loss on unseen text:

# %% tags=["recorded"]
def train(make, alpha=0.0, what="training", steps=300, seed=0):
    torch.manual_seed(seed)
    model = CharacterModel(make)

    def windows():
        read, following, _ = batch_of(train_ids, 24)  # (batch, n) each
        return (read,), following

    return model, fit(model, windows, alpha, steps, what)


@torch.no_grad()
def test_loss(model):
    torch.manual_seed(99)
    read, following, _ = batch_of(test_ids, 240)  # (240, n) each
    return F.cross_entropy(model(read).flatten(0, 1), following.flatten()).item()


# %% [markdown]
# ### 5.1 Nobody is ahead, and nothing says "be fair"
#
# Eight experts per block, one expert per token. The router's weights begin near 0, so all experts are about equally
# likely. `alpha` is 0.

# %% jupyter={"source_hidden": true}
predict(
    "router-collapse", "What happens to the busiest expert's fraction of the tokens (fair: an eighth)?",
    "it stays near an eighth", "it rises to nearly all, and stays there",
    "it rises to nearly all in 30 steps, and falls again",
)

# %% tags=["nbval-ignore-output"]
runs = {"unbalanced": train(switch, what="8 experts, unbalanced")}

# %% [markdown]
# One number for the end of a run: if the fractions are $s_i$, how many *equally* busy experts would have the same
# entropy? This is $e^{H(s)}$. It is 8 when all work alike, and 1 when one does everything.


# %% tags=["recorded"]
def at_work(shares):  # over the last 20 steps, a number per block
    s = mean_shares(shares, slice(-20, None))  # (blocks, experts)
    return torch.special.entr(s).sum(dim=-1).exp().tolist()


# %% [markdown]
# This run, and three recorded ones:

# %% tags=["nbval-ignore-output"]
recorded_runs = recorded["text"]["no balance loss"].values()
for block in (0, 1):
    here = at_work(runs["unbalanced"][1])[block]
    seeds = [f"{run['at work'][block]:.1f}" for run in recorded_runs]
    print(f"block {block + 1}: {here:.1f} of 8 experts at work; recorded", *seeds)

# %% jupyter={"source_hidden": true}
def busy_lines(name):
    seeds = recorded["text"][name].values()
    return {
        f"block {block + 1}": (range(5, 301, 5), [[100 * step[block] for step in run["busiest"]] for run in seeds])
        for block in (0, 1)
    } | {"fair": ([5, 300], [12.5, 12.5])}


plots.lines(
    busy_lines("no balance loss"), dashed=["fair"], title="From an equal start, one expert soon has nearly everything",
    xlabel="training step", ylabel="tokens at the busiest expert (%)",
    alt="Fraction of the busiest expert over 300 steps, three seeds for each block. All six lines rise within 25 steps, to "
    "between 80 and 100 percent, and fall again; they end between 31 and 60 percent, far above the fair eighth.",
)

# %% jupyter={"source_hidden": true}
predicted("router-collapse", "it rises to nearly all in 30 steps, and falls again", "It does not fall to an eighth, though.")

# %% [markdown]
# So the router **collapses** from an equal start, within 25 steps, and then shares some of the tokens again. In the end
# three to five experts do the work, and you pay memory for eight.
#
# **Why?** The usual story: the rich get richer. An expert that gets more tokens learns faster, so its answers are
# better, so the router sends it more. Is that what happens here? Take the advantage away: let all eight experts be *one
# and the same* network. Such twins differ in nothing but their gates. And a second variant: a bias of 2 puts expert 0
# far ahead from the start, $e^2 \approx 7$ to one against each of the others.


# %% tags=["recorded"] jupyter={"source_hidden": true}
def twins():
    layer = switch()
    layer.experts = nn.ModuleList([layer.experts[0]] * 8)
    return layer


def ahead():
    layer = switch()
    layer.router.bias = nn.Parameter(2.0 * F.one_hot(torch.tensor(0), 8))
    return layer


def busiest(shares, window):  # per window and block, the largest fraction
    starts = range(0, len(shares), window)
    return [mean_shares(shares, slice(start, start + window)).amax(dim=-1).tolist() for start in starts]


# %% [markdown]
# The busiest expert's fraction in block 1, recorded, three seeds each:

# %% jupyter={"source_hidden": true}
for name in ("no balance loss", "no balance loss, eight twins", "no balance loss, one ahead"):
    print(name)
    for seed, run in recorded["text"][name].items():
        parts = [f"step {step}: {run['busiest'][step // 5 - 1][0]:4.0%}" for step in (5, 15, 30, 60, 100, 300)]
        print(f"  seed {seed}", *parts, sep="  ")

# %% [markdown]
# The twins collapse as the others do, at first even further. So in our runs it isn't skill that makes the rich richer.
# Our explanation: the gate alone. Where a larger output lowers the loss, the router raises the gate of the expert that
# was chosen, whichever it is; and as all tokens have much in common, that raises it for most of them at once. And an
# expert that begins far ahead keeps most tokens: 300 steps are not enough to undo it.

# %% [markdown]
# ### 5.2 The cure: a loss for balance
#
# We have seen experts lie idle. What is missing is a loss that notices. Two experts and four tokens: three go to the
# first. So its fraction is $f_1 = 3/4$, and $f_2 = 1/4$. The router's mean probabilities may be $P = (0.6, 0.4)$. The
# balance loss is the number of experts times $f_1 P_1 + f_2 P_2$: $2\,(0.45 + 0.10) = 1.1$. With $f$ and $P$ at one half
# each it would be 1.
#
# In general, of $M$ tokens let $f_i$ be the fraction that goes to expert $i$, and $P_i$ the mean probability that the
# router gives it ($\mathbb{1}$ is 1 where the bracket is true, else 0):
#
# $$f_i = \frac{1}{M} \sum_t \mathbb{1}[i \in T_t] \qquad P_i = \frac{1}{M} \sum_t p_{t,i} \qquad
# L_\text{balance} = N \sum_{i=1}^{N} f_i P_i$$
#
# This is `balance` of section 4. **Why this?** We would like to make $\sum_i f_i^2$ small: for fractions that sum to 1
# it is smallest, $1/N$, when all are equal (Cauchy–Schwarz: $1 = (\sum_i f_i \cdot 1)^2 \le N \sum_i f_i^2$). But $f$ is
# counted from an argmax. Move the router's weights a little, and no token changes its mind: the derivative is 0. $P$ is
# smooth, and follows $f$. So replace one of the two factors by $P$. The factor $N$ makes the value at balance 1,
# whatever the number of experts. (With $k$ choices each token counts $k$ times, and the value at balance is $k$.)
#
# The gradient is then $\partial L_\text{balance} / \partial P_i = N f_i$: it presses on each probability *in proportion
# to how busy the expert is*. Check it, and the values at both ends:

# %%
torch.manual_seed(0)
p = torch.randn(600, 8).softmax(dim=-1)  # (tokens, experts)
f = F.one_hot(p.argmax(dim=-1), 8).float().mean(dim=0)  # (experts,)
P = p.mean(dim=0).requires_grad_()  # (experts,)
(8 * (f * P).sum()).backward()
prove_equal(P.grad, 8 * f, what="The gradient at P and N · f")
even = torch.arange(800)[:, None] % 8  # (tokens, 1): all experts equally often
uniform = torch.full((800, 8), 1 / 8)  # (tokens, experts)
sure = F.one_hot(torch.zeros(800, dtype=torch.long), 8).float()  # all of expert 0
print(f"balanced {balance(uniform, even):.2f},",
      f"all to one expert {balance(sure, sure.topk(1).indices):.2f}")

# %% [markdown]
# A detail that is often told wrongly: 1 is not the smallest of all values. Two experts; 40 of 100 tokens
# are very sure of the first, 60 lean a little to the second. Then the busier expert has the *smaller* mean probability:

# %%
p = torch.tensor([[0.99, 0.01]] * 40 + [[0.49, 0.51]] * 60)  # (tokens, experts)
P = [round(share, 2) for share in p.mean(dim=0).tolist()]
print(f"f = [0.4, 0.6], P = {P}, loss {balance(p, p.topk(1).indices):.3f}")

# %% [markdown]
# Now train again, with `alpha = 0.01`, as Fedus et al. did. It should be large
# enough to keep the experts busy, and small enough not to disturb the language model.

# %% tags=["nbval-ignore-output"]
runs["balanced"] = train(switch, alpha=0.01, what="8 experts, balanced")
for name, (model, shares) in runs.items():
    busy = " and ".join(f"{each:.1f}" for each in at_work(shares))
    print(f"{name:10} experts at work {busy} of 8;  test loss {test_loss(model):.3f}")
expect("Experts at work in block 1, balanced", at_work(runs["balanced"][1])[0], 6, 8.1)

# %% [markdown]
# All three seeds, recorded:

# %% jupyter={"source_hidden": true}
plots.lines(
    busy_lines("Switch, 1 of 8 × 64"), dashed=["fair"], title="With the balance loss all eight experts soon work",
    xlabel="training step", ylabel="tokens at the busiest expert (%)",
    alt="The same figure with the balance loss. The six lines rise to between 50 and 90 percent in the first 30 steps, are "
    "below 30 percent by step 60, and end between 14 and 19 percent, near the fair eighth.",
)

# %% [markdown]
# The start is nearly as steep as before, but by step 60 the work is shared. The test loss hardly notices: it is 0.01 nats
# lower in each seed. In 300 steps a few experts learn about as much as eight.

# %% [markdown]
# ### 5.3 Capacity: what if all want the same expert?
#
# What is balance good for, if the loss hardly notices? It decides how many tokens are lost where room is fixed: a large
# mixture is spread over many machines, an expert on each, and the size of an expert's batch must be fixed beforehand.
# Take six tokens, three experts, and room for two tokens at each. The queue, first come, first served:
#
# | token | asks expert | its place in the queue | |
# | --- | --- | --- | --- |
# | the | 1 | 1 | served |
# | orcs | 1 | 2 | served |
# | have | 0 | 1 | served |
# | attacked | 1 | 3 | **dropped** |
# | the | 1 | 4 | **dropped** |
# | humans | 2 | 1 | served |
#
# For a **dropped** token the layer adds nothing, and the residual connection carries it past. Switch gives each expert
# room for
#
# $$\text{capacity} = \left\lceil \text{capacity factor} \cdot \frac{\text{tokens} \cdot k}{N} \right\rceil$$
#
# tokens: here $\lceil 1 \cdot 6 / 3 \rceil = 2$. Where $k > 1$, all first choices are served before second ones.


# %%
def within_capacity(chosen, experts, factor):  # (tokens, k)
    capacity = math.ceil(factor * chosen.numel() / experts)
    asking = chosen.T.flatten()  # (k · tokens,): first choices, then second ones
    asked = F.one_hot(asking, experts).cumsum(dim=0)  # how often each, so far
    place = asked.gather(1, asking[:, None])  # (k · tokens, 1): 1 for the first
    return (place <= capacity).view(chosen.T.shape).T  # (tokens, k): has room


asked = torch.tensor([1, 1, 0, 1, 1, 2])[:, None]  # (tokens, 1)
room = within_capacity(asked, experts=3, factor=1.0)  # (tokens, 1)
print("served:", room[:, 0].tolist())

# %% [markdown]
# And drawn. A dashed line with a cross asks an expert that is full, and a dash on the right gets nothing:

# %% jupyter={"source_hidden": true}
asks = F.one_hot(asked[:, 0], 3)  # (tokens, experts)
figures.experts(
    asks * room * 0.8, words, dropped=(asks * ~room).bool(), title="Room for two tokens per expert: latecomers are dropped",
    alt="Six words, three experts, one choice each. Expert 1 takes the first two of the four words that ask it. Dashed "
    "lines from the other two end in a cross before it, and those words have a dash on the right.",
)

# %% [markdown]
# A larger factor drops fewer tokens, and pays for seats that stay empty. The better cure is to send tokens evenly. Our
# two trained routers on test text, block 1, at different factors (Switch used 1.25):

# %% tags=["nbval-ignore-output"]
for name, (model, _) in runs.items():
    torch.manual_seed(99)
    with torch.no_grad():
        model(batch_of(test_ids, 240)[0])
    chosen, dropped = mixtures(model)[0].chosen, {}  # (tokens, k)
    for factor in (1.0, 1.25, 1.5, 2.0, 4.0):
        room = within_capacity(chosen, 8, factor)  # (tokens, k)
        dropped[factor] = 100 * (1 - room.float().mean().item())
    print(f"{name:10} dropped", *(f"{f}: {d:.0f}%" for f, d in dropped.items()))

# %% [markdown]
# See it on one sentence. A row is an expert, a column a character, as block 1 or 2 of either model sends it. Lower the
# capacity: which characters are dropped first? And with two experts per character? (Both models were trained with
# one. If you see no sliders, run the cell.)

# %% tags=["nbval-ignore-output"]
sentence, routers = "The orcs have attacked the humans.", {}
for name, (model, _) in runs.items():
    with torch.no_grad():
        model(encode(sentence.ljust(n))[None])  # (1, n): spaces after the end
    for block, layer in enumerate(mixtures(model), 1):
        routers[f"{name}, block {block}"] = layer.p[: len(sentence)]  # (34, experts)
explore.routing(routers, sentence)

# %% [markdown]
# <details><summary>The answers</summary>
#
# First come, first served: what comes late in the sentence is dropped, whatever it is worth.
#
# With two experts per character, all first choices find their places before any second one, so second choices are
# dropped first.
# </details>

# %% [markdown]
# ## 6 What do the experts specialize in?
#
# We have eight busy experts and three languages. It is tempting to hope for a German expert; what is missing is a
# measurement. For each character of unseen text we know its language, its kind (of six), and its expert in the balanced
# model.


# %% tags=["nbval-ignore-output"]
kinds = ["vowel", "space", "capital", "other", "accented", "consonant"]


def kind(letter):
    tests = (letter in "aeiouy", letter.isspace(), letter.isupper(),
             not letter.isalpha(), not letter.isascii(), True)
    return tests.index(True)  # the first that holds


torch.manual_seed(99)
read, _, language = batch_of(test_ids, 240)  # (240, n), (240, n), (240,)
letter, spoken = read.flatten(), language.repeat_interleave(n)  # (tokens,) each
kind_of = torch.tensor([kind(each) for each in alphabet])[letter]  # (tokens,)
with torch.no_grad():
    runs["balanced"][0](read)
expert_of = [layer.chosen[:, 0] for layer in mixtures(runs["balanced"][0])]

# %% [markdown]
# Begin with a game. If I tell you the expert, how often do you guess the kind right, by naming the most frequent kind of
# that expert? And the language? Without the expert you would always name the most frequent kind of all.


# %% tags=["nbval-ignore-output"]
def table_of(a, b):  # (tokens,) each: how often each pair occurs, as a fraction
    table = torch.zeros(int(a.max()) + 1, int(b.max()) + 1)  # (a, b)
    one = torch.tensor(1 / len(a))
    return table.index_put((a, b), one, accumulate=True)


def guessed(expert, label):  # the best guess for each expert
    return table_of(expert, label).amax(dim=1).sum().item()


for block, expert in enumerate(expert_of, 1):
    none = torch.zeros_like(expert)
    print(f"block {block}: kind {guessed(none, kind_of):.0%} without the expert,",
          f"{guessed(expert, kind_of):.0%} with it;",
          f"language {guessed(none, spoken):.0%} and {guessed(expert, spoken):.0%}")

# %% [markdown]
# The expert tells a lot about the kind and little about the language. The field's measure for this looks at all
# probabilities and not only the best guess. **Mutual information** is how many nats of uncertainty about one the other
# takes away:
#
# $$I(a; b) = \sum_{a, b} P(a, b) \log \frac{P(a, b)}{P(a)\, P(b)} = H(a) + H(b) - H(a, b)$$
#
# We divide by the entropy of $b$: 0 is "tells nothing", 1 is "tells all". A finite sample gives a little more than 0 by
# chance, so we shuffle and measure again: that is the baseline.


# %% tags=["nbval-ignore-output"]
def entropy(p):
    return torch.special.entr(p).sum().item()


def information(a, b):  # what a tells about b: a fraction of b's entropy
    both = table_of(a, b)
    of_a, of_b = entropy(both.sum(dim=1)), entropy(both.sum(dim=0))
    return (of_a + of_b - entropy(both)) / of_b


mixed = torch.randperm(len(letter))  # (tokens,)
rows = language[torch.randperm(240)].repeat_interleave(n)  # whole rows exchanged
for block, expert in enumerate(expert_of, 1):
    told = {"kind": information(expert, kind_of), "letter": information(expert, letter),
            "language": information(expert, spoken),
            "shuffled": information(expert, rows)}
    print(f"block {block}:", ", ".join(f"{name} {i:.3f}" for name, i in told.items()))

# %% [markdown]
# One more baseline is needed. An *ß* alone gives German away, so an expert that only knows letters also knows a bit of
# language. We measure what the *letter* says about the language, and what letter *and* expert say together.

# %% tags=["nbval-ignore-output"]
print(f"language from the letter alone {information(letter, spoken):.3f}")
for block, expert in enumerate(expert_of, 1):
    pair = letter * 8 + expert  # (tokens,): a number for each combination
    shuffled = letter * 8 + expert[mixed]  # (tokens,)
    print(f"with the expert of block {block}: {information(pair, spoken):.3f},",
          f"with a shuffled one {information(shuffled, spoken):.3f}")

# %% [markdown]
# Letter and expert *together* say clearly more about the language than the letter with a shuffled expert. So one and the
# same letter goes partly different ways in different languages; the router can know the language only from the letters
# before, through attention. See both blocks in a table, in percent; each row adds up to 100:

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
def drawn(block, title, alt):
    expert = expert_of[block - 1]
    parts = torch.cat([table_of(kind_of, expert), table_of(spoken, expert)])  # (6 kinds + 3 languages, experts)
    return plots.heatmap(
        (100 * parts / parts.sum(dim=1, keepdim=True)).round(), rows=[*kinds, *train_text], columns=list("01234567"),
        title=title, xlabel=f"expert of block {block} (% of the row)", ylabel="letters that are …", size=0.5,
        numbers=True, alt=alt,
    )


display(drawn(
    1, "Block 1: experts for letters, not for languages",
    "A table, rows are six kinds of characters and three languages, columns are experts. The rows of the kinds differ, "
    "each has a few experts that take most of it. The three rows of the languages are spread over all experts."))
drawn(
    2, "Block 2: kinds of letters again, and some language",
    "The same table for block 2. Again the rows of the kinds differ most. Each language uses nearly every expert, but "
    "not equally.")

# %% [markdown]
# Look along the rows: no language sends most of its tokens to one expert. So no expert is *the* German one; some lean
# to it.
#
# Large models show the same. Jiang et al. (2024, section 5) looked for experts of a subject (biology, philosophy …)
# in Mixtral, and found next to none; what they saw was syntax, such as the indentation of code. The name *expert*
# promises more than it delivers. It is a piece of memory that a cheap question finds.

# %% [markdown]
# ## 7 Break it: take the gate away
#
# We have a router that learns. What is missing is a proof that it needs the gate to do so. Choose the best expert, and
# add what it says, without multiplying by $g$. The forward pass looks harmless. And with $k = 1$, Mixtral's rule
# divides $p_i$ by itself. What does the router learn?


# %%
def router_gradient(rule):
    torch.manual_seed(0)
    layer, tokens = Mixture(d_model, 64, experts=8), torch.randn(256, d_model)
    p, g, chosen = route(tokens, layer.router, k=1)  # g: (tokens, 1)
    gates = {"p": g, "1": torch.ones_like(g), "p / p": g / g.sum(dim=-1, keepdim=True)}
    out = dispatch(tokens, layer.experts, gates[rule], chosen)  # (tokens, d_model)
    (out - torch.randn(256, d_model)).square().mean().backward()
    return layer.router.weight.grad  # (experts, d_model), or None


for rule in ("p", "1", "p / p"):
    found = router_gradient(rule)
    shown = "none" if found is None else "not 0" if found.norm() > 1e-6 else "0"
    print(f"gate {rule:5}: the router's gradient is {shown}")

# %% [markdown]
# The argmax passes no gradient. The gate is the only way from the model's loss to the router: "this expert helped, give
# it more". That is why Switch keeps $p$, and why Mixtral may normalize: with two experts the *ratio* of their gates still
# depends on the router. The balance loss does reach the router without a gate. Such a router learns to be fair, and never
# learns which expert is good.

# %% [markdown]
# ## 8 Is it worth it on text? Equal compute, equal memory
#
# We have one task in which experts win plainly, and it was made of pure memory. What is missing is the honest contest:
# the four models of section 4, now with two blocks each, on our three languages. 300 steps, three seeds, test loss in
# nats, recorded:

# %%
contest = ("dense, 64", "Switch, 1 of 8 × 64", "2 of 8 × 32", "dense, 512")
losses = {name: [run["loss"] for run in recorded["text"][name].values()]
          for name in contest}
gains = {}
for name in contest:
    gains[name] = [dense - own for dense, own in zip(losses["dense, 64"], losses[name])]
    print(f"{name:20} test loss", *(f"{loss:.3f}" for loss in losses[name]),
          "  below dense, 64:", *(f"{gain:+.3f}" for gain in gains[name]))

# %% jupyter={"source_hidden": true}
plots.ranges(
    {name: (min(gain), sum(gain) / 3, max(gain)) for name, gain in gains.items()}, mark=0,
    xlabel="test loss below that of dense, 64 with the same seed (nats)",
    title="On text, at equal operations, the mixtures gain little",
    alt="A dot and a range of three seeds for each model. " + "; ".join(
        f"{name}: {min(gain):+.3f} to {max(gain):+.3f}" for name, gain in gains.items()),
)

# %% [markdown]
# Read this soberly. At the operations of the small dense network, the mixtures gain nothing here: they are ahead in some
# seeds, behind in others. The wide one gains 0.04 to 0.08, at eight times the operations. Our explanation: text is not a list of facts. What 300 steps can learn of it, such as common
# letters and short words, is needed by all tokens, and each expert has seen only an eighth (or a quarter) of them.
#
# That is what a minute on a laptop can show. The large gains were measured in large trainings: Fedus et al. (2021,
# section 3) report the loss of their dense T5-Base reached up to seven times as fast, on the same machines.
#
# And the clock? Operations are a promise that the machine does not keep for free. One pass, forward and backward, of a
# dense layer and of a Switch layer with the same operations per token, on 1,536 tokens, for two widths:

# %% tags=["nbval-ignore-output"]
def milliseconds(layer, x, repeats=8):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        layer(x).sum().backward()
        times.append(1000 * (time.perf_counter() - start))
    return min(times)


for width in (64, 512):
    x = torch.randn(24, n, width)  # (batch, n, width)
    one = milliseconds(FeedForward(width, width), x)
    eight = milliseconds(Mixture(width, width, experts=8), x)
    print(f"d {width}: dense {one:.1f} ms, Switch {eight:.1f}: {eight / one:.1f} times")

# %% [markdown]
# At $d = 64$ the mixture takes several times longer than its operations say: eight small products are slower than one
# large one, and gathering and scattering move memory without computing anything. With eight times the width the same
# overhead counts for much less.

# %% [markdown]
# ## 9 A real one: Mixtral 8x7B, and what came since
#
# We have built and tested a layer. What is missing is one of the size that people use. The library's layer has the same
# parts with the same names, plus capacity and a record of the last batch, `routing`.

# %%
from txlib.layers import MixtureConfig, MixtureOfExperts, Routing

show_source(MixtureOfExperts, Routing)

# %% [markdown]
# Same weights, same numbers; Switch with a capacity factor of 1, and Mixtral without a limit.

# %%
x = torch.randn(4, n, d_model)  # (batch, n, d_model)
for name, k, factor in (("Switch", 1, 1.0), ("Mixtral", 2, None)):
    config = MixtureConfig(d_ff=64, experts=8, top_k=k, capacity_factor=factor)
    library, ours = MixtureOfExperts(config, d_model), Mixture(d_model, 64, 8, k)
    library.load_state_dict(ours.state_dict())
    p, g, chosen = route(x.flatten(0, 1), ours.router, k)
    kept = within_capacity(chosen, 8, factor or 8)  # 8: room for all
    with torch.no_grad():
        mixed = dispatch(x.flatten(0, 1), ours.experts, g * kept, chosen)
        prove_equal(mixed.view_as(x), library(x), what=f"{name}: both")
    loss = library.routing.balance_loss
    prove_equal(balance(p, chosen), loss, what=f"{name}: balance losses")
    prove_equal(kept.sum(), library.routing.counts.sum(), what=f"{name}: served")

# %% [markdown]
# Larger models add a second loss, the **router z-loss** (Zoph et al. 2022, ST-MoE): the mean of $\left(\log \sum_i e^{z_i}\right)^2$, where $z = W_r\, x$. It
# keeps the router's scores small, because in 16 bits large ones are rounded coarsely, and the exponential turns that into
# a gross error.
#
# ### 9.1 Count Mixtral
#
# The name says 8 × 7 billion. The library has the config, and builds it on the *meta* device, with all shapes and no
# memory.

# %%
from txlib.models.sizes import MIXTRAL, build

config = MIXTRAL["8x7b"]
mixtral, ffn = build(config), config.block.ffn
layers = [part for part in mixtral.modules() if isinstance(part, MixtureOfExperts)]
total = parameters(mixtral)
in_experts = sum(parameters(layer.experts) for layer in layers)
active = total - in_experts * (ffn.experts - ffn.top_k) // ffn.experts
print(f"{total:,}, {in_experts / total:.0%} in experts; a token uses {active:,}")
print(f"in 16 bits: {2 * total / 1e9:.0f} GB, {2 * active / 1e9:.0f} read per token")

# %% [markdown]
# 46.7 billion, not 56: only the feed-forward networks come eightfold; attention and embeddings are shared. A token uses
# 12.9 billion, so it costs about as much as with a dense model of 13 billion. But it is *stored* like one of 47: the next
# token may want any expert, so all must be at hand.
#
# **A batch changes the picture.** One token reads two experts per block. But different tokens want different ones. How
# many of the eight does a batch touch, if routing is fair? Each token misses a given expert with probability $1 - k/N$:

# %%
for batch in (1, 2, 4, 8, 16):
    touched = 8 * (1 - (1 - 2 / 8) ** batch)
    print(f"{batch:2} tokens at a time touch {touched:.1f} of 8 experts")

# %% [markdown]
# From a dozen tokens on nearly all weights are read anyway, and each expert has only $k/N$, a quarter of the batch, to
# share the reading.
#
# **Expert parallelism.** Put different experts on different machines. Before each mixture every machine sends each token
# to the machine of its expert, and after it the results come back: two *all-to-all* exchanges per layer. The slowest
# machine decides, so capacity and balance matter most there.
#
# ### 9.2 Since then: finer experts, a shared one, balance by a bias
#
# Three changes have become common with DeepSeek's models (Dai et al. 2024; Wang et al. 2024; DeepSeek-AI 2024b). In the
# library they are `shared_d_ff` and `choice_bias` of `MixtureConfig`, and more `experts` of a smaller `d_ff`.

# %% jupyter={"source_hidden": true}
figures.expert_layouts(
    title="The same work for a token, three ways to cut it",
    alt="Three rows of boxes, as wide in all as each other. Four experts, one of them colored. Sixteen finer experts, each "
    "a quarter as wide, four of them colored. Sixteen finer experts, the first always colored and marked shared, and "
    "three of the other fifteen colored.",
)

# %% [markdown]
# **Finer experts.** Cut each expert into four, and let a token choose four times as many. Parameters and operations
# stay, except for a few biases and a router with four times as many rows. The number of possible *teams*, the sets of
# experts that can serve a token, does not stay. **A shared expert.** What every token needs, such as the grammar of
# commas, should not be learned again by each expert. So one expert takes all tokens, next to the routed ones, of which a
# token then chooses one fewer:

# %%
x = torch.randn(1, 4 * n, d_model)  # (batch, n, d_model)
for number_of, k, d_ff in ((16, 2, 128), (64, 8, 32)):
    layer = Mixture(d_model, d_ff, number_of, k)
    size = sum(map(parameters, layer.experts))
    print(f"{number_of} experts of {d_ff}, {k} per token: {size:,} parameters,",
          f"{math.comb(number_of, k):,} teams")
shared, routed = FeedForward(d_model, 32), Mixture(d_model, 32, 63, k=7)
print("one shared, seven of 63:", tuple((shared(x) + routed(x)).shape))

# %% [markdown]
# **Balance without a loss.** The balance loss pulls the router away from what helps the language model. Instead, give
# each expert a bias that counts when the best $k$ are *chosen*, and not in the gates. After each step, raise it a
# little for experts with too few tokens, and lower it for those with too many. No gradient is involved. Try it on the
# router of the run without balance loss, block 1. It stays as it is; only the biases move:


# %% tags=["nbval-ignore-output"]
torch.manual_seed(99)
with torch.no_grad():
    runs["unbalanced"][0](batch_of(test_ids, 240)[0])
    p = mixtures(runs["unbalanced"][0])[0].p  # (tokens, experts)
    bias, history = torch.zeros(8), []
    for _ in range(1000):
        chosen = (p + bias).argmax(dim=-1)  # (tokens,)
        history.append(chosen.bincount(minlength=8) / len(p))  # (experts,)
        bias += 0.002 * (1 / 8 - history[-1]).sign()
for step in (1, 100, 300, 1000):
    s = torch.stack(history[max(0, step - 50) : step]).mean(dim=0)  # (experts,)
    shares = s.sort(descending=True).values.tolist()
    print(f"after {step:4} steps:", *(f"{share:.0%}" for share in shares))

# %% [markdown]
# The first line is one step, each other line the mean of the 50 steps before it. But a mean can hide something. Many tokens look nearly alike to the router of block 1 (every *e*, every space), so a
# small push moves many at once. How far apart are single steps?

# %% tags=["nbval-ignore-output"]
last = torch.stack(history[-50:])  # (step, experts)
moved = (last[1:] - last[:-1]).abs().sum(dim=1).max() / 2
print(f"in single steps an expert has {last.min():.0%} to {last.max():.0%};",
      f"a step moves up to {moved:.0%} of the tokens")

# %% [markdown]
# A seesaw: one step sends many tokens to other experts, the next sends them back. Smaller steps help. Try 0.0001 and
# 12,000 steps.
#
# DeepSeek-V3 has 256 routed experts per block and one shared, in all of its 61 blocks but the first three. Each token
# uses eight of them and the shared one: 671 billion parameters, of which 37 billion work. (Its router takes a sigmoid of
# each score instead of the softmax, and it keeps a tiny balance loss as well.)

# %% [markdown]
# ## 10 Quiz
#
# Decide first, then open an answer.
#
# **1. A mixture has 16 experts and each token uses 2. You double it to 32 experts of the same size. What happens to the
# operations per token?**
#
# <details><summary>A. They double</summary>
#
# The *parameters* double. A token still visits two experts.
# </details>
# <details><summary>B. They stay, except for the router</summary>
#
# Right. The router's matrix has 32 rows now instead of 16: $2dN$ operations. That is all.
# </details>
# <details><summary>C. They halve: each expert gets half the tokens</summary>
#
# Each *expert* works half as much. Each token causes as much work as before.
# </details>
#
# **2. Why does Switch multiply the expert's output by $p$?**
#
# <details><summary>A. To control the size of the output</summary>
#
# It makes the output smaller, and later layers can adapt to that. So this is not the reason.
# </details>
# <details><summary>B. Otherwise the experts get no gradient</summary>
#
# They do: their output reaches the loss. It is the router that gets none.
# </details>
# <details><summary>C. Otherwise the router gets no gradient from the loss</summary>
#
# Right. The choice itself, an argmax, passes none.
# </details>
#
# **3. Four experts, one per token. All 100 tokens go to expert 0, each with $p_0 = 0.7$. What is the balance loss?**
#
# <details><summary>A. 2.8</summary>
#
# Right: $4 \cdot (1 \cdot 0.7)$; the other $f_i$ are 0.
# </details>
# <details><summary>B. 4</summary>
#
# It would be 4 if the router were also *sure*: $p_0 = 1$.
# </details>
# <details><summary>C. 0.7</summary>
#
# The factor $N = 4$ is missing. Balanced, the loss would be 1.
# </details>
#
# **4. 64 tokens, 8 experts, $k = 1$, capacity factor 1.25. Expert 3 is asked by 15 tokens. How many of them are
# dropped?**
#
# <details><summary>A. None</summary>
#
# There is room for $\lceil 1.25 \cdot 64 / 8 \rceil = 10$.
# </details>
# <details><summary>B. 5, the last ones in the text</summary>
#
# Right. Their residual connection carries them past the layer.
# </details>
# <details><summary>C. 5, those with the smallest gate</summary>
#
# The number is right, but Switch serves in order of arrival. (Others do sort by the gate.)
# </details>
#
# **5. You have one GPU with 24 GB. Which runs on it at 16 bits: a dense model of 11 billion parameters, or Mixtral,
# which uses 12.9 billion per token?**
#
# <details><summary>A. Both, with some luck</summary>
#
# Mixtral's 46.7 billion parameters need 93 GB. All experts must be in memory.
# </details>
# <details><summary>B. The dense one only</summary>
#
# Right: 22 GB. A mixture saves operations, never memory.
# </details>
# <details><summary>C. Mixtral only: it loads experts as it needs them</summary>
#
# Each token may want other experts in each of 32 layers. Loading them from disk would take far longer than computing.
# </details>

# %% [markdown]
# ## 11 Summary
#
# - A mixture has many feed-forward networks; a router sends each token to its best $k$. Parameters grow, operations
#   stay.
# - Gather by expert, compute, `index_add` back with the gate: equal to the dense loop, without the wasted work.
# - On 4,096 facts, at equal operations and equal steps, the experts learned all, and the dense network less than half.
# - From an equal start the busiest expert took nearly all tokens within 25 steps. $N \sum f_i P_i$ presses on busy
#   experts; $f$ is counted, the gradient comes through $P$.
# - The gate is the only way from the model's loss to the router.
# - Our experts divided up letters far more than languages.
# - A token uses few experts, but memory has to hold all of them.
# - Since then: more and smaller experts, a shared one, and biases that balance without a loss.
#
# **Read** Shazeer et al. 2017, *Outrageously Large Neural Networks*,
# [arXiv:1701.06538](https://arxiv.org/abs/1701.06538), sections 2 and 4. Fedus et al. 2021, *Switch Transformers*,
# [arXiv:2101.03961](https://arxiv.org/abs/2101.03961), section 2. Jiang et al. 2024, *Mixtral of Experts*,
# [arXiv:2401.04088](https://arxiv.org/abs/2401.04088), sections 2 and 5. Zoph et al. 2022, *ST-MoE*,
# [arXiv:2202.08906](https://arxiv.org/abs/2202.08906), section 3. Lepikhin et al. 2020, *GShard*,
# [arXiv:2006.16668](https://arxiv.org/abs/2006.16668), section 2. Dai et al. 2024, *DeepSeekMoE*,
# [arXiv:2401.06066](https://arxiv.org/abs/2401.06066), section 3. Wang et al. 2024, *Auxiliary-Loss-Free Load
# Balancing*, [arXiv:2408.15664](https://arxiv.org/abs/2408.15664). DeepSeek-AI 2024b, *DeepSeek-V3*,
# [arXiv:2412.19437](https://arxiv.org/abs/2412.19437), section 2.1.2.
#
# **Do** the exercise [18_experts](../exercises/exercise_18_experts.ipynb). Then go on to
# [19 The Universal Transformer](19_universal.ipynb), which goes the other way: one block is used again and again, so a
# token gets more operations from the same parameters.
