"""`attention` and `DenseAttention` against plain loops and torch's own kernel."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from oracles import loop_attention
from torch.testing import assert_close

from txlib.attention import DenseAttention, ShawAttention, attention, attention_weights, causal, padding

sizes = st.tuples(*(st.integers(1, 3),) * 2, *(st.integers(1, 6),) * 2, st.integers(1, 5))


def qkv(batch, heads, query, key, head_dim, dtype=torch.float64, **options):
    shapes = (batch, heads, query, head_dim), (batch, heads, key, head_dim), (batch, heads, key, head_dim)
    return [torch.randn(shape, dtype=dtype, **options) for shape in shapes]


def random_mask(draw, batch, heads, query, key):
    """A mask that may be shared along each axis but the keys', and that may leave queries with nothing."""
    shape = [draw(st.sampled_from((1, size))) for size in (batch, heads, query)]
    return torch.rand(*shape, key) < draw(st.sampled_from((0.0, 0.3, 0.8)))


@given(sizes, st.data())
def test_equals_a_loop_with_any_mask_bias_and_scale(size, data):
    q, k, v = qkv(*size)
    batch, heads, query, key, _ = size
    mask = random_mask(data.draw, batch, heads, query, key)
    bias = torch.randn(data.draw(st.sampled_from((1, batch))), heads, query, key, dtype=torch.float64)
    scale = data.draw(st.sampled_from((None, 0.0, 0.7)))
    out, weights = attention(q, k, v, mask, bias=bias, scale=scale, return_weights=True)
    expected_out, expected_weights = loop_attention(q, k, v, mask, bias, scale)
    assert_close(weights, expected_weights)
    assert_close(out, expected_out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("causally", [False, True])
def test_equals_torch(dtype, causally):
    q, k, v = qkv(2, 3, 17, 17, 8, dtype)
    ours = attention(q, k, v, causal() if causally else None)
    assert_close(ours, F.scaled_dot_product_attention(q, k, v, is_causal=causally))


def test_bfloat16_is_close_to_double():
    q, k, v = qkv(2, 2, 32, 32, 16)
    ours = attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), causal())
    assert ours.dtype == torch.bfloat16
    assert_close(ours.double(), attention(q, k, v, causal()), atol=0.05, rtol=0.05)


def test_values_may_be_wider_than_keys():
    q, k, _ = qkv(2, 1, 3, 4, 5)
    v = torch.randn(2, 1, 4, 7, dtype=torch.float64)
    assert_close(attention(q, k, v), F.scaled_dot_product_attention(q, k, v))


def test_huge_scores_do_not_overflow():
    q, k, v = qkv(1, 1, 4, 4, 4, torch.float32)
    out, weights = attention(q * 1e18, k * 1e18, v, causal(), return_weights=True)
    assert out.isfinite().all()
    assert_close(weights.sum(-1), torch.ones(1, 1, 4))


@given(sizes, st.data())
def test_weights_of_a_query_sum_to_one_or_are_all_zero(size, data):
    q, k, _ = qkv(*size, dtype=torch.float32)
    mask = random_mask(data.draw, *size[:4])
    weights = attention_weights(q, k, mask)
    mask = mask.expand(weights.shape)
    assert (weights >= 0).all() and (weights[~mask] == 0).all()
    assert_close(weights.sum(-1), mask.any(-1).float())


def test_gradient():
    q, k, v = qkv(2, 2, 3, 4, 2, requires_grad=True)
    bias = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, 1, 3, 4) < 0.6
    mask[0, 0, 1] = False  # one query sees nothing
    assert torch.autograd.gradcheck(lambda q, k, v, bias: attention(q, k, v, mask, bias=bias), (q, k, v, bias))


