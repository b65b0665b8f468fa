"""Checkpoints against `transformers`: random small models, shaken in every parameter, in both directions."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from oracles import head_labels, keep, shake
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import txlib
from txlib.attention import DenseConfig, Mask, causal, sliding_window
from txlib.generation import generate
from txlib.layers import BlockConfig, NormConfig, RotaryConfig, YarnScaling, sinusoidal
from txlib.models import (
    GPT,
    BertForMaskedLM,
    BertForTokenClassification,
    Encoder,
    EncoderConfig,
    GPTConfig,
    Transformer,
    TransformerConfig,
)
from txlib.models.families import FAMILIES
from txlib.models.model import MODELS
from txlib.models.pretrained import PretrainedError, load_pretrained, save_pretrained
from txlib.models.stored import Weights

close = {"rtol": 1e-5, "atol": 1e-5}
VOCABULARY = 61
SMALL = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {**SMALL, "n_positions": 24, "n_embd": 16, "n_layer": 3, "n_head": 4}
LLAMA = {
    **SMALL,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 24,
    "type_vocab_size": 3,
}
MARIAN = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
    "pad_token_id": 60,
    "decoder_start_token_id": 60,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
    "max_position_embeddings": 32,
}
TODAY = {**LLAMA, "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": None}
WINDOW = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
YARN = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 16}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [2.0, 3.0, 4.0],
}


def today(name, **settings):
    """A config of transformers, of two layers with a width of 32, and the name of its model."""
    config = getattr(transformers, f"{name}Config")(**{**TODAY, **settings})
    return name.removesuffix("Text") + "ForCausalLM", config


DECODERS = {
    "mistral": lambda: today("Mistral", sliding_window=4),
    "mistral-without-window": lambda: today("Mistral", sliding_window=None, head_dim=16),
    "qwen2": lambda: today("Qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1),
    "qwen2-without-windows": lambda: today("Qwen2", tie_word_embeddings=True),
    "qwen3": lambda: today("Qwen3", head_dim=16, rope_parameters=YARN),
    "qwen3-biased": lambda: today("Qwen3", head_dim=8, attention_bias=True, rms_norm_eps=1e-2),
    "qwen3_moe": lambda: today(
        "Qwen3Moe", moe_intermediate_size=12, num_experts=4, num_experts_per_tok=2, mlp_only_layers=[0]
    ),
    "qwen3_moe-normalized": lambda: today(
        "Qwen3Moe",
        moe_intermediate_size=12,
        num_experts=4,
        num_experts_per_tok=3,
        norm_topk_prob=True,
        use_sliding_window=True,
        sliding_window=4,
    ),
    "gemma2": lambda: today("Gemma2", sliding_window=4, head_dim=16, query_pre_attn_scalar=20, pad_token_id=0),
    "gemma2-softer": lambda: today(
        "Gemma2",
        sliding_window=4,
        head_dim=16,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=0.7,
        final_logit_softcapping=0.5,
        layer_types=["full_attention", "full_attention"],
        hidden_activation="gelu",
    ),
    "gemma3_text": lambda: today("Gemma3Text", head_dim=16, **WINDOW),
    "gemma3_text-scaled": lambda: today(
        "Gemma3Text",
        head_dim=16,
        **WINDOW,
        final_logit_softcapping=2.0,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    ),
    "olmo2": lambda: today("Olmo2"),
    "olmo3": lambda: today("Olmo3", **WINDOW),
    "olmo3-scaled": lambda: today(
        "Olmo3",
        **WINDOW,
        rope_parameters={
            "full_attention": YARN,
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
        },
    ),
    "smollm3": lambda: today("SmolLM3", no_rope_layers=[1, 0], use_sliding_window=True, sliding_window=4),
    "smollm3-every-second": lambda: today("SmolLM3", no_rope_layer_interval=2, tie_word_embeddings=False),
    "phi3": lambda: today("Phi3", sliding_window=4),
    "phi3-short": lambda: today("Phi3", rope_parameters=LONGROPE, original_max_position_embeddings=16),
    "phi3-long": lambda: today("Phi3", rope_parameters=LONGROPE, original_max_position_embeddings=6),
    "seed_oss": lambda: today("SeedOss", head_dim=16),
    "seed_oss-biased": lambda: today("SeedOss", head_dim=16, attention_out_bias=True),
    "granite": lambda: today(
        "Granite",
        attention_multiplier=0.3,
        embedding_multiplier=3.0,
        logits_scaling=1.7,
        residual_multiplier=0.4,
    ),
    "gpt_neox": lambda: today("GPTNeoX"),
    "gpt_neox-in-turn": lambda: today(
        "GPTNeoX",
        use_parallel_residual=False,
        attention_bias=False,
        hidden_act="gelu_new",
        rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
    ),
    "gpt_oss": lambda: today("GptOss", head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=4),
    "gpt2": lambda: ("GPT2LMHeadModel", transformers.GPT2Config(**GPT2)),
    "gpt2-untied-erf": lambda: (
        "GPT2LMHeadModel",
        transformers.GPT2Config(
            **GPT2, tie_word_embeddings=False, activation_function="gelu", n_inner=24, layer_norm_epsilon=1e-3
        ),
    ),
    "llama": lambda: ("LlamaForCausalLM", transformers.LlamaConfig(**LLAMA)),
    "llama-biased-tied": lambda: (
        "LlamaForCausalLM",
        transformers.LlamaConfig(
            **LLAMA,
            attention_bias=True,
            tie_word_embeddings=True,
            rms_norm_eps=1e-2,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        ),
    ),
    "llama-wide-heads": lambda: ("LlamaForCausalLM", transformers.LlamaConfig(**LLAMA, head_dim=6)),
    "llama-3.1": lambda: (  # one pair kept, one between, two slowed
        "LlamaForCausalLM",
        transformers.LlamaConfig(
            **{**LLAMA, "num_attention_heads": 2},
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "original_max_position_embeddings": 100,
                "low_freq_factor": 1.0,
                "high_freq_factor": 3.0,
            },
        ),
    ),
    "llama-interpolated": lambda: (
        "LlamaForCausalLM",
        transformers.LlamaConfig(**LLAMA, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
    ),
    "mixtral": lambda: (
        "MixtralForCausalLM",
        transformers.MixtralConfig(**LLAMA, num_local_experts=5, num_experts_per_tok=2),
    ),
    "mixtral-three": lambda: (
        "MixtralForCausalLM",
        transformers.MixtralConfig(**LLAMA, num_local_experts=4, num_experts_per_tok=3),
    ),
}
MAMBA2 = {
    **SMALL,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_heads": 4,
    "head_dim": 8,
    "state_size": 6,
    "n_groups": 2,
    "chunk_size": 4,
}
DECODERS |= {
    "mamba2": lambda: ("Mamba2ForCausalLM", transformers.Mamba2Config(**MAMBA2)),
    "mamba2-biased-tied": lambda: (
        "Mamba2ForCausalLM",
        transformers.Mamba2Config(
            **{**MAMBA2, "expand": 3, "head_dim": 12, "n_groups": 4, "conv_kernel": 3},
            use_bias=True,
            use_conv_bias=False,
            tie_word_embeddings=True,
        ),
    ),
}
DECODERS |= {
    "diffllama": lambda: ("DiffLlamaForCausalLM", transformers.DiffLlamaConfig(**LLAMA)),
    "diffllama-biased": lambda: (
        "DiffLlamaForCausalLM",
        transformers.DiffLlamaConfig(
            **{**LLAMA, "num_attention_heads": 8, "num_key_value_heads": 4},
            head_dim=6,
            attention_bias=True,
            rms_norm_eps=1e-2,
        ),
    ),
}
DEEPSEEK_V3 = {
    **SMALL,
    "hidden_size": 16,
    "intermediate_size": 20,
    "moe_intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 10,
    "q_lora_rank": 7,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 32,
}
DECODERS |= {
    "deepseek-v3": lambda: ("DeepseekV3ForCausalLM", transformers.DeepseekV3Config(**DEEPSEEK_V3)),
    "deepseek-v3-direct-biased": lambda: (
        "DeepseekV3ForCausalLM",
        transformers.DeepseekV3Config(
            **{**DEEPSEEK_V3, "q_lora_rank": None, "first_k_dense_replace": 0, "n_shared_experts": 2},
            attention_bias=True,
            rope_interleave=False,
            norm_topk_prob=False,
            rope_parameters={**YARN, "mscale": 0.9, "mscale_all_dim": 0.7},
        ),
    ),
    "deepseek-v32": lambda: (
        "DeepseekV32ForCausalLM",
        transformers.DeepseekV32Config(**DEEPSEEK_V3, index_topk=3, index_n_heads=16, index_head_dim=6),
    ),
    "deepseek-v32-yarn": lambda: (
        "DeepseekV32ForCausalLM",
        transformers.DeepseekV32Config(
            **DEEPSEEK_V3,
            index_topk=5,
            index_n_heads=12,
            index_head_dim=4,
            rope_parameters={**YARN, "mscale": 0.9, "mscale_all_dim": 0.7},
        ),
    ),
}
QWEN3_NEXT = {
    **LLAMA,
    "num_hidden_layers": 2,  # with more of these weights, both libraries are 5e-5 from the result in 64 bits
    "full_attention_interval": 2,
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 5,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 10,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
DECODERS |= {
    "qwen3_next": lambda: ("Qwen3NextForCausalLM", transformers.Qwen3NextConfig(**QWEN3_NEXT)),
    "qwen3_next-in-turns": lambda: (
        "Qwen3NextForCausalLM",
        transformers.Qwen3NextConfig(
            **QWEN3_NEXT,
            layer_types=["full_attention", "linear_attention"],
            mlp_only_layers=[0],
            linear_conv_kernel_dim=3,
            norm_topk_prob=False,
            partial_rotary_factor=0.5,
        ),
    ),
}
BERT_HEADS = [
    "BertModel",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForQuestionAnswering",
    "BertForTokenClassification",
    "BertForMultipleChoice",
]


def make(architecture, config):
    """A shaken model of transformers, in eval mode. Eager attention: the plain formula."""
    torch.manual_seed(1)
    model = getattr(transformers, architecture)._from_config(config, attn_implementation="eager")
    positions = {name: tensor.clone() for name, tensor in model.named_parameters() if "embed_positions" in name}
    shake(model).load_state_dict(positions, strict=False)  # Marian's sines are no parameters of ours
    for name, buffer in model.named_buffers():
        if name.endswith(("final_logits_bias", "e_score_correction_bias")):
            buffer.add_(torch.randn_like(buffer))
    return model.eval()


def decoder(name):
    return make(*DECODERS[name]())


def bert(head, **changes):
    return make(head, transformers.BertConfig(**{**BERT, **changes}))


def marian(**changes):
    return make("MarianMTModel", transformers.MarianConfig(**{**MARIAN, **changes}))


def there(model, folder):
    """The model in txlib, by way of a folder."""
    model.save_pretrained(folder)
    return load_pretrained(folder)


def and_back(ours, folder, model_type=None):
    """The model in transformers, by way of a folder."""
    save_pretrained(ours, folder, model_type)
    kind = getattr(transformers, json.loads((folder / "config.json").read_text())["architectures"][0])
    model, report = kind.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    assert not report["missing_keys"] and not report["unexpected_keys"]
    return model.eval()


def ids(*shape):
    return torch.randint(0, VOCABULARY, shape)


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_decoders(name, tmp_path):
    theirs = decoder(name)
    ours = there(theirs, tmp_path / "theirs")
    x = ids(3, 9)
    labels = x.masked_fill(torch.rand(x.shape) < 0.3, -100)
    chunks, cache = (
        (x.split([7, 1, 1], dim=1) if name == "phi3-long" else x.split([4, 1, 3, 1], dim=1)),
        ours.new_cache(),
    )
    assert_close(torch.cat([ours(chunk, cache=cache).logits for chunk in chunks], dim=1), ours(x).logits, **close)
    for each in (ours, load_pretrained(tmp_path / "theirs")):
        mine, other = each(x, labels=labels), theirs(x, labels=labels, output_hidden_states=True)
        assert_close(mine.logits, other.logits, **close)
        assert_close(mine.last_hidden_state, other.hidden_states[-1], **close)
        assert_close(mine.loss, other.loss, **close)
    back = and_back(ours, tmp_path / "ours", theirs.config.model_type)
    assert_close(back(x).logits, mine.logits, **close)
    assert load_pretrained(tmp_path / "ours").config == ours.config
    first, second = load_file(tmp_path / "theirs/model.safetensors"), load_file(tmp_path / "ours/model.safetensors")
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_padded_decoders(name, left, tmp_path):
    theirs = decoder(name)
    ours, x, mask = there(theirs, tmp_path), ids(3, 9), keep([9, 4, 1], 9, left)
    position = (mask.cumsum(1) - 1).clamp(min=0)
    expected = theirs(x, attention_mask=mask, position_ids=position).logits
    real = mask.bool()
    if name == "mamba2-biased-tied":  # whose convolution reads biases where theirs has padding on the left
        alone = [theirs(row[kept][None]).logits[0] for row, kept in zip(x, real, strict=True)]
        expected = torch.zeros_like(expected).masked_scatter(real[..., None], torch.cat(alone))
    assert_close(ours(x, mask).logits[real], expected[real], **close)


@pytest.mark.parametrize("head", BERT_HEADS)
@torch.no_grad()
def test_bert(head, tmp_path):
    theirs = bert(head, num_labels=2 if head == "BertForQuestionAnswering" else 5)
    ours = there(theirs, tmp_path / "theirs")
    x = ids(3, 4, 7) if head == "BertForMultipleChoice" else ids(3, 7)
    mask = torch.rand(x.shape) < 0.7
    mask[..., 0] = True
    given = {"input_ids": x, "attention_mask": mask.long(), "token_type_ids": torch.randint(0, 3, x.shape)}
    given |= {
        "BertModel": dict,
        "BertForPreTraining": lambda: {
            "labels": x.masked_fill(x % 3 > 0, -100),
            "next_sentence_label": torch.tensor([0, 1, 1]),
        },
        "BertForMaskedLM": lambda: {"labels": x.masked_fill(x % 3 > 0, -100)},
        "BertForNextSentencePrediction": lambda: {"labels": torch.tensor([0, 1, 1])},
        "BertForSequenceClassification": lambda: {"labels": torch.tensor([4, 0, 2])},
        "BertForQuestionAnswering": lambda: {
            "start_positions": torch.tensor([0, 3, 7]),
            "end_positions": torch.tensor([2, 6, 30]),
        },
        "BertForTokenClassification": lambda: {"labels": (x % 5).masked_fill(x % 3 > 0, -100)},
        "BertForMultipleChoice": lambda: {"labels": torch.tensor([3, 0, 2])},
    }[head]()
    mine, other = ours(**given), theirs(**given)
    back = and_back(ours, tmp_path / "ours")(**given)
    for field, value in vars(mine).items():
        assert_close(value, getattr(other, field), **close)
        assert_close(value, getattr(back, field), **close)
    plain = ours(x), theirs(x)
    for field, value in vars(plain[0]).items():
        if value is not None:
            assert_close(value, getattr(plain[1], field), **close)
    assert load_pretrained(tmp_path / "ours").config == ours.config


@pytest.mark.parametrize("head", BERT_HEADS)
@torch.no_grad()
def test_every_bert_takes_a_mask(head, tmp_path):
    """A window as a rule equals the same window as a matrix in transformers."""
    theirs = bert(head, num_labels=2 if head == "BertForQuestionAnswering" else 5)
    ours, x = there(theirs, tmp_path), ids(3, 4, 7) if head == "BertForMultipleChoice" else ids(3, 7)
    place = torch.arange(7)
    near = ((place[:, None] - place[None, :]).abs() <= 1).expand(x.numel() // 7, 1, 7, 7)  # (batch, 1, query, key)
    matrix = torch.zeros(near.shape).masked_fill(~near, torch.finfo(torch.float32).min)
    if head == "BertForMultipleChoice":  # theirs takes no matrix: read the choices one by one
        scores = theirs.classifier(theirs.bert(x.flatten(0, 1), attention_mask=matrix).pooler_output).view(3, 4)
        assert_close(ours(x, mask=sliding_window(1)).logits, scores, **close)
        return
    mine, other = ours(x, mask=sliding_window(1)), theirs(x, attention_mask=matrix)
    for field, value in vars(mine).items():
        if value is not None:
            assert_close(value, getattr(other, field), **close)


RELATIVES = {
    "roberta": {"pad_token_id": 3},
    "distilbert": {"hidden_dim": 20, "activation": "relu"},
    "modernbert": {
        "global_attn_every_n_layers": 2,  # all, near, all
        "local_attention": 4,
        "norm_eps": 1e-3,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 50.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5.0},
        },
        "hidden_activation": "silu",
        "classifier_activation": "silu",
        **{f"{token}_token_id": 0 for token in ("pad", "sep", "cls", "bos", "eos")},
    },
}
RELATIVES_HEADS = [(model_type, head) for model_type in RELATIVES for head in FAMILIES[model_type].heads]


@pytest.mark.parametrize(("model_type", "head"), RELATIVES_HEADS)
@torch.no_grad()
def test_relatives_of_bert(model_type, head, tmp_path):
    labels = 2 if "QuestionAnswering" in head else 5
    settings = {**BERT, **RELATIVES[model_type], "num_labels": labels}
    theirs = make(head, transformers.AutoConfig.for_model(model_type, **settings))
    ours = there(theirs, tmp_path / "theirs")
    x = ids(3, 4, 18) if "MultipleChoice" in head else ids(3, 18)
    mask = keep([18, 17, 16], 18)
    if x.dim() == 3:
        mask = mask[:, None].repeat(1, 4, 1)
    given = {"input_ids": x, "attention_mask": mask, **head_labels(head, x)}
    if model_type == "roberta":
        given["token_type_ids"] = torch.randint(0, 3, x.shape)
    back = and_back(ours, tmp_path / "ours")
    assert back.config.model_type == model_type
    for inputs in given, {"input_ids": x}:
        for field, value in vars(ours(**inputs)).items():
            for model in (theirs, back):
                expected = getattr(model(**inputs), field, None)
                assert (value is None) == (expected is None), field
                if value is not None:
                    assert_close(value, expected, **close)
    assert load_pretrained(tmp_path / "ours").config == ours.config
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@torch.no_grad()
def test_modernbert_in_the_older_format(tmp_path):
    """As on the hub: every third layer sees all, and bases under names of their own."""
    settings = {**BERT, **RELATIVES["modernbert"], "global_attn_every_n_layers": 3}
    theirs = make("ModernBertModel", transformers.AutoConfig.for_model("modernbert", **settings))
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["layer_types"], config["rope_parameters"]
    old = {"global_attn_every_n_layers": 3, "global_rope_theta": 50.0, "local_rope_theta": 5.0}
    (tmp_path / "config.json").write_text(json.dumps({**config, **old}))
    ours, x = load_pretrained(tmp_path), ids(3, 9)
    assert_close(ours(x).last_hidden_state, theirs(x).last_hidden_state, **close)
    assert ours.config.block.layer_pattern[1] == ours.config.block.layer_pattern[2]
    with pytest.raises(ValueError, match="segments=0: leave token_type_ids out"):
        ours(x, token_type_ids=x)


@torch.no_grad()
def test_bert_predicts_a_number(tmp_path):
    theirs = bert("BertForSequenceClassification", num_labels=1)
    ours, x, labels = there(theirs, tmp_path), ids(3, 7), torch.randn(3)
    assert_close(ours(x, labels=labels).loss, theirs(x, labels=labels).loss, **close)


@pytest.mark.parametrize(
    "changes", [{}, {"scale_embedding": True, "activation_function": "swish"}, {"activation_function": "relu"}]
)
@torch.no_grad()
def test_marian(changes, tmp_path):
    theirs = marian(**changes)
    ours, x, mask = there(theirs, tmp_path / "theirs"), ids(3, 7), keep([7, 5, 2], 7)
    target, labels = ids(3, 6), ids(3, 6)
    labels[1, 3:] = -100
    mine, other = ours(x, mask, target), theirs(input_ids=x, attention_mask=mask, decoder_input_ids=target)
    assert_close(mine.logits, other.logits, **close)
    real = mask.bool()
    assert_close(mine.encoder_last_hidden_state[real], other.encoder_last_hidden_state[real], **close)
    expected = theirs(input_ids=x, attention_mask=mask, labels=labels).loss
    assert_close(ours(x, mask, labels=labels).loss, expected, **close)
    back = and_back(ours, tmp_path / "ours")(input_ids=x, attention_mask=mask, decoder_input_ids=target)
    assert_close(mine.logits, back.logits, **close)
    assert load_pretrained(tmp_path / "ours").config == ours.config


@torch.no_grad()
def test_shards(tmp_path):
    theirs = decoder("mixtral")
    theirs.save_pretrained(tmp_path, max_shard_size="6KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    x = ids(2, 5)
    assert_close(load_pretrained(tmp_path)(x).logits, theirs(x).logits, **close)


@torch.no_grad()
def test_dtype_and_device(tmp_path):
    decoder("gpt2").to(torch.bfloat16).save_pretrained(tmp_path)
    assert {p.dtype for p in load_pretrained(tmp_path).parameters()} == {torch.bfloat16}
    wide = load_pretrained(tmp_path, dtype=torch.float64, device="cpu")
    assert {p.dtype for p in wide.parameters()} == {torch.float64}
    assert {p.device.type for p in load_pretrained(tmp_path, device=torch.device("meta")).parameters()} == {"meta"}
    assert not wide.training and all(p.requires_grad for p in wide.parameters())
    save_pretrained(load_pretrained(tmp_path), tmp_path / "again")
    assert {t.dtype for t in load_file(tmp_path / "again/model.safetensors").values()} == {torch.bfloat16}


OLD_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
OLD_LONGROPE = {"type": "longrope", "short_factor": [1.0, 1.5, 2.0], "long_factor": [2.0, 3.0, 4.0]}
OLD_ENTRIES = {
    "llama": {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "mistral": {},
    "qwen2": {
        "rope_theta": 1e6,
        "rope_scaling": OLD_YARN,
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 2,
    },
    "qwen3": {"rope_theta": 1e6, "sliding_window": None},
    "qwen3_moe": {"decoder_sparse_step": 2, "use_sliding_window": True, "sliding_window": 8},
    "gemma2": {"hidden_act": "gelu_pytorch_tanh"},
    "gemma3_text": {
        "rope_theta": 1e6,
        "rope_local_base_freq": 500.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window": 8,
        "sliding_window_pattern": 3,
    },
    "olmo2": {"rope_theta": 5e5},
    "olmo3": {"rope_theta": 1e5, "rope_scaling": {**OLD_YARN, "rope_type": "yarn", "attention_factor": 1.2}},
    "smollm3": {"rope_theta": 5e6, "no_rope_layer_interval": 2},
    "phi3": {
        "rope_theta": 500.0,
        "partial_rotary_factor": 0.75,
        "rope_scaling": OLD_LONGROPE,
        "original_max_position_embeddings": 16,
    },
    "seed_oss": {"rope_theta": 1e7, "rope_scaling": {"rope_type": "default"}},
    "granite": {"attention_multiplier": 0.5},
    "gpt_neox": {"rotary_pct": 0.5, "rotary_emb_base": 500, "num_key_value_heads": None},
    "gpt_oss": {"rope_theta": 150_000, "rope_scaling": {**OLD_YARN, "rope_type": "yarn", "truncate": False}},
}


@pytest.mark.parametrize("model_type", OLD_ENTRIES)
def test_older_entries_and_missing_ones_are_read_as_transformers_does(model_type):
    """Files on the hub from before `rope_parameters`: we read the same in what transformers makes of them."""
    settings = {**TODAY, "num_hidden_layers": 4, **OLD_ENTRIES[model_type]}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        del settings[name]
    theirs = type(transformers.AutoConfig.for_model(model_type))(**settings)
    complete = json.loads(theirs.to_json_string(use_diff=False))
    assert FAMILIES[model_type].read(settings) == FAMILIES[model_type].read(complete)


@torch.no_grad()
def test_files_of_a_base_and_of_old_versions(tmp_path):
    """gpt2 on the hub has no prefix and masks as buffers; bert-base-uncased has gamma, beta and two heads."""
    theirs = decoder("gpt2")
    theirs.save_pretrained(tmp_path / "gpt2")
    tensors = load_file(tmp_path / "gpt2/model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    old |= {"h.0.attn.bias": torch.ones(1, 1, 24, 24).tril().bool()}  # the mask; and a copy of what is tied:
    old |= {"lm_head.weight": tensors["transformer.wte.weight"]}
    save_file({name: tensor.clone() for name, tensor in old.items()}, tmp_path / "gpt2/model.safetensors")
    x = ids(2, 5)
    assert_close(load_pretrained(tmp_path / "gpt2")(x).logits, theirs(x).logits, **close)

    theirs = bert("BertForPreTraining")
    theirs.save_pretrained(tmp_path / "bert")
    tensors = load_file(tmp_path / "bert/model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    old |= {"bert.embeddings.position_ids": torch.arange(24)[None], "cls.predictions.decoder.weight": torch.zeros(1)}
    save_file(old, tmp_path / "bert/model.safetensors")
    change(tmp_path / "bert", architectures=["BertForMaskedLM"])
    model = load_pretrained(tmp_path / "bert")
    assert isinstance(model, BertForMaskedLM)
    assert_close(model(x).logits, theirs(x).prediction_logits, **close)


def test_the_library_page_lists_every_family():
    page = (Path(__file__).parents[3] / "docs/library.md").read_text(encoding="utf-8")
    rows = page.partition("### The families")[2].partition("\n## ")[0].splitlines()
    first_cells = [row.split("|")[1] for row in rows if row.startswith("| `")][1:]  # without the head
    assert sorted(name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)) == sorted(FAMILIES)


def test_the_package_offers_both():
    assert txlib.load_pretrained is load_pretrained and txlib.save_pretrained is save_pretrained
    with pytest.raises(AttributeError, match="no attribute 'load'"):
        txlib.load  # noqa: B018


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A small GPT-2 in a folder; tests change copies of it."""
    folder = tmp_path_factory.mktemp("gpt2")
    decoder("gpt2").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(stored, tmp_path):
    return shutil.copytree(stored, tmp_path / "model")


