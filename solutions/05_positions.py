# %% [markdown]
# # Exercise 05 · Positions
#
# Four tasks, 10 points, about 45 minutes. You need [lesson 05](../notebooks/05_positions.ipynb). Choose *Run All Cells*
# first, then fill in where it says *your turn*; after each answer, run its cell and the check below it.

# %% tags=["parameters"]
seed = 0
mode = "learn"

# %%
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from txlib.grading import check

# %% [markdown]
# ### Task 1 · A clock with many hands   ●●○○○ · 10 minutes · 2 points
#
# Fill the table of sinusoidal positions: row $i$ belongs to position $i$, counted from 0, and
#
# $$\text{PE}(i, 2c) = \sin(i\,\omega_c) \qquad \text{PE}(i, 2c+1) = \cos(i\,\omega_c) \qquad \omega_c = 10000^{-2c/d}$$
#
# where $d$ is the width of the table. You may take it to be even.
#
# <details><summary>Hint 1: the frequencies</summary>
#
# `torch.arange(0, d, 2)` is $2c$ for all $c$ at once.
# </details>
# <details><summary>Hint 2: all angles at once</summary>
#
# Positions as a column, `(length, 1)`, times frequencies as a row, `(d / 2,)`, broadcast to `(length, d / 2)`.
# </details>
# <details><summary>Hint 3: sine, cosine, sine, cosine</summary>
#
# `torch.stack([…, …], dim=-1)` puts each sine beside its cosine, in a new last axis of size 2; `flatten` joins the last
# two axes. Or fill an empty table: `table[:, 0::2] = …`.
# </details>

# %% nbgrader={"grade_id": "sinusoidal", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def sinusoidal(length: int, d: int) -> Float[Tensor, "length d"]:
    """Sines in the even columns, cosines in the odd ones."""
    ### BEGIN SOLUTION
    frequency = 10000 ** (-torch.arange(0, d, 2) / d)               # (d / 2,)
    angle = torch.arange(length)[:, None] * frequency               # (length, d / 2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-sinusoidal", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("sinusoidal", atol=1e-4) as show:
    for length, d in ((1, 4), (5, 6), (show.random_size(6, 40), 2 * show.random_size(4, 8))):
        show(sinusoidal(length, d), f"length = {length}, d = {d}")

# %% tags=["mistakes"]
from txlib.grading import alternative, forbid, mistake


