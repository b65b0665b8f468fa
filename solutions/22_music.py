# %% [markdown]
# # Exercise 22 · Music
#
# Seven tasks, 20 points, about 90 minutes. They belong to lesson [22 Music](../notebooks/22_music.ipynb). Tasks 1, 3 and 4
# are the *core*, about 30 minutes; the others are *more*. Run the cells from the top; fill in where it says *your turn*,
# then run the check below it. You may check as often as you like.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher. No check
# looks at a clock; two of them look at the largest tensor that an answer makes.

# %% tags=["parameters"]
seed = 0

# %%
import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from txgrade import check, cost

# %% [markdown]
# ### Tokens, and a way to make some
#
# The tokens are the lesson's: four for each step, soprano, alto, tenor, bass. A note that begins is its MIDI pitch less
# `LOW` plus `FIRST`; `HOLD` goes on with a note, `REST` is silence. The checks make up music with
# `made_up`: music that you would not sing, but it keeps these rules.

# %%
BEGIN, END, REST, HOLD, FIRST = range(5)
LOW, HIGH = 36, 81                                                 # the lowest and the highest pitch
V = FIRST + HIGH - LOW + 1                                         # how many tokens there are


def made_up(show, steps: int) -> Int[Tensor, "tokens"]:
    """Four voices that hold half of their notes; HOLD never follows REST."""
    pitch = torch.tensor([69, 62, 57, 48]) + show.randint(-4, 5, steps, 4)            # (steps, 4)
    kind = show.randint(0, 10, steps, 4)
    token = torch.where(kind < 5, HOLD, torch.where(kind == 5, REST, pitch - LOW + FIRST))
    token[0] = pitch[0] - LOW + FIRST
    for step in range(1, steps):
        token[step] = torch.where((token[step] == HOLD) & (token[step - 1] == REST), REST, token[step])
    return token.flatten()


def exponent(small: int, large: int, times: float) -> int:
    """With which power of the width something grew, when the inputs became so many times as wide."""
    return round(math.log(max(large, 1) / max(small, 1), times))

# %% [markdown]
# ### Task 1 · Higher, but not too high   ●●○○○ · 8 minutes · 2 points
#
# Move a piece by `shift` semitones, up or down. HOLD and REST stay what they are. Each voice has a lowest and a highest
# pitch, which it can still sing. If a note of any voice would leave its own voice's range, raise a `ValueError`.
#
# <details><summary>Hint 1: which tokens move?</summary>
#
# Those from `FIRST` on: `torch.where(tokens >= FIRST, tokens + shift, tokens)`.
# </details>
# <details><summary>Hint 2: whose range?</summary>
#
# `tokens.view(-1, 4)` has a column for each voice, and `lowest`, of shape `(4,)`, broadcasts over its rows.
# </details>
# <details><summary>Hint 3: tokens and pitches</summary>
#
# A token's pitch is `token - FIRST + LOW`. Compare *pitches* with the ranges, after moving, and only where there are
# notes.
# </details>

# %% nbgrader={"grade_id": "transpose", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def transposed(
    tokens: Int[Tensor, "tokens"], shift: int, lowest: Int[Tensor, "4"], highest: Int[Tensor, "4"]
) -> Int[Tensor, "tokens"]:
    """The piece, moved; a ValueError where a voice could not sing it."""
    ### BEGIN SOLUTION
    note = tokens >= FIRST                                             # (tokens,)
    moved = torch.where(note, tokens + shift, tokens)                  # (tokens,)
    pitch = (moved - FIRST + LOW).view(-1, 4)                          # (steps, 4)
    if (((pitch < lowest) | (pitch > highest)) & note.view(-1, 4)).any():
        raise ValueError(f"shift={shift} takes a voice out of its range")
    return moved
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-transpose", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("transpose") as show:
    tokens = made_up(show, show.random_size(8, 12))
    grid = tokens.view(-1, 4)
    pitch = grid - FIRST + LOW
    low = torch.where(grid >= FIRST, pitch, 999).amin(dim=0)
    high = torch.where(grid >= FIRST, pitch, 0).amax(dim=0)
    up, down = show.random_size(1, 4), show.random_size(1, 4)
    show.call(transposed, tokens, up, low - 5, high + 5, label=f"up by {up}, with room")
    show.call(transposed, tokens, -down, low - down, high - down, label=f"down by {down}: just fits")
    deep = tokens.clone()
    deep[3] = FIRST
    show.call(transposed, deep, up, low - 20, high + 5, label=f"up by {up}; the bass begins on the lowest pitch")
    show.call(transposed, deep, up, low, high + 5, label=f"up by {up}, and still too low for the bass")
    show.call(transposed, tokens, up, low, high + torch.tensor([9, up, up, up - 1]), label=f"up by {up}: too high for the bass")
    show.call(transposed, tokens, up, low, high + torch.tensor([up - 1, 9, 9, 9]), label=f"up by {up}: too high for the soprano")
    show.call(transposed, tokens, up, low, (high.amax() + up - 1).expand(4), label=f"up by {up}: too high for all ranges")
    show.call(transposed, tokens, -down, low - torch.tensor([down, down - 1, 9, 9]), high, label=f"down by {down}: too low for the alto")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")


def moving(which=lambda t: t >= FIRST, per_voice=True, out=lambda p, low, high: (p < low) | (p > high), checked=True,
           before=False, all_notes=False):
    """A transposition with something wrong."""
    def answer(tokens, shift, lowest, highest):
        note = tokens >= FIRST
        moved = torch.where(which(tokens), tokens + shift, tokens)
        pitch = ((tokens if before else moved) - FIRST + LOW).view(-1, 4)
        if not per_voice:
            lowest, highest = lowest.min(), highest.max()
        wrong = out(pitch, lowest, highest)
        wrong = wrong if all_notes else wrong & note.view(-1, 4)
        if checked and wrong.any():
            raise ValueError("out of range")
        return moved
    return answer


