"""The Triton kernels: on a GPU where there is one, elsewhere in Triton's interpreter (`conftest.py` sets it up)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

ON = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton")

from txlib.attention import (  # noqa: E402
    FlashAttention,
    TiledAttention,
    attention,
    causal,
    flash_triton,
    for_each_head,
    padding,
    sliding_window,
)
from txlib.attention.flash_triton import TritonAttention  # noqa: E402

CLOSE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def qkv(heads, kv_heads, query, key, head_dim, value_dim=None, batch=1, dtype=torch.float32):
    shapes = (heads, query, head_dim), (kv_heads, key, head_dim), (kv_heads, key, value_dim or head_dim)
    made = [torch.randn(batch, *shape).to(ON, dtype) for shape in shapes]
    return [each.requires_grad_() for each in made]


def assert_same(inputs, mask):
    """Output and gradients as by the definition in double precision, from the same numbers."""
    q, k, v = exact = [each.detach().double().requires_grad_() for each in inputs]
    expected = attention(q, for_each_head(k, q.shape[1]), for_each_head(v, q.shape[1]), mask)
    out = FlashAttention(triton=True)(*inputs, mask)
    close = CLOSE[out.dtype]
    assert out.dtype == inputs[0].dtype
    assert_close(out.double(), expected, atol=close, rtol=close)
    grad_out = torch.randn_like(out)
    gradients = torch.autograd.grad(out, inputs, grad_out)
    for mine, theirs in zip(gradients, torch.autograd.grad(expected, exact, grad_out.double()), strict=True):
        assert_close(mine.double(), theirs, atol=3 * close, rtol=close)


@pytest.mark.parametrize(
    "mask",
    [None, causal(), sliding_window(3), causal() & sliding_window(5), causal() & ~causal(), causal().shift(7)],
    ids=str,
)
def test_masks(mask):
    assert_same(qkv(1, 1, 21, 21, 8), mask)


@pytest.mark.parametrize("query, key", [(1, 20), (20, 1), (18, 35), (33, 16)])
def test_any_lengths(query, key):
    assert_same(qkv(1, 1, query, key, 8), causal())


def test_heads_share_keys_and_sentences_have_padding():
    assert_same(qkv(4, 2, 9, 18, 8, batch=2), padding([18, 3]))


def test_sentences_without_a_single_token():
    q, k, v = qkv(1, 1, 5, 5, 8, batch=2)
    out = FlashAttention(triton=True)(q, k, v, causal() & padding([0, 4]))
    assert (out[0] == 0).all() and (out[1] != 0).any()
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert all(each.isfinite().all() and (each[0] == 0).all() for each in gradients)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits(dtype):
    assert_same(qkv(1, 1, 18, 18, 16, dtype=dtype), causal())


@pytest.mark.parametrize("head_dim, value_dim", [(32, 32), (64, 64), (128, 128), (80, 24), (5, 3)])
def test_widths(head_dim, value_dim):
    assert_same(qkv(1, 1, 17, 17, head_dim, value_dim), causal())


@pytest.mark.parametrize("is_causal", [False, True])
def test_is_what_the_tiles_in_pytorch_compute(is_causal):
    inputs = [each[0] for each in qkv(2, 2, 17, 17, 8)]
    outs = [kind.apply(*inputs, is_causal) for kind in (TritonAttention, TiledAttention)]
    assert_close(*outs)
    (mine,), (theirs,) = ([each for each in out.grad_fn.saved_tensors if each.shape == (2, 17)] for out in outs)
    assert_close(mine, theirs)  # the log-sum-exp


@pytest.mark.parametrize("query, key", [(0, 4), (4, 0)])
def test_nothing_to_ask_or_to_see(query, key):
    q, k, v = qkv(2, 2, query, key, 8)
    out = FlashAttention(triton=True)(q, k, v)
    assert out.shape == q.shape and (out == 0).all()
    out.sum().backward()
    assert k.grad.shape == k.shape and (k.grad == 0).all()


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda q: q.double(), "float32, got torch.float64, torch.float64, torch.float64; use TiledAttention"),
        (lambda q: q.repeat(1, 1, 40), "up to 256 wide, got 320"),
    ],
)
def test_what_the_kernels_do_not_take_is_refused(change, words):
    q = change(torch.randn(1, 4, 8, device=ON))
    with pytest.raises(ValueError, match=words):
        TritonAttention.apply(q, q, q)


COMPILES = """
import triton, torch
from triton.backends.compiler import GPUTarget
from txlib.attention import flash_triton

WHOLE = ("queries", "keys", "group", "places_per_sentence", "least", "greatest")
for dtype, pointer, width in (torch.bfloat16, "*bf16", 64), (torch.float32, "*fp32", 256):
    sizes = dict(WIDTH=width, VALUE_WIDTH=width, HEAD=width, VALUE=width, LONG=3, SOME_HIDDEN=False, PRECISION="tf32")
    sizes |= dict(visible=None, TYPE=flash_triton.TYPES[dtype])
    for name in ("forward", "backward_keys", "backward_queries"):
        tuned = getattr(flash_triton, f"{name}_kernel")
        smallest = flash_triton.suitable(tuned.configs, **sizes)[-1]
        given = sizes | smallest.kwargs
        types = dict.fromkeys(("lse", "delta"), "*fp32") | {"scale": "fp32"} | dict.fromkeys(given, "constexpr")
        types |= dict.fromkeys(WHOLE, "i32")
        types = {each: types.get(each, pointer) for each in tuned.arg_names}
        source = triton.compiler.ASTSource(tuned.fn, types, given)
        options = dict(num_warps=smallest.num_warps, num_stages=smallest.num_stages)
        compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32), options=options)
        print(len(compiled.asm["cubin"]) > 0 and compiled.metadata.shared <= 99 * 1024)
"""


@pytest.mark.slow
def test_compiles_for_a_gpu():
    """The interpreter takes more than the compiler does. The compiler needs no GPU to refuse. A small GPU has 99 KiB of
    shared memory for a tile."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILES]
    where = Path(__file__).parents[3]
    done = subprocess.run(command, env=environment, cwd=where, capture_output=True, text=True)
    assert done.stdout.split() == ["True"] * 6, done.stderr[-2000:]


def test_without_a_gpu_the_compiled_kernels_say_what_to_do(monkeypatch):
    monkeypatch.setattr(flash_triton, "INTERPRETED", False)
    q = torch.ones(1, 1, 2, 8)
    with pytest.raises(
        ValueError, match="Triton needs a GPU, got tensors on cpu; use TiledAttention, or set TRITON_INT"
    ):
        FlashAttention(triton=True)(q, q, q)
