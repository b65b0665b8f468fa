"""Additive, bilinear and dot-product scores: against loops over pairs, and against dense attention."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import loop_attention, shake
from torch.testing import assert_close

from txlib.attention import (
    AdditiveAttention,
    AdditiveConfig,
    BilinearAttention,
    BilinearConfig,
    DenseAttention,
    DotAttention,
    DotConfig,
    MechanismConfig,
    MultiHeadAttention,
    causal,
    padding,
    recording,
)
from txlib.layers import BlockConfig, TransformerBlock

SCORES = ["additive", "bilinear", "dot"]


def make(kind, head_dim, key_dim, width=6, dropout=0.0):
    if kind == "additive":
        return shake(AdditiveAttention(head_dim, key_dim=key_dim, width=width, dropout=dropout).double())
    if kind == "bilinear":
        return shake(BilinearAttention(head_dim, key_dim=key_dim, dropout=dropout).double())
    return DotAttention(dropout=dropout)


def score(mechanism, s, h):
    """Of one state and one annotation, by the papers' formulas, number by number."""
    weights = {name: weight.tolist() for name, weight in mechanism.state_dict().items()}
    s, h = s.tolist(), h.tolist()

    def dot(x, y):
        return sum(a * b for a, b in zip(x, y, strict=True))

    if isinstance(mechanism, AdditiveAttention):
        rows = zip(weights["v"], weights["query.weight"], weights["key.weight"], strict=True)
        return sum(v * math.tanh(dot(w_a, s) + dot(u_a, h)) for v, w_a, u_a in rows)
    if isinstance(mechanism, BilinearAttention):
        return dot(s, [dot(row, h) for row in weights["key.weight"]])
    return dot(s, h) * mechanism.scale


