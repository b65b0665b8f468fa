# %% [markdown]
# # Exercise 30 · The quadratic wall
#
# Seven tasks, 19 points, about 80 minutes. They belong to lesson [30 The quadratic wall](../notebooks/30_wall.ipynb).
# Tasks 1 to 4 are the *core* and take about 35 minutes; tasks 5 to 7 are *more*. Run the cells from the top; fill in where
# it says *your turn*, then run the check below it. You may check as often as you like.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher. No check
# looks at a clock. They count operations, and how large the largest tensor gets.

# %% tags=["parameters"]
seed = 0

# %%
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from txgrade import check, cost

# %% [markdown]
# ### How costs are counted here
#
# `spent = cost(answer, *inputs)` runs an answer once. `spent.value` is what it returned. `spent.operations` counts the
# operations of all matrix products, plus one for every number that a step produces (a view produces none).
# `spent.largest` is the size of the largest tensor made on the way, in numbers. NumPy and Python lists can't be counted:
# an answer that moves its numbers there is refused.
#
# `growth` compares the costs of a text of $n$ tokens and of one of $2n$, and gives the exponents: 1 is linear, 2 is
# quadratic. You may use both yourself.


# %%
def growth(short, long) -> dict[str, int]:
    """The exponents with which operations and largest tensor grow, from what n and 2n tokens cost."""
    pairs = (short.operations, long.operations), (short.largest, long.largest)
    operations, largest = (round(math.log2(max(after, 1) / max(before, 1))) for before, after in pairs)
    return {"operations grow as n to the power of": operations, "the largest tensor as n to the power of": largest}

# %% [markdown]
# ### Task 1 · Read the exponent   ●●○○○ · 7 minutes · 2 points
#
# Costs were measured at several lengths. If they are $c\,n^p$, then $\log \text{cost} = \log c + p \log n$: a straight
# line. Measurements are never quite on it. Return the slope $p$ of the line that fits *all* points best, by least squares.
#
# <details><summary>Hint 1: what to fit?</summary>
#
# The logarithms of the costs against the logarithms of the lengths. The base does not matter, as long as both have the
# same.
# </details>
# <details><summary>Hint 2: the formula</summary>
#
# With $x$ and $y$ the logarithms, $p = \sum (x - \bar x)(y - \bar y) \,/ \sum (x - \bar x)^2$.
# </details>
# <details><summary>Hint 3: a number to try</summary>
#
# `exponent([1, 2, 4], [3, 12, 48])` is 2: each doubling multiplies the cost by 4.
# </details>

# %% nbgrader={"grade_id": "exponent", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def exponent(lengths: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of the best straight line through the points on logarithmic axes."""
    ### BEGIN SOLUTION
    x = torch.tensor(lengths, dtype=torch.float64).log()          # (points,)
    y = torch.tensor(costs, dtype=torch.float64).log()            # (points,)
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-exponent", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("exponent") as show:
    lengths = [128, 256, 512, 1024, 2048]
    noise = (0.3 * show.randn(5)).exp().tolist()
    power = show.choice([0.5, 1.0, 2.0, 3.0])
    show(exponent(lengths, [0.002 * n**power * by for n, by in zip(lengths, noise)]), "five measurements")
    uneven = [100, 150, 700, 5000]
    costs = [7 * n**1.5 * by for n, by in zip(uneven, noise)]
    show(exponent(uneven, costs), "lengths that do not double")
    show(exponent([float(n) for n in lengths], [n * math.log(n) * noise[0] for n in lengths]), "n log n")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")


def slope(x, y):
    x, y = torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())


def logs(values, base=math.e):
    return [math.log(each, base) for each in values]


def through_the_origin(lengths, costs):
    x, y = logs(lengths), logs(costs)
    return sum(a * b for a, b in zip(x, y)) / sum(a * a for a in x)


def of_neighbours(lengths, costs):
    pairs = zip(lengths, lengths[1:], costs, costs[1:])
    return sum(math.log(d / c) / math.log(b / a) for a, b, c, d in pairs) / (len(lengths) - 1)


mistake("exponent", lambda lengths, costs: slope(lengths, costs),
        "This is the slope on plain axes: seconds per token. Take the logarithms of both first.")
mistake("exponent", lambda lengths, costs: slope(lengths, logs(costs)),
        "Only the costs are logarithms here. A straight line on those axes would be *exponential* growth. Take the "
        "logarithm of the lengths as well.")
mistake("exponent", lambda lengths, costs: slope(logs(lengths), costs),
        "Only the lengths are logarithms here. Take those of the costs as well.")
mistake("exponent", lambda lengths, costs: slope(logs(lengths, 2), logs(costs, 10)),
        "The two logarithms have different bases, and so the slope is multiplied by a constant. Use the same for both.")
mistake("exponent", lambda lengths, costs: math.log(costs[-1] / costs[0]) / math.log(lengths[-1] / lengths[0]),
        "This goes through the first and the last point only. If one of them is disturbed, so is the result: let all "
        "points have their say.")
mistake("exponent", of_neighbours,
        "This is the mean of the slopes between neighbors. Where lengths double, everything between the first and the last "
        "point cancels in it. Fit one line to all points.")
mistake("exponent", through_the_origin,
        "This line is forced through the origin: the constant c is lost. Subtract the means first.")
mistake("exponent", lambda lengths, costs: slope(logs(costs), logs(lengths)),
        "Lengths and costs are exchanged: this is about 1 / p.")
alternative("exponent", lambda lengths, costs: slope(logs(lengths, 2), logs(costs, 2)))


def sums_of_products(numerator, denominator):
    """The formula from the logarithms x and y, each as it is and less its mean."""
    def answer(lengths, costs):
        x, y = (torch.tensor(logs(values), dtype=torch.float64) for values in (lengths, costs))
        a, b = x - x.mean(), y - y.mean()
        return float(numerator(x, y, a, b).sum() / denominator(x, y, a, b).sum())
    return answer


