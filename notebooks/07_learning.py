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
# We have a block that trains (lesson 06), and an optimizer, Adam, that we have taken on trust since lesson 02. What is
# missing is how it works. Our test bench is lesson 06's: guess the next character of English text, with six blocks
# between an embedding and a prediction. This time the blocks are the library's, which lesson 06 showed to equal ours.

# %% tags=["recorded"]
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

from txlib import plots
from txlib.attention import causal
from txlib.data import translation
from txlib.layers import BlockConfig, TransformerBlock, sinusoidal
from txlib.paths import DATA
from txlib.training import optimizers
from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress
from txcourse.lesson import prove_equal, show_source

torch.set_num_threads(1)  # for models this small, more threads only wait

# %% [markdown]
# The text, and what to predict in it:

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


# %% [markdown]
# And the model. Its `norm_first` chooses between pre-norm and post-norm.

# %% tags=["recorded"]
class CharacterModel(nn.Module):
    def __init__(self, norm_first=True, blocks=6, d_model=32, heads=2, length=16):
        super().__init__()
        sizes = d_model, heads, 4 * d_model
        config = BlockConfig.of_sizes(*sizes, norm_first=norm_first)
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
# Three things can be swapped: a *schedule* says by which factor the learning rate is multiplied at each step; `prepare`
# may change the fresh model; `make` makes its optimizers. `apart` is lesson 06's fraction of the stream that tells
# characters apart: what is left without the mean of all positions.

# %% tags=["recorded"]
def constant(step):
    return 1.0


def torchs_adam(model, lr):
    group = {"params": list(model.parameters()), "initial_lr": lr}
    return [torch.optim.Adam([group], betas=(0.9, 0.98), fused=True)]


def apart(x):  # (..., n, d_model)
    mean = x.mean(dim=-2, keepdim=True)
    return ((x - mean).norm() / x.norm()).item()


# %% [markdown]
# The loop for all experiments of this lesson records the loss and that fraction at each step.

# %% tags=["recorded"]
def train(norm_first=True, lr=3e-3, schedule=constant, seed=0, steps=600,
          prepare=None, make=torchs_adam):
    torch.manual_seed(seed)
    model = CharacterModel(norm_first)
    if prepare is not None:
        prepare(model)
    optimizers, run = make(model, lr), {"loss": [], "apart": []}
    for step in range(1, steps + 1):
        loss = loss_of(model, *batch_of_text())
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * schedule(step)
            optimizer.step()
        run["loss"].append(loss.item())
        run["apart"].append(apart(model.last.detach()))
    return run


def at_end(run, window=50):
    return sum(run["loss"][-window:]) / window


# %% [markdown]
# Plain **gradient descent** moves each weight against its gradient $g$, with one learning rate $\eta$ for all:
#
# $$\theta \leftarrow \theta - \eta\, g$$
#
# How different are the gradients that this one rate has to serve? Train for a hundred steps, and look at the row that
# each character has in the embedding.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
model = CharacterModel()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(100):
    model.zero_grad()
    loss_of(model, *batch_of_text()).backward()
    optimizer.step()
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
# We have gradients of very different sizes. What is missing is a step that suits each. Two weights are enough to see
# it: let the loss be $(25 a^2 + b^2) / 2$. It is a valley, steep along $a$ and gentle along $b$. The gradients are
# $25 a$ and $b$.
#
# Start at $a = b = 1$, and take the rate 0.07. The first weight moves by $0.07 \cdot 25 = 1.75$, across the valley to
# −0.75. The second moves by 0.07. With a rate above $2 / 25 = 0.08$ the first would jump farther out each time; so the
# second has to crawl. Now compare.

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


# %% [markdown]
# Each method has a rate of its own (momentum and Adam are explained below the figure):

# %%
paths = {
    "gradient descent, rate 0.07": path(torch.optim.SGD, lr=0.07),
    "with momentum, rate 0.03": path(torch.optim.SGD, lr=0.03, momentum=0.7),
    "Adam, rate 0.1": path(torch.optim.Adam, lr=0.1, betas=(0.7, 0.98)),
}
for name, points in paths.items():
    print(f"{name:27} after 1 step {points[1][0]:5.2f} {points[1][1]:5.2f}",
          f"  after 30 {points[-1][0]:5.2f} {points[-1][1]:5.2f}")

