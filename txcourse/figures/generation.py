"""Writing: what the next token may be, what a sampler makes of it, and which one was chosen."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from txcourse.figures.shapes import PALE, box
from txlib.plots.charts import lines
from txlib.plots.picture import (
    GRAY,
    MAX_INCHES,
    PALETTE,
    SEQUENTIAL,
    Picture,
    color_cycle,
    drawing,
    headline,
    ink,
    panels,
    words_on,
)
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


def draws(steps: Sequence[tuple[Float[Tensor, "vocab"], int]], names: Sequence[str], *, title: str) -> Picture:
    """The four likeliest tokens of each step, and the one that was drawn.

    Args:
        steps: the probabilities of all tokens, and the number of the drawn one.
        names: of all tokens.
        title: what to see.
    """
    columns = []
    for p, drawn in steps:
        shown = list(dict.fromkeys([*p.topk(4).indices.tolist(), drawn]))
        columns.append(({names[id]: p[id].item() for id in shown}, names[drawn]))
    words = ", ".join(f"{token} with {shares[token]:.2g}" for shares, token in columns)
    alt = f"A column for each step: the likeliest next tokens, and the drawn one in a frame. Drawn were {words}."
    return choices(columns, title=title, alt=alt)


def candidates(
    shares: Mapping[str, tuple[Sequence[str], Shares, Shares]],
    *,
    title: str,
    alt: str,
    width: float | None = None,
    rest: bool = False,
) -> Picture:
    """What a sampler does to a distribution: gray bars are the model's own shares, colored ones those to draw from.
    All panels have the same scale.

    Args:
        shares: name of a panel → (tokens, shares before, shares after). Panels with the same tokens share their names.
        rest: whether the last row stands for many tokens together. It is then written as two numbers, so that the bars
            of the others are not too short to see, and tokens that get nothing are marked.
        title: what to see. alt: the same for a reader who cannot see it.
        width: of the whole figure, in inches; at most `MAX_INCHES`.
    """
    count, rows = len(shares), max(len(tokens) for tokens, _, _ in shares.values())
    with drawing():
        figure, all_axes = panels(count, width=min(width or 1.2 + 2.3 * count, MAX_INCHES), height=1.5 + 0.25 * rows)
        named = None
        bars = rows - rest
        longest = max(max(*before[:bars], *after[:bars]) for _, before, after in shares.values())
        for axes, (name, (tokens, before, after)) in zip(all_axes, shares.items(), strict=True):
            places = range(len(tokens))
            axes.barh(places[:bars], before[:bars], color="#c8c8c8", height=0.85)
            axes.barh(places[:bars], after[:bars], color=PALETTE[0], height=0.45)
            if rest:
                axes.text(0.02 * longest, bars, f"{before[-1]:.0%} → {after[-1]:.0%}", va="center", fontsize=9)
                for place in range(bars):
                    if before[place] > after[place] == 0:
                        end = before[place] + 0.03 * longest
                        axes.text(end, place, "cut", va="center", fontsize=8, color=ink(PALETTE[1]))
            same, named = list(tokens) == named, list(tokens)
            axes.set_yticks([] if same else places, [] if same else tokens)
            axes.set(xlim=(0, 1.05 * longest), ylim=(rows - 0.4, -0.6), xlabel="probability")
            axes.tick_params(axis="y", length=0)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=3, steps=ROUND))
            axes.set_title(name, fontweight="normal", fontsize=11)
        figure.supxlabel("gray: the model's own; blue: what is drawn from", x=0.99, ha="right", fontsize=9, color=GRAY)
        headline(figure, title)
        return Picture(figure, alt)


def reshaped(
    before: Float[Tensor, "vocab"],
    after: Mapping[str, Float[Tensor, "vocab"]],
    names: Sequence[str],
    *,
    title: str,
    shown: int = 11,
    width: float | None = None,
) -> Picture:
    """What samplers make of one distribution, a panel each; all but the likeliest tokens share the last row.

    Args:
        before: the model's logits.
        after: name of a sampler → what it makes of them.
        names: of all tokens.
        title: what to see.
        shown: how many of the tokens have a row of their own.
        width: of the whole figure, in inches.
    """
    order = before.topk(shown).indices  # (shown,)
    tokens = [*(names[id] for id in order.tolist()), f"{len(before) - shown:,} others"]

    def shares(logits: Float[Tensor, "vocab"]) -> list[float]:
        top = logits.softmax(dim=-1)[order]  # (shown,)
        return [*top.tolist(), max(0.0, 1 - top.sum().item())]

    panels_of = {name: (tokens, shares(before), shares(logits)) for name, logits in after.items()}
    alt = f"Bars for {', '.join(tokens[:shown])}, before and after. " + "; ".join(
        f"{name}: {sum(share > 0 for share in last[:shown])} of them left, all others together {last[-1]:.0%}"
        for name, (_, _, last) in panels_of.items()
    )
    return candidates(panels_of, title=title, alt=alt + ".", width=width, rest=True)


def beam_tree(
    next_p: Callable[[list[int]], Float[Tensor, "vocab"]],
    start: Sequence[int],
    names: Sequence[str],
    *,
    root: str,
    steps: int = 3,
    num_beams: int = 2,
) -> Picture:
    """A beam search that a model makes, next to the path of greedy search, where the beams have left it.

    Args:
        next_p: the probabilities of the next token, after any tokens.
        start: the tokens of the prompt.
        names: of all tokens.
        root: how the prompt is written.
        steps: how many tokens are added.
        num_beams: how many hypotheses are kept, and how many continuations of each are drawn.
    """
    hypotheses, greedy, levels = [(list(start), 1.0)], (list(start), 1.0), []  # in the order in which `beams` counts
    for _ in range(steps):
        level = []
        for i, (ids, product) in enumerate(hypotheses):
            top = next_p(ids).topk(num_beams if i < num_beams else 1)
            if i < num_beams or ids == greedy[0]:  # of those that were dropped, only greedy's path goes on
                level += [(i, id, p, product) for p, id in zip(top.values.tolist(), top.indices.tolist(), strict=True)]
        level.sort(key=lambda extension: extension[0] < num_beams)  # greedy's dropped path comes first
        levels.append([(i, names[id], p) for i, id, p, _ in level])
        grown = [(i, [*hypotheses[i][0], id], product * p) for i, id, p, product in level]
        grown.sort(key=lambda beam: -beam[2])
        kept = [beam for beam in grown if beam[0] < num_beams][:num_beams]
        hypotheses = [(ids, p) for _, ids, p in kept + [beam for beam in grown if beam not in kept]]
        likely = next_p(greedy[0])  # (vocab,)
        greedy = [*greedy[0], int(likely.argmax())], greedy[1] * likely.max().item()
    paths = [f"{' · '.join(names[id] for id in ids[len(start) :])} with {p:.3f}" for ids, p in (hypotheses[0], greedy)]
    return beams(
        levels,
        num_beams,
        root=root,
        decimals=3,
        title=f"{num_beams} beams find a path with {hypotheses[0][1]:.3f}; greedy's has {greedy[1]:.3f}",
        alt=f"A tree from left to right, {steps} steps. The likeliest path is {paths[0]}; greedy's, {paths[1]}.",
    )


def beams(
    steps: Sequence[Sequence[tuple[int, str, float]]],
    num_beams: int,
    *,
    title: str,
    alt: str,
    root: str = "<bos>",
    decimals: int | None = None,
) -> Picture:
    """A beam search from left to right: which hypotheses are lengthened, and which are dropped.

    Args:
        steps: for each step, the extensions: which of the hypotheses before it lengthens (the likeliest that was kept
            is 0; from `num_beams` on, one that was dropped), its token, and the token's probability.
        num_beams: how many hypotheses are kept at each step.
        root: what precedes the first token.
        decimals: of all numbers; without it, probabilities as they are given, and products to one or two digits.
        title: what to see. alt: the same for a reader who cannot see it.
    """

    def as_product(p: float) -> str:
        return f"{p:{'.2f' if p > 0.095 else '.1g'}}" if decimals is None else f"{p:.{decimals}f}"

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
            of_kept = [beam for (old, _, _), beam in zip(step, grown, strict=True) if old < num_beams]
            best = sorted(of_kept, key=lambda beam: -beam[2])[:num_beams]
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
                    f"{token}\n{as_product(product)}",
                    fill,
                    pad=0.03,
                    color=ink,
                    fontsize=9,
                )
                middle = (sum(start) / 2, sum(end) / 2)
                axes.text(
                    *middle,
                    f"{p:g}" if decimals is None else as_product(p),
                    color=color,
                    backgroundcolor="white",
                    **CENTERED,
                )
            kept = best + sorted((beam for beam in grown if beam not in best), key=lambda beam: -beam[2])
        headline(figure, title)
        return Picture(figure, alt)


def clipped_counts(hypothesis: Sequence[str], reference: Sequence[str], *, title: str) -> Picture:
    """The n-grams of a hypothesis, each above its words: which ones BLEU counts, and how many of each length.

    Args:
        title: what to see.
    """
    top, counted_rows = 0.0, []
    heights = [0.34 + 0.24 * n for n in (1, 2, 3, 4)]
    with drawing():
        figure, (axes,) = panels(width=1.8 + 0.86 * len(hypothesis), height=1.5 + 0.9 * sum(heights))
        for y, name, words in ((-1.35, "reference", reference), (-0.6, "hypothesis", hypothesis)):
            axes.text(-0.7, y, name, ha="right", va="center", color=GRAY)
            for at, word in enumerate(words):
                box(axes, at, y, 0.8, 0.36, word, PALE, pad=0.04, fontsize=9)
        for n, height in enumerate(heights, start=1):
            grams = [tuple(hypothesis[at : at + n]) for at in range(len(hypothesis) - n + 1)]
            left = Counter(tuple(reference[at : at + n]) for at in range(len(reference) - n + 1))
            counted = 0
            for at, gram in enumerate(grams):
                hit = left[gram] > 0
                left[gram] -= hit
                counted += hit
                x, y, color = at + (n - 1) / 2, top + height / 2, PALETTE[2] if hit else PALETTE[1]
                box(axes, x, y, 0.8, height - 0.2, "\n".join(gram), color, pad=0.04, fontsize=8, color=words_on(color))
            counted_rows.append(f"n = {n}: {counted} of {len(grams)}")
            axes.text(-0.7, top + height / 2, counted_rows[-1], ha="right", va="center", fontweight="bold")
            top += height
        axes.set(xlim=(-2.4, max(len(hypothesis), len(reference)) - 0.4), ylim=(-1.7, top + 0.1))
        axes.axis("off")
        legend = [Patch(color=PALETTE[2], label="counted"), Patch(color=PALETTE[1], label="not counted")]
        figure.legend(handles=legend, loc="outside lower left", ncols=2, frameon=False, fontsize=9)
        headline(figure, title)
        told = f"Reference “{' '.join(reference)}”, hypothesis “{' '.join(hypothesis)}”. Its n-grams that are counted, "
        return Picture(figure, told + "; ".join(counted_rows) + ".")


def label_smoothing(vocabulary: int, smoothing: float = 0.1) -> Picture:
    """The loss as one token's logit grows above those of all others, without label smoothing and with it."""
    alt = (
        "Loss against the right token's logit. Without smoothing it falls to 0 and stays. With smoothing it is lowest "
        "near a logit of 10, and rises beyond."
    )
    lead = np.linspace(0, 20, 81)
    total = np.log(np.exp(lead) + vocabulary - 1)
    return lines(
        {f"ε = {e:g}": (lead.tolist(), (total - (1 - e + e / vocabulary) * lead).tolist()) for e in (0, smoothing)},
        title="With label smoothing, being too sure costs",
        xlabel="logit of the right token above all others",
        ylabel="loss (nats)",
        alt=alt,
    )


