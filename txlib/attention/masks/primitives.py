"""The primitive masks: what each says about positions, and what it knows about itself; and a user's own rule."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from txlib.attention.masks.grid import Grid
from txlib.attention.masks.mask import Mask
from txlib.attention.masks.run_length import Runs
from txlib.attention.masks.spans import ALWAYS, Spans


@dataclass(frozen=True, eq=False, repr=False)
class Full(Mask, kind="full"):
    """See `full`."""

    only_keys = True

    def at(self, batch, head, query, key):
        return (query == query) & (key == key)

    def distances(self) -> Spans:
        return ALWAYS


@dataclass(frozen=True, eq=False, repr=False)
class Causal(Mask, kind="causal"):
    """See `causal`."""

    def at(self, batch, head, query, key):
        return query >= key

    def distances(self) -> Spans:
        return ((0, math.inf),)


@dataclass(frozen=True, eq=False, repr=False)
class SlidingWindow(Mask, kind="sliding_window"):
    """See `sliding_window`."""

    radius: int

    least = {"radius": 0}

    def at(self, batch, head, query, key):
        return (query - key).abs() <= self.radius

    def distances(self) -> Spans:
        return ((-self.radius, self.radius + 1),)


@dataclass(frozen=True, eq=False, repr=False)
class Dilated(Mask, kind="dilated"):
    """See `dilated`."""

    radius: int
    dilation: int

    least = {"radius": 0, "dilation": 1}

    def at(self, batch, head, query, key):
        distance = query - key
        return (distance.abs() <= self.radius * self.dilation) & (distance % self.dilation == 0)

    def distances(self) -> Spans:
        if self.dilation == 1:
            return ((-self.radius, self.radius + 1),)
        steps = range(-self.radius * self.dilation, self.radius * self.dilation + 1, self.dilation)
        return tuple((step, step + 1) for step in steps)


@dataclass(frozen=True, eq=False, repr=False)
class GlobalTokens(Mask, kind="global_tokens"):
    """See `global_tokens`."""

    positions: Any  # numbers or a tensor of them; kept as a sorted tuple

    def __post_init__(self):
        positions = self.positions.tolist() if isinstance(self.positions, Tensor) else self.positions
        if not isinstance(positions, Sequence | set | frozenset) or not all(
            isinstance(position, int) for position in positions
        ):
            raise ValueError(f"global_tokens needs a list of positions, got {positions!r}; write e.g. [0]")
        if min(positions, default=0) < 0:
            raise ValueError(f"global_tokens needs positions >= 0, got {list(positions)}")
        positions = tuple(sorted(set(positions)))
        object.__setattr__(self, "positions", positions)
        table = torch.zeros(positions[-1] + 2 if positions else 1, dtype=torch.bool, device="cpu")
        table[list(positions)] = True
        object.__setattr__(self, "table", table)  # of all positions up to the last; False from there on

    def at(self, batch, head, query, key):
        return self.chosen(query) | self.chosen(key)

    def chosen(self, position: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Return whether each position is one of them."""
        table: Tensor = self.table.to(position.device)  # type: ignore[attr-defined]
        return table[position.clamp(min=0, max=len(table) - 1)] & (position >= 0)

    def to(self, device: torch.device | str) -> Mask:
        moved = replace(self)
        object.__setattr__(moved, "table", self.table.to(device))  # type: ignore[attr-defined]
        return moved

    def own_runs(self, grid: Grid) -> Runs:
        return grid.by_rows_and_columns(self.chosen(grid.queries()), self.chosen(grid.keys()))

    def __repr__(self) -> str:
        return f"global_tokens({list(self.positions)})"


@dataclass(frozen=True, eq=False, repr=False)
class Blocks(Mask, kind="blocks"):
    """See `blocks`."""

    size: int
    pattern: Any  # a tensor or rows of numbers; kept as a tensor

    least = {"size": 1}

    def __post_init__(self):
        super().__post_init__()
        pattern = torch.as_tensor(self.pattern).bool()
        if pattern.dim() != 2:
            raise ValueError(f"blocks needs a pattern (query_block, key_block), got shape {tuple(pattern.shape)}")
        object.__setattr__(self, "pattern", pattern)

    def at(self, batch, head, query, key):
        rows, columns = self.pattern.shape
        framed = torch.nn.functional.pad(self.pattern.to(key.device), (1, 1, 1, 1))  # False outside the pattern
        row, column = query // self.size + 1, key // self.size + 1
        return framed[row.clamp(0, rows + 1), column.clamp(0, columns + 1)]

    def own_runs(self, grid: Grid) -> Runs:
        return grid.by_pattern(self.size, self.pattern.cpu())

    def __repr__(self) -> str:
        rows, columns = self.pattern.shape
        return f"blocks({self.size}, {rows}×{columns})"


