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
# **You need** lessons 05 and 06. **It takes** about 60 minutes to read and try; all cells together run in a little over
# a minute on a laptop. Most of that is four small models.

# %% [markdown]
# ## 1 The problem: how deep is a question?
#
# In a stack, every token of every text goes through the same number of blocks. But some need more thought than others.

# %% tags=["recorded"]
import json
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from txlib.attention import MultiHeadAttention
from txlib.layers import FeedForward, LayerNorm
from txlib.paths import DATA
from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress
from txcourse.lesson import prove_equal, show_source

torch.set_num_threads(1)  # for models this small, more threads only wait

# %% [markdown]
# Here is a question that needs it. A rumor circulates among sixteen people from Shakespeare's plays:

# %% tags=["recorded"]
people = """Hamlet Gloucester Othello Iago Rosalind Desdemona Romeo Macbeth Benedick
Kent Antonio Claudio Orlando Leonato Juliet Portia""".split()
n = len(people)

# %% [markdown]
# Four of them have each made up a story; everyone else has heard one of the four from one other person. Each of the
# sixteen signs one line: *who*, and *from whom*. (The four name themselves.) The lines are shuffled. The question, for
# every line: **with whom did this story begin?**
#
# To make such a rumor, put the people into a random order, cut it into four chains, and let everyone hear from the one
# before. A line's *depth* is how often its story has been passed on: 0 for the author. `deepest` limits it: 7 in the
# example below, 5 in training.

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
# Models get many rumors as tensors. Here is one for you: a model sees the sixteen lines, shuffled, and is not told the
# depths. You see the chains:

# %% tags=["recorded"]
def rumors(size, deepest):  # who, source, begun_by, depth: (size, n) each
    many = torch.tensor([rumor(deepest) for _ in range(size)])  # (size, n, 4)
    return many.unbind(dim=-1)


torch.manual_seed(1)
by_chain = sorted(rumor(deepest=7), key=lambda line: (line[2], line[3]))
lines = torch.tensor(by_chain)  # (n, 4): who, source, begun_by, depth
stories = []  # for each chain, its names
for who, _, _, depth in by_chain:
    if depth == 0:
        stories.append([])
    stories[-1].append(people[who])
for who, source, _, _ in lines[torch.randperm(n)][:4].tolist():
    heard = "made it up" if who == source else f"heard it from {people[source]}"
    print(f"{people[who]} {heard}.")

# %% jupyter={"source_hidden": true}
figures.chains(stories, title="Four stories, and how each was passed on")

# %% [markdown]
# For depth 1 one look at another line is enough: whom does my source name? If itself, the story began there. For depth
# 5 the answer to each look is the next question. Some lines need more steps than others, in the same text, and nothing
# tells beforehand how many. A stack of $L$ blocks takes $L$ steps for all of them: too few for a long chain, and wasted
# ones for a short chain.

# %% [markdown]
# ## 2 The idea
#
# ### 2.1 In one picture
#
# The depth of this task varies, so a model's depth should vary as well. Lesson 02 has recurrence in *time*: the same
# cell, applied to one word after the other. Here is recurrence in **depth**: the same block, applied to all words at
# once, again and again. Dehghani et al. (2019) call it the **Universal Transformer**.

# %% jupyter={"source_hidden": true}
figures.recurrence()

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
# What does the loop save? A block with $d_{\text{ff}} = 2 d$ has about $8d^2$ parameters. A stack of $T$ blocks has $T$
# times as many; a loop of $T$ steps has them once. That is all it saves: either way each token is multiplied by $T$
# blocks' worth of matrices, so **the operations are the same**. (In lesson 18 parameters grew, and operations stayed.)
# What the loop buys is that $T$ is not built in: you choose it when the model runs, for each text, perhaps for each
# word.

