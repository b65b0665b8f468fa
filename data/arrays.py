"""Write arrays.json: how many digits the readers of lesson 24 and their rivals get right, in %, three seeds each.

    python data/arrays.py 0 1 2

`recorded.py` does the work.
"""

from functools import partial

import torch
from recorded import Runs, record_seeds
from torch import nn

RUNS = Runs(__file__, "24_arrays")
STEPS = 300, 1500
LINEAR_RATE = 3e-2
FASTER = 1e-2  # another rate for the readers that are told positions


class Sorted(nn.Module):
    """Forget where each pixel was."""

    def forward(self, ink: torch.Tensor) -> torch.Tensor:
        return ink.flatten(start_dim=1).sort(dim=1).values


def linear(read: nn.Module) -> nn.Module:
    return nn.Sequential(read, nn.Linear(64, 10))


def record(seed: int) -> None:
    """Record each reader and two linear layers, on pixels in their order and on sorted ones, for each length."""
    names = RUNS.lesson()
    made = {name: (partial(names["DigitReader"], place), 3e-3) for name, place in names["positions"].items()}
    for name in ("Fourier features", "two coordinates"):
        made[f"{name}, rate {FASTER:g}"] = made[name][0], FASTER
    made["a linear layer"] = partial(linear, nn.Flatten()), LINEAR_RATE
    made["a linear layer on sorted values"] = partial(linear, Sorted()), LINEAR_RATE

    def run(name: str, steps: int) -> float:
        torch.manual_seed(seed)
        make, rate = made[name]
        return names["train_reader"](make(), rate, steps, name)

    for steps in STEPS:
        for name in made:
            RUNS.record(partial(run, name, steps), name, steps, seed)


if __name__ == "__main__":
    record_seeds(record)
