"""Views of positions: rotary's arrows, turned by two positions."""

import torch
from jaxtyping import Float
from torch import Tensor

from txcourse import figures
from txcourse.explore.view import View
from txlib.layers import Rotary


def rotary(
    query: Float[Tensor, "head_dim"],
    key: Float[Tensor, "head_dim"],
    *,
    length: int = 64,
    start: tuple[int, int] = (12, 9),
) -> View:
    """A query and a key, turned by their positions (Su et al. 2021, §3.2), pair by pair, and the score of both.

    Args:
        length: positions are 0 to length - 1.
        start: the query's and the key's position at first.
    """
    positions = torch.arange(length)
    rotation = Rotary(len(query))
    both = torch.stack([query, key]).double()[None, :, None].expand(1, 2, length, -1)
    queries, keys = rotation.turn(both, positions)[0]  # (length, head_dim) each
    frequency = 10_000 ** (-torch.arange(0, len(query), 2, dtype=torch.float64) / len(query))
    shown = min(4, len(frequency))
    pairs = torch.stack([queries, keys]).unflatten(-1, (-1, 2))[:, :, :shown]  # (query or key, position, pair, 2)
    i, j = start
    later = length - 1 - max(start)  # how far both can move
    turned = {
        f"query (blue) at {i + step}, key (orange) at {j + step}": (pairs[0, i + step], pairs[1, j + step])
        for step in (0, later)
    }
    distances = range(-i, length - i)
    score = (keys @ queries[i]).tolist()
    still = figures.dials(
        turned,
        (distances, score),
        distance=j - i,
        title="Both turn together: the angle between them stays, and so does the score",
        alt=f"{shown} circles, one for each pair, with the query's arrow at {i} and the key's at {j}, and again at "
        f"{i + later} and {j + later}: all arrows have turned, the angle between query and key is the same. Below, the "
        f"score over the distance from {distances[0]} to {distances[-1]} goes up and down, from {min(score):.1f} to "
        f"{max(score):.1f}; at {j - i} it is {score[j]:.1f}.",
    )
    data = {
        "query": query,
        "key": key,
        "frequency": frequency,
        "length": length,
        "shown": shown,
        "start": start,
    }
    return View(still, "rotary", data, title="Move both together: the score stays")
