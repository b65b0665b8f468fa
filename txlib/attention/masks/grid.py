"""What arithmetic on the corners of blocks says about a mask, without looking at a pair."""

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
        """The same blocks at later positions."""
        return changed(self, query=self.query + queries, key=self.key + keys)

    def queries(self) -> Int[Tensor, "queries"]:
        """Position of each query."""
        return torch.arange(self.query, self.query + self.query_length)

    def keys(self) -> Int[Tensor, "keys"]:
        """Position of each key."""
        return torch.arange(self.key, self.key + self.key_length)

    def rows(self) -> tuple[Int[Tensor, "rows"], Int[Tensor, "rows"]]:
        """Positions of the first and the last query of each row of blocks."""
        first = torch.arange(0, self.query_length, self.size)
        return self.query + first, self.query + (first + self.size).clamp(max=self.query_length) - 1

    def open(self, batch: int = 1, heads: int = 1) -> Runs:
        """Nothing is known."""
        return Runs(batch, heads, *self.shape, torch.tensor([0]), torch.tensor([OPEN]))

    def by_range(self, live_low: Tensor, live_high: Tensor, full_low: Tensor, full_high: Tensor) -> Runs:
        """For each row: keys from live_low to live_high are seen by one of its queries at least, keys from full_low to
        full_high by all."""
        rows, columns = self.shape
        live_low, full_low = ((low - self.key).clamp(min=0) for low in (live_low, full_low))
        live_high, full_high = ((high - self.key).clamp(max=self.key_length - 1) for high in (live_high, full_high))
        last = torch.where(full_high == self.key_length - 1, columns, (full_high + 1) // self.size)
        start = live_low // self.size
        end = torch.where(live_low <= live_high, live_high // self.size + 1, start)
        full_start = -(-full_low // self.size)
        full_end = torch.where(full_low <= full_high, last.maximum(full_start), full_start)
        full_start, full_end = (torch.where(full_start < full_end, each, end) for each in (full_start, full_end))
        zero = torch.zeros_like(start)
        start, end, full_start, full_end = (each.clamp(max=columns) for each in (start, end, full_start, full_end))
        first = torch.stack([zero, start, full_start, full_end, end], dim=1) + columns * torch.arange(rows)[:, None]
        state = torch.tensor([NONE, SOME, ALL, SOME, NONE]).expand(rows, -1)
        return Runs.tidied(1, 1, rows, columns, first.flatten(), state.flatten())

    def by_distance(self, spans: Spans) -> Runs:
        """Blocks of a mask that allows these distances of query - key.

        A block of size × size holds 2 · size - 1 distances in a row. So a gap that is shorter hides no block, and
        many short spans close together, as of a dilated window, are live as one. Only blocks that the ends of the
        sequences cut off may fall into such a gap; they are left open.
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
        """1 for blocks that an end of the sequences cuts off, 0 for the rest."""
        rows, columns = self.shape
        cut_row, cut_column = self.query_length % self.size > 0, self.key_length % self.size > 0
        across, down = torch.zeros(rows, dtype=torch.long), torch.zeros(columns, dtype=torch.long)
        across[-1], down[-1] = cut_row, cut_column
        return self.outer(across, down)

    def by_key(self, allowed: Bool[Tensor, "batch heads key"]) -> Runs:
        """Blocks of a mask that treats all queries alike."""
        rows, _ = self.shape
        batch, heads, _ = allowed.shape
        state = self.summed_up(allowed)  # (batch, heads, columns)
        parts = [self.outer(torch.zeros(rows, dtype=torch.long), each) for each in state.flatten(0, 1)]
        return Runs.stacked(parts, batch=batch, heads=heads)

    def by_query(self, allowed: Bool[Tensor, "batch heads query"]) -> Runs:
        """Blocks of a mask that treats all keys alike."""
        _, columns = self.shape
        parts = [
            self.outer(each, torch.zeros(columns, dtype=torch.long)) for each in self.summed_up(allowed).flatten(0, 1)
        ]
        return Runs.stacked(parts, batch=allowed.shape[0], heads=allowed.shape[1])

    def by_lines(self, queries: Bool[Tensor, "query"], keys: Bool[Tensor, "key"]) -> Runs:
        """Blocks of a mask by which these queries see everything, and everything sees these keys."""
        return self.outer(self.summed_up(queries), self.summed_up(keys))

    def outer(self, rows: Int[Tensor, "rows"], columns: Int[Tensor, "columns"]) -> Runs:
        """The larger of the states of a block's row and of its column."""
        starts = torch.diff(columns, prepend=torch.tensor([-1])).nonzero()[:, 0]  # of runs of equal columns
        down = torch.arange(len(rows))[:, None] * len(columns)
        state = rows[:, None].maximum(columns[starts])
        return Runs.tidied(1, 1, len(rows), len(columns), (down + starts).flatten(), state.flatten())

    def summed_up(self, allowed: Bool[Tensor, "*some length"]) -> Int[Tensor, "*some blocks"]:
        """The state of each stretch of `size` positions."""
        length = allowed.shape[-1]
        padded = torch.nn.functional.pad(allowed, (0, -length % self.size))
        count = padded.unflatten(-1, (-1, self.size)).sum(dim=-1)
        return (count > 0).long() + (count == self.lines(length)).long()

    def by_pattern(self, size: int, pattern: Bool[Tensor, "query_block key_block"]) -> Runs:
        """Blocks of a mask that is itself one of blocks, of another size."""
        rows, columns = self.shape
        total = torch.nn.functional.pad(pattern.long().cumsum(0).cumsum(1), (1, 0, 1, 0))  # of all above and left
        limits = [length - 1 for length in total.shape]
        key_first = self.key + torch.arange(0, self.key_length, self.size)
        key_last = self.key + (key_first - self.key + self.size).clamp(max=self.key_length) - 1
        firsts, states, end = [], [], torch.tensor([-1])
        for start in range(0, rows, max(1, SLICE // columns)):
            query_first, query_last = (each[start : start + max(1, SLICE // columns)] for each in self.rows())
            top, bottom = query_first // size, query_last // size + 1
            left, right = key_first // size, key_last // size + 1
            area = (bottom - top)[:, None] * (right - left)
            top, bottom = (each.clamp(0, limits[0])[:, None] for each in (top, bottom))
            left, right = (each.clamp(0, limits[1]) for each in (left, right))
            count = total[bottom, right] - total[top, right] - total[bottom, left] + total[top, left]
            state = ((count > 0).long() + (count == area).long()).flatten()
            changes = torch.diff(state, prepend=end).nonzero()[:, 0]
            firsts.append(start * columns + changes)
            states.append(state[changes])
            end = state[-1:]
        return Runs(1, 1, rows, columns, torch.cat(firsts), torch.cat(states))

    def by_tiles(self, size: int, row: Int[Tensor, "tiles"], column: Int[Tensor, "tiles"]) -> Runs:
        """Blocks of a mask that allows these blocks of another size, each given once: their areas are added up."""
        rows, columns = self.shape
        sides = []  # of each tile: for every line of ours that it meets, the line and on how many positions
        for tile, start, length in (row, self.query, self.query_length), (column, self.key, self.key_length):
            low, high = (tile * size - start).clamp(min=0), (tile * size - start + size).clamp(max=length)
            line = low[:, None] // self.size + torch.arange(-(-size // self.size) + 1)  # (tiles, lines)
            shared = high[:, None].minimum(line * self.size + self.size) - low[:, None].maximum(line * self.size)
            sides.append((line, shared.clamp(min=0)))
        (down, height), (across, width) = sides
        area = height[:, :, None] * width[:, None, :]  # (tiles, lines down, lines across)
        place = down[:, :, None] * columns + across[:, None, :]
        place, tile_of = place[area > 0].unique(return_inverse=True)
        total = torch.zeros_like(place).index_add(0, tile_of, area[area > 0])
        full = self.lines(self.query_length)[place // columns] * self.lines(self.key_length)[place % columns]
        state = torch.where(total == full, ALL, SOME)
        first = torch.cat([torch.tensor([0]), torch.stack([place, place + 1], dim=1).flatten()])
        state = torch.cat([torch.tensor([NONE]), torch.stack([state, torch.full_like(state, NONE)], dim=1).flatten()])
        return Runs.tidied(1, 1, rows, columns, first, state)

    def lines(self, length: int) -> Int[Tensor, "blocks"]:
        """How many positions each stretch of `size` has; the last may have fewer."""
        return (length - torch.arange(0, length, self.size)).clamp(max=self.size)
