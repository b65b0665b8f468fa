"""Lines and bars."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from txlib.plots.picture import GREY, PALETTE, Picture, drawing, panels


def lines(
    series: Mapping[str, Sequence[float] | tuple[Sequence[float], Sequence[float]]],
    *,
    title: str,
    alt: str,
    xlabel: str,
    ylabel: str,
    xscale: str = "linear",
    yscale: str = "linear",
    marker: str = "",
    width: float = 6.4,
    height: float = 3.6,
) -> Picture:
    """One line a name, labelled at its right end.

    Args:
        series: name → values, or name → (x, values). Without x, values are numbered from 1.
        title: what to see. alt: the same for a reader who cannot see it.
        xscale, yscale: "linear" or "log".
        marker: matplotlib's mark for each point.
    """
    with drawing():
        figure, (axes,) = panels(width=width, height=height)
        for (name, values), colour in zip(series.items(), PALETTE * 3, strict=False):
            x, y = values if isinstance(values, tuple) else (range(1, len(values) + 1), values)
            axes.plot(x, y, label=name, color=colour, marker=marker)
        axes.set(xlabel=xlabel, ylabel=ylabel, xscale=xscale, yscale=yscale)
        axes.margins(y=0.1)
        axes.set_title(title)
        if xscale == "linear":
            axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=all(float(value).is_integer() for value in x)))
        _label_ends(axes)
        return Picture(figure, alt)


def bars(
    values: Mapping[str, float], *, title: str, alt: str, xlabel: str, format: str = "{:.2f}", log: bool = False
) -> Picture:
    """Horizontal bars with their values written at the end.

    Args:
        values: name → length.
        format: how a value is written.
        log: logarithmic scale.
    """
    with drawing():
        figure, (axes,) = panels(height=0.9 + 0.38 * len(values))
        drawn = axes.barh(list(values), list(values.values()), color=PALETTE[0], height=0.65)
        axes.bar_label(drawn, [format.format(value) for value in values.values()], padding=4)
        axes.invert_yaxis()
        axes.set(xlabel=xlabel, xscale="log" if log else "linear")
        axes.margins(x=0.15)
        axes.tick_params(axis="y", length=0)
        axes.set_title(title)
        return Picture(figure, alt)


def _label_ends(axes: Axes) -> None:
    """Each line's name beside its last point, moved apart where two would overlap."""
    axes.figure.draw_without_rendering()            # settles the scales
    transform = axes.transData.transform
    ends = [(transform((line.get_xdata()[-1], line.get_ydata()[-1]))[1], line) for line in axes.lines]
    room, last = 13.0, float("-inf")
    for height, line in sorted(ends, key=lambda end: end[0]):
        placed = max(height, last + room)
        axes.annotate(
            line.get_label(),
            (line.get_xdata()[-1], line.get_ydata()[-1]),
            xytext=(6, placed - height),
            textcoords="offset points",
            color=line.get_color() or GREY,
            va="center",
            annotation_clip=False,
        )
        last = placed
