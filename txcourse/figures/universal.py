"""Recurrence in depth: one block used again and again, and when each position stops."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from txcourse.figures.shapes import arrow, box
from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, panels, words_on


def recurrence(steps: int = 4, *, title: str, alt: str) -> Picture:
    """A stack of blocks, one block with a loop, and the same block unrolled over its steps.

    Args:
        steps: how many blocks the stack has, and how often the loop is gone round.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    with drawing():
        figure, (axes,) = panels(width=8.6, height=1.3 + 0.62 * steps)
        top, middle = steps + 0.35, (steps + 1) / 2
        for x in (1.0, 7.4):
            for step in range(1, steps + 1):
                arrow(axes, (x, step - 0.75), (x, step - 0.25))
                stacked = x < 2
                text = f"block {step}" if stacked else "the block"
                color = PALETTE[(step - 1) % 6 if stacked else 0]
                box(axes, x, step, 1.5, 0.4, text, color, color=words_on(color), fontsize=10)
                if not stacked:
                    axes.text(x + 1.0, step, f"+ signal of step {step}", va="center", color=GRAY, fontsize=10)
            arrow(axes, (x, top - 0.1), (x, top + 0.35))
        arrow(axes, (4.0, middle - 1.3), (4.0, middle - 0.25))
        box(axes, 4.0, middle, 1.5, 0.4, "the block", PALETTE[0], color="white", fontsize=10)
        arrow(axes, (4.0, middle + 0.25), (4.0, middle + 1.3))
        up, down, right = middle + 0.7, middle - 0.7, 5.1
        axes.plot([4.0, right, right], [up, up, down], color=PALETTE[0], linewidth=1.5)
        arrow(axes, (right, down), (4.03, down), PALETTE[0])
        axes.text(right + 0.15, middle, f"× {steps}", va="center", color=PALETTE[0])
        for x, text in ((1.0, f"{steps} blocks"), (4.0, "one block, a loop"), (7.4, "the same loop, unrolled")):
            axes.text(x, -0.2, text, ha="center", va="center", color=GRAY)
        axes.axis("off")
        axes.set(xlim=(0, 10.4), ylim=(-0.5, top + 0.45))
        axes.set_title(title)
        return Picture(figure, alt)


def halting(
    weights: Float[Tensor, "positions steps"],
    names: Sequence[str],
    *,
    title: str,
    alt: str,
) -> Picture:
    """A bar per position, made of the weights of its steps; the last one, the remainder, is hatched.

    Args:
        weights: of each position's steps, 0 for steps that it does not take.
        names: of the positions.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    with drawing():
        figure, (axes,) = panels(width=7.2, height=1.2 + 0.45 * len(names))
        for row, taken in enumerate(weights.tolist()):
            left, last = 0.0, max(step for step, weight in enumerate(taken) if weight)
            for step, weight in enumerate(taken[: last + 1]):
                look: dict[str, Any] = {"hatch": "//", "alpha": 0.75} if step == last else {}
                axes.barh(row, weight, left=left, height=0.6, color=PALETTE[step % 6], edgecolor="white", **look)
                if weight > 0.03:
                    label = f"step {step + 1}\n{weight:.2f}" if weight > 0.07 else f"{step + 1}"
                    face = {"facecolor": PALETTE[step % 6], "edgecolor": "none", "pad": 1}
                    word: dict[str, Any] = {"color": words_on(PALETTE[step % 6]), "fontsize": 9, "bbox": face}
                    axes.text(left + weight / 2, row, label, ha="center", va="center", **word)
                left += weight
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.set(xlabel="weight of each step's state in the output (hatched: the remainder)", xlim=(0, 1.02))
        axes.set_title(title)
        return Picture(figure, alt)


def ponder(steps: Sequence[int | float], tokens: Sequence[str], *, title: str, alt: str) -> Picture:
    """A bar per token of a text, its height how long it was thought about.

    Args:
        steps: of each token.
        tokens: what is written below the bars; one that is a space shows as `▁`.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    longest = max(map(len, tokens))
    with drawing():
        width = max(4.0, 1.0 + (0.17 if longest == 1 else 0.34) * len(tokens))
        figure, (axes,) = panels(width=width, height=2.4 + 0.07 * (longest if longest > 1 else 0))
        axes.bar(range(len(tokens)), steps, color=PALETTE[0], width=0.75)
        names = ["▁" if token == " " else token for token in tokens]
        axes.set_xticks(range(len(tokens)), names, rotation=0 if longest == 1 else 90)
        axes.tick_params(axis="x", length=0)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.set(ylabel="steps taken", xlim=(-0.7, len(tokens) - 0.3))
        axes.set_title(title)
        return Picture(figure, alt)
