# %% [markdown] lesson={"part": "I Attention", "builds": "Adam, a warm-up, initial weights, Muon"}
# # 07 · Learning: Adam, warm-up, initialization, Muon
#
# **After this lesson you will be able to**
#
# - say why one learning rate does not fit all weights, build Adam, and say what each of its parts is for;
# - say what a warm-up prevents, in which of the two wirings, and at which rates;
# - choose initial weights so that a deep stack neither explodes nor goes quiet;
# - build Muon, which treats a matrix as a matrix.
#
# **You need** lesson 06. **It takes** about 60 minutes to read and try; all cells together run in about a minute on
# a laptop. They train a few tiny language models; what takes longer, with three seeds each, is recorded.

# %% [markdown]
# ## 1 The problem: one rate for all
#
# We have a block that trains (lesson 06), and an optimizer, Adam, that we have taken on trust since lesson 02. Why not
# the simplest rule? Plain **gradient descent** moves each weight against its gradient $g$, with one learning rate
# $\eta$ for all:
#
# $$\theta \leftarrow \theta - \eta\, g$$
#
# Try it on lesson 06's test bench: six blocks guess the next character of English text. The blocks are now the
# library's, which lesson 06 showed to equal ours.

# %% tags=["recorded"]
import json
import time
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress, prove_equal
from txlib import plots
from txlib.attention import causal
from txlib.data import translation
from txlib.layers import BlockConfig, TransformerBlock, sinusoidal

# %% [markdown]
# The text and its batches are lesson 06's. So are two losses to compare with: of a model that knows only how frequent
# each character is, and of one that knows the pairs.

# %% tags=["recorded"]
text = "\n".join(english for _, english in translation("games", max_words=12).train)
alphabet = sorted(set(text))
ids = {character: id for id, character in enumerate(alphabet)}
encoded = torch.tensor([ids[character] for character in text])  # (length of the text,)


def batch_of_text(size=8, length=16):
    start = torch.randint(len(encoded) - length, (size,))  # (batch,)
    chunk = encoded[start[:, None] + torch.arange(length + 1)]  # (batch, n + 1)
    return chunk[:, :-1], chunk[:, 1:]  # what is read, what comes next


def loss_of(model, read, following):
    return F.cross_entropy(model(read).flatten(0, 1), following.flatten())


by_frequency, by_pairs = 3.17, 2.40  # nats, counted in lesson 06
torch.set_num_threads(1)  # for models this small, more threads only wait


# %% [markdown]
# The model: `norm_first` chooses between pre-norm and post-norm.

# %% tags=["recorded"]
class CharacterModel(nn.Module):
    def __init__(self, norm_first=True, blocks=6, d_model=32, length=16):
        super().__init__()
        config = BlockConfig.of_sizes(d_model, 2, 4 * d_model, norm_first=norm_first)
        self.embedding = nn.Embedding(len(alphabet), d_model)
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        self.blocks = nn.ModuleList(TransformerBlock(config) for _ in range(blocks))
        self.last_norm = nn.LayerNorm(d_model) if norm_first else nn.Identity()
        self.position, self.mask = sinusoidal(length, d_model), causal().dense(length)

    def forward(self, ids):  # (batch, n)
        x = self.embedding(ids) * self.embedding.embedding_dim**0.5 + self.position
        for block in self.blocks:
            x = block(x, self.mask)  # (batch, n, d_model)
        self.last = self.last_norm(x)  # kept, to look at
        return self.last @ self.embedding.weight.T  # (batch, n, character)


# %% [markdown]
# One loop trains it with any optimizer:

# %% tags=["recorded"]
def learn(model, optimizer, steps=150):  # the loss of each step
    losses = []
    for _ in range(steps):
        loss = loss_of(model, *batch_of_text())
        model.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def at_end(losses, window=50):
    return sum(losses[-window:]) / window


def adam_for(weights, lr):
    return torch.optim.Adam(weights, lr, betas=(0.9, 0.98), fused=True)


# %% [markdown]
# Gradient descent may try three rates; Adam gets one. (The losses are means of the last 50 of 150 steps.)

# %% tags=["nbval-ignore-output"]
print(f"frequencies {by_frequency}, pairs {by_pairs}")
tries = [("gradient descent", torch.optim.SGD, lr) for lr in (0.03, 0.3, 3.0)]
ended = {}
for name, optimizer_for, lr in progress([*tries, ("Adam", adam_for, 3e-3)], "training"):
    torch.manual_seed(0)
    model = CharacterModel()
    ended[name, lr] = at_end(learn(model, optimizer_for(model.parameters(), lr)))
    print(f"{name:16} rate {lr:<5} loss {ended[name, lr]:.2f}")
lead = ended["gradient descent", 0.3] - ended["Adam", 3e-3]
expect("Best gradient descent minus Adam", lead, 0.03, 0.5)

