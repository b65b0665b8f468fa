"""One training loop for every model of the course."""

import math
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, islice
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from txlib.devices import AsyncScalars, supports_bf16, to_device
from txlib.labels import IGNORE_INDEX
from txlib.training.averaging import WeightAverage
from txlib.training.blocks import blocks_of, check_policy, checkpointed, compiled, in_fp8
from txlib.training.checkpoints import Checkpoints, check_folder, run_lock
from txlib.training.distributed import (
    ENGINES,
    SINGLE_PROCESS,
    DistributedContext,
    LossFunction,
    ParallelLoss,
    SummedLoss,
    copied,
    data_parallel_group,
    full_tensor,
    group_by_placement,
    no_sync,
    unsharded,
)
from txlib.training.log import Log
from txlib.training.memory import explain_oom
from txlib.training.optimizers import Optimizers, optimizers
from txlib.training.profile import Profile
from txlib.training.schedules import inverse_sqrt, warmup_cosine, warmup_linear
from txlib.training.state import Progress, State

TIMING_STEPS = 20  # steps by which a run of given minutes is planned, or as many as half of the minutes hold
LOSS_DELAY_STEPS = {
    "cuda": 1
}  # steps that a device may be behind when a loss is read, so that it always has work; else none
CHECKPOINT_INTERVAL_SECONDS = 60  # seconds of work after which a checkpoint is due, however many steps they were
CHANGEABLE_ON_RESUME = (
    "checkpoint_every",
    "validate_every",
    "compile",
    "checkpoint_activations",
    "parallel",
)  # settings that may change when a run goes on


@dataclass(frozen=True)
class TrainConfig:
    """How to train.

    Args:
        lr, muon_lr, weight_decay: see `optimizers`; the rates are peaks.
        schedule: after the warm-up, "linear" (see `warmup_linear`), "cosine" (`warmup_cosine`), or the paper's
            "inverse_sqrt".
        warmup: steps until the peak.
        clip: largest norm of all gradients together; None: no limit.
        accumulate: batches whose gradients are added up for one step.
        precision: "fp32", "bf16" (autocast), "fp8" (the same, and the blocks' linear layers multiply in 8 bits, see
            `in_fp8`), or "auto": bf16 on GPUs and CPUs that compute with it.
        compile: compile the blocks: False, True or "reduce-overhead", see `compiled`.
        checkpoint_activations: what to compute twice to save memory: "none", "blocks", "every-2" or "matmuls", see
            `checkpointed`.
        average: decay of `WeightAverage`; None: no average.
        checkpoint_every, validate_every: in steps; None: only at the end. A checkpoint is also due after a minute.
        parallel: how several processes work together: "ddp", each with all weights, or "fsdp", each with its share, on
            rows of their own; or "tp", all on the same rows, each with some heads (see `tensor_parallel`).
        seed: of dropout.
    """

    lr: float = 1e-3
    muon_lr: float | None = None
    weight_decay: float = 0.0
    schedule: str = "linear"
    warmup: int = 40
    clip: float | None = 1.0
    accumulate: int = 1
    precision: str = "auto"
    compile: bool | str = False
    checkpoint_activations: str = "none"
    average: float | None = None
    checkpoint_every: int | None = None
    validate_every: int | None = None
    parallel: str = "ddp"
    seed: int = 0

    def __post_init__(self):
        for name in ("lr", "warmup", "accumulate", "checkpoint_every", "validate_every"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value} must be more than 0")
        if self.schedule not in ("linear", "cosine", "inverse_sqrt"):
            raise ValueError(f"schedule={self.schedule!r} is unknown; choose 'linear', 'cosine' or 'inverse_sqrt'")
        if self.precision not in ("auto", "fp32", "bf16", "fp8"):
            raise ValueError(f"precision={self.precision!r} is unknown; choose 'auto', 'fp32', 'bf16' or 'fp8'")
        if self.compile not in (False, True, "reduce-overhead"):
            raise ValueError(f"compile={self.compile!r} is unknown; choose False, True or 'reduce-overhead'")
        check_policy(self.checkpoint_activations)
        if self.parallel not in ENGINES:
            raise ValueError(f"parallel={self.parallel!r} is unknown; choose {' or '.join(map(repr, ENGINES))}")


