# %% [markdown]
# # Exercise 21 · Vision
#
# Seven tasks, 19 points, about 85 minutes. They belong to lesson [21 Vision](../notebooks/21_vision.ipynb). Run the cells
# from the top; fill in where it says *your turn*, then run the check below it. You may check as often as you like.
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
    show(together(show.randn(2, rows * columns, 12), 2, columns * 2), f"{rows} × {columns} patches of 2 × 2, in colour")
    show(together(show.randn(1, columns * rows, 9), 3, rows * 3), f"{columns} × {rows} patches of 3 × 3, grey")
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
# resized as the colours of a picture would be: `F.interpolate` with `mode="{{MODE}}", align_corners={{ALIGNED}}`. The class token
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
        "You interpolate along one long row: the last patch of a row is taken for a neighbour of the next row's first. It is a grid.")
mistake("resized", resizing(there="(w h) d -> 1 d h w"),
        "You take the patches column by column. They stand row by row.")
mistake("resized", resizing(back="1 d h w -> (w h) d"),
        "The way back takes the columns first. The new table, too, goes row by row.")
mistake("resized", by_reshape,
        "`reshape` alone leaves the numbers in their order: parts of vectors become pixels. Exchange the axes.")
mistake("resized", resizing(align_corners=not ALIGNED),
        "`align_corners` decides whether the corner patches stay where they were, and with them all others. Take `{{ALIGNED}}`.")
mistake("resized", resizing(mode="bicubic" if MODE == "bilinear" else "bilinear"),
        "You mix other neighbours than asked for: set `mode=\"{{MODE}}\"`.")
mistake("resized", resizing(mode="nearest", align_corners=None),
        "These are copies of the nearest vector. Take `mode=\"{{MODE}}\"`, which mixes neighbours.")


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
# ### Task 3 · A film, without a single score   ●●●●○ · 15 minutes · 3 points
#
# The non-local block's dot-product form, for a film: $\theta$, $\varphi$ and $g$ have been applied, and you get $(N, C, T, H, W)$
# each. Every place in space and time takes from every other:
#
# $$y_i = \frac1K \sum_j \theta_i^\top \varphi_j\; g_j \qquad K = T \cdot H \cdot W$$
#
# Return $y$ in the shape of `g`. And do it so that operations and the largest tensor grow like $K$, not like its square. A
# film of ten seconds has 700,000 places.
#
# <details><summary>Hint 1: which axes are places?</summary>
#
# The last three. `flatten(2)` makes one of them, and the matrices are $(N, C, K)$.
# </details>
# <details><summary>Hint 2: where does K × K come from?</summary>
#
# From $\theta^\top \varphi$ being multiplied first. Nothing stands between it and $g$, such as a softmax. So who says that it must
# come first?
# </details>
# <details><summary>Hint 3: brackets</summary>
#
# $(A B)\, C = A\, (B C)$. What shape has $\varphi\, g^\top$?
# </details>

# %% nbgrader={"grade_id": "film", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def non_local_film(
    theta: Float[Tensor, "n c t h w"], phi: Float[Tensor, "n c t h w"], g: Float[Tensor, "n c t h w"]
) -> Float[Tensor, "n c t h w"]:
    """Dot-product attention between all places of a film."""
    ### BEGIN SOLUTION
    q, k, v = (each.flatten(2) for each in (theta, phi, g))        # (N, C, K) each
    together = v @ k.mT / q.shape[-1]                              # (N, C, C)
    return (together @ q).view_as(g)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-film", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("film") as show:
    n, c, t, h, w = show.random_size(1, 2), show.random_size(2, 3), show.random_size(2, 3), show.random_size(2, 3), 4
    inputs = [show.randn(n, c, t, h, w) for _ in range(3)]
    show(non_local_film(*inputs), f"{n} films of {t} × {h} × {w} places, {c} channels")
    show(non_local_film(*(each[:, :, :1] for each in inputs)), f"a single picture, {h} × {w}")
    frames = show.random_size(6, 8)
    short, long = (cost(non_local_film, *show.randn(3, 1, 8, many, 8, 8)) for many in (frames, 2 * frames))
    show([show.sketch(short.value), exponent(short.operations, long.operations, 2)],
         f"{frames} frames of 8 × 8 places; operations grow as K to the power of")
    show([show.sketch(long.value), exponent(short.largest, long.largest, 2)],
         f"{2 * frames} frames of 8 × 8 places; the largest tensor grows as K to the power of")

