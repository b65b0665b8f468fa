"""Configs: frozen dataclasses of numbers, strings, masks and other configs, which go to JSON and back."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar, get_args, get_type_hints

from txlib.attention.masks import Mask
from txlib.hints import FieldHints, did_you_mean

AnyConfig = TypeVar("AnyConfig", bound="Config")
FORMAT = 2  # of `Config.to_dict`; raise it when a field is renamed or means something else


@dataclass(frozen=True)
class Config(FieldHints):
    """The base of all configs.

    A subclass that stands for one of several choices, such as one mechanism of many, declares the name by which JSON
    tells it from the others:

        @dataclass(frozen=True)
        class LinformerConfig(MechanismConfig, name="linformer"):
            keys: int = 256
    """

    registry: ClassVar[dict[str, type["Config"]]] = {}
    name: ClassVar[str | None] = None

    def __init_subclass__(cls, name: str | None = None):
        if name is not None:
            cls.name = name
            Config.registry[name] = cls

    def check_at_least_one(self, *names: str) -> None:
        """Refuse sizes below 1; None is accepted.

        Raises:
            ValueError: naming the first.
        """
        for name in names:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings, for JSON.

        Raises:
            ValueError: when it holds a mask whose rule is code.
        """
        return {"format": FORMAT, **write(self)}

    @classmethod
    def from_dict(cls: type[AnyConfig], values: Mapping[str, Any]) -> AnyConfig:
        """Return the config that `to_dict` wrote.

        Raises:
            ValueError: for another format, an unknown field, or the name of a config that was not imported.
        """
        check_format(values)
        return decode({name: value for name, value in values.items() if name != "format"}, cls)


def check_format(values: Mapping[str, Any]) -> None:
    """Refuse a config of another format.

    Raises:
        ValueError: with the remedy.
    """
    version = values.get("format")
    if version != FORMAT:
        newer = isinstance(version, int) and version > FORMAT
        remedy = "install a newer txlib" if newer else "load it with the txlib that wrote it, and save its weights anew"
        raise ValueError(f"the config has format={version!r}, this txlib reads format={FORMAT}; {remedy}")


def write(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if isinstance(value, Config):
        tag = {} if value.name is None else {"type": value.name}
        return tag | {field.name: write(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mask):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {name: write(item) for name, item in value.items()}
    return [write(item) for item in value] if isinstance(value, tuple) else value


def decode(value: Any, hint: Any = Any) -> Any:
    """Return the value that `write` made plain.

    Args:
        hint: type of the field that holds it, for a config that JSON does not name.
    """
    if isinstance(value, list | tuple):
        return tuple(decode(item, hint) for item in value)
    if not isinstance(value, Mapping):
        return value
    if "type" in value:
        config: type[Config] | None = find_config(value["type"], hint)
    else:
        config = next(configs_in(hint), None)
    if config is None:
        mask = "kind" in value
        return Mask.from_dict(dict(value)) if mask else {name: decode(item) for name, item in value.items()}
    hints = get_type_hints(config)
    names = [field.name for field in fields(config)]
    for name in value.keys() - {"type"}:
        if name not in names:
            hint = did_you_mean(name, names)
            raise ValueError(f"{config.__name__} has no field {name!r}{hint}; if a newer txlib wrote it, install that")
    return config(**{name: decode(item, hints[name]) for name, item in value.items() if name != "type"})


def configs_in(hint: Any) -> Iterator[type[Config]]:
    """Yield the config classes that a type hint names."""
    if isinstance(hint, type) and issubclass(hint, Config):
        yield hint
    for argument in get_args(hint):
        yield from configs_in(argument)


def find_config(name: str, hint: Any) -> type[Config]:
    """Return the config of that name.

    Raises:
        ValueError: when there is none, as when the file that declares it was not imported.
    """
    bases = tuple(configs_in(hint)) or (Config,)
    names = sorted(tag for tag, config in Config.registry.items() if issubclass(config, bases))
    if name not in names:
        raise ValueError(
            f"{bases[0].__name__} {name!r} is unknown, only {', '.join(names)}{did_you_mean(name, names)}; import the "
            "file that declares it first"
        )
    return Config.registry[name]
