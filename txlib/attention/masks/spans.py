"""Sets of whole numbers as spans: which distances a mask allows."""

import math

Spans = tuple[tuple[int | float, int | float], ...]
"""Half-open (low, high), in order, apart from each other; the ends are whole numbers or infinite."""

ALWAYS: Spans = ((-math.inf, math.inf),)


def union(one: Spans, other: Spans) -> Spans:
    """Numbers in either."""
    merged: list[tuple[int | float, int | float]] = []
    for low, high in sorted((*one, *other)):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(spans: Spans) -> Spans:
    """Numbers in none of the spans."""
    ends = [-math.inf, *(end for span in spans for end in span), math.inf]
    return tuple((low, high) for low, high in zip(ends[::2], ends[1::2], strict=True) if low < high)


def intersection(one: Spans, other: Spans) -> Spans:
    """Numbers in both."""
    return complement(union(complement(one), complement(other)))


def moved(spans: Spans, by: int) -> Spans:
    """The numbers, each larger by so much."""
    return tuple((low + by, high + by) for low, high in spans)


def within(spans: Spans, least: int, greatest: int) -> Spans:
    """The part of the spans that lies between these numbers, which belong to it."""
    parts = ((max(low, least), min(high, greatest + 1)) for low, high in spans)
    return tuple((low, high) for low, high in parts if low < high)


def hull(spans: Spans) -> tuple[int | float, int | float]:
    """The least and the greatest number; (∞, -∞) of nothing."""
    return (spans[0][0], spans[-1][1] - 1) if spans else (math.inf, -math.inf)