def training_step(
    model: nn.Module,
    batches: Sequence[Any],
    loss: LossFunction,
    optimizer: Optimizers,
    *,
    clip: float | None = None,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
    context: DistributedContext = SINGLE_PROCESS,
    flags: Callable[[], Sequence[float]] = tuple,
    mark: Callable[[str], object] = lambda part: None,
) -> tuple[Float[Tensor, ""], ...]:
    """Learn from several batches as if they were one.

    Batches have different numbers of tokens, so the mean of their mean losses is not the mean over all tokens. Here
    sums are added up, and the gradients are divided once by the number of all tokens, those of other ranks included.

    Nothing here waits for a GPU: it gets its work, and has the numbers some time later.

    Args:
        context: the processes that step together, and call this alike.
        flags: is asked, after the last backward pass, for what else is to be summed over the ranks in the same message.
        mark: is told when "forward", "backward" and "optimizer" end.

    Returns:
        the loss per token, and the number of tokens, of all ranks; not a number and 0, if none counts. Then the flags.
    """
    loss_sum: Any = 0.0
    tokens: Any = 0
    for number, batch in enumerate(batches, start=1):
        with nullcontext() if number == len(batches) else no_sync(loss):
            with autocast():
                batch_loss, batch_tokens = check_loss(loss(model, batch))
            mark("forward")
            batch_loss.backward()
            mark("backward")
        loss_sum, tokens = loss_sum + batch_loss.detach(), tokens + batch_tokens
    loss_sum, tokens, *summed = context.all_reduce_sum(loss_sum, tokens, *flags(), device=loss_sum.device)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if gradients:
        divisor = tokens.clamp(min=1) / context.world_size  # they are means over the ranks
        for group in group_by_placement(gradients):
            torch._foreach_div_(group, divisor.to(group[0].dtype))
    if clip is not None:
        groups = group_by_placement(gradients)
        norms = [full_tensor(nn.utils.get_total_norm(group)) for group in groups]
        for group in group_by_placement(parameter for parameter in model.parameters() if parameter.grad is not None):
            nn.utils.clip_grads_with_norm_(group, clip, torch.stack(norms).norm())
    optimizer.step()
    optimizer.zero_grad()
    mark("optimizer")
    return loss_sum / tokens, tokens, *summed


def check_loss(found: Any) -> SummedLoss:
    """What a loss gave, if it is what it has to be.

    Raises:
        ValueError: when it is no pair of a number with a gradient and a count.
    """
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[0], Tensor):
        raise ValueError(
            f"loss(model, batch) gave a {type(found).__name__}; it has to give a pair: the loss summed over what it "
            "counts, and how many those are, e.g. return losses.sum(), losses.numel()"
        )
    if found[0].dim():
        raise ValueError(f"loss(model, batch) gave losses of shape {tuple(found[0].shape)}; sum them: losses.sum()")
    return found


