"""What models return, and the loss that all of them share."""

from dataclasses import dataclass, fields
from typing import Any, dataclass_transform

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils._pytree import register_dataclass

from txlib.labels import IGNORE_INDEX
from txlib.models.inputs import check_labels


@dataclass(frozen=True)
class Output:
    """Fields by name, as Hugging Face calls them: `out.logits` or `out["logits"]`; by number as there, too: the loss
    comes first, and what is None is not counted.
    """

    def to_tuple(self) -> tuple[Any, ...]:
        """The fields that are there."""
        names = sorted((field.name for field in fields(self)), key=lambda name: name != "loss")
        return tuple(getattr(self, name) for name in names if getattr(self, name) is not None)

    def __getitem__(self, key: str | int | slice) -> Any:
        if not isinstance(key, str):
            return self.to_tuple()[key]
        names = [field.name for field in fields(self)]
        if key not in names:
            raise KeyError(f"{type(self).__name__} has no {key!r}; choose one of {', '.join(names)}")
        return getattr(self, key)


@dataclass_transform(frozen_default=True)
def output(kind: type) -> type:
    """A frozen dataclass that torch can look into, so that `torch.export` and `torch.compile` accept it."""
    kind = dataclass(frozen=True)(kind)
    register_dataclass(kind, serialized_type_name=f"txlib.{kind.__name__}")
    return kind


def cross_entropy(
    logits: Float[Tensor, "*batch classes"], labels: Int[Tensor, "*batch"], reduction: str = "mean"
) -> Float[Tensor, ""]:
    """Mean (or "sum") over the labels that count, in 32 bits at least.

    Raises:
        TypeError, ValueError: see `check_labels`; also for a label that is no class, on the CPU, where torch notices.
    """
    check_labels(labels, logits.shape[:-1])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    try:
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORE_INDEX, reduction=reduction)
    except IndexError:
        classes = logits.shape[-1]
        wrong = labels[(labels != IGNORE_INDEX) & ((labels < 0) | (labels >= classes))][0].item()
        raise ValueError(
            f"a label is {wrong}, but the {classes} classes are 0 to {classes - 1}; {IGNORE_INDEX} marks labels that "
            "do not count"
        ) from None


def auxiliary_loss(model: nn.Module) -> Float[Tensor, ""] | float:
    """What parts of a model add to the mean loss of a token while it is trained, each by its own weight: experts their
    balance, a recurrence its ponder cost. They speak of the last batch. 0 where no part adds anything.
    """
    parts: list[Any] = [part for part in model.modules() if hasattr(part, "auxiliary_loss")]
    return sum((part.auxiliary_loss() for part in parts), 0.0)
