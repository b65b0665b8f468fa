"""Write flocks.json: what the models of lesson 23 find in sets of each size, three seeds each.

    python data/flocks.py 0 1 2

`recorded.py` does the work.
"""

from collections.abc import Callable
from functools import partial

import torch
from recorded import Runs, record_seeds

RUNS = Runs(__file__, "23_sets")
LARGEST_STEPS, CLUSTERS_STEPS = 600, 1000


def record(seed: int) -> None:
    """Train each model with this seed; record, for each size of a set, how far off it is, or its log-likelihood."""
    names = RUNS.lesson()

    def largest(model: torch.nn.Module) -> list[float]:
        with torch.no_grad():
            return [names["wrong_by"](model, size, 1000).item() for size in names["SIZES"]]

    def scores(make: Callable, loss_of: Callable, steps: int, rate: float, score: Callable) -> list[float]:
        torch.manual_seed(seed)
        model = names["fit"](make(), loss_of, steps, rate)
        torch.manual_seed(seed)
        return score(model)

    tasks = {
        "largest": (names["LARGEST"], names["wrong_by"], LARGEST_STEPS, 1e-3, largest),
        "clusters": (names["CLUSTERS"], names["unlikely"], CLUSTERS_STEPS, 2e-3, names["by_size"]),
    }
    for task, (models, *training) in tasks.items():
        for name, make in models.items():
            RUNS.record(partial(scores, make, *training), task, name, seed)


if __name__ == "__main__":
    record_seeds(record)
