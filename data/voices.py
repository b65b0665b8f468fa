"""Write voices.json: the loss per note of the models of lesson 17, three seeds each.

    python data/voices.py 0 1 2

`recorded.py` does the work.

"positions" compares distances with positions, "keys" training in one key with training in all.
"""

from typing import Any

from recorded import Runs, record_seeds

from txlib.attention import causal, sliding_window

RUNS = Runs(__file__, "17_music")
KINDS = ("relative", "absolute")
KEYS = {"one key": False, "all keys": True}


def record(seed: int) -> None:
    """Train each model with this seed, where that run is missing."""
    lesson = RUNS.lesson()
    test = lesson["chorales"]().test
    for kind in KINDS:
        names = "positions", kind, str(seed)
        if not RUNS.has(*names):
            RUNS.keep(by_length(lesson, lesson["fit"](kind, seed), test), *names)
    for keys, transpose in KEYS.items():
        names = "keys", keys, str(seed)
        if not RUNS.has(*names):
            RUNS.keep(by_shift(lesson, lesson["fit"](seed=seed, transpose=transpose), test), *names)


def by_length(lesson: dict[str, Any], model, pieces) -> dict[str, Any]:
    """Nats per token, and those of each bar in windows twice as long as trained on; `model` keeps its window."""
    short, long = lesson["windows"](pieces), lesson["windows"](pieces, 2 * lesson["N"])
    run = {"nats": mean(lesson["cost"](model, short)), "by bar": by_bar(lesson["cost"](model, long))}
    model.mask = causal() & sliding_window(lesson["N"] - 1)
    return run | {"by bar, window": by_bar(lesson["cost"](model, long))}


def by_shift(lesson: dict[str, Any], model, pieces) -> dict[str, Any]:
    """Nats per token, and those of the windows that have room to move, for each shift."""
    rows = lesson["windows"](pieces)
    moved = {str(shift): round(nats, 4) for shift, nats in lesson["by_shift"](model, rows).items()}
    return {"nats": mean(lesson["cost"](model, rows)), "by shift": moved}


def by_bar(nats) -> list[float]:
    """Of (windows, tokens) the mean of each bar."""
    return [round(each, 4) for each in nats.view(len(nats), -1, 64).mean(dim=(0, 2)).tolist()]


def mean(nats) -> float:
    return round(nats.mean().item(), 4)


if __name__ == "__main__":
    record_seeds(record)
