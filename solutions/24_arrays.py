# %% [markdown]
# # Exercise 24 · Arrays
#
# Two tasks, 6 points, about 25 minutes. They belong to lesson [24 Arrays](../notebooks/24_arrays.ipynb), and the first to
# lesson 23 as well. Both are *core*. Run the cells from the top; fill in where it says *your turn*, then run the check
# below it. You may check as often as you like.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher. Cost is
# never measured by the clock. We count numbers, and look at the largest tensor that an answer makes.

# %% tags=["parameters"]
seed = 0

# %%
import math

import torch
from jaxtyping import Float
from torch import Tensor

from txgrade import check, cost

# %% [markdown]
# ### Task 1 · When do inducing points pay?   ●●●○○ · 12 minutes · 3 points
#
# On paper. Lesson 23's `MAB(x, y)` with $a$ rows in $x$ and $b$ in $y$, all of width $d$, multiplies: projections of
# queries, keys and values, the scores, the mixing of values, and the last linear layer. Heads don't matter: their
# widths add up to $d$. Biases, softmax and relu are left out; multiplying $(a, d)$ by $(d, d)$ counts $a d^2$.
# (The lesson's counter has twice as much: a multiplication and an addition are two operations.)
#
# Return the multiplications of `SAB` and of `ISAB` with $m$ points on a set of $n$; and the smallest $n$ for which
# ISAB takes *fewer*. Whole numbers, exact.
#
# <details><summary>Hint 1: one MAB</summary>
#
# Queries $a d^2$, keys and values $2 b d^2$, scores $a b d$, mixing $a b d$, linear layer $a d^2$.
# </details>
# <details><summary>Hint 2: ISAB</summary>
#
# Two of them: $m$ rows look at $n$, then $n$ rows at $m$.
# </details>
# <details><summary>Hint 3: the smallest n</summary>
#
# A loop over $n$ from 1 on will do. (Roots of floats can be off by one.)
# </details>

# %% nbgrader={"grade_id": "pays", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def multiplications(n: int, m: int, d: int) -> tuple[int, int]:
    """Those of SAB, and of ISAB with m points, on a set of n elements of width d."""
    ### BEGIN SOLUTION
    def mab(a: int, b: int) -> int:
        return (2 * a + 2 * b) * d * d + 2 * a * b * d

    return mab(n, n), mab(m, n) + mab(n, m)
    ### END SOLUTION


def pays_from(m: int, d: int) -> int:
    """The smallest set for which ISAB multiplies less than SAB."""
    ### BEGIN SOLUTION
    n = 1
    while multiplications(n, m, d)[1] >= multiplications(n, m, d)[0]:
        n += 1
    return n
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-pays", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("pays") as show:
    for _ in range(3):
        n, m, d = show.random_size(3, 400), show.random_size(1, 40), 4 * show.random_size(1, 40)
        show([multiplications(n, m, d), multiplications(1, m, d)], f"n = {n} and n = 1, m = {m}, d = {d}", points=1)
    others = [pays_from(show.random_size(2, 40), 8 * show.random_size(1, 30)) for _ in range(4)] + [pays_from(1, show.random_size(1, 9))]
    show([pays_from(16, 64), *others], "from which n on? For m = 16, d = 64, where both are equal once; and others", points=3)

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")


def counting(mab=lambda a, b, d: (2 * a + 2 * b) * d * d + 2 * a * b * d, both=None, start=lambda n: n, fewer=True):
    """Both functions with one part exchanged."""
    def count(n, m, d):
        return (both or (lambda n, m, d: (mab(n, n, d), mab(m, n, d) + mab(n, m, d))))(n, m, d)

    def pays(m, d):
        n = 1
        while count(n, m, d)[1] >= count(n, m, d)[0] if fewer else count(n, m, d)[1] > count(n, m, d)[0]:
            n += 1
        return start(n)
    return {"multiplications": count, "pays_from": pays}


def mab_(a, b, d):
    return (2 * a + 2 * b) * d * d + 2 * a * b * d


mistake("pays", counting(mab=lambda a, b, d: (a + 2 * b) * d * d + 2 * a * b * d),
        "One linear layer is missing: after attention, each of the $a$ rows goes through $W$, $a d^2$ more.")
