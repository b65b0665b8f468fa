"""The figures of lessons 35 to 37: numbers too small for a format, work on several ranks, the size for a budget."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from txcourse.figures.shapes import PALE
from txlib.plots.picture import GRAY, PALETTE, Picture, color_cycle, drawing, headline, ink, panels, words_on
from txlib.plots.ticks import readable

HATCHES = ["//", "..", "\\\\", "xx"]


def magnitudes(
    values: Mapping[str, Sequence[int | float]], smallest: int | float, *, name: str, title: str, alt: str, xlabel: str
) -> Picture:
    """How large numbers are, as histograms over powers of two; what is smaller than `smallest` is lost.

    Args:
        values: name → numbers, of either sign; zeros are left out.
        name: of the limit.
    """
    with drawing():
        figure, (axes,) = panels(width=7.2, height=3.4)
        sizes = {name: np.abs(np.asarray(numbers, dtype=float)) for name, numbers in values.items()}
        powers = {name: np.log2(magnitudes[magnitudes > 0]) for name, magnitudes in sizes.items()}
        low, high = min(logs.min() for logs in powers.values()), max(logs.max() for logs in powers.values())
        edges = np.arange(np.floor(low) - 1, np.ceil(high) + 3)
        for (series, magnitudes), color in zip(powers.items(), color_cycle(), strict=False):
            percent = 100 * np.histogram(magnitudes, edges)[0] / len(magnitudes)
            axes.stairs(percent, edges, fill=True, color=color, alpha=0.45)
            axes.text(float(np.median(magnitudes)), percent.max() + 2, series, color=ink(color, 7), ha="center")
        limit = float(np.log2(smallest))
        axes.axvspan(edges[0], limit, color=GRAY, alpha=0.15, linewidth=0)
        axes.axvline(limit, color=GRAY, linestyle=":")
        axes.margins(y=0.15)
        axes.text(edges[0] + 0.5, axes.get_ylim()[1] * 0.97, name, va="top")
        axes.set(xlabel=xlabel, ylabel="% of the numbers", xlim=(edges[0], edges[-1]))
        ticks = np.arange(np.ceil(edges[0] / 8) * 8, edges[-1] + 1, 8)
        axes.set_xticks(ticks, [f"$2^{{{tick:.0f}}}$" for tick in ticks])
        axes.set_title(title)
    return Picture(figure, alt)


def ring(world: int = 4, *, title: str, alt: str) -> Picture:
    """An all-reduce in a ring: a row for each rank, a column for each chunk, a panel for each step.

    Each cell says how many ranks' numbers are added up there; complete ones are green.
    """
    counts = [[1] * world for _ in range(world)]
    steps, captions = [counts], ["before", *["add"] * (world - 1), *["replace"] * (world - 1)]
    for step in range(2 * (world - 1)):
        before, counts = counts, [[*row] for row in counts]
        for rank in range(world):
            chunk = (rank - 1 - step) % world
            counts[rank][chunk] = before[rank - 1][chunk] + (before[rank][chunk] if step < world - 1 else 0)
        steps.append(counts)
    with drawing():
        figure, drawn = panels(len(steps), width=1.35 * len(steps) + 0.3, height=2.5)
        for axes, held, caption in zip(drawn, steps, captions, strict=True):
            for rank in range(world):
                for chunk in range(world):
                    count = held[rank][chunk]
                    complete = count == world
                    color = PALETTE[2] if complete else PALETTE[0]
                    alpha = 1.0 if complete else 0.15 + 0.6 * (count - 1) / max(world - 1, 1)
                    axes.add_patch(Rectangle((chunk, rank), 0.92, 0.92, facecolor=color, alpha=alpha))
                    axes.text(chunk + 0.46, rank + 0.46, str(count), ha="center", va="center",
                              color=words_on(color) if complete else "black", fontsize=9)  # fmt: skip
            axes.set(xlim=(-0.05, world), ylim=(world, -0.05), aspect="equal", xticks=[], yticks=[])
            axes.set_xlabel(caption, fontsize=9)
            axes.spines[:].set_visible(False)
        drawn[0].set_yticks([rank + 0.46 for rank in range(world)], [f"rank {rank}" for rank in range(world)])
        drawn[0].tick_params(axis="y", length=0)
        headline(figure, title)
    return Picture(figure, alt)


def shards(ways: Mapping[str, Sequence[Mapping[str, int | float]]], *, title: str, alt: str) -> Picture:
    """What each rank holds: a panel for each way to share, a bar for each rank, its parts end to end.

    Args:
        ways: name → for each rank, part → size; all have the same parts.
    """
    largest = max(sum(parts.values()) for ranks in ways.values() for parts in ranks)
    with drawing():
        figure, drawn = panels(len(ways), width=9.4, height=1.1 + 0.32 * len(next(iter(ways.values()))))
        for axes, (name, ranks) in zip(drawn, ways.items(), strict=True):
            for rank, parts in enumerate(ranks):
                left = 0.0
                for (part, size), color in zip(parts.items(), color_cycle(), strict=False):
                    axes.barh(rank, size, left=left, color=color, height=0.8, label=part if rank == 0 else None)
                    left += size
            axes.set(xlim=(0, 1.02 * largest), xlabel="GB per rank")
            axes.set_yticks(range(len(ranks)), [str(rank) for rank in range(len(ranks))] if axes is drawn[0] else [])
            axes.invert_yaxis()
            axes.tick_params(axis="y", length=0)
            axes.set_title(name, fontweight="normal", fontsize=11)
        drawn[0].set_ylabel("rank")
        handles, labels = drawn[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        headline(figure, title)
    return Picture(figure, alt)


def split_network(ranks: int = 2, *, title: str, alt: str) -> Picture:
    """A feed-forward network over ranks: W₁ by columns, the activation, W₂ by rows, and one sum at the end.

    A row for each rank, which has a color and a hatch of its own; pale is what other ranks have, gray what all have.
    """
    n, d, wide, gap = 3.0, 2.0, 3.0 * ranks, 1.0
    with drawing():
        figure, (axes,) = panels(width=9.4, height=1.0 + 1.75 * ranks)

        def box(left: float, middle: float, height: float, width: float, rank: int | None = None) -> None:
            color, hatch = (GRAY, None) if rank is None else (PALETTE[rank], HATCHES[rank])
            lighter = [1 - 0.5 * (1 - part) for part in to_rgb(color)]
            corner = (left, middle - height / 2)
            axes.add_patch(Rectangle(corner, width, height, facecolor=lighter, edgecolor="white", hatch=hatch, lw=0))

        def words(left: float, middle: float, what: str, **style: Any) -> None:
            text_style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 10} | style
            axes.text(left, middle, what, **text_style)

        columns = [d, wide, 3.0, wide, d, d]  # x, W₁, the arrow, the hidden numbers, W₂, the rank's summand
        starts = [sum(columns[:index]) + gap * index for index in range(len(columns) + 1)]
        middles = [-(wide + 1.2) * rank for rank in range(ranks)]
        for rank, middle in enumerate(middles):
            box(starts[0], middle, n, d)
            axes.add_patch(Rectangle((starts[1], middle - d / 2), wide, d, facecolor=PALE))
            box(starts[1] + rank * wide / ranks, middle, d, wide / ranks, rank)
            words(starts[2] + 1.5, middle, "GELU\n⟶")
            axes.add_patch(Rectangle((starts[3], middle - n / 2), wide, n, facecolor=PALE))
            box(starts[3] + rank * wide / ranks, middle, n, wide / ranks, rank)
            axes.add_patch(Rectangle((starts[4], middle - wide / 2), d, wide, facecolor=PALE))
            box(starts[4], middle + wide / 2 - (rank + 0.5) * wide / ranks, wide / ranks, d, rank)
            box(starts[5], middle, n, d, rank)
            for index, sign in ((1, "·"), (4, "·"), (5, "=")):
                words(starts[index] - gap / 2, middle, sign, fontsize=13, color=GRAY)
            words(-0.8, middle, f"rank {rank}", ha="right")
            axes.annotate("", (starts[6] + 1.4, sum(middles) / ranks), (starts[6] - 0.6, middle),
                          arrowprops={"arrowstyle": "->", "color": GRAY})  # fmt: skip
        total, center = starts[6] + 1.4, sum(middles) / ranks
        words(total + 0.7, center, "+", fontsize=18)
        words(total + 0.7, middles[0], "all-reduce")
        for middle in middles:
            box(total + 3.6, middle, n, d)
            axes.annotate("", (total + 3.3, middle), (total + 1.4, center),
                          arrowprops={"arrowstyle": "->", "color": GRAY})  # fmt: skip
        words(total + 3.6 + d / 2, wide / 2 + 0.7, "result")
        for index, name in enumerate(["x", "W₁", "", "hidden", "W₂", "summand"]):
            words(starts[index] + columns[index] / 2, wide / 2 + 0.7, name)
        axes.set(xlim=(-4, total + 4 + d), ylim=(middles[-1] - wide / 2 - 0.2, wide / 2 + 1.3), aspect="equal")
        axes.axis("off")
        axes.set_title(title)
    return Picture(figure, alt)


KINDS = {"forward": PALETTE[0], "backward": PALETTE[1], "travels": PALETTE[2]}


def timetable(
    ways: Mapping[str, Mapping[str, Sequence[tuple[int | float, int | float, str, str]]]],
    *,
    title: str,
    alt: str,
    xlabel: str = "time →",
) -> Picture:
    """Who is busy when: a row for each worker, time to the right; pale where one waits.

    Args:
        ways: name → worker → pieces: (start, length, words, kind). A kind is "forward", "backward" or "travels".
    """
    ends = [max(start + length for row in rows.values() for start, length, *_ in row) for rows in ways.values()]
    kinds = {kind for rows in ways.values() for row in rows.values() for *_, kind in row}
    with drawing():
        height = 0.6 + 0.5 * len(ways) + 0.27 * sum(map(len, ways.values()))
        figure, drawn = panels(len(ways), width=9.4, height=height, columns=1)
        for axes, (name, rows), end in zip(drawn, ways.items(), ends, strict=True):
            for index, pieces in enumerate(rows.values()):
                axes.add_patch(Rectangle((0, index + 0.04), end, 0.92, facecolor=PALE))
                for start, length, words, kind in pieces:
                    color = KINDS[kind]
                    box = Rectangle((start, index + 0.04), length, 0.92, facecolor=color, edgecolor="white", label=kind)
                    axes.add_patch(box)
                    axes.text(start + length / 2, index + 0.5, words, color=words_on(color),
                              ha="center", va="center", fontsize=8)  # fmt: skip
            axes.set(xlim=(0, 1.01 * max(ends)), ylim=(len(rows), 0))
            axes.set_yticks([index + 0.5 for index in range(len(rows))], [*rows])
            axes.tick_params(axis="y", length=0)
            axes.spines[:].set_visible(False)
            axes.set_title(name, fontweight="normal", fontsize=11)
            if xlabel.endswith("→") or axes is not drawn[-1]:
                axes.set_xticks([])
        drawn[-1].set_xlabel(xlabel)
        named = [Rectangle((0, 0), 1, 1, facecolor=color, label=kind) for kind, color in KINDS.items() if kind in kinds]
        figure.legend(handles=named, loc="outside lower right", ncols=len(named), frameon=False)
        headline(figure, title)
    return Picture(figure, alt)


def cuts(ways: Mapping[str, str], ranks: int = 4, *, title: str, alt: str) -> Picture:
    """What each rank has, by its color: a model of some layers above, a batch of texts below; gray is what all have.

    Args:
        ways: a title → how it cuts: "data", "sharded", "tensor", "pipeline" or "context".
    """
    colors = PALETTE[:ranks]
    with drawing():
        figure, drawn = panels(len(ways), width=9.6, height=3.1)
        for axes, (name, way) in zip(drawn, ways.items(), strict=True):
            model = {"tensor": "across", "pipeline": "along", "sharded": "both"}.get(way, "")
            batch = {"data": "along", "sharded": "along", "context": "across"}.get(way, "")
            _owners(axes, ranks + 1.3, model, colors)
            _owners(axes, 0, batch, colors)
            axes.set(xlim=(-0.9, ranks), ylim=(-0.1, 2 * ranks + 1.4), aspect="equal")
            axes.set_title(name, fontweight="normal", fontsize=11)
            axes.axis("off")
        for bottom, words in ((ranks + 1.3 + ranks / 2, "layers"), (ranks / 2, "texts")):
            drawn[0].text(-0.5, bottom, words, rotation=90, ha="center", va="center", fontsize=10)
        drawn[0].text(ranks / 2, ranks + 0.55, "model: layers × width", ha="center", va="center", fontsize=8)
        drawn[0].text(ranks / 2, -0.5, "batch: texts × tokens", ha="center", va="center", fontsize=8)
        boxes = [Rectangle((0, 0), 1, 1, facecolor=color, label=f"rank {rank}") for rank, color in enumerate(colors)]
        boxes.append(Rectangle((0, 0), 1, 1, facecolor=PALE, label="all ranks"))
        figure.legend(handles=boxes, loc="outside lower center", ncols=len(boxes), frameon=False)
        headline(figure, title)
    return Picture(figure, alt)


def _owners(axes: Axes, bottom: int | float, way: str, colors: Sequence[str]) -> None:
    """Draw a square of cells, each in the color of the rank that has it: by columns, by rows, or both in turns."""
    ranks = len(colors)
    for row in range(ranks):
        for column in range(ranks):
            rank = {"across": column, "along": row, "both": (row + column) % ranks}.get(way)
            color = PALE if rank is None else colors[rank]
            axes.add_patch(Rectangle((column, bottom + ranks - 1 - row), 0.94, 0.94, facecolor=color))


def isoflops(
    points: Mapping[str, tuple[Sequence[int | float], Sequence[int | float]]],
    curves: Mapping[str, tuple[Sequence[int | float], Sequence[int | float]]],
    best: Mapping[str, tuple[int | float, int | float]],
    *,
    title: str,
    alt: str,
) -> Picture:
    """Loss by size, one color for each budget: what was measured, the curve fitted to it, a star at its lowest point.

    Args:
        points, curves: budget → (sizes, losses). best: budget → (size, loss) of the curve's lowest point.
    """
    with drawing():
        figure, (axes,) = panels(width=7.2, height=4.2)
        for (name, (x, y)), color in zip(points.items(), color_cycle(), strict=False):
            axes.plot(x, y, "o", color=color, markersize=4, alpha=0.7)
            axes.plot(*curves[name], color=color, linewidth=1.5)
            axes.plot(*best[name], "*", color=color, markersize=14)
            across, up = curves[name]
            axes.annotate(
                name, (across[-1], up[-1]), xytext=(6, 0), textcoords="offset points", color=ink(color), va="center"
            )
        axes.set(xscale="log", xlabel="parameters N", ylabel="loss (nats)")
        readable(axes.xaxis, [value for x, _ in points.values() for value in x])
        axes.set_title(title)
    return Picture(figure, alt)


def memory(
    ways: Mapping[str, Mapping[str, int | float]], limit: tuple[str, int | float], *, title: str, alt: str
) -> Picture:
    """What a training holds: a bar for each way, its parts end to end in the same colors, and the memory of a device.

    Args:
        ways: name → part → GB; all have the same parts.
        limit: a device and its GB.
    """
    parts = [*next(iter(ways.values()))]
    with drawing():
        figure, (axes,) = panels(width=8.6, height=1.5 + 0.42 * len(ways))
        for part, color in zip(parts, color_cycle(), strict=False):
            lefts = [sum(sizes[each] for each in parts[: parts.index(part)]) for sizes in ways.values()]
            lengths = [sizes[part] for sizes in ways.values()]
            axes.barh([*ways], lengths, left=lefts, color=color, height=0.7, label=part)
        for row, sizes in enumerate(ways.values()):
            axes.annotate(f"{sum(sizes.values()):.0f} GB", (sum(sizes.values()), row), xytext=(5, 0),
                          textcoords="offset points", va="center")  # fmt: skip
        axes.axvline(limit[1], color="black", linestyle=":")
        axes.annotate(limit[0], (limit[1], -0.65), xytext=(4, 0), textcoords="offset points", va="center")
        axes.margins(x=0.12)
        axes.set_ylim(len(ways) - 0.5, -0.95)
        axes.set(xlabel="memory (GB)")
        axes.tick_params(axis="y", length=0)
        axes.set_title(title)
        figure.legend(loc="outside lower center", ncols=len(parts), frameon=False)
    return Picture(figure, alt)
