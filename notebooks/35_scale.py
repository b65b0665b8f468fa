# %% [markdown] lesson={"part": "IV Efficiency", "builds": "where memory goes, 16 bits, checkpointing; four ways to split a model over processes; scaling laws, and what a run costs"}
# # 35 · Training at scale
#
# **After this lesson you will be able to**
#
# - say how much memory a training run takes before you start it, and where it goes;
# - train in 16 bits, and say why one 16-bit format needs a *loss scaler* and the other does not;
# - make a large step out of small batches, and trade operations for memory, both without changing a single gradient;
# - share a model out over several processes in three ways, two of them with sends and receives that you have written
#   yourself, and plan a fourth on paper;
# - fit a scaling law, say how far it can be trusted, and say what a run costs in operations, money and energy.
#
# **You need** lessons 06, 08, 10 and 34. **It takes** about 130 minutes to read and try; after section 6 is a good place
# for a break. All cells together run in a minute and a half on a laptop. A GPU is not needed: two or three processes on
# your processor stand for as many.

# %% [markdown]
# ## 1 The problem: it does not fit
#
# Lesson 10 trained a GPT in half a minute. What keeps you from training GPT-3 in the same notebook? Time, of course:
# $6ND$ operations. But the first thing you would run out of is memory.

# %% tags=["recorded"]
import inspect
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)                               # two processes will share two cores

# %% [markdown]
# What training holds, for four models of lessons 10 and 16:

# %%
from txlib import plots
from txcourse import figures
from txcourse.lesson import expect, progress, prove_equal, show_source
from txlib.devices import default_device
from txlib.paths import DATA
from txlib.models.sizes import GPT2, GPT3, LLAMA, VASWANI, build, count_parameters

sizes = {"GPT-2 small": GPT2["small"], "GPT-2 xl": GPT2["xl"], "Llama 7B": LLAMA["7b"],
         "GPT-3": GPT3["175b"]}
gigabytes = {name: 16 * count_parameters(config) / 1e9 for name, config in sizes.items()}
print({name: f"{size:,.0f} GB" for name, size in gigabytes.items()})

# %% [markdown]
# Sixteen bytes per parameter, before a single token is read (section 2 says why sixteen). An H100 has 80 GB.

# %%
plots.bars(
    gigabytes, format="{:,.0f} GB", log=True, mark=("H100, 80 GB", 80), xlabel="memory (GB)",
    title="Training outgrows a GPU long before GPT-3",
    alt="Bars on a logarithmic scale: "
    + "; ".join(f"{name} {size:,.0f} GB" for name, size in gigabytes.items())
    + ". A dotted line at 80 GB, an H100, is beyond the first two.",
)

# %% [markdown]
# Every remedy in this lesson cuts something into pieces: the numbers, the batch, the depth of what is remembered, or
# the model itself. What each one cuts, and what it pays:
#
# | Section | What is cut | What it costs |
# | --- | --- | --- |
# | 3 | each number: 16 bits instead of 32 | precision |
# | 4 | the batch, one piece after another | time |
# | 5 | what is remembered on the way forward | operations |
# | 7 | the batch, over processes | gradients travel |
# | 8 | weights, gradients, optimizer, over processes | weights travel |
# | 9 | each layer, over processes | activations travel |
# | 10 | the stack of layers, over processes | waiting |
#
# (Section 6 cuts nothing: it saves journeys to memory.) None of them changes what is learned, up to rounding. That is
# the claim we will check, again and again.

# %% [markdown]
# ## 2 Where memory goes
#
# Four things are held while a model learns:
#
# $$\underbrace{4N}_{\text{weights}} + \underbrace{4N}_{\text{gradients}} + \underbrace{8N}_{\text{Adam's two means}} +
# \underbrace{4 \cdot 16\, d\, L \cdot \text{tokens}}_{\text{activations}} \quad \text{bytes}$$
#
# The first three you can check in your head: 4 bytes per number, and Adam keeps a running mean of each gradient and of
# its square. The last needs a model to point at. Here is the block of lesson 06, in bare torch:


# %%
class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(2))
        self.qkv, self.mix = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up_proj, self.down_proj = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):                                          # (batch, n, d)
        qkv = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1))  # (batch, n, 3, h, d_k)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)                       # (batch, h, n, d_k) each
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)      # (batch, h, n, d_k)
        x = x + self.mix(mixed.transpose(1, 2).flatten(2))         # (batch, n, d)
        return x + self.down_proj(F.gelu(self.up_proj(self.norms[1](x))))


# %% [markdown]
# And a small GPT made of it. `run` says how a block is called; section 5 will call it in another way.


