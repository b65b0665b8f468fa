"""What error sentences suggest."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" with the closest of the names, or nothing where none is close."""
    names = list(names)
    lower = {candidate.lower(): candidate for candidate in names}
    return "".join(f"; did you mean {lower[match]!r}?" for match in get_close_matches(name.lower(), lower, 1))
