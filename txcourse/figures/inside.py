"""Looking inside: what writes into the residual stream, induction heads being born, features that share a plane."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from txcourse.figures.shapes import arrow, box
from txlib.plots.picture import GRAY, PALETTE, Picture, drawing, headline, ink, panels

FIRST, SECOND, NETWORK, STREAM = PALETTE[1], PALETTE[0], PALETTE[2], PALETTE[5]  # layers 1 and 2, as in `induction`

Pair = tuple[int, int]


def one_stream(embedding: Pair, heads: Sequence[Pair], network: Pair, row: Pair, *, title: str) -> Picture:
    """A block on the stream of one token: heads read it together and add to it, then the feed-forward network does.

    Args:
        embedding: what the stream begins with. heads, network: what each adds. row: of the output matrix, which the
            end of the stream is multiplied by.
    """
    after_heads = _sum(embedding, *heads)
    end = _sum(after_heads, network)
    logit = row[0] * end[0] + row[1] * end[1]
    names = [f"head {number}" for number in range(len(heads))]
    alt = (
        f"A thick line, the stream of one token, begins with the embedding {embedding}. "
        + ", ".join(f"{name} adds {added}" for name, added in zip(names, heads, strict=True))
        + f": {after_heads}. The feed-forward network reads that and adds {network}: {end}. "
        f"The logit is {row} times that, {logit}."
    )
    with drawing():
        figure, (axes,) = panels(width=9.6, height=3.0)
        right = 2.3 + 1.5 * len(heads)  # where the network reads
        axes.set(xlim=(-1.5, right + 6.6), ylim=(-2.5, 1.1))
        axes.axis("off")
        axes.set_title(title)
        arrow(axes, (-0.2, 0), (right + 3.7, 0), STREAM, width=7, head=24)
        box(axes, -0.85, 0, 1.2, 0.6, "embedding", "white", fontsize=11)
        box(axes, right + 5.2, 0, 2.6, 0.6, f"logit\n{row} · {end} = {logit}", "white", fontsize=11)
        for x, value in ((0.4, embedding), (right - 0.4, after_heads), (right + 2.7, end)):
            axes.text(x, 0.35, str(value), ha="center", va="bottom", fontweight="bold")
        of_heads = [(name, added, FIRST, 1.4) for name, added in zip(names, heads, strict=True)]
        for start, parts in ((1.1, of_heads), (right, [("feed-forward", network, NETWORK, 2.0)])):
            ends = [
                start + 0.9 + 1.6 * number + (0.25 if width > 1.5 else 0) for number, (*_, width) in enumerate(parts)
            ]
            axes.plot([start, start, ends[-1]], [-0.1, -2.2, -2.2], color=GRAY, linewidth=1.5)
            axes.text(start - 0.1, -1.1, "reads", ha="right", va="center", color=GRAY, fontsize=10)
            for x, (name, added, color, width) in zip(ends, parts, strict=True):
                arrow(axes, (x, -2.2), (x, -1.75), GRAY)
                box(axes, x, -1.45, width - 0.2, 0.4, name, fontsize=10)
                arrow(axes, (x, -1.15), (x, -0.05), color, width=2.2)
                axes.text(x + 0.1, -0.65, f"+{added}", ha="left", va="center", color=ink(color), fontsize=10)
        return Picture(figure, alt)


def _sum(*pairs: Pair) -> Pair:
    return sum(x for x, _ in pairs), sum(y for _, y in pairs)


def births(runs: Mapping[str, Sequence[Mapping[str, Any]]], *, title: str) -> Picture:
    """The loss on repeated symbols, and the best head's score in each layer, over the same steps; a line per start.

    Args:
        runs: seed → rows with "step", "repeat" (the loss), "before" and "after" (each head's score).
    """
    ends = {
        seed: (rows[0]["repeat"], rows[-1]["repeat"], max(rows[-1]["before"]), max(rows[-1]["after"]))
        for seed, rows in runs.items()
    }
    alt = f"Two panels over steps 0 to {max(rows[-1]['step'] for rows in runs.values())}. " + "; ".join(
        f"start {seed}: loss on repeats from {first:.1f} to {last:.2f} nats, best head of layer 1 at {before:.2f}, of "
        f"layer 2 at {after:.2f}"
        for seed, (first, last, before, after) in ends.items()
    )
    with drawing():
        figure, (above, below) = panels(2, width=7.4, height=5.0, columns=1, sharex=True)
        for number, (seed, rows) in enumerate(runs.items()):
            steps = [row["step"] for row in rows]
            style = ("-", "--", ":")[number % 3]
            loss = [row["repeat"] for row in rows]
            above.plot(steps, loss, color="black", linestyle=style, label=f"start {seed}")
            for kind, color, name in (
                ("before", FIRST, "layer 1: at the symbol before"),
                ("after", SECOND, "layer 2: at what came after"),
            ):
                best = [max(row[kind]) for row in rows]
                label = "_" if number else name
                below.plot(steps, best, color=ink(color, 3), linestyle=style, label=label)
        above.set(ylabel="loss on repeats (nats)", ylim=(0, None))
        above.legend(frameon=False, loc="upper right", fontsize=10)
        below.set(ylabel="best head's weight", ylim=(0, 1), xlabel="step")
        below.legend(frameon=False, loc="upper left", fontsize=10)
        headline(figure, title)
        return Picture(figure, alt)


def planes(
    models: Mapping[str, Float[Tensor, "2 features"]],
    *,
    title: str,
    like: Float[Tensor, "2 named"] | None = None,
) -> Picture:
    """The directions of features in a plane, as arrows from the middle; one panel per model.

    Args:
        models: name → the direction of each feature.
        like: directions of one color each, which arrows near them (cosine at least 0.95) share; all others are gray.
            Unless given, features have a color by their number.
    """
    alt = "Arrows in a plane. " + "; ".join(
        f"{name}: lengths {', '.join(f'{length:.1f}' for length in directions.norm(dim=0).tolist())}"
        for name, directions in models.items()
    )
    with drawing():
        figure, all_axes = panels(len(models), width=min(9.6, 2.5 * len(models)), height=3.2)
        reach = 1.25 * max(float(directions.abs().max()) for directions in models.values())
        for axes, (name, directions) in zip(all_axes, models.items(), strict=True):
            around = np.linspace(0, 2 * np.pi, 100)
            axes.plot(np.cos(around), np.sin(around), color=GRAY, linewidth=0.6, linestyle=":")
            colors = list(range(directions.shape[1]))
            if like is not None:
                cosine, nearest = (normalize(directions, dim=0).T @ normalize(like, dim=0)).max(dim=1)
                colors = torch.where(cosine < 0.95, len(PALETTE), nearest).tolist()
            for index, (x, y) in zip(colors, directions.T.tolist(), strict=True):
                color = [*PALETTE, GRAY][index % 8]
                if x * x + y * y > 0.1:
                    arrow(axes, (0, 0), (x, y), color, width=2.4)
                else:
                    axes.plot(x, y, marker="o", color=color, markersize=4)
            axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
            axes.axis("off")
            axes.set_title(name, fontweight="normal", fontsize=11)
        headline(figure, title)
        return Picture(figure, alt)
