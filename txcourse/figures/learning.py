"""Learning: the paths of optimizers down a valley, what was noted during training, and tables before and after."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from torch import Tensor

from txlib.plots.matrices import draw_cells, name_cells
from txlib.plots.picture import PALETTE, WIDEST, Picture, drawing, headline, panels


def valley(
    paths: Mapping[str, Sequence[Sequence[float]]],
    steepness: tuple[int | float, int | float],
    *,
    title: str,
    alt: str,
    first: str = "first weight",
    second: str = "second weight",
) -> Picture:
    """The paths of optimizers on the loss (steepness[0] * a² + steepness[1] * b²) / 2, from above; one panel each.

    Args:
        paths: name of the optimizer → its points (a, b), the start first.
        first, second: the names of the two weights.
    """
    a, b = np.meshgrid(np.linspace(-1.3, 1.3, 80), np.linspace(-0.4, 1.3, 80))
    loss = (steepness[0] * a**2 + steepness[1] * b**2) / 2
    with drawing():
        figure, all_axes = panels(len(paths), width=3.0 * len(paths), height=3.4, sharey=True)
        for axes, (name, points), color in zip(all_axes, paths.items(), PALETTE, strict=False):
            axes.contour(a, b, loss**0.5, 12, colors="#c8c8c8", linewidths=0.8)
            axes.plot(*zip(*points, strict=True), "o-", color=color, markersize=3.5, linewidth=1.2)
            axes.plot(0, 0, "x", color="black", markersize=9, markeredgewidth=2)
            axes.set_title(name, fontweight="normal", fontsize=11)
            axes.set(xlabel=first, xlim=(-1.3, 1.3), ylim=(-0.4, 1.3))
        all_axes[0].set_ylabel(second)
        headline(figure, title)
        return Picture(figure, alt)


def before_and_after(
    before: Float[Tensor, "rows columns"],
    after: Float[Tensor, "rows columns"],
    *,
    names: Sequence[str],
    xlabel: str,
    ylabel: str,
    title: str,
    alt: str,
) -> Picture:
    """Two tables of probabilities side by side, each with a scale of its own, from 0 to its largest.

    Args:
        names: a title for each.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    with drawing():
        figure, all_axes = panels(2, width=9.0, height=4.3, columns=2)
        for axes, table, name in zip(all_axes, (before, after), names, strict=True):
            image = draw_cells(axes, table, numbers=False)
            name_cells(axes, None, None)
            axes.set(xlabel=xlabel, ylabel=ylabel)
            axes.set_title(name, fontweight="normal", fontsize=11)
            scale = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02, label="probability")
            scale.outline.set_visible(False)
        headline(figure, title)
        return Picture(figure, alt)


def training(
    panels_of: Mapping[str, Sequence[Mapping[str, Sequence[float]]]],
    *,
    rows: Mapping[str, str],
    window: int,
    title: str,
    alt: str,
    log: Sequence[str] = (),
) -> Picture:
    """What was noted during training: a column for each setting, a row for each quantity, a line for each run.

    Args:
        panels_of: name of the setting → its runs; each has one mean per window for each quantity.
        rows: quantity → its axis label.
        window: steps that each value is a mean of.
        log: quantities with a logarithmic axis.
    """
    with drawing():
        width = min(WIDEST, 2.4 * len(panels_of))
        figure, all_axes = panels(
            len(rows) * len(panels_of), width=width, height=2.3 * len(rows), columns=len(panels_of), sharey="row"
        )
        for place, (quantity, label) in enumerate(rows.items()):
            line = all_axes[place * len(panels_of) : (place + 1) * len(panels_of)]
            for axes, (name, runs) in zip(line, panels_of.items(), strict=True):
                for run, color in zip(runs, PALETTE, strict=False):
                    steps = [window * (index + 1) for index in range(len(run[quantity]))]
                    axes.plot(steps, run[quantity], color=color, linewidth=1.5)
                if quantity in log:
                    axes.set_yscale("log")
                if place == 0:
                    axes.set_title(name, fontweight="normal", fontsize=10)
                if place == len(rows) - 1:
                    axes.set_xlabel("training step")
            line[0].set_ylabel(label)
        headline(figure, title)
        return Picture(figure, alt)
