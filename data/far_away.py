"""Write far_away.json: from how far away the models of lesson 31 still find information, three seeds each.

    python data/far_away.py 0 1 2

`recorded.py` does the work.
"""

from collections.abc import Callable, Sequence
from functools import partial

from recorded import Runs, record_seeds

from txlib.attention import Mask

RUNS = Runs(__file__, "31_sparse")
LONGER = 600  # batches


def runs(names: dict, seed: int = 0) -> dict:
    """Task → pattern → what draws its texts, the mask, the steps of training, and mechanisms that need no mask."""
    patterns, last = names["PATTERNS"], range(names["n"] - 8, names["n"])
    eight = partial(names["own_question"], asking=8)
    near, global_at = names["window"](8), names["global_at"]
    of_eight = {
        "askers": (near | global_at(*last), 250),
        "first eight": (near | global_at(*range(8)), LONGER),
        "all pairs": (patterns["all pairs"], 250),
    }
    return {
        "one fact": {name: (names["one_fact"], mask, 100) for name, mask in patterns.items()},
        "own question": {name: (names["own_question"], mask, 150) for name, mask in patterns.items()},
        "eight ask": {name: (eight, *setting) for name, setting in of_eight.items()},
        "longer": {"Big Bird": (names["own_question"], patterns["Big Bird"], LONGER)},
        "chosen": {
            name: (names["own_question"], None, LONGER, [chosen, chosen]) for name, chosen in names["CHOSEN"].items()
        },
        "dealt out": {
            name: (names["own_question"], None, LONGER, names["deal"](chosen.size, chosen.top, seed))
            for name, chosen in names["CHOSEN"].items()
        },
    }


def record(seed: int) -> None:
    """Train each reader with this seed, and record its right answers by distance."""
    names = RUNS.lesson()

    def right(draw: Callable, mask: Mask | None, steps: int, mechanisms: Sequence = (None, None)) -> list[float]:
        return names["by_distance"](names["train"](draw, mask, steps, seed, mechanisms), draw, mask)

    for task, patterns in runs(names, seed).items():
        for name, setting in patterns.items():
            RUNS.record(partial(right, *setting), task, name, seed)


if __name__ == "__main__":
    record_seeds(record)
