"""Training in several processes, applied from outside: models need not know about it.

`torchrun` starts the processes; each has a number, its rank. The rows of every batch are split over the ranks, each
rank computes with its own rows, and the gradients are added up. A step is therefore that of one process with the whole
batch, and a run's settings mean the same on any number of ranks. torch adds up the gradients: by
DistributedDataParallel, where each rank has all weights (Li et al. 2020), or by FSDP2, where each rank has a shard of
the weights and of the optimizer's state (Zhao et al. 2023).
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from txlib.devices import is_container, map_items
from txlib.training.blocks import blocks_of

SummedLoss = tuple[Tensor, Tensor | int]  # a loss, and how many tokens it is summed over
LossFunction = Callable[[nn.Module, Any], SummedLoss]
Value = TypeVar("Value")

ENGINES = "ddp", "fsdp", "tp"
PROCESS_GROUP_TIMEOUT = timedelta(minutes=30)  # ranks may wait for one that prepares the data


@dataclass(frozen=True)
class DistributedContext:
    """The rank of this process among all that train together. Rank 0 writes and prints for all."""

    rank: int = 0
    world_size: int = 1

    @classmethod
    def current(cls) -> "DistributedContext":
        """Return this process's rank in torch's process group, or a single process where there is no group."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def is_main(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Whether there are other processes."""
        return self.world_size > 1

    def barrier(self) -> None:
        """Wait until every rank has arrived."""
        if self.is_distributed:
            dist.barrier()

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value."""
        if not self.is_distributed:
            return value
        box = [value]
        dist.broadcast_object_list(box)
        return box[0]

    def all_gather(self, value: Value) -> list[Value]:
        """Return the values of all ranks, in the order of ranks."""
        if not self.is_distributed:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def all_reduce_sum(self, *numbers: int | float | Tensor, device: torch.device) -> Float[Tensor, "numbers"]:
        """Return each number summed over the ranks, on the device, without waiting for the device."""
        dtype = torch.float32 if device.type == "mps" else torch.float64
        stacked = torch.stack(
            [
                number.to(dtype) if isinstance(number, Tensor) else torch.full((), number, dtype=dtype, device=device)
                for number in numbers
            ]
        )
        if self.is_distributed:
            dist.all_reduce(stacked)
        return stacked

    def shard_batch(self, batch: Value) -> tuple[Value, bool]:
        """Return this rank's rows of a batch, and whether they count.

        A batch may have fewer rows than there are ranks. A rank without rows gets the first one, which must not count:
        the rank still has to take part in the step.

        Raises:
            TypeError: unless the batch is a tensor, or a dictionary, tuple, list or dataclass of tensors.
            ValueError: when its tensors have no common first axis.
        """
        sizes = {len(tensor) for tensor in tensors_of(batch)}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(
                f"a batch whose tensors have {sorted(sizes) or 'no'} rows can't be split over {self.world_size} ranks; "
                "give all of them the same first axis"
            )
        counts = self.rank < sizes.pop()
        rows = slice(self.rank, None, self.world_size) if counts else slice(0, 1)
        return map_tensors(lambda tensor: tensor[rows], batch), counts


SINGLE_PROCESS = DistributedContext()


def map_tensors(change: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Return the same batch with every tensor changed.

    Raises:
        TypeError: when the batch holds anything but tensors, numbers, strings, None, and containers of those.
    """
    if isinstance(batch, Tensor):
        return change(batch)
    if is_container(batch):
        return map_items(partial(map_tensors, change), batch)
    if batch is None or isinstance(batch, int | float | str):
        return batch
    raise TypeError(f"a batch with a {type(batch).__name__} can't be split over ranks; make it of tensors")


def tensors_of(batch: Any) -> list[Tensor]:
    """Return the tensors of a batch."""
    tensors: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    map_tensors(note, batch)
    return tensors


