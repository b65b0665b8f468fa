"""Longformer and its heads (Beltagy et al. 2020): RoBERTa with windows and global tokens."""

from typing import Any

from txlib.attention import BlockSparseConfig, Mask, sliding_window
from txlib.attention.masks import SlidingWindow
from txlib.models.encoder import EncoderConfig
from txlib.models.families.bert import describe
from txlib.models.families.family import Family, Setting, Settings, Translation
from txlib.models.families.roberta import IMPLIED, SETTINGS, UNUSED, all_names, heads


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


LONGFORMER = Family(
    "longformer",
    EncoderConfig,
    heads=heads("Longformer"),
    implied={**IMPLIED, "block.mixer.type": "longformer", "block.attention.mechanism": BlockSparseConfig()},
    settings=(*SETTINGS, Setting("sep_token_id", "sep_id", 2), Translation(read_windows, write_windows)),
    describe=describe,
    names=all_names(
        "longformer.",
        ("attention.self.query_global", "self_attention.query_global"),
        ("attention.self.key_global", "self_attention.key_global"),
        ("attention.self.value_global", "self_attention.value_global"),
    ),
    prefix="longformer.",
    our_prefix="base.",
    ignored=UNUSED,
)
