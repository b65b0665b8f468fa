"""Write rumors.json: how far the models of lesson 19 follow a chain, three seeds each.

    python data/rumors.py 0 1 2

It takes about three CPU-minutes per seed. `recorded.py` does the work.
"""

import time
from functools import partial

from recorded import Runs, record_seeds

RUNS = Runs(__file__, "19_universal")


def settings(names: dict) -> dict:
    """Return for each name the options of the lesson's `train`; "make" makes the body."""
    Stack, Loop, Halting = (names[name] for name in ("Stack", "Loop", "Halting"))

    def halting(ponder: float, **signals) -> dict:
        return {"make": partial(Halting, 64, 10, **signals), "ponder": ponder}

    def loop(steps: int) -> dict:
        return {"make": partial(Loop, 64, steps, clock=False)}

    return {
        "loop": loop(6),
        "halting": halting(0.01, after=True, clock=False),
        "wide stack": {"make": partial(Stack, 64, 6)},
        "thin stack": {"make": partial(Stack, 26, 6, heads=2), "d_model": 26},
        "one block": {"make": partial(Stack, 64, 1)},
        "halting, clock": halting(0.01),
        "halting, clock, after": halting(0.01, after=True),
        "halting, before": halting(0.01, clock=False),
        "halting, expensive": halting(1, after=True, clock=False),
        "halting, free": halting(0, after=True, clock=False),
        "loop, ten steps": loop(10),
    }


def record(seed: int) -> None:
    """Train each body with this seed; record its parameters, and its right answers and steps taken at each depth."""
    names = RUNS.lesson()

    def result(name: str, options: dict) -> dict:
        start = time.process_time()
        model = names["train"](seed=seed, **options)
        run = {"parameters": names["parameters"](model), "seconds": round(time.process_time() - start, 1)}
        run["right"] = names["by_depth"](model)
        if hasattr(model.body, "N"):
            run["steps"] = names["by_depth"](model, "steps")
        if name in ("loop", "halting"):
            run["same steps"] = names["each_number_of_steps"](model)
        return run

    for name, options in settings(names).items():
        RUNS.record(partial(result, name, options), name, seed)


if __name__ == "__main__":
    record_seeds(record)
