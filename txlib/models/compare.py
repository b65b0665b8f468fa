"""Run a checkpoint here and in `transformers` on the same input, and find the first layer that differs."""

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from txlib.layers.norm import LayerNorm, RMSNorm
from txlib.models.bert import BertForMultipleChoice
from txlib.models.families import OWN, Family
from txlib.models.families.family import LAYOUTS
from txlib.models.pretrained import find_family, joined, load_pretrained
from txlib.models.stored import CONFIG, PretrainedError, find_folder, read_json

PLAIN = nn.Linear, nn.Conv2d, LayerNorm, RMSNorm  # layers whose input and output are the same in both libraries
PLAIN_THERE = re.compile("Linear|Conv|Norm")  # the same in transformers, by the name of the class


@dataclass(frozen=True)
class Difference:
    """How far the values of one place in a model are from those of `transformers`.

    Args:
        layer, theirs: name of the layer here and there; theirs is None where there is no counterpart.
        largest: the largest difference of two entries.
        scale: the largest entry there.
    """

    layer: str
    theirs: str | None
    largest: float
    scale: float

    @property
    def relative(self) -> float:
        """The largest difference, as a part of the largest entry."""
        return self.largest / self.scale if self.scale else self.largest

    def __str__(self) -> str:
        return f"{self.largest:.2g}, of values up to {self.scale:.3g}"


@dataclass(frozen=True)
class Comparison:
    """What `compare_pretrained` found; printed, it is a table.

    Args:
        layers: each layer's output, in the order in which they run, then the model's outputs.
        tolerance: the largest relative difference that counts as rounding.
        first: the first layer that differs; None: all agree.
        reason: what differs within that layer.
        tensors: names of that layer's tensors, as in the file, whose loaded values differ.
    """

    layers: tuple[Difference, ...]
    tolerance: float
    first: Difference | None = None
    reason: str = ""
    tensors: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = [("layer", "in transformers", "difference", "of up to")]
        rows += [(row.layer, row.theirs or "", f"{row.largest:.1e}", f"{row.scale:.3g}") for row in self.layers]
        widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
        lines = [
            f"{layer:<{widths[0]}}  {theirs:<{widths[1]}}  {largest:>{widths[2]}}  {scale:>{widths[3]}}"
            for layer, theirs, largest, scale in rows
        ]
        if self.first is None:
            verdict = f"All layers agree: no difference above {self.tolerance:g} of the largest value."
        else:
            verdict = f"The first layer that differs is {self.first.layer}, by {self.first}: {self.reason}."
        return "\n".join([*lines, "", verdict])


def compare_pretrained(source: str | Path, *, tokens: int = 16, tolerance: float = 1e-4, seed: int = 0) -> Comparison:
    """Run a checkpoint in `transformers` and in txlib on one random input, in float32.

    Layers are matched by the tensors' names in the family's table, so a new family needs nothing else.

    Args:
        source: a folder or a hub id, as for `load_pretrained`.
        tokens: length of the text; pictures have the size that the model takes.
        tolerance: the largest difference that counts as rounding, as a part of the layer's largest value.
        seed: of the input.

    Raises:
        PretrainedError: when the checkpoint cannot be loaded here or there, and without `transformers`.
        ValueError: for fewer than four tokens.
    """
    if tokens < 4:
        raise ValueError(f"tokens={tokens} is too short a text; give at least 4")
    folder = find_folder(source)
    family = find_family(read_json(folder / CONFIG), folder)
    if family is OWN:
        raise PretrainedError(f"{folder} is in txlib's own format, which transformers does not read")
    ours = load_pretrained(folder, torch.float32)
    inputs = make_inputs(ours, tokens, seed)
    with quiet_transformers() as transformers, torch.no_grad():
        theirs = load_theirs(transformers, folder, family)
        matched = Matched(family, ours, theirs)
        with recorded(ours, matched.modules) as here:
            mine: Any = ours(**inputs)
        with recorded(theirs, {name for name, _ in matched.modules.values()}) as there:
            other: Any = theirs(**inputs)
    outputs = [
        distance(value, getattr(other, field), field)
        for field, value in vars(mine).items()
        if isinstance(value, Tensor) and isinstance(getattr(other, field, None), Tensor)
    ]
    return matched.compare(here, there, [output for output in outputs if output is not None], tolerance)


@contextmanager
def quiet_transformers() -> Iterator[Any]:
    """Import `transformers`, and hide its warnings and progress bars.

    Raises:
        PretrainedError: when it is not installed.
    """
    try:
        import transformers
    except ModuleNotFoundError:
        raise PretrainedError("to compare with transformers, install it: pip install transformers") from None
    logging = transformers.utils.logging
    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()


