"""Write ladder.json: the loss of lesson 23's small GPTs on unseen text, by size and budget, three seeds each.

    python data/ladder.py 0 1 2

It takes about four CPU-minutes per seed. `recorded.py` does the work.
"""

import time

import torch
from recorded import Runs, record_seeds

RUNS = Runs(__file__, "23_scale")


def record(seed: int) -> None:
    """Train each size within each budget with this seed; keep its loss in nats per character."""
    torch.set_num_threads(1)
    names = RUNS.lesson()
    for budget in names["BUDGETS"]:
        for width in names["LADDER"]:
            if names["pays"](budget, width) and not RUNS.has(f"{budget:.1e}", str(width), str(seed)):
                start = time.process_time()
                loss = names["climb"](budget, width, seed)
                RUNS.keep(round(loss, 4), f"{budget:.1e}", str(width), str(seed))
                print(f"{time.process_time() - start:.0f} CPU-seconds", flush=True)


if __name__ == "__main__":
    record_seeds(record)
