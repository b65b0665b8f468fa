"""Low-rank adaptation, LoRA: the weights stay as they are, and a product of two small matrices is learned beside them
(Hu et al. 2022).
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from txlib.hints import FieldHints, did_you_mean


@dataclass(frozen=True)
class LoRAConfig(FieldHints):
    """Which layers get an adapter, and of what size.

    Args:
        rank: r, the inner width of the product B A (§4.1).
        alpha: α; the product is multiplied by α / r, so that the learning rate need not change with the rank.
        layers: the last part of the names of linear layers, such as "query" or "down_proj", or whole names; the paper
            adapts queries and values (§5.1).
        dropout: of the adapter's input, while training.
    """

    rank: int = 8
    alpha: int | float = 16
    layers: tuple[str, ...] = ("query", "value")
    dropout: int | float = 0.0

    def __post_init__(self):
        if self.rank < 1:
            raise ValueError(f"rank={self.rank} must be at least 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must be at least 0 and less than 1")
        if not self.layers:
            raise ValueError("layers=() adapts nothing; name some, such as ('query', 'value')")


class LoRALinear(nn.Linear):
    """A frozen linear layer with an adapter: W x + b + (α / r) B A x. B is zero at first, so nothing changes.

    Args:
        layer: the layer that this one replaces; the weight and the bias are its own, not copies.
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: int | float, dropout: int | float = 0.0):
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.rank, self.alpha, self.dropout = rank, alpha, nn.Dropout(dropout)
        self.lora_A = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.lora_B = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.train(layer.training)

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def forward(self, x: Float[Tensor, "*batch in_features"]) -> Float[Tensor, "*batch out_features"]:
        """Return the layer's output plus the adapter's, for which W is never added to B A."""
        low = F.linear(self.dropout(x), self.lora_A)  # (…, r)
        return F.linear(x, self.weight, self.bias) + self.scale * F.linear(low, self.lora_B)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Return one linear layer that computes the same: its weight is W + (α / r) B A."""
        with torch.device("meta"):
            layer = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None)
        layer.weight = nn.Parameter(self.weight + self.scale * (self.lora_B @ self.lora_A))
        layer.bias = self.bias
        return layer.train(self.training)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}, alpha={self.alpha:g}"


def add_lora(model: nn.Module, config: LoRAConfig | None = None) -> nn.Module:
    """Freeze a model and give some of its linear layers an adapter, in place.

    Only the adapters can then be trained; optimizers, checkpoints and `training_memory` follow.

    Args:
        config: by default queries and values, rank 8.

    Returns:
        the same model.

    Raises:
        ValueError: when it has adapters, or no linear layer of one of the names.
    """
    config = LoRAConfig() if config is None else config
    if lora_layers(model):
        raise ValueError("the model has adapters already; merge_lora(model) first")
    linear = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    chosen: set[str] = set()
    for wanted in config.layers:
        found = {name for name in linear if wanted in (name, name.rpartition(".")[2])}
        if not found:
            names = {name.rpartition(".")[2] for name in linear}
            hint = did_you_mean(wanted, names) or f"; it has {', '.join(sorted(names))}"
            raise ValueError(f"the model has no linear layer {wanted!r}{hint}")
        chosen |= found
    model.requires_grad_(False)
    for name in sorted(chosen):
        model.set_submodule(name, LoRALinear(linear[name], config.rank, config.alpha, config.dropout))
    return model


def merge_lora(model: nn.Module) -> nn.Module:
    """Add each adapter to its weight, in place: the same outputs by a model of the usual layers, all trainable again.

    Returns:
        the same model.

    Raises:
        ValueError: when it has no adapters.
    """
    adapted = lora_layers(model)
    if not adapted:
        raise ValueError("the model has no adapters to merge; add_lora(model, …) gives it some")
    for name, layer in adapted.items():
        model.set_submodule(name, layer.merged())
    return model.requires_grad_(True)


def lora_layers(model: nn.Module) -> dict[str, LoRALinear]:
    """Return the layers with an adapter, by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, LoRALinear)}
