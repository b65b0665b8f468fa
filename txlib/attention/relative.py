"""Attention that knows how far a key is from a query. All are for self-attention: when there are fewer queries
than keys, the queries are the last positions, as in cached decoding."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.attention.functional import attention, attention_weights
from txlib.attention.masks import MaskLike, as_dense


def relative_distances(
    query_length: int, key_length: int, *, device: torch.device | str | None = None
) -> Int[Tensor, "query key"]:
    """Position of the key minus position of the query, -(n-1) … n-1; the queries are the last positions.

    Raises:
        ValueError: when there are more queries than keys, so that distances mean nothing.
    """
    if query_length > key_length:
        raise ValueError(
            f"relative positions need self-attention, got {query_length} queries for {key_length} keys; "
            "use sinusoidal, learned or rotary positions for cross-attention"
        )
    key = torch.arange(key_length, device=device)
    return key[None, :] - key[key_length - query_length :, None]


class RelativeAttention(nn.Module):
    """Dense attention whose scores get a bias that depends on the distance; subclasses say which."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.dropout = dropout

    def bias(
        self, q: Float[Tensor, "batch heads query head_dim"], key_length: int
    ) -> Float[Tensor, "#batch heads query key"]:
        """What distance adds to the scaled scores."""
        raise NotImplementedError

    def forward(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch heads key head_dim"],
        v: Float[Tensor, "batch heads key head_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads query head_dim"]:
        """See `attention`."""
        dropout = self.dropout if self.training else 0.0
        return attention(q, k, v, mask, bias=self.bias(q, k.shape[-2]), dropout=dropout)

    def weights(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch heads key head_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads query key"]:
        """The weights that `forward` averages the values with, for looking at."""
        return attention_weights(q, k, mask, bias=self.bias(q, k.shape[-2]))


class ShawAttention(RelativeAttention):
    """A learned vector for each clipped distance, added to keys and to values (Shaw et al. 2018, eq. 3 and 4).

    The vectors are shared by all heads (§3.3). The naive form would build (query, key, head_dim) tensors of keys;
    here each query meets each distance once, and its score is picked by distance.

    Args:
        head_dim: size of a head.
        max_distance: k of the paper: distances are clipped to -k … k.
    """

    def __init__(self, head_dim: int, max_distance: int = 16, dropout: float = 0.0):
        super().__init__(dropout)
        if max_distance < 1:
            raise ValueError(f"ShawAttention needs max_distance >= 1, got {max_distance}")
        self.max_distance = max_distance
        self.keys = nn.Parameter(torch.randn(2 * max_distance + 1, head_dim) * head_dim**-0.5)
        self.values = nn.Parameter(torch.randn(2 * max_distance + 1, head_dim) * head_dim**-0.5)

    def buckets(self, query_length: int, key_length: int, device: torch.device) -> Int[Tensor, "query key"]:
        """Row of `keys` and `values` for each pair of positions."""
        distance = relative_distances(query_length, key_length, device=device)
        return distance.clamp(-self.max_distance, self.max_distance) + self.max_distance

    def bias(
        self, q: Float[Tensor, "batch heads query head_dim"], key_length: int
    ) -> Float[Tensor, "batch heads query key"]:
        """q · a^K by distance, scaled like the scores (eq. 4)."""
        per_distance = (q * q.shape[-1] ** -0.5) @ self.keys.T  # (batch, heads, query, distance)
        bucket = self.buckets(q.shape[-2], key_length, q.device)  # (query, key)
        return per_distance.gather(-1, bucket.expand(*q.shape[:2], -1, -1))

    def forward(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch heads key head_dim"],
        v: Float[Tensor, "batch heads key head_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads query head_dim"]:
        """Σ weight · (v + a^V) (eq. 3): the weights of equal distance are added up, then meet their a^V once."""
        weights = nn.functional.dropout(self.weights(q, k, mask), self.dropout, self.training)
        bucket = self.buckets(q.shape[-2], k.shape[-2], q.device).expand(weights.shape)
        per_distance = weights.new_zeros(*q.shape[:-1], len(self.values)).scatter_add(-1, bucket, weights)
        return weights @ v + per_distance @ self.values


class SkewedAttention(RelativeAttention):
    """A learned vector for each past distance of each head, by the skewing trick (Huang et al. 2019, §3.4.1).

    Needs (heads, max_length, head_dim) parameters and no (query, key, head_dim) tensor. It is causal: the trick
    leaves no meaningful score for keys in the future, so a mask that lets them through is refused.

    Args:
        heads, head_dim: shape of the heads.
        max_length: longest sequence, and farthest distance + 1.
    """

    def __init__(self, heads: int, head_dim: int, max_length: int = 2048, dropout: float = 0.0):
        super().__init__(dropout)
        self.max_length = max_length
        self.distances = nn.Parameter(torch.randn(heads, max_length, head_dim) * head_dim**-0.5)  # last: distance 0

    def bias(
        self, q: Float[Tensor, "batch heads query head_dim"], key_length: int
    ) -> Float[Tensor, "batch heads query key"]:
        """q · E by distance, skewed from (query, distance) to (query, key) and scaled like the scores."""
        query_length = q.shape[-2]
        if query_length > key_length:
            raise ValueError(f"SkewedAttention is for self-attention, got {query_length} queries for {key_length} keys")
        if key_length > self.max_length:
            raise ValueError(f"SkewedAttention holds max_length={self.max_length} positions, got {key_length}")
        by_distance = (q * q.shape[-1] ** -0.5) @ self.distances[:, -key_length:].mT  # column c: distance n-1-c
        return skew(by_distance)

    def forward(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch heads key head_dim"],
        v: Float[Tensor, "batch heads key head_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads query head_dim"]:
        """See `attention`; the mask must be causal."""
        self.check_causal(q, k, mask)
        return super().forward(q, k, v, mask)

    def weights(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch heads key head_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads query key"]:
        """The weights that `forward` averages the values with; the mask must be causal."""
        self.check_causal(q, k, mask)
        return super().weights(q, k, mask)

    @staticmethod
    def check_causal(q: Tensor, k: Tensor, mask: MaskLike) -> None:
        future = relative_distances(q.shape[-2], k.shape[-2], device=q.device) > 0
        allowed = as_dense(mask, q, k)
        if future.any() and (allowed is None or bool((allowed & future).any())):
            raise ValueError("SkewedAttention is causal: this mask lets a query see the future; add `& causal()`")


def skew(by_distance: Float[Tensor, "batch heads query key"]) -> Float[Tensor, "batch heads query key"]:
    """Move column c of row i, which belongs to distance (key_length - 1 - c), under the key at that distance.

    Pad one column on the left, read the memory row by row with one column less, drop the first row (Huang et
    al. 2019, §3.4.1). Entries of future keys are left over from other rows: mask them.
    """
    *rest, query_length, key_length = by_distance.shape
    padded = nn.functional.pad(by_distance, (1, 0))  # (…, query, key + 1)
    if query_length == key_length:
        return padded.reshape(*rest, key_length + 1, query_length)[..., 1:, :]
    column = relative_distances(query_length, key_length, device=by_distance.device) + key_length - 1
    return by_distance.gather(-1, column.clamp(max=key_length - 1).expand(by_distance.shape))


class AlibiAttention(RelativeAttention):
    """A penalty that grows linearly with distance, with a fixed slope for each head (Press et al. 2022, §3).

    The paper is causal. Without a causal mask the penalty counts distance in both directions, so that a sentence and
    its mirror image look alike.
    """

    slope: Tensor

    def __init__(self, heads: int, dropout: float = 0.0):
        super().__init__(dropout)
        self.register_buffer("slope", alibi_slopes(heads), persistent=False)

    def bias(
        self, q: Float[Tensor, "batch heads query head_dim"], key_length: int
    ) -> Float[Tensor, "1 heads query key"]:
        """-slope · |distance|."""
        distance = relative_distances(q.shape[-2], key_length, device=q.device).abs()
        return (-self.slope[:, None, None] * distance)[None].to(q.dtype)


def alibi_slopes(heads: int) -> Float[Tensor, "heads"]:
    """2^(-8/h), 2^(-16/h), … for a power of two; otherwise those of the next smaller power of two, and then every
    other slope of the next larger one (Press et al. 2022, §3 and footnote 3 of its code)."""
    if heads < 1:
        raise ValueError(f"alibi_slopes needs heads >= 1, got {heads}")
    power = 2 ** (heads.bit_length() - 1)
    slopes = 2.0 ** (-8 / power * torch.arange(1, power + 1))
    between = 2.0 ** (-4 / power * torch.arange(1, 2 * power + 1, 2))
    return torch.cat([slopes, between])[:heads]
