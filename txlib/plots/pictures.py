"""Photographs in gray, with what a model does to them laid on top: heat, and arrows from pixel to pixel."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from torch import Tensor

from txlib.plots.picture import PALETTE, Picture, drawing, fit, headline, panels

Pixel = tuple[int | float, int | float]
Arrow = tuple[Pixel, Pixel, int | float]
"""From (row, column) to (row, column), in pixels, with a weight between 0 and 1."""


def pictures(
    images: Float[Tensor, "count height width"],
    *,
    title: str,
    alt: str,
    names: Sequence[str] | None = None,
    columns: int | None = None,
    heat: Float[Tensor, "count rows columns"] | None = None,
    marks: Sequence[Pixel] | None = None,
    arrows: Sequence[Sequence[Arrow]] | None = None,
    size: int | float = 1.2,
    span: tuple[int | float, int | float] | None = None,
) -> Picture:
    """Gray pictures side by side, the larger a number the brighter.

    Args:
        names: a title for each.
        columns: how many stand in a row; unless given, as many as fit.
        heat: laid over each picture in orange, whatever its own rows and columns; the largest of each is solid.
        marks: (row, column) of each picture, in pixels, where a cross is drawn.
        arrows: of each picture; thicker for a greater weight.
        size: of a picture, in inches.
        span: the numbers that are black and white; each picture's own least and greatest unless given.

    Raises:
        ValueError: when there is not one name, mark or list of arrows for each picture.
    """
    count, height, width = images.shape
    for what, values in (("names", names), ("marks", marks), ("arrows", arrows)):
        if values is not None and len(values) != count:
            raise ValueError(f"{what} holds {len(values)} entries for {count} pictures: give one for each")
    with drawing():
        down, across, _ = fit(count, 1, size, smallest=size, margin=0.2, gap=0.1)
        if columns is not None:
            down, across = -(-count // columns), columns
        named = 0.28 if names else 0.0
        figure, all_axes = panels(
            count, width=0.2 + across * (size + 0.1), height=0.45 + down * (size + 0.1 + named), columns=across
        )
        for number, axes in enumerate(all_axes):
            low, high = span or (None, None)
            axes.imshow(images[number].detach().numpy(), cmap="gray", vmin=low, vmax=high)
            if heat is not None:
                warm = heat[number].detach().numpy()
                strength = np.clip(warm / max(warm.max(), 1e-9), 0, 1)
                cells = np.concatenate([np.broadcast_to([0.84, 0.37, 0.0], (*warm.shape, 3)), strength[..., None]], -1)
                axes.imshow(cells, extent=(-0.5, width - 0.5, height - 0.5, -0.5), interpolation="nearest")
            for start, end, weight in arrows[number] if arrows is not None else ():
                axes.annotate(
                    "",
                    (end[1], end[0]),
                    (start[1], start[0]),
                    arrowprops={
                        "arrowstyle": "-|>",
                        "color": PALETTE[1],
                        "linewidth": 0.8 + 2.2 * weight,
                        "mutation_scale": 9,
                        "shrinkA": 0,
                        "shrinkB": 0,
                    },
                )
            if marks is not None:
                axes.plot(marks[number][1], marks[number][0], "x", color=PALETTE[5], markersize=7, markeredgewidth=2.5)
            axes.set(xticks=[], yticks=[], xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
            axes.spines[:].set_visible(False)
            if names:
                axes.set_title(names[number], fontweight="normal", fontsize=10, loc="center")
        headline(figure, title)
        return Picture(figure, alt)
