"""Mixture of block attention (Lu et al. 2025, §2): each query chooses the blocks of keys that it attends to."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.attention.compressed import causal_and_real, real_first, seen_keys
from txlib.attention.dense import DenseAttention
from txlib.attention.masks import MaskLike
from txlib.attention.mechanism import (
    LayerContext,
    MechanismConfig,
    check_dropout,
    check_inputs,
    check_sizes,
    for_each_head,
)
from txlib.precision import as_autocast

QUERIES = 64  # at a time: each needs a copy of the keys that it has chosen


class ChosenBlocks(nn.Module):
    """Attention to the `top` blocks whose mean key has the largest product with the query: n × top · block scores.

    Under a causal mask a query's own block, up to the query, is one of them, and it chooses the others among the blocks
    that end before its own. The choice has no parameters and passes no gradient on. Blocks are counted in real tokens:
    padding on either side changes nothing. If `top` blocks hold the whole text, it is dense attention.

    Args:
        block: keys of a block.
        top: blocks of a query.
        dropout: probability of dropping a weight while training.

    Raises:
        ValueError: when a size is below 1, or for a probability outside [0, 1).
    """

    def __init__(self, block: int = 16, top: int = 4, dropout: float = 0.0):
        super().__init__()
        check_sizes(block=block, top=top)
        check_dropout(dropout)
        self.block, self.top, self.dropout = block, top, dropout

    def forward(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        v: Float[Tensor, "batch kv_heads key value_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """See `txlib.attention.mechanism`.

        Raises:
            ValueError: for a mask that is more than causal and padding.
        """
        check_inputs(q, k, v)
        if not k.shape[2] or not q.shape[2]:
            return DenseAttention()(q, k, v)  # nothing to see, or to ask
        q, k, v, seen, own = self.prepare(q, k, v, mask)
        blocks_k, blocks_v = (self.in_blocks(x) for x in (k, v))
        chosen = self.choose(q, blocks_k, seen, own)  # (batch, heads, query, top)
        return self.attend_to_chosen(q, chosen, seen, blocks_k, blocks_v)

    def prepare(
        self, q: Tensor, k: Tensor, v: Tensor, mask: MaskLike
    ) -> tuple[Tensor, Tensor, Tensor, Int[Tensor, "batch 1 query 1"], bool]:
        """Return q, and k and v for each of its heads, real ones first; how many keys each query sees; and whether its
        own is among them.
        """
        (batch, heads, queries, _), keys = q.shape, k.shape[2]
        real, nearest = causal_and_real(type(self).__name__, mask, q, k)
        k, v = real_first(real, k, v)
        seen = seen_keys(queries, k, real, nearest)  # (batch | 1, 1, query | 1, 1), or None: all
        seen = torch.full((1, 1, 1, 1), keys, device=q.device) if seen is None else seen
        q, k, v = as_autocast(q, *(for_each_head(x, heads) for x in (k, v)))
        return q, k, v, seen.expand(batch, 1, queries, 1), nearest is not None

    def in_blocks(self, x: Float[Tensor, "batch heads key width"]) -> Float[Tensor, "batch heads blocks block width"]:
        """Return keys or values in blocks, the last one filled up with zeros."""
        return F.pad(x, (0, 0, 0, -x.shape[2] % self.block)).unflatten(2, (-1, self.block))

    @torch.no_grad()
    def choose(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        blocks: Float[Tensor, "batch heads blocks block head_dim"],
        seen: Int[Tensor, "batch 1 query 1"],
        own: bool,
    ) -> Int[Tensor, "batch heads query top"]:
        """Return the blocks of each query. Where it sees fewer than `top`, some of these hold no key that it sees.

        Args:
            seen: how many keys each query sees.
            own: whether a query's own block is one of them, and it chooses among the earlier ones.
        """
        starts = self.block * torch.arange(blocks.shape[2], device=q.device)  # (blocks,)
        size = (seen.amax(dim=2) - starts).clamp(1, self.block)  # (batch, 1, blocks): how many of its keys are real
        score = q @ (blocks.sum(dim=3) / size[..., None]).mT  # (batch, heads, query, blocks)
        score = score.masked_fill(starts >= seen, -torch.inf)
        if own:
            last = (seen - 1) // self.block * self.block == starts  # the block of the last key that a query sees
            score = score.masked_fill(last, torch.inf)
        return score.topk(min(self.top, len(starts)), dim=-1).indices

    def attend_to_chosen(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        chosen: Int[Tensor, "batch heads query top"],
        seen: Int[Tensor, "batch 1 query 1"],
        blocks_k: Float[Tensor, "batch heads blocks block head_dim"],
        blocks_v: Float[Tensor, "batch heads blocks block value_dim"],
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """Return the average of the values of the chosen blocks, for some queries at a time."""
        parts = zip(*(x.split(QUERIES, dim=2) for x in (q, chosen, seen)), strict=True)
        outs = [self.attend(q_c, chosen_c, seen_c, blocks_k, blocks_v) for q_c, chosen_c, seen_c in parts]
        return torch.cat(outs, dim=2)

    def attend(
        self, q: Tensor, chosen: Tensor, seen: Tensor, blocks_k: Tensor, blocks_v: Tensor
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """Return it for all queries at once."""
        block = blocks_k.shape[3]
        index = chosen.flatten(2)[..., None, None]  # (batch, heads, query · top, 1, 1)
        k, v = (
            x.gather(2, index.expand(*index.shape[:3], *x.shape[3:])).unflatten(2, chosen.shape[2:]).flatten(3, 4)
            for x in (blocks_k, blocks_v)
        )  # (batch, heads, query, top · block, …)
        position = (block * chosen[..., None] + torch.arange(block, device=q.device)).flatten(3)
        score = (k @ q[..., None])[..., 0] * q.shape[-1] ** -0.5  # (batch, heads, query, top · block)
        score = score.masked_fill(position >= seen, torch.finfo(score.dtype).min)
        weights = score.softmax(dim=-1).masked_fill(seen == 0, 0.0).to(v.dtype)
        return (F.dropout(weights, self.dropout, self.training)[..., None, :] @ v)[..., 0, :]


@dataclass(frozen=True)
class ChosenBlocksConfig(MechanismConfig, name="chosen_blocks"):
    """`ChosenBlocks` in a block's config.

    Args:
        block, top: see there.
    """

    block: int = 16
    top: int = 4

    def __post_init__(self):
        self.check_at_least_one("block", "top")

    def make(self, block: Any, layer: LayerContext) -> ChosenBlocks:
        """Return the mechanism, with the block's dropout."""
        return ChosenBlocks(self.block, self.top, block.attention.dropout)
