"""Mixture of experts: which token goes to which expert."""

from collections.abc import Sequence

from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from torch import Tensor

from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, panels, words_on

TOKEN, EXPERT, OUT = 0.0, 2.0, 4.0  # the columns
STOP = 1.6  # where the line of a dropped token ends, in front of its expert


def experts(
    weights: Float[Tensor, "tokens experts"],
    tokens: Sequence[str],
    *,
    title: str,
    alt: str,
    dropped: Bool[Tensor, "tokens experts"] | None = None,
    names: Sequence[str] | None = None,
) -> Picture:
    """Tokens on the left, experts in the middle, what comes out on the right; a line's width is the router's weight.

    Args:
        weights: each token's weight for each expert, 0 where the expert is not chosen.
        tokens: what is written on the left.
        title: what to see. alt: the same for a reader who cannot see it.
        dropped: True where the expert was chosen but had no room left: a dashed gray line that ends in a cross.
        names: of the experts; "expert 0", "expert 1" … unless given.
    """
    count, number = weights.shape
    names = names or [f"expert {each}" for each in range(number)]
    with drawing():
        figure, (axes,) = panels(width=7.0, height=1.2 + 0.36 * max(count, 1.3 * number))
        heights = [(each + 0.5) * count / number - 0.5 for each in range(number)]
        for token, label in enumerate(tokens):
            out = False
            for expert, height in enumerate(heights):
                weight = float(weights[token, expert])
                if dropped is not None and dropped[token, expert]:
                    _line(axes, TOKEN, token, STOP, height, GRAY, 1.5, dashed=True)
                    axes.plot(STOP, height, "x", color=GRAY, markersize=9, markeredgewidth=2.5, linestyle="none")
                elif weight > 0:
                    color, out = PALETTE[expert % 6], True
                    _line(axes, TOKEN, token, EXPERT, height, color, 5 * weight)
                    _line(axes, EXPERT, height, OUT, token, color, 5 * weight)
            _label(axes, TOKEN, token, label, "#e8e8e8")
            _label(axes, OUT, token, label if out else "–", "#e8e8e8" if out else "white")
        for expert, height in enumerate(heights):
            used = bool((weights[:, expert] > 0).any())
            face = PALETTE[expert % 6] if used else "white"
            _label(axes, EXPERT, height, names[expert], face, words_on(face) if used else GRAY)
        for place, label in ((TOKEN, "token"), (EXPERT, "chosen experts"), (OUT, "weighted sum")):
            axes.text(place, -1.3, label, ha="center", va="center", color=GRAY)
        if dropped is not None and dropped.any():
            legend = "– – ×  asked, but full: the token is dropped"
            axes.text(OUT, count - 0.1, legend, ha="right", va="center", color=GRAY, fontsize=10)
        axes.axis("off")
        axes.set(xlim=(-0.4, 4.4), ylim=(count + 0.2, -1.7))
        axes.set_title(title)
        return Picture(figure, alt)


def expert_layouts(*, title: str, alt: str) -> Picture:
    """The same width of experts cut three ways, in color what one token uses: coarse, fine, fine with a shared one.

    Args:
        title: what to see. alt: the same for a reader who cannot see it.
    """
    layouts = {
        "4 experts,\none per token": (4, {1: PALETTE[0]}),
        "16 finer ones,\nfour per token": (16, dict.fromkeys((1, 6, 7, 13), PALETTE[0])),
        "one shared,\nthree of 15 others": (16, {0: PALETTE[1]} | dict.fromkeys((6, 7, 13), PALETTE[0])),
    }
    with drawing():
        figure, (axes,) = panels(width=7.0, height=2.4)
        for row, (count, used) in enumerate(layouts.values()):
            for box in range(count):
                axes.barh(row, 1 / count, left=box / count, color=used.get(box, "white"), edgecolor=GRAY, height=0.6)
        axes.text(1 / 32, 2.42, "always", ha="center", va="center", color=GRAY, fontsize=10)
        axes.set_yticks(range(len(layouts)), list(layouts))
        axes.tick_params(axis="y", length=0)
        axes.set_xticks([])
        for side in axes.spines.values():
            side.set_visible(False)
        axes.set(xlim=(-0.01, 1.01), ylim=(2.6, -0.5))
        axes.set_title(title)
        return Picture(figure, alt)


def _line(
    axes: Axes,
    left: float,
    start: int | float,
    right: float,
    end: int | float,
    color: str,
    width: float,
    dashed: bool = False,
) -> None:
    axes.plot(
        [left, right],
        [start, end],
        color=color,
        linewidth=max(width, 0.6),
        alpha=0.8,
        linestyle="--" if dashed else "-",
        solid_capstyle="round",
        zorder=1,
    )


def _label(axes: Axes, x: float, y: int | float, text: str, face: str, color: str = "black") -> None:
    """A word in a box of its own size."""
    look = {"boxstyle": "round,pad=0.3", "facecolor": face, "edgecolor": GRAY, "linewidth": 0.6}
    axes.text(x, y, text, ha="center", va="center", color=color, fontsize=10, bbox=look, zorder=3)
