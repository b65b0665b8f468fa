"""Writing: what the next token may be, what a sampler makes of it, and which one was chosen."""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from txcourse.figures.shapes import PALE, box
from txlib.plots.picture import GRAY, PALETTE, SEQUENTIAL, WIDEST, Picture, drawing, headline, ink, panels, words_on
from txlib.plots.ticks import ROUND

Shares = Sequence[float]
CENTERED: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9}


def choices(steps: Sequence[tuple[Mapping[str, float], str]], *, title: str, alt: str) -> Picture:
    """Step by step, the likeliest next tokens with their probabilities; the one that was chosen has a frame.

    Args:
        steps: for each step, tokens with their probabilities, likeliest first, and the chosen one, which is among them.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    rows = max(len(shares) for shares, _ in steps)
    with drawing():
        figure, (axes,) = panels(width=0.7 + 0.87 * len(steps), height=1.1 + 0.5 * rows)
        for column, (shares, chosen) in enumerate(steps):
            for row, (token, share) in enumerate(shares.items()):
                picked, number = (
                    token == chosen,
                    f"{share:{'.0%' if share >= 0.01 else '.1%' if share >= 0.001 else '.2%'}}",
                )
                axes.add_patch(_cell(column, row, share, picked))
                axes.text(
                    column,
                    row,
                    f"{token}\n{number}",
                    ha="center",
                    va="center",
                    fontsize=9,
                    fontweight="bold" if picked else "normal",
                    color=words_on(colormaps[SEQUENTIAL](share)),
                    zorder=3,
                )
        axes.set(xlim=(-0.55, len(steps) - 0.45), ylim=(rows - 0.45, -0.55), xlabel="step", yticks=[])
        axes.set_xticks(range(len(steps)), list(map(str, range(1, len(steps) + 1))))
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set_title(title)
        return Picture(figure, alt)


def candidates(
    shares: Mapping[str, tuple[Sequence[str], Shares, Shares]], *, title: str, alt: str, width: float | None = None
) -> Picture:
    """What a sampler does to a distribution: gray bars are the model's own shares, colored ones those to draw from.
    All panels have the same scale.

    Args:
        shares: name of a panel → (tokens, shares before, shares after). Panels with the same tokens share their names.
        title: what to see. alt: the same for a reader who cannot see it.
        width: of the whole figure, in inches; at most `WIDEST`.
    """
    count, rows = len(shares), max(len(tokens) for tokens, _, _ in shares.values())
    with drawing():
        figure, all_axes = panels(count, width=min(width or 1.2 + 2.3 * count, WIDEST), height=1.5 + 0.25 * rows)
        named = None
        longest = max(max(*before, *after) for _, before, after in shares.values())
        for axes, (name, (tokens, before, after)) in zip(all_axes, shares.items(), strict=True):
            places = range(len(tokens))
            axes.barh(places, before, color="#c8c8c8", height=0.85)
            axes.barh(places, after, color=PALETTE[0], height=0.45)
            same, named = list(tokens) == named, list(tokens)
            axes.set_yticks([] if same else places, [] if same else tokens)
            axes.set(xlim=(0, 1.05 * longest), ylim=(rows - 0.4, -0.6), xlabel="probability")
            axes.tick_params(axis="y", length=0)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=3, steps=ROUND))
            axes.set_title(name, fontweight="normal", fontsize=11)
        figure.supxlabel("gray: the model's own; blue: what is drawn from", x=0.99, ha="right", fontsize=9, color=GRAY)
        headline(figure, title)
        return Picture(figure, alt)


def beams(
    steps: Sequence[Sequence[tuple[int, str, float]]], num_beams: int, *, title: str, alt: str, root: str = "<bos>"
) -> Picture:
    """A beam search from left to right: which hypotheses are lengthened, and which are dropped.

    Args:
        steps: for each step, the extensions: which of the hypotheses kept before it lengthens (the likeliest is 0),
            its token, and the token's probability.
        num_beams: how many hypotheses are kept at each step.
        root: what precedes the first token.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    rows = max(map(len, steps))
    with drawing():
        figure, (axes,) = panels(width=2.3 + 2.1 * len(steps), height=0.7 + 0.72 * rows)
        axes.set(xlim=(-0.45, len(steps) + 0.5), ylim=(-0.6, rows - 0.4))
        axes.axis("off")
        kept = [(0.0, (rows - 1) / 2, 1.0)]  # where they are drawn, and the product so far
        box(axes, *kept[0][:2], 0.5, 0.45, root, PALETTE[0], pad=0.03, color="white")
        for column, step in enumerate(steps, start=1):
            shift = (rows - len(step)) / 2
            grown = [(float(column), rows - 1 - shift - i, kept[old][2] * p) for i, (old, _, p) in enumerate(step)]
            best = sorted(grown, key=lambda each: -each[2])[:num_beams]
            for (old, token, p), (x, y, product) in zip(step, grown, strict=True):
                stays = (x, y, product) in best
                color = PALETTE[0] if stays else GRAY
                start, end = (kept[old][0] + 0.28, x - 0.28), (kept[old][1], y)
                axes.plot(start, end, color=color, linewidth=2 if stays else 1, alpha=1.0 if stays else 0.6)
                fill, ink = (PALETTE[0], "white") if stays else (PALE, "black")
                box(
                    axes,
                    x,
                    y,
                    0.5,
                    0.45,
                    f"{token}\n{product:{'.2f' if product > 0.095 else '.1g'}}",
                    fill,
                    pad=0.03,
                    color=ink,
                    fontsize=9,
                )
                middle = (sum(start) / 2, sum(end) / 2)
                axes.text(*middle, f"{p:g}", color=color, backgroundcolor="white", **CENTERED)
            kept = best
        headline(figure, title)
        return Picture(figure, alt)


