"""What a wrong shape, or a transposed value, looks like: the usual slips, each in a sentence."""

import itertools
from collections.abc import Iterator

import numpy as np

from txgrade.evidence.compare import compare

MOST_AXES = 6


def slip(yours: dict, expected: dict, rtol: int | float, atol: int | float) -> str | None:
    """Return the usual slip by which a value may have become what it is, in a sentence; None where none fits.

    Axes in another order, one dimension too many or too few, one entry too many or too few. Of lists the items are
    looked at, too.
    """
    if "items" in yours and "items" in expected:
        return _slip_of_items(yours, expected, rtol, atol)
    arrays = {"tensor", "ndarray"}
    if yours["kind"] != expected["kind"] or yours["kind"] not in arrays or "complex" in yours["dtype"]:
        return None
    mine, theirs = yours["shape"], expected["shape"]
    if len(mine) > MOST_AXES or len(theirs) > MOST_AXES:
        return None
    if len(mine) == len(theirs) + 1:
        return _one_more(mine, theirs)
    if len(mine) + 1 == len(theirs):
        return _one_less(mine, theirs)
    if len(mine) == len(theirs):
        like = _Alike(yours, expected, rtol, atol)
        return _exchanged(mine, theirs, like) or _one_entry(mine, theirs, like)
    return None


class _Alike:
    """Both values as arrays, and whether parts of them agree."""

    def __init__(self, yours: dict, expected: dict, rtol: int | float, atol: int | float):
        self.yours, self.expected = (
            np.array([float(number) for number in each["values"]]).reshape(each["shape"]) for each in (yours, expected)
        )
        self.rtol, self.atol = rtol, atol

    def __call__(self, mine: np.ndarray, theirs: np.ndarray) -> bool:
        return mine.shape == theirs.shape and np.allclose(mine, theirs, self.rtol, self.atol, equal_nan=True)


def _exchanged(mine: list[int], theirs: list[int], like: _Alike) -> str | None:
    """Recognize two axes of the expected value in the other order."""
    swaps = [
        (i, j)
        for i, j in itertools.combinations(range(len(mine)), 2)
        if _swapped(mine, i, j) == theirs and (mine != theirs or theirs[i] > 1)
    ]
    for i, j in swaps:
        if like(like.yours.swapaxes(i, j), like.expected):
            what = "It is the expected one, transposed" if len(mine) == 2 else f"Its axes {i} and {j} are exchanged"
            return f"{what}: all values are there, in the other order."
    if swaps and mine != theirs:
        i, j = swaps[-1]
        return f"The sizes of axes {i} and {j} are exchanged: is a `transpose` missing, or one too many?"
    return None


def _one_more(mine: list[int], theirs: list[int]) -> str | None:
    axes = [axis for axis in range(len(mine)) if mine[:axis] + mine[axis + 1 :] == theirs]
    if not axes:
        return None
    axis = axes[0]
    where = "in front" if axis == 0 else "at the end" if axis == len(theirs) else f"at place {axis}"
    if mine[axis] == 1:
        return f"Yours has one dimension more, of size 1, {where}: is a `squeeze` missing, or a batch of one too much?"
    return f"Yours has one dimension more, of size {mine[axis]}, {where}: is a sum, a mean or an index over it missing?"


def _one_less(mine: list[int], theirs: list[int]) -> str | None:
    axes = [axis for axis in range(len(theirs)) if theirs[:axis] + theirs[axis + 1 :] == mine]
    if not axes:
        return None
    axis = axes[0]
    if axis == 0:
        return f"Yours lacks the first dimension, of size {theirs[0]}: did the batch get lost, in a sum or an index?"
    where = "the last dimension" if axis == len(mine) else f"dimension {axis}"
    return f"Yours lacks {where}, of size {theirs[axis]}: did a sum, a mean, a `squeeze` or an index take it away?"


def _one_entry(mine: list[int], theirs: list[int], like: _Alike) -> str | None:
    """Recognize one entry too many or too few along one axis."""
    axes = [axis for axis in range(len(mine)) if mine[axis] != theirs[axis]]
    if len(axes) != 1 or abs(mine[axes[0]] - theirs[axes[0]]) != 1:
        return None
    (axis,) = axes
    more = mine[axis] > theirs[axis]
    longer, shorter = (like.yours, like.expected) if more else (like.expected, like.yours)
    along = f" along axis {axis}" if len(mine) > 1 else ""
    for end, rest in (("last", slice(None, -1)), ("first", slice(1, None))):
        if like(longer[(slice(None),) * axis + (rest,)], shorter):
            return f"It is right but for {'one entry too many' if more else 'a missing entry'}{along}, the {end}."
    if more:
        return f"One entry too many{along}: does a range end one too late, or begin one too early?"
    return f"One entry too few{along}: does a range end one too early, or begin one too late?"


def _slip_of_items(yours: dict, expected: dict, rtol: int | float, atol: int | float) -> str | None:
    mine, theirs = yours["items"], expected["items"]
    if yours["kind"] != expected["kind"] or yours.get("keys") != expected.get("keys"):
        return None
    if len(mine) == len(theirs):
        wrong = ((a, b) for a, b in zip(mine, theirs, strict=True) if compare(a, b, rtol, atol))
        pair = next(wrong, None)
        return pair and slip(*pair, rtol, atol)
    more = len(mine) > len(theirs)
    longer, shorter = (mine, theirs) if more else (theirs, mine)
    for end, rest in _ends(longer):
        if len(rest) == len(shorter) > 0 and not any(map(lambda a, b: compare(a, b, rtol, atol), rest, shorter)):
            return f"It is right but for {'one item too many' if more else 'a missing item'}, the {end}."
    return None


def _ends(items: list) -> Iterator[tuple[str, list]]:
    yield "last", items[:-1]
    yield "first", items[1:]


def _swapped(shape: list[int], i: int, j: int) -> list[int]:
    made = list(shape)
    made[i], made[j] = made[j], made[i]
    return made
