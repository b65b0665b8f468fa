# %% [markdown] lesson={"part": "IV Efficiency", "builds": "an all-reduce in a ring; data, sharded, tensor, context and pipeline parallel on processes that run; traffic in seconds"}
# # 36 · Many devices
#
# **After this lesson you will be able to**
#
# - write an all-reduce as a ring, and say what each rank sends;
# - split a training step over processes by texts, by weights, by columns, by tokens and by layers, each with the
#   result of one process;
# - say what travels in each, and who waits;
# - turn traffic into seconds, and choose: which kind of parallelism when.
#
# **You need** lessons 06, 34 and 35. **It takes** about 60 minutes to read and try; all cells together run in about
# half a minute on a laptop. No GPU is needed: two or three processes on your processor stand for as many.

# %% [markdown]
# ## 1 The problem: one device is too small and too slow
#
# Lesson 35 counted what a run holds: 16 bytes per parameter, and activations on top.
# Training Llama 7B takes 108 GB before the first token, and no GPU of 80 GB holds that. GPT-3 took $3.15 \cdot 10^{23}$
# operations. A GPU that does $4 \cdot 10^{14}$ per second would need 25 years. So the work is split over many devices,
# and now something has to travel between them. There are five ways to cut.

# %%
import copy
import math
import os
import time

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # as txlib's command does

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from txlib import plots
from txcourse import figures
from txcourse.lesson import expect, predict, predicted, prove_equal, show_source
from txlib.training.processes import run_ranks

torch.set_num_threads(1)  # two processes share two cores

# %% [markdown]
# A model is drawn as layers × width, a batch as texts × tokens, each rank in its color:

# %% jupyter={"source_hidden": true}
figures.cuts(
    {f"{way} (§ {section})": way for way, section in
     {"data": 3, "sharded": 4, "tensor": 5, "context": 5, "pipeline": 6}.items()},
    title="Five ways to cut a training step into four", alt="Five panels for four ranks, each a model of layers times "
    "width above a batch of texts times tokens. Data: all ranks have the model, the texts are split. Sharded: both are "
    "split. Tensor: the width is split, all have the batch. Context: all have the model, the tokens of each text are "
    "split. Pipeline: the layers are split.",
)

# %% [markdown]
# | Way | What is cut | What travels | When |
# | --- | --- | --- | --- |
# | data | the texts | gradients | once per step |
# | sharded | texts, and what belongs to the weights | weights and gradients | layer by layer |
# | tensor | each matrix | activations | four times per layer |
# | context | the tokens of a text | keys and values | in each attention |
# | pipeline | the stack of layers | activations at the seams | once per seam, forward and backward |
#
# None of them should change what is learned. That is the claim we check in each section: gradients or weights
# (for context parallel, the output) are those of one process, up to rounding.
#
# ### Processes
#
# Several devices are driven by several **processes**, each with its own memory. All run the same program. Each knows
# its number, its **rank**, and how many there are, the **world size**. If one needs something from another, it has to
# be sent. On a cluster torch's `torchrun` starts them. In this notebook `run_ranks(function, world, …)` calls
# `function(rank, …)` in each of several new processes, and returns the list of what they return. A first try: does a
# list that all of them change become longer here?

# %%
notes = []


def hello(rank, word):
    notes.append(f"{word} from rank {rank}")
    return f"{notes[-1]} of {dist.get_world_size()}; my notes: {len(notes)}"


for line in run_ranks(hello, 2, "Greetings"):
    print(line)
print("notes in this notebook:", len(notes))

# %% [markdown]
# Each had a copy of its own, and the notebook's list is still empty. Nothing is shared; everything is sent.

# %% [markdown]
# ## 2 Everyone needs the sum: a ring
#
# Training needs one thing of these processes: each rank will have a gradient, and
# all need the sum. That is an **all-reduce**. Let three ranks hold three numbers each:
#
# | rank 0 | rank 1 | rank 2 | sum |
# | --- | --- | --- | --- |
# | 1, 2, 3 | 10, 20, 30 | 100, 200, 300 | 111, 222, 333 |
#
# Rank 0 could collect everything and send the sum back. Then $(w - 1)N$ numbers arrive at one rank and as many leave
# it, while the others wait. In a **ring** each rank sends to its right neighbor only (Patarasuk & Yuan 2009). Cut the
# numbers into $w$ **chunks**, here of one number. In each step every rank sends one chunk on, and *adds* the one that
# arrives:

# %%
held = [[1, 2, 3], [10, 20, 30], [100, 200, 300]]  # [rank][chunk]
for step in range(2):
    sent = [held[rank][(rank - step) % 3] for rank in range(3)]
    for rank in range(3):
        held[rank][(rank - step - 1) % 3] += sent[rank - 1]  # from the left
    print(f"after step {step + 1}:", held)

# %% [markdown]
# After $w - 1$ steps each rank has one chunk of the sum: 222 on rank 0, 333 on rank 1, 111 on rank 2. That first half
# is a **reduce-scatter**. In $w - 1$ more steps the finished chunks are handed around, and what arrives *replaces*: an
# **all-gather**. With four ranks, where each number counts how many ranks are summed up in a chunk:

# %% jupyter={"source_hidden": true}
figures.ring(
    title="Three steps add up, three hand around what is complete", alt="Seven grids of 4 ranks by 4 chunks, each with "
    "how many ranks are summed up there. At first all are 1; after three steps each rank has one chunk with all 4, "
    "after three more all.",
)

# %% [markdown]
# Now between processes. `isend` does not wait until the neighbor has received; if it did, all could wait for each other
# forever:


# %%
def pass_right(chunk, like):
    """Send a chunk to the right; return what comes from the left."""
    rank, world = dist.get_rank(), dist.get_world_size()
    arrived = torch.empty_like(like)
    sending = dist.isend(chunk, (rank + 1) % world)
    dist.recv(arrived, (rank - 1) % world)
    sending.wait()
    return arrived


def reduce_scatter(chunks):
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(world - 1):
        out, into = (rank - step) % world, (rank - step - 1) % world
        chunks[into].add_(pass_right(chunks[out], chunks[into]))
    return (rank + 1) % world  # the chunk that is complete here


# %% [markdown]
# The second half, and both together. (`tensor_split` makes views, so the tensor itself is changed; chunks may differ
# by one number in length.)


# %%
def all_gather(chunks):
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(world - 1):
        out, into = (rank + 1 - step) % world, (rank - step) % world
        chunks[into].copy_(pass_right(chunks[out], chunks[into]))


def all_reduce(tensor):
    chunks = tensor.view(-1).tensor_split(dist.get_world_size())
    reduce_scatter(chunks)
    all_gather(chunks)
    return tensor


def try_ring(rank, numbers):
    theirs = numbers[rank].clone()
    dist.all_reduce(theirs)  # torch's own
    return all_reduce(numbers[rank].clone()), theirs


# %% [markdown]
# On three ranks:

# %%
numbers = torch.randn(3, 1000)  # (rank, 1000)
for ours, theirs in run_ranks(try_ring, 3, numbers):
    prove_equal(ours, numbers.sum(dim=0), what="Your ring and the sum")
    prove_equal(ours, theirs, what="Your ring and torch's")

# %% [markdown]
# How much does the busiest rank send? Collecting: $(w - 1)N$, the sum to each of the others. In the ring each rank
# sends $2(w - 1)$ chunks of $N / w$ numbers.

# %% jupyter={"source_hidden": true}
predict("ring-ranks", "From 8 ranks to 64, what happens to the numbers that each rank sends in the ring?",
        "8 times as many", "about as many", "an eighth")

# %%
for w in (2, 8, 64, 1024):
    print(f"{w:5} ranks: collecting {w - 1:5} N, in the ring {2 * (w - 1) / w:.2f} N")

# %% jupyter={"source_hidden": true}
predicted("ring-ranks", "about as many", "There are more steps, and each sends less.")

# %% [markdown]
# Less than $2N$ **however many ranks there are**: more ranks hardly mean more traffic for any of them. (The *number* of
# messages does grow with $w$. Where each takes long to arrive, fewer and larger ones are better: the exercise builds
# that.)

# %% [markdown]
# ## 3 Cut the batch: data parallel
#
# With the sum, a training step on two ranks takes a few lines. In **data parallel** training each rank has all the
# weights, and takes its rows of the batch. Rows differ in length, so lesson 35 applies: add up sums, and divide once by
# the number of letters *of all ranks*. Eight lines of a play, and the library's GPT:

# %%
from txlib.data import shakespeare
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig
from txlib.training import TrainConfig, train
from txlib.training.distributed import DistributedContext

texts = shakespeare()
letters = sorted(set(texts.train + texts.validation))
lines = [line for line in texts.validation.split("\n")[40:80] if len(line) > 4]
lines = sorted(lines, key=len)[::3][:8]
encoded = [torch.tensor([letters.index(letter) for letter in line]) for line in lines]
padded = nn.utils.rnn.pad_sequence(encoded, padding_value=-100)  # (n, 8)
batch = padded.T.contiguous()  # (8, n)
torch.manual_seed(0)
block = BlockConfig.of_sizes(64, 4, 256, position="learned", activation="gelu")
gpt = GPT(GPTConfig(len(letters), block, layers=2, max_length=64))

# %% [markdown]
# The loss is a sum, with the number of letters that it sums over. A gradient, as one vector:


# %%
def loss_sum(model, rows):  # (rows, n): a sum, and over how many letters
    logits, target = model(rows[:, :-1].clamp(min=0)).logits, rows[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
    return loss, (target >= 0).sum()


def gradient(model, rows):
    loss, count = loss_sum(model, rows)
    gradients = torch.autograd.grad(loss / count, list(model.parameters()))
    return torch.cat([each.flatten() for each in gradients])


def data_parallel(rank, model, batch):
    loss, count = loss_sum(model, batch[rank :: dist.get_world_size()])  # its rows
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    total = torch.cat([each.flatten() for each in gradients])
    return all_reduce(total) / all_reduce(count.float()[None])


# %% [markdown]
# Compare each rank's gradient with that of one process for the whole batch:

# %%
whole = gradient(gpt, batch)
for found in run_ranks(data_parallel, 2, gpt, batch):
    prove_equal(found, whole, what="A rank's gradient and that of one process")

# %% [markdown]
# Both ranks have the same gradient, so they make the same step, and stay equal without ever sending weights.
#
# **Break it.** Let each rank divide by its *own* number of letters, and average the two means. The rows are dealt out
# in turn, so both ranks have short lines and long ones. How wrong is the gradient?

# %%
mean = (gradient(gpt, batch[0::2]) + gradient(gpt, batch[1::2])) / 2
wrong = (mean - whole).norm() / whole.norm()
print(f"the mean of the ranks' means: relative error {wrong:.1%}")

# %% [markdown]
# Nothing fails, and training goes on. Such a mistake is found only by comparing.
#
# ### 3.1 Overlap: send while computing
#
# Backward starts with the last layer, and its gradients are ready first. They can travel while the layers below still
# compute. A model of four layers: the backward pass of each takes 2 ms, and its gradients travel for 1.5 ms. If all
# are sent at the end: $4 \cdot 2 + 4 \cdot 1.5 = 14$ ms. If each is sent as soon as it is ready, all but the last
# travel behind the computing: $4 \cdot 2 + 1.5 = 9.5$ ms.

# %%
def backward_and_send(travel, overlap, compute=2, layers=4):
    """Pieces of work: (start, length, layer, kind), of the processor and the wire."""
    work, wire, free = [], [], 0
    for index in range(layers):
        name, ready = str(layers - index), (index + 1) * compute
        work.append((index * compute, compute, name, "backward"))
        start = max(free, ready if overlap else layers * compute)
        wire.append((start, travel, name, "travels"))
        free = start + travel  # when the wire is free again
    return {"computes": work, "sends": wire}, free


for travel in (1.5, 2, 4):
    late, soon = (backward_and_send(travel, overlap)[1] for overlap in (False, True))
    print(f"{travel} ms per layer: at the end {late} ms, as soon as ready {soon} ms")

# %% jupyter={"source_hidden": true}
figures.timetable(
    {name: backward_and_send(1.5, overlap)[0] for name, overlap in {"at the end": False, "as soon as ready": True}.items()},
    title="Gradients travel while the layers below compute", alt="Two timetables with a row that computes and a row "
    "that sends, for layers 4 to 1. At the end: four pieces of backward, then four that travel, 14 ms in all. As soon "
    "as ready: each travels below the next layer's backward, and only the last one sticks out, 9.5 ms in all.",
)

# %% [markdown]
# Slow traffic can't hide: at 4 ms per layer the step takes 18 ms, of which 10 are waiting. Section 7 asks when that
# happens.
#
# ### 3.2 Open the library
#
# Torch's `DistributedDataParallel` does what you did, with overlap, in buckets of 25 MB (Li et al. 2020). The library's
# loop uses it, and finds out by itself that it is one of several. Three steps, on two ranks and alone; then what deals
# out a batch:


# %%
def with_library(rank, model, batch, engine="ddp"):
    model = copy.deepcopy(model)
    config = TrainConfig(lr=1e-3, warmup=1, precision="fp32", parallel=engine)
    train(model, lambda epoch: [batch], loss_sum, config, steps=3, quiet=True)
    return nn.utils.parameters_to_vector(model.parameters()).detach()


alone = with_library(0, gpt, batch)
for found in run_ranks(with_library, 2, gpt, batch):
    prove_equal(found, alone, tolerance=1e-4, what="Weights after three steps")
show_source(DistributedContext.shard_batch)

# %% [markdown]
# In a shell, with any number of processes: `torchrun --nproc-per-node 2 -m txlib train shakespeare`.

# %% [markdown]
# ## 4 Cut what belongs to the weights: sharding
#
# Each rank computes with its own texts now, but there is no more room than before: all ranks hold the same 16 bytes per
# parameter, $w$ times the same thing. **ZeRO** (Rajbhandari et al. 2020) gives each rank a fraction of its own, in
# three stages. In mixed precision (lesson 35), for 7 billion parameters on four ranks:


# %%
def zero(N, world, stage):
    """GB that a rank holds of what belongs to the weights, in mixed precision."""
    size = {"weights": 2, "gradients": 2, "optimizer and master copy": 12}
    first_stage = {"weights": 3, "gradients": 2, "optimizer and master copy": 1}
    return {part: N * size[part] / (world if stage >= first_stage[part] else 1) / 1e9
            for part in size}


stages = ["data parallel", "1: optimizer", "2: and gradients", "3: and weights"]
figures.shards(
    {name: [zero(6.74e9, 4, stage)] * 4 for stage, name in enumerate(stages)},
    title="Sharded stage by stage: 108 GB become 27",
    alt="Four panels, each with a bar for each of four ranks. GB per rank: data "
    "parallel 108; 1: optimizer 47; 2: and gradients 37; 3: and weights 27.")

# %% [markdown]
# How can a rank do without the others' part? Adam treats each number by itself. So a rank can update *its* numbers
# alone, if it has their gradients, *summed over all ranks*: a reduce-scatter. An all-gather then hands the new weights
# around. Together they are the all-reduce from before, so **sharding the optimizer and the gradients costs no more
# traffic at all.** Lay all weights into one vector. Adam by hand, on a rank's own chunk. (The
# whole gradient still exists here for a moment; stage 2 sends each layer's part as soon as it is ready, and drops it.)


# %%
def sharded_steps(rank, model, batch, steps=3, lr=1e-3):
    world = dist.get_world_size()
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    chunks, own = flat.tensor_split(world), (rank + 1) % world  # views of the weights
    m = v = torch.zeros_like(chunks[own])  # a fraction of Adam's means
    for step in range(1, steps + 1):
        nn.utils.vector_to_parameters(flat, model.parameters())
        g = part_of_gradient(model, batch[rank::world])
        m, v = m.lerp(g, 0.1), v.lerp(g * g, 0.001)
        m_hat, v_hat = m / (1 - 0.9**step), v / (1 - 0.999**step)
        chunks[own].sub_(lr * m_hat / (v_hat.sqrt() + 1e-8))
        all_gather(chunks)
    return flat, m.numel() + v.numel()


# %% [markdown]
# The gradient of its chunk, summed over all ranks:


# %%
def part_of_gradient(model, rows):
    loss, count = loss_sum(model, rows)
    dist.all_reduce(count)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    flat = torch.cat([each.flatten() for each in gradients])
    chunks = flat.tensor_split(dist.get_world_size())
    own = reduce_scatter(chunks)
    return chunks[own] / count


# %% [markdown]
# Against torch's Adam in one process:

# %%
single = copy.deepcopy(gpt)
adam = torch.optim.Adam(single.parameters(), lr=1e-3)
for _ in range(3):
    adam.zero_grad()
    loss, count = loss_sum(single, batch)
    (loss / count).backward()
    adam.step()
weights = nn.utils.parameters_to_vector(single.parameters()).detach()
for rank, (found, kept) in enumerate(run_ranks(sharded_steps, 2, gpt, batch)):
    prove_equal(found, weights, tolerance=1e-4, what="Sharded and whole")
    print(f"rank {rank} keeps {kept:,} of Adam's {2 * len(weights):,} numbers")

# %% [markdown]
# The third stage shards the weights as well. A layer's weights are gathered just before it computes, and dropped right
# after; in the backward pass once more. That is one all-gather more: $3N$ numbers travel per step instead of $2N$.
# Torch calls it **fully sharded data parallel**, FSDP (Zhao et al. 2023). The library's loop uses it if you ask:

# %%
for found in run_ranks(with_library, 2, gpt, batch, "fsdp"):
    prove_equal(found, alone, tolerance=1e-4, what="FSDP's weights and one process's")

# %% [markdown]
# ## 5 Cut each layer, or each text
#
# ### 5.1 Columns first, then rows: tensor parallel
#
# We have sharded weights, but they are gathered before use: one whole layer and its activations must fit. What is
# missing is a way to split the *products*, which also works with fewer texts than ranks. The feed-forward network is
# $\text{gelu}(x W_1)\, W_2$. With numbers: $x = 2$, $W_1 = (1, 3)$, and $W_2$ the column $(10, 1)$; let the activation
# be $x^2$. One rank: $2^2 \cdot 10 + 6^2 \cdot 1 = 76$. Two ranks: the first has the column 1 and the row 10, and finds
# 40; the second finds 36; the sum is 76. **Tensor parallel** (Shoeybi et al. 2019, "Megatron-LM") does this with
# matrices: each rank takes a part of $W_1$'s columns, then the same part of $W_2$'s rows.

# %% jupyter={"source_hidden": true}
figures.split_network(
    title="Columns first, then rows: one sum at the end", alt="Two rows, one per rank, from left to right. Each "
    "multiplies all of x by its half of the columns of W1, applies the GELU, and multiplies its half of the hidden "
    "numbers by its half of the rows of W2. An all-reduce adds both summands; the result is the same on both ranks.",
)

# %% [markdown]
# $$\text{gelu}(x W_1)\, W_2 = \underbrace{\text{gelu}(x W_1^{(0)})\, W_2^{(0)}}_{\text{rank 0}} +
# \underbrace{\text{gelu}(x W_1^{(1)})\, W_2^{(1)}}_{\text{rank 1}}$$
#
# Attention splits even more simply: heads know nothing of each other until the output projection, so each rank takes
# some of the *heads*, and the matching rows of that projection.
#
# And backward? A sum hands its gradient to each summand: nothing to send. But $x$ was used by both ranks, so its
# gradient is a sum over ranks. Two functions, mirror images of each other:


# %%
def summed(x):
    total = x.clone()
    dist.all_reduce(total)
    return total


# %% [markdown]
# Forward a sum, backward nothing; and the other way around:


# %%
class SumForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return summed(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class SumBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return summed(gradient)


# %% [markdown]
# The feed-forward network of a block, with its norm and its residual. (A `Linear`'s weight is stored as out × in, so
# "columns first" cuts its *first* axis.)


# %%
def feed_forward(x, W1, W2, before=lambda x: x, after=lambda x: x):
    z = before(F.layer_norm(x, x.shape[-1:]))  # (n, d)
    return x + after(F.gelu(z @ W1.T) @ W2.T)  # (n, d)


def tensor_parallel(rank, x, W1, W2):
    world = dist.get_world_size()
    x.requires_grad_()
    my_W1 = W1.chunk(world, dim=0)[rank].clone().requires_grad_()  # (4d / w, d)
    my_W2 = W2.chunk(world, dim=1)[rank].clone().requires_grad_()  # (d, 4d / w)
    y = feed_forward(x, my_W1, my_W2, SumBackward.apply, SumForward.apply)
    y.square().sum().backward()  # a loss that we made up
    return y.detach(), x.grad, my_W1.grad, my_W2.grad


# %% [markdown]
# The same network whole, and the comparison of output and gradients:

# %%
torch.manual_seed(0)
n, d = 12, 32
x, W1, W2 = torch.randn(n, d), torch.randn(4 * d, d) / 6, torch.randn(d, 4 * d) / 12
given = [each.clone().requires_grad_() for each in (x, W1, W2)]
y = feed_forward(*given)
y.square().sum().backward()
found = run_ranks(tensor_parallel, 2, x, W1, W2)
for my_y, d_x, _, _ in found:
    prove_equal(my_y, y, tolerance=1e-4, what="A rank's output and the whole network's")
    prove_equal(d_x, given[0].grad, tolerance=1e-3, what="The gradients of x")
d_W1 = torch.cat([d_W1 for _, _, d_W1, _ in found], dim=0)  # (4d, d)
d_W2 = torch.cat([d_W2 for _, _, _, d_W2 in found], dim=1)  # (d, 4d)
prove_equal(d_W1, given[1].grad, tolerance=1e-3, what="The gradients of W1")
prove_equal(d_W2, given[2].grad, tolerance=1e-3, what="The gradients of W2")

# %% [markdown]
# **Break it**: cut $W_1$ along rows and $W_2$ along columns, the other way around. Then each rank has one summand where
# the GELU needs the sum:

# %%
z, (left, right) = F.layer_norm(x, x.shape[-1:]), W1.chunk(2, dim=1)
z_left, z_right = z.chunk(2, dim=1)  # (n, d / 2) each
added = F.gelu(z_left @ left.T) + F.gelu(z_right @ right.T)  # (n, 4d)
hidden = F.gelu(z @ W1.T)  # (n, 4d)
wrong = (added - hidden).norm() / hidden.norm()
print(f"gelu of the parts, added: relative error {wrong:.0%}")

# %% [markdown]
# An all-reduce of $4d$ numbers per token before the GELU would repair it. With columns first, none is needed.
#
# Torch writes such a split as a *plan*: which matrix is cut how. The library makes the plan for all attention layers
# and feed-forward networks of a model. Section 3's GPT, three steps, both ranks with all rows:

# %%
for found in run_ranks(with_library, 2, gpt, batch, "tp"):
    prove_equal(found, alone, tolerance=1e-4, what="Tensor parallel and one process")

# %% [markdown]
# Two all-reduces per block forward and two backward, of $n\,d$ numbers per text, and *everyone waits for them*. So
# tensor parallel stays inside one machine, where links are fast. (Between the two, norms and residuals are computed by
# all ranks alike. **Sequence parallel** splits those by tokens: the all-reduce becomes an all-gather and a
# reduce-scatter, and activations shrink, Korthikanti et al. 2022.)
#
# ### 5.2 Cut the text: context parallel
#
# What if a single text is too long, a million tokens? **Context parallel** gives each rank a run of its tokens.
# Everything in a block treats tokens one by one, except attention. There a query needs all keys, and only the ranks
# together have them. Lesson 34's trick helps: attention over a part of the keys, with the log $L$ of the sum of its
# exponentials, can be **joined** with another part. With two small numbers: rank 0 has a key with score 0 and value 1,
# rank 1 one with score $\ln 3$ and value 5.
#
# - Whole: weights $\frac{1}{4}$ and $\frac{3}{4}$, so $\frac{1}{4} \cdot 1 + \frac{3}{4} \cdot 5 = 4$.
# - In parts: rank 0 says "1, with a sum of 1", rank 1 "5, with a sum of 3". Joined: $(1 \cdot 1 + 3 \cdot 5) / (1 + 3)
#   = 4$.


# %%
def attend(q, k, v, mask):  # (n_q, d), (n_k, d), (n_k, d): the output, and L
    scores = (q @ k.T / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)  # (n_q, n_k)
    return scores.softmax(dim=-1) @ v, scores.logsumexp(dim=-1, keepdim=True)


def join(out, L, other, other_L):
    total = torch.logaddexp(L, other_L)  # (n_q, 1)
    return out * (L - total).exp() + other * (other_L - total).exp(), total


first = torch.tensor([[1.0]]), torch.tensor([[math.log(1)]])
second = torch.tensor([[5.0]]), torch.tensor([[math.log(3)]])
print("joined:", join(*first, *second)[0].item())

# %% [markdown]
# Queries stay at home. Keys and values circulate in the ring, and each rank joins what it finds: **ring attention**
# (Liu et al. 2023). With a causal mask, a part from later in the text is skipped:


# %%
def ring_attention(rank, q, k, v):  # each rank takes its tokens
    world = dist.get_world_size()
    q, k, v = (each.chunk(world)[rank] for each in (q, k, v))  # (n / w, d)
    causal = torch.ones(len(q), len(q), dtype=torch.bool).tril()
    out, L = attend(q, k, v, causal)  # its own part first
    for step in range(1, world):
        k, v = pass_right(k, k), pass_right(v, v)
        if step <= rank:  # from earlier in the text
            out, L = join(out, L, *attend(q, k, v, torch.ones_like(causal)))
    return out


q, k, v = torch.randn(3, 96, 16)  # (n, d) each
expected = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
found = torch.cat(run_ranks(ring_attention, 3, q, k, v))
prove_equal(found, expected, what="A ring of three and whole attention")

# %% [markdown]
# No rank computes with more than a third of the keys at a time, and it holds at most two thirds, while one part leaves
# and the next arrives. (`run_ranks` hands each rank the whole text here; a real one would start with its part. And we
# check the output only. In the backward pass keys and values circulate once more, with their gradients.) But rank 0
# skips two parts of three while rank 2 skips none: causal rings deal out the tokens in another order, an early piece
# and a late one to each rank. (A rival, *Ulysses*, swaps tokens for heads before attention and swaps back after it,
# Jacobs et al. 2023. And the experts of lesson 18 can live on different ranks: **expert parallel**. Then the tokens
# travel, Lepikhin et al. 2020.)

# %% [markdown]
# ## 6 Cut the stack: a pipeline
#
# ### 6.1 On paper
#
# Texts, weights, matrices and tokens are cut. The depth remains. In **pipeline parallel** rank 0 has the first layers,
# rank 1 the next, and so on. Only activations at the seams travel, $n\,d$ numbers per text, once forward and once
# backward. But while rank 1 computes, rank 0 waits. The cure is to cut the batch into $m$ **micro-batches** that follow
# each other (Huang et al. 2019, "GPipe"). Two stages, and backward takes twice as long as forward: with the batch
# whole, each stage works for 3 of 6 units. In two halves, the second stage starts at 0.5, and all is done after 4.5. A
# timetable: each piece starts as soon as its stage is free and its input has arrived.


# %%
def timetable(lengths, micro):  # [stage][forward 0, forward 1, …, backward 0, …]
    stages, free, arrived = len(lengths), [0] * len(lengths), {}
    rows = {f"stage {stage}": [] for stage in range(stages)}
    for kind, order in (("forward", range(stages)), ("backward", range(stages)[::-1])):
        for i in range(micro):
            for stage in order:
                length = lengths[stage][len(rows[f"stage {stage}"])]
                start = max(free[stage], arrived.get((kind, i), 0))
                rows[f"stage {stage}"].append((start, length, str(i), kind))
                free[stage] = arrived[kind, i] = start + length
    return rows, max(free)


def gpipe(stages, micro):
    """The pieces of each stage: if forward takes 1 for the whole batch, backward 2."""
    forward, backward = [1 / micro] * micro, [2 / micro] * micro
    return timetable([[*forward, *backward]] * stages, micro)


# %% jupyter={"source_hidden": true}
figures.timetable(
    {"whole": gpipe(4, 1)[0], "in 4 micro-batches": gpipe(4, 4)[0]}, title="Smaller pieces, less waiting",
    alt="Two timetables of four stages; forward, then backward, which takes twice as long. With the batch whole, one "
    "stage works at a time and the others wait. In four micro-batches they overlap: the waiting is two triangles, and "
    "all is done in less than half the time.",
)

# %% [markdown]
# How much of the time is waiting, the **bubble**? A stage works 3 units in all, a micro-batch takes $3/m$, and the last
# one has to go through all $p$ stages: $3(m + p - 1)/m$ units.
#
# $$\text{bubble} = \frac{p - 1}{m + p - 1}$$

# %%
for p, m in ((2, 1), (2, 4), (4, 4), (4, 32), (16, 32)):
    idle, formula = 1 - 3 / gpipe(p, m)[1], (p - 1) / (m + p - 1)
    print(f"p = {p:2}, m = {m:2}: {idle:.0%} counted, {formula:.0%} by formula")

# %% [markdown]
# ### 6.2 A pipeline that runs
#
# Two processes, each with three layers of a network. Forward: receive, compute, send on; then backward the same way in
# the other direction. The loss, on the last stage, is the sum of squares of the output. Each piece is timed by the
# processor's own clock, for which other programs do not count:


# %%
def pipelined(rank, stages, x, micro):
    stage, kept, times = stages[rank], [], []
    for piece in x.chunk(micro):
        if rank == 1:
            piece = received(piece, 0).requires_grad_()
        out = timed(times, stage, piece)
        if rank == 0:
            dist.send(out.detach(), 1)
        kept.append((piece, out))
    backward_pieces(rank, kept, times)
    return torch.cat([weight.grad.flatten() for weight in stage.parameters()]), times


# %% [markdown]
# How a piece is timed and received, and the backward pass:


# %%
def timed(times, compute, x):
    start = time.thread_time()
    result = compute(x)
    times.append(1000 * (time.thread_time() - start))  # ms
    return result


def received(like, source):
    arrived = torch.empty_like(like)
    dist.recv(arrived, source)
    return arrived


def backward_pieces(rank, kept, times):
    for piece, out in kept:
        d_out = 2 * out.detach() if rank == 1 else received(out.detach(), 1)
        timed(times, out.backward, d_out)
        if rank == 1:
            dist.send(piece.grad, 0)


# %% [markdown]
# The network, and its gradients in one process. Two stages, four micro-batches: how long will the step take?

# %% jupyter={"source_hidden": true}
predict("two-stage-pipeline", "With the batch whole a step takes 100%. In four micro-batches it takes about …",
        "50%", "62%", "80%")

# %%
torch.manual_seed(0)
width, halves = 512, []
for _ in range(2):
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(3)]
    halves.append(nn.Sequential(*layers))
network, inputs = nn.Sequential(*halves), torch.randn(2048, width)
network(inputs).square().sum().backward()
by_one = torch.cat([weight.grad.flatten() for weight in network.parameters()])
network.zero_grad()

# %% [markdown]
# Each piece counts with the shortest of its times in five runs:

# %% tags=["nbval-ignore-output"]
measured, took = {}, {}
for micro in (1, 4, 32):
    tries = [run_ranks(pipelined, 2, halves, inputs, micro) for _ in range(5)]
    (first, _), (second, _) = tries[0]
    prove_equal(torch.cat([first, second]) / by_one.norm(), by_one / by_one.norm(),
                what=f"Gradients with {micro} micro-batches")
    times = torch.tensor([[times for _, times in each] for each in tries]).amin(dim=0)
    measured[micro], took[micro] = timetable(times.tolist(), micro)
    print(f"  {took[micro]:4.0f} ms, {took[micro] / took[1]:.0%}; "
          f"on paper {(micro + 1) / (2 * micro):.0%}; "
          f"a stage computes for {times.sum(dim=1).mean():.0f} ms")
expect("Four micro-batches / one", took[4] / took[1], 0.55, 0.8)

# %% jupyter={"source_hidden": true}
predicted("two-stage-pipeline", "62%", "5 of 8: (m + 1) / 2m.")

# %% [markdown]
# The timetables with these times, each piece as early as its input allows, as on two free cores:

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
figures.timetable(
    {"whole": measured[1], "in 4 micro-batches": measured[4]}, title="With the measured times, two stages overlap",
    xlabel="milliseconds", alt=f"Two measured timetables of two stages. Whole: stage 0, then stage 1 forward and "
    f"backward, then stage 0, {took[1]:.0f} ms. In four micro-batches both work most of {took[4]:.0f} ms.",
)

# %% [markdown]
# (In this run, backward takes much less than twice as long as forward. The formula does not mind, as long as all stages
# are alike.)
# More micro-batches mean less waiting, but small pieces cost more: in 32 of them a stage computes for longer than it
# does for the whole batch, so the step takes longer than on paper. And all their activations wait for the backward
# pass. If each goes back as soon as it can (**1F1B**, one forward, one backward), a stage holds those of at most $p$
# micro-batches instead of $m$, with the same bubble (the schedule with a flush, Narayanan et al. 2021, section 2; that
# of *PipeDream*, 2019, has no bubble, and computes some gradients with older weights).

# %% [markdown]
# ## 7 Which one when: traffic in seconds
#
# We have five ways, each checked against one process. What is missing is a choice, and counting numbers is not enough:
# what counts is the time they travel, next to the time that is computed. Two small numbers: sending 2 GB over a link of
# 50 GB per second takes 40 ms. Behind 100 ms of computing it can hide; with 20 ms, the wire is the limit.
#
# Assumptions, from data sheets; put in your own. An H100 with 40% of its $989 \cdot 10^{12}$ operations per second
# (lesson 35's measurement is 38%); 2 bytes per number; links in one direction: NVLink inside a machine 450 GB/s,
# InfiniBand between machines 50 GB/s, Ethernet 1.25 GB/s.


# %%
LINKS = {"NVLink": 450e9, "InfiniBand": 50e9, "Ethernet": 1.25e9}


def computing(N, tokens, w):
    return 6 * N * tokens / w / (0.4 * 989e12)


def sent(N, L, d, tokens, w):
    """Bytes that each of w ranks sends in a step of so many tokens."""
    ring = (w - 1) / w
    numbers = {"data": 2 * ring * N, "sharded, stage 3": 3 * ring * N,
               "tensor": 4 * L * 2 * ring * tokens * d,
               "context": 6 * L * ring * tokens * d + 2 * ring * N,
               "pipeline": 2 * tokens * d}
    return {way: 2 * number for way, number in numbers.items()}


# %% [markdown]
# (*Context*: keys and values circulate forward, and once more backward with their gradients, and weights' gradients are
# summed as in *data*. A middle stage of a *pipeline* sends $d$ numbers per token forward and $d$ back.) Llama 7B on 8
# GPUs, 131,072 tokens per step:

# %%
N, L, d, w = 6.74e9, 32, 4096, 8
print(f"computing: {computing(N, 131_072, w):.2f} s")
print(f"{'':17}" + "".join(f"{link:>12}" for link in LINKS))
for way, size in sent(N, L, d, 131_072, w).items():
    print(f"{way:17}" + "".join(f"{size / speed:10.2f} s" for speed in LINKS.values()))
crossings = {"Llama 7B": N / (4 * L * d), "GPT-3": 175e9 / (4 * 96 * 12_288)}
for name, tokens in crossings.items():
    print(f"{name}: N / 4Ld = {tokens:,.0f} tokens; "
          f"3.2 million are {3.2e6 / tokens:.0f} times that")

# %% [markdown]
# What is below the computing time can hide behind it, if it may overlap. Data parallel and sharding may (gradients only
# behind the backward pass, two thirds of it). Tensor parallel may not: the next product needs the sum. So its time
# *adds*: over NVLink a third of the computing time, over InfiniBand nearly three times that time. (Context
# parallel looks slow, but it is for long texts. In one text of 131,072 tokens the scores, $12\,n\,d\,L$ operations per
# token, take five times as long as the weights; a kernel that skips what is masked does half of that, 4.3 seconds. So
# the 4.1 seconds over InfiniBand can just be hidden.) Now change the number of tokens in a step:

# %% jupyter={"source_hidden": true}
many = [2**k for k in range(10, 23)]
curves = {"computing": (many, [computing(N, tokens, w) for tokens in many])}
for way, link in (("data", "InfiniBand"), ("tensor", "InfiniBand"), ("tensor", "NVLink"), ("pipeline", "InfiniBand")):
    curves[f"{way}, {link}"] = (many, [sent(N, L, d, tokens, w)[way] / LINKS[link] for tokens in many])
plots.lines(
    curves, xscale="log", yscale="log", xlabel="tokens in a step", ylabel="seconds",
    title="Gradients travel once, activations with each token", alt="Seconds over tokens in a step, both logarithmic, "
    "Llama 7B on 8 GPUs. Computing rises in proportion. Data parallel over InfiniBand is flat and crosses computing at "
    "about 37,000 tokens. Tensor parallel rises in parallel with computing, above it over InfiniBand, below it over "
    "NVLink. A pipeline rises in parallel, far below.",
)

# %% [markdown]
# Data parallel is limited by its wire where the batch is *small*: its traffic is the same for any batch. Tensor
# parallel is limited at every size or at none: its traffic grows with the tokens, as the computing does. Over the same
# link the two send equally much at $N / 4Ld$ tokens, for this model at 13,000. For GPT-3 it is 37,000; with the 3.2
# million tokens of its steps, tensor parallel would send 86 times as much as data parallel.
#
# | You have … | take | because |
# | --- | --- | --- |
# | a model that fits on one device, with its optimizer | data parallel | one sum per step, hidden if the batch is large enough |
# | a model that doesn't fit, and batches that are large enough | sharding (FSDP) | the same code, half as much again to send |
# | layers too wide for one device, or fewer texts than devices | tensor parallel, inside a machine | works at any batch; needs the fast link |
# | texts too long for one device | context parallel | keys and values hide behind attention's $n^2$ |
# | slow links between machines | a pipeline over machines | sends least; waits $(p-1)/(m+p-1)$ |
# | experts | expert parallel | tokens travel to them |
#
# The largest runs multiply them: tensor parallel inside a machine, a pipeline over a few machines, data parallel over
# everything (Narayanan et al. 2021, section 3).

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. You go from one to four ranks, and keep the batch of each rank. What has changed for the optimizer?**
#
# <details><summary>A. Nothing</summary>
#
# The gradient is now the mean over four times as many tokens.
# </details>
# <details><summary>B. The step's batch is four times as large</summary>
#
# Right. It is less noisy, and there are fewer steps per epoch: the learning rate may have to change. To keep everything
# as it was, give each rank a quarter of the batch; the library deals batches out that way.
# </details>
# <details><summary>C. Gradients are four times as large</summary>
#
# Only if you forget to divide.
# </details>
#
# **2. Stage 2 of ZeRO shards optimizer and gradients. How much more has to travel than in data parallel?**
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
# The all-gather replaces a part; it does not come on top.
# </details>
#
# **3. Two machines are joined by Ethernet, and a step has few tokens. A pipeline or tensor parallel between them?**
#
# <details><summary>A. Tensor parallel: few tokens, little traffic</summary>
#
# Little computing as well. The ratio of the two does not depend on the tokens, and four waits per layer remain.
# </details>
# <details><summary>B. A pipeline</summary>
#
# Right. It sends $2d$ numbers per token at one seam instead of $4Ld$. With few tokens, mind the bubble.
# </details>
#
# **4. Why can context parallel join parts of attention exactly?**
#
# <details><summary>A. Softmax is linear</summary>
#
# It is not: each part has been divided by its own sum.
# </details>
# <details><summary>B. Each part also says by what it was divided</summary>
#
# Right: with $L$, the parts can be weighted against each other.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - An all-reduce is a reduce-scatter and an all-gather. A ring sends less than $2N$ numbers per rank, however many
#   ranks.
# - Data parallel cuts the texts; sharding cuts what belongs to the weights as well; tensor parallel cuts the products,
#   columns first; context parallel cuts the text and joins attention; a pipeline cuts the stack and waits
#   $(p-1)/(m+p-1)$ of the time. All give the result of one process.
# - Gradients travel once per step and overlap with the computing. Activations travel with each token, and everyone
#   waits.
# - Divide bytes by the link's speed, and compare with the computing: that tells you which one to use when.
#
# **Read** Rajbhandari et al. 2020, *ZeRO*, [arXiv:1910.02054](https://arxiv.org/abs/1910.02054), sections 3 and 5.
# Shoeybi et al. 2019, *Megatron-LM*, [arXiv:1909.08053](https://arxiv.org/abs/1909.08053), section 3. Narayanan et al.
# 2021, [arXiv:2104.04473](https://arxiv.org/abs/2104.04473), sections 2 and 3. Liu et al. 2023, *Ring Attention*,
# [arXiv:2310.01889](https://arxiv.org/abs/2310.01889), section 3.
#
# **Do** the exercise [36_many_devices](../exercises/exercise_36_many_devices.ipynb). Then go on to
# [37 What training costs](37_costs.ipynb).
