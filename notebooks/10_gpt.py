# %% [markdown] lesson={"part": "II Language models", "builds": "GPT-2 in one file of your own, trained on Shakespeare; GPT-3's table"}
# # 10 · GPT: guess the next token
#
# **After this lesson you will be able to**
#
# - say what a language model is, as an equation and as a loss, and read that loss in nats and in bits per character;
# - build GPT-2 from the parts that you have, train it on Shakespeare, and keep it in one file, `my_gpt.py`;
# - prove that with a causal mask one pass gives the predictions of $n$ passes, and recognize a model whose mask leaks;
# - load OpenAI's weights into your own class;
# - count GPT-2 and GPT-3, to the last parameter, and say where their operations go.
#
# **You need** lessons 03 to 06. **It takes** about 65 minutes to read and try; all cells together run in about a minute
# on a laptop. Most of that is training.

# %% [markdown]
# ## 1 The problem: what comes next?
#
# Here is the beginning of *Twelfth Night*, with the end of each line cut off. Guess the next character before you read
# on.
#
# > If music be the food of l…<br>
# > Give me excess of it, that…<br>
# > The appetite may sicken,…<br>
# > That strain again! it had …<br>
# > O, it came o'er my ear like t…
#
# <details><summary>The whole lines</summary>
#
# *If music be the food of love, play on; / Give me excess of it, that, surfeiting, / The appetite may sicken, and so
# die. / That strain again! it had a dying fall: / O, it came o'er my ear like the sweet sound,*
# </details>
#
# You can do it, and you use everything you know: spelling (after *q* comes *u*), words, grammar, who is speaking, what
# the play is about. So every text is full of questions with answers, without any labeling. Our model will play this
# game.

# %% tags=["recorded"]
import math

import torch
import torch.nn.functional as F
from torch import nn

from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress, prove_equal
from txlib import plots
from txlib.data import shakespeare
from txlib.devices import default_device
from txlib.training import optimizers, warmup_linear

# %% [markdown]
# Our tokens are characters, so the vocabulary is small. (GPT-2's tokens are the byte pairs of lesson 01.) Each
# character gets a number. Twelve plays are for training; *Twelfth Night* stays unseen. Of it, 1,500 windows of 64
# characters will be scored, for all models the same.

# %% tags=["recorded"]
texts = shakespeare()
alphabet = sorted(set(texts.train))
number = {character: id for id, character in enumerate(alphabet)}
V = len(alphabet)


def encode(text):
    return torch.tensor([number[character] for character in text])


def decode(ids):
    return "".join(alphabet[id] for id in ids)


train_ids = encode(texts.train)  # (length,)
unseen = encode(texts.validation)[: 1500 * 64 + 1]  # (length,)

# %% [markdown]
# How often does each character follow each of the others? On paper, in *hehe*: *h* is followed by *e* twice, *e* by *h*
# once. Count, divide each row by its sum, and you have a language model: a table that says, for the last character, how
# likely each next one is. It is called the **bigram model**. (We start all counts at 1, so that a new pair is unlikely,
# but not impossible.)

# %%
print(f"{len(train_ids):,} characters to learn from, {len(unseen):,} unseen; {V} kinds")
pairs = V * train_ids[:-1] + train_ids[1:]  # one number for each pair (last, next)
count = 1 + pairs.bincount(minlength=V * V).view(V, V)  # (last, next)
bigram = count / count.sum(dim=1, keepdim=True)  # (last, next): each row adds up to 1
unigram = count.sum(dim=0) / count.sum()  # (next,): whatever came before

# %% [markdown]
# Here are ten rows and columns of the table. The darker, the likelier:

# %% jupyter={"source_hidden": true}
letters = "\n aehnoqtu"
shown = [number[character] for character in letters]
names = ["⏎", "␣", *letters[2:]]
plots.heatmap(
    bigram[shown][:, shown], rows=names, columns=names, size=0.4, numbers=False, bar="probability", span=(0, 1),
    title="After q comes u; after t often h", xlabel="next character", ylabel="last character",
    alt="A table of probabilities for ten characters. The darkest cell is u after q; e after h and h after t are dark as well.",
)

# %% [markdown]
# How good is it? Let it read the unseen play, and note the probability that it gave each character that came. On paper:
# it gave 0.5, then 0.1. The mean of $-\ln 0.5 = 0.69$ and $-\ln 0.1 = 2.30$ is 1.50. That mean is the
# **cross-entropy**. In natural logarithms its unit is the *nat*; divided by $\ln 2$ it is in *bits*. A model that finds
# all $V$ characters equally likely needs $\log_2 V$ bits per character.

# %%
last, following = unseen[:-1], unseen[1:]  # (n,) each: the text, and it shifted by one
loss_of = {
    "any character": math.log(V),
    "frequencies": -unigram[following].log().mean().item(),
    "pairs": -bigram[last, following].log().mean().item(),
}
for name, loss in loss_of.items():
    bits, choices = loss / math.log(2), math.exp(loss)
    print(f"{name:14} {loss:.3f} nats = {bits:.2f} bits; perplexity {choices:.1f}")