mistake("pays", counting(mab=lambda a, b, d: (2 * a + 2 * b) * d * d + a * b * d),
        "Attention multiplies twice: for the scores, $a b d$, and for mixing the values, $a b d$ more.")
for start in ("n = 1 → n = 2", "n = 1 → n = 0"):
    equivalent("pays", start, "ISAB never takes fewer for a set of one element or of none.")
for swap in ("multiplications(n, m, d)[1] → multiplications(m, n, d)[1]", "mab(m, n) → mab(n, m)", "mab(n, m) → mab(m, n)"):
    equivalent("pays", swap, "A MAB multiplies as often with a and b exchanged.")

mistake("pays", counting(mab=lambda a, b, d: 2 * a * b * d), "The projections are missing: queries, keys, values and the last linear layer.")
for mab in (lambda a, b, d: (2 * a + 2 * b) * d + 2 * a * b * d, lambda a, b, d: (2 * a + 2 * b) * d * d + 2 * a * b):
    mistake("pays", counting(mab=mab), "A product of $(a, c)$ and $(c, b)$ multiplies $a c b$ times. Somewhere one $d$ is missing.")
mistake("pays", counting(mab=lambda a, b, d: 2 * a * d * d + 2 * a * b * d), "The projections of keys and values are missing: $2 b d^2$.")
mistake("pays", counting(both=lambda n, m, d: (mab_(n, n, d), mab_(m, n, d))),
        "That is half of ISAB. After the points have looked at the set, the set looks at them: a second MAB.")
mistake("pays", counting(both=lambda n, m, d: (mab_(n, n, d), 2 * mab_(m, n, d) + mab_(m, m, d))),
        "The points don't look at each other: ISAB is two MABs, not three.")
mistake("pays", counting(both=lambda n, m, d: (n * n, 2 * n * m)),
        "Those are the scores alone. Multiplications are asked for, projections included.")
mistake("pays", counting(both=lambda n, m, d: (2 * mab_(n, n, d), 2 * (mab_(m, n, d) + mab_(n, m, d)))),
        "Twice too many: these are operations, where a multiplication and its addition count as two.")
mistake("pays", counting(fewer=False),
        "*Fewer*, not as many: for $m = 16$ and $d = 64$ both are equal at $n = 64$, and ISAB pays from 65 on.")
mistake("pays", {"multiplications": multiplications, "pays_from": lambda m, d: 2 * m + 1},
        "$n > 2m$ is where the *scores* are fewer. ISAB also projects twice, and has to win that back.")


def by_formula(m, d):
    n = m + math.isqrt(m * m + 2 * m * d)                          # n² - 2mn - 2md > 0
    return n + 1


alternative("pays", {"multiplications": lambda n, m, d: (4 * n * d**2 + 2 * n**2 * d, 4 * (n + m) * d**2 + 4 * n * m * d),
                     "pays_from": by_formula})

# %% [markdown]
# ### Task 2 · Ask a video   ●●●○○ · 14 minutes · 3 points
#
# Latents have read a video, and you want its color at thousands of places: frame, row, column. Write two functions.
#
# `fourier(p, bands, sizes)`, the lesson's with a size for each axis: places $p$ in $[-1, 1]$, one column for each of the
# $c$ axes. Each axis has its own frequencies: `bands` of them, equally spaced from 1 to half its size. Return $p$,
# then the sines $\sin(\pi f p)$ axis
# by axis, then the cosines: $c \, (2 \cdot \text{bands} + 1)$ columns.
#
# `ask(latents, queries, w_q, w_k, w_v, chunk)`: cross-attention of one head, scores divided by the root of the key's
# width. There are too many queries for one matrix: take `chunk` of them at a time (the last chunk may be smaller). No
# tensor may be larger than the projected queries or one chunk's scores.
#
# <details><summary>Hint 1: frequencies</summary>
#
# `torch.linspace(1, size / 2, bands)` for each size; stacked they are (c, bands).
# </details>
# <details><summary>Hint 2: the order</summary>
#
# `p[..., None] * f` is (points, c, bands). Flattened, it runs axis by axis.
# </details>
# <details><summary>Hint 3: chunks</summary>
#
# Queries don't see each other: compute keys and values once, then go through `queries.split(chunk)`. The softmax over
# latents stays whole.
# </details>

