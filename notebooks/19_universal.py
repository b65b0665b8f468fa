# %% [markdown] lesson={"part": "II Language models", "builds": "one block as a loop, halting for each position, chains deeper than in training"}
# # 19 · The Universal Transformer
#
# **After this lesson you will be able to**
#
# - use one block again and again in place of a stack, and say what that does to parameters and to computation;
# - give each step a signal of its own, beside the one for the position;
# - let every position decide for itself when it has thought enough: halting probabilities, threshold, remainder, ponder
#   cost, first with pencil and paper, then in a model;
# - measure who can follow a chain further than it was trained for: a stack, a loop, or a loop that halts;
# - say when halting saves computation, and when it only looks as if it did.
#
# **You need** lessons 05 and 06. **It takes** about 75 minutes to read and try; all cells together run in about a
# minute on a laptop. Most of that is three small models.

# %% [markdown]
# ## 1 The problem: how deep is a question?
#
# A rumor goes round among sixteen people. Here they are, the speakers who have most to say in the course's plays:

# %% tags=["recorded"]
import copy
import json
import re
import time
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn

from txlib.attention import MultiHeadAttention
from txcourse.lesson import expect, progress, prove_equal, show_source
from txlib.data import shakespeare
from txlib.layers import FeedForward, LayerNorm

torch.set_num_threads(1)                                            # for models this small, more threads only wait
speakers = Counter(re.findall(r"^([A-Z]+):$", shakespeare().train, re.MULTILINE))
people = [name.capitalize() for name, _ in speakers.most_common(16)]
n = len(people)

# %% [markdown]
# In order of how much they say:

# %%
print(", ".join(people))

# %% [markdown]
# Four of them have made up a story, each a different one; everybody else has heard one of the four from one other
# person. Each of the sixteen signs one line: *who*, and *from whom*. (The four name themselves.) The lines are
# shuffled. The question, for every line: **with whom did this story begin?**
#
# The rule that makes such rumors: put the people into a random order, cut it into four chains at random places, and
# let everybody hear from the one before; the first in each chain is its own source. Orders in which a line would be
# deeper than `deepest` are thrown away.


# %% tags=["recorded"]
def rumors(size, deepest, chains=4):
    place, starts = torch.arange(n), torch.zeros(0, n, dtype=torch.bool)
    while len(starts) < size:
        cut = torch.rand(4 * size, n - 1).argsort(dim=-1) < chains - 1                  # (tried, n - 1): three cuts
        start = F.pad(cut, (1, 0), value=True)                      # (tried, n): True = a chain begins here
        depth = place - torch.where(start, place, 0).cummax(dim=1).values               # (tried, n)
        starts = torch.cat([starts, start[depth.amax(dim=1) <= deepest]])
    start = starts[:size]                                           # (size, n)
    begins = torch.where(start, place, 0).cummax(dim=1).values      # (size, n): where the chain begins
    who = torch.rand(size, n).argsort(dim=-1)                       # (size, n): a random order of the people
    source = torch.where(start, who, who.roll(1, dims=1))           # (size, n)
    shuffle = torch.rand(size, n).argsort(dim=-1)                   # (size, n)
    return [each.gather(1, shuffle) for each in (who, source, who.gather(1, begins), place - begins)]


# %% [markdown]
# Eight of the sixteen lines of one rumor. *Depth* is how often the story was passed on until it reached this person: 0
# for whoever made it up. No model is told the depth.

# %%
torch.manual_seed(1)
who, source, begun_by, depth = (each[0].tolist() for each in rumors(1, deepest=n))
for line in range(8):
    a, b, c = (people[each[line]] for each in (who, source, begun_by))
    heard = "made it up" if a == b else f"heard it from {b}"
    print(f"{a:10} {heard:24}   began with {c:10} depth {depth[line]}")

# %% [markdown]
# For depth 1 one look at another line is enough: whom does my source name? Itself, so the story began there. For depth
# 5 the answer to each look is the next question. Some lines need more steps of *thought* than others, in the same text,
# and nobody can tell beforehand how many.
#
# A stack of $L$ blocks takes $L$ steps for every position of every text. If a chain is longer than $L$ blocks can
# follow, no further block comes to help. If it is shorter, all of them compute anyway.

# %% [markdown]
# ## 2 The idea in one picture
#
# Lesson 02 has recurrence in *time*: the same cell, applied to one word after the other. Here is recurrence in *depth*:
# the same block, applied to all words at once, again and again. Dehghani et al. (2019) call it the Universal
# Transformer.

# %%
from txcourse import figures
from txlib import plots

figures.recurrence(
    4, title="Four blocks once, or one block four times",
    alt="Left: a stack of four different blocks. Middle: one block with an arrow from its output back to its input, "
    "times four. Right: the same loop unrolled, four boxes of one colour; to each the signal of its step is added.",
)

# %% [markdown]
# The block is lesson 06's, with the norm after the sum. (Its weights begin as torch makes them. The library's block
# begins, like lesson 06's model, with `xavier_uniform_`, whose weights have two to four times that variance. A loop
# goes through the same matrices again and again, and is sensitive to their size: with Xavier's weights the loop of
# section 4 did not learn to follow a chain of three in any of our three trials.)
#
# What is the difference worth? Count both. A block with $d_{\text{ff}} = 2 d$ has about $4d^2$ parameters in attention
# and $4d^2$ in the feed-forward network. A stack of $T$ has $T$ times as many, a loop of $T$ steps has them once. And
# the operations?


