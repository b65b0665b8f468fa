"""What a mask comes to, step by step: which neighbouring queries see which slices of the keys.

`BlockSparseAttention` computes the steps one after the other. They come from the mask's blocks (`Mask.blocks`), so
nothing here is of the size (query, key) but the pairs of blocks that are allowed in part, a few at a time.
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

LONGEST = 2**21  # scores of one head in a step
FEW = 8  # queries that are worth a step of their own, keys that are worth leaving out
WORTH = 0.6  # a step is cut in two where so small a part of its scores is left then
KEPT = 2**20  # entries of blocks allowed in part that a schedule holds; the others are computed when needed


class Part(NamedTuple):
    """Neighbouring keys of a step: from `start` to `stop`. allowed: (query, key), None where all are."""

    start: int
    stop: int
    allowed: Tensor | None


class Edge(NamedTuple):
    """Keys of which only some queries of the step may see some.

    keys: among those of the step; start: position of the first; hidden: what is added to their scores, (query, key),
    0 where allowed and -inf where not; None: to be computed.
    """

    keys: slice
    start: int
    hidden: Tensor | None


@dataclass(frozen=True, eq=False)
class Step:
    """Neighbouring queries and the keys that they may see.

    batch, head: of the mask, where it depends on them; blind: queries that see nothing, None where all see something.
    """

    batch: int
    head: int
    queries: slice
    keys: tuple[slice, ...]
    edges: tuple[Edge, ...]
    blind: Bool[Tensor, "query 1"] | None

    @cached_property
    def rows(self) -> int:
        """How many queries."""
        return self.queries.stop - self.queries.start

    @cached_property
    def columns(self) -> int:
        """How many keys."""
        return sum(run.stop - run.start for run in self.keys)

    def places(self) -> Iterator[slice]:
        """Where each run of keys stands among all of the step."""
        place = 0
        for run in self.keys:
            yield slice(place, place := place + run.stop - run.start)

    def is_like(self, earlier: "Step") -> bool:
        """Whether its queries follow those of an earlier step, and see as many keys in the same way."""
        return (
            (self.batch, self.head, self.queries.start) == (earlier.batch, earlier.head, earlier.queries.stop)
            and (self.rows, self.columns, len(self.edges)) == (earlier.rows, earlier.columns, len(earlier.edges))
            and self.blind is earlier.blind is None
            and all(
                mine.keys == its.keys and mine.hidden is its.hidden is not None
                for mine, its in zip(self.edges, earlier.edges, strict=True)
            )
        )


@dataclass(frozen=True, eq=False)
class Stack:
    """Steps that are alike, each but the first to its neighbour: they can be computed as one."""

    steps: tuple[Step, ...]
    device: torch.device

    @cached_property
    def positions(self) -> Int32[Tensor, "steps columns"]:
        """Of the keys of each step."""
        runs = [torch.arange(run.start, run.stop, dtype=torch.int32) for step in self.steps for run in step.keys]
        return torch.cat(runs).view(len(self.steps), -1).to(self.device)


@dataclass(frozen=True, eq=False)
class Schedule:
    """The steps of a mask for sequences of some lengths. A query without a step sees nothing."""

    mask: Mask
    query_length: int
    device: torch.device
    steps: tuple[Step, ...]

    @cached_property
    def complete(self) -> bool:
        """Whether every query has a step."""
        return sum(step.rows for step in self.steps) == self.query_length * self.mask.batch * self.mask.heads

    @cached_property
    def stacks(self) -> tuple[Stack, ...]:
        """The steps in their order, those together that are alike."""
        stacks: list[list[Step]] = []
        for step in self.steps:
            if stacks and step.is_like(stacks[-1][-1]):
                stacks[-1].append(step)
            else:
                stacks.append([step])
        return tuple(Stack(tuple(steps), self.device) for steps in stacks)

    def hidden(self, step: Step, edge: Edge) -> Float[Tensor, "query key"]:
        """What is added to the scores of an edge."""
        if edge.hidden is not None:
            return edge.hidden
        stop = edge.start + edge.keys.stop - edge.keys.start
        allowed = pairs_at(self.mask, step.batch, step.head, step.queries.start, step.queries.stop, edge.start, stop)
        if step.blind is not None:
            allowed = allowed | step.blind.cpu()
        return added(allowed).to(self.device)


class Tiles:
    """What is added to the scores of edges: a tensor for equal ones, which a window has many of."""

    def __init__(self, device: torch.device):
        self.device, self.entries = device, 0
        self.known: dict[tuple, Tensor] = {}

    def find(self, allowed: Bool[Tensor, "query key"]) -> Float[Tensor, "query key"] | None:
        """What hides the other pairs; None where too much is kept already."""
        name = (*allowed.shape, allowed.numpy().tobytes())
        if name not in self.known:
            if self.entries + allowed.numel() > KEPT:
                return None
            self.entries += allowed.numel()
            self.known[name] = added(allowed).to(self.device)
        return self.known[name]


def schedule(mask: MaskLike, query_length: int, key_length: int, size: int, device: torch.device) -> Schedule:
    """The steps of a mask. A rule's are kept for the next layer, with a copy of what it looks up: that may change."""
    arguments = query_length, key_length, size, device
    with unset_fake_temporarily():  # also where a model runs on tensors without numbers, a plan is made of numbers
        if isinstance(mask, Tensor):
            return new_schedule(as_rule(mask), *arguments)
        return kept_schedule(full() if mask is None else own_copy(mask), *arguments)


