"""The layers between attention and a model: embeddings, positions, norms, feed-forward, the block."""

from txlib.layers.block import CrossBlock, TransformerBlock
from txlib.layers.config import AttentionConfig, BlockConfig, MixerConfig
from txlib.layers.conformance import check_mixer
from txlib.layers.convolution import Convolution, receptive_field
from txlib.layers.delta import DeltaConfig, GatedDeltaNet, KimiDelta, KimiDeltaConfig
from txlib.layers.embedding import TokenEmbedding
from txlib.layers.feedforward import FeedForward, FeedForwardConfig
from txlib.layers.latent import Indexer, LatentAttention, LatentConfig
from txlib.layers.lora import LoRAConfig, LoRALinear, add_lora, lora_layers, merge_lora
from txlib.layers.mamba import Mamba2, Mamba2Config
from txlib.layers.mixer import LongformerConfig
from txlib.layers.moe import MixtureConfig, MixtureOfExperts, Routing
from txlib.layers.norm import LayerNorm, NormConfig, RMSNorm
from txlib.layers.packed import PackedLinear, pack_weights
from txlib.layers.patches import PatchEmbedding
from txlib.layers.position import (
    LearnedPosition,
    LongRotaryScaling,
    Rotary,
    RotaryScaling,
    SinusoidalPosition,
    YarnScaling,
    fourier_features,
    grid_positions,
    sinusoidal,
)
from txlib.layers.position_config import (
    AlibiConfig,
    BucketConfig,
    LearnedConfig,
    NoPosition,
    PositionConfig,
    RotaryConfig,
    ShawConfig,
    SinusoidalConfig,
    SkewedConfig,
    make_position,
)

__all__ = [
    "AlibiConfig",
    "AttentionConfig",
    "BlockConfig",
    "BucketConfig",
    "Convolution",
    "CrossBlock",
    "DeltaConfig",
    "FeedForward",
    "FeedForwardConfig",
    "GatedDeltaNet",
    "KimiDelta",
    "KimiDeltaConfig",
    "Indexer",
    "LatentAttention",
    "LatentConfig",
    "LayerNorm",
    "LearnedConfig",
    "LearnedPosition",
    "LoRAConfig",
    "LoRALinear",
    "LongRotaryScaling",
    "LongformerConfig",
    "Mamba2",
    "Mamba2Config",
    "MixerConfig",
    "MixtureConfig",
    "MixtureOfExperts",
    "NoPosition",
    "NormConfig",
    "PackedLinear",
    "PatchEmbedding",
    "PositionConfig",
    "RMSNorm",
    "Rotary",
    "RotaryConfig",
    "RotaryScaling",
    "Routing",
    "ShawConfig",
    "SinusoidalConfig",
    "SinusoidalPosition",
    "SkewedConfig",
    "TokenEmbedding",
    "TransformerBlock",
    "YarnScaling",
    "add_lora",
    "check_mixer",
    "fourier_features",
    "grid_positions",
    "lora_layers",
    "make_position",
    "merge_lora",
    "pack_weights",
    "receptive_field",
    "sinusoidal",
]
