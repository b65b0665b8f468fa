"""Attention layers: torch's `scaled_dot_product_attention` called by hand, and ours, in turns, one thread.

    python benchmarks/attention.py [--lengths 64 256 1024 4096] [--rounds 15] [--save]

Both layers have the same four projections and weights, 8 heads of 64. By hand each is told the shortest way what it
needs: `is_causal`, a mask (batch, 1, 1, key) for padding, `enable_gqa` for shared heads. Ours gets `causal()` or
`padding(…)` and finds out by itself. A later mechanism is a case of its own: a function that makes both layers.
"""

import argparse
import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded

import torch
import torch.nn.functional as F
from compare import Row, in_turns, median, save, table
from torch import Tensor, nn

from txlib.attention import Mask, MultiHeadAttention, causal, padding

HEADS, WIDTH = 8, 512
TOKENS = 4096  # of a batch, or one sequence where that is longer
LIMIT = 0.95  # of the peer's speed
MEMORY_LENGTH, MEMORY_LIMIT = 16_384, 1.1
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class ByHand(nn.Module):
    """What one writes without a library, for one kind of mask."""

    def __init__(self, ours: MultiHeadAttention, **options: object):
        super().__init__()
        self.query, self.key, self.value, self.output = ours.query, ours.key, ours.value, ours.output
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, 64)).transpose(1, 2) for part in (self.query, self.key, self.value))
        return self.output(F.scaled_dot_product_attention(q, k, v, **self.options).transpose(1, 2).flatten(2))


@dataclass(frozen=True)
class Case:
    """Two layers that do the same: called with x, they give the same numbers."""

    name: str
    peer: Callable[[Tensor], Tensor]
    ours: Callable[[Tensor], Tensor]


def cases(length: int, batch: int) -> Iterator[Case]:
    """Everything that is compared at one length."""
    lengths = [length - number % 4 * length // 5 for number in range(batch)]
    lengths[0] -= length // 8  # also where the batch is one sentence
    masks: dict[str, tuple[Mask, dict, dict]] = {
        "causal": (causal(), {"is_causal": True}, {}),
        "padding": (padding(lengths), {"attn_mask": padding(lengths).dense(1, length)}, {}),
        "causal, 2 key heads": (causal(), {"is_causal": True, "enable_gqa": True}, {"kv_heads": 2}),
    }
    for name, (mask, by_hand, options) in masks.items():
        ours = MultiHeadAttention(WIDTH, HEADS, **options)
        yield Case(name, ByHand(ours, **by_hand), lambda x, ours=ours, mask=mask: ours(x, mask=mask))


def seconds(layer: Callable[[Tensor], Tensor], x: Tensor, dtype: torch.dtype, *, backward: bool) -> float:
    """CPU time of one call."""
    began = time.process_time()
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32), torch.set_grad_enabled(backward):
        out = layer(x)
    if backward:
        out.sum().backward()
    return time.process_time() - began


def peak(layer: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """KiB by which one forward and backward pass raises this process's peak; in a process of its own."""
    read, write = os.pipe()
    if os.fork() == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        layer(x).sum().backward()
        os.write(write, str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before).encode())
        os._exit(0)
    os.wait()
    return int(os.read(read, 100))


def compared(length: int, arguments: argparse.Namespace, measured: dict[str, list[float]]) -> Iterator[Row]:
    """The rows of one length."""
    batch = max(1, TOKENS // length)
    x = torch.randn(batch, length, WIDTH, requires_grad=True)
    for case in cases(length, batch):
        torch.testing.assert_close(case.ours(x), case.peer(x))
        for kind, dtype in TYPES.items():
            for backward in (False, True):
                what = f"{case.name}, n {length}, {kind}, {'with backward' if backward else 'forward'}"
                ways = {
                    who: lambda layer=layer, dtype=dtype, backward=backward: seconds(layer, x, dtype, backward=backward)
                    for who, layer in (("peer", case.peer), ("ours", case.ours))
                }
                for way in ways.values():
                    way()  # warm
                found = in_turns(ways, arguments.rounds, quiet=True)
                measured |= {f"{what}: {who}": values for who, values in found.items()}
                peer, ours = (1000 * median(found[who]) for who in ("peer", "ours"))
                row = Row(what, "ms", peer, ours, peer / LIMIT)
                print(table([row]).splitlines()[1], flush=True)
                yield row


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="*", default=[64, 256, 1024, 4096])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--save", action="store_true", help="write results/attention.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    measured: dict[str, list[float]] = {}
    rows = [row for length in arguments.lengths for row in compared(length, arguments, measured)]
    x = torch.randn(1, MEMORY_LENGTH, WIDTH, requires_grad=True)
    for case in cases(MEMORY_LENGTH, 1):
        peer, ours = (peak(layer, x) / 1024 for layer in (case.peer, case.ours))
        rows.append(Row(f"{case.name}, n {MEMORY_LENGTH}, memory", "MiB", peer, ours, MEMORY_LIMIT * peer))
    print(table(rows))
    if arguments.save:
        print(save("attention", rows, measured, ["torch", "txlib-course"]))


if __name__ == "__main__":
    main()
