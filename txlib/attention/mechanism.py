"""The contract of a mechanism: what it receives, what it returns, what it may refuse. `check_mechanism` tries it out.

A mechanism is a module that is called as `mechanism(q, k, v, mask, bias=bias)`:

    q     (batch, heads, query, head_dim)
    k     (batch, kv_heads, key, head_dim)      heads % kv_heads == 0: neighboring heads share (see `for_each_head`)
    v     (batch, kv_heads, key, value_dim)     a width of its own
    mask  a `Mask`, a bool tensor (batch | 1, heads | 1, query | 1, key) with True = may attend, or None: no limits
    bias  a `Bias`, a tensor (batch | 1, heads, query, key) added to the scaled scores, or None
    out   (batch, heads, query, value_dim)

**It returns** softmax(q kᵀ / √head_dim + bias) v over the keys that the mask allows, or its own approximation of it. A
query that may attend to nothing gets zeros, never NaN. Test it where it must equal dense attention.

**It may not depend on the number of keys**, only on those that the mask allows: padding adds keys, and a cache has one
more at each step. So padding equals absence, and decoding with a cache gives what reading the whole text gives.

**The mask is a rule** whenever a model made it: ask it for `blocks`, `distances`, `reach`, `conjuncts`, its values `at`
positions; `as_dense(mask, q, k)` writes it out. A few masks depend on the number of keys, such as random blocks: `at`
needs `mask.sized(key_length)`, which a layer passes; a mechanism that is called alone calls it itself. Positions count
from 0 for the first query and the first key that the mechanism sees. A decoder's cache may hold only a window: the
layer knows the absolute position of the first key and has shifted the mask. The queries of a bias are the last
positions.

**It may refuse** a mask, a bias or sizes that it can't honor, with a ValueError that names the mechanism, the mask and
what to do: "Linformer is not causal, and this mask is: causal(); use DenseAttention". A mechanism that is always causal
refuses masks that are not. One that takes no bias has no such parameter, which a layer with a position bias checks.

**It may have** `weights(q, k, mask, bias=bias)` → (batch, heads, query, key), which `recording` shows; and parameters.
It applies dropout itself, since nothing outside knows its weights.

**It may keep a state** instead of keys and values, of a size that does not grow with the text: a method `new_cache()`
→ `StateCache`. Decoding then calls `mechanism(q, k, v, mask, cache=cache)` with the new positions only, counted from 0,
and the mechanism continues from `cache.state`.

**What it must know beforehand** comes from its config, a `MechanismConfig`, whose `make` gets the block's config and
the `LayerContext` of the layer.
"""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from txlib.attention.config import Config
from txlib.attention.masks import MaskLike


@dataclass(frozen=True)
class LayerContext:
    """The layer that a mechanism is made for.

    number: of the block, from 0; layers: how many there are; max_length: longest sequence, where the model has a limit;
    causal: whether no query ever sees a later key; cross: whether keys come from a memory; shared: the same dictionary
    for all layers of a stack, in which one may leave what later ones use, such as Linformer's projection.
    """

    number: int = 0
    layers: int = 1
    max_length: int | None = None
    causal: bool = False
    cross: bool = False
    shared: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)


class MechanismError(ValueError):
    """A mechanism breaks its contract."""


class Mechanism(Protocol):
    """See the top of this file."""

    def __call__(
        self,
        q: Float[Tensor, "batch heads query head_dim"],
        k: Float[Tensor, "batch kv_heads key head_dim"],
        v: Float[Tensor, "batch kv_heads key value_dim"],
        mask: MaskLike = None,
    ) -> Float[Tensor, "batch heads query value_dim"]: ...


@dataclass(frozen=True)
class MechanismConfig(Config):
    """A mechanism in a block's config: numbers, strings and masks, which go to JSON and back.

    Subclasses are frozen dataclasses, and JSON knows them by the name that they are declared with:

        @dataclass(frozen=True)
        class LinformerConfig(MechanismConfig, name="linformer"):
            keys: int = 256

            def make(self, block, layer):
                return Linformer(layer.max_length, self.keys, dropout=block.attention.dropout)
    """

    def make(self, block: Any, layer: LayerContext) -> nn.Module:
        """Return the mechanism of one layer.

        Args:
            block: the `BlockConfig`, with head_dim, value_dim, and attention.heads, .kv_heads, .dropout.
        """
        raise NotImplementedError


def check_dropout(dropout: float, name: str = "dropout") -> None:
    """Refuse a probability outside [0, 1).

    Raises:
        ValueError: naming it.
    """
    if not 0 <= dropout < 1:
        raise ValueError(f"{name}={dropout} must be in [0, 1)")


def check_sizes(**sizes: int) -> None:
    """Refuse what no width, and no number of things, can be.

    Raises:
        TypeError, ValueError: naming it.
    """
    for name, value in sizes.items():
        if not isinstance(value, int):
            raise TypeError(f"{name}={value!r} must be a whole number")
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")


def check_width(mechanism: nn.Module, size: str, given: Tensor, width: int) -> None:
    """Refuse what a matrix product would refuse in words of its own.

    Raises:
        ValueError: with both widths.
    """
    if given.shape[-1] != width:
        what = {"head_dim": "queries", "value_dim": "values"}.get(size, "keys")
        name = type(mechanism).__name__
        raise ValueError(f"{name} was made for {what} of width {width}, got {given.shape[-1]}; set {size}")


