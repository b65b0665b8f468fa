# %% [markdown] lesson={"part": "I Attention", "builds": "encoder and decoder, in one file of your own"}
# # 08 · The Transformer, built from its parts
#
# **After this lesson you will be able to**
#
# - put the parts of lessons 03 to 06 together into the Transformer of Vaswani et al. (2017);
# - say what the decoder reads, what it must write, and which mask hides what;
# - train it on a first task, reversing a string of letters, and see in its attention how it works;
# - recognize a model that has cheated in training;
# - keep the whole model in one file, `my_transformer.py`, that needs nothing but torch.
#
# **You need** lessons 03 to 07. **It takes** about 60 minutes to read and try; all cells together run in about a
# minute on a laptop. Most of that is training.

# %% [markdown]
# ## 1 The problem: a sentence in, another sentence out
#
# *Was hat dich so krank gemacht?* Word by word, that is *what has you so sick made*, but it means *What made you so
# sick?* A dictionary is not enough, for two reasons. The words come in another order: *gemacht* is last, *made* second.
# And the number of words differs, here six and five, so the source does not say when to stop.
# We have attention, heads, positions and the block. What is missing is a model that reads one text and writes another.
#
# The answer of Sutskever et al. and Cho et al. (2014), which lesson 02 builds from recurrent nets, is to split the
# work. An **encoder** reads the whole source. A **decoder** writes the target, one token after the other, and decides
# for itself when it is done. Here both are made of attention.
#
# Real sentences need hours of training (lesson 09: nearly two). So our first task is smaller, with both difficulties in
# a pure form: reverse a string. *cabbed* becomes *debbac*. The order changes as much as it can, and the decoder must
# find out when to stop.

# %% tags=["recorded"]
import json
import random
from math import log

import torch
import torch.nn.functional as F
from torch import nn

from txcourse import explore, figures
from txcourse.lesson import expect, predict, predicted, progress, prove_equal
from txlib import models, plots
from txlib.data import collate
from txlib.layers import BlockConfig

# %% [markdown]
# ## 2 The idea in one picture
#
# You know every box below; what is new is how they are wired. Read the picture from the bottom.

# %% jupyter={"source_hidden": true}
figures.encoder_decoder(
    source="c a b b e d <eos>", shifted="<bos> d e b b a c", target="d e b b a c <eos>",
    title="The encoder reads; the decoder writes, and looks up the memory")

# %% [markdown]
# This is the paper's figure 1, with the residual stream of lesson 06 as the thick line. What leaves the *top* of the
# encoder's stack is called the **memory**: one vector per source token, each computed from the whole string. A decoder
# block has three sub-layers:
#
# 1. *causal self-attention*: what have I written?
# 2. *cross-attention*: what do I need from the source? The queries come from the decoder, the keys and values from the
#    memory.
# 3. *feed-forward*: compute with what was found.
#
# The towers are the paper's, with post-norm. On the right is the one thing that we change: ours is pre-norm.
#
# The model is a chain of guesses. Suppose it is to write *ab*. It gives *a* the probability 0.9; having read *a*, it
# gives *b* 0.8; having read *ab*, it gives the end 0.95. The probability of the whole output is the product, $0.9 \cdot
# 0.8 \cdot 0.95 = 0.68$. In general, with source $x$ and target $y_1 \dots y_n$, where $y_n$ is the end-of-sequence
# token:
#
# $$p(y \mid x) = \prod_{t=1}^{n} p(y_t \mid y_1 \dots y_{t-1}, x)$$

# %% [markdown]
# ## 3 Build it
#
# ### 3.1 Letters to numbers
#
# To try the parts of this plan, we need batches. Ten letters and three special tokens make the vocabulary: `PAD`
# (padding), `BOS` (the beginning of a sequence) and `EOS` (its end).

# %% tags=["recorded"]
LETTERS = "abcdefghij"
vocabulary = ["<pad>", "<bos>", "<eos>", *LETTERS]
PAD, BOS, EOS = 0, 1, 2


def to_ids(word):
    return [vocabulary.index(letter) for letter in word]


def random_pairs(number, rng, shortest=4, longest=10):
    lengths = [rng.randint(shortest, longest) for _ in range(number)]
    sources = ["".join(rng.choices(LETTERS, k=length)) for length in lengths]
    return [(to_ids(source), to_ids(source[::-1])) for source in sources]


# %% [markdown]
# A batch is a matrix, so strings of different lengths must be padded. `collate` appends an `EOS` to each and pads the
# source with `PAD`. The **labels**, which the decoder is to write, are padded with −100, which the loss ignores.

# %% tags=["recorded"]
def pair_of(word):
    return to_ids(word), to_ids(word[::-1])


example = collate([pair_of("bad"), pair_of("cabbed")], BOS, EOS, PAD)
print("input_ids      ", example.input_ids.tolist())  # (batch, source)
print("attention_mask ", example.attention_mask.tolist())  # 1 = a real token
print("labels         ", example.labels.tolist())  # (batch, target)

