"""What one head does: queries, keys and values in, weighted averages out."""

from txlib.attention.dense import DenseAttention, DenseConfig
from txlib.attention.functional import attention, attention_weights
from txlib.attention.masks import (
    Mask,
    MaskLike,
    as_dense,
    block_local,
    blocks,
    causal,
    dilated,
    everything,
    global_tokens,
    keep,
    padding,
    sliding_window,
)
from txlib.attention.mechanism import Layer, Mechanism, MechanismConfig, for_each_head
from txlib.attention.multihead import (
    KeyValueCache,
    MultiHeadAttention,
    StaticKeyValueCache,
    WindowKeyValueCache,
    recording,
)
from txlib.attention.relative import (
    AlibiBias,
    Bias,
    BucketBias,
    PositionBias,
    ShawAttention,
    SkewedBias,
    alibi_slopes,
    skew,
)

__all__ = [
    "AlibiBias",
    "Bias",
    "BucketBias",
    "DenseAttention",
    "DenseConfig",
    "KeyValueCache",
    "Layer",
    "Mask",
    "MaskLike",
    "Mechanism",
    "MechanismConfig",
    "MultiHeadAttention",
    "PositionBias",
    "ShawAttention",
    "SkewedBias",
    "StaticKeyValueCache",
    "WindowKeyValueCache",
    "alibi_slopes",
    "as_dense",
    "attention",
    "attention_weights",
    "block_local",
    "blocks",
    "causal",
    "dilated",
    "everything",
    "for_each_head",
    "global_tokens",
    "keep",
    "padding",
    "recording",
    "sliding_window",
    "skew",
]
