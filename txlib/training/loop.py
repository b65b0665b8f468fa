"""One training loop for every model of the course."""

import csv
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from txlib.training.averaging import WeightAverage
from txlib.training.checkpoints import Checkpoints, load_weights
from txlib.training.optimizers import optimizers
from txlib.training.schedules import noam, warmup_linear

MEASURED_STEPS = range(6, 21)      # by these the length of a run of given minutes is set; the first are slower


@dataclass(frozen=True)
class TrainConfig:
    """How to train. Give `steps` or `minutes`.

    Args:
        steps: optimizer steps in all.
        minutes: wall-clock minutes; the first 20 steps are timed, and the number of steps is then fixed for good.
        lr, muon_lr, weight_decay: see `optimizers`.
        schedule: "linear" (see `warmup_linear`; rates are peaks) or "noam" (see `noam`; lr then multiplies it).
        warmup: steps until the peak.
        clip: largest norm of all gradients together; None: no limit.
        accumulate: batches whose gradients are added up for one step.
        precision: "fp32", "bf16" (autocast), or "auto": bf16 on GPUs and on CPUs that compute with it.
        compile: compile the loss with `torch.compile`.
        average: decay of `WeightAverage`; None: no average.
        checkpoint_every, validate_every: in steps; None: only at the end.
        seed: of dropout and of the order of batches.
    """

    steps: int | None = None
    minutes: float | None = None
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
        if (self.steps is None) == (self.minutes is None):
            raise ValueError(f"give steps or minutes, got steps={self.steps} and minutes={self.minutes}")
        for name in ("steps", "minutes", "lr", "warmup", "accumulate", "checkpoint_every", "validate_every"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value} must be more than 0")
        if self.schedule not in ("linear", "noam"):
            raise ValueError(f"schedule={self.schedule!r} is unknown; choose 'linear' or 'noam'")
        if self.precision not in ("auto", "fp32", "bf16"):
            raise ValueError(f"precision={self.precision!r} is unknown; choose 'auto', 'fp32' or 'bf16'")


@dataclass
class Progress:
    """Where a run stands; this is what a checkpoint keeps besides tensors."""

    step: int = 0
    total: int | None = None
    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    validation: list[dict[str, float]] = field(default_factory=list)


def train(
    model: nn.Module,
    batches: Callable[[int], Sequence[Any]],
    loss: Callable[[nn.Module, Any], tuple[Tensor, int]],
    config: TrainConfig,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    validate: Callable[[nn.Module], dict[str, float]] | None = None,
    quiet: bool = False,
    tensorboard: bool = False,
) -> Progress:
    """Train a model.

    Args:
        batches: the batches of an epoch, counted from 0; the same number must always give the same batches. A batch is
            whatever `loss` understands; it is moved with `.to(device)` if it can be.
        loss: `loss(model, batch)` returns the loss *summed* over what it counts (tokens, say), and how many those are.
            So gradients accumulated over several batches are those of one large batch.
        out: folder for `metrics.csv` and checkpoints; None keeps nothing.
        resume: go on from the newest checkpoint in `out`. On a CPU the losses are then, bit for bit, those of a run that
            was never stopped.
        validate: called every `validate_every` steps and at the end, with averaged weights if there are any.
        quiet: no progress bar.
        tensorboard: also write events for TensorBoard into `out`.

    Returns:
        where the run ended, with the loss of each step. The model has the averaged weights, if there are any.

    Raises:
        KeyboardInterrupt: on Ctrl-C, after the current step is finished and saved.
        CheckpointError: when there is nothing to resume, or it is broken.
    """
    device = next(model.parameters()).device
    torch.manual_seed(config.seed)
    progress, optimizer = Progress(total=config.steps), optimizers(
        model, lr=config.lr, muon_lr=config.muon_lr, weight_decay=config.weight_decay
    )  # fmt: skip
    average = WeightAverage(model, config.average) if config.average else None
    checkpoints = Checkpoints(Path(out) / "checkpoints") if out else None
    if resume:
        if checkpoints is None:
            raise ValueError("resume needs out, the folder of the run to go on with")
        progress = _restore(checkpoints, model, optimizer, average)

    compute = torch.compile(loss) if config.compile else loss
    cast = (lambda: torch.autocast(device.type, torch.bfloat16)) if _use_bf16(config, device) else nullcontext
    stream = _stream(batches, progress)
    times: list[float] = []
    model.train()
    with _Log(out, progress, quiet, tensorboard) as log, _stop_politely() as stopped:
        while progress.total is None or progress.step < progress.total:
            started = time.perf_counter()
            loss_sum, count = 0.0, 0
            for _ in range(config.accumulate):
                batch = next(stream)
                with cast():
                    batch_loss, batch_count = compute(model, batch.to(device) if hasattr(batch, "to") else batch)
                batch_loss.backward()
                loss_sum, count = loss_sum + batch_loss.detach(), count + batch_count
            _divide_gradients(model, count)
            if config.clip:
                nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            progress.step += 1
            optimizer.set_factor(_factor(config, progress, model))
            optimizer.step()
            optimizer.zero_grad()
            if average:
                average.update()
            progress.losses.append(float(loss_sum) / count)
            progress.tokens += count
            seconds = time.perf_counter() - started
            progress.seconds += seconds
            times.append(seconds)
            if progress.total is None and len(times) == MEASURED_STEPS.stop:
                typical = sorted(times[MEASURED_STEPS.start :])[len(MEASURED_STEPS) // 2]
                progress.total = max(progress.step + 1, round(config.minutes * 60 / typical))

            last = progress.step == progress.total
            if validate and (last or (config.validate_every and progress.step % config.validate_every == 0)):
                progress.validation.append({"step": progress.step, **_validate(model, validate, average)})
            log.step(progress, config)
            if checkpoints and (
                last or stopped() or (config.checkpoint_every and progress.step % config.checkpoint_every == 0)
            ):
                _save(checkpoints, progress, model, optimizer, average)
            if stopped():
                log.close()
                saved = f"saved at step {progress.step}; go on with resume" if checkpoints else "nothing was saved"
                raise KeyboardInterrupt(f"stopped: {saved}")
    if average:
        average._set(average.weights)
    model.eval()
    return progress


def _stream(batches: Callable[[int], Sequence[Any]], progress: Progress) -> Iterator[Any]:
    """Batch after batch, epoch after epoch, from where the progress stands."""
    while True:
        epoch = batches(progress.epoch)
        if not len(epoch):
            raise ValueError("there are no batches to train on; the corpus is empty, or all of it was filtered out")
        while progress.batch < len(epoch):
            progress.batch += 1
            yield epoch[progress.batch - 1]
        progress.epoch, progress.batch = progress.epoch + 1, 0


def _factor(config: TrainConfig, progress: Progress, model: nn.Module) -> float:
    if config.schedule == "noam":
        return noam(progress.step, model.config.block.d_model, config.warmup)
    return warmup_linear(progress.step, progress.total or config.warmup + progress.step, config.warmup)


def _divide_gradients(model: nn.Module, count: int) -> None:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    torch._foreach_div_(gradients, max(count, 1))


def _use_bf16(config: TrainConfig, device: torch.device) -> bool:
    if config.precision != "auto":
        return config.precision == "bf16"
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    return device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()


def _validate(model: nn.Module, validate: Callable, average: WeightAverage | None) -> dict[str, float]:
    generator = torch.get_rng_state()          # validation must not change what follows
    model.eval()
    with torch.no_grad(), average.applied() if average else nullcontext():
        result = validate(model)
    model.train()
    torch.set_rng_state(generator)
    return result


def _save(
    checkpoints: Checkpoints, progress: Progress, model: nn.Module, optimizer, average: WeightAverage | None
) -> None:
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in optimizer.state_tensors().items()}
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    state: dict[str, Any] = {"progress": asdict(progress)}
    if average:
        tensors |= {f"average.{name}": tensor for name, tensor in average.weights.items()}
        state["average_updates"] = average.updates
    checkpoints.save(progress.step, tensors, state)


