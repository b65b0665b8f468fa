"""Attention of low rank: a few mixtures of the keys instead of all of them, at a cost that grows with n, not n².

`Linformer` (Wang et al. 2020) learns the mixtures; `Nystrom` (Xiong et al. 2021) averages segments of the sequence.
Both mix keys before any query looks at them, so neither can be causal, and padding must be removed before the mixing.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from txlib.attention.dense import DenseAttention, what_remains
from txlib.attention.functional import attention_weights
from txlib.attention.masks import Mask, MaskLike, as_dense
from txlib.attention.mechanism import (
    LayerContext,
    MechanismConfig,
    check_head_count,
    check_inputs,
    check_sizes,
    for_each_head,
)
from txlib.precision import at_least_float32, without_autocast

SHARING = ("none", "headwise", "key-value", "layerwise")


class LengthProjection(nn.Module):
    """E and F: from any number of keys and values to a fixed number of mixtures (Wang et al. 2020, eq. 7).

    A shorter sequence uses their first columns only.

    Args:
        max_length: longest sequence.
        keys: number of mixtures, k in the paper.
        heads: number of heads that have their own matrices; 1: all share them.
        both: whether values have their own matrix, F; otherwise they use E.
    """

    def __init__(self, max_length: int, keys: int, *, heads: int = 1, both: bool = True):
        super().__init__()
        size = (heads, keys, max_length)
        self.key = nn.Parameter(torch.randn(size) * max_length**-0.5)  # E; a mixture varies as a key does
        self.value = nn.Parameter(torch.randn(size) * max_length**-0.5) if both else None  # F

    def matrices(self, length: int, heads: int) -> tuple[Tensor, Tensor]:
        """Return E and F for this length, each (1, heads | 1, keys, length)."""
        e, f = (
            (matrix if len(matrix) == 1 else for_each_head(matrix[None], heads)[0])[None, ..., :length]
            for matrix in (self.key, self.key if self.value is None else self.value)
        )
        return e, f


class Linformer(nn.Module):
    """softmax(q (E k)ᵀ / √head_dim) F v: scores of n × k instead of n × n (Wang et al. 2020, §4).

    Padded keys and values are set to zero before they are mixed, so that the amount of padding at the end changes
    nothing. It is not causal: a mixture holds later positions as well as earlier ones.

    Args:
        max_length: longest sequence; shorter ones use the first columns of E and F.
        keys: number of mixtures, k in the paper.
        sharing: "none": each key head has its E and its F; "headwise": all heads share E and F; "key-value": and E = F;
            "layerwise": and the same E in all layers (§4, "Additional Efficiency Techniques").
        kv_heads: number of key heads, which "none" must know.
        dropout: probability of dropping a weight while training.
        lender: another Linformer, whose projection this one uses instead of its own.

    Raises:
        ValueError: for an unknown sharing, or sizes that save nothing.
    """

    def __init__(
        self,
        max_length: int,
        keys: int = 256,
        *,
        sharing: str = "headwise",
        kv_heads: int | None = None,
        dropout: float = 0.0,
        lender: "Linformer | None" = None,
    ):
        super().__init__()
        if sharing not in SHARING:
            raise ValueError(f"sharing={sharing!r} is unknown; choose one of {', '.join(SHARING)}")
        if not 1 <= keys <= max_length:
            raise ValueError(
                f"keys={keys} must be from 1 to max_length={max_length}: Linformer mixes n keys into fewer"
            )
        if sharing == "none" and kv_heads is None:
            raise ValueError("sharing='none' gives each key head a projection of its own: say how many, kv_heads=…")
        self.max_length, self.sharing = max_length, sharing
        self.dense = DenseAttention(dropout)
        self.own = self.lender = None
        if lender is None:
            heads = kv_heads if sharing == "none" and kv_heads is not None else 1
            self.own = LengthProjection(max_length, keys, heads=heads, both=sharing in ("none", "headwise"))
        else:
            self.lender = (lender,)  # a tuple hides it: the projection is the lender's parameter, and is saved once

    @property
    def projection(self) -> LengthProjection:
        """Return E and F, its own or the lender's."""
        return self.own if self.lender is None else self.lender[0].projection  # type: ignore[return-value]

    def forward(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        v: Float[Tensor, "batch kv_heads key value_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """See `txlib.attention.mechanism`.

        Raises:
            ValueError: for a mask that differs from query to query, such as `causal()`; for too long a sequence.
        """
        check_inputs(q, k, v)
        real = real_keys(self, mask, q, k)
        e, f, k, v = self.mixing(q, k, v, real)
        out = self.dense(q, e.to(k) @ k, f.to(v) @ v)
        return out if real is None else out.masked_fill(~real.any(dim=-1, keepdim=True), 0.0)

    def weights(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads query key"]:
        """Return the weight of each value for each query: softmax(…) F. They may be negative, and need not sum to 1."""
        real = real_keys(self, mask, q, k)
        e, f, k, _ = self.mixing(q, k, k, real)
        mixture_weights = attention_weights(q, for_each_head(e.to(k) @ k, q.shape[1]))  # (batch, heads, query, keys)
        weights = mixture_weights @ for_each_head(f.to(k), q.shape[1])
        return weights if real is None else weights.masked_fill(~real, 0.0)

    def mixing(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return E, F, and the keys and values that they mix: padded ones are zero."""
        length = k.shape[-2]
        if self.sharing == "none":
            check_head_count(self, "kv_heads", k, len(self.projection.key))
        if length > self.max_length:
            raise ValueError(
                f"Linformer was made for max_length={self.max_length} positions, got {length} keys; "
                "cut the sequence, or make a model with a larger max_length"
            )
        if real is not None:
            if real.shape[1] > 1:  # heads that share keys differ in what is real
                k, v = for_each_head(k, q.shape[1]), for_each_head(v, q.shape[1])
            k, v = k.masked_fill(~real.mT, 0.0), v.masked_fill(~real.mT, 0.0)
        e, f = self.projection.matrices(length, k.shape[1])
        return e, f, k, v


class Nystrom(nn.Module):
    """softmax(q k̃ᵀ) softmax(q̃ k̃ᵀ)⁺ softmax(q̃ kᵀ) v, with landmarks q̃, k̃ (Xiong et al. 2021, eq. 13).

    Landmarks are means of segments of the real tokens, as equal in length as can be, so that the amount of padding
    changes nothing. They are made of queries and keys of one sequence: self-attention, which is not causal.

    Args:
        landmarks: number of segments, m in the paper. In a shorter sequence each token is a landmark, and attention
            is dense except for the pseudo-inverse.
        iterations: of the pseudo-inverse (eq. 11).
        residual: width of a convolution of the values along the sequence, one kernel per head, that is added to the
            output (§3.3, "skip connection"; the published code's is 33 or 35); None: none.
        heads: number of query heads, which the convolution must know.
        dropout: probability of dropping a weight on a landmark while training.

    Raises:
        ValueError: for sizes that are not valid.
    """

    def __init__(
        self,
        landmarks: int = 64,
        *,
        iterations: int = 6,
        residual: int | None = None,
        heads: int | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        check_sizes(landmarks=landmarks, iterations=iterations)
        if residual is not None and (residual < 1 or residual % 2 == 0):
            raise ValueError(f"residual={residual} must be odd, to have a middle; the published code's is 33")
        if residual is not None and heads is None:
            raise ValueError("the residual convolution has a kernel for each head: say how many, heads=…")
        self.landmarks, self.iterations = landmarks, iterations
        self.far, self.dense = DenseAttention(), DenseAttention(dropout)  # from landmarks to all keys, from all queries
        self.residual = None
        if residual is not None and heads is not None:
            self.residual = nn.Conv2d(heads, heads, (residual, 1), padding=(residual // 2, 0), groups=heads, bias=False)

    def forward(
        self,
        q: Float[Tensor, "batch heads length head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        v: Float[Tensor, "batch kv_heads key value_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads length value_dim"]:
        """See `txlib.attention.mechanism`.

        Raises:
            ValueError: for a mask that differs from query to query, such as `causal()`, and where queries and keys
                are not of one sequence.
        """
        check_inputs(q, k, v)
        if self.residual is not None:
            check_head_count(self, "heads", q, self.residual.groups)
        q, k, some_q, some_k, used, real = self.with_landmarks(q, k, mask)
        v = for_each_head(v, q.shape[1])
        if real is not None:
            v = v.masked_fill(~real.mT, 0.0)
        landmark_values = self.core(some_q, some_k, used) @ self.far(some_q, k, v, real)  # (batch, heads, m, value_dim)
        out = self.dense(q, some_k, landmark_values, used)
        return out if self.residual is None or not out.numel() else out + self.residual(v)

    def weights(
        self,
        q: Float[Tensor, "batch heads length head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads length key"]:
        """Return the product of the three matrices, which approximates the softmax; without the residual."""
        q, k, some_q, some_k, used, real = self.with_landmarks(q, k, mask)
        near, far = attention_weights(q, some_k, used), attention_weights(some_q, k, real)
        return near @ self.core(some_q, some_k, used) @ far

    def with_landmarks(self, q: Tensor, k: Tensor, mask: MaskLike) -> tuple[Any, ...]:
        """Return queries and keys, zero at padding; their landmarks, (batch, heads, m, head_dim); which of these are
        used, (batch | 1, heads | 1, 1, m), and which keys are real; None: all."""
        if q.shape[-2] != k.shape[-2]:
            raise ValueError(
                f"Nystrom takes its landmarks from one sequence, got {q.shape[-2]} queries and {k.shape[-2]} keys; use "
                "it for self-attention, and Linformer or DenseAttention for cross-attention"
            )
        real = real_keys(self, mask, q, k)
        k = for_each_head(k, q.shape[1])
        if real is None:
            counted = k.new_ones(1, 1, 1, k.shape[-2], dtype=torch.bool)
        else:
            counted, q, k = real, q.masked_fill(~real.mT, 0.0), k.masked_fill(~real.mT, 0.0)
        means, used = segment_means(counted, self.landmarks)
        all_used = real is None and k.shape[-2] >= self.landmarks
        return q, k, means.to(q) @ q, means.to(k) @ k, None if all_used else used, real

    def core(self, some_q: Tensor, some_k: Tensor, used: Tensor | None) -> Float[Tensor, "batch heads m m"]:
        """Return softmax(q̃ k̃ᵀ)⁺. Rows and columns of landmarks that are not used are zero, as in the matrix itself."""
        between = attention_weights(some_q, some_k, used)
        return pseudo_inverse(between if used is None else between.masked_fill(~used.mT, 0.0), self.iterations)


def segment_means(
    real: Bool[Tensor, "batch heads 1 length"], segments: int
) -> tuple[Float[Tensor, "batch heads segments length"], Bool[Tensor, "batch heads 1 segments"]]:
    """Return the matrix that averages segments of a sequence, of nearly equal length; and which of them hold a token.

    Args:
        real: True for the tokens that count.
    """
    count = real.sum(dim=-1, keepdim=True)  # (batch, heads, 1, 1)
    rank = real.cumsum(dim=-1) - 1  # of each token among the real ones
    segment = rank * segments // count.clamp(min=segments)  # fewer tokens than segments: each has one to itself
    member = (segment == torch.arange(segments, device=real.device)[:, None]) & real  # (batch, heads, segments, length)
    size = member.sum(dim=-1, keepdim=True)  # (batch, heads, segments, 1)
    return member / size.clamp(min=1), (size > 0).mT


def pseudo_inverse(matrix: Float[Tensor, "*batch m m"], iterations: int = 6) -> Float[Tensor, "*batch m m"]:
    """Return the Moore–Penrose inverse, approximated by matrix products only (Xiong et al. 2021, eq. 11).

    Each matrix starts from its own norms, so that a sentence does not depend on its batch. The products are
    calculated in 32 bits at least, also inside autocast: they would not converge in 16.
    """
    with without_autocast(matrix):
        a = at_least_float32(matrix)
        norms = a.abs().sum(dim=-2).amax(dim=-1) * a.abs().sum(dim=-1).amax(dim=-1)  # ‖a‖₁ ‖a‖∞
        z = a.mT / norms.clamp(min=torch.finfo(a.dtype).tiny)[..., None, None]
        one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
        for _ in range(iterations):
            az = a @ z
            z = 0.25 * z @ (13 * one - az @ (15 * one - az @ (7 * one - az)))
        return z.to(matrix.dtype)


def real_keys(mechanism: nn.Module, mask: MaskLike, q: Tensor, k: Tensor) -> Bool[Tensor, "_ _ 1 key"] | None:
    """Return which keys the mask leaves, the same for all queries; None: all.

    Raises:
        ValueError: when it differs from query to query: a mechanism that mixes keys first cannot honor that.
    """
    if isinstance(mask, Mask):
        mask = what_remains(mask, q.shape[-2], k.shape[-2])
        if mask is not None and not mask.only_keys:
            raise ValueError(refusal(mechanism, mask, str(mask)))
    allowed = as_dense(mask, q, k)
    if allowed is None:
        return None
    if allowed.shape[-2] > 1 and not torch.equal(allowed, allowed[..., :1, :].expand_as(allowed)):
        raise ValueError(refusal(mechanism, allowed, f"a tensor of shape {tuple(allowed.shape)}"))
    return allowed[..., :1, :]


def refusal(mechanism: nn.Module, mask: Mask | Tensor, description: str) -> str:
    """Return why a mechanism that mixes keys cannot honor a mask."""
    name, remedy = type(mechanism).__name__, "use DenseAttention, or MemoryCompressedAttention in a decoder"
    reason = "mixes keys before a query looks at them, and this mask differs from query to query"
    if isinstance(mask, Mask) and mask.reach()[0] >= 0:
        reason = "is not causal: it mixes keys of all positions, and this mask hides later ones"
    return f"{name} {reason}: {description}; {remedy}"


def refuse_a_decoder(name: str, layer: LayerContext) -> None:
    """Raise when the model is built, not when it first runs."""
    if layer.causal and not layer.cross:
        raise ValueError(
            f"{name} is not causal: it mixes keys of all positions, and a decoder's self-attention must not see the "
            "later ones; use it in an encoder, and DenseConfig or MemoryCompressedConfig here"
        )


@dataclass(frozen=True)
class LinformerConfig(MechanismConfig, name="linformer"):
    """`Linformer` in a block's config. The model's `max_length` sizes the projection.

    Args:
        keys, sharing: see `Linformer`. With "layerwise" the first layer of a stack owns the projection.
    """

    keys: int = 256
    sharing: str = "headwise"

    def make(self, block: Any, layer: LayerContext) -> Linformer:
        """Return the mechanism, with the block's dropout.

        Raises:
            ValueError: in a decoder's self-attention, and where the model has no longest length.
        """
        refuse_a_decoder("Linformer", layer)
        if layer.max_length is None:
            raise ValueError(
                "Linformer's projection is as long as the longest sequence, and this model sets no max_length"
            )
        made = Linformer(
            layer.max_length,
            self.keys,
            sharing=self.sharing,
            kv_heads=block.attention.kv_heads or block.attention.heads,
            dropout=block.attention.dropout,
            lender=layer.shared.get((self, layer.cross)),
        )
        if self.sharing == "layerwise":
            layer.shared.setdefault((self, layer.cross), made)
        return made


@dataclass(frozen=True)
class NystromConfig(MechanismConfig, name="nystrom"):
    """`Nystrom` in a block's config.

    Args:
        landmarks, iterations, residual: see `Nystrom`.
    """

    landmarks: int = 64
    iterations: int = 6
    residual: int | None = None

    def make(self, block: Any, layer: LayerContext) -> Nystrom:
        """Return the mechanism, with the block's dropout.

        Raises:
            ValueError: in a decoder's self-attention, and for cross-attention.
        """
        refuse_a_decoder("Nystrom", layer)
        if layer.cross:
            raise ValueError("Nystrom takes its landmarks from one sequence: use LinformerConfig for cross-attention")
        return Nystrom(
            self.landmarks,
            iterations=self.iterations,
            residual=self.residual,
            heads=block.attention.heads,
            dropout=block.attention.dropout,
        )
