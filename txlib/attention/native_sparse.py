"""Native sparse attention (Yuan et al. 2025, §3): all blocks in outline, a few of them in full, and the newest keys."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from txlib.attention.chosen import ChosenBlocks
from txlib.attention.dense import DenseAttention
from txlib.attention.functional import attention_weights
from txlib.attention.masks import MaskLike
from txlib.attention.mechanism import LayerContext, MechanismConfig, check_inputs, check_sizes


class NativeSparseAttention(ChosenBlocks):
    """A weighted sum of three branches, each with a softmax of its own; always causal.

    - **compressed**: each block that ends at the query or before, as the mean of its keys and the mean of its values
      (the paper learns both means);
    - **chosen**: the keys of `top` blocks: the query's own up to the query, the first, the one before its own, and
      those with the largest weights in the compressed branch, on average over the heads that share a key head;
    - **recent**: the last `window` keys.

    The weights are gates between 0 and 1, which the layer makes of each query's token; called without them, the
    branches count alike. Blocks are counted in real tokens: padding on either side changes nothing.

    Args:
        block: keys of a block.
        top: blocks of a query.
        window: keys of the recent branch.
        dropout: probability of dropping a weight of the chosen and the recent branch while training.

    Raises:
        ValueError: when a size is below 1, or for a probability outside [0, 1).
    """

    branches = 3

    def __init__(self, block: int = 16, top: int = 4, window: int = 32, dropout: float = 0.0):
        super().__init__(block, top, dropout)
        check_sizes(window=window)
        self.window = window

    def forward(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        v: Float[Tensor, "batch kv_heads key value_dim"],
        mask: MaskLike = None,
        gates: Float[Tensor, "batch heads query branch"] | None = None,
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """See `txlib.attention.mechanism`.

        Raises:
            ValueError: for a mask that is not causal, or more than causal and padding.
        """
        check_inputs(q, k, v)
        if not k.shape[2] or not q.shape[2]:
            return DenseAttention()(q, k, v)  # nothing to see, or to ask
        kv_heads = k.shape[1]
        q, k, v, seen, causal = self.prepare(q, k, v, mask)
        if not causal:
            raise ValueError("NativeSparseAttention is causal, and this mask is not; use ChosenBlocks")
        blocks_k, blocks_v = (self.in_blocks(x) for x in (k, v))
        ended = (
            self.block * torch.arange(1, blocks_k.shape[2] + 1, device=q.device) <= seen
        )  # (batch, 1, query, blocks)
        weights = attention_weights(q, blocks_k.mean(dim=3), ended)  # (batch, heads, query, blocks)
        chosen = self.heaviest(weights, seen, kv_heads)
        newest = (seen - self.window).clamp(min=0) + torch.arange(min(self.window, k.shape[2]), device=q.device)
        single = (x[:, :, :, None] for x in (k, v))  # blocks of one key
        outs = (
            weights @ blocks_v.mean(dim=3),
            self.attend_to_chosen(q, chosen, seen, blocks_k, blocks_v),
            self.attend_to_chosen(q, newest.expand(-1, q.shape[1], -1, -1), seen, *single),
        )
        gates = q.new_full((*q.shape[:3], self.branches), 1 / self.branches) if gates is None else gates
        return (gates[..., None] * torch.stack(outs, dim=3)).sum(dim=3)

    @torch.no_grad()
    def heaviest(
        self, weights: Float[Tensor, "batch heads query blocks"], seen: Int[Tensor, "batch 1 query 1"], kv_heads: int
    ) -> Int[Tensor, "batch heads query top"]:
        """Return the blocks of each query. Where it sees fewer than `top`, some of these hold no key that it sees."""
        number = torch.arange(weights.shape[3], device=weights.device)
        own = (seen - 1).clamp(min=0) // self.block  # (batch, 1, query, 1)
        weight = weights.unflatten(1, (kv_heads, -1)).mean(dim=2)  # (batch, kv_heads, query, blocks)
        for priority, always in enumerate((number == own - 1, number == 0, number == own), start=2):
            weight = weight.masked_fill(always, priority)
        index = weight.masked_fill(number > own, -1.0).topk(min(self.top, len(number)), dim=-1).indices
        return index.repeat_interleave(weights.shape[1] // kv_heads, dim=1)


@dataclass(frozen=True)
class NativeSparseConfig(MechanismConfig, name="native_sparse"):
    """`NativeSparseAttention` in a block's config.

    Args:
        block, top, window: see there.
    """

    block: int = 16
    top: int = 4
    window: int = 32

    def __post_init__(self):
        self.check_at_least_one("block", "top", "window")

    def make(self, block: Any, layer: LayerContext) -> NativeSparseAttention:
        """Return the mechanism, with the block's dropout.

        Raises:
            ValueError: in an encoder, or in cross-attention.
        """
        if layer.cross or not layer.causal:
            raise ValueError("NativeSparseAttention is causal: use it in decoders, and ChosenBlocksConfig elsewhere")
        return NativeSparseAttention(self.block, self.top, self.window, block.attention.dropout)
