# %% [markdown] lesson={"part": "II Language models", "builds": "routing, memory at equal operations, collapse and its cure"}
# # 18 · Mixture of experts
#
# **After this lesson you will be able to**
#
# - give a model eight times the feed-forward parameters at the same number of operations per token, and show a task in
#   which that wins;
# - write a router, send tokens to experts and bring them back, and prove that nothing got lost;
# - watch a router collapse from an equal start, find the cause, and derive the loss that levels the work;
# - say what Switch and Mixtral do differently, and count Mixtral's 46.7 billion parameters, of which 12.9 billion work
#   for a token;
# - look into a router and say honestly what its experts have specialized in.
#
# **You need** lessons 06 and 10. **It takes** about 60 minutes to read and try; all cells together run in a
# little over a minute on a laptop. Most of that is three small language models.

# %% [markdown]
# ## 1 The problem: every token pays for every parameter
#
# Two thirds of a block's parameters (lesson 06) sit in its feed-forward network. Widen that network, and watch the
# price:

# %% tags=["recorded"]
import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from txlib import plots
from txlib.layers import FeedForward, LayerNorm
from txcourse import explore, figures
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
# Two operations per parameter: an English comma pays for all that the network has stored about German plurals. Can a
# token pay only for the part that it needs?

# %% [markdown]
# ## 2 A layer that chooses
#
# ### 2.1 The idea in one picture
#
# We have one network for all tokens. What is missing is a choice. Keep many feed-forward networks, the **experts**. A
# **router**, which is one small matrix, gives each token a weight for each expert. The token goes to its $k$ best
# experts only; their answers are multiplied by the weights and added up. Below there are four experts, and $k = 2$. A
# line's width is the weight.

# %% jupyter={"source_hidden": true}
figures.two_of_four()

# %% [markdown]
# Both times, *the* goes to the same experts, because this router sees a word's vector and nothing else. An expert
# without a line is not computed for that token: that is the whole saving.
#
# Now with numbers. Three experts would answer 10, 20 and 60, and the router's scores for them are 2, 1 and 0:

# %%
answers = torch.tensor([10.0, 20.0, 60.0])  # (experts,)
p = torch.tensor([2.0, 1.0, 0.0]).softmax(dim=0)  # (experts,)
print("p:", [round(each, 2) for each in p.tolist()])
print(f"k = 1: {p[0]:.2f} · 10 = {p[0] * answers[0]:.1f}")
g = p[:2] / p[:2].sum()  # together 1
print(f"k = 2: {g[0]:.2f} · 10 + {g[1]:.2f} · 20 = {g @ answers[:2]:.1f}")

# %% [markdown]
# The third expert would have said 60, but was never asked. As an equation: a token $x$, experts $E_1 \dots E_N$, a
# router $W_r$ with one row per expert.
#
# $$p = \text{softmax}(W_r\, x) \qquad T = \text{the } k \text{ largest of } p \qquad
# y = \sum_{i \in T} g_i\, E_i(x)$$
#
# The $g_i$ are the **gates**. There are two conventions, and you have just computed both:
#
# - **Switch** (Fedus et al. 2021): $k = 1$, $g_i = p_i$.
# - **Mixtral** (Jiang et al. 2024): $k = 2$, $g_i = p_i / \sum_{j \in T} p_j$. The gates of the chosen experts sum to
#   1.
#
# ($N$ is the number of experts here, as in the papers.) With $k = 1$ the second rule would make each gate
# $p_i / p_i = 1$. Remember this: section 6 breaks it.

# %% [markdown]
# ### 2.2 The router
#
# From now on sentences do not matter: all positions of all sentences are one long list of tokens. The router scores
# them, and keeps the $k$ best:


# %% tags=["recorded"]
def route(tokens, router, k):  # (tokens, d_model)
    p = router(tokens).softmax(dim=-1)  # (tokens, experts)
    g, chosen = p.topk(k)  # (tokens, k) each, the likeliest first
    if k > 1:
        g = g / g.sum(dim=-1, keepdim=True)  # Mixtral; Switch keeps p
    return p, g, chosen


# %% [markdown]
# ### 2.3 The definition, at full price
#
# The safest way to compute $y$: let *every* expert compute *every* token, and multiply by 0 what was not chosen.
# (`FeedForward` wants a batch, so `tokens[None]` makes one, and `[0]` takes it away again.)