mistake("transpose", moving(which=lambda t: t >= 0),
        "HOLD and REST are moved as well, and have become something else. Only tokens from FIRST on are pitches.")
mistake("transpose", moving(which=lambda t: t != REST),
        "HOLD is moved as well: a held note would become a new one, or silence. Only tokens from FIRST on are pitches.")
mistake("transpose", moving(which=lambda t: t < FIRST),
        "HOLD and REST are moved, and the notes stay where they were: exchange the last two arguments of `torch.where`.")
mistake("transpose", moving(which=lambda t: t < 0), "Nothing is moved: add `shift` to the tokens from FIRST on.")
mistake("transpose", moving(which=lambda t: t > FIRST),
        "The lowest pitch has the token FIRST itself. It is also a note: `>=`.")
mistake("transpose", moving(out=lambda p, low, high: p < low), "Only the lower end of the ranges is checked.")
mistake("transpose", moving(checked=False), "Nothing is refused. Raise a ValueError where a voice leaves its range.")
mistake("transpose", moving(per_voice=False),
        "All voices are measured by one range, from the lowest bass to the highest soprano. Each voice has its own.")
mistake("transpose", moving(out=lambda p, low, high: (p <= low) | (p >= high)),
        "The ends belong to the range: a voice can sing its lowest and its highest pitch.")
mistake("transpose", moving(before=True), "You check the notes *before* they are moved. Check what would be sung.")
mistake("transpose", moving(all_notes=True),
        "HOLD and REST are checked as if they were pitches, and nearly everything is refused. Check notes only.")
mistake("transpose", moving(out=lambda p, low, high: p > high), "Only the upper end of the ranges is checked.")


def by_loop(tokens, shift, lowest, highest):
    moved = tokens.clone()
    for place, token in enumerate(tokens.tolist()):
        if token >= FIRST:
            pitch = token - FIRST + LOW + shift
            if not lowest[place % 4] <= pitch <= highest[place % 4]:
                raise ValueError(place)
            moved[place] = token + shift
    return moved


alternative("transpose", by_loop)

# %% tags=["variant"]
from txgrade import variant

PAIRS = variant(2, 3, 4)  # of task 2: so many a lag needs

# %% [markdown]
# ### Task 2 · The same, but higher   ●●○○○ · 8 minutes · 2 points
#
# The lesson's self-similarity finds what comes back at the same pitch. Composers also bring back a *motif*, a short turn
# of a melody, higher or lower. What stays the same then are the *intervals*, the differences from one note to the next.
#
# Given the pitches of a melody, note by note, find the lag, from `least` on, at which most of its intervals are what they
# were so many notes ago, as a fraction of the pairs of intervals that are so far apart. Return the lag and that fraction. If
# several lags are equally good, take the smallest. A lag needs at least {{PAIRS:words}} pairs of intervals to count.
#
# <details><summary>Hint 1: intervals</summary>
#
# `melody.diff()`: one fewer than there are notes.
# </details>
# <details><summary>Hint 2: pairs</summary>
#
# Compare `intervals[lag:]` with `intervals[:-lag]`: the mean of where they are equal.
# </details>
# <details><summary>Hint 3: which lags?</summary>
#
# With $m$ intervals a lag leaves $m - \text{lag}$ pairs: the largest is $m - {{PAIRS}}$.
# </details>

# %% nbgrader={"grade_id": "lag", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def best_lag(melody: Int[Tensor, "notes"], least: int) -> tuple[int, float]:
    """The lag at which most intervals come again, and their fraction."""
    ### BEGIN SOLUTION
    interval = melody.diff()                                           # (notes - 1,)
    shares = {
        lag: (interval[lag:] == interval[:-lag]).float().mean().item() for lag in range(least, len(interval) - PAIRS + 1)
    }
    best = max(shares, key=shares.get)                                 # the first of the largest
    return best, shares[best]
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-lag", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("lag") as show:
    def sung(*intervals):                                              # the melody with these intervals
        return show.random_size(55, 75) + F.pad(torch.cat(intervals).cumsum(0), (1, 0))

    def turns(size):                                                   # so many different ones, up and down
        return (show.permutation(11)[:size] + 1) * (2 * show.randint(0, 2, size) - 1)

    size, between, up = show.random_size(6, 8), show.random_size(1, 3), show.random_size(2, 5)
    motif, filler = show.randint(55, 75, size), show.randint(55, 75, between)
    melody = torch.cat([motif, filler, motif + up, show.randint(55, 75, 2)])
    show(best_lag(melody, 3), f"a motif of {size} notes, comes back {up} higher after {between} others")
    x = turns(size)
    show([best_lag(sung(x, x, x), least) for least in (2, size, size + 1)],
         f"{size} intervals, three times; lags from 2, from {size} and from {size + 1} on")
    show(best_lag(sung(x, -x, x), 2), f"{size} intervals, upside down, and again")
    show(best_lag(sung(x, x + 12, x), 2), f"{size} intervals, an octave wider, and again")
    x = turns(8)
    x[9 - PAIRS :], x[4] = x[: PAIRS - 1], x[1]
    show(best_lag(sung(x), 2), f"eight intervals; the end is the beginning again, {PAIRS - 1} long")
    x = turns(9)
    x[9 - PAIRS :] = x[:PAIRS]
    show(best_lag(sung(x), 2), f"nine intervals; the end is the beginning again, {PAIRS} long")
    show(best_lag(show.randint(60, 63, show.random_size(30, 40)), 1), "three pitches at random")

# %% tags=["mistakes"]
def lagging(of=lambda m: m.diff(), share=lambda a, lag: (a[lag:] == a[:-lag]).float().mean().item(), last=lambda n: n - PAIRS + 1,
            best=lambda shares: max(shares, key=shares.get)):
    """A lag with something wrong."""
    def answer(melody, least):
        a = of(melody)
        shares = {lag: share(a, lag) for lag in range(least, last(len(a)))}
        lag = best(shares)
        return lag, shares[lag]
    return answer


