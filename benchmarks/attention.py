"""Compare our attention with others', in turns: time forward and with backward, and memory. On a CPU, one thread.

    python benchmarks/attention.py [layers] [window] … [--lengths 1024 16384] [--memory 16384] [--rounds 15]
                                   [--device cuda] [--save]

A case is a function of the length, decorated with `@case`. It makes the inputs, our version, and the peers' versions,
which have the same signature. The last line of each says how long our matrix products alone would take at the speed of
one large product: the ratio is the fraction of the machine's speed that we reach. To add a mechanism or a peer:

    @case(lengths=(1024, 4096))
    def mine(length):
        \"\"\"What is compared.\"\"\"
        yield Case("mine", qkv(length), ours=MyAttention(), peers={"theirs": Peer(their_function, {FORWARD: 2})})
"""

import argparse
import ctypes
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded

import torch
import torch.nn.functional as F
from compare import RESULTS, Row, in_turns, median, save, table
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from txlib.attention import (
    BlockSparseAttention,
    GatedLinearAttention,
    LinearAttention,
    Linformer,
    LongformerAttention,
    Mask,
    MemoryCompressedAttention,
    MultiHeadAttention,
    Nystrom,
    Performer,
    bigbird,
    causal,
    padding,
    sliding_window,
)
from txlib.attention.masks.shared import sharing
from txlib.plots import Picture, lines

HEADS, WIDTH = 8, 512
TOKENS = 4096  # of a batch of layers, or one sequence where that is longer
FORWARD, BOTH = "forward", "with backward"
PATIENCE = 60  # seconds for one comparison: fewer rounds where one takes long
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PRODUCTS = "our products at full speed"  # the time of our own matrix products, did they run like one large one
SQUARE = 1024  # rows and columns of that one
Call = Callable[..., Tensor]


@dataclass(frozen=True)
class Peer:
    """Another way.

    Args:
        call: takes a case's inputs.
        least: how many times faster than it ours should be, in each pass in which it is measured; None: no limit.
        memory: which part of its memory ours may take; None: not measured.
        same: whether it gives the same numbers as ours.
    """

    call: Call
    least: dict[str, float | None]
    memory: float | None = None
    same: bool = True


@dataclass(frozen=True)
class Case:
    """What is compared: one way of ours and its peers, called with the same inputs."""

    name: str
    inputs: tuple[Tensor, ...]
    ours: Call
    peers: dict[str, Peer]
    types: tuple[str, ...] = ("fp32",)


@dataclass(frozen=True)
class Cases:
    """A function that makes the cases of a length, and the lengths that it is called with."""

    make: Callable[[int], Iterator[Case]]
    lengths: tuple[int, ...]
    memory: tuple[int, ...]


CASES: dict[str, Cases] = {}


def case(lengths: tuple[int, ...], memory: tuple[int, ...] = ()) -> Callable:
    """Register the function below. lengths, memory: where time and where memory are measured unless one says more."""

    def register(make: Callable[[int], Iterator[Case]]) -> Callable[[int], Iterator[Case]]:
        CASES[make.__name__] = Cases(make, lengths, memory)
        return make

    return register


