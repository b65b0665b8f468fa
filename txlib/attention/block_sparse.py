"""Block-sparse attention: what a mask allows is computed, what it hides is not, and no (query, key) tensor is built.

The mask says which blocks of keys a block of queries sees. Block after block of queries, their keys are taken as slices
and attended to as the definition has it; where a block is allowed in part, the mask is asked about its pairs. So cost
and memory grow with the live blocks: linearly with the length where the mask is a window (Beltagy et al. 2020, §3.1) or
random blocks (Zaheer et al. 2020, §2). It may be any mask of the algebra, and the result is exact.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import ceil
from typing import Any

import torch
from jaxtyping import Float, Int32
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.autograd.function import once_differentiable

from txlib.attention.dense import DenseAttention
from txlib.attention.masks import Mask, MaskLike, as_dense, check_mask, full
from txlib.attention.mechanism import (
    LayerContext,
    MechanismConfig,
    as_autocast,
    by_python,
    check_dropout,
    check_inputs,
    check_sizes,
    without_autocast,
)
from txlib.attention.relative import Bias, BiasLike, check_bias
from txlib.attention.steps import Schedule, Step, own_copy, schedule

SCORES = 2**18  # of all heads, computed at a time: they should fit into a core's own memory


class BlockSparseAttention(nn.Module):
    """Attention at the cost of what the mask allows.

    On a CPU, and wherever weights are dropped, it is a loop over blocks of queries, forward and backward. On a GPU it
    is FlexAttention, compiled, and the same loop where that can't be compiled. A single block of queries, as in
    decoding, is `DenseAttention` on the keys within the mask's reach.

    What is worked out about a mask is kept: a mask is a value, and layers that share it share the work. So a rule of
    your own must not change its mind; make a new `Mask` when what it looks up has changed.

    Args:
        dropout: share of the weights dropped while training.
        block_size: queries and keys of a block.
    """

    def __init__(self, dropout: float = 0.0, *, block_size: int = 64):
        super().__init__()
        check_dropout(dropout)
        check_sizes(block_size=block_size)
        self.dropout, self.block_size = dropout, block_size
        self.dense = DenseAttention(dropout)

    def forward(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        v: Float[Tensor, "batch kv_heads key value_dim"],
        mask: MaskLike = None,
        *,
        bias: BiasLike = None,
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """See `txlib.attention.mechanism`.

        Raises:
            ValueError: for a bias that is a tensor of all pairs; for a mask that does not fit.
        """
        check_inputs(q, k, v)
        check_bias(bias)
        if isinstance(bias, Tensor):
            raise ValueError(
                f"BlockSparseAttention builds no tensor of all pairs, and this bias is one, of {tuple(bias.shape)}; "
                "use DenseAttention, or a bias that depends on the distance alone, such as AlibiBias"
            )
        check_fits(mask, q, k)
        if isinstance(mask, Mask):
            mask = mask.sized(k.shape[-2])
        if 0 in (len(q), q.shape[-2], k.shape[-2]):
            return self.dense(q, k, v)  # nothing to see
        if q.shape[-2] <= self.block_size:
            return self.one_block(q, k, v, mask, bias)
        return by_python(self.by_blocks)(q, k, v, mask, bias)

    def by_blocks(self, q: Tensor, k: Tensor, v: Tensor, mask: MaskLike, bias: Bias | None) -> Tensor:
        """Many queries: FlexAttention or the loop."""
        q, k, v = as_autocast(q, k, v)
        line = None if bias is None else bias_by_distance(bias, q, k)
        dropout = self.dropout if self.training else 0.0
        if prefers_flex(q, mask, dropout):
            out = by_flex(q, k, v, mask, line)
            if out is not None:
                return out
        steps = schedule(mask, q.shape[-2], k.shape[-2], self.block_size, q.device)
        seed = int(torch.randint(2**62, ())) if dropout and not is_fake(q) else 0
        return StepByStep.apply(q, k, v, line, steps, dropout, seed)

    def one_block(self, q: Tensor, k: Tensor, v: Tensor, mask: MaskLike, bias: Bias | None) -> Tensor:
        """Few queries: nothing is quadratic. Keys beyond the mask's reach are left out."""
        if isinstance(mask, Mask):
            nearest, farthest = mask.reach()
            first, end = max(0, -farthest), min(k.shape[-2], q.shape[-2] - nearest)
            first, end = (int(first), int(end)) if first < end else (0, 0)
            k, v, mask = k[:, :, first:end], v[:, :, first:end], mask.shift(0, first)
            bias = None if bias is None else replace(bias, ahead=bias.ahead - first)
        return self.dense(q, k, v, mask, bias=bias)

    def weights(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        mask: MaskLike = None,
        *,
        bias: BiasLike = None,
    ) -> Float[Tensor, "batch heads query key"]:
        """The weights that `forward` averages the values with: all of them, for looking at."""
        return self.dense.weights(q, k, mask, bias=bias)


