"""Packed weights: what they give is what weights rounded by hand give."""

import pytest
import torch
from torch import nn

from txlib import save_pretrained
from txlib.generation import generate
from txlib.layers import BlockConfig, PackedLinear, pack_weights
from txlib.models import GPT, Encoder, EncoderConfig, GPTConfig, Transformer, TransformerConfig
from txlib.models.pretrained import PretrainedError

pytestmark = pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines, reason="torch without FBGEMM: no x86 CPU"
)

GPT2 = BlockConfig.of_sizes(32, 4, 64, activation="gelu_tanh", position="learned")
LLAMA = BlockConfig.of_sizes(32, 4, 64, norm="rms", activation="swiglu", bias=False, position="rotary_half", kv_heads=2)
BLOCKS = {
    "gpt2": (GPT2, True),
    "llama": (LLAMA, False),
    "mixtral": (
        BlockConfig.of_sizes(
            32,
            4,
            64,
            norm="rms",
            activation="swiglu",
            bias=False,
            position="rotary_half",
            experts=4,
            top_k=2,
        ),
        False,
    ),
}


def shaken(model: nn.Module) -> nn.Module:
    """The same numbers for the same shape, and no zeros or ones left."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(float(weight.mean().round()) + 0.2 * torch.randn(weight.shape, generator=generator))
    return model.eval()


def decoder(name: str) -> GPT:
    block, tied = BLOCKS[name]
    return shaken(GPT(GPTConfig(50, block, layers=2, max_length=24, tie_embeddings=tied)))


def spread(out: torch.Tensor, exact: torch.Tensor) -> float:
    """Size of the error, in standard deviations of what is exact."""
    return ((out - exact).pow(2).mean().sqrt() / exact.std()).item()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_fp16_gives_what_rounded_weights_give(rows, bias):
    layer = nn.Linear(70, 33, bias=bias)
    x = torch.randn(2, rows, 70)
    expected = nn.functional.linear(x, layer.weight.half().float(), layer.bias)
    packed = PackedLinear(layer.weight, layer.bias, "fp16").eval()
    torch.testing.assert_close(packed(x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_int8_gives_what_whole_numbers_give(bias):
    """With inputs that are steps already, only the weights are rounded: row by row, to 127 steps each way."""
    layer = nn.Linear(64, 17, bias=bias)
    with torch.no_grad():
        layer.weight[3] *= 100  # must not coarsen the other rows
        layer.weight[5] = 0
    x = torch.randint(0, 128, (4, 64)).float()
    x[:, :2] = torch.tensor([0.0, 127.0])  # each step is then exactly 1
    step = layer.weight.abs().amax(dim=1, keepdim=True) / 127
    rounded = torch.where(step > 0, (layer.weight / step).round() * step, 0.0)
    packed = PackedLinear(layer.weight, layer.bias, "int8").eval()
    expected = nn.functional.linear(x, rounded, layer.bias)
    torch.testing.assert_close(packed(x), expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize(("out_features", "in_features"), [(64, 96), (33, 70), (1, 5)])
def test_int4_gives_what_a_loop_over_groups_gives(out_features, in_features, rows, bias):
    layer = nn.Linear(in_features, out_features, bias=bias)
    with torch.no_grad():
        layer.weight[0] *= 100  # must not coarsen the other rows
        layer.weight[-1] = 0
    rounded = torch.zeros_like(layer.weight)
    for row, weights in enumerate(layer.weight.detach()):
        for first in range(0, in_features, 32):
            group = nn.functional.pad(weights[first : first + 32], (0, max(0, first + 32 - in_features)))
            step = ((group.max() - group.min()) / 15).clamp(min=1e-38).bfloat16()
            middle = (group.min() + 8 * step).bfloat16()
            levels = ((group - middle) / step).round().clamp(-8, 7)
            rounded[row, first : first + 32] = (middle.float() + levels * step.float())[: in_features - first]
    x = torch.randn(2, rows, in_features).bfloat16().float()
    packed = PackedLinear(layer.weight, layer.bias, "int4").eval()
    torch.testing.assert_close(packed(x), nn.functional.linear(x, rounded, layer.bias), atol=2e-2, rtol=2e-2)
    if out_features > 1:  # half a step of the widest group, 2 / √in_features
        assert (rounded - layer.weight).abs()[1:].max() < 1.1 / 15 / in_features**0.5


@pytest.mark.parametrize(("weights", "least", "most"), [("fp16", 1e-6, 2e-3), ("int8", 1e-3, 0.2), ("int4", 1e-2, 0.5)])
@pytest.mark.parametrize("name", BLOCKS)
def test_decoders_keep_their_logits_but_for_the_rounding(name, weights, least, most):
    ids = torch.randint(50, (3, 12), generator=torch.Generator().manual_seed(0))
    exact = decoder(name)(ids).logits
    model = pack_weights(decoder(name), weights)
    assert not any(isinstance(module, nn.Linear) for module in model.modules())
    assert least < spread(model(ids).logits, exact) < most


@pytest.mark.parametrize("name", BLOCKS)
def test_cached_is_uncached(name):
    model = pack_weights(decoder(name), "fp16")
    prompts = [[1, 2, 3, 4, 5], [6, 7]]
    options = {"max_new_tokens": 12}
    assert generate(model, prompts, **options) == generate(model, prompts, use_cache=False, **options)
    ids = torch.tensor([prompts[0]])
    cache = model.new_cache(8)
    steps = torch.cat([model.decode(ids[:, i : i + 1], None, cache) for i in range(5)], dim=1)
    torch.testing.assert_close(steps, model.decode(ids), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("output_bias", [True, False])
def test_encoder_decoder_and_encoder(output_bias):
    block = BlockConfig.of_sizes(32, 4, 64, position="sinusoidal", norm_first=False)
    config = TransformerConfig(40, block, encoder_layers=2, decoder_layers=2, output_bias=output_bias)
    ids, started = torch.randint(3, 40, (2, 9)), torch.randint(3, 40, (2, 5))
    for make, call in (
        (lambda: shaken(Transformer(config)), lambda model: model(ids, decoder_input_ids=started).logits),
        (lambda: shaken(Encoder(EncoderConfig(40, block, layers=2))), lambda model: model(ids).last_hidden_state),
    ):
        assert spread(call(pack_weights(make(), "fp16")), call(make())) < 2e-3


def test_half_precision_models_are_packed_from_float32():
    ids = torch.tensor([[1, 2, 3]])
    model = pack_weights(decoder("llama").bfloat16(), "fp16")
    assert spread(model(ids).logits, decoder("llama").bfloat16().float()(ids).logits) < 2e-3


def test_what_packed_weights_cannot_do(tmp_path):
    model = pack_weights(decoder("llama"), "int8")
    with pytest.raises(PretrainedError, match="packed weights cannot be saved"):
        save_pretrained(model, tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="packed already"):
        pack_weights(model, "fp16")
    with pytest.raises(RuntimeError, match=r"cannot be trained: call model.eval\(\)"):
        model.train()(torch.tensor([[1, 2]]))


def test_errors_come_before_anything_is_changed():
    model = decoder("gpt2")
    with pytest.raises(ValueError, match="weights='int3' is unknown; choose one of fp16, int8, int4"):
        pack_weights(model, "int3")
    assert isinstance(model.decoder.layers[0].self_attention.query, nn.Linear)
    with pytest.raises(ValueError, match="needs an x86 CPU; here the model is on 'meta'"):
        pack_weights(model.to("meta"), "int8")
