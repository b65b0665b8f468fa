"""Estimates of the memory that a run takes: weights, gradients, optimizer, activations, cache.

plan = training_memory(build(GPT2["small"]), {"input_ids": ids, "labels": ids}, device="cuda")
print(plan)
plan.require("cuda")        # ValueError with advice if it does not fit
print(training_memory(…, world_size=8, parallel="fsdp"))     # what each of eight processes takes
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from txlib.training.blocks import blocks_of, checkpointed
from txlib.training.distributed import DistributedContext
from txlib.training.optimizers import hidden_matrices
from txlib.training.tensor_parallel import local_shard

OPTIMIZERS = ("adamw", "muon", "sgd")
USABLE_FRACTION = 0.9  # of the free memory; the rest is for temporary tensors and fragmentation


@dataclass(frozen=True)
class Memory:
    """Bytes that a run holds at its peak.

    Args:
        weights, gradients, optimizer: of the parameters, whatever the batch.
        activations: what the forward pass keeps for the backward pass, in proportion to the batch.
        cache: keys and values of generated text, in proportion to the batch.
        gathered: shards of other processes, at most, while a process computes with them.
    """

    weights: int
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    cache: int = 0
    gathered: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        rows = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return "\n".join(f"{name:<12}{readable(size):>10}" for name, size in [*rows, ("total", self.total)] if size)

    def fits(self, free: int) -> bool:
        """Return whether the total fits into so many free bytes."""
        return self.total <= USABLE_FRACTION * free

    def require(
        self,
        device: torch.device | str = "cpu",
        *,
        free: int | None = None,
        processes: int = 1,
        instead: Mapping[str, Callable[[], "Memory"]] | None = None,
    ) -> None:
        """Check that the total fits into the free memory of a device.

        Args:
            free: free bytes; by default the device is asked. If the device cannot tell, nothing is refused.
            processes: number of such processes on this machine, which share the memory of a CPU.
            instead: alternatives in words, and the memory of each; the first that fits is the advice.

        Raises:
            ValueError: when it does not fit, with advice.
        """
        if free is None:
            free = available_memory(device)
            if free is not None and torch.device(device).type == "cpu":
                free //= processes
        if free is None or self.fits(free):
            return
        plans = ((option, plan()) for option, plan in (instead or {}).items())
        better = next(((option, plan) for option, plan in plans if plan.fits(free)), None)
        advice = f"{better[0]} takes {readable(better[1].total)}" if better else self._advice(free)
        sizes = {field.name: getattr(self, field.name) for field in fields(self)}
        parts = ", ".join(f"{name} {readable(size)}" for name, size in sizes.items() if size)
        raise ValueError(
            f"this needs {readable(self.total)} ({parts}), but {device} has {readable(free)} free; {advice}"
        )

    def _advice(self, free: int) -> str:
        """Return what to make smaller."""
        growing = self.activations + self.cache
        fraction = (USABLE_FRACTION * free - (self.total - growing)) / max(growing, 1)
        if fraction > 0.01:
            advice = f"make batch × length at most {100 * fraction:.2g}% of what it is"
            if self.activations:
                advice += ", and accumulate gradients"
        elif self.gradients:
            advice = "the parameters alone do not fit: take a smaller model, or shard it over several devices (FSDP)"
        else:
            advice = "the weights alone do not fit: take a smaller model or a smaller dtype, e.g. bfloat16"
        return advice


def training_memory(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    *,
    optimizer: str = "adamw",
    device: torch.device | str = "cpu",
    bf16: bool = False,
    checkpoint_activations: str = "none",
    world_size: int = 1,
    parallel: str = "ddp",
) -> Memory:
    """Return the memory that training takes in rank 0, which has no less than any other rank.

    Args:
        model: on any device; on the meta device, as `txlib.models.sizes.build` makes it, it takes no memory itself.
        batch: its arguments, e.g. input_ids and labels, of the size that will be trained on.
        optimizer: "adamw" keeps two numbers per parameter; "muon" one for the matrices inside the blocks (see
            `hidden_matrices`) and two for the rest; "sgd" none.
        device: where training will run.
        bf16: whether it runs under bfloat16 autocast.
        checkpoint_activations: see `checkpointed`. The recomputed activations of one block at a time are not counted.
        world_size: number of processes.
        parallel: what they divide: "ddp", the rows of the batch; "fsdp", those and everything that belongs to
            parameters; "tp", see `txlib.training.tensor_parallel`.

    Raises:
        ValueError: for an unknown optimizer, a model whose shapes depend on values, and one that can't be split.
    """
    if parallel not in ("ddp", "fsdp", "tp"):
        raise ValueError(f"parallel={parallel!r} is unknown; choose 'ddp', 'fsdp' or 'tp'")
    shard = local_shard(model, world_size) if world_size > 1 and parallel == "tp" else model
    plan = parameter_memory(shard, optimizer=optimizer, sharded=world_size if parallel == "fsdp" else 1)
    if world_size > 1 and parallel != "tp":
        batch, _ = DistributedContext(0, world_size).shard_batch(dict(batch))
    activations = activation_memory(
        shard, batch, device=device, bf16=bf16, checkpoint_activations=checkpoint_activations
    )
    return replace(plan, activations=activations)


def parameter_memory(model: nn.Module, *, optimizer: str = "adamw", sharded: int = 1) -> Memory:
    """Return the memory that belongs to the parameters: `training_memory` without the activations, also for experts.

    Args:
        sharded: number of processes over which FSDP shards the rows of each parameter.

    Raises:
        ValueError: for an unknown optimizer.
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer={optimizer!r} is unknown; choose one of {', '.join(OPTIMIZERS)}")
    weights = gradients = states = 0
    hidden = hidden_matrices(model)
    for name, parameter in model.named_parameters():
        size = parameter.nbytes
        if sharded > 1:
            size = size // len(parameter) * math.ceil(len(parameter) / sharded)
        weights += size
        if parameter.requires_grad:
            gradients += size
            states += size * {"adamw": 2, "muon": 1 if name in hidden else 2, "sgd": 0}[optimizer]
    weights += sum(buffer.nbytes for buffer in model.buffers())
    return Memory(weights, gradients, states, gathered=gathered_memory(model) if sharded > 1 else 0)


