# %% [markdown] lesson={"part": "IV Efficiency", "builds": "where memory goes, predicted and measured; 16 bits with a loss scaler; accumulated batches, checkpointing, compiling, stopping and going on"}
# # 35 · One device
#
# **After this lesson you will be able to**
#
# - say how much memory a training run takes before you start it, and where it goes;
# - train in 16 bits, and say why one 16-bit format needs a *loss scaler* and the other does not;
# - make a large step out of small batches, and trade operations for memory, both without changing a single gradient;
# - stop a run and continue it as if nothing had happened.
#
# **You need** lessons 06, 07, 10 and 34. **It takes** about 60 minutes to read and try; all cells together run in about
# a minute on a laptop.

# %% [markdown]
# ## 1 The problem: it does not fit
#
# We have a GPT that trains in half a minute (lesson 10), and Adam (lesson 07). What keeps you from training a large one
# in the same notebook? Time, of course. But the first thing you would run out of is memory. Each of $N$ parameters
# takes 4 bytes, its gradient 4, and Adam's two running means 8: sixteen bytes, before a single token is read.

# %%
import copy
import json
import shutil
import time
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn

from txlib import plots
from txlib.paths import DATA
from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress
from txcourse.lesson import prove_equal, show_source

torch.set_num_threads(1)

# %% [markdown]
# For four models of lessons 10 and 16:

# %%
from txlib.models.sizes import GPT2, GPT3, LLAMA, count_parameters

sizes = {"GPT-2 small": GPT2["small"], "GPT-2 xl": GPT2["xl"], "Llama 7B": LLAMA["7b"],
         "GPT-3": GPT3["175b"]}
for name, config in sizes.items():
    print(f"{name:11} {16 * count_parameters(config) / 1e9:7,.0f} GB of an H100's 80")

# %% [markdown]
# Lesson 36 uses many devices. This one makes the most of one. Each remedy but the last cuts something into pieces:
#
# | Section | What is cut | What it costs |
# | --- | --- | --- |
# | 3 | each number: 16 bits instead of 32 | precision |
# | 4 | the batch, one piece after another | time |
# | 5 | what is remembered on the way forward | operations |
# | 6 | nothing; fewer journeys to memory | compiling |
#
# None of them *should* change what is learned. That is the claim we check again and again; section 3 shows how 16 bits
# can break it.

# %% [markdown]
# ## 2 Where memory goes
#
# Sixteen bytes per parameter are there before a batch. What does a batch add? Take a linear layer with two weights, $y
# = 3x_1 + 5x_2$, and the input $(2, 7)$. The gradient of the weights is the input, times the gradient of $y$. So the
# numbers 2 and 7 must **wait** in memory until the backward pass comes back to this layer. Such numbers are called
# **activations**. Together:
#
# $$\underbrace{4N}_{\text{weights}} + \underbrace{4N}_{\text{gradients}} + \underbrace{8N}_{\text{Adam's two means}} +
# \underbrace{4 \cdot 16\, d\, L \cdot \text{tokens}}_{\text{activations}} \quad \text{bytes}$$
#
# Where does $16\, d$ come from? Here is the block of lesson 06, in bare torch:


# %%
class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(2))
        self.qkv, self.mix = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):  # (batch, n, d)
        qkv = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (batch, h, n, d_k) each
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).flatten(2))  # (batch, n, d)
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


# %% [markdown]
# And a small GPT made of it. `run` says how a block is called; section 5 will call it in another way.


