"""Write rumors.json: how far the models of lesson 19 follow a chain, three seeds each.

    python data/rumors.py 0 1 2

`recorded.py` does the work.
"""

import time
from collections.abc import Callable
from functools import partial

from recorded import Runs, record_seeds

RUNS = Runs(__file__, "19_universal")


def bodies(names: dict) -> dict:
    """Return for each name the width of the model, how to make its body, and the weight of the ponder cost."""
    Stack, Loop, Halting = (names[name] for name in ("Stack", "Loop", "Halting"))
    return {
        "loop": (64, lambda: Loop(64, 6, clock=False), 0),
        "halting": (64, lambda: Halting(64, 10, after=True, clock=False), 0.01),
        "wide stack": (64, lambda: Stack(64, 6), 0),
        "halting, clock": (64, lambda: Halting(64, 10), 0.01),
        "thin stack": (26, lambda: Stack(26, 6, heads=2), 0),
        "one block": (64, lambda: Stack(64, 1), 0),
        "halting, dear": (64, lambda: Halting(64, 10, after=True, clock=False), 1),
    }


def record(seed: int) -> None:
    """Train each body with this seed; record its parameters, and its right answers and steps taken at each depth."""
    names = RUNS.lesson()

    def result(width: int, body: Callable, ponder: float) -> dict:
        start = time.process_time()
        model = names["train"](body, width, ponder, seed=seed)
        run = {"parameters": names["parameters"](model), "seconds": round(time.process_time() - start, 1)}
        run["right"] = names["by_depth"](model)
        if hasattr(model.body, "N"):
            run["steps"] = names["by_depth"](model, lambda model: model.body.N)
        return run

    for name, setting in bodies(names).items():
        RUNS.record(partial(result, *setting), name, seed)


if __name__ == "__main__":
    record_seeds(record)