@dataclass(frozen=True)
class BlockSparseConfig(MechanismConfig, name="block_sparse"):
    """`BlockSparseAttention` in a block's config, whose `mask` says which positions see which."""

    block_size: int = 64

    def make(self, block: Any, layer: LayerContext) -> BlockSparseAttention:
        """The mechanism, with the block's dropout."""
        return BlockSparseAttention(block.attention_dropout, block_size=self.block_size)


def check_fits(mask: MaskLike, q: Tensor, k: Tensor) -> None:
    """Refuse a mask for another batch, or other heads.

    Raises:
        ValueError: naming both sizes.
        TypeError: when it is no mask.
    """
    check_mask(mask)
    if isinstance(mask, Tensor):
        as_dense(mask, q, k)
    elif mask is not None and (mask.batch not in (1, q.shape[0]) or mask.heads not in (1, q.shape[1])):
        raise ValueError(
            f"{mask} holds batch={mask.batch}, heads={mask.heads}, expected those of the queries, "
            f"batch={q.shape[0]}, heads={q.shape[1]}, or 1"
        )


def bias_by_distance(bias: Bias, q: Tensor, k: Tensor) -> Float[Tensor, "heads distance"]:
    """The bias of each distance query - key, from the least to the greatest."""
    keys_first = torch.arange(k.shape[-2] - 1, -q.shape[-2], -1, device=q.device)
    return bias.values(keys_first - bias.ahead).to(q.dtype)


# The loop -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Share:
    """The part of a step that is computed at once: for some sentences, and some of their key heads with the queries
    that share them.

    Inside, sentences and key heads are one axis, `matrices`; queries that share keys stand one below the other.

    heads: slices of the sentences, of the key heads, and of the heads that share each; None: all.
    """

    step: Step
    heads: tuple[slice, slice, slice] | None

    def own(self, x: Tensor) -> Tensor:
        """Its sentences and heads, of queries or of keys: the latter have no axis for heads that share them."""
        return x if self.heads is None else x[self.heads[: x.dim() - 2]]

    def queries(self, x: Float[Tensor, "batch kv_heads group query width"]) -> Float[Tensor, "b h g rows width"]:
        """Those of the step."""
        return self.own(x).narrow(3, self.step.queries.start, self.step.rows)

    def runs(self, x: Float[Tensor, "batch kv_heads key width"]) -> list[Float[Tensor, "b h some width"]]:
        """The keys of the step, run by run."""
        x = self.own(x)
        return [x.narrow(2, run.start, run.stop - run.start) for run in self.step.keys]

    def joined_keys(self, x: Float[Tensor, "batch kv_heads key width"]) -> Float[Tensor, "matrices columns width"]:
        """All keys of the step."""
        runs = self.runs(x)
        return (runs[0] if len(runs) == 1 else torch.cat(runs, dim=2)).flatten(0, 1)

    def add(
        self, total: Float[Tensor, "batch kv_heads key width"], weights: Tensor, x: Tensor, scale: float = 1.0
    ) -> None:
        """Add scale · weightsᵀ x, for the keys of the step."""
        for run, place in zip(self.runs(total), self.step.places(), strict=True):
            target, turned = run.view(len(weights), -1, x.shape[-1]), weights[..., place].mT
            if total.dtype == x.dtype:
                torch.baddbmm(target, turned, x, alpha=scale, out=target)  # in place, as the flop counter knows it
            else:
                target.add_(torch.bmm(turned, x), alpha=scale)


