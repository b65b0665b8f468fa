"""Models of sets: the Set Transformer (Lee et al. 2019), and Deep Sets (Zaheer et al. 2017) for comparison.

Both encode each element and pool the set into a fixed number of vectors, so the order does not matter. The Set
Transformer's elements attend to each other, and it pools by attention; Deep Sets encodes each element independently
and pools by a mean, a sum or a maximum. `pool` is an option of both, so that each half can be tried alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from txlib.attention import ISAB, PMA, SAB, LayerContext, MechanismConfig, padding_from_mask
from txlib.attention.mechanism import check_dropout
from txlib.attention.sets import Formula
from txlib.layers import BlockConfig
from txlib.layers.feedforward import dropout
from txlib.models.model import Model
from txlib.models.outputs import Output, output
from txlib.models.stack import ModelConfig

Pool = Literal["attention", "mean", "sum", "max"]


@dataclass(frozen=True)
class SetConfig(ModelConfig):
    """Fields that both models' configs share.

    Args:
        d_in: width of an element.
        d_out: width of each output.
        outputs: number of vectors that describe the set, such as one for each cluster.
        d_model: width of the hidden vectors.
        layers, decoder_layers: number of the encoder's layers, and of those between pooling and the last linear layer.
        pool: "attention": `PMA` with a seed for each output, and `SAB`s after it; "mean", "sum" or "max", and fully
            connected layers after it.
        heads, formula, norm, mechanism: of all attention, see `MAB`.
        dropout: before and after pooling.
    """

    d_in: int
    d_out: int
    outputs: int = 1
    d_model: int = 128
    layers: int = 3
    decoder_layers: int = 2
    pool: Pool = "attention"
    heads: int = 4
    formula: Formula = "code"
    norm: bool = False
    mechanism: MechanismConfig | None = None
    dropout: float = 0.0

    def __post_init__(self):
        self.check_at_least_one("d_in", "d_out", "outputs", "d_model", "layers", "heads")
        check_dropout(self.dropout)
        if self.decoder_layers < 0:
            raise ValueError(f"decoder_layers={self.decoder_layers} must be at least 0")

    def attention(self, *, cross: bool = True) -> dict[str, Any]:
        """Return the keyword arguments of all attention blocks."""
        block = BlockConfig.of_sizes(self.d_model, self.heads, self.d_model)
        mechanism = None if self.mechanism is None else self.mechanism.make(block, LayerContext(cross=cross))
        return {"formula": self.formula, "norm": self.norm, "mechanism": mechanism}


@dataclass(frozen=True)
class SetTransformerConfig(SetConfig):
    """Sizes of a Set Transformer; the other fields are in `SetConfig`. The defaults are those of the authors' code for
    mixtures of Gaussians.

    Args:
        points: number of inducing points of each `ISAB`; None for `SAB`s, which cost n².
    """

    points: int | None = 32

    def __post_init__(self):
        super().__post_init__()
        self.check_at_least_one("points")


@dataclass(frozen=True)
class DeepSetsConfig(SetConfig):
    """Sizes of Deep Sets; the other fields are in `SetConfig`.

    Args:
        equivariant: "mean" or "max": from the second layer on, each element also reads this of all elements (Zaheer et
            al. 2017, eq. 4 and below); None: elements are encoded independently.
    """

    pool: Pool = "mean"
    equivariant: Literal["mean", "max"] | None = None


@output
class SetOutput(Output):
    """logits: (batch, outputs, d_out), not necessarily of classes; last_hidden_state: (batch, elements, d_model), the
    encoded elements.
    """

    logits: Float[Tensor, "batch outputs d_out"]
    last_hidden_state: Float[Tensor, "batch elements d_model"]


class SetModel(Model):
    """Encode, pool, decode. Subclasses define `encode`."""

    __call__: Callable[..., SetOutput]  # nn.Module's own says Any

    def __init__(self, config: Any):
        super().__init__()
        self.config = config
        self.decoder = AttentionDecoder(config) if config.pool == "attention" else PoolingDecoder(config)

    def encode(
        self, inputs: Float[Tensor, "batch elements d_in"], real: Bool[Tensor, "batch elements"] | None
    ) -> Float[Tensor, "batch elements d_model"]:
        """Return a vector for each element.

        Args:
            real: True for elements, False for padding; None: all are real.
        """
        raise NotImplementedError

    def forward(
        self,
        inputs: Float[Tensor, "batch elements d_in"],
        attention_mask: Int[Tensor, "batch elements"] | Bool[Tensor, "batch elements"] | None = None,
    ) -> SetOutput:
        """Return the outputs for each set.

        Args:
            attention_mask: 1 = an element, 0 = padding, where sets differ in size; None: all are elements.

        Raises:
            ValueError: for sets that are not in one tensor, and a mask of another shape; on the CPU, where the check
                needs no synchronization, also for an empty set.
        """
        real = real_elements(inputs, attention_mask, self.config.d_in)
        hidden = self.encode(inputs, real)
        pooled = dropout(hidden, self.config.dropout, self.training)
        return SetOutput(logits=self.decoder(pooled, real), last_hidden_state=hidden)


class SetTransformer(SetModel, config=SetTransformerConfig):
    """SABs or ISABs, then PMA, SABs and a linear layer (Lee et al. 2019, §3.3)."""

    def __init__(self, config: SetTransformerConfig):
        super().__init__(SetTransformerConfig.checked(config))
        d_model, paper = config.d_model, config.formula == "paper"
        self.enter = nn.Linear(config.d_in, d_model) if paper else nn.Identity()  # the code's first block widens
        widths = [d_model if paper else config.d_in] + [d_model] * (config.layers - 1)
        self.encoder = nn.ModuleList(encoder_block(config, width) for width in widths)

    def encode(
        self, inputs: Float[Tensor, "batch elements d_in"], real: Bool[Tensor, "batch elements"] | None
    ) -> Float[Tensor, "batch elements d_model"]:
        x, mask = self.enter(inputs), None if real is None else padding_from_mask(real)
        for block in self.encoder:
            x = block(x, mask)
        return x


class DeepSets(SetModel, config=DeepSetsConfig):
    """ρ(pool of φ(x)): layers for each element, a pool, and layers for the set (Zaheer et al. 2017, §3.1)."""

    def __init__(self, config: DeepSetsConfig):
        super().__init__(DeepSetsConfig.checked(config))
        widths = [config.d_in] + [config.d_model] * config.layers
        self.encoder = nn.ModuleList(map(nn.Linear, widths[:-1], widths[1:]))
        self.others = nn.ModuleList(
            nn.Linear(config.d_model, config.d_model, bias=False)
            for _ in range(0 if config.equivariant is None else config.layers - 1)
        )

    def encode(
        self, inputs: Float[Tensor, "batch elements d_in"], real: Bool[Tensor, "batch elements"] | None
    ) -> Float[Tensor, "batch elements d_model"]:
        x = self.encoder[0](inputs)
        for number, layer in enumerate(self.encoder[1:]):
            x = F.relu(x)
            y = layer(x)
            if self.config.equivariant is not None:
                y = y + self.others[number](pool(x, real, self.config.equivariant))[:, None]
            x = y
        return x


class AttentionDecoder(nn.Module):
    """PMA, SABs, and a linear layer for each output (Lee et al. 2019, eq. 15)."""

    def __init__(self, config: SetConfig):
        super().__init__()
        d_model, heads, self.dropout = config.d_model, config.heads, config.dropout
        self.pool = PMA(d_model, heads, config.outputs, **config.attention())
        self.layers = nn.ModuleList(
            SAB(d_model, heads, **config.attention(cross=False)) for _ in range(config.decoder_layers)
        )
        self.output = nn.Linear(d_model, config.d_out)

    def forward(
        self, x: Float[Tensor, "batch elements d_model"], real: Bool[Tensor, "batch elements"] | None
    ) -> Float[Tensor, "batch outputs d_out"]:
        x = self.pool(x, None if real is None else padding_from_mask(real))  # (batch, outputs, d_model)
        for layer in self.layers:
            x = layer(x)
        return self.output(dropout(x, self.dropout, self.training))


class PoolingDecoder(nn.Module):
    """A pool, and layers that compute all outputs from one vector."""

    def __init__(self, config: SetConfig):
        super().__init__()
        self.kind, self.outputs, self.dropout = config.pool, config.outputs, config.dropout
        self.layers = nn.ModuleList(nn.Linear(config.d_model, config.d_model) for _ in range(config.decoder_layers))
        self.output = nn.Linear(config.d_model, config.outputs * config.d_out)

    def forward(
        self, x: Float[Tensor, "batch elements d_model"], real: Bool[Tensor, "batch elements"] | None
    ) -> Float[Tensor, "batch outputs d_out"]:
        x = dropout(pool(x, real, self.kind), self.dropout, self.training)  # (batch, d_model)
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.output(x).unflatten(-1, (self.outputs, -1))


def encoder_block(config: SetTransformerConfig, d_in: int) -> SAB | ISAB:
    """Return a block of the encoder; d_in is the width of its input."""
    if config.points is None:
        return SAB(config.d_model, config.heads, d_in=d_in, **config.attention(cross=False))
    inner, outer = (config.attention() for _ in range(2))
    pair = inner["mechanism"], outer["mechanism"]
    return ISAB(config.d_model, config.heads, config.points, d_in=d_in, **inner | {"mechanism": pair})


def pool(
    x: Float[Tensor, "batch elements d_model"], real: Bool[Tensor, "batch elements"] | None, kind: str
) -> Float[Tensor, "batch d_model"]:
    """Return the "mean", "sum" or "max" of the real elements."""
    if kind == "max":
        return (x if real is None else x.masked_fill(~real[..., None], -torch.inf)).amax(dim=1)
    total = (x if real is None else x.masked_fill(~real[..., None], 0.0)).sum(dim=1)
    if kind == "sum":
        return total
    return total / (x.shape[1] if real is None else real.sum(dim=1, keepdim=True))


def real_elements(inputs: Any, attention_mask: Tensor | None, d_in: int) -> Bool[Tensor, "batch elements"] | None:
    """Return the mask as bool; None where it hides nothing.

    Raises:
        ValueError: as `SetModel.forward`.
    """
    if not isinstance(inputs, Tensor):
        raise ValueError(
            f"the sets come as a {type(inputs).__name__}; sets of different sizes go into one tensor, with a mask: "
            "inputs, attention_mask = pad_sets(sets)"
        )
    if inputs.dim() != 3 or inputs.shape[-1] != d_in:
        raise ValueError(f"inputs have shape {tuple(inputs.shape)}, expected (batch, elements, d_in={d_in})")
    if not inputs.shape[1]:
        raise ValueError("the sets are empty: give each at least one element")
    if attention_mask is None:
        return None
    if attention_mask.shape != inputs.shape[:2]:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}, expected (batch, elements) = "
            f"{tuple(inputs.shape[:2])}"
        )
    real = attention_mask.bool()
    if real.device.type == "cpu" and not torch.compiler.is_compiling():
        if not real.any(dim=1).all():
            raise ValueError(f"set {int(real.any(dim=1).long().argmin())} of the batch is empty; leave it out")
        if real.all():
            return None
    return real