def angles(length, d, *, first=0, exponent=2.0):
    frequency = 10000 ** (-exponent * torch.arange(d // 2) / d)
    return torch.arange(first, first + length)[:, None] * frequency


def woven(even, odd):
    return torch.stack([even, odd], dim=-1).flatten(-2)


mistake("sinusoidal", lambda n, d: woven(angles(n, d, exponent=1.0).sin(), angles(n, d, exponent=1.0).cos()),
        "Your hands slow down only half as fast as they should: the exponent is $2c/d$, not $c/d$. "
        "Does your `arange` count in steps of 2?")
mistake("sinusoidal", lambda n, d: torch.cat([angles(n, d).sin(), angles(n, d).cos()], dim=-1),
        "All sines stand first, then all cosines. Some programs do it so, but the formula alternates: "
        "column 0 is a sine, column 1 its cosine.")
mistake("sinusoidal", lambda n, d: woven(angles(n, d, first=1).sin(), angles(n, d, first=1).cos()),
        "Your first row belongs to position 1. Positions count from 0, so the first row is 0, 1, 0, 1, …")
mistake("sinusoidal", lambda n, d: woven(angles(n, d).cos(), angles(n, d).sin()),
        "Sine and cosine are swapped: even columns are sines.")
mistake("sinusoidal", lambda n, d: woven(angles(n, d, exponent=-2.0).sin(), angles(n, d, exponent=-2.0).cos()),
        "The exponent has lost its minus sign: your hands turn faster and faster from left to right.")


def by_columns(length, d):
    table, angle = torch.empty(length, d), angles(length, d)
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()
    return table


def own_speeds(length, d):
    angle = torch.arange(length)[:, None] * 10000 ** (-torch.arange(d) / d)
    return torch.where(torch.arange(d) % 2 == 0, angle.sin(), angle.cos())


mistake("sinusoidal", own_speeds,
        "Each column has a speed of its own. A hand is a *pair*: columns $2c$ and $2c+1$ share the angle $i\\,\\omega_c$, so "
        "there are $d/2$ speeds.")
mistake("sinusoidal", lambda n, d: woven(angles(n, d, exponent=4.0).sin(), angles(n, d, exponent=4.0).cos()),
        "Your hands slow down twice as fast as they should. `torch.arange(0, d, 2)` is $2c$ already: don't double it again.")
mistake("sinusoidal", lambda n, d: torch.stack([angles(n, d).sin(), angles(n, d).cos()]).reshape(n, d),
        "`stack` put the sines and the cosines on a new *first* axis, and `reshape` then mixed up positions. Stack along the last axis, "
        "`dim=-1`, so that each sine has its cosine beside it.")
mistake("sinusoidal", lambda n, d: woven(angles(n, d).sin(), torch.zeros(n, d // 2)),
        "The sines are right, but the odd columns are still empty: they are the cosines of the same angles.")
alternative("sinusoidal", by_columns)

# %% [markdown]
# ### Task 2 · Which row for which distance?   ●●○○○ · 8 minutes · 2 points
#
# Shaw's attention keeps a table with one vector for each distance $-k \dots k$, so $2k + 1$ rows. Return the matrix that says
# which row of the table query $i$ and key $j$ use. The distance is key minus query, $j - i$. What is farther than $k$ in
# the future uses the row of $k$; what is farther in the past, the row of $-k$. Distance $-k$ is row 0. Rows are whole
# numbers.
#
# <details><summary>Hint 1: all distances at once</summary>
#
# Positions as a row minus positions as a column give a square.
# </details>
# <details><summary>Hint 2: which is the row, which the column?</summary>
#
# Query $i$ is the row of the result. Key $j$ is the column.
# </details>
# <details><summary>Hint 3: the order of two steps</summary>
#
# Clip while distances are still signed, with `clamp(-k, k)`. Then move them, so that the smallest is 0.
# </details>

# %% nbgrader={"grade_id": "buckets", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def buckets(n: int, k: int) -> Int[Tensor, "query key"]:
    """Row of the table of distances, 0 … 2k, for each query and key."""
    ### BEGIN SOLUTION
    position = torch.arange(n)                                      # (n,)
    distance = position[None, :] - position[:, None]                # (query, key)
    return distance.clamp(-k, k) + k
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-buckets", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("buckets") as show:
    for n, k in ((1, 1), (4, 5), (show.random_size(7, 12), show.random_size(2, 3))):
        show(buckets(n, k), f"n = {n}, k = {k}")

# %% tags=["mistakes"]
def distances(n):
    return torch.arange(n)[None, :] - torch.arange(n)[:, None]


mistake("buckets", lambda n, k: (-distances(n)).clamp(-k, k) + k,
        "You took query minus key, so past and future are exchanged. The distance is $j - i$: a key before the query "
        "has a negative one, and a small row number.")
mistake("buckets", lambda n, k: distances(n) + k,
        "Nothing is clipped: far keys get rows below 0 or above $2k$, and the table has none there.")
mistake("buckets", lambda n, k: (distances(n) + k).clamp(-k, k),
        "You moved first and clipped then, so all keys of the future share row $k$. Clip first, then add $k$.")
mistake("buckets", lambda n, k: distances(n).clamp(-k, k),
        "Clipped well, but the rows count from $-k$. Add $k$: in torch a negative index would silently count from the "
        "end of the table.")
mistake("buckets", lambda n, k: distances(n).abs().clamp(max=k),
        "Your rows are the same for past and future. The sign of the distance matters: *before* is not *after*.")
mistake("buckets", lambda n, k: distances(n).abs().clamp(max=k) + k,
        "You added $k$, but took away the sign before. Now a key two before the query and a key two behind it share a row, and rows "
        "below $k$ are never used.")
mistake("buckets", lambda n, k: distances(n).clamp(max=k) + k,
        "The far future is clipped, the far past is not: it gets rows below 0, which torch counts from the end of the table.")
mistake("buckets", lambda n, k: distances(n).clamp(min=-k) + k,
        "The far past is clipped, the far future is not: it gets rows above $2k$, and the table has none there.")
mistake("buckets", lambda n, k: (distances(n) + k).clamp(0, k),
        "Once $k$ is added, rows go from 0 to $2k$. You clipped to 0 … $k$, so all keys of the future share row $k$ with the query itself.")
mistake("buckets", lambda n, k: distances(n).clamp(0, 2 * k),
        "You clipped to the rows' range before you moved the distances there. The past has negative distances: all of it went "
        "to 0. Clip to $-k \\dots k$, then add $k$.")
mistake("buckets", lambda n, k: distances(n) + n - 1,
        "This gives a row to each of the $2n - 1$ distances, as if nothing were clipped. The table has $2k + 1$ rows: clip to "
        "$-k \\dots k$ and add $k$, not $n - 1$.")
mistake("buckets", lambda n, k: distances(n).clamp(-k, k) + n,
        "Clipped well, but you moved by $n$. The smallest distance is $-k$, so adding $k$ makes it row 0.")
mistake("buckets", lambda n, k: distances(n).clamp(-k, k - 1) + k,
        "Clipped one too early on the side of the future. `clamp` includes both of its ends: `clamp(-k, k)` gives $2k + 1$ values.")
mistake("buckets", lambda n, k: torch.where(distances(n).abs() > k, k, distances(n)) + k,
        "Far past and far future share one row. What is too far to the left uses the row of $-k$, row 0.")
mistake("buckets", lambda n, k: distances(n).clamp(-k, k).float() + k,
        "The numbers are right, but they are floats, and floats can't index a table. Leave out what makes them floats: "
        "`torch.arange(n)` gives whole numbers.")
alternative("buckets", lambda n, k: (distances(n) + k).clamp(0, 2 * k))
alternative("buckets", lambda n, k: torch.tensor([[min(max(j - i, -k), k) + k for j in range(n)] for i in range(n)]))

# %% [markdown]
# ### Task 3 · Skew, without picking   ●●●○○ · 12 minutes · 3 points
#
# You are given scores by distance, `(heads, query, distance)`, with $n$ queries and $n$ distances, the farthest first: column $c$
# belongs to the key that stands $n - 1 - c$ before the query. Return scores by key, `(heads, query, key)`, for causal
# attention: entry $(i, j)$, $j \le i$, is the score of query $i$ for distance $i - j$ into the past. Entries of the
# future, $j > i$, must be **0**.
#
# Do it with pad and reshape. A loop or `gather` would give the same numbers, but miss the point: the check lets a loop
# pass, and a grader is told of each `gather`. The lesson draws it, for one head.
#
# <details><summary>Hint 1: padding</summary>
#
# `F.pad(x, (1, 0))` adds a column of zeros on the left of the last axis.
# </details>
# <details><summary>Hint 2: reading anew</summary>
#
# The padded matrix has $n (n + 1)$ numbers. `reshape` reads them row by row; cut them into $n + 1$ rows of $n$. What
# do you find in the first row?
# </details>
# <details><summary>Hint 3: the future</summary>
#
# What is left over above the diagonal goes with `tril()`, which works on the last two axes.
# </details>

# %% nbgrader={"grade_id": "skew", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def skew(by_distance: Float[Tensor, "heads query distance"]) -> Float[Tensor, "heads query key"]:
    """Each score moved under its key; 0 for keys in the future."""
    ### BEGIN SOLUTION
    heads, n, _ = by_distance.shape
    padded = F.pad(by_distance, (1, 0))                             # (heads, query, 1 + distance)
    return padded.reshape(heads, n + 1, n)[:, 1:].tril()            # (heads, query, key)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-skew", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("skew") as show:
    for heads, n in ((1, 1), (1, 4), (show.random_size(2, 3), show.random_size(5, 8))):
        show(skew(show.randn(heads, n, n)), f"heads = {heads}, n = {n}")

# %% tags=["mistakes"]
def skewed(x, *, right=False, last=False):
    heads, n, _ = x.shape
    rows = F.pad(x, (0, 1) if right else (1, 0)).reshape(heads, n + 1, n)
    return rows[:, :-1] if last else rows[:, 1:]


forbid("skew", ("gather", "take_along_dim"), "aten.gather")
mistake("skew", lambda x: skewed(x), "Each score of the past stands right. But above the diagonal are left-overs from other rows: set the "
        "future to 0.")
mistake("skew", lambda x: skewed(x, right=True).tril(),
        "You padded on the right. The zeros belong on the left, so that each row begins one place earlier than the row before.")
mistake("skew", lambda x: skewed(x, last=True).tril(),
        "You dropped the last row. It is the first row of the new cut that holds nothing of use.")
mistake("skew", lambda x: F.pad(x, (1, 0)).mT[:, 1:].tril(),
        "You transposed where a reshape is needed. Reshape reads on row by row and cuts elsewhere; transpose "
        "exchanges rows and columns.")
mistake("skew", lambda x: skewed(x, right=True, last=True).tril(),
        "You padded on the right and dropped the last row, so nothing has moved to its key: the farthest distance still stands first. "
        "Pad on the left, and drop the *first* row.")
mistake("skew", lambda x: skewed(x).triu(),
        "You kept the wrong half. The past of query $i$ are the keys $j \\le i$, on and below the diagonal.")
mistake("skew", lambda x: skewed(x).triu(1),
        "You set the past to 0 and kept the left-overs. It is the future, above the diagonal, that has to go.")
mistake("skew", lambda x: skewed(x).tril(-1),
        "The diagonal is missing. Each query also has a score for distance 0, for itself.")
mistake("skew", lambda x: skewed(x.tril()),
        "You cut before you moved. In the matrix by distance, the future is not above the diagonal: first skew, then set it to 0.")
mistake("skew", lambda x: skewed(x).masked_fill(torch.ones(x.shape[-2:]).triu(1).bool(), -torch.inf),
        "The future should be 0 here, not $-\\infty$. These scores are added to $q \\cdot k$, and the causal mask comes after that.")
mistake("skew", lambda x: F.pad(x, (1, 0)).reshape(x.shape[1] + 1, -1, x.shape[1])[1:].transpose(0, 1).tril(),
        "With one head it is right, with more they get mixed up: you read on from one head into the next. Keep the heads as the first axis: "
        "`reshape(heads, n + 1, n)`.")
mistake("skew", lambda x: F.pad(x, (1, 0)).reshape(-1, x.shape[1] + 1, x.shape[1])[1:].tril(),
        "`[1:]` has dropped the first *head*. The first row of each head is `[:, 1:]`.")
mistake("skew", lambda x: F.pad(x, (1, 0)).reshape(-1, x.shape[1] + 1, x.shape[1]).tril(),
        "There are $n + 1$ rows now, one too many, and each score stands a row too low. Which row holds nothing of use?")
mistake("skew", lambda x: x.tril(), "The scores have not moved: column $c$ is still a distance, not a key.")
mistake("skew", lambda x: skewed(x.flip(-1)).tril(),
        "Your distances run the wrong way: you reversed the columns. They come farthest first already, and that is what "
        "the trick needs.")


def picked(x):
    n = x.shape[-1]
    past = torch.arange(n)[:, None] - torch.arange(n)
    return x.gather(-1, (n - 1 - past).clamp(max=n - 1).expand(x.shape)).tril()


alternative("skew", picked)

# %% [markdown]
# ### Task 4 · Turn the pairs   ●●●●○ · 15 minutes · 3 points
#
# Rotary positions. Neighbouring entries $(x_{2c}, x_{2c+1})$ of the vector at position $i$ are an arrow in the plane. Turn it
# counter-clockwise by the angle $i\,\omega_c$, with $\omega_c = \text{base}^{-2c/d}$:
#
# $$x'_{2c} = x_{2c} \cos i\omega_c - x_{2c+1} \sin i\omega_c \qquad x'_{2c+1} = x_{2c} \sin i\omega_c + x_{2c+1} \cos i\omega_c$$
#
# The first row of `x` stands at position `offset`, as in decoding with a cache. Leave `x` itself as it is.
#
# <details><summary>Hint 1: the two entries of all pairs</summary>
#
# `x[..., 0::2]` holds all $x_{2c}$, `x[..., 1::2]` all $x_{2c+1}$.
# </details>
# <details><summary>Hint 2: the angles</summary>
#
# The same as in task 1, `(length, d / 2)`, but the positions begin at `offset`.
# </details>
# <details><summary>Hint 3: a check of your own</summary>
#
# Turning changes no length: `rotate(x).norm(dim=-1)` equals `x.norm(dim=-1)`. And position 0 does not turn at all.
# </details>

# %% nbgrader={"grade_id": "rotate", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def rotate(x: Float[Tensor, "heads length d"], offset: int = 0, base: float = 10000.0) -> Float[Tensor, "heads length d"]:
    """x with each pair of neighbouring entries turned by its position's angle."""
    ### BEGIN SOLUTION
    _, length, d = x.shape
    frequency = base ** (-torch.arange(0, d, 2) / d)                # (d / 2,)
    angle = torch.arange(offset, offset + length)[:, None] * frequency         # (length, d / 2)
    even, odd = x[..., 0::2], x[..., 1::2]                          # (heads, length, d / 2) each
    turned = [even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()]
    return torch.stack(turned, dim=-1).flatten(-2)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-rotate", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("rotate", atol=1e-4) as show:
    x = show.randn(2, show.random_size(4, 9), 8)
    show(rotate(x), "from position 0")
    show(rotate(x[:, :1], offset=5), "one row, at position 5")
    show(rotate(x, offset=2, base=100.0), "from position 2, with base 100")

# %% tags=["mistakes"]
def turn(x, offset=0, base=10000.0, *, half=False, sign=1, same=False, exponent=2.0, signs=(-1, 1)):
    _, length, d = x.shape
    frequency = base ** (-exponent * (0 if same else 1) * torch.arange(d // 2) / d)
    angle = sign * torch.arange(offset, offset + length)[:, None] * frequency
    first, second = x.chunk(2, dim=-1) if half else (x[..., 0::2], x[..., 1::2])
    minus, plus = signs
    turned = [first * angle.cos() + minus * second * angle.sin(), first * angle.sin() + plus * second * angle.cos()]
    return torch.cat(turned, dim=-1) if half else torch.stack(turned, dim=-1).flatten(-2)


def joined(x, offset=0, base=10000.0):
    turned = turn(x, offset, base)
    return torch.cat([turned[..., 0::2], turned[..., 1::2]], dim=-1)


mistake("rotate", lambda x, offset=0, base=10000.0: turn(x, offset, base, half=True),
        "You paired the first half with the second, $(0, d/2)$ and so on, as Llama's checkpoints do. Here neighbours are "
        "pairs: (0, 1), (2, 3), …")
mistake("rotate", lambda x, offset=0, base=10000.0: turn(x, offset, base, sign=-1),
        "You turned clockwise: the two signs at the sine are exchanged. Scores would survive it, because only the "
        "difference counts, but a checkpoint trained the other way would not.")
mistake("rotate", lambda x, offset=0, base=10000.0: turn(x, offset, base, same=True),
        "All pairs turn by the same angle. Each has a speed of its own, $\\omega_c$; with one speed, positions that lie a whole turn "
        "apart look alike.")
mistake("rotate", lambda x, offset=0, base=10000.0: turn(x, offset),
        "From base 10000 all is right, but you ignore the argument `base`.")
mistake("rotate", lambda x, offset=0, base=10000.0: turn(x, 0, base),
        "You ignore `offset`: a word that is decoded alone would always stand at position 0.")
mistake("rotate", lambda x, offset=0, base=10000.0: turn(x, offset, base, exponent=1.0),
        "The speeds fall half as fast as they should: the exponent is $-2c/d$, not $-c/d$.")
mistake("rotate", joined,
        "The turning is right, but you joined all first entries, then all second ones. Put each pair side by side again, "
        "with `stack` and `flatten`.")


def overwritten(x, offset=0, base=10000.0):
    angle = torch.arange(offset, offset + x.shape[-2])[:, None] * base ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    out = x.clone()
    even, odd = out[..., 0::2], out[..., 1::2]                      # views, not copies
    out[..., 0::2] = even * angle.cos() - odd * angle.sin()
    out[..., 1::2] = even * angle.sin() + odd * angle.cos()
    return out


def in_place(x, offset=0, base=10000.0):
    return x.copy_(turn(x, offset, base))


def by_angles(x, angle):                                            # an angle for each column
    other = torch.stack([-x[..., 1::2], x[..., 0::2]], dim=-1).flatten(-2)
    return x * angle.cos() + other * angle.sin()


def columns_alone(x, offset=0, base=10000.0):
    place, d = torch.arange(offset, offset + x.shape[-2])[:, None], x.shape[-1]
    return by_angles(x, place * base ** (-torch.arange(d) / d))


def repeated(x, offset=0, base=10000.0):
    place, d = torch.arange(offset, offset + x.shape[-2])[:, None], x.shape[-1]
    return by_angles(x, place * (base ** (-torch.arange(0, d, 2) / d)).repeat(2))


def late_offset(x, offset=0, base=10000.0):
    place, d = torch.arange(x.shape[-2])[:, None], x.shape[-1]
    return by_angles(x, (place * base ** (-torch.arange(0, d, 2) / d) + offset).repeat_interleave(2, dim=-1))


mistake("rotate", overwritten,
        "The first entries are right, the second ones are not. `x[..., 0::2]` is a *view*: once you wrote the new first "
        "entries into the tensor, the second ones were computed from them. Compute both, then write.")
mistake("rotate", in_place,
        "You have turned `x` itself, so the next call turned a vector that was turned already. Return a new tensor; the "
        "caller still needs the old one.")
mistake("rotate", lambda x, offset=0, base=10000.0: turn(x, offset, base, signs=(1, 1)),
        "Both signs are plus. A turn needs one minus: the first entry *loses* $x_{2c+1} \\sin i\\omega_c$. Do lengths stay, as hint 3 asks?")
mistake("rotate", lambda x, offset=0, base=10000.0: turn(x, offset, base, signs=(-1, -1)),
        "Both signs are minus. At position 0, where nothing should turn, your second entries have changed their sign, and elsewhere lengths don't stay.")
mistake("rotate", lambda x, offset=0, base=10000.0: turn(x, offset + 1, base),
        "Everything is turned one step too far. Positions count from 0: with offset 0 the first row does not turn at all.")
mistake("rotate", lambda x, offset=0, base=10000.0: turn(x, offset, base, exponent=-2.0),
        "The exponent has lost its minus sign: your pairs turn faster and faster from left to right.")
mistake("rotate", late_offset,
        "You added `offset` to the *angle*. It is a number of positions: add it before you multiply with $\\omega_c$, or all "
        "pairs jump by the same angle.")
mistake("rotate", columns_alone,
        "The two entries of a pair turn by different angles. There are $d/2$ speeds: columns $2c$ and $2c+1$ share one.")
mistake("rotate", repeated,
        "You repeated the speeds as a block, $\\omega_0 \\omega_1 \\dots \\omega_0 \\omega_1 \\dots$, which suits halves. Neighbours need "
        "$\\omega_0 \\omega_0 \\omega_1 \\omega_1 \\dots$: `repeat_interleave`.")


def complex_numbers(x, offset=0, base=10000.0):
    pair = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    frequency = base ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    angle = torch.arange(offset, offset + x.shape[-2])[:, None] * frequency
    return torch.view_as_real(pair * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


alternative("rotate", complex_numbers)

# %%
check.summary()
