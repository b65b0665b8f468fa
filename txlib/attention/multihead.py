"""Many heads: project, attend in each head, join, project (Vaswani et al. 2017, §3.2.2)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from txlib.attention.cache import AttentionCache, MemoryCache, StateCache
from txlib.attention.dense import DenseAttention
from txlib.attention.masks import Mask, MaskLike, check_mask
from txlib.attention.masks.shared import once
from txlib.attention.mechanism import (
    check_divisible,
    check_dropout,
    check_output,
    check_sizes,
    check_takes_mask,
    takes,
)
from txlib.attention.paged import PagedCache
from txlib.attention.relative import PositionBias

Bias = bool | tuple[bool, bool, bool, bool]


class MultiHeadAttention(nn.Module):
    """Self-attention, or cross-attention when a memory is given, with any mechanism inside.

    Args:
        d_model: width of the input and of the output.
        heads: number of query heads.
        head_dim: width of each; d_model / heads unless given.
        value_dim: width of each head's values; head_dim unless given.
        kv_heads: number of key and value heads, each shared by heads / kv_heads queries: fewer is grouped-query
            attention (Ainslie et al. 2023), 1 is multi-query attention (Shazeer 2019). Default: heads.
        mechanism: module called as `mechanism(q, k, v, mask)`, see `txlib.attention.mechanism`; `DenseAttention`
            unless given.
        mask: a rule of the layer, joined with each call's mask by `&`.
        position_bias: a `PositionBias`, added to the scores of self-attention.
        rotary: `txlib.layers.Rotary`, turns queries and keys by their positions.
        qk_norm: "layer" or "rms": normalize each head's queries and keys, so that scores stay bounded (Dehghani et al.
            2023, §2); or a function that makes such a norm of a width; None: do not.
        qk_norm_whole: normalize the queries of all heads together, and the keys, as in OLMo 2.
        scale: what scores are multiplied by; 1 / √head_dim unless given.
        softcap: keeps scores between -softcap and softcap; see `attention_weights`.
        sinks: whether each head learns the score of a key without a value; see `attention_weights`.
        gate: multiply the heads' output by the sigmoid of a projection of x (Qiu et al. 2025).
        bias: whether the projections have biases: one for all, or four, for queries, keys, values and the output.
        dropout: of `DenseAttention`; another mechanism has its own.
        memory_dim: width of the memory in cross-attention; d_model unless given.

    Raises:
        ValueError: when d_model is no multiple of heads, or heads no multiple of kv_heads, or parts do not fit.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
        kv_heads: int | None = None,
        mechanism: nn.Module | None = None,
        mask: Mask | None = None,
        position_bias: PositionBias | None = None,
        rotary: nn.Module | None = None,
        qk_norm: str | Callable[[int], nn.Module] | None = None,
        qk_norm_whole: bool = False,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        gate: bool = False,
        bias: Bias = True,
        dropout: float = 0.0,
        memory_dim: int | None = None,
    ):
        super().__init__()
        check_heads(d_model, heads, kv_heads, head_dim, value_dim)
        kv_heads = heads if kv_heads is None else kv_heads
        self.heads, self.kv_heads = heads, kv_heads
        self.head_dim = d_model // heads if head_dim is None else head_dim
        self.value_dim = self.head_dim if value_dim is None else value_dim
        check_parts(self.head_dim, mechanism, position_bias, rotary, dropout)
        check_scores(mechanism, softcap, sinks)
        check_rule(mask)
        self.d_model, self.memory_dim = d_model, d_model if memory_dim is None else memory_dim
        query_bias, key_bias, value_bias, output_bias = four_biases(bias)
        self.query = nn.Linear(d_model, heads * self.head_dim, bias=query_bias)
        self.key = nn.Linear(self.memory_dim, kv_heads * self.head_dim, bias=key_bias)
        self.value = nn.Linear(self.memory_dim, kv_heads * self.value_dim, bias=value_bias)
        self.output = nn.Linear(heads * self.value_dim, d_model, bias=output_bias)
        self.mechanism: Any = DenseAttention(dropout) if mechanism is None else mechanism
        self.mask, self.position_bias, self.rotary = mask, position_bias, rotary
        self.scale_correction = None if scale is None else scale * self.head_dim**0.5  # mechanisms divide by √head_dim
        self.softcap, self.sinks = softcap, nn.Parameter(torch.zeros(heads)) if sinks else None
        self.gate = nn.Linear(d_model, heads * self.value_dim, bias=query_bias) if gate else None
        branches = getattr(self.mechanism, "branches", 0)
        self.branch_gate = nn.Linear(d_model, heads * branches) if branches else None
        self.qk_norm_whole = qk_norm_whole
        widths = (heads, kv_heads) if qk_norm_whole else (1, 1)
        self.query_norm, self.key_norm = (make_head_norm(qk_norm, count * self.head_dim) for count in widths)
        self.attention_log: list[Tensor] | None = None  # filled inside `recording`

    def forward(
        self,
        x: Float[Tensor, "batch query d_model"],
        memory: Float[Tensor, "batch key memory_dim"] | None = None,
        mask: MaskLike = None,
        cache: AttentionCache | None = None,
        offset: int | None = None,
        position_bias: PositionBias | None = None,
    ) -> Float[Tensor, "batch query d_model"]:
        """Attend from x to itself, or to the memory.

        Args:
            memory: source of keys and values in cross-attention; None for self-attention.
            mask: True = may attend. A `Mask` sees absolute positions; a tensor covers (query, all keys so far).
            cache: for decoding step by step, a `MemoryCache` in cross-attention; x then holds the new positions only.
            offset: position of x's first row; unless given, the length of self-attention's cache, or 0.
            position_bias: one that layers share, instead of the layer's own.

        Raises:
            ValueError: for a cache of the wrong kind, and for a wrong width.
        """
        heads = self.attend(x, memory, mask, cache, offset, position_bias, self.mask)
        joined = heads.transpose(1, 2).flatten(start_dim=2)
        return self.output(joined if self.gate is None else joined * self.gate(x).sigmoid())

    def attend(
        self,
        x: Float[Tensor, "batch query d_model"],
        memory: Float[Tensor, "batch key memory_dim"] | None,
        mask: MaskLike,
        cache: AttentionCache | None,
        offset: int | None,
        position_bias: PositionBias | None,
        own_mask: Mask | None,
    ) -> Float[Tensor, "batch heads query value_dim"]:
        """Return each head's output: all of `forward` but the last projection."""
        self.check_inputs(x, memory, mask)
        if cache is not None:
            self.check_cache(cache, memory, own_mask)
        if offset is None:
            offset = 0 if cache is None or memory is not None else cache.length
        positions = cache.step.positions if isinstance(cache, PagedCache) else offset
        projected_memory = cache if isinstance(cache, MemoryCache) and cache.length else None
        source = x if memory is None else memory
        queries, keys, values = self.project(x, source if projected_memory is None else None)
        q = self.split(queries, self.head_dim, self.query_norm)  # (batch, heads, query, head_dim)
        if self.rotary is not None:
            q = self.rotary(q, offset=positions)
        if self.scale_correction is not None:
            q = q * self.scale_correction
        if projected_memory is not None:
            k, v = projected_memory.k, projected_memory.v
        else:
            k = self.split(keys, self.head_dim, self.key_norm)  # (batch, kv_heads, key, head_dim)
            v = self.split(values, self.value_dim)  # (batch, kv_heads, key, value_dim)
            if self.rotary is not None:
                k = self.rotary(k, offset=positions if memory is None else 0)
        parts = ("softcap", self.softcap), ("sinks", self.sinks), ("gates", self.branch_gates(x))
        options: dict[str, Any] = {name: value for name, value in parts if value is not None}
        if isinstance(cache, PagedCache):
            check_rule(mask)
            return cache.attend(q, k, v, (mask, own_mask), **options)
        if cache is not None and projected_memory is None:
            k, v = cache.update(k, v)
        key_offset = 0 if cache is None else cache.length - k.shape[-2]  # a window's cache forgets the first keys
        mask = join_masks(mask, own_mask, offset, key_offset, q.shape[-2], k.shape[-2])
        if isinstance(cache, StateCache):
            options["cache"] = cache
        if position_bias is None:
            position_bias = self.position_bias
        if position_bias is not None:
            position_bias.check(mask, q, k)
            options["bias"] = position_bias(q, k.shape[-2])
        if self.attention_log is not None:
            if isinstance(cache, StateCache):
                raise ValueError("a state has no keys to show weights of; decode without a cache: use_cache=False")
            self.attention_log.append(self.mechanism.weights(q, k, mask, **options).detach())
        out = self.mechanism(q, k, v, mask, **options)
        check_output(self.mechanism, out, q, v)
        return out

    def project(
        self, x: Float[Tensor, "batch query d_model"], source: Float[Tensor, "batch key memory_dim"] | None
    ) -> tuple[Tensor, Any, Any]:
        """Return queries of x, and keys and values of the source, if given; heads are concatenated in the last axis."""
        if source is None:
            return self.query(x), None, None
        return self.query(x), self.key(source), self.value(source)

    def branch_gates(self, x: Float[Tensor, "batch query d_model"]) -> Float[Tensor, "batch heads query branch"] | None:
        """Return how much each branch of the mechanism counts, if it has some."""
        if self.branch_gate is None:
            return None
        return self.branch_gate(x).sigmoid().unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def split(
        self, x: Float[Tensor, "batch length joined"], width: int | None = None, norm: nn.Module | None = None
    ) -> Float[Tensor, "batch some_heads length _"]:
        """Move heads of this width, head_dim unless given, from the last axis to a separate one; normalize each."""
        width = self.head_dim if width is None else width
        batch, length, joined = x.shape
        if norm is not None and self.qk_norm_whole:
            x, norm = norm(x), None
        heads = x.view(batch, length, joined // width, width).transpose(1, 2)
        return heads if norm is None else norm(heads)

    def check_cache(self, cache: AttentionCache, memory: Tensor | None, own_mask: Mask | None) -> None:
        """Refuse a cache that does not suit the layer.

        Raises:
            ValueError: saying which does.
        """
        if isinstance(cache, MemoryCache) != (memory is not None):
            raise ValueError("cross-attention needs a MemoryCache, self-attention one that grows, as KeyValueCache")
        if isinstance(cache, StateCache) and not hasattr(self.mechanism, "new_cache"):
            name = type(self.mechanism).__name__
            raise ValueError(f"{name} keeps keys and values, not a state: use a KeyValueCache instead of a StateCache")
        if memory is None and own_mask is not None:
            check_does_not_grow(own_mask)

    def check_inputs(self, x: Tensor, memory: Tensor | None, mask: MaskLike) -> None:
        """Refuse inputs of a wrong type or shape."""
        if isinstance(memory, Mask):
            raise TypeError(f"the second argument is the memory of cross-attention; write mask={memory}")
        check_mask(mask)
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"x is {kind}, but attention takes floats (batch, length, d_model={self.d_model})")
        if x.dim() != 3:
            raise ValueError(f"x has shape {tuple(x.shape)}, expected (batch, length, d_model={self.d_model})")
        if x.shape[-1] != self.d_model:
            raise ValueError(f"x has width {x.shape[-1]}, this layer takes d_model={self.d_model}")
        if memory is not None and (memory.shape[0], memory.shape[-1]) != (x.shape[0], self.memory_dim):
            raise ValueError(
                f"the memory has shape {tuple(memory.shape)}, expected (batch, key, memory_dim) = "
                f"({x.shape[0]}, any, {self.memory_dim})"
            )


