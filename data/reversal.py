"""Write reversal.json: which nets of lesson 08 learn to reverse strings, three seeds each.

    python data/reversal.py 0 1 2

It takes about a CPU-minute per seed. `recorded.py` does the work.
"""

from typing import Any

import torch
from recorded import Runs, record_seeds

RUNS = Runs(__file__, "08_transformer")


def reverse(lesson: dict[str, Any], name: str, seed: int) -> float:
    """Train one net; return the fraction of the test strings that it reverses without a mistake."""
    torch.manual_seed(seed)
    net = lesson["untrained"](name)
    lesson["train"](net, name, seed=seed)
    return lesson["share_right"](net)


def record(seed: int) -> None:
    """Record all nets with this seed."""
    torch.set_num_threads(1)
    lesson = RUNS.lesson()
    for name in lesson["NETS"]:
        RUNS.record(lambda name=name: reverse(lesson, name, seed), "reversed", name, seed)


if __name__ == "__main__":
    record_seeds(record)
