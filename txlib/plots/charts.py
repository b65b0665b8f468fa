"""Lines, bars and landscapes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.typing import ColorType

from txlib.plots.picture import (
    GRAY,
    PALETTE,
    SEQUENTIAL,
    Picture,
    color_cycle,
    drawing,
    headline,
    ink,
    panels,
    words_on,
)
from txlib.plots.ticks import readable

Values = Sequence[int | float]


def lines(
    series: Mapping[str, Values | tuple[Values, Values | Sequence[Values]]],
    *,
    title: str,
    alt: str,
    xlabel: str,
    ylabel: str,
    xscale: str = "linear",
    yscale: str = "linear",
    marker: str = "",
    dashed: Sequence[str] = (),
    colors: Mapping[str, str] | None = None,
    mark: tuple[str, int | float] | None = None,
    width: int | float = 6.4,
    height: int | float = 3.6,
) -> Picture:
    """One line per name, labeled at its right end, runs of one name at their mean.

    Args:
        series: name → values, or name → (x, values). Without x, values are numbered from 1. Several runs share a name
            and a color as name → (x, [values, values …]).
        title: what to see. alt: the same for a reader who cannot see it.
        xscale, yscale: "linear" or "log".
        marker: matplotlib's mark for each point.
        dashed: names of lines that are drawn dashed, above the others, so that what lies under them shows.
        colors: name → color, for lines that keep theirs over several figures.
        mark: a name and an x, where a dotted vertical line is drawn.
    """
    with drawing():
        figure, (axes,) = panels(width=width, height=height)
        across: list[float] = []
        along: list[float] = []
        ends: dict[str, tuple[float, float, ColorType]] = {}
        for (name, values), color in zip(series.items(), color_cycle(), strict=False):
            x, y = values if isinstance(values, tuple) else (range(1, len(values) + 1), values)
            color = (colors or {}).get(name, color)
            over: dict[str, Any] = {"linestyle": (0, (4, 3)), "zorder": 3} if name in dashed else {}
            runs = np.atleast_2d(y)
            axes.plot(x, runs.T, color=ink(color, 3), marker=marker, **over)
            ends[name] = float(x[-1]), float(runs[:, -1].mean()), ink(color)
            along += runs.ravel().tolist()
            across += [*x]
        axes.set(xlabel=xlabel, ylabel=ylabel, xscale=xscale, yscale=yscale)
        axes.margins(y=0.1)
        axes.set_title(title)
        readable(axes.xaxis, across)
        readable(axes.yaxis, along)
        _label_ends(figure, axes, ends)
        if mark is not None:
            axes.axvline(mark[1], color=GRAY, linestyle=":", linewidth=1.5, zorder=1)
            name_mark(axes, *mark)
        return Picture(figure, alt)


def name_mark(axes: Axes, name: str, x: int | float) -> None:
    """Write the name of a dotted vertical line at its upper end."""
    style: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points", "va": "top", "color": GRAY}
    axes.annotate(name, (x, 1), xycoords=("data", "axes fraction"), **style)


def bars(
    values: Mapping[str, float],
    *,
    title: str,
    alt: str,
    xlabel: str,
    format: str = "{:.2f}",
    log: bool = False,
    mark: tuple[str, int | float] | None = None,
) -> Picture:
    """Horizontal bars with their values written at the end.

    Args:
        values: name → length.
        format: how a value is written.
        log: logarithmic scale.
        mark: a name and a length, where a dotted vertical line is drawn.
    """
    with drawing():
        figure, (axes,) = panels(height=0.9 + 0.38 * len(values))
        drawn = axes.barh(list(values), list(values.values()), color=PALETTE[0], height=0.65)
        axes.bar_label(drawn, [format.format(value) for value in values.values()], padding=4)
        axes.invert_yaxis()
        axes.set(xlabel=xlabel, xscale="log" if log else "linear")
        axes.margins(x=0.15)
        readable(axes.xaxis, list(values.values()))
        axes.tick_params(axis="y", length=0)
        axes.set_title(title)
        if mark is not None:
            axes.axvline(mark[1], color=GRAY, linestyle=":", linewidth=1.5, zorder=0)
            axes.annotate(mark[0], (mark[1], 0), xycoords=("data", "data"), xytext=(5, 0),
                          textcoords="offset points", va="center", color=GRAY)  # fmt: skip
        return Picture(figure, alt)


def shares(values: Mapping[str, Mapping[str, float]], *, title: str, alt: str, xlabel: str) -> Picture:
    """How wholes are divided: one bar of 100 % for each, its parts side by side with their names and shares.

    Args:
        values: whole → part → size; every whole has the same parts, in the same order.
    """
    parts = list(next(iter(values.values())))
    with drawing():
        figure, (axes,) = panels(width=7.2, height=1.3 + 0.5 * len(values))
        for row, sizes in enumerate(values.values()):
            left = 0.0
            for part, color in zip(parts, color_cycle(), strict=False):
                percent = 100 * sizes[part] / sum(sizes.values())
                axes.barh(row, percent, left=left, color=color, height=0.7)
                label = f"{part}\n{percent:.0f} %" if row == 0 else f"{percent:.0f} %" if percent >= 4 else ""
                axes.text(left + percent / 2, row, label, ha="center", va="center", color=words_on(color), fontsize=9.5)
                left += percent
        axes.set_yticks(range(len(values)), list(values))
        axes.invert_yaxis()
        axes.set(xlabel=xlabel, xlim=(0, 100))
        axes.tick_params(axis="y", length=0)
        axes.set_title(title)
        return Picture(figure, alt)


def ranges(
    values: Mapping[str, tuple[float, float, float]],
    *,
    title: str,
    alt: str,
    xlabel: str,
    mark: float | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> Picture:
    """What several runs came to: a dot at their mean, a line from the least to the greatest.

    Args:
        values: name → (least, mean, greatest).
        mark: where a dotted line stands, e.g. 0 for no change.
        groups: group → its names; each group has a color, which a legend names. Names in none of them are gray.
    """
    color_of = {
        name: color for names, color in zip((groups or {}).values(), color_cycle(), strict=False) for name in names
    }
    with drawing():
        figure, (axes,) = panels(height=0.9 + 0.38 * len(values))
        if mark is not None:
            axes.axvline(mark, color=GRAY, linestyle=":", linewidth=1.2)
        for name, (least, mean, greatest) in values.items():
            color = color_of.get(name, GRAY if groups else PALETTE[0])
            axes.plot([least, greatest], [name, name], color=color, linewidth=2.5, alpha=0.5)
            axes.plot(mean, name, "o", color=color, markersize=7)
        axes.invert_yaxis()
        axes.set(xlabel=xlabel)
        axes.margins(y=0.5 / max(len(values), 1))
        axes.tick_params(axis="y", length=0)
        axes.set_title(title)
        if groups:
            dots = [Line2D([], [], marker="o", linestyle="", color=color_of[names[0]]) for names in groups.values()]
            axes.legend(dots, list(groups), frameon=False)
        return Picture(figure, alt)


def landscapes(surfaces: Mapping[str, Sequence[Sequence[float]]], *, title: str, alt: str) -> Picture:
    """Losses as surfaces seen from above, at most three in a row, with level lines and one color bar; a cross marks
    the middle.

    Args:
        surfaces: name → heights on a square grid from -1 to 1 along both directions.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    every = np.concatenate([np.ravel(surface) for surface in surfaces.values()])
    levels = MaxNLocator(24, steps=[1, 2, 5, 10]).tick_values(every.min(), every.max())
    with drawing():
        columns = len(surfaces) if len(surfaces) < 4 else 2
        rows = -(-len(surfaces) // columns)
        figure, all_axes = panels(
            len(surfaces), width=1.2 + 3.1 * columns, height=0.6 + 3 * rows, columns=columns, sharex=True, sharey=True
        )
        for axes, (name, surface) in zip(all_axes, surfaces.items(), strict=True):
            along = np.linspace(-1, 1, len(surface))
            filled = axes.contourf(along, along, surface, levels, cmap=SEQUENTIAL)
            axes.contour(along, along, surface, levels, colors=GRAY, linewidths=0.5)
            axes.plot(0, 0, "x", color=PALETTE[1], markersize=8, markeredgewidth=2)
            axes.set(aspect="equal", xticks=[-1, 0, 1], yticks=[-1, 0, 1])
            axes.set_title(name, fontweight="normal", fontsize=11)
        for axes in all_axes[-columns:]:
            axes.set_xlabel("first direction")
        for axes in all_axes[::columns]:
            axes.set_ylabel("second direction")
        figure.colorbar(filled, ax=all_axes, label="loss (nats)", format="%g", shrink=0.8).outline.set_visible(False)
        headline(figure, title)
        return Picture(figure, alt)


def _label_ends(figure: Figure, axes: Axes, ends: Mapping[str, tuple[float, float, ColorType]]) -> None:
    """Each name beside its end, an x, a y and a color; where two would overlap, all of that heap move apart."""
    figure.draw_without_rendering()  # settles the scales
    wanted = [axes.transData.transform((x, y))[1] for x, y, _ in ends.values()]
    for (name, (x, y, color)), height, placed in zip(ends.items(), wanted, _apart(wanted, 13), strict=True):
        axes.annotate(
            name,
            (x, y),
            xytext=(6, placed - height),
            textcoords="offset points",
            color=color,
            va="center",
            annotation_clip=False,
        )


def _apart(heights: Sequence[float], room: int | float) -> list[float]:
    """Heights at least `room` apart, in the same order, and as near the wanted ones as can be."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    heaps: list[tuple[float, int]] = []  # each of labels that touch: its middle, how many
    for index in order:
        middle, count = heights[index], 1
        while heaps and middle - heaps[-1][0] < room * (count + heaps[-1][1]) / 2:
            below, many = heaps.pop()
            middle, count = (middle * count + below * many) / (count + many), count + many
        heaps.append((middle, count))
    placed = [middle + room * (rank - (count - 1) / 2) for middle, count in heaps for rank in range(count)]
    return [placed[order.index(index)] for index in range(len(heights))]
