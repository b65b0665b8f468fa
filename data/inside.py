"""Write inside.json: lesson 43's decoder from three starts, its loss and its heads while it learns, and without heads.

    python data/inside.py 0 1 2

It takes about half a minute per start. `recorded.py` does the work.
"""

from functools import partial

import torch
from recorded import Runs, record_seeds

RUNS = Runs(__file__, "43_inside")


def record(seed: int) -> None:
    """Train once; keep a row for every ten steps, and the right answers without some heads."""
    torch.set_num_threads(1)
    if str(seed) in RUNS.kept().get("without", {}):
        return
    names = RUNS.lesson()
    learner, rows = names["train"](seed)
    RUNS.record(lambda: rows, "births", seed)
    RUNS.record(partial(names["without_heads"], learner, rows[-1]["before"], "mean"), "without", seed)


if __name__ == "__main__":
    record_seeds(record)
