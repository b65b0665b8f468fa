"""Configs of positions: how a block encodes them."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from txlib.attention import AlibiBias, BucketBias, LayerContext, PositionBias, ShawAttention, SkewedBias
from txlib.attention.config import Config
from txlib.hints import did_you_mean
from txlib.layers.patches import Grid, LearnedGrid, RotaryGrid, SinusoidalGrid
from txlib.layers.position import (
    LearnedPosition,
    LongRotaryScaling,
    Rotary,
    RotaryLayout,
    RotaryScaling,
    SinusoidalPosition,
    WaveLayout,
)


@dataclass(frozen=True)
class PositionConfig(Config):
    """How a model encodes the positions of its tokens.

    A subclass, a frozen dataclass with a name, overrides the methods for what it changes: the model's input, queries
    and keys, scores, or the mechanism itself. The others return None.

    causal: whether it covers the past only. shared: whether all layers use the first layer's position bias.
    on_grid: whether it supports the rows and columns of pictures.
    """

    example: ClassVar[str] = "RotaryConfig()"
    causal: ClassVar[bool] = False
    shared: ClassVar[bool] = False
    on_grid: ClassVar[bool] = False

    @property
    def in_attention(self) -> bool:
        """Whether it concerns each attention layer alone, so that layers may differ."""
        return type(self).make_embedding is PositionConfig.make_embedding and not self.shared

    def check(self, block: Any) -> None:
        """Refuse a block that these positions do not fit.

        Raises:
            ValueError: naming the option.
        """

    def make_embedding(self, max_length: int, d_model: int) -> nn.Module | None:
        """Return the module that adds positions to a model's input."""
        return None

    def make_grid_embedding(self, grid: Grid, special: int, d_model: int) -> nn.Module | None:
        """Return the module that adds positions to patches, after `special` tokens."""
        return None

    def make_rotary(self, head_dim: int) -> nn.Module | None:
        """Return the module that rotates queries and keys."""
        return None

    def make_grid_rotary(self, grid: Grid, special: int, head_dim: int) -> RotaryGrid | None:
        """Return the module that rotates the queries and keys of patches, after `special` tokens."""
        return None

    def make_bias(self, block: Any, layer: LayerContext) -> PositionBias | None:
        """Return the module that adds to the scores of a layer."""
        return None

    def make_mechanism(self, block: Any, layer: LayerContext) -> nn.Module | None:
        """Return the mechanism to use instead of the block's own."""
        return None


@dataclass(frozen=True, kw_only=True)
class NoPosition(PositionConfig, name="none"):
    """No positions: attention sees a set of tokens, except for its mask."""

    on_grid = True


@dataclass(frozen=True, kw_only=True)
class SinusoidalConfig(PositionConfig, name="sinusoidal"):
    """Sines and cosines, added to the input; see `sinusoidal`."""

    on_grid = True
    layout: WaveLayout = "interleaved"

    def make_embedding(self, max_length: int, d_model: int) -> SinusoidalPosition:
        return SinusoidalPosition(d_model, layout=self.layout)

    def make_grid_embedding(self, grid: Grid, special: int, d_model: int) -> SinusoidalGrid:
        return SinusoidalGrid(grid, special, d_model, self.layout)


@dataclass(frozen=True, kw_only=True)
class LearnedConfig(PositionConfig, name="learned"):
    """A learned vector for each position, added to the input; see `LearnedPosition`."""

    on_grid = True

    def make_embedding(self, max_length: int, d_model: int) -> LearnedPosition:
        return LearnedPosition(max_length, d_model)

    def make_grid_embedding(self, grid: Grid, special: int, d_model: int) -> LearnedGrid:
        return LearnedGrid(grid, special, d_model)


@dataclass(frozen=True, kw_only=True)
class RotaryConfig(PositionConfig, name="rotary"):
    """Rotated queries and keys; see `Rotary`."""

    on_grid = True
    base: float = 10000.0
    layout: RotaryLayout = "interleaved"
    scaling: RotaryScaling | LongRotaryScaling | None = None
    fraction: float = 1.0

    def make_rotary(self, head_dim: int) -> Rotary:
        return Rotary(head_dim, base=self.base, layout=self.layout, scaling=self.scaling, fraction=self.fraction)

    def make_grid_rotary(self, grid: Grid, special: int, head_dim: int) -> RotaryGrid:
        if self.scaling is not None or self.fraction != 1:
            raise ValueError("pictures turn whole heads at one speed; leave out scaling and fraction")
        return RotaryGrid(grid, special, head_dim, base=self.base, layout=self.layout)


