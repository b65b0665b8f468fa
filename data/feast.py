"""Write feast.json: how many guests each mechanism of lesson 32 remembers, three seeds each.

    python data/feast.py 0 1 2

`recorded.py` does the work.
"""

from functools import partial

from recorded import Runs, record_seeds

RUNS = Runs(__file__, "32_low_rank")
GUESTS = (8, 16, 32, 64)


def record(seed: int) -> None:
    """Train each mechanism with this seed for each number of guests."""
    names = RUNS.lesson()
    for guests in GUESTS:
        for name in names["NAMES"]:
            RUNS.record(partial(names["train"], name, guests, seed), name, guests, seed)


if __name__ == "__main__":
    record_seeds(record)
