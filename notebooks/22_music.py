# %% [markdown] lesson={"part": "III Beyond text", "builds": "chorales as tokens, skewing as arithmetic on addresses, four kinds of positions compared, a chorale finished, heard and written as MIDI"}
# # 22 · Music: distances that mean something
#
# **After this lesson you will be able to**
#
# - write four-part music as tokens, and say what a distance between two of them means;
# - derive the *skewing* of relative attention as arithmetic on addresses, and count the memory that it saves;
# - train a small Music Transformer and judge it in nats per note, next to counting and to four other kinds of
#   positions;
# - let it finish a chorale, hear it, see on the score where its heads look, and give it rules to keep.
#
# **You need** lessons 05, 06 and 10. You need not read music. **It takes** about 65 minutes to read, try and hear; all
# cells together run in about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: music quotes itself
#
# A *chorale* is a hymn: a melody for the verses of a song, sung in church. The melody is often older than J. S. Bach
# (1685 to 1750); he added three voices, sung below it. From high to low the four are called *soprano*, *alto*, *tenor*
# and *bass*, and each sings one note at a time. Could a model finish such a piece?

# %% tags=["recorded"]
import json
import math
from collections import Counter, defaultdict

import torch
import torch.nn.functional as F
from einops import rearrange
from IPython.display import Audio, display
from torch import nn

from txlib import plots
from txlib.attention import attention, causal
from txcourse import figures
from txcourse.lesson import expect, predict, predicted, progress, prove_equal
from txlib.data import chorales
from txlib.layers import FeedForward, LayerNorm
from txlib.layers.position import Rotary, sinusoidal
from txlib.music import Piece, synthesize, write_midi

torch.set_num_threads(1)  # for models this small, more threads only wait

# %% [markdown]
# Written music is a grid: time to the right, pitch upward. Time is counted in *beats*, which are what your foot taps
# to; in most chorales four of them make a *bar*. We cut each beat into 4 *steps*, so a bar has 16. *Pitch*, how high a
# note is, is a number, as in MIDI, the language of electronic instruments: 60 is the C in the middle of a piano, and 1
# more is the next key, black or white (a *semitone*). Twelve semitones up, an *octave*, it is called C again.

# %% tags=["recorded"]
pieces = chorales()
piece = next(each for each in pieces.test if each.name == "bwv227.11")
print(f"{len(pieces.train)} chorales to learn from, {len(pieces.test)} to test on")
print(f"{piece.name} has {len(piece)} steps; the first: {piece.pitch[0].tolist()}")

# %% [markdown]
# As a picture, a *piano roll*: each note is a bar of color, as long as it lasts. Gray lines show where a musical bar
# begins. (A piece may begin with an *upbeat*, a beat or so before its first whole bar.) And as sound: each note is a
# few sine waves that fade. Press play.

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
def listen(piece):
    return Audio(synthesize(piece, tempo=100, rate=6000), rate=6000)  # samples a second


display(plots.piano_roll(
    piece[:96], title="Four voices; the highest has the hymn",
    alt="Notes of four voices as colored bars; most last a beat, most moves are small.",
))
listen(piece[:64])

# %% [markdown]
# Does a piece repeat itself? Compare each step with the one a fixed number of steps earlier, the **lag**: what fraction
# of the four voices has the same pitch? Average over all chorales, for each lag. Guess first: at which lags will this
# curve have peaks?

# %%
def by_lag(lag):  # percent of voices alike, at steps so far apart
    parts = [each.pitch for each in pieces.train if len(each) > lag]
    same = [(pitch[lag:] == pitch[:-lag]).float().mean(dim=-1) for pitch in parts]
    return 100 * torch.cat(same).mean().item()


lags = list(range(16, 209, 2))  # from one bar to thirteen
percent = [by_lag(lag) for lag in lags]

# %% tags=["hide-output"] jupyter={"source_hidden": true, "outputs_hidden": true}
figures.lag_curve(lags, percent, title="Peaks at whole bars, above all 4, 6, 8 and 12")

# %% [markdown]
# There are peaks at many whole bars, above all at 4, 6, 8 and 12. They are narrow: a beat to the side, and the curve
# is back near the 14% of any lag. A line of a hymn's verse usually takes two bars. Our reading: what comes back are
# lines and pairs of lines. (The vertical axis does not begin at 0: the mean rises by three points only.)
#
# No reader of language would expect that: words do not come back after exactly 64 other words. In music *how long ago*
# is information, and a model needs a way to ask for it. That is what Huang et al. (2019) made relative attention
# affordable for, in the **Music Transformer**.

# %% [markdown]
# ## 2 From notes to tokens
#
# We have a grid, and a language model wants one line of tokens. Three questions have to be settled.
#
# **In which order?** All four voices of the first step, soprano first, then all four of the second, and so on: four
# tokens for a step, 64 for a bar. (The paper does the same with chorales. For piano music, its tokens are *strike this
# key*, *let it go*, *wait*, *how loud*.)
#
# **How long is a note?** Suppose each token is the pitch that sounds. Then a note held for a beat is four equal tokens,
# and so are two notes of half a beat. How often would that matter?

# %%
repeated, total = 0, 0
for each in pieces.train:
    repeated += (each.onset[1:] & (each.pitch[1:] == each.pitch[:-1])).sum().item()
    total += each.onset.sum().item()
print(f"{total:,} notes to learn from; {repeated:,} have the pitch of the one before")

# %% [markdown]
# One note in seven would melt into the one before. So a pitch means *strike this pitch now*: begin a note. Another
# token, HOLD, means *go on with what you have*.
#
# **What else?** REST, for silence, and BEGIN, so that there is something to guess the first note from. (END is the
# library's, for pieces that know when to stop.) Then the pitches, from the lowest to the highest that
# occurs.

