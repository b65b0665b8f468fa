"""`Mask`, the base of all masks, and the questions that every mask answers."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from operator import index
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from txlib.attention.masks.grid import Grid
from txlib.attention.masks.plan import BlockPlan, finish
from txlib.attention.masks.run_length import Runs
from txlib.attention.masks.spans import Spans, hull

KINDS: dict[str, type["Mask"]] = {}  # by the name that `Mask.to_dict` writes


@dataclass(frozen=True, eq=False, repr=False)
class Mask:
    """A rule that says, for positions of a query and a key, whether the query may attend to the key.

    `Mask(rule)` makes one from your function. Masks made by `causal()` and its like know more about themselves: they
    are planned by arithmetic, where your function has to be called for every pair, and they can be written to JSON.

    Args:
        rule: `rule(query, key)` or `rule(batch, head, query, key)`. It gets integer tensors that broadcast
            against each other and returns a bool tensor.
        batch, heads: how many different masks the rule has along these axes (1: the same for all).
        name: shown by `repr`.
    """

    kind: ClassVar[str]
    example: ClassVar[str] = "causal() or Mask(rule)"
    least: ClassVar[dict[str, float]] = {}  # the fields that are integers, and the smallest value of each

    def __new__(cls, *_: Any, **__: Any) -> "Mask":
        return object.__new__(KINDS["rule"] if cls is Mask else cls)

    def __init_subclass__(cls, kind: str | None = None):
        if kind is not None:  # else a base of several kinds
            cls.kind = kind
            KINDS[kind] = cls

    def __post_init__(self):
        """Refuse sizes that are not integers or too small; convert NumPy's integers to Python's.

        Raises:
            TypeError, ValueError: naming them.
        """
        for name in self.least:
            value = getattr(self, name)
            if type(value) is not int:
                try:
                    object.__setattr__(self, name, index(value))
                except TypeError:
                    raise TypeError(f"{self.kind} needs integers, got {name}={value!r}") from None
        if any(getattr(self, name) < least for name, least in self.least.items()):
            limits = [f"{name} >= {least}" for name, least in self.least.items() if least > -math.inf]
            values = [f"{name}={getattr(self, name)}" for name in self.least]
            raise ValueError(f"{self.kind} needs {' and '.join(limits)}, got {', '.join(values)}")

    # Questions about the rule ----------------------------------------------------------------------------------------

    def at(
        self, batch: Int[Tensor, "..."], head: Int[Tensor, "..."], query: Int[Tensor, "..."], key: Int[Tensor, "..."]
    ) -> Bool[Tensor, "..."]:
        """Return whether the query at each position may attend to the key at each position.

        The four broadcast against each other, and the result has their common shape.
        """
        raise NotImplementedError

    def distances(self) -> Spans | None:
        """Return the spans of query - key that are allowed, if only the distance counts; None if more counts."""
        return None

    def reach(self) -> tuple[int | float, int | float]:
        """Return the least and the greatest distance query - key that may be allowed, as far as the rule tells."""
        spans = self.distances()
        return (-math.inf, math.inf) if spans is None else hull(spans)

    @property
    def batch(self) -> int:
        """Number of different masks along this axis; 1: the same for all."""
        return 1

    @property
    def heads(self) -> int:
        """Number of different masks along this axis; 1: the same for all."""
        return 1

    @property
    def only_keys(self) -> bool:
        """Whether the mask is known to treat all queries alike, as padding does."""
        return False

    def sized(self, key_length: int) -> "Mask":
        """Return the same mask for this number of keys. Only a few masks depend on it, such as random blocks: call
        this before `at`. `dense`, `blocks` and an attention layer call it themselves."""
        return self

    def conjuncts(self) -> "Iterator[Mask]":
        """Yield the masks that it joins with `&`, or itself."""
        yield self

    # Questions about sequences of some length -------------------------------------------------------------------------

    def dense(
        self, query_length: int, key_length: int | None = None, *, device: torch.device | str | None = None
    ) -> Bool[Tensor, "batch heads query key"]:
        """Return the mask as a tensor; its batch and heads are 1 where the rule does not depend on them."""
        key_length = query_length if key_length is None else key_length
        sizes = (self.batch, self.heads, query_length, key_length)
        batch, head, query, key = (torch.arange(size, device=device) for size in sizes)
        allowed = self.sized(key_length).at(batch[:, None, None, None], head[:, None, None], query[:, None], key)
        return allowed.expand(sizes).contiguous()  # which torch's kernels need

    def blocks(self, query_length: int, key_length: int | None = None, *, size: int = 128) -> BlockPlan:
        """Return which blocks of `size` queries and `size` keys have no allowed pair, some, or all of them.

        Built-in masks are planned by arithmetic on the blocks' corners. Where that does not decide, as for a user's own
        rule, the pairs of a block are checked, a slice of blocks at a time.
        """
        key_length = query_length if key_length is None else key_length
        grid, mask = Grid(query_length, key_length, size), self.sized(key_length)
        return finish(mask.runs(grid).expand(mask.batch, mask.heads), grid, mask.at)

    def pairs(self, query_length: int, key_length: int | None = None) -> int:
        """Return how many (query, key) pairs are allowed, over all of the mask's batch and heads."""
        key_length = query_length if key_length is None else key_length
        if 0 in (query_length, key_length):
            return 0
        mask = self.sized(key_length)
        return mask.blocks(query_length, key_length).pairs(mask.at)

    def is_causal(self, query_length: int, key_length: int | None = None) -> bool:
        """Return whether no query sees a later key."""
        if self.reach()[0] >= 0 or 0 in (query_length, key_length):
            return True
        return not (self & ~KINDS["causal"]()).blocks(query_length, key_length).live

    def block_mask(
        self,
        query_length: int,
        key_length: int | None = None,
        *,
        device: torch.device | str = "cpu",
        block_size: int = 128,
    ):
        """Return the mask for `torch.nn.attention.flex_attention`, which skips blocks that have no allowed pair."""
        from torch.nn.attention.flex_attention import BlockMask

        plan = self.blocks(query_length, key_length, size=block_size)
        partial, full = ([table.to(device) for table in plan.table(kind)] for kind in ("some", "all"))
        return BlockMask.from_kv_blocks(
            partial[0],
            partial[1],
            full[0],
            full[1],
            BLOCK_SIZE=block_size,
            mask_mod=self.sized(plan.key_length).to(device).at,
            seq_lengths=(plan.query_length, plan.key_length),
        )

    def runs(self, grid: Grid) -> Runs:
        """Return the states of the blocks of a grid, as far as arithmetic tells."""
        spans = self.distances()
        if spans is not None:
            return grid.by_distance(spans)
        if self.only_keys:
            batch, head = torch.arange(self.batch)[:, None, None], torch.arange(self.heads)[:, None]
            allowed = self.at(batch, head, torch.tensor(0), grid.keys())
            return grid.by_key(allowed.expand(self.batch, self.heads, -1))
        return self.own_runs(grid)

    def own_runs(self, grid: Grid) -> Runs:
        """Return `runs` of a mask that is neither about distances nor about keys alone; all open unless overridden."""
        return grid.open(self.batch, self.heads)

    # Other masks and JSON --------------------------------------------------------------------------------------------

    def __and__(self, other: "Mask") -> "Mask":
        """Allow what both allow."""
        return KINDS["and"](self, _checked(other))

    def __or__(self, other: "Mask") -> "Mask":
        """Allow what either allows."""
        return KINDS["or"](self, _checked(other))

    def __rand__(self, other: Any) -> "Mask":
        return _checked(other)  # raises: a mask on the left has `__and__`

    __ror__ = __rand__

    def __invert__(self) -> "Mask":
        """Allow exactly what this mask forbids."""
        return KINDS["not"](self)

    def shift(self, queries: int = 0, keys: int = 0) -> "Mask":
        """Return the mask for queries that start at position `queries`, and keys that start at position `keys`, as in
        cached decoding."""
        unchanged = type(queries) is type(keys) is int and queries == keys == 0
        return self if unchanged else KINDS["shift"](self, queries, keys)

    def transposed(self) -> "Mask":
        """Return the mask with queries and keys exchanged: `padding(lengths).transposed()` lets padding see nothing."""
        return KINDS["transposed"](self)

    def to(self, device: torch.device | str) -> "Mask":
        """Return the mask with its tensors on this device."""
        moved = {name: value.to(device) for name, value in self.fields() if isinstance(value, Mask | Tensor)}
        return replace(self, **moved)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings, for JSON.

        Raises:
            ValueError: when the mask has a user's own rule, which is code.
        """
        return {"kind": self.kind} | {name: _plain(value) for name, value in self.fields()}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Mask":
        """Return the mask that `to_dict` wrote.

        Raises:
            ValueError: when there is no mask of this kind.
        """
        values = {name: Mask.from_dict(value) if isinstance(value, dict) else value for name, value in values.items()}
        kind = values.pop("kind", None)
        if kind not in KINDS:
            raise ValueError(f"a mask of kind {kind!r} is unknown; choose one of {', '.join(sorted(KINDS))}")
        return KINDS[kind](**values)

    def fields(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and the value of each field."""
        return ((field.name, getattr(self, field.name)) for field in fields(self))

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(_same(mine, theirs) for (_, mine), (_, theirs) in zip(self.fields(), other.fields(), strict=True))

    def __hash__(self) -> int:
        return hash((self.kind, *(value.shape if isinstance(value, Tensor) else value for _, value in self.fields())))

    def __bool__(self) -> bool:
        raise TypeError("a mask is not true or false: write a & b, a | b and ~a instead of and, or and not")

    def __repr__(self) -> str:
        values = (value.tolist() if isinstance(value, Tensor) else value for _, value in self.fields())
        return f"{self.kind}({', '.join(map(str, values))})"


def _checked(other: Any) -> Mask:
    if not isinstance(other, Mask):
        name = getattr(other, "__name__", None)
        remedy = "wrap it in Mask(rule)" if name is None or isinstance(other, type) else f"call it: {name}(…)"
        raise TypeError(f"a mask combines with a mask, not with {type(other).__name__}; {remedy}")
    return other


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, Tensor):
        return torch.equal(mine.cpu(), theirs.cpu())
    return mine == theirs


def _plain(value: Any) -> Any:
    if isinstance(value, Mask):
        return value.to_dict()
    if isinstance(value, Tensor):
        return value.int().tolist()
    return list(value) if isinstance(value, tuple) else value