# %% [markdown]
# At 0.03 gradient descent does not even reach the frequencies, and at 3 the loss is no longer a number (`nan`). In
# between it learns, but more slowly than Adam (section 4 has three seeds). How different are the gradients that one
# rate has to serve? Take a model that Adam has trained for a hundred steps, and look at its embedding, where each
# character has a row.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
model = CharacterModel()
learn(model, adam_for(model.parameters(), 3e-3), steps=100)
model.zero_grad()
loss_of(model, *batch_of_text(128)).backward()
rows = model.embedding.weight.grad.square().mean(dim=1).sqrt()  # (character,)
for character in " etZQ":
    print(f"{character!r}: {text.count(character):7,} times in the text,",
          f"typical gradient of its row {rows[ids[character]]:.0e}")
expect("Largest by smallest gradient", (rows.max() / rows.min()).item(), 50, 10_000)

# %% [markdown]
# The space's row has a gradient more than a hundred times as large as that of a rare letter. A rate that suits the
# space leaves the rare letter where it is; one that moves the rare letter makes the space jump.

# %% [markdown]
# ## 2 The idea in one picture
#
# Gradients of very different sizes need a step that suits each. Two weights are enough to see it. The loss
# $(25 a^2 + b^2) / 2$ is a valley, steep along $a$ and gentle along $b$. The gradients are $25 a$ and $b$.
#
# Start at $a = b = 1$ with the rate 0.07. The first weight moves by $0.07 \cdot 25 = 1.75$, across the valley to −0.75.
# The second moves by 0.07 only. A higher rate would not help: above $2 / 25 = 0.08$ the first weight jumps farther out
# each time. So the second has to crawl. Here are thirty steps of three methods, each at a rate that suits it. (Momentum
# and Adam are explained below the figure.)

# %%
def path(optimizer_class, steps=30, **options):
    weight = nn.Parameter(torch.tensor([1.0, 1.0]))
    optimizer, points = optimizer_class([weight], **options), [weight.tolist()]
    for _ in range(steps):
        loss = (25 * weight[0] ** 2 + weight[1] ** 2) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        points.append(weight.tolist())
    return points


paths = {
    "gradient descent, rate 0.07": path(torch.optim.SGD, lr=0.07),
    "with momentum, rate 0.03": path(torch.optim.SGD, lr=0.03, momentum=0.7),
    "Adam, rate 0.1": path(torch.optim.Adam, lr=0.1, betas=(0.7, 0.98)),
}

# %% [markdown]
# Each dot is a step, the cross is the bottom, and gray lines join points of equal loss.

# %% jupyter={"source_hidden": true}
figures.valley(
    paths, (25, 1), first="a (steep)", second="b (gentle)", title="One rate zigzags and crawls; Adam moves both alike",
    alt="Three maps of a valley, steep from left to right and gentle from top to bottom, each with 30 steps from the "
    "same start. Gradient descent zigzags and comes down slowly. With momentum it swings in wide arcs and is faster. "
    "Adam goes straight along the diagonal, both weights alike, overshoots a little and comes back.")

# %% [markdown]
# Momentum mixes the gradients of the last steps. Across the valley they partly cancel; along it they add up, so $b$
# arrives sooner. Adam also mixes them, and divides by the gradient's own size: both weights take equal steps.

# %% [markdown]
# ## 3 Build it: Adam
#
# **Adam** (Kingma & Ba 2015) turns the picture into a rule. It keeps two running means, called **moments**, of the
# gradient and of its square:
#
# $$m \leftarrow \beta_1 m + (1 - \beta_1)\, g \qquad v \leftarrow \beta_2 v + (1 - \beta_2)\, g^2$$
#
# Take $\beta_1 = 0.9$, $\beta_2 = 0.98$, and a gradient that is always 2. After one step $m = 0.1 \cdot 2 = 0.2$ and
# $v = 0.02 \cdot 4 = 0.08$. Both started at 0, so both are too small: the means should be 2 and 4.
#
# After $t$ steps of a constant gradient, $m$ is $(1 - \beta_1^t)\, g$. Divide by that factor, and the mean is right
# from the first step on: $0.2 / 0.1 = 2$ and $0.08 / 0.02 = 4$. This is the **bias correction**:
#
# $$\hat m = \frac{m}{1 - \beta_1^t} \qquad \hat v = \frac{v}{1 - \beta_2^t} \qquad
# \theta \leftarrow \theta - \eta\, \frac{\hat m}{\sqrt{\hat v} + \epsilon}$$
#
# The step is $\eta \cdot 2 / \sqrt 4 = \eta$. Had the gradient been 0.002, it would be the same. (The $\beta$ are those
# of Vaswani et al., who take $\epsilon = 10^{-9}$.)

# %% tags=["recorded"]
def update_means(g, m, v, betas):  # the running means, updated in place
    m += (1 - betas[0]) * (g - m)
    v += (1 - betas[1]) * (g * g - v)


def adam(g, m, v, t, betas=(0.9, 0.98), eps=1e-9):  # all of one shape; t counts from 1
    update_means(g, m, v, betas)
    m_hat, v_hat = m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)
    return m_hat / (v_hat.sqrt() + eps)  # the step, in units of the learning rate


for g in (2.0, 0.002):
    m, v = torch.zeros(2)
    first = adam(torch.tensor(g), m, v, t=1)
    print(f"gradient {g}: first step {first:.3f} learning rates")

# %% [markdown]
# The optimizer around it remembers $m$ and $v$ of each weight. **AdamW** (Loshchilov & Hutter 2019) adds one line:
# **weight decay**, which draws each weight a little toward 0. It acts on the weight directly. An L2 penalty would be
# part of the gradient, and where gradients are large, the division by $\sqrt{\hat v}$ would take most of it away.