# %% tags=["recorded"]
class Block(nn.Module):
    def __init__(self, d_model, heads=4):
        super().__init__()
        self.self_attention, self.feed_forward = MultiHeadAttention(d_model, heads), FeedForward(d_model, 2 * d_model)
        self.self_attention_norm, self.feed_forward_norm = LayerNorm(d_model), LayerNorm(d_model)

    def forward(self, x, mask=None):                                # (batch, n, d_model)
        x = self.self_attention_norm(x + self.self_attention(x, mask=mask))             # lesson 06: post-norm
        return self.feed_forward_norm(x + self.feed_forward(x))     # (batch, n, d_model)


def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


# %% [markdown]
# torch counts operations while a module runs:

# %%
from torch.utils.flop_counter import FlopCounterMode


def operations(compute, *inputs):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        compute(*inputs)
    return counter.get_total_flops()


d_model, block = 64, Block(64)
x = torch.randn(1, n, d_model)                                      # (batch, n, d_model)
for T in (1, 6, 12):
    blocks = nn.Sequential(*(Block(d_model) for _ in range(T)))
    stack, loop = operations(blocks, x), T * operations(block, x)
    print(f"T = {T:2}: a stack has {parameters(blocks):7,} parameters, {stack:10,} operations with them; "
          f"a loop {parameters(block):6,} and {loop:10,}")

# %% [markdown]
# A loop saves memory for parameters and nothing else: **the operations are the same**. (The counter sees the products
# with weights, $2 \cdot 16 \cdot 8 \cdot 64^2$ per block for our 16 positions. It misses attention's scores and
# averages, 6 % more, for both alike.) It is the reverse of lesson 18, where parameters grew and operations stayed. What
# the loop buys is that $T$ is not built in. It is a number that you choose when the model runs, for each text, perhaps
# for each word.

# %% [markdown]
# ## 3 The equations
#
# $H^0$ are the embedded tokens, one row for each of $n$ positions. Step $t = 1 \dots T$ adds a signal, then applies the
# one block, post-norm as in the original Transformer:
#
# $$X^t = H^{t-1} + P^t \qquad A^t = \text{LayerNorm}\big(X^t + \text{MultiHead}(X^t)\big) \qquad
# H^t = \text{LayerNorm}\big(A^t + \text{Transition}(A^t)\big)$$
#
# *Transition* is the feed-forward network. (The paper has a second kind, separable convolutions.) The signal tells a
# position where it stands *and* which step this is:
#
# $$P^t_{i,2j} = \sin\frac{i}{10000^{2j/d}} + \sin\frac{t}{10000^{2j/d}} \qquad
# P^t_{i,2j+1} = \cos\frac{i}{10000^{2j/d}} + \cos\frac{t}{10000^{2j/d}}$$
#
# Sine and cosine of a pair have the *same* frequency. Some slides print $(2j+1)/d$ for the cosine. Lesson 05, section
# 3, shows what that breaks.
#
# Why a signal for the step? Without it, the block can't tell its third time from its first. And why again and again,
# not only at the start? The state is rewritten in each step; a position that had to carry its own number along would
# have less room for thoughts.


# %% tags=["recorded"]
def waves(position, d_model):
    speed = 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)     # (d_model / 2,)
    angle = torch.as_tensor(position)[..., None] * speed            # (…, d_model / 2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)                  # (…, d_model)


# %% [markdown]
# The half that tells the step, for eight of them:

# %%
steps_signal = waves(torch.arange(1, 9), d_model)                   # (step, d_model)
plots.heatmap(
    steps_signal[:, :32], title="Each step has a signal of its own", xlabel="entry (the first 32 of 64)",
    ylabel="step $t$", rows=[str(t) for t in range(1, 9)], numbers=False, diverging=True, size=0.2, bar="signal",
    alt="Eight rows, one per step. The entries on the left change quickly from row to row, those on the right hardly: "
    "the sine and cosine waves of lesson 05, with the step in place of the position.",
)

# %% [markdown]
# One oddity. Both halves are the same function, and they are added. So the signal of position 3 at step 5 is the signal
# of position 5 at step 3:

# %%
def signal(i, t):
    return waves(i, d_model) + waves(t, d_model)                    # (d_model,)


prove_equal(signal(3, 5), signal(5, 3), what="P at (3, 5) and at (5, 3)")

# %% [markdown]
# It does little harm: in any one step all positions have the same $t$, and so they differ by their $i$ alone. Only a
# model that would compare states of different steps could be misled, and attention never does.

# %% [markdown]
# ## 4 Build it
#
# ### 4.1 The loop
#
# A reader of rumors embeds each line as the sum of two vectors, for *who* and for *from whom*. Then comes a body,
# which is all that will differ, and a score for each of the sixteen people. Two bodies to begin with:


# %% tags=["recorded"]
class Stack(nn.Module):
    def __init__(self, d_model, layers, heads=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block(d_model, heads) for _ in range(layers))

    def forward(self, x):                                           # (batch, n, d_model)
        for block in self.blocks:
            x = block(x)                                            # (batch, n, d_model)
        return x


# %% [markdown]
# The loop has one block, and before each use it may add the two halves of the signal:


# %% tags=["recorded"]
class Loop(nn.Module):
    def __init__(self, d_model, steps, clock=True, positions=False):
        super().__init__()
        self.block, self.steps, self.clock, self.positions = Block(d_model), steps, clock, positions

    def signalled(self, x, t):                                      # (batch, n, d_model): H + P
        i = torch.arange(x.shape[1])                                # (n,)
        x = x + waves(i, x.shape[-1]) if self.positions else x      # (batch, n, d_model)
        return x + waves(t, x.shape[-1]) if self.clock else x       # (batch, n, d_model)

    def forward(self, x):                                           # (batch, n, d_model)
        for t in range(1, self.steps + 1):
            x = self.block(self.signalled(x, t))                    # (batch, n, d_model)
        return x


