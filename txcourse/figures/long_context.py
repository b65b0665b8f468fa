"""Texts longer than a model was trained on: how fast positions turn, what the loss does, which needles are found."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from txlib.plots.charts import lines
from txlib.plots.matrices import heads
from txlib.plots.picture import Picture


def slower_pairs(slower: Mapping[str, Sequence[float]], *, title: str) -> Picture:
    """How many times slower each pair of dimensions turns than in training, a line per method.

    Args:
        slower: method → a number for each pair, the fastest first.
        title: what to see.
    """
    return lines(
        {name: (range(len(times)), times) for name, times in slower.items()},
        marker="o",
        title=title,
        xlabel="pair, from the fastest to the slowest",
        ylabel="times slower than trained",
        alt="How many times slower each pair turns, from the fastest to the slowest. "
        + "; ".join(
            f"{name}: {times[0]:.1f}, {times[len(times) // 4]:.1f}, {times[len(times) // 2]:.1f} and {times[-1]:.1f}"
            for name, times in slower.items()
        )
        + " at the first pair, after a quarter, in the middle and at the last.",
    )


def loss_along(
    losses: Mapping[str, Float[Tensor, "position"]], trained: int, *, title: str, window: int = 64
) -> Picture:
    """The loss along a long text, a line per method, smoothed over the positions before each point.

    Args:
        losses: method → the loss at each position.
        trained: the length that the model was trained on, where a dotted line is drawn.
        title: what to see.
        window: over how many positions each point is a mean.
    """
    length, step = len(next(iter(losses.values()))), window // 2
    return lines(
        {
            name: (range(window, length + 1, step), loss.unfold(0, window, step).mean(dim=-1).tolist())
            for name, loss in losses.items()
        },
        title=title,
        xlabel="position in the text",
        ylabel="loss (nats per token)",
        mark=(f"{trained} tokens", trained),
        alt=f"Loss against position, with a dotted line at {trained}. "
        + "; ".join(
            f"{name}: {loss[:trained].mean():.1f} up to the line, {loss[-window:].mean():.1f} at the end"
            for name, loss in losses.items()
        ),
    )


def needles(
    hits: Mapping[str, Float[Tensor, "seed depth length"]], depths: Sequence[str], lengths: Sequence[int], *, title: str
) -> Picture:
    """The fraction of needles found, a table per method: where the needle lay, and how long the text was.

    Args:
        hits: method → the fraction for each model, depth and length.
        depths: names of the rows. lengths: tokens, names of the columns.
        title: what to see.
    """
    return heads(
        torch.stack([scores.mean(dim=0) for scores in hits.values()]),
        names=list(hits),
        rows=depths,
        columns=[str(length) for length in lengths],
        numbers=True,
        size=0.45,
        title=title,
        xlabel="tokens",
        ylabel="needle",
        alt="Fraction of needles found, for each method: "
        + "; ".join(
            f"{name}: {scores[..., 0].mean():.0%} at {lengths[0]} tokens, {scores[..., -1].mean():.0%} at {lengths[-1]}"
            for name, scores in hits.items()
        ),
    )
