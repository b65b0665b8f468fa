"""Write block.json: how lesson 06's blocks learn with parts left out, at two rates, three seeds each.

    python data/block.py 0 1 2

It takes about three CPU-minutes per seed. `recorded.py` does the work.
"""

from functools import partial

import torch
from recorded import Runs, record_seeds

RUNS = Runs(__file__, "06_block")
RATES = 1e-3, 3e-3
WINDOW = 50  # steps


def left_out(x, sublayer, norm):
    """A wiring that leaves its sub-layer out."""
    return x


def settings(names: dict) -> dict:
    """Question → setting → the options of `CharacterModel`."""

    def both(attention, network):  # a wiring for each sub-layer
        def wiring(x, sublayer, norm):
            chosen = network if isinstance(sublayer, names["FeedForward"]) else attention
            return chosen(x, sublayer, norm)

        return wiring

    pre_norm, no_residual = names["pre_norm"], names["no_residual"]
    no_network = both(pre_norm, left_out)
    return {
        "parts": {
            "whole block": {},
            "no residual": {"wiring": no_residual},
            "no norm": {"wiring": names["no_norm"]},
            "no norm, not even the last": {"wiring": names["no_norm"], "last_norm": False},
            "no attention": {"wiring": both(left_out, pre_norm)},
            "no feed-forward": {"wiring": no_network},
            "no feed-forward, 18 blocks": {"wiring": no_network, "blocks": 18},
        },
        "residual": {
            "around attention only": {"wiring": names["around_attention"]},
            "around feed-forward only": {"wiring": both(no_residual, pre_norm)},
            "none, and no attention": {"wiring": both(left_out, no_residual)},
        },
    }


def record(seed: int) -> None:
    """Train every setting with this seed; record means of 50 losses, and the fraction apart after each block."""
    names = RUNS.lesson()

    def trained(lr: float, options: dict) -> dict[str, list[float]]:
        torch.manual_seed(seed)
        model = names["CharacterModel"](**options)
        losses = names["train"](model, lr)
        starts = range(0, len(losses), WINDOW)
        loss = [sum(losses[start : start + WINDOW]) / WINDOW for start in starts]
        return {"loss": loss, "apart": names["apart_by_block"](model)}

    for question, blocks in settings(names).items():
        for setting, options in blocks.items():
            for lr in RATES:
                RUNS.record(partial(trained, lr, options), question, setting, lr, seed)


if __name__ == "__main__":
    record_seeds(record)