# %%
def dense_loop(tokens, experts, g, chosen):
    gates = torch.zeros(len(tokens), len(experts)).scatter(1, chosen, g)
    out = torch.zeros_like(tokens)  # (tokens, d_model)
    for i, expert in enumerate(experts):
        out = out + gates[:, i, None] * expert(tokens[None])[0]
    return out


# %% [markdown]
# ### 2.4 The same, without wasted work
#
# Now each expert computes only the tokens that chose it. Gather them, compute them, multiply by their gates, and *add*
# each result to its token's row with `index_add`. (`out[token] = …` would overwrite what the token's other expert
# said.)


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
# ### 2.5 A layer
#
# The layer fits where a feed-forward network was. It keeps what the router said, so that we can look at it, and see
# what fraction of the tokens each expert got.


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

    def shares(self):  # the fraction of the tokens that each expert got
        counts = self.chosen.flatten().bincount(minlength=len(self.experts))
        return counts / self.chosen.numel()


# %% [markdown]
# ## 3 See it win: 4,096 facts
#
# We have a layer that can hold many networks at the price of one. What is missing is a reason to want it. Here
# is a task of pure memory: in 64 towns, 64 goods are sold, each at a price from 0 to 63 that was drawn at random. A
# model can only store them. Ours adds a vector for the town and one for the good. Then come one network with a
# residual connection, and scores for the 64 prices. There is no attention.


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
# The training loop is the usual one:


# %% tags=["recorded"]
def fit(model, loss_of, steps, what):
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), fused=True)
    for step in progress(range(steps), what):
        factor = min(1, (step + 1) / 30) * (1 - 0.9 * step / steps)
        optimizer.param_groups[0]["lr"] = 5e-3 * factor
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


# %% [markdown]
# 600 batches of 512 facts show each fact about 75 times, and the test asks for all facts:

# %% tags=["recorded"]
torch.manual_seed(7)
prices = torch.randint(64, (64, 64))  # (town, good): the facts


def fact_loss(model):
    town, good = torch.randint(64, (2, 512))  # (batch,) each
    return F.cross_entropy(model(town, good), prices[town, good])


@torch.no_grad()
def known(model):  # the fraction of all facts that it gets right
    town, good = torch.arange(4096) // 64, torch.arange(4096) % 64
    found = model(town, good).argmax(dim=-1)  # (fact,)
    return (found == prices.flatten()).float().mean().item()

# %% [markdown]
# Four networks: one of 64 hidden units; eight such experts, of which each token visits one (**Switch**); eight of half
# the size, of which it visits two; and one network as wide as eight together, at eight times the price. `make` is one
# of them:

# %% tags=["recorded"]
dense = partial(FeedForward, d_model, 64)
switch = partial(Mixture, d_model, 64, experts=8)
two_of_eight = partial(Mixture, d_model, 32, experts=8, k=2)
wide = partial(FeedForward, d_model, 512)


def learn_facts(make, what):
    torch.manual_seed(0)
    return fit(FactModel(make()), fact_loss, 600, what)

# %% [markdown]
# Guess first:

# %% jupyter={"source_hidden": true}
predict("facts-known", "The wide network learns all 4,096 facts. At an eighth of its operations, how many do the others learn?",
        "one small network and eight experts know about half each", "the small network about half, eight experts all", "both know nearly all: the small one has enough parameters")

# %% [markdown]
# Train two of them, and count their parameters and operations as in section 1:

# %% tags=["nbval-ignore-output"]
for name, make in (("dense, 64", dense), ("Switch", switch)):
    print(f"{name:9} {parameters(make()):6,} parameters,",
          f"{operations(make(), x):6,.0f} operations per token;",
          f"knows {known(learn_facts(make, name)):.0%} of the facts")
predicted("facts-known", "the small network about half, eight experts all",
          "Equal operations, eight times the memory.")

# %% [markdown]
# Eight times the parameters, at nearly the same operations. (The difference is the router: $2 d N$ operations per
# token; in Mixtral, less than a ten-thousandth.)
#
# Is it the router's skill that wins? As a control, freeze a random router. The vectors that it reads could still learn
# to suit it, so a second control freezes these as well. `data/experts.py` ran this lesson's cells and recorded what
# each model knows, with three seeds each:

# %%
import json

from txlib.paths import DATA

recorded = json.loads((DATA / "experts.json").read_text())
for name, seeds in recorded["facts"].items():
    print(f"{name:26}", " ".join(f"{fraction:.0%}" for fraction in seeds.values()))