MECHANISMS = {
    "definition": lambda: DenseAttention(fused=False),
    "fused": lambda: DenseAttention(fused=True),
    "shaw": lambda: ShawAttention(8, max_distance=2),
}


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_query_that_sees_nothing_gets_zeros_and_no_gradient(name, dtype):
    q, k, v = qkv(3, 2, 5, 5, 8, dtype, requires_grad=True)
    mask = padding([0, 3, 5]).dense(5) & causal().dense(5)
    mask[2, 0, 4] = False
    out = MECHANISMS[name]().to(dtype)(q, k, v, mask)
    assert (out[0] == 0).all() and (out[2, :, 4] == 0).all() and (out[1] != 0).any()
    out.square().sum().backward()
    for gradient in (q.grad, k.grad, v.grad):
        assert gradient.isfinite().all() and (gradient[0] == 0).all() and (gradient[1] != 0).any()
    assert (q.grad[2, :, 4] == 0).all()


@given(sizes, st.data())
def test_fused_kernel_and_definition_agree(size, data):
    inputs = [qkv(*size, requires_grad=True)]
    inputs.append([x.detach().clone().requires_grad_() for x in inputs[0]])
    mask = random_mask(data.draw, *size[:4]) if data.draw(st.booleans()) else None
    outs = [DenseAttention(fused=fused)(*x, mask) for fused, x in zip((True, False), inputs, strict=True)]
    assert_close(*outs)
    grad_out = torch.randn_like(outs[0])
    for out in outs:
        out.backward(grad_out)
    for fused, plain in zip(*inputs, strict=True):
        assert_close(fused.grad, plain.grad)


@pytest.mark.parametrize("length", [16, 300])  # below and above the length where the kernel wins
def test_dense_attention_equals_the_definition_at_any_length(length):
    q, k, v = qkv(1, 2, length, length, 8, torch.float32)
    mechanism = DenseAttention()
    assert_close(mechanism(q, k, v, causal()), attention(q, k, v, causal()))
    assert_close(mechanism.weights(q, k, causal()), attention_weights(q, k, causal()))


def test_dropout_keeps_the_mean_and_scales_what_it_keeps():
    q, k, _ = qkv(1, 1, 3, 4, 2)
    values = torch.eye(4, dtype=torch.float64)[None, None]  # the output is then the dropped weights
    draws = [attention(q, k, values, dropout=0.25, return_weights=True) for _ in range(2000)]
    expected = loop_attention(q, k, values)[1]
    dropped = torch.stack([out for out, _ in draws])
    assert_close(dropped[dropped != 0], (expected / 0.75).expand_as(dropped)[dropped != 0])
    assert (dropped == 0).double().mean() == pytest.approx(0.25, abs=0.02)
    assert_close(dropped.mean(0), expected, atol=0.03, rtol=0)
    assert_close(draws[0][1], expected)  # the weights come back before dropout


@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (2, 2, 4, 5), (4, 5), (2, 3, 5, 5), (2, 3, 4, 1)])
@pytest.mark.parametrize("fused", [True, False])
def test_a_mask_of_the_wrong_shape_is_refused_with_both_shapes(shape, fused):
    q, k, v = qkv(2, 3, 4, 5, 6)
    with pytest.raises(ValueError) as error:
        DenseAttention(fused=fused)(q, k, v, torch.ones(shape, dtype=torch.bool))
    assert str(shape) in str(error.value) and "(2, 3, 4, 5)" in str(error.value)


def test_a_mask_object_for_another_batch_is_refused():
    q, k, v = qkv(2, 1, 4, 4, 2)
    with pytest.raises(ValueError, match=r"\(3, 1, 1, 4\).*\(2, 1, 4, 4\)"):
        attention(q, k, v, padding([1, 2, 3]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_mask_of_numbers_is_refused(dtype):
    q, k, v = qkv(1, 1, 2, 2, 2)
    with pytest.raises(TypeError, match=f"True = may attend, got {dtype}"):
        attention(q, k, v, torch.zeros(1, 1, 2, 2, dtype=dtype))
