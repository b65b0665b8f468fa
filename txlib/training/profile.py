"""Profiling of a run: a trace of a few steps, a table of them, and the fraction of the machine's speed that is used.

The operations are those of the model, forward and backward, counted once for each shape of batches. They do not include
what activation checkpointing computes again, and count causal attention in full (Chowdhery et al. 2022, appendix B).
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

UNTRACED_STEPS = 4  # before the trace; the last of them warms the tracer up
TRACED_STEPS = 3
REPORT_EVERY_STEPS = 20
TABLE_OPERATORS = 10
TRACE_FILE = "trace.json.gz"
PARTS = "data", "forward", "backward", "optimizer", "the rest"
OPERATOR_KINDS = {  # by a part of the operator's name
    "scaled_dot_product": "attention",
    "attention": "attention",
    "baddbmm": "matrix product",
    "addmm": "matrix product",
    "mm": "matrix product",
    "gemm": "matrix product",
    "_fused_adam": "AdamW",
    "softmax": "softmax",
    "norm": "normalization",
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
    """The profile that `train` prints.

    Args:
        model, loss: as `train` takes them, before the model is compiled, converted or sharded.
        device, dtype: where and in which dtype products are computed.
        out: folder for the trace, `trace.json.gz`, which chrome://tracing and ui.perfetto.dev open.
        world_size: number of processes that work together.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: LossFunction,
        device: torch.device,
        dtype: torch.dtype,
        out: Path,
        world_size: int = 1,
    ):
        self.device, self.out = device, out
        self.flops = StepFlops(model, loss)
        peak, self.source = peak_flops(device, dtype)
        self.peak = world_size * peak
        self.stopwatch = Stopwatch(device)
        self.say: Callable[[str], object] = print
        self.tracer: Any = None
        self.traced = False
        self.steps = 0
        self.before = (0.0, 0)  # seconds and tokens up to the last report
        self.batches: list[Any] = []  # since then, on the meta device

    @contextmanager
    def running(self, say: Callable[[str], object], seconds: float, tokens: int) -> Iterator[None]:
        """Profile the steps that are done inside.

        Args:
            say: prints a line.
            seconds, tokens: of earlier steps.
        """
        self.say, self.before = say, (seconds, tokens)
        say(f"peak {self.peak / 1e12:.3g} TFLOP/s ({self.source})")
        kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (self.device.type == "cuda")
        plan = schedule(wait=UNTRACED_STEPS - 1, warmup=1, active=TRACED_STEPS, repeat=1)
        with profile(activities=kinds, schedule=plan, on_trace_ready=self._report) as self.tracer:
            yield
        if not self.traced:
            say(f"no trace: the run was shorter than {UNTRACED_STEPS + TRACED_STEPS} steps")

    def mark(self, part: str) -> None:
        """Note that a part of a step has ended."""
        if self.steps < UNTRACED_STEPS + TRACED_STEPS:
            self.stopwatch.mark(part)

    def step(self, batches: list[Any], seconds: float, tokens: int) -> None:
        """Note that a step has ended.

        Args:
            batches: of the step, with the rows of all ranks.
            seconds, tokens: of all steps so far; on a GPU the tokens of the last step are missing.
        """
        self.mark("the rest")
        self.steps += 1
        self.tracer.step()
        if self.steps == UNTRACED_STEPS:
            self.stopwatch.restart()
        self.batches += [map_tensors(lambda tensor: tensor.to("meta"), batch) for batch in batches]
        if self.steps % REPORT_EVERY_STEPS == 0:
            self.say(self.utilization(seconds - self.before[0], tokens - self.before[1]))
            self.before, self.batches = (seconds, tokens), []

    def utilization(self, seconds: float, tokens: int) -> str:
        """Return a line about the last steps."""
        speed = (
            f"steps {self.steps - REPORT_EVERY_STEPS + 1} to {self.steps}: {tokens / seconds:,.0f} tokens per second"
        )
        counts = [self.flops(batch) for batch in self.batches]
        if None in counts:
            return f"{speed}; the operations depend on values, and are not counted"
        rate = sum(filter(None, counts)) / seconds
        return f"{speed}, {rate / 1e12:.3g} TFLOP/s, {rate / self.peak:.1%} of the peak"

    def _report(self, tracer: profile) -> None:
        """Write the finished trace, and print its table."""
        self.traced = True
        self.out.mkdir(parents=True, exist_ok=True)
        tracer.export_chrome_trace(str(self.out / TRACE_FILE))
        self.say(
            f"where {TRACED_STEPS} steps spent their time ({self.out / TRACE_FILE}):\n"
            + self.table(tracer.key_averages())
        )

    def table(self, operators: Any) -> str:
        """Return a table of the parts of a step, and of the operators that take most time."""
        parts = self.stopwatch.seconds()
        total = sum(parts.values())
        lines = [f"{1000 * total / TRACED_STEPS:10.2f} ms per step"]
        lines += [f"{parts.get(part, 0) / total:10.1%} {part}" for part in PARTS]
        times = {operator.key: self.self_time(operator) for operator in operators}
        operator_total = sum(times.values()) or 1
        lines.append("and of all operators:")
        for name in sorted(times, key=times.__getitem__, reverse=True)[:TABLE_OPERATORS]:
            lines.append(
                f"{times[name] / operator_total:10.1%} {name.removeprefix('aten::'):.50} {operator_kind(name)}".rstrip()
            )
        return "\n".join(lines)

    def self_time(self, operator: Any) -> float:
        """Return the time of an operator, without that of the operators it calls."""
        if operator.key.startswith(("ProfilerStep", "Optimizer.")):
            return 0.0
        return operator.self_device_time_total if self.device.type == "cuda" else operator.self_cpu_time_total


