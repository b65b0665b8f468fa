"""What a model has answered to several tasks, and which of its answers a rule takes."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from txlib.plots.picture import PALETTE, Picture, drawing, headline, panels

RIGHT, WRONG = PALETTE[0], PALETTE[1]


def drawn_answers(
    tasks: Mapping[str, tuple[str, Sequence[str]]],
    taken: Mapping[str, Sequence[str]],
    *,
    title: str,
    alt: str,
) -> Picture:
    """A row of answers for each task, and right of them what each rule takes; right ones in blue, wrong ones in orange.

    Args:
        tasks: task → its right answer, and the answers that were drawn, as many for each.
        taken: rule → its answer to each task; "" if it takes none.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    samples = len(next(iter(tasks.values()))[1])
    with drawing():
        figure, (axes,) = panels(
            width=min(9.6, 1.7 + 0.55 * samples + 1.3 * len(taken)), height=0.9 + 0.45 * len(tasks)
        )
        for row, (task, (truth, answers)) in enumerate(tasks.items()):
            axes.text(-0.3, row + 0.5, task, ha="right", va="center", family="monospace")
            for column, answer in enumerate(answers):
                _cell(axes, column, row, 1.0, answer, truth)
            for number, chosen in enumerate(taken.values()):
                _cell(axes, samples + 0.6 + 2.3 * number, row, 1.8, chosen[row], truth)
        for number, rule in enumerate(taken):
            axes.text(samples + 1.5 + 2.3 * number, -0.25, rule, ha="center", va="bottom", fontsize=10)
        axes.text(samples / 2, -0.25, f"{samples} answers", ha="center", va="bottom", fontsize=10)
        axes.set(xlim=(-2.6, samples + 0.6 + 2.3 * len(taken)), ylim=(len(tasks), -1))
        axes.axis("off")
        headline(figure, title)
        return Picture(figure, alt)


def _cell(axes: Axes, x: int | float, y: int | float, width: float, answer: str, truth: str) -> None:
    if not answer:
        axes.text(x + width / 2, y + 0.5, "none", ha="center", va="center", fontsize=10, style="italic")
        return
    color = RIGHT if answer == truth else WRONG
    axes.add_patch(Rectangle((x, y + 0.05), width - 0.1, 0.9, facecolor=color, alpha=0.25, linewidth=0))
    weight = "bold" if answer == truth else "normal"
    axes.text(x + width / 2 - 0.05, y + 0.5, answer, ha="center", va="center", fontsize=10, fontweight=weight)
