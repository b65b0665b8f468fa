"""MultiHeadAttention against torch's with the same weights; decoding with a cache against all at once."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import load_attention, loop_attention, shake, torch_attention
from torch import nn
from torch.testing import assert_close
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as gemma2
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as gpt_oss

from txlib.attention import (
    AlibiBias,
    BucketBias,
    DenseAttention,
    KeyValueCache,
    LinearAttention,
    MemoryCache,
    MultiHeadAttention,
    ShawAttention,
    SkewedBias,
    attention,
    causal,
    global_tokens,
    padding,
    recording,
    sliding_window,
)
from txlib.layers import Rotary

DOUBLE = {"dtype": torch.float64}


def make(d_model=12, heads=4, **options):
    return shake(MultiHeadAttention(d_model, heads, **options).double())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_self_attention_equals_torch(bias, dtype):
    ours = make(bias=bias).to(dtype)
    theirs = torch_attention(ours)
    x = torch.randn(3, 7, 12, dtype=dtype)
    mask = causal() & padding([7, 2, 4])
    out, weights = theirs(
        x,
        x,
        x,
        attn_mask=~causal().dense(7)[0, 0],
        key_padding_mask=~padding([7, 2, 4]).dense(1, 7)[:, 0, 0],
        average_attn_weights=False,
    )
    assert_close(ours(x, mask=mask), out)
    assert_close(ours(x, mask=mask.dense(7)), out)
    with recording(ours) as recorded:
        ours(x, mask=mask)
    assert_close(recorded[""], [weights])


@pytest.mark.parametrize("memory_dim", [None, 5])
def test_cross_attention_equals_torch(memory_dim):
    ours = make(memory_dim=memory_dim)
    theirs = torch_attention(ours, memory_dim)
    x, memory = torch.randn(2, 3, 12, **DOUBLE), torch.randn(2, 6, memory_dim or 12, **DOUBLE)
    hidden = ~padding([6, 4]).dense(1, 6)[:, 0, 0]
    assert_close(ours(x, memory, padding([6, 4])), theirs(x, memory, memory, key_padding_mask=hidden)[0])


def test_gradients_equal_torch():
    ours = make()
    theirs = torch_attention(ours)
    x = torch.randn(2, 5, 12, **DOUBLE)
    for out in (ours(x, mask=causal()), theirs(x, x, x, attn_mask=~causal().dense(5)[0, 0], need_weights=False)[0]):
        out.square().sum().backward()
    expected = theirs.in_proj_weight.grad.chunk(3)
    for projection, gradient in zip((ours.query, ours.key, ours.value), expected, strict=True):
        assert_close(projection.weight.grad, gradient)
    assert_close(ours.output.weight.grad, theirs.out_proj.weight.grad)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_shared_keys_and_values_equal_repeated_weights(kv_heads):
    ours, full = make(kv_heads=kv_heads), make()

    def repeat(weight):  # (kv_heads · 3, …) → (4 · 3, …)
        return weight.unflatten(0, (kv_heads, 3)).repeat_interleave(4 // kv_heads, dim=0).flatten(0, 1)

    state = ours.state_dict()
    full.load_state_dict({name: repeat(x) if name.startswith(("key", "value")) else x for name, x in state.items()})
    x = torch.randn(2, 6, 12, **DOUBLE)
    assert_close(ours(x, mask=causal()), full(x, mask=causal()))
    memory = torch.randn(2, 3, 12, **DOUBLE)
    assert_close(ours(x, memory), full(x, memory))


def test_query_and_key_norm_against_a_loop():
    ours = make(qk_norm="layer")
    x = torch.randn(2, 5, 12, **DOUBLE)

    def heads(projection, gain=None):
        y = projection(x).unflatten(-1, (4, 3)).transpose(1, 2)
        if gain is None:
            return y
        y = y - y.mean(-1, keepdim=True)
        return y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain

    q, k = heads(ours.query, ours.query_norm.weight), heads(ours.key, ours.key_norm.weight)
    out, _ = loop_attention(q, k, heads(ours.value), causal().dense(5))
    assert_close(ours(x, mask=causal()), ours.output(out.transpose(1, 2).flatten(2)))


def test_norm_over_all_heads_against_a_loop():
    ours = make(qk_norm="rms", qk_norm_whole=True, kv_heads=2)
    x = torch.randn(2, 5, 12, **DOUBLE)

    def heads(projection, norm=None):
        y = projection(x)
        if norm is not None:
            y = y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight
        return y.unflatten(-1, (-1, 3)).transpose(1, 2).repeat_interleave(12 // y.shape[-1], dim=1)

    q, k = heads(ours.query, ours.query_norm), heads(ours.key, ours.key_norm)
    out, _ = loop_attention(q, k, heads(ours.value), causal().dense(5))
    assert_close(ours(x, mask=causal()), ours.output(out.transpose(1, 2).flatten(2)))


def test_gate_against_a_loop():
    ours, plain = make(gate=True), make()
    plain.load_state_dict({name: value for name, value in ours.state_dict().items() if not name.startswith("gate")})
    x = torch.randn(2, 5, 12, **DOUBLE)
    heads = plain.attend(x, None, causal(), None, None, None, None)  # (batch, heads, length, head_dim)
    gate = torch.sigmoid(x @ ours.gate.weight.T + ours.gate.bias).unflatten(-1, (4, 3)).transpose(1, 2)
    assert_close(ours(x, mask=causal()), ours.output((heads * gate).transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("mask", [None, causal(), sliding_window(1) & padding([5, 3])])
@torch.no_grad()
def test_softcap_and_sinks_equal_transformers(kv_heads, mask):
    """Gemma 2's scores and gpt-oss's, as transformers computes them."""
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, kv_heads, 5, 8), torch.randn(2, kv_heads, 5, 6)
    sinks, module = torch.randn(4), SimpleNamespace(num_key_value_groups=4 // kv_heads, training=False)
    allowed = torch.ones(2, 1, 5, 5, dtype=torch.bool) if mask is None else mask.dense(5).expand(2, 1, 5, 5)
    added = torch.zeros(2, 1, 5, 5).masked_fill(~allowed, -1e30)
    module.sinks = sinks
    seen = allowed.any(-1, keepdim=True)  # (batch, 1, query, 1); transformers has no zeros for empty rows
    for options, theirs in (
        ({"softcap": 0.7}, partial(gemma2, softcap=0.7)),
        ({"sinks": sinks}, gpt_oss),
    ):
        out, weights = theirs(module, q, k, v, added, scaling=8**-0.5)
        ours = DenseAttention()
        assert_close(ours(q, k, v, mask, **options), out.transpose(1, 2) * seen)
        assert_close(ours.weights(q, k, mask, **options), weights * seen)
        both = ours(q, k, v, mask, softcap=0.7, sinks=sinks)
        repeated = [x.repeat_interleave(4 // kv_heads, 1) for x in (k, v)]
        assert_close(both, attention(q, *repeated, mask, softcap=0.7, sinks=sinks))
    with pytest.raises(ValueError, match="LinearAttention takes no softcap; use DenseAttention"):
        MultiHeadAttention(16, 2, mechanism=LinearAttention(), softcap=1.0)
    with pytest.raises(ValueError, match="ShawAttention takes no sinks; use DenseAttention"):
        MultiHeadAttention(16, 2, mechanism=ShawAttention(8), sinks=True)
    with pytest.raises(ValueError, match="softcap=0.0 must be above 0"):
        MultiHeadAttention(16, 2, softcap=0.0)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_values_of_their_own_width_against_a_loop(kv_heads):
    ours = make(head_dim=2, value_dim=5, kv_heads=kv_heads, memory_dim=7)
    x, memory = torch.randn(2, 5, 12, **DOUBLE), torch.randn(2, 6, 7, **DOUBLE)
    q, k, v = (
        layer(y).unflatten(-1, (-1, width)).transpose(1, 2)
        for layer, y, width in ((ours.query, x, 2), (ours.key, memory, 2), (ours.value, memory, 5))
    )
    k, v = (y.repeat_interleave(4 // kv_heads, dim=1) for y in (k, v))
    out, _ = loop_attention(q, k, v, padding([6, 4]).dense(1, 6))
    assert_close(ours(x, memory, padding([6, 4])), ours.output(out.transpose(1, 2).flatten(2)))


CACHED = {
    "dense": {},
    "wide values": {"value_dim": 7},
    "grouped": {"kv_heads": 2},
    "rotary": {"rotary": lambda: Rotary(4)},
    "rotary half, normed, one key head": {
        "rotary": lambda: Rotary(4, layout="half"),
        "qk_norm": "layer",
        "kv_heads": 1,
    },
    "shaw": {"mechanism": lambda: ShawAttention(4, max_distance=3)},
    "skewed": {"position_bias": lambda: SkewedBias(4, 4, max_length=20)},
    "alibi": {"position_bias": lambda: AlibiBias(4)},
    "buckets, shared heads, a mask": {
        "position_bias": lambda: BucketBias(4, buckets=8, max_distance=6),
        "kv_heads": 2,
        "mask": sliding_window(4) | global_tokens([1]),
    },
    "fused": {"mechanism": lambda: DenseAttention(fused=True)},
    "capped, with sinks and a gate, normed over all heads": {
        "softcap": 1.5,
        "sinks": True,
        "gate": True,
        "qk_norm": "rms",
        "qk_norm_whole": True,
        "kv_heads": 2,
    },
}


@pytest.mark.parametrize("kind", CACHED)
@given(chunks=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_decoding_in_chunks_equals_all_at_once(kind, chunks):
    options = {name: make() if callable(make) else make for name, make in CACHED[kind].items()}
    layer, x = make(16, 4, **options), torch.randn(2, sum(chunks), 16, **DOUBLE)
    mask = causal() & (sliding_window(3) | padding([2, 3]))
    whole, dense = layer(x, mask=mask), mask.dense(sum(chunks))
    for as_tensor in (False, True):
        cache, outs = KeyValueCache(), []
        for chunk in x.split(chunks, dim=1):
            past, end = cache.length, cache.length + chunk.shape[1]
            outs.append(layer(chunk, mask=dense[:, :, past:end, :end] if as_tensor else mask, cache=cache))
        assert cache.length == x.shape[1]
        assert_close(torch.cat(outs, dim=1), whole)


def test_the_memory_is_projected_once():
    layer, cache = make(), MemoryCache()
    x, memory = torch.randn(2, 5, 12, **DOUBLE), torch.randn(2, 4, 12, **DOUBLE)
    calls = []
    layer.key.register_forward_hook(lambda *_: calls.append("key"))
    outs = [layer(step, memory, padding([4, 2]), cache=cache) for step in x.split(1, dim=1)]
    assert_close(torch.cat(outs, dim=1), layer(x, memory, padding([4, 2])))
    assert len(calls) == 2 and cache.length == 4  # once cached, once without


def test_a_rotary_layer_reads_a_memory_from_its_beginning():
    layer, cache = make(rotary=Rotary(4), d_model=16), MemoryCache()
    x, memory = torch.randn(2, 5, 16, **DOUBLE), torch.randn(2, 4, 16, **DOUBLE)
    for kept in (None, cache):  # the memory's own positions start at 0 either way
        outs = [layer(x[:, i : i + 1], memory, cache=kept, offset=i) for i in range(5)]
        assert_close(torch.cat(outs, dim=1), layer(x, memory))


def test_a_cache_follows_the_beams():
    layer, cache = make(), KeyValueCache()
    x = torch.randn(3, 6, 12, **DOUBLE)
    layer(x[:, :4], mask=causal(), cache=cache)
    rows = torch.tensor([2, 2, 0, 1])
    cache.reorder(rows)
    assert_close(layer(x[rows, 4:], mask=causal(), cache=cache), layer(x[rows], mask=causal())[:, 4:])
    KeyValueCache().reorder(rows)  # nothing held, nothing to do


def test_any_mechanism_is_called_with_heads_apart():
    class Mean(nn.Module):
        def forward(self, q, k, v, mask):
            return v.mean(dim=-2, keepdim=True).expand(*q.shape[:-1], -1)

    layer = make(mechanism=Mean())
    x = torch.randn(2, 5, 12, **DOUBLE)
    assert_close(layer(x), layer.output(layer.value(x).mean(1, keepdim=True)).expand(2, 5, 12))


def test_recording_collects_by_name_and_stops():
    model = nn.ModuleDict({"first": make(), "second": make(kv_heads=2)})
    x = torch.randn(2, 5, 12, **DOUBLE)
    with recording(model) as weights:
        for _ in range(2):
            model["first"](x, mask=causal())
        model["second"](x, torch.randn(2, 3, 12, **DOUBLE))
    assert {name: [w.shape for w in list_] for name, list_ in weights.items()} == {
        "first": [(2, 4, 5, 5)] * 2,
        "second": [(2, 4, 5, 3)],
    }
    theirs = torch_attention(model["first"])
    _, expected = theirs(x, x, x, attn_mask=~causal().dense(5)[0, 0], average_attn_weights=False)
    assert_close(weights["first"], [expected] * 2)
    assert not weights["first"][0].requires_grad
    model["first"](x)
    assert len(weights["first"]) == 2


def test_recording_stops_after_an_error():
    layer = make()
    with pytest.raises(RuntimeError, match="stop"), recording(layer):
        raise RuntimeError("stop")
    assert layer.attention_log is None


def test_recording_inside_recording_resumes_the_outer_one():
    layer, x = make(), torch.randn(1, 3, 12, **DOUBLE)
    with recording(layer) as outer:
        with recording(layer) as inner:
            layer(x)
        layer(x)
    assert (len(outer[""]), len(inner[""])) == (1, 1)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"d_model": 510, "heads": 8}, "d_model=510 is not divisible by heads=8; choose e.g. 512"),
        ({"d_model": 12, "heads": 0}, "heads=0 must be at least 1"),
        ({"d_model": 0, "heads": 4}, "d_model=0 must be at least 1"),
        ({"d_model": 12, "heads": 4, "kv_heads": 3}, "heads=4 is not divisible by kv_heads=3; choose a divisor of 4"),
        ({"d_model": 12, "heads": 4, "kv_heads": 0}, "kv_heads=0"),
        ({"d_model": 12, "heads": 4, "value_dim": 0}, "value_dim=0 must be at least 1"),
    ],
)
def test_wrong_sizes_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        MultiHeadAttention(**options)


def test_a_growing_cache_is_not_for_a_memory():
    layer, x = make(), torch.randn(1, 2, 12, **DOUBLE)
    with pytest.raises(ValueError, match="cross-attention needs a MemoryCache, self-attention one that grows"):
        layer(x, memory=x, cache=KeyValueCache())
    with pytest.raises(ValueError, match="cross-attention needs a MemoryCache, self-attention one that grows"):
        layer(x, cache=MemoryCache())


def test_loading_torch_weights_is_a_real_test():
    """The oracle itself: other weights give other numbers."""
    ours = make()
    theirs = torch_attention(ours)
    x = torch.randn(1, 4, 12, **DOUBLE)
    load_attention(theirs, make())
    assert not torch.allclose(ours(x), theirs(x, x, x)[0])
