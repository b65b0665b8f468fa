# %% [markdown] lesson={"part": "II Language models", "builds": "one block as a loop, halting for each position, chains deeper than in training"}
# # 19 · The Universal Transformer
#
# **After this lesson you will be able to**
#
# - use one block again and again instead of a stack, and say what that does to parameters and to computation;
# - let every position decide for itself when it has thought enough: halting probabilities, threshold, remainder, ponder
#   cost, first with pencil and paper, then in a model;
# - measure which model can follow a chain further than it was trained for: a stack, a loop, or a loop that halts;
# - look at what each position believes after each step, and tell what halting does from what *training* with it does;
# - say when halting saves computation, and when it only looks as if it did.
#
# **You need** lessons 05 and 06. **It takes** about 65 minutes to read and try; all cells together run in a little over
# a minute on a laptop. Most of that is three small models.

# %% [markdown]
# ## 1 The problem: how deep is a question?
#
# We have stacks, in which every token of every text takes the same number of blocks. What is missing is a way to think
# longer about what needs it.

# %% tags=["recorded"]
import copy
import json
import time
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from txlib.attention import MultiHeadAttention
from txcourse.lesson import expect, predict, predicted, progress
from txcourse.lesson import prove_equal, show_source
from txlib.layers import FeedForward, LayerNorm

torch.set_num_threads(1)  # for models this small, more threads only wait

# %% [markdown]
# Here is a question that needs it. A rumor circulates among sixteen people, the sixteen speakers with the most speeches
# in the course's plays:

# %% tags=["recorded"]
import re
from collections import Counter

from txlib.data import shakespeare

speakers = re.findall(r"^([A-Z]+):$", shakespeare().train, re.MULTILINE)
people = [name.capitalize() for name, _ in Counter(speakers).most_common(16)]
n = len(people)
print(", ".join(people))

# %% [markdown]
# Four of them have made up a story, each a different one; everyone else has heard one of the four from one other
# person. Each of the sixteen signs one line: *who*, and *from whom*. (The four name themselves.) The lines are
# shuffled. The question, for every line: **with whom did this story begin?**
#
# To make such a rumor, put the people into a random order, cut it into four chains, and let everyone hear from the one
# before. `deepest` limits how often a story was passed on, which is the *depth* of a line: 0 for its author.

# %% tags=["recorded"]
def cut(deepest):  # four chains of sixteen: where each begins and ends
    while True:
        cuts = sorted((1 + torch.randperm(n - 1)[:3]).tolist())
        bounds = list(pairwise([0, *cuts, n]))
        if max(end - start for start, end in bounds) <= deepest + 1:
            return bounds


def rumor(deepest):  # a line for each person, in any order
    order, lines = torch.randperm(n).tolist(), []
    for start, end in cut(deepest):
        chain = order[start:end]
        for depth, who in enumerate(chain):
            source = chain[max(depth - 1, 0)]  # the first names itself
            lines.append([who, source, chain[0], depth])
    return [lines[i] for i in torch.randperm(n).tolist()]


# %% [markdown]
# Many of them, as tensors:

# %% tags=["recorded"]
def rumors(size, deepest):  # who, source, begun_by, depth: (size, n) each
    many = torch.tensor([rumor(deepest) for _ in range(size)])  # (size, n, 4)
    return many.unbind(dim=-1)


# %% [markdown]
# One rumor. A model sees the sixteen lines, shuffled, and is not told the depths. You see the chains:

# %%
def one_rumor(seed=1):  # the lines in order, chain by chain, and the names
    torch.manual_seed(seed)
    lines = sorted(rumor(deepest=7), key=lambda line: (line[2], line[3]))
    stories = {begun_by: [] for _, _, begun_by, _ in lines}
    for who, _, begun_by, _ in lines:
        stories[begun_by].append(people[who])
    return torch.tensor(lines), list(stories.values())  # (n, 4)


lines, stories = one_rumor()
for who, source, _, _ in lines[torch.randperm(n)][:4].tolist():
    heard = "made it up" if who == source else f"heard it from {people[source]}"
    print(f"{people[who]} {heard}.")

# %% jupyter={"source_hidden": true}
from txcourse import figures
from txlib import plots
from txlib.paths import DATA

figures.chains(
    stories, title="Four stories, and the way of each",
    alt="Four rows of names with arrows from each to the next, each row in its own color: "
    + "; ".join(" to ".join(story) for story in stories),
)

# %% [markdown]
# For depth 1 one look at another line is enough: whom does my source name? Itself, so the story began there. For depth
# 5 the answer to each look is the next question. Some lines need more steps of *thought* than others, in the same
# text, and nothing tells beforehand how many. A stack of $L$ blocks takes $L$ steps for all of them. If a chain is
# longer than $L$ blocks can follow, no further block comes to its aid. If it is shorter, all of them compute anyway.

# %% [markdown]
# ## 2 The idea in one picture
#
# We have a task whose depth varies. What is missing is a model whose depth can. Lesson 02 has recurrence in *time*:
# the same cell, applied to one word after the other. Here is recurrence in **depth**: the same block, applied to all
# words at once, again and again. Dehghani et al. (2019) call it the **Universal Transformer**.

# %% jupyter={"source_hidden": true}
figures.recurrence(
    4, title="Four blocks once, or one block four times",
    alt="Left: a stack of four different blocks. Middle: one block with an arrow from its output back to its input, "
    "times four. Right: the same loop unrolled, four boxes of one color; to each the signal of its step is added.",
)

# %% [markdown]
# The block is lesson 06's, with the norm after the sum.

# %% tags=["recorded"]
class Block(nn.Module):
    def __init__(self, d_model, heads=4):
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, heads)
        self.feed_forward = FeedForward(d_model, 2 * d_model)
        self.self_attention_norm = LayerNorm(d_model)
        self.feed_forward_norm = LayerNorm(d_model)

    def forward(self, x, mask=None):  # (batch, n, d_model); post-norm, as in lesson 06
        x = self.self_attention_norm(x + self.self_attention(x, mask=mask))
        return self.feed_forward_norm(x + self.feed_forward(x))


def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


# %% [markdown]
# What does the loop save? A block with $d_{\text{ff}} = 2 d$ has about $8d^2$ parameters. A stack of $T$ has $T$ times
# as many, a loop of $T$ steps has them once. And the operations? torch counts them while a module runs (`operations`,
# in a folded cell, is lesson 18's):

# %% jupyter={"source_hidden": true}
from torch.utils.flop_counter import FlopCounterMode


def operations(compute, *inputs):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        compute(*inputs)
    return counter.get_total_flops()


