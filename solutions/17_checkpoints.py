# %% [markdown]
# # Exercise 17 · Real checkpoints
#
# Four tasks, 12 points, about 70 minutes. They belong to lesson
# [17 Real checkpoints](../notebooks/17_checkpoints.ipynb). Tasks 1 and 2 are the core and take about 35 minutes; tasks 3
# and 4 are for those who want more. Run the cells from the top; fill in where it says *your turn*, then run the check
# below it. You may check as often as you like.
#
# The answers of tasks 1 to 3 are yours to write: one that calls txlib, or what a task rules out, is flagged for your
# teacher.

# %% tags=["parameters"]
seed = 0

# %%
import math

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from txgrade import check

# %% [markdown]
# ### Task 1 · The first that differs   ●●○○○ · 10 minutes · 2 points
#
# Two models have read the same text. `mine` and `theirs` hold each module's output, by name; `theirs` in the order in
# which the modules finish. Return the first name of `theirs` whose tensors differ by more than `tolerance` in any entry,
# and the largest difference (a float), as a tuple. If none differs, return `None`.
#
# Three things go wrong in every port, so be ready for them. A name that `mine` lacks differs by `math.inf`, and so does a
# tensor of another shape. And if `mine` has a NaN in a tensor, it differs whatever the tolerance: by NaN. (`theirs` has
# no NaN. Names that only `mine` has do not matter.)
#
# <details><summary>Hint 1: the plain case</summary>
#
# `(mine[name] - theirs[name]).abs().max().item()` is the largest difference of two tensors of the same shape.
# </details>
# <details><summary>Hint 2: another shape</summary>
#
# Compare `.shape` before you subtract: (2, 3) minus (1, 3) is no error in torch. It broadcasts.
# </details>
# <details><summary>Hint 3: NaN</summary>
#
# `nan > tolerance` is False, and so is `nan <= tolerance`. Ask the question whose answer you need to be True.
# </details>

# %% nbgrader={"grade_id": "first-difference", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def first_difference(
    mine: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float
) -> tuple[str, float] | None:
    """The first of their tensors from which mine differs, and by how much at most."""
    ### BEGIN SOLUTION
    for name, right in theirs.items():
        if name not in mine or mine[name].shape != right.shape:
            return name, math.inf
        gap = (mine[name] - right).abs().max().item()
        if not gap <= tolerance:
            return name, gap
    return None
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-first-difference", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("first-difference") as show:
    names = [f"layers.{layer}.{part}" for layer in range(2) for part in ("attention", "feed_forward")]
    theirs = {name: show.randn(2, 3) for name in names}
    near = {name: value + 1e-6 for name, value in theirs.items()}
    chosen = show.choice(names[:-1])
    by = 0.5 + show.rand(1).item()
    wrong = near | {chosen: theirs[chosen] + torch.tensor([[0.0, by / 2, -by], [0.0, 0.0, 0.0]])}
    show(first_difference(wrong, theirs, 1e-4), "two entries of one tensor differ")
    larger, smaller = (wrong | {names[-1]: theirs[names[-1]] + factor * by} for factor in (2, 0.5))
    show(first_difference(larger, theirs, 1e-4), "a larger difference follows")
    show([first_difference(smaller, theirs, 1e-4), first_difference(near, theirs, 1e-4)], "a smaller one follows; and none")
    half, zero = {"head": torch.full((2,), 0.5)}, {"head": torch.zeros(2)}
    show([first_difference(half, zero, 0.5), first_difference(half, zero, 0.49)], "exactly the tolerance; and more")
    show([first_difference(dict(reversed(larger.items())), theirs, 1e-4), first_difference(wrong, theirs, 9.0)],
         "mine in another order; and a large tolerance")
    lacking = {name: value for name, value in near.items() if name != chosen}
    show([first_difference(lacking, theirs, 1e-4), by], "a name is missing")
    show([first_difference(near | {chosen: theirs[chosen][:1]}, theirs, 9.0), by], "another shape")
    broken = near | {chosen: theirs[chosen] * math.nan}
    show([first_difference(broken, theirs, 1e-4), by], "not a number")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")


