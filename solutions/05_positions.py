# %% [markdown]
# # Exercise 05 · Positions
#
# Five tasks, 12 points, about 65 minutes. You need [lesson 05](../notebooks/05_positions.ipynb). Tasks 1 and 3 are the
# *core*, about 25 minutes; tasks 2, 4 and 5 are *more*. Run the cells from the top; fill in where it says *your turn*;
# after each answer, run its cell and the check below it.
#
# Write the answers yourself: one that calls txlib, or what a task rules out, is flagged for your teacher, if you have
# one.

# %% tags=["parameters"]
seed = 0

# %%
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from txgrade import check

# %% tags=["variant"]
from txgrade import variant

BASE = variant(10_000, 500, 2_000, 50_000)  # of the frequencies in task 1

# %% [markdown]
# ### Task 1 · A clock for a padded batch   ●●○○○ · 10 minutes · 2 points
#
# A batch holds texts of different lengths, and some programs pad them on the *left*. Then the column of a word is not
# its position. So you are given the position of each word, and return the row of sinusoidal positions for each:
#
# $$\text{PE}(i, 2c) = \sin(i\,\omega_c) \qquad \text{PE}(i, 2c+1) = \cos(i\,\omega_c) \qquad \omega_c = {{BASE}}^{-2c/d}$$
#
# where $i$ is the position and $d$ the width. You may assume that $d$ is even. `BASE`, defined above, holds
# {{BASE}}. (Padding counts as position 0; later a mask hides it.)
#
# <details><summary>Hint 1: the frequencies</summary>
#
# `torch.arange(0, d, 2)` is $2c$ for all $c$ at once.
# </details>
# <details><summary>Hint 2: all angles at once</summary>
#
# `position[..., None]` has the shape `(batch, length, 1)`. Multiplied by the frequencies, `(d / 2,)`, it broadcasts to
# `(batch, length, d / 2)`.
# </details>
# <details><summary>Hint 3: sine, cosine, sine, cosine</summary>
#
# `torch.stack([…, …], dim=-1)` puts each sine next to its cosine, in a new last axis of size 2; `flatten(-2)` joins the
# last two axes. Or fill an empty table: `table[..., 0::2] = …`.
# </details>

# %% nbgrader={"grade_id": "sinusoidal", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def sinusoidal(position: Int[Tensor, "batch length"], d: int) -> Float[Tensor, "batch length d"]:
    """Sines in the even columns, cosines in the odd ones, for the given positions."""
    ### BEGIN SOLUTION
    frequency = BASE ** (-torch.arange(0, d, 2) / d)                # (d / 2,)
    angle = position[..., None] * frequency                         # (batch, length, d / 2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-sinusoidal", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("sinusoidal", atol=1e-4) as show:
    show(sinusoidal(torch.tensor([[0, 1, 2]]), 4), "positions 0, 1, 2")
    padded = torch.tensor([[0, 1, 2, 3], [0, 0, 0, 1]])
    show(sinusoidal(padded, 6), "a batch, the second text padded with two on the left")
    first, length = show.random_size(5, 40), show.random_size(4, 8)
    show(sinusoidal(torch.arange(first, first + length)[None], 2 * show.random_size(4, 8)), f"from position {first}")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")


