"""Write patches.json: how well the Vision Transformer of lesson 21 and its rivals do, three seeds each.

    python data/patches.py 0 1 2

`recorded.py` does the work.
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import product

import torch
from recorded import Runs, record_seeds

RUNS = Runs(__file__, "21_vision")
FEW_PICTURES, STEPS_WITH_FEW = 100, 600
LONG, STEPS_WITH_TWINS = 1500, 600
RATES, FAST = (1e-3, 2e-3, 5e-3, 1e-2, 2e-2), 5e-3
TWINS = 20_000  # pictures to train on
Pictures = tuple[torch.Tensor, torch.Tensor]


def run(names: dict, make: Callable, train: Pictures, test: Pictures, seed: int, **options) -> dict:
    """Train a network; return its accuracy on the test, and the seconds that it took."""
    start = time.process_time()
    model = names["train"](make, *train, seed=seed, **options)
    return {"right": names["accuracy"](model, *test), "seconds": round(time.process_time() - start, 1)}


def twins(names: dict) -> tuple[Pictures, Pictures]:
    """Return the pictures with twins, to train on and to test on."""
    torch.manual_seed(0)
    return names["twins"](TWINS), names["twins"](2000)


def record(seed: int) -> None:
    """Record learning rates; short runs, with positions and without; few pictures, plain and augmented; long ones; and
    twins.
    """
    names = RUNS.lesson()
    train, test = (names["train_x"], names["train_y"]), (names["test_x"], names["test_y"])
    few = tuple(part[:: len(part) // FEW_PICTURES] for part in train)
    rivals = names["rivals"]
    without = partial(names["ViT"], positions=False)
    short = {"ViT": rivals["ViT"], "convolutional": rivals["convolutional"], "ViT without positions": (without, 2e-3)}
    for (name, (make, _)), lr in product(rivals.items(), RATES):
        RUNS.record(partial(run, names, make, train, test, seed, lr=lr), "rates", name, lr, seed)
    for name in ("ViT", "two layers"):
        for part, pictures, steps in (("longer", train, LONG), ("few", few, STEPS_WITH_FEW)):
            fast = partial(run, names, rivals[name][0], pictures, test, seed, steps=steps, lr=FAST)
            RUNS.record(fast, f"{part}, fast", name, seed)
    for name, (make, lr) in short.items():
        RUNS.record(partial(run, names, make, train, test, seed, lr=lr), "short", name, seed)
    for name, (make, lr) in rivals.items():
        for how, augment in (("", None), (", augmented", names["augment"])):
            options = {"lr": lr, "steps": STEPS_WITH_FEW, "augment": augment}
            RUNS.record(partial(run, names, make, few, test, seed, **options), "few", name + how, seed)
    found = twins(names)
    for name, (make, lr) in rivals.items():
        twin_options = {"lr": lr, "steps": STEPS_WITH_TWINS}
        RUNS.record(partial(run, names, make, *found, seed, **twin_options), "twins", name, seed)
        RUNS.record(partial(run, names, make, train, test, seed, lr=lr, steps=LONG), "longer", name, seed)
    broken = {"ViT, one layer": partial(names["ViT"], layers=1), "ViT without positions": without}
    for name, make in broken.items():
        RUNS.record(partial(run, names, make, *found, seed, lr=2e-3, steps=STEPS_WITH_TWINS), "twins", name, seed)


if __name__ == "__main__":
    record_seeds(record)
