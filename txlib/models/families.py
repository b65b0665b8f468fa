"""How Hugging Face writes models down: for each family its settings, its heads and a table of its tensors' names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from txlib.layers import BlockConfig, MixtureConfig, RotaryScaling
from txlib.models import bert
from txlib.models.bert import Bert, BertConfig
from txlib.models.gpt import GPT, GPTConfig
from txlib.models.stack import ModelConfig
from txlib.models.transformer import Transformer, TransformerConfig

Settings = Mapping[str, Any]  # a config.json


@dataclass(frozen=True)
class Name:
    """One tensor (or a layer's weight and bias) in their file and in our model. {} stands for a number.

    Args:
        theirs: name in the file.
        ours: name in the model; several where the file holds them joined, one above the other.
        layout: "same"; "transposed" for matrices stored (in, out); "row" for a vector stored as (1, n).
    """

    theirs: str
    ours: tuple[str, ...]
    layout: str = "same"


@dataclass(frozen=True)
class Family:
    """What is particular to one `model_type`.

    Args:
        read: our config from a config.json.
        write: the settings of a config.json from our model.
        heads: entry of `architectures` → makes the model from our config and the settings. The first is the default.
        names: the table of tensors.
        prefix: what a model with a head puts before the names of its base, and a bare base does not.
        ignored: patterns of names that hold nothing to load: copies of tied matrices, constants.
        renamed: (old, new): parts of names in old files.
    """

    model_type: str
    read: Callable[[Settings], ModelConfig]
    write: Callable[[nn.Module], dict[str, Any]]
    heads: dict[str, Callable[[Any, Settings], nn.Module]]
    names: tuple[Name, ...]
    prefix: str
    ignored: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()


def same(theirs: str, ours: str, *layers: tuple[str, str]) -> tuple[Name, ...]:
    """A table of layers that are stored as we have them, each name with what stands before it."""
    return tuple(Name(theirs + their, (ours + our,)) for their, our in layers)


def expect(settings: Settings, **values: Any) -> None:
    """Refuse settings that change what the model computes and that ours does not know.

    Raises:
        ValueError: naming the setting, when it is there with another value.
    """
    for name, value in values.items():
        if settings.get(name, value) != value:
            raise ValueError(f"{name}={settings[name]!r} is not supported, only {value!r}")


def pick(settings: Settings, name: str, choices: Mapping[str, str]) -> str:
    """Our name for the value of a setting."""
    if settings[name] not in choices:
        raise ValueError(f"{name}={settings[name]!r} is not supported, only {', '.join(choices)}")
    return choices[settings[name]]


ACTIVATION = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "relu2": "relu2",
}


def their_activation(ours: str) -> str:
    return next((theirs for theirs, name in ACTIVATION.items() if name == ours), ours)


def as_tuple(eos: int | list[int] | None) -> int | tuple[int, ...] | None:
    return tuple(eos) if isinstance(eos, list) else eos


# GPT-2 --------------------------------------------------------------------------------------------------------------


def read_gpt2(settings: Settings) -> GPTConfig:
    expect(
        settings,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        reorder_and_upcast_attn=False,
        add_cross_attention=False,
    )
    dropout, embedding_dropout = settings.get("resid_pdrop", 0.1), settings.get("embd_pdrop", 0.1)
    block = BlockConfig(
        d_model=settings["n_embd"],
        heads=settings["n_head"],
        d_ff=settings.get("n_inner") or 4 * settings["n_embd"],
        norm_eps=settings.get("layer_norm_epsilon", 1e-5),
        activation=pick({"activation_function": "gelu_new", **settings}, "activation_function", ACTIVATION),
        position="learned",
        dropout=dropout,
        attention_dropout=settings.get("attn_pdrop", 0.1),
    )
    return GPTConfig(
        settings["vocab_size"],
        block,
        layers=settings["n_layer"],
        max_length=settings["n_positions"],
        tie_embeddings=settings.get("tie_word_embeddings", True),
        embedding_dropout=None if embedding_dropout == dropout else embedding_dropout,
        init_std=settings.get("initializer_range", 0.02),
        bos_id=settings.get("bos_token_id"),
        eos_id=as_tuple(settings.get("eos_token_id")),
        pad_id=settings.get("pad_token_id"),
    )


def write_gpt2(model: GPT) -> dict[str, Any]:
    config, block = model.config, model.config.block
    return {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocab_size,
        "n_embd": block.d_model,
        "n_head": block.heads,
        "n_inner": block.d_ff,
        "n_layer": config.layers,
        "n_positions": config.max_length,
        "layer_norm_epsilon": block.norm_eps,
        "activation_function": their_activation(block.activation),
        "resid_pdrop": block.dropout,
        "attn_pdrop": block.attention_dropout,
        "embd_pdrop": block.dropout if config.embedding_dropout is None else config.embedding_dropout,
        "tie_word_embeddings": config.tie_embeddings,
        "initializer_range": config.init_std,
        "bos_token_id": config.bos_id,
        "eos_token_id": config.eos_id,
        "pad_token_id": config.pad_id,
    }


GPT2 = Family(
    "gpt2",
    read_gpt2,
    write_gpt2,
    heads={"GPT2LMHeadModel": lambda config, _: GPT(config), "GPT2Model": lambda config, _: GPT(config)},
    prefix="transformer.",
    names=(
        *same("transformer.", "", ("wte", "embedding"), ("wpe", "position"), ("ln_f", "decoder.norm")),
        *same(
            "transformer.h.{}.", "decoder.layers.{}.", ("ln_1", "self_attention_norm"), ("ln_2", "feed_forward_norm")
        ),
        Name(
            "transformer.h.{}.attn.c_attn",
            tuple(f"decoder.layers.{{}}.self_attention.{part}" for part in ("query", "key", "value")),
            "transposed",
        ),
        Name("transformer.h.{}.attn.c_proj", ("decoder.layers.{}.self_attention.output",), "transposed"),
        Name("transformer.h.{}.mlp.c_fc", ("decoder.layers.{}.feed_forward.widen",), "transposed"),
        Name("transformer.h.{}.mlp.c_proj", ("decoder.layers.{}.feed_forward.narrow",), "transposed"),
        Name("lm_head", ("output",)),
    ),
    ignored=(r"transformer\.h\.\d+\.attn\.(masked_)?bias",),  # the causal mask
)


# Llama and Mixtral --------------------------------------------------------------------------------------------------


def read_rotary(settings: Settings, default: float) -> dict[str, Any]:
    """θ and what slows the turns, from the newer or the older way to write them."""
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        scaling = None
    elif kind == "linear":
        scaling = RotaryScaling(rope["factor"])
    elif kind == "llama3":
        scaling = RotaryScaling(
            rope["factor"], rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
        )
    else:
        raise ValueError(f"rope_scaling={kind!r} is not supported, only default, linear and llama3")
    return {"rotary_base": rope.get("rope_theta", settings.get("rope_theta", default)), "rotary_scaling": scaling}


def write_rotary(block: BlockConfig) -> dict[str, Any]:
    """The newer way."""
    scaling, base = block.rotary_scaling, {"rope_theta": block.rotary_base}
    if scaling is None:
        return {"rope_type": "default", **base}
    if scaling.context is None:
        return {"rope_type": "linear", "factor": scaling.factor, **base}
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "original_max_position_embeddings": scaling.context,
        "low_freq_factor": scaling.slow,
        "high_freq_factor": scaling.fast,
        **base,
    }


def read_llama(settings: Settings, *, base: float = 10000.0, eps: float = 1e-6) -> GPTConfig:
    expect(settings, hidden_act="silu", partial_rotary_factor=1.0)
    d_model, heads = settings["hidden_size"], settings["num_attention_heads"]
    if (settings.get("head_dim") or d_model // heads) * heads != d_model:
        raise ValueError(
            f"head_dim={settings['head_dim']} is not supported, only hidden_size / num_attention_heads = "
            f"{d_model // heads}"
        )
    kv_heads, bias = settings.get("num_key_value_heads") or heads, settings.get("mlp_bias", False)
    attention_bias = settings.get("attention_bias", False)
    block = BlockConfig(
        d_model=d_model,
        heads=heads,
        d_ff=settings["intermediate_size"],
        norm="rms",
        norm_eps=settings.get("rms_norm_eps", eps),
        activation="swiglu",
        bias=bias,
        attention_bias=None if attention_bias == bias else attention_bias,
        attention_dropout=settings.get("attention_dropout") or 0.0,
        kv_heads=None if kv_heads == heads else kv_heads,
        position="rotary_half",
        **read_rotary(settings, base),
    )
    return GPTConfig(
        settings["vocab_size"],
        block,
        layers=settings["num_hidden_layers"],
        max_length=settings["max_position_embeddings"],
        tie_embeddings=settings.get("tie_word_embeddings", False),
        init_std=settings.get("initializer_range", 0.02),
        bos_id=settings.get("bos_token_id", 1),
        eos_id=as_tuple(settings.get("eos_token_id", 2)),
        pad_id=settings.get("pad_token_id"),
    )


def write_llama(model: GPT) -> dict[str, Any]:
    config, block = model.config, model.config.block
    return {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": block.d_model,
        "num_attention_heads": block.heads,
        "num_key_value_heads": block.kv_heads or block.heads,
        "head_dim": block.head_dim,
        "intermediate_size": block.d_ff,
        "num_hidden_layers": config.layers,
        "max_position_embeddings": config.max_length,
        "hidden_act": "silu",
        "rms_norm_eps": block.norm_eps,
        "rope_theta": block.rotary_base,
        "mlp_bias": block.bias,
        "rope_parameters": write_rotary(block),
        "attention_bias": block.bias if block.attention_bias is None else block.attention_bias,
        "attention_dropout": block.attention_dropout,
        "tie_word_embeddings": config.tie_embeddings,
        "initializer_range": config.init_std,
        "bos_token_id": config.bos_id,
        "eos_token_id": config.eos_id,
        "pad_token_id": config.pad_id,
    }


LLAMA_NAMES = (
    *same("model.", "", ("embed_tokens", "embedding"), ("norm", "decoder.norm")),
    *same(
        "model.layers.{}.",
        "decoder.layers.{}.",
        ("input_layernorm", "self_attention_norm"),
        ("post_attention_layernorm", "feed_forward_norm"),
        ("self_attn.q_proj", "self_attention.query"),
        ("self_attn.k_proj", "self_attention.key"),
        ("self_attn.v_proj", "self_attention.value"),
        ("self_attn.o_proj", "self_attention.output"),
    ),
    Name("lm_head", ("output",)),
)
ROTARY_CONSTANTS = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"model\.rotary_emb\.inv_freq")

LLAMA = Family(
    "llama",
    read_llama,
    write_llama,
    heads={"LlamaForCausalLM": lambda config, _: GPT(config)},
    prefix="model.",
    names=(
        *LLAMA_NAMES,
        *same(
            "model.layers.{}.mlp.",
            "decoder.layers.{}.feed_forward.",
            ("gate_proj", "gate"),
            ("up_proj", "widen"),
            ("down_proj", "narrow"),
        ),
    ),
    ignored=ROTARY_CONSTANTS,
)


def read_mixtral(settings: Settings) -> GPTConfig:
    expect(settings, sliding_window=None, output_router_logits=False, attention_bias=False, mlp_bias=False)
    config = read_llama(settings, base=1e6, eps=1e-5)
    ffn = MixtureConfig(
        settings["num_local_experts"],
        top_k=settings["num_experts_per_tok"],
        normalise=True,
        balance=settings.get("router_aux_loss_coef", 0.001),
        jitter=settings.get("router_jitter_noise", 0.0),
    )
    return replace(config, block=replace(config.block, ffn=ffn))


def write_mixtral(model: GPT) -> dict[str, Any]:
    ffn, settings = model.config.block.ffn, write_llama(model)
    return {
        **settings,
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": ffn.experts,
        "num_experts_per_tok": ffn.top_k,
        "router_aux_loss_coef": ffn.balance,
        "router_jitter_noise": ffn.jitter,
        "sliding_window": None,
        "output_router_logits": False,
    }


MIXTRAL = Family(
    "mixtral",
    read_mixtral,
    write_mixtral,
    heads={"MixtralForCausalLM": lambda config, _: GPT(config)},
    prefix="model.",
    names=(
        *LLAMA_NAMES,
        *same(
            "model.layers.{}.block_sparse_moe.",
            "decoder.layers.{}.feed_forward.",
            ("gate", "router"),
            ("experts.{}.w1", "experts.{}.gate"),
            ("experts.{}.w3", "experts.{}.widen"),
            ("experts.{}.w2", "experts.{}.narrow"),
        ),
    ),
    ignored=ROTARY_CONSTANTS,
)


# BERT ---------------------------------------------------------------------------------------------------------------


def read_bert(settings: Settings) -> BertConfig:
    expect(
        settings,
        is_decoder=False,
        add_cross_attention=False,
        position_embedding_type="absolute",
        tie_word_embeddings=True,
    )
    if settings.get("problem_type"):
        expect(settings, problem_type="regression" if label_count(settings) == 1 else "single_label_classification")
    block = BlockConfig(
        d_model=settings["hidden_size"],
        heads=settings["num_attention_heads"],
        d_ff=settings["intermediate_size"],
        norm_first=False,
        norm_eps=settings.get("layer_norm_eps", 1e-12),
        activation=pick({"hidden_act": "gelu", **settings}, "hidden_act", ACTIVATION),
        position="learned",
        dropout=settings.get("hidden_dropout_prob", 0.1),
        attention_dropout=settings.get("attention_probs_dropout_prob", 0.1),
    )
    return BertConfig(
        settings["vocab_size"],
        block,
        layers=settings["num_hidden_layers"],
        max_length=settings["max_position_embeddings"],
        segments=settings["type_vocab_size"],
        classifier_dropout=settings.get("classifier_dropout"),
        init_std=settings.get("initializer_range", 0.02),
        pad_id=settings.get("pad_token_id") or 0,
    )


def write_bert(model: nn.Module) -> dict[str, Any]:
    config, block = model.config, model.config.block
    labels = model.classifier.out_features if isinstance(model, CLASSIFIERS) else 2
    return {
        "architectures": ["BertModel" if isinstance(model, Bert) else type(model).__name__],
        "id2label": {str(label): f"LABEL_{label}" for label in range(labels)},
        "label2id": {f"LABEL_{label}": label for label in range(labels)},
        "vocab_size": config.vocab_size,
        "hidden_size": block.d_model,
        "num_attention_heads": block.heads,
        "intermediate_size": block.d_ff,
        "num_hidden_layers": config.layers,
        "layer_norm_eps": block.norm_eps,
        "hidden_act": their_activation(block.activation),
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": block.attention_dropout,
        "max_position_embeddings": config.max_length,
        "type_vocab_size": config.segments,
        "classifier_dropout": config.classifier_dropout,
        "initializer_range": config.init_std,
        "pad_token_id": config.pad_id,
        "tie_word_embeddings": True,
    }


CLASSIFIERS = bert.BertForSequenceClassification, bert.BertForTokenClassification


def label_count(settings: Settings) -> int:
    """Classes of a classifier: how many names they have, or the plain number."""
    return len(settings.get("id2label") or ()) or settings.get("num_labels") or 2


def bert_head(name: str) -> Callable[[BertConfig, Settings], nn.Module]:
    head = getattr(bert, name)
    if head in CLASSIFIERS:
        return lambda config, settings: head(config, labels=label_count(settings))
    return lambda config, settings: head(config)


BERT = Family(
    "bert",
    read_bert,
    write_bert,
    heads={
        "BertModel": lambda config, _: Bert(config),
        **{
            name: bert_head(name)
            for name in (
                "BertForPreTraining",
                "BertForMaskedLM",
                "BertForNextSentencePrediction",
                "BertForSequenceClassification",
                "BertForQuestionAnswering",
                "BertForTokenClassification",
                "BertForMultipleChoice",
            )
        },
    },
    prefix="bert.",
    names=(
        *same(
            "bert.embeddings.",
            "bert.",
            ("word_embeddings", "embedding"),
            ("position_embeddings", "position"),
            ("token_type_embeddings", "segment"),
            ("LayerNorm", "embedding_norm"),
        ),
        *same(
            "bert.encoder.layer.{}.",
            "bert.encoder.layers.{}.",
            ("attention.self.query", "self_attention.query"),
            ("attention.self.key", "self_attention.key"),
            ("attention.self.value", "self_attention.value"),
            ("attention.output.dense", "self_attention.output"),
            ("attention.output.LayerNorm", "self_attention_norm"),
            ("intermediate.dense", "feed_forward.widen"),
            ("output.dense", "feed_forward.narrow"),
            ("output.LayerNorm", "feed_forward_norm"),
        ),
        *same(
            "",
            "",
            ("bert.pooler.dense", "bert.pooler"),
            ("cls.predictions.transform.dense", "predictions.dense"),
            ("cls.predictions.transform.LayerNorm", "predictions.norm"),
            ("cls.predictions", "predictions"),
            ("cls.seq_relationship", "next_sentence"),
            ("classifier", "classifier"),
            ("qa_outputs", "span"),
        ),
    ),
    ignored=(r"bert\.embeddings\.position_ids", r"cls\.predictions\.decoder\.(weight|bias)"),
    renamed=(("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")),
)


# Marian -------------------------------------------------------------------------------------------------------------


def read_marian(settings: Settings) -> TransformerConfig:
    expect(
        settings,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        is_encoder_decoder=True,
        static_position_embeddings=True,
        normalize_before=False,
        normalize_embedding=False,
        decoder_vocab_size=settings["vocab_size"],
        decoder_ffn_dim=settings["encoder_ffn_dim"],
        decoder_attention_heads=settings["encoder_attention_heads"],
    )
    block = BlockConfig(
        d_model=settings["d_model"],
        heads=settings["encoder_attention_heads"],
        d_ff=settings["encoder_ffn_dim"],
        norm_first=False,
        activation=pick({"activation_function": "gelu", **settings}, "activation_function", ACTIVATION),
        position="sinusoidal_concatenated",
        dropout=settings.get("dropout", 0.1),
        attention_dropout=settings.get("attention_dropout", 0.0),
    )
    return TransformerConfig(
        settings["vocab_size"],
        block,
        encoder_layers=settings["encoder_layers"],
        decoder_layers=settings["decoder_layers"],
        max_length=settings.get("max_position_embeddings", 1024),
        scale_embedding=settings.get("scale_embedding", False),
        output_bias=True,
        pad_id=settings["pad_token_id"],
        bos_id=settings["decoder_start_token_id"],
        eos_id=settings["eos_token_id"],
    )


def write_marian(model: Transformer) -> dict[str, Any]:
    config, block = model.config, model.config.block
    return {
        "architectures": ["MarianMTModel"],
        "vocab_size": config.vocab_size,
        "decoder_vocab_size": config.vocab_size,
        "d_model": block.d_model,
        "encoder_attention_heads": block.heads,
        "decoder_attention_heads": block.heads,
        "encoder_ffn_dim": block.d_ff,
        "decoder_ffn_dim": block.d_ff,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "max_position_embeddings": config.max_length,
        "activation_function": their_activation(block.activation),
        "dropout": block.dropout,
        "attention_dropout": block.attention_dropout,
        "scale_embedding": config.scale_embedding,
        "pad_token_id": config.pad_id,
        "decoder_start_token_id": config.bos_id,
        "eos_token_id": config.eos_id,
        "forced_eos_token_id": config.eos_id,
        "is_encoder_decoder": True,
    }


def marian_stack(side: str) -> tuple[Name, ...]:
    attention = [("k_proj", "key"), ("v_proj", "value"), ("q_proj", "query"), ("out_proj", "output")]
    layers = [(f"self_attn.{their}", f"self_attention.{our}") for their, our in attention]
    layers += [
        ("self_attn_layer_norm", "self_attention_norm"),
        ("fc1", "feed_forward.widen"),
        ("fc2", "feed_forward.narrow"),
        ("final_layer_norm", "feed_forward_norm"),
    ]
    if side == "decoder":
        layers += [(f"encoder_attn.{their}", f"cross_attention.{our}") for their, our in attention]
        layers += [("encoder_attn_layer_norm", "cross_attention_norm")]
    return same(f"model.{side}.layers.{{}}.", f"{side}.layers.{{}}.", *layers)


MARIAN = Family(
    "marian",
    read_marian,
    write_marian,
    heads={"MarianMTModel": lambda config, _: Transformer(config)},
    prefix="model.",
    names=(
        Name("model.shared", ("embedding",)),
        *marian_stack("encoder"),
        *marian_stack("decoder"),
        Name("final_logits_bias", ("output_bias",), "row"),
    ),
    ignored=(r"model\.(en|de)coder\.embed_(tokens|positions)\.weight", r"lm_head\.weight"),
)

FAMILIES = {family.model_type: family for family in (GPT2, LLAMA, MIXTRAL, BERT, MARIAN)}
