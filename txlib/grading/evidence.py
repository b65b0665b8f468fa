"""Evidence: what an answer returned, as plain JSON, and the comparison of two such values.

A check decides nothing about an answer inside the notebook that runs it. It writes down what came back, and
somebody else compares. So evidence holds numbers, words and shapes only: no pickle, no objects, nothing that runs.
"""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

MIME = "application/vnd.txlib.evidence+json"

MAX_VALUES = 100_000     # numbers and nodes in one check's bundle: about 1 MB of JSON
MAX_DEPTH = 8            # lists in lists
MAX_TEXT = 10_000        # characters of one string
MAX_INTEGER_BITS = 256

RTOL, ATOL = 1e-4, 1e-5  # float32 attention over a few hundred keys agrees to about 1e-6

# Precision is not what an exercise asks for: float64 for float32 is as right. A bool for an int is not.
SAME_DTYPE = {"float64": "float32", "int32": "int64", "complex128": "complex64"}
NOT_NUMBERS = ("nan", "inf", "-inf")


class TooLarge(ValueError):
    """A value has too many numbers, too many levels or too long a text to be evidence."""


class Recorder:
    """Turns values into evidence; all values of one check share one budget of `MAX_VALUES`.

    Evidence is a dict with a `kind`: `none`, `bool`, `int`, `float`, `str` (with `value`); `tensor` and `ndarray`
    (with `dtype`, `shape` and the flat `values`); `list` and `tuple` (with `items`); `dict` and `record`, a
    dataclass (with `keys` and `items`); `error`; and `other` for what can't be compared.
    NaN and the infinities, which JSON lacks, are the words `nan`, `inf` and `-inf`.

    Raises:
        TooLarge: when a value exceeds the bounds above.
    """

    def __init__(self, budget: int = MAX_VALUES):
        self.left = budget

    def __call__(self, value: Any, depth: int = 0) -> dict:
        self._spend(1)
        if depth > MAX_DEPTH:
            raise TooLarge(f"the answer is nested more than {MAX_DEPTH} levels deep")
        if value is None:
            return {"kind": "none"}
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray):
            return self._array(value, "ndarray", str(value.dtype))
        if isinstance(value, np.generic):      # np.float64(1.0) is what a NumPy sum returns: a plain number
            value = value.item()
        if isinstance(value, bool):
            return {"kind": "bool", "value": bool(value)}
        if isinstance(value, int):
            if value.bit_length() > MAX_INTEGER_BITS:
                raise TooLarge(f"the answer holds an integer of {value.bit_length()} bits")
            return {"kind": "int", "value": int(value)}
        if isinstance(value, float):
            return {"kind": "float", "value": _number(float(value))}
        if isinstance(value, str):
            if len(value) > MAX_TEXT:
                raise TooLarge(f"the answer holds a text of {len(value):,} characters")
            return {"kind": "str", "value": str(value)}
        if isinstance(value, (list, tuple)):
            kind = "list" if isinstance(value, list) else "tuple"
            return {"kind": kind, "items": [self(each, depth + 1) for each in value]}
        if isinstance(value, dict) and all(type(key) in (str, int) for key in value):
            keys = sorted(value, key=lambda key: (type(key).__name__, key))
            return {"kind": "dict", "keys": keys, "items": [self(value[key], depth + 1) for key in keys]}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            keys = [field.name for field in dataclasses.fields(value)]
            return {"kind": "record", "keys": keys, "items": [self(getattr(value, key), depth + 1) for key in keys]}
        return {"kind": "other", "type": type(value).__name__}

    def _spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise TooLarge(f"the answer holds more than {MAX_VALUES:,} values")

    def _tensor(self, value: torch.Tensor) -> dict:
        dtype = str(value.dtype).removeprefix("torch.")
        plain = value.detach().cpu().resolve_conj().resolve_neg()
        plain = plain.to_dense() if plain.layout != torch.strided else plain
        plain = plain.float() if plain.dtype in (torch.bfloat16, torch.float16) else plain
        return self._array(plain.numpy(), "tensor", dtype)

    def _array(self, value: np.ndarray, kind: str, dtype: str) -> dict:
        self._spend(value.size)
        flat = value.reshape(-1)
        if flat.dtype.kind == "c":
            flat = flat.view(flat.real.dtype)      # real and imaginary parts by turns
        if flat.dtype.kind == "f":
            # str() of a float32 is its shortest exact form: 0.1 and not 0.10000000149011612
            values = [_number(float(str(each))) for each in flat]
        elif flat.dtype.kind in "bui":
            values = flat.tolist()
        else:
            return {"kind": "other", "type": f"{kind} of {dtype}"}
        return {"kind": kind, "dtype": dtype, "shape": list(value.shape), "values": values}


def evidence(value: Any) -> dict:
    """One value as evidence (see `Recorder`)."""
    return Recorder()(value)


def error(exception: BaseException) -> dict:
    """An exception as evidence: its type and its message, without addresses, which change from run to run."""
    message = re.sub(r"0x[0-9a-fA-F]+", "0x…", str(exception))
    return {"kind": "error", "error": type(exception).__name__, "message": message[:500]}


