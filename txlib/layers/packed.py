"""Weights in fewer bytes, for decoding on a CPU.

Decoding reads all weights for each token and does little arithmetic with each, so their size in bytes decides the
speed. Here they are packed once, in the order in which torch's kernels for x86 read them.
"""

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.attention import MultiHeadAttention
from txlib.layers.block import TransformerBlock
from txlib.layers.lora import lora_layers

KINDS = ("fp16", "int8", "int4")
GROUP = 32  # weights of a row that share a step in int4


def pack_weights(model: nn.Module, weights: str) -> nn.Module:
    """Pack every linear layer of a model, and an output projection tied to the embedding, in place.

    Other parameters stay float32. The model is then in eval mode and can be neither trained nor saved.

    Args:
        weights: "fp16", "int8" or "int4"; see `PackedLinear`.

    Returns:
        the same model.

    Raises:
        ValueError: for an unknown kind, a packed model or one with adapters, one on a GPU, or a torch without FBGEMM.
    """
    if any(isinstance(module, PackedLinear) for module in model.modules()):
        raise ValueError("the model is packed already; load it again to pack it in another way")
    if lora_layers(model):
        raise ValueError("the model has adapters; merge_lora(model) before pack_weights")
    check_packing(weights, next(iter(model.parameters())).device)
    model.float()
    if getattr(model, "output", model) is None:  # tied to the embedding
        matrix: Any = model.output_weight
        model.output = PackedLinear(matrix, getattr(model, "output_bias", None), weights)
    for block in [module for module in model.modules() if isinstance(module, TransformerBlock)]:
        block.self_attention = JoinedAttention(block.self_attention, weights)
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(module, name, PackedLinear(layer.weight, layer.bias, weights))
    return model.eval()


class JoinedAttention(MultiHeadAttention):
    """Self-attention with one packed layer instead of three for queries, keys and values.

    Args:
        attention: the layer that it replaces; it shares all but the three projections with it.
        weights: see `PackedLinear`.
    """

    def __init__(self, attention: MultiHeadAttention, weights: str):
        nn.Module.__init__(self)
        self.__dict__.update({**attention.__dict__, "_modules": dict(attention._modules)})
        parts = attention.query, attention.key, attention.value
        biases: list[Tensor] = [
            part.weight.new_zeros(part.out_features) if part.bias is None else part.bias for part in parts
        ]
        bias = None if all(part.bias is None for part in parts) else torch.cat(biases)
        self.joined = PackedLinear(torch.cat([part.weight for part in parts]), bias, weights)
        del self.query, self.key, self.value

    def project(
        self, x: Float[Tensor, "batch query d_model"], source: Float[Tensor, "batch key d_model"] | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return queries, keys and values of x, with heads concatenated in the last axis."""
        widths = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.value_dim
        queries, keys, values = self.joined(x).split(widths, dim=-1)
        return queries, keys, values


class PackedLinear(nn.Module):
    """A linear layer with packed weights: for prediction only, on a CPU.

    "fp16" keeps 11 significant bits of each weight and computes in float32. "int8" rounds each row of the matrix to 255
    steps of one size per row, and the layer's input, on the fly, to 128 steps between its minimum and maximum (dynamic
    quantization), so the output for one row of a batch depends slightly on the others. "int4" cuts each row into groups
    of 32 weights, rounds each group to 16 steps between its minimum and maximum, and computes in bfloat16: five bits a
    weight with the groups' numbers.

    Args:
        weight, bias: of the layer that this one replaces.
        kind: "fp16", "int8" or "int4".

    Raises:
        ValueError: as `pack_weights`.
    """

    def __init__(
        self, weight: Float[Tensor, "out_features in_features"], bias: Float[Tensor, "out_features"] | None, kind: str
    ):
        super().__init__()
        check_packing(kind, weight.device)
        self.kind, self.shape = kind, tuple(weight.shape)
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        if kind == "fp16":
            self.packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)
        elif kind == "int8":
            self.packed = torch.ops.quantized.linear_prepack(in_steps(weight), bias)
        else:
            levels, self.scales = in_groups(weight)
            self.packed, self.bias = torch._convert_weight_to_int4pack_for_cpu(levels, 1), bias

    def forward(self, x: Float[Tensor, "*batch in_features"]) -> Float[Tensor, "*batch out_features"]:
        """Return W x + b.

        Raises:
            RuntimeError: while training, as there is no gradient.
        """
        if self.training:
            raise RuntimeError("packed weights cannot be trained: call model.eval(), or load the model again")
        if self.kind == "fp16":
            return torch.ops.quantized.linear_dynamic_fp16.default(x, self.packed)
        if self.kind == "int8":
            return torch.ops.quantized.linear_dynamic.default(x, self.packed, True)
        out_features, in_features = self.shape
        rows = F.pad(x.reshape(-1, in_features).bfloat16(), (0, -in_features % GROUP))
        out = torch._weight_int4pack_mm_for_cpu(rows, self.packed, GROUP, self.scales)[:, :out_features].to(x.dtype)
        return (out if self.bias is None else out + self.bias).view(*x.shape[:-1], out_features)

    def extra_repr(self) -> str:
        out_features, in_features = self.shape
        return f"in_features={in_features}, out_features={out_features}, weights={self.kind}"


def check_packing(weights: str, device: torch.device) -> None:
    """Refuse what cannot be packed."""
    if weights not in KINDS:
        raise ValueError(f"weights={weights!r} is unknown; choose one of {', '.join(KINDS)}")
    engines = torch.backends.quantized.supported_engines
    supported = "fbgemm" in engines and (weights != "int8" or hasattr(torch, "quantize_per_channel"))  # deprecated
    if device.type != "cpu" or not supported:
        raise ValueError(
            f"weights={weights!r} needs an x86 CPU; here the model is on {device.type!r} and torch has "
            f"the engines {', '.join(engines)}. model.bfloat16() halves the weights anywhere"
        )


def in_steps(weight: Float[Tensor, "out_features in_features"]) -> Tensor:
    """Return torch's quantized tensor: each row in whole multiples, -127 to 127, of its step."""
    step = (weight.abs().amax(dim=1) / 127).clamp(min=torch.finfo(torch.float32).tiny)  # (out_features,)
    with warnings.catch_warnings():  # torch deprecates this type of tensor
        warnings.simplefilter("ignore", UserWarning)
        return torch.quantize_per_channel(weight, step, torch.zeros_like(step, dtype=torch.long), 0, torch.qint8)


def in_groups(
    weight: Float[Tensor, "out_features in_features"],
) -> tuple[Int[Tensor, "rows columns"], Float[Tensor, "groups rows 2"]]:
    """Return each weight's step, 0 to 15, in its group, and each group's step size and middle, step 8, in bfloat16.

    Rows and columns of zeros fill the matrix up to whole groups.
    """
    out_features, in_features = weight.shape
    weight = F.pad(weight, (0, -in_features % GROUP, 0, -out_features % GROUP))
    groups = weight.unflatten(1, (-1, GROUP))  # (rows, groups, GROUP)
    low, high = groups.amin(dim=-1), groups.amax(dim=-1)
    step = ((high - low) / 15).clamp(min=torch.finfo(torch.bfloat16).tiny).bfloat16()
    middle = (low + 8 * step).bfloat16()
    levels = ((groups - middle[..., None]) / step[..., None]).round().add(8).clamp(0, 15).int()
    return levels.flatten(1), torch.stack([step, middle], dim=-1).transpose(0, 1).contiguous()
