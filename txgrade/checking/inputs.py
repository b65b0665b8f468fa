"""The inputs of a check: drawn from a private generator, the same on every machine."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from txgrade.seeds import derived_seed


def private_inputs(seed: int, task: str) -> "Inputs":
    """Return the stream that a task's given values and its measure draw from; it is never in a submission's kernel."""
    return Inputs(seed, f"{task}, private")


class Inputs:
    """Random inputs for one task: numpy's `RandomState`, whose stream is frozen across versions and machines."""

    def __init__(self, seed: int, task: str):
        self._seed, self._task = seed, task
        self._random = np.random.RandomState(derived_seed(seed, task))

    def random_size(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, both included."""
        return int(self._random.randint(low, high + 1, dtype=np.int64))

    def randn(self, *shape: int) -> Float[Tensor, "..."]:
        """Return standard normal float32 numbers."""
        return torch.from_numpy(np.asarray(self._random.standard_normal(shape), dtype=np.float32))

    def rand(self, *shape: int) -> Float[Tensor, "..."]:
        """Return uniform float32 numbers from 0 to 1."""
        return torch.from_numpy(np.asarray(self._random.random_sample(shape), dtype=np.float32))

    def randint(self, low: int, high: int, *shape: int) -> Int[Tensor, "..."]:
        """Return integers from `low` to `high - 1`, as torch.randint counts."""
        return torch.from_numpy(np.asarray(self._random.randint(low, high, shape, dtype=np.int64)))

    def choice(self, options: Sequence[Any]) -> Any:
        """Return one of the options."""
        return options[self.random_size(0, len(options) - 1)]

    def permutation(self, n: int) -> Int[Tensor, " n"]:
        """Return the integers 0 to n-1 in random order."""
        return torch.from_numpy(self._random.permutation(n).astype(np.int64))

    def fill(self, module: nn.Module, std: float = 0.2) -> nn.Module:
        """Give every parameter of a module known random values, and return the module in eval mode.

        The values depend on a parameter's name and shape only, so the order in which an answer creates its layers
        doesn't matter.
        """
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                random = np.random.RandomState(derived_seed(self._seed, self._task, name))
                values = random.standard_normal(tuple(parameter.shape)) * std
                parameter.copy_(torch.from_numpy(np.asarray(values)))
        return module.eval()
