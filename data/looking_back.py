"""Write looking_back.json: which nets of lesson 02 remember a first token or reverse letters, three seeds each.

    python data/looking_back.py 0 1 2

It takes about seven CPU-minutes per seed. `recorded.py` does the work.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from recorded import Runs, record_seeds
from torch import Tensor, nn
from torch.nn import functional

RUNS = Runs(__file__, "02_seq2seq")
READERS = "Plain", "Gated", "held", "shut", "identity", "damped", "boosted", "cut"
FACTORS = {"damped": ("identity", 0.5), "boosted": ("Plain", 2.0), "cut": ("Gated", 0.0)}  # of the gradient
LENGTHS = 4, 8, 12, 16, 24
LONG = 1_000  # steps, for a second look at the nets with one vector


class Scaled(nn.Module):
    """A cell that multiplies the gradient of the state, but not the state, before each step."""

    def __init__(self, cell: nn.Module, factor: float):
        super().__init__()
        self.cell, self.factor = cell, factor

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        return self.cell(self.factor * h + (1 - self.factor) * h.detach(), x)


def cell_maker(lesson: dict[str, Any], name: str) -> Callable[[int], nn.Module]:
    """Return the lesson's cell of this name, or one of its cells with a scaled gradient: width → cell."""
    if name not in FACTORS:
        return lesson[name]
    cell, factor = FACTORS[name]

    def scaled(width: int) -> nn.Module:
        return Scaled(lesson[cell](width), factor)

    return scaled


def gradient_by_distance(lesson: dict[str, Any], reader: Any) -> list[float]:
    """The gradient of each state, relative to that of the last; sentences of 24 tokens, their geometric mean."""
    ids = lesson["to_test"][24]
    states = reader.states(ids)
    for state in states:
        state.retain_grad()
    functional.cross_entropy(reader.output(states[-1]), lesson["beginnings"](ids)).backward()
    sizes = torch.stack([state.grad.norm(dim=-1) for state in reversed(states)])  # (distance, sentence)
    return (sizes / sizes[0]).clamp(min=1e-30).log().mean(dim=-1).exp().tolist()


def remember(lesson: dict[str, Any], name: str, seed: int) -> dict[str, list[float]]:
    """Train one reader; return what it knows after each span, and log10 of its gradients, new and trained."""
    cell = cell_maker(lesson, name)
    torch.manual_seed(seed)
    new = gradient_by_distance(lesson, lesson["Reader"](cell))
    reader = lesson["learn_beginnings"](cell, seed)
    return {
        "known": [lesson["fraction_known"](reader, *span) for span in lesson["SPANS"]],
        "new": list(map(math.log10, new)),
        "trained": list(map(math.log10, gradient_by_distance(lesson, reader))),
    }


def reverse(lesson: dict[str, Any], name: str, seed: int, **options: int) -> list[float]:
    """Train one translator; return the fraction of right letters at each length."""
    kind, width = lesson["RIVALS"][name]
    translator = lesson["learn_to_reverse"](kind, seed, width, **options)
    return [lesson["letters_right"](translator, length) for length in LENGTHS]


def record(seed: int) -> None:
    """Record all nets with this seed."""
    torch.set_num_threads(1)
    lesson = RUNS.lesson()
    for name in READERS:
        RUNS.record(lambda name=name: remember(lesson, name, seed), "first token", name, seed)
    for name in lesson["RIVALS"]:
        RUNS.record(partial(reverse, lesson, name, seed), "reversal", name, seed)
    for name in ("one vector", "widest"):
        RUNS.record(partial(reverse, lesson, name, seed, steps=LONG), "reversal, longer", name, seed)


if __name__ == "__main__":
    record_seeds(record)
