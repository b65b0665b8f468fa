"""Write positions.json: how lesson 05's readers read, also beyond the length they were trained on; three seeds each.

    python data/positions.py 0 1 2

It takes about a CPU-minute per seed. `recorded.py` does the work.
"""

from functools import partial
from typing import Any

import torch
from recorded import Runs, record_seeds

RUNS = Runs(__file__, "05_positions")
WINDOW = 8  # positions to a mean


def read(lesson: dict[str, Any], kind: type, seed: int) -> dict[str, Any]:
    """Train one reader; return its loss on the trained length, and on four times that, without and with a window."""
    model, length, long = lesson["fit"](kind, seed), lesson["N"], lesson["LONG"]
    short = lesson["loss_by_position"](model, length).mean().item()

    def by_position() -> list[float]:
        return lesson["loss_by_position"](model, long).unflatten(0, (-1, WINDOW)).mean(dim=-1).tolist()

    without = by_position()
    model.mask = lesson["causal"]() & lesson["sliding_window"](length - 1)
    return {"short": short, "long": without, "window": by_position()}


def record(seed: int) -> None:
    """Record all readers with this seed."""
    torch.set_num_threads(1)
    lesson = RUNS.lesson()
    for name, kind in (lesson["kinds"] | lesson["controls"]).items():
        RUNS.record(partial(read, lesson, kind, seed), name, seed)


if __name__ == "__main__":
    record_seeds(record)
