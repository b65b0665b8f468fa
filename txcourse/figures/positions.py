"""Where position enters attention, and how vectors turn with it."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from matplotlib.patches import Circle, Rectangle
from torch import Tensor

from txcourse.figures.shapes import PALE, arrow, box
from txlib.plots.matrices import draw_cells, name_cells
from txlib.plots.picture import GRAY, PALETTE, Picture, color_cycle, drawing, headline, ink, panels

LATER = "#f4f4f4"
DOORS = PALETTE[0], PALETTE[1], PALETTE[2], PALETTE[2]  # words, queries and keys, scores, values (Shaw's alone)


def entrances() -> Picture:
    """The way from a word to what attention gives it, and the places where position can enter."""
    alt = (
        "A chain of five boxes: word vector, query and key, score, weight, average of values. Learned and sinusoidal "
        "positions add a vector between the first two. Rotary turns query and key. ALiBi, T5 and Shaw change the "
        "score. Shaw also adds to the values, at the last box."
    )
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
        for (what, (names, door, top)), color in zip(doors.items(), DOORS, strict=True):
            arrow(axes, (door, -1.15), (door, top), color)
            axes.text(door, -1.2, what, ha="center", va="top", color=ink(color), fontweight="bold")
            axes.text(door, -1.62, names, ha="center", va="top", color=GRAY, fontsize=10)
        headline(figure, "Position can enter through three doors, and Shaw's side door")
        return Picture(figure, alt)


def reader() -> Picture:
    """Lesson 05's model of one attention layer: its parts, and the method that opens each of its doors."""
    alt = (
        "From left to right: letters; their word vectors; x; query, key and value; score; weight; found; a small "
        "network; the next letter. x also goes to the small network directly, past attention. Four colored arrows from "
        "below are the doors: add changes the word vectors (Learned, Sinusoidal), turn the queries and keys "
        "(Rotating), bias the scores (Alibi, OneNumber, Shaw), side adds to what was found (Shaw)."
    )
    stations = ["letters", "word", "x", "q, k, v", "score", "weight", "found", "read", "next\nletter"]
    doors = {  # method: the classes that define it, where along the way, and how far up the arrow goes
        "add": ("Learned\nSinusoidal", 3.0, -0.08),
        "turn": ("Rotating", 6.0, -0.52),
        "bias": ("Alibi\nOneNumber\nShaw", 8.0, -0.52),
        "side": ("Shaw", 12.0, -0.52),
    }
    with drawing():
        figure, (axes,) = panels(width=9.8, height=3.0)
        axes.set(xlim=(-0.8, 16.8), ylim=(-2.5, 1.5))
        axes.axis("off")
        for number, station in enumerate(stations):
            box(axes, 2 * number, 0, 1.1, 0.8, station)
            if number:
                arrow(axes, (2 * number - 1.38, 0), (2 * number - 0.62, 0))
        axes.plot([4, 4, 14], [0.45, 1.1, 1.1], color=GRAY, linewidth=1.5)
        arrow(axes, (14, 1.1), (14, 0.45))
        axes.text(9, 1.16, "the letter itself, past attention", ha="center", va="bottom", color=GRAY, fontsize=10)
        for (method, (classes, door, top)), color in zip(doors.items(), DOORS, strict=True):
            arrow(axes, (door, -1.15), (door, top), color)
            axes.text(door, -1.2, method, ha="center", va="top", color=ink(color), fontweight="bold")
            axes.text(door, -1.6, classes, ha="center", va="top", color=GRAY, fontsize=10)
        headline(figure, "A reader, and the method that opens each door")
        return Picture(figure, alt)


def sinusoids(rows: Float[Tensor, "position dimension"]) -> Picture:
    """A table of sinusoidal positions, and the dot products of all pairs of its rows."""
    alt = (
        f"Left: a table of {len(rows)} positions by {rows.shape[1]} dimensions. The left columns swing quickly between "
        "-1 and 1; to the right they become slower until they hardly change. Right: the dot products of all pairs of "
        "positions, darkest on the main diagonal. Each diagonal has one color; they fade in waves with the distance."
    )
    with drawing():
        figure, (table, products) = panels(2, width=10.4, height=4.3, width_ratios=[rows.shape[1], len(rows)])
        panel_of = {"entry": (table, rows, "dimension", "position"),
                    "dot product": (products, rows @ rows.T, "position $j$", "position $i$")}  # fmt: skip
        for bar, (axes, matrix, across, down) in panel_of.items():
            image = draw_cells(axes, matrix, numbers=False, diverging=axes is table)
            name_cells(axes, None, None)
            axes.set(xlabel=across, ylabel=down)
            scale = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02)
            scale.ax.set_title(bar, fontweight="normal", fontsize=10)
            scale.outline.set_visible(False)
        table.set_title("fast waves on the left, slow ones on the right", fontweight="normal", fontsize=11)
        products.set_title("each diagonal has one color", fontweight="normal", fontsize=11)
        headline(figure, "The dot product of two rows depends on their distance alone")
        return Picture(figure, alt)