# %%
class Small(nn.Module):
    def __init__(self, V, d, heads, layers, n):
        super().__init__()
        self.token, self.position = nn.Embedding(V, d), nn.Embedding(n, d)
        for table in (self.token, self.position):
            nn.init.normal_(table.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(d)

    def forward(self, ids, run=lambda block, x: block(x)):  # (batch, n)
        x = self.token(ids) + self.position.weight[: ids.shape[1]]  # (batch, n, d)
        for block in self.blocks:
            x = run(block, x)
        return self.norm(x) @ self.token.weight.T  # (batch, n, V)


# %% [markdown]
# Go through `forward` and count the widths that wait, per token: the inputs of each matrix, of each norm, of the GELU,
# and what attention needs (lesson 34).
#
# | step | keeps | width |
# | --- | --- | --- |
# | first norm | its input | $d$ |
# | `qkv` | its input, the norm's output | $d$ |
# | attention | $q$, $k$, $v$ | $3d$ |
# | `mix` | its input, attention's output | $d$ |
# | second norm | its input | $d$ |
# | `up` | its input | $d$ |
# | GELU | its input | $4d$ |
# | `down` | its input | $4d$ |
#
# $16\,d$ numbers per token and layer. At both ends of the model are a few more: the last norm's input and output, and
# $V$ log-probabilities. (An addition keeps nothing: its gradient needs neither summand.) The data are the plays, letter
# by letter. First the prediction, on paper:

# %%
from txlib.data import shakespeare

texts = shakespeare()
letters = sorted(set(texts.train + texts.validation))
number = {letter: index for index, letter in enumerate(letters)}
text = torch.tensor([number[letter] for letter in texts.train])  # (n,)

d, heads, layers, n, rows, V = 128, 4, 6, 128, 16, len(letters)
torch.manual_seed(0)
gpt = Small(V, d, heads, layers, n)
batch = text[: rows * (n + 1)].view(rows, n + 1)  # (batch, n + 1)
N = sum(weight.numel() for weight in gpt.parameters())
expected = {"weights": 4 * N, "gradients": 4 * N, "optimizer": 8 * N,
            "activations": 4 * rows * n * (16 * d * layers + 2 * d + V)}

# %% [markdown]
# Then the measurement. Torch hands every tensor that has to wait to a function of ours, if we ask, and calls another
# one when it is needed. In between we hold it, and count its bytes. (Weights are among them, and the batch; those we
# have anyway, so they are `known`.)


# %%
class Watch:
    """The bytes that wait for the backward pass, noted whenever they change."""

    def __init__(self, *known):
        self.known = {each.untyped_storage().data_ptr() for each in known}
        self.holders, self.bytes = Counter(), [0]

    def note(self, tensor, step):  # 1: it begins to wait, -1: it is free
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        waited = self.holders[place] > 0
        self.holders[place] += step
        change = (self.holders[place] > 0) - waited
        if change and place not in self.known:
            self.bytes.append(self.bytes[-1] + change * storage.nbytes())


# %% [markdown]
# Each tensor that waits is held by an object, and is free when that object is deleted:


# %%
class Waiting:
    def __init__(self, tensor, watch):
        self.tensor, self.watch = tensor, watch
        watch.note(tensor, 1)

    def __del__(self):
        self.watch.note(self.tensor, -1)


def watching(watch):
    return torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: Waiting(tensor, watch), lambda waiting: waiting.tensor)


def some_windows(rows=16):
    starts = torch.randint(len(text) - 65, (rows, 1))
    return text[starts + torch.arange(65)]  # (rows, 65)


def loss_on(model, batch):
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


# %% [markdown]
# One step of Adam, everything counted:

# %%
optimizer = torch.optim.AdamW(gpt.parameters(), lr=1e-3)
watch = Watch(batch, *gpt.parameters())
with watching(watch):
    loss = loss_on(gpt, batch)
waiting = watch.bytes[-1]
loss.backward()
optimizer.step()
means = [state[name] for state in optimizer.state.values()
         for name in ("exp_avg", "exp_avg_sq")]
gradients = [weight.grad for weight in gpt.parameters()]
groups = {"weights": gpt.parameters(), "gradients": gradients, "optimizer": means}
measured = {name: sum(each.nbytes for each in group) for name, group in groups.items()}
measured["activations"] = waiting
for name, size in measured.items():
    print(f"{name:11} predicted {expected[name] / 1e6:6.2f} MB, is {size / 1e6:6.2f}")

# %% [markdown]
# The first three are exact, the fourth to within 1%. (The rest: each norm keeps a mean and a spread per token,
# attention a number per query and head, the loss its targets.) A model of 5 MB needs more than 120 to learn, and most
# of it depends on the *batch*, not on the model.
#
# ### Open the library
#
# `txlib` counts in the same way before every run, on tensors that have a shape and no content, so that nothing is
# computed:

# %%
from txlib.training.memory import saved_bytes, training_memory

counted = training_memory(gpt, {"ids": batch[:, :-1]})
watch = Watch(batch, *gpt.parameters())
with watching(watch):
    logits = gpt(batch[:, :-1])
counts = torch.tensor([watch.bytes[-1], counted.activations])
prove_equal(counts[0], counts[1], what="Your bytes and the library's")
show_source(saved_bytes)

# %% [markdown]
# Now you can plan a large one: GPT-2 xl has $N$ = 1.56 billion, $d$ = 1,600, $L$ = 48. Take a batch of 16 texts of
# 1,024 tokens, and mind $V$ = 50,257. `width` is the bytes of a number, `kept` how many numbers all blocks together
# keep per token.


