"""Every family against `transformers`, layer by layer; a fault in one tensor is found in its layer."""

import json
import sys

import pytest
import torch
import transformers
from oracles import shake

from txlib.models.compare import Matched, compare_pretrained, differs, layer_of, load_theirs, make_inputs, recorded
from txlib.models.families import FAMILIES, OWN
from txlib.models.pretrained import load_pretrained, save_pretrained
from txlib.models.stored import PretrainedError, Weights

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "sep_token_id": 2,
    "pad_token_id": 0,
}  # of all families, under the names that most of them know
PICTURES = {"image_size": 8, "patch_size": 4}
DEEPSEEK_V3 = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 12,
    "kv_lora_rank": 10,
    "q_lora_rank": 7,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "n_routed_experts": 8,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
OTHERS = {
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v32": {**DEEPSEEK_V3, "index_topk": 4, "index_n_heads": 16, "index_head_dim": 6},
    "deit": PICTURES,
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "longformer": {"attention_window": 4},
    "mamba2": {"num_heads": 4, "head_dim": 16, "state_size": 6, "n_groups": 2, "chunk_size": 4},
    "marian": {
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 40,
        "decoder_ffn_dim": 40,
        "decoder_start_token_id": 0,
    },
    "mixtral": {"num_local_experts": 4},
    "modernbert": {"local_attention": 4, "cls_token_id": 0},
    "perceiver": {
        "d_model": 24,
        "d_latents": 32,
        "num_latents": 5,
        "num_blocks": 2,
        "num_self_attends_per_block": 2,
        "num_self_attention_heads": 4,
        "num_cross_attention_heads": 4,
    },
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12},
    "qwen3_next": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 10,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 6,
        "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "t5": {"d_kv": 8, "d_ff": 40, "num_decoder_layers": 2},
    "vit": PICTURES,
}
KINDS = [model_type for model_type in FAMILIES if model_type != OWN.model_type]


def save(model_type, folder, head=None):
    """A small shaken model of this family, written by transformers."""
    sizes = {**SIZES, **OTHERS.get(model_type, {})}
    if model_type == "perceiver":
        del sizes["hidden_size"], sizes["num_hidden_layers"]
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    torch.manual_seed(1)
    head = head or next(iter(FAMILIES[model_type].heads))
    model = getattr(transformers, head)._from_config(config)
    sines = {name: tensor.clone() for name, tensor in model.named_parameters() if "embed_positions" in name}
    shake(model).load_state_dict(sines, strict=False)
    model.save_pretrained(folder)


def plant(monkeypatch, planted):
    """Let txlib load noise on top of this tensor."""
    read = Weights.read

    def changed(self, name):
        tensor = read(self, name)
        return tensor + torch.randn_like(tensor) if planted.endswith(name) else tensor

    monkeypatch.setattr(Weights, "read", changed)


@pytest.mark.parametrize("model_type", KINDS)
def test_every_family_agrees_until_a_tensor_is_changed(model_type, tmp_path, monkeypatch):
    save(model_type, tmp_path)
    agrees = compare_pretrained(tmp_path)
    assert agrees.first is None, agrees
    assert len([row for row in agrees.layers if layer_of(row.layer + ".")]) >= 2 and "All layers agree" in str(agrees)
    model = load_pretrained(tmp_path)
    matrices = [
        (hf, layer_of(names[0]))
        for hf, _, names in FAMILIES[model_type].table(model, bare=False)
        if layer_of(names[0]) and model.state_dict()[names[0]].dim() == 2
    ]
    planted, layer = matrices[-1]
    plant(monkeypatch, planted)
    found = compare_pretrained(tmp_path)
    assert found.first is not None and found.first.layer == layer, found
    assert [planted.endswith(name) for name in found.tensors] == [True], found
    assert found.tensors[0] in str(found) and f"The first layer that differs is {layer}" in str(found)


def test_a_wrong_computation_is_found_between_equal_tensors(tmp_path, monkeypatch):
    save("bert", tmp_path, "BertForSequenceClassification")

    def load(*args):
        model = load_pretrained(*args)
        model.base.encoder.layers[1].feed_forward.activation = torch.tanh
        return model

    monkeypatch.setattr("txlib.models.compare.load_pretrained", load)
    found = compare_pretrained(tmp_path, tokens=8)
    assert found.first.layer == "base.encoder.layers.1" and found.tensors == ()
    assert "the input of base.encoder.layers.1.feed_forward.down_proj differs" in found.reason
    assert "the output of base.encoder.layers.1.feed_forward.up_proj agrees; its tensors are equal" in found.reason


@pytest.mark.parametrize(
    ("planted", "layer"),
    [
        ("bert.embeddings.word_embeddings.weight", "base.embedding_norm"),
        ("cls.predictions.transform.dense.bias", "predictions.dense"),
        ("cls.predictions.bias", "logits"),
    ],
)
def test_a_fault_outside_of_the_layers(tmp_path, monkeypatch, planted, layer):
    save("bert", tmp_path, "BertForMaskedLM")
    plant(monkeypatch, planted)
    found = compare_pretrained(tmp_path)
    assert found.first.layer == layer and found.tensors == (planted,)


def test_the_command(txlib, tmp_path, monkeypatch):
    save("gpt2", tmp_path / "gpt2")
    status, out, _ = txlib("compare", tmp_path / "gpt2", "--tokens", 5)
    assert status == 0 and "All layers agree" in out and "transformer.h.1" in out
    status, out, _ = txlib("compare", tmp_path / "gpt2", "--tolerance", 1e-12)
    assert status == 1 and "The first layer that differs is decoder.layers.0" in out
    assert txlib("compare", tmp_path / "gpt2", "--tokens", 3)[::2] == (
        2,
        "txlib: tokens=3 is too short a text; give at least 4\n",
    )
    save_pretrained(load_pretrained(tmp_path / "gpt2"), tmp_path / "own", "txlib")
    status, _, err = txlib("compare", tmp_path / "own")
    assert status == 2 and "in txlib's own format, which transformers does not read" in err
    monkeypatch.setitem(sys.modules, "transformers", None)
    status, _, err = txlib("compare", tmp_path / "gpt2")
    assert status == 2 and "pip install transformers" in err and err.count("\n") == 1


@pytest.mark.parametrize("model_type", ["deepseek_v3", "gpt_neox", "gpt_oss", "phi3", "qwen3_next"])
def test_layers_whose_tensors_are_joined_are_compared_with_their_own_columns(model_type, tmp_path):
    save(model_type, tmp_path)
    family, ours = FAMILIES[model_type], load_pretrained(tmp_path)
    inputs = make_inputs(ours, 16, 0)
    with torch.no_grad():
        theirs = load_theirs(transformers, tmp_path, family)
        matched = Matched(family, ours, theirs)
        with recorded(ours, matched.modules) as here:
            ours(**inputs)
        with recorded(theirs, {name for name, _ in matched.modules.values()}) as there:
            theirs(**inputs)
    found = {call: matched.difference(here, there, *call) for call in here.order}
    assert [call for call, row in found.items() if row is not None and differs(row, 1e-4)] == []


def test_an_unknown_family_is_named_with_the_nearest_one(tmp_path):
    save("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "lama"}))
    with pytest.raises(PretrainedError, match=r"[^/]/config\.json: model_type 'lama' is unknown.*correct model_type"):
        compare_pretrained(tmp_path)
