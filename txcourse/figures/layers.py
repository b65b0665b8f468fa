"""A stack of layers: how a block is wired, the vectors that pass through it, and the loss around its weights."""

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor, nn

from txcourse.figures.shapes import arrow, box
from txlib.plots.charts import landscapes
from txlib.plots.matrices import draw_cells, name_cells
from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, fit, headline, panels

STREAM, BRANCH, WIDE = 0.0, 1.45, 1.5
NORM, SUBLAYER = PALETTE[4], PALETTE[5]


def block() -> Picture:
    """A Transformer block, wired pre-norm and post-norm, side by side (Xiong et al. 2020, figure 1)."""
    alt = (
        "Two wiring diagrams, read from the bottom. In both, a thick vertical line carries x past attention and "
        "past the feed-forward network, and the output of each is added to the line. Left, pre-norm: the norms "
        "stand on the branches, and the line reaches the top untouched. Right, post-norm: after each addition the "
        "line itself passes through a norm."
    )
    with drawing():
        figure, (left, right) = panels(2, width=8.4, height=5.6)
        for axes, norm_first in ((left, True), (right, False)):
            _wiring(axes, norm_first=norm_first)
        left.set_title("pre-norm: x + sublayer(norm(x))", fontweight="normal", fontsize=11, loc="center")
        right.set_title("post-norm: norm(x + sublayer(x))", fontweight="normal", fontsize=11, loc="center")
        headline(figure, "Pre-norm leaves the residual stream free; post-norm puts a norm across it")
        return Picture(figure, alt)


def vectors(
    layers: Mapping[str, Float[Tensor, "token dimension"]],
    *,
    title: str,
    alt: str,
    rows: Sequence[str] | None = None,
) -> Picture:
    """The vectors of the same tokens at several places, side by side: one row per token, blue below 0, red above.

    Each panel has a color scale of its own, so that its pattern shows whatever its size.

    Args:
        layers: name of the place → the vectors there.
        rows: names of the tokens.
    """
    count, dimension = next(iter(layers.values())).shape
    with drawing():
        down, across, size = fit(len(layers), dimension, 0.2, smallest=0.1, margin=1.4, gap=0.3)
        width, height = 1.4 + across * (0.3 + size * dimension), 0.4 + down * (0.9 + 0.3 * count)
        figure, all_axes = panels(len(layers), width=width, height=height, columns=across, sharey=True)
        for axes, (name, x) in zip(all_axes, layers.items(), strict=True):
            draw_cells(axes, x, numbers=False, diverging=True)
            name_cells(axes, rows, None)
            axes.set_title(name, fontweight="normal", fontsize=11)
            axes.set(xlabel="dimension", xticks=[])
        headline(figure, title)
        return Picture(figure, alt)


@torch.no_grad()
def loss_landscapes(
    models: Mapping[str, nn.Module],
    loss: Callable[[nn.Module], Tensor],
    *,
    title: str,
    alt: str,
    points: int = 13,
    seed: int = 1,
) -> Picture:
    """The loss around each model's weights, along two random directions (Li et al. 2018).

    Each row of a matrix moves along a random row of its own length (the paper's filter normalization); norms and biases
    stay. Afterwards the models have their own weights again.
    """
    surfaces: dict[str, list[list[float]]] = {}
    for name, model in models.items():
        random = torch.Generator().manual_seed(seed)
        weights = [*model.parameters()]
        start = [weight.clone() for weight in weights]
        one, two = ([_direction(weight, random) for weight in start] for _ in range(2))
        surfaces[name] = []
        for y in torch.linspace(-1, 1, points):
            surfaces[name].append([])
            for x in torch.linspace(-1, 1, points):
                for weight, here, first, second in zip(weights, start, one, two, strict=True):
                    weight.copy_(here + x * first + y * second)
                surfaces[name][-1].append(loss(model).item())
        for weight, here in zip(weights, start, strict=True):
            weight.copy_(here)
    return landscapes(surfaces, title=title, alt=alt)


def _direction(weight: Tensor, random: torch.Generator) -> Tensor:
    if weight.dim() < 2:
        return torch.zeros_like(weight)
    direction = torch.randn(weight.shape, generator=random)
    return direction * weight.norm(dim=1, keepdim=True) / direction.norm(dim=1, keepdim=True)


def _wiring(axes: Axes, *, norm_first: bool) -> None:
    """One block, from x at the bottom to the next block at the top."""
    axes.axis("off")
    axes.set(xlim=(-1.0, 2.9), ylim=(-0.35, 10.5))
    arrow(axes, (STREAM, 0.2), (STREAM, 9.9), PALETTE[0], width=5, head=22)
    axes.text(STREAM, -0.25, "x", ha="center", style="italic")
    axes.text(STREAM, 10.1, "to the next block", ha="center", color=GRAY)
    for bottom, name in ((0.0, "multi-head\nattention"), (4.6, "feed-forward\nnetwork")):
        leave, join = bottom + 0.75, bottom + (4.1 if norm_first else 3.2)
        axes.plot([STREAM, BRANCH], [leave, leave], color=GRAY, linewidth=1.5)
        arrow(axes, (BRANCH, leave), (BRANCH, bottom + (1.2 if norm_first else 1.4)))
        if norm_first:
            box(axes, BRANCH, bottom + 1.55, WIDE, 0.7, "norm", NORM)
            arrow(axes, (BRANCH, bottom + 1.9), (BRANCH, bottom + 2.3))
        middle = bottom + (2.8 if norm_first else 1.95)
        box(axes, BRANCH, middle, WIDE, 1.05, name, SUBLAYER)
        axes.plot([BRANCH, BRANCH], [middle + 0.52, join], color=GRAY, linewidth=1.5)
        arrow(axes, (BRANCH, join), (STREAM + 0.2, join))
        axes.plot(STREAM, join, "o", markersize=17, markerfacecolor="white", markeredgecolor=PALETTE[0], zorder=4)
        axes.text(STREAM, join - 0.02, "+", ha="center", va="center", fontsize=14, zorder=5)
        if not norm_first:
            box(axes, STREAM, bottom + 4.15, WIDE, 0.7, "norm", NORM)