mistake("exponent", sums_of_products(lambda x, y, a, b: x * b, lambda x, y, a, b: x * x),
        "Only the costs have lost their mean. Take it off the lengths as well.")
mistake("exponent", sums_of_products(lambda x, y, a, b: -a * b, lambda x, y, a, b: a * a),
        "The sign is reversed: where costs grow, $p$ is positive. Both differences are taken the same way, `x - x.mean()`.")
mistake("exponent", sums_of_products(lambda x, y, a, b: a * b, lambda x, y, a, b: torch.ones(1)),
        "This is the numerator alone. Divide by the sum of the squares of `x - x.mean()`.")
for name in ("lengths", "costs"):
    equivalent("exponent", f"torch.tensor({name}, dtype=torch.float64) → torch.tensor({name})",
               "The logarithms have seven digits then, and the check compares four.")
for change in ("x, y = (x - x.mean(), y - y.mean()) → x, y = (x - x.mean(), y)", "y - y.mean() → y + y.mean()",
               "y.mean() → y.sum()"):
    equivalent("exponent", change, "The sum of x less its mean is 0, so a constant added to y changes nothing.")


def by_lstsq(lengths, costs):
    x = torch.tensor(lengths, dtype=torch.float64).log()
    design = torch.stack([x, torch.ones_like(x)], dim=1)
    return torch.linalg.lstsq(design, torch.tensor(costs, dtype=torch.float64).log()[:, None]).solution[0].item()


def by_polyfit(lengths, costs):
    import numpy

    return float(numpy.polyfit(numpy.log(lengths), numpy.log(costs), 1)[0])


alternative("exponent", by_lstsq)
alternative("exponent", by_polyfit)

# %% tags=["variant"]
from txgrade import variant

# Of task 2: the feed-forward network, and how many matrices a token meets in it.
MATRICES, NETWORK = variant(
    (3, "a SwiGLU: *three* matrices of `d` × `d_ff`"),
    (2, "an ordinary one with gelu: *two* matrices of `d` × `d_ff`"),
    (6, "a mixture of experts, two of which read each token: *six* matrices of `d` × `d_ff`, the router left out"),
)

# %% [markdown]
# ### Task 2 · Count a block   ●●○○○ · 8 minutes · 2 points
#
# A block of today's kind reads `n` tokens. Its query and output matrices are `d` × `d`; its key and value matrices lead
# from `d` to `kv_heads` heads of width `d / heads` only. Each of the `heads` query heads meets all keys (there is no
# mask). The feed-forward network is {{NETWORK}}. No biases; norms, softmax and
# activations are not counted.
#
# Return three numbers: the operations of the four projections, of scores and mixing together, and of the feed-forward
# network. A multiplication and an addition are two operations.
#
# <details><summary>Hint 1: one matrix</summary>
#
# `n` vectors through a matrix of $a \times b$ take $2 \cdot n \cdot a \cdot b$ operations.
# </details>
# <details><summary>Hint 2: do grouped queries save scores?</summary>
#
# Keys and values are *stored* once per group. But every query head still has its own scores with them.
# </details>
# <details><summary>Hint 3: check yourself</summary>
#
# Build the matrices as `torch.empty(…, device="meta")`, multiply, and let `FlopCounterMode` count.
# </details>

