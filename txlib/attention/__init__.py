"""What one head does: queries, keys and values in, weighted averages out."""

from txlib.attention.dense import DenseAttention
from txlib.attention.functional import attention, attention_weights
from txlib.attention.masks import (
    Mask,
    block_local,
    blocks,
    causal,
    dilated,
    everything,
    global_tokens,
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
    "MultiHeadAttention",
    "ShawAttention",
    "SkewedAttention",
    "StaticKeyValueCache",
    "alibi_slopes",
    "attention",
    "attention_weights",
    "block_local",
    "blocks",
    "causal",
    "dilated",
    "everything",
    "global_tokens",
    "padding",
    "recording",
    "sliding_window",
    "skew",
]