# %%
d_model, block = 64, Block(64)
x = torch.randn(1, n, d_model)  # (batch, n, d_model)
for T in (1, 6, 12):
    blocks = nn.Sequential(*(Block(d_model) for _ in range(T)))
    print(f"T = {T:2}: a stack has {parameters(blocks):7,} parameters,",
          f"a loop {parameters(block):6,};",
          f"operations {operations(blocks, x):10,} and {T * operations(block, x):10,}")

# %% [markdown]
# A loop saves memory for parameters and nothing else: **the operations are the same**. (The counter sees the products
# with weights, $2 \cdot 16 \cdot 8 \cdot 64^2$ per block for our 16 positions. It misses attention's scores and
# averages, 6% more, for both alike.) It is the reverse of lesson 18, where parameters grew and operations stayed. What
# the loop buys is that $T$ is not built in. It is a number that you choose when the model runs, for each text, perhaps
# for each word.

# %% [markdown]
# ## 3 The equations
#
# We have a loop. What is missing is a way to tell its steps apart. $H^0$ are the embedded tokens, one row for each of
# $n$ positions. Step $t = 1 \dots T$ adds a signal, then applies the one block, post-norm as in the original
# Transformer:
#
# $$X^t = H^{t-1} + P^t \qquad A^t = \text{LayerNorm}\big(X^t + \text{MultiHead}(X^t)\big) \qquad
# H^t = \text{LayerNorm}\big(A^t + \text{Transition}(A^t)\big)$$
#
# *Transition* is the feed-forward network. (The paper has a second kind, separable convolutions.) The signal tells a
# position where it is *and* which step this is. The first pair of entries turns by 1 radian per position and per step:
# position 3 at step 5 gets $\sin 3 + \sin 5 = 0.14 - 0.96 = -0.82$. In general:
#
# $$P^t_{i,2j} = \sin\frac{i}{10000^{2j/d}} + \sin\frac{t}{10000^{2j/d}} \qquad
# P^t_{i,2j+1} = \cos\frac{i}{10000^{2j/d}} + \cos\frac{t}{10000^{2j/d}}$$
#
# Sine and cosine of a pair have the *same* frequency. Some slides print $(2j+1)/d$ for the Transformer's cosine. Lesson
# 05, section 3, shows what that breaks.

# %% tags=["recorded"]
def waves(position, d_model):
    speed = 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)  # (d_model / 2,)
    angle = torch.as_tensor(position)[..., None] * speed  # (…, d_model / 2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)  # (…, d_model)


# %% [markdown]
# The half that tells the step, for eight of them, its first 16 entries:

# %% jupyter={"source_hidden": true}
plots.heatmap(
    waves(torch.arange(1, 9), d_model)[:, :16], title="Each step has a signal of its own", xlabel="entry (the first 16 of 64)",
    ylabel="step $t$", rows=[str(t) for t in range(1, 9)], numbers=False, diverging=True, size=0.28, bar="signal",
    alt="Eight rows, one per step. The entries on the left change quickly from row to row, those on the right slowly: "
    "the sine and cosine waves of lesson 05, with the step instead of the position.",
)

# %% [markdown]
# Both halves are the same function, and they are added. So the signal of position 3 at step 5 is the signal of
# position 5 at step 3. It does little harm: in any one step all positions have the same $t$, and so they differ by
# their $i$ alone. Only a model that compares states of different steps could be misled, and attention never does.

# %% [markdown]
# ## 4 Build it: a loop
#
# ### 4.1 The same block, again and again
#
# We have the equations. What is missing is a model with two bodies to compare: a stack, and a loop that may add the two
# halves of the signal before each use of its block.

# %% tags=["recorded"]
class Stack(nn.Module):
    def __init__(self, d_model, layers, heads=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block(d_model, heads) for _ in range(layers))

    def forward(self, x):  # (batch, n, d_model)
        for block in self.blocks:
            x = block(x)
        return x


# %% [markdown]
# The loop:

# %% tags=["recorded"]
class Loop(nn.Module):
    def __init__(self, d_model, steps, clock=True, positions=False):
        super().__init__()
        self.block, self.steps = Block(d_model), steps
        self.clock, self.positions = clock, positions

    def signaled(self, x, t):  # (batch, n, d_model): H + P
        if self.positions:
            x = x + waves(torch.arange(x.shape[1]), x.shape[-1])
        return x + waves(t, x.shape[-1]) if self.clock else x

    def forward(self, x):  # (batch, n, d_model)
        for t in range(1, self.steps + 1):
            x = self.block(self.signaled(x, t))
        return x


# %% [markdown]
# Around the body, a reader of rumors embeds each line as the sum of two vectors, for *who* and for *from whom*, and
# scores each of the sixteen people:

# %% tags=["recorded"]
class Reader(nn.Module):
    def __init__(self, body, d_model=64):
        super().__init__()
        self.who, self.source = nn.Embedding(n, d_model), nn.Embedding(n, d_model)
        self.body, self.output = body, nn.Linear(d_model, n)

    def embed(self, who, source):  # (batch, n) each
        return self.who(who) + self.source(source)  # (batch, n, d_model)

    def forward(self, who, source):
        return self.output(self.body(self.embed(who, source)))  # (batch, n, person)


# %% [markdown]
# (The lines are shuffled, so their positions mean nothing, and `Loop` adds only the step's half of the signal unless
# told otherwise. `clock=False` leaves out that half as well: then all steps are the very same function.)
#
# Is a loop of $T$ steps really a stack of $T$ blocks that happen to be equal?

# %%
torch.manual_seed(0)
loop, stack = Loop(d_model, 6, clock=False), Stack(d_model, 6)
for block in stack.blocks:
    block.load_state_dict(loop.block.state_dict())
prove_equal(loop(x), stack(x), what="Six steps and six equal blocks")

# %% [markdown]
# A loop goes through the same matrices again and again, so it is sensitive to their size. Our block begins with torch's
# default weights; with `xavier_uniform_`, whose weights have two to four times that variance, the loop did not learn to
# follow a chain of three in any of three trials.
#
# ### 4.2 Train it
#
# In training no chain is deeper than 5. In the test a chain may be as long as it likes, and we count depths up to 10.
# `ponder` and `start` are for later.

# %% tags=["recorded"]
def loss_of(model, ponder=0.0, size=64):
    who, source, begun_by, _ = rumors(size, deepest=5)  # (size, n) each
    loss = F.cross_entropy(model(who, source).flatten(0, 1), begun_by.flatten())
    return loss + ponder * (model.body.N + model.body.R).mean() if ponder else loss