mistake("lag", lagging(of=lambda m: m),
        "You compare pitches. A motif that comes back higher has other pitches, but the same intervals: `melody.diff()`.")
mistake("lag", lagging(share=lambda a, lag: (a == a.roll(lag)).float().mean().item()),
        "`roll` lets the end of the melody run into its beginning. Compare `[lag:]` with `[:-lag]`.")
mistake("lag", lagging(share=lambda a, lag: (a[lag:] == a[:-lag]).float().sum().item() / len(a)),
        "You divide by all intervals. At a lag there are fewer pairs: divide by those.")
mistake("lag", lagging(share=lambda a, lag: (a[lag:] == a[:-lag]).sum().item()), "That is how many agree, not which fraction.")
mistake("lag", lagging(best=lambda shares: max(reversed(list(shares)), key=shares.get)),
        "Among equally good lags you take the largest. Take the smallest.")
mistake("lag", lagging(last=lambda n: n - PAIRS + 2),
        "The largest lag leaves too few pairs of intervals, which may agree by chance. A lag needs {{PAIRS:words}} pairs.")
mistake("lag", lagging(last=lambda n: n - PAIRS),
        "You stop too early: a lag that leaves exactly {{PAIRS:words}} pairs of intervals counts as well.")
mistake("lag", lambda melody, least: best_lag(melody, least + 1), "You start one too late: `least` itself is also a lag.")
mistake("lag", lagging(of=lambda m: m.diff().abs()), "Up and down are different turns: keep the sign of the intervals.")
mistake("lag", lagging(of=lambda m: m.diff() % 12), "An octave's jump is no repeated note: intervals are not taken modulo 12 here.")


def by_counting(melody, least):
    m = melody.tolist()
    steps = [b - a for a, b in zip(m, m[1:])]
    best, top = None, -1.0
    for lag in range(least, len(steps) - PAIRS + 1):
        pairs = list(zip(steps[lag:], steps))
        share = sum(a == b for a, b in pairs) / len(pairs)
        if share > top + 1e-12:
            best, top = lag, share
    return best, top


alternative("lag", by_counting)

# %% [markdown]
# ### Task 3 · What a note costs   ●●●○○ · 10 minutes · 3 points
#
# A Markov chain over the tokens of one voice. It guesses the next token $b$ from the one before, $a$, by counting in the
# training sequence, and leans on coarser guesses where it has seen little:
#
# $$p(b) = \frac{c(b) + \tau / V}{c + \tau} \qquad\qquad p(b \mid a) = \frac{c(a, b) + \tau\, p(b)}{c(a) + \tau}$$
#
# $c(b)$ counts the token among all $c$ tokens of the training sequence; $c(a, b)$ counts pairs of neighbors, and $c(a)$
# the pairs that begin with $a$. Return the nats per *note* of the test sequence: the sum of $-\ln p$ over *all* its
# tokens, divided by its notes (tokens from `FIRST` on). Its first token has no token before it, and is guessed by $p(b)$.
#
# <details><summary>Hint 1: counting</summary>
#
# `torch.bincount(train, minlength=V)`. Pairs: a `(V, V)` table, `index_put_((train[:-1], train[1:]), torch.tensor(1.0),
# accumulate=True)`.
# </details>
# <details><summary>Hint 2: leaning</summary>
#
# `(pairs + trust * single) / (pairs.sum(dim=1, keepdim=True) + trust)`: `single`, of shape `(V,)`, broadcasts over rows.
# </details>
# <details><summary>Hint 3: the test</summary>
#
# `single[test[0]]`, and `chain[test[:-1], test[1:]]`.
# </details>

# %% nbgrader={"grade_id": "markov", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def nats_per_note(train: Int[Tensor, "tokens"], test: Int[Tensor, "others"], trust: float) -> Float[Tensor, ""]:
    """What a note of the test sequence costs a Markov chain that has read the training sequence."""
    ### BEGIN SOLUTION
    single = (torch.bincount(train, minlength=V) + trust / V) / (len(train) + trust)  # (V,)
    pairs = torch.zeros(V, V)
    pairs.index_put_((train[:-1], train[1:]), torch.tensor(1.0), accumulate=True)
    chain = (pairs + trust * single) / (pairs.sum(dim=1, keepdim=True) + trust)       # (V, V)
    nats = -single[test[0]].log() - chain[test[:-1], test[1:]].log().sum()
    return nats / (test >= FIRST).sum()
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-markov", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("markov") as show:
    train = made_up(show, show.random_size(60, 90))[::4]
    test = made_up(show, show.random_size(20, 40))[::4]
    show(nats_per_note(train, test, 2.0), "soprano, τ = 2")
    show(nats_per_note(train, test, 50.0), "soprano, τ = 50")
    show(nats_per_note(train[:5], test[:3], 0.5), "five tokens to learn from, three to guess, τ = 1/2")
    deep = test.clone()
    deep[show.random_size(1, 3)] = FIRST
    show([nats_per_note(train, deep, 2.0), nats_per_note(train, test[:1], 2.0)],
         "with the lowest pitch, which was never heard; a single note")

# %% tags=["mistakes"]
def chained(per=lambda test: (test >= FIRST).sum(), first=True, coarse="counts", direction=1, log=torch.log,
            begins=lambda pairs, train: pairs.sum(dim=1, keepdim=True), uniform=lambda trust: trust / V):
    """A Markov chain with something wrong."""
    def answer(train, test, trust):
        single = (torch.bincount(train, minlength=V) + uniform(trust)) / (len(train) + V * uniform(trust))
        if coarse == "uniform":
            leaning = torch.full((V,), 1 / V)
        else:
            leaning = single
        pairs = torch.zeros(V, V)
        a, b = (train[:-1], train[1:]) if direction > 0 else (train[1:], train[:-1])
        pairs.index_put_((a, b), torch.tensor(1.0), accumulate=True)
        if coarse == "no":
            chain = (pairs + trust / V) / (begins(pairs, train) + trust)
        else:
            chain = (pairs + trust * leaning) / (begins(pairs, train) + trust)
        nats = -log(chain[test[:-1], test[1:]]).sum() - (log(single[test[0]]) if first else 0)
        return nats / per(test)
    return answer