# %% [markdown]
# ### 2.2 The equations
#
# A loop needs a way to tell its steps apart. $H^0$ are the embedded tokens, one row for each of $n$ positions. Step
# $t = 1 \dots T$ adds a signal, then applies the one block:
#
# $$X^t = H^{t-1} + P^t \qquad A^t = \text{LayerNorm}\big(X^t + \text{MultiHead}(X^t)\big) \qquad
# H^t = \text{LayerNorm}\big(A^t + \text{Transition}(A^t)\big)$$
#
# *Transition* is the feed-forward network. (The paper has a second kind, separable convolutions.) The signal tells a
# position where it is *and* which step this is. Its first entry is a sine that turns by 1 radian per position, plus one
# that turns by 1 radian per step: position 3 at step 5 gets $\sin 3 + \sin 5 = 0.14 - 0.96 = -0.82$. In general:
#
# $$P^t_{i,2j} = \sin\frac{i}{10000^{2j/d}} + \sin\frac{t}{10000^{2j/d}} \qquad
# P^t_{i,2j+1} = \cos\frac{i}{10000^{2j/d}} + \cos\frac{t}{10000^{2j/d}}$$
#
# Sine and cosine of a pair have the *same* frequency. (Some slides print $(2j+1)/d$ for the Transformer's cosine;
# lesson 05, section 3, shows what that breaks.)

# %% tags=["recorded"]
def waves(position, d_model):
    speed = 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)  # (d_model / 2,)
    angle = torch.as_tensor(position)[..., None] * speed  # (…, d_model / 2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)  # (…, d_model)


# %% [markdown]
# ## 3 Build it: a loop
#
# ### 3.1 The same block, again and again
#
# We compare two bodies: a stack, and a loop that may add the two halves of the signal before each use of its block.
# (`clock` is the half that tells the step.)

# %% tags=["recorded"]
def stack_of(layers, d_model=64, heads=4):
    return nn.Sequential(*(Block(d_model, heads) for _ in range(layers)))


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
# Around either body, a reader of rumors embeds each line as the sum of two vectors, for *who* and for *from whom*, and
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
# The lines are shuffled, so their positions mean nothing, and we leave `positions` off. With `clock=False` all steps
# are the very same function: a loop of six steps computes what a stack of six equal blocks would, with a sixth of the
# parameters.

# %%
print(f"stack {parameters(stack_of(6)):,}, loop {parameters(Loop(64, 6)):,} parameters")

# %% [markdown]
# ### 3.2 Train it
#
# In training no chain is deeper than 5. In the test a chain may be as long as it likes, and we count depths up to 10.
# The training loop is the usual one:

# %% tags=["recorded"]
def fit(model, loss_of, steps=250, what="training"):
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), fused=True)
    for step in progress(range(steps), what):
        factor = min(1, (step + 1) / 50) * (1 - 0.9 * step / steps)
        optimizer.param_groups[0]["lr"] = 4e-3 * factor
        optimizer.zero_grad()
        loss_of(model).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


# %% [markdown]
# In training, 64 rumors make a batch. The test counts right answers depth by depth, or steps taken:

# %% tags=["recorded"]
def rumor_loss(model):
    who, source, begun_by, _ = rumors(64, deepest=5)  # (64, n) each
    return F.cross_entropy(model(who, source).flatten(0, 1), begun_by.flatten())


def train(make, loss_of=rumor_loss, d_model=64, seed=0, **options):
    torch.manual_seed(seed)
    return fit(Reader(make(), d_model), loss_of, **options)


@torch.no_grad()
def by_depth(model, what="right", size=600):
    torch.manual_seed(99)
    who, source, begun_by, depth = rumors(size, deepest=n)  # (size, n) each
    right = model(who, source).argmax(dim=-1) == begun_by  # (size, n)
    shown = right.float() if what == "right" else model.body.N  # (size, n)
    return [shown[depth == k].mean().item() for k in range(11)]


# %% [markdown]
# Train a loop of six steps, and count its right answers:

# %% tags=["nbval-ignore-output"]
def show_depths(name, numbers, form="4.0%"):
    print(f"{name:12} at depth 0, 1, … 10:", *(f"{each:{form}}" for each in numbers))


models = {"loop": train(lambda: Loop(64, 6, clock=False), what="a loop of 6 steps")}
show_depths("right", by_depth(models["loop"]))

