"""Attention as a loop over blocks of queries, with its own gradient: what `BlockSparseAttention` runs on a CPU."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import torch
from jaxtyping import Float, Int32
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from txlib.attention.block_schedule import BlockSchedule, QueryBlock
from txlib.precision import without_autocast

SCORES_PER_TILE = 2**18  # of all heads: they should fit into a core's own memory


@dataclass(frozen=True, eq=False)
class Tile:
    """The part of a query block that is computed at once: for some sentences, and some of their key heads with the
    queries that share them.

    Inside, sentences and key heads are one axis, `matrices`; queries that share keys stand one below the other.

    heads: slices of the sentences, of the key heads, and of the heads that share each; None: all.
    """

    block: QueryBlock
    heads: tuple[slice, slice, slice] | None

    def select_heads(self, x: Tensor) -> Tensor:
        """Return the tile's sentences and heads, of queries or of keys, which have no axis for heads that share."""
        return x if self.heads is None else x[self.heads[: x.dim() - 2]]

    def queries(self, x: Float[Tensor, "batch kv_heads group query width"]) -> Float[Tensor, "b h g rows width"]:
        """Return the queries of the tile."""
        return self.select_heads(x).narrow(3, self.block.queries.start, self.block.rows)

    def key_slices(self, x: Float[Tensor, "batch kv_heads key width"]) -> list[Float[Tensor, "b h some width"]]:
        """Return the keys of the tile, slice by slice."""
        x = self.select_heads(x)
        return [x.narrow(2, keys.start, keys.stop - keys.start) for keys in self.block.keys]

    def keys(self, x: Float[Tensor, "batch kv_heads key width"]) -> Float[Tensor, "matrices columns width"]:
        """Return all keys of the tile."""
        slices = self.key_slices(x)
        return (slices[0] if len(slices) == 1 else torch.cat(slices, dim=2)).flatten(0, 1)

    def add(
        self, total: Float[Tensor, "batch kv_heads key width"], weights: Tensor, x: Tensor, scale: float = 1.0
    ) -> None:
        """Add scale · weightsᵀ x, for the keys of the tile."""
        for keys, columns in zip(self.key_slices(total), self.block.column_slices(), strict=True):
            target, transposed = keys.view(len(weights), -1, x.shape[-1]), weights[..., columns].mT
            if total.dtype == x.dtype:
                torch.baddbmm(target, transposed, x, alpha=scale, out=target)  # in place, as the flop counter knows it
            else:
                target.add_(torch.bmm(transposed, x), alpha=scale)


@dataclass(frozen=True, eq=False)
class GroupedTile(Tile):
    """The part of several query blocks of a `TileGroup`, computed at once: the blocks are one more axis of `matrices`.

    blocks: `block` and those after it; key_positions: of their keys.
    """

    blocks: tuple[QueryBlock, ...]
    key_positions: Int32[Tensor, "keys"]

    def queries(self, x: Float[Tensor, "batch kv_heads group query width"]) -> Float[Tensor, "b h blocks g rows width"]:
        """Return the queries of the blocks."""
        x = self.select_heads(x).narrow(3, self.block.queries.start, len(self.blocks) * self.block.rows)
        return x.unflatten(3, (len(self.blocks), -1)).movedim(3, 2)

    def keys(self, x: Float[Tensor, "batch kv_heads key width"]) -> Float[Tensor, "matrices columns width"]:
        """Return all keys of the blocks."""
        return self.select_heads(x).index_select(2, self.key_positions).view(-1, self.block.columns, x.shape[-1])

    def add(
        self, total: Float[Tensor, "batch kv_heads key width"], weights: Tensor, x: Tensor, scale: float = 1.0
    ) -> None:
        """Add scale · weightsᵀ x, for the keys of the blocks, which may have some in common."""
        total = self.select_heads(total)
        products = torch.bmm(weights.mT, x).view(*total.shape[:2], -1, x.shape[-1])
        slices = [keys for block in self.blocks for keys in block.keys]
        sizes = [keys.stop - keys.start for keys in slices]
        for keys, product in zip(slices, products.split(sizes, dim=2), strict=True):
            total[:, :, keys].add_(product, alpha=scale)


