"""How masks combine: `a & b`, `a | b`, `~a`, later positions, and queries exchanged with keys."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from txlib.attention.masks.grid import Grid
from txlib.attention.masks.mask import Mask
from txlib.attention.masks.run_length import BOTH, EITHER, NOT, Runs
from txlib.attention.masks.spans import Spans, complement, intersection, moved, union


@dataclass(frozen=True, eq=False, repr=False)
class Pair(Mask):
    """Two masks, joined; subclasses say how."""

    left: Mask
    right: Mask
    sign: ClassVar[str]
    table: ClassVar[Tensor]

    def __post_init__(self):
        for axis in ("batch", "heads"):
            one, other = getattr(self.left, axis), getattr(self.right, axis)
            if one != other and 1 not in (one, other):
                raise ValueError(
                    f"{self.left} has {axis}={one} and {self.right} has {axis}={other}: make them equal, or 1"
                )

    @property
    def batch(self) -> int:
        return max(self.left.batch, self.right.batch)

    @property
    def heads(self) -> int:
        return max(self.left.heads, self.right.heads)

    @property
    def only_keys(self) -> bool:
        return self.left.only_keys and self.right.only_keys

    def sized(self, key_length: int) -> Mask:
        left, right = self.left.sized(key_length), self.right.sized(key_length)
        return self if left is self.left and right is self.right else type(self)(left, right)

    def own_runs(self, grid: Grid) -> Runs:
        left, right = (part.runs(grid).expand(self.batch, self.heads) for part in (self.left, self.right))
        return Runs.joined(left, right, self.table)

    def both_distances(self) -> tuple[Spans, Spans] | None:
        left, right = self.left.distances(), self.right.distances()
        return None if left is None or right is None else (left, right)

    def __repr__(self) -> str:
        return f"({self.left} {self.sign} {self.right})"


@dataclass(frozen=True, eq=False, repr=False)
class And(Pair, kind="and"):
    """Allows what both allow."""

    sign: ClassVar[str] = "&"
    table: ClassVar[Tensor] = BOTH

    def at(self, batch, head, query, key):
        return self.left.at(batch, head, query, key) & self.right.at(batch, head, query, key)

    def distances(self) -> Spans | None:
        both = self.both_distances()
        return None if both is None else intersection(*both)

    def reach(self) -> tuple[int | float, int | float]:
        (low, high), (other_low, other_high) = self.left.reach(), self.right.reach()
        return max(low, other_low), min(high, other_high)

    def conjuncts(self) -> Iterator[Mask]:
        yield from self.left.conjuncts()
        yield from self.right.conjuncts()


@dataclass(frozen=True, eq=False, repr=False)
class Or(Pair, kind="or"):
    """Allows what either allows."""

    sign: ClassVar[str] = "|"
    table: ClassVar[Tensor] = EITHER

    def at(self, batch, head, query, key):
        return self.left.at(batch, head, query, key) | self.right.at(batch, head, query, key)

    def distances(self) -> Spans | None:
        both = self.both_distances()
        return None if both is None else union(*both)

    def reach(self) -> tuple[int | float, int | float]:
        (low, high), (other_low, other_high) = self.left.reach(), self.right.reach()
        return min(low, other_low), max(high, other_high)


@dataclass(frozen=True, eq=False, repr=False)
class Wrapper(Mask):
    """A mask made from another one; subclasses say how."""

    mask: Mask

    @property
    def batch(self) -> int:
        return self.mask.batch

    @property
    def heads(self) -> int:
        return self.mask.heads

    @property
    def only_keys(self) -> bool:
        return self.mask.only_keys

    def sized(self, key_length: int) -> Mask:
        mask = self.mask.sized(key_length)
        return self if mask is self.mask else replace(self, mask=mask)


@dataclass(frozen=True, eq=False, repr=False)
class Not(Wrapper, kind="not"):
    """Allows exactly what the mask forbids."""

    def at(self, batch, head, query, key):
        return ~self.mask.at(batch, head, query, key)

    def distances(self) -> Spans | None:
        spans = self.mask.distances()
        return None if spans is None else complement(spans)

    def own_runs(self, grid: Grid) -> Runs:
        return self.mask.runs(grid).renamed(NOT)

    def __repr__(self) -> str:
        return f"~{self.mask}"


@dataclass(frozen=True, eq=False, repr=False)
class Shifted(Wrapper, kind="shift"):
    """The same mask for queries and keys that start later; see `Mask.shift`."""

    queries: int
    keys: int = 0

    def at(self, batch, head, query, key):
        return self.mask.at(batch, head, query + self.queries, key + self.keys)

    def distances(self) -> Spans | None:
        spans = self.mask.distances()
        return None if spans is None else moved(spans, self.keys - self.queries)

    def sized(self, key_length: int) -> Mask:
        return super().sized(key_length + self.keys)

    def reach(self) -> tuple[int | float, int | float]:
        low, high = self.mask.reach()
        return low + self.keys - self.queries, high + self.keys - self.queries

    def conjuncts(self) -> Iterator[Mask]:
        return (part.shift(self.queries, self.keys) for part in self.mask.conjuncts())

    def own_runs(self, grid: Grid) -> Runs:
        return self.mask.runs(grid.moved(self.queries, self.keys))

    def __repr__(self) -> str:
        return f"{self.mask}.shift({self.queries}{f', {self.keys}' if self.keys else ''})"


@dataclass(frozen=True, eq=False, repr=False)
class Transposed(Wrapper, kind="transposed"):
    """The same mask with queries and keys exchanged; see `Mask.transposed`."""

    only_keys = False

    def at(self, batch, head, query, key):
        return self.mask.at(batch, head, key, query)

    def distances(self) -> Spans | None:
        spans = self.mask.distances()
        return None if spans is None else tuple((1 - high, 1 - low) for low, high in reversed(spans))

    def reach(self) -> tuple[int | float, int | float]:
        low, high = self.mask.reach()
        return -high, -low

    def conjuncts(self) -> Iterator[Mask]:
        return (part.transposed() for part in self.mask.conjuncts())

    def own_runs(self, grid: Grid) -> Runs:
        if not self.mask.only_keys:
            return grid.open(self.batch, self.heads)
        batch, head = torch.arange(self.batch)[:, None, None], torch.arange(self.heads)[:, None]
        allowed = self.mask.at(batch, head, torch.tensor(0), grid.queries())
        return grid.by_query(allowed.expand(self.batch, self.heads, -1))

    def __repr__(self) -> str:
        return f"{self.mask}.transposed()"
