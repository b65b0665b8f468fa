"""Mixers that keep a state: equal to a loop over positions and to transformers, and true to the contract of mixers."""

import pytest
import torch
import torch.nn.functional as F
from oracles import shake
from torch import nn
from torch.testing import assert_close
from transformers.models.kimi_linear import modeling_kimi_linear as kimi_linear
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

from txlib.attention import KeyValueCache, MechanismError, causal, delta_rule, padding, sliding_window
from txlib.attention.kernelized import running_sums
from txlib.generation import GenerationConfig, generate
from txlib.layers import (
    BlockConfig,
    DeltaConfig,
    KimiDelta,
    KimiDeltaConfig,
    Mamba2Config,
    MixerConfig,
    TransformerBlock,
    check_mixer,
)
from txlib.models import GPT, GPTConfig

MIXERS = {
    "delta": DeltaConfig(chunk=16),
    "delta without convolution": DeltaConfig(kernel=None),
    "gated delta": DeltaConfig(gated=True, output_gate=True, key_heads=2, head_dim=6, value_dim=5, chunk=7),
    "kimi delta": KimiDeltaConfig(head_dim=6),
    "mamba2": Mamba2Config(state_dim=6, chunk=7),
    "mamba2 in groups": Mamba2Config(heads=6, head_dim=3, state_dim=5, groups=3, bias=True, convolution_bias=False),
}


