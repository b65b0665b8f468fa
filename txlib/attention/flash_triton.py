"""FlashAttention-2 as Triton kernels (Dao 2023, §3): what `flash.py` does, with one program for each tile.

On a GPU the programs run side by side. No two of them write to the same address, so results repeat bit for bit: the
backward pass goes over the scores twice, once for the gradients of keys and values, once for those of queries.

Without a GPU the kernels run in Triton's interpreter, if TRITON_INTERPRET=1 is set before Triton is imported: slow, and
good for reading, printing and testing.
"""

import math
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from txlib.attention.band import MAX_HEAD_DIM, Band

INTERPRETED = triton.knobs.runtime.interpret
LOWEST = tl.constexpr(-1e38)  # not -∞: -∞ - (-∞) is NaN
LOG2_E = tl.constexpr(math.log2(math.e))  # e^x = 2^(x · log₂ e), and a GPU has an instruction for 2^x
TYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}

# Queries and keys of a tile, warps and stages to try; the fastest is kept for each width and class of distances. What
# does not fit into a GPU's shared memory, Triton leaves out. The interpreter's are small: short sequences have several.
TRIED = [
    *((128, 64, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3), (32, 64, 4, 3), (64, 32, 4, 2)),
    *((32, 32, 4, 1), (16, 16, 4, 1)),
]


def suitable(configs: list[Any], *_: Any, HEAD: int, VALUE: int, TYPE: Any, PRECISION: str, **__: Any) -> list[Any]:
    """The tiles to try for heads of such a width: the wider, the smaller, or no GPU would have room for one.

    Exact products in float32 run without tensor cores, one instruction each: large tiles would be compiled for minutes.
    """
    bits = TYPE.primitive_bitwidth
    row = max(HEAD, VALUE) * bits // 8  # bytes
    if bits == 32 and PRECISION == "ieee":
        return configs[4:] if row <= 128 else configs[5:]
    return configs[:4] if row <= 256 else configs[3:6] if row <= 512 else configs[5:]


tuned = triton.autotune(
    [
        triton.Config({"ROWS": rows, "COLUMNS": columns}, num_warps=warps, num_stages=stages)
        for rows, columns, warps, stages in (TRIED[-1:] if INTERPRETED else TRIED)
    ],
    key=["WIDTH", "VALUE_WIDTH", "LONG"],
    prune_configs_by={"early_config_prune": suitable},
)

# In all kernels: q, out and d_out hold `places` matrices (one for each head of each sentence), `group` neighbors of
# which share one of k and v. WIDTH is head_dim, HEAD the next power of two; VALUE_WIDTH and VALUE are those of values.
# `no_type_check`: a kernel's annotations are Triton's, not those that the tests check.


@triton.jit
@no_type_check
def load(x, place, first, length, WIDTH: tl.constexpr, TILE: tl.constexpr, PADDED: tl.constexpr, TYPE: tl.constexpr):
    """TILE rows from `first` on of matrix number `place` in x (places, length, WIDTH); 0 beyond its edges."""
    row, column = first + tl.arange(0, TILE)[:, None], tl.arange(0, PADDED)[None, :]
    inside = (row < length) & (column < WIDTH)
    return tl.load(x + (place * length + row) * WIDTH + column, mask=inside, other=0.0).to(TYPE)