def train(
    model: nn.Module,
    batches: Callable[[int], Iterable[Any]],
    loss: LossFunction,
    config: TrainConfig | None = None,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    validate: Callable[[nn.Module], float] | None = None,
    quiet: bool = False,
    tensorboard: bool = False,
    profile: bool = False,
) -> Progress:
    """Train a model for some steps or minutes.

    A GPU always has work: it gets the next step before the loss of the last one is read. What `loss` asks of it, such
    as `int(count)`, it waits for; let it return a tensor instead.

    In processes that `torchrun` has started (see `txlib.training.distributed`), all ranks call it alike. Each batch is
    dealt out to them by rows, so the losses are those of one process, but for dropout.

    Args:
        batches: the batches of an epoch, counted from 0, in a list, a `DataLoader`, or anything else to go through; the
            same number must always give the same batches. A batch is whatever `loss` understands; its tensors are
            moved to the model's device, see `to_device`.
        loss: `loss(model, batch)` returns the loss *summed* over what it counts (tokens, say), and how many those are,
            as a number or a tensor.
        steps: optimizer steps in all.
        minutes: wall-clock minutes instead, of steps alone: validation comes on top. The first steps are timed, then
            the number of steps is fixed for good: what is learnt does not depend on how busy the machine is later.
            There is one step at least.
        out: folder for `metrics.csv` and checkpoints; None keeps nothing.
        resume: go on from the newest checkpoint in `out`, with all else as it was. On a CPU the losses are, bit for
            bit, those of a run that was never stopped.
        validate: returns a number to watch, such as the loss on other data; called with averaged weights if there are
            any.
        quiet: no progress bar.
        tensorboard: also write events for TensorBoard into `out`.
        profile: print where the time of a few steps goes, with a trace in `out`, and every 20 steps the share of the
            machine's speed that is used; see `txlib.training.profile`.

    Returns:
        where the run ended, with the loss of each step. The model has the averaged weights, if there are any.

    Raises:
        KeyboardInterrupt: on Ctrl-C, when the current step is finished and saved.
        CheckpointError: when there is nothing to resume, or it is broken or was trained with another config.
        ValueError: when `out` holds another run, or one that is being trained, when the loss is no longer a number, and
            for arguments that are wrong or contradict each other.
    """
    config = config or TrainConfig()
    if resume and out is None:
        raise ValueError("resume needs out, the folder of the run to go on with")
    if profile and out is None:
        raise ValueError("profile needs out, a folder for the trace")
    check_length(steps, minutes)
    if not callable(batches):
        raise ValueError(
            f"batches is a {type(batches).__name__}; give a function from an epoch's number to its batches: "
            "lambda epoch: batches, where they are the same each time"
        )
    out, context = None if out is None else Path(out), DistributedContext.current()
    device, given = next(model.parameters()).device, model
    torch.manual_seed(config.seed)
    if config.parallel != "ddp" and context.is_distributed:
        model = copied(given)
    readers = data_parallel_group(context, config.parallel)  # of different rows
    copies = context.world_size // readers.world_size  # of each row
    checkpoints = Checkpoints(out / "checkpoints") if out else None
    settings = {name: value for name, value in asdict(config).items() if name not in CHANGEABLE_ON_RESUME}
    autocast = partial(torch.autocast, device.type, torch.bfloat16, enabled=uses_bf16(config, device))
    with ExitStack() as stack:
        profiler: Profile | None = None
        if profile and out and context.is_main:
            dtype = torch.bfloat16 if uses_bf16(config, device) else torch.float32
            profiler = Profile(model, loss, device, dtype, out, context.world_size)
        mark = profiler.mark if profiler else lambda part: None
        stack.enter_context(in_fp8(model, config.precision == "fp8"))
        stack.enter_context(checkpointed(model, config.checkpoint_activations))
        stack.enter_context(compiled(model, config.compile))
        compute: LossFunction = (
            loss if not context.is_distributed else ParallelLoss(model, loss, context, config.parallel)
        )
        sharing = context if config.parallel == "ddp" else SINGLE_PROCESS  # the same gradients
        optimizer = optimizers(
            model, lr=config.lr, muon_lr=config.muon_lr, weight_decay=config.weight_decay, context=sharing
        )
        average = WeightAverage(model, config.average) if config.average else None
        state = State(model, optimizer, average, Progress(total=steps))
        if out and checkpoints and context.is_main:
            check_folder(out)
            if out.exists():
                stack.enter_context(run_lock(out))
            if checkpoints.all() and not resume:
                raise ValueError(f"{out} already holds a run; resume it, delete it, or choose another folder")
        if resume and checkpoints:
            state.restore(checkpoints, settings)
        progress = state.progress
        if steps is not None and progress.total != steps:
            raise ValueError(f"{out} was planned for {progress.total} steps, not {steps}; start another run for those")
        stream = _stream(batches, progress)
        stream = chain([next(stream)], stream)  # if there are no batches, it shows before anything is written
        if out and context.is_main:
            out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(run_lock(out))
        shown = quiet or not context.is_main
        log = stack.enter_context(Log(out if context.is_main else None, progress, quiet=shown, tensorboard=tensorboard))
        stop = stack.enter_context(_asks_to_stop())
        fp32 = not uses_bf16(config, device)
        keeps_all = config.checkpoint_activations == "none" and bool(blocks_of(model))
        stack.enter_context(explain_oom(context, fp32=fp32, parallel=config.parallel, keeps_all=keeps_all))
        unread: deque[AsyncScalars] = deque()  # of the last steps

        def read() -> list[float]:
            """Take note of the first step that is not known yet; returns whether a rank asks to stop, or to save."""
            step_loss, tokens, *flags = unread.popleft().read()
            step = len(progress.losses) + 1
            if not tokens:
                raise ValueError(f"the batches of step {step} hold no token that counts: all labels are {IGNORE_INDEX}")
            if not math.isfinite(step_loss):
                raise ValueError(
                    f"the loss became {step_loss} in step {step}; lower lr={config.lr:g}"
                    + (f" and muon_lr={config.muon_lr:g}" if config.muon_lr else "")
                )
            progress.losses.append(step_loss)
            progress.tokens += int(tokens) // copies
            return flags

        def asked_for() -> tuple[bool, bool]:
            """What this rank asks of all: to stop, and to save."""
            late = config.checkpoint_every is not None and time.monotonic() - saved > CHECKPOINT_INTERVAL_SECONDS
            return stop(), late and context.is_main

        behind = LOSS_DELAY_STEPS.get(device.type, 0)
        times: list[float] = []
        saved = time.monotonic()
        model.train()
        if profiler:
            stack.enter_context(profiler.running(log.say, progress.seconds, progress.tokens))
        while progress.total is None or progress.step < progress.total:
            started, cpu_started = time.perf_counter(), time.process_time()
            step_batches = [next(stream) for _ in range(config.accumulate)]
            step_batches = [to_device(batch, device) for batch in step_batches]
            mark("data")
            optimizer.set_factor(_factor(config, progress.step + 1, progress.total))
            if readers.is_distributed:  # other dropout on each, and the same when the run goes on
                torch.manual_seed(hash((config.seed, progress.step, context.rank, context.world_size)))
            numbers = training_step(
                model,
                step_batches,
                compute,
                optimizer,
                clip=config.clip,
                autocast=autocast,
                context=context,
                flags=asked_for,
                mark=mark,
            )
            unread.append(AsyncScalars(*numbers))
            if average:
                average.update()
            progress.step += 1
            flags = read() if len(unread) > behind else [0.0, 0.0]
            times.append(time.perf_counter() - started)
            progress.seconds += times[-1]
            progress.cpu_seconds += time.process_time() - cpu_started
            if progress.total is None and minutes is not None:
                timed = len(times) == TIMING_STEPS or progress.seconds >= 30 * minutes
                left = _steps_left(60 * minutes - progress.seconds, times) if timed else None
                left = context.broadcast(left)
                progress.total = None if left is None else progress.step + left

            last = progress.step == progress.total
            validating = validate and (last or _every(config.validate_every, progress.step))
            saving = checkpoints and (last or _every(config.checkpoint_every, progress.step))
            while unread and (validating or saving or last or any(flags)):
                log.step(progress)
                flags = read()
            if validate and validating:
                with torch.compiler.set_stance("force_eager") if config.compile else nullcontext():
                    progress.validation.append((progress.step, _validate(model, validate, average, compute)))
            log.step(progress)
            asked, overdue = flags
            if profiler:
                profiler.step(step_batches, progress.seconds, progress.tokens)
            stopping = bool(asked) and not last  # asked once: what is announced must have been saved
            if checkpoints and (saving or stopping or overdue):
                state.save(checkpoints, settings, context)
                saved = time.monotonic()
            if stopping:
                log.close()
                kept = f"{out} goes on with resume" if checkpoints else "nothing is saved, as there is no `out`"
                if context.is_main:
                    print(f"Stopped after step {progress.step}; {kept}.", file=sys.stderr)
                raise KeyboardInterrupt
    if average:
        average.apply()
    if model is not given:
        given.load_state_dict({name: full_tensor(each) for name, each in model.state_dict().items()})
        given.to(device)
    given.eval()
    return progress