def leaning(single=lambda c, n, t: (c + t / V) / (n + t), chain=lambda pairs, p, t: (pairs + t * p) / (pairs.sum(1, keepdim=True) + t),
            pairs=True, total=lambda first, rest: first + rest, per=lambda test: (test >= FIRST).sum()):
    """A Markov chain with one of its formulas exchanged."""
    def answer(train, test, trust):
        p, table = single(torch.bincount(train, minlength=V), len(train), trust), torch.zeros(V, V)
        if pairs:
            table.index_put_((train[:-1], train[1:]), torch.tensor(1.0), accumulate=True)
        q = chain(table, p, trust)
        return total(-p[test[0]].log(), -q[test[:-1], test[1:]].log().sum()) / per(test)
    return answer


for wrong in (leaning(single=lambda c, n, t: c + t / V), leaning(chain=lambda pairs, p, t: pairs + t * p)):
    mistake("markov", wrong, "A probability is not divided: these are counts. Divide p(b) by c + τ, and p(b | a) by c(a) + τ.")
for wrong in (leaning(single=lambda c, n, t: c / (n + t)),
              leaning(chain=lambda pairs, p, t: pairs / (pairs.sum(1, keepdim=True) + t))):
    mistake("markov", wrong, "What was never seen has probability 0 here, and would cost infinitely much. Lean: add τ / V, or τ p(b).")
for wrong in (leaning(single=lambda c, n, t: (c + t / V) / n),
              leaning(chain=lambda pairs, p, t: (pairs + t * p) / pairs.sum(1, keepdim=True))):
    mistake("markov", wrong, "τ is added above the line but not below, so the probabilities don't add up to 1.")
for wrong in (leaning(pairs=False), leaning(chain=lambda pairs, p, t: t * p / (pairs.sum(1, keepdim=True) + t))):
    mistake("markov", wrong, "The pairs are not counted: without c(a, b) the chain does not know what follows what.")
for wrong in (leaning(chain=lambda pairs, p, t: (pairs + t) / (pairs.sum(1, keepdim=True) + t)),
              leaning(chain=lambda pairs, p, t: (pairs + p) / (pairs.sum(1, keepdim=True) + t))):
    mistake("markov", wrong, "The coarser guess has the weight τ: add the product, τ p(b), to the count.")
mistake("markov", leaning(single=lambda c, n, t: (c + t) / (n + t)),
        "p(b) gets τ for every token. It is τ in all, τ/V for each.")
mistake("markov", leaning(chain=lambda pairs, p, t: (pairs + t * p) / (pairs.sum(0, keepdim=True) + t)),
        "You divide by how often $b$ came. $c(a)$ counts the pairs that *begin* with $a$: add up along a row.")
mistake("markov", leaning(total=lambda first, rest: first), "Only the first token is counted. Add what all the others cost.")
mistake("markov", leaning(per=lambda test: 1), "That is what the whole sequence costs. Divide by its notes.")
mistake("markov", leaning(per=lambda test: (test > FIRST).sum()), "The lowest pitch, the token FIRST itself, is also a note.")
mistake("markov", chained(per=lambda test: len(test)),
        "That is nats per *token*. Divide by the notes only: tokens from FIRST on.")
mistake("markov", chained(per=lambda test: (test != HOLD).sum()), "RESTs are no notes: divide by the tokens from FIRST on.")
mistake("markov", chained(first=False), "The first token of the test sequence is not counted. It is guessed by p(b).")
mistake("markov", chained(direction=-1), "Your chain runs backwards: it counts which token stood *before*.")
mistake("markov", chained(log=torch.log2), "Those are bits, by the logarithm to base 2. Nats take the natural one.")
mistake("markov", chained(coarse="uniform"), "The chain leans on 1/V. It is to lean on p(b), which knows which tokens are frequent.")
mistake("markov", chained(uniform=lambda trust: trust),
        "p(b) gets τ for every token. It is τ in all, τ/V for each.")
mistake("markov", lambda train, test, trust: nats_per_note(test, test, trust),
        "You count in the test sequence itself. It is easy to guess well if you have seen the answers: count in the training sequence.")


def one_at_a_time(train, test, trust):
    train, test, nats, before = train.tolist(), test.tolist(), 0.0, None
    for token in test:
        p = (train.count(token) + trust / V) / (len(train) + trust)
        if before is not None:
            both = sum(a == before and b == token for a, b in zip(train, train[1:]))
            p = (both + trust * p) / (train[:-1].count(before) + trust)
        nats, before = nats - math.log(p), token
    return torch.tensor(nats / sum(token >= FIRST for token in test))


alternative("markov", one_at_a_time)

# %% [markdown]
# ### Task 4 · Skew the other way round   ●●●●○ · 13 minutes · 4 points
#
# Shaw et al. (2018) also add a vector for each distance to the *values*; the Music Transformer left that out. With the
# causal weights $\alpha_{ij}$ of `(heads, n, n)` and vectors of `(heads, n, d)`, the farthest distance first, as in the
# lesson:
#
# $$\text{out}_i = \sum_{j \le i} \alpha_{ij}\, e_{j-i}$$
#
# Done as it is written, it needs $n^2 d$ numbers. Sort each row of the weights by *distance* instead, and it is a matrix
# product: that is the lesson's `skew` backwards. Do it by padding and cutting, without `gather`, `scatter` or a loop. Your
# largest tensor must not grow with $d$, and the weights above the diagonal are 0.
#
# <details><summary>Hint 1: where to?</summary>
#
# Weight $\alpha_{ij}$ belongs into row $i$, column $n - 1 - (i - j)$.
# </details>
# <details><summary>Hint 2: addresses</summary>
#
# It has the address $i\,n + j$ on a line of all weights. Which one should it have in a matrix of $n + 1$ columns, whose
# first column is padding?
# </details>
# <details><summary>Hint 3: backwards</summary>
#
# It should have $i\,(n + 1) + n - i + j = i\,n + j + n$. So put $n$ zeros before the line, cut rows of $n + 1$, and drop
# the first column.
# </details>

