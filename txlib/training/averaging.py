"""The average of a model's last weights is often better than the last weights themselves."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from txlib.training.distributed import group_by_placement


class WeightAverage:
    """An exponential moving average of a model's weights (Polyak & Juditsky 1992).

    Like the average of the last checkpoints (Vaswani et al. 2017, §6.1), it cancels the noise of single steps in the
    weights, at the cost of one addition per step.

    Args:
        decay: weight of the old average in an update; 0.99 looks back about 100 updates.
    """

    def __init__(self, model: nn.Module, decay: float):
        if not 0 < decay < 1:
            raise ValueError(f"decay={decay} must lie between 0 and 1, e.g. 0.99")
        self.model, self.decay, self.updates = model, decay, 0
        self.weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    @torch.no_grad()
    def update(self) -> None:
        """Move the average toward the model's weights, faster in the first updates."""
        self.updates += 1
        decay = min(self.decay, self.updates / (self.updates + 9))
        for averages, weights in zip(
            group_by_placement(self.weights.values()), group_by_placement(self.model.parameters()), strict=True
        ):
            torch._foreach_lerp_(averages, weights, 1 - decay)

    def apply(self) -> None:
        """Give the model the averaged weights for good."""
        self._copy(self.weights.values())

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averaged weights; afterward it has its own again."""
        weights = [weight.detach().clone() for weight in self.model.parameters()]
        self.apply()
        try:
            yield
        finally:
            self._copy(weights)

    @torch.no_grad()
    def _copy(self, weights: Iterable[Tensor]) -> None:
        for parameter, weight in zip(self.model.parameters(), weights, strict=True):
            parameter.copy_(weight)  # one by one: torch can't copy lists of sharded tensors