def change(folder, **settings):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))


def change_tensors(folder, function):
    path = folder / "model.safetensors"
    save_file(function(load_file(path)), path)


def refused(source, *words):
    with pytest.raises(PretrainedError) as error:
        load_pretrained(source)
    message = str(error.value)
    assert "\n" not in message and len(message) < 400
    for word in words:
        assert word in message, message


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"model_type": "mamba"},
            [
                "'mamba' is unknown",
                "its tensors are those of 'gpt2'",
            ],
        ),
        ({"model_type": None}, ["model_type is missing"]),
        ({"architectures": ["GPT2ForSequenceClassification"]}, ["GPT2ForSequenceClassification", "GPT2LMHeadModel"]),
        ({"scale_attn_by_inverse_layer_idx": True}, ["scale_attn_by_inverse_layer_idx=True is not supported"]),
        ({"activation_function": "mish"}, ["activation_function='mish'", "gelu_new"]),
        ({"n_embd": 20}, ["has shape", "correct"]),
        ({"n_head": 3}, ["not divisible"]),
        ({"n_layer": 4}, ["lacks transformer.h.3."]),
        ({"n_layer": 2}, ["holds transformer.h.2.", "does not have"]),
        ({"vocab_size": "many"}, ["config.json"]),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_settings_refused(folder, settings, words):
    change(folder, **settings)
    refused(folder, *words)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, ["lacks factor"]),
        ("llama", {"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, ["'dynamic'"]),
        ("llama", {"head_dim": 8}, ["has shape (16, 16), config.json asks for (32, 16)"]),
        ("llama", {"hidden_act": "gelu"}, ["hidden_act='gelu'"]),
        ("llama", {"model_type": "qwen2", "architectures": None}, ["lacks model.layers.0.self_attn.k_proj.bias"]),
        (
            "qwen2",
            {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
            ["holds", "k_proj.bias, ", "does not"],
        ),
        ("llama", {"model_type": "cohere"}, ["'cohere' is unknown; its tensors are those of 'llama'"]),
        (
            "olmo2",
            {"model_type": "olmo"},
            ["'olmo' is unknown; did you mean", "? its tensors are those of 'olmo2'"],
        ),
        ("qwen2", {"layer_types": ["full_attention"]}, ["layer_types has 1 layers, num_hidden_layers=2"]),
        ("gemma2", {"layer_types": ["linear_attention"] * 2}, ["layer_types holds 'linear_attention'"]),
        ("gemma2", {"use_bidirectional_attention": True}, ["use_bidirectional_attention=True is not supported"]),
        ("gemma3_text", {"attn_logit_softcapping": 5.0}, ["attn_logit_softcapping=5.0 is not supported"]),
        ("gpt_oss", {"swiglu_limit": 5.0}, ["swiglu_limit=5.0 is not supported, only 7.0"]),
        ("gpt_oss", {"quantization_config": {"quant_method": "mxfp4"}}, ["quantized (mxfp4)", "bfloat16"]),
        ("smollm3", {"no_rope_layers": [1]}, ["no_rope_layers has 1 layers"]),
    ],
)
def test_settings_of_llamas_refused(tmp_path, name, settings, words):
    decoder(name).save_pretrained(tmp_path)
    change(tmp_path, **settings)
    refused(tmp_path, *words)


def test_settings_of_bert_and_marian_refused(tmp_path):
    bert("BertModel").save_pretrained(tmp_path / "bert")
    for setting in ({"is_decoder": True}, {"position_embedding_type": "relative_key"}):
        change(shutil.copytree(tmp_path / "bert", tmp_path / next(iter(setting))), **setting)
        refused(tmp_path / next(iter(setting)), next(iter(setting)))
    bert("BertForSequenceClassification").save_pretrained(tmp_path / "classifier")
    change(tmp_path / "classifier", problem_type="multi_label_classification")
    refused(tmp_path / "classifier", "problem_type='multi_label_classification'")
    bert("BertForMaskedLM").save_pretrained(tmp_path / "masked")
    change(tmp_path / "masked", tie_word_embeddings=False)
    refused(tmp_path / "masked", "tie_word_embeddings=False")
    marian().save_pretrained(tmp_path / "marian")
    change(tmp_path / "marian", decoder_ffn_dim=40)
    refused(tmp_path / "marian", "decoder_ffn_dim=40")


def test_a_setting_that_is_missing(folder):
    config = json.loads((folder / "config.json").read_text())
    del config["n_embd"]
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, "lacks n_embd")


