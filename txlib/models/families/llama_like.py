"""Decoders that are Llama with a few settings changed: a table for each.

Mistral (Jiang et al. 2023), Qwen2 and Qwen3 (Qwen Team 2024; 2025), Gemma 2 and 3 (Gemma Team 2024; 2025), OLMo 2 and 3
(Team OLMo 2025), SmolLM3 (Bakouch et al. 2025), Phi-3 (Abdin et al. 2024), Seed-OSS (ByteDance Seed 2025) and Granite
(Granite Team 2024).
"""

from types import MappingProxyType
from typing import Any

from txlib.attention.multihead import four_biases
from txlib.layers import NoPosition
from txlib.models.families.family import Family, Head, Name, Setting, Settings, Translation
from txlib.models.families.llama import (
    ACTIVATION,
    ATTENTION_BIAS,
    BOTH_NORMS,
    ENDS,
    FREQUENCIES,
    GATED_ACTIVATIONS,
    IMPLIED,
    KINDS,
    LAYER,
    NAMES,
    NETWORK,
    NETWORK_BIAS,
    OUR_LAYER,
    OUT_NORMS,
    PRE_NORMS,
    PROJECTIONS,
    QK_NORMS,
    Entry,
    blocks_of,
    kinds_of,
    layer_types,
    layer_types_and_rotary,
    rotary,
    settings,
    shortest,
    sizes,
    used_width,
    width_entries,
    width_of,
    window,
    window_of_all,
)
from txlib.models.gpt import GPT, GPTConfig

NO_BIASES = {"block.attention.bias": False, "block.ffn.bias": False}
QKV_BIASES = {"block.attention.bias": (True, True, True, False), "block.ffn.bias": False}
NO_IDS = (None, None, None)
WIDTH = Setting("intermediate_size", "block.ffn.d_ff")


def like_llama(
    model_type: str,
    prefix: str,
    entries: tuple[Entry, ...],
    names: tuple[Name, ...] = (*NAMES, *NETWORK),
    implied: Settings = MappingProxyType({}),
    fixed: Settings = MappingProxyType({}),
) -> Family:
    """Return a family of `GPT` whose files are named like Llama's.

    Args:
        prefix: of the name of transformers' class.
        implied: in addition to Llama's.
    """
    return Family(
        model_type,
        GPTConfig,
        heads={f"{prefix}ForCausalLM": Head(GPT)},
        implied={**IMPLIED, **implied},
        fixed=fixed,
        settings=entries,
        names=names,
        prefix="model.",
        ignored=FREQUENCIES,
    )


# Windows by layer, as Qwen and SmolLM3 say them -----------------------------------------------------------------------


def read_qwen(settings: Settings) -> dict[str, Any]:
    """Return the pattern: windows from layer `max_window_layers` on, if they are used, or as `layer_types` says."""
    width = used_width(settings, 4096)
    first = settings.get("max_window_layers", 28)
    kinds = kinds_of(settings, lambda number: width is not None and number >= first)
    if width is None and any(kinds):
        raise ValueError("layer_types holds sliding_attention, and use_sliding_window is false; set sliding_window")
    return {"block.layer_pattern": shortest([{"mask": window(width)} if kind else {} for kind in kinds])}


def write_qwen(config: GPTConfig) -> dict[str, Any]:
    """Return the entries of `read_qwen`."""
    masks = [block.attention.mask for block in blocks_of(config)]
    return {"layer_types": [KINDS[mask is not None] for mask in masks], **width_entries(width_of(masks))}


