# %% [markdown] lesson={"part": "II Language models", "builds": "next-token prediction, trained on Shakespeare; GPT-3's table"}
# # 10 · GPT: guess the next token
#
# **After this lesson you will be able to**
#
# - say what a language model is, as an equation and as a loss, and read that loss in nats and in bits per character;
# - build a GPT from the blocks that you have, and train it on Shakespeare;
# - prove that the causal mask gives $n$ lessons from one pass, and recognise a model whose mask leaks;
# - count GPT-2 and GPT-3, to the last parameter, and say where their operations and their memory go.
#
# **You need** lessons 03 to 08. **It takes** about 65 minutes to read and try; all cells together run in about a minute
# on a laptop. Most of that is training.

# %% [markdown]
# ## 1 The problem: what comes next?
#
# Here is the beginning of *Twelfth Night*, with the end of each line cut off. Guess the next character before you read
# on.

# %%
import math
import time

import torch
import torch.nn.functional as F
from torch import nn

from txlib import plots
from txlib.attention import causal
from txlib.data import shakespeare
from txlib.layers import BlockConfig, TokenEmbedding, TransformerBlock, make_position
from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress, prove_equal, show_source
from txlib.devices import default_device
from txlib.training import optimizers, warmup_linear

texts = shakespeare()                                              # whole plays: 12 for training, 1 for validation
for line in texts.validation.splitlines()[1:6]:
    print(line[: 2 * len(line) // 3] + "…")

# %% [markdown]
# You can do it, and to do it you use all you know: letters (after *q* comes *u*), words, grammar, who is speaking,
# what the play is about. That is why this game is interesting. Nobody has to label anything, every text is full of
# questions with answers, and there is no end to what helps you answer them.
#
# We play it with characters, so that the vocabulary is small. (GPT-2 plays it with the byte pairs of lesson 01.) Each
# character gets a number.

# %%
alphabet = sorted(set(texts.train))
number = {character: id for id, character in enumerate(alphabet)}
V = len(alphabet)


def encode(text):
    return torch.tensor([number[character] for character in text])


def decode(ids):
    return "".join(alphabet[id] for id in ids)


train_ids, unseen = encode(texts.train), encode(texts.validation)  # (length of the text,) each
print(f"{len(train_ids):,} characters to learn from, {len(unseen):,} that no training sees, {V} different ones")

# %% [markdown]
# ### The simplest model: count pairs
#
# How often does each character follow each other one? Count, divide each row by its sum, and you have a language model:
# a table that says, for the last character, how likely each next one is. It is called the *bigram* model. (We start all
# counts at 1, so that a pair that has never been seen is unlikely and not impossible.) In the figure, ⏎ is the end of a
# line and ▁ a space.

# %%
count = torch.ones(V, V)                                           # (last, next)
count.index_put_((train_ids[:-1], train_ids[1:]), torch.tensor(1.0), accumulate=True)
bigram = count / count.sum(dim=1, keepdim=True)                    # (last, next): each row adds up to 1
unigram = count.sum(dim=0) / count.sum()                           # (next,): how frequent it is, whatever came before
shown = [number[character] for character in "\n aehinoqrstuw"]
plots.heatmap(
    bigram[shown][:, shown], rows=["⏎", "▁", *"aehinoqrstuw"], columns=["⏎", "▁", *"aehinoqrstuw"], size=0.42,
    bar="probability",
    title="After q comes u; after t often h", xlabel="next character", ylabel="last character",
    alt="A table of probabilities for 14 characters. Dark cells: u after q, h after t, a space after s, n after i.",
)

# %% [markdown]
# How good is it? Let it read a play that it has not seen, and note the probability that it gave to each character that
# came. The mean of their negative logarithms is the **cross-entropy**. In natural logarithms its unit is the *nat*;
# divided by $\ln 2$ it is in *bits*. A model that thinks all $V$ characters equally likely needs $\log_2 V$ bits per
# character.

# %%
last, following = unseen[:-1], unseen[1:]                          # (n,) each: the text, and the text shifted by one
loss_of = {
    "any character": math.log(V),
    "frequencies": -unigram[following].log().mean().item(),
    "pairs": -bigram[last, following].log().mean().item(),
}
for name, loss in loss_of.items():
    bits = loss / math.log(2)
    print(f"{name:14} {loss:.3f} nats = {bits:.2f} bits per character, as unsure as among {math.exp(loss):.1f}")

# %% [markdown]
# The last number, $e^\text{loss}$, is called the **perplexity**: the model is as unsure as someone who has to choose
# among that many, all equally likely. From 63 down to about 12, by counting pairs.
#
# A language model can also *write*. Draw a character from the row of the last one, append it, and again.

# %%
torch.manual_seed(0)
ids = [number["\n"]]
for _ in range(200):
    ids.append(torch.multinomial(bigram[ids[-1]], 1).item())
print(decode(ids))

# %% [markdown]
# Hardly a word, but the rhythm of words. It needs to look back further. So count threes, fives, tens? Try. How many of
# the groups of $k$ characters in the unseen play have ever occurred in the training plays?

# %%
sample = range(0, len(texts.validation) - 20, 50)
for k in (2, 4, 6, 8, 12):
    known = {texts.train[start : start + k] for start in range(len(texts.train) - k + 1)}
    share = sum(texts.validation[start : start + k] in known for start in sample) / len(sample)
    print(f"groups of {k:2}: {len(known):9,} different ones in training; they cover {share:.0%} of the unseen play")

# %% [markdown]
# Counting runs out of data. Nearly every longer passage is new, and a table knows nothing about a passage that it has
# never seen. We need a model that looks far back and treats *similar* pasts alike. You have built its parts.

# %% [markdown]
# ## 2 The idea in one picture
#
# Take the decoder of lesson 08 and throw the encoder away, with the cross-attention that read it. What remains is one
# tower. At the bottom is the text; at the top is the same text, shifted by one. Each place reads itself and what
# came before, and predicts what comes next. That is all of GPT (Radford et al. 2018).

# %%
figures.next_token(
    "To be or", highlight=4, title="Every place predicts what comes next, from the past alone",
    alt="Seven boxes below, the characters of 'To be o'. Above them, 'o be or': the same text one place further on. "
    "Between, lines from each upper place to the same and all earlier lower places. Those of the fifth are thick.",
)

# %% [markdown]
# ## 3 The equation
#
# Any probability of a whole text can be written as a product. This is no assumption, it is the **chain rule**:
#
# $$p(x_1 \dots x_n) = \prod_{t=1}^{n} p(x_t \mid x_1 \dots x_{t-1})$$
#
# The bigram model cuts the condition down to $x_{t-1}$. A GPT keeps all of it, up to a longest *context*. To make the
# text that was really written as likely as possible, make this small:
#
# $$\text{loss} = -\frac{1}{n} \sum_{t=1}^{n} \log p(x_t \mid x_1 \dots x_{t-1})$$
#
# So a text of $n$ characters holds $n$ questions. In code, questions and answers are one text, shifted by one.


# %%
def batch(ids, size, n=64):
    start = torch.randint(len(ids) - n, (size,))                   # (batch,)
    window = ids[start[:, None] + torch.arange(n + 1)]             # (batch, n + 1)
    return window[:, :-1].to(default_device()), window[:, 1:].to(default_device()) # (batch, n) each: what is read, what comes next


torch.manual_seed(1)
read, following = batch(train_ids, size=1, n=10)
print("reads   ", repr(decode(read[0].tolist())))
print("predicts", repr(decode(following[0].tolist())))

# %% [markdown]
# As in lesson 08, the model always reads the *right* past, whatever it would have guessed itself: teacher forcing.

# %% [markdown]
# ## 4 Build it
#
# ### 4.1 The whole model
#
# Token vectors, positions, blocks, a last norm, scores. The blocks come from lesson 06, with all positions of lesson
# 05. One matrix does two jobs, as in lesson 08: its rows are the token vectors, and a row's dot product with the
# last hidden vector is that token's score (**weight tying**). GPT does not multiply by $\sqrt d$.


# %%
class GPT(nn.Module):
    def __init__(self, vocab_size, config, layers, max_length=64):
        super().__init__()
        self.embedding = TokenEmbedding(vocab_size, config.d_model, scaled=False)
        self.position = make_position(config.position, max_length, config.d_model)     # None: attention knows them
        self.layers = nn.ModuleList(TransformerBlock(config) for _ in range(layers))
        self.norm = config.norm.make(config.d_model)
        initialize(self)

    def forward(self, ids, mask=causal()):                         # (batch, n)
        x = self.embedding(ids)                                    # (batch, n, d_model)
        x = x if self.position is None else self.position(x)       # (batch, n, d_model)
        for layer in self.layers:
            x = layer(x, mask)                                     # (batch, n, d_model): looks back only
        return self.norm(x) @ self.embedding.weight.T              # (batch, n, vocab): a score for each next token


# %% [markdown]
# ### 4.2 How it starts
#
# GPT-2 starts its biases at 0 and draws all matrices with a spread of 0.02. (Its code draws the table of positions with
# half of that; we leave that out.) Two matrices in each block write into the residual stream: attention's output and the feed-forward network's last matrix. With
# $L$ blocks these are divided by $\sqrt{2L}$. (In this lesson the number of blocks is $L$, because $N$ is needed: with
# GPT it always counts parameters.) (Radford et al. 2019, section 2.3, says $1/\sqrt{N}$, with $N$ *residual layers*;
# each block has two.)


# %%
def initialize(model, residual=True):
    writers = 2 * len(model.layers)                                # that add to the stream: two in each block
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            into_stream = name.endswith(("attention.output.weight", "down_proj.weight"))
            nn.init.normal_(weight, std=0.02 / (writers**0.5 if residual and into_stream else 1))
        elif name.endswith("bias"):
            nn.init.zeros_(weight)


# %% [markdown]
# Why? Each writer adds something of its own, so the variances add up. $2L$ additions of variance $\sigma^2$ make
# $2L\sigma^2$, and dividing each by $\sqrt{2L}$ makes $\sigma^2$ again, whatever the depth. Measure what all
# blocks together have added to the stream:


# %%
def added_to_the_stream(layers, residual):
    torch.manual_seed(0)
    model = GPT(V, BlockConfig.of_sizes(256, 4, 1024, activation="gelu_tanh", position="learned"), layers)
    initialize(model, residual)
    stream = []
    model.norm.register_forward_hook(lambda module, inputs, output: stream.append(inputs[0]))
    with torch.no_grad():
        ids = train_ids[:64][None]                                 # (1, n)
        model(ids)
        return (stream[0] - model.position(model.embedding(ids))).std().item()


for layers in (2, 8, 32):
    plain, scaled = (added_to_the_stream(layers, residual) for residual in (False, True))
    print(f"{layers:2} blocks add a spread of {plain:.2f} to the stream; with the smaller start {scaled:.2f}")

# %% [markdown]
# Without it, four times as many blocks add twice as much. With it, depth makes no difference.
#
# ### 4.3 One pass, $n$ predictions
#
# Here is what makes GPT trainable. To learn from every place of a text one would have to run the model on each of its
# beginnings: one character, two characters, and so on. But with the causal mask, place $t$ cannot tell whether anything
# follows. So a single pass over the whole text must give, at each place, exactly what the pass over that beginning
# gives. Prove it:

# %%
torch.manual_seed(0)
probe = GPT(V, BlockConfig.of_sizes(64, 4, 256, position="rotary_half"), layers=3).eval()
with torch.no_grad():
    for weight in probe.parameters():
        weight.add_(0.1 * torch.randn_like(weight))                # shaken: a fresh model says nearly the same everywhere
    ids = train_ids[:64][None]                                     # (1, n)
    together = probe(ids)[0]                                       # (n, vocab): one pass
    one_by_one = torch.stack([probe(ids[:, : t + 1])[0, -1] for t in range(64)])     # (n, vocab): 64 passes
prove_equal(together, one_by_one, tolerance=1e-4, what="One pass and 64 passes")


# %% [markdown]
# And what it saves:


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def seconds(work, times=5):
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    return min(spent)                                              # the others were disturbed by something


fast = seconds(lambda: probe(ids))
slow = sum(seconds(lambda t=t: probe(ids[:, : t + 1])) for t in range(64))
print(f"one pass {1000 * fast:.1f} ms, 64 passes {1000 * slow:.1f} ms")
expect("The parallel pass is faster by a factor of", slow / fast, 10, 600)

# %% [markdown]
# Why so much? The loop computes the beginning again and again, $1 + 2 + \dots + 64 = 2{,}080$ places instead of 64, and
# each of its 64 passes calls every layer anew, which for a text as short as this takes about as long as the computing.
#
# A recurrent network (lesson 02) also learns from every place, but it has to walk there, step by step. Here all places
# are computed at the same time, which is what GPUs are good at. This holds for *training* only. A model that writes has
# to wait for its own words. (So where you read that Transformers process text one word after the other: that is true of
# writing. And not all of them write: BERT, lesson 14, reads both ways at once.)

# %% [markdown]
# ## 5 Train it
#
# Our GPT has $d = 128$, 4 heads and 3 blocks. We have half a minute, so we take what learns fastest: rotary positions,
# RMS norm, no biases, and *Muon* for the matrices inside the blocks (lesson 07). The learning rate warms up for 20
# steps and then falls to 0.


# %%
def train(model, steps, what, mask=causal(), size=8, text=train_ids):
    torch.manual_seed(0)
    optimizer, losses = optimizers(model.to(default_device()).train(), lr=4e-3, muon_lr=0.02), []
    for step in progress(range(1, steps + 1), what):
        read, following = batch(text, size)                        # (batch, n) each
        logits = model(read, mask)                                 # (batch, n, vocab)
        loss = F.cross_entropy(logits.flatten(0, 1), following.flatten())        # the mean of batch · n losses
        loss.backward()
        optimizer.set_factor(warmup_linear(step, steps, warmup=20))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    return losses


# %% [markdown]
# To write with it, do as with the table: take the last place's scores, make probabilities of them with the softmax,
# draw, append. The model sees the last 64 characters. (Lesson 11 is about better ways to choose.)


# %%
@torch.no_grad()
def write(model, start, new=300, mask=causal()):
    ids = encode(start)[None].to(default_device())                         # (1, length)
    for _ in range(new):
        p = model(ids[:, -64:], mask)[0, -1].softmax(dim=-1)       # (vocab,): only the last place is of interest
        ids = torch.cat([ids, torch.multinomial(p, 1)[None]], dim=1)             # (1, length + 1)
    return decode(ids[0].tolist())


# %% [markdown]
# This is how it writes before any training:

# %% tags=["nbval-ignore-output"]
config = BlockConfig.of_sizes(128, 4, 512, norm="rms", activation="gelu", bias=False, position="rotary_half")
torch.manual_seed(0)
model = GPT(V, config, layers=3).to(default_device())
print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters\n")
print(write(model, "ORSINO:\n", new=150))

# %% [markdown]
# Noise: it has learned nothing yet. A model that knows nothing should give each of the $V$ characters the same chance, and
# lose $\ln V = 4.14$ nats. Now train.

# %% tags=["nbval-ignore-output"]
losses = train(model, 400, "training a GPT")
print(f"first loss {losses[0]:.2f}, mean of the last 50 {sum(losses[-50:]) / 50:.2f} nats per character")


# %% [markdown]
# The loss that counts is that on the unseen play. We cut it into windows of 64 and take the mean over all places.


# %%
@torch.no_grad()
def validation(model, mask=causal(), n=64, windows=500):
    read = unseen[: windows * n].view(windows, n).to(default_device())     # (windows, n)
    following = unseen[1 : windows * n + 1].view(windows, n).to(default_device())        # (windows, n)
    parts = zip(read.split(100), following.split(100), strict=True)
    return sum(F.cross_entropy(model(r, mask).flatten(0, 1), f.flatten()).item() for r, f in parts) / (windows // 100)


# %% [markdown]
# In nats, as trained, and in bits, as in section 1:

# %% tags=["nbval-ignore-output"]
loss_of["our GPT"] = validation(model)
expect("Loss on the unseen play, nats per character", loss_of["our GPT"], 1.8, 2.1)
expect("which is, in bits", loss_of["our GPT"] / math.log(2), 2.6, 3.0)

# %% [markdown]
# Where on its way did it pass the two tables? Single batches jump about, so each point is the mean of 20 steps.

# %% tags=["nbval-ignore-output"]
smooth = torch.tensor(losses).unfold(0, 20, 1).mean(dim=-1)        # (step,): mean of 20 steps
lines = {name: ([20, 400], [loss_of[name]] * 2) for name in ("frequencies", "pairs")}
plots.lines(
    {"training": (range(20, 401), smooth.tolist()), **lines, "unseen play": ([380, 400], [loss_of["our GPT"]] * 2)},
    dashed=lines, title="Soon the GPT leaves the table of pairs behind", xlabel="training step",
    ylabel="loss (nats per character)",
    alt="The training loss falls from above the line of frequencies, crosses the line of pairs after some fifty steps, "
    "and ends below 2. The loss on the unseen play is a little higher.",
)

# %% [markdown]
# And what does it write, when it is given a name and a colon?

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
print(write(model, "ORSINO:\n"))

# %% [markdown]
# Names in capitals, a colon, lines, many real words, all from half a minute of guessing. No sense, and that is no
# surprise: 0.6 million parameters have read 200,000 characters. GPT-3 read 300 billion tokens.
#
# ### What does it do with a longer past?
#
# The bigram table sees one character. Does the GPT use more? Look at its loss place by place: at the first place of a
# window it knows one character, at the last one 64.

# %% tags=["nbval-ignore-output"]
with torch.no_grad():
    read = unseen[: 1500 * 64].view(1500, 64).to(default_device())         # (windows, n)
    following = unseen[1 : 1500 * 64 + 1].view(1500, 64).to(default_device())            # (windows, n)
    logits = torch.cat([model(part) for part in read.split(100)])  # (windows, n, vocab)
by_place = F.cross_entropy(logits.transpose(1, 2), following, reduction="none").mean(dim=0).tolist()     # (n,)
plots.lines(
    {"our GPT": (range(1, 65), by_place), "pairs": ([1, 64], [loss_of["pairs"]] * 2)}, xscale="log", dashed=["pairs"],
    title="The first few characters of the past help most", xlabel="characters that it has seen", ylabel="loss (nats)",
    alt="Loss by number of characters seen, on a logarithmic axis. With one it is near that of the bigram table. It falls "
    "steeply up to three or four characters, and after about ten hardly any more.",
)

# %% [markdown]
# Is yours about the same?

# %% tags=["nbval-ignore-output"]
expect("Loss with one character seen", by_place[0], 2.35, 2.75)
expect("Loss at the last ten places", sum(by_place[-10:]) / 10, 1.7, 2.1)

# %% [markdown]
# With one character it is about as good as the table, and it can't be much better: a table of pairs holds all that one
# character tells. The next few help a lot. After about ten the curve is flat: the context holds 64, but in half a
# minute this model has learned to spell, and not yet to follow what is going on.

# %% [markdown]
# ## 6 Break it
#
# Four small models, $d = 64$ and 2 blocks, 200 steps each:
#
# - one is right;
# - one has no mask;
# - one has a mask that leaks: the offset is wrong by one, nothing complains, and place $t$ also sees $t + 1$;
# - one has no positions.
#
# Make two guesses.

# %% jupyter={"source_hidden": true}
predict(
    "sees-ahead", "Whose training loss will be lowest?",
    "that of the right model", "those of the two that see ahead", "that of the model without positions",
    "all four end up about alike",
)

# %% jupyter={"source_hidden": true}
predict(
    "no-positions", "What becomes of the model without positions?",
    "it learns nothing: without order, text is a bag of characters", "it is worse, but far from lost",
    "it does as well as the right one",
)

# %%
n = torch.arange(64)
leaky = (n[:, None] >= n[None, :] - 1)[None, None].to(default_device())    # (1, 1, query, key): sees one place too far
small = BlockConfig.of_sizes(64, 4, 256, norm="rms", activation="gelu", bias=False, position="rotary_half")
without = BlockConfig.of_sizes(64, 4, 256, norm="rms", activation="gelu", bias=False, position="none")
broken = {
    "right": (small, causal()), "no mask": (small, None), "leaks by one": (small, leaky),
    "no positions": (without, causal()),
}

# %% [markdown]
# Two hundred steps for each, with the same batches:

# %% tags=["nbval-ignore-output"]
models, curves = {}, {}
for name, (settings, mask) in broken.items():
    torch.manual_seed(0)
    models[name] = GPT(V, settings, layers=2)
    curves[name] = train(models[name], 200, name, mask)

# %% [markdown]
# Have you guessed? Then unfold the result (a click on the three dots).

# %% tags=["nbval-ignore-output", "hide-output"] jupyter={"outputs_hidden": true}
plots.lines(
    {name: (range(20, 201), torch.tensor(curve).unfold(0, 20, 1).mean(dim=-1).tolist())
     for name, curve in curves.items()},
    title="The training losses of the four", xlabel="training step", ylabel="training loss (nats)",
    alt="Four training losses. The right model and the one without positions fall to a little over 2. The one without a "
    "mask and the one whose mask leaks by one fall to between 0.1 and 0.2.",
)

# %% [markdown]
# Two of them are too good to be true. A loss of 0.1 on Shakespeare means that the model knows nearly every next
# character for certain. Nobody can. They *see* the answer: it stands one place to the right. The honest test is what a
# model meets when it writes: a beginning, and nothing after it. Give each of them beginnings of 20 characters, and
# count only the last place.


# %%
@torch.no_grad()
def honest(model, mask, n=20):
    window = unseen[: 1000 * 50].view(1000, 50)[:, : n + 1].to(default_device())         # (beginnings, n + 1)
    part = mask[..., :n, :n] if isinstance(mask, torch.Tensor) else mask
    return F.cross_entropy(model(window[:, :-1], part)[:, -1], window[:, -1]).item()


# %% [markdown]
# What they reached in training, and what is left of it where nothing stands to the right:

# %% tags=["nbval-ignore-output"]
for name, (_, mask) in broken.items():
    final = sum(curves[name][-20:]) / 20
    print(f"{name:13} training loss {final:.2f}, when nothing comes after: {honest(models[name], mask):.2f}")
expect("Loss of the right model", honest(models["right"], causal()), 1.95, 2.45)
expect("Training loss without mask", sum(curves["no mask"][-20:]) / 20, 0, 0.3)
expect("… and its loss when it has to guess", honest(models["no mask"], None), 3, 30)

# %% jupyter={"source_hidden": true}
predicted("sees-ahead", "those of the two that see ahead", "They read the answer, and fail as soon as there is none.")

# %% [markdown]
# Let the two extremes write:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
print("without mask:\n" + write(models["no mask"], "ORSINO:\n", new=100, mask=None))
print("\nright:\n" + write(models["right"], "ORSINO:\n", new=100))

# %% [markdown]
# So remember: **a loss that is too good is a leak.** No error tells you; the loss curve looks wonderful; only writing,
# or the test of section 4.3, shows it.
#
# And the positions? One run each could be luck, so here are three starts:

# %% tags=["nbval-ignore-output"]
by_start = {}
for name in ("right", "no positions"):
    settings, mask = broken[name]
    by_start[name] = [honest(models[name], mask)]
    for seed in (1, 2):
        torch.manual_seed(seed)
        again = GPT(V, settings, layers=2)
        train(again, 200, f"{name}, start {seed + 1}", mask)
        by_start[name].append(honest(again, mask))
    print(f"{name:13}", *(f"{loss:.2f}" for loss in by_start[name]))
expect("Best without positions minus worst with", min(by_start["no positions"]) - max(by_start["right"]), 0.0, 0.4)

# %% jupyter={"source_hidden": true}
predicted("no-positions", "it is worse, but far from lost")

# %% [markdown]
# The causal mask itself breaks the symmetry: a place that sees 5 characters differs from one that sees 50 (Haviv et al.
# 2022). An encoder, without a mask, would be lost.

# %% [markdown]
# ## 7 Open the library
#
# Here is `txlib`'s GPT. New are padding, a cache for writing (lesson 13), and labels that are shifted inside: you hand
# it the same text twice.

# %%
from txlib.models import GPT as LibraryGPT
from txlib.models import GPTConfig
from txlib.models.gpt import next_token_loss

show_source(LibraryGPT, next_token_loss)

# %% [markdown]
# Ours is the same. We copy the weights that you have just trained; the library keeps its blocks in a `decoder`.


# %%
def into_library(ours, config, layers):
    library = LibraryGPT(GPTConfig(V, config, layers=layers, max_length=64))
    names = {name: "decoder." + name if name.startswith(("layers.", "norm.")) else name for name in ours.state_dict()}
    library.load_state_dict({names[name]: weight for name, weight in ours.state_dict().items()})
    return library.to(default_device()).eval()


library = into_library(model, config, layers=3)
ids = unseen[: 4 * 64].view(4, 64).to(default_device())                    # (batch, n)
with torch.no_grad():
    prove_equal(model(ids), library(ids).logits, tolerance=1e-4, what="Our GPT's scores and the library's")
    loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    prove_equal(loss, library(ids, labels=ids).loss, what="Our loss and the library's")

# %% [markdown]
# And with GPT-2's own parts: learned positions, layer norm, biases, the tanh form of gelu. All weights are shaken, so
# that no forgotten gain or bias stays hidden.

# %%
torch.manual_seed(0)
like_gpt2 = BlockConfig.of_sizes(64, 4, 256, activation="gelu_tanh", position="learned")
ours = GPT(V, like_gpt2, layers=3).to(default_device()).eval()
with torch.no_grad():
    for weight in ours.parameters():
        weight.add_(0.1 * torch.randn_like(weight))
    theirs = into_library(ours, like_gpt2, layers=3)(ids).logits   # (batch, n, vocab)
    prove_equal(ours(ids), theirs, tolerance=1e-4, what="With GPT-2's parts, both")

# %% [markdown]
# With the right settings it *is* GPT-2, in all four sizes. On the *meta* device tensors have shapes and no contents, so that even the
# largest is built in a moment. `txlib.models.sizes` holds the papers' tables.

# %%
from txlib.models.sizes import GPT2, GPT3, GPT3_PRINTED, GPT3_TOKENS, build, count_parameters

for name, settings in GPT2.items():
    block, total = settings.block, count_parameters(settings)
    print(f"{name:7} {settings.layers} blocks, d {block.d_model:4}, {block.attention.heads:2} heads: {total:13,}")

# %% [markdown]
# 124,439,808 is what is in the file that OpenAI published, to the last number. (The paper prints 117 million, a
# miscount that its authors corrected later.) Can you get there by hand? With $L$ blocks:
#
# $$\underbrace{V d}_\text{tokens} + \underbrace{n d}_\text{positions} +
# L\,(\underbrace{12 d^2 + 13 d}_\text{a block, lesson 06}) + \underbrace{2d}_\text{last norm}$$


# %%
def parameters(layers, d, vocab=50_257, context=1024):
    return vocab * d + context * d + layers * (12 * d**2 + 13 * d) + 2 * d


for name, settings in GPT2.items():
    by_hand = parameters(settings.layers, settings.block.d_model)
    print(f"{name:7} by hand {by_hand:13,}", "✓" if by_hand == count_parameters(settings) else "✗")

# %% [markdown]
# ## 8 GPT-3's table, row by row
#
# GPT-1 had 117 million parameters, GPT-2's largest 1.56 billion, more than ten times as many, and GPT-3 a hundred times
# that. Brown et al. (2020) trained eight sizes, on 300 billion tokens each, with a context of 2,048. Their table 2.1
# prints the number of blocks, $d$, the heads and their size. Let us rebuild it: parameters by our formula, and the
# operations of training as $6 N D$, with $N$ parameters and $D$ tokens (section 9 shows why). Their appendix D prints
# both.

# %%
print(f"{'':7}{'blocks':>6} {'d':>7}{'heads · size':>14}{'printed':>12}{'appendix':>11}{'by formula':>12}"
      f"{'6ND':>10}{'appendix':>10}")
for name, row in GPT3_PRINTED.items():
    N = parameters(row.layers, row.d_model, context=2048)
    heads = f"{row.heads} · {row.head_dim}" + ("  " if row.heads * row.head_dim == row.d_model else " ≠")
    print(f"{name:7}{row.layers:6} {row.d_model:7,}{heads:>14}{row.parameters / 1e6:10,.0f} M{row.appendix / 1e6:9,.0f} M"
          f"{N / 1e6:10,.0f} M{6 * N * GPT3_TOKENS:10.2e}{row.flops:10.2e}")

# %% [markdown]
# Seven rows agree with the appendix to within 0.3 %; 13b is off by 0.8 %. And two rows are marked: heads times size
# should be $d$, and it is not.
#
# - **xl**: 24 heads of 128 would make 3,072, not 2,048. 16 heads do. The number of heads does not change the count.
# - **13b**: 40 heads of 128 make **5,120**. The table prints 5,140. Which one did they train? Ask the appendix, which
#   gives 12,850 million parameters:

# %%
for d in (5140, 5120):
    print(f"d = {d}: {parameters(40, d, context=2048) / 1e6:,.0f} million parameters; {d} / 40 heads = {d / 40:g}")
print(f"appendix: {GPT3_PRINTED['13b'].appendix / 1e6:,.0f} million")
largest = max(abs(count_parameters(GPT3[name]) / row.appendix - 1) for name, row in GPT3_PRINTED.items())
print(f"with both rows set right, all eight are within {largest:.1%} of the appendix")

# %% [markdown]
# 5,120 gives 12,853 million; 5,140 is a misprint. A table of sizes is a claim, and a claim can be checked.

# %% [markdown]
# ## 9 What it costs
#
# ### Parameters: where do they sit?
#
# Blocks grow with $L d^2$, the embedding with $V d$ only. In small models the embedding is a large part; in large ones
# it hardly counts. That is why Kaplan et al. (2020) count models without it.

# %%
shares = {}
for name, settings in {"GPT-2 small": GPT2["small"], "GPT-2 xl": GPT2["xl"], "GPT-3 175b": GPT3["175b"]}.items():
    d, layers = settings.block.d_model, settings.layers
    parts = {"embedding": settings.vocab_size * d, "attention": layers * 4 * d**2, "feed-forward": layers * 8 * d**2}
    shares[name] = parts
    print(f"{name:11} embedding {parts['embedding'] / count_parameters(settings):5.1%} of all parameters")
plots.shares(
    shares, title="The larger the model, the less its embedding counts", xlabel="% of the three together",
    alt="Three bars, each divided in embedding, attention and feed-forward. The embedding is nearly a third of GPT-2 "
    "small, 5 % of GPT-2 xl, and too thin to see in GPT-3. Feed-forward always has twice as much as attention.",
)

# %% [markdown]
# ### Operations: $2N$ forward, $6N$ to train
#
# $N$ is the number of parameters. Each parameter of a matrix takes part in one multiplication and one addition for each
# token: $2N$ operations. Backward does that twice, once for the gradient of the input and once for that of the weight:
# $6N$ in all. On top come attention's scores and mixing, which have no parameters: $4 n d$ per token and block forward,
# three times that in training. (Pairs that the mask hides are counted as well.) Count them with torch's counter, on GPT-2
# small with a full context:

# %%
from torch.utils.flop_counter import FlopCounterMode

gpt2, d, blocks, n = build(GPT2["small"]).eval(), 768, 12, 1024
N = parameters(blocks, d) - n * d                                  # without the positions, which are only added
ids = torch.zeros(1, n, dtype=torch.long, device="meta")           # (batch, n)
with FlopCounterMode(display=False) as forward, torch.no_grad():
    gpt2(ids)
with FlopCounterMode(display=False) as both:
    gpt2(ids, labels=ids).loss.backward()
for name, factor, counter in (("forward", 1, forward), ("training", 3, both)):
    rule, scores = factor * 2 * N, factor * 4 * n * d * blocks
    counted = counter.get_total_flops() / n
    print(f"{name:8} counted {counted / 1e6:4.0f} million per token; "
          f"{2 * factor}N {rule / 1e6:.0f}, with scores {(rule + scores) / 1e6:.0f}")

# %% [markdown]
# The rule of thumb leaves out the scores, here 15 % on top of it. And elsewhere? Compare them with the blocks' matrices
# alone: $4nd L$ against $2 \cdot 12 d^2 L$, which is $n / 6d$. (For GPT-2 small that is more than 15 %, since its $N$
# is one third embedding.)

# %%
for name, n, d in (("GPT-2 small", 1024, 768), ("GPT-3 175b", 2048, 12_288), ("GPT-3, context 100,000", 100_000, 12_288)):
    print(f"{name:23} scores and mixing cost {n / (6 * d):.0%} of what the blocks' matrices cost")

# %% [markdown]
# (This counts all of GPT-3's layers as dense. Every other one was not, but looked at a band of the past only (Brown et
# al. 2020, section 2.1), so its real share is smaller still.) So $6ND$ is a good rule as long as the context is short
# beside $6d$. GPT-3:
# $6 \cdot 175 \cdot 10^9 \cdot 300 \cdot 10^9 = 3.15 \cdot 10^{23}$. A machine with $10^{14}$ operations per second
# would need a hundred years.

# %% [markdown]
# ### Memory
#
# Training keeps more than the weights: a gradient for each, two running means for each (AdamW), and all activations
# that the backward pass will need. `txlib` counts them before a run starts. GPT-2 small, 8 texts of 1,024 tokens, in 32
# bits:

# %%
from txlib.training.memory import generation_memory, training_memory

ids = torch.zeros(8, 1024, dtype=torch.long)                       # (batch, n)
print(training_memory(build(GPT2["small"]), {"input_ids": ids, "labels": ids}))

# %% [markdown]
# The activations win by far, and they grow with batch and length. (Lesson 35 shrinks them.) A model that writes keeps
# other things: its weights, and the keys and values of all it has read, so that it need not compute them again (lesson
# 13). For GPT-3 in 16 bits, one text of 2,048 tokens:

# %%
print(generation_memory(build(GPT3["175b"]), 1, 2048, dtype=torch.float16))

# %% [markdown]
# A key and a value of $d$ entries in each of 96 blocks, 2 bytes per entry: 4.7 MB per token.
#
# ### Does size pay?
#
# Kaplan et al. (2020) found that the loss falls as a power of the number of parameters, over more than six orders of
# magnitude. We can try three sizes, with equally many steps: two small models, and ours from section 5. Do not look for
# their law in three points, with one run each; look for the direction.

# %% tags=["nbval-ignore-output"]
sizes = {}
for d, blocks in ((16, 2), (48, 2)):
    torch.manual_seed(0)
    tiny = GPT(V, BlockConfig.of_sizes(d, 2, 4 * d, norm="rms", activation="gelu", bias=False, position="rotary_half"), blocks)
    train(tiny, 400, f"d = {d}")
    sizes[12 * d**2 * blocks] = validation(tiny)
sizes[12 * 128**2 * 3] = loss_of["our GPT"]
plots.lines(
    {"after 400 steps": (list(sizes), list(sizes.values()))}, marker="o", xscale="log",
    title="Ten times the parameters, a lower loss", xlabel="parameters in the blocks", ylabel="loss, unseen play (nats)",
    alt="; ".join(f"{size:,} parameters: {loss:.2f} nats" for size, loss in sizes.items()),
)

# %% [markdown]
# How much each step up gains, in nats:

# %% tags=["nbval-ignore-output"]
smallest, middle, large = sizes.values()
expect("From the smallest to the middle one, the loss falls by", smallest - middle, 0.1, 0.6)
expect("From the middle one to ours, by", middle - large, 0.05, 0.5)

# %% [markdown]
# Larger models learn more from the same text. They also cost more: ours took about ten times the operations of the
# middle one. How to divide a budget of operations between size and text is what *scaling laws* are about. Kaplan et al.
# (2020) put most of it into size. Two years later Hoffmann et al. (2022, "Chinchilla") measured again, with a learning
# rate that fitted each length of training, and found that both should grow alike: about 20 tokens per parameter. By
# that rule GPT-3 has read far too little:

# %%
for name, N, D in (("GPT-3", 175e9, 300e9), ("Chinchilla", 70e9, 1.4e12), ("Llama 3.1 8B", 8e9, 15e12)):
    print(f"{name:13} {D / N:6,.1f} tokens per parameter, {6 * N * D:.1e} operations")

# %% [markdown]
# Llama 3.1 goes far beyond 20 on purpose: a model that will be *used* a great deal should be small, even if its
# training is not the cheapest way to that loss. (Its 8 billion parameters took more operations than Chinchilla's 70
# billion.) What a model of today cost is often not known: the sizes of GPT-4 and of its successors have never been
# published. (The first ChatGPT was GPT-3.5, fine-tuned on conversations and by people's preferences.)
#
# ### And with too little text?
#
# The same text can be read again and again. Here are 8,000 characters, read about nineteen times (300 steps of 8
# windows of 64), by a model with 28,000 parameters in its blocks, and by one with more than twenty times as many:

# %% tags=["nbval-ignore-output"]
for d, blocks in ((48, 1), (128, 3)):
    torch.manual_seed(0)
    block = BlockConfig.of_sizes(d, 2, 4 * d, norm="rms", activation="gelu", bias=False, position="rotary_half")
    reader = GPT(V, block, blocks).to(default_device())
    losses = train(reader, 300, f"d = {d}, 8,000 characters", text=train_ids[:8000])
    print(f"d = {d:3}: {sum(losses[-20:]) / 20:.2f} nats per character on what it has read, "
          f"{validation(reader):.2f} on the unseen play")

# %% [markdown]
# The larger one knows its 8,000 characters better, and the unseen play worse: it *overfits*. Even the small one reads
# the unseen play no better than the table of pairs (2.52), which has counted the whole text. That is the other half of
# scaling: size pays as long as there is text for it.
#
# Half a minute is short. **Train it longer:** `txlib train shakespeare` trains such a model for as long as you like,
# shows its loss on the unseen play, and keeps the model, so that you can go on and write with it.

# %% [markdown]
# ## 10 Quiz
#
# Decide first, then open an answer.
#
# **1. A model's loss is 1.39 nats per character. How many bits per character is that, and what is its perplexity?**
#
# <details><summary>A. 2 bits, perplexity 4</summary>
#
# Right. $1.39 / \ln 2 = 2$ and $e^{1.39} = 2^2 = 4$: as unsure as someone who chooses among four.
# </details>
# <details><summary>B. 0.96 bits, perplexity 4</summary>
#
# Multiplied instead of divided. A bit is the smaller unit ($\ln 2 = 0.69$ nats), so there are more of them.
# </details>
# <details><summary>C. 2 bits, perplexity 2.6</summary>
#
# $2^{1.39} = 2.6$ takes the loss for bits. With nats the base is $e$.
# </details>
#
# **2. One training batch holds 8 windows of 64 characters. How many predictions does one step learn from?**
#
# <details><summary>A. 8: the character after each window</summary>
#
# That would be so without the causal mask. With it, each place predicts its own next character.
# </details>
# <details><summary>B. 512</summary>
#
# Right: every place of every window, all in one pass.
# </details>
# <details><summary>C. 504: the last place has nothing to predict</summary>
#
# It has: `batch` draws 65 characters, and the last one is only an answer. But if you hand the *same* 64 as text and
# labels, as to the library's `labels`, then it is 8 · 63.
# </details>
#
# **3. Your training loss is 0.03 nats after 400 steps, and the text that the model writes is garbage. What do you check
# first?**
#
# <details><summary>A. Whether the learning rate is too high</summary>
#
# Then the loss would be bad as well.
# </details>
# <details><summary>B. Whether it has learned the text by heart</summary>
#
# In 400 steps it has not read the whole text even once. And what it knows by heart it could also write.
# </details>
# <details><summary>C. Whether a place can see the next one</summary>
#
# Right. The mask is missing or leaks, or the labels are not shifted. Test: change the last character; no earlier
# prediction may change.
# </details>
#
# **4. GPT-2 small has 124 million parameters. What if its output matrix were not tied to its embedding?**
#
# <details><summary>A. 163 million</summary>
#
# Right: one more matrix of $50{,}257 \cdot 768 = 38.6$ million.
# </details>
# <details><summary>B. 248 million</summary>
#
# Only the embedding would be there twice. The blocks stay.
# </details>
# <details><summary>C. The same: it is the same matrix, transposed</summary>
#
# Tied it is. Untied, the two have weights of their own.
# </details>
#
# **5. You train a model of 1 billion parameters on 20 billion tokens. About how many operations is that?**
#
# <details><summary>A. 4 · 10¹⁹</summary>
#
# That is $2ND$: forward only. Backward costs twice as much again.
# </details>
# <details><summary>B. 1.2 · 10²⁰</summary>
#
# Right, $6ND$, as long as the context is short compared with $6d$.
# </details>
# <details><summary>C. That depends on the batch size</summary>
#
# The batch decides how many tokens share a step. Each token costs the same.
# </details>

# %% [markdown]
# ## 11 Summary
#
# - A language model gives each next token a probability. Its loss is the mean of $-\log p$ of what really came.
# - GPT is a stack of blocks that look back only; text and answers are one text, shifted by one.
# - The causal mask makes one pass equal to $n$ passes. A loss that is too good means that it leaks.
# - $N = V d + n d + L(12 d^2 + 13 d) + 2d$ parameters, $2N$ operations per token forward, $6N$ to train.
# - Activations are most of the memory in training; when it writes, keys and values grow with the text.
# - Size pays as long as there is text for it: about 20 tokens per parameter for the cheapest training, far more for a
#   model that will be used a lot. With too little text, a large model overfits.
#
# **Read** Radford et al. 2018, *Improving Language Understanding by Generative Pre-Training*, section 3.1. Radford et
# al. 2019, *Language Models are Unsupervised Multitask Learners*, sections 2 and 2.3. Brown et al. 2020, *Language
# Models are Few-Shot Learners*, [arXiv:2005.14165](https://arxiv.org/abs/2005.14165), section 2.1 and appendix D.
# Kaplan et al. 2020, *Scaling Laws for Neural Language Models*, [arXiv:2001.08361](https://arxiv.org/abs/2001.08361),
# sections 1 to 3. Hoffmann et al. 2022, *Training Compute-Optimal Large Language Models*,
# [arXiv:2203.15556](https://arxiv.org/abs/2203.15556), section 3. Haviv et al. 2022, *Transformer Language Models
# without Positional Encodings Still Learn Positional Information*,
# [arXiv:2203.16634](https://arxiv.org/abs/2203.16634).
#
# **Do** the exercise [10_gpt](../exercises/exercise_10_gpt.ipynb). Then go on to [11 Sampling](11_sampling.ipynb).
