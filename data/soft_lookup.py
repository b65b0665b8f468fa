"""Write soft_lookup.json: lesson 03's game with and without the scale, and stopped early; from three starts.

    python data/soft_lookup.py 1 2 3

It takes about a CPU-minute per start. `recorded.py` does the work.
"""

from functools import partial
from typing import Any

import torch
from recorded import Runs, record_seeds

RUNS = Runs(__file__, "03_attention")
GAMES: dict[str, dict] = {"scaled": {}, "unscaled": {"scale": 1.0}, "scaled, 200 steps": {"steps": 200}}
WINDOW, LAST = 20, 50  # steps


def game(lesson: dict[str, Any], seed: int, options: dict) -> dict[str, Any]:
    """Play once; return means of the losses, the share of the best key, and how much of the dictionary is right."""
    (queries, keys, _), losses, shares = lesson["play"](seed=seed, **options)
    return {
        "loss": [sum(losses[at : at + WINDOW]) / WINDOW for at in range(0, len(losses), WINDOW)],
        "last loss": sum(losses[-LAST:]) / LAST,
        "best share": shares,
        "words right": sum(right for *_, right in lesson["right_words"](queries, keys)),
    }


def record(seed: int) -> None:
    """Play all games from this start."""
    torch.set_num_threads(1)
    lesson = RUNS.lesson()
    for name, options in GAMES.items():
        RUNS.record(partial(game, lesson, seed, options), name, seed)


if __name__ == "__main__":
    record_seeds(record)
