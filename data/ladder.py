"""Write ladder.json: the loss of lesson 37's small GPTs on unseen text, by size and budget, three seeds each.

    python data/ladder.py 0 1 2

It takes about four CPU-minutes per seed. `recorded.py` does the work.
"""

from functools import partial

import torch
from recorded import Runs, record_seeds

RUNS = Runs(__file__, "37_costs")


def record(seed: int) -> None:
    """Train each size within each budget with this seed; record its loss in nats per character."""
    torch.set_num_threads(1)
    names = RUNS.lesson()
    for budget in names["BUDGETS"]:
        for width in names["LADDER"]:
            if names["pays"](budget, width):
                for rate in names["rates"](budget, width):
                    run = partial(names["climb"], budget, width, rate, seed)
                    RUNS.record(run, f"{budget:.1e}", width, rate, seed)


if __name__ == "__main__":
    record_seeds(record)