# %% tags=["recorded"]
class Adam:
    def __init__(self, parameters, lr, rule=adam, weight_decay=0.0, **options):
        group = {"params": list(parameters), "lr": lr}
        self.param_groups, self.rule = [group], rule
        self.weight_decay, self.options, self.t = weight_decay, options, 0
        self.m = {weight: torch.zeros_like(weight) for weight in group["params"]}
        self.v = {weight: torch.zeros_like(weight) for weight in group["params"]}

    @torch.no_grad()
    def step(self):
        self.t += 1
        (group,) = self.param_groups
        for weight in group["params"]:
            m, v = self.m[weight], self.v[weight]
            weight -= group["lr"] * self.weight_decay * weight
            weight -= group["lr"] * self.rule(weight.grad, m, v, self.t, **self.options)


# %% [markdown]
# Is it torch's? Let both take twenty steps, from the same weights and with the same gradients.

# %%
def walk(ours, theirs, shape, steps=20):
    torch.manual_seed(0)
    mine = nn.Parameter(torch.randn(shape))
    copy = nn.Parameter(mine.detach().clone())
    both = ours([mine]), theirs([copy])
    for _ in range(steps):
        mine.grad = torch.randn(shape)
        copy.grad = mine.grad.clone()
        for optimizer in both:
            optimizer.step()
    return mine, copy


# %% [markdown]
# We compare them without weight decay, and with it:

# %%
options = {"lr": 3e-3, "betas": (0.9, 0.98), "eps": 1e-9}
for kind, decay in ((torch.optim.Adam, 0.0), (torch.optim.AdamW, 0.1)):
    ours = partial(Adam, weight_decay=decay, **options)
    theirs = partial(kind, weight_decay=decay, **options)
    mine, copy = walk(ours, theirs, shape=(32, 8))
    prove_equal(mine, copy, what=f"Ours and torch's {kind.__name__}")

# %% [markdown]
# Adam's price is memory: it keeps $m$ and $v$ next to each weight and its gradient. That is 16 bytes per weight in
# float32, instead of gradient descent's 8.
#
# **And $\epsilon$?** It prevents a division by 0, and decides what counts as *no gradient*. At the first step, a weight
# with the gradient $g$ moves by $|g| / (|g| + \epsilon)$ learning rates. With $\epsilon = 10^{-9}$, even a gradient of
# $10^{-9}$ moves it by half a rate; with $\epsilon = 10^{-3}$, a gradient of $10^{-6}$ moves it by only a thousandth.

# %% [markdown]
# ## 4 Break it: Adam without its parts
#
# Which of Adam's parts does the work?
#
# **The first step** is bold: it is $g / |g|$, so each weight moves by exactly $\eta$, up or down, after a single batch.
# Later, when gradients disagree from batch to batch, $|\hat m|$ falls below $\sqrt{\hat v}$ and steps become shorter.
#
# **Without bias correction** the first steps have the wrong length. By which factor? We need no training to see it: let
# the gradient always be 1.

# %% tags=["recorded"]
def uncorrected(g, m, v, t, betas=(0.9, 0.98), eps=1e-9):
    update_means(g, m, v, betas)
    return m / (v.sqrt() + eps)


def no_second_moment(g, m, v, t, betas=(0.9, 0.98)):
    update_means(g, m, v, betas)
    return m / (1 - betas[0] ** t)


# %% [markdown]
# The lengths of the first 300 steps:

# %%
def step_lengths(rule, betas, steps=300):  # for a gradient that is always 1
    m, v = torch.zeros(2, 1)
    return [rule(torch.ones(1), m, v, t, betas).item() for t in range(1, steps + 1)]


lengths = {
    "corrected": step_lengths(adam, (0.9, 0.999)),
    "not, β₂ = 0.98": step_lengths(uncorrected, (0.9, 0.98)),
    "not, β₂ = 0.999": step_lengths(uncorrected, (0.9, 0.999)),
}

# %% [markdown]
# A correct step is one learning rate long. (The labels say how long the longest is.)

# %% jupyter={"source_hidden": true}
plots.lines(
    {f"{name}: {max(steps):.1f}": steps for name, steps in lengths.items()}, xlabel="step",
    title="Without the correction, the early steps are too long",
    ylabel="length (learning rates)", height=3.2, alt="Length of each step, for a constant gradient. " + "; ".join(
        f"{name}: at most {max(steps):.1f}, at the end {steps[-1]:.1f}" for name, steps in lengths.items()) + ".")

# %% [markdown]
# $\sqrt v$ fills up more slowly than $m$, so the quotient is soon too large: up to 1.6 times with $\beta_2 = 0.98$, and
# 6.6 times with torch's default, 0.999, which is still at twice the length after 300 steps.
#
# **Without the second moment** all weights share one rate again. Only the smoothed gradient is left: gradient descent
# with **momentum**.
#
# Measure both. `python data/learning.py 0 1 2` ran these cells for 150 steps, with $\beta_2 = 0.999$ and three seeds.
# It recorded the mean loss of the last 50 steps. Momentum (*without second moment*) gets Adam's rate and three others;
# section 1's gradient descent gets two. What do you expect?

