"""Which position may attend to which: small rules on positions, combined with `&`, `|` and `~`.

A mask is a value: it can be compared, printed, pickled and written to JSON (`to_dict`). It can be drawn
(`txlib.plots.mask`), made dense (`mask.dense`), counted (`mask.pairs`), planned block by block without a tensor of all
pairs (`mask.blocks`), and passed to FlexAttention (`mask.block_mask`). Everywhere in txlib True means "may attend".
"""

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

import txlib.attention.masks.combined  # noqa: F401 (Mask finds &, |, ~ and shift there by name)
from txlib.attention.masks.mask import Mask
from txlib.attention.masks.patterns import Documents, GlobalBlocks, RandomBlocks, StridedKeys, SummaryColumns, Window2d
from txlib.attention.masks.primitives import (
    BlockLocal,
    Blocks,
    Causal,
    Dilated,
    Full,
    GlobalTokens,
    Padding,
    PaddingFromMask,
    SlidingWindow,
)
from txlib.attention.masks.shared import once

MaskLike = Mask | Tensor | None
"""What every mechanism takes: a `Mask`, a bool tensor (batch | 1, heads | 1, query | 1, key), or None: no limits."""


def as_dense(
    mask: MaskLike, q: Float[Tensor, "batch heads query head_dim"], k: Float[Tensor, "batch some_heads key key_dim"]
) -> Bool[Tensor, "_ _ _ key"] | None:
    """Return the mask as a tensor that fits the scores of q against k, checked.

    Raises:
        ValueError: when it does not broadcast to (batch, heads, query, key).
        TypeError: when it is neither a mask nor a tensor of bool.
    """
    if mask is None:
        return None
    return once(dense_of_shape, mask, (*q.shape[:-1], k.shape[-2]), q.device)


def dense_of_shape(mask: Mask | Tensor, expected: tuple[int, ...], device: torch.device) -> Bool[Tensor, "_ _ _ key"]:
    """Return the mask as a tensor that broadcasts to a shape, (batch, heads, query, key); see `as_dense`."""
    if isinstance(mask, Mask):
        mask = mask.dense(1 if mask.only_keys else expected[-2], expected[-1], device=device)
    check_mask(mask)
    if mask.device != device:
        raise ValueError(f"the mask is on {mask.device}, q on {device}: move them to one")
    if mask.dtype != torch.bool:
        raise TypeError(f"a mask is bool with True = may attend, got {mask.dtype}; write mask.bool() or mask > 0")
    fits = mask.dim() == 4 and all(have in (1, want) for have, want in zip(mask.shape, expected, strict=True))
    if not fits or mask.shape[-1] != expected[-1]:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)}, expected (batch, heads, query, key) = {expected}; "
            "the first three may be 1"
        )
    return mask


def check_mask(mask: Any) -> None:
    """Refuse what is no mask.

    Raises:
        TypeError: naming what it is.
    """
    if mask is None or isinstance(mask, Mask | Tensor):
        return
    if callable(mask):
        name = getattr(mask, "__name__", repr(mask))
        raise TypeError(f"mask={name} is a function; call it: {name}(…), or make it a rule: Mask({name})")
    raise TypeError(f"a mask is a txlib Mask, a bool tensor or None, got {type(mask).__name__}")


def full() -> Mask:
    """No restriction: each query sees each key."""
    return Full()


def causal() -> Mask:
    """Each position sees itself and the past (Vaswani et al. 2017, §3.2.3)."""
    return Causal()


def padding(lengths: Int[Tensor, "batch"] | Sequence[int]) -> Mask:
    """Each position sees the real tokens of its sentence, which come first, and not the padding after them.

    Args:
        lengths: real tokens of each sentence in the batch.
    """
    return Padding(lengths)


def padding_from_mask(attention_mask: Tensor) -> Mask:
    """Each position sees the keys that are marked: a model's `attention_mask`, with padding on either side, as a mask.

    Args:
        attention_mask: (batch, key); 1 or True = a real token, 0 or False = padding.
    """
    return PaddingFromMask(attention_mask)


def sliding_window(radius: int) -> Mask:
    """Each position sees the `radius` positions on either side (Beltagy et al. 2020, §3.1).

    The paper's and Hugging Face's `attention_window` is the whole width, 2 * radius.
    """
    return SlidingWindow(radius)


def dilated(radius: int, dilation: int) -> Mask:
    """A window with gaps: `radius` positions on either side, `dilation` apart (Beltagy et al. 2020, §3.1)."""
    return Dilated(radius, dilation)


def global_tokens(positions: Sequence[int] | Int[Tensor, "tokens"]) -> Mask:
    """These positions see everything, and everything sees them (Beltagy et al. 2020, §3.1)."""
    return GlobalTokens(positions)


def blocks(size: int, pattern: Bool[Tensor, "query_block key_block"]) -> Mask:
    """Positions in blocks of `size`; `pattern` says which block of queries sees which block of keys.

    Blocks beyond the pattern see nothing and are not seen.
    """
    return Blocks(size, pattern)


def block_local(size: int, radius: int = 0) -> Mask:
    """Each position sees its own block of `size` positions (Liu et al. 2018, §4.2.4), and the `radius` blocks on
    either side, as in Big Bird's window (Zaheer et al. 2020, §2)."""
    return BlockLocal(size, radius)


def global_blocks(size: int, first: int, last: int = 0) -> Mask:
    """The first and the last blocks of `size` positions see everything, and everything sees them. Which block is the
    last depends on the number of keys."""
    return GlobalBlocks(size, first, last)


