"""FlashAttention: exact attention in tiles, which never holds the matrix of scores (Dao et al. 2022; Dao 2023).

This file computes it in PyTorch, to be read, and on any device; `flash_triton` holds the kernels for a GPU. Both do the
same sums in the same order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from txlib.attention.band import MAX_HEAD_DIM, Band
from txlib.attention.functional import attention_weights
from txlib.attention.masks import Mask, MaskLike, as_dense
from txlib.attention.mechanism import (
    LayerContext,
    MechanismConfig,
    by_python,
    check_inputs,
    check_no_dropout,
    check_sizes,
    for_each_head,
)
from txlib.precision import as_autocast, without_autocast


class TiledAttention(torch.autograd.Function):
    """FlashAttention-2 as a function with its own gradient: `TiledAttention.apply(q, k, v, is_causal)`.

    Forward is Dao 2023, algorithm 1, with the online softmax of Milakov & Gimelshein 2018, algorithm 3: it saves one
    number per query, the logarithm of its softmax's denominator. Backward is algorithm 2: it computes the weights again
    from that number. Types of 16 bits are summed up in 32, as on a GPU. There is no second derivative.

    Args (positional):
        q: (batch, query, head_dim). It may hold several times as many as k: then neighbors share keys.
        k, v: (batch, key, head_dim) and (batch, key, value_dim).
        is_causal: query i sees keys 0 … i.
        band: which keys a query sees, instead of is_causal.
        tile: queries and keys of a tile.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Float[Tensor, "batch query head_dim"],
        k: Float[Tensor, "kv_batch key head_dim"],
        v: Float[Tensor, "kv_batch key value_dim"],
        is_causal: bool = False,
        band: Band | None = None,
        tile: int = 128,
    ) -> Float[Tensor, "batch query value_dim"]:
        if not q.dim() == k.dim() == v.dim() == 3 or k.shape[:2] != v.shape[:2] or len(q) % max(len(k), 1):
            raise ValueError(
                "TiledAttention takes (batch, length, width), and for several batches of queries one of keys, got "
                f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}; flatten heads into the batch: "
                "q.flatten(0, 1)"
            )
        band = Band.plain(q.shape[1], k.shape[1], is_causal) if band is None else band
        with without_autocast(q):
            out, lse = tiled_forward(q, k, v, band, tile)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.band, ctx.tile = band, tile
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        with without_autocast(d_out):
            return *tiled_backward(q, k, v, out, lse, d_out, ctx.band, ctx.tile), None, None, None


def tiled_forward(
    q: Tensor, k: Tensor, v: Tensor, band: Band, tile: int
) -> tuple[Float[Tensor, "batch query value_dim"], Float[Tensor, "batch query"]]:
    """Return the output, and for each query the log-sum-exp of its scores (the lowest float if it sees nothing)."""
    tiles = Tiles(q, k, band, tile)
    out = q.new_empty(len(k), tiles.rows, v.shape[-1])  # (kv_batch, rows, value_dim)
    lse = wide(q.new_empty(len(k), tiles.rows, 1))
    lowest = torch.finfo(lse.dtype).min  # not -∞: -∞ - (-∞) is NaN
    for rows in tiles.of_rows():
        biggest = torch.full_like(lse[:, rows], lowest)  # (kv_batch, tile, 1): the greatest score so far
        total = torch.zeros_like(biggest)  # (kv_batch, tile, 1): the sum of exp(score - biggest) so far
        mixed = wide(torch.zeros_like(out[:, rows]))  # (kv_batch, tile, value_dim): the same sum, of values
        for columns in tiles.of_columns(rows):
            score = tiles.score(rows, columns)  # (kv_batch, tile, tile)
            greatest = biggest.maximum(score.amax(dim=-1, keepdim=True))
            weight = (score - greatest).exp()
            rescale = (biggest - greatest).exp()  # earlier sums are relative to a smaller maximum
            total = total * rescale + weight.sum(dim=-1, keepdim=True)
            mixed = mixed * rescale + weight @ wide(v[:, columns])
            biggest = greatest
        total = total.clamp(min=torch.finfo(total.dtype).tiny)  # a query that sees nothing: 0 / tiny
        out[:, rows] = (mixed / total).to(out.dtype)
        lse[:, rows] = biggest + total.log()
    return out.view(*q.shape[:-1], v.shape[-1]), lse.view(q.shape[:-1])