def test_tensors_missing_or_left_over(folder):
    change_tensors(folder, lambda tensors: {**tensors, "transformer.h.0.adapter.weight": torch.ones(2)})
    refused(folder, "holds transformer.h.0.adapter.weight")
    unknown = shutil.copytree(folder, folder.with_name("unknown"))
    change(unknown, model_type="gpt5")
    refused(unknown, "'gpt5' is unknown; did you mean", "'gpt2' is the nearest, and lacks transformer.h.{}.adapter")

    def without(tensors):
        del tensors["transformer.h.0.adapter.weight"], tensors["transformer.h.1.ln_1.bias"]
        return tensors

    change_tensors(folder, without)
    refused(folder, "lacks transformer.h.1.ln_1.bias")


def test_a_tensor_under_another_name(folder):
    old, new = "transformer.h.1.ln_1.bias", "transformer.h.1.norm.bias"
    change_tensors(folder, lambda tensors: {new if name == old else name: each for name, each in tensors.items()})
    refused(folder, f"lacks {old} and holds {new}, which a gpt2 of this config.json does not have")


def test_wrong_shapes_are_refused_before_a_tensor_is_read(folder, monkeypatch):
    monkeypatch.setattr(Weights, "read", None)
    key = "transformer.h.1.attn.c_attn.weight"
    change_tensors(folder, lambda tensors: {**tensors, key: tensors[key].T.contiguous()})
    refused(folder, key, "(48, 16)", "asks for (16, 48); correct it")
    change_tensors(folder, lambda tensors: {name: each[..., None].contiguous() for name, each in tensors.items()})
    refused(folder, "has shape", ", and so on for 39 more; correct it")


