"""Read and write checkpoints as folders in Hugging Face's layout."""

import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from txlib.layers.packed import PackedLinear
from txlib.models.families import FAMILIES, TENSORS, Family
from txlib.models.model import MODELS
from txlib.models.stored import CONFIG, WEIGHTS, PretrainedError, Weights, find_folder, read_json, some

GENERATION, SEARCH = "generation_config.json", ("bad_words_ids",)

__all__ = ["PretrainedError", "load_pretrained", "save_pretrained"]


def load_pretrained(
    source: str | Path, dtype: torch.dtype | str | None = None, device: torch.device | str | None = None
) -> nn.Module:
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
    family = find_family(settings, folder / CONFIG)
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
        weights.check({name for name, _, _ in entries}, config)
        model = with_memory(model, lambda: head.model(config, **arguments), device)
        model = model.to(dtype or weights.read(entries[0][0]).dtype)
        parameters = model.state_dict()
        for hf, layout, names in entries:
            fill([parameters[name] for name in names], weights.read(hf), layout, f"{weights.file(hf)}: {hf}")
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

    if any(isinstance(module, PackedLinear) for module in model.modules()):
        raise PretrainedError("packed weights cannot be saved; save the model before pack_weights")
    family = choose_family(model, model_type)
    settings, folder = family.write(model), Path(folder)
    parameters = model.state_dict()
    _, head = family.head_of(model)
    tensors = {
        hf: joined([parameters[name] for name in names], layout)
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


def find_family(settings: dict[str, Any], where: Path) -> Family:
    """Return the family that a config.json names."""
    kind = settings.get("model_type")
    if kind not in FAMILIES:
        problem = f"model_type {kind!r} is unknown" if kind else "model_type is missing"
        raise PretrainedError(f"{where}: {problem}; txlib reads {', '.join(sorted(FAMILIES))}")
    return FAMILIES[kind]


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
def fill(parameters: list[Tensor], tensor: Tensor, layout: str | int, name: str) -> None:
    """Copy a tensor of the file into the parameters that it holds."""
    lengths, groups = [len(parameter) for parameter in parameters], layout if isinstance(layout, int) else 1
    shape = (sum(lengths), *parameters[0].shape[1:])
    expected = shape[::-1] if layout == "transposed" else (1, *shape) if layout == "row" else shape
    if tuple(tensor.shape) != expected:
        raise PretrainedError(f"{name} has shape {tuple(tensor.shape)}, {CONFIG} asks for {expected}; correct it")
    if layout == "transposed":
        tensor = tensor.t()  # which leaves vectors as they are
    elif layout == "row":
        tensor = tensor[0]
    sizes = [length // groups for length in lengths]  # of each parameter's part in a group
    parts = tensor.unflatten(0, (groups, sum(sizes))).split(sizes, dim=1)
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.copy_(part.flatten(0, 1))


def joined(parameters: list[Tensor], layout: str | int) -> Tensor:
    """Return the tensor in the file's layout."""
    groups = layout if isinstance(layout, int) else 1
    parts = [parameter.unflatten(0, (groups, len(parameter) // groups)) for parameter in parameters]
    tensor = torch.cat(parts, dim=1).flatten(0, 1)
    if layout == "transposed":
        tensor = tensor.t()
    return (tensor[None] if layout == "row" else tensor).cpu().contiguous()
