"""Latent attention: two ways to compute it, and a small cache."""

import copy

import pytest
import torch
from oracles import shake
from torch.testing import assert_close

from txlib.attention import FlashConfig, LinearConfig, StateCache, attention_weights, causal, sliding_window
from txlib.layers import BlockConfig, LatentConfig, TransformerBlock, check_mixer
from txlib.models import GPT, GPTConfig

BLOCKS = {
    "rotary": ({}, {"position": "rotary"}),
    "queries as well": ({"query_rank": 7, "rotary_dim": 6}, {"position": "rotary_half", "head_dim": 5, "value_dim": 3}),
    "no positions, a scale": ({}, {"position": "none", "attention_scale": 0.3, "attention_bias": False}),
    "window": ({}, {"position": "rotary", "mask": sliding_window(6)}),
    "indexer": ({"query_rank": 7, "index_top_k": 5, "index_heads": 16, "index_dim": 6}, {"position": "rotary"}),
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
    beside = first.widths[1] + (6 if name == "indexer" else 0)
    assert kept.k.shape == (2, 1, length, 10) and kept.v.shape == (2, 1, length, beside)


def indexed(top_k, position="none"):
    """A layer whose indexer chooses."""
    options = {"rank": 10, "index_top_k": top_k, "index_heads": 3, "index_dim": 8}
    block = BlockConfig.of_sizes(32, 4, 48, position=position, mixer=LatentConfig(**options))
    return shake(TransformerBlock(block)).self_attention


@torch.no_grad()
def test_the_indexer_chooses_as_a_loop_does():
    torch.manual_seed(0)
    layer, x = indexed(3), torch.randn(1, 9, 32)
    indexer = layer.indexer
    scores = indexer(x, x, indexer.make_key(x, 0), 0)
    key = torch.nn.functional.layer_norm(indexer.key(x), (8,), indexer.key_norm.weight, indexer.key_norm.bias, 1e-6)
    allowed = torch.ones(1, 1, 9, 9).tril().bool()
    chosen = indexer.choose(scores, allowed)
    for t in range(9):
        q, weight = indexer.query(x[0, t]).unflatten(0, (3, 8)), indexer.weight(x[0, t]) / 3**0.5
        row = [
            float(sum(w * max(0.0, float(h @ key[0, s]) / 8**0.5) for w, h in zip(weight, q, strict=True)))
            for s in range(t + 1)
        ]
        assert_close(scores[0, 0, t, : t + 1], torch.tensor(row), rtol=1e-4, atol=1e-5)
        best = sorted(range(t + 1), key=lambda s: -row[s])[:3]  # stable, so of equal scores the earlier
        assert chosen[0, 0, t].nonzero()[:, 0].tolist() == sorted(best)


def test_the_indexer_learns_to_imitate_and_nothing_else_gets_its_gradient():
    torch.manual_seed(0)
    layer, x = indexed(64), torch.randn(4, 24, 32)  # it may choose all, so it imitates dense attention
    layer(x, causal())
    layer.indexer.auxiliary_loss().backward()
    moved = {name for name, weight in layer.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert moved == {name for name, _ in layer.named_parameters() if name.startswith("indexer.")}
    with torch.no_grad():
        q, k = layer.queries_and_keys(*parts(layer, x))
        weights = attention_weights(q, k, causal(), scale=layer.scale).mean(dim=1)  # (batch, query, key)
    expected = torch.stack(
        [
            torch.nn.functional.kl_div(row.log_softmax(-1), p, reduction="sum")
            for row, p in (
                (layer.indexer(x, x, layer.indexer.make_key(x, 0), 0)[b, 0, t, : t + 1], weights[b, t, : t + 1])
                for b in range(4)
                for t in range(24)
            )
        ]
    ).mean()
    assert_close(layer.indexer.auxiliary_loss(), expected, rtol=1e-4, atol=1e-5)
    optimizer, losses = torch.optim.Adam(layer.indexer.parameters(), lr=1e-2), []
    for _ in range(60):
        optimizer.zero_grad()
        layer(x, causal())
        layer.indexer.auxiliary_loss().backward()
        optimizer.step()
        losses.append(float(layer.indexer.divergence.detach()))
    assert losses[-1] < 0.5 * losses[0]
    assert copy.deepcopy(layer).indexer.auxiliary_loss() == 0.0


def parts(layer, x):
    """What queries and keys are made of, without positions."""
    plain, rotated = layer.query(x).unflatten(-1, (4, -1)).transpose(1, 2).split(layer.widths, dim=-1)
    return plain, rotated, layer.latent_norm(layer.latent(x))[:, None], layer.shared_key(x)[:, None]


def test_a_model_trains_its_indexer_with_its_loss():
    torch.manual_seed(0)
    model, ids = GPT(GPTConfig(20, make("indexer"), layers=2, max_length=32)), torch.randint(20, (2, 20))
    loss = model.train()(ids, labels=ids).loss
    assert_close(
        loss,
        torch.nn.functional.cross_entropy(model.eval()(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        + sum(layer.self_attention.indexer.divergence for layer in model.decoder.layers),
    )
    loss.backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())


def test_wrong_calls_say_what_to_do(unchecked):
    block = BlockConfig.of_sizes(32, 4, 48, mixer=LatentConfig(rank=8))
    for options, words in (
        ({"position": "alibi"}, "takes rotary positions or none in its scores, not 'alibi'"),
        ({"position": "shaw"}, "not 'shaw'"),
        ({"kv_heads": 2}, "LatentConfig has no kv_heads, got kv_heads=2; leave it out"),
        ({"gate": True}, "LatentConfig has no gate, got gate=True"),
        (
            {"mechanism": FlashConfig(), "mixer": LatentConfig(rank=8, index_top_k=4)},
            "an indexer chooses keys for each query, which needs DenseConfig",
        ),
        ({"mixer": LatentConfig(rank=8, index_top_k=4, index_dim=2)}, "index_dim=2 must be at least rotary_dim=4"),
        ({"mechanism": LinearConfig()}, "only softmax attention allows, not LinearConfig.*; choose DenseConfig"),
    ):
        with pytest.raises(ValueError, match=words):
            TransformerBlock(block.replace(**options))
    with pytest.raises(ValueError, match="LatentAttention needs a KeyValueCache, got a StateCache"):
        TransformerBlock(block).self_attention(torch.randn(1, 3, 32), causal(), StateCache())
    with pytest.raises(ValueError, match="rank=0 must be at least 1"):
        LatentConfig(rank=0)
    with pytest.raises(ValueError, match="index_top_k=0 must be at least 1"):
        LatentConfig(rank=8, index_top_k=0)
