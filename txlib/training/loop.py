"""One training loop for every model of the course."""

import csv
import io
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from txlib.training.averaging import WeightAverage
from txlib.training.checkpoints import CheckpointError, Checkpoints, load_weights
from txlib.training.losses import IGNORED
from txlib.training.optimizers import Optimizers, optimizers
from txlib.training.schedules import inverse_sqrt, warmup_linear

Loss = Callable[[nn.Module, Any], tuple[Tensor, int]]

MEASURED = range(5, 20)  # the steps by which a run of given minutes is planned; the first ones are slower


@dataclass(frozen=True)
class TrainConfig:
    """How to train.

    Args:
        lr, muon_lr, weight_decay: see `optimizers`; the rates are peaks.
        schedule: "linear" (see `warmup_linear`) or the paper's "inverse_sqrt".
        warmup: steps until the peak.
        clip: largest norm of all gradients together; None: no limit.
        accumulate: batches whose gradients are added up for one step.
        precision: "fp32", "bf16" (autocast), or "auto": bf16 on GPUs and CPUs that compute with it.
        compile: compile the loss with `torch.compile`.
        average: decay of `WeightAverage`; None: no average.
        checkpoint_every, validate_every: in steps; None: only at the end.
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
    compile: bool = False
    average: float | None = None
    checkpoint_every: int | None = None
    validate_every: int | None = None
    seed: int = 0

    def __post_init__(self):
        for name in ("lr", "warmup", "accumulate", "checkpoint_every", "validate_every"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value} must be more than 0")
        if self.schedule not in ("linear", "inverse_sqrt"):
            raise ValueError(f"schedule={self.schedule!r} is unknown; choose 'linear' or 'inverse_sqrt'")
        if self.precision not in ("auto", "fp32", "bf16"):
            raise ValueError(f"precision={self.precision!r} is unknown; choose 'auto', 'fp32' or 'bf16'")


@dataclass
class Progress:
    """Where a run stands: what a checkpoint keeps besides tensors.

    Args:
        step: steps done, of `total`; None while a run of given minutes is still being timed.
        epoch, batch: where the next batch comes from.
        tokens: trained on, so far.
        seconds, cpu_seconds: that the steps took, so far: on the wall, and of this process on all its cores.
        losses: of each step, per token.
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


def training_step(
    model: nn.Module,
    batches: Sequence[Any],
    loss: Loss,
    optimizer: Optimizers,
    *,
    clip: float | None = None,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
) -> tuple[float, int]:
    """Learn from several batches as if they were one.

    Batches have different numbers of tokens, so the mean of their mean losses is not the mean over all tokens. Here
    sums are added up, and the gradients are divided once by the number of all tokens.

    Returns:
        the loss per token, and the number of tokens.
    """
    loss_sum, tokens = 0.0, 0
    for batch in batches:
        with autocast():
            batch_loss, batch_tokens = loss(model, batch)
        batch_loss.backward()
        loss_sum, tokens = loss_sum + batch_loss.detach(), tokens + batch_tokens
    if not tokens:
        raise ValueError(f"{len(batches)} batches hold no token that counts: all labels are {IGNORED}")
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    torch._foreach_div_(gradients, tokens)
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
    return float(loss_sum) / tokens, tokens