@dataclass(frozen=True, eq=False)
class StackedShare(Share):
    """The part of some steps that are alike, computed at once: the steps are one more axis of `matrices`.

    steps: `step` and those after it; positions: of their keys.
    """

    steps: tuple[Step, ...]
    positions: Int32[Tensor, "keys"]

    def queries(self, x: Float[Tensor, "batch kv_heads group query width"]) -> Float[Tensor, "b h steps g rows width"]:
        """Those of the steps."""
        x = self.own(x).narrow(3, self.step.queries.start, len(self.steps) * self.step.rows)
        return x.unflatten(3, (len(self.steps), -1)).movedim(3, 2)

    def joined_keys(self, x: Float[Tensor, "batch kv_heads key width"]) -> Float[Tensor, "matrices columns width"]:
        """All keys of the steps."""
        return self.own(x).index_select(2, self.positions).view(-1, self.step.columns, x.shape[-1])

    def add(
        self, total: Float[Tensor, "batch kv_heads key width"], weights: Tensor, x: Tensor, scale: float = 1.0
    ) -> None:
        """Add scale · weightsᵀ x, for the keys of the steps, which may have some in common."""
        total = self.own(total)
        parts = torch.bmm(weights.mT, x).view(*total.shape[:2], -1, x.shape[-1])
        runs = [run for step in self.steps for run in step.keys]
        for run, part in zip(runs, parts.split([run.stop - run.start for run in runs], dim=2), strict=True):
            total[:, :, run].add_(part, alpha=scale)


