"""`train`: one call for every model of the course."""

from collections.abc import Callable
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from txlib.training.config import TrainConfig
from txlib.training.distributed import LossFunction
from txlib.training.state import Batches, Progress
from txlib.training.trainer import MakeOptimizer, Trainer


def train(
    model: nn.Module,
    batches: Batches,
    loss: LossFunction,
    config: TrainConfig | None = None,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    extend: bool = False,
    start_from: Path | str | None = None,
    optimizer: Optimizer | MakeOptimizer | None = None,
    validate: Callable[[nn.Module], float] | None = None,
    watch: Callable[[Progress], object] | None = None,
    quiet: bool = False,
    tensorboard: bool = False,
    profile: bool = False,
) -> Progress:
    """Train a model for some steps or minutes.

    A GPU always has work: it gets the next step before the loss of the last one is read. If `loss` asks it for a
    number, as `int(count)` does, the GPU is waited for; let it return a tensor instead.

    In processes that `torchrun` has started (see `txlib.training.distributed`), every rank calls it alike. Each batch
    is split over the ranks by rows, so the losses are those of one process, except for dropout.

    Args:
        batches: returns the batches of an epoch, counted from 0, in a list, a `DataLoader`, or any other iterable; the
            same epoch must always give the same batches. A batch is whatever `loss` understands; its tensors are moved
            to the model's device, see `to_device`.
        loss: `loss(model, batch)` returns the loss *summed* over what it counts (tokens, say), and how many those are,
            as a number or a tensor.
        steps: optimizer steps in all.
        minutes: wall-clock minutes instead, of steps alone: validation is not counted. The first steps are timed, then
            the number of steps is fixed: what is learned does not depend on how busy the machine is later. There is at
            least one step.
        out: folder for `metrics.csv` and checkpoints; None keeps nothing.
        resume: continue from the newest checkpoint in `out`, with everything else as it was. On a CPU the losses are,
            bit for bit, those of a run that was never stopped.
        extend: continue the run in `out`, finished or not, to more steps or minutes than it was planned for. From
            there on the schedule is that of the new length.
        start_from: folder of another run. A new run starts from its weights (the averaged ones, if it kept an
            average), with a new optimizer and schedule.
        optimizer: an optimizer of your own, or a function from the model to one, instead of `optimizers(model, …)`. Its
            learning rates are the peaks that the schedule scales. When the model is sharded over processes, it must be
            a function.
        validate: returns a number to watch, such as the loss on other data; called with averaged weights if there are
            any.
        watch: called after each step with the progress, before a checkpoint is written; it may raise an error, which
            ends the run.
        quiet: no progress bar.
        tensorboard: also write events for TensorBoard into `out`.
        profile: print where the time of a few steps goes, with a trace in `out`, and every 20 steps the fraction of the
            machine's speed that is used; see `txlib.training.profile`.

    Returns:
        where the run ended, with the loss of each step. The model has the averaged weights, if there are any.

    Raises:
        KeyboardInterrupt: on Ctrl-C, when the current step is finished and saved.
        CheckpointError: when there is nothing to resume, or it is broken or was trained with another config.
        ValueError: when `out` holds another run, or one that is being trained, when the loss is no longer a number, and
            for arguments that are wrong or contradict each other.
    """
    trainer = Trainer(
        model,
        batches,
        loss,
        config,
        out=out,
        optimizer=optimizer,
        validate=validate,
        watch=watch,
        quiet=quiet,
        tensorboard=tensorboard,
        profile=profile,
    )
    return trainer.fit(steps=steps, minutes=minutes, resume=resume, extend=extend, start_from=start_from)
