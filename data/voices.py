"""Write voices.json: the loss per note of the models of lesson 22, three seeds each.

    python data/voices.py 0 1 2

It takes about six CPU-minutes per seed. `recorded.py` does the work.

"positions" compares kinds of positions, "faster" their tables when these learn faster than the rest of the model,
"keys" training on pieces as written with training on moved ones. "beyond" is what two models of seed 0 write in bars
five to eight, after four bars of a chorale.
"""

from itertools import product
from typing import Any

import torch
from recorded import Runs, record_seeds
from torch import nn

from txlib.attention import causal, sliding_window
from txlib.music import Piece

RUNS = Runs(__file__, "22_music")
KINDS = ("relative", "rotary", "learned", "sinusoidal")
TABLES, FASTER = ("relative", "numbers", "learned"), (1, 4, 16)
KEYS = {"as written": False, "moved at random": True}
HEARD = ("learned", "relative")
FARTHEST = 3  # semitones by which test pieces are moved


def record(seed: int) -> None:
    """Train each model with this seed, and record its losses."""
    lesson = RUNS.lesson()
    test = lesson["chorales"]().test
    for kind in KINDS:
        RUNS.record(lambda kind=kind: by_length(lesson, lesson["fit"](kind, seed), test), "positions", kind, seed)
    for kind, times in product(TABLES, FASTER):
        RUNS.record(
            lambda kind=kind, times=times: nats(lesson, lesson["fit"](kind, seed, faster=times), test),
            *("faster", kind, times, seed),
        )
    for keys, transpose in KEYS.items():
        RUNS.record(
            lambda transpose=transpose: in_keys(lesson, lesson["fit"](seed=seed, transpose=transpose), test),
            *("keys", keys, seed),
        )
    for kind in HEARD if seed == 0 else ():
        RUNS.record(lambda kind=kind: bars_five_to_eight(lesson, lesson["fit"](kind, seed)), "beyond", kind, seed)


def nats(lesson: dict[str, Any], model: nn.Module, pieces: list[Piece]) -> float:
    """Return the nats per token."""
    return lesson["cost"](model, lesson["windows"](pieces)).mean().item()


def by_length(lesson: dict[str, Any], model: nn.Module, pieces: list[Piece]) -> dict[str, Any]:
    """Return the nats per token, and those of each bar in windows twice as long as trained on; `model` keeps its
    window.
    """
    short, long = lesson["windows"](pieces), lesson["windows"](pieces, 2 * lesson["N"])
    run = {"nats": lesson["cost"](model, short).mean().item(), "by bar": by_bar(lesson["cost"](model, long))}
    model.mask = causal() & sliding_window(lesson["N"] - 1)
    return run | {"by bar, window": by_bar(lesson["cost"](model, long))}


def in_keys(lesson: dict[str, Any], model: nn.Module, pieces: list[Piece]) -> dict[str, Any]:
    """Return the nats per token, and for each shift those of the windows that can be transposed that far."""
    rows = lesson["windows"](pieces)
    return {"nats": lesson["cost"](model, rows).mean().item(), "by shift": by_shift(lesson, model, rows)}


def bars_five_to_eight(lesson: dict[str, Any], model: nn.Module) -> str:
    """Return the tokens that it writes after the first four bars of a chorale, all of which it sees."""
    count = lesson["N"]
    four_bars = lesson["encode"](lesson["pieces"].test[20])[:count]
    line = lesson["compose"](model, four_bars, count, temperature=0.9, window=2 * count)
    return " ".join(map(str, line[count:].tolist()))


def by_shift(lesson: dict[str, Any], model: nn.Module, rows: torch.Tensor) -> dict[str, float]:
    """Return semitones up → nats per token."""
    first, vocab = lesson["FIRST"], lesson["V"]
    sung = torch.where(rows >= first, rows, vocab // 2)  # (windows, n + 1): HOLD in the middle
    fits = (sung.amin(dim=1) - FARTHEST >= first) & (sung.amax(dim=1) + FARTHEST < vocab)  # (windows,)
    rows, costs = rows[fits], {}
    for shift in range(-FARTHEST, FARTHEST + 1):
        moved = torch.where(rows >= first, rows + shift, rows)
        costs[str(shift)] = lesson["cost"](model, moved).mean().item()
    return costs


def by_bar(nats: torch.Tensor) -> list[float]:
    """Return the mean of each bar of (windows, tokens)."""
    return nats.view(len(nats), -1, 64).mean(dim=(0, 2)).tolist()


if __name__ == "__main__":
    record_seeds(record)
