"""Block-sparse attention: what a mask allows is computed, what it hides is not, and no (query, key) tensor is built.

The mask says which blocks of keys a block of queries sees. Block after block of queries, their keys are taken as slices
and attended to as the definition has it; where a block is allowed in part, the mask is asked about its pairs. So cost
and memory grow with the live blocks: linearly with the length where the mask is a window (Beltagy et al. 2020, §3.1) or
random blocks (Zaheer et al. 2020, §2). It may be any mask of the algebra, and the result is exact.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake

from txlib.attention import flex
from txlib.attention.block_loop import BlockLoop
from txlib.attention.block_schedule import block_schedule
from txlib.attention.dense import DenseAttention
from txlib.attention.masks import Mask, MaskLike, as_dense, check_mask
from txlib.attention.mechanism import LayerContext, MechanismConfig, by_python, check_dropout, check_inputs, check_sizes
from txlib.attention.relative import Bias, BiasLike, check_bias
from txlib.precision import as_autocast


class BlockSparseAttention(nn.Module):
    """Attention at the cost of what the mask allows.

    On a CPU, and wherever weights are dropped, it is a loop over blocks of queries, forward and backward. On a GPU it
    is FlexAttention, compiled, and the same loop where that can't be compiled. A single block of queries, as in
    decoding, is `DenseAttention` on the keys within the mask's reach.

    The plan of a mask is cached: a mask is a value, and layers that share it share the plan. So a rule of your own must
    always return the same; make a new `Mask` when the data that it reads has changed.

    Args:
        dropout: probability of dropping a weight while training.
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
        softcap: float | None = None,
        sinks: Float[Tensor, "heads"] | None = None,
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
            return self.one_block(q, k, v, mask, bias, softcap, sinks)
        return by_python(self.by_blocks)(q, k, v, mask, bias, softcap, sinks)

    def by_blocks(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: MaskLike,
        bias: Bias | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """Attend with many queries: by FlexAttention or the loop."""
        q, k, v = as_autocast(q, k, v)
        query_length, key_length = q.shape[-2], k.shape[-2]
        by_distance = None if bias is None else bias.by_distance(query_length, key_length, device=q.device).to(q.dtype)
        dropout_p = self.dropout if self.training else 0.0
        if flex.prefers_flex(q, mask, dropout_p):
            out = flex.flex_attention(q, k, v, mask, by_distance, softcap, sinks)
            if out is not None:
                return out
        schedule = block_schedule(mask, query_length, key_length, self.block_size, q.device)
        seed = int(torch.randint(2**62, ())) if dropout_p and not is_fake(q) else 0
        return BlockLoop.apply(q, k, v, by_distance, sinks, softcap, schedule, dropout_p, seed)

    def one_block(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: MaskLike,
        bias: Bias | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """Attend with few queries: nothing is quadratic. Keys beyond the mask's reach are left out."""
        if isinstance(mask, Mask):
            nearest, farthest = mask.reach()
            first, end = max(0, -farthest), min(k.shape[-2], q.shape[-2] - nearest)
            first, end = (int(first), int(end)) if first < end else (0, 0)
            k, v, mask = k[:, :, first:end], v[:, :, first:end], mask.shift(0, first)
            bias = None if bias is None else replace(bias, ahead=bias.ahead - first)
        return self.dense(q, k, v, mask, bias=bias, softcap=softcap, sinks=sinks)

    def weights(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        mask: MaskLike = None,
        *,
        bias: BiasLike = None,
        softcap: float | None = None,
        sinks: Float[Tensor, "heads"] | None = None,
    ) -> Float[Tensor, "batch heads query key"]:
        """Return the weights that `forward` averages the values with, as a dense tensor."""
        return self.dense.weights(q, k, mask, bias=bias, softcap=softcap, sinks=sinks)


@dataclass(frozen=True)
class BlockSparseConfig(MechanismConfig, name="block_sparse"):
    """`BlockSparseAttention` in a block's config, whose `mask` says which positions see which."""

    block_size: int = 64

    def make(self, block: Any, layer: LayerContext) -> BlockSparseAttention:
        """Return the mechanism, with the block's dropout."""
        return BlockSparseAttention(block.attention.dropout, block_size=self.block_size)


def check_fits(mask: MaskLike, q: Tensor, k: Tensor) -> None:
    """Raise if the mask is for another batch or other heads.

    Raises:
        ValueError: naming both sizes.
        TypeError: when it is not a mask.
    """
    check_mask(mask)
    if isinstance(mask, Tensor):
        as_dense(mask, q, k)
    elif mask is not None and (mask.batch not in (1, q.shape[0]) or mask.heads not in (1, q.shape[1])):
        raise ValueError(
            f"{mask} has batch={mask.batch}, heads={mask.heads}, expected those of the queries, "
            f"batch={q.shape[0]}, heads={q.shape[1]}, or 1"
        )
