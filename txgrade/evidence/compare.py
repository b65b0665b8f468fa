"""The comparison of two values' evidence, and the words for where they differ."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from txgrade.evidence.values import NOT_NUMBERS

RTOL, ATOL = 1e-4, 1e-5  # float32 attention over a few hundred keys agrees to about 1e-6

# Precision is not what an exercise asks for: float64 for float32 is as right. A bool for an int is not.
SAME_DTYPE = {"float64": "float32", "int32": "int64", "complex128": "complex64"}
NOT_COMPARED = ("other", "weights", "tokens")


def compare(yours: Any, expected: dict, rtol: int | float = RTOL, atol: int | float = ATOL) -> str | None:
    """Return None where `yours` shows the same value as `expected`, else the first difference in words.

    Types count: a bool is not an int, a tensor is not an array, NaN equals only NaN. Widths don't: float64
    equals float32 and int32 equals int64. Numbers agree where |yours - expected| <= atol + rtol * |expected|.
    Of errors the type counts, not the message.
    """
    if not isinstance(yours, dict) or yours.get("kind") not in list(NAMES):  # a list: a kind may be unhashable
        return "this is not evidence"
    if yours["kind"] != expected["kind"] or expected["kind"] in NOT_COMPARED:
        hint = ". Is a `return` missing?" if yours["kind"] == "none" else ""
        return f"expected {name(expected)}, yours is {name(yours)}{hint}"
    kind = expected["kind"]
    if kind == "none":
        return None
    if kind == "error":
        same = yours.get("error") == expected["error"]
        return None if same else f"expected {expected['error']}, yours raises {yours.get('error')}"
    if kind in ("tensor", "ndarray"):
        return _compare_arrays(yours, expected, rtol, atol)
    if "items" in expected:
        return _compare_items(yours, expected, rtol, atol)
    if _equal(yours.get("value"), expected["value"], rtol, atol):
        return None
    return f"expected {spell(expected['value'])}, yours is {spell(yours.get('value'))}"


def _compare_arrays(yours: dict, expected: dict, rtol: int | float, atol: int | float) -> str | None:
    if yours.get("shape") != expected["shape"]:
        return f"the shape differs: expected {_shape(expected['shape'])}, yours is {_shape(yours.get('shape'))}"
    if _dtype(yours) != _dtype(expected):
        return f"the dtype differs: expected {expected['dtype']}, yours is {yours.get('dtype')}"
    values = yours.get("values")
    if not isinstance(values, list) or len(values) != len(expected["values"]):
        return "this is not evidence"
    wrong = list(differing(values, expected["values"], rtol, atol))
    if not wrong:
        return None
    first, count = wrong[0], len(wrong)
    shape = expected["shape"] + [2] * expected["dtype"].startswith("complex")
    index = [int(i) for i in np.unravel_index(first, shape)]
    where = f" at {index}" if index else ""
    how_many = f" ({count} of {len(values)} values differ)" if len(values) > 1 else ""
    return (
        f"the first difference is{where}: expected {spell(expected['values'][first])}, "
        f"yours is {spell(values[first])}{how_many}"
    )


def _compare_items(yours: dict, expected: dict, rtol: int | float, atol: int | float) -> str | None:
    if yours.get("keys") != expected.get("keys"):
        return f"expected the keys {_keys(expected)}, yours are {_keys(yours)}"
    items = yours.get("items")
    if not isinstance(items, list):
        return "this is not evidence"
    if len(items) != len(expected["items"]):
        return f"expected {len(expected['items'])} items, yours are {len(items)}"
    for index, (item, expected_item) in enumerate(zip(items, expected["items"], strict=True)):
        if difference := compare(item, expected_item, rtol, atol):
            return (
                f"in [{expected['keys'][index]!r}]: {difference}"
                if "keys" in expected
                else (f"in item {index}: {difference}")
            )
    return None


def differing(yours: list, expected: list, rtol: int | float = RTOL, atol: int | float = ATOL) -> Iterator[int]:
    """Return the flat indices at which two lists of values differ."""
    return (
        i
        for i, (value, expected_value) in enumerate(zip(yours, expected, strict=True))
        if not _equal(value, expected_value, rtol, atol)
    )


def _equal(yours: Any, expected: Any, rtol: int | float, atol: int | float) -> bool:
    if type(expected) is float and type(yours) in (int, float):
        return abs(yours - expected) <= atol + rtol * abs(expected)
    return type(yours) is type(expected) and yours == expected


NAMES = {
    "none": "None",
    "bool": "a bool",
    "int": "an int",
    "float": "a float",
    "str": "a str",
    "tensor": "a tensor",
    "ndarray": "a NumPy array",
    "list": "a list",
    "tuple": "a tuple",
    "dict": "a dict",
    "record": "a dataclass",
    "error": "an error",
    "other": "something that can't be compared",
    "weights": "a model's weights",
    "tokens": "token ids",
}


def name(value: dict) -> str:
    """Return the kind of a value in words: `a tensor of shape (2, 3)`, `a list of 4`."""
    kind = value["kind"]
    if kind in ("tensor", "ndarray"):
        return f"{NAMES[kind]} of shape {_shape(value.get('shape'))}"
    if kind == "error":
        return f"an error, {value.get('error')}"
    if kind == "other":
        return f"of type {value.get('type')}"
    if kind in ("list", "tuple") and isinstance(value.get("items"), list):
        return f"{NAMES[kind]} of {len(value['items'])}"
    return NAMES[kind]


def spell(value: Any) -> str:
    """Return a number as a person writes it: 0.3333, True, 'a word', nan."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if value in NOT_NUMBERS else repr(value)[:200]


def _shape(shape: Any) -> str:
    return str(tuple(shape)) if isinstance(shape, list) else "missing"


def _keys(value: dict) -> str:
    keys = value.get("keys")
    return ", ".join(map(repr, keys))[:200] if isinstance(keys, list) and keys else "none"


def _dtype(value: dict) -> Any:
    return SAME_DTYPE.get(str(value.get("dtype")), value.get("dtype"))
