"""Write learning.json: how the wirings, rates and remedies of lesson 07 learn, three seeds each.

    python data/learning.py 0 1 2

`recorded.py` does the work.
"""

from recorded import Runs, record_seeds

RUNS = Runs(__file__, "07_learning")
WINDOW = 50  # steps


def runs(names: dict) -> dict:
    """Question → setting → learning rate → the options of `train`."""
    post = {"norm_first": False}
    return {
        "wiring": {
            "pre-norm": {3e-3: {}},
            "post-norm": {3e-3: post, 1e-3: post},
            "post-norm, warm-up": {3e-3: post | {"schedule": names["warm_up"]}},
        },
        "cause": {
            "moments first": {3e-3: post | {"schedule": names["moments_first"]}},
            "last blocks slower": {3e-3: post | {"make": names["last_slower"]}},
            "first blocks slower": {3e-3: post | {"make": names["first_slower"]}},
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
                RUNS.record(lambda rate=rate, options=options: trained(rate, options), question, setting, rate, seed)


if __name__ == "__main__":
    record_seeds(record)
