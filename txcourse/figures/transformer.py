"""The encoder–decoder as a drawing, and what translators cost and are worth."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import FancyBboxPatch
from matplotlib.transforms import Bbox

from txcourse.figures.shapes import arrow, box
from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, headline, ink, panels

STREAM, NORM, ATTENTION, FEED_FORWARD, MEMORY = PALETTE[0], PALETTE[4], PALETTE[5], "#a9d8c8", PALETTE[3]
ENCODER, DECODER, ZOOM = 2.62, 6.52, 9.5  # where each stream runs; all in inches
BRANCH, WIDTH, HEIGHT = 1.36, 1.75, 0.5  # of a sub-layer's box: how far to the left of its stream, and its size
FIRST, UNIT = 1.98, 1.62  # where the lowest sub-layer leaves the stream, and the next one above it


def encoder_decoder(*, source: str, shifted: str, target: str, title: str) -> Picture:
    """The Transformer from bottom to top, wired post-norm as in the paper (Vaswani et al. 2017, figure 1).

    Next to it, one sub-layer wired post-norm and pre-norm (Xiong et al. 2020, figure 1).

    Args:
        source: what the encoder reads. shifted: what the decoder reads. target: what the decoder is to write.
        title: what to see.
    """
    alt = (
        "Two towers, read from the bottom. Left, the encoder: the source's embedding plus positions, then N blocks of "
        "self-attention and feed-forward. Right, the decoder: the shifted target's embedding plus positions, then N "
        "blocks of causal self-attention, cross-attention and feed-forward, then the transposed embedding and a "
        "softmax, which give the target. Each sub-layer branches off a thick line, is added to it again, and a norm "
        "follows. From the top of the encoder's stack the memory goes to the keys and values of each cross-attention; "
        "its queries come from the decoder. At the side, one sub-layer twice: post-norm has the norm on the line, "
        "after the addition; pre-norm has it on the branch, before the sub-layer."
    )
    attend, think = ("multi-head\nself-attention", ATTENTION), ("feed-forward", FEED_FORWARD)
    cross = ("multi-head\ncross-attention", MEMORY)
    with drawing():
        figure, (axes,) = panels(width=9.8, height=8.6)
        axes.set(xlim=(0.1, 9.95), ylim=(-0.15, 8.35), aspect="equal")
        axes.axis("off")
        top = _stack(axes, ENCODER, source, [attend, think])
        end = _stack(axes, DECODER, shifted, [("causal multi-head\nself-attention", ATTENTION), cross, think])
        _memory(axes, top, FIRST + UNIT + 0.62)
        _output(axes, end, target)
        _zoom(axes, 4.35, "post-norm, the paper's:", "norm(x + sublayer(x))", norm_first=False)
        _zoom(axes, 0.75, "pre-norm, ours:", "x + sublayer(norm(x))", norm_first=True)
        note = "one more norm on\ntop of each stack"
        axes.text(ZOOM - 0.16, 3.05, note, ha="right", va="center", color=GRAY, fontsize=9)
        headline(figure, title)
        return Picture(figure, alt)


def costs(
    translators: Mapping[str, Mapping[str, tuple[float, float]]],
    *,
    title: str,
    alt: str,
    highlight: str = "",
    xlabel: str = "training cost (operations)",
    ylabel: str = "BLEU",
) -> Picture:
    """What a system costs to train against how well it does: a panel per task, costs on a logarithmic axis.

    All panels have the same costs, and scores in the same steps.

    Args:
        translators: task → system → (cost, score).
        highlight: systems whose name has this in it are colored.
    """
    panels_scores = [[score for _, score in systems.values()] for systems in translators.values()]
    span = max(max(scores) - min(scores) for scores in panels_scores)
    all_costs = [cost for systems in translators.values() for cost, _ in systems.values()]
    with drawing():
        figure, all_axes = panels(len(translators), width=4.9 * len(translators), height=4.6)
        for number, (axes, (task, systems)) in enumerate(zip(all_axes, translators.items(), strict=True)):
            middle = (min(panels_scores[number]) + max(panels_scores[number])) / 2
            axes.set(xscale="log", xlabel=xlabel, ylabel="" if number else ylabel)
            axes.set(xlim=(min(all_costs) / 4, max(all_costs) * 4), ylim=(middle - 0.6 * span, middle + 0.6 * span))
            axes.set_title(task, fontweight="normal", fontsize=11)
            for name, (cost, score) in systems.items():
                color = PALETTE[1] if highlight and highlight in name else GRAY
                axes.plot(cost, score, "s" if "ensemble" in name else "o", color=color, markersize=8)
        headline(figure, title)
        figure.draw_without_rendering()
        for axes, systems in zip(all_axes, translators.values(), strict=True):
            _label(axes, systems, highlight)
        return Picture(figure, alt)


def three_masks(*, source: Sequence[str], shifted: Sequence[str], padding: int, title: str, alt: str) -> Picture:
    """Who may look at whom in the encoder, in the decoder, and from the decoder at the encoder's memory.

    Args:
        source: tokens that the encoder reads. shifted: those that the decoder reads.
        padding: how many of the source's last tokens are padding.
    """
    real = np.arange(len(source)) < len(source) - padding  # (source,)
    past = np.tri(len(shifted), dtype=bool)  # (target, target)
    tables = {
        "encoder, self-attention:\npadding": (source, source, ATTENTION, np.tile(real, (len(source), 1))),
        "decoder, self-attention:\ncausal": (shifted, shifted, ATTENTION, past),
        "decoder, cross-attention:\npadding": (shifted, source, MEMORY, np.tile(real, (len(shifted), 1))),
    }
    with drawing():
        figure, all_axes = panels(len(tables), width=9.8, height=4.0)
        for axes, (name, (rows, columns, color, allowed)) in zip(all_axes, tables.items(), strict=True):
            axes.pcolormesh(allowed, cmap=ListedColormap(["white", color]), edgecolors="#d9d9d9", linewidth=0.8)
            axes.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=90)
            axes.set_yticks(np.arange(len(rows)) + 0.5, rows)
            axes.tick_params(length=0)
            axes.set(aspect="equal", xlabel="looks at", ylabel="" if axes is not all_axes[0] else "reads")
            axes.invert_yaxis()
            axes.set_title(name, fontweight="normal", fontsize=11)
        headline(figure, title)
        return Picture(figure, alt)


def _label(axes: Axes, systems: Mapping[str, tuple[float, float]], highlight: str) -> None:
    """A name beside each point, on the first side where it covers neither points nor names."""
    points = axes.transData.transform(list(systems.values()))
    taken = [Bbox.from_bounds(x - 6, y - 6, 12, 12) for x, y in points]
    for name, place in sorted(systems.items(), key=lambda system: -system[1][0]):  # the right edge has least room
        ours = highlight and highlight in name
        style: dict[str, Any] = {"color": ink(PALETTE[1]), "fontweight": "bold"} if ours else {"color": GRAY}
        for x, y, ha, va in ((0, 7, "center", "bottom"), (8, -1, "left", "center"), (-8, -1, "right", "center")):
            text = axes.annotate(name, place, (x, y), textcoords="offset points", ha=ha, va=va, fontsize=9, **style)
            covered = text.get_window_extent()
            if not any(covered.overlaps(other) for other in taken) and covered.x1 < axes.bbox.x1 + 10:
                break
            text.remove()
        else:
            text = axes.annotate(
                name, place, (0, -7), textcoords="offset points", ha="center", va="top", fontsize=9, **style
            )
        taken.append(text.get_window_extent())


def _stack(axes: Axes, stream: float, words: str, parts: list[tuple[str, str]]) -> float:
    """Words, embedding, positions and the block that is repeated; gives the height at which its stream leaves it."""
    top = FIRST + UNIT * len(parts) + 0.06
    corner = stream - BRANCH - WIDTH / 2 - 0.2, FIRST - 0.2
    size = BRANCH + WIDTH / 2 + 0.75, top - FIRST + 0.12
    style: dict[str, Any] = {"facecolor": "#f4f4f4", "edgecolor": "#bdbdbd", "zorder": 0}
    axes.add_patch(FancyBboxPatch(corner, *size, "round,pad=0.06", **style))
    axes.text(corner[0] + 0.04, corner[1] + size[1] - 0.02, "N ×", ha="left", va="top", fontsize=12, fontweight="bold")
    axes.text(stream, 0.0, words, ha="center", va="center", style="italic")
    arrow(axes, (stream, 0.14), (stream, 0.42))
    box(axes, stream, 0.66, 1.5, 0.32, "embedding · √d", fontsize=10)
    axes.plot([stream, stream], [0.86, top + 0.04], color=STREAM, linewidth=5, solid_capstyle="butt", zorder=1)
    _positions(axes, stream, 1.3)
    for number, (text, color) in enumerate(parts):
        asks = number == 1 and len(parts) == 3
        _sublayer(axes, stream, FIRST + UNIT * number, text, color, asks=asks)
    return top


def _sublayer(axes: Axes, stream: float, bottom: float, text: str, color: str, *, asks: bool) -> None:
    """One sub-layer beside its stream, added to it again; and the norm across the stream."""
    middle = stream - BRANCH
    inputs = [0.0] if asks or text == "feed-forward" else [-0.45, 0.0, 0.45]
    axes.plot([stream, middle + min(inputs)], [bottom + 0.1] * 2, color=GRAY, linewidth=1.5, zorder=1)
    for shift in inputs:
        arrow(axes, (middle + shift, bottom + 0.1), (middle + shift, bottom + 0.33), head=9)
    if asks:
        axes.text(middle + 0.08, bottom + 0.13, "queries", ha="left", va="bottom", fontsize=9, color=GRAY)
    box(axes, middle, bottom + 0.62, WIDTH, HEIGHT, text, color, fontsize=10)
    axes.plot([middle, middle], [bottom + 0.9, bottom + 1.06], color=GRAY, linewidth=1.5, zorder=1)
    arrow(axes, (middle, bottom + 1.06), (stream - 0.13, bottom + 1.06), head=10)
    _plus(axes, stream, bottom + 1.06)
    _norm(axes, stream, bottom + 1.38)


def _norm(axes: Axes, x: float, y: float) -> None:
    box(axes, x, y, 0.62, 0.2, "norm", NORM, fontsize=10)


def _plus(axes: Axes, x: float, y: float) -> None:
    axes.plot(x, y, "o", markersize=15, markerfacecolor="white", markeredgecolor=STREAM, zorder=4)
    axes.text(x, y - 0.01, "+", ha="center", va="center_baseline", fontsize=13, zorder=5)


def _positions(axes: Axes, stream: float, y: float) -> None:
    """A wave in a circle, added to the stream."""
    wave = np.linspace(-1, 1, 40)
    x = stream - BRANCH + 0.35
    axes.plot(x, y, "o", markersize=19, markerfacecolor="white", markeredgecolor=GRAY, zorder=4)
    axes.plot(x + 0.11 * wave, y + 0.07 * np.sin(np.pi * wave), color=GRAY, linewidth=1.5, zorder=5)
    axes.text(x - 0.19, y, "positions", ha="right", va="center", fontsize=10)
    arrow(axes, (x + 0.15, y), (stream - 0.13, y), head=10)
    _plus(axes, stream, y)


def _memory(axes: Axes, top: float, into: float) -> None:
    """From the top of the encoder's stack to the keys and values of each cross-attention."""
    turn, left = ENCODER + 0.83, DECODER - BRANCH - WIDTH / 2
    path = [(ENCODER, top + 0.04), (ENCODER, top + 0.45), (turn, top + 0.45), (turn, into)]
    axes.plot(*zip(*path, strict=True), color=MEMORY, linewidth=5, solid_joinstyle="round", zorder=1)
    for shift in (-0.11, 0.11):
        axes.plot([turn, turn + 0.2], [into, into + shift], color=MEMORY, linewidth=2.2, zorder=1)
        arrow(axes, (turn + 0.18, into + shift), (left - 0.03, into + shift), MEMORY, width=2.2)
    label = "memory:\none vector per source token"
    axes.text(ENCODER - 0.2, top + 0.32, label, ha="right", va="bottom", fontweight="bold", color="#a8487f")
    axes.text(turn - 0.03, into - 0.2, "keys,\nvalues", ha="left", va="top", fontsize=9, color="#a8487f")