# %% [markdown]
# Each dot is a step, the cross is the bottom, and gray lines join points of equal loss.

# %% jupyter={"source_hidden": true}
figures.valley(
    paths, (25, 1), first="a (steep)", second="b (gentle)",
    title="One rate zigzags and crawls; Adam moves both weights alike",
    alt="Three maps of a valley, steep from left to right and gentle from top to bottom, each with 30 "
    "steps from the same start. Gradient descent zigzags across the valley and comes down slowly. With "
    "momentum it swings in wide arcs and comes down faster. Adam goes straight along the diagonal, "
    "both weights alike, overshoots a little and comes back.",
)

# %% [markdown]
# Momentum mixes the gradients of the last steps: across the valley they partly cancel, along it they add up, so $b$
# arrives sooner. Adam also mixes them, and then divides by the gradient's own size, so that both weights take steps of
# the same length.

# %% [markdown]
# ## 3 Build it: Adam
#
# We have the picture. What is missing is the rule. **Adam** (Kingma & Ba 2015) keeps two running means, called
# **moments**, of the gradient and of its square:
#
# $$m \leftarrow \beta_1 m + (1 - \beta_1)\, g \qquad v \leftarrow \beta_2 v + (1 - \beta_2)\, g^2$$
#
# Take $\beta_1 = 0.9$, $\beta_2 = 0.98$, and a gradient that is always 2. After one step $m = 0.1 \cdot 2 = 0.2$ and
# $v = 0.02 \cdot 4 = 0.08$. Both started at 0, so both are too small: the means should be 2 and 4. After $t$ steps of a
# constant gradient, $m$ is $(1 - \beta_1^t)\, g$. Divide by that factor, and the mean is right from the first step on:
# $0.2 / 0.1 = 2$ and $0.08 / 0.02 = 4$. This is the **bias correction**:
#
# $$\hat m = \frac{m}{1 - \beta_1^t} \qquad \hat v = \frac{v}{1 - \beta_2^t} \qquad
# \theta \leftarrow \theta - \eta\, \frac{\hat m}{\sqrt{\hat v} + \epsilon}$$
#
# The step is $\eta \cdot 2 / \sqrt 4 = \eta$. Had the gradient been 0.002, it would be the same. (This $m$ is Adam's
# letter, not the length of the memory.) Vaswani et al. take $\beta_1 = 0.9$, $\beta_2 = 0.98$,
# $\epsilon = 10^{-9}$.

# %% tags=["recorded"]
def adam(g, m, v, t, betas=(0.9, 0.98), eps=1e-9):  # all of one shape; t counts from 1
    m += (1 - betas[0]) * (g - m)  # the running means, updated in place
    v += (1 - betas[1]) * (g * g - v)
    m_hat, v_hat = m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)
    return m_hat / (v_hat.sqrt() + eps)  # the step, in units of the learning rate


for g in (2.0, 0.002):
    m, v = torch.zeros(2)
    first = adam(torch.tensor(g), m, v, t=1)
    print(f"gradient {g}: first step {first:.3f} learning rates")

# %% [markdown]
# Around it, an optimizer that remembers $m$ and $v$ of each weight. **AdamW** (Loshchilov & Hutter 2019) adds one line:
# **weight decay**, which draws each weight a little towards 0. It acts on the weight directly. If it were added to the
# gradient, as an L2 penalty is, the division by $\sqrt{\hat v}$ would take most of it away where gradients are large.

# %% tags=["recorded"]
class Adam:
    def __init__(self, parameters, lr, rule=adam, weight_decay=0.0, **options):
        group = {"params": list(parameters), "lr": lr, "initial_lr": lr}
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
# Is it torch's? Twenty steps of both from the same start, on the same gradients.

# %%
def walk_together(theirs, mine, steps=20):  # theirs moves the model, mine a copy
    copies = mine.param_groups[0]["params"]
    for _ in range(steps):
        model.zero_grad()
        loss_of(model, *batch_of_text()).backward()
        for weight, copy in zip(model.parameters(), copies):
            copy.grad = weight.grad.clone()
        theirs.step()
        mine.step()
    return torch.cat([copy.flatten() for copy in copies])  # (all weights,)


