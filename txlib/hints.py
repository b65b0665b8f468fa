"""What error sentences suggest. Only the standard library is imported here, so that every part of txlib may use it."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from difflib import get_close_matches
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

KINDS: dict[Any, tuple[Any, str]] = {
    int: (Integral, "an integer"),
    float: (Real, "a number"),
    bool: (bool, "True or False"),
    str: (str, "a string"),
    NoneType: (NoneType, "None"),
}  # type hint → what an instance is, and its name in an error


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" with the closest of the names, or nothing where none is close."""
    lower = {candidate.lower(): candidate for candidate in names}
    return "".join(f"; did you mean {lower[match]!r}?" for match in get_close_matches(str(name).lower(), lower, 1))


class FieldHints:
    """A base of dataclasses that refuse an unknown field, with the nearest, and a value of another type.

    A class may have an `example`, which errors show where a field must be one.

    Raises:
        TypeError: naming the unknown field; naming a value of another type.
        ValueError: naming a value that is not one of a field's choices.
    """

    def __new__(cls, *args: Any, **values: Any) -> Any:
        hints: dict[str, Any] = field_types(cls)  # type: ignore[arg-type]
        for name, value in {**dict(zip(hints, args, strict=False)), **values}.items():
            if name not in hints:
                hint = did_you_mean(name, hints) or f"; it has {', '.join(hints)}"
                raise TypeError(f"{cls.__name__} has no field {name!r}{hint}")
            check_type(cls.__name__, name, value, hints[name])
        return super().__new__(cls)


@cache
def field_types(cls: Any) -> dict[str, Any]:
    """Return the type of each field of a dataclass, those given by position first."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in sorted(fields(cls), key=lambda field: bool(field.kw_only))}


def check_type(owner: str, name: str, value: Any, hint: Any) -> None:
    """Refuse a value that does not fit a type hint.

    Raises:
        TypeError: with the value, and what it must be.
        ValueError: for a string that is not one of several choices.
    """
    if fits(value, hint):
        return
    kinds = get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)
    choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    expected = " or ".join(described(kind) for kind in kinds if not (kind is int and float in kinds))
    examples = [f", such as {kind.example}" for kind in kinds if hasattr(kind, "example")]
    remedy = "".join(examples) or did_you_mean(str(value), choices)
    of_kind = not isinstance(value, type) or issubclass(value, tuple(kind for kind in kinds if isinstance(kind, type)))
    if of_kind and getattr(value, "__name__", "").isidentifier():  # a function, or a class of the right kind
        remedy = f"; call it: {value.__name__}(…)"
    kind = ValueError if choices and isinstance(value, str) else TypeError
    raise kind(f"{owner}: {name}={' '.join(repr(value).split()):.80} must be {expected}{remedy}")


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value has the type of a hint; hints of other kinds than configs have fit all."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, argument) for argument in arguments)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin is tuple:
        return isinstance(value, list | tuple) and all(fits(item, arguments[0]) for item in value)
    if origin is Sequence:
        return isinstance(value, Sequence) and not isinstance(value, str)
    return not isinstance(hint, type) or isinstance(value, KINDS.get(hint, (hint,))[0])


def described(hint: Any) -> str:
    """Return what a value of this type is, in words."""
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if hint in KINDS:
        return KINDS[hint][1]
    return str(hint).replace("collections.abc.", "") if get_args(hint) else hint.__name__