# %% tags=["recorded"]
BEGIN, END, REST, HOLD, FIRST = range(5)  # FIRST is the token of the lowest pitch
LOW, HIGH = 36, 81  # the lowest and the highest pitch that occur
V = FIRST + HIGH - LOW + 1


def encode(piece):  # → (4 · steps,)
    token = torch.where(piece.pitch > 0, HOLD, REST)  # (steps, 4)
    return torch.where(piece.onset, piece.pitch - LOW + FIRST, token).flatten()


# %% [markdown]
# Decoding needs a loop, because HOLD copies the pitch of the step before. (`Piece` is the library's: pitches, and
# where they are struck.)


# %% tags=["recorded"]
def decode(tokens):  # (4 · steps,) → a piece
    grid = tokens.view(-1, 4)  # (steps, 4)
    pitch = torch.where(grid >= FIRST, grid - FIRST + LOW, 0)
    for step in range(1, len(grid)):
        pitch[step] = torch.where(grid[step] == HOLD, pitch[step - 1], pitch[step])
    return Piece(pitch, (grid >= FIRST) & (pitch > 0))


tokens = encode(piece)  # (4 · steps,)
prove_equal(decode(tokens).pitch, piece.pitch, what="Pitches before and after")
print(f"{V} tokens; the first two steps: {tokens[:8].tolist()}")
print(f"{(tokens == HOLD).float().mean():.0%} of this piece's tokens say HOLD")

# %% [markdown]
# ### What a distance means
#
# Between two words, "five tokens ago" says little. Here it says which voice, and when. Fill in the last column before
# you open it:
#
# | tokens ago | for the soprano | for the bass |
# | --- | --- | --- |
# | 4 | soprano, one step ago | bass, one step ago |
# | 64 | soprano, one bar ago | … |
# | 3 | alto, one step ago | … |
# | 1 | bass, one step ago | … |
#
# <details><summary>The bass</summary>
#
# 64: the bass, one bar ago. 3: the soprano, *now*. 1: the tenor, now. So multiples of 4 are time in one's own voice,
# and mean the same to every voice. The others differ, because only the voices above have sung in this step.
# </details>
#
# Two consequences. A model must know whose turn it is; we will tell it. And what a distance is worth depends on *who
# asks*: a bass wants the soprano's note of this moment, 3 tokens ago; to a soprano, 3 tokens ago is hardly news. A
# fixed number for each distance, as in ALiBi, is the same for every query. Section 4 gives the query a say; 5.2 takes
# it away again, to see what it is worth.

# %% [markdown]
# ## 3 How much is there to guess?
#
# Before any model we need a yardstick. We cut pieces into windows of four bars, 256 tokens, each with the token before
# it. The loss is the negative log-likelihood, $-\ln p$ of the token that came, in *nats*. It can be averaged in two
# ways. Take one voice that sings two notes of a beat each: eight tokens, six of them HOLD. If each note costs 2 nats
# and each HOLD 0.1, that is $(4 + 0.6)/8 = 0.58$ nats per *token*, but $4.6/2 = 2.3$ nats per *note*.
#
# Most tokens are HOLD, and easy to guess, so the first number is small and says little. The second is what a note
# costs, with all the holding that follows it.

# %% tags=["recorded"]
N = 256  # tokens in a window: four bars


def sequences(split):  # a list of (1 + 4 · steps,)
    return [F.pad(encode(each), (1, 0), value=BEGIN) for each in split]


def windows(split, n=N):  # (windows, n + 1): whole windows only
    rows = [row for row in sequences(split) if len(row) > n]
    return torch.cat([row.unfold(0, n + 1, n) for row in rows])


test = windows(pieces.test)  # (windows, N + 1)
targets = test[:, 1:]  # (windows, N)
tokens_per_note = targets.numel() / (targets >= FIRST).sum().item()
print(f"{len(test)} windows to test on; a note for every {tokens_per_note:.2f} tokens")

# %% [markdown]
# Guessing blindly costs $\ln V$ per token. Counting is better. What could a table of counts look at? At the voice's own
# last pitch: that is a **Markov chain**, in which what comes depends on what was there just before. At the token just
# before, which for three of the voices is their neighbor above, now. And at which quarter of the beat we are in:


# %%
def contexts(piece):  # for each token: itself, and three things to look at
    ids, pitch, rows = encode(piece).tolist(), piece.pitch.tolist(), []
    for number, token in enumerate(ids):
        step, voice = divmod(number, 4)
        own = pitch[step - 1][voice] if step else 0
        before = ids[number - 1] if number else BEGIN
        rows.append((token, (voice, own), before, step % 4))
    return rows


counts = [defaultdict(Counter) for _ in range(4)]  # by how many things it looks at
for each in pieces.train:
    for token, *context in contexts(each):
        for size in range(4):
            counts[size][tuple(context[:size])][token] += 1

# %% [markdown]
# Where a context was rarely seen, its table leans on the coarser one, as if that had been seen five times more. If a
# context came 3 times, 2 of them with this token, to which the coarser table gives 0.1, the probability is $(2 + 5
# \cdot 0.1) / (3 + 5) = 0.31$.


# %%
def probability(token, context, size, trust=5.0):
    if size < 0:
        return 1 / V  # blind
    seen = counts[size][tuple(context[:size])]
    coarser = probability(token, context, size - 1)
    return (seen[token] + trust * coarser) / (seen.total() + trust)


# %% [markdown]
# Guess what a note costs by the best of these tables, if blind guessing costs $3.91 \cdot 3.71 = 14.5$ nats.