# %% tags=["mistakes"]
def film(weights=lambda q, k: q.mT @ k / q.shape[-1], places=lambda x: x.flatten(2)):
    """Non-local in a film, with something wrong."""
    def answer(theta, phi, g):
        q, k, v = (places(each) for each in (theta, phi, g))
        return (v @ weights(q, k).mT).view_as(g)
    return answer


def picture_by_picture(theta, phi, g):
    q, k, v = (rearrange(each, "n c t h w -> n t c (h w)") for each in (theta, phi, g))
    return rearrange(v @ k.mT @ q / q.shape[-1], "n t c (h w) -> n c t h w", h=g.shape[-2])


def divided(count):
    def answer(theta, phi, g):
        q, k, v = (each.flatten(2) for each in (theta, phi, g))
        return (v @ k.mT @ q / count(q)).view_as(g)
    return answer


def exchanged(theta, phi, g):
    q, k, v = (each.flatten(2) for each in (theta, phi, g))
    return (k @ v.mT @ q / q.shape[-1]).view_as(g)


mistake("film", film(),
        "The numbers are right, but all scores are written down: K × K. Without a softmax you may multiply φ and g first.")
mistake("film", film(lambda q, k: (q.mT @ k).softmax(-1)),
        "This form has no softmax: the scores themselves are the weights, divided by K.")
mistake("film", film(lambda q, k: (q.mT @ k / q.shape[1] ** 0.5).softmax(-1)),
        "That is attention as you know it. The dot-product form has neither a softmax nor a root: divide by K.")
mistake("film", divided(lambda q: 1), "The 1/K is missing. Without it a larger film gives larger sums.")
mistake("film", divided(lambda q: q.shape[1]), "You divide by the number of channels. K counts places: T · H · W.")
mistake("film", divided(lambda q: q.shape[1] ** 0.5), "You divide by the root of the channels, as for a softmax. Here it is K.")
mistake("film", picture_by_picture,
        "Each picture of the film looks at itself only. Time is an axis of place like height and width: join all three.")
mistake("film", exchanged, "φ and g have changed places: weights come from θ and φ, and what is summed is g.")


def by_einsum_film(theta, phi, g):
    both = torch.einsum("ncthw,ndthw->ncd", phi, g)
    return torch.einsum("ncthw,ncd->ndthw", theta, both) / theta[0, 0].numel()


alternative("film", by_einsum_film)

# %% [markdown]
# ### Task 4 · A window that draws   ●●●○○ · 12 minutes · 3 points
#
# A model that *draws* pixel by pixel, row by row from the upper left (Parmar et al. 2018), must not see pixels that are not
# there yet. Pixel $p$ stands in row $\lfloor p / W \rfloor$ and column $p \bmod W$. It sees a pixel if that one stands at most
# $r$ rows and at most $r$ columns away, and is not later in the order. It sees itself: as in lesson 10, what stands at $p$
# serves to predict the *next* pixel.
#
# How many pairs are that, for pictures of $H \times W$? No matrix, and no loop over pixels, please: a picture may have a
# million. ($r$ may be larger than the picture.)
#
# <details><summary>Hint 1: first without the order</summary>
#
# Rows and columns don't know of each other. In one direction, of length $L$, there are $L (2r + 1) - r (r + 1)$ pairs at most $r$
# apart, if $r < L$. Both together are a product.
# </details>
# <details><summary>Hint 2: an r that is too large</summary>
#
# With $r \geq L$ everybody sees everybody, as with $r = L - 1$.
# </details>
# <details><summary>Hint 3: then the order</summary>
#
# The window is symmetric: of two different pixels that see each other, one comes later. And each pixel sees itself.
# </details>

