"""A decoder that predicts each next token, its losses, heads that copy, and words as points in a plane."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from txcourse.figures.shapes import arrow, box
from txlib.plots.charts import lines
from txlib.plots.picture import GRAY, PALETTE, Picture, color_cycle, drawing, ink, panels

SIDES = (6, 0), (-6, 0), (0, 11), (0, -11), (6, 9), (6, -9), (-6, 9), (-6, -9), (6, 18), (6, -18)
"""Where a label may be, in points from its point, the best first."""
READ, PREDICTED, SEEN, LEAKED = PALETTE[5], PALETTE[4], PALETTE[0], PALETTE[1]


def next_token(tokens: Sequence[str], *, highlight: int, leak: bool = False, title: str, alt: str) -> Picture:
    """A tower without encoder: what it reads below, what it is to predict above, one position to the left.

    Args:
        tokens: the text; all but the last are read, all but the first predicted. A space shows as `␣`.
        highlight: the position whose view is drawn thick, counted from 0.
        leak: whether each position also sees the next one, which holds the answer.
        title: what to see. alt: the same for a reader who cannot see it.

    Raises:
        ValueError: when there are fewer than two tokens, or no such position among those that are read.
    """
    if len(tokens) < 2 or not 0 <= highlight < len(tokens) - 1:
        raise ValueError(f"{len(tokens)} tokens and highlight={highlight}: needs 0 <= highlight < tokens - 1")
    shown = [token.replace(" ", "␣").replace("\n", "⏎") for token in tokens]
    n = len(tokens) - 1
    with drawing():
        figure, (axes,) = panels(width=max(6.4, 0.85 * n + 2.4), height=4.2)
        axes.set(xlim=(-2.1, n - 0.3), ylim=(-0.7, 6.1))
        axes.axis("off")
        axes.set_title(title)
        axes.add_patch(FancyBboxPatch((-0.45, 1.0), n - 0.1, 3.3, "round,pad=0.08", facecolor=PREDICTED, alpha=0.18))
        for query in range(n):
            thick = query == highlight
            for key in range(min(query + 1 + leak, n)):
                color = LEAKED if key > query else SEEN if thick else GRAY
                look: dict[str, Any] = {"linewidth": 2.4, "zorder": 3} if thick else {"alpha": 0.25}
                axes.plot([key, query], [1.2, 4.1], color=color, **{"linewidth": 0.8, **look})
            axes.plot([query, query], [0.35, 1.2], color=GRAY, linewidth=1.2)
            arrow(axes, (query, 4.1), (query, 4.95), SEEN if thick else GRAY)
            for place, text, color in ((0.0, shown[query], READ), (5.3, shown[query + 1], PREDICTED)):
                box(axes, query, place, 0.66, 0.6, text, color, pad=0.03, family="monospace", fontsize=12)
        middle = "blocks that\nlook one\ntoo far" if leak else "blocks,\nlooking\nback only"
        for place, text in ((0.0, "it reads"), (2.65, middle), (5.3, "it is to\npredict")):
            axes.text(-0.75, place, text, ha="right", va="center", color=GRAY)
        return Picture(figure, alt)


def falling_losses(
    losses: Mapping[str, Sequence[float]], levels: Mapping[str, float] | None = None, *, title: str, window: int = 20
) -> Picture:
    """Training losses per character, smoothed, next to dashed levels to compare with.

    Args:
        losses: name of a model → its loss at each step.
        levels: name → a loss.
        title: what to see.
        window: over how many steps, up to each point, the loss is a mean.
    """
    smooth = {name: np.convolve(curve, np.full(window, 1 / window), "valid") for name, curve in losses.items()}
    steps = window, max(map(len, losses.values()))
    named = ", ".join(f"{name} {curve[-1]:.2f}" for name, curve in smooth.items())
    compared = "; ".join(f"{name} {level:.2f}" for name, level in (levels or {}).items())
    return lines(
        {name: (range(window, window + len(curve)), curve.tolist()) for name, curve in smooth.items()}
        | {name: (steps, [level] * 2) for name, level in (levels or {}).items()},
        dashed=list(levels or {}),
        title=title,
        xlabel="training step",
        ylabel="loss (nats per character)",
        alt=f"Training loss against step, mean of {window} steps. At the end: {named}."
        + (f" Dashed lines: {compared}." if levels else ""),
    )


def loss_by_past(losses: Mapping[str, Sequence[float]], levels: Mapping[str, float], *, title: str) -> Picture:
    """The loss by the number of characters that the model has seen, on a logarithmic axis; levels are dashed.

    Args:
        losses: name of a model → its loss at each position of a window. More and more positions share a point.
        levels: name → a loss.
        title: what to see.
    """
    n = len(next(iter(losses.values())))
    edges = [edge for edge in (0, 1, 2, 3, 5, 8, 12, 16, 24, 32, 48) if edge < n] + [n]
    means = {name: [float(np.mean(loss[a:b])) for a, b in pairwise(edges)] for name, loss in losses.items()}
    return lines(
        {name: (edges[1:], mean) for name, mean in means.items()}
        | {name: ([1, n], [level] * 2) for name, level in levels.items()},
        xscale="log",
        dashed=list(levels),
        title=title,
        xlabel="characters that it has seen",
        ylabel="loss (nats per character)",
        alt="Loss by number of characters seen. "
        + "; ".join(
            f"{name}: " + ", ".join(f"{mean[edges.index(seen) - 1]:.2f} with {seen}" for seen in (1, 3, n))
            for name, mean in means.items()
        )
        + ". Dashed lines: "
        + "; ".join(f"{name} {level:.2f}" for name, level in levels.items())
        + ".",
    )


def induction(tokens: Sequence[str], *, title: str, alt: str) -> Picture:
    """How two layers find what follows the last token: what came before each one, and after the same one the last time.

    Args:
        tokens: the text; its last token occurs before.
        title: what to see. alt: the same for a reader who cannot see it.

    Raises:
        ValueError: when the last token is new.
    """
    *past, last = tokens
    if last not in past:
        raise ValueError(f"{last!r} does not occur before it in {''.join(tokens)!r}: end with a token that returns")
    end, old = len(past), len(past) - 1 - past[::-1].index(last)
    after = tokens[old + 1]
    with drawing():
        figure, (axes,) = panels(width=0.95 * len(tokens) + 2.2, height=3.6)
        axes.set(xlim=(-0.6, end + 2.1), ylim=(-1.5, 2.4))
        axes.axis("off")
        axes.set_title(title)
        for x, token in enumerate(tokens):
            box(axes, x, 0, 0.66, 0.6, token, READ, pad=0.03, family="monospace", fontsize=12)
        box(axes, end + 1.4, 0, 0.66, 0.6, after, PREDICTED, pad=0.03, family="monospace", fontsize=12)
        middle = (old + 1 + end) / 2
        axes.text(old + 0.5, -1.0, f"layer 1: “{last} came before me”", ha="center", va="top", color=ink(LEAKED))
        axes.text(middle, 1.5, f"layer 2: “what came after {last}?”", ha="center", va="bottom", color=ink(SEEN))
        arrow(axes, (end + 0.45, 0), (end + 0.95, 0), GRAY)
        for start, goal, y, bend, color in ((old + 1, old, -0.4, -0.6, LEAKED), (end, old + 1, 0.4, 0.45, SEEN)):
            look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 14, "linewidth": 2.2, "color": color}
            axes.annotate("", (goal, y), (start, y), arrowprops=look | {"connectionstyle": f"arc3,rad={bend}"})
        return Picture(figure, alt)


def plane(kinds: Mapping[str, Mapping[str, tuple[float, float] | Sequence[float]]], *, title: str, alt: str) -> Picture:
    """Words as points, a color for each kind, whose name stands in bold above its words.

    Args:
        kinds: name → word → its place in the plane.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    with drawing():
        figure, (axes,) = panels(width=6.4, height=4.6)
        labels = []
        for (kind, words), color in zip(kinds.items(), color_cycle(), strict=False):
            x = sum(place[0] for place in words.values()) / len(words)
            top = max(place[1] for place in words.values())
            bold: dict[str, Any] = {"color": ink(color), "weight": "bold", "ha": "center"}
            axes.annotate(kind, (x, top), (0, 24), textcoords="offset points", **bold)
            for word, (x, y) in words.items():
                axes.plot(x, y, "o", color=color, markersize=5)
                look: dict[str, Any] = {"textcoords": "offset points", "color": ink(color), "fontsize": 10}
                labels.append(axes.annotate(word, (x, y), (0, 0), **look))
        axes.set(xticks=[], yticks=[], aspect="equal")
        axes.set(xlabel="first direction", ylabel="second direction")
        axes.margins(0.12, 0.16)
        axes.set_title(title)
        _part(figure, axes, labels)
        return Picture(figure, alt)


