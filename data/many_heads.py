"""Write many_heads.json: the loss of lesson 04's gap-fillers by their number of heads, from three starts.

    python data/many_heads.py 0 1 2

It takes two to three CPU-minutes per start. `recorded.py` does the work.
"""

from functools import partial
from typing import Any

import torch
from recorded import Runs, record_seeds

RUNS = Runs(__file__, "04_heads")
HEADS = 1, 4, 8, 32
ADDED = 1, 4, 32


def settings(lesson: dict[str, Any]) -> dict[str, partial]:
    """Return setting → what makes its attention from a width."""
    plain, added = lesson["ManyHeads"], lesson["Added"]
    wrong = {"split": lesson["split_wrong"], "join": lesson["join_wrong"]}
    return (
        {f"h = {heads}": partial(plain, heads=heads) for heads in HEADS}
        | {"h = 4, both wrong": partial(plain, heads=4, **wrong)}
        | {f"query added, h = {heads}": partial(added, heads=heads) for heads in ADDED}
        | {"query added, even weights": partial(added, heads=1, ask=0)}
        | {"query added, no German": partial(added, heads=1, german=0)}
    )


def loss(lesson: dict[str, Any], attend: partial, seed: int) -> float:
    """Train one; return its loss on the held-out pairs."""
    return lesson["evaluate"](lesson["train_gap"](attend, seed))[0]


def record(seed: int) -> None:
    """Record all settings from this start."""
    torch.set_num_threads(1)
    lesson = RUNS.lesson()
    for name, attend in settings(lesson).items():
        RUNS.record(partial(loss, lesson, attend, seed), name, seed)


if __name__ == "__main__":
    record_seeds(record)
