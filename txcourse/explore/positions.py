"""Views of positions: rotary's arrows, turned by two positions."""

import torch
from jaxtyping import Float
from torch import Tensor

from txcourse.explore.view import View
from txlib.layers import Rotary
from txlib.plots.charts import lines


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
    places = sorted([start[0], (start[0] + length // 2) % length])
    distance = range(-places[0], length - places[1])  # those that both queries have
    scores = {f"query at {i}": (keys[[i + d for d in distance]] @ queries[i]).tolist() for i in places}
    score = scores[f"query at {start[0]}"]
    still = lines(
        {name: (distance, values) for name, values in scores.items()},
        dashed=[f"query at {places[1]}"],
        title="Wherever the query is, one distance has one score",
        xlabel="distance, key − query",
        ylabel="score",
        alt=f"The score of a query and a key over their distance, from {distance[0]} to {distance[-1]}, for a query at "
        f"{places[0]} and at {places[1]}: the two curves coincide. They go up and down, from {min(score):.1f} to "
        f"{max(score):.1f}.",
    )
    frequency = 10_000 ** (-torch.arange(0, len(query), 2, dtype=torch.float64) / len(query))
    data = {
        "query": query,
        "key": key,
        "frequency": frequency,
        "length": length,
        "shown": min(4, len(frequency)),
        "start": start,
    }
    return View(still, "rotary", data, title="Move both together: the score stays")
