# %% [markdown] lesson={"part": "II Language models", "builds": "routing, collapse and its cures, compute per token"}
# # 18 · Mixture of experts
#
# **After this lesson you will be able to**
#
# - give a model eight times the feed-forward parameters at the same number of operations per token;
# - write a router, send tokens to experts and bring them back, and prove that nothing got lost;
# - derive the load-balancing loss, provoke the collapse that it cures, and measure both;
# - say what Switch and Mixtral do differently, and count Mixtral's 46.7 billion parameters, of which 12.9 work;
# - look into a router and say honestly what its experts have specialised in.
#
# **You need** lessons 06 and 10. **It takes** about 85 minutes to read and try; all cells together run in about a
# minute on a laptop. Most of that is five small language models.

# %% [markdown]
# ## 1 The problem: every token pays for every parameter
#
# Here is text in three languages: sentences from the dialogues of free computer games, one below the other. One
# character model is to learn all three.

# %%
import math
import time
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from txlib import plots
from txlib.attention import MultiHeadAttention, causal
from txlib.data import translation
from txlib.layers import FeedForward, LayerNorm
from txcourse import explore, figures
from txcourse.lesson import expect, progress, prove_equal, show_source

pairs = {language: translation("games", f"{language}-en") for language in ("de", "fr")}


def texts(split):
    german, french = (getattr(pairs[language], split) for language in ("de", "fr"))
    columns = {"German": (german, 0), "French": (french, 0), "English": (german, 1)}
    return {name: "\n".join(pair[side] for pair in chosen) for name, (chosen, side) in columns.items()}


train_text, test_text = texts("train"), texts("validation")
for name, text in train_text.items():
    print(f"{name:8} {len(text):9,} characters: {text[1000:1060]!r}")

# %% [markdown]
# A model has to store what it knows somewhere. Where are its parameters? Lesson 06 counted a block: $4d^2$ in
# attention, $8d^2$ in the feed-forward network. Two thirds. Want a model that knows more? Widen that network. And watch
# the price:


# %%
def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


def operations(module, x):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(x)
    return counter.get_total_flops() / x[..., 0].numel()            # per token


d_model, n = 64, 64
x = torch.randn(4, n, d_model)                                      # (batch, n, d_model)
attention = MultiHeadAttention(d_model, 4)
networks = {f"d_ff = {d_ff:5}": FeedForward(d_model, d_ff) for d_ff in (256, 512, 2048)}
for name, module in ({"attention": attention} | networks).items():
    print(f"{name:12}  {parameters(module):8,} parameters", end=" ")
    print(f"{operations(module, x):9,.0f} operations per token")

# %% [markdown]
# In the feed-forward network parameters and operations grow in step, two operations per parameter. (Attention has its
# scores on top.) An English comma pays for everything the network
# has stored about German plurals. Can a token pay only for the part that it needs?

# %% [markdown]
# ## 2 The idea in one picture
#
# Keep many feed-forward networks, the *experts*. A *router*, which is one small matrix, gives each token a weight for
# each expert. The token goes to its $k$ best experts only. What they say is multiplied by the weights and added up.
# Below, four experts, $k = 2$. A line's width is the weight.

# %%
torch.manual_seed(3)
words = ["the", "orcs", "have", "attacked", "the", "humans"]
table = {word: torch.randn(16) for word in words}                   # a random vector per word
sent = torch.stack([table[word] for word in words])                 # (tokens, d)
likely = (sent @ torch.randn(16, 4) / 2).softmax(dim=-1)            # (tokens, experts): a random router
best = likely.topk(2).indices                                       # (tokens, 2)
kept = torch.zeros_like(likely).scatter(1, best, likely.gather(1, best))
figures.experts(
    kept / kept.sum(dim=-1, keepdim=True), words, title="Each token visits two of the four experts",
    alt="Six words on the left, four experts in the middle, the six words again on the right. From "
    "each word two lines "
    "lead to experts, and from there on to the right. Both times 'the' goes to the same experts.",
)

# %% [markdown]
# The word *the* goes the same way twice: here the router sees a word's vector and nothing else. All weights without a
# line are 0, and those experts are not even asked. That is the whole saving.

# %% [markdown]
# ## 3 The equation
#
# A token $x$, experts $E_1 \dots E_N$ (each a feed-forward network), a router $W_r$ with one row per expert:
#
# $$p = \text{softmax}(W_r\, x) \qquad T = \text{the } k \text{ largest of } p \qquad
# y = \sum_{i \in T} g_i\, E_i(x)$$
#
# $g$ are the *gates*. There are two habits:
#
# - **Switch** (Fedus et al. 2021): $k = 1$, $g_i = p_i$.
# - **Mixtral** (Jiang et al. 2024): $k = 2$, $g_i = p_i / \sum_{j \in T} p_j$. The chosen ones share the whole weight.
#
# ($N$ is the number of experts here, as in the papers; in lessons 10 to 13 it counted parameters. $P$ will be a mean
# probability.)
#
# With $k = 1$ the second rule would make each gate $p_i / p_i = 1$. Remember this, we break it in section 8.

# %% [markdown]
# ## 4 Build it
#
# ### 4.1 The router
#
# From now on sentences do not matter: all positions of all sentences are one long list of tokens. Here are five random
# ones, and a random router.


# %%
def route(tokens, router, k):                                       # (tokens, d_model)
    p = router(tokens).softmax(dim=-1)                              # (tokens, experts)
    g, chosen = p.topk(k)                                        # (tokens, k) each, the likeliest first
    if k > 1:
        g = g / g.sum(dim=-1, keepdim=True)                         # Mixtral; Switch keeps p
    return p, g, chosen


torch.manual_seed(0)
router = nn.Linear(d_model, 8, bias=False)                          # d_model -> 8 experts
experts = nn.ModuleList(FeedForward(d_model, 128) for _ in range(8))
tokens = 2 * torch.randn(5, d_model)                                # (tokens, d_model)
p, g, chosen = route(tokens, router, k=2)
for token in range(3):
    both = p[token, chosen[token]], g[token]                        # (k,) each
    chances, gates = ([round(v, 2) for v in each.tolist()] for each in both)
    print(f"token {token}: experts {chosen[token].tolist()}, p {chances}, gates {gates}")