# %% [markdown]
# What stands before and after the body is the same for all:


# %% tags=["recorded"]
class Reader(nn.Module):
    def __init__(self, body, d_model=64):
        super().__init__()
        self.who, self.source = nn.Embedding(n, d_model), nn.Embedding(n, d_model)
        self.body, self.output = body, nn.Linear(d_model, n)

    def forward(self, who, source):                                 # (batch, n) each
        return self.output(self.body(self.who(who) + self.source(source)))              # (batch, n, person)


# %% [markdown]
# (The lines are shuffled, so their positions mean nothing, and `Loop` adds only the step's half of the signal unless
# told otherwise. `clock=False` leaves out that half, too: then all steps are the very same function.)
#
# Is a loop of $T$ steps really a stack of $T$ blocks that happen to be equal? With the step's signal left out, it must
# be:

# %%
torch.manual_seed(0)
loop, stack = Loop(d_model, 6, clock=False), Stack(d_model, 6)
for block in stack.blocks:
    block.load_state_dict(loop.block.state_dict())
prove_equal(loop(x), stack(x), what="Six steps and six equal blocks")

# %% [markdown]
# ### 4.2 Train it
#
# In training no chain is deeper than 5. In the test a chain may be as long as it likes, so depths run to 12. `ponder`
# and `start` are for later.


# %% tags=["recorded"]
def train(body, d_model=64, ponder=0.0, steps=250, seed=0, lr=4e-3, what="training", start=None):
    torch.manual_seed(seed)
    model = Reader(body(), d_model) if start is None else copy.deepcopy(start)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.98), fused=True)
    for step in progress(range(steps), what):
        optimizer.param_groups[0]["lr"] = lr * min(1, (step + 1) / 50) * (1 - 0.9 * step / steps)
        who, source, begun_by, _ = rumors(64, deepest=5)           # (batch, n) each
        loss = F.cross_entropy(model(who, source).flatten(0, 1), begun_by.flatten())
        if ponder:
            loss = loss + ponder * (model.body.N + model.body.R).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model


# %% [markdown]
# The test counts right answers depth by depth. (`value` is for later, too.)


# %% tags=["recorded"]
@torch.no_grad()
def by_depth(model, value=None, size=600):
    torch.manual_seed(99)
    who, source, begun_by, depth = rumors(size, deepest=n)         # (size, n) each
    right = (model(who, source).argmax(dim=-1) == begun_by).float()                     # (size, n)
    shown = right if value is None else value(model)                # (size, n)
    return [shown[depth == k].mean().item() for k in range(11)]     # deeper ones are too rare to count


# %% [markdown]
# Train it, and count:

# %% tags=["nbval-ignore-output"]
models = {"loop": train(lambda: Loop(64, 6, clock=False), what="a loop of 6 steps")}
print("right answers at depth 0, 1, … 10:", "  ".join(f"{each:.0%}" for each in by_depth(models["loop"])))

# %% [markdown]
# Up to depth 5 it was trained, beyond it was not. One run is an anecdote, though, and a loop alone proves nothing. Its
# rivals:
#
# - *one block*: the loop's parameters, used once;
# - *a thin stack*: six blocks, so narrow ($d = 26$) that together they have the loop's parameters;
# - *a wide stack*: six blocks of the loop's width. The same operations, 5.6 times the parameters.
#
# Four models with three seeds each take a few minutes. We have run them for you: `data/rumors.py` runs the cells of
# this lesson and writes down what comes out.

# %%
from txlib.paths import DATA

recorded = json.loads((DATA / "rumors.json").read_text())


def values(name, what="right"):                                     # (seed, depth)
    return torch.tensor([run[what] for run in recorded[name].values()])


def spread(name, what="right"):                                     # the mean of the seeds, one number per depth
    return values(name, what).mean(dim=0).tolist()


def percent(shares):
    return list(range(len(shares))), [100 * share for share in shares]


rivals = ("one block", "thin stack", "wide stack", "loop")
for name in rivals:
    deep = values(name)[:, 6:].mean(dim=1)                          # (seed,): depths 6 to 10
    print(f"{name:10} {recorded[name]['0']['parameters']:7,} parameters; right at depths 0 to 5 "
          f"{values(name)[:, :6].mean():4.0%}; 6 to 10, each seed", "  ".join(f"{each:.0%}" for each in deep))

# %% [markdown]
# Depth by depth, the mean of the seeds:

# %%
plots.lines(
    {name: percent(spread(name)) for name in rivals},
    title="The loop does with one block what the wide stack does with six",
    xlabel="depth of the line", ylabel="right answers (%)", marker="o", mark=("trained to here", 5),
    alt="Right answers over depths 0 to 10, mean of three seeds. " + "; ".join(
        f"{name}: {100 * spread(name)[5]:.0f} % at depth 5, {100 * spread(name)[9]:.0f} % at depth 9"
        for name in rivals),
)