# %%
asked = []
for each in pieces.test:
    asked += contexts(each)[: 4 * len(each) // N * N]  # the tokens of the test windows
tables = {}  # name → nats per note
names = "blind", "how often", "Markov chain", "+ token before", "+ beat"
for size, name in enumerate(names, start=-1):
    nats = [-math.log(probability(token, context, size)) for token, *context in asked]
    per_token = sum(nats) / len(nats)
    tables[name] = per_token * tokens_per_note
    print(f"{name:15} {per_token:5.3f} nats per token, {tables[name]:5.2f} per note")

# %% [markdown]
# Knowing how often each token comes saves nine of the fourteen and a half nats: most of them say HOLD. The voice's own
# last pitch is worth another nat and a half, the token before one more, and the quarter of the beat half a nat: most
# notes begin on a beat. The rest is a choice among $e^{2.57} = 13$ equally likely notes. A model that does not get
# below 2.57 has not learned music; it has learned to count.

# %% [markdown]
# ## 4 A vector for each distance, without the memory
#
# Lesson 05 adds what a distance is worth to the score, and Shaw et al. (2018) let the query have its say: a learned
# vector $e$ for each distance, which the query meets like a key. They clip: all distances beyond a few share one
# vector. Huang et al. (2019) did it for music, whose memories are long, and gave each distance a vector of its
# own. Next to $q_i \cdot k_j$,
# *what* I look for, the score gets a second part, *when* I look for it, with a vector for each distance to the past,
# $-(n-1) \dots 0$, in each head:
#
# $$\text{score}_{ij} = \frac{q_i \cdot k_j + q_i \cdot e_{j-i}}{\sqrt{d_k}} \qquad j \le i$$
#
# A bass can prefer 3 tokens ago, a soprano 64. Done as it is written, each pair of tokens picks its vector. The vectors
# are the rows of one matrix per head, the farthest distance first, so distance 0 is the *last* row:


# %%
def picked(q, e):  # (heads, n, d_k) each
    i = torch.arange(q.shape[1])  # (n,)
    ago = (i[:, None] - i).clamp(min=0)  # (query, key): i − j
    vector = e[:, len(i) - 1 - ago]  # (heads, query, key, d_k): one for each pair
    return torch.einsum("hid,hijd->hij", q, vector)  # (heads, query, key)


# %% [markdown]
# That makes $n^2 d_k$ numbers per head, of 4 bytes each. Work out what it is per layer for the paper's example, 2,048
# tokens and $d = 512$ in 8 heads. And a vector for each *distance*? A score for each pair?
#
# <details><summary>The answer</summary>
#
# A vector for each pair: $4 \cdot 2048^2 \cdot 512$ bytes, 8.6 GB. A vector for each distance: $4 \cdot 2048 \cdot
# 512$, 4.2 MB. A score for each pair in 8 heads: $4 \cdot 2048^2 \cdot 8$, 134 MB. The scores stay; lesson 34 is about
# them.
# </details>
#
# There are only $n$ different vectors. So let each query meet each of them once: $B = QE^\top$, by query and
# *distance*. Column $c$ belongs to $n - 1 - c$ tokens ago. Attention wants $S$, by query and *key*. Key $j$ is $i - j$
# tokens before query $i$, so
#
# $$S_{ij} = B_{i,\; n-1-(i-j)}$$
#
# ### 4.1 Four queries
#
# A matrix product and a *reshape* turn one into the other: **skewing**. In the picture the number **32** means: query
# 3, 2 tokens ago. (Queries and keys are counted from 1 in the pictures only, so that each number has two digits.)

# %% jupyter={"source_hidden": true}
figures.skewing(4, 4, title="Pad, reshape, drop: every score lands under its key")

# %% [markdown]
# In the last matrix, row 3 reads 32, 31, 30: key 1 is two back, key 2 one back, key 3 is the query itself. Above the
# diagonal are leftovers from other rows (gray). They do no harm *if* a causal mask hides the future, and are wrong
# without one.
#
# ### 4.2 Arithmetic on addresses
#
# Why does it work? In memory a matrix is one long line, row after row. The number in row $i$, column $c$ of $B$ has the
# address $i\,n + c$. So $S_{ij}$ is found at
#
# $$i\,n + n - 1 - i + j \;=\; i\,(n - 1) + j + (n - 1).$$
#
# Read it as the address in a matrix: rows begin $n - 1$ apart. But a matrix of $n$ columns has rows that begin $n$
# apart. One number per row is missing! So give each row of $B$ one more, on its left. Rows of $B$ now begin $n + 1$
# apart, everything has moved by one, and $S_{ij}$ is at
#
# $$i\,(n + 1) + 1 + n - 1 - i + j \;=\; i\,n + j + n.$$
#
# Drop the first $n$ numbers of the line, and it is $i\,n + j$: row $i$, column $j$ of a matrix with $n$ columns. That
# is all: no index, no copy per pair.
#
# Nothing in it asks for as many queries as keys. If $n$ queries are the *last* of $m$ keys, query $i$ is token $m - n +
# i$. Try it on paper before you open the answer: where is $S_{ij}$ now, and how many numbers are to be dropped?
#
# <details><summary>The answer</summary>
#
# Key $j$ is $m - n + i - j$ tokens ago, which is column $m - 1 - (m - n + i - j) = n - 1 - i + j$: the same as before.
# Padded rows begin $m + 1$ apart: $i\,(m + 1) + 1 + n - 1 - i + j = i\,m + j + n$. Again drop $n$, and cut rows
# of $m$.
# </details>


# %% tags=["recorded"]
def skew(by_distance):  # (..., query, distance), the farthest first
    n, m = by_distance.shape[-2:]  # n queries, the last of m keys
    line = F.pad(by_distance, (1, 0)).flatten(-2)  # (..., n · (m + 1)): one long line
    return line[..., n:].unflatten(-1, (n, m))  # (..., query, key)


# %% [markdown]
# Three queries, the last of six keys. The first of them is token 3 of 0 to 5, so key 0 is three tokens ago: **13**.

# %% jupyter={"source_hidden": true}
figures.skewing(3, 6, title="Three queries, six keys: the same line, cut elsewhere")

# %% [markdown]
# Does it agree with the picking, where the mask looks?

# %%
q, e = torch.randn(2, 4, 256, 32)  # (heads, n, d_k) each
past = torch.ones(256, 256).tril().bool()  # (query, key)
prove_equal(skew(q @ e.mT)[:, past], picked(q, e)[:, past],
            tolerance=1e-4, what="Skewed and picked")
last = q[:, -100:] @ e.mT  # (heads, 100, n): the last 100 queries of 256 keys
prove_equal(skew(last)[:, past[-100:]], picked(q, e)[:, -100:][:, past[-100:]],
            tolerance=1e-4, what="The same for the last 100 queries")

# %% [markdown]
# The largest tensor shrinks from $n^2 d_k$ numbers to $n^2 + n$, with the padding. And the backward pass needs only $q$
# and $e$, of $n\,d_k$ numbers each, where picking keeps a vector for each pair: the paper's step from $O(n^2 d)$
# to $O(n d)$.
#
# (The paper, in §3.5, cuts a long piece into blocks of $N$ tokens, each of which sees itself and the block before:
# $2nN$ scores instead of $n^2$. A block's queries are the last $N$ of $2N$ keys, which `skew` can do.)

# %% [markdown]
# ## 5 A model that learns chorales
#
# ### 5.1 The model and its rivals
#
# The model is a decoder as in lesson 10: two pre-norm blocks with four heads. Besides **relative**, with `skew`, it can
# have three other kinds of positions, all from lesson 05. **Rotary** turns queries and keys, so their product depends
# on the distance, without a table. **Learned** and **sinusoidal** add a vector for each *position* to the token. A
# control for 5.2, **numbers**, has one number instead of a vector for each distance and head.
#
# Every model is told what singers see in their notes: whose turn it is, and which quarter of the beat it is. The
# learned tables begin at 0, so that a row that is never trained adds nothing.

# %% tags=["recorded"]
d_model, heads, d_k, LONGEST = 64, 4, 16, 512


class SelfAttention(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.project = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.rotate = Rotary(d_k) if kind == "rotary" else nn.Identity()
        self.e = None
        if kind in ("relative", "numbers"):
            width = d_k if kind == "relative" else 1
            self.e = nn.Parameter(torch.zeros(heads, LONGEST, width))

    def forward(self, x, mask):  # (batch, n, d_model)
        n, q_k_v = x.shape[1], self.project(x)  # (batch, n, 3 · d_model)
        q, k, v = rearrange(q_k_v, "b n (three h d) -> three b h n d", three=3, h=heads)
        q, k, bias = self.rotate(q), self.rotate(k), None  # (batch, heads, n, d_k) each
        if self.e is not None:  # a number is the same for all queries
            asks = q / d_k**0.5 if self.e.shape[-1] > 1 else torch.ones_like(q[..., :1])
            bias = skew(asks @ self.e[:, -n:].mT)  # (batch, heads, n, n)
        mixed, self.weights = attention(q, k, v, mask, bias=bias, return_weights=True)
        return self.out(mixed.transpose(1, 2).flatten(2))  # (batch, n, d_model)


# %% [markdown]
# A block adds its residuals:

# %% tags=["recorded"]
class Block(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.attention = SelfAttention(kind)
        self.network = FeedForward(d_model, 4 * d_model, activation="gelu")
        self.norm_1, self.norm_2 = LayerNorm(d_model), LayerNorm(d_model)

    def forward(self, x, mask):  # (batch, n, d_model)
        x = x + self.attention(self.norm_1(x), mask)
        return x + self.network(self.norm_2(x))


# %% [markdown]
# Now the model. Token $i$ is guessed from those before it, so the input is shifted by one, and `turn` is the voice, and
# the quarter of the beat, of the token that is to be *guessed*. (Sinusoids times 0.3 are about as large as the tokens'
# vectors.)


# %% tags=["recorded"]
class ChoraleModel(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.token, self.turn = nn.Embedding(V, d_model), nn.Embedding(16, d_model)
        self.position = torch.zeros(LONGEST, d_model)
        if kind == "sinusoidal":
            self.position = 0.3 * sinusoidal(LONGEST, d_model)
        if kind == "learned":
            self.position = nn.Parameter(self.position)
        self.blocks = nn.ModuleList(Block(kind) for _ in range(2))
        self.norm, self.output = LayerNorm(d_model), nn.Linear(d_model, V)
        self.mask = causal()
        for table in (self.token, self.turn):  # a spread of 1 is slow to unlearn
            nn.init.normal_(table.weight, std=0.2)

    def forward(self, ids):  # (batch, n), beginning before a beat
        n = ids.shape[1]
        x = self.token(ids) + self.turn(torch.arange(n) % 16) + self.position[:n]
        for block in self.blocks:
            x = block(x, self.mask)  # (batch, n, d_model)
        return self.output(self.norm(x))  # (batch, n, V)


# %% [markdown]
# A batch is a few windows, cut from random pieces; each begins before a beat. With `transpose` each is sung a few
# semitones higher or lower, as far as its pitches allow (5.3 will use it); HOLD stays HOLD.

# %% tags=["recorded"]
def draw(rows, size, transpose):  # → (size, N + 1)
    batch = []
    for number in torch.randint(len(rows), (size,)).tolist():
        row = rows[number]
        beats = (len(row) - N - 1) // 16 + 1
        start = 16 * torch.randint(beats, ()).item()
        sung, low, high = row[row >= FIRST], 0, 0
        if transpose:  # all notes stay between the lowest and the highest pitch
            low = max(-5, int(FIRST - sung.min()))
            high = min(6, int(V - 1 - sung.max()))
        shift = torch.randint(low, high + 1, ()).item()
        row = row[start : start + N + 1]  # (N + 1,)
        batch.append(torch.where(row >= FIRST, row + shift, row))
    return torch.stack(batch)


# %% [markdown]
# We train as in lesson 10. The tables of positions and distances may have another learning rate than the rest (5.2):

# %% tags=["recorded"]
def fit(kind="relative", seed=0, steps=500, transpose=False, lr=6e-3, faster=1):
    torch.manual_seed(seed)
    model, others, tables = ChoraleModel(kind), [], []
    for name, weights in model.named_parameters():
        (tables if name.endswith((".e", "position")) else others).append(weights)
    rows = [row for row in sequences(pieces.train) if len(row) > N]
    groups = [{"params": others}, {"params": tables}]
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.98), fused=True)
    for step in progress(range(steps), f"training, {kind}"):
        warm_up, decay = min(1, (step + 1) / 30), 1 - 0.9 * step / steps
        for group, times in zip(optimizer.param_groups, (1, faster), strict=True):
            group["lr"] = times * lr * warm_up * decay
        batch = draw(rows, 4, transpose)  # (4, N + 1)
        loss = F.cross_entropy(model(batch[:, :-1]).mT, batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


# %% [markdown]
# The test keeps the cost of each token, for later:


# %% tags=["recorded"]
@torch.no_grad()
def cost(model, rows):  # (rows, n + 1) → (rows, n): nats
    parts = [F.cross_entropy(model(part[:, :-1]).mT, part[:, 1:], reduction="none")
             for part in rows.split(16)]
    return torch.cat(parts)


# %% [markdown]
# Train one. 500 batches of four windows are half a million tokens, about twice the training set:

# %% tags=["nbval-ignore-output"]
model = fit()
nats = cost(model, test)  # (windows, N)
print(f"{sum(each.numel() for each in model.parameters()):,} parameters, "
      f"{nats.mean():.3f} nats per token, {nats.mean() * tokens_per_note:.2f} per note")
expect("Nats per note", nats.mean().item() * tokens_per_note, 2.2, 2.5)

# %% [markdown]
# ### 5.2 Is it the distances?
#
# One run is an anecdote. `data/voices.py` has trained this model and its rivals by the cells of this lesson, three
# seeds each.

# %% jupyter={"source_hidden": true}
from txlib.paths import DATA

recorded = json.loads((DATA / "voices.json").read_text())  # by question, name, seed


def spread(nats):  # per token, of each seed → per note: least, mean, greatest
    nats = [each * tokens_per_note for each in nats]
    return min(nats), sum(nats) / len(nats), max(nats)


positions = recorded["positions"]
per_note = {kind: spread([run["nats"] for run in runs.values()])
            for kind, runs in positions.items()}

# %% jupyter={"source_hidden": true}
predict("music-positions", "Which two kinds of positions will cost least?",
        "relative and rotary", "relative and learned", "learned and sinusoidal",
        "all about alike")

# %% [markdown]
# Have you decided?

# %% tags=["hide-output"] jupyter={"source_hidden": true, "outputs_hidden": true}
figures.position_costs(
    per_note, tables["+ beat"],
    title="Trained alike, these distances cost less than positions",
)

# %% jupyter={"source_hidden": true}
predicted("music-positions", "relative and rotary")

# %% [markdown]
# The two kinds that know the distance win in every seed; the other two, after the same batches, are about where
# counting ends (dotted). Rotary does as well as relative, without a table and without skewing: the seeds differ more
# than the two kinds do.
#
# Is it the distance, or the query's say in what it is worth? **Numbers** know the distance and ask no query: trained
# alike, they cost what positions cost. So is it the say? Not so fast. Adam moves a number by about the learning rate
# per step, $500 \cdot 0.006 \cdot 0.55 = 1.65$ in all (the rate falls to a tenth); the $d_k$ numbers of a vector move
# together and get further. So let the tables alone learn 4 or 16 times as fast, `fit(faster=16)`. Guess first: where
# will the numbers end?

# %% tags=["hide-output"] jupyter={"source_hidden": true, "outputs_hidden": true}
figures.faster_tables(recorded["faster"], tokens_per_note,
                      title="A number for each distance is enough, if it can learn fast")

# %% [markdown]
# With tables 16 times as fast, numbers and vectors alike cost 2.21 to 2.25 nats per note, less than rotary, which has
# no table to speed up. Learned positions stay above 2.5 at any of these rates. So what pays is knowing the distance;
# that the query has a say brings nothing here. (Our explanation: eight heads with numbers of their own say enough.) And
# beware of a weak control: at the common rate this one failed because it learned too slowly, and would have told us the
# opposite. (We go on with one rate for all.)
#
# Why distances? "The soprano, now: 3 ago, if I am the bass" is one rule at all positions. With positions it has to be
# learned anew for each of the bass's 64 in a window. That is our explanation.


# %% [markdown]
# ### 5.3 Is a transposed piece the same to it?
#
# Sing a piece a few semitones higher, and to the ear it is the same piece: *transposed*, musicians say. To our tokens
# it is another one. A piece uses mostly seven of the twelve notes of an octave, its *key*. (Not the keys of attention,
# nor those of a piano.) What do the test pieces cost when they are moved? And what if the training batches are moved
# as well, `fit(transpose=True)`, each by a random shift?

# %% jupyter={"source_hidden": true}
figures.by_shift(recorded["keys"], tokens_per_note,
                 title="Training on moved pieces: worse at home, better at most moves")

# %% [markdown]
# The chorales are in many keys, but in some far more often than in others. Trained on them as written, a shift of one
# semitone costs more than half a nat per note. And look at *two* semitones: a third of that. Two keys that are two
# semitones apart have five notes in common, three apart four, one apart only two. Our reading: the model has learned
# which notes go together, and not that a key can be moved. (Another reading, which nothing here rules out: two
# semitones lead from common keys to common ones, one semitone to rare ones.)
#
# Trained on pieces moved at random, it costs nearly a fifth of a nat more at home. (Our explanation:
# the same 500 batches have to do for many times as many pieces.) Averaged over the six moves it costs less in every
# seed, by 0.24, 0.49 and 0.24 nats, and hardly more than at home. By two semitones down it gains nothing in two of the
# three seeds.

# %% [markdown]
# ## 6 Finish a chorale, and hear it
#
# We have a model; let it go on from two bars that it has never seen, token by token. `rule` may forbid tokens (section
# 7.2), and the window slides by whole beats.


# %% tags=["recorded"]
@torch.no_grad()
def compose(model, tokens, count, temperature=1.0, rule=None, window=N, seed=0):
    generator = torch.Generator().manual_seed(seed)
    line = F.pad(tokens, (1, 0), value=BEGIN)  # (1 + length,)
    for _ in range(count):
        first = 16 * math.ceil(max(0, len(line) - window) / 16)
        logits = model(line[None, first:])[0, -1] / temperature  # (V,)
        logits[[BEGIN, END]] = -torch.inf
        if rule is not None:
            logits = logits.masked_fill(~rule(line[1:]), -torch.inf)
        token = torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)
        line = torch.cat([line, token])  # (1 + length,)
    return line[1:]


# %% [markdown]
# Two bars of Bach, then four of the model. The third line writes it as MIDI: open the file `mine.mid` in a notation
# program, and you see it as a score.

# %% tags=["nbval-ignore-output"]
primer = tokens[: 2 * 64]  # (128,)
finished = compose(model, primer, 4 * 64, temperature=0.9)  # (384,)
write_midi(decode(finished), "mine.mid")
display(plots.piano_roll(
    decode(finished), mark=("the model", 32), title="Two bars of Bach, then the model",
    alt="Four voices over six bars; from the third on they are the model's.",
))
listen(decode(finished))

# %% [markdown]
# Listen for where a line of the hymn ends. Bach's come to a stop every two bars or so, often on a long note, and one
# hears the stop coming. Does yours?
#
# **Temperature** divides the logits before the softmax (lesson 11). What would you hear at 0.3, and at 1.5? One bar of
# Bach and two of the model each time, first cold, then hot:

# %% tags=["nbval-ignore-output"]
cold = compose(model, primer, 4 * 64, temperature=0.3)
hot = compose(model, primer, 4 * 64, temperature=1.5)
display(listen(decode(cold)[16:64]), listen(decode(hot)[16:64]))

# %% [markdown]
# Can what you hear be measured? Take the four voices at each beat, as a *chord*: notes that sound together. Forget the
# octaves, so that each C counts as the same note (`p % 12`), and who sings what. What fraction of the chords in a piece
# occurs anywhere in the training set?

# %% tags=["recorded"]
def chords(piece):  # for each beat, its notes within an octave
    beats = piece.pitch[::4].tolist()
    return [tuple(sorted({pitch % 12 for pitch in beat if pitch})) for beat in beats]


known = {chord for each in pieces.train for chord in chords(each)}


def habits(piece):  # how many chords are known, how many notes begin on a beat
    found = chords(piece)
    familiar = sum(chord in known for chord in found) / len(found)
    return familiar, (piece.onset[::4].sum() / piece.onset.sum().clamp(min=1)).item()


# %% [markdown]
# We compare Bach's habits with the model's:

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
def tell(name, familiar, on_beat):
    print(f"{name:16} {familiar:6.1%} of chords known, {on_beat:.0%} of notes on beats")


tell("Bach, unseen", *torch.tensor([habits(each) for each in pieces.test]).mean(dim=0))
for temperature, line in {0.3: cold, 0.9: finished, 1.5: hot}.items():
    tell(f"temperature {temperature}", *habits(decode(line)[32:]))

# %% [markdown]
# Cold, it plays it safe: known chords, nearly every note on a beat. Hot, it draws what it considers unlikely: a quarter
# of its chords are not among Bach's, and its notes scatter. (One draw each, of sixteen chords: a quarter is four.)
#
# ### Longer than any window
#
# It was trained on windows of four bars. What happens in bars five to eight of a longer one? First the loss by bar, of
# the recorded runs.

# %% jupyter={"source_hidden": true}
predict("music-beyond", "Which kinds will cost much more from bar five on?",
        "only learned", "learned and sinusoidal", "all but relative", "all four")

# %% [markdown]
# Have you decided?

# %% tags=["hide-output"] jupyter={"source_hidden": true, "outputs_hidden": true}
figures.loss_by_bar(positions, trained=4, title="Positions end where training ended; distances go on")

# %% jupyter={"source_hidden": true}
predicted("music-beyond", "learned and sinusoidal")

# %% [markdown]
# Up to bar 4 the kinds that know positions pay up to 0.1 nats per token more, from bar 5 on 0.2 to 0.3. Rows of the
# learned table beyond the 256th have never been trained. Sinusoids have a row for every position, and do no better (our
# explanation: the model has never learned what those rows mean). Relative and rotary hardly notice, though from bar 5
# on they meet distances that never occurred in training. (With a window that hides these they gain 0.01 to 0.02 nats
# per token, and the other two gain nothing; our explanation: their own position is unknown. All this is in the record.)
#
# And look at the zigzag: odd bars cost more than even ones. Our reading: a line of the hymn takes two bars, and the
# second ends on a long note, which costs little to hold. The song's form, seen in a loss.
#
# Now hear it. `data/voices.py` has given four bars of a chorale to the models with learned and with relative
# positions, and let each write bars five to eight, with all of it in view. Which of the two clips is which?

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
four_bars = encode(pieces.test[20])[:N]  # (256,)
for name, kind in {"the first": "learned", "the second": "relative"}.items():
    written = torch.tensor([int(token) for token in recorded["beyond"][kind]["0"].split()])
    written = decode(torch.cat([four_bars, written]))[64:]  # four bars
    tell(name, *habits(written))
    display(listen(written))

# %% [markdown]
# The first is the one with learned positions. At positions that it has never met it goes astray: about half of its
# chords are known, of the other's nearly all. (One piece and one draw; the loss above is the fair comparison.)

# %% [markdown]
# ## 7 What it looks at, rules, and the library
#
# ### 7.1 Where the heads look
#
# The model works; what do its heads do? Since a distance has a meaning, we can ask each head how much weight it gives,
# on average, to tokens a given distance ago: the mean of a diagonal of its weights. A head that looked everywhere alike
# would give each of these distances about half a percent; we count in multiples of that **even weight**.


# %%
@torch.no_grad()
def weight_by_distance(model, rows):  # → (heads of all layers, N / 2)
    model(rows[:, :-1])
    found = []
    for block in model.blocks:
        mean = block.attention.weights.mean(dim=0)  # (heads, N, N)
        for head in mean[:, N // 2 :]:  # (N / 2, N): queries that can look so far back
            along = [head.diagonal(N // 2 - ago).mean() for ago in range(N // 2)]
            found.append(torch.stack(along))  # (N / 2,)
    return torch.stack(found)


even = (1 / torch.arange(N // 2 + 1, N + 1)).mean()
times = weight_by_distance(model, test[:32]) / even  # (8, N / 2)

# %% [markdown]
# White is the even weight; 1 is twice as much, 2 four times, 3 eight times *or more*; −1 is half. (The model guesses
# token $i + 1$ at position $i$: "2 ago" is counted from the token that is guessed.)

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}
head_names = [f"layer {layer}, head {head}" for layer in (1, 2) for head in (1, 2, 3, 4)]
figures.preferred_distances(
    times, head_names,
    title="Layer 1 picks a few distances; layer 2 leans, a little, on many",
)

# %% [markdown]
# Head 1 looks 2 tokens ago, more than eight times as much as evenly, and head 2, among others, 3 tokens ago: to the
# bass these are the alto and the soprano, now. Heads 3 and 4 look 4, 8 and 16 tokens ago: the voice itself, one step,
# half a beat and a beat ago. Layer 2 has no such favorites; what it likes best gets two to four times the even weight,
# and comes back about every 8 tokens, half a beat. (Heads may change places, and habits, in your run.) We told no head
# that there are voices, steps and beats in a distance. They found it in the chorales.
#
# There can be no head for "four bars ago": that is 256 tokens, and only the last token of a window sees so far. The
# peaks of section 1 need longer windows.
#
# ### 7.2 Rules: the melody is given
#
# Bach was given the melody. Force the soprano, and let the model sing the other three. A rule is a mask over the
# *vocabulary*: before each token is drawn, what is forbidden gets the logit −∞. At the soprano's turn a single token is
# allowed, the melody's. The others must stay within what a voice can sing, which we take from the training set. Four
# bars: Bach's soprano, and three voices that have never seen Bach's:

# %% tags=["nbval-ignore-output"]
sung = torch.cat([encode(each).view(-1, 4) for each in pieces.train])  # (all steps, 4)
lowest = torch.where(sung >= FIRST, sung, V).amin(dim=0).tolist()  # four tokens
highest = sung.amax(dim=0).tolist()
melody = tokens.view(-1, 4)[:, 0]  # (steps,)


def given_melody(line):  # (length,) → (V,): what may come next
    step, voice = len(line) // 4, len(line) % 4
    token = torch.arange(V)
    if voice == 0:
        return token == melody[step]
    return (token == HOLD) | ((token >= lowest[voice]) & (token <= highest[voice]))


ours = decode(compose(model, tokens[:0], 4 * 64, temperature=0.7, rule=given_melody))
prove_equal(ours.pitch[:, 0], piece.pitch[:64, 0], what="The soprano given and sung")
listen(ours)

# %% [markdown]
# Do the three listen to the soprano at all? Ask the other way around. Take Bach's own test pieces, and let the soprano
# come in a beat late, against three voices that go on as if nothing had happened. If the model did not listen, their
# notes would cost what they cost before:


# %% tags=["nbval-ignore-output"]
def by_voice(rows):  # (windows, N + 1) → (4,): nats per note
    spent = cost(model, rows).view(len(rows), -1, 4).sum(dim=(0, 1))
    return spent / (targets >= FIRST).view(len(rows), -1, 4).sum(dim=(0, 1))


late = targets.view(len(test), -1, 4).clone()  # (windows, steps, 4)
late[..., 0] = late[..., 0].roll(4, dims=1)  # four steps late
late = torch.cat([test[:, :1], late.flatten(1)], dim=1)  # (windows, N + 1)
on_time, when_late = by_voice(test), by_voice(late)
for voice, name in enumerate(("soprano", "alto", "tenor", "bass")):
    after = f", {when_late[voice]:.2f} when the soprano is late" if voice else ""
    print(f"{name:7} {on_time[voice]:.2f} nats per note{after}")

# %% [markdown]
# They do listen. And the first numbers say who is hard to guess: the soprano costs
# most, the bass least. (Our explanation: the soprano begins each step without knowing what the others will sing; the
# bass can listen to three voices.)
#
# One thing the model cannot do: it writes from left to right, and knows of the melody only what has been sung. Bach
# knew where it was going. The paper's accompaniments for piano come from an encoder that reads the whole melody first;
# other models fill gaps in any order, as in lesson 14.

# %% [markdown]
# ### 7.3 Open the library
#
# `SkewedBias` is the library's `skew` with its distances. (A layer without a causal mask refuses it: the leftovers
# would be wrong.) Both compute the same; the library's `skew` is shown below the check.
# (`txlib.models.MusicTransformer` is a GPT with this bias, and with a vector for the voice and the beat.)

# %%
from txlib.attention import SkewedBias, relative
from txcourse.lesson import show_source

bias, q = SkewedBias(4, 16, max_length=128), torch.randn(1, 4, 128, 16)
prove_equal(bias(q, 128).tril(), (skew(q @ bias.distances.mT) / 4).tril(),
            what="Skewed, the library's and ours,")
show_source(relative.skew)

# %% [markdown]
# A Music Transformer is bundled, trained by `txlib train music` on pieces moved to all keys: 128 wide, three layers,
# and 24 times as many tokens as yours. Its nats per note, by the recipe's own count.
# (Compare within this list only: it counts whole pieces, and its Markov chain looks at the last 8 tokens.) Let it
# finish the same two bars. Do its lines end where one expects an end?

# %% tags=["nbval-ignore-output"]
from txlib import load_pretrained
from txlib.data import shipped
from txlib.generation import Composer

result = json.loads((shipped("bach") / "result.json").read_text())
for name, each in result["nats_per_note"].items():
    print(f"{name:17} {each:5.2f} nats per note")
bach = Composer(load_pretrained(shipped("bach"), dtype=torch.float32))
longer = bach.continue_(piece[:32], 64, do_sample=True, temperature=0.9, seed=0)
tell("the library's", *habits(longer[32:]))
listen(longer)

# %% [markdown]
# The same from a terminal, as a score or as sound; the last line harmonizes a melody of yours, from a MIDI file:
#
# ```sh
# txlib compose out.mid --primer bwv269
# txlib compose out.wav --primer bwv269 --temperature 0.8
# txlib compose out.mid --melody mine.mid
# ```

# %% [markdown]
# ## 8 Quiz
#
# Decide first, then open an answer.
#
# **1. You cut time into thirty-seconds instead of sixteenths: twice as many steps, the same music. A good model is
# trained on both. What happens to its nats per token and per note?**
#
# <details><summary>A. Both are about halved</summary>
#
# A note is as hard to guess as before.
# </details>
# <details><summary>B. Per token it is about halved, per note it stays about the same</summary>
#
# Right. Twice as many tokens share the same surprise, and nearly all of the new ones are HOLD. That is why nats per
# token of two papers can't be compared unless their grids are the same.
# </details>
# <details><summary>C. Both stay</summary>
#
# The new HOLDs cost next to nothing, and there are many.
# </details>
#
# **2. In the model with learned positions, why do bars 5 to 8 suffer, and what would fix it?**
#
# <details><summary>A. Their rows were never trained; a window on what may be seen fixes it</summary>
#
# The first half is right. But the row is added to the token, whatever may be seen.
# </details>
# <details><summary>B. Their rows were never trained; training on longer windows fixes it, up to that length</summary>
#
# Right. A position that never occurred cannot be known; a distance that occurred is known at any position.
# </details>
# <details><summary>C. The model is too small</summary>
#
# The relative one is as small.
# </details>
#
# **3. You want the model to end its piece on a given bass note, eight bars ahead. Is a mask on the last token enough?**
#
# <details><summary>A. Yes: what is forbidden has probability 0</summary>
#
# It will sing the note. But nothing before leads there: no token before has known of it.
# </details>
# <details><summary>B. No: it must know of the goal on the way, from an encoder or in another order</summary>
#
# Right. A mask at one moment changes no moment before it.
# </details>
# <details><summary>C. No: masks work for the soprano only</summary>
#
# A mask can be set at any token.
# </details>

# %% [markdown]
# ## 9 Summary
#
# - Four voices on a grid are a line of tokens in which each distance means a voice and a time. HOLD tells a long note
#   from a repeated one.
# - Chorales repeat themselves after whole bars, most of all after 4, 6, 8 and 12 (our reading: whole
#   lines of the hymn come back).
# - Nats per note can be compared between grids; nats per token cannot.
# - **Skewing** drops the first $n$ numbers of a padded line: $i(n+1) + 1 + n - 1 - i + j = in + j + n$. It works for
#   $n$ queries that are the last of $m$ keys, and so for blocks. It turns $n^2 d_k$ numbers into $n^2$, and what is
#   stored about distances into $n\,d_k$.
# - After the same training, distances (relative or rotary) cost less than positions (learned or sinusoidal), and keep
#   what they know beyond the trained length, where positions fail at once. One number per distance and head does as
#   well as a vector, once it may learn faster.
# - Rules are masks over the vocabulary. They bind one token at a time, and do not plan.
#
# In the paper the order is the same: on these chorales relative attention beats sinusoids (§4.1). Its tokens are
# the pitches that sound, on the same grid but without HOLD, so don't compare its nats per token with ours.
#
# **Read** Huang et al. 2019, *Music Transformer*, [arXiv:1809.04281](https://arxiv.org/abs/1809.04281), sections 3.4,
# 3.5 and 4.1. Huang et al. 2017, *Counterpoint by Convolution*, [arXiv:1903.07227](https://arxiv.org/abs/1903.07227),
# on voices written in any order. Hadjeres et al. 2017, *DeepBach*,
# [arXiv:1612.01010](https://arxiv.org/abs/1612.01010), section 2.
#
# **Do** the exercise [22_music](../exercises/exercise_22_music.ipynb). Then go on to [23 Sets](23_sets.ipynb).
