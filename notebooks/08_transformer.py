# %% [markdown] lesson={"part": "I Attention", "builds": "encoder and decoder, trained to translate"}
# # 08 · The encoder–decoder Transformer, trained on real translation
#
# **After this lesson you will be able to**
#
# - put the parts of lessons 03 to 06 together into the Transformer of Vaswani et al. (2017);
# - train it on sentence pairs: teacher forcing, label smoothing, warm-up, batches by length;
# - write a translation word by word, greedily and with a beam;
# - build BLEU by hand, and read the table of results that made the paper famous;
# - recognise a model that has cheated in training;
# - count the parameters and the training cost of the paper's models.
#
# **You need** lesson 01 and lessons 03 to 06. **It takes** about 95 minutes to read and try; all cells together run in
# about a minute on a laptop. Most of that is training.

# %% [markdown]
# ## 1 The problem: a sentence in, another sentence out
#
# In lesson 03 attention learned which words belong together. A translator must do more. First, what we need:

# %%
import json
import math
import re
from collections import Counter
from statistics import mean

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from txlib import plots
from txcourse import explore, figures
from txcourse.lesson import expect, progress, prove_equal, show_source
from txlib.devices import default_device
from txlib.data import batches_by_length, collate, padding_share, shipped, translation
from txlib.layers import BlockConfig, LayerNorm, TransformerBlock
from txlib.text import Tokenizer

# %% [markdown]
# The sentences come from free computer games, each in German and in English. We train on the short ones, which are
# learned fastest. Look at some pairs:

# %%
everything = translation("games")  # split into train, validation and test
short = translation("games", max_words=8)  # those with at most 8 English words
for german, english in [pair for pair in short.test if len(pair[0]) < 45][6:300:45]:
    print(f"{german:46} {english}")

# %% [markdown]
# Two things stand in the way of translating word by word. The words come in another order: *Bericht erstatten* stands
# last, *report* in the middle. And the two sides have different lengths. How often?

# %%
lengths = [(len(german.split()), len(english.split())) for german, english in short.train]
print(f"{len(short.train):,} training pairs")
print(f"different number of words: {mean(g != e for g, e in lengths):.0%}")
print(f"largest difference: {max(abs(g - e) for g, e in lengths)} words")

# %% [markdown]
# So the output's length cannot be read off the input, and position 3 of one side says little about position 3 of the
# other. The answer of Sutskever et al. and Cho et al. (2014), which lesson 02 builds from recurrent nets: split the
# work. An **encoder** reads the whole source. A **decoder** writes the target, one word after the other, and decides
# itself when it is done. It needs two things for the next word: what the source says, and what it has written so far.
# Here both are made of attention.

# %% [markdown]
# ## 2 The idea in one picture
#
# You know every box. What is new is how they are wired. Read it from the bottom, with the pair that you have followed
# since lesson 03.

# %%
figures.encoder_decoder(
    source="Die Orks haben die Menschen angegriffen!",
    shifted="<bos> The orcs have attacked the humans.",
    target="The orcs have attacked the humans. <eos>",
    title="The encoder reads; the decoder writes, and looks up what was read",
    alt="Two towers, read from the bottom. Left, the encoder: the source's embedding plus positions, "
    "then N blocks of self-attention and feed-forward. Right, the decoder: the shifted target's "
    "embedding plus positions, then N blocks of causal self-attention, cross-attention and feed-"
    "forward, then the transposed embedding and a softmax, which give the target. Each sub-layer "
    "branches off a thick line, is added to it again, and a norm follows. From the top of the "
    "encoder's stack the memory goes to the keys and values of each cross-attention; its queries "
    "come from the decoder. At the side, one sub-layer twice: post-norm has the norm on the line,"
    " after the addition; pre-norm has it on the branch, before the sub-layer.",
)

# %% [markdown]
# This is the paper's figure 1, with the residual stream of lesson 06 as the thick line. What leaves the *top* of the
# encoder's stack is called the **memory**: one vector per source token, each aware of the whole sentence. All blocks of
# the decoder read the same memory. A decoder block has three sub-layers:
#
# 1. *causal self-attention*: what have I written?
# 2. *cross-attention*: queries from the decoder, keys and values from the memory. What do I need from the source?
# 3. *feed-forward*: think about it.
#
# At the right is the one wire that we change: pre-norm in place of post-norm (lesson 06). (Our positions come in
# elsewhere, too: not added at the bottom, but by rotating the queries and keys of each self-attention, as in lesson 05.
# Cross-attention has no positions of its own.)
#
# As an equation, the model is a chain of conditional probabilities. With source $x$ and target $y_1 \dots y_n$, where
# $y_n$ is the sign for the end:
#
# $$p(y \mid x) = \prod_{t=1}^{n} p(y_t \mid y_1 \dots y_{t-1}, x)$$

# %% [markdown]
# ## 3 Build it
#
# ### 3.1 Words to numbers
#
# Lesson 01's byte-pair encoding gives pieces of words their numbers; `▁` stands for the space before a word. One
# vocabulary serves both languages, so that names and endings are shared. Three numbers are special: `PAD`, padding,
# `BOS`, the start, and `EOS`, the end of a sentence.

# %%
vocabulary = Tokenizer.train([side for pair in everything.train for side in pair], size=4000)
PAD, BOS, EOS = vocabulary.pad_id, vocabulary.bos_id, vocabulary.eos_id
print("special:", PAD, BOS, EOS)
print([vocabulary.token(id) for id in vocabulary.encode("Die Zwergenkönige schlafen.")])

# %% [markdown]
# A batch is a matrix. `collate` appends an `EOS` to each sentence and fills the short ones up: the source with `PAD`,
# and the *labels*, which the decoder is to write, with −100, which no loss counts. Here is our pair, with a shorter
# one.

# %%
encoded = list(zip(*(vocabulary.encode_batch(side) for side in zip(*short.train)), strict=True))
followed = short.train.index(
    ("Die Orks haben die Menschen angegriffen!", "The orcs have attacked the humans.")
)
shorter = next(pair for pair in encoded if len(pair[0]) == 5)
example = collate([shorter, encoded[followed]], BOS, EOS, PAD)
print("input_ids      ", example.input_ids.tolist())               # (batch, source)
print("attention_mask ", example.attention_mask.tolist())  # (batch, source): 1 = a real token
print("labels         ", example.labels.tolist())                  # (batch, target)

# %% [markdown]
# ### 3.2 Shift right: teacher forcing
#
# To predict word $t$, the decoder reads words $1 \dots t-1$. In training we know the right ones, and we give it those,
# whatever it would have written itself. This is *teacher forcing*. So the decoder's input is the labels, moved one
# place to the right, with `BOS` in front. All positions are trained at once, in one pass. (A recurrent decoder, as in
# lesson 02, has to take them one after the other, even in training.)


# %%
def shift_right(labels):                                           # (batch, target)
    start = torch.full_like(labels[:, :1], BOS)                    # (batch, 1)
    shifted = torch.cat([start, labels[:, :-1]], dim=1)  # (batch, target): without the last
    return shifted.masked_fill(shifted == -100, PAD)               # −100 is no word


for read, write in zip(shift_right(example.labels)[1], example.labels[1], strict=True):
    print(f"reads {vocabulary.token(read.item()):>8}   is to write {vocabulary.token(write.item())}")

# %% [markdown]
# ### 3.3 Embedding, scaled by $\sqrt{d}$, and used twice
#
# Source, target and output share *one* matrix (§3.4 of the paper). Its rows start with entries of variance $1/d$. Read
# as an embedding and multiplied by $\sqrt{d}$, they have variance 1, the size that a block expects. Used as the output
# layer, unscaled, a normalised vector times a row gives a score of variance 1, a soft start for the softmax. These last
# scores, one per word of the vocabulary, are called **logits**: softmax turns them into probabilities. (The paper gives
# no reason for its $\sqrt{d}$. This one is ours, as is that of lesson 05, where words had to be louder than the places
# added to them. And there is one exception to the soft start, which you will meet when the training starts.)