# %%
class Small(nn.Module):
    def __init__(self, V, d, heads, layers, n):
        super().__init__()
        self.token, self.place = nn.Embedding(V, d), nn.Embedding(n, d)
        for table in (self.token, self.place):
            nn.init.normal_(table.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(d)

    def forward(self, ids, run=lambda block, x: block(x)):         # (batch, n)
        x = self.token(ids) + self.place.weight[: ids.shape[1]]    # (batch, n, d)
        for block in self.blocks:
            x = run(block, x)
        return self.norm(x) @ self.token.weight.T                  # (batch, n, V)


# %% [markdown]
# Which numbers must wait for the backward pass? Those that a gradient is made of: the inputs of each matrix, of each
# norm, of the GELU, and what attention needs (lesson 34). Go through `forward` and count widths, per token:
#
# | step | keeps | width |
# | --- | --- | --- |
# | first norm | its input | $d$ |
# | `qkv` | its input, the norm's output | $d$ |
# | attention | $q$, $k$, $v$ | $3d$ |
# | `mix` | its input, attention's output | $d$ |
# | second norm | its input | $d$ |
# | `up_proj` | its input | $d$ |
# | GELU | its input | $4d$ |
# | `down_proj` | its input | $4d$ |
#
# $16\,d$ numbers per token and layer. At both ends of the model are a few more: the last norm's input and output, and
# $V$ log-probabilities. (An addition keeps nothing: its gradient needs neither summand.) The data are the plays, letter
# by letter:
# %% tags=["recorded"]
from txlib.data import shakespeare
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig
from txlib.training import TrainConfig, train

texts = shakespeare()
letters = sorted(set(texts.train + texts.validation))
number = {letter: place for place, letter in enumerate(letters)}
ids, unseen = (torch.tensor([number[letter] for letter in text]) for text in texts[:2])  # (n,) each

# %% [markdown]
# First the prediction, on paper:

# %%
d, heads, layers, n, rows, V = 128, 4, 6, 128, 16, len(letters)
torch.manual_seed(0)
model = Small(V, d, heads, layers, n)
batch = ids[: rows * (n + 1)].view(rows, n + 1)                    # (batch, n + 1)
N = sum(weight.numel() for weight in model.parameters())
predicted = {"weights": 4 * N, "gradients": 4 * N, "optimizer": 8 * N,
             "activations": 4 * rows * n * (16 * d * layers + 2 * d + V)}
print({name: f"{size / 1e6:.2f} MB" for name, size in predicted.items()})

# %% [markdown]
# Then the measurement. Torch hands every tensor that it keeps for the way back to a function of ours, if we ask.
# Weights are among them, and the batch itself; those we have anyway.


# %%
def kept(compute, *known):
    """Bytes that wait for the backward pass, without what is known anyway; and the result."""
    found, own = {}, {tensor.untyped_storage().data_ptr() for tensor in known}
    def note(tensor):
        found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = compute()
    return sum(size for place, size in found.items() if place not in own), result


def loss_on(model, batch):
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


# %% [markdown]
# One step of Adam, everything counted:

# %%
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
activations, loss = kept(lambda: loss_on(model, batch), batch, *model.parameters())
loss.backward()
optimizer.step()
state = [value for each in optimizer.state.values() for value in each.values() if value.dim()]
measured = {"weights": sum(weight.nbytes for weight in model.parameters()),
            "gradients": sum(weight.grad.nbytes for weight in model.parameters()),
            "optimizer": sum(value.nbytes for value in state), "activations": activations}
for name, size in measured.items():
    print(f"{name:11} predicted {predicted[name] / 1e6:7.2f} MB, measured {size / 1e6:7.2f} MB")

# %% [markdown]
# The first three are exact, the fourth to within 1 %. (The rest: each norm keeps a mean and a spread per token,
# attention a number per query and head, the loss its targets.) A model of 5 MB needs more than
# 120 to learn, and most of it depends on the *batch*, not on the model.
#
# ### Open the library
#
# `txlib` does the same before every run, on tensors that have a shape and no content, so that nothing is computed:

# %%
from txlib.training.memory import saved_bytes, training_memory

theirs = training_memory(model, {"ids": batch[:, :-1]})
print(theirs)
mine, _ = kept(lambda: model(batch[:, :-1]), batch, *model.parameters())
both = torch.tensor([float(mine), float(theirs.activations)])
prove_equal(both[0], both[1], what="Yours and the library's bytes")
show_source(saved_bytes)

# %% [markdown]
# Now you can plan GPT-2 small: $N$ = 124 million, $d$ = 768, $L$ = 12, and a batch of 8 texts of 1,024 tokens. Work it
# out before you look: what are its two largest parts? (Mind $V$ = 50,257.)

# %%
def plan(N, d, L, V, tokens):
    return {"weights": 4 * N, "gradients": 4 * N, "optimizer": 8 * N,
            "blocks": 4 * 16 * d * L * tokens, "logits": 4 * V * tokens}


small = plan(124_439_808, 768, 12, 50_257, 8 * 1024)
total = sum(small.values())
print({name: f"{size / 1e9:.2f} GB" for name, size in small.items()})
print(f"in all {total / 1e9:.1f} GB")

# %% [markdown]
# And the library, without dropout, and with GPT-2's:

# %%
from dataclasses import replace

text = torch.zeros(8, 1024, dtype=torch.long)                      # (batch, n)
for dropout in (0.0, 0.1):
    block = GPT2["small"].block.replace(dropout=dropout, attention_dropout=dropout)
    gpt2 = build(replace(GPT2["small"], block=block))
    counted = training_memory(gpt2, {"input_ids": text, "labels": text}).total
    print(f"the library counts {counted / 1e9:.1f} GB with dropout {dropout}")
    if not dropout:
        expect("Yours / the library's", total / counted, 0.95, 1.05)

# %% [markdown]
# What the blocks keep is the largest part, then come the logits. And look what dropout does. It acts on the *weights*
# of attention too, and torch's fused kernel for CPUs knows no dropout: the weights are written out, $n^2$ per head, and
# kept with their masks. (A GPU's kernel keeps a seed only, and draws the mask again.)

# %% [markdown]
# ## 3 Sixteen bits
#
# ### 3.1 Two ways to spend them
#
# Half the bits means half the memory and half the traffic; and GPUs have units that multiply 16-bit matrices up to 16
# times as fast as 32-bit numbers. A floating-point number has a sign, an *exponent*, which says how large it is, and
# digits, the *mantissa*. There are two formats of 16 bits, and they divide the bits in different ways:

# %%
print("             bits: exponent mantissa     largest   smallest  next after 1")
bits = {torch.float32: (8, 23), torch.float16: (5, 10), torch.bfloat16: (8, 7)}
for dtype, (exponent, mantissa) in bits.items():
    info = torch.finfo(dtype)
    smallest = info.smallest_normal * info.eps             # with leading zeros in the mantissa
    print(f"{str(dtype):15} {exponent:11} {mantissa:8} {info.max:11.2g} {smallest:10.1e} "
          f"1 + {info.eps:.1e}")

# %% [markdown]
# *float16* is fine but narrow: nothing below $2^{-24} \approx 6 \cdot 10^{-8}$, nothing above 65,504. *bfloat16* is
# coarse but as wide as float32. Three computations show all that can go wrong:

# %%
for dtype in (torch.float16, torch.bfloat16):
    sums = torch.tensor(1.0, dtype=dtype) + torch.tensor(0.002, dtype=dtype)
    large, little = torch.tensor(300.0, dtype=dtype) ** 2, torch.tensor(1e-4, dtype=dtype) ** 2
    print(f"{str(dtype):15} 1 + 0.002 = {sums:.4f}   300² = {large:8.1f}   0.0001² = {little:.1e}")

# %% [markdown]
# ### 3.2 How a GPU computes in 16 bits
#
# The factors of a product have 16 bits, its sum has 32, and the result is rounded to 16 again. Norms, softmax and loss
# stay in 32 bits (`torch.autocast` has the list), and so do the weights themselves: each layer takes a rounded copy.
# This is **mixed precision** (Micikevicius et al. 2018). CPUs are slow at float16, so we compute in 32 bits and *round*
# what each layer hands on, forward and backward. The numbers come out about as coarse as on a GPU.


# %%
class Round(torch.autograd.Function):
    """Rounds what passes forward, and the gradient that passes back."""

    @staticmethod
    def forward(ctx, x, dtype):
        ctx.dtype = dtype
        return x.to(dtype).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.to(ctx.dtype).to(gradient.dtype), None


# %% [markdown]
# A *forward hook* sees what a module puts out, and may replace it:


# %%
def in_16_bits(model, dtype):
    for each in model.modules():
        if isinstance(each, (nn.Linear, Small)):                   # each matrix, and the logits
            each.register_forward_hook(lambda module, given, out: Round.apply(out, dtype))
    return model


# %% [markdown]
# ### 3.3 Break it: half a million tokens
#
# GPT-2's steps had half a million tokens each (512 texts of 1,024). The loss is the *mean* over all of them, so each
# token's gradient is divided by half a million. We can't compute so many, but one batch of them we can: 16 windows of
# 64 letters, and 512 such batches would make the step. So its loss counts one 512th.
#
# A logit's gradient is $p_i - [i = \text{target}]$: the letter that came is pushed up, all others down, each in
# proportion to its probability. Work it out: a letter has $p_i$ = 1 %, divided by 524,288. Can float16 hold that? And
# if not, what will a model learn that is only ever told which letters to push *up*?
#
# Train it: 150 steps with the very same batches, in three formats. (`scale` is for section 3.4.)


# %%
def learn(dtype, scale=1.0, share=512, steps=150):
    torch.manual_seed(0)
    model = in_16_bits(Small(V, 64, 4, 2, 64), dtype)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=2e-3), []
    for _ in progress(range(steps), str(dtype)):
        batch = ids[torch.randint(len(ids) - 65, (16, 1)) + torch.arange(65)]       # (batch, n + 1)
        loss = loss_on(model, batch)
        (scale * loss / share).backward()
        for weight in model.parameters():
            weight.grad.mul_(share / scale)                        # in 32 bits
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model


# %% [markdown]
# After the backward pass, what was divided is multiplied again, in 32 bits: on paper, nothing has happened.

# %% tags=["nbval-ignore-output"]
runs, models = {}, {}
for name in ("float32", "bfloat16", "float16"):
    runs[name], models[name] = learn(getattr(torch, name))
last = {name: sum(losses[-10:]) / 10 for name, losses in runs.items()}
print({name: f"{loss:.2f} nats" for name, loss in last.items()})
expect("What float16 loses, in nats", last["float16"] - last["float32"], 0.3, 2)
expect("What bfloat16 loses, in nats", last["bfloat16"] - last["float32"], -0.05, 0.05)

# %% [markdown]
# Step by step:

# %% tags=["nbval-ignore-output"]
plots.lines(
    runs, dashed=["bfloat16"], xlabel="step", ylabel="loss (nats per letter)",
    title="float16 hardly learns; bfloat16 is as good as 32 bits",
    alt="; ".join(f"{name} ends at {loss:.2f} nats" for name, loss in last.items())
    + ". float16 leaves the others within the first steps and stays far above them.",
)

# %% [markdown]
# Look at the gradients of the logits, in the model that was trained in 32 bits. What float16 rounds to zero is anything
# up to half of its smallest number:

# %% tags=["nbval-ignore-output"]
batch = ids[torch.randint(len(ids) - 65, (16, 1)) + torch.arange(65)]               # (batch, n + 1)
logits = models["float32"](batch[:, :-1])                          # (batch, n, V)
logits.retain_grad()
(F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()) / 512).backward()
hit = F.one_hot(batch[:, 1:], V).bool()                        # (batch, n, V): the letter that came
parts = {"the letter that came": logits.grad[hit], "the others": logits.grad[~hit]}
lost = {name: (each.half() == 0).float().mean().item() for name, each in parts.items()}
print({name: f"{share:.0%} lost" for name, share in lost.items()})
expect("Of the others, lost", lost["the others"], 0.7, 1)

# %% [markdown]
# The same as histograms, in powers of two:

# %% tags=["nbval-ignore-output"]
figures.magnitudes(
    {name: each.tolist() for name, each in parts.items()}, 2**-25, name="zero in float16",
    xlabel="size of a logit's gradient", title="float16 forgets the letters that did not come",
    alt="Two histograms over powers of two. The letter that came lies near two to the minus 20. "
    "The other letters spread far below the limit of float16, two to the minus 25: "
    f"{lost['the others']:.0%} are lost.",
)

# %% [markdown]
# bfloat16 has three binary digits fewer, and nobody notices: the errors are small and fall to both sides. float16 lost
# numbers entirely, and always on the same side.
#
# ### 3.4 The cure: scale the loss
#
# Multiply the loss by a large number $S$ before the way back. All gradients are $S$ times as large, and none falls
# below the smallest. Divide by $S$ in 32 bits afterwards. With $S = 2^{16}$:

# %% tags=["nbval-ignore-output"]
scaled, _ = learn(torch.float16, scale=2.0**16)
loss = sum(scaled[-10:]) / 10
print(f"float16 with a scaled loss: {loss:.2f} nats, float32 {last['float32']:.2f}")
expect("What is left of the difference, in nats", loss - last["float32"], -0.05, 0.05)

# %% [markdown]
# How large may $S$ be? As large as it can be without any gradient overflowing; and that changes during training. So it
# is found by trying: if any gradient is infinite or not a number, skip this step and halve $S$; after some good steps,
# double it.


# %%
class Scaler:
    def __init__(self, scale, patience):
        self.scale, self.patience, self.good = scale, patience, 0

    def step(self, optimizer, weights):
        gradients = [weight.grad for weight in weights]
        if all(gradient.isfinite().all() for gradient in gradients):
            torch._foreach_div_(gradients, self.scale)             # back to their size, in 32 bits
            optimizer.step()
            self.good += 1
            self.scale *= 2 if self.good % self.patience == 0 else 1
        else:
            self.scale, self.good = self.scale / 2, 0              # too large: this step is lost


# %% [markdown]
# Start far too high, and compare with torch's own `GradScaler`, step by step: the same scales, the same weights?


