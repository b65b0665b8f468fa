"""Mixture of experts: which token goes to which expert."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from torch import Tensor

from txlib.plots.charts import lines
from txlib.plots.matrices import heads
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
    names = names or [f"expert {index}" for index in range(number)]
    with drawing():
        figure, (axes,) = panels(width=7.0, height=1.2 + 0.36 * max(count, 1.3 * number))
        heights = [(index + 0.5) * count / number - 0.5 for index in range(number)]
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


def served(asked: Int[Tensor, "tokens"], room: Bool[Tensor, "tokens"], tokens: Sequence[str], *, title: str) -> Picture:
    """Each token with the one expert that it asks; where `room` is False, it is dropped.

    Args:
        asked: the number of each token's expert.
        title: what to see.
    """
    asks = F.one_hot(asked)
    lost = ", ".join(f"'{token}' (token {i})" for i, token in enumerate(tokens) if not room[i])
    return experts(
        0.8 * asks * room[:, None],
        tokens,
        dropped=(asks * ~room[:, None]).bool(),
        title=title,
        alt=f"{len(tokens)} words, {asks.shape[1]} experts, one choice each. Dashed lines from {lost} end in a cross "
        "before their expert, and these words have a dash on the right.",
    )


def two_of_four() -> Picture:
    """Six words and a random router with four experts: each word goes to its best two."""
    words = ["the", "orcs", "have", "attacked", "the", "humans"]
    rng = torch.Generator().manual_seed(3)
    table = {word: torch.randn(16, generator=rng) for word in words}  # a random vector per word
    scores = torch.stack([table[word] for word in words]) @ torch.randn(16, 4, generator=rng) / 2
    best, chosen = scores.topk(2)  # (tokens, 2)
    return experts(
        torch.zeros_like(scores).scatter(1, chosen, best.softmax(dim=-1)),
        words,
        title="Each token visits two of the four experts",
        alt="Six words on the left, four experts in the middle, the six words again on the right. From each word two "
        "lines lead to experts, and from there on to the right. Both times 'the' goes to the same experts.",
    )


def busiest_expert(
    series: Mapping[str, Sequence[Sequence[float]]], *, every: int = 5, experts: int = 8, title: str
) -> Picture:
    """The fraction of the tokens at the busiest expert during training, a line per seed, and the fair one.

    Args:
        series: name → for each seed, the mean fraction over every few steps.
        every: how many steps one number stands for.
        experts: how many share the work.
        title: what to see.
    """
    shown = {
        name: (
            range(every, every * len(seeds[0]) + 1, every),
            [[100 * fraction for fraction in seed] for seed in seeds],
        )
        for name, seeds in series.items()
    }
    last = max(steps[-1] for steps, _ in shown.values())
    return lines(
        {**shown, "fair": ([every, last], [100 / experts] * 2)},
        dashed=["fair"],
        colors={"fair": GRAY},
        xlabel="training step",
        ylabel="tokens at the busiest expert (%)",
        title=title,
        alt=f"Lines over {last} steps. "
        + "; ".join(
            f"{name}: at most {_range(list(map(max, seeds)))}, at the end {_range([seed[-1] for seed in seeds])}"
            for name, seeds in series.items()
        ),
    )


def loads(fractions: Float[Tensor, "steps experts"], *, title: str) -> Picture:
    """The fraction of the tokens at each expert, step by step, and the fair one.

    Args:
        title: what to see.
    """
    steps, experts = range(1, len(fractions) + 1), fractions.shape[1]
    return lines(
        {
            "each expert": (steps, (100 * fractions).T.tolist()),
            "fair": ([1, len(fractions)], [100 / experts] * 2),
        },
        dashed=["fair"],
        colors={"fair": GRAY},
        xlabel="step",
        ylabel="tokens at an expert (%)",
        title=title,
        alt=f"{experts} lines over {len(fractions)} steps: at first {_range(fractions[0].tolist())} of the tokens, "
        f"at the end {_range(fractions[-1].tolist())}.",
    )


def specialties(
    tables: Float[Tensor, "blocks labels experts"], groups: Sequence[Sequence[str]], *, title: str
) -> Picture:
    """How often each expert gets the tokens with a label, a table per block and a line between groups of labels.

    Args:
        tables: counts or fractions; each row is rescaled to sum to 1.
        groups: the labels of the rows, e.g. kinds of characters, then languages.
        title: what to see.
    """
    tables = tables / tables.sum(dim=-1, keepdim=True)
    labels = [label for group in groups for label in group]
    most = (
        f"block {block}: " + ", ".join(f"{label} {row.max():.2f}" for label, row in zip(labels, table, strict=True))
        for block, table in enumerate(tables, start=1)
    )
    picture = heads(
        tables,
        names=[f"block {block}" for block in range(1, len(tables) + 1)],
        rows=labels,
        columns=[str(expert) for expert in range(tables.shape[-1])],
        xlabel="expert",
        ylabel="characters",
        numbers=True,
        size=0.42,
        title=title,
        alt="A table per block: rows are kinds of tokens, columns are experts. The most that one expert gets of each: "
        + "; ".join(most),
    )
    for axes in picture.axes:
        axes.axhline(len(groups[0]) - 0.5, color="black", linewidth=1.5)
    return picture


def expert_layouts() -> Picture:
    """The same width of experts cut three ways, in color what one token uses: coarse, fine, fine with a shared one."""
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
        axes.set_title("The same work for a token, three ways to cut it")
        return Picture(
            figure,
            alt="Three rows of boxes, as wide in all as each other. Four experts, one of them colored. Sixteen finer "
            "experts, each a quarter as wide, four of them colored. Sixteen finer experts, the first always colored "
            "and marked shared, and three of the other fifteen colored.",
        )


def _range(fractions: Sequence[float]) -> str:
    return f"{min(fractions):.0%} to {max(fractions):.0%}"


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