def join_masks(
    mask: MaskLike, own_mask: Mask | None, offset: int, key_offset: int, query_length: int, key_length: int
) -> MaskLike:
    """Return a call's and a layer's mask as one, for queries from position `offset` and keys from `key_offset` on."""
    if isinstance(mask, Tensor):
        mask = mask[..., key_offset:]
        if own_mask is None:
            return mask
        return mask & own_mask.shift(offset, key_offset).dense(query_length, key_length, device=mask.device)
    return once(resolve, mask, own_mask, offset, key_offset, key_length)


def resolve(mask: Mask | None, own_mask: Mask | None, offset: int, key_offset: int, key_length: int) -> Mask | None:
    """Return both masks as one, for queries from position `offset` and `key_length` keys from `key_offset` on."""
    if own_mask is not None:
        mask = own_mask if mask is None else mask & own_mask
    return None if mask is None else mask.shift(offset, key_offset).sized(key_length)


def make_head_norm(kind: str | Callable[[int], nn.Module] | None, width: int) -> nn.Module | None:
    """Return the norm of queries or keys.

    Raises:
        ValueError: for an unknown kind.
    """
    if callable(kind):
        return kind(width)
    if kind not in (None, "layer", "rms"):
        raise ValueError(f"qk_norm={kind!r} is unknown; choose 'layer', 'rms' or None")
    if kind is None:
        return None
    return nn.LayerNorm(width, bias=False) if kind == "layer" else nn.RMSNorm(width, eps=1e-6)


