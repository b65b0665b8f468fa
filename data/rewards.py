"""Write rewards.json: what the small models of lesson 41 learn from rewards and pairs.

    python data/rewards.py 0 1 2 3 4 5 6 7

Three seeds each; the runs with a reward that can be hacked vary more from seed to seed, and have eight.

`recorded.py` does the work.
"""

import copy
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from recorded import Runs, record_seeds

RUNS = Runs(__file__, "41_rewards")
EVERY = 20  # rounds that a recorded number is the mean of
DPO = {
    "DPO, β = 0.5": {"beta": 0.5},
    "DPO, β = 0.5, rate 0.0003": {"beta": 0.5, "rate": 3e-4},
    "DPO, β = 0.1": {"beta": 0.1},
    "DPO, β = 0.1, rate 0.0003": {"beta": 0.1, "rate": 3e-4},
}


def record(seed: int) -> None:
    """Record each way of learning, from the same imitator."""
    names = RUNS.lesson()

    @cache
    def imitator() -> Any:
        torch.manual_seed(seed)
        model = names["new_model"]()
        names["imitate"](model, 600)
        return model

    @cache
    def kept() -> tuple[torch.Tensor, ...]:
        torch.manual_seed(seed)
        return names["keep_right"](imitator())

    @cache
    def taught(way: str) -> Any:
        model = copy.deepcopy(imitator())
        torch.manual_seed(seed)
        WAYS[way](model)
        return model

    def learned(loss: str, reward: str = "is_right", **options: Any) -> Callable[[Any], Any]:
        return lambda model: names["learn"](model, names[loss], reward=names[reward], **options)

    def preferring(model: Any, **options: float) -> None:
        names["dpo"](model, kept(), **options)

    def log_p(way: str) -> list[float]:
        prompts, *sides = kept()
        with torch.no_grad():
            return [names["answer_log_p"](taught(way), prompts, side).mean().item() for side in sides]

    def hacked(loss: str, beta: float) -> dict[str, list[float]]:
        model = copy.deepcopy(imitator())
        torch.manual_seed(seed)
        penalty = partial(names["divergence"], beta=beta)
        run = learned(loss, "occurs", steps=200, longest=8, rate=1e-3, penalty=penalty)(model)
        return {
            what: row.view(-1, EVERY).mean(dim=1).tolist()
            for what, row in zip(("reward", "right", "tokens"), run, strict=True)
        }

    WAYS: dict[str, Callable[[Any], Any]] = {
        "imitation": lambda model: None,
        "more imitation": lambda model: names["imitate"](model, 300, rate=1e-3),
        "imitate own right answers": lambda model: names["imitate_right"](model, kept()),
        "REINFORCE": learned("reinforce"),
        "REINFORCE, rewards + 5": learned("reinforce", "right_plus_5"),
        "with baseline": learned("with_baseline"),
        "with baseline, rewards + 5": learned("with_baseline", "right_plus_5"),
        "with baseline and spread": learned("with_spread"),
        "one update": learned("with_spread", steps=150, rate=1e-3),
        "four updates, unclipped": learned("unclipped", steps=150, rate=1e-3, updates=4),
        "four updates, clipped": learned("clipped", steps=150, rate=1e-3, updates=4),
        "one update, rate 0.0003": learned("with_spread", steps=150),
        "four updates, unclipped, rate 0.0003": learned("unclipped", steps=150, updates=4),
        "four updates, clipped, rate 0.0003": learned("clipped", steps=150, updates=4),
        **{name: partial(preferring, **options) for name, options in DPO.items()},
    }
    if seed < 3:
        for way in WAYS:
            RUNS.record(lambda way=way: names["score"](taught(way)), "right", way, seed)
        for way in ("imitation", "imitate own right answers", *DPO):
            RUNS.record(partial(log_p, way), "log p", way, seed)
    for beta in (0.0, 0.03, 0.1):
        RUNS.record(partial(hacked, "with_spread", beta), "hacked", beta, seed)
    RUNS.record(partial(hacked, "by_length", 0.0), "hacked", "0.0, by length", seed)


if __name__ == "__main__":
    record_seeds(record)