# %%
def plan(N, d, L, V, tokens, width=4, kept=None):
    """GB of each part. With 16 bits (section 3) sixteen bytes per parameter stay."""
    blocks = width * (16 * d * L if kept is None else kept) * tokens
    rest = (16 - 2 * width) * N  # the optimizer, with a copy of the weights
    parts = {"weights": width * N, "gradients": width * N, "optimizer": rest,
             "blocks": blocks, "logits": 4 * V * tokens}
    return {name: size / 1e9 for name, size in parts.items()}


xl = {"N": 1_557_611_200, "d": 1600, "L": 48, "V": 50_257}
print({name: f"{size:.1f} GB" for name, size in plan(**xl, tokens=16 * 1024).items()})

# %% [markdown]
# Each of the next three sections adds a bar to this picture:

# %% jupyter={"source_hidden": true}
def show_plans(ways, title):
    totals = "; ".join(f"{name} {sum(parts.values()):.0f} GB" for name, parts in ways.items())
    return figures.memory(ways, ("H100, 80 GB", 80), title=title, alt="Stacked bars of weights, gradients, optimizer, "
                          f"what blocks keep, and logits for GPT-2 xl. {totals}. A dotted line at 80 GB.")


ways = {"32 bits": plan(**xl, tokens=16 * 1024)}
show_plans(ways, "GPT-2 xl, 16 texts: blocks keep most of it")

# %% [markdown]
# ## 3 Sixteen bits
#
# ### 3.1 Two ways to spend them
#
# The plan does not fit. The first remedy is a cheaper number. Half the bits means half the memory and half
# the traffic, and GPUs have units that multiply 16-bit matrices up to 16 times as fast as 32-bit numbers. A
# floating-point number has a sign, an **exponent**, which says how large it is, and digits, the **mantissa**. There are
# two formats of 16 bits, which divide the bits in different ways. Three computations show what can go
# wrong:

# %%
bits = {torch.float32: (8, 23), torch.float16: (5, 10), torch.bfloat16: (8, 7)}
for dtype, (exponent, mantissa) in bits.items():
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps  # with leading zeros in the mantissa
    print(f"{str(dtype):15} exponent {exponent}, mantissa {mantissa:2} bits; largest "
          f"{info.max:.2g}, smallest {least:.1e}, after 1 comes 1 + {info.eps:.1e}")
for dtype in (torch.float16, torch.bfloat16):
    a, b, c, e = (torch.tensor(each, dtype=dtype) for each in (1, 0.002, 300, 1e-4))
    print(f"{str(dtype):15} 1 + 0.002 = {a + b:.4f}   300² = {c * c:8.1f}   "
          f"0.0001² = {e * e:.1e}")

# %% [markdown]
# **float16** is fine-grained but narrow: nothing below $2^{-24} \approx 6 \cdot 10^{-8}$, nothing above 65,504.
# **bfloat16** is coarse but as wide as float32.
#
# ### 3.2 How a GPU computes in 16 bits
#
# The factors of a product have 16 bits, its sum has 32, and the result is rounded to 16 again. Norms, softmax and loss
# stay in 32 bits (`torch.autocast` has the list), and so do the weights themselves: each layer takes a rounded copy.
# This is **mixed precision** (Micikevicius et al. 2018). CPUs are slow at float16, so we compute in 32 bits and *round*
# what each matrix product hands on, forward and backward. (A GPU rounds its factors as well; we leave the weights and
# what norms put out in 32 bits.) A *forward hook* sees what a module puts out, and may replace it:


# %%
class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dtype):
        ctx.dtype = dtype
        return x.to(dtype).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.to(ctx.dtype).to(gradient.dtype), None


def in_16_bits(model, dtype):
    def rounded(module, given, out):
        return Round.apply(out, dtype)

    for module in model.modules():
        if isinstance(module, (nn.Linear, Small)):  # each matrix, and the logits
            module.register_forward_hook(rounded)
    return model


# %% [markdown]
# ### 3.3 Break it: half a million tokens
#
# GPT-2's steps had half a million tokens each (512 texts of 1,024). The loss is the *mean* over all of them, so each
# token's gradient is divided by half a million. We can't compute so many, but we can compute one batch of them: 16
# windows of 64 letters. 512 such batches would make the step, so its loss counts one 512th.
#
# A logit's gradient is $p_i - [i = \text{target}]$: the letter that came is pushed up, all others down, each in
# proportion to its probability. Work it out: a letter has $p_i$ = 1%, divided by 524,288. That is $1.9 \cdot 10^{-8}$.
# Can float16 hold it? And if not, what will a model learn that is only ever told which letters to push *up*?


