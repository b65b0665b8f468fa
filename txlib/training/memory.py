"""How much memory a run takes, before it starts: weights, gradients, optimizer, activations, cache.

plan = training_memory(build(GPT2["small"]), {"input_ids": ids, "labels": ids}, device="cuda")
print(plan)
plan.require("cuda")        # ValueError with advice where it does not fit
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
USABLE = 0.9  # of the free memory: the rest is for what a step needs for a moment, and for gaps between blocks


@dataclass(frozen=True)
class Memory:
    """Bytes that a run holds at its peak.

    weights, gradients, optimizer: of the parameters, whatever the batch; activations: what the forward pass keeps for
    the backward pass, in proportion to the batch; cache: keys and values of generated text, likewise; gathered: what a
    process borrows of the others' shares, at most, while it computes with them.
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
        """Whether all this fits into so many free bytes."""
        return self.total <= USABLE * free

    def require(
        self,
        device: torch.device | str = "cpu",
        *,
        free: int | None = None,
        processes: int = 1,
        instead: Mapping[str, Callable[[], "Memory"]] | None = None,
    ) -> None:
        """Raise ValueError, with advice, unless all this fits into the free memory of a device.

        Args:
            free: bytes that are free; asked of the device unless given. Where it cannot say, nothing is refused.
            processes: how many do the same here; a CPU's memory is for all of them.
            instead: what else could be done, in words, and what that would take; the first that fits is the advice.
        """
        if free is None:
            free = available_memory(device)
            if free is not None and torch.device(device).type == "cpu":
                free //= processes
        if free is None or self.fits(free):
            return
        plans = ((words, plan()) for words, plan in (instead or {}).items())
        better = next(((words, plan) for words, plan in plans if plan.fits(free)), None)
        advice = f"{better[0]} takes {readable(better[1].total)}" if better else self._advice(free)
        sizes = {field.name: getattr(self, field.name) for field in fields(self)}
        parts = ", ".join(f"{name} {readable(size)}" for name, size in sizes.items() if size)
        raise ValueError(
            f"this needs {readable(self.total)} ({parts}), but {device} has {readable(free)} free; {advice}"
        )

    def _advice(self, free: int) -> str:
        """What to make smaller."""
        growing = self.activations + self.cache
        share = (USABLE * free - (self.total - growing)) / max(growing, 1)
        if share > 0.01:
            advice = f"make batch × length at most {100 * share:.2g} % of what it is"
            if self.activations:
                advice += ", and accumulate gradients"
        elif self.gradients:
            advice = "the parameters alone do not fit: take a smaller model, or spread it over several devices (FSDP)"
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
    """What training takes, of each process if there are several; see `activation_memory` for the activations.

    Args:
        model: of any device; on the meta device, as `txlib.models.sizes.build` makes it, it takes no memory itself.
        batch: its arguments, e.g. input_ids and labels, of the size that will be trained on.
        optimizer: "adamw" keeps two numbers per parameter; "muon" one for the matrices inside the blocks (see
            `hidden_matrices`) and two for the rest; "sgd" none.
        device: where it will run; bf16: whether under bfloat16 autocast.
        checkpoint_activations: see `checkpointed`. What is computed once more is there for a moment, one block at a
            time; that is not counted.
        world_size: how many processes share the work out, of which this is the first: no other has more.
        parallel: how; "ddp", rows of the batch, "fsdp", those and all that belongs to parameters, or "tp", see
            `txlib.training.tensor_parallel`.

    Raises:
        ValueError: for an unknown optimizer, for a model whose shapes depend on its numbers, and for one that can't be
            split so.
    """
    if parallel not in ("ddp", "fsdp", "tp"):
        raise ValueError(f"parallel={parallel!r} is unknown; choose 'ddp', 'fsdp' or 'tp'")
    share = local_shard(model, world_size) if world_size > 1 and parallel == "tp" else model
    plan = parameter_memory(share, optimizer=optimizer, sharded=world_size if parallel == "fsdp" else 1)
    if world_size > 1 and parallel != "tp":
        batch, _ = DistributedContext(0, world_size).shard_batch(dict(batch))
    activations = activation_memory(
        share, batch, device=device, bf16=bf16, checkpoint_activations=checkpoint_activations
    )
    return replace(plan, activations=activations)