def compare(found: Any, expected: dict, rtol: int | float = RTOL, atol: int | float = ATOL) -> str | None:
    """None where `found` shows the same value as `expected`, else the first difference in words.

    Types count: a bool is not an int, a tensor is not an array, NaN equals only NaN. Widths don't: float64 stands
    for float32 and int32 for int64. Numbers agree where |found - expected| <= atol + rtol * |expected|.
    Of errors the type counts, not the message.
    """
    if not isinstance(found, dict) or found.get("kind") not in list(NAMES):      # a list: a kind may be unhashable
        return "this is not evidence"
    if found["kind"] != expected["kind"] or expected["kind"] == "other":
        hint = ". Is a `return` missing?" if found["kind"] == "none" else ""
        return f"expected {name(expected)}, yours is {name(found)}{hint}"
    kind = expected["kind"]
    if kind == "none":
        return None
    if kind == "error":
        same = found.get("error") == expected["error"]
        return None if same else f"expected {expected['error']}, yours raises {found.get('error')}"
    if kind in ("tensor", "ndarray"):
        return _compare_arrays(found, expected, rtol, atol)
    if "items" in expected:
        return _compare_items(found, expected, rtol, atol)
    if _equal(found.get("value"), expected["value"], rtol, atol):
        return None
    return f"expected {spell(expected['value'])}, yours is {spell(found.get('value'))}"


def _compare_arrays(found: dict, expected: dict, rtol: int | float, atol: int | float) -> str | None:
    if found.get("shape") != expected["shape"]:
        return f"the shape differs: expected {_shape(expected['shape'])}, yours is {_shape(found.get('shape'))}"
    if _dtype(found) != _dtype(expected):
        return f"the dtype differs: expected {expected['dtype']}, yours is {found.get('dtype')}"
    values = found.get("values")
    if not isinstance(values, list) or len(values) != len(expected["values"]):
        return "this is not evidence"
    wrong = list(differing(values, expected["values"], rtol, atol))
    if not wrong:
        return None
    first, count = wrong[0], len(wrong)
    shape = expected["shape"] + [2] * expected["dtype"].startswith("complex")
    place = [int(index) for index in np.unravel_index(first, shape)]
    where = f" at {place}" if place else ""
    share = f" ({count} of {len(values)} values differ)" if len(values) > 1 else ""
    return (
        f"the first difference is{where}: expected {spell(expected['values'][first])}, "
        f"yours is {spell(values[first])}{share}"
    )


def _compare_items(found: dict, expected: dict, rtol: int | float, atol: int | float) -> str | None:
    if found.get("keys") != expected.get("keys"):
        return f"expected the keys {_keys(expected)}, yours are {_keys(found)}"
    items = found.get("items")
    if not isinstance(items, list):
        return "this is not evidence"
    if len(items) != len(expected["items"]):
        return f"expected {len(expected['items'])} items, yours are {len(items)}"
    for index, (mine, theirs) in enumerate(zip(items, expected["items"], strict=True)):
        if difference := compare(mine, theirs, rtol, atol):
            return f"in [{expected['keys'][index]!r}]: {difference}" if "keys" in expected else (
                f"in item {index}: {difference}"
            )
    return None


def differing(found: list, expected: list, rtol: int | float = RTOL, atol: int | float = ATOL) -> Iterator[int]:
    """The flat indices at which two lists of values differ."""
    return (i for i, (mine, theirs) in enumerate(zip(found, expected, strict=True))
            if not _equal(mine, theirs, rtol, atol))


def _equal(found: Any, expected: Any, rtol: int | float, atol: int | float) -> bool:
    if type(expected) is float and type(found) in (int, float):
        return abs(found - expected) <= atol + rtol * abs(expected)
    return type(found) is type(expected) and found == expected


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


NAMES = {
    "none": "None", "bool": "a bool", "int": "an int", "float": "a float", "str": "a str", "tensor": "a tensor",
    "ndarray": "a NumPy array", "list": "a list", "tuple": "a tuple", "dict": "a dict", "record": "a dataclass",
    "error": "an error", "other": "something that can't be compared",
}


def name(found: dict) -> str:
    """The kind of a value in words: `a tensor of shape (2, 3)`, `a list of 4`."""
    kind = found["kind"]
    if kind in ("tensor", "ndarray"):
        return f"{NAMES[kind]} of shape {_shape(found.get('shape'))}"
    if kind == "error":
        return f"an error, {found.get('error')}"
    if kind == "other":
        return f"of type {found.get('type')}"
    if kind in ("list", "tuple") and isinstance(found.get("items"), list):
        return f"{NAMES[kind]} of {len(found['items'])}"
    return NAMES[kind]


def spell(value: Any) -> str:
    """A number as a person writes it: 0.3333, True, 'a word', nan."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if value in NOT_NUMBERS else repr(value)[:200]


def _shape(shape: Any) -> str:
    return str(tuple(shape)) if isinstance(shape, list) else "missing"


def _keys(found: dict) -> str:
    keys = found.get("keys")
    return ", ".join(map(repr, keys))[:200] if isinstance(keys, list) and keys else "none"


def _dtype(found: dict) -> Any:
    return SAME_DTYPE.get(str(found.get("dtype")), found.get("dtype"))