# %% [markdown]
# Read the figure from the left. (Guessing one of the four sources would be right 25 % of the time.) One block gets as
# far as depth 2. The thin stack has six, and fails all the same: it has the loop's parameters, but spread over six
# blocks, each perhaps too narrow, or too slow to learn in 250 batches. The wide stack does what it was trained for
# nearly perfectly, and loses its way beyond. And so does the loop, with *one* block in place of the six: the three
# seeds of the one overlap with the three of the other at every depth.
#
# (Why do the two that fail rise at the right end? Where one chain takes in most of the people, other sources often have
# no listener at all, and can be ruled out. Guessing among the rest would be right 32 % of the time at depth 3 and 52 %
# at depth 10: nearly the thin stack's curve. And only 40 of the test's 9,600 lines have depth 10.)
#
# How can one block be as good as six? The task asks for the *same* step each time: "put my source's source in place of
# my source". A stack has to learn that in each block anew.
#
# How deep can $t$ steps reach? After the first step everybody knows the source's source: depth 2, as with one block.
# Now there are two ways to go on. Slowly: look up one more line in each step. Then $t$ steps reach depth $t + 1$. Or by
# *doubling*: ask the person whom you have just found. That person has taken a step, too, and knows somebody two places
# further on. So two becomes four, then eight, and $t$ steps reach depth $2^t$. Which way does our loop go?
#
# Use the freedom that it gives us. It was trained with six steps. Give it fewer, and give it more:

# %% tags=["nbval-ignore-output"]
for T in (1, 2, 4, 6, 8, 10, 16):
    models["loop"].body.steps = T
    print(f"{T:2} steps, depth 0, 1, … 10:", "  ".join(f"{each:4.0%}" for each in by_depth(models["loop"])))
models["loop"].body.steps = 6

# %% [markdown]
# Neither way quite. By doubling, four steps would reach depth 16. Here they are right for about half of the lines at
# depth 5, and six steps for about half of those at depth 8: three people in two steps.
#
# With more steps, two things happen. With eight or ten, more than it ever had in training, most of the *deep* lines
# come right: the step is the same, so it carries on. But the *shallow* lines, all right at six steps, begin to go
# wrong, and at sixteen nearly everything is lost. Nothing in its training asked that an answer, once found, should stay
# for good. The sixth state is read out, so at the sixth step the answer stands there, and what happens later is
# nobody's business.
#
# Eight steps come near to serving everybody, in chains of this length. But we had to know the answers to find that out,
# and already at eight the first shallow lines go wrong while deep ones are not yet right. Each line would have to know
# for itself.

# %% [markdown]
# ## 5 When to stop: halting by hand
#
# Graves (2016) gave recurrent nets *adaptive computation time*. Here it works for each position by itself:
#
# 1. In each step a small unit reads the position's state $s$ and gives a **halting probability**
#    $p_t = \sigma(w \cdot s + b)$.
# 2. The probabilities are added up. The first step $N$ at which $p_1 + \dots + p_N$ is greater than a **threshold**,
#    say 0.99, is the position's last. Step $T$ is the last in any case. (Why not a threshold of 1? A sigmoid stays
#    below 1, so nobody could stop after a single step.)
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
# What stands right of a position's last step does not count, so fill in anything:


# %%
def halt(p, threshold=0.99):                                        # (position, step)
    total = p.cumsum(dim=-1)                                        # (position, step)
    N = 1 + (total[:, :-1] <= threshold).sum(dim=-1)                # (position,): the last step is one at any rate
    step = torch.arange(1, p.shape[-1] + 1)                         # (step,)
    R = 1 - torch.where(step < N[:, None], p, 0).sum(dim=-1)        # (position,)
    weight = torch.where(step < N[:, None], p, torch.where(step == N[:, None], R[:, None], 0))
    return weight, N, R                                             # (position, step), (position,) twice


p = torch.tensor([[0.995, 0.9, 0.9, 0.9], [0.1, 0.3, 0.7, 0.9], [0.1, 0.2, 0.3, 0.2]], requires_grad=True)
weight, N, R = halt(p)
for name, each, steps, rest in zip(("Iago", "Juliet", "Portia"), weight.tolist(), N.tolist(), R.tolist(), strict=True):
    print(f"{name:7} weights", "  ".join(f"{w:.2f}" for w in each), f"  N = {steps}, R = {rest:.2f}")

# %% [markdown]
# Each bar is one position, and its parts are the steps that it is made of:

# %%
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
# 1, $R$ jumps up by the probability of the step that is now the last, and all begins anew. A staircase, with a slope on
# each of its steps.
#
# The last step's own $p_N$ gets nothing, for only the *fact* that it crosses counts. And so Iago, who stops at once,
# learns nothing here at all: his one weight is 1, whatever his $p_1$.
#
# **The paper's listing differs.** Its appendix C *blends*: mean = $w\,H^t + (1 - w) \cdot$ mean. Then an early step's
# weight is shrunk again and again. Juliet's, worked out:

# %%
blended = torch.zeros(4)                                            # (step,)
for t, w in enumerate(weight[1].tolist()):
    blended = (1 - w) * blended + w * F.one_hot(torch.tensor(t), 4)                     # (step,)
print("blended:", [round(each, 3) for each in blended.tolist()], f"sum {blended.sum():.3f}")
print("summed: ", [round(each, 3) for each in weight[1].tolist()], f"sum {weight[1].sum():.3f}")

# %% [markdown]
# We take Graves's sum, as the text of his paper has it. (The authors' own code knows it, too, under the name
# "accumulated".)

# %% [markdown]
# ## 6 A loop that halts
#
# Now in a model. Probabilities come step by step, so `halt` can't see the whole table; we keep sums. A position that
# has halted keeps its last state, as the paper's text has it, and *the others go on reading it*. (In the authors' code
# that state goes on changing; only the position's output is fixed.) When all have halted, the loop ends.
#
# Two choices are left open, with a flag for each. What does the halting unit read? In the Universal Transformer's
# listing it is $X^t$, the state *before* the step, signals included; in Graves's paper the state *after* it
# (`after=True`). And does the loop have a clock, the step's signal, or not?


