"""Attention that depends on the distance of query and key. All of it is for self-attention: when there are fewer
queries than keys, the queries are the last positions, as in cached decoding.

A *position bias* is a module that adds to the scores of any mechanism that takes one. If it depends on the distance
alone, it is passed as a rule, a `Bias`, as masks are; if it depends on the query, as a tensor. `ShawAttention` adds to
the values too, for which it needs all weights, so it is a mechanism itself.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.attention.functional import attention_weights
from txlib.attention.masks import Mask, MaskLike, as_dense, causal
from txlib.attention.mechanism import for_each_head


def relative_distances(
    query_length: int, key_length: int, *, device: torch.device | str | None = None
) -> Int[Tensor, "query key"]:
    """Return position of the key minus position of the query, -(n-1) … n-1; the queries are the last positions.

    Raises:
        ValueError: when there are more queries than keys, so that they have no distances.
    """
    check_lengths(query_length, key_length)
    key = torch.arange(key_length, device=device)
    return key[None, :] - key[key_length - query_length :, None]


def check_lengths(query_length: int, key_length: int) -> None:
    """Refuse more queries than keys, which have no distances."""
    if query_length > key_length:
        raise ValueError(
            f"relative positions need self-attention, got {query_length} queries for {key_length} keys; "
            "use sinusoidal, learned or rotary positions for cross-attention"
        )


@dataclass(frozen=True, eq=False)
class Bias:
    """A bias of the scores that depends on the head and the distance alone.

    Args:
        values: from distances key - query, of any shape, to (heads, the same shape).
        ahead: how far the first query is after the first key.
    """

    values: Callable[[Tensor], Tensor]
    ahead: int

    def at(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Float[Tensor, "heads ..."]:
        """Return the bias of each query and key, by their indices, which broadcast."""
        return self.values(key - query - self.ahead)

    def dense(
        self, query_length: int, key_length: int, *, device: torch.device | str | None = None
    ) -> Float[Tensor, "1 heads query key"]:
        """Return the bias as a tensor: each row is a slice of the biases of all distances."""
        distances = torch.arange(1 - query_length, key_length, device=device) - self.ahead
        return self.values(distances).unfold(-1, key_length, 1).flip(-2)[None]

    def by_distance(
        self, query_length: int, key_length: int, *, device: torch.device | str | None = None
    ) -> Float[Tensor, "heads distance"]:
        """Return the bias of each distance query - key, from the least to the greatest."""
        return self.values(torch.arange(key_length - 1, -query_length, -1, device=device) - self.ahead)


BiasLike = Bias | Tensor | None
"""What a mechanism may take besides a mask: a `Bias`, a tensor (batch | 1, heads, query, key), or None."""


def as_dense_bias(
    bias: BiasLike, q: Float[Tensor, "batch heads query head_dim"], k: Float[Tensor, "batch some_heads key key_dim"]
) -> Float[Tensor, "_ heads query key"] | None:
    """Return the bias as a tensor, in q's dtype.

    Raises:
        TypeError, ValueError: for anything but a bias, and one that does not broadcast to (batch, heads, query, key).
    """
    check_bias(bias)
    if bias is None:
        return None
    if isinstance(bias, Bias):
        bias = bias.dense(q.shape[-2], k.shape[-2], device=q.device)
    scores = (*q.shape[:-1], k.shape[-2])
    sizes = (1,) * (4 - bias.dim()) + tuple(bias.shape)
    if len(sizes) > 4 or any(have not in (1, want) for have, want in zip(sizes, scores, strict=True)):
        raise ValueError(
            f"the bias has shape {tuple(bias.shape)}, expected (batch, heads, query, key) = {scores}; each may be 1"
        )
    return bias.to(q.dtype)


def check_bias(bias: object) -> None:
    """Refuse anything but a bias.

    Raises:
        TypeError: naming what it is.
    """
    if isinstance(bias, PositionBias):
        name = type(bias).__name__
        raise TypeError(f"{name} makes a bias: call it, bias={name}(…)(q, key_length), or give it to a layer")
    if not (bias is None or isinstance(bias, Bias | Tensor)):
        raise TypeError(f"a bias is a Bias, a tensor or None, got {type(bias).__name__}")


class PositionBias(nn.Module):
    """The base of what positions add to the scaled scores of self-attention."""

    def forward(self, q: Float[Tensor, "batch heads query head_dim"], key_length: int) -> Bias | Tensor:
        """Return the bias of these queries, which are the last of the keys' positions."""
        raise NotImplementedError

    def check(
        self,
        mask: MaskLike,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
    ) -> None:
        """Refuse masks for which the bias is not defined.

        Raises:
            ValueError: naming the mask.
        """


