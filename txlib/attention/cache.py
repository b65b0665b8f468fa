"""Caches: what attention keeps of a text while it is decoded step by step.

`AttentionCache` is the protocol, and the classes below implement it:

    KeyValueCache        all keys and values so far, copied into a longer tensor at each step
    StaticKeyValueCache  the same in memory that is allocated once
    WindowKeyValueCache  only the keys and values that a later query can still see
    StateCache           a state of fixed size, for mechanisms that keep a running sum
    MemoryCache          the keys and values of an encoder's memory, for cross-attention

A `BlockCache` holds the caches of one block, a `DecoderCache` those of a whole decoder.
"""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor


@runtime_checkable
class AttentionCache(Protocol):
    """What one attention layer keeps between two steps.

    The layer calls `update` with the keys and values of the new positions, and attends to what it returns.
    """

    length: int  # positions seen so far, which is also the position of the next one

    def update(
        self, k: Float[Tensor, "batch kv_heads new head_dim"], v: Float[Tensor, "batch kv_heads new value_dim"]
    ) -> tuple[Float[Tensor, "batch kv_heads key head_dim"], Float[Tensor, "batch kv_heads key value_dim"]]:
        """Add new positions. Return the keys and values to attend to, of which the last is at position length - 1."""

    def reorder(self, rows: Int[Tensor, "new_batch"]) -> None:
        """Keep these rows of the batch, in this order, as beam search does with its hypotheses."""

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on, as speculative decoding does with rejected guesses."""


class KeyValueCache:
    """All keys and values of one self-attention layer; a step copies them into a longer tensor."""

    def __init__(self) -> None:
        self.length = 0
        self.k: Tensor | None = None  # (batch, kv_heads, length, head_dim)
        self.v: Tensor | None = None  # (batch, kv_heads, length, value_dim)

    def update(
        self, k: Float[Tensor, "batch kv_heads new head_dim"], v: Float[Tensor, "batch kv_heads new value_dim"]
    ) -> tuple[Float[Tensor, "batch kv_heads key head_dim"], Float[Tensor, "batch kv_heads key value_dim"]]:
        """Add new positions; return all keys and values that are kept."""
        self.length += k.shape[-2]
        if self.k is not None and self.v is not None:
            k, v = torch.cat([self.k, k], dim=-2), torch.cat([self.v, v], dim=-2)
        self.k, self.v = k, v
        return k, v

    def reorder(self, rows: Int[Tensor, "new_batch"]) -> None:
        """Keep these rows of the batch, in this order."""
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k[rows], self.v[rows]

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on."""
        self.length = min(self.length, length)
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k[..., :length, :], self.v[..., :length, :]


class StaticKeyValueCache(KeyValueCache):
    """All keys and values in memory that is allocated once: a step writes the new ones and copies none.

    Args:
        capacity: the most positions that fit.
    """

    def __init__(self, capacity: int):
        super().__init__()
        self.capacity = capacity

    def update(
        self, k: Float[Tensor, "batch kv_heads new head_dim"], v: Float[Tensor, "batch kv_heads new value_dim"]
    ) -> tuple[Float[Tensor, "batch kv_heads key head_dim"], Float[Tensor, "batch kv_heads key value_dim"]]:
        """Write new positions; return views of all keys and values so far.

        Raises:
            ValueError: when they do not fit.
        """
        batch, heads, new, head_dim = k.shape
        start, end = self.length, self.length + new
        if end > self.capacity:
            raise ValueError(f"the cache holds capacity={self.capacity} positions, got {end}; make a larger one")
        if self.k is None or self.v is None:
            self.k = k.new_empty(batch, heads, self.capacity, head_dim)
            self.v = v.new_empty(batch, heads, self.capacity, v.shape[-1])
        self.k[:, :, start:end], self.v[:, :, start:end] = k, v
        self.length = end
        return self.k[:, :, :end], self.v[:, :, :end]

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on; later ones overwrite them."""
        self.length = min(self.length, length)


class WindowKeyValueCache(KeyValueCache):
    """Only the keys and values that a later query can still see: memory does not grow with the text.

    Args:
        window: how far back a query sees, as `mask.reach()` tells.
    """

    def __init__(self, window: int):
        super().__init__()
        if window < 0:
            raise ValueError(f"window={window} must be at least 0: how far back a query sees")
        self.window = window

    def update(
        self, k: Float[Tensor, "batch kv_heads new head_dim"], v: Float[Tensor, "batch kv_heads new value_dim"]
    ) -> tuple[Float[Tensor, "batch kv_heads key head_dim"], Float[Tensor, "batch kv_heads key value_dim"]]:
        """Add new positions; return them after those that the first of them can see."""
        k, v = super().update(k, v)
        start = max(0, k.shape[-2] - self.window)
        self.k, self.v = k[:, :, start:].clone(), v[:, :, start:].clone()
        return k, v

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on.

        Raises:
            ValueError: when positions before them, which the next query may see, are already gone.
        """
        if length >= self.length:
            return
        if self.k is not None and self.k.shape[-2] < self.length:
            raise ValueError(
                f"a cache with window={self.window} has forgotten what stood before position {length}; "
                "decode without a cache: use_cache=False"
            )
        super().crop(length)


