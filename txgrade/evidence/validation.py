"""Whether something that claims to be evidence is: the first look at what a sandbox sent."""

import base64
import math
import re
from typing import Any

from txgrade.evidence.values import (
    MAX_DEPTH,
    MAX_INTEGER_BITS,
    MAX_MEASURED,
    MAX_MESSAGE,
    MAX_NAME,
    MAX_OPERATORS,
    MAX_SHOWN,
    MAX_TENSORS,
    MAX_TEXT,
    MAX_VALUES,
    NOT_NUMBERS,
    OPERATOR,
    is_token,
)


def bundle_problem(data: Any, task: str, seed: int) -> str | None:
    """Return what is wrong with a bundle that claims to be a check's evidence, in words; None where it is well formed.

    `data` may be any JSON value: this is the first thing that happens to it, and it never raises. A bundle has
    exactly the keys and types that `Recorder` and a check write, of this task and seed, within their bounds.
    """
    return _Validator().bundle(data, task, seed)


class _Malformed(ValueError):
    """What is wrong, in words; nothing of the data is quoted."""


class _Validator:
    """Walks a bundle once. `type() is` throughout: True is not 1, and a subclass is not its base."""

    def __init__(self) -> None:
        self.left, self.left_to_measure = MAX_VALUES, MAX_MEASURED

    def bundle(self, data: Any, task: str, seed: int) -> str | None:
        try:
            _keys_are(data, {"task", "seed", "rtol", "atol", "shown", "error", "operators"}, "the evidence")
            _need(type(data["task"]) is str and data["task"] == task, "the evidence is of another task")
            _need(type(data["seed"]) is int and data["seed"] == seed, "the evidence is of another seed")
            for key in ("rtol", "atol"):
                _need(_is_number(data[key]) and data[key] >= 0, "the evidence has no valid tolerance")
            self._shown(data["shown"])
            if data["error"] is not None:
                self._error(data["error"], {"error", "message"})
            self._operators(data["operators"])
        except _Malformed as reason:
            return str(reason)
        return None

    def _shown(self, shown: Any) -> None:
        _need(type(shown) is list and len(shown) <= MAX_SHOWN, "the evidence shows no list, or too long a one")
        for result in shown:
            _keys_are(result, {"label", "value", "points"}, "a shown value")
            _need(result["label"] is None or _is_text(result["label"]), "a label is not a text, or too long")
            points = result["points"]
            _need(points is None or _is_number(points) and points > 0, "a shown value has no valid points")
            self._value(result["value"], 0)

    def _error(self, value: Any, keys: set[str]) -> None:
        _keys_are(value, keys, "an error")
        _need(
            _is_text(value["error"], MAX_NAME) and _is_text(value["message"], MAX_MESSAGE),
            "an error is not a text, or too long a one",
        )

    def _operators(self, names: Any) -> None:
        _need(
            names is None
            or type(names) is list
            and len(names) <= MAX_OPERATORS
            and all(type(name) is str and OPERATOR.fullmatch(name) for name in names),
            "the operators are not a list of names",
        )

    def _value(self, value: Any, depth: int) -> None:
        self.left -= 1
        _need(self.left >= 0, "the evidence holds too many values")
        _need(depth <= MAX_DEPTH, "the evidence is nested too deep")
        _need(type(value) is dict and type(value.get("kind")) is str, "a value has no kind")
        kind = value["kind"]
        if kind in FIELDS:
            _keys_are(value, {"kind", *FIELDS[kind]}, "a value")
        if kind in ("list", "tuple", "dict", "record"):
            self._items(value, depth)
        elif kind in ("tensor", "ndarray"):
            self._array(value)
        elif kind == "error":
            self._error(value, {"kind", "error", "message"})
        elif kind == "weights":
            self._weights(value["tensors"])
        elif kind == "tokens":
            self._tokens(value["rows"])
        else:
            _need(kind in SCALARS and SCALARS[kind](value), "a value is of an unknown kind or type")

    def _items(self, value: dict, depth: int) -> None:
        items = value["items"]
        _need(type(items) is list and len(items) <= self.left, "items are not a list, or too many")
        if "keys" in value:
            keys, kinds = value["keys"], (str,) if value["kind"] == "record" else (str, int)
            _need(
                type(keys) is list
                and len(keys) == len(items)
                and all(
                    type(key) in kinds and (_is_text(key, MAX_NAME) if type(key) is str else _is_int(key))
                    for key in keys
                ),
                "keys are not a list of names, as many as items",
            )
            _need(len(set(keys)) == len(keys), "a key is there twice")
        for item in items:
            self._value(item, depth + 1)

    def _array(self, value: dict) -> None:
        dtype, shape, values = value["dtype"], value["shape"], value["values"]
        match = DTYPE.fullmatch(dtype) if type(dtype) is str else None
        if match is None:
            raise _Malformed("an array has no known dtype")
        _need(type(values) is list and len(values) <= self.left, "an array's values are not a list, or too many")
        self.left -= len(values)
        count = _size(shape) * (2 if match["complex"] else 1)
        _need(count == len(values), "an array's shape is not that of its values")
        fits = _is_bool if match["bool"] else _is_int if match["int"] else _is_float
        _need(all(map(fits, values)), "an array's values are not of its dtype")

    def _weights(self, tensors: Any) -> None:
        _need(type(tensors) is list and len(tensors) <= MAX_TENSORS, "weights are not a list, or too long a one")
        for tensor in tensors:
            _keys_are(tensor, {"name", "shape", "float32"}, "a weight")
            _need(_is_text(tensor["name"], MAX_NAME), "a weight has no name")
            count = _size(tensor["shape"])
            self.left_to_measure -= count
            _need(self.left_to_measure >= 0, "the evidence holds too many weights")
            data = tensor["float32"]
            _need(
                type(data) is str and len(data) <= 6 * count + 4 and _decoded(data) == 4 * count,
                "a weight's shape is not that of its numbers",
            )
        _need(len({tensor["name"] for tensor in tensors}) == len(tensors), "a weight is there twice")

    def _tokens(self, rows: Any) -> None:
        _need(type(rows) is list, "tokens are not a list")
        nested = any(type(row) is list for row in rows)
        for row in rows if nested else [rows]:
            _need(type(row) is list, "rows of tokens are mixed with tokens")
            self.left_to_measure -= len(row) + 1
            _need(self.left_to_measure >= 0, "the evidence holds too many tokens")
            _need(all(map(is_token, row)), "tokens are not integers from 0")


