"""Write far_away.json: from how far away the models of lesson 20 still find information, three seeds each.

    python data/far_away.py 0 1 2

`recorded.py` does the work.
"""

from functools import partial

from recorded import Runs, record_seeds

RUNS = Runs(__file__, "20_sparse")


def runs(names: dict) -> dict:
    """Task → pattern → what draws its texts, the mask, and the steps of training."""
    patterns, last = names["PATTERNS"], range(names["n"] - 8, names["n"])
    eight = partial(names["own_question"], asking=8)
    asked = {"askers": names["window"](8) | names["seen_by_all"](*last), "all pairs": patterns["all pairs"]}
    return {
        "one fact": {name: (names["one_fact"], mask, 100) for name, mask in patterns.items()},
        "own question": {name: (names["own_question"], mask, 150) for name, mask in patterns.items()},
        "eight ask": {name: (eight, mask, 250) for name, mask in asked.items()},
    }


def record(seed: int) -> None:
    """Train each reader with this seed, and keep its right answers."""
    names = RUNS.lesson()
    for task, patterns in runs(names).items():
        for name, (draw, mask, steps) in patterns.items():
            if RUNS.has(task, name, str(seed)):
                continue
            reader = names["train"](draw, mask, steps, seed=seed)
            right = names["by_distance"](reader, draw, mask)
            RUNS.keep([round(each, 4) for each in right], task, name, str(seed))


if __name__ == "__main__":
    record_seeds(record)
