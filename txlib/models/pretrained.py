"""Real checkpoints: read and write folders as Hugging Face lays them out. Never a pickle."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from txlib.layers.packed import PackedLinear
from txlib.models.bert import Bert, BertConfig
from txlib.models.families import FAMILIES, Family, Name
from txlib.models.gpt import GPTConfig
from txlib.models.stack import ModelConfig

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TRAINING_ONLY = (
    "dropout",
    "attention_dropout",
    "embedding_dropout",
    "classifier_dropout",
    "init_std",
    "zero_output",
    "balance",
    "jitter",
)
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


class PretrainedError(ValueError):
    """A checkpoint cannot be read or written; the message says why and what to do."""


def load_pretrained(
    source: str | Path, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> nn.Module:
    """The model in a folder or on the Hugging Face hub, ready to use (in eval mode).

    Its family is config.json's `model_type`: gpt2, llama, mixtral, bert or marian; its head is the entry of
    `architectures`.

    Args:
        source: a folder with config.json and model.safetensors (or its shards), or a hub id such as "gpt2".
        dtype: of the parameters; as in the file unless given.
        device: where the model goes; the CPU unless given.

    Raises:
        PretrainedError: when something is missing, unknown, of another shape, or a pickle.
    """
    folder = find_folder(source)
    settings = read_json(folder / CONFIG)
    family = find_family(settings, folder / CONFIG)
    with ExitStack() as files:
        weights = Weights(folder, family, files)
        try:
            config = family.read(settings)
            with torch.device("meta"):  # shapes only: memory is taken once, below
                model = find_head(family, settings)(config, settings)
        except KeyError as error:
            raise PretrainedError(f"{folder / CONFIG} lacks {error.args[0]}; copy it again") from None
        except (TypeError, ValueError) as error:
            raise PretrainedError(f"{folder / CONFIG}: {error}") from None
        entries = list(table(model, family, bare=weights.bare))
        weights.check({name for name, _, _ in entries})
        model = model.to(dtype or weights.read(entries[0][0]).dtype).to_empty(device=device or "cpu")
        parameters = model.state_dict()
        for theirs, layout, ours in entries:
            fill([parameters[name] for name in ours], weights.read(theirs), layout, f"{weights.file(theirs)}: {theirs}")
    return model.eval()


def save_pretrained(model: nn.Module, folder: str | Path) -> None:
    """Write config.json and model.safetensors, which `load_pretrained` and `transformers` read.

    What only acts while training, such as dropout, is written where the format has a place for it.

    Raises:
        PretrainedError: when no family of `transformers` can say what the model is made of.
    """
    from safetensors.torch import save_file

    if any(isinstance(module, PackedLinear) for module in model.modules()):
        raise PretrainedError("packed weights cannot be saved; save the model before pack_weights")
    folder, family = Path(folder), family_of(model)
    settings = {"model_type": family.model_type, **family.write(model)}
    said, meant = (settings_that_count(config) for config in (family.read(settings), model.config))
    lost = [f"{name}={value!r}" for name, value in meant.items() if said.get(name) != value]
    if lost:
        raise PretrainedError(f"{family.model_type}, the nearest of transformers' formats, cannot say {some(lost)}")
    parameters = model.state_dict()
    tensors = {
        theirs: joined([parameters[name] for name in ours], layout)
        for theirs, layout, ours in table(model, family, bare=isinstance(model, Bert))
    }
    settings["dtype"] = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{WEIGHTS}.partial"  # a save that is killed leaves the old file whole
    save_file(tensors, partial, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    shutil.copymode(folder / CONFIG, partial)  # safetensors lets only the owner read
    os.replace(partial, folder / WEIGHTS)


class Weights:
    """The tensors of a folder, read one at a time.

    Args:
        files: keeps the files open.
    """

    def __init__(self, folder: Path, family: Family, files: ExitStack):
        self.family, self.where, self.stored = family, folder, {}  # name → (file, name in the file)
        self.handles: dict[Path, Any] = {}
        for path, names in find_shards(folder).items():
            self.handles[path] = handle = files.enter_context(open_safetensors(path))
            inside = set(handle.keys())
            absent = sorted(set(names or ()) - inside)
            if absent:
                raise PretrainedError(f"{path} lacks {absent[0]}, which {INDEX} says is in it; copy it again")
            for name in inside:
                self.stored[self.renamed(name)] = path, name
        self.bare = not any(name.startswith(family.prefix) for name in self.stored)

    def renamed(self, name: str) -> str:
        for old, new in self.family.renamed:
            name = name.replace(old, new)
        return name

    def check(self, needed: set[str]) -> None:
        """All that is needed must be there. Beyond it, the family's other heads may be, and what it ignores.

        Raises:
            PretrainedError: naming what is missing or unknown.
        """
        missing = sorted(needed - self.stored.keys())
        if missing:
            raise PretrainedError(f"{self.where} lacks {some(missing)}; copy it again, or correct {CONFIG}")
        heads = [re.escape(name.theirs) + r"(\.\w+)?" for name in self.family.names if "{}" not in name.theirs]
        harmless = re.compile("|".join((*heads, *self.family.ignored)))
        extra = sorted(self.stored.keys() - needed)
        unknown = [
            name
            for name in extra
            if not harmless.fullmatch(name) and not (self.bare and harmless.fullmatch(self.family.prefix + name))
        ]
        if unknown:
            raise PretrainedError(
                f"{self.where} holds {some(unknown)}, which a {self.family.model_type} of this {CONFIG} does not have"
            )

    def file(self, name: str) -> Path:
        return self.stored[name][0]

    def read(self, name: str) -> Tensor:
        path, inside = self.stored[name]
        return self.handles[path].get_tensor(inside)


def find_folder(source: str | Path) -> Path:
    """The folder itself, or a hub's model copied to a folder.

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
        raise PretrainedError(f"{source} asks on the hub for its licence to be accepted; do so, and log in") from None
    except RepositoryNotFoundError:
        raise PretrainedError(f"{source} is neither a folder here nor a model on the hub") from None
    except Exception as error:  # each version of the hub's client has its own for "no network"
        raise PretrainedError(
            f"{source} is no folder here, and the hub cannot be reached ({type(error).__name__}): are you offline? "
            "Models fetched before, and folders, work without it"
        ) from None