# %%
predict("adam-parts", "At Adam's own rate, 0.01: which part is missed most?",
        "the bias correction", "the second moment", "both about as much")

# %% [markdown]
# A dot is the mean of three seeds, and its line goes from the best to the worst. Blue rows are at Adam's own rate.

# %%
from txlib.paths import DATA

recorded = json.loads((DATA / "learning.json").read_text())
predicted("adam-parts", "the second moment")

# %% [markdown]
# The figure shows where each run ended, at each rate that we tried:

# %% jupyter={"source_hidden": true}
parts = {f"{name}, {float(rate):g}": [run["loss"][-1] for run in runs.values()]
         for name, rates in (recorded["adam"] | recorded["descent"]).items()
         for rate, runs in rates.items()}
figures.seeds(
    parts, mark=by_frequency, xlabel="loss after 150 steps (dotted: frequencies)",
    groups={"rate 0.01": [name for name in parts if name.endswith(" 0.01")],
            "other rates": [name for name in parts if not name.endswith(" 0.01")]},
    title="At the same rate, Adam misses its second moment most")

# %% [markdown]
# Without the correction, the best seed ends higher than the worst of Adam. Without the second moment the model does not
# even reach the frequencies at Adam's rate, and at the best of its rates it ends no lower than Adam without the
# correction. (Plain gradient descent at 0.3 even beats momentum here. But its best seed still ends higher than Adam's
# worst.)
#
# At 0.003 the correction matters less: the mean is 2.64 without it and 2.60 with it, and seeds overlap.
# (With $\beta_2 = 0.999$ and no correction, all 150 steps are too long, by factors of 2.7 to 6.6 in the figure above.
# A lower rate can make up for that.)

# %% [markdown]
# ## 5 Use it: wiring × learning rate × warm-up
#
# The original Transformer is post-norm, and its authors raised the learning rate slowly from 0 over the first 4,000
# steps. What is this **warm-up** good for? Two explanations have been given.
#
# One follows from section 4: Adam's first steps have full length, while $\hat v$ rests on a few batches (Liu et al.
# 2020). The other is about the wiring. In pre-norm the stream grows like $\sqrt L$ over $L$ blocks, and the last norm
# divides by its size, so the gradients of the last blocks shrink like $1/\sqrt L$. In post-norm they stay large,
# however deep the model is (Xiong et al. 2020, theorem 1). Measure that, in fresh models, as a mean of four starts:

# %% tags=["nbval-ignore-output"]
def gradient_of_last_block(norm_first, blocks, starts=4):
    norms = []
    for seed in range(starts):
        torch.manual_seed(seed)
        model = CharacterModel(norm_first, blocks)
        loss_of(model, *batch_of_text(32)).backward()
        gradients = [weight.grad.flatten() for weight in model.blocks[-1].parameters()]
        norms.append(torch.cat(gradients).norm().item())
    return sum(norms) / starts


for name, norm_first in {"pre-norm": True, "post-norm": False}.items():
    by_blocks = [gradient_of_last_block(norm_first, blocks) for blocks in (1, 4, 16)]
    print(f"{name:9} with 1, 4, 16 blocks:", *(f"{norm:.2f}" for norm in by_blocks))

# %% [markdown]
# From 1 to 16 blocks pre-norm's gradient shrinks to less than half, and post-norm's grows. So in post-norm the loss is
# steep in the last blocks, and long steps there may do harm. A warm-up would shorten them.
#
# First see the effect. A *schedule* multiplies the learning rate at each step. We also watch lesson 06's fraction that
# tells characters *apart*: subtract the mean of all positions, and see how much of the stream is left.

# %% tags=["recorded"]
def constant(step):
    return 1.0


def warm_up(step, over=150):
    return min(1.0, step / over)


def apart(x):  # (..., n, d_model)
    mean = x.mean(dim=-2, keepdim=True)
    return ((x - mean).norm() / x.norm()).item()


# %% [markdown]
# The loop of section 1, with both. (Optimizers come in a list, since later experiments need two.)

# %% tags=["recorded"]
def train(model, optimizers, schedule=constant, steps=600):
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    run = {"loss": [], "apart": []}
    for step in range(1, steps + 1):
        loss = loss_of(model, *batch_of_text())
        model.zero_grad()
        loss.backward()
        for optimizer, rate in zip(optimizers, rates):
            optimizer.param_groups[0]["lr"] = rate * schedule(step)
            optimizer.step()
        run["loss"].append(loss.item())
        run["apart"].append(apart(model.last.detach()))
    return run


# %% [markdown]
# Three runs at the rate 0.003: pre-norm, post-norm, and post-norm with a warm-up of 150 steps.

# %%
predict("post-norm-start", "Which run gets no further than the frequencies?",
        "pre-norm", "post-norm", "post-norm with a warm-up", "none")

# %% [markdown]
# Train them, and look at the losses at the end, and at what is left of the differences between characters:

# %% tags=["nbval-ignore-output"]
three = {"pre-norm": (True, constant), "post-norm": (False, constant),
         "post-norm, warm-up": (False, warm_up)}