# %%
def learn(dtype, scale=1.0, parts=512, steps=150):
    torch.manual_seed(0)
    model = in_16_bits(Small(V, 64, 4, 2, 64), dtype)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=2e-3), []
    for _ in progress(range(steps), str(dtype)):
        loss = loss_on(model, some_windows())
        (scale * loss / parts).backward()
        for weight in model.parameters():
            weight.grad.mul_(parts / scale)  # in 32 bits
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model


# %% [markdown]
# 150 steps with the very same batches, in three formats:

# %% jupyter={"source_hidden": true}
predict("sixteen-bits", "In which format does the model learn clearly less than in 32 bits?",
        "float16", "bfloat16", "both", "neither")

# %% tags=["nbval-ignore-output"]
runs, models = {}, {}
for name in ("float32", "bfloat16", "float16"):
    runs[name], models[name] = learn(getattr(torch, name))
last = {name: sum(losses[-10:]) / 10 for name, losses in runs.items()}
print({name: f"{loss:.2f} nats" for name, loss in last.items()})
expect("What float16 loses, in nats", last["float16"] - last["float32"], 0.3, 2)
expect("What bfloat16 loses, in nats", last["bfloat16"] - last["float32"], -0.05, 0.05)

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
plots.lines(
    runs, dashed=["bfloat16"], xlabel="step", ylabel="loss (nats per letter)",
    title="float16 gets stuck; bfloat16 is as good as 32 bits", alt="; ".join(f"{name} ends at {loss:.2f} nats"
    for name, loss in last.items()) + ". float16 leaves the others within the first steps and stays far above them.")

# %% jupyter={"source_hidden": true}
predicted("sixteen-bits", "float16", "The finer of the two.")

# %% [markdown]
# Look at the gradients of the logits, in the model that was trained in 32 bits. What float16 rounds to zero is anything
# up to half of its smallest number:

# %% tags=["nbval-ignore-output"]
windows = some_windows()
logits = models["float32"](windows[:, :-1])  # (batch, n, V)
logits.retain_grad()
(F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()) / 512).backward()
came = F.one_hot(windows[:, 1:], V).bool()  # (batch, n, V)
parts = {"the letter that came": logits.grad[came], "the others": logits.grad[~came]}
lost = {name: (each.half() == 0).float().mean().item() for name, each in parts.items()}
print({name: f"{fraction:.0%} lost" for name, fraction in lost.items()})
expect("Of the others, lost", lost["the others"], 0.7, 1)

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
figures.magnitudes(
    {name: each.tolist() for name, each in parts.items()}, 2**-25, name="zero in float16",
    xlabel="size of a logit's gradient", title="float16 forgets the letters that did not come",
    alt="Two histograms over powers of two. The letter that came lies near two to the minus 20. The other letters "
    f"spread far below the limit of float16, two to the minus 25: {lost['the others']:.0%} are lost.")

# %% [markdown]
# bfloat16 has three binary digits fewer, and the loss does not show it (our explanation: its errors are small and go
# both ways). float16 lost numbers entirely, and always on the same side.
#
# ### 3.4 The cure: scale the loss
#
# Multiply the loss by a large number $S$ before the backward pass. All gradients are $S$ times as large, and hardly any
# falls below the smallest. Divide by $S$ in 32 bits afterwards. With $S = 2^{16}$:

# %% tags=["nbval-ignore-output"]
scaled, _ = learn(torch.float16, scale=2.0**16)
loss = sum(scaled[-10:]) / 10
print(f"float16 with a scaled loss: {loss:.2f} nats, float32 {last['float32']:.2f}")
expect("What is left of the difference, in nats", loss - last["float32"], -0.05, 0.05)

# %% [markdown]
# So what was too small for float16 was the cause: with that cured, the gap is gone. How large may $S$ be? As large as
# it can be without any gradient overflowing, and that changes during training. So it is found by trying: if any
# gradient is infinite or not a number, skip this step and halve $S$; after some good steps, double it.


# %%
class Scaler:
    def __init__(self, scale, patience):
        self.scale, self.patience, self.good = scale, patience, 0

    def step(self, optimizer, weights):
        gradients = [weight.grad for weight in weights]
        if all(gradient.isfinite().all() for gradient in gradients):
            torch._foreach_div_(gradients, self.scale)  # back to their size, in 32 bits
            optimizer.step()
            self.good += 1
            self.scale *= 2 if self.good % self.patience == 0 else 1
        else:
            self.scale, self.good = self.scale / 2, 0  # too large: this step is lost


# %% [markdown]
# Start far too high, and compare with torch's own `GradScaler`, step by step: the same scales, the same weights?


