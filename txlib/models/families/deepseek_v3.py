"""DeepSeek-V3: latent attention, and experts besides one that all tokens use (DeepSeek-AI 2024b).

DeepSeek-V3.2 adds an indexer, which chooses the tokens that a query attends to (DeepSeek-AI 2025).
"""

import math
from dataclasses import replace
from typing import Any

from txlib.layers import LatentConfig, MixtureConfig, RotaryConfig
from txlib.layers.position import RotaryLayout
from txlib.models.families.family import Family, Head, Name, Setting, Settings, Translation, same
from txlib.models.families.llama import (
    ACTIVATION,
    ATTENTION_BIAS,
    ENDS,
    EXPERT_NETWORKS,
    FREQUENCIES,
    IMPLIED,
    LAYER,
    NETWORK,
    OUR_LAYER,
    PRE_NORMS,
    network,
    read_rope,
    rope_of,
    rotary,
)
from txlib.models.gpt import GPT, GPTConfig

ATTENTION, THEIR_ATTENTION = OUR_LAYER + "self_attention.", LAYER + "self_attn."


def read_position(settings: Settings) -> dict[str, Any]:
    """Return the positions, and the factor of scores where YaRN enlarges them."""
    rope = rope_of(settings)
    layout: RotaryLayout = "interleaved" if settings.get("rope_interleave", True) else "half"
    position = replace(read_rope(rope, settings, 10_000.0), layout=layout)
    scale = None
    if rope.get("mscale_all_dim") and position.scaling is not None:
        width = settings.get("qk_nope_head_dim", 128) + settings.get("qk_rope_head_dim", 64)
        scale = (1 + 0.1 * rope["mscale_all_dim"] * math.log(rope["factor"])) ** 2 / width**0.5
    return {"block.position": position, "block.attention.scale": scale}


def write_position(config: GPTConfig) -> dict[str, Any]:
    """Return the same entries."""
    position, scale = config.block.position, config.block.attention.scale
    entries = rotary(10_000.0).write(config)
    if isinstance(position, RotaryConfig) and position.scaling is not None and scale is not None:
        width = config.block.head_dim + (getattr(config.block.mixer, "rotary_dim", None) or 0)
        larger = (scale * width**0.5) ** 0.5 - 1
        factor = getattr(position.scaling, "factor", 1)
        entries["rope_parameters"]["mscale_all_dim"] = round(larger / (0.1 * math.log(factor)), 6)
    return {**entries, "rope_interleave": getattr(position, "layout", "interleaved") == "interleaved"}


def read_widths(settings: Settings) -> dict[str, Any]:
    """Return the widths of a head that are not rotated, and of the shared experts together."""
    return {
        "block.attention.head_dim": settings.get("qk_nope_head_dim", 128),
        "block.attention.value_dim": settings.get("v_head_dim", 128),
        "block.ffn.shared_d_ff": settings["moe_intermediate_size"] * settings.get("n_shared_experts", 1),
    }


def write_widths(config: GPTConfig) -> dict[str, Any]:
    """Return the same entries."""
    block: Any = config.block
    return {
        "qk_nope_head_dim": block.head_dim,
        "v_head_dim": block.value_dim,
        "n_shared_experts": (getattr(block.ffn, "shared_d_ff", None) or 0) // (block.ffn.d_ff or 1),
        "num_key_value_heads": block.attention.heads,
    }


def read_first_layers(settings: Settings) -> dict[str, Any]:
    """Return the layers: the first few have one network instead of experts."""
    layers = settings["num_hidden_layers"]
    dense = min(settings.get("first_k_dense_replace", 3), layers)
    first = {"experts": None, "d_ff": settings["intermediate_size"]}
    return {"block.layer_pattern": ((first,) * dense + ({},) * (layers - dense)) if dense else ()}


def write_first_layers(config: GPTConfig) -> dict[str, Any]:
    """Return how many layers have no experts, and how wide their network is."""
    dense = [options for options in config.block.layer_pattern if options]
    width = dense[0].get("d_ff") if dense else config.block.ffn.d_ff
    return {"first_k_dense_replace": len(dense), "intermediate_size": width}


def has_query_rank(config: GPTConfig) -> bool:
    mixer = config.block.mixer
    return isinstance(mixer, LatentConfig) and mixer.query_rank is not None


