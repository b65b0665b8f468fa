"""Adapters are exchanged with peft, in both directions."""

import json

import peft
import pytest
import torch
import transformers

from txlib import load_pretrained
from txlib.layers import BlockConfig, LoRAConfig, add_lora, lora_layers
from txlib.models import GPT, GPTConfig
from txlib.models.adapters import ADAPTER_CONFIG, load_adapter, save_adapter
from txlib.models.pretrained import PretrainedError

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 50}
FAMILIES = {  # model_type → settings, layers in transformers, and here
    "llama": ({**SIZES, "intermediate_size": 64, "num_key_value_heads": 2}, ["q_proj", "v_proj"], ("query", "value")),
    "gpt2": ({"n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 50}, ["c_fc"], ("up_proj",)),
    "bert": ({**SIZES, "intermediate_size": 64}, ["query", "dense"], ("query", "output", "up_proj", "down_proj")),
}
IDS = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1))


def make_theirs(model_type):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **FAMILIES[model_type][0])
    kind = transformers.AutoModel if model_type == "bert" else transformers.AutoModelForCausalLM
    return kind.from_config(config).eval()


@pytest.fixture(params=FAMILIES)
def written(request, tmp_path):
    """A base model of transformers, its folder, and the names of the layers to adapt."""
    model = make_theirs(request.param)
    model.save_pretrained(tmp_path / "base")
    return model, tmp_path, *FAMILIES[request.param][1:]


def shake(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora" in name:
                parameter.normal_(std=0.3)


def output(model):
    out = model(IDS)
    for name in ("logits", "last_hidden_state", "hidden_states"):
        if hasattr(out, name):
            return getattr(out, name)
    raise AssertionError(f"no tensor in a {type(out).__name__}")


def test_what_peft_writes_computes_the_same_here(written):
    base, folder, theirs, _ = written
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=6, target_modules=theirs)).eval()
    shake(adapted)
    adapted.save_pretrained(folder / "adapter")
    ours = load_adapter(load_pretrained(folder / "base"), folder / "adapter")
    assert (output(ours) - output(load_pretrained(folder / "base"))).abs().max() > 0.05
    assert torch.allclose(output(ours), output(adapted), atol=1e-5)


def test_what_is_written_here_computes_the_same_in_peft(written):
    base, folder, _, layers = written
    ours = add_lora(load_pretrained(folder / "base"), LoRAConfig(rank=3, alpha=5, layers=layers))
    shake(ours)
    save_adapter(ours, folder / "adapter", base=str(folder / "base"))
    adapted = peft.PeftModel.from_pretrained(base, folder / "adapter").eval()
    assert torch.allclose(output(ours), output(adapted), atol=1e-5)
    again = load_adapter(load_pretrained(folder / "base"), folder / "adapter")
    assert torch.equal(output(again), output(ours))


@pytest.fixture
def own(tmp_path):
    """A model that only txlib has, its adapters in a folder, and a function that makes it again."""

    def make(width=32):
        torch.manual_seed(0)
        return GPT(GPTConfig(50, BlockConfig.of_sizes(width, 4, 64, position="alibi"), layers=2, max_length=24)).eval()

    model = add_lora(make(), LoRAConfig(layers=("query", "decoder.layers.1.feed_forward.up_proj")))
    shake(model)
    save_adapter(model, tmp_path)
    return model, tmp_path, make


def test_a_model_without_a_published_family_has_adapters_too(own):
    model, folder, make = own
    again = load_adapter(make(), folder)
    assert lora_layers(again).keys() == lora_layers(model).keys()
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def change(folder, **entries):
    path = folder / ADAPTER_CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"use_dora": True}, "use_dora=True is not supported"),
        ({"peft_type": "IA3"}, "peft_type='IA3' is not supported, only 'LORA'"),
        ({"bias": "all"}, "bias='all' is not supported"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
        ({"r": 5}, "another base"),
    ],
)
def test_another_kind_of_adapter_is_refused(own, entries, words):
    _, folder, make = own
    change(folder, **entries)
    model = make()
    with pytest.raises(PretrainedError, match=words):
        load_adapter(model, folder)
    assert not lora_layers(model)


def test_an_adapter_of_another_base_is_refused(own, tmp_path):
    _, folder, make = own
    with pytest.raises(PretrainedError, match="another base: its adapter of decoder.layers"):
        load_adapter(make(width=64), folder)
    make_theirs("bert").save_pretrained(tmp_path / "base")
    with pytest.raises(PretrainedError, match="which the model doesn't have"):
        load_adapter(load_pretrained(tmp_path / "base"), folder)


def test_a_layer_that_shares_its_tensor_is_named(tmp_path):
    make_theirs("gpt2").save_pretrained(tmp_path / "base")
    model = add_lora(load_pretrained(tmp_path / "base"))
    with pytest.raises(PretrainedError, match="self_attention.query shares a tensor with other layers"):
        save_adapter(model, tmp_path / "adapter")
    with pytest.raises(ValueError, match="no adapters to save"):
        save_adapter(load_pretrained(tmp_path / "base"), tmp_path / "adapter")
