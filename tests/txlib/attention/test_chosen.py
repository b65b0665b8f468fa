"""Chosen blocks: equal to dense attention under the mask that a loop over queries chooses."""

import pytest
import torch
from torch.testing import assert_close

from txlib.attention import ChosenBlocks, ChosenBlocksConfig, DenseAttention, causal, padding

DENSE = DenseAttention()


def inputs(length=37, queries=None):
    torch.manual_seed(0)
    q = torch.randn(2, 4, queries or length, 8)
    k, v = torch.randn(2, 2, length, 8), torch.randn(2, 2, length, 6)
    return [x.requires_grad_() for x in (q, k, v)]


def chosen_by_loop(q, k, block, top, is_causal):
    """Which keys each query sees, as the docstring says."""
    batch, heads, queries, _ = q.shape
    length, allowed = k.shape[2], torch.zeros(batch, heads, queries, k.shape[2], dtype=torch.bool)
    for b in range(batch):
        for head in range(heads):
            keys = k[b, head // (heads // k.shape[1])]
            for i in range(queries):
                own = i // block if is_causal else None
                candidates = range(own) if is_causal else range(-(-length // block))
                products = {
                    j: (q[b, head, i] @ keys[j * block : (j + 1) * block].mean(dim=0)).item() for j in candidates
                }
                best = sorted(products, key=products.get, reverse=True)[: top - is_causal]
                for j in [*best, *([own] if is_causal else [])]:
                    allowed[b, head, i, j * block : (j + 1) * block] = True
                if is_causal:
                    allowed[b, head, i, i + 1 :] = False
    return allowed


@pytest.mark.parametrize("mask", [None, causal()], ids=["both ways", "causal"])
@pytest.mark.parametrize(("block", "top"), [(5, 2), (4, 1), (8, 3)])
def test_it_is_dense_attention_to_what_a_loop_chooses(block, top, mask):
    q, k, v = tensors = inputs()
    mine = ChosenBlocks(block, top)(q, k, v, mask)
    other = DENSE(q, k, v, chosen_by_loop(q, k, block, top, mask is not None))
    assert_close(mine, other, rtol=1e-5, atol=1e-5)
    gradients = (torch.autograd.grad(out.square().mean(), tensors) for out in (mine, other))
    for one, two in zip(*gradients, strict=True):
        assert_close(one, two, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mask", [None, causal(), causal() & padding([30, 37]), padding([1, 9])])
def test_all_blocks_are_dense_attention(mask):
    q, k, v = inputs()
    assert_close(ChosenBlocks(5, 99)(q, k, v, mask), DENSE(q, k, v, mask), rtol=1e-5, atol=1e-5)


def test_it_finds_what_a_window_has_lost():
    """The block that matters is far away, and one of many."""
    k, v = torch.randn(1, 1, 400, 8) / 4, torch.randn(1, 1, 400, 6)
    k[:, :, 80:90] += 3.0
    q = torch.full((1, 1, 400, 8), 3.0)
    mine = ChosenBlocks(10, 2)(q, k, v, causal())[0, 0, -1]
    assert_close(mine, DENSE(q, k, v, causal())[0, 0, -1], rtol=1e-3, atol=1e-3)


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="top=0 must be at least 1"):
        ChosenBlocksConfig(top=0)
    with pytest.raises(ValueError, match="ChosenBlocks honors causal"):
        ChosenBlocks()(*inputs(), (torch.rand(37, 37) > 0.5)[None, None])