# %% [markdown]
# ### 4.2 The definition, at full price
#
# The safest way to compute $y$: let *every* expert compute *every* token, and multiply what was not chosen by 0.
# (Our `FeedForward` wants a batch, so `tokens[None]` makes one, and `[0]` takes it away again.)


# %%
def dense_loop(tokens, experts, g, chosen):
    weight = torch.zeros(len(tokens), len(experts))                 # (tokens, experts)
    weight = weight.scatter(1, chosen, g)                           # g where chosen, else 0
    said = [expert(tokens[None])[0] for expert in experts]          # (tokens, d_model) each
    return (weight[:, :, None] * torch.stack(said, dim=1)).sum(dim=1)            # (tokens, d_model)


# %% [markdown]
# ### 4.3 The same, and nobody works in vain
#
# Now go expert by expert. Who wants this one? Gather those tokens, compute them, weight them, and *add* each result to
# its token's row. `index_add` does the last step. (Plain `out[token] = …` would overwrite what the token's other expert
# said.)


# %%
def dispatch(tokens, experts, g, chosen):
    out = torch.zeros_like(tokens)                                  # (tokens, d_model)
    for i, expert in enumerate(experts):
        token, choice = (chosen == i).nonzero(as_tuple=True)        # (its tokens,): which, and as what
        said = expert(tokens[None, token])[0]                       # (its tokens, d_model)
        out = out.index_add(0, token, g[token, choice, None] * said)
    return out


tokens = torch.randn(1000, d_model)                                 # (tokens, d_model)
for k in (1, 2, 8):
    p, g, chosen = route(tokens, router, k)
    with torch.no_grad():
        sent, looped = (way(tokens, experts, g, chosen) for way in (dispatch, dense_loop))
    prove_equal(sent, looped, what=f"k = {k}: both")

# %% [markdown]
# A layer around it, that fits where a feed-forward network stood. It keeps what the router said, so that we can look.
# (`gated` is for section 8.)


# %%
class Mixture(nn.Module):
    def __init__(self, d_model, d_ff, experts, k=1, gated=True):
        super().__init__()
        self.router = nn.Linear(d_model, experts, bias=False)
        nn.init.normal_(self.router.weight, std=0.02)          # small: all experts start equally likely
        self.experts = nn.ModuleList(FeedForward(d_model, d_ff) for _ in range(experts))
        self.k, self.gated = k, gated

    def forward(self, x):                                           # (batch, n, d_model)
        tokens = x.flatten(0, 1)                                    # (batch · n, d_model)
        self.p, g, self.chosen = route(tokens, self.router, self.k)
        g = g if self.gated else torch.ones_like(g)                 # (tokens, k)
        return dispatch(tokens, self.experts, g, self.chosen).view_as(x)


# %% [markdown]
# ### 4.4 Count: parameters against operations
#
# One expert to 32 experts, each token visits one. Both lines start at what one plain network has.

# %%
x, counts = torch.randn(4, n, d_model), (1, 2, 4, 8, 16, 32)        # (batch, n, d_model)
plain = FeedForward(d_model, 256)
layers = [Mixture(d_model, 256, N) for N in counts]
size = [parameters(layer) / parameters(plain) for layer in layers]
work = [operations(layer, x) / operations(plain, x) for layer in layers]
for N, parameter, operation in zip(counts, size, work, strict=True):
    print(f"{N:2} experts: {parameter:5.2f} times the parameters,", end=" ")
    print(f"{operation:.3f} times the operations per token")

# %% [markdown]
# The same as a figure, both axes logarithmic:

# %%
plots.lines(
    {"parameters": (counts, size), "operations per token": (counts, work)},
    xscale="log", yscale="log", marker="o",
    title="Parameters grow, operations stay", xlabel="experts", ylabel="times one network",
    alt="Two lines over 1 to 32 experts, logarithmic. Parameters rise in a straight line from 1 to "
    "32. Operations per "
    "token stay at 1, with a rise of a few percent at 32 experts, for the router.",
)

# %% [markdown]
# The small rise is the router: $2 d N$ operations per token. With $d = 64$ you see it. In Mixtral it is less than a
# ten-thousandth.
#
# ### 4.5 Capacity: what if all want the same expert?
#
# A large mixture is spread over many machines, an expert on each, and the size of an expert's batch must be fixed
# beforehand. Switch gives each expert room for
#
# $$\text{capacity} = \left\lceil \text{capacity factor} \cdot \frac{\text{tokens} \cdot k}{N} \right\rceil$$
#
# tokens. First come, first served, in the order of the text (first choices before second ones). Who comes late is
# *dropped*: the layer adds nothing for it, and the residual connection carries it past.


# %%
def within_capacity(chosen, experts, factor):                       # (tokens, k)
    capacity = math.ceil(factor * chosen.numel() / experts)
    asking = chosen.T.flatten()                         # (k · tokens,): first choices, then second ones
    queue = F.one_hot(asking, experts).cumsum(dim=0)      # (k · tokens, experts): how many asked so far
    place = queue.gather(1, asking[:, None])                        # (k · tokens, 1): 1 for the first
    return (place <= capacity).view(chosen.T.shape).T               # (tokens, k): True = there was room


first = best[:, :1]                                                 # (tokens, 1): our six words, k = 1
room = within_capacity(first, 4, factor=1.0)                        # (tokens, 1)
print("expert per word:", first[:, 0].tolist(), "  capacity:", math.ceil(6 / 4), end="   ")
print("kept:", room[:, 0].tolist())

# %% [markdown]
# And drawn. A dashed line with a cross asks an expert that has no room left, and a dash on the right gets nothing:

# %%
taken = torch.zeros_like(likely).scatter(1, first, likely.gather(1, first))          # (tokens, experts)
late = torch.zeros_like(likely).scatter(1, first, (~room).float()).bool()            # (tokens, experts)
figures.experts(
    taken, words, dropped=late, title="Room for two tokens per expert: who comes late is dropped",
    alt="Six words, four experts, one choice each. Each expert takes at most two words. Dashed "
    "lines end at an expert "
    "that is full already, in a cross, and those words have a dash on the right.",
)

