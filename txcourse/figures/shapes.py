"""What drawings are made of: boxes with a word in them, and arrows from one to the next."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from txlib.plots.picture import GRAY

PALE = "#e4e4e4"


def box(
    axes: Axes,
    x: int | float,
    y: int | float,
    width: int | float,
    height: int | float,
    text: str = "",
    fill: str = PALE,
    *,
    pad: float = 0.05,
    alpha: float = 1.0,
    **text_style: Any,
) -> None:
    """A box with round corners, and text in its middle, at (x, y); both stand above lines.

    Args:
        width, height: in the units of the axes. pad: what the round corners add on each side.
        text_style: of the text, as matplotlib names it, e.g. fontsize.
    """
    corner = (x - width / 2, y - height / 2)
    style: dict[str, Any] = {"facecolor": fill, "edgecolor": "none", "alpha": alpha, "zorder": 4}
    axes.add_patch(FancyBboxPatch(corner, width, height, f"round,pad={pad}", **style))
    axes.text(x, y, text, **{"ha": "center", "va": "center", "linespacing": 1.1, "zorder": 5, **text_style})


def arrow(
    axes: Axes,
    start: tuple[int | float, int | float],
    end: tuple[int | float, int | float],
    color: str = GRAY,
    *,
    width: int | float = 1.5,
    head: int = 12,
    gap: int = 0,
    alpha: float = 1.0,
) -> None:
    """A straight arrow.

    Args:
        width: of the line, and `head`, the size of the head. gap: left free at both ends. All in points.
    """
    style = {"arrowstyle": "-|>", "mutation_scale": head, "color": color, "linewidth": width, "alpha": alpha}
    axes.annotate("", end, start, arrowprops=style | {"shrinkA": gap, "shrinkB": gap})
