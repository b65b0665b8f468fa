"""Write recall.json: how often lesson 12's decoders of one and two layers repeat a passage, three seeds each.

    python data/recall.py 0 1 2

It takes about half a minute per seed. `recorded.py` does the work.
"""

from functools import partial
from typing import Any

from recorded import Runs, record_seeds

RUNS = Runs(__file__, "12_prompting")


def run(names: dict[str, Any], layers: int, seed: int) -> list[float]:
    """Return how often the next symbol is right, by the number of symbols of the repetition that were seen."""
    return names["right_by_seen"](names["train"](layers, seed=seed)).tolist()


def record(seed: int) -> None:
    names = RUNS.lesson()
    for layers in (1, 2):
        RUNS.record(partial(run, names, layers, seed), layers, seed)


if __name__ == "__main__":
    record_seeds(record)
