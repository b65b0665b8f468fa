"""Convolution over positions: against matrices and plain loops, its reach by gradients, its cache, weight norm."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from oracles import shake
from torch import nn
from torch.testing import assert_close

from txlib.layers.convolution import Convolution, ConvolutionCache, WeightNorm, receptive_field


def make(d_in, d_out, kernel, **options):
    return shake(Convolution(d_in, d_out, kernel, **options)).double()


def offsets(kernel, dilation, causal):
    """Where an output reads, from its own position: by the definition."""
    middle = kernel - 1 if causal else (kernel - 1) // 2
    return [(i - middle) * dilation for i in range(kernel)]


@given(
    kernel=st.integers(1, 5),
    dilation=st.integers(1, 4),
    causal=st.booleans(),
    length=st.integers(1, 9),
    hidden=st.integers(0, 4),
)
def test_equals_a_loop_over_positions(kernel, dilation, causal, length, hidden):
    kernel += not causal and kernel % 2 == 0
    layer, x = make(3, 4, kernel, dilation=dilation, causal=causal), torch.randn(2, length, 3).double()
    kept = torch.ones(2, length, dtype=torch.bool)
    kept[1, max(length - hidden, 0) :] = False
    expected = layer.bias.detach().expand(2, length, 4).clone()
    for b, t, (place, offset) in itertools.product(
        range(2), range(length), enumerate(offsets(kernel, dilation, causal))
    ):
        if 0 <= t + offset < length and kept[b, t + offset]:
            for channel in range(3):
                expected[b, t] += layer.weight[:, channel * kernel + place].detach() * x[b, t + offset, channel]
    assert_close(layer(x, kept), expected)


@pytest.mark.parametrize("kernel, dilation, causal", [(3, 1, False), (5, 2, False), (2, 1, True), (3, 4, True)])
def test_equals_one_product_with_unfolded_inputs(kernel, dilation, causal):
    layer, x = make(3, 4, kernel, dilation=dilation, causal=causal), torch.randn(2, 11, 3).double()
    reach = (kernel - 1) * dilation
    left = reach if causal else reach // 2
    padded = F.pad(x, (0, 0, left, reach - left))
    windows = padded.unfold(1, reach + 1, 1)[..., ::dilation].flatten(2)  # (batch, length, d_in · kernel)
    assert_close(layer(x), windows @ layer.weight.T + layer.bias)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kernel, dilations", [(1, [1, 1]), (3, [1, 1, 1]), (3, [1, 2, 4]), (5, [1, 3]), (3, [4, 2])])
def test_gradients_come_from_the_receptive_field(kernel, dilations, causal):
    layers = [make(2, 2, kernel, dilation=dilation, causal=causal) for dilation in dilations]
    field = receptive_field(kernel, dilations)
    x = torch.randn(1, 2 * field + 1, 2).double().requires_grad_()
    hidden = x
    for layer in layers:
        hidden = layer(hidden)
    hidden[0, field].sum().backward()
    read = x.grad[0].any(dim=-1).nonzero().flatten() - field
    reads = itertools.product(*(offsets(kernel, dilation, causal) for dilation in dilations))
    assert read.tolist() == sorted({sum(path) for path in reads})
    assert read[-1] - read[0] + 1 == field
    assert read[-1] == (0 if causal else field // 2)


@given(st.integers(1, 4), st.integers(1, 3), st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_a_cache_gives_the_same(kernel, dilation, chunks):
    layer = make(3, 4, kernel, dilation=dilation, causal=True)
    x, cache, rows = torch.randn(3, sum(chunks), 3).double(), ConvolutionCache(), torch.tensor([2, 0, 0, 1])
    cache.reorder(rows)  # of nothing
    first, *later = x.split(chunks, dim=1)
    outs = [layer(first, cache=cache)[rows]]
    cache.reorder(rows)
    outs += [layer(chunk[rows], cache=cache) for chunk in later]
    assert cache.length == sum(chunks)
    assert cache.past.shape == (4, (kernel - 1) * dilation, 3)  # it does not grow
    assert_close(torch.cat(outs, dim=1), layer(x)[rows])


def test_weight_norm_equals_torchs():
    ours = nn.Sequential(nn.Linear(5, 4), make(4, 3, 3).float())
    plain, x = [layer.weight.detach().clone() for layer in ours], torch.randn(2, 6, 5)
    before = ours(x)
    WeightNorm.apply_to(ours)
    assert_close(ours(x), before)  # at first the weights are what they were
    shake(ours)
    theirs = nn.utils.parametrizations.weight_norm(nn.Linear(12, 3))
    theirs.parametrizations.weight.original0.data = ours[1].parametrizations.weight.original0.data[:, None]
    theirs.parametrizations.weight.original1.data = ours[1].parametrizations.weight.original1.data
    assert_close(ours[1].weight, theirs.weight)
    assert not torch.allclose(ours[1].weight, plain[1])
    lengths = ours[1].weight.norm(dim=1)
    assert_close(lengths, ours[1].parametrizations.weight.original0.abs())
    assert all(parameter.dim() == 2 for name, parameter in ours.named_parameters() if "original1" in name)


@pytest.mark.parametrize(
    "sizes, options, words",
    [
        ((3, 4, 2), {}, "kernel=2 has no middle; choose an odd one, e.g. 3"),
        ((3, 4, 0), {"causal": True}, "kernel=0 must be at least 1"),
        ((3, 4, 3), {"dilation": 0}, "dilation=0 must be at least 1"),
    ],
)
def test_what_cannot_be_laid_is_refused(sizes, options, words):
    with pytest.raises(ValueError, match=words):
        Convolution(*sizes, **options)


def test_a_cache_of_another_batch_is_refused():
    layer, cache = make(3, 4, 2, causal=True), ConvolutionCache()
    layer(torch.randn(2, 1, 3).double(), cache=cache)
    with pytest.raises(ValueError, match="the cache holds 2 sequences, got 3; reorder it"):
        layer(torch.randn(3, 1, 3).double(), cache=cache)