# %% [markdown]
# The usual loop around it:

# %% tags=["recorded"]
def train(make, d_model=64, ponder=0.0, steps=250, seed=0, lr=4e-3,
          what="training", start=None):
    torch.manual_seed(seed)
    model = Reader(make(), d_model) if start is None else copy.deepcopy(start)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), fused=True)
    for step in progress(range(steps), what):
        factor = min(1, (step + 1) / 50) * (1 - 0.9 * step / steps)
        optimizer.param_groups[0]["lr"] = lr * factor
        loss = loss_of(model, ponder)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


# %% [markdown]
# The test counts right answers depth by depth, or steps taken:

# %% tags=["recorded"]
@torch.no_grad()
def by_depth(model, what="right", size=600):
    torch.manual_seed(99)
    who, source, begun_by, depth = rumors(size, deepest=n)  # (size, n) each
    right = model(who, source).argmax(dim=-1) == begun_by  # (size, n)
    shown = right.float() if what == "right" else model.body.N  # (size, n)
    return [shown[depth == k].mean().item() for k in range(11)]


# %% [markdown]
# Train a loop of six steps, and count:

# %% tags=["nbval-ignore-output"]
def show_depths(name, values, form="{:4.0%}"):
    print(f"{name:12} at depth 0, 1, … 10:", *(form.format(value) for value in values))


models = {"loop": train(lambda: Loop(64, 6, clock=False), what="a loop of 6 steps")}
show_depths("right", by_depth(models["loop"]))

# %% [markdown]
# Up to depth 5 it was trained, beyond it was not. Its rivals:
#
# - *one block*: the loop's parameters, used once;
# - *a thin stack*: six blocks, so narrow ($d = 26$) that together they have the loop's parameters;
# - *a wide stack*: six blocks of the loop's width. The same operations, 5.6 times the parameters.
#
# `data/rumors.py` ran the cells of this lesson with three seeds each, and recorded what comes out.

# %%
recorded = json.loads((DATA / "rumors.json").read_text())


def values(name, what="right"):  # (seed, depth)
    return torch.tensor([run[what] for run in recorded[name].values()])


def compare(names):
    for name in names:
        right = values(name)
        deep = [f"{each:.0%}" for each in right[:, 6:].mean(dim=1)]
        print(f"{name:22} depths 0 to 5 {right[:, :6].mean():4.0%};",
              "6 to 10, each seed", *deep)


rivals = ("one block", "thin stack", "wide stack", "loop")
compare(rivals)

# %% jupyter={"source_hidden": true}
def guessing():  # among the authors that have listeners; from depth 1 on
    torch.manual_seed(99)
    depth = rumors(600, deepest=n)[3]  # (size, n)
    chance = 1 / (depth == 1).sum(dim=1, keepdim=True).expand_as(depth)  # one line of depth 1 per such author
    return [chance[depth == k].mean().item() for k in range(1, 11)]


def percent(shares):
    return list(range(len(shares))), [100 * share for share in shares]


def spread(name, what="right"):
    return values(name, what).mean(dim=0).tolist()


def drawn(compared, title):
    return plots.lines(
        {name: percent(spread(run)) for name, run in compared.items()}
        | {"guessing": (range(1, 11), [100 * chance for chance in guessing()])},
        title=title, xlabel="depth of the line", ylabel="right answers (%)", marker="o", mark=("trained to here", 5),
        dashed=["guessing"], colors={"guessing": "#777777"},
        alt="Right answers over depths 0 to 10, mean of three seeds. " + "; ".join(
            f"{name}: {100 * spread(run)[5]:.0f}% at depth 5, {100 * spread(run)[9]:.0f}% at depth 9"
            for name, run in compared.items()),
    )


drawn(dict(zip(rivals, rivals)), "The loop does with one block what the wide stack does with six")

# %% [markdown]
# One block gets as far
# as depth 2. The thin stack has six blocks, and fails all the same. The wide stack does what it was trained for nearly
# perfectly, and loses its way beyond. And so does the loop, with *one* block instead of six.
#
# (The gray line is guessing among the authors that have listeners: where one chain takes in most of the people, few
# others do. The thin stack does little better.)
#
# How can one block be as good as six? Our explanation: the task asks for the *same* step each time, "put my source's
# source in place of my source". A stack has to learn that in each block anew.
#
# ### 4.3 How far does a step reach?
#
# After the first step each line can know its source's source: depth 2. Now there are two ways to go on. *Slowly*: look up
# one more line in each step. Or by *doubling*: ask the person you have just found. That person has also taken a step,
# and knows someone two links further on.
#
# | after step | 1 | 2 | 3 | 4 | 6 |
# | --- | --- | --- | --- | --- | --- |
# | slowly: depth | 2 | 3 | 4 | 5 | 7 |
# | by doubling: depth | 2 | 4 | 8 | 16 | 64 |
#
# Which way does our loop go? Use the freedom that it gives us. It was trained with six steps. Give it fewer, and give
# it more.

# %% jupyter={"source_hidden": true}
predict(
    "more-steps", "A loop trained with six steps runs sixteen. What becomes of its answers?",
    "deep lines come right, and shallow ones stay right", "nothing changes: it has converged",
    "nearly all are lost, the shallow ones included",
)

# %% tags=["recorded"]
def same_steps(model, steps):  # its weights, and the same steps for everybody
    plain = Reader(Loop(64, steps, clock=model.body.clock))
    weights = model.state_dict().items()
    plain.load_state_dict({name: w for name, w in weights if "halting" not in name})
    return plain


def each_number_of_steps(model, most=10):  # (steps, depth): what is right
    return [by_depth(same_steps(model, steps)) for steps in range(1, most + 1)]


# %% [markdown]
# Recorded with three seeds, up to ten steps, and one live look at sixteen:

# %% tags=["nbval-ignore-output"]
show_depths("16 steps", by_depth(same_steps(models["loop"], 16)))

# %% jupyter={"source_hidden": true}
def by_steps(name, title):  # a heatmap of steps and depths
    right = torch.tensor([run["same steps"] for run in recorded[name].values()]).mean(dim=0)  # (steps, depth)
    return plots.heatmap(
        (100 * right).round(), rows=[str(step) for step in range(1, 11)], columns=[str(depth) for depth in range(11)],
        title=title, xlabel="depth of the line", ylabel="steps", numbers=True, size=0.45,
        alt=f"Right answers in percent, ten rows for 1 to 10 steps, eleven columns for depths 0 to 10. With 4 steps "
        f"{100 * right[3, 5]:.0f} at depth 5; with 6 steps {100 * right[5, 5]:.0f} at depth 5 and {100 * right[5, 8]:.0f} at "
        f"depth 8; with 10 steps {100 * right[9, 0]:.0f} at depth 0 and {100 * right[9, 8]:.0f} at depth 8.",
    )


