"""Ticks that can be read: few of them, at round numbers, written plainly."""

import math
from collections.abc import Iterable, Sequence

from matplotlib.axis import Axis
from matplotlib.ticker import Formatter, Locator, LogLocator, MaxNLocator, NullFormatter, NullLocator

MOST = 8  # ticks on an axis
ROUND = [1, 2, 2.5, 5, 10]  # steps of a linear axis, in units of its power of ten
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def readable(axis: Axis, values: Sequence[int | float] = ()) -> None:
    """Give an axis of a chart few ticks at round numbers, whatever its scale.

    Args:
        values: what is drawn along it. Whole numbers get whole ticks; powers of two, up to 2^20, get powers of two on
            a logarithmic axis.
    """
    if axis.get_scale() == "log":
        doubling = len(set(values)) > 2 and all(value <= 2**20 and math.log2(value).is_integer() for value in values)
        axis.set_major_locator(LogTicks(doubling=doubling))
        axis.set_major_formatter(_Plain())
        axis.set_minor_locator(NullLocator() if doubling else LogLocator(subs=range(2, 10)))
        axis.set_minor_formatter(NullFormatter())
    else:
        whole = bool(len(values)) and all(float(value).is_integer() for value in values)
        axis.set_major_locator(MaxNLocator(nbins=MOST - 2, steps=ROUND, integer=whole))
        if max(values, default=0) >= 1000:
            axis.set_major_formatter(_Plain())


def plain(values: Sequence[int | float]) -> list[str]:
    """How the ticks of one axis are written: 0.01, 500, 1,024; with k and M where some have five digits or more; all as
    powers of ten where some are far out."""
    if any(value >= 1e9 or 0 < value < 0.99e-4 for value in values):
        return [_power(value) if value > 0 else _number(value, short=False) for value in values]
    return [_number(value, short=max(values) >= 10_000) for value in values]


class LogTicks(Locator):
    """Places on a logarithmic axis: the densest of these that are not too many: powers of two, where the values are
    such; 1, 2, 5, 10 …; powers of ten; every second of them, and so on. An axis of less than a factor of ten or so has
    the round steps of a linear one."""

    def __init__(self, *, doubling: bool):
        self.doubling = doubling

    def __call__(self) -> list[float]:
        assert self.axis is not None  # matplotlib sets it before it asks
        return self.tick_values(*self.axis.get_view_interval())

    def tick_values(self, vmin: int | float, vmax: int | float) -> list[float]:
        low, high = sorted((vmin, vmax))
        base, steps = (2, (1,)) if self.doubling else (10, (1, 2, 5))
        first, last = math.floor(math.log(low, base)), math.ceil(math.log(high, base))
        ticks = _between(low, high, [step * float(base) ** power for power in range(first, last + 1) for step in steps])
        if len(ticks) < 3:
            return _between(low, high, [*MaxNLocator(nbins=5, steps=ROUND).tick_values(low, high)])
        step = 1
        while len(ticks) > MOST:
            powers = range(first - first % step, last + 1, step)  # 1 is among them, if it is on the axis
            ticks, step = _between(low, high, [float(base) ** power for power in powers]), step + 1
        return ticks


class _Plain(Formatter):
    def format_ticks(self, values: Iterable[int | float]) -> list[str]:
        return plain([float(value) for value in values])

    def __call__(self, x: int | float, pos: int | None = None) -> str:
        return plain([x])[0]


def _between(low: int | float, high: int | float, ticks: Sequence[int | float]) -> list[float]:
    return [float(tick) for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


def _number(value: int | float, *, short: bool) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if short and value >= size and round(value / size, 1) * size == value:
            return f"{value / size:g}{letter}"
    return f"{value:,.10g}"


def _power(value: int | float) -> str:
    power = math.floor(math.log10(value) + 1e-9)
    digits = round(value / 10.0**power, 2)
    written = "10" + str(power).translate(SUPERSCRIPT) if power else "1"
    return written if digits == 1 else f"{digits:g}" if not power else f"{digits:g}·{written}"
