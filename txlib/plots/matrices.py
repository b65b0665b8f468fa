"""Matrices: attention weights, masks, position tables."""

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import chain
from operator import or_
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from txlib.attention import Mask
from txlib.plots.picture import PALETTE, SEQUENTIAL, Picture, drawing, fit, headline, panels, words_on
from txlib.plots.ticks import ROUND

MARKS = ("", "o", "x", "+", "^", "s")
"""What stands in the cells of a mask's parts, so that they are told apart without colors."""


def heatmap(
    matrix: Float[Tensor, "rows columns"],
    *,
    title: str,
    alt: str,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    xlabel: str = "key",
    ylabel: str = "query",
    numbers: bool | None = None,
    diverging: bool = False,
    bar: bool | str | None = None,
    size: float = 0.5,
    span: tuple[float, float] | None = None,
) -> Picture:
    """A matrix as colored cells, one row per query and one column per key.

    Args:
        title: what to see. alt: the same for a reader who cannot see it.
        rows, columns: names of the rows and columns.
        numbers: print each value in its cell; by default when there are at most 80.
        diverging: for values around 0: blue below, red above.
        bar: draw the scale of the colors beside it; by default where no numbers are printed, or colors mean a sign.
            A text says beside it what the colors measure.
        size: of a cell, in inches.
        span: the values of the palest and the darkest color; from 0 to the largest unless given.
    """
    height, width = matrix.shape
    numbers = matrix.numel() <= 80 if numbers is None else numbers
    bar = diverging or not numbers if bar is None else bar
    with drawing():
        figure, (axes,) = panels(width=max(3.2, 1.6 + 0.7 * bool(bar) + size * width), height=1.3 + size * height)
        image = draw_cells(axes, matrix, numbers=numbers, diverging=diverging, span=span)
        name_cells(axes, rows, columns, most_letters=int(11 * size))
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.set_title(title)
        if bar:
            _scale(figure, image, axes, bar if isinstance(bar, str) else "value")
        return Picture(figure, alt)


def heads(
    weights: Float[Tensor, "heads query key"],
    *,
    title: str,
    alt: str,
    names: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    xlabel: str = "key",
    ylabel: str = "query",
    numbers: bool = False,
    bar: bool | None = None,
    size: float = 0.32,
) -> Picture:
    """The weights of several heads side by side, on one color scale from 0 to 1.

    Args:
        names: a title for each head; "head 0", "head 1" … unless given.
        numbers: print each value in its cell.
        bar: draw the scale of the colors beside them; by default where no numbers are printed.
    """
    count, query, key = weights.shape
    bar = not numbers if bar is None else bar
    with drawing():
        smallest, margin = 0.4 if numbers else 0.2, 1.2 + 0.7 * bar
        down, across, size = fit(count, key, size, smallest=smallest, margin=margin, gap=0.4)
        width, height = margin + across * (0.4 + size * key), 0.4 + down * (1.2 + size * query)
        figure, all_axes = panels(count, width=width, height=height, columns=across, sharey=True)
        for head, axes in enumerate(all_axes):
            image = draw_cells(axes, weights[head], numbers=numbers, limit=1.0)
            name_cells(axes, rows, columns, most_letters=int(11 * size))
            axes.set_title(names[head] if names else f"head {head}", fontweight="normal", fontsize=11)
            axes.set(xlabel=xlabel, ylabel="" if head % across else ylabel)
        headline(figure, title)
        if bar:
            _scale(figure, image, all_axes, "weight")
        return Picture(figure, alt)


