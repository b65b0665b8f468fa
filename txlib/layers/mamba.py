"""Mamba-2: linear attention whose state fades, as a layer of its own."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from txlib.attention.kernelized import CHUNK, running_sums
from txlib.attention.mechanism import LayerContext, check_divisible, for_each_head
from txlib.layers.config import BlockConfig, MixerConfig
from txlib.layers.norm import RMSNorm
from txlib.layers.recurrent import Decay, StateMixer, check_groups, check_no_scores, split
from txlib.precision import at_least_float32, without_autocast


class Mamba2(StateMixer):
    """State-space duality: h_t = α_t h_{t-1} + Δ_t B_t x_tᵀ, y_t = C_tᵀ h_t + D x_t (Dao & Gu 2024, §5 to 7).

    That is linear attention whose state fades: C are the queries, B the keys and Δ x the values. The output is
    multiplied by SiLU(W x), then normalized in groups of heads.

    Args:
        heads, head_dim: of values: number and width; in the paper they are together twice as wide as the model.
        state_dim: N of the paper: width of queries and keys.
        groups: of heads, which share queries and keys.
        kernel: positions that the convolution reads; None: no convolution.
        bias, convolution_bias: whether the projections have biases, and the convolution.
        eps: of the norm.
        chunk: see `running_sums`.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        head_dim: int,
        state_dim: int,
        groups: int,
        kernel: int | None,
        bias: bool,
        convolution_bias: bool,
        eps: float,
        chunk: int,
    ):
        self.widths = heads * head_dim, groups * state_dim, groups * state_dim
        super().__init__(sum(self.widths), kernel, bias=convolution_bias)
        self.heads, self.head_dim, self.state_dim, self.groups = heads, head_dim, state_dim, groups
        self.eps, self.chunk = eps, chunk
        widths = dict(zip(("value", "key", "query"), self.widths, strict=True)) | {
            "dt": heads,
            "gate": heads * head_dim,
        }
        self.in_proj = nn.ModuleDict({name: nn.Linear(d_model, width, bias=bias) for name, width in widths.items()})
        self.decay, self.D = Decay(heads), nn.Parameter(torch.ones(heads))
        self.norm = RMSNorm(heads * head_dim, eps=eps)
        self.out_proj = nn.Linear(heads * head_dim, d_model, bias=bias)

    def mix(self, x, real, state):
        inputs = {name: layer(x) for name, layer in self.in_proj.items()}
        joined, past = self.convolve(
            torch.cat([inputs[name] for name in ("value", "key", "query")], -1), real, state[1:]
        )
        step, fade = self.decay(inputs["dt"], real)
        with without_autocast(x):
            v, k, q = (at_least_float32(part) for part in joined.split(self.widths, dim=-1))
            v = split(v, self.head_dim)
            q, k = (for_each_head(split(part, self.state_dim), self.heads) for part in (q, k))
            before = state[0] if state else None
            out, last = running_sums(q, k, step[..., None] * v, 0, fade=fade, state=before, chunk=self.chunk)
            out = out + self.D[:, None, None] * v
        out = out.transpose(1, 2).flatten(2) * F.silu(inputs["gate"])  # (batch, length, heads · head_dim)
        grouped = out.unflatten(-1, (self.groups, -1))
        out = F.rms_norm(grouped, grouped.shape[-1:], eps=self.eps).flatten(-2) * self.norm.weight
        return self.out_proj(out.to(x.dtype)), (last, *past)


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(MixerConfig, name="mamba2"):
    """`Mamba2` in a block's config. With d_ff=0 the model has no other layers, as in the paper.

    Args:
        heads: of values; those of the block's attention unless given.
        head_dim: width of each; 2 · d_model / heads unless given.
        state_dim: width of queries and keys.
        groups: of heads, which share queries and keys.
        kernel: positions that the short convolution reads; None: no convolution.
        bias, convolution_bias: whether the projections have biases, and the convolution.
        chunk: see `running_sums`.
    """

    heads: int | None = None
    head_dim: int | None = None
    state_dim: int = 128
    groups: int = 1
    kernel: int | None = 4
    bias: bool = False
    convolution_bias: bool = True
    chunk: int = CHUNK

    def __post_init__(self):
        self.check_at_least_one("heads", "head_dim", "state_dim", "groups", "kernel", "chunk")

    def make(self, block: BlockConfig, layer: LayerContext) -> Mamba2:
        """Return the layer.

        Raises:
            ValueError: when sizes do not divide, and for a mask or position bias of the block.
        """
        check_no_scores("Mamba2Config", block)
        heads = block.attention.heads if self.heads is None else self.heads
        check_groups("groups", self.groups, heads)
        if self.head_dim is None:
            check_divisible("2 * d_model", 2 * block.d_model, heads)
        return Mamba2(
            block.d_model,
            heads,
            head_dim=2 * block.d_model // heads if self.head_dim is None else self.head_dim,
            state_dim=self.state_dim,
            groups=self.groups,
            kernel=self.kernel,
            bias=self.bias,
            convolution_bias=self.convolution_bias,
            eps=block.norm.eps,
            chunk=self.chunk,
        )
