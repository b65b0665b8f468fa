"""Which blocks of a mask have no allowed pair, some, or all of them, without a table of all blocks.

Each mask computes its runs by arithmetic on the corners of the blocks (`grid`); runs of two masks are joined by a
table of what `&` or `|` makes of two states (`run_length`). Where the table can't tell ("some" and "some" may be
nothing), this module checks the pairs of the block.
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
    """Which blocks have no allowed pair, some, or all; made by `Mask.blocks`.

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
        """How many blocks have an allowed pair."""
        return int(self.runs.length[self.runs.state != NONE].sum())

    def row(self, row: int, *, batch: int = 0, head: int = 0) -> list[tuple[int, int, bool]]:
        """Return the live blocks of keys of one block of queries: (first, end, whether all are allowed) of each run."""
        runs = self.runs
        start = ((batch * runs.heads + head) * runs.rows + row) * runs.columns
        inside = runs.first[(runs.first > start) & (runs.first < start + runs.columns)]
        first = torch.cat([torch.tensor([start]), inside])
        ends = [*(inside - start).tolist(), runs.columns]
        in_row = zip((first - start).tolist(), ends, runs.state_at(first).tolist(), strict=True)
        return [(begin, end, state == ALL) for begin, end, state in in_row if state != NONE]

    def index(self) -> tuple[Int[Tensor, "rows"], Int[Tensor, "live"], Bool[Tensor, "live"]]:
        """Return all live blocks, row after row of all heads of all sentences.

        Returns:
            how many each row has (batch · heads · rows of blocks), the column of each block, and whether all of its
            pairs are allowed.
        """
        index = torch.cat([torch.zeros(0, dtype=torch.long), *self.runs.indices(SOME, ALL)])
        rows = self.runs.batch * self.runs.heads * self.runs.rows
        counts = (index // self.runs.columns).bincount(minlength=rows)
        return counts, index % self.runs.columns, self.runs.state_at(index) == ALL

    def table(self, kind: str) -> tuple[Int[Tensor, "batch heads rows"], Int[Tensor, "batch heads rows columns"]]:
        """Return how many blocks of a kind, "some" or "all", each row has, and all columns with those of these blocks
        first, as FlexAttention takes them. Needs memory for all blocks."""
        chosen = torch.zeros(self.shape, dtype=torch.bool)
        for index in self.runs.indices({"some": SOME, "all": ALL}[kind]):
            chosen.view(-1)[index] = True
        order = (~chosen).to(torch.int8).argsort(dim=-1, stable=True)
        return chosen.sum(dim=-1).int(), order.int()

    def dense(self) -> Int[Tensor, "batch heads rows columns"]:
        """Return the state of each block: 0 none, 1 some, 2 all. Needs memory for all blocks."""
        return self.runs.state.repeat_interleave(self.runs.length).view(self.shape)

    def pairs(self, rule: Predicate) -> int:
        """Return how many pairs are allowed by the rule whose plan this is."""
        total = sum(int(areas(self, index).sum()) for index in self.runs.indices(ALL))
        for index in self.runs.indices(SOME):
            total += sum(int((allowed & inside).sum()) for allowed, inside in pairs_of(self, index, rule))
        return total


def finish(runs: Runs, grid: Grid, rule: Predicate) -> BlockPlan:
    """Return the plan, after a check of the pairs of open blocks."""
    plan = BlockPlan(grid.query_length, grid.key_length, grid.size, runs)
    firsts, states, end = [], [], torch.tensor([-1])
    for index in runs.indices(OPEN):
        checked = [
            (allowed & inside).flatten(1).any(1).long() + (allowed | ~inside).flatten(1).all(1).long()
            for allowed, inside in pairs_of(plan, index, rule)
        ]
        state = torch.cat(checked)
        changes = torch.diff(state, prepend=end).nonzero()[:, 0]
        firsts.append(index[changes])
        states.append(state[changes])
        end = state[-1:]
    if not firsts:
        return plan
    first, state = torch.cat(firsts), torch.cat(states)
    if first[0] > 0:
        first, state = torch.cat([torch.tensor([0]), first]), torch.cat([torch.tensor([NONE]), state])
    answers = changed(runs, first=first, state=state)  # used where the mask's own runs are open
    return changed(plan, runs=Runs.joined(runs, answers, ANSWERED))


def pairs_of(
    plan: BlockPlan, indices: Int[Tensor, "blocks"], rule: Predicate
) -> Iterator[tuple[Bool[Tensor, "some query key"], Bool[Tensor, "some query key"]]]:
    """Yield, for slices of these blocks, which pairs the rule allows, and which are inside the sequences."""
    within_block = torch.arange(plan.size)
    for index in indices.split(max(1, SLICE // plan.size**2)):
        batch, head, row, column = torch.unravel_index(index, plan.shape)
        query, key = (block[:, None] * plan.size + within_block for block in (row, column))  # (some, size)
        inside = (query < plan.query_length)[:, :, None] & (key < plan.key_length)[:, None, :]
        query, key = query.clamp(max=plan.query_length - 1), key.clamp(max=plan.key_length - 1)
        allowed = rule(batch[:, None, None], head[:, None, None], query[:, :, None], key[:, None, :])
        yield allowed.expand(inside.shape), inside


def areas(plan: BlockPlan, indices: Int[Tensor, "blocks"]) -> Int[Tensor, "blocks"]:
    """Return the number of pairs of each of these blocks."""
    *_, row, column = torch.unravel_index(indices, plan.shape)
    height, width = plan.query_length - row * plan.size, plan.key_length - column * plan.size
    return height.clamp(max=plan.size) * width.clamp(max=plan.size)