# %%
class Embedding(nn.Module):
    def __init__(self, vocab_size, d_model, dropout):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocab_size, d_model) * d_model**-0.5)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids):                                        # (batch, length)
        x = F.embedding(ids, self.weight)                          # (batch, length, d_model)
        return self.dropout(x * self.weight.shape[1] ** 0.5)


# %% [markdown]
# Measure both variances:

# %%
torch.manual_seed(0)
embedding = Embedding(4000, 192, dropout=0.0)
x = embedding(example.input_ids)                                   # (batch, source, d_model)
rows = torch.randn(500, 192) * 192**-0.5  # (500, d_model): like an output layer
logits = F.layer_norm(x, (192,)) @ rows.T                          # (batch, source, 500)
print(f"variance as input {x.var():.1f}, of a logit {logits.var():.1f}")

# %% [markdown]
# ### 3.4 Two stacks
#
# A stack is the block of lesson 06, $N$ times. With `cross=True` each block has the cross-attention in the middle. We
# use pre-norm, so one last norm stands on top.


# %%
class Stack(nn.Module):
    def __init__(self, config, layers, cross=False):
        super().__init__()
        self.layers = nn.ModuleList(TransformerBlock(config, cross=cross) for _ in range(layers))
        self.norm = LayerNorm(config.d_model, bias=config.norm.bias)

    def forward(self, x, mask, memory=None, memory_mask=None):     # (batch, length, d_model)
        for layer in self.layers:
            x = layer(x, mask, memory, memory_mask)                # (batch, length, d_model)
        return self.norm(x)


# %% [markdown]
# ### 3.5 The whole model
#
# Two masks, and they are easy to mix up. The *padding* mask hides the source's padding, in the encoder and again in
# cross-attention. The *causal* mask is for the decoder's self-attention only. (The target's padding needs no mask: it
# stands at the end, where the causal mask hides it from all real words.)


# %%
def readable(attention_mask):  # (batch, source): 1 = a real token
    return attention_mask.bool()[:, None, None, :]                 # (batch, 1, 1, source)


def causal(x):                                                     # (batch, target, d_model)
    n = x.shape[1]
    return torch.ones(1, 1, n, n, device=x.device).tril().bool()   # (1, 1, query, key)


# %% [markdown]
# The class below is the picture of section 2, from left to right.


# %%
class Transformer(nn.Module):
    def __init__(self, vocab_size, config, layers):
        super().__init__()
        self.embedding = Embedding(vocab_size, config.d_model, config.dropout)
        self.encoder, self.decoder = Stack(config, layers), Stack(config, layers, cross=True)

    def encode(self, input_ids, attention_mask):                   # -> (batch, source, d_model)
        return self.encoder(self.embedding(input_ids), readable(attention_mask))

    def decode(self, decoder_input_ids, memory, attention_mask):   # -> (batch, target, d_model)
        x = self.embedding(decoder_input_ids)                      # (batch, target, d_model)
        return self.decoder(x, causal(x), memory, readable(attention_mask))

    def logits(self, hidden):                                      # (batch, target, d_model)
        return hidden @ self.embedding.weight.T                    # (batch, target, vocab)

    def forward(self, input_ids, attention_mask, decoder_input_ids):  # -> (batch, target, vocab)
        memory = self.encode(input_ids, attention_mask)            # (batch, source, d_model)
        return self.logits(self.decode(decoder_input_ids, memory, attention_mask))


# %% [markdown]
# Our model is small: $d = 192$ with 4 heads, three blocks in each stack. Some choices are younger than the paper. You
# know pre-norm (lesson 06) and rotary positions instead of added sinusoids (lesson 05; `rotary_half` is the layout in
# halves). New are `qk_norm`, a norm on each query and key before they are multiplied, and `zero_output`: the last
# matrix of each sub-layer starts at 0, so that at first each block only passes its input on. There are no biases, and
# below, Muon and a rate that falls in a straight line take the place of the paper's recipe. Section 8 shows what all
# this is worth.

# %%
config = BlockConfig.of_sizes(
    d_model=192, heads=4, d_ff=768, bias=False, dropout=0.25, qk_norm="layer",
    position="rotary_half", zero_output=True,
)
torch.manual_seed(0)
model = Transformer(len(vocabulary), config, layers=3)
logits = model(example.input_ids, example.attention_mask, shift_right(example.labels))
print("logits", tuple(logits.shape))                               # (batch, target, vocab)
print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters")

# %% [markdown]
# Do the masks hold? Change the last target word: no earlier prediction may change. Change the padding: nothing may
# change. A model right after its start would pass for the wrong reason, since its blocks do nothing yet. So we shake
# all weights first.


# %%
@torch.no_grad()
def predictions(input_ids, decoder_input_ids):                     # -> (batch, target, vocab)
    return probe(input_ids, example.attention_mask, decoder_input_ids)


torch.manual_seed(1)
probe = Transformer(len(vocabulary), config, layers=3).eval()
with torch.no_grad():
    for weight in probe.parameters():
        weight.add_(0.05 * torch.randn_like(weight))

# %% [markdown]
# This shaken model is our probe, here and in section 9.

# %%
read = shift_right(example.labels)                                 # (batch, target)
other_end = read.index_fill(1, torch.tensor([read.shape[1] - 1]), 99)        # another last word
other_padding = example.input_ids.masked_fill(example.attention_mask == 0, 99)
plain = predictions(example.input_ids, read)                       # (batch, target, vocab)
changed = predictions(example.input_ids, other_end)                # (batch, target, vocab)
prove_equal(changed[:, :-1], plain[:, :-1], what="With another last word, the earlier predictions")
prove_equal(predictions(other_padding, read), plain, what="With other padding, all predictions")

# %% [markdown]
# ## 4 Train it
#
# ### 4.1 The loss: cross-entropy with smoothed labels
#
# The paper does not ask for probability 1 on the right word. It asks for $1 - \epsilon$, and shares $\epsilon = 0.1$
# equally among the whole vocabulary $V$ (§5.4):
#
# $$q(k) = (1 - \epsilon)\,[k = y] + \frac{\epsilon}{V} \qquad\qquad \text{loss} = -\sum_k q(k) \log p(k)$$
#
# ($[k = y]$ is 1 for the right word and 0 for all others.) Why smooth? Plain cross-entropy is never content: it gets
# better as long as the right word's logit grows, without end. With smoothing there is a best logit, and beyond it the
# loss rises.


# %%
def smoothed_loss(logits, labels, smoothing=0.1):  # (batch, target, vocab), (batch, target)
    counted = labels != -100  # (batch, target): padding is not counted
    log_p = logits[counted].log_softmax(dim=-1)                    # (counted, vocab)
    right = log_p.gather(-1, labels[counted][:, None])[:, 0]  # (counted,): log p of the right word
    return -((1 - smoothing) * right + smoothing * log_p.mean(dim=-1)).mean()


torch.manual_seed(0)
logits = torch.randn(*example.labels.shape, len(vocabulary))       # (batch, target, vocab)
theirs = F.cross_entropy(
    logits.flatten(0, 1), example.labels.flatten(), ignore_index=-100, label_smoothing=0.1
)
prove_equal(smoothed_loss(logits, example.labels), theirs, what="Ours and torch's smoothed loss")

# %% [markdown]
# To see what it does, give the right word some logit and all others 0, and let it grow:

# %%
gap = torch.linspace(0, 20, 81)                                    # (81,): the right word's lead
logits = torch.zeros(81, 1, len(vocabulary))                       # (81, 1, vocab): all others 0
logits[:, 0, 7] = gap
label = torch.tensor([[7]])
curves = {
    f"ε = {e:g}": [smoothed_loss(each[None], label, e).item() for each in logits] for e in (0.0, 0.1)
}
plots.lines(
    {name: (gap.tolist(), curve) for name, curve in curves.items()},
    title="With label smoothing, being too sure costs",
    xlabel="logit of the right word above all others", ylabel="loss (nats)",
    alt="Loss against the right word's logit. Without smoothing it falls to 0 and stays. With "
    "smoothing it has its lowest point near a logit of 10, and rises beyond.",
)

# %% [markdown]
# Where is the lowest point, and how sure is the model there?

# %%
best = gap[torch.tensor(curves["ε = 0.1"]).argmin()].item()
share = math.exp(best) / (math.exp(best) + len(vocabulary) - 1)
print(f"the best logit with ε = 0.1 is {best:.1f}, where the right word has {share:.0%}")
print(f"and the loss there is {min(curves['ε = 0.1']):.1f}, not 0")

# %% [markdown]
# Even a model that knew every next word could not get below that floor. Remember it when you read the losses below.
#
# ### 4.2 The learning rate: warm up, then slow down
#
# $$\text{lr}(t) = d_\text{model}^{-0.5} \cdot \min\!\left(t^{-0.5},\; t \cdot \text{warmup}^{-1.5}\right)$$
#
# (Equation 3, with warmup = 4000.) It rises in a straight line, then falls with $1/\sqrt{t}$, for ever. For a run whose
# length is known beforehand, as ours is, a straight line down to 0 is usual today.


# %%
def noam(step, d_model, warmup=4000):
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def up_and_down(step, steps, warmup):
    return min(step / warmup, (steps + 1 - step) / (steps + 1 - warmup))


print(f"the paper's peak: base {noam(4000, 512):.1e}, big {noam(4000, 1024):.1e}")

# %% [markdown]
# Both, drawn with their peak at 1:

# %%
steps = range(50, 20001, 50)
plots.lines(
    {
        "the paper's": (steps, [noam(t, 512) / noam(4000, 512) for t in steps]),
        "up and down": (steps, [up_and_down(t, 20000, 800) for t in steps]),
    },
    title="Warm-up, then slower: two schedules", xlabel="step", ylabel="learning rate / its peak",
    alt="Two curves that rise to 1. The paper's peaks at step 4000 and falls with one over the root. "
    "The other peaks at step 800 and falls in a straight line to 0 at step 20,000.",
)

# %% [markdown]
# ### 4.3 Batches by length
#
# Padding is computed like everything else, and thrown away. So sentences of similar length should share a batch, and a
# batch should have a budget of *tokens*, not of sentences. How much does that save?

# %%
def batch_of(group):
    return collate([encoded[index] for index in group], BOS, EOS, PAD)


sizes = [(len(source) + 1, len(target) + 1) for source, target in encoded]       # with EOS
by_length = batches_by_length(sizes, 1000, seed=0)
as_they_come = [range(start, start + 60) for start in range(0, len(encoded) - 60, 60)]
for name, groups in {"as they come": as_they_come, "by length": by_length}.items():
    share = padding_share([batch_of(group) for group in groups])
    print(f"{name:13} {share:.0%} of all positions are padding")

# %% [markdown]
# As they come, half of all computing would go into padding.
#
# ### 4.4 The loop
#
# The paper's optimiser is Adam with $\beta = (0.9, 0.98)$. We use AdamW with the same $\beta$ for the embedding and the
# norms, and *Muon* ([Jordan et al. 2024](https://kellerjordan.github.io/posts/muon/)) for the matrices inside the
# blocks: it turns each update into (about) the nearest orthogonal matrix, so that all directions learn at one speed. It
# was invented to train small language models in record time. Each group of weights has its own highest rate, `peak`.


# %%
def make_optimizers(model):
    inside, rest = [], []
    for name, weight in model.named_parameters():
        (inside if ".layers." in name and weight.dim() == 2 else rest).append(weight)
    matrices, others = {"params": inside, "peak": 0.02}, {"params": rest, "peak": 3e-3}
    return [
        torch.optim.Muon([matrices], momentum=0.95, weight_decay=0.0),
        torch.optim.AdamW([others], betas=(0.9, 0.98), weight_decay=0.0),
    ]


# %% [markdown]
# One step: predict, measure, differentiate. If all gradients together have a norm above 1, they are scaled down to 1.
# `rate` is the schedule's height, from 0 to 1.


# %%
def learn(model, optimizers, batch, rate):
    read = shift_right(batch.labels)                               # (batch, target)
    loss = smoothed_loss(model(batch.input_ids, batch.attention_mask, read), batch.labels)
    model.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate * group["peak"]
        optimizer.step()
    return loss.item()


# %% [markdown]
# And the loop: batches of at most 1,000 tokens, source and target together, in random order, with a warm-up of a tenth
# of all steps.


