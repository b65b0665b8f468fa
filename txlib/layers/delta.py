"""Mixers whose state follows the delta rule: DeltaNet, Gated DeltaNet and Kimi Delta Attention."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from txlib.attention.delta import delta_rule
from txlib.attention.kernelized import CHUNK
from txlib.attention.mechanism import LayerContext, for_each_head
from txlib.layers.config import BlockConfig, MixerConfig
from txlib.layers.norm import RMSNorm
from txlib.layers.recurrent import Decay, StateMixer, check_groups, check_no_scores, split
from txlib.precision import at_least_float32, without_autocast


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

    _gate_activation: Callable[[Tensor], Tensor] = staticmethod(F.silu)

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
        chunk: int | None,
    ):
        self.widths = key_heads * head_dim, key_heads * head_dim, heads * value_dim
        super().__init__(sum(self.widths), kernel, bias=False)
        self.heads, self.head_dim, self.value_dim, self.chunk = heads, head_dim, value_dim, chunk
        widths = dict(zip(("query", "key", "value"), self.widths, strict=True)) | {"beta": heads}
        widths |= ({"dt": heads} if gated else {}) | ({"gate": heads * value_dim} if output_gate else {})
        self.in_proj = nn.ModuleDict({name: nn.Linear(d_model, width, bias=False) for name, width in widths.items()})
        self.decay: Decay | None = Decay(heads) if gated else None
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
            out = out * self._gate_activation(inputs["gate"])
        return self.out_proj(out), (last, *past)


class KimiDelta(GatedDeltaNet):
    """Kimi Delta Attention: a Gated DeltaNet in which each feature of the keys fades by itself (Kimi Team 2025, §4).

    What decides how much fades, and the output gate, here a sigmoid, are computed from head_dim numbers.
    """

    _gate_activation = staticmethod(torch.sigmoid)

    def __init__(self, d_model: int, heads: int, *, head_dim: int, kernel: int | None, eps: float, chunk: int | None):
        sizes = {"key_heads": heads, "head_dim": head_dim, "value_dim": head_dim}
        super().__init__(d_model, heads, **sizes, gated=False, output_gate=False, kernel=kernel, eps=eps, chunk=chunk)
        for name in ("dt", "gate"):
            narrow, wide = nn.Linear(d_model, head_dim, bias=False), nn.Linear(head_dim, heads * head_dim, bias=False)
            self.in_proj[name] = nn.Sequential(narrow, wide)
        self.decay = Decay(heads, head_dim)


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
        self.check_at_least_one("heads", "key_heads", "head_dim", "value_dim", "kernel", "chunk")

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
class KimiDeltaConfig(MixerConfig, name="kimi_delta"):
    """`KimiDelta` in a block's config, as in Kimi Linear, three of whose four layers have it.

    Args:
        heads, head_dim: those of the block's attention unless given.
        kernel: positions that the short convolution reads; None: no convolution.
        chunk: see `delta_rule`.
    """

    heads: int | None = None
    head_dim: int | None = None
    kernel: int | None = 4
    chunk: int | None = None

    def __post_init__(self):
        self.check_at_least_one("heads", "head_dim", "kernel", "chunk")

    def make(self, block: BlockConfig, layer: LayerContext) -> KimiDelta:
        """Return the layer.

        Raises:
            ValueError: for a mask or position bias of the block.
        """
        check_no_scores("KimiDeltaConfig", block)
        return KimiDelta(
            block.d_model,
            block.attention.heads if self.heads is None else self.heads,
            head_dim=block.head_dim if self.head_dim is None else self.head_dim,
            kernel=self.kernel,
            eps=block.norm.eps,
            chunk=self.chunk,
        )
