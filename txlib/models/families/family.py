"""What is particular to one `model_type`: its settings, heads and tensors, each beside what we call it."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from txlib.attention.config import decode, write
from txlib.layers import BlockConfig
from txlib.models.stack import ModelConfig

Settings = Mapping[str, Any]  # a config.json; under TENSORS the names in the files beside it
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
    """One entry of a config.json, and the field of our config that says the same.

    Args:
        theirs: name of the entry.
        ours: name of the field; dots lead into the configs inside it: "block.norm.eps".
        default: what a missing entry means, or a function that makes it of the other entries.
        null: whether null is a value of its own; elsewhere it means that the entry is missing.
        like: another field of ours; where both are equal, this one is None.
        words: their word → ours, where words differ.
    """

    theirs: str
    ours: str
    default: Any = REQUIRED
    null: bool = False
    like: str | None = None
    words: Mapping[Any, Any] | None = None

    def read(self, settings: Settings) -> dict[str, Any]:
        """Our field's value.

        Raises:
            KeyError: when the entry is missing and has no default.
            ValueError: when the word is unknown.
        """
        value: Any = settings.get(self.theirs)
        if value is None and not (self.null and self.theirs in settings):
            if self.default is REQUIRED:
                raise KeyError(self.theirs)
            value = self.default(settings) if callable(self.default) else self.default
        if self.words is not None and value not in self.words:
            raise ValueError(f"{self.theirs}={value!r} is not supported, only {', '.join(map(str, self.words))}")
        return {self.ours: value if self.words is None else self.words[value]}

    def write(self, config: ModelConfig) -> dict[str, Any]:
        """Their entry's value. What they have no word for is written as it is, and `read` refuses it."""
        value = value_of(config, self.ours)
        if value is None and self.like is not None:
            value = value_of(config, self.like)
        return {self.theirs: next((theirs for theirs, ours in (self.words or {}).items() if ours == value), value)}


@dataclass(frozen=True)
class Translation:
    """Entries and fields that do not stand for each other one by one: a function for each direction."""

    read: Callable[[Settings], dict[str, Any]]
    write: Callable[[Any], dict[str, Any]]


def head_width(theirs: str, d_model: str, heads: str, default: int | None = None) -> Translation:
    """The size of a head, under their names for it and for what it follows from where it is not given."""

    def read(settings: Settings) -> dict[str, Any]:
        width = settings.get(theirs) or default
        return {"block.attention.head_dim": None if width == settings[d_model] / settings[heads] else width}

    return Translation(read, lambda config: {theirs: config.block.head_dim})


@dataclass(frozen=True)
class Name:
    """One tensor (or a layer's weight and bias) in their file and in our model. {} stands for a number.

    Args:
        theirs: name in the file.
        ours: name in the model; several where the file holds them joined, one above the other.
        layout: "same"; "transposed" for matrices stored (in, out); "row" for a vector stored as (1, n).
        when: whether the name is for a model of this config.
    """

    theirs: str
    ours: tuple[str, ...]
    layout: str = "same"
    when: Callable[[Any], bool] = lambda config: True


def same(theirs: str, ours: str, *layers: tuple[str, str]) -> tuple[Name, ...]:
    """A table of layers that are stored as we have them, each name with what stands before it."""
    return tuple(Name(theirs + their, (ours + our,)) for their, our in layers)


