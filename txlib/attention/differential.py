"""Differential attention: the difference of two softmaxes, in which noise that both see cancels out."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from txlib.attention.dense import DenseAttention
from txlib.attention.masks import MaskLike
from txlib.attention.mechanism import LayerContext, MechanismConfig, check_head_count, check_no_dropout, check_width


class DifferentialAttention(nn.Module):
    """(softmax(q₁ k₁ᵀ / √d) - λ softmax(q₂ k₂ᵀ / √d)) [v₁; v₂], for each pair of heads (Ye et al. 2025, §2.1).

    λ = exp(λ_q1 · λ_k1) - exp(λ_q2 · λ_k2) + λ₀ is the same for all heads of a layer. Each pair's output, of two heads'
    width, is divided by its root mean square and multiplied by 1 - λ₀. As in `transformers`, heads i and i + heads / 2
    are a pair.

    Args:
        heads: number of query heads; even, like that of key heads.
        head_dim: width of a head's queries and keys.
        layer: number of the layer, from 0: λ₀ = 0.8 - 0.6 e^(-0.3 layer) grows with depth.
        eps: of the division.
    """

    def __init__(self, heads: int, head_dim: int, layer: int = 0, *, eps: float = 1e-5):
        super().__init__()
        if heads % 2:
            raise ValueError(f"DifferentialAttention pairs up heads, got heads={heads}; choose an even number")
        self.heads, self.eps, self.start = heads, eps, 0.8 - 0.6 * math.exp(-0.3 * layer)
        self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2 = (
            nn.Parameter(0.1 * torch.randn(head_dim)) for _ in range(4)
        )
        self.softmax = DenseAttention()

    def forward(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        v: Float[Tensor, "batch kv_heads key value_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """See `txlib.attention.mechanism`.

        Raises:
            ValueError: for an odd number of key heads.
        """
        check_head_count(self, "heads", q, self.heads)
        check_width(self, "head_dim", q, len(self.lambda_q1))
        if v.shape[1] % 2:
            raise ValueError(
                f"DifferentialAttention pairs up heads of keys and values, got kv_heads={v.shape[1]}; choose an even "
                "number"
            )
        values = torch.cat([half.repeat(1, 2, 1, 1) for half in v.chunk(2, dim=1)], dim=-1)  # (…, key, 2 · value_dim)
        first, second = self.softmax(q, k, values, mask).chunk(2, dim=1)  # (batch, heads / 2, query, 2 · value_dim)
        gain = (self.lambda_q1 @ self.lambda_k1).exp() - (self.lambda_q2 @ self.lambda_k2).exp() + self.start
        out = (1 - self.start) * F.rms_norm(first - gain * second, (2 * v.shape[-1],), eps=self.eps)
        return out.unflatten(-1, (2, -1)).transpose(2, 3).flatten(1, 2)


@dataclass(frozen=True)
class DifferentialConfig(MechanismConfig, name="differential"):
    """`DifferentialAttention` in a block's config."""

    eps: float = 1e-5

    def make(self, block: Any, layer: LayerContext) -> DifferentialAttention:
        """Return the mechanism."""
        check_no_dropout("DifferentialAttention", block)
        return DifferentialAttention(block.attention.heads, block.head_dim, layer.number, eps=self.eps)