by_steps("loop", "The loop trained with six steps: more steps go deeper, and spoil shallow lines")

# %% jupyter={"source_hidden": true}
predicted("more-steps", "nearly all are lost, the shallow ones included", "At eight to ten, deep lines gain first.")

# %% [markdown]
# Neither way quite. By doubling, four steps would reach depth 16. Here four steps are right for about half of the lines
# at depth 5, and six for about 60% of those at depth 8: about three links of the chain for every two steps.
#
# With more steps, two things happen. With eight or ten, more than it ever had in training, most of the *deep* lines
# come right: the step is the same, so it carries on. But the *shallow* lines, all right at six steps, begin to go
# wrong, and at sixteen nearly everything is lost. Our explanation: nothing in its training asked that an answer, once
# found, should stay. The sixth state is read out, and what would happen later never entered the loss.
#
# So no single number of steps serves every line. Each would have to know for itself.

# %% [markdown]
# ## 5 When to stop: halting by hand
#
# We have a loop that can take any number of steps. What is missing is a rule for when to stop, for each line by itself.
# Graves (2016) gave recurrent nets **adaptive computation time**. Here it works for each position:
#
# 1. In each step a small unit reads the position's state $s$ and gives a **halting probability**
#    $p_t = \sigma(w \cdot s + b)$.
# 2. The probabilities are added up. The first step $N$ at which $p_1 + \dots + p_N$ is greater than a **threshold**,
#    say 0.99, is the position's last. Step $T$ is the last in any case. (Why not a threshold of 1? A sigmoid stays
#    below 1, so no position could stop after a single step.)
# 3. The last step's weight is not $p_N$, but what is left of 1, the **remainder** $R = 1 - (p_1 + \dots + p_{N-1})$.
# 4. The output is the weighted sum of the states: $p_1 H^1 + \dots + p_{N-1} H^{N-1} + R\, H^N$. The weights sum to 1.
#
# Do it with a pencil for three positions, with $T = 4$:
#
# | | $p_1$ | $p_2$ | $p_3$ | $p_4$ | sums | $N$ | $R$ |
# | --- | --- | --- | --- | --- | --- | --- | --- |
# | Iago | 0.995 | | | | **0.995** | 1 | 1 |
# | Juliet | 0.1 | 0.3 | 0.7 | | 0.1, 0.4, **1.1** | 3 | 1 − 0.4 = 0.6 |
# | Portia | 0.1 | 0.2 | 0.3 | 0.2 | 0.1, 0.3, 0.6, 0.8 | 4, the last | 1 − 0.6 = 0.4 |
#
# What comes after a position's last step does not count, so fill in anything:


# %%
def halt(p, threshold=0.99):  # (position, step)
    total = p.cumsum(dim=-1)  # (position, step)
    N = 1 + (total[:, :-1] <= threshold).sum(dim=-1)  # (position,): at least one
    step = torch.arange(1, p.shape[-1] + 1)  # (step,)
    early = torch.where(step < N[:, None], p, 0)  # (position, step)
    R = 1 - early.sum(dim=-1)  # (position,)
    weight = early + torch.where(step == N[:, None], R[:, None], 0)
    return weight, N, R  # (position, step), (position,) twice


p = torch.tensor([[0.995, 0.9, 0.9, 0.9], [0.1, 0.3, 0.7, 0.9], [0.1, 0.2, 0.3, 0.2]],
                 requires_grad=True)
weight, N, R = halt(p)
for name, w, steps, rest in zip(("Iago", "Juliet", "Portia"), weight, N, R):
    print(f"{name:7} weights", [round(each, 3) for each in w.tolist()],
          f"N = {steps}, R = {rest:.2f}")

# %% [markdown]
# Each bar is one position, and its parts are the steps that it is made of:

# %% jupyter={"source_hidden": true}
figures.halting(
    weight.detach(), ("Iago", "Juliet", "Portia"), title="Each position is the weighted mean of its own steps",
    alt="Three bars from 0 to 1. Iago: one part, step 1. Juliet: 0.10, 0.30 and a hatched remainder of 0.60, step 3. "
    "Portia: 0.10, 0.20, 0.30 and a hatched remainder of 0.40, step 4.",
)

# %% [markdown]
# **The price of thinking.** If steps are free, why stop? So the loss gets a **ponder cost**, $\tau\,(N + R)$, the
# mean over positions. $N$ is what we want to be small, but it is a count: move $p$ a little, and it stays. $R$ is
# smooth. Its derivative:

# %%
(N + R).sum().backward()
print(p.grad)

# %% [markdown]
# −1 for every step before the last, 0 for all others. The cost tells the halting unit one thing: *raise the
# probabilities of earlier steps*. $R$ sinks. At some point the sum crosses the threshold one step sooner: $N$ drops by
# 1, $R$ jumps up by the probability of the step that is now the last, and all begins anew. The last step's own $p_N$ gets nothing, because only the *fact* that it crosses counts. And so Iago,
# who stops at once, learns nothing here at all: his one weight is 1, whatever his $p_1$.
#
# **The paper's listing differs.** Its appendix C *blends*: mean = $w\,H^t + (1 - w) \cdot$ mean. Then an early step's
# weight is shrunk again and again. Juliet's, worked out:

# %%
blended = torch.zeros(4)  # (step,)
for t, w in enumerate(weight[1].tolist()):
    blended = (1 - w) * blended + w * F.one_hot(torch.tensor(t), 4)
for name, w in (("blended", blended), ("summed", weight[1])):
    print(f"{name:8}", [round(each, 3) for each in w.tolist()], f"sum {w.sum():.3f}")

# %% [markdown]
# We take Graves's sum, as the text of his paper has it. (The authors' own code also knows it, under the name
# "accumulated".)

# %% [markdown]
# ## 6 A loop that halts
#
# We have the rule on paper. What is missing is a loop that follows it. Probabilities come step by step, so `halt` can't
# see the whole table; an account keeps the sums.

# %% tags=["recorded"]
class Account:  # what each position has spent so far: (batch, n) each
    def __init__(self, shape, threshold):
        self.total, self.N, self.R = torch.zeros(3, *shape)
        self.running = torch.ones(shape, dtype=torch.bool)
        self.threshold = threshold

    def weigh(self, p, at_end):  # (batch, n): the weight of this step's state
        last = self.running & (at_end | (self.total + p > self.threshold))
        weight = torch.where(last, 1 - self.total, p) * self.running
        self.N = self.N + self.running
        self.R = torch.where(last, weight, self.R)
        self.total = self.total + weight
        self.running = self.running & ~last
        return weight


