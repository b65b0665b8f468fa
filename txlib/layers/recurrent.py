"""Mixers that keep a state of fixed size instead of keys and values: DeltaNet, Gated DeltaNet and Mamba-2.

In each a short convolution prepares queries, keys and values, a state sums them up, and a gate may filter what is read.
They are causal, know the order of tokens without position vectors, and decode in constant memory. Hidden positions,
such as padding, change no state; the convolution reads them as zeros. States are computed in at least 32 bits.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from txlib.attention.cache import StateCache
from txlib.attention.delta import delta_rule
from txlib.attention.kernelized import CHUNK, running_sums, visible_keys
from txlib.attention.masks import MaskLike
from txlib.attention.mechanism import (
    LayerContext,
    at_least_float32,
    check_divisible,
    check_given_sizes,
    for_each_head,
    without_autocast,
)
from txlib.attention.multihead import join_masks
from txlib.layers.config import BlockConfig, MixerConfig
from txlib.layers.norm import RMSNorm

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

    Δ and α are of one head and token. A new head forgets between 0.1% and 80% of its state with each token: Δ begins
    between 0.001 and 0.1, A between 1 and 16, as in Mamba-2's code. Parameters are named as in checkpoints; A_log is
    ln A.
    """

    def __init__(self, heads: int):
        super().__init__()
        step = torch.empty(heads).uniform_(math.log(1e-3), math.log(1e-1)).exp()
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())

    def forward(
        self, dt: Float[Tensor, "batch length heads"], real: Bool[Tensor, "_ length"] | None
    ) -> tuple[Float[Tensor, "batch heads length"], Float[Tensor, "batch heads length"]]:
        """Return Δ and ln α, which both are 0 at hidden positions."""
        step = F.softplus(at_least_float32(dt) + self.dt_bias)
        if real is not None:
            step = step.masked_fill(~real[..., None], 0.0)
        return step.mT, (-self.A_log.exp() * step).mT


class GatedDeltaNet(StateMixer):
    """The delta rule as a layer: DeltaNet (Yang et al. 2024b), or with a decay Gated DeltaNet (Yang et al. 2025, §3.4).

    Keys and queries have length 1, β = sigmoid(W x). Each head's output is normalized, and filtered by SiLU(W x) where
    there is an output gate.

    Args:
        heads: of values, each with its own state (head_dim, value_dim).
        key_heads: of queries and keys, each shared by heads / key_heads value heads.
        head_dim, value_dim: width of a head's queries and keys, and of its values.
        gated: whether the state fades; see `Decay`.
        output_gate: whether the input decides what of the output passes.
        kernel: positions that the convolution reads; None: no convolution.
        eps: of the norm.
        chunk: see `delta_rule`.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        key_heads: int,
        head_dim: int,
        value_dim: int,
        gated: bool,
        output_gate: bool,
        kernel: int | None,
        eps: float,
        chunk: int,
    ):
        self.widths = key_heads * head_dim, key_heads * head_dim, heads * value_dim
        super().__init__(sum(self.widths), kernel, bias=False)
        self.heads, self.head_dim, self.value_dim, self.chunk = heads, head_dim, value_dim, chunk
        widths = dict(zip(("query", "key", "value"), self.widths, strict=True)) | {"beta": heads}
        widths |= ({"dt": heads} if gated else {}) | ({"gate": heads * value_dim} if output_gate else {})
        self.in_proj = nn.ModuleDict({name: nn.Linear(d_model, width, bias=False) for name, width in widths.items()})
        self.decay = Decay(heads) if gated else None
        self.norm = RMSNorm(value_dim, eps=eps)
        self.out_proj = nn.Linear(heads * value_dim, d_model, bias=False)

    def mix(self, x, real, state):
        inputs = {name: layer(x) for name, layer in self.in_proj.items()}
        joined, past = self.convolve(
            torch.cat([inputs[name] for name in ("query", "key", "value")], -1), real, state[1:]
        )
        beta = at_least_float32(inputs["beta"]).sigmoid()  # (batch, length, heads)
        if real is not None:
            beta = beta.masked_fill(~real[..., None], 0.0)
        fade = None if self.decay is None else self.decay(inputs["dt"], real)[1]
        with without_autocast(x):
            q, k, v = (at_least_float32(part) for part in joined.split(self.widths, dim=-1))
            q, k = (for_each_head(unit(split(part, self.head_dim)), self.heads) for part in (q, k))
            out, last = delta_rule(
                q * self.head_dim**-0.5,
                k,
                split(v, self.value_dim),
                beta.mT,
                fade=fade,
                state=state[0] if state else None,
                chunk=self.chunk,
            )
        out = F.rms_norm(out.transpose(1, 2), (self.value_dim,), eps=self.norm.eps) * self.norm.weight
        out = out.flatten(2).to(x.dtype)  # (batch, length, heads · value_dim)
        if "gate" in inputs:
            out = out * F.silu(inputs["gate"])
        return self.out_proj(out), (last, *past)


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


def split(x: Float[Tensor, "batch length joined"], width: int) -> Float[Tensor, "batch heads length {width}"]:
    """Return heads of this width, moved from the last axis to one of their own."""
    return x.unflatten(-1, (-1, width)).transpose(1, 2)


def unit(x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
    """Return each vector divided by its length."""
    return x * (x.square().sum(dim=-1, keepdim=True) + 1e-6).rsqrt()


@dataclass(frozen=True, kw_only=True)
class DeltaConfig(MixerConfig, name="delta"):
    """`GatedDeltaNet` in a block's config: DeltaNet, or with both gates Gated DeltaNet, as in Qwen3-Next.

    Args:
        heads: of values; those of the block's attention unless given.
        key_heads: of queries and keys; as many unless given.
        head_dim, value_dim: width of a head's queries and keys, and of its values; as in the block's attention.
        gated: whether the state fades.
        output_gate: whether the input decides what of the output passes.
        kernel: positions that the short convolution reads; None: no convolution.
        chunk: see `delta_rule`.
    """

    heads: int | None = None
    key_heads: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    gated: bool = False
    output_gate: bool = False
    kernel: int | None = 4
    chunk: int = CHUNK

    def __post_init__(self):
        sizes = {"heads": self.heads, "key_heads": self.key_heads, "head_dim": self.head_dim}
        check_given_sizes(**sizes, value_dim=self.value_dim, kernel=self.kernel, chunk=self.chunk)

    def make(self, block: BlockConfig, layer: LayerContext) -> GatedDeltaNet:
        """Return the layer.

        Raises:
            ValueError: when heads is no multiple of key_heads, and for a mask or position bias of the block.
        """
        check_no_scores("DeltaConfig", block)
        heads = block.attention.heads if self.heads is None else self.heads
        key_heads = heads if self.key_heads is None else self.key_heads
        check_groups("key_heads", key_heads, heads)
        return GatedDeltaNet(
            block.d_model,
            heads,
            key_heads=key_heads,
            head_dim=block.head_dim if self.head_dim is None else self.head_dim,
            value_dim=block.value_dim if self.value_dim is None else self.value_dim,
            gated=self.gated,
            output_gate=self.output_gate,
            kernel=self.kernel,
            eps=block.norm.eps,
            chunk=self.chunk,
        )


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
        sizes = {"heads": self.heads, "head_dim": self.head_dim, "state_dim": self.state_dim}
        check_given_sizes(**sizes, groups=self.groups, kernel=self.kernel, chunk=self.chunk)

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