# %% [markdown]
# It was trained up to depth 5, and not beyond. Its rivals are
#
# - *one block*: the loop's parameters, used once;
# - *a thin stack*: six blocks, so narrow ($d = 26$) that together they have the loop's parameters;
# - *a wide stack*: six blocks of the loop's width, with the same operations and six blocks' parameters.
#
# `data/rumors.py` ran the cells of this lesson with three seeds each, and recorded the results.

# %%
recorded = json.loads((DATA / "rumors.json").read_text())


def values(name, what="right"):  # (seed, depth), or (seed, step, depth)
    return torch.tensor([run[what] for run in recorded[name].values()])


def mean(name, what="right"):  # of the seeds: (depth,), or (step, depth)
    return values(name, what).mean(dim=0).tolist()


# %% [markdown]
# Compare the mean over the depths of training, and each seed beyond them:

# %%
def compare(*names):
    for name in names:
        right = values(name)
        deep = [f"{each:.0%}" for each in right[:, 6:].mean(dim=1)]
        print(f"{name:21} depths 0 to 5 {right[:, :6].mean():4.0%};",
              "6 to 10, each seed,", *deep)


rivals = ("loop", "wide stack", "thin stack", "one block")
compare(*rivals)

# %% jupyter={"source_hidden": true}
figures.right_by_depth(
    {name: mean(name) for name in rivals}, recorded["guessing"], title="The loop does with one block what the wide stack does with six",
)

# %% [markdown]
# One block gets as far as depth 2. The thin stack has six blocks, and fails all the same. The wide stack does what it
# was trained for nearly perfectly, and loses its way beyond. And so does the loop, with *one* block instead of six.
# (The gray line is a guess among the authors who have listeners: fewer where a long chain has taken up the people.)
#
# How can one block be as good as six? Our explanation: the task asks for the *same* step each time, "replace my source
# with my source's source", and a stack has to learn it anew in each block.
#
# ### 3.3 How far does a step reach?
#
# After the first step each line can know its source's source: depth 2. Now there are two ways to go on. *Slowly*: look
# up one more line in each step. Or by *doubling*: ask the person you have just found. That person has also taken a
# step, and knows someone two links further on.
#
# | after step | 1 | 2 | 3 | 4 | 6 |
# | --- | --- | --- | --- | --- | --- |
# | slowly: depth | 2 | 3 | 4 | 5 | 7 |
# | by doubling: depth | 2 | 4 | 8 | 16 | 64 |
#
# Which way does our loop go? It was trained with six steps. Give it fewer, and give it more.

# %% jupyter={"source_hidden": true}
predict("more-steps", "A loop trained with six steps runs ten. What becomes of its answers?",
        "deep lines come right, and shallow ones stay right", "nothing changes: it has converged", "deep lines come right, and shallow ones go wrong")

# %% [markdown]
# The record has one to ten steps, here as the mean of three seeds:

# %% jupyter={"source_hidden": true}
def by_steps(name, title):
    rows = {str(steps): row for steps, row in enumerate(mean(name, "same steps"), 1)}
    return figures.depth_table(rows, ylabel="steps", title=title)


display(by_steps("loop", "The loop trained with six steps: more steps go deeper, and spoil shallow lines"))
predicted("more-steps", "deep lines come right, and shallow ones go wrong")

# %% [markdown]
# Nearly the slow way. Go down the diagonal: two steps are right for more than 90% of the lines at depth 2, three for as
# many at depth 3, and so on, to eight steps at depth 8. That is one link per step, and even one behind the table. (Some
# lines are faster: four steps are right for about half of those at depth 5, and six for about half at depth 9.)
#
# With eight or ten steps, more than it ever had in training, most of the *deep* lines come right. But the *shallow*
# lines, all right at six steps, go wrong: at ten steps a quarter of the authors no longer name themselves. Our
# explanation: only the sixth state was read out, so nothing in training asked that an answer, once found, should stay.
#
# Eight steps come nearest to serving every line: 97% right at depth 0, 81% at depth 10. But only the test could tell us
# so, and every line pays for all eight. Better if each line knew for itself.

