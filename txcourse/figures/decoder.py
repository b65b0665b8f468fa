"""Decoders as drawings: GPT-2 beside Llama 3, and queries that share keys and values."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from txcourse.figures.shapes import PALE, arrow, box
from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, headline, panels, words_on

COLORS = [*PALETTE, GRAY]  # so that eight pairs of key and value have eight
SAME, CHANGED, STREAM, BRANCH = PALE, PALETTE[4], PALETTE[0], 2.35
SIZE = 2.3, 0.7  # of a box

GPT2_PARTS = {
    "last norm": "layer norm",
    "feed-forward": "feed-forward\n4d wide, gelu",
    "norm": "layer norm",
    "attention": "attention\nh queries, h keys,\nh values",
    "position": "+ learned position",
    "biases": "biases",
}
LLAMA_PARTS = {
    "last norm": "RMS norm",
    "feed-forward": "SwiGLU\n8/3 d wide, gated",
    "norm": "RMS norm",
    "attention": "attention\nrotary; queries\nshare keys, values",
    "position": "",
    "biases": "no biases",
}


def decoders() -> Picture:
    """GPT-2 (Radford et al. 2019) and Llama 3 (2024), wired as Llama 1 but with shared keys and values: what differs is
    drawn in another color."""
    alt = (
        "Two decoders side by side, read from the bottom. Left, GPT-2: token vector, plus learned position; in each"
        " of L blocks layer norm, attention, layer norm, feed-forward network with gelu; a last layer norm; output."
        " Right, Llama 3, wired alike: no position added; in each block RMS norm, rotary attention whose queries "
        "share keys and values, RMS norm, SwiGLU; a last RMS norm; output. GPT-2's matrices have biases, Llama's "
        "have none."
    )
    with drawing():
        figure, both = panels(2, width=8.4, height=6.4)
        for axes, name, parts in zip(both, ("GPT-2 (2019)", "Llama 3 (2024)"), (GPT2_PARTS, LLAMA_PARTS), strict=True):
            _decoder(axes, parts, CHANGED if parts is LLAMA_PARTS else SAME)
            axes.set_title(f"{name}, {parts['biases']}", fontweight="normal", fontsize=11, loc="center")
        headline(figure, "From GPT-2 to Llama 3, the wiring stays; the orange parts change")
        return Picture(figure, alt)


def shared_heads(
    heads: int, kv_heads: Sequence[int], *, title: str, alt: str, names: Sequence[str] | None = None
) -> Picture:
    """Which key/value head each query head reads (Ainslie et al. 2023, figure 2), a panel for each number of them.

    Args:
        heads: number of query heads.
        kv_heads: numbers of key/value heads, divisors of `heads`.
        title: what to see. alt: the same for a reader who cannot see it.
        names: a title for each panel.
    """
    with drawing():
        figure, all_axes = panels(len(kv_heads), width=0.4 + 2.8 * len(kv_heads), height=2.5)
        for number, (axes, count) in enumerate(zip(all_axes, kv_heads, strict=True)):
            group = heads // count
            for head in range(heads):
                shared, color = head // group, COLORS[head // group % len(COLORS)]
                middle = (shared + 0.5) * group - 0.5
                axes.plot([head, middle], [0.17, 0.83], color=color, linewidth=1.6, zorder=1)
                _square(axes, head, 0.0, color, "q" if heads <= 8 else "")
                if head % group == 0:
                    _square(axes, middle, 1.0, color, "kv")
            axes.set(xlim=(-0.7, heads - 0.3), ylim=(-0.35, 1.35))
            axes.axis("off")
            if names:
                axes.set_title(names[number], fontweight="normal", fontsize=11, loc="center")
        headline(figure, title)
        return Picture(figure, alt)


def _decoder(axes: Axes, parts: dict[str, str], changed: str) -> None:
    """One model from the token vector at the bottom to the output at the top."""
    axes.axis("off")
    axes.set(xlim=(-1.6, 4.2), ylim=(-0.4, 12.9))
    axes.add_patch(FancyBboxPatch((-0.75, 2.3), 4.6, 7.7, "round,pad=0.1", facecolor="none", edgecolor=GRAY))
    axes.text(-0.95, 6.15, "L ×", ha="right", va="center", fontsize=12)
    axes.plot([0, 0], [0.6, 10.6], color=STREAM, linewidth=5, solid_capstyle="butt", zorder=1)
    box(axes, 0, 0.25, *SIZE, "token vector", SAME, fontsize=10)
    if parts["position"]:
        box(axes, 0, 1.45, *SIZE, parts["position"], SAME, fontsize=10)
    for bottom, part in ((2.5, "attention"), (6.4, "feed-forward")):
        top = bottom + 3.15
        axes.plot([0, BRANCH, BRANCH], [bottom, bottom, top], color=GRAY, linewidth=1.5, zorder=1)
        arrow(axes, (BRANCH, top), (0.2, top))
        box(axes, BRANCH, bottom + 0.65, *SIZE, parts["norm"], changed, fontsize=10)
        box(axes, BRANCH, bottom + 2.05, SIZE[0], 1.6, parts[part], changed, fontsize=10)
        axes.plot(0, top, "o", markersize=17, markerfacecolor="white", markeredgecolor=STREAM, zorder=4)
        axes.text(0, top - 0.02, "+", ha="center", va="center", fontsize=14, zorder=5)
    box(axes, 0, 10.75, *SIZE, parts["last norm"], changed, fontsize=10)
    axes.plot([0, 0], [11.1, 11.7], color=GRAY, linewidth=1.5, zorder=1)
    box(axes, 0, 12.0, *SIZE, "output matrix", SAME, fontsize=10)


def _square(axes: Axes, x: int | float, y: int | float, color: str, text: str) -> None:
    axes.plot(x, y, "s", markersize=15, markerfacecolor=color, markeredgecolor="none", zorder=3)
    axes.text(x, y, text, ha="center", va="center", color=words_on(color), fontsize=8, zorder=4)