# %% nbgrader={"grade_id": "unskew", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def relative_values(
    weights: Float[Tensor, "heads n n"], e: Float[Tensor, "heads n d"]
) -> Float[Tensor, "heads n d"]:
    """What the vectors of the distances add to the output."""
    ### BEGIN SOLUTION
    n = weights.shape[-1]
    line = F.pad(weights.flatten(-2), (n, 0))                          # (heads, n · (n + 1))
    by_distance = line.unflatten(-1, (n, n + 1))[..., 1:]              # (heads, query, distance)
    return by_distance @ e
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-unskew", "grade": true, "points": 4, "solution": false, "locked": true, "schema_version": 3}
with check("unskew") as show:
    def causal_weights(heads, n):
        hidden = torch.ones(n, n).triu(1).bool()
        return show.randn(heads, n, n).masked_fill(hidden, float("-inf")).softmax(dim=-1)

    heads, n, d = show.random_size(1, 3), show.random_size(5, 9), show.random_size(2, 4)
    show(relative_values(torch.eye(n)[None], show.randn(1, n, d)), f"n = {n}: each token looks at itself")
    show(relative_values(causal_weights(heads, n), show.randn(heads, n, d)), f"heads = {heads}, n = {n}")
    show(relative_values(causal_weights(2, 1), show.randn(2, 1, d)), "n = 1")
    n = show.random_size(50, 70)
    narrow, wide = (cost(relative_values, causal_weights(1, n), show.randn(1, n, width)) for width in (4, 32))
    show([show.sketch(narrow.value), show.sketch(wide.value), exponent(narrow.largest, wide.largest, 8)],
         f"n = {n}, d = 4 and d = 32; the largest tensor grows with d to the power of")

# %% tags=["mistakes"]
forbid("unskew", ("gather", "scatter", "scatter_add", "take_along_dim", "index_add", "index_select"),
       ("aten.gather", "aten.scatter_add", "aten.index"))


equivalent("unskew", "weights.shape[-1] → weights.shape[-2]", "The weights are square.")


def by_distance_of(weights):
    n = weights.shape[-1]
    return F.pad(weights.flatten(-2), (n, 0)).unflatten(-1, (n, n + 1))[..., 1:]


def as_written(weights, e):
    n = weights.shape[-1]
    ago = (torch.arange(n)[:, None] - torch.arange(n)).clamp(min=0)
    vector = e[:, -1 - ago]                                            # (heads, query, key, d)
    return (weights[..., None] * vector).sum(dim=2)


mistake("unskew", as_written,
        "The numbers are right, but you make a vector for each pair: the largest tensor grows with d. Sort the weights first.")
mistake("unskew", lambda weights, e: weights @ e,
        "Column j of the weights is a *key*. Row c of `e` is a distance: sort each row of the weights by distance first.")
mistake("unskew", lambda weights, e: by_distance_of(weights) @ e.flip(1),
        "You take the nearest distance first. In `e` the farthest is first, and the last row is distance 0.")
mistake("unskew", lambda weights, e: F.pad(weights, (1, 0)).flatten(-2)[..., weights.shape[-1]:].unflatten(-1, weights.shape[-2:]) @ e,
        "That is the lesson's `skew`, which takes distances to keys. Here keys are to become distances: undo its steps in reverse.")
mistake("unskew", lambda weights, e: weights.flip(-1) @ e,
        "Reversing the rows is right for the last query only: in the others the nearest key is not at the end.")
mistake("unskew", lambda weights, e: F.pad(weights.flatten(-2), (weights.shape[-1], 0)).unflatten(
            -1, (weights.shape[-1], weights.shape[-1] + 1))[..., :-1] @ e,
        "The wrong column is dropped. The padding is the first one.")
mistake("unskew", lambda weights, e: F.pad(weights.flatten(-2), (0, weights.shape[-1])).unflatten(
            -1, (weights.shape[-1], weights.shape[-1] + 1))[..., 1:] @ e,
        "You pad at the end of the line. Put the n zeros before it: the first query's only weight belongs into the *last* column.")


def by_diagonals(weights, e):
    n = weights.shape[-1]
    out = torch.zeros_like(e)
    for ago in range(n):
        out[:, ago:] += weights.diagonal(-ago, dim1=1, dim2=2)[..., None] * e[:, n - 1 - ago, None]
    return out


alternative("unskew", by_diagonals)

# %% [markdown]
# ### Task 5 · Distances in steps   ●●●●○ · 13 minutes · 3 points
#
# In the lesson each distance between *tokens* has its vector: 1 ago, 2 ago, 3 ago … One could also say: what counts is how
# many *steps* ago, and the four voices of a step share a vector. There are $n = 4T$ queries, `(heads, 4T, d)`, and
# vectors for $T$ distances in steps, the farthest first, `(heads, T, d)`. Query $i$ is in step $\lfloor i/4 \rfloor$.
# Return
#
# $$\text{bias}_{ij} = q_i \cdot e_{\lfloor j/4 \rfloor - \lfloor i/4 \rfloor}$$
#
# for all keys of the query's own step and of the steps before, and 0 for the keys of later steps. As in the lesson: no
# `gather`, no index per pair, no loop over positions; the largest tensor must not grow with $d$. (You get the lesson's
# `skew`.)
#
# <details><summary>Hint 1: one voice</summary>
#
# For the $T$ queries of a single voice this is the lesson's skewing, from (step, distance) to (step, step of the key).
# </details>
# <details><summary>Hint 2: four voices</summary>
#
# Split the queries, `(heads, T, 4, T)` after the product, and bring the voices to the front of the steps: `transpose`.
# </details>
# <details><summary>Hint 3: four keys</summary>
#
# Each step of keys holds four of them: `repeat_interleave(4, dim=-1)`. What is left over in the future goes by `tril`, while
# rows and columns are steps.
# </details>