# %% [markdown]
# ## 4 When to stop: halting by hand
#
# When should a line stop? Graves (2016) gave recurrent nets **adaptive computation time**. Here it works for each
# position:
#
# 1. In each step a small unit reads the position's state $s$ and gives a **halting probability**
#    $p_t = \sigma(w \cdot s + b)$.
# 2. The probabilities are added up. The first step $N$ at which $p_1 + \dots + p_N$ is greater than a **threshold**,
#    say 0.99, is the position's last. Step $T$ is the last in any case. (Why not a threshold of 1? A sigmoid stays
#    below 1, so no position could stop after a single step.)
# 3. The last step's weight is not $p_N$, but the rest up to 1, the **remainder** $R = 1 - (p_1 + \dots + p_{N-1})$.
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
    weight.detach(), ("Iago", "Juliet", "Portia"), title="Each position is the weighted mean of its own steps")

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
# 1, $R$ jumps up by the probability of the step that is now the last, and it all starts over. The last step's own $p_N$
# gets no gradient, because only the *fact* that it crosses counts. And so Iago, who stops at once, learns nothing here
# at all: his one weight is 1, whatever his $p_1$, as long as it is above the threshold.
#
# (The listing in the paper's appendix C blends instead, mean = $w\,H^t + (1 - w) \cdot$ mean, so early weights shrink
# with each step. We take Graves's sum, as the paper's text has it.)

# %% [markdown]
# ## 5 A loop that halts
#
# A loop computes its probabilities step by step, so `halt` has no whole table to read. An account keeps the sums:

# %% tags=["recorded"]
class Account:  # what each position has spent so far: (batch, n) each
    def __init__(self, shape, threshold=0.99):
        self.total, self.N, self.R = torch.zeros(3, *shape)
        self.running = torch.ones(shape, dtype=torch.bool)
        self.threshold = threshold

    def weigh(self, p, at_end):  # (batch, n): how much this step's state weighs
        last = self.running & (at_end | (self.total + p > self.threshold))
        weight = torch.where(last, 1 - self.total, p) * self.running
        self.N = self.N + self.running
        self.R = torch.where(last, weight, self.R)
        self.total = self.total + weight
        self.running = self.running & ~last
        return weight[..., None]  # (batch, n, 1)


# %% [markdown]
# Two choices are left open. What does the halting unit read? In the paper's listing it is $X^t$, the state *before* the
# step, signals included; in Graves's paper the state *after* it (`after=True`). And does the loop have a clock, the
# step's signal, or not? A position that has halted keeps its last state, and *the others go on reading it*. When all
# have halted, the loop ends.

# %% tags=["recorded"]
class Halting(Loop):
    def __init__(self, d_model, steps, after=False, account=Account, **signals):
        super().__init__(d_model, steps, **signals)
        self.after, self.account = after, account
        self.halting = nn.Linear(d_model, 1)
        nn.init.constant_(self.halting.bias, 1.0)  # σ(1) = 0.73: two steps, at first

    def forward(self, x, mask=None):  # (batch, n, d_model)
        account = self.account(x.shape[:2])
        self.p, self.states, out = [], [], 0
        while account.running.any():
            t = len(self.p) + 1
            before = self.signaled(x, t)  # (batch, n, d_model)
            after = self.block(before, mask)  # (batch, n, d_model)
            read = after if self.after else before
            self.p.append(self.halting(read)[..., 0].sigmoid())  # (batch, n)
            x = torch.where(account.running[..., None], after, x)  # halted: stays
            self.states.append(x)
            out = out + account.weigh(self.p[-1], at_end=t == self.steps) * after
        self.N, self.R = account.N, account.R
        return out


# %% [markdown]
# Does it do what `halt` does? Run it with any weights, and hand its probabilities to the pencil-and-paper version:

