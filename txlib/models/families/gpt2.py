"""GPT-2 (Radford et al. 2019)."""

from txlib.models.families.family import ACTIVATIONS, Family, Head, Name, Setting, same
from txlib.models.gpt import GPT, GPTConfig

OUR_ATTENTION = "decoder.layers.{}.self_attention."

GPT2 = Family(
    "gpt2",
    GPTConfig,
    heads={"GPT2LMHeadModel": Head(GPT), "GPT2Model": Head(GPT)},
    implied={"block.position.type": "learned"},
    fixed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    settings=(
        Setting("vocab_size", "vocab_size"),
        Setting("n_embd", "block.d_model"),
        Setting("n_head", "block.attention.heads"),
        Setting("n_inner", "block.ffn.d_ff", lambda settings: 4 * settings["n_embd"]),
        Setting("n_layer", "layers"),
        Setting("n_positions", "max_length"),
        Setting("layer_norm_epsilon", "block.norm.eps", 1e-5),
        Setting("activation_function", "block.ffn.activation", "gelu_new", words=ACTIVATIONS),
        Setting("resid_pdrop", "block.dropout", 0.1),
        Setting("attn_pdrop", "block.attention.dropout", 0.1),
        Setting("embd_pdrop", "embedding_dropout", 0.1, like="block.dropout"),
        Setting("tie_word_embeddings", "tie_embeddings", True),
        Setting("initializer_range", "init_std", 0.02),
        Setting("bos_token_id", "bos_id", None),
        Setting("eos_token_id", "eos_id", None),
        Setting("pad_token_id", "pad_id", None),
    ),
    names=(
        *same("transformer.", "", ("wte", "embedding"), ("wpe", "position"), ("ln_f", "decoder.norm")),
        *same(
            "transformer.h.{}.", "decoder.layers.{}.", ("ln_1", "self_attention_norm"), ("ln_2", "feed_forward_norm")
        ),
        Name(
            "transformer.h.{}.attn.c_attn",
            (OUR_ATTENTION + "query", OUR_ATTENTION + "key", OUR_ATTENTION + "value"),
            "transposed",
        ),
        Name("transformer.h.{}.attn.c_proj", (OUR_ATTENTION + "output",), "transposed"),
        Name("transformer.h.{}.mlp.c_fc", ("decoder.layers.{}.feed_forward.up_proj",), "transposed"),
        Name("transformer.h.{}.mlp.c_proj", ("decoder.layers.{}.feed_forward.down_proj",), "transposed"),
        Name("lm_head", ("output",)),
    ),
    prefix="transformer.",
    ignored=(r"transformer\.h\.\d+\.attn\.(masked_)?bias",),  # the causal mask
)
