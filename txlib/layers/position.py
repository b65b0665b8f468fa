"""Positions: attention does not see the order of its input, so these layers add it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor, nn

from txlib.attention.config import Config
from txlib.layers.embedding import rows

WaveLayout = Literal["interleaved", "concatenated"]
RotaryLayout = Literal["interleaved", "half"]


def sinusoidal(
    length: int, d_model: int, *, layout: WaveLayout = "interleaved", offset: int = 0
) -> Float[Tensor, "length d_model"]:
    """Return sines and cosines of decreasing frequency, one row per position (Vaswani et al. 2017, §3.5).

    Args:
        layout: the paper's "interleaved" (sin, cos, sin, cos …), or "concatenated" (all sines, then all cosines),
            as in the paper's released code and in Marian.
        offset: position of the first row.

    Raises:
        ValueError: when d_model is odd.
    """
    check_even(d_model, "sinusoidal positions")
    if layout not in ("interleaved", "concatenated"):
        raise ValueError(f"layout={layout!r} is unknown; choose 'interleaved' or 'concatenated'")
    return waves(torch.arange(offset, offset + length), d_model, layout)


def waves(position: Real[Tensor, "*batch length"], d_model: int, layout: str) -> Float[Tensor, "*batch length d_model"]:
    """Return the row of `sinusoidal` of each position."""
    frequency = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64, device=position.device) / d_model)
    angle = position[..., None] * frequency  # (…, length, d_model / 2)
    pair = torch.stack if layout == "interleaved" else torch.cat
    return pair([angle.sin(), angle.cos()], dim=-1).reshape(*position.shape, d_model).float()


class SinusoidalPosition(nn.Module):
    """Adds `sinusoidal` to its input, of any length, without parameters."""

    table: Tensor

    def __init__(self, d_model: int, *, layout: WaveLayout = "interleaved"):
        super().__init__()
        self.layout = layout
        self.register_buffer("table", sinusoidal(0, d_model, layout=layout), persistent=False)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        offset: int = 0,
        position_ids: Int[Tensor, "#batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Return x plus the row of each position: from `offset` on, or of position_ids."""
        if position_ids is not None:
            return x + waves(position_ids, x.shape[-1], self.layout).to(x.dtype)
        end = offset + x.shape[1]
        if end > len(self.table):
            self.table = sinusoidal(2 * end, x.shape[-1], layout=self.layout).to(self.table)
        return x + self.table[offset:end].to(x.dtype)


class LearnedPosition(nn.Module):
    """Adds a learned vector for each position (Gehring et al. 2017, §3.1; BERT, GPT-2).

    Raises:
        ValueError: when a sequence is longer than max_length.
    """

    def __init__(self, max_length: int, d_model: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(max_length, d_model) * 0.02)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        offset: int = 0,
        position_ids: Int[Tensor, "#batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Return x plus the vector of each position: from `offset` on, or of position_ids."""
        if position_ids is not None:
            return x + rows(position_ids, self.weight, "position_ids", "max_length")
        end = offset + x.shape[1]
        if end > len(self.weight):
            raise ValueError(
                f"learned positions end at max_length={len(self.weight)}, but the sequence reaches {end}; "
                "raise max_length or shorten the sequence"
            )
        return x + self.weight[offset:end]


def grid_positions(*sizes: int) -> Float[Tensor, "points dimensions"]:
    """Return the position of each point of a grid, from -1 to 1 along each dimension (Jaegle et al. 2021, §3.2).

    The last dimension runs fastest, as in `x.flatten()`: of pixels, the column. A single point is at -1.

    Args:
        sizes: points along each dimension, e.g. height and width.
    """
    if not sizes or min(sizes) < 1:
        raise ValueError(f"a grid needs at least one point along each dimension, got sizes={sizes}")
    axes = [torch.linspace(-1, 1, size) for size in sizes]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2)


def fourier_features(
    position: Float[Tensor, "*batch dimensions"], bands: int, max_resolution: Sequence[int]
) -> Float[Tensor, "*batch features"]:
    """Return Fourier features: x, sin(π f x) and cos(π f x) along each dimension (Jaegle et al. 2021, §3.2).

    There are dimensions · (2 bands + 1) features: the raw position, then sines, dimension by dimension, then cosines.

    Args:
        position: from -1 to 1, see `grid_positions`.
        bands: number of frequencies f, spaced equally from 1 to half the resolution (Nyquist), where neighboring
            points differ most.
        max_resolution: most points along each dimension.
    """
    if bands < 1 or len(max_resolution) != position.shape[-1]:
        raise ValueError(
            f"fourier_features needs bands >= 1 and a max_resolution for each of {position.shape[-1]} dimensions, got "
            f"{bands=}, {max_resolution=}"
        )
    frequency = torch.stack([torch.linspace(1, size / 2, bands) for size in max_resolution]).to(position)
    angle = math.pi * (position[..., None] * frequency).flatten(-2)  # (…, dimensions * bands)
    return torch.cat([position, angle.sin(), angle.cos()], dim=-1)


