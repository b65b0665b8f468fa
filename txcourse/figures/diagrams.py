"""Drawings of how parts fit together."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from txcourse.figures.shapes import PALE, arrow
from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, headline, panels


def multihead(heads: int = 4, *, title: str, alt: str) -> Picture:
    """Multi-head attention from left to right: project, split, attend, join, project (Vaswani et al. 2017, figure 2).

    One color is one head. The query, key and value matrices are cut into strips, one strip per head; each head has a
    weight matrix of its own, made of its query and key; the values meet the weights at the mixture.

    Args:
        heads: how many to draw, 2 to 6.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    if not 2 <= heads <= 6:
        raise ValueError(f"multihead draws 2 to 6 heads, got {heads}; choose e.g. 4")
    colors, strip, tall = PALETTE[:heads], 0.26, 1.2
    wide, middle, mixed = strip * heads, 2.4, 7.2  # the widths of Q, K and V, the height of x, the mixtures' left edge
    rows = [4.3 - 2.6 * head / (heads - 1) for head in range(heads)]  # the heads' heights
    small = min(0.7, 2.4 / heads)
    with drawing():
        figure, (axes,) = panels(width=10, height=4.4)
        axes.set(xlim=(-0.1, 12.6), ylim=(-0.75, 5.0), aspect="equal")
        axes.axis("off")
        _matrix(axes, 0, middle, wide, tall, PALE, "x", "(n, d_model)")
        heights = {"Q": 4.15, "K": 2.4, "V": 0.45}
        for name, height in heights.items():
            _multiply(axes, (wide + 0.08, middle), (2.15, height), f"$W^{name}$")
            for head, color in enumerate(colors):
                _matrix(axes, 2.25 + strip * head, height, strip, tall, color)
            axes.text(2.25 + wide / 2, height + tall / 2 + 0.06, name, ha="center", va="bottom")
        bracket, top, bottom = 2.45 + wide, heights["Q"] + tall / 2, heights["K"] - tall / 2
        axes.plot([bracket - 0.1, bracket, bracket, bracket - 0.1], [top, top, bottom, bottom], color=GRAY)
        values = mixed - 0.55  # where the values' line rises
        axes.plot([2.35 + wide, values, values], [heights["V"], heights["V"], rows[0] - 0.2], color=GRAY, linewidth=1)
        for head, (color, height) in enumerate(zip(colors, rows, strict=True)):
            arrow(axes, (bracket, (top + bottom) / 2), (4.55, height), width=1)
            _matrix(axes, 4.65, height, small, small, color, shade=0.35)
            axes.text(4.65 + small / 2, height, f"head {head}", ha="center", va="center", fontsize=7.5)
            arrow(axes, (4.73 + small, height), (mixed - 0.08, height), width=1)
            arrow(axes, (values, height - 0.2), (mixed - 0.08, height - 0.2), width=1)
            _matrix(axes, mixed, height, strip, small, color)
            arrow(axes, (mixed + strip + 0.08, height), (8.55, middle + (height - 3) * 0.25), width=1)
            _matrix(axes, 8.65 + strip * head, middle, strip, tall, color)
        _multiply(axes, (8.73 + wide, middle), (11.15, middle), "$W^O$")
        _matrix(axes, 11.25, middle, wide, tall, PALE, "out", "(n, d_model)")
        captions = {
            2.25 + wide / 2: "cut: d_k columns\nper head",
            4.65 + small / 2: "weights\n(n, n) each",
            mixed + strip / 2: "weights · values\n(n, d_k) each",
            8.65 + wide / 2: "joined\n(n, d_model)",
        }
        for place, caption in captions.items():
            axes.text(place, -0.72, caption, ha="center", va="bottom", fontsize=9, color=GRAY)
        headline(figure, title)
        return Picture(figure, alt)


def memory_tape(words: Sequence[str], heads: int, d_k: int, *, title: str, alt: str) -> Picture:
    """The numbers of a few words in the order of memory, and which head gets each: by columns, and by `view` alone.

    Words are gray, heads have the colors of `multihead`.

    Args:
        words: in their order; each has heads * d_k numbers.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    d_model, cells = heads * d_k, heads * d_k * len(words)
    with drawing():
        figure, (axes,) = panels(width=10, height=2.5)
        axes.set(xlim=(-7.2, cells + 0.2), ylim=(-1.9, 3.3))
        axes.axis("off")
        for row, label in ((2.05, "right: by columns"), (0.5, "in memory"), (-1.05, "view alone")):
            axes.text(-0.4, row, label, ha="right", va="center", fontsize=10)
        for cell in range(cells):
            shade = 0.2 + 0.25 * (cell // d_model % 2)
            axes.add_patch(Rectangle((cell, 0), 1, 1, facecolor=GRAY, alpha=shade, edgecolor="white"))
        for word, name in enumerate(words):
            axes.text(d_model * (word + 0.5), 0.47, name, ha="center", va="center", fontsize=10)
        for bottom, portion in ((1.7, d_k), (-1.4, cells // heads)):  # the numbers that a head takes in a row
            for number, left in enumerate(range(0, cells, portion)):
                head = number % heads
                color = PALETTE[head % len(PALETTE)]
                tile = Rectangle((left, bottom), portion, 0.7, facecolor=color, alpha=0.45, edgecolor="white")
                axes.add_patch(tile)
                name = str(head) if portion == d_k else f"head {head}"
                axes.text(left + portion / 2, bottom + 0.33, name, ha="center", va="center", fontsize=9)
        axes.text(cells / 2, 2.55, "the head that gets these numbers", ha="center", va="bottom", fontsize=9, color=GRAY)
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
