"""What travels inside a released notebook: the evidence of the reference and of each known mistake.

A recording is plain JSON:

    {"version": 1, "exercise": "03_attention", "title": "…", "seed": 0, "tasks": [
        {"id": "causal-mask", "title": "The causal mask", "points": 2, "names": ["causal_mask"], "reference": BUNDLE,
         "mistakes": [{"evidence": BUNDLE, "sentence": "This lets each query see the *future*."}]}],
     "written": [{"id": "explain", "title": "…", "points": 2}], "due": what `txgrade.due` noted}

A task that the grader measures has `"measured": True`, and its reference holds kinds instead of values.

A bundle is what one check cell shows:

    {"task": "causal-mask", "seed": 0, "rtol": 1e-4, "atol": 1e-5,
     "shown": [{"label": "n = 3", "value": EVIDENCE, "points": None}],
     "error": None or {"error": "TypeError", "message": "…"}, "operators": None or ["aten.mm", …]}

Recordings leave out `points` and `operators` that say nothing.
"""

import base64
import json
import zlib
from dataclasses import dataclass
from typing import Any

from txgrade.evidence.compare import compare
from txgrade.text import plural

VERSION = 1


def pack(recordings: dict) -> str:
    """Return recordings as a short text for a notebook cell: JSON, compressed, in base 64.

    It is one line, however long: where a notebook is shown raw, hundreds of lines would hide the first task.
    """
    return pack_json(recordings)


def pack_json(value: Any) -> str:
    """JSON as one line of text: compressed, in base 64."""
    plain = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True)
    return base64.b64encode(zlib.compress(plain.encode(), 9)).decode()


def unpack_json(text: str) -> Any:
    """Return the value that `pack_json` packed.

    Raises:
        ValueError, zlib.error: it is damaged.
    """
    return json.loads(zlib.decompress(base64.b64decode("".join(text.split()), validate=True)))


def unpack(text: str) -> dict:
    """Return the recordings in a packed text.

    Raises:
        ValueError: where the text is damaged or of a later version.
    """
    try:
        recordings = unpack_json(text)
        version = recordings["version"]
    except (ValueError, zlib.error, KeyError, TypeError) as reason:
        raise ValueError("the notebook's recordings are damaged: open a fresh copy of the exercise") from reason
    if version > VERSION:
        raise ValueError(
            f"the notebook's recordings have version {version}, this txgrade reads {VERSION}: update txgrade"
        )
    return recordings


def first_difference(bundle: dict, expected: dict) -> tuple[int, str] | None:
    """Return where a bundle first differs from the expected one: the number of the shown value, and what differs.

    The tolerance is the expected bundle's. None where both show the same.
    """
    shown, wanted = bundle["shown"], expected["shown"]
    for index, (yours, result) in enumerate(zip(shown, wanted, strict=False)):
        if difference := compare(yours["value"], result["value"], expected["rtol"], expected["atol"]):
            return index, difference
    return _otherwise(bundle, expected)


@dataclass(frozen=True)
class Comparison:
    """A bundle compared with the expected one, value by value."""

    differences: tuple[tuple[int, str], ...]  # each as `first_difference` says it
    parts: tuple[tuple[str, bool, int | float], ...]  # each expected value: label, whether it is there, points or 0

    @property
    def differs(self) -> tuple[int, str] | None:
        """The first difference; None where both show the same."""
        return self.differences[0] if self.differences else None

    @property
    def right(self) -> int:
        """How many of the values are right."""
        return sum(right for _, right, _ in self.parts)

    @property
    def share(self) -> float:
        """The part of a task's points that is earned, from 0 to 1: less than 1 only where its author gave points."""
        if self.differs is None:
            return 1.0
        whole = sum(points for _, _, points in self.parts)
        earned = sum(points for _, right, points in self.parts if right)
        return earned / whole if earned < whole else 0.0  # all of them, and an error after the last


def compared(bundle: dict, expected: dict) -> Comparison:
    """Compare every value that the expected bundle shows; the tolerances and points are the expected bundle's."""
    shown, wanted = bundle["shown"], expected["shown"]
    rows, differences = [], []
    for index, result in enumerate(wanted):
        difference: str | None = "it is missing"
        if index < len(shown):
            difference = compare(shown[index]["value"], result["value"], expected["rtol"], expected["atol"])
            if difference:
                differences.append((index, difference))
        rows.append((result["label"] or f"result {index + 1}", not difference, result.get("points") or 0))
    otherwise = _otherwise(bundle, expected)
    return Comparison((*differences, *([otherwise] if otherwise else [])), tuple(rows))


def share(bundle: dict, expected: dict) -> float:
    """Return the part of a task's points that a bundle earns, from 0 to 1."""
    return compared(bundle, expected).share


def same(one: dict, other: dict) -> bool:
    """Return whether two bundles can't be told apart, whichever of them is expected."""
    return first_difference(one, other) is None or first_difference(other, one) is None


def _error(bundle: dict) -> Any:
    return bundle["error"] and bundle["error"]["error"]


def _otherwise(bundle: dict, expected: dict) -> tuple[int, str] | None:
    """Return where two bundles differ whose values don't."""
    shown, wanted = bundle["shown"], expected["shown"]
    if _error(bundle) != _error(expected):
        if _error(bundle):
            return len(shown), f"{bundle['error']['error']}: {bundle['error']['message']}"
        return len(shown), f"expected {_error(expected)}, yours raises nothing"
    if len(shown) != len(wanted):
        return min(len(shown), len(wanted)), f"expected {plural(len(wanted), 'result')}, yours are {len(shown)}"
    return None