# %% [markdown]
# ### 3.2 Shift right: teacher forcing
#
# To predict letter $t$, the decoder reads letters $1 \dots t-1$. In training we know the right ones, and give it those,
# whatever it would have written itself. This is **teacher forcing**. So the decoder's input is the labels, shifted
# right by one, with `BOS` in front. All positions are trained in one pass. (Lesson 02's recurrent decoder takes them
# one after the other, even in training.)


# %% tags=["recorded"]
def shift_right(labels, bos=1, pad=0):  # (batch, target)
    start = torch.full_like(labels[:, :1], bos)  # (batch, 1)
    shifted = torch.cat([start, labels[:, :-1]], dim=1)  # (batch, target)
    return shifted.masked_fill(shifted == -100, pad)  # −100 is no token


reads = shift_right(example.labels)[1]
for read, write in zip(reads, example.labels[1], strict=True):
    print(f"reads {vocabulary[read]:>5}   is to write {vocabulary[write]}")

# %% [markdown]
# ### 3.3 The embedding, scaled by $\sqrt{d}$ and used twice
#
# Source, target and output share *one* matrix (§3.4 of the paper): its rows are looked up at the bottom, and at the top
# each row's dot product with the decoder's vector is a letter's score, its **logit**. Softmax turns logits into
# probabilities. This sharing is called **weight tying**.
#
# The two jobs want different sizes. Take $d = 4$ and a row such as (½, −½, ½, ½). At the output, the dot product of
# this row and a vector with entries of size 1 has four terms of ±½, which partly cancel: the sum is about 1, and the
# softmax starts soft. At the input, entries of ½ would be too quiet next to positions whose entries reach 1. Multiplied
# by $\sqrt 4 = 2$, they have size 1. In general, rows start with variance $1/d$, and are multiplied by $\sqrt d$ at the
# input only. (The paper gives no reason for its $\sqrt d$; this is a common explanation.)


# %% tags=["recorded"]
class Embedding(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocab_size, d_model) * d_model**-0.5)

    def forward(self, ids):  # (batch, length)
        x = F.embedding(ids, self.weight)  # (batch, length, d_model)
        return x * self.weight.shape[1] ** 0.5


torch.manual_seed(0)
embedding = Embedding(5000, 256)
x = embedding(torch.arange(100))  # (100, d_model)
logits = F.layer_norm(x, (256,)) @ embedding.weight[100:].T  # (100, 4900): other words
print(f"variance at the input {x.var():.2f}, of a logit {logits.var():.2f}")

# %% [markdown]
# ### 3.4 The block, with a look at the source
#
# We have a block: lesson 06 put it into `my_transformer.py`, and we continue with that file. (If you have none,
# `restore_module` makes it from that lesson's cells.)

# %% tags=["recorded"]
from txcourse.lesson import restore_module

restore_module("my_transformer.py", "06_block")
from my_transformer import (
    FeedForward, LayerNorm, MultiHeadAttention, TransformerBlock, attention,
    pre_norm, xavier,
)

# %% [markdown]
# `TransformerBlock` has two sub-layers, self-attention and feed-forward. Its `wiring` adds each to the stream. It is
# lesson 06's `pre_norm`:
#
# ```python
# def pre_norm(x, sublayer, norm):
#     return x + sublayer(norm(x))
# ```
#
# The encoder needs no more. A decoder's block has a third sub-layer between them. It is the same
# `MultiHeadAttention`, with queries from the decoder, and keys and values from the memory. (Dropout comes back in
# lesson 09. Here every batch is new, so there is nothing to memorize.)


# %% tags=["recorded"]
class DecoderBlock(TransformerBlock):
    def __init__(self, d_model, heads, d_ff):
        super().__init__(d_model, heads, d_ff)
        self.cross_attention = MultiHeadAttention(d_model, heads)
        self.cross_attention_norm = LayerNorm(d_model)

    def forward(self, x, mask, memory, memory_mask):  # x (batch, n, d_model)
        def attend(y):
            return self.self_attention(y, mask=mask)

        def look_up(y):  # memory (batch, m, d_model)
            return self.cross_attention(y, memory, memory_mask)

        x = self.wiring(x, attend, self.self_attention_norm)
        x = self.wiring(x, look_up, self.cross_attention_norm)
        return self.wiring(x, self.feed_forward, self.feed_forward_norm)


# %% [markdown]
# A stack is $N$ blocks of one kind. With pre-norm nothing has normalized the stream at its end, so one more norm goes
# on top.

# %% tags=["recorded"]
class Stack(nn.Module):
    def __init__(self, block, layers, d_model, heads, d_ff):
        super().__init__()
        self.layers = nn.ModuleList(
            block(d_model, heads, d_ff) for _ in range(layers))
        self.norm = LayerNorm(d_model)

    def forward(self, x, *reads):  # x (batch, n, d_model); masks, and the memory
        for layer in self.layers:
            x = layer(x, *reads)  # (batch, n, d_model)
        return self.norm(x)

