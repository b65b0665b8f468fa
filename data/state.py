"""Write state.json: how well the small decoders of lesson 33 remember, three seeds each.

    python data/state.py 0 1 2

`recorded.py` does the work. The race is copied from benchmarks/results/mixers.json.
"""

import json
from functools import partial
from pathlib import Path

from recorded import Runs, record_seeds

RUNS = Runs(__file__, "33_state")
RACE = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "mixers.json"
SKILLS = {"recalling": "recall", "overwriting": "overwriting"}
KERNELS = {"no convolution": 1, "convolution": 4}


def record(seed: int) -> None:
    """Record each mixer with and without what else might explain its result."""
    for name, row in json.loads(RACE.read_text(encoding="utf-8"))["rows"].items():
        for skill, title in SKILLS.items():
            score = row["skills"][skill]["scores"][seed]
            RUNS.record(partial(float, score), "race", name, title, seed)
        RUNS.record(partial(float, row["skills"]["plays"]["scores"][seed]), "plays", name, seed)
    names = RUNS.lesson()
    train, recalling = names["train"], names["recalling"]
    for title, kernel in KERNELS.items():
        for name in ("softmax", "delta rule"):
            RUNS.record(partial(train, recalling, name, kernel, seed), "recall", name, title, seed)
    for name in names["rules"]:
        RUNS.record(partial(train, names["overwriting"], name, seed=seed), "overwriting", name, seed)


if __name__ == "__main__":
    record_seeds(record)
