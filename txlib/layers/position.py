"""Where am I? Attention does not see the order of its input; these give it one."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

SINUSOIDAL_LAYOUTS = {"sinusoidal": "interleaved", "sinusoidal_concatenated": "concatenated"}


def sinusoidal(
    length: int, d_model: int, *, layout: Literal["interleaved", "concatenated"] = "interleaved", offset: int = 0
) -> Float[Tensor, "length d_model"]:
    """Sines and cosines of falling frequency, one row a position (Vaswani et al. 2017, §3.5).

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
    position = torch.arange(offset, offset + length, dtype=torch.float64)
    frequency = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    angle = position[:, None] * frequency                                   # (length, d_model / 2)
    pair = torch.stack if layout == "interleaved" else torch.cat
    return pair([angle.sin(), angle.cos()], dim=-1).reshape(length, d_model).float()


class SinusoidalPosition(nn.Module):
    """Adds `sinusoidal` to its input. Any length; nothing to learn."""

    table: Tensor

    def __init__(self, d_model: int, *, layout: Literal["interleaved", "concatenated"] = "interleaved"):
        super().__init__()
        self.layout = layout
        self.register_buffer("table", sinusoidal(0, d_model, layout=layout), persistent=False)

    def forward(
        self, x: Float[Tensor, "batch length d_model"], offset: int = 0
    ) -> Float[Tensor, "batch length d_model"]:
        """x plus the row of each position; the first stands at `offset`."""
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
        self.table = nn.Parameter(torch.randn(max_length, d_model) * 0.02)

    def forward(
        self, x: Float[Tensor, "batch length d_model"], offset: int = 0
    ) -> Float[Tensor, "batch length d_model"]:
        """x plus the vector of each position; the first stands at `offset`."""
        end = offset + x.shape[1]
        if end > len(self.table):
            raise ValueError(
                f"learned positions end at max_length={len(self.table)}, but the sequence reaches {end}; "
                "raise max_length or shorten the sequence"
            )
        return x + self.table[offset:end]


def make_position(position: str, max_length: int, d_model: int) -> nn.Module | None:
    """What adds positions to a model's input; None where attention itself knows them, or nothing does."""
    if position == "learned":
        return LearnedPosition(max_length, d_model)
    if position in SINUSOIDAL_LAYOUTS:
        return SinusoidalPosition(d_model, layout=SINUSOIDAL_LAYOUTS[position])
    return None


class Rotary(nn.Module):
    """Turns each pair of dimensions by an angle proportional to the position (Su et al. 2021, §3.2).

    The dot product of a turned query and a turned key depends only on their distance.

    Args:
        head_dim: size of a head; even.
        base: θ of the paper; the slowest pair turns once in 2π · base^(1 - 2 / head_dim) positions.
        layout: which dimensions make a pair: "interleaved" neighbours (0, 1), (2, 3) … as in the paper, or "half",
            (0, d/2), (1, d/2 + 1) …, as Llama's checkpoints are stored.

    Raises:
        ValueError: when head_dim is odd.
    """

    def __init__(self, head_dim: int, *, base: float = 10000.0, layout: Literal["interleaved", "half"] = "interleaved"):
        super().__init__()
        check_even(head_dim, "rotary positions")
        if layout not in ("interleaved", "half"):
            raise ValueError(f"layout={layout!r} is unknown; choose 'interleaved' or 'half'")
        self.head_dim, self.base, self.layout = head_dim, base, layout

    def forward(
        self, x: Float[Tensor, "batch heads length head_dim"], offset: int = 0
    ) -> Float[Tensor, "batch heads length head_dim"]:
        """x with the vector at position offset + i turned by that position's angles."""
        position = torch.arange(offset, offset + x.shape[-2], device=x.device)
        pair = torch.arange(0, self.head_dim, 2, device=x.device)
        angle = position[:, None] * self.base ** (-pair / self.head_dim)    # (length, head_dim / 2), always in float32
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        if self.layout == "interleaved":
            first, second = x[..., 0::2], x[..., 1::2]                      # (batch, heads, length, head_dim / 2)
        else:
            first, second = x.chunk(2, dim=-1)
        turned = first * cos - second * sin, first * sin + second * cos
        return torch.stack(turned, dim=-1).flatten(-2) if self.layout == "interleaved" else torch.cat(turned, dim=-1)


def check_even(size: int, what: str) -> None:
    if size < 2 or size % 2:
        raise ValueError(f"{what} pair up dimensions and need an even size, got {size}; choose e.g. {max(2, size + 1)}")