# %% [markdown]
# ### 3.5 The whole model, and its two masks
#
# There are two masks, which are easy to mix up. The *padding* mask hides the source's padding, in the encoder and again
# in cross-attention. The *causal* mask is for the decoder's self-attention only. Here they are for *bad*, padded to six
# places. A colored cell means that the row may look at the column (pink, as above, where it looks at the memory):

# %% jupyter={"source_hidden": true}
figures.three_masks(
    source=["b", "a", "d", "<eos>", "<pad>", "<pad>"], shifted=["<bos>", "d", "a", "b", "<pad>", "<pad>"], padding=2,
    title="Padding is hidden in the source, the future in the target",
    alt="Three tables; a colored cell means that the row may look at the column. Encoder's self-attention and decoder's "
    "cross-attention: the first four columns are colored, the source's two columns of padding are white. Decoder's "
    "self-attention: a colored triangle, each row up to its own column.",
)

# %% [markdown]
# The target's padding needs no mask: it is at the end, where the causal mask hides it from all real letters. In code,
# with lesson 05's positions:


# %% tags=["recorded"]
def readable(attention_mask):  # (batch, source): 1 = a real token
    return attention_mask.bool()[:, None, None, :]  # (batch, 1, 1, source)


def causal(x):  # (batch, target, d_model)
    n = x.shape[1]
    return torch.ones(1, 1, n, n, device=x.device).tril().bool()  # (1, 1, query, key)


def sinusoids(length, d_model, device=None):  # -> (length, d_model)
    position = torch.arange(length, device=device)[:, None]  # (length, 1)
    index = torch.arange(0, d_model, 2, device=device)  # (d_model / 2,)
    angle = position * 10000 ** (-index / d_model)  # (length, d_model / 2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


print(readable(example.attention_mask)[0, 0].int().tolist(), "padding, for 'bad'")
print(causal(torch.zeros(1, 3, 8))[0, 0].int().tolist(), "causal, for three letters")

# %% [markdown]
# Now join all parts as in the picture of section 2, with each norm on its branch (pre-norm, at the picture's lower
# right) and one more norm on top of each stack. First the two towers, and what goes into both:

# %% tags=["recorded"]
class Towers(nn.Module):
    def __init__(self, vocab_size, layers=2, d_model=64, heads=4, d_ff=256):
        super().__init__()
        self.embedding = Embedding(vocab_size, d_model)
        self.encoder = Stack(TransformerBlock, layers, d_model, heads, d_ff)
        self.decoder = Stack(DecoderBlock, layers, d_model, heads, d_ff)

    def embed(self, ids):  # (batch, length)
        x = self.embedding(ids)  # (batch, length, d_model)
        return x + sinusoids(x.shape[1], x.shape[2], x.device)

# %% [markdown]
# Then the path through them, with the two masks, up to the logits:

# %% tags=["recorded"]
class Transformer(Towers):
    def encode(self, input_ids, attention_mask):  # (batch, source), twice
        return self.encoder(self.embed(input_ids), readable(attention_mask))

    def decode(self, decoder_input_ids, memory, attention_mask):  # (batch, target), …
        x = self.embed(decoder_input_ids)  # (batch, target, d_model)
        return self.decoder(x, causal(x), memory, readable(attention_mask))

    def logits(self, hidden):  # (batch, target, d_model)
        return hidden @ self.embedding.weight.T  # (batch, target, vocab)

    def forward(self, input_ids, attention_mask, decoder_input_ids):
        memory = self.encode(input_ids, attention_mask)  # (batch, source, d_model)
        hidden = self.decode(decoder_input_ids, memory, attention_mask)
        return self.logits(hidden)  # (batch, target, vocab)

# %% [markdown]
# Two blocks in each stack, 64 numbers per vector. Follow the batch of *bad* and *cabbed* through them:

# %%
torch.manual_seed(0)
model = Transformer(len(vocabulary))
memory = model.encode(example.input_ids, example.attention_mask)
hidden = model.decode(shift_right(example.labels), memory, example.attention_mask)
print("memory", tuple(memory.shape), "(batch, source, d_model)")
print("hidden", tuple(hidden.shape), "(batch, target, d_model)")
print("logits", tuple(model.logits(hidden).shape), "(batch, target, vocabulary)")
print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters")

# %% [markdown]
# Do the masks hold? The source is *cabbed*. Let the decoder read *debbac*, and then *debbaj*: only its last prediction
# may change, since the others come before the *j*. Then append to the source two letters that its mask hides: nothing
# may change, apart from rounding. Remember the first test. It needs no training, and it catches the mistake that
# section 6 makes on purpose.


# %%
def largest_change(before, after):
    return (after - before).abs().max().item()


