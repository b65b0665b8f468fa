"""Write ladder.json: the loss of lesson 35's small GPTs on unseen text, by size and budget, three seeds each.

    python data/ladder.py 0 1 2

It takes about four CPU-minutes per seed. `recorded.py` does the work.
"""

from functools import partial

import torch
from recorded import Runs, record_seeds

RUNS = Runs(__file__, "35_scale")


def record(seed: int) -> None:
    """Train each size within each budget with this seed; record its loss in nats per character."""
    torch.set_num_threads(1)
    names = RUNS.lesson()
    for budget in names["BUDGETS"]:
        for width in names["LADDER"]:
            if names["pays"](budget, width):
                RUNS.record(partial(names["climb"], budget, width, seed), f"{budget:.1e}", width, seed)


if __name__ == "__main__":
    record_seeds(record)
