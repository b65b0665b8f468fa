"""Who may attend to whom: small rules on positions, combined with `&`, `|` and `~`.

A mask can be drawn (`txlib.plots.mask`), made dense (`mask.dense`), counted (`mask.pairs`) and handed to
FlexAttention (`mask.block_mask`). Everywhere in txlib True means "may attend".
"""

import inspect
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

SLICE = 2**22  # pairs looked at in one go while counting: a long mask does not fit into memory whole


class Mask:
    """A rule that says, for positions of a query and a key, whether the one may attend to the other.

    Args:
        rule: `rule(query, key)` or `rule(batch, head, query, key)`. It gets integer tensors that broadcast
            against each other and returns a bool tensor.
        batch, heads: how many different masks the rule holds along these axes (1: the same for all).
        name: shown by `repr`.
    """

    def __init__(self, rule: Callable[..., Tensor], *, batch: int = 1, heads: int = 1, name: str | None = None):
        parameters = len(inspect.signature(rule).parameters)
        if parameters not in (2, 4):
            raise ValueError(
                f"a mask's rule takes (query, key) or (batch, head, query, key), this one takes {parameters} arguments"
            )
        self.rule = rule if parameters == 4 else (lambda batch, head, query, key: rule(query, key))
        self.batch, self.heads, self.name = batch, heads, name or "custom"

    def __and__(self, other: "Mask") -> "Mask":
        """May attend where both allow it."""
        return self._combine(other, torch.logical_and, "&")

    def __or__(self, other: "Mask") -> "Mask":
        """May attend where either allows it."""
        return self._combine(other, torch.logical_or, "|")

    def __invert__(self) -> "Mask":
        """May attend exactly where this mask forbids it."""
        return Mask(
            lambda batch, head, query, key: ~self.rule(batch, head, query, key),
            batch=self.batch,
            heads=self.heads,
            name=f"~{self.name}",
        )

    def shift(self, offset: int) -> "Mask":
        """The same mask for queries that start at position `offset`, as in cached decoding."""
        if offset == 0:
            return self
        return Mask(
            lambda batch, head, query, key: self.rule(batch, head, query + offset, key),
            batch=self.batch,
            heads=self.heads,
            name=f"{self.name}.shift({offset})",
        )

    def dense(
        self, query_length: int, key_length: int | None = None, *, device: torch.device | str | None = None
    ) -> Bool[Tensor, "batch heads query key"]:
        """The mask written out; its batch and heads are 1 where the rule does not depend on them."""
        key_length = query_length if key_length is None else key_length
        sizes = (self.batch, self.heads, query_length, key_length)
        batch, head, query, key = (torch.arange(size, device=device) for size in sizes)
        allowed = self.rule(batch[:, None, None, None], head[:, None, None], query[:, None], key)
        return allowed.expand(sizes).contiguous()  # the kernels need it written out

    def pairs(self, query_length: int, key_length: int | None = None) -> int:
        """How many (query, key) pairs are allowed, over all of the mask's batch and heads."""
        key_length = query_length if key_length is None else key_length
        rows = max(1, SLICE // max(1, self.batch * self.heads * key_length))
        return sum(
            int(self.shift(first).dense(min(rows, query_length - first), key_length).sum())
            for first in range(0, query_length, rows)
        )

    def block_mask(
        self,
        query_length: int,
        key_length: int | None = None,
        *,
        device: torch.device | str = "cpu",
        block_size: int = 128,
    ):
        """The same mask for `torch.nn.attention.flex_attention`, which skips blocks that are all False."""
        from torch.nn.attention.flex_attention import create_block_mask

        return create_block_mask(
            self.rule,
            self.batch if self.batch > 1 else None,
            self.heads if self.heads > 1 else None,
            query_length,
            query_length if key_length is None else key_length,
            device=device,
            BLOCK_SIZE=block_size,
        )

    def _combine(self, other: "Mask", operation: Callable, sign: str) -> "Mask":
        if not isinstance(other, Mask):
            raise TypeError(f"a mask combines with a mask, not with {type(other).__name__}; wrap it in Mask(rule)")
        for axis in ("batch", "heads"):
            mine, theirs = getattr(self, axis), getattr(other, axis)
            if mine != theirs and 1 not in (mine, theirs):
                raise ValueError(f"{self} holds {axis}={mine} and {other} holds {axis}={theirs}: make them equal, or 1")
        return Mask(
            lambda batch, head, query, key: operation(
                self.rule(batch, head, query, key), other.rule(batch, head, query, key)
            ),
            batch=max(self.batch, other.batch),
            heads=max(self.heads, other.heads),
            name=f"({self.name} {sign} {other.name})",
        )

    def __repr__(self) -> str:
        return self.name


MaskLike = Mask | Tensor | None
"""What every mechanism takes: a `Mask`, a bool tensor (batch | 1, heads | 1, query | 1, key), or None: no limits."""


def as_dense(
    mask: MaskLike, q: Float[Tensor, "batch heads query head_dim"], k: Float[Tensor, "batch some_heads key head_dim"]
) -> Bool[Tensor, "_ _ _ key"] | None:
    """The mask as a tensor that fits the scores of q against k, checked.

    Raises:
        ValueError: when it does not broadcast to (batch, heads, query, key).
        TypeError: when it is a tensor of something other than bool.
    """
    if mask is None:
        return None
    expected = (*q.shape[:-1], k.shape[-2])
    if isinstance(mask, Mask):
        mask = mask.dense(expected[-2], expected[-1], device=q.device)
    if mask.dtype != torch.bool:
        raise TypeError(f"a mask is bool with True = may attend, got {mask.dtype}; write mask.bool() or mask > 0")
    fits = mask.dim() == 4 and all(have in (1, want) for have, want in zip(mask.shape, expected, strict=True))
    if not fits or mask.shape[-1] != expected[-1]:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)}, expected (batch, heads, query, key) = {expected}; "
            "the first three may be 1"
        )
    return mask


