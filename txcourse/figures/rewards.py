"""What learning from rewards does to the answers that a model has drawn."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from txcourse.figures.shapes import PALE, arrow, box
from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, headline, ink, panels

LIKELIER, LESS_LIKELY = PALETTE[0], PALETTE[1]
STEP, TOKEN = 0.62, 0.5  # from token to token, and how wide one is


def pushed_answers(
    prompt: str,
    answers: Sequence[str],
    rewards: Sequence[int | float | str],
    pushes: Sequence[int | float] = (),
    *,
    title: str,
    reward: str = "reward",
    push: str = "",
) -> Picture:
    """A prompt, the answers drawn for it, what each earns, and which become likelier (blue) or less likely (orange).

    Args:
        answers: each with blanks between its tokens.
        rewards: of each answer, a number or a word. pushes: what its tokens' log-probabilities are multiplied by; the
            stronger, the deeper the color. Without them nothing is colored.
        title: what to see. reward, push: what the two columns are called.
    """
    rows = [answer.split() for answer in answers]
    longest = max(map(len, rows))
    ends = 2.0 + STEP * longest  # where the columns begin
    values = [value if isinstance(value, str) else f"{value:g}" for value in rewards]
    strongest = max(map(abs, pushes), default=0) or 1
    said = []
    with drawing():
        width, height = ends + 1.5 + 1.7 * bool(pushes), len(rows) + 0.9
        figure, (axes,) = panels(width=min(9.6, 0.95 * width), height=0.6 + 0.48 * height)
        axes.set(xlim=(-0.9, ends + 1.2 + 1.7 * bool(pushes)), ylim=(len(rows) - 0.4, -1.3))
        axes.axis("off")
        middle = (len(rows) - 1) / 2
        box(axes, 0, middle, 1.35, 0.62, prompt, PALE, family="monospace", fontsize=12)
        for text, x in (("drawn answers", 1.7 + STEP * longest / 2), (reward, ends + 0.5), (push, ends + 2.2)):
            axes.text(x, -0.95, text, ha="center", va="center", color=GRAY, fontsize=10.5)
        for y, (tokens, value) in enumerate(zip(rows, values, strict=True)):
            amount = pushes[y] if pushes else 0
            arrow(axes, (0.8, middle), (1.55, y), GRAY, width=1)
            for place, token in enumerate(tokens):
                _token(axes, 1.95 + STEP * place, y, token, amount / strongest)
            axes.text(ends + 0.5, y, value, ha="center", va="center", fontsize=12)
            said.append(f"{' '.join(tokens)}: {reward} {value}")
            if pushes:
                mark, word = {1: ("▲ ", "likelier"), -1: ("▼ ", "less likely")}.get(_sign(amount), ("", "unchanged"))
                axes.text(
                    ends + 2.2, y, f"{mark}{amount:.3g}".replace("-", "−"), ha="center", va="center",
                    color=ink(_color(amount)), fontsize=12,
                )  # fmt: skip
                said[-1] += f", {push} {amount:.3g}, {word}"
        headline(figure, title)
        return Picture(figure, f"Answers to {prompt} – {'; '.join(said)}.")


def _sign(amount: int | float) -> int:
    return (amount > 0) - (amount < 0)


def _color(amount: int | float) -> str:
    return {1: LIKELIER, -1: LESS_LIKELY}.get(_sign(amount), GRAY)


def _token(axes: Axes, x: int | float, y: int | float, token: str, strength: int | float) -> None:
    style: dict[str, Any] = {"edgecolor": _color(strength), "linewidth": 1.0, "zorder": 3}
    corner = (x - TOKEN / 2, y - 0.31)
    axes.add_patch(FancyBboxPatch(corner, TOKEN, 0.62, "round,pad=0,rounding_size=0.08", facecolor="white", **style))
    tint: dict[str, Any] = {"alpha": 0.65 * abs(strength) ** 0.7, "linewidth": 0, "zorder": 3.5}
    if strength:
        axes.add_patch(
            FancyBboxPatch(corner, TOKEN, 0.62, "round,pad=0,rounding_size=0.08", facecolor=_color(strength), **tint)
        )
    size = 10 if len(token) > 1 else 12
    axes.text(x, y, token, ha="center", va="center", family="monospace", fontsize=size, zorder=5)