def beyond(
    readers: Mapping[str, Mapping[str, Float[Tensor, " window"]]],
    *,
    trained: int,
    level: float,
    title: str,
    window: int = 8,
) -> Picture:
    """The loss by position, also beyond the trained length: a panel for each group of readers.

    Args:
        readers: group → reader → its loss, a mean for each `window` positions.
        trained: the length that they were trained on.
        level: a loss to compare with, drawn dotted.
    """
    alt = "Loss by position. In the first window after the trained length, and in the last: "
    inside = trained // window
    found = {name: loss for group in readers.values() for name, loss in group.items()}
    alt += "; ".join(f"{name} {loss[inside]:.2f} and {loss[-1]:.2f}" for name, loss in found.items()) + "."
    gap = (max(loss.max() for loss in found.values()) - min(loss.min() for loss in found.values())).item() / 16
    with drawing():
        figure, all_axes = panels(len(readers), width=10.0, height=4.2, sharey=True)
        for axes, (group, losses) in zip(all_axes, readers.items(), strict=True):
            axes.axvline(trained, color=GRAY, linestyle=":", linewidth=1.5, zorder=1)
            axes.axhline(level, color=GRAY, linestyle=":", linewidth=1.5, zorder=1)
            lowest = -torch.inf
            for (name, loss), color in zip(
                sorted(losses.items(), key=lambda item: item[1][-1].item()), color_cycle(), strict=False
            ):
                middle = torch.arange(len(loss)) * window + window / 2
                axes.plot(middle.tolist(), loss.tolist(), color=ink(color, 3))
                lowest = max(lowest + gap, loss[-1].item())
                axes.text(middle[-1].item() + 4, lowest, name, va="center", color=ink(color), fontsize=10)
            axes.set(xlabel="position in the text", xlim=(0, window * len(loss) * 1.25))
            axes.set_xticks(range(0, window * len(loss) + 1, trained))
            axes.set_title(group, fontweight="normal", fontsize=11)
        across = all_axes[0].get_xaxis_transform()
        all_axes[0].text(
            trained - 2, 0.98, "trained\nto here", transform=across, va="top", ha="right", color=GRAY, fontsize=9
        )
        all_axes[0].set_ylabel(f"loss (nats), mean of {window}")
        headline(figure, title)
        return Picture(figure, alt)


def dials(
    turned: Mapping[str, tuple[Float[Tensor, "pair 2"], Float[Tensor, "pair 2"]]],
    score: tuple[Sequence[int], Sequence[float]],
    *,
    distance: int,
    title: str,
    alt: str,
) -> Picture:
    """A query's and a key's arrows, a circle for each pair of dimensions and a row for each two positions, and scores.

    Args:
        turned: the two positions → the query's arrows and the key's.
        score: distances, and the score of the whole query and key at each. distance: of the rows' positions, marked.
    """
    longest = max(arrows.norm(dim=-1).max().item() for both in turned.values() for arrows in both)
    with drawing():
        rows = [1.0] * len(turned)
        figure, all_axes = panels(
            len(rows) + 1, width=6.4, height=2.6 + 1.6 * len(rows), columns=1, height_ratios=[*rows, 1.5]
        )
        for axes, (name, both) in zip(all_axes, turned.items(), strict=False):
            axes.axis("off")
            axes.set(xlim=(-1.1, 2.4 * len(both[0]) - 1.3), ylim=(-1.05, 1.05), aspect="equal")
            axes.set_title(name, fontweight="normal", fontsize=11)
            for arrows, color in zip(both, color_cycle(), strict=False):
                for pair, (x, y) in enumerate((arrows / longest).tolist()):
                    center = (2.4 * pair, 0)
                    axes.add_patch(Circle(center, (x * x + y * y) ** 0.5, fill=False, edgecolor=color, alpha=0.25))
                    arrow(axes, center, (2.4 * pair + x, y), color, width=2.5)
        for pair in range(len(both[0])):
            all_axes[len(rows) - 1].text(
                2.4 * pair, -1.1, f"pair {pair}", ha="center", va="top", color=GRAY, fontsize=9
            )
        curve = all_axes[-1]
        curve.plot(*score, color=PALETTE[0])
        curve.plot(distance, score[1][score[0].index(distance)], "o", color=PALETTE[1], markersize=8)
        curve.set(xlabel="distance, key − query", ylabel="score")
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


