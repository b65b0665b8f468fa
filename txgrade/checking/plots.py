"""A plot as evidence: what its Axes hold. No pixels are compared; a picture is kept for people."""

import base64
import io
import sys
from typing import Any

import numpy as np

DATA = ("lines", "scatters", "bars", "images")
WORDS = ("labels", "limits", "scales", "title", "legend")
LARGEST = 20  # inches a side of a figure that is drawn for people


def is_plot(value: Any) -> bool:
    """Return whether a value is matplotlib's Axes or Figure. Who has made one has imported matplotlib."""
    if "matplotlib.axes" not in sys.modules:
        return False
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

    return isinstance(value, (Axes, FigureBase))


def plot(value: Any, what: tuple[str, ...] = DATA) -> dict | list[dict]:
    """Return what an Axes holds, or each of a figure's Axes: a dict of arrays and texts.

    lines: x and y of each, in the order of drawing · scatters: (point, 2) positions · bars: positions and lengths,
    upright or lying, histograms too · images: values · labels: of the x and y axes · limits · scales: linear or log ·
    title · legend: its texts; then lines and scatters hold their labels too.

    Raises:
        ValueError: `what` names something else.
    """
    unknown = [part for part in what if part not in DATA + WORDS]
    if unknown or not what:
        raise ValueError(f"show.axes(…, what={what!r}): choose among {', '.join(DATA + WORDS)}")
    if hasattr(value, "get_axes"):  # a figure
        return [_drawn(axes, what) for axes in value.get_axes()]
    return _drawn(value, what)


def _drawn(axes: Any, what: tuple[str, ...]) -> dict:
    """Return what one Axes holds."""
    kinds = {part: _PARTS[part](axes) for part in DATA + WORDS if part in what}
    if "legend" not in what:
        for lines in (*kinds.get("lines", ()), *kinds.get("scatters", ())):
            del lines["label"]
    return kinds


def picture(value: Any) -> tuple[str, str] | None:
    """Return a figure for people: PNG in base 64 and its text for who can't see it. Then pyplot forgets the figure.

    None where it is too large to draw, or can't be drawn.
    """
    figure = value if hasattr(value, "get_axes") else value.get_figure()
    if figure is None:
        return None
    data = io.BytesIO()
    try:
        if max(figure.get_size_inches()) > LARGEST:
            return None
        figure.savefig(data, format="png", dpi=80)
    except Exception:  # a learner's plot may refuse to be drawn; what it holds is judged all the same
        return None
    finally:
        if pyplot := sys.modules.get("matplotlib.pyplot"):
            pyplot.close(figure)
    return base64.b64encode(data.getvalue()).decode(), "; ".join(map(_alt, figure.get_axes()))


def _lines(axes: Any) -> list[dict]:
    return [
        {"x": _numbers(line.get_xdata(orig=False)), "y": _numbers(line.get_ydata(orig=False)), "label": _label(line)}
        for line in axes.get_lines()
    ]


def _scatters(axes: Any) -> list[dict]:
    from matplotlib.collections import PathCollection

    return [
        {"offsets": _numbers(collection.get_offsets()), "label": _label(collection)}
        for collection in axes.collections
        if isinstance(collection, PathCollection)
    ]


def _bars(axes: Any) -> list[dict]:
    from matplotlib.container import BarContainer

    bars = []
    for container in axes.containers:
        if isinstance(container, BarContainer):
            lying = container.orientation == "horizontal"
            boxes = [
                (patch.get_y() + patch.get_height() / 2, patch.get_width())
                if lying
                else (patch.get_x() + patch.get_width() / 2, patch.get_height())
                for patch in container.patches
            ]
            numbers = np.asarray(boxes, dtype=np.float64).reshape(-1, 2)
            bars.append({"positions": numbers[:, 0], "heights": numbers[:, 1], "lying": lying})
    return bars


def _images(axes: Any) -> list[np.ndarray]:
    from matplotlib.collections import QuadMesh

    meshes = [mesh for mesh in axes.collections if isinstance(mesh, QuadMesh)]
    return [_numbers(mesh.get_array()) for mesh in (*axes.get_images(), *meshes)]


def _legend(axes: Any) -> list[str]:
    legend = axes.get_legend()
    return [text.get_text() for text in legend.get_texts()] if legend else []


_PARTS = {
    "lines": _lines,
    "scatters": _scatters,
    "bars": _bars,
    "images": _images,
    "labels": lambda axes: [axes.get_xlabel(), axes.get_ylabel()],
    "limits": lambda axes: [[float(limit) for limit in limits] for limits in (axes.get_xlim(), axes.get_ylim())],
    "scales": lambda axes: [axes.get_xscale(), axes.get_yscale()],
    "title": lambda axes: axes.get_title(),
    "legend": _legend,
}


def _numbers(values: Any) -> np.ndarray:
    return np.ma.filled(np.ma.asarray(values, dtype=np.float64), np.nan)


def _label(artist: Any) -> str:
    label = str(artist.get_label())
    return "" if label.startswith("_") else label  # matplotlib's own: _child0


def _alt(axes: Any) -> str:
    parts = [axes.get_title() or "A plot"]
    if axes.get_xlabel() or axes.get_ylabel():
        parts.append(f"{axes.get_ylabel() or 'y'} over {axes.get_xlabel() or 'x'}")
    return ": ".join(parts)[:200]
