"""Writes feast.json: how many guests each mechanism of lesson 21 remembers, three seeds each.

    python data/feast.py 0 1 2

It runs the lesson's own cells that are tagged `recorded`, so that the models are those that stand there. Stopped and
started again, it goes on with the runs that are missing.
"""

import json
import sys
from pathlib import Path

import jupytext

from txlib.files import write_atomically

OUT = Path(__file__).with_suffix(".json")
LESSON = Path(__file__).parents[1] / "notebooks" / "21_low_rank.py"
GUESTS = (8, 16, 32, 64)


def lesson() -> dict:
    """The names that the lesson's tagged cells define."""
    names: dict = {"__name__": "lesson"}
    for cell in jupytext.read(LESSON).cells:
        if "recorded" in cell.metadata.get("tags", ()):
            exec(cell.source, names)
    return names


def kept() -> dict:
    """Name → guests → seed → the share of right answers."""
    return json.loads(OUT.read_text()) if OUT.is_file() else {}


def record(seed: int) -> None:
    """Train each mechanism with this seed for each number of guests."""
    names = lesson()
    for guests in GUESTS:
        for name, mechanism in names["hosts"](guests).items():
            if str(seed) in kept().get(name, {}).get(str(guests), {}):
                continue
            right = names["train"](mechanism, guests, seed)
            print(seed, guests, name, f"{right:.3f}", flush=True)
            runs = kept()
            runs.setdefault(name, {}).setdefault(str(guests), {})[str(seed)] = round(right, 4)
            write_atomically(OUT, json.dumps(runs, indent=1) + "\n")


if __name__ == "__main__":
    for each in sys.argv[1:]:
        record(int(each))