def schedules(rates: Mapping[str, Callable[[int], float]], steps: int = 20_000) -> Picture:
    """Learning rates over the steps of a run, each drawn with its peak at 1: the paper's first, then one that ends."""
    every = range(50, steps + 1, 50)
    curves = {name: [rate(step) for step in every] for name, rate in rates.items()}
    peaks = (f"{name}: at its peak after {every[curve.index(max(curve))]} steps" for name, curve in curves.items())
    return lines(
        {name: (every, [value / max(curve) for value in curve]) for name, curve in curves.items()},
        title="The paper's rate falls forever; the other reaches 0",
        xlabel="step",
        ylabel="learning rate / its peak",
        alt=f"Curves that rise to 1 and fall. {'; '.join(peaks)}.",
    )


def sources(losses: Mapping[int, Mapping[str, float]]) -> Picture:
    """A translator's loss while it learns, with each sentence's own source and with another's, and what lies between.

    Args:
        losses: step → "own" and "another's".
    """
    steps = list(losses)
    own, other = ([found[whose] for found in losses.values()] for whose in ("own", "another's"))
    alt = "Loss with another sentence's German and with its own, after each number of steps: "
    alt += "; ".join(
        f"{step}: {above:.2f} and {below:.2f}" for step, above, below in zip(steps, other, own, strict=True)
    )
    with drawing():
        figure, (axes,) = panels(width=7.2, height=3.8)
        axes.fill_between(steps, own, other, color=PALETTE[1], alpha=0.12, linewidth=0)
        for name, values, color in (("another's German", other, PALETTE[1]), ("its own German", own, PALETTE[0])):
            axes.plot(steps, values, "o-", color=color)
            axes.text(1.08 * steps[-1], values[-1], name, va="center", color=ink(color))
        for step, above, below in zip(steps[1:], other[1:], own[1:], strict=True):
            axes.text(step, below - 0.3, f"{above - below:.1f} lower", ha="center", va="top", color=GRAY, fontsize=9)
        axes.set(
            xscale="log", xlabel="training step", ylabel="loss (nats per token)", xlim=(0.9 * steps[0], 3 * steps[-1])
        )
        axes.set_xticks(steps, [str(step) for step in steps])
        axes.minorticks_off()
        axes.set_ylim(bottom=min(own) - 0.9)
        axes.set_title("First it learns English, then to read the German")
        return Picture(figure, f"{alt}.")


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
    sums = {name: list(accumulate(fractions)) for name, fractions in shares.items()}
    kept = {name: next(n for n, total in enumerate(totals, start=1) if total >= top_p) for name, totals in sums.items()}
    longest = min(math.ceil(1.7 * max(kept.values())) + 3, *map(len, sums.values()))
    with drawing():
        figure, (axes,) = panels(width=6.8, height=3.4)
        axes.axhline(top_p, color=GRAY, linestyle=":", linewidth=1.2)
        axes.text(1.01 * longest, top_p, f"p = {top_p:g}", va="center", color=GRAY)
        for (name, totals), color in zip(sums.items(), color_cycle(), strict=False):
            count, height = kept[name], totals[kept[name] - 1]
            axes.plot(range(longest + 1), [0, *totals[:longest]], color=color, marker=".", markersize=4)
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
