"""Write contest.json: BLEU, parameters and steps of the translators that lessons 02 and 09 compare, three seeds each.

    python data/contest.py

It copies them from benchmarks/results/translators.json, which `python benchmarks/translators.py --save` writes.
"""

import json
from pathlib import Path
from typing import Any

OUT = Path(__file__).with_suffix(".json")
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "translators.json"
KEPT = ("parameters", "steps", "bleu")
NAMES = {
    "rnn-plain": "one vector",
    "rnn": "attention",
    "bytenet": "dilated convolutions",
    "conv": "convolutions with attention",
    "paper": "Transformer, choices of 2017",
    "transformer": "Transformer, newer choices",
}


def contest() -> dict[str, dict[str, Any]]:
    """Return what is kept of each translator, by the lessons' names."""
    rows = json.loads(RESULTS.read_text())["rows"]
    return {name: {field: rows[row][field] for field in KEPT} for row, name in NAMES.items()}


if __name__ == "__main__":
    OUT.write_text(json.dumps(contest(), indent=1) + "\n")
