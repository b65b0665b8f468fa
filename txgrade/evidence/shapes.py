"""What a wrong shape, or a transposed value, looks like: the usual slips, each in a sentence."""

import itertools
from collections.abc import Iterator

import numpy as np

from txgrade.evidence.compare import compare

MOST_AXES = 6


def slip(yours: dict, expected: dict, rtol: int | float, atol: int | float) -> str | None:
    """Return the usual slip by which a value may have become what it is, in a sentence; None where none fits.

    Axes in another order, one dimension too many or too few, one entry too many or too few. Of lists the items are
    looked at as well.
    """
    if "items" in yours and "items" in expected:
        return _slip_of_items(yours, expected, rtol, atol)
    arrays = {"tensor", "ndarray"}
    if yours["kind"] != expected["kind"] or yours["kind"] not in arrays or "complex" in yours["dtype"]:
        return None
    shape, expected_shape = yours["shape"], expected["shape"]
    if len(shape) > MOST_AXES or len(expected_shape) > MOST_AXES:
        return None
    if len(shape) == len(expected_shape) + 1:
        return _one_more(shape, expected_shape)
    if len(shape) + 1 == len(expected_shape):
        return _one_less(shape, expected_shape)
    if len(shape) == len(expected_shape):
        like = _Alike(yours, expected, rtol, atol)
        return _exchanged(shape, expected_shape, like) or _one_entry(shape, expected_shape, like)
    return None


class _Alike:
    """Both values as arrays, and whether parts of them agree."""

    def __init__(self, yours: dict, expected: dict, rtol: int | float, atol: int | float):
        self.yours, self.expected = (
            np.array([float(number) for number in side["values"]]).reshape(side["shape"]) for side in (yours, expected)
        )
        self.rtol, self.atol = rtol, atol

    def __call__(self, array: np.ndarray, expected: np.ndarray) -> bool:
        return array.shape == expected.shape and np.allclose(array, expected, self.rtol, self.atol, equal_nan=True)


def _exchanged(shape: list[int], expected: list[int], like: _Alike) -> str | None:
    """Recognize two axes of the expected value in the other order."""
    swaps = [
        (i, j)
        for i, j in itertools.combinations(range(len(shape)), 2)
        if _swapped(shape, i, j) == expected and (shape != expected or expected[i] > 1)
    ]
    for i, j in swaps:
        if like(like.yours.swapaxes(i, j), like.expected):
            sentence = (
                "It is the expected one, transposed" if len(shape) == 2 else f"Its axes {i} and {j} are exchanged"
            )
            return f"{sentence}: all values are there, in the other order."
    if swaps and shape != expected:
        i, j = swaps[-1]
        return f"The sizes of axes {i} and {j} are exchanged: is a `transpose` missing, or one too many?"
    return None


def _one_more(shape: list[int], expected: list[int]) -> str | None:
    axes = [axis for axis in range(len(shape)) if shape[:axis] + shape[axis + 1 :] == expected]
    if not axes:
        return None
    axis = axes[0]
    where = "in front" if axis == 0 else "at the end" if axis == len(expected) else f"at position {axis}"
    if shape[axis] == 1:
        return f"Yours has one dimension more, of size 1, {where}: is a `squeeze` missing, or a batch of one too much?"
    return (
        f"Yours has one dimension more, of size {shape[axis]}, {where}: is a sum, a mean or an index over it missing?"
    )


def _one_less(shape: list[int], expected: list[int]) -> str | None:
    axes = [axis for axis in range(len(expected)) if expected[:axis] + expected[axis + 1 :] == shape]
    if not axes:
        return None
    axis = axes[0]
    if axis == 0:
        return f"Yours lacks the first dimension, of size {expected[0]}: did the batch get lost, in a sum or an index?"
    where = "the last dimension" if axis == len(shape) else f"dimension {axis}"
    return f"Yours lacks {where}, of size {expected[axis]}: did a sum, a mean, a `squeeze` or an index take it away?"


def _one_entry(shape: list[int], expected: list[int], like: _Alike) -> str | None:
    """Recognize one entry too many or too few along one axis."""
    axes = [axis for axis in range(len(shape)) if shape[axis] != expected[axis]]
    if len(axes) != 1 or abs(shape[axes[0]] - expected[axes[0]]) != 1:
        return None
    (axis,) = axes
    more = shape[axis] > expected[axis]
    longer, shorter = (like.yours, like.expected) if more else (like.expected, like.yours)
    along = f" along axis {axis}" if len(shape) > 1 else ""
    for end, rest in (("last", slice(None, -1)), ("first", slice(1, None))):
        if like(longer[(slice(None),) * axis + (rest,)], shorter):
            return f"It is right except for {'one entry too many' if more else 'a missing entry'}{along}, the {end}."
    if more:
        return f"One entry too many{along}: does a range end one too late, or begin one too early?"
    return f"One entry too few{along}: does a range end one too early, or begin one too late?"


def _slip_of_items(yours: dict, expected: dict, rtol: int | float, atol: int | float) -> str | None:
    items, expected_items = yours["items"], expected["items"]
    if yours["kind"] != expected["kind"] or yours.get("keys") != expected.get("keys"):
        return None
    if len(items) == len(expected_items):
        wrong = ((a, b) for a, b in zip(items, expected_items, strict=True) if compare(a, b, rtol, atol))
        pair = next(wrong, None)
        return pair and slip(*pair, rtol, atol)
    more = len(items) > len(expected_items)
    longer, shorter = (items, expected_items) if more else (expected_items, items)
    for end, rest in _ends(longer):
        if len(rest) == len(shorter) > 0 and not any(map(lambda a, b: compare(a, b, rtol, atol), rest, shorter)):
            return f"It is right except for {'one item too many' if more else 'a missing item'}, the {end}."
    return None


def _ends(items: list) -> Iterator[tuple[str, list]]:
    yield "last", items[:-1]
    yield "first", items[1:]


def _swapped(shape: list[int], i: int, j: int) -> list[int]:
    swapped = list(shape)
    swapped[i], swapped[j] = swapped[j], swapped[i]
    return swapped
