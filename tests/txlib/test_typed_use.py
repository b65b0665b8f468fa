"""A user's code, which runs, and which mypy and pyright accept: `assert_type` is theirs to check, in `make lint`."""

from dataclasses import dataclass
from pathlib import Path
from typing import assert_type

import torch
from torch import Tensor, nn

import txlib
from txlib.attention import (
    LayerContext,
    Mask,
    MaskLike,
    MechanismConfig,
    as_dense,
    causal,
    for_each_head,
    sliding_window,
)
from txlib.generation import GenerationConfig, generate
from txlib.layers import BlockConfig, RotaryConfig
from txlib.models import (
    GPT,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    EncoderConfig,
    GPTConfig,
    Transformer,
    TransformerConfig,
    UniversalGPT,
    UniversalGPTConfig,
)
from txlib.models.bert import SpanOutput
from txlib.models.encoder import HeadOutput
from txlib.models.gpt import CausalLMOutput
from txlib.models.translation import Seq2SeqOutput
from txlib.models.universal import UniversalCausalLMOutput
from txlib.training import TrainConfig, train

IDS = torch.arange(12).view(2, 6)
BLOCK = BlockConfig.of_sizes(d_model=16, heads=2, d_ff=32, position="learned")


class PlainAverage(nn.Module):
    """Each query gets the mean of the values that it may see."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: MaskLike = None) -> Tensor:
        allowed = as_dense(mask, q, k)
        weights = v.new_ones(*q.shape[:-1], k.shape[-2])
        weights = weights if allowed is None else weights * allowed
        return weights @ for_each_head(v, q.shape[1]) / weights.sum(-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class PlainAverageConfig(MechanismConfig, name="typed-average"):
    def make(self, block: BlockConfig, layer: LayerContext) -> nn.Module:
        return PlainAverage()


def decoder(block: BlockConfig = BLOCK) -> GPT:
    return GPT(GPTConfig(vocab_size=20, block=block, layers=1, max_length=16))


def training_step(model: GPT, optimizer: torch.optim.Optimizer, input_ids: Tensor) -> float:
    optimizer.zero_grad()
    out = model(input_ids, labels=input_ids)
    out.loss.backward()
    optimizer.step()
    return out.loss.item()


def summed_loss(model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
    return model(batch, labels=batch).loss * batch[:, 1:].numel(), batch[:, 1:].numel()


def test_a_training_step():
    model = decoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert training_step(model, optimizer, IDS) > training_step(model, optimizer, IDS)
    progress = train(model, lambda epoch: [IDS], summed_loss, TrainConfig(lr=0.1), steps=1, quiet=True)
    assert progress.step == 1


def test_the_loss_is_a_tensor_where_labels_are_given():
    out = decoder()(IDS, labels=IDS)
    assert_type(out, CausalLMOutput[Tensor])
    assert out.loss.dim() == 0 and out["loss"] is out.loss and out[0] is out.loss
    nothing = decoder()(IDS)
    assert_type(nothing, CausalLMOutput)
    assert nothing.loss is None

    universal = UniversalGPT(UniversalGPTConfig(vocab_size=20, block=BLOCK, steps=2))(IDS, labels=IDS)
    assert_type(universal, UniversalCausalLMOutput[Tensor])
    assert universal.ponder is not None and universal.loss.dim() == 0

    translator = Transformer(TransformerConfig(vocab_size=20, block=BLOCK, encoder_layers=1, decoder_layers=1))
    translated = translator(IDS, labels=IDS)
    assert_type(translated, Seq2SeqOutput[Tensor])
    assert translated.loss.dim() == 0

    config = EncoderConfig(vocab_size=20, block=BLOCK, layers=1)
    labeled = BertForSequenceClassification(config, labels=3)(IDS, labels=torch.tensor([0, 2]))
    assert_type(labeled, HeadOutput[Tensor])
    reader, ends = BertForQuestionAnswering(config), torch.tensor([1, 2])
    span = reader(IDS, start_positions=ends, end_positions=ends)
    assert_type(span, SpanOutput[Tensor])
    assert (labeled.loss + span.loss).dim() == 0
    unlabeled = reader(IDS, start_positions=ends)
    assert_type(unlabeled, SpanOutput)
    assert unlabeled.loss is None


def test_generating():
    prompts = [[1, 2, 3], [4, 5]]
    assert_type(generate(decoder(), prompts, max_new_tokens=2), list[list[int]])
    config = GenerationConfig(max_new_tokens=2, do_sample=True, temperature=0.8, seed=0)
    assert [len(text) for text in generate(decoder(), IDS, config=config)] == [2, 2]
    translator = Transformer(TransformerConfig(vocab_size=20, block=BLOCK, encoder_layers=1, decoder_layers=1))
    assert len(generate(translator.eval(), IDS, max_new_tokens=2, num_beams=2)) == 2


def test_configs_and_mechanisms_of_ones_own(tmp_path: Path):
    mask: Mask = causal() & sliding_window(2)
    block = BLOCK.replace(mechanism=PlainAverageConfig(), mask=mask, position=RotaryConfig(base=1e5), kv_heads=1)
    assert_type(block, BlockConfig)
    assert_type(block.attention.heads, int)
    model = decoder(block).eval()
    assert_type(model.config, GPTConfig)
    txlib.save_pretrained(model, tmp_path)
    loaded = txlib.load_pretrained(tmp_path)
    assert isinstance(loaded, GPT)
    assert_type(GPTConfig.from_dict(loaded.config.to_dict()), GPTConfig)
    assert loaded.config == model.config
    torch.testing.assert_close(loaded(IDS).logits, model(IDS).logits)