# %% [markdown]
# The last number, $e^\text{loss}$, is the **perplexity**: the model is as unsure as if it had to choose among that many
# equally likely characters. Counting pairs brings it from 63 down to 12.5.
#
# A language model can also *write*. Draw a character from the row of the last one, append it, and repeat:

# %%
torch.manual_seed(0)
ids = [number["\n"]]
for _ in range(100):
    ids.append(torch.multinomial(bigram[ids[-1]], 1).item())
print(decode(ids))

# %% [markdown]
# Why not look back further, and count what follows three characters? Many of these pasts are rare or new. So mix: if a
# past occurred six times, with two different followers, trust its counts with the weight $6 / (6 + 2) = 3/4$, and the
# table of the shorter past with $1/4$ (Witten and Bell 1991). Each run of characters becomes a number, as the pairs
# did: with only ten kinds, the run 4, 0, 7 would be the number 407. Then lengthen the past, one character at a time.
# Each table `p` builds on the shorter one:


# %%
def numbers_of(ids, length):  # one number for each run of `length` characters
    return ids.unfold(0, length, 1) @ V ** torch.arange(length).flip(0)


p = torch.full((1, V), 1 / V)  # (past, next): no past yet
for length in range(4):  # of the past
    runs = numbers_of(train_ids, length + 1)  # a past and what came next
    count = runs.bincount(minlength=V ** (length + 1)).view(-1, V)  # (past, next)
    kinds = (count > 0).sum(dim=1, keepdim=True).clamp(min=1)  # different followers
    shorter = p.repeat(len(count) // len(p), 1)  # (past, next): one shorter
    p = (count + kinds * shorter) / (count.sum(dim=1, keepdim=True) + kinds)
    loss = -p.flatten()[numbers_of(unseen, length + 1)].log().mean().item()
    print(f"{length} characters: {len(p):7,} rows, {loss:.2f} nats")

# %% [markdown]
# Each additional character helps. The next table would have 16 million rows, nearly all of them empty. So
# `data/next_character.py` keeps only the pasts that occur. It mixes in the same way, and also in the best of the ways
# that Chen and Goodman (1998) compared, modified **Kneser–Ney**. That takes a little from each count and gives it to
# the shorter table. And the shorter tables count after how many *different* characters a run came. In *queen quick
# quote*, *u* comes three times, but only after *q*: it counts once. How good are the tables, and how many of the play's
# pasts had they met?

# %%
import json

from txlib.paths import DATA

recorded = json.loads((DATA / "next_character.json").read_text())
print("characters   Witten–Bell   Kneser–Ney   of the play's pasts, met in training")
for length, table in recorded["tables"].items():
    kneser_ney = table["unseen, Kneser-Ney"]
    print(f"{length:>10}{table['unseen']:14.2f}{kneser_ney:13.2f}{table['occurred']:15.0%}")
loss_of["best table"] = recorded["tables"]["6"]["unseen, Kneser-Ney"]

# %% [markdown]
# Our mixing is at its best with four characters, Kneser–Ney's with six: **1.58 is the number to beat.** Longer tables
# run out of data. At eight characters, nearly half of the pasts never occurred, and to a table, two pasts that differ
# in one character have nothing in common. We need a model that looks far back and treats *similar* pasts alike. You
# have built its parts.

# %% [markdown]
# ## 2 The idea, as a picture and as an equation
#
# Take a stack of the blocks of lesson 06, with the mask that hides what comes later. At the bottom is the text; at the
# top is the same text, shifted by one. Each position reads itself and what came before, and predicts what comes next.
# That is all of GPT (Radford et al. 2018). (It is the decoder of lesson 08 without an encoder and without the
# cross-attention that read it.)

# %% jupyter={"source_hidden": true}
figures.next_token(
    "To be or", highlight=4, title="Every position predicts what comes next, from the past alone",
    alt="Seven boxes below, the characters of 'To be o'. Above them, 'o be or'. Between, lines from each upper position to the "
    "same and all earlier lower ones. Those of the fifth are thick.",
)

# %% [markdown]
# The probability of a whole text can always be written as a product. If *t* has the probability 0.1, and *h* after *t*
# has 0.4, then *th* has 0.04. This is not an assumption; it is the **chain rule**:
#
# $$p(x_1 \dots x_n) = \prod_{t=1}^{n} p(x_t \mid x_1 \dots x_{t-1})$$
#
# The bigram model cuts the condition down to $x_{t-1}$. A GPT keeps all of it, up to a longest *context*. A model that
# writes like this, each token given all those before it, is **autoregressive**. Training should make the real text as
# likely as possible, so it minimizes
#
# $$\text{loss} = -\frac{1}{n} \sum_{t=1}^{n} \log p(x_t \mid x_1 \dots x_{t-1})$$
#
# So a text of $n$ characters holds $n$ questions. In code, questions and answers are one text, shifted by one.


# %% tags=["recorded"]
def batch(ids, size, n=64):
    start = torch.randint(len(ids) - n, (size,))  # (batch,)
    window = ids[start[:, None] + torch.arange(n + 1)]  # (batch, n + 1)
    window = window.to(default_device())
    return window[:, :-1], window[:, 1:]  # (batch, n) each: what is read, what is next


torch.manual_seed(1)
read, following = batch(train_ids, size=1, n=10)
print("reads   ", repr(decode(read[0].tolist())))
print("predicts", repr(decode(following[0].tolist())))

# %% [markdown]
# The model always reads the *right* past, whatever it would have written itself. This is **teacher forcing**.

# %% [markdown]
# ## 3 Build it
#
# ### 3.1 The whole model
#
# The parts are those of lessons 04 to 06, as in GPT-2: a norm before each sub-layer, biases, gelu, and a learned vector
# for each position. Attention needs two small helpers:


# %% tags=["recorded"]
def causal(n):
    return torch.ones(n, n, dtype=torch.bool).tril()  # (query, key)


def split(x, heads):  # (batch, n, d_model)
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # (batch, head, n, d_k)


# %% [markdown]
# Each part gets a class. Attention:


# %% tags=["recorded"]
class SelfAttention(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x, visible):  # (batch, n, d_model), (n, n)
        parts = self.query(x), self.key(x), self.value(x)
        q, k, v = (split(part, self.heads) for part in parts)  # (batch, head, n, d_k)
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~visible, -math.inf)
        mixed = scores.softmax(dim=-1) @ v  # (batch, head, n, d_k)
        return self.output(mixed.transpose(1, 2).flatten(2))  # (batch, n, d_model)