def qkv(length: int, *, heads: int = HEADS, head_dim: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one sequence: (1, heads, length, head_dim) each."""
    q, k, v = (torch.randn(1, heads, length, head_dim, requires_grad=True) for _ in range(3))
    return q, k, v


# The cases ------------------------------------------------------------------------------------------------------------


class ByHand(nn.Module):
    """What one writes without a library, for one kind of mask."""

    def __init__(self, ours: MultiHeadAttention, **options: object):
        super().__init__()
        self.query, self.key, self.value, self.output = ours.query, ours.key, ours.value, ours.output
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, 64)).transpose(1, 2) for part in (self.query, self.key, self.value))
        return self.output(F.scaled_dot_product_attention(q, k, v, **self.options).transpose(1, 2).flatten(2))


@case(lengths=(64, 256, 1024, 4096), memory=(16_384,))
def layers(length: int) -> Iterator[Case]:
    """A layer around torch's kernel: the same projections and weights, and the kernel told by hand, the shortest way,
    what it needs: `is_causal`, a mask (batch, 1, 1, key), `enable_gqa`. Ours gets a mask and finds out by itself."""
    batch = max(1, TOKENS // length)
    lengths = [length - number % 4 * length // 5 for number in range(batch)]
    lengths[0] -= length // 8  # also where the batch is one sentence
    masks: dict[str, tuple[Mask, dict, dict]] = {
        "causal": (causal(), {"is_causal": True}, {}),
        "padding": (padding(lengths), {"attn_mask": padding(lengths).dense(1, length)}, {}),
        "causal, 2 key heads": (causal(), {"is_causal": True, "enable_gqa": True}, {"kv_heads": 2}),
    }
    x = torch.randn(batch, length, WIDTH, requires_grad=True)
    for name, (mask, by_hand, options) in masks.items():
        ours = MultiHeadAttention(WIDTH, HEADS, **options)
        peer = Peer(ByHand(ours, **by_hand), {FORWARD: 0.95, BOTH: 0.95}, memory=1.1)
        yield Case(
            name, (x,), lambda x, ours=ours, mask=mask: ours(x, mask=mask), {"by hand": peer}, types=("fp32", "bf16")
        )


@case(lengths=(64, 256, 1024))
def stack(length: int) -> Iterator[Case]:
    """Six layers over one text, which share what they make of the mask, as in a `Stack`; by hand, the window's mask is
    written out beforehand."""
    x, ours = torch.randn(1, length, WIDTH, requires_grad=True), [MultiHeadAttention(WIDTH, HEADS) for _ in range(6)]
    local = causal() & sliding_window(32)
    masks: dict[str, tuple[Mask, dict]] = {
        "causal": (causal(), {"is_causal": True}),
        "window": (local, {"attn_mask": local.dense(length)}),
    }
    for name, (mask, options) in masks.items():
        by_hand = nn.Sequential(*(ByHand(layer, **options) for layer in ours))

        def shared(x: Tensor, mask: Mask = mask) -> Tensor:
            with sharing(mask):
                for layer in ours:
                    x = layer(x, mask=mask)
            return x

        yield Case(f"stack, {name}", (x,), shared, {"by hand": Peer(by_hand, {FORWARD: 0.97, BOTH: 0.97})})


@case(lengths=(256, 512, 1024, 4096, 16_384, 65_536), memory=(16_384,))
def window(length: int) -> Iterator[Case]:
    """Each query sees itself and the 256 keys before it. Dense attention computes the whole triangle instead."""
    from local_attention import LocalAttention
    from torch.nn.attention.flex_attention import flex_attention

    mask, long = causal() & sliding_window(256), length >= 16_384
    mechanism = BlockSparseAttention()
    local = LocalAttention(256, causal=True, look_backward=1, exact_windowsize=True, autopad=True)
    blocks, flex = mask.block_mask(length), torch.compile(flex_attention, dynamic=False)
    peers = {
        "dense": Peer(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            {FORWARD: 20, BOTH: 18}
            if long
            else {FORWARD: 1, BOTH: 1}
            if length >= 1024
            else {FORWARD: None, BOTH: None},
            memory=1.25,
            same=False,
        ),
        "local-attention": Peer(local, {FORWARD: 5, BOTH: 3.5} if long else {FORWARD: None, BOTH: None}, memory=0.25),
        "flex": Peer(  # which refuses what has gradients
            lambda q, k, v: flex(q.detach(), k.detach(), v.detach(), block_mask=blocks),
            {FORWARD: 1.5 if long else None},
        ),
    }
    yield Case("window 256", qkv(length), lambda q, k, v: mechanism(q, k, v, mask), peers)


@case(lengths=(1024, 4096), memory=(4096,))
def fewer_keys(length: int) -> Iterator[Case]:
    """Layers that make fewer keys first: Linformer 256, Nyström 64, memory compression 1 of 3 (causal)."""
    from linformer import LinformerSelfAttention
    from memory_compressed_attention import MemoryCompressedAttention as TheirCompression
    from nystrom_attention import NystromAttention

    x, as_fast = torch.randn(1, length, WIDTH, requires_grad=True), {FORWARD: 0.9, BOTH: 0.9}
    compressed = MemoryCompressedAttention(WIDTH // HEADS, HEADS)
    ways: dict[str, tuple[nn.Module, nn.Module, Mask | None]] = {
        "Linformer": (Linformer(length, 256), LinformerSelfAttention(WIDTH, length, k=256, heads=HEADS), None),
        "Nyström": (
            Nystrom(64, residual=33, heads=HEADS),
            NystromAttention(WIDTH, heads=HEADS, num_landmarks=64),
            None,
        ),
        "memory-compressed": (compressed, TheirCompression(WIDTH, HEADS, causal=True), causal()),
    }
    for name, (mechanism, theirs, mask) in ways.items():
        layer, dense = MultiHeadAttention(WIDTH, HEADS, mechanism=mechanism), MultiHeadAttention(WIDTH, HEADS)
        if name == "Linformer":
            take_weights(layer, theirs)
        peers = {
            "lucidrains": Peer(theirs, as_fast, memory=1.1, same=name == "Linformer"),
            "dense": Peer(partial(dense, mask=mask), {FORWARD: None, BOTH: None}, same=False),
        }
        yield Case(name, (x,), partial(layer, mask=mask), peers)


def take_weights(layer: MultiHeadAttention, theirs: nn.Module) -> None:
    """Give a Linformer layer the weights of the package `linformer`."""
    e = layer.mechanism.projection
    pairs = [
        (layer.query, theirs.to_q),
        (layer.key, theirs.to_k),
        (layer.value, theirs.to_v),
        (layer.output, theirs.to_out),
    ]
    with torch.no_grad():
        for ours, other in pairs:
            ours.weight.copy_(other.weight)
            ours.bias.copy_(0.0 if other.bias is None else other.bias)
        for ours, other in ((e.key, theirs.proj_k), (e.value, theirs.proj_v)):
            ours.copy_(other.T)


@case(lengths=(1024, 4096), memory=(4096,))
def longformer(length: int) -> Iterator[Case]:
    """Longformer's layer: windows of 512, and the first token global, with projections of its own."""
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(hidden_size=WIDTH, num_attention_heads=HEADS, attention_window=[512])
    theirs = LongformerSelfAttention(config, 0).eval()
    ours = LongformerAttention(WIDTH, HEADS, mechanism=BlockSparseAttention(), mask=sliding_window(256))
    ours.load_state_dict(theirs.state_dict() | {"output.weight": torch.eye(WIDTH), "output.bias": torch.zeros(WIDTH)})
    ours.output = nn.Identity()  # theirs has it elsewhere
    marked = torch.zeros(1, length, dtype=torch.long)
    marked[:, 0] = 1
    options = {
        "attention_mask": 10_000.0 * marked,
        "is_index_masked": marked < 0,
        "is_index_global_attn": marked > 0,
        "is_global_attn": True,
    }
    x = torch.randn(1, length, WIDTH, requires_grad=True)
    peer = Peer(lambda x: theirs(x, **options)[0], {FORWARD: 4, BOTH: 4}, memory=0.25)
    yield Case("Longformer", (x,), lambda x: ours(x, global_attention_mask=marked), {"transformers": peer})


@case(lengths=(1024, 4096), memory=(4096,))
def big_bird(length: int) -> Iterator[Case]:
    """Big Bird's attention: blocks of 64, of which each sees 3 random ones, others in each head, 3 in a window and 2
    global ones. Theirs draws other blocks. At 16,384 positions it takes 10 GB: ask for it with `--lengths`."""
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

    config = BigBirdConfig(hidden_size=WIDTH, num_attention_heads=HEADS, max_position_embeddings=length)
    layer, size = BigBirdBlockSparseAttention(config, seed=0).eval(), config.block_size
    blocked, band, of_queries, of_keys = BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(1, length), size)
    masks = (band, of_queries, of_keys, blocked, blocked)
    sizes = (HEADS, config.num_random_blocks, WIDTH // HEADS, size, size, 1, length, length)
    mask, ours = bigbird(64, 3, 3, 2, heads=HEADS), BlockSparseAttention()
    long = length >= 16_384
    peers = {
        "transformers": Peer(
            lambda q, k, v: layer.bigbird_block_sparse_attention(
                q,
                k,
                v,
                *masks,
                *sizes,
                seed=0,
                plan_from_length=None,
                plan_num_rand_blocks=None,
            )[0],
            {FORWARD: 15.0 if long else None, BOTH: None},
            memory=0.25,
            same=False,
        ),
        "dense": Peer(F.scaled_dot_product_attention, {FORWARD: 5.0 if long else None, BOTH: None}, same=False),
    }
    yield Case("Big Bird", qkv(length), partial(ours, mask=mask), peers)


@case(lengths=(1024, 4096))
def linear(length: int) -> Iterator[Case]:
    """Causal attention as a running sum: with 64 features (elu + 1), with a gate for each token, and with as many
    random features as the peer draws, 266. Without a projection the peer has 64, too. What it holds for a backward
    pass, a state for each position, is 2 GiB and more from n = 4096 on."""
    from performer_pytorch import FastAttention

    random, own = FastAttention(64, causal=True), FastAttention(64, causal=True, no_projection=True)
    ours = {
        "linear": (LinearAttention(), {"266 features": (random, 40), "64 features": (own, None)}),
        "gated linear": (GatedLinearAttention(HEADS, 64), {"64 features": (own, None)}),
        "random features": (Performer(64), {"266 features": (random, 10)}),
    }
    long = length >= 4096
    for name, (mechanism, theirs) in ours.items():
        peers = {
            f"performer-pytorch, {what}": Peer(
                peer, {FORWARD: least} if long else {FORWARD: None, BOTH: None}, same=False
            )
            for what, (peer, least) in theirs.items()
        }
        peers["dense"] = Peer(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            {FORWARD: None, BOTH: None},
            same=False,
        )
        yield Case(name, qkv(length), partial(mechanism, mask=causal()), peers)


# How they are measured ------------------------------------------------------------------------------------------------


def seconds(call: Call, inputs: tuple[Tensor, ...], dtype: torch.dtype, *, backward: bool) -> float:
    """Time of one call: on a CPU this process's, on a GPU until it has finished."""
    for each in inputs:
        each.grad = None
    device = inputs[0].device.type
    clock = time.process_time if device == "cpu" else finished
    began = clock()
    with torch.autocast(device, dtype, enabled=dtype != torch.float32), torch.set_grad_enabled(backward):
        out = call(*inputs)
    if backward:
        out.backward(torch.ones_like(out))
    return clock() - began


def finished() -> float:
    """The time, once a GPU has done all it was given."""
    torch.accelerator.synchronize()
    return time.perf_counter()


def peak(call: Call, inputs: tuple[Tensor, ...]) -> float:
    """MiB by which one forward and backward pass raises the peak: a GPU's, or that of a process of its own."""
    for each in inputs:
        each.grad = None
    if inputs[0].device.type != "cpu":
        torch.accelerator.reset_peak_memory_stats()
        before = torch.accelerator.memory_allocated()
        seconds(call, inputs, torch.float32, backward=True)
        return (torch.accelerator.max_memory_allocated() - before) / 2**20
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # what was freed before would be taken again, unseen
    read, write = os.pipe()
    if os.fork() == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        out = call(*inputs)
        out.backward(torch.ones_like(out))
        os.write(write, str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before).encode())
        os._exit(0)
    os.wait()
    return int(os.read(read, 100)) / 1024