# %%
def with_scaler(theirs, steps=30):
    torch.manual_seed(0)
    model, scales = in_16_bits(Small(V, 32, 2, 1, 64), torch.float16), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    options = {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 10}
    scaler = torch.amp.GradScaler("cpu", 2.0**30, **options) if theirs else Scaler(2.0**30, 10)
    for _ in range(steps):
        batch = ids[torch.randint(len(ids) - 65, (4, 1)) + torch.arange(65)]        # (batch, n + 1)
        scales.append(scaler.get_scale() if theirs else scaler.scale)
        loss = loss_on(model, batch)
        (scaler.scale(loss) if theirs else scaler.scale * loss).backward()
        scaler.step(optimizer, *() if theirs else [list(model.parameters())])
        scaler.update() if theirs else None
        optimizer.zero_grad()
    return scales, torch.cat([weight.detach().flatten() for weight in model.parameters()])


# %% [markdown]
# Run both:

# %%
(scales, mine), (other_scales, theirs) = with_scaler(False), with_scaler(True)
print("log2 of the scale:", [round(math.log2(scale)) for scale in scales])
prove_equal(torch.tensor(scales), torch.tensor(other_scales), what="Your scales and torch's")
prove_equal(mine, theirs, what="The weights after 30 steps")

# %% [markdown]
# It tumbles until no gradient overflows; after ten good steps it tries the double, overflows, and falls back.
# **bfloat16 needs none of this**: its exponent has 8 bits, as that of float32, so what 32 bits can hold does not
# vanish. That is why it has displaced float16 in training.
#
# ### 3.5 What must stay in 32 bits
#
# Could the weights themselves be bfloat16? A step of Adam changes a weight by at most about the learning rate. Beside a
# weight of 1, bfloat16's next number is 0.8 % away. How many weights would not move at all, if they were rounded after
# a step?

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
model = Small(V, 64, 4, 2, 64)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(20):
    before = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    loss_on(model, ids[torch.randint(len(ids) - 65, (16, 1)) + torch.arange(65)]).backward()
    optimizer.step()
    optimizer.zero_grad()
after = torch.cat([weight.detach().flatten() for weight in model.parameters()])
start = before.bfloat16().float()                                # as if it had always been bfloat16
for share in (1, 0.1, 0.01):
    stuck = ((start + share * (after - before)).bfloat16() == start).float().mean()
    print(f"{share:4} of this step: {stuck:.0%} of all weights would stay where they are")

# %% [markdown]
# And the learning rate falls during training; in the end hardly any would move. So there is a *master copy* in 32 bits.
# Count for a GPU that holds weights and gradients in 16 bits: 2 + 2 bytes, 4 for the master copy, 8 for Adam. Sixteen
# again (Rajbhandari et al. 2020, section 3.1). Mixed precision halves *activations*, and saves time; what belongs to
# the parameters stays.

# %% [markdown]
# ## 4 A batch that does not fit: accumulate
#
# Activations grow with the batch. So take a part of it, let its gradients add up in `.grad`, take the next, and step
# once. It seems that nothing can go wrong. Here are eight lines of a play, of different lengths; $-100$ marks what is
# no letter and does not count.

# %%
lines = [line for line in texts.validation.split("\n")[40:80] if len(line) > 4]
lines = sorted(lines, key=len)[::3][:8]
encoded = [torch.tensor([number[letter] for letter in line]) for line in lines]
padded = nn.utils.rnn.pad_sequence(encoded, batch_first=True, padding_value=-100)   # (batch, n)
print("letters in each line:", [len(line) for line in lines])


def loss_sum(model, rows):
    """The loss, summed over the letters that count, and how many those are."""
    logits, target = model(rows[:, :-1].clamp(min=0)), rows[:, 1:]     # (batch, n, V), (batch, n)
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
    return loss, (target >= 0).sum()


# %% [markdown]
# Two halves of four lines, three ways to put them together:


# %%
def gradient(model, batches, divide):
    model.zero_grad()
    tokens = sum((rows[:, 1:] >= 0).sum() for rows in batches)
    for rows in batches:
        loss, own = loss_sum(model, rows)
        (loss / divide(own, tokens, len(batches))).backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


# %% [markdown]
# `divide` says by what each part's sum is divided; `own` are its letters, `tokens` all of them. (`model` is still that
# of section 3.5.)

# %%
whole = gradient(model, [padded], lambda own, tokens, parts: tokens)
ways = {"the mean of two means": lambda own, tokens, parts: own * parts,
        "the sum of two means": lambda own, tokens, parts: own,
        "sums, divided by all tokens": lambda own, tokens, parts: tokens}
for name, divide in ways.items():
    found = gradient(model, padded.split(4), divide)
    print(f"{name:28} relative error {(found - whole).norm() / whole.norm():7.1e}")

# %% [markdown]
# The sum of the means is about twice too large besides; and the mean of the means gives a letter of a short batch more
# weight than one of a long batch. For years, widely used training code did so. The right way: **add up sums, divide
# once by the number of all tokens.** The library's step does:

# %%
from txlib.training import training_step

sgd = torch.optim.SGD(model.parameters(), lr=1.0)      # a step of 1: weights change by the gradient
before = torch.cat([weight.detach().flatten() for weight in model.parameters()])
model.zero_grad()
training_step(model, padded.split(4), loss_sum, sgd)
after = torch.cat([weight.detach().flatten() for weight in model.parameters()])
prove_equal(before - after, whole, what="The library's step and the whole batch")
show_source(training_step)

# %% [markdown]
# Memory of a part, the gradient of the whole; the price is that parts run one after another.

# %% [markdown]
# ## 5 Forget, and compute again: checkpointing
#
# FlashAttention forgets the weights of attention and computes them again on the way back. Do the same with a whole
# block: keep its *input* only, $d$ numbers per token in place of $16\,d$ (Chen et al. 2016). On the way back, run it
# forward once more, and this time keep everything, but of this block alone.


# %%
class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, x):
        ctx.block = block
        ctx.save_for_backward(x)                                   # all that waits
        return block(x)                                            # nothing inside is recorded

    @staticmethod
    def backward(ctx, d_out):
        x = ctx.saved_tensors[0].detach().requires_grad_()         # (batch, n, d)
        with torch.enable_grad():
            out = ctx.block(x)                                     # once more, recorded
        out.backward(d_out)                                        # adds to the weights' gradients
        return None, x.grad


# %% [markdown]
# Predict first: how much is kept per token, and how many operations does it take, if forward is 1 and backward 2?
# (Sizes as in section 2.)

# %%
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

torch.manual_seed(0)
n, d = 128, 128
model, batch = Small(V, d, heads, layers, n), ids[: rows * n].view(rows, n)        # (batch, n)
ways = {"keep all": lambda block, x: block(x), "yours": Again.apply,
        "torch's": lambda block, x: checkpoint(block, x, use_reentrant=False)}

# %% [markdown]
# Three ways to run the same model:

# %%
gradients, waits = {}, {}
for name, run in ways.items():
    model.zero_grad()
    with FlopCounterMode(display=False) as counter:
        waits[name], out = kept(lambda: model(batch, run), batch, *model.parameters())
        out.square().mean().backward()
    gradients[name] = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    print(f"{name:8} {waits[name] / 1e6:6.1f} MB wait, "
          f"{counter.get_total_flops() / 1e9:5.1f} billion operations")
prove_equal(gradients["yours"], gradients["keep all"], what="Gradients with and without")
prove_equal(gradients["yours"], gradients["torch's"], what="Yours and torch's")

# %% [markdown]
# The same gradients, a twelfth of the memory, and a third more operations: 4 in place of 3. (Torch's needs a little
# less: it stops as soon as it has what the way back needs, and nobody needs the block's *output* again, so its last
# product is spared. The counter does not see inside attention's kernel on a CPU: these are the matrices' operations.
# And with dropout the second run must draw the same mask: torch's keeps the state of the random numbers for it, yours
# does not.) With $16\,d$ for the block at hand the true peak is $L + 16$ in place of $16 L$, here 22 in place of 96.
# The exercise asks what to keep of a very deep stack.
#
# On a GPU, the peak can be watched directly. The next cell does so where there is one:

# %% tags=["nbval-ignore-output"]
if default_device().type == "cuda":
    deep, wide = Small(V, 512, 8, 12, 512).cuda(), ids[: 32 * 512].view(32, 512).cuda()
    for name, run in ways.items():
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", torch.bfloat16):
            deep(wide, run).square().mean().backward()
        print(f"{name:8} at most {torch.cuda.max_memory_allocated() / 1e9:.2f} GB at once")
else:
    print("No GPU here: what was counted above has to do.")

# %% [markdown]
# ## 6 Fewer journeys: compile
#
# Lesson 34: an operation that does little with each number waits for memory, not for arithmetic. The GELU of GPT-2 is
# written with nine such operations, and each reads and writes everything. `torch.compile` looks at the whole function
# first. What it sees can be printed, by giving it a compiler of our own that compiles nothing:


# %%
def gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


def look(graph, inputs):
    steps = [node.target.__name__ for node in graph.graph.nodes if node.op == "call_function"]
    print(len(steps), "steps:", ", ".join(steps))
    return graph.forward


x = torch.randn(2048, 2048)                                        # 16 MB
prove_equal(torch.compile(gelu, backend=look)(x), gelu(x), what="The graph and the function")

# %% [markdown]
# One journey in and one out would do. Torch's own compiler writes such a kernel: in Triton for a GPU, in C++ for a CPU,
# where it needs a C++ compiler. How much faster can it be, if memory is all that counts?

# %%
def seconds(compute, repeats=5):
    times = []
    for _ in range(repeats):
        start = time.process_time()                  # the processor's: other programs do not count
        compute()
        times.append(time.process_time() - start)
    return min(times)


