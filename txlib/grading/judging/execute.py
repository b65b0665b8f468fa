"""Runs a notebook by papermill in a sealed kernel, and hands back what its cells displayed, whatever happened."""

import asyncio
import json
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty
from typing import Any

import psutil
import zmq
from jupyter_client.asynchronous import AsyncKernelClient
from papermill import PapermillExecutionError, execute_notebook
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, papermill_engines

from txlib.grading.sandbox.limits import Limits

KERNEL = "sealed"
ENGINE = "txlib-grading"
OWN_MEMORY_MB = 1024  # what a kernel's messages may cost this process while it reads them
START = 60  # seconds until a kernel has to answer
QUEUED = 20  # messages that wait to be read, each up to `output_mb`


@dataclass(frozen=True)
class Executed:
    """What a run left behind: outputs by cell id, as nbformat has them."""

    outputs: dict[str, list]
    stopped: str | None = None  # why it ended before the last cell, in words
    stopped_at: str | None = None  # the cell at which it ended
    seconds: float = 0.0


class Stop(Exception):
    """The run can't go on; the message says why."""


class NoKernel(RuntimeError):
    """No cell was run, for want of a kernel: nothing that a notebook could be blamed for."""


def execute(notebook: Any, seed: int | None, limits: Limits, kernel: str = KERNEL) -> Executed:
    """Run a notebook in a fresh kernel. Never raises for anything that its cells do.

    With a seed, papermill injects it and `mode = "grade"`. A cell that raises doesn't end the run; a cell out of
    time, a dead kernel and too much output do. Without a seed, for tests of nbgrader's, a cell out of time is
    interrupted, as nbgrader does, and counts as an error.

    Raises:
        NoKernel: none could be started.
    """
    began = time.perf_counter()
    parameters = None if seed is None else {"seed": seed, "mode": "grade"}
    collected: dict[str, Any] = {"outputs": {}, "at": None}
    stopped = None
    try:
        execute_notebook(
            notebook,
            None,
            parameters=parameters,
            engine_name=ENGINE,
            kernel_name=kernel,
            progress_bar=False,
            start_timeout=START,
            limits=limits,
            collected=collected,
            interrupt=seed is None,
        )
    except Stop as reason:
        stopped = str(reason)
    except PapermillExecutionError as reason:  # what a cell raised is among the outputs
        stopped = f"the notebook could not be run: {reason.ename}"
    except Exception as reason:  # a kernel can send anything, and die in many ways
        if collected["at"] is None and not collected["outputs"]:
            raise NoKernel(f"no kernel could be started: {type(reason).__name__}: {reason}") from reason
        stopped = f"the kernel broke: {type(reason).__name__}"
    return Executed(collected["outputs"], stopped, collected["at"] if stopped else None, time.perf_counter() - began)


class _Client(PapermillNotebookClient):
    """papermill's client with bounds: on the output, on the time of a cell and of the whole notebook."""

    limits: Limits
    collected: dict
    left: int  # bytes of output
    seconds: float  # that the cell may run; nbclient's own `timeout` holds whole seconds only

    def execute(self, **settings: Any) -> Any:
        with self.setup_kernel(**settings), _Watch(self):
            self.papermill_execute_cells()
        return self.nb  # without papermill's last question to a kernel that may no longer answer

    def papermill_execute_cells(self) -> None:
        deadline = time.monotonic() + self.limits.notebook_seconds
        for index, cell in enumerate(self.nb.cells):
            if cell.cell_type != "code":
                continue
            self.collected["at"] = cell.id
            self.seconds = min(self.limits.cell_seconds, deadline - time.monotonic())
            if self.seconds <= 0:
                raise Stop(f"the notebook took longer than {self.limits.notebook_seconds:g} s")
            try:
                self.execute_cell(cell, index)
            finally:
                self.collected["outputs"][cell.id] = _plain(cell.outputs)
                cell.outputs = []  # papermill would end here at the first error among them
                self._display_id_map.clear()  # what a cell has displayed, no later one changes
        self.collected["at"] = None

    def process_message(self, msg: dict, cell: Any, cell_index: int) -> Any:
        self.left -= len(json.dumps(msg["content"], default=str)) + sum(map(len, msg["buffers"]))
        if self.left < 0:
            self.task_poll_for_reply.cancel()  # nbclient then takes the kernel for dead
            return None
        return super().process_message(msg, cell, cell_index)

    async def _async_poll_output_msg(self, *given: Any) -> None:
        try:
            await super()._async_poll_output_msg(*given)
        except AssertionError:  # nbclient goes on listening after a cell's time is over, until its client is gone
            if self.kc is not None:
                raise

    def handle_comm_msg(self, outs: list, msg: dict, cell_index: int) -> None:
        """Widgets are of no use here; nbclient would keep all their states."""

    def create_kernel_manager(self) -> Any:
        manager = super().create_kernel_manager()
        # A larger message closes the connection before it fills this process's memory.
        manager.context.setsockopt(zmq.MAXMSGSIZE, self.limits.output_mb * 2**20)
        manager.context.setsockopt(zmq.RCVHWM, QUEUED)
        manager.context.setsockopt(zmq.RECONNECT_IVL, 10)  # ms: the kernel will be there soon
        manager.client_factory = _Connection
        self.kernel_manager_used = manager  # nbclient forgets it when the kernel dies
        return manager