@torch.no_grad()
def peeks(model, source, real, read, other):  # into the last letter
    before, after = (model(source, real, ids) for ids in (read, other))
    return largest_change(before[:, :-1], after[:, :-1]) > 1e-4


single = collate([pair_of("cabbed")], BOS, EOS, PAD)
source, real = single.input_ids, single.attention_mask  # each (1, source)
debbac = shift_right(single.labels)  # (1, target): <bos> d e b b a c
debbaj = debbac.clone()
debbaj[0, -1] = vocabulary.index("j")
print("sees later letters:", peeks(model, source, real, debbac, debbaj))
before = model(source, real, debbac)  # (1, target, vocab)
after = model(F.pad(source, (0, 2), value=9), F.pad(real, (0, 2)), debbac)
print("changed by what is hidden:", largest_change(before, after) > 1e-5)

# %% [markdown]
# ## 4 Train it: reverse a string
#
# ### 4.1 The loop
#
# The wiring looks right, so let us train. The loss is lesson 03's cross-entropy: the mean of $-\log p$ over all tokens
# to be written. A model that gives the right letter the probability ½ each time has a loss
# of $-\log ½ = 0.69$; blind guessing among 13 tokens has $\log 13 = 2.6$.
#
# Each step draws 64 new strings. The rest is Adam with a warm-up (lesson 07), after which the rate falls in a straight
# line, and clipped gradients (lesson 02). (`loss_of` calls the model's three methods one by one, since the rivals of
# section 4.3 have them as well.)


# %% tags=["recorded"]
def loss_of(model, batch):
    memory = model.encode(batch.input_ids, batch.attention_mask)  # (batch, source, …)
    read = shift_right(batch.labels)  # (batch, target)
    hidden = model.decode(read, memory, batch.attention_mask)  # (batch, target, …)
    logits = model.logits(hidden)  # (batch, target, vocab)
    return F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten())  # skips −100


def smooth(losses):  # means of ten steps, since single batches vary
    return torch.tensor(losses).unfold(0, 10, 1).mean(dim=-1).tolist()


# %% [markdown]
# The loop takes 300 steps, unless `stop` ends it earlier:


# %% tags=["recorded"]
def train(model, what, steps=300, stop=None, draw=random_pairs, seed=0, lr=3e-3):
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    rng, losses = random.Random(seed), []
    for step in progress(range(1, (stop or steps) + 1), what):
        scale = min(step / 50, (steps + 1 - step) / (steps - 49))  # up to 1, then down
        optimizer.param_groups[0]["lr"] = lr * scale
        loss = loss_of(model, collate(draw(64, rng), BOS, EOS, PAD))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    return losses


# %% [markdown]
# Now train it, in about a quarter of a minute:

# %% tags=["nbval-ignore-output"]
losses = train(model, "training the Transformer")
expect("Loss at the end", smooth(losses)[-1], 0.0, 0.15)

# %% [markdown]
# Where in these 300 steps did it learn?

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
curve = smooth(losses)
frequencies_only = -(7 / 8 * log(7 / 80) + 1 / 8 * log(1 / 8))
plots.lines(
    {"training": (range(10, 10 + len(curve)), curve),
     "frequencies only": ([10, 300], [frequencies_only, frequencies_only])},
    dashed=["frequencies only"], title="First it learns what is frequent, then which letter comes",
    xlabel="training step", ylabel="loss (nats), mean of 10",
    alt=f"The loss begins at {curve[0]:.1f}, the mean of the first ten steps. It falls steeply, slows down close to a "
    f"dashed line at {frequencies_only:.2f}, at {curve[30 - 10]:.2f} after 30 steps, then falls again, and ends at "
    f"{curve[-1]:.2f}.",
)

# %% [markdown]
# It starts above blind guessing, 2.6. Our explanation, which lesson 09 tests: a new model bets on the letter that it
# has just read, since that letter's embedding is much of the decoder's vector. Soon the loss rests near the dashed
# line, which is the best that one can do by knowing frequencies alone. Of eight tokens, seven are letters on average,
# each one of ten, and one is the end: $-\frac{7}{8} \log \frac{7}{80} - \frac{1}{8} \log \frac{1}{8} = 2.39$. Then it
# learns which token comes when.
#
# ### 4.2 Write
#
# In training it was given the right letters. Now it has to do without. Start with `BOS`, ask for the likeliest next
# letter, append it, and ask again, until it says `EOS`. This is **greedy** decoding. We do it for a whole batch at
# once; whatever follows the first `EOS` does not count.


# %% tags=["recorded"]
@torch.no_grad()
def greedy(model, input_ids, attention_mask, max_length=12, bos=1, eos=2):
    memory = model.encode(input_ids, attention_mask)  # computed once
    written = torch.full_like(input_ids[:, :1], bos)  # (batch, 1)
    for _ in range(max_length):
        hidden = model.decode(written, memory, attention_mask)  # (batch, length, …)
        token = model.logits(hidden[:, -1]).argmax(dim=-1)  # (batch,): the new one
        written = torch.cat([written, token[:, None]], dim=1)  # (batch, length + 1)
        if (written == eos).any(dim=1).all():
            break
    return written[:, 1:]  # without BOS