def differing(gap=lambda a, b: (a - b).abs().max().item(), more=lambda gap, tolerance: not gap <= tolerance,
              shapes=True, lacking=True, pick=lambda found: found[0], order=lambda mine, theirs: theirs):
    """The function with one part exchanged."""
    def first(mine, theirs, tolerance):
        found = []
        for name in order(mine, theirs):
            if name not in mine:
                if lacking:
                    found.append((name, math.inf))
                continue
            if shapes and mine[name].shape != theirs[name].shape:
                found.append((name, math.inf))
                continue
            size = gap(mine[name], theirs[name])
            if more(size, tolerance):
                found.append((name, size))
        return pick(found) if found else None
    return first


mistake("first-difference", differing(more=lambda gap, tolerance: gap > tolerance),
        "A tensor of NaN passes: `nan > tolerance` is False. Ask `not gap <= tolerance` instead.")
mistake("first-difference", differing(more=lambda gap, tolerance: not gap < tolerance),
        "A difference of exactly the tolerance is allowed: only *more* counts.")
mistake("first-difference", differing(more=lambda gap, tolerance: not gap >= tolerance),
        "You report a tensor that agrees. One differs where the gap is *more* than the tolerance.")
mistake("first-difference", differing(gap=lambda a, b: a.abs().max().item()),
        "You measure `mine` alone. Subtract the tensor of `theirs` first.")
mistake("first-difference", differing(gap=lambda a, b: (a - b).max().item()),
        "A difference may be negative. Take its size, `.abs()`, before the maximum.")
mistake("first-difference", differing(gap=lambda a, b: (a - b).abs().mean().item()),
        "You take the mean of the differences. One wrong entry among many then hides: take the largest.")
mistake("first-difference", differing(gap=lambda a, b: (a - b).abs().sum().item()),
        "You add the differences up. Take the largest of them.")
mistake("first-difference", differing(shapes=False),
        "Tensors of different shapes were subtracted: torch broadcasts (1, 3) to (2, 3). Compare the shapes first.")
mistake("first-difference", differing(lacking=False),
        "A name that `mine` lacks is passed over. It differs, by `math.inf`.")
mistake("first-difference", differing(pick=lambda found: found[-1]),
        "That is the *last* one that differs. What comes after a fault is wrong because of it: return the first.")
mistake("first-difference", differing(pick=lambda found: max(found, key=lambda each: each[1])),
        "That is the one that differs *most*. Differences grow on their way through the model: return the first.")
mistake("first-difference", differing(order=lambda mine, theirs: [name for name in mine if name in theirs] +
                                      [name for name in theirs if name not in mine]),
        "You go through the names of `mine`. Only the order of `theirs` is sure to be that of the modules.")
mistake("first-difference", differing(pick=lambda found: found[0][0]),
        "Return the name *and* the difference, as a tuple.")
equivalent("first-difference", "mine[name] - right → right - mine[name]", "The absolute value is the same.")
alternative("first-difference", differing())

# %% tags=["variant"]
from txgrade import variant

CAP = variant(3, 4, 5)  # of task 2: where the logits of Wren are capped