# %% [markdown]
# A dropped word misses its expert's answer, so one wants few of them. A larger factor drops fewer, and pays
# for seats that stay empty. The better cure is to send tokens evenly. Keep `within_capacity`: we will use it on trained
# routers.

# %% [markdown]
# ## 5 Train it, and see whether it collapses
#
# A character model, as in lesson 10: two pre-norm blocks. `networks` says what stands in the place of the feed-forward
# networks. That is all that will ever differ.


# %%
class Block(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.attention, self.network = MultiHeadAttention(d_model, 4), network
        self.norm_1, self.norm_2 = LayerNorm(d_model), LayerNorm(d_model)

    def forward(self, x):                                           # (batch, n, d_model)
        x = x + self.attention(self.norm_1(x), mask=causal())       # (batch, n, d_model)
        return x + self.network(self.norm_2(x))                     # (batch, n, d_model)


# %% [markdown]
# Embedding and positions below, scores for the next character on top:


# %%
class CharacterModel(nn.Module):
    def __init__(self, networks):
        super().__init__()
        self.embedding = nn.Embedding(len(alphabet), d_model)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.position = nn.Parameter(0.02 * torch.randn(n, d_model))
        self.blocks = nn.ModuleList(map(Block, networks))
        self.norm, self.output = LayerNorm(d_model), nn.Linear(d_model, len(alphabet))

    def forward(self, ids):                                         # (batch, n)
        x = self.embedding(ids) + self.position                     # (batch, n, d_model)
        for block in self.blocks:
            x = block(x)                                            # (batch, n, d_model)
        return self.output(self.norm(x))                            # (batch, n, character)


# %% [markdown]
# A batch has the three languages in equal shares, each row a window of 64 characters of one of them.

# %%
frequency = Counter("".join(train_text.values()))
alphabet = sorted(character for character, count in frequency.items() if count >= 100)
number = {character: id for id, character in enumerate(alphabet)}


def encode(text):
    return torch.tensor([number[character] for character in text if character in number])


train_ids, test_ids = ([encode(text) for text in part.values()] for part in (train_text, test_text))


def batch_of(ids, size):
    language = torch.arange(size) % 3                               # (batch,)
    starts = [torch.randint(len(ids[which]) - n, ()).item() for which in language]
    rows = [ids[which][at : at + n + 1] for which, at in zip(language, starts, strict=True)]
    rows = torch.stack(rows)                                        # (batch, n + 1)
    return rows[:, :-1], rows[:, 1:], language                      # read, to predict, (batch, n) each


torch.set_num_threads(1)                                 # for models this small, more threads only wait
print(f"{len(alphabet)} different characters")

# %% [markdown]
# The loop notes at each step what share of the tokens each expert gets. `balance` and its factor `alpha` come in
# section 6; for now `alpha` is 0.


# %%
def balance(p, chosen):                                             # (tokens, experts), (tokens, k)
    experts = p.shape[-1]
    f = F.one_hot(chosen, experts).float().sum(dim=1).mean(dim=0)  # (experts,): share that chose it
    P = p.mean(dim=0)                                               # (experts,): mean probability
    return experts * (f * P).sum()


def mixtures(model):
    return [module for module in model.modules() if isinstance(module, Mixture)]


@torch.no_grad()
def test_loss(model):
    torch.manual_seed(99)
    read, following, _ = batch_of(test_ids, 240)                    # (240, n) each
    return F.cross_entropy(model(read).flatten(0, 1), following.flatten()).item()


# %% [markdown]
# The training step is the usual one. Adam, a warm-up of 30 steps, then a rate that falls:

# %%
def train(networks, alpha=0.0, what="training", steps=300, seed=0, lr=5e-3):
    torch.manual_seed(seed)
    model, losses, shares = CharacterModel(networks()), [], []
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.98), fused=True)
    for step in progress(range(steps), what):
        optimizer.param_groups[0]["lr"] = lr * min(1, (step + 1) / 30) * (1 - 0.9 * step / steps)
        read, following, _ = batch_of(train_ids, 24)                # (batch, n) each
        loss = F.cross_entropy(model(read).flatten(0, 1), following.flatten())
        (loss + alpha * sum(balance(each.p, each.chosen) for each in mixtures(model))).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        shares.append([each.chosen.flatten().bincount(minlength=8) / each.chosen.numel()
                       for each in mixtures(model)])                # (experts,) each
    return model, losses, shares


# %% [markdown]
# Eight experts per block, one expert per token, and nothing that tells the router to be fair. Chance always favours someone
# at the start. So that you see the same on every machine, we do not leave it to chance: expert 0 gets a bias of 2, a
# head start of $e^2 \approx 7$ to one against each of the others. As only the best expert is asked, it gets nearly all
# tokens at first. The bias is a parameter, so training may undo it.


# %%
class HeadStart(Mixture):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        first = F.one_hot(torch.tensor(0), len(self.experts))       # (experts,)
        self.router.bias = nn.Parameter(2.0 * first)


def switch():
    return [HeadStart(d_model, 64, experts=8, k=1) for _ in range(2)]


runs = {"unbalanced": train(switch, what="8 experts, unbalanced")}

# %% [markdown]
# Rank the experts by their share at each moment. Fair would be 12.5 % for each.


# %% tags=["nbval-ignore-output"]
def ranked(shares, block=0, window=10):
    each = torch.stack([step[block] for step in shares])            # (steps, experts)
    mean = each.unfold(0, window, 1).mean(dim=-1)                   # (steps, experts)
    first, second, third, *others = 100 * mean.sort(dim=-1, descending=True).values.T    # (steps,) each
    steps = list(range(window, len(shares) + 1))
    drawn = {"the busiest": first, "second": second, "third": third, "the other five": sum(others)}
    return {name: (steps, share.tolist()) for name, share in drawn.items()}


