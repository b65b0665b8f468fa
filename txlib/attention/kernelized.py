"""Attention without a softmax over keys: a query reads one matrix that sums up all of them.

A weight that is a product of features, φ(q) · φ(k), lets the sum over keys be taken first:

    Σ_j (φ(q) · φ(k_j)) v_j  =  φ(q) S,   S = Σ_j φ(k_j) v_jᵀ   (features, value_dim)

S has the same size for any number of keys, so cost and memory grow linearly. Under a causal mask it is the state of a
recurrent network, S_t = S_{t-1} + φ(k_t) v_tᵀ, which decodes in constant memory (Katharopoulos et al. 2020, §3.4).
Training goes chunk by chunk: pairs inside a chunk are computed, and S sums up all before it. The results are equal.

`LinearAttention` chooses a φ, `Performer` one whose products approximate softmax, and `GatedLinearAttention` lets the
state fade. They have no weights to drop and take no position bias. Positions inside q and k, such as rotary ones,
work. All compute in at least 32 bits, whatever the inputs' dtype.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from txlib.attention.cache import StateCache
from txlib.attention.masks import MaskLike, as_dense, check_mask
from txlib.attention.masks.spans import within
from txlib.attention.mechanism import (
    LayerContext,
    MechanismConfig,
    check_inputs,
    check_no_dropout,
    check_sizes,
    check_width,
    for_each_head,
)
from txlib.precision import at_least_float32, without_autocast

CHUNK = 64  # queries at a time; the fastest on a CPU for heads of 64


def elu_plus_one(x: Float[Tensor, "*batch head_dim"]) -> Float[Tensor, "*batch head_dim"]:
    """Return elu(x) + 1, which is positive (Katharopoulos et al. 2020, eq. 7), without cancellation of small values."""
    return F.relu(x) + x.clamp(max=0).exp_()


def softmax_features(x: Float[Tensor, "*batch head_dim"]) -> Float[Tensor, "*batch head_dim"]:
    """Return the softmax of each vector: features that compete (Shen et al. 2021, for queries)."""
    return x.softmax(dim=-1)


FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {"elu": elu_plus_one, "relu": F.relu, "softmax": softmax_features}


class KernelizedAttention(nn.Module):
    """Base of the three: masks, types, shared heads. A subclass has `attend`.

    Args:
        chunk: queries at a time under a causal mask; it changes time and memory, not the numbers.
    """

    def __init__(self, chunk: int = CHUNK):
        super().__init__()
        check_sizes(chunk=chunk)
        self.chunk = chunk

    def forward(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        v: Float[Tensor, "batch kv_heads key value_dim"],
        mask: MaskLike = None,
        *,
        cache: StateCache | None = None,
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """See `txlib.attention.mechanism`.

        Raises:
            ValueError: when the mask is more than causal() and padding, joined by `&`.
        """
        check_inputs(q, k, v)
        ahead, real = visible_keys(type(self).__name__, mask, q, k)
        with without_autocast(q):
            query, *shared = (at_least_float32(x) for x in (q, k, v))
            k, v = (for_each_head(x, q.shape[1]) for x in shared)
            return self.attend(query, k, v, ahead, real, cache).to(q.dtype)

    def attend(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch heads key head_dim"],
        v: Float[Tensor, "batch heads key value_dim"],
        ahead: int,
        real: Bool[Tensor, "_ _ key 1"] | None,
        cache: StateCache | None,
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """Return the output from inputs in at least 32 bits, with keys and values for each head.

        Args:
            ahead, real: see `visible_keys`.
        """
        raise NotImplementedError

    def new_cache(self) -> StateCache:
        """Return an empty cache for decoding; its state has one size for any number of tokens."""
        return StateCache()


class Averaging(KernelizedAttention):
    """Weights φ(q) · φ(k), divided by their sum. A subclass has `features`."""

    def features(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch heads key head_dim"],
        real: Bool[Tensor, "_ _ key 1"] | None,
        cache: StateCache | None,
    ) -> tuple[Tensor, Tensor, Tensor | None, tuple[Tensor, ...]]:
        """Return φ(q); φ(k), zero for keys that are not real; how the state fades, see `running_sums`; the rest of the
        cache's state."""
        raise NotImplementedError

    def attend(self, q, k, v, ahead, real, cache):
        q, k, fade, extra_state = self.features(q, k, real, cache)
        state = cache.state[0] if cache is not None and cache.state else None
        v = F.pad(v, (0, 1), value=1.0)  # a column of ones sums up the weights
        sums, state = running_sums(q, k, v, ahead, fade=fade, state=state, chunk=self.chunk)
        if cache is not None:
            cache.state = state, *extra_state
        least = torch.finfo(sums.dtype).tiny ** 0.5  # a query that sees nothing gets 0 / least
        return sums[..., :-1] / sums[..., -1:].clamp(min=least)

    def weights(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads query key"]:
        """Return the weights, which `forward` never holds: its output for values that are unit vectors."""
        units = torch.eye(k.shape[-2], dtype=k.dtype, device=k.device)
        return self(q, k, units.expand(*k.shape[:2], -1, -1), mask)


class LinearAttention(Averaging):
    """φ(q) · φ(k) instead of exp(q · k) (Katharopoulos et al. 2020, eq. 5 and 9). It does not approximate softmax.

    Args:
        feature_map: φ, from (…, head_dim) to (…, features), never negative.
        chunk: queries at a time under a causal mask; it changes time and memory, not the numbers.
    """

    def __init__(self, feature_map: Callable[[Tensor], Tensor] = elu_plus_one, *, chunk: int = CHUNK):
        super().__init__(chunk)
        if not callable(feature_map):
            raise TypeError(
                f"feature_map={feature_map!r} is no function; LinearConfig({feature_map!r}) knows some by name"
            )
        self.feature_map = feature_map

    def features(self, q, k, real, cache):
        q, k = self.feature_map(q), self.feature_map(k)
        return q, k if real is None else k.masked_fill(~real, 0.0), None, ()


class Performer(Averaging):
    """FAVOR+: random features whose products are exp(q · k / √d) on average (Choromanski et al. 2021, §2.3 and 2.4).

    φ(x) = exp(W x - |x|² / 2) for x divided by d^¼, with rows of W normal and orthogonal to each other. The error falls
    as features grow, and grows fast with |q| and |k|: it suits scores of a few units.

    So that nothing overflows, each query is divided by its largest feature and keys by the largest so far. When a
    key raises the second, the state fades by as much. A maximum over all keys, as in the authors' code, would let the
    past depend on the future. Where a query's features and those of all its keys differ by a factor of more than e⁴³,
    the sum of the weights underflows in 32 bits, and the output fades to zero.

    Args:
        head_dim: width of queries and keys.
        features: number of random features; head_dim · ln(head_dim) unless given.
        chunk: queries at a time under a causal mask; it changes time and memory, not the numbers.
    """

    projection: Tensor

    def __init__(self, head_dim: int, features: int | None = None, *, chunk: int = CHUNK):
        super().__init__(chunk)
        check_sizes(head_dim=head_dim)
        features = max(1, round(head_dim * math.log(head_dim))) if features is None else features
        check_sizes(features=features)
        self.register_buffer("projection", orthogonal_rows(features, head_dim))  # saved with the model

    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw new random features, as the paper does from time to time during training (§4.2)."""
        features, head_dim = self.projection.shape
        self.projection.copy_(orthogonal_rows(features, head_dim, generator))

    def project(
        self, x: Float[Tensor, "*batch head_dim"]
    ) -> tuple[Float[Tensor, "*batch features"], Float[Tensor, "*batch 1"]]:
        """Return W x and |x|² / 2, whose difference is ln φ(x)."""
        scale = x.shape[-1] ** -0.25
        return x @ (self.projection.to(x.dtype) * scale).T, (x * scale).square().sum(dim=-1, keepdim=True) / 2

    def features(self, q, k, real, cache):
        check_width(self, "head_dim", q, self.projection.shape[1])
        (query, _), (key, half) = self.project(q), self.project(k)  # a query's own |q|² is the same for all features
        top = key.detach().amax(dim=-1) - half.detach()[..., 0]  # (batch, heads, key)
        if real is not None:
            top, half = top.masked_fill(~real[..., 0], -torch.inf), half.masked_fill(~real, torch.inf)
        before = cache.state[1] if cache is not None and cache.state else top.new_full((*top.shape[:2], 1), -torch.inf)
        largest = torch.cat([before, top], dim=-1).cummax(dim=-1).values
        before, largest = largest[..., :-1], largest[..., 1:]
        fade = (before - largest).masked_fill(before.isinf(), 0.0)  # before the first real key there is nothing to fade
        half = half + largest.masked_fill(largest.isinf(), 0.0)[..., None]
        query = query.sub_(query.detach().amax(dim=-1, keepdim=True)).exp_()  # in place: this is the largest tensor
        return query, key.sub_(half).exp_(), fade, (largest[..., -1:],)


def running_sums(
    q: Float[Tensor, "batch heads query features"],
    k: Float[Tensor, "batch heads key features"],
    v: Float[Tensor, "batch heads key value_dim"],
    ahead: int,
    *,
    fade: Float[Tensor, "batch heads key"] | Float[Tensor, "batch heads key #features"] | None = None,
    state: Float[Tensor, "batch heads features value_dim"] | None = None,
    chunk: int = CHUNK,
) -> tuple[Float[Tensor, "batch heads query value_dim"], Float[Tensor, "batch heads features value_dim"]]:
    """Return Σ_j e^(fade_{j+1} + … + fade_i) (q_i · k_j) v_j over the keys that each query sees, and the final state.

    Takes O(chunk) products per query, and O(features · value_dim / chunk) memory.

    Args:
        ahead: query i sees the keys up to i + ahead, which also is its position.
        fade: logarithm, at most 0, of the fraction that each key leaves of the state before it, or of each row of the
            state; None: nothing fades.
        state: the state before these keys.
    """
    queries, keys = q.shape[-2], k.shape[-2]
    if state is None:
        state = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    if fade is not None and fade.ndim == 3:
        fade = fade[..., None]  # one number for all features
    if ahead >= keys - 1:  # all queries see all keys
        state = updated_state(state, k, v, fade)
        return q @ state, state
    if ahead != 0 or queries != keys:  # align each query with the last key that it sees
        if ahead > 0:
            past = None if fade is None else fade[..., :ahead, :]
            state = updated_state(state, k[..., :ahead, :], v[..., :ahead, :], past)
        ends = -max(ahead, -queries), max(ahead, -queries) + queries - keys
        k, v = (F.pad(x, (0, 0, *ends)) for x in (k, v))
        fade = None if fade is None else F.pad(fade, (0, 0, *ends))
    outs, fades = [], [None] * len(q.split(chunk, 2)) if fade is None else fade.split(chunk, 2)
    for q_c, k_c, v_c, fade_c in zip(q.split(chunk, 2), k.split(chunk, 2), v.split(chunk, 2), fades, strict=True):
        passed = None if fade_c is None else fade_c.cumsum(dim=-2)  # since the chunk began
        score = faded_products(q_c, k_c, passed)  # (batch, heads, query, key) of the chunk
        outs.append(score @ v_c + (q_c if passed is None else q_c * passed.exp()) @ state)
        state = updated_state(state, k_c, v_c, fade_c)
    return torch.cat(outs, dim=2), state


def faded_products(
    q: Float[Tensor, "batch heads query features"],
    k: Float[Tensor, "batch heads key features"],
    passed: Float[Tensor, "batch heads query #features"] | None,
) -> Float[Tensor, "batch heads query key"]:
    """Return q_i · k_j, faded by what has passed between key j and query i, and 0 for later keys j > i.

    Where each feature fades by itself, that takes memory for query · key · features numbers.
    """
    if passed is None:
        return (q @ k.mT).tril()
    if passed.shape[-1] == 1:
        return (q @ k.mT).tril() * (passed - passed.mT).tril().exp()
    between = passed[..., :, None, :] - passed[..., None, :, :]  # (batch, heads, query, key, features)
    seen = torch.ones(between.shape[-3:-1], dtype=torch.bool, device=q.device).tril()
    fraction = between.masked_fill(~seen[..., None], -torch.inf).exp()
    return (q[..., :, None, :] * fraction * k[..., None, :, :]).sum(dim=-1)


def updated_state(
    state: Float[Tensor, "batch heads features value_dim"],
    k: Float[Tensor, "batch heads key features"],
    v: Float[Tensor, "batch heads key value_dim"],
    fade: Float[Tensor, "batch heads key #features"] | None,
) -> Float[Tensor, "batch heads features value_dim"]:
    """Return the state after these keys: faded, plus k vᵀ."""
    if fade is None:
        return state + k.mT @ v
    later = fade.flip(-2).cumsum(dim=-2).flip(-2) - fade  # how much the keys after each key fade it
    return fade.sum(dim=-2).exp()[..., None] * state + (k * later.exp()).mT @ v


def orthogonal_rows(
    features: int, width: int, generator: torch.Generator | None = None
) -> Float[Tensor, "features width"]:
    """Return normal random vectors, orthogonal to each other in groups of `width` (Choromanski et al. 2021, §2.4).

    Directions are uniform, so that estimates have no bias: `orthogonal_` fixes the signs, which a QR decomposition
    leaves one-sided. Lengths are those of independent normal vectors.
    """
    groups = [torch.empty(width, width) for _ in range(-(-features // width))]
    rows = torch.cat([nn.init.orthogonal_(group, generator=generator) for group in groups])[:features]
    return rows * torch.randn(features, width, generator=generator).norm(dim=1, keepdim=True)


def visible_keys(
    name: str,
    mask: MaskLike,
    q: Float[Tensor, "batch heads query head_dim"],
    k: Float[Tensor, "batch kv_heads key head_dim"],
) -> tuple[int, Bool[Tensor, "_ _ key 1"] | None]:
    """Return a mask in the form that a running sum honors: query i sees the real keys up to i + ahead.

    Returns:
        ahead and real, True for real keys; None if all keys are real.

    Raises:
        ValueError: for any other mask, naming the part that cannot be honored.
    """
    check_mask(mask)
    queries, keys = q.shape[-2], k.shape[-2]
    ahead, real = keys - 1, None
    if isinstance(mask, Tensor):
        allowed = as_dense(mask, q, k)
        if mask.shape[-2] > 1:
            raise ValueError(
                f"{name} takes masks as rules, such as causal() & padding_from_mask(attention_mask), or a tensor "
                f"(…, 1, key) for padding; got a tensor of shape {tuple(mask.shape)}, for which use DenseAttention"
            )
        return ahead, None if allowed is None else allowed.mT
    for part in () if mask is None else mask.conjuncts():
        if part.only_keys:
            allowed = part.dense(1, keys, device=q.device).mT
            real = allowed if real is None else real & allowed
            continue
        spans = part.distances()
        seen = None if spans is None else within(spans, 1 - keys, queries - 1)
        if seen is None or len(seen) > 1 or (seen and seen[0][1] != queries):
            raise ValueError(
                f"{name} sums up all keys until now, so it can honor causal() and padding, joined by &, and not "
                f"{part}; use DenseAttention"
            )
        ahead = min(ahead, -int(seen[0][0]) if seen else -queries)
    return ahead, real


@dataclass(frozen=True)
class LinearConfig(MechanismConfig, name="linear"):
    """`LinearAttention` in a block's config.

    Args:
        feature_map: "elu" (elu + 1, the paper's), "relu" or "softmax".
        chunk: see `LinearAttention`.
    """

    feature_map: str = "elu"
    chunk: int = CHUNK

    def __post_init__(self):
        if self.feature_map not in FEATURE_MAPS:
            raise ValueError(f"feature_map={self.feature_map!r} is unknown; choose one of {', '.join(FEATURE_MAPS)}")

    def make(self, block: Any, layer: LayerContext) -> LinearAttention:
        """Return the mechanism."""
        check_no_dropout("LinearAttention", block)
        return LinearAttention(FEATURE_MAPS[self.feature_map], chunk=self.chunk)


@dataclass(frozen=True)
class PerformerConfig(MechanismConfig, name="performer"):
    """`Performer` in a block's config; each layer draws its own features, and its heads share them."""

    features: int | None = None
    chunk: int = CHUNK

    def make(self, block: Any, layer: LayerContext) -> Performer:
        """Return the mechanism."""
        check_no_dropout("Performer", block)
        return Performer(block.head_dim, self.features, chunk=self.chunk)