def train(
    model: nn.Module,
    batches: Callable[[int], Sequence[Any]],
    loss: Loss,
    config: TrainConfig | None = None,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    validate: Callable[[nn.Module], float] | None = None,
    quiet: bool = False,
    tensorboard: bool = False,
) -> Progress:
    """Train a model for some steps or minutes.

    Args:
        batches: the batches of an epoch, counted from 0; the same number must always give the same batches. A batch is
            whatever `loss` understands; it is moved with `.to(device)` if it can be.
        loss: `loss(model, batch)` returns the loss *summed* over what it counts (tokens, say), and how many those are.
        steps: optimizer steps in all.
        minutes: wall-clock minutes instead. The first steps are timed, then the number of steps is fixed for good:
            what is learnt does not depend on how busy the machine is later.
        out: folder for `metrics.csv` and checkpoints; None keeps nothing.
        resume: go on from the newest checkpoint in `out`, with all else as it was. On a CPU the losses are, bit for
            bit, those of a run that was never stopped.
        validate: returns a number to watch, such as the loss on other data; called with averaged weights if there are
            any.
        quiet: no progress bar.
        tensorboard: also write events for TensorBoard into `out`.

    Returns:
        where the run ended, with the loss of each step. The model has the averaged weights, if there are any.

    Raises:
        KeyboardInterrupt: on Ctrl-C, when the current step is finished and saved.
        CheckpointError: when there is nothing to resume, or it is broken or was trained with another config.
        ValueError: when `out` holds another run, when the loss is no longer a number, and for arguments that contradict
            each other.
    """
    config = config or TrainConfig()
    if resume and out is None:
        raise ValueError("resume needs out, the folder of the run to go on with")
    check_length(steps, minutes)
    device = next(model.parameters()).device
    torch.manual_seed(config.seed)
    optimizer = optimizers(model, lr=config.lr, muon_lr=config.muon_lr, weight_decay=config.weight_decay)
    average = WeightAverage(model, config.average) if config.average else None
    checkpoints = Checkpoints(Path(out) / "checkpoints") if out else None
    if checkpoints and checkpoints.all() and not resume:
        raise ValueError(f"{out} already holds a run; resume it, delete it, or choose another folder")
    progress = _restore(checkpoints, config, model, optimizer, average) if resume else Progress(total=steps)
    if steps is not None and progress.total != steps:
        raise ValueError(f"{out} was planned for {progress.total} steps, not {steps}; start another run for those")

    compute = torch.compile(loss) if config.compile else loss
    autocast = partial(torch.autocast, device.type, torch.bfloat16, enabled=computes_in_bf16(config, device))
    stream = _stream(batches, progress)
    stream = chain([next(stream)], stream)  # if there are no batches, it shows before anything is written
    times: list[float] = []
    model.train()
    with _Log(out, progress, quiet, tensorboard) as log, _asks_to_stop() as stop:
        while progress.total is None or progress.step < progress.total:
            started, cpu_started = time.perf_counter(), time.process_time()
            step_batches = [next(stream) for _ in range(config.accumulate)]
            step_batches = [batch.to(device) if hasattr(batch, "to") else batch for batch in step_batches]
            optimizer.set_factor(_factor(config, progress.step + 1, progress.total))
            step_loss, tokens = training_step(
                model, step_batches, compute, optimizer, clip=config.clip, autocast=autocast
            )
            if not math.isfinite(step_loss):
                raise ValueError(
                    f"the loss became {step_loss} in step {progress.step + 1}; lower lr={config.lr:g}"
                    + (f" and muon_lr={config.muon_lr:g}" if config.muon_lr else "")
                )
            if average:
                average.update()
            times.append(time.perf_counter() - started)
            progress.step += 1
            progress.losses.append(step_loss)
            progress.tokens += tokens
            progress.seconds += times[-1]
            progress.cpu_seconds += time.process_time() - cpu_started
            if progress.total is None and len(times) == MEASURED.stop:
                progress.total = progress.step + _steps_left(minutes, progress.seconds, times)

            last = progress.step == progress.total
            if validate and (last or _every(config.validate_every, progress.step)):
                progress.validation.append((progress.step, _validate(model, validate, average)))
            log.step(progress)
            stopping = stop() and not last  # asked once: what is announced must have been saved
            if checkpoints and (last or stopping or _every(config.checkpoint_every, progress.step)):
                _save(checkpoints, progress, config, model, optimizer, average)
            if stopping:
                log.close()
                saved = f"{out} goes on with resume" if checkpoints else "nothing is saved, as there is no `out`"
                print(f"Stopped after step {progress.step}; {saved}.", file=sys.stderr)
                raise KeyboardInterrupt
    if average:
        average.apply()
    model.eval()
    return progress


def check_length(steps: int | None, minutes: float | None) -> None:
    """Refuse what is no length of a run.

    Raises:
        ValueError: unless exactly one is given, and is more than 0.
    """
    if (steps is None) == (minutes is None):
        raise ValueError(f"steps={steps} and minutes={minutes}: give one of them, to say how long the run is")
    for name, value in (("steps", steps), ("minutes", minutes)):
        if value is not None and value <= 0:
            raise ValueError(f"{name}={value} must be more than 0")


def _stream(batches: Callable[[int], Sequence[Any]], progress: Progress) -> Iterator[Any]:
    """Batch after batch, epoch after epoch, from where the progress stands."""
    while True:
        epoch = batches(progress.epoch)
        if not len(epoch):
            raise ValueError("there are no batches to train on: the corpus is empty, or all of it was filtered out")
        while progress.batch < len(epoch):
            progress.batch += 1
            yield epoch[progress.batch - 1]
        progress.epoch, progress.batch = progress.epoch + 1, 0


def _factor(config: TrainConfig, step: int, total: int | None) -> float:
    """What the peak learning rates are multiplied by."""
    if config.schedule == "inverse_sqrt":
        return inverse_sqrt(step, config.warmup)
    if total is None:  # the first steps of a run of given minutes: warm-up
        return min(1.0, step / config.warmup)
    return warmup_linear(step, total, config.warmup)


def _steps_left(minutes: float, seconds: float, times: list[float]) -> int:
    """How many more steps fit into the minutes."""
    typical = sum(times[MEASURED.start : MEASURED.stop]) / len(MEASURED)
    return max(1, round((minutes * 60 - seconds) / typical))


def _every(interval: int | None, step: int) -> bool:
    return interval is not None and step % interval == 0


def computes_in_bf16(config: TrainConfig, device: torch.device) -> bool:
    """Whether `train` computes under bf16 autocast there."""
    if config.precision != "auto":
        return config.precision == "bf16"
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        return getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    return False


