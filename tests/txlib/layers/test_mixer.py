"""A mixer of one's own in the place of attention, and Longformer's by its config."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from txlib.attention import LongformerAttention
from txlib.attention.cache import StateCache
from txlib.layers import BlockConfig, LongformerConfig, MixerConfig, TransformerBlock
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