# %% tags=["recorded"]
class Halting(Loop):
    def __init__(self, d_model, steps, after=False, threshold=0.99, **signals):
        super().__init__(d_model, steps, **signals)
        self.after, self.threshold, self.halting = after, threshold, nn.Linear(d_model, 1)
        nn.init.constant_(self.halting.bias, 1.0)                   # σ(1) = 0.73: two steps, at the beginning

    def forward(self, x, mask=None):                                # (batch, n, d_model)
        running = torch.ones(x.shape[:2], dtype=torch.bool)         # (batch, n)
        total, self.N, self.R, out = torch.zeros(3, *x.shape[:2]).unbind() + (torch.zeros_like(x),)
        self.p = []                                                 # one (batch, n) per step, to look at later
        for t in range(1, self.steps + 1):
            before = self.signalled(x, t)                           # (batch, n, d_model)
            after = self.block(before, mask)                        # (batch, n, d_model)
            p = self.halting(after if self.after else before)[..., 0].sigmoid()         # (batch, n)
            last = running & (total + p > self.threshold) if t < self.steps else running
            weight = torch.where(last, 1 - total, p) * running      # (batch, n): 0 for those that have halted
            self.R = torch.where(last, weight, self.R)              # (batch, n)
            self.N, total, out = self.N + running, total + weight, out + weight[..., None] * after
            x = torch.where(running[..., None], after, x)           # (batch, n, d_model): who has halted stays
            running = running & ~last
            self.p.append(p)
            if not running.any():
                break
        return out

# %% [markdown]
# Does it do what `halt` does? Give it any weights, run it, and hand its probabilities to the pencil-and-paper version:

# %%
torch.manual_seed(0)
body = Halting(d_model, 8)
nn.init.normal_(body.halting.weight, std=0.2)                       # so that positions differ
x = torch.randn(4, n, d_model)                                      # (batch, n, d_model)
body(x)
p = torch.stack(body.p, dim=-1).flatten(0, 1)                       # (batch · n, step)
_, N, R = halt(F.pad(p, (0, 8 - p.shape[1])))
prove_equal(N, body.N.flatten(), what="N by hand and in the loop")
prove_equal(R, body.R.flatten(), what="R by hand and in the loop")
print("positions that took 1, 2, 3, … steps:", N.bincount(minlength=9)[1:].tolist())

# %% [markdown]
# Train one, at most ten steps, with $\tau = 0.01$. It takes no clock, and reads the state after the step. (Why these
# two choices? Wait for the figure.)

# %% tags=["nbval-ignore-output"]
models["halting"] = train(lambda: Halting(64, 10, after=True, clock=False), ponder=0.01, what="a loop that halts")
print("right answers at depth 0, 1, … 10:", "  ".join(f"{each:4.0%}" for each in by_depth(models["halting"])))
taken = by_depth(models["halting"], lambda model: model.body.N)
print("steps taken                      :", "  ".join(f"{each:4.1f}" for each in taken))

# %% [markdown]
# It thinks longer about deeper lines, though nobody told it how deep a line is. And its steps reach further: about five
# of them do at depth 10 what took the plain loop eight. One rumor, a bar for each person, chain by chain, each chain
# in the order in which the story went round:


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def one_rumor(seed):
    torch.manual_seed(seed)
    who, source, begun_by, depth = rumors(1, deepest=n)            # (1, n) each
    right = models["halting"](who, source).argmax(dim=-1) == begun_by                   # (1, n)
    order = sorted(range(n), key=lambda line: (begun_by[0, line].item(), depth[0, line].item()))
    names = [people[who[0, line]] + f" {depth[0, line]}" + ("" if right[0, line] else " ✗") for line in order]
    return models["halting"].body.N[0, order].tolist(), names


drawn = one_rumor(1)
figures.ponder(
    *drawn, title="Deep lines are mostly thought about longer",
    alt="A bar per person with the steps taken; after the name the depth. "
    + ", ".join(f"{name}: {steps:.0f}" for steps, name in zip(*drawn, strict=True)),
)

# %% [markdown]
# The bars grow along a chain on the whole, though not at every link. Now the comparison, from the recorded runs. First
# how long each kind of loop thinks:

# %%
kinds = {"with a clock": "halting, clock", "without": "halting"}
taken = {name: spread(run, "steps") for name, run in kinds.items()}
plots.lines(
    {name: (list(range(11)), steps) for name, steps in taken.items()}, xlabel="depth of the line",
    title="Without a clock, deep lines are thought about longer", ylabel="steps taken, mean", marker="o",
    mark=("trained to here", 5), alt="Steps taken over depths 0 to 10, mean of three seeds. " + "; ".join(
        f"{name}: {steps[0]:.1f} at depth 0, {steps[5]:.1f} at depth 5, {steps[10]:.1f} at depth 10"
        for name, steps in taken.items()),
)

# %% [markdown]
# The loop without a clock takes nearly three steps where it might take one, and five where the chain is deep: all that
# it can look at is whether its state is done. The one with a clock, as in the paper's listing, takes between four and
# five for all. It can tell the time, and perhaps "stop at about half past four" is an easier rule to learn than "stop
# when you know". That is a guess; the numbers say only that it hardly tells deep lines from shallow ones.
#
# And how many are right? The wide stack and the loop of six steps are those of section 4.

# %%
compared = {"wide stack": "wide stack", "loop of six steps": "loop", "halting, a clock": "halting, clock",
            "halting": "halting"}
for name, run in compared.items():
    right = values(run)                                             # (seed, depth)
    deep = "  ".join(f"{each:4.0%}" for each in right[:, 6:].mean(dim=1))
    print(f"{name:18} depths 0 to 5 {right[:, :6].mean():4.0%}; 6 to 10, each seed {deep}")