# %% nbgrader={"grade_id": "block", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def block_operations(n: int, d: int, heads: int, kv_heads: int, d_ff: int) -> tuple[int, int, int]:
    """Operations of a block's projections, of its scores and mixing, and of its feed-forward network."""
    ### BEGIN SOLUTION
    narrow = kv_heads * (d // heads)                               # width of all keys, and of all values
    return 4 * n * d * d + 4 * n * d * narrow, 4 * n * n * d, 2 * MATRICES * n * d * d_ff
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-block", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("block") as show:
    heads = show.choice([4, 8])
    sizes = show.random_size(50, 90), 8 * show.random_size(3, 9), heads, 2, show.random_size(70, 99)
    show(block_operations(*sizes), f"n, d, heads, kv_heads, d_ff = {sizes}")
    n = show.random_size(1000, 99_999)
    show(block_operations(n, 4096, 32, 8, 14_336), f"the sizes of Llama 3.1 8B, {n:,} tokens")

# %% tags=["mistakes"]
def changed(projections=lambda *sizes: 1, mixing=lambda *sizes: 1, network=lambda *sizes: 1):
    """The right counts, some of them multiplied."""
    def answer(*sizes):
        right = block_operations(*sizes)
        return tuple(int(each * by(*sizes)) for each, by in zip(right, (projections, mixing, network)))
    return answer


def all_wide(n, d, heads, kv_heads, d_ff):
    return 8 * n * d * d, *block_operations(n, d, heads, kv_heads, d_ff)[1:]


def one_head_wide(n, d, heads, kv_heads, d_ff):
    return 4 * n * d * d + 4 * n * d * (d // heads), *block_operations(n, d, heads, kv_heads, d_ff)[1:]


mistake("block", all_wide,
        "Keys and values are counted at full width. Their matrices lead to kv_heads heads only.")
mistake("block", one_head_wide,
        "Keys and values are counted as one head. There are kv_heads of them.")
mistake("block", changed(*[lambda *sizes: 0.5] * 3),
        "A multiplication *and* an addition: each entry of a matrix costs two operations per token. All three are half of "
        "what they should be.")
mistake("block", changed(mixing=lambda n, d, heads, kv_heads, d_ff: 0.5),
        "Scores and mixing are two products, each 2n²d: the queries meet the keys, and the weights the values.")
mistake("block", changed(mixing=lambda n, d, heads, kv_heads, d_ff: heads),
        "Scores are multiplied by the number of heads. Each head has its own square, but it is only d / heads wide: together "
        "4n²d.")
mistake("block", changed(mixing=lambda n, d, heads, kv_heads, d_ff: kv_heads / heads),
        "Grouped queries share keys and values, not scores: every query head still meets every key. They save memory, and "
        "part of the projections.")
mistake("block", changed(network=lambda *sizes: (MATRICES - 1) / MATRICES),
        "One matrix of the feed-forward network is missing: a token meets {{MATRICES:words}}.")
mistake("block", lambda n, d, heads, kv_heads, d_ff: (
            *block_operations(n, d, heads, kv_heads, d_ff)[:2], 2 * MATRICES * n * d * 4 * d),
        "The feed-forward network is counted as 4d wide. Here its width is given: d_ff.")
def projections(q_and_o=lambda n, d, narrow: 4 * n * d * d, k_and_v=lambda n, d, narrow: 4 * n * d * narrow,
                narrow=lambda d, heads, kv_heads: kv_heads * (d // heads)):
    """The right counts, but for the projections."""
    def answer(n, d, heads, kv_heads, d_ff):
        width = narrow(d, heads, kv_heads)
        return q_and_o(n, d, width) + k_and_v(n, d, width), *block_operations(n, d, heads, kv_heads, d_ff)[1:]
    return answer


mistake("block", projections(k_and_v=lambda n, d, narrow: 0), "The key and value matrices are missing.")
mistake("block", projections(q_and_o=lambda n, d, narrow: 0), "The query and output matrices are missing.")
mistake("block", projections(q_and_o=lambda n, d, narrow: 2 * n * d * d),
        "There are *two* matrices of d × d: the query's and the output's.")
mistake("block", projections(k_and_v=lambda n, d, narrow: 2 * n * d * narrow),
        "There are *two* narrow matrices: one for keys and one for values.")
for wrong in (lambda n, d, narrow: 4 * n * d, lambda n, d, narrow: 4 * d * d, lambda n, d, narrow: n * d * d):
    mistake("block", projections(q_and_o=wrong),
            "A factor is missing for the query and output matrices: each takes 2 · n · d · d operations.")
for wrong in (lambda n, d, narrow: 4 * n * d, lambda n, d, narrow: 4 * n * narrow, lambda n, d, narrow: 4 * d * narrow,
              lambda n, d, narrow: n * d * narrow):
    mistake("block", projections(k_and_v=wrong),
            "A factor is missing for the key and value matrices: each takes 2 · n · d · (their width) operations.")
mistake("block", projections(narrow=lambda d, heads, kv_heads: kv_heads),
        "The key and value matrices lead to kv_heads *heads*, each d / heads wide, not to kv_heads numbers.")
mistake("block", projections(narrow=lambda d, heads, kv_heads: kv_heads * d),
        "A key's head is d / heads wide, not d.")
for factor in (lambda n, d: n, lambda n, d: d):
    mistake("block", changed(mixing=lambda n, d, heads, kv_heads, d_ff, factor=factor: 1 / factor(n, d)),
            "A factor is missing in scores and mixing: two products of 2 · n · n · d operations each.")
for factor in (lambda n, d, d_ff: n, lambda n, d, d_ff: d, lambda n, d, d_ff: d_ff):
    mistake("block", changed(network=lambda n, d, heads, kv_heads, d_ff, factor=factor: 1 / factor(n, d, d_ff)),
            "A factor is missing in the feed-forward network: each of its {{MATRICES:words}} matrices takes 2 · n · d · d_ff operations.")
if MATRICES > 2:
    mistake("block", changed(network=lambda *sizes: 1 / MATRICES),
            "One matrix of the feed-forward network is counted. A token meets {{MATRICES:words}}.")
    mistake("block", changed(network=lambda *sizes: 0.5),
            "The feed-forward network is half of what it should be: a multiplication *and* an addition for each entry.")
mistake("block", changed(mixing=lambda n, d, heads, kv_heads, d_ff: d / n),
        "Scores and mixing grow with n², not with n d²: each of n queries meets each of n keys.")


def by_counting(n, d, heads, kv_heads, d_ff):
    def product(*shapes):
        a, b = (torch.empty(shape, device="meta") for shape in shapes)
        with FlopCounterMode(display=False) as counter:
            a @ b
        return counter.get_total_flops()

    width = d // heads
    projections = 2 * product((n, d), (d, d)) + 2 * product((n, d), (d, kv_heads * width))
    mixing = product((heads, n, width), (heads, width, n)) + product((heads, n, n), (heads, n, width))
    return projections, mixing, MATRICES * product((n, d), (d, d_ff))


alternative("block", by_counting)

# %% [markdown]
# ### Task 3 · What a text leaves in the cache   ●●○○○ · 7 minutes · 2 points
#
# While a decoder writes, each layer keeps a key and a value of `head_dim` numbers for each of its `kv_heads` heads and
# each token that it may still see. In many models only some layers see everything: counted from 1, the layers
# `full_every`, 2 · `full_every`, … do; every other layer sees the last `window` tokens only, and keeps no more than
# those. Return the bytes that are kept after `n` tokens, with `bytes_each` bytes per number.
#
# <details><summary>Hint 1: how many layers see everything?</summary>
#
# Those whose number is a multiple of `full_every`: `layers // full_every`.
# </details>
# <details><summary>Hint 2: before the window is full</summary>
#
# A layer cannot keep more tokens than there are.
# </details>
# <details><summary>Hint 3: a number to try</summary>
#
# Llama 3.1 8B: `(131072, 32, 8, 128, 2, 1, 1)` gives 17,179,869,184. With `full_every=1` all layers see everything.
# </details>

# %% nbgrader={"grade_id": "cache", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def cache_bytes(
    n: int, layers: int, kv_heads: int, head_dim: int, bytes_each: int, full_every: int, window: int
) -> int:
    """Bytes of keys and values that all layers keep after n tokens."""
    ### BEGIN SOLUTION
    full = layers // full_every
    tokens = full * n + (layers - full) * min(n, window)           # in all layers together
    return 2 * kv_heads * head_dim * bytes_each * tokens
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-cache", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("cache") as show:
    n, window = show.random_size(5000, 9999), show.random_size(500, 999)
    show(cache_bytes(n, 26, 4, 256, 2, 6, window), f"26 layers, every sixth sees all, {n:,} tokens, window {window}")
    show(cache_bytes(n, 12, show.choice([2, 3, 4]), 64, 4, 1, window), "every layer sees all")
    show(cache_bytes(show.random_size(50, 99), 10, 2, 32, 2, 4, window), "fewer tokens than the window")
    show(cache_bytes(n, 5, 2, 32, 2, 6, window), "no layer sees all")

# %% tags=["mistakes"]
def kept(tokens, factor=2):
    """A cache with another idea of how many tokens all layers keep together."""
    def answer(n, layers, kv_heads, head_dim, bytes_each, full_every, window):
        return int(factor * kv_heads * head_dim * bytes_each * tokens(n, layers, full_every, window))
    return answer


def right(n, layers, full_every, window):
    full = layers // full_every
    return full * n + (layers - full) * min(n, window)


def without(factor):
    """The right count, divided by one of its factors."""
    def answer(n, layers, kv_heads, head_dim, bytes_each, full_every, window):
        sizes = n, layers, kv_heads, head_dim, bytes_each, full_every, window
        return cache_bytes(*sizes) // factor(kv_heads, head_dim, bytes_each)
    return answer


for factor in (lambda kv_heads, head_dim, bytes_each: kv_heads, lambda kv_heads, head_dim, bytes_each: head_dim,
               lambda kv_heads, head_dim, bytes_each: bytes_each):
    mistake("cache", without(factor),
            "A factor is missing. For each token that a layer keeps: a key and a value, in each of kv_heads heads, of "
            "head_dim numbers, of bytes_each bytes.")
mistake("cache", kept(lambda n, layers, full_every, window: 1),
        "This is one layer's part for one token. Multiply by the number of tokens that all layers keep.")
mistake("cache", kept(lambda n, layers, full_every, window: layers // full_every * n),
        "The layers with a window also keep something: min(n, window) tokens each.")
mistake("cache", kept(lambda n, layers, full_every, window: (layers - layers // full_every) * min(n, window)),
        "The layers that see everything are missing: they keep all n tokens.")
mistake("cache", kept(lambda n, layers, full_every, window: n + (layers - layers // full_every) * min(n, window)),
        "The tokens of one layer that sees everything are counted. There are layers // full_every of them.")
mistake("cache", kept(lambda n, layers, full_every, window: layers // full_every * n + min(n, window)),
        "The window of one layer is counted. All layers − layers // full_every others have one.")
mistake("cache", kept(lambda n, layers, full_every, window: layers // full_every * n + layers * min(n, window)),
        "The layers that see everything are counted twice: with all tokens, and with a window again.")
mistake("cache", kept(right, factor=1), "A layer keeps a key *and* a value for each token: twice as much.")
mistake("cache", kept(lambda n, layers, full_every, window: layers * n),
        "Here every layer keeps all tokens. A layer with a window keeps no more than the window.")
mistake("cache", kept(lambda n, layers, full_every, window: layers * min(n, window)),
        "Here every layer keeps the window only. Every `full_every`-th one sees, and keeps, everything.")
mistake("cache", kept(lambda n, layers, full_every, window: (
            layers // full_every * n + (layers - layers // full_every) * window)),
        "Before the window is full, a layer keeps what there is: min(n, window).")
mistake("cache", kept(lambda n, layers, full_every, window: right(n, layers, full_every, window)
                      + (-(-layers // full_every) - layers // full_every) * (n - min(n, window))),
        "One layer too many sees everything. Counted from 1, it is the layers full_every, 2 · full_every … (With "
        "`number % full_every == 0` and numbers from 0, the first layer is among them.)")
mistake("cache", kept(lambda n, layers, full_every, window: (
            (layers - layers // full_every) * n + layers // full_every * min(n, window))),
        "Exchanged: every `full_every`-th layer sees all, the *others* have the window.")
mistake("cache", kept(lambda n, layers, full_every, window: right(n, layers, full_every, window) * (n + 1) / 2),
        "A sum over all steps. The cache is kept, not made anew: after n tokens it holds n rows.")
alternative("cache", kept(lambda n, layers, full_every, window: sum(
    n if number % full_every == 0 else min(n, window) for number in range(1, layers + 1))))

# %% [markdown]
# ### Task 4 · Half of the square, one strip at a time   ●●●○○ · 12 minutes · 3 points
#
# Causal attention of one head, with scores divided by $\sqrt{d}$. Take the queries in chunks of `size`, the last one
# perhaps shorter, so that there is never an $n \times n$ tensor. And the keys after a chunk's last query are of no use
# to any query in it: leave them out of the product. Then about half of the operations are gone as well.
#
# We count both: whether more than two thirds of the square's $4n^2d$ operations were computed, and with which power of
# $n$ the largest tensor grows. Torch's own attention is ruled out.
#
# <details><summary>Hint 1: which keys?</summary>
#
# Queries `start` to `stop` − 1 need keys 0 to `stop` − 1: `k[:stop]`.
# </details>
# <details><summary>Hint 2: the mask</summary>
#
# Row $i$ of the chunk is position `start` + $i$. It may see keys `0 … start + i`.
# </details>
# <details><summary>Hint 3: putting it together</summary>
#
# Append each chunk's output to a list, and `torch.cat` the list at the end.
# </details>

# %% nbgrader={"grade_id": "chunks", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def chunked_attention(
    q: Float[Tensor, "n d"], k: Float[Tensor, "n d"], v: Float[Tensor, "n d"], size: int
) -> Float[Tensor, "n d"]:
    """Causal attention, computed for `size` queries at a time, without the keys that none of them may see."""
    ### BEGIN SOLUTION
    outputs = []
    for start in range(0, len(q), size):
        stop = min(start + size, len(q))
        score = q[start:stop] @ k[:stop].T / q.shape[1] ** 0.5     # (chunk, stop)
        later = torch.arange(stop) > torch.arange(start, stop)[:, None]
        outputs.append(score.masked_fill(later, -torch.inf).softmax(dim=-1) @ v[:stop])
    return torch.cat(outputs)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-chunks", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("chunks") as show:
    q, k, v = show.randn(3, show.random_size(17, 23), 5)
    show(chunked_attention(q, k, v, 8), f"{len(q)} tokens, in chunks of 8")
    show(chunked_attention(q[:16], k[:16], v[:16], 8), "16 tokens, in chunks of 8")
    show(chunked_attention(q[:17], k[:17], v[:17], 8), "17 tokens, in chunks of 8: the last one has a single query")
    show(chunked_attention(q, k, v, 1), "one query at a time")
    show(chunked_attention(q, k, v, 64), "a chunk larger than the text")
    wide = cost(chunked_attention, *show.randn(3, 256, 64), 16)
    computed = wide.operations / (4 * 256**2 * 64)
    show({"outputs": show.sketch(wide.value), "more than two thirds of the square": computed > 2 / 3},
         "256 tokens of width 64: a few sums over the outputs, and what they cost")
    short, long = (cost(chunked_attention, *show.randn(3, n, 16), 16) for n in (256, 512))
    show({"outputs": [show.sketch(short.value), show.sketch(long.value)]} | growth(short, long),
         "256 and 512 tokens: a few sums over the outputs, and how the cost grows")

# %% tags=["mistakes"]
forbid("chunks", ("scaled_dot_product_attention", "MultiheadAttention", "flex_attention"), "attention")


def by_chunks(keys=lambda start, stop, n: (0, stop), may=lambda i, j, start: j <= i, scale=True,
              width=lambda q: q.shape[1], axis=-1):
    """Chunked attention with other keys, another mask (i, j: positions), another scale or none, or another axis."""
    def answer(q, k, v, size):
        outputs = []
        for start in range(0, len(q), size):
            stop = min(start + size, len(q))
            first, last = keys(start, stop, len(q))
            score = q[start:stop] @ k[first:last].T / (width(q) ** 0.5 if scale else 1)
            i, j = torch.arange(start, stop)[:, None], torch.arange(first, last)
            score = score.masked_fill(~may(i, j, start), -torch.inf)
            outputs.append(score.softmax(axis) @ v[first:last])
        return torch.cat(outputs)
    return answer


def whole_square(q, k, v, size=None):
    score = q @ k.T / q.shape[1] ** 0.5
    return score.masked_fill(torch.ones_like(score).triu(1).bool(), -torch.inf).softmax(-1) @ v


def collected(q, k, v, size):
    weights = torch.zeros(len(q), len(q))
    for start in range(0, len(q), size):
        stop = min(start + size, len(q))
        score = q[start:stop] @ k[:stop].T / q.shape[1] ** 0.5
        later = torch.arange(stop) > torch.arange(start, stop)[:, None]
        weights[start:stop, :stop] = score.masked_fill(later, -torch.inf).softmax(-1)
    return torch.cat([weights[start : start + size, : start + size] @ v[: start + size]
                      for start in range(0, len(q), size)])


def whole_chunks_only(q, k, v, size):
    whole = max(len(q) // size, 1) * size
    return chunked_attention(q, k, v, size)[:whole]


mistake("chunks", whole_square,
        "The numbers are right, but this is the whole square at once: nothing is saved, neither memory nor operations.")
mistake("chunks", by_chunks(keys=lambda start, stop, n: (0, n)),
        "The numbers are right, and there is no square in memory. But every chunk meets *all* keys, and the mask throws half "
        "of the scores away. Take `k[:stop]` and `v[:stop]`.")
mistake("chunks", collected,
        "The numbers are right, and only half is computed. But the weights are collected in an n × n tensor. Mix the values "
        "chunk by chunk, and forget each chunk's weights.")
mistake("chunks", by_chunks(keys=lambda start, stop, n: (start, stop)),
        "Each chunk sees only itself. A query sees *all* positions up to its own, also those of earlier chunks.")
mistake("chunks", by_chunks(may=lambda i, j, start: j >= 0),
        "Inside a chunk, queries see the future: the keys up to the chunk's end. Each needs its own limit.")
mistake("chunks", by_chunks(may=lambda i, j, start: j <= i - start),
        "The mask counts the queries from the chunk's beginning. Row i of a chunk is position start + i.")
mistake("chunks", by_chunks(may=lambda i, j, start: (j < i) | (j == 0)),
        "A position may also see itself.")
mistake("chunks", by_chunks(may=lambda i, j, start: j < i), "A position may also see itself.")
mistake("chunks", by_chunks(may=lambda i, j, start: j >= i),
        "The mask is the wrong way round: it hides the past, and leaves the future. Hide what comes *later*.")
mistake("chunks", by_chunks(scale=False), "The scores are not divided by √d.")
mistake("chunks", by_chunks(width=lambda q: len(q)),
        "The scores are divided by the root of the number of tokens. d is the width, `q.shape[1]`.")
mistake("chunks", by_chunks(axis=0),
        "This softmax runs over the queries. Each query shares out 1 among its *keys*: the last axis.")
mistake("chunks", whole_chunks_only,
        "The last chunk is missing where `size` does not divide the length. It may be shorter than the others.")


def row_by_row(q, k, v, size):
    return torch.stack([(k[: i + 1] @ q[i] / q.shape[1] ** 0.5).softmax(0) @ v[: i + 1] for i in range(len(q))])


def into_place(q, k, v, size):
    out, scale = torch.empty_like(q), q.shape[1] ** -0.5
    for number, rows in enumerate(q.split(size)):
        stop = number * size + len(rows)
        bias = torch.full((len(rows), stop), -torch.inf).triu(number * size + 1)
        out[number * size : stop] = torch.softmax(scale * rows @ k[:stop].mT + bias, -1) @ v[:stop]
    return out


alternative("chunks", row_by_row)
alternative("chunks", into_place)

# %% [markdown]
# ### Task 5 · A window that is not a square   ●●●●○ · 16 minutes · 4 points
#
# Causal attention of one head with a *sliding window*: each position sees itself and the `window` − 1 positions before
# it. Scores are divided by $\sqrt{d}$. That is $O(n \cdot \text{window} \cdot d)$, if you compute nothing else. A mask
# over all pairs gives the right numbers, and is $O(n^2)$: the check measures it. Operations *and* the largest tensor must
# grow linearly with $n$. Torch's own attention is ruled out.
#
# <details><summary>Hint 1: gather the neighbors</summary>
#
# Put `window` − 1 rows of zeros before the keys. Then `.unfold(0, window, 1)` gives for each position the keys of its
# window, as `(n, d, window)`. The same for the values.
# </details>
# <details><summary>Hint 2: zeros are not nothing</summary>
#
# A padded key of zeros has the score 0, and $e^0 = 1$. The first positions must not see what does not exist: set those
# scores to −∞.
# </details>
# <details><summary>Hint 3: or chunk by chunk</summary>
#
# Queries `start … stop` need the keys `start − window + 1 … stop`. Task 4's loop with another slice, and a mask for that
# small rectangle.
# </details>

# %% nbgrader={"grade_id": "window", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def window_attention(
    q: Float[Tensor, "n d"], k: Float[Tensor, "n d"], v: Float[Tensor, "n d"], window: int
) -> Float[Tensor, "n d"]:
    """Each position attends to itself and the window - 1 positions before it, at a cost linear in n."""
    ### BEGIN SOLUTION
    n, d = q.shape
    keys, values = (F.pad(each, (0, 0, window - 1, 0)).unfold(0, window, 1) for each in (k, v))      # (n, d, window)
    score = (q[:, None] @ keys)[:, 0] / d**0.5                     # (n, window)
    missing = torch.arange(n)[:, None] < torch.arange(window - 1, -1, -1)       # (n, window): before the first
    weight = score.masked_fill(missing, -torch.inf).softmax(dim=-1)
    return (values @ weight[..., None])[..., 0]
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-window", "grade": true, "points": 4, "solution": false, "locked": true, "schema_version": 3}
with check("window") as show:
    q, k, v = show.randn(3, show.random_size(12, 18), 4)
    show(window_attention(q, k, v, show.random_size(3, 6)), "a window of a few positions")
    show(window_attention(q, k, v, 30), "a window larger than the text")
    show(window_attention(q, k, v, len(q)), "a window as long as the text")
    show(window_attention(q[:1], k[:1], v[:1], 3), "a single token")
    show([window_attention(q, k, v, 1), window_attention(q, k, v, 2)], "windows of one and of two")
    short, long = (cost(window_attention, *show.randn(3, n, 16), 8) for n in (256, 512))
    show({"outputs": [show.sketch(short.value), show.sketch(long.value)]} | growth(short, long),
         "256 and 512 tokens, a window of 8: a few sums over the outputs, and how the cost grows")

# %% tags=["mistakes"]
forbid("window", ("scaled_dot_product_attention", "MultiheadAttention", "flex_attention"), "attention")


def masked(may, scale=True):
    """All pairs, and a mask (i, j: positions)."""
    def answer(q, k, v, window):
        i, j = torch.arange(len(q))[:, None], torch.arange(len(q))
        score = q @ k.T / (q.shape[1] ** 0.5 if scale else 1)
        return score.masked_fill(~may(i, j, window), -torch.inf).softmax(-1) @ v
    return answer


def in_window(i, j, window):
    return (j <= i) & (j > i - window)


def sliced(q, k, v, window, keys=lambda start, stop, window: max(0, start - window + 1), mask=None, size=16):
    """Chunk by chunk, with keys from `keys` to the chunk's end."""
    outputs = []
    for start in range(0, len(q), size):
        stop = min(start + size, len(q))
        first = keys(start, stop, window)
        i, j = torch.arange(start, stop)[:, None], torch.arange(first, stop)
        allowed = in_window(i, j, window) if mask is None else mask[start:stop, first:stop]
        score = q[start:stop] @ k[first:stop].T / q.shape[1] ** 0.5
        outputs.append(score.masked_fill(~allowed, -torch.inf).softmax(-1) @ v[first:stop])
    return torch.cat(outputs)


def with_the_whole_mask(q, k, v, window):
    i, j = torch.arange(len(q))[:, None], torch.arange(len(q))
    return sliced(q, k, v, window, mask=in_window(i, j, window))


def gathered(q, k, v, window, hide=True, scale=True):
    keys, values = (F.pad(each, (0, 0, window - 1, 0)).unfold(0, window, 1) for each in (k, v))
    score = torch.einsum("nd,ndw->nw", q, keys) / (q.shape[1] ** 0.5 if scale else 1)
    if hide:
        missing = torch.arange(len(q))[:, None] < torch.arange(window - 1, -1, -1)
        score = score.masked_fill(missing, -torch.inf)
    return torch.einsum("nw,ndw->nd", score.softmax(-1), values)


def clamped(q, k, v, window):
    place = (torch.arange(len(q))[:, None] - torch.arange(window)).clamp(min=0)
    score = torch.einsum("nd,nwd->nw", q, k[place]) / q.shape[1] ** 0.5
    return torch.einsum("nw,nwd->nd", score.softmax(-1), v[place])


def not_overlapping(q, k, v, window):
    return masked(lambda i, j, window: (j <= i) & (j // window == i // window))(q, k, v, window)


mistake("window", masked(in_window),
        "The numbers are right, but this is quadratic, in operations and in memory: all n² scores are computed, and the mask "
        "throws nearly all of them away. Compute only the scores inside the window.")
mistake("window", lambda q, k, v, window: sliced(q, k, v, window, keys=lambda start, stop, window: 0),
        "The numbers are right, and no tensor is n × n. But each chunk still meets all keys from the beginning, so the "
        "operations are quadratic. Its first query needs no key before start − window + 1.")
mistake("window", with_the_whole_mask,
        "The numbers are right, and so are the operations of the products. But a mask of n × n is made: a square, in memory "
        "and in the numbers that are computed for it. Make the small mask of each chunk instead.")
mistake("window", masked(lambda i, j, window: (j <= i) & (j >= i - window)),
        "One position too many: `window` positions before *and* the position itself. The window includes it.")
mistake("window", masked(lambda i, j, window: (i - j).abs() < window),
        "This window looks both ways, into the future too. Only the past is allowed.")
mistake("window", lambda q, k, v, window: gathered(q, k, v, window, hide=False),
        "The first positions see padding. A key of zeros has the score 0, not −∞: it takes part in the softmax, and the "
        "weights of the real keys get too small. (To set padding's weights to 0 afterwards comes too late: those of the "
        "others then no longer add up to 1.)")
mistake("window", clamped,
        "Where the window reaches beyond the beginning, position 0 is taken several times, and counts several times.")
mistake("window", not_overlapping,
        "These are blocks, not a sliding window: the first position of each block does not see the one before it.")
def padded_behind(q, k, v, window):
    keys, values = (F.pad(x, (0, 0, 0, window - 1)).unfold(0, window, 1) for x in (k, v))
    score = torch.einsum("nd,ndw->nw", q, keys) / q.shape[1] ** 0.5
    missing = torch.arange(len(q))[:, None] < torch.arange(window - 1, -1, -1)
    return torch.einsum("nw,ndw->nd", score.masked_fill(missing, -torch.inf).softmax(-1), values)


mistake("window", padded_behind,
        "The zeros are behind the text, so that each position meets itself and those *after* it. Put them before.")
mistake("window", masked(lambda i, j, window: (j <= i) & (j > i - window) & ((j < i) | (i == 0))),
        "A position also sees itself.")
mistake("window", lambda q, k, v, window: gathered(q, k, v, window, scale=False), "The scores are not divided by √d.")
for change in ("(q[:, None] @ keys)[:, 0] → (q[:, None] @ keys)[:, -1]",
               "(values @ weight[..., None])[..., 0] → (values @ weight[..., None])[..., -1]"):
    equivalent("window", change, "That axis has one entry: the first is the last.")
alternative("window", gathered)
alternative("window", sliced)


def one_at_a_time(q, k, v, window):
    rows = []
    for i in range(len(q)):
        near = slice(max(0, i - window + 1), i + 1)
        rows.append((k[near] @ q[i] / q.shape[1] ** 0.5).softmax(0) @ v[near])
    return torch.stack(rows)


def by_shifting(q, k, v, window):
    n, d = q.shape
    score = torch.full((window, n), -torch.inf)
    for back in range(min(window, n)):
        score[back, back:] = (q[back:] * k[: n - back]).sum(-1) / d**0.5
    weight, out = score.softmax(0), torch.zeros(n, d)
    for back in range(min(window, n)):
        out[back:] += weight[back, back:, None] * v[: n - back]
    return out


alternative("window", one_at_a_time)
alternative("window", by_shifting)

# %% [markdown]
# ### Task 6 · How far back does it hear?   ●●●○○ · 12 minutes · 3 points
#
# `layer` takes `(n, d)` to `(n, width)`: a convolution, an attention, a stack of both, anything that can be
# differentiated. Measure its *receptive field*: find the earliest input position that the **last output** depends on,
# and return how many positions there are from there to the end, both included. 0 if it depends on none.
#
# A position counts if *any* number of the last output changes with *any* number of that input. So ask for all those
# derivatives, and don't let them cancel.
#
# <details><summary>Hint 1: which derivatives?</summary>
#
# $\partial\, \text{out}[-1, a] \,/\, \partial\, x[i, b]$ for all $a$, $i$, $b$.
# `torch.autograd.functional.jacobian(f, x)` gives them all, as `(width, n, d)`, for an `f` that returns the last row.
# </details>
# <details><summary>Hint 2: why not just `.sum().backward()`?</summary>
#
# A sum of outputs has the sum of their derivatives. If one is +1 and another −1, that is 0, and the position looks deaf.
# </details>
# <details><summary>Hint 3: holes</summary>
#
# A dilated convolution skips positions. The field reaches from the earliest to the last all the same: don't count, look
# for the first.
# </details>

# %% nbgrader={"grade_id": "field", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def receptive_field(layer: Callable[[Tensor], Tensor], x: Float[Tensor, "n d"]) -> int:
    """Positions from the earliest input on which the last output depends, to the end."""
    ### BEGIN SOLUTION
    derivatives = torch.autograd.functional.jacobian(lambda x: layer(x)[-1], x)       # (width, n, d)
    heard = derivatives.abs().amax(dim=(0, 2)) > 0                 # (n,)
    return len(x) - int(heard.nonzero()[0]) if heard.any() else 0
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-field", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("field") as show:
    def convolution(kernel: int, dilation: int):
        weight = show.randn(3, 3, kernel)  # (d_out, d_in, kernel)
        return lambda x: F.conv1d(F.pad(x.T, (dilation * (kernel - 1), 0))[None], weight, dilation=dilation)[0].T


    def shifted(x: Tensor, by: int):
        return F.pad(x, (0, 0, by, 0))[: len(x)]


    x, back = show.randn(show.random_size(50, 80), 3), show.random_size(9, 39)
    first, second = convolution(show.random_size(2, 4), 1), convolution(3, show.random_size(3, 5))
    show([receptive_field(first, x), receptive_field(lambda x: second(first(x)), x)], "a convolution; a dilated one above it")
    show([receptive_field(lambda x: x[:, :1].cumsum(0), x), receptive_field(lambda x: x**2, x)],
         "a running sum of the first numbers; each position by itself")
    show(receptive_field(lambda x: torch.cat([x, shifted(x, back)], dim=1), x), f"each position joined with the one {back} back")
    show(receptive_field(lambda x: torch.cat([x + shifted(x, back), -shifted(x, back)], dim=1), x),
         f"what is {back} back, once with + and once with −")
    show(receptive_field(lambda x: shifted(x[:, :1] - x[:, 1:2], back) + x[:, :1], x), f"a difference of numbers, {back} back")
    show(receptive_field(lambda x: torch.ones_like(x), x), "a layer that does not listen")

# %% tags=["mistakes"]
def from_gradient(gradient, reduce=lambda g: g.abs().amax(-1)):
    """The field, given a way to the gradient (n, d) at the inputs."""
    def answer(layer, x):
        x = x.detach().clone().requires_grad_()
        out = layer(x)
        if not out.requires_grad:
            return 0
        (found,) = torch.autograd.grad(gradient(out), x)
        heard = reduce(found) != 0
        return len(x) - int(heard.nonzero()[0]) if heard.any() else 0
    return answer


def heard_at(layer, x):
    return torch.autograd.functional.jacobian(lambda x: layer(x)[-1], x).abs().amax(dim=(0, 2)) > 0


def counted(layer, x):
    return int(heard_at(layer, x).sum())


def without_the_last(layer, x):
    return max(receptive_field(layer, x) - 1, 0)


def earliest_place(layer, x):
    heard = heard_at(layer, x)
    return int(heard.nonzero()[0]) if heard.any() else 0


mistake("field", from_gradient(lambda out: out[-1].sum()),
        "The last output's numbers are added up before the derivative is taken, and there derivatives can cancel: +1 and −1 "
        "give 0. Take the derivative of each number by itself.")
mistake("field", from_gradient(lambda out: out[-1, 0]),
        "Only the first number of the last output is asked. Another one may hear further.")
mistake("field", from_gradient(lambda out: out.sum()),
        "All outputs are asked, and so each input is heard somewhere. Ask the *last* position only.")
mistake("field", from_gradient(lambda out: out[-1].square().sum(), reduce=lambda g: g.sum(-1)),
        "The derivatives are added up along d, and there they can cancel. Take the largest absolute value instead.")
mistake("field", lambda layer, x: len(x),
        "A derivative of 0 counts as heard here, so that the field is always the whole text. Ask for more than 0.")
mistake("field", lambda layer, x: -receptive_field(layer, x),
        "Subtracted the other way round: from the end, `len(x)`, take the earliest position.")
mistake("field", counted,
        "The positions that are heard are counted. In a dilated layer there are holes between them: measure from the "
        "earliest one to the end.")
mistake("field", without_the_last, "One too few: the last position also counts.")
mistake("field", earliest_place, "This is the number of the earliest position, from the front. Count from there to the end.")


def by_trying(layer, x):
    last = layer(x)[-1]
    for place in range(len(x)):
        for number in range(x.shape[1]):
            other = x.clone()
            other[place, number] += 1.5
            if not torch.equal(layer(other)[-1], last):
                return len(x) - place
    return 0


def one_number_at_a_time(layer, x):
    x = x.detach().clone().requires_grad_()
    out = layer(x)
    if not out.requires_grad:
        return 0
    found = [torch.autograd.grad(each, x, retain_graph=True)[0].abs().amax(-1) for each in out[-1]]
    places = torch.stack(found).amax(0).nonzero()
    return len(x) - int(places.min()) if len(places) else 0


def with_random_weights(layer, x):
    def asked(out):
        return out[-1] @ torch.linspace(1.1, 2.3, out.shape[1])
    return from_gradient(asked)(layer, x)


alternative("field", by_trying)
alternative("field", one_number_at_a_time)
alternative("field", with_random_weights)

# %% [markdown]
# ### Task 7 · Investigate: where is your wall?   ●●●●● · 20 minutes · 3 points
#
#
# By the count, scores and mixing overtake everything else in a block at $n = 6d$. And on your machine, in seconds?
#
# Measure it for $d$ = 64, 128 and 256, four heads, $d_\text{ff} = 4d$: from which length on do scores and mixing take
# longer than the projections and the feed-forward network together? Once with the scores written out, as in the lesson,
# once with `F.scaled_dot_product_attention`. Write down first what you expect of each. Say how you timed: on how many
# threads, how often, and which of the times you kept.
#
# Then explain in a few sentences: is the crossing proportional to $d$? On which side of $6d$ is it, for which of
# the two, and why? What would you expect of a causal mask, and of a GPU?
#
# Measure in new cells below this one; here you may use all of `txlib`. Hand in what you found as text, with a table
# of your numbers. A person reads it.

# %% [markdown] nbgrader={"grade_id": "own-wall", "solution": true, "grade": true, "points": 3, "locked": false, "schema_version": 3}
# <!-- BEGIN SOLUTION -->
# One thread, processor time, best of five, no mask; the length at which scores and mixing take as long as the rest
# (interpolated between measured lengths 64, 96, 128, 192, …):
#
# | d | counted, 6d | written out | fused |
# | --- | --- | --- | --- |
# | 64 | 384 | 250 | 275 |
# | 128 | 768 | 560 | 630 |
# | 256 | 1,536 | 1,060 | 1,480 |
#
# Both are nearly proportional to d: about 4d written out, and 4d to 6d fused. Both are below 6d, since the counter does
# not see the softmax, n² exponentials per head, and since products with narrow heads (d / 4) use the processor less well
# than the wide projections. Written out, each score also travels to memory and back several times, and beyond the crossing
# it gets worse still: at 3,072 tokens and d = 64 scores take 38 times as long as the rest, fused 10 times, by the count 8
# times. The wider the head, the less the softmax weighs compared with the products, so the fused crossing approaches 6d. A
# causal mask halves the work of a kernel that skips masked tiles, and moves its crossing towards 12d; written out it
# saves nothing. On a GPU the products are faster still, compared with memory, so that written out the crossing should
# come earlier, and fused stay near the count.
# <!-- END SOLUTION -->

# %% [markdown] tags=["rubric"]
# 1 point: a table over three widths, both ways, with a stated way of timing (repeats, threads). 1 point: that the crossing
# is about proportional to d, and on which side of 6d it is, from the numbers. 1 point: reasons (the softmax is not
# counted, memory traffic, narrow products), and a sensible expectation for a causal mask or a GPU.

# %%
check.summary()