# %%
torch.manual_seed(0)
body = Halting(64, 8)
nn.init.normal_(body.halting.weight, std=0.2)  # so that positions differ
body(torch.randn(4, n, 64))
p = torch.stack(body.p, dim=-1).flatten(0, 1)  # (batch · n, step)
_, N, R = halt(F.pad(p, (0, 8 - p.shape[1])))
prove_equal(N, body.N.flatten(), what="N by hand and in the loop")
prove_equal(R, body.R.flatten(), what="R by hand and in the loop")

# %% [markdown]
# Train one: at most ten steps, $\tau = 0.01$, no clock, reading the state after the step. Its loss includes the price:

# %% tags=["nbval-ignore-output"]
def halting_body():
    return Halting(64, 10, after=True, clock=False)


def with_price(price):
    def loss_of(model):
        return rumor_loss(model) + price * (model.body.N + model.body.R).mean()
    return loss_of


models["halting"] = train(halting_body, with_price(0.01), what="a loop that halts")
show_depths("right", by_depth(models["halting"]))
show_depths("steps taken", by_depth(models["halting"], "steps"), "4.1f")
expect("Right at depth 8", by_depth(models["halting"])[8], 0.8, 1)

# %% [markdown]
# On average it thinks longer about deeper lines, though nothing told it how deep a line is. Watch it think. Take the
# rumor of section 1 again, and decode each line's state after each step. Whom does it name?


# %% tags=["nbval-ignore-output"]
model = models["halting"]
named = []  # step → a name for each line
with torch.no_grad():
    model(lines[None, :, 0], lines[None, :, 1])
    for state in model.body.states:  # (1, n, d_model)
        found = model.output(state)[0].argmax(dim=-1)  # (n,)
        named.append([people[person] for person in found])
taken = model.body.N[0].int().tolist()  # one number per line

# %% jupyter={"source_hidden": true}
figures.beliefs(named, stories, taken=taken, title="Whom each line names, step by step; a bar where it halts")

# %% [markdown]
# In each row the name jumps back along the chain: two links after the first step, three or four after the second, and
# then to the author, whose color stays. The bar marks where the line halts. Its state (pale) then stays as it is, and
# the others go on reading it.

# %% [markdown]
# ### 5.1 How many are right, and what makes the difference?
#
# Does halting let the model reach further? Compare three recorded seeds:

# %% jupyter={"source_hidden": true}
compare("loop", "loop, ten steps", "wide stack", "halting")
eight = values("loop", "same steps")[:, 7]  # (seed, depth): after the eighth step
print(f"{'loop, run for eight':21} depths 0 to 5 {eight[:, :6].mean():4.0%};",
      "6 to 10, each seed,", *(f"{each:.0%}" for each in eight[:, 6:].mean(dim=1)))
figures.right_by_depth(
    {name: mean(name) for name in ("loop", "wide stack", "halting")}
    | {"loop, run for eight": eight.mean(dim=0).tolist()}, recorded["guessing"],
    title="Trained to stop, it reaches furthest",
)

# %% [markdown]
# In the figure, the loop that halts reaches further than the others. Its strongest rival is the last line above the
# figure: the plain loop, trained with six steps and run for eight (section 3.3). It gets about 90% at depths 6 to 10,
# with about twice as many steps, and loses a few shallow lines. Ten steps in *training* do not help the plain loop, in
# the same 250 batches.
#
# It is tempting to say why: a deep line simply goes on until it is done. Test that. Take the trained halting
# model, drop halting, and run its block the *same five steps for every line*.

# %% jupyter={"source_hidden": true}
predict("halting-dropped", "Same weights, no halting, five steps for every line: what becomes of lines of depth 6 to 10?",
        "they fall back to where the plain loop is", "they get a little worse", "they are as good as with halting, or better")

# %% [markdown]
# The record has one to ten steps, as the mean of three seeds:

# %% jupyter={"source_hidden": true}
display(by_steps("halting", "The same block without halting: every line takes the same steps"))
predicted("halting-dropped", "they are as good as with halting, or better", "What counts is how the block was trained.")