# %% [markdown]
# **Equal operations, equal steps** (the first four rows): eight experts know practically every fact, as the wide
# network does at eight times the price, and the small network less than half.
#
# **Skill?** (The next three.) The router needs none: a random one will do, even with fixed vectors, where the small
# network knows only 30%. Each fact then always goes to the same expert. Our explanation: it is enough that each expert
# has only some of the facts to learn.
#
# **Room, or time?** (The last three.) With four times as many steps the small network learns nearly all, so it lacked
# time more than room, and what the experts bought was speed. With 16 hidden units even 2,400 steps give it a third, and
# eight experts of 16 (with the balance loss of section 4.2) know all.

# %% [markdown]
# ## 4 Does it collapse? From an equal start
#
# A frozen router spreads the facts evenly enough. Does one that learns use all its experts? Our test is language: one
# character model for three of them. Each block has eight experts, of which a character visits one. The router's weights
# begin near 0, so all are about equally likely. No expert is ahead, and nothing asks for balance.

# %% jupyter={"source_hidden": true}
predict("router-collapse", "What happens to the busiest expert's fraction of the tokens (fair: an eighth)?",
        "it stays near an eighth", "it rises to nearly all, and stays there", "it rises to nearly all in 30 steps, and falls again")

# %% [markdown]
# The texts are dialogues of free computer games. Characters become numbers:

# %% tags=["recorded"]
from collections import Counter

from txlib.attention import MultiHeadAttention, causal
from txlib.data import translation

german, french = translation("games", "de-en"), translation("games", "fr-en")


def texts(split):  # German, French, English
    return ["\n".join(pair[side] for pair in getattr(pairs, split))
            for pairs, side in ((german, 0), (french, 0), (german, 1))]


frequency = Counter("".join(texts("train")))
alphabet = sorted(each for each, count in frequency.items() if count >= 100)
number = {character: id for id, character in enumerate(alphabet)}


def encode(text):
    return torch.tensor([number[letter] for letter in text if letter in number])


train_ids = [encode(text) for text in texts("train")]
test_ids = [encode(text) for text in texts("validation")]

# %% [markdown]
# A batch takes the languages in turn. The unseen texts are always the same:

# %% tags=["recorded"]
def batch_of(ids, size):
    rows = []
    for i in range(size):
        start = torch.randint(len(ids[i % 3]) - n, ()).item()
        rows.append(ids[i % 3][start : start + n + 1])
    rows = torch.stack(rows)  # (batch, n + 1)
    return rows[:, :-1], rows[:, 1:]  # read, to predict: (batch, n) each


torch.manual_seed(99)
read, following = batch_of(test_ids, 240)


# %% [markdown]
# The model is lesson 10's in small: two pre-norm blocks, windows of 64 characters. `make` makes the networks that
# replace the feed-forward networks. Nothing else will ever differ.


