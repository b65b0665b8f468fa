"""Norms, the feed-forward network and embeddings against torch's modules and the papers' formulas."""

import pytest
import torch
import torch.nn.functional as F
import transformers
from oracles import shake
from torch import nn
from torch.testing import assert_close
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from txlib.layers import FeedForward, LayerNorm, RMSNorm, TokenEmbedding

DTYPES = [torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.1])
def test_layer_norm(dtype, bias, eps):
    ours = shake(LayerNorm(6, eps=eps, bias=bias).to(dtype))
    theirs = nn.LayerNorm(6, eps=eps, bias=bias, dtype=dtype)
    theirs.load_state_dict({"weight": ours.weight} | ({"bias": ours.bias} if bias else {}))
    x = torch.randn(2, 3, 6, dtype=dtype) * 4 + 1
    assert_close(ours(x), theirs(x))
    by_hand = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + eps).sqrt() * ours.weight
    assert_close(ours(x), by_hand + ours.bias if bias else by_hand)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("eps", [1e-6, 0.1])
def test_rms_norm(dtype, eps):
    ours = shake(RMSNorm(6, eps=eps).to(dtype))
    x = torch.randn(2, 3, 6, dtype=dtype) * 4 + 1
    assert_close(ours(x), x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * ours.weight)


ACTIVATIONS = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * torch.distributions.Normal(0.0, 1.0).cdf(x),
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "relu2": lambda x: torch.where(x > 0, x * x, 0),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_feed_forward(activation, bias):
    ours = shake(FeedForward(4, 10, activation=activation, bias=bias).double(), size=1.0)
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    hidden = ACTIVATIONS[activation](F.linear(x, ours.up_proj.weight, ours.up_proj.bias))
    assert_close(ours(x), F.linear(hidden, ours.down_proj.weight, ours.down_proj.bias))
    assert (ours.down_proj.bias is not None) == bias


@pytest.mark.parametrize(("name", "gate"), [("reglu", "relu"), ("geglu", "gelu"), ("swiglu", "silu")])
def test_gated_pairs(name, gate):
    """Shazeer 2020, eq. 5 and 6."""
    network, x = shake(FeedForward(4, 10, activation=name)), torch.randn(2, 3, 4)
    expected = network.down_proj(getattr(torch.nn.functional, gate)(network.gate_proj(x)) * network.up_proj(x))
    assert_close(network(x), expected)


def test_swiglu_is_that_of_llama():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    ours = shake(FeedForward(4, 10, activation="swiglu", bias=False), size=1.0)
    theirs = LlamaMLP(LlamaConfig(hidden_size=4, intermediate_size=10, num_attention_heads=2))
    pairs = (theirs.gate_proj, ours.gate_proj), (theirs.up_proj, ours.up_proj), (theirs.down_proj, ours.down_proj)
    for their, our in pairs:
        their.load_state_dict(our.state_dict())
    x = torch.randn(2, 3, 4)
    assert_close(ours(x), theirs(x))


def test_clamped_swiglu_is_that_of_gpt_oss():
    config = transformers.GptOssConfig(hidden_size=4, intermediate_size=10, num_local_experts=1)
    theirs = GptOssExperts(config).double()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=4.0)  # so that the limits are reached
    ours = FeedForward(4, 10, activation="swiglu_clamped").double()
    both, bias = theirs.gate_up_proj[0].T, theirs.gate_up_proj_bias[0]  # the gate's rows and the other's take turns
    weights = {
        "gate_proj.weight": both[::2],
        "gate_proj.bias": bias[::2],
        "up_proj.weight": both[1::2],
        "up_proj.bias": bias[1::2],
        "down_proj.weight": theirs.down_proj[0].T,
        "down_proj.bias": theirs.down_proj_bias[0],
    }
    ours.load_state_dict(weights)
    x = torch.randn(1, 9, 4, dtype=torch.float64)
    assert ours.gate_proj(x).max() > 7 and ours.up_proj(x).abs().max() > 7
    hidden = theirs._apply_gate(x @ theirs.gate_up_proj[0] + bias)
    assert_close(ours(x), hidden @ theirs.down_proj[0] + theirs.down_proj_bias[0])


def test_feed_forward_drops_only_while_training():
    ours, x = FeedForward(4, 10, dropout=0.5), torch.randn(2, 3, 4)
    assert not torch.equal(ours(x), ours(x))
    ours.eval()
    assert torch.equal(ours(x), ours(x))


def test_unknown_activation():
    with pytest.raises(ValueError, match="activation='tanh' is unknown; choose one of relu, .*swiglu"):
        FeedForward(4, 8, activation="tanh")


def test_embeddings_start_with_variance_one():
    embedding = TokenEmbedding(2000, 64)
    x = embedding(torch.arange(2000)[None]).detach()
    assert x.var() == pytest.approx(1, abs=0.02)  # of a chi-square with 128,000 degrees: ± 0.004
    logits = x[0] @ embedding.weight.detach().T  # of the tied matrix
    assert logits.var() == pytest.approx(1, abs=0.1)  # so the first loss is near log(vocab_size)


def test_embedding_is_a_scaled_row():
    embedding = TokenEmbedding(7, 16)
    for dtype in (torch.int32, torch.int64):
        ids = torch.tensor([[3, 0, 6]], dtype=dtype)
        assert_close(embedding(ids)[0], torch.stack([embedding.weight[i] * 4 for i in (3, 0, 6)]))
