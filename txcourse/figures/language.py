"""A decoder that predicts each next token, and words as points in a plane."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from txcourse.figures.shapes import arrow, box
from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, ink, panels

SIDES = (6, 0), (-6, 0), (0, 11), (0, -11), (6, 9), (6, -9), (-6, 9), (-6, -9), (6, 18), (6, -18)
"""Where a label may be, in points from its point, the best first."""
READ, PREDICTED, SEEN = PALETTE[5], PALETTE[4], PALETTE[0]


def next_token(tokens: Sequence[str], *, highlight: int, title: str, alt: str) -> Picture:
    """A tower without encoder: what it reads below, what it is to predict above, one place to the left.

    Args:
        tokens: the text; all but the last are read, all but the first predicted. A space shows as `▁`.
        highlight: the place whose view of the past is drawn thick, counted from 0.
        title: what to see. alt: the same for a reader who cannot see it.

    Raises:
        ValueError: when there are fewer than two tokens, or no such place among those that are read.
    """
    if len(tokens) < 2 or not 0 <= highlight < len(tokens) - 1:
        raise ValueError(f"{len(tokens)} tokens and highlight={highlight}: needs 0 <= highlight < tokens - 1")
    shown = [token.replace(" ", "▁").replace("\n", "⏎") for token in tokens]
    n = len(tokens) - 1
    with drawing():
        figure, (axes,) = panels(width=max(6.4, 0.85 * n + 2.4), height=4.2)
        axes.set(xlim=(-2.1, n - 0.3), ylim=(-0.7, 6.1))
        axes.axis("off")
        axes.set_title(title)
        axes.add_patch(FancyBboxPatch((-0.45, 1.0), n - 0.1, 3.3, "round,pad=0.08", facecolor=PREDICTED, alpha=0.18))
        for query in range(n):
            thick = query == highlight
            for key in range(query + 1):
                look: dict[str, Any] = (
                    {"color": SEEN, "linewidth": 2.4, "zorder": 3} if thick else {"color": GRAY, "alpha": 0.25}
                )
                axes.plot([key, query], [1.2, 4.1], **{"linewidth": 0.8, **look})
            axes.plot([query, query], [0.35, 1.2], color=GRAY, linewidth=1.2)
            arrow(axes, (query, 4.1), (query, 4.95), SEEN if thick else GRAY)
            for place, text, color in ((0.0, shown[query], READ), (5.3, shown[query + 1], PREDICTED)):
                box(axes, query, place, 0.66, 0.6, text, color, pad=0.03, family="monospace", fontsize=12)
        for place, text in ((0.0, "it reads"), (2.65, "blocks,\nlooking\nback only"), (5.3, "it is to\npredict")):
            axes.text(-0.75, place, text, ha="right", va="center", color=GRAY)
        return Picture(figure, alt)


def plane(kinds: Mapping[str, Mapping[str, tuple[float, float] | Sequence[float]]], *, title: str, alt: str) -> Picture:
    """Words as points, a color for each kind, whose name stands in bold above its words.

    Args:
        kinds: name → word → its place in the plane.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    with drawing():
        figure, (axes,) = panels(width=6.4, height=4.6)
        labels = []
        for (kind, words), color in zip(kinds.items(), PALETTE, strict=False):
            x = sum(place[0] for place in words.values()) / len(words)
            top = max(place[1] for place in words.values())
            bold: dict[str, Any] = {"color": ink(color), "weight": "bold", "ha": "center"}
            axes.annotate(kind, (x, top), (0, 24), textcoords="offset points", **bold)
            for word, (x, y) in words.items():
                axes.plot(x, y, "o", color=color, markersize=5)
                look: dict[str, Any] = {"textcoords": "offset points", "color": ink(color), "fontsize": 10}
                labels.append(axes.annotate(word, (x, y), (0, 0), **look))
        axes.set(xticks=[], yticks=[], aspect="equal")
        axes.margins(0.12, 0.16)
        axes.set_title(title)
        _part(figure, axes, labels)
        return Picture(figure, alt)


def _part(figure: Figure, axes: Axes, labels: Sequence[Annotation]) -> None:
    """Put each label where it covers neither a point nor another label: to the right, to the left, above, or below."""
    figure.draw_without_rendering()  # settles the scales
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in axes.transData.transform([each.xy for each in labels])]
    for label in labels:
        for x, y in SIDES:
            label.set(position=(x, y), ha="left" if x > 0 else "right" if x < 0 else "center", va="center")
            box = label.get_window_extent()
            if not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)
