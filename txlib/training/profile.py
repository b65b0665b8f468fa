"""Where the time of a run goes: a trace of a few steps, a table of them, and what share of the machine's speed is used.

The operations are those of the model, forward and backward, counted once for each shape of batches: what activation
checkpointing computes again is not among them, and causal attention counts in full (Chowdhery et al. 2022, appendix B).
"""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.flop_counter import FlopCounterMode

from txlib.devices import peak_flops
from txlib.training.distributed import LossFunction, map_tensors, tensors_of

FIRST, TRACED = 4, 3  # steps before the trace, of which the last warms the tracer up; steps in it
EVERY = 20  # steps between two reports of the utilisation
OPERATORS = 10  # in the table
TRACE = "trace.json.gz"
PARTS = "data", "forward", "backward", "optimizer", "the rest"
WORDS = {  # in operators' names, and what they are
    "scaled_dot_product": "attention",
    "attention": "attention",
    "baddbmm": "matrix product",
    "addmm": "matrix product",
    "mm": "matrix product",
    "gemm": "matrix product",
    "_fused_adam": "AdamW",
    "softmax": "softmax",
    "norm": "normalisation",
    "embedding": "embedding",
    "index": "choosing rows",
    "gather": "choosing rows",
    "scatter": "choosing rows",
    "copy": "copies, also into another type",
    "cat": "copies",
    "random": "random numbers",
    "dropout": "dropout",
    "triton": "compiled",
    "CompiledFunction": "compiled",
    "allreduce": "between ranks",
    "nccl": "between ranks",
    "gloo": "between ranks",
}