def check_head_count(mechanism: nn.Module, size: str, given: Tensor, heads: int) -> None:
    """Refuse other heads than those that a mechanism has parameters for.

    Raises:
        ValueError: with both numbers.
    """
    if given.shape[1] != heads:
        raise ValueError(f"{type(mechanism).__name__} was made for {size}={heads}, got {given.shape[1]}; set {size}")


def check_no_dropout(name: str, block: Any) -> None:
    """Refuse to drop weights that are never written down.

    Raises:
        ValueError: naming the probability.
    """
    if block.attention.dropout:
        raise ValueError(
            f"{name} has no weights to drop, got attention_dropout={block.attention.dropout}; set it to 0, dropout=… "
            "acts on the output"
        )


def check_inputs(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse queries, keys and values that do not go together; some kernels would read beyond their ends.

    Raises:
        TypeError: for what is no tensor of floats.
        ValueError: with their shapes, devices or types.
    """
    for name, tensor in ("q", q), ("k", k), ("v", v):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is no tensor but {type(tensor).__name__}; write torch.as_tensor({name})")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} is {tensor.dtype}: attention takes floats, write {name}.float()")
    if not q.device == k.device == v.device:
        raise ValueError(f"q is on {q.device}, k on {k.device}, v on {v.device}: move them to one")
    sizes_q, sizes_k, sizes_v, problem = q.shape, k.shape, v.shape, None
    if not len(sizes_q) == len(sizes_k) == len(sizes_v) == 4:
        problem = "a mechanism takes (batch, heads, length, width)"
    elif sizes_k[:3] != sizes_v[:3]:
        problem = "each key needs a value"
    elif sizes_q[0] != sizes_k[0] or sizes_q[1] % max(sizes_k[1], 1) or sizes_q[3] != sizes_k[3]:
        problem = "keys need the queries' batch and width, and heads that divide theirs"
    if problem is not None:
        raise ValueError(f"{problem}, got q {tuple(sizes_q)}, k {tuple(sizes_k)}, v {tuple(sizes_v)}")
    if not q.dtype == k.dtype == v.dtype and autocast_type(q) is None:
        raise ValueError(f"q is {q.dtype}, k {k.dtype}, v {v.dtype}: convert them to one")


def autocast_type(x: Tensor) -> torch.dtype | None:
    """What products on this device are computed in, inside autocast; None outside, and on a device without it."""
    kind = x.device.type
    inside = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if inside else None


def as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors in the type that products are computed in, inside autocast; outside, as they are."""
    less = autocast_type(tensors[0])
    return tensors if less is None else tuple(each.to(less) for each in tensors)


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Inside this context no product on this device falls back to 16 bits."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def takes_bias(mechanism: nn.Module) -> bool:
    """Return whether a mechanism takes a position bias."""
    parameters = inspect.signature(mechanism.forward).parameters.values()
    return any(parameter.name == "bias" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def check_takes_mask(mechanism: nn.Module) -> None:
    """Refuse a mechanism that can't be called as mechanism(q, k, v, mask).

    Raises:
        MechanismError: naming its parameters.
    """
    signature = inspect.signature(mechanism.forward)
    try:
        signature.bind("q", "k", "v", "mask")
    except TypeError:
        raise MechanismError(
            f"{type(mechanism).__name__} takes {signature}, but is called as mechanism(q, k, v, mask); add "
            "mask=None to its forward, and refuse masks that it can't honor with a ValueError"
        ) from None


def check_output(mechanism: nn.Module, out: Any, q: Tensor, v: Tensor) -> None:
    """Refuse what a mechanism must not return.

    Raises:
        MechanismError: with the shape that was expected.
    """
    expected = (*q.shape[:3], v.shape[-1])
    if not isinstance(out, Tensor) or out.shape != expected:
        returned = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise MechanismError(
            f"{type(mechanism).__name__} returned {returned}, expected (batch, heads, query, value_dim) = {expected}"
        )


def mask_padded_queries(mask: MaskLike) -> MaskLike:
    """The mask of self-attention, by which keys that nothing sees, as padding, see nothing either."""
    if mask is None:
        return None
    if isinstance(mask, Tensor):
        return mask & mask.mT if mask.shape[2] == 1 else mask
    for part in mask.conjuncts():
        if part.only_keys:
            mask = mask & part.transposed()
    return mask


def by_python(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function, for a mechanism that plans ahead or walks over tiles: what compiles the model that holds it
    stops in front of it, and does not write out each step of one mask and one length."""
    return torch.compiler.disable(function) if torch.compiler.is_compiling() else function


def for_each_head(
    shared: Float[Tensor, "batch kv_heads key head_dim"], heads: int
) -> Float[Tensor, "batch {heads} key head_dim"]:
    """Keys or values written out for each head: neighbours share. For mechanisms that have no use for fewer."""
    kv_heads = shared.shape[1]
    return shared if kv_heads == heads else shared.repeat_interleave(heads // kv_heads, dim=1)