# %% [markdown]
# So it isn't the stopping that carries deep lines further. Training with halting has changed the step itself. Look down
# the columns: after one step the block reaches depth 2, after two depth 4, after three most of depth 7. Its reach
# nearly *doubles* with each step. The plain loop needs six steps for depth 7.
#
# Why? Our guess: the output is a mean of all states, so even early ones had to be right. Test it with a plain loop of
# six steps, without halting or price, whose output is the mean of its states (recorded, three seeds). The tables give
# each block the same three steps for every line, then the same six:

# %% jupyter={"source_hidden": true}
three = ("loop", "mean of six steps", "halting")
compare(*three, "mean of six blocks")
figures.depth_table(
    {f"{name}: {steps} steps for all": mean(name, "same steps")[steps - 1] for steps in (3, 6) for name in three},
    title="Where each state counts, the reach nearly doubles",
)

# %% [markdown]
# The guess was right. Where each state counts in the output, the block learns to double, and no halting is needed to
# reach depth 10. (Is the mean enough, without the loop? The last line above the tables is a *stack* of six blocks whose
# output is the mean of its states. It reaches less far than the plain stack. So it takes both: one block for all steps,
# and each step's state in the output.) What does halting itself do? It saves steps, 3 to 5 instead of 6. And it
# protects lines from being overthought: with six steps for all, the halting block loses nearly half of the lines at
# depth 0; with halting, none. (The loop that was trained on the mean of six steps needs no such protection: it keeps
# 99%.)

# %% [markdown]
# ### 5.2 The clock, and where the unit looks (second reading)
#
# *halting* has no clock, and its unit reads after the step. What if it reads before the step? The paper's form has a
# clock as well, and learns more slowly, so it gets 400 batches instead of 250. Both are recorded:

# %%
def show_steps(*names):
    for name in names:
        taken = mean(name, "steps")  # (depth,)
        print(f"{name:21} steps at depth 0 {taken[0]:.1f}, at 5 {taken[5]:.1f},",
              f"at 10 {taken[10]:.1f}")


forms = ("halting", "halting, before", "halting, clock, 400")
show_steps(*forms)
figures.depth_table({name: mean(name) for name in forms},
                    title="If the unit reads before the step, the reach ends at depth 8")

# %% [markdown]
# The two models that read *before* the step take about four steps (3.6 to 4.2) whatever the depth. They are right to
# about depth 8, and from depth 9 on no better than guessing. If the unit reads *after* the step, deep lines get two
# steps more than shallow ones. Our explanation: then it sees whether the state is done. (That the
# others take only four steps cannot be all: with four for every line, the block of *halting* has 75% at depth 10.)

# %% [markdown]
# ## 6 Break it
#
# ### 6.1 The wrong price for thinking
#
# What if the price is wrong? Train the same model at a hundred times the price:

# %% jupyter={"source_hidden": true}
predict("wrong-price", "Thinking costs 1 per step instead of 0.01. What does the model learn?",
        "to halt early, with only shallow lines right", "to halt early, with as many lines right", "nothing at all")

# %% tags=["nbval-ignore-output"]
broken = train(halting_body, with_price(1), what="an expensive loop")
show_depths("right", by_depth(broken))
show_depths("steps taken", by_depth(broken, "steps"), "4.1f")
predicted("wrong-price", "to halt early, with only shallow lines right")

# %% [markdown]
# Compare it with the usual price and with no price at all, three recorded seeds each:

# %%
paid = ("halting, free", "halting", "halting, expensive")
compare(*paid)
show_steps(*paid)

# %% [markdown]
# Free thinking changes little: about half a step more, and as many right answers. A price that is too *low* costs only
# computation. A model that must pay 1 per step never learns what a second step is good for: it knows no more than the
# single block of section 3.
#
# ### 6.2 No remainder
#
# Take the remainder out: the last step gets its own $p_N$. Then Juliet's weights sum to $0.1 + 0.3 + 0.7 = 1.1$ and
# Portia's to 0.8, so the size of the output depends on how long a position has thought. And the price is $N$ alone,
# which has no slope (section 4).


# %% tags=["recorded"]
class NoRemainder(Account):
    def weigh(self, p, at_end):  # (batch, n)
        running = self.running
        super().weigh(p, at_end)
        self.R = torch.zeros_like(self.R)
        return (p * running)[..., None]  # (batch, n, 1)