loss_of_wiring = {}
for name, (norm_first, schedule) in progress(three.items(), "training three models"):
    torch.manual_seed(0)
    model = CharacterModel(norm_first)
    run = train(model, [adam_for(model.parameters(), 3e-3)], schedule, steps=400)
    loss_of_wiring[name] = at_end(run["loss"])
    print(f"{name:18} loss {loss_of_wiring[name]:.2f}, apart {run['apart'][-1]:.2f}")
expect("Loss of post-norm", loss_of_wiring["post-norm"], 3.0, 3.3)
expect("Loss with a warm-up", loss_of_wiring["post-norm, warm-up"], 2.4, 2.9)
predicted("post-norm-start", "post-norm")

# %% [markdown]
# One run is an anecdote. The record holds 600 steps with three seeds, and post-norm also at a lower rate:

# %% jupyter={"source_hidden": true}
settings = [("pre-norm", "0.003"), ("post-norm", "0.003"),
            ("post-norm, warm-up", "0.003"), ("post-norm", "0.001")]
figures.training(
    {f"{name}\nrate {rate}": list(recorded["wiring"][name][rate].values()) for name, rate in settings},
    rows={"loss": "loss (nats)", "apart": "fraction apart"}, log=["apart"], window=50,
    levels={"loss": {"frequencies": by_frequency, "pairs": by_pairs}},
    title="At 0.003 without a warm-up, post-norm makes all characters alike")

# %% [markdown]
# **Pre-norm** beats the table of pairs. **Post-norm** at 0.003 gets no further than the frequencies, with any seed.
# With a warm-up it learns with all of them, to just above the pairs. At 0.001 it learns as much without one, so here it
# needs a warm-up only at a high rate. (The original's rate peaks at 0.0007, in much wider blocks.)
#
# The lower row shows rank collapse again (lesson 06, section 1), this time in training. Our explanation: all models
# first learn the easiest thing, the frequencies. For that, all positions may look the same, and they drift together. In
# pre-norm the input is still in the stream, and the model finds its way back; in post-norm, after steps that are too
# long, it hardly does. (In the second column the fraction rises late; the loss has not followed yet. The record keeps
# four decimals, hence the flat stretches at the bottom.)
#
# Which explanation of the warm-up is right, then? Each suggests a remedy that is not a warm-up:
#
# - *Moments first*: for 75 steps the weights wait while $m$ and $v$ see batches, as in Liu et al. Then Adam starts at
#   the full rate, with a well-measured $\hat v$.
# - *Last blocks slower*: the last two of six blocks get a tenth of the rate, from the first step on. As controls, the
#   *middle* two get it, or the *first* two.

# %% tags=["recorded"]
def moments_first(step, over=75):  # the weights wait while m and v see 75 batches
    return 0.0 if step <= over else 1.0


def all_but(chosen, model):  # the model's other weights
    known = {id(weight) for weight in chosen}
    return [weight for weight in model.parameters() if id(weight) not in known]


def slower(model, lr, first, end, factor=0.1):  # for blocks first … end - 1
    slow = list(model.blocks[first:end].parameters())
    return [adam_for(all_but(slow, model), lr), adam_for(slow, factor * lr)]


# %% [markdown]
# Which of them will work?

# %%
predict("post-norm-cause", "What lets post-norm learn at 0.003, without a warm-up?",
        "moments first", "slower last blocks only",
        "slower blocks, wherever they are", "none")

# %% [markdown]
# The record has three seeds of each, and two more controls, in orange (a dot for the mean, a line from best to worst):

# %%
predicted("post-norm-cause", "slower blocks, wherever they are")

# %% [markdown]
# The figure shows each remedy with three seeds:

# %% jupyter={"source_hidden": true}
remedies = {"no remedy": recorded["wiring"]["post-norm"], **recorded["cause"], **recorded["control"],
            "warm-up": recorded["wiring"]["post-norm, warm-up"]}
figures.seeds(
    {name: [run["loss"][-1] for run in rates["0.003"].values()] for name, rates in remedies.items()},
    groups={"two blocks slower": [name for name in recorded["cause"] if "slower" in name],
            "all blocks slower": list(recorded["control"])},
    xlabel="loss after 600 steps (dotted: frequencies)", mark=by_frequency,
    title="Slower blocks help, whichever they are; measured moments don't")

# %% [markdown]
# Well-measured moments change nothing: all seeds stay at the frequencies. With slower last blocks all seeds learn. That
# looks like the second explanation, until you see the controls: slower *first* or *middle* blocks help just as much. So
# perhaps it does not matter which blocks move, only how far all of them move together.
#
# The orange rows test that. Four blocks at the full rate and two at a tenth make 4.2 blocks' worth of steps, 0.7 for
# each of six. With all six at 0.7 of the rate, or at a tenth, post-norm learns with every seed, and equally well. So
# here no block has to be spared: it is enough that all together move less, as they do during a warm-up. (The warm-up
# itself ends a little lower, with every seed; we have not tested why. And this is one small model at one rate; Liu et
# al. 2020 found the first explanation at work in others.)

