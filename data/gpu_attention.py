"""Write gpu_attention.json: how fast three attention kernels are on a GPU, for lesson 34.

    python data/gpu_attention.py

It copies them from benchmarks/results/gpu_attention.json, which `python benchmarks/gpu.py attention --save` writes.
"""

import json
from pathlib import Path
from typing import Any

OUT = Path(__file__).with_suffix(".json")
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "gpu_attention.json"
PEERS = {"torch's flash": "torch", "FlexAttention": "FlexAttention"}


def speeds() -> dict[str, Any]:
    """Return the GPU, its peak, and mask → length → kernel → TFLOP/s, forward, for heads that are 64 wide."""
    result = json.loads(RESULTS.read_text())
    by_mask: dict[str, dict[str, dict[str, float]]] = {}
    for row in result["rows"]:
        mask, length, *rest, peer = row["what"].split(", ")
        if rest == ["width 64", "forward"] and row["unit"] == "TFLOP/s":
            kernels = by_mask.setdefault(mask, {}).setdefault(length.removeprefix("n "), {})
            kernels |= {"ours": round(row["ours"], 1), PEERS[peer]: round(row["peer"], 1)}
    peak = result["peak"] / 1e12
    return {"device": result["device"], "date": result["date"][:10], "peak": peak, "TFLOP/s": by_mask}


if __name__ == "__main__":
    OUT.write_text(json.dumps(speeds(), indent=1) + "\n")
