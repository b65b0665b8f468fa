"""What all figures share: the palette, the fonts, and a picture that carries its own description."""

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from io import BytesIO
from itertools import cycle
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.typing import ColorType
from PIL import Image, ImageChops

PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
"""Okabe & Ito's colors, told apart by color-blind readers, in the order in which the course uses them."""

GRAY = "#6b6b6b"
SEQUENTIAL = "Blues"
MAX_INCHES = 9.8
"""Inches: a figure that is wider cannot be read beside a page of text."""

HEADLINE = 0.3
"""Inches above the panels, for the title of all."""

UNSEEN = 16
"""Of 255: what a color may change by when a picture is made smaller; the edges of letters do, and nobody sees it."""

GROUND = "background: white; border-radius: 6px; box-sizing: border-box; color: black; display: inline-block; "
GROUND += "margin: 0; max-width: 100%; padding: 8px"
"""A figure's own ground, white on dark pages, too."""

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
        data, metadata = bundle(smaller(file.getvalue()), self.alt)
        return data | {"text/plain": repr(self)}, metadata


def bundle(png: bytes, alt: str) -> tuple[dict, dict]:
    """A notebook's output of a picture, and its metadata.

    JupyterLab and pages made of a notebook show the HTML, for it alone brings the description to screen readers;
    GitHub shows the PNG.
    """
    width = int.from_bytes(png[16:20], "big") // 2  # a PNG's width; shown at half size it is sharp
    source, said = b64encode(png).decode(), escape(alt)
    image = f'<img alt="{said}" width="{width}" style="max-width: 100%" src="data:image/png;base64,{source}">'
    html = f'<figure style="{GROUND}">{image}</figure>'
    return {"image/png": png, "text/html": html}, {"image/png": {"alt": alt, "width": width}}


def smaller(png: bytes) -> bytes:
    """The same picture in 256 colors, a third as many bytes; in all its colors where a reader would miss some."""
    picture = Image.open(BytesIO(png)).convert("RGB")
    quantized = picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    seen = ImageChops.difference(picture, quantized.convert("RGB")).point(lambda change: 255 * (change > UNSEEN))
    file = BytesIO()
    (picture if seen.getbbox() else quantized).save(file, "png", optimize=True)
    return file.getvalue()


def color_cycle() -> Iterator[str]:
    """The palette, then gray, over and over: however many lines there are, each gets a color, and none is dropped."""
    return cycle([*PALETTE, GRAY])


def contrast(one: ColorType, other: ColorType) -> float:
    """How far two colors differ in brightness, 1 to 21 (WCAG 2.2). Words need 4.5, lines that mean something 3."""
    dark, light = sorted(map(_luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def ink(color: ColorType, least: int | float = 4.5) -> ColorType:
    """The color, darkened as far as it must be to be read on white."""
    red, green, blue = to_rgb(color)
    shades = ((red * light, green * light, blue * light) for light in (1 - step / 100 for step in range(101)))
    return next(shade for shade in shades if contrast(shade, "white") >= least)


def words_on(ground: ColorType) -> str:
    """White or black, whichever is easier to read on a color."""
    return max(("white", "black"), key=lambda color: contrast(color, ground))


def _luminance(color: ColorType) -> float:
    linear = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(color))
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


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
    """How to keep a figure of several panels within `MAX_INCHES`: smaller cells first, then more than one row.

    Args:
        count: of panels. cells: across one panel.
        size: of a cell at most, and `smallest`, at least. margin: beside all panels. gap: beside each. All in inches.

    Returns:
        rows and columns of panels, and the size of a cell.
    """
    room = MAX_INCHES - margin
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