# %% [markdown]
# Depth by depth again. Training ended at the dotted line:

# %%
plots.lines(
    {name: percent(spread(run)) for name, run in compared.items()}, title="Who may stop when it is done gets furthest",
    xlabel="depth of the line", ylabel="right answers (%)", marker="o", mark=("trained to here", 5),
    alt="Right answers over depths 0 to 10, mean of three seeds. " + "; ".join(
        f"{name}: {100 * spread(run)[5]:.0f} % at depth 5, {100 * spread(run)[9]:.0f} % at depth 9"
        for name, run in compared.items()),
)

# %% [markdown]
# Here halting earns its keep. It was trained on the same chains as the others, to depth 5. At depth 9, where the stack
# and the plain loop answer not quite every second line correctly, the loop that halts misses one in eight. A deep line
# simply goes on until it is done, for nearly twice as many steps as a shallow one, and a shallow line is no longer in
# danger of being thought to pieces.
#
# The loop with a clock has not even learned depth 5 in 250 batches. Don't conclude that the paper's form is wrong: in a
# longer trial (400 batches, one seed, Xavier's weights) it learned it to 95 %, and then took four steps for every line,
# shallow or deep. And our two forms differ in two things, the clock *and* where the halting unit looks; these runs do
# not say which of them matters. Try the other two combinations: each is one flag.
#
# ## 7 Break it
#
# ### 7.1 The price of thinking, wrong
#
# Take the trained model, and go on for 60 batches at another price: nothing at all, and a hundred times more.

# %% tags=["nbval-ignore-output"]
for tau in (0.0, 0.01, 1.0):
    changed = train(None, ponder=tau, steps=60, lr=1e-3, start=models["halting"], what=f"τ = {tau}")
    right, taken = by_depth(changed), by_depth(changed, lambda model: model.body.N)
    print(f"τ = {tau:4}: steps at depth 0 {taken[0]:.1f}, at 5 {taken[5]:.1f}; "
          f"right at depths 0 to 5 {sum(right[:6]) / 6:.0%}, 6 to 10 {sum(right[6:]) / 5:.0%}")

# %% [markdown]
# Free thinking changes little here: nothing pulls any more, and it stays nearly where it was. At the high price each
# line gives up steps, and the deep ones lose their answers: they needed them. A price that is too *low* costs no
# answers, only computation (section 10).
#
# And from the beginning, recorded, three seeds: who must pay 1 for each step never learns what a second step is good
# for.

# %%
for name in ("halting", "halting, dear"):
    print(f"{name:14} steps {values(name, 'steps')[:, :6].mean():.1f}; right at depth",
          "  ".join(f"{k}: {share:.0%}" for k, share in enumerate(spread(name)[:6])))

# %% [markdown]
# ### 7.2 No remainder
#
# Take the remainder out of the output: the last step gets its own $p_N$, or nothing at all. What do the weights sum to
# then?


# %% tags=["nbval-ignore-output"]
torch.manual_seed(99)
who, source, begun_by, depth = rumors(500, deepest=n)              # (batch, n) each
body = models["halting"].body
with torch.no_grad():
    models["halting"](who, source)
own = torch.stack(body.p, dim=-1)                                   # (batch, n, step)
at = torch.arange(1, own.shape[-1] + 1) <= body.N[..., None]        # (batch, n, step): True = a step that is taken
sums = {"R": torch.ones_like(body.R), "its own p": (own * at).sum(dim=-1), "nothing": 1 - body.R}
for name, total in sums.items():
    print(f"the last step gets {name:9}: weights sum to {total.min():.2f} … {total.max():.2f}, mean {total.mean():.2f}")

# %% [markdown]
# With anything but $R$ the size of the output depends on how long a position has thought, and the layers above can't
# tell a weak state from a short thought.
#
# But the worse loss is the gradient. The answer's loss reaches the halting unit through the weights; the price reaches
# it through $R$ alone. Cut either and see what is left:


# %%
def gradient(cost):
    torch.manual_seed(0)
    model = Reader(Halting(64, 10, after=True, clock=False))
    answer = F.cross_entropy(model(who[:64], source[:64]).flatten(0, 1), begun_by[:64].flatten())
    loss = cost(answer, model.body.N.mean(), model.body.R.mean())
    found = torch.autograd.grad(loss, model.body.halting.bias, allow_unused=True)[0] if loss.requires_grad else None
    return "none at all" if found is None else f"{found.item():+.4f}"


print("answer only            :", gradient(lambda answer, N, R: answer))
print("price N + R only       :", gradient(lambda answer, N, R: 0.01 * (N + R)))
print("price N only, without R:", gradient(lambda answer, N, R: 0.01 * N))

# %% [markdown]
# Without $R$ the price would teach nobody to stop earlier, however large $\tau$ is: a count has no slope. (The sign of
# the second line is minus: a larger bias is cheaper. That of the first is plus: with a smaller one, the answers of this
# untrained model would be better.)

# %% [markdown]
# ## 8 Open the library
#
# `txlib.models.universal` has the same loop. Unless told otherwise it takes the paper's side of our two choices: with
# step signals, and with a halting unit that reads the state before the step. `halting_after=True` and
# `step_signals=False` make it ours. It is called `Recurrence`; an encoder–decoder and a language model are made of it.

# %%
from txlib.layers import BlockConfig
from txlib.models.universal import Pondering, Recurrence, UniversalConfig

show_source(Pondering, Recurrence.forward)

# %% [markdown]
# Same weights, same numbers. All weights are shaken with noise first, because untrained ones hide errors (a norm that
# multiplies by 1 can stand anywhere).

