"""A mask as a schedule: which neighboring queries see which slices of the keys.

`BlockSparseAttention` computes one block of queries after the other. The schedule comes from the mask's blocks
(`Mask.blocks`), so nothing here is of the size (query, key) but the pairs of blocks that are allowed in part, a few at
a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from txlib.attention.masks import Mask, MaskLike, full, padding_from_mask
from txlib.attention.masks.plan import BlockPlan
from txlib.attention.masks.run_length import ALL, NONE

MAX_SCORES = 2**21  # of one head in a query block
MIN_POSITIONS = 8  # fewest queries of a block that is split off, fewest keys that are left out
SPLIT_BELOW = 0.6  # a query block is split where the halves have less than this part of its scores
MAX_CACHED_ENTRIES = 2**20  # of partial blocks that a schedule holds; the others are computed when needed


class KeyRange(NamedTuple):
    """Keys from `start` to `stop` that a query block sees. allowed: (query, key), None where all pairs are."""

    start: int
    stop: int
    allowed: Tensor | None


class PartialBlock(NamedTuple):
    """Keys of which only some queries of a query block may see some.

    keys: among those of the query block; start: position of the first; additive_mask: (query, key), see the function;
    None: to be computed.
    """

    keys: slice
    start: int
    additive_mask: Tensor | None


@dataclass(frozen=True, eq=False)
class QueryBlock:
    """Neighboring queries and the keys that they may see.

    batch, head: of the mask, where it depends on them; fully_masked: queries that see nothing, None where all see
    something.
    """

    batch: int
    head: int
    queries: slice
    keys: tuple[slice, ...]
    partial_blocks: tuple[PartialBlock, ...]
    fully_masked: Bool[Tensor, "query 1"] | None

    @cached_property
    def rows(self) -> int:
        """How many queries."""
        return self.queries.stop - self.queries.start

    @cached_property
    def columns(self) -> int:
        """How many keys."""
        return sum(keys.stop - keys.start for keys in self.keys)

    def column_slices(self) -> Iterator[slice]:
        """Yield the position of each slice of keys among all keys of the block."""
        start = 0
        for keys in self.keys:
            stop = start + keys.stop - keys.start
            yield slice(start, stop)
            start = stop

    def continues(self, previous: "QueryBlock") -> bool:
        """Return whether its queries follow those of the previous block, and see equally many keys in the same way."""
        return (
            (self.batch, self.head, self.queries.start) == (previous.batch, previous.head, previous.queries.stop)
            and (self.rows, self.columns) == (previous.rows, previous.columns)
            and len(self.partial_blocks) == len(previous.partial_blocks)
            and self.fully_masked is previous.fully_masked is None
            and all(
                own.keys == other.keys and own.additive_mask is other.additive_mask is not None
                for own, other in zip(self.partial_blocks, previous.partial_blocks, strict=True)
            )
        )


@dataclass(frozen=True, eq=False)
class TileGroup:
    """Query blocks of which each continues the one before: they can be computed as one."""

    query_blocks: tuple[QueryBlock, ...]
    device: torch.device

    @cached_property
    def key_positions(self) -> Int32[Tensor, "query_blocks columns"]:
        """Positions of the keys of each query block."""
        slices = [keys for block in self.query_blocks for keys in block.keys]
        positions = [torch.arange(keys.start, keys.stop, dtype=torch.int32) for keys in slices]
        return torch.cat(positions).view(len(self.query_blocks), -1).to(self.device)


@dataclass(frozen=True, eq=False)
class BlockSchedule:
    """The query blocks of a mask for sequences of some lengths. A query without a block sees nothing."""

    mask: Mask
    query_length: int
    device: torch.device
    query_blocks: tuple[QueryBlock, ...]

    @cached_property
    def covers_all_queries(self) -> bool:
        """Whether every query is in a block."""
        rows = sum(block.rows for block in self.query_blocks)
        return rows == self.query_length * self.mask.batch * self.mask.heads

    @cached_property
    def groups(self) -> tuple[TileGroup, ...]:
        """The query blocks in their order, those together that continue each other."""
        groups: list[list[QueryBlock]] = []
        for block in self.query_blocks:
            if groups and block.continues(groups[-1][-1]):
                groups[-1].append(block)
            else:
                groups.append([block])
        return tuple(TileGroup(tuple(blocks), self.device) for blocks in groups)

    def additive_mask(self, block: QueryBlock, partial: PartialBlock) -> Float[Tensor, "query key"]:
        """Return what is added to the scores of a partial block."""
        if partial.additive_mask is not None:
            return partial.additive_mask
        stop = partial.start + partial.keys.stop - partial.keys.start
        queries = block.queries
        allowed = pairs_at(self.mask, block.batch, block.head, queries.start, queries.stop, partial.start, stop)
        if block.fully_masked is not None:
            allowed = allowed | block.fully_masked.cpu()
        return additive_mask(allowed).to(self.device)


class AdditiveMasks:
    """Tensors added to the scores of partial blocks: one for all equal blocks, which a window has many of."""

    def __init__(self, device: torch.device):
        self.device, self.entries = device, 0
        self.cached: dict[tuple, Tensor] = {}

    def find(self, allowed: Bool[Tensor, "query key"]) -> Float[Tensor, "query key"] | None:
        """Return the tensor for these pairs; None where too much is cached already."""
        content = (*allowed.shape, allowed.numpy().tobytes())
        if content not in self.cached:
            if self.entries + allowed.numel() > MAX_CACHED_ENTRIES:
                return None
            self.entries += allowed.numel()
            self.cached[content] = additive_mask(allowed).to(self.device)
        return self.cached[content]


def block_schedule(
    mask: MaskLike, query_length: int, key_length: int, size: int, device: torch.device
) -> BlockSchedule:
    """Return the schedule of a mask. A rule's schedule is cached for the next layer, with a copy of the tensors that
    the rule reads, since they may change."""
    arguments = query_length, key_length, size, device
    with unset_fake_temporarily():  # a schedule needs real numbers, even where a model runs on fake tensors
        if isinstance(mask, Tensor):
            return new_schedule(as_rule(mask), *arguments)
        return cached_schedule(full() if mask is None else own_copy(mask), *arguments)


def as_rule(mask: Bool[Tensor, "batch heads query key"]) -> Mask:
    """Return a tensor that broadcasts to (batch, heads, query, key) as a rule."""
    mask = mask.cpu()
    batch, heads, queries, _ = mask.shape
    if heads == queries == 1:
        return padding_from_mask(mask[:, 0, 0])
    return Mask(lambda b, h, query, key: mask[b, h, query if queries > 1 else 0 * query, key], batch, heads)


def own_copy(mask: Mask) -> Mask:
    """Return an equal mask that shares no tensor with any other."""
    copies = {
        name: own_copy(value) if isinstance(value, Mask) else value.cpu().clone()
        for name, value in mask.fields()
        if isinstance(value, Mask | Tensor)
    }
    return replace(mask, **copies) if copies else mask


def new_schedule(mask: Mask, query_length: int, key_length: int, size: int, device: torch.device) -> BlockSchedule:
    """Compute the schedule of a mask."""
    plan = mask.blocks(query_length, key_length, size=size)
    masks, query_blocks = AdditiveMasks(device), []
    for row, runs in live_runs(plan):
        matrix, row = divmod(row, plan.shape[2])
        batch, head = divmod(matrix, plan.shape[1])
        first, end = row * size, min(row * size + size, query_length)
        ranges = []
        for _, column, last, state in runs:
            start, stop = column * size, min(last * size, key_length)
            allowed = None if state == ALL else pairs_at(mask, batch, head, first, end, start, stop)
            ranges.append(KeyRange(start, stop, allowed))
        ranges = without_unseen_keys(ranges, slice(None))
        query_blocks += [new_query_block(batch, head, *part, masks) for part in split_queries(first, end, ranges)]
    return BlockSchedule(mask, query_length, device, tuple(query_blocks))


cached_schedule = lru_cache(maxsize=32)(new_schedule)


def live_runs(plan: BlockPlan) -> Iterator[tuple[int, Iterator[tuple[int, int, int, int]]]]:
    """Yield, for each row of blocks with an allowed pair, its number and the runs of its blocks: (number of the row,
    first column, the one after the last, state)."""
    runs, (batch, heads, rows, columns) = plan.runs, plan.shape
    total = batch * heads * rows * columns
    first = torch.cat([runs.first, torch.arange(0, total, columns)]).unique()
    state = runs.state_at(first)
    row, length = first // columns, torch.diff(first, append=torch.tensor([total]))
    column = first - row * columns
    table = torch.stack([row, column, column + length, state], dim=1)[state != NONE]
    return groupby(table.tolist(), key=itemgetter(0))


def split_queries(first: int, end: int, ranges: list[KeyRange]) -> Iterator[tuple[int, int, list[KeyRange]]]:
    """Yield queries from `first` to `end` with their keys, in halves where there are too many scores, or where the
    halves see much less: one token that sees everything should not make its neighbors expensive."""
    rows, columns = end - first, width(ranges)
    if not columns:
        return
    if rows > 1:
        middle = rows // 2
        upper = without_unseen_keys(ranges, slice(0, middle))
        lower = without_unseen_keys(ranges, slice(middle, rows))
        scores_left = middle * width(upper) + (rows - middle) * width(lower)
        if rows * columns > MAX_SCORES or (rows > MIN_POSITIONS and scores_left < SPLIT_BELOW * rows * columns):
            yield from split_queries(first, first + middle, upper)
            yield from split_queries(first + middle, end, lower)
            return
    yield first, end, ranges


def width(ranges: list[KeyRange]) -> int:
    """Count the keys."""
    return sum(keys.stop - keys.start for keys in ranges)


def without_unseen_keys(ranges: list[KeyRange], rows: slice) -> list[KeyRange]:
    """Return the keys that some of the queries see, without groups of `MIN_POSITIONS` keys that none of them sees."""
    seen_ranges = []
    for start, stop, allowed in ranges:
        if allowed is None:
            seen_ranges.append(KeyRange(start, stop, None))
            continue
        allowed = allowed[rows]
        filled = torch.nn.functional.pad(allowed.any(0), (0, (start - stop) % MIN_POSITIONS))
        first = 0
        for is_seen, groups in groupby(filled.view(-1, MIN_POSITIONS).any(1).tolist()):
            end = min(first + MIN_POSITIONS * len(list(groups)), stop - start)
            if is_seen:
                seen_ranges.append(KeyRange(start + first, start + end, allowed[:, first:end]))
            first = end
    return seen_ranges


def new_query_block(
    batch: int, head: int, first: int, end: int, ranges: list[KeyRange], masks: AdditiveMasks
) -> QueryBlock:
    """Make the block in which these queries see these keys."""
    fully_masked = None
    partial = [keys.allowed for keys in ranges if keys.allowed is not None]
    if len(partial) == len(ranges):
        sees_nothing = ~torch.cat(partial, dim=1).any(dim=1, keepdim=True)
        fully_masked = sees_nothing if sees_nothing.any() else None
    slices: list[slice] = []
    partial_blocks, column = [], 0
    for start, stop, allowed in ranges:
        if slices and slices[-1].stop == start:
            slices[-1] = slice(slices[-1].start, stop)
        else:
            slices.append(slice(start, stop))
        if allowed is not None:
            allowed = allowed if fully_masked is None else allowed | fully_masked
            partial_blocks.append(PartialBlock(slice(column, column + stop - start), start, masks.find(allowed)))
        column += stop - start
    fully_masked = None if fully_masked is None else fully_masked.to(masks.device)
    return QueryBlock(batch, head, slice(first, end), tuple(slices), tuple(partial_blocks), fully_masked)


def additive_mask(allowed: Bool[Tensor, "query key"]) -> Float[Tensor, "query key"]:
    """Return what is added to scores: 0 where a pair is allowed, -inf where not."""
    return torch.zeros(allowed.shape).masked_fill_(~allowed, float("-inf"))


def pairs_at(
    mask: Mask, batch: int, head: int, first: int, end: int, start: int, stop: int
) -> Bool[Tensor, "query key"]:
    """Return the mask for queries from `first` to `end` and keys from `start` to `stop`."""
    allowed = mask.at(
        torch.tensor(batch), torch.tensor(head), torch.arange(first, end)[:, None], torch.arange(start, stop)
    )
    return allowed.expand(end - first, stop - start)