class Profile:
    """What `train` tells about its time.

    Args:
        model, loss: as `train` takes them, before anything is done to them.
        device, dtype: where and in which type products are computed.
        out: folder for the trace, `trace.json.gz`, which chrome://tracing and ui.perfetto.dev open.
        world: processes that work together, of which this one speaks.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: LossFunction,
        device: torch.device,
        dtype: torch.dtype,
        out: Path,
        world: int = 1,
    ):
        self.device, self.out = device, out
        self.flops = StepFlops(model, loss)
        each, self.source = peak_flops(device, dtype)
        self.peak = world * each
        self.stopwatch = Stopwatch(device)
        self.say: Callable[[str], object] = print
        self.tracer: Any = None
        self.traced = False
        self.steps = 0
        self.before = (0.0, 0)  # seconds and tokens up to the last report
        self.batches: list[Any] = []  # since then, without their numbers

    @contextmanager
    def running(self, say: Callable[[str], object], seconds: float, tokens: int) -> Iterator[None]:
        """Around all steps.

        Args:
            say: prints a line.
            seconds, tokens: of steps done before.
        """
        self.say, self.before = say, (seconds, tokens)
        say(f"peak {self.peak / 1e12:.3g} TFLOP/s ({self.source})")
        kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (self.device.type == "cuda")
        plan = schedule(wait=FIRST - 1, warmup=1, active=TRACED, repeat=1)
        with profile(activities=kinds, schedule=plan, on_trace_ready=self._report) as self.tracer:
            yield
        if not self.traced:
            say(f"no trace: the run was shorter than {FIRST + TRACED} steps")

    def mark(self, part: str) -> None:
        """A part of a step ends."""
        if self.steps < FIRST + TRACED:
            self.stopwatch.mark(part)

    def step(self, batches: list[Any], seconds: float, tokens: int) -> None:
        """A step ends.

        Args:
            batches: of the step, of all ranks.
            seconds, tokens: of all steps up to now; on a GPU the tokens up to the step before.
        """
        self.mark("the rest")
        self.steps += 1
        self.tracer.step()
        if self.steps == FIRST:
            self.stopwatch.restart()
        self.batches += [map_tensors(lambda tensor: tensor.to("meta"), batch) for batch in batches]
        if self.steps % EVERY == 0:
            self.say(self.utilisation(seconds - self.before[0], tokens - self.before[1]))
            self.before, self.batches = (seconds, tokens), []

    def utilisation(self, seconds: float, tokens: int) -> str:
        """One line about the last steps."""
        speed = f"steps {self.steps - EVERY + 1} to {self.steps}: {tokens / seconds:,.0f} tokens per second"
        counts = [self.flops(batch) for batch in self.batches]
        if None in counts:
            return f"{speed}; the operations depend on the model's numbers, and are not counted"
        rate = sum(filter(None, counts)) / seconds
        return f"{speed}, {rate / 1e12:.3g} TFLOP/s, {rate / self.peak:.1%} of the peak"

    def _report(self, tracer: profile) -> None:
        """The trace is there: keep it, and say what is in it."""
        self.traced = True
        self.out.mkdir(parents=True, exist_ok=True)
        tracer.export_chrome_trace(str(self.out / TRACE))
        self.say(f"where {TRACED} steps spent their time ({self.out / TRACE}):\n" + self.table(tracer.key_averages()))

    def table(self, operators: Any) -> str:
        """Parts of a step, and the operators that take most."""
        parts = self.stopwatch.seconds()
        total = sum(parts.values())
        lines = [f"{1000 * total / TRACED:10.2f} ms per step"]
        lines += [f"{parts.get(part, 0) / total:10.1%} {part}" for part in PARTS]
        times = {each.key: self.own_time(each) for each in operators}
        whole = sum(times.values()) or 1
        lines.append("and of all operators:")
        for name in sorted(times, key=times.__getitem__, reverse=True)[:OPERATORS]:
            lines.append(f"{times[name] / whole:10.1%} {name.removeprefix('aten::'):.50} {in_words(name)}".rstrip())
        return "\n".join(lines)

    def own_time(self, operator: Any) -> float:
        """Of an operator, without those that it calls."""
        if operator.key.startswith(("ProfilerStep", "Optimizer.")):
            return 0.0
        return operator.self_device_time_total if self.device.type == "cuda" else operator.self_cpu_time_total


class Stopwatch:
    """Adds up the time between marks; a GPU's own, by events that nobody waits for until the end."""

    def __init__(self, device: torch.device):
        self.device, self.marks = device, []  # type: ignore[var-annotated]

    def mark(self, part: str) -> None:
        """What was done since the last mark is a piece of this part."""
        now: Any = time.perf_counter()
        if self.device.type == "cuda":
            now = torch.cuda.Event(enable_timing=True)
            now.record(torch.cuda.current_stream(self.device))
        self.marks.append((part, now))

    def restart(self) -> None:
        """Forget what was marked: the first part begins now."""
        self.marks.clear()
        self.mark("")

    def seconds(self) -> dict[str, float]:
        """Of each part; what lies before the first mark is not counted."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        found: dict[str, float] = {}
        for (_, begin), (part, end) in zip(self.marks, self.marks[1:], strict=False):
            spent = begin.elapsed_time(end) / 1000 if self.device.type == "cuda" else end - begin
            found[part] = found.get(part, 0.0) + spent
        return found


class StepFlops:
    """How many operations the loss of a batch takes, forward and backward.

    They are counted on a twin of the model without numbers, once for each shape. None where the numbers decide about
    the shapes, as those of experts.
    """

    def __init__(self, model: nn.Module, loss: LossFunction):
        twins: dict[int, Any] = {id(each): nn.Parameter(each.detach().to("meta")) for each in model.parameters()}
        twins |= {id(each): each.to("meta") for each in model.buffers()}
        self.model, self.loss = copy.deepcopy(model, twins).train(), loss  # without a copy of the numbers
        self.known: dict[Any, int | None] = {}

    def __call__(self, batch: Any) -> int | None:
        shapes = tuple(tensor.shape for tensor in tensors_of(batch))
        if shapes not in self.known:
            self.known[shapes] = self.count(map_tensors(lambda tensor: tensor.to("meta"), batch))
        return self.known[shapes]

    def count(self, batch: Any) -> int | None:
        """For a batch without numbers."""
        try:
            with FlopCounterMode(display=False) as counter:
                total, _ = self.loss(self.model, batch)
                total.backward()
        except (NotImplementedError, RuntimeError):
            return None
        finally:
            self.model.zero_grad()
        return counter.get_total_flops()


def in_words(operator: str) -> str:
    """What an operator does, where its name is one of those known."""
    return next((f"({words})" for part, words in WORDS.items() if part in operator), "")
