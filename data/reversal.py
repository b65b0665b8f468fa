"""Write reversal.json: which nets of lesson 08 learn to reverse strings, at two rates, and what missing parts cost.

    python data/reversal.py 0 1 2

It takes about five CPU-minutes per seed. `recorded.py` does the work.
"""

from functools import partial
from typing import Any

import torch
from recorded import Runs, record_seeds

RUNS = Runs(__file__, "08_transformer")


def reverse(lesson: dict[str, Any], name: str, lr: float, seed: int, steps: int = 300) -> float:
    """Train one net; return the fraction of the test strings that it reverses without a mistake."""
    torch.manual_seed(seed)
    net = lesson["untrained"](name)
    lesson["train"](net, name, steps=steps, seed=seed, lr=lr)
    return lesson["fraction_right"](net)


BROKEN = {"all parts": "Transformer", "no causal mask": "Unmasked", "no positions": "Unplaced"}


def half_trained(lesson: dict[str, Any], name: str, seed: int) -> dict[str, float]:
    """Train a Transformer, or one with a part missing, for 150 steps, and another one on noise."""
    results = {}
    for task in ("random_pairs", "unrelated_pairs"):
        torch.manual_seed(seed)
        net = lesson[BROKEN[name]](len(lesson["vocabulary"]))
        losses = lesson["train"](net, name, stop=150, draw=lesson[task], seed=seed)
        if task == "random_pairs":
            results |= {"loss": lesson["smooth"](losses)[-1], "reversed": lesson["fraction_right"](net)}
        else:
            results["loss on noise"] = lesson["smooth"](losses)[-1]
    return results


def record(seed: int) -> None:
    """Record all nets with this seed."""
    torch.set_num_threads(1)
    lesson = RUNS.lesson()
    for lr in lesson["RATES"]:
        for name in lesson["NETS"]:
            RUNS.record(partial(reverse, lesson, name, lr, seed), "reversed", lr, name, seed)
    longer = partial(reverse, lesson, "one vector", max(lesson["RATES"]), seed, steps=1500)
    RUNS.record(longer, "1,500 steps", "one vector", seed)
    for name in BROKEN:
        RUNS.record(partial(half_trained, lesson, name, seed), "broken", name, seed)


if __name__ == "__main__":
    record_seeds(record)