def loop(mechanism, q, k, v, allowed, bias=None):
    """`loop_attention` with this score for its bias, in place of its own."""
    heads, kv_heads = q.shape[1], k.shape[1]
    scores = torch.tensor(
        [
            [[[score(mechanism, s, h) for h in k[b, i * kv_heads // heads]] for s in q[b, i]] for i in range(heads)]
            for b in range(len(q))
        ],
        dtype=q.dtype,
    )
    nothing = torch.zeros(*k.shape[:1], heads, k.shape[2], q.shape[3], dtype=q.dtype)
    values = v.repeat_interleave(heads // kv_heads, dim=1)
    return loop_attention(q, nothing, values, allowed, scores if bias is None else scores + bias)


@pytest.mark.parametrize("kind", SCORES)
@given(
    queries=st.integers(1, 4),
    keys=st.integers(1, 5),
    kv_heads=st.sampled_from([1, 2, 4]),
    biased=st.booleans(),
    data=st.data(),
)
def test_equals_a_loop_over_pairs(kind, queries, keys, kv_heads, biased, data):
    q, v = torch.randn(2, 4, queries, 3).double(), torch.randn(2, kv_heads, keys, 7).double()
    k = torch.randn(2, kv_heads, keys, 3 if kind == "dot" else 5).double()
    allowed = torch.rand(2, 1, queries, keys) < data.draw(st.sampled_from([0.3, 0.8]))  # rows that see nothing, too
    bias = torch.randn(1, 4, queries, keys).double() if biased else None
    mechanism = make(kind, 3, k.shape[-1])
    out, weights = loop(mechanism, q, k, v, allowed, bias)
    assert_close(mechanism(q, k, v, allowed, bias=bias), out)
    assert_close(mechanism.weights(q, k, allowed, bias=bias), weights)
    projected = mechanism.project(k)
    for t in range(queries):  # the keys' part, computed once
        assert_close(mechanism.weigh(q[:, :, t : t + 1], projected)[:, :, 0], mechanism.weights(q, k)[:, :, t])


@pytest.mark.parametrize("kind", SCORES)
def test_masks_are_rules_or_tensors(kind):
    q, k, v = torch.randn(3, 2, 4, 5, 8).double()
    mechanism, mask = make(kind, 8, 8), causal() & padding([5, 0])
    out = mechanism(q[:2], k[:2], v[:2], mask)
    assert_close(out, mechanism(q[:2], k[:2], v[:2], mask.dense(5, 5)))
    assert not out[1].any() and out[0].all()
    with pytest.raises(ValueError, match=r"mask has shape \(1, 1, 4, 5\)"):
        mechanism(q, k, v, causal().dense(4, 5))


def test_a_scaled_dot_product_is_dense_attention():
    q, k, v = torch.randn(2, 4, 5, 16), torch.randn(2, 2, 6, 16), torch.randn(2, 2, 6, 3)
    bias, mask = torch.randn(1, 4, 5, 6), padding([6, 3])
    dot, dense = DotAttention(16**-0.5), DenseAttention()
    assert_close(dot(q, k, v, mask, bias=bias), dense(q, k, v, mask, bias=bias))
    assert_close(dot.weights(q, k, mask), dense.weights(q, k, mask))
    assert_close(DotAttention()(q, k, v, mask), dense(4 * q, k, v, mask))


def test_a_bilinear_score_with_the_identity_is_the_dot_product():
    q, k, v = torch.randn(3, 2, 4, 5, 8)
    bilinear = BilinearAttention(8)
    torch.nn.init.eye_(bilinear.key.weight)
    assert_close(bilinear(q, k, v), DotAttention()(q, k, v))


def test_scores_that_saturate_give_no_nan():
    """Scores of ±1e4, and gradients through rows that see nothing."""
    q, k, v = (100 * torch.randn(2, 1, 3, 4)).requires_grad_(), 100 * torch.randn(2, 1, 5, 4), torch.randn(2, 1, 5, 4)
    for kind in SCORES:
        out = make(kind, 4, 4).float()(q, k, v, padding([5, 0]))
        (gradient,) = torch.autograd.grad(out.square().sum(), q)
        assert out.isfinite().all() and gradient.isfinite().all() and not gradient[1].any()


@pytest.mark.parametrize("kind", SCORES)
def test_dropout_only_while_training(kind, unchecked):
    q, k, v = torch.randn(3, 2, 4, 5, 8).double()
    mechanism = make(kind, 8, 8, dropout=0.5)
    averages = torch.stack([mechanism.train()(q, k, v) for _ in range(500)])
    out = mechanism.eval()(q, k, v)
    assert torch.equal(out, mechanism(q, k, v)) and not torch.equal(averages[0], out)
    assert_close(averages.mean(dim=0), out, atol=0.3, rtol=0)


@pytest.mark.parametrize("config", [AdditiveConfig(), AdditiveConfig(width=5), BilinearConfig(), DotConfig(0.5)])
def test_a_block_is_made_with_them(config):
    block_config = BlockConfig.of_sizes(
        12, 4, 16, attention_dropout=0.1, position="alibi", mechanism=config, cross_mechanism=config
    )
    assert MechanismConfig.from_dict(config.to_dict()) == config
    block = TransformerBlock(block_config, cross=True).eval()
    for layer in (block.self_attention, block.cross_attention):
        assert layer.mechanism.dropout == 0.1
        assert getattr(layer.mechanism, "scale", 0.5) == 0.5
        if isinstance(config, AdditiveConfig):
            assert layer.mechanism.key.weight.shape == (config.width or 3, 3)
    x, memory = torch.randn(2, 5, 12), torch.randn(2, 6, 12)
    with recording(block) as weights:
        out = block(x, causal(), memory)
    assert out.shape == x.shape
    assert_close(weights["self_attention"][0].sum(-1), torch.ones(2, 4, 5))
    assert_close(block(x[:, :3], causal(), memory), out[:, :3])


def test_wrong_sizes_are_refused(unchecked):
    q, k, v = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 3, 6), torch.randn(1, 1, 3, 4)
    with pytest.raises(ValueError, match="DotAttention needs queries and keys of one width, got 4 and 6; Bilinear"):
        DotAttention()(q, k, v)
    for kind in (AdditiveAttention, BilinearAttention):
        with pytest.raises(ValueError, match=f"{kind.__name__} was made for keys of width 4, got 6; set key_dim"):
            kind(4)(q, k, v)
        with pytest.raises(ValueError, match=f"{kind.__name__} was made for queries of width 5, got 4; set head_dim"):
            kind(5, key_dim=6)(q, k, v)
        with pytest.raises(ValueError, match="key_dim=0 must be at least 1"):
            kind(5, key_dim=0)
    with pytest.raises(ValueError, match="width=0 must be at least 1"):
        AdditiveAttention(4, width=0)
    with pytest.raises(ValueError, match=r"dropout=1.0 must be in \[0, 1\)"):
        DotAttention(dropout=1.0)


def test_multi_head_attention_takes_them():
    layer = MultiHeadAttention(12, 3, kv_heads=1, mechanism=shake(AdditiveAttention(4)))
    x = torch.randn(2, 5, 12)
    q, k, v = (layer.split(each) for each in layer.project(x, x))
    assert_close(layer(x), layer.output(layer.mechanism(q, k, v).transpose(1, 2).flatten(2)))
