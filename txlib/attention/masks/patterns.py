"""The parts of sparse patterns: random and global blocks, strides, columns, packed documents, squares of pixels."""

from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from txlib.attention.masks.grid import Grid
from txlib.attention.masks.mask import Mask
from txlib.attention.masks.run_length import ALL, NONE, SLICE, SOME, Runs


@dataclass(frozen=True, eq=False, repr=False)
class StridedKeys(Mask, kind="strided_keys"):
    """See `strided_keys`."""

    stride: int

    least = {"stride": 1}

    def at(self, batch, head, query, key):
        return (query - key) % self.stride == 0

    def own_runs(self, grid: Grid) -> Runs:
        first = grid.query - grid.key - grid.key_length + 1  # the least distance
        steps = range(first + -first % self.stride, first + grid.query_length + grid.key_length - 1, self.stride)
        if self.stride == 1:
            return grid.by_distance(((steps.start, steps.stop),))
        return grid.by_distance(tuple((step, step + 1) for step in steps))


@dataclass(frozen=True, eq=False, repr=False)
class SummaryColumns(Mask, kind="summary_columns"):
    """See `summary_columns`."""

    stride: int
    columns: int
    only_keys = True

    least = {"stride": 1, "columns": 1}

    def __post_init__(self):
        super().__post_init__()
        if self.columns > self.stride:
            raise ValueError(
                f"summary_columns needs 1 <= columns <= stride, got columns={self.columns}, stride={self.stride}"
            )

    def at(self, batch, head, query, key):
        return key % self.stride >= self.stride - self.columns