# %% [markdown]
# Where there is a compiler:

# %% tags=["nbval-ignore-output"]
if shutil.which("g++") or shutil.which("clang++"):
    torch.compiler.reset()
    fused = torch.compile(gelu)
    prove_equal(fused(x), gelu(x), what="The kernel and the function")
    slow, fast = seconds(lambda: gelu(x)), seconds(lambda: fused(x))
    print(f"{1000 * slow:.1f} ms step by step, {1000 * fast:.1f} ms fused")
else:
    print("No C++ compiler here: there is nothing to compile with.")

# %% [markdown]
# The nine steps read 13 arrays and write 9: 22 journeys became 2. It is not eleven times as fast, for now the
# arithmetic counts, too. Compiling took seconds, and a new shape may need them again: compile what runs a hundred
# thousand times. Matrix products gain nothing; everything between them does. `TrainConfig(compile=True)` compiles the
# loss.

# %% [markdown]
# ## 7 Share the batch: data parallel
#
# ### 7.1 Two processes
#
# Several GPUs are driven by several *processes*, each with a memory of its own. All run the same program. Each knows
# its number, the *rank*, and how many there are, the *world*; whatever one wants from another has to be sent. Torch's
# starter for them is `torchrun`: it starts a script several times and tells each its rank through environment
# variables.
#
# A notebook is one process, and others can't see into it. So we write the functions that they are to run into a
# script, with a beginning and an end: join the group, call the last function, save what it returns.

# %%
BEGIN = """
import copy, os, torch, torch.distributed as dist, torch.nn.functional as F, warnings
from torch import nn
torch.set_num_threads(1)
warnings.simplefilter("ignore", FutureWarning)
dist.init_process_group("gloo")               # how CPUs talk; GPUs have "nccl"
rank, world = dist.get_rank(), dist.get_world_size()
"""
END = """
given = torch.load("given.pt", weights_only=False)      # our own file, so it may hold objects
torch.save({name}(*given), f"{{rank}}.pt")
dist.destroy_process_group()
"""

# %% [markdown]
# `inspect.getsource` knows what you typed into a cell. (`--standalone`: all processes are on this machine, and any free
# port will do.)


# %%
def on_ranks(functions, *given, world=2):
    """Run the last of the functions in several processes; return what each of them returns."""
    sources = [inspect.getsource(each) for each in functions]
    with tempfile.TemporaryDirectory() as folder:
        script, end = Path(folder) / "ranks.py", END.format(name=functions[-1].__name__)
        script.write_text("\n\n".join([BEGIN, *sources, end]), encoding="utf-8")
        torch.save(given, Path(folder) / "given.pt")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*torchrun, f"--nproc-per-node={world}", script.name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(done.stderr)
        results = [Path(folder) / f"{each}.pt" for each in range(world)]
        return [torch.load(each, weights_only=False) for each in results]


# %% [markdown]
# A first try: what do two processes know?


# %%
def hello(word):
    told = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE")}
    return f"{word} from rank {rank} of {world}, which was told {told}"


for line in on_ranks([hello], "Greetings"):
    print(line)

# %% [markdown]
# ### 7.2 Everybody needs the sum: a ring
#
# Each rank will have a gradient, and all need the sum of all: an **all-reduce**. If rank 0 collected everything and
# sent the sum back, it would receive $(w - 1)\,N$ numbers, and send as many, while the others wait. A *ring* is better:
# each rank only ever sends to its right neighbour (Patarasuk & Yuan 2009). Cut the tensor into $w$ chunks. In each
# step every rank sends one chunk on, and *adds* the one that arrives. After $w - 1$ steps each rank has one chunk
# complete. Then $w - 1$ steps more, in which what arrives *replaces*:

# %%
world = 4
held = [[{rank} for chunk in range(world)] for rank in range(world)]   # whose numbers are there
history = [[[len(each) for each in row] for row in held]]
for step in range(2 * (world - 1)):
    sent = [held[rank][(rank - step) % world] for rank in range(world)]
    for rank in range(world):
        chunk = (rank - 1 - step) % world
        held[rank][chunk] = sent[rank - 1] | (held[rank][chunk] if step < world - 1 else set())
    history.append([[len(each) for each in row] for row in held])
figures.ring(
    history, ["before", "add", "add", "add", "replace", "replace", "replace"],
    title="Three steps add up, three hand round what is whole",
    alt="Seven grids of 4 ranks by 4 chunks, each with how many ranks are summed up there. At "
    "first all are 1; after three steps each rank has one chunk with all 4, after three more all.",
)

# %% [markdown]
# The first half alone is called **reduce-scatter**: everybody has a share of the sum. The second is **all-gather**:
# everybody gets everybody's share. Section 8 needs them one by one, so write them as two functions. `isend` does not
# wait for the neighbour, else all would wait for each other.


# %%
def neighbour(chunk, like):
    """Send a chunk to the right, return what comes from the left."""
    arrived = torch.empty_like(like)
    sending = dist.isend(chunk, (rank + 1) % world)
    dist.recv(arrived, (rank - 1) % world)
    sending.wait()
    return arrived


# %% [markdown]
# Chunks of the same tensor, in two rounds:


# %%
def reduce_scatter(chunks):
    for step in range(world - 1):
        out, into = (rank - step) % world, (rank - step - 1) % world
        chunks[into].add_(neighbour(chunks[out], chunks[into]))
    return (rank + 1) % world                              # which of them is whole here


def all_gather(chunks):
    for step in range(world - 1):
        out, into = (rank + 1 - step) % world, (rank - step) % world
        chunks[into].copy_(neighbour(chunks[out], chunks[into]))


# %% [markdown]
# Both together, on three ranks. (`tensor_split` makes views, so the tensor itself is changed; the chunks may differ by
# one number in length.)


# %%
def all_reduce(tensor):
    chunks = tensor.view(-1).tensor_split(world)
    reduce_scatter(chunks)
    all_gather(chunks)
    return tensor


def try_ring(numbers):
    mine, theirs = numbers[rank].clone(), numbers[rank].clone()
    dist.all_reduce(theirs)                                # torch's own
    return all_reduce(mine), theirs


# %% [markdown]
# Every rank gets the sum of the three, from your ring as from torch's:

# %%
ring = [neighbour, reduce_scatter, all_gather, all_reduce]
numbers = torch.randn(3, 1000)                                     # (rank, 1000)
for mine, theirs in on_ranks([*ring, try_ring], numbers, world=3):
    prove_equal(mine, numbers.sum(dim=0), what="Your ring and the sum")
    prove_equal(mine, theirs, what="Your ring and torch's")

# %% [markdown]
# Each rank sends $2 (w - 1)$ chunks of $N / w$ numbers: $2N (w-1)/w$, less than $2N$ **however many ranks there are**.
# That is why data parallel training scales.
#
# ### 7.3 A step on two ranks
#
# Each rank has all weights, and takes its rows of the batch. What about lines of different lengths? Section 4 has
# answered that: sums, divided by the number of letters *of all ranks*. Take the library's GPT, for processes can import
# it:


# %%
def share_of_batch(model, batch):
    loss, tokens = loss_sum(model, batch[rank::world])     # this rank's rows
    loss.backward()
    all_reduce(tokens := tokens.float()[None])
    for weight in model.parameters():
        all_reduce(weight.grad)
        weight.grad /= tokens
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


