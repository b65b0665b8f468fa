"""GPT-NeoX, and Pythia (Black et al. 2022; Biderman et al. 2023): attention and network in parallel, a part rotated."""

from typing import Any

from txlib.models.families.family import ACTIVATIONS, Family, Head, Name, Setting, Settings, Translation, same
from txlib.models.families.llama import OUR_LAYER, read_rope, rope_of, rotary
from txlib.models.gpt import GPT, GPTConfig

HF_LAYER = "gpt_neox.layers.{}."


def read_position(settings: Settings) -> dict[str, Any]:
    """Return the positions, also of the older names."""
    base = float(settings.get("rotary_emb_base", 10_000.0))
    return {"block.position": read_rope(rope_of(settings), settings, base, settings.get("rotary_pct", 0.25))}


def write_position(config: GPTConfig) -> dict[str, Any]:
    """Return the positions under the newer and the older names."""
    entries = rotary(10_000.0, 0.25).write(config)
    if not entries:
        return {}
    return {
        "rope_parameters": {"partial_rotary_factor": 1.0, **entries["rope_parameters"]},
        "rotary_emb_base": entries["rope_theta"],
        "rotary_pct": entries["partial_rotary_factor"],
    }


GPT_NEOX = Family(
    "gpt_neox",
    GPTConfig,
    heads={"GPTNeoXForCausalLM": Head(GPT)},
    implied={"block.ffn.bias": True},
    settings=(
        Setting("vocab_size", "vocab_size"),
        Setting("hidden_size", "block.d_model"),
        Setting("num_attention_heads", "block.attention.heads"),
        Setting("intermediate_size", "block.ffn.d_ff"),
        Setting("num_hidden_layers", "layers"),
        Setting("max_position_embeddings", "max_length"),
        Setting("layer_norm_eps", "block.norm.eps", 1e-5),
        Setting("hidden_act", "block.ffn.activation", "gelu", words=ACTIVATIONS),
        Setting("use_parallel_residual", "block.parallel", True),
        Setting("attention_bias", "block.attention.bias", True, words={True: True, False: False}),
        Translation(read_position, write_position),
        Setting("attention_dropout", "block.attention.dropout", 0.0),
        Setting("hidden_dropout", "block.dropout", 0.0),
        Setting("tie_word_embeddings", "tie_embeddings", False),
        Setting("initializer_range", "init_std", 0.02),
        Setting("bos_token_id", "bos_id", 0, null=True),
        Setting("eos_token_id", "eos_id", 2, null=True),
        Setting("pad_token_id", "pad_id", None),
    ),
    names=(
        *same("gpt_neox.", "", ("embed_in", "embedding"), ("final_layer_norm", "decoder.norm")),
        *same(
            HF_LAYER,
            OUR_LAYER,
            ("input_layernorm", "self_attention_norm"),
            ("post_attention_layernorm", "feed_forward_norm"),
            ("attention.dense", "self_attention.output"),
            ("mlp.dense_h_to_4h", "feed_forward.up_proj"),
            ("mlp.dense_4h_to_h", "feed_forward.down_proj"),
        ),
        Name(
            HF_LAYER + "attention.query_key_value",
            tuple(f"{OUR_LAYER}self_attention.{name}" for name in ("query", "key", "value")),
            "by_head",
        ),
        Name("embed_out", ("output",)),
    ),
    prefix="gpt_neox.",
    ignored=(r"gpt_neox\.layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)",),
    renamed=(("lm_head.", "embed_out."),),
)
