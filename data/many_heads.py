"""Write many_heads.json: the loss of lesson 04's gap-fillers by their number of heads, from three starts.

    python data/many_heads.py 0 1 2

It takes about half a CPU-minute per start. `recorded.py` does the work.
"""

from functools import partial
from typing import Any

import torch
from recorded import Runs, record_seeds

RUNS = Runs(__file__, "04_heads")
HEADS = 1, 4, 8, 32


def settings(lesson: dict[str, Any]) -> dict[str, dict]:
    """Return setting → the options of ManyHeads."""
    wrong = {"split": lesson["split_wrong"], "join": lesson["join_wrong"]}
    return {f"h = {heads}": {"heads": heads} for heads in HEADS} | {"h = 4, both wrong": {"heads": 4} | wrong}


def loss(lesson: dict[str, Any], options: dict, seed: int) -> float:
    """Train one; return its loss on the held-out pairs."""
    return lesson["evaluate"](lesson["train_gap"](partial(lesson["ManyHeads"], **options), seed))[0]


def record(seed: int) -> None:
    """Record all settings from this start."""
    torch.set_num_threads(1)
    lesson = RUNS.lesson()
    for name, options in settings(lesson).items():
        RUNS.record(partial(loss, lesson, options, seed), name, seed)


if __name__ == "__main__":
    record_seeds(record)