# %% nbgrader={"grade_id": "drawing", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def pairs_while_drawing(height: int, width: int, radius: int) -> int:
    """How many (query, key) pairs a causal window in two dimensions has."""
    ### BEGIN SOLUTION
    def near(length):
        r = min(radius, length - 1)
        return length * (2 * r + 1) - r * (r + 1)

    return (near(height) * near(width) + height * width) // 2
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-drawing", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("drawing") as show:
    height, width, radius = show.random_size(6, 9), show.random_size(10, 15), show.random_size(2, 4)
    show(pairs_while_drawing(height, width, radius), f"{height} × {width}, r = {radius}")
    show(pairs_while_drawing(height, width, height + 1), f"{height} × {width}, r = {height + 1}: more than its rows")
    show(pairs_while_drawing(1, width, radius), f"1 × {width}, r = {radius}: a line")
    show([pairs_while_drawing(height, width, r) for r in (0, height - 1, height, width - 2, width - 1, width, width + 5)],
         f"{height} × {width}: r = 0, and around the number of rows and of columns")
    show([pairs_while_drawing(*size) for size in ((width, 1, radius), (height, height, radius), (1, 1, radius), (1, 1, 0))],
         f"{width} × 1, {height} × {height} and 1 × 1, r = {radius}; 1 × 1, r = 0")
    large = show.random_size(900, 1100)
    show(pairs_while_drawing(large, 1000, 7), f"{large} × 1000, r = 7")

# %% tags=["mistakes"]
def length_pairs(length, radius, clip=True):
    r = min(radius, length - 1) if clip else radius
    return length * (2 * r + 1) - r * (r + 1)


mistake("drawing", lambda h, w, r: length_pairs(h, r) * length_pairs(w, r),
        "That is the window without the order: it sees pixels that are not drawn yet.")
mistake("drawing", lambda h, w, r: (length_pairs(h, r) * length_pairs(w, r) - h * w) // 2,
        "A pixel sees itself, too: a pair more for each pixel.")
mistake("drawing", lambda h, w, r: length_pairs(h, r) * length_pairs(w, r) // 2,
        "Half of the pairs, but a pixel with itself is no pair of two. Take those out before you halve, and add them again.")
mistake("drawing", lambda h, w, r: (length_pairs(h, r, False) * length_pairs(w, r, False) + h * w) // 2,
        "Where r is larger than the picture, the formula counts rows that are not there. Then r = L − 1 is as good.")
equivalent("drawing", "length - 1 → length", "r = L and r = L - 1 give L² pairs alike.")
equivalent("drawing", "length * (2 * r + 1) - r * (r + 1) → r * (r + 1) - length * (2 * r + 1)",
           "The sign goes: two of these are multiplied.")


def window(near=lambda L, r: L * (2 * r + 1) - r * (r + 1), join=lambda h, w: h * w, own=lambda h, w: h * w, half=2):
    """The pairs, with one part exchanged."""
    def answer(h, w, radius):
        return (join(*(near(length, min(radius, length - 1)) for length in (h, w))) + own(h, w)) // half
    return answer


mistake("drawing", window(near=lambda L, r: L * (2 * r + 1)),
        "At both ends of a row or column the window is cut: subtract the r (r + 1) pairs that are not there.")
for near in (lambda L, r: L * (2 * r + 1) - r * r, lambda L, r: L * (2 * r + 1) - r, lambda L, r: L * (2 * r + 1) - (r + 1)):
    mistake("drawing", window(near=near), "Near each end r + (r − 1) + … + 1 pairs are missing: r (r + 1) for both ends together.")
for near in (lambda L, r: L * 2 * r - r * (r + 1), lambda L, r: L * (r + 1) - r * (r + 1)):
    mistake("drawing", window(near=near), "In one direction a window reaches r to *either* side, and has the pixel itself: 2r + 1.")
mistake("drawing", window(half=1), "Of two different pixels that see each other, only one is later: halve.")
for own in (lambda h, w: h, lambda h, w: w):
    mistake("drawing", window(own=own), "Every pixel sees itself: that is one pair more for each of the H · W pixels.")