def _validate(model: nn.Module, validate: Callable[[nn.Module], float], average: WeightAverage | None) -> float:
    """With dropout off and averaged weights; the random numbers of training go on as if nothing had happened."""
    before = torch.get_rng_state()
    model.eval()
    with torch.no_grad(), average.applied() if average else nullcontext():
        result = float(validate(model))
    model.train()
    torch.set_rng_state(before)
    return result


def _save(
    checkpoints: Checkpoints,
    progress: Progress,
    config: TrainConfig,
    model: nn.Module,
    optimizer: Optimizers,
    average: WeightAverage | None,
) -> None:
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in optimizer.state_tensors().items()}
    tensors |= {f"random.{device}": _random(device).get_rng_state() for device in _random_devices(model)}
    if average:
        tensors |= {f"average.{name}": tensor for name, tensor in average.weights.items()}
    averaged = average.updates if average else 0
    state = {"progress": asdict(progress), "config": asdict(config), "averaged": averaged}
    checkpoints.save(progress.step, tensors, state)


def _restore(
    checkpoints: Checkpoints,
    config: TrainConfig,
    model: nn.Module,
    optimizer: Optimizers,
    average: WeightAverage | None,
) -> Progress:
    tensors, state = checkpoints.load()
    for name, now in asdict(config).items():
        then = state.get("config", {}).get(name)
        if then != now and name not in ("checkpoint_every", "validate_every", "compile"):
            raise CheckpointError(
                f"{checkpoints.folder} was trained with other settings, {name}={then}, not {now}; resume with the same"
            )

    def part(start: str) -> dict[str, Tensor]:
        return {key.removeprefix(start): tensor for key, tensor in tensors.items() if key.startswith(start)}

    load_weights(model, part("model."), checkpoints.folder)
    optimizer.load_state_tensors(part("optimizer."))
    if average:
        average.updates = state["averaged"]
        for name, tensor in part("average.").items():
            average.weights[name].copy_(tensor)
    for device in _random_devices(model):
        if f"random.{device}" in tensors:  # else the run goes on on another device
            _random(device).set_rng_state(tensors[f"random.{device}"])
    saved = state["progress"]
    return Progress(**{**saved, "validation": [tuple(each) for each in saved["validation"]]})  # JSON has no tuples


def _random_devices(model: nn.Module) -> list[str]:
    """Whose random numbers training depends on."""
    return sorted({"cpu", next(model.parameters()).device.type})


def _random(device: str) -> Any:
    """The module with `get_rng_state` and `set_rng_state` of a device: `torch.cuda`, `torch.mps`, or torch itself."""
    return torch if device == "cpu" else getattr(torch, device)


@contextmanager
def _asks_to_stop() -> Iterator[Callable[[], bool]]:
    """Inside, the first Ctrl-C only asks to stop behind the current step; a second one stops at once."""
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


class _Log:
    """The progress bar, `metrics.csv`, and events for TensorBoard."""

    COLUMNS = ("step", "loss", "tokens", "seconds", "validation")

    def __init__(self, out: Path | str | None, progress: Progress, quiet: bool, tensorboard: bool):
        self.file = self.events = self.bar = None
        if out:
            Path(out).mkdir(parents=True, exist_ok=True)
            self.file = _open_rows(Path(out) / "metrics.csv", self.COLUMNS, progress.step)
        if out and tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.events = SummaryWriter(str(out), purge_step=progress.step + 1)
        if not quiet:
            from tqdm import tqdm

            notebook = type(sys.stdout).__module__.startswith("ipykernel")  # there, stderr is printed on red
            self.bar = tqdm(
                desc="training",
                total=progress.total,
                initial=progress.step,
                unit="step",
                mininterval=0.5,
                file=sys.stdout if notebook else sys.stderr,
                leave=not notebook,
            )

    def step(self, progress: Progress) -> None:
        """Note the step that was just done."""
        loss, validation = progress.losses[-1], ""
        if progress.validation and progress.validation[-1][0] == progress.step:
            validation = progress.validation[-1][1]
        if self.file:
            row = (progress.step, loss, progress.tokens, f"{progress.seconds:.2f}", validation)
            csv.writer(self.file, lineterminator="\n").writerow(row)
            self.file.flush()
        if self.events:
            self.events.add_scalar("loss", loss, progress.step)
            if validation != "":
                self.events.add_scalar("validation", validation, progress.step)
        if self.bar is not None:
            self.bar.total = progress.total
            recent = progress.losses[-20:]
            self.bar.set_postfix_str(f"loss {sum(recent) / len(recent):.3f}", refresh=False)
            self.bar.update(1)

    def close(self) -> None:
        for each in (self.file, self.events, self.bar):
            if each is not None:
                each.close()

    def __enter__(self) -> "_Log":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def _open_rows(path: Path, columns: Sequence[str], step: int) -> io.TextIOBase:
    """A CSV file to append to, cut back to this step: a killed run has written more than its checkpoint knows."""
    rows = path.read_text(encoding="utf-8").splitlines()[1 : step + 1] if step and path.exists() else []
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text("\n".join([",".join(columns), *rows]) + "\n", encoding="utf-8")
    os.replace(partial, path)
    return open(path, "a", newline="", encoding="utf-8")
