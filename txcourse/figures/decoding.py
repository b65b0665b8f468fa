"""Decoding: which tokens are computed, kept, padded or refused, and where two distributions overlap."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.patches import Patch, Rectangle

from txlib.plots.charts import lines
from txlib.plots.picture import PALETTE, Picture, drawing, ink, panels, words_on

Cell = tuple[str, str] | None  # a token and its kind; None: nothing is there
LOOKS: dict[str, dict[str, Any]] = {
    "computed": {"facecolor": PALETTE[0], "edgecolor": "white"},
    "reused": {"facecolor": "#d4d4d4", "edgecolor": "white"},
    "kept": {"facecolor": PALETTE[2], "edgecolor": "white"},
    "refused": {"facecolor": PALETTE[1], "edgecolor": "white"},
    "dropped": {"facecolor": "white", "edgecolor": "#9a9a9a"},
    "padding": {"facecolor": "white", "edgecolor": "#9a9a9a", "hatch": "///"},
}
"""How each kind of cell is drawn, in all pictures of lesson 13."""


def token_grid(
    rows: Mapping[str, Sequence[Cell]], kinds: Mapping[str, str], *, title: str, alt: str, width: float = 0.8
) -> Picture:
    """Rows of tokens, each in a box whose color says its kind.

    Args:
        rows: name of a row → its cells, from left to right.
        kinds: kind, one of `LOOKS` → what it means, for the legend.
        title: what to see. alt: the same for a reader who cannot see it.
        width: of a box, in inches.

    Raises:
        ValueError: a cell of a kind that the legend does not explain.
    """
    used = {cell[1] for row in rows.values() for cell in row if cell}
    if unknown := used - kinds.keys() or kinds.keys() - LOOKS.keys():
        raise ValueError(
            f"cells of the kind {min(unknown)!r}: kinds explains {', '.join(kinds)}; known: {', '.join(LOOKS)}"
        )
    longest = max(map(len, rows.values()))
    with drawing():
        figure, (axes,) = panels(width=1.6 + width * longest, height=1.15 + 0.42 * len(rows))
        for y, row in enumerate(rows.values()):
            for x, cell in enumerate(row):
                if cell is None:
                    continue
                text, kind = cell
                axes.add_patch(Rectangle((x - 0.48, y - 0.42), 0.96, 0.84, **LOOKS[kind]))
                color = words_on(LOOKS[kind]["facecolor"])
                ground = {"facecolor": "white", "edgecolor": "none", "pad": 1} if kind == "padding" and text else None
                axes.text(x, y, text, ha="center", va="center", fontsize=9, color=color, bbox=ground)
        axes.set(xlim=(-0.55, longest - 0.45), ylim=(len(rows) - 0.5, -0.5), xticks=[])
        axes.set_yticks(range(len(rows)), list(rows))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(title)
        legend = [Patch(label=meaning, **LOOKS[kind]) for kind, meaning in kinds.items()]
        figure.legend(handles=legend, loc="outside lower left", ncols=len(legend), frameon=False, fontsize=9)
        return Picture(figure, alt)


def cached_steps(text: str, *, title: str) -> Picture:
    """A staircase of the text's words: in each step the last one is computed, and all before it are in the cache."""
    words = text.split()
    rows: dict[str, list[Cell]] = {
        f"step {i + 1}": [*((word, "reused") for word in words[:i]), (words[i], "computed")] for i in range(len(words))
    }
    alt = f"A staircase with the tokens {', '.join(words)}, a row for each step. In each row the last token is blue, "
    alt += "computed in this step, and all tokens before it are gray, read from the cache."
    kinds = {"computed": "computed in this step", "reused": "keys and values read from the cache"}
    return token_grid(rows, kinds, title=title, alt=alt)