# %%
torch.manual_seed(0)
block = BlockConfig.of_sizes(d_model, heads=4, d_ff=2 * d_model, norm_first=False, position="sinusoidal")
x = torch.randn(4, n, d_model)                                      # (batch, n, d_model)
for threshold, after, clock in ((None, False, True), (0.99, False, True), (0.99, True, False)):
    library = Recurrence(UniversalConfig(vocab_size=n, block=block, steps=8, halting_threshold=threshold,
                                         halting_after=after, step_signals=clock))
    ours = Loop(d_model, 8, clock=clock, positions=True)
    if threshold is not None:
        ours = Halting(d_model, 8, after=after, clock=clock, positions=True)
    shaken = {name: each + 0.2 * torch.randn_like(each) for name, each in ours.state_dict().items()}
    if threshold is not None:
        shaken["halting.bias"] -= 2.5                               # so that positions take more steps than two
    ours.load_state_dict(shaken)
    library.load_state_dict({name.replace("block.", "layers.0."): each for name, each in shaken.items()})
    with torch.no_grad():
        prove_equal(ours(x), library(x), what=f"threshold {threshold}, after {after}, clock {clock}: both")
    if threshold is not None:
        prove_equal(ours.N, library.pondering.steps, what="  steps")
        prove_equal((ours.N + ours.R).mean(), library.pondering.cost, what="  ponder costs")
        print("    positions that took 1, 2, 3, … steps:", ours.N.long().flatten().bincount(minlength=9)[1:].tolist())

# %% [markdown]
# ## 9 On a real text
#
# What does a loop think about when it reads Shakespeare? A language model of characters, as in lesson 10, with our loop
# in place of the stack: at most six steps, causal, with positions.

# %%
from txlib.attention import causal

text = shakespeare().train
alphabet = sorted(set(text))
number = {character: id for id, character in enumerate(alphabet)}
ids = torch.tensor([number[character] for character in text])       # (characters,)
length = 64


class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(alphabet), d_model)
        self.body = Halting(d_model, 6, after=True, clock=False, positions=True)
        nn.init.constant_(self.body.halting.bias, -1.0)             # σ(−1) = 0.27: four steps, at the beginning
        self.output = nn.Linear(d_model, len(alphabet))

    def forward(self, ids):                                         # (batch, length)
        return self.output(self.body(self.embedding(ids), causal()))                    # (batch, length, character)


def windows(ids, size):
    starts = torch.randint(len(ids) - length, (size,))              # (size,)
    rows = ids[starts[:, None] + torch.arange(length + 1)]          # (size, length + 1)
    return rows[:, :-1], rows[:, 1:]                                # read, to predict: (size, length) each