@dataclass(frozen=True, kw_only=True)
class ShawConfig(PositionConfig, name="shaw"):
    """Vectors by distance, added to keys and values; see `ShawAttention`."""

    max_distance: int = 16

    def check(self, block: Any) -> None:
        if block.attention.mechanism is not None:
            raise ValueError(
                "position='shaw' adds to the values too, and is itself a mechanism; choose it or mechanism=…, not both"
            )
        if block.value_dim != block.head_dim:
            raise ValueError(
                f"position='shaw' adds the same vectors to keys and values, got value_dim={block.value_dim} beside "
                f"heads of {block.head_dim}; leave value_dim out"
            )

    def make_mechanism(self, block: Any, layer: LayerContext) -> ShawAttention:
        return ShawAttention(block.head_dim, self.max_distance, dropout=block.attention.dropout)


@dataclass(frozen=True, kw_only=True)
class SkewedConfig(PositionConfig, name="skewed"):
    """Vectors by distance, multiplied with queries; see `SkewedBias`."""

    causal = True
    max_distance: int | None = None

    def make_bias(self, block: Any, layer: LayerContext) -> SkewedBias:
        longest = 2048 if layer.max_length is None else layer.max_length
        return SkewedBias(block.attention.heads, block.head_dim, longest, self.max_distance)


@dataclass(frozen=True, kw_only=True)
class AlibiConfig(PositionConfig, name="alibi"):
    """A penalty that grows with distance; see `AlibiBias`."""

    def make_bias(self, block: Any, layer: LayerContext) -> AlibiBias:
        return AlibiBias(block.attention.heads)


@dataclass(frozen=True, kw_only=True)
class BucketConfig(PositionConfig, name="t5"):
    """A learned number for each bucket of distances, shared by all layers; see `BucketBias`."""

    shared = True
    buckets: int = 32
    max_distance: int = 128

    def make_bias(self, block: Any, layer: LayerContext) -> BucketBias | None:
        """Return the first layer's bias, which later layers reuse."""
        if layer.number > 0:
            return None
        return BucketBias(
            block.attention.heads,
            buckets=self.buckets,
            max_distance=self.max_distance,
            bidirectional=not layer.causal,
        )


POSITIONS: dict[str, PositionConfig] = {
    "none": NoPosition(),
    "learned": LearnedConfig(),
    "sinusoidal": SinusoidalConfig(),
    "sinusoidal_concatenated": SinusoidalConfig(layout="concatenated"),
    "rotary": RotaryConfig(),
    "rotary_half": RotaryConfig(layout="half"),
    "shaw": ShawConfig(),
    "skewed": SkewedConfig(),
    "alibi": AlibiConfig(),
    "t5": BucketConfig(),
}  # the names that `BlockConfig.of_sizes` accepts


def find_position(position: PositionConfig | str | None) -> PositionConfig | None:
    """Return the positions of that name; a config or None is returned as it is.

    Raises:
        ValueError: for an unknown name.
    """
    if not isinstance(position, str):
        return position
    if position not in POSITIONS:
        hint = did_you_mean(position, POSITIONS)
        raise ValueError(f"position={position!r} is unknown; choose one of {', '.join(POSITIONS)}{hint}")
    return POSITIONS[position]


def make_position(position: PositionConfig | None, max_length: int, d_model: int) -> nn.Module | None:
    """Return the module that adds positions to a model's input; None where attention encodes them, or nothing does.

    Raises:
        ValueError: when the block has no position.
    """
    if position is None:
        raise ValueError(
            'a model must know where its tokens stand, and its BlockConfig does not say: add e.g. position="rotary", '
            'or position="none" to do without'
        )
    return position.make_embedding(max_length, d_model)


def name_of(position: PositionConfig | None) -> str | None:
    """Return the name of positions, for error messages."""
    return None if position is None else position.name


def check_two_sided(position: PositionConfig | None) -> None:
    """Refuse causal positions in a model that reads in both directions.

    Raises:
        ValueError: naming them.
    """
    if position is not None and position.causal:
        raise ValueError(f"position={position.name!r} is causal, and an encoder is not; choose 'learned' or 'shaw'")