# %% [markdown]
# A position that has halted keeps its last state, as the paper's text has it, and *the others go on reading it*. (In
# the authors' code that state goes on changing; only the position's output is fixed.) When all have halted, the loop
# ends. Two choices are left open, with a flag for each. What does the halting unit read? In the paper's listing it is
# $X^t$, the state *before* the step, signals included; in Graves's paper the state *after* it (`after=True`). And does
# the loop have a clock, the step's signal, or not?

# %% tags=["recorded"]
class Halting(Loop):
    def __init__(self, d_model, steps, after=False, threshold=0.99, **signals):
        super().__init__(d_model, steps, **signals)
        self.after, self.threshold = after, threshold
        self.halting = nn.Linear(d_model, 1)
        nn.init.constant_(self.halting.bias, 1.0)  # σ(1) = 0.73: two steps, at first

    def forward(self, x, mask=None):  # (batch, n, d_model)
        account, self.p, out = Account(x.shape[:2], self.threshold), [], 0
        for t in range(1, self.steps + 1):
            before = self.signaled(x, t)  # (batch, n, d_model)
            after = self.block(before, mask)  # (batch, n, d_model)
            read = after if self.after else before
            self.p.append(self.halting(read)[..., 0].sigmoid())  # (batch, n)
            x = torch.where(account.running[..., None], after, x)  # halted: stays
            weight = account.weigh(self.p[-1], t == self.steps)  # (batch, n)
            out = out + weight[..., None] * after
            if not account.running.any():
                break
        self.N, self.R = account.N, account.R
        return out


# %% [markdown]
# Does it do what `halt` does? Run it with any weights, and hand its probabilities to the pencil-and-paper version:

# %%
torch.manual_seed(0)
body = Halting(d_model, 8)
nn.init.normal_(body.halting.weight, std=0.2)  # so that positions differ
body(torch.randn(4, n, d_model))
p = torch.stack(body.p, dim=-1).flatten(0, 1)  # (batch · n, step)
_, N, R = halt(F.pad(p, (0, 8 - p.shape[1])))
prove_equal(N, body.N.flatten(), what="N by hand and in the loop")
prove_equal(R, body.R.flatten(), what="R by hand and in the loop")

# %% [markdown]
# Train one: at most ten steps, $\tau = 0.01$, no clock, reading the state after the step.

# %% tags=["nbval-ignore-output"]
def halting_body():
    return Halting(64, 10, after=True, clock=False)


models["halting"] = train(halting_body, ponder=0.01, what="a loop that halts")
show_depths("right", by_depth(models["halting"]))
show_depths("steps taken", by_depth(models["halting"], "steps"), "{:4.1f}")

# %% [markdown]
# It thinks longer about deeper lines, though nothing told it how deep a line is. Watch it think. The rumor of section 1
# again: after each step, decode each line's state. Whom does it name?


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def named_after_each_step(model, lines, steps):
    who, source = lines[None, :, 0], lines[None, :, 1]  # (1, n)
    x, named = model.embed(who, source), []
    for _ in range(steps):
        x = model.body.block(x)  # (1, n, d_model)
        found = model.output(x).argmax(dim=-1)[0]  # (n,)
        named.append([people[person] for person in found.tolist()])
    return named


with torch.no_grad():
    models["halting"](lines[None, :, 0], lines[None, :, 1])
taken = models["halting"].body.N[0].long().tolist()  # one number per line
named = named_after_each_step(models["halting"], lines, max(taken))

# %% jupyter={"source_hidden": true}
figures.beliefs(
    named, stories, taken=taken, title="Whom each line believes, step by step; a bar where it halts",
    alt="A table of names: rows are the sixteen lines, chain by chain with their depth, columns are steps. "
    + "; ".join(f"{name} {depth}: " + ", ".join(dict.fromkeys(step[row] for step in named)) + f", halts after {steps}"
                for row, (steps, (name, depth)) in enumerate(zip(
                    taken, [(name, depth) for story in stories for depth, name in enumerate(story)]))),
)

# %% [markdown]
# In each row the belief jumps back along the chain: two links after the first step, about four after the second, and
# then to the author, whose color stays. The bar marks where the line halts.

# %% [markdown]
# ### 6.1 How many are right, and what makes the difference?
#
# Now the comparison, recorded with three seeds. Does halting let the model reach further?

# %%
compare(("wide stack", "loop", "loop, ten steps", "halting"))

# %% jupyter={"source_hidden": true}
drawn({"wide stack": "wide stack", "loop of six steps": "loop", "halting": "halting"}, "Trained to stop, it reaches furthest")

# %% [markdown]
# All were trained on the same chains, to depth 5. The loop that halts reaches further than the others; giving the
# plain loop ten steps in training does not do it. It is tempting to say why: a deep line simply goes on until it is
# done. Test that. Take the trained halting model, drop halting, and run its block the *same five steps for everyone*.

# %% jupyter={"source_hidden": true}
predict(
    "halting-dropped", "Same weights, no halting, five steps for everyone: what becomes of lines of depth 6 to 10?",
    "they fall back to where the plain loop is", "they get a little worse", "they are as good as with halting, or better",
)

# %% tags=["nbval-ignore-output"]
for steps in (4, 5, 6):
    show_depths(f"{steps} for all", by_depth(same_steps(models["halting"], steps)))

# %% [markdown]
# Recorded, three seeds, one to ten steps:

# %% jupyter={"source_hidden": true}
by_steps("halting", "The same block without halting: everyone takes the same steps")

# %% jupyter={"source_hidden": true}
predicted("halting-dropped", "they are as good as with halting, or better", "What counts is how the block was trained.")

# %% [markdown]
# So it isn't the stopping that carries deep lines further. What training with halting has changed is the step itself.
# Look down the columns: after one step the block reaches depth 2, after two depth 4, after three most of depth 7. Its
# reach nearly *doubles* with each step. The plain loop needs six steps for depth 7. Our explanation: the output is a mean
# of all states, so even early states had to be right. (The price is not the reason: trained with $\tau = 0$, the loop
# reaches as far, as section 7 shows.)
#
# What stopping does is protect shallow lines: with six steps for everyone, nearly half of the lines at depth 0 are lost;
# with halting, none. They are no longer in danger of being overthought.

# %% [markdown]
# ### 6.2 The clock, and where the unit looks
#
# We left two choices open. All four combinations, recorded:

# %% jupyter={"source_hidden": true}
for name, run in {"no clock, after": "halting", "no clock, before": "halting, before",
                  "clock, after": "halting, clock, after",
                  "clock, before (the paper)": "halting, clock"}.items():
    right, steps = values(run), values(run, "steps").mean(dim=0)
    deep = [f"{each:.0%}" for each in right[:, 6:].mean(dim=1)]
    print(f"{name:26} steps at depth 0: {steps[0]:.1f}, at 10: {steps[10]:.1f};",
          f"right at 0 to 5 {right[:, :6].mean():.0%}, deeper", *deep)

# %% [markdown]
# With a clock, neither form has learned even depth 5 in 250 batches. Without one, but reading *before* the step, it
# takes about four steps for every line, and stops too early for depths 9 and 10. Only without a clock and reading
# after the step does it think clearly longer about deep lines: all it can look at is whether its state is done. (The
# paper's form is not wrong: in one longer trial, 400 batches, it learned depth 5 to 95%, with four steps for every
# line.)

# %% [markdown]
# ## 7 Break it
#
# ### 7.1 The wrong price for thinking
#
# We have a model and a price. What is missing is a look at other prices. Take the trained model, and go on for 60
# batches at nothing at all, and at a hundred times more.

# %% tags=["nbval-ignore-output"]
for tau in (0.0, 0.01, 1.0):
    changed = train(None, ponder=tau, steps=60, lr=1e-3, start=models["halting"],
                    what=f"τ = {tau}")
    right, taken = by_depth(changed), by_depth(changed, "steps")
    print(f"τ = {tau:4}: steps at depth 0 {taken[0]:.1f}, at 5 {taken[5]:.1f}; right",
          f"at 0 to 5 {sum(right[:6]) / 6:.0%}, at 6 to 10 {sum(right[6:]) / 5:.0%}")

# %% [markdown]
# Free thinking changes little here. At the high price each line gives up steps, and the deep ones lose their answers.
# A price that is too *low* costs no answers, only computation. And from the beginning, recorded, three seeds: a model
# that must pay 1 per step never learns what a second step is good for.

# %% jupyter={"source_hidden": true}
for name in ("halting, free", "halting", "halting, expensive"):
    steps = values(name, "steps")[:, :6].mean()
    shares = [f"{share:.0%}" for share in spread(name)[:6]]
    print(f"{name:18} steps {steps:.1f}; right at depths 0 to 5:", *shares)

# %% [markdown]
# Free thinking takes half a step more, and is right as often.
#
# ### 7.2 No remainder
#
# Take the remainder out of the output: the last step gets its own $p_N$, or nothing at all. What do the weights sum to
# then?

# %% tags=["nbval-ignore-output"]
torch.manual_seed(99)
who, source, begun_by, depth = rumors(500, deepest=n)  # (batch, n) each
body = models["halting"].body
with torch.no_grad():
    models["halting"](who, source)
own = torch.stack(body.p, dim=-1)  # (batch, n, step)
taken = torch.arange(1, own.shape[-1] + 1) <= body.N[..., None]  # (batch, n, step)
sums = {"R": torch.ones_like(body.R), "its own p": (own * taken).sum(dim=-1),
        "nothing": 1 - body.R}
for name, total in sums.items():
    print(f"the last step gets {name:9}: weights sum to",
          f"{total.min():.2f} … {total.max():.2f}, mean {total.mean():.2f}")

# %% [markdown]
# With anything but $R$ the size of the output depends on how long a position has thought, and the layers above can't
# tell a weak state from a short thought. But the worse loss is the gradient. The answer's loss reaches the halting unit
# through the weights; the price reaches it through $R$ alone. Cut either and see what is left:


# %%
def gradient(price):  # of the halting unit's bias
    torch.manual_seed(0)
    model = Reader(halting_body())
    answer = model(who[:64], source[:64]).flatten(0, 1)
    N, R = model.body.N.mean(), model.body.R.mean()
    costs = {"the answer alone": F.cross_entropy(answer, begun_by[:64].flatten()),
             "0.01 (N + R)": 0.01 * (N + R), "0.01 N, without R": 0.01 * N}
    if not costs[price].requires_grad:
        return "none at all"
    (found,) = torch.autograd.grad(costs[price], model.body.halting.bias)
    return f"{found.item():+.4f}"


for price in ("the answer alone", "0.01 (N + R)", "0.01 N, without R"):
    print(f"{price:18} gives the gradient", gradient(price))

# %% [markdown]
# Without $R$ the price would teach no position to stop earlier, however large $\tau$ is: a count has no slope. (The
# sign of the second line is minus: a larger bias is cheaper. That of the first is plus: with a smaller one, the
# answers of this untrained model would be better.)

# %% [markdown]
# ## 8 On a real text, and by the clock
#
# ### 8.1 A reader of Shakespeare
#
# We have seen halting where a text asks for steps. What is missing is ordinary text. A language model of characters, as
# in lesson 10, with our loop instead of the stack: at most six steps, causal, with positions. (A folded cell builds it,
# with a bias that starts it at four steps, and trains it on 300 batches of 64-character windows.)

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
from txlib.attention import causal

alphabet = sorted(set(shakespeare().train))
number = {character: id for id, character in enumerate(alphabet)}


class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(alphabet), d_model)
        self.body = Halting(d_model, 6, after=True, clock=False, positions=True)
        nn.init.constant_(self.body.halting.bias, -1.0)  # σ(−1) = 0.27: four steps
        self.output = nn.Linear(d_model, len(alphabet))

    def forward(self, ids):  # (batch, length)
        return self.output(self.body(self.embedding(ids), causal()))


def encode(text):
    return torch.tensor([number[character] for character in text if character in number])


def windows(ids, size, length=64):
    starts = torch.randint(len(ids) - length, (size,))  # (size,)
    rows = ids[starts[:, None] + torch.arange(length + 1)]  # (size, length + 1)
    return rows[:, :-1], rows[:, 1:]  # read, to predict: (size, length) each