# %% [markdown]
# Trained for 300 steps, as in lesson 10:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
speaker, losses = Speaker(), []
optimizer = torch.optim.Adam(speaker.parameters(), lr=4e-3, betas=(0.9, 0.98), fused=True)
for step in progress(range(300), "a loop that reads Shakespeare"):
    optimizer.param_groups[0]["lr"] = 4e-3 * min(1, (step + 1) / 50) * (1 - 0.9 * step / 300)
    read, following = windows(ids, 16)                              # (batch, length) each
    loss = F.cross_entropy(speaker(read).flatten(0, 1), following.flatten())
    (loss + 0.01 * (speaker.body.N + speaker.body.R).mean()).backward()
    nn.utils.clip_grad_norm_(speaker.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
expect("Loss, mean of the last 50 steps", sum(losses[-50:]) / 50, 1.8, 2.7)

# %% [markdown]
# A line that it has not read: the beginning of *Twelfth Night*.

# %% tags=["nbval-ignore-output"]
line = "If music be the food of love, play on;"
with torch.no_grad():
    speaker(torch.tensor([[number[character] for character in line]]))
taken = speaker.body.N[0].tolist()                                  # one number per character
figures.ponder(
    taken, list(line), title="Where a small reader of Shakespeare thinks longer",
    alt="A bar per character: " + ", ".join(f"{c!r} {steps:.0f}" for c, steps in zip(line, taken, strict=True)),
)

# %% [markdown]
# One line is one line. Over 200 windows of unseen text: how long does it think at spaces, at line breaks, at the first
# letters of words, at later ones? And is it thinking longer where the next character is hard to guess?

# %% tags=["nbval-ignore-output"]
torch.manual_seed(1)
unseen = torch.tensor([number[c] for c in shakespeare().validation if c in number])     # (characters,)
read, following = windows(unseen, 200)                              # (batch, length) each
with torch.no_grad():
    loss = F.cross_entropy(speaker(read).flatten(0, 1), following.flatten(), reduction="none").view(read.shape)
N = speaker.body.N                                                  # (batch, length)
letter = torch.tensor([character.isalpha() for character in alphabet])[read]            # (batch, length)
first = letter & ~letter.roll(1, dims=1)                            # (batch, length): True = a word's first letter
kinds_of = {"space": read == number[" "], "line break": read == number["\n"], "first letter": first,
            "later letter": letter & ~first}
for name, chosen in kinds_of.items():
    print(f"{name:13} steps {N[chosen].mean():.2f}   loss of the next character {loss[chosen].mean():.2f}")
both = torch.stack([N.flatten(), loss.flatten()])                   # (2, batch · length)
print(f"correlation of the steps with the next character's loss: {torch.corrcoef(both)[0, 1]:.2f}")

# %% [markdown]
# At a space it takes two steps; what it saves, it saves at letters. Graves (2016) reports the same of his recurrent net
# on Wikipedia: more computation at the spaces between words and the ends of sentences. It is tempting to say "because
# there the next character is hard to guess", and our table seems to agree: the loss is largest after spaces and line
# breaks. But over *all* characters the correlation is practically zero. What we have seen is a habit that goes with the
# kind of character, not a measure of difficulty.
#
# And one step or two is not much of a thought. In 300 batches this reader learns which letter follows which, and that
# takes no depth. Graves found no large gain on text, either. A loop shows what it can do where a text asks for steps.
#
# ## 10 What it costs
#
# Halting is often sold as saved computation. Is it? A position that has halted keeps its state, but in our loop (and in
# the library; the paper's listing, too, spares nobody) the block computes it all the same, and the result is thrown
# away: a batch is one tensor. The loop ends when the *last* position of the *last* text has halted. Count, for batches
# of different sizes:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(2)
per_step = operations(lambda x: models["halting"].body.block(x), torch.randn(1, n, 64)) / n
for size in (1, 4, 16, 64, 256):
    who, source, _, _ = rumors(size, deepest=5)                    # (size, n) each
    done = operations(models["halting"], who, source) / (size * n)
    N = models["halting"].body.N
    print(f"batch of {size:3}: a position needs {N.mean():.2f} steps, the slowest {N.max():.0f}; "
          f"operations paid per position {done / per_step:4.1f} steps' worth")

# %% [markdown]
# The mean is what the ponder cost sees. The maximum is what the machine does. The larger the batch, the likelier it is
# to hold one slow position, and all wait for it. To save more, one would have to take halted positions *out* of the
# tensor, as lesson 18's `dispatch` does, and yet keep them as keys and values for the others. (The exercise does it.)
#
# By the clock, forward only, a batch of 64: the same model, the loop forced to run all ten steps, and the wide stack's
# six blocks.

# %% tags=["nbval-ignore-output"]
def milliseconds(compute, repeats=8):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        with torch.no_grad():
            compute()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


who, source, _, _ = rumors(64, deepest=5)                          # (batch, n) each
forced = Reader(Loop(64, 10, clock=False))
wide = Reader(Stack(64, 6))
for name, model in {"halting": models["halting"], "ten steps": forced, "wide stack": wide}.items():
    print(f"{name:10} {milliseconds(lambda model=model: model(who, source)):5.1f} ms")

# %% [markdown]
# Five steps of ten, about half of the time: the whole batch had halted early, and nothing less would have helped.
#
# Memory in training is saved only in part: a loop of $T$ steps has one block's parameters, gradients and Adam moments,
# but keeps $T$ steps' worth of intermediate values for the backward pass, as a stack does.

# %% [markdown]
# ## 11 What became of it
#
# Dehghani et al. report that the Universal Transformer beat the Transformer on the bAbI questions, on LAMBADA and on
# copying, reversing and adding at lengths beyond training; on WMT 2014 English–German it gained 0.9 BLEU over a
# Transformer of about equal size, without halting. Their ponder times on bAbI show what ours do: 2.3 steps on average
# where a question needs one supporting fact, 3.1 where it needs two, 3.8 where it needs three.
#
# And as a translator of our own? `benchmarks/translators.py` gave a loop of four steps on each side as many parameters
# as a stack of two blocks on each side has, the same sentences (Multi30k, German to English), and the same two minutes
# of one core. BLEU, three seeds: 26.4 for the loop, 33.4 for the stack. A block that holds the parameters of two is
# wider, and it is used twice as often, so the loop took 273 training steps in the time of the stack's 648. Equal
# parameters are not equal operations: section 2 said so.
#
# Then for some years large models went another way: more parameters, one pass. Parts of the idea lived on. **ALBERT**
# (Lan et al. 2020) shares one layer's weights across all of BERT's layers, for the sake of memory: the depth stays
# fixed, there is no halting. **Looped Transformers** (Saunshi et al. 2025) measure what you have measured here at
# scale: on addition, chains of lookups and arithmetic, $k$ layers looped $L$ times nearly match $kL$ layers of their
# own, and are far better than $k$; for *knowing* things, parameters still count. **Recurrent depth** (Geiping et al.
# 2025) trains a language model of 3.5 billion parameters, on 800 billion tokens: some layers before, a block that is
# looped, some layers after. The number of steps is drawn at random in training, so that any number works when it
# runs; and the embedded input is fed in again at each step. More steps at test time then make it better, mostly at
# mathematics and code. Today's *reasoning* models spend computation at test time in another way: they write more
# tokens, which one can read. A loop thinks in vectors, which one can't. Which of the two will carry further is open.

# %% [markdown]
# ## 12 Quiz
#
# Decide first, then open an answer.
#
# **1. A Universal Transformer has one block of 1 million parameters and takes 6 steps. Beside it, a stack of six blocks
# of the same width. Who needs more operations for one text?**
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
# Halted positions stay keys and values. Otherwise whoever is quickly sure would be lost to those who need the answer.
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
# <details><summary>A. 70 %</summary>
#
# Only if nobody waits for anybody.
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
# ## 13 Summary
#
# - One block, used $T$ times: a stack's operations with a block's parameters. $T$ is no longer part of the weights.
# - $P^t_i$, added before each step, is a sine wave of the position plus one of the step.
# - Adaptive computation: probabilities are added up to a threshold, the remainder makes the weights sum to 1, and
#   $\tau (N + R)$ is the price; $N$ is what we mean, $R$ is what has a slope.
# - On chains, a loop of six steps did what a stack of six blocks did. One that halts went far beyond both, and beyond
#   the depth it was trained for.
# - What the halting unit gets to see matters: with a clock our loop spent nearly the same time on every line, without
#   one more on the deep ones.
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
