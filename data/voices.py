"""Writes voices.json: what a note costs the models of lesson 17, three seeds each.

    python data/voices.py 0 1 2

`recorded.py` says how.
"""

from recorded import Runs, record_seeds

from txlib.attention import causal, sliding_window

RUNS = Runs(__file__, "17_music")
KINDS = ("relative", "absolute")


def record(seed: int) -> None:
    """Train each kind with this seed; keep its nats per token, and by bar in windows twice as long as trained on."""
    names = RUNS.lesson()
    test = names["chorales"]().test
    short, long = names["windows"](test), names["windows"](test, 2 * names["N"])
    for kind in KINDS:
        if RUNS.has(kind, str(seed)):
            continue
        model = names["fit"](kind, seed)
        run = {"nats": round(names["cost"](model, short).mean().item(), 4), "by bar": by_bar(names, model, long)}
        model.mask = causal() & sliding_window(names["N"] - 1)
        run["by bar, window"] = by_bar(names, model, long)
        RUNS.keep(run, kind, str(seed))


def by_bar(names: dict, model, rows) -> list[float]:
    """Nats per token in each bar of the windows."""
    bars = names["cost"](model, rows).view(len(rows), -1, 64).mean(dim=(0, 2))
    return [round(each, 4) for each in bars.tolist()]


if __name__ == "__main__":
    record_seeds(record)