class Stopwatch:
    """Adds up the time between marks. On a GPU they are events, which are read at the end only."""

    def __init__(self, device: torch.device):
        self.device, self.marks = device, []  # type: ignore[var-annotated]

    def mark(self, part: str) -> None:
        """Add the time since the last mark to this part."""
        now: Any = time.perf_counter()
        if self.device.type == "cuda":
            now = torch.cuda.Event(enable_timing=True)
            now.record(torch.cuda.current_stream(self.device))
        self.marks.append((part, now))

    def restart(self) -> None:
        """Forget all marks: the first part begins now."""
        self.marks.clear()
        self.mark("")

    def seconds(self) -> dict[str, float]:
        """Return the time of each part since the first mark."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        total: dict[str, float] = {}
        for (_, begin), (part, end) in zip(self.marks, self.marks[1:], strict=False):
            spent = begin.elapsed_time(end) / 1000 if self.device.type == "cuda" else end - begin
            total[part] = total.get(part, 0.0) + spent
        return total


class StepFlops:
    """Counts the operations of a batch's loss, forward and backward, on a copy of the model on the meta device, once
    for each shape of batches. The count is None where shapes depend on values, as with experts.
    """

    def __init__(self, model: nn.Module, loss: LossFunction):
        empty: dict[int, Any] = {id(weight): nn.Parameter(weight.detach().to("meta")) for weight in model.parameters()}
        empty |= {id(buffer): buffer.to("meta") for buffer in model.buffers()}
        self.model, self.loss = copy.deepcopy(model, empty).train(), loss  # no value is copied
        self.counts: dict[Any, int | None] = {}

    def __call__(self, batch: Any) -> int | None:
        shapes = tuple(tensor.shape for tensor in tensors_of(batch))
        if shapes not in self.counts:
            self.counts[shapes] = self.count(map_tensors(lambda tensor: tensor.to("meta"), batch))
        return self.counts[shapes]

    def count(self, batch: Any) -> int | None:
        """Return the count for a batch on the meta device."""
        try:
            with FlopCounterMode(display=False) as counter:
                total, _ = self.loss(self.model, batch)
                total.backward()
        except (NotImplementedError, RuntimeError):
            return None
        finally:
            self.model.zero_grad()
        return counter.get_total_flops()


def operator_kind(operator: str) -> str:
    """Return what an operator does, in parentheses, or nothing if its name is unknown."""
    return next((f"({kind})" for part, kind in OPERATOR_KINDS.items() if part in operator), "")
