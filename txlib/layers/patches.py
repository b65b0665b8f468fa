"""Pictures as tokens: patches, and their positions in a grid (Dosovitskiy et al. 2021, §3.1)."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from txlib.layers.position import Rotary, RotaryLayout, WaveLayout, waves

Grid = tuple[int, int]  # rows and columns


class PatchEmbedding(nn.Module):
    """Cuts pictures into square patches and projects the pixels of each to a token.

    This linear layer is stored and computed as a convolution whose stride is the patch size.
    """

    def __init__(self, channels: int, patch_size: int, d_model: int):
        super().__init__()
        self.projection = nn.Conv2d(channels, d_model, patch_size, stride=patch_size)

    def forward(
        self, pixel_values: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch patches d_model"]:
        """Return the tokens row by row, from the upper left corner, in the dtype of the weights."""
        return self.projection(pixel_values.to(self.projection.weight.dtype)).flatten(2).mT


def coordinates(
    grid: Grid, trained: Grid, device: torch.device | None = None
) -> tuple[Float[Tensor, "patches"], Float[Tensor, "patches"]]:
    """Return the row and the column of each patch, in units of the grid that a model was trained on.

    A finer grid covers the same picture: with twice as many rows, the first two are at -1/4 and 1/4.
    """
    along = [
        (torch.arange(size, device=device, dtype=torch.float32) + 0.5) * (trained_size / size) - 0.5
        for size, trained_size in zip(grid, trained, strict=True)
    ]
    row, column = torch.meshgrid(*along, indexing="ij")
    return row.flatten(), column.flatten()


class LearnedGrid(nn.Module):
    """Adds a learned vector for each special token and each cell of the grid (§3.1).

    For another grid the vectors of the cells are interpolated, as the colors of a picture are (§3.2).

    Args:
        special: number of tokens before the patches.
    """

    def __init__(self, grid: Grid, special: int, d_model: int):
        super().__init__()
        self.grid, self.special = grid, special
        self.weight = nn.Parameter(torch.randn(special + grid[0] * grid[1], d_model) * 0.02)

    def forward(self, x: Float[Tensor, "batch length d_model"], grid: Grid) -> Float[Tensor, "batch length d_model"]:
        """Return x plus the vector of each token."""
        return x + (self.weight if grid == self.grid else self.interpolated(grid))

    def interpolated(self, grid: Grid) -> Float[Tensor, "length d_model"]:
        """Return the vectors for another grid, by bicubic interpolation."""
        special, cells = self.weight.split([self.special, len(self.weight) - self.special])
        cells = cells.T.unflatten(-1, self.grid)[None]  # (1, d_model, rows, columns)
        cells = F.interpolate(cells, size=grid, mode="bicubic", align_corners=False)
        return torch.cat([special, cells[0].flatten(1).T])


class SinusoidalGrid(nn.Module):
    """Adds sines and cosines of the row to one half of the width, of the column to the other; none to special tokens.

    Raises:
        ValueError: when the width is no multiple of 4.
    """

    def __init__(self, grid: Grid, special: int, d_model: int, layout: WaveLayout = "interleaved"):
        super().__init__()
        check_quarters(d_model, "2-D sinusoidal positions need d_model")
        self.grid, self.special, self.layout = grid, special, layout

    def forward(self, x: Float[Tensor, "batch length d_model"], grid: Grid) -> Float[Tensor, "batch length d_model"]:
        """Return x plus the sines and cosines of each patch."""
        half = x.shape[-1] // 2
        axes = coordinates(grid, self.grid, x.device)
        table = torch.cat([waves(axis, half, self.layout) for axis in axes], dim=-1)  # (patches, d_model)
        return x + F.pad(table, (0, 0, self.special, 0)).to(x.dtype)


class RotaryGrid(nn.Module):
    """Turns one half of each head by the row, the other by the column (Heo et al. 2024, "axial"). Special tokens stay.

    A score depends on the distance of two patches in rows and columns. All layers share the module; the model sets
    `now` to the grid of the current pictures.

    Raises:
        ValueError: when head_dim is no multiple of 4.
    """

    def __init__(
        self, grid: Grid, special: int, head_dim: int, *, base: float = 10000.0, layout: RotaryLayout = "interleaved"
    ):
        super().__init__()
        check_quarters(head_dim, "2-D rotary positions need d_model / heads")
        self.grid, self.special, self.head_dim = grid, special, head_dim
        self.axis = Rotary(head_dim // 2, base=base, layout=layout)
        self.now = grid

    def forward(
        self, x: Float[Tensor, "batch heads length head_dim"], offset: int = 0
    ) -> Float[Tensor, "batch heads length head_dim"]:
        """Return x with each patch rotated by its row and column."""
        special, patches = x[:, :, : self.special], x[:, :, self.special :]
        axes = coordinates(self.now, self.grid, x.device)
        halves = zip(patches.chunk(2, dim=-1), axes, strict=True)
        rotated = [self.axis.turn(half, position) for half, position in halves]
        return torch.cat([special, torch.cat(rotated, dim=-1)], dim=-2)


def check_quarters(size: int, what: str) -> None:
    """Refuse a size that cannot be split into pairs of dimensions for two axes."""
    if size % 4:
        raise ValueError(f"{what} to be a multiple of 4, got {size}; choose e.g. {size + -size % 4}")