class AlibiBias(PositionBias):
    """A penalty that grows linearly with distance, with a fixed slope for each head (Press et al. 2022, §3).

    The paper is causal. Without a causal mask the penalty counts distance in both directions, so that a sentence and
    its mirror image look alike.
    """

    slope: Tensor

    def __init__(self, heads: int):
        super().__init__()
        self.register_buffer("slope", alibi_slopes(heads), persistent=False)

    def forward(self, q: Float[Tensor, "batch heads query head_dim"], key_length: int) -> Bias:
        """Return -slope · |distance|."""
        check_lengths(q.shape[-2], key_length)
        return Bias(self.values, key_length - q.shape[-2])

    def values(self, distance: Int[Tensor, "..."]) -> Float[Tensor, "heads ..."]:
        """Return the bias of each head for these distances."""
        return -self.slope.view(-1, *(1,) * distance.dim()) * distance.abs()


def alibi_slopes(heads: int) -> Float[Tensor, "heads"]:
    """Return 2^(-8/h), 2^(-16/h), … for a power of two; otherwise the slopes of the next smaller power of two, then
    every other slope of the next larger one (Press et al. 2022, §3; the latter is in their code only)."""
    if heads < 1:
        raise ValueError(f"alibi_slopes needs heads >= 1, got {heads}")
    power = 2 ** (heads.bit_length() - 1)
    slopes = 2.0 ** (-8 / power * torch.arange(1, power + 1))
    between = 2.0 ** (-4 / power * torch.arange(1, 2 * power + 1, 2))
    return torch.cat([slopes, between])[:heads]