for join in (lambda rows, columns: rows, lambda rows, columns: columns):
    mistake("drawing", window(join=join), "Rows and columns both count: each pair of rows goes with each pair of columns. Multiply the two.")
mistake("drawing", lambda h, w, r: window()(h, w, h + w), "r is not used: every pixel sees all that are drawn.")
mistake("drawing", lambda h, w, r: (length_pairs(h, r) + h) // 2 * ((length_pairs(w, r) + w) // 2),
        "Causal in rows *and* in columns is too strict: a pixel to the right in a row above is drawn already.")
mistake("drawing", lambda h, w, r: h * w * ((2 * r + 1) ** 2 + 1) // 2,
        "Pixels at the edges have smaller windows: you count as if each had all its neighbours.")
mistake("drawing", lambda h, w, r: (length_pairs(h * w, r * w + r) + h * w) // 2,
        "A window on the row of all pixels reaches around the edge, into the other end of the next row.")


def row_by_row(height, width, radius):
    r = min(radius, height - 1)
    above = height * r - r * (r + 1) // 2
    across = sum(min(width, column + radius + 1) - max(0, column - radius) for column in range(width))
    left = sum(min(radius, column) + 1 for column in range(width))
    return above * across + height * left


alternative("drawing", row_by_row)

# %% [markdown]
# ### Task 5 · Where is it from me?   ●●●●○ · 15 minutes · 3 points
#
# Relative scores for attention between *all* pixels of a small picture, $H \times W$ (as Swin does within its squares). A pixel
# can be from $-(H-1)$ to $H-1$ rows below another, and from $-(W-1)$ to $W-1$ columns to the right. So `rows` holds
# $2H - 1$ vectors and `columns` $2W - 1$, in this order, half as wide as a query each. Query $i$ gives key $j$ the score
#
# $$s_{ij} = q_i^\top\, [\,\text{rows}[\text{how many rows } j \text{ is below } i];\; \text{columns}[\text{how many columns } j
# \text{ is to the right of } i]\,]$$
#
# Return all scores, $(K, K)$. Pixels stand row by row.
#
# <details><summary>Hint 1: split the product</summary>
#
# The first half of $q_i$ meets `rows`, the second half meets `columns`, and the two are added.
# </details>
# <details><summary>Hint 2: from an offset to an index</summary>
#
# `row[j] - row[i]` begins at $-(H-1)$, and an index at 0.
# </details>
# <details><summary>Hint 3: choose for each pair</summary>
#
# `first @ rows.T` is $(K, 2H - 1)$: each query with each offset. `gather(1, index)` picks one per key, or first index `rows` by
# the $(K, K)$ table of offsets and use `einsum`.
# </details>

# %% nbgrader={"grade_id": "offsets", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def relative_scores(
    q: Float[Tensor, "pixels d"], rows: Float[Tensor, "row_offsets half"], columns: Float[Tensor, "column_offsets half"]
) -> Float[Tensor, "pixels pixels"]:
    """Each query's score for the place of each key, seen from itself."""
    ### BEGIN SOLUTION
    height, width = (len(rows) + 1) // 2, (len(columns) + 1) // 2
    place = torch.arange(height * width)
    row, column = place // width, place % width
    first, second = q.chunk(2, dim=-1)                                             # (K, d / 2) each
    below = (first @ rows.T).gather(1, row - row[:, None] + height - 1)            # (K, K)
    right = (second @ columns.T).gather(1, column - column[:, None] + width - 1)   # (K, K)
    return below + right
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-offsets", "grade": true, "points": 3, "solution": false, "locked": true, "schema_version": 3}
with check("offsets") as show:
    for h, w in ((show.random_size(2, 3), 4), (1, show.random_size(4, 6)), (show.random_size(4, 6), 1), (3, 3), (1, 1)):
        half = show.random_size(2, 4)
        inputs = show.randn(h * w, 2 * half), show.randn(2 * h - 1, half), show.randn(2 * w - 1, half)
        show(relative_scores(*inputs), f"{h} × {w} pixels, queries of width {2 * half}")

