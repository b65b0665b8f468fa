"""Evidence: what an answer returned, as plain JSON, and the comparison of two such values.

A check decides nothing about an answer inside the notebook that runs it. It writes down what came back, and
somebody else compares. So evidence holds numbers, words and shapes only: no pickle, no objects, nothing that runs.
"""

import base64
import dataclasses
import math
import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

MIME = "application/vnd.txlib.evidence+json"

MAX_VALUES = 100_000  # numbers and nodes in one check's bundle: about 1 MB of JSON
MAX_DEPTH = 8  # lists in lists
MAX_TEXT = 10_000  # characters of one string
MAX_INTEGER_BITS = 256
MAX_MEASURED = 2_000_000  # numbers in the weights and tokens of one check: about 11 MB of JSON
MAX_TENSORS = 10_000
MAX_SHOWN = 1_000  # values that one check shows
MAX_NAME, MAX_MESSAGE = 200, 500
MAX_OPERATORS = 2_000

RTOL, ATOL = 1e-4, 1e-5  # float32 attention over a few hundred keys agrees to about 1e-6

# Precision is not what an exercise asks for: float64 for float32 is as right. A bool for an int is not.
SAME_DTYPE = {"float64": "float32", "int32": "int64", "complex128": "complex64"}
NOT_NUMBERS = ("nan", "inf", "-inf")
NOT_COMPARED = ("other", "weights", "tokens")


class TooLarge(ValueError):
    """A value has too many numbers, too many levels or too long a text to be evidence."""


class Recorder:
    """Turns values into evidence; all values of one check share one budget of `MAX_VALUES`.

    Evidence is a dict with a `kind`: `none`, `bool`, `int`, `float`, `str` (with `value`); `tensor` and `ndarray`
    (with `dtype`, `shape` and the flat `values`); `list` and `tuple` (with `items`); `dict` and `record`, a
    dataclass (with `keys` and `items`); `error`; and `other` for what can't be compared.
    NaN and the infinities, which JSON lacks, are the words `nan`, `inf` and `-inf`.

    `weights` (with `tensors`: name, shape and the bytes of little-endian float32 numbers in base 64) and `tokens`
    (with `rows`) are not compared but measured; they have a budget of their own, `MAX_MEASURED`.

    Raises:
        TooLarge: when a value exceeds the bounds above.
    """

    def __init__(self, budget: int = MAX_VALUES):
        self.left = budget
        self.left_to_measure = MAX_MEASURED

    def __call__(self, value: Any, depth: int = 0) -> dict:
        self._spend(1)
        if depth > MAX_DEPTH:
            raise TooLarge(f"the answer is nested more than {MAX_DEPTH} levels deep")
        if value is None:
            return {"kind": "none"}
        if _is_tensor(value):
            return self._tensor(value)
        if isinstance(value, np.ndarray):
            return self._array(value, "ndarray", str(value.dtype))
        if isinstance(value, np.generic):  # np.float64(1.0) is what a NumPy sum returns: a plain number
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
            return {"kind": "str", "value": text(value)}
        if isinstance(value, (list, tuple)):
            kind = "list" if isinstance(value, list) else "tuple"
            return {"kind": kind, "items": [self(each, depth + 1) for each in value]}
        if isinstance(value, dict) and all(type(key) in (str, int) for key in value):
            keys = sorted(value, key=lambda key: (type(key).__name__, key))
            if any(len(str(key)) > MAX_NAME for key in keys):
                raise TooLarge(f"the answer holds a dict with a key of more than {MAX_NAME} characters")
            names = [key if type(key) is int else text(key) for key in keys]
            return {"kind": "dict", "keys": names, "items": [self(value[key], depth + 1) for key in keys]}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            keys = [field.name for field in dataclasses.fields(value)]
            return {"kind": "record", "keys": keys, "items": [self(getattr(value, key), depth + 1) for key in keys]}
        return {"kind": "other", "type": text(type(value).__name__, MAX_NAME)}

    def weights(self, value: Any) -> dict:
        """A module's or state dict's numbers; of anything else, its ordinary evidence."""
        if hasattr(value, "state_dict"):
            value = value.state_dict()
        if not isinstance(value, dict) or not all(type(key) is str and _is_tensor(value[key]) for key in value):
            return self(value)
        if len(value) > MAX_TENSORS:
            raise TooLarge(f"the weights are {len(value):,} tensors, more than {MAX_TENSORS:,}")
        tensors = []
        for key, tensor in value.items():
            self._spend_to_measure(tensor.numel())
            if len(key) > MAX_NAME or tensor.is_complex():
                return {"kind": "other", "type": "weights with complex numbers or very long names"}
            plain = _plain(tensor).astype("<f4")
            tensors.append(
                {"name": text(key), "shape": list(plain.shape), "float32": base64.b64encode(plain.tobytes()).decode()}
            )
        return {"kind": "weights", "tensors": tensors}

    def tokens(self, ids: Any) -> dict:
        """Token ids, one row or a list of rows; of anything else, its ordinary evidence."""
        plain = ids.tolist() if _is_tensor(ids) or isinstance(ids, np.ndarray) else ids
        if not isinstance(plain, (list, tuple)):
            return self(ids)
        rows = [row.tolist() if _is_tensor(row) else row for row in plain]
        one_row = all(type(each) is int for each in rows)
        rows = [list(row) for row in ([rows] if one_row else rows) if isinstance(row, (list, tuple))]
        self._spend_to_measure(sum(map(len, rows)) + len(rows))
        if not (one_row or len(rows) == len(plain)) or not all(_is_token(each) for row in rows for each in row):
            return self(ids)
        return {"kind": "tokens", "rows": rows[0] if one_row else rows}

    def _spend(self, count: int) -> None:
        if count > self.left:
            raise TooLarge(f"the answer holds more than {MAX_VALUES:,} values")
        self.left -= count

    def _spend_to_measure(self, count: int) -> None:
        if count > self.left_to_measure:
            raise TooLarge(f"the answer holds more than {MAX_MEASURED:,} weights or tokens")
        self.left_to_measure -= count

    def _tensor(self, value: Any) -> dict:
        return self._array(_plain(value), "tensor", str(value.dtype).removeprefix("torch."))

    def _array(self, value: np.ndarray, kind: str, dtype: str) -> dict:
        self._spend(value.size)
        flat = value.reshape(-1)
        if flat.dtype.kind == "c":
            flat = flat.view(flat.real.dtype)  # real and imaginary parts by turns
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
    try:
        message = str(exception)
    except Exception:  # a learner's own exception may fail to say what it is
        message = ""
    message = re.sub(r"0x[0-9a-fA-F]+", "0x…", message[:MAX_TEXT])
    return {"kind": "error", "error": text(type(exception).__name__, MAX_NAME), "message": text(message, MAX_MESSAGE)}


