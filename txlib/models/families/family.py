"""Tables of one Hugging Face `model_type`: its settings, heads and tensors, with the name that each has in txlib."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from txlib.attention.config import decode, write
from txlib.layers import BlockConfig
from txlib.models.stack import ModelConfig

Settings = Mapping[str, Any]  # a config.json; under TENSORS the names of the tensors in its folder
TENSORS = "names of tensors"
REQUIRED = object()
TRAINING_ONLY = (
    "dropout",
    "embedding_dropout",
    "classifier_dropout",
    "init_std",
    "zero_output",
    "balance",
    "jitter",
)


@dataclass(frozen=True)
class Setting:
    """One entry of a config.json, and the field of txlib's config with the same meaning.

    Args:
        hf: name of the entry.
        field: name of the field; dots lead into nested configs: "block.norm.eps".
        default: value of a missing entry, or a function that computes it from the other entries.
        null: whether null is a value; if not, it means that the entry is missing.
        like: another field; where both are equal, this one is None.
        words: Hugging Face's word → txlib's, where they differ.
    """

    hf: str
    field: str
    default: Any = REQUIRED
    null: bool = False
    like: str | None = None
    words: Mapping[Any, Any] | None = None

    def read(self, settings: Settings) -> dict[str, Any]:
        """Return the field's value.

        Raises:
            KeyError: when the entry is missing and has no default.
            ValueError: when the word is unknown.
        """
        value: Any = settings.get(self.hf)
        if value is None and not (self.null and self.hf in settings):
            if self.default is REQUIRED:
                raise KeyError(self.hf)
            value = self.default(settings) if callable(self.default) else self.default
        if self.words is not None and value not in self.words:
            raise ValueError(f"{self.hf}={value!r} is not supported, only {', '.join(map(str, self.words))}")
        return {self.field: value if self.words is None else self.words[value]}

    def write(self, config: ModelConfig) -> dict[str, Any]:
        """Return the entry's value. A value without a word in `words` is written as it is, and `read` refuses it."""
        value = value_of(config, self.field)
        if value is None and self.like is not None:
            value = value_of(config, self.like)
        return {self.hf: next((hf for hf, word in (self.words or {}).items() if word == value), value)}


@dataclass(frozen=True)
class Translation:
    """Entries and fields that do not correspond one to one: a function for each direction."""

    read: Callable[[Settings], dict[str, Any]]
    write: Callable[[Any], dict[str, Any]]


def head_width(hf: str, d_model: str, heads: str, default: int | None = None) -> Translation:
    """Return the translation of a head's width; the arguments are the names of the entries that determine it."""

    def read(settings: Settings) -> dict[str, Any]:
        width = settings.get(hf) or default
        return {"block.attention.head_dim": None if width == settings[d_model] / settings[heads] else width}

    return Translation(read, lambda config: {hf: config.block.head_dim})


Shape = tuple[int, ...]


class Layout:
    """How parameters lie in one tensor of a file: here one after the other along the first axis.

    consecutive: whether each parameter's rows follow each other, so that a layer's output has its columns together.
    """

    consecutive = True

    def shape(self, shapes: list[Shape], config: Any) -> Shape:
        """Return the shape of the tensor that holds parameters of these shapes."""
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def views(self, tensor: Tensor, shapes: list[Shape], config: Any) -> Iterable[Tensor]:
        """Yield the part of the tensor for each parameter, with its numbers in their order."""
        return tensor.split([shape[0] for shape in shapes])


class Transposed(Layout):
    """Matrices stored (in, out)."""

    def shape(self, shapes: list[Shape], config: Any) -> Shape:
        return super().shape(shapes, config)[::-1]

    def views(self, tensor: Tensor, shapes: list[Shape], config: Any) -> Iterable[Tensor]:
        return super().views(tensor.t(), shapes, config)  # t() leaves vectors as they are


class Row(Layout):
    """A vector stored as (1, n)."""

    def shape(self, shapes: list[Shape], config: Any) -> Shape:
        return (1, *super().shape(shapes, config))

    def views(self, tensor: Tensor, shapes: list[Shape], config: Any) -> Iterable[Tensor]:
        return super().views(tensor[0], shapes, config)


