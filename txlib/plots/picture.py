"""What all figures share: the palette, the fonts, and a picture that carries its own description."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
"""Okabe & Ito's colours, told apart by colour-blind readers, in the order in which the course uses them."""

GREY = "#6b6b6b"
SEQUENTIAL = "Blues"

STYLE = {
    "axes.prop_cycle": matplotlib.cycler(color=PALETTE),
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
        width = int.from_bytes(png[16:20], "big") // 2          # a PNG's width; shown at half size it is sharp
        return {"image/png": png, "text/plain": repr(self)}, {"image/png": {"alt": self.alt, "width": width}}


@contextmanager
def drawing() -> Iterator[None]:
    """Inside, matplotlib draws in the course's style."""
    with matplotlib.rc_context(STYLE):
        yield


def panels(columns: int = 1, *, width: float = 6.4, height: float = 3.6, **options) -> tuple[Figure, list[Axes]]:
    """A new figure with axes side by side; sizes in inches, for the whole figure."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False, **options)[0]
    return figure, list(axes)


def headline(figure: Figure, title: str) -> None:
    """The title of a figure with several panels."""
    figure.suptitle(title + "\n", x=0.01, ha="left", fontweight="bold", fontsize=12, linespacing=0.4)