def text(value: str, longest: int = MAX_TEXT) -> str:
    """A text that every file can hold: half characters (lone surrogates) are spelled out."""
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")[:longest]


def valid_bundle(data: Any, task: str, seed: int) -> str | None:
    """What is wrong with a bundle that claims to be a check's evidence, in words; None where it is well formed.

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
        for each in shown:
            _keys_are(each, {"label", "value", "points"}, "a shown value")
            _need(each["label"] is None or _is_text(each["label"]), "a label is not a text, or too long")
            points = each["points"]
            _need(points is None or _is_number(points) and points > 0, "a shown value has no valid points")
            self._value(each["value"], 0)

    def _error(self, value: Any, keys: set[str]) -> None:
        _keys_are(value, keys, "an error")
        _need(
            _is_text(value["error"], MAX_NAME) and _is_text(value["message"], MAX_MESSAGE),
            "an error is not a text, or too long a one",
        )

    def _operators(self, found: Any) -> None:
        _need(
            found is None
            or type(found) is list
            and len(found) <= MAX_OPERATORS
            and all(type(each) is str and OPERATOR.fullmatch(each) for each in found),
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
        for each in items:
            self._value(each, depth + 1)

    def _array(self, value: dict) -> None:
        dtype, shape, values = value["dtype"], value["shape"], value["values"]
        _need(type(dtype) is str and bool(found := DTYPE.fullmatch(dtype)), "an array has no known dtype")
        _need(type(values) is list and len(values) <= self.left, "an array's values are not a list, or too many")
        self.left -= len(values)
        count = _size(shape) * (2 if found["complex"] else 1)
        _need(count == len(values), "an array's shape is not that of its values")
        fits = _is_bool if found["bool"] else _is_int if found["int"] else _is_float
        _need(all(map(fits, values)), "an array's values are not of its dtype")

    def _weights(self, tensors: Any) -> None:
        _need(type(tensors) is list and len(tensors) <= MAX_TENSORS, "weights are not a list, or too long a one")
        for each in tensors:
            _keys_are(each, {"name", "shape", "float32"}, "a weight")
            _need(_is_text(each["name"], MAX_NAME), "a weight has no name")
            count = _size(each["shape"])
            self.left_to_measure -= count
            _need(self.left_to_measure >= 0, "the evidence holds too many weights")
            data = each["float32"]
            _need(
                type(data) is str and len(data) <= 6 * count + 4 and _decoded(data) == 4 * count,
                "a weight's shape is not that of its numbers",
            )
        _need(len({each["name"] for each in tensors}) == len(tensors), "a weight is there twice")

    def _tokens(self, rows: Any) -> None:
        _need(type(rows) is list, "tokens are not a list")
        nested = any(type(row) is list for row in rows)
        for row in rows if nested else [rows]:
            _need(type(row) is list, "rows of tokens are mixed with tokens")
            self.left_to_measure -= len(row) + 1
            _need(self.left_to_measure >= 0, "the evidence holds too many tokens")
            _need(all(map(_is_token, row)), "tokens are not integers from 0")


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
OPERATOR = re.compile(r"[A-Za-z0-9_.]{1,120}")
SURROGATE = re.compile("[\ud800-\udfff]")


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _Malformed(otherwise)


def _keys_are(value: Any, keys: set[str], what: str) -> None:
    _need(type(value) is dict and value.keys() == keys, f"{what} hasn't exactly the keys that it should have")


def _size(shape: Any) -> int:
    _need(
        type(shape) is list and len(shape) <= 64 and all(type(each) is int and 0 <= each < 2**40 for each in shape),
        "a shape is not a list of sizes",
    )
    return math.prod(shape)


def _decoded(data: str) -> int:
    """How many bytes a text in base 64 holds; -1 where it isn't one."""
    try:
        return len(base64.b64decode(data, validate=True))
    except ValueError:
        return -1


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_int(value: Any) -> bool:
    return type(value) is int and value.bit_length() <= MAX_INTEGER_BITS