# %% tags=["recorded"]
class Block(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.attention, self.network = MultiHeadAttention(d_model, 4), network
        self.norm_1, self.norm_2 = LayerNorm(d_model), LayerNorm(d_model)

    def forward(self, x):  # (batch, n, d_model)
        x = x + self.attention(self.norm_1(x), mask=causal())
        return x + self.network(self.norm_2(x))  # (batch, n, d_model)


# %% [markdown]
# Around the blocks are embeddings, learned positions and an output matrix:


# %% tags=["recorded"]
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
# Train as before, on another loss:


# %% tags=["recorded"]
def loss_on(model, read, following):  # (batch, n) each
    return F.cross_entropy(model(read).flatten(0, 1), following.flatten())


def text_loss(model):
    return loss_on(model, *batch_of(train_ids, 24))


def train(make, loss_of=text_loss, what="training", seed=0):
    torch.manual_seed(seed)
    return fit(CharacterModel(make), loss_of, 300, what)


# %% [markdown]
# ### 4.1 No balance asked for
#
# Train it, and see what fraction of the unseen characters each expert gets:


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def show_work(model):
    print(f"loss on unseen text {loss_on(model, read, following).item():.3f}")
    for number_of, block in enumerate(model.blocks, 1):
        busiest_first = sorted(block.network.shares().tolist(), reverse=True)
        print(f"  block {number_of}:", *(f"{share:.0%}" for share in busiest_first))


runs = {"unbalanced": train(switch, what="8 experts, unbalanced")}
show_work(runs["unbalanced"])

# %% [markdown]
# The record of `data/experts.py` has its busiest expert over the whole training, with three seeds:

# %% jupyter={"source_hidden": true}
def busiest(name, block):  # a line for each seed
    return [[step[block] for step in run["busiest"]] for run in recorded["text"][name].values()]


display(figures.busiest_expert(
    {"block 1": busiest("no balance loss", 0), "block 2": busiest("no balance loss", 1)},
    title="From an equal start, one expert soon has nearly everything"))
predicted("router-collapse", "it rises to nearly all in 30 steps, and falls again", "It does not fall to an eighth, though.")

# %% [markdown]
# So the router **collapses** from an equal start, within 25 steps, and then shares some of the tokens again. At the end
# a few experts do most of the work, and you pay memory for eight.
#
# **Why?** The usual story: the rich get richer. An expert that gets more tokens learns faster, so its answers are
# better, so the router sends it more. Two controls can refute it:
#
# - *twins*: all eight experts are one and the same network, so none of them can be better;
# - *frozen*: the router's weights are random and never change, so it cannot reward anyone. (They are drawn with a
#   spread of 1 instead of 0.02. With one expert per token that changes the gates, not the choice.)

# %% jupyter={"source_hidden": true}
predict("rich-get-richer", "Train both without a balance loss. Does one expert still get nearly everything?",
        "in neither: the story is right", "with twins only", "in both")

# %% [markdown]
# The record has both:

# %% jupyter={"source_hidden": true}
display(figures.busiest_expert(
    {"eight twins": busiest("no balance loss, eight twins", 1), "router frozen": busiest("router frozen", 1)},
    title="With nothing to reward, one expert still gets nearly everything (block 2)"))
predicted("rich-get-richer", "in both", "Neither skill nor reward is needed.")

# %% [markdown]
# (In block 1 the busiest of the twins also gets 100%, and that of the frozen routers 78, 56 and 89% at most. A frozen
# router's favorite could still be rewarded through the vectors that the router reads, by way of the gate. Without the
# gate, as in section 6, that path is closed as well: in the record the busiest then still reaches 90 to 100%, in both
# blocks.) So neither what an expert has learned nor what a router has is needed. What is left is what
# the router *reads*. Our suspicion: early in training the vectors of all tokens have a large part in common. If that
# part alone gives one expert a score of 5 and another 3, and the rest of each vector adds 0.1 or takes it away, the
# first wins every token. Test it by an intervention: the router reads `tokens - tokens.mean(dim=0)`. Nothing else
# changes.

# %% jupyter={"source_hidden": true}
figures.busiest_expert(
    {"as before": busiest("no balance loss", 1), "mean subtracted": busiest("no balance loss, mean subtracted", 1)},
    title="Without what all tokens have in common, no expert gets everything (block 2)")

# %% [markdown]
# The collapse is gone, without any loss for balance: no expert ever has more than 37% in either block. So in our runs
# the common part was the cause. (Subtracting the mean of a batch is an experiment, not a recipe: while a model writes,
# there is no batch of later tokens.)

# %% [markdown]
# ### 4.2 The cure: a loss for balance
#
# The usual cure is a loss that notices idle experts. Take two experts and four tokens, of which three go to the first:
# its fraction is $f_1 = 3/4$, and $f_2 = 1/4$. Let the router's mean probabilities be $P = (0.6, 0.4)$. The balance
# loss is the number of experts times $f_1 P_1 + f_2 P_2$: $2\,(0.45 + 0.10) = 1.1$. With $f$ and $P$ at one half each
# it is 1.
#
# In general, of $M$ tokens let $f_i$ be the fraction that goes to expert $i$, and $P_i$ the mean probability that the
# router gives it ($\mathbb{1}$ is 1 where the bracket is true, else 0):
#
# $$f_i = \frac{1}{M} \sum_t \mathbb{1}[i \in T_t] \qquad P_i = \frac{1}{M} \sum_t p_{t,i} \qquad
# L_\text{balance} = N \sum_{i=1}^{N} f_i P_i$$
#
# **Why this?** We would like to make $\sum_i f_i^2$ small: for fractions that sum to 1 it is smallest, $1/N$, when all
# are equal (Cauchy–Schwarz: $1 = (\sum_i f_i \cdot 1)^2 \le N \sum_i f_i^2$). But $f$ is counted from an argmax. Move
# the router's weights a little, and no token changes its expert: the derivative is 0. $P$ is smooth, so it replaces one
# of the two factors. The factor $N$ makes the value at balance 1, whatever the number of experts. (With $k$ choices
# each token counts $k$ times, and the value at balance is $k$.)
#
# The gradient is then $\partial L_\text{balance} / \partial P_i = N f_i$: it presses on each probability *in proportion
# to how busy the expert is*. Compute it for the example's four tokens:


# %% tags=["recorded"]
def balance(p, chosen):  # (tokens, experts), (tokens, k)
    N = p.shape[-1]
    f = F.one_hot(chosen, N).float().sum(dim=1).mean(dim=0)  # (experts,)
    return N * (f * p.mean(dim=0)).sum()


p = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.2, 0.8]])  # mean (0.6, 0.4)
print(f"balance loss {balance(p, p.topk(1).indices):.2f}")