# %% [markdown]
# The feed-forward network widens each vector four times:


# %% tags=["recorded"]
class FeedForward(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.up_proj = nn.Linear(d_model, 4 * d_model)
        self.down_proj = nn.Linear(4 * d_model, d_model)

    def forward(self, x):  # (batch, n, d_model)
        return self.down_proj(F.gelu(self.up_proj(x), approximate="tanh"))


# %% [markdown]
# A block adds the results of both to the residual stream:


# %% tags=["recorded"]
class Block(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.self_attention_norm = nn.LayerNorm(d_model)
        self.self_attention = SelfAttention(d_model, heads)
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model)

    def forward(self, x, visible):  # (batch, n, d_model), (n, n)
        x = x + self.self_attention(self.self_attention_norm(x), visible)
        return x + self.feed_forward(self.feed_forward_norm(x))


# %% [markdown]
# And the model: token vectors, positions, blocks, a last norm, scores. One matrix does two jobs: its rows are the token
# vectors, and a row's dot product with the last hidden vector is that token's score (**weight tying**). `mask` is an
# argument so that section 5 can break it; `initialize` follows in section 3.2.


# %% tags=["recorded"]
class GPT(nn.Module):
    def __init__(self, vocab_size, d_model, heads, layers, max_length=64):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.position = nn.Embedding(max_length, d_model)
        self.layers = nn.ModuleList(Block(d_model, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(d_model)
        initialize(self)

    def embed(self, ids):  # (batch, n)
        return self.embedding(ids) + self.position.weight[: ids.shape[1]]

    def forward(self, ids, mask=causal):  # (batch, n)
        x = self.embed(ids)  # (batch, n, d_model)
        visible = mask(ids.shape[1]).to(ids.device)  # (n, n)
        for layer in self.layers:
            x = layer(x, visible)  # (batch, n, d_model): looks back only
        return self.norm(x) @ self.embedding.weight.T  # (batch, n, vocab)


# %% [markdown]
# ### 3.2 How it starts
#
# GPT-2 starts its biases at 0 and draws its matrices with a standard deviation of 0.02. (Its code draws the positions
# with 0.01; we treat all alike.) Two matrices in each block write into the residual stream: attention's output and the
# feed-forward network's last one. With $L$ blocks these are divided by $\sqrt{2L}$. Why? At the start the additions are
# independent of one another, so their variances add up. Eight blocks add 16 times: the sum has 16 times the variance of
# one addition, so 4 times its standard deviation. Divide each addition by $\sqrt{16} = 4$, and the sum is as large as
# one addition was, whatever the depth. (The paper says $1/\sqrt{N}$, with $N$ *residual layers*; each block has two.)


# %% tags=["recorded"]
def initialize(model):
    additions = 2 * len(model.layers)  # to the stream: two in each block
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            into_stream = name.endswith(("output.weight", "down_proj.weight"))
            smaller = math.sqrt(additions) if into_stream else 1
            nn.init.normal_(weight, std=0.02 / smaller)
        elif name.endswith("bias"):
            nn.init.zeros_(weight)


# %% [markdown]
# ### 3.3 One pass, $n$ predictions
#
# To learn from every position of a text, must we run the model on each of its beginnings: one character, two
# characters, and so on? With the causal mask, position $t$ cannot tell whether anything follows. So a single pass over
# the whole text must give, at each position, exactly what a pass over that beginning gives. Prove it:


# %%
torch.manual_seed(0)
probe, ids = GPT(V, 64, 4, 3).eval(), train_ids[:64][None]  # (1, n)
with torch.no_grad():
    for weight in probe.parameters():  # a new model says nearly the same everywhere
        weight.add_(0.1 * torch.randn_like(weight))
    together = probe(ids)[0]  # (n, vocab): one pass
    one_by_one = torch.stack([probe(ids[:, : t + 1])[0, -1] for t in range(64)])
prove_equal(together, one_by_one, tolerance=1e-4, what="One pass and 64 passes")

# %% [markdown]
# The loop computes the beginning again and again: $1 + 2 + \dots + 64 = 2{,}080$ positions instead of 64. A recurrent
# network (lesson 02) gets from one position to the next step by step. Here all are computed at the same time, which is
# what GPUs are good at. This holds for *training* only: a model that writes has to wait for its own words.

# %% [markdown]
# ## 4 Train it
#
# Our model has $d = 128$, 4 heads and 3 blocks. We have half a minute, so we take the optimizer that learned fastest
# in lesson 07: *Muon* for the matrices inside the blocks, Adam for the rest.
# The learning rate warms up for 20 steps and then falls to 0.


# %% tags=["recorded"]
def train(model, steps, what, mask=causal, size=8, text=train_ids, seed=0):
    torch.manual_seed(seed)
    model.to(default_device()).train()
    optimizer, losses = optimizers(model, lr=4e-3, muon_lr=0.02), []
    for step in progress(range(1, steps + 1), what):
        read, following = batch(text, size)  # (batch, n) each
        logits = model(read, mask)  # (batch, n, vocab)
        loss = F.cross_entropy(logits.flatten(0, 1), following.flatten())
        loss.backward()
        optimizer.set_factor(warmup_linear(step, steps, warmup=20))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    return losses


# %% [markdown]
# The loss that counts is the one on the unseen play, cut into windows of 64. At the first position of a window the
# model has seen one character, at the last one 64, so we keep the loss of each position:


# %% tags=["recorded"]
@torch.no_grad()
def unseen_loss(model, n=64):
    ids = unseen.to(default_device())
    read, following = ids[:-1].view(-1, n), ids[1:].view(-1, n)  # (windows, n) each
    logits = torch.cat([model(part) for part in read.split(50)])  # (windows, n, vocab)
    each = F.cross_entropy(logits.transpose(1, 2), following, reduction="none")
    return each.mean(dim=0)  # (n,)


# %% [markdown]
# A model that knows nothing should give each of the $V$ characters the same probability, and lose $\ln V = 4.14$ nats.
# Does ours start there?

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
model = GPT(V, 128, 4, 3).to(default_device())
print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters")
losses = train(model, 400, "training a GPT")
by_position = unseen_loss(model).tolist()  # (n,)
loss_of["our GPT"] = sum(by_position) / 64
print(f"first loss {losses[0]:.2f}, mean of the last 50 {sum(losses[-50:]) / 50:.2f}")
expect("Loss on the unseen play, nats per character", loss_of["our GPT"], 1.9, 2.15)
expect("… with one character seen", by_position[0], 2.35, 2.75)

# %% [markdown]
# It does, nearly. Here is the training loss, step by step. The dashed lines are the tables of section 1, on the unseen
# play:

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
tables = {name: loss_of[name] for name in ("frequencies", "pairs", "best table")}
figures.falling_losses({"our GPT": losses}, tables, title="Soon the GPT leaves the table of pairs behind")

# %% [markdown]
# It soon beats the pairs, but it is far from the best table. Does it need other parts, or more time?
# `data/next_character.py` has trained the same model for 1,200 steps, from three starts:

# %%
longer = recorded["d = 128, 1,200 steps"]  # a run per seed
print("our GPT, 1,200 steps:", *(f"{run['unseen']:.2f}" for run in longer.values()))
print(f"best table:           {loss_of['best table']:.2f}")
play = [table["whole play, Kneser-Ney"] for table in recorded["tables"].values()]
cut = (sum(play[1:6]) + 59 * play[6]) / 64  # in a window it sees 1, 2, … characters
print(f"… on the whole play:  {play[6]:.2f}; cut off at windows {cut:.2f}")

# %% [markdown]
# Now it draws level with the best table of our own mixing; but these steps read only two fifths of the text, and the
# table all of it. And more time? `txlib train shakespeare --steps 2000` trains a model a third larger, with the parts
# of lesson 16, on nearly seven times as many characters. On the whole play its one recorded run has 1.60
# (`benchmarks/results/plays.json`, nine minutes on one core), and one with twice the steps 1.59 (`plays_4000.json`).
# Kneser–Ney with six characters has 1.57, after seconds. But it always sees six characters, and the GPT starts each
# window of 64 with one. Cut off at the same windows, the table has 1.60, as the last line says. So on one and a half
# million characters, counting well is about as good as a small Transformer. The Transformer is ahead where text and
# model are large. On nearly a billion words, Kneser–Ney has a perplexity of 67.6 per word (Chelba et al. 2013), and a
# Transformer with 0.8 billion parameters 21.8 (Dai et al. 2019).
#
# To write, do as with the table: draw a character from the softmax of the last position's scores, append it, repeat.
# Dividing the scores by a `temperature` below 1 first favors the likelier characters (lesson 11).


# %% tags=["recorded"]
@torch.no_grad()
def write(model, start, new=200, mask=causal, temperature=1.0):
    ids = encode(start)[None].to(default_device())  # (1, length)
    context = model.position.num_embeddings
    for _ in range(new):
        logits = model(ids[:, -context:], mask)[0, -1]  # (vocab,)
        p = (logits / temperature).softmax(dim=-1)  # (vocab,)
        ids = torch.cat([ids, torch.multinomial(p, 1)[None]], dim=1)  # (1, length + 1)
    return decode(ids[0].tolist())

# %% [markdown]
# This is what ours writes at a temperature of 0.5, and what the model trained for 1,200 steps wrote:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
print("400 STEPS", write(model, "ORSINO:\n", temperature=0.5), sep="\n", end="\n\n")
print("1,200 STEPS", longer["0"]["text"], sep="\n")

# %% [markdown]
# Both write lines; after 400 steps many of the words are real, after 1,200 nearly all. What would more time bring? A
# model trained on Bible verses for 20 minutes on one core is bundled (`python data/verses_model.py`). Its tokens are
# pieces of words, so it need not learn to spell:

# %% tags=["nbval-ignore-output"]
from txlib import load_pretrained
from txlib.data import shipped
from txlib.generation import TextGenerator
from txlib.text import load_tokenizer

folder = shipped("verses")
writer = TextGenerator(load_pretrained(folder), load_tokenizer(folder))
[text] = writer.generate("In", do_sample=True, temperature=0.5, seed=0)
print("In" + text)

# %% [markdown]
# It writes sentences: nearly all words exist, and someone does something. What they say makes little sense.
#
# The table of pairs sees one character. Does our GPT use more? Look at its loss position by position:

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
trained_longer = torch.tensor([run["by position"] for run in longer.values()]).mean(dim=0)  # (n,)
figures.loss_by_past(
    {"400 steps": by_position, "1,200 steps": trained_longer.tolist()},
    {name: loss_of[name] for name in ("pairs", "best table")},
    title="Three characters help most; more of them help a little",
)

# %% [markdown]
# With one character it is about as good as the table of pairs, which holds all that one character tells. The next two
# help a lot: with three, after 1,200 steps, it is as good as our table of three (1.88). What lies further back helps
# less, 0.05 nats after 400 steps and 0.10 after 1,200: it ends a hundredth below our table of four (1.79), and far
# above Kneser–Ney's. (The tables know all their characters from the start of a window on.)

# %% [markdown]
# ## 5 Break it
#
# ### 5.1 A mask that leaks
#
# Everything depends on the mask. Three small models, $d = 64$ and 2 blocks, 200 steps each:
#
# - one is right;
# - one has no mask;
# - one has a mask that leaks: it is shifted by one, nothing complains, and position $t$ also sees $t + 1$.

# %% jupyter={"source_hidden": true}
figures.next_token(
    "To be or", highlight=4, leak=True, title="A leak: each position also sees what it is to predict",
    alt="The picture of section 2 with one more line, in orange, from each position to the next lower one: what it is to predict.",
)

# %% jupyter={"source_hidden": true}
predict(
    "sees-ahead", "Whose training loss will be lowest?",
    "that of the right model", "that of the model without a mask", "that of the model that leaks", "all three are about alike",
)

# %% [markdown]
# Each trains for two hundred steps on the same batches:


# %% tags=["nbval-ignore-output"]
def everything(n):
    return torch.ones(n, n, dtype=torch.bool)  # (query, key)


def leaky(n):
    return torch.ones(n, n, dtype=torch.bool).tril(diagonal=1)  # one position too far


masks = {"right": causal, "no mask": everything, "leaks by one": leaky}
models, training = {}, {}
for name, mask in masks.items():
    torch.manual_seed(0)
    models[name] = GPT(V, 64, 4, 2)
    training[name] = train(models[name], 200, name, mask)

# %% [markdown]
# Compare their training losses:

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
figures.falling_losses(training, title="Two are too good to be true")

# %% [markdown]
# The one that leaks has a loss of 0.1: it knows nearly every next character for certain. It *sees* the answer, one
# position to the right. The one without a mask sees it as well. (Our explanation of its lag: the leaky one's answer is
# always the last character that it sees; this one must find it among 64.) The honest test is what a model meets when it
# writes: a beginning, and nothing after it. Give each of them beginnings of 20 characters, and count only the last
# position.


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def honest(model, mask, n=20):
    window = unseen[: 1000 * 50].view(1000, 50)[:, : n + 1].to(default_device())
    return F.cross_entropy(model(window[:, :-1], mask)[:, -1], window[:, -1]).item()


found = {name: honest(models[name], mask) for name, mask in masks.items()}
for name, loss in found.items():
    final = sum(training[name][-20:]) / 20
    print(f"{name:13} training loss {final:.2f}, when nothing comes after {loss:.2f}")
expect("Loss of the right model", found["right"], 2.2, 2.5)
expect("… of the one that leaks, when it has to guess", found["leaks by one"], 3, 30)
predicted("sees-ahead", "that of the model that leaks", "It can't write, though.")

# %% [markdown]
# And this is what the one without a mask writes:

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
print(write(models["no mask"], "ORSINO:\n", 100, everything))

# %% [markdown]
# So remember: **if a training loss is too good to be true, look for a leak.** No error message warns you, and the loss
# curve looks wonderful. Only a test without the future shows it: the one above, writing, or that of section 3.3.
#
# ### 5.2 No positions
#
# Attention sees a set (lesson 05). So take the learned positions away from the larger model, that of section 4.

# %% jupyter={"source_hidden": true}
predict(
    "no-positions", "What becomes of the model without positions?",
    "it learns nothing: without order, text is a bag of characters", "it is clearly worse, but far from lost",
    "it does as well as the right one",
)

# %% [markdown]
# The new class replaces `embed`:


# %% tags=["recorded"]
class Unplaced(GPT):
    def embed(self, ids):  # (batch, n)
        return self.embedding(ids)  # (batch, n, d_model)


# %% [markdown]
# `data/next_character.py` has trained both for 300 steps, from three starts each, and also one block without positions.
# Their losses on the unseen play:

# %%
for name in ("all the text", "no positions", "no positions, one block"):
    runs = recorded[f"d = 128, {name}"].values()
    print(f"{name:23}", *(f"{run['unseen']:.2f}" for run in runs))
print(f"{'pairs':23} {loss_of['pairs']:.2f}")
predicted("no-positions", "it is clearly worse, but far from lost")

# %% [markdown]
# The model is not lost: it still beats the table of pairs. How, without positions? One block mixes the past as a set,
# so its order is lost. It beats the pairs as well, so *which* characters came before helps even without their order.
# Three blocks do better still. Our explanation: the causal mask itself breaks the symmetry, since a position that sees
# 5 characters differs from one that sees 50, and the next block can read the difference. Large models without positions
# come close to those with them (Haviv et al. 2022). An encoder has no mask; to it, without positions, a text *is* a
# bag.

# %% [markdown]
# ## 6 One file, the library, and OpenAI's weights
#
# ### 6.1 `my_gpt.py`
#
# Everything that the model needs is in your cells. `write_module` copies them into one file, with any change that you
# have made. It imports only `math` and torch, so any program can use it. Does it compute the same?

# %%
from txcourse.lesson import write_module

write_module(
    "my_gpt.py", causal, split, SelfAttention, FeedForward, Block, GPT, initialize,
)

import my_gpt

again = my_gpt.GPT(V, 128, 4, 3).to(default_device()).eval()
again.load_state_dict(model.state_dict())
ids = unseen[: 4 * 64].view(4, 64).to(default_device())  # (batch, n)
with torch.no_grad():
    ours = model(ids)  # (batch, n, vocab)
    prove_equal(ours, again(ids), what="The cells' logits and the file's")

# %% [markdown]
# ### 6.2 Open the library
#
# `txlib`'s GPT can also pad texts, keep a cache for writing (lesson 13), and compute the loss: it takes the same text
# as `labels`, and shifts them inside. Its blocks are in a `decoder`; the other names are yours.

# %%
from txcourse.lesson import show_source
from txlib.models import GPT as LibraryGPT

show_source(LibraryGPT.__init__)

# %% [markdown]
# So any weights of the library fit into your class, if the sizes do:


# %%
def from_library(library):
    sizes = library.config
    d, heads = sizes.block.d_model, sizes.block.attention.heads
    ours = GPT(sizes.vocab_size, d, heads, sizes.layers, sizes.max_length)
    weights = library.state_dict().items()
    renamed = {name.removeprefix("decoder."): weight for name, weight in weights}
    ours.load_state_dict(renamed)
    return ours.to(default_device()).eval()


# %% [markdown]
# Do a new model of the library and yours, with its weights, give the same scores and loss?

# %%
from txlib.layers import BlockConfig
from txlib.models import GPTConfig

block = BlockConfig.of_sizes(128, 4, 512, activation="gelu_tanh", position="learned")
library = LibraryGPT(GPTConfig(V, block, 3, 64)).to(default_device()).eval()
again = from_library(library)
with torch.no_grad():
    ours, theirs = again(ids), library(ids, labels=ids)
prove_equal(ours, theirs.logits, tolerance=1e-4, what="Your logits and its")
loss = F.cross_entropy(ours[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
prove_equal(loss, theirs.loss, what="Your loss and its")

# %% [markdown]
# ### 6.3 OpenAI's weights, in your class
#
# OpenAI's file names and arranges the matrices in its own way. We write the random model of section 6.2 in that way,
# look at the attention of its first block, and read everything back into your class:

# %%
import tempfile
from pathlib import Path

from safetensors.torch import load_file

from txlib import save_pretrained

written = Path(tempfile.mkdtemp())
save_pretrained(library, written)
for name, weight in load_file(written / "model.safetensors").items():
    if "h.0.attn" in name:
        print(f"{name:34}", tuple(weight.shape))
reread = from_library(load_pretrained(written, dtype=torch.float32))
with torch.no_grad():
    prove_equal(reread(ids), ours, tolerance=1e-4, what="Read back and before")

# %% [markdown]
# One matrix holds query, key and value, and all matrices are transposed: $128 \times 384$. `load_pretrained` cuts it in
# three, transposes and renames (lesson 17 does that by hand, for a Llama). Then the weights fit into your class.
#
# OpenAI's own weights are such a file. If you are online, download it once (`hf download openai-community/gpt2
# config.json model.safetensors tokenizer.json`, 548 MB), and run the next cell again.

# %% tags=["nbval-ignore-output"]
from txcourse.lesson import gpt2

if folder := gpt2():
    openai, tokenizer = from_library(load_pretrained(folder)), load_tokenizer(folder)
    story = torch.tensor([tokenizer.encode("The meaning of life is")])  # (1, length)
    story = story.to(default_device())
    with torch.no_grad():
        for _ in range(20):
            story = torch.cat([story, openai(story)[:, -1:].argmax(dim=-1)], dim=1)
    print(tokenizer.decode(story[0].tolist()))
else:
    print("GPT-2 has not been downloaded.")

# %% [markdown]
# ## 7 Sizes and costs
#
# ### 7.1 Count GPT-2
#
# How large is GPT-2? `txlib.models.sizes` holds the papers' tables. With $L$ blocks, by hand:
#
# $$\underbrace{V d}_\text{tokens} + \underbrace{n d}_\text{positions} +
# L\,(\underbrace{12 d^2 + 13 d}_\text{a block, lesson 06}) + \underbrace{2d}_\text{last norm}$$


# %%
from txlib.models.sizes import GPT2, GPT3_PRINTED, GPT3_TOKENS, build, count_parameters


def parameters(layers, d, vocab=50_257, context=1024):
    return vocab * d + context * d + layers * (12 * d**2 + 13 * d) + 2 * d


for name, settings in GPT2.items():
    d, layers = settings.block.d_model, settings.layers
    by_hand = parameters(layers, d)
    right = "✓" if by_hand == count_parameters(settings) else "✗"
    print(f"{name:7} {layers} blocks, d {d:4}: by hand {by_hand:13,} {right}")

# %% [markdown]
# OpenAI published exactly 124,439,808. (The file of section 6.3 holds more numbers, 548 MB of them: it also stores the
# mask of each block. And the paper prints 117 million, a miscount that its authors corrected later.)
#
# ### 7.2 GPT-3's table, row by row
#
# GPT-1 had 117 million parameters, the largest GPT-2 1.56 billion, and GPT-3 175 billion. Brown et al. (2020) trained
# eight sizes, each on 300 billion tokens with a context of 2,048. Rebuild their table 2.1: parameters by our formula,
# and the operations of training as $6 N D$, six for each of $N$ parameters and $D$ tokens (section 7.3 shows why).
# Their appendix D prints both.

# %%
print("       blocks      d  heads · size   appendix   formula     6ND    appendix")
for name, row in GPT3_PRINTED.items():
    N = parameters(row.layers, row.d_model, context=2048)
    heads = f"{row.heads} · {row.head_dim}"
    heads += "  " if row.heads * row.head_dim == row.d_model else " ≠"
    print(f"{name:7}{row.layers:6} {row.d_model:6,}{heads:>14}", end="")
    print(f"{row.appendix / 1e6:9,.0f} M{N / 1e6:9,.0f} M", end="")
    print(f"{6 * N * GPT3_TOKENS:10.2e}{row.flops:10.2e}")
for d in (5140, 5120):
    N = parameters(40, d, context=2048)
    print(f"13b with d = {d:,}: {N / 1e6:,.0f} M; {d} / 40 = {d / 40:g}")

# %% [markdown]
# Seven rows agree with the appendix to within 0.4%; 13b is off by 0.8%. And two rows are marked: heads times size
# should be $d$, and it is not.
#
# - **xl**: 24 heads of 128 would make 3,072, not 2,048. 16 heads do. The number of heads does not change the count.
# - **13b**: 40 heads of 128 make **5,120**. The table prints 5,140. Which one did they train? The appendix gives 12,850
#   million parameters, and 5,120 makes 12,853: 5,140 is a misprint.
#
# ### 7.3 What it costs
#
# *Parameters.* Blocks grow with $L d^2$, the embedding with $V d$ only: it is 31% of GPT-2 small, 5% of GPT-2 xl and
# 0.4% of GPT-3. Kaplan et al. (2020) count models without it: only then did models of different depths follow one
# curve (their section 3.2).
#
# *Operations.* Each parameter of a matrix takes part in one multiplication and one addition for each token: $2N$
# operations forward. Backward does that twice, once for the gradient of the input and once for that of the weight: $6N$
# in all. Attention's scores and mixing come on top: $4 n d$ per token and block forward, three times that in training.
# Count them with torch's counter, on GPT-2 small with a full context:

# %%
from torch.utils.flop_counter import FlopCounterMode

small, d, blocks, n = build(GPT2["small"]).eval(), 768, 12, 1024
N = parameters(blocks, d) - n * d  # without the positions, which are only added
empty = torch.zeros(1, n, dtype=torch.long, device="meta")  # (batch, n): only a shape
with FlopCounterMode(display=False) as counter:
    small(empty, labels=empty).loss.backward()
counted, scores = counter.get_total_flops() / n, 3 * 4 * n * d * blocks
print(f"training counted {counted / 1e6:.0f} million operations per token;")
print(f"6N is {6 * N / 1e6:.0f}, with scores {(6 * N + scores) / 1e6:.0f}")

# %% [markdown]
# The rule of thumb leaves out the scores, here 15% on top of it. They are $n / 6d$ of the blocks' matrices, so $6ND$ is
# a good rule as long as the context is short compared with $6d$: 2.8% in GPT-3 with 2,048 tokens, 136% with 100,000.
# GPT-3: $6 \cdot 175 \cdot 10^9 \cdot 300 \cdot 10^9 = 3.15 \cdot 10^{23}$. A machine with $10^{14}$ operations per
# second would need a hundred years. (Memory holds more than the weights: lessons 13 and 35.)
#
# ### 7.4 Does size pay? (second reading)
#
# Kaplan et al. (2020) found that the loss falls as a power of the number of parameters, over six orders of
# magnitude. And with too little text? `data/next_character.py` has trained two sizes on the whole text, and on 8,000
# characters, which its 300 steps read about nineteen times; three starts each:

# %% jupyter={"source_hidden": true}
print(f"{'':27}what it reads    the unseen play")
for text in ("all the text", "8,000 characters"):
    for d in (32, 128):
        runs = recorded[f"d = {d}, {text}"].values()
        print(f"d = {d:3}, {text:16}", *(f"{run['training']:.2f}" for run in runs),
              "", *(f"{run['unseen']:.2f}" for run in runs))

# %% [markdown]
# With all the text, the larger model has the lower loss. With 8,000 characters it knows what it has read better, and
# the unseen play worse: it **overfits**. Size pays as long as there is text for it.
#
# How to divide a budget of operations between size and text is what **scaling laws** are about (lesson 37). Kaplan et
# al. put most of it into size. Hoffmann et al. (2022, "Chinchilla") measured again and found that both should grow
# alike: about 20 tokens per parameter. GPT-3 read 1.7 per parameter, Llama 3.1 8B about 1,900: a model that will be
# *used* a great deal should be small, even if its training is not the cheapest way to that loss. (The sizes of GPT-4
# and its successors have never been published. The first ChatGPT was GPT-3.5, fine-tuned on conversations and
# preferences.)

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. A model's loss is 1.39 nats per character. How many bits per character is that, and what is its perplexity?**
#
# <details><summary>A. 2 bits, perplexity 4</summary>
#
# Right. $1.39 / \ln 2 \approx 2$ and $e^{1.39} \approx 2^2 = 4$: as unsure as someone who chooses among four.
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
# That would be so without the causal mask. With it, each position predicts its own next character.
# </details>
# <details><summary>B. 512</summary>
#
# Right: every position of every window, all in one pass.
# </details>
# <details><summary>C. 504: the last position has nothing to predict</summary>
#
# It has: `batch` draws 65 characters, and the last one is only an answer. (With the *same* 64 as text and labels, as in
# the library, it is 8 · 63.)
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
# <details><summary>C. Whether a position can see the next one</summary>
#
# Right. The mask is missing or leaks, or the labels are not shifted. Test: change the last character; no earlier
# prediction may change.
# </details>
#
# **4. You train a model of 1 billion parameters on 20 billion tokens. About how many operations is that?**
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
# ## 9 Summary
#
# - A language model gives each next token a probability. Its loss is the mean of $-\log p$ of what really came.
# - GPT is a stack of blocks that look back only; text and answers are one text, shifted by one.
# - The causal mask makes one pass equal to $n$ passes. If a training loss is too good to be true, look for a leak.
# - $N = V d + n d + L(12 d^2 + 13 d) + 2d$ parameters, $2N$ operations per token forward, $6N$ to train.
# - Counting well is the rival to beat; with little text it is as good as a small GPT.
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