def loss_sum(model, rows):
    logits, target = model(rows[:, :-1].clamp(min=0)).logits, rows[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
    return loss, (target >= 0).sum()


# %% [markdown]
# Compare each rank's gradient with the one that a single process finds for the whole batch:

# %%
torch.manual_seed(0)
block = BlockConfig.of_sizes(64, 4, 256, position="learned", activation="gelu")
gpt = GPT(GPTConfig(V, block, layers=2, max_length=64))
whole = gradient(gpt, [padded], lambda own, tokens, parts: tokens)
for found in on_ranks([*ring, loss_sum, share_of_batch], gpt, padded):
    prove_equal(found, whole, what="A rank's gradient and that of one process")

# %% [markdown]
# Both ranks have the same gradient, so they will make the same step, and stay alike without ever sending weights.
#
# **Break it.** What if each rank divided by its *own* letters, and the ranks' means were averaged? You know the answer
# from section 4; here the rows are dealt out in turns, so both ranks have lines of all lengths:

# %%
means = [gradient(gpt, [padded[each::2]], lambda own, tokens, parts: own) for each in (0, 1)]
wrong = (sum(means) / 2 - whole).norm() / whole.norm()
print(f"mean of the ranks' means: relative error {wrong:.1%}")

# %% [markdown]
# ### 7.4 Torch's and the library's
#
# `DistributedDataParallel` does what you did, and one thing more: it does not wait for the end of the backward pass.
# Gradients of the last layers are ready first; while the layers before them compute, those already travel, in buckets
# of 25 MB. It averages over ranks, so the loss is multiplied by $w$ where you want a sum. The library wraps model and
# loss in it from outside; the model knows nothing of it. Three steps, on two ranks and alone:


# %%
def torchs(model, batch):
    from torch.nn.parallel import DistributedDataParallel
    wrapped = DistributedDataParallel(model)
    loss, tokens = loss_sum(wrapped, batch[rank::world])
    dist.all_reduce(tokens)
    (world * loss / tokens).backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


# %% [markdown]
# The library's loop, unchanged, finds out by itself that it is one of several:


# %%
def librarys(model, batch, engine="ddp"):
    from txlib.training import TrainConfig, train
    config = TrainConfig(lr=1e-3, warmup=1, precision="fp32", parallel=engine)
    losses = train(model, lambda epoch: [batch], loss_sum, config, steps=3, quiet=True).losses
    return losses, torch.cat([weight.detach().flatten() for weight in model.parameters()])


# %% [markdown]
# Here is the proof, and the library's lines that deal out a batch:

# %%
def both(model, batch):
    return torchs(copy.deepcopy(model), batch), librarys(model, batch)


import copy

from txlib.training.distributed import DistributedContext

alone, weights = librarys(copy.deepcopy(gpt), padded)
for found, (losses, theirs) in on_ranks([loss_sum, torchs, librarys, both], gpt, padded):
    prove_equal(found, whole, what="DistributedDataParallel and one process")
    prove_equal(torch.tensor(losses), torch.tensor(alone), what="Losses of two ranks and of one")
    prove_equal(theirs, weights, tolerance=1e-4, what="Weights after three steps")
show_source(DistributedContext.shard_batch)

# %% [markdown]
# In a shell this is one line, for each of the course's recipes:
#
# ```
# torchrun --nproc-per-node 2 -m txlib train shakespeare
# ```

# %% [markdown]
# ## 8 Share what belongs to the weights: sharding
#
# Data parallel shares out the activations, but nothing of what belongs to the weights: each rank holds the same 16
# bytes per parameter, $w$ times the same thing. ZeRO (Rajbhandari et al. 2020) gives each rank a share of its own, in
# three stages; here for mixed precision, as in section 3.5: a model of 7 billion parameters, on four ranks.


# %%
def zero(N, world, stage):
    """GB that each rank holds, of what belongs to the weights, in mixed precision."""
    shared = [1 / world if stage >= least else 1 for least in (3, 2, 1)]
    held = dict(zip(("weights", "gradients", "optimizer, master copy"), (2, 2, 12)))
    return {part: N * size * share / 1e9 for (part, size), share in zip(held.items(), shared)}


stages = {"data parallel": 0, "1: optimizer": 1, "2: and gradients": 2, "3: and weights": 3}
ways = {name: [zero(6.74e9, 4, stage) for rank in range(4)] for name, stage in stages.items()}
each = {name: sum(ranks[0].values()) for name, ranks in ways.items()}
figures.shards(
    ways, title="Sharded rank by rank: 108 GB become 27",
    alt="Four panels, each with a bar for each of four ranks. GB per rank: "
    + "; ".join(f"{name} {size:.0f}" for name, size in each.items()),
)

# %% [markdown]
# How can a rank do without the others' share? Adam treats each number by itself, so a rank can update *its* numbers
# alone, if it has their gradients, *summed over all ranks*. That is what a reduce-scatter gives; an all-gather then
# hands round the new weights. Together they are the all-reduce from before: **sharding the optimizer and the gradients
# costs no more traffic at all.**
#
# Lay all weights into one long vector. Adam by hand, on a rank's own chunk:


# %%
def sharded_steps(model, batch, steps=3, lr=1e-3):
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    chunks = flat.tensor_split(world)                          # views of the weights
    m = v = torch.zeros_like(chunks[(rank + 1) % world])       # a share only
    for step in range(1, steps + 1):
        nn.utils.vector_to_parameters(flat, model.parameters())
        loss, tokens = loss_sum(model, batch[rank::world])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        dist.all_reduce(tokens)
        gradients = torch.cat([each.flatten() for each in gradients]).tensor_split(world)
        g = gradients[own := reduce_scatter(gradients)] / tokens   # our chunk, summed over ranks
        m, v = m.lerp(g, 0.1), v.lerp(g * g, 0.001)
        chunks[own].sub_(lr * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8))
        all_gather(chunks)
    return flat, m.numel() + v.numel()


# %% [markdown]
# Against torch's Adam in one process:

# %%
alone = copy.deepcopy(gpt)
adam = torch.optim.Adam(alone.parameters(), lr=1e-3)
for _ in range(3):
    adam.zero_grad()
    loss, tokens = loss_sum(alone, padded)
    (loss / tokens).backward()
    adam.step()
weights = torch.nn.utils.parameters_to_vector(alone.parameters()).detach()
for rank, (found, numbers) in enumerate(on_ranks([*ring, loss_sum, sharded_steps], gpt, padded)):
    prove_equal(found, weights, tolerance=1e-4, what="Sharded and whole")
    print(f"rank {rank} keeps {numbers:,} of Adam's {2 * len(weights):,} numbers")

# %% [markdown]
# The third stage shards the weights as well. A layer's weights are gathered just before it computes, and dropped right
# after; on the way back once more. That is one all-gather more: $3N$ numbers travel per step in place of $2N$. Torch
# calls it *fully sharded data parallel*, FSDP (Zhao et al. 2023), and the library uses it for `--parallel fsdp`. How
# much of the model does a rank hold between two steps?


# %%
def fully(model, batch):
    from torch.distributed.fsdp import fully_shard
    losses, weights = librarys(copy.deepcopy(model), batch, "fsdp")
    for block in model.decoder.layers:
        fully_shard(block)
    fully_shard(model)
    return losses, weights, sum(weight.to_local().numel() for weight in model.parameters())


losses, weights = librarys(copy.deepcopy(gpt), padded)
N = sum(weight.numel() for weight in gpt.parameters())
for rank, (theirs, found, numbers) in enumerate(on_ranks([loss_sum, librarys, fully], gpt, padded)):
    prove_equal(found, weights, tolerance=1e-4, what="FSDP's weights and one process's")
    print(f"rank {rank} holds {numbers:,} of {N:,} weights")

# %% [markdown]
# ## 9 Share each layer: tensor parallel
#
# Sharded weights are gathered before use, so one whole layer and its activations must fit. If even that is too much, or
# if more ranks than sentences are at hand, split the *products* (Shoeybi et al. 2019, "Megatron-LM"). The feed-forward
# network is $\text{gelu}(x W_1)\, W_2$. Each rank takes half of $W_1$'s columns, and with them half of the hidden
# numbers; the GELU works number by number, so no rank misses anything. Then half of $W_2$'s rows. (Pale is what the
# other rank has.)

# %%
figures.split_network(
    title="Columns first, then rows: one sum at the end",
    alt="Two rows, one per rank, from left to right. Each multiplies all of x by its half of the "
    "columns of W1, applies the GELU, and multiplies its half of the hidden numbers by its half of "
    "the rows of W2. An all-reduce adds both summands; the result is the same on both ranks.",
)

# %% [markdown]
# $$\text{gelu}(x W_1)\, W_2 = \underbrace{\text{gelu}(x W_1^{(0)})\, W_2^{(0)}}_{\text{rank 0}} +
# \underbrace{\text{gelu}(x W_1^{(1)})\, W_2^{(1)}}_{\text{rank 1}}$$
#
# One all-reduce adds the two. Attention splits even more simply: heads know nothing of each other until the output
# projection, so each rank takes half of the *heads*, and the matching half of that projection's inputs.
#
# What about the way back? A sum hands its gradient to both summands: nothing to send. But $x$ was used by both
# ranks, so its gradient is the sum of both: an all-reduce on the way *back*. Two small functions, mirror images:


# %%
def summed(x):
    """Forward: the sum over ranks. Backward: nothing to do."""
    total = x.detach().clone()
    dist.all_reduce(total)
    return x + (total - x).detach()                        # its gradient is x's own