class _Connection(AsyncKernelClient):
    """The usual client of a kernel, which is ready as soon as it hears from it; the usual one listens on for 0.2 s."""

    async def wait_for_ready(self, timeout: float | None = None) -> None:
        deadline = time.monotonic() + (timeout or START)
        while time.monotonic() < deadline:
            asked = self.kernel_info()
            with suppress(Empty):
                while not _is_idle(await self.get_iopub_msg(timeout=0.1), asked):
                    pass
                return
            if not await self.is_alive():
                raise RuntimeError("it died before it answered")
        raise RuntimeError("it does not answer")


def _is_idle(message: dict, asked: str) -> bool:
    """Whether a kernel says by this that it has answered."""
    return message["content"].get("execution_state") == "idle" and message["parent_header"].get("msg_id") == asked


class _Watch(threading.Thread):
    """Ends a kernel that keeps this process from looking at the clock, or that fills its memory.

    Messages without end starve the event loop that nbclient's timeouts rest on, and the parts of one message are
    kept until the last has come.
    """

    def __init__(self, client: _Client):
        super().__init__(daemon=True)
        self.client, self.over = client, threading.Event()
        self.reason: str | None = None

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *exception: object) -> None:
        self.over.set()
        self.join()
        if self.reason:
            raise Stop(self.reason)

    def run(self) -> None:
        limits, process = self.client.limits, psutil.Process()
        began, before = time.monotonic(), process.memory_info().rss
        while not self.over.wait(0.1):
            if time.monotonic() - began > limits.notebook_seconds + 2:  # papermill's own clock comes first
                self.reason = f"the notebook took longer than {limits.notebook_seconds:g} s"
            elif process.memory_info().rss - before > OWN_MEMORY_MB * 2**20:
                self.reason = "it sent more than can be read"
            if self.reason:
                asyncio.run(self.client.km.provisioner.kill())
                return


class _GradingEngine(Engine):
    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man: Any,
        kernel_name: str,
        *,
        limits: Limits,
        collected: dict,
        interrupt: bool = False,
        start_timeout: int = START,
        **unused: Any,
    ) -> None:
        from nbclient.exceptions import CellTimeoutError, DeadKernelError

        # nbclient's own joining of streams takes the square of a line's length
        client = _Client(
            nb_man,
            kernel_name=kernel_name,
            startup_timeout=start_timeout,
            allow_errors=True,
            record_timing=False,
            shutdown_kernel="immediate",
            iopub_timeout=10,
            coalesce_streams=False,
            extra_arguments=["--log-level=ERROR"],
            timeout_func=lambda cell: client.seconds,
            interrupt_on_timeout=interrupt,
            on_cell_executed=_note_error,
            error_on_timeout={"ename": "Timeout", "evalue": f"longer than {limits.cell_seconds:g} s", "traceback": []},
        )
        client.limits, client.collected, client.left = limits, collected, limits.output_mb * 2**20
        try:
            client.execute()
        except CellTimeoutError as reason:
            raise Stop(f"a cell ran longer than {client.seconds:g} s") from reason
        except DeadKernelError as reason:
            if client.left < 0:
                raise Stop(f"it printed more than {limits.output_mb:g} MB") from reason
            said = getattr(client.kernel_manager_used.provisioner, "reason", "")
            raise Stop(f"the kernel died: {said or 'it used up the memory or the time, or called exit'}") from reason


def _note_error(cell: Any, cell_index: int, execute_reply: dict) -> None:
    """Keep an error that the kernel reports, where the cell's own code kept it from being shown."""
    content = execute_reply["content"]
    if content.get("status") == "error" and not any(each["output_type"] == "error" for each in cell.outputs):
        cell.outputs.append(
            {
                "output_type": "error",
                "ename": str(content.get("ename")),
                "evalue": str(content.get("evalue")),
                "traceback": [],
            }
        )


def _plain(outputs: list) -> list:
    """Outputs as JSON holds them: each stream in one piece, without what a carriage return wrote over."""
    joined, streams = [], {}
    for output in outputs:
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
    # A lone surrogate is no character: it could be written to no file.
    return json.loads(json.dumps(joined, ensure_ascii=False).encode("utf-8", "replace"))


papermill_engines.register(ENGINE, _GradingEngine)