# %%
def scaled_steps(step, scale_of):
    torch.manual_seed(0)
    model, scales = in_16_bits(Small(V, 32, 2, 1, 64), torch.float16), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(30):
        scales.append(scale_of())
        (scales[-1] * loss_on(model, some_windows(4))).backward()
        step(optimizer, [*model.parameters()])
        optimizer.zero_grad()
    return torch.tensor(scales), nn.utils.parameters_to_vector(model.parameters())


# %% [markdown]
# Both from $2^{30}$, with a patience of ten steps:

# %%
ours = Scaler(2.0**30, 10)
theirs = torch.amp.GradScaler("cpu", 2.0**30, growth_factor=2.0, backoff_factor=0.5,
                              growth_interval=10)
theirs.scale(torch.ones(1))  # it is made at its first use


def their_step(optimizer, weights):
    theirs.step(optimizer)
    theirs.update()


scales, weights = scaled_steps(ours.step, lambda: ours.scale)
their_scales, their_weights = scaled_steps(their_step, theirs.get_scale)
print("log2 of the scale:", scales.log2().int().tolist())
prove_equal(scales, their_scales, what="Your scales and torch's")
prove_equal(weights, their_weights, what="The weights after 30 steps")

# %% [markdown]
# The scale falls until no gradient overflows. After ten good steps it doubles, a gradient overflows, and it falls back.
# **bfloat16 needs none of this**: its exponent has 8 bits, like float32's, so what 32 bits can hold does not
# vanish. In training it has largely displaced float16.
#
# ### 3.5 What must stay in 32 bits
#
# Could the weights themselves be bfloat16? A step of Adam changes a weight by at most about the learning rate. Next to
# a weight of 1, bfloat16's next number is 0.8% away. How many weights would not move at all, if they were rounded after
# a step?

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
model = Small(V, 64, 4, 2, 64)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(20):
    before = nn.utils.parameters_to_vector(model.parameters()).detach()
    optimizer.zero_grad()
    loss_on(model, some_windows()).backward()
    optimizer.step()
after = nn.utils.parameters_to_vector(model.parameters()).detach()
start = before.bfloat16().float()  # as if it had always been bfloat16
for part in (1, 0.1, 0.01):
    stuck = ((start + part * (after - before)).bfloat16() == start).float().mean()
    print(f"{part:4} of this step: {stuck:.0%} of all weights would not move")

# %% [markdown]
# And the learning rate falls during training; in the end hardly any would move. So there is a **master copy** in 32
# bits. Count for a GPU that holds weights and gradients in 16 bits: 2 + 2 bytes, 4 for the master copy, 8 for Adam.
# Sixteen again (Rajbhandari et al. 2020, section 3.1). Mixed precision nearly halves *activations* and saves time. (The
# inputs of both norms stay in 32 bits: $4 \cdot 2\,d + 2 \cdot 14\,d = 36\,d$ bytes per token and layer. The picture
# takes half, $32\,d$.) What belongs to the parameters stays.

# %% jupyter={"source_hidden": true}
ways["16 bits (§ 3)"] = plan(**xl, tokens=16 * 1024, width=2)
show_plans(ways, "Sixteen bits halve what blocks keep, not the rest")

# %% [markdown]
# ## 4 A batch that does not fit: accumulate
#
# We have cheaper numbers. What is missing is a way to take larger batches than fit. Take a part, let its gradients add
# up in `.grad`, take the next, and step once. It seems that nothing can go wrong. But suppose that the first part is a
# line of 2 letters with losses 4 and 2, and the second one a line of 4 letters with losses 1, 1, 1, 1. The mean of all
# six is $10 / 6 = 1.67$. The mean of the two means, 3 and 1, is 2. Take eight lines of a play, of different lengths;
# $-100$ marks what is not a letter and does not count:

# %%
lines = [line for line in texts.validation.split("\n")[40:80] if len(line) > 4]
lines = sorted(lines, key=len)[::3][:8]
encoded = [torch.tensor([number[letter] for letter in line]) for line in lines]
padded = nn.utils.rnn.pad_sequence(encoded, padding_value=-100).T  # (batch, n)
print("letters in each line:", [len(line) for line in lines])


