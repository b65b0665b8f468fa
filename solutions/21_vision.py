# %% [markdown]
# # Exercise 21 · The Vision Transformer
#
# Four tasks, 10 points, about 45 minutes. They belong to lesson
# [21 The Vision Transformer](../notebooks/21_vision.ipynb). Tasks 1 to 3 are the *core*, about 30 minutes; task 4 is
# *more*. Run the cells from the top; fill in where it says *your turn*, then run the check below it. You may check as
# often as you like.
#
# The answers are yours to write: one that calls txlib, or what a task rules out, is flagged for your teacher. No check
# looks at a clock. They count operations, and how large the largest tensor gets.

# %% tags=["parameters"]
seed = 0

# %%
import math

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from txgrade import check, cost

# %% [markdown]
# ### How costs are counted here
#
# `cost(answer, *inputs)` runs an answer once, and gives its `value`; its `operations`, which are those of all matrix
# products, plus one for every number that a step produces (a view produces none); and `largest`, how many numbers its
# largest tensor holds. What NumPy or Python compute can't be counted: stay in torch. `exponent(small, large, times)` says
# how something grew: 1 is linear, 2 is quadratic. You may use both yourself.


# %%
def exponent(small: int, large: int, times: float) -> int:
    """n to which power? From what n and `times` · n cost."""
    return round(math.log(max(large, 1) / max(small, 1), times))

# %% [markdown]
# ### Task 1 · Put a picture together again   ●●○○○ · 8 minutes · 2 points
#
# A masked autoencoder (He et al. 2022) *draws*: it has a token for each patch at the end, and makes pixels of it. You get
# these `tokens`, $(N, K, p \cdot p \cdot C)$. The patches come row by row from the upper left corner; within a token stand
# the rows of its patch, in each row its pixels, and for each pixel its $C$ channels. (So channels come *last* in a token. The
# lesson had them first. Authors differ, and weights of one order are noise in the other.) Return pictures, NCHW. They need
# not be square.
#
# <details><summary>Hint 1: name the axes</summary>
#
# $K$ is made of rows and columns of patches; a token of rows, columns and channels of a patch. That makes six axes with $N$.
# </details>
# <details><summary>Hint 2: which belong together?</summary>
#
# A row of the picture is a row of patches *and* a row within a patch, in this order.
# </details>
# <details><summary>Hint 3: how many columns?</summary>
#
# `width // p`, and rows accordingly. `rearrange` wants one of them said.
# </details>

