"""ModernBERT and its heads (Warner et al. 2024): pre-norm, rotary, gated, most layers with a window."""

from typing import Any

from txlib.attention import sliding_window
from txlib.attention.masks import SlidingWindow
from txlib.layers import RotaryConfig
from txlib.models import bert, modernbert
from txlib.models.encoder import Encoder, EncoderConfig
from txlib.models.families.bert import TIED, describe, labels
from txlib.models.families.family import Family, Head, Name, Setting, Settings, Translation, same

FULL, LOCAL = "full_attention", "sliding_attention"
BASES = {FULL: ("global_rope_theta", 160_000.0), LOCAL: ("local_rope_theta", 10_000.0)}  # older entries, and defaults
ACTIVATIONS = {
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu_tanh",
    "gelu_new": "geglu_tanh",
    "silu": "swiglu",
    "relu": "reglu",
}  # Hugging Face's name → txlib's, with a gate


def read_layers(settings: Settings) -> dict[str, Any]:
    """Return each layer's mask and rotary positions, from the newer or the older entries.

    Raises:
        ValueError: for an unknown kind of layer, another number of them, and an unsupported scaling.
    """
    layers, every = settings["num_hidden_layers"], settings.get("global_attn_every_n_layers", 3)
    kinds = settings.get("layer_types") or [LOCAL if number % every else FULL for number in range(layers)]
    if len(kinds) != layers or not set(kinds) <= BASES.keys():
        raise ValueError(f"layer_types={kinds!r} is not supported, only {layers} of {FULL} and {LOCAL}")
    mask = sliding_window(settings.get("local_attention", 128) // 2)
    options = {FULL: {"position": rotary(settings, FULL)}, LOCAL: {"position": rotary(settings, LOCAL), "mask": mask}}
    return {"block.layer_pattern": tuple(options[kind] for kind in kinds)}


def rotary(settings: Settings, kind: str) -> RotaryConfig:
    """Return the positions of one kind of layer."""
    rope = (settings.get("rope_parameters") or {}).get(kind) or {}
    if rope.get("rope_type", "default") != "default" or settings.get("rope_scaling"):
        raise ValueError(f"rope_parameters={rope!r} is not supported, only rope_type 'default'")
    name, default = BASES[kind]
    base: float = rope.get("rope_theta") or settings.get(name, default)
    return RotaryConfig(base=base, layout="half")


def write_layers(config: EncoderConfig) -> dict[str, Any]:
    """Return each layer's kind, the window, and the rotary positions of both kinds.

    Raises:
        ValueError: for layers with other differences.
    """
    pattern, kinds = config.block.layer_pattern, []
    rope = {kind: {"rope_type": "default", "rope_theta": default} for kind, (_, default) in BASES.items()}
    entries: dict[str, Any] = {}
    for options in pattern:
        mask, position = options.get("mask"), options.get("position")
        if not isinstance(position, RotaryConfig) or not (mask is None or isinstance(mask, SlidingWindow)):
            raise ValueError(f"modernbert has rotary layers with or without a window, not {options}")
        kinds.append(FULL if mask is None else LOCAL)
        rope[kinds[-1]]["rope_theta"] = position.base
        if mask is not None:
            entries["local_attention"] = 2 * mask.radius
    return {**entries, "layer_types": kinds, "rope_parameters": rope}


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
    implied={
        "block.norm.placement": "pre",
        "block.position.type": "rotary",
        "block.position.layout": "half",
        "segments": 0,
        "first_norm": False,
    },
    settings=(
        Setting("vocab_size", "vocab_size"),
        Setting("hidden_size", "block.d_model"),
        Setting("num_attention_heads", "block.attention.heads"),
        Setting("intermediate_size", "block.ffn.d_ff"),
        Setting("num_hidden_layers", "layers"),
        Setting("max_position_embeddings", "max_length", 8192),
        Setting("norm_eps", "block.norm.eps", 1e-5),
        Setting("norm_bias", "block.norm.bias", False),
        Setting("attention_bias", "block.attention.bias", False, words={True: True, False: False}),
        Setting("mlp_bias", "block.ffn.bias", False),
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