# %% [markdown]
# ### Task 2 · Port a family   ●●●●○ · 25 minutes · 4 points
#
# Below is a Llama in bare torch; it reads its weights from a dictionary. Your colleagues have published **Wren**, made of
# parts that you have met in lesson 16. (Wren is our invention; its parts are those of Gemma 2, OLMo 2 and Qwen 3.) Its
# `config` has the same entries, its weights have the same names, with two more in each layer (`q_norm` and `k_norm`), and
# its modeling file differs from Llama's in four places:
#
# 1. The token vectors are multiplied by $\sqrt{d_\text{model}}$ where they enter the stream. The output matrix is the
#    embedding as it is.
# 2. Queries and keys are normed, each head by itself, *before* they are rotated. The gains, of $d_k$ entries, are
#    `q_norm` and `k_norm`, the same for all heads, and ϵ is `config["eps"]` as in every norm.
# 3. There is no norm in front of attention or feed-forward network. Instead, the output of each is normed before it is
#    added to the stream: by `attention_norm` and `feed_forward_norm`. The last norm, in front of the output, stays.
# 4. The logits are capped at {{CAP}}: $c \tanh(\text{logits} / c)$ with $c = {{CAP}}$.
#
# Return its logits. Run the cell with Llama first, and use any of its functions.
#
# <details><summary>Hint 1: where to begin</summary>
#
# Copy `llama`. With `config["layers"]` = 0, only places 1 and 4 (and the last norm) are left: make that case right
# first.
# </details>
# <details><summary>Hint 2: QK-norm</summary>
#
# `heads_of` returns (batch, heads, n, d_k), so `rms(q, w["q_norm"], eps)` norms each head by itself. Then rotate.
# </details>
# <details><summary>Hint 3: the norms</summary>
#
# `x + rms(attention(x, …), gain, eps)`. The stream `x` itself is never normed inside a block.
# </details>

# %%
def rms(x: Float[Tensor, "*batch d"], gain: Float[Tensor, "d"], eps: float) -> Float[Tensor, "*batch d"]:
    """RMS norm over the last axis."""
    return gain * x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt()


def rotate(x: Float[Tensor, "batch heads n d_k"]) -> Float[Tensor, "batch heads n d_k"]:
    """Rotary positions, halves, base 10,000."""
    n, d_k = x.shape[-2:]
    angle = torch.arange(n)[:, None] * 10_000.0 ** (-torch.arange(0, d_k, 2) / d_k)  # (n, d_k / 2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], dim=-1)


def heads_of(x: Float[Tensor, "batch n width"], count: int) -> Float[Tensor, "batch heads n d_k"]:
    """The heads of queries, keys or values."""
    return rearrange(x, "b n (h d) -> b h n d", h=count)


