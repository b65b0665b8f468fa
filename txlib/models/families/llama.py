"""Llama, from the first to the third (Touvron et al. 2023; Grattafiori et al. 2024)."""

from typing import Any

from txlib.layers import RotaryConfig
from txlib.models.families.family import Family, Head, Name, Setting, Settings, Translation, head_width, same
from txlib.models.gpt import GPT, GPTConfig


def settings(*, base: float, eps: float) -> tuple[Setting | Translation, ...]:
    """Return the settings that Llama and Mixtral share, with the defaults in which they differ."""
    return (
        Setting("vocab_size", "vocab_size"),
        Setting("hidden_size", "block.d_model"),
        Setting("num_attention_heads", "block.attention.heads"),
        Setting("num_key_value_heads", "block.attention.kv_heads", None, like="block.attention.heads"),
        head_width("head_dim", "hidden_size", "num_attention_heads"),
        Setting("intermediate_size", "block.ffn.d_ff"),
        Setting("num_hidden_layers", "layers"),
        Setting("max_position_embeddings", "max_length"),
        Setting("rms_norm_eps", "block.norm.eps", eps),
        Translation(lambda settings: read_rotary(settings, base), write_rotary),
        Setting("attention_dropout", "block.attention.dropout", 0.0),
        Setting("tie_word_embeddings", "tie_embeddings", False),
        Setting("initializer_range", "init_std", 0.02),
        Setting("bos_token_id", "bos_id", 1, null=True),
        Setting("eos_token_id", "eos_id", 2, null=True),
        Setting("pad_token_id", "pad_id", None),
    )


def read_rotary(settings: Settings, default: float) -> dict[str, Any]:
    """Return the base θ and the scaling, from the newer or the older entries.

    Raises:
        ValueError: for an unsupported scaling.
    """
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        scaling = None
    elif kind == "linear":
        scaling = {"factor": rope["factor"]}
    elif kind == "llama3":
        scaling = {field: rope[hf] for hf, field in LLAMA3_ROPE.items()}
    else:
        raise ValueError(f"rope_scaling={kind!r} is not supported, only default, linear and llama3")
    base = rope.get("rope_theta", settings.get("rope_theta", default))
    return {"block.position.base": base, "block.position.scaling": scaling}


def write_rotary(config: GPTConfig) -> dict[str, Any]:
    """Return the newer and the older entries; none for other positions, which Llama's config cannot describe."""
    position = config.block.position
    if not isinstance(position, RotaryConfig):
        return {}
    base, scaling = position.base, position.scaling
    rope: dict[str, Any]
    if scaling is None:
        rope = {"rope_type": "default"}
    elif scaling.context is None:
        rope = {"rope_type": "linear", "factor": scaling.factor}
    else:
        rope = {"rope_type": "llama3", **{hf: getattr(scaling, field) for hf, field in LLAMA3_ROPE.items()}}
    return {"rope_theta": base, "rope_parameters": {**rope, "rope_theta": base}}


LLAMA3_ROPE = {
    "factor": "factor",
    "original_max_position_embeddings": "context",
    "low_freq_factor": "slow",
    "high_freq_factor": "fast",
}
IMPLIED = {
    "block.norm.kind": "rms",
    "block.norm.bias": False,
    "block.ffn.activation": "swiglu",
    "block.position.type": "rotary",
    "block.position.layout": "half",
}
FIXED = {"hidden_act": "silu"}
NAMES = (
    *same("model.", "", ("embed_tokens", "embedding"), ("norm", "decoder.norm")),
    *same(
        "model.layers.{}.",
        "decoder.layers.{}.",
        ("input_layernorm", "self_attention_norm"),
        ("post_attention_layernorm", "feed_forward_norm"),
        ("self_attn.q_proj", "self_attention.query"),
        ("self_attn.k_proj", "self_attention.key"),
        ("self_attn.v_proj", "self_attention.value"),
        ("self_attn.o_proj", "self_attention.output"),
    ),
    Name("lm_head", ("output",)),
)
FREQUENCIES = (r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)  # in old files

LLAMA = Family(
    "llama",
    GPTConfig,
    heads={"LlamaForCausalLM": Head(GPT)},
    implied=IMPLIED,
    fixed=FIXED,
    settings=(
        *settings(base=10_000.0, eps=1e-6),
        Setting("mlp_bias", "block.ffn.bias", False),
        Setting("attention_bias", "block.attention.bias", False, words={True: True, False: False}),
    ),
    names=(
        *NAMES,
        *same(
            "model.layers.{}.mlp.",
            "decoder.layers.{}.feed_forward.",
            ("gate_proj", "gate_proj"),
            ("up_proj", "up_proj"),
            ("down_proj", "down_proj"),
        ),
    ),
    prefix="model.",
    ignored=FREQUENCIES,
)