def parameter_memory(model: nn.Module, *, optimizer: str = "adamw", sharded: int = 1) -> Memory:
    """What belongs to the parameters, whatever the batch: all of `training_memory` but the activations, and so known of
    experts, too.

    Args:
        sharded: among how many processes FSDP shares each parameter out, by rows; this is the first.

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
    """Bytes that FSDP gathers for a moment: what is outside of the blocks and the block that is at work, both with
    their gradients before these are shared out, and the next block.
    """
    blocks = [sum(each.nbytes for each in block.parameters()) for block in blocks_of(model)]
    rest = sum(each.nbytes for each in model.parameters()) - sum(blocks)
    return 2 * rest + 3 * max(blocks, default=0)


def activation_memory(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    *,
    device: torch.device | str = "cpu",
    bf16: bool = False,
    checkpoint_activations: str = "none",
) -> int:
    """Bytes that the forward pass keeps for the backward pass.

    They are counted, not guessed: the model runs on fake tensors, which have a shape, a dtype and a device and no
    content, and every tensor that autograd keeps is added up once. What a compiler would save is not in it.

    Arguments and errors as in `training_memory`. A GPU that this machine lacks is taken for a CPU.
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
                known = [*state.values(), *inputs.values()]
                return saved_bytes(lambda: functional_call(model, state, (), inputs), known, kept)
            except (DynamicOutputShapeException, DataDependentOutputException) as error:
                raise ValueError(
                    f"the shapes in {type(model).__name__} depend on its numbers ({error.func}), as experts' do; "
                    "count a model whose feed-forward network is as wide as the experts that a token uses"
                ) from None


def generation_memory(model: nn.Module, batch: int, length: int, *, dtype: torch.dtype = torch.float32) -> Memory:
    """What generating texts of `length` tokens takes, `batch` of them at a time, with weights and cache in `dtype`.

    Each layer keeps a key and a value of head_dim numbers for each of its key/value heads and each token.

    Args:
        model: a decoder (`GPT`); its config says what is kept.
    """
    config: Any = model.config
    size = dtype.itemsize
    block = config.block
    kept = 2 * config.layers * (block.attention.kv_heads or block.attention.heads) * block.head_dim  # numbers a token
    weights = sum(tensor.numel() for tensor in [*model.parameters(), *model.buffers()])
    return Memory(weights * size, cache=batch * length * kept * size)


def saved_bytes(forward: Callable[[], object], known: Iterable[Tensor] = (), besides: Sequence[Any] = ()) -> int:
    """Bytes of the tensors that autograd keeps while `forward` runs; each storage once, those of `known` not at all.

    Args:
        besides: which `forward` fills with what somebody else keeps.
    """
    own = {tensor.untyped_storage()._cdata for tensor in known}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)  # held, so that no other gets the same address
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    for each in tree_leaves(besides):
        pack(each)
    return sum(tensor.untyped_storage().nbytes() for address, tensor in kept.items() if address not in own)


@contextmanager
def explain_oom(
    context: DistributedContext, *, fp32: bool = False, parallel: str = "ddp", keeps_all: bool = False
) -> Iterator[None]:
    """Inside, a device whose memory is full says in one line what to change.

    Args:
        fp32: whether the run computes in that; parallel: see `TrainConfig`; keeps_all: whether it has blocks, and
            `checkpoint_activations` is "none".

    Raises:
        ValueError: when there is too little memory.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator: " not in text:
            raise
        wanted = re.search(r"ried to allocate ([\d.]+ \w+)", text)
        more = f", which asked for {wanted[1]} more" if wanted else ""
        where = "" if not context.is_distributed else f" in process {context.rank} of {context.world_size}"
        ways = ["make the batches smaller, and accumulate more of them for a step"]
        if keeps_all:
            ways.append("compute parts of it twice (--checkpoint-activations blocks)")
        if fp32:
            ways.append("compute in bf16")
        if not context.is_distributed or parallel == "ddp":
            ways.append("share weights and optimizer out to several GPUs (torchrun …, --parallel fsdp)")
        else:
            ways.append("share the model out to more processes")
        raise ValueError(f"the memory is full{where}{more}; {'; or '.join(ways)}; or take a smaller model") from None


def available_memory(device: torch.device | str = "cpu") -> int | None:
    """Free bytes of a device; None where nobody knows."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    found = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    except (OSError, StopIteration):
        pass
    try:  # the limit of a container
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text() for name in ("max", "current"))
        found.append(int(limit) - int(used))
    except (OSError, ValueError):  # none, or "max"
        pass
    return min(found, default=None)


def readable(size: int | float) -> str:
    """Bytes in the unit that suits them: 1 GB is 10⁹."""
    for unit in ("B", "kB", "MB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"
