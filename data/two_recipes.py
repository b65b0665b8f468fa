"""Write checkpoints/games-de-en/recipes.json: the course of finished runs of `txlib train translation`.

    python data/two_recipes.py runs/tiny runs/paper runs/paper-long

It copies each run's `model/result.json`, and from `metrics.csv` the training loss as means of 50 steps.
"""

import csv
import json
import sys
from pathlib import Path
from statistics import mean

OUT = Path(__file__).parent / "checkpoints" / "games-de-en" / "recipes.json"
KEPT = ("preset", "steps", "parameters", "cpu_seconds", "bleu", "bleu_greedy", "validation_loss", "seed")
MEANS = 50  # steps


def summary(run: Path) -> dict:
    result = json.loads((run / "model" / "result.json").read_text())
    with (run / "metrics.csv").open(newline="") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    ends = range(MEANS, len(losses) + 1, MEANS)
    curve = {"step": list(ends), "loss": [round(mean(losses[end - MEANS : end]), 3) for end in ends]}
    return {name: result[name] for name in KEPT} | curve


if __name__ == "__main__":
    runs = {Path(folder).name: summary(Path(folder)) for folder in sys.argv[1:]}
    OUT.write_text(json.dumps(runs, indent=1) + "\n")
