"""Memory-compressed attention (Liu et al. 2018, §4.2.4): a strided convolution merges every three keys into one.

The paper's model alternates it with local attention (same section), which is a mask: `block_local`. A decoder with both
is `txlib.models.sizes.local_and_compressed`.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from txlib.attention.dense import DenseAttention, what_remains
from txlib.attention.masks import Mask, MaskLike, as_dense, check_mask
from txlib.attention.mechanism import (
    LayerContext,
    MechanismConfig,
    check_head_count,
    check_inputs,
    check_sizes,
    check_width,
    for_each_head,
)


class WindowProjection(nn.Module):
    """A convolution whose stride is its width: each window of positions, side by side, times one matrix.

    It starts as the mean of a window.

    Args:
        width: of a key or value.
        heads: number of heads, each with its own matrix.
        factor: positions in a window.
    """

    def __init__(self, width: int, heads: int, factor: int):
        super().__init__()
        self.factor = factor
        self.weight = nn.Parameter(torch.eye(width).repeat(heads, factor, 1) / factor)  # (heads, factor · width, width)

    def windows(self, x: Float[Tensor, "batch heads length width"]) -> Float[Tensor, "batch heads windows wide"]:
        """Return the positions of each window side by side; the last window is padded with zeros."""
        filled = F.pad(x.contiguous(), (0, 0, 0, -x.shape[-2] % self.factor))
        return filled.unflatten(-2, (-1, self.factor)).flatten(start_dim=-2)

    def forward(self, windows: Float[Tensor, "batch heads windows wide"]) -> Float[Tensor, "batch heads windows width"]:
        """Return one vector for each window."""
        return windows @ self.weight


class MemoryCompressedAttention(nn.Module):
    """Attention to windows of `factor` keys, each merged into one key by a convolution: n × n / factor scores.

    Windows do not overlap, and are counted in real tokens: padding on either side changes nothing. Under a causal mask
    a query sees the windows that end at its own position or before. The first `factor` - 1 queries see no whole window
    and get the first value, as if they saw only the first key. (In the code released with the paper all queries see the
    first position, and none sees the window that it ends.) Without a causal mask the last window may be padded with
    zeros.

    Args:
        head_dim, kv_heads: of the keys; each key head has its own convolution.
        factor: width and stride of the convolution, 3 in the paper.
        value_dim: width of the values; head_dim unless given.
        dropout: probability of dropping a weight while training.

    Raises:
        ValueError: when a size is below 1.
    """

    def __init__(
        self, head_dim: int, kv_heads: int, *, factor: int = 3, value_dim: int | None = None, dropout: float = 0.0
    ):
        super().__init__()
        value_dim = head_dim if value_dim is None else value_dim
        check_sizes(head_dim=head_dim, kv_heads=kv_heads, factor=factor, value_dim=value_dim)
        self.factor = factor
        self.key, self.value = (WindowProjection(width, kv_heads, factor) for width in (head_dim, value_dim))
        self.dense = DenseAttention(dropout)

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
        check_head_count(self, "kv_heads", k, len(self.key.weight))
        check_width(self, "head_dim", k, self.key.weight.shape[-1])
        check_width(self, "value_dim", v, self.value.weight.shape[-1])
        if not k.shape[-2]:
            return self.dense(q, k, v)  # nothing to see
        real, nearest = causal_and_real(type(self).__name__, mask, q, k)
        k, v = real_first(real, k, v)
        seen = seen_keys(q.shape[-2], k, real, nearest)  # (batch | 1, 1, query | 1, 1), or None: all
        if seen is None:
            return self.attend(q, k, v, None)
        windows = torch.arange(math.ceil(k.shape[-2] / self.factor), device=k.device)
        if nearest is None:
            return self.attend(q, k, v, windows * self.factor < seen)
        whole_windows = seen // self.factor
        out = self.attend(q, k, v, windows < whole_windows)
        first = for_each_head(v[:, :, :1], q.shape[1])  # (batch, heads, 1, value_dim)
        return torch.where((whole_windows == 0) & (seen > 0), first, out)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None) -> Tensor:
        """Attend densely from queries to windows.

        If there are few queries, as in decoding, the convolution is applied to them instead of the keys, as
        q · (W window) = (Wᵀ q) · window, and to the outputs instead of the values.
        """
        windows_k, windows_v = self.key.windows(k), self.value.windows(v)
        if q.shape[-2] >= q.shape[-1]:
            return self.dense(q, self.key(windows_k), self.value(windows_v), allowed)
        heads, scale_correction = q.shape[1], self.factor**0.5  # dense attention divides by √(width of a window)
        w_k, w_v = (for_each_head(layer.weight[None], heads) for layer in (self.key, self.value))
        return self.dense(scale_correction * q @ w_k.mT, windows_k, windows_v, allowed) @ w_v


def real_first(real: Bool[Tensor, "_ key"] | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return keys or values (batch, heads, key, width) with the real ones first, in their order, then zeros."""
    if real is None:
        return tensors
    order = real.int().argsort(dim=-1, descending=True, stable=True)[:, None, :, None]
    return tuple(x.masked_fill(~real[:, None, :, None], 0.0).gather(2, order.expand(x.shape)) for x in tensors)