# %% [markdown]
# Train `Halting` with this account, and look at three recorded seeds as well:

# %% tags=["nbval-ignore-output"]
def body_without_remainder():
    return Halting(64, 10, after=True, clock=False, account=NoRemainder)


broken = train(body_without_remainder, with_price(0.01), what="no remainder")
show_depths("right", by_depth(broken))
show_depths("steps taken", by_depth(broken, "steps"), "4.1f")
compare("no remainder")

# %% [markdown]
# It stops after two to three steps, and does not reliably learn depth 5: the three seeds get 36, 67 and 55% of it. Our
# explanation: with a remainder, a smaller $p$ shifts weight to later states, so the unit can learn to wait for them.
# Without it, a smaller $p$ only makes the output smaller.

# %% [markdown]
# ## 7 In practice
#
# ### 7.1 A reader of Shakespeare (second reading)
#
# Rumors ask for steps. Does ordinary text? `data/rumors.py` has also trained a language model of characters (lesson 10)
# with our loop instead of the stack: at most six steps, causal, with positions, on 300 batches of Shakespeare. It
# starts at four steps. How many does it take on unseen text, at spaces, at line breaks, at the first letters of words,
# at later ones? And does it take more where the next character is hard to guess?

# %%
reads = recorded["Shakespeare"]  # seed → what it found
print("steps (loss of the next character), three seeds")
for kind in ("space", "line break", "first letter", "later letter"):
    pairs = [run[kind] for run in reads.values()]
    print(f"{kind:13}", *(f" {steps:.2f} ({loss:.2f})" for steps, loss in pairs))
print("correlation   ", *(f" {run['correlation']:.2f}" for run in reads.values()))

# %% [markdown]
# Training has brought it from four steps down to two. With the first seed it takes more steps at spaces than at
# letters, as Graves (2016) saw on Wikipedia. It is tempting to say "because after a space the next character is hard to
# guess". But with the second seed the difference is at most 0.05 steps, with the third it points the other way, and
# over all characters the correlation with the loss is close to zero. So the number of steps is no measure of difficulty
# here.
#
# ### 7.2 What it costs
#
# Does halting save computation? In our loop (and in the paper's listing) the block computes halted positions all the
# same, and throws the result away: a batch is one tensor. The loop ends when the *last* position of the *last* text has
# halted. Count, for batches of different sizes:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(2)
body = models["halting"].body
for size in (1, 4, 16, 64, 256):
    who, source, _, _ = rumors(size, deepest=5)  # (size, n) each
    models["halting"](who, source)
    print(f"batch of {size:3}: a position needs {body.N.mean():.2f} steps;",
          f"the block runs {len(body.p)} times for all")

# %% [markdown]
# The mean is what the ponder cost sees. The maximum is what the machine does: one slow position, and all wait for it.
# (The exercise takes halted positions *out* of the tensor, and yet keeps them as keys and values for the others.)
#
# In training, the loop saves memory only in part: the loop has one block's parameters, gradients and Adam moments, but
# keeps $T$ steps' intermediate values for the backward pass, as a stack does.

# %% [markdown]
# ### 7.3 The library, and what became of the idea
#
# The library's loop is called `Recurrence`; an encoder–decoder and a language model are made of it. Unless told
# otherwise it takes the paper's side of our two choices; `halting_after=True` and `step_signals=False` make it ours.
# Give both the same weights, with noise, because untrained ones hide errors (a norm that multiplies by 1 can be
# anywhere):

# %%
from txlib.layers import BlockConfig
from txlib.models.universal import Recurrence, UniversalConfig

torch.manual_seed(0)
ours = Halting(64, 8, after=True, clock=False, positions=True)
with torch.no_grad():
    for weight in ours.parameters():
        weight += 0.2 * torch.randn_like(weight)
    ours.halting.bias -= 2.5  # so that positions take more steps than two
block = BlockConfig.of_sizes(64, 4, 128, norm_first=False, position="sinusoidal")
library = Recurrence(UniversalConfig(
    vocab_size=n, block=block, steps=8, halting_threshold=0.99,
    halting_after=True, step_signals=False))
