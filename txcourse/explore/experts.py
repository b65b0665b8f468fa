"""Views of a mixture of experts: who goes where, and who finds no room."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from txcourse.explore.view import View
from txlib.plots.matrices import heatmap

FACTORS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)  # what the capacity factor can be set to
DIGITS = 6  # of a probability, after the point


def routing(
    probabilities: Mapping[str, Float[Tensor, "tokens experts"]],
    tokens: Sequence[str],
    *,
    top_k: int = 1,
    capacity_factor: float | None = 1.25,
) -> View:
    """Tokens of a text, sent to their likeliest experts as `MixtureOfExperts` sends them; with a limited room, those
    who come late are dropped (Fedus et al. 2022, §2.2).

    Args:
        probabilities: the router's softmax for each token, by the name of the router, e.g. of its layer.
        tokens: what is written for each.
        top_k: experts per token at first. capacity_factor: at first, one of `FACTORS`; None: no limit.

    Raises:
        ValueError: for another number of tokens than the probabilities have, or another factor.
    """
    if capacity_factor is not None and capacity_factor not in FACTORS:
        raise ValueError(
            f"capacity_factor={capacity_factor} is not one of {', '.join(map(str, FACTORS))}, and not None"
        )
    for name, rows in probabilities.items():
        if len(rows) != len(tokens):
            raise ValueError(f"{name} has probabilities for {len(rows)} tokens, there are {len(tokens)}")
    name, first = next(iter(probabilities.items()))
    shares, chosen = first.topk(top_k)
    gates = shares / shares.sum(dim=-1, keepdim=True) if top_k > 1 else shares
    busy = chosen.flatten().bincount(minlength=first.shape[-1]).tolist()
    still = heatmap(
        torch.zeros_like(first).scatter(1, chosen, gates).T,
        rows=[str(expert) for expert in range(first.shape[-1])],
        columns=[token.replace(" ", "␣") for token in tokens],
        title=f"Which expert reads which token ({name})",
        xlabel="token",
        ylabel="expert",
        numbers=False,
        bar="gate",
        size=min(0.3, 8 / len(tokens)),
        alt=f"{len(tokens)} tokens sent to {len(busy)} experts by the router of {name}. Tokens per expert: "
        + ", ".join(map(str, busy)),
    )
    data = {
        "tokens": [token.replace(" ", "␣") for token in tokens],
        "routers": {
            name: [[round(share, DIGITS) for share in token] for token in rows.tolist()]
            for name, rows in probabilities.items()
        },
        "k": top_k,
        "factors": FACTORS,
        "factor": len(FACTORS) if capacity_factor is None else FACTORS.index(capacity_factor),
    }
    return View(still, "routing", data, title="Which expert reads which token, and who finds no room?")