def everything() -> Mask:
    """No restriction: each query sees each key."""
    return Mask(lambda query, key: (query >= 0) & (key >= 0), name="everything()")


def causal() -> Mask:
    """Each position sees itself and the past (Vaswani et al. 2017, §3.2.3)."""
    return Mask(lambda query, key: query >= key, name="causal()")


def padding(lengths: Int[Tensor, "batch"] | Sequence[int]) -> Mask:
    """Each sentence's real tokens, which come first, may be seen; the padding behind them may not.

    Args:
        lengths: real tokens of each sentence in the batch.
    """
    lengths = torch.as_tensor(lengths)
    if lengths.dim() != 1 or lengths.is_floating_point():
        shape = tuple(lengths.shape)
        raise ValueError(f"padding needs one integer length a sentence, got {lengths.dtype} of shape {shape}")
    if (lengths < 0).any():
        raise ValueError(f"padding needs lengths >= 0, got {lengths.min().item()}")
    return Mask(
        lambda batch, head, query, key: key < lengths.to(key.device)[batch],
        batch=len(lengths),
        name=f"padding({lengths.tolist()})",
    )


def sliding_window(radius: int) -> Mask:
    """Each position sees the `radius` positions on either side (Beltagy et al. 2020, §3.1).

    The paper's and Hugging Face's `attention_window` is the whole width, 2 * radius.
    """
    if radius < 0:
        raise ValueError(f"sliding_window needs radius >= 0, got {radius}")
    return Mask(lambda query, key: (query - key).abs() <= radius, name=f"sliding_window({radius})")


def dilated(radius: int, dilation: int) -> Mask:
    """A window with gaps: `radius` positions on either side, `dilation` apart (Beltagy et al. 2020, §3.1)."""
    if radius < 0 or dilation < 1:
        raise ValueError(f"dilated needs radius >= 0 and dilation >= 1, got radius={radius}, dilation={dilation}")
    reach = radius * dilation
    return Mask(
        lambda query, key: ((query - key).abs() <= reach) & ((query - key) % dilation == 0),
        name=f"dilated({radius}, {dilation})",
    )


def global_tokens(positions: Sequence[int]) -> Mask:
    """These positions see everything, and everything sees them (Beltagy et al. 2020, §3.1)."""
    chosen = torch.as_tensor(positions, dtype=torch.long)
    if (chosen < 0).any():
        raise ValueError(f"global_tokens needs positions >= 0, got {chosen.tolist()}")
    last = int(chosen.max()) + 1 if len(chosen) else 0
    is_global = torch.zeros(last + 1, dtype=torch.bool).index_fill(0, chosen, True)  # False from `last` on
    return Mask(
        lambda query, key: (
            is_global.to(key.device)[query.clamp(max=last)] | is_global.to(key.device)[key.clamp(max=last)]
        ),
        name=f"global_tokens({chosen.tolist()})",
    )


def blocks(size: int, pattern: Bool[Tensor, "query_block key_block"]) -> Mask:
    """Positions in blocks of `size`; `pattern` says which block of queries sees which block of keys.

    Blocks beyond the pattern see nothing and are not seen.
    """
    if size < 1:
        raise ValueError(f"blocks needs size >= 1, got {size}")
    rows, columns = pattern.shape
    framed = torch.nn.functional.pad(pattern, (0, 1, 0, 1))  # False where the pattern ends
    return Mask(
        lambda query, key: framed.to(key.device)[(query // size).clamp(max=rows), (key // size).clamp(max=columns)],
        name=f"blocks({size}, {rows}×{columns})",
    )


def block_local(size: int) -> Mask:
    """Each position sees its own block of `size` positions (Liu et al. 2018, §4.2.4)."""
    if size < 1:
        raise ValueError(f"block_local needs size >= 1, got {size}")
    return Mask(lambda query, key: query // size == key // size, name=f"block_local({size})")