plots.lines(
    ranked(runs["unbalanced"][2]), title="Left alone, the busiest expert keeps most tokens (block 1)",
    xlabel="training step", ylabel="share of the tokens (%), mean of 10",
    alt="The busiest expert takes nearly all tokens at first, and most of them to the end. The "
    "second, the third and the "
    "other five together get a small part each.",
)

# %% [markdown]
# The others catch up a little, and far too slowly. Why? An expert that gets more tokens learns faster. Its answers help,
# so the router's gate for it goes up, and it keeps its tokens or gets more still. The rich stay rich. An expert that
# gets no tokens gets no gradient of its own. You pay memory for eight, and use one, two or three.
#
# One number for it: if the shares are $s_i$, how many *equally* busy experts would have the same entropy? This is
# $e^{H(s)}$. It is 8 when all work, and 1 when one does it all.


# %% tags=["nbval-ignore-output"]
def effective(shares, last=20):
    s = torch.stack([torch.stack(step) for step in shares[-last:]]).mean(dim=0)      # (blocks, experts)
    return torch.special.entr(s).sum(dim=-1).exp().tolist()         # one number per block


for block, experts_at_work in enumerate(effective(runs["unbalanced"][2]), 1):
    print(f"block {block}: as if {experts_at_work:.1f} of 8 experts worked")
expect("Experts at work in block 1, unbalanced", effective(runs["unbalanced"][2])[0], 1, 4.5)

# %% [markdown]
# And without the head start? Then chance picks the favourites. In trials with three seeds, from 2.1 to 5.7 of 8 experts
# worked at the end: a collapse that is milder, and another one each time.

# %% [markdown]
# ## 6 The cure: a loss for balance
#
# Of $M$ tokens, let $f_i$ be the share that goes to expert $i$, and $P_i$ the mean probability the router gives it:
#
# $$f_i = \frac{1}{M} \sum_t \mathbb{1}[i \in T_t] \qquad P_i = \frac{1}{M} \sum_t p_{t,i} \qquad
# L_\text{balance} = N \sum_{i=1}^{N} f_i P_i$$
#
# ($\mathbb{1}$ is 1 where the bracket is true, else 0.)
#
# **Why this?** We would like to make $\sum_i f_i^2$ small: for shares that add up to 1 it is smallest, $1/N$, when all
# are equal (Cauchy–Schwarz: $1 = (\sum_i f_i \cdot 1)^2 \le N \sum_i f_i^2$). But $f$ is counted from an argmax. Move
# the router's weights a little, and no token changes its mind: the derivative is 0. $P$ is smooth, and follows $f$. So
# replace one of the two factors by $P$. The factor $N$ makes the value at balance 1, whatever the number of experts.
# (With $k$ choices each token counts $k$ times, and the value at balance is $k$.)
#
# The gradient is then $\partial L_\text{balance} / \partial P_i = N f_i$: it presses on each probability *in proportion to how busy
# the expert is*. Check both claims:

# %%
logits = torch.randn(600, 8, requires_grad=True)                    # (tokens, experts)
p = logits.softmax(dim=-1)                                          # (tokens, experts)
chosen = p.topk(1).indices                                          # (tokens, 1)
f, P = F.one_hot(chosen, 8).float().sum(dim=1).mean(dim=0), p.mean(dim=0)       # (experts,) each
print("f has a gradient:", f.requires_grad, "  P has one:", P.requires_grad)
P.retain_grad()
(8 * (f * P).sum()).backward()
prove_equal(P.grad, 8 * f, what="The gradient at P and N · f")

# %% [markdown]
# And the values at both ends:

# %%
even = torch.arange(800)[:, None] % 8                           # (tokens, 1): all experts equally often
uniform = torch.full((800, 8), 1 / 8)                               # (tokens, experts)
one = F.one_hot(torch.zeros(800, dtype=torch.long), 8).float()  # (tokens, experts): all sure of 0
print(f"balanced {balance(uniform, even):.2f},", end=" ")
print(f"all to one expert {balance(one, one.topk(1).indices):.2f}")

# %% [markdown]
# From 1 to $N$. A detail that is often told wrongly: 1 is the smallest value for $f = P$, not of all. Two experts; 40
# of 100 tokens are very sure of the first, 60 lean a little to the second. Then the busier expert has the *smaller*
# mean probability:

# %%
p = torch.tensor([[0.99, 0.01]] * 40 + [[0.49, 0.51]] * 60)         # (tokens, experts)
print(f"f = (0.40, 0.60), P = ({p.mean(0)[0]:.2f}, {p.mean(0)[1]:.2f}),", end=" ")
print(f"loss {balance(p, p.topk(1).indices):.3f}")

# %% [markdown]
# So do not worry if yours shows 0.99. Now train again, with the same head start, and `alpha = 0.01`, as Fedus et al.
# did. It should be large enough to keep the experts busy, and small enough not to disturb the language model.

# %%
runs["balanced"] = train(switch, alpha=0.01, what="8 experts, balanced")

# %% [markdown]
# The same figure as before:

# %% tags=["nbval-ignore-output"]
plots.lines(
    ranked(runs["balanced"][2]), title="With the balance loss all eight experts work (block 1)",
    xlabel="training step", ylabel="share of the tokens (%), mean of 10",
    alt="After a short start the busiest expert has about a sixth of the tokens, the second and "
    "the third little less, "
    "and the other five together more than half.",
)

# %% [markdown]
# In numbers, both blocks:

# %% tags=["nbval-ignore-output"]
for name in ("unbalanced", "balanced"):
    model, _, shares = runs[name]
    busy = " and ".join(f"{each:.1f}" for each in effective(shares))
    print(f"{name:10} experts at work {busy} of 8;  test loss {test_loss(model):.3f}")
expect("Experts at work in block 1, balanced", effective(runs["balanced"][2])[0], 6, 8.1)

# %% [markdown]
# The balance is mended, in spite of the head start. And the loss? Look at the two numbers, and at the curves. Here they
# hardly differ: in 300 steps a few experts learn about as much as eight.

