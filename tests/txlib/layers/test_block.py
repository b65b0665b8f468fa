"""The block against torch's encoder and decoder layers with the same weights."""

import dataclasses
import json
from types import NoneType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import loop_attention, shake, torch_layer
from torch import nn
from torch.testing import assert_close

from txlib.attention import (
    AlibiBias,
    BlockCache,
    BucketBias,
    DenseAttention,
    DenseConfig,
    LayerContext,
    Mask,
    MechanismConfig,
    ShawAttention,
    SkewedBias,
    StaticKeyValueCache,
    block_local,
    causal,
    dilated,
    global_tokens,
    padding,
    sliding_window,
)
from txlib.layers import BlockConfig, LayerNorm, RMSNorm, RotaryConfig, TransformerBlock

SMALL = BlockConfig.of_sizes(d_model=12, heads=3, d_ff=20)
DOUBLE = {"dtype": torch.float64}


def make(*, cross=False, **changes):
    return shake(TransformerBlock(SMALL.replace(**changes), cross=cross).double()).eval()


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
    assert_close(block.feed_forward.up_proj.weight.grad, theirs.linear1.weight.grad)
    assert_close(block.cross_attention_norm.weight.grad, theirs.norm2.weight.grad)


@given(
    st.booleans(),
    st.sampled_from(["none", "rotary", "rotary_half", "shaw", "skewed", "alibi", "t5"]),
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
    block = TransformerBlock(SMALL.replace(zero_output=True), cross=cross)
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
        ("skewed", DenseAttention),
        ("alibi", DenseAttention),
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


@pytest.mark.parametrize(
    "position, kind",
    [("alibi", AlibiBias), ("t5", BucketBias), ("skewed", SkewedBias), ("shaw", NoneType), ("rotary", NoneType)],
)
def test_position_chooses_the_bias_of_self_attention_only(position, kind):
    block = make(position=position, cross=True)
    assert type(block.self_attention.position_bias) is kind and block.cross_attention.position_bias is None


@dataclasses.dataclass(frozen=True)
class NothingConfig(MechanismConfig, name="nothing"):
    """A mechanism that finds nothing, and remembers what it was told."""

    def make(self, block, layer):
        class Nothing(nn.Module):
            def forward(self, q, k, v, mask):
                return q * 0

        mechanism = Nothing()
        mechanism.told = block, layer
        return mechanism


def test_a_config_makes_the_mechanism_and_is_told_its_layer():
    layer = LayerContext(number=2, layers=3, max_length=7, causal=True)
    block = TransformerBlock(SMALL.replace(mechanism=NothingConfig()), layer=layer).double()
    assert block.self_attention.mechanism.told == (block.config, layer)
    x = torch.randn(1, 3, 12, **DOUBLE)
    y = x + block.self_attention.output.bias
    assert_close(block(x), y + block.feed_forward(block.feed_forward_norm(y)))
    both = make(mechanism=NothingConfig(), cross=True)
    assert type(both.cross_attention.mechanism) is DenseAttention
    across = make(cross_mechanism=NothingConfig(), cross=True)
    assert type(across.self_attention.mechanism) is DenseAttention
    assert across.cross_attention.mechanism.told[1].cross


def test_a_scale_in_place_of_one_over_root_d():
    block = make(attention_scale=1.0)
    x, attend = torch.randn(1, 4, 12, **DOUBLE), block.self_attention
    q, k, v = (attend.split(part(x)) for part in (attend.query, attend.key, attend.value))
    out, _ = loop_attention(q, k, v, scale=1.0)
    assert_close(attend(x), attend.output(out.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("chunks", [[1] * 9, [4, 1, 1, 3], [9]])
@pytest.mark.parametrize("position", ["rotary", "alibi", "t5", "shaw", "skewed"])
def test_the_cache_of_a_window_holds_a_window(position, chunks):
    block = make(position=position, kv_heads=1, mask=sliding_window(2))
    x, cache = torch.randn(2, 9, 12, **DOUBLE), block.new_cache(capacity=9)
    outs = []
    for chunk in x.split(chunks, dim=1):
        outs.append(block(chunk, causal() & padding([9, 7]), cache=cache))
        held = cache.self_attention.k
        assert held.shape[-2] <= 2 and held.untyped_storage().nbytes() == held.nbytes
    assert cache.self_attention.length == 9
    assert_close(torch.cat(outs, dim=1), block(x, causal() & padding([9, 7])))


def test_only_what_limits_the_past_makes_a_window():
    assert make(mask=sliding_window(2) | global_tokens([0])).window is None
    assert make().window is None and make(mask=block_local(4)).window == 3
    assert make(mask=dilated(3, 2)).window == 6 and make(mask=~causal()).window == 0
    assert type(make(mask=sliding_window(8)).new_cache(8).self_attention) is StaticKeyValueCache


@given(
    st.sampled_from([None, DenseConfig(), DenseConfig(fused=True), NothingConfig()]),
    st.sampled_from([None, sliding_window(3), sliding_window(2) | global_tokens([0])]),
    st.sampled_from(["t5", "alibi", "rotary_half", None]),
    st.sampled_from([(), ({"mask": causal()}, {"mechanism": DenseConfig(), "position": "none", "experts": 3}, {})]),
)
def test_a_config_goes_through_json_and_back(mechanism, mask, position, layer_pattern):
    config = SMALL.replace(mechanism=mechanism, cross_mechanism=mechanism, mask=mask, position=position)
    config = config.replace(layer_pattern=layer_pattern)
    assert BlockConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert hash(config) is not None


def test_what_a_config_cannot_hold(unchecked):
    with pytest.raises(TypeError, match=r"mechanism=DenseAttention\(\) must be MechanismConfig or None, such as Dense"):
        SMALL.replace(mechanism=DenseAttention())
    with pytest.raises(TypeError, match="cross_mechanism=<function.* must be MechanismConfig"):
        SMALL.replace(cross_mechanism=lambda config: DenseAttention())
    with pytest.raises(ValueError, match="MechanismConfig 'spiral' is unknown, only .*dense, .*import the file"):
        BlockConfig.from_dict(SMALL.to_dict() | {"attention": {"heads": 3, "mechanism": {"type": "spiral"}}})
    with pytest.raises(ValueError, match="layer_pattern has 2 layers, the stack 1; shorten the pattern"):
        make(layer_pattern=({"mask": causal()}, {}))
    with pytest.raises(ValueError, match="all layers share d_model"):
        make(layer_pattern=({"d_model": 6},))
    with pytest.raises(TypeError, match="a block has no 'kv_head'; did you mean 'kv_heads'?"):
        make(layer_pattern=({"kv_head": 1},))
    with pytest.raises(ValueError, match="AttentionConfig has no field 'head'; did you mean 'heads'?"):
        BlockConfig.from_dict(SMALL.to_dict() | {"attention": {"head": 3}})
    with pytest.raises(ValueError, match="custom is a rule of your own"):
        SMALL.replace(mask=Mask(lambda query, key: query > key)).to_dict()


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
        ({"position": "spiral"}, "position='spiral' is unknown; choose one of none, learned, sinusoidal"),
        ({"position": "shaw", "mechanism": DenseConfig()}, "itself a mechanism"),
        ({"dropout": 1.0}, r"dropout=1.0 must be in \[0, 1\)"),
        ({"attention_dropout": -0.1}, r"attention_dropout=-0.1 must be in \[0, 1\)"),
        ({"activation": "tanh"}, "activation='tanh' is unknown"),
        ({"norm": "batch"}, "kind='batch' must be 'layer' or 'rms'"),
        ({"kv_heads": 2}, "heads=3 is not divisible by kv_heads=2"),
    ],
)
def test_wrong_configs_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        TransformerBlock(SMALL.replace(**changes))


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


@pytest.mark.usefixtures("unchecked")
def test_a_misspelled_field_is_told_the_nearest():
    with pytest.raises(TypeError, match="BlockConfig has no field 'd_modell'; did you mean 'd_model'?"):
        BlockConfig(d_modell=64)
    with pytest.raises(TypeError, match="RotaryConfig has no field 'bas'; did you mean 'base'?"):
        RotaryConfig(bas=1e6)
