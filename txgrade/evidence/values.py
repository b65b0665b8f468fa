"""Evidence: what an answer returned, as plain JSON.

A check decides nothing about an answer inside the notebook that runs it. It writes down what came back, and the
grader compares elsewhere. So evidence holds numbers, words and shapes only: no pickle, no objects, nothing that runs.
"""

import base64
import dataclasses
import math
import re
import sys
from typing import Any

import numpy as np

MIME = "application/vnd.txgrade.evidence+json"

MAX_VALUES = 100_000  # numbers and nodes in one check's bundle: about 1 MB of JSON
MAX_DEPTH = 8  # lists in lists
MAX_TEXT = 10_000  # characters of one string
MAX_INTEGER_BITS = 256
MAX_MEASURED = 2_000_000  # numbers in the weights and tokens of one check: about 11 MB of JSON
MAX_TENSORS = 10_000
MAX_SHOWN = 1_000  # values that one check shows
MAX_NAME, MAX_MESSAGE = 200, 500
MAX_OPERATORS = 2_000

NOT_NUMBERS = ("nan", "inf", "-inf")
OPERATOR = re.compile(r"[A-Za-z0-9_.]{1,120}")  # a name of torch's


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

    def __init__(self):
        self.left = MAX_VALUES
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
        if isinstance(value, (int, float, str)):  # a bool is an int
            return _scalar(value)
        return self._container(value, depth)

    def _container(self, value: Any, depth: int) -> dict:
        if isinstance(value, (list, tuple)):
            kind = "list" if isinstance(value, list) else "tuple"
            return {"kind": kind, "items": [self(item, depth + 1) for item in value]}
        if isinstance(value, dict) and all(type(key) in (str, int) for key in value):
            keys = sorted(value, key=lambda key: (type(key).__name__, key))
            if any(len(str(key)) > MAX_NAME for key in keys):
                raise TooLarge(f"the answer holds a dict with a key of more than {MAX_NAME} characters")
            names = [key if type(key) is int else writable(key) for key in keys]
            return {"kind": "dict", "keys": names, "items": [self(value[key], depth + 1) for key in keys]}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            keys = [field.name for field in dataclasses.fields(value)]
            return {"kind": "record", "keys": keys, "items": [self(getattr(value, key), depth + 1) for key in keys]}
        return {"kind": "other", "type": writable(type(value).__name__, MAX_NAME)}

    def weights(self, value: Any) -> dict:
        """Return a module's or state dict's numbers; of anything else, its ordinary evidence."""
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
            numbers = base64.b64encode(plain.tobytes()).decode()
            tensors.append({"name": writable(key), "shape": list(plain.shape), "float32": numbers})
        return {"kind": "weights", "tensors": tensors}

    def tokens(self, ids: Any) -> dict:
        """Token ids, one row or a list of rows; of anything else, its ordinary evidence."""
        plain = ids.tolist() if _is_tensor(ids) or isinstance(ids, np.ndarray) else ids
        if not isinstance(plain, (list, tuple)):
            return self(ids)
        rows = [row.tolist() if _is_tensor(row) else row for row in plain]
        one_row = all(type(token) is int for token in rows)
        rows = [list(row) for row in ([rows] if one_row else rows) if isinstance(row, (list, tuple))]
        self._spend_to_measure(sum(map(len, rows)) + len(rows))
        if not (one_row or len(rows) == len(plain)) or not all(is_token(token) for row in rows for token in row):
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
            values = [_number(float(str(number))) for number in flat]
        elif flat.dtype.kind in "bui":
            values = flat.tolist()
        else:
            return {"kind": "other", "type": f"{kind} of {dtype}"}
        return {"kind": kind, "dtype": dtype, "shape": list(value.shape), "values": values}


def evidence(value: Any) -> dict:
    """Return one value as evidence (see `Recorder`)."""
    return Recorder()(value)


def _scalar(value: int | float | str) -> dict:
    if isinstance(value, bool):
        return {"kind": "bool", "value": bool(value)}
    if isinstance(value, int):
        if value.bit_length() > MAX_INTEGER_BITS:
            raise TooLarge(f"the answer holds an integer of {value.bit_length()} bits")
        return {"kind": "int", "value": int(value)}
    if isinstance(value, float):
        return {"kind": "float", "value": _number(float(value))}
    if len(value) > MAX_TEXT:
        raise TooLarge(f"the answer holds a text of {len(value):,} characters")
    return {"kind": "str", "value": writable(value)}


def error(exception: BaseException) -> dict:
    """Return an exception as evidence: its type and its message, without addresses, which change from run to run."""
    try:
        message = str(exception)
    except Exception:  # a learner's own exception may fail to format its message
        message = ""
    message = re.sub(r"0x[0-9a-fA-F]+", "0x…", message[:MAX_TEXT])
    return {
        "kind": "error",
        "error": writable(type(exception).__name__, MAX_NAME),
        "message": writable(message, MAX_MESSAGE),
    }


def restored(value: dict) -> Any:
    """Return the value that this is evidence of. A dataclass comes back as a dict.

    Raises:
        ValueError: it is of a kind that can't come back.
    """
    kind = value["kind"]
    if kind in ("tensor", "ndarray"):
        return _restored_array(value)
    if kind in ("dict", "record"):
        return dict(zip(value["keys"], map(restored, value["items"]), strict=True))
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(map(restored, value["items"]))
    if kind == "none":
        return None
    if kind == "float":
        return float(value["value"])
    if kind in ("bool", "int", "str"):
        return value["value"]
    raise ValueError(f"evidence of the kind {kind!r} can't become a value again")


def writable(value: str, longest: int = MAX_TEXT) -> str:
    """Return a text that every file can hold: half characters (lone surrogates) are spelled out."""
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")[:longest]


def is_token(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # code that holds a tensor has imported torch; the judge never does
    return torch is not None and isinstance(value, torch.Tensor)


def _plain(value: Any) -> np.ndarray:
    """Return a tensor's numbers; half precision becomes float32."""
    plain = value.detach().cpu().resolve_conj().resolve_neg()
    plain = plain.to_dense() if str(plain.layout) != "torch.strided" else plain
    return (plain.float() if str(plain.dtype) in ("torch.bfloat16", "torch.float16") else plain).numpy()


def _restored_array(value: dict) -> Any:
    import torch

    dtype, shape = value["dtype"], value["shape"]
    flat = [float(number) if number in NOT_NUMBERS else number for number in value["values"]]
    if dtype.startswith("complex"):
        half = torch.float64 if dtype == "complex128" else torch.float32
        array = torch.view_as_complex(torch.tensor(flat, dtype=half).reshape(*shape, 2))
    else:
        array = torch.tensor(flat, dtype=getattr(torch, dtype, torch.float32)).reshape(shape)
    return array if value["kind"] == "tensor" else array.numpy()


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