library.load_state_dict({name.replace("block.", "layers.0."): weight
                         for name, weight in ours.state_dict().items()})

# %% [markdown]
# The states and the ponder costs agree. Then the library's source:

# %%
x = torch.randn(4, n, 64)  # (batch, n, d_model)
with torch.no_grad():
    prove_equal(ours(x), library(x), what="Ours and the library's states")
    cost = (ours.N + ours.R).mean()
    prove_equal(cost, library.pondering.cost, what="Ponder costs")
show_source(Recurrence.forward)

# %% [markdown]
# Dehghani et al. report that the Universal Transformer beat the Transformer on the bAbI questions, on LAMBADA and on
# copying, reversing and adding at lengths beyond training; on WMT 2014 English–German it gained 0.9 BLEU over a
# Transformer of about equal size, without halting. On bAbI it took 2.3 steps on average where a question needs one
# supporting fact, 3.1 where it needs two, 3.8 where it needs three.
#
# And here, as a translator? `benchmarks/translators.py` gave a loop of four steps and a stack of two blocks equally
# many parameters, and the same two minutes of one core (Multi30k, German to English). BLEU, three seeds: 26.4 for the
# loop, 33.4 for the stack, which took 648 training steps in the time of the loop's 273. (Both follow today's
# recipe; a stack with the recipe of 2017 got 24.0.)
#
# Large models went another way: more parameters, one pass. Parts of the idea lived on.
#
# - **ALBERT** (Lan et al. 2020) shares one layer's weights across all of BERT's layers, to save memory. Nothing halts.
# - **Looped Transformers** (Saunshi et al. 2025): on addition, chains of lookups and arithmetic, $k$ layers looped $L$
#   times nearly match $kL$ different layers, and are far better than $k$; for *knowing* things, parameters still
#   count.
# - **Recurrent depth** (Geiping et al. 2025): a language model of 3.5 billion parameters with a loop in the middle, and
#   a random number of steps in training. More steps at test time make it better, mostly at mathematics and code.
#
# Today's *reasoning* models think longer in another way: they write more tokens, which you can read.

# %% [markdown]
# ## 8 Quiz
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
# Each position has its own $N$ and $R$.
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
# %% [markdown]
# ## 9 Summary
#
# - One block, used $T$ times: a stack's operations with a block's parameters. $T$ is no longer part of the weights.
# - $P^t_i$, added before each step, is a sine wave of the position plus one of the step.
# - Adaptive computation: probabilities are added up to a threshold, the remainder makes the weights sum to 1, and
#   $\tau (N + R)$ is the price; $N$ is what we mean, $R$ is what has a slope.
# - On chains, a loop of six steps did what a stack of six blocks did. A loop trained to halt went far beyond both, and
#   beyond the depth it was trained for. So did a loop without halting whose output is the mean of its states. The plain
#   loop nearly did, when run for two steps more than in training.
# - Halting itself saved steps, and spared shallow lines the extra steps that would have spoiled them.
# - A batch pays for its slowest position.
#
# That ends Part II. Again, each lesson had one question:
#
# | | The question | The answer |
# | --- | --- | --- |
# | 10 | What can half a Transformer do? | guess the next token, and so learn from any text: GPT |
# | 11 | How do probabilities become text? | draw from them, reshaped on purpose |
# | 12 | Can a model do a task that it was only told about? | a task is a text to continue; two layers learn to look things up |
# | 13 | Must writing be so slow? | keep keys and values, share each reading of the weights, round them, guess ahead |
# | 14 | And if a model reads both ways? | hide some tokens and ask for them: BERT |
# | 15 | How does one model serve many tasks? | a small head for each, on a body trained beforehand |
# | 16 | What has changed since GPT-2? | norm, activation, positions, shared keys and values; the wiring stayed |
# | 17 | Does our code hold a real model? | yes, once every part is the same: load it, compare, and doubt |
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
# [20 Pixels as tokens](20_pixels.ipynb), where the tokens are no longer words.
