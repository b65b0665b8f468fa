"""The contract of a mechanism: what it receives, what it returns, what it may refuse. `check_mechanism` tests it.

A mechanism is a module that is called as `mechanism(q, k, v, mask, bias=bias)`:

    q     (batch, heads, query, head_dim)
    k     (batch, kv_heads, key, head_dim)      heads % kv_heads == 0: neighboring heads share (see `for_each_head`)
    v     (batch, kv_heads, key, value_dim)     may have another width
    mask  a `Mask`, a bool tensor (batch | 1, heads | 1, query | 1, key) with True = may attend, or None: no limits
    bias  a `Bias`, a tensor (batch | 1, heads, query, key) added to the scaled scores, or None
    softcap, sinks  a number and a tensor (heads,), see `attention_weights`; passed only by a layer that has them
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
refuses masks that are not. One that takes no bias, no softcap or no sinks has no such parameter, which a layer that has
one checks.

**It may have** `weights(q, k, mask, bias=bias)` → (batch, heads, query, key), which `recording` shows; and parameters.
It applies dropout itself, since nothing outside knows its weights; in evaluation it drops none.

**It may have branches**, `branches: int`, and weigh them: the layer then passes `gates` (batch, heads, query, branch),
sigmoids of a linear function of each query's token.

**It may keep a state** instead of keys and values, of a size that does not grow with the text: a method `new_cache()`
→ `StateCache`. Decoding then calls `mechanism(q, k, v, mask, cache=cache)` with the new positions only, counted from 0,
and the mechanism continues from `cache.state`.

**What it must know beforehand** comes from its config, a `MechanismConfig`, whose `make` gets the block's config and
the layer's `LayerContext`.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from txlib.attention.config import Config
from txlib.attention.masks import MaskLike
from txlib.precision import autocast_type


@dataclass(frozen=True)
class LayerContext:
    """Context of the layer that a mechanism is built for.

    number: of the block, from 0; layers: how many there are; max_length: longest sequence, where the model has a limit;
    causal: whether no query ever sees a later key; cross: whether keys come from a memory; shared: the same dictionary
    for all layers of a stack, in which a layer may store what later ones use, such as Linformer's projection.
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
    """A mechanism in a block's config: numbers, strings and masks, which JSON can store.

    Subclasses are frozen dataclasses. JSON stores the name that they are declared with:

        @dataclass(frozen=True)
        class LinformerConfig(MechanismConfig, name="linformer"):
            keys: int = 256

            def make(self, block, layer):
                return Linformer(layer.max_length, self.keys, dropout=block.attention.dropout)
    """

    example: ClassVar[str] = "DenseConfig()"

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
    """Refuse a size that is not a positive integer.

    Raises:
        TypeError, ValueError: naming it.
    """
    for name, value in sizes.items():
        if not isinstance(value, int):
            raise TypeError(f"{name}={value!r} must be an integer")
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")


def check_divisible(name: str, width: int, heads: int) -> None:
    """Refuse a width that heads do not divide.

    Raises:
        ValueError: with the nearest that they do.
    """
    if width % heads:
        nearest = max(1, round(width / heads)) * heads
        raise ValueError(f"{name}={width} is not divisible by heads={heads}; choose e.g. {nearest}")


def check_width(mechanism: nn.Module, size: str, x: Tensor, width: int) -> None:
    """Refuse vectors of another width than a mechanism has parameters for.

    Raises:
        ValueError: with both widths.
    """
    if x.shape[-1] != width:
        what = {"head_dim": "queries", "value_dim": "values"}.get(size, "keys")
        name = type(mechanism).__name__
        raise ValueError(f"{name} was made for {what} of width {width}, got {x.shape[-1]}; set {size}")


def check_head_count(mechanism: nn.Module, size: str, x: Tensor, heads: int) -> None:
    """Refuse another number of heads than a mechanism has parameters for.

    Raises:
        ValueError: with both numbers.
    """
    if x.shape[1] != heads:
        raise ValueError(f"{type(mechanism).__name__} was made for {size}={heads}, got {x.shape[1]}; set {size}")


def check_no_dropout(name: str, block: Any) -> None:
    """Refuse attention dropout for a mechanism that never computes weights.

    Raises:
        ValueError: naming the probability.
    """
    if block.attention.dropout:
        raise ValueError(
            f"{name} has no weights to drop, got attention_dropout={block.attention.dropout}; set it to 0, dropout=… "
            "acts on the output"
        )


def check_inputs(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse queries, keys and values that do not fit each other; some kernels would read beyond their ends.

    Raises:
        TypeError: for anything but a tensor of floats.
        ValueError: with their shapes, devices or types.
    """
    for name, tensor in ("q", q), ("k", k), ("v", v):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is not a tensor but {type(tensor).__name__}; write torch.as_tensor({name})")
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


def takes(mechanism: nn.Module, name: str) -> bool:
    """Return whether a mechanism has a parameter, such as "bias"."""
    parameters = inspect.signature(mechanism.forward).parameters.values()
    return any(parameter.name == name or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


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
    """Refuse an output that is not a tensor of the expected shape.

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
    """Return the mask of self-attention with hidden positions, such as padding, hidden as queries too."""
    if mask is None:
        return None
    if isinstance(mask, Tensor):
        return mask & mask.mT if mask.shape[2] == 1 else mask
    for part in mask.conjuncts():
        if part.only_keys:
            mask = mask & part.transposed()
    return mask


def by_python(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the function, excluded from compilation: for a mechanism that plans by the mask or loops over tiles, whose
    every step would be compiled for one mask and one length."""
    return torch.compiler.disable(function) if torch.compiler.is_compiling() else function


def for_each_head(
    shared: Float[Tensor, "batch kv_heads key head_dim"], heads: int
) -> Float[Tensor, "batch {heads} key head_dim"]:
    """Return keys or values repeated for each head, where neighboring heads share them."""
    kv_heads = shared.shape[1]
    return shared if kv_heads == heads else shared.repeat_interleave(heads // kv_heads, dim=1)