# %% nbgrader={"grade_id": "ask", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def fourier(p: Float[Tensor, "points c"], bands: int, sizes: tuple[int, ...]) -> Float[Tensor, "points features"]:
    """Places as waves, each axis with its own frequencies."""
    ### BEGIN SOLUTION
    f = torch.stack([torch.linspace(1, size / 2, bands) for size in sizes])             # (c, bands)
    angle = math.pi * (p[..., None] * f).flatten(start_dim=1)      # (points, c · bands)
    return torch.cat([p, angle.sin(), angle.cos()], dim=-1)
    ### END SOLUTION


def ask(
    latents: Float[Tensor, "m d"],
    queries: Float[Tensor, "o e"],
    w_q: Float[Tensor, "e width"],
    w_k: Float[Tensor, "d width"],
    w_v: Float[Tensor, "d out"],
    chunk: int,
) -> Float[Tensor, "o out"]:
    """The answer of the latents to each query."""
    ### BEGIN SOLUTION
    k, v = latents @ w_k, latents @ w_v                            # (m, width), (m, out)
    scale = k.shape[-1] ** -0.5
    return torch.cat([(part @ w_q @ k.T * scale).softmax(dim=-1) @ v for part in queries.split(chunk)])
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-ask", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("ask") as show:
    for sizes in ((8,), (show.random_size(4, 9), 16), (4, 6, show.random_size(7, 12))):
        p, bands = 2 * show.rand(show.random_size(2, 4), len(sizes)) - 1, show.random_size(2, 4)
        show(fourier(p, bands, sizes), f"an array of {sizes}, {bands} bands", points=1)
    for o, chunk in ((show.random_size(2, 3) * 3 + 1, 3), (show.random_size(5, 6), 4), (4, 4), (show.random_size(2, 3), 9), (3, 1)):
        inputs = show.randn(5, 4), show.randn(o, 3), show.randn(3, 6), show.randn(4, 6), show.randn(4, 2)
        show(ask(*inputs, chunk), f"{o} queries, {chunk} at a time", points=1)
    o = 64 * show.random_size(6, 8) + show.random_size(1, 63)
    spent = cost(ask, show.randn(32, 4), show.randn(o, 3), show.randn(3, 4), show.randn(4, 4), show.randn(4, 2), 64)
    show([show.sketch(spent.value), spent.largest <= max(64 * 32, 4 * o)],
         f"{o} queries, 64 at a time: sums over the answers, and whether no tensor is larger than it may be", points=2)

# %% tags=["mistakes"]
forbid("ask", ("scaled_dot_product_attention", "multi_head_attention_forward", "torch.nn.MultiheadAttention"), "attention")


def waves(f=lambda size, bands: torch.linspace(1, size / 2, bands), order=lambda angle: angle.flatten(start_dim=1), pi=math.pi,
          own=lambda sizes: sizes, join=lambda p, a: torch.cat([p, a.sin(), a.cos()], dim=-1)):
    """Fourier features with one part exchanged."""
    def answer(p, bands, sizes):
        angle = pi * order(p[..., None] * torch.stack([f(size, bands) for size in own(sizes)]))
        return join(p, angle)
    return {"fourier": answer, "ask": ask}


def asking(attend):
    return {"fourier": fourier, "ask": attend}


