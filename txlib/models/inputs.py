"""Checks of every model's inputs, and masks from them."""

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from txlib.attention import Mask, padding_from_mask
from txlib.attention.multihead import check_rule


def check_ids(
    input_ids: Any,
    name: str = "input_ids",
    axes: str = "batch, length",
    *,
    past: int = 0,
    max_length: int | None = None,
) -> None:
    """Refuse what is not a batch of ids. The embedding refuses ids that are too large.

    Args:
        axes: names of the axes that the tensor must have.
        past: positions in the cache.
        max_length: the most positions that the model sees at a time; None for no limit.

    Raises:
        TypeError: when they are not a tensor of whole numbers.
        ValueError: for another number of axes, and beyond max_length.
    """
    if not isinstance(input_ids, Tensor):
        raise TypeError(f"{name} is a {type(input_ids).__name__}, not a tensor; write torch.tensor({name})")
    if input_ids.is_floating_point() or input_ids.is_complex() or input_ids.dtype == torch.bool:
        raise TypeError(f"{name} has type {input_ids.dtype}, but ids are whole numbers; write {name}.long()")
    if input_ids.dim() != axes.count(",") + 1:
        remedy = f"; write {name}[None] for a batch of one" if input_ids.dim() == axes.count(",") else ""
        raise ValueError(f"{name} has shape {tuple(input_ids.shape)}, expected ({axes}){remedy}")
    end = past + input_ids.shape[-1]
    if max_length is not None and end > max_length:
        raise ValueError(
            f"the model sees max_length={max_length} positions at a time, but the sequence reaches {end}; "
            "raise max_length or shorten the sequence"
        )


def check_shape(tensor: Tensor | None, name: str, expected: Sequence[int], *, broadcast: bool = False) -> None:
    """Refuse a tensor whose shape differs from the tokens'.

    Args:
        expected: shape of the tokens.
        broadcast: whether the batch may be 1.

    Raises:
        ValueError: naming both shapes.
    """
    if tensor is None or tensor.shape == tuple(expected):
        return
    if not (broadcast and tensor.shape == (1, *expected[1:])):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, the tokens {tuple(expected)}")


def check_labels(labels: Any, scores: Sequence[int]) -> None:
    """Refuse labels that do not match the scores.

    Args:
        scores: shape of the logits without their last axis, the classes.

    Raises:
        TypeError: when the labels are not a tensor of whole numbers.
        ValueError: when there is not one label for each score.
    """
    if not isinstance(labels, Tensor) or labels.is_floating_point():
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels are {kind}, but each is the number of a class; write torch.as_tensor(labels).long()")
    if labels.shape != tuple(scores):
        raise ValueError(
            f"labels have shape {tuple(labels.shape)}, expected {tuple(scores)}: one for each row of the logits"
        )


def real_tokens(attention_mask: Int[Tensor, "batch length"] | None, shape: Sequence[int]) -> Mask | None:
    """Return the mask of an attention_mask with 1 = keep; None when it hides nothing, which is checked on the CPU only.

    Args:
        shape: (batch, length) of the tokens.

    Raises:
        TypeError: for anything but a tensor.
        ValueError: when the attention mask has another shape.
    """
    if attention_mask is None:
        return None
    if not isinstance(attention_mask, Tensor):
        remedy = f"; write mask={attention_mask}" if isinstance(attention_mask, Mask) else ""
        raise TypeError(f"attention_mask={attention_mask!r:.80} must be a tensor (batch, length) with 1 = keep{remedy}")
    check_shape(attention_mask, "attention_mask", shape)
    can_check = attention_mask.device.type == "cpu" and not torch.compiler.is_compiling()
    return None if can_check and bool(attention_mask.all()) else padding_from_mask(attention_mask)


def unpadded_positions(attention_mask: Int[Tensor, "batch total"], past: int = 0) -> Int[Tensor, "batch length"]:
    """Return the positions of the tokens after the first `past` ones; padding does not count as a position."""
    return (attention_mask.cumsum(dim=1) - 1).clamp(min=0)[:, past:]


def together(*masks: Mask | None) -> Mask | None:
    """Return the intersection of these masks.

    Raises:
        TypeError: for anything but a `Mask`: models give their mechanisms rules, not tensors.
    """
    for mask in masks:
        check_rule(mask)
    rules = [mask for mask in masks if mask is not None]
    return reduce(and_, rules) if rules else None