# %% [markdown]
# Now train again, with a hundredth of it in the loss, as Fedus et al. did:


# %% tags=["nbval-ignore-output"]
def balanced_loss(model):
    mixtures = [block.network for block in model.blocks]
    return text_loss(model) + 0.01 * sum(balance(m.p, m.chosen) for m in mixtures)


runs["balanced"] = train(switch, balanced_loss, what="8 experts, balanced")
show_work(runs["balanced"])
busiest_share = runs["balanced"].blocks[0].network.shares().max().item()
expect("The busiest of block 1, balanced", busiest_share, 0.12, 0.3)

# %% [markdown]
# At the end all eight work. (They do not from the start: in the record the busiest one still peaks at 51 to 92%, and
# then falls to 14 to 19%.) The test loss hardly changes: in 300 steps a few experts learn about as much as eight.

# %% [markdown]
# ### 4.3 Capacity: what if all want the same expert?
#
# What is balance good for, if the loss hardly changes? A large mixture is spread over many machines, an expert on each,
# and the size of an expert's batch is fixed beforehand. So balance decides how many tokens find room. Take the sentence
# of section 2, and let four of its six words ask expert 1, which has room for two. First come, first served: *the* and
# *orcs* are computed; *attacked* and the second *the* are dropped.
#
# For a **dropped** token the layer adds nothing, and the residual connection carries it past. GShard and Switch give
# each expert room for
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
# Here it is drawn. A dashed line with a cross is a request to an expert that is full, and a dash on the right means
# that the token gets nothing:

# %% jupyter={"source_hidden": true}
words = "the orcs have attacked the humans".split()
figures.served(asked[:, 0], room[:, 0], words, title="Room for two tokens per expert: latecomers are dropped")

# %% [markdown]
# A larger factor drops fewer tokens, and pays for room that stays empty. The better cure is to send tokens evenly. Our
# two trained routers on unseen text, block 1, at different factors:

# %% tags=["nbval-ignore-output"]
for name, model in runs.items():
    with torch.no_grad():
        model(read)
    chosen, dropped = model.blocks[0].network.chosen, []  # chosen: (tokens, 1)
    for factor in (1.0, 1.25, 1.5, 2.0, 4.0):
        room = within_capacity(chosen, 8, factor)  # (tokens, 1)
        dropped.append(f"{factor}: {1 - room.float().mean():.0%}")
    print(f"{name:10} dropped", *dropped)

# %% [markdown]
# See it on one sentence. A row is an expert, a column a character, as block 1 of either model sends it. Lower the
# capacity: does the router drop what matters least? (If you see no sliders, run the cell.)

# %% tags=["nbval-ignore-output"]
sentence, routers = "The orcs have attacked the humans.", {}
for name, model in runs.items():
    with torch.no_grad():
        model(encode(sentence.ljust(n))[None])  # (1, n): spaces after the end
    routers[name] = model.blocks[0].network.p[: len(sentence)]  # (34, experts)
explore.routing(routers, sentence)

# %% [markdown]
# <details><summary>The answer</summary>
#
# No. First come, first served: what comes late in the sentence is dropped, however important it is.
# </details>

# %% [markdown]
# ## 5 What do the experts specialize in?
#
# With eight busy experts and three languages, it is tempting to hope for a German expert. Measure it. Sort the
# characters into six kinds. Then for each character of unseen text we know its language and its kind:


# %% tags=["recorded"]
def kind(letter):
    if letter.isspace():
        return "space"
    if not letter.isalpha():
        return "other"
    if letter.isupper():
        return "capital"
    if not letter.isascii():
        return "accented"
    return "vowel" if letter in "aeiouy" else "consonant"


