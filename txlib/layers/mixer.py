"""The layer that mixes positions in a block: attention, unless its config has another mixer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from txlib.attention import DenseAttention, DenseConfig, LayerContext, LongformerAttention, MultiHeadAttention
from txlib.attention.mechanism import takes
from txlib.layers.config import BlockConfig, MixerConfig
from txlib.layers.norm import NormConfig
from txlib.layers.position_config import NoPosition


def make_mixer(block: BlockConfig, layer: LayerContext) -> nn.Module:
    """Return the module that mixes positions in one layer."""
    return make_attention(block, layer) if block.mixer is None else block.mixer.make(block, layer)


def make_attention(
    block: BlockConfig,
    layer: LayerContext,
    memory_dim: int | None = None,
    kind: Any = MultiHeadAttention,
    **options: Any,
) -> MultiHeadAttention:
    """Return the attention layer that a config describes.

    Its mask and positions are for self-attention only, except rotary positions.

    Args:
        memory_dim: width of the memory of cross-attention, where it differs from d_model.
        kind: class of the layer; options: its arguments beyond those of `MultiHeadAttention`.
    """
    attention, position = block.attention, block.position or NoPosition()
    mechanism = bias = None
    if not layer.cross:
        mechanism, bias = position.make_mechanism(block, layer), position.make_bias(block, layer)
    if mechanism is None:
        config = attention.cross_mechanism if layer.cross else attention.mechanism
        mechanism = (DenseConfig() if config is None else config).make(block, layer)
    if position.shared and not layer.cross and not takes(mechanism, "bias"):
        raise ValueError(
            f"{type(mechanism).__name__} takes no position bias, which position={position.name!r} adds to its scores"
        )
    return kind(
        block.d_model,
        attention.heads,
        head_dim=attention.head_dim,
        value_dim=attention.value_dim,
        kv_heads=attention.kv_heads,
        mechanism=mechanism,
        mask=None if layer.cross else attention.mask,
        position_bias=bias,
        rotary=position.make_rotary(block.head_dim),
        qk_norm=make_qk_norm(block),
        qk_norm_whole=attention.qk_norm_whole,
        scale=attention.scale,
        softcap=attention.softcap,
        sinks=attention.sinks,
        gate=attention.gate,
        bias=attention.bias,
        memory_dim=memory_dim,
        **options,
    )


def make_qk_norm(block: BlockConfig) -> Callable[[int], nn.Module] | None:
    """Return what makes the norms of queries and keys: like those of the block, without a bias."""
    kind = block.attention.qk_norm
    if kind is None:
        return None
    centered = block.norm.zero_centered and kind == "rms"
    return NormConfig(kind=kind, eps=block.norm.eps, bias=False, zero_centered=centered).make


@dataclass(frozen=True)
class LongformerConfig(MixerConfig, name="longformer"):
    """`LongformerAttention`: tokens that a call marks as global have separate projections."""

    def make(self, block: BlockConfig, layer: LayerContext) -> nn.Module:
        """Return the layer, with the block's mechanism for all other tokens."""
        return make_attention(
            block, layer, kind=LongformerAttention, global_mechanism=DenseAttention(block.attention.dropout)
        )
