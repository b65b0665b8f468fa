"""Everything that changes while a model is trained: a checkpoint keeps it, and a run resumes from it bit for bit."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from txlib.training.averaging import WeightAverage
from txlib.training.checkpoints import CheckpointError, Checkpoints, load_weights
from txlib.training.distributed import SINGLE_PROCESS, DistributedContext, distribute_like, is_sharded
from txlib.training.optimizers import Optimizers

Batches = Callable[[int], Iterable[Any]]  # of an epoch, counted from 0


@dataclass
class Progress:
    """How far a run is: what a checkpoint keeps besides tensors.

    Args:
        step: number of steps done.
        total: number of steps in all; None while a run of given minutes is still being timed.
        epoch, batch: position of the next batch.
        tokens: number of tokens trained on.
        seconds, cpu_seconds: wall-clock time of all steps, and the time that this process used on all its cores.
        losses: loss per token of each step.
        validation: (step, value) of each validation.
    """

    step: int = 0
    total: int | None = None
    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> "Progress":
        """Return the progress that a checkpoint keeps."""
        return cls(**{**saved, "validation": [tuple(pair) for pair in saved["validation"]]})  # JSON has lists only

    def check_extension(self, out: Path | str | None, steps: int | None, minutes: float | None) -> None:
        """Raise a ValueError when the run in `out` has already been trained for longer than that."""
        if steps is not None and steps < self.step:
            raise ValueError(f"{out} has been trained for {self.step} steps; steps={steps} must be more")
        if minutes is not None and 60 * minutes <= self.seconds:
            done = self.seconds / 60
            raise ValueError(f"{out} has been trained for {done:.3g} minutes; minutes={minutes:g} must be more")


@dataclass
class State:
    """A run between two steps: its weights, their average, the optimizer, the random numbers and the progress."""

    model: nn.Module
    optimizer: Optimizers
    average: WeightAverage | None
    progress: Progress

    def save(
        self, checkpoints: Checkpoints, settings: dict[str, Any], context: DistributedContext = SINGLE_PROCESS
    ) -> None:
        """Write a checkpoint with the settings of the run. Every rank must call this: each writes its shards, and rank
        0 the rest.
        """
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"optimizer.{name}": tensor for name, tensor in self.optimizer.state_tensors().items()}
        tensors |= {f"random.{device}": random_of(device).get_rng_state() for device in self.random_devices()}
        if self.average:
            tensors |= {f"average.{name}": tensor for name, tensor in self.average.weights.items()}
        sharded = any(map(is_sharded, tensors.values()))
        if not (sharded or context.is_main):
            return
        averaged = self.average.updates if self.average else 0
        state = {"progress": asdict(self.progress), "config": settings, "averaged": averaged}
        checkpoints.save(self.progress.step, tensors, state, context if sharded else SINGLE_PROCESS)

    def restore(self, checkpoints: Checkpoints, settings: dict[str, Any]) -> None:
        """Continue from the newest checkpoint.

        Args:
            settings: of the run; those in the checkpoint must be the same.

        Raises:
            CheckpointError: when there is none, or it is broken or belongs to another run or model.
        """
        tensors, state = checkpoints.load(self.allocate)
        for name, value in settings.items():
            stored = state.get("config", {}).get(name)
            if stored != value:
                raise CheckpointError(
                    f"{checkpoints.folder} was trained with other settings, {name}={stored}, not {value}; "
                    "resume with the same"
                )

        load_weights(self.model, with_prefix(tensors, "model."), checkpoints.folder)
        self.optimizer.load_state_tensors(with_prefix(tensors, "optimizer."))
        if self.average:
            self.average.updates = state["averaged"]
            for name, tensor in with_prefix(tensors, "average.").items():
                weight = self.average.weights[name]
                weight.copy_(distribute_like(tensor, weight))
        for device in self.random_devices():
            if f"random.{device}" in tensors:  # else the run was saved on another device
                random_of(device).set_rng_state(tensors[f"random.{device}"])
        self.progress = Progress.from_json(state["progress"])

    def allocate(self, name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Return a tensor to read one of a checkpoint into, sharded like the parameter that it belongs to."""
        parameter: Any = dict(self.model.named_parameters()).get(name.partition(".")[2].partition("|")[0])
        if is_sharded(parameter) and parameter.shape == shape:
            return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        return torch.empty(shape, dtype=dtype)

    def random_devices(self) -> list[str]:
        """Return the devices whose random numbers training depends on."""
        return sorted({"cpu", next(self.model.parameters()).device.type})


def batch_stream(batches: Batches, progress: Progress) -> Iterator[Any]:
    """Yield batch after batch, epoch after epoch, from where the run stands.

    Raises:
        ValueError: when an epoch has no batches.
    """
    while True:
        epoch, first = batches(progress.epoch), progress.batch
        if isinstance(epoch, Sequence):
            rest: Iterator[Any] = (epoch[index] for index in range(first, len(epoch)))
        else:
            rest = islice(epoch, first, None)
        for batch in rest:
            progress.batch += 1
            yield batch
        if not progress.batch:
            raise ValueError("there are no batches to train on: the corpus is empty, or all of it was filtered out")
        progress.epoch, progress.batch = progress.epoch + 1, 0


def load_run(model: nn.Module, folder: Path | str) -> None:
    """Give a model the weights of a run, from its newest checkpoint: averaged ones, if it kept an average.

    Args:
        folder: the run's `out`.

    Raises:
        CheckpointError: when there is no checkpoint, or it is broken, or of another model.
    """
    checkpoints = Checkpoints(Path(folder) / "checkpoints")
    if not checkpoints.all():
        raise CheckpointError(f"{folder} holds no checkpoint to start from; give the folder of a run")
    tensors, _ = checkpoints.load()
    load_weights(model, with_prefix(tensors, "model.") | with_prefix(tensors, "average."), checkpoints.folder)


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose name begins with the prefix, by the rest of the name."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def random_of(device: str) -> Any:
    """Return the module that has a device's `get_rng_state` and `set_rng_state`: `torch.cuda`, `torch.mps` or torch."""
    return torch if device == "cpu" else getattr(torch, device)
