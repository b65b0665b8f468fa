"""Sets of integers as spans: which distances a mask allows."""

import math

Spans = tuple[tuple[int | float, int | float], ...]
"""Half-open (low, high), in order, not adjacent; the ends are integers or infinite."""

ALWAYS: Spans = ((-math.inf, math.inf),)


def union(one: Spans, other: Spans) -> Spans:
    """Return the numbers in either."""
    merged: list[tuple[int | float, int | float]] = []
    for low, high in sorted((*one, *other)):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(spans: Spans) -> Spans:
    """Return the numbers in none of the spans."""
    ends = [-math.inf, *(end for span in spans for end in span), math.inf]
    return tuple((low, high) for low, high in zip(ends[::2], ends[1::2], strict=True) if low < high)


def intersection(one: Spans, other: Spans) -> Spans:
    """Return the numbers in both."""
    pairs = [(max(low, least), min(high, end)) for low, high in one for least, end in other]
    return tuple([(low, high) for low, high in pairs if low < high])


def moved(spans: Spans, by: int) -> Spans:
    """Return the numbers, each increased by `by`."""
    return tuple((low + by, high + by) for low, high in spans)


def within(spans: Spans, least: int, greatest: int) -> Spans:
    """Return the part of the spans from the least to the greatest of these numbers, both included."""
    clipped = [(max(low, least), min(high, greatest + 1)) for low, high in spans]
    return tuple([(low, high) for low, high in clipped if low < high])


def hull(spans: Spans) -> tuple[int | float, int | float]:
    """Return the least and the greatest number; (∞, -∞) of no span."""
    return (spans[0][0], spans[-1][1] - 1) if spans else (math.inf, -math.inf)
