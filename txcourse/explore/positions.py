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
    score = torch.cat([queries.flip(0) @ keys[0], (keys @ queries[0])[1:]])  # distances 1 - length to length - 1
    distance = range(1 - length, length)
    i, j = start
    still = lines(
        {"score": (list(distance), score.tolist())},
        title="One distance, one score, wherever both stand",
        xlabel="distance, key − query",
        ylabel="score",
        alt=f"The score of a query and a key over their distance, from {1 - length} to {length - 1}: it goes up and "
        f"down, from {score.min():.1f} to {score.max():.1f}, and is {score[j - i + length - 1]:.2f} at {j - i}.",
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
    return View(still, "rotary", data, title="Turn both: the score follows their distance only")