def test_quantized(folder):
    key = "transformer.h.1.attn.c_attn.weight"
    change_tensors(folder, lambda tensors: {**tensors, key: tensors[key].to(torch.int8)})
    refused(folder, key, "int8")

    change_tensors(folder, lambda tensors: {name: each.to(torch.int8) for name, each in tensors.items()})
    refused(folder, "transformer.", "int8", "quantized")  # also where the embedding is read first


@pytest.mark.usefixtures("unchecked")
def test_dtypes_and_devices_that_are_not_there(folder):
    assert load_pretrained(folder, "bfloat16").embedding.weight.dtype == torch.bfloat16
    for wrong in ("cuda", "float17", torch.int8, 16):
        with pytest.raises(PretrainedError, match=r"dtype=.* is none of float32, float16"):
            load_pretrained(folder, wrong)
    for wrong in ("xpu", "cuda:99", "laptop"):
        with pytest.raises(PretrainedError, match=f"device='{wrong}' is not there; this torch finds cpu"):
            load_pretrained(folder, device=wrong)


@torch.no_grad()
def test_a_bert_without_pooler(tmp_path):
    theirs = transformers.BertModel(transformers.BertConfig(**BERT), add_pooling_layer=False).eval()
    ours, x = there(shake(theirs), tmp_path / "theirs"), ids(2, 5)
    assert ours(x).pooler_output is None
    assert_close(ours(x).last_hidden_state, theirs(x).last_hidden_state, **close)
    save_pretrained(ours, tmp_path / "ours")
    assert_close(load_pretrained(tmp_path / "ours")(x).last_hidden_state, ours(x).last_hidden_state)