def tiled_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, d_out: Tensor, band: Band, tile: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v."""
    tiles = Tiles(q, k, band, tile)
    out, d_out = (x.reshape(len(k), tiles.rows, v.shape[-1]) for x in (out, d_out))  # (kv_batch, rows, value_dim)
    lse = lse.view(len(k), tiles.rows, 1)
    dq, dk, dv = (wide(torch.zeros_like(x)) for x in (tiles.q, k, v))
    for rows in tiles.of_rows():
        d_mixed = wide(d_out[:, rows])  # (kv_batch, tile, value_dim)
        delta = (d_mixed * wide(out[:, rows])).sum(dim=-1, keepdim=True)  # (kv_batch, tile, 1): Σ weight · d_weight
        for columns in tiles.of_columns(rows):
            weight = (tiles.score(rows, columns) - lse[:, rows]).exp()  # (kv_batch, tile, tile)
            d_weight = d_mixed @ wide(v[:, columns]).mT
            d_score = weight * (d_weight - delta)
            dv[:, columns] += weight.mT @ d_mixed
            dk[:, columns] += d_score.mT @ wide(tiles.q[:, rows]) * tiles.scale
            dq[:, rows] += d_score @ wide(k[:, columns]) * tiles.scale
    return dq.view_as(q).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


class Tiles:
    """The scores, a tile at a time. Queries of heads that share keys are stacked in one matrix."""

    def __init__(self, q: Tensor, k: Tensor, band: Band, tile: int):
        self.queries, self.keys, self.tile = q.shape[1], k.shape[1], tile
        self.rows = len(q) // len(k) * self.queries if len(k) else 0
        self.q, self.k = q.reshape(len(k), self.rows, q.shape[-1]), k
        self.scale = q.shape[-1] ** -0.5
        shared = None if band.visible is None else band.visible.repeat_interleave(len(k) // len(band.visible), dim=0)
        self.band, self.visible = band, shared  # visible: (kv_batch, key)

    def of_rows(self) -> Iterator[slice]:
        """Return tiles of queries."""
        return (slice(start, min(start + self.tile, self.rows)) for start in range(0, self.rows, self.tile))

    def of_columns(self, rows: slice) -> Iterator[slice]:
        """Return tiles of keys that some of these queries see; the others are skipped."""
        keys = self.band.seen(*self.positions(rows), self.keys)
        return (slice(start, min(start + self.tile, keys.stop)) for start in range(keys.start, keys.stop, self.tile))

    def positions(self, rows: slice) -> tuple[int, int]:
        """Return the first and the last position of these queries; of all queries if they belong to two heads."""
        first, last = rows.start % self.queries, (rows.stop - 1) % self.queries
        return (first, last) if rows.stop - rows.start == last - first + 1 else (0, self.queries - 1)

    def score(self, rows: slice, columns: slice) -> Float[Tensor, "kv_batch tile_q tile_k"]:
        """Return scaled scores, -∞ where the query may not see the key."""
        score = (wide(self.q[:, rows]) * self.scale) @ wide(self.k[:, columns]).mT
        if self.band.whole(*self.positions(rows), columns):
            return score
        query = torch.arange(rows.start, rows.stop, device=score.device) % self.queries
        distance = query[:, None] - torch.arange(columns.start, columns.stop, device=score.device)
        hidden = (distance < self.band.least) | (distance > self.band.greatest)  # (tile, tile)
        if self.visible is not None:
            hidden = hidden | ~self.visible[:, None, columns]  # (kv_batch, tile, tile)
        return score.masked_fill(hidden, -torch.inf)


def wide(x: Tensor) -> Tensor:
    """Return x in at least 32 bits."""
    return x if x.dtype == torch.float64 else x.float()


class FlashAttention(nn.Module):
    """Dense attention's numbers in memory that grows with the length, not with its square (Dao 2023).

    Takes no mask, `causal()`, sliding windows, padding and any other mask on keys alone, joined by `&`, and skips what
    they hide. A GPU runs the Triton kernels, everything else the tiles in PyTorch, which are for reading; on a CPU
    `DenseAttention` is fast, and its kernel uses the same algorithm. Numbers of 16 bits are multiplied as they are on a
    GPU, in 32 bits on a CPU, and summed up in 32.

    Args:
        triton: force the Triton kernels (True) or the tiles in PyTorch (False); None chooses.
        tile: queries and keys of a tile in PyTorch; Triton finds its own by trying a few.

    Raises:
        ValueError: for a tile of nothing.
    """

    def __init__(self, *, triton: bool | None = None, tile: int = 128):
        super().__init__()
        check_sizes(tile=tile)
        self.triton, self.tile = triton, tile

    def forward(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        v: Float[Tensor, "batch kv_heads key value_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """See `txlib.attention.mechanism`.

        Raises:
            ValueError: for a mask that is not a band, or is a tensor.
        """
        check_inputs(q, k, v)
        if isinstance(mask, Mask) and mask.batch not in (1, len(q)):
            as_dense(mask, q, k)  # raises
        q, k, v = as_autocast(q, k, v)
        band = Band.of(mask, q.shape[-2], k.shape[-2], q.device)
        flat = (x.flatten(0, 1) for x in (q, k, v))  # (batch · heads, length, head_dim)
        return by_python(self.in_tiles)(*flat, band).unflatten(0, q.shape[:2])

    def in_tiles(self, q: Tensor, k: Tensor, v: Tensor, band: Band) -> Tensor:
        """Run Triton or the tiles in PyTorch."""
        if self.runs_triton(q, v):
            from txlib.attention.flash_triton import TritonAttention

            return TritonAttention.apply(q, k, v, False, band)
        return TiledAttention.apply(q, k, v, False, band, self.tile)

    def runs_triton(self, q: Tensor, v: Tensor) -> bool:
        """Return whether the Triton kernels run here."""
        if self.triton and find_spec("triton") is None:
            raise ValueError("triton=True needs Triton, which is not installed here; leave it out, or triton=False")
        if self.triton is not None:
            return self.triton
        fits = max(q.shape[-1], v.shape[-1]) <= MAX_HEAD_DIM and q.dtype != torch.float64
        return q.device.type == "cuda" and fits and find_spec("triton") is not None

    def weights(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads query key"]:
        """Return the weights, which `forward` never writes out; they need n × n memory."""
        return attention_weights(q, for_each_head(k, q.shape[1]), mask)


@dataclass(frozen=True)
class FlashConfig(MechanismConfig, name="flash"):
    """`FlashAttention` in a block's config."""

    triton: bool | None = None
    tile: int = 128

    def make(self, block: Any, layer: LayerContext) -> FlashAttention:
        """Return the mechanism.

        Raises:
            ValueError: when the block drops weights, which are never stored.
        """
        check_no_dropout("FlashAttention", block)
        return FlashAttention(triton=self.triton, tile=self.tile)
