"""torch's functions and operators, and the ways to call each with given tensors and numbers."""

import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

MOST_ORDERS = 30  # of the tensors, for one callable
MOST_SETTINGS = 30  # choices of all other parameters, for one callable
RANK = 4  # axes that torch's fused attention asks for: batch, heads, positions, features

# Left out: what reads files, talks to others, changes torch's settings, draws random numbers, returns what memory
# happened to hold, loads a compiler, or crashes; duplicates; and polynomials that no learner writes.
STARTS = (
    *(
        "compile",
        "cuda",
        "cudnn",
        "empty",
        "fbgemm",
        "fork",
        "from_file",
        "get_",
        "has_",
        "import_",
        "init",
        "is_",
        "load",
    ),
    *("manual_seed", "miopen", "mkldnn", "mps", "new_empty", "pin_memory", "record", "resize", "save", "seed", "set_"),
    *("share", "sym_", "use_", "wait", "fused_adam", "fused_sgd", "backward$", "data$", "vmap$"),
)
PARTS = (
    *("_foreach_", "_mps", "_quant_", "airy_ai", "assert", "autocast", "batch_norm_no_update", "bernoulli", "bessel"),
    *(
        "cond$",
        "debug",
        "dim_order",
        "dropout",
        "fake",
        "fft_r2c",
        "functional_sym",
        "gru_cell",
        "hook",
        "int4pack",
        "lobpcg",
    ),
    *(
        "lstm_cell",
        "multinomial",
        "native_batch_norm",
        "nested",
        "normal_",
        "pdist_backward",
        "polynomial",
        "print",
        "qparams",
        "quantiz",
    ),
    *("rand", "remove_batch_dim", "same_feature_meta", "sparse", "unravel_index", "weight_norm", "while_loop"),
    "(?<!index)_copy$",
)
LEFT_OUT = re.compile(rf"_?(?:{'|'.join(STARTS)}).*|.*(?:{'|'.join(PARTS)}).*")
MODULES = ("torch", "torch.nn.functional", "torch.Tensor", "torch.special", "torch.linalg", "torch.fft")
REDUCTIONS = ("sum", "none", "batchmean")

# How a parameter is filled: ("tensor", place), ("number", place), ("value", constant), ("sizes", None): the last axis'
# length as a list, or ("tensors", None): all of them as a list.
Filled = tuple[str, Any]


@dataclass(frozen=True)
class Slot:
    """A parameter. `kind` is Tensor, Tensor[], int, int[], float, number, bool, str or other."""

    name: str
    kind: str
    required: bool
    by_keyword: bool = False
    default: Any = field(default=None, compare=False)


@dataclass(frozen=True)
class TorchCall:
    """A callable of torch's: the names it can be called by, the most usual first, and its parameters."""

    names: tuple[str, ...]
    function: Callable
    slots: tuple[Slot, ...]


@dataclass(frozen=True)
class Filling:
    """A way to call it. With `batched`, axes of length 1 are put in front of the tensors, up to four."""

    parts: tuple[tuple[Slot, Filled], ...]
    batched: bool = False

    def call(self, function: Callable, tensors: Sequence[Tensor], numbers: Sequence[Any]) -> Any:
        """Call the function; the tensors are copies, which it may change."""
        front = RANK - max(tensor.dim() for tensor in tensors) if self.batched else 0
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for slot, (source, content) in self.parts:
            value: Any
            if source == "tensor":
                value = tensors[content].clone()[(None,) * front]
            elif source == "tensors":
                value = [tensor.clone() for tensor in tensors]
            else:
                value = (
                    numbers[content] if source == "number" else [tensors[0].shape[-1]] if source == "sizes" else content
                )
            if slot.by_keyword:
                kwargs[slot.name] = value
            else:
                args.append(value)
        return function(*args, **kwargs)


@cache
def torch_library() -> tuple[TorchCall, ...]:
    """Return all callables that take tensors and change none: functions written in Python, and operators."""
    return (*_functions(), *_operators())


