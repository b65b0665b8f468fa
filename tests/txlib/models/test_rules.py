"""Models hand rules to their mechanisms, never tensors; compiled whole; saved with any mechanism, pattern and bias."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from oracles import shake
from torch.testing import assert_close

from txlib import load_pretrained, save_pretrained
from txlib.attention import (
    DenseAttention,
    DenseConfig,
    Mask,
    MechanismConfig,
    WindowKeyValueCache,
    causal,
    global_tokens,
    padding_from_mask,
    sliding_window,
)
from txlib.layers import BlockConfig
from txlib.models import GPT, Encoder, EncoderConfig, GPTConfig, Transformer, TransformerConfig

BLOCK = BlockConfig.of_sizes(16, 4, 20, position="learned", kv_heads=2)
SEEN: list = []


class Spy(DenseAttention):
    """Dense attention that notes its masks."""

    def forward(self, q, k, v, mask=None, *, bias=None):
        SEEN.append(mask)
        return super().forward(q, k, v, mask, bias=bias)


@dataclass(frozen=True)
class SpyConfig(MechanismConfig, name="spy, in a test"):
    def make(self, block, layer):
        return Spy(block.attention.dropout)


WATCHED = BLOCK.replace(mechanism=SpyConfig(), cross_mechanism=SpyConfig())
MODELS = {
    "gpt": lambda block, **more: GPT(GPTConfig(30, block, layers=2, max_length=24, **more)),
    "bert": lambda block: Encoder(EncoderConfig(30, block, layers=2, max_length=24)),
    "transformer": lambda block: Transformer(TransformerConfig(30, block, 2, 2, max_length=24)),
}


def inputs(name):
    """Arguments of a model, with sentences padded on the left and on the right."""
    ids = torch.randint(3, 30, (3, 7))
    real = torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]])
    return {"input_ids": ids, "attention_mask": real} | (
        {"decoder_input_ids": ids[:, :5]} if name == "transformer" else {}
    )


def out(result):
    return result.last_hidden_state if hasattr(result, "last_hidden_state") else result.logits


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("padded", [True, False])
def test_mechanisms_receive_rules(name, padded):
    SEEN.clear()
    given = inputs(name)
    if not padded:
        given["attention_mask"] = torch.ones_like(given["attention_mask"])
    MODELS[name](WATCHED)(**given)
    real = padding_from_mask(given["attention_mask"])
    expected = {
        "gpt": [causal() & real] * 2 if padded else [causal()] * 2,
        "bert": [real if padded else None] * 2,
        "transformer": [real if padded else None] * 2 + [causal(), real if padded else None] * 2,
    }
    assert expected[name] == SEEN


def test_a_cached_decoder_hands_shifted_rules():
    SEEN.clear()
    model, given = MODELS["gpt"](WATCHED), inputs("gpt")
    cache = model.new_cache(9)
    model(**given, cache=cache)
    real = torch.cat([given["attention_mask"], torch.ones(3, 1, dtype=torch.long)], dim=1)
    model(given["input_ids"][:, :1], real, cache=cache)
    assert SEEN[-1] == (causal() & padding_from_mask(real)).shift(7)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_takes_a_mask(name, unchecked):
    model, given = shake(MODELS[name](BLOCK)).eval(), inputs(name)
    masks = {"decoder_mask": sliding_window(1)} if name == "transformer" else {}
    windowed = out(model(**given, mask=sliding_window(1), **masks))
    always = MODELS[name](BLOCK.replace(mask=sliding_window(1))).eval()
    always.load_state_dict(model.state_dict())
    assert_close(windowed, out(always(**given)))
    assert not torch.allclose(windowed, out(model(**given)))
    with pytest.raises(TypeError, match="mask is a rule, not a tensor of shape"):
        model(**given, mask=torch.ones(1, 1, 7, 7).bool())
    with pytest.raises(TypeError, match="is a function; call it"):
        model(**given, mask=causal)


def test_a_memory_takes_a_mask():
    model, given = shake(MODELS["transformer"](BLOCK)).eval(), inputs("transformer")
    only = Mask(lambda query, key: key < 3)
    cut = {name: each[:, :3] if name != "decoder_input_ids" else each for name, each in given.items()}
    assert_close(model(**given, mask=only, memory_mask=only).logits[0], model(**cut).logits[0])


@pytest.mark.parametrize("position", ["learned", "rotary", "alibi", "t5", "shaw", "skewed"])
@pytest.mark.parametrize("mechanism", [None, DenseConfig(fused=True), SpyConfig()])
def test_window_shared_heads_bias_and_cache_together(position, mechanism):
    """Against the same without a cache; its attention is held against the definition in test_relative."""
    if position == "shaw" and mechanism is not None:
        pytest.skip("Shaw's attention is a mechanism itself")
    block = BLOCK.replace(position=position, mechanism=mechanism, mask=sliding_window(3))
    model, given = shake(MODELS["gpt"](block).double()).eval(), inputs("gpt")
    whole, cache = model(**given).logits, model.new_cache(7)
    parts = [
        model(given["input_ids"][:, i : i + 1], given["attention_mask"][:, : i + 1], cache=cache).logits
        for i in range(7)
    ]
    assert_close(torch.cat(parts, dim=1), whole)
    assert all(
        type(each.self_attention) is WindowKeyValueCache and each.self_attention.k.shape[2] == 3 for each in cache
    )
    plain = MODELS["gpt"](block.replace(mask=None, mechanism=None)).double().eval()
    plain.load_state_dict(model.state_dict())
    assert_close(plain(**given, mask=sliding_window(3)).logits, whole)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("position", ["alibi", "t5", "shaw", "rotary"])
def test_a_model_is_saved_with_mechanism_pattern_and_bias(name, position, tmp_path):
    per_layer = ({"mask": sliding_window(2) | global_tokens([0])}, {"mask": sliding_window(4)})
    block = BLOCK.replace(
        position=position, layer_pattern=per_layer, mechanism=None if position == "shaw" else SpyConfig()
    )
    model, given = shake(MODELS[name](block)).eval(), inputs(name)
    save_pretrained(model, tmp_path)
    again = load_pretrained(tmp_path)
    assert again.config == model.config
    assert_close(out(again(**given)), out(model(**given)), rtol=0, atol=0)
    mechanism = (again.decoder if name == "gpt" else again.encoder).layers[1].self_attention.mechanism
    assert position == "shaw" or type(mechanism) is Spy


@pytest.mark.parametrize("name", MODELS)
def test_t5_buckets_are_one_table_per_stack(name):
    model = MODELS[name](BLOCK.replace(position="t5"))
    tables = [each for each, _ in model.named_parameters() if "position_bias" in each]
    stacks = {"gpt": ["decoder"], "bert": ["encoder"], "transformer": ["encoder", "decoder"]}[name]
    assert tables == [f"{stack}.layers.0.self_attention.position_bias.weight" for stack in stacks]
    bidirectional = {
        stack: getattr(model, stack).layers[0].self_attention.position_bias.bidirectional for stack in stacks
    }
    assert bidirectional == {stack: stack == "encoder" for stack in stacks}


COMPILED = """
from dataclasses import replace
import torch
from test_rules import BLOCK, MODELS, inputs, out
from txlib.attention import GatedLinearConfig, LinearConfig, PerformerConfig, sliding_window