# %% tags=["nbval-ignore-output"]
def smooth(losses, window=20):
    means = torch.tensor(losses).unfold(0, window, 1).mean(dim=-1)  # (steps,)
    return list(range(window, len(losses) + 1)), means.tolist()


plots.lines(
    {name: smooth(runs[name][1]) for name in ("unbalanced", "balanced")},
    title="The loss hardly notices the collapse",
    xlabel="training step", ylabel="loss (nats), mean of 20", dashed=["balanced"],
    alt="Two loss curves, one of them dashed, that lie on top of each other from beginning to end.",
)

# %% [markdown]
# So what is balance good for? A longer training may need all of the memory. And where room is fixed, as in section 4.5,
# it decides how many tokens are dropped. Test text, block 1, at different capacity factors:


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def drop_rate(model, factor):
    torch.manual_seed(99)
    model(batch_of(test_ids, 240)[0])
    chosen = mixtures(model)[0].chosen                              # (tokens, k)
    return 1 - within_capacity(chosen, 8, factor).float().mean().item()


factors = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
plots.lines(
    {name: (factors, [100 * drop_rate(runs[name][0], factor) for factor in factors]) for name in runs},
    title="A router out of balance drops tokens", xlabel="capacity factor",
    ylabel="dropped tokens (%)", marker="o",
    alt="Share of dropped tokens over capacity factors 1 to 4. The unbalanced router drops most of "
    "its tokens at 1 and "
    "still many at 4. The balanced one drops few at 1 and practically none from 1.5 on.",
)

# %% [markdown]
# Switch used a factor of 1.25:

# %% tags=["nbval-ignore-output"]
expect("Dropped at factor 1.25, unbalanced (%)", 100 * drop_rate(runs["unbalanced"][0], 1.25), 15, 90)
expect("Dropped at factor 1.25, balanced (%)", 100 * drop_rate(runs["balanced"][0], 1.25), 0, 15)

# %% [markdown]
# See it on one sentence. A row is an expert, a column a character of the sentence, as either model's block 1 or 2 sends
# it. Lower the capacity: which characters are dropped first? And who would come second, with two experts per character?
# (Both models were trained with one. The room is shared out among these 34 characters, not a whole batch. The models
# read 64 characters, never fewer, so spaces follow; they look back only, and so see nothing of these. If you see no
# sliders, run the cell.)

# %% tags=["nbval-ignore-output"]
sentence, routers = "The orcs have attacked the humans.", {}
for name in ("unbalanced", "balanced"):
    model = runs[name][0]
    with torch.no_grad():
        model(encode(sentence.ljust(n))[None])                      # (1, n): spaces after the end
    for block, layer in enumerate(mixtures(model), 1):
        routers[f"{name}, block {block}"] = layer.p[: len(sentence)]          # (34, experts)
explore.routing(routers, sentence)

# %% [markdown]
# <details><summary>The answers</summary>
#
# First come, first served: what stands late in the sentence is dropped, whatever it is worth.
#
# With two experts per character, all first choices find their places before any second one, so second choices are
# dropped first. In our run, the unbalanced block 1 sends 31 of the 34 characters to one expert. Second choices go to all
# eight.
# </details>

# %% [markdown]
# ## 7 What do the experts specialise in?
#
# Eight experts, three languages. It is tempting to hope for a German expert. Measure it. For each token of the test
# text we know the language, the character, and the expert. *Mutual information* says how much you learn about one from
# the other:
#
# $$I(a; b) = \sum_{a, b} P(a, b) \log \frac{P(a, b)}{P(a)\, P(b)} = H(a) + H(b) - H(a, b)$$
#
# We divide by the entropy of $b$: 0 is "tells nothing", 1 is "tells all". A finite sample gives a little more than 0 by
# chance. So we shuffle and measure again: that is the baseline.


# %%
def information(a, b):                                     # two lists of small integers, (tokens,) each
    joint = torch.zeros(int(a.max()) + 1, int(b.max()) + 1)         # (a, b)
    joint.index_put_((a, b), torch.tensor(1 / len(a)), accumulate=True)
    entropy_a, entropy_b, entropy_both = (                          # nats each
        torch.special.entr(p).sum().item() for p in (joint.sum(dim=1), joint.sum(dim=0), joint))
    return (entropy_a + entropy_b - entropy_both) / entropy_b


# %% [markdown]
# Sort the characters into six kinds, and take 240 windows of text that the model has not seen:

# %% tags=["nbval-ignore-output"]
kinds = ["vowel", "consonant", "accented", "capital", "space", "other"]


def kind(character):
    if character.isspace():
        return 4
    if character.isupper():
        return 3
    if not character.isalpha():
        return 5
    return 2 if not character.isascii() else 0 if character in "aeiouy" else 1


kind_of = torch.tensor([kind(character) for character in alphabet])                   # (alphabet,)
torch.manual_seed(99)
read, _, language = batch_of(test_ids, 240)                         # (240, n), (240, n), (240,)
character, spoken = read.flatten(), language.repeat_interleave(n)   # (tokens,) each
swapped = language[torch.randperm(240)].repeat_interleave(n)  # (tokens,): whole rows are exchanged
mixed = torch.randperm(len(character))                              # (tokens,)

# %% [markdown]
# One more baseline is needed. An *ß* alone gives German away, so an expert who only knows characters knows a bit of
# language, too. We measure what the *character* says about the language, and what character *and* expert say together.

# %% tags=["nbval-ignore-output"]
with torch.no_grad():
    runs["balanced"][0](read)
for block, layer in enumerate(mixtures(runs["balanced"][0]), 1):
    expert = layer.chosen[:, 0]                                     # (tokens,)
    print(f"block {block}, what the expert tells about")
    print(f"  the character's kind   {information(expert, kind_of[character]):.3f}, "
          f"shuffled {information(expert, kind_of[character][mixed]):.3f}")
    print(f"  the character          {information(expert, character):.3f}, "
          f"shuffled {information(expert, character[mixed]):.3f}")
    print(f"  the language           {information(expert, spoken):.3f}, "
          f"shuffled {information(expert, swapped):.3f}")
    both = character * 8 + expert                             # (tokens,): a number for each combination
    print(f"  the language: character alone {information(character, spoken):.3f}, with the expert "
          f"{information(both, spoken):.3f}, with a shuffled expert "
          f"{information(character * 8 + expert[mixed], spoken):.3f}")

