"""Reads submissions in a process of its own, bounded in time and memory: whatever is in a file, the grader goes on.

One process reads them all. If a file takes too much, the process ends, and the next file gets a new one. Its pipes
carry JSON, a line each: first the assignment, then a `SubmissionFile` in and a `Submission` out.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from txgrade.authoring.assignment import Assignment, GradedTask
from txgrade.notebook_runner import environment
from txgrade.records.result import Allowance, Note
from txgrade.submitting.finding import SubmissionFile
from txgrade.submitting.reading import Submission, read_submission

CPU_SECONDS = 2  # that a file may take
MEMORY_MB = 300  # that the process may hold, Python itself included; bounded on Linux only
REPLY_SECONDS = 60  # until a folder that doesn't answer is given up


class BoundedReader:
    """Reads submissions to one assignment; use it in a `with` block."""

    def __init__(self, assignment: Assignment):
        self._assignment = _as_line(replace(assignment, data=()))
        self._process: subprocess.Popen | None = None
        self._requests: IO[bytes]
        self._replies: IO[bytes]

    def __enter__(self) -> "BoundedReader":
        self._start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def read(self, file: SubmissionFile) -> Submission:
        """Return what `read_submission` does, or `too much` if that takes more than the bounds allow."""
        for _ in range(2):  # a process may have been killed for another reason
            if self._process is None:
                self._start()
            reply = self._ask(_as_line(file))
            if reply is not None:
                if reply["status"] == "too much":
                    self._stop()  # its memory may be fragmented
                about = {"notes": _notes(reply), "allowance": Allowance(**reply["allowance"])}
                return Submission(**reply | about | {"known_as": file.known_as})
            if self._stop() == -signal.SIGPROF:
                break
        return Submission(file.name, "too much", {}, file.notes, learner=file.learner, known_as=file.known_as)

    def _start(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "txgrade.submitting.bounded"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(OMP_NUM_THREADS="1"),
            process_group=0,  # Ctrl-C at a terminal is for the grader alone
        )
        assert process.stdin is not None and process.stdout is not None
        self._process, self._requests, self._replies = process, process.stdin, process.stdout
        self._requests.write(self._assignment)
        self._requests.flush()

    def _ask(self, request: bytes) -> dict | None:
        """Return the reply, or None if there will be none."""
        received, deadline = bytearray(), time.monotonic() + REPLY_SECONDS
        try:
            self._requests.write(request)
            self._requests.flush()
        except OSError:
            return None
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies, selectors.EVENT_READ)
            while not received.endswith(b"\n"):
                if not selector.select(deadline - time.monotonic()):
                    return None
                data = os.read(self._replies.fileno(), 1 << 20)
                if not data:
                    return None
                received += data
        return json.loads(received)

    def _stop(self) -> int:
        """End the process; return how it ended."""
        if self._process is None:
            return 0
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()
        try:
            status = self._process.wait(0.2)  # it may be about to die of what it has read
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._replies.close()
        self._process = None
        return status


def main() -> None:
    """Serve. Anything unforeseen ends this process, and the parent reports it."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    sys.stdout = sys.stderr
    assignment = _read_assignment(next(requests))
    _bound_memory()
    for line in requests:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # its signal ends the process
        values = json.loads(line)
        file = SubmissionFile(**values | {"path": Path(values["path"]), "notes": _notes(values)})
        reply = _as_line(read_submission(file, assignment))
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(reply)
        replies.flush()


def _as_line(data: Any) -> bytes:
    """Return a dataclass as a line of JSON, in which tuples are lists and paths are texts."""
    return json.dumps(asdict(data), default=os.fspath).encode() + b"\n"


def _notes(values: dict) -> tuple[Note, ...]:
    return tuple(Note(**note) for note in values["notes"])


def _read_assignment(line: bytes) -> Assignment:
    import nbformat

    values = json.loads(line)
    tasks = [GradedTask(**{name: _with_tuples(value) for name, value in task.items()}) for task in values["tasks"]]
    notebook = nbformat.from_dict(values["notebook"])
    return Assignment(**values | {"path": Path(values["path"]), "notebook": notebook, "tasks": tuple(tasks)})


def _with_tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _bound_memory() -> None:
    """Let the process grow to `MEMORY_MB`, on systems that tell how large it is."""
    if sys.platform != "linux":
        return
    import resource

    pages = Path("/proc/self/statm").read_text().split()  # size resident shared text lib data dt
    page = resource.getpagesize()
    room = MEMORY_MB * 2**20 - int(pages[1]) * page
    resource.setrlimit(resource.RLIMIT_DATA, (int(pages[5]) * page + room,) * 2)


if __name__ == "__main__":
    main()
