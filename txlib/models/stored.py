"""Files of a checkpoint: a folder, or a copy of one from the hub, with JSON and tensors, never a pickle."""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from txlib.models.families import Family
from txlib.models.families.family import Shape

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


class PretrainedError(ValueError):
    """A checkpoint cannot be read or written; the message says why and what to do."""


class Weights:
    """The tensors of a folder, read one at a time, under their family's names.

    Args:
        files: closes the files.
    """

    def __init__(self, folder: Path, family: Family, files: ExitStack):
        self.family, self.where = family, folder
        self.stored: dict[str, tuple[Path, str, tuple]] = {}  # name → (file, name in the file, index in the tensor)
        self.handles: dict[Path, Any] = {}
        for path, names in find_shards(folder).items():
            self.handles[path] = handle = files.enter_context(open_safetensors(path))
            inside = set(handle.keys())
            absent = sorted(set(names or ()) - inside)
            if absent:
                raise PretrainedError(f"{path} lacks {absent[0]}, which {INDEX} says is in it; copy it again")
            for name in inside:
                shape = tuple(handle.get_slice(name).get_shape())
                for part, index in (family.parts(name, shape) or {self.renamed(name): ()}).items():
                    self.stored[part] = path, name, index
        self.bare = not any(name.startswith(family.prefix) for name in self.stored)

    def renamed(self, name: str) -> str:
        for old, new in self.family.renamed:
            name = name.replace(old, new)
        return name

    def check(self, expected: Mapping[str, Shape], config: Any) -> None:
        """Compare names and shapes with the model's before its tensors are read.

        Others may only be of the family's other heads, ignored, or equal to the family's constants.

        Args:
            expected: the shape of each tensor of the model.

        Raises:
            PretrainedError: naming tensors that are missing or unknown, then those of another shape.
        """
        others = sorted(self.stored.keys() - expected.keys())
        constants = {name: make(config) for name in others if (make := self.constant(name))}
        missing = sorted(expected.keys() - self.stored.keys())
        unknown = [name for name in others if name not in constants and not self.harmless(name)]
        if missing or unknown:
            problems = [f"lacks {some(missing)}"] if missing else []
            kind = self.family.model_type
            problems += [f"holds {some(unknown)}, which a {kind} of this {CONFIG} does not have"] if unknown else []
            raise PretrainedError(f"{self.where} {' and '.join(problems)}; copy it again, or correct {CONFIG}")
        wrong = [(name, shape) for name, shape in expected.items() if self.shape(name) != shape]
        if wrong:
            name, shape = wrong[0]
            more = f", and so on for {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise PretrainedError(
                f"{self.file(name)}: {name} has shape {self.shape(name)}, {CONFIG} asks for {shape}{more}; correct it"
            )
        for name, constant in constants.items():
            self.check_constant(name, constant)

    def constant(self, name: str) -> Callable[[Any], Tensor] | None:
        """Return what computes the family's constant of this name; None when it is none."""
        constants = self.family.constants.items()
        return next((make for pattern, make in constants if re.fullmatch(pattern, self.full_name(name))), None)

    def harmless(self, name: str) -> bool:
        """Return whether a tensor is ignored, or one of the family's other heads."""
        heads = [re.escape(entry.hf) + r"(\.\w+)?" for entry in self.family.all_names() if "{}" not in entry.hf]
        pattern = "|".join((*heads, *self.family.ignored))
        return bool(re.fullmatch(pattern, name) or re.fullmatch(pattern, self.full_name(name)))

    def full_name(self, name: str) -> str:
        """Return the name in the file of a model with a head."""
        return self.family.prefix + name if self.bare else name

    def shape(self, name: str) -> Shape:
        """Return a tensor's shape without reading it."""
        path, key, index = self.stored[name]
        return tuple(torch.empty(self.handles[path].get_slice(key).get_shape(), device="meta")[index].shape)

    def check_constant(self, name: str, expected: Tensor) -> None:
        """Refuse a constant that differs from the computed one by more than half precision's rounding."""
        stored = self.read(name)
        if stored.shape != expected.shape or not torch.allclose(stored.float(), expected, atol=0.01):
            raise PretrainedError(
                f"{self.file(name)}: {name} is not what a {self.family.model_type} has there by its formula; txlib "
                "cannot use a table of its own"
            )

    def file(self, name: str) -> Path:
        return self.stored[name][0]

    def read(self, name: str) -> Tensor:
        """Return the tensor.

        Raises:
            PretrainedError: when it holds whole numbers.
        """
        path, key, index = self.stored[name]
        handle = self.handles[path]
        tensor = handle.get_slice(key)[index] if index else handle.get_tensor(key)
        if not tensor.is_floating_point():
            raise PretrainedError(
                f"{path}: {name} holds {tensor.dtype}: quantized files are not supported; take the model's files in "
                "float32 or float16"
            )
        return tensor