@dataclass(frozen=True)
class RotaryScaling(Config):
    """Slower rotations, so that a context longer than in pre-training brings no angles that the model never saw.

    Args:
        factor: how many times slower; the context can be as many times longer.
        context: length in pre-training, to slow only the slow pairs of dimensions, as in Llama 3.1; None slows all,
            which is position interpolation (Chen et al. 2023, §2.3).
        slow, fast: pairs that turn at most `slow` times in that context are slowed by the factor, those that turn at
            least `fast` times not at all; in between, in proportion.
    """

    factor: int | float
    context: int | None = None
    slow: int | float = 1.0
    fast: int | float = 4.0

    def __post_init__(self):
        if self.factor < 1:
            raise ValueError(f"factor={self.factor} must be at least 1: how many times slower the turns are")
        if not 0 <= self.slow < self.fast:
            raise ValueError(f"slow={self.slow} must be less than fast={self.fast}, and neither below 0")

    @property
    def factor_of_scores(self) -> float:
        """What rotated queries and rotated keys are multiplied by."""
        return 1.0

    def __call__(self, frequency: Float[Tensor, "pairs"], base: float, length: int) -> Float[Tensor, "pairs"]:
        """Return the slowed frequencies, in radians per position.

        Args:
            base: of the rotary positions.
            length: of the text so far.
        """
        if self.context is None:
            return frequency / self.factor
        turns = self.context * frequency / (2 * math.pi)
        unscaled = ((turns - self.slow) / (self.fast - self.slow)).clamp(0, 1)
        return unscaled * frequency + (1 - unscaled) * frequency / self.factor


@dataclass(frozen=True)
class YarnScaling(RotaryScaling, name="yarn"):
    """YaRN: `RotaryScaling` with another transition, and with larger scores (Peng et al. 2024, §3).

    Args:
        factor, context: see `RotaryScaling`; context is required.
        slow, fast: likewise, but what lies between them changes in proportion to the pair's number, not to its turns.
        attention_factor: what rotated queries and keys are multiplied by; 0.1 · ln(factor) + 1 unless given (§3.4).
        whole_pairs: round the first and the last of the pairs between, as in the paper's code.
    """

    fast: int | float = 32.0
    attention_factor: float | None = None
    whole_pairs: bool = True

    def __post_init__(self):
        super().__post_init__()
        if self.context is None:
            raise ValueError("YaRN needs context, the length in pre-training")
        if self.slow == 0:
            raise ValueError("slow=0 must be above 0 for YaRN: turns in the context of the first pair that is slowed")

    @property
    def factor_of_scores(self) -> float:
        return 0.1 * math.log(self.factor) + 1 if self.attention_factor is None else self.attention_factor

    def __call__(self, frequency: Float[Tensor, "pairs"], base: float, length: int) -> Float[Tensor, "pairs"]:
        assert self.context is not None
        size = 2 * len(frequency)
        first, last = (  # pairs that turn `fast` and `slow` times in the context, as fractional numbers
            size * math.log(self.context / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (self.fast, self.slow)
        )
        if self.whole_pairs:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, size - 1)
        pair = torch.arange(len(frequency), device=frequency.device)
        slowed = ((pair - first) / (last - first or 0.001)).clamp(0, 1)
        return slowed * frequency / self.factor + (1 - slowed) * frequency