def check_length(steps: int | None, minutes: float | None) -> None:
    """Refuse what is no length of a run.

    Raises:
        ValueError: unless exactly one is given, and is more than 0.
    """
    if (steps is None) == (minutes is None):
        raise ValueError(f"steps={steps} and minutes={minutes}: give one of them, to say how long the run is")
    for name, value, kind in (("steps", steps, Integral), ("minutes", minutes, Real)):
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{name}={value!r} is no {'whole ' if kind is Integral else ''}number")
        if value is not None and not value > 0:
            raise ValueError(f"{name}={value} must be more than 0")


def _stream(batches: Callable[[int], Iterable[Any]], progress: Progress) -> Iterator[Any]:
    """Batch after batch, epoch after epoch, from where the progress stands."""
    while True:
        epoch, begin = batches(progress.epoch), progress.batch
        if isinstance(epoch, Sequence):
            rest: Iterator[Any] = (epoch[place] for place in range(begin, len(epoch)))
        else:
            rest = islice(epoch, begin, None)
        for batch in rest:
            progress.batch += 1
            yield batch
        if not progress.batch:
            raise ValueError("there are no batches to train on: the corpus is empty, or all of it was filtered out")
        progress.epoch, progress.batch = progress.epoch + 1, 0


def _factor(config: TrainConfig, step: int, total: int | None) -> float:
    """What the peak learning rates are multiplied by."""
    if config.schedule == "inverse_sqrt":
        return inverse_sqrt(step, config.warmup)
    if total is None:  # the first steps of a run of given minutes: warm-up
        return min(1.0, step / config.warmup)
    shape = warmup_cosine if config.schedule == "cosine" else warmup_linear
    return shape(step, total, config.warmup)


