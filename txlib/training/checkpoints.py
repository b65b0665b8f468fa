"""Checkpoints: tensors in safetensors, the rest in JSON, written whole or not at all. Nothing is ever unpickled."""

import json
import os
import shutil
from pathlib import Path

from torch import Tensor, nn


class CheckpointError(ValueError):
    """A checkpoint is missing, broken or of another model; the message says which and what to do."""


def write_folder(folder: Path, files: dict[str, dict | dict[str, Tensor]]) -> None:
    """Write files into a new folder that appears only when all are complete.

    Args:
        files: name → content: tensors for names ending in .safetensors, else anything that JSON holds.
    """
    from safetensors.torch import save_file

    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name, content in files.items():
        path = partial / name
        if name.endswith(".safetensors"):
            save_file({key: tensor.detach().cpu().contiguous() for key, tensor in content.items()}, path)
        else:
            path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(partial, folder)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Raises:
        CheckpointError: when it is missing or broken.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise CheckpointError(f"{path} is missing; train first, or give the folder of a finished run")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is broken ({error}); it was cut off or changed: delete it and use another") from None


def read_json(path: Path) -> dict:
    """The content of a JSON file.

    Raises:
        CheckpointError: when it is missing or broken.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; train first, or give the folder of a finished run")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON ({error}); it was cut off or changed: use another copy") from None


def load_weights(model: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Put tensors into a model, all of them and no others.

    Raises:
        CheckpointError: naming what is missing, left over, or of another shape.
    """
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    persistent = model.state_dict().keys()
    missing, extra = sorted(persistent - tensors.keys()), sorted(tensors.keys() - persistent)
    if missing or extra:
        raise CheckpointError(f"{where} is of another model: missing {missing[:3]}, left over {extra[:3]}")
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise CheckpointError(
                f"{where}: {name} has shape {tuple(tensor.shape)}, the model's is {tuple(own[name].shape)}; "
                "give the config that it was trained with"
            )
    model.load_state_dict(tensors)


class Checkpoints:
    """A folder of numbered checkpoints, of which the last few are kept.

    Args:
        folder: holds one folder `step-00001234` for each.
        keep: how many.
    """

    def __init__(self, folder: Path, keep: int = 2):
        self.folder, self.keep = Path(folder), keep

    def all(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        return sorted(self.folder.glob("step-*"))

    def save(self, step: int, tensors: dict[str, Tensor], state: dict) -> Path:
        """Write one, then drop those that are too old."""
        path = self.folder / f"step-{step:08}"
        write_folder(path, {"tensors.safetensors": tensors, "state.json": state})
        for old in self.all()[: -self.keep]:
            shutil.rmtree(old)
        return path

    def load(self) -> tuple[dict[str, Tensor], dict]:
        """Tensors and state of the newest.

        Raises:
            CheckpointError: when there is none, or it is broken.
        """
        found = self.all()
        if not found:
            raise CheckpointError(f"{self.folder} holds no checkpoint; start without resume")
        return read_tensors(found[-1] / "tensors.safetensors"), read_json(found[-1] / "state.json")