class BucketBias(PositionBias):
    """A learned number for each head and each bucket of distances: T5's (Raffel et al. 2020, §2.1).

    Each near distance has a bucket; farther ones share buckets that widen logarithmically up to max_distance, beyond
    which there is only one. In T5 all layers of a stack share one table.

    Args:
        buckets: number of buckets; half of them are for single distances.
        bidirectional: half of the buckets are for keys after the query; otherwise those count as distance 0, as a
            causal mask hides them.
    """

    def __init__(self, heads: int, *, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True):
        super().__init__()
        one_side = buckets // 2 if bidirectional else buckets
        if one_side < 2 or max_distance <= one_side // 2:
            raise ValueError(
                f"BucketBias needs at least 2 buckets per direction and max_distance above half of them, "
                f"got {buckets=}, {max_distance=}, {bidirectional=}"
            )
        self.one_side, self.max_distance, self.bidirectional = one_side, max_distance, bidirectional
        self.weight = nn.Parameter(torch.randn(buckets, heads) * 0.02)

    def forward(self, q: Float[Tensor, "batch heads query head_dim"], key_length: int) -> Bias:
        """Return the learned number of each distance's bucket."""
        check_lengths(q.shape[-2], key_length)
        return Bias(self.values, key_length - q.shape[-2])

    def values(self, distance: Int[Tensor, "..."]) -> Float[Tensor, "heads ..."]:
        """Return the bias of each head for these distances."""
        return nn.functional.embedding(self.bucket(distance), self.weight).movedim(-1, 0)

    def bucket(self, distance: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Return the row of the table for each distance key - query."""
        side = (distance > 0).long() * self.one_side if self.bidirectional else 0
        far = distance.abs() if self.bidirectional else (-distance).clamp(min=0)
        single = self.one_side // 2
        growth = (far.clamp(min=1).float() / single).log() / math.log(self.max_distance / single)
        shared = single + (growth * (self.one_side - single)).long()
        return side + torch.where(far < single, far, shared.clamp(max=self.one_side - 1))


class SkewedBias(PositionBias):
    """A learned vector for each past distance of each head, by the skewing trick (Huang et al. 2019, §3.4.1).

    Needs (heads, max_distance, head_dim) parameters and no (query, key, head_dim) tensor. It is causal: the trick
    leaves no meaningful score for keys in the future, so a mask that lets them through is refused.

    Args:
        heads, head_dim: shape of the heads.
        max_length: longest sequence.
        max_distance: how many distances, 0 included, have a vector; to the scores of farther keys nothing is added, as
            in the authors' code. None: all that a sequence can have.
    """

    def __init__(self, heads: int, head_dim: int, max_length: int = 2048, max_distance: int | None = None):
        super().__init__()
        self.max_length = max_length
        rows = max_length if max_distance is None else min(max_distance, max_length)
        if rows < 1:
            raise ValueError(f"SkewedBias needs max_length and max_distance >= 1, got {max_length=}, {max_distance=}")
        self.distances = nn.Parameter(torch.randn(heads, rows, head_dim) * head_dim**-0.5)  # last: distance 0

    def forward(
        self, q: Float[Tensor, "batch heads query head_dim"], key_length: int
    ) -> Float[Tensor, "batch heads query key"]:
        """Return q · E by distance, skewed from (query, distance) to (query, key) and scaled like the scores."""
        check_lengths(q.shape[-2], key_length)
        if key_length > self.max_length:
            raise ValueError(f"SkewedBias has max_length={self.max_length} positions, got {key_length}")
        near = (q * q.shape[-1] ** -0.5) @ self.distances[:, -key_length:].mT  # (batch, heads, query, distance)
        by_distance = nn.functional.pad(near, (key_length - near.shape[-1], 0))  # column c: distance n-1-c
        return skew(by_distance)

    def check(
        self,
        mask: MaskLike,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
    ) -> None:
        """Refuse a mask by which a query sees a later key."""
        query_length, key_length = q.shape[-2], k.shape[-2]
        ahead = key_length - query_length
        if isinstance(mask, Mask):
            later = (~causal()).shift(ahead)
            sees = mask.reach()[0] < -ahead and (mask & later).blocks(query_length, key_length).live > 0
        else:
            future = relative_distances(query_length, key_length, device=q.device) > 0
            allowed = as_dense(mask, q, k)
            sees = bool(future.any() if allowed is None else (allowed & future).any())
        if sees:
            what = f"the tensor of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"mask={mask}"
            raise ValueError(f"SkewedBias is causal, and {what} lets a query see the future; add & causal()")


def skew(by_distance: Float[Tensor, "batch heads query key"]) -> Float[Tensor, "batch heads query key"]:
    """Move column c of row i, which belongs to distance (key_length - 1 - c), to the column of the key at that
    distance.

    Pad one column on the left, read the memory row by row with one column less, drop the first row (Huang et
    al. 2019, §3.4.1). Entries of future keys are leftovers of other rows: mask them.
    """
    *rest, query_length, key_length = by_distance.shape
    padded = nn.functional.pad(by_distance, (1, 0))  # (…, query, key + 1)
    if query_length == key_length:
        return padded.reshape(*rest, key_length + 1, query_length)[..., 1:, :]
    column = relative_distances(query_length, key_length, device=by_distance.device) + key_length - 1
    return by_distance.gather(-1, column.clamp(max=key_length - 1).expand(by_distance.shape))


class ShawAttention(nn.Module):
    """A learned vector for each clipped distance, added to keys and to values (Shaw et al. 2018, eq. 3 and 4).

    The vectors are shared by all heads (§3.3). The naive form would build (query, key, head_dim) tensors of keys;
    here each query meets each distance once, and its score is picked by distance.

    Args:
        head_dim: size of a head.
        max_distance: k of the paper: distances are clipped to -k … k.
        dropout: probability of dropping a weight while training.
    """

    def __init__(self, head_dim: int, max_distance: int = 16, dropout: float = 0.0):
        super().__init__()
        if max_distance < 1:
            raise ValueError(f"ShawAttention needs max_distance >= 1, got {max_distance}")
        self.max_distance, self.dropout = max_distance, dropout
        self.keys = nn.Parameter(torch.randn(2 * max_distance + 1, head_dim) * head_dim**-0.5)
        self.values = nn.Parameter(torch.randn(2 * max_distance + 1, head_dim) * head_dim**-0.5)

    def buckets(self, query_length: int, key_length: int, device: torch.device) -> Int[Tensor, "query key"]:
        """Return the row of `keys` and `values` for each pair of positions."""
        distance = relative_distances(query_length, key_length, device=device)
        return distance.clamp(-self.max_distance, self.max_distance) + self.max_distance

    def bias(
        self, q: Float[Tensor, "batch heads query head_dim"], key_length: int
    ) -> Float[Tensor, "batch heads query key"]:
        """Return q · a^K by distance, scaled like the scores (eq. 4)."""
        per_distance = (q * q.shape[-1] ** -0.5) @ self.keys.T  # (batch, heads, query, distance)
        bucket = self.buckets(q.shape[-2], key_length, q.device)  # (query, key)
        return per_distance.gather(-1, bucket.expand(*q.shape[:2], -1, -1))

    def forward(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        v: Float[Tensor, "batch kv_heads key head_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads query head_dim"]:
        """Return Σ weight · (v + a^V) (eq. 3): weights of equal distance are summed, then multiplied by their a^V."""
        weights = nn.functional.dropout(self.weights(q, k, mask), self.dropout, self.training)
        bucket = self.buckets(q.shape[-2], k.shape[-2], q.device).expand(weights.shape)
        per_distance = weights.new_zeros(*q.shape[:-1], len(self.values)).scatter_add(-1, bucket, weights)
        return weights @ for_each_head(v, q.shape[1]) + per_distance @ self.values

    def weights(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads query key"]:
        """Return the weights that `forward` averages the values with."""
        return attention_weights(q, for_each_head(k, q.shape[1]), mask, bias=self.bias(q, k.shape[-2]))
