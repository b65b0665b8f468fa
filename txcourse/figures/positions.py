"""Where position enters attention, and how vectors turn with it."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from matplotlib.patches import Circle, Rectangle
from torch import Tensor

from txcourse.figures.shapes import PALE, arrow, box
from txlib.plots.matrices import heatmap
from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, headline, ink, panels

LATER = "#f4f4f4"


def entrances(*, title: str, alt: str) -> Picture:
    """The way from a word to what attention gives it, the three places where position can enter, and Shaw's side door.

    Args:
        title: what to see. alt: the same for a reader who cannot see it.
    """
    stations = ["word\nvector", "query\nand key", "score", "weight", "average\nof values"]
    doors = {  # what is done: by whom, where along the way, and how far up the arrow goes
        "add a row": ("learned,\nsinusoidal", 2, -0.08),
        "turn both": ("rotary", 4, -0.52),
        "change the score": ("ALiBi, T5,\nShaw", 8, -0.52),
        "add to the values": ("Shaw's side door", 16, -0.52),
    }
    with drawing():
        figure, (axes,) = panels(width=10.4, height=2.4)
        axes.set(xlim=(-0.8, 17.3), ylim=(-2.1, 0.6))
        axes.axis("off")
        for number, station in enumerate(stations):
            box(axes, 4 * number, 0, 1.5, 0.9, station)
            if number:
                arrow(axes, (4 * number - 3.15, 0), (4 * number - 0.85, 0))
        for (what, (names, door, top)), color in zip(doors.items(), (*PALETTE[:3], PALETTE[2]), strict=True):
            arrow(axes, (door, -1.15), (door, top), color)
            axes.text(door, -1.2, what, ha="center", va="top", color=ink(color), fontweight="bold")
            axes.text(door, -1.62, names, ha="center", va="top", color=GRAY, fontsize=10)
        headline(figure, title)
        return Picture(figure, alt)


def turns(arrows: Float[Tensor, "pair position 2"], *, title: str, alt: str) -> Picture:
    """Pairs of dimensions as arrows in the plane, one circle per pair and one arrow per position.

    Args:
        arrows: of length 1, the first position first; later ones are drawn paler.
    """
    count, positions, _ = arrows.shape
    with drawing():
        figure, all_axes = panels(count, width=0.4 + 2.1 * count, height=2.9)
        for pair, axes in enumerate(all_axes):
            axes.add_patch(Circle((0, 0), 1, fill=False, edgecolor=PALE, linewidth=1.5))
            for position, (x, y) in enumerate(arrows[pair].tolist()):
                shade = 1 - 0.75 * position / max(1, positions - 1)
                arrow(axes, (0, 0), (x, y), PALETTE[0], width=2, alpha=shade)
                if count == 1 or pair == 0 or position in (0, positions - 1):
                    axes.text(1.17 * x, 1.17 * y, str(position), ha="center", va="center", color=GRAY, fontsize=9)
            axes.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")
            axes.axis("off")
            axes.set_title(f"pair {pair}", fontweight="normal", fontsize=11, loc="center")
        headline(figure, title)
        return Picture(figure, alt)


def rearranging(
    steps: Mapping[str, Int[Tensor, "rows columns"]],
    groups: Mapping[str, Int[Tensor, "rows columns"]],
    *,
    title: str,
    alt: str,
    format: str = "{:02d}",
) -> Picture:
    """The same numbers moving from one matrix to the next, each in the color of its group.

    Args:
        steps: name of a step → the numbers in the matrix then.
        groups: name of the step → the number of each cell's color; -1 for padding, whose numbers are below 0, and -2
            for what is left over.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    rows = max(len(matrix) for matrix in steps.values())
    columns = sum(matrix.shape[1] + 1 for matrix in steps.values())
    with drawing():
        figure, all_axes = panels(
            len(steps),
            width=0.46 * columns,
            height=1.1 + 0.46 * rows,
            width_ratios=[matrix.shape[1] for matrix in steps.values()],
        )
        for axes, (name, matrix) in zip(all_axes, steps.items(), strict=True):
            for row, (values, colors) in enumerate(zip(matrix.tolist(), groups[name].tolist(), strict=True)):
                for column, (value, group) in enumerate(zip(values, colors, strict=True)):
                    face = {-1: "white", -2: LATER}.get(group, PALETTE[group % len(PALETTE)])
                    corner = (column, row)
                    axes.add_patch(Rectangle(corner, 1, 1, facecolor=face, alpha=0.45, edgecolor="none"))
                    axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=GRAY, linewidth=0.6))
                    text = "0" if value < 0 else format.format(value)
                    color = GRAY if group < 0 else "black"
                    axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=color, fontsize=10)
            axes.set(xlim=(-0.05, matrix.shape[1] + 0.05), ylim=(rows + 0.05, -0.05), aspect="equal")
            axes.axis("off")
            axes.set_title(name, fontweight="normal", fontsize=10)
        headline(figure, title)
        return Picture(figure, alt)


def weight_by_distance(
    weights: Mapping[str, Float[Tensor, "batch head query key"]], *, title: str, alt: str, far: int = 8
) -> Picture:
    """The mean weight that each head gives to the key itself and to the `far` before it, of queries that have so many.

    Args:
        weights: name of the model → its attention weights.
    """
    rows: dict[str, Tensor] = {}
    for name, weight in weights.items():
        back = [weight.diagonal(-s, dim1=-2, dim2=-1)[..., far - s :].mean(dim=(0, 2)) for s in range(far + 1)]
        for head, by_distance in enumerate(torch.stack(back, dim=-1)):
            rows[f"{name}, head {head}"] = by_distance
    columns = [str(-s) for s in range(far + 1)]
    table = torch.stack([*rows.values()])
    return heatmap(
        table, title=title, alt=alt, rows=[*rows], columns=columns, xlabel="distance of the key", ylabel="",
        numbers=False, size=0.3, bar="weight",
    )  # fmt: skip
