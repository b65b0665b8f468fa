"""Text cut into tokens."""

from collections.abc import Mapping, Sequence

from matplotlib.colors import to_rgb
from matplotlib.patches import FancyBboxPatch

from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, panels

CHARACTER, ROW, GAP = 0.088, 0.44, 0.03  # inches: a character's width, a row's height, the room between two tokens
INSIDE = 0.07  # inches: the room in a token's box, left and right together
SHADES = [tuple(0.7 + 0.3 * part for part in to_rgb(color)) for color in PALETTE[:4]]


def tokens(rows: Mapping[str, Sequence[str]], *, title: str, alt: str) -> Picture:
    """The same text cut in several ways: one row a way, one box a token; a space shows as `▁`.

    Args:
        rows: name of the way → its tokens, as they are to be read.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    widths = [sum(CHARACTER * len(token) + GAP + INSIDE for token in row) for row in rows.values()]
    with drawing():
        figure, (axes,) = panels(width=max([*widths, 3.0]) + 1.9, height=ROW * len(rows) + 0.55)
        for row_index, (name, row) in enumerate(rows.items()):
            axes.text(-0.12, -row_index * ROW, name, ha="right", va="center", color=GRAY)
            left = 0.0
            for i, token in enumerate(row):
                width = CHARACTER * len(token) + INSIDE
                box = FancyBboxPatch(
                    (left, -row_index * ROW - 0.14),
                    width,
                    0.28,
                    "round,pad=0,rounding_size=0.05",
                    facecolor=SHADES[i % len(SHADES)],
                    edgecolor="none",
                )
                axes.add_patch(box)
                axes.text(
                    left + width / 2,
                    -row_index * ROW,
                    token.replace(" ", "▁"),
                    ha="center",
                    va="center",
                    family="monospace",
                    fontsize=10,
                )
                left += width + GAP
        axes.set(xlim=(-1.4, max(widths) + 0.05), ylim=(-ROW * (len(rows) - 0.45), 0.3), aspect="equal")
        axes.axis("off")
        axes.set_title(title)
        return Picture(figure, alt)
