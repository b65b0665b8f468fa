"""Which blocks of a mask hold no allowed pair, some, or all of them, without a table of all blocks.

Think of all blocks, row after row, sentence after sentence, as one long line. A mask's blocks are then runs of equal
state on that line: a window over a million positions is some ten thousand of them. Each mask gives its own runs by
arithmetic on the corners of the blocks; runs of two masks are joined by a table of what `&` or `|` makes of two
states. Where the table can't tell ("some" and "some" may be nothing), the pairs of that block are looked at.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import replace as changed

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from txlib.attention.masks.spans import Spans, within

SLICE = 2**22  # pairs, or blocks, looked at in one go
NONE, SOME, ALL, OPEN = range(4)  # the states of a block; OPEN: not yet known

# What becomes of the blocks of two masks: table[state of the one, state of the other].
BOTH = torch.tensor([[NONE] * 4, [NONE, OPEN, SOME, OPEN], [NONE, SOME, ALL, OPEN], [NONE, OPEN, OPEN, OPEN]])
EITHER = torch.tensor([[NONE, SOME, ALL, OPEN], [SOME, OPEN, ALL, OPEN], [ALL] * 4, [OPEN, OPEN, ALL, OPEN]])
NOT = torch.tensor([ALL, SOME, NONE, OPEN])
LARGER = torch.tensor([[max(one, other) for other in range(4)] for one in range(4)])
UNSURE = torch.tensor([[state, OPEN if state == SOME else state] for state in range(4)])  # [state, on an edge?]
ANSWERED = torch.tensor([[state] * 4 for state in (NONE, SOME, ALL)] + [list(range(4))])  # [state, answer]

Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of batch, head, query and key


@dataclass(frozen=True, eq=False)
class Runs:
    """The line of blocks of (batch, heads, rows, columns), as runs of equal state.

    Args:
        first: where on the line each run begins, rising from 0.
        state: of each run.
    """

    batch: int
    heads: int
    rows: int
    columns: int
    first: Int[Tensor, "runs"]
    state: Int[Tensor, "runs"]

    @classmethod
    def tidied(cls, batch: int, heads: int, rows: int, columns: int, first: Tensor, state: Tensor) -> "Runs":
        """Runs of which some may be empty, or alike."""
        total = batch * heads * rows * columns
        filled = torch.diff(first, append=torch.tensor([total])) > 0
        first, state = first[filled], state[filled]
        differs = torch.diff(state, prepend=torch.tensor([-1])) != 0
        return cls(batch, heads, rows, columns, first[differs], state[differs])

    @classmethod
    def joined(cls, one: "Runs", other: "Runs", table: Tensor) -> "Runs":
        """Two lines of the same blocks as one, by a table."""
        first = torch.cat([one.first, other.first]).unique()
        state = table[one.state_at(first), other.state_at(first)]
        return cls.tidied(one.batch, one.heads, one.rows, one.columns, first, state)

    @property
    def length(self) -> Int[Tensor, "runs"]:
        """How many blocks each run has."""
        total = self.batch * self.heads * self.rows * self.columns
        return torch.diff(self.first, append=torch.tensor([total]))

    def state_at(self, block: Int[Tensor, "blocks"]) -> Int[Tensor, "blocks"]:
        """The state of blocks, by their place on the line."""
        return self.state[torch.searchsorted(self.first, block, right=True) - 1]

    def renamed(self, table: Tensor) -> "Runs":
        """The same runs with other states."""
        return changed(self, state=table[self.state])

    def expand(self, batch: int, heads: int) -> "Runs":
        """The same for each sentence and each head of a larger batch."""
        if (batch, heads) == (self.batch, self.heads):
            return self
        size, parts = self.rows * self.columns, []
        for number in range(batch * heads):
            sentence, head = number // heads % self.batch, number % heads % self.heads
            start = (sentence * self.heads + head) * size
            inside = self.first[(self.first > start) & (self.first < start + size)]
            place = torch.cat([torch.tensor([start]), inside])
            parts.append((place - start + number * size, self.state_at(place)))
        first, state = (torch.cat(each) for each in zip(*parts, strict=True))
        return Runs.tidied(batch, heads, self.rows, self.columns, first, state)

    def places(self, *states: int) -> Iterator[Int[Tensor, "blocks"]]:
        """The places of all blocks in one of these states, in slices."""
        wanted = torch.isin(self.state, torch.tensor(states))
        first, length = self.first[wanted], self.length[wanted]
        before = length.cumsum(0) - length
        for start in range(0, int(length.sum()), SLICE):
            number = torch.arange(start, min(start + SLICE, int(length.sum())))
            run = torch.searchsorted(before, number, right=True) - 1
            yield first[run] + number - before[run]


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
        rows, columns = self.shape
        batch, heads, _ = allowed.shape
        state = self.summed_up(allowed)  # (batch, heads, columns)
        parts = [self.outer(torch.zeros(rows, dtype=torch.long), each) for each in state.flatten(0, 1)]
        first = torch.cat([part.first + number * rows * columns for number, part in enumerate(parts)])
        return Runs.tidied(batch, heads, rows, columns, first, torch.cat([part.state for part in parts]))

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
        sizes = torch.full_like(count, self.size)
        sizes[..., -1] -= -length % self.size
        return (count > 0).long() + (count == sizes).long()

    def by_pattern(self, size: int, pattern: Bool[Tensor, "query_block key_block"]) -> Runs:
        """Blocks of a mask that is itself one of blocks, of another size."""
        rows, columns = self.shape
        total = torch.nn.functional.pad(pattern.long().cumsum(0).cumsum(1), (1, 0, 1, 0))  # of all above and left
        limits = [torch.tensor(total.shape)[axis] - 1 for axis in (0, 1)]
        key_first = self.key + torch.arange(0, self.key_length, self.size)
        key_last = self.key + (key_first - self.key + self.size).clamp(max=self.key_length) - 1
        firsts, states, end = [], [], torch.tensor([-1])
        for start in range(0, rows, max(1, SLICE // columns)):
            query_first, query_last = (each[start : start + max(1, SLICE // columns)] for each in self.rows())
            top, bottom = query_first // size, query_last // size + 1
            left, right = key_first // size, key_last // size + 1
            area = (bottom - top)[:, None] * (right - left)
            top, bottom = (each.clamp(max=limits[0])[:, None] for each in (top, bottom))
            left, right = (each.clamp(max=limits[1]) for each in (left, right))
            count = total[bottom, right] - total[top, right] - total[bottom, left] + total[top, left]
            state = ((count > 0).long() + (count == area).long()).flatten()
            changes = torch.diff(state, prepend=end).nonzero()[:, 0]
            firsts.append(start * columns + changes)
            states.append(state[changes])
            end = state[-1:]
        return Runs(1, 1, rows, columns, torch.cat(firsts), torch.cat(states))


@dataclass(frozen=True, eq=False)
class BlockPlan:
    """Which blocks hold no allowed pair, some, or all; from `Mask.blocks`.

    batch, heads: 1 where the mask does not depend on them; size: queries and keys of a block.
    """

    query_length: int
    key_length: int
    size: int
    runs: Runs

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, rows of blocks, columns of blocks)."""
        return self.runs.batch, self.runs.heads, self.runs.rows, self.runs.columns

    @property
    def live(self) -> int:
        """How many blocks hold an allowed pair."""
        return int(self.runs.length[self.runs.state != NONE].sum())

    def row(self, row: int, *, batch: int = 0, head: int = 0) -> list[tuple[int, int, bool]]:
        """The live blocks of keys of one block of queries: (first, end, whether all pairs are allowed) of each run."""
        runs = self.runs
        start = ((batch * runs.heads + head) * runs.rows + row) * runs.columns
        inside = runs.first[(runs.first > start) & (runs.first < start + runs.columns)]
        first = torch.cat([torch.tensor([start]), inside])
        ends = [*(inside - start).tolist(), runs.columns]
        found = zip((first - start).tolist(), ends, runs.state_at(first).tolist(), strict=True)
        return [(begin, end, state == ALL) for begin, end, state in found if state != NONE]

    def index(self) -> tuple[Int[Tensor, "rows"], Int[Tensor, "live"], Bool[Tensor, "live"]]:
        """All live blocks, row after row of all heads of all sentences.

        Returns:
            how many each row has (batch · heads · rows of blocks), the column of each block, and whether all of its
            pairs are allowed.
        """
        place = torch.cat([torch.zeros(0, dtype=torch.long), *self.runs.places(SOME, ALL)])
        lines = self.runs.batch * self.runs.heads * self.runs.rows
        counts = (place // self.runs.columns).bincount(minlength=lines)
        return counts, place % self.runs.columns, self.runs.state_at(place) == ALL

    def table(self, kind: str) -> tuple[Int[Tensor, "batch heads rows"], Int[Tensor, "batch heads rows columns"]]:
        """How many blocks of a kind, "some" or "all", each row has, and their columns first in a row of all columns:
        what FlexAttention asks for. Needs memory for all blocks."""
        place = torch.cat([torch.zeros(0, dtype=torch.long), *self.runs.places({"some": SOME, "all": ALL}[kind])])
        chosen = torch.zeros(self.shape, dtype=torch.bool)
        chosen.view(-1)[place] = True
        order = (~chosen).to(torch.int8).argsort(dim=-1, stable=True)
        return chosen.sum(dim=-1).int(), order.int()

    def dense(self) -> Int[Tensor, "batch heads rows columns"]:
        """The state of each block: 0 none, 1 some, 2 all. Needs memory for all blocks."""
        return self.runs.state.repeat_interleave(self.runs.length).view(self.shape)

    def pairs(self, rule: Predicate) -> int:
        """How many pairs are allowed by the rule whose plan this is."""
        total = sum(int(areas(self, place).sum()) for place in self.runs.places(ALL))
        for place in self.runs.places(SOME):
            total += sum(int((allowed & inside).sum()) for allowed, inside in pairs_of(self, place, rule))
        return total


def finish(runs: Runs, grid: Grid, rule: Predicate) -> BlockPlan:
    """The plan, with the pairs of open blocks looked at."""
    plan = BlockPlan(grid.query_length, grid.key_length, grid.size, runs)
    firsts, states, end = [], [], torch.tensor([-1])
    for places in runs.places(OPEN):
        found = [
            (allowed & inside).flatten(1).any(1).long() + (allowed | ~inside).flatten(1).all(1).long()
            for allowed, inside in pairs_of(plan, places, rule)
        ]
        state = torch.cat(found)
        changes = torch.diff(state, prepend=end).nonzero()[:, 0]
        firsts.append(places[changes])
        states.append(state[changes])
        end = state[-1:]
    if not firsts:
        return plan
    first, state = torch.cat(firsts), torch.cat(states)
    if first[0] > 0:
        first, state = torch.cat([torch.tensor([0]), first]), torch.cat([torch.tensor([NONE]), state])
    answers = changed(runs, first=first, state=state)  # they count where the mask's own runs are open
    return changed(plan, runs=Runs.joined(runs, answers, ANSWERED))


def pairs_of(
    plan: BlockPlan, places: Int[Tensor, "blocks"], rule: Predicate
) -> Iterator[tuple[Bool[Tensor, "some query key"], Bool[Tensor, "some query key"]]]:
    """For slices of these blocks: which pairs the rule allows, and which lie inside the sequences."""
    within_block = torch.arange(plan.size)
    for place in places.split(max(1, SLICE // plan.size**2)):
        batch, head, row, column = torch.unravel_index(place, plan.shape)
        query, key = (each[:, None] * plan.size + within_block for each in (row, column))  # (some, size)
        inside = (query < plan.query_length)[:, :, None] & (key < plan.key_length)[:, None, :]
        query, key = query.clamp(max=plan.query_length - 1), key.clamp(max=plan.key_length - 1)
        allowed = rule(batch[:, None, None], head[:, None, None], query[:, :, None], key[:, None, :])
        yield allowed.expand(inside.shape), inside


def areas(plan: BlockPlan, places: Int[Tensor, "blocks"]) -> Int[Tensor, "blocks"]:
    """Pairs of each of these blocks."""
    *_, row, column = torch.unravel_index(places, plan.shape)
    return (plan.query_length - row * plan.size).clamp(max=plan.size) * (plan.key_length - column * plan.size).clamp(
        max=plan.size
    )
