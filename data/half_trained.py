"""Write half_trained.json: what lesson 09's translator reads and writes while it learns.

    python data/half_trained.py 0

It takes about ten CPU-minutes. `recorded.py` does the work.
"""

from functools import partial
from typing import Any

import torch
from recorded import Runs, record_seeds
from sacrebleu import corpus_bleu

from txlib import training
from txlib.data import batches_by_length
from txlib.models import Transformer

RUNS = Runs(__file__, "09_translation")
STEPS = (40, 80, 160, 320, 640, 1280)  # where to look


def looked_at(lesson: dict[str, Any], model: Transformer) -> dict[str, Any]:
    """Return the model's losses with each sentence's own source and with another's, and what it writes."""
    german, english = lesson["german"], lesson["english"]
    written = lesson["translate"](model, german)
    return {
        "own": lesson["loss_given"](model, german, english),
        "another's": lesson["loss_given"](model, lesson["others"], english),
        "bleu": corpus_bleu(written, [english]).score,
        "written": [written[index] for index in lesson["shown"]],
    }


def learning(lesson: dict[str, Any], seed: int) -> dict[int, dict[str, Any]]:
    """Train one translator on the short sentences, and look at it at each of STEPS."""
    torch.manual_seed(seed)
    model = Transformer(lesson["sizes"]).to(lesson["device"])
    optimizer, groups, found = training.optimizers(model, lr=3e-3, muon_lr=0.02), [], {}
    for epoch in range(20):
        groups += batches_by_length(lesson["lengths"], 1000, seed=seed, epoch=epoch)
    for step, group in enumerate(groups[: STEPS[-1]], start=1):
        rate = lesson["up_and_down"](step, STEPS[-1], warmup=STEPS[-1] // 10)
        lesson["learn"](model.train(), optimizer, lesson["batch_of"](group).to(lesson["device"]), rate)
        if step in STEPS:
            found[step] = looked_at(lesson, model)
            print(step, found[step], flush=True)
    return found


def record(seed: int) -> None:
    """Record the translator with this seed."""
    torch.set_num_threads(1)
    lesson = RUNS.lesson()
    RUNS.record(partial(learning, lesson, seed), seed)


if __name__ == "__main__":
    record_seeds(record)
