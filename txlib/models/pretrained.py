"""Read and write checkpoints as folders in Hugging Face's layout."""

import importlib.util
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from txlib.hints import did_you_mean
from txlib.layers.lora import lora_layers
from txlib.layers.packed import PackedLinear
from txlib.models.families import FAMILIES, TENSORS, Family
from txlib.models.families.family import LAYOUTS
from txlib.models.model import MODELS
from txlib.models.stored import (
    CONFIG,
    WEIGHTS,
    PretrainedError,
    Weights,
    find_folder,
    find_shards,
    open_safetensors,
    read_json,
    some,
)

GENERATION, SEARCH = "generation_config.json", ("bad_words_ids",)

__all__ = ["PretrainedError", "load_pretrained", "save_pretrained"]


def load_pretrained(
    source: str | Path, dtype: torch.dtype | str | None = None, device: torch.device | str | None = None
) -> Any:
    """Return the model in a folder or on the Hugging Face hub, in eval mode.

    Its family is config.json's `model_type`, one of `txlib.models.families.FAMILIES`, such as "llama", or "txlib" for
    txlib's own format, which `save_pretrained` writes; its head is the entry of `architectures`.

    Args:
        source: a folder with config.json and model.safetensors (or its shards), or a hub id such as "gpt2".
        dtype: of the parameters, such as torch.float16 or "float16"; None: as in the file.
        device: of the model; None: the CPU.

    Raises:
        PretrainedError: when something is missing, unknown, of another shape, or a pickle, and when the dtype or the
            device does not exist here.
    """
    needs_safetensors("load_pretrained")
    dtype, device = check_dtype(dtype), check_device(device)
    folder = find_folder(source)
    settings = read_json(folder / CONFIG)
    if (folder / GENERATION).is_file():  # where newer versions of transformers put what a search needs to know
        settings = {name: value for name, value in read_json(folder / GENERATION).items() if name in SEARCH} | settings
    family = find_family(settings, folder)
    with ExitStack() as files:
        weights = Weights(folder, family, files)
        try:
            settings[TENSORS] = weights.stored.keys()
            config, head = family.read(settings), family.head(settings)
            arguments = head.arguments(settings)
            with torch.device("meta"):  # shapes only: memory is taken once, below
                model = head.model(config, **arguments)
        except KeyError as error:
            raise PretrainedError(f"{folder / CONFIG} lacks {error.args[0]}; copy it again") from None
        except (AttributeError, TypeError, ValueError) as error:
            raise PretrainedError(f"{folder / CONFIG}: {error}") from None
        entries = list(family.table(model, bare=weights.bare))
        shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        expected = {
            hf: LAYOUTS[layout].shape([shapes[name] for name in names], config) for hf, layout, names in entries
        }
        weights.check(expected, config)
        model = with_memory(model, lambda: head.model(config, **arguments), device)
        model = model.to(dtype or weights.read(entries[0][0]).dtype)
        parameters = model.state_dict()
        for hf, layout, names in entries:
            fill([parameters[name] for name in names], weights.read(hf), layout, config)
    return model.eval()


