"""The figures of lesson 32: products of matrices to scale, and what methods lose."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from matplotlib.patches import Rectangle
from torch import Tensor

from txlib import plots
from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, panels


def products(rows: Mapping[str, Sequence[tuple[str, int | float, int | float]]], *, title: str, alt: str) -> Picture:
    """Rows of matrices that are multiplied, each a rectangle to scale with its name inside or below.

    Args:
        rows: name → the factors from left to right, each a name, a height and a width, in any one unit.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    tallest = max(height for factors in rows.values() for _, height, _ in factors)
    gap, between = 0.16 * tallest, 0.45 * tallest
    widths = [sum(width + gap for *_, width in factors) - gap for factors in rows.values()]
    with drawing():
        total = sum(widths) + between * (len(rows) - 1)
        figure, (axes,) = panels(width=9.2, height=9.2 * 1.55 * tallest / total)
        axes.axis("off")
        left = 0.0
        for (name, factors), width in zip(rows.items(), widths, strict=True):
            axes.text(left + width / 2, 0.68 * tallest, name, ha="center", va="bottom", fontsize=11)
            for place, (label, high, wide) in enumerate(factors):
                color = PALETTE[place % len(PALETTE)]
                axes.add_patch(Rectangle((left, -high / 2), wide, high, facecolor=color, alpha=0.45, edgecolor=color))
                axes.text(left + wide / 2, -0.57 * tallest, label, ha="center", va="top", fontsize=10)
                if place:
                    axes.text(left - gap / 2, 0, "·", ha="center", va="center", color=GRAY, fontsize=13)
                left += wide + gap
            left += between - gap
        axes.set(xlim=(-0.1 * tallest, total + 0.1 * tallest), ylim=(-0.85 * tallest, 0.85 * tallest), aspect="equal")
        axes.set_title(title)
        return Picture(figure, alt)


def errors_of_heads(errors: Mapping[str, Float[Tensor, "layers heads"]], *, title: str) -> Picture:
    """The error of each head of a model for several methods: a square each, layers by heads; errors end at 1.5."""

    def text(error: Tensor) -> str:
        return f"{error:.2f}" if error < 1.5 else "> 1.5"  # larger ones hang on the processor's rounding

    picture = plots.heads(
        torch.stack(list(errors.values())).clamp(max=1.5),
        names=list(errors),
        rows=[f"layer {i + 1}" for i in range(len(next(iter(errors.values()))))],
        columns=[f"{i + 1}" for i in range(next(iter(errors.values())).shape[1])],
        xlabel="head",
        ylabel="",
        size=0.45,
        bar=False,
        title=title,
        alt="Errors of each head. "
        + "; ".join(
            f"{name}: "
            + ", ".join(f"layer {i} {text(row.min())} to {text(row.max())}" for i, row in enumerate(table, 1))
            for name, table in errors.items()
        )
        + ".",
    )
    for axes, table in zip(picture.axes, errors.values(), strict=True):
        for row, values in enumerate(table):
            for column, value in enumerate(values):
                color = "white" if value > 0.6 else "black"
                axes.text(column, row, text(value), ha="center", va="center", fontsize=8, color=color)
    return picture


def remembered(
    runs: Mapping[str, Mapping[str, Mapping[str, float]]], x: Sequence[int], *, xlabel: str, title: str
) -> Picture:
    """Right answers in percent: for each mechanism a line per seed.

    Args:
        runs: mechanism → setting → seed → fraction of right answers.
        x: a number for each setting.
    """
    percent = {  # mechanism → (setting, seed)
        name: 100 * torch.tensor([list(seeds.values()) for seeds in settings.values()])
        for name, settings in runs.items()
    }
    picture = plots.lines(
        {name: (x, right.T.tolist()) for name, right in percent.items()},
        title=title,
        xlabel=xlabel,
        ylabel="right answers (%)",
        xscale="log",
        width=7.6,
        alt=f"Right answers by {xlabel}, means of the seeds. "
        + "; ".join(
            f"{name}: " + ", ".join(f"{seeds.mean():.0f}% at {at:,}" for seeds, at in zip(right, x, strict=True))
            for name, right in percent.items()
        )
        + ".",
    )
    picture.axes[0].set_ylim(0, 105)
    return picture