torch.manual_seed(0)
ids, speaker, losses = encode(shakespeare().train), Speaker(), []
optimizer = torch.optim.Adam(speaker.parameters(), lr=4e-3, betas=(0.9, 0.98), fused=True)
for step in progress(range(300), "a loop that reads Shakespeare"):
    optimizer.param_groups[0]["lr"] = 4e-3 * min(1, (step + 1) / 50) * (1 - 0.9 * step / 300)
    read, following = windows(ids, 16)
    loss = F.cross_entropy(speaker(read).flatten(0, 1), following.flatten())
    (loss + 0.01 * (speaker.body.N + speaker.body.R).mean()).backward()
    nn.utils.clip_grad_norm_(speaker.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
expect("Loss, mean of the last 50 steps", sum(losses[-50:]) / 50, 1.8, 2.7)

# %% [markdown]
# Over 200 windows of unseen text: how long does it think at spaces, at line breaks, at the first letters of words, at
# later ones? And does it think longer where the next character is hard to guess?

# %% tags=["nbval-ignore-output"]
torch.manual_seed(1)
read, following = windows(encode(shakespeare().validation), 200)  # (batch, length)
with torch.no_grad():
    scores = speaker(read).transpose(1, 2)  # (batch, character, length)
loss = F.cross_entropy(scores, following, reduction="none")  # (batch, length)
N = speaker.body.N  # (batch, length)
letter = torch.tensor([character.isalpha() for character in alphabet])[read]
first = letter & ~letter.roll(1, dims=1)  # (batch, length): a word's first letter
for name, chosen in {"space": read == number[" "], "line break": read == number["\n"],
                     "first letter": first, "later letter": letter & ~first}.items():
    print(f"{name:13} steps {N[chosen].mean():.2f},",
          f"loss of the next character {loss[chosen].mean():.2f}")
both = torch.stack([N.flatten(), loss.flatten()])  # (2, batch · length)
print(f"correlation of steps and loss: {torch.corrcoef(both)[0, 1]:.2f}")

# %% [markdown]
# At spaces it takes more steps, at letters fewer. Graves (2016) reports the same of his recurrent net on Wikipedia:
# more computation at the spaces between words and the ends of sentences. It is tempting to say "because there the next
# character is hard to guess", and the table seems to agree. But over *all* characters the correlation is practically
# zero. What we see is a habit that goes with the kind of character, not a measure of difficulty. Graves found no large
# gain on text, either.
#
# ### 8.2 What it costs
#
# Halting is often sold as saved computation. Is it? A position that has halted keeps its state, but in our loop (and
# in the library, and in the paper's listing) the block computes it all the same, and the result is thrown away: a
# batch is one tensor. The loop ends when the *last* position of the *last* text has halted. Count, for batches of
# different sizes:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(2)
body = models["halting"].body
per_step = operations(body.block, torch.randn(1, n, 64)) / n
for size in (1, 4, 16, 64, 256):
    who, source, _, _ = rumors(size, deepest=5)  # (size, n) each
    paid = operations(models["halting"], who, source) / (size * n * per_step)
    print(f"batch of {size:3}: a position needs {body.N.mean():.2f} steps,",
          f"the slowest {body.N.max():.0f}; paid per position {paid:.1f}")

# %% [markdown]
# The mean is what the ponder cost sees. The maximum is what the machine does. The larger the batch, the likelier it is
# to hold one slow position, and all wait for it. To save more, one would have to take halted positions *out* of the
# tensor, as lesson 18's `dispatch` does, and yet keep them as keys and values for the others. (The exercise does it.)
#
# By the clock, forward only, a batch of 64: the same model, a loop that must run all ten steps, and the wide stack.

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
def milliseconds(model, repeats=8):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        with torch.no_grad():
            model(who, source)
        times.append(1000 * (time.perf_counter() - start))
    return min(times)


torch.manual_seed(2)
who, source, _, _ = rumors(64, deepest=5)  # (batch, n) each
for name, model in {"halting": models["halting"], "ten steps": Reader(Loop(64, 10)),
                    "wide stack": Reader(Stack(64, 6))}.items():
    print(f"{name:10} {milliseconds(model):5.1f} ms")

# %% [markdown]
# About half of the time of ten steps: the whole batch had halted early, and nothing less would have helped.
#
# Memory in training is saved only in part: a loop of $T$ steps has one block's parameters, gradients and Adam moments,
# but keeps $T$ steps' worth of intermediate values for the backward pass, as a stack does.

# %% [markdown]
# ## 9 The library, and what became of the idea
#
# We have our own loop. What is missing is the library's. Unless told otherwise it takes the paper's side of our two
# choices: with step signals, and with a halting unit that reads the state before the step. `halting_after=True` and
# `step_signals=False` make it ours. It is called `Recurrence`; an encoder–decoder and a language model are made of it.

# %%
from txlib.layers import BlockConfig
from txlib.models.universal import Pondering, Recurrence, UniversalConfig

show_source(Pondering, Recurrence.forward)

# %% [markdown]
# Same weights, same numbers. All weights are shaken with noise first, because untrained ones hide errors (a norm that
# multiplies by 1 can be anywhere).

# %%
def prove_same(after, clock):
    config = UniversalConfig(
        vocab_size=n, block=post_norm, steps=8, halting_threshold=0.99,
        halting_after=after, step_signals=clock)
    library = Recurrence(config)
    ours = Halting(d_model, 8, after=after, clock=clock, positions=True)
    for weight in ours.parameters():
        weight += 0.2 * torch.randn_like(weight)
    ours.halting.bias -= 2.5  # so that positions take more steps than two
    names = {name: name.replace("block.", "layers.0.") for name in ours.state_dict()}
    library.load_state_dict({names[name]: w for name, w in ours.state_dict().items()})
    prove_equal(ours(x), library(x), what=f"after {after}, clock {clock}: both")
    prove_equal(ours.N, library.pondering.steps, what="  steps")
    prove_equal((ours.N + ours.R).mean(), library.pondering.cost, what="  ponder costs")


# %% [markdown]
# Ours and the paper's form:

# %%
torch.manual_seed(0)
post_norm = BlockConfig.of_sizes(d_model, 4, 2 * d_model, norm_first=False,
                                 position="sinusoidal")
x = torch.randn(4, n, d_model)  # (batch, n, d_model)
with torch.no_grad():
    prove_same(after=True, clock=False)
    prove_same(after=False, clock=True)

# %% [markdown]
# Dehghani et al. report that the Universal Transformer beat the Transformer on the bAbI questions, on LAMBADA and on
# copying, reversing and adding at lengths beyond training; on WMT 2014 English–German it gained 0.9 BLEU over a
# Transformer of about equal size, without halting. Their ponder times on bAbI show what ours do: 2.3 steps on average
# where a question needs one supporting fact, 3.1 where it needs two, 3.8 where it needs three.
#
# And as a translator of our own? `benchmarks/translators.py` gave a loop of four steps on each side as many parameters
# as a stack of two blocks on each side has, the same sentences (Multi30k, German to English), and the same two minutes
# of one core. BLEU, three seeds: 26.4 for the loop, 33.4 for the stack. A block with the parameters of two is wider,
# and used twice as often, so the loop took 273 training steps in the time of the stack's 648.
#
# Large models went another way for some years: more parameters, one pass. Parts of the idea lived on. **ALBERT** (Lan
# et al. 2020) shares one layer's weights across all of BERT's layers, for the sake of memory: the depth stays fixed,
# there is no halting. **Looped Transformers** (Saunshi et al. 2025) measure at scale what you have measured here: on
# addition, chains of lookups and arithmetic, $k$ layers looped $L$ times nearly match $kL$ layers of their own, and
# are far better than $k$; for *knowing* things, parameters still count. **Recurrent depth** (Geiping et al. 2025)
# trains a language model of 3.5 billion parameters, on 800 billion tokens: some layers before, a block that is looped,
# some layers after. The number of steps is drawn at random in training, so that any number works when it runs; and the
# embedded input is fed in again at each step. More steps at test time then make it better, mostly at mathematics and
# code. Today's *reasoning* models spend computation at test time in another way: they write more tokens, which one can
# read. A loop thinks in vectors, which one can't. Which of the two will carry further is open.

# %% [markdown]
# ## 10 Quiz
#
# Decide first, then open an answer.
#
# **1. A Universal Transformer has one block of 1 million parameters and takes 6 steps. A stack of six blocks has
# the same width. Which needs more operations for one text?**
#
# <details><summary>A. The stack: six times as many parameters, six times the operations</summary>
#
# Each parameter of the stack is used once per token, each of the loop six times.
# </details>
# <details><summary>B. Neither</summary>
#
# Right. Six times the same matrices, or six matrices once: the products are the same. Only memory differs.
# </details>
# <details><summary>C. The loop, because of halting</summary>
#
# The halting unit is one vector of $d$ weights: next to nothing.
# </details>
#
# **2. $p = 0.2, 0.5, 0.4, 0.9$, the threshold is 0.99, $T = 4$. What are $N$ and $R$?**
#
# <details><summary>A. N = 3, R = 0.3</summary>
#
# Right. The sums are 0.2, 0.7 and 1.1, which is above 0.99. What is left for step 3 is 1 − 0.7.
# </details>
# <details><summary>B. N = 3, R = 0.4</summary>
#
# 0.4 is $p_3$. With it the weights would sum to 1.1.
# </details>
# <details><summary>C. N = 4, R = 0.9</summary>
#
# The sum has crossed the threshold before step 4.
# </details>
#
# **3. Why is the ponder cost $N + R$, and not simply $N$?**
#
# <details><summary>A. So that it is larger</summary>
#
# $\tau$ could do that.
# </details>
# <details><summary>B. N has no gradient</summary>
#
# Right. It is a count. $R$ falls as earlier probabilities rise, until the sum crosses the threshold one step sooner.
# </details>
# <details><summary>C. R counts the steps of other positions</summary>
#
# Each position has an $N$ and an $R$ of its own.
# </details>
#
# **4. Juliet halts at step 2, Portia thinks on to step 5. What does Portia's attention see of Juliet in step 5?**
#
# <details><summary>A. Nothing: Juliet is masked</summary>
#
# Halted positions stay keys and values. Otherwise a position that is quickly sure would be lost to those that need it.
# </details>
# <details><summary>B. Her state after step 2</summary>
#
# Right; in the paper's form with the signals of step 5 added.
# </details>
# <details><summary>C. The weighted mean of her two states</summary>
#
# The mean is the output. What is carried on, and read by others, is the state.
# </details>
#
# **5. A batch of 256 sentences takes 3 steps per position on average. How much computation do you save against ten
# steps?**
#
# <details><summary>A. 70%</summary>
#
# Only if no position waits for another.
# </details>
# <details><summary>B. It depends on the slowest position of the batch</summary>
#
# Right. As long as one is running, the whole tensor is computed.
# </details>
# <details><summary>C. Nothing ever</summary>
#
# If *all* have halted, the loop ends.
# </details>

# %% [markdown]
# ## 11 Summary
#
# - One block, used $T$ times: a stack's operations with a block's parameters. $T$ is no longer part of the weights.
# - $P^t_i$, added before each step, is a sine wave of the position plus one of the step.
# - Adaptive computation: probabilities are added up to a threshold, the remainder makes the weights sum to 1, and
#   $\tau (N + R)$ is the price; $N$ is what we mean, $R$ is what has a slope.
# - On chains, a loop of six steps did what a stack of six blocks did. A loop trained to halt went far beyond both, and
#   beyond the depth it was trained for. Its block does so without halting as well: the training made the difference.
# - Halting itself spared shallow lines steps that would spoil them.
# - A batch pays for its slowest position.
#
# That ends Part II. Again, each lesson had one question:
#
# | | The question | The answer |
# | --- | --- | --- |
# | 10 | What can half a Transformer do? | guess the next token, and so learn from any text: GPT |
# | 11 | How do probabilities become text? | draw from them, reshaped on purpose |
# | 13 | Must writing be so slow? | keep keys and values, share each reading of the weights, round them, guess ahead |
# | 14 | And if a model reads both ways? | hide some tokens and ask for them: BERT |
# | 15 | How does one model serve many tasks? | a small head for each, on a body trained beforehand |
# | 16 | What has changed since GPT-2? | norm, activation, positions, shared keys and values; the wiring stayed |
# | 18 | Must every token use every parameter? | no: a router picks a few experts |
# | 19 | Must every token take every step? | no: one block, again and again, until a position is done |
#
# In Part I a model's parameters, its operations and its depth came as one. The last two lessons took them apart.
#
# **Read** Dehghani et al. 2019, *Universal Transformers*, [arXiv:1807.03819](https://arxiv.org/abs/1807.03819),
# section 2 and appendix C. Graves 2016, *Adaptive Computation Time for Recurrent Neural Networks*,
# [arXiv:1603.08983](https://arxiv.org/abs/1603.08983), section 2. Lan et al. 2020, *ALBERT*,
# [arXiv:1909.11942](https://arxiv.org/abs/1909.11942), section 3. Saunshi et al. 2025, *Reasoning with Latent
# Thoughts*, [arXiv:2502.17416](https://arxiv.org/abs/2502.17416), section 2. Geiping et al. 2025, *Scaling up
# Test-Time Compute with Latent Reasoning*, [arXiv:2502.05171](https://arxiv.org/abs/2502.05171), section 3.
#
# **Do** the exercise [19_universal](../exercises/exercise_19_universal.ipynb). Then go on to
# [21 Vision](21_vision.ipynb), where the tokens are no longer words.
