"""Writes wardrobe.json: how well the networks of lesson 16 tell clothes apart, three seeds each.

    python data/wardrobe.py 0 1 2

`recorded.py` says how.
"""

import time
from collections.abc import Callable
from typing import Any

from recorded import Runs, record_seeds

RUNS = Runs(__file__, "16_vision")
WHOLE = 10_000  # pictures to train on
SIZES = 100, 1_000, WHOLE
LONG = 1_500  # steps, for the positions


def run(names: dict, make: Callable, seed: int, lr: float, size: int = WHOLE, **options) -> tuple[Any, dict]:
    """Train a network on so many pictures: the network, and its right answers on the test, with what it costs."""
    start = time.process_time()
    train_x, train_y = (part[:: len(part) // size] for part in (names["train_x"], names["train_y"]))
    model = names["train"](make, train_x, train_y, lr=lr, seed=seed, **options)
    return model, {
        "right": round(names["accuracy"](model, names["test_x"], names["test_y"]), 4),
        "parameters": sum(each.numel() for each in model.parameters()),
        "operations": names["work"](model),
        "seconds": round(time.process_time() - start, 1),
    }


def record_mixers(seed: int) -> None:
    """Each way to let pixels meet."""
    names = RUNS.lesson()
    networks = {name: lambda mixer=mixer: names["network"](mixer) for name, mixer in names["mixers"].items()}
    for name, make in {**networks, "convolution + non-local": names["with_non_local"]}.items():
        if not RUNS.has("mixers", name, str(seed)):
            RUNS.keep(run(names, make, seed, 1e-2)[1], "mixers", name, str(seed))


def record_sizes(seed: int) -> None:
    """Few pictures and many, plain and augmented; and a Vision Transformer without positions."""
    names = RUNS.lesson()
    convolutional: tuple = lambda: names["network"](names["convolution"]), 1e-2
    models = {"convolutional": convolutional, "ViT": (names["ViT"], 2e-3)}
    for size in SIZES:
        for name, (make, lr) in models.items():
            for how, augment in (("", None), (", augmented", names["augment"])):
                if not RUNS.has("sizes", name + how, str(size), str(seed)):
                    result = run(names, make, seed, lr, size, augment=augment)[1]
                    RUNS.keep(result, "sizes", name + how, str(size), str(seed))
    if not RUNS.has("without positions", str(seed)):
        RUNS.keep(run(names, lambda: names["ViT"](positions=False), seed, 2e-3)[1], "without positions", str(seed))


def record_positions() -> None:
    """Train one Vision Transformer longer; keep how much its positions resemble each other."""
    if not RUNS.has("long"):
        names = RUNS.lesson()
        model, result = run(names, names["ViT"], 0, 2e-3, steps=LONG, augment=names["augment"])
        table = names["resemblance"](model.position.detach()).tolist()
        resemblance = [" ".join(f"{each:.2f}" for each in row) for row in table]
        RUNS.keep({**result, "steps": LONG, "resemblance": resemblance}, "long")


if __name__ == "__main__":
    record_seeds(record_mixers)
    record_positions()
    record_seeds(record_sizes)
