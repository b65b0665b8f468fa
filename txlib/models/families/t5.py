"""T5, in its first version and in 1.1 (Raffel et al. 2020)."""

from typing import Any

from txlib.layers.feedforward import GATED
from txlib.models.families.family import TENSORS, Family, Head, Name, Setting, Settings, Translation, head_width, same
from txlib.models.transformer import Transformer, TransformerConfig

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
    "gated-relu": "reglu",
    "gated-gelu": "geglu_tanh",
    "gated-silu": "swiglu",
}  # Hugging Face's word → txlib's
ATTENTION = (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output"))


def read_output(settings: Settings) -> dict[str, Any]:
    """Return whether the output is scaled, and whether its matrix is tied.

    Version 1.1 has a separate output matrix and does not scale its input. These are two fields here: the matrix is tied
    unless it is in the file; the scale follows from `tie_word_embeddings` in older files and is an entry of newer ones.
    """
    scaled = settings.get("scale_decoder_outputs", settings.get("tie_word_embeddings", True))
    return {"scale_output": scaled, "tie_embeddings": "lm_head.weight" not in settings[TENSORS]}


def write_output(config: TransformerConfig) -> dict[str, Any]:
    """Return the scale under both names."""
    return {"scale_decoder_outputs": config.scale_output, "tie_word_embeddings": config.scale_output}


def is_gated(config: TransformerConfig) -> bool:
    return config.block.ffn.activation in GATED


def stack(side: str) -> tuple[Name, ...]:
    """Return the tensors of the encoder or the decoder. The decoder's second sub-layer of three reads the encoder."""
    hf, prefix = f"{side}.block.{{}}.layer.", f"{side}.layers.{{}}."
    last = 1 if side == "encoder" else 2
    dense, network = f"{hf}{last}.DenseReluDense.", prefix + "feed_forward."
    return (
        *same(hf + "0.SelfAttention.", prefix + "self_attention.", *ATTENTION),
        *same(hf, prefix, ("0.SelfAttention.relative_attention_bias", "self_attention.position_bias")),
        *same(hf, prefix, ("0.layer_norm", "self_attention_norm"), (f"{last}.layer_norm", "feed_forward_norm")),
        *same(hf + "1.EncDecAttention.", prefix + "cross_attention.", *ATTENTION),
        *(same(hf, prefix, ("1.layer_norm", "cross_attention_norm")) if side == "decoder" else ()),
        Name(dense + "wi", (network + "up_proj",), when=lambda config: not is_gated(config)),
        Name(dense + "wi_0", (network + "gate_proj",), when=is_gated),
        Name(dense + "wi_1", (network + "up_proj",), when=is_gated),
        Name(dense + "wo", (network + "down_proj",)),
        Name(f"{side}.final_layer_norm", (f"{side}.norm",)),
    )


T5 = Family(
    "t5",
    TransformerConfig,
    heads={"T5ForConditionalGeneration": Head(Transformer), "T5WithLMHeadModel": Head(Transformer)},
    implied={
        "block.norm.kind": "rms",
        "block.norm.bias": False,
        "block.attention.bias": False,
        "block.ffn.bias": False,
        "block.attention.scale": 1.0,
        "block.position.type": "t5",
        "scale_embedding": False,
    },
    fixed={"is_encoder_decoder": True, "is_decoder": False},
    settings=(
        Setting("vocab_size", "vocab_size"),
        Setting("d_model", "block.d_model"),
        Setting("num_heads", "block.attention.heads"),
        head_width("d_kv", "d_model", "num_heads", default=64),
        Setting("d_ff", "block.ffn.d_ff"),
        Setting("num_layers", "encoder_layers"),
        Setting("num_decoder_layers", "decoder_layers", lambda settings: settings["num_layers"]),
        Setting("n_positions", "max_length", 512),
        Setting("relative_attention_num_buckets", "block.position.buckets", 32),
        Setting("relative_attention_max_distance", "block.position.max_distance", 128),
        Setting("layer_norm_epsilon", "block.norm.eps", 1e-6),
        Setting("feed_forward_proj", "block.ffn.activation", "relu", words=ACTIVATIONS),
        Setting("dropout_rate", "block.attention.dropout", 0.1),
        Setting("dropout_rate", "block.dropout", 0.1),
        Translation(read_output, write_output),
        Setting("pad_token_id", "pad_id", 0),
        Setting("eos_token_id", "eos_id", 1),
        Setting("decoder_start_token_id", "bos_id", lambda settings: settings.get("pad_token_id") or 0),
        Setting("bad_words_ids", "bad_words_ids", ()),
    ),
    names=(Name("shared", ("embedding",)), *stack("encoder"), *stack("decoder"), Name("lm_head", ("output",))),
    ignored=(r"(en|de)coder\.embed_tokens\.weight",),
)