# The keys that evidence of a kind has besides `kind`.
FIELDS = {
    "none": (),
    "bool": ("value",),
    "int": ("value",),
    "float": ("value",),
    "str": ("value",),
    "other": ("type",),
    "tensor": ("dtype", "shape", "values"),
    "ndarray": ("dtype", "shape", "values"),
    "list": ("items",),
    "tuple": ("items",),
    "dict": ("keys", "items"),
    "record": ("keys", "items"),
    "weights": ("tensors",),
    "tokens": ("rows",),
    "error": ("error", "message"),
}
SCALARS = {
    "none": lambda value: True,
    "bool": lambda value: _is_bool(value["value"]),
    "int": lambda value: _is_int(value["value"]),
    "float": lambda value: _is_float(value["value"]),
    "str": lambda value: _is_text(value["value"]),
    "other": lambda value: _is_text(value["type"], MAX_NAME),
}
DTYPE = re.compile(r"(?P<bool>bool)|(?P<int>u?int\d{1,3})|b?float\d{1,3}(_\w{1,12})?|(?P<complex>complex\d{2,3})")
SURROGATE = re.compile("[\ud800-\udfff]")


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _Malformed(otherwise)


def _keys_are(value: Any, keys: set[str], what: str) -> None:
    _need(type(value) is dict and value.keys() == keys, f"{what} hasn't exactly the keys that it should have")


def _size(shape: Any) -> int:
    _need(
        type(shape) is list and len(shape) <= 64 and all(type(size) is int and 0 <= size < 2**40 for size in shape),
        "a shape is not a list of sizes",
    )
    return math.prod(shape)


def _decoded(data: str) -> int:
    """Return how many bytes a text in base 64 holds; -1 where it isn't one."""
    try:
        return len(base64.b64decode(data, validate=True))
    except ValueError:
        return -1


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_int(value: Any) -> bool:
    return type(value) is int and value.bit_length() <= MAX_INTEGER_BITS


def _is_float(value: Any) -> bool:
    """Return a finite number, or the word of one that isn't. Where JSON has passed through a browser, 1.0 became 1."""
    return _is_number(value) or type(value) is str and value in NOT_NUMBERS


def _is_number(value: Any) -> bool:
    return type(value) is float and math.isfinite(value) or _is_int(value)


def _is_text(value: Any, longest: int = MAX_TEXT) -> bool:
    if type(value) is not str or len(value) > longest:
        return False
    return not SURROGATE.search(value)  # no file could hold half a character
