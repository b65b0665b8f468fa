"""The training loop of every model of the course, in a class with short methods."""

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from txlib.devices import AsyncScalars, to_device
from txlib.labels import IGNORE_INDEX
from txlib.training.averaging import WeightAverage
from txlib.training.blocks import blocks_of, checkpointed, compiled, in_fp8
from txlib.training.checkpoints import Checkpoints, check_folder, run_lock
from txlib.training.config import TrainConfig, check_length
from txlib.training.distributed import (
    SINGLE_PROCESS,
    DistributedContext,
    LossFunction,
    ParallelLoss,
    copy_for_sharding,
    data_parallel_group,
    full_tensor,
    unsharded,
)
from txlib.training.interrupt import Interrupt
from txlib.training.log import Log
from txlib.training.memory import explain_oom
from txlib.training.optimizers import as_optimizers, optimizers
from txlib.training.profile import Profile
from txlib.training.state import Batches, Progress, State, batch_stream, load_run
from txlib.training.step import training_step

TIMING_STEPS = 20  # after so many steps, or half of the minutes, the length of a run of given minutes is fixed
LOSS_DELAY_STEPS = {"cuda": 1}  # the loss is read so many steps later, so that the device always has work
CHECKPOINT_INTERVAL_SECONDS = 60  # a checkpoint is due after so much work, however few steps it was

MakeOptimizer = Callable[[nn.Module], Optimizer]


class Requests(NamedTuple):
    """How many ranks ask all of them to stop after this step, or to save it."""

    stop: float = 0.0
    save: float = 0.0


