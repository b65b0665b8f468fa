"""Longformer and its heads (Beltagy et al. 2020)."""

from typing import Any

from txlib.attention import BlockSparseConfig, Mask, sliding_window
from txlib.attention.masks import SlidingWindow
from txlib.models import bert
from txlib.models.encoder import Encoder, EncoderConfig
from txlib.models.families.bert import TIED, describe, labels, names, pooler, sizes
from txlib.models.families.family import Family, Head, Setting, Settings, Translation, same


def read_windows(settings: Settings) -> dict[str, Any]:
    """Return the masks of the windows: one width for all layers, or one for each layer.

    Raises:
        ValueError: for another number of widths.
    """
    widths, layers = settings.get("attention_window", 512), settings["num_hidden_layers"]
    if not isinstance(widths, list | tuple):
        return {"block.attention.mask": window(widths)}
    if len(widths) != layers:
        raise ValueError(f"attention_window has {len(widths)} widths for {layers} layers; give one each")
    if len(set(widths)) == 1:
        return {"block.attention.mask": window(widths[0])}
    return {"block.layer_pattern": tuple({"mask": window(width)} for width in widths)}


def window(width: int) -> Mask:
    """Return the mask of a window; half of its width is on either side.

    Raises:
        ValueError: for an odd width.
    """
    if width < 2 or width % 2:
        raise ValueError(f"attention_window={width} is not supported, only even numbers from 2 on")
    return sliding_window(width // 2)


def write_windows(config: EncoderConfig) -> dict[str, Any]:
    """Return the widths of the windows.

    Raises:
        ValueError: for another mask.
    """
    pattern = config.block.layer_pattern
    masks = [changes.get("mask") for changes in pattern] if pattern else [config.block.attention.mask]
    widths = []
    for mask in masks:
        if not isinstance(mask, SlidingWindow) or mask.radius < 1:
            raise ValueError(f"longformer has windows only, not mask={mask}")
        widths.append(2 * mask.radius)
    return {"attention_window": widths if pattern else widths[0]}


def read_length(settings: Settings) -> dict[str, Any]:
    """Return the number of positions that are left for tokens: the first pad_id + 1 are for padding."""
    return {"max_length": settings["max_position_embeddings"] - (settings.get("pad_token_id", 1) + 1)}


LONGFORMER = Family(
    "longformer",
    EncoderConfig,
    heads={
        "LongformerModel": Head(Encoder, pooler, bare=True),
        "LongformerForMaskedLM": Head(bert.BertForMaskedLM, fixed={**TIED, "hidden_act": "gelu"}),
        "LongformerForSequenceClassification": Head(
            bert.BertForSequenceClassification,
            labels,
            names=same("classifier.", "", ("dense", "base.pooler"), ("out_proj", "classifier")),
        ),
        "LongformerForQuestionAnswering": Head(bert.BertForQuestionAnswering),
        "LongformerForTokenClassification": Head(bert.BertForTokenClassification, labels),
        "LongformerForMultipleChoice": Head(bert.BertForMultipleChoice),
    },
    implied={
        "block.norm.placement": "post",
        "block.position.type": "learned",
        "block.mixer.type": "longformer",
        "block.attention.mechanism": BlockSparseConfig(),
        "positions_after_pad": True,
    },
    settings=(
        Setting("vocab_size", "vocab_size"),
        *sizes(),
        Translation(read_length, lambda config: {"max_position_embeddings": config.first_position + config.max_length}),
        Setting("type_vocab_size", "segments", 2),
        Setting("initializer_range", "init_std", 0.02),
        Setting("pad_token_id", "pad_id", 1),
        Setting("sep_token_id", "sep_id", 2),
        Translation(read_windows, write_windows),
    ),
    describe=describe,
    names=(
        *names(
            "longformer.",
            ("attention.self.query_global", "self_attention.query_global"),
            ("attention.self.key_global", "self_attention.key_global"),
            ("attention.self.value_global", "self_attention.value_global"),
        ),
        *same(
            "",
            "",
            ("longformer.pooler.dense", "base.pooler"),
            ("lm_head.dense", "predictions.dense"),
            ("lm_head.layer_norm", "predictions.norm"),
            ("lm_head", "predictions"),
            ("qa_outputs", "span"),
        ),
    ),
    prefix="longformer.",
    our_prefix="base.",
    ignored=(r"longformer\.embeddings\.position_ids", r"lm_head\.decoder\.(weight|bias)"),
)
