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
    "feed-forward": "SwiGLU, gated\n8/3 to 4 d wide",
    "norm": "RMS norm",
    "attention": "attention\nrotary; queries\nshare keys, values",
    "position": "",
    "biases": "no biases",
}
FILE_NAMES = {  # of the bundled Llama's tensors, with their shapes; layers.0 to layers.3
    "token": "embed_tokens\n(1024, 128)",
    "attention norm": "input_layernorm\n(128)",
    "attention": "self_attn: q_proj (128, 128)\nk_proj, v_proj (64, 128)\no_proj (128, 128)",
    "feed-forward norm": "post_attention_layernorm\n(128)",
    "feed-forward": "mlp: gate_proj, up_proj\n(341, 128)\ndown_proj (128, 341)",
    "last norm": "norm\n(128)",
    "output": "embed_tokens again\n(tied)",
    "position": "",
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
            named = {"token": "token vector", "output": "output matrix"} | parts
            norms = {"attention norm": parts["norm"], "feed-forward norm": parts["norm"]}
            _decoder(axes, named | norms, CHANGED if parts is LLAMA_PARTS else SAME)
            axes.set_title(f"{name}, {parts['biases']}", fontweight="normal", fontsize=11, loc="center")
        headline(figure, "From GPT-2 to Llama 3, the wiring stays; the orange parts change")
        return Picture(figure, alt)


def checkpoint() -> Picture:
    """The bundled Llama's tensors, by the names of its file, where they belong in the decoder."""
    alt = (
        "The decoder of Llama, read from the bottom, each part with its tensors' names in the file: "
        + "; ".join(text.replace("\n", " ") for text in FILE_NAMES.values() if text)
        + ". Embedding and last norm once, the rest in each of 4 layers."
    )
    with drawing():
        figure, (axes,) = panels(width=6.4, height=7.2)
        _decoder(axes, FILE_NAMES, CHANGED, size=(3.6, 0.9), fontsize=9, layers="4 layers")
        headline(figure, "A checkpoint: a name and a shape for each part")
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


def rotary_layouts() -> Picture:
    """Eight rows of a head's matrix in rotary's two layouts: where each pair of rows is (Su et al. 2021)."""
    alt = (
        "Two columns of eight rows. Left, neighbors: rows 0 and 1 have the first color, 2 and 3 the second, 4 and 5 "
        "the third, 6 and 7 the fourth. Right, halves: from above rows 0, 2, 4, 6, then 1, 3, 5, 7, so each color is "
        "four rows apart. Lines lead from each row to its new place."
    )
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    with drawing():
        figure, (axes,) = panels(width=6.4, height=3.6)
        axes.axis("off")
        axes.set(xlim=(-2.2, 7.2), ylim=(7.9, -1.6))
        for place, row in enumerate(order):
            color = PALETTE[row // 2]
            axes.plot([1.0, 4.0], [row, place], color=color, linewidth=1.6, zorder=1)
            for x, y in ((0, row), (5, place)):
                box(axes, x, y, 1.9, 0.62, f"row {row}", color, fontsize=9, color=words_on(color))
        names = {0: "neighbors turn together\nSu et al., Llama's code", 5: "halves turn together\nthe files"}
        for x, name in names.items():
            axes.text(x, -1.0, name, ha="center", va="center", fontsize=10)
        headline(figure, "The same pairs, in another order of rows")
        return Picture(figure, alt)


def latent_attention() -> Picture:
    """Scores from stored latent vectors, with keys written out and with the query moved (DeepSeek-AI 2024, §2.1)."""
    alt = (
        "Two rows. Above, the keys are written out: each stored vector c is multiplied by W_UK, which makes a key, and "
        "a line labeled score joins it to the query q. Below, the query is multiplied by the transposed W_UK once, and "
        "the lines join it to the stored vectors c themselves. The scores are the same."
    )
    stored, made, asks = PALETTE[0], PALE, PALETTE[1]
    rows = (
        ("written out: as many products\nwith $W_{UK}$ as stored tokens", ("c", "$W_{UK}\\,c$", "k", "q", "q"), 3),
        ("absorbed: one product\nwith $W_{UK}$", ("c", "", "c", "$W_{UK}^\\top q$", "q"), 3),
    )
    with drawing():
        figure, (axes,) = panels(width=8.4, height=3.8)
        axes.axis("off")
        axes.set(xlim=(-3.4, 9.7), ylim=(-0.9, 5.6))
        for bottom, (name, (first, key_step, key, query_step, query), tokens) in zip((3.3, 0.2), rows, strict=True):
            middle = bottom + 0.8
            axes.text(-3.3, middle, name, va="center", fontsize=10)
            for token in range(tokens):
                y = bottom + 0.8 * token
                box(axes, 1.6, y, 0.8, 0.5, first, stored, fontsize=10, color=words_on(stored))
                start = 2.1
                if key_step:
                    arrow(axes, (start, y), (4.0, y))
                    axes.text(2.95, y + 0.13, key_step, ha="center", fontsize=8)
                    box(axes, 4.5, y, 0.8, 0.5, key, made, fontsize=10)
                    start = 5.0
                axes.plot([start, 5.4, 6.9], [y, y, middle], color=GRAY, linewidth=1.5, zorder=0)
                axes.text(5.9, (2 * y + middle) / 3, "score", ha="center", va="center", fontsize=8, backgroundcolor="w")
            if key_step:
                box(axes, 7.3, middle, 0.8, 0.5, query, asks, fontsize=10, color=words_on(asks))
            else:
                box(axes, 7.5, middle, 1.2, 0.5, query_step, asks, fontsize=10, color=words_on(asks))
                box(axes, 9.3, middle, 0.6, 0.5, query, asks, fontsize=10, color=words_on(asks))
                arrow(axes, (8.95, middle), (8.15, middle))
        axes.text(1.6, -0.65, "the cache", ha="center", fontsize=10)
        headline(figure, "Only c is stored; the matrix can wait for the query")
        return Picture(figure, alt)


def _decoder(
    axes: Axes,
    parts: dict[str, str],
    changed: str,
    *,
    size: tuple[float, float] = SIZE,
    fontsize: int = 10,
    layers: str = "L ×",
) -> None:
    """One model from the token vector at the bottom to the output at the top."""
    width, height = size
    branch = BRANCH + (width - SIZE[0]) / 2 + (0.6 if width > SIZE[0] else 0)
    outside = 0 if width == SIZE[0] else -0.2
    axes.axis("off")
    axes.set(xlim=(-1.6 - (width - SIZE[0]) / 2, branch + width / 2 + 0.7), ylim=(-0.4, 12.9))
    axes.add_patch(
        FancyBboxPatch((-0.75, 2.3), branch + width / 2 + 1.1, 7.7, "round,pad=0.1", facecolor="none", edgecolor=GRAY)
    )
    axes.text(-0.95, 6.15, layers, ha="right", va="center", fontsize=12)
    axes.plot([0, 0], [0.6, 10.6], color=STREAM, linewidth=5, solid_capstyle="butt", zorder=1)
    box(axes, 0, 0.25, width, height, parts["token"], changed if outside else SAME, fontsize=fontsize)
    if parts["position"]:
        box(axes, 0, 1.45, width, height, parts["position"], SAME, fontsize=fontsize)
    for bottom, part in ((2.5, "attention"), (6.4, "feed-forward")):
        top = bottom + 3.15
        axes.plot([0, branch, branch], [bottom, bottom, top], color=GRAY, linewidth=1.5, zorder=1)
        arrow(axes, (branch, top), (0.2, top))
        box(axes, branch, bottom + 0.65, width, height, parts[f"{part} norm"], changed, fontsize=fontsize)
        box(axes, branch, bottom + 2.05, width, 1.6, parts[part], changed, fontsize=fontsize)
        axes.plot(0, top, "o", markersize=17, markerfacecolor="white", markeredgecolor=STREAM, zorder=4)
        axes.text(0, top - 0.02, "+", ha="center", va="center", fontsize=14, zorder=5)
    box(axes, 0, 10.75, width, height, parts["last norm"], changed, fontsize=fontsize)
    axes.plot([0, 0], [11.1, 11.7], color=GRAY, linewidth=1.5, zorder=1)
    box(axes, 0, 12.0, width, height, parts["output"], changed if outside else SAME, fontsize=fontsize)


def _square(axes: Axes, x: int | float, y: int | float, color: str, text: str) -> None:
    axes.plot(x, y, "s", markersize=15, markerfacecolor=color, markeredgecolor="none", zorder=3)
    axes.text(x, y, text, ha="center", va="center", color=words_on(color), fontsize=8, zorder=4)