# %%
def skew(by_distance: Float[Tensor, "*rest n n"]) -> Float[Tensor, "*rest n n"]:
    """The lesson's; entries above the diagonal are left over."""
    n = by_distance.shape[-1]
    return F.pad(by_distance, (1, 0)).flatten(-2)[..., n:].unflatten(-1, (n, n))

# %% nbgrader={"grade_id": "steps", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def bias_by_step(q: Float[Tensor, "heads n d"], e: Float[Tensor, "heads steps d"]) -> Float[Tensor, "heads n n"]:
    """The score of each query with the vector of each key's distance in steps."""
    ### BEGIN SOLUTION
    by_distance = (q @ e.mT).unflatten(1, (-1, 4)).transpose(1, 2)     # (heads, 4, step, distance)
    by_step = skew(by_distance).tril()                                 # (heads, 4, step, step of the key)
    return by_step.transpose(1, 2).flatten(1, 2).repeat_interleave(4, dim=-1)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-steps", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("steps") as show:
    T, d = show.random_size(3, 5), show.random_size(2, 4)
    far = torch.arange(T, 0, -1.0).expand(1, T)[..., None]
    show(bias_by_step(torch.ones(1, 4 * T, 1), far * show.random_size(2, 9)), f"{T} steps; all queries are 1")
    show(bias_by_step(show.randn(2, 4 * T, d), show.randn(2, T, d)), f"two heads, {T} steps")
    show(bias_by_step(show.randn(1, 4, d), show.randn(1, 1, d)), "a single step")
    T = show.random_size(14, 18)
    narrow, wide = (cost(bias_by_step, show.randn(1, 4 * T, width), show.randn(1, T, width)) for width in (4, 32))
    show([show.sketch(narrow.value), show.sketch(wide.value), exponent(narrow.largest, wide.largest, 8)],
         f"{T} steps, d = 4 and d = 32; the largest tensor grows with d to the power of")

# %% tags=["mistakes"]
forbid("steps", ("gather", "take_along_dim", "index_select"), ("aten.gather", "aten.index"))


def stepping(split=lambda b: b.unflatten(1, (-1, 4)).transpose(1, 2), skewed=lambda b: skew(b).tril(),
             back=lambda s: s.transpose(1, 2).flatten(1, 2), keys=lambda s: s.repeat_interleave(4, dim=-1)):
    """A bias by steps with something wrong."""
    return lambda q, e: keys(back(skewed(split(q @ e.mT))))


def pairs_of_vectors(q, e):
    step = torch.arange(q.shape[1]) // 4
    ago = step[:, None] - step
    vector = e[:, -1 - ago.clamp(min=0)]
    return torch.einsum("hid,hijd->hij", q, vector).masked_fill(ago < 0, 0)


mistake("steps", pairs_of_vectors,
        "The numbers are right, but you make a vector for each pair: the largest tensor grows with d. Let each query meet each distance "
        "once, then skew.")
mistake("steps", stepping(skewed=skew),
        "The keys of later steps hold left-overs from other rows. They are to be 0: `tril`, while rows and columns are steps.")
mistake("steps", stepping(split=lambda b: b.unflatten(1, (4, -1)), back=lambda s: s.flatten(1, 2)),
        "You split the queries as if all sopranos came first. Tokens come step by step: `unflatten(1, (-1, 4))`.")
mistake("steps", stepping(keys=lambda s: s.repeat(1, 1, 4)),
        "`repeat` puts the whole row of steps four times in a row. The four keys of a step are side by side: `repeat_interleave`.")
mistake("steps", stepping(skewed=lambda b: b.tril()),
        "The columns are still distances. They have to be skewed to keys.")
mistake("steps", stepping(skewed=lambda b: skew(b.flip(-1)).tril()),
        "You take the nearest distance first. In `e` the farthest is first, and the last row is distance 0.")
mistake("steps", lambda q, e: stepping()(q, e).tril(),
        "The voices of one step share a distance, 0 steps, also those that come later in it: they are hidden by the mask, not here. Only "
        "later *steps* are 0.")
mistake("steps", stepping(back=lambda s: s.flatten(1, 2)),
        "The rows come voice by voice. Put them back in the order of the tokens: `transpose` before you flatten.")


def step_by_step(q, e):
    steps = e.shape[1]
    rows = []
    for step in range(steps):
        own = q[:, 4 * step : 4 * step + 4] @ e[:, steps - 1 - step :].mT               # (heads, 4, step + 1)
        rows.append(F.pad(own, (0, steps - 1 - step)).repeat_interleave(4, dim=-1))
    return torch.cat(rows, dim=1)


alternative("steps", step_by_step)

# %% [markdown]
# ### Task 6 · Rules of the house   ●●●●○ · 13 minutes · 3 points
#
# The lesson's rules let voices *cross*: an alto above the soprano. A teacher of Bach's time would strike that out. Given the
# tokens so far, say which tokens may come next, as a tensor of `V` bools:
#
# - The soprano (tokens 0, 4, 8 …) sings the melody that is given: one token is allowed, `melody[step]`.
# - Another voice may begin a note of its range, `lowest[voice]` to `highest[voice]` (pitches, ends included), if it is
#   not above the pitch that the *next higher voice* has in this step. Where that voice is silent, its range alone counts.
# - HOLD is allowed if the voice has a note to hold, and if that note is not above the next higher voice either.
# - REST is always allowed to them (unlike in the lesson), BEGIN and END never.
#
# What pitch does a voice have? That of its last note, unless a REST came since.
#
# <details><summary>Hint 1: a helper</summary>
#
# Write a function that gives a voice's pitch, or `None`, from the tokens of that voice so far: skip HOLDs from the end.
# </details>
# <details><summary>Hint 2: whose turn?</summary>
#
# `step, voice = divmod(len(line), 4)`. The next higher voice is `voice - 1`, and has spoken in this step.
# </details>
# <details><summary>Hint 3: a voice's tokens</summary>
#
# `line[voice::4]`. For the voice above, this includes its token of this step.
# </details>