def angles(position, d, *, exponent=2.0):
    return position[..., None] * BASE ** (-exponent * torch.arange(d // 2) / d)


def woven(angle):
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)


mistake("sinusoidal", lambda position, d: woven(angles(torch.arange(position.shape[1]).expand_as(position), d)),
        "You counted the columns of the batch. With padding on the left, or a text that goes on, a word's position is "
        "another: it is what `position` says.")
mistake("sinusoidal", lambda position, d: woven(angles(position, d, exponent=1.0)),
        "Your hands slow down only half as fast as they should: the exponent is $2c/d$, not $c/d$. "
        "Does your `arange` count in steps of 2?")
mistake("sinusoidal", lambda position, d: woven(angles(position, d, exponent=4.0)),
        "Your hands slow down twice as fast as they should. `torch.arange(0, d, 2)` is $2c$ already: don't double it "
        "again.")
mistake("sinusoidal", lambda position, d: woven(angles(position, d, exponent=-2.0)),
        "The exponent has lost its minus sign: your hands turn faster and faster from left to right.")
mistake("sinusoidal", lambda position, d: torch.cat([angles(position, d).sin(), angles(position, d).cos()], dim=-1),
        "All sines stand first, then all cosines. Some programs do it so, but the formula alternates: "
        "column 0 is a sine, column 1 its cosine.")
mistake("sinusoidal", lambda position, d: woven(angles(position + 1, d)),
        "You counted positions from 1. Take them as they are: position 0 has the row 0, 1, 0, 1, …")
mistake("sinusoidal", lambda position, d: torch.stack([angles(position, d).cos(), angles(position, d).sin()], dim=-1).flatten(-2),
        "Sine and cosine are swapped: even columns are sines.")
mistake("sinusoidal", lambda position, d: torch.stack([angles(position, d).sin(), angles(position, d).cos()]).reshape(*position.shape, d),
        "`stack` put the sines and the cosines on a new *first* axis, and `reshape` then mixed up positions. Stack along "
        "the last axis, `dim=-1`, so that each sine has its cosine beside it.")


mistake("sinusoidal", lambda position, d: woven(position[..., None] * BASE ** -torch.arange(0.0, d, 2)),
        "The exponent is not divided by $d$, so nearly all your hands stand still.")
mistake("sinusoidal", lambda position, d: woven(position[..., None] * torch.ones(d // 2)),
        "All your hands turn at the same speed: multiply the position by the frequencies.")
mistake("sinusoidal", lambda position, d: woven(angles(position, d)).unflatten(-1, (-1, 2)),
        "The numbers are right, but sine and cosine still have an axis of their own. Join the last two axes: `flatten(-2)`.")
for first_axis in (0, 1):
    mistake("sinusoidal", lambda position, d, first_axis=first_axis: woven(angles(position, d)).flatten(first_axis),
            "The numbers are right, but you have joined too many axes: each word's row has to stay by itself. "
            "`flatten(-2)` joins the last two.")


def own_speeds(position, d):
    angle = position[..., None] * BASE ** (-torch.arange(d) / d)
    return torch.where(torch.arange(d) % 2 == 0, angle.sin(), angle.cos())


mistake("sinusoidal", own_speeds,
        "Each column has a speed of its own. A hand is a *pair*: columns $2c$ and $2c+1$ share the angle "
        "$i\\,\\omega_c$, so there are $d/2$ speeds.")


def by_columns(position, d, *, cosines=True):
    table, angle = torch.zeros(*position.shape, d), angles(position, d)
    table[..., 0::2] = angle.sin()
    if cosines:
        table[..., 1::2] = angle.cos()
    return table


mistake("sinusoidal", lambda position, d: by_columns(position, d, cosines=False),
        "The sines are right, but the odd columns are still empty: they are the cosines of the same angles.")
alternative("sinusoidal", by_columns)

# %% [markdown]
# ### Task 2 · Which row for which distance?   ●●○○○ · 10 minutes · 2 points
#
# Shaw's attention keeps a table with one vector for each distance $-k \dots k$, so $2k + 1$ rows. Return the matrix
# that says which row of the table belongs to each query and key. Here the keys of earlier words may have been stored (a
# *cache*, lesson 13), so that only new words ask: there are `keys` keys at the positions $0, 1, 2, \dots$, and the
# queries are the *last* `queries` of these positions, at least one. (Without a cache both numbers are equal.)
#
# The distance is the key's position minus the query's. Keys farther than $k$ in the future use the row of $k$; keys
# farther than $k$ in the past, the row of $-k$. Distance $-k$ is row 0. Rows are whole numbers.
#
# <details><summary>Hint 1: where are the queries?</summary>
#
# With 7 keys and 2 queries, the queries are at 5 and 6. In general they begin at `keys - queries`.
# </details>
# <details><summary>Hint 2: all distances at once</summary>
#
# The keys' positions as a row, minus the queries' positions as a column, broadcast to `(query, key)`.
# </details>
# <details><summary>Hint 3: the order of two steps</summary>
#
# Clip while distances are still signed, with `clamp(-k, k)`. Then shift them, so that the smallest is 0.
# </details>

# %% nbgrader={"grade_id": "buckets", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def buckets(queries: int, keys: int, k: int) -> Int[Tensor, "query key"]:
    """Row of the table of distances, 0 … 2k, for each query and key; the queries are the last positions."""
    ### BEGIN SOLUTION
    position = torch.arange(keys)                                   # (key,)
    distance = position[None, :] - position[keys - queries :, None]            # (query, key)
    return distance.clamp(-k, k) + k
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-buckets", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("buckets") as show:
    show(buckets(4, 4, 5), "4 queries, 4 keys, k = 5")
    show(buckets(2, 7, 2), "2 queries, 7 keys, k = 2")
    keys, k = show.random_size(8, 20), show.random_size(1, 6)
    show([buckets(1, keys, k), buckets(1, k + 1, k), buckets(k + 1, k + 1, k)],
         f"1 query, {keys} keys, k = {k}; then {k + 1} keys, with 1 query and with {k + 1}")
    queries, k = show.random_size(3, 9), show.random_size(2, 5)
    keys = queries + show.random_size(2 * k, 20)
    show(buckets(queries, keys, k), f"{queries} queries, {keys} keys, k = {k}")
    length, k = show.random_size(10, 30), show.random_size(2, 7)
    show(buckets(length, length, k), f"{length} queries, {length} keys, k = {k}")

# %% tags=["mistakes"]
def distances(queries, keys):
    return torch.arange(keys)[None, :] - torch.arange(keys - queries, keys)[:, None]


def from_zero(queries, keys):
    return torch.arange(keys)[None, :] - torch.arange(queries)[:, None]


mistake("buckets", lambda q, n, k: from_zero(q, n).clamp(-k, k) + k,
        "Your queries stand at 0, 1, 2, … They are the *last* positions: with 7 keys and 2 queries, 5 and 6.")
mistake("buckets", lambda q, n, k: (-distances(q, n)).clamp(-k, k) + k,
        "You took query minus key, so past and future are exchanged. The distance is $j - i$: a key before the query "
        "has a negative one, and a small row number.")
mistake("buckets", lambda q, n, k: distances(q, n) + k,
        "Nothing is clipped: far keys get rows below 0 or above $2k$, and the table has none there.")
mistake("buckets", lambda q, n, k: (distances(q, n) + k).clamp(-k, k),
        "You moved first and clipped then, so all keys of the future share row $k$. Clip first, then add $k$.")
mistake("buckets", lambda q, n, k: distances(q, n).clamp(-k, k),
        "Clipped well, but the rows count from $-k$. Add $k$: in torch a negative index would silently count from the "
        "end of the table.")
mistake("buckets", lambda q, n, k: distances(q, n).abs().clamp(max=k),
        "Your rows are the same for past and future. The sign of the distance matters: *before* is not *after*.")
mistake("buckets", lambda q, n, k: distances(q, n).abs().clamp(max=k) + k,
        "You added $k$, but took away the sign before. Now a key two before the query and a key two after it share a "
        "row, and rows below $k$ are never used.")
mistake("buckets", lambda q, n, k: distances(q, n).clamp(max=k) + k,
        "The far future is clipped, the far past is not: it gets rows below 0, which torch counts from the end of the "
        "table.")
mistake("buckets", lambda q, n, k: distances(q, n).clamp(min=-k) + k,
        "The far past is clipped, the far future is not: it gets rows above $2k$, and the table has none there.")
mistake("buckets", lambda q, n, k: (distances(q, n) + k).clamp(0, k),
        "Once $k$ is added, rows go from 0 to $2k$. You clipped to 0 … $k$, so all keys of the future share row $k$ with "
        "the query itself.")
mistake("buckets", lambda q, n, k: distances(q, n).clamp(0, 2 * k),
        "You clipped to the rows' range before you moved the distances there. The past has negative distances: all of it "
        "went to 0. Clip to $-k \\dots k$, then add $k$.")
mistake("buckets", lambda q, n, k: distances(q, n) + n - 1,
        "This gives a row to every distance, as if nothing were clipped. The table has $2k + 1$ rows: clip to "
        "$-k \\dots k$ and add $k$.")
mistake("buckets", lambda q, n, k: distances(q, n).clamp(-k, k) + n,
        "Clipped well, but you moved by the number of keys. The smallest distance is $-k$, so adding $k$ makes it row 0.")
mistake("buckets", lambda q, n, k: distances(q, n).clamp(-k, k - 1) + k,
        "Clipped one too early on the side of the future. `clamp` includes both of its ends: `clamp(-k, k)` gives "
        "$2k + 1$ values.")
mistake("buckets", lambda q, n, k: torch.where(distances(q, n).abs() > k, k, distances(q, n)) + k,
        "Far past and far future share one row. What is too far in the past uses the row of $-k$, row 0.")
mistake("buckets", lambda q, n, k: distances(q, n).clamp(-k, k).float() + k,
        "The numbers are right, but they are floats, and floats can't index a table. Leave out what makes them floats: "
        "`torch.arange` gives whole numbers.")
mistake("buckets", lambda q, n, k: (distances(q, n).clamp(-k, k) + k).mT,
        "Queries and keys are exchanged: the queries are the rows of the result, the keys its columns.")
mistake("buckets", lambda q, n, k: distances(n, n).clamp(-k, k) + k,
        "You gave a row to every position. Only the last `queries` positions ask: there are that many rows.")
mistake("buckets", lambda q, n, k: (distances(q, n) - 1).clamp(-k, k) + k,
        "Your queries stand one place too far. The last query is the last position, `keys - 1`, and its distance to "
        "the last key is 0.")
mistake("buckets", lambda q, n, k: torch.arange(n)[None].clamp(-k, k) + k,
        "These are the keys' positions, not distances: the position of the query is not subtracted.")
mistake("buckets", lambda q, n, k: distances(n, n)[q - n :].clamp(-k, k) + k,
        "You cut off the wrong number of positions: the queries begin at `keys - queries`, not the other way round.")
alternative("buckets", lambda q, n, k: (distances(q, n) + k).clamp(0, 2 * k))
alternative("buckets", lambda q, n, k: torch.tensor([[min(max(j - i, -k), k) + k for j in range(n)] for i in range(n - q, n)]))
equivalent("buckets", "torch.arange(keys) → torch.arange(1, keys + 1)", "Only differences of positions count.")
equivalent("buckets", "keys - queries → -queries", "With at least one query, a slice that starts at -queries also starts there.")

# %% [markdown]
# ### Task 3 · Rotary positions for a picture   ●●●○○ · 15 minutes · 3 points
#
# Rotary positions tell the distance along a line. The patches of a picture have two distances: so many rows down, so
# many columns to the right. Give each patch both. The *first half* of the entries of its vector turns by the patch's
# row, the *second half* by its column. Within a half of $w = d/2$ entries all is as in the lesson: neighbors
# $(x_{2c}, x_{2c+1})$ are a pair, and turn counterclockwise by $i\,\omega_c$, where $i$ is the row (or column) and
# $\omega_c = \text{base}^{-2c/w}$:
#
# $$x'_{2c} = x_{2c} \cos i\omega_c - x_{2c+1} \sin i\omega_c \qquad
# x'_{2c+1} = x_{2c} \sin i\omega_c + x_{2c+1} \cos i\omega_c$$
#
# `row[p]` and `column[p]` say where patch $p$ is. The base is 100 by default, not 10,000: a picture has tens of rows,
# not thousands, and even the slowest pairs should turn visibly. You may assume that $d$ is a multiple of 4. Do not change
# `x` itself.
#
# <details><summary>Hint 1: how many speeds are there?</summary>
#
# Each half has $w/2 = d/4$ pairs, and both halves use the same speeds.
# </details>
# <details><summary>Hint 2: one function, used twice</summary>
#
# Write a helper that turns a tensor `(heads, patch, w)` by given places `(patch,)`. Call it for each half, and join the
# two with `torch.cat`.
# </details>
# <details><summary>Hint 3: checks of your own</summary>
#
# Turning changes no length. A patch at row 0 and column 0 does not turn at all. And a patch at row 0 keeps its first
# half.
# </details>

# %% nbgrader={"grade_id": "rotate", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def rotate(
    x: Float[Tensor, "heads patch d"], row: Int[Tensor, "patch"], column: Int[Tensor, "patch"], base: float = 100.0
) -> Float[Tensor, "heads patch d"]:
    """x with the pairs of its first half turned by the patch's row, those of its second half by its column."""
    ### BEGIN SOLUTION
    def turned(half, place):                                        # (heads, patch, w), (patch,)
        w = half.shape[-1]
        angle = place[:, None] * base ** (-torch.arange(0, w, 2) / w)          # (patch, w / 2)
        even, odd = half[..., 0::2], half[..., 1::2]                # (heads, patch, w / 2) each
        pair = [even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()]
        return torch.stack(pair, dim=-1).flatten(-2)                # (heads, patch, w)

    upper, lower = x.chunk(2, dim=-1)                               # (heads, patch, d / 2) each
    return torch.cat([turned(upper, row), turned(lower, column)], dim=-1)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-rotate", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("rotate", atol=1e-4) as show:
    rows, columns = show.random_size(2, 4), show.random_size(3, 5)
    row = torch.arange(rows).repeat_interleave(columns)
    column = torch.arange(columns).repeat(rows)
    x = show.randn(2, rows * columns, 8)
    show(rotate(x, row, column), f"{rows} rows of {columns} patches")
    order = show.permutation(rows * columns)
    show(rotate(x, row[order], column[order]), "the same patches in another order")
    row, column = torch.tensor([0, 7, 2]), torch.tensor([5, 0, 9])
    show(rotate(show.randn(1, 3, 12), row, column, base=1000.0), "three patches, base 1000")

# %% tags=["mistakes"]
def turn(x, place, base=100.0, *, half=False, sign=1, same=False, exponent=2.0, signs=(-1, 1), joined=False):
    w = x.shape[-1]
    frequency = base ** (-exponent * (0 if same else 1) * torch.arange(w // 2) / w)
    angle = sign * place[:, None] * frequency
    first, second = x.chunk(2, dim=-1) if half else (x[..., 0::2], x[..., 1::2])
    minus, plus = signs
    turned = [first * angle.cos() + minus * second * angle.sin(), first * angle.sin() + plus * second * angle.cos()]
    return torch.cat(turned, dim=-1) if half or joined else torch.stack(turned, dim=-1).flatten(-2)


def picture(x, row, column, base=100.0, **slip):
    upper, lower = x.chunk(2, dim=-1)
    return torch.cat([turn(upper, row, base, **slip), turn(lower, column, base, **slip)], dim=-1)


def with_product(at, change):
    """A turn in which one of the four products, an entry times a cosine or sine, is made by `change` instead."""
    def turned(half, place, base):
        w = half.shape[-1]
        even, odd, angle = half[..., 0::2], half[..., 1::2], place[:, None] * base ** (-torch.arange(0, w, 2) / w)
        factors = (even, angle.cos()), (odd, angle.sin()), (even, angle.sin()), (odd, angle.cos())
        a, b, c, d = (change(entry, turning.expand_as(entry)) if number == at else entry * turning
                      for number, (entry, turning) in enumerate(factors))
        return torch.stack([a - b, c + d], dim=-1).flatten(-2)

    def answer(x, row, column, base=100.0):
        upper, lower = x.chunk(2, dim=-1)
        return torch.cat([turned(upper, row, base), turned(lower, column, base)], dim=-1)

    return answer


def slipped(**slip):
    return lambda x, row, column, base=100.0: picture(x, row, column, base, **slip)


for at in range(4):
    mistake("rotate", with_product(at, lambda entry, turning: 0 * entry),
            "One of the four products is missing. Each new entry takes a part of *both* old ones.")
    mistake("rotate", with_product(at, lambda entry, turning: entry),
            "In one of the four products the cosine or sine is missing.")
    mistake("rotate", with_product(at, lambda entry, turning: turning),
            "In one of the four products the entry of `x` is missing: a cosine or sine stands there alone.")
mistake("rotate", lambda x, row, column, base=100.0: picture(x, row, column, base) * torch.tensor([-1, 1]).repeat(x.shape[-1] // 2),
        "The first new entry has the wrong sign: it is $x_{2c} \\cos i\\omega_c$ *minus* $x_{2c+1} \\sin i\\omega_c$.")
mistake("rotate", lambda x, row, column, base=100.0: picture(x, torch.ones_like(row), torch.ones_like(column), base),
        "Every patch turns by the same angles: multiply the speeds by the place.")
mistake("rotate", lambda x, row, column, base=100.0: picture(x, row, column, base ** (x.shape[-1] // 2)),
        "The exponent is not divided by $w$, so nearly all pairs stand still.")
mistake("rotate", lambda x, row, column, base=100.0: picture(x, row, column, base).unflatten(-1, (-1, 2)),
        "The numbers are right, but pairs still have an axis of their own. Join the last two axes: `flatten(-2)`.")
for dim in (-2, 0):
    mistake("rotate", lambda x, row, column, base=100.0, dim=dim: torch.cat(
                [*picture(x, row, column, base).chunk(2, dim=-1)], dim=dim),
            "The halves are turned well, but joined along the wrong axis. They stand side by side: `dim=-1`.")
mistake("rotate", slipped(half=True),
        "Within a half you paired its first entries with its last ones, as Llama's converted checkpoints do. Here neighbors "
        "are pairs: (0, 1), (2, 3), …")
mistake("rotate", slipped(sign=-1),
        "You turned clockwise: the two signs at the sine are exchanged. Up and down, left and right are exchanged in every "
        "score. A model trained so would work; a checkpoint trained the other way would not.")
mistake("rotate", slipped(same=True),
        "All pairs of a half turn by the same angle. Each has a speed of its own, $\\omega_c$; with one speed, places that "
        "lie a whole turn apart look alike.")
mistake("rotate", slipped(exponent=1.0),
        "Your speeds fall half as fast as they should. In $\\omega_c = \\text{base}^{-2c/w}$, $w$ is the width of a *half*; "
        "did you divide by the whole $d$, or forget the 2?")
mistake("rotate", slipped(exponent=-2.0),
        "The exponent has lost its minus sign: your pairs turn faster and faster from left to right.")
mistake("rotate", slipped(joined=True),
        "The turning is right, but within a half you joined all first entries, then all second ones. Put each pair side by "
        "side again, with `stack` and `flatten`.")
mistake("rotate", slipped(signs=(1, 1)),
        "Both signs are plus. A turn needs one minus: the first entry *loses* $x_{2c+1} \\sin i\\omega_c$. Do lengths "
        "stay, as hint 3 asks?")
mistake("rotate", slipped(signs=(-1, -1)),
        "Both signs are minus. At row 0 and column 0, where nothing should turn, your second entries have changed their sign, "
        "and elsewhere lengths don't stay.")
mistake("rotate", lambda x, row, column, base=100.0: picture(x, row, column),
        "With base 100 all is right, but you ignore the argument `base`.")
mistake("rotate", lambda x, row, column, base=100.0: picture(x, column, row, base),
        "Rows and columns are exchanged: the *first* half turns by the row, the second by the column.")
mistake("rotate", lambda x, row, column, base=100.0: picture(x, row, row, base),
        "Both halves turn by the row, so patches of one row look alike. The second half turns by the column.")
mistake("rotate", lambda x, row, column, base=100.0: picture(x, row + column, row + column, base),
        "You turn by row plus column. Then row 1, column 3 and row 3, column 1 look alike: give each half one of the two.")
mistake("rotate", lambda x, row, column, base=100.0: turn(turn(x, row, base), column, base),
        "You turned the whole vector twice, by the row and by the column. Turns of one pair add up, so this tells only their "
        "sum. Give each half one of the two.")
mistake("rotate", lambda x, row, column, base=100.0: picture(x, torch.arange(len(row)), torch.arange(len(row)), base),
        "You counted the patches as they come. Where a patch stands is what `row` and `column` say.")
mistake("rotate", lambda x, row, column, base=100.0: picture(x, row + 1, column + 1, base),
        "Everything is turned one step too far. Take rows and columns as they are: at row 0 and column 0 nothing turns.")


def wide_speeds(x, row, column, base=100.0):
    """The speeds of one long list run on through both halves."""
    d = x.shape[-1]
    place = torch.stack([row, column]).repeat_interleave(d // 4, dim=0).T       # (patch, d / 2)
    angle = place * base ** (-torch.arange(0, d, 2) / d)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()], dim=-1).flatten(-2)


def by_turns(x, row, column, base=100.0):
    """Pairs turn by row and column alternately."""
    w = x.shape[-1] // 2
    angle = torch.stack([row, column], dim=-1)[:, None] * (base ** (-torch.arange(0, w, 2) / w))[:, None]
    angle, even, odd = angle.flatten(1), x[..., 0::2], x[..., 1::2]
    return torch.stack([even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()], dim=-1).flatten(-2)


def overwritten(x, row, column, base=100.0):
    w = x.shape[-1] // 2
    speed = base ** (-torch.arange(0, w, 2) / w)
    angle = torch.cat([row[:, None] * speed, column[:, None] * speed], dim=-1)
    out = x.clone()
    even, odd = out[..., 0::2], out[..., 1::2]                      # views, not copies
    out[..., 0::2] = even * angle.cos() - odd * angle.sin()
    out[..., 1::2] = even * angle.sin() + odd * angle.cos()
    return out


def complex_numbers(x, row, column, base=100.0):
    pair = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    w = x.shape[-1] // 2
    speed = base ** (-torch.arange(0, w, 2) / w)
    angle = torch.cat([row[:, None] * speed, column[:, None] * speed], dim=-1)
    return torch.view_as_real(pair * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


mistake("rotate", wide_speeds,
        "Your speeds run on from the first half into the second, so columns turn slower than rows. Both halves use the same "
        "$d/4$ speeds.")
mistake("rotate", by_turns,
        "You let pairs take turns: row, column, row, column. The *first half* of the entries turns by the row, the second half "
        "by the column.")
mistake("rotate", overwritten,
        "The first entries are right, the second ones are not. `x[..., 0::2]` is a *view*: once you wrote the new first "
        "entries into the tensor, the second ones were computed from them. Compute both, then write.")
mistake("rotate", lambda x, row, column, base=100.0: x.copy_(picture(x, row, column, base)),
        "You have turned `x` itself, so the next call turned a vector that was turned already. Return a new tensor; the "
        "caller still needs the old one.")
alternative("rotate", picture)
alternative("rotate", complex_numbers)

# %% [markdown]
# ### Task 4 · Skew to both sides   ●●●●○ · 13 minutes · 3 points
#
# A query can meet a vector for each distance in one matrix product. That gives scores by query and *distance*; attention
# needs them by query and *key*. Huang et al. (2019) found that no picking is needed: pad one column, cut the same row of
# numbers into rows of another length, and each score lands under its key. (Lesson 22 builds this **skewing** for the past
# alone, under a causal mask.) An encoder also sees the future. So you are given scores for *all* distances,
# `(heads, query, distance)`, with $n$ queries and $2n - 1$ distances $-(n-1) \dots n-1$ in this order: column $c$
# belongs to the key at distance $j - i = c - (n - 1)$. For $n = 3$, with the distances as numbers:
#
# ```
# by distance              by key
# -2  -1   0   1   2        0   1   2
# -2  -1   0   1   2   →   -1   0   1
# -2  -1   0   1   2       -2  -1   0
# ```
#
# Return the scores by key, `(heads, query, key)`. Do it with pad and reshape. A loop or `gather` also gets the points,
# but teaches you nothing about skewing; a `gather` is flagged for your teacher.
#
# <details><summary>Hint 1: what has to slide?</summary>
#
# The score for key 0 is in column $n-1$ of row 0, in column $n-2$ of row 1, and so on. If row $i$ slides $i$ places to
# the right, all of them end up in column $n-1$, and the other keys after them.
# </details>
# <details><summary>Hint 2: slide by rereading</summary>
#
# Pad one zero on the right: rows of $2n$ numbers. Read a head as one long row, with `flatten(1)`, and cut it into rows
# of $2n - 1$. New row $i$ begins $i$ numbers before old row $i$, so old row $i$ has slid by $i$. Use the first
# $n(2n-1)$ numbers; the rest is not needed.
# </details>
# <details><summary>Hint 3: which columns?</summary>
#
# Those of the $n$ keys, and key 0 is in column $n-1$. (Another way: lesson 22's skewing and `tril()` for the past;
# the same with both axes flipped for the future; and the diagonal only once.)
# </details>

# %% nbgrader={"grade_id": "skew", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def skew(by_distance: Float[Tensor, "heads query distance"]) -> Float[Tensor, "heads query key"]:
    """Each score moved under its key, for past and future."""
    ### BEGIN SOLUTION
    heads, n, width = by_distance.shape                             # width = 2n − 1
    in_a_row = F.pad(by_distance, (0, 1)).flatten(1)                # (heads, n · 2n)
    slid = in_a_row[:, : n * width].reshape(heads, n, width)        # (heads, query, distance): row i slid by i
    return slid[:, :, n - 1 :]                                      # (heads, query, key)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-skew", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("skew") as show:
    show(skew(torch.arange(-2.0, 3.0).expand(1, 3, 5)), "the example, n = 3")
    for heads, n in ((1, 1), (1, 4), (show.random_size(2, 3), show.random_size(5, 8))):
        show(skew(show.randn(heads, n, 2 * n - 1)), f"heads = {heads}, n = {n}")

# %% tags=["mistakes"]
def slid(x, *, left=False):
    heads, n, width = x.shape
    return F.pad(x, (1, 0) if left else (0, 1)).flatten(1)[:, : n * width].reshape(heads, n, width)


def to_both_sides(x):
    return slid(x)[:, :, x.shape[1] - 1 :]


def to_the_past(x):
    heads, n, _ = x.shape
    return F.pad(x[:, :, :n], (1, 0)).reshape(heads, n + 1, n)[:, 1:]


def mixed_heads(x):
    heads, n, width = x.shape
    return F.pad(x, (0, 1)).flatten()[: heads * n * width].reshape(heads, n, width)[:, :, n - 1 :]


def halves(x, *, diagonal=-1):
    return to_the_past(x).tril() + to_the_past(x.flip(1, 2)).tril(diagonal).flip(1, 2)


forbid("skew", ("gather", "take_along_dim"), "aten.gather")
mistake("skew", lambda x: to_the_past(x).tril(),
        "The past is right, and under a causal mask that is enough. Here each query also sees the future: above the "
        "diagonal belong the scores of the distances 1 … $n-1$.")
mistake("skew", lambda x: to_the_past(x),
        "The past is right. But above the diagonal are left-overs from other rows: skewing for the past counts on a "
        "causal mask. Use the columns of positive distances, too.")
mistake("skew", lambda x: F.pad(x, (1, 0)).reshape(len(x), -1, x.shape[1])[:, 1:],
        "This is skewing for the past on a matrix that is twice as wide, so the cut falls in wrong places. The padded "
        "rows have $2n$ numbers now: cut rows of $2n - 1$.")
mistake("skew", lambda x: slid(x, left=True)[:, :, x.shape[1] - 1 :],
        "Each score has slid one place too far: you padded on the left. Here row 0 stands right already; pad on the "
        "right.")
mistake("skew", lambda x: slid(x)[:, :, : x.shape[1]],
        "Slid well, but you kept the first $n$ columns. Key 0 stands in column $n-1$: the keys are the last $n$ columns.")
mistake("skew", lambda x: slid(x)[:, :, x.shape[1] :],
        "One column too few: key 0 stands in column $n-1$, not $n$.")
mistake("skew", lambda x: x[:, :, x.shape[1] - 1 :],
        "No row has slid: row 0 is right, but in each further row key 0 stands one column more to the left.")
mistake("skew", lambda x: x[:, :, : x.shape[1]],
        "The scores have not moved: column $c$ is still a distance, not a key.")
mistake("skew", lambda x: x.reshape(*x.shape[:1], -1)[:, : x.shape[1] ** 2].reshape(-1, x.shape[1], x.shape[1]),
        "You cut rows of $n$ without padding. Then a row slides by $n-1$ places, not by one. Pad first, so that old "
        "and new rows differ by *one*.")
mistake("skew", lambda x: to_both_sides(x.flip(-1)),
        "Past and future are exchanged: you reversed the distances. Column 0 is the farthest *past*, $-(n-1)$.")
mistake("skew", lambda x: to_both_sides(x).mT,
        "Rows and columns are exchanged: queries are the rows, keys the columns.")
mistake("skew", mixed_heads,
        "The first head is right, the others are not: you read on from one head into the next. Keep the heads as the "
        "first axis, with `flatten(1)`.")
mistake("skew", slid,
        "The rows have slid well, but they still have $2n - 1$ columns. Keep those of the $n$ keys; key 0 stands in "
        "column $n-1$.")
mistake("skew", lambda x: to_the_past(x).tril() + to_the_past(x.flip(2)).tril(-1).mT,
        "The past is right. For the future you have flipped the distances only, and transposed, so each score belongs "
        "to the wrong query. Flip both axes, queries and distances, and flip the result back.")
mistake("skew", lambda x: halves(x, diagonal=0),
        "Past and future are right, but distance 0 is in both halves: the diagonal is counted twice. Use `tril(-1)` "
        "for one of them.")


def picked(x):
    n = x.shape[1]
    column = torch.arange(n) - torch.arange(n)[:, None] + n - 1
    return x.gather(-1, column.expand(len(x), n, n))


alternative("skew", halves)
alternative("skew", picked)

# %% [markdown]
# ### Task 5 · Open investigation: set the clock   ●●●●○ · 15 minutes · 2 points
#
# Are the paper's frequencies good ones? Judge them as a clock. There are `longest` positions, and `hands` pairs of
# dimensions. Position $i$ has the vector $(\sin i\omega_c, \cos i\omega_c)$ for all hands $c$. Normal noise with mean 0
# and standard deviation 0.5 is added to each entry, to imitate the word that shares the vector. A reader then looks for
# the position whose clean vector has the largest dot product with the noisy one. How often is that the wrong position?
#
# The paper's $\omega_c = 10000^{-c/\text{hands}}$ is wrong in more than 20% of all cases, for 16 hands and 2,000
# positions. Find better frequencies; they may depend on `hands` and on `longest`. The grader draws 15 to 17 hands,
# 1,500 to 2,000 positions, and noise of its own. At most 15% wrong earns half of the points, at most 4% all, more than
# 15% none.
#
# There is no single right answer, so there is only one hint: write the experiment first, it takes five lines; then
# change one thing at a time. Which hands does the paper waste? What do very fast hands do that slow ones can't, and vice
# versa? And when your clock is wrong, *how far* off is it, compared with the paper's? (That is the price you pay.)

# %%
def hands_and_positions(private) -> tuple[int, int]:
    """The numbers of hands and of positions that the grader asks for."""
    return private.random_size(15, 17), private.random_size(1500, 2000)

# %% nbgrader={"grade_id": "clock", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def clock(hands: int, longest: int) -> Float[Tensor, "hands"]:
    """The frequency of each hand, so that positions 0 … longest - 1 are told apart in spite of noise."""
    ### BEGIN SOLUTION
    return 3 * 10 ** (-torch.arange(hands) / hands)                 # from 3 down to 0.3: fast, and no two alike
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-clock", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("clock") as show:
    hands, longest = show.private(hands_and_positions)
    show.weights({"frequency": clock(hands, longest)}, f"{hands} hands, {longest} positions")

# %% tags=["mistakes"]
from txgrade import measured


@torch.no_grad()
def positions_mistaken(shown, private):
    frequency, (hands, longest) = shown[0]["frequency"], hands_and_positions(private)
    if frequency.shape != (hands,):
        return 0, f"There should be one frequency per hand, in one row; yours have the shape {tuple(frequency.shape)}."
    angle = torch.arange(longest)[:, None] * frequency              # (position, hand)
    clean = torch.cat([angle.sin(), angle.cos()], dim=-1)           # (position, 2 · hands)
    position = private.randint(0, longest, 3000)
    noisy = clean[position] + 0.5 * private.randn(3000, 2 * hands)
    off = ((noisy @ clean.T).argmax(dim=-1) - position).abs().float()          # (3000,)
    wrong = float((off > 0).float().mean())
    said = f"{wrong:.1%} of the positions are mistaken, and those by {float(off.sum() / max(1, (off > 0).sum())):.0f} places on average."
    return 1 if wrong <= 0.04 else 0.5 if wrong <= 0.15 else 0, said


measured("clock", positions_mistaken)
mistake("clock", lambda hands, longest: 10000 ** (-torch.arange(hands) / hands),
        "These are the paper's frequencies. Most of its hands are slow, and noise hides their small moves.")
mistake("clock", lambda hands, longest: torch.zeros(hands),
        "A hand that stands still tells no time.")
mistake("clock", lambda hands, longest: 0.001 * torch.ones(hands),
        "All hands move together, so they say the same thing `hands` times.")
alternative("clock", lambda hands, longest: 3.1 * (longest / 3.1) ** (-torch.arange(hands) / (hands - 1)))

# %%
check.summary()
