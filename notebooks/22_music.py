# %% [markdown] lesson={"part": "III Beyond text", "builds": "chorales as tokens, distances that mean something, skewing as arithmetic on addresses, a chorale finished and heard"}
# # 22 · Music: distances that mean something
#
# **After this lesson you will be able to**
#
# - write four-part music as tokens, tell held notes from repeated ones, and say what a distance between tokens means;
# - measure how a piece of music quotes itself;
# - derive the skewing of relative attention as arithmetic on addresses, for whole texts and for blocks, and count the
#   memory that it saves;
# - train a small Music Transformer, and judge it in nats per note beside guessing, counting and a Markov chain;
# - let it finish a chorale, hear it, see what its heads look at, and give it rules to keep.
#
# **You need** lessons 05 (above all its section 6), 06 and 08. You need not read music. **It takes** about 95 minutes
# to read, try and hear; all cells together run in about a minute on a laptop.

# %% [markdown]
# ## 1 The problem: music quotes itself
#
# A *chorale* is a hymn: a melody for the verses of a song, sung in church. The melody is often older than J. S. Bach
# (1685 to 1750); what he wrote are three more voices, to be sung below it at the same time. The four voices are called
# *soprano*, *alto*, *tenor* and *bass*, from high to low, and each sings one note at a time. This lesson needs:

# %% tags=["recorded"]
import json

import torch
import torch.nn.functional as F
from IPython.display import Audio
from torch import nn

from txlib import plots
from txlib.attention import attention, block_local, causal
from txcourse import figures
from txcourse.lesson import expect, progress, prove_equal, show_source
from txlib.data import chorales
from txlib.layers import FeedForward, LayerNorm
from txlib.music import Piece

torch.set_num_threads(1)                             # for models this small, more threads only wait

# %% [markdown]
# Written music is a grid: time to the right, pitch upwards. Time is counted in *beats*, which are what a foot taps to;
# in most chorales four of them make a *bar*. Hardly any note is shorter than a quarter of a beat, a *sixteenth* of such
# a bar. So we cut time into sixteenths: 4 *steps* per beat, 16 per bar. *Pitch*, how high a note is, is a number, as in
# MIDI, the language of electronic instruments: 60 is the C in the middle of a piano, and 1 more is the next key of the
# piano, black or white (a *semitone*). Twelve semitones up, an *octave*, it is called C again. (A name like bwv227.11
# is a number in the catalogue of Bach's works.)

# %% tags=["recorded"]
pieces = chorales()
piece = next(each for each in pieces.test if each.name == "bwv227.11")
print(f"{len(pieces.train)} chorales to learn from, {len(pieces.test)} to test on")
print(f"{piece.name}: {len(piece)} steps")
print("pitches of its first beat, a row for each sixteenth, a column for each voice:")
print(piece.pitch[:4])

# %% [markdown]
# As a picture, a *piano roll*: each note is a bar of colour, as long as it lasts. The grey lines stand where a musical
# bar begins. (A piece may begin with an *upbeat*, a beat or so before its first whole bar.)

# %%
plots.piano_roll(
    piece[:96], title="Four voices; the highest has the hymn",
    alt="Notes of four voices as coloured bars over six bars. The soprano moves between pitches 64 "
    "and 79, the bass between 45 and 60; most notes last a beat, and most moves are small.",
)

# %% [markdown]
# And as sound. The air of a tone of pitch $p$ vibrates $440 \cdot 2^{(p - 69)/12}$ times per second: 69 is the A that
# orchestras tune to, and an octave up is twice as fast. A pure sine sounds like a whistle. Add sines of two and three
# times its frequency, each softer than the one before, and let it fade: an instrument. (`rise` and `fall` keep it from
# clicking.)


# %%
RATE, STEP = 6000, 0.15                              # numbers per second; seconds per sixteenth


def tone(pitch, steps):                              # one note of so many steps
    t = torch.arange(int(steps * STEP * RATE)) / RATE  # (samples,): seconds
    frequency = 440 * 2 ** ((pitch - 69) / 12)
    wave = sum(torch.sin(2 * torch.pi * h * frequency * t) / h**2 for h in (1, 2, 3))
    rise, fall = (t / 0.02).clamp(max=1), ((steps * STEP - t) / 0.05).clamp(max=1)
    return wave * torch.exp(-t) * rise * fall        # (samples,)


# %% [markdown]
# A piece is the sum of its notes. `piece.notes(voice)` lists those of a voice: first step, length in steps, pitch.


# %%
def listen(piece):
    sound = torch.zeros(int(len(piece) * STEP * RATE) + 1)  # (samples,)
    for voice in range(4):
        for start, steps, pitch in piece.notes(voice):
            wave, first = tone(pitch, steps), int(start * STEP * RATE)
            sound[first : first + len(wave)] += wave
    return Audio(sound.numpy(), rate=RATE)


# %% [markdown]
# Press play. (It is made for a small file, not for beauty.)

# %% tags=["nbval-ignore-output"]
listen(piece[:64])

# %% [markdown]
# Now compare each step of a piece with each other step. Entry $(i, j)$ of its *self-similarity matrix* is the share of
# the four voices that have the same pitch at steps $i$ and $j$:


# %%
def similarity(pitches):                             # (steps, 4)
    return (pitches[:, None] == pitches).float().mean(dim=-1)  # (steps, steps)


again = next(each for each in pieces.train if each.name == "bwv20.7")
plots.heatmap(
    similarity(again.pitch), size=0.018, numbers=False, xlabel="step", ylabel="step",
    title="A dark line beside the diagonal: here the piece repeats itself", bar="voices alike",
    alt="A square of 260 by 260 steps. Dark on the main diagonal, and on a line parallel to it, 96 "
    "steps away, from step 0 to step 95; elsewhere pale patches.",
)

# %% [markdown]
# The main diagonal is each step with itself, and little squares along it are notes that last. A long diagonal line
# beside it says: from here to there, the piece is what it was so many steps ago. That number of steps, its *lag*, is
# the line's distance from the main diagonal.
#
# Here it is 96 steps: after six bars, the first six come again.
#
# Is that one piece's habit, or everybody's? For each lag, average over all chorales. Guess first: at which lags will
# this curve have peaks?


# %%
def by_lag(lag):                               # per cent of voices alike, at steps so far apart
    alike = [(p[lag:] == p[:-lag]).float().mean(dim=-1) for p in pitches if len(p) > lag]
    return 100 * torch.cat(alike).mean().item()


pitches = [each.pitch for each in pieces.train]      # (steps, 4) each
lags = list(range(16, 201, 2))                       # from one bar to twelve and a half
alike = {lag: by_lag(lag) for lag in lags}

# %% [markdown]
# Have you guessed?

# %% tags=["hide-output"] jupyter={"outputs_hidden": true}
plots.lines(
    {"all chorales": ([lag / 16 for lag in lags], list(alike.values()))},
    xlabel="lag (bars of 16 steps)", ylabel="voices alike (%)",
    title="Peaks at whole bars, the tallest at 4, 6, 8 and 12",
    alt="Per cent of voices alike against the lag, mostly 14, with narrow peaks: " + ", ".join(
        f"{alike[lag]:.1f} at {lag / 16:g} bars" for lag in (64, 96, 128, 160, 192)) + ".",
)