def check(compared: Case) -> None:
    """Peers that claim to must give our numbers."""
    with torch.no_grad():
        ours = compared.ours(*compared.inputs)
        for peer in compared.peers.values():
            if peer.same:
                torch.testing.assert_close(peer.call(*compared.inputs), ours, atol=1e-4, rtol=1e-4)


Curves = dict[str, dict[int, float]]  # milliseconds of each way at each length


def times(compared: Case, length: int, rounds: int, measured: dict[str, list[float]], curves: Curves) -> Iterator[Row]:
    """The rows of one case at one length; `curves` gets the forward pass of the first type."""
    for kind in compared.types:
        for passes in (FORWARD, BOTH):
            peers = {name: peer for name, peer in compared.peers.items() if passes in peer.least}
            ways = {
                name: partial(seconds, call, compared.inputs, TYPES[kind], backward=passes == BOTH)
                for name, call in [("ours", compared.ours), *((name, peer.call) for name, peer in peers.items())]
            }
            product = torch.randn(2, SQUARE, SQUARE, dtype=TYPES[kind])
            ways[PRODUCTS] = partial(seconds, torch.mm, tuple(product), TYPES[kind], backward=False)
            patience = PATIENCE / sum(way() for way in ways.values())  # the first call of each is not counted
            found = in_turns(ways, max(1, min(rounds, int(patience))), quiet=True)
            what = f"{compared.name}, n {length}, {kind}, {passes}"
            measured |= {f"{what}: {name}": values for name, values in found.items()}
            if passes == FORWARD and kind == compared.types[0]:
                for name in ("ours", *peers):
                    curve = f"{compared.name}, ours" if name == "ours" else name
                    curves.setdefault(curve, {})[length] = 1000 * median(found[name])
            ours = 1000 * median(found["ours"])
            for name, peer in peers.items():
                theirs, least = 1000 * median(found[name]), peer.least[passes]
                yield Row(f"{what}: {name}", "ms", theirs, ours, None if least is None else theirs / least)
            with FlopCounterMode(display=False) as counter:
                seconds(compared.ours, compared.inputs, TYPES[kind], backward=passes == BOTH)
            floor = 1000 * median(found[PRODUCTS]) * counter.get_total_flops() / (2 * SQUARE**3)
            yield Row(f"{what}: {PRODUCTS}", "ms", floor, ours)


