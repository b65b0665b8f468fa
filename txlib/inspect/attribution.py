"""What a model would predict after each block, and what each of its parts adds to a logit."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from txlib.attention import MultiHeadAttention
from txlib.inspect.hooks import HEADS, activations
from txlib.layers import LayerNorm, RMSNorm


@torch.no_grad()
def logit_lens(model: Any, input_ids: Int[Tensor, "batch length"]) -> Float[Tensor, "depth batch length vocab"]:
    """Return what a decoder would predict after no block, after one, and so on: its last norm and output projection,
    applied to the residual stream there (nostalgebraist 2020).
    """
    blocks = [f"decoder.layers.{number}" for number in range(len(model.decoder.layers))]
    with stream_and_activations(model, blocks) as (first, seen):
        model(input_ids)
    return torch.stack([model.logits(model.decoder.norm(x)) for x in [*first, *(seen[name] for name in blocks)]])


@torch.no_grad()
def logit_attribution(
    model: Any, input_ids: Int[Tensor, "batch length"], tokens: Int[Tensor, "batch"], *, position: int = -1
) -> dict[str, Float[Tensor, "batch"]]:
    """Return how much each part of a pre-norm decoder adds to a token's logit. The parts sum to the logit.

    The residual stream is a sum, and the last norm divides it by one number, which is kept as it is. So each summand
    has a share of the logit (Elhage et al. 2021).

    Args:
        tokens: for each text, the token whose logit is taken apart.
        position: whose logits.

    Returns:
        "embedding", each head, as "decoder.layers.0.self_attention.heads.0", each feed-forward network, and "biases" of
        output projections and of the last norm. A layer without heads is one part.

    Raises:
        ValueError: when the residual stream is not a plain sum: post-norm blocks, or logits with a soft-cap.
    """
    block = model.config.block
    if block.norm.placement != "pre" or model.config.logit_softcap is not None:
        raise ValueError(
            f"norm placement {block.norm.placement!r}, logit_softcap={model.config.logit_softcap}: only with pre-norm "
            "and without a soft-cap are logits a sum over the parts"
        )
    sublayers = {
        f"decoder.layers.{number}.{part}": getattr(layer, part)
        for number, layer in enumerate(model.decoder.layers)
        for part in ("self_attention", "feed_forward")
        if getattr(layer, part) is not None
    }
    with_heads = {name: module for name, module in sublayers.items() if isinstance(module, MultiHeadAttention)}
    wanted = [name + HEADS if name in with_heads else name for name in sublayers]
    with stream_and_activations(model, wanted) as (first, seen):
        model(input_ids)
    parts = {"embedding": first[0]}
    parts |= {name: seen[name] for name in sublayers if name not in with_heads}
    biases = torch.zeros_like(first[0])
    for name, module in with_heads.items():
        weight = module.output.weight.unflatten(1, (module.heads, -1))  # (d_model, heads, head_dim)
        for head in range(module.heads):
            parts[f"{name}{HEADS}.{head}"] = seen[name + HEADS][:, head] @ weight[:, head].T
        if module.output.bias is not None:
            biases = biases + module.output.bias
    parts["biases"] = biases
    return shares_of_logit(model, {name: x[:, position] for name, x in parts.items()}, tokens)


@contextmanager
def stream_and_activations(
    model: Any, names: Sequence[str]
) -> Iterator[tuple[list[Float[Tensor, "batch length d_model"]], dict[str, Tensor]]]:
    """Inside, a call of the model fills a list with what the first block reads, and a dictionary with activations."""
    first: list[Tensor] = []
    hook = model.decoder.layers[0].register_forward_pre_hook(lambda module, inputs: first.append(inputs[0]))
    try:
        with activations(model, *names) as seen:
            yield first, seen
    finally:
        hook.remove()


def shares_of_logit(
    model: Any, parts: dict[str, Float[Tensor, "batch d_model"]], tokens: Int[Tensor, "batch"]
) -> dict[str, Float[Tensor, "batch"]]:
    """Return the share of each summand of the residual stream in a logit; see `logit_attribution`."""
    norm: LayerNorm | RMSNorm = model.decoder.norm
    residual_scale = model.config.block.residual_scale
    parts = {name: x if name == "embedding" else residual_scale * x for name, x in parts.items()}
    if isinstance(norm, LayerNorm):
        parts = {name: x - x.mean(dim=-1, keepdim=True) for name, x in parts.items()}
    total = torch.stack(list(parts.values())).sum(dim=0)
    row = model.output_weight[tokens] / model.config.logit_divisor  # (batch, d_model)
    weight = 1 + norm.weight if isinstance(norm, RMSNorm) and norm.zero_centered else norm.weight
    gain = weight * (total.square().mean(dim=-1, keepdim=True) + norm.eps).rsqrt()  # the same for all parts
    shares = {name: (x * gain * row).sum(dim=-1) for name, x in parts.items()}
    if isinstance(norm, LayerNorm) and norm.bias is not None:
        shares["biases"] = shares["biases"] + (row * norm.bias).sum(dim=-1)
    return shares