def shares(schedule: Schedule, batch: int, kv_heads: int, group: int, stacked: bool) -> Iterator[Share]:
    """All that has to be computed, as many matrices at once as fit into fast memory.

    stacked: whether steps that are alike may be computed together, where one alone would leave room.
    """
    by_sentence, by_head = schedule.mask.batch > 1, schedule.mask.heads > 1
    for stack in schedule.stacks:
        step = stack.steps[0]
        sentences, heads, members = range(batch), range(kv_heads), range(group)
        if by_sentence:
            sentences = sentences[step.batch : step.batch + 1]
        if by_head:
            shared, member = divmod(step.head, group)
            heads, members = heads[shared : shared + 1], members[member : member + 1]
        matrices = max(1, SCORES // (step.rows * step.columns * len(members)))
        together = matrices // (len(sentences) * len(heads)) if stacked else 0
        if together > 1 and len(stack.steps) > 1:
            part = whole(sentences), whole(heads), whole(members)
            for some in split(range(len(stack.steps)), together):
                yield StackedShare(stack.steps[some.start], part, stack.steps[some], stack.positions[some].flatten())
            continue
        for step in stack.steps:
            if batch * kv_heads <= matrices and not by_sentence and not by_head:
                yield Share(step, None)
                continue
            for some in split(sentences, max(1, matrices // len(heads))):
                for few in split(heads, matrices):
                    yield Share(step, (some, few, whole(members)))


def whole(numbers: range) -> slice:
    """All of the numbers."""
    return slice(numbers.start, numbers.stop)


def split(numbers: range, size: int) -> Iterator[slice]:
    """The numbers in slices of at most this size, as equal as can be."""
    size = ceil(len(numbers) / ceil(len(numbers) / size))
    for start in range(numbers.start, numbers.stop, size):
        yield slice(start, min(start + size, numbers.stop))


class StepByStep(torch.autograd.Function):
    """Attention over the steps of a schedule.

    Nothing is kept for backward but q, k and v: a step's weights are computed again, and what it adds to the gradients
    of keys and values is added in place. Weights that are dropped are drawn again, from the same seed.
    """

    @staticmethod
    def forward(ctx, q, k, v, line, schedule, dropout, seed):
        ctx.save_for_backward(q, k, v, line)
        ctx.others = schedule, dropout, seed
        loop = Loop(q, k, line, schedule, dropout, seed)
        out = loop.room(v.shape[-1])
        outs = loop.grouped(out)
        with without_autocast(q):
            for share in loop.shares():
                _, _, weights = loop.weights(share)
                noise = loop.noise(weights)
                if noise is not None:
                    weights *= noise
                target = share.queries(outs)
                target.copy_(torch.bmm(weights, share.joined_keys(v)).view(target.shape))
                if share.step.blind is not None:
                    target.masked_fill_(share.step.blind, 0)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        q, k, v, line = ctx.saved_tensors
        loop = Loop(q, k, line, *ctx.others)
        exact = torch.promote_types(q.dtype, torch.float32)  # sums of 16-bit numbers need more
        to_q = loop.room(q.shape[-1])
        to_k, to_v = (torch.zeros(x.shape, dtype=exact, device=x.device) for x in (k, v))
        to_line = None if line is None else torch.zeros(line.shape, dtype=exact, device=line.device)
        gradients, to_queries = loop.grouped(gradient), loop.grouped(to_q)
        with without_autocast(q):
            for share in loop.shares():
                step = share.step
                queries, keys, weights = loop.weights(share)  # (matrices, group · rows, head_dim), …
                noise = loop.noise(weights)
                towards = share.queries(gradients)
                if step.blind is not None:
                    towards = towards.masked_fill(step.blind, 0)
                towards = towards.reshape(*weights.shape[:2], -1)
                share.add(to_v, weights if noise is None else weights * noise, towards)
                to_weights = torch.bmm(towards, share.joined_keys(v).mT)
                if noise is not None:
                    to_weights *= noise
                to_scores = torch._softmax_backward_data(to_weights, weights, -1, weights.dtype)
                share.add(to_k, to_scores, queries, loop.scale)
                target = share.queries(to_queries)
                target.copy_(loop.product(to_scores, keys).view(target.shape))
                if to_line is not None:
                    loop.add_to_line(to_line, to_scores, share)
        to_line = None if to_line is None else to_line.to(line.dtype)
        return to_q, to_k.to(k.dtype), to_v.to(v.dtype), to_line, None, None, None


class Loop:
    """What forward and backward do alike."""

    def __init__(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        line: Float[Tensor, "heads distance"] | None,
        schedule: Schedule,
        dropout: float,
        seed: int,
    ):
        self.kv_heads, self.key_length = k.shape[1:3]
        self.q, self.k = self.grouped(q), k
        self.line = None if line is None else line.unflatten(0, (self.kv_heads, -1))  # (kv_heads, group, distance)
        self.schedule, self.dropout, self.scale = schedule, dropout, q.shape[-1] ** -0.5
        self.shape, self.nothing = q.shape[:3], q.new_zeros(1, 1, 1)
        self.generator = torch.Generator(q.device).manual_seed(seed) if dropout else None

    def grouped(self, x: Float[Tensor, "batch heads query width"]) -> Float[Tensor, "batch kv_heads group query width"]:
        """Heads that share keys, on an axis of their own."""
        return x.unflatten(1, (self.kv_heads, -1))

    def room(self, width: int) -> Float[Tensor, "batch heads query width"]:
        """For a result per query: zeros, unless all of them will be written over."""
        return (self.nothing.new_empty if self.schedule.complete else self.nothing.new_zeros)(*self.shape, width)

    def shares(self) -> Iterator[Share]:
        """See the function."""
        batch, _, group = self.q.shape[:3]
        return shares(self.schedule, batch, self.kv_heads, group, stacked=self.line is None)

    def weights(
        self, share: Share
    ) -> tuple[
        Float[Tensor, "matrices queries head_dim"],
        Float[Tensor, "matrices columns head_dim"],
        Float[Tensor, "matrices queries columns"],
    ]:
        """Queries, keys, and the weights of the one for the other."""
        step = share.step
        queries, keys = share.queries(self.q), share.joined_keys(self.k)
        shape = *queries.shape[:4], step.columns
        queries = queries.reshape(len(keys), -1, queries.shape[-1])
        score = self.product(queries, keys.mT)
        by_row = score.view(-1, step.rows, step.columns)
        for edge in step.edges:
            by_row[..., edge.keys].add_(self.schedule.hidden(step, edge))
        if self.line is not None:
            for line, place in zip(self.lines(share, self.line), step.places(), strict=True):
                score.view(shape)[..., place].add_(line.unfold(-1, place.stop - place.start, 1).flip(-1))
        return queries, keys, score.softmax(dim=-1)

    def product(self, a: Float[Tensor, "matrices n m"], b: Float[Tensor, "matrices m k"]) -> Tensor:
        """a b / √head_dim, in one pass."""
        return torch.baddbmm(self.nothing, a, b, beta=0, alpha=self.scale)

    def noise(self, weights: Tensor) -> Tensor | None:
        """What weights are multiplied by when some are dropped."""
        if self.generator is None:
            return None
        return torch.empty_like(weights).bernoulli_(1 - self.dropout, generator=self.generator).div_(1 - self.dropout)

    def lines(self, share: Share, line: Tensor) -> Iterator[Float[Tensor, "h g distance"]]:
        """For each run of keys, the entries of the distances between them and the queries of a step; views."""
        queries = share.step.queries
        line = line if share.heads is None else line[share.heads[1:]]
        for run in share.step.keys:
            least = queries.start - (run.stop - 1) + self.key_length - 1
            yield line[..., least : queries.stop - run.start + self.key_length - 1]

    def add_to_line(self, line: Tensor, to_scores: Tensor, share: Share) -> None:
        """Sum the gradient over pairs of equal distance: rows that are moved by one place each, added up."""
        rows, columns = share.step.rows, share.step.columns
        lines = list(self.lines(share, line.unflatten(0, (self.kv_heads, -1))))
        by_head = to_scores.view(-1, *lines[0].shape[:2], rows, columns).sum(0, dtype=line.dtype)
        for part, place in zip(lines, share.step.places(), strict=True):
            moved = nn.functional.pad(by_head[..., place].flip(-1), (0, rows)).flatten(-2)[..., :-rows]
            part += moved.unflatten(-1, (rows, -1)).sum(-2)


# FlexAttention --------------------------------------------------------------------------------------------------------

FLEX_BLOCK = 128  # what its kernels are made for
FLEX_KERNELS = 256  # of kinds of masks, types, sizes; from more on they are no longer compiled (torch's own limit is 8)
not_compiled: set[tuple] = set()


def prefers_flex(q: Tensor, mask: MaskLike, dropout: float) -> bool:
    """On a GPU, for rules: it drops no weights, and can't look into a tensor's blocks."""
    return q.device.type == "cuda" and not isinstance(mask, Tensor) and not dropout


def by_flex(
    q: Tensor, k: Tensor, v: Tensor, given: MaskLike, line: Tensor | None
) -> Float[Tensor, "batch heads query value_dim"] | None:
    """FlexAttention, compiled; None, with a warning, where it can't be."""
    mask = own_copy(given) if isinstance(given, Mask) else full()
    kind = kind_of(mask), q.dtype, q.shape[-1], v.shape[-1], q.shape[1] // k.shape[1], line is None
    if kind in not_compiled:
        return None
    block_mask = kept_block_mask(mask, q.shape[-2], k.shape[-2], q.device)
    try:
        with torch._dynamo.config.patch(recompile_limit=FLEX_KERNELS):
            return compiled_flex()(
                q,
                k,
                v,
                score_mod=None if line is None else adding(line, k.shape[-2] - 1),
                block_mask=block_mask,
                enable_gqa=k.shape[1] != q.shape[1],
            )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # compilers fail in many ways
        not_compiled.add(kind)
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(f"FlexAttention can't be compiled for {mask} ({reason}); a loop takes its place", stacklevel=3)
        return None


def kind_of(mask: Mask) -> tuple:
    """What masks have in common that one kernel is compiled for: all but the numbers that they look up."""
    values = (value for _, value in mask.fields())
    parts = (
        (kind_of(each) if isinstance(each, Mask) else None if isinstance(each, Tensor) else each) for each in values
    )
    return mask.kind, *parts


def adding(line: Tensor, behind: int) -> Callable[..., Tensor]:
    """For FlexAttention: a bias by distance, added to the scores. The key 0 is `behind` places behind the last."""
    first = torch.full((), behind, device=line.device)  # a number of its own would be compiled in

    def add_bias(score, batch, head, query, key):
        return score + line[head, query - key + first]

    return add_bias


@lru_cache(maxsize=32)
def kept_block_mask(mask: Mask, query_length: int, key_length: int, device: torch.device) -> Any:
    """`Mask.block_mask`, kept for the next layer."""
    return mask.block_mask(query_length, key_length, device=device, block_size=FLEX_BLOCK)


@cache
def compiled_flex() -> Callable[..., Any]:
    """FlexAttention's kernel. A graph that can't be had whole is an error: outside of it, it writes out all scores."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, fullgraph=True)
