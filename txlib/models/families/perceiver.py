"""The Perceiver's masked language model (Jaegle et al. 2022, §4.1)."""

from typing import Any

from txlib.models.families.family import ACTIVATIONS, Family, Head, Name, Setting, Settings, Translation, same
from txlib.models.perceiver import PerceiverForMaskedLM, PerceiverLMConfig

BLOCKS = "block", "cross", "decoder"
DECODER_HEADS, DECODER_WIDTH = 8, 256  # of queries and keys, in the code and not in config.json


def read_widths(settings: Settings) -> dict[str, Any]:
    """Return the widths of three kinds of attention; those in the settings are of all heads together.

    Raises:
        ValueError: for widths that the number of heads does not divide, and for unsupported ones.
    """
    latent, array = settings["d_latents"], settings["d_model"]
    shape = settings.get("cross_attention_shape_for_attention", "kv")
    if shape not in ("q", "kv"):
        raise ValueError(f"cross_attention_shape_for_attention={shape!r} is not supported, only q, kv")
    keys, values = settings.get("qk_channels"), settings.get("v_channels")
    cross = keys or (latent if shape == "q" else array)
    if (values or keys or latent) != latent:
        raise ValueError(f"v_channels={values or keys} is not supported beside d_latents={latent}: they must be equal")
    widths = {
        "block": (settings.get("num_self_attention_heads", 8), keys or latent, latent, latent, "self"),
        "cross": (settings.get("num_cross_attention_heads", 8), cross, values or cross, latent, "cross"),
        "decoder": (DECODER_HEADS, DECODER_WIDTH, array, array, None),
    }
    fields: dict[str, Any] = {"d_input": array}
    for config, (heads, width, value, d_model, kind) in widths.items():
        for name, size in ("qk_channels", width), ("v_channels", value):
            if size % heads:
                raise ValueError(f"{name}: a width of {size} is not divisible by the {heads} heads of {config}")
        widening = settings.get(f"{kind}_attention_widening_factor", 1) if kind else 1
        sizes = {
            "d_model": d_model,
            "attention.heads": heads,
            "attention.head_dim": width // heads,
            "attention.value_dim": value // heads,
            "ffn.d_ff": widening * d_model,
        }
        fields |= {f"{config}.{name}": size for name, size in sizes.items()}
    return fields


def write_widths(config: PerceiverLMConfig) -> dict[str, Any]:
    """Return the entries of the widths. Widths that they cannot express come back as others when they are read."""
    block, cross = config.block, config.reading
    keys = {block.attention.heads * block.head_dim, cross.attention.heads * cross.head_dim}
    values = {block.attention.heads * block.value_dim, cross.attention.heads * cross.value_dim}
    return {
        "d_latents": block.d_model,
        "d_model": config.d_input,
        "num_self_attention_heads": block.attention.heads,
        "num_cross_attention_heads": cross.attention.heads,
        "qk_channels": keys.pop() if len(keys) == 1 else None,
        "v_channels": values.pop() if len(values) == 1 else None,
        "cross_attention_shape_for_attention": "q" if cross.attention.heads * cross.head_dim == block.d_model else "kv",
        "self_attention_widening_factor": block.ffn.d_ff // block.d_model,
        "cross_attention_widening_factor": cross.ffn.d_ff // cross.d_model,
    }


def shared(hf: str, field: str, default: Any, **options: Any) -> tuple[Setting, ...]:
    """Return the settings of an entry that all three kinds of attention share."""
    return tuple(Setting(hf, f"{config}.{field}", default, **options) for config in BLOCKS)


def attention(hf: str, prefix: str, attend: str, *norms: tuple[str, str]) -> tuple[Name, ...]:
    """Return the tensors of one layer."""
    return same(
        hf,
        prefix,
        ("attention.self.query", f"{attend}.query"),
        ("attention.self.key", f"{attend}.key"),
        ("attention.self.value", f"{attend}.value"),
        ("attention.output.dense", f"{attend}.output"),
        ("mlp.dense1", "feed_forward.up_proj"),
        ("mlp.dense2", "feed_forward.down_proj"),
        ("layernorm", "feed_forward_norm"),
        *norms,
    )


BOTH = ("attention.self.layernorm1", "query_norm"), ("attention.self.layernorm2", "memory_norm")

PERCEIVER = Family(
    "perceiver",
    PerceiverLMConfig,
    heads={"PerceiverForMaskedLM": Head(PerceiverForMaskedLM)},
    implied={f"{config}.norm.eps": 1e-5 for config in BLOCKS},  # whatever layer_norm_eps says
    fixed={"use_query_residual": True},
    settings=(
        Translation(read_widths, write_widths),
        Setting("num_latents", "latents", 256),
        Setting("num_self_attends_per_block", "layers", 26),
        Setting("num_blocks", "repeats", 1),
        Setting("vocab_size", "vocab_size", 262),
        Setting("max_position_embeddings", "max_length", 2048),
        Setting("pad_token_id", "pad_id", 0),
        Setting("initializer_range", "init_std", 0.02),
        *shared("hidden_act", "ffn.activation", "gelu", words=ACTIVATIONS),
        *shared("attention_probs_dropout_prob", "attention.dropout", 0.1),
    ),
    names=(
        *same("perceiver.input_preprocessor.", "", ("embeddings", "embedding"), ("position_embeddings", "position")),
        *same(
            "",
            "",
            ("perceiver.embeddings.latents", "base.encoder.latents"),
            ("perceiver.decoder.output_position_encodings.position_embeddings", "queries"),
            ("embedding_decoder.bias", "bias"),
        ),
        *attention("perceiver.encoder.cross_attention.", "base.encoder.cross.{}.", "attention", *BOTH),
        *attention(
            "perceiver.encoder.self_attends.{}.",
            "base.encoder.layers.{}.",
            "self_attention",
            ("attention.self.layernorm1", "self_attention_norm"),
        ),
        *attention("perceiver.decoder.decoding_cross_attention.", "base.decoder.", "attention", *BOTH),
    ),
)