def shared(x):
    """Forward: nothing to do. Backward: the sum over ranks."""
    def total(gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient
    (seen := x.view_as(x)).register_hook(total)
    return seen


# %% [markdown]
# Now a whole block, without its biases for once. `mine` cuts a rank's part out of a matrix, along rows or columns. (A
# `Linear`'s weight is stored as out × in, so "columns first" cuts the *first* axis.)


# %%
def mine(weight, dim):
    return weight.chunk(world, dim)[rank].detach().requires_grad_()


def attend(x, W_qkv, W_out, heads):                        # (n, d), (3, part, d), (d, part)
    q, k, v = (x @ W.T for W in W_qkv)                     # (n, part) each
    q, k, v = (each.unflatten(-1, (heads, -1)).transpose(0, 1) for each in (q, k, v))  # (h, n, d_k)
    mixed = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    return mixed.transpose(0, 1).flatten(1) @ W_out.T      # (n, d)


# %% [markdown]
# Forward, and back from a made-up loss:


# %%
def split_block(x, W_qkv, W_out, W1, W2, heads):
    x.requires_grad_()                                     # (n, d)
    parts = [mine(W_qkv, 1), mine(W_out, 1), mine(W1, 0), mine(W2, 1)]
    y = x + summed(attend(shared(F.layer_norm(x, x.shape[-1:])), *parts[:2], heads // world))
    y = y + summed(F.gelu(shared(F.layer_norm(y, y.shape[-1:])) @ parts[2].T) @ parts[3].T)
    y.square().sum().backward()
    return y.detach(), x.grad, [part.grad for part in parts]


# %% [markdown]
# The same block whole, and the comparison: the output, the gradient of the input, and each rank's share of the weights'
# gradients.

# %%
torch.manual_seed(0)
n, d, h = 12, 32, 4
x, W_qkv, W_out = torch.randn(n, d), torch.randn(3, d, d) / 6, torch.randn(d, d) / 6
W1, W2 = torch.randn(4 * d, d) / 6, torch.randn(d, 4 * d) / 12
given = [each.clone().requires_grad_() for each in (x, W_qkv, W_out, W1, W2)]
y = given[0] + attend(F.layer_norm(given[0], (d,)), *given[1:3], h)
y = y + F.gelu(F.layer_norm(y, (d,)) @ given[3].T) @ given[4].T
y.square().sum().backward()
both = on_ranks([mine, attend, summed, shared, split_block], x, W_qkv, W_out, W1, W2, h)
for found, d_x, _ in both:
    prove_equal(found, y, tolerance=1e-4, what="A rank's output and the whole block's")
    prove_equal(d_x, given[0].grad, tolerance=1e-3, what="The gradients of x")
for place, dim in enumerate((1, 1, 0, 1)):
    joined = torch.cat([parts[place] for *_, parts in both], dim)
    prove_equal(joined, given[place + 1].grad, tolerance=1e-3, what="The weights' gradients")

# %% [markdown]
# **Break it**: cut $W_1$ along rows and $W_2$ along columns, the other way round. Then each rank has a part of a *sum*
# where the GELU wants the whole sum:

# %%
z, (left, right) = F.layer_norm(x, (d,)), W1.chunk(2, dim=1)
parts = F.gelu(z[:, : d // 2] @ left.T) + F.gelu(z[:, d // 2 :] @ right.T)      # (n, 4d)
whole = F.gelu(z @ W1.T)                                           # (n, 4d)
print(f"gelu of the parts, added: relative error {(parts - whole).norm() / whole.norm():.0%}")

# %% [markdown]
# An all-reduce *before* the GELU would mend it, of $4d$ numbers per token. Columns first needs none there.
#
# ### Open the library
#
# Torch does it by a *plan*: which matrix is cut how. Weights become `DTensor`s, which know that each rank holds a part.
# The library's `parallelize` writes that plan for all attention layers and feed-forward networks of a model. (In a
# shell: `--parallel tp`.) The GPT of section 7, forward and back, on two ranks with the same rows:


# %%
def split_model(model, rows):
    from torch.distributed.device_mesh import init_device_mesh
    from txlib.training.tensor_parallel import parallelize
    parallelize(model, init_device_mesh("cpu", (world,)))
    loss, tokens = loss_sum(model, rows)
    (loss / tokens).backward()
    found = [getattr(w.grad, "full_tensor", lambda: w.grad)() for w in model.parameters()]
    here = [getattr(w, "to_local", lambda: w)() for w in model.decoder.layers.parameters()]
    return torch.cat([each.flatten() for each in found]), sum(each.numel() for each in here)


# %% [markdown]
# All gradients, gathered, and how much of the blocks each rank holds:

# %%
from txlib.training.tensor_parallel import parallelize

whole = gradient(gpt, [padded], lambda own, tokens, parts: tokens)
N = sum(weight.numel() for weight in gpt.decoder.layers.parameters())
for rank, (found, held) in enumerate(on_ranks([loss_sum, split_model], gpt, padded)):
    prove_equal(found, whole, what="Gradients of the split model and of the whole one")
    print(f"rank {rank} holds {held:,} of {N:,} weights of the blocks")
show_source(parallelize)

# %% [markdown]
# What travels? Per block two all-reduces forward and two back, of $n\,d$ numbers per text; and *everybody waits for
# them*, in the middle of the computation. So tensor parallel stays inside one machine, where GPUs are joined by fast
# links. Compare with data parallel, whose gradients travel once per step, beside the computation. For GPT-3 on eight
# ranks, numbers per step and rank, for one batch of 8 texts of 2,048 tokens that all eight ranks share:

# %%
N, L, d_model, tokens, w = 175e9, 96, 12_288, 8 * 2048, 8
ring_cost = 2 * (w - 1) / w
print(f"data parallel    {ring_cost * N:.1e}")
print(f"fully sharded    {1.5 * ring_cost * N:.1e}")
print(f"tensor parallel  {4 * L * ring_cost * tokens * d_model:.1e}")

# %% [markdown]
# Here tensor parallel sends least. But its numbers grow with the batch, and those of the others do not: beyond 37,000
# tokens ($N / 4Ld$) it sends more, and with GPT-3's 3.2 million, two hundred times as much.
#
# ## 10 Share the stack: a pipeline, on paper
#
# The last way to cut: rank 0 has the first layers, rank 1 the next, and so on. Only activations at the seams travel,
# $n\,d$ numbers per text, from neighbour to neighbour, once there and once back. But while rank 3 computes, what does
# rank 0 do? It waits. The cure is to cut the batch into $m$ *micro-batches* that follow each other (Huang et al. 2019,
# "GPipe"). Backward takes twice as long as forward:


# %%
def gpipe(stages, micro):
    """For each stage: (start, length, micro-batch), all forward first, then all back."""
    part, turn = 1 / micro, stages + micro - 1                 # a piece takes a part of the time
    there = [[((stage + each) * part, part, str(each)) for each in range(micro)]
             for stage in range(stages)]
    back = [[((turn + 2 * (stages - 1 - stage + each)) * part, 2 * part, str(each))
             for each in range(micro)] for stage in range(stages)]
    return [one + other for one, other in zip(there, back)]


# %% [markdown]
# The same batch, whole and in four pieces:

# %%
figures.pipeline(
    {"whole": gpipe(4, 1), "in 4 micro-batches": gpipe(4, 4)}, title="Smaller pieces, less waiting",
    alt="Two timetables of four stages; forward, then backward, which takes twice as long. With "
    "the batch whole, one stage works at a time and the others wait. In four micro-batches they "
    "overlap: the waiting is two triangles, and all is done in less than half the time.",
)

# %% [markdown]
# How much of the time is waiting, the *bubble*? A stage works 3 units for the whole batch, a micro-batch takes $3/m$,
# and the last of them has to go through all $p$ stages: the whole takes $3(m + p - 1)/m$. Below that is 5.25 units,
# above 12:
#
# $$\text{bubble} = \frac{p - 1}{m + p - 1}$$

# %%
for stages, micro in ((4, 1), (4, 4), (4, 32), (16, 32)):
    work = gpipe(stages, micro)
    end = max(start + length for stage in work for start, length, _ in stage)
    idle = 1 - sum(length for stage in work for _, length, _ in stage) / (stages * end)
    formula = (stages - 1) / (micro + stages - 1)
    print(f"p = {stages:2}, m = {micro:2}: {idle:.0%} counted, {formula:.0%} by formula")

# %% [markdown]
# More micro-batches mean less waiting; but all their activations wait for the way back. If each goes back as soon as it
# can ("1F1B", one forward, one backward; Narayanan et al. 2019), a stage holds those of at most $p$ micro-batches, not
# of $m$. The bubble is the same. The largest runs use all of it together: tensor parallel inside a machine, a pipeline over
# machines, data parallel over everything (Narayanan et al. 2021).

# %% [markdown]
# ## 11 What a run costs
#
# ### 11.1 In operations: the table of 2017 once more
#
# Lesson 09 showed the table of "Attention is all you need", with a training cost for each system. Those costs are
# hours × GPUs × what a GPU can do. What did the models *need*? Count a step of each, 25,000 words on either side, and
# multiply by the paper's number of steps:

# %%
source = target = torch.zeros(1000, 25, dtype=torch.long, device="meta")
for name, steps, days, paper in (("base", 100_000, 0.5, 3.3e18), ("big", 300_000, 3.5, 2.3e19)):
    with FlopCounterMode(display=False) as counter:
        build(VASWANI[name])(source, decoder_input_ids=target).logits.sum().backward()
    needed = steps * counter.get_total_flops()
    busy = days * 24 * 3600 * 8 * 9.5e12                           # 8 GPUs of 9.5e12 per second
    print(f"{name:4} needed {needed:.1e}; {days} days on 8 GPUs {busy:.1e}, the paper {paper:.1e}: "
          f"utilisation {needed / busy:.0%}")

# %% [markdown]
# The share of what a machine *could* do that goes into the model's own operations is its **model FLOP utilisation**.
# Recomputation (section 5) does not count: it is no progress. Today 40 % is good.
#
# (The caption of that table, and many a slide after it, says "at a fraction of the training cost". Lesson 09 has shown
# where that holds: for French, and beside ensembles; not for *big* on German, beside single models.)
#
# ### 11.2 In money and energy
#
# $$\text{hours} = \frac{\text{operations}}{\text{peak} \cdot \text{utilisation}} \qquad \text{dollars} = \text{hours}
# \cdot \text{price} \qquad \text{energy} = \text{hours} \cdot \text{power} \cdot \text{PUE}$$
#
# PUE, *power usage effectiveness*, is what a data centre takes in for each watt that reaches its machines. Is that
# formula any good? Strubell et al. (2019, table 3) *measured* the power of both models of 2017 on their 8 GPUs, and
# took a PUE of 1.58:

# %%
for name, hours, watts, printed in (("base", 12, 1415.78, 27), ("big", 84, 1515.43, 201)):
    print(f"{name:4} {hours * watts * 1.58 / 1000:6.1f} kWh, printed {printed}; "
          f"{watts / 8:.0f} W per GPU with its share of the machine")

# %% [markdown]
# Now for anything else. These are assumptions of November 2026, for an H100: peak $989 \cdot 10^{12}$ operations per
# second (in 16 bits, on matrices, as its maker says), 40 % used, 2.50 dollars per hour, 1,000 W with its share of the
# machine, PUE 1.2. Put in your own.


# %%
def bill(operations, peak=989e12, used=0.4, price=2.5, watts=1000, pue=1.2):
    hours = operations / (peak * used) / 3600
    return hours, hours * price, hours * watts * pue / 1000        # GPU-hours, dollars, kWh


trained = {"Transformer big": 9.7e18, "GPT-3": 6 * 175e9 * 300e9, "Chinchilla": 6 * 70e9 * 1.4e12,
           "Llama 3.1 405B": 6 * 405e9 * 15.6e12}
for name, operations in trained.items():
    hours, dollars, energy = bill(operations)
    print(f"{name:15} {operations:.1e}: "
          f"{hours:10,.0f} GPU-hours {dollars:10,.0f} $ {energy:10,.0f} kWh")

# %% [markdown]
# Two of these can be checked. Meta states 30.84 million GPU-hours for the last one: utilisation was lower than 40 %, or
# not all hours went into the final run. And GPT-3, on the GPUs of its time, took 1,287,000 kWh, nearly five times what
# is printed here (Patterson et al. 2021, table 4): newer machines need less for the same. (A household in Europe uses
# about 3,500 kWh per year.) Not in the bill: failed runs, trial runs, people, and all the use that comes after.

# %% [markdown]
# ## 12 How large, and how long? Scaling laws
#
# Suppose your budget is $C$ operations. With $C = 6ND$, a model of twice the size reads half as much. What is best?
#
# ### 12.1 A ladder of our own
#
# Seven GPTs, from 4 thousand to 800 thousand parameters, and four budgets. Each model gets as many steps as the budget
# pays for, and *its learning rate falls to zero by the end of just these steps*. The loss is that of a play which none
# of them has read.

# %% tags=["recorded"]
CONTEXT, ROWS = 128, 8                                 # a batch: 8 windows of 128 letters
LADDER = {16: 1, 24: 2, 32: 2, 48: 2, 64: 3, 96: 3, 128: 4}        # width → layers
BUDGETS = [3e10, 9e10, 2.7e11, 8.1e11]                 # operations of a whole training


def rung(width):
    block = BlockConfig.of_sizes(width, width // 16 or 1, 4 * width, norm="rms", activation="relu2",
                                 bias=False, position="rotary_half", zero_output=True)
    return GPT(GPTConfig(len(letters), block, layers=LADDER[width], max_length=CONTEXT))


def size(width):
    return sum(weight.numel() for weight in rung(width).parameters())


# %% [markdown]
# How many steps does a budget pay for? Where they would be fewer than 60, or where the plays would have to be read
# more than twice, there is no run.

# %% tags=["recorded"]
def steps_for(budget, width):
    return round(budget / (6 * size(width) * ROWS * CONTEXT))      # C = 6 N D


def pays(budget, width):
    return 60 <= steps_for(budget, width) <= 3200


def windows(text, seed=0):
    cut = text[seed % CONTEXT :].unfold(0, CONTEXT + 1, CONTEXT)   # (windows, CONTEXT + 1)
    return cut[torch.randperm(len(cut), generator=torch.Generator().manual_seed(seed))]


# %% [markdown]
# One run: the library's loop, with Muon at one rate, 0.05, for all. (Rates of 0.04 and 0.08 were tried on four of the
# runs. What is best hardly depends on the size, but on the number of steps: runs of about a hundred steps were up to
# 0.07 nats better with the higher rate, longer ones up to 0.03 better with the lower. Keep that in mind for section
# 12.2. And they were compared on the very play whose loss the table reports, so that it is not quite unseen: one more
# reason to trust differences between runs more than their level.)

# %% tags=["recorded"]
def loss_of(model, batch):
    logits, target = model(batch[:, :-1]).logits, batch[:, 1:]     # (batch, n, V), (batch, n)
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
    return loss, target.numel()


def climb(budget, width, seed):
    torch.manual_seed(seed)
    model, steps = rung(width), steps_for(budget, width)
    config = TrainConfig(lr=0.01, muon_lr=0.05, warmup=steps // 10, precision="fp32")
    train(model, lambda epoch: windows(ids, 100 * seed + epoch).split(ROWS)[:-1], loss_of,
          config, steps=steps, quiet=True)
    with torch.no_grad():
        loss, tokens = loss_of(model, unseen[: 400 * CONTEXT + 1].unfold(0, CONTEXT + 1, CONTEXT))
    return loss.item() / tokens


# %% [markdown]
# All runs, three seeds each, take about twelve minutes of one core. They were done beforehand: `python data/ladder.py 0
# 1 2` does them again. Let us do one of them here, and see whether the table can be believed:

# %% tags=["nbval-ignore-output"]
recorded = json.loads((DATA / "ladder.json").read_text())          # budget → width → seed → loss
here, there = climb(3e10, 32, 0), recorded["3.0e+10"]["32"]["0"]
print(f"the smallest budget, width 32: {here:.3f} nats here, {there:.3f} in the table")
expect("The difference", abs(here - there), 0, 0.05)

# %% [markdown]
# ### 12.2 Lines of equal cost
#
# For each budget: loss against size, and a parabola through the points (over $\log N$). Its lowest point is the size
# that this budget should be spent on. This is the second of the three ways of Hoffmann et al. (2022, section 3.2),
# "Chinchilla". Before you look: which way will the lowest point move when the budget grows, and will it move by as much
# as the budget?


# %%
def parabola(budget, seeds="012"):
    """(sizes, losses) of all runs, the curve through their means, and its lowest point."""
    found = recorded[budget].items()
    runs = {size(int(width)): [losses[seed] for seed in seeds] for width, losses in found}
    x = [math.log(N) for N in runs]
    a, b, c = torch.linalg.lstsq(
        torch.tensor([[t * t, t, 1] for t in x], dtype=torch.double),
        torch.tensor([[sum(losses) / len(losses)] for losses in runs.values()], dtype=torch.double),
    ).solution.flatten().tolist()
    grid = [x[0] + (x[-1] - x[0]) * each / 40 for each in range(41)]
    best = -b / (2 * a)
    return runs, (grid, [a * t * t + b * t + c for t in grid]), (best, a * best**2 + b * best + c)


# %% [markdown]
# One colour for each budget; a dot is a run:

# %%
points, curves, best = {}, {}, {}
for budget in recorded:
    runs, (grid, curve), (place, loss) = parabola(budget)
    dots = [(N, loss) for N, losses in runs.items() for loss in losses]
    points[budget] = list(zip(*dots))
    curves[budget] = [math.exp(t) for t in grid], curve
    best[budget] = math.exp(place), loss
said = "; ".join(f"{budget}: lowest at {N:,.0f}, {loss:.2f} nats"
                 for budget, (N, loss) in best.items())
figures.isoflops(
    points, curves, best, title="Each budget has a size of its own",
    alt="Four curves of loss against the number of parameters, one for each budget of operations, "
    f"each with a lowest point. {said}",
)

# %% [markdown]
# Too small a model has no room for what it reads; too large a one reads too little. The best size grows with the
# budget, but more slowly. $N^* \propto C^a$: what is $a$? Once from each seed by itself, so that we see how far it can
# be trusted:


# %%
def slope(x, y):
    """Of the line through log y over log x."""
    x, y = torch.tensor(x, dtype=torch.double).log(), torch.tensor(y, dtype=torch.double).log()
    return (((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()).item()


C = [float(budget) for budget in recorded]
lowest = {seed: [math.exp(parabola(budget, seed)[2][0]) for budget in recorded] for seed in "012"}
found = [slope(C, sizes) for sizes in lowest.values()]
print("a from each seed:", [f"{each:.2f}" for each in found])
for budget, (N, _) in best.items():
    D = float(budget) / 6 / N
    print(f"C = {budget}: N = {N:8,.0f}, D = {D:9,.0f} letters, {D / N:4.0f} per parameter")
expect("a", sum(found) / len(found), 0.3, 0.75)

# %% [markdown]
# Kaplan et al. (2020) found $a = 0.73$: a budget ten times as large should go mostly into size. Hoffmann et al. (2022)
# found 0.50, 0.49 and 0.46 in three ways: into both alike. With 70 billion parameters and 1.4 trillion tokens their
# *Chinchilla* was better than models of four times its size. Why the difference? Hoffmann et al. blamed the learning
# rate, which fell over the same length in all of Kaplan's runs. Porian et al. (2024) did it all again, and that
# mattered little. What mattered: the last layer's operations were not counted, the smallest models warmed up too long,
# and the optimizer's settings were not tuned for each size.
#
# And ours? Look at the picture: two of the four lowest points lie beside the smallest size that was run, so they are
# hardly bracketed. And the right ends are runs of about a hundred steps, which wanted a higher rate: up to 0.07 nats
# too high, so the curves are too steep there, and most of all for small budgets. Take $a$ for a rough number.
#
# ### 12.3 A formula for all of it
#
# The third way is a formula (Hoffmann et al. 2022, equation 2): what no model can know, what this one has no room for,
# what it has not read.
#
# $$L(N, D) = E + \frac{A}{N^\alpha} + \frac{B}{D^\beta}$$
#
# Fit its five numbers to logarithms, so that a large loss does not count more. A *Huber* loss keeps single bad runs
# from ruling everything. (Numbers are scaled by 30,000 parameters and 1,000,000 letters, so that $A$ and $B$ are in
# nats.)


# %%
def predict(theta, N, D):
    E, A, alpha, B, beta = theta.exp()
    return E + A * (N / 3e4) ** -alpha + B * (D / 1e6) ** -beta


# %% [markdown]
# L-BFGS finds the lowest point. (Exponentials keep all five above zero.) If `floor` is given, $E$ stays there:


# %%
def fit(runs, floor=None):                             # (run, 3): N, D, loss
    N, D, loss = torch.tensor(runs, dtype=torch.double).T
    theta = torch.tensor([1.0, 0.5, 0.4, 0.3, 0.4], dtype=torch.double).log().requires_grad_()
    def all_five():
        E = theta[:1] if floor is None else theta.new_tensor([floor]).log()
        return torch.cat([E, theta[1:]])
    optimizer = torch.optim.LBFGS([theta], max_iter=500, line_search_fn="strong_wolfe")
    def close():
        optimizer.zero_grad()
        guess = predict(all_five(), N, D).log()
        value = F.huber_loss(guess, loss.log(), delta=1e-2, reduction="sum")
        value.backward()
        return value
    optimizer.step(close)
    return all_five().detach()


# %% [markdown]
# From each seed, and from all:

# %%
def runs_of(seeds, budgets=tuple(recorded)):
    return [(size(int(width)), float(budget) / 6 / size(int(width)), losses[seed])
            for budget in budgets for width, losses in recorded[budget].items() for seed in seeds]


def report(name, runs, floor=None):
    theta = fit(runs, floor)
    E, A, alpha, B, beta = theta.exp().tolist()
    N, D, loss = torch.tensor(runs, dtype=torch.double).T
    print(f"{name:16} E {E:.2f}, A {A:.2f}, B {B:.2f}, alpha {alpha:.2f}, beta {beta:.2f}: off by "
          f"{(predict(theta, N, D) - loss).abs().mean():.4f}; a = {beta / (alpha + beta):.2f}")


for seeds in ("0", "1", "2", "012"):
    report(f"seeds {seeds}", runs_of(seeds))

# %% [markdown]
# (From the formula, the best size for $C = 6ND$ grows as $C^{\beta / (\alpha + \beta)}$: set the derivative to zero.)
#
# Two methods, the same runs, and two values of $a$: that, more than the spread between seeds, says how well we know it.
#
# And the floor? Three seeds agree on $E$ to within 0.03. But all three have the same budgets and sizes. Hold $E$ fixed,
# or leave one budget out. Which of the numbers do you expect to move?

# %%
for floor in (1.5, 1.6, 1.7, 1.75):
    report(f"E held at {floor}", runs_of("012"), floor)
for without in recorded:
    rest = [budget for budget in recorded if budget != without]
    report(f"without {without}", runs_of("012", rest))

# %% [markdown]
# Anything from 1.5 to 1.75 fits within 0.003 nats of the best, since a higher floor with steeper slopes looks the same
# from here: $\alpha$ goes from 0.33 to 0.54, $\beta$ from 0.42 to 0.66. Their ratio, and with it $a$, hardly moves. But $a$
# leans on the smallest budget: without it, it is 0.45.
#
# A fit that passes through its points proves little. The real test is to predict what was *not* fitted. Take the three
# smaller budgets, and predict the largest:

# %%
theta = fit(runs_of("012", tuple(recorded)[:-1]))
held_out = torch.tensor(runs_of("012", tuple(recorded)[-1:]), dtype=torch.double)
guess = predict(theta, *held_out.T[:2])
wrong = (guess - held_out[:, 2]).abs()
print(f"three times the budget fitted: off by {wrong.mean():.3f} nats, {wrong.max():.3f} at most")
nothing = torch.tensor(runs_of("012", tuple(recorded)[-2:-1]), dtype=torch.double)[:, 2].mean()
print(f"saying that nothing will change: off by {(held_out[:, 2] - nothing).abs().mean():.3f}")

# %% [markdown]
# Three times the budget can be predicted. That is how large runs are planned: small ones are fitted, and the large one
# is trained once.
#
# ### 12.4 How do ours compare?
#
# | | $\alpha$ | $\beta$ | $E$ | models |
# | --- | --- | --- | --- | --- |
# | Kaplan et al. 2020 ($N^{-0.076}$, without $E$) | 0.076 | 0.095 | – | to 1.5 billion |
# | Hoffmann et al. 2022 | 0.34 | 0.28 | 1.69 | 70 million to 16 billion |
# | Besiroglu et al. 2024, Hoffmann's data fitted again | 0.35 | 0.37 | 1.82 | the same |
# | ours | above | above | above | 4 to 800 thousand |
#
# Do not compare the numbers as they stand. Kaplan's law has no $E$. A power law *with* a floor, fitted as if it had
# none, looks flatter: the floor is a large part of the loss, and does not fall. Ours does, too:

# %%
losses = [loss for _, loss in best.values()]
print(f"without a floor, the best loss falls as C^{slope(C, losses):.3f}; Kaplan et al.: C^-0.050")
E = fit(runs_of("012")).exp()[0].item()
print(f"what is above the floor E = {E:.2f}: {slope(C, [loss - E for loss in losses]):.3f}")

# %% [markdown]
# And ours are letters, not tokens; models ten thousand times smaller; plays by one author, read up to twice; a factor
# of 27 in operations where Hoffmann et al. have 500 and Kaplan et al. millions. From so short a range the
# floor is known to little more than a tenth of a nat, and the slopes to about a third. What carries over is the
# *shape*: each budget has its size, size and text must grow together, and a small fit predicts the next step up. That
# even the experts' fit had to be done again shows how much care it takes.
#
# And when text runs out? Lesson 10 read 8,000 letters nineteen times: the larger model got better on them, and worse on
# anything else. "Transformers overfit small data sets" is right for a *given* size; up to about four rounds through the
# same text are worth nearly as much as new text (Muennighoff et al. 2023), and after that, little. How large today's
# largest models are, and what they have read, is mostly unpublished; GPT-4's size never was published. Take numbers
# that go round as guesses.

# %% [markdown]
# ## 13 Quiz
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
# Right. That leaves 8 GB for activations. A small batch with accumulation, or checkpointing, makes do with them.
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
# **3. You go from one to four ranks, and keep the batch of each rank. What has changed for the optimizer?**
#
# <details><summary>A. Nothing</summary>
#
# The gradient is now the mean over four times as many tokens.
# </details>
# <details><summary>B. The step's batch is four times as large</summary>
#
# Right. It is less noisy, and there are fewer steps per epoch: the learning rate may have to change. To keep all as it
# was, give each rank a quarter of the batch; the library deals batches out that way.
# </details>
# <details><summary>C. Gradients are four times as large</summary>
#
# Only if you forget to divide.
# </details>
#
# **4. Stage 2 of ZeRO shards optimizer and gradients. How much more has to travel than in data parallel?**
#
# <details><summary>A. Nothing more</summary>
#
# Right. Reduce-scatter and all-gather are the two halves of the all-reduce.
# </details>
# <details><summary>B. Half as much again</summary>
#
# That is stage 3, which gathers the weights twice.
# </details>
# <details><summary>C. Twice as much</summary>
#
# The all-gather takes the place of a part; it does not come on top.
# </details>
#
# **5. You have trained a model of 10 million parameters on 200 million tokens. Now you have ten times the operations.
# What do you try?**
#
# <details><summary>A. 100 million parameters on the same tokens</summary>
#
# Kaplan's answer would be nearer to that; Chinchilla's is not.
# </details>
# <details><summary>B. About 30 million parameters on about 600 million tokens</summary>
#
# Right: both grow with $\sqrt{10}$, if $a$ is 0.5. If the model will be used a lot, take a smaller one and read more.
# </details>
# <details><summary>C. The same model on 2 billion tokens</summary>
#
# It has little room left for them.
# </details>

# %% [markdown]
# ## 14 Summary
#
# - Training holds 16 bytes per parameter, and $16\,dL$ numbers per token. Both can be counted before a run.
# - 16 bits: float16 is narrow and needs a loss scaler; bfloat16 is coarse and needs none. Weights stay in 32.
# - Accumulation and data parallel add up sums, and divide once by all tokens. Checkpointing keeps inputs of blocks, and
#   pays a third more operations.
# - An all-reduce is a reduce-scatter and an all-gather; a ring sends less than $2N$ numbers per rank, however many.
# - Sharding cuts what belongs to the weights; tensor parallel cuts the products, columns first; a pipeline cuts the
#   stack, and waits $(p-1)/(m+p-1)$ of the time. All give the gradients of one process.
# - Cost is operations / (peak × utilisation). For a budget there is a best size; small runs can predict it, with an
#   error that has to be measured.
#
# **Read** Micikevicius et al. 2018, *Mixed Precision Training*, [arXiv:1710.03740](https://arxiv.org/abs/1710.03740),
# section 3. Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost*,
# [arXiv:1604.06174](https://arxiv.org/abs/1604.06174), section 4. Rajbhandari et al. 2020, *ZeRO*,
# [arXiv:1910.02054](https://arxiv.org/abs/1910.02054), sections 3 and 5. Shoeybi et al. 2019, *Megatron-LM*,
# [arXiv:1909.08053](https://arxiv.org/abs/1909.08053), section 3. Narayanan et al. 2021,
# [arXiv:2104.04473](https://arxiv.org/abs/2104.04473), section 2. Kaplan et al. 2020,
# [arXiv:2001.08361](https://arxiv.org/abs/2001.08361), and Hoffmann et al. 2022,
# [arXiv:2203.15556](https://arxiv.org/abs/2203.15556), sections 3 and 4. Porian et al. 2024,
# [arXiv:2406.19146](https://arxiv.org/abs/2406.19146). Patterson et al. 2021,
# [arXiv:2104.10350](https://arxiv.org/abs/2104.10350).
#
# **Do** the exercise [35_scale](../exercises/exercise_35_scale.ipynb). It is the last one.
