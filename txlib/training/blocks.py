"""Compiling, checkpointing and 8-bit products of a model's blocks, applied from outside: models know nothing of it.

Blocks have the same code, so a compiler that takes them one by one compiles it once. Activation checkpointing forgets
what a block computes on the way to its output, and computes it again in the backward pass: that trades time for memory
(Chen et al. 2016). FSDP also shards a model by its blocks: see `distributed`.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import Context
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from txlib.devices import supports_fp8

POLICIES = "none", "blocks", "every-N", "matmuls"
_ATEN: Any = torch.ops.aten
_KERNELS = "flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention"
PRODUCTS = {  # slow to compute, and their results are no larger than those of other operators
    *(_ATEN.mm.default, _ATEN.addmm.default, _ATEN.bmm.default, _ATEN.baddbmm.default, _ATEN._scaled_mm.default),
    *(getattr(_ATEN, f"_scaled_dot_product_{kind}").default for kind in _KERNELS),
}
FP8_SIZE_MULTIPLE = 16  # of both sides of matrices that a GPU multiplies in 8 bits


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the blocks that a model stacks: the modules in its `ModuleList`s, but not in lists inside of those."""
    blocks: list[nn.Module] = []
    for child in model.children():
        blocks += list(child) if isinstance(child, nn.ModuleList) else blocks_of(child)
    return blocks


@contextmanager
def compiled(model: nn.Module, mode: bool | str = True) -> Iterator[None]:
    """Inside, the code of the blocks is compiled when the first one is called, and once more, for any length, when
    lengths differ.

    Args:
        mode: False does nothing; "reduce-overhead" also records the work of a GPU as CUDA graphs and replays it, which
            pays where a step is short and all batches have the same shape.

    Raises:
        ValueError: when the model has no blocks.
    """
    if not mode:
        yield
        return
    blocks = blocks_of(model)
    if not blocks:
        raise ValueError(f"{type(model).__name__} has no blocks in an nn.ModuleList to compile; set compile=False")
    with ExitStack() as stack:
        for block in blocks:
            block.compile(mode=mode if isinstance(mode, str) else None)
            stack.callback(setattr, block, "_compiled_call_impl", None)  # as before `compile`
            if mode == "reduce-overhead":
                # A replayed graph writes gradients to the same memory again. Without a copy, the gradients of several
                # batches could not be added up.
                for parameter in block.parameters():
                    stack.callback(parameter.register_hook(torch.clone).remove)
        yield


def check_fp8(device: torch.device) -> None:
    """Check that a device can multiply in 8 bits.

    Raises:
        ValueError: when it can't, or torchao is missing.
    """
    if not supports_fp8(device):
        raise ValueError(
            f"precision='fp8' needs a GPU of compute capability 8.9 or more (Ada, Hopper or later), which {device} "
            "is not; take 'bf16'"
        )
    if find_spec("torchao") is None:
        raise ValueError("precision='fp8' needs torchao: pip install torchao; or take 'bf16'")


@contextmanager
def in_fp8(model: nn.Module, on: bool = True, *, emulate: bool = False) -> Iterator[None]:
    """Inside, the blocks' linear layers multiply in 8 bits by torchao, forward and backward (Micikevicius et al. 2022):
    a tensor is scaled so that its largest number is the largest of the type. The layers of experts, which may get no
    token, and layers of unsuitable sizes stay as they are.

    Args:
        on: False does nothing.
        emulate: round to 8 bits and multiply in more, which any device can do.

    Raises:
        ValueError: as `check_fp8`, or when there is no suitable layer.
    """
    if not on:
        yield
        return
    if not emulate:
        check_fp8(next(model.parameters()).device)
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    blocks = blocks_of(model)
    lists = [module for block in blocks for module in block.modules() if isinstance(module, nn.ModuleList)]
    experts = {id(layer) for layers in lists for layer in layers.modules()}

    def fits(layer: nn.Module, name: str) -> bool:
        divisible = type(layer) is nn.Linear and not any(size % FP8_SIZE_MULTIPLE for size in layer.weight.shape)
        return divisible and name != "" and id(layer) not in experts

    before = {name: layer for name, layer in model.named_modules() if type(layer) is nn.Linear}
    for block in blocks:  # ragged batches have any number of tokens: torchao pads them
        convert_to_float8_training(
            block, module_filter_fn=fits, config=Float8LinearConfig(emulate=emulate, pad_inner_dim=True)
        )
    changed = {name: layer for name, layer in before.items() if model.get_submodule(name) is not layer}
    if not changed:
        raise ValueError(
            f"precision='fp8': no block of {type(model).__name__} has a linear layer whose sizes are multiples of "
            f"{FP8_SIZE_MULTIPLE}; take 'bf16'"
        )
    try:
        yield
    finally:
        for name, layer in changed.items():
            fp8_layer: Any = model.get_submodule(name)
            layer.weight, layer.bias = fp8_layer.weight, fp8_layer.bias  # FSDP may have sharded them
            model.set_submodule(name, layer)


def check_policy(policy: str) -> None:
    """Check the name of a checkpointing policy.

    Raises:
        ValueError: when it is unknown.
    """
    if policy not in POLICIES and not re.fullmatch("every-[1-9][0-9]*", policy) or policy == "every-N":
        raise ValueError(f"checkpoint_activations={policy!r} is unknown; choose {', '.join(POLICIES)} (every-2, say)")


@contextmanager
def checkpointed(model: nn.Module, policy: str, note: Callable[[Any], object] | None = None) -> Iterator[None]:
    """Inside, blocks keep little for the backward pass, and compute the rest again with the same random numbers.

    Args:
        policy: "none" keeps everything; "blocks" keeps each block's input; "every-2" keeps the input of every second
            block and everything of the others; "matmuls" keeps the results of matrix products and attention, so that
            only fast operations run twice.
        note: is called with what "matmuls" keeps.
    """
    check_policy(policy)
    if policy == "none":
        yield
        return
    _, _, interval = policy.partition("every-")
    chosen = blocks_of(model)[:: int(interval or 1)]
    options = {"context_fn": partial(_keep_products, note)} if policy == "matmuls" else {}
    for block in chosen:
        block.forward = partial(_checkpointed_forward, block.forward, options)
    try:
        yield
    finally:
        for block in chosen:
            del block.forward  # so that the class's method is called again


def _checkpointed_forward(forward: Callable[..., Any], options: dict[str, Any], *inputs: Any, **named: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs, **named)
    return checkpoint(_in_empty_context, forward, *inputs, use_reentrant=False, **options, **named)


def _in_empty_context(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    """Call a block without the results that its stack shares in a context variable.

    They are gone when the block is computed again, which would then need operators that the first pass did not record.
    """
    if torch.compiler.is_compiling():  # nothing is shared then
        return forward(*inputs, **named)
    return Context().run(forward, *inputs, **named)


def _keep_products(note: Callable[[Any], object] | None) -> tuple[AbstractContextManager, AbstractContextManager]:
    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operator in PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE

    keeping, recomputing = create_selective_checkpoint_contexts(policy)
    return keeping if note is None else _both(_NoteProducts(note), keeping), recomputing


@contextmanager
def _both(outer: AbstractContextManager, inner: AbstractContextManager) -> Iterator[None]:
    with outer, inner:
        yield


class _NoteProducts(TorchDispatchMode):
    """Hands on the results of the products that are computed inside."""

    def __init__(self, note: Callable[[Any], object]):
        super().__init__()
        self.note = note

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        out = operator(*args, **(kwargs or {}))
        if operator in PRODUCTS:
            self.note(out)
        return out