def find_folder(source: str | Path) -> Path:
    """Return the folder, or a folder with a copy of the hub's model.

    Raises:
        PretrainedError: when there is neither.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.suffix in PICKLES:
        raise pickle_error(path)
    if path.exists():
        raise PretrainedError(f"{path} is a file; give the folder that holds {CONFIG} and {WEIGHTS}")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(source)) or str(source).startswith("."):
        raise PretrainedError(f"{source} is not there; give a folder with {CONFIG} and {WEIGHTS}, or a hub id")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
    except ModuleNotFoundError:
        raise PretrainedError(
            f"{source} is no folder here, and the hub needs huggingface_hub: pip install huggingface_hub"
        ) from None
    wanted = ["*.json", "model*.safetensors", "*.txt", "*.model"]
    try:
        return Path(snapshot_download(str(source), allow_patterns=wanted))
    except GatedRepoError:
        raise PretrainedError(f"{source} asks on the hub for its license to be accepted; do so, and log in") from None
    except RepositoryNotFoundError:
        raise PretrainedError(f"{source} is neither a folder here nor a model on the hub") from None
    except Exception as error:  # versions of the hub's client raise different errors without a network
        raise PretrainedError(
            f"{source} is no folder here, and the hub cannot be reached ({type(error).__name__}): are you offline? "
            "Models fetched before, and folders, work without it"
        ) from None


def find_shards(folder: Path) -> dict[Path, list[str] | None]:
    """Return the files of weights; with an index also the names that each must hold."""
    if (folder / WEIGHTS).is_file():
        return {folder / WEIGHTS: None}
    if not (folder / INDEX).is_file():
        pickles = sorted(path for path in folder.iterdir() if path.suffix in PICKLES)
        if pickles:
            raise pickle_error(pickles[0])
        raise PretrainedError(f"{folder} holds neither {WEIGHTS} nor {INDEX}")
    index = read_json(folder / INDEX).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise PretrainedError(f"{folder / INDEX} has no weight_map; copy it again")
    shards: dict[Path, list[str]] = {}
    for name, shard in index.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise PretrainedError(f"{folder / INDEX} names {shard!r}, which is no safetensors file of this folder")
        shards.setdefault(folder / shard, []).append(name)
    missing = sorted(path.name for path in shards if not path.is_file())
    if missing:
        raise PretrainedError(f"{folder} lacks {some(missing)}, which {INDEX} names; copy it again")
    return {**shards}


def open_safetensors(path: Path):
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        if path.read_bytes()[:2] in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
            raise pickle_error(path) from None
        raise PretrainedError(f"{path} is cut off or damaged ({error}); copy it again") from None


def pickle_error(path: Path) -> PretrainedError:
    return PretrainedError(
        f"{path} is a pickle, which can run anything when it is loaded: txlib reads safetensors only. Convert it where "
        "you trust it: transformers' save_pretrained writes safetensors"
    )


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PretrainedError(f"{path} is missing; give a folder with {CONFIG} and {WEIGHTS}") from None
    except ValueError as error:
        raise PretrainedError(f"{path} is not valid JSON ({error}); copy it again") from None
    if not isinstance(content, dict):
        raise PretrainedError(f"{path} holds a {type(content).__name__}, not an object; copy it again")
    return content


def some(names: list[str]) -> str:
    """Return the first few of a list."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
