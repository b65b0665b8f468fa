"""The Perceiver's masked language model (Jaegle et al. 2022, §4.1)."""

from typing import Any

from txlib.layers import BlockConfig
from txlib.models.families.family import ACTIVATIONS, Family, Head, Name, Setting, Settings, Translation, same
from txlib.models.perceiver import PerceiverForMaskedLM, PerceiverLMConfig

BLOCKS = "block", "cross", "decoder"
DECODER_HEADS, DECODER_WIDTH = 8, 256  # of queries and keys, in the code and not in config.json


def read_widths(settings: Settings) -> dict[str, Any]:
    """Heads of three kinds of attention: their widths are those of all heads together.

    Raises:
        ValueError: when heads can't share them.
    """
    latent, array = settings["d_latents"], settings["d_model"]
    shape = settings.get("cross_attention_shape_for_attention", "kv")
    if shape not in ("q", "kv"):
        raise ValueError(f"cross_attention_shape_for_attention={shape!r} is not supported, only q, kv")
    given, values = settings.get("qk_channels"), settings.get("v_channels")
    cross = given or (latent if shape == "q" else array)
    if (values or given or latent) != latent:
        raise ValueError(f"v_channels={values or given} is not supported beside d_latents={latent}: they must be equal")
    widths = {
        "block": (settings.get("num_self_attention_heads", 8), given or latent, latent, latent, "self"),
        "cross": (settings.get("num_cross_attention_heads", 8), cross, values or cross, latent, "cross"),
        "decoder": (DECODER_HEADS, DECODER_WIDTH, array, array, None),
    }
    found: dict[str, Any] = {"d_input": array}
    for place, (heads, width, value, d_model, kind) in widths.items():
        for name, size in ("qk_channels", width), ("v_channels", value):
            if size % heads:
                raise ValueError(f"{name}: a width of {size} is not divisible by the {heads} heads of {place}")
        widening = settings.get(f"{kind}_attention_widening_factor", 1) if kind else 1
        sizes = {
            "d_model": d_model,
            "attention.heads": heads,
            "attention.head_dim": width // heads,
            "attention.value_dim": value // heads,
            "ffn.d_ff": widening * d_model,
        }
        found |= {f"{place}.{name}": size for name, size in sizes.items()}
    return found


def write_widths(config: PerceiverLMConfig) -> dict[str, Any]:
    """Their names for the widths. What they can't say is read with another value."""
    block, cross = config.block, config.reading
    keys, values = (
        {each.attention.heads * each.head_dim for each in (block, cross)},
        {all_values(each) for each in (block, cross)},
    )
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


def all_values(block: BlockConfig) -> int:
    """Width of all heads' values together."""
    return block.attention.heads * block.value_dim


def shared(theirs: str, ours: str, default: Any, **more: Any) -> tuple[Setting, ...]:
    """An entry that speaks of all three kinds of attention."""
    return tuple(Setting(theirs, f"{place}.{ours}", default, **more) for place in BLOCKS)


def attention(theirs: str, ours: str, attend: str, *norms: tuple[str, str]) -> tuple[Name, ...]:
    """The tensors of one layer."""
    return same(
        theirs,
        ours,
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
    implied={f"{place}.norm.eps": 1e-5 for place in BLOCKS},  # whatever layer_norm_eps says
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
