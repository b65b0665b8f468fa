"""What stands between attention and a model: embeddings, positions, norms, feed-forward, the block."""

from txlib.layers.block import BlockConfig, CrossBlock, TransformerBlock
from txlib.layers.convolution import Convolution, receptive_field
from txlib.layers.embedding import TokenEmbedding
from txlib.layers.feedforward import FeedForward
from txlib.layers.moe import MixtureConfig, MixtureOfExperts, Routing
from txlib.layers.norm import LayerNorm, RMSNorm
from txlib.layers.packed import PackedLinear, pack_weights
from txlib.layers.patches import PatchEmbedding
from txlib.layers.position import (
    LearnedPosition,
    Rotary,
    RotaryScaling,
    SinusoidalPosition,
    fourier_features,
    grid_positions,
    make_position,
    sinusoidal,
)

__all__ = [
    "BlockConfig",
    "Convolution",
    "CrossBlock",
    "FeedForward",
    "LayerNorm",
    "LearnedPosition",
    "MixtureConfig",
    "MixtureOfExperts",
    "PackedLinear",
    "PatchEmbedding",
    "RMSNorm",
    "Rotary",
    "RotaryScaling",
    "Routing",
    "SinusoidalPosition",
    "TokenEmbedding",
    "TransformerBlock",
    "fourier_features",
    "grid_positions",
    "make_position",
    "pack_weights",
    "receptive_field",
    "sinusoidal",
]
