"""Sets of points in the plane, and the clusters that somebody sees in them."""

from collections.abc import Mapping, Sequence

from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse, Rectangle
from torch import Tensor

from txcourse.figures.shapes import arrow
from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, headline, ink, panels

Clusters = tuple[Float[Tensor, "sets clusters 2"], Float[Tensor, "sets clusters 2"]]
"""Means and standard deviations, along both axes."""


def clusters(
    points: Float[Tensor, "sets points 2"],
    seen: Mapping[str, Clusters],
    *,
    title: str,
    alt: str,
    names: Sequence[str] | None = None,
    weights: Float[Tensor, "sets points"] | None = None,
) -> Picture:
    """Sets of points side by side, with an ellipse of two standard deviations around each cluster.

    Args:
        seen: who sees which clusters; each has a color of its own, and the later ones are dashed.
        names: a title for each set.
        weights: of each point, whose dot is the larger; all are alike unless given.
    """
    with drawing():
        figure, all_axes = panels(len(points), width=min(9.8, 0.6 + 2.3 * len(points)), height=3.0, sharey=True)
        for number, (axes, cloud) in enumerate(zip(all_axes, points, strict=True)):
            x, y = cloud.detach().T
            if weights is None:
                axes.plot(x, y, ".", color=GRAY, markersize=4)
            else:
                sizes = 4 + 120 * weights[number] / weights[number].max()
                axes.scatter(x, y, s=sizes.tolist(), color=GRAY, alpha=0.7)
            for place, (mean, deviation) in enumerate(seen.values()):
                for center, spread in zip(mean[number].detach(), deviation[number].detach(), strict=True):
                    axes.add_patch(
                        Ellipse(
                            center.tolist(),
                            *(4 * spread).tolist(),
                            fill=False,
                            edgecolor=PALETTE[place],
                            linewidth=2,
                            linestyle=(0, (3, 2)) if place else "-",
                        )
                    )
            axes.set(xlim=(-6.2, 6.2), ylim=(-6.2, 6.2), xticks=(-4, 0, 4), aspect="equal", xlabel="x")
            if names:
                axes.set_title(names[number], fontweight="normal", fontsize=11)
        all_axes[0].set_ylabel("y")
        for place, name in enumerate(seen):
            axes = all_axes[0]
            axes.text(0.03, 0.03 + 0.1 * place, name, color=ink(PALETTE[place]), transform=axes.transAxes, fontsize=10)
        headline(figure, title)
        return Picture(figure, alt)


ROWS, LATENTS, CELL = 16, 4, 0.3


def perceiver(*, asked: int = 0, title: str, alt: str) -> Picture:
    """A Perceiver from left to right: latents look at an array, think, and look again (Jaegle et al. 2021, figure 1).

    Args:
        asked: output queries, which look at the latents at the end (Jaegle et al. 2022, figure 2); the latents then
            look at the array once. 0: their mean is the answer.
    """
    with drawing():
        figure, (axes,) = panels(1, width=9.4, height=3.6)
        axes.set(xlim=(-0.6, 11.4), ylim=(-3.2, 2.9), aspect="equal")
        axes.axis("off")
        _column(axes, 0.0, ROWS, GRAY, "array\nn rows")
        places = (2.6, 5.0) if asked else (2.6, 5.0, 7.4)
        for x in places:
            _column(axes, x, LATENTS, PALETTE[0], "latents\nm rows")
        _fan(axes, 0.0, ROWS, 2.6, LATENTS, "look\nn · m")
        arrow(axes, (3.0, 0.0), (4.6, 0.0), gap=2)
        axes.text(3.8, 0.25, "blocks\nm² each", ha="center", fontsize=10)
        if asked:
            _column(axes, 7.6, asked, PALETTE[1], "answers\no rows")
            _fan(axes, 5.0, LATENTS, 7.6, asked, "look\no · m")
            axes.text(
                8.0, 0.0, "a query for each\nsays what is wanted", va="center", fontsize=10, color=ink(PALETTE[1])
            )
        else:
            axes.plot([0.0, 0.0, 6.2], [-2.5, -2.95, -2.95], color=GRAY, linewidth=1.5)
            arrow(axes, (6.2, -2.95), (6.2, -0.05), gap=0)
            arrow(axes, (5.4, 0.0), (7.0, 0.0), gap=2)
            axes.text(6.2, 0.25, "look again,\nblocks", ha="center", fontsize=10)
            arrow(axes, (7.8, 0.0), (9.2, 0.0), gap=2)
            axes.text(8.5, 0.25, "mean", ha="center", fontsize=10)
            axes.text(9.3, 0.0, "answer", va="center", fontsize=11, color=ink(PALETTE[1]))
        headline(figure, title)
        return Picture(figure, alt)


def _column(axes: Axes, x: float, count: int, color: str, name: str) -> None:
    """Rows, one above the other, and their name above them."""
    top = count * CELL / 2
    for row in range(count):
        corner = (x - CELL / 2, top - (row + 1) * CELL)
        axes.add_patch(Rectangle(corner, CELL, CELL, facecolor=color, edgecolor="white", alpha=0.8, zorder=4))
    if top > 2:
        axes.text(x - 0.3, 0.0, name, ha="right", va="center", fontsize=10)
    else:
        axes.text(x, -top - 0.12, name, ha="center", va="top", fontsize=10)


def _fan(axes: Axes, left: float, many: int, right: float, few: int, name: str) -> None:
    """Lines from all rows on the left to all on the right, and what they cost."""
    for row in range(many):
        for other in range(few):
            ends = ((row + 0.5 - many / 2) * CELL, (other + 0.5 - few / 2) * CELL)
            axes.plot((left + 0.2, right - 0.2), ends, color=GRAY, linewidth=0.5, alpha=0.6)
    axes.text((left + right) / 2, max(many, few) * CELL / 2 * 0.72, name, ha="center", va="bottom", fontsize=10)
