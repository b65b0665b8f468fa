"""Write voices.json: the loss per note of the models of lesson 22, three seeds each.

    python data/voices.py 0 1 2

`recorded.py` does the work.

"positions" compares distances with positions, "keys" training in one key with training in all.
"""

from functools import partial
from typing import Any

from recorded import Runs, record_seeds
from torch import Tensor, nn

from txlib.attention import causal, sliding_window
from txlib.music import Piece

RUNS = Runs(__file__, "22_music")
KINDS = ("relative", "absolute")
KEYS = {"one key": False, "all keys": True}


def record(seed: int) -> None:
    """Train each model with this seed, and record its losses."""
    lesson = RUNS.lesson()
    test = lesson["chorales"]().test
    for kind in KINDS:
        RUNS.record(lambda kind=kind: by_length(lesson, lesson["fit"](kind, seed), test), "positions", kind, seed)
    for keys, transpose in KEYS.items():
        fit = partial(lesson["fit"], seed=seed, transpose=transpose)
        RUNS.record(lambda fit=fit: by_shift(lesson, fit(), test), "keys", keys, seed)


def by_length(lesson: dict[str, Any], model: nn.Module, pieces: list[Piece]) -> dict[str, Any]:
    """Return the nats per token, and those of each bar in windows twice as long as trained on; `model` keeps its
    window.
    """
    short, long = lesson["windows"](pieces), lesson["windows"](pieces, 2 * lesson["N"])
    run = {"nats": lesson["cost"](model, short).mean().item(), "by bar": by_bar(lesson["cost"](model, long))}
    model.mask = causal() & sliding_window(lesson["N"] - 1)
    return run | {"by bar, window": by_bar(lesson["cost"](model, long))}


def by_shift(lesson: dict[str, Any], model: nn.Module, pieces: list[Piece]) -> dict[str, Any]:
    """Return the nats per token, and for each shift those of the windows that can be transposed that far."""
    rows = lesson["windows"](pieces)
    moved = {str(shift): nats for shift, nats in lesson["by_shift"](model, rows).items()}
    return {"nats": lesson["cost"](model, rows).mean().item(), "by shift": moved}


def by_bar(nats: Tensor) -> list[float]:
    """Return the mean of each bar of (windows, tokens)."""
    return nats.view(len(nats), -1, 64).mean(dim=(0, 2)).tolist()


if __name__ == "__main__":
    record_seeds(record)
