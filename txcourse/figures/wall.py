"""The figures of lesson 30: what grows with the length, the square to scale, and the ways around it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from txlib.plots.charts import lines
from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, fit, headline, ink, panels, words_on

TOKENS, SCORES, EMPTY = PALETTE[0], PALETTE[1], "#eeeeee"
CELLS = 24  # queries and keys of a small square


def areas(lengths: Sequence[int], d_model: int, *, title: str, alt: str) -> Picture:
    """What one head of attention holds, to scale: the tokens, a strip of n × d, and their scores, a square of n × n.

    Args:
        lengths: n of each panel; all have the same scale.
        d_model: d.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    longest, gap = max(lengths), 0.06 * max(lengths)
    with drawing():
        figure, all_axes = panels(len(lengths), width=9.0, height=3.3)
        for axes, n in zip(all_axes, lengths, strict=True):
            for left, width, color, name in ((0, d_model, TOKENS, "n × d"), (d_model + gap, n, SCORES, "n × n")):
                axes.add_patch(Rectangle((left, longest - n), width, n, color=color, linewidth=0))
                numbers = f"{name}\n{n * width:,}"
                axes.text(
                    left + width / 2, longest - n - gap, numbers, ha="center", va="top", fontsize=9, color=ink(color)
                )
            axes.set(xlim=(-gap, d_model + longest + 2 * gap), ylim=(-5 * gap, longest + gap), aspect="equal")
            axes.axis("off")
            axes.set_title(f"n = {n:,}, d = {d_model:,}", fontweight="normal", fontsize=11)
        headline(figure, title)
        return Picture(figure, alt)


def ways_round(*, title: str, alt: str) -> Picture:
    """What six families of efficient Transformers compute instead of the whole square (Tay et al. 2022, §3.1).

    Queries run downwards, keys to the right. What is computed is dark; where the square is replaced by smaller
    rectangles, these are drawn inside its outline.
    """
    families: dict[str, Any] = {
        "fixed patterns": _fixed(),
        "learnable patterns": _learnable(),
        "memory": _memory(),
        "recurrence": _recurrence(),
        "low rank": [("n × k", 0, 0, 6, CELLS)],
        "kernels": [("n × r", 0, 0, 6, CELLS), ("r × n", 7, 0, CELLS - 7, 6)],
    }
    with drawing():
        down, across, _ = fit(len(families), CELLS, 0.07, smallest=0.05, margin=0.3, gap=0.3)
        figure, all_axes = panels(len(families), width=9.4, height=0.5 + 1.9 * down, columns=across)
        for axes, (name, computed) in zip(all_axes, families.items(), strict=True):
            if isinstance(computed, list):
                _rectangles(axes, computed)
            else:
                colors = np.where(computed[..., None], _rgb(SCORES), _rgb(EMPTY))
                axes.imshow(colors, extent=(0, CELLS, CELLS, 0), interpolation="nearest")
            axes.add_patch(Rectangle((0, 0), CELLS, CELLS, fill=False, edgecolor=GRAY, linewidth=0.8))
            axes.set(xlim=(-0.3, CELLS + 0.3), ylim=(CELLS + 0.3, -0.3), aspect="equal", xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            axes.set_title(name, fontweight="normal", fontsize=11)
        all_axes[0].set(xlabel="keys", ylabel="queries")
        headline(figure, title)
        return Picture(figure, alt)


def _rgb(color: str) -> np.ndarray:
    return np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])


def _positions() -> tuple[np.ndarray, np.ndarray]:
    place = np.arange(CELLS)
    return place[:, None], place[None, :]


def _fixed() -> np.ndarray:
    """A window around each position."""
    query, key = _positions()
    return abs(query - key) <= 2


def _learnable() -> np.ndarray:
    """Positions that fall into the same of six groups, wherever they stand."""
    group = np.random.default_rng(1).permutation(CELLS) % 6
    return group[:, None] == group[None, :]


def _memory() -> np.ndarray:
    """A few positions that all read, and that read all."""
    query, key = _positions()
    return np.minimum(query, key) < 3