# %% [markdown]
# Without weight decay and with it:

# %%
options = {"lr": 3e-3, "betas": (0.9, 0.98), "eps": 1e-9}
for kind, decay in ((torch.optim.Adam, 0.0), (torch.optim.AdamW, 0.1)):
    copies = [weight.detach().clone() for weight in model.parameters()]
    theirs = kind(model.parameters(), weight_decay=decay, **options)
    walked = walk_together(theirs, Adam(copies, weight_decay=decay, **options))
    right = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    prove_equal(walked, right, what=f"Ours and torch's {kind.__name__}")

# %% [markdown]
# Adam's price is memory: next to each weight and its gradient, $m$ and $v$. That is 16 bytes per weight in float32,
# instead of 8.
#
# **And $\epsilon$?** It prevents a division by 0, and decides what counts as *no gradient*. The first step for a weight
# with a tiny gradient:

# %%
for g in (1e-2, 1e-6, 1e-9, 1e-11):
    steps = []
    for eps in (1e-9, 1e-8, 1e-3):
        m, v = torch.zeros(2)
        first = adam(torch.tensor(g), m, v, t=1, eps=eps)
        steps.append(f"{first:.3f} for ε = {eps:.0e}")
    print(f"gradient {g:.0e}: a step of", ", ".join(steps))

# %% [markdown]
# With a tiny $\epsilon$, even a gradient of a billionth moves its weight by half a learning rate. With a large one,
# Adam turns into momentum with a rate of $\eta / \epsilon$. Each block has weights with such gradients: a key's bias
# adds the same number to all scores of a query, and the softmax does not see it. Its true gradient is 0. What Adam sees
# is rounding noise, which it divides by the noise's own size. If so, a key's bias must move with an $\epsilon$ below
# the noise, and stay with one far above it, while for a query's bias it makes no difference. How far do they move in
# 100 steps?

# %% tags=["nbval-ignore-output"]
for eps in (1e-9, 1e-6):
    torch.manual_seed(0)
    model = CharacterModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=eps)
    layer = model.blocks[3].self_attention
    biases = {"query": layer.query.bias, "key": layer.key.bias}
    before = {name: bias.detach().clone() for name, bias in biases.items()}
    for _ in range(100):
        model.zero_grad()
        loss_of(model, *batch_of_text()).backward()
        optimizer.step()
    for name, bias in biases.items():
        way, gradient = (bias - before[name]).abs().mean(), bias.grad.abs().mean()
        print(f"ε = {eps:.0e}, {name:5} bias: gradient {gradient:.0e}, moved {way:.6f}")

# %% [markdown]
# With $\epsilon = 10^{-9}$ the key's bias moves, a fifth as far as the query's, on noise a million times smaller.
# With $10^{-6}$ it stays. The query's bias moves equally far in both. (Here the walk is harmless: nothing sees a key's
# bias.)

# %% [markdown]
# ## 4 Break it: Adam without its parts
#
# We have Adam whole. Which of its parts does the work?
#
# **The first step** tells a lot. There $\hat m = g$ and $\hat v = g^2$, so the step is $g / |g|$: each weight moves by
# exactly $\eta$, up or down, whatever the size of its gradient. This is bold, since it rests on a single batch. Only
# when gradients disagree from batch to batch does $|\hat m|$ fall below $\sqrt{\hat v}$, and steps become shorter.
#
# **Without bias correction** the first steps have the wrong length. To see by which factor, we need no training: let
# the gradient always be 1.

# %% tags=["recorded"]
def uncorrected(g, m, v, t, betas=(0.9, 0.98), eps=1e-9):
    adam(g, m, v, t, betas)
    return m / (v.sqrt() + eps)


def no_second_moment(g, m, v, t, betas=(0.9, 0.98)):
    adam(g, m, v, t, betas)
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
for name, steps in lengths.items():
    print(f"{name:15} longest {max(steps):.1f} rates, the last {steps[-1]:.1f}")

# %% [markdown]
# And as a figure:

# %% jupyter={"source_hidden": true}
plots.lines(
    lengths, dashed=["corrected"],
    title="Uncorrected, the first steps are up to 6.6 times too long", xlabel="step",
    ylabel="step, in learning rates",
    alt="Length of a step for a constant gradient. Corrected it is 1 throughout. Uncorrected with "
    "β₂ 0.98 it rises to 1.6 and is back at 1 after 200 steps. With β₂ 0.999 it rises to "
    "6.6 and is still at 2 after 300.",
)

# %% [markdown]
# $\sqrt v$ fills up more slowly than $m$, so the quotient is soon too large: up to 1.6 times with $\beta_2 = 0.98$, but
# 6.6 times with torch's default, 0.999. That hurts if the learning rate is high already.
#
# **Without the second moment** all weights share one rate again, and only the smoothed gradient is left. This is
# gradient descent with **momentum**.
#
# Measure both: `data/learning.py` ran these cells with $\beta_2 = 0.999$ and three seeds each, for 150 steps, and
# recorded the mean loss of the last 50. Momentum gets Adam's rate, and three others. Decide first: does the correction
# matter as much as the second moment?

# %%
recorded = json.loads((DATA / "learning.json").read_text())


def show(rates_of):  # setting → rate → seed → what was recorded
    for name, rates in rates_of.items():
        for rate, runs in rates.items():
            losses = " ".join(f"{run['loss'][-1]:.2f}" for run in runs.values())
            print(f"{name:32} rate {float(rate):<6g} losses {losses}")


show(recorded["adam"])

# %% [markdown]
# Both parts earn their place. Without the correction, each seed ends about 0.3 to 0.5 higher. Without the second moment
# the model has not even reached the frequencies (3.17, lesson 06) at Adam's rate, and at the best of its rates, 0.3, it
# ends no lower than Adam without the correction.
#
# A confession: at a lower rate, 0.003, the correction matters little.

# %%
show(recorded["correction"])

# %% [markdown]
# With $\beta_2 = 0.98$ it makes no difference here. It protects the first steps, as a warm-up does.

# %% [markdown]
# ## 5 Use it: wiring × learning rate × warm-up
#
# We have Adam, and a block in two wirings. What is missing is the start. The original Transformer is post-norm, and its
# authors raised the learning rate slowly from 0 over the first 4,000 steps. What is this **warm-up** good for? Two
# explanations have been given. One follows from section 4: Adam's first steps have full length, while $\hat v$ rests on
# a few batches (Liu et al. 2020b). The other builds on lesson 06: in post-norm, the gradients of the last blocks stay
# large however deep the model is (Xiong et al. 2020).

# %% tags=["recorded"]
def warm_up(step, over=150):
    return min(1.0, step / over)


def moments_first(step, over=75):  # the weights wait while m and v see 75 batches
    return 0.0 if step <= over else 1.0


def slower(model, lr, first, end):  # a tenth of the rate for blocks first … end - 1
    blocks = model.blocks[first:end]
    slow = [weight for block in blocks for weight in block.parameters()]
    known = {id(weight) for weight in slow}
    rest = [weight for weight in model.parameters() if id(weight) not in known]
    groups = {"params": rest, "initial_lr": lr}, {"params": slow, "initial_lr": lr / 10}
    return [torch.optim.Adam(groups, betas=(0.9, 0.98), fused=True)]


# %% [markdown]
# Three runs at the rate 0.003: pre-norm, post-norm, and post-norm with a warm-up of 150 steps. Two losses from lesson
# 06 to compare with: a model that knows only how often each character occurs has 3.17; one that knows which pairs occur
# has 2.40.

# %%
predict("post-norm-start", "Which run gets no further than the frequencies?",
        "pre-norm", "post-norm", "post-norm with a warm-up", "none")

# %% [markdown]
# Train them:

# %% tags=["nbval-ignore-output"]
three = {
    "pre-norm": {},
    "post-norm": {"norm_first": False},
    "post-norm, warm-up": {"norm_first": False, "schedule": warm_up},
}
runs = {}
for name, options in progress(three.items(), "training three models"):
    runs[name] = train(lr=3e-3, steps=400, **options)

# %% [markdown]
# Unfold the result.

# %% tags=["nbval-ignore-output", "hide-output"] jupyter={"outputs_hidden": true}
for name, run in runs.items():
    print(f"{name:18} loss {at_end(run):.2f}, apart {run['apart'][-1]:.2f}")
