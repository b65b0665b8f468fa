"""Learning: a game, paths of optimizers, singular values, what was noted during training, tables before and after."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.patches import Rectangle
from torch import Tensor

from txcourse.figures.shapes import PALE, arrow, box
from txlib.plots.charts import lines
from txlib.plots.matrices import draw_cells, name_cells
from txlib.plots.picture import GRAY, PALETTE, WIDEST, Picture, drawing, headline, panels


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


def ablation(
    losses: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
    levels: Mapping[str, float],
    *,
    window: int,
    colors: Mapping[str, str],
    title: str,
) -> Picture:
    """How models learn with a part taken out: means over the seeds, each at the better of its learning rates.

    Args:
        losses: name → rate → the losses of each seed, means of `window` steps.
        levels: name → a loss to compare with, drawn dashed.
        colors: by name.
    """
    curves: dict[str, tuple[range, list[float]]] = {}
    shades = dict.fromkeys(levels, GRAY)
    for name, rates in losses.items():
        means = {rate: np.mean(runs, axis=0).tolist() for rate, runs in rates.items()}
        rate = min(means, key=lambda rate: means[rate][-1])
        curves[f"{name}, {rate}"] = (range(window, window * len(means[rate]) + 1, window), means[rate])
        shades[f"{name}, {rate}"] = colors[name]
    steps = next(iter(curves.values()))[0]
    ends = {name: (range(steps[0], steps[-1] + 1, steps[-1] - steps[0]), [level] * 2) for name, level in levels.items()}
    return lines(
        curves | ends,
        dashed=list(levels),
        colors=shades,
        width=8.2,
        height=4.2,
        title=title,
        xlabel="training step",
        ylabel=f"loss (nats), mean of {window} steps",
        alt=f"Loss curves over {steps[-1]} steps, with the learning rate of each. At the end: "
        + ", ".join(f"{name} {values[-1]:.2f}" for name, (_, values) in curves.items())
        + "; dashed lines at "
        + " and ".join(f"{level:.2f}, {name}" for name, level in levels.items())
        + ".",
    )


def singular_values(spectra: Mapping[str, Float[Tensor, "values"]], *, title: str, alt: str) -> Picture:
    """All singular values of each matrix as bars, the largest first; one panel each, on the same scale."""
    with drawing():
        figure, all_axes = panels(len(spectra), width=1.0 + 3.6 * len(spectra), height=2.8, sharey=True)
        for axes, (name, values), color in zip(all_axes, spectra.items(), PALETTE, strict=False):
            axes.bar(range(1, len(values) + 1), values.tolist(), color=color)
            axes.set(xlabel="direction")
            axes.set_title(name, fontweight="normal", fontsize=11)
        all_axes[0].set_ylabel("singular value")
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


def guessing_game(
    english: Sequence[str],
    german: Sequence[str],
    weights: Float[Tensor, "english german"],
    *,
    sentences: int,
    title: str,
    alt: str,
) -> Picture:
    """How an English and a German sentence get one logit, and where it stands in the table of all of them.

    Args:
        english, german: the words of two partners.
        weights: of the German words for each English word; the larger, the thicker its line.
        sentences: how many of each are mixed; the table's side.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    with drawing():
        figure, (axes,) = panels(width=10.0, height=3.8)
        axes.set(xlim=(-0.8, 10.8), ylim=(-0.5, 3.7), aspect="equal")
        axes.axis("off")
        side, left, bottom = 2.4 / sentences, 8.3, 0.2
        heads = {
            0: "English word:\nquery q",
            2.5: "German words:\nkeys and values",
            5: "mixture of values;\nits product with q",
            left + 1.2: "one logit per pair;\npartners: the diagonal",
        }
        for x, head in heads.items():
            axes.text(x, 3.65, head, ha="center", va="top", fontsize=9, color=GRAY)
        rows = [2.6 - 2.4 * row / (len(english) - 1) for row in range(len(english))]
        keys = [2.6 - 2.4 * row / (len(german) - 1) for row in range(len(german))]
        for word, y in zip(german, keys, strict=True):
            box(axes, 2.5, y, 1.2, 0.28, word, PALE)
        for word, y, row in zip(english, rows, weights, strict=True):
            box(axes, 0, y, 1.2, 0.28, word, PALETTE[0], alpha=0.4)
            for key, weight in zip(keys, row.tolist(), strict=True):
                axes.plot([0.65, 1.85], [y, key], color=PALETTE[0], linewidth=5 * weight)
                axes.plot([3.15, 4.6], [key, y], color=PALETTE[0], linewidth=5 * weight)
            box(axes, 5, y, 0.7, 0.28, "found · q", PALETTE[3], alpha=0.4, fontsize=9)
            arrow(axes, (5.5, y), (6.5, 1.4), width=1)
        box(axes, 6.9, 1.4, 0.6, 0.28, "mean", PALETTE[3], alpha=0.6)
        for row in range(sentences):
            for column in range(sentences):
                corner = (left + side * column, bottom + side * (sentences - 1 - row))
                color = PALETTE[3] if row == column else PALE
                axes.add_patch(Rectangle(corner, side, side, alpha=0.6, facecolor=color, edgecolor="white"))
        middle = side * (sentences // 2 + 0.5)  # of a cell on the diagonal
        arrow(axes, (7.3, 1.4), (left + middle, bottom + 2.4 - middle), color="black")
        axes.text(left + 1.2, bottom - 0.1, "German sentence", ha="center", va="top", fontsize=9)
        axes.text(left + 2.5, bottom + 1.2, "English sentence", rotation=90, ha="left", va="center", fontsize=9)
        headline(figure, title)
        return Picture(figure, alt)
