"""What one head does: queries, keys and values in, weighted averages out."""

from importlib import import_module
from pkgutil import iter_modules

from txlib.attention.additive import (
    AdditiveAttention,
    AdditiveConfig,
    BilinearAttention,
    BilinearConfig,
    DotAttention,
    DotConfig,
)
from txlib.attention.bigbird import BigBirdAttention, BigBirdConfig
from txlib.attention.block_sparse import BlockSparseAttention, BlockSparseConfig
from txlib.attention.cache import (
    AttentionCache,
    BlockCache,
    DecoderCache,
    KeyValueCache,
    MemoryCache,
    StateCache,
    StaticKeyValueCache,
    WindowKeyValueCache,
)
from txlib.attention.chosen import ChosenBlocks, ChosenBlocksConfig
from txlib.attention.compressed import MemoryCompressedAttention, MemoryCompressedConfig
from txlib.attention.conformance import MechanismReport, check_mechanism
from txlib.attention.delta import delta_rule
from txlib.attention.dense import DenseAttention, DenseConfig
from txlib.attention.differential import DifferentialAttention, DifferentialConfig
from txlib.attention.flash import FlashAttention, FlashConfig, TiledAttention
from txlib.attention.functional import attention, attention_weights
from txlib.attention.gated_linear import GatedLinearAttention, GatedLinearConfig
from txlib.attention.grid import AttentionLayer2d, AxialAttention2d, LocalAttention2d, NonLocalBlock
from txlib.attention.kernelized import LinearAttention, LinearConfig, Performer, PerformerConfig
from txlib.attention.longformer import LongformerAttention
from txlib.attention.low_rank import Linformer, LinformerConfig, Nystrom, NystromConfig
from txlib.attention.masks import (
    Mask,
    MaskLike,
    as_dense,
    bigbird,
    block_local,
    blocks,
    causal,
    dilated,
    documents,
    full,
    global_blocks,
    global_tokens,
    padding,
    padding_from_mask,
    prefix_lm,
    random_blocks,
    sliding_window,
    sparse_fixed,
    strided,
    strided_keys,
    summary_columns,
    window_2d,
)
from txlib.attention.mechanism import LayerContext, Mechanism, MechanismConfig, MechanismError, for_each_head
from txlib.attention.multihead import MultiHeadAttention, recording
from txlib.attention.native_sparse import NativeSparseAttention, NativeSparseConfig
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
from txlib.attention.sets import ISAB, MAB, PMA, SAB

__all__ = [
    "ChosenBlocks",
    "ChosenBlocksConfig",
    "ISAB",
    "MAB",
    "PMA",
    "SAB",
    "AdditiveAttention",
    "AdditiveConfig",
    "AlibiBias",
    "AttentionCache",
    "AttentionLayer2d",
    "AxialAttention2d",
    "Bias",
    "BigBirdAttention",
    "BigBirdConfig",
    "BilinearAttention",
    "BilinearConfig",
    "BlockCache",
    "BlockSparseAttention",
    "BlockSparseConfig",
    "BucketBias",
    "DecoderCache",
    "DenseAttention",
    "DenseConfig",
    "DifferentialAttention",
    "DifferentialConfig",
    "DotAttention",
    "DotConfig",
    "FlashAttention",
    "FlashConfig",
    "GatedLinearAttention",
    "GatedLinearConfig",
    "KeyValueCache",
    "LayerContext",
    "LinearAttention",
    "LinearConfig",
    "Linformer",
    "LinformerConfig",
    "LocalAttention2d",
    "LongformerAttention",
    "Mask",
    "MaskLike",
    "Mechanism",
    "MechanismConfig",
    "MechanismError",
    "MechanismReport",
    "MemoryCache",
    "MemoryCompressedAttention",
    "MemoryCompressedConfig",
    "MultiHeadAttention",
    "NonLocalBlock",
    "Performer",
    "PerformerConfig",
    "NativeSparseAttention",
    "NativeSparseConfig",
    "Nystrom",
    "NystromConfig",
    "PositionBias",
    "ShawAttention",
    "SkewedBias",
    "StateCache",
    "StaticKeyValueCache",
    "TiledAttention",
    "WindowKeyValueCache",
    "alibi_slopes",
    "as_dense",
    "attention",
    "attention_weights",
    "bigbird",
    "block_local",
    "blocks",
    "causal",
    "check_mechanism",
    "delta_rule",
    "dilated",
    "documents",
    "strided_keys",
    "full",
    "sparse_fixed",
    "for_each_head",
    "global_blocks",
    "global_tokens",
    "padding_from_mask",
    "padding",
    "prefix_lm",
    "random_blocks",
    "recording",
    "sliding_window",
    "skew",
    "strided",
    "summary_columns",
    "window_2d",
]

for _module in iter_modules(__path__):  # a mechanism's config is known by its name once its module is imported
    if _module.name != "flash_triton":  # which needs Triton
        import_module(f"{__name__}.{_module.name}")
