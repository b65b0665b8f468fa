"""The square that attention computes, to scale, and the ways round it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

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
    """What six families of efficient Transformers compute in place of the whole square (Tay et al. 2022, §3.1).

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