def mix(q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch n width"]:
    """Causal attention; groups of query heads share a KV head."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    return rearrange(F.scaled_dot_product_attention(q, k, v, is_causal=True), "b h n d -> b n (h d)")


def feed_forward(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    """SwiGLU."""
    return (F.silu(x @ w["gate_proj"].T) * (x @ w["up_proj"].T)) @ w["down_proj"].T


def layer_of(weights: dict[str, Tensor], layer: int) -> dict[str, Tensor]:
    """The weights of one layer, without the prefix: "q_proj", "attention_norm", …"""
    start = f"layers.{layer}."
    return {name.removeprefix(start): weight for name, weight in weights.items() if name.startswith(start)}


def llama(weights: dict[str, Tensor], config: dict, ids: Int[Tensor, "batch n"]) -> Float[Tensor, "batch n vocab"]:
    """The logits of a small Llama."""
    x, eps = weights["embedding"][ids], config["eps"]              # (batch, n, d_model)
    for layer in range(config["layers"]):
        w = layer_of(weights, layer)
        y = rms(x, w["attention_norm"], eps)                       # (batch, n, d_model)
        q = heads_of(y @ w["q_proj"].T, config["heads"])           # (batch, heads, n, d_k)
        k, v = (heads_of(y @ w[name].T, config["kv_heads"]) for name in ("k_proj", "v_proj"))
        x = x + mix(rotate(q), rotate(k), v) @ w["o_proj"].T
        x = x + feed_forward(rms(x, w["feed_forward_norm"], eps), w)
    return rms(x, weights["norm"], eps) @ weights["embedding"].T

# %% [markdown]
# And now Wren:

# %% nbgrader={"grade_id": "port", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def wren(weights: dict[str, Tensor], config: dict, ids: Int[Tensor, "batch n"]) -> Float[Tensor, "batch n vocab"]:
    """The logits of a Wren."""
    ### BEGIN SOLUTION
    eps, embedding = config["eps"], weights["embedding"]           # (vocab, d_model)
    x = embedding[ids] * embedding.shape[1] ** 0.5                 # (batch, n, d_model)
    for layer in range(config["layers"]):
        w = layer_of(weights, layer)
        q = rms(heads_of(x @ w["q_proj"].T, config["heads"]), w["q_norm"], eps)
        k = rms(heads_of(x @ w["k_proj"].T, config["kv_heads"]), w["k_norm"], eps)
        v = heads_of(x @ w["v_proj"].T, config["kv_heads"])        # (batch, kv_heads, n, d_k)
        x = x + rms(mix(rotate(q), rotate(k), v) @ w["o_proj"].T, w["attention_norm"], eps)
        x = x + rms(feed_forward(x, w), w["feed_forward_norm"], eps)
    logits = rms(x, weights["norm"], eps) @ embedding.T            # (batch, n, vocab)
    return CAP * torch.tanh(logits / CAP)                          # capped at {{CAP}}
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-port", "grade": true, "points": 4, "solution": false, "locked": true, "schema_version": 3}
with check("port") as show:
    kv_heads, group, d_k = show.random_size(1, 2), show.random_size(2, 3), 4
    d, kv, d_ff, vocab = kv_heads * group * d_k, kv_heads * d_k, show.random_size(9, 14), show.random_size(10, 15)
    config = {"layers": 2, "heads": kv_heads * group, "kv_heads": kv_heads, "eps": 1e-6}
    weights = {"embedding": show.randn(vocab, d), "norm": 1 + 0.3 * show.randn(d)}
    for layer in range(2):
        shapes = {"q_proj": (d, d), "k_proj": (kv, d), "v_proj": (kv, d), "o_proj": (d, d), "gate_proj": (d_ff, d),
                  "up_proj": (d_ff, d), "down_proj": (d, d_ff), "attention_norm": (d,), "feed_forward_norm": (d,),
                  "q_norm": (d_k,), "k_norm": (d_k,)}
        for name, shape in shapes.items():
            drawn = show.randn(*shape)
            weights[f"layers.{layer}.{name}"] = 1 + 0.5 * drawn if name.endswith("norm") else drawn / d**0.5
    ids = show.randint(0, vocab, 2, 5)
    show(wren(weights, config | {"layers": 0}, ids), "no layer: embedding, last norm, output")
    silent = weights | {f"layers.0.{name}": torch.zeros_like(weights[f"layers.0.{name}"]) for name in ("o_proj", "down_proj")}
    show(wren(silent, config | {"layers": 1}, ids), "a layer that adds nothing")
    only = weights | {"layers.0.down_proj": torch.zeros_like(weights["layers.0.down_proj"])}
    show(wren(only, config | {"layers": 1}, ids), "one layer, attention alone")
    show(wren(weights, config, ids), "two layers")

# %% tags=["mistakes"]
forbid("port", ("transformers",))


def nothing(x, *_):
    return x


def normed(x, gain, eps):
    return rms(x, gain, eps)


def ported(scale=lambda embedding: embedding.shape[1] ** 0.5, before=nothing, after=normed, stream=nothing,
           qk=lambda q, gain, eps: rotate(rms(q, gain, eps)), values=nothing, out=lambda embedding: embedding,
           cap=lambda logits: CAP * torch.tanh(logits / CAP), last=normed):
    """Wren with one part exchanged."""
    def logits_of(weights, config, ids):
        eps, embedding = config["eps"], weights["embedding"]
        x = embedding[ids] * scale(embedding)
        for layer in range(config["layers"]):
            w = layer_of(weights, layer)
            y = before(x, w["attention_norm"], eps)
            q = qk(heads_of(y @ w["q_proj"].T, config["heads"]), w["q_norm"], eps)
            k = qk(heads_of(y @ w["k_proj"].T, config["kv_heads"]), w["k_norm"], eps)
            v = values(heads_of(y @ w["v_proj"].T, config["kv_heads"]), w["k_norm"], eps)
            x = stream(x + after(mix(q, k, v) @ w["o_proj"].T, w["attention_norm"], eps), w["attention_norm"], eps)
            y = before(x, w["feed_forward_norm"], eps)
            x = stream(x + after(feed_forward(y, w), w["feed_forward_norm"], eps), w["feed_forward_norm"], eps)
        return cap(last(x, weights["norm"], eps) @ out(embedding).T)
    return logits_of


mistake("port", llama, "This is Llama, without any change. Go through the four places one by one.")
mistake("port", ported(scale=lambda embedding: 1.0),
        "The token vectors are not multiplied by √d_model. With no layer at all the last norm hides it; with one it shows.")
mistake("port", ported(scale=lambda embedding: embedding.shape[1]),
        "The token vectors are multiplied by d_model. Take its root.")
mistake("port", ported(out=lambda embedding: embedding * embedding.shape[1] ** 0.5),
        "The output matrix is scaled as well. Only the vectors that enter the stream are.")
mistake("port", ported(qk=lambda q, gain, eps: rotate(q)),
        "Queries and keys are not normed. `q_norm` and `k_norm` are their gains.")
mistake("port", ported(qk=lambda q, gain, eps: rms(rotate(q), gain, eps)),
        "You rotate first and norm afterward. The gain then meets dimensions that have been mixed: norm, then rotate.")
mistake("port", ported(qk=lambda q, gain, eps: rms(q, gain, eps)),
        "Queries and keys are normed, but no longer rotated.")
mistake("port", ported(values=normed), "The values are normed as well. QK-norm is for queries and keys.")
mistake("port", ported(before=normed, after=nothing),
        "The norms are still in front of the sub-layers, as in Llama. In Wren they norm what a sub-layer puts out.")
mistake("port", ported(before=normed),
        "There are norms before *and* after the sub-layers (that is Gemma 2). In Wren there are none before.")
mistake("port", ported(after=nothing), "The sub-layers' outputs are added as they are. Norm them first.")
mistake("port", ported(after=nothing, stream=normed),
        "You norm the stream after the addition: post-norm. Norm what is added, and leave the stream bare.")
mistake("port", ported(cap=nothing), "The logits are not capped.")
mistake("port", ported(cap=lambda logits: torch.tanh(logits / CAP)),
        "The logits lie between −1 and 1. Multiply by the cap after the tanh.")
mistake("port", ported(cap=lambda logits: CAP * torch.tanh(logits)),
        "Divide the logits by the cap before the tanh: small ones should stay nearly as they are.")
mistake("port", ported(cap=lambda logits: logits.clamp(-CAP, CAP)),
        "You cut the logits off. The cap is soft: c · tanh(logits / c).")
mistake("port", ported(last=nothing), "The last norm is missing. It is Llama's.")
alternative("port", ported())

# %% [markdown]
# ### Task 3 · Convert a checkpoint back   ●●●●○ · 15 minutes · 3 points
#
# A file was written for rotary *halves*: in each head, dimension $c$ turns together with dimension $c + d_k/2$. Your
# code turns *neighbors*: $2c$ with $2c + 1$. Return the weights of one block, converted, so that your code gives the
# same scores. The dictionary has the keys `"q_proj"`, `"k_proj"`, `"v_proj"` and `"o_proj"`; queries have `heads`
# heads, keys and values `kv_heads`. The result has all four keys, also those of matrices that need no change. Leave the
# dictionary that you were given as it is.
#
# <details><summary>Hint 1: what has to move?</summary>
#
# Rows of `q_proj` and `k_proj`, within each head. Only what is turned: values are not.
# </details>
# <details><summary>Hint 2: the order</summary>
#
# For $d_k = 6$, rows 0 1 2 | 3 4 5 of a head have to come out as 0 3 1 4 2 5.
# </details>
# <details><summary>Hint 3: as one line</summary>
#
# `rearrange(weight, "(h two c) d -> (h c two) d", h=…, two=2)`. How many heads has `k_proj`?
# </details>

# %% nbgrader={"grade_id": "convert", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def to_neighbors(weights: dict[str, Tensor], heads: int, kv_heads: int) -> dict[str, Tensor]:
    """A block's attention weights for rotary halves, made into those for rotary neighbors."""
    ### BEGIN SOLUTION
    def moved(weight: Tensor, count: int) -> Tensor:
        return rearrange(weight, "(h two c) d -> (h c two) d", h=count, two=2)

    return weights | {"q_proj": moved(weights["q_proj"], heads), "k_proj": moved(weights["k_proj"], kv_heads)}
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-convert", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("convert") as show:
    rows = torch.arange(12.0)[:, None]
    given = {"q_proj": rows, "k_proj": rows[:6], "v_proj": rows[:6], "o_proj": rows.T}
    show(to_neighbors(given, 2, 1), "2 heads of 6, 1 KV head; each row holds its number")
    show(given, "what was given, afterwards")
    pairs, group, d_k = show.random_size(2, 3), show.random_size(2, 3), 2 * show.random_size(2, 4)
    for heads in (group * pairs, pairs):
        sizes = {"q_proj": (heads * d_k, 5), "k_proj": (pairs * d_k, 5), "v_proj": (pairs * d_k, 5), "o_proj": (5, heads * d_k)}
        given = {name: show.randn(*size) for name, size in sizes.items()}
        show(to_neighbors(given, heads, pairs), f"{heads} heads of {d_k}, {pairs} KV heads")

# %% tags=["mistakes"]
forbid("convert", ("transformers",))


def right_count(name, heads, kv_heads):
    return heads if name == "q_proj" else kv_heads


def moving(pattern, names=("q_proj", "k_proj"), count=right_count):
    """The conversion with another pattern, or of other matrices."""
    return lambda weights, heads, kv_heads: weights | {
        name: rearrange(weights[name], pattern, h=count(name, heads, kv_heads), two=2) for name in names}


BACK = "(h two c) d -> (h c two) d"


def in_place(weights, heads, kv_heads):
    for name, count in (("q_proj", heads), ("k_proj", kv_heads)):
        weights[name] = rearrange(weights[name], BACK, h=count, two=2)
    return weights


def overwritten(weights, heads, kv_heads):
    converted = to_neighbors(weights, heads, kv_heads)
    for name in ("q_proj", "k_proj"):
        weights[name].copy_(converted[name])
    return weights


mistake("convert", moving("(h c two) d -> (h two c) d"),
        "This is the other direction, from neighbors to halves, as in lesson 16. Doing it twice does not undo it.")
mistake("convert", moving(BACK, count=lambda name, heads, kv_heads: 1),
        "The rows are mixed across heads. Each head has its own halves: order the rows within each head.")
mistake("convert", moving(BACK, names=("q_proj",)),
        "Only the queries were converted. Keys are turned as well, and a query's dimensions must meet the same ones.")
mistake("convert", moving(BACK, names=("q_proj", "k_proj", "v_proj")),
        "The values' rows moved as well. Values are not turned, and `o_proj` expects them in their old order.")
mistake("convert", moving(BACK, count=lambda name, heads, kv_heads: kv_heads),
        "The queries were cut into `kv_heads` heads. `q_proj` has `heads` of them.")
mistake("convert", lambda weights, heads, kv_heads: {
            name: to_neighbors(weights, heads, kv_heads)[name] for name in ("q_proj", "k_proj")},
        "`v_proj` and `o_proj` are missing. Return all four matrices: these two as they were.")
mistake("convert", lambda weights, heads, kv_heads: dict(weights),
        "Nothing has moved. Shapes fit either way; that is why this mistake is so common.")
mistake("convert", in_place,
        "The dictionary that you were given has changed. Make a new one, `dict(weights)`, and put the new matrices there.")
mistake("convert", overwritten,
        "The weights that you were given have changed: you wrote into their memory. Make new tensors.")
alternative("convert", lambda weights, heads, kv_heads: {
    name: rearrange(weight, BACK, h={"q_proj": heads, "k_proj": kv_heads}[name], two=2) if name in ("q_proj", "k_proj")
    else weight.clone() for name, weight in weights.items()})


def by_index(weights, heads, kv_heads):
    out = dict(weights)
    for name, count in (("q_proj", heads), ("k_proj", kv_heads)):
        half = len(weights[name]) // count // 2
        within = torch.stack([torch.arange(half), torch.arange(half) + half], dim=1).flatten()
        out[name] = weights[name][torch.cat([within + 2 * half * head for head in range(count)])]
    return out


alternative("convert", by_index)

# %% [markdown]
# ### Task 4 · Investigate: which block is missed least?   ●●●●● · 20 minutes · 3 points
#
# The residual stream runs past every block. So a block can be taken out, and the model still writes *something*. Take
# the shipped checkpoint, leave out one block at a time, and measure the loss on Shakespeare with `loss_without`. Which
# block is missed most, which least? Before you run it, write down what you expect.
#
# Then ask one more question of your own, and answer it with numbers. Some that have surprised people: is it the attention or the
# feed-forward network of that block that is missed? What if two blocks change places? What if the least needed one runs
# twice? Does the answer depend on the text?
#
# Measure in cells of your own below this one; here you may use all of `txlib`. Hand in what you found as text, with a table
# of your numbers. A person reads it.

# %%
from txlib import load_pretrained
from txlib.data import shakespeare, shipped
from txlib.text import load_tokenizer


def loss_without(block: int | None, characters: int = 40_000) -> float:
    """Nats per token on Shakespeare, of the shipped Llama without one of its four blocks (None: with all)."""
    folder = shipped("glassllm-en")
    model = load_pretrained(folder, dtype=torch.float32).eval()
    if block is not None:
        del model.decoder.layers[block]
    ids = torch.tensor(load_tokenizer(folder).encode(shakespeare().validation[:characters]))
    windows = ids[: len(ids) // 128 * 128].view(-1, 128)            # (window, n)
    with torch.no_grad():
        return model(windows, labels=windows).loss.item()

# %% [markdown] nbgrader={"grade_id": "least-missed", "solution": true, "grade": true, "points": 3, "locked": false, "schema_version": 3}
# <!-- BEGIN SOLUTION -->
# I expected the last block to be missed most, as it is next to the output. Measured, nats per token:
#
# | all four | without block 0 | 1 | 2 | 3 |
# | --- | --- | --- | --- | --- |
# | 4.75 | 8.12 | 4.93 | 5.07 | 4.90 |
#
# Block 0 is missed by far the most: without it the model is worse than one that knows nothing (6.93). All later blocks
# have only ever seen what block 0 makes of the embeddings. The last is missed least.
#
# My question: do the blocks need their order? Exchanging 0 and 1 gives 8.10, as bad as losing block 0. Exchanging 1 and 2
# gives 4.84, 2 and 3 gives 4.92, 1 and 3 gives 5.12. So neighbors among the later ones can nearly replace each other:
# each adds its correction to the stream, and it matters little which comes first. But 1 and 2 are needed: leaving either
# out costs more than exchanging them.
# <!-- END SOLUTION -->

# %% [markdown] tags=["rubric"]
# 1 point: the five losses, and an expectation stated before. 1 point: an explanation that fits the numbers (block 0
# prepares the input of all others; the stream passes the later ones by). 1 point: a question of one's own, answered by a
# measurement that could have come out otherwise.

# %%
check.summary()
