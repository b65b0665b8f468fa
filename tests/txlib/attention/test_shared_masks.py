"""A stack works out each mask once, and its numbers are those of its layers one by one."""

import pytest
import torch
from torch.testing import assert_close

from txlib.attention import DenseAttention, Mask, causal, documents, global_tokens, padding, sliding_window
from txlib.attention.masks.shared import once, sharing
from txlib.layers import BlockConfig
from txlib.models.stack import Stack

BLOCK = BlockConfig.of_sizes(16, 4, 24, kv_heads=2)
WINDOW = sliding_window(2)


def counted(mask):
    """The same mask, and a list with an entry for each time that it is written out."""
    calls = []

    def rule(query, key):
        calls.append(query.shape)
        return mask.at(torch.tensor(0), torch.tensor(0), query, key)

    return Mask(rule), calls


def one_by_one(stack, x, mask, memory=None, memory_mask=None):
    for layer in stack.layers:
        x = layer(x, mask, memory, memory_mask)
    return stack.norm(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])  # the fused kernel and the plain products
def test_a_rule_is_asked_once_for_all_layers(dtype):
    stack, x = Stack(BLOCK, 5).to(dtype), torch.randn(2, 7, 16, dtype=dtype)
    mask, calls = counted(WINDOW)
    out = stack(x, mask)
    assert len(calls) == 1
    assert_close(out, one_by_one(stack, x, WINDOW))


def test_layers_with_masks_of_their_own_share_where_they_are_equal():
    masks = [counted(WINDOW), counted(causal())]
    local, wide = (mask for mask, _ in masks)
    stack, x = (
        Stack(BLOCK.replace(layer_pattern=tuple({"mask": mask} for mask in (local, wide, local, local, wide))), 5),
        torch.randn(2, 7, 16),
    )
    outs = []
    for call, mask in enumerate((padding([7, 4]), None), start=1):
        outs.append(stack(x, mask))
        assert [len(calls) for _, calls in masks] == [call, call]
    assert_close(outs, [one_by_one(stack, x, mask) for mask in (padding([7, 4]), None)])


def test_equal_masks_become_one():
    stack = Stack(BLOCK.replace(layer_pattern=tuple({"mask": sliding_window(radius)} for radius in (2, 3, 2))), 3)
    first, second, third = (layer.self_attention.mask for layer in stack.layers)
    assert first is third and second == sliding_window(3)


@pytest.mark.parametrize(
    "mask",
    [causal(), WINDOW & causal(), causal() & documents([3, 4]), (WINDOW | global_tokens([0])) & padding([7, 3]), None],
    ids=str,
)
@pytest.mark.parametrize("own", [None, WINDOW])
def test_shared_numbers_are_those_of_the_layers(mask, own):
    stack = Stack(BLOCK.replace(mask=own), 3, cross=True).double()
    x, memory = torch.randn(2, 7, 16, dtype=torch.float64), torch.randn(2, 5, 16, dtype=torch.float64)
    for memory_mask in (None, padding([5, 2])):
        expected = one_by_one(stack, x, mask, memory, memory_mask)
        assert torch.equal(stack(x, mask, memory, memory_mask), expected)
        stack.layers[1].self_attention.mask = own  # also one that is not the stack's
        assert torch.equal(stack(x, mask, memory, memory_mask), expected)


@pytest.mark.parametrize("capacity", [None, 9])
@pytest.mark.parametrize("own", [(), ({"mask": WINDOW}, {}, {"mask": causal()})])
def test_caches_of_different_lengths_share_nothing_wrong(own, capacity):
    stack, x = Stack(BLOCK.replace(layer_pattern=own), 3).double(), torch.randn(2, 9, 16, dtype=torch.float64)
    mask, cache = causal() & padding([9, 6]), stack.new_cache(capacity)
    parts = [stack(part, mask, cache=cache) for part in x.split((4, 1, 3, 1), dim=1)]
    assert_close(torch.cat(parts, dim=1), one_by_one(stack, x, mask))


def test_only_what_is_shared_is_remembered():
    calls = []

    def length(mask, number):
        calls.append(mask)
        return causal() & mask if number else mask

    shared, other = sliding_window(1), sliding_window(1)
    assert once(length, shared, 1) == once(length, shared, 1) and len(calls) == 2
    with sharing(shared):
        results = [once(length, mask, number) for _ in range(2) for mask in (shared, other) for number in (0, 1)]
        assert len(calls) == 2 + 2 + 4
        assert results[1] is results[5] and results[3] is not results[7]
        once(length, results[1], 0), once(length, results[1], 0)  # what comes of it is shared, too
        assert len(calls) == 9
        with sharing():
            once(length, shared, 0)
            assert len(calls) == 10
        once(length, shared, 0)
        assert len(calls) == 10
    once(length, shared, 0)
    assert len(calls) == 11


def test_gradients_through_a_shared_bias():
    """The plain products add a mask as a bias, which all layers share."""
    stack, x = Stack(BLOCK, 2).double(), torch.randn(2, 5, 16, dtype=torch.float64)
    for layer in stack.layers:
        layer.self_attention.mechanism = DenseAttention(fused=False)
    gradients = []
    for out in (stack(x, WINDOW & causal()), one_by_one(stack, x, WINDOW & causal())):
        stack.zero_grad()
        out.square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in stack.parameters()])
    assert_close(*gradients)
