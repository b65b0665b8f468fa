"""Files of a checkpoint: a folder, or a copy of one from the hub, with JSON and tensors, never a pickle."""

import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from txlib.models.families import Family

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

    def check(self, needed: set[str], config: Any) -> None:
        """Refuse missing tensors, and unknown ones: others may only be of the family's other heads, or ignored.

        Raises:
            PretrainedError: naming tensors that are missing, unknown, or differ from the family's constants.
        """
        missing = sorted(needed - self.stored.keys())
        if missing:
            raise PretrainedError(f"{self.where} lacks {some(missing)}; copy it again, or correct {CONFIG}")
        heads = [re.escape(name.hf) + r"(\.\w+)?" for name in self.family.all_names() if "{}" not in name.hf]
        harmless = re.compile("|".join((*heads, *self.family.ignored)))
        unknown = []
        for name in sorted(self.stored.keys() - needed):
            full_name = self.family.prefix + name if self.bare else name
            constants = self.family.constants.items()
            constant = next((make for pattern, make in constants if re.fullmatch(pattern, full_name)), None)
            if constant is not None:
                self.check_constant(name, constant(config))
            elif not harmless.fullmatch(name) and not harmless.fullmatch(full_name):
                unknown.append(name)
        if unknown:
            raise PretrainedError(
                f"{self.where} holds {some(unknown)}, which a {self.family.model_type} of this {CONFIG} does not have"
            )

    def check_shape(self, name: str, expected: tuple[int, ...]) -> None:
        """Refuse a tensor of another shape than the config's.

        Raises:
            PretrainedError: with both.
        """
        path, key, index = self.stored[name]
        shape = tuple(torch.empty(self.handles[path].get_slice(key).get_shape(), device="meta")[index].shape)
        if shape != expected:
            raise PretrainedError(f"{path}: {name} has shape {shape}, {CONFIG} asks for {expected}; correct it")

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
