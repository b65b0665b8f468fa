"""Learning: a game, paths of optimizers, a matrix as an ellipse, training runs, tables before and after."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.patches import Rectangle
from torch import Tensor

from txcourse.figures.shapes import PALE, arrow, box
from txlib.plots.charts import ranges
from txlib.plots.matrices import draw_cells, name_cells
from txlib.plots.picture import GRAY, MAX_INCHES, PALETTE, Picture, color_cycle, drawing, headline, ink, panels


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
        for axes, (name, points), color in zip(all_axes, paths.items(), color_cycle(), strict=False):
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


def seeds(
    losses: Mapping[str, Sequence[float]],
    *,
    title: str,
    xlabel: str,
    mark: float | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> Picture:
    """The losses of several seeds: a dot at their mean, a line from the least to the greatest (`txlib.plots.ranges`).

    Args:
        losses: name → the loss of each seed.
    """
    values = {name: (min(runs), sum(runs) / len(runs), max(runs)) for name, runs in losses.items()}
    alt = "; ".join(f"{name}: {mean:.2f}, from {low:.2f} to {high:.2f}" for name, (low, mean, high) in values.items())
    return ranges(values, title=title, xlabel=xlabel, mark=mark, groups=groups, alt=f"Losses. {alt}.")


def seeds_by_rate(
    losses: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    levels: Mapping[str, float],
    title: str,
    xlabel: str,
) -> Picture:
    """The losses of several seeds at each learning rate: a row for each model, in it a dot for each rate's mean.

    Args:
        losses: model → rate → the loss of each seed; all models have the same rates.
        levels: name → a loss to compare with, drawn as a dotted line.
    """
    rates = list(next(iter(losses.values())))
    alt = "Losses (mean, least to greatest). "
    with drawing():
        figure, (axes,) = panels(width=7.6, height=1.3 + 0.48 * len(losses))
        for name, level in levels.items():
            axes.axvline(level, color=GRAY, linestyle=":", linewidth=1.5, zorder=1)
            axes.text(level, -0.6, name, ha="center", va="bottom", color=GRAY, fontsize=10)
        for row, (name, by_rate) in enumerate(losses.items()):
            for index, (rate, color) in enumerate(zip(rates, color_cycle(), strict=False)):
                runs = by_rate[rate]
                mean, height = sum(runs) / len(runs), row + 0.3 * (index / max(1, len(rates) - 1) - 0.5)
                axes.plot([min(runs), max(runs)], [height, height], color=color, linewidth=2.5, alpha=0.5)
                axes.plot(mean, height, "o", color=color, markersize=7, label=f"rate {rate}" if row == 0 else None)
                alt += f"{name}, rate {rate}: {mean:.2f}, {min(runs):.2f} to {max(runs):.2f}. "
        axes.set_yticks(range(len(losses)), list(losses))
        axes.set(xlabel=xlabel, ylim=(len(losses) - 0.5, -0.6))
        axes.tick_params(axis="y", length=0)
        axes.legend(loc="lower center", frameon=False, fontsize=10)
        axes.set_title(title, pad=20)
        return Picture(figure, alt.strip())


def ellipses(matrices: Mapping[str, Float[Tensor, "2 2"]], *, title: str) -> Picture:
    """Where each matrix takes the circle of radius 1: an ellipse whose axes are as long as its singular values.

    Args:
        matrices: with the same axes, which are the first one's.
    """
    turn, _, _ = torch.linalg.svd(next(iter(matrices.values())))
    alt = "The image of a circle under each matrix, and its two axes. Their lengths: "
    alt += "; ".join(
        f"{name} {' and '.join(f'{value:.2f}' for value in torch.linalg.svdvals(matrix).tolist())}"
        for name, matrix in matrices.items()
    )
    angle = torch.linspace(0, 2 * torch.pi, 100)
    circle = torch.stack([angle.cos(), angle.sin()])
    with drawing():
        figure, all_axes = panels(len(matrices), width=0.4 + 2.3 * len(matrices), height=2.9)
        for axes, (name, matrix) in zip(all_axes, matrices.items(), strict=True):
            lengths = (turn.T @ matrix).norm(dim=1)
            axes.plot(*circle, color=PALE, linewidth=1.5)
            axes.plot(*(matrix @ circle), color=PALETTE[0])
            for axis, length, color in zip(turn.T.tolist(), lengths.tolist(), PALETTE[1:], strict=False):
                x, y = (part if axis[1] > 0 else -part for part in axis)
                arrow(axes, (0, 0), (length * x, length * y), color)
                out = max(1, length) + 0.3
                axes.text(out * x, out * y, f"{length:.2f}", ha="center", va="center", color=ink(color))
            axes.set(xlim=(-1.6, 1.6), ylim=(-1.25, 1.5), aspect="equal")
            axes.axis("off")
            axes.set_title(name, fontweight="normal", fontsize=11, loc="center")
        headline(figure, title)
        return Picture(figure, alt)


def training(
    panels_of: Mapping[str, Sequence[Mapping[str, Sequence[float]]]],
    *,
    rows: Mapping[str, str],
    window: int,
    title: str,
    log: Sequence[str] = (),
    levels: Mapping[str, Mapping[str, float]] | None = None,
) -> Picture:
    """What was noted during training: a column for each setting, a row for each quantity, a line for each seed.

    Args:
        panels_of: name of the setting → its runs; each has one mean per window for each quantity.
        rows: quantity → its axis label.
        window: steps that each value is a mean of.
        log: quantities with a logarithmic axis.
        levels: quantity → name → a value to compare with, drawn dashed.
    """
    alt = f"A column for each setting; in its rows {' and '.join(rows.values())}, a line for each seed. At the end:"
    for name, runs in panels_of.items():
        ends = (f"{rows[quantity]} " + ", ".join(f"{run[quantity][-1]:.2g}" for run in runs) for quantity in rows)
        alt += f" {' '.join(name.split())}: {'; '.join(ends)}."
    with drawing():
        width = min(MAX_INCHES, 2.4 * len(panels_of))
        figure, all_axes = panels(
            len(rows) * len(panels_of), width=width, height=2.7 * len(rows), columns=len(panels_of), sharey="row"
        )
        for place, (quantity, label) in enumerate(rows.items()):
            line = all_axes[place * len(panels_of) : (place + 1) * len(panels_of)]
            for axes, (name, runs) in zip(line, panels_of.items(), strict=True):
                for seed, (run, color) in enumerate(zip(runs, color_cycle(), strict=False)):
                    steps = [window * (index + 1) for index in range(len(run[quantity]))]
                    axes.plot(steps, run[quantity], color=color, linewidth=1.5, label=f"seed {seed}")
                for level_name, level in (levels or {}).get(quantity, {}).items():
                    axes.axhline(level, color=GRAY, linestyle="--", linewidth=1, zorder=1)
                    if axes is line[0]:
                        across = axes.get_yaxis_transform()
                        axes.text(
                            0.98, level, level_name, transform=across, ha="right", va="bottom", fontsize=9, color=GRAY
                        )
                if quantity in log:
                    axes.set_yscale("log")
                if place == 0:
                    axes.set_title(name, fontweight="normal", fontsize=10)
                if place == len(rows) - 1:
                    axes.set_xlabel("training step")
            line[0].set_ylabel(label)
        all_axes[-len(panels_of)].legend(loc="lower right", fontsize=9, frameon=False)
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
