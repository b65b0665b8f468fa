"""Views of FlashAttention: its walk over tiles of scores, step by step."""

from jaxtyping import Float
from torch import Tensor

from txcourse.explore.view import View
from txcourse.figures.flash import tiles


def flash(
    q: Float[Tensor, "length head_dim"],
    k: Float[Tensor, "length head_dim"],
    v: Float[Tensor, "length head_dim"],
    *,
    tile: int = 2,
) -> View:
    """The walk over the tiles of a small matrix of scores (Dao et al. 2022, algorithm 1, with the queries outside, as
    in FlashAttention 2): running maximum, sum and output after each tile, and what is in fast memory.

    Args:
        q, k, v: of one head, and few positions: each score has a cell of its own.
        tile: queries and keys per tile at first: 1, 2 or 4.

    Raises:
        ValueError: for more than 12 positions, or a tile of another size.
    """
    length, width = q.shape
    if length > 12 or tile not in (1, 2, 4) or tile > length:
        raise ValueError(f"flash shows at most 12 positions in tiles of 1, 2 or 4, got {length} in tiles of {tile}")
    scores = q @ k.T * width**-0.5
    count = -(-length // tile)
    last, columns = count - 1, range(count)
    still = tiles(
        (count, count),
        [(last, column) for column in columns],
        [f"keys {tile * column}–{min(length, tile * (column + 1)) - 1}" for column in columns],
        title="The last queries meet one tile of keys after the other",
        alt=f"{length} queries and keys in tiles of {tile}. The last tile of queries meets one tile of keys after the "
        "other; only the tile at hand is in fast memory.",
        done=[(row, column) for row in range(last) for column in columns],
    )
    data = {"scores": scores, "values": v[:, :3], "width": width, "tile": tile}
    return View(still, "flash", data, title="FlashAttention step by step: one tile of scores at a time")