def _steps_left(seconds: float, times: list[float]) -> int:
    """How many more steps fit into the seconds; the first ones are slower, so the later half counts."""
    typical = times[len(times) // 2 :]
    return max(0, round(seconds * len(typical) / sum(typical)))


def _every(interval: int | None, step: int) -> bool:
    return interval is not None and step % interval == 0


def uses_bf16(config: TrainConfig, device: torch.device) -> bool:
    """Whether `train` computes under bf16 autocast there."""
    return supports_bf16(device) if config.precision == "auto" else config.precision != "fp32"


def _validate(
    model: nn.Module, validate: Callable[[nn.Module], float], average: WeightAverage | None, compute: LossFunction
) -> float:
    """With dropout off and averaged weights; the random numbers of training go on as if nothing had happened."""
    model.eval()
    device = next(model.parameters()).device
    here = [device] if device.type == "cuda" else []
    averaged = average.applied() if average else nullcontext()
    with torch.random.fork_rng(here, device_type=device.type), torch.no_grad(), averaged, unsharded(compute):
        result = float(validate(model))
    model.train()
    return result


@contextmanager
def _asks_to_stop() -> Iterator[Callable[[], bool]]:
    """Inside, the first Ctrl-C only asks to stop after the current step; a second one stops at once."""
    asked = False

    def ask(*_) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    try:
        before = signal.signal(signal.SIGINT, ask)
    except ValueError:  # not in the main thread, where Ctrl-C arrives
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
