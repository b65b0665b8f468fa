"""The grader's end of a kernel of two pipes (see `cells.py`): cells in, outputs out, everything within bounds.

What comes out of the pipe was perhaps written by hostile code. It is read line by line as JSON, up to `output_mb` in
all; a line that isn't an output of a known form is passed over, and the clock is looked at before each. So nothing
that a kernel writes, and nothing that it leaves out, keeps `run` beyond its time.
"""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from uuid import uuid4

from txgrade.sandbox import leftovers
from txgrade.sandbox.limits import Limits
from txgrade.sandbox.plain import cpu_seconds_of, start_plain
from txgrade.sandbox.probe import probe
from txgrade.sandbox.zygote import Lease, Zygote, cpu_seconds, start_kernel, waited_seconds

START_SECONDS = 60  # until a kernel has to be there
END_SECONDS = 4  # to learn why a kernel ended, once the zygote has looked
INTERRUPT_SECONDS = 5  # until an interrupted cell has to end
MAX_WAIT_SHARE = 1 / 3  # of the time; a kernel that waited longer for a processor was held up
LINE_BYTES = 100  # that a line costs besides its own, since many small ones are work as well
MAX_BRACKETS, MAX_COMMAS = 300_000, 3_000_000  # of one line; an empty dict takes thirty times its two characters
HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # maybe half a character, which could be written to no file
FIELDS: dict[str, dict[str, type]] = {
    "stream": {"name": str, "text": str},
    "display_data": {"data": dict},
    "execute_result": {"data": dict},
    "error": {"ename": str, "evalue": str, "traceback": list},
}


class NoKernel(RuntimeError):
    """No cell was run, for want of a kernel: nothing that a notebook could be blamed for."""


class Gone(RuntimeError):
    """The kernel is there no more, or sent too much; the message says why."""


class OutOfTime(RuntimeError):
    """The cell was not done in its time."""


@dataclass
class Cell:
    """What a cell has displayed so far, as nbformat has it, and what it raised: type and message."""

    outputs: list[dict] = field(default_factory=list)
    error: tuple[str, str] | None = None
    late: bool = False  # whether its time was over before it was done
    displays: dict[str, list[dict]] = field(default_factory=dict)  # outputs by display id