def mask(
    masks: Mask | Mapping[str, Mask | Mapping[str, Mask]],
    length: int = 16,
    *,
    title: str | None = None,
    alt: str | None = None,
) -> Picture:
    """Masks drawn as squares, side by side: filled where the query of that row may attend to the key of that column.

    Args:
        masks: one mask, or several with the names to show. Instead of a mask, its parts by name, the later ones on
            top: parts of the same name have the same color in all squares.
        length: how many positions to draw.
    """
    named = {repr(masks): masks} if isinstance(masks, Mask) else masks
    parts = {name: {"": mask} if isinstance(mask, Mask) else mask for name, mask in named.items()}
    colors = {part: PALETTE[index % 6] for index, part in enumerate(dict.fromkeys(chain(*parts.values())))}
    marks = dict(zip(colors, MARKS * len(colors), strict=False))
    title = title or "Filled: the query may attend to the key"
    alt = alt or f"Who may attend to whom among {length} positions: " + "; ".join(
        f"{name}: {reduce(or_, masks.values()).pairs(length)} of {length * length} pairs"
        for name, masks in parts.items()
    )
    with drawing():
        down, across, size = fit(len(parts), 1, 2.9, smallest=2.2, margin=0.6, gap=0)
        width, height = 0.6 + size * across, 0.4 + (size + 0.6) * down
        figure, all_axes = panels(len(parts), width=width, height=height, columns=across)
        for number, (axes, (name, panel)) in enumerate(zip(all_axes, parts.items(), strict=True)):
            cells = torch.zeros(length, length)
            for index, part in enumerate(panel.values(), start=1):
                cells[part.dense(length)[0, 0]] = index
            palette = ListedColormap(["white", *(colors[part] for part in panel)])
            axes.pcolormesh(cells, vmin=0, vmax=len(panel), cmap=palette, edgecolors="#d9d9d9", linewidth=0.4)
            for index, label in enumerate(panel, start=1):
                row, column = (cells == index).nonzero().T + 0.5
                look: dict[str, Any] = {"markersize": 0.25 * 72 * size / length, "color": words_on(colors[label])}
                axes.plot(column, row, marker=marks[label], linestyle="none", **look)
            axes.set(aspect="equal", xlim=(0, length), ylim=(length, 0))
            axes.set(xlabel="key", ylabel="" if number % across else "query")
            _integer_ticks(axes, length)
            axes.set_title(name, fontweight="normal", fontsize=11)
        headline(figure, title)
        return Picture(figure, alt)


def draw_cells(
    axes: Axes,
    matrix: Tensor,
    *,
    numbers: bool,
    diverging: bool = False,
    limit: float | None = None,
    span: tuple[float, float] | None = None,
) -> AxesImage:
    values = matrix.detach().float().cpu().numpy()
    finite = values[np.isfinite(values)]
    limit = limit or (float(np.abs(finite).max()) if finite.size else 1.0) or 1.0
    lowest, limit = span or (-limit if diverging else 0.0, limit)
    shown = np.ma.masked_invalid(values)
    image = axes.imshow(shown, vmin=lowest, vmax=limit, aspect="auto", cmap="RdBu_r" if diverging else SEQUENTIAL)
    axes.spines[:].set_visible(False)
    if numbers:
        whole_numbers = bool((finite == finite.round()).all() and finite.size and finite.max() > 1)
        for (row, column), value in np.ndenumerate(values):
            text = f"{value:.0f}" if whole_numbers else f"{value:.2f}"
            text = text.replace("0.", ".") if abs(value) < 1 else text
            text = text if np.isfinite(value) else "−∞"
            color = words_on(tuple(image.to_rgba(value))) if np.isfinite(value) else "black"
            axes.text(column, row, text, ha="center", va="center", fontsize=9, color=color)
    return image


def _scale(figure: Figure, image: AxesImage, beside: Axes | list[Axes], label: str) -> None:
    """Which color is which number: a bar to the right of the axes."""
    scale = figure.colorbar(image, ax=beside, fraction=0.05, pad=0.02, aspect=12, label=label)
    scale.outline.set_visible(False)
    scale.ax.tick_params(length=0, labelsize=9)


def name_cells(axes: Axes, rows: Sequence[str] | None, columns: Sequence[str] | None, most_letters: int = 2) -> None:
    """Names of rows and columns; those of columns stand upright if a line of one has more than `most_letters`."""
    if columns is not None:
        longest = max(len(line) for name in columns for line in name.splitlines())
        axes.set_xticks(range(len(columns)), columns, rotation=90 if longest > most_letters else 0)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=ROUND, integer=True))
    if rows is not None:
        axes.set_yticks(range(len(rows)), rows)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=8, steps=ROUND, integer=True))
    axes.tick_params(length=0)


def _integer_ticks(axes: Axes, length: int) -> None:
    step = -(-length // 8)
    positions = torch.arange(0, length, step)
    axes.set_xticks(positions + 0.5, positions.tolist())
    axes.set_yticks(positions + 0.5, positions.tolist())
    axes.tick_params(length=0)
