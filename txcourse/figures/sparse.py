"""The figures of lesson 31: patterns as squares and as graphs, what a stack hears, and what readers answer."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from txcourse.figures.recurrent import Node, reach
from txlib.attention import Mask
from txlib.plots.charts import lines
from txlib.plots.matrices import mask
from txlib.plots.picture import GRAY, Picture, color_cycle, drawing, headline, panels

Rule = Callable[..., Mask]


def circle(graphs: Mapping[str, Mapping[str, Mask]], n: int, *, title: str, alt: str) -> Picture:
    """Patterns as graphs: n positions on a circle, and a chord between two of which one sees the other.

    Args:
        graphs: name → the parts of the pattern: "random", "window" or "global".
        n: how many positions. title: what to see. alt: the same for a reader who cannot see it.
    """
    angle = np.pi / 2 - 2 * np.pi * np.arange(n) / n
    x, y = np.cos(angle), np.sin(angle)
    colors = dict(zip(("random", "window", "global"), color_cycle(), strict=False))
    with drawing():
        figure, all_axes = panels(len(graphs), width=2.5 * len(graphs), height=3.0)
        for axes, (name, graph) in zip(all_axes, graphs.items(), strict=True):
            for part, rule in graph.items():
                for pair in rule.dense(n)[0, 0].nonzero().tolist():
                    axes.plot(x[pair], y[pair], color=colors[part], linewidth=1.1)
            axes.plot(x, y, "o", color=GRAY, markersize=4, zorder=3)
            axes.set(aspect="equal", xlim=(-1.15, 1.15), ylim=(-1.15, 1.15))
            axes.axis("off")
            axes.set_title(name, fontweight="normal", fontsize=11)
        headline(figure, title)
        return Picture(figure, alt)


def cone(stacks: Mapping[str, Sequence[Mask]], n: int, position: int, *, title: str, alt: str) -> Picture:
    """What one position of the last layer hears of, layer by layer.

    Args:
        stacks: name → the masks of its layers, the first layer first.
        n: how many positions. position: whose past is colored.
        title: what to see. alt: the same for a reader who cannot see it.
    """
    nets: dict[str, dict[Node, list[Node]]] = {}
    for name, masks in stacks.items():
        tables = [rule.dense(n)[0, 0] for rule in masks]  # (n, n) each
        nets[name] = {
            (layer, i): [(layer - 1, int(j)) for j in torch.nonzero(table[i])[:, 0]]
            for layer, table in enumerate(tables, start=1)
            for i in range(n)
        }
    words = ["" if i % 8 else str(i) for i in range(n)]
    return reach(nets, words, position=position, ylabel="layer", title=title, alt=alt)


def longformer(window: Rule, dilated: Rule, global_at: Rule) -> Picture:
    """Longformer's figure 2 (Beltagy et al. 2020), drawn with a lesson's own masks."""
    return mask(
        {
            "(a) all pairs": Mask(lambda query, key: query + key >= 0),
            "(b) sliding window": {"window": window(3)},
            "(c) dilated window": {"window": dilated(3, 2)},
            "(d) global + window": {"global": global_at(0, 1, 9, 17), "window": window(3)},
        },
        length=24,
        title="Four patterns of Longformer's figure 2",
        alt="Four squares of 24 queries by 24 keys. (a) all filled. (b) a band of seven cells along the diagonal. (c) "
        "a band twice as wide in which every second cell is filled. (d) the band of (b), and four full rows and the "
        "same four columns.",
    )


def big_bird(parts: Mapping[str, Mask]) -> Picture:
    """Big Bird's figure 1 (Zaheer et al. 2020) for 16 blocks, from its three parts."""
    return mask(
        {
            "(a) random, r = 2": {"random": parts["random"]},
            "(b) window, w = 3": {"window": parts["window"]},
            "(c) global, g = 2": {"global": parts["global"]},
            "(d) Big Bird": parts,
        },
        length=16,
        title="After Big Bird's figure 1: here each cell is a block",
        alt="Four squares of 16 by 16 blocks. (a) two scattered cells in each row but the first and last. (b) a band "
        "of three along the diagonal. (c) the first and last row, and the first and last column. (d) all three on top "
        "of each other, in three colors.",
    )


def causal_forms(causal: Mask, near: Mask, strided: Mapping[str, Mask], fixed: Mapping[str, Mask]) -> Picture:
    """The Sparse Transformer's two patterns (Child et al. 2019) next to all pairs and a window, all of them causal."""
    return mask(
        {"causal": causal, "causal window": {"near": near}, "strided, l = 6": strided, "fixed, l = 6, c = 1": fixed},
        length=24,
        title="Causal forms; right, the Sparse Transformer's two patterns",
        alt="Four lower triangles of 24 by 24. All filled; a band left of the diagonal; that band with every sixth "
        "diagonal; small triangles along the diagonal with every sixth column.",
    )


def by_distance(runs: Mapping[str, Sequence[Sequence[float]]], *, title: str) -> Picture:
    """Right answers in percent, in groups of four distances: for each pattern a line per seed in its color."""
    patterns = ("window", "window + 1 global", "Big Bird", "all pairs", "1 of 16, chosen", "1 of 16, dealt out")
    groups = len(next(iter(runs.values()))[0])
    middles = [4 * group + 1.5 for group in range(groups)]
    means = {name: np.mean(run, axis=0) for name, run in runs.items()}
    return lines(
        {name: (middles, run) for name, run in runs.items()},
        title=title,
        xlabel="distance of the fact",
        ylabel="right answers (%)",
        dashed=["all pairs"],
        colors=dict(zip(patterns, color_cycle(), strict=False)),
        width=7.2,
        alt="Right answers against distance, a line for each of three seeds. "
        + "; ".join(f"{name}: {mean[0]:.0f}% at 0–3, {mean[7]:.0f}% at 28–31" for name, mean in means.items())
        + ".",
    )
