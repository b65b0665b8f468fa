"""Attention between the pixels of an image or a video: (batch, channels, height, width) in and out.

Pixels are positions, read row by row, so masks apply to them: a neighborhood is a mask, `window_2d(width, radius)`,
and so are a row, `block_local(width)`, and a column, `strided_keys(width)`. Any mechanism honors these; the layers here
have the grid built in.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from txlib.attention.dense import DenseAttention
from txlib.attention.local_operators import inside, make_countable
from txlib.attention.masks import MaskLike
from txlib.attention.mechanism import check_divisible, check_sizes

FORMS = ("gaussian", "embedded_gaussian", "dot_product", "concatenation")
CONVOLUTIONS = {2: nn.Conv2d, 3: nn.Conv3d}
AXES = {2: "height, width", 3: "time, height, width"}


class AttentionLayer2d(nn.Module):
    """Every pixel attends to every pixel: NCHW → NKC → NCHW, where K counts the pixels.

    The layer does not know positions: pixels in another order give the same outputs in that order. If you want
    positions, add them to the input.

    Args:
        dim_x: channels of the input.
        dim_k: width of queries and keys, of all heads together.
        dim_v: width of the values, which are the channels of the output.
        heads: number of heads.
        mechanism: module called as `mechanism(q, k, v, mask)`, see `txlib.attention.mechanism`; `DenseAttention`
            unless given.

    Raises:
        ValueError: when a width is below 1, or not a multiple of the heads.
    """

    def __init__(self, dim_x: int, dim_k: int, dim_v: int, *, heads: int = 1, mechanism: nn.Module | None = None):
        super().__init__()
        check_widths(1, dim_x=dim_x)
        check_widths(heads, dim_k=dim_k, dim_v=dim_v)
        self.dim_x, self.heads = dim_x, heads
        self.query, self.key, self.value = (nn.Linear(dim_x, width) for width in (dim_k, dim_k, dim_v))
        self.mechanism: Any = DenseAttention() if mechanism is None else mechanism

    def forward(
        self, x: Float[Tensor, "batch dim_x height width"], mask: MaskLike = None
    ) -> Float[Tensor, "batch dim_v height width"]:
        """Return each pixel's average of the values.

        Args:
            mask: True = may attend, for pixels row by row; `window_2d(width, radius)` is local attention.

        Raises:
            ValueError: when x has other channels or dimensions.
        """
        check_channels(x, self.dim_x, 2)
        pixels = x.flatten(start_dim=2).mT  # (batch, pixels, dim_x)
        q, k, v = (
            project(pixels).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (batch, heads, pixels, width of a head)
            for project in (self.query, self.key, self.value)
        )
        out = self.mechanism(q, k, v, mask)  # (batch, heads, pixels, value_dim)
        return out.mT.flatten(1, 2).unflatten(-1, x.shape[2:])


class AxialAttention2d(nn.Module):
    """Attention along rows, then along columns: after both, each pixel depends on all others (Ho et al. 2019, §3).

    A pixel is compared with height + width others, not with height · width.

    Args:
        dim_x, dim_k, dim_v, heads: see `AttentionLayer2d`, of which this has two.
    """

    def __init__(
        self,
        dim_x: int,
        dim_k: int,
        dim_v: int,
        *,
        heads: int = 1,
    ):
        super().__init__()
        self.rows = AttentionLayer2d(dim_x, dim_k, dim_v, heads=heads)
        self.columns = AttentionLayer2d(dim_v, dim_k, dim_v, heads=heads)

    def forward(self, x: Float[Tensor, "batch dim_x height width"]) -> Float[Tensor, "batch dim_v height width"]:
        """Attend within each row, as an image one pixel high; then within each column, transposed into a row."""
        check_channels(x, self.rows.dim_x, 2)
        return along_rows(self.columns, along_rows(self.rows, x).mT).mT


def along_rows(
    layer: nn.Module, x: Float[Tensor, "batch channels height width"]
) -> Float[Tensor, "batch dim_v height width"]:
    """Return what the layer gives for each row alone."""
    rows = x.transpose(1, 2)  # (batch, height, channels, width)
    return layer(rows.flatten(0, 1)[:, :, None]).view(*rows.shape[:2], -1, rows.shape[3]).transpose(1, 2)


class NonLocalBlock(nn.Module):
    """x + W_z y, where y averages g over all positions: a layer to put between others (Wang et al. 2018, eq. 6).

    The weight of position j for position i (§3.2) is f(i, j) / C, with one of

        gaussian            f = exp(x_i · x_j)              C = Σ_j f: a softmax
        embedded_gaussian   f = exp(θ x_i · φ x_j)          C = Σ_j f: a softmax
        dot_product         f = θ x_i · φ x_j               C = N, the number of positions j
        concatenation       f = ReLU(w · [θ x_i, φ x_j])    C = N

    As in the paper, scores are not divided by √width. W_z starts at zero, so that a new block changes nothing in a
    trained network (§3.3). The dot product has no softmax between its two matrix products: with more positions than
    channels, φᵀ g is computed first, and the cost grows linearly.

    Args:
        channels: of the input and the output.
        form: one of the four.
        dims: 2 for images (batch, channels, height, width), 3 for videos (batch, channels, time, height, width).
        bottleneck: channels of θ, φ and g; half of the input's unless given, as in the paper.
        subsample: whether keys and values are max-pooled 2×2 in space, for a quarter of the scores (§3.3, "subsampling
            trick"). If a side is odd, the last row or column is pooled alone.

    Raises:
        ValueError: for an unknown form or dims, and for sizes below 1.
    """

    def __init__(
        self,
        channels: int,
        form: str = "embedded_gaussian",
        *,
        dims: int = 2,
        bottleneck: int | None = None,
        subsample: bool = False,
    ):
        super().__init__()
        if form not in FORMS:
            raise ValueError(f"form={form!r} is unknown; choose one of {', '.join(FORMS)}")
        if dims not in CONVOLUTIONS:
            raise ValueError(f"dims={dims} is unknown; choose 2 for images, 3 for videos")
        width = max(1, channels // 2) if bottleneck is None else bottleneck
        check_widths(1, channels=channels, bottleneck=width)
        convolution = CONVOLUTIONS[dims]
        self.channels, self.form, self.dims, self.subsample = channels, form, dims, subsample
        embedded = form != "gaussian"
        self.theta = convolution(channels, width, 1) if embedded else nn.Identity()
        self.phi = convolution(channels, width, 1) if embedded else nn.Identity()
        self.g = convolution(channels, width, 1)
        self.z = convolution(width, channels, 1)
        for parameter in self.z.parameters():
            nn.init.zeros_(parameter)
        self.pair = nn.Linear(2 * width, 1, bias=False) if form == "concatenation" else None
        self.dense = DenseAttention()

    def forward(self, x: Float[Tensor, "batch channels *grid"]) -> Float[Tensor, "batch channels *grid"]:
        """Return x plus what each position gathers from all others.

        Raises:
            ValueError: when x has other channels or dimensions.
        """
        check_channels(x, self.channels, self.dims)
        q, k = self.embedded(x)
        v = self.pooled(self.g(x)).mT  # (batch, keys, width)
        keys, width = k.shape[1:]
        if self.form in ("gaussian", "embedded_gaussian"):
            y = self.dense(q[:, None] * width**0.5, k[:, None], v[:, None])[:, 0]  # dense divides by √width
        elif self.form == "dot_product" and keys > width:
            y = q @ (k.mT @ v / keys)
        else:
            y = self.pairs(q, k) @ v  # (batch, positions, width)
        return x + self.z(y.mT.unflatten(-1, x.shape[2:]))

    def weights(self, x: Float[Tensor, "batch channels *grid"]) -> Float[Tensor, "batch query key"]:
        """Return f / C, the weight of each key position for each query position, both row by row."""
        q, k = self.embedded(x)
        return (q @ k.mT).softmax(dim=-1) if "gaussian" in self.form else self.pairs(q, k)

    def embedded(
        self, x: Float[Tensor, "batch channels *grid"]
    ) -> tuple[Float[Tensor, "batch query width"], Float[Tensor, "batch key width"]]:
        """Return θ of all positions, and φ of the (pooled) key positions."""
        return self.theta(x).flatten(start_dim=2).mT, self.pooled(self.phi(x)).mT

    def pooled(self, x: Float[Tensor, "batch width *grid"]) -> Float[Tensor, "batch width key"]:
        """Return the key positions in one row, max-pooled if this layer subsamples."""
        if self.subsample and self.dims == 2:
            x = F.max_pool2d(x, 2, ceil_mode=True)
        elif self.subsample:
            x = F.max_pool3d(x, (1, 2, 2), ceil_mode=True)
        return x.flatten(start_dim=2)

    def pairs(
        self, q: Float[Tensor, "batch query width"], k: Float[Tensor, "batch key width"]
    ) -> Float[Tensor, "batch query key"]:
        """Return f / N of the two forms without a softmax."""
        if self.pair is None:
            score = q @ k.mT
        else:  # w · [θ, φ] is a sum of a part for θ and one for φ: no tensor of all pairs of vectors
            of_query, of_key = self.pair.weight[0].chunk(2)
            score = F.relu((q @ of_query)[:, :, None] + (k @ of_key)[:, None])
        return score / k.shape[1]


class LocalAttention2d(nn.Module):
    """Stand-alone local attention, instead of a convolution: each pixel attends to the k × k pixels around it
    (Ramachandran et al. 2019, §2.2, eq. 3).

        y_ij = Σ_ab softmax_ab(q_ij · k_ab + q_ij · r_{a-i, b-j}) v_ab

    r, the relative position, concatenates a learned vector of the row's offset and one of the column's, each half as
    wide as a head. As in the paper, scores are not divided by √width; q, k and v are 1 × 1 convolutions without bias;
    and if the layer replaces a convolution with a stride, its outputs are averaged over stride × stride pixels (§3.1).

    Time and memory grow with the number of pixels: neighborhoods are never written out (`local_scores`).

    Args:
        dim_x, dim_v: channels of the input and of the output; queries and keys are as wide as the latter.
        kernel: k, the width of a neighborhood, odd; 7 in the paper.
        heads: number of heads, each with a slice of the channels; 8 in the paper.
        stride: the output has 1 / stride of the rows and columns, rounded up, as for a convolution.
        padding: "real": no pixel looks beyond the image. "zeros": the image is padded with zeros, as in a convolution;
            the scores of padded pixels are those of their positions, and they get part of the weights. The paper does
            not say which it uses.
        relative: False leaves r out: then the order of the pixels in a neighborhood does not matter.
        grouped: whether a head also sees a slice of the input only, as in §2.2 of the paper. Its counts of parameters
            and operations belong to projections that see all channels, the default here.

    Raises:
        ValueError: for an even kernel, an unknown padding, and widths that do not fit the heads.
    """

    def __init__(
        self,
        dim_x: int,
        dim_v: int,
        kernel: int = 7,
        *,
        heads: int = 8,
        stride: int = 1,
        padding: str = "real",
        relative: bool = True,
        grouped: bool = False,
    ):
        super().__init__()
        make_countable()
        check_widths(heads if grouped else 1, dim_x=dim_x)
        check_widths(heads, dim_v=dim_v)
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(
                f"kernel={kernel} has no pixel in the middle; choose an odd one, e.g. {max(0, kernel) + 1}"
            )
        check_sizes(stride=stride)
        if padding not in ("real", "zeros"):
            raise ValueError(f"padding={padding!r} is unknown; choose 'real' or 'zeros'")
        width = dim_v // heads
        if relative and width % 2:
            raise ValueError(
                f"dim_v={dim_v} and heads={heads} make heads of {width} channels, of which half are for the row's "
                f"offset and half for the column's; choose e.g. dim_v={heads * (width + 1)}"
            )
        self.dim_x, self.kernel, self.heads, self.stride, self.padding = dim_x, kernel, heads, stride, padding
        groups = heads if grouped else 1
        self.query, self.key, self.value = (nn.Conv2d(dim_x, dim_v, 1, bias=False, groups=groups) for _ in range(3))
        self.row, self.column = (
            nn.Parameter(torch.randn(kernel, heads, width // 2) * width**-0.5) if relative else None for _ in range(2)
        )

    def forward(self, x: Float[Tensor, "batch dim_x height width"]) -> Float[Tensor, "batch dim_v rows columns"]:
        """Return each pixel's average of the values in its neighborhood.

        Raises:
            ValueError: when x has other channels or dimensions.
        """
        q, k, v = self.project(x)
        weights = self.scores(q, k).softmax(dim=2).to(v.dtype)  # (batch, heads, k², height, width)
        out = torch.ops.txlib.local_average(weights, v, self.kernel).flatten(1, 2)
        return F.avg_pool2d(out, self.stride, ceil_mode=True) if self.stride > 1 else out

    def weights(self, x: Float[Tensor, "batch dim_x height width"]) -> Float[Tensor, "batch heads k k height width"]:
        """Return the weight of each pixel of each pixel's neighborhood."""
        q, k, _ = self.project(x)
        return self.scores(q, k).softmax(dim=2).unflatten(2, (self.kernel, self.kernel))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each (batch, heads, width, height, width of the image)."""
        check_channels(x, self.dim_x, 2)
        q, k, v = (project(x).unflatten(1, (self.heads, -1)) for project in (self.query, self.key, self.value))
        return q, k, v

    def scores(
        self, q: Float[Tensor, "batch heads d height width"], k: Float[Tensor, "batch heads d height width"]
    ) -> Float[Tensor, "batch heads neighbors height width"]:
        """Return q · k + q · r; -inf outside the image, unless the padding is zeros."""
        score = torch.ops.txlib.local_scores(q, k, self.kernel)
        if self.row is not None and self.column is not None:
            halves = zip(q.chunk(2, dim=2), (self.row, self.column), strict=True)
            down, across = (torch.einsum("bhdyx,khd->bhkyx", half, table) for half, table in halves)
            score = score + (down[:, :, :, None] + across[:, :, None]).flatten(2, 3)
        if self.padding == "zeros":
            return score
        height, width = q.shape[3:]
        return score.masked_fill(~inside(self.kernel, height, width, q.device), float("-inf"))


# Checks ----------------------------------------------------------------------------------------------------------


def check_widths(heads: int, **widths: int) -> None:
    """Refuse sizes below 1, and widths that are not divisible by the heads.

    Raises:
        ValueError: naming the size.
    """
    check_sizes(heads=heads, **widths)
    for name, width in widths.items():
        check_divisible(name, width, heads)


def check_channels(x: Tensor, channels: int, dims: int, name: str = "x") -> None:
    """Raise if x is not a float tensor (batch, channels, …) with this many channels.

    Raises:
        ValueError: with the shape and how to fix it.
    """
    shape, expected = tuple(x.shape), f"(batch, {channels} channels, {AXES[dims]})"
    remedy = None
    if x.dim() == dims + 1:
        remedy = f": write {name}[None] for a batch of one" if shape[0] == channels else f": write {name}[:, None]"
    elif x.dim() != dims + 2:
        remedy = ""
    elif shape[1] != channels:
        order = ", ".join(str(axis) for axis in (0, dims + 1, *range(1, dims + 1)))
        last = f": its channels stand last, write {name}.permute({order})"
        remedy = last if shape[-1] == channels else f": it has {shape[1]} channels"
    if remedy is not None:
        raise ValueError(f"{name} has shape {shape}, expected {expected}{remedy}")
    if not x.is_floating_point():
        raise ValueError(f"{name} holds {x.dtype}, expected floats: write e.g. {name} / 255")
