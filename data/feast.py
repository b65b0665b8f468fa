"""Write feast.json: how many guests each mechanism of lesson 32 remembers, three seeds each.

    python data/feast.py 0 1 2

`recorded.py` does the work.
"""

from functools import partial

from recorded import Runs, record_seeds

RUNS = Runs(__file__, "32_low_rank")
GUESTS = (8, 16, 32, 64)
BATCHES = (250, 1000)
HEADS = (16, 8, 4, 2)
BY_STATE = ("dense", "linear, elu + 1", "linear, softmax")


def record(seed: int) -> None:
    """Train each mechanism with this seed by batches and guests, and some of them by heads, for smaller states."""
    names = RUNS.lesson()
    for batches in BATCHES:
        for name in names["NAMES"]:
            for guests in GUESTS:
                run = partial(names["train"], name, guests, seed, batches)
                RUNS.record(run, "guests", batches, name, guests, seed)
    for name in BY_STATE:
        for heads in HEADS:
            RUNS.record(partial(names["train"], name, 64, seed, 4000, heads), "heads", name, heads, seed)


if __name__ == "__main__":
    record_seeds(record)
