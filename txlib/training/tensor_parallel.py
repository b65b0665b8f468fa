"""Tensor parallelism: each process has some of the heads, and some of the feed-forward's middle (Shoeybi et al. 2019).

mesh = init_device_mesh("cuda", (4,))
parallelize(model, mesh)        # the model is called as before, with the same batch in each process

A projection that widens is cut by its outputs, the one that narrows again by its inputs: in between nothing is sent.
Each sub-layer adds up its outputs over the processes, and on the way back the gradients of its input: two all-reduces a
block forwards, two backwards (§3). Embeddings, norms and the output projection each process has, and computes, whole.
"""

import copy
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from txlib.attention import MultiHeadAttention
from txlib.layers import FeedForward


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Split a model's attention layers by heads and its feed-forward networks by their middle, in place.

    All processes of the mesh hold the same model, and call it with the same inputs. What they compute is the same, too:
    outputs, losses, and the gradients of parameters that are not split.

    Args:
        mesh: of one dimension, the processes that share the model.

    Raises:
        ValueError: when a layer can't be split so; it names the layer and the numbers. The model is as it was then.
    """
    attention, feed_forward = layers_to_split(model, mesh.size())
    for layer in attention:
        heads = {"query_norm": layer.query_norm, "key_norm": layer.key_norm}
        plan: dict[str, Any] = {name: ColwiseParallel() for name in ("query", "key", "value")}
        plan |= {"output": RowwiseParallel()}
        plan |= {  # heads are on axis 1, and the same norm is for each
            name: SequenceParallel(sequence_dim=1, use_local_output=True)
            for name, norm in heads.items()
            if isinstance(norm, nn.LayerNorm)
        }
        split(layer, mesh, plan)
    for network in feed_forward:
        plan = {"up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
        split(network, mesh, plan if network.gate_proj is None else plan | {"gate_proj": ColwiseParallel()})
    return model


def local_shard(model: nn.Module, ways: int) -> nn.Module:
    """A model of the size that one of so many processes has after `parallelize`, without numbers, to plan with.

    Raises:
        ValueError: as `parallelize`.
    """
    empty = {id(each): nn.Parameter(each.to("meta"), each.requires_grad) for each in model.parameters()}
    share = copy.deepcopy(model, empty)
    attention, feed_forward = layers_to_split(share, ways)
    for parts, names in ((attention, ("query", "key", "value")), (feed_forward, ("up_proj", "gate_proj"))):
        for wide in (getattr(each, name) for each in parts for name in names):
            if wide is not None:
                wide.weight = nn.Parameter(wide.weight[: wide.out_features // ways])
                wide.bias = None if wide.bias is None else nn.Parameter(wide.bias[: wide.out_features // ways])
    for linear in [*(each.output for each in attention), *(each.down_proj for each in feed_forward)]:
        linear.weight = nn.Parameter(linear.weight[:, : linear.in_features // ways])
    return share


def layers_to_split(model: nn.Module, ways: int) -> tuple[list[MultiHeadAttention], list[FeedForward]]:
    """A model's attention layers and feed-forward networks, if they can be split.

    Raises:
        ValueError: naming the first that can't.
    """
    attention = {name: each for name, each in model.named_modules() if isinstance(each, MultiHeadAttention)}
    feed_forward = {name: each for name, each in model.named_modules() if isinstance(each, FeedForward)}
    if not attention and not feed_forward:
        raise ValueError(f"{type(model).__name__} has no attention layer and no FeedForward to split {ways} ways")
    for name, layer in attention.items():
        check_attention(layer, ways, name)
    for name, network in feed_forward.items():
        check_divisible(ways, name, d_ff=network.up_proj.out_features)
    return list(attention.values()), list(feed_forward.values())


def split(layer: nn.Module, mesh: DeviceMesh, plan: dict[str, Any]) -> None:
    """Let a layer's projections be split by a plan, and its inputs be one tensor to all of them: their gradients are
    summed here before they are over the processes.
    """

    def in_common(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (
            tuple(
                DTensor.from_local(each, mesh, [Replicate()], run_check=False) if type(each) is Tensor else each
                for each in inputs[:2]  # x and the memory
            )
            + tuple(inputs[2:])
        )

    parallelize_module(layer, mesh, plan)
    layer.register_forward_pre_hook(in_common)


def check_attention(layer: MultiHeadAttention, ways: int, name: str) -> None:
    """Refuse a layer whose heads can't be dealt out.

    Raises:
        ValueError: naming what stands against it.
    """
    if type(layer) is not MultiHeadAttention:
        raise ValueError(f"{name}: a {type(layer).__name__} has more than heads to split; use --parallel fsdp")
    if layer.position_bias is not None:
        kind = type(layer.position_bias).__name__
        raise ValueError(f"{name}: {kind} is made for all heads at once; use rotary positions, or --parallel fsdp")
    if any(True for _ in layer.mechanism.parameters()):
        kind = type(layer.mechanism).__name__
        raise ValueError(f"{name}: {kind} has parameters for all heads at once; use --parallel fsdp")
    check_divisible(ways, name, heads=layer.heads, kv_heads=layer.kv_heads)


def check_divisible(ways: int, name: str, **sizes: int) -> None:
    """Refuse sizes that can't be split evenly.

    Raises:
        ValueError: naming the first.
    """
    for what, size in sizes.items():
        if size % ways:
            fits = max(number for number in range(1, ways) if size % number == 0)
            raise ValueError(
                f"{name}: {what}={size} can't be split {ways} ways; use {fits} processes, or --parallel fsdp"
            )