class Trainer:
    """A training run, in methods that may be overridden. `train` explains the arguments."""

    state: State
    log: Log
    stream: Iterator[Any]
    interrupt: Interrupt
    compute: LossFunction

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        loss: LossFunction,
        config: TrainConfig | None = None,
        *,
        out: Path | str | None = None,
        optimizer: Optimizer | MakeOptimizer | None = None,
        validate: Callable[[nn.Module], float] | None = None,
        watch: Callable[[Progress], object] | None = None,
        quiet: bool = False,
        tensorboard: bool = False,
        profile: bool = False,
    ):
        if profile and out is None:
            raise ValueError("profile needs out, a folder for the trace")
        if not callable(batches):
            raise ValueError(
                f"batches is a {type(batches).__name__}; give a function from an epoch's number to its batches: "
                "lambda epoch: batches, where they are the same each time"
            )
        if not isinstance(config, TrainConfig | None):
            raise TypeError(f"config={config!r:.80} must be a TrainConfig, such as TrainConfig(lr=1e-3)")
        self.original = self.model = model
        self.batches, self.loss, self.config = batches, loss, config or TrainConfig()
        self.validate, self.watch = validate, watch
        self.make_optimizer = optimizer
        self.quiet, self.tensorboard, self.profile = quiet, tensorboard, profile
        self.out = None if out is None else Path(out)
        self.checkpoints = None if self.out is None else Checkpoints(self.out / "checkpoints")
        self.device = next(model.parameters()).device
        self.bf16 = self.config.uses_bf16(self.device)
        self.context = DistributedContext.current()
        self.readers = data_parallel_group(self.context, self.config.parallel)  # ranks that read different rows
        self.minutes: float | None = None
        self.profiler: Profile | None = None
        self.pending: deque[AsyncScalars] = deque()  # losses that are not read yet
        self.times: list[float] = []  # seconds of each step since `fit`
        self.saved_at = 0.0

    @property
    def progress(self) -> Progress:
        return self.state.progress

    def fit(
        self,
        *,
        steps: int | None = None,
        minutes: float | None = None,
        resume: bool = False,
        extend: bool = False,
        start_from: Path | str | None = None,
    ) -> Progress:
        """Train from the first step, or from where the run was stopped, to the last."""
        check_length(steps, minutes)
        self.check_start(resume, extend, start_from)
        self.minutes = minutes
        torch.manual_seed(self.config.seed)
        if self.config.parallel != "ddp" and self.context.is_distributed:
            self.model = copy_for_sharding(self.original)
        with ExitStack() as stack:
            self.claim_folder(stack, resume or extend)
            self.prepare_model(stack)
            if start_from is not None:
                load_run(self.model, start_from)
            self.prepare_state(steps)
            if resume or extend:
                self.restore()
            self.check_plan(steps, minutes, extend)
            self.open_run(stack)
            self.model.train()
            if self.profiler:
                stack.enter_context(self.profiler.running(self.log.say, self.progress.seconds, self.progress.tokens))
            while self.progress.total is None or self.progress.step < self.progress.total:
                self.step()
        self.hand_over()
        return self.progress

    # Before the first step

    def check_start(self, resume: bool, extend: bool, start_from: Path | str | None) -> None:
        """Refuse ways to start that contradict each other.

        Raises:
            ValueError: naming them.
        """
        if self.out is None and (resume or extend):
            raise ValueError(f"{'extend' if extend else 'resume'} needs out, the folder of the run to go on with")
        if start_from is not None and (resume or extend):
            raise ValueError(
                f"start_from begins a new run, and {'extend' if extend else 'resume'} continues one; give one of them"
            )

    def claim_folder(self, stack: ExitStack, resume: bool) -> None:
        """Lock the run's folder, if it is there, and refuse one that holds another run.

        Raises:
            ValueError: when it does.
        """
        if self.out is None or self.checkpoints is None or not self.context.is_main:
            return
        check_folder(self.out)
        if self.out.exists():
            stack.enter_context(run_lock(self.out))
        if self.checkpoints.all() and not resume:
            raise ValueError(f"{self.out} already holds a run; resume it, delete it, or choose another folder")

    def prepare_model(self, stack: ExitStack) -> None:
        """Compile the blocks, convert them to 8 bits and shard the model, as the config says."""
        if self.profile and self.out and self.context.is_main:
            dtype = torch.bfloat16 if self.bf16 else torch.float32
            self.profiler = Profile(self.model, self.loss, self.device, dtype, self.out, self.context.world_size)
        stack.enter_context(in_fp8(self.model, self.config.precision == "fp8"))
        stack.enter_context(checkpointed(self.model, self.config.checkpoint_activations))
        stack.enter_context(compiled(self.model, self.config.compile))
        self.compute = self.loss
        if self.context.is_distributed:
            self.compute = ParallelLoss(self.model, self.loss, self.context, self.config.parallel)

    def prepare_state(self, steps: int | None) -> None:
        """Make the optimizer and the average, at step 0.

        Raises:
            ValueError: when an optimizer was made before the model is sharded.
        """
        config = self.config
        if self.make_optimizer is None:
            sharing = self.context if config.parallel == "ddp" else SINGLE_PROCESS  # ranks with the same gradients
            optimizer = optimizers(
                self.model, lr=config.lr, muon_lr=config.muon_lr, weight_decay=config.weight_decay, context=sharing
            )
        elif isinstance(self.make_optimizer, Optimizer) and self.model is not self.original:
            raise ValueError(
                f"parallel={config.parallel!r} shards the parameters, which {type(self.make_optimizer).__name__} was "
                "made of; give a function from the model to its optimizer: lambda model: SGD(model.parameters())"
            )
        else:
            optimizer = as_optimizers(self.make_optimizer, self.model)
        average = WeightAverage(self.model, config.average) if config.average else None
        self.state = State(self.model, optimizer, average, Progress(total=steps))
        self.settings = config.fixed_settings() | {"optimizer": optimizer.name}

    def restore(self) -> None:
        """Continue from the newest checkpoint."""
        if self.checkpoints is not None:
            self.state.restore(self.checkpoints, self.settings)

    def check_plan(self, steps: int | None, minutes: float | None, extend: bool) -> None:
        """Refuse another length than the run's, or make it the run's where that is to be extended.

        Raises:
            ValueError: with both lengths.
        """
        progress = self.progress
        if not extend:
            if steps is not None and progress.total != steps:
                raise ValueError(
                    f"{self.out} was planned for {progress.total} steps, not {steps}; extend=True trains it on to more "
                    "steps, and start_from starts another run from its weights"
                )
            return
        progress.check_extension(self.out, steps, minutes)
        progress.total = steps

    def open_run(self, stack: ExitStack) -> None:
        """Get the first batch, then open the log, and listen to Ctrl-C."""
        stream = batch_stream(self.batches, self.progress)
        self.stream = chain([next(stream)], stream)  # if there are no batches, it shows before anything is written
        out = self.out if self.context.is_main else None
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(run_lock(out))
        quiet = self.quiet or not self.context.is_main
        self.log = stack.enter_context(Log(out, self.progress, quiet=quiet, tensorboard=self.tensorboard))
        self.interrupt = stack.enter_context(Interrupt())
        keeps_all = self.config.checkpoint_activations == "none" and bool(blocks_of(self.model))
        stack.enter_context(
            explain_oom(self.context, fp32=not self.bf16, parallel=self.config.parallel, keeps_all=keeps_all)
        )
        self.saved_at = time.monotonic()

    # Steps

    def step(self) -> None:
        """Train on the next batches; then validate, save and stop where that is due."""
        progress = self.progress
        started, cpu_started = time.perf_counter(), time.process_time()
        batches = [to_device(next(self.stream), self.device) for _ in range(self.config.accumulate)]
        self.mark("data")
        self.pending.append(AsyncScalars(*self.update(batches)))
        progress.step += 1
        requests = Requests()
        if len(self.pending) > LOSS_DELAY_STEPS.get(self.device.type, 0):
            requests = self.read_loss()
        self.times.append(time.perf_counter() - started)
        progress.seconds += self.times[-1]
        progress.cpu_seconds += time.process_time() - cpu_started
        self.plan_steps()
        self.finish_step(batches, requests)

    def update(self, batches: Sequence[Any]) -> tuple[Tensor, ...]:
        """Let the optimizer, and the average, make their step.

        Returns:
            loss, tokens and requests of all ranks.
        """
        state, step = self.state, self.progress.step
        state.optimizer.set_factor(self.config.lr_factor(step + 1, self.progress.total))
        if self.readers.is_distributed:  # each rank needs other dropout, and the same when the run is resumed
            torch.manual_seed(hash((self.config.seed, step, self.context.rank, self.context.world_size)))
        results = training_step(
            self.model,
            batches,
            self.compute,
            state.optimizer,
            clip=self.config.clip,
            autocast=partial(torch.autocast, self.device.type, torch.bfloat16, enabled=self.bf16),
            context=self.context,
            flags=self.requests,
            mark=self.mark,
        )
        if state.average:
            state.average.update()
        return results

    def mark(self, part: str) -> None:
        """Tell the profiler that a part of the step has ended."""
        if self.profiler:
            self.profiler.mark(part)

    def requests(self) -> Requests:
        """Return what this rank asks of all of them."""
        late = time.monotonic() - self.saved_at > CHECKPOINT_INTERVAL_SECONDS
        save = late and self.config.checkpoint_every is not None and self.context.is_main
        return Requests(self.interrupt.requested, save)

    def read_loss(self) -> Requests:
        """Note the loss of the first step that is not read yet, and return what ranks asked for in it.

        Raises:
            ValueError: when no token counted, or the loss is not finite.
        """
        progress = self.progress
        loss, tokens, *requests = self.pending.popleft().read()
        step = len(progress.losses) + 1
        if not tokens:
            raise ValueError(f"the batches of step {step} hold no token that counts: all labels are {IGNORE_INDEX}")
        if not math.isfinite(loss):
            rates = f"lr={self.config.lr:g}" + (f" and muon_lr={self.config.muon_lr:g}" if self.config.muon_lr else "")
            rates = rates if self.make_optimizer is None else "the optimizer's learning rate"
            raise ValueError(f"the loss became {loss} in step {step}; lower {rates}")
        progress.losses.append(loss)
        progress.tokens += int(tokens) // (self.context.world_size // self.readers.world_size)
        if self.watch is not None:
            self.watch(progress)
        return Requests(*requests)

    def plan_steps(self) -> None:
        """Fix the number of steps of a run of given minutes, once enough steps are timed."""
        progress = self.progress
        if progress.total is not None or self.minutes is None:
            return
        timed = len(self.times) == TIMING_STEPS or progress.seconds >= 30 * self.minutes
        left = self.context.broadcast(steps_left(60 * self.minutes - progress.seconds, self.times) if timed else None)
        progress.total = None if left is None else progress.step + left

    def finish_step(self, batches: list[Any], requests: Requests) -> None:
        """Validate, log, save and stop where that is due.

        Raises:
            KeyboardInterrupt: when the run is to stop.
        """
        progress, config = self.progress, self.config
        last = progress.step == progress.total
        validating = self.validate is not None and (last or is_due(config.validate_every, progress.step))
        saving = last or is_due(config.checkpoint_every, progress.step)
        while self.pending and (validating or last or (saving and self.checkpoints) or any(requests)):
            self.log.step(progress)
            requests = self.read_loss()
        if validating:
            progress.validation.append((progress.step, self.validation_value()))
        self.log.step(progress)
        if self.profiler:
            self.profiler.step(batches, progress.seconds, progress.tokens)
        stopping = bool(requests.stop) and not last
        if saving or stopping or requests.save:
            self.save()
        if stopping:
            self.stop()

    def validation_value(self) -> float:
        """Return what `validate` returns, without dropout and with averaged weights, and leave training as it was."""
        assert self.validate is not None
        average, compiling = self.state.average, bool(self.config.compile)
        gpus = [self.device] if self.device.type == "cuda" else []
        self.model.eval()
        with ExitStack() as stack:
            stack.enter_context(torch.compiler.set_stance("force_eager") if compiling else nullcontext())
            stack.enter_context(torch.random.fork_rng(gpus, device_type=self.device.type))
            stack.enter_context(torch.no_grad())
            stack.enter_context(average.applied() if average else nullcontext())
            stack.enter_context(unsharded(self.compute))
            value = float(self.validate(self.model))
        self.model.train()
        return value

    def save(self) -> None:
        """Write a checkpoint, if the run has a folder."""
        if self.checkpoints is not None:
            self.state.save(self.checkpoints, self.settings, self.context)
            self.saved_at = time.monotonic()

    def stop(self) -> None:
        """End the run before its last step.

        Raises:
            KeyboardInterrupt: always.
        """
        self.log.close()
        kept = f"{self.out} goes on with resume" if self.checkpoints else "nothing is saved, as there is no `out`"
        if self.context.is_main:
            print(f"Stopped after step {self.progress.step}; {kept}.", file=sys.stderr)
        raise KeyboardInterrupt

    def hand_over(self) -> None:
        """Give the caller's model the trained weights, averaged if there is an average."""
        if self.state.average:
            self.state.average.apply()
        if self.model is not self.original:
            weights = {name: full_tensor(tensor) for name, tensor in self.model.state_dict().items()}
            self.original.load_state_dict(weights)
            self.original.to(self.device)
        self.original.eval()


def steps_left(seconds: float, times: list[float]) -> int:
    """Return how many more steps fit into the seconds; the first ones are slower, so the later half counts."""
    typical = times[len(times) // 2 :]
    return max(0, round(seconds * len(typical) / sum(typical)))


def is_due(interval: int | None, step: int) -> bool:
    return interval is not None and step % interval == 0