@dataclass(frozen=True)
class Head:
    """An entry of `architectures`.

    Args:
        model: our class.
        arguments: what it takes beside the config.
        fixed: as a family's, for this head only.
        bare: names in its file lack the family's prefix.
        names: tensors that are called otherwise than the family's table says.
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
        config: class of our config.
        settings: the table of settings.
        heads: entry of `architectures` → our model. The first is the default.
        names: the table of tensors.
        fixed: entries of which we know one value only, and refuse others.
        implied: fields of our config that all models of the family share.
        describe: further entries, made of the model.
        prefix, our_prefix: what stands before the names of a base inside a model with a head, in the file and here.
        ignored: patterns of names that hold nothing to load, such as copies of tied matrices.
        constants: pattern of names that may be there but must hold what we compute → that, made of our config.
        renamed: (old, new): parts of names in other files of the family.
        parts: for a tensor that holds several of the family's, by name and shape: each one's name and place.
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
        """Our config from a config.json.

        Raises:
            KeyError: for an entry that is missing.
            ValueError: for one that changes what the model computes, and that ours does not know.
        """
        expect(settings, self.fixed)
        values = dict(self.implied)
        for entry in self.settings:
            for name, value in entry.read(settings).items():
                if values.setdefault(name, value) != value:
                    what = getattr(entry, "theirs", name)
                    raise ValueError(f"{what}={value!r} is not supported, only {values[name]!r}")
        for entry in self.settings:
            if isinstance(entry, Setting) and entry.like and values[entry.ours] == values[entry.like]:
                values[entry.ours] = None
        return decode(nested(values), self.config)

    def write(self, model: nn.Module) -> dict[str, Any]:
        """The entries of a config.json."""
        name, head = self.head_of(model)
        config: Any = model.config
        settings = {"architectures": [name], "model_type": self.model_type, **self.fixed, **head.fixed}
        for entry in self.settings:
            settings |= entry.write(config)
        return settings | self.describe(model)

    def head(self, settings: Settings) -> Head:
        """The head that `architectures` names.

        Raises:
            ValueError: when there is no such head, or an entry's value is not supported with it.
        """
        name = (settings.get("architectures") or [next(iter(self.heads))])[0]
        if name not in self.heads:
            raise ValueError(f"architecture {name!r} is unknown; txlib has {', '.join(self.heads)}")
        expect(settings, self.heads[name].fixed)
        return self.heads[name]

    def all_names(self) -> Iterator[Name]:
        """The table, and what heads add to it."""
        yield from self.names
        for head in self.heads.values():
            yield from head.names

    def head_of(self, model: nn.Module) -> tuple[str, Head]:
        """The head that makes such a model, and its name.

        Raises:
            LookupError: when none does.
        """
        for name, head in self.heads.items():
            if head.model is type(model):
                return name, head
        raise LookupError(f"{self.model_type} has no {type(model).__name__}")

    def loses(self, model: nn.Module) -> list[str]:
        """What makes a difference in the model's config and would come back with another value."""
        try:
            settings = self.write(model)
            with suppress(KeyError):  # tensors without a name there: the settings say more about the reason
                settings[TENSORS] = {theirs for theirs, _, _ in self.table(model, bare=False)}
            said = what_counts(self.read({TENSORS: (), **settings}))
        except LookupError as error:
            return [str(error.args[0])]
        except (TypeError, ValueError) as error:
            return [str(error)]
        config: Any = model.config
        ours = what_counts(config)
        return [f"{name}={ours.get(name)!r}" for name in {**ours, **said} if said.get(name) != ours.get(name)]

    def table(self, model: nn.Module, *, bare: bool) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """For each tensor of the file: its name, its layout, and the names of what it fills in the model.

        Args:
            bare: the file holds a base without head, whose names lack the prefix.
        """
        _, head = self.head_of(model)
        names = (*self.names, *head.names)
        entries = {ours: entry for entry in names if entry.when(model.config) for ours in entry.ours}
        done = set()
        for name in model.state_dict():
            if name in done:
                continue
            for before in ("", self.our_prefix):  # as it is called in a model with a head
                layer, _, leaf = (before + name).rpartition(".")
                whole = before + name in entries
                pattern = re.sub(r"\d+", "{}", before + name if whole else layer)
                if pattern in entries:
                    break
            entry, numbers = entries[pattern], re.findall(r"\d+", name)
            suffix = "" if whole else f".{leaf}"
            theirs = entry.theirs.format(*numbers) + suffix
            ours = tuple(each.format(*numbers).removeprefix(before) + suffix for each in entry.ours)
            done |= set(ours)
            yield theirs.removeprefix(self.prefix) if bare else theirs, entry.layout, ours


def expect(settings: Settings, fixed: Settings) -> None:
    """Refuse entries that change what the model computes and that ours does not know.

    Raises:
        ValueError: naming the entry, when it is there with another value.
    """
    for name, value in fixed.items():
        if settings.get(name, value) != value:
            raise ValueError(f"{name}={settings[name]!r} is not supported, only {value!r}")


def value_of(config: Any, path: str) -> Any:
    """Return the field that a path with dots leads to; None where a config on the way has no such field."""
    for name in path.split("."):
        config = getattr(config, name, None)
    return config


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Paths with dots as dictionaries in dictionaries."""
    result: dict[str, Any] = {}
    for path, value in values.items():
        *way, name = path.split(".")
        inside = result
        for step in way:
            inside = inside.setdefault(step, {})
        inside[name] = value
    return result


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Dictionaries in dictionaries as paths with dots."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        result |= flat(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: value}
    return result


def what_counts(config: ModelConfig) -> dict[str, Any]:
    """What makes two configs give the same outputs: None for what follows from the rest, nothing for training only."""
    values = flat(write(config))
    for name, block in vars(config).items():
        if not isinstance(block, BlockConfig):
            continue
        heads = block.attention.heads
        usual = {"kv_heads": heads, "head_dim": block.d_model / heads, "value_dim": block.head_dim}
        for field_name, value in usual.items():
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
}  # their name → ours