# %% [markdown]
# Now with words going in and words coming out:


# %% tags=["recorded"]
def reverse(model, words):
    batch = collate([(to_ids(word), []) for word in words], BOS, EOS, PAD)
    texts = []
    for ids in greedy(model, batch.input_ids, batch.attention_mask).tolist():
        ids = ids[: ids.index(EOS)] if EOS in ids else ids
        texts.append("".join(vocabulary[id] for id in ids))
    return texts


# %% [markdown]
# We test it on 500 random strings of 4 to 10 letters, few of which (short ones) were in the training batches:

# %% tags=["recorded"]
rng = random.Random(-1)
test = ["".join(rng.choices(LETTERS, k=rng.randint(4, 10))) for _ in range(500)]


def fraction_right(model):
    written = reverse(model, test)
    right = [text == word[::-1] for text, word in zip(written, test, strict=True)]
    return sum(right) / len(right)


# %% [markdown]
# Before the test on all 500, try words of your own, from the letters a to j:

# %% tags=["nbval-ignore-output"]
tried = ["cabbed", "feedbag", "abcdefghij", "jjjjj", "bead"]


def show_written(model):
    for word, written in zip(tried, reverse(model, tried), strict=True):
        mark = "✗ the same letters" if sorted(word) == sorted(written) else "✗"
        if written == word[::-1]:
            mark = "✓"
        print(f"{word:10} {written:12} {mark}")


show_written(model)
expect("Reversed without a mistake", fraction_right(model), 0.93, 1)

# %% [markdown]
# The whole chain works, and it finds the end by itself.
#
# ### 4.3 A fair comparison
#
# How good is that? Lesson 02 has two rivals: a recurrent net that hands one vector to its decoder, and Bahdanau's,
# which looks back at all of them. Here both have about as many parameters as our Transformer. The fourth is the
# Transformer with the paper's post-norm, to see what our one change is worth.


# %% tags=["recorded"]
NETS = "one vector", "recurrent, looks back", "Transformer", "post-norm, the paper's"
RATES = 0.001, 0.003


def untrained(name):
    if name == "Transformer":
        return Transformer(len(vocabulary))
    if name == "post-norm, the paper's":
        block = BlockConfig.of_sizes(
            d_model=64, heads=4, d_ff=256, norm_first=False, position="sinusoidal"
        )
        config = models.TransformerConfig(len(vocabulary), block, 2, 2)
        return models.Transformer(config)
    attention = "additive" if name == "recurrent, looks back" else None
    config = models.Seq2SeqConfig(len(vocabulary), d_model=112, attention=attention)
    return models.Seq2Seq(config)


# %% [markdown]
# What do you expect?

# %%
predict(
    "reverse-rivals", "Which of the first three reverse nearly all strings correctly?",
    "the Transformer alone", "the Transformer and the net that looks back", "all three",
)

# %% [markdown]
# `python data/reversal.py 0 1 2` has trained each of them from three starts, with `train`, at two learning rates, since
# a rate may suit one net and not another. In each start, all see the same batches in the same order. Here are the
# strings reversed without a mistake:

# %%
from txlib.paths import DATA

recorded = json.loads((DATA / "reversal.json").read_text())
for name in NETS:
    size = sum(weight.numel() for weight in untrained(name).parameters())
    print(f"{name}, {size:,} parameters")
    for lr in RATES:
        seeds = recorded["reversed"][str(lr)][name].values()
        print(f"    learning rate {lr}:", *(f"{right:6.1%}" for right in seeds))
longer = recorded["1,500 steps"]["one vector"].values()  # at the higher rate
print("one vector, 1,500 steps:", *(f"{right:6.1%}" for right in longer))
predicted(
    "reverse-rivals", "the Transformer and the net that looks back",
    "Within 300 steps, looking back is what counts, with or without recurrence.",
)

# %% [markdown]
# The higher rate is better for every net. At that rate the net with one vector reverses seven strings in ten, and all
# nets that look back reverse nearly all. So recurrence does not fail here; within 300 steps, looking back is what
# helps. (It is not that one vector *cannot* hold ten letters: after 1,500 steps, in the last line, it reverses 96 or 97
# in a hundred.) At the lower rate the recurrent net is even ahead. (Our explanation: the Transformers need more than
# 300 steps there.) What the Transformer gains by dropping the recurrence is that training need not wait: it computes
# all positions of a string at once (lesson 02 §7).
#
# The two wirings of the Transformer tie at the higher rate, and at the lower one post-norm is ahead on average: with
# two blocks and a warm-up, it learns well. We chose pre-norm for what lesson 07 measured: it also learns at high rates
# without a warm-up.