# %% [markdown]
# What the experts share out is *characters*: the expert tells a third to a half of the kind. Of the language it tells
# about a tenth at most.
#
# But read the last line of each block. Character and expert *together* say clearly more about the language than the
# character with a shuffled expert. So one and the same character goes partly different ways in different languages; the
# router can know the language only from the characters before, through attention. See both in a table, in percent; each
# row adds up to 100:

# %% tags=["nbval-ignore-output"]
def table(block, title, alt):
    expert = mixtures(runs["balanced"][0])[block - 1].chosen[:, 0]  # (tokens,)
    rows = [torch.zeros(count, 8).index_put_((label, expert), torch.tensor(1.0), accumulate=True)
            for count, label in ((6, kind_of[character]), (3, spoken))]          # (count, experts) each
    share = torch.cat(rows)                                         # (6 kinds + 3 languages, experts)
    return plots.heatmap(
        (100 * share / share.sum(dim=1, keepdim=True)).round(),
        rows=[*kinds, *train_text], columns=list("01234567"), title=title,
        xlabel=f"expert of block {block} (% of the row)", ylabel="tokens that are …",
        size=0.5, numbers=True, alt=alt,
    )


table(1, "Block 1: experts for characters, not for languages",
      "A table, rows are six kinds of characters and three languages, columns are experts. The "
      "rows of the kinds differ, "
      "each has a few experts that take most of it. The three rows of the languages are spread "
      "over all experts.")

# %% [markdown]
# Block 2 comes after one more layer of attention, so its router knows more of what came before:

# %% tags=["nbval-ignore-output"]
table(2, "Block 2: kinds of characters again, and some language",
      "The same table for block 2. Again the rows of the kinds differ most. Each language uses "
      "nearly every expert, but not equally.")

# %% [markdown]
# Look down the columns: some expert may get most of its tokens from one language. Now look along the rows: no language
# sends most of its tokens to one expert. So there is no expert for German, only experts that lean to it.
#
# Are your numbers normal?

# %% tags=["nbval-ignore-output"]
expert = mixtures(runs["balanced"][0])[0].chosen[:, 0]              # (tokens,)
expect("Block 1, what the expert tells about the character", information(expert, character), 0.25, 0.75)
expect("Block 1, about the language", information(expert, spoken), 0.01, 0.15)

# %% [markdown]
# Large models show the same. Jiang et al. (2024, section 5) looked for experts of a subject (biology, philosophy …)
# in Mixtral, and found next to none; what they saw was syntax, such as the indentation of code. The name *expert*
# promises more than it keeps. It is a piece of memory that a cheap question finds.

# %% [markdown]
# ## 8 Break it
#
# We have removed the balance loss already. Now remove the gate: choose the best expert, and add what it says, without
# multiplying by $g$. The forward pass looks harmless. What does the router learn from it?

# %%
torch.manual_seed(0)
x, wanted = torch.randn(4, n, d_model), torch.randn(4, n, d_model)  # (batch, n, d_model) each
for gated in (True, False):
    layer = Mixture(d_model, 64, experts=8, gated=gated)
    (layer(x) - wanted).square().mean().backward()
    gradient = layer.router.weight.grad                             # (experts, d_model), or None
    print("with the gate:   " if gated else "without the gate:", "the router gets",
          "no gradient" if gradient is None else f"a gradient, above 0: {bool(gradient.norm() > 0)}")

# %% [markdown]
# The argmax passes no gradient. The gate is the only way from the loss to the router: "this expert helped, give it
# more". And with $k = 1$, dividing $p_i$ by itself gives exactly that broken case:

# %%
layer = Mixture(d_model, 64, experts=8)
p, g, chosen = route(x.flatten(0, 1), layer.router, k=1)         # (tokens, 8), (tokens, 1), (tokens, 1)
normalised = g / g.sum(dim=-1, keepdim=True)                        # (tokens, 1)
out = dispatch(x.flatten(0, 1), layer.experts, normalised, chosen)  # (tokens, d_model)
(out.view_as(x) - wanted).square().mean().backward()
gradient = layer.router.weight.grad.norm()
print(f"normalised, k = 1: the router's gradient is below 1e-6: {bool(gradient < 1e-6)}")

# %% [markdown]
# That is why Switch keeps $p$, and why Mixtral may normalise: with two experts the *ratio* of their gates still depends
# on the router. The balance loss does reach the router without a gate. Such a router learns to be fair, and never
# learns who is good.

# %% [markdown]
# ## 9 Is it worth it? Equal compute, equal memory
#
# Now the fair contest. Four models:
#
# - **dense**: one network, $d_{ff} = 64$.
# - **Switch**: 8 experts of 64, one per token (our balanced run, with the head start that it had to undo). The operations
#   of *dense*, but for the router; the parameters of *wide*.
# - **Mixtral-like**: 8 experts of 32, two per token. Again the operations of *dense*, and half of *wide*'s parameters.
# - **wide**: one network, $d_{ff} = 512$. Eight times the operations.


# %%
def two_of_eight():
    return [Mixture(d_model, 32, experts=8, k=2) for _ in range(2)]


runs["dense"] = train(lambda: [FeedForward(d_model, 64) for _ in range(2)], what="dense, 64")
runs["two of eight"] = train(two_of_eight, alpha=0.01, what="two of eight experts of 32")
runs["wide"] = train(lambda: [FeedForward(d_model, 512) for _ in range(2)], what="dense, 512")

# %% [markdown]
# What each has, what each costs, and what it reaches on new text:

# %% tags=["nbval-ignore-output"]
names = {"dense": "dense, 64", "balanced": "Switch, 1 of 8 × 64", "two of eight": "2 of 8 × 32",
         "wide": "dense, 512"}
