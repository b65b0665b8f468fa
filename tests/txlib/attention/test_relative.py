"""Relative attention against the papers' formulas, pair by pair."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import loop_attention, shake
from torch import nn
from torch.testing import assert_close

from txlib.attention import (
    AlibiBias,
    BucketBias,
    DenseAttention,
    MultiHeadAttention,
    ShawAttention,
    SkewedBias,
    alibi_slopes,
    attention,
    causal,
    padding,
    skew,
    sliding_window,
)
from txlib.attention.relative import relative_distances

DOUBLE = {"dtype": torch.float64}


class Biased(nn.Module):
    """Dense attention with a position bias, as a layer calls them."""

    def __init__(self, part, **options):
        super().__init__()
        self.part, self.dense = part, DenseAttention(**options)

    def forward(self, q, k, v, mask=None):
        self.part.check(mask, q, k)
        return self.dense(q, k, v, mask, bias=self.part(q, k.shape[-2]))

    def weights(self, q, k, mask=None):
        return self.dense.weights(q, k, mask, bias=self.part(q, k.shape[-2]))


few_and_many = st.tuples(st.integers(1, 6), st.integers(0, 4)).map(lambda pair: (pair[0], sum(pair)))
"""(queries, keys) with no more queries than keys."""


def qkv(query, key, batch=2, heads=3, head_dim=4, **options):
    return [torch.randn(batch, heads, n, head_dim, **DOUBLE, **options) for n in (query, key, key)]


@given(few_and_many)
def test_distances(lengths):
    query, key = lengths
    expected = torch.tensor([[j - (key - query + i) for j in range(key)] for i in range(query)])
    assert torch.equal(relative_distances(query, key), expected)


@given(few_and_many, st.integers(1, 4), st.booleans())
def test_shaw_against_the_naive_tensors(lengths, max_distance, masked):
    """Shaw et al. 2018, eq. 3 and 4, with a (query, key, head_dim) tensor of vectors for keys and one for values."""
    query, key = lengths
    q, k, v = qkv(query, key)
    mechanism = shake(ShawAttention(4, max_distance).double())
    row = torch.tensor(
        [
            [min(max(j - (key - query + i), -max_distance), max_distance) + max_distance for j in range(key)]
            for i in range(query)
        ]
    )
    a_k, a_v = mechanism.keys[row], mechanism.values[row]  # (query, key, head_dim)
    score = torch.einsum("bhid,bhijd->bhij", q, k[:, :, None] + a_k) / 4**0.5
    mask = padding([key, max(1, key - 2)]) if masked else None
    if masked:
        score = score.masked_fill(~mask.dense(query, key), -torch.inf)
    weights = score.softmax(-1)
    assert_close(mechanism.weights(q, k, mask), weights)
    assert_close(mechanism(q, k, v, mask), torch.einsum("bhij,bhijd->bhid", weights, v[:, :, None] + a_v))


def test_shaw_gradient():
    q, k, v = qkv(3, 4, batch=1, heads=2, head_dim=2, requires_grad=True)
    mechanism = shake(ShawAttention(2, max_distance=2).double())
    parameters = tuple(mechanism.parameters())
    assert torch.autograd.gradcheck(lambda q, k, v, *_: mechanism(q, k, v, causal().shift(1)), (q, k, v, *parameters))


@given(few_and_many)
def test_skew_against_picking_entries(lengths):
    query, key = lengths
    by_distance = torch.randn(2, 3, query, key)
    skewed = skew(by_distance)
    for i in range(query):
        position = key - query + i
        for j in range(position + 1):
            column = key - 1 - (position - j)  # the last column belongs to distance 0
            assert torch.equal(skewed[..., i, j], by_distance[..., i, column])


@given(few_and_many)
def test_skewed_against_a_loop(lengths):
    query, key = lengths
    q, k, v = qkv(query, key)
    mechanism = shake(Biased(SkewedBias(3, 4, max_length=11)).double())
    bias = q.new_zeros(2, 3, query, key)
    for i in range(query):
        for j in range(key):
            distance = key - query + i - j
            if distance >= 0:
                bias[:, :, i, j] = (q[:, :, i] * mechanism.part.distances[:, 10 - distance]).sum(-1) / 4**0.5
    mask = causal().shift(key - query)
    out, weights = loop_attention(q, k, v, mask.dense(query, key), bias.detach())
    assert_close(mechanism.weights(q, k, mask), weights)
    assert_close(mechanism(q, k, v, mask), out)


def test_skewed_gradient():
    q, k, v = qkv(3, 3, batch=1, heads=2, head_dim=2, requires_grad=True)
    mechanism = shake(Biased(SkewedBias(2, 2, max_length=5)).double())
    assert torch.autograd.gradcheck(
        lambda q, k, v, _: mechanism(q, k, v, causal()), (q, k, v, mechanism.part.distances)
    )


@pytest.mark.parametrize(
    "make", [lambda: ShawAttention(4, 3), lambda: Biased(SkewedBias(3, 4, 16)), lambda: Biased(AlibiBias(3))]
)
def test_fewer_queries_are_the_last_rows(make):
    mechanism = shake(make().double())
    q, k, v = qkv(9, 9)
    whole = mechanism(q, k, v, causal())
    for new in (1, 2, 5):
        assert_close(mechanism(q[:, :, -new:], k, v, causal().shift(9 - new)), whole[:, :, -new:])


@pytest.mark.parametrize(
    "mask", [None, padding([4, 4]), ~causal(), causal().shift(1), causal().dense(4) | (torch.arange(4) == 3)]
)
def test_skewed_refuses_to_see_the_future(mask):
    q, k, v = qkv(4, 4)
    with pytest.raises(ValueError, match="SkewedBias is causal.*add & causal()"):
        Biased(SkewedBias(3, 4).double())(q, k, v, mask)


def test_skewed_needs_no_mask_for_the_newest_token():
    q, k, v = qkv(1, 5)
    mechanism = shake(Biased(SkewedBias(3, 4)).double())
    assert_close(mechanism(q, k, v), mechanism(q, k, v, causal().shift(4)))


def test_a_skewed_query_that_sees_nothing_gets_zeros():
    q, k, v = qkv(4, 4, requires_grad=True)
    mechanism = Biased(SkewedBias(3, 4).double())
    out = mechanism(q, k, v, causal() & padding([0, 4]))
    out.square().sum().backward()
    assert (out[0] == 0).all() and (out[1] != 0).any()
    assert all(x.grad.isfinite().all() for x in (q, k, v, mechanism.part.distances))


def test_published_slopes():
    """Press et al. 2022, §3: 1/2, 1/4 … 1/256 for 8 heads; 12 heads are those and four between, 1/√2 to 1/(8√2)."""
    eight = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert_close(alibi_slopes(8), torch.tensor(eight))
    assert_close(alibi_slopes(12), torch.tensor(eight + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]))
    assert_close(alibi_slopes(16)[:4], torch.tensor([2**-0.5, 2**-1, 2**-1.5, 2**-2]))
    assert alibi_slopes(1) == 2**-8


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 20, 32])
def test_slopes_equal_bloom(heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)  # (heads, 1, key): slope · position
    assert_close(alibi_slopes(heads), bloom[:, 0, 1])


@given(few_and_many)
def test_alibi_against_a_loop(lengths):
    query, key = lengths
    q, k, v = qkv(query, key, heads=8)
    bias = q.new_tensor(
        [[[-(2.0 ** -(h + 1)) * abs(key - query + i - j) for j in range(key)] for i in range(query)] for h in range(8)]
    )[None]
    mechanism = Biased(AlibiBias(8).double())
    for mask in (None, causal().shift(key - query)):
        allowed = None if mask is None else mask.dense(query, key)
        assert_close(mechanism(q, k, v, mask), loop_attention(q, k, v, allowed, bias)[0])


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("buckets, max_distance", [(32, 128), (8, 20), (6, 7)])
def test_buckets_equal_those_of_t5(bidirectional, buckets, max_distance):
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-300, 301)
    ours = BucketBias(3, buckets=buckets, max_distance=max_distance, bidirectional=bidirectional).bucket(distance)
    theirs = T5Attention._relative_position_bucket(distance, bidirectional, buckets, max_distance)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("bidirectional", [True, False])
@given(few_and_many, st.integers(1, 3))
def test_buckets_against_a_loop(bidirectional, lengths, heads):
    query, key = lengths
    q, k, v = qkv(query, key, heads=heads)
    part = shake(BucketBias(heads, buckets=8, max_distance=5, bidirectional=bidirectional).double())
    bias = q.new_zeros(1, heads, query, key)
    for i in range(query):
        for j in range(key):
            bias[0, :, i, j] = part.weight[part.bucket(torch.tensor(j - (key - query + i)))].detach()
    assert_close(Biased(part)(q, k, v), loop_attention(q, k, v, None, bias)[0])


@pytest.mark.parametrize("make", [lambda: AlibiBias(3), lambda: BucketBias(3, buckets=6, max_distance=4)])
@given(few_and_many)
def test_a_bias_at_positions_equals_the_dense_one(make, lengths):
    query, key = lengths
    bias = make()(torch.randn(2, 3, query, 4), key)
    dense = bias.dense(query, key)
    assert dense.shape == (1, 3, query, key)
    i, j = torch.arange(query)[:, None], torch.arange(key)
    assert_close(bias.at(i, j)[None], dense)
    assert_close(bias.at(i[-1:], j[:1])[:, 0, 0], dense[0, :, -1, 0])


def test_buckets_learn():
    q, k, v = qkv(3, 4, batch=1, heads=2, head_dim=2, requires_grad=True)
    mechanism = Biased(shake(BucketBias(2, buckets=4, max_distance=4).double()))
    weight = mechanism.part.weight
    assert torch.autograd.gradcheck(lambda q, k, v, _: mechanism(q, k, v, causal().shift(1)), (q, k, v, weight))


PARTS = {
    "alibi": lambda: AlibiBias(4),
    "t5": lambda: BucketBias(4, buckets=6, max_distance=5, bidirectional=False),
    "skewed": lambda: SkewedBias(4, 4, max_length=16),
}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("name", PARTS)
def test_a_bias_joins_any_mask_and_shared_heads(name, kv_heads, fused):
    """Against the definition, with all written out."""
    layer = MultiHeadAttention(
        16,
        4,
        kv_heads=kv_heads,
        mechanism=DenseAttention(fused=fused),
        mask=sliding_window(3),
        position_bias=PARTS[name](),
    )
    layer = shake(layer.double())
    x = torch.randn(2, 9, 16, **DOUBLE)
    q, k, v = (layer.split(part(x)) for part in (layer.query, layer.key, layer.value))
    k, v = (each.repeat_interleave(4 // kv_heads, dim=1) for each in (k, v))
    bias = layer.position_bias(q, 9)
    allowed = (causal() & padding([9, 4]) & sliding_window(3)).dense(9)
    out = attention(q, k, v, allowed, bias=bias if name == "skewed" else bias.dense(9, 9).double())
    assert_close(layer(x, mask=causal() & padding([9, 4])), layer.output(out.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: BucketBias(2, buckets=2), "at least 2 buckets per direction"),
        (lambda: BucketBias(2, buckets=8, max_distance=2), "max_distance=2"),
        (lambda: ShawAttention(4, 0), "max_distance >= 1, got 0"),
        (lambda: alibi_slopes(0), "heads >= 1, got 0"),
        (lambda: ShawAttention(4).double()(*qkv(5, 3)), "5 queries for 3 keys"),
        (lambda: Biased(AlibiBias(3))(*qkv(5, 3)), "5 queries for 3 keys"),
        (lambda: Biased(SkewedBias(3, 4).double())(*qkv(5, 3)), "5 queries for 3 keys"),
        (
            lambda: Biased(SkewedBias(3, 4, max_length=4).double())(*qkv(5, 5), causal()),
            "max_length=4 positions, got 5",
        ),
    ],
)
def test_wrong_sizes_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
