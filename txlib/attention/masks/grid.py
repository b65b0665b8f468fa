"""The states of a mask's blocks, by arithmetic on their corners, without looking at a pair."""

from dataclasses import dataclass
from dataclasses import replace as changed

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from txlib.attention.masks.run_length import ALL, LARGER, NONE, OPEN, SLICE, SOME, UNSURE, Runs
from txlib.attention.masks.spans import Spans, within


@dataclass(frozen=True)
class Grid:
    """Blocks of `size` queries and `size` keys; the last of each may be smaller.

    Args:
        query, key: positions of the first query and the first key.
    """

    query_length: int
    key_length: int
    size: int
    query: int = 0
    key: int = 0

    def __post_init__(self):
        if self.query_length < 1 or self.key_length < 1 or self.size < 1:
            raise ValueError(
                f"blocks need at least one query, one key and a size >= 1, got {self.query_length} queries, "
                f"{self.key_length} keys and size={self.size}"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of blocks."""
        return -(-self.query_length // self.size), -(-self.key_length // self.size)

    def moved(self, queries: int, keys: int) -> "Grid":
        """Return the same blocks at later positions."""
        return changed(self, query=self.query + queries, key=self.key + keys)

    def queries(self) -> Int[Tensor, "queries"]:
        """Return the position of each query."""
        return torch.arange(self.query, self.query + self.query_length)

    def keys(self) -> Int[Tensor, "keys"]:
        """Return the position of each key."""
        return torch.arange(self.key, self.key + self.key_length)

    def rows(self) -> tuple[Int[Tensor, "rows"], Int[Tensor, "rows"]]:
        """Return the positions of the first and the last query of each row of blocks."""
        first = torch.arange(0, self.query_length, self.size)
        return self.query + first, self.query + (first + self.size).clamp(max=self.query_length) - 1

    def open(self, batch: int = 1, heads: int = 1) -> Runs:
        """Return runs in which every block is open."""
        return Runs(batch, heads, *self.shape, torch.tensor([0]), torch.tensor([OPEN]))

    def by_range(self, live_low: Tensor, live_high: Tensor, full_low: Tensor, full_high: Tensor) -> Runs:
        """Return the blocks of a mask that is a range of keys for each row: at least one query of the row sees keys
        from live_low to live_high, and all of them see keys from full_low to full_high."""
        rows, columns = self.shape
        live_low, full_low = ((low - self.key).clamp(min=0) for low in (live_low, full_low))
        live_high, full_high = ((high - self.key).clamp(max=self.key_length - 1) for high in (live_high, full_high))
        last = torch.where(full_high == self.key_length - 1, columns, (full_high + 1) // self.size)
        start = live_low // self.size
        end = torch.where(live_low <= live_high, live_high // self.size + 1, start)
        full_start = -(-full_low // self.size)
        full_end = torch.where(full_low <= full_high, last.maximum(full_start), full_start)
        full_start, full_end = (torch.where(full_start < full_end, bound, end) for bound in (full_start, full_end))
        zero = torch.zeros_like(start)
        start, end, full_start, full_end = (bound.clamp(max=columns) for bound in (start, end, full_start, full_end))
        first = torch.stack([zero, start, full_start, full_end, end], dim=1) + columns * torch.arange(rows)[:, None]
        state = torch.tensor([NONE, SOME, ALL, SOME, NONE]).expand(rows, -1)
        return Runs.tidied(1, 1, rows, columns, first.flatten(), state.flatten())

    def by_distance(self, spans: Spans) -> Runs:
        """Return the blocks of a mask that allows these distances of query - key.

        A block of size × size has 2 · size - 1 consecutive distances. So a shorter gap hides no block, and many short
        spans close together, as in a dilated window, are treated as one. Only blocks that the ends of the sequences
        cut off may fall into such a gap; they stay open.
        """
        rows, columns = self.shape
        first, last = self.rows()
        ahead = self.query - self.key  # distance of the first pair
        spans = within(spans, ahead - self.key_length + 1, ahead + self.query_length - 1)
        wide, long = 2 * self.size - 1, []
        merged: list[tuple[int | float, int | float]] = []
        for low, high in spans:
            if merged and low - merged[-1][1] < wide:
                merged[-1] = merged[-1][0], high
            else:
                merged.append((low, high))
            if high - low >= wide:
                long.append((low, high))
        nothing = torch.zeros_like(first), torch.zeros_like(first) - 1
        parts = [self.by_range(first - high + 1, last - low, *nothing) for low, high in merged]
        parts += [self.by_range(first - high + 1, last - low, last - high + 1, first - low) for low, high in long]
        if not parts:
            return Runs(1, 1, rows, columns, torch.tensor([0]), torch.tensor([NONE]))
        while len(parts) > 1:  # pairwise: each run is copied few times
            pairs = zip(parts[::2], parts[1::2], strict=False)
            parts = [Runs.joined(*pair, LARGER) for pair in pairs] + parts[len(parts) // 2 * 2 :]
        return Runs.joined(parts[0], self.edges(), UNSURE)

    def edges(self) -> Runs:
        """Return 1 for blocks that an end of the sequences cuts off, 0 for the rest."""
        rows, columns = self.shape
        cut_row, cut_column = self.query_length % self.size > 0, self.key_length % self.size > 0
        across, down = torch.zeros(rows, dtype=torch.long), torch.zeros(columns, dtype=torch.long)
        across[-1], down[-1] = cut_row, cut_column
        return self.outer(across, down)

    def by_key(self, allowed: Bool[Tensor, "batch heads key"]) -> Runs:
        """Return the blocks of a mask that treats all queries alike."""
        rows, _ = self.shape
        batch, heads, _ = allowed.shape
        state = self.summarize(allowed)  # (batch, heads, columns)
        parts = [self.outer(torch.zeros(rows, dtype=torch.long), states) for states in state.flatten(0, 1)]
        return Runs.stacked(parts, batch=batch, heads=heads)

    def by_query(self, allowed: Bool[Tensor, "batch heads query"]) -> Runs:
        """Return the blocks of a mask that treats all keys alike."""
        _, columns = self.shape
        state = self.summarize(allowed)  # (batch, heads, rows)
        parts = [self.outer(states, torch.zeros(columns, dtype=torch.long)) for states in state.flatten(0, 1)]
        return Runs.stacked(parts, batch=allowed.shape[0], heads=allowed.shape[1])

    def by_rows_and_columns(self, queries: Bool[Tensor, "query"], keys: Bool[Tensor, "key"]) -> Runs:
        """Return the blocks of a mask by which these queries see everything, and everything sees these keys."""
        return self.outer(self.summarize(queries), self.summarize(keys))

    def outer(self, rows: Int[Tensor, "rows"], columns: Int[Tensor, "columns"]) -> Runs:
        """Return the larger of the states of a block's row and of its column."""
        starts = torch.diff(columns, prepend=torch.tensor([-1])).nonzero()[:, 0]  # of runs of equal columns
        down = torch.arange(len(rows))[:, None] * len(columns)
        state = rows[:, None].maximum(columns[starts])
        return Runs.tidied(1, 1, len(rows), len(columns), (down + starts).flatten(), state.flatten())

    def summarize(self, allowed: Bool[Tensor, "*some length"]) -> Int[Tensor, "*some blocks"]:
        """Return the state of each group of `size` positions."""
        length = allowed.shape[-1]
        padded = torch.nn.functional.pad(allowed, (0, -length % self.size))
        count = padded.unflatten(-1, (-1, self.size)).sum(dim=-1)
        return (count > 0).long() + (count == self.lengths(length)).long()

    def by_pattern(self, size: int, pattern: Bool[Tensor, "query_block key_block"]) -> Runs:
        """Return the blocks of a mask that is itself a pattern of blocks, of another size."""
        rows, columns = self.shape
        total = torch.nn.functional.pad(pattern.long().cumsum(0).cumsum(1), (1, 0, 1, 0))  # of all above and left
        limits = [length - 1 for length in total.shape]
        key_first = self.key + torch.arange(0, self.key_length, self.size)
        key_last = self.key + (key_first - self.key + self.size).clamp(max=self.key_length) - 1
        firsts, states, end = [], [], torch.tensor([-1])
        for start in range(0, rows, max(1, SLICE // columns)):
            query_first, query_last = (positions[start : start + max(1, SLICE // columns)] for positions in self.rows())
            top, bottom = query_first // size, query_last // size + 1
            left, right = key_first // size, key_last // size + 1
            area = (bottom - top)[:, None] * (right - left)
            top, bottom = (edge.clamp(0, limits[0])[:, None] for edge in (top, bottom))
            left, right = (edge.clamp(0, limits[1]) for edge in (left, right))
            count = total[bottom, right] - total[top, right] - total[bottom, left] + total[top, left]
            state = ((count > 0).long() + (count == area).long()).flatten()
            changes = torch.diff(state, prepend=end).nonzero()[:, 0]
            firsts.append(start * columns + changes)
            states.append(state[changes])
            end = state[-1:]
        return Runs(1, 1, rows, columns, torch.cat(firsts), torch.cat(states))

    def by_tiles(self, size: int, row: Int[Tensor, "tiles"], column: Int[Tensor, "tiles"]) -> Runs:
        """Return the blocks of a mask that allows these tiles of another size, each listed once. Areas are added up."""
        rows, columns = self.shape
        sides = []  # for each tile: the rows (then the columns) of blocks that it overlaps, and on how many positions
        for tile, start, length in (row, self.query, self.query_length), (column, self.key, self.key_length):
            low, high = (tile * size - start).clamp(min=0), (tile * size - start + size).clamp(max=length)
            block = low[:, None] // self.size + torch.arange(-(-size // self.size) + 1)  # (tiles, blocks)
            shared = high[:, None].minimum(block * self.size + self.size) - low[:, None].maximum(block * self.size)
            sides.append((block, shared.clamp(min=0)))
        (down, height), (across, width) = sides
        area = height[:, :, None] * width[:, None, :]  # (tiles, blocks down, blocks across)
        index = down[:, :, None] * columns + across[:, None, :]
        index, inverse = index[area > 0].unique(return_inverse=True)
        total = torch.zeros_like(index).index_add(0, inverse, area[area > 0])
        full = self.lengths(self.query_length)[index // columns] * self.lengths(self.key_length)[index % columns]
        state = torch.where(total == full, ALL, SOME)
        first = torch.cat([torch.tensor([0]), torch.stack([index, index + 1], dim=1).flatten()])
        state = torch.cat([torch.tensor([NONE]), torch.stack([state, torch.full_like(state, NONE)], dim=1).flatten()])
        return Runs.tidied(1, 1, rows, columns, first, state)

    def lengths(self, length: int) -> Int[Tensor, "blocks"]:
        """Return how many positions each group of `size` has; the last may have fewer."""
        return (length - torch.arange(0, length, self.size)).clamp(max=self.size)