@dataclass(frozen=True, eq=False, repr=False)
class BlockLocal(Mask, kind="block_local"):
    """See `block_local`."""

    size: int
    radius: int = 0

    least = {"size": 1, "radius": 0}

    def at(self, batch, head, query, key):
        return (query // self.size - key // self.size).abs() <= self.radius

    def own_runs(self, grid: Grid) -> Runs:
        first, last = (query // self.size for query in grid.rows())  # the mask's blocks that a row of the grid spans
        return grid.by_range(
            (first - self.radius) * self.size,
            (last + self.radius + 1) * self.size - 1,
            (last - self.radius) * self.size,
            (first + self.radius + 1) * self.size - 1,
        )

    def reach(self) -> tuple[int | float, int | float]:
        farthest = (self.radius + 1) * self.size - 1
        return -farthest, farthest

    def __repr__(self) -> str:
        return f"block_local({self.size}{f', {self.radius}' if self.radius else ''})"


@dataclass(frozen=True, eq=False, repr=False)
class Padding(Mask, kind="padding"):
    """See `padding`."""

    lengths: Any  # a tensor or numbers; kept as a tensor
    only_keys = True

    def __post_init__(self):
        lengths = torch.as_tensor(self.lengths)
        if lengths.dim() != 1 or lengths.is_floating_point():
            shape = tuple(lengths.shape)
            raise ValueError(
                f"padding needs one integer length per sentence, got {lengths.dtype} of shape {shape}; "
                "write e.g. padding([3, 5])"
            )
        if (lengths < 0).any():
            raise ValueError(f"padding needs lengths >= 0, got {lengths.min().item()}")
        object.__setattr__(self, "lengths", lengths)

    @property
    def batch(self) -> int:
        return self.lengths.shape[0]

    def at(self, batch, head, query, key):
        return key < self.lengths.to(key.device)[batch % self.batch]


@dataclass(frozen=True, eq=False, repr=False)
class PaddingFromMask(Mask, kind="padding_from_mask"):
    """See `padding_from_mask`."""

    attention_mask: Any  # a tensor or rows of numbers; kept as a tensor of bool
    only_keys = True

    def __post_init__(self):
        attention_mask = torch.as_tensor(self.attention_mask)
        if attention_mask.dim() != 2:
            raise ValueError(
                f"padding_from_mask needs an attention_mask (batch, key), got shape {tuple(attention_mask.shape)}"
            )
        object.__setattr__(self, "attention_mask", attention_mask.bool())

    @property
    def batch(self) -> int:
        return self.attention_mask.shape[0]

    def at(self, batch, head, query, key):
        last = self.attention_mask.shape[1] - 1
        marked = self.attention_mask.to(key.device)[batch % self.batch, key.clamp(min=0, max=last)]
        return marked & (key >= 0) & (key <= last)

    def __repr__(self) -> str:
        batch, length = self.attention_mask.shape
        return f"padding_from_mask({batch}×{length})"


@dataclass(frozen=True, eq=False, repr=False)
class Rule(Mask, kind="rule"):
    """See `Mask`."""

    rule: Callable[..., Tensor]
    batch: int = 1
    heads: int = 1
    name: str | None = None
    least = {"batch": 1, "heads": 1}

    def __post_init__(self):
        if not callable(self.rule):
            raise TypeError(f"a mask's rule is a function of (query, key), got {self.rule!r}")
        super().__post_init__()
        parameters = len(inspect.signature(self.rule).parameters)
        if parameters not in (2, 4):
            raise ValueError(
                f"a mask's rule takes (query, key) or (batch, head, query, key), this one takes {parameters} arguments"
            )
        object.__setattr__(self, "positions_only", parameters == 2)

    def at(self, batch, head, query, key):
        arguments = (query, key) if self.positions_only else (batch, head, query, key)  # type: ignore[attr-defined]
        allowed = self.rule(*arguments)
        if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool:
            kind = allowed.dtype if isinstance(allowed, Tensor) else type(allowed).__name__
            raise TypeError(f"a mask's rule returns a bool tensor, {self} returned {kind}; write e.g. query >= key")
        return allowed

    def to_dict(self) -> dict[str, Any]:
        raise ValueError(f"{self} is a rule of your own, which is code and cannot be written down")

    def __repr__(self) -> str:
        return self.name or "custom"