# %% tags=["mistakes"]
def offsets(down=lambda row, n: row - row[:, None] + n - 1, across=lambda column, n: column - column[:, None] + n - 1,
            halves=lambda q: q.chunk(2, dim=-1), place=lambda k, h, w: (torch.arange(k) // w, torch.arange(k) % w),
            take=lambda score, index: score.gather(1, index)):
    """Relative scores with something wrong."""
    def answer(q, rows, columns):
        height, width = (len(rows) + 1) // 2, (len(columns) + 1) // 2
        row, column = place(len(q), height, width)
        first, second = halves(q)
        return take(first @ rows.T, down(row, height)) + take(second @ columns.T, across(column, width))
    return answer


mistake("offsets", offsets(down=lambda row, n: row[:, None] - row + n - 1,
                           across=lambda column, n: column[:, None] - column + n - 1),
        "You have both signs the wrong way round: it is how far the *key* is below and to the right of the query.")
mistake("offsets", offsets(across=lambda column, n: column[:, None] - column + n - 1),
        "The columns' sign is the wrong way round: how far the key is to the *right* of the query.")
mistake("offsets", offsets(down=lambda row, n: row[:, None] - row + n - 1),
        "The rows' sign is the wrong way round: how far the key is *below* the query.")
mistake("offsets", offsets(down=lambda row, n: (row - row[:, None]) % (2 * n - 1),
                           across=lambda column, n: (column - column[:, None]) % (2 * n - 1)),
        "Negative offsets count from the end of a table in Python. Offset −(H−1) stands first: add H − 1.")
mistake("offsets", offsets(down=lambda row, n: (row - row[:, None]).abs() + n - 1,
                           across=lambda column, n: (column - column[:, None]).abs() + n - 1),
        "These are distances. Above and below, left and right are different offsets, with vectors of their own.")
mistake("offsets", offsets(halves=lambda q: q.chunk(2, dim=-1)[::-1]),
        "The halves are exchanged: the query's first half meets the rows.")
mistake("offsets", offsets(place=lambda k, h, w: (torch.arange(k) % h, torch.arange(k) // h)),
        "You number the pixels column by column. They stand row by row: row = position // W.")
for part, sentence in enumerate(("Only the rows' offsets count here. Add the columns' scores.",
                                "Only the columns' offsets count here. Add the rows' scores.")):
    mistake("offsets", lambda q, rows, columns, part=part: relative_scores(
                q, rows * (part == 0), columns * (part == 1)), sentence)
for name in ("rows", "columns"):
    equivalent("offsets", f"len({name}) + 1 → len({name}) + 2", "Halved and rounded down it is the same: their number is odd.")
mistake("offsets", lambda q, rows, columns: relative_scores(q, rows, columns) / q.shape[-1] ** 0.5,
        "These scores are divided by the root of d. Here they are not, as in the formula.")
mistake("offsets", lambda q, rows, columns: relative_scores(q, rows, columns).softmax(-1),
        "These are weights. Return the scores, which are added to those of the contents before the softmax.")


def by_table(q, rows, columns):
    height, width = (len(rows) + 1) // 2, (len(columns) + 1) // 2
    out = torch.empty(len(q), len(q))
    half = q.shape[1] // 2
    for i in range(len(q)):
        for j in range(len(q)):
            down, right = j // width - i // width, j % width - i % width
            out[i, j] = q[i, :half] @ rows[down + height - 1] + q[i, half:] @ columns[right + width - 1]
    return out


alternative("offsets", by_table)

# %% [markdown]
# ### Task 6 · Follow one token back   ●●●○○ · 12 minutes · 3 points
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
# ### Task 7 · Investigate: who needs neighbours?   ●●●●● · 15 minutes · 3 points
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
# Expected: the convolution loses most, for its neighbours are no neighbours any more; the Vision Transformer loses less, since
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
# reason that says what each model is told: neighbourhoods by the convolution, squares of 4 × 4 by the patches, nothing by a
# plain network. 1 point: read as it is, also where it contradicts the guess (with so few steps the Vision Transformer may gain),
# an explanation, and a run that could refute it; and the word of caution that few seeds allow.

# %%
check.summary()