def _is_float(value: Any) -> bool:
    """A finite number, or the word of one that isn't. Where JSON has passed through a browser, 1.0 became 1."""
    return _is_number(value) or type(value) is str and value in NOT_NUMBERS


def _is_number(value: Any) -> bool:
    return type(value) is float and math.isfinite(value) or _is_int(value)


def _is_token(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _is_text(value: Any, longest: int = MAX_TEXT) -> bool:
    if type(value) is not str or len(value) > longest:
        return False
    return not SURROGATE.search(value)  # no file could hold half a character


def compare(found: Any, expected: dict, rtol: int | float = RTOL, atol: int | float = ATOL) -> str | None:
    """None where `found` shows the same value as `expected`, else the first difference in words.

    Types count: a bool is not an int, a tensor is not an array, NaN equals only NaN. Widths don't: float64 stands
    for float32 and int32 for int64. Numbers agree where |found - expected| <= atol + rtol * |expected|.
    Of errors the type counts, not the message.
    """
    if not isinstance(found, dict) or found.get("kind") not in list(NAMES):  # a list: a kind may be unhashable
        return "this is not evidence"
    if found["kind"] != expected["kind"] or expected["kind"] in NOT_COMPARED:
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
            return (
                f"in [{expected['keys'][index]!r}]: {difference}"
                if "keys" in expected
                else (f"in item {index}: {difference}")
            )
    return None


def differing(found: list, expected: list, rtol: int | float = RTOL, atol: int | float = ATOL) -> Iterator[int]:
    """The flat indices at which two lists of values differ."""
    return (
        i for i, (mine, theirs) in enumerate(zip(found, expected, strict=True)) if not _equal(mine, theirs, rtol, atol)
    )


def _equal(found: Any, expected: Any, rtol: int | float, atol: int | float) -> bool:
    if type(expected) is float and type(found) in (int, float):
        return abs(found - expected) <= atol + rtol * abs(expected)
    return type(found) is type(expected) and found == expected


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # whoever holds a tensor has imported it; the judge never does
    return torch is not None and isinstance(value, torch.Tensor)


def _plain(value: Any) -> np.ndarray:
    """A tensor's numbers; half precision becomes float32."""
    plain = value.detach().cpu().resolve_conj().resolve_neg()
    plain = plain.to_dense() if str(plain.layout) != "torch.strided" else plain
    return (plain.float() if str(plain.dtype) in ("torch.bfloat16", "torch.float16") else plain).numpy()


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


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