def picked_rows(
    tokens: Sequence[str], *, ids: Sequence[int], table: Sequence[Sequence[int]], title: str, alt: str
) -> Picture:
    """One-hot vectors times a table of a few rows; an id, its row of the table and its product have one color.

    Args:
        tokens: names of the one-hot vectors, whose ids are `ids`.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    one_hot = [[int(column == token_id) for column in range(len(table))] for token_id in ids]
    products = [table[token_id] for token_id in ids]
    token_labels = [f"{token}, id {token_id}" for token, token_id in zip(tokens, ids, strict=True)]
    matrices: Sequence[tuple[str, Sequence[Sequence[int]], Sequence[int], Sequence[str]]] = (
        ("one-hot", one_hot, ids, token_labels),
        ("table E", table, range(len(table)), [f"row {row}" for row in range(len(table))]),
        ("vectors x", products, ids, [""] * len(ids)),
    )
    with drawing():
        figure, (axes,) = panels(width=6.8, height=2.3)
        left = 0.0
        for (name, rows, colors, labels), sign in zip(matrices, ("×", "=", ""), strict=True):
            width = len(rows[0])
            axes.text(left + width / 2, 0.2, name, ha="center", va="bottom", color=GRAY)
            for y, (row, color, label) in enumerate(zip(rows, colors, labels, strict=True), start=1):
                axes.text(left - 0.15, 0.5 - y, label, ha="right", va="center", fontsize=10)
                for x, number in enumerate(row):
                    fill = PALETTE[color] if number else "white"
                    cell = Rectangle((left + x, -y), 1, 1, facecolor=fill, alpha=0.45, edgecolor=GRAY)
                    axes.add_patch(cell)
                    axes.text(left + x + 0.5, 0.5 - y, str(number), ha="center", va="center")
            axes.text(left + width + 0.4, -len(rows) / 2, sign, ha="center", va="center", fontsize=14)
            left += width + (2.4 if sign == "×" else 0.8)
        axes.set(xlim=(-2.4, left), ylim=(-len(table) - 0.2, 1), aspect="equal")
        axes.axis("off")
        axes.set_title(title)
        return Picture(figure, alt)


def _part(figure: Figure, axes: Axes, labels: Sequence[Annotation]) -> None:
    """Put each label where it covers neither a point nor another label: to the right, to the left, above, or below."""
    figure.draw_without_rendering()  # settles the scales
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in axes.transData.transform([label.xy for label in labels])]
    for label in labels:
        for x, y in SIDES:
            label.set(position=(x, y), ha="left" if x > 0 else "right" if x < 0 else "center", va="center")
            box = label.get_window_extent()
            if not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)