# %% nbgrader={"grade_id": "together", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def together(tokens: Float[Tensor, "n patches size"], p: int, width: int) -> Float[Tensor, "n channels height width"]:
    """Pictures of this width, from their patches of p × p pixels."""
    ### BEGIN SOLUTION
    return rearrange(tokens, "n (h w) (a b c) -> n c (h a) (w b)", w=width // p, a=p, b=p)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-together", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("together") as show:
    rows, columns = show.random_size(2, 3), show.random_size(4, 5)
    show(together(show.randn(2, rows * columns, 12), 2, columns * 2), f"{rows} × {columns} patches of 2 × 2, in color")
    show(together(show.randn(1, columns * rows, 9), 3, rows * 3), f"{columns} × {rows} patches of 3 × 3, gray")
    show(together(show.randn(2, 6, 5), 1, 2), "3 × 2 patches of a single pixel, 5 channels")
    show(together(show.randn(1, 4, 16), 2, 4), "2 × 2 patches of 2 × 2, 4 channels")

# %% tags=["mistakes"]
from txgrade import alternative, equivalent, forbid, mistake

forbid("*", "txlib")
equivalent("together", "width // p → width / p", "A width is a multiple of p, and einops takes 4.0 for 4.")


def other_order(pattern, columns=lambda width, p: width // p):
    return lambda tokens, p, width: rearrange(tokens, pattern, w=columns(width, p), a=p, b=p)


mistake("together", other_order("n (h w) (a b c) -> n c (h a) (w b)", lambda width, p: width),
        "`width` counts pixels. There are `width // p` patches in a row.")


mistake("together", lambda tokens, p, width: tokens.reshape(len(tokens), tokens.shape[-1] // p**2, -1, width),
        "`reshape` moves nothing: it gives the shape, and leaves the numbers where they were. Name the axes, and bring them in order.")
mistake("together", other_order("n (h w) (c a b) -> n c (h a) (w b)"),
        "You read channels first within a token. Here they stand last: row, column, channel.")
mistake("together", other_order("n (h w) (b a c) -> n c (h a) (w b)"),
        "Each patch is turned over: within a token, rows come before columns.")
mistake("together", other_order("n (w h) (a b c) -> n c (h a) (w b)"),
        "You take the patches column by column. They come row by row: $K$ is (rows, columns).")
mistake("together", other_order("n (h w) (a b c) -> n c (a h) (b w)"),
        "A row of the picture counts patches first, then rows within the patch: `(h a)`, not `(a h)`.")
mistake("together", lambda tokens, p, width: rearrange(tokens, "n (h w) (a b c) -> n (h a) (w b) c", w=width // p, a=p, b=p),
        "These are pictures with channels last. torch wants them as axis 1: NCHW.")


def by_loop(tokens, p, width):
    n, many, size = tokens.shape
    columns = width // p
    out = tokens.new_zeros(n, size // p**2, many // columns * p, width)
    for each in range(many):
        row, column = divmod(each, columns)
        patch = tokens[:, each].view(n, p, p, -1).permute(0, 3, 1, 2)
        out[:, :, row * p : row * p + p, column * p : column * p + p] = patch
    return out


def by_folding(tokens, p, width):
    n, many, size = tokens.shape
    columns = tokens.view(n, many, p * p, -1).transpose(2, 3).flatten(2).mT
    return F.fold(columns, (many // (width // p) * p, width), p, stride=p)


alternative("together", by_loop)
alternative("together", by_folding)

# %% tags=["variant"]
from txgrade import variant

# Of task 2: how pictures are resized.
MODE, ALIGNED = variant(("bilinear", False), ("bicubic", False), ("bilinear", True), ("bicubic", True))

# %% [markdown]
# ### Task 2 · A larger picture   ●●○○○ · 8 minutes · 2 points
#
# A trained ViT is to read pictures of another size. Its `table` of positions has one row for the class token, and after it
# one for each patch of a grid of `old` = (rows, columns), row by row. Return a table for a grid `new`. The patches' vectors are
# resized as the colors of a picture would be: `F.interpolate` with `mode="{{MODE}}", align_corners={{ALIGNED}}`. The class token
# stands nowhere: its vector stays as it is.
#
# <details><summary>Hint 1: what does interpolate want?</summary>
#
# A picture, $(N, C, H, W)$. Which axis of the table are the channels?
# </details>
# <details><summary>Hint 2: on the way there</summary>
#
# Without the class token: (patches, d) → (1, d, rows, columns). `reshape` alone won't do.
# </details>
# <details><summary>Hint 3: and back</summary>
#
# (1, d, rows, columns) → (patches, d), then `torch.cat` with the first row.
# </details>

# %% nbgrader={"grade_id": "resized", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def resized(table: Float[Tensor, "one_more d"], old: tuple[int, int], new: tuple[int, int]) -> Float[Tensor, "another d"]:
    """Positions for another grid."""
    ### BEGIN SOLUTION
    picture = rearrange(table[1:], "(h w) d -> 1 d h w", h=old[0])
    picture = F.interpolate(picture, size=new, mode=MODE, align_corners=ALIGNED)
    return torch.cat([table[:1], rearrange(picture, "1 d h w -> (h w) d")])
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-resized", "grade": true, "points": 2, "solution": false, "locked": true, "schema_version": 3}
with check("resized") as show:
    h, w, d = show.random_size(2, 4), show.random_size(5, 6), show.random_size(3, 6)
    table = show.randn(1 + h * w, d)
    show(resized(table, (h, w), (h, w)), f"{h} × {w}, the same grid")
    show(resized(table, (h, w), (2 * h, 2 * w)), f"from {h} × {w} to {2 * h} × {2 * w}")
    show(resized(table, (h, w), (w, h + 1)), f"from {h} × {w} to {w} × {h + 1}")
    show(resized(show.randn(1 + w, d), (1, w), (2, 3)), f"from 1 × {w} to 2 × 3")

# %% tags=["mistakes"]
def resizing(there="(h w) d -> 1 d h w", back="1 d h w -> (h w) d", **options):
    """Resized positions with something wrong."""
    chosen = {"mode": MODE, "align_corners": ALIGNED} | options

    def answer(table, old, new):
        picture = F.interpolate(rearrange(table[1:], there, h=old[0], w=old[1]), size=new, **chosen)
        return torch.cat([table[:1], rearrange(picture, back)])
    return answer


def along_the_row(table, old, new):
    rows = F.interpolate(table[1:].T[None], size=new[0] * new[1], mode="linear", align_corners=False)[0].T
    return torch.cat([table[:1], rows])


def by_reshape(table, old, new):
    picture = F.interpolate(table[1:].reshape(1, -1, *old), size=new, mode=MODE, align_corners=ALIGNED)
    return torch.cat([table[:1], picture.reshape(-1, table.shape[1])])


def class_last(table, old, new):
    out = resized(table, old, new)
    return torch.cat([out[1:], out[:1]])


if not ALIGNED:
    equivalent("resized", "F.interpolate(picture, size=new, mode=MODE, align_corners=ALIGNED) → F.interpolate(picture, size=new, mode=MODE)",
               "`align_corners=False` is what torch takes by default.")

mistake("resized", lambda table, old, new: table,
        "The table is still the old one: resize the picture of its vectors with `F.interpolate`.")
mistake("resized", lambda table, old, new: resized(table, old, new)[1:],
        "The class token's vector is missing. It belongs in front, unchanged.")
mistake("resized", class_last, "The class token's vector comes first, before those of the patches.")
mistake("resized", along_the_row,
        "You interpolate along one long row: the last patch of a row is taken for a neighbor of the next row's first. It is a grid.")
mistake("resized", resizing(there="(w h) d -> 1 d h w"),
        "You take the patches column by column. They stand row by row.")
mistake("resized", resizing(back="1 d h w -> (w h) d"),
        "The way back takes the columns first. The new table goes row by row as well.")
mistake("resized", by_reshape,
        "`reshape` alone leaves the numbers in their order: parts of vectors become pixels. Exchange the axes.")
mistake("resized", resizing(align_corners=not ALIGNED),
        "`align_corners` decides whether the corner patches stay where they were, and with them all others. Take `{{ALIGNED}}`.")
mistake("resized", resizing(mode="bicubic" if MODE == "bilinear" else "bilinear"),
        "You mix other neighbors than asked for: set `mode=\"{{MODE}}\"`.")
mistake("resized", resizing(mode="nearest", align_corners=None),
        "These are copies of the nearest vector. Take `mode=\"{{MODE}}\"`, which mixes neighbors.")


def by_einsum(table, old, new):
    def weights(size, known):
        place = ((torch.arange(size) + 0.5) * known / size - 0.5).clamp(0, known - 1)
        return (1 - (place[:, None] - torch.arange(known)).abs()).clamp(min=0)

    grid = table[1:].view(*old, -1)
    out = torch.einsum("ah,bw,hwd->abd", weights(new[0], old[0]), weights(new[1], old[1]), grid)
    return torch.cat([table[:1], out.flatten(0, 1)])


if (MODE, ALIGNED) == ("bilinear", False):
    alternative("resized", by_einsum)

# %% [markdown]
# ### Task 3 · Follow one token back   ●●●○○ · 12 minutes · 3 points
#
# Attention rollout, for one token. `weights` is a list, **the first layer first**, of $(h, n, n)$: each head's weights in each
# layer, whose rows sum to 1. Each layer counts as $\tilde A = \alpha I + (1 - \alpha) A$, with $A$ the mean of its heads and
# $\alpha$ the share of the residual. Return row `token` of the product: how much of each *input* is in this token's output.
#
# The lesson multiplied whole matrices, $L$ times $n^3$. You need one row. Let operations grow like $n^2$.
#
# <details><summary>Hint 1: the order of the product</summary>
#
# $R = \tilde A^{(L)} \cdots \tilde A^{(1)}$. Its row begins with a row of the *last* layer.
# </details>
# <details><summary>Hint 2: one row</summary>
#
# A row of a product is a row times a matrix. Start with the row of the identity: 1 at `token`, 0 elsewhere.
# </details>
# <details><summary>Hint 3: no identity matrix needed</summary>
#
# $r \tilde A = \alpha\, r + (1 - \alpha)\, r A$.
# </details>

# %% nbgrader={"grade_id": "back", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def follow_back(weights: list[Float[Tensor, "heads n n"]], token: int, residual: float) -> Float[Tensor, "n"]:
    """How much of each input is in the output of one token."""
    ### BEGIN SOLUTION
    row = F.one_hot(torch.tensor(token), weights[0].shape[-1]).float()  # (n,)
    for layer in reversed(weights):
        row = residual * row + (1 - residual) * (row @ layer.mean(dim=0))
    return row
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-back", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("back", atol=1e-6) as show:
    heads, n, layers = show.random_size(2, 4), show.random_size(6, 9), show.random_size(3, 5)
    weights = [(2 * show.randn(heads, n, n)).softmax(dim=-1) for _ in range(layers)]
    token, share = show.random_size(1, 4), show.random_size(2, 4) / 10
    show(follow_back(weights, token, 0.5), f"{layers} layers, {heads} heads, {n} tokens: token {token}, half and half")
    show(follow_back(weights, token + 1, share), f"token {token + 1}, the residual counts {share}")
    show(follow_back(weights[:1], 0, share), f"one layer, token 0, the residual counts {share}")
    show([follow_back(weights, n - 1, 0.0), follow_back(weights, n - 1, 1.0)], f"token {n - 1}, the last; the residual counts 0, and all")
    size = show.random_size(190, 250)
    short, long = (cost(follow_back, list((2 * show.randn(3, 2, many, many)).softmax(dim=-1)), token, 0.5) for many in (size, 2 * size))
    show([show.sketch(short.value), show.sketch(long.value), exponent(short.operations, long.operations, 2)],
         f"{size} and {2 * size} tokens; operations grow as n to the power of")

# %% tags=["mistakes"]
def following(order=reversed, heads=lambda layer: layer.mean(dim=0), keep=lambda a: a, mix=lambda a: 1 - a,
              turn=lambda layer: layer):
    """One token followed back, with something wrong."""
    def answer(weights, token, residual):
        row = F.one_hot(torch.tensor(token), weights[0].shape[-1]).float()
        for layer in order(weights):
            row = keep(residual) * row + mix(residual) * (row @ turn(heads(layer)))
        return row
    return answer


def whole_product(weights, token, residual):
    n = weights[0].shape[-1]
    product = torch.eye(n)
    for layer in weights:
        product = (residual * torch.eye(n) + (1 - residual) * layer.mean(dim=0)) @ product
    return product[token]


mistake("back", whole_product,
        "The numbers are right, but whole matrices are multiplied, for one row: start with that row, and go back from the last layer.")
mistake("back", following(order=lambda layers: layers),
        "You begin at the first layer. From an output one goes back: its row is one of the *last* layer, then the one before it.")
mistake("back", following(keep=lambda a: 0, mix=lambda a: 1),
        "The residual is missing: each layer also passes every token on as it is.")
mistake("back", following(keep=lambda a: 1, mix=lambda a: 1),
        "The shares are missing: with 1 and 1 each layer doubles the sum.")
mistake("back", following(keep=lambda a: 1 - a, mix=lambda a: a),
        "The shares are exchanged: `residual` is what is passed on, the rest comes from the weights.")
for axis in ("weights[0].shape[-1] → weights[0].shape[-2]", "weights[0] → weights[-1]"):
    equivalent("back", axis, "All layers have weights of (n, n).")

for keep, mix in ((lambda a: a, lambda a: 1), (lambda a: 1, lambda a: 1 - a)):
    mistake("back", following(keep=keep, mix=mix), "The two shares don't add up to 1: α of what is passed on, and 1 − α of the weights.")
mistake("back", following(mix=lambda a: 0), "The weights are missing: only what is passed on counts here.")
mistake("back", following(keep=lambda a: 0), "What is passed on is missing, with its share α.")
mistake("back", following(order=lambda layers: []), "That is the token itself. Go back through the layers: row times matrix, layer by layer.")
mistake("back", following(heads=lambda layer: layer.amax(dim=0)),
        "You take the largest of the heads. It is their mean; rows of maxima don't sum to 1.")
mistake("back", following(heads=lambda layer: layer[0]), "That is the first head only. Take the mean of all.")
mistake("back", following(turn=lambda layer: layer.T),
        "You multiply by the transposed weights: who looks at this token, not what it looks at.")
mistake("back", following(order=lambda layers: layers[-1:]),
        "That is the last layer alone. Its inputs are outputs of the layers below: go on back.")


def by_chain(weights, token, residual):
    row = torch.zeros(1, weights[0].shape[-1])
    row[0, token] = 1
    for layer in weights[::-1]:
        mixed = torch.stack([row @ head for head in layer]).mean(dim=0)
        row = row + (1 - residual) * (mixed - row)
    return row[0]


alternative("back", by_chain)

# %% [markdown]
# ### Task 4 · Investigate: who needs neighbors?   ●●●●● · 15 minutes · 3 points
#
# Draw *one* order of the 784 pixels, and exchange the pixels of **all** pictures, training and test, in this same order. To you
# it is noise. No information is lost. Train on these pictures, and on the original ones: the lesson's convolutional network, its
# Vision Transformer with patches of $4 \times 4$, and a third model of your choice, for example patches of $1 \times 28$, or a plain
# network of two `Linear` layers on all 784 pixels. Two hundred steps will do. Use two seeds at least.
#
# Say beforehand who will lose how much, and why: what is each model *told* about which pixels belong together, before it has
# seen any? Then measure. One result may well be the opposite of what you said. Which, and what could explain it? Make one more
# run that tests your explanation: more steps, or other patches. Two or three sentences.
#
# Copy what you need from the lesson into cells of your own below this one; here you may use all of `txlib`. Hand in a table of
# your numbers and your text. A person reads it.

# %% [markdown] nbgrader={"grade_id": "who-needs", "solution": true, "grade": true, "points": 3, "locked": false, "schema_version": 3}
# <!-- BEGIN SOLUTION -->
# Expected: the convolution loses most, for its neighbors are no neighbors any more; the Vision Transformer loses less, since
# its patches are torn but places can be learned; the plain network nothing, for to it all orders are the same. 200 steps, right
# answers in percent, two seeds:
#
# | model | original | exchanged |
# | --- | --- | --- |
# | convolutional | 71.4, 70.9 | 69.9, 66.2 |
# | Vision Transformer | 65.2, 65.2 | 75.3, 75.2 |
# | two `Linear` layers, 64 in the middle | 81.1, 82.0 | 80.8, 81.3 |
#
# The convolution loses 1 to 5 points, the plain network almost nothing. The Vision Transformer *gains* ten. A patch of 16
# scattered pixels is a small sample of the whole picture, so each token is already a rough look at all of it, and the first matrix
# does most of what the plain network does; a square of 4 × 4 says little until attention has put squares together, and that takes
# longer than 200 steps. If so, the gain should shrink with more steps. What it is told, that squares belong together, is no help
# as long as it has not learned what to do with them. Two seeds agree within a point or so.
# <!-- END SOLUTION -->

# %% [markdown] tags=["rubric"]
# 1 point: a table with original and exchanged pixels, three models, two seeds or more. 1 point: a guess made beforehand, with a
# reason that says what each model is told: neighborhoods by the convolution, squares of 4 × 4 by the patches, nothing by a
# plain network. 1 point: read as it is, also where it contradicts the guess (with so few steps the Vision Transformer may gain),
# an explanation, and a run that could refute it; and the word of caution that few seeds allow.

# %%
check.summary()