@triton.jit
@no_type_check
def store(x, tile, place, first, length, WIDTH: tl.constexpr, TILE: tl.constexpr, PADDED: tl.constexpr):
    """The same way back."""
    row, column = first + tl.arange(0, TILE)[:, None], tl.arange(0, PADDED)[None, :]
    inside = (row < length) & (column < WIDTH)
    tl.store(x + (place * length + row) * WIDTH + column, tile.to(x.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def on_edge(first, last, left, right, queries, keys, least, greatest):
    """Whether some of the queries first … last may not see some of the keys left … right, or these do not exist."""
    return (last - left > greatest) | (first - right < least) | (last >= queries) | (right >= keys)


@triton.jit
@no_type_check
def hide(score, row, column, queries, keys, least, greatest, visible, sentence, SOME_HIDDEN: tl.constexpr):
    """Scores with -∞ where a query may not see the key (see `Band`), or one of them does not exist."""
    distance = row - column
    seen = (distance >= least) & (distance <= greatest) & (row < queries) & (column < keys)
    if SOME_HIDDEN:
        seen = seen & (tl.load(visible + sentence * keys + column, mask=column < keys, other=0) != 0)
    return tl.where(seen, score, float("-inf"))


@tuned
@triton.jit
@no_type_check
def forward_kernel(
    q, k, v, out, lse, visible, queries, keys, group, places_per_sentence, least, greatest, scale,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, HEAD: tl.constexpr, VALUE: tl.constexpr, LONG: tl.constexpr,
    SOME_HIDDEN: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of queries walks past all keys that it sees (algorithm 1). `scale` makes scores exponents of 2."""
    tiles = tl.cdiv(queries, ROWS)
    place = (tl.program_id(0) // tiles).to(tl.int64)
    first = (tiles - 1 - tl.program_id(0) % tiles) * ROWS  # the last queries begin: with causal(), they see most
    last = first + ROWS - 1
    row = first + tl.arange(0, ROWS)
    q_tile = load(q, place, first, queries, WIDTH, ROWS, HEAD, TYPE)
    biggest = tl.full((ROWS,), LOWEST, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, VALUE), tl.float32)
    for left in range(tl.maximum(first - greatest, 0), tl.minimum(last - least + 1, keys), COLUMNS):
        column = left + tl.arange(0, COLUMNS)
        k_tile = load(k, place // group, left, keys, WIDTH, COLUMNS, HEAD, TYPE)
        v_tile = load(v, place // group, left, keys, VALUE_WIDTH, COLUMNS, VALUE, TYPE)
        score = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION)  # (ROWS, COLUMNS)
        if SOME_HIDDEN or on_edge(first, last, left, left + COLUMNS - 1, queries, keys, least, greatest):
            score = hide(score, row[:, None], column[None, :], queries, keys, least, greatest,
                         visible, place // places_per_sentence, SOME_HIDDEN)  # fmt: skip
        greater = tl.maximum(biggest, tl.max(score, 1) * scale)
        weight = tl.exp2(score * scale - greater[:, None])
        rescale = tl.exp2(biggest - greater)
        total = total * rescale + tl.sum(weight, 1)
        mixed = tl.dot(weight.to(TYPE), v_tile, mixed * rescale[:, None], input_precision=PRECISION)
        biggest = greater
    total = tl.maximum(total, 1e-37)  # a query that sees nothing: 0 / 1e-37
    store(out, mixed / total[:, None], place, first, queries, VALUE_WIDTH, ROWS, VALUE)
    tl.store(lse + place * queries + row, (biggest + tl.log2(total)) / LOG2_E, mask=row < queries)


@tuned
@triton.jit
@no_type_check
def backward_keys_kernel(
    q, k, v, d_out, lse, delta, dk, dv, visible, queries, keys, group, places_per_sentence, least, greatest, scale,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, HEAD: tl.constexpr, VALUE: tl.constexpr, LONG: tl.constexpr,
    SOME_HIDDEN: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of keys walks past all queries that see it, in all heads that share it (algorithm 2)."""
    tiles = tl.cdiv(keys, COLUMNS)
    shared = (tl.program_id(0) // tiles).to(tl.int64)
    left = tl.program_id(0) % tiles * COLUMNS
    right = left + COLUMNS - 1
    column = left + tl.arange(0, COLUMNS)
    k_tile = load(k, shared, left, keys, WIDTH, COLUMNS, HEAD, TYPE)
    v_tile = load(v, shared, left, keys, VALUE_WIDTH, COLUMNS, VALUE, TYPE)
    dk_tile = tl.zeros((COLUMNS, HEAD), tl.float32)
    dv_tile = tl.zeros((COLUMNS, VALUE), tl.float32)
    for place in range(shared * group, shared * group + group):
        for first in range(tl.maximum(left + least, 0), tl.minimum(right + greatest + 1, queries), ROWS):
            row = first + tl.arange(0, ROWS)
            q_tile = load(q, place, first, queries, WIDTH, ROWS, HEAD, TYPE)
            d_tile = load(d_out, place, first, queries, VALUE_WIDTH, ROWS, VALUE, TYPE)
            lse_row = tl.load(lse + place * queries + row, mask=row < queries, other=0.0) * LOG2_E
            delta_row = tl.load(delta + place * queries + row, mask=row < queries, other=0.0)
            score = tl.dot(k_tile, tl.trans(q_tile), input_precision=PRECISION)  # (COLUMNS, ROWS): on its side
            if SOME_HIDDEN or on_edge(first, first + ROWS - 1, left, right, queries, keys, least, greatest):
                score = hide(score, row[None, :], column[:, None], queries, keys, least, greatest,
                             visible, place // places_per_sentence, SOME_HIDDEN)  # fmt: skip
            weight = tl.exp2(score * scale - lse_row[None, :])
            d_weight = tl.dot(v_tile, tl.trans(d_tile), input_precision=PRECISION)
            d_score = weight * (d_weight - delta_row[None, :])
            dv_tile = tl.dot(weight.to(TYPE), d_tile, dv_tile, input_precision=PRECISION)
            dk_tile = tl.dot(d_score.to(TYPE), q_tile, dk_tile, input_precision=PRECISION)
    store(dk, dk_tile * (scale / LOG2_E), shared, left, keys, WIDTH, COLUMNS, HEAD)
    store(dv, dv_tile, shared, left, keys, VALUE_WIDTH, COLUMNS, VALUE)


@tuned
@triton.jit
@no_type_check
def backward_queries_kernel(
    q, k, v, d_out, lse, delta, dq, visible, queries, keys, group, places_per_sentence, least, greatest, scale,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, HEAD: tl.constexpr, VALUE: tl.constexpr, LONG: tl.constexpr,
    SOME_HIDDEN: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of queries walks past all keys that it sees, once more."""
    tiles = tl.cdiv(queries, ROWS)
    place = (tl.program_id(0) // tiles).to(tl.int64)
    first = (tiles - 1 - tl.program_id(0) % tiles) * ROWS
    last = first + ROWS - 1
    row = first + tl.arange(0, ROWS)
    q_tile = load(q, place, first, queries, WIDTH, ROWS, HEAD, TYPE)
    d_tile = load(d_out, place, first, queries, VALUE_WIDTH, ROWS, VALUE, TYPE)
    lse_row = tl.load(lse + place * queries + row, mask=row < queries, other=0.0) * LOG2_E
    delta_row = tl.load(delta + place * queries + row, mask=row < queries, other=0.0)
    dq_tile = tl.zeros((ROWS, HEAD), tl.float32)
    for left in range(tl.maximum(first - greatest, 0), tl.minimum(last - least + 1, keys), COLUMNS):
        column = left + tl.arange(0, COLUMNS)
        k_tile = load(k, place // group, left, keys, WIDTH, COLUMNS, HEAD, TYPE)
        v_tile = load(v, place // group, left, keys, VALUE_WIDTH, COLUMNS, VALUE, TYPE)
        score = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION)
        if SOME_HIDDEN or on_edge(first, last, left, left + COLUMNS - 1, queries, keys, least, greatest):
            score = hide(score, row[:, None], column[None, :], queries, keys, least, greatest,
                         visible, place // places_per_sentence, SOME_HIDDEN)  # fmt: skip
        weight = tl.exp2(score * scale - lse_row[:, None])
        d_weight = tl.dot(d_tile, tl.trans(v_tile), input_precision=PRECISION)
        d_score = weight * (d_weight - delta_row[:, None])
        dq_tile = tl.dot(d_score.to(TYPE), k_tile, dq_tile, input_precision=PRECISION)
    store(dq, dq_tile * (scale / LOG2_E), place, first, queries, WIDTH, ROWS, HEAD)


class TritonAttention(torch.autograd.Function):
    """FlashAttention-2 on a GPU, with its own gradient: `TritonAttention.apply(q, k, v, is_causal)`.

    In float32 it multiplies exactly, or faster in TF32 where `torch.set_float32_matmul_precision` allows that.

    Args (positional):
        q, k, v, is_causal, band: as for `TiledAttention`.

    Raises:
        ValueError: without a GPU, outside the interpreter; for types or widths that the kernels do not take.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Float[Tensor, "batch query head_dim"],
        k: Float[Tensor, "kv_batch key head_dim"],
        v: Float[Tensor, "kv_batch key value_dim"],
        is_causal: bool = False,
        band: Band | None = None,
    ) -> Float[Tensor, "batch query value_dim"]:
        check(q, k, v)
        q, k, v = (tensor.contiguous() for tensor in (q, k, v))
        band = Band.plain(q.shape[1], k.shape[1], is_causal) if band is None else band
        out = q.new_empty(*q.shape[:-1], v.shape[-1])
        lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
        launch(forward_kernel, "ROWS", q, q, k, v, out, lse, **described(q, k, v, band))
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.band = band
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        d_out = d_out.contiguous()
        delta = (d_out.float() * out).sum(dim=-1)  # (batch, query)
        dq, dk, dv = (torch.empty_like(tensor) for tensor in (q, k, v))
        arguments = q, k, v, d_out, lse, delta
        options = described(q, k, v, ctx.band)
        launch(backward_keys_kernel, "COLUMNS", k, *arguments, dk, dv, **options)
        launch(backward_queries_kernel, "ROWS", q, *arguments, dq, **options)
        return dq, dk, dv, None, None


def launch(kernel: Any, tile: str, split: Tensor, *tensors: Tensor, **options: Any) -> None:
    """Run a kernel with one program for each tile of each matrix in `split` (places, length, width)."""
    places, length = split.shape[:2]
    if places and length:
        with torch.cuda.device_of(split):
            kernel[lambda sizes: (places * -(-length // sizes[tile]),)](*tensors, **options)


def described(q: Tensor, k: Tensor, v: Tensor, band: Band) -> dict[str, Any]:
    """The parameters that all kernels share: sizes, mask, types."""
    sentences = 1 if band.visible is None else len(band.visible)
    farthest = min(max(q.shape[1], k.shape[1]), band.greatest - band.least)  # of a query from a key that it sees
    ieee = torch.get_float32_matmul_precision() == "highest"
    return {
        "visible": None if band.visible is None else band.visible.to(torch.uint8),
        "queries": q.shape[1],
        "keys": k.shape[1],
        "group": q.shape[0] // max(1, k.shape[0]),
        "places_per_sentence": q.shape[0] // sentences,
        "least": band.least,
        "greatest": band.greatest,
        "scale": q.shape[-1] ** -0.5 * math.log2(math.e),
        "WIDTH": q.shape[-1],
        "VALUE_WIDTH": v.shape[-1],
        "HEAD": padded(q.shape[-1]),
        "VALUE": padded(v.shape[-1]),
        "LONG": min(4, farthest.bit_length() // 3),  # tiles are chosen anew from 32, 256 and 2048 on
        "SOME_HIDDEN": band.visible is not None,
        "TYPE": tl.float32 if INTERPRETED else TYPES[q.dtype],  # the interpreter's tl.dot is wrong in bfloat16
        "PRECISION": "ieee" if ieee else "tf32",
    }


def padded(width: int) -> int:
    """Return the next power of 2, and at least 16, which is the least that tl.dot takes."""
    return max(16, 1 << (width - 1).bit_length())


def check(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse what the kernels can't compute.

    Raises:
        ValueError: naming it.
    """
    if not (q.is_cuda or INTERPRETED):
        raise ValueError(
            f"Triton needs a GPU, got tensors on {q.device}; use TiledAttention, or set TRITON_INTERPRET=1 before "
            "Triton is imported to run it in the interpreter"
        )
    if q.dtype not in TYPES or not q.dtype == k.dtype == v.dtype:
        raise ValueError(
            f"Triton takes q, k and v in one of float16, bfloat16 and float32, got {q.dtype}, {k.dtype}, {v.dtype}; "
            "use TiledAttention"
        )
    widest = max(q.shape[-1], v.shape[-1])
    if widest > MAX_HEAD_DIM:
        raise ValueError(f"Triton has room for heads up to {MAX_HEAD_DIM} wide, got {widest}; use TiledAttention")