# %% [markdown]
# ## 5 See it work: where does the decoder look?
#
# We know *that* it works. Attention can show *how*. Our `MultiHeadAttention` does not keep its weights, but the
# library's does if asked. `txlib` has this model with the same parts under the same names, so it takes our weights as
# they are. Does it compute the same?

# %% tags=["nbval-ignore-output"]
block = BlockConfig.of_sizes(d_model=64, heads=4, d_ff=256, position="sinusoidal")
config = models.TransformerConfig(len(vocabulary), block, 2, 2)  # blocks in each stack
library = models.Transformer(config).eval()
library.load_state_dict(model.state_dict())
long_word = "cabbedhi"
batch = collate([pair_of(long_word)], BOS, EOS, PAD)
inputs = batch.input_ids, batch.attention_mask, shift_right(batch.labels)
with torch.no_grad():
    ours, theirs = model(*inputs), library(*inputs).logits  # (batch, target, vocab)
prove_equal(ours, theirs, tolerance=1e-4, what="Your logits and the library's")

# %% [markdown]
# Now run it once more, and let `recording` keep the weights of each call. In both decoder blocks, we take the mean of
# all heads:

# %% tags=["nbval-ignore-output"]
from txlib.attention import recording

with torch.no_grad(), recording(library) as seen:
    library(*inputs)
blocks = []
for layer in (0, 1):
    calls = seen[f"decoder.layers.{layer}.cross_attention"]  # there is only one
    weight = calls[0][0]  # (head, target, source)
    blocks.append(weight.mean(dim=0))  # (target, source)
print("weights", tuple(blocks[0].shape), "(target, source)")

# %% [markdown]
# To write the first letter of *ihdebbac*, the decoder needs the last letter of *cabbedhi*, then the one before it, and
# so on. Here is the cross-attention of both blocks. Rows are the letters that it is about to write, columns the letters
# of the source. Before you look: what pattern do you expect, and in which block?

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
plots.heads(
    torch.stack(blocks), names=["block 0", "block 1"], numbers=True, size=0.5,
    rows=[*long_word[::-1], "<eos>"], columns=[*long_word, "<eos>"], ylabel="is to write", xlabel="looks at",
    title="The last block reads the source from right to left",
    alt="Two tables of weights, one for each decoder block; rows are the letters to be written, columns the letters of "
    "the source. In block 0 the weight is spread, much of it over the end of the source. In block 1 it runs along the "
    "anti-diagonal, from the last letter of the source in the first row to its first letter in the last.",
)

# %% [markdown]
# In the last block, this is lesson 03's lookup, learned: an **anti-diagonal**. Nothing in the loss asks for it; it
# comes from the task. Count the rows whose largest weight is on the letter to be written, the *partner*:

# %% tags=["nbval-ignore-output"]
n = len(long_word)
partner = torch.arange(n).flip(0)  # (letter,): the first row needs the last one
for layer, weight in enumerate(blocks):
    weight = weight[:n]  # (letter, source): without the row of <eos>
    looked = weight.argmax(dim=-1)  # (letter,)
    hits = (looked == partner).sum().item()
    mean = weight.gather(1, partner[:, None]).mean()
    print(f"block {layer} looks at {looked.tolist()}: {hits} of 8 rows hit;",
          f"a partner gets {mean:.2f}")
expect("Rows of block 1 that look at their partner", hits, 6, 8)
print(f"it writes {reverse(model, [long_word])[0]}")

# %% [markdown]
# Block 0 has no such pattern; these tables cannot say what it fetches. In block 1 about half of the weight is on the
# partner. The rest goes mostly to its neighbors, and the word is right all the same. Our explanation: the encoder mixes
# neighbors, so a memory vector can also tell what is next to its letter. That is a warning for every attention map: it
# shows where vectors were fetched, not what was in them (lesson 43).

# %% [markdown]
# ## 6 Break it
#
# ### 6.1 Forget the causal mask
#
# Now take the causal mask out of one line of a model that works. No error is raised, and every shape fits.


# %% tags=["recorded"]
class Unmasked(Transformer):
    def decode(self, decoder_input_ids, memory, attention_mask):  # (batch, target), …
        x = self.embed(decoder_input_ids)  # (batch, target, d_model)
        everything = torch.ones_like(causal(x))  # (1, 1, query, key)
        return self.decoder(x, everything, memory, readable(attention_mask))


# %% [markdown]
# We keep the start, the batches and the rates, and take half the steps. What will the loss do?

# %%
predict(
    "reverse-unmasked", "Without the causal mask, the training loss will be",
    "higher", "about equal", "lower",
)

# %% [markdown]
# Train it, and let it write:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
unmasked = Unmasked(len(vocabulary))
unmasked_losses = train(unmasked, "without the causal mask", stop=150)
with_mask = smooth(losses[:150])[-1]
print(f"loss {smooth(unmasked_losses)[-1]:.2f}; with the mask {with_mask:.2f}")
show_written(unmasked)
expect("Right among 500", fraction_right(unmasked), 0, 0.05)
predicted("reverse-unmasked", "lower", "A loss that is too good is a symptom.")

