"""Write wardrobe.json: how well the networks of lesson 21 classify clothes, three seeds each.

    python data/wardrobe.py 0 1 2

`recorded.py` does the work.
"""

import time
from collections.abc import Callable
from functools import partial

from recorded import Runs, record_seeds

RUNS = Runs(__file__, "21_vision")
PICTURES = 10_000  # to train on
FEW_PICTURES, STEPS_WITH_FEW = 100, 600


def run(names: dict, make: Callable, seed: int, lr: float, size: int = PICTURES, *, work=None, **options) -> dict:
    """Train a network on so many pictures; return its right answers on the test, and what it costs.

    Args:
        work: counts its operations.
    """
    start = time.process_time()
    train_x, train_y = (part[:: len(part) // size] for part in (names["train_x"], names["train_y"]))
    model = names["train"](make, train_x, train_y, lr=lr, seed=seed, **options)
    return {
        "right": names["accuracy"](model, names["test_x"], names["test_y"]),
        "parameters": sum(weights.numel() for weights in model.parameters()),
        "seconds": round(time.process_time() - start, 1),
    } | ({"operations": work(model)} if work else {})


def record(seed: int) -> None:
    """Record each way to let pixels meet; few pictures, plain and augmented; and all, with positions and without."""
    names = RUNS.lesson()
    networks = {name: partial(names["network"], mixer) for name, mixer in names["mixers"].items()}
    for name, make in {**networks, "convolution + non-local": names["with_non_local"]}.items():
        RUNS.record(partial(run, names, make, seed, 1e-2, work=names["work"]), "mixers", name, seed)
    models: dict[str, tuple] = {
        "ViT": (names["ViT"], 2e-3),
        "convolutional": (partial(names["network"], names["convolution"]), 1e-2),
    }
    for name, (make, lr) in models.items():
        for suffix, augment in (("", None), (", augmented", names["augment"])):
            train = partial(run, names, make, seed, lr, FEW_PICTURES, steps=STEPS_WITH_FEW, augment=augment)
            RUNS.record(train, "few", name + suffix, seed)
    for name in ("ViT", "ViT without positions"):
        make = partial(names["ViT"], positions=name == "ViT")
        RUNS.record(partial(run, names, make, seed, 2e-3), "transformers", name, seed)


if __name__ == "__main__":
    record_seeds(record)
