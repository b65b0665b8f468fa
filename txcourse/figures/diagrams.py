"""Drawings of how parts fit together."""

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from txcourse.figures.shapes import PALE, arrow
from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, headline, panels


def multihead(heads: int = 4, *, title: str, alt: str) -> Picture:
    """Multi-head attention from left to right: project, split, attend, join, project (Vaswani et al. 2017, figure 2).

    One color is one head. The query, key and value matrices are cut into strips, one strip per head; each head has a
    weight matrix of its own.

    Args:
        heads: how many to draw, 2 to 6.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    if not 2 <= heads <= 6:
        raise ValueError(f"multihead draws 2 to 6 heads, got {heads}; choose e.g. 4")
    colors, strip, tall = PALETTE[:heads], 0.26, 1.2
    wide, middle = strip * heads, 2.4
    rows = [middle + 1.65 * (1 - 2 * head / (heads - 1)) for head in range(heads)]  # the heads' heights
    small = min(0.72, 3.0 / heads)
    with drawing():
        figure, (axes,) = panels(width=9.6, height=4.4)
        axes.set(xlim=(-0.1, 11.8), ylim=(-0.45, 5.0), aspect="equal")
        axes.axis("off")
        _matrix(axes, 0, middle, wide, tall, PALE, "x", "(n, d_model)")
        for name, height in zip("QKV", (middle + 1.65, middle, middle - 1.65), strict=True):
            _multiply(axes, (wide + 0.08, middle), (2.15, height), f"$W^{name}$")
            for head, color in enumerate(colors):
                _matrix(axes, 2.25 + strip * head, height, strip, tall, color)
            axes.text(2.25 + wide / 2, height + tall / 2 + 0.08, name, ha="center", va="bottom")
        bracket, top, bottom = 2.45 + wide, middle + 1.65 + tall / 2, middle - 1.65 - tall / 2
        axes.plot([bracket - 0.1, bracket, bracket, bracket - 0.1], [top, top, bottom, bottom], color=GRAY)
        for head, (color, height) in enumerate(zip(colors, rows, strict=True)):
            arrow(axes, (bracket, middle), (4.55, height), width=1)
            _matrix(axes, 4.65, height, small, small, color, shade=0.35)
            axes.text(4.65 + small / 2, height, f"head {head}", ha="center", va="center", fontsize=8)
            arrow(axes, (4.73 + small, height), (6.25, height), width=1)
            _matrix(axes, 6.35, height, strip, small, color)
            arrow(axes, (6.43 + strip, height), (7.75, middle + (height - middle) * 0.25), width=1)
            _matrix(axes, 7.85 + strip * head, middle, strip, tall, color)
        _multiply(axes, (7.93 + wide, middle), (10.35, middle), "$W^O$")
        _matrix(axes, 10.45, middle, wide, tall, PALE, "out", "(n, d_model)")
        captions = {
            2.25 + wide / 2: "split: d_k columns\nper head",
            4.65 + small / 2: "weights\n(n, n) each",
            6.35 + strip / 2: "mixtures\n(n, d_k) each",
            7.85 + wide / 2: "joined\n(n, d_model)",
        }
        for place, caption in captions.items():
            axes.text(place, -0.42, caption, ha="center", va="bottom", fontsize=9, color=GRAY)
        headline(figure, title)
        return Picture(figure, alt)


def _matrix(
    axes: Axes,
    left: float,
    middle: float,
    width: float,
    height: float,
    color: str,
    name: str = "",
    below: str = "",
    shade: float = 1.0,
) -> None:
    """A matrix: its left edge, the height of its middle, its size."""
    corner = (left, middle - height / 2)
    axes.add_patch(Rectangle(corner, width, height, facecolor=color, alpha=shade, edgecolor="white", linewidth=1))
    axes.text(left + width / 2, middle, name, ha="center", va="center")
    if below:
        axes.text(left + width / 2, middle - height / 2 - 0.08, below, ha="center", va="top", fontsize=9, color=GRAY)


def _multiply(axes: Axes, start: tuple[float, float], end: tuple[float, float], matrix: str) -> None:
    """An arrow that bears the name of the matrix multiplied by."""
    arrow(axes, start, end, width=1)
    place = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + 0.1)
    axes.text(*place, matrix, ha="center", va="bottom", backgroundcolor="white", fontsize=10)
