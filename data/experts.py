"""Write experts.json: what the models of lesson 18 store and where their tokens go, three seeds each.

    python data/experts.py 0 1 2

It takes about three CPU-minutes per seed. `recorded.py` does the work.
"""

from functools import partial

from recorded import Runs, record_seeds

RUNS = Runs(__file__, "18_experts")
WINDOW = 5  # steps


def settings(names: dict) -> dict:
    """Task → model → the arguments of the lesson's `learn_facts` or `train`."""
    dense, switch, two_of_eight, wide = (names[name] for name in ("dense", "switch", "two_of_eight", "wide"))
    frozen, twins, ahead = (names[name] for name in ("frozen", "twins", "ahead"))
    contest = {
        "dense, 64": {"make": dense},
        "Switch, 1 of 8 × 64": {"make": switch, "alpha": 0.01},
        "2 of 8 × 32": {"make": two_of_eight, "alpha": 0.01},
        "dense, 512": {"make": wide},
    }
    return {
        "facts": contest
        | {
            "Switch, router frozen": {"make": frozen},
            "dense, 64, 2,400 steps": {"make": dense, "steps": 2400},
            "dense, 16, 2,400 steps": {"make": partial(names["FeedForward"], 64, 16), "steps": 2400},
            "Switch, 1 of 8 × 16, 2,400": {"make": partial(names["Mixture"], 64, 16, 8), "alpha": 0.01, "steps": 2400},
        },
        "text": contest
        | {
            "no balance loss": {"make": switch},
            "no balance loss, eight twins": {"make": twins},
            "no balance loss, one ahead": {"make": ahead},
        },
    }


def record(seed: int) -> None:
    """Train every model with this seed; record the fraction of facts it knows, or its test loss and busiest experts."""
    names = RUNS.lesson()

    def facts(options: dict) -> float:
        return names["known"](names["learn_facts"](seed=seed, **options))

    def text(options: dict) -> dict:
        model, shares = names["train"](seed=seed, **options)
        run = {"loss": names["test_loss"](model)}
        if names["mixtures"](model):
            run["busiest"] = names["busiest"](shares, WINDOW)
            run["at work"] = names["at_work"](shares)
        return run

    for task, how in {"facts": facts, "text": text}.items():
        for name, options in settings(names)[task].items():
            RUNS.record(partial(how, options), task, name, seed)


if __name__ == "__main__":
    record_seeds(record)