sample = torch.randn(4, n, d_model)                                 # (batch, n, d_model)
for name, shown in names.items():
    model = runs[name][0]
    networks = [block.network for block in model.blocks]
    work = sum(operations(network, sample) for network in networks)
    print(f"{shown:20} feed-forward parameters {sum(map(parameters, networks)):8,}; "
          f"operations per token {work:8,.0f}; test loss {test_loss(model):.3f}")

# %% [markdown]
# How much better than *dense* is each?

# %% tags=["nbval-ignore-output"]
final = {name: test_loss(runs[name][0]) for name in names}
gain = {names[name]: final["dense"] - final[name] for name in ("balanced", "two of eight", "wide")}
plots.bars(
    gain, xlabel="test loss below that of dense, 64 (nats)", format="{:.3f}",
    title="At equal operations the mixtures gain little",
    alt="; ".join(f"{name}: {value:.3f}" for name, value in gain.items()),
)

# %% [markdown]
# Read this soberly. At the operations of *dense*, the mixtures gain little. In trials with other seeds we saw between
# −0.01 and 0.04 nats for one expert, 0.01 to 0.05 for two, and 0.06 to 0.09 for *wide*, at eight times the operations.
# Switch has as many parameters as *wide*, but each of its experts has seen about an eighth of the tokens: in 300 steps
# little to learn from. That is our guess at the reason; no cell here proves it.
#
# That is what a minute on a laptop can show. The large gains were measured in large trainings: Fedus et al. (2021,
# section 3) report the loss of their dense T5-Base reached up to seven times as fast, on the same machines.

# %% [markdown]
# Are your numbers normal?

# %% tags=["nbval-ignore-output"]
expect("Test loss, dense", final["dense"], 2.2, 2.7)
expect("Test loss, wide", final["wide"], 2.2, 2.7)
expect("Gain of Switch over dense", final["dense"] - final["balanced"], -0.1, 0.2)
expect("Gain of two of eight over dense", final["dense"] - final["two of eight"], -0.1, 0.2)

# %% [markdown]
# And the clock? Operations are a promise that the machine does not keep for free. One pass, forward and backward, of
# each layer, on the same 1,536 tokens:

# %% tags=["nbval-ignore-output"]
x = torch.randn(24, n, d_model)                                     # (batch, n, d_model)
for name, shown in names.items():
    network, times = runs[name][0].blocks[0].network, []
    for _ in range(24):
        start = time.perf_counter()
        network(x).sum().backward()
        times.append(time.perf_counter() - start)
    print(f"{shown:20} {1000 * min(times):5.1f} ms")

# %% [markdown]
# A mixture takes several times longer than its operations say: eight small products are slower than one large one, and
# gathering and scattering move memory without computing anything. With $d = 64$ that is nearly all of the time. With
# $d = 4096$ the products are large, and the rest counts for little.

# %% [markdown]
# ## 10 Open the library
#
# `txlib`'s layer has the same parts with the same names, plus capacity and a record of the last batch, `routing`.

# %%
from txlib.layers import MixtureConfig, MixtureOfExperts, Routing

show_source(MixtureOfExperts, Routing)

# %% [markdown]
# Same weights, same numbers; Switch with a capacity factor of 1, and Mixtral.

# %%
torch.manual_seed(0)
x = torch.randn(4, n, d_model)                                      # (batch, n, d_model)
for name, k, factor in (("Switch", 1, 1.0), ("Mixtral", 2, None)):
    ours = Mixture(d_model, 64, experts=8, k=k)
    config = MixtureConfig(d_ff=64, experts=8, top_k=k, capacity_factor=factor)
    library = MixtureOfExperts(config, d_model)
    library.load_state_dict(ours.state_dict())
    tokens = x.flatten(0, 1)                                        # (tokens, d_model)
    p, g, chosen = route(tokens, ours.router, k)
    kept = within_capacity(chosen, 8, factor or 8)                  # (tokens, k); 8: room for all
    with torch.no_grad():
        mixed = dispatch(tokens, ours.experts, g * kept, chosen).view_as(x)      # (batch, n, d_model)
        prove_equal(mixed, library(x), what=f"{name}: both")
    prove_equal(balance(p, chosen), library.routing.balance_loss, what=f"{name}: balance losses")
    prove_equal(chosen[kept].bincount(minlength=8), library.routing.counts, what=f"{name}: counts")
    print(f"  dropped: ours {1 - kept.float().mean():.3f},", end=" ")
    print(f"the library's {library.routing.drop_rate:.3f}")

# %% [markdown]
# Multiplying the gate by 0 drops a token, too; the library saves the work.
#
# Larger models add a second loss, the **router z-loss** (Zoph et al. 2022, ST-MoE): the mean of $\left(\log \sum_i
# e^{z_i}\right)^2$, where $z = W_r\, x$. It keeps the router's scores small, because in 16 bits large ones are rounded
# coarsely, and the exponential makes a gross error of it.

# %% [markdown]
# ## 11 A real one: Mixtral 8x7B
#
# The name says 8 × 7 billion. Count it: the library has the config, and builds it on the *meta* device, with all shapes
# and no memory.

# %%
from txlib.models.sizes import MIXTRAL, build

config = MIXTRAL["8x7b"]
mixtral = build(config)
total = parameters(mixtral)
layers = [module for module in mixtral.modules() if isinstance(module, MixtureOfExperts)]
in_experts = sum(parameters(layer.experts) for layer in layers)
ffn = config.block.ffn
active = total - in_experts * (ffn.experts - ffn.top_k) // ffn.experts
print(f"{config.layers} blocks, d_model {config.block.d_model:,}, "
      f"{ffn.experts} experts of d_ff {ffn.d_ff:,}, {ffn.top_k} per token")
print(f"in all {total:,}; of these in experts {in_experts:,} ({in_experts / total:.0%})")
print(f"a token uses {active:,}")

# %% [markdown]
# 46.7 billion, not 56: only the feed-forward networks come eightfold; attention and embeddings are shared. A token
# uses 12.9 billion, so it costs about as much as with a dense model of 13 billion.
#
# But it is *stored* like one of 47. The next token may want any expert, so all must be at hand:

# %%
plots.bars(
    {"memory: all experts": 2 * total / 1e9, "read for one token": 2 * active / 1e9,
     "a dense model of 12.9 billion": 2 * active / 1e9},
    xlabel="GB at 16 bits per parameter", format="{:.1f}",
    title="Computes like 13 billion, weighs like 47",
    alt=f"Memory for all experts {2 * total / 1e9:.1f} GB; read for one token "
    f"{2 * active / 1e9:.1f} GB, as much as a dense model of 12.9 billion parameters.",
)

# %% [markdown]
# **A batch changes the picture.** One token reads two experts per block. But different tokens want different ones. How
# many of the eight does a batch touch, if routing is fair? Each token misses a given expert with probability $1 - k/N$:

# %%
for batch in (1, 2, 4, 8, 16):
    touched = 8 * (1 - (1 - 2 / 8) ** batch)
    print(f"{batch:2} tokens at a time touch {touched:.1f} of 8 experts")

# %% [markdown]
# From a dozen tokens on nearly all weights are read anyway, and each expert has only a quarter of the batch to share the
# reading.
#
# **Expert parallelism.** Put different experts on different machines; attention runs everywhere on its own part of the
# batch. In front of each mixture every machine sends each token to the machine of its expert, and after it they send
# the results back: two *all-to-all* exchanges per layer. The slowest machine decides, which is why capacity and balance
# matter so much there.

# %% [markdown]
# ## 12 Since Mixtral: finer experts, a shared one, balance by a bias
#
# Three changes have become common with DeepSeek's models (Dai et al. 2024; Wang et al. 2024; DeepSeek-AI 2024b). Each
# fits in a few lines.
#
# **Finer experts.** Cut each expert into four, and let a token choose four times as many. Parameters and operations
# stay, but for a few biases and a router with four times as many rows. The number of possible *teams*, the sets of
# experts that can serve a token, does not stay:

# %%
tokens = torch.randn(1, 4 * n, d_model)                             # (batch, n, d_model)
for experts, k, d_ff in ((16, 2, 128), (64, 8, 32)):
    layer = Mixture(d_model, d_ff, experts, k)
    in_them = sum(map(parameters, layer.experts))
    print(f"{experts} experts of {d_ff}, {k} per token: {in_them:,} parameters in experts, "
          f"{math.comb(experts, k):,} teams")

# %% [markdown]
# **A shared expert.** What every token needs, such as the grammar of commas, should not be learned again by each
# expert. So one expert takes all tokens, beside the routed ones, of which a token then chooses one fewer:


# %%
class WithShared(nn.Module):
    def __init__(self, shared, routed):
        super().__init__()
        self.shared, self.routed = shared, routed

    def forward(self, x):                                           # (batch, n, d_model)
        return self.shared(x) + self.routed(x)                      # (batch, n, d_model)


layer = WithShared(FeedForward(d_model, 32), Mixture(d_model, 32, experts=64, k=7))
print("eight experts work for each token, one of them always:", tuple(layer(tokens).shape))

# %% [markdown]
# **Balance without a loss.** The balance loss pulls the router away from what helps the language model. Instead, give
# each expert a bias that counts when the best $k$ are *chosen*, and not in the gates. After each step, raise it a
# little for experts with too few tokens, and lower it for those with too many. No gradient is involved. Try it on the
# router of the run without balance loss, block 1. It stays as it is; only the biases move:


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def shares_of(p, bias):                                             # (tokens, experts), (experts,)
    return (p + bias).argmax(dim=-1).bincount(minlength=8) / len(p)


torch.manual_seed(99)
with torch.no_grad():
    runs["unbalanced"][0](batch_of(test_ids, 240)[0])
p, bias, history = mixtures(runs["unbalanced"][0])[0].p, torch.zeros(8), []
for _ in range(1000):
    history.append(shares_of(p, bias))                              # (experts,)
    bias += 0.002 * (1 / 8 - history[-1]).sign()
for step in (1, 100, 300, 1000):
    s = torch.stack(history[max(0, step - 50) : step]).mean(dim=0)  # (experts,)
    shares = s.sort(descending=True).values.tolist()
    print(f"after {step:4} steps:", *(f"{share:.0%}" for share in shares), sep="  ")

# %% [markdown]
# An eighth would be perfect balance:

# %% tags=["nbval-ignore-output"]
expect("Share of the busiest expert, with biases", s.max(), 0.125, 0.3)

# %% [markdown]
# The first line is one step, each other line the mean of the 50 steps before it. The router's opinion is untouched, and
# the work is shared out.
#
# But a mean can hide something. In our run the biases end in a seesaw: one step sends a fifth of all tokens to other
# experts, the next one sends them back, and in a single step an expert has between 5 % and 20 % of them. Many tokens
# look nearly alike to the router of block 1 (every *e*, every *a*, every space), so a small push moves many at once.
# Smaller steps help: with 12,000 steps of 0.0001 every share, in each of the last steps, was between 11 % and 14 %. Try
# it.
#
# DeepSeek-V3 has 256 routed experts per block and one shared, in all of its 61 blocks but the first three. Each token
# uses eight of them and the shared one: 671 billion parameters, of which 37 billion work.

# %% [markdown]
# ## 13 Quiz
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
# <details><summary>B. They stay, but for the router</summary>
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
# <details><summary>A. To keep the size of the output in hand</summary>
#
# It makes the output smaller, and later layers can adapt to that. That is no reason to do it.
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
# ## 14 Summary
#
# - A mixture has many feed-forward networks; a router sends each token to its best $k$. Parameters grow, operations
#   stay.
# - Gather by expert, compute, `index_add` back with the gate: equal to the dense loop, without the wasted work.
# - The gate is the only way from the model's loss to the router. Without a balance loss the rich stay rich, and experts
#   lie idle.
# - $N \sum f_i P_i$ presses on busy experts; $f$ is counted, the gradient comes through $P$.
# - Our experts shared out characters far more than languages.
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
# **Do** the exercise [18_experts](../exercises/exercise_18_experts.ipynb). Then go on to lesson
# [19, the Universal Transformer](19_universal.ipynb): the same block is used again and again, so it goes the other way:
# more operations with the same parameters.