def check_parts(
    head_dim: int,
    mechanism: nn.Module | None,
    position_bias: PositionBias | None,
    rotary: nn.Module | None,
    dropout: float,
) -> None:
    """Refuse parts of an attention layer that do not fit each other."""
    check_dropout(dropout)
    for name, part, example in ("mechanism", mechanism, "DenseAttention()"), ("rotary", rotary, f"Rotary({head_dim})"):
        if part is not None and not isinstance(part, nn.Module):
            raise TypeError(f"{name}={part!r} is not a module; give an instance, such as {example}")
    if mechanism is not None:
        check_takes_mask(mechanism)
    if mechanism is not None and dropout:
        raise ValueError(f"dropout={dropout} has no effect together with a mechanism: give it to the mechanism")
    if position_bias is not None and mechanism is not None and not takes(mechanism, "bias"):
        name, added = type(mechanism).__name__, type(position_bias).__name__
        raise ValueError(f"{name} takes no position bias, got {added}; use DenseAttention, or rotary positions")
    width = getattr(rotary, "head_dim", head_dim)
    if width != head_dim:
        raise ValueError(
            f"rotary turns heads of {width}, these have d_model / heads = {head_dim}; use Rotary({head_dim})"
        )


def check_scores(mechanism: nn.Module | None, softcap: float | None, sinks: bool) -> None:
    """Refuse a soft-cap or sinks that a mechanism can't honor.

    Raises:
        ValueError: naming both.
    """
    if softcap is not None and softcap <= 0:
        raise ValueError(f"softcap={softcap} must be above 0; None is no cap")
    for name, given in ("softcap", softcap is not None), ("sinks", sinks):
        if given and mechanism is not None and not takes(mechanism, name):
            raise ValueError(f"{type(mechanism).__name__} takes no {name}; use DenseAttention or BlockSparseAttention")


