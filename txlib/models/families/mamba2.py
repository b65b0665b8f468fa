"""Mamba-2: mixers with a state, without attention and feed-forward layers (Dao & Gu 2024)."""

import math
from typing import Any

from txlib.models.families.family import Family, Head, Name, Setting, Settings, Translation, same
from txlib.models.gpt import GPT, GPTConfig

IN_PROJ = "decoder.layers.{}.self_attention.in_proj."
NO_LIMIT = 2**20  # positions; the state has the same size for any number
STEP_LIMITS = (0.0, math.inf)


def read_head_dim(settings: Settings) -> dict[str, Any]:
    """Return the width of a head, None where all together are twice as wide as the model, as in the paper."""
    width = settings.get("head_dim", 64)
    return {"block.mixer.head_dim": None if width * settings["num_heads"] == 2 * settings["hidden_size"] else width}


def write_head_dim(config: GPTConfig) -> dict[str, Any]:
    """Return the width of a head, and of all of them in multiples of the model's."""
    d_model, heads, mixer = config.block.d_model, config.block.attention.heads, config.block.mixer
    width = getattr(mixer, "head_dim", None) or 2 * d_model // heads
    return {"head_dim": width, "expand": width * heads // d_model}


def check_steps(settings: Settings) -> dict[str, Any]:
    """Refuse limits of Δ.

    Raises:
        ValueError: naming them.
    """
    entries = settings.get("time_step_limit") or STEP_LIMITS
    limits = tuple(float(limit["__float__"] if isinstance(limit, dict) else limit) for limit in entries)
    if limits != STEP_LIMITS:
        raise ValueError(f"time_step_limit={limits} is not supported, only {STEP_LIMITS}")
    return {}


MAMBA2 = Family(
    "mamba2",
    GPTConfig,
    heads={"Mamba2ForCausalLM": Head(GPT)},
    implied={
        "block.norm.kind": "rms",
        "block.norm.bias": False,
        "block.ffn.d_ff": 0,
        "block.position.type": "none",
        "block.mixer.type": "mamba2",
    },
    fixed={"hidden_act": "silu"},
    settings=(
        Setting("vocab_size", "vocab_size"),
        Setting("hidden_size", "block.d_model"),
        Setting("num_hidden_layers", "layers"),
        Setting("max_position_embeddings", "max_length", NO_LIMIT),
        Setting("layer_norm_epsilon", "block.norm.eps", 1e-5),
        Setting("num_heads", "block.attention.heads", 128),
        Translation(read_head_dim, write_head_dim),
        Setting("state_size", "block.mixer.state_dim", 128),
        Setting("n_groups", "block.mixer.groups", 8),
        Setting("conv_kernel", "block.mixer.kernel", 4),
        Setting("use_bias", "block.mixer.bias", False),
        Setting("use_conv_bias", "block.mixer.convolution_bias", True),
        Setting("chunk_size", "block.mixer.chunk", 256),
        Translation(check_steps, lambda config: {}),
        Setting("tie_word_embeddings", "tie_embeddings", False),
        Setting("initializer_range", "init_std", 0.1),
        Setting("bos_token_id", "bos_id", 0, null=True),
        Setting("eos_token_id", "eos_id", 2, null=True),
        Setting("pad_token_id", "pad_id", 1, null=True),
    ),
    names=(
        *same("backbone.", "", ("embeddings", "embedding"), ("norm_f", "decoder.norm")),
        *same(
            "backbone.layers.{}.",
            "decoder.layers.{}.",
            ("norm", "self_attention_norm"),
            ("mixer", "self_attention"),
            ("mixer", "self_attention.decay"),
            ("mixer.conv1d", "self_attention.convolution"),
            ("mixer.norm", "self_attention.norm"),
            ("mixer.out_proj", "self_attention.out_proj"),
        ),
        Name(
            "backbone.layers.{}.mixer.in_proj",
            tuple(IN_PROJ + name for name in ("gate", "value", "key", "query", "dt")),
        ),
        Name("lm_head", ("output",)),
    ),
    prefix="backbone.",
    renamed=(("backbone.embedding.", "backbone.embeddings."),),
)
