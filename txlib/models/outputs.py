"""Outputs of models, and the loss that they share."""

from dataclasses import dataclass, field, fields
from typing import Any, Generic, Protocol, dataclass_transform, overload

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils._pytree import register_dataclass
from typing_extensions import TypeVar  # a dependency of torch; in `typing` from Python 3.13 on

from txlib.labels import IGNORE_INDEX
from txlib.models.inputs import check_labels
from txlib.precision import at_least_float32

Loss = TypeVar("Loss", bound=Float[Tensor, ""] | None, default=Float[Tensor, ""] | None)
Labeled = TypeVar("Labeled", covariant=True)
Unlabeled = TypeVar("Unlabeled", covariant=True)


@dataclass(frozen=True)
class Output:
    """A model's output, with Hugging Face's names and order: `out.logits` or `out["logits"]`; by index, the loss comes
    first and fields that are None are not counted.
    """

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the fields that are not None, the loss first."""
        values = (getattr(self, field.name) for field in fields(self))
        return tuple(value for value in values if value is not None)

    def __getitem__(self, key: str | int | slice) -> Any:
        if not isinstance(key, str):
            return self.to_tuple()[key]
        names = [field.name for field in fields(self)]
        if key not in names:
            raise KeyError(f"{type(self).__name__} has no {key!r}; choose one of {', '.join(names)}")
        return getattr(self, key)


@dataclass(frozen=True)
class LossOutput(Output, Generic[Loss]):
    """An output with a loss: a number, or None without labels."""

    loss: Loss = field(default=None, kw_only=True)  # type: ignore[assignment]  # without it, Loss is its default


class LabeledCall(Protocol[Labeled, Unlabeled]):
    """The type of `__call__` of a model with labels, `LabeledCall[HeadOutput[Tensor], HeadOutput]`: where a call gives
    them by name, the type of `loss` is a tensor and not also None.
    """

    @overload
    def __call__(self, *inputs: Any, labels: Tensor, **options: Any) -> Labeled: ...
    @overload
    def __call__(self, *inputs: Any, labels: None = None, **options: Any) -> Unlabeled: ...


@dataclass_transform(frozen_default=True)
def output(kind: type) -> type:
    """Make a class a frozen dataclass and a pytree, so that `torch.export` and `torch.compile` accept it."""
    kind = dataclass(frozen=True)(kind)
    register_dataclass(kind, serialized_type_name=f"txlib.{kind.__name__}")
    return kind


def cross_entropy(
    logits: Float[Tensor, "*batch classes"], labels: Int[Tensor, "*batch"], reduction: str = "mean"
) -> Float[Tensor, ""]:
    """Return the mean (or "sum") over the labels that count, in at least 32 bits.

    Raises:
        TypeError, ValueError: see `check_labels`; ValueError also for a label outside the classes, where torch notices
            it: on the CPU.
    """
    check_labels(labels, logits.shape[:-1])
    logits = at_least_float32(logits)
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
    """Return the sum of a model's auxiliary losses for the last batch, times their weights; 0 if it has none.

    Experts add their balance, a recurrence its ponder cost.
    """
    modules: list[Any] = [module for module in model.modules() if hasattr(module, "auxiliary_loss")]
    return sum((module.auxiliary_loss() for module in modules), 0.0)