class ParallelLoss:
    """A loss that all ranks compute together: each call returns what this rank's rows add to it.

    After the backward pass each rank has the *mean* of the gradients of the ranks that read different rows.

    Args:
        model, loss: as `train` takes them.
        engine: "ddp", "fsdp" or "tp".
    """

    def __init__(self, model: nn.Module, loss: LossFunction, context: DistributedContext, engine: str):
        self.context, module = data_parallel_group(context, engine), _ModelWithLoss(model, loss)
        self.engine: Any
        if engine == "ddp":
            from torch.nn.parallel import DistributedDataParallel

            with warnings.catch_warnings(action="ignore", category=FutureWarning):  # a new name for broadcast_buffers
                # Experts that no token was sent to get no gradient.
                self.engine = DistributedDataParallel(
                    module, broadcast_buffers=False, find_unused_parameters=True, gradient_as_bucket_view=True
                )
            return
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh(next(model.parameters()).device.type, (context.world_size,))
        if engine == "tp":
            from txlib.training.tensor_parallel import parallelize

            parallelize(model, mesh)
            self.engine = module
        else:
            from torch.distributed.fsdp import fully_shard

            for block in blocks_of(model):
                fully_shard(block, mesh=mesh)
            self.engine = fully_shard(module, mesh=mesh)

    def __call__(self, model: nn.Module, batch: Any) -> SummedLoss:
        """Return the loss of this rank's rows, and how many tokens it is summed over."""
        rows, counts = self.context.shard_batch(batch) if self.context.is_distributed else (batch, True)
        loss, tokens = self.engine(rows)
        return (loss, tokens) if counts else (0 * loss, 0)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, the backward pass adds to this rank's gradients only, as more batches of the step follow."""
        if hasattr(self.engine, "no_sync"):
            with self.engine.no_sync():
                yield
        elif not hasattr(self.engine, "set_requires_gradient_sync"):
            yield
        else:
            self.engine.set_requires_gradient_sync(False)
            yield
            self.engine.set_requires_gradient_sync(True)

    @contextmanager
    def unsharded(self) -> Iterator[None]:
        """Inside, each rank has all weights, so that parts of the model can be called."""
        modules = [module for module in self.engine.modules() if hasattr(module, "unshard")]
        for module in modules:
            module.unshard()
        yield
        for module in modules:
            module.reshard()


class _ModelWithLoss(nn.Module):
    """Model and loss as one module, so that torch's engines see the whole forward pass."""

    def __init__(self, model: nn.Module, loss: LossFunction):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Any) -> SummedLoss:
        return self.loss(self.model, batch)


def data_parallel_group(context: DistributedContext, engine: str) -> DistributedContext:
    """Return the ranks over which the rows of a batch are split; under tensor parallelism each rank has all rows."""
    return SINGLE_PROCESS if engine == "tp" else context


def no_sync(loss: LossFunction) -> AbstractContextManager[None]:
    """Return `ParallelLoss.no_sync`, or nothing to enter for the loss of one process."""
    return loss.no_sync() if isinstance(loss, ParallelLoss) else nullcontext()


def unsharded(loss: LossFunction) -> AbstractContextManager[None]:
    """Return `ParallelLoss.unsharded`, or nothing to enter for the loss of one process."""
    return loss.unsharded() if isinstance(loss, ParallelLoss) else nullcontext()


def is_sharded(tensor: Any) -> bool:
    """Return whether each rank holds only a shard of the tensor."""
    return hasattr(tensor, "full_tensor")


def full_tensor(tensor: Any) -> Tensor:
    """Return all of a tensor that may be sharded; every rank must call this."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def group_by_placement(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Return the tensors in two lists, sharded ones and others, as torch's operations on lists do not mix them."""
    groups: dict[bool, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(is_sharded(tensor), []).append(tensor)
    return list(groups.values())


def distribute_like(tensor: Tensor, other: Any) -> Tensor:
    """Return the shard of a tensor that this rank holds of another one, or the tensor itself if that is not sharded."""
    if is_sharded(tensor) or not is_sharded(other) or tensor.shape != other.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    # Every rank has read the whole tensor, so nothing is sent.
    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements, src_data_rank=None)


def copy_for_sharding(model: nn.Module) -> nn.Module:
    """Return a copy that may be sharded, and move the model itself into the CPU's memory meanwhile."""
    device = next(model.parameters()).device
    return copy.deepcopy(model.cpu()).to(device)