def seen_keys(
    queries: int, k: Tensor, real: Bool[Tensor, "batch key"] | None, nearest: int | None
) -> Int[Tensor, "batch 1 query 1"] | None:
    """Return how many real keys each query may see; None if all see all.

    Args:
        nearest: distance of a query to the last key that it sees; None: no limit.
    """
    keys = k.shape[-2]
    if nearest is None:
        return None if real is None else real.sum(dim=-1)[:, None, None, None]
    prefix = (torch.arange(queries, device=k.device) - nearest + 1).clamp(min=0, max=keys)  # (query,)
    seen = prefix[None] if real is None else F.pad(real.cumsum(dim=-1), (1, 0))[:, prefix]  # (batch | 1, query)
    return seen[:, None, :, None]


def causal_and_real(name: str, mask: MaskLike, q: Tensor, k: Tensor) -> tuple[Bool[Tensor, "_ key"] | None, int | None]:
    """Return which keys are real (None: all), and the distance from a query to the last key that it sees (0: itself;
    None: no limit).

    Raises:
        ValueError: when the mask is more than that.
    """
    check_mask(mask)
    real, nearest = None, None
    for part in [] if mask is None else mask.conjuncts() if isinstance(mask, Mask) else [mask]:
        spans = part.distances() if isinstance(part, Mask) else None
        if spans is not None and len(spans) == 1 and math.isfinite(spans[0][0]) and spans[0][1] == math.inf:
            nearest = max(int(spans[0][0]), int(spans[0][0]) if nearest is None else nearest)
            continue
        if isinstance(part, Mask) and what_remains(part, q.shape[-2], k.shape[-2]) is None:
            continue
        allowed = as_dense(part, q, k) if isinstance(part, Tensor) or part.only_keys else None
        if allowed is None or allowed.shape[1:3] != (1, 1):
            description = part if isinstance(part, Mask) else f"a tensor of shape {tuple(part.shape)}"
            raise ValueError(
                f"{name} honors causal() and padding, and this mask is more: {description}; "
                "use DenseAttention, or put such a mask on layers of their own"
            )
        real = allowed[:, 0, 0] if real is None else real & allowed[:, 0, 0]
    return real, nearest


@dataclass(frozen=True)
class MemoryCompressedConfig(MechanismConfig, name="memory_compressed"):
    """`MemoryCompressedAttention` in a block's config.

    Args:
        factor: see there.
    """

    factor: int = 3

    def make(self, block: Any, layer: LayerContext) -> MemoryCompressedAttention:
        """Return the mechanism, with the block's dropout.

        Raises:
            ValueError: with rotary positions.
        """
        rotary = block.position is not None and block.position.make_rotary(block.head_dim) is not None
        if rotary and not layer.cross:
            raise ValueError(
                f"position={block.position.name!r} turns neighboring keys by angles of their own, and memory "
                "compression mixes them: scores would not depend on distances alone; choose 'sinusoidal' or 'learned'"
            )
        kv_heads = block.attention.kv_heads or block.attention.heads
        return MemoryCompressedAttention(
            block.head_dim,
            kv_heads,
            factor=self.factor,
            value_dim=block.value_dim,
            dropout=block.attention.dropout,
        )