kinds = ["vowel", "consonant", "accented", "capital", "space", "other"]
kind_of = torch.tensor([kinds.index(kind(each)) for each in alphabet])[read.flatten()]
language_of = (torch.arange(240) % 3).repeat_interleave(n)  # (tokens,)

# %% [markdown]
# Now play a game. You are told the expert, and guess the kind, by naming the most frequent kind of that expert. How
# often are you right? And the language?


# %% tags=["recorded"]
def table_of(hint, label):  # (tokens,) each: how often each pair occurs
    return F.one_hot(hint).float().T @ F.one_hot(label).float()  # (hint, label)


def guessed(hint, label):  # the fraction that the best guess for each hint gets right
    return table_of(hint, label).amax(dim=1).sum().item() / len(label)


# %% [markdown]
# There are three controls: you know nothing; you know the letter itself; you know the expert, but the router was random
# and frozen. (Where you know an expert: recorded, three seeds.)

# %%
for name, hint in {"nothing": 0 * kind_of, "the letter": read.flatten()}.items():
    print(f"knowing {name}: kind {guessed(hint, kind_of):.0%},",
          f"language {guessed(hint, language_of):.0%}")


def told(name, label, block):  # by the expert, one for each seed
    seeds = recorded["text"][name].values()
    return " ".join(f"{run[label][block]:.0%}" for run in seeds)


for name in ("Switch, 1 of 8 × 64", "router frozen"):
    for block in (0, 1):
        print(f"{name}, block {block + 1}: kind {told(name, 'kind', block)},",
              f"language {told(name, 'language', block)}")

# %% [markdown]
# The expert tells a lot about the kind. Is that the router's doing? Only in part: a frozen one tells 47 to 77%, against
# 62 to 81%. Our explanation: characters of a kind have similar vectors, so they look alike to *any* router. The expert
# tells much less about the language, and part of that is in the letter itself (an *ß* is German). Only in block 2 does
# it tell clearly more than the letter: presumably the router has learned to use the letters before, which attention
# mixes in. (The frozen routers, which do not, are not quite a fair rival: they use fewer experts.)
#
# The figure has both blocks of the balanced model; each row adds up to 1:

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
with torch.no_grad():
    runs["balanced"](read)
expert_of = [block.network.chosen[:, 0] for block in runs["balanced"].blocks]  # of each block, (tokens,)
tables = [torch.cat([table_of(kind_of, expert), table_of(language_of, expert)]) for expert in expert_of]
figures.specialties(
    torch.stack(tables), [kinds, ["German", "French", "English"]],
    title="Kinds of characters have their experts; languages hardly do")

# %% [markdown]
# Look along the rows: no language sends most of its tokens to one expert. So no expert is *the* German one, though some
# lean: in our run, expert 0 of block 1 gets about a quarter of the French characters, and half that of the others.
#
# Large models show the same. Jiang et al. (2024, section 5) looked for experts on a subject (biology, philosophy …) in
# Mixtral, and found next to none; what they saw was syntax, such as the indentation of code. An *expert* is a piece of
# memory that a cheap question finds.

# %% [markdown]
# ## 6 Break it: take the gate away
#
# Does the router need its gate to learn? Choose the best expert, and add its answer *without* multiplying it by $g$.
# The forward pass looks harmless.

# %% jupyter={"source_hidden": true}
predict("no-gate", "Train it on text with the balance loss. What goes wrong?",
        "some experts get most tokens", "the experts are used evenly, and the loss is higher", "nothing: it learns as well")

# %% [markdown]
# Look first at the gradient that the model's own loss sends to the router:


# %% tags=["recorded"]
class Ungated(Mixture):
    def forward(self, x):  # (batch, n, d_model)
        tokens = x.flatten(0, 1)  # (batch · n, d_model)
        self.p, g, self.chosen = route(tokens, self.router, self.k)
        ones = torch.ones_like(g)  # (tokens, 1)
        return dispatch(tokens, self.experts, ones, self.chosen).view_as(x)


ungated = partial(Ungated, d_model, 64, experts=8)
for name, layer in {"with its gate": switch(), "without": ungated()}.items():
    layer(torch.randn(4, n, d_model)).square().mean().backward()
    slope = layer.router.weight.grad  # (experts, d_model), or None
    print(f"{name}: the router's gradient is",
          None if slope is None else f"of norm {slope.norm():.4f}")

# %% [markdown]
# Then train as in section 4.2. The losses of three seeds are recorded:

# %% tags=["nbval-ignore-output"]
show_work(train(ungated, balanced_loss, what="8 experts, no gate"))


def losses(name):  # on unseen text, one for each seed
    return [run["loss"] for run in recorded["text"][name].values()]


names = ("Switch, 1 of 8 × 64", "no balance loss", "no gate", "no gate, no balance loss",
         "router frozen", "router frozen, no gate")
for name in names:
    print(f"{name:24} loss", *(f"{loss:.3f}" for loss in losses(name)))
predicted("no-gate", "the experts are used evenly, and the loss is higher")

# %% [markdown]
# The argmax passes no gradient, so without the gate no path leads from the model's loss to the router: "this expert
# helped, give it more". The balance loss still reaches it: such a router learns to be fair, and never which expert is
# good.
#
# The loss is higher with every seed, with or without the balance loss. Is that because nothing teaches the router? No:
# with a gate, a *frozen* router does as well as one that learns. Take the gate of the frozen one away (the last row),
# and its loss rises as well, by 0.03 to 0.04. So it is not the price of an untaught router. Our explanation: the gate
# lets a token weigh how much its expert may add, or the vectors learn from the gate's gradient.
#
# Switch keeps $p$ so that the router gets a gradient. Mixtral's rule at $k = 1$ would make the gate $p / p$, always 1,
# with a derivative of 0. With two experts it may normalize: the *ratio* of their gates still depends on the router.

# %% [markdown]
# ## 7 Is it worth it? On our text, and in Mixtral 8x7B
#
# ### 7.1 On text: equal compute, equal memory
#
# Experts won plainly where the task was pure memory. Now the honest contest on our three languages: the models of
# section 3, with two blocks each, and the mixture whose router does not read the mean. 300 steps, three seeds,
# recorded:

# %% jupyter={"source_hidden": true}
gains = {}
for name in ("Switch, 1 of 8 × 64", "no balance loss, mean subtracted", "2 of 8 × 32", "dense, 512"):
    gains[name] = [dense - own for dense, own in zip(losses("dense, 64"), losses(name))]
plots.ranges(
    {name: (min(gain), sum(gain) / 3, max(gain)) for name, gain in gains.items()}, mark=0, title="On text, at equal operations, mixtures gain little",
    xlabel="test loss below that of dense, 64 with the same seed (nats)", alt="A dot and a range of three seeds for each model. " + "; ".join(f"{name}: {min(gain):+.3f} to {max(gain):+.3f}" for name, gain in gains.items()))

# %% [markdown]
# At the operations of the small dense network, the two mixtures with a balance loss gain nothing here: they are ahead
# in some seeds, behind in others. The one that never collapsed gains 0.02 to 0.04, in each seed, but its router needs
# the whole batch (section 4.1). The wide one gains 0.04 to 0.08, at eight times the operations. Our explanation for so
# little: text is not a list of facts. What 300 steps can learn of it, such as common letters and short words, is needed
# by all tokens, and each expert has seen only an eighth (or a quarter) of them.
#
# That is what a minute on a laptop can show. The large gains were measured in large trainings: Fedus et al. (2021,
# section 3) report the loss of their dense T5-Base reached up to seven times as fast, on the same machines.

# %% [markdown]
# ### 7.2 The library's layer
#
# The library's layer has the same parts with the same names, plus capacity and a record of the last batch, `routing`.
# With the same weights it must give the same numbers:

# %%
from txlib.layers import MixtureConfig, MixtureOfExperts

config = MixtureConfig(d_ff=64, experts=8, top_k=2, capacity_factor=None)
library, ours = MixtureOfExperts(config, d_model), Mixture(d_model, 64, 8, k=2)
library.load_state_dict(ours.state_dict())
with torch.no_grad():
    prove_equal(ours(x), library(x), what="Ours and the library's")
loss = library.routing.balance_loss
prove_equal(balance(ours.p, ours.chosen), loss, what="Balance losses")
show_source(MixtureOfExperts.forward)

