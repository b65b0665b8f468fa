"""Latent attention: two ways to compute it, and a small cache."""

import pytest
import torch
from oracles import shake
from torch.testing import assert_close

from txlib.attention import LinearConfig, StateCache, causal, sliding_window
from txlib.layers import BlockConfig, LatentConfig, TransformerBlock, check_mixer
from txlib.models import GPT, GPTConfig

BLOCKS = {
    "rotary": ({}, {"position": "rotary"}),
    "queries as well": ({"query_rank": 7, "rotary_dim": 6}, {"position": "rotary_half", "head_dim": 5, "value_dim": 3}),
    "no positions, a scale": ({}, {"position": "none", "attention_scale": 0.3, "attention_bias": False}),
    "window": ({}, {"position": "rotary", "mask": sliding_window(6)}),
}


def make(name):
    mixer, options = BLOCKS[name]
    return BlockConfig.of_sizes(32, 4, 48, **options, mixer=LatentConfig(rank=10, **mixer))


@pytest.mark.parametrize("name", BLOCKS)
def test_it_keeps_the_contract(name):
    assert len(check_mixer(make(name)).kept) == 7


@torch.no_grad()
def test_a_full_latent_vector_is_multi_head_attention():
    """With the latent vector as wide as the model and K the identity, keys are the input's own, in each head."""
    block = BlockConfig.of_sizes(32, 1, 48, position="none", mixer=LatentConfig(rank=32, rotary_dim=2))
    layer, x = shake(TransformerBlock(block)).self_attention, torch.randn(2, 9, 32)
    q = layer.query(x)
    c = torch.nn.functional.rms_norm(layer.latent(x), (32,), layer.latent_norm.weight, 1e-6)
    k, v = torch.cat([layer.key(c), layer.shared_key(x)], dim=-1), layer.value(c)
    score = (q @ k.mT / 34**0.5).masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf)
    assert_close(layer(x, causal()), layer.output(score.softmax(-1) @ v), rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", BLOCKS)
def test_the_cache_holds_latent_vectors_only(name):
    torch.manual_seed(0)
    model, ids = shake(GPT(GPTConfig(20, make(name), layers=2, max_length=64))).eval(), torch.randint(20, (2, 20))
    cache = model.new_cache()
    outs = [model(part, cache=cache).logits for part in ids.split((7, 1, 1, 11), dim=1)]
    assert_close(torch.cat(outs, dim=1), model(ids).logits, rtol=1e-4, atol=1e-4)
    kept, first = cache[0].self_attention, model.decoder.layers[0].self_attention
    length = 6 if name == "window" else 20
    assert kept.k.shape == (2, 1, length, 10) and kept.v.shape == (2, 1, length, first.widths[1])


def test_wrong_calls_say_what_to_do(unchecked):
    block = BlockConfig.of_sizes(32, 4, 48, mixer=LatentConfig(rank=8))
    for options, words in (
        ({"position": "alibi"}, "takes rotary positions or none in its scores, not 'alibi'"),
        ({"position": "shaw"}, "not 'shaw'"),
        ({"kv_heads": 2}, "LatentConfig has no kv_heads, got kv_heads=2; leave it out"),
        ({"gate": True}, "LatentConfig has no gate, got gate=True"),
        ({"mechanism": LinearConfig()}, "only softmax attention allows, not LinearConfig.*; choose DenseConfig"),
    ):
        with pytest.raises(ValueError, match=words):
            TransformerBlock(block.replace(**options))
    with pytest.raises(ValueError, match="LatentAttention needs a KeyValueCache, got a StateCache"):
        TransformerBlock(block).self_attention(torch.randn(1, 3, 32), causal(), StateCache())
    with pytest.raises(ValueError, match="rank=0 must be at least 1"):
        LatentConfig(rank=0)
