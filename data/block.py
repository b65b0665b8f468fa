"""Write block.json: how lesson 06's blocks learn with parts left out, at two rates, three seeds each.

    python data/block.py 0 1 2

It takes about three CPU-minutes per seed. `recorded.py` does the work.
"""

from functools import partial

from recorded import Runs, record_seeds

RUNS = Runs(__file__, "06_block")
RATES = 1e-3, 3e-3
WINDOW = 50  # steps


def settings(names: dict) -> dict:
    """Question → setting → the options of `train`."""
    residual, without, out = names["pre_norm"], names["no_residual"], names["left_out"]

    def two(of_attention, of_network, **options) -> dict:
        return {"wiring": (of_attention, of_network), "block": names["TwoWirings"]} | options

    return {
        "parts": {
            "whole block": {"wiring": residual},
            "no residual": {"wiring": without},
            "no norm": {"wiring": names["no_norm"]},
            "no norm, not even the last": {"wiring": names["no_norm_at_all"]},
            "no feed-forward": two(residual, out),
            "no feed-forward, 18 blocks": two(residual, out, blocks=18),
        },
        "residual": {
            "around attention only": two(residual, without),
            "around feed-forward only": two(without, residual),
            "none, and no attention": two(out, without),
        },
    }


def record(seed: int) -> None:
    """Train every setting with this seed; record means of 50 losses, and the fraction apart after each block."""
    names = RUNS.lesson()

    def trained(lr: float, options: dict) -> dict[str, list[float]]:
        model, losses = names["train"](lr=lr, seed=seed, **options)
        starts = range(0, len(losses), WINDOW)
        loss = [sum(losses[start : start + WINDOW]) / WINDOW for start in starts]
        return {"loss": loss, "apart": names["apart_by_block"](model)}

    for question, blocks in settings(names).items():
        for setting, options in blocks.items():
            for lr in RATES:
                RUNS.record(partial(trained, lr, options), question, setting, lr, seed)


if __name__ == "__main__":
    record_seeds(record)
