"""Write wardrobe.json: how well the networks of lesson 16 classify clothes, three seeds each.

    python data/wardrobe.py 0 1 2

`recorded.py` does the work.
"""

import time
from collections.abc import Callable
from typing import Any

from recorded import Runs, record_seeds

RUNS = Runs(__file__, "16_vision")
WHOLE = 10_000  # pictures to train on
FEW, LONGER = 100, 600  # pictures, and steps with them


def run(names: dict, make: Callable, seed: int, lr: float, size: int = WHOLE, **options) -> tuple[Any, dict]:
    """Train a network on so many pictures: the network, and its right answers on the test, with what it costs."""
    start = time.process_time()
    train_x, train_y = (part[:: len(part) // size] for part in (names["train_x"], names["train_y"]))
    model = names["train"](make, train_x, train_y, lr=lr, seed=seed, **options)
    return model, {
        "right": round(names["accuracy"](model, names["test_x"], names["test_y"]), 4),
        "parameters": sum(each.numel() for each in model.parameters()),
        "seconds": round(time.process_time() - start, 1),
    }


def record_mixers(seed: int) -> None:
    """Each way to let pixels meet."""
    names = RUNS.lesson()
    networks = {name: lambda mixer=mixer: names["network"](mixer) for name, mixer in names["mixers"].items()}
    for name, make in {**networks, "convolution + non-local": names["with_non_local"]}.items():
        if not RUNS.has("mixers", name, str(seed)):
            model, result = run(names, make, seed, 1e-2)
            RUNS.keep({**result, "operations": names["work"](model)}, "mixers", name, str(seed))


def record_few(seed: int) -> None:
    """With few pictures, plain and augmented."""
    names = RUNS.lesson()
    models: dict[str, tuple] = {
        "ViT": (names["ViT"], 2e-3),
        "convolutional": (lambda: names["network"](names["convolution"]), 1e-2),
    }
    for name, (make, lr) in models.items():
        for how, augment in (("", None), (", augmented", names["augment"])):
            if not RUNS.has("few", name + how, str(seed)):
                result = run(names, make, seed, lr, FEW, steps=LONGER, augment=augment)[1]
                RUNS.keep(result, "few", name + how, str(seed))


def record_transformers(seed: int) -> None:
    """With all pictures, with positions and without."""
    names = RUNS.lesson()
    for name in ("ViT", "ViT without positions"):
        if not RUNS.has("transformers", name, str(seed)):
            result = run(names, lambda name=name: names["ViT"](positions=name == "ViT"), seed, 2e-3)[1]
            RUNS.keep(result, "transformers", name, str(seed))


if __name__ == "__main__":
    record_seeds(record_mixers)
    record_seeds(record_few)
    record_seeds(record_transformers)