# %% [markdown]
# ## 6 Initial weights
#
# Where should the steps start? There are two questions.
#
# ### 6.1 The size of a signal
#
# Let the *size* of some numbers be the root of their mean square. Each output of a matrix is a sum of $d$ products. If
# the inputs have size 1 and the random weights size $s$, the sum has the size $s \sqrt d$.
#
# With $d = 64$ and $s = 1$, a layer makes its input $\sqrt{64} = 8$ times larger. After twenty layers that is $8^{20}$,
# a one with 18 zeros. With $s = 1 / \sqrt d = 1/8$ the size stays. A relu erases half of the mean square, so there it
# takes $s = \sqrt{2 / d}$. Watch twenty layers with relu (so $s = 1$ grows by 5.7 per layer, not by 8):

# %%
def sizes(weight_size, layers=20, d=64):
    torch.manual_seed(0)
    x, found = torch.randn(200, d), []
    for _ in range(layers):
        x = torch.relu(x @ (weight_size * torch.randn(d, d)))  # (200, d)
        found.append(x.square().mean().sqrt().item())
    return found


after_layers = {"1": sizes(1.0), "√(1/d)": sizes(1 / 8), "√(2/d)": sizes(2**0.5 / 8)}

# %% [markdown]
# One curve for each size of the weights:

# %% jupyter={"source_hidden": true}
plots.lines(
    after_layers, title="Only weights of size √(2/d) keep the signal's size", yscale="log", height=3.0,
    xlabel="layer", ylabel="size of its output", alt="Size after each of twenty layers. " + "; ".join(
        f"weights of size {name}: from {found[0]:.1e} to {found[-1]:.1e}" for name, found in after_layers.items()) + ".")

# %% [markdown]
# Only $\sqrt{2/d}$ keeps the size near 1. The gradient goes backward through the transposed matrices, so for it the
# number of outputs counts. **Xavier** initialization (Glorot & Bengio 2010) is the compromise: variance
# $2 / (d_\text{in} + d_\text{out})$. **He** initialization (He et al. 2015) is for relu: $2 / d_\text{in}$. Our blocks
# use Xavier; BERT and GPT-2 draw their matrices from $N(0, 0.02^2)$.
#
# ### 6.2 The size of the stream (second reading)
#
# A residual stream adds another question. Each of its $2L$ sub-layers adds something, so the stream grows with depth,
# even if each branch keeps its size. GPT-2 divides the last matrix of each sub-layer by $\sqrt{2L}$: then all branches
# together add about as much as one. Or set these matrices to zero, so that each block starts as the identity. How large
# is the stream at the top, in models of 1 to 24 blocks?

# %% tags=["recorded"]
@torch.no_grad()
def scale_last_matrices(model, factor):
    for block in model.blocks:
        block.self_attention.output.weight.mul_(factor)
        block.feed_forward.down_proj.weight.mul_(factor)


# %% [markdown]
# Without the last norm, the model shows us its stream:

# %%
def size_at_top(blocks, factor):
    torch.manual_seed(0)
    model = CharacterModel(blocks=blocks)
    model.last_norm = nn.Identity()
    scale_last_matrices(model, factor)
    model(batch_of_text()[0])
    return model.last.std().item()


print("blocks: Xavier, divided by √(2L), zero")
for blocks in (1, 6, 24):
    factors = 1.0, (2 * blocks) ** -0.5, 0.0
    print(f"{blocks:6}:", *(f"{size_at_top(blocks, factor):.1f}" for factor in factors))

# %% [markdown]
# With Xavier the stream grows with depth; scaled down, it stays near the size of the input, about 1.2. Does it matter
# for learning? Six blocks, pre-norm, 150 steps. One start has the last matrices ten times too large.

# %%
predict("start-size", "Last matrices ten times too large: what will 150 steps show?",
        "it does not learn", "it learns, but less", "no difference")

# %% [markdown]
# Here are the means of three seeds, with the best and the worst in parentheses:

# %%
def show(rates_of):  # setting → rate → seed → what was recorded
    for name, rates in rates_of.items():
        for rate, runs in rates.items():
            losses = [run["loss"][-1] for run in runs.values()]
            mean = sum(losses) / len(losses)
            print(f"{name:19} rate {float(rate):<6g} loss {mean:.2f}",
                  f"({min(losses):.2f} to {max(losses):.2f})")


show(recorded["start"])
predicted("start-size", "it learns, but less")

# %% [markdown]
# The means of the three sensible starts are within 0.02. Ten times too large is worse with every seed, though far from
# a failure. Two things forgive a wrong size here (our explanation): the norms hide it from the sub-layers, and Adam's
# steps do not depend on it.

# %% [markdown]
# ## 7 Muon: a matrix is not a list of numbers
#
# Adam gives each single weight its own step. It does not see that weights belong to a matrix. Think of a matrix as
# a map: it takes a circle of radius 1 to an ellipse. Each of its axes, from the center, is as long as one **singular
# value**. In more dimensions there are more axes. How unequal are they in the momentum $m$ of a matrix that learns?

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
model = CharacterModel()
optimizer = adam_for(model.parameters(), 3e-3)
learn(model, optimizer, steps=100)
momentum = optimizer.state[model.blocks[3].self_attention.value.weight]["exp_avg"]
stretch = torch.linalg.svdvals(momentum)  # (d_model,): the largest first
before = stretch / stretch[0]  # (d_model,)
print(f"{(before > 0.5).sum()} of {len(before)} are over half the largest,",
      f"{(before < 0.1).sum()} under a tenth")

