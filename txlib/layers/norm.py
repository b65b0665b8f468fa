"""Normalisation: keeps the size of activations in hand, so that deep stacks train."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class LayerNorm(nn.Module):
    """(x - mean) / √(variance + eps) · weight + bias, over the last axis of each token (Ba et al. 2016, eq. 4).

    The variance is the biased one: divided by d_model, not d_model - 1.
    """

    def __init__(self, d_model: int, *, eps: float = 1e-5, bias: bool = True):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Each vector normalised by itself."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """x / √(mean of x² + eps) · weight: layer norm without the mean (Zhang & Sennrich 2019, eq. 4)."""

    def __init__(self, d_model: int, *, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Each vector normalised by itself."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def make_norm(kind: str, d_model: int, *, eps: float, bias: bool = True) -> nn.Module:
    """The normalisation called `kind`: "layer" or "rms"."""
    if kind == "layer":
        return LayerNorm(d_model, eps=eps, bias=bias)
    if kind == "rms":
        return RMSNorm(d_model, eps=eps)
    raise ValueError(f"norm={kind!r} is unknown; choose 'layer' or 'rms'")