class NeedsLength(Mask):
    """A mask that depends on the number of keys, which `sized` sets. Subclasses have the fields `size`, of a block, and
    `key_length`, None until it is known."""

    size: int
    key_length: int | None

    def sized(self, key_length: int) -> Mask:
        this: Any = self  # a dataclass, as all that have these fields
        return replace(this, key_length=key_length) if self.key_length is None else self

    @property
    def blocks_of_keys(self) -> int:
        """Number of blocks of keys; the last may be smaller.

        Raises:
            ValueError: when the number of keys is not known.
        """
        if self.key_length is None:
            raise ValueError(f"{self} depends on the number of keys: ask mask.sized(key_length)")
        return -(-self.key_length // self.size)


@dataclass(frozen=True, eq=False, repr=False)
class GlobalBlocks(NeedsLength, kind="global_blocks"):
    """See `global_blocks`."""

    size: int
    first: int
    last: int
    key_length: int | None = None

    least = {"size": 1, "first": 0, "last": 0}

    def at(self, batch, head, query, key):
        return self.chosen(query) | self.chosen(key)

    def chosen(self, position: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Return whether each position is in one of the blocks."""
        block, count = position // self.size, self.blocks_of_keys
        outside = (block < 0) | (block >= count)
        return ((block < self.first) | (block >= count - self.last)) & ~outside

    def own_runs(self, grid: Grid) -> Runs:
        return grid.by_rows_and_columns(self.chosen(grid.queries()), self.chosen(grid.keys()))

    def __repr__(self) -> str:
        return f"global_blocks({self.size}, {self.first}, {self.last})"


@dataclass(frozen=True, eq=False, repr=False)
class RandomBlocks(NeedsLength, kind="random_blocks"):
    """See `random_blocks`."""

    size: int
    per_row: int
    seed: int
    window: int = 0
    first: int = 0
    last: int = 0
    heads: int = 1
    key_length: int | None = None

    least = {
        "size": 1,
        "per_row": 0,
        "seed": -inf,
        "window": 0,
        "first": 0,
        "last": 0,
        "heads": 1,
    }

    def __post_init__(self):
        super().__post_init__()
        if self.window and self.window % 2 == 0:
            raise ValueError(f"random_blocks needs a window of 0 or an odd number of blocks, got window={self.window}")

    def at(self, batch, head, query, key):
        row, column = query // self.size, key // self.size
        seen = torch.zeros_like(row + column + head, dtype=torch.bool)
        for drawn, exists in self.draws(head % self.heads, row.clamp(min=0)):
            seen = seen | ((column == drawn) & exists & (row >= 0))
        return seen

    def draws(self, head: Tensor, row: Tensor) -> list[tuple[Int[Tensor, "..."], Bool[Tensor, "..."]]]:
        """Return the columns of blocks that each row of each head draws, and whether one was left to draw.

        Robert Floyd's algorithm draws without repetition, here for all rows at once: each draw is from the first few
        choices, one more each time, and takes the newest choice if the result was drawn before.
        """
        count = self.blocks_of_keys
        first, end = self.first, max(self.first, count - self.last)  # columns outside are not drawn, and neither are …
        low, high = (row - self.window // 2, row + self.window // 2 + 1) if self.window else (row, row)
        low, high = low.clamp(first, end), high.clamp(first, end)  # … those from low to high, the window
        choices = (low - first) + (end - high)
        ranks: list[tuple[Tensor, Tensor]] = []
        for number in range(self.per_row):
            newest = choices - self.per_row + number
            rank = hashed(self.seed, head, row, number) % (newest + 1).clamp(min=1)
            for earlier, exists in list(ranks):
                rank = torch.where(exists & (rank == earlier), newest, rank)
            ranks.append((rank, newest >= 0))
        return [
            (torch.where(first + rank < low, first + rank, rank - low + first + high), exists) for rank, exists in ranks
        ]

    def own_runs(self, grid: Grid) -> Runs:
        end = grid.query + grid.query_length
        rows = torch.arange(max(0, grid.query) // self.size, -(-max(0, end) // self.size))
        parts = []
        for head in range(self.heads):
            drawn = self.draws(torch.tensor(head), rows)
            nothing = torch.zeros(0, dtype=torch.long)
            row = torch.cat([nothing, *(rows[exists] for _, exists in drawn)])
            column = torch.cat([nothing, *(column[exists] for column, exists in drawn)])
            parts.append(grid.by_tiles(self.size, row, column))
        return Runs.stacked(parts, heads=self.heads)

    def __repr__(self) -> str:
        avoided = f", {self.window}, {self.first}, {self.last}" if self.window or self.first or self.last else ""
        heads = f", heads={self.heads}" if self.heads > 1 else ""
        return f"random_blocks({self.size}, {self.per_row}, {self.seed}{avoided}{heads})"


def hashed(seed: int, head: Int[Tensor, "..."], row: Int[Tensor, "..."], number: int) -> Int[Tensor, "..."]:
    """Return a pseudorandom integer from 0 to 2³² - 1 for each head and row, the same on every device: the bits are
    mixed by shifts and products, as hash functions do."""
    mixed = head * 0x9E3779B1 + number * 0x85EBCA77 + seed * 0xC2B2AE3D % 2**32  # odd numbers, far apart
    for summand in (row, 0):
        mixed = (mixed + summand) & 0xFFFFFFFF
        mixed = ((mixed ^ (mixed >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
        mixed = ((mixed ^ (mixed >> 15)) * 0x735A2D97) & 0xFFFFFFFF
        mixed = mixed ^ (mixed >> 15)
    return mixed


@dataclass(frozen=True, eq=False, repr=False)
class Documents(Mask, kind="documents"):
    """See `documents`."""

    ids: Any  # a tensor or rows of numbers; kept as a tensor that counts each row's documents, -1 for no document

    def __post_init__(self):
        ids = torch.as_tensor(self.ids)
        if ids.dim() != 2 or not len(ids) or ids.is_floating_point():
            raise ValueError(
                f"documents needs integers (batch, length), got {ids.dtype} of shape {tuple(ids.shape)}; "
                "write e.g. documents([3, 5])"
            )
        if not ids.shape[1]:
            ids = ids.new_full((len(ids), 1), -1)  # no document, as after the last one
        starts = torch.diff(ids, dim=1, prepend=ids[:, :1]) != 0
        object.__setattr__(self, "ids", torch.where(ids < 0, -1, starts.cumsum(dim=1)))

    @property
    def batch(self) -> int:
        return len(self.ids)

    def at(self, batch, head, query, key):
        of_query, of_key = self.document(batch, query), self.document(batch, key)
        return (of_query == of_key) & (of_query >= 0)

    def document(self, batch: Int[Tensor, "..."], position: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Return the number of the document that each position is in, -1 outside."""
        last = self.ids.shape[1] - 1
        number = self.ids.to(position.device)[batch % self.batch, position.clamp(min=0, max=last)]
        return torch.where((position >= 0) & (position <= last), number, -1)

    def own_runs(self, grid: Grid) -> Runs:
        return Runs.stacked([self.runs_of(ids.cpu(), grid) for ids in self.ids], batch=self.batch)

    def runs_of(self, ids: Int[Tensor, "length"], grid: Grid) -> Runs:
        """Return the runs of one sentence: a row of blocks sees all from the start of its first query's document to the
        end of its last query's, and all its queries see the same if that is one document."""
        inside = int((ids >= 0).sum())  # documents come first
        first, last = grid.rows()
        seen = (first < inside) & (last >= 0)
        number = [ids[query.clamp(0, max(0, inside - 1))] if inside else query for query in (first, last)]
        start = torch.searchsorted(ids[:inside], number[0])
        end = torch.searchsorted(ids[:inside], number[1], right=True) - 1
        single = seen & (number[0] == number[1]) & (first >= 0) & (last < inside)
        return grid.by_range(
            torch.where(seen, start, 0),
            torch.where(seen, end, -1),
            torch.where(single, start, 0),
            torch.where(single, end, -1),
        )

    def __repr__(self) -> str:
        batch, length = self.ids.shape
        return f"documents({batch}×{length})"


@dataclass(frozen=True, eq=False, repr=False)
class Window2d(Mask, kind="window_2d"):
    """See `window_2d`."""

    width: int
    radius: int

    least = {"width": 1, "radius": 0}

    def at(self, batch, head, query, key):
        rows = query // self.width - key // self.width
        columns = query % self.width - key % self.width
        return (rows.abs() <= self.radius) & (columns.abs() <= self.radius)

    def reach(self) -> tuple[int | float, int | float]:
        farthest = self.radius * self.width + min(self.radius, self.width - 1)
        return -farthest, farthest

    def own_runs(self, grid: Grid) -> Runs:
        """See `Mask.own_runs`. Consecutive positions are at most three rectangles of the image, and two rectangles see
        each other where rows and columns are near enough. Only keys from `radius` rows above to `radius` rows below are
        checked."""
        rows, columns = grid.shape
        first, last = grid.rows()
        start = ((first // self.width - self.radius) * self.width - grid.key) // grid.size
        end = ((last // self.width + self.radius + 1) * self.width - 1 - grid.key) // grid.size + 1
        start, end = start.clamp(0, columns), end.clamp(0, columns)
        most = max(1, int((end - start).max()))
        row_start = torch.arange(rows)[:, None] * columns
        firsts, states = [], []
        for row in torch.arange(rows).split(max(1, SLICE // most)):
            block = start[row, None] + torch.arange(most)  # (some rows, most)
            key = grid.key + block * grid.size
            key_last = (key + grid.size).clamp(max=grid.key + grid.key_length) - 1
            state = self.state(first[row, None], last[row, None], key, key_last)
            state = torch.where(block < end[row, None], state, NONE)
            nothing = torch.full_like(state[:, :1], NONE)
            column = torch.cat([torch.zeros_like(nothing), block, block[:, -1:] + 1], dim=1).clamp(max=columns)
            firsts.append((row_start[row] + column).flatten())
            states.append(torch.cat([nothing, state, nothing], dim=1).flatten())
        return Runs.tidied(1, 1, rows, columns, torch.cat(firsts), torch.cat(states))

    def state(
        self, first: Int[Tensor, "..."], last: Int[Tensor, "..."], start: Int[Tensor, "..."], stop: Int[Tensor, "..."]
    ) -> Int[Tensor, "..."]:
        """Return the state of the pairs of queries from first to last with keys from start to stop."""
        sees_some, sees_all = [], []
        for top, bottom, left, right in self.rectangles(first, last):
            for upper, lower, near, far in self.rectangles(start, stop):
                exists = (top <= bottom) & (upper <= lower)
                gap = (upper - bottom).maximum(top - lower).maximum(near - right).maximum(left - far)
                widest = (lower - top).maximum(bottom - upper).maximum(far - left).maximum(right - near)
                sees_some.append(exists & (gap <= self.radius))
                sees_all.append(~exists | (widest <= self.radius))
        return torch.where(torch.stack(sees_all).all(0), ALL, torch.where(torch.stack(sees_some).any(0), SOME, NONE))

    def rectangles(
        self, first: Int[Tensor, "..."], last: Int[Tensor, "..."]
    ) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Return positions from first to last as rectangles (top, bottom, left, right) of the image: their part of the
        first row, the complete rows between, and their part of the last row. Bottom is above top in an empty one."""
        top, bottom, edge = first // self.width, last // self.width, torch.full_like(first, self.width - 1)
        within = top == bottom
        return [
            (top, top, first % self.width, torch.where(within, last % self.width, edge)),
            (top + 1, bottom - 1, torch.zeros_like(edge), edge),
            (torch.where(within, bottom + 1, bottom), bottom, torch.zeros_like(edge), last % self.width),
        ]
