"""Write learning.json: how the optimizers, wirings and starts of lesson 07 learn, three seeds each.

    python data/learning.py 0 1 2

It takes about five CPU-minutes per seed. `recorded.py` does the work.
"""

from functools import partial

from recorded import Runs, record_seeds

RUNS = Runs(__file__, "07_learning")
WINDOW = 50  # steps
SHORT = {"steps": 150}


def runs(names: dict) -> dict:
    """Question → setting → learning rate → the options of `train`."""
    post = {"norm_first": False}

    def ours(rule: str, beta: float) -> dict:
        def make(model, lr):
            return [names["Adam"](model.parameters(), lr, names[rule], betas=(0.9, beta))]

        return SHORT | {"make": make}

    return {
        "wiring": {
            "pre-norm": {3e-3: {}},
            "post-norm": {3e-3: post, 1e-3: post},
            "post-norm, warm-up": {3e-3: post | {"schedule": names["warm_up"]}},
        },
        "cause": {
            "moments first": {3e-3: post | {"schedule": names["moments_first"]}},
            "last blocks slower": {3e-3: post | {"make": partial(names["slower"], first=4, end=6)}},
            "middle blocks slower": {3e-3: post | {"make": partial(names["slower"], first=2, end=4)}},
            "first blocks slower": {3e-3: post | {"make": partial(names["slower"], first=0, end=2)}},
        },
        "adam": {
            "Adam": {1e-2: ours("adam", 0.999)},
            "without bias correction": {1e-2: ours("uncorrected", 0.999)},
            "without second moment": dict.fromkeys((0.01, 0.1, 0.3, 1.0), ours("no_second_moment", 0.999)),
        },
        "correction": {
            "Adam, β₂ 0.999": {3e-3: ours("adam", 0.999)},
            "not corrected, β₂ 0.999": {3e-3: ours("uncorrected", 0.999)},
            "Adam, β₂ 0.98": {3e-3: ours("adam", 0.98)},
            "not corrected, β₂ 0.98": {3e-3: ours("uncorrected", 0.98)},
        },
        "start": {
            "Xavier": {3e-3: SHORT},
            "divided by √(2L)": {3e-3: SHORT | {"prepare": names["by_depth"]}},
            "zero": {3e-3: SHORT | {"prepare": names["zero"]}},
            "ten times too large": {3e-3: SHORT | {"prepare": names["too_large"]}},
        },
        "muon": {
            "Adam": dict.fromkeys((3e-3, 1e-2), SHORT),
            "Muon": dict.fromkeys((0.01, 0.02), SHORT | {"make": names["muon"]}),
        },
    }


def windows(values: list[float]) -> list[float]:
    """Means over the windows of a run."""
    return [sum(values[start : start + WINDOW]) / WINDOW for start in range(0, len(values), WINDOW)]


def record(seed: int) -> None:
    """Train every setting with this seed, and record loss and fraction apart, means of 50 steps."""
    names = RUNS.lesson()

    def trained(rate: float, options: dict) -> dict[str, list[float]]:
        return {name: windows(values) for name, values in names["train"](lr=rate, seed=seed, **options).items()}

    for question, settings in runs(names).items():
        for setting, rates in settings.items():
            for rate, options in rates.items():
                RUNS.record(partial(trained, rate, options), question, setting, rate, seed)


if __name__ == "__main__":
    record_seeds(record)