def gathered_memory(model: nn.Module) -> int:
    """Return the bytes that FSDP gathers at a time: the current block and everything outside the blocks, both with
    their gradients before these are sharded, and the next block.
    """
    blocks = [sum(weight.nbytes for weight in block.parameters()) for block in blocks_of(model)]
    rest = sum(weight.nbytes for weight in model.parameters()) - sum(blocks)
    return 2 * rest + 3 * max(blocks, default=0)


def activation_memory(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    *,
    device: torch.device | str = "cpu",
    bf16: bool = False,
    checkpoint_activations: str = "none",
) -> int:
    """Return the bytes that the forward pass keeps for the backward pass.

    They are counted: the model runs on fake tensors, which have a shape, a dtype and a device but no content, and every
    tensor that autograd keeps is added up once. What a compiler would save is not subtracted.

    Arguments and errors as in `training_memory`. A GPU that this machine lacks is treated like a CPU.
    """
    kind = torch.device(device).type
    kind = kind if kind != "cuda" or torch.cuda.is_available() else "cpu"

    def fake(tensor: Tensor) -> Tensor:
        same = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=kind)
        return same.requires_grad_(tensor.requires_grad)

    kept: list[Any] = []
    with FakeTensorMode(allow_non_fake_inputs=True), checkpointed(model, checkpoint_activations, kept.append):
        state = {name: fake(tensor) for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
        inputs = {name: fake(tensor) for name, tensor in batch.items()}
        with torch.autocast(kind, torch.bfloat16, enabled=bf16):
            try:
                excluded = [*state.values(), *inputs.values()]
                return saved_bytes(lambda: functional_call(model, state, (), inputs), excluded, kept)
            except (DynamicOutputShapeException, DataDependentOutputException) as error:
                raise ValueError(
                    f"the shapes in {type(model).__name__} depend on values ({error.func}), as experts' do; "
                    "count a model whose feed-forward network is as wide as the experts that a token uses"
                ) from None


def generation_memory(model: nn.Module, batch: int, length: int, *, dtype: torch.dtype = torch.float32) -> Memory:
    """Return what generating `batch` texts of `length` tokens takes, with weights and cache in `dtype`.

    Each layer keeps a key and a value of head_dim numbers for each of its key/value heads and each token.

    Args:
        model: a decoder (`GPT`), whose config has the sizes.
    """
    config: Any = model.config
    size = dtype.itemsize
    block = config.block
    attention = block.attention
    cached = 2 * config.layers * (attention.kv_heads or attention.heads) * block.head_dim  # numbers per token
    weights = sum(tensor.numel() for tensor in [*model.parameters(), *model.buffers()])
    return Memory(weights * size, cache=batch * length * cached * size)


def saved_bytes(forward: Callable[[], object], excluded: Iterable[Tensor] = (), extra: Sequence[Any] = ()) -> int:
    """Return the bytes of the tensors that autograd keeps while `forward` runs, each storage once.

    Args:
        excluded: tensors whose storages are not counted.
        extra: a list that `forward` fills with more tensors to count.
    """
    uncounted = {tensor.untyped_storage()._cdata for tensor in excluded}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)  # held, so that no other storage gets the same address
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    for tensor in tree_leaves(extra):
        pack(tensor)
    return sum(tensor.untyped_storage().nbytes() for address, tensor in kept.items() if address not in uncounted)


@contextmanager
def explain_oom(
    context: DistributedContext, *, fp32: bool = False, parallel: str = "ddp", keeps_all: bool = False
) -> Iterator[None]:
    """Inside, say in one sentence what to change when the memory of a device is full.

    Args:
        fp32: whether the run computes in 32 bits.
        parallel: see `TrainConfig`.
        keeps_all: whether the model has blocks and `checkpoint_activations` is "none".

    Raises:
        ValueError: instead of the error of torch.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator: " not in text:
            raise
        request = re.search(r"ried to allocate ([\d.]+ \w+)", text)
        more = f", which asked for {request[1]} more" if request else ""
        process = f" in process {context.rank} of {context.world_size}" if context.is_distributed else ""
        remedies = ["make the batches smaller, and accumulate more of them for a step"]
        if keeps_all:
            remedies.append("compute parts of it twice (--checkpoint-activations blocks)")
        if fp32:
            remedies.append("compute in bf16")
        if not context.is_distributed or parallel == "ddp":
            remedies.append("shard weights and optimizer over several GPUs (torchrun …, --parallel fsdp)")
        else:
            remedies.append("shard the model over more processes")
        raise ValueError(
            f"the memory is full{process}{more}; {'; or '.join(remedies)}; or take a smaller model"
        ) from None


def available_memory(device: torch.device | str = "cpu") -> int | None:
    """Return the free bytes of a device, or None where they are unknown."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    limits = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    except (OSError, StopIteration):
        pass
    try:  # the limit of a container
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text() for name in ("max", "current"))
        limits.append(int(limit) - int(used))
    except (OSError, ValueError):  # none, or "max"
        pass
    return min(limits, default=None)


def readable(size: int | float) -> str:
    """Return a number of bytes in a readable unit; 1 GB is 10⁹."""
    for unit in ("B", "kB", "MB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"