def _restore(checkpoints: Checkpoints, model: nn.Module, optimizer, average: WeightAverage | None) -> Progress:
    tensors, state = checkpoints.load()

    def part(start: str) -> dict[str, Tensor]:
        return {key.removeprefix(start): tensor for key, tensor in tensors.items() if key.startswith(start)}

    load_weights(model, part("model."), str(checkpoints.folder))
    optimizer.load_state_tensors(part("optimizer."))
    if average:
        average.weights, average.updates = part("average."), state["average_updates"]
    torch.set_rng_state(tensors["random.cpu"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])
    return Progress(**state["progress"])


@contextmanager
def _stop_politely() -> Iterator[Callable[[], bool]]:
    """Inside, the first Ctrl-C only asks to stop after this step; a second one stops at once."""
    asked = False

    def ask(*_) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    try:
        before = signal.signal(signal.SIGINT, ask)
    except ValueError:                         # not in the main thread: Python then handles Ctrl-C itself
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


class _Log:
    """The progress bar, `metrics.csv`, and events for TensorBoard."""

    def __init__(self, out: Path | str | None, progress: Progress, quiet: bool, tensorboard: bool):
        self.file = self.writer = self.events = self.bar = None
        if out:
            path = Path(out) / "metrics.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = path.read_text().splitlines()[: progress.step + 1] if progress.step and path.exists() else []
            self.file = open(path, "w", newline="")    # noqa: SIM115  closed in __exit__
            self.file.writelines(row + "\n" for row in rows)
            self.writer = csv.writer(self.file)
            if not rows:
                self.writer.writerow(["step", "loss", "tokens", "seconds", "validation"])
        if out and tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.events = SummaryWriter(str(out))
        if not quiet:
            from tqdm import tqdm

            self.bar = tqdm(total=progress.total, initial=progress.step, desc="training", mininterval=1.0, unit="step")

    def step(self, progress: Progress, config: TrainConfig) -> None:
        loss = progress.losses[-1]
        validation = progress.validation[-1] if progress.validation else {}
        validation = validation if validation.get("step") == progress.step else {}
        shown = " ".join(f"{key}={value:.4f}" for key, value in validation.items() if key != "step")
        if self.writer:
            self.writer.writerow([progress.step, repr(loss), progress.tokens, f"{progress.seconds:.2f}", shown])
            self.file.flush()
        if self.events:
            self.events.add_scalar("loss", loss, progress.step)
            for key, value in validation.items():
                if key != "step":
                    self.events.add_scalar(key, value, progress.step)
        if self.bar is not None:
            self.bar.total = progress.total
            recent = progress.losses[-50:]
            self.bar.set_postfix_str(f"loss {sum(recent) / len(recent):.3f} {shown}", refresh=False)
            self.bar.update(1)

    def close(self) -> None:
        for each in (self.file, self.events, self.bar):
            if each is not None:
                each.close()

    def __enter__(self) -> "_Log":
        return self

    def __exit__(self, *_) -> None:
        self.close()