def picking() -> Picture:
    """Shaw's scores: each query meets the vector of each bucket once, and each key picks the number of its bucket."""
    position = torch.arange(4)
    bucket = (position[None, :] - position[:, None]).clamp(-1, 1) + 1  # (query, key)
    by_bucket = 10 * position[:, None] + torch.arange(3)  # (query, bucket)
    picked = by_bucket.gather(1, bucket)  # (query, key)
    steps = {"one per bucket": by_bucket, "which bucket?": bucket, "picked: one per key": picked}
    picture = rearranging(
        steps,
        {name: matrix % 10 for name, matrix in steps.items()},
        title="Few products, picked many times",
        alt="Three matrices. First four queries by three buckets: 00, 01, 02 in the first row, 30, 31, 32 in the last. "
        "Then the bucket of each query and key: 1 on the diagonal, 0 below, 2 above. Then each query's number of that "
        "bucket: the last row is 30, 30, 30, 31.",
    )
    for axes, (name, matrix) in zip(
        picture.axes, zip(("bucket", "key", "key"), steps.values(), strict=True), strict=True
    ):
        axes.text(matrix.shape[1] / 2, 4.15, name, ha="center", va="top", color=GRAY, fontsize=10)
    picture.axes[0].text(-0.15, 2, "query", rotation=90, ha="right", va="center", color=GRAY, fontsize=10)
    return picture


def rearranging(
    steps: Mapping[str, Int[Tensor, "rows columns"]],
    groups: Mapping[str, Int[Tensor, "rows columns"]],
    *,
    title: str,
    alt: str,
) -> Picture:
    """The same numbers moving from one matrix to the next, each in the color of its group.

    They have two digits, unless all of a matrix are below 10.

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
            digits = 2 if matrix.max() > 9 else 1
            for row, (values, colors) in enumerate(zip(matrix.tolist(), groups[name].tolist(), strict=True)):
                for column, (value, group) in enumerate(zip(values, colors, strict=True)):
                    face = {-1: "white", -2: LATER}.get(group, PALETTE[group % len(PALETTE)])
                    corner = (column, row)
                    axes.add_patch(Rectangle(corner, 1, 1, facecolor=face, alpha=0.45, edgecolor="none"))
                    axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=GRAY, linewidth=0.6))
                    text = "0" if value < 0 else f"{value:0{digits}d}"
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
    tables: dict[str, Tensor] = {}
    for name, weight in weights.items():
        back = [weight.diagonal(-s, dim1=-2, dim2=-1)[..., far - s :].mean(dim=(0, 2)) for s in range(far + 1)]
        tables[name] = torch.stack(back, dim=-1)  # (head, distance)
    largest = max(table.max().item() for table in tables.values())
    rows = [f"head {head + 1}" for head in range(len(next(iter(tables.values()))))]
    with drawing():
        columns = min(2, len(tables))
        down = -(-len(tables) // columns)
        height = down * (1.0 + 0.3 * len(rows))
        figure, all_axes = panels(len(tables), width=1.5 + 3.6 * columns, height=height, columns=columns)
        for axes, (name, table) in zip(all_axes, tables.items(), strict=True):
            image = draw_cells(axes, table, numbers=False, limit=largest)
            name_cells(axes, rows, [str(-s) for s in range(far + 1)])
            axes.set_title(name, fontweight="normal", fontsize=11)
            axes.set(xlabel="distance of the key")
        scale = figure.colorbar(image, ax=list(all_axes), fraction=0.05, pad=0.02, label="weight")
        scale.outline.set_visible(False)
        headline(figure, title)
        return Picture(figure, alt)
