"""Native sparse attention: equal to a loop over queries, alone and in a decoder whose layers make its gates."""

import pytest
import torch
from oracles import shake
from torch.testing import assert_close

from txlib.attention import NativeSparseAttention, NativeSparseConfig, causal, padding
from txlib.generation import GenerationConfig, generate
from txlib.layers import BlockConfig
from txlib.models import GPT, GPTConfig

LENGTH, WINDOW = 37, 6


def inputs():
    torch.manual_seed(0)
    q, gates = torch.randn(2, 4, LENGTH, 8), torch.rand(2, 4, LENGTH, 3)
    k, v = torch.randn(2, 2, LENGTH, 8), torch.randn(2, 2, LENGTH, 6)
    return [x.requires_grad_() for x in (q, k, v, gates)]


def softmax_average(q, keys, values):
    return (keys @ q * q.shape[-1] ** -0.5).softmax(dim=0) @ values


def by_loop(q, k, v, gates, block, top):
    """The paper's section 3, a query at a time."""
    group, out = q.shape[1] // k.shape[1], []
    for b in range(len(q)):
        for head in range(q.shape[1]):
            shared = head // group
            keys, values = k[b, shared], v[b, shared]
            for i in range(LENGTH):
                whole = [slice(j * block, (j + 1) * block) for j in range((i + 1) // block)]
                compressed, weights = torch.zeros(v.shape[-1]), {}
                if whole:
                    means = torch.stack([keys[part].mean(dim=0) for part in whole])
                    compressed = softmax_average(
                        q[b, head, i], means, torch.stack([values[part].mean(dim=0) for part in whole])
                    )
                    neighbors = q[b, shared * group : (shared + 1) * group, i]  # the heads that share these keys
                    mean_weight = (neighbors @ means.T * q.shape[-1] ** -0.5).softmax(dim=-1).mean(dim=0)
                    weights = dict(enumerate(mean_weight.tolist()))
                own = i // block
                always = list(dict.fromkeys([own, 0, max(own - 1, 0)]))
                others = sorted(weights.keys() - set(always), key=weights.get, reverse=True)
                positions = [p for j in (always + others)[:top] for p in range(j * block, (j + 1) * block) if p <= i]
                chosen = softmax_average(q[b, head, i], keys[positions], values[positions])
                newest = slice(max(0, i + 1 - WINDOW), i + 1)
                recent = softmax_average(q[b, head, i], keys[newest], values[newest])
                out.append(gates[b, head, i] @ torch.stack([compressed, chosen, recent]))
    return torch.stack(out).view(*q.shape[:3], -1)


@pytest.mark.parametrize(("block", "top"), [(5, 4), (4, 2), (8, 1), (3, 99)])
def test_it_is_what_a_loop_computes(block, top):
    tensors = q, k, v, gates = inputs()
    mine = NativeSparseAttention(block, top, WINDOW)(q, k, v, causal(), gates)
    other = by_loop(q, k, v, gates, block, top)
    assert_close(mine, other, rtol=1e-5, atol=1e-5)
    gradients = (torch.autograd.grad(out.square().mean(), tensors) for out in (mine, other))
    for one, two in zip(*gradients, strict=True):
        assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_in_a_decoder_gates_count_and_a_cache_changes_nothing():
    block = BlockConfig.of_sizes(
        d_model=16, heads=4, kv_heads=2, d_ff=32, position="rotary", mechanism=NativeSparseConfig(4, 3, 5)
    )
    torch.manual_seed(0)
    model = shake(GPT(GPTConfig(block=block, vocab_size=11, layers=2, max_length=64))).eval()
    prompts = [torch.randint(11, (n,)).tolist() for n in (23, 9)]
    written = [
        generate(model, prompts, config=GenerationConfig(max_new_tokens=20, use_cache=cached))
        for cached in (True, False)
    ]
    assert written[0] == written[1]
    x = torch.randint(11, (1, 30))
    before = model(x).logits
    with torch.no_grad():
        model.decoder.layers[0].self_attention.branch_gate.bias[0] += 3.0
    assert not torch.allclose(before, model(x).logits, atol=1e-3)


def test_what_it_cannot_do_is_refused():
    q, k, v, _ = inputs()
    with pytest.raises(ValueError, match="NativeSparseAttention is causal, and this mask is not"):
        NativeSparseAttention()(q, k, v, padding([LENGTH, 9]))
    with pytest.raises(ValueError, match="window=0 must be at least 1"):
        NativeSparseConfig(window=0)
