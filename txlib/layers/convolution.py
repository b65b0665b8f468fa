"""Convolution over positions: the same small matrix reads each position with its neighbors."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils import parametrize


class ConvolutionCache:
    """The last inputs of one causal convolution, kept while a sequence is decoded token by token.

    It never grows: a convolution sees (kernel - 1) · dilation positions of the past, and no more.
    """

    def __init__(self) -> None:
        self.length = 0  # positions seen so far
        self.past: Tensor | None = None

    def append(self, x: Float[Tensor, "batch new d_in"], reach: int) -> Float[Tensor, "batch reach_and_new d_in"]:
        """Return the last `reach` inputs, which are zeros before the first, followed by the new ones.

        Raises:
            ValueError: when the batch has another size than before.
        """
        if self.past is None:
            self.past = x.new_zeros(len(x), reach, x.shape[-1])
        if len(self.past) != len(x):
            raise ValueError(
                f"the cache holds {len(self.past)} sequences, got {len(x)}; reorder it, or begin a new one"
            )
        x = torch.cat([self.past, x], dim=1)
        self.past = x[:, x.shape[1] - reach :]
        self.length += x.shape[1] - reach
        return x

    def reorder(self, rows: Int[Tensor, "new_batch"]) -> None:
        """Keep these rows of the batch, in this order, as a beam search does with its hypotheses."""
        if self.past is not None:
            self.past = self.past[rows]


class StackCache(list[ConvolutionCache]):
    """One `ConvolutionCache` per layer of a decoder."""

    @property
    def length(self) -> int:
        """Positions decoded so far."""
        return self[0].length

    def reorder(self, rows: Int[Tensor, "new_batch"]) -> None:
        """Keep these rows of the batch, in this order."""
        for cache in self:
            cache.reorder(rows)


class Convolution(nn.Module):
    """W [x at the kernel's positions] + b, at each position; as many outputs as inputs.

    The kernel's positions are `dilation` apart. They are centered on the output's own position, or, if causal, end
    there. Beyond the sequence's ends the input is zero.

    Args:
        kernel: number of positions that one output reads; odd unless causal, so that it has a middle.
        causal: no output reads a later position (van den Oord et al. 2016, §2.1).

    Raises:
        ValueError: for an even kernel that is not causal, and for sizes below 1.
    """

    def __init__(self, d_in: int, d_out: int, kernel: int, *, dilation: int = 1, causal: bool = False):
        super().__init__()
        check_kernel("kernel", kernel, causal=causal)
        if dilation < 1:
            raise ValueError(f"dilation={dilation} must be at least 1; 1 reads neighbors")
        self.kernel, self.dilation, self.causal = kernel, dilation, causal
        self.weight = nn.Parameter(torch.randn(d_out, d_in * kernel) * (d_in * kernel) ** -0.5)
        self.bias = nn.Parameter(torch.zeros(d_out))

    def forward(
        self,
        x: Float[Tensor, "batch length d_in"],
        kept: Bool[Tensor, "batch length"] | None = None,
        cache: ConvolutionCache | None = None,
    ) -> Float[Tensor, "batch length d_out"]:
        """Return the projection of each position's neighborhood.

        Args:
            kept: False = padding, read as zeros, like positions beyond the ends.
            cache: of earlier inputs; x then holds the new positions only.
        """
        if kept is not None:
            x = x.masked_fill(~kept[..., None], 0.0)
        reach = (self.kernel - 1) * self.dilation
        if cache is not None:
            x = cache.append(x, reach)
        else:
            x = F.pad(x, (0, 0, reach, 0) if self.causal else (0, 0, reach // 2, reach // 2))
        weight = self.weight.unflatten(1, (-1, self.kernel))  # (d_out, d_in, kernel)
        return F.conv1d(x.mT, weight, self.bias, dilation=self.dilation).mT


def receptive_field(kernel: int, dilations: Iterable[int]) -> int:
    """Return how many positions, from first to last, one output of a stack of such layers depends on."""
    return 1 + (kernel - 1) * sum(dilations)


def check_kernel(name: str, kernel: int, *, causal: bool) -> None:
    """Refuse an impossible kernel size.

    Raises:
        ValueError: naming it.
    """
    if kernel < 1:
        raise ValueError(f"{name}={kernel} must be at least 1")
    if not causal and kernel % 2 == 0:
        raise ValueError(f"{name}={kernel} has no middle; choose an odd one, e.g. {kernel + 1}")


class WeightNorm(nn.Module):
    """Weights as length times direction, g v / ‖v‖ for each output (Salimans & Kingma 2016, eq. 2)."""

    def forward(self, g: Float[Tensor, "d_out"], v: Float[Tensor, "d_out d_in"]) -> Float[Tensor, "d_out d_in"]:
        """Return the weights that the layer uses."""
        return g[:, None] * F.normalize(v, dim=1)

    def right_inverse(self, weight: Float[Tensor, "d_out d_in"]) -> tuple[Tensor, Tensor]:
        """Return lengths and directions of the current weights."""
        return weight.norm(dim=1), weight

    @classmethod
    def apply_to(cls, model: nn.Module) -> None:
        """Normalize every linear and convolutional layer of a model; their outputs stay the same."""
        for module in [*model.modules()]:
            if isinstance(module, nn.Linear | Convolution):
                parametrize.register_parametrization(module, "weight", cls())
