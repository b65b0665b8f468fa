"""Every model and mechanism on a second device; how work is handed to a GPU, where it can be seen without one."""

import os
import subprocess
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from txlib.devices import to_device
from txlib.training.blocks import compiled

PLANS = "block_schedule: "  # what a mask lets be seen is worked out on the CPU
PLANNED = "block_sparse", "bigbird", "longformer"
MAY_WAIT = {
    "dense global": "primitives: ",
    "dense prefix": "primitives: ",
    "longformer": "longformer: ",  # which tokens are global
    "experts": "moe: ",  # how many tokens an expert gets
    "bytenet": "bytenet: ends",  # how far each source is read
    "step": "decoding: ",  # the text that is being written
}


@pytest.mark.slow
def test_models_lie_on_one_device_and_wait_for_nothing():
    """Forward and backward, in a process of its own that has another device."""
    script = Path(__file__).with_name("second_device.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert len(lines) > 50
    for name, line in lines.items():
        places = [] if line == "waits for nothing" else line.split(" | ")
        plans = PLANS if name.startswith("blocks ") or name.endswith(PLANNED) else None
        allowed = tuple(filter(None, (plans, MAY_WAIT.get(name))))
        assert all(place.startswith(allowed) for place in places), f"{name} waits for the device in {line}"


class Scale(nn.Module):
    """A block of three numbers."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.weight * x


@pytest.mark.parametrize("how", [True, "reduce-overhead"])
def test_a_graph_that_is_played_back_keeps_no_gradient(how, monkeypatch):
    """Or the gradients of the next batch would be written over those that they are to be added to."""
    monkeypatch.setattr(nn.Module, "compile", lambda *_, **__: None)
    model, came = nn.Sequential(nn.ModuleList([Scale()])), []
    (block,) = model[0]
    block.weight.register_hook(lambda gradient: came.append(gradient.data_ptr()))
    with compiled(model, how):
        block(torch.randn(3)).sum().backward()
        assert (block.weight.grad.data_ptr() == came[0]) == (how is True)
        block(torch.ones(3)).sum().backward()
    block.zero_grad()
    block(torch.randn(3)).sum().backward()
    assert block.weight.grad.data_ptr() == came[-1]  # as before


Pair = namedtuple("Pair", ["x", "y"])


@dataclass
class Example:
    """A batch that has no method `to`."""

    ids: torch.Tensor
    name: str


def test_batches_are_moved_with_all_that_they_hold():
    """Onto the meta device, which stands in for any other."""
    ids = torch.ones(2, 3)
    batch = {"pair": Pair(ids, [ids, (ids, None)]), "example": Example(ids, "a"), "module": nn.Linear(1, 1), "n": 3}
    moved = to_device(batch, "meta")
    pair, example = moved["pair"], moved["example"]
    assert type(pair) is Pair and type(pair.y) is list and type(pair.y[1]) is tuple and type(example) is Example
    tensors = [pair.x, pair.y[0], pair.y[1][0], example.ids, moved["module"].weight]
    assert all(tensor.is_meta for tensor in tensors)
    assert (pair.y[1][1], example.name, moved["n"]) == (None, "a", 3)
    assert not batch["example"].ids.is_meta
    kept = object()
    assert to_device(kept, "meta") is kept
    ordered = to_device(OrderedDict(b=ids, a=ids), "meta")
    assert type(ordered) is OrderedDict and list(ordered) == ["b", "a"]
