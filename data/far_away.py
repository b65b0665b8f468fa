"""Writes far_away.json: what the readers of lesson 20 find out from how far away, three seeds each.

    python data/far_away.py 0 1 2

It runs the lesson's own cells that are tagged `recorded`, so that the readers are those that stand there. Stopped and
started again, it goes on with the runs that are missing.
"""

import json
import sys
from functools import partial
from pathlib import Path

import jupytext

from txlib.files import write_atomically

OUT = Path(__file__).with_suffix(".json")
LESSON = Path(__file__).parents[1] / "notebooks" / "20_sparse.py"


def lesson() -> dict:
    """The names that the lesson's tagged cells define."""
    names: dict = {"__name__": "lesson"}
    for cell in jupytext.read(LESSON).cells:
        if "recorded" in cell.metadata.get("tags", ()):
            exec(cell.source, names)
    return names


def runs(names: dict) -> dict:
    """Task → pattern → what draws its texts, the mask, and the steps of training."""
    patterns, last = names["PATTERNS"], range(names["n"] - 8, names["n"])
    eight = partial(names["own_question"], asking=8)
    asked = {"askers": names["window"](8) | names["seen_by_all"](*last), "all pairs": patterns["all pairs"]}
    return {
        "one fact": {name: (names["one_fact"], mask, 100) for name, mask in patterns.items()},
        "own question": {name: (names["own_question"], mask, 150) for name, mask in patterns.items()},
        "eight ask": {name: (eight, mask, 250) for name, mask in asked.items()},
    }


def kept() -> dict:
    """Task → pattern → seed → the share of right answers, for each group of distances."""
    return json.loads(OUT.read_text()) if OUT.is_file() else {}


def record(seed: int) -> None:
    """Train each reader with this seed, and keep its right answers."""
    names = lesson()
    for task, patterns in runs(names).items():
        for name, (draw, mask, steps) in patterns.items():
            if str(seed) in kept().get(task, {}).get(name, {}):
                continue
            reader = names["train"](draw, mask, steps, seed=seed)
            right = [round(each, 4) for each in names["by_distance"](reader, draw, mask)]
            print(seed, task, name, right, flush=True)
            everything = kept()
            everything.setdefault(task, {}).setdefault(name, {})[str(seed)] = right
            write_atomically(OUT, json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    for each in sys.argv[1:]:
        record(int(each))
