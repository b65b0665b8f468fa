"""A memory that is one matrix: what is written to it, what is read from it, and how a text is cut into chunks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor

from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, headline, ink, panels

KEY, VALUE, STATE = PALETTE[0], PALETTE[1], PALETTE[2]  # in all figures of the lesson
FADED = 0.12  # of a cell that holds 0


@dataclass(frozen=True)
class Touch:
    """One access to a state, and the state after it.

    Args:
        name: of what happens, above the panel.
        key: what addresses the state, left of its rows.
        row: what is written, above its columns, or what is read, below them.
        reads: whether it is read.
    """

    name: str
    key: Float[Tensor, "d"]
    row: Float[Tensor, "m"]
    state: Float[Tensor, "d m"]
    reads: bool = False


def state_steps(rules: Mapping[str, Sequence[Touch]], *, title: str, alt: str) -> Picture:
    """What each rule makes of the same accesses: a row of small matrices per rule, keys on the left, values above.

    Args:
        title: what to see. alt: the same for a reader who cannot see it.
    """
    touches = [touch for row in rules.values() for touch in row]
    largest = max(float(touch.state.abs().max()) for touch in touches) or 1.0
    columns = len(touches) // len(rules)
    with drawing():
        height = 0.5 + 2.5 * len(rules)
        figure, all_axes = panels(len(touches), width=min(9.6, 2.4 * columns), height=height, columns=columns)
        for number, (axes, touch) in enumerate(zip(all_axes, touches, strict=True)):
            _draw(axes, touch, largest)
            if len(rules) > 1 and number % columns == 0:
                name = list(rules)[number // columns]
                axes.text(-2.3, len(touch.key) / 2, name, rotation=90, ha="center", va="center", fontweight="bold")
        headline(figure, title)
        return Picture(figure, alt)


def _draw(axes: Axes, touch: Touch, largest: float) -> None:
    """Draw one matrix with its key and its value."""
    d, m = touch.state.shape
    for i in range(d):
        _cell(axes, -1.4, d - 1 - i, float(touch.key[i]), KEY, 1.0)
        for j in range(m):
            _cell(axes, j, d - 1 - i, float(touch.state[i, j]), STATE, largest)
    at = -1.4 if touch.reads else d + 0.4
    for j in range(m):
        _cell(axes, j, at, float(touch.row[j]), VALUE, largest)
    axes.annotate(
        "",
        (m / 2, -0.38 if touch.reads else d + 0.03),
        (m / 2, -0.02 if touch.reads else d + 0.38),
        arrowprops={"arrowstyle": "-|>", "color": GRAY, "shrinkA": 0, "shrinkB": 0},
    )
    axes.text(m + 0.1, at + 0.5, "read" if touch.reads else "write", va="center", color=ink(VALUE), fontsize=9)
    axes.set(xlim=(-2.6, m + 1.1), ylim=(-1.5, d + 1.5), aspect="equal")
    axes.axis("off")
    axes.set_title(touch.name, fontweight="normal", fontsize=11, loc="center")


def _cell(axes: Axes, x: int | float, y: int | float, value: float, color: str, largest: float) -> None:
    alpha = FADED + 0.5 * min(abs(value) / largest, 1.0)
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=color, alpha=alpha, linewidth=0))
    axes.add_patch(Rectangle((x, y), 1, 1, fill=False, edgecolor="white", linewidth=1.5))
    axes.text(x + 0.5, y + 0.5, f"{round(value, 2):g}", ha="center", va="center", fontsize=10)


def chunks(length: int, size: int, *, title: str, alt: str) -> Picture:
    """Which pairs of a causal text are computed, in triangles on the diagonal, and which go through the state.

    Args:
        length: of the text, a multiple of `size`, that of a chunk.
    """
    with drawing():
        figure, (axes,) = panels(width=4.4, height=4.2)
        for start in range(0, length, size):
            for query in range(start, start + size):
                axes.add_patch(Rectangle((start, query), query - start + 1, 1, facecolor=KEY, alpha=0.75, linewidth=0))
            if start:
                axes.add_patch(Rectangle((0, start), start, size, facecolor=STATE, alpha=0.35, edgecolor="white"))
                axes.text(start / 2, start + size / 2, "through S", ha="center", va="center", fontsize=9)
        axes.add_patch(Rectangle((0, 0), length, length, fill=False, edgecolor=GRAY, linewidth=0.8))
        axes.set(xlim=(-0.2, length + 0.2), ylim=(length + 0.2, -0.2), aspect="equal")
        axes.set(xticks=[0, length], yticks=[0, length], xlabel="what was written", ylabel="what is read")
        axes.text(length - 0.5, size / 2, "pairs of\none chunk", ha="right", va="center", color=ink(KEY), fontsize=9)
        axes.set_title(title)
        return Picture(figure, alt)
