"""Marian's translators (Junczys-Dowmunt et al. 2018), as released in opus-mt."""

from txlib.layers import sinusoidal
from txlib.models.families.family import ACTIVATIONS, Family, Head, Name, Setting, Translation, same
from txlib.models.transformer import Transformer, TransformerConfig

ATTENTION = (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), ("out_proj", "output"))


def stack(side: str) -> tuple[Name, ...]:
    """Return the tensors of the encoder or the decoder."""
    hf, prefix = f"model.{side}.layers.{{}}.", f"{side}.layers.{{}}."
    return (
        *same(hf + "self_attn.", prefix + "self_attention.", *ATTENTION),
        *same(hf + "encoder_attn.", prefix + "cross_attention.", *ATTENTION),
        *same(
            hf,
            prefix,
            ("self_attn_layer_norm", "self_attention_norm"),
            ("encoder_attn_layer_norm", "cross_attention_norm"),
            ("fc1", "feed_forward.up_proj"),
            ("fc2", "feed_forward.down_proj"),
            ("final_layer_norm", "feed_forward_norm"),
        ),
    )


MARIAN = Family(
    "marian",
    TransformerConfig,
    heads={"MarianMTModel": Head(Transformer)},
    implied={
        "block.norm.placement": "post",
        "block.position.type": "sinusoidal",
        "block.position.layout": "concatenated",
        "output_bias": True,
    },
    fixed={
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "is_encoder_decoder": True,
        "static_position_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": False,
    },
    settings=(
        Setting("vocab_size", "vocab_size"),
        Setting("decoder_vocab_size", "vocab_size", lambda settings: settings["vocab_size"]),
        Setting("d_model", "block.d_model"),
        Setting("encoder_attention_heads", "block.attention.heads"),
        Setting(
            "decoder_attention_heads", "block.attention.heads", lambda settings: settings["encoder_attention_heads"]
        ),
        Setting("encoder_ffn_dim", "block.ffn.d_ff"),
        Setting("decoder_ffn_dim", "block.ffn.d_ff", lambda settings: settings["encoder_ffn_dim"]),
        Setting("encoder_layers", "encoder_layers"),
        Setting("decoder_layers", "decoder_layers"),
        Setting("max_position_embeddings", "max_length", 1024),
        Setting("activation_function", "block.ffn.activation", "gelu", words=ACTIVATIONS),
        Setting("dropout", "block.dropout", 0.1),
        Setting("attention_dropout", "block.attention.dropout", 0.0),
        Setting("scale_embedding", "scale_embedding", False),
        Setting("pad_token_id", "pad_id"),
        Setting("decoder_start_token_id", "bos_id"),
        Setting("eos_token_id", "eos_id"),
        Setting("bad_words_ids", "bad_words_ids", ()),
        Translation(lambda settings: {}, lambda config: {"forced_eos_token_id": config.eos_id}),
    ),
    names=(
        Name("model.shared", ("embedding",)),
        *stack("encoder"),
        *stack("decoder"),
        Name("final_logits_bias", ("output_bias",), "row"),
    ),
    prefix="model.",
    ignored=(r"model\.(en|de)coder\.embed_tokens\.weight", r"lm_head\.weight"),
    constants={
        r"model\.(en|de)coder\.embed_positions\.weight": lambda config: sinusoidal(
            config.max_length, config.block.d_model, layout="concatenated"
        )
    },
)