def inputs(length=50, head_dim=8, value_dim=6, features=()):
    """Queries, keys of length 1, values, how much is written and the logarithm of what remains."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, length, width) for width in (head_dim, head_dim, value_dim))
    beta, fade = torch.rand(2, 3, length), -3 * torch.rand(2, 3, length, *features)
    return [x.requires_grad_() for x in (q, F.normalize(k, dim=-1), v, beta, fade)]


def loop(q, k, v, beta, fade):
    """One position at a time, as the docstring of `delta_rule` says."""
    state, outs = torch.zeros(2, 3, q.shape[-1], v.shape[-1]), []
    for t in range(q.shape[2]):
        state = fade[:, :, t].reshape(2, 3, -1, 1).exp() * state
        read = torch.einsum("bhkv,bhk->bhv", state, k[:, :, t])
        written = beta[:, :, t, None] * (v[:, :, t] - read)
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, :, t], written)
        outs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, :, t]))
    return torch.stack(outs, dim=2)


def theirs(function):
    def call(q, k, v, beta, fade):
        q, k, v, fade, beta = (x.transpose(1, 2) for x in (q * q.shape[-1] ** 0.5, k, v, fade, beta))
        return function(q, k, v, fade, beta, initial_state=None, output_final_state=False)[0].transpose(1, 2)

    return call


@pytest.mark.parametrize("chunk", [1, 7, None])
@pytest.mark.parametrize(
    ("expected", "features"),
    [
        (loop, ()),
        (theirs(qwen3_next.torch_recurrent_gated_delta_rule), ()),
        (theirs(qwen3_next.torch_chunk_gated_delta_rule), ()),
        (loop, (8,)),
        (theirs(kimi_linear.recurrent_kimi_delta_attention), (8,)),
        (theirs(kimi_linear.chunk_kimi_delta_attention), (8,)),
    ],
    ids=["loop", "Qwen's loop", "Qwen's chunks", "loop by feature", "Kimi's loop", "Kimi's chunks"],
)
def test_chunks_equal_the_recurrence(expected, features, chunk):
    q, k, v, beta, fade = tensors = inputs(features=features)
    mine, other = delta_rule(q, k, v, beta, fade=fade, chunk=chunk)[0], expected(*tensors)
    assert_close(mine, other, rtol=1e-5, atol=1e-5)
    gradients = (torch.autograd.grad(out.square().mean(), tensors) for out in (mine, other))
    for mine, other in zip(*gradients, strict=True):
        assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_kimi_delta_equals_the_layer_of_transformers():
    sizes = {"linear_num_heads": 4, "linear_head_dim": 6, "linear_conv_kernel_dim": 4}
    config = kimi_linear.KimiLinearConfig(hidden_size=32, num_hidden_layers=1, rms_norm_eps=1e-5, **sizes)
    torch.manual_seed(0)
    other = kimi_linear.KimiLinearDeltaAttention(config, 0)
    for parameter in other.parameters():
        nn.init.normal_(parameter, std=0.5)
    mine = KimiDelta(32, 4, head_dim=6, kernel=4, eps=1e-5, chunk=None)
    names = {  # in mine → in the other
        "convolution": "conv1d",
        **{f"in_proj.{name}": f"{name[0]}_proj" for name in ("query", "key", "value", "beta")},
        **{f"in_proj.dt.{i}": f"forget_gate.f_{part}_proj" for i, part in enumerate("ab")},
        **{f"in_proj.gate.{i}": f"g_{part}_proj" for i, part in enumerate("ab")},
        "decay": "forget_gate",
        "norm": "o_norm",
        "out_proj": "o_proj",
    }  # fmt: skip
    tensors = other.state_dict()
    for name, tensor in mine.state_dict().items():
        module, _, parameter = name.rpartition(".")
        tensor.copy_(tensors.pop(f"{names[module]}.{parameter}").reshape(tensor.shape))
    assert not tensors
    x = torch.randn(2, 21, 32)
    assert_close(mine(x, causal()), other(x), rtol=1e-5, atol=1e-5)


def test_a_key_that_is_written_again_returns_its_last_value():
    """Where a plain sum returns both values."""
    k = torch.eye(4)[[0, 1, 0]][None, None]  # the first and the last are the same
    v, ones = torch.randn(1, 1, 3, 5), torch.ones(1, 1, 3)
    assert_close(delta_rule(k, k, v, ones)[0], v)
    assert_close(running_sums(k, k, v, 0)[0][0, 0, 2], v[0, 0, 0] + v[0, 0, 2])


@pytest.mark.parametrize("name", MIXERS)
def test_mixers_keep_the_contract(name):
    assert len(check_mixer(MIXERS[name]).kept) == 7


def test_attention_is_a_mixer_as_well():
    assert len(check_mixer(BlockConfig.of_sizes(32, 4, 32, kv_heads=2, position="rotary")).kept) == 7


class Broken(nn.Module):
    """A sum over all positions, wrong in one way."""

    def __init__(self, how):
        super().__init__()
        self.how, self.scale = how, nn.Parameter(torch.ones(32))

    def forward(self, x, mask=None, cache=None):
        if self.how == "raises":
            raise RuntimeError("no such kernel")
        if self.how == "shape":
            return x.mT
        if self.how == "leaks":
            return self.scale * x.mean(dim=1, keepdim=True).expand_as(x)
        return self.scale * x.cumsum(dim=1)


class BrokenConfig(MixerConfig, name="test-broken"):
    def __init__(self, how):
        object.__setattr__(self, "how", how)

    def make(self, block, layer):
        return Broken(self.how)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            "raises",
            "Broken raises RuntimeError where 'no leak from the future' is tried with mask=causal.*no such kernel",
        ),
        ("shape", r"Broken returned shape \(3, 32, 50\), expected \(batch, length, d_model\) = \(3, 50, 32\)"),
        ("leaks", "Broken breaks the rule 'no leak from the future': only positions after 0 changed, yet its output"),
        ("no padding", "'hidden positions have no influence': only positions changed that the mask hides"),
    ],
)
def test_a_broken_mixer_is_caught(how, words):
    with pytest.raises(MechanismError, match=words):
        check_mixer(BrokenConfig(how))


def make(mixer, **options):
    torch.manual_seed(0)
    block = BlockConfig.of_sizes(32, 4, 48, position="none", norm="rms", mixer=mixer, **options)
    return shake(GPT(GPTConfig(20, block, layers=2, max_length=64))).eval()


@torch.no_grad()
@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("left", [False, True])
def test_a_model_does_not_see_padding(name, left):
    model, ids = make(MIXERS[name]), torch.randint(20, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, slice(4) if left else slice(5, None)] = 0
    alone = ids[1:, 4:] if left else ids[1:, :5]
    assert_close(model(ids, mask).logits[1:][:, mask[1].bool()], model(alone).logits, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", MIXERS)
def test_it_decodes_in_constant_memory(name):
    model, ids = make(MIXERS[name]), torch.randint(20, (2, 20))
    cache, sizes = model.new_cache(), []
    outs = []
    for part in ids.split((9, 1, 1, 9), dim=1):
        outs.append(model(part, cache=cache).logits)
        sizes.append(sum(tensor.numel() for block in cache for tensor in block.self_attention.state))
    assert_close(torch.cat(outs, dim=1), model(ids).logits, rtol=1e-4, atol=1e-4)
    assert len(set(sizes)) == 1
    assert [len(text) for text in generate(model, ids[:, :5], config=GenerationConfig(max_new_tokens=4))] == [4, 4]


@torch.no_grad()
def test_a_hybrid_and_a_block_without_feed_forward():
    """Three layers with a state, then one of attention; and mixers alone."""
    pattern = ({"mixer": DeltaConfig(gated=True), "d_ff": 0},) * 3 + ({},)
    block = BlockConfig.of_sizes(32, 4, 48, position="rotary", layer_pattern=pattern)
    model = GPT(GPTConfig(20, block, layers=8, max_length=64)).eval()
    kinds = [type(layer.self_attention).__name__ for layer in model.decoder.layers]
    assert kinds == (["GatedDeltaNet"] * 3 + ["MultiHeadAttention"]) * 2
    assert [layer.feed_forward is None for layer in model.decoder.layers] == [True, True, True, False] * 2
    cache, ids = model.new_cache(), torch.randint(20, (2, 9))
    outs = [model(part, cache=cache).logits for part in ids.split(2, dim=1)]
    assert_close(torch.cat(outs, dim=1), model(ids).logits, rtol=1e-4, atol=1e-4)
    assert BlockConfig.from_dict(block.to_dict()) == block
    alone = TransformerBlock(BlockConfig.of_sizes(32, 4, 0, mixer=Mamba2Config(), bias=False, activation="silu"))
    x = torch.randn(2, 9, 32)
    assert_close(alone(x, causal()), x + alone.self_attention(alone.self_attention_norm(x), causal()))


def test_states_are_in_32_bits():
    for name in "gated delta", "mamba2":
        block = TransformerBlock(BlockConfig.of_sizes(32, 4, 48, mixer=MIXERS[name])).bfloat16()
        cache = block.self_attention.new_cache()
        out = block.self_attention(torch.randn(2, 9, 32).bfloat16(), causal(), cache)
        assert out.dtype == torch.bfloat16 and cache.state[0].dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = block.float().self_attention(torch.randn(2, 9, 32), causal())
        assert out.isfinite().all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: DeltaConfig(heads=0), "heads=0 must be at least 1"),
        (lambda: make(DeltaConfig(key_heads=3)), "heads=4 is not divisible by key_heads=3; choose a divisor of 4"),
        (lambda: make(Mamba2Config(groups=3)), "heads=4 is not divisible by groups=3; choose a divisor of 4"),
        (lambda: make(Mamba2Config(heads=6)), r"2 \* d_model=64 is not divisible by heads=6"),
        (lambda: make(DeltaConfig(), mask=sliding_window(4)), "takes no mask, got mask=sliding_window.*layer_pattern"),
        (
            lambda: make(DeltaConfig()).decoder(torch.randn(1, 5, 32)),
            "GatedDeltaNet is causal, and this mask is not: None",
        ),
        (
            lambda: make(Mamba2Config()).decoder(torch.randn(1, 5, 32), causal() & sliding_window(2)),
            "Mamba2 sums up all keys until now, so it can honor causal.* and not sliding_window",
        ),
        (
            lambda: (
                make(DeltaConfig()).decoder.layers[0].self_attention(torch.randn(1, 5, 32), causal(), KeyValueCache())
            ),
            "GatedDeltaNet keeps a state, not keys and values: give a StateCache, not a KeyValueCache",
        ),
        (lambda: BlockConfig.of_sizes(32, 4, -1), "d_ff=-1 must be at least 1"),
        (lambda: check_mixer(DeltaConfig(), exceptions={"x": ""}), "unknown rule 'x'; choose from 'no leak"),
        (lambda: check_mixer(3), "check_mixer takes a MixerConfig or a BlockConfig, got 3"),
    ],
)
def test_wrong_calls_say_what_to_do(call, words, unchecked):
    with pytest.raises((TypeError, ValueError), match=words):
        call()


def test_a_t5_bias_is_refused():
    with pytest.raises(ValueError, match="DeltaConfig has no scores for position='t5' to be added to; choose 'rotary'"):
        GPT(GPTConfig(20, BlockConfig.of_sizes(32, 4, 48, position="t5", mixer=DeltaConfig()), layers=1))


def test_a_mask_as_a_tensor_is_padding():
    mixer, x = (
        TransformerBlock(BlockConfig.of_sizes(32, 4, 48, mixer=DeltaConfig())).self_attention,
        torch.randn(2, 1, 32),
    )
    rule = causal() & padding([1, 0])
    assert_close(mixer(x, rule.dense(1)), mixer(x, rule))