def padding_sides(short: str, long: str, *, title: str, alt: str) -> Picture:
    """Two prompts as a batch, padded on the right and on the left, and where the next token of each lands."""
    rows: dict[str, list[Cell]] = {}
    words = short.split(), long.split()
    for side in ("right", "left"):
        if rows:
            rows["between"] = []
        for prompt in words:
            cells: list[Cell] = [(word, "reused") for word in prompt]
            padding: list[Cell] = [("", "padding")] * (len(words[1]) - len(prompt))
            cells = [*cells, *padding] if side == "right" else [*padding, *cells]
            rows[f"padded {side}, {len(prompt)}"] = [*cells, ("new", "kept")]
    kinds = {"reused": "prompt", "padding": "padding", "kept": "the next token"}
    picture = token_grid(rows, kinds, title=title, alt=alt, width=1.0)
    picture.axes[0].set_yticks([0.5, 3.5], ["padded right", "padded left"])
    return picture


def checked_guesses(guesses: Sequence[str], results: Sequence[Sequence[str]], *, title: str, alt: str) -> Picture:
    """What becomes of the same guesses in several calls of the model, a row for each.

    Args:
        guesses: the draft's tokens.
        results: the tokens that each call gives: the guesses that it keeps, then one of its own.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    rows: dict[str, list[Cell]] = {}
    for number, tokens in enumerate(results):
        kept = len(tokens) - 1
        rows[f"try {number}"] = [
            *[(guess, "kept") for guess in guesses[:kept]],
            *[(guess, "refused") for guess in guesses[kept : kept + 1]],
            (tokens[-1], "computed"),
            *[(guess, "dropped") for guess in guesses[kept + 1 :]],
        ]
    kinds = {"kept": "guess kept", "refused": "refused", "computed": "drawn by the model", "dropped": "thrown away"}
    return token_grid(rows, kinds, title=title, alt=alt, width=1.0)


def overlap(draft: Mapping[str, float], model: Mapping[str, float], *, title: str, alt: str) -> Picture:
    """Two distributions over the same tokens: what they share, what the draft has too much and what it lacks.

    Args:
        draft, model: token → its probability.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    with drawing():
        figure, (axes,) = panels(width=1.6 + 1.35 * len(draft), height=3.6)
        for x, token in enumerate(draft):
            q, p = draft[token], model[token]
            axes.bar(x, min(p, q), width=0.72, color=LOOKS["kept"]["facecolor"])
            white_or_black = words_on(LOOKS["kept"]["facecolor"])
            axes.text(x, min(p, q) / 2, f"{min(p, q):.2f}", ha="center", va="center", fontsize=9, color=white_or_black)
            if p == q:
                continue
            low, high = sorted((p, q))
            name = "refused" if q > p else "computed"
            color = LOOKS[name]["facecolor"]
            axes.bar(x, high - low, bottom=low, width=0.72, facecolor="none", edgecolor=color, linewidth=2, hatch="//")
            sign = "too much" if q > p else "missing"
            axes.text(x, high + 0.015, f"{high - low:.2f} {sign}", ha="center", fontsize=9, color=ink(color))
        names = [f"{token}\nq = {q:.2f}\np = {model[token]:.2f}" for token, q in draft.items()]
        axes.set_xticks(range(len(draft)), names)
        axes.set(ylabel="probability", ylim=(0, 1.2 * max(*draft.values(), *model.values())))
        axes.tick_params(axis="x", length=0)
        axes.set_title(title)
        return Picture(figure, alt)


def fewer_bits(bits: Sequence[int], losses: Mapping[str, Sequence[float]], exact: float, *, title: str) -> Picture:
    """The perplexity of a model whose weights are rounded, from many bits to few, next to that of the unrounded one.

    Args:
        bits: per weight, falling.
        losses: way of rounding → its perplexity with each number of bits.
        exact: the perplexity of the unrounded model.
        title: what to see.
    """
    unrounded = "32 bits"
    picture = lines(
        {name: (bits, values) for name, values in losses.items()} | {unrounded: ([bits[0], bits[-1]], [exact] * 2)},
        yscale="log",
        dashed=[unrounded],
        marker="o",
        title=title,
        xlabel="bits per weight",
        ylabel="perplexity",
        alt=f"Perplexity against the bits per weight. Unrounded: {exact:.0f}. "
        + "; ".join(
            f"{name}: " + ", ".join(f"{value:.0f} with {bit}" for bit, value in zip(bits, values, strict=True))
            for name, values in losses.items()
        )
        + ".",
    )
    picture.axes[0].invert_xaxis()
    return picture