@dataclass(frozen=True)
class LongRotaryScaling(Config, name="longrope"):
    """LongRoPE: a factor for each pair, of two lists, by the length of the text (Ding et al. 2024), as in Phi-3.

    Args:
        short, long: how many times slower each pair turns, in texts up to `context` and in longer ones.
        context: length in pre-training.
        attention_factor: what rotated queries and keys are multiplied by.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    context: int
    attention_factor: float = 1.0

    def __post_init__(self):
        if len(self.short) != len(self.long):
            raise ValueError(f"short has {len(self.short)} factors, long {len(self.long)}; give one for each pair")

    @property
    def factor_of_scores(self) -> float:
        """What rotated queries and rotated keys are multiplied by."""
        return self.attention_factor

    def __call__(self, frequency: Float[Tensor, "pairs"], base: float, length: int) -> Float[Tensor, "pairs"]:
        """Return the slowed frequencies, in radians per position."""
        factors = self.long if length > self.context else self.short
        return frequency / torch.tensor(factors, device=frequency.device)

    def check_offset(self, offset: int, length: int) -> None:
        """Refuse to go on with a cache where the factors change.

        Raises:
            ValueError: with the remedy.
        """
        if 0 < offset <= self.context < length:
            raise ValueError(
                f"beyond {self.context} tokens longrope turns all keys differently, also those in the cache; decode "
                "without a cache: use_cache=False"
            )


class Rotary(nn.Module):
    """Rotates each pair of dimensions by an angle proportional to the position (Su et al. 2021, §3.2).

    The dot product of a rotated query and a rotated key depends only on their distance.

    Args:
        head_dim: size of a head; even.
        base: θ of the paper; the slowest pair turns once in 2π · base^(1 - 2 / head_dim) positions.
        layout: which dimensions make a pair: "interleaved" neighbors (0, 1), (2, 3) … as in the paper, or "half",
            (0, d/2), (1, d/2 + 1) …, as `transformers` stores Llama's checkpoints (Meta's own code turns neighbors).
        scaling: slows the rotations for a longer context.
        fraction: part of each head that is rotated, its first dimensions; the rest carries no position.

    Raises:
        ValueError: when the part is odd.
    """

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10000.0,
        layout: RotaryLayout = "interleaved",
        scaling: RotaryScaling | LongRotaryScaling | None = None,
        fraction: float = 1.0,
    ):
        super().__init__()
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction={fraction} must be above 0 and at most 1: the part of each head to rotate")
        self.width = int(head_dim * fraction)
        check_even(self.width, "rotary positions")
        if isinstance(scaling, LongRotaryScaling) and len(scaling.short) != self.width // 2:
            raise ValueError(
                f"longrope has {len(scaling.short)} factors for {self.width // 2} pairs; give one for each"
            )
        if layout not in ("interleaved", "half"):
            raise ValueError(f"layout={layout!r} is unknown; choose 'interleaved' or 'half'")
        self.head_dim, self.base, self.layout, self.scaling = head_dim, base, layout, scaling

    def forward(
        self, x: Float[Tensor, "batch heads length head_dim"], offset: int | Int[Tensor, "length"] = 0
    ) -> Float[Tensor, "batch heads length head_dim"]:
        """Return x with each vector rotated by the angles of its position: from `offset` on, or one for each."""
        if isinstance(offset, Tensor):
            rotated = self.turn(x[..., : self.width], offset)
        else:
            length = offset + x.shape[-2]
            if isinstance(self.scaling, LongRotaryScaling):
                self.scaling.check_offset(offset, length)
            rotated = self.turn(x[..., : self.width], torch.arange(offset, length, device=x.device), length)
        return rotated if self.width == self.head_dim else torch.cat([rotated, x[..., self.width :]], dim=-1)

    def turn(
        self, x: Float[Tensor, "batch heads positions width"], position: Real[Tensor, "positions"], length: int = 0
    ) -> Float[Tensor, "batch heads positions width"]:
        """Return x with each vector rotated by the angles of its position, which may be fractional.

        Args:
            length: of the text so far, which `LongRotaryScaling` depends on.
        """
        pair = torch.arange(0, self.width, 2, device=x.device)
        frequency = self.base ** (-pair / self.width)  # (width / 2,), always in float32
        if self.scaling is not None:
            frequency = self.scaling(frequency, self.base, length)
        angle = position[:, None] * frequency  # (positions, width / 2)
        cos, sin = angle.cos(), angle.sin()
        if self.scaling is not None and self.scaling.factor_of_scores != 1:
            cos, sin = cos * self.scaling.factor_of_scores, sin * self.scaling.factor_of_scores
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        if self.layout == "interleaved":
            first, second = x[..., 0::2], x[..., 1::2]  # (batch, heads, positions, width / 2)
        else:
            first, second = x.chunk(2, dim=-1)
        rotated = first * cos - second * sin, first * sin + second * cos
        return torch.stack(rotated, dim=-1).flatten(-2) if self.layout == "interleaved" else torch.cat(rotated, dim=-1)


def check_even(size: int, what: str) -> None:
    if size < 2 or size % 2:
        raise ValueError(f"{what} pair up dimensions and need an even size, got {size}; choose e.g. {max(2, size + 1)}")