def letter_loss(model, rows):  # (rows, n): a sum, and over how many letters
    logits, target = model(rows[:, :-1].clamp(min=0)), rows[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
    return loss, (target >= 0).sum()


# %% [markdown]
# Two halves of four lines, and two ways to put them together. `divide` says by what each part's sum is divided; `own`
# are its letters, `total` all of them:


# %% tags=["nbval-ignore-output"]
def gradient(model, batches, divide):
    model.zero_grad()
    total = sum((rows[:, 1:] >= 0).sum() for rows in batches)
    for rows in batches:
        loss, own = letter_loss(model, rows)
        (loss / divide(own, total)).backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


whole = gradient(model, [padded], lambda own, total: total)
ways_to_divide = {"the mean of two means": lambda own, total: 2 * own,
                  "sums, divided by all letters": lambda own, total: total}
for name, divide in ways_to_divide.items():
    found = gradient(model, padded.split(4), divide)
    wrong = (found - whole).norm() / whole.norm()
    print(f"{name:28} relative error {wrong:7.1e}")

# %% [markdown]
# The mean of the means gives a letter of a short batch more weight than one of a long batch. Widely used code did so
# until 2024 (`huggingface/transformers`, pull request 34191). The right way: **add up sums, divide once by the number
# of all tokens.** The library's step does:

# %%
from txlib.training import training_step

stepped = copy.deepcopy(model)
sgd = torch.optim.SGD(stepped.parameters(), lr=1.0)  # weights change by the gradient
sgd.zero_grad()
training_step(stepped, padded.split(4), letter_loss, sgd)
before, after = (nn.utils.parameters_to_vector(each.parameters())
                 for each in (model, stepped))
prove_equal(before - after, whole, what="The library's step and the whole batch")

# %% [markdown]
# The memory of a part, the gradient of the whole. The price is that parts run one after another.

# %% [markdown]
# ## 5 Forget, and compute again: checkpointing
#
# Accumulation does not help where even one text is too much. FlashAttention (lesson 34) forgets the weights of
# attention and computes them again in the backward pass. Do the same with a whole block: keep its *input* only, $d$
# numbers per token instead of $16\,d$ (Chen et al. 2016). In the backward pass, run it forward once more, and this time
# keep everything, but of this block alone. This is **checkpointing**:


# %%
class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, x):
        ctx.block = block
        ctx.save_for_backward(x)  # all that waits
        return block(x)  # nothing inside is recorded

    @staticmethod
    def backward(ctx, d_out):
        x = ctx.saved_tensors[0].detach().requires_grad_()  # (batch, n, d)
        with torch.enable_grad():
            out = ctx.block(x)  # once more, recorded
        out.backward(d_out)  # adds to the weights' gradients
        return None, x.grad


# %% [markdown]
# Predict: how much waits per token, and how many operations does it take, if forward is 1 and backward 2? (Sizes as in
# section 2.)

# %%
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

torch.manual_seed(0)
deep, ids = Small(V, 128, heads, layers, 128), text[: rows * 128].view(rows, 128)
kinds = {"keep all": lambda block, x: block(x), "yours": Again.apply,
         "torch's": lambda block, x: checkpoint(block, x, use_reentrant=False)}

# %% [markdown]
# Each of the three, watched:

# %%
found, watches = {}, {}
for name, run in kinds.items():
    deep.zero_grad()
    watches[name] = watch = Watch(ids, *deep.parameters())
    with watching(watch), FlopCounterMode(display=False) as counter:
        out = deep(ids, run)
        waiting = watch.bytes[-1] / 1e6
        out.square().mean().backward()
    found[name] = torch.cat([weight.grad.flatten() for weight in deep.parameters()])
    print(f"{name:8} {waiting:5.1f} MB wait after forward; "
          f"{counter.get_total_flops() / 1e9:4.1f} billion operations")
prove_equal(found["yours"], found["keep all"], what="Gradients with and without")
prove_equal(found["yours"], found["torch's"], what="Yours and torch's")

# %% [markdown]
# The whole step, change by change:

# %% jupyter={"source_hidden": true}
peaks = {name: max(watches[name].bytes) / 1e6 for name in ("keep all", "yours")}
plots.lines(
    {name: [size / 1e6 for size in watches[name].bytes] for name in peaks}, xlabel="changes, forward and then backward",
    ylabel="MB that wait", title=f"Checkpointing: at most {peaks['yours']:.0f} MB wait, not {peaks['keep all']:.0f}",
    alt="Bytes that wait during one step. Keep all "
    f"rises to {peaks['keep all']:.0f} MB and falls again, a single mountain. Yours stays low forward, then has six small "
    f"hills, one per block, of at most {peaks['yours']:.0f} MB.")