PARTS = [{"position": position, "mask": sliding_window(3)} for position in ("learned", "rotary_half", "alibi", "t5")]
PARTS += [{"mechanism": config(chunk=4)} for config in (LinearConfig, PerformerConfig, GatedLinearConfig)]
for name, make in MODELS.items():
    for parts in PARTS:
        model, given = make(BLOCK.replace(**parts)).eval(), inputs(name)
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        for attention_mask in (given["attention_mask"], None):
            given["attention_mask"] = attention_mask
            torch.testing.assert_close(out(compiled(**given)), out(model(**given)))
        torch._dynamo.reset()
"""


@pytest.mark.slow
def test_models_compile_without_a_break():
    """In a process of its own: the checks of annotations are no part of a model, and can't be compiled."""
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[3])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    done = subprocess.run([sys.executable, "-c", COMPILED], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_model_asks_where_its_tokens_stand():
    for make in MODELS.values():
        with pytest.raises(ValueError, match='BlockConfig does not say: add e.g. position="rotary"'):
            make(BLOCK.replace(position=None))


def test_a_forward_pass_waits_for_no_device():
    """On the meta device there are no values: whoever asks for one fails. (Nor are there, yet, on a busy GPU.)"""
    with torch.device("meta"):
        for name, make in MODELS.items():
            model = make(BLOCK.replace(mask=sliding_window(3)))
            given = {each: tensor.to("meta") for each, tensor in inputs(name).items()}
            assert out(model(**given)).is_meta