def answers(prompt: str, rows: Mapping[str, Sequence[tuple[str, float]]], *, title: str, alt: str) -> Picture:
    """Given answers to a prompt, token by token, each with its probability after those before it; and their product.

    Args:
        rows: answer → its tokens with their probabilities. The likeliest answer has thick lines.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    products = {answer: math.prod(p for _, p in tokens) for answer, tokens in rows.items()}
    best = max(products, key=products.__getitem__)
    longest = max(map(len, rows.values()))
    with drawing():
        figure, (axes,) = panels(width=4.2 + 1.15 * longest, height=0.7 + 0.62 * len(rows))
        axes.set(xlim=(-1.1, longest + 2.1), ylim=(len(rows) - 0.4, -0.6))
        axes.axis("off")
        middle = (len(rows) - 1) / 2
        box(axes, -0.2, middle, 1.5, 0.6, prompt, PALE)
        for y, (answer, tokens) in enumerate(rows.items()):
            color, width = (PALETTE[0], 2.4) if answer == best else (GRAY, 1.0)
            axes.plot([0.55, 0.95], [middle, y], color=color, linewidth=width)
            axes.plot([1.0, len(tokens) + 0.6], [y, y], color=color, linewidth=width)
            for x, (token, p) in enumerate(tokens, start=1):
                fill = to_hex(colormaps[SEQUENTIAL](p))
                box(axes, x + 0.3, y, 0.76, 0.6, f"{token}\n{p:.2g}", fill, color=words_on(fill), fontsize=9)
            ending = f"= {products[answer]:.2g}"
            weight = "bold" if answer == best else "normal"
            axes.text(len(tokens) + 0.85, y, ending, ha="left", va="center", color=color, fontweight=weight)
        headline(figure, title)
        return Picture(figure, alt)


def nucleus(shares: Mapping[str, Shares], top_p: float, *, title: str, alt: str) -> Picture:
    """How much the likeliest tokens have together, and how many of them it takes to reach `top_p`.

    Args:
        shares: name → probabilities of all tokens, likeliest first.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    sums = {name: list(accumulate(each)) for name, each in shares.items()}
    kept = {name: next(n for n, total in enumerate(each, start=1) if total >= top_p) for name, each in sums.items()}
    longest = min(math.ceil(1.7 * max(kept.values())) + 3, *map(len, sums.values()))
    with drawing():
        figure, (axes,) = panels(width=6.8, height=3.4)
        axes.axhline(top_p, color=GRAY, linestyle=":", linewidth=1.2)
        axes.text(1.01 * longest, top_p, f"p = {top_p:g}", va="center", color=GRAY)
        for (name, each), color in zip(sums.items(), PALETTE, strict=False):
            count, height = kept[name], each[kept[name] - 1]
            axes.plot(range(longest + 1), [0, *each[:longest]], color=color, marker=".", markersize=4)
            axes.plot(count, height, "o", color=color, markersize=9)
            label = f"{name}: {count} token{'s' * (count > 1)}"
            axes.annotate(label, (count, height), (6, -24), textcoords="offset points", color=ink(color))
        axes.set(xlim=(0, longest), ylim=(0, 1.05), xlabel="tokens, likeliest first", ylabel="probability together")
        axes.set_title(title)
        return Picture(figure, alt)


def _cell(column: int, row: int, share: float, picked: bool) -> Rectangle:
    return Rectangle(
        (column - 0.46, row - 0.44),
        0.92,
        0.88,
        facecolor=colormaps[SEQUENTIAL](share),
        edgecolor=PALETTE[1] if picked else "#d9d9d9",
        linewidth=2.2 if picked else 0.5,
        zorder=2 if picked else 1,
    )