# %% [markdown]
# In this matrix a few directions get most of a momentum step. **Muon** (Jordan et al. 2024) gives all directions the
# same length:
#
# $$\begin{pmatrix} 3 & 0 \\ 0 & 0.1 \end{pmatrix} \to \begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix} \qquad\qquad
# M = U S V^\top \to U V^\top$$
#
# Here $V^\top$ and $U$ turn, and $S$ stretches: this is the **singular value decomposition**. Finding it is slow on a
# GPU, but matrix products are fast. And an odd polynomial of a matrix, such as
# $a M + b\, M M^\top M + c\, (M M^\top)^2 M$, acts on each singular value alone: $s \to a s + b s^3 + c s^5$. For the
# matrix above and $(a, b, c) = (1.5, -0.5, 0)$, 3 would become $4.5 - 13.5 = -9$, so one first divides all by 3: then 1
# stays $1.5 - 0.5 = 1$, and 0.03 becomes 0.05. Round by round it grows. Other numbers are faster: with Muon's, five
# rounds bring all but the tiniest near 1. Watch four singular values:

# %% tags=["recorded"]
A, B, C = 3.4445, -4.7750, 2.0315  # Jordan et al. 2024

values = torch.tensor([0.01, 0.1, 0.3, 1.0])
for step in range(1, 6):
    values = A * values + B * values**3 + C * values**5
    print(f"after {step}:", *(f"{value:.2f}" for value in values))

# %% [markdown]
# Near is enough: about 0.7 to 1.2. (This is a **Newton–Schulz iteration**.) Now for a matrix, first divided by its
# length (the root of the sum of its squared entries), so that no singular value is above 1:

# %% tags=["recorded"]
def orthogonalize(g, steps=5):  # (rows, columns)
    if g.shape[0] > g.shape[1]:
        return orthogonalize(g.T, steps).T  # the smaller square is cheaper
    x = g / (g.norm() + 1e-7)
    for _ in range(steps):
        square = x @ x.T  # (rows, rows)
        x = A * x + (B * square + C * square @ square) @ x
    return x


# %% [markdown]
# Draw what it does to a matrix of two rows. Each panel shows in blue where the gray circle of radius 1 ends up. The
# arrows are the axes, with their lengths, which follow the second and the fourth column of the numbers above:

# %% jupyter={"source_hidden": true}
small = torch.tensor([[1.0, 2.0], [0.2, 1.0]])
rounds = {"divided by its length": small / small.norm()}
rounds |= {f"round {steps}": orthogonalize(small, steps) for steps in (1, 2, 5)}
figures.ellipses(rounds, title="Five rounds make a thin ellipse round, and keep its axes")

# %% [markdown]
# Only directions of length almost 0 stay short. Muon itself keeps the momentum and nothing else: one tensor per matrix
# instead of Adam's two. (*Nesterov's* variant mixes the newest gradient in once more. A tall matrix gets a longer step,
# since the length 1 of each column is spread over more entries.)

# %% tags=["recorded"]
class Muon:
    def __init__(self, parameters, lr, momentum=0.95):
        group = {"params": list(parameters), "lr": lr}
        self.param_groups, self.momentum = [group], momentum
        self.m = {weight: torch.zeros_like(weight) for weight in group["params"]}

    @torch.no_grad()
    def step(self):
        (group,) = self.param_groups
        for weight in group["params"]:
            m, g = self.m[weight], weight.grad
            m += (1 - self.momentum) * (g - m)
            mixed = (1 - self.momentum) * g + self.momentum * m  # Nesterov's
            tall = max(1, weight.shape[0] / weight.shape[1]) ** 0.5
            weight -= group["lr"] * tall * orthogonalize(mixed)


# %% [markdown]
# Section 3's `walk` lets ours and torch's take twenty steps with the same gradients:

# %%
theirs = partial(torch.optim.Muon, lr=0.02, momentum=0.95, weight_decay=0.0)
mine, copy = walk(partial(Muon, lr=0.02), theirs, shape=(128, 32))
prove_equal(mine, copy, tolerance=0.01, what="Ours and torch's Muon")

# %% [markdown]
# They agree only roughly, because torch iterates in numbers of 16 bits. Muon is made for the matrices inside the
# blocks; embeddings, gains and biases stay with Adam.

# %% tags=["recorded"]
def muon(model, lr):
    inside = [weight for weight in model.blocks.parameters() if weight.dim() == 2]
    return [Muon(inside, lr), adam_for(all_but(inside, model), 3e-3)]


# %% [markdown]
# Which one learns faster? One run each, with its time, and then the record: each at two rates, with three seeds. (The
# losses are means of the last 50 steps of 150. The last line is from section 5's record: Adam with twice the steps.)

# %% tags=["nbval-ignore-output"]
for name in ("Adam", "Muon"):
    torch.manual_seed(0)
    model = CharacterModel()
    adam_alone = [adam_for(model.parameters(), 3e-3)]
    optimizers = adam_alone if name == "Adam" else muon(model, 0.02)
    start = time.perf_counter()
    loss = at_end(train(model, optimizers, steps=150)["loss"])
    print(f"{name}: loss {loss:.2f} after {time.perf_counter() - start:.0f} seconds")