expect("Loss of pre-norm", at_end(runs["pre-norm"]), 2.3, 2.55)
expect("Loss of post-norm", at_end(runs["post-norm"]), 3.0, 3.3)
expect("Loss of post-norm with a warm-up", at_end(runs["post-norm, warm-up"]), 2.4, 2.9)

# %% [markdown]
# And your guess?

# %%
predicted("post-norm-start", "post-norm")

# %% [markdown]
# One run is an anecdote. The record holds 600 steps, with three seeds, and post-norm also at a lower rate. The losses
# of the last 50 steps:

# %%
show(recorded["wiring"])

# %% [markdown]
# **Pre-norm** beats the table of pairs. **Post-norm** at 0.003 gets no further than the frequencies, with none of the
# seeds; with a warm-up it learns with all of them, though its loss stays just above that of the pairs. At 0.001 it
# learns just as much without one. So here post-norm does not need a warm-up to learn, only to learn at a high rate.
# (The paper's own is 4,000 steps long, for a rate that peaks at 0.0007, in much wider blocks.) What happens inside,
# over all 600 steps?

# %% jupyter={"source_hidden": true}
settings = [("pre-norm", "0.003"), ("post-norm", "0.003"),
            ("post-norm, warm-up", "0.003"), ("post-norm", "0.001")]
figures.training(
    {f"{name}\nrate {float(rate):g}": list(recorded["wiring"][name][rate].values())
     for name, rate in settings},
    rows={"loss": "loss (nats)", "apart": "fraction apart"}, log=["apart"], window=50,
    title="At 0.003 without a warm-up, post-norm makes all characters alike",
    alt="Two rows of four panels over 600 steps, three seeds each: the loss above, below it the "
    "fraction of the stream that tells characters apart, logarithmic. Pre-norm at 0.003: the loss "
    "falls to 2.3, the fraction rises to 0.7. Post-norm at 0.003: the loss stays at 3.2, the "
    "fraction falls below 0.001 and rises late to about 0.2. Post-norm with warm-up at 0.003, and "
    "post-norm at 0.001: the fraction dips, comes back to 0.7, and the loss falls to 2.45.",
)

# %% [markdown]
# Rank collapse again (lesson 06, section 1), and this time training itself causes it. Our explanation: all models first
# learn the easiest thing there is, the frequencies; for that, all positions may look the same, and they drift together.
# In pre-norm the input is still in the stream, and the model finds its way back. The other post-norm runs dip as well,
# but not as deeply. (Late in its runs at 0.003 post-norm's fraction rises again, in windows of 50 steps up to about
# 0.2; its loss has hardly moved by then.)
#
# So which explanation of the warm-up is right? Each suggests a remedy that is not a warm-up. *Moments first*: for 75
# steps the weights wait while $m$ and $v$ see batches, as Liu et al. did; then Adam starts at the full rate, with a
# well-measured $\hat v$. *Last blocks slower*: the last two of six blocks get a tenth of the rate, from the first step
# on. And as controls, the *middle* two get it, or the *first* two.

# %%
predict("post-norm-cause", "What lets post-norm learn at 0.003, without a warm-up?",
        "moments first", "slower last blocks only",
        "slower blocks, wherever they are", "none")

# %% [markdown]
# Three seeds each:

# %%
show(recorded["cause"])
predicted("post-norm-cause", "slower blocks, wherever they are")

# %% [markdown]
# Well-measured moments change nothing: all seeds stay at the frequencies. With slower last blocks all seeds learn,
# which looks like the second explanation, until you see its rivals: with slower *first* or *middle* blocks they learn
# as well, and just as much. So in this model it seems to matter less which blocks move than how far all of them move
# together. A warm-up shortens the steps of all. This is one small model at one rate; Liu et al. (2020b) found the first
# explanation at work in others.
#
# Post-norm is not wrong; it is harder to start. Where it does train to the end, its results can even be a little better
# (Liu et al. 2020a). Does layer norm help by keeping numbers tidy, or by its gradient? Xu et al. (2019) let no gradient
# through the norm's mean and deviation; results got worse, so they conclude that the gradient matters more.