def as_rule(mask: Bool[Tensor, "batch heads query key"]) -> Mask:
    """A tensor that broadcasts to (batch, heads, query, key) as a rule."""
    mask = mask.cpu()
    batch, heads, queries, _ = mask.shape
    if heads == queries == 1:
        return padding_from_mask(mask[:, 0, 0])
    return Mask(lambda b, h, query, key: mask[b, h, query if queries > 1 else 0 * query, key], batch, heads)


def own_copy(mask: Mask) -> Mask:
    """The same mask, of which nobody else holds a tensor."""
    parts = {
        name: own_copy(each) if isinstance(each, Mask) else each.cpu().clone()
        for name, each in mask.fields()
        if isinstance(each, Mask | Tensor)
    }
    return replace(mask, **parts) if parts else mask


def new_schedule(mask: Mask, query_length: int, key_length: int, size: int, device: torch.device) -> Schedule:
    """The steps of a mask, worked out."""
    plan = mask.blocks(query_length, key_length, size=size)
    tiles, steps = Tiles(device), []
    for row, runs in live_runs(plan):
        line, row = divmod(row, plan.shape[2])
        batch, head = divmod(line, plan.shape[1])
        first, end = row * size, min(row * size + size, query_length)
        parts = []
        for _, column, last, state in runs:
            start, stop = column * size, min(last * size, key_length)
            allowed = None if state == ALL else pairs_at(mask, batch, head, first, end, start, stop)
            parts.append(Part(start, stop, allowed))
        parts = narrowed(parts, slice(None))
        steps += [new_step(batch, head, *piece, tiles) for piece in cut(first, end, parts)]
    return Schedule(mask, query_length, device, tuple(steps))


kept_schedule = lru_cache(maxsize=32)(new_schedule)


def live_runs(plan: BlockPlan) -> Iterator[tuple[int, Iterator[tuple[int, int, int, int]]]]:
    """For each row of blocks with an allowed pair: its number, and the runs of its blocks: (number of the row, first
    column, the one after the last, state)."""
    runs, (batch, heads, rows, columns) = plan.runs, plan.shape
    total = batch * heads * rows * columns
    first = torch.cat([runs.first, torch.arange(0, total, columns)]).unique()
    state = runs.state_at(first)
    row, length = first // columns, torch.diff(first, append=torch.tensor([total]))
    column = first - row * columns
    table = torch.stack([row, column, column + length, state], dim=1)[state != NONE]
    return groupby(table.tolist(), key=itemgetter(0))


def cut(first: int, end: int, parts: list[Part]) -> Iterator[tuple[int, int, list[Part]]]:
    """Queries from `first` to `end` and their keys; in halves, where there is too much of them, or where halves see
    much less: one token that sees everything should not make its neighbours pay for it."""
    rows, columns = end - first, width(parts)
    if not columns:
        return
    if rows > 1:
        middle = rows // 2
        upper, lower = narrowed(parts, slice(0, middle)), narrowed(parts, slice(middle, rows))
        left = middle * width(upper) + (rows - middle) * width(lower)
        if rows * columns > LONGEST or (rows > FEW and left < WORTH * rows * columns):
            yield from cut(first, first + middle, upper)
            yield from cut(first + middle, end, lower)
            return
    yield first, end, parts


def width(parts: list[Part]) -> int:
    """How many keys."""
    return sum(part.stop - part.start for part in parts)


def narrowed(parts: list[Part], rows: slice) -> list[Part]:
    """What some of the queries see: without keys, a few in a row at least, that none of them does."""
    found = []
    for start, stop, allowed in parts:
        if allowed is None:
            found.append(Part(start, stop, None))
            continue
        allowed = allowed[rows]
        seen = torch.nn.functional.pad(allowed.any(0), (0, (start - stop) % FEW)).view(-1, FEW).any(1).tolist()
        place = 0
        for live, some in groupby(seen):
            end = min(place + FEW * len(list(some)), stop - start)
            if live:
                found.append(Part(start + place, start + end, allowed[:, place:end]))
            place = end
    return found


def new_step(batch: int, head: int, first: int, end: int, parts: list[Part], tiles: Tiles) -> Step:
    """The step in which these queries see these keys."""
    seen = None  # by each query
    edged = [part.allowed for part in parts if part.allowed is not None]
    if len(edged) == len(parts):
        seen = torch.cat(edged, dim=1).any(dim=1, keepdim=True)
    blind = None if seen is None or seen.all() else ~seen
    keys: list[slice] = []
    edges, place = [], 0
    for start, stop, allowed in parts:
        if keys and keys[-1].stop == start:
            keys[-1] = slice(keys[-1].start, stop)
        else:
            keys.append(slice(start, stop))
        if allowed is not None:
            allowed = allowed if blind is None else allowed | blind
            edges.append(Edge(slice(place, place + stop - start), start, tiles.find(allowed)))
        place += stop - start
    blind = None if blind is None else blind.to(tiles.device)
    return Step(batch, head, slice(first, end), tuple(keys), tuple(edges), blind)


def added(allowed: Bool[Tensor, "query key"]) -> Float[Tensor, "query key"]:
    """What is added to scores: 0 where allowed, -inf where not."""
    return torch.zeros(allowed.shape).masked_fill_(~allowed, float("-inf"))


def pairs_at(
    mask: Mask, batch: int, head: int, first: int, end: int, start: int, stop: int
) -> Bool[Tensor, "query key"]:
    """The mask for queries from `first` to `end` and keys from `start` to `stop`."""
    sentence, number = torch.tensor(batch), torch.tensor(head)
    allowed = mask.at(sentence, number, torch.arange(first, end)[:, None], torch.arange(start, stop))
    return allowed.expand(end - first, stop - start)
