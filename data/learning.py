"""Write learning.json: how the optimizers, wirings and starts of lesson 07 learn, three seeds each.

    python data/learning.py 0 1 2

It takes about five CPU-minutes per seed. `recorded.py` does the work.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from recorded import Runs, record_seeds
from torch.optim import SGD

RUNS = Runs(__file__, "07_learning")
WINDOW = 50  # steps
SHORT = {"steps": 150}


def runs(names: dict) -> dict:
    """Question → setting → learning rate → the options of `trained`."""
    post = {"norm_first": False}

    def slower(first: int, end: int, factor: float = 0.1) -> dict:
        return post | {"make": partial(names["slower"], first=first, end=end, factor=factor)}

    def ours(rule: str, beta: float) -> dict:
        def make(model, lr):
            return [names["Adam"](model.parameters(), lr, names[rule], betas=(0.9, beta))]

        return SHORT | {"make": make}

    return {
        "wiring": {
            "pre-norm": {3e-3: {}},
            "post-norm": {3e-3: post, 1e-3: post},
            "post-norm, warm-up": {3e-3: post | {"schedule": names["warm_up"]}},
        },
        "cause": {
            "moments first": {3e-3: post | {"schedule": names["moments_first"]}},
            "last blocks slower": {3e-3: slower(4, 6)},
            "middle blocks slower": {3e-3: slower(2, 4)},
            "first blocks slower": {3e-3: slower(0, 2)},
        },
        "adam": {
            "Adam": {1e-2: ours("adam", 0.999)},
            "without bias correction": {1e-2: ours("uncorrected", 0.999)},
            "without second moment": dict.fromkeys((0.01, 0.1, 0.3, 1.0), ours("no_second_moment", 0.999)),
        },
        "correction": {
            "Adam, β₂ 0.999": {3e-3: ours("adam", 0.999)},
            "not corrected, β₂ 0.999": {3e-3: ours("uncorrected", 0.999)},
            "Adam, β₂ 0.98": {3e-3: ours("adam", 0.98)},
            "not corrected, β₂ 0.98": {3e-3: ours("uncorrected", 0.98)},
        },
        "start": {
            "Xavier": {3e-3: SHORT},
            "divided by √(2L)": {3e-3: SHORT | {"factor": 12**-0.5}},
            "zero": {3e-3: SHORT | {"factor": 0.0}},
            "ten times too large": {3e-3: SHORT | {"factor": 10.0}},
        },
        "muon": {
            "Adam": dict.fromkeys((3e-3, 1e-2), SHORT),
            "Muon": dict.fromkeys((0.01, 0.02), SHORT | {"make": names["muon"]}),
        },
        "control": {  # two of six blocks at a tenth leave 4.2 blocks' worth of steps: 0.7 for each of six
            "all blocks at 0.7": {3e-3: slower(0, 6, 0.7)},
            "all blocks at 0.1": {3e-3: slower(0, 6)},
        },
        "descent": {
            "gradient descent": dict.fromkeys(
                (0.03, 0.3), SHORT | {"make": lambda model, lr: [SGD(model.parameters(), lr)]}
            ),
        },
    }


def windows(values: list[float]) -> list[float]:
    """Means over the windows of a run."""
    return [sum(values[start : start + WINDOW]) / WINDOW for start in range(0, len(values), WINDOW)]


def trained(
    names: dict[str, Any],
    seed: int,
    rate: float,
    *,
    norm_first: bool = True,
    factor: float = 1.0,
    make: Callable | None = None,
    **options: Any,
) -> dict[str, list[float]]:
    """Train a model with the optimizers that `make` makes (Adam); `factor` scales the last matrices of its sub-layers.

    Args:
        options: those of the lesson's `train`.
    """
    torch.manual_seed(seed)
    model = names["CharacterModel"](norm_first)
    names["scale_last_matrices"](model, factor)
    optimizers = make(model, rate) if make else [names["adam_for"](model.parameters(), rate)]
    run = names["train"](model, optimizers, **options)
    return {name: windows(values) for name, values in run.items()}


def record(seed: int) -> None:
    """Train every setting with this seed, and record loss and fraction apart, means of 50 steps."""
    names = RUNS.lesson()

    for question, settings in runs(names).items():
        for setting, rates in settings.items():
            for rate, options in rates.items():
                RUNS.record(partial(trained, names, seed, rate, **options), question, setting, rate, seed)


if __name__ == "__main__":
    record_seeds(record)
