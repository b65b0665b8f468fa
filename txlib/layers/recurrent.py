"""Mixers that keep a state of fixed size instead of keys and values: what `delta` and `mamba` have in common.

In each a short convolution prepares queries, keys and values, a state sums them up, and a gate may filter what is read.
They are causal, know the order of tokens without position vectors, and decode in constant memory. Hidden positions,
such as padding, change no state; the convolution reads them as zeros. States are computed in at least 32 bits.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from txlib.attention.cache import StateCache
from txlib.attention.kernelized import visible_keys
from txlib.attention.masks import MaskLike
from txlib.attention.multihead import join_masks
from txlib.layers.config import BlockConfig
from txlib.precision import at_least_float32

State = tuple[Tensor, ...]  # empty before the first position; then the state, and the convolution's last inputs


class StateMixer(nn.Module):
    """Base of these mixers: masks, cache, convolution. A subclass has `mix`.

    Args:
        width: of the convolution's input, which is queries, keys and values together.
        kernel: positions that the convolution reads; None: there is none, only its activation.
        bias: whether the convolution has one.
    """

    def __init__(self, width: int, kernel: int | None, *, bias: bool):
        super().__init__()
        self.convolution = None if kernel is None else nn.Conv1d(width, width, kernel, groups=width, bias=bias)

    def forward(
        self, x: Float[Tensor, "batch length d_model"], mask: MaskLike = None, cache: StateCache | None = None
    ) -> Float[Tensor, "batch length d_model"]:
        """Return what is added to the residual stream.

        Args:
            mask: causal(), and padding, joined by `&`.
            cache: for decoding step by step; x then holds the new positions only.

        Raises:
            ValueError: for any other mask, and for another kind of cache.
        """
        name = type(self).__name__
        if cache is not None and not isinstance(cache, StateCache):
            raise ValueError(
                f"{name} keeps a state, not keys and values: give a StateCache, not a {type(cache).__name__}"
            )
        offset = 0 if cache is None else cache.length
        real = self.real(mask, x, offset)
        out, state = self.mix(x, real, () if cache is None else cache.state)
        if cache is not None:
            cache.state, cache.length = state, offset + x.shape[1]
        return out

    def mix(
        self, x: Float[Tensor, "batch length d_model"], real: Bool[Tensor, "_ length"] | None, state: State
    ) -> tuple[Float[Tensor, "batch length d_model"], State]:
        """Return the output and the new state.

        Args:
            real: False for hidden positions; None: all count.
        """
        raise NotImplementedError

    def real(
        self, mask: MaskLike, x: Float[Tensor, "batch length d_model"], offset: int
    ) -> Bool[Tensor, "_ length"] | None:
        """Return which of the positions from `offset` on count; None: all do.

        Raises:
            ValueError: for a mask that is more than causal() and padding, or less than causal().
        """
        name, heads = type(self).__name__, x[:, None]  # (batch, 1, length, d_model)
        mask = join_masks(mask, None, offset, offset, x.shape[1], x.shape[1])
        ahead, real = visible_keys(name, mask, heads, heads)
        if ahead and x.shape[1]:
            raise ValueError(f"{name} is causal, and this mask is not: {mask}; add & causal()")
        return None if real is None else real[:, 0, :, 0]

    def convolve(
        self, x: Float[Tensor, "batch length width"], real: Bool[Tensor, "_ length"] | None, past: State
    ) -> tuple[Float[Tensor, "batch length width"], State]:
        """Return SiLU(convolution) over each position and those before it, and the inputs that the next call needs."""
        if real is not None:
            x = x.masked_fill(~real[..., None], 0.0)
        if self.convolution is None:
            return F.silu(x), ()
        weight, bias = self.convolution.weight[:, 0].T.contiguous(), self.convolution.bias  # (kernel, width), (width,)
        length, reach = x.shape[1], len(weight) - 1
        x = torch.cat([past[0], x], dim=1) if past else F.pad(x, (0, 0, reach, 0))
        out = x[:, :length] * weight[0]
        for later in range(1, reach + 1):  # a Conv1d gives the same; on a CPU its backward pass takes longer
            out = out + x[:, later : later + length] * weight[later]
        return F.silu(out if bias is None else out + bias), (x[:, length:],)

    def new_cache(self) -> StateCache:
        """Return an empty cache for decoding; its state has one size for any number of tokens."""
        return StateCache()


class Decay(nn.Module):
    """How much of a state remains: α = e^(-A Δ), Δ = softplus(dt + dt_bias) (Gu & Dao 2023, §3.6; Dao & Gu 2024, §7).

    Δ and α are of one token, and of one head or of each feature of its keys. A new head forgets between 0.1% and 80% of
    its state with each token: Δ begins between 0.001 and 0.1, A between 1 and 16, as in Mamba-2's code. Parameters are
    named as in checkpoints; A_log is ln A.
    """

    def __init__(self, heads: int, *features: int):
        super().__init__()
        step = torch.empty(heads, *features).uniform_(math.log(1e-3), math.log(1e-1)).exp()
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())

    def forward(
        self, dt: Float[Tensor, "batch length joined"], real: Bool[Tensor, "_ length"] | None
    ) -> tuple[Float[Tensor, "batch heads length *features"], Float[Tensor, "batch heads length *features"]]:
        """Return Δ and ln α, which both are 0 at hidden positions."""
        step = F.softplus(at_least_float32(dt).unflatten(-1, self.dt_bias.shape) + self.dt_bias)
        if real is not None:
            step = step.masked_fill(~real[(..., *[None] * self.dt_bias.ndim)], 0.0)
        step = step.transpose(1, 2)  # (batch, heads, length, …)
        return step, -self.A_log.exp()[(..., *[None] * self.dt_bias.ndim)] * step


def split(x: Float[Tensor, "batch length joined"], width: int) -> Float[Tensor, "batch heads length {width}"]:
    """Return heads of this width, moved from the last axis to one of their own."""
    return x.unflatten(-1, (-1, width)).transpose(1, 2)


def check_groups(name: str, groups: int, heads: int) -> None:
    """Refuse heads that groups do not divide.

    Raises:
        ValueError: naming both.
    """
    if heads % groups:
        raise ValueError(f"heads={heads} is not divisible by {name}={groups}; choose a divisor of {heads}")


def check_no_scores(name: str, block: BlockConfig) -> None:
    """Refuse a block whose attention has what acts on scores, for a mixer that computes none.

    Raises:
        ValueError: with the remedy.
    """
    if block.attention.mask is not None:
        raise ValueError(
            f"{name} sums up all tokens until now and takes no mask, got mask={block.attention.mask}; in a stack that "
            "also has attention, set the mask in the layer_pattern of those layers"
        )
    if block.position is not None and block.position.shared:
        raise ValueError(
            f"{name} has no scores for position={block.position.name!r} to be added to; choose 'rotary' or 'none'"
        )