def _functions() -> Iterator[TorchCall]:
    seen = set()
    for module in (torch.nn.functional, torch, torch.Tensor):
        for name, function in sorted(vars(module).items()):
            if not isinstance(function, FunctionType) or function in seen or not _is_tried(name) or name[0] == "_":
                continue
            seen.add(function)
            slots = _slots_of_signature(function)
            if slots and any(slot.kind.startswith("Tensor") for slot in slots):
                yield TorchCall(_public_names(name), function, slots)


def _operators() -> Iterator[TorchCall]:
    for qualified in sorted(torch._C._dispatch_get_all_op_names()):
        space, _, full = qualified.partition("::")
        name, _, overload = full.partition(".")
        if space != "aten" or not _is_tried(name) or "out" in overload.split("_"):
            continue
        function: Any = getattr(getattr(torch.ops.aten, name, None), overload or "default", None)
        schema = getattr(function, "_schema", None)
        if schema is None or schema.is_mutable:
            continue
        slots = tuple(map(_slot_of_schema, schema.arguments))
        if any(slot.kind.startswith("Tensor") for slot in slots):
            yield TorchCall(_public_names(name) or (f"torch.ops.aten.{name}",), function, slots)


def _is_tried(name: str) -> bool:
    return not name.endswith("_") and not LEFT_OUT.fullmatch(name)


def _public_names(name: str) -> tuple[str, ...]:
    """Return a callable's public names: `special_erf` is also torch.special.erf."""
    names = []
    for path in MODULES:
        module: Any = torch
        for part in path.split(".")[1:]:
            module = getattr(module, part)
        for short in (name, name.removeprefix(f"{path.rpartition('.')[2]}_")):
            if callable(getattr(module, short, None)):
                names.append(f"{path}.{short}")
    return tuple(dict.fromkeys(names))


def _slot_of_schema(argument: Any) -> Slot:
    text = str(argument.type)
    optional = text.startswith("Optional[")
    kind = _kind_of(text.removeprefix("Optional[").removesuffix("]") if optional else text)
    if argument.name in ("dtype", "layout", "device", "memory_format", "generator"):
        kind = "other"
    required = not optional and not argument.has_default_value()
    return Slot(argument.name, kind, required, argument.kwarg_only, argument.default_value)


def _kind_of(text: str) -> str:
    lists = {"List[Tensor]": "Tensor[]", "List[int]": "int[]"}
    return lists.get(text, text if text in ("Tensor", "int", "float", "number", "bool", "str") else "other")


def _slots_of_signature(function: Callable) -> tuple[Slot, ...] | None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    slots = []
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        required = parameter.default is parameter.empty
        note = getattr(parameter.annotation, "__name__", None) or str(parameter.annotation)
        note = re.sub(r"^(typing\.)?Optional\[(.*)\]$| \| None$", r"\2", str(note)).replace("torch.", "")
        kind = {"list[int]": "int[]", "List[int]": "int[]"}.get(note, _kind_of(note))
        if kind == "other":  # not annotated
            guess = type(parameter.default).__name__
            kind = "Tensor" if required else guess if guess in ("bool", "int", "float", "str") else "other"
        default = None if required else parameter.default
        slots.append(Slot(parameter.name, kind, required, parameter.kind == parameter.KEYWORD_ONLY, default))
    return tuple(slots)


def fillings(call: TorchCall, tensors: Sequence[Tensor], numbers: Sequence[Any]) -> Iterator[Filling]:
    """Yield the ways to call it with some of the tensors, in their own order first, and with the numbers that fit."""
    wide = "attention" in call.names[0] and max(tensor.dim() for tensor in tensors) < RANK
    for parts in _fillings(call.slots, len(tensors), numbers):
        yield Filling(parts)
        if wide:
            yield Filling(parts, batched=True)


