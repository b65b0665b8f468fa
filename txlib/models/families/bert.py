"""BERT and its heads (Devlin et al. 2019)."""

from typing import Any

from torch import nn

from txlib.models import bert
from txlib.models.encoder import Encoder, EncoderConfig
from txlib.models.families.family import (
    ACTIVATIONS,
    REQUIRED,
    TENSORS,
    Family,
    Head,
    Name,
    Setting,
    Settings,
    Translation,
    same,
)

CLASSIFIERS = bert.BertForSequenceClassification, bert.BertForTokenClassification  # and their subclasses
TIED = {"tie_word_embeddings": True}


def pooler(settings: Settings) -> dict[str, Any]:
    """Return whether the file holds a pooler."""
    return {"pooler": any(".pooler." in f".{name}" for name in settings[TENSORS])}


def labels(settings: Settings) -> dict[str, Any]:
    """Return the number of a classifier's classes: the number of their names, or the number itself."""
    count = len(settings.get("id2label") or ()) or settings.get("num_labels") or 2
    kind = settings.get("problem_type")
    if kind not in (None, "regression" if count == 1 else "single_label_classification"):
        raise ValueError(f"problem_type={kind!r} is not supported with {count} labels")
    return {"labels": count}


def describe(model: nn.Module) -> dict[str, Any]:
    """Return names for the labels."""
    return label_names(model.classifier.out_features if isinstance(model, CLASSIFIERS) else 2)


def label_names(count: int) -> dict[str, Any]:
    """Return names for this number of labels, in both directions."""
    return {
        "id2label": {str(label): f"LABEL_{label}" for label in range(count)},
        "label2id": {f"LABEL_{label}": label for label in range(count)},
    }


def sizes(activation: str = "gelu", dropout: float = 0.1) -> tuple[Setting, ...]:
    """Return the settings that BERT, Big Bird, Longformer and ViT share, with the defaults in which they differ."""
    return (
        Setting("hidden_size", "block.d_model"),
        Setting("num_attention_heads", "block.attention.heads"),
        Setting("intermediate_size", "block.ffn.d_ff"),
        Setting("num_hidden_layers", "layers"),
        Setting("layer_norm_eps", "block.norm.eps", 1e-12),
        Setting("hidden_act", "block.ffn.activation", activation, words=ACTIVATIONS),
        Setting("hidden_dropout_prob", "block.dropout", dropout),
        Setting("attention_probs_dropout_prob", "block.attention.dropout", dropout),
    )


def segments(default: Any = REQUIRED) -> Setting | Translation:
    """Return the translation of the kinds of `token_type_ids`; BERT has at least one."""
    setting = Setting("type_vocab_size", "segments", default)

    def read(settings: Settings) -> dict[str, Any]:
        fields = setting.read(settings)
        if fields["segments"] == 0:
            raise ValueError("type_vocab_size=0 is not supported, only 1 and more")
        return fields

    return Translation(read, setting.write)


def names(prefix: str, *projections: tuple[str, str]) -> tuple[Name, ...]:
    """Return the tensors that BERT, Big Bird and Longformer share.

    Args:
        projections: further ones, of attention.
    """
    return (
        *same(
            f"{prefix}embeddings.",
            "base.",
            ("word_embeddings", "embedding"),
            ("position_embeddings", "position"),
            ("token_type_embeddings", "segment"),
            ("LayerNorm", "embedding_norm"),
        ),
        *same(
            f"{prefix}encoder.layer.{{}}.",
            "base.encoder.layers.{}.",
            ("attention.self.query", "self_attention.query"),
            ("attention.self.key", "self_attention.key"),
            ("attention.self.value", "self_attention.value"),
            *projections,
            ("attention.output.dense", "self_attention.output"),
            ("attention.output.LayerNorm", "self_attention_norm"),
            ("intermediate.dense", "feed_forward.up_proj"),
            ("output.dense", "feed_forward.down_proj"),
            ("output.LayerNorm", "feed_forward_norm"),
        ),
        *same("", "", ("classifier", "classifier")),
    )


SETTINGS = (
    Setting("vocab_size", "vocab_size"),
    Setting("max_position_embeddings", "max_length"),
    segments(),
    Setting("classifier_dropout", "classifier_dropout", None),
    Setting("initializer_range", "init_std", 0.02),
    Setting("pad_token_id", "pad_id", 0),
)
NAMES = (
    *names("bert."),
    *same(
        "cls.",
        "",
        ("predictions.transform.dense", "predictions.dense"),
        ("predictions.transform.LayerNorm", "predictions.norm"),
        ("predictions", "predictions"),
        ("seq_relationship", "next_sentence"),
    ),
)
BERT = Family(
    "bert",
    EncoderConfig,
    heads={
        "BertModel": Head(Encoder, pooler, bare=True),
        "BertForPreTraining": Head(bert.BertForPreTraining, fixed=TIED),
        "BertForMaskedLM": Head(bert.BertForMaskedLM, fixed=TIED),
        "BertForNextSentencePrediction": Head(bert.BertForNextSentencePrediction),
        "BertForSequenceClassification": Head(bert.BertForSequenceClassification, labels),
        "BertForQuestionAnswering": Head(bert.BertForQuestionAnswering),
        "BertForTokenClassification": Head(bert.BertForTokenClassification, labels),
        "BertForMultipleChoice": Head(bert.BertForMultipleChoice),
    },
    implied={"block.norm.placement": "post", "block.position.type": "learned"},
    fixed={"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"},
    settings=(*sizes(), *SETTINGS),
    describe=describe,
    names=(*NAMES, *same("", "", ("bert.pooler.dense", "base.pooler"), ("qa_outputs", "span"))),
    prefix="bert.",
    our_prefix="base.",
    ignored=(r"bert\.embeddings\.position_ids", r"cls\.predictions\.decoder\.(weight|bias)"),
    renamed=(("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")),
)
