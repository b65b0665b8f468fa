"""Reads submissions in a process of its own, bounded in time and memory: whatever is in a file, the grader goes on.

One process reads them all. A file on which it needs too much ends it, and the next file gets a new one. On its pipes
it is sent the assignment as a line of JSON, then one for each file, and answers each with a line of JSON.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from txgrade.authoring.assignment import Assignment, GradedTask
from txgrade.notebook_runner import environment
from txgrade.records.result import Note
from txgrade.submitting.finding import HandedIn
from txgrade.submitting.reading import Submission, read_submission

SECONDS = 2  # of processor time that a file may take
MEMORY_MB = 300  # that the process may hold, Python itself included; bounded on Linux only
PATIENCE = 60  # seconds until a folder that doesn't answer is given up


class BoundedReader:
    """Reads submissions to one assignment; use it in a `with` block."""

    def __init__(self, assignment: Assignment):
        self._assignment = _written(assignment)
        self._process: subprocess.Popen | None = None
        self._requests: IO[bytes]
        self._replies: IO[bytes]

    def __enter__(self) -> "BoundedReader":
        self._start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def read(self, handed_in: HandedIn) -> Submission:
        """What `read_submission` gives; `too much` where it would take more than the bounds allow."""
        if handed_in.problem:
            return Submission(handed_in.name, handed_in.problem, {}, handed_in.notes)
        for _ in range(2):  # a process may have been killed for another reason
            if self._process is None:
                self._start()
            reply = self._ask({"path": os.fspath(handed_in.path)})
            if reply is not None:
                if reply["status"] == "too much":
                    self._stop()  # its memory may be in pieces
                notes = tuple(Note(**note) for note in reply.pop("notes"))
                return Submission(name=handed_in.name, notes=(*handed_in.notes, *notes), **reply)
            if self._stop() == -signal.SIGPROF:
                break
        return Submission(handed_in.name, "too much", {}, handed_in.notes)

    def _start(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "txgrade.submitting.bounded"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(OMP_NUM_THREADS="1"),
        )
        assert process.stdin is not None and process.stdout is not None
        self._process, self._requests, self._replies = process, process.stdin, process.stdout
        self._requests.write(self._assignment)
        self._requests.flush()

    def _ask(self, request: dict) -> dict | None:
        """The reply, or None where there will be none."""
        received, deadline = bytearray(), time.monotonic() + PATIENCE
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
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
        """End the process; returns how it ended."""
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
    """Serve: whatever isn't foreseen ends this process, and is the parent's to say."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    sys.stdout = sys.stderr
    assignment = _read(next(requests))
    _bound_memory()
    for line in requests:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal ends the process
        submission = asdict(read_submission(HandedIn("", Path(json.loads(line)["path"])), assignment))
        del submission["name"]
        reply = json.dumps(submission).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(reply + b"\n")
        replies.flush()


def _written(assignment: Assignment) -> bytes:
    """An assignment as a line of JSON."""
    return json.dumps(asdict(assignment) | {"path": os.fspath(assignment.path), "data": ()}).encode() + b"\n"


def _read(line: bytes) -> Assignment:
    """The assignment that `_written` wrote; JSON makes lists of tuples."""
    import nbformat

    values = json.loads(line)
    tasks = [GradedTask(**{name: _with_tuples(value) for name, value in task.items()}) for task in values["tasks"]]
    notebook = nbformat.from_dict(values["notebook"])
    return Assignment(**values | {"path": Path(values["path"]), "notebook": notebook, "tasks": tuple(tasks)})


def _with_tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _bound_memory() -> None:
    """Let the process grow to `MEMORY_MB`, where the system says how large it is."""
    if sys.platform != "linux":
        return
    import resource

    pages = Path("/proc/self/statm").read_text().split()  # size resident shared text lib data dt
    page = resource.getpagesize()
    room = MEMORY_MB * 2**20 - int(pages[1]) * page
    resource.setrlimit(resource.RLIMIT_DATA, (int(pages[5]) * page + room,) * 2)


if __name__ == "__main__":
    main()
