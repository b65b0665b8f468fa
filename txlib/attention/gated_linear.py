"""Linear attention whose state fades: gated linear attention, which is also the layer of state-space duality."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from txlib.attention.kernelized import CHUNK, KernelizedAttention, running_sums
from txlib.attention.mechanism import (
    LayerContext,
    MechanismConfig,
    check_head_count,
    check_no_dropout,
    check_sizes,
    check_width,
)


class GatedLinearAttention(KernelizedAttention):
    """A state that fades: S_t = α_t S_{t-1} + k_t v_tᵀ, out_t = q_t S_t / √d, with one α in (0, 1) per head and token.

    That is state-space duality's layer: the same numbers as (L ∘ q kᵀ) v with L_ij = α_{j+1} … α_i (Dao & Gu 2024, §5
    and 6). With a gate for each feature instead of each head it would be the layer of Yang et al. 2024, whose
    exponent 1 / 16 it uses (§4.4); without the dependence on data it is RetNet's (Sun et al. 2023, §2.1), whose rates
    initialize the heads. There is no sum of weights to divide by. Instead, as in RetNet, each head's output is divided
    by its root mean square; the output projection learns the gains.

    A mechanism sees q, k and v only. So α_t is computed from the value, α_t = sigmoid(decay + gate · v_t)^(1/16), which
    neither rotary positions nor QK-norm change; the papers compute it from the layer's input. Their output gate and the
    short convolution before the projections belong to a layer, not to a mechanism.

    Without a causal mask it looks both ways, and weights fade with the distance to either side. A hidden key leaves the
    state unchanged.

    Args:
        heads: number of heads.
        value_dim: width of a value; None: α is learned for each head, and is the same for all tokens.
        chunk: queries at a time under a causal mask; it changes time and memory, not the numbers.
    """

    root = 16  # of the gates: a new layer remembers hundreds of tokens

    def __init__(self, heads: int, value_dim: int | None = None, *, chunk: int = CHUNK):
        super().__init__(chunk)
        check_sizes(heads=heads, value_dim=1 if value_dim is None else value_dim)
        forgotten = torch.logspace(-5, -9, heads, base=2.0)  # of the state, per token: 1/32 … 1/512
        self.decay = nn.Parameter(torch.logit((1 - forgotten) ** self.root))
        self.gate = None if value_dim is None else nn.Parameter(torch.zeros(heads, value_dim))

    def fade(self, v: Float[Tensor, "batch heads key value_dim"]) -> Float[Tensor, "batch heads key"]:
        """Return ln α of each token."""
        gate = self.decay[:, None].to(v.dtype).expand(v.shape[:-1])
        if self.gate is not None:
            check_width(self, "value_dim", v, self.gate.shape[1])
            gate = gate + torch.einsum("bhnd,hd->bhn", v, self.gate.to(v.dtype))
        return F.logsigmoid(gate) / self.root

    def attend(self, q, k, v, ahead, real, cache):
        check_head_count(self, "heads", v, len(self.decay))
        fade = self.fade(v)
        if real is not None:
            k, fade = k.masked_fill(~real, 0.0), fade.masked_fill(~real[..., 0], 0.0)
        queries, keys = q.shape[-2], k.shape[-2]
        both_ways = ahead >= keys - 1 and queries > 1 and keys > 0
        if both_ways and (queries != keys or cache is not None):
            raise ValueError(
                f"GatedLinearAttention fades with the distance, and {queries} queries that see all of {keys} keys"
                f"{'' if cache is None else ' and a cache'} have none; add & causal(), or use LinearAttention"
            )
        state = cache.state[0] if cache is not None and cache.state else None
        q = q * q.shape[-1] ** -0.5
        out, state = running_sums(q, k, v, 0 if both_ways else ahead, fade=fade, state=state, chunk=self.chunk)
        if both_ways:  # the later keys: the same from the end, where each key has already faded by its own α
            q, k, v, fade = (tensor.flip(2) for tensor in (q, k * fade.exp()[..., None], v, fade))
            out = out + running_sums(q, k, v, -1, fade=fade, chunk=self.chunk)[0].flip(2)
        if cache is not None:
            cache.state = (state,)
        return F.rms_norm(out, out.shape[-1:], eps=1e-6)


@dataclass(frozen=True)
class GatedLinearConfig(MechanismConfig, name="gated-linear"):
    """`GatedLinearAttention` in a block's config.

    Args:
        gated: whether each token decides how much of the past remains; otherwise each head learns one rate.
        chunk: see `GatedLinearAttention`.
    """

    gated: bool = True
    chunk: int = CHUNK

    def make(self, block: Any, layer: LayerContext) -> GatedLinearAttention:
        """Return the mechanism.

        Raises:
            ValueError: for cross-attention, where positions of queries and keys have no distance.
        """
        check_no_dropout("GatedLinearAttention", block)
        if layer.cross:
            raise ValueError(
                "GatedLinearAttention fades with the distance, which queries and a memory do not have; "
                "use cross_mechanism=LinearConfig()"
            )
        return GatedLinearAttention(block.attention.heads, block.value_dim if self.gated else None, chunk=self.chunk)
