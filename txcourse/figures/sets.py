"""Sets of points in the plane, and the clusters that somebody sees in them."""

from collections.abc import Mapping, Sequence

from jaxtyping import Float
from matplotlib.patches import Ellipse
from torch import Tensor

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