def in_parts(latents, queries, w_q, w_k, w_v, chunk, scale=lambda width, m: width**-0.5, whole=False, last=True):
    k, v = latents @ w_k, latents @ w_v
    parts = queries.split(chunk) if last or len(queries) <= chunk else queries[: len(queries) // chunk * chunk].split(chunk)
    parts = [queries] if whole else parts
    out = torch.cat([(part @ w_q @ k.T * scale(k.shape[1], len(k))).softmax(dim=-1) @ v for part in parts])
    return torch.cat([out, torch.zeros(len(queries) - len(out), v.shape[1])])


equivalent("ask", "torch.cat([p, angle.sin(), angle.cos()], dim=-1) → torch.cat([p, angle.sin(), angle.cos()], dim=1)",
           "These are matrices: the last axis is axis 1.")

mistake("ask", waves(f=lambda size, bands: torch.linspace(size / 2, 1, bands)), "The frequencies run the other way: the slowest wave, 1, comes first.")


def attending(q=lambda part, w: part @ w, k=lambda x, w: x @ w, v=lambda x, w: x @ w, weights=lambda s: s.softmax(dim=-1),
              mix=lambda weights, v: weights @ v):
    """Cross-attention in chunks with one part exchanged."""
    def answer(latents, queries, w_q, w_k, w_v, chunk):
        key, value = k(latents, w_k), v(latents, w_v)
        return torch.cat([mix(weights(q(part, w_q) @ key.T * key.shape[-1] ** -0.5), value) for part in queries.split(chunk)])
    return asking(answer)


for name in ("q", "k", "v"):
    for wrong in (lambda x, w: x, lambda x, w: w @ x):
        mistake("ask", attending(**{name: wrong}),
                "A projection is missing, or the wrong way round: `queries @ w_q`, `latents @ w_k` and `latents @ w_v`.")
mistake("ask", attending(weights=lambda s: s), "The softmax is missing.")
mistake("ask", attending(weights=lambda s: s.softmax(dim=0)),
        "The softmax runs over the queries. Each query's weights add up to 1 over the latents, the last axis.")
mistake("ask", attending(mix=lambda weights, v: weights), "These are the weights. The answer is what they make of the values: `weights @ v`.")
mistake("ask", waves(pi=1.0), "The waves are too slow: $\\sin(\\pi f p)$, with $\\pi$.")
mistake("ask", waves(pi=2 * math.pi), "Twice too fast: $\\sin(\\pi f p)$, and $p$ runs from $-1$ to 1, which is a length of 2 already.")
mistake("ask", waves(f=lambda size, bands: torch.linspace(1, size, bands)),
        "The frequencies go up to the size. Up to *half* of it, the fastest wave that the grid can show.")
mistake("ask", waves(f=lambda size, bands: 2.0 ** torch.arange(bands)),
        "These frequencies double each time. Here they are equally spaced, from 1 to half the size.")
mistake("ask", waves(own=lambda sizes: sizes[:1] * len(sizes)),
        "All axes have the frequencies of the first one. Each has its own size.")
mistake("ask", waves(order=lambda angle: angle.mT.flatten(start_dim=1)),
        "The waves stand band by band. Axis by axis is asked for: all bands of the first axis, then the next.")
mistake("ask", waves(join=lambda p, a: torch.cat([a.sin(), a.cos(), p], dim=-1)), "The place itself comes first, before the sines.")
mistake("ask", waves(join=lambda p, a: torch.cat([a.sin(), a.cos()], dim=-1)), "The place itself is missing: its $c$ columns come first.")
mistake("ask", asking(lambda *inputs: in_parts(*inputs, whole=True)),
        "The numbers are right, but all scores stand in one matrix, queries × latents. Take `chunk` queries at a time.")
mistake("ask", asking(lambda *inputs: in_parts(*inputs, last=False)),
        "The last chunk is lost where the number of queries is no multiple of `chunk`.")
mistake("ask", asking(lambda *inputs: in_parts(*inputs, scale=lambda width, m: 1.0)), "The scores are not divided by the root of the width.")
mistake("ask", asking(lambda *inputs: in_parts(*inputs, scale=lambda width, m: m**-0.5)),
        "The scores are divided by the root of the number of latents. It is the width of a key that they sum over.")


def one_at_a_time(latents, queries, w_q, w_k, w_v, chunk):
    k, v, out = latents @ w_k, latents @ w_v, torch.zeros(len(queries), w_v.shape[1])
    for start in range(0, len(queries), chunk):
        scores = torch.einsum("oe,ew,mw->om", queries[start : start + chunk], w_q, k) / math.sqrt(w_q.shape[1])
        out[start : start + chunk] = torch.softmax(scores, dim=1) @ v
    return out


alternative("ask", asking(one_at_a_time))

# %%
check.summary()
