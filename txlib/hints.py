"""What error sentences suggest. Only the standard library is imported here, so that every part of txlib may use it."""

from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from typing import Any


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" with the closest of the names, or nothing where none is close."""
    lower = {candidate.lower(): candidate for candidate in names}
    return "".join(f"; did you mean {lower[match]!r}?" for match in get_close_matches(str(name).lower(), lower, 1))


class FieldHints:
    """A base of dataclasses that suggest the nearest field when they are made with one that they lack.

    Raises:
        TypeError: naming the unknown field.
    """

    def __new__(cls, *args: Any, **values: Any) -> Any:
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        for name in values:
            if name not in names:
                hint = did_you_mean(name, names) or f"; it has {', '.join(names)}"
                raise TypeError(f"{cls.__name__} has no field {name!r}{hint}")
        return super().__new__(cls)
