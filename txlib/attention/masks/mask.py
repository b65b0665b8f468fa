"""What every mask can be asked."""

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

KINDS: dict[str, type["Mask"]] = {}  # how masks are called where they are written down


@dataclass(frozen=True, eq=False, repr=False)
class Mask:
    """A rule that says, for positions of a query and a key, whether the one may attend to the other.

    `Mask(rule)` is one of your own. Those made by `causal()` and its like know more about themselves: they are planned
    by arithmetic where a rule of your own has to be asked about every pair, and can be written down.

    Args:
        rule: `rule(query, key)` or `rule(batch, head, query, key)`. It gets integer tensors that broadcast
            against each other and returns a bool tensor.
        batch, heads: how many different masks the rule holds along these axes (1: the same for all).
        name: shown by `repr`.
    """

    kind: ClassVar[str]

    def __new__(cls, *_: Any, **__: Any) -> "Mask":
        return object.__new__(KINDS["rule"] if cls is Mask else cls)

    def __init_subclass__(cls, kind: str | None = None):
        if kind is not None:  # else a base of several kinds
            cls.kind = kind
            KINDS[kind] = cls

    # What a mask says -----------------------------------------------------------------------------------------------

    def at(
        self, batch: Int[Tensor, "..."], head: Int[Tensor, "..."], query: Int[Tensor, "..."], key: Int[Tensor, "..."]
    ) -> Bool[Tensor, "..."]:
        """Whether the query at each position may attend to the key at each position.

        The four broadcast against each other, and so does the answer.
        """
        raise NotImplementedError

    def distances(self) -> Spans | None:
        """Where only the distance counts: the spans of query - key that are allowed; None where more counts."""
        return None

    def reach(self) -> tuple[int | float, int | float]:
        """Least and greatest distance query - key that may be allowed, as far as the rule itself tells."""
        spans = self.distances()
        return (-math.inf, math.inf) if spans is None else hull(spans)

    @property
    def batch(self) -> int:
        """How many different masks it holds along this axis; 1: the same for all."""
        return 1

    @property
    def heads(self) -> int:
        """How many different masks it holds along this axis; 1: the same for all."""
        return 1

    @property
    def only_keys(self) -> bool:
        """Whether the mask is known to treat all queries alike, as padding does."""
        return False

    def sized(self, key_length: int) -> "Mask":
        """The same mask, told how many keys there are. Few depend on that, such as random blocks; they must be told
        before they are asked `at` positions. `dense`, `blocks` and an attention layer see to it themselves."""
        return self

    def conjuncts(self) -> "Iterator[Mask]":
        """The masks that it joins with `&`, or itself."""
        yield self

    # What it is like for sequences of some length -------------------------------------------------------------------

    def dense(
        self, query_length: int, key_length: int | None = None, *, device: torch.device | str | None = None
    ) -> Bool[Tensor, "batch heads query key"]:
        """The mask written out; its batch and heads are 1 where the rule does not depend on them."""
        key_length = query_length if key_length is None else key_length
        sizes = (self.batch, self.heads, query_length, key_length)
        batch, head, query, key = (torch.arange(size, device=device) for size in sizes)
        allowed = self.sized(key_length).at(batch[:, None, None, None], head[:, None, None], query[:, None], key)
        return allowed.expand(sizes).contiguous()  # the kernels need it written out

    def blocks(self, query_length: int, key_length: int | None = None, *, size: int = 128) -> BlockPlan:
        """Which blocks of `size` queries and `size` keys hold no allowed pair, some, or all of them.

        The algebra's own masks are planned by arithmetic on the blocks' corners. Only where that leaves it open, as
        for a rule of one's own, are the pairs of a block looked at, a slice of blocks at a time.
        """
        key_length = query_length if key_length is None else key_length
        grid, mask = Grid(query_length, key_length, size), self.sized(key_length)
        return finish(mask.runs(grid).expand(mask.batch, mask.heads), grid, mask.at)

    def pairs(self, query_length: int, key_length: int | None = None) -> int:
        """How many (query, key) pairs are allowed, over all of the mask's batch and heads."""
        key_length = query_length if key_length is None else key_length
        if 0 in (query_length, key_length):
            return 0
        mask = self.sized(key_length)
        return mask.blocks(query_length, key_length).pairs(mask.at)

    def is_causal(self, query_length: int, key_length: int | None = None) -> bool:
        """Whether no query sees a later key."""
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
        """The same mask for `torch.nn.attention.flex_attention`, which skips blocks that hold no allowed pair."""
        from torch.nn.attention.flex_attention import BlockMask

        plan = self.blocks(query_length, key_length, size=block_size)
        some, every = ([table.to(device) for table in plan.table(kind)] for kind in ("some", "all"))
        return BlockMask.from_kv_blocks(
            some[0],
            some[1],
            every[0],
            every[1],
            BLOCK_SIZE=block_size,
            mask_mod=self.sized(plan.key_length).to(device).at,
            seq_lengths=(plan.query_length, plan.key_length),
        )

    def runs(self, grid: Grid) -> Runs:
        """What the arithmetic knows about the blocks of a grid."""
        spans = self.distances()
        if spans is not None:
            return grid.by_distance(spans)
        if self.only_keys:
            batch, head = torch.arange(self.batch)[:, None, None], torch.arange(self.heads)[:, None]
            allowed = self.at(batch, head, torch.tensor(0), grid.keys())
            return grid.by_key(allowed.expand(self.batch, self.heads, -1))
        return self.own_runs(grid)

    def own_runs(self, grid: Grid) -> Runs:
        """`runs` of a mask that is neither about distances nor about keys alone; unless it says more, all is open."""
        return grid.open(self.batch, self.heads)

    # What is made of it ---------------------------------------------------------------------------------------------

    def __and__(self, other: "Mask") -> "Mask":
        """May attend where both allow it."""
        return KINDS["and"](self, _checked(other))

    def __or__(self, other: "Mask") -> "Mask":
        """May attend where either allows it."""
        return KINDS["or"](self, _checked(other))

    def __rand__(self, other: Any) -> "Mask":
        return _checked(other)  # says what is wrong: a mask stands on the left

    __ror__ = __rand__

    def __invert__(self) -> "Mask":
        """May attend exactly where this mask forbids it."""
        return KINDS["not"](self)

    def shift(self, queries: int = 0, keys: int = 0) -> "Mask":
        """The same mask for queries that start at position `queries`, and keys that start at position `keys`, as in
        cached decoding."""
        return (
            self if type(queries) is type(keys) is int and queries == keys == 0 else KINDS["shift"](self, queries, keys)
        )

    def transposed(self) -> "Mask":
        """The same mask with queries and keys in each other's place: `padding(lengths).transposed()` lets padding see
        nothing."""
        return KINDS["transposed"](self)

    def to(self, device: torch.device | str) -> "Mask":
        """The same mask with all that it looks up on this device."""
        return replace(
            self, **{name: each.to(device) for name, each in self.fields() if isinstance(each, Mask | Tensor)}
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON.

        Raises:
            ValueError: when the mask holds a rule of one's own, which is code.
        """
        return {"kind": self.kind} | {name: _plain(value) for name, value in self.fields()}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Mask":
        """The mask that `to_dict` wrote.

        Raises:
            ValueError: when there is no mask of this kind.
        """
        values = {name: Mask.from_dict(value) if isinstance(value, dict) else value for name, value in values.items()}
        kind = values.pop("kind", None)
        if kind not in KINDS:
            raise ValueError(f"a mask of kind {kind!r} is unknown; choose one of {', '.join(sorted(KINDS))}")
        return KINDS[kind](**values)

    def make_whole(self) -> None:
        """Refuse sizes that are no whole numbers; NumPy's become Python's.

        Raises:
            TypeError: naming the first.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int and type(value) is not int:
                try:
                    object.__setattr__(self, field.name, index(value))
                except TypeError:
                    raise TypeError(f"{self.kind} needs whole numbers, got {field.name}={value!r}") from None

    def fields(self) -> Iterator[tuple[str, Any]]:
        """Name and value of each thing it is made of."""
        return ((field.name, getattr(self, field.name)) for field in fields(self))

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(_same(mine, theirs) for (_, mine), (_, theirs) in zip(self.fields(), other.fields(), strict=True))

    def __hash__(self) -> int:
        return hash((self.kind, *(value.shape if isinstance(value, Tensor) else value for _, value in self.fields())))

    def __bool__(self) -> bool:
        raise TypeError("a mask is not true or false: write a & b, a | b and ~a in place of and, or and not")

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