DEEPSEEK_V3 = Family(
    "deepseek_v3",
    GPTConfig,
    heads={"DeepseekV3ForCausalLM": Head(GPT)},
    implied={
        **IMPLIED,
        "block.mixer.type": LatentConfig.name,
        "block.mixer.index_top_k": None,
        "block.ffn.type": MixtureConfig.name,
        "block.ffn.bias": False,
        "block.ffn.router": "sigmoid",
        "block.ffn.choice_bias": True,
    },
    settings=(
        Setting("vocab_size", "vocab_size"),
        Setting("hidden_size", "block.d_model"),
        Setting("num_attention_heads", "block.attention.heads"),
        Setting("num_hidden_layers", "layers"),
        Setting("max_position_embeddings", "max_length", 4096),
        Setting("rms_norm_eps", "block.norm.eps", 1e-6),
        Translation(read_position, write_position),
        ACTIVATION,
        ATTENTION_BIAS,
        Setting("attention_dropout", "block.attention.dropout", 0.0),
        Setting("kv_lora_rank", "block.mixer.rank", 512),
        Setting("q_lora_rank", "block.mixer.query_rank", 1536, null=True),
        Setting("qk_rope_head_dim", "block.mixer.rotary_dim", 64),
        Translation(read_widths, write_widths),
        Setting("moe_intermediate_size", "block.ffn.d_ff"),
        Setting("n_routed_experts", "block.ffn.experts"),
        Setting("num_experts_per_tok", "block.ffn.top_k", 8),
        Setting("n_group", "block.ffn.expert_groups", 8),
        Setting("topk_group", "block.ffn.top_groups", 4),
        Setting("norm_topk_prob", "block.ffn.normalize", True),
        Setting("routed_scaling_factor", "block.ffn.routed_scale", 2.5),
        Translation(read_first_layers, write_first_layers),
        Setting("tie_word_embeddings", "tie_embeddings", False),
        Setting("initializer_range", "init_std", 0.02),
        Setting("bos_token_id", "bos_id", 0, null=True),
        Setting("eos_token_id", "eos_id", 1, null=True),
        Setting("pad_token_id", "pad_id", None),
    ),
    names=(
        *ENDS,
        *PRE_NORMS,
        *same(
            THEIR_ATTENTION,
            ATTENTION,
            ("q_a_proj", "query_latent"),
            ("q_a_layernorm", "query_norm"),
            ("kv_a_layernorm", "latent_norm"),
            ("o_proj", "output"),
        ),
        Name(THEIR_ATTENTION + "q_b_proj", (ATTENTION + "query",), when=has_query_rank),
        Name(THEIR_ATTENTION + "q_proj", (ATTENTION + "query",), when=lambda config: not has_query_rank(config)),
        Name(THEIR_ATTENTION + "kv_a_proj_with_mqa", (ATTENTION + "latent", ATTENTION + "shared_key")),
        Name(THEIR_ATTENTION + "kv_b_proj", (ATTENTION + "key", ATTENTION + "value"), "by_head"),
        *NETWORK,
        *EXPERT_NETWORKS,
        *network("mlp.shared_experts.", "feed_forward.shared."),
        Name(LAYER + "mlp.gate.e_score_correction_bias", (OUR_LAYER + "feed_forward.choice_bias",)),
    ),
    prefix="model.",
    ignored=FREQUENCIES,
)

DEEPSEEK_V32 = replace(
    DEEPSEEK_V3,
    model_type="deepseek_v32",
    heads={"DeepseekV32ForCausalLM": Head(GPT)},
    implied={path: value for path, value in DEEPSEEK_V3.implied.items() if path != "block.mixer.index_top_k"},
    settings=(
        *DEEPSEEK_V3.settings,
        Setting("index_topk", "block.mixer.index_top_k", 2048),
        Setting("index_n_heads", "block.mixer.index_heads", 64),
        Setting("index_head_dim", "block.mixer.index_dim", 128),
    ),
    names=(
        *DEEPSEEK_V3.names,
        *same(
            THEIR_ATTENTION + "indexer.",
            ATTENTION + "indexer.",
            ("wq_b", "query"),
            ("wk", "key"),
            ("k_norm", "key_norm"),
            ("weights_proj", "weight"),
        ),
    ),
)
