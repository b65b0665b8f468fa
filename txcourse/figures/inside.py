"""Looking inside: what writes into the residual stream, induction heads being born, features that share a plane."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from txcourse.figures.shapes import arrow, box
from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, headline, ink, panels

FIRST, SECOND, STREAM = PALETTE[0], PALETTE[1], PALETTE[5]  # layers 1 and 2, and what they write into


def one_stream(*, title: str) -> Picture:
    """The residual stream as one line, which each part of two layers reads and adds to."""
    alt = (
        "A thick line, the stream of one token, from its embedding on the left to its logits on the right. Six parts "
        "hang below it, heads 0, 1 and 2 of layer 1 and of layer 2. Each reads the line and adds to it again."
    )
    with drawing():
        figure, (axes,) = panels(width=9.0, height=2.5)
        axes.set(xlim=(-1.6, 11.4), ylim=(-2.1, 0.7))
        axes.axis("off")
        axes.set_title(title)
        arrow(axes, (-0.2, 0), (10.2, 0), STREAM, width=7, head=24)
        for x, text in ((-0.85, "embedding"), (10.8, "logits")):
            box(axes, x, 0, 1.2, 0.6, text, "white", fontsize=11)
        for layer, (start, color) in enumerate(((0.9, FIRST), (5.7, SECOND)), start=1):
            axes.text(start + 1.6, -2.1, f"layer {layer}", ha="center", va="bottom", color=ink(color))
            for head in range(3):
                x = start + 1.4 * head
                box(axes, x + 0.2, -1.3, 0.9, 0.4, f"head {head}", fontsize=10)
                arrow(axes, (x, 0), (x, -1.0), GRAY)
                arrow(axes, (x + 0.4, -1.0), (x + 0.4, 0), color, width=2.2)
        axes.text(0.75, 0.35, "reads", ha="center", color=GRAY, fontsize=10)
        axes.text(1.5, 0.35, "adds", ha="center", color=ink(FIRST), fontsize=10)
        return Picture(figure, alt)


def births(runs: Mapping[str, Sequence[Mapping[str, Any]]], *, title: str) -> Picture:
    """The loss on repeated symbols, and the best head's score in each layer, over the same steps; a line per start.

    Args:
        runs: seed → rows with "step", "repeat" (the loss), "before" and "after" (each head's score).
    """
    ends = {
        seed: (rows[0]["repeat"], rows[-1]["repeat"], max(rows[-1]["before"]), max(rows[-1]["after"]))
        for seed, rows in runs.items()
    }
    alt = f"Two panels over steps 0 to {max(rows[-1]['step'] for rows in runs.values())}. " + "; ".join(
        f"start {seed}: loss on repeats from {first:.1f} to {last:.2f} nats, best head of layer 1 at {before:.2f}, of "
        f"layer 2 at {after:.2f}"
        for seed, (first, last, before, after) in ends.items()
    )
    with drawing():
        figure, (above, below) = panels(2, width=7.4, height=5.0, columns=1, sharex=True)
        for number, rows in enumerate(runs.values()):
            steps = [row["step"] for row in rows]
            style = ("-", "--", ":")[number % 3]
            above.plot(steps, [row["repeat"] for row in rows], color="black", linestyle=style)
            for kind, color, name in (
                ("before", FIRST, "layer 1: at the symbol before"),
                ("after", SECOND, "layer 2: at what came after"),
            ):
                best = [max(row[kind]) for row in rows]
                label = "_" if number else name
                below.plot(steps, best, color=ink(color, 3), linestyle=style, label=label)
        above.set(ylabel="loss on repeats (nats)", ylim=(0, None))
        below.set(ylabel="best head's weight", ylim=(0, 1), xlabel="step")
        below.legend(frameon=False, loc="upper left", fontsize=10)
        headline(figure, title)
        return Picture(figure, alt)


def planes(models: Mapping[str, Float[Tensor, "2 features"]], *, title: str) -> Picture:
    """The directions of features in a plane, as arrows from the middle; one panel per model.

    Args:
        models: name → the direction of each feature.
    """
    alt = "Arrows in a plane. " + "; ".join(
        f"{name}: lengths {', '.join(f'{length:.1f}' for length in directions.norm(dim=0).tolist())}"
        for name, directions in models.items()
    )
    with drawing():
        figure, all_axes = panels(len(models), width=min(9.6, 2.5 * len(models)), height=3.2)
        reach = 1.25 * max(float(directions.abs().max()) for directions in models.values())
        for axes, (name, directions) in zip(all_axes, models.items(), strict=True):
            around = np.linspace(0, 2 * np.pi, 100)
            axes.plot(np.cos(around), np.sin(around), color=GRAY, linewidth=0.6, linestyle=":")
            for number, (x, y) in enumerate(directions.T.tolist()):
                color = [*PALETTE, GRAY][number % 8]
                if x * x + y * y > 0.1:
                    arrow(axes, (0, 0), (x, y), color, width=2.4)
                else:
                    axes.plot(x, y, marker="o", color=color, markersize=4)
            axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
            axes.axis("off")
            axes.set_title(name, fontweight="normal", fontsize=11)
        headline(figure, title)
        return Picture(figure, alt)
