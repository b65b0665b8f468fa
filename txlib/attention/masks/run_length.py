"""The blocks of a mask as runs of equal state.

Number all blocks, row after row, sentence after sentence. A mask's blocks are then runs of consecutive blocks of equal
state: a window over a million positions has about ten thousand of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed

import torch
from jaxtyping import Int
from torch import Tensor

SLICE = 2**22  # pairs, or blocks, that are checked at once
NONE, SOME, ALL, OPEN = range(4)  # the states of a block; OPEN: not yet known

# The state of a block by its states in two masks: table[one state, other state].
BOTH = torch.tensor([[NONE] * 4, [NONE, OPEN, SOME, OPEN], [NONE, SOME, ALL, OPEN], [NONE, OPEN, OPEN, OPEN]])
EITHER = torch.tensor([[NONE, SOME, ALL, OPEN], [SOME, OPEN, ALL, OPEN], [ALL] * 4, [OPEN, OPEN, ALL, OPEN]])
NOT = torch.tensor([ALL, SOME, NONE, OPEN])
LARGER = torch.tensor([[max(one, other) for other in range(4)] for one in range(4)])
UNSURE = torch.tensor([[state, OPEN if state == SOME else state] for state in range(4)])  # [state, on an edge?]
ANSWERED = torch.tensor([[state] * 4 for state in (NONE, SOME, ALL)] + [list(range(4))])  # [state, answer]


@dataclass(frozen=True, eq=False)
class Runs:
    """The blocks of (batch, heads, rows, columns), flattened, as runs of equal state.

    Args:
        first: index of the first block of each run, increasing from 0.
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
        """Return runs without the empty ones, with neighbors of equal state merged."""
        total = batch * heads * rows * columns
        filled = torch.diff(first, append=torch.tensor([total])) > 0
        first, state = first[filled], state[filled]
        differs = torch.diff(state, prepend=torch.tensor([-1])) != 0
        return cls(batch, heads, rows, columns, first[differs], state[differs])

    @classmethod
    def stacked(cls, parts: "Sequence[Runs]", *, batch: int = 1, heads: int = 1) -> "Runs":
        """Return the blocks of each sentence and each head, one after another."""
        rows, columns = parts[0].rows, parts[0].columns
        first = torch.cat([part.first + number * rows * columns for number, part in enumerate(parts)])
        return cls.tidied(batch, heads, rows, columns, first, torch.cat([part.state for part in parts]))

    @classmethod
    def joined(cls, one: "Runs", other: "Runs", table: Tensor) -> "Runs":
        """Return two masks' runs of the same blocks as one, by a table of states."""
        first = torch.cat([one.first, other.first]).unique()
        state = table[one.state_at(first), other.state_at(first)]
        return cls.tidied(one.batch, one.heads, one.rows, one.columns, first, state)

    @property
    def length(self) -> Int[Tensor, "runs"]:
        """Number of blocks of each run."""
        total = self.batch * self.heads * self.rows * self.columns
        return torch.diff(self.first, append=torch.tensor([total]))

    def state_at(self, block: Int[Tensor, "blocks"]) -> Int[Tensor, "blocks"]:
        """Return the state of each block, by its index."""
        return self.state[torch.searchsorted(self.first, block, right=True) - 1]

    def renamed(self, table: Tensor) -> "Runs":
        """Return the same runs with other states."""
        return changed(self, state=table[self.state])

    def expand(self, batch: int, heads: int) -> "Runs":
        """Return the same blocks for each sentence and each head of a larger batch."""
        if (batch, heads) == (self.batch, self.heads):
            return self
        size, parts = self.rows * self.columns, []
        for number in range(batch * heads):
            sentence, head = number // heads % self.batch, number % heads % self.heads
            start = (sentence * self.heads + head) * size
            inside = self.first[(self.first > start) & (self.first < start + size)]
            first = torch.cat([torch.tensor([start]), inside])
            parts.append((first - start + number * size, self.state_at(first)))
        first, state = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return Runs.tidied(batch, heads, self.rows, self.columns, first, state)

    def indices(self, *states: int) -> Iterator[Int[Tensor, "blocks"]]:
        """Yield the indices of all blocks in one of these states, in slices."""
        wanted = torch.isin(self.state, torch.tensor(states))
        first, length = self.first[wanted], self.length[wanted]
        before = length.cumsum(0) - length
        for start in range(0, int(length.sum()), SLICE):
            number = torch.arange(start, min(start + SLICE, int(length.sum())))
            run = torch.searchsorted(before, number, right=True) - 1
            yield first[run] + number - before[run]