# %%
def train(model, steps, what, stop=None):                          # stop: after so many of the steps
    groups = batches_by_length(sizes, 1000, seed=0)[: stop or steps]
    optimizers, losses = make_optimizers(model.to(default_device()).train()), []
    torch.manual_seed(0)
    for step, group in enumerate(progress(groups, what), start=1):
        rate = up_and_down(step, steps, warmup=steps // 10)
        losses.append(learn(model, optimizers, batch_of(group).to(default_device()), rate))
    model.eval()
    return losses


def smooth(losses):                                                # the mean of ten steps each
    return torch.tensor(losses).unfold(0, 10, 1).mean(dim=-1).tolist()


# %% [markdown]
# Now train the new model on the short sentences, for 120 steps: a bit over 100,000 tokens, or half a minute.

# %% tags=["nbval-ignore-output"]
losses = train(model, 120, "training from nothing")
expect("Loss at the end", smooth(losses)[-1], 4.7, 5.9)
curve = smooth(losses)                                             # its first point: steps 1 to 10
plots.lines(
    {"training": (range(10, 10 + len(curve)), curve)}, title="The first half minute of learning",
    xlabel="training step", ylabel="loss (nats), mean of 10",
    alt=f"The loss begins at {curve[0]:.1f}, the mean of the first ten steps. It falls steeply, to "
    f"{curve[20]:.1f} after 30 steps, and then slowly, to {curve[-1]:.1f}.",
)

# %% [markdown]
# Does the start surprise you? Guessing blindly among 4,000 tokens would cost $\log 4000 = 8.3$, and this is far worse.
# It is the exception of section 3.3. At first each block passes its input on, so what leaves the decoder is,
# normalised, the embedding of the word just *read*. Times the same matrix, that word's own row gives a logit of
# $\sqrt{d} \approx 14$.

# %%
torch.manual_seed(0)
fresh = Transformer(len(vocabulary), config, layers=3).eval()
read = shift_right(example.labels)                                 # (batch, target)
with torch.no_grad():
    logits = fresh(example.input_ids, example.attention_mask, read)  # (batch, target, vocab)
same = (logits.argmax(-1) == read).float().mean()
own = logits.gather(-1, read[..., None])                           # (batch, target, 1)
print(f"a new model bets on the word that it has just read at {same:.0%} of the places")
print(f"that word's logit is {own.mean():.1f} on average; all logits spread by {logits.std():.1f}")

# %% [markdown]
# The first 30 steps or so unlearn this.

# %% [markdown]
# ## 5 Write a translation
#
# ### 5.1 Greedy
#
# Now nobody hands us the right words. Start with `BOS`, ask for the likeliest next word, append it, ask again, until it
# says `EOS`. We do this for all sentences of a batch at once.


# %%
@torch.no_grad()
def greedy(model, input_ids, attention_mask, max_length=20):
    memory = model.encode(input_ids, attention_mask)  # (batch, source, d_model), computed once
    written = torch.full_like(input_ids[:, :1], BOS)               # (batch, 1)
    for _ in range(max_length):
        hidden = model.decode(written, memory, attention_mask)     # (batch, length, d_model)
        word = model.logits(hidden[:, -1]).argmax(dim=-1)  # (batch,): only the last position is new
        written = torch.cat([written, word[:, None]], dim=1)       # (batch, length + 1)
        if (written == EOS).any(dim=1).all():
            break
    return written[:, 1:]                                          # (batch, length), without BOS


# %% [markdown]
# What stands after the first `EOS` does not count. From here on we measure on sentences that no training step has seen.


# %%
def text(ids):
    return vocabulary.decode(ids[: ids.index(EOS)] if EOS in ids else ids)


def translate(model, sentences):
    sources = vocabulary.encode_batch(sentences)
    batch = collate([(source, []) for source in sources], BOS, EOS, PAD).to(default_device())
    written = greedy(model.eval(), batch.input_ids, batch.attention_mask)        # (batch, length)
    return [text(ids) for ids in written.tolist()]


german, english = zip(*short.test[::3], strict=True)  # every third sentence of the test set
some = [number for number, sentence in enumerate(german) if len(sentence.split()) in (4, 5, 6)]
show = some[5:95:9]

# %% [markdown]
# So, what has our model learned in half a minute?

# %% tags=["nbval-ignore-output"]
first = translate(model, german)
for index in show[:6]:
    print(f"{german[index]}\n    human: {english[index]}\n    model: {first[index]}")

# %% [markdown]
# It has learned with which words English sentences in these games begin, and how they end. In between it stammers, and
# only now and then has anything to do with the source.
#
# ### 5.2 BLEU, by hand
#
# We need a number. **BLEU** (Papineni et al. 2002; lesson 02 took it ready-made) compares a translation, the
# *hypothesis*, with a human's, the *reference*. It counts **n-grams**, runs of $n$ words. First: what is a word? The
# rule of WMT, the yearly contest in machine translation, is called *13a* and lets each punctuation mark stand alone.


# %%
def words(text):
    text = re.sub(r"([!-&(-+:-@[-`{-~/])", r" \1 ", f" {text} ")     # a sign stands alone,
    text = re.sub(r"([^0-9])([.,])", r"\1 \2 ", text)                # points and commas, too,
    text = re.sub(r"([.,])([^0-9])", r" \1 \2", text)                # unless inside a number;
    return re.sub(r"([0-9])(-)", r"\1 \2 ", text).split()            # a dash after a digit


def n_grams(words, n):
    return Counter(tuple(words[at : at + n]) for at in range(len(words) - n + 1))


print(words("The orcs have 1,500 gold."))
print(n_grams(words("The orcs have attacked."), 2))

# %% [markdown]
# The share of the hypothesis' n-grams that the reference has, too, is its *precision*. But plain precision is easily
# fooled. What does *the the the the* get?

# %%
reference = words("the orcs have attacked the humans .")
hypothesis = words("the the the the")
found, there = n_grams(hypothesis, 1), n_grams(reference, 1)
print("plain:  ", sum(count for gram, count in found.items() if gram in there), "of", found.total())
print("clipped:", (found & there).total(), "of", found.total())

# %% [markdown]
# So BLEU clips: an n-gram counts at most as often as the reference has it. (For two `Counter`s, `&` keeps the smaller
# count.) That is the **modified precision** $p_n$. *Modified* also means *pooled*: matches and n-grams are added up
# over all sentences before dividing, since a single sentence often has no run of four in common with its reference.
#
# Precision alone would reward whoever writes only the words they are sure of. Hence the **brevity penalty**, for a
# corpus of $c$ words whose references have $r > c$. And all is combined by a geometric mean:
#
# $$\text{BLEU} = 100 \cdot \min\left(1, e^{1 - r/c}\right) \cdot (p_1\, p_2\, p_3\, p_4)^{1/4}$$


# %%
def parts(hypotheses, references):
    pairs = [(words(h), words(r)) for h, r in zip(hypotheses, references, strict=True)]
    precisions = []
    for n in (1, 2, 3, 4):
        counts = [(n_grams(h, n), n_grams(r, n)) for h, r in pairs]
        matches = sum((h & r).total() for h, r in counts)          # clipped, pooled
        precisions.append(matches / max(1, sum(h.total() for h, _ in counts)))
    c, r = (sum(map(len, side)) for side in zip(*pairs))
    return precisions, min(1.0, math.exp(1 - r / max(1, c)))


def bleu(hypotheses, references):
    precisions, brevity = parts(hypotheses, references)
    return 100 * brevity * math.prod(precisions) ** 0.25


# %% [markdown]
# Near 0 means hardly a run of four words in common anywhere, 100 means identical. Good translations of news reach 30 to
# 45 and no more, because a human would often have said it differently, too. Is ours the number that everybody means?
# `sacrebleu` (Post 2018) is what papers report. Compare both on the references themselves, each without its second
# word:

# %%
from sacrebleu import corpus_bleu


def prove_bleu(hypotheses, what):
    ours = torch.tensor(bleu(hypotheses, english), dtype=torch.float64)
    theirs = torch.tensor(corpus_bleu(hypotheses, [english]).score, dtype=torch.float64)
    prove_equal(ours, theirs, tolerance=1e-6, what=f"{what}: our BLEU and sacrebleu's")


damaged = [" ".join(line.split()[:1] + line.split()[2:]) for line in english]
prove_bleu(damaged, "Damaged references")

# %% [markdown]
# What became of each part, here and in what your model wrote?

# %% tags=["nbval-ignore-output"]
for name, hypotheses in {"damaged references": damaged, "your model": first}.items():
    precisions, brevity = parts(hypotheses, english)
    shares = "  ".join(f"p{n} {share:4.0%}" for n, share in enumerate(precisions, start=1))
    print(f"{name:19} {shares}   brevity {brevity:.2f}   BLEU {bleu(hypotheses, english):.1f}")
expect("BLEU after half a minute", bleu(first, english), 0, 6)

# %% [markdown]
# Read the first line: every single word is right, about one in six is missing, and BLEU falls by a third. Longer runs
# break at each gap, and the brevity penalty charges for the missing words as well. (Where some $p_n$ is 0, so is our
# BLEU; `sacrebleu` puts a small number in its place.)
#
# ### 5.3 Much longer
#
# Half a minute is not enough, and this is no fault of the code. Here is the same model after a long training on all
# pairs of the training set, short and long. It comes with the course, in `data/checkpoints/games-de-en`. This command
# made it, and you can run it yourself:
#
# ```
# txlib train translation --data games --preset course --r-drop 3 --steps 20000 --out runs/course
# ```
#
# Two things in it are new. It reads each batch twice, and each time dropout hides something else; `--r-drop` asks the
# two predictions to agree, and weighs by how much they don't (R-Drop, Liang et al. 2021). With 29,300 sentence pairs,
# read 36 times, that keeps the model from learning them by heart. And what is saved are not the last weights
# but their moving average, over the last fifty steps or so. (The paper, too, averages its last checkpoints, §6.1.) The
# weights are stored in half precision (16 bits per number). They fit into *our* class, because it has the same parts
# under the same names, and the vocabulary was learned from the same sentences.

# %%
folder = shipped("games-de-en")
theirs = Tokenizer.load(folder / "tokenizer.json")
print("same vocabulary:", theirs.to_dict() == vocabulary.to_dict())
weights = {name: weight.float() for name, weight in load_file(folder / "model.safetensors").items()}
model = Transformer(len(vocabulary), config, layers=3)
print(model.load_state_dict(weights))
result = json.loads((folder / "result.json").read_text())          # measured after its training
minutes = f"{result['cpu_seconds'] / 60:.0f} min"
print(f"{result['steps']:,} steps on {len(everything.train):,} pairs, {minutes} of one CPU core")

# %% [markdown]
# The first six of these sentences you have seen. All ten, before and after:

# %% tags=["nbval-ignore-output"]
loaded = translate(model.to(default_device()), german)
for index in show:
    print(f"{german[index]}\n     human: {english[index]}")
    print(f"{'30 s':>10}: {first[index]}\n{minutes:>10}: {loaded[index]}")
prove_bleu(loaded, "These translations")
expect("BLEU after the long training", bleu(loaded, english), 24, 30)

# %% [markdown]
# These sentences were in no training set. Read each last line against the German: what is said often (*waren zu
# langsam*, *Wo kann ich … finden*, *nicht*) arrives, in English order. Rarer words (*aufgespürt*, *entzieht*,
# *draufgegangen*) are guessed, and *Code bestätigt* becomes *Codify*. Try a sentence of your own. The model knows orcs,
# elves, swords and spaceships better than taxes. The last two sentences below are the one that you have followed, and
# the same with the nouns exchanged, for which lessons 04 and 05 needed a second head and positions:

# %% tags=["nbval-ignore-output"]
mine = ["Wo ist der König?", "Wir müssen die Orks besiegen!", "Ich habe kein Gold."]
turned = ["Die Orks haben die Menschen angegriffen!", "Die Menschen haben die Orks angegriffen!"]
for sentence, written in zip([*mine, *turned], translate(model, [*mine, *turned]), strict=True):
    print(f"{sentence:42} → {written}")

# %% [markdown]
# ### The chain of probabilities, in numbers
#
# Section 2 said: $p(y \mid x)$ is a product, one factor per token. Here are the factors of our pair. (This pair is in
# the *training* set, so the model may know it better than it should.)

# %% tags=["nbval-ignore-output"]
batch = collate([encoded[followed]], BOS, EOS, PAD).to(default_device())
read = shift_right(batch.labels)                                   # (1, target)
with torch.no_grad():
    logits = model(batch.input_ids, batch.attention_mask, read)    # (1, target, vocab)
p = logits.softmax(dim=-1)[0].gather(-1, batch.labels[0][:, None])[:, 0]         # (target,)
likeliest = logits[0].argmax(dim=-1)                               # (target,)
for word, share, other in zip(batch.labels[0].tolist(), p.tolist(), likeliest.tolist(), strict=True):
    instead = f"   (it would write {vocabulary.token(other)})" if other != word else ""
    print(f"{vocabulary.token(word):>8} {share:.2f} {'█' * round(30 * share)}{instead}")
print(f"product {p.prod():.3f}; loss, the mean of −log p, {-p.log().mean():.2f} nats;", end=" ")
print(f"perplexity, e to that power, {(-p.log().mean()).exp():.2f}")

# %% [markdown]
# A **perplexity** of 2 would mean: as unsure as if it chose between two equally likely words each time. What makes the
# product small are the places where the model would have gone another way. The German ends in an exclamation mark, and
# the human put a full stop. *have* is a choice, too: *The orcs attacked* would do as well. And even where all is
# clear, most factors stay near 0.9, not 1: that is label smoothing at work.
#
# ### 5.4 Beam search
#
# Greedy never looks back. A word that is likeliest *now* may lead into a dead end. **Beam search** keeps the best four
# beginnings (also called hypotheses), lengthens each by its best words, and keeps the best four of all these. What
# ends is put aside, until four have ended. A sum of log-probabilities falls with every word, so the plain sum prefers
# short sentences. The remedy is to divide it by $((5 + n)/6)^\alpha$ (Wu et al. 2016, §7), with $n$ the number of
# tokens written; the paper takes $\alpha = 0.6$ (§6.1).


# %%
def worth(score, words, power=0.6):
    return score / ((5 + len(words) - 1) / 6) ** power             # BOS is not counted


# %% [markdown]
# The search itself, for one sentence. `going` and `ended` hold pairs of a sum and the words so far.


# %%
@torch.no_grad()
def beam(model, ids, beams=4, max_length=20):                      # ids (1, source)
    mask, going, ended = torch.ones_like(ids), [(0.0, [BOS])], []
    memory = model.encode(ids, mask)                               # (1, source, d_model)
    for _ in range(max_length):
        grown = []
        for score, words in going:
            hidden = model.decode(torch.tensor([words], device=ids.device), memory, mask)
            log_p = model.logits(hidden[0, -1]).log_softmax(dim=-1).topk(beams + 1)
            grown += [(score + p.item(), [*words, word.item()]) for p, word in zip(*log_p)]
        grown.sort(reverse=True)
        ended += [each for each in grown[:beams] if each[1][-1] == EOS]
        going = [each for each in grown if each[1][-1] != EOS][:beams]
        if len(ended) >= beams:
            break
    return max(ended or going, key=lambda each: worth(*each))


# %% [markdown]
# A beam of one is greedy search. How often does a beam of four find something that the model itself thinks likelier?
# (Likelier by `worth`, that is: after the division for its length.)

# %% tags=["nbval-ignore-output"]
def compare(index):
    numbers = [*vocabulary.encode(german[index]), EOS]
    ids = torch.tensor([numbers], device=default_device())        # (1, source)
    return beam(model, ids, beams=1), beam(model, ids)


found = [compare(index) for index in progress(range(20), "searching")]
gain = [worth(*four) - worth(*one) for one, four in found]
better = [index for index, more in enumerate(gain) if more > 1e-4]
print(f"a likelier translation for {len(better)} of {len(found)} sentences,", end=" ")
print(f"a less likely one for {sum(more < -1e-4 for more in gain)}")
for index in better[:3]:
    one, four = (text(words[1:]) for _, words in found[index])
    print(f"\n{german[index]}\n   greedy: {one}\n   beam 4: {four}\n   human:  {english[index]}")

# %% [markdown]
# (A beam can lose, too: when four other hypotheses push out the one that greedy would have kept.) Likelier to the model
# is not always better to a reader. Section 9 measures it with the library's version, which does all sentences at once.

# %% [markdown]
# ## 6 See it work: where does the decoder look?
#
# Here are the cross-attention weights of the last decoder block on our pair. Rows are the tokens it is about to write,
# columns the German tokens. The German verb *angegriffen* stands last, the English *attacked* fourth. Decide first: if
# a head has learned to align words, where is the dark cell in the row of `▁attack`?

# %% tags=["nbval-ignore-output"]
from txlib.attention import recording

with torch.no_grad(), recording(model) as seen:
    model(batch.input_ids, batch.attention_mask, read)
weights = seen["decoder.layers.2.cross_attention"][0][0].cpu()     # (heads, target, source)
target = [vocabulary.token(id) for id in batch.labels[0].tolist()]
source = [vocabulary.token(id) for id in batch.input_ids[0].tolist()]
plots.heads(
    weights, rows=target, columns=source, ylabel="is to write", xlabel="looks at", numbers=True,
    title="Each head looks up the source in its own way",
    alt="Four tables of weights, English rows and German columns. In most rows the weight follows "
    "the words' translations, across the changed order; in some it scatters or rests on the end.",
)

# %% [markdown]
# Who looks where, as a list:

# %% tags=["nbval-ignore-output"]
partner = {1: "▁Orks", 3: "▁angegriffen", 6: "▁Menschen"}          # of orcs, attack, humans
print("looks at, heads 0 to 3:")
for row in (1, 3, 4, 6):
    looks = [f"{source[head.argmax()]:>12} {head.max():.2f}" for head in weights[:, row]]
    print(f"{target[row]:>8}", *looks)
hits = [source[head[row].argmax()] == word for row, word in partner.items() for head in weights]
expect("Looks, of 12, that meet the word's translation first", sum(hits), 6, 12)

# %% [markdown]
# Compare with lesson 03, where attention learned a dictionary on purpose. Here nobody asked for an alignment. It is
# useful, so heads have it: most of these looks meet the translation. Before they write *attack*, heads look at
# *angegriffen*, past *die Menschen*. Most do so already one row above: whether *have* is due, or *attacked* at once,
# depends on the verb, too. *ed* only goes on with the word: it has no partner of its own, and the heads rest at the
# end of the sentence. Nor is it a dictionary in every row, with every head. Some heads of some rows are enough.

# %% [markdown]
# ## 7 Break it: forget the causal mask
#
# This is the classic. One line is missing, no error is raised, every shape fits. Train a new model without the causal
# mask in the decoder, just like the first one.


# %%
class Unmasked(Transformer):
    def decode(self, decoder_input_ids, memory, attention_mask):   # -> (batch, target, d_model)
        x = self.embedding(decoder_input_ids)                      # (batch, target, d_model)
        return self.decoder(x, None, memory, readable(attention_mask))           # None: no mask


# %% [markdown]
# The same start, the same batches, the same learning rates; 80 of the 120 steps are enough. Decide first: will its
# loss be higher, equal or lower? And what will it write?

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
unmasked = Unmasked(len(vocabulary), config, layers=3)
unmasked_losses = train(unmasked, 120, "without the causal mask", stop=80)

# %% [markdown]
# Now look:

# %% tags=["nbval-ignore-output"]
curves = {"with mask": smooth(losses[:80]), "without mask": smooth(unmasked_losses)}
plots.lines(
    {name: (range(10, 10 + len(curve)), curve) for name, curve in curves.items()},
    title="One of the two looks wonderful", xlabel="training step", ylabel="loss (nats), mean of 10",
    alt="Two loss curves. Without the mask the loss falls far below the other.",
)

# %% [markdown]
# A champion, it seems. Let it write:

# %% tags=["nbval-ignore-output"]
cheated = translate(unmasked, [german[index] for index in show])
for index, written in list(zip(show, cheated, strict=True))[:4]:
    print(f"{german[index]:44} it writes: {written!r}")
expect("Loss without the mask", curves["without mask"][-1], 1.5, 5)
right = sum(english[index] == each for index, each in zip(show, cheated))
expect("Right translations among ten", right, 0, 0)

# %% [markdown]
# Position $t$ reads, one place to the right, exactly the word it is to write. Copying it is easier than translating, so
# it learned to copy. When it writes by itself, the place to the right is empty, and what comes out, one word again and
# again or nothing at all, has nothing to do with the source. (Why nothing? In training, as a rule, only the last place
# had no word to its right, and there `EOS` was due.) A loss that is *too good* is a symptom. What finds the mistake is
# the test in section 3.5: change a later word, and see whether an earlier prediction moves.
#
# ### And without positions?
#
# Attention ignores order (lesson 03). The trained model knows positions through the rotation of its queries and keys
# (and, in the decoder, a little through the causal mask: lesson 05). Take the same weights, and leave the rotation out.
# A model *trained* without it might have found another way; this one loses what it relied on:

# %% tags=["nbval-ignore-output"]
lost = Transformer(len(vocabulary), config.replace(position="none"), layers=3)
lost.load_state_dict(model.state_dict())
without_positions = translate(lost.to(default_device()), german)
for index in show[:4]:
    print(f"{german[index]:44} {without_positions[index]}")
left = bleu(without_positions, english)
expect("BLEU without positions", left, 4, 14)
print(f"{1 - left / bleu(loaded, english):.0%} of the BLEU is gone")

# %% [markdown]
# What is short and simple comes out best, where each word follows from the last one and the source's words in any
# order. Elsewhere the decoder loses its place, and repeats, leaves out or invents.

# %% [markdown]
# ## 8 The paper's recipe against ours
#
# Section 3.5 made choices that are younger than the paper. What are they worth? `--preset paper` takes them all back:
# post-norm, sinusoids, biases, no `qk_norm`, no `zero_output`, and Adam with equation 3 (with its own peak, which is
# $1.1 \cdot 10^{-3}$ for $d = 192$, but reached after 400 steps, since the run is short) without clipped gradients.
# Everything else is the same in both runs. To afford them, both have two blocks per stack and 1,400 steps:
#
# ```
# txlib train translation --data games --preset tiny --steps 1400 --out runs/tiny
# txlib train translation --data games --preset paper --steps 1400 --out runs/paper
# ```
#
# Decide first: which one ends lower, and by how much? The numbers that both left behind come with the course.

# %%
runs = json.loads((folder / "recipes.json").read_text())
names = {"tiny": "younger choices", "paper": "the paper's recipe"}
curves = {}
for name, run in runs.items():
    per_step = run["cpu_seconds"] / run["steps"]
    curves[names[name]] = [step * per_step for step in run["step"]], run["loss"]
    print(f"{names[name]:18} {run['steps']:,} steps, {run['cpu_seconds']:.0f} CPU seconds,", end=" ")
    print(f"{run['parameters']:,} parameters: BLEU {run['bleu']:.1f}")

# %% [markdown]
# The younger steps cost more: Muon and the norms of queries and keys want to be computed, too. So look at the losses
# against the cost:

# %%
(spent, younger), (spent_by_paper, papers) = curves.values()
level = papers[-1]                                                 # where the paper's recipe ends
there = next(seconds for seconds, loss in zip(spent, younger, strict=True) if loss <= level)
plots.lines(
    curves, title="At the same cost, the younger choices learn faster",
    xlabel="seconds of one CPU core", ylabel="training loss (nats), mean of 50 steps",
    alt=f"Two loss curves. The paper's recipe falls slowly, to {level:.1f} after "
    f"{spent_by_paper[-1]:.0f} seconds. The younger choices reach that after {there:.0f} seconds, "
    f"and end at {younger[-1]:.1f} after {spent[-1]:.0f}.",
)

# %% [markdown]
# One seed each: believe the gap, not its decimals. `benchmarks/translators.py` asked again, with three seeds, other
# sentences (Multi30k) and the same time for both, two minutes of one core each: BLEU 33.4 (32.8 to 33.7) with the
# younger choices, 24.0 (23.7 to 24.2) with the paper's. And read it correctly:
#
# - The paper's recipe is not bad. It was made for 100,000 steps of 25,000 target tokens each, about 2,500 times what
#   these runs saw. There it has time. What is younger mostly buys speed.
# - All choices changed at once, so this does not say which one counts. Lesson 06 takes norm, rate and warm-up apart.
# - The peak counts much. Equation 3 with a warm-up of 400 in place of 4,000 has a peak of $3.6 \cdot 10^{-3}$, three
#   times as high. We tried that first, with twice as many steps, and the model learned next to nothing: a BLEU of 1.1.
#   (That run is not among the records that come with the course.)

# %% [markdown]
# ## 9 Open the library
#
# `txlib` has this model, with the same parts. Its `decode` also takes a cache, which lesson 13 explains, and both take
# further masks. (`scale_output` is for T5's files. Here it is off.)

# %%
from txlib.generation import beam_search
from txlib.models import Transformer as LibraryTransformer
from txlib.models import TransformerConfig
from txlib.models.translation import shift_right as library_shift_right
from txlib.recipes.translation import bleu as library_bleu
from txlib.training.losses import label_smoothed_cross_entropy
from txlib.training.schedules import noam as library_noam

show_source(LibraryTransformer.encode, LibraryTransformer.decode)

# %% [markdown]
# Same weights, same sentences: do both give the same logits, the same loss, the same schedule?

# %%
same_size = TransformerConfig(len(vocabulary), config, encoder_layers=3, decoder_layers=3)
library = LibraryTransformer(same_size).eval()
library.load_state_dict(probe.state_dict())
read = shift_right(example.labels)                                 # (batch, target)
with torch.no_grad():
    theirs = library(example.input_ids, example.attention_mask, read).logits  # (batch, target, vocab)
ours = predictions(example.input_ids, read)                        # (batch, target, vocab)
prove_equal(ours, theirs, tolerance=1e-4, what="Your logits and the library's")
prove_equal(read, library_shift_right(example.labels, BOS, PAD), what="The decoder's inputs")

# %% [markdown]
# And what surrounds the model:

# %%
count = (example.labels != -100).sum()
their_loss = label_smoothed_cross_entropy(theirs, example.labels) / count        # theirs is a sum
prove_equal(smoothed_loss(theirs, example.labels), their_loss, tolerance=1e-4, what="The losses")
each = (1, 100, 4000, 10**5)
ours, theirs = (torch.tensor([f(t, 512) for t in each]) for f in (noam, library_noam))
prove_equal(ours, theirs, what="The schedules")
ours, theirs = (torch.tensor(f(loaded, english)) for f in (bleu, library_bleu))
prove_equal(ours, theirs, what="BLEU of the trained model")

# %% [markdown]
# Now you know every box. Here is the picture of section 2 again, drawn from two of the library's models: one wired as
# in the paper, and yours. A click on a box (or Tab and Enter) opens the lessons that built it, its source, and its
# number of parameters. Where do the two differ? (If you see no list of parts, run the cell.)

# %%
paper_block = BlockConfig.of_sizes(
    d_model=192, heads=4, d_ff=768, norm_first=False, position="sinusoidal"
)
paper = LibraryTransformer(TransformerConfig(len(vocabulary), paper_block, 3, 3))
explore.transformer({"post-norm, the paper's": paper, "pre-norm, ours": library})

# %% [markdown]
# Pre-norm has the same norms in other places, and one more on top of each stack. Positions have no box of their own in
# our model: they are turns inside each self-attention.
#
# The library's beam search works on all test sentences at once. Does it find what yours found, and is the beam worth
# its price?

# %% tags=["nbval-ignore-output"]
library.load_state_dict(model.state_dict())
sources = [(source, []) for source in vocabulary.encode_batch(german)]
batch = collate(sources, BOS, EOS, PAD).to(default_device())
searched = beam_search(
    library.to(default_device()), batch.input_ids, batch.attention_mask, max_new_tokens=20, num_beams=4
)
by_beam = [vocabulary.decode(ids) for ids in searched]
same = sum(by_beam[index] == text(words[1:]) for index, (_, (_, words)) in enumerate(found))
print(f"the same as your beam: {same} of {len(found)}")
expect("BLEU, greedy", bleu(loaded, english), 24, 30)
expect("BLEU, beam of 4", bleu(by_beam, english), 24, 31)

# %% [markdown]
# With 181 short sentences a difference of a point or two is within sampling noise. On the whole test set, 1,233
# sentences short and long, both were measured when the model was trained:

# %%
greedily, by_beam = result["bleu_greedy"], result["bleu"]
print(f"BLEU on the whole test set: greedy {greedily:.1f}, beam of 4 {by_beam:.1f}, "
      f"{by_beam - greedily:.1f} more")

# %% [markdown]
# A beam is usually worth a point or two. Its price: the decoder works on four beginnings per sentence in place of one.

# %% [markdown]
# ## 10 What it costs
#
# ### Parameters
#
# An attention layer has four $d \times d$ matrices with biases, $4(d^2 + d)$. A feed-forward network has
# $2 d\, d_\text{ff} + d_\text{ff} + d$. A norm has $2d$. An encoder block has 1 attention and 2 norms, a decoder
# block 2 and 3, and each has 1 feed-forward network. Then one embedding of $V d$, for all three uses. The paper's
# models have post-norm and so no last norm.


# %%
def count(d, d_ff, vocab=37_000, layers=6):
    attention, norm = 4 * (d * d + d), 2 * d
    feed_forward = 2 * d * d_ff + d_ff + d
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    return layers * (encoder + decoder) + vocab * d


# %% [markdown]
# The library has both models. On torch's *meta* device they have shapes but no memory, so even a giant is built at
# once.

# %%
from txlib.models.sizes import VASWANI

for name, sizes in VASWANI.items():
    with torch.device("meta"):
        built = LibraryTransformer(sizes)
    counted = sum(weight.numel() for weight in built.parameters())
    formula = count(sizes.block.d_model, sizes.block.ffn.d_ff)
    print(f"{name:5} formula {formula:11,}   built {counted:11,}")

# %% [markdown]
# The paper says 65 M and 213 M, for a vocabulary of *about* 37,000. No single size gives both: base would need about
# 41,000 tokens, big about 36,000.
#
# ### Training
#
# The paper's Table 2 gives the training cost of base as $3.3 \cdot 10^{18}$ operations, of big as $2.3 \cdot 10^{19}$.
# Its footnote says how: hours, times 8 GPUs, times the 9.5 TFLOP/s that a P100 sustains.

# %%
for name, hours in {"base": 12, "big": 3.5 * 24}.items():
    print(f"{name:5} {hours:4.0f} h × 3600 × 8 × 9.5e12 = {hours * 3600 * 8 * 9.5e12:.1e}")

# %% [markdown]
# That is what the GPUs *could* have done. What was needed? Each weight costs 2 operations per token forward (a product
# and a sum) and 4 backward. Base ran 100,000 steps, each with about 25,000 source and 25,000 target tokens; the encoder
# sees the former, the decoder and the output layer the latter, so each weight meets about 25,000 tokens per step. Ours
# were 120 steps with about 450 tokens on each side.

# %%
needed = 6 * count(512, 2048) * 25_000 * 100_000
print(f"base: 6 × weights × tokens = {needed:.1e},")
print(f"which is {needed / 3.3e18:.0%} of what the GPUs could have done")
here = 6 * sum(weight.numel() for weight in model.parameters()) * 450 * 120
print(f"our half minute: about {here:.0e}, {needed / here:.0e} times less")

# %% [markdown]
# A utilisation of under a third was ordinary. Lesson 35 counts exactly, and says what such a run costs.
#
# ### What it bought: the table of 2017
#
# This is the paper's Table 2: BLEU on WMT 2014's test sentences (*newstest2014*), English to German (4.5 million
# training pairs) and English to French (36 million; Sutskever et al. 2014 had used 12 million of them), and the
# training cost in floating-point operations. ByteNet is convolutional (Kalchbrenner et al. 2016), Deep-Att (Zhou et al.
# 2016) and GNMT (Wu et al. 2016) are recurrent, ConvS2S is convolutional (Gehring et al. 2017), MoE adds experts to a
# recurrent net (Shazeer et al. 2017). An ensemble averages several models.

# %%
table = [                     # BLEU en-de, en-fr; operations en-de, en-fr; None: not given
    ("ByteNet", 23.75, None, None, None),
    ("Deep-Att + PosUnk", None, 39.2, None, 1.0e20),
    ("GNMT + RL", 24.6, 39.92, 2.3e19, 1.4e20),
    ("ConvS2S", 25.16, 40.46, 9.6e18, 1.5e20),
    ("MoE", 26.03, 40.56, 2.0e19, 1.2e20),
    ("Deep-Att + PosUnk ensemble", None, 40.4, None, 8.0e20),
    ("GNMT + RL ensemble", 26.30, 41.16, 1.8e20, 1.1e21),
    ("ConvS2S ensemble", 26.36, 41.29, 7.7e19, 1.2e21),
    ("Transformer base", 27.3, 38.1, 3.3e18, 3.3e18),
    ("Transformer big", 28.4, 41.8, 2.3e19, 2.3e19),
]

# %% [markdown]
# As a picture (without ByteNet, whose cost was not given):

# %%
figures.costs(
    {
        "English to German": {name: (cost, score) for name, score, _, cost, _ in table if cost},
        "English to French": {name: (cost, score) for name, _, score, _, cost in table if cost},
    },
    highlight="Transformer", xlabel="training cost (operations)", ylabel="BLEU on newstest2014",
    title="Better at a lower cost, but not everywhere",
    alt="Two scatter plots of BLEU against training cost on a logarithmic axis. English to German: "
    "both Transformers lie above all others; base is the cheapest of all, big costs as much as "
    "GNMT and more than the other single rivals. English to French: big lies above all others and "
    "costs less than a quarter of the cheapest rival; base is the cheapest by far, and the lowest.",
)

# %% [markdown]
# For big on French the first version of the paper, and the printed one, has 41.0, which the two better ensembles beat.
# The later versions on arXiv have 41.8, in the table and the abstract; their §6.1 still says 41.0.
#
# The caption of the table says "at a fraction of the training cost", the abstract even "a small fraction", of the
# result on French. Where does that hold?

# %%
costs = {name: (de, fr) for name, _, _, de, fr in table}
for ours in ("Transformer base", "Transformer big"):
    for rival in ("Deep-Att + PosUnk", "GNMT + RL", "ConvS2S", "MoE", "ConvS2S ensemble"):
        de, fr = (f"{a / b:.2g}" if b else "–" for a, b in zip(costs[ours], costs[rival]))
        print(f"{ours:16} / {rival:17}   en-de {de:5}   en-fr {fr}")

# %% [markdown]
# On French it does: big needed less than a quarter of what the cheapest single rival did, Deep-Att, and less than a
# fifth of what each of the others did. On German base does, with a BLEU of 27.3, above every rival's, at a third of
# the cheapest one's cost. But *big on German* costs as much as GNMT, more than MoE, and 2.4 times as much as ConvS2S:
# there it is a fraction of the ensembles' cost only. And base on French, 38.1, is cheap but beaten by all. Two
# cautions: the costs are estimates (hours × a GPU's sustained rate, as above), and the BLEU of such tables is computed
# on tokenized text by each group's own script, which is why `sacrebleu` exists (Post 2018).
#
# ### The real thing
#
# Twenty minutes on a laptop, with the library's loop: checkpoints, weight averages, bf16 where the hardware has it, and
# resuming after Ctrl-C. (For *base* the sentences that come with the course are far too few: the paper had 4.5 million
# pairs.) With `--model rnn` it trains Bahdanau's net of lesson 02, at the same size.
#
# ```
# txlib train translation                     # 20 minutes, d = 256, three blocks
# txlib translate --model runs/wesnoth-de-en-small "Wo ist der König?"
# txlib train translation --preset base       # the paper's model: for a GPU
# ```

# %% [markdown]
# ## 11 Quiz
#
# Decide first, then open an answer.
#
# **1. In cross-attention, where do queries, keys and values come from?**
#
# <details><summary>A. Queries from the memory, keys and values from the decoder</summary>
#
# The other way round. The one who *writes* asks. And the output must have one row for each word being written.
# </details>
# <details><summary>B. Queries from the decoder, keys and values from the memory</summary>
#
# Right. Each word being written looks up the source.
# </details>
# <details><summary>C. Queries and keys from the decoder, values from the memory</summary>
#
# Then the score would not depend on the source, and there would be one key per target word but one value per source
# word.
# </details>
#
# **2. The validation loss of your translator (plain cross-entropy) is 0.3 after an hour; your colleague's good model
# has 2.5. What do you check first?**
#
# <details><summary>A. The learning rate</summary>
#
# A bad learning rate makes losses bad. This one is too good.
# </details>
# <details><summary>B. Whether the decoder can see the word it is to predict</summary>
#
# Right: a missing causal mask, or labels that were not shifted. Both let it copy, in validation too, because
# validation is teacher-forced as well.
# </details>
# <details><summary>C. Whether the vocabulary is too small</summary>
#
# That changes the loss per token by some tens of percent, not to a tenth.
# </details>
#
# **3. A hypothesis is the reference, with its last third cut off. What does BLEU charge it for?**
#
# <details><summary>A. Nothing: all its n-grams are in the reference</summary>
#
# All four precisions are 1, yes. That is why there is one more factor.
# </details>
# <details><summary>B. Its brevity: $e^{1 - 3/2} \approx 0.61$</summary>
#
# Right: $r/c = 3/2$, and BLEU is 61.
# </details>
# <details><summary>C. The missing words: recall is two thirds, so BLEU is 67</summary>
#
# BLEU has no recall. The brevity penalty stands in for it, and it knows lengths only, not which words are missing.
# </details>
#
# **4. Training needs one pass of the decoder for a sentence of 20 words. How many does writing need?**
#
# <details><summary>A. One as well</summary>
#
# In training all previous words are known beforehand. Now each must be written before it can be read.
# </details>
# <details><summary>B. 21, the last one for the end token</summary>
#
# Right: one per word and one for `EOS`. The encoder runs once.
# </details>
# <details><summary>C. 400</summary>
#
# 400 is the number of scores in one head's matrix. The number of passes grows with the number of words.
# </details>
#
# **5. Why is the embedding multiplied by $\sqrt{d}$?**
#
# <details><summary>A. To make the gradient larger</summary>
#
# It does that, too, but a learning rate could do it as well. It is about the sizes in the forward pass.
# </details>
# <details><summary>B. The matrix is small so that it suits the output layer; the input needs variance 1</summary>
#
# Right. One matrix has two jobs, which want different sizes.
# </details>
# <details><summary>C. It is the $\sqrt{d_k}$ of attention, taken back</summary>
#
# That one divides scores inside each head, and stays.
# </details>

# %% [markdown]
# ## 12 Summary
#
# - The encoder turns the source into a memory; the decoder writes, looking at its own past and at the memory.
# - Teacher forcing and the causal mask together train all positions in one pass. Without the mask the model copies.
# - Label smoothing caps confidence; a warm-up and a falling rate, batches by length: each is a few lines.
# - Greedy takes the best word, a beam keeps several hypotheses. BLEU compares the result with a human's: clipped and
#   pooled n-gram precisions, their geometric mean, and a brevity penalty.
# - Base has 63,082,496 parameters at a vocabulary of 37,000, and took at most $3.3 \cdot 10^{18}$ operations.
#
# That ends Part I. Looking back, each lesson had one question:
#
# | | The question | The answer |
# | --- | --- | --- |
# | 01 | How does text become numbers? | bytes, merged into tokens; each picks a row of a table |
# | 02 | What if a sentence does not fit into one vector? | look back at all of its vectors, with learned weights |
# | 03 | How can a lookup be learned? | make it soft: scores, softmax, an average of values |
# | 04 | What if a word wants several things? | several heads; and the keys may come from another sentence |
# | 05 | Who tells attention the order? | positions: added to words or to scores, or as a turn of queries and keys |
# | 06 | How does it become deep? | residuals, norms and a feed-forward network; Adam with a warm-up |
# | 08 | What do these make together? | an encoder and a decoder, which read and write |
#
# All of it is still in use. Part II leaves out one half of the model.
#
# **Read** Vaswani et al. 2017, *Attention Is All You Need*, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762): now
# you can read all of it. Sections 3.1, 3.4, 5.1 to 5.4 and 6.1 are this lesson. Beside it,
# [The Annotated Transformer](https://nlp.seas.harvard.edu/annotated-transformer/) (Rush 2018; Huang et al. 2022) goes
# through the same paper paragraph by paragraph, each with its code. You will know every piece; it, too, puts the norm
# first. The ideas before it: Sutskever et al. 2014, [arXiv:1409.3215](https://arxiv.org/abs/1409.3215), and Cho et al.
# 2014, [arXiv:1406.1078](https://arxiv.org/abs/1406.1078). The search: Wu et al. 2016,
# [arXiv:1609.08144](https://arxiv.org/abs/1609.08144), section 7. Two passes that agree: Liang et al. 2021,
# [arXiv:2106.14448](https://arxiv.org/abs/2106.14448). The measure: Papineni et al. 2002, *BLEU*,
# [ACL P02-1040](https://aclanthology.org/P02-1040/), and Post 2018, *A Call for Clarity in Reporting BLEU Scores*,
# [arXiv:1804.08771](https://arxiv.org/abs/1804.08771).
#
# **Do** the exercise [08_transformer](../exercises/exercise_08_transformer.ipynb). Part II of the course goes on with
# half of this model: a decoder without an encoder.