def random_blocks(
    size: int, per_row: int, seed: int = 0, window: int = 0, first: int = 0, last: int = 0, *, heads: int = 1
) -> Mask:
    """Each block of `size` queries sees `per_row` different blocks of keys, drawn at random (Zaheer et al. 2020, §2).

    The draw depends on the seed and on how many blocks of keys there are, and on nothing else: it is the same on
    every machine. Where fewer blocks are left, all are seen.

    Args:
        window, first, last: blocks that are not drawn, because other parts of a mask allow them: this many around the
            row's own block, at the start and at the end.
        heads: 1: the same for all heads; otherwise, the number of heads, each of which draws separately.
    """
    return RandomBlocks(size, per_row, seed, window, first, last, heads)


def bigbird(
    block: int = 64,
    random: int = 3,
    window: int = 3,
    global_blocks: int = 2,
    seed: int = 0,
    *,
    extra_tokens: int = 0,
    heads: int = 1,
) -> Mask:
    """Big Bird: each block of `block` positions sees a window of blocks, global blocks, and random ones among the rest
    (Zaheer et al. 2020, §2). With the defaults, its base model (appendix E).

    Args:
        random, window, global_blocks: how many blocks of each kind. The window includes the block itself. Half of the
            global ones are at the end, as in the authors' code; the paper's figure 1 has them all at the start.
        extra_tokens: number of positions before the text that see everything and that everything sees: ITC, the
            "internal transformer construction", has none; ETC, the "extended" one, has them. They come first, and
            the blocks are counted from the first position after them.
        heads: 1: all heads share the random blocks; otherwise, the number of heads, each of which draws separately.
    """
    if window < 1 or window % 2 == 0 or global_blocks < 0 or extra_tokens < 0:
        raise ValueError(
            "bigbird needs an odd window, with equal sides, global_blocks >= 0 and extra_tokens >= 0, "
            f"got {window=}, {global_blocks=}, {extra_tokens=}"
        )
    last = global_blocks // 2
    first = global_blocks - last
    parts = [block_local(block, window // 2)]
    if global_blocks:
        parts.append(GlobalBlocks(block, first, last))
    if random:
        parts.append(random_blocks(block, random, seed, window, first, last, heads=heads))
    mask = reduce(or_, parts).shift(-extra_tokens, -extra_tokens)
    return mask | global_tokens(range(extra_tokens)) if extra_tokens else mask


def strided_keys(stride: int) -> Mask:
    """Each position sees those at a distance that is a multiple of `stride` (Child et al. 2019, §4.3, second head)."""
    return StridedKeys(stride)


def strided(stride: int) -> Mask:
    """Each position sees the `stride` positions before it, and every `stride`-th of all before it: for sequences with a
    period, such as images row by row (Child et al. 2019, §4.3).

    This joins the paper's two heads. For layers that alternate, as in the paper's other version, use two masks:
    `causal() & sliding_window(stride)` and `causal() & strided_keys(stride)`.
    """
    return causal() & (sliding_window(stride) | strided_keys(stride))


def summary_columns(stride: int, columns: int) -> Mask:
    """Each position sees the last `columns` positions of every segment of `stride` positions (Child et al. 2019, §4.3:
    "specific cells summarize previous locations")."""
    return SummaryColumns(stride, columns)


def sparse_fixed(stride: int, columns: int) -> Mask:
    """Each position sees those before it in its segment of `stride` positions, and the last `columns` positions of each
    earlier segment (Child et al. 2019, §4.3). Alternating layers use two masks, as for `strided`."""
    return causal() & (block_local(stride) | summary_columns(stride, columns))


def window_2d(width: int, radius: int) -> Mask:
    """Each pixel of an image `width` pixels wide, read row by row, sees the (2 * radius + 1)² pixels around it
    (Ramachandran et al. 2019, §2.2). For its row alone use `block_local(width)`, for its column
    `strided_keys(width)`.
    """
    return Window2d(width, radius)


def documents(lengths: Sequence[int] | Sequence[Sequence[int]] | None = None, *, ids: Tensor | None = None) -> Mask:
    """Each position sees its own document only, in a sequence of documents packed one after another. Positions after
    the last document see nothing, and are not seen.

    Args:
        lengths: of each document, or of each document of each row of the batch.
        ids: (batch, length) or (length,), instead of lengths: a document ends where the number changes.
    """
    if (lengths is None) == (ids is None):
        raise ValueError("documents needs either lengths, such as [3, 5], or ids, such as [0, 0, 0, 1, 1, 1, 1, 1]")
    if lengths is not None and not isinstance(lengths, int) and not len(lengths):
        raise ValueError("documents needs the length of at least one document, got none")
    if isinstance(lengths, int):
        raise TypeError(f"documents needs the length of each document, got {lengths}; write documents([{lengths}])")
    if ids is not None:
        ids = torch.as_tensor(ids)
        if (ids < 0).any():
            raise ValueError(f"documents needs ids >= 0, got {ids.min().item()}")
        return Documents(ids if ids.dim() > 1 else ids[None])
    values: Any = lengths
    rows = [values] if all(isinstance(length, int) for length in values) else values
    if min((length for row in rows for length in row), default=0) < 0:
        raise ValueError(f"documents needs lengths >= 0, got {list(values)}")
    numbers = [torch.arange(len(row)).repeat_interleave(torch.tensor(row, dtype=torch.long)) for row in rows]
    return Documents(torch.nn.utils.rnn.pad_sequence(numbers, batch_first=True, padding_value=-1))


def prefix_lm(lengths: int | Int[Tensor, "batch"] | Sequence[int]) -> Mask:
    """The first tokens of each sentence, the prefix, see each other in both directions; after them, each position sees
    itself and the past (Raffel et al. 2020, §3.2.1).

    Args:
        lengths: of each sentence's prefix; one number for all.
    """
    return causal() | padding([lengths] if isinstance(lengths, int) else lengths)