class StateCache:
    """A state of fixed size instead of keys and values.

    The layer counts positions here and calls `mechanism(q, k, v, mask, cache=cache)` with new positions only; the
    mechanism reads `state` and replaces it.

    `state` is a tuple of tensors (batch, …), empty before the first position. Linear attention keeps one, (batch,
    heads, features, value_dim + 1): the sum of φ(k) vᵀ over all positions, with a column of ones for the denominator.
    """

    def __init__(self) -> None:
        self.length = 0
        self._state: tuple[Tensor, ...] = ()

    @property
    def state(self) -> tuple[Tensor, ...]:
        return self._state

    @state.setter
    def state(self, state: tuple[Tensor, ...]) -> None:
        """Replace the state.

        Raises:
            TypeError: when it is not a tuple of tensors.
            ValueError: when the tensors differ in their first axis, the batch.
        """
        if not isinstance(state, tuple) or not all(isinstance(part, Tensor) for part in state):
            raise TypeError(f"a state is a tuple of tensors (batch, …), got {type(state).__name__}; write (tensor,)")
        shapes = [tuple(part.shape) for part in state]
        if len({shape[:1] for shape in shapes}) > 1 or () in shapes:
            raise ValueError(
                f"the tensors of a state have shapes {', '.join(map(str, shapes))}; the first axis of each is the "
                "batch, which beam search reorders"
            )
        self._state = state

    def update(
        self, k: Float[Tensor, "batch kv_heads new head_dim"], v: Float[Tensor, "batch kv_heads new value_dim"]
    ) -> tuple[Float[Tensor, "batch kv_heads new head_dim"], Float[Tensor, "batch kv_heads new value_dim"]]:
        """Count new positions; return only these."""
        self.length += k.shape[-2]
        return k, v

    def reorder(self, rows: Int[Tensor, "new_batch"]) -> None:
        """Keep these rows of the batch, in this order."""
        self._state = tuple(part[rows] for part in self._state)

    def crop(self, length: int) -> None:
        """Forget all positions, if `length` is 0.

        Raises:
            ValueError: when some would remain: a sum cannot be split again.
        """
        if length >= self.length:
            return
        if length > 0:
            raise ValueError(
                f"a state sums up {self.length} positions and cannot forget only those from {length} on; "
                "decode without a cache: use_cache=False"
            )
        self.length, self._state = 0, ()


class MemoryCache:
    """The keys and values of an encoder's memory, which cross-attention projects once."""

    k: Tensor  # (batch, kv_heads, length, head_dim), once the memory is projected
    v: Tensor  # (batch, kv_heads, length, value_dim)

    def __init__(self) -> None:
        self.length = 0  # positions of the memory; 0 until it is projected

    def update(
        self, k: Float[Tensor, "batch kv_heads key head_dim"], v: Float[Tensor, "batch kv_heads key value_dim"]
    ) -> tuple[Float[Tensor, "batch kv_heads key head_dim"], Float[Tensor, "batch kv_heads key value_dim"]]:
        """Keep the projected memory."""
        self.length, self.k, self.v = k.shape[-2], k, v
        return k, v

    def reorder(self, rows: Int[Tensor, "new_batch"]) -> None:
        """Keep these rows of the batch, in this order."""
        if self.length:
            self.k, self.v = self.k[rows], self.v[rows]

    def crop(self, length: int) -> None:
        """Do nothing: the memory is the same for all positions of the target."""


class BlockCache:
    """The caches of one block.

    Args:
        self_attention: empty; one that grows unless given.
    """

    def __init__(self, self_attention: AttentionCache | None = None):
        self.self_attention: AttentionCache = KeyValueCache() if self_attention is None else self_attention
        self.cross_attention = MemoryCache()

    def reorder(self, rows: Int[Tensor, "new_batch"]) -> None:
        """Keep these rows of the batch, in this order."""
        self.self_attention.reorder(rows)
        self.cross_attention.reorder(rows)

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on; the memory stays."""
        self.self_attention.crop(length)


class DecoderCache(list[BlockCache]):
    """One `BlockCache` for each block of a decoder."""

    def __init__(self, blocks: Iterable[BlockCache]):
        super().__init__(blocks)

    @property
    def length(self) -> int:
        """Positions decoded so far."""
        return self[0].self_attention.length

    def reorder(self, rows: Int[Tensor, "new_batch"]) -> None:
        """Keep these rows of the batch, in this order."""
        for block in self:
            block.reorder(rows)

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on."""
        for block in self:
            block.crop(length)


def make_cache(capacity: int | None = None, window: int | None = None) -> KeyValueCache:
    """Return an empty cache of the kind that needs the least memory.

    Args:
        capacity: longest text, for which memory is allocated at once; None: it grows as needed.
        window: how far back a query sees; None: there is no limit.
    """
    if window is not None and (capacity is None or window < capacity):
        return WindowKeyValueCache(window)
    return KeyValueCache() if capacity is None else StaticKeyValueCache(capacity)