# %% [markdown]
# There is a peak at nearly every whole number of bars (eleven has none), and they are narrow: a beat to the side, and
# the curve is back near the 14% of any lag. The tallest stand at *even* numbers of bars, from four on. A line of a
# hymn's verse takes two bars, as a rule. Our reading: what comes back are lines and pairs of lines. (The vertical axis
# does not begin at 0. Most chorales do not repeat themselves as exactly as the one above, so the mean rises by three
# points only.)
#
# No reader of language would expect that: words do not come back after exactly 64 other words. In music *how long ago*
# is information, and a model needs a way to ask for it. That is what Huang et al. (2019) made relative attention
# affordable for, in the *Music Transformer*.

# %% [markdown]
# ## 2 From notes to tokens
#
# A language model wants one line of tokens. Three questions have to be settled.
#
# **In which order?** All four voices of the first step, soprano first, then all four of the second, and so on: four
# tokens for a step, 64 for a bar. (The paper does the same with chorales. For piano music, which has no voices and no
# strict time, it has other tokens: *strike this key*, *let it go*, *wait*, *how loud*.)
#
# **How long is a note?** Suppose each token is simply the pitch that sounds. Then a note held for a beat is four equal
# tokens. So are two notes of half a beat. Here is a melody, written in two ways, which such tokens cannot tell apart:

# %%
for melody in ([(67, 4), (69, 4)], [(67, 2), (67, 2), (69, 4)]):  # pitch, length
    print("pitches", [pitch for pitch, steps in melody for _ in range(steps)], "from notes", melody)
again_struck = sum((each.onset[1:] & (each.pitch[1:] == each.pitch[:-1])).sum().item()
                   for each in pieces.train)
total = sum(each.onset.sum().item() for each in pieces.train)
print(f"\n{total:,} notes to learn from; {again_struck:,} have the pitch of the one before")

# %% [markdown]
# One note in seven would melt into the one before. So a pitch means *strike this pitch now*: begin a note, though
# singers strike nothing. And a token of its own, HOLD, means *go on with what you have*.
#
# **What else?** REST, for silence, and BEGIN, which comes before the first note, so that there is something to guess
# the first note from. (END is for pieces that know when to stop. Ours go on; the library's end.) Then the pitches, from
# the deepest to the highest that occurs.

# %% tags=["recorded"]
BEGIN, END, REST, HOLD, FIRST = range(5)             # FIRST is the token of the deepest pitch
LOW, HIGH = 36, 81                                   # the deepest and the highest pitch that occur
V = FIRST + HIGH - LOW + 1


def encode(piece):                                   # → (4 · steps,)
    token = torch.where(piece.pitch > 0, HOLD, REST)  # (steps, 4)
    return torch.where(piece.onset, piece.pitch - LOW + FIRST, token).flatten()


# %% [markdown]
# Back again. (`Piece` is the library's: pitches, and where they are struck.)


# %%
def decode(tokens):                                  # (4 · steps,) → a piece
    grid = tokens.view(-1, 4)                        # (steps, 4)
    pitch = torch.where(grid >= FIRST, grid - FIRST + LOW, 0)
    for step in range(1, len(grid)):
        pitch[step] = torch.where(grid[step] == HOLD, pitch[step - 1], pitch[step])
    return Piece(pitch, (grid >= FIRST) & (pitch > 0))


# %% [markdown]
# Nothing is lost:

# %%
tokens = encode(piece)                               # (4 · steps,)
prove_equal(decode(tokens).pitch, piece.pitch, what="Pitches before and after")
prove_equal(decode(tokens).onset.float(), piece.onset.float(), what="Strikes before and after")
everything = torch.cat([encode(each) for each in pieces.train])  # (all tokens,)
print(f"{V} tokens; the first beat:", tokens[:16].tolist())
print(f"of {len(everything):,} tokens, {(everything == HOLD).float().mean():.0%} say HOLD")

# %% [markdown]
# ### What a distance means
#
# Between two words, "five tokens ago" says little. Here it says which voice, and when. Fill in the last column before
# you open it:
#
# | tokens ago | for the soprano | for the bass |
# | --- | --- | --- |
# | 4 | soprano, one step ago | bass, one step ago |
# | 16 | soprano, one beat ago | bass, one beat ago |
# | 64 | soprano, one bar ago | … |
# | 3 | alto, one step ago | … |
# | 1 | bass, one step ago | … |
#
# <details><summary>The bass</summary>
#
# 64: the bass, one bar ago. 3: the soprano, *now*. 1: the tenor, now. So multiples of 4 are time in one's own voice,
# and mean the same to everybody. The others mean something else to each voice, because only the voices above have
# spoken in this step.
# </details>
#
# Two consequences. A model must know whose turn it is; we will tell it. And what a distance is worth depends on *who
# asks*: a bass wants the soprano's note of this moment, 3 tokens ago; to a soprano, 3 tokens ago is hardly news. So a
# fixed number for each distance, as in ALiBi, is not enough. The query must have a say.

# %% [markdown]
# ## 3 How much is there to guess?
#
# Before any model, the yardstick. We cut pieces into windows of four bars, 256 tokens, each with the token before it.
# The loss is the negative log-likelihood, *NLL*: $-\ln p$ of the token that came. It can be averaged in two ways:
#
# $$\text{per token: } \frac{1}{n}\sum_i -\ln p_i \qquad\qquad
# \text{per note: } \frac{1}{\text{notes struck}}\sum_i -\ln p_i$$
#
# HOLD is most of the tokens, and easy to guess, so the first number is small and says little. The second is what a
# note costs, with all the holding that follows it. (It would hardly change if we cut time more finely: there would be
# more HOLDs, each nearly free.) Mind this when you compare with papers.

# %% tags=["recorded"]
N = 256                                              # tokens of a window: four bars


def sequences(split):                                # a list of (1 + 4 · steps,)
    return [F.pad(encode(each), (1, 0), value=BEGIN) for each in split]


def windows(split, n=N):                             # (windows, n + 1): whole windows only
    return torch.cat([each.unfold(0, n + 1, n) for each in sequences(split) if len(each) > n])


# %% [markdown]
# The windows to test on:

# %%
test = windows(pieces.test)                          # (windows, N + 1)
right = test[:, 1:]                                  # (windows, N): what is to be guessed
tokens_per_note = right.numel() / (right >= FIRST).sum().item()
print(f"{len(test)} windows to test on; a note for every {tokens_per_note:.2f} tokens")

# %% [markdown]
# Guessing blindly costs $\ln V$ per token. Counting is better. What could a counter look at? At the voice's own last
# pitch: that is a *Markov chain*, in which what comes depends on what was there just before. At the token just before,
# which for three of the voices is their neighbour above, now. And at where in the beat we are:


# %%
def seen(piece):                         # → (4, 4 · steps): the token, and three things to look at
    tokens, steps = encode(piece), len(piece)
    # (steps, 4): voice and last pitch
    own = F.pad(piece.pitch, (0, 0, 1, 0))[:-1] + 128 * torch.arange(4)
    before = F.pad(tokens, (1, 0), value=BEGIN)[:-1]  # (4 · steps,): the token just before
    beat = torch.arange(steps).repeat_interleave(4) % 4
    return torch.stack([tokens, own.flatten(), before, beat])