def memory(compared: Case, length: int) -> Iterator[Row]:
    """What forward and backward take, beside each peer."""
    ours = peak(compared.ours, compared.inputs)
    for name, peer in compared.peers.items():
        if peer.memory is not None:
            theirs = peak(peer.call, compared.inputs)
            yield Row(f"{compared.name}, n {length}, memory: {name}", "MiB", theirs, ours, peer.memory * theirs)


def figure(curves: Curves, device: str) -> Picture:
    """Time against length."""
    series = {name: (list(curve), list(curve.values())) for name, curve in curves.items()}
    longest = max(max(curve) for curve in curves.values())
    at_longest = [f"{name} {curve[longest]:.3g}" for name, curve in curves.items() if longest in curve]
    alt = f"Milliseconds against length, both on logarithmic axes; at {longest:,} positions: {', '.join(at_longest)}."
    return lines(
        series,
        title="A quadratic pass climbs twice as steeply as a linear one",
        alt=alt,
        xlabel="positions",
        ylabel=f"milliseconds forward, {device}",
        xscale="log",
        yscale="log",
        marker="o",
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="case", help=f"of {', '.join(CASES)}; all unless named")
    parser.add_argument("--lengths", type=int, nargs="*", help="instead of each case's own")
    parser.add_argument("--memory", type=int, nargs="*", help="lengths at which memory is measured")
    parser.add_argument("--rounds", type=int, default=15, help="at most")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--save", action="store_true", help="write results/attention_CASE.json and .png")
    arguments = parser.parse_args()
    unknown = set(arguments.cases) - set(CASES)
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}; choose of {', '.join(CASES)}")
    torch.set_num_threads(1)
    torch.set_default_device(arguments.device)
    for name in arguments.cases or CASES:
        torch.manual_seed(0)
        rows, measured, curves, cases = [], {}, {}, CASES[name]
        for length in arguments.lengths or cases.lengths:
            for compared in cases.make(length):
                check(compared)
                for row in times(compared, length, arguments.rounds, measured, curves):
                    rows.append(row)
                    print(table([row]).splitlines()[1], flush=True)
        for length in cases.memory if arguments.memory is None else arguments.memory:
            for compared in cases.make(length):
                rows += memory(compared, length)
        print(f"\n{name}\n{table(rows)}\n", flush=True)
        if arguments.save:
            packages = ["torch", "txlib-course", "local-attention", "performer-pytorch"]
            file = f"attention_{name}" if arguments.device == "cpu" else f"attention_{name}_{arguments.device}"
            print(save(file, rows, measured, packages))
            figure(curves, arguments.device).save(str(RESULTS / f"{file}.png"))


if __name__ == "__main__":
    main()