def four_products() -> Picture:
    """Attention as a product of two matrices, and three ways to make it smaller."""
    return products(
        {
            "dense": [("P\nn × n", 6, 6), ("v\nn × d", 6, 1)],
            "low rank": [("P̄\nn × k", 6, 1.6), ("F v\nk × d", 1.6, 1)],
            "kernel": [("φ(q)\nn × m", 6, 1.3), ("φ(k)ᵀ v\nm × d", 1.3, 1)],
            "compressed": [("P\nn × n/3", 6, 2), ("v'\nn/3 × d", 2, 1)],
        },
        title="One product, four sizes",
        alt="Four products of matrices to scale. Dense: n × n times n × d. Low rank: n × k times k × d. Kernel: n × m "
        "times m × d, m features. Compressed: n × n/3 times n/3 × d.",
    )


def ranks_of_heads(rank: Float[Tensor, "layers heads"]) -> Picture:
    """How many directions each head needs, out of 256."""
    layers, heads = rank.shape
    return plots.heatmap(
        rank.round(),
        title="Few directions in the upper layers, many in the first",
        rows=[f"layer {i + 1}" for i in range(layers)],
        columns=[f"head {i + 1}" for i in range(heads)],
        xlabel="",
        ylabel="",
        bar=False,
        size=0.65,
        span=(0, 256),
        alt="Directions needed for 90% of the sum. "
        + "; ".join(f"layer {i}: " + ", ".join(f"{x:.0f}" for x in row) for i, row in enumerate(rank, 1))
        + ".",
    )


def neighbor_head(weights: Float[Tensor, "query key"], words: Sequence[str]) -> Picture:
    """The weights of a head that looks at the next token."""
    return plots.heatmap(
        weights,
        title="A head of nearly full rank: it looks at the next token",
        rows=words,
        columns=words,
        numbers=False,
        size=0.26,
        bar="weight",
        alt="The weights of head 1 in layer 1 for 16 tokens. Nearly every row has one dark cell, just right of the "
        "diagonal: the next token.",
    )


def ranks_by_length(lengths: Sequence[int], ranks: Float[Tensor, "lengths layers"]) -> Picture:
    """How many directions each layer needs, over the length of the text."""
    series = {f"layer {i}": row for i, row in enumerate(ranks.T.tolist(), 1)}
    return plots.lines(
        {name: (lengths, row) for name, row in series.items()},
        title="Every layer needs more directions as the text grows",
        xlabel="length of the text n",
        ylabel="directions for 90%",
        xscale="log",
        yscale="log",
        marker="o",
        alt="Directions needed over lengths 32 to 256, mean of the heads, both axes logarithmic. "
        + "; ".join(f"{name}: {row[0]:.0f} to {row[-1]:.0f}" for name, row in series.items())
        + ".",
    )


def random_feature_errors(sizes: Sequence[int], errors: Mapping[str, Sequence[Sequence[float]]]) -> Picture:
    """The error of Performer's output over the number of features, mean of the draws."""
    means = {name: [sum(column) / len(column) for column in zip(*runs, strict=True)] for name, runs in errors.items()}
    return plots.lines(
        {name: (sizes, mean) for name, mean in means.items()},
        title="Four times the features, half the error",
        xlabel="features m",
        ylabel="error of the output",
        xscale="log",
        yscale="log",
        marker="o",
        alt="Error over the number of features, mean of the draws, both axes logarithmic: two falling lines. "
        + "; ".join(f"{name} from {mean[0]:.2f} to {mean[-1]:.2f}" for name, mean in means.items())
        + ".",
    )