def _output(axes: Axes, top: float, target: str) -> None:
    arrow(axes, (DECODER, top - 0.1), (DECODER, top + 0.34), STREAM, width=5, head=20)
    box(axes, DECODER, top + 0.65, 1.5, 0.46, "embedding,\ntransposed; softmax", fontsize=10)
    arrow(axes, (DECODER, top + 0.95), (DECODER, top + 1.2))
    axes.text(DECODER, top + 1.34, target, ha="center", va="center", style="italic")


def _zoom(axes: Axes, bottom: float, name: str, rule: str, *, norm_first: bool) -> None:
    """One sub-layer, large."""
    middle = ZOOM - 1.2
    axes.text(ZOOM - 0.95, bottom + 2.75, name, ha="center", va="bottom", fontweight="bold")
    axes.text(ZOOM - 0.95, bottom + 2.68, rule, ha="center", va="top")
    arrow(axes, (ZOOM, bottom - 0.25), (ZOOM, bottom + 2.35), STREAM, width=5, head=20)
    axes.text(ZOOM, bottom - 0.4, "x", ha="center", va="center", style="italic")
    axes.plot([ZOOM, middle], [bottom, bottom], color=GRAY, linewidth=1.5, zorder=1)
    lower, join = (0.98, 1.7) if norm_first else (0.62, 1.25)
    if norm_first:
        arrow(axes, (middle, bottom), (middle, bottom + 0.22), head=9)
        _norm(axes, middle, bottom + 0.38)
        arrow(axes, (middle, bottom + 0.53), (middle, bottom + 0.73), head=9)
    else:
        arrow(axes, (middle, bottom), (middle, bottom + 0.36), head=9)
        _norm(axes, ZOOM, bottom + 1.68)
    box(axes, middle, bottom + lower, 1.2, 0.36, "sub-layer", ATTENTION, fontsize=10)
    axes.plot([middle, middle], [bottom + lower + 0.2, bottom + join], color=GRAY, linewidth=1.5, zorder=1)
    arrow(axes, (middle, bottom + join), (ZOOM - 0.13, bottom + join), head=10)
    _plus(axes, ZOOM, bottom + join)