@dataclass(frozen=True)
class Grouped(Layout):
    """A part of each parameter, such as the first head's queries, keys and values, then the next part of each.

    Args:
        groups: the number of parts, of the config.
    """

    groups: Callable[[Any], int]
    consecutive = False

    def views(self, tensor: Tensor, shapes: list[Shape], config: Any) -> Iterable[Tensor]:
        groups = self.groups(config)
        sizes = [shape[0] // groups for shape in shapes]
        return tensor.unflatten(0, (groups, sum(sizes))).split(sizes, dim=1)  # (groups, size, …) each


class Experts(Layout):
    """All experts in one tensor, matrices stored (in, out); several of an expert take turns along the last axis."""

    consecutive = False

    def shape(self, shapes: list[Shape], config: Any) -> Shape:
        experts, (rows, *columns) = config.block.ffn.experts, shapes[0]
        return (experts, *columns, len(shapes) // experts * rows)

    def views(self, tensor: Tensor, shapes: list[Shape], config: Any) -> Iterable[Tensor]:
        together = len(shapes) // config.block.ffn.experts
        experts = tensor if tensor.dim() == 2 else tensor.mT  # (experts, together · out, in)
        return (expert[i::together] for expert in experts for i in range(together))


def key_heads_of(config: Any) -> int:
    """Return the number of key heads of the layers that keep a state."""
    mixers = (options.get("mixer") for options in (*config.block.layer_pattern, vars(config.block)))
    return next(mixer.key_heads for mixer in mixers if hasattr(mixer, "key_heads"))


LAYOUTS = {
    "same": Layout(),
    "transposed": Transposed(),
    "row": Row(),
    "by_head": Grouped(lambda config: config.block.attention.heads),
    "by_key_head": Grouped(key_heads_of),
    "experts": Experts(),
}


@dataclass(frozen=True)
class Name:
    """One tensor (or a layer's weight and bias) in Hugging Face's file and in txlib's model. {} stands for a number.

    Args:
        hf: name in the file.
        parameters: name in the model; several where one tensor of the file holds them. Where they have more numbers
            than hf, as experts have, it holds all of those.
        layout: how they lie in it, one of `LAYOUTS`.
        when: whether a model of this config has the tensor.
    """

    hf: str
    parameters: tuple[str, ...]
    layout: str = "same"
    when: Callable[[Any], bool] = lambda config: True


def same(hf: str, prefix: str, *layers: tuple[str, str]) -> tuple[Name, ...]:
    """Return the table of layers that have the same layout in both.

    Args:
        hf, prefix: prefixes of the names in the file and in the model.
        layers: the rest of both names.
    """
    return tuple(Name(hf + hf_name, (prefix + name,)) for hf_name, name in layers)


@dataclass(frozen=True)
class Head:
    """An entry of `architectures`.

    Args:
        model: txlib's class.
        arguments: keyword arguments of the class besides the config.
        fixed: as a family's, for this head only.
        bare: whether names in its file lack the family's prefix.
        names: tensors whose names differ from the family's table.
    """

    model: type[nn.Module]
    arguments: Callable[[Settings], dict[str, Any]] = lambda settings: {}
    fixed: Settings = field(default_factory=dict)
    bare: bool = False
    names: tuple[Name, ...] = ()


@dataclass(frozen=True)
class Family:
    """One `model_type`.

    Args:
        config: class of txlib's config.
        settings: the table of settings.
        heads: entry of `architectures` → model. The first is the default.
        names: the table of tensors.
        fixed: entries with only one supported value.
        implied: fields of the config that all models of the family share.
        describe: further entries, computed from the model.
        prefix, our_prefix: prefix of a base's names in a model with a head, in the file and in txlib.
        ignored: patterns of names that are not loaded, such as copies of tied matrices.
        constants: pattern of names of constants → function that computes them from the config. A file may omit them.
        renamed: (old, new): parts of names in other files of the family.
        parts: for a tensor that holds several of the family's, by name and shape: the name and index of each.
    """

    model_type: str
    config: type[ModelConfig]
    settings: tuple[Setting | Translation, ...]
    heads: Mapping[str, Head]
    names: tuple[Name, ...]
    fixed: Settings = field(default_factory=dict)
    implied: Mapping[str, Any] = field(default_factory=dict)
    describe: Callable[[Any], dict[str, Any]] = lambda model: {}
    prefix: str = ""
    our_prefix: str = ""
    ignored: tuple[str, ...] = ()
    constants: Mapping[str, Callable[[Any], Tensor]] = field(default_factory=dict)
    renamed: tuple[tuple[str, str], ...] = ()
    parts: Callable[[str, tuple[int, ...]], dict[str, tuple[int | slice, ...]]] = lambda name, shape: {}

    def read(self, settings: Settings) -> ModelConfig:
        """Return the config of a config.json.

        Raises:
            KeyError: for a missing entry.
            ValueError: for a value that txlib's model does not support.
        """
        expect(settings, self.fixed)
        values = dict(self.implied)
        for entry in self.settings:
            for name, value in entry.read(settings).items():
                if values.setdefault(name, value) != value:
                    raise ValueError(f"{getattr(entry, 'hf', name)}={value!r} is not supported, only {values[name]!r}")
        for entry in self.settings:
            if isinstance(entry, Setting) and entry.like and values[entry.field] == values[entry.like]:
                values[entry.field] = None
        return decode(nested(values), self.config)

    def write(self, model: nn.Module) -> dict[str, Any]:
        """Return the entries of a config.json."""
        name, head = self.head_of(model)
        config: Any = model.config
        settings = {"architectures": [name], "model_type": self.model_type, **self.fixed, **head.fixed}
        for entry in self.settings:
            settings |= entry.write(config)
        return settings | self.describe(model)

    def head(self, settings: Settings) -> Head:
        """Return the head that `architectures` names.

        Raises:
            ValueError: for an unknown head, or an entry whose value it does not support.
        """
        name = (settings.get("architectures") or [next(iter(self.heads))])[0]
        if name not in self.heads:
            raise ValueError(f"architecture {name!r} is unknown; txlib has {', '.join(self.heads)}")
        expect(settings, self.heads[name].fixed)
        return self.heads[name]

    def all_names(self) -> Iterator[Name]:
        """Return the table of tensors, with those that heads add."""
        yield from self.names
        for head in self.heads.values():
            yield from head.names

    def head_of(self, model: nn.Module) -> tuple[str, Head]:
        """Return the head of this model's class, and its name.

        Raises:
            LookupError: when none does.
        """
        for name, head in self.heads.items():
            if head.model is type(model):
                return name, head
        raise LookupError(f"{self.model_type} has no {type(model).__name__}")

    def loses(self, model: nn.Module) -> list[str]:
        """Return the fields of the model's config that a saved file would not restore."""
        try:
            settings = self.write(model)
            with suppress(KeyError):  # tensors without a name there: the settings say more about the reason
                settings[TENSORS] = {name for name, _, _ in self.table(model, bare=False)}
            restored = relevant_fields(self.read({TENSORS: (), **settings}))
        except LookupError as error:
            return [str(error.args[0])]
        except (TypeError, ValueError) as error:
            return [str(error)]
        config: Any = model.config
        wanted = relevant_fields(config)
        names = {**wanted, **restored}
        return [f"{name}={wanted.get(name)!r}" for name in names if restored.get(name) != wanted.get(name)]

    def table(self, model: nn.Module, *, bare: bool) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Return each tensor of the file: its name, its layout, and the names of the model's parameters in it.

        Args:
            bare: whether the file holds a base without head, whose names lack the prefix.
        """
        _, head = self.head_of(model)
        names = (*self.names, *head.names)
        entries = {name: entry for entry in names if entry.when(model.config) for name in entry.parameters}
        tensors: dict[str, tuple[str, dict[str, Any]]] = {}  # name → (layout, parameter → its place among them)
        for name in model.state_dict():
            pattern, suffix = find_pattern(name, entries, ("", self.our_prefix))
            entry, numbers = entries[pattern], re.findall(r"\d+", name)
            hf_name = entry.hf.format(*numbers) + suffix
            hf_name = hf_name.removeprefix(self.prefix) if bare else hf_name
            position = [int(number) for number in numbers[entry.hf.count("{}") :]], entry.parameters.index(pattern)
            tensors.setdefault(hf_name, (entry.layout, {}))[1][name] = position
        for hf_name, (layout, positions) in tensors.items():
            yield hf_name, layout, tuple(sorted(positions, key=positions.__getitem__))


def find_pattern(name: str, entries: Mapping[str, Name], prefixes: tuple[str, ...]) -> tuple[str, str]:
    """Return the key of the entry for a parameter, its name or its layer's with {} for numbers, and the rest of it.

    Args:
        prefixes: of its name in a model with a head.

    Raises:
        KeyError: when there is none.
    """
    for full_name in (prefix + name for prefix in prefixes):
        layer, _, leaf = full_name.rpartition(".")
        for candidate, suffix in (full_name, ""), (layer, f".{leaf}"):
            for pattern in (candidate, re.sub(r"\d+", "{}", candidate)):
                if pattern in entries:
                    return pattern, suffix
    raise KeyError(name)


def expect(settings: Settings, fixed: Settings) -> None:
    """Refuse entries with another value than the supported one; null and false are the same.

    Raises:
        ValueError: naming the first.
    """
    for name, value in fixed.items():
        if settings.get(name, value) != value and (settings[name] or value):
            raise ValueError(f"{name}={settings[name]!r} is not supported, only {value!r}")


def value_of(config: Any, path: str) -> Any:
    """Return the field that a path with dots leads to; None where a config on the way has no such field."""
    for name in path.split("."):
        config = getattr(config, name, None)
    return config


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return paths with dots as nested dictionaries."""
    result: dict[str, Any] = {}
    for path, value in values.items():
        *parents, name = path.split(".")
        inner = result
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[name] = value
    return result


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested dictionaries as paths with dots."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        result |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return result


def relevant_fields(config: ModelConfig) -> dict[str, Any]:
    """Return the fields that the outputs depend on, with None for what follows from others, and none that only matter
    while training.
    """
    values = flat(write(config))
    for name, block in vars(config).items():
        if not isinstance(block, BlockConfig):
            continue
        heads = block.attention.heads
        defaults = {"kv_heads": heads, "head_dim": block.d_model / heads, "value_dim": block.head_dim}
        for field_name, value in defaults.items():
            path = f"{name}.attention.{field_name}"
            values[path] = None if values[path] == value else values[path]
        if block.norm.kind == "rms":
            del values[f"{name}.norm.bias"]
    return {name: value for name, value in values.items() if name.rpartition(".")[2] not in TRAINING_ONLY}


ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "relu2": "relu2",
}  # Hugging Face's name → txlib's
