"""What the scripts that train the bundled models have in common."""

import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

CHECKPOINTS = Path(__file__).parent / "checkpoints"
RUNS = Path(__file__).parents[1] / "runs"


def bundle(out: Path) -> None:
    """Copy a run's model to the bundled ones, with its weights in half precision."""
    shutil.copytree(out / "model", CHECKPOINTS / out.name, dirs_exist_ok=True)
    weights = CHECKPOINTS / out.name / "model.safetensors"
    save_file({name: weight.half() for name, weight in load_file(weights).items()}, weights, {"format": "pt"})