def load_theirs(transformers: Any, folder: Path, family: Family) -> Any:
    """Return the model in `transformers`, in eval mode, with the plain formula of attention.

    Raises:
        PretrainedError: when it cannot read the folder.
    """
    name = (read_json(folder / CONFIG).get("architectures") or [next(iter(family.heads))])[0]
    kind = getattr(transformers, name, None)
    if kind is None:
        raise PretrainedError(f"transformers {transformers.__version__} has no {name}; install a version that has")
    options = {"dtype": torch.float32, "attn_implementation": "eager", "use_safetensors": True}
    try:
        model = kind.from_pretrained(folder, **options).eval()
    except (OSError, RuntimeError, ValueError) as error:
        raise PretrainedError(f"transformers cannot read {folder}: {str(error).splitlines()[0]}") from None
    model.config.use_cache = False  # Qwen3-Next's cache needs a layer with softmax attention
    return model


def make_inputs(model: Any, tokens: int, seed: int) -> dict[str, Tensor]:
    """Return random inputs for a model: pixels or ids, also for a decoder that reads an encoder."""
    generator, config = torch.Generator().manual_seed(seed), model.config
    arguments = inspect.signature(model.forward).parameters
    if "pixel_values" in arguments:
        return {"pixel_values": torch.randn(1, config.channels, *config.sides, generator=generator)}
    shape = (1, 2, tokens) if isinstance(model, BertForMultipleChoice) else (1, tokens)
    names = [name for name in ("input_ids", "decoder_input_ids") if name in arguments]
    inputs = {name: torch.randint(config.vocab_size, shape, generator=generator) for name in names}
    separator = getattr(config, "sep_id", None)
    if separator is not None:  # question, two separators, text, one separator: some heads look for them
        ids = inputs["input_ids"]
        ids[ids == separator] = (separator + 1) % config.vocab_size
        ids[..., [tokens // 2 - 1, tokens // 2, -1]] = separator
    return inputs


class Matched:
    """The modules and tensors of two models that correspond to each other, by the family's table.

    modules: name here → name there, and the columns of its output; layers of a stack, and plain layers within.
    """

    def __init__(self, family: Family, ours: nn.Module, theirs: Any):
        self.modules: dict[str, tuple[str, slice]] = {}
        self.tensors: dict[str, Difference] = {}  # name in the file → difference of the loaded values
        self.blocks: dict[str, str] = {}
        stored, names_there = stored_tensors(theirs)
        parameters = ours.state_dict()
        for hf, layout, names in family.table(ours, bare=False):
            choices = (hf, family.prefix + hf, hf.removeprefix(family.prefix))
            name = next((name for name in choices if name in stored), None)
            if name is None:
                continue
            mine = joined([parameters[name] for name in names], layout, ours.config)
            difference = distance(mine, stored[name], layer_of(names[0]) or "")
            if difference is not None:
                self.tensors[name] = difference
            if name in names_there:
                sizes = [len(parameters[name]) for name in names] if LAYOUTS[layout].consecutive else []
                self.match(ours, theirs, names_there[name], names, sizes)

    def match(self, ours: nn.Module, theirs: nn.Module, name_there: str, names: tuple[str, ...], sizes: list[int]):
        """Match the modules of one tensor, and the layers of the stack that hold them.

        Args:
            sizes: columns of each module's output; none where they lie among those of the others.
        """
        there, start = name_there.rpartition(".")[0], 0
        layer_there = layer_of(name_there)
        for name, size in zip(names, sizes or [0] * len(names), strict=True):
            here, layer = name.rpartition(".")[0], layer_of(name)
            if layer is not None and layer_there is not None:
                self.blocks[layer] = layer_there
                self.modules[layer] = layer_there, slice(None)
            alike = isinstance(ours.get_submodule(here), PLAIN)
            if alike and sizes and PLAIN_THERE.search(type(theirs.get_submodule(there)).__name__):
                self.modules[here] = there, slice(None) if len(names) == 1 else slice(start, start + size)
            start += size

    def compare(self, here: "Recording", there: "Recording", outputs: list[Difference], tolerance: float) -> Comparison:
        """Return the comparison of two recordings."""
        layers: dict[str, Difference] = {}
        first, reason, inside, stacks = None, "", [], set()
        for kind, name, call in here.order:
            difference = self.difference(here, there, kind, name, call)
            stack = name.rpartition(".")[0]
            begins = kind == "input" and name in self.blocks and stack not in stacks
            if name in self.blocks:
                stacks.add(stack)
            if difference is None or (kind == "input" and name in self.blocks and not begins):
                continue
            inside.append((kind, name, difference))
            layer = layer_of(name + ".") or name
            if (kind == "output" and (name in self.blocks or layer not in self.blocks)) or begins:
                row = Difference(
                    f"input of {name}" if begins else layer, difference.theirs, difference.largest, difference.scale
                )
                if row.layer not in layers or row.relative > layers[row.layer].relative:
                    layers[row.layer] = row
                if first is None and differs(row, tolerance):
                    first, reason = row, explain(inside, tolerance)
                inside = []
        for row in outputs:
            layers[row.layer] = row
            if first is None and differs(row, tolerance):
                first, reason = row, "all layers before it agree"
        tensors = () if first is None else self.changed(first.layer, tolerance)
        if tensors:
            reason += f"; its tensor {tensors[0]} differs by {self.tensors[tensors[0]]}"
        elif first is not None:
            reason += "; its tensors are equal"
        return Comparison(tuple(layers.values()), tolerance, first, reason, tensors)

    def difference(self, here: "Recording", there: "Recording", kind: str, name: str, call: int) -> Difference | None:
        """Return the difference of the input or output of one call; None where there is nothing to compare."""
        name_there, columns = self.modules[name]
        values = there.values.get((kind, name_there), [])
        if call >= len(values):
            return None
        other = values[call][..., columns] if kind == "output" else values[call]
        return distance(here.values[kind, name][call], other, name, name_there)

    def changed(self, layer: str, tolerance: float) -> tuple[str, ...]:
        """Return the names of a layer's tensors that differ; outside of stacks, of all tensors outside of them."""
        wanted = layer if layer in self.blocks or layer_of(layer + ".") == layer else ""
        return tuple(
            name
            for name, difference in self.tensors.items()
            if difference.layer == wanted and differs(difference, tolerance)
        )


@dataclass(frozen=True)
class Recording:
    """Inputs and outputs of modules while a model runs.

    order: "input" or "output", the module's name, and the number of the call. values: by the first two.
    """

    order: list[tuple[str, str, int]]
    values: dict[tuple[str, str], list[Tensor]]


@contextmanager
def recorded(model: nn.Module, names: Any) -> Iterator[Recording]:
    """Record modules of these names."""
    recording = Recording([], {})

    def record(kind: str, name: str, values: Any) -> None:
        tensors = (value for value in tree_leaves(values) if isinstance(value, Tensor) and value.is_floating_point())
        tensor = next(tensors, None)
        if tensor is not None:
            calls = recording.values.setdefault((kind, name), [])
            recording.order.append((kind, name, len(calls)))
            calls.append(tensor.detach().clone())

    handles = []
    for name in names:
        module = model.get_submodule(name)
        handles += [
            module.register_forward_pre_hook(
                lambda module, args, kwargs, name=name: record("input", name, (args, kwargs)), with_kwargs=True
            ),
            module.register_forward_hook(lambda module, args, output, name=name: record("output", name, output)),
        ]
    try:
        yield recording
    finally:
        for handle in handles:
            handle.remove()


def stored_tensors(model: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a model of `transformers` under their names in its file, and the names in memory of those
    that the file stores as they are.
    """
    from transformers.core_model_loading import revert_weight_conversion

    tensors = model.state_dict()
    names = {tensor.data_ptr(): name for name, tensor in reversed(tensors.items())}
    stored = revert_weight_conversion(model, dict(tensors))
    in_memory = {name: names[tensor.data_ptr()] for name, tensor in stored.items() if tensor.data_ptr() in names}
    same_shape = {name: there for name, there in in_memory.items() if stored[name].shape == tensors[there].shape}
    return stored, same_shape


def layer_of(name: str) -> str | None:
    """Return the layer of a stack that a tensor belongs to: its name up to the first number; None outside of stacks."""
    match = re.match(r"(.*?\.\d+)\.", name)
    return match[1] if match else None


def distance(ours: Tensor, theirs: Tensor, name: str, name_there: str | None = None) -> Difference | None:
    """Return how far two tensors are apart; None when their shapes do not correspond.

    Axes of length 1, the order of the first two axes, and padding of theirs at the end are ignored.
    """
    ours, theirs = ours.squeeze(), theirs.squeeze()
    choices = [theirs, theirs.transpose(0, 1)] if theirs.dim() > 2 else [theirs]
    choices = [choice[: len(ours)] if choice.dim() and ours.dim() else choice for choice in choices]
    differences = [
        Difference(name, name_there, float((ours - choice).abs().max()), float(choice.abs().max()))
        for choice in choices
        if choice.shape == ours.shape and choice.numel()
    ]
    return min(differences, key=lambda difference: difference.largest, default=None)


def differs(difference: Difference, tolerance: float) -> bool:
    return not difference.relative <= tolerance  # also where it is not a number


def explain(inside: list[tuple[str, str, Difference]], tolerance: float) -> str:
    """Return what differs first, among inputs and outputs in the order in which they were computed."""
    agreed = None
    for kind, name, difference in inside:
        if differs(difference, tolerance):
            break
        agreed = kind, name
    if agreed == ("input", name):
        return f"{name} gets the same input and gives another output"
    return f"the {kind} of {name} differs" + ("" if agreed is None else f", the {agreed[0]} of {agreed[1]} agrees")
