"""How BERT reads: in both directions, its input as a sum, and what its heads look at."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.patches import Circle
from torch import Tensor

from txlib.plots.matrices import _cells
from txlib.plots.picture import GREY, PALETTE, WIDEST, Picture, drawing, fit, headline, panels
from txlib.plots.shapes import arrow, box

FROM_LEFT, FROM_RIGHT, BOTH_WAYS = PALETTE[0], PALETTE[1], PALETTE[2]
TOKEN, SEGMENT, POSITION = PALETTE[5], PALETTE[4], PALETTE[2]
READ: dict[str, Any] = {"width": 1.0, "head": 11, "gap": 10, "alpha": 0.8}  # an arrow from one circle to another
INCH = 0.48  # inches: the narrowest box of a token


def readers(*, words: int = 4, title: str, alt: str) -> Picture:
    """What GPT, ELMo and BERT are made of: two layers over a few words, with an arrow wherever one vector is read to
    make another (Devlin et al. 2019, figure 3).

    Args:
        words: how many to draw.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    with drawing():
        gap = words + 0.4  # from ELMo's one reader to the other
        shares = {"width_ratios": [words, gap + words, words]}
        figure, (gpt, elmo, bert) = panels(3, width=1.0 + 0.53 * (3 * words + gap), height=4.0, gridspec_kw=shares)
        for axes, name in (
            (gpt, "GPT: from the left"),
            (elmo, "ELMo: one from each side, then joined"),
            (bert, "BERT: both ways"),
        ):
            axes.set_title(name, fontweight="normal", fontsize=11, loc="center")
            axes.set(aspect="equal", ylim=(-0.8, 4.5), xlim=(-0.6, words - 0.4 + gap * (axes is elmo)))
            axes.axis("off")
        pairs = [(i, j) for i in range(words) for j in range(words)]
        _stack(gpt, 0, words, [(i, j) for i, j in pairs if i <= j], FROM_LEFT)
        _stack(bert, 0, words, pairs, BOTH_WAYS)
        for left, colour, step in ((0, FROM_LEFT, 1), (gap, FROM_RIGHT, -1)):
            _stack(elmo, left, words, [(i, i) for i in range(words)], colour)
            for layer in (1, 2):
                for i in range(words - 1):
                    start, end = (i, i + 1) if step == 1 else (i + 1, i)
                    arrow(elmo, (left + start, 1.5 * layer), (left + end, 1.5 * layer), colour, **READ)
        middle = (gap + words - 1) / 2
        _node(elmo, middle, 4.1, GREY, "word 2")
        for left, colour in ((0, FROM_LEFT), (gap, FROM_RIGHT)):
            arrow(elmo, (left + 1, 3.0), (middle, 4.1), colour, **READ)
        headline(figure, title)
        return Picture(figure, alt)


def input_sum(tokens: Sequence[str], segments: Sequence[int], *, title: str, alt: str) -> Picture:
    """The three embeddings that are added for each token (Devlin et al. 2019, figure 2).

    Args:
        tokens: how they read. segments: 0 or 1 for each.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    rows = [
        ("token", TOKEN, list(tokens)),
        ("segment", SEGMENT, ["AB"[segment] for segment in segments]),
        ("position", POSITION, list(map(str, range(len(tokens))))),
    ]
    wide = [max(1.0, 0.2 * len(token) + 0.3) for token in tokens]
    places = _places(wide, segments, longest=(WIDEST - 1.2) / INCH)
    longest, lines = max(left + width for (_, left), width in zip(places, wide, strict=True)), places[-1][0] + 1
    with drawing():
        figure, (axes,) = panels(width=1.2 + INCH * longest, height=0.6 + 2.1 * lines)
        axes.set(xlim=(-2.2, longest), ylim=(0.65 - 3.3 * lines, 0.6))
        axes.axis("off")
        for level, (name, colour, texts) in enumerate(rows):
            for line in range(lines):
                axes.text(-0.25, -level - 3.3 * line, name, ha="right", va="center", color=GREY)
            for text, width, (line, left) in zip(texts, wide, places, strict=True):
                height = -level - 3.3 * line
                size = width - 0.24, 0.48
                box(axes, left + width / 2, height, *size, text, colour, pad=0.06, alpha=0.45, fontsize=9)
                if level:
                    axes.text(left + width / 2, height + 0.5, "+", ha="center", va="center", color=GREY, fontsize=9)
        headline(figure, title)
        return Picture(figure, alt)


def head_kinds(
    kinds: Mapping[str, Float[Tensor, "layers heads"]], *, title: str, alt: str, size: int | float = 0.24
) -> Picture:
    """A measure of every head of a model, one panel per measure, one row per layer, on a scale from 0 to 1.

    Args:
        kinds: name of the measure → its value for each head.
        title: what to see. alt: the same for a reader who cannot see it.
        size: of a cell, in inches.
    """
    layers, heads = next(iter(kinds.values())).shape
    with drawing():
        down, across, size = fit(len(kinds), heads, size, smallest=0.2, margin=0.9, gap=0.35)
        width, height = 0.9 + across * (0.35 + size * heads), 0.4 + down * (0.9 + size * layers)
        figure, all_axes = panels(len(kinds), width=width, height=height, columns=across, sharey=True)
        for number, (axes, (name, values)) in enumerate(zip(all_axes, kinds.items(), strict=True)):
            _cells(axes, values, numbers=False, limit=1.0)
            axes.set_title(name, fontweight="normal", fontsize=11)
            axes.set(xlabel="head", ylabel="" if number % across else "layer", aspect="equal")
            axes.set_xticks(range(0, heads, 2), list(map(str, range(1, heads + 1, 2))))
            axes.set_yticks(range(layers), list(map(str, range(1, layers + 1))))
            axes.tick_params(length=0)
            best = divmod(int(values.argmax()), heads)
            axes.add_patch(Circle(best[::-1], 0.62, fill=False, edgecolor=PALETTE[1], linewidth=1.8, clip_on=False))
        headline(figure, title)
        return Picture(figure, alt)


def _places(wide: Sequence[float], segments: Sequence[int], *, longest: float) -> list[tuple[int, float]]:
    """The line and the left edge of each box; what is too long for one line has a new one for each segment."""
    places, line, left = [], 0, 0.0
    for number, width in enumerate(wide):
        other = number > 0 and segments[number] != segments[number - 1]
        if left + width > longest or (other and sum(wide) > longest):
            line, left = line + 1, 0.0
        places.append((line, left))
        left += width
    return places


def _stack(axes: Axes, left: int | float, words: int, read: Sequence[tuple[int, int]], colour: str) -> None:
    """Two layers above a row of words; layer k + 1 at j reads layer k at i for each (i, j)."""
    for layer in range(2):
        for i, j in read:
            arrow(axes, (left + i, 1.5 * layer), (left + j, 1.5 * (layer + 1)), colour, **READ)
    for i in range(words):
        axes.text(left + i, -0.5, f"word {i + 1}", ha="center", va="center", fontsize=9, color=GREY)
        for layer in range(3):
            _node(axes, left + i, 1.5 * layer, colour if layer else GREY)


def _node(axes: Axes, x: int | float, y: int | float, colour: str, name: str = "") -> None:
    axes.add_patch(Circle((x, y), 0.2, facecolor="white", edgecolor=colour, linewidth=1.8, zorder=3))
    if name:
        axes.text(x + 0.35, y, name, ha="left", va="center", fontsize=9, color=GREY)
