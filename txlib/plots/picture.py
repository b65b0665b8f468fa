"""What all figures share: the palette, the fonts, and a picture that carries its own description."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
"""Okabe & Ito's colours, told apart by colour-blind readers, in the order in which the course uses them."""

GREY = "#6b6b6b"
SEQUENTIAL = "Blues"
WIDEST = 9.8
"""Inches: a figure that is wider cannot be read beside a page of text."""

HEADLINE = 0.3
"""Inches above the panels, for the title of all."""

STYLE: dict[Any, Any] = {
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "figure.dpi": 72,
    "font.size": 11,
    "lines.linewidth": 2,
}


class Picture:
    """A finished figure, shown by a notebook when it is a cell's last value.

    Args:
        figure: the matplotlib figure, for changing or saving it.
        alt: what a reader who cannot see it needs to know; also what is printed where pictures cannot be shown.
    """

    def __init__(self, figure: Figure, alt: str):
        self.figure, self.alt = figure, alt

    @property
    def axes(self) -> list[Axes]:
        return self.figure.axes

    def save(self, path: str) -> None:
        """Write the picture to a file; the ending says the format."""
        self.figure.savefig(path, dpi=144, bbox_inches="tight")

    def __repr__(self) -> str:
        return f"Picture: {self.alt}"

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        file = BytesIO()
        self.figure.savefig(file, format="png", dpi=144, bbox_inches="tight", facecolor="white")
        png = file.getvalue()
        width = int.from_bytes(png[16:20], "big") // 2  # a PNG's width; shown at half size it is sharp
        return {"image/png": png, "text/plain": repr(self)}, {"image/png": {"alt": self.alt, "width": width}}


@contextmanager
def drawing() -> Iterator[None]:
    """Inside, matplotlib draws in the course's style."""
    with matplotlib.rc_context(STYLE):
        yield


def panels(
    count: int = 1, *, width: float = 6.4, height: float = 3.6, columns: int | None = None, **options
) -> tuple[Figure, list[Axes]]:
    """A new figure with axes side by side; sizes in inches, for the whole figure.

    Args:
        count: how many axes.
        columns: how many stand in a row; unless given, all.
    """
    columns = columns or count
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(-(-count // columns), columns, squeeze=False, **options).flatten()
    for unused in axes[count:]:
        unused.remove()
    return figure, list(axes[:count])


def fit(
    count: int, cells: int, size: int | float, *, smallest: int | float, margin: int | float, gap: int | float
) -> tuple[int, int, float]:
    """How to keep a figure of several panels within `WIDEST`: smaller cells first, then more than one row.

    Args:
        count: of panels. cells: across one panel.
        size: of a cell at most, and `smallest`, at least. margin: beside all panels. gap: beside each. All in inches.

    Returns:
        rows and columns of panels, and the size of a cell.
    """
    room = WIDEST - margin
    columns = min(count, max(1, int(room / (gap + smallest * cells))))
    rows = -(-count // columns)
    columns = -(-count // rows)  # rows that are equally full
    return rows, columns, min(size, max(smallest, (room / columns - gap) / cells))


def headline(figure: Figure, title: str) -> None:
    """The title of a figure with several panels, in a strip of its own above them."""
    height = figure.get_figheight()
    figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - HEADLINE / height), h_pad=0.1)
    for axes in figure.axes:
        axes.set_anchor("N")  # room that a panel does not use is below it
    figure.text(0.01, 1 - 0.04 / height, title, ha="left", va="top", fontweight="bold", fontsize=12)