def read_smollm3(settings: Settings) -> dict[str, Any]:
    """Return the pattern: no positions in every fourth layer, and windows there if they are used."""
    layers, interval = settings["num_hidden_layers"], settings.get("no_rope_layer_interval", 4)
    rotated = settings.get("no_rope_layers") or [int((number + 1) % interval != 0) for number in range(layers)]
    width = used_width(settings, None)
    kinds = kinds_of(settings, lambda number: width is not None and not rotated[number])
    if len(rotated) != layers:
        raise ValueError(f"no_rope_layers has {len(rotated)} layers, num_hidden_layers={layers}; correct one of them")
    options = [
        ({} if rotated[number] else {"position": NoPosition()}) | ({"mask": window(width)} if kind and width else {})
        for number, kind in enumerate(kinds)
    ]
    return {"block.layer_pattern": shortest(options)}


def write_smollm3(config: GPTConfig) -> dict[str, Any]:
    """Return the entries of `read_smollm3`."""
    rotated = [int(not isinstance(block.position, NoPosition)) for block in blocks_of(config)]
    return {**write_qwen(config), "no_rope_layers": rotated}


QWEN_WINDOWS = Translation(read_qwen, write_qwen)

MISTRAL = like_llama("mistral", "Mistral", (*settings(base=1e4, eps=1e-6), window_of_all(4096)), implied=NO_BIASES)
QWEN2 = like_llama("qwen2", "Qwen2", (*settings(base=1e4, eps=1e-6, ids=NO_IDS), QWEN_WINDOWS), implied=QKV_BIASES)
QWEN3 = like_llama(
    "qwen3",
    "Qwen3",
    (*settings(base=1e4, eps=1e-6, head_dim=128, ids=NO_IDS), QWEN_WINDOWS, ATTENTION_BIAS),
    (*NAMES, *NETWORK, *QK_NORMS),
    implied={"block.attention.qk_norm": "rms", "block.ffn.bias": False},
)
SMOLLM3 = like_llama(
    "smollm3",
    "SmolLM3",
    (
        *settings(base=2e6, eps=1e-6, tied=True, ids=(128_000, 128_001, 128_004)),
        Translation(read_smollm3, write_smollm3),
        ATTENTION_BIAS,
        NETWORK_BIAS,
    ),
)
GRANITE = like_llama(
    "granite",
    "Granite",
    (
        *settings(base=1e4, eps=1e-6),
        ATTENTION_BIAS,
        NETWORK_BIAS,
        Setting("embedding_multiplier", "embedding_scale", 1.0),
        Setting("logits_scaling", "logit_divisor", 1.0),
        Setting("residual_multiplier", "block.residual_scale", 1.0),
        Translation(
            lambda settings: {"block.attention.scale": settings.get("attention_multiplier", 1.0)},
            lambda config: {"attention_multiplier": config.block.attention.scale or config.block.head_dim**-0.5},
        ),
    ),
)


def read_biases(settings: Settings) -> dict[str, Any]:
    """Return Seed-OSS's biases: those of the output are separate."""
    inner, outer = settings.get("attention_bias", True), settings.get("attention_out_bias", False)
    return {"block.attention.bias": inner if inner == outer else (inner, inner, inner, outer)}


def write_biases(config: GPTConfig) -> dict[str, Any]:
    """Return the entries of `read_biases`."""
    query, _, _, output = four_biases(config.block.attention.bias)
    return {"attention_bias": query, "attention_out_bias": output}


SEED_OSS = like_llama(
    "seed_oss",
    "SeedOss",
    (
        *settings(base=1e4, eps=1e-6, head_dim=128, dropout=0.1, ids=(0, 2, 1)),
        Translation(read_biases, write_biases),
        NETWORK_BIAS,
    ),
)
PHI3 = like_llama(
    "phi3",
    "Phi3",
    (
        *settings(base=1e4, eps=1e-5, ids=(1, 32_000, 32_000)),
        window_of_all(None),
        Setting("resid_pdrop", "block.dropout", 0.0),
    ),
    (
        *ENDS,
        *PRE_NORMS,
        Name(
            LAYER + "self_attn.qkv_proj",
            tuple(OUR_LAYER + "self_attention." + name for name in ("query", "key", "value")),
        ),
        Name(LAYER + "self_attn.o_proj", (OUR_LAYER + "self_attention.output",)),
        Name(
            LAYER + "mlp.gate_up_proj",
            (OUR_LAYER + "feed_forward.gate_proj", OUR_LAYER + "feed_forward.up_proj"),
        ),
        Name(LAYER + "mlp.down_proj", (OUR_LAYER + "feed_forward.down_proj",)),
    ),
    implied=NO_BIASES,
)

