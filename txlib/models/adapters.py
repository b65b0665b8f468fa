"""Adapters in files of their own, in peft's format: `adapter_config.json` and `adapter_model.safetensors`."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from txlib.hints import did_you_mean
from txlib.layers import LoRAConfig, add_lora, lora_layers
from txlib.models.model import Model
from txlib.models.pretrained import choose_family, needs_safetensors
from txlib.models.stored import PretrainedError, find_folder, open_safetensors, read_json, some

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # peft's, before the layer's name in the base model
UNSUPPORTED: dict[str, tuple[Any, ...]] = {  # entries of adapter_config.json, with the values that need nothing of us
    "use_dora": (False, None),
    "use_rslora": (False, None),
    "bias": ("none",),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "layer_replication": (None,),
    "init_lora_weights": (True, False, "gaussian"),  # others change the base model's weights
}


def save_adapter(model: Model, folder: str | Path, base: str | None = None) -> None:
    """Write the adapters of a model, without its other weights, in peft's format.

    Layers get the names that they have in the model's published family, so `peft` can read the folder for the same
    model in `transformers`. A model of txlib's own format keeps txlib's names.

    Args:
        base: name or folder of the base model, for readers of the file.

    Raises:
        ValueError: when the model has no adapters.
        PretrainedError: when the family keeps an adapted layer's weight together with others in one tensor.
    """
    needs_safetensors("save_adapter")
    from safetensors.torch import save_file

    adapted = lora_layers(model)
    if not adapted:
        raise ValueError("the model has no adapters to save; add_lora(model, …) gives it some")
    names = layer_names(model)
    if missing := sorted(adapted.keys() - names.keys()):
        raise PretrainedError(
            f"{missing[0]} shares a tensor with other layers in this model's family, and an adapter can't be a part of "
            "one; merge_lora(model), then save_pretrained"
        )
    first = next(iter(adapted.values()))
    settings = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base,
        "r": first.rank,
        "lora_alpha": first.alpha,
        "lora_dropout": first.dropout.p,
        "target_modules": sorted(names[name][0] for name in adapted),
        "fan_in_fan_out": any(names[name][1] == "transposed" for name in adapted),
        "bias": "none",
        "inference_mode": True,
    }
    tensors = {
        f"{PREFIX}{names[name][0]}.lora_{part}.weight": getattr(layer, f"lora_{part}").detach().contiguous()
        for name, layer in adapted.items()
        for part in "AB"
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    (folder / ADAPTER_CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def load_adapter(model: Model, source: str | Path) -> Model:
    """Give a model the adapters of a folder, or of a hub id, which `save_adapter` or `peft` wrote.

    Args:
        model: the base model; it is changed in place, as by `add_lora`.

    Returns:
        the same model.

    Raises:
        PretrainedError: when the folder has another kind of adapter, or one for another base: layers or shapes that the
            model doesn't have. The model is unchanged then.
    """
    needs_safetensors("load_adapter")
    folder = find_folder(source)
    settings = read_json(folder / ADAPTER_CONFIG)
    check_settings(settings, folder)
    ours = {theirs: name for name, (theirs, _) in layer_names(model).items()}
    layers = dict(model.named_modules())
    with ExitStack() as files:
        handle: Any = files.enter_context(open_safetensors(folder / ADAPTER_WEIGHTS))
        tensors = {name: handle.get_tensor(name) for name in set(handle.keys())}
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        layer, _, part = name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".lora_")
        if part not in ("A", "B") or layer not in ours:
            hint = did_you_mean(layer, ours) or f"; it has {some(sorted(ours))}"
            raise PretrainedError(f"{folder} adapts {layer or name}, which the model doesn't have{hint}")
        found.setdefault(ours[layer], {})[part] = tensor
    for name, parts in found.items():
        layer = layers[name]
        expected = {"A": (settings["r"], layer.in_features), "B": (layer.out_features, settings["r"])}
        shapes = {part: tuple(tensor.shape) for part, tensor in parts.items()}
        if shapes != expected:
            raise PretrainedError(
                f"{folder} is for another base: its adapter of {name} has shapes {shapes}, this model needs {expected}"
            )
    if not found:
        raise PretrainedError(f"{folder / ADAPTER_WEIGHTS} holds no adapter; copy it again")
    add_lora(model, LoRAConfig(settings["r"], settings["lora_alpha"], tuple(found), settings.get("lora_dropout", 0.0)))
    with torch.no_grad():
        for name, layer in lora_layers(model).items():
            layer.lora_A.copy_(found[name]["A"])
            layer.lora_B.copy_(found[name]["B"])
    return model


def check_settings(settings: dict[str, Any], folder: Path) -> None:
    """Refuse an adapter of another kind.

    Raises:
        PretrainedError: naming the entry.
    """
    path = folder / ADAPTER_CONFIG
    if settings.get("peft_type") != "LORA":
        raise PretrainedError(f"{path}: peft_type={settings.get('peft_type')!r} is not supported, only 'LORA'")
    for name in ("r", "lora_alpha"):
        if name not in settings:
            raise PretrainedError(f"{path} lacks {name}; copy it again")
    for name, values in UNSUPPORTED.items():
        if settings.get(name, values[0]) not in values:
            raise PretrainedError(f"{path}: {name}={settings[name]!r} is not supported, only {values[0]!r}")


def layer_names(model: Model) -> dict[str, tuple[str, str]]:
    """Return name and layout of each linear layer that has a tensor of its own in the files of the model's family."""
    with torch.device("meta"):
        plain = type(model)(model.config, **model.arguments())  # without adapters
    family = choose_family(plain, None)
    _, head = family.head_of(plain)

    def names() -> Iterator[tuple[str, tuple[str, str]]]:
        for theirs, layout, parameters in family.table(plain, bare=head.bare):
            if len(parameters) == 1 and theirs.endswith(".weight"):
                yield parameters[0].removesuffix(".weight"), (theirs.removesuffix(".weight"), layout)

    linear = {name for name, layer in plain.named_modules() if isinstance(layer, nn.Linear)}
    return {name: entry for name, entry in names() if name in linear}