# %% nbgrader={"grade_id": "rules", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def allowed_next(
    line: Int[Tensor, "so_far"], melody: Int[Tensor, "steps"], lowest: Int[Tensor, "4"], highest: Int[Tensor, "4"]
) -> Bool[Tensor, "{V}"]:
    """Which tokens may come next."""
    ### BEGIN SOLUTION
    def sounding(voice: int) -> int | None:
        spoken = line[voice::4]
        spoken = spoken[spoken != HOLD]
        return spoken[-1].item() - FIRST + LOW if len(spoken) and spoken[-1] >= FIRST else None

    step, voice = divmod(len(line), 4)
    token = torch.arange(V)
    if voice == 0:
        return token == melody[step]
    above, own = sounding(voice - 1), sounding(voice)
    most = highest[voice] if above is None else min(highest[voice].item(), above)
    pitch = token - FIRST + LOW
    allowed = (token >= FIRST) & (pitch >= lowest[voice]) & (pitch <= most)
    allowed[REST] = True
    allowed[HOLD] = own is not None and (above is None or own <= above)
    return allowed
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-rules", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("rules") as show:
    steps = show.random_size(5, 8)
    line = made_up(show, steps)
    melody = made_up(show, steps + 1)[::4]
    lowest = torch.tensor([57, 53, 48, 36]) + show.randint(0, 6, 4)
    highest = torch.tensor([81, 74, 69, 64]) - show.randint(0, 6, 4)

    def after(line, voice, *last):                                     # up to a voice's turn; the last tokens are set
        cut = line[: 4 * (steps - 1) + voice].clone()
        cut[len(cut) - len(last) :] = torch.tensor(last)
        return cut

    note = show.random_size(58, 62) - LOW + FIRST
    show(allowed_next(line, melody, lowest, highest), "the soprano's turn")
    show(allowed_next(after(line, 1, note), melody, lowest, highest), "the alto's turn, the soprano has begun a note")
    before = [note + 2, note, note - 3, note - 5]
    show(allowed_next(after(line, 2, *before, HOLD, HOLD), melody, lowest, highest), "the tenor's turn, the alto holds")
    show(allowed_next(after(line, 3, *before, HOLD, REST, REST), melody, lowest, highest), "the bass's turn, the tenor rests")
    show(allowed_next(after(line, 2, *before, HOLD, note - 6), melody, lowest, highest), "the tenor's turn, the alto went below it")
    rests = [note, note - 2, REST, note - 9]
    show(allowed_next(after(line, 2, *rests, HOLD, HOLD), melody, lowest, highest), "the tenor's turn, it rested")
    same = [note, note - 2, note - 2, note - 9]
    show(allowed_next(after(line, 2, *same, HOLD, HOLD), melody, lowest, highest), "the tenor's turn, alto and tenor have the same pitch")
    high = highest[1].item() + show.random_size(1, 4) - LOW + FIRST
    show(allowed_next(after(line, 1, high), melody, lowest, highest), "the alto's turn, the soprano is above the alto's range")
    show([allowed_next(line[:voice], melody, lowest, highest) for voice in (0, 1, 3)],
         "the first step: the turns of soprano, alto and bass, which have no note yet")
    deep = [allowed_next(after(line, 3, note, note - 2, token, note - 9, HOLD, HOLD, HOLD), melody, lowest - torch.tensor([0, 0, 9, 9]), highest)
            for token in (FIRST, FIRST + show.random_size(1, 3))]
    show(deep, "the bass's turn, the tenor is as deep as can be, or nearly; the bass's range begins below the lowest token")

# %% tags=["mistakes"]
def ruled(soprano=True, crossing=True, through_hold=True, hold="full", rest=True, ends=0, ranges=lambda voice: voice,
          above_voice=lambda voice: voice - 1, after_rest=True, strict=False, low_end=True, high_end=True, first=0):
    """Rules with something wrong."""
    def answer(line, melody, lowest, highest):
        def sounding(voice, skip=True):
            spoken = line[voice::4]
            if not after_rest:
                spoken = spoken[spoken >= FIRST]
            elif skip:
                spoken = spoken[spoken != HOLD]
            return spoken[-1].item() - FIRST + LOW if len(spoken) and spoken[-1] >= FIRST + first else None

        step, voice = divmod(len(line), 4)
        token = torch.arange(V)
        if voice == 0 and soprano:
            return token == melody[step]
        above = sounding(above_voice(voice), through_hold) if crossing and voice else None
        own = sounding(voice)
        low, high = lowest[ranges(voice)].item() + ends, highest[ranges(voice)].item() - ends
        low, high = low if low_end else 0, high if high_end or above is None else above
        most = high if above is None else min(high, above - strict)
        pitch = token - FIRST + LOW
        allowed = (token >= FIRST + first) & (pitch >= low) & (pitch <= most)
        allowed[REST] = rest
        allowed[HOLD] = hold == "always" or own is not None and (hold == "own" or above is None or own <= above - strict)
        return allowed
    return answer


mistake("rules", ruled(soprano=False), "The soprano is given: at its turn the melody's token is the only one allowed.")
mistake("rules", ruled(crossing=False), "Nothing keeps a voice below the next higher one.")
mistake("rules", ruled(through_hold=False),
        "A voice that holds also has a pitch: go back over its HOLDs to the note that it began.")