# %% [markdown]
# ## 6 Initial weights
#
# We have a rule for every step but the zeroth. What is missing is where to start. Let the *size* of some numbers be the
# root of their mean square. Each output of a matrix is a sum of $d$ products. If the inputs have size 1 and the random
# weights size $s$, the sum has the size $s \sqrt d$. With $d = 64$ and weights from the standard normal distribution,
# $s = 1$, a layer makes its input $\sqrt{64} = 8$ times larger. After twenty layers that is $8^{20}$, a one with 18
# zeros. With $s = 1 / \sqrt d = 1/8$ the size stays. A relu erases half of the mean square (with $s = 1$, a factor of
# 5.7 per layer is left), so there it takes $s = \sqrt{2 / d}$. Watch twenty layers with relu:

# %%
def sizes(weight_size, layers=20, d=64):
    torch.manual_seed(0)
    x, found = torch.randn(200, d), []
    for _ in range(layers):
        x = torch.relu(x @ (weight_size * torch.randn(d, d)))  # (200, d)
        found.append(x.square().mean().sqrt().item())
    return found


after_layers = {"1": sizes(1.0), "√(1/d)": sizes(1 / 8), "√(2/d)": sizes(2**0.5 / 8)}
for name, found in after_layers.items():
    print(f"weights of size {name:6}: after 1 layer {found[0]:.1e},",
          f"after 20 {found[-1]:.1e}")

# %% [markdown]
# On a logarithmic axis, a constant factor per layer is a straight line:

# %% jupyter={"source_hidden": true}
plots.lines(
    after_layers, yscale="log", marker="o",
    title="A little too large or too small, twenty times, is far off", xlabel="layers with relu",
    ylabel="size of the signal",
    alt="Size of the signal after each of twenty layers, logarithmic, three straight lines. "
    + ", ".join(f"Weights of size {name}: {found[-1]:.0e} at the end" for name, found in after_layers.items()) + ".",
)

# %% [markdown]
# Only $\sqrt{2/d}$ keeps the size near 1. The gradient goes backward through the transposed matrices, so for it the
# same holds with the number of outputs instead of inputs. **Xavier** initialization (Glorot & Bengio 2010) is the
# compromise: variance $2 / (d_\text{in} + d_\text{out})$. **He** initialization (He et al. 2015) is for relu:
# $2 / d_\text{in}$. Our blocks use Xavier; BERT and GPT-2 draw their matrices from $N(0, 0.02^2)$.
#
# A residual stream adds another question: each of its $2L$ sub-layers adds something, so the stream grows with depth,
# even if each branch keeps its size. GPT-2 divides the last matrix of each sub-layer by $\sqrt{2L}$: then all branches
# together add about as much as one. A more radical way sets these matrices to zero, so that at the start each block is
# the identity. How large is the stream at the top?

# %% tags=["recorded"]
def last_matrices(model):
    for block in model.blocks:
        yield block.self_attention.output.weight
        yield block.feed_forward.down_proj.weight


@torch.no_grad()
def by_depth(model):  # GPT-2's
    for weight in last_matrices(model):
        weight /= (2 * len(model.blocks)) ** 0.5


@torch.no_grad()
def zero(model):
    for weight in last_matrices(model):
        weight.zero_()


@torch.no_grad()
def too_large(model):
    for weight in last_matrices(model):
        weight *= 10


# %% [markdown]
# The last one is wrong on purpose. Here are the sizes of the others, in models of 1, 3, 6, 12 and 24 blocks:

# %%
starts = {"Xavier": None, "divided by √(2L)": by_depth, "zero": zero}
depths, stream = (1, 3, 6, 12, 24), {name: [] for name in starts}
for name, prepare in starts.items():
    for blocks in depths:
        torch.manual_seed(0)
        model = CharacterModel(blocks=blocks)
        model.last_norm = nn.Identity()
        if prepare is not None:
            prepare(model)
        model(batch_of_text()[0])
        stream[name].append(model.last.std().item())
    print(f"{name:16}: size of the stream", *(f"{size:.1f}" for size in stream[name]))

# %% [markdown]
# Against the number of blocks:

# %% jupyter={"source_hidden": true}
plots.lines(
    {name: (depths, found) for name, found in stream.items()}, marker="o",
    title="Scaled down, the stream keeps its size at any depth", xlabel="blocks in the model",
    ylabel="size of the stream at the top",
    alt="Size of the stream at the top of models of 1 to 24 blocks. "
    + "; ".join(f"{name}: " + ", ".join(f"{size:.1f}" for size in found) for name, found in stream.items()) + ".",
)

# %% [markdown]
# With Xavier the stream grows with depth; scaled down, it stays near the size of the input, about 1.2. Does it matter
# for learning? Guess first: six blocks, pre-norm, 150 steps. One more start has the last matrices ten times too large.

# %%
show(recorded["start"])

# %% [markdown]
# For each seed, the three sensible starts differ by about 0.02 at most. Two things in our model forgive a wrong size
# (our explanation): the norms hide it from the sub-layers, and Adam's steps do not depend on it. Ten times too large is
# worse with every seed, though far from a failure. Models without norms forgive less: you have seen what twenty layers
# do to a factor.

# %% [markdown]
# ## 7 Muon: a matrix is not a list of numbers
#
# We have a rule that gives each single weight a step of its own. What it does not see is that weights belong to a
# matrix. Look at the momentum $m$ of one. As a map, a matrix takes certain perpendicular directions to perpendicular
# ones, and stretches each by its own factor, here its *length*. (These are the **singular values**.) How long is each?

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
model = CharacterModel()
(optimizer,) = torchs_adam(model, 3e-3)
for _ in range(100):
    model.zero_grad()
    loss_of(model, *batch_of_text()).backward()
    optimizer.step()
momentum = optimizer.state[model.blocks[3].self_attention.value.weight]["exp_avg"]
before = torch.linalg.svdvals(momentum)  # (d_model,)
before = before / before[0]  # relative to the largest
print(f"{(before > 0.5).sum()} of {len(before)} are over half the largest,",
      f"{(before < 0.1).sum()} under a tenth")

# %% [markdown]
# A few directions get most of the step. **Muon** (Jordan et al. 2024) gives all directions the same
# length:
#
# $$\begin{pmatrix} 3 & 0 \\ 0 & 0.1 \end{pmatrix} \to \begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix} \qquad\qquad
# M = U S V^\top \to U V^\top$$
#
# The result is the orthogonal matrix nearest to the momentum. Finding $U S V^\top$, the *singular value decomposition*
# ($V^\top$ and $U$ turn, $S$ stretches), is slow on a GPU, but matrix products are fast. And an odd polynomial of a
# matrix, such as $a M + b\, M M^\top M + c\, (M M^\top)^2 M$, acts on each singular value alone:
# $s \to a s + b s^3 + c s^5$. With the right numbers, five rounds bring all of them near 1. Watch four singular values:

# %% tags=["recorded"]
A, B, C = 3.4445, -4.7750, 2.0315  # Jordan et al. 2024

values = torch.tensor([0.01, 0.1, 0.3, 1.0])
for step in range(1, 6):
    values = A * values + B * values**3 + C * values**5
    print(f"after {step}:", *(f"{value:.2f}" for value in values))

# %% [markdown]
# Near is enough: about 0.7 to 1.2. (This is a **Newton–Schulz iteration**.) Now our matrix, first divided by its
# length, so that no singular value is above 1:

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
# How long are its directions, before and now?

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
after = torch.linalg.svdvals(orthogonalize(momentum))
figures.singular_values(
    {"momentum (largest = 1)": before, "after five rounds": after},
    title="Orthogonalized, almost all directions are about equally long",
    alt="Singular values of the momentum, relative to the largest, and of the same matrix after "
    "orthogonalizing. Before: " + ", ".join(f"{value:.2f}" for value in before)
    + ". After: " + ", ".join(f"{value:.2f}" for value in after) + ".",
)

# %% [markdown]
# Only directions of length almost 0 stay short, like the last three. Muon itself keeps the momentum and nothing else:
# one tensor per matrix instead of Adam's two. (The *Nesterov* variant mixes the newest gradient in once more. A tall
# matrix gets a longer step, since the length 1 of each column is spread over more entries.)

# %% tags=["recorded"]
class Muon:
    def __init__(self, parameters, lr, momentum=0.95):
        group = {"params": list(parameters), "lr": lr, "initial_lr": lr}
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
# Next to torch's:

# %%
torch.manual_seed(0)
mine = nn.Parameter(torch.randn(128, 32))
theirs = nn.Parameter(mine.detach().clone())
options = {"momentum": 0.95, "weight_decay": 0.0}
both = Muon([mine], 0.02), torch.optim.Muon([theirs], 0.02, **options)
for _ in range(20):
    mine.grad = torch.randn(128, 32)
    theirs.grad = mine.grad.clone()
    for optimizer in both:
        optimizer.step()
prove_equal(mine, theirs, tolerance=0.01, what="Ours and torch's Muon")

# %% [markdown]
# They agree only roughly, because torch iterates in numbers of 16 bits. Muon is made for the matrices inside the
# blocks; embeddings, gains and biases stay with Adam. Which one learns faster? One run each, with its time.

# %% tags=["recorded"]
def muon(model, lr):
    inside = [weight for weight in model.blocks.parameters() if weight.dim() == 2]
    known = {id(weight) for weight in inside}
    rest = [weight for weight in model.parameters() if id(weight) not in known]
    return [Muon(inside, lr), *torchs_adam(nn.ParameterList(rest), 3e-3)]


# %% [markdown]
# The losses are means of the last 50 of 150 steps:

# %% tags=["nbval-ignore-output"]
for name, make, lr in (("Adam", torchs_adam, 3e-3), ("Muon", muon, 0.02)):
    start = time.perf_counter()
    loss = at_end(train(lr=lr, make=make, steps=150))
    print(f"{name}: loss {loss:.2f} after {time.perf_counter() - start:.0f} seconds")

# %% [markdown]
# And from the record, each at two rates, three seeds, 150 steps:

# %%
show(recorded["muon"])

# %% [markdown]
# Muon is ahead with every seed, at both rates. But equal steps are not equal time: for matrices this small, its steps
# take longer, as the seconds above show. In large models the five rounds cost little next to the forward and backward
# pass (Jordan et al. put it below 1%).
#
# Open the library: `optimizers` makes the choice for you. Lesson 09's translator learns with it.

# %%
show_source(optimizers)

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
#   root of a running mean of its square, so that each weight gets steps of its own size. The bias correction makes the
#   first of them right.
# - Weight decay acts on the weights, not on the gradient.
# - At 0.003 our post-norm model makes all characters alike and stays at their frequencies, unless it gets a warm-up, or
#   some of its blocks a lower rate. At 0.001 it needs neither, and pre-norm needs neither even at 0.003.
# - Initial weights of size $1/\sqrt d$ (with relu, $\sqrt{2/d}$) keep a signal's size; deep residual streams grow
#   unless the last matrices are scaled down.
# - Muon makes all directions of a matrix's step equally long.
#
# **Read** Kingma & Ba 2015, *Adam*, [arXiv:1412.6980](https://arxiv.org/abs/1412.6980), sections 2 and 3. Loshchilov &
# Hutter 2019, *Decoupled Weight Decay Regularization*, [arXiv:1711.05101](https://arxiv.org/abs/1711.05101), section 2.
# Xiong et al. 2020, *On Layer Normalization in the Transformer Architecture*,
# [arXiv:2002.04745](https://arxiv.org/abs/2002.04745), section 3. Liu et al. 2020a, *Understanding the Difficulty of
# Training Transformers*, [arXiv:2004.08249](https://arxiv.org/abs/2004.08249). Liu et al. 2020b, *On the Variance of
# the Adaptive Learning Rate*, [arXiv:1908.03265](https://arxiv.org/abs/1908.03265). Xu et al. 2019, *Understanding and
# Improving Layer Normalization*, [arXiv:1911.07013](https://arxiv.org/abs/1911.07013), section 3. Glorot & Bengio 2010,
# *Understanding the difficulty of training deep feedforward neural networks*, section 4. Jordan et al. 2024, *Muon*,
# [kellerjordan.github.io/posts/muon](https://kellerjordan.github.io/posts/muon/).
#
# **Do** the exercise [07_learning](../exercises/exercise_07_learning.ipynb). Then go on to
# [08 The encoder–decoder Transformer](08_transformer.ipynb).
