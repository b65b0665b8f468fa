"""A mixer of one's own in the place of attention, and Longformer's by its config."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from oracles import shake
from torch import nn
from torch.testing import assert_close
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm

from txlib.attention import LongformerAttention
from txlib.attention.cache import StateCache
from txlib.layers import (
    BlockConfig,
    CrossBlock,
    LongformerConfig,
    MixerConfig,
    NormConfig,
    RMSNorm,
    TransformerBlock,
)
from txlib.models import GPT, GPTConfig
from txlib.models.pretrained import load_pretrained, save_pretrained

IDS = torch.randint(20, (3, 9), generator=torch.Generator().manual_seed(0))


class GatedRecurrence(nn.Module):
    """h_t = a_t h_(t-1) + (1 - a_t) v_t, where the input decides how much is kept, and a gate what is said."""

    def __init__(self, d_model, width):
        super().__init__()
        self.value, self.keep, self.gate = (nn.Linear(d_model, width) for _ in range(3))
        self.output = nn.Linear(width, d_model)

    def new_cache(self):
        return StateCache()

    def forward(self, x, mask=None, cache=None):
        value, keep = self.value(x), self.keep(x).sigmoid()  # (batch, length, width)
        h = cache.state[0] if cache is not None and cache.state else torch.zeros_like(value[:, 0])
        states = []
        for t in range(x.shape[1]):
            h = keep[:, t] * h + (1 - keep[:, t]) * value[:, t]
            states.append(h)
        if cache is not None:
            cache.state, cache.length = (h,), cache.length + x.shape[1]
        return self.output(torch.stack(states, dim=1) * self.gate(x).sigmoid())


@dataclass(frozen=True)
class GatedRecurrenceConfig(MixerConfig, name="test-gated-recurrence"):
    width: int = 8

    def make(self, block, layer):
        return GatedRecurrence(block.d_model, self.width)


def make(**words):
    torch.manual_seed(0)
    block = BlockConfig.of_sizes(16, 2, 24, position="none", **words)
    return GPT(GPTConfig(20, block, layers=3, max_length=32))


def test_a_mixer_sees_the_layers_input_and_no_later_token():
    model = make(mixer=GatedRecurrenceConfig()).eval()
    assert all(isinstance(layer.self_attention, GatedRecurrence) for layer in model.decoder.layers)
    changed = IDS.clone()
    changed[:, 5] = (IDS[:, 5] + 1) % 20
    moved = (model(IDS).logits - model(changed).logits).abs().amax(-1).amax(0) > 0  # (length,)
    assert moved.tolist() == [False] * 5 + [True] * 4


@torch.no_grad()
@pytest.mark.parametrize("chunks", [(1,) * 9, (4, 1, 4)])
def test_decoding_with_its_cache_equals_the_whole(chunks):
    model = make(mixer=GatedRecurrenceConfig()).eval()
    cache = model.new_cache()
    outs = [model(part, cache=cache).logits for part in IDS.split(chunks, dim=1)]
    assert cache.length == 9
    assert_close(torch.cat(outs, dim=1), model(IDS).logits)
    rows = torch.tensor([2, 0])
    cache.reorder(rows)
    assert_close(
        model(IDS[rows, :1], cache=cache).logits[:, 0], model(torch.cat([IDS, IDS[:, :1]], 1)[rows]).logits[:, -1]
    )


def test_it_trains_and_is_saved(tmp_path):
    model = make(mixer=GatedRecurrenceConfig(width=12))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = model(IDS, labels=IDS).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    save_pretrained(model.eval(), tmp_path)
    again = load_pretrained(tmp_path)
    assert again.config == model.config and again.config.block.mixer == GatedRecurrenceConfig(width=12)
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_mixers_and_attention_take_turns():
    model = make(layer_pattern=({"mixer": GatedRecurrenceConfig()}, {"mixer": GatedRecurrenceConfig()}, {})).eval()
    kinds = [type(layer.self_attention).__name__ for layer in model.decoder.layers]
    assert kinds == ["GatedRecurrence", "GatedRecurrence", "MultiHeadAttention"]
    cache = model.new_cache()
    outs = [model(part, cache=cache).logits for part in IDS.split(2, dim=1)]
    assert_close(torch.cat(outs, dim=1), model(IDS).logits)


def test_longformers_projections_are_a_mixer():
    block = TransformerBlock(BlockConfig.of_sizes(16, 2, 24, mixer=LongformerConfig(), attention_dropout=0.1))
    assert isinstance(block.self_attention, LongformerAttention)
    assert block.self_attention.global_mechanism.dropout == 0.1
    marked = torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="needs a block with projections for global tokens"):
        TransformerBlock(BlockConfig.of_sizes(16, 2, 24))(torch.randn(1, 3, 16), global_attention_mask=marked)


def test_norms_of_the_outputs_alone():
    """x + norm(sublayer(x)), by hand."""
    config = BlockConfig.of_sizes(16, 2, 24, norm="rms")
    block = shake(TransformerBlock(config.replace(norm=NormConfig(kind="rms", placement="output"))))
    x = torch.randn(2, 5, 16)
    y = x + block.self_attention_out_norm(block.self_attention(x))
    assert_close(block(x), y + block.feed_forward_out_norm(block.feed_forward(y)))
    assert not hasattr(block, "feed_forward_norm")


@pytest.mark.parametrize("placement", ["pre", "output", "both"])
def test_parallel_sublayers_that_are_scaled(placement):
    """Both read the same input (Black et al. 2022, §2.1); what they add is multiplied first."""
    config = BlockConfig.of_sizes(16, 2, 24, residual_scale=0.25).replace(norm=NormConfig(placement=placement))
    one, both = TransformerBlock(config), TransformerBlock(config.replace(parallel=True))
    both.load_state_dict(shake(one).state_dict())
    x = torch.randn(2, 5, 16)
    attended = one.added(x, one.self_attention, "self_attention")
    fed = one.added(x, one.feed_forward, "feed_forward")
    assert_close(both(x), x + attended + fed)
    assert_close(one(x), x + attended + one.added(x + attended, one.feed_forward, "feed_forward"))
    full = TransformerBlock(config.replace(residual_scale=1.0))
    full.load_state_dict(one.state_dict())
    assert_close(attended, 0.25 * full.added(x, full.self_attention, "self_attention"))


def test_zero_centered_norm():
    norm, x = RMSNorm(8, eps=1e-3, zero_centered=True), torch.randn(3, 8)
    assert_close(norm(x), F.rms_norm(x, (8,), eps=1e-3))
    assert_close(shake(norm)(x), F.rms_norm(x, (8,), 1 + norm.weight, 1e-3))
    theirs = Gemma2RMSNorm(8, eps=1e-3).bfloat16()
    theirs.load_state_dict(norm.bfloat16().state_dict())
    assert torch.equal(norm(x.bfloat16()), theirs(x.bfloat16()))


def test_blocks_that_make_no_sense():
    block = BlockConfig.of_sizes(16, 2, 24)
    with pytest.raises(ValueError, match="parallel=True adds two outputs at once, and post-norm"):
        block.replace(parallel=True, norm_first=False)
    with pytest.raises(ValueError, match="parallel=True has no place for cross-attention"):
        TransformerBlock(block.replace(parallel=True), cross=True)
    for options in ({"parallel": True}, {"residual_scale": 0.5}):
        with pytest.raises(ValueError, match="a CrossBlock adds one sub-layer after the other"):
            CrossBlock(block.replace(**options), 16)
    with pytest.raises(ValueError, match="zero_centered=True is for norm='rms'"):
        NormConfig(zero_centered=True)
    with pytest.raises(ValueError, match="position='learned' belongs to the whole model"):
        block.replace(layer_pattern=({"position": "learned"}, {}))
    with pytest.raises(ValueError, match="LongformerAttention takes no softcap, sinks, gate"):
        TransformerBlock(block.replace(mixer=LongformerConfig(), gate=True))


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_norms_on_both_sides(norm):
    """x + norm(sublayer(norm(x))), by hand."""
    config = BlockConfig.of_sizes(16, 2, 24, norm=norm)
    both = TransformerBlock(config.replace(norm=type(config.norm)(kind=norm, placement="both"))).eval()
    x = torch.randn(2, 5, 16)
    y = x + both.self_attention_out_norm(both.self_attention(both.self_attention_norm(x)))
    expected = y + both.feed_forward_out_norm(both.feed_forward(both.feed_forward_norm(y)))
    assert_close(both(x), expected)
    shape = F.layer_norm if norm == "layer" else F.rms_norm
    assert_close(both.feed_forward_out_norm(x), shape(x, (16,), eps=1e-5))