def save_pretrained(model: nn.Module, folder: str | Path, model_type: str | None = None) -> None:
    """Write config.json and model.safetensors, which `load_pretrained` reads.

    The format is the first published one that can describe the model, so `transformers` can read it as well; if none
    can, it is txlib's own. Settings that only act while training, such as dropout, are written if the format has an
    entry for them.

    Args:
        model_type: the format, one of `txlib.models.families.FAMILIES`, such as "llama", or "txlib" for txlib's own;
            None chooses it as above.

    Raises:
        PretrainedError: when the format cannot describe the model, or the model's class is not in `MODELS`.
    """
    needs_safetensors("save_pretrained")
    from safetensors.torch import save_file

    if not isinstance(model, nn.Module):
        raise TypeError(f"save_pretrained(model, folder) got {model!r:.80} as the model")
    if any(isinstance(module, PackedLinear) for module in model.modules()):
        raise PretrainedError("packed weights cannot be saved; save the model before pack_weights")
    if lora_layers(model):
        raise PretrainedError("the model has adapters; merge_lora(model) first, or save_adapter(model, folder)")
    family = choose_family(model, model_type)
    settings, folder = family.write(model), Path(folder)
    parameters = model.state_dict()
    _, head = family.head_of(model)
    tensors = {
        hf: joined([parameters[name] for name in names], layout, model.config)
        for hf, layout, names in family.table(model, bare=head.bare)
    }
    settings["dtype"] = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{WEIGHTS}.partial"  # a save that is killed leaves the old file intact
    save_file(tensors, partial, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    shutil.copymode(folder / CONFIG, partial)  # safetensors lets only the owner read
    os.replace(partial, folder / WEIGHTS)


def needs_safetensors(function: str) -> None:
    if importlib.util.find_spec("safetensors") is None:
        raise PretrainedError(f"{function} needs safetensors, which the light core leaves out: pip install safetensors")


def check_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Return the dtype, or the one of that name."""
    result = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is None or (isinstance(result, torch.dtype) and result.is_floating_point):
        return result
    raise PretrainedError(
        f"dtype={dtype!r} is none of float32, float16, bfloat16 and float64; what follows the folder is the dtype, a "
        "device is given as device=…"
    )


def check_device(device: torch.device | str | None) -> torch.device:
    """Return the device, if it is there."""
    try:
        result = torch.device("cpu" if device is None else device)
        torch.empty(0, device=result)
    except (AssertionError, NotImplementedError, RuntimeError):
        here = "cpu" if not torch.accelerator.is_available() else f"cpu and {torch.accelerator.current_accelerator()}"
        raise PretrainedError(f"device={str(device)!r} is not there; this torch finds {here}") from None
    return result


def find_family(settings: dict[str, Any], folder: Path) -> Family:
    """Return the family that a config.json names."""
    kind, quantization = settings.get("model_type"), settings.get("quantization_config")
    if kind not in FAMILIES:
        problem = f"model_type {kind!r} is unknown{did_you_mean(kind, FAMILIES)}" if kind else "model_type is missing"
        raise PretrainedError(f"{folder / CONFIG}: {problem}; {nearest_family(folder)}".replace("?;", "?"))
    if quantization:
        method = quantization.get("quant_method", "by a method of its own")
        raise PretrainedError(
            f"{folder / CONFIG}: the weights are quantized ({method}); take the model's files in bfloat16, float16 or "
            "float32"
        )
    return FAMILIES[kind]


def nearest_family(folder: Path) -> str:
    """Return a sentence about the family whose tensors are the most similar to those of a folder."""
    try:
        with ExitStack() as files:
            names = [
                name
                for path in find_shards(folder)
                for name in list(files.enter_context(open_safetensors(path)).keys())
            ]
    except PretrainedError:
        names = []
    kinds = {pattern_of(name) for name in names}
    tables = {}
    for model_type, family in FAMILIES.items():
        bare = not any(name.startswith(family.prefix) for name in names)
        prefix = family.prefix if bare else ""
        tables[model_type] = {pattern_of(entry.hf.removeprefix(prefix)) for entry in family.all_names()}
    nearest = max(
        tables, key=lambda model_type: len(tables[model_type] & kinds) / len(tables[model_type] | kinds | {""})
    )
    more = sorted(kinds - tables[nearest])
    if not tables[nearest] & kinds:
        return f"txlib reads {', '.join(sorted(FAMILIES))}"
    if not more:
        return f"its tensors are those of {nearest!r}; if it is one, correct model_type"
    return f"of the families that txlib reads, {nearest!r} is the nearest, and lacks {some(more)}"


def pattern_of(name: str) -> str:
    """Return a tensor's name with {} for numbers, without weight or bias at its end."""
    return re.sub(r"\d+", "{}", re.sub(r"[._](weight|bias)$", "", name))


def choose_family(model: nn.Module, model_type: str | None) -> Family:
    """Return the format of this name, or the first that can describe the model."""
    if type(model) not in MODELS.values():
        raise PretrainedError(
            f"save_pretrained knows models that name their config's class, {', '.join(MODELS)}, and not "
            f"{type(model).__module__}.{type(model).__name__}; save its state_dict with safetensors.torch.save_file"
        )
    if model_type is not None and model_type not in FAMILIES:
        raise PretrainedError(f"model_type={model_type!r} is unknown; choose one of {', '.join(FAMILIES)}")
    config: Any = model.config
    try:
        config.to_dict()
    except ValueError as error:
        raise PretrainedError(str(error)) from None
    for family in FAMILIES.values() if model_type is None else [FAMILIES[model_type]]:
        lost = family.loses(model)
        if not lost:
            return family
    raise PretrainedError(f"{family.model_type} cannot say {some(lost)}")


def with_memory(model: nn.Module, make: Callable[[], nn.Module], device: torch.device) -> nn.Module:
    """Move a model from the meta device to real memory; its parameters are not initialized, its constants are."""
    stored = {name for name, value in model.state_dict().items() if value.is_floating_point()}
    constants = [name for name, buffer in model.named_buffers() if name not in stored and buffer.numel()]
    model = model.to_empty(device=device)
    if constants:
        buffers = dict(make().named_buffers())
        for name in constants:
            model.get_buffer(name).copy_(buffers[name])
    return model


@torch.no_grad()
def fill(parameters: list[Tensor], tensor: Tensor, layout: str, config: Any) -> None:
    """Copy a tensor of the file into the parameters that it holds."""
    views = LAYOUTS[layout].views(tensor, [tuple(parameter.shape) for parameter in parameters], config)
    for parameter, view in zip(parameters, views, strict=True):
        parameter.copy_(view.reshape(parameter.shape))


@torch.no_grad()
def joined(parameters: list[Tensor], layout: str, config: Any) -> Tensor:
    """Return the tensor of the file that holds the parameters."""
    shapes = [tuple(parameter.shape) for parameter in parameters]
    tensor = torch.empty(LAYOUTS[layout].shape(shapes, config), dtype=parameters[0].dtype)
    for parameter, view in zip(parameters, LAYOUTS[layout].views(tensor, shapes, config), strict=True):
        view.copy_(parameter.reshape(view.shape))
    return tensor