def four_biases(bias: Bias) -> tuple[bool, bool, bool, bool]:
    """Return whether the projections of queries, keys, values and the output have biases."""
    return (bias,) * 4 if isinstance(bias, bool) else bias


def check_rule(mask: Any) -> None:
    """Refuse a layer's own mask unless it is a rule.

    Raises:
        TypeError: naming what it is.
    """
    if isinstance(mask, Tensor):
        raise TypeError(f"mask is a rule, not a tensor of shape {tuple(mask.shape)}; make it one: Mask(rule)")
    check_mask(mask)


def check_does_not_grow(mask: Mask) -> None:
    """Refuse a mask that changes with each new key.

    Raises:
        ValueError: naming it.
    """
    if mask.sized(1) is not mask:
        raise ValueError(
            f"{mask} depends on how many keys there are, and a cache has one more in each step; fix their number, "
            "with the mask's .sized(max_length), or decode without a cache: use_cache=False"
        )


def check_heads(
    d_model: int, heads: int, kv_heads: int | None, head_dim: int | None, value_dim: int | None = None
) -> None:
    """Refuse sizes of heads that are not positive integers, or do not divide what they share."""
    optional = {"kv_heads": kv_heads, "head_dim": head_dim, "value_dim": value_dim}
    check_sizes(d_model=d_model, heads=heads, **{name: size for name, size in optional.items() if size is not None})
    if head_dim is None:
        check_divisible("d_model", d_model, heads)
    if heads % (kv_heads or heads):
        raise ValueError(f"heads={heads} is not divisible by kv_heads={kv_heads}; choose a divisor of {heads}")


@contextmanager
def recording(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Record the weights of every `MultiHeadAttention` of the model inside this context, one tensor per call.

    Yields a dictionary: module name → list of (batch, heads, query, key). The weights are computed a second time, so
    use it for analysis, not for training.

    Raises:
        ValueError: when a mechanism has no `weights`, which are optional.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)}
    for name, layer in layers.items():
        if not hasattr(layer.mechanism, "weights"):
            where = f" in {name}" if name else ""
            raise ValueError(
                f"recording shows weights, and {type(layer.mechanism).__name__}{where} has none to show; "
                "give it a method weights(q, k, mask), or use DenseAttention"
            )
    weights: dict[str, list[Tensor]] = {name: [] for name in layers}
    outer = {name: layer.attention_log for name, layer in layers.items()}
    for name, layer in layers.items():
        layer.attention_log = weights[name]
    try:
        yield weights
    finally:
        for name, layer in layers.items():
            layer.attention_log = outer[name]