# %% [markdown]
# <details><summary><i>Second reading:</i> a second loss</summary>
#
# Some large models add the **router z-loss**, the mean of $\left(\log \sum_i e^{z_i}\right)^2$ with $z = W_r\, x$ (Zoph
# et al. 2022). It keeps the router's scores small, because 16 bits round large ones coarsely.
# </details>
#
# ### 7.3 Count Mixtral
#
# The name says 8 × 7 billion. The library builds it on the *meta* device, with all shapes and no memory.

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
# 46.7 billion, not 56: only the feed-forward networks come eight times. A token costs about as much as in a dense model
# of 13 billion. But the model is *stored* like one of 47: the next token may want any expert.
#
# **A batch reads more.** If routing is fair, a token misses a given expert with probability $1 - k/N = 3/4$. So $b$
# tokens touch $8\,(1 - 0.75^b)$ of the eight: 2 for one token, 5.5 for four, 7.9 for sixteen.
#
# **Expert parallelism.** Put different experts on different machines. Before each mixture every token is sent to the
# machine of its expert, and afterwards the results come back: two *all-to-all* exchanges per layer. All wait for the
# slowest machine, so capacity and balance matter most there.
#
# ### 7.4 Since then: finer experts, a shared one, balance by a bias (second reading)
#
# Three changes have become common with DeepSeek's models (Dai et al. 2024; Wang et al. 2024; DeepSeek-AI 2024b; in the
# library: more `experts` of a smaller `d_ff`, `shared_d_ff`, `choice_bias`).

# %% jupyter={"source_hidden": true}
figures.expert_layouts()

# %% [markdown]
# **Finer experts.** Cut each expert into four, and let a token choose four times as many. Parameters and operations
# hardly change. But the number of *teams*, the sets of experts that can serve a token, grows: one of 4 makes 4 teams,
# four of 16 make $\binom{16}{4} = 1{,}820$.
#
# **A shared expert.** What every token needs should not be learned again by each expert. So one expert takes all
# tokens, `shared(x) + routed(x)`, and a token chooses one fewer of the others.
#
# **Balance without a loss.** The balance loss pulls the router away from what helps the language model. Instead, give
# each expert a bias that counts when the best $k$ are *chosen*, and not in the gates. After each step, raise it a
# little for experts with too few tokens, and lower it for those with too many. No gradient is involved. Try it on
# block 1 of the run without balance loss. The router stays as it is; only the biases move:


# %% tags=["nbval-ignore-output"]
with torch.no_grad():
    runs["unbalanced"](read)
p = runs["unbalanced"].blocks[0].network.p  # (tokens, experts)
bias, history = torch.zeros(8), []
for _ in range(250):
    chosen = (p + bias).argmax(dim=-1)  # (tokens,)
    history.append(chosen.bincount(minlength=8) / len(p))  # (experts,)
    bias += 0.002 * (1 / 8 - history[-1]).sign()
figures.loads(torch.stack(history), title="Biases alone level the work")

# %% [markdown]
# In our run, by step 170 each expert has about an eighth. From then on the lines jump up and down, between 10 and 17%.
# Our explanation: each push has the same size, and many tokens look nearly alike to this router (every *e*, every
# space), so it moves many at once.
#
# DeepSeek-V3 has 256 routed experts and a shared one in each of its 61 blocks but the first three. Each token uses
# eight of them and the shared one: 37 of 671 billion parameters. (Its router takes a sigmoid of each score instead of
# the softmax, and it keeps a tiny balance loss as well.)

# %% [markdown]
# ## 8 Quiz
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
# Right. Only the router's matrix has twice as many rows.
# </details>
# <details><summary>C. They halve: each expert gets half the tokens</summary>
#
# Each *expert* does half the work; a token costs as much as before.
# </details>
#
# **2. Why does Switch multiply the expert's output by $p$?**
#
# <details><summary>A. To control the size of the output</summary>
#
# That may be what helps in our runs: even a frozen router misses its gate (section 6). But it is not Switch's reason.
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
# **4. You have one GPU with 24 GB. Which runs on it at 16 bits: a dense model of 11 billion parameters, or Mixtral,
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
# Each token may want other experts in each of 32 layers. Loading them would take far longer than computing.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - A mixture has many feed-forward networks; a router sends each token to its best $k$. Parameters grow, operations
#   stay, and memory has to hold all of them.
# - On 4,096 facts, at equal operations and equal steps, the experts learned practically all, and the dense network less
#   than half.
# - From an equal start the busiest expert took 80 to 100% of the tokens within 25 steps. Neither skill nor reward was
#   needed: all tokens' vectors had a large part in common. Without that part, no collapse. $N \sum f_i P_i$ presses on
#   busy experts; $f$ is counted, the gradient comes through $P$.
# - The gate is the only path from the model's loss to the router.
# - Our experts divided up kinds of characters far more than languages, and a random router did so as well.
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
