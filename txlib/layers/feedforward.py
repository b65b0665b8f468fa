"""The position-wise feed-forward network, applied to each token separately."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from txlib.attention.config import Config

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,  # Vaswani et al. 2017, eq. 2
    "gelu": F.gelu,  # Hendrycks & Gimpel 2016; BERT
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),  # the same, §2's approximation; GPT-2
    "relu2": lambda x: F.relu(x).square(),  # So et al. 2021 (Primer), §3
    "silu": F.silu,  # Elfwing et al. 2017
}
GATED = {
    "reglu": "relu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "swiglu": "silu",
    "swiglu_clamped": "silu",
}  # the gate's activation
LIMIT, SLOPE = 7.0, 1.702  # of "swiglu_clamped"


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig(Config):
    """`FeedForward` in a block's config: d_ff, activation and bias, see there. d_ff=0: a block without, as in Mamba."""

    d_ff: int
    activation: str = "relu"
    bias: bool = True

    def __post_init__(self):
        if self.d_ff != 0:
            self.check_at_least_one("d_ff")
        find_activation(self.activation)

    def make(self, d_model: int) -> Any:
        """Return the network; None for d_ff=0."""
        return None if self.d_ff == 0 else FeedForward(d_model, self.d_ff, activation=self.activation, bias=self.bias)


class FeedForward(nn.Module):
    """Project up, activate, project down: W₂ · activation(W₁ x) (Vaswani et al. 2017, §3.3).

    Args:
        d_ff: hidden width; the paper's is 4 · d_model.
        activation: "relu", "gelu" (exact), "gelu_tanh", "relu2", "silu", or a gated one: "swiglu" multiplies silu(W x)
            by a second projection V x before projecting down, and "reglu", "geglu" and "geglu_tanh" do so with others
            (Shazeer 2020, eq. 5 and 6); "swiglu_clamped" is gpt-oss's, see `clamped_swiglu`.
        bias: whether the projections have biases.
        dropout: on the hidden layer, while training.
    """

    def __init__(self, d_model: int, d_ff: int, *, activation: str = "relu", bias: bool = True, dropout: float = 0.0):
        super().__init__()
        self.activation, self.clamped = find_activation(activation), activation == "swiglu_clamped"
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.gate_proj = nn.Linear(d_model, d_ff, bias=bias) if activation in GATED else None
        self.down_proj = nn.Linear(d_ff, d_model, bias=bias)
        self.dropout = dropout

    def forward(self, x: Float[Tensor, "batch length d_model"]) -> Float[Tensor, "batch length d_model"]:
        """Return the network's output at each position, with the same weights for all."""
        hidden = self.up_proj(x)  # (batch, length, d_ff)
        if self.gate_proj is None:
            hidden = self.activation(hidden)
        elif self.clamped:
            hidden = clamped_swiglu(self.gate_proj(x), hidden)
        else:
            hidden = self.activation(self.gate_proj(x)) * hidden
        return self.down_proj(dropout(hidden, self.dropout, self.training))


def clamped_swiglu(
    gate: Float[Tensor, "*batch d_ff"], up: Float[Tensor, "*batch d_ff"]
) -> Float[Tensor, "*batch d_ff"]:
    """Return gate · σ(1.702 gate) · (up + 1), with the gate at most 7 and `up` between -7 and 7 (OpenAI 2025, §2.2)."""
    gate = gate.clamp(max=LIMIT)
    return gate * torch.sigmoid(SLOPE * gate) * (up.clamp(-LIMIT, LIMIT) + 1)


def find_activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return the activation of that name; for a gated one, the gate's.

    Raises:
        ValueError: when there is none.
    """
    if name not in ACTIVATIONS and name not in GATED:
        raise ValueError(f"activation={name!r} is unknown; choose one of {', '.join((*ACTIVATIONS, *GATED))}")
    return ACTIVATIONS[GATED.get(name, name)]


def dropout(x: Tensor, dropout_p: float, training: bool) -> Tensor:
    """Return x with each entry set to zero with probability `dropout_p` while training, and the rest scaled up.

    On a CPU one random byte decides about each entry, so the probability is rounded to 1/256: torch draws 32 bits for
    each, which takes longer than the rest of the work. Compiled code uses torch's dropout, which is faster there.
    """
    if not dropout_p or not training:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, dropout_p)
    dropped = min(round(256 * dropout_p), 255)  # byte values, of 256
    random = torch.empty(x.numel() // 8 + 1, dtype=torch.int64).random_(-(2**63), None)  # 8 bytes in each
    keep = random.view(torch.uint8)[: x.numel()].view(x.shape) >= dropped
    return x * keep.to(x.dtype).mul_(256 / (256 - dropped))