def _recurrence() -> np.ndarray:
    """Segments, each of which reads itself and what is kept of the one before."""
    query, key = _positions()
    return (query // 6 - key // 6 <= 1) & (query >= key)


def _rectangles(axes: Axes, parts: Sequence[tuple[str, int, int, int, int]]) -> None:
    words: dict[str, Any] = {"ha": "center", "va": "center", "color": words_on(SCORES), "fontsize": 9}
    axes.add_patch(Rectangle((0, 0), CELLS, CELLS, color=EMPTY, linewidth=0))
    for name, left, top, width, height in parts:
        axes.add_patch(Rectangle((left, top), width, height, color=SCORES, linewidth=0))
        axes.text(left + width / 2, top + height / 2, name, rotation=90 if height > width else 0, **words)


def exponents(sizes: Sequence[int], counts: Mapping[str, Sequence[int]]) -> Picture:
    """The steps of the four tasks of lesson 30 over the number of words."""
    return lines(
        {name: (sizes, costs) for name, costs in counts.items()},
        xscale="log",
        yscale="log",
        marker="o",
        title="On logarithmic axes the slope is the exponent",
        xlabel="words n",
        ylabel="steps",
        alt="Steps against the number of words, both logarithmic. Look up: flat at 1. Search: a straight line of slope "
        "1. Sort: a little above it and a little steeper. Compare: slope 2, from 28 steps at 8 words to 2 million at "
        "2,048.",
    )


def fractions_of_a_block(widths: Mapping[str, int]) -> Picture:
    """Scores and mixing as a fraction of a block, n / (n + 6d), over the length, for each width."""
    lengths = [2**k for k in range(7, 18)]
    return lines(
        {name: (lengths, [100 * n / (n + 6 * d) for n in lengths]) for name, d in widths.items()},
        xscale="log",
        title="The wider the model, the further away the wall",
        xlabel="length n",
        ylabel="scores and mixing (% of a block)",
        alt="Scores and mixing in percent of a block against the length from 128 to 131,072, logarithmic. Each curve "
        "rises slowly, then steeply, and reaches half at six times the width: "
        + ", ".join(f"{6 * d:,}" for d in widths.values())
        + " tokens.",
    )


def clock(lengths: Sequence[int], times: Mapping[str, Sequence[float]], *, title: str, **options: Any) -> Picture:
    """Milliseconds of computations over the length, both axes logarithmic; options as in `txlib.plots.lines`."""
    ends = (
        f"{name}: {run[0]:.2g} ms at {lengths[0]}, {run[-1]:.3g} ms at {lengths[-1]:,}" for name, run in times.items()
    )
    return lines(
        {name: (lengths, run) for name, run in times.items()},
        xscale="log",
        yscale="log",
        marker="o",
        title=title,
        xlabel="length n",
        ylabel="milliseconds",
        alt="Milliseconds against the length, both logarithmic. " + "; ".join(ends) + ".",
        **options,
    )


def longest_paths(lengths: Sequence[int], paths: Mapping[str, Sequence[int]]) -> Picture:
    """The layers, or steps, between the first and the last position, over the length, for each kind of layer."""
    return lines(
        {name: (lengths, path) for name, path in paths.items()},
        xscale="log",
        yscale="log",
        marker="o",
        title="Attention hears the first token at once, however far it is",
        xlabel="length n",
        ylabel="layers, or steps, on the path",
        alt="Layers that the news from the first position passes until the last one, against the length, logarithmic. "
        + "; ".join(f"{name}: {', '.join(map(str, path))}" for name, path in paths.items())
        + f" for {', '.join(map(str, lengths))} positions.",
    )


def in_view(contexts: Sequence[int], percent: Mapping[str, Sequence[float]]) -> Picture:
    """How many rare words that come back have their last mention in the context, over its length; a line per text."""
    return lines(
        {name: (contexts, values) for name, values in percent.items()},
        xscale="log",
        marker="o",
        mark=("GPT-2: 1,024", 1024),
        title="With 1,024 tokens, most rare words look new",
        xlabel="context (tokens)",
        ylabel="last mention in view (%)",
        alt="Returning rare words whose last mention is within the context, against its length. "
        + "; ".join(
            f"{name}: " + ", ".join(f"{value:.0f}% at {n:,}" for n, value in zip(contexts, values, strict=True))
            for name, values in percent.items()
        )
        + ".",
    )
