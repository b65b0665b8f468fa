"""Linformer and Nyström: equal to dense attention where they must be, to plain loops elsewhere; padding, refusals."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import loop_attention, shake
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from txlib import load_pretrained, save_pretrained
from txlib.attention import (
    LayerContext,
    Linformer,
    LinformerConfig,
    MultiHeadAttention,
    Nystrom,
    NystromConfig,
    attention,
    causal,
    full,
    padding,
    padding_from_mask,
    recording,
    sliding_window,
)
from txlib.attention.low_rank import pseudo_inverse, segment_means
from txlib.layers import BlockConfig, TransformerBlock
from txlib.models import (
    GPT,
    BertForMaskedLM,
    Encoder,
    EncoderConfig,
    GPTConfig,
    Transformer,
    TransformerConfig,
    UniversalTransformer,
    UniversalTransformerConfig,
)

SHARING = ("none", "headwise", "key-value")
lengths = st.lists(st.integers(0, 6), min_size=2, max_size=2)


def heads(queries=6, keys=6, kv_heads=2, dtype=torch.float64):
    """q, k, v of two sentences and two heads; values have a width of their own."""
    return [torch.randn(2, *size, dtype=dtype) for size in ((2, queries, 4), (kv_heads, keys, 4), (kv_heads, keys, 3))]


def each_head(x):
    return x.repeat_interleave(2 // x.shape[1], 1)


def linformer(sharing="headwise", keys=3, kv_heads=2):
    return shake(Linformer(9, keys, sharing=sharing, kv_heads=kv_heads).double())


def loop_linformer(layer, q, k, v, real):
    """One sentence, one head at a time: mixtures are sums over the real positions."""
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    projection, share = layer.projection, q.shape[1] // k.shape[1]
    for b in range(len(q)):
        for h in range(q.shape[1]):
            own = h // share if len(projection.key) > 1 else 0
            e = projection.key[own]
            f = e if projection.value is None else projection.value[own]
            seen = [j for j in range(k.shape[2]) if real[b, j]]
            if not seen:
                continue
            few_k = torch.stack([sum(row[j] * k[b, h // share, j] for j in seen) for row in e])
            few_v = torch.stack([sum(row[j] * v[b, h // share, j] for j in seen) for row in f])
            out[b, h] = loop_attention(q[b : b + 1, h : h + 1], few_k[None, None], few_v[None, None])[0][0, 0]
    return out


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("sharing", SHARING)
def test_linformer_with_an_identity_is_dense(sharing, kv_heads):
    layer = Linformer(6, 6, sharing=sharing, kv_heads=kv_heads).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.eye(6))
    q, k, v = heads(4, kv_heads=kv_heads)
    expected = attention(q, each_head(k), each_head(v))
    assert_close(layer(q, k, v), expected)
    assert_close(layer(q, k, v, full()), expected)


@settings(max_examples=12)
@given(st.sampled_from(SHARING), lengths, st.sampled_from([1, 2]), st.integers(1, 5))
def test_linformer_is_what_its_equation_says(sharing, real, kv_heads, few):
    layer, (q, k, v) = linformer(sharing, few, kv_heads), heads(3, kv_heads=kv_heads)
    marked = padding(real).dense(1, 6)[:, 0, 0]
    expected = loop_linformer(layer, q, k, v, marked)
    assert_close(layer(q, k, v, padding(real)), expected)
    assert_close(layer(q, k, v, marked[:, None, None]), expected)
    assert_close(layer.weights(q, k, padding(real)) @ each_head(v), expected)


MECHANISMS = {
    "linformer": linformer,
    "linformer, none shared": lambda: linformer("none"),
    "nystrom": lambda: Nystrom(3),
    "nystrom, residual": lambda: shake(Nystrom(3, residual=3, heads=2).double()),
}


@pytest.mark.parametrize("name", MECHANISMS)
@settings(max_examples=8)
@given(real=lengths, more=st.integers(0, 3))
def test_padding_changes_nothing(name, real, more):
    """Neither how much of it there is nor what it holds, not even NaN; an empty sentence gives zeros."""
    layer, (q, k, v) = MECHANISMS[name](), heads()
    out = layer(q, k, v, padding(real))
    for b, length in enumerate(real):
        if length:
            alone = layer(*(each[b : b + 1, :, :length] for each in (q, k, v)))
            assert_close(out[b : b + 1, :, :length], alone)
        else:
            assert (out[b] == 0).all()
    longer = [torch.cat([each, torch.randn(2, 2, more, each.shape[-1]).double()], dim=2) for each in (q, k, v)]
    for each in longer[1:]:
        each.masked_fill_(~padding(real).dense(1, 6 + more).mT, torch.nan)
    assert_close(layer(*longer, padding(real))[:, :, :6], out)


@pytest.mark.parametrize("name", MECHANISMS)
def test_gradients_are_right_and_padding_has_none(name):
    layer, mask = MECHANISMS[name](), padding([4, 2])
    q, k, v = (each.requires_grad_() for each in heads(4, 4))
    assert torch.autograd.gradcheck(lambda q, k, v: layer(q, k, v, mask), (q, k, v), fast_mode=True)
    layer(q, k, v, mask)[:, :, :2].sum().backward()
    assert (k.grad[1, :, 2:] == 0).all() and (v.grad[1, :, 2:] == 0).all() and v.grad[0].abs().amin() > 0


@pytest.mark.parametrize("name", MECHANISMS)
def test_it_refuses_masks_that_differ_from_query_to_query(name):
    layer, (q, k, v) = MECHANISMS[name](), heads()
    who = type(layer).__name__
    for mask in (causal(), causal() & padding([6, 2]), causal() & sliding_window(2)):
        with pytest.raises(ValueError, match=f"{who} is not causal: .* hides later ones: .*; use DenseAttention"):
            layer(q, k, v, mask)
    with pytest.raises(ValueError, match=rf"{who} mixes keys .* query to query: sliding_window\(2\); use Dense"):
        layer(q, k, v, sliding_window(2))
    with pytest.raises(ValueError, match=r"query to query: a tensor of shape \(1, 1, 6, 6\)"):
        layer(q, k, v, causal().dense(6))
    assert_close(layer(q, k, v, sliding_window(5)), layer(q, k, v))  # wide enough to hide nothing
    assert_close(layer(q, k, v, torch.ones(1, 1, 6, 6).bool()), layer(q, k, v))


WRONG = [
    (lambda: Linformer(8, 9), "keys=9 must be from 1 to max_length=8"),
    (lambda: Linformer(8, 0), "keys=0 must be from 1"),
    (lambda: Linformer(8, 2, sharing="layers"), "sharing='layers' is unknown; choose one of none, headwise"),
    (lambda: Linformer(8, 2, sharing="none"), "say how many, kv_heads=…"),
    (lambda: Linformer(4, 2)(*heads(dtype=torch.float32)), "made for max_length=4 positions, got 6 keys"),
    (lambda: Nystrom(0), "landmarks=0 must be at least 1"),
    (lambda: Nystrom(4, iterations=0), "iterations=0 must be at least 1"),
    (lambda: Nystrom(4, residual=4, heads=2), "residual=4 must be odd"),
    (lambda: Nystrom(4, residual=3), "say how many, heads=…"),
    (lambda: Nystrom(4, dropout=1.0), r"dropout=1.0 must be in \[0, 1\)"),
    (lambda: Nystrom(4)(*heads(5)), "one sequence, got 5 queries and 6 keys; .* Linformer or DenseAttention"),
]


@pytest.mark.parametrize("call, words", WRONG)
def test_wrong_sizes_say_what_to_do(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_nystrom_with_each_token_a_landmark_is_dense():
    q, k, v = heads(kv_heads=1)
    for mask in (None, padding([6, 1])):
        for landmarks in (6, 20):
            out = Nystrom(landmarks, iterations=20)(q, k, v, mask)
            assert_close(out, attention(q, each_head(k), each_head(v), mask))
    near = (Nystrom(6)(q, k, v) - attention(q, each_head(k), each_head(v))).abs().amax()
    assert 1e-6 < near < 0.3  # six products do not quite reach the inverse


@settings(max_examples=12)
@given(lengths, st.integers(1, 6))
def test_nystrom_is_what_its_equation_says(real, landmarks):
    q, k, v = heads()
    layer = Nystrom(landmarks, iterations=40)
    out = layer(q, k, v, padding(real))
    assert_close(layer.weights(q, k, padding(real)) @ v, out)
    for b, length in enumerate(real):
        if not length:
            continue
        cut = [length * i / min(landmarks, length) for i in range(min(landmarks, length) + 1)]
        parts = [[j for j in range(length) if low <= j < high] for low, high in zip(cut, cut[1:], strict=False)]
        for h in range(2):
            some_q, some_k = (torch.stack([each[b, h, part].mean(0) for part in parts]) for each in (q, k))
            near, core, far = (
                (one @ other.T / 4**0.5).softmax(-1)
                for one, other in ((q[b, h], some_k), (some_q, some_k), (some_q, k[b, h, :length]))
            )
            expected = near @ torch.linalg.pinv(core) @ far @ v[b, h, :length]
            assert_close(out[b, h, :length], expected[:length], atol=1e-6, rtol=1e-5)


def test_segments_are_as_equal_as_can_be():
    real = torch.tensor([[1] * 10, [0, 1, 1, 0, 1, 1, 1, 0, 0, 0], [1, 1] + [0] * 8, [0] * 10]).bool()[:, None, None]
    means, used = segment_means(real, 4)
    sizes = (means > 0).sum(-1)[:, 0]
    assert sizes.tolist() == [[3, 2, 3, 2], [2, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]
    assert used[:, 0, 0].tolist() == (sizes > 0).tolist()
    assert_close(means.sum(-1)[:, 0], (sizes > 0).float())
    assert ((means.sum(2) > 0)[:, 0] == real[:, 0, 0]).all()  # each real token is in one


def test_the_pseudo_inverse_is_the_pseudo_inverse():
    matrix = torch.randn(2, 3, 5, 5, dtype=torch.float64).softmax(-1)
    matrix[0, 0, 3], matrix[0, 0, :, 3] = 0, 0  # an empty segment
    assert_close(pseudo_inverse(matrix, 40), torch.linalg.pinv(matrix), atol=1e-8, rtol=1e-6)
    assert (pseudo_inverse(torch.zeros(2, 2)) == 0).all()
    assert_close(pseudo_inverse(matrix[:1], 6), pseudo_inverse(matrix, 6)[:1])  # its batch does not matter
    with torch.autocast("cpu", torch.bfloat16):
        found = pseudo_inverse(matrix.float(), 20)
    assert_close(found, torch.linalg.pinv(matrix.float()), atol=1e-2, rtol=1e-2)


def test_the_residual_is_a_convolution_of_each_heads_values():
    layer, (q, k, v) = shake(Nystrom(3, residual=3, heads=2).double()), heads()
    plain = Nystrom(3)(q, k, v)
    wide, kernel = torch.nn.functional.pad(v, (0, 0, 1, 1)), layer.residual.weight[:, 0, :, 0]  # (heads, 3)
    expected = torch.stack([sum(kernel[h, t] * wide[:, h, t : t + 6] for t in range(3)) for h in range(2)], dim=1)
    assert_close(layer(q, k, v) - plain, expected)


@pytest.mark.parametrize(
    "make", [lambda: Linformer(512, 16), lambda: Nystrom(16), lambda: Nystrom(16, residual=5, heads=2)]
)
def test_the_cost_grows_with_the_length(make):
    layer = make()
    if isinstance(layer, Linformer):
        layer.dense.fused = False  # products that are counted

    def operations(length):
        q = torch.randn(1, 2, length, 8, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            layer(q, q, q).sum().backward()
        return counter.get_total_flops()

    first, second, third = operations(128), operations(256), operations(512)
    assert third - second == 2 * (second - first) > 0  # a straight line, but for what the landmarks cost


CONFIGS = [
    LinformerConfig(4),
    LinformerConfig(4, "none"),
    LinformerConfig(4, "key-value"),
    LinformerConfig(4, "layerwise"),
    NystromConfig(4),
    NystromConfig(4, 12, residual=3),
]
IDS = torch.randint(3, 30, (3, 9), generator=torch.Generator().manual_seed(0))
REAL = padding([9, 5, 2]).dense(1, 9)[:, 0, 0].int()


def encoder(mechanism, kind=Encoder, **options):
    block = BlockConfig.of_sizes(16, 4, 20, position="learned", mechanism=mechanism, kv_heads=2, **options)
    return kind(EncoderConfig(30, block, layers=3, max_length=12))


@pytest.mark.parametrize("config, kind", [*((config, Encoder) for config in CONFIGS), (CONFIGS[3], BertForMaskedLM)])
def test_an_encoder_by_one_config(config, kind, tmp_path):
    model = shake(encoder(config, kind)).eval()
    out = model(IDS, REAL)[0]
    alone = model(IDS[1:2, :5])[0]
    assert_close(out[1:2, :5], alone, rtol=1e-4, atol=1e-4)
    save_pretrained(model, tmp_path)
    again = load_pretrained(tmp_path)
    assert again.config == model.config
    assert_close(again(IDS, REAL)[0], out, rtol=0, atol=0)
    out.sum().backward()
    assert all(parameter.grad is not None for name, parameter in model.named_parameters() if "mechanism" in name)


def test_all_layers_may_share_one_projection():
    model = encoder(LinformerConfig(4, "layerwise"))
    own = [name for name in model.state_dict() if "mechanism" in name]
    assert own == ["encoder.layers.0.self_attention.mechanism.own.key"]
    first, *others = (layer.self_attention.mechanism for layer in model.encoder.layers)
    assert all(other.projection is first.own for other in others)
    for same in (copy.deepcopy(model), copy.deepcopy(model).double()):
        first, *others = (layer.self_attention.mechanism for layer in same.encoder.layers)
        assert all(other.projection is first.own for other in others)
        assert first.own is not model.encoder.layers[0].self_attention.mechanism.own
    counts = {
        sharing: sum(
            each.numel() for name, each in encoder(LinformerConfig(4, sharing)).named_parameters() if ".own." in name
        )
        for sharing in (*SHARING, "layerwise")
    }  # 3 layers, 2 key heads, 4 × 12 each
    assert counts == {"none": 3 * 2 * 2 * 48, "headwise": 3 * 2 * 48, "key-value": 3 * 48, "layerwise": 48}


def test_a_translator_reads_its_memory_through_linformer():
    block = BlockConfig.of_sizes(16, 4, 20, position="learned", cross_mechanism=LinformerConfig(4, "layerwise"))
    model = shake(Transformer(TransformerConfig(30, block, 2, 2, max_length=12))).eval()
    out = model(IDS, REAL, IDS[:, :6]).logits
    assert_close(out[1:2], model(IDS[1:2, :5], None, IDS[1:2, :6]).logits, rtol=1e-4, atol=1e-4)
    later = IDS[:, :6].clone()
    later[:, 4:] = 3
    assert_close(model(IDS, REAL, later).logits[:, :4], out[:, :4])  # no target token sees a later one
    memory, cache = model.encode(IDS, REAL), model.new_cache()
    steps = [model.decode(IDS[:, i : i + 1], memory, REAL, cache) for i in range(6)]
    assert_close(model.logits(torch.cat(steps, dim=1)), out, rtol=1e-4, atol=1e-4)


def block(mechanism, position="learned"):
    return BlockConfig.of_sizes(16, 4, 20, position=position, mechanism=mechanism)


REFUSED = [
    (lambda mechanism: GPT(GPTConfig(30, block(mechanism))), "is not causal: .* use it in an encoder"),
    (lambda mechanism: Transformer(TransformerConfig(30, block(mechanism))), "is not causal"),
    (lambda mechanism: UniversalTransformer(UniversalTransformerConfig(30, block(mechanism))), "is not causal"),
    (lambda mechanism: Encoder(EncoderConfig(30, block(mechanism, "alibi"))), "takes no position bias"),
    (lambda mechanism: Encoder(EncoderConfig(30, block(mechanism, "t5"))), "takes no position bias"),
]


@pytest.mark.parametrize("mechanism", [LinformerConfig(4), NystromConfig(4)])
@pytest.mark.parametrize("make, words", REFUSED)
def test_what_cannot_be_is_refused_when_it_is_built(mechanism, make, words):
    with pytest.raises(ValueError, match=words):
        make(mechanism)


def test_a_block_alone_has_no_longest_length():
    block = BlockConfig.of_sizes(
        16, 4, 20, position="learned", mechanism=LinformerConfig(4), cross_mechanism=NystromConfig()
    )
    with pytest.raises(ValueError, match="this model sets no max_length"):
        TransformerBlock(block)
    with pytest.raises(ValueError, match="use LinformerConfig for cross-attention"):
        TransformerBlock(block, cross=True, layer=LayerContext(max_length=12))


@pytest.mark.parametrize("mechanism", [Linformer(9, 3), Nystrom(3)])
def test_recording_shows_what_each_query_takes(mechanism):
    layer, x = MultiHeadAttention(12, 2, mechanism=mechanism), torch.randn(2, 9, 12)
    mask = padding_from_mask(torch.tensor([[1] * 9, [1] * 5 + [0] * 4]))
    with recording(layer) as weights:
        out = layer(x, mask=mask)
    (taken,) = weights[""]
    assert taken.shape == (2, 2, 9, 9) and (taken[1, :, :, 5:] == 0).all()
    values = layer.split(layer.value(x))
    assert_close(layer.output((taken @ values).transpose(1, 2).flatten(2)), out, rtol=1e-4, atol=1e-5)
