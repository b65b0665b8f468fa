"""ModernBERT and its heads (Warner et al. 2024): pre-norm, rotary, gated, most layers with a window."""

from typing import Any

from txlib.attention import sliding_window
from txlib.attention.masks import SlidingWindow
from txlib.layers import RotaryConfig
from txlib.models import bert, modernbert
from txlib.models.encoder import Encoder, EncoderConfig
from txlib.models.families.bert import TIED, describe, labels
from txlib.models.families.family import Family, Head, Name, Setting, Settings, Translation, same
from txlib.models.families.llama import (
    ATTENTION_BIAS,
    GATED_ACTIVATIONS,
    KINDS,
    NETWORK_BIAS,
    blocks_of,
    kinds_of,
    read_rope,
    shortest,
    write_rope,
)

BASES = (("global_rope_theta", 160_000.0), ("local_rope_theta", 10_000.0))  # older entries and defaults, as in `KINDS`
ACTIVATIONS = {**GATED_ACTIVATIONS, "relu": "reglu"}


def read_layers(settings: Settings) -> dict[str, Any]:
    """Return each layer's mask and rotary positions, from the newer or the older entries."""
    every, rope = settings.get("global_attn_every_n_layers", 3), settings.get("rope_parameters") or {}
    positions = [
        read_rope(rope.get(kind) or settings.get("rope_scaling") or {}, settings, settings.get(name, default))
        for kind, (name, default) in zip(KINDS, BASES, strict=True)
    ]
    mask = sliding_window(settings.get("local_attention", 128) // 2)
    local = {"mask": mask} if positions[0] == positions[1] else {"mask": mask, "position": positions[1]}
    kinds = kinds_of(settings, lambda number: number % every != 0)
    return {
        "block.position": positions[0],
        "block.layer_pattern": shortest([local if kind else {} for kind in kinds]),
    }


def write_layers(config: EncoderConfig) -> dict[str, Any]:
    """Return each layer's kind, the window, and the rotary positions of both kinds; none for other positions."""
    blocks, position = blocks_of(config), config.block.position
    local: list[Any] = [block for block in blocks if isinstance(block.attention.mask, SlidingWindow)]
    if not isinstance(position, RotaryConfig):
        return {}
    entries: dict[str, Any] = {"layer_types": [KINDS[block in local] for block in blocks]}
    rope = {KINDS[0]: write_rope(position)}
    for block in local[:1]:
        entries["local_attention"] = 2 * block.attention.mask.radius
        rope[KINDS[1]] = write_rope(block.position)
    return {**entries, "rope_parameters": rope}


MODERNBERT = Family(
    "modernbert",
    EncoderConfig,
    heads={
        "ModernBertModel": Head(Encoder, lambda settings: {"pooler": False}, bare=True),
        "ModernBertForMaskedLM": Head(bert.BertForMaskedLM, fixed={**TIED, "decoder_bias": True}),
        "ModernBertForSequenceClassification": Head(
            modernbert.ModernBertForSequenceClassification, labels, fixed={"classifier_pooling": "cls"}
        ),
        "ModernBertForTokenClassification": Head(modernbert.ModernBertForTokenClassification, labels),
        "ModernBertForQuestionAnswering": Head(
            modernbert.ModernBertForQuestionAnswering, names=same("", "", ("classifier", "span"))
        ),
        "ModernBertForMultipleChoice": Head(
            modernbert.ModernBertForMultipleChoice, fixed={"classifier_pooling": "cls"}
        ),
    },
    implied={"block.norm.placement": "pre", "segments": 0, "first_norm": False},
    settings=(
        Setting("vocab_size", "vocab_size"),
        Setting("hidden_size", "block.d_model"),
        Setting("num_attention_heads", "block.attention.heads"),
        Setting("intermediate_size", "block.ffn.d_ff"),
        Setting("num_hidden_layers", "layers"),
        Setting("max_position_embeddings", "max_length", 8192),
        Setting("norm_eps", "block.norm.eps", 1e-5),
        Setting("norm_bias", "block.norm.bias", False),
        ATTENTION_BIAS,
        NETWORK_BIAS,
        Setting("classifier_bias", "block.ffn.bias", False),
        Setting("hidden_activation", "block.ffn.activation", "gelu", words=ACTIVATIONS),
        Setting("classifier_activation", "block.ffn.activation", "gelu", words=ACTIVATIONS),
        Setting("mlp_dropout", "block.dropout", 0.0),
        Setting("attention_dropout", "block.attention.dropout", 0.0),
        Setting("classifier_dropout", "classifier_dropout", 0.0, like="block.dropout"),
        Setting("initializer_range", "init_std", 0.02),
        Setting("pad_token_id", "pad_id", 50283),
        Setting("sep_token_id", "sep_id", 50282),
        Translation(read_layers, write_layers),
    ),
    describe=describe,
    names=(
        *same(
            "model.",
            "base.",
            ("embeddings.tok_embeddings", "embedding"),
            ("embeddings.norm", "embedding_norm"),
            ("final_norm", "encoder.norm"),
        ),
        *same(
            "model.layers.{}.",
            "base.encoder.layers.{}.",
            ("attn_norm", "self_attention_norm"),
            ("attn.Wo", "self_attention.output"),
            ("mlp_norm", "feed_forward_norm"),
            ("mlp.Wo", "feed_forward.down_proj"),
        ),
        Name(
            "model.layers.{}.attn.Wqkv",
            tuple(f"base.encoder.layers.{{}}.self_attention.{part}" for part in ("query", "key", "value")),
        ),
        Name(
            "model.layers.{}.mlp.Wi",
            tuple(f"base.encoder.layers.{{}}.feed_forward.{part}" for part in ("gate_proj", "up_proj")),
        ),
        *same(
            "",
            "",
            ("head.dense", "predictions.dense"),
            ("head.norm", "predictions.norm"),
            ("decoder", "predictions"),
            ("classifier", "classifier"),
        ),
    ),
    prefix="model.",
    our_prefix="base.",
    ignored=(r"decoder\.weight",),
)