mistake("rules", ruled(hold="always"), "HOLD needs a note to hold: after a REST there is none.")
mistake("rules", ruled(hold="own"),
        "A held note can end up above the next higher voice, when that moves down. Then HOLD is forbidden as well.")
mistake("rules", ruled(rest=False), "REST is always allowed to the three lower voices.")
mistake("rules", ruled(ends=1), "The ends of a range belong to it.")
mistake("rules", ruled(high_end=False), "A voice stays in its own range also where the next higher voice is above it: take the lower of the two limits.")
mistake("rules", ruled(low_end=False), "Nothing keeps a voice above the lowest pitch of its range.")
mistake("rules", ruled(above_voice=lambda voice: voice), "You compare a voice with itself. The next higher voice is `voice - 1`.")
mistake("rules", ruled(first=1), "The lowest pitch has the token FIRST itself. It is also a note: `>=`.")
mistake("rules", ruled(above_voice=lambda voice: 0),
        "You compare with the soprano. It is the *next* higher voice that must not be crossed.")
mistake("rules", ruled(after_rest=False), "A REST ends a note. A voice that rests has no pitch, and nothing to hold.")
mistake("rules", ruled(strict=True), "The same pitch as the next higher voice is allowed: only *above* it is forbidden.")


def token_by_token(line, melody, lowest, highest):
    now: list[int | None] = [None] * 4
    for place, token in enumerate(line.tolist()):
        if token != HOLD:
            now[place % 4] = token - FIRST + LOW if token >= FIRST else None
    voice = len(line) % 4
    if voice == 0:
        return torch.arange(V) == melody[len(line) // 4]
    limit = now[voice - 1] if now[voice - 1] is not None else 200
    good = [False, False, True, now[voice] is not None and now[voice] <= limit]
    good += [lowest[voice] <= pitch <= min(highest[voice].item(), limit) for pitch in range(LOW, HIGH + 1)]
    return torch.tensor([bool(each) for each in good])


alternative("rules", token_by_token)

# %% [markdown]
# ### Task 7 · Investigate: which distance tells most?   ●●●●● · 25 minutes · 3 points
#
# The lesson's tables look at the voice's own last pitch and at the position in the beat. Take these two (and the voice) as
# the context, and add one thing: the pitch that *sounded* so many tokens ago, counted from the token that is to be guessed.
# Try 1, 2 and 3 tokens ago, several multiples of 4 up to 64, and 128, 256 and 384 (two, four and six bars). Lean, as the
# lesson's `probability` does, on the table without it. Measure nats per note on the test chorales, for each voice by itself.
# (Where the piece has not begun so many tokens ago, say 0. Your first row is the context without any distance: voice, last
# pitch, position in the beat. None of the lesson's tables is that one.)
#
# Say beforehand which distance helps the bass most, and which the soprano. Then: which distances help whom? Does a bar ago
# help more than its neighbors, 60 and 68? Do four or six bars, where the lesson's curve has its peaks? And what could an
# attention head do with a distance that no such table can? Two or three sentences.
#
# Copy what you need from the lesson into new cells below this one; here you may use all of `txlib`. Hand in a table
# of your numbers and your text. A person reads it.

# %% [markdown] nbgrader={"grade_id": "which-distance", "solution": true, "grade": true, "points": 3, "locked": false, "schema_version": 3}
# <!-- BEGIN SOLUTION -->
# Expected: the bass gains most from the tenor (1 ago) or the soprano (3 ago), the soprano from its own past. Nats per note,
# 39 test chorales, leaning with a trust of 5:
#
# | tokens ago | soprano | alto | tenor | bass |
# | --- | --- | --- | --- | --- |
# | none | 2.83 | 2.86 | 2.97 | 3.04 |
# | 1 | 2.62 | 2.41 | 2.54 | 2.53 |
# | 2 | 2.76 | 2.61 | 2.55 | 2.47 |
# | 3 | 2.71 | 2.75 | 2.81 | 2.50 |
# | 4 | 2.86 | 2.88 | 3.01 | 3.06 |
# | 8 | 2.85 | 2.85 | 2.98 | 3.05 |
# | 12 | 2.77 | 2.74 | 2.84 | 2.78 |
# | 16 | 2.79 | 2.75 | 2.84 | 2.79 |
# | 32 | 2.76 | 2.81 | 2.99 | 2.95 |
# | 60 | 2.87 | 2.93 | 3.06 | 3.15 |
# | 64 | 2.86 | 2.92 | 3.05 | 3.15 |
# | 68 | 2.85 | 2.95 | 3.10 | 3.15 |
# | 128 | 2.95 | 2.97 | 3.11 | 3.21 |
# | 256 | 2.88 | 2.96 | 3.10 | 3.20 |
# | 384 | 2.87 | 2.95 | 3.09 | 3.16 |
#
# The voices that sing now tell most: half a nat, and each voice gains from those above it; the bass from all three about
# alike, the tenor from two. (The soprano has no voice above, and gains from what the others sang a step ago.) One's own pitch
# a beat ago is worth up to a quarter of a nat. A bar ago helps no more than its neighbors, and like all that is farther away it
# *costs*: the contexts become rare, and the table believes in chance. Four and six bars cost less than two: there the peaks
# show, but faintly. A head has one vector per distance for all pitches, so it needs few examples; it weighs distances by the
# case at hand, and several at once; and it can look for *what* comes again, wherever that is, which a table at a fixed
# distance cannot.
# <!-- END SOLUTION -->

# %% [markdown] tags=["rubric"]
# 1 point: a table of at least eight distances, 1 to 3, multiples of 4 and some of 128, 256, 384 among them, each voice by
# itself, on test pieces. 1 point: read as it is: the voices above, now, help the lower ones; distances in bars help little
# or nothing, and no more than their neighbors by more than chance. 1 point: a reason what a head can do that a table can't:
# combine several distances, look for content, weigh by the case at hand; or that rare contexts lean back on the coarser table.

# %%
check.summary()