show(recorded["muon"])
longer = [run["loss"][5] for run in recorded["wiring"]["pre-norm"]["0.003"].values()]
print("Adam, rate 0.003, after 300 steps:", *(f"{loss:.2f}" for loss in longer))

# %% [markdown]
# After equally many steps, Muon is ahead with every seed, at both rates. But equal steps are not equal time: for
# matrices this small, Muon's steps take longer, as the seconds show. With twice the steps, Adam is ahead with every
# seed; which one wins after equal time depends on the machine. In large models the five rounds cost little next to the
# forward and backward pass (Jordan et al. put it below 1%), so there equal steps are nearly equal time.
#
# Open the library: `optimizers` divides the weights in the same way. Here are its last lines; lesson 09's translator
# learns with it.

# %%
from txcourse.lesson import show_source
from txlib import training

show_source(training.optimizers, last=10)

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. The very first step of Adam, after one batch. One weight has the gradient 0.5, another 0.001. How far do they
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
# They would be too small; the bias correction makes up for exactly that.
# </details>
#
# **2. A post-norm stack stays at the loss of the characters' frequencies, from the first hundred steps on. What do you
# look at first?**
#
# <details><summary>A. The size of the weights</summary>
#
# They may be perfectly normal. What our runs lost was the difference between positions.
# </details>
# <details><summary>B. Whether the stream still tells positions apart</summary>
#
# Right. If it does not, the model has collapsed: start again with a warm-up, a lower rate, or pre-norm.
# </details>
# <details><summary>C. Whether the text is long enough</summary>
#
# A short text lets a model learn *too* well. It does not keep it at the frequencies.
# </details>
#
# **3. You put an L2 penalty into the gradient, and train with Adam. Which weights does it hardly touch?**
#
# <details><summary>A. Those with small gradients</summary>
#
# There the penalty is most of the gradient, so it decides the step.
# </details>
# <details><summary>B. Those with large gradients</summary>
#
# Right. The penalty is divided by $\sqrt{\hat v}$ along with the rest. AdamW therefore shrinks weights directly.
# </details>
# <details><summary>C. None: a penalty acts on all alike</summary>
#
# In gradient descent it does. Adam rescales whatever is in the gradient.
# </details>
#
# **4. Weights of size 1, width 1,024, ten layers without norms or residuals. By which factor does the signal grow?**
#
# <details><summary>A. About 10</summary>
#
# Layers multiply; they do not add.
# </details>
# <details><summary>B. $32^{10}$, about $10^{15}$</summary>
#
# Right. Each layer multiplies the size by $\sqrt{1024} = 32$ (by 23 with relu).
# </details>
# <details><summary>C. $1024^{10}$</summary>
#
# Variances grow by 1,024 per layer. Sizes grow by the root.
# </details>
#
# **5. Muon sees a momentum with the singular values 5, 0.5 and 0.01. How long are the three directions of its step?**
#
# <details><summary>A. In the same ratio, 500 to 50 to 1</summary>
#
# That is plain momentum.
# </details>
# <details><summary>B. All about 1, times the rate</summary>
#
# Right. A direction with little momentum gets about as long a step as one with much.
# </details>
# <details><summary>C. 1, 1 and 0: small ones are cut off</summary>
#
# A cut-off would throw away what is rare. Muon turns it up.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - Gradients differ from weight to weight by factors of hundreds. Adam divides a running mean of the gradient by the
#   root of a running mean of its square, so that all weights take steps of about one length. The bias correction makes
#   the first of them right.
# - Weight decay acts on the weights, not on the gradient.
# - At 0.003 our post-norm model makes all characters alike and stays at their frequencies, unless it gets a warm-up, or
#   a lower rate in some or all of its blocks. At 0.001 it needs neither, and pre-norm needs neither even at 0.003.
# - Initial weights of size $1/\sqrt d$ (with relu, $\sqrt{2/d}$) keep a signal's size; deep residual streams grow
#   unless the last matrices are scaled down.
# - Muon makes all directions of a matrix's step about equally long.
#
# **Read** Kingma & Ba 2015, *Adam*, [arXiv:1412.6980](https://arxiv.org/abs/1412.6980), sections 2 and 3. Loshchilov &
# Hutter 2019, *Decoupled Weight Decay Regularization*, [arXiv:1711.05101](https://arxiv.org/abs/1711.05101), section 2.
# Xiong et al. 2020, *On Layer Normalization in the Transformer Architecture*,
# [arXiv:2002.04745](https://arxiv.org/abs/2002.04745), section 3. Liu et al. 2020, *On the Variance of
# the Adaptive Learning Rate*, [arXiv:1908.03265](https://arxiv.org/abs/1908.03265). Glorot & Bengio 2010,
# *Understanding the difficulty of training deep feedforward neural networks*, section 4. Jordan et al. 2024, *Muon*,
# [kellerjordan.github.io/posts/muon](https://kellerjordan.github.io/posts/muon/).
#
# **Do** the exercise [07_learning](../exercises/exercise_07_learning.ipynb). Then go on to
# [08 The encoder–decoder Transformer](08_transformer.ipynb).
