"""What is done to a model's blocks while it is trained, from outside: models know nothing of it.

Blocks are alike, so a compiler that takes them one by one compiles the first, and has compiled all. And what a block
computes on the way to its output can be forgotten and computed once more when the backward pass asks for it: that
trades time for memory (Chen et al. 2016), as a policy says. FSDP shares out blocks, too: see `distributed`.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from txlib.devices import supports_fp8

POLICIES = "none", "blocks", "every-N", "matmuls"
_ATEN: Any = torch.ops.aten
_KERNELS = "flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention"
PRODUCTS = {  # slow to compute, and their results are no larger than others
    *(_ATEN.mm.default, _ATEN.addmm.default, _ATEN.bmm.default, _ATEN.baddbmm.default, _ATEN._scaled_mm.default),
    *(getattr(_ATEN, f"_scaled_dot_product_{kind}").default for kind in _KERNELS),
}
FP8_SIZE = 16  # matrices that a GPU multiplies in 8 bits have sides that are multiples of this


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks that a model stacks: what its lists of modules hold, but not lists inside of others."""
    found: list[nn.Module] = []
    for child in model.children():
        found += list(child) if isinstance(child, nn.ModuleList) else blocks_of(child)
    return found


@contextmanager
def compiled(model: nn.Module, how: bool | str = True) -> Iterator[None]:
    """Inside, each block is compiled when it is first called, once for all: a second time when lengths turn out to
    differ, and then for all lengths.

    Args:
        how: False does nothing; "reduce-overhead" also records what a GPU has to do, as CUDA graphs, and plays it back:
            worth it where a step is short and all batches have the same shape.

    Raises:
        ValueError: when the model has no blocks.
    """
    if not how:
        yield
        return
    blocks = blocks_of(model)
    if not blocks:
        raise ValueError(f"{type(model).__name__} has no blocks in an nn.ModuleList to compile; set compile=False")
    with ExitStack() as stack:
        for block in blocks:
            block.compile(mode=how if isinstance(how, str) else None)
            stack.callback(setattr, block, "_compiled_call_impl", None)  # as before `compile`
            if how == "reduce-overhead":
                # A graph that is played back writes gradients to the same place again: each gets one of its own, or
                # those of several batches could not be added up.
                for parameter in block.parameters():
                    stack.callback(parameter.register_hook(torch.clone).remove)
        yield


def check_fp8(device: torch.device) -> None:
    """Refuse products in 8 bits where there are none.

    Raises:
        ValueError: when the device can't, or torchao is missing.
    """
    if not supports_fp8(device):
        raise ValueError(
            f"precision='fp8' needs a GPU of compute capability 8.9 or more (Ada, Hopper or later), and {device} is "
            "none; take 'bf16'"
        )
    if find_spec("torchao") is None:
        raise ValueError("precision='fp8' needs torchao: pip install torchao; or take 'bf16'")


@contextmanager
def in_fp8(model: nn.Module, on: bool = True, *, emulate: bool = False) -> Iterator[None]:
    """Inside, the blocks' linear layers multiply in 8 bits, forwards and backwards (Micikevicius et al. 2022), by
    torchao: a tensor is scaled so that its largest number is the largest of the type. Not those of experts, who may get
    no token, nor those whose sizes no GPU multiplies so.

    Args:
        on: False does nothing.
        emulate: round to 8 bits and multiply in more, which any device can do.

    Raises:
        ValueError: as `check_fp8`, or when no layer is left.
    """
    if not on:
        yield
        return
    if not emulate:
        check_fp8(next(model.parameters()).device)
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    blocks = blocks_of(model)
    lists = [each for block in blocks for each in block.modules() if isinstance(each, nn.ModuleList)]
    left_out = {id(layer) for each in lists for layer in each.modules()}

    def fits(layer: nn.Module, name: str) -> bool:
        even = type(layer) is nn.Linear and not any(size % FP8_SIZE for size in layer.weight.shape)
        return even and name != "" and id(layer) not in left_out

    before = {name: layer for name, layer in model.named_modules() if type(layer) is nn.Linear}
    for block in blocks:  # ragged batches have any number of tokens: torchao pads them
        convert_to_float8_training(
            block, module_filter_fn=fits, config=Float8LinearConfig(emulate=emulate, pad_inner_dim=True)
        )
    changed = {name: layer for name, layer in before.items() if model.get_submodule(name) is not layer}
    if not changed:
        raise ValueError(
            f"precision='fp8': no block of {type(model).__name__} has a linear layer whose sizes are multiples of "
            f"{FP8_SIZE}; take 'bf16'"
        )
    try:
        yield
    finally:
        for name, layer in changed.items():
            now: Any = model.get_submodule(name)
            layer.weight, layer.bias = now.weight, now.bias  # they may have been shared out meanwhile
            model.set_submodule(name, layer)


def check_policy(policy: str) -> None:
    """Refuse a policy that there isn't.

    Raises:
        ValueError: naming those that there are.
    """
    if policy not in POLICIES and not re.fullmatch("every-[1-9][0-9]*", policy) or policy == "every-N":
        raise ValueError(f"checkpoint_activations={policy!r} is unknown; choose {', '.join(POLICIES)} (every-2, say)")


@contextmanager
def checkpointed(model: nn.Module, policy: str, note: Callable[[Any], object] | None = None) -> Iterator[None]:
    """Inside, blocks keep little for the backward pass, and compute the rest once more, with the same random numbers.

    Args:
        policy: "none" keeps all; "blocks" keeps each block's input; "every-2" that of every second block and all of the
            others; "matmuls" the results of matrix products and attention, so that only what is quick is done twice.
        note: is told what "matmuls" keeps.
    """
    check_policy(policy)
    if policy == "none":
        yield
        return
    _, _, interval = policy.partition("every-")
    chosen = blocks_of(model)[:: int(interval or 1)]
    options = {"context_fn": partial(_keeping_products, note)} if policy == "matmuls" else {}
    for block in chosen:
        block.forward = partial(_twice, block.forward, options)
    try:
        yield
    finally:
        for block in chosen:
            del block.forward  # the class's own is left


def _twice(forward: Callable[..., Any], options: dict[str, Any], *inputs: Any, **named: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs, **named)
    return checkpoint(forward, *inputs, use_reentrant=False, **options, **named)


def _keeping_products(note: Callable[[Any], object] | None) -> Any:
    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if operator not in PRODUCTS:
            return CheckpointPolicy.PREFER_RECOMPUTE
        if note is not None and not context.is_recompute:
            note(context.op_output)
        return CheckpointPolicy.MUST_SAVE

    return create_selective_checkpoint_contexts(policy)
