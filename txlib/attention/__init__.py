"""What one head does: queries, keys and values in, weighted averages out."""

from txlib.attention.dense import DenseAttention
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
from txlib.attention.multihead import KeyValueCache, MultiHeadAttention, StaticKeyValueCache, recording
from txlib.attention.relative import AlibiAttention, ShawAttention, SkewedAttention, alibi_slopes, skew

__all__ = [
    "AlibiAttention",
    "DenseAttention",
    "KeyValueCache",
    "Mask",
    "MaskLike",
    "MultiHeadAttention",
    "ShawAttention",
    "SkewedAttention",
    "StaticKeyValueCache",
    "alibi_slopes",
    "as_dense",
    "attention",
    "attention_weights",
    "block_local",
    "blocks",
    "causal",
    "dilated",
    "everything",
    "global_tokens",
    "keep",
    "padding",
    "recording",
    "sliding_window",
    "skew",
]
