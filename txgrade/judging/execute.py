"""Runs a notebook by papermill in a sealed kernel, and returns what its cells displayed, whatever happened.

papermill injects the seed and goes through the cells with the engine below, which has a `Kernel` of two pipes run
them. No library reads what a submission's kernel sends: see `txgrade.sandbox.kernel`.
"""

import logging
import time
from dataclasses import dataclass
from typing import Any

from papermill import PapermillExecutionError, execute_notebook
from papermill.engines import Engine, papermill_engines

from txgrade.evidence.recordings import pack_json
from txgrade.sandbox.kernel import Cell, Gone, Kernel, OutOfTime
from txgrade.sandbox.limits import Limits
from txgrade.seeds import kernel_seed

logging.getLogger("papermill").setLevel(logging.ERROR)  # it warns of a parameter that no cell names: `private_values`

ENGINE = "txgrade"
LEAST_CPU_SHARE = 1 / 3  # of the time that a kernel ran; with less, if it waited for a processor, it was preempted


@dataclass
class Executed:
    """What a run left behind: outputs by cell id, as nbformat has them."""

    outputs: dict[str, list]
    stopped: str | None = None  # why it ended before the last cell, in words
    stopped_at: str | None = None  # the cell at which it ended
    seconds: float = 0.0  # that its cells took
    late: bool = False  # whether it ended because a cell, or the notebook, took too long
    preempted: bool = False  # whether it might not have, but for others: its kernel waited for a processor


class Stop(Exception):
    """The run can't go on; the message says why."""

    def __init__(self, reason: str, late: bool = False):
        super().__init__(reason)
        self.late = late


def execute(
    notebook: Any,
    seed: int | None,
    limits: Limits,
    seconds: int | float | None = None,
    least_cpu_share: float = LEAST_CPU_SHARE,
    private_values: dict[str, list] | None = None,
) -> Executed:
    """Run a notebook in a fresh kernel, in what is left of its time. Never raise for anything that its cells do.

    A run out of time is `preempted` if its kernel got less of a processor than `least_cpu_share`, and waited for more.

    With a seed, papermill injects what of it may enter a kernel, and what the grader drew for the checks'
    `show.private`, by task. A cell that raises doesn't end the run; a cell out of time, a dead kernel and too much
    output do. Without a seed, for tests of nbgrader's, a cell out of time is interrupted, as nbgrader does, and counts
    as an error.

    Raises:
        NoKernel: none could be started.
    """
    parameters: dict[str, Any] | None = None if seed is None else {"seed": kernel_seed(seed)}
    if parameters and private_values:
        parameters["private_values"] = pack_json(private_values)
    seconds = limits.notebook_seconds if seconds is None else seconds
    run = _Run(limits, seconds, least_cpu_share, interrupt=seed is None)
    try:
        execute_notebook(
            notebook,
            None,
            parameters=parameters,
            engine_name=ENGINE,
            kernel_name="python3",
            progress_bar=False,
            run=run,
        )
    except Stop as reason:
        run.executed.stopped, run.executed.late = str(reason), reason.late
    except PapermillExecutionError as reason:  # papermill's own; what a cell raised is among the outputs
        run.executed.stopped = f"the notebook could not be run: {reason.ename}"
    return run.executed


class _Run:
    """One notebook in one kernel; fills in what its cells leave behind."""

    def __init__(self, limits: Limits, seconds: int | float, least_cpu_share: float, interrupt: bool):
        self.limits, self.seconds, self.least_cpu_share, self.interrupt = limits, seconds, least_cpu_share, interrupt
        self.executed = Executed({})

    def cells(self, cells: list) -> None:
        with Kernel(self.limits) as kernel:
            started = time.monotonic()
            try:
                for number, cell in enumerate(cells):
                    if cell.cell_type == "code":
                        self.executed.stopped_at = cell.id
                        self._cell(kernel, number, cell, started)
            finally:
                self.executed.seconds = time.monotonic() - started
        self.executed.stopped_at = None

    def _cell(self, kernel: Kernel, number: int, cell: Any, started: float) -> None:
        left = started + self.seconds - time.monotonic()
        ran = Cell()
        try:
            kernel.run(cell.source, number, min(left, self.limits.cell_seconds), ran, interrupt=self.interrupt)
        except OutOfTime:
            if left < self.limits.cell_seconds:
                raise Stop(f"the notebook took longer than {self.limits.notebook_seconds:g} s", late=True) from None
            raise Stop(f"a cell ran longer than {self.limits.cell_seconds:g} s", late=True) from None
        except Gone as reason:
            raise Stop(str(reason)) from None
        finally:
            if ran.late:
                self.executed.preempted = kernel.starved(time.monotonic() - started, self.least_cpu_share)
            self.executed.outputs[cell.id] = _finished(ran)


class _GradingEngine(Engine):
    @classmethod
    def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, *, run: _Run, **unused: Any) -> None:
        run.cells(nb_man.nb.cells)


def _finished(cell: Cell) -> list:
    """Return a cell's outputs as JSON holds them: each stream in one piece, without overwritten text (`\\r`)."""
    joined: list[dict] = []
    streams: dict[str, list[str]] = {}
    for output in cell.outputs:
        if output["output_type"] == "stream" and output["name"] in streams:
            streams[output["name"]].append(output["text"])
            continue
        joined.append(dict(output))
        if output["output_type"] == "stream":
            streams[output["name"]] = joined[-1]["text"] = [output["text"]]
    for output in joined:
        if output["output_type"] == "stream":
            lines = "".join(output["text"]).split("\n")
            output["text"] = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
    if cell.error and not any(output["output_type"] == "error" for output in joined):  # the cell's own code hid it
        joined.append({"output_type": "error", "ename": cell.error[0], "evalue": cell.error[1], "traceback": []})
    return joined


papermill_engines.register(ENGINE, _GradingEngine)
