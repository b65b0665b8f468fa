"""The block against torch's encoder and decoder layers with the same weights."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import shake, torch_layer
from torch import nn
from torch.testing import assert_close

from txlib.attention import AlibiAttention, DenseAttention, ShawAttention, SkewedAttention, causal, padding
from txlib.layers import BlockCache, BlockConfig, LayerNorm, RMSNorm, TransformerBlock

SMALL = BlockConfig(d_model=12, heads=3, d_ff=20)
DOUBLE = {"dtype": torch.float64}


def make(*, cross=False, **changes):
    return shake(TransformerBlock(dataclasses.replace(SMALL, **changes), cross=cross).double()).eval()


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_encoder_block_equals_torch(norm_first, activation, dtype):
    block = make(norm_first=norm_first, activation=activation, norm_eps=1e-3).to(dtype)
    x = torch.randn(2, 5, 12, dtype=dtype)
    hidden = ~padding([5, 3]).dense(1, 5)[:, 0, 0]
    expected = torch_layer(block)(x, src_mask=~causal().dense(5)[0, 0], src_key_padding_mask=hidden)
    assert_close(block(x, causal() & padding([5, 3])), expected)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_decoder_block_equals_torch(norm_first, activation):
    block = make(norm_first=norm_first, activation=activation, cross=True)
    x, memory = torch.randn(2, 5, 12, **DOUBLE), torch.randn(2, 4, 12, **DOUBLE)
    hidden = ~padding([4, 2]).dense(1, 4)[:, 0, 0]
    theirs = torch_layer(block)
    expected = theirs(x, memory, tgt_mask=~causal().dense(5)[0, 0], memory_key_padding_mask=hidden)
    ours = block(x, causal(), memory, padding([4, 2]))
    assert_close(ours, expected)
    ours.square().sum().backward()
    expected.square().sum().backward()
    assert_close(block.feed_forward.widen.weight.grad, theirs.linear1.weight.grad)
    assert_close(block.cross_attention_norm.weight.grad, theirs.norm2.weight.grad)


@given(
    st.booleans(),
    st.sampled_from(["none", "rotary", "rotary_half", "shaw", "skewed", "alibi"]),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.sampled_from([None, 1]),
)
def test_decoding_in_chunks_equals_all_at_once(norm_first, position, chunks, kv_heads):
    block = make(norm_first=norm_first, position=position, kv_heads=kv_heads, cross=True)
    x, memory = torch.randn(2, sum(chunks), 12, **DOUBLE), torch.randn(2, 4, 12, **DOUBLE)
    cache = BlockCache()
    outs = [block(chunk, causal(), memory, padding([4, 2]), cache) for chunk in x.split(chunks, dim=1)]
    assert_close(torch.cat(outs, dim=1), block(x, causal(), memory, padding([4, 2])))


def test_rms_block_without_biases_against_its_formula():
    block = make(norm="rms", norm_eps=0.1, bias=False, activation="swiglu")
    assert not [name for name, _ in block.named_parameters() if name.endswith("bias")]
    x = torch.randn(2, 5, 12, **DOUBLE)

    def norm(y, gain):
        return y / (y.square().mean(-1, keepdim=True) + 0.1).sqrt() * gain

    y = x + block.self_attention(norm(x, block.self_attention_norm.weight), mask=causal())
    expected = y + block.feed_forward(norm(y, block.feed_forward_norm.weight))
    assert_close(block(x, causal()), expected)


@pytest.mark.parametrize("norm, kind", [("layer", LayerNorm), ("rms", RMSNorm)])
def test_norm_by_name(norm, kind):
    block = make(norm=norm, norm_eps=0.01, cross=True)
    norms = [block.self_attention_norm, block.cross_attention_norm, block.feed_forward_norm]
    assert all(type(layer) is kind and layer.eps == 0.01 for layer in norms)


@pytest.mark.parametrize("cross", [True, False])
def test_a_block_with_zero_output_passes_its_input_on(cross):
    block = TransformerBlock(dataclasses.replace(SMALL, zero_output=True), cross=cross)
    x = torch.randn(2, 5, 12)
    assert torch.equal(block(x, causal(), memory=torch.randn(2, 3, 12) if cross else None), x)


def test_dropout_hits_each_sub_layer_only_while_training():
    block = make(dropout=0.999)
    x = torch.randn(4, 8, 12, **DOUBLE)
    assert not torch.equal(block(x), block.train()(x))
    unchanged = (block(x) == x).double().mean()  # both sub-layers' outputs dropped
    assert unchanged > 0.98
    assert_close(block.eval()(x), torch_layer(block).eval()(x))


@pytest.mark.parametrize(
    "position, kind",
    [
        ("none", DenseAttention),
        ("sinusoidal", DenseAttention),
        ("rotary", DenseAttention),
        ("shaw", ShawAttention),
        ("skewed", SkewedAttention),
        ("alibi", AlibiAttention),
    ],
)
def test_position_chooses_the_mechanism_of_self_attention_only(position, kind):
    block = make(position=position, attention_dropout=0.25, cross=True)
    assert type(block.self_attention.mechanism) is kind and type(block.cross_attention.mechanism) is DenseAttention
    assert block.self_attention.mechanism.dropout == block.cross_attention.mechanism.dropout == 0.25


@pytest.mark.parametrize("position, layout", [("rotary", "interleaved"), ("rotary_half", "half")])
def test_rotary_layouts(position, layout):
    block = make(position=position, cross=True)
    assert block.self_attention.rotary.layout == block.cross_attention.rotary.layout == layout


def test_the_factory_makes_the_mechanism():
    class Nothing(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config = config

        def forward(self, q, k, v, mask):
            return q * 0

    block = make(mechanism=Nothing)
    assert block.self_attention.mechanism.config is block.config
    x = torch.randn(1, 3, 12, **DOUBLE)
    y = x + block.self_attention.output.bias
    assert_close(block(x), y + block.feed_forward(block.feed_forward_norm(y)))
    assert type(make(mechanism=Nothing, cross=True).cross_attention.mechanism) is DenseAttention


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"d_model": 510, "heads": 8}, "d_model=510 is not divisible by heads=8; choose e.g. 512"),
        (
            {"d_model": 510, "heads": 8, "position": "rotary"},
            "d_model=510 is not divisible by heads=8; choose e.g. 512",
        ),
        ({"d_model": 12, "heads": 0, "position": "shaw"}, "heads=0 must be at least 1"),
        ({"d_model": 12, "heads": 4, "position": "rotary"}, "rotary positions.*even size, got 3"),
        ({"position": "spiral"}, "position='spiral' is unknown; choose one of none, sinusoidal"),
        ({"position": "shaw", "mechanism": lambda config: DenseAttention()}, "itself a mechanism"),
        ({"dropout": 1.0}, r"dropout=1.0 must be in \[0, 1\)"),
        ({"attention_dropout": -0.1}, r"attention_dropout=-0.1 must be in \[0, 1\)"),
        ({"activation": "tanh"}, "activation='tanh' is unknown"),
        ({"norm": "batch"}, "norm='batch' is unknown; choose 'layer' or 'rms'"),
        ({"kv_heads": 2}, "heads=3 is not divisible by kv_heads=2"),
    ],
)
def test_wrong_configs_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        TransformerBlock(dataclasses.replace(SMALL, **changes))


def test_a_config_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SMALL.heads = 4


@pytest.mark.parametrize("norm_first", [True, False])
def test_bfloat16_is_close_to_double(norm_first):
    block = make(norm_first=norm_first)
    x = torch.randn(2, 5, 12, **DOUBLE)
    expected = block(x, causal())
    out = block.bfloat16()(x.bfloat16(), causal())
    assert out.dtype == torch.bfloat16
    assert_close(out.double(), expected, atol=0.15, rtol=0.05)