# %% [markdown]
# It is lower, and not one string is right. What has it learned? One test settles it: a task that no one can solve. Let
# the target be random letters that have nothing to do with the source. Each is one of ten, so an honest model pays at
# least $\log 10 = 2.3$ for a letter. The end can be foreseen, since a target is as long as its source. There are seven
# letters for each end, so the mean is at best $\frac{7}{8} \cdot 2.3 = 2.0$.

# %% tags=["recorded"]
def unrelated_pairs(number, rng):
    sources = [source for source, _ in random_pairs(number, rng)]
    return [(source, rng.choices(range(3, 13), k=len(source))) for source in sources]


# %% [markdown]
# We train both for half the steps, as before:

# %% tags=["nbval-ignore-output"]
noise = {}
for name, kind in {"with mask": Transformer, "without mask": Unmasked}.items():
    torch.manual_seed(0)
    noise[name] = train(kind(len(vocabulary)), name, stop=150, draw=unrelated_pairs)
expect("Loss on noise, with mask", smooth(noise["with mask"])[-1], 1.9, 2.4)
expect("Loss on noise, without mask", smooth(noise["without mask"])[-1], 0, 1.5)

# %% [markdown]
# The figure has both losses, step by step; the dashed line is that bound, 2.0:

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
curves = {name: smooth(each) for name, each in noise.items()}
plots.lines(
    {name: (range(10, 10 + len(curve)), curve) for name, curve in curves.items()}
    | {"best without peeking": ([10, 150], [7 / 8 * log(10), 7 / 8 * log(10)])},
    dashed=["best without peeking"], title="Without the mask, the loss falls far below what is possible",
    xlabel="training step", ylabel="loss (nats), mean of 10",
    alt=f"Two loss curves and a dashed line at 2.0. With the mask the loss comes down to the line, and ends at "
    f"{curves['with mask'][-1]:.2f}. Without the mask it falls to {curves['without mask'][-1]:.2f}.",
)

# %% [markdown]
# No model can predict random letters. This one *reads* it: what the decoder reads at position $t + 1$ is the letter
# that it is to write at position $t$. So it learned to copy, not to reverse. When it writes by itself, there is nothing
# at position $t + 1$ yet, and what comes out is one letter, again and again. A loss that is *too good* is a symptom.
# The test of section 3.5 finds the mistake without any training:

# %% tags=["nbval-ignore-output"]
for name, net in {"with": model, "without": unmasked}.items():
    print(name, "mask, sees later letters:", peeks(net, source, real, debbac, debbaj))

# %% [markdown]
# ### 6.2 Forget the positions
#
# We know what a mask is worth. And the positions? Attention ignores order (lesson 03). Without the sinusoids the
# encoder sees a bag of letters; the decoder knows a little about order, through its causal mask (lesson 05).


# %% tags=["recorded"]
class Unplaced(Transformer):
    def embed(self, ids):  # (batch, length)
        return self.embedding(ids)  # (batch, length, d_model)


# %% [markdown]
# Train it and let it write:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
unplaced = Unplaced(len(vocabulary))
unplaced_losses = train(unplaced, "without positions", stop=150)
print(f"loss {smooth(unplaced_losses)[-1]:.2f}; with positions {with_mask:.2f}")
show_written(unplaced)
expect("Right among 500, without positions", fraction_right(unplaced), 0, 0.15)

# %% [markdown]
# It mostly finds the source's letters, but not their order: to an encoder without positions, *cabbed* and *debbac* are
# the same bag.
#
# Now compare both mistakes with the whole model, from three starts, which `data/reversal.py` has trained. (*reversed*
# is the fraction of strings that are right.)

# %%
for name, runs in recorded["broken"].items():
    for value in ("loss", "reversed", "loss on noise"):
        shown = (f"{run[value]:6.3f}" for run in runs.values())
        print(f"{name:14} {value:13}", *shown)

# %% [markdown]
# The three starts agree. Without the causal mask the loss is lowest, on noise as well, and no string is right. Without
# positions, one or two strings in a hundred are right; with all parts, 61 to 70 in a hundred after these 150 steps.

# %% [markdown]
# ## 7 One file, and the library
#
# ### 7.1 `my_transformer.py`
#
# Lesson 06 began this file, and the rest of the model is in your cells. `write_module` puts both into one file, as they
# are now, with any change that you have made. It imports torch and nothing else.

# %% tags=["nbval-ignore-output"]
from txcourse.lesson import write_module

write_module(
    "my_transformer.py", attention, MultiHeadAttention, LayerNorm, FeedForward, xavier,
    pre_norm, TransformerBlock, DecoderBlock, Stack, Embedding, sinusoids, readable,
    causal, Towers, Transformer, shift_right, greedy,
)

# %% [markdown]
# Open it: this is the paper's model (with pre-norm). Any program can use it now. Does it compute the same?