@torch.no_grad()
def test_a_mixtral_with_its_experts_in_one_tensor(tmp_path):
    theirs = decoder("mixtral-three")
    theirs.save_pretrained(tmp_path, save_original_format=False)
    assert "model.layers.0.mlp.experts.down_proj" in load_file(tmp_path / "model.safetensors")
    x = ids(2, 5)
    assert_close(load_pretrained(tmp_path)(x).logits, theirs(x).logits, **close)


@torch.no_grad()
def test_marians_positions(tmp_path):
    """A file may hold the sines that we compute, also in half precision, but no others."""
    theirs = marian()
    theirs.save_pretrained(tmp_path)
    name, x = "model.encoder.embed_positions.weight", ids(2, 5)
    sines = theirs.model.encoder.embed_positions.weight.clone()
    assert_close(sines, sinusoidal(32, 16, layout="concatenated"))
    for stored in (sines, sines.half()):
        change_tensors(tmp_path, lambda tensors, stored=stored: {**tensors, name: stored})
        expected = theirs(input_ids=x, decoder_input_ids=x).logits
        assert_close(load_pretrained(tmp_path)(x, None, x).logits, expected, **close)
    change_tensors(tmp_path, lambda tensors: {**tensors, name: sines + 0.1})
    refused(tmp_path, name, "a table of its own")


