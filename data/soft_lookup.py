"""Write soft_lookup.json: lesson 03's game with and without the scale, and stopped early; from three starts.

    python data/soft_lookup.py 1 2 3

It takes about a CPU-minute per start. `recorded.py` does the work.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from recorded import Runs, record_seeds
from torch import Tensor

RUNS = Runs(__file__, "03_attention")
GAMES: dict[str, dict] = {"scaled": {}, "unscaled": {"scale": 1.0}, "scaled, 200 steps": {"steps": 200}}
LAST, SENTENCES = 50, 300  # steps whose loss is averaged; for the weight of the best key


@torch.no_grad()
def best_weight(lesson: dict[str, Any], tables: Sequence[Tensor], scale: float) -> float:
    """The weight that a word gives to its best key, on average over some sentences and their partners."""
    english, german = lesson["english_rows"][:SENTENCES], lesson["german_rows"][:SENTENCES]  # (pair, n), (pair, m)
    score = tables[0][english] @ tables[1][german].mT * scale  # (pair, n, m)
    weight = score.masked_fill((german == 0)[:, None], -torch.inf).softmax(dim=-1)
    return weight.amax(dim=-1)[english > 0].mean().item()


def game(lesson: dict[str, Any], seed: int, options: dict) -> dict[str, Any]:
    """Play once; return the loss, how much of the dictionary is right, and how hard the lookup was and became."""
    scale = options.get("scale", 128**-0.5)
    untrained = lesson["random_tables"](seed)
    tables, losses = lesson["play"](seed=seed, **options)
    return {
        "last loss": sum(losses[-LAST:]) / LAST,
        "words right": sum(right for *_, right in lesson["right_words"](*tables[:2])),
        "best weight": [best_weight(lesson, each, scale) for each in (untrained, tables)],
    }


def record(seed: int) -> None:
    """Play all games from this start."""
    torch.set_num_threads(1)
    lesson = RUNS.lesson()
    for name, options in GAMES.items():
        RUNS.record(partial(game, lesson, seed, options), name, seed)


if __name__ == "__main__":
    record_seeds(record)
