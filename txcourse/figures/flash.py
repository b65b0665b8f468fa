"""The figures of lesson 34: what limits a computation, and a matrix of scores that is walked over in tiles."""

from collections.abc import Collection, Mapping, Sequence

from matplotlib.patches import Rectangle

from txcourse.figures.shapes import PALE
from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, headline, ink, panels


def roofline(
    points: Mapping[str, tuple[float, float]], *, peak: float, bandwidth: float, title: str, alt: str
) -> Picture:
    """What a machine can do at most, and what computations reach, both by operations per byte (Williams et al. 2009).

    Args:
        points: name → operations per byte moved, and operations per second.
        peak: operations per second at most; bandwidth: bytes per second at most.
    """
    ridge = peak / bandwidth
    low = min(min(x for x, _ in points.values()), ridge) / 2
    high = max(max(x for x, _ in points.values()), ridge) * 4
    with drawing():
        figure, (axes,) = panels(width=7.2, height=4.0)
        axes.plot([low, ridge, high], [low * bandwidth, peak, peak], color=GRAY)
        axes.text(low, low * bandwidth * 12, "limited by memory", color=GRAY)
        axes.text(high, peak * 1.15, "limited by operations", color=GRAY, ha="right")
        named: list[tuple[float, float]] = []
        for (name, (x, y)), color in zip(points.items(), PALETTE, strict=False):
            axes.plot(x, y, "o", color=color, markersize=9)
            close = any(max(x / left, left / x) < 1.5 and max(y / down, down / y) < 1.5 for left, down in named)
            axes.annotate(name, (x, y), xytext=(9, -18 if close else -4), textcoords="offset points", color=ink(color))
            named.append((x, y))
        axes.set(xscale="log", yscale="log", xlabel="operations per byte moved", ylabel="operations per second")
        axes.set_ylim(top=peak * 2.5)
        axes.set_title(title)
    return Picture(figure, alt)


def tiles(
    shape: tuple[int, int],
    steps: Sequence[tuple[int, int]],
    captions: Sequence[str],
    *,
    title: str,
    alt: str,
    done: Sequence[tuple[int, int]] = (),
    hidden: Collection[tuple[int, int]] = (),
) -> Picture:
    """The matrix of scores as tiles, once for each step: which tile is at hand, which are done, which never come.

    Args:
        shape: rows and columns of tiles. steps: the tile of each step, in order.
        captions: what stands below each step.
        done: tiles that came before the first step.
        hidden: tiles that the mask forbids.
    """
    rows, columns = shape
    with drawing():
        figure, drawn = panels(len(steps), width=2.2 * len(steps), height=0.9 + 2.1 * rows / columns)
        for axes, now, caption in zip(drawn, steps, captions, strict=True):
            behind = [*done, *steps[: steps.index(now)]]
            for row in range(rows):
                for column in range(columns):
                    place = (row, column)
                    color = PALETTE[1] if place == now else PALETTE[0] if place in behind else PALE
                    face = "white" if place in hidden else color
                    axes.add_patch(Rectangle((column, row), 0.92, 0.92, facecolor=face, edgecolor=PALE))
            axes.set(xlim=(-0.1, columns + 0.02), ylim=(rows + 0.02, -0.1), aspect="equal", xticks=[], yticks=[])
            axes.set_xlabel(caption, fontsize=10)
            axes.spines[:].set_visible(False)
        if rows > 1:
            drawn[0].set_ylabel("queries ↓   keys →", color=GRAY)
        headline(figure, title)
    return Picture(figure, alt)