@pytest.mark.parametrize("bad", [[[60]], [[60], [7], [9, 9], [12, 30, 4]]])
@torch.no_grad()
def test_marian_writes_no_padding(bad, tmp_path):
    """As opus-mt's converter makes them: padding has a zero vector and a zero bias, and is the likeliest token."""
    theirs = marian()
    theirs.model.shared.weight[60] = 0
    theirs.final_logits_bias -= 30
    theirs.final_logits_bias[0, 60] = 0
    theirs.generation_config.update(bad_words_ids=bad, forced_eos_token_id=None, pad_token_id=60)
    theirs.save_pretrained(tmp_path / "theirs")
    ours, x, mask = load_pretrained(tmp_path / "theirs"), ids(4, 7), keep([7, 5, 2, 7], 7)
    assert int(ours(x, mask, torch.full((4, 1), 60)).logits.argmax(-1)[0]) == 60
    written = theirs.generate(x, attention_mask=mask, max_new_tokens=20, num_beams=1, do_sample=False)[:, 1:].tolist()
    expected = [[token for token in row if token not in (0, 60)] for row in written]
    for use_cache in (True, False):
        assert generate(ours, x, mask, max_new_tokens=20, use_cache=use_cache) == expected
    assert max(map(len, expected)) > 10
    save_pretrained(ours, tmp_path / "ours")
    assert load_pretrained(tmp_path / "ours").config == ours.config
    again = transformers.MarianMTModel.from_pretrained(tmp_path / "ours")
    assert again.generation_config.bad_words_ids == bad


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gpt2", {"reorder_and_upcast_attn": True}),
        ("mixtral", {"output_router_logits": True}),
        ("bert", {"problem_type": "multi_label_classification", "tie_word_embeddings": False}),
    ],
)
@torch.no_grad()
def test_harmless_settings(name, settings, tmp_path):
    theirs = bert("BertModel") if name == "bert" else decoder(name)
    theirs.save_pretrained(tmp_path)
    change(tmp_path, **settings)
    x = ids(2, 5)
    mine = load_pretrained(tmp_path)(x)[0]
    assert_close(mine, theirs(x)[0], **close)


