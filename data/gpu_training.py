"""Write gpu_training.json: how fast GPT-2 small trains on a GPU, for lessons 35 and 37.

    python data/gpu_training.py

It copies that from benchmarks/results/gpu_train.json, which `python benchmarks/gpu.py train --save` writes.
"""

import json
from pathlib import Path
from typing import Any

OUT = Path(__file__).with_suffix(".json")
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "gpu_train.json"


def gpu_training() -> dict[str, Any]:
    """Return the machine and, by unit, what was measured with this library and with transformers."""
    results = json.loads(RESULTS.read_text())
    rows = {row["unit"]: {"txlib": row["ours"], "transformers": row["peer"]} for row in results["rows"]}
    return {
        "device": results["device"],
        "torch": results["versions"]["torch"],
        "date": results["date"][:10],
        "peak": results["peak"],
        "measured": rows,
    }


if __name__ == "__main__":
    OUT.write_text(json.dumps(gpu_training(), indent=1) + "\n")
