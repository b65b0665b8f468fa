"""Write swaps.json: what each swap of lesson 16 does to the loss, at the usual learning rate and at ten times that.

    python data/swaps.py 0 1 2

It takes about two CPU-minutes per seed. `recorded.py` does the work.
"""

import json
from types import SimpleNamespace

from recorded import Runs, record_seeds

from txlib.files import write_atomically

RUNS = Runs(__file__, "16_todays_decoder")
PARENTS = {  # which row a change is measured against
    "RMS norm": "GPT-2",
    "no biases": "RMS norm",
    "SwiGLU": "no biases",
    "rotary": "SwiGLU",
    "2 KV heads": "rotary",
    "1 KV head": "rotary",
    **dict.fromkeys(
        [
            "QK-norm",
            "scores capped at 50",
            "sink",
            "output gate",
            "norms before and after",
            "norms after only",
            "a quarter rotated",
            "no positions",
            "untied",
        ],
        "2 KV heads",
    ),
}


def settings(names: dict) -> dict[str, SimpleNamespace]:
    """Name of a row → its settings."""
    swap, lesson = names["swap"], SimpleNamespace(**names)
    rms = swap(lesson.gpt2, norm=lesson.RMSNorm, eps=1e-6)
    no_biases = swap(rms, bias=False)
    gated = swap(no_biases, feed_forward=lesson.SwiGLU, d_ff=171)
    rotary = swap(gated, length=None, attention=lesson.RotaryAttention, rotate=lesson.rotate_halves)
    grouped = swap(rotary, attention=lesson.GroupedAttention, kv_heads=2, d_ff=171 + 21)
    return {
        "GPT-2": lesson.gpt2,
        "RMS norm": rms,
        "no biases": no_biases,
        "SwiGLU": gated,
        "rotary": rotary,
        "2 KV heads": grouped,
        "1 KV head": swap(grouped, kv_heads=1, d_ff=171 + 32),
        "QK-norm": swap(grouped, attention=lesson.NormedAttention),
        "scores capped at 50": swap(grouped, attention=lesson.CappedAttention),
        "sink": swap(grouped, attention=lesson.SinkAttention),
        "output gate": swap(grouped, attention=lesson.GatedAttention, d_ff=171),  # the gate has 2 · 64 · 64 weights
        "norms before and after": swap(grouped, block=lesson.TwiceNormedBlock),
        "norms after only": swap(grouped, block=lesson.OutNormedBlock),
        "a quarter rotated": swap(grouped, rotate=lesson.rotate_quarter),
        "no positions": swap(grouped, rotate=lesson.rotate_nothing),
        "untied": swap(grouped, tied=False),
    }


def record(seed: int) -> None:
    """Train every row with this seed, and record its loss on the unseen play."""
    names = RUNS.lesson()

    def loss(row: SimpleNamespace, rate: float) -> float:
        return names["test_loss"](names["train"](row, seed=seed, rate=rate))

    for name, row in settings(names).items():
        RUNS.record(lambda row=row: loss(row, 6e-3), "usual", name, seed)
        RUNS.record(lambda row=row: loss(row, 6e-2), "ten times the rate", name, seed)
    write_atomically(RUNS.file, json.dumps(RUNS.kept() | {"parents": PARENTS}, indent=1) + "\n")


if __name__ == "__main__":
    record_seeds(record)
