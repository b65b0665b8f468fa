"""Normalization layers, which keep activations at one scale so that deep stacks train."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from txlib.attention.config import Config
from txlib.precision import at_least_float32


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
        """Return each vector, normalized separately."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """x / √(mean of x² + eps) · weight: layer norm without the mean (Zhang & Sennrich 2019, eq. 4).

    Args:
        zero_centered: multiply by 1 + weight, as in Gemma: weight decay then pulls the factor to 1.
    """

    def __init__(self, d_model: int, *, eps: float = 1e-6, zero_centered: bool = False):
        super().__init__()
        self.eps, self.zero_centered = eps, zero_centered
        self.weight = nn.Parameter(torch.zeros(d_model) if zero_centered else torch.ones(d_model))

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Return each vector, normalized separately."""
        if not self.zero_centered:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        exact = at_least_float32(x)  # 1 + weight would be rounded in 16 bits
        return F.rms_norm(exact, self.weight.shape, 1 + self.weight.to(exact.dtype), self.eps).to(x.dtype)


@dataclass(frozen=True, kw_only=True)
class NormConfig(Config):
    """Normalization in a block's config.

    Args:
        kind: "layer" or "rms".
        eps: added under the square root, so that it is never zero.
        bias: whether layer norm has a bias.
        placement: "pre" normalizes the input of each sub-layer (Xiong et al. 2020), "post" the sum of input and output
            (Vaswani et al. 2017, §3.1), "output" only the output before it is added (Team OLMo 2025), "both" the
            input and the output (Gemma Team 2024, §2).
        zero_centered: see `RMSNorm`.
    """

    kind: Literal["layer", "rms"] = "layer"
    eps: float = 1e-5
    bias: bool = True
    placement: Literal["pre", "post", "output", "both"] = "pre"
    zero_centered: bool = False

    def __post_init__(self):
        if self.zero_centered and self.kind != "rms":
            raise ValueError("zero_centered=True is for norm='rms'; leave it out")

    def make(self, d_model: int) -> nn.Module:
        """Return a norm of that width."""
        if self.kind == "layer":
            return LayerNorm(d_model, eps=self.eps, bias=self.bias)
        return RMSNorm(d_model, eps=self.eps, zero_centered=self.zero_centered)

    def make_last(self, d_model: int) -> nn.Module:
        """Return the norm after a stack of blocks; the identity for post-norm, whose output is normalized already."""
        return nn.Identity() if self.placement == "post" else self.make(d_model)