# OLMo: norms of the outputs alone, and of all queries and keys together -----------------------------------------------

OLMO = {
    "block.norm.placement": "output",
    "block.attention.qk_norm": "rms",
    "block.attention.qk_norm_whole": True,
    "block.ffn.bias": False,
}
OLMO_NAMES = (*ENDS, *OUT_NORMS, *PROJECTIONS, *QK_NORMS, *NETWORK)
OLMO2 = like_llama(
    "olmo2",
    "Olmo2",
    (*settings(base=1e4, eps=1e-5, ids=(None, 50_279, 1)), ATTENTION_BIAS),
    OLMO_NAMES,
    implied=OLMO,
)
OLMO3 = like_llama(
    "olmo3",
    "Olmo3",
    (
        *sizes(eps=1e-5, ids=(None, 50_279, 1)),
        WIDTH,
        ACTIVATION,
        layer_types_and_rotary(4, 5e5, 5e5),
        ATTENTION_BIAS,
    ),
    OLMO_NAMES,
    implied=OLMO,
)

# Gemma: norms on both sides, around 1; the embedding times √d_model; GELU ---------------------------------------------


def read_gemma(settings: Settings) -> dict[str, Any]:
    """Return the factors of token vectors and of scores."""
    width, scalar = settings.get("head_dim") or 256, settings.get("query_pre_attn_scalar", 256)
    return {
        "embedding_scale": settings["hidden_size"] ** 0.5,
        "block.attention.scale": None if scalar == width else scalar**-0.5,
    }


def write_gemma(config: GPTConfig) -> dict[str, Any]:
    """Return the entry of the factor of scores; the other follows from the width."""
    scale = config.block.attention.scale
    return {"query_pre_attn_scalar": config.block.head_dim if scale is None else round(scale**-2)}


GEMMA = {
    "block.norm.placement": "both",
    "block.norm.zero_centered": True,
    "block.ffn.bias": False,
}
GEMMA_SETTINGS = (
    *sizes(eps=1e-6, head_dim=256, tied=True, ids=(2, 1, 0)),
    WIDTH,
    ATTENTION_BIAS,
    Setting("hidden_activation", "block.ffn.activation", "gelu_pytorch_tanh", words=GATED_ACTIVATIONS),
    Translation(read_gemma, write_gemma),
)
GEMMA_NAMES = (*ENDS, *BOTH_NORMS, *PROJECTIONS, *NETWORK)
GEMMA2 = like_llama(
    "gemma2",
    "Gemma2",
    (
        *GEMMA_SETTINGS,
        rotary(1e4),
        layer_types(2, 4096),
        Setting("attn_logit_softcapping", "block.attention.softcap", 50.0, null=True),
        Setting("final_logit_softcapping", "logit_softcap", 30.0, null=True),
    ),
    GEMMA_NAMES,
    implied=GEMMA,
    fixed={"use_bidirectional_attention": None},
)
GEMMA3 = like_llama(
    "gemma3_text",
    "Gemma3",
    (
        *GEMMA_SETTINGS,
        layer_types_and_rotary(6, 1e6, 1e4),
        Setting("final_logit_softcapping", "logit_softcap", None),
    ),
    (*GEMMA_NAMES, *QK_NORMS),
    implied={**GEMMA, "block.attention.qk_norm": "rms"},
    fixed={"use_bidirectional_attention": None, "attn_logit_softcapping": None},
)