# %% [markdown]
# The same gradients, a twelfth of the memory after the forward pass, less than a quarter at the peak, and a third more
# operations: 4 instead of 3. On paper the peak is $L + 16$ instead of $16 L$ widths, here 22 instead of 96. (Torch's
# leaves out each block's last product, whose result the backward pass does not need. And with dropout the second run
# must draw the same mask: torch's keeps the state of the random numbers for it, yours does not.) The exercise asks what
# to keep of a very deep stack.

# %% jupyter={"source_hidden": true}
ways["… in 4 parts (§ 4)"] = plan(**xl, tokens=4 * 1024, width=2)
ways["… or checkpointing (§ 5)"] = plan(**xl, tokens=16 * 1024, width=2, kept=1600 * 48 + 16 * 1600)
show_plans(ways, "Four parts, or checkpointing: what belongs to the weights remains")

# %% [markdown]
# What remains are the sixteen bytes per parameter. Lesson 36 divides them among devices. (On one device you can keep
# less of them: Muon has one mean instead of two (lesson 07), Adam's means can be stored in 8 bits (Dettmers et al.
# 2021), and LoRA (lesson 40) trains few numbers, so that only those need gradients and means.)

# %% [markdown]
# ## 6 Fewer journeys: compile
#
# It fits; now it should be fast. Lesson 34 showed that an operation that does little with each number waits for
# memory, not for arithmetic. The GELU of GPT-2 is written with nine such operations, and each reads and writes
# everything. `torch.compile` looks at the whole function first. What it sees can be printed, by giving it a compiler of
# our own that compiles nothing:


# %%
def gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


def look(graph, inputs):
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    print(len(calls), "steps:", ", ".join(node.target.__name__ for node in calls))
    return graph.forward


x = torch.randn(2048, 2048)  # 16 MB
looked_at = torch.compile(gelu, backend=look)
prove_equal(looked_at(x), gelu(x), what="The graph and the function")

# %% [markdown]
# One journey in and one out would do. Torch's own compiler writes such a kernel: in Triton for a GPU, in C++ for a CPU,
# where it needs a C++ compiler. The nine steps read 13 arrays and write 9: 22 journeys become 2. How much faster can it
# be?

# %% tags=["nbval-ignore-output"]
def seconds(compute):
    times = []
    for _ in range(5):
        start = time.process_time()  # the processor's: other programs do not count
        compute()
        times.append(time.process_time() - start)
    return min(times)


if shutil.which("g++") or shutil.which("clang++"):
    torch.compiler.reset()
    fused = torch.compile(gelu)
    prove_equal(fused(x), gelu(x), what="The kernel and the function")
    slow, fast = seconds(lambda: gelu(x)), seconds(lambda: fused(x))
    print(f"{1000 * slow:.1f} ms step by step, {1000 * fast:.1f} ms fused")
else:
    print("No C++ compiler here: there is nothing to compile with.")

# %% [markdown]
# It is not eleven times as fast: the rest is arithmetic, a tanh above all (our explanation). Compiling itself
# takes seconds, and a new shape may need them again: compile what runs a hundred thousand times. Matrix products gain
# little; what is between them gains. `TrainConfig(compile=True)` compiles the loss.
#
# How far this gets on a GPU, recorded with `python benchmarks/gpu.py train`: a step of GPT-2 small, 32 texts of 1,024
# tokens, in bfloat16 and with compiled blocks, against the model of `transformers`, compiled as a whole. (Both have 16
# bits and a compiler: the difference between the two is not what those are worth.)

# %%
recording = json.loads((DATA / "gpu_training.json").read_text())
print(recording["device"], "· torch", recording["torch"], "·", recording["date"])
for unit, row in recording["measured"].items():
    ratio = row["txlib"] / row["transformers"]
    print(f"{unit:8} txlib {row['txlib']:9,.0f}, "
          f"transformers {row['transformers']:9,.0f}: {ratio:.2f} times")
speed = 1e12 * recording["measured"]["TFLOP/s"]["txlib"]
print(f"of the GPU's peak: {speed / recording['peak']:.0%}")

# %% [markdown]
# To find out where such a step loses its time, take a **profile**, a table of which kernel takes how long (`txlib train
# … --profile` prints one). And as in section 2, count the bytes of the largest array first: here the logits, 50,257
# numbers for each of 32,768 tokens. On a GPU the library's loss computes them for 4,096 tokens at a time, so they never
# exist all at once.

# %% [markdown]
# ## 7 Stop, and continue
#
# One day the machine stops in the middle of a run. A **checkpoint** (the same word for another thing) is a file from
# which a run continues. What has to be in it? Weights, surely. Train 20 steps,
# save, train 20 more. Then go back, restore all but one thing, and train the 20 steps again:


# %%
def train_on(model, optimizer, steps=20):
    losses = []
    for _ in range(steps):
        loss = loss_on(model, some_windows())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


def fresh():
    torch.manual_seed(0)
    model = Small(V, 64, 4, 2, 64)
    return model, torch.optim.AdamW(model.parameters(), lr=2e-3)


# %% [markdown]
# The order of the data depends on the state of the random numbers, so that is saved as well:

# %% tags=["nbval-ignore-output"]
model, optimizer = fresh()
train_on(model, optimizer)
saved = copy.deepcopy(  # as in a file
    {"weights": model.state_dict(), "optimizer": optimizer.state_dict(),
     "random numbers": torch.get_rng_state()})
straight = train_on(model, optimizer)

# %% [markdown]
# Each time one thing is left out:

# %% tags=["nbval-ignore-output"]
for left_out in ("nothing", "random numbers", "optimizer", "weights"):
    model, optimizer = fresh()
    if left_out != "weights":
        model.load_state_dict(saved["weights"])
    if left_out != "optimizer":
        optimizer.load_state_dict(saved["optimizer"])
    if left_out != "random numbers":
        torch.set_rng_state(saved["random numbers"])
    off = (train_on(model, optimizer) - straight).abs()
    print(f"left out: {left_out:14}  losses differ by {off.mean():.3f} nats,",
          f"at most {off.max():.3f}", "(bit for bit the same)" if not off.any() else "")

# %% [markdown]
# With everything, the run continues bit for bit. Without random numbers it reads other text (here, text that it has
# read already), without the optimizer's means it takes its first steps blindly. Neither gives an error. (A loss scaler
# and a schedule of learning rates have a state to save as well.) The library's loop saves all of it: `train(…,
# out="runs/mine")`, and after a stop the same with `resume=True` (`--resume` in a shell).

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. A model of 1 billion parameters is trained with Adam in mixed precision. The GPU has 24 GB. What do you expect?**
#
# <details><summary>A. It fits easily: weights take 2 GB</summary>
#
# And gradients 2, the master copy 4, Adam's means 8: sixteen in all.
# </details>
# <details><summary>B. 16 GB are taken before the first token; the batch decides</summary>
#
# Right. That leaves 8 GB for activations. A small batch with accumulation, or checkpointing, makes do with that.
# </details>
# <details><summary>C. It can't fit: 32-bit weights alone take 4 GB per copy</summary>
#
# Four copies of 4 bytes are 16 GB, and 16 < 24.
# </details>
#
# **2. In float16 the loss stops falling after a while. With bfloat16 it does not. Why?**
#
# <details><summary>A. bfloat16 is more precise</summary>
#
# It has 7 bits of mantissa, float16 has 10.
# </details>
# <details><summary>B. Gradients have become too small for float16</summary>
#
# Right. As the model improves, gradients shrink. Scale the loss.
# </details>
# <details><summary>C. float16 overflows</summary>
#
# Then you would see infinities, not a plateau.
# </details>
#
# **3. Checkpointing takes a third more operations. Where do they come from?**
#
# <details><summary>A. The inputs have to be written and read</summary>
#
# That is memory traffic, and little of it.
# </details>
# <details><summary>B. The forward pass runs twice: 1 + 1 + 2 instead of 1 + 2</summary>
#
# Right.
# </details>
#
# **4. A run is continued from its weights alone. What will you see?**
#
# <details><summary>A. An error</summary>
#
# Nothing is missing that a fresh optimizer could not make anew.
# </details>
# <details><summary>B. A loss that differs for a while, and no warning</summary>
#
# Right. Adam starts from zero means, and the data may begin again.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - Training holds 16 bytes per parameter, and $16\,dL$ numbers per token. Both can be counted before a run.
# - 16 bits: float16 is narrow and needs a loss scaler; bfloat16 is coarse and needs none. Weights stay in 32.
# - Accumulation adds up sums, and divides once by all tokens. Checkpointing keeps the inputs of blocks, and pays a
#   third more operations. Neither changes a gradient.
# - Compiling saves journeys to memory. A profile says where the time goes.
# - To continue a run, save weights, optimizer, random numbers and the place in the data.
#
# **Read** Micikevicius et al. 2018, *Mixed Precision Training*, [arXiv:1710.03740](https://arxiv.org/abs/1710.03740),
# section 3. Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost*,
# [arXiv:1604.06174](https://arxiv.org/abs/1604.06174), section 4.
#
# **Do** the exercise [35_one_device](../exercises/exercise_35_one_device.ipynb). Then go on to
# [36 Many devices](36_many_devices.ipynb).
