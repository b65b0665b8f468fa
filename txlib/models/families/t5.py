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
}  # their word → ours
ATTENTION = (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output"))


def read_output(settings: Settings) -> dict[str, Any]:
    """Version 1.1 has an output matrix of its own, and does not scale its input. Both are separate here: the matrix is
    in the file or is not; the scale was once told by `tie_word_embeddings`, and has a name of its own in newer files.
    """
    scaled = settings.get("scale_decoder_outputs", settings.get("tie_word_embeddings", True))
    return {"scale_output": scaled, "tie_embeddings": "lm_head.weight" not in settings[TENSORS]}


def write_output(config: TransformerConfig) -> dict[str, Any]:
    """Both names."""
    return {"scale_decoder_outputs": config.scale_output, "tie_word_embeddings": config.scale_output}


def is_gated(config: TransformerConfig) -> bool:
    return config.block.ffn.activation in GATED


def stack(side: str) -> tuple[Name, ...]:
    """The tensors of the encoder or the decoder; there the middle one of three sub-layers reads the encoder."""
    theirs, ours = f"{side}.block.{{}}.layer.", f"{side}.layers.{{}}."
    last = 1 if side == "encoder" else 2
    dense, network = f"{theirs}{last}.DenseReluDense.", ours + "feed_forward."
    return (
        *same(theirs + "0.SelfAttention.", ours + "self_attention.", *ATTENTION),
        *same(theirs, ours, ("0.SelfAttention.relative_attention_bias", "self_attention.position_bias")),
        *same(theirs, ours, ("0.layer_norm", "self_attention_norm"), (f"{last}.layer_norm", "feed_forward_norm")),
        *same(theirs + "1.EncDecAttention.", ours + "cross_attention.", *ATTENTION),
        *(same(theirs, ours, ("1.layer_norm", "cross_attention_norm")) if side == "decoder" else ()),
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
