"""Tensor parallelism: each process has some heads and some hidden units of each network (Shoeybi et al. 2019).

mesh = init_device_mesh("cuda", (4,))
parallelize(model, mesh)        # the model is called as before, with the same batch in each process

Up-projections are split by their outputs and down-projections by their inputs, so that nothing is sent between the two.
Each sub-layer sums its outputs over the processes, and in the backward pass the gradients of its input: two all-reduces
per block forward, two backward (§3). Every process has all embeddings, norms and the output projection.
"""

import copy
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from txlib.attention import MultiHeadAttention
from txlib.layers import FeedForward, lora_layers


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Split a model's attention layers by heads and its feed-forward networks by their hidden units, in place.

    All processes of the mesh hold the same model, and call it with the same inputs. They compute the same outputs,
    losses, and gradients of parameters that are not split.

    Args:
        mesh: the processes that share the model, in one dimension.

    Raises:
        ValueError: naming a layer that can't be split and its sizes. The model is unchanged then.
    """
    attention, feed_forward = layers_to_split(model, mesh.size())
    for layer in attention:
        heads = {"query_norm": layer.query_norm, "key_norm": layer.key_norm}
        plan: dict[str, Any] = {name: ColwiseParallel() for name in ("query", "key", "value")}
        plan |= {"output": RowwiseParallel()}
        if layer.gate is not None:
            plan |= {"gate": ColwiseParallel()}
        plan |= {  # heads are on axis 1, and all have the same norm
            name: SequenceParallel(sequence_dim=1, use_local_output=True)
            for name, norm in heads.items()
            if norm is not None
        }
        split(layer, mesh, plan)
    for network in feed_forward:
        plan = {"up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
        split(network, mesh, plan if network.gate_proj is None else plan | {"gate_proj": ColwiseParallel()})
    return model


def local_shard(model: nn.Module, ways: int) -> nn.Module:
    """Return the model of one of several processes after `parallelize`, on the meta device, to estimate memory with.

    Raises:
        ValueError: as `parallelize`.
    """
    empty = {id(weight): nn.Parameter(weight.to("meta"), weight.requires_grad) for weight in model.parameters()}
    shard = copy.deepcopy(model, empty)
    attention, feed_forward = layers_to_split(shard, ways)
    for layers, names in ((attention, ("query", "key", "value", "gate")), (feed_forward, ("up_proj", "gate_proj"))):
        for wide in (getattr(layer, name) for layer in layers for name in names):
            if wide is not None:
                wide.weight = nn.Parameter(wide.weight[: wide.out_features // ways])
                wide.bias = None if wide.bias is None else nn.Parameter(wide.bias[: wide.out_features // ways])
    for linear in [*(layer.output for layer in attention), *(network.down_proj for network in feed_forward)]:
        linear.weight = nn.Parameter(linear.weight[:, : linear.in_features // ways])
    return shard


def layers_to_split(model: nn.Module, ways: int) -> tuple[list[MultiHeadAttention], list[FeedForward]]:
    """Return a model's attention layers and feed-forward networks, which can be split.

    Raises:
        ValueError: naming the first that can't.
    """
    attention = {name: module for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)}
    feed_forward = {name: module for name, module in model.named_modules() if isinstance(module, FeedForward)}
    if not attention and not feed_forward:
        raise ValueError(f"{type(model).__name__} has no attention layer and no FeedForward to split {ways} ways")
    if adapted := next(iter(lora_layers(model)), None):
        raise ValueError(f"{adapted} has an adapter, which can't be split; use --parallel fsdp")
    for name, layer in attention.items():
        check_attention(layer, ways, name)
    for name, network in feed_forward.items():
        check_divisible(ways, name, d_ff=network.up_proj.out_features)
    return list(attention.values()), list(feed_forward.values())


def split(layer: nn.Module, mesh: DeviceMesh, plan: dict[str, Any]) -> None:
    """Split a layer's projections by a plan, and make its inputs one distributed tensor for all of them, so that their
    gradients are summed locally before they are summed over the processes.
    """

    def replicate(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (
            tuple(
                DTensor.from_local(item, mesh, [Replicate()], run_check=False) if type(item) is Tensor else item
                for item in inputs[:2]  # x and the memory
            )
            + tuple(inputs[2:])
        )

    parallelize_module(layer, mesh, plan)
    layer.register_forward_pre_hook(replicate)


def check_attention(layer: MultiHeadAttention, ways: int, name: str) -> None:
    """Check that a layer's heads can be split.

    Raises:
        ValueError: naming what prevents it.
    """
    if type(layer) is not MultiHeadAttention:
        raise ValueError(f"{name}: a {type(layer).__name__} has more than heads to split; use --parallel fsdp")
    if layer.position_bias is not None:
        kind = type(layer.position_bias).__name__
        raise ValueError(f"{name}: {kind} belongs to all heads together; use rotary positions, or --parallel fsdp")
    if layer.sinks is not None or layer.qk_norm_whole:
        what = "the sinks belong" if layer.sinks is not None else "the norm of queries and keys belongs"
        raise ValueError(f"{name}: {what} to all heads together; use --parallel fsdp")
    if any(True for _ in layer.mechanism.parameters()):
        kind = type(layer.mechanism).__name__
        raise ValueError(f"{name}: {kind} has parameters for all heads together; use --parallel fsdp")
    check_divisible(ways, name, heads=layer.heads, kv_heads=layer.kv_heads)


def check_divisible(ways: int, name: str, **sizes: int) -> None:
    """Check that sizes can be split evenly.

    Raises:
        ValueError: naming the first that can't.
    """
    for name_of_size, size in sizes.items():
        if size % ways:
            fits = max(number for number in range(1, ways) if size % number == 0)
            raise ValueError(
                f"{name}: {name_of_size}={size} can't be split {ways} ways; use {fits} processes, or --parallel fsdp"
            )
