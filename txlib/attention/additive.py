"""Scores from before the Transformer: additive (Bahdanau et al. 2015), bilinear and dot product (Luong et al. 2015).

Each says how well a decoder's state s, the query, matches an annotation h of the source, a key; the rest is as in all
attention: a softmax over the keys, and the average of the values. The part of a score that depends on the keys alone,
such as U_a h, stays the same while a sentence is generated: `project` computes it once per source, and `weigh` uses it
at each step.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from txlib.attention.masks import MaskLike, as_dense
from txlib.attention.mechanism import (
    LayerContext,
    MechanismConfig,
    check_dropout,
    check_sizes,
    check_width,
    for_each_head,
)
from txlib.attention.relative import BiasLike, as_dense_bias


class ScoredAttention(nn.Module):
    """softmax(score(q, k) + bias) v, with the score of a subclass. Scores are not divided by √head_dim.

    Args:
        dropout: probability of dropping a weight while training.
    """

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        check_dropout(dropout)
        self.dropout = dropout

    def project(
        self, k: Float[Tensor, "batch kv_heads key key_dim"]
    ) -> Float[Tensor, "batch kv_heads key projected_dim"]:
        """Return the part of the score that depends on the keys: compute it once, and pass it to `weigh` each time."""
        return k

    def score(
        self, q: Float[Tensor, "batch heads query head_dim"], projected: Float[Tensor, "batch heads key projected_dim"]
    ) -> Float[Tensor, "batch heads query key"]:
        """Return how well each query matches each key."""
        raise NotImplementedError

    def forward(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key key_dim"],
        v: Float[Tensor, "batch kv_heads key value_dim"],
        mask: MaskLike = None,
        *,
        bias: BiasLike = None,
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """See `txlib.attention.mechanism`."""
        return self.average(self.weights(q, k, mask, bias=bias), v)

    def weights(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key key_dim"],
        mask: MaskLike = None,
        *,
        bias: BiasLike = None,
    ) -> Float[Tensor, "batch heads query key"]:
        """Return the weight of each key for each query."""
        return self.weigh(q, self.project(k), mask, bias=bias)

    def weigh(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        projected: Float[Tensor, "batch kv_heads key projected_dim"],
        mask: MaskLike = None,
        *,
        bias: BiasLike = None,
    ) -> Float[Tensor, "batch heads query key"]:
        """Return `weights` for keys that `project` has prepared."""
        score = self.score(q, for_each_head(projected, q.shape[1]))  # (batch, heads, query, key)
        dense_bias, allowed = as_dense_bias(bias, q, projected), as_dense(mask, q, projected)
        if dense_bias is not None:
            score = score + dense_bias
        if allowed is None:
            return score.softmax(dim=-1)
        score = score.masked_fill(~allowed, torch.finfo(score.dtype).min)
        return score.softmax(dim=-1).masked_fill(~allowed, 0.0)  # a query that may attend to nothing gets zeros

    def average(
        self, weights: Float[Tensor, "batch heads query key"], v: Float[Tensor, "batch kv_heads key value_dim"]
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """Return the values, averaged with these weights; in training, some weights are dropped."""
        return F.dropout(weights, self.dropout, self.training) @ for_each_head(v, weights.shape[1])


class AdditiveAttention(ScoredAttention):
    """v_aᵀ tanh(W_a s + U_a h): a small network reads both vectors (Bahdanau et al. 2015, App. A.1.2).

    It needs a vector for each pair: batch · heads · query · key · width numbers, `width` times as many as other scores.
    Heads share the network; only their inputs differ.

    Args:
        head_dim: width of a query.
        key_dim: of a key, which need not be the same; head_dim unless given.
        width: of the network; head_dim unless given.
    """

    def __init__(self, head_dim: int, *, key_dim: int | None = None, width: int | None = None, dropout: float = 0.0):
        super().__init__(dropout)
        key_dim, width = head_dim if key_dim is None else key_dim, head_dim if width is None else width
        check_sizes(head_dim=head_dim, key_dim=key_dim, width=width)
        self.query = nn.Linear(head_dim, width, bias=False)  # W_a
        self.key = nn.Linear(key_dim, width, bias=False)  # U_a
        self.v = nn.Parameter(torch.empty(width).uniform_(-1, 1) * width**-0.5)  # v_a

    def project(self, k: Float[Tensor, "batch kv_heads key key_dim"]) -> Float[Tensor, "batch kv_heads key width"]:
        """Return U_a h."""
        check_width(self, "key_dim", k, self.key.in_features)
        return self.key(k)

    def score(
        self, q: Float[Tensor, "batch heads query head_dim"], projected: Float[Tensor, "batch heads key width"]
    ) -> Float[Tensor, "batch heads query key"]:
        """Return v_aᵀ tanh(W_a s + U_a h)."""
        check_width(self, "head_dim", q, self.query.in_features)
        hidden = self.query(q)[..., :, None, :] + projected[..., None, :, :]  # (batch, heads, query, key, width)
        return hidden.tanh() @ self.v


class BilinearAttention(ScoredAttention):
    """sᵀ W_a h: "general" in the paper (Luong et al. 2015, §3.1).

    Args:
        head_dim: width of a query.
        key_dim: of a key, which need not be the same; head_dim unless given.
    """

    def __init__(self, head_dim: int, *, key_dim: int | None = None, dropout: float = 0.0):
        super().__init__(dropout)
        key_dim = head_dim if key_dim is None else key_dim
        check_sizes(head_dim=head_dim, key_dim=key_dim)
        self.key = nn.Linear(key_dim, head_dim, bias=False)  # W_a

    def project(self, k: Float[Tensor, "batch kv_heads key key_dim"]) -> Float[Tensor, "batch kv_heads key head_dim"]:
        """Return W_a h."""
        check_width(self, "key_dim", k, self.key.in_features)
        return self.key(k)

    def score(
        self, q: Float[Tensor, "batch heads query head_dim"], projected: Float[Tensor, "batch heads key head_dim"]
    ) -> Float[Tensor, "batch heads query key"]:
        """Return sᵀ (W_a h)."""
        check_width(self, "head_dim", q, self.key.out_features)
        return q @ projected.mT


class DotAttention(ScoredAttention):
    """sᵀ h, times a fixed number (Luong et al. 2015, §3.1).

    Args:
        scale: 1 in the paper; 1 / √head_dim makes it the Transformer's, which is `DenseAttention`.
    """

    def __init__(self, scale: float = 1.0, *, dropout: float = 0.0):
        super().__init__(dropout)
        self.scale = scale

    def score(
        self, q: Float[Tensor, "batch heads query head_dim"], projected: Float[Tensor, "batch heads key key_dim"]
    ) -> Float[Tensor, "batch heads query key"]:
        """Return sᵀ h.

        Raises:
            ValueError: when the two have different widths.
        """
        if q.shape[-1] != projected.shape[-1]:
            raise ValueError(
                f"DotAttention needs queries and keys of one width, got {q.shape[-1]} and {projected.shape[-1]}; "
                "BilinearAttention and AdditiveAttention take any two"
            )
        return (q * self.scale) @ projected.mT


@dataclass(frozen=True)
class AdditiveConfig(MechanismConfig, name="additive"):
    """`AdditiveAttention` in a block's config."""

    width: int | None = None

    def make(self, block: Any, layer: LayerContext) -> AdditiveAttention:
        """Return the mechanism, with the block's dropout."""
        return AdditiveAttention(block.head_dim, width=self.width, dropout=block.attention.dropout)


@dataclass(frozen=True)
class BilinearConfig(MechanismConfig, name="bilinear"):
    """`BilinearAttention` in a block's config."""

    def make(self, block: Any, layer: LayerContext) -> BilinearAttention:
        """Return the mechanism, with the block's dropout."""
        return BilinearAttention(block.head_dim, dropout=block.attention.dropout)


@dataclass(frozen=True)
class DotConfig(MechanismConfig, name="dot"):
    """`DotAttention` in a block's config."""

    scale: float = 1.0

    def make(self, block: Any, layer: LayerContext) -> DotAttention:
        """Return the mechanism, with the block's dropout."""
        return DotAttention(self.scale, dropout=block.attention.dropout)