def test_broken_shards(tmp_path):
    decoder("llama").save_pretrained(tmp_path / "whole", max_shard_size="4KB")

    def copy(name):
        return shutil.copytree(tmp_path / "whole", tmp_path / name)

    missing = copy("missing")
    (missing / "model-00002-of-00008.safetensors").unlink(missing_ok=False)
    refused(missing, "lacks model-00002-of-00008.safetensors")

    def index(folder, change):
        path = folder / "model.safetensors.index.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    stranger = copy("stranger")
    index(stranger, lambda it: {"weight_map": {**it["weight_map"], "model.norm.weight": "../model.safetensors"}})
    refused(stranger, "'../model.safetensors'")
    elsewhere = copy("elsewhere")
    first = "model-00001-of-00008.safetensors"
    index(elsewhere, lambda it: {"weight_map": {name: first for name in it["weight_map"]}})
    refused(elsewhere, first, "lacks", "index.json")
    nothing = copy("nothing")
    index(nothing, lambda it: {})
    refused(nothing, "no weight_map")


def test_pickles(folder):
    weights = folder / "model.safetensors"
    weights.unlink()
    refused(folder, "neither model.safetensors")
    torch.save({"x": torch.ones(1)}, folder / "pytorch_model.bin")
    refused(folder, "pytorch_model.bin is a pickle", "safetensors")
    refused(folder / "pytorch_model.bin", "is a pickle")
    shutil.copy(folder / "pytorch_model.bin", weights)
    refused(folder, "model.safetensors is a pickle")
    weights.write_bytes(b"\x80\x04K\x01.")
    refused(folder, "model.safetensors is a pickle")


def test_files_cut_off(folder):
    weights, config = folder / "model.safetensors", folder / "config.json"
    weights.write_bytes(weights.read_bytes()[:1000])
    refused(folder, "cut off or damaged")
    config.write_text(config.read_text()[:50])
    refused(folder, "not valid JSON")
    config.write_text("[]")
    refused(folder, "holds a list")
    config.unlink()
    refused(folder, "config.json is missing")
    refused(weights, "is a file")


def test_no_folder(tmp_path, monkeypatch):
    refused(tmp_path / "nowhere", "is not there")
    refused("./nowhere", "is not there")

    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    def fails(error):
        def download(*args, **kwargs):
            raise error

        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)

    fails(LocalEntryNotFoundError("no"))
    refused("openai-community/gpt2", "offline", "openai-community/gpt2")
    fails(ConnectionError("no"))
    refused("gpt2", "offline")
    fails(RepositoryNotFoundError.__new__(RepositoryNotFoundError))
    refused("nobody/nothing", "neither a folder here nor a model on the hub")


def test_a_hub_id_is_fetched(folder, monkeypatch):
    import huggingface_hub

    asked = []

    def download(name, **options):
        asked.append((name, options))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert isinstance(load_pretrained("somebody/a-model.v2"), GPT)
    assert asked[0][0] == "somebody/a-model.v2"
    assert not any("bin" in pattern for pattern in asked[0][1]["allow_patterns"])


def test_what_their_formats_cannot_say(tmp_path):
    """Asked for one of theirs, we say why not; otherwise what differs is written in ours, and nothing is lost."""
    block = BlockConfig.of_sizes(16, 4, 20, position="learned", activation="gelu_tanh")
    rms = block.replace(norm="rms", bias=False)
    for changed, kind, words in [
        (block.replace(qk_norm="layer"), "gpt2", "block.attention.qk_norm='layer'"),
        (block.replace(position="rotary"), "gpt2", "block.position.type='rotary'"),
        (block.replace(norm_first=False), "gpt2", "block.norm.placement='post'"),
        (block.replace(activation="swiglu"), "gpt2", "activation_function='swiglu'"),
        (rms, "llama", "hidden_act='gelu_tanh'"),
        (rms, "mixtral", "hidden_act=.gelu_tanh."),
        (rms, "bert", "bert has no GPT"),
    ]:
        model = GPT(GPTConfig(11, changed, layers=1)).eval()
        with pytest.raises(PretrainedError, match=f"{kind} cannot say .*{words}"):
            save_pretrained(model, tmp_path / "no", kind)
        same_again(model, tmp_path / "txlib")
    assert not (tmp_path / "no").exists()
    llama = block.replace(
        position="rotary_half",
        norm="rms",
        bias=False,
        activation="swiglu",
        kv_heads=4,
        attention_bias=False,
        dropout=0.1,
    )
    save_pretrained(GPT(GPTConfig(11, llama, layers=1)), tmp_path / "llama")  # dropout is not in its format
    plain = llama.replace(dropout=0.0, kv_heads=None)
    assert load_pretrained(tmp_path / "llama").config.block == plain
    for top_k, kind in (2, "mixtral"), (1, "txlib"):
        model = GPT(GPTConfig(11, llama.replace(experts=3, top_k=top_k), layers=1)).eval()
        assert same_again(model, tmp_path / kind)["model_type"] == kind
    biased = llama.replace(attention_bias=True, experts=3)
    assert same_again(GPT(GPTConfig(11, biased, layers=1)).eval(), tmp_path / "biased")["model_type"] == "txlib"
    apart = llama.replace(attention_bias=(True, True, True, False))
    assert same_again(GPT(GPTConfig(11, apart, layers=1)).eval(), tmp_path / "apart")["model_type"] == "qwen2"
    odd = llama.replace(attention_bias=(True, False, True, False))
    assert same_again(GPT(GPTConfig(11, odd, layers=1)).eval(), tmp_path / "odd")["model_type"] == "txlib"
    unchanged = GPT(GPTConfig(11, block, layers=1)).eval()
    assert same_again(unchanged, tmp_path / "new/folder")["model_type"] == "gpt2"


