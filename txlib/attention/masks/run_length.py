"""The blocks of a mask as runs of equal state.

Think of all blocks, row after row, sentence after sentence, as one long line. A mask's blocks are then runs of equal
state on that line: a window over a million positions is some ten thousand of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed

import torch
from jaxtyping import Int
from torch import Tensor

SLICE = 2**22  # pairs, or blocks, looked at in one go
NONE, SOME, ALL, OPEN = range(4)  # the states of a block; OPEN: not yet known

# What becomes of the blocks of two masks: table[state of the one, state of the other].
BOTH = torch.tensor([[NONE] * 4, [NONE, OPEN, SOME, OPEN], [NONE, SOME, ALL, OPEN], [NONE, OPEN, OPEN, OPEN]])
EITHER = torch.tensor([[NONE, SOME, ALL, OPEN], [SOME, OPEN, ALL, OPEN], [ALL] * 4, [OPEN, OPEN, ALL, OPEN]])
NOT = torch.tensor([ALL, SOME, NONE, OPEN])
LARGER = torch.tensor([[max(one, other) for other in range(4)] for one in range(4)])
UNSURE = torch.tensor([[state, OPEN if state == SOME else state] for state in range(4)])  # [state, on an edge?]
ANSWERED = torch.tensor([[state] * 4 for state in (NONE, SOME, ALL)] + [list(range(4))])  # [state, answer]


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
    def stacked(cls, parts: "Sequence[Runs]", *, batch: int = 1, heads: int = 1) -> "Runs":
        """The blocks of each sentence and each head, one after another."""
        rows, columns = parts[0].rows, parts[0].columns
        first = torch.cat([part.first + number * rows * columns for number, part in enumerate(parts)])
        return cls.tidied(batch, heads, rows, columns, first, torch.cat([part.state for part in parts]))

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
