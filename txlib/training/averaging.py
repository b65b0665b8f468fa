"""The average of a model's weights over the last steps often beats the last weights themselves."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """An exponential moving average of all floating-point weights (Polyak & Juditsky 1992; Vaswani et al. 2017, §6.1,
    average the last checkpoints to the same end).

    Args:
        decay: share of the old average kept at each update; 0.99 looks back about 100 updates.
    """

    def __init__(self, model: nn.Module, decay: float):
        if not 0 < decay < 1:
            raise ValueError(f"decay={decay} must lie between 0 and 1, e.g. 0.99")
        self.model, self.decay, self.updates = model, decay, 0
        self.weights = {name: weight.detach().clone() for name, weight in self._current().items()}

    def update(self) -> None:
        """Move the average towards the model's weights; faster in the beginning, when there is little to average."""
        self.updates += 1
        decay = min(self.decay, self.updates / (self.updates + 9))
        torch._foreach_lerp_(list(self.weights.values()), list(self._current().values()), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averaged weights; afterwards its own again."""
        own = {name: weight.detach().clone() for name, weight in self._current().items()}
        self._set(self.weights)
        try:
            yield
        finally:
            self._set(own)

    def _current(self) -> dict[str, Tensor]:
        return {name: weight.data for name, weight in self.model.named_parameters()}

    def _set(self, weights: dict[str, Tensor]) -> None:
        for name, weight in self._current().items():
            weight.copy_(weights[name])