def _fillings(slots: Sequence[Slot], count: int, numbers: Sequence[Any]) -> Iterator[tuple]:
    required = [slot for slot in slots if slot.kind == "Tensor" and slot.required]
    optional = [slot for slot in slots if slot.kind == "Tensor" and not slot.required]
    lists = [slot for slot in slots if slot.kind == "Tensor[]"]
    rest = [slot for slot in slots if not slot.kind.startswith("Tensor")]
    settings = list(itertools.islice(_settings(rest, numbers), MOST_SETTINGS))
    for used in range(len(required), len(required) + len(optional) + 1):
        if not used and not lists:
            continue
        chosen = [*required, *optional[: used - len(required)]]
        for order in itertools.islice(_orders(count, used), MOST_ORDERS):
            filled: dict[Slot, Filled] = {slot: ("tensor", index) for slot, index in zip(chosen, order, strict=True)}
            filled |= {slot: ("tensors", None) for slot in lists}
            for setting in settings:
                yield _in_order(slots, filled | setting)


def _in_order(slots: Sequence[Slot], filled: dict[Slot, Filled]) -> tuple:
    """Return the parts in the order of the parameters; those omitted before a positional one get their default."""
    last = max((index for index, slot in enumerate(slots) if slot in filled and not slot.by_keyword), default=-1)
    return tuple(
        (slot, filled.get(slot, ("value", slot.default)))
        for index, slot in enumerate(slots)
        if slot in filled or (index <= last and not slot.by_keyword)
    )


def _orders(count: int, used: int) -> Iterator[tuple[int, ...]]:
    """Yield places of tensors: in the given order; the last one first; then in any order, and one for all."""
    rotated = (count - 1, *range(count - 1))
    orders = itertools.chain(
        itertools.combinations(range(count), used),
        itertools.combinations(rotated, used),
        itertools.permutations(range(count), used),
        [(0,) * used] if count == 1 < used <= RANK else [],
    )
    yield from dict.fromkeys(itertools.islice(orders, 3 * MOST_ORDERS))


def _settings(slots: Sequence[Slot], numbers: Sequence[Any]) -> Iterator[dict[Slot, Filled]]:
    """Yield choices of all that is no tensor: the first of each, then others for one of them, and for two."""
    options = {slot: choices for slot in slots if (choices := _options(slot, numbers))}
    if any(slot.required and slot not in options for slot in slots):
        return
    first = {slot: choices[0] for slot, choices in options.items()}
    for changed in range(3):
        for slots_changed in itertools.combinations(options, changed):
            for others in itertools.product(*(options[slot][1:] for slot in slots_changed)):
                setting = first | dict(zip(slots_changed, others, strict=True))
                yield {slot: filled for slot, filled in setting.items() if filled is not None}


def _options(slot: Slot, numbers: Sequence[Any]) -> list[Filled | None]:
    """Return what may fill a slot, None for its default."""
    types = {"int": (int,), "float": (float,), "number": (int, float), "bool": (bool,), "int[]": (tuple,)}
    fitting: list[Filled | None] = [
        ("number", index) for index, number in enumerate(numbers) if type(number) in types.get(slot.kind, ())
    ]
    constants: list[Any] = []
    if slot.kind == "bool":
        constants = [False, True]
    elif slot.kind == "int":
        constants = [-1, 0, -2, 1] if "dim" in slot.name or slot.name == "axis" else [0, 1, -1] * slot.required
    elif slot.kind in ("float", "number"):
        constants = [1.0, 0.0, 1e-5] * slot.required
    elif slot.kind == "int[]":
        constants = [[-1], [0], [-2]] if "dim" in slot.name else []
        fitting += [("sizes", None)] if "shape" in slot.name or "size" in slot.name else []
    elif slot.kind == "str" and slot.name == "reduction":
        constants = list(REDUCTIONS)
    return [*([] if slot.required else [None]), *fitting, *(("value", constant) for constant in constants)]
