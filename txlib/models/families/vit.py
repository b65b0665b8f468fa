"""The Vision Transformer and its classifier (Dosovitskiy et al. 2021), as google/vit-base-patch16-224 and others."""

from typing import Any

from torch import nn

from txlib.models.families.bert import label_names, labels, pooler, sizes
from txlib.models.families.family import Family, Head, Name, Setting, Settings, Translation, same
from txlib.models.vit import ViT, ViTConfig, ViTForImageClassification


def read_sizes(settings: Settings) -> dict[str, Any]:
    """Return the sizes of images and patches.

    Raises:
        ValueError: for patches that are not squares.
    """
    image, patch = settings.get("image_size", 224), settings.get("patch_size", 16)
    if isinstance(patch, list) and len(set(patch)) > 1:
        raise ValueError(f"patch_size={patch!r} is not supported, only squares")
    return {"image_size": image, "patch_size": patch[0] if isinstance(patch, list) else patch}


def write_sizes(config: ViTConfig) -> dict[str, Any]:
    image = config.image_size
    return {
        "image_size": list(image) if isinstance(image, tuple) else image,
        "patch_size": config.patch_size,
        "encoder_stride": config.patch_size,
    }


def classes(settings: Settings) -> dict[str, Any]:
    """Return the number of the classifier's classes.

    Raises:
        ValueError: for a regression, which has one.
    """
    arguments = labels(settings)
    if arguments["labels"] < 2:
        raise ValueError("num_labels=1, a regression, is not supported; a classifier has at least 2 labels")
    return arguments


def describe(model: nn.Module) -> dict[str, Any]:
    """Return names for the labels, and the width of the pooler."""
    config: Any = model.config
    count = model.classifier.out_features if isinstance(model, ViTForImageClassification) else 2
    return {**label_names(count), "pooler_output_size": config.block.d_model}


def check_pooler(settings: Settings) -> dict[str, Any]:
    """Refuse a pooler with another width than the model's.

    Raises:
        ValueError: naming the width.
    """
    width = settings["hidden_size"]
    if settings.get("pooler_output_size") not in (None, width):
        raise ValueError(f"pooler_output_size={settings['pooler_output_size']} is not supported, only {width}")
    return {}


def names(prefix: str) -> tuple[Name, ...]:
    """Return the tensors of ViT and DeiT."""
    return (
        Name(f"{prefix}embeddings.cls_token", ("base.special",), "row"),
        Name(f"{prefix}embeddings.position_embeddings", ("base.position.weight",), "row"),
        *same(
            prefix,
            "base.",
            ("embeddings.patch_embeddings.projection", "patches.projection"),
            ("layernorm", "encoder.norm"),
            ("pooler.dense", "pooler"),
        ),
        *same(
            f"{prefix}encoder.layer.{{}}.",
            "base.encoder.layers.{}.",
            ("attention.attention.query", "self_attention.query"),
            ("attention.attention.key", "self_attention.key"),
            ("attention.attention.value", "self_attention.value"),
            ("attention.output.dense", "self_attention.output"),
            ("layernorm_before", "self_attention_norm"),
            ("intermediate.dense", "feed_forward.up_proj"),
            ("output.dense", "feed_forward.down_proj"),
            ("layernorm_after", "feed_forward_norm"),
        ),
        *same("", "", ("classifier", "classifier")),
    )


VIT = Family(
    "vit",
    ViTConfig,
    heads={
        "ViTModel": Head(ViT, pooler, bare=True),
        "ViTForImageClassification": Head(ViTForImageClassification, classes),
    },
    implied={"block.norm.placement": "pre", "block.position.type": "learned", "pool": "class", "distillation": False},
    fixed={"qkv_bias": True, "pooler_act": "tanh"},
    settings=(
        Translation(read_sizes, write_sizes),
        Setting("num_channels", "channels", 3),
        *sizes(dropout=0.0),
        Translation(check_pooler, lambda config: {}),
    ),
    describe=describe,
    names=names("vit."),
    prefix="vit.",
    our_prefix="base.",
    ignored=(r"vit\.embeddings\.mask_token",),
)
