"""Longformer's attention: a pattern for all tokens, and a few global tokens, with their own projections, that see
everything and are seen by everything."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from txlib.attention.cache import AttentionCache
from txlib.attention.dense import DenseAttention
from txlib.attention.masks import Mask, MaskLike, full, padding_from_mask
from txlib.attention.masks.shared import once
from txlib.attention.mechanism import mask_padded_queries
from txlib.attention.multihead import MultiHeadAttention
from txlib.attention.relative import PositionBias


class LongformerAttention(MultiHeadAttention):
    """Self-attention in which each call may mark tokens as global (Beltagy et al. 2020, §3.1).

    Tokens that are not marked see what the layer's mask allows, and the marked ones. A marked token sees everything;
    its queries, and the keys and values that it meets, come from a second set of projections. So the cost is that of
    the mask, and one row and one column of all positions per marked token. Padding sees nothing.

    Args:
        d_model, heads, others: as for `MultiHeadAttention`, without positions inside attention.
        global_mechanism: of the marked tokens; `DenseAttention` unless given.

    Raises:
        ValueError: for a position bias and rotary positions.
    """

    def __init__(self, d_model: int, heads: int, *, global_mechanism: nn.Module | None = None, **others: Any):
        super().__init__(d_model, heads, **others)
        if self.rotary is not None or self.position_bias is not None:
            raise ValueError(
                "LongformerAttention takes no positions inside attention, since its global tokens may be anywhere; add "
                "them to the input: position='learned' or 'sinusoidal'"
            )
        if self.softcap is not None or self.sinks is not None or self.gate is not None or self.qk_norm_whole:
            raise ValueError(
                "LongformerAttention takes no softcap, sinks, gate or norm over all heads, which its global tokens "
                "would need as well; leave them out"
            )
        self.query_global, self.key_global, self.value_global = (
            nn.Linear(d_model, local.out_features, bias=local.bias is not None)
            for local in (self.query, self.key, self.value)
        )
        self.global_mechanism: Any = DenseAttention() if global_mechanism is None else global_mechanism

    def forward(
        self,
        x: Float[Tensor, "batch query d_model"],
        memory: Float[Tensor, "batch key memory_dim"] | None = None,
        mask: MaskLike = None,
        cache: AttentionCache | None = None,
        offset: int | None = None,
        position_bias: PositionBias | None = None,
        global_attention_mask: Int[Tensor, "batch query"] | Bool[Tensor, "batch query"] | None = None,
    ) -> Float[Tensor, "batch query d_model"]:
        """Attend from x to itself.

        Args:
            global_attention_mask: 1 = a global token, 0 = as the layer's mask says; None: there are none.

        Raises:
            ValueError: for a mask of another shape, and for one together with a memory or a cache.
        """
        if global_attention_mask is None:
            if memory is None and cache is None:
                mask = once(mask_padded_queries, mask)
            return super().forward(x, memory, mask, cache, offset, position_bias)
        if memory is not None or cache is not None:
            raise ValueError("global_attention_mask is for reading a whole text: leave memory and cache out")
        if global_attention_mask.shape != x.shape[:2]:
            shapes = tuple(global_attention_mask.shape), tuple(x.shape[:2])
            raise ValueError(f"global_attention_mask has shape {shapes[0]}, expected (batch, length) = {shapes[1]}")
        marked = global_attention_mask.bool()
        own_mask = once(with_global_tokens, self.mask, global_attention_mask)
        heads = self.attend(x, None, once(mask_padded_queries, mask), None, None, None, own_mask)
        sentence, position = marked.nonzero(as_tuple=True)
        if len(position):
            heads = self.overwrite(heads, self.attend_globally(x, marked, mask), sentence, position)
        return self.output(heads.transpose(1, 2).flatten(start_dim=2))

    def attend_globally(
        self, x: Float[Tensor, "batch length d_model"], marked: Bool[Tensor, "batch length"], mask: MaskLike
    ) -> Float[Tensor, "marked heads head_dim"]:
        """Return the output of each head at each marked position."""
        count = marked.sum(dim=1)
        order = marked.long().argsort(dim=1, descending=True, stable=True)  # marked ones first
        positions = order[:, : int(count.max())]
        chosen = x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))  # (batch, most, d_model)
        q = self.split(self.query_global(chosen), self.head_dim, self.query_norm)  # (batch, heads, most, head_dim)
        if self.scale_correction is not None:
            q = q * self.scale_correction
        few_marked = positions.shape[1] < self.head_dim and self.key_norm is None
        mix_first = few_marked and isinstance(self.global_mechanism, DenseAttention)
        if mix_first:
            # q · (W x) = (Wᵀ q) · x, and values may be mixed before they are projected. While few tokens are marked,
            # that is O(length · d_model) for each token and head instead of O(length · d_model²) for all.
            with_one = x if self.key_global.bias is None else nn.functional.pad(x, (0, 1), value=1)  # for the bias
            k = v = with_one[:, None]  # (batch, 1, length, d_model), shared by all heads
            q = q @ self.by_head(self.key_global) * (k.shape[-1] / self.head_dim) ** 0.5  # divided by √width inside
        else:
            k = self.split(self.key_global(x), self.head_dim, self.key_norm)
            v = self.split(self.value_global(x), self.value_dim)
        allowed = rows_of(mask, positions, x.shape[1])
        real = torch.arange(positions.shape[1], device=x.device) < count[:, None]  # counts differ between sentences
        if self.attention_log is not None:
            weights = self.global_mechanism.weights(q, k, allowed).transpose(1, 2)[real].detach()
            sentence, position = marked.nonzero(as_tuple=True)
            self.attention_log[-1] = self.overwrite(self.attention_log[-1], weights, sentence, position)
        out = self.global_mechanism(q, k, v, allowed)
        if mix_first:
            out = out @ self.by_head(self.value_global).mT
        return out.transpose(1, 2)[real]

    def by_head(self, linear: nn.Linear) -> Float[Tensor, "heads head_dim width"]:
        """Return the projection of each head, with its bias as the last column; heads that share keys share it."""
        weight = linear.weight if linear.bias is None else torch.cat([linear.weight, linear.bias[:, None]], dim=1)
        return weight.view(self.kv_heads, -1, weight.shape[1]).repeat_interleave(self.heads // self.kv_heads, dim=0)

    @staticmethod
    def overwrite(
        heads: Float[Tensor, "batch heads query width"],
        rows: Float[Tensor, "marked heads width"],
        sentence: Int[Tensor, "marked"],
        position: Int[Tensor, "marked"],
    ) -> Float[Tensor, "batch heads query width"]:
        """Return the heads' output with these rows at these positions."""
        return heads.transpose(1, 2).index_put((sentence, position), rows.to(heads.dtype)).transpose(1, 2)


def with_global_tokens(mask: Mask | None, global_attention_mask: Tensor) -> Mask:
    """Return the mask that also lets each query see the marked tokens."""
    marked = global_attention_mask.bool()
    same_for_all = bool((marked == marked[:1]).all())
    return (full() if mask is None else mask) | padding_from_mask(marked[:1] if same_for_all else marked)


def rows_of(mask: MaskLike, positions: Int[Tensor, "batch some"], key_length: int) -> Bool[Tensor, "_ _ _ key"] | None:
    """Return the mask's rows for some of the queries, which differ between sentences."""
    if mask is None:
        return None
    batch = len(positions)
    if isinstance(mask, Mask):
        sentence, head, key = (torch.arange(n, device=positions.device) for n in (mask.batch, mask.heads, key_length))
        allowed = mask.sized(key_length).at(
            sentence[:, None, None, None], head[:, None, None], positions[:, None, :, None], key
        )
        return allowed.expand(batch, mask.heads, positions.shape[1], key_length)
    if mask.shape[2] == 1:
        return mask
    return mask.expand(batch, -1, -1, -1).gather(
        2, positions[:, None, :, None].expand(-1, mask.shape[1], -1, key_length)
    )
