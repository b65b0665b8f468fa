"""Adapters: they begin as nothing, are all that is trained, and can be merged into the weights."""

import pytest
import torch
from torch import nn

from txlib import save_pretrained
from txlib.generation import generate
from txlib.layers import BlockConfig, LoRAConfig, LoRALinear, add_lora, lora_layers, merge_lora, pack_weights
from txlib.models import GPT, GPTConfig
from txlib.models.pretrained import PretrainedError
from txlib.training import train
from txlib.training.memory import training_memory
from txlib.training.tensor_parallel import local_shard

LLAMA = BlockConfig.of_sizes(32, 4, 64, norm="rms", activation="swiglu", bias=False, position="rotary_half", kv_heads=2)
IDS = torch.randint(50, (3, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(GPTConfig(50, LLAMA, layers=2, max_length=24)).eval()


def shake_adapters(model):
    with torch.no_grad():
        for layer in lora_layers(model).values():
            layer.lora_B.normal_(std=0.5)


def test_the_output_is_that_of_the_naive_formula():
    torch.manual_seed(0)
    layer = LoRALinear(nn.Linear(5, 7), rank=2, alpha=6)
    nn.init.normal_(layer.lora_B)
    x = torch.randn(4, 5)
    for row, out in zip(x, layer(x), strict=True):
        low = [sum(layer.lora_A[r, i] * row[i] for i in range(5)) for r in range(2)]
        for j in range(7):
            frozen = layer.bias[j] + sum(layer.weight[j, i] * row[i] for i in range(5))
            assert torch.isclose(out[j], frozen + 3 * sum(layer.lora_B[j, r] * low[r] for r in range(2)), atol=1e-5)


def test_a_new_adapter_changes_nothing_and_a_merged_one_computes_the_same(model):
    before = model(IDS).logits
    assert add_lora(model, LoRAConfig(rank=4, layers=("query", "value", "down_proj"))) is model
    assert len(lora_layers(model)) == 6
    assert torch.equal(model(IDS).logits, before)
    shake_adapters(model)
    adapted, text = model(IDS).logits, generate(model, IDS[:, :5], max_new_tokens=6)
    assert (adapted - before).abs().max() > 0.1
    merge_lora(model)
    assert not lora_layers(model) and all(weight.requires_grad for weight in model.parameters())
    assert torch.allclose(model(IDS).logits, adapted, atol=1e-5)
    assert generate(model, IDS[:, :5], max_new_tokens=6) == text


def test_only_the_adapters_learn_and_only_they_take_memory_for_the_optimizer(model, tmp_path):
    whole = training_memory(model, {"input_ids": IDS})
    add_lora(model, LoRAConfig(rank=2, layers=("query", "value")))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def loss(model, batch):
        return model(batch, labels=batch).loss * batch.numel(), batch.numel()

    def run(**options):
        return train(model, lambda epoch: [IDS], loss, steps=4, out=tmp_path, quiet=True, **options)

    progress = run()
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert progress.losses[-1] < progress.losses[0]
    assert changed == {name for name in before if "lora" in name}
    assert run(resume=True).losses == progress.losses
    planned = training_memory(model, {"input_ids": IDS})
    count = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    assert count == 2 * (2 * (32 + 32) + 2 * (32 + 16))
    assert planned.optimizer == 2 * 4 * count and planned.gradients == 4 * count
    assert planned.optimizer < whole.optimizer / 10


def test_dropout_is_of_the_adapters_input_while_training(model):
    add_lora(model, LoRAConfig(dropout=0.5))
    shake_adapters(model)
    assert torch.equal(model(IDS).logits, model(IDS).logits)
    model.train()
    assert not torch.equal(model(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda model: LoRAConfig(rank=0), ValueError, "rank=0 must be at least 1"),
        (lambda model: LoRAConfig(layers=()), ValueError, "adapts nothing"),
        (lambda model: LoRAConfig(dropout=1.0), ValueError, "dropout=1.0"),
        (lambda model: LoRAConfig(layers=("qery",)) and add_lora(model, LoRAConfig(layers=("qery",))), ValueError,
         "no linear layer 'qery'; did you mean 'query'"),
        (lambda model: add_lora(add_lora(model)), ValueError, "has adapters already"),
        (lambda model: merge_lora(model), ValueError, "no adapters to merge"),
        (lambda model: pack_weights(add_lora(model), "fp16"), ValueError, "merge_lora"),
        (lambda model: local_shard(add_lora(model), 2), ValueError, "query has an adapter, which can't be split"),
        (lambda model: save_pretrained(add_lora(model), "nowhere"), PretrainedError, "save_adapter"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(model, make, error, words):
    weights = dict(model.state_dict())
    with pytest.raises(error, match=words):
        make(model)
    assert all(torch.equal(model.get_parameter(name), tensor) for name, tensor in weights.items())