def tiles_of(schedule: BlockSchedule, batch: int, kv_heads: int, group: int, grouped: bool) -> Iterator[Tile]:
    """Yield everything that has to be computed, as many matrices at once as fit into fast memory.

    grouped: whether query blocks that continue each other may be computed together, where one alone would be small.
    """
    by_sentence, by_head = schedule.mask.batch > 1, schedule.mask.heads > 1
    for tile_group in schedule.groups:
        blocks = tile_group.query_blocks
        block = blocks[0]
        sentences, heads, members = range(batch), range(kv_heads), range(group)
        if by_sentence:
            sentences = sentences[block.batch : block.batch + 1]
        if by_head:
            kv_head, member = divmod(block.head, group)
            heads, members = heads[kv_head : kv_head + 1], members[member : member + 1]
        matrices = max(1, SCORES_PER_TILE // (block.rows * block.columns * len(members)))
        together = matrices // (len(sentences) * len(heads)) if grouped else 0
        if together > 1 and len(blocks) > 1:
            selected = as_slice(sentences), as_slice(heads), as_slice(members)
            for part in split(range(len(blocks)), together):
                positions = tile_group.key_positions[part].flatten()
                yield GroupedTile(blocks[part.start], selected, blocks[part], positions)
            continue
        for block in blocks:
            if batch * kv_heads <= matrices and not by_sentence and not by_head:
                yield Tile(block, None)
                continue
            for sentence_part in split(sentences, max(1, matrices // len(heads))):
                for head_part in split(heads, matrices):
                    yield Tile(block, (sentence_part, head_part, as_slice(members)))


def as_slice(numbers: range) -> slice:
    """Return the slice with the same start and stop."""
    return slice(numbers.start, numbers.stop)


def split(numbers: range, size: int) -> Iterator[slice]:
    """Yield the numbers in slices of at most this size, as equal as possible."""
    size = ceil(len(numbers) / ceil(len(numbers) / size))
    for start in range(numbers.start, numbers.stop, size):
        yield slice(start, min(start + size, numbers.stop))


class BlockLoop(torch.autograd.Function):
    """Attention over the tiles of a schedule.

    Only q, k and v are kept for backward: the weights of a tile are computed again, and what it adds to the gradients
    of keys and values is added in place. Dropout masks are drawn again, from the same seed.
    """

    @staticmethod
    def forward(ctx, q, k, v, bias_by_distance, sinks, softcap, schedule, dropout_p, seed):
        ctx.save_for_backward(q, k, v, bias_by_distance, sinks)
        ctx.others = softcap, schedule, dropout_p, seed
        tiles = ScheduledTiles(q, k, bias_by_distance, sinks, *ctx.others)
        out = tiles.empty_output(v.shape[-1])
        grouped_out = tiles.by_kv_head(out)
        with without_autocast(q):
            for tile in tiles:
                _, _, weights, _ = tiles.weights(tile)
                dropout_mask = tiles.dropout_mask(weights)
                if dropout_mask is not None:
                    weights *= dropout_mask
                target = tile.queries(grouped_out)
                target.copy_(torch.bmm(weights, tile.keys(v)).view(target.shape))
                if tile.block.fully_masked is not None:
                    target.masked_fill_(tile.block.fully_masked, 0)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        q, k, v, bias, sinks = ctx.saved_tensors
        tiles = ScheduledTiles(q, k, bias, sinks, *ctx.others)
        exact = torch.promote_types(q.dtype, torch.float32)  # sums of 16-bit numbers need more
        grad_q = tiles.empty_output(q.shape[-1])
        grad_k, grad_v = (torch.zeros(x.shape, dtype=exact, device=x.device) for x in (k, v))
        grad_bias = None if bias is None else torch.zeros(bias.shape, dtype=exact, device=bias.device)
        grad_sinks = None if sinks is None else torch.zeros(sinks.shape, dtype=exact, device=sinks.device)
        grouped_grad_out, grouped_grad_q = tiles.by_kv_head(grad_out), tiles.by_kv_head(grad_q)
        with without_autocast(q):
            for tile in tiles:
                fully_masked = tile.block.fully_masked
                queries, keys, weights, slope = tiles.weights(tile)  # (matrices, group · rows, head_dim), …
                dropout_mask = tiles.dropout_mask(weights)
                tile_grad_out = tile.queries(grouped_grad_out)
                if fully_masked is not None:
                    tile_grad_out = tile_grad_out.masked_fill(fully_masked, 0)
                tile_grad_out = tile_grad_out.reshape(*weights.shape[:2], -1)
                tile.add(grad_v, weights if dropout_mask is None else weights * dropout_mask, tile_grad_out)
                grad_weights = torch.bmm(tile_grad_out, tile.keys(v).mT)
                if dropout_mask is not None:
                    grad_weights *= dropout_mask
                if grad_sinks is not None:
                    tiles.add_to_sinks(grad_sinks, weights, grad_weights, tile)
                grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
                if grad_bias is not None:
                    tiles.add_to_bias(grad_bias, grad_scores, tile)
                if slope is not None:
                    grad_scores *= slope
                tile.add(grad_k, grad_scores, queries, tiles.scale)
                target = tile.queries(grouped_grad_q)
                target.copy_(tiles.product(grad_scores, keys).view(target.shape))
        grad_bias = None if grad_bias is None else grad_bias.to(bias.dtype)
        grad_sinks = None if grad_sinks is None else grad_sinks.to(sinks.dtype)
        return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype), grad_bias, grad_sinks, None, None, None, None


class ScheduledTiles:
    """The tiles of a schedule with their weights, for forward and backward."""

    def __init__(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        bias_by_distance: Float[Tensor, "heads distance"] | None,
        sinks: Float[Tensor, "heads"] | None,
        softcap: float | None,
        schedule: BlockSchedule,
        dropout_p: float,
        seed: int,
    ):
        self.kv_heads, self.key_length = k.shape[1:3]
        self.sinks = None if sinks is None else sinks.view(1, self.kv_heads, -1, 1)  # (1, kv_heads, group, 1)
        self.softcap = softcap
        self.q, self.k = self.by_kv_head(q), k
        bias = bias_by_distance
        self.bias_by_distance = None if bias is None else bias.unflatten(0, (self.kv_heads, -1))  # (kv_heads, group, …)
        self.schedule, self.dropout_p, self.scale = schedule, dropout_p, q.shape[-1] ** -0.5
        self.shape, self.zero = q.shape[:3], q.new_zeros(1, 1, 1)
        self.generator = torch.Generator(q.device).manual_seed(seed) if dropout_p else None

    def __iter__(self) -> Iterator[Tile]:
        """See `tiles_of`."""
        batch, _, group = self.q.shape[:3]
        grouped = self.bias_by_distance is None and self.sinks is None
        return tiles_of(self.schedule, batch, self.kv_heads, group, grouped)

    def by_kv_head(
        self, x: Float[Tensor, "batch heads query width"]
    ) -> Float[Tensor, "batch kv_heads group query width"]:
        """Return a view with the heads that share keys on an axis of their own."""
        return x.unflatten(1, (self.kv_heads, -1))

    def empty_output(self, width: int) -> Float[Tensor, "batch heads query width"]:
        """Return a tensor for one result per query: zeros, unless all of them will be overwritten."""
        new = self.zero.new_empty if self.schedule.covers_all_queries else self.zero.new_zeros
        return new(*self.shape, width)

    def weights(
        self, tile: Tile
    ) -> tuple[
        Float[Tensor, "matrices queries head_dim"],
        Float[Tensor, "matrices columns head_dim"],
        Float[Tensor, "matrices queries columns"],
        Float[Tensor, "matrices queries columns"] | None,
    ]:
        """Return queries, keys, the weights of the former on the latter, and the derivative of the soft-cap."""
        block = tile.block
        queries, keys = tile.queries(self.q), tile.keys(self.k)
        shape = *queries.shape[:4], block.columns
        queries = queries.reshape(len(keys), -1, queries.shape[-1])
        score, slope = self.product(queries, keys.mT), None
        if self.softcap is not None:
            capped = (score / self.softcap).tanh()
            score, slope = self.softcap * capped, 1 - capped.square()
        by_row = score.view(-1, block.rows, block.columns)
        for partial in block.partial_blocks:
            by_row[..., partial.keys].add_(self.schedule.additive_mask(block, partial))
        if self.bias_by_distance is not None:
            biases = self.bias_slices(tile, self.bias_by_distance)
            for bias, columns in zip(biases, block.column_slices(), strict=True):
                score.view(shape)[..., columns].add_(bias.unfold(-1, columns.stop - columns.start, 1).flip(-1))
        if self.sinks is None:
            return queries, keys, score.softmax(dim=-1), slope
        sink = self.of_tile(self.sinks, tile).expand(*shape[:-1], 1).reshape(*score.shape[:-1], 1)
        total = score.logsumexp(dim=-1, keepdim=True).logaddexp(sink.to(score.dtype))
        return queries, keys, (score - total).exp(), slope

    def of_tile(self, by_head: Float[Tensor, "1 kv_heads group 1"], tile: Tile) -> Float[Tensor, "1 h g 1 1"]:
        """Return the numbers of the tile's heads."""
        return (by_head if tile.heads is None else by_head[:, tile.heads[1], tile.heads[2]])[..., None]

    def product(self, a: Float[Tensor, "matrices n m"], b: Float[Tensor, "matrices m k"]) -> Tensor:
        """Return a b / √head_dim, in one pass."""
        return torch.baddbmm(self.zero, a, b, beta=0, alpha=self.scale)

    def dropout_mask(self, weights: Tensor) -> Tensor | None:
        """Draw what the weights are multiplied by: 0 where dropped, 1 / (1 - dropout_p) elsewhere; None: no dropout."""
        if self.generator is None:
            return None
        kept = torch.empty_like(weights).bernoulli_(1 - self.dropout_p, generator=self.generator)
        return kept.div_(1 - self.dropout_p)

    def bias_slices(self, tile: Tile, bias: Tensor) -> Iterator[Float[Tensor, "h g distance"]]:
        """Yield, for each slice of keys, the entries of the distances between them and the tile's queries; views."""
        queries = tile.block.queries
        bias = bias if tile.heads is None else bias[tile.heads[1:]]
        for keys in tile.block.keys:
            least = queries.start - (keys.stop - 1) + self.key_length - 1
            yield bias[..., least : queries.stop - keys.start + self.key_length - 1]

    def add_to_sinks(self, grad_sinks: Tensor, weights: Tensor, grad_weights: Tensor, tile: Tile) -> None:
        """Add the gradient of the tile's sinks: each takes what its keys leave, and gives nothing."""
        of_sink = 1 - weights.sum(dim=-1)  # (matrices, queries)
        grads = -of_sink * (weights * grad_weights).sum(dim=-1)
        target = self.of_tile(grad_sinks.view(1, self.kv_heads, -1, 1), tile)[0, ..., 0, 0]  # (h, g), a view
        target += grads.view(-1, *target.shape, tile.block.rows).sum(dim=(0, -1), dtype=target.dtype)

    def add_to_bias(self, grad_bias: Tensor, grad_scores: Tensor, tile: Tile) -> None:
        """Sum the gradient over pairs of equal distance: rows that are shifted by one more each, added up."""
        rows, columns = tile.block.rows, tile.block.columns
        slices = list(self.bias_slices(tile, grad_bias.unflatten(0, (self.kv_heads, -1))))
        by_head = grad_scores.view(-1, *slices[0].shape[:2], rows, columns).sum(0, dtype=grad_bias.dtype)
        for target, part in zip(slices, tile.block.column_slices(), strict=True):
            shifted = nn.functional.pad(by_head[..., part].flip(-1), (0, rows)).flatten(-2)[..., :-rows]
            target += shifted.unflatten(-1, (rows, -1)).sum(-2)