learnt = torch.cat([seen(each) for each in pieces.train], dim=1)  # (4, all tokens)
asked = torch.cat([seen(each)[:, : 4 * len(each) // N * N] for each in pieces.test], dim=1)


# %% [markdown]
# A table counts how often each token came in each context. Where a context was rarely seen, its guess leans on that of
# a coarser table, as if that had been seen five times more.


# %%
def counted(context, coarser, trust=5.0):    # contexts (learnt, asked), (asked, V) → (asked, V)
    _, place = torch.cat(context).unique(return_inverse=True)  # contexts as 0, 1, 2 …
    learnt_in, asked_in = place.split([len(each) for each in context])
    count = torch.zeros(int(place.max()) + 1, V)
    count.index_put_((learnt_in, learnt[0]), torch.tensor(1.0), accumulate=True)
    count = count[asked_in]                          # (asked, V)
    return (count + trust * coarser) / (count.sum(dim=-1, keepdim=True) + trust)


def joined(*rows):                                   # several things to look at, as one number each
    weights = torch.tensor([1, 1000, 1_000_000])[: len(rows), None]
    return [(part[list(rows)] * weights).sum(dim=0) for part in (learnt, asked)]


# %% [markdown]
# Guess: how many nats does a note cost by the best of these tables, if blind guessing costs $3.91 \cdot 3.71 = 14.5$?

# %%
blind = torch.full((asked.shape[1], V), 1 / V)       # (asked, V)
guesses = {"blind": blind, "how often": counted([0 * learnt[0], 0 * asked[0]], blind)}
guesses["Markov chain"] = counted(joined(1), guesses["how often"])
guesses["and the token before"] = counted(joined(1, 2), guesses["Markov chain"])
guesses["and the place in the beat"] = counted(joined(1, 2, 3), guesses["and the token before"])
baselines = {}                                       # name → nats per token
for name, guess in guesses.items():
    baselines[name] = -guess.gather(1, asked[0][:, None]).log().mean().item()
    print(f"{name:26} {baselines[name]:5.3f} nats per token, "
          f"{baselines[name] * tokens_per_note:5.2f} per note")

# %% [markdown]
# Merely to know how often tokens come saves nine of the fourteen and a half: most of them say HOLD. The voice's own
# last pitch is worth another nat and a half, the token before one more, and the place in the beat half a nat: most
# notes begin on a beat. What is left is as much as a choice among $e^{2.57} = 13$ equally likely notes. A model that
# does not get below 2.57 has not learned music; it has learned to count.

# %% [markdown]
# ## 4 Relative attention
#
# ### 4.1 A vector for each distance
#
# Lesson 05 adds what a distance is worth to the score. Huang et al. (2019) did it for music, whose memories are long, and
# without clipping. Next to $q_i \cdot k_j$, *what* I look for, the score gets a second part, *when* I look for it: a
# learned vector $e$ for each distance to the past, $-(n-1) \dots 0$, in each head, which the query meets like a key:
#
# $$\text{score}_{ij} = \frac{q_i \cdot k_j + q_i \cdot e_{j-i}}{\sqrt{d_k}} \qquad j \le i$$
#
# So the query has its say: a bass can prefer 3 tokens ago, a soprano 64. Done as it is written, each pair of tokens
# picks its vector. Keep them in one matrix per head, farthest distance first:


# %%
def picked(q, e):                                    # (heads, n, d_k) each
    i = torch.arange(q.shape[1])                     # (n,)
    ago = (i[:, None] - i).clamp(min=0)              # (query, key): i − j
    vector = e[:, -1 - ago]                          # (heads, query, key, d_k): one for each pair
    return torch.einsum("hid,hijd->hij", q, vector)  # (heads, query, key)


# %% [markdown]
# That holds $n^2 d_k$ numbers per head, of 4 bytes each. Work out what it is for the paper's example, 2,048 tokens and
# $d = 512$ in 8 heads, before you run the cell. And what do the vectors themselves take?

# %%
n, d, heads = 2048, 512, 8
print(f"a vector for each pair:      {4 * n * n * d / 1e9:6.2f} GB per layer, "
      f"{4 * n * n * d / heads / 1e9:5.2f} GB per head")
print(f"a vector for each distance:  {4 * n * d / 1e6:6.2f} MB per layer, "
      f"{4 * n * d / heads / 1e6:5.2f} MB per head")
print(f"a score for each pair:       {4 * n * n * heads / 1e6:6.0f} MB per layer, "
      f"{4 * n * n / 1e6:5.1f} MB per head")

# %% [markdown]
# The paper has the same numbers: 8.5 GB and 4.2 MB per layer (§3.4), and in its table 1, per head, 1,100 MB and 0.52
# MB, with 16 MB for the scores, which stay. They are why a layer needs more than a hundred megabytes still; lesson 34
# will be about that.
#
# ### 4.2 Skewing is arithmetic on addresses
#
# There are only $n$ different vectors. So let each query meet each of them once: $B = QE^\top$, by query and
# *distance*. Column $c$ belongs to $n - 1 - c$ tokens ago. Attention wants $S$, by query and *key*. Key $j$ is $i - j$
# tokens before query $i$, so
#
# $$S_{ij} = B_{i,\; n-1-(i-j)}$$
#
# A matrix product and a *reshape* turn one into the other. Watch four queries first. The number **32** means: query 3, 2
# tokens ago. (Queries and keys are counted from 1 in this picture only, so that each number has two digits.)

# %%
n = 4
by_distance = 10 * torch.arange(1, n + 1)[:, None] + torch.arange(n).flip(0)
padded = F.pad(by_distance, (1, 0), value=-1)        # (query, 1 + distance); −1: padding
reshaped = padded.reshape(n + 1, n)                  # (1 + query, key): the same line, cut anew
dropped = reshaped[1:]                               # (query, key)
steps = {"by distance": by_distance, "1 pad left": padded, "2 reshape": reshaped,
         "3 drop first row": dropped}
colours = {name: torch.where(matrix < 0, -1, matrix % 10) for name, matrix in steps.items()}
colours["3 drop first row"][torch.ones(n, n).triu(1).bool()] = -2  # keys in the future
figures.rearranging(
    steps, colours, title="Pad, reshape, drop: every score lands under its key",
    alt="Four matrices. First, columns of equal distance 3, 2, 1, 0. Then a column of zeros on "
    "the left. Then the same numbers read row by row into 5 rows of 4. Then without the first "
    "row: equal distances are on diagonals, distance 0 on the main diagonal; above it are "
    "left-over numbers.",
)

# %% [markdown]
# In the last matrix, row 3 reads 32, 31, 30: key 1 is two back, key 2 one back, key 3 is the query itself. Above the
# diagonal are left-overs from other rows. They do no harm *if* a causal mask hides the future, and are wrong without one.
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
# is all. No index, no copy per pair. And nothing in it asks for as many queries as keys. If $n$ queries are the *last*
# of $m$ keys, query $i$ is token $m - n + i$. Try it on paper before you open the answer: where does $S_{ij}$ stand
# now, and how many numbers are to be dropped?
#
# <details><summary>The answer</summary>
#
# Key $j$ is $m - n + i - j$ tokens ago, which is column $m - 1 - (m - n + i - j) = n - 1 - i + j$: the same as before.
# Padded rows begin $m + 1$ apart: $i\,(m + 1) + 1 + n - 1 - i + j = i\,m + j + n$. Again drop $n$, the number of
# queries, and cut rows of $m$.
# </details>


# %% tags=["recorded"]
def skew(by_distance):                               # (…, query, distance), the farthest first
    n, m = by_distance.shape[-2:]                    # n queries, the last of m keys
    line = F.pad(by_distance, (1, 0)).flatten(-2)    # (…, n · (m + 1)): one long line
    return line[..., n:].unflatten(-1, (n, m))       # (…, query, key)


# %% [markdown]
# Three queries and six keys. The number **24** means: query 2, four tokens ago. (Queries count from 1 here.)

# %%
by_distance = 10 * torch.arange(1, 4)[:, None] + torch.arange(6).flip(0)  # (query, distance)
padded = F.pad(by_distance, (1, 0), value=-1)
cut = skew(by_distance)                              # (query, key)
steps = {"by distance": by_distance, "1 pad left": padded, "2 drop 3, cut rows of 6": cut}
colours = {name: torch.where(each < 0, -1, each % 10) for name, each in steps.items()}
left_over = torch.ones(3, 6).triu(4).bool()          # keys in the future
colours["2 drop 3, cut rows of 6"][left_over] = -2
figures.rearranging(
    steps, colours, title="Three queries, the last of six keys: the same line, cut elsewhere",
    alt="Three matrices. By distance: rows 15 to 10, 25 to 20, 35 to 30. The same with a padded "
    "column on the left. Then 13 to 10 and two left-overs; 24 to 20 and one left-over; 35 to 30: "
    "equal distances stand on diagonals.",
)

# %% [markdown]
# The first query is token 3 of 0 to 5: key 0 is three tokens ago, **13**. Grey cells are left-overs, under the causal
# mask. And the picking agrees where the mask looks:

# %%
torch.manual_seed(0)
q, e = torch.randn(2, 4, 64, 16)                     # (heads, n, d_k) each
seen_by_mask = torch.ones(64, 64).tril().bool()      # (query, key)
prove_equal(skew(q @ e.mT)[:, seen_by_mask], picked(q, e)[:, seen_by_mask],
            tolerance=1e-4, what="Skewed and picked")

# %% [markdown]
# ### 4.3 Memory, counted and measured
#
# Two things matter: the largest tensor, and what autograd keeps for the backward pass. For the first we watch every
# operation. For the second torch has hooks: it hands over each tensor that it keeps.

# %%
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):
    bytes = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        out = operator(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.bytes = max(self.bytes, out.nbytes)
        return out


# %% [markdown]
# A tensor that shares its memory with another is counted once:


# %%
def kept(compute, *inputs):                          # bytes that wait for the backward pass
    storage = {}

    def keep(tensor):
        storage[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = compute(*inputs)                       # must live until all is counted
    return sum(storage.values()), out


# %% [markdown]
# One head of 64 dimensions. Predict how many times larger the largest tensor is when picked than when skewed:

# %%
lengths = (64, 128, 256, 512)
for n in lengths:
    q, e = torch.randn(2, 1, n, 64, requires_grad=True)  # (heads, n, d_k) each
    line = f"n = {n:3}:"
    for name, way in {"picked": picked, "skewed": lambda q, e: skew(q @ e.mT)}.items():
        with Largest() as seen_here:
            waiting, _ = kept(way, q, e)
        line += f"  {name}: largest {seen_here.bytes / 2**20:6.2f} MiB,"
        line += f" kept {waiting / 2**20:6.2f} MiB;"
    print(line)

# %% [markdown]
# The largest tensors both grow with $n^2$, one of them 64 times larger: $d_k$. (A little less, for $n^2 + n$ numbers
# are in the padded one.) But look at what is *kept*. Skewing keeps $q$ and $e$, and nothing that grows faster than $n$:
# 0.25 MiB instead of 66. That is the paper's "from $O(n^2 d)$ to $O(n d)$"; the scores come on top, in both. And what
# it is in time, forward and backward:

# %% tags=["nbval-ignore-output"]
import time


def milliseconds(way):
    q, e = torch.randn(2, 4, 256, 32, requires_grad=True)  # (heads, n, d_k) each
    start = time.process_time()
    way(q, e).sum().backward()
    return 1000 * (time.process_time() - start)


for name, way in {"picked": picked, "skewed": lambda q, e: skew(q @ e.mT)}.items():
    print(f"{name}: {min(milliseconds(way) for _ in range(3)):6.1f} ms, 4 heads, 256 tokens")

# %% [markdown]
# ### 4.4 Relative and local
#
# A long piece needs a second saving. The paper's §3.5 cuts it into blocks of $N$ tokens; each block of queries sees its
# own block, up to the query, and all of the block before. So every token sees between $N$ and $2N - 1$ tokens back, and
# there are $n \cdot 2N$ scores instead of $n^2$. The library calls this mask `block_local`; lesson 31 will use it. What
# about distances? The queries of a block are the last $N$ of $2N$ keys. You have that skew already:


# %%
def local(q, k, v, e):                               # (heads, n, d_k) each; e (heads, 2N, d_k)
    N = e.shape[1] // 2
    q, k, v = (x.unflatten(1, (-1, N)) for x in (q, k, v))  # (heads, blocks, N, d_k)
    # 2N keys and values: those of the block before, then a block's own
    k, v = (torch.cat([F.pad(x, (0, 0, 0, 0, 1, 0))[:, :-1], x], dim=2) for x in (k, v))
    score = q @ k.mT + skew(q @ e[:, None].mT)       # (heads, blocks, N, 2N)
    key = torch.arange(2 * N)                        # (2N,): the first N are the block before
    hidden = key > torch.arange(N)[:, None] + N      # (N, 2N): the future
    first = (torch.arange(q.shape[1])[:, None, None] == 0) & (key < N)  # (blocks, 1, 2N)
    score = (score / q.shape[-1] ** 0.5).masked_fill(hidden | first, float("-inf"))
    return (score.softmax(dim=-1) @ v).flatten(1, 2)  # (heads, n, d_k)


# %% [markdown]
# Against the whole square with a mask, in which all distances beyond $2N - 1$ are never asked for:

# %%
torch.manual_seed(0)
N_block, n = 16, 128
q, k, v, e = torch.randn(4, 2, n, 16)                # (heads, n, d_k) each
mask = causal() & block_local(N_block, radius=1)
bias = skew(q @ e.mT) / 4                            # (heads, query, key); √d_k = 4
whole = attention(q[None], k[None], v[None], mask, bias=bias[None])[0]  # (heads, n, d_k)
prove_equal(local(q, k, v, e[:, -2 * N_block :]), whole, what="Block by block and masked")
for n in (1024, 4096, 16384):
    print(f"n = {n:6,}: {n * n:11,} scores, in blocks of 256 {n * 512:9,}")

# %% [markdown]
# ## 5 A model that learns chorales
#
# Now the model: a decoder as in lesson 10, of two pre-norm blocks with four heads. All that is new stands in the line
# with `skew`. It has a rival: "absolute" adds a learned vector for each place instead (lesson 05). Both are
# told what singers see in their notes: whose turn it is, and where in the beat we are. The table of distances and that
# of places begin at 0, so that a row that is never trained adds nothing:

# %% tags=["recorded"]
d_model, heads, LONGEST = 64, 4, 512

class Heads(nn.Module):
    def __init__(self, relative):
        super().__init__()
        self.project, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.e = nn.Parameter(torch.zeros(heads, LONGEST, d_model // heads)) if relative else None

    def forward(self, x, mask):                      # (batch, n, d_model)
        q, k, v = self.project(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        bias = None                                  # q, k, v: (batch, heads, n, d_k) each
        if self.e is not None:
            bias = skew(q @ self.e[:, -x.shape[1] :].mT) / q.shape[-1] ** 0.5  # (…, n, n)
        found, self.weights = attention(q, k, v, mask, bias=bias, return_weights=True)
        return self.out(found.transpose(1, 2).flatten(2))  # (batch, n, d_model)


# %% [markdown]
# The block, with its residuals:

# %% tags=["recorded"]
class Block(nn.Module):
    def __init__(self, relative):
        super().__init__()
        self.heads = Heads(relative)
        self.network = FeedForward(d_model, 4 * d_model, activation="gelu")
        self.norm_1, self.norm_2 = LayerNorm(d_model), LayerNorm(d_model)

    def forward(self, x, mask):                      # (batch, n, d_model)
        x = x + self.heads(self.norm_1(x), mask)
        return x + self.network(self.norm_2(x))


# %% [markdown]
# And the model. Token $i$ is guessed from those before it, so the input is shifted by one, and `turn` is the voice, and
# the quarter of the beat, of the token that is to be *guessed*.


# %% tags=["recorded"]
class Composer(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.token, self.turn = nn.Embedding(V, d_model), nn.Embedding(16, d_model)
        self.place = nn.Parameter(torch.zeros(LONGEST, d_model)) if kind == "absolute" else None
        self.blocks = nn.ModuleList(Block(kind == "relative") for _ in range(2))
        self.norm, self.output, self.mask = LayerNorm(d_model), nn.Linear(d_model, V), causal()
        for table in (self.token, self.turn):        # torch's own start, 1, is slow to unlearn
            nn.init.normal_(table.weight, std=0.2)

    def forward(self, ids):                          # (batch, n), beginning before a beat
        x = self.token(ids) + self.turn(torch.arange(ids.shape[1]) % 16)  # (batch, n, d_model)
        x = x if self.place is None else x + self.place[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, self.mask)
        return self.output(self.norm(x))             # (batch, n, V)


# %% [markdown]
# **Transposition.** Sing a piece a few semitones higher, and it is the same piece: *transposed*, musicians say. To our
# tokens it is another one. So each chorale could give up to twelve, one for each shift that keeps it between the
# deepest and the highest pitch. HOLD stays HOLD. A switch:

# %% tags=["recorded"]
def shifts(row):                                     # by how much it may be moved: from, to
    pitches = row[row >= FIRST]
    return max(-5, int(FIRST - pitches.min())), min(6, int(V - 1 - pitches.max()))


def draw(rows, size, transpose):                     # → (size, N + 1)
    batch = []
    for number in torch.randint(len(rows), (size,)).tolist():
        row = rows[number]
        start = 16 * torch.randint((len(row) - N - 1) // 16 + 1, ()).item()  # before any beat
        low, high = shifts(row) if transpose else (0, 0)
        shift = torch.randint(low, high + 1, ()).item()
        row = row[start : start + N + 1]             # (N + 1,)
        batch.append(torch.where(row >= FIRST, row + shift, row))
    return torch.stack(batch)


# %% [markdown]
# The training is that of lesson 10:

# %% tags=["recorded"]
def fit(kind="relative", seed=0, steps=500, transpose=False, lr=6e-3):
    torch.manual_seed(seed)
    model = Composer(kind)
    rows = [each for each in sequences(pieces.train) if len(each) > N]
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.98), fused=True)
    for step in progress(range(steps), f"training, {kind}"):
        optimizer.param_groups[0]["lr"] = lr * min(1, (step + 1) / 30) * (1 - 0.9 * step / steps)
        batch = draw(rows, 4, transpose)             # (4, N + 1)
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


# %% [markdown]
# And the test. It keeps the cost of each token, for later:


# %% tags=["recorded"]
@torch.no_grad()
def cost(model, rows):                               # (rows, n + 1) → (rows, n): nats
    parts = [F.cross_entropy(model(part[:, :-1]).mT, part[:, 1:], reduction="none")
             for part in rows.split(16)]
    return torch.cat(parts)


# %% [markdown]
# Train one. 500 batches of four windows are half a million tokens, about twice the training set:

# %% tags=["nbval-ignore-output"]
model = fit()
nats = cost(model, test)                             # (windows, N)
print(f"{sum(each.numel() for each in model.parameters()):,} parameters, "
      f"{nats.mean():.3f} nats per token, {nats.mean() * tokens_per_note:.2f} per note")
expect("Nats per note", nats.mean().item() * tokens_per_note, 2.2, 2.5)

# %% [markdown]
# ### Is it the distances?
#
# One run is an anecdote. `data/voices.py` has trained this model and its rivals by the cells of this lesson, three
# seeds each. By how much will distances beat places, or the other way round?

# %%
from txlib.paths import DATA

recorded = json.loads((DATA / "voices.json").read_text())  # question → name → seed → a run


def spread(nats):                                    # per token, of each seed → per note
    nats = [each * tokens_per_note for each in nats]
    return min(nats), sum(nats) / len(nats), max(nats)


per_note = {name: spread([run["nats"] for run in runs.values()])
            for name, runs in recorded["positions"].items()}
tables = {f"table: {name}": (nats * tokens_per_note,) * 3 for name, nats in baselines.items()
          if name not in ("blind", "how often")}

# %% [markdown]
# Have you decided?

# %% tags=["hide-output"] jupyter={"outputs_hidden": true}
plots.ranges(
    tables | per_note, title="Distances cost less than places, after the same training",
    xlabel="nats per note on unseen chorales: least, mean, greatest",
    alt="; ".join(f"{name}: {mean:.2f}" for name, (_, mean, _) in (tables | per_note).items()),
)

# %% [markdown]
# Distances win in every seed. (Three seeds lie so close together that their line hides behind the dot.) The worst
# relative run costs a quarter of a nat per note less than the best absolute one. And only they get below the best of
# the tables. The absolute model, after the same batches, is where counting ends.
#
# Why? "The soprano, now: 3 ago, if I am the bass" is one rule at all places. A relative head learns it once, from every
# turn of the bass. With places it has to be learned anew for each of the bass's 64. (After 500 batches. What 5,000
# would say, we have not measured; in the paper's table, section 11, the order is the same.)

# %% [markdown]
# Where is what is left of the cost? By voice, for the model that you trained:

# %% tags=["nbval-ignore-output"]
by_voice = nats.view(len(nats), -1, 4).sum(dim=(0, 1))  # (4,): all nats spent on each voice
struck = (right >= FIRST).view(len(right), -1, 4).sum(dim=(0, 1))  # (4,): notes
for name, each, count in zip(("soprano", "alto", "tenor", "bass"), by_voice, struck):
    print(f"{name:8} {each / count:.2f} nats per note")
expect("Soprano", (by_voice / struck)[0].item(), 1, 4)

# %% [markdown]
# The soprano costs most. She begins each step, without knowing what the others will sing. (And hers is the hymn,
# which was there before Bach.) Each further voice has one more to listen to; the last one costs least.

# %% [markdown]
# ### Is a transposed piece the same to it?
#
# A piece uses mostly seven of the twelve notes of an octave. Which seven is its *key*. (The word has nothing to do with
# the keys of attention, or those of a piano.) Your model has heard each chorale in one key only. Sing the test pieces a
# few semitones lower or higher, which moves all seven, and what is as good as before to the ear is new to the tokens.
# What does it cost?


# %% tags=["recorded"]
def by_shift(model, rows, most=3):                   # → semitones up: nats per token
    sung = torch.where(rows >= FIRST, rows, V // 2)  # (rows, n + 1): HOLD in the middle
    fits = (sung.amin(dim=1) - most >= FIRST) & (sung.amax(dim=1) + most < V)  # (rows,)
    rows, costs = rows[fits], {}                     # those with room to move
    for shift in range(-most, most + 1):
        moved = torch.where(rows >= FIRST, rows + shift, rows)
        costs[shift] = cost(model, moved).mean().item()
    return costs


# %% [markdown]
# Your model's, in nats per note:

# %% tags=["nbval-ignore-output"]
per_shift = {shift: each * tokens_per_note for shift, each in by_shift(model, test).items()}
print("  ".join(f"{shift:+d}: {each:.2f}" for shift, each in per_shift.items()))
expect("The costliest shift", max(per_shift.values()) - per_shift[0], 0.3, 1.2)

# %% [markdown]
# No: one semitone away costs more than half a nat per note. And look at *two* semitones: a third of that. Two keys that
# are two semitones apart have five notes in common, three apart four, one apart only two. (Count: the white keys of a
# piano are 0, 2, 4, 5, 7, 9 and 11 semitones above C. Add 2 to each, then 1, and forget octaves.) Our reading: the
# model has learned which notes go together, and not that a key can be moved.
#
# `fit(transpose=True)` gives each batch in other keys. Out of each piece it makes up to twelve to learn, and has no more
# batches to learn them from: 500, as before. What will that do at home, and what when the test pieces are moved? (The
# mean of the six shifts.) `data/voices.py` has three seeds of each:

# %%
moved = {}
for name, runs in recorded["keys"].items():
    by = [run["by shift"] for run in runs.values()]
    moved[f"{name}, at home"] = spread([each["0"] for each in by])
    moved[f"{name}, moved"] = spread([(sum(each.values()) - each["0"]) / 6 for each in by])

# %% [markdown]
# Have you decided?

# %% tags=["hide-output"] jupyter={"outputs_hidden": true}
plots.ranges(
    moved, title="All keys heard: dearer at home, cheaper when moved",
    xlabel="nats per note on unseen chorales: least, mean, greatest",
    alt="; ".join(f"{name}: {mean:.2f}" for name, (_, mean, _) in moved.items()),
)

# %% [markdown]
# At home, all keys cost nearly a fifth of a nat more: the same batches have to do for many times as many pieces. Moved,
# they cost a third of a nat less, in every seed, and hardly more than at home: what has been learned belongs to no key.
# (Longer training was not measured with three seeds. The library's recipe, `txlib train music`, goes through the data
# many times, and transposes.)

# %% [markdown]
# ## 6 Finish a chorale, and hear it
#
# Give it two bars of a chorale that it has never seen, and let it go on, token by token. `allowed` may forbid tokens;
# section 8 will use it. (The window slides by whole beats.)


# %%
@torch.no_grad()
def compose(model, tokens, count, temperature=1.0, allowed=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    line = F.pad(tokens, (1, 0), value=BEGIN)  # (1 + length,)
    for _ in range(count):
        first = max(0, -(-(len(line) - N) // 16) * 16)  # a multiple of 16
        logits = model(line[None, first:])[0, -1] / temperature  # (V,)
        logits[[BEGIN, END]] = float("-inf")
        if allowed is not None:
            logits = logits.masked_fill(~allowed(line[1:]), float("-inf"))
        token = torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)  # (1,)
        line = torch.cat([line, token])
    return line[1:]


# %% [markdown]
# Two bars of Bach, then four of the model:

# %% tags=["nbval-ignore-output"]
primer = tokens[: 2 * 64]                            # (128,)
finished = compose(model, primer, 4 * 64, temperature=0.9)  # (384,)
plots.piano_roll(
    decode(finished), mark=("the model", 32), title="Two bars of Bach, then the model",
    alt="Four voices over six bars; from the third on they are the model's: notes of a beat or "
    "two, moving by small steps.",
)

# %% [markdown]
# And heard:

# %% tags=["nbval-ignore-output"]
listen(decode(finished))

# %% [markdown]
# Does it have Bach's habits? Two can be counted: how many notes begin on a beat, and how many moves of a voice, from
# one note to its next, are small, two semitones at most:


# %% tags=["nbval-ignore-output"]
def habits(piece):
    sung = [[pitch for _, _, pitch in piece.notes(voice)] for voice in range(4)]
    moves = torch.cat([torch.tensor(voice).diff().abs() for voice in sung]).float()
    return piece.onset[::4].sum() / piece.onset.sum(), (moves <= 2).float().mean()


bach = torch.tensor([habits(each) for each in pieces.test]).mean(dim=0)  # (2,)
model_has = torch.tensor(habits(decode(finished)[32:]))  # (2,)
for name, each in {"Bach, unseen": bach, "the model": model_has}.items():
    print(f"{name:13} {each[0]:.0%} of the notes on a beat, {each[1]:.0%} of the moves small")
expect("Small moves of the model", model_has[1].item(), 0.4, 0.95)

# %% [markdown]
# As many notes on the beat as Bach, and somewhat more *leaps*, the moves that are not small. Now listen once more, for
# where a line of the hymn ends. Bach's come to a stop every two bars or so, often on a long note, and one hears the
# stop coming. Does yours?
#
# **Temperature** divides the logits before the softmax (lesson 11). What would you hear at 0.3, and at 1.5? Decide,
# then listen: one bar of Bach and two of the model each time, first cold, then hot:

# %% tags=["nbval-ignore-output"]
cold = compose(model, primer, 4 * 64, temperature=0.3)
listen(decode(cold)[16:64])

# %% [markdown]
# And hot:

# %% tags=["nbval-ignore-output"]
hot = compose(model, primer, 4 * 64, temperature=1.5)
listen(decode(hot)[16:64])

# %% [markdown]
# Can what you hear be measured? Take the four voices at each beat, as a *chord*: notes that sound together. Forget the
# octaves, so that each C counts as the same note (`p % 12`), and who sings what. Which share of the chords in a piece
# occurs anywhere in the training set?


# %%
def chords(piece):                                   # for each beat, its notes within an octave
    return [tuple(sorted({p % 12 for p in step if p})) for step in piece.pitch[::4].tolist()]


# %% [markdown]
# Bach's on unseen chorales, and the model's, cold and hot:


# %% tags=["nbval-ignore-output"]
known = {chord for each in pieces.train for chord in chords(each)}


def familiar(piece):
    found = chords(piece)
    return sum(chord in known for chord in found) / len(found)


print(f"{len(known)} different chords in the training set")
unseen = [familiar(each) for each in pieces.test]
print(f"Bach, on unseen chorales: {sum(unseen) / len(unseen):.1%}")
for name, line in {"0.3": cold, "0.9": finished, "1.5": hot}.items():
    print(f"temperature {name}: {familiar(decode(line)[32:]):.0%} of its 16 chords are known")

# %% [markdown]
# Cold, or at 0.9, all of its chords are among Bach's. Hot, it draws what it considers unlikely, and a quarter are not.
# Bach himself hardly ever needs a new one. (Sixteen chords are few: your numbers may differ.)

# %% [markdown]
# ## 7 What the heads look at
#
# Lesson 15 looked at heads that read language. Here a distance has a meaning, so we can ask each head: how much weight
# do you give, on average, to tokens so and so many ago? That is the mean of a diagonal of the weights. (The model
# guesses token $i + 1$ at position $i$, so what stands on the main diagonal is one token before what is guessed.)


# %%
@torch.no_grad()
def weight_by_distance(model, rows):                 # → (heads of all layers, N / 2)
    model(rows[:, :-1])
    found = []
    for block in model.blocks:
        weights = block.heads.weights.mean(dim=0)    # (heads, query, key)
        late = weights[:, N // 2 :]                  # queries with N / 2 tokens to look back on
        found.append(torch.stack([late.diagonal(N // 2 - ago, dim1=1, dim2=2).mean(dim=-1)
                                  for ago in range(N // 2)], dim=-1))  # (heads, N / 2)
    return torch.cat(found)


# %% [markdown]
# How much is much? A head that looked everywhere alike would give each distance the same: over these queries 0.54%, one
# of the 129 to 256 tokens that they can see. We count in multiples of that *even* weight. The four distances that each
# head prefers:

# %% tags=["nbval-ignore-output"]
even = (1 / torch.arange(N // 2 + 1, N + 1)).mean()  # of a head that looks everywhere alike
looked = weight_by_distance(model, test[:32]) / even  # (8, N / 2): times that
names = [f"layer {1 + number // heads}, head {number % heads}" for number in range(2 * heads)]
print(f"even weight {even:.2%}; times that:")
for name, row in zip(names, looked):
    most = ", ".join(f"{ago + 1} ago ({row[ago]:.1f})" for ago in row.topk(4).indices.tolist())
    print(f"{name}: {most}")

# %% [markdown]
# Drawn, all heads on one scale, for one bar back. White is the even weight; 1 is twice as much, 2 four times, 3 eight
# times *or more*; −1 is half:

# %% tags=["nbval-ignore-output"]
doublings = looked.log2().clamp(-3, 3)               # (8, N / 2)
doublings = F.pad(doublings, (1, 0))[:, :69]         # (8, 69): from 0 tokens ago, which there isn't
plots.heatmap(
    doublings, rows=names, size=0.11, numbers=False, diverging=True, ylabel="",
    bar="doublings", xlabel="tokens ago (4 are a step, 8 half a beat, 16 a beat, 64 a bar)",
    title="Layer 1 picks a few distances; layer 2 leans, a little, on many",
    alt="Eight rows of cells for 1 to 68 tokens ago. " + "; ".join(
        f"{name}: most at {row.argmax() + 1}, {row.max():.1f} times the even weight"
        for name, row in zip(names, looked)) + ".",
)

# %% [markdown]
# Layer 1 is easy to read. One head looks 2 tokens ago, nearly thirty times as much as evenly, and one 3 tokens ago: to
# the bass these are the alto and the soprano, now. (The second of them also looks half a beat and a beat back.) Two
# heads look 4, 8 and 16 tokens ago: the voice itself, one step, half a beat and a beat ago. Layer 2 has no such
# favourites. It spreads its weight over all that it sees, and what it likes best gets two to four times the even
# weight. Still there is a pattern. What it prefers comes back every 8 tokens, half a beat: at multiples of 8 or a token
# beside, and in head 0 two tokens farther, at 2, 10, 18, 26 … (Heads may change places, and habits, in your run.)
# Nobody told the heads that there are voices, steps and beats in a distance. They found it in the chorales.
#
# A head for "four bars ago" there cannot be: that is 256 tokens, and only the last token of a window sees so far. The
# peaks of section 1 need longer windows.

# %% [markdown]
# ## 8 Rules: the melody is given
#
# Bach was given the melody. Force the soprano, and let the model sing the other three. A rule is a mask over the
# *vocabulary*: before each token is drawn, what is forbidden gets the logit −∞. The soprano's turn allows a single
# token, the melody's. The others must stay within what a voice can sing, which we take from the training set:

# %%
sung = torch.cat([encode(each).view(-1, 4) for each in pieces.train])  # (all steps, 4)
lowest = torch.where(sung >= FIRST, sung, V).amin(dim=0).tolist()  # four tokens
highest = sung.amax(dim=0).tolist()


def given(melody):                                   # (steps,): the soprano's tokens
    def allowed(line):                               # (length,) → (V,): what may come next
        step, voice = len(line) // 4, len(line) % 4
        token = torch.arange(V)
        if voice == 0:
            return token == melody[step]
        return (token == HOLD) | ((token >= lowest[voice]) & (token <= highest[voice]))

    return allowed


# %% [markdown]
# Four bars: Bach's soprano, and three voices that have never seen Bach's:

# %% tags=["nbval-ignore-output"]
melody = tokens.view(-1, 4)[:, 0]                    # (steps,)
nothing = torch.empty(0, dtype=torch.long)
ours = compose(model, nothing, 4 * 64, temperature=0.7, allowed=given(melody))  # (256,)
prove_equal(decode(ours).pitch[:, 0], piece.pitch[:64, 0], what="Soprano given and sung")
listen(decode(ours))

# %% [markdown]
# Do the three listen to her at all? Ask the other way round. Take Bach's own test pieces, and let the soprano come in a
# beat late, against three voices that go on as if nothing had happened. (In the first beat of a window she sings its
# last, so that nothing is missing.) If the model did not listen, their notes would cost what they cost before:

# %% tags=["nbval-ignore-output"]
grid = right.view(len(right), -1, 4).clone()         # (windows, steps, 4)
grid[..., 0] = grid[..., 0].roll(4, dims=1)          # four steps late
late = torch.cat([test[:, :1], grid.flatten(1)], dim=1)  # (windows, N + 1)
with_her = cost(model, late).view(len(late), -1, 4).sum(dim=(0, 1)) / struck  # (4,)
for voice, name in enumerate(("alto", "tenor", "bass"), start=1):
    before = by_voice[voice] / struck[voice]
    print(f"{name:5} {before:.2f} nats per note, {with_her[voice]:.2f} when she is late")
expect("What the bass loses", (with_her - by_voice / struck)[3].item(), 0.1, 2)

# %% [markdown]
# They do. One thing the model cannot do: it writes from left to right, and knows of the melody only what has been
# sung. Bach knew where it was going. The paper's accompaniments for piano come from an encoder that reads the whole
# melody first (a Transformer as in lesson 08); other models fill gaps in any order, as in lesson 14.

# %% [markdown]
# ## 9 Longer than any window
#
# It was trained on windows of four bars. What happens in bars five to eight of a longer one? Lesson 05 asked the same
# for letters. Predict it for *absolute*, for *relative*, and for *relative* whose queries may look back one old window
# only. Loss by bar, of the recorded runs:

# %%
def mean_of(name, what):                             # over the seeds
    runs = recorded["positions"][name].values()
    return torch.tensor([run[what] for run in runs]).mean(dim=0).tolist()


bars = {"absolute": mean_of("absolute", "by bar"), "relative": mean_of("relative", "by bar"),
        "relative, window": mean_of("relative", "by bar, window")}

# %% [markdown]
# Have you decided?

# %% tags=["hide-output"] jupyter={"outputs_hidden": true}
plots.lines(
    {name: (range(1, 9), each) for name, each in bars.items()}, marker="o",
    mark=("trained to here", 4.5), title="Places end where training ended; distances go on",
    xlabel="bar", ylabel="nats per token",
    alt="; ".join(f"{name}: {each[3]:.2f} in bar 4, {each[7]:.2f} in bar 8"
                  for name, each in bars.items()),
)

# %% [markdown]
# Up to bar 4 the absolute model pays up to 0.1 nats per token more than the relative one; from bar 5 on, 0.25 to 0.3.
# Each place beyond the 256th has a vector that nothing has ever trained; and a window over what may be *seen* does
# not help a token whose own place is unknown. (It was tried: 0.87 instead of 0.85 in bar 8.) The relative one hardly
# notices. From bar 5 on there are distances that it has never met, by bar 8 nearly half of all. There it loses a
# little, and a window, which hides them, fixes that. (Our untrained rows began at 0, and add nothing.)
#
# And look at the zigzag: odd bars cost more than even ones. Our reading: lines of a hymn take two bars, and the second
# ends on a long note, which costs little to hold. The song's form, seen in a loss.

# %% [markdown]
# ## 10 Open the library
#
# `SkewedBias` is the library's `skew` with its distances: a layer hands it queries and gets a bias. Without a causal mask
# the left-overs would be wrong, so the library refuses:

# %%
from txlib.attention import MultiHeadAttention, SkewedBias

layer = MultiHeadAttention(64, 4, position_bias=SkewedBias(4, 16, max_length=128))
try:
    layer(torch.randn(1, 9, 64))
except ValueError as error:
    print(error)

# %% [markdown]
# With one, both compute the same:

# %%
from txlib.music import GridTokenizer

torch.manual_seed(0)
q = torch.randn(1, 4, 128, 16)                       # (batch, heads, n, d_k)
bias = SkewedBias(4, 16, max_length=128)
prove_equal(bias(q, 128).tril(), (skew(q @ bias.distances.mT) / 4).tril(),
            what="Skewed, the library's and ours,")
tokenizer = GridTokenizer()
theirs = torch.tensor(tokenizer.encode(piece, special_tokens=False))
prove_equal(theirs, tokens, what="Tokens, the library's and ours,")

# %% [markdown]
# `MusicTransformer` is a GPT, as in lesson 10, whose blocks have `position="skewed"`, and which adds a vector for the
# voice. (It is not told where in the beat it is.) This is all that it adds to a GPT:

# %%
from txlib.models import MusicTransformer

show_source(MusicTransformer)

# %% [markdown]
# One comes along, trained by `txlib train music` on pieces moved to all keys: 128 wide, three layers, and 24 times as
# many tokens as yours. Its nats per note, by the recipe's own count. (Compare within this list only: it counts whole
# pieces, not windows of four bars, and its Markov chain looks at the last 8 tokens, which are two steps.)

# %%
from txlib import load_pretrained
from txlib.data import shipped
from txlib.generation import Composer as Singers  # our own model's name is Composer

result = json.loads((shipped("bach") / "result.json").read_text())
print(f"{result['parameters']:,} parameters,",
      f"trained on {result['tokens_trained_on'] / 1e6:.1f} million tokens")
for name, each in result["nats_per_note"].items():
    print(f"{name:17} {each:5.2f} nats per note")

# %% [markdown]
# It finishes the same two bars. Do its lines end where one expects an end? (The library's `Composer` keeps each voice
# within its *range*, from the lowest to the highest pitch that the voice may sing.)

# %% tags=["nbval-ignore-output"]
bach = Singers(load_pretrained(shipped("bach"), dtype=torch.float32))
with_more = bach.continue_(piece[:32], 64, do_sample=True, temperature=0.9, seed=0)
listen(with_more)

# %% [markdown]
# And by the numbers of section 6:

# %% tags=["nbval-ignore-output"]
more = with_more[32:]                                # what the model wrote
on_beat, small = habits(more)
print(f"{on_beat:.0%} of the notes on a beat, {small:.0%} of the moves small, "
      f"{familiar(more):.0%} of its 16 chords known")

# %% [markdown]
# ## 11 What the paper found
#
# Huang et al. measured the same chorales (§4.1), as pitches on a grid of sixteenths, four voices in turn. Their table
# 2, in nats per *token* on validation pieces:
#
# | model | NLL |
# | --- | --- |
# | CoCoNet, a convolutional net, in chronological order | 0.436 |
# | Transformer with sinusoidal positions, 5 layers | 0.417 |
# | the same, sinusoids put beside the tokens instead of added | 0.398 |
# | the same, and a label for the voice | 0.370 |
# | relative, 3 layers | 0.357 |
# | relative, and sinusoids and labels | 0.347 |
# | relative in time *and* pitch, and sinusoids and labels | 0.335 |
#
# (Unlike the counts of section 4, this section is quoted from memory, and could not be checked against the paper. Look
# it up before you cite it.) Their tokens repeat a pitch where ours say HOLD, their pieces and their split are others,
# and so **their numbers and ours cannot be compared**. What can be compared is the order: distances before places,
# there by 0.06 nats of 0.42, here by 0.08 of 0.71. (Theirs is not a clean comparison: the two models differ in size.)
#
# For recorded piano music the gain was small in nats, 1.861 to 1.835 (table 3), and large to the ear: in listening
# tests people preferred the relative model's pieces. And it alone held together when it wrote twice as long as it was
# trained for, which is our section 9.

# %% [markdown]
# ## 12 Quiz
#
# Decide first, then open an answer.
#
# **1. Soprano, alto, tenor, bass, then the next step. Which token does the tenor find 7 tokens ago?**
#
# <details><summary>A. The soprano, two steps ago</summary>
#
# The tenor is token 2 of its step. 2 − 7 = −5; the soprano two steps ago is −8.
# </details>
# <details><summary>B. The bass, two steps ago</summary>
#
# Right. −5 = 4 · (−2) + 3: two steps ago, token 3, the bass.
# </details>
# <details><summary>C. The tenor, two steps ago</summary>
#
# That is 8 tokens ago: multiples of 4 stay in the voice.
# </details>
#
# **2. You cut time into thirty-seconds instead of sixteenths: twice as many steps, the same music. A good model is
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
# **3. One head, $n = 4096$, $d_k = 64$. By how much does skewing shrink the *largest tensor* of the naive form?**
#
# <details><summary>A. From $n^2 d_k$ to $n\,d_k$: by 4,096</summary>
#
# What is stored about distances shrinks so much. But a score for each pair remains.
# </details>
# <details><summary>B. From $n^2 d_k$ to about $n^2$: by 64</summary>
#
# Right. $n(n+1)$ numbers, with the padding.
# </details>
# <details><summary>C. It only saves time</summary>
#
# It saves memory and time: the naive form must store $n^2 d_k$ numbers, and write and read them.
# </details>
#
# **4. In the model with absolute places, why do bars 5 to 8 suffer, and what would mend it?**
#
# <details><summary>A. Their rows were never trained; a window on what may be seen mends it</summary>
#
# The first half is right. But the row is added to the token, whatever may be seen.
# </details>
# <details><summary>B. Their rows were never trained; training on longer windows mends it, up to that length</summary>
#
# Right. A place that never occurred cannot be known; a distance that occurred is known at any place.
# </details>
# <details><summary>C. The model is too small</summary>
#
# The relative one is as small.
# </details>
#
# **5. You want the model to end its piece on a given bass note, eight bars ahead. Is a mask on the last token enough?**
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
# ## 13 Summary
#
# - Four voices on a grid are a line of tokens in which each distance means a voice and a time. HOLD tells a long note
#   from a repeated one.
# - Chorales repeat themselves after whole bars, most of all after 4, 6, 8 and 12: whole lines of the hymn.
# - Skewing drops the first $n$ numbers of a padded line: $i(n+1) + 1 + n - 1 - i + j = in + j + n$. It works for the
#   last $n$ of $m$ queries, and so for blocks. It turns $n^2 d_k$ numbers into $n^2$, and what is stored about
#   distances into $n\,d_k$.
# - Nats per note can be compared between grids; nats per token cannot.
# - After the same training, learned distances cost less than learned places, and keep what they know beyond the trained
#   length, where places fail at once.
# - Rules are masks over the vocabulary. They bind one token at a time, and do not plan.
#
# **Read** Huang et al. 2019, *Music Transformer*, [arXiv:1809.04281](https://arxiv.org/abs/1809.04281), sections 3.4,
# 3.5 and 4.1. Huang et al. 2017, *Counterpoint by Convolution*, [arXiv:1903.07227](https://arxiv.org/abs/1903.07227),
# on voices written in any order. Hadjeres et al. 2017, *DeepBach*,
# [arXiv:1612.01010](https://arxiv.org/abs/1612.01010), section 2.
#
# **Do** the exercise [22_music](../exercises/exercise_22_music.ipynb). Then go on to
# [24 Sets and arrays](24_arrays.ipynb).
