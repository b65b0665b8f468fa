"""Recurrence in depth: one block used again and again, and when each position stops."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from txcourse.figures.shapes import PALE, arrow, box
from txlib.plots.charts import lines
from txlib.plots.matrices import heatmap
from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, panels, words_on

GAP = 0.4  # between two chains


def recurrence(steps: int = 4) -> Picture:
    """A stack of blocks, one block with a loop, and the same block unrolled over its steps."""
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
        axes.set_title(f"{steps} blocks once, or one block {steps} times")
        return Picture(
            figure,
            alt=f"Left: a stack of {steps} different blocks. Middle: one block with an arrow from its output back to "
            f"its input, times {steps}. Right: the same loop unrolled, {steps} boxes of one color; to each the signal "
            "of its step is added.",
        )


def halting(weights: Float[Tensor, "positions steps"], names: Sequence[str], *, title: str) -> Picture:
    """A bar per position, made of the weights of its steps; the last one, the remainder, is hatched.

    Args:
        weights: of each position's steps, 0 for steps that it does not take.
        names: of the positions.
        title: what to see.
    """
    parts = {
        name: ", ".join(f"{weight:.2f}" for weight in taken if weight)
        for name, taken in zip(names, weights.tolist(), strict=True)
    }
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
        return Picture(
            figure,
            alt="A bar from 0 to 1 for each position, made of the weights of its steps, the last one hatched. "
            + "; ".join(f"{name}: {taken}" for name, taken in parts.items()),
        )


def chains(stories: Sequence[Sequence[str]], *, title: str) -> Picture:
    """Who heard a story from whom: a row for each story, from its author on; the numbers above count the links.

    Args:
        stories: the names in each chain.
        title: what to see.
    """
    longest = max(map(len, stories))
    with drawing():
        figure, (axes,) = panels(width=1.0 + 1.15 * longest, height=1.1 + 0.5 * len(stories))
        for row, story in enumerate(stories):
            color = PALETTE[row % 6]
            for depth, name in enumerate(story):
                box(axes, depth, row, 0.72, 0.42, name, color, color=words_on(color), fontsize=9)
                if depth:
                    arrow(axes, (depth - 0.6, row), (depth - 0.4, row), color)
        for depth in range(longest):
            axes.text(depth, -0.75, f"depth {depth}", ha="center", va="center", color=GRAY, fontsize=10)
        axes.axis("off")
        axes.set(xlim=(-0.55, longest - 0.45), ylim=(len(stories) - 0.5, -1))
        axes.set_title(title)
        told = "; ".join(" to ".join(story) for story in stories)
        return Picture(figure, alt=f"A row of names for each story, with arrows from each name to the next: {told}")


def beliefs(
    named: Sequence[Sequence[str]],
    stories: Sequence[Sequence[str]],
    *,
    title: str,
    taken: Sequence[int] | None = None,
) -> Picture:
    """Whom each line names after each step, in the color of that author's story; other names are on gray.

    Args:
        named: step → the name for each line, in the order of the stories.
        stories: the names in each chain, its author first.
        taken: after how many steps each line halted: there a bar is drawn, and what follows is pale.
        title: what to see.
    """
    color_of = {story[0]: PALETTE[row % 6] for row, story in enumerate(stories)}
    lines = _lines(stories)
    with drawing():
        figure, (axes,) = panels(width=2.2 + 0.85 * len(named), height=1.2 + 0.27 * len(lines))
        for line, (y, _, label) in enumerate(lines):
            axes.text(0.4, y, label, ha="right", va="center", fontsize=9)
            for step, names in enumerate(named, start=1):
                fill = color_of.get(names[line], PALE)
                halted = taken is not None and step > taken[line]
                axes.barh(y, 0.94, left=step - 0.47, height=0.9, color=fill, alpha=0.25 if halted else 1)
                word = "black" if halted else words_on(fill)
                axes.text(step, y, names[line], ha="center", va="center", fontsize=8, color=word)
            if taken is not None:
                axes.plot([taken[line] + 0.5] * 2, [y - 0.47, y + 0.47], color="black", linewidth=3)
        axes.set_xticks(range(1, len(named) + 1))
        axes.set_yticks([])
        for side in axes.spines.values():
            side.set_visible(False)
        axes.set(xlabel="step", xlim=(-1.2, len(named) + 0.6), ylim=(lines[-1][0] + 0.6, -0.6))
        axes.set_title(title)
        rows = []
        for line, (_, _, label) in enumerate(lines):
            halts = f", halts after {taken[line]}" if taken is not None else ""
            rows.append(f"{label}: " + ", ".join(dict.fromkeys(names[line] for names in named)) + halts)
        return Picture(figure, alt="A table of names: rows are the lines, columns are steps. " + "; ".join(rows))


def right_by_depth(
    right: Mapping[str, Sequence[float]], guessing: Sequence[float], *, trained: int = 5, title: str
) -> Picture:
    """How many lines of each depth are right, a curve per model, next to guessing, which begins at depth 1.

    Args:
        right: model → the fraction at depth 0, 1 …
        trained: the greatest depth in training, where a dotted line is drawn.
        title: what to see.
    """
    curves = {name: (range(len(each)), [100 * one for one in each]) for name, each in right.items()}
    return lines(
        curves | {"guessing": (range(1, len(guessing) + 1), [100 * chance for chance in guessing])},
        title=title,
        xlabel="depth of the line",
        ylabel="right answers (%)",
        marker="o",
        mark=("trained to here", trained),
        dashed=["guessing"],
        colors={"guessing": GRAY},
        alt="Right answers over the depth of the line, mean of three seeds. "
        + "; ".join(
            f"{name}: {each[trained]:.0%} at depth {trained}, {each[-2]:.0%} at depth {len(each) - 2}"
            for name, each in right.items()
        ),
    )


def depth_table(right: Mapping[str, Sequence[float]], *, title: str, ylabel: str = "") -> Picture:
    """How many lines of each depth are right, in percent: a row per model or number of steps.

    Args:
        right: row → the fraction at depth 0, 1 …
        title: what to see. ylabel: what a row is.
    """
    deepest = len(next(iter(right.values()))) - 1
    shown = sorted({0, deepest // 2, deepest})
    return heatmap(
        (100 * torch.tensor([list(row) for row in right.values()])).round(),
        rows=list(right),
        columns=[str(depth) for depth in range(deepest + 1)],
        title=title,
        xlabel="depth of the line",
        ylabel=ylabel,
        numbers=True,
        size=0.45,
        alt=f"Right answers in percent, columns for depths 0 to {deepest}, a row for each of {ylabel or 'the models'}. "
        + "; ".join(
            f"{name}: " + ", ".join(f"{row[k]:.0%} at depth {k}" for k in shown) for name, row in right.items()
        ),
    )


def _lines(stories: Sequence[Sequence[str]]) -> list[tuple[float, str, str]]:
    """Return the place, the color and the label of each line, chain by chain with gaps between."""
    lines = [(row, name, depth) for row, story in enumerate(stories) for depth, name in enumerate(story)]
    return [(place + GAP * row, PALETTE[row % 6], f"{name} {depth}") for place, (row, name, depth) in enumerate(lines)]
