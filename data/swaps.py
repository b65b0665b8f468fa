"""Write swaps.json: what each swap of lesson 16 does to the loss, at the usual learning rate and at ten times that.

    python data/swaps.py 0 1 2

It takes about two CPU-minutes per seed. `recorded.py` does the work.
"""

import json
from types import SimpleNamespace

import torch
from recorded import Runs, record_seeds
from torch import Tensor, nn

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


def parts(lesson: SimpleNamespace) -> SimpleNamespace:
    """The parts that the lesson names without building them."""

    class CappedAttention(lesson.GroupedAttention):
        def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            score = 50 * torch.tanh(q @ k.mT / self.d_k**0.5 / 50)  # (batch, heads, query, key)
            future = torch.ones_like(score[0, 0]).triu(1).bool()  # (query, key)
            return score.masked_fill(future, -torch.inf).softmax(dim=-1) @ v

    class SinkAttention(lesson.GroupedAttention):
        def __init__(self, s: SimpleNamespace) -> None:
            super().__init__(s)
            self.sink = nn.Parameter(torch.zeros(s.heads))

        def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            score = q @ k.mT / self.d_k**0.5  # (batch, heads, query, key)
            future = torch.ones_like(score[0, 0]).triu(1).bool()  # (query, key)
            score = score.masked_fill(future, -torch.inf)
            sink = self.sink[:, None, None].expand(*score.shape[:3], 1)
            return torch.cat([score, sink], dim=-1).softmax(dim=-1)[..., :-1] @ v

    class GatedAttention(lesson.GroupedAttention):
        def __init__(self, s: SimpleNamespace) -> None:
            super().__init__(s)
            self.gate = nn.Linear(s.d_model, s.d_model, s.bias)

        def forward(self, x: Tensor) -> Tensor:
            mixed = self.mix(*self.make_heads(x)).transpose(1, 2).flatten(2)
            return self.output(mixed * self.gate(x).sigmoid())

    class OutNormedBlock(lesson.Block):
        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attention_norm(self.attention(x))
            return x + self.feed_forward_norm(self.feed_forward(x))

    class TwiceNormedBlock(lesson.Block):
        def __init__(self, s: SimpleNamespace) -> None:
            super().__init__(s)
            self.attention_out_norm = s.norm(s.d_model, s.eps)
            self.feed_forward_out_norm = s.norm(s.d_model, s.eps)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attention_out_norm(self.attention(self.attention_norm(x)))
            return x + self.feed_forward_out_norm(self.feed_forward(self.feed_forward_norm(x)))

    def rotate_quarter(x: Tensor) -> Tensor:
        turned, rest = x.tensor_split([x.shape[-1] // 4], dim=-1)
        return torch.cat([lesson.rotate_halves(turned), rest], dim=-1)

    return SimpleNamespace(
        CappedAttention=CappedAttention,
        SinkAttention=SinkAttention,
        GatedAttention=GatedAttention,
        OutNormedBlock=OutNormedBlock,
        TwiceNormedBlock=TwiceNormedBlock,
        rotate_quarter=rotate_quarter,
    )


def settings(names: dict) -> dict[str, SimpleNamespace]:
    """Name of a row → its settings."""
    swap, lesson = names["swap"], SimpleNamespace(**names)
    more = parts(lesson)
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
        "scores capped at 50": swap(grouped, attention=more.CappedAttention),
        "sink": swap(grouped, attention=more.SinkAttention),
        "output gate": swap(grouped, attention=more.GatedAttention, d_ff=171),  # the gate has 2 · 64 · 64 weights
        "norms before and after": swap(grouped, block=more.TwiceNormedBlock),
        "norms after only": swap(grouped, block=more.OutNormedBlock),
        "a quarter rotated": swap(grouped, rotate=more.rotate_quarter),
        "no positions": swap(grouped, rotate=lambda x: x),
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
