"""RoBERTa and its heads (Liu et al. 2019): BERT without next sentences, whose positions start after padding's."""

from typing import Any

from txlib.models import bert
from txlib.models.encoder import Encoder, EncoderConfig
from txlib.models.families.bert import BERT, TIED, describe, labels, names, pooler, segments, sizes
from txlib.models.families.family import Family, Head, Name, Setting, Settings, Translation, same


def read_length(settings: Settings) -> dict[str, Any]:
    """Return the number of positions that are left for tokens: the first pad_id + 1 are for padding."""
    return {"max_length": settings["max_position_embeddings"] - (settings.get("pad_token_id", 1) + 1)}


def heads(name: str) -> dict[str, Head]:
    """Return the heads of RoBERTa, or of Longformer, which has the same."""
    return {
        f"{name}Model": Head(Encoder, pooler, bare=True),
        f"{name}ForMaskedLM": Head(bert.BertForMaskedLM, fixed={**TIED, "hidden_act": "gelu"}),
        f"{name}ForSequenceClassification": Head(
            bert.BertForSequenceClassification,
            labels,
            names=same("classifier.", "", ("dense", "base.pooler"), ("out_proj", "classifier")),
        ),
        f"{name}ForQuestionAnswering": Head(bert.BertForQuestionAnswering),
        f"{name}ForTokenClassification": Head(bert.BertForTokenClassification, labels),
        f"{name}ForMultipleChoice": Head(bert.BertForMultipleChoice),
    }


def all_names(prefix: str, *projections: tuple[str, str]) -> tuple[Name, ...]:
    """Return the tensors of both; arguments as of `names`."""
    return (
        *names(prefix, *projections),
        *same(
            "",
            "",
            (f"{prefix}pooler.dense", "base.pooler"),
            ("lm_head.dense", "predictions.dense"),
            ("lm_head.layer_norm", "predictions.norm"),
            ("lm_head", "predictions"),
            ("qa_outputs", "span"),
        ),
    )


IMPLIED = {**BERT.implied, "positions_after_pad": True}
SETTINGS = (
    Setting("vocab_size", "vocab_size"),
    *sizes(),
    Translation(read_length, lambda config: {"max_position_embeddings": config.first_position + config.max_length}),
    segments(2),
    Setting("initializer_range", "init_std", 0.02),
    Setting("pad_token_id", "pad_id", 1),
)
UNUSED = (r"\w+\.embeddings\.position_ids", r"lm_head\.decoder\.(weight|bias)")

ROBERTA = Family(
    "roberta",
    EncoderConfig,
    heads=heads("Roberta"),
    implied=IMPLIED,
    fixed=BERT.fixed,
    settings=(*SETTINGS, Setting("classifier_dropout", "classifier_dropout", None)),
    describe=describe,
    names=all_names("roberta."),
    prefix="roberta.",
    our_prefix="base.",
    ignored=UNUSED,
)