def same_again(model, folder):
    """Saved and loaded, a model gives the same outputs; its config.json."""
    save_pretrained(shake(model), folder)
    again, x = load_pretrained(folder), torch.randint(0, 11, (2, 5))
    given = {"labels": torch.randint(0, 11, (2, 4))} if isinstance(model, Transformer) else {}
    assert type(again) is type(model)
    for field, value in vars(model(x, **given)).items():
        if value is not None:
            assert torch.equal(value, getattr(again(x, **given), field)), field
    return json.loads((folder / "config.json").read_text())


OURS = {
    "masks-and-mechanisms": lambda block: GPT(
        GPTConfig(
            11,
            block.replace(
                layer_pattern=({"mask": sliding_window(2)}, {"mask": causal()}), mechanism=DenseConfig(), head_dim=6
            ),
            layers=2,
        )
    ),
    "todays": lambda block: GPT(
        GPTConfig(
            11,
            block.replace(
                position=RotaryConfig(base=500.0, scaling=YarnScaling(4.0, 16), fraction=0.5),
                layer_pattern=({"position": "none", "mask": sliding_window(2)}, {"position": RotaryConfig()}, {}),
                norm=NormConfig(kind="rms", placement="output", zero_centered=True),
                attention=replace(
                    block.attention, qk_norm="rms", qk_norm_whole=True, sinks=True, gate=True, softcap=2.0
                ),
                residual_scale=0.5,
                parallel=True,
                experts=4,
                router="sigmoid",
                choice_bias=True,
                shared_d_ff=6,
            ),
            layers=3,
            logit_softcap=3.0,
            logit_divisor=2.0,
            embedding_scale=4.0,
        )
    ),
    "alibi": lambda block: GPT(GPTConfig(11, block.replace(position="alibi"), layers=2)),
    "shaw-experts": lambda block: GPT(
        GPTConfig(11, block.replace(position="shaw", experts=3, capacity_factor=1.0), eos_id=(1, 2))
    ),
    "translator": lambda block: Transformer(TransformerConfig(11, block.replace(position="shaw"), 1, 2)),
    "rotary-rms-translator": lambda block: Transformer(
        TransformerConfig(11, block.replace(norm="rms", activation="swiglu", position="rotary", qk_norm="layer"))
    ),
    "encoder": lambda block: Encoder(EncoderConfig(11, block.replace(position="alibi"), layers=2)),
    "encoder-without-pooler": lambda block: Encoder(EncoderConfig(11, block, layers=2), pooler=False),
    "labels": lambda block: BertForTokenClassification(EncoderConfig(11, block, layers=1), labels=5),
    "base-with-pooler": lambda block: BertForMaskedLM(
        EncoderConfig(11, block, layers=1), base=Encoder(EncoderConfig(11, block, layers=1))
    ),
    "gated": lambda block: BertForMaskedLM(EncoderConfig(11, block.replace(activation="swiglu"), layers=1)),
}


@pytest.mark.parametrize("name", OURS)
@torch.no_grad()
def test_our_own_format(name, tmp_path):
    torch.manual_seed(1)
    model = OURS[name](BlockConfig.of_sizes(16, 4, 20, position="learned", dropout=0.1, bias=False)).eval()
    settings = same_again(model, tmp_path)
    again = load_pretrained(tmp_path, dtype="float16")
    assert settings["model_type"] == "txlib" and settings["architectures"] == [type(model).__name__]
    assert again.config == model.config and {each.dtype for each in again.parameters()} == {torch.float16}
    change(tmp_path, flavour="vanilla")
    refused(tmp_path, "has no field 'flavour'", "newer txlib")
    change(tmp_path, format=1)
    refused(tmp_path, "format=1, this txlib reads format=2", "load it with the txlib that wrote it")
    change(tmp_path, format=3)
    refused(tmp_path, "format=3", "install a newer txlib")


def test_a_model_of_your_own_is_saved_when_it_names_its_config(tmp_path):
    config = GPTConfig(11, BlockConfig.of_sizes(16, 4, 20, position="none"), layers=1)
    try:

        class Mine(GPT, config=GPTConfig):
            def __init__(self, config: GPTConfig, extra: int = 1):
                super().__init__(config)
                self.extra = torch.nn.Parameter(torch.randn(extra))

            def arguments(self):
                return {"extra": len(self.extra)}

        model = Mine(config, extra=3).eval()
        settings = same_again(model, tmp_path)
        assert settings["architectures"] == ["Mine"] and settings["arguments"] == {"extra": 3}
    finally:
        MODELS.pop("Mine", None)
    with pytest.raises(PretrainedError, match="architecture .Mine. is unknown"):
        load_pretrained(tmp_path)
    with pytest.raises(TypeError, match="txlib.models.gpt has a model GPT already"):
        type("GPT", (GPT,), {"__module__": "mine"}, config=GPTConfig)


def test_what_is_no_model_of_ours_is_not_saved(tmp_path):
    class Mine(GPT):
        pass

    config = GPTConfig(11, BlockConfig.of_sizes(16, 4, 20, position="none"), layers=1)
    own = replace(config, block=config.block.replace(mask=Mask(lambda query, key: query > key)))
    for model, words in [
        (torch.nn.Linear(2, 2), "not torch.nn.modules.linear.Linear; save its state_dict"),
        (bert("BertModel"), "BertModel"),
        (Mine(config), "Mine"),
        (GPT(own), "a rule of your own"),
    ]:
        with pytest.raises(PretrainedError, match=words):
            save_pretrained(model, tmp_path)
    with pytest.raises(PretrainedError, match="model_type='gpt3' is unknown; choose one of bert, big_bird"):
        save_pretrained(GPT(config), tmp_path, "gpt3")
    assert not list(tmp_path.iterdir())


def test_without_safetensors(folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(folder, "pip install safetensors")
    with pytest.raises(PretrainedError, match="pip install safetensors"):
        save_pretrained(GPT(GPTConfig(11, BlockConfig.of_sizes(16, 4, 20, position="none"), layers=1)), folder)


def test_a_bert_made_here_is_saved(tmp_path):
    block = BlockConfig.of_sizes(16, 4, 20, position="learned", activation="gelu", norm_first=False, norm_eps=1e-12)
    model = shake(Encoder(EncoderConfig(11, block, layers=1))).eval()
    assert same_again(model, tmp_path)["model_type"] == "bert"