def find_family(settings: dict[str, Any], where: Path) -> Family:
    """The family that a config.json names."""
    kind = settings.get("model_type")
    if kind not in FAMILIES:
        said = f"model_type {kind!r} is unknown" if kind else "model_type is missing"
        raise PretrainedError(f"{where}: {said}; txlib reads {', '.join(sorted(FAMILIES))}")
    return FAMILIES[kind]


def find_head(family: Family, settings: dict[str, Any]):
    """What makes the model that `architectures` names."""
    architecture = (settings.get("architectures") or [next(iter(family.heads))])[0]
    if architecture not in family.heads:
        raise ValueError(f"architecture {architecture!r} is unknown; txlib has {', '.join(family.heads)}")
    return family.heads[architecture]


def find_shards(folder: Path) -> dict[Path, list[str] | None]:
    """Files of weights; with an index also the names that each must hold."""
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
    shards: dict[Path, list[str] | None] = {}
    for name, shard in index.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise PretrainedError(f"{folder / INDEX} names {shard!r}, which is no safetensors file of this folder")
        shards.setdefault(folder / shard, []).append(name)
    missing = sorted(path.name for path in shards if not path.is_file())
    if missing:
        raise PretrainedError(f"{folder} lacks {some(missing)}, which {INDEX} names; copy it again")
    return shards


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
    """The content of a JSON file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PretrainedError(f"{path} is missing; give a folder with {CONFIG} and {WEIGHTS}") from None
    except ValueError as error:
        raise PretrainedError(f"{path} is not valid JSON ({error}); copy it again") from None
    if not isinstance(content, dict):
        raise PretrainedError(f"{path} holds a {type(content).__name__}, not an object; copy it again")
    return content


def table(model: nn.Module, family: Family, *, bare: bool) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """For each tensor of the file: its name, its layout, and the names of what it fills in the model.

    Args:
        bare: the file holds a base without head, whose names lack the family's prefix.
    """
    entries = {ours: entry for entry in family.names for ours in entry.ours}
    base = "" if not isinstance(model, Bert) else "bert."  # our base's names, as the table has them
    done = set()
    for name in model.state_dict():
        if name in done:
            continue
        layer, _, leaf = (base + name).rpartition(".") if base + name not in entries else (base + name, "", "")
        numbers, pattern = re.findall(r"\d+", layer), re.sub(r"\d+", "{}", layer)
        entry: Name = entries[pattern]
        suffix = f".{leaf}" if leaf else ""
        theirs = entry.theirs.format(*numbers) + suffix
        ours = tuple(each.format(*numbers).removeprefix(base) + (f".{leaf}" if leaf else "") for each in entry.ours)
        done |= set(ours)
        yield theirs.removeprefix(family.prefix) if bare else theirs, entry.layout, ours


@torch.no_grad()
def fill(parameters: list[Tensor], tensor: Tensor, layout: str, name: str) -> None:
    """Copy a tensor of the file into what it holds."""
    if not tensor.is_floating_point():
        raise PretrainedError(f"{name} holds {tensor.dtype}: quantised files are not supported")
    rest = parameters[0].shape[1:]
    ours = (sum(len(each) for each in parameters), *rest)
    expected = {"same": ours, "transposed": ours[::-1], "row": (1, *ours)}[layout]
    if tuple(tensor.shape) != expected:
        raise PretrainedError(f"{name} has shape {tuple(tensor.shape)}, {CONFIG} asks for {expected}; correct it")
    if layout != "same":
        tensor = tensor.t() if layout == "transposed" else tensor[0]  # t() leaves vectors as they are
    for parameter, part in zip(parameters, tensor.split([len(each) for each in parameters]), strict=True):
        parameter.copy_(part)


def joined(parameters: list[Tensor], layout: str) -> Tensor:
    """The tensor as the file holds it."""
    tensor = torch.cat(parameters) if len(parameters) > 1 else parameters[0]
    if layout != "same":
        tensor = tensor.t() if layout == "transposed" else tensor[None]
    return tensor.cpu().contiguous()


def family_of(model: nn.Module) -> Family:
    """The family in whose format a model can be written."""
    config = getattr(model, "config", None)
    if isinstance(config, BertConfig):
        return FAMILIES["bert"]
    if isinstance(config, GPTConfig):
        if config.block.norm == "layer":
            return FAMILIES["gpt2"]
        return FAMILIES["llama" if config.block.ffn is None else "mixtral"]
    return FAMILIES["marian"]


def settings_that_count(config: ModelConfig) -> dict[str, Any]:
    """What makes two configs give the same outputs: None for what follows from the rest, nothing for training only."""
    values = flat(asdict(config))
    for name, default in ("block.kv_heads", "block.heads"), ("block.attention_bias", "block.bias"):
        if values[name] == values[default]:
            values[name] = None
    return {name: value for name, value in values.items() if name.rpartition(".")[2] not in TRAINING_ONLY}


def flat(values: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Nested dictionaries as one."""
    result = {}
    for name, value in values.items():
        result |= flat(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: value}
    return result


def some(names: list[str]) -> str:
    """The first few of a list."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
