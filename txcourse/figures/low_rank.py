"""Products of matrices, drawn to scale: what makes attention long, and what makes it short."""

from collections.abc import Mapping, Sequence

from matplotlib.patches import Rectangle

from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, panels


def products(rows: Mapping[str, Sequence[tuple[str, int | float, int | float]]], *, title: str, alt: str) -> Picture:
    """Rows of matrices that are multiplied, each a rectangle to scale with its name inside or below.

    Args:
        rows: name → the factors from left to right, each a name, a height and a width, in any one unit.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    tallest = max(height for factors in rows.values() for _, height, _ in factors)
    gap, between = 0.16 * tallest, 0.45 * tallest
    widths = [sum(width + gap for *_, width in factors) - gap for factors in rows.values()]
    with drawing():
        total = sum(widths) + between * (len(rows) - 1)
        figure, (axes,) = panels(width=9.2, height=9.2 * 1.55 * tallest / total)
        axes.axis("off")
        left = 0.0
        for (name, factors), width in zip(rows.items(), widths, strict=True):
            axes.text(left + width / 2, 0.68 * tallest, name, ha="center", va="bottom", fontsize=11)
            for place, (label, high, wide) in enumerate(factors):
                color = PALETTE[place % len(PALETTE)]
                axes.add_patch(Rectangle((left, -high / 2), wide, high, facecolor=color, alpha=0.45, edgecolor=color))
                axes.text(left + wide / 2, -0.57 * tallest, label, ha="center", va="top", fontsize=10)
                if place:
                    axes.text(left - gap / 2, 0, "·", ha="center", va="center", color=GRAY, fontsize=13)
                left += wide + gap
            left += between - gap
        axes.set(xlim=(-0.1 * tallest, total + 0.1 * tallest), ylim=(-0.85 * tallest, 0.85 * tallest), aspect="equal")
        axes.set_title(title)
        return Picture(figure, alt)
