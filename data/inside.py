"""Write inside.json: lesson 43's decoder from three starts: its loss and heads while it learns, without heads, patched.

    python data/inside.py 0 1 2

It takes about half a minute per start. `recorded.py` does the work.
"""

from functools import partial
from typing import Any

import torch
from recorded import Runs, record_seeds

from txlib.inspect import activations, patching, path_patching, replace

RUNS = Runs(__file__, "43_inside")


def put(source: torch.Tensor, position: int, x: torch.Tensor) -> torch.Tensor:
    """Return x with the source's vectors at one position."""
    x = x.clone()
    x[:, position] = source[:, position]
    return x


@torch.no_grad()
def patched(names: dict[str, Any], learner: Any) -> dict[str, dict[str, list[float]]]:
    """How much of the answer comes back, for both kinds of pairs.

    Patched are each head of layer 1, each position after layer 1, and each head's paths to layer 2's queries, keys and
    values.
    """
    clean, layer = names["clean"], "decoder.layers.0"
    heads = [f"{layer}.self_attention.heads.{head}" for head in range(4)]
    with activations(learner, layer) as seen:
        learner(clean)
    source, found = seen[layer], {}
    for what, dirty, measure in (
        ("answer", names["corrupted"], names["lead"]),
        ("symbol before", names["key_gone"], names["log_p_answer"]),
    ):
        low, high = measure(learner(dirty)), measure(learner(clean))
        rows = {"heads": [*patching(learner, clean, dirty, heads, measure).values()], "positions": []}
        for position in range(clean.shape[1]):
            with replace(learner, {layer: partial(put, source, position)}):
                rows["positions"].append(measure(learner(dirty)))
        for reader in ("query", "key", "value"):
            receivers = [f"decoder.layers.1.self_attention.{reader}"]
            rows[reader] = [*path_patching(learner, clean, dirty, heads, receivers, measure).values()]
        found[what] = {name: [(x - low) / (high - low) for x in row] for name, row in rows.items()}
    return found


def record(seed: int) -> None:
    """Train once; keep a row for every ten steps, right answers without some heads, and what patching brings back."""
    torch.set_num_threads(1)
    if str(seed) in RUNS.kept().get("patched", {}):
        return
    names = RUNS.lesson()
    learner, rows = names["train"](seed)
    RUNS.record(lambda: rows, "births", seed)
    for by, name in {"mean": "without", "resample": "resampled"}.items():
        RUNS.record(partial(names["without_heads"], learner, rows[-1]["before"], by), name, seed)
    RUNS.record(lambda: patched(names, learner), "patched", seed)


if __name__ == "__main__":
    record_seeds(record)
