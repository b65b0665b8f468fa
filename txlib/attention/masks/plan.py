"""Which blocks of a mask hold no allowed pair, some, or all of them, without a table of all blocks.

Each mask gives its own runs by arithmetic on the corners of the blocks (`grid`); runs of two masks are joined by a
table of what `&` or `|` makes of two states (`run_length`). Where the table can't tell ("some" and "some" may be
nothing), this module looks at the pairs of the block.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import replace as changed

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from txlib.attention.masks.grid import Grid
from txlib.attention.masks.run_length import ALL, ANSWERED, NONE, OPEN, SLICE, SOME, Runs

Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of batch, head, query and key


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
        stretches = zip((first - start).tolist(), ends, runs.state_at(first).tolist(), strict=True)
        return [(begin, end, state == ALL) for begin, end, state in stretches if state != NONE]

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
        looked_at = [
            (allowed & inside).flatten(1).any(1).long() + (allowed | ~inside).flatten(1).all(1).long()
            for allowed, inside in pairs_of(plan, places, rule)
        ]
        state = torch.cat(looked_at)
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
