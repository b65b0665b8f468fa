"""Big Bird's attention as its authors' checkpoints compute it, which differs from the mask `bigbird` in details."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from txlib.attention.block_sparse import BlockSparseAttention
from txlib.attention.masks import Mask, MaskLike, bigbird
from txlib.attention.mechanism import LayerContext, MechanismConfig, check_inputs, mask_padded_queries

WINDOW, GLOBAL = 3, 2  # blocks of each kind, in all of the authors' checkpoints
SPARE = 8  # features that are added to a head; kernels like multiples of it


class BigBirdAttention(nn.Module):
    """Blocks of a window, the first and the last block, and random blocks, as in Hugging Face's port of the authors'
    code (Zaheer et al. 2020, §2 and appendix D).

    It differs from the mask `bigbird(…)` in three ways. Random blocks are drawn only while training, separately by each
    head; in evaluation all of them are the first block, which therefore counts 1 + `random` times. In a text of at most
    5 + 2 · `random` blocks every token sees every token. In a longer one, padding sees nothing. A model that is trained
    from scratch needs none of this: give its config the mask.

    Args:
        heads: number of query heads.
        block, random, seed: as for `bigbird`.
        mechanism: computes it; `BlockSparseAttention` unless given.
    """

    def __init__(
        self, heads: int, block: int = 64, random: int = 3, seed: int = 0, *, mechanism: nn.Module | None = None
    ):
        super().__init__()
        self.block, self.random = block, random
        self.drawn = bigbird(block, random, WINDOW, GLOBAL, seed, heads=heads)
        self.fixed = bigbird(block, 0, WINDOW, GLOBAL)
        self.mechanism: Any = BlockSparseAttention(block_size=block) if mechanism is None else mechanism

    def forward(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        v: Float[Tensor, "batch kv_heads key value_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """See `txlib.attention.mechanism`."""
        check_inputs(q, k, v)
        q, k, mask = self.prepared(q, k, mask)
        return self.mechanism(q, k, v, mask)

    def weights(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads query key"]:
        """Return the weights that `forward` averages the values with."""
        return self.mechanism.weights(*self.prepared(q, k, mask))

    def prepared(self, q: Tensor, k: Tensor, mask: MaskLike) -> tuple[Tensor, Tensor, MaskLike]:
        """Return queries, keys and mask as the mechanism inside needs them.

        Raises:
            ValueError: for cross-attention, whose queries are in no block of keys, and for a causal mask.
        """
        length, keys = q.shape[-2], k.shape[-2]
        if isinstance(mask, Mask) and mask.reach()[0] >= 0:
            raise ValueError(
                f"BigBirdAttention is not causal: each new token may begin another last block, which is global, and "
                f"this mask hides later tokens: {mask}; use BlockSparseAttention with "
                f"mask=bigbird({self.block}, …).sized(max_length)"
            )
        if length != keys:
            raise ValueError(
                f"BigBirdAttention is self-attention, got {length} queries for {keys} keys; use DenseAttention"
            )
        if keys <= (WINDOW + GLOBAL + 2 * self.random) * self.block:
            return q, k, mask
        pattern: Mask = (self.drawn if self.training else self.fixed).sized(keys)
        if not self.training and self.random:
            q, k = self.with_first_block_repeated(q, k)
        mask = mask_padded_queries(mask)
        if isinstance(mask, Tensor):
            return q, k, mask & pattern.dense(length, keys, device=mask.device)
        return q, k, pattern if mask is None else mask & pattern

    def with_first_block_repeated(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys for which the first block counts 1 + random times for queries between the global
        blocks: log(1 + random) is added to their scores, as the product of an extra feature of query and key."""
        width, length = q.shape[-1], q.shape[-2]
        position = torch.arange(length, device=q.device)
        between = (position >= self.block) & (position < (length - 1) // self.block * self.block)
        scale = math.sqrt(width + SPARE)  # by which the mechanism inside will divide
        added = [(between, 1.0), (position < self.block, math.log(1 + self.random) * scale)]
        q = q * (scale / math.sqrt(width))
        q, k = (
            torch.cat(
                [x, nn.functional.pad((which * value).to(x)[:, None], (0, SPARE - 1)).expand(*x.shape[:-1], SPARE)],
                dim=-1,
            )
            for x, (which, value) in zip((q, k), added, strict=True)
        )
        return q, k


@dataclass(frozen=True)
class BigBirdConfig(MechanismConfig, name="bigbird"):
    """`BigBirdAttention` in a block's config. Each layer draws for itself."""

    block: int = 64
    random: int = 3
    seed: int = 0

    def make(self, block: Any, layer: LayerContext) -> BigBirdAttention:
        """Return the mechanism, with the block's dropout.

        Raises:
            ValueError: in a decoder, and for cross-attention.
        """
        if layer.cross or layer.causal:
            where = "cross-attention" if layer.cross else "a decoder"
            instead = (
                "DenseConfig()"
                if layer.cross
                else f"BlockSparseConfig() with mask=bigbird({self.block}, …).sized(max_length)"
            )
            raise ValueError(
                f"BigBirdConfig is for an encoder, where each query is in a block of keys, not for {where}; "
                f"use {instead}"
            )
        inside = BlockSparseAttention(block.attention.dropout, block_size=self.block)
        return BigBirdAttention(
            block.attention.heads, self.block, self.random, self.seed + layer.number, mechanism=inside
        )