class Kernel:
    """One kernel. With `$TXGRADE_ZYGOTE` it is forked from the zygote there, else it has one of its own.

    Below the level `sealed` it does not start, unless `$TXGRADE_TRUST_SUBMISSIONS` is 1: then it is a plain process
    with limits, in a home of its own.

    Raises:
        NoKernel: none could be started.
    """

    def __init__(self, limits: Limits):
        self.limits, self.left = limits, limits.output_mb * 2**20
        self._received, self._scanned = bytearray(), 0
        self._open: set[int] = set()  # ends of pipes
        self._lease: Lease | None = None
        self._ended: dict = {}  # how it ended, once that is known
        self._plain: subprocess.Popen | None = None
        self._stack = contextlib.ExitStack()
        try:
            self._start()
        except Exception as reason:
            self.close()
            raise NoKernel(f"no kernel could be started: {type(reason).__name__}: {reason}") from reason

    def __enter__(self) -> "Kernel":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def run(self, source: str, number: int, seconds: int | float, cell: Cell, *, interrupt: bool = False) -> None:
        """Run a cell, and gather in `cell` what it displays. With `interrupt` it is stopped when its time is over.

        Raises:
            OutOfTime: it was not done in so many seconds.
            Gone: the kernel ended, or sent more than it may.
        """
        deadline = time.monotonic() + seconds
        try:
            self._write({"run": source, "cell": number}, deadline)
            self._gather(cell, number, deadline)
        except OutOfTime:
            cell.late = True
            if not interrupt:
                raise
            cell.error = ("Timeout", f"longer than {seconds:g} s")
            self._write({"interrupt": True}, time.monotonic() + INTERRUPT_SECONDS)
            self._gather(cell, number, time.monotonic() + INTERRUPT_SECONDS)

    def cpu_seconds(self) -> float:
        """Return the processor time that the kernel has used so far, with all that it started, even if that ended."""
        if self._plain is not None:
            return cpu_seconds_of(self._plain.pid)
        used = None if self._ended else cpu_seconds(self._address, self._name)
        return self._last_words().get("cpu", 0.0) if used is None else used

    def starved(self, seconds: int | float, least_share: int | float) -> bool:
        """Return whether it got less than `least_share` of so many seconds because others had the processors.

        This compares what its processes used together, and how long one of its threads waited. Sleeping is not
        waiting.
        """
        if self._lease is None:
            return False
        return (
            self.cpu_seconds() < least_share * seconds
            and waited_seconds(self._address, self._name) > MAX_WAIT_SHARE * seconds
        )

    def close(self) -> None:
        """End the kernel, and all that it has started."""
        if self._lease is not None:
            self._lease.close()
        if self._plain is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._plain.pid, signal.SIGKILL)
            self._plain.wait()
        self._shut(*self._open)
        self._stack.close()

    def _start(self) -> None:
        taken, self._requests = os.pipe()
        self._messages, given = os.pipe()
        inside = (taken, given)
        self._open = {*inside, self._requests, self._messages}
        os.set_blocking(self._requests, False)
        address = os.environ.get("TXGRADE_ZYGOTE")
        if address is None and probe().level == "sealed":
            address = str(self._stack.enter_context(Zygote()).address)
        if address is None:
            folder = leftovers.make_folder()
            self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
            self._plain = start_plain(folder / "home", self.limits, pipes=inside)
        else:
            self._address, self._name = address, uuid4().hex[:10]
            self._lease = start_kernel(address, "cells", self._name, self.limits, inside)
        self._shut(*inside)
        deadline = time.monotonic() + START_SECONDS
        while "ready" not in self._next(deadline):
            pass

    def _shut(self, *descriptors: int) -> None:
        for descriptor in descriptors:
            self._open.discard(descriptor)
            os.close(descriptor)

    def _write(self, message: dict, deadline: float) -> None:
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            try:
                data = data[os.write(self._requests, data) :]
            except BlockingIOError:
                if not _ready(self._requests, select.POLLOUT, deadline):
                    raise OutOfTime from None
            except OSError:
                raise Gone(self._why()) from None

    def _gather(self, cell: Cell, number: int, deadline: float) -> None:
        while True:
            message = self._next(deadline)
            if type(message.get("done")) is int and message["done"] == number:
                error = message.get("error")
                if isinstance(error, list) and len(error) == 2 and all(isinstance(part, str) for part in error):
                    cell.error = cell.error or tuple(error)
                return
            _add(cell, message)

    def _next(self, deadline: float) -> dict:
        """Return the next line that holds a JSON object."""
        while True:
            if time.monotonic() > deadline:
                raise OutOfTime
            end = self._received.find(b"\n", self._scanned)
            if end < 0:
                self._scanned = len(self._received)
                if self._scanned > self.left:
                    raise Gone(f"it printed more than {self.limits.output_mb:g} MB")
                if not _ready(self._messages, select.POLLIN, deadline):
                    raise OutOfTime
                data = os.read(self._messages, 1 << 16)
                if not data:
                    raise Gone(self._why())
                self._received += data
                continue
            line = bytes(self._received[:end])
            del self._received[: end + 1]
            self._scanned = 0
            self.left -= len(line) + LINE_BYTES
            if self.left < 0:
                raise Gone(f"it printed more than {self.limits.output_mb:g} MB")
            message = _json(line)
            if isinstance(message, dict):
                return message

    def _why(self) -> str:
        reason = self._last_words().get("ended")
        return f"the kernel died: {reason or 'it used up the memory or the time, or called exit'}"

    def _last_words(self) -> dict:
        """Return how it ended, as the zygote says; empty if that is not known.

        On a busy machine the zygote may look round only seconds later; a kernel that closed its pipes may live on.
        """
        if self._lease is not None and not self._ended:
            words = self._lease.read(END_SECONDS)
            if words is None:
                cpu_seconds(self._address, self._name)  # answered as soon as it looks; then it tells who has ended
                words = self._lease.read(END_SECONDS)
            self._ended = words or {}
        return self._ended


def _add(cell: Cell, message: dict) -> None:
    """Add an output to a cell's, or change one; ignore a message of an unknown form."""
    if message.get("clear") is True:
        cell.outputs.clear()
        cell.displays.clear()
    display_id = message.get("display_id")
    if "update" in message and isinstance(display_id, str):
        if change := _output({"output_type": "display_data", **_dict(message["update"])}):
            for shown in cell.displays.get(display_id, ()):
                shown["data"] = change["data"]
    elif output := _output(_dict(message.get("output"))):
        cell.outputs.append(output)
        if isinstance(display_id, str):
            cell.displays.setdefault(display_id, []).append(output)


def _output(message: dict) -> dict | None:
    """Return an output in nbformat's form, without anything else; None if it has another form."""
    kind = message.get("output_type")
    fields = FIELDS.get(kind) if isinstance(kind, str) else None
    if fields is None or not all(isinstance(message.get(name), type_) for name, type_ in fields.items()):
        return None
    if kind == "error" and not all(isinstance(line, str) for line in message["traceback"]):
        return None
    output = {"output_type": kind} | {name: message[name] for name in fields}
    if "data" in fields:
        data = {mime: value for mime, value in message["data"].items() if isinstance(value, str) or "json" in mime}
        output |= {"data": data, "metadata": {}}
    return output | {"execution_count": None} if kind == "execute_result" else output


def _json(line: bytes) -> Any:
    """Return a line's value; None if it is not JSON, or would take much more memory than it is long."""
    if line.count(b"{") + line.count(b"[") > MAX_BRACKETS or line.count(b",") > MAX_COMMAS:
        return None
    try:
        value = json.loads(line.decode("utf-8"))
        if HALF.search(line):
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
        return value
    except (ValueError, RecursionError):
        return None


def _dict(value: Any) -> dict:
    return value if isinstance(value, dict) else {}


def _ready(descriptor: int, what: int, deadline: float) -> bool:
    """Wait until a pipe can be read or written; return False if it can't be in time."""
    poll = select.poll()
    poll.register(descriptor, what)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