# %%
import my_transformer

again = my_transformer.Transformer(len(vocabulary)).eval()
again.load_state_dict(model.state_dict())
with torch.no_grad():
    from_file = again(*inputs)  # (batch, target, vocab)
prove_equal(ours, from_file, what="The cells' logits and the file's")

# %% [markdown]
# ### 7.2 Open the library
#
# Section 5 has shown that the library's model gives the same logits. Its `decode` also takes a cache (lesson 13), and
# both methods take further masks. (`scale_output` is for T5, a later model.)

# %%
from txcourse.lesson import show_source

show_source(models.Transformer.encode, models.Transformer.decode)

# %% [markdown]
# Here is the picture of section 2 once more, drawn from two of the library's models: one wired as in the paper, and
# yours. Click on a box (or use Tab and Enter) to open the lessons that built it, its source, and its number of
# parameters. Where do the two differ? (If you see no list of parts, run the cell.)

# %%
paper = untrained("post-norm, the paper's")
explore.transformer(
    {"post-norm, the paper's": paper, "pre-norm, ours": library},
    title="Pre-norm takes the norms off the stream, and adds one on top of each stack",
)

# %% [markdown]
# <details><summary>The answer</summary>
#
# Pre-norm has the same norms in other places, and one more on top of each stack. These two hold the 256 extra
# parameters of section 4.3.
# </details>

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. In cross-attention, where do queries, keys and values come from?**
#
# <details><summary>A. Queries from the memory, keys and values from the decoder</summary>
#
# It is the other way around. The side that *writes* asks. And the output must have one row for each token being
# written.
# </details>
# <details><summary>B. Queries from the decoder, keys and values from the memory</summary>
#
# Right. Each token being written looks up the source.
# </details>
# <details><summary>C. Queries and keys from the decoder, values from the memory</summary>
#
# Then the score would not depend on the source, and there would be one key per target token but one value per source
# token.
# </details>
#
# **2. The validation loss of your translator (plain cross-entropy) is 0.3 after an hour; your colleague's good model
# has 2.5. What do you check first?**
#
# <details><summary>A. The learning rate</summary>
#
# A bad learning rate makes losses bad. This one is too good.
# </details>
# <details><summary>B. Whether the decoder can see the token it is to predict</summary>
#
# Right: a missing causal mask, or labels that were not shifted. Both let it copy, in validation as well, because
# validation is teacher-forced.
# </details>
# <details><summary>C. Whether the vocabulary is too small</summary>
#
# Shorter tokens do have lower losses. But even if each were spelled out in five letters, 2.5 would only become 0.5.
# </details>
#
# **3. Training needs one pass of the decoder for a target of 20 tokens. How many does writing need?**
#
# <details><summary>A. One as well</summary>
#
# In training all previous tokens are known beforehand. Now each must be written before it can be read.
# </details>
# <details><summary>B. 21, the last one for the end token</summary>
#
# Right: one per token and one for `EOS`. The encoder runs once.
# </details>
# <details><summary>C. 400</summary>
#
# 400 is the number of scores in one head's matrix. The number of passes grows with the number of tokens.
# </details>
#
# **4. Why is the embedding multiplied by $\sqrt{d}$?**
#
# <details><summary>A. To make the gradient larger</summary>
#
# It does that as well, but a learning rate could do it. It is about the sizes in the forward pass.
# </details>
# <details><summary>B. The matrix is small so that it suits the output; the input needs variance 1</summary>
#
# Right. One matrix has two jobs, which want different sizes.
# </details>
# <details><summary>C. It is the $\sqrt{d_k}$ of attention, taken back</summary>
#
# That one divides scores inside each head, and stays.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - The encoder turns the source into a memory; the decoder writes, looking at its own past and at the memory.
# - Teacher forcing and the causal mask together train all positions in one pass. Without the mask the model copies, and
#   its loss looks wonderful.
# - The padding mask belongs to the source, in the encoder and in cross-attention; the causal mask to the decoder.
# - One matrix embeds source and target and gives the logits; at the input it is multiplied by $\sqrt d$.
# - When the model reverses a string, its cross-attention is an anti-diagonal.
#
# **Read** Vaswani et al. 2017, *Attention Is All You Need*, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762),
# sections 3.1 and 3.4. [The Annotated Transformer](https://nlp.seas.harvard.edu/annotated-transformer/) (Rush 2018;
# Huang et al. 2022) goes through the same paper paragraph by paragraph, each with its code. You will know every piece;
# it also puts the norm first. The ideas before it: Sutskever et al. 2014,
# [arXiv:1409.3215](https://arxiv.org/abs/1409.3215), and Cho et al. 2014,
# [arXiv:1406.1078](https://arxiv.org/abs/1406.1078).
#
# **Do** the exercise [08_transformer](../exercises/exercise_08_transformer.ipynb). Then go on to
# [09 Translation](09_translation.ipynb): the same model, on real sentences.
