"""Write wardrobe.json: how well the networks of lesson 20 classify clothes, three seeds each.

    python data/wardrobe.py 0 1 2

`recorded.py` does the work.
"""

import time
from collections.abc import Callable
from functools import partial

from recorded import Runs, record_seeds
from torch import nn

RUNS = Runs(__file__, "20_pixels")
RATES = (0.003, 0.03)  # besides the lesson's 0.01


def trained(names: dict, make: Callable, seed: int, **options: float) -> tuple[nn.Module, float]:
    """Train a network; return it and its accuracy on the test."""
    model = names["train"](make, names["train_x"], names["train_y"], seed=seed, **options)
    return model, names["accuracy"](model, names["test_x"], names["test_y"])


def run(names: dict, make: Callable, seed: int) -> dict:
    """Train a network; return its accuracy on the test, and what it costs."""
    start = time.process_time()
    model, right = trained(names, make, seed)
    return {
        "right": right,
        "parameters": sum(weights.numel() for weights in model.parameters()),
        "seconds": round(time.process_time() - start, 1),
        "operations": names["work"](model),
    }


def record(seed: int) -> None:
    """Record each way to let pixels meet, and rivals that are told their places or are larger; then at other rates."""
    names = RUNS.lesson()
    networks = {name: partial(names["network"], mixer) for name, mixer in names["mixers"].items()}
    makers = {**networks, "convolution + non-local": names["with_non_local"], **names["rivals"]}
    for name, make in makers.items():
        RUNS.record(partial(run, names, make, seed), "mixers", name, seed)
        for rate in RATES:
            RUNS.record(lambda make=make, lr=rate: trained(names, make, seed, lr=lr)[1], "rates", rate, name, seed)


if __name__ == "__main__":
    record_seeds(record)
