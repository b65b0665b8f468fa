"""One mutant in a forked child: limited in time and in memory, silent, and gone afterwards with all that it started."""

import contextlib
import json
import os
import resource
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

Ended = dict[str, Any]  # how a mutant ended, "end", and what else is known of it
MEMORY = 2 * 2**30  # bytes beyond what the process has
GRACE_SECONDS = 10  # seconds beyond four times the limit, for a busy machine


def in_child(work: Callable[[Callable[[], None]], Ended], limit: int | float) -> Ended:
    """Return what `work` returns in a child process, or how that died: `time`, `memory` or `crash`.

    `work` gets a function to call before each of its parts. A part may take `limit` seconds of the processor; one that
    waits forever is stopped as well.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _be_child(work, limit, writing)
    os.close(writing)
    try:
        text, in_time = _heard(reading, 4 * limit + GRACE_SECONDS)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if text.endswith("\n"):
        return json.loads(text.lstrip("."))
    stopped = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF
    return {"end": "crash" if in_time and not stopped else "time"}


def _heard(reading: int, patience: int | float) -> tuple[str, bool]:
    """Return all that a child writes up to its last line, and whether it always went on writing in time."""
    text = b""
    while not text.endswith(b"\n"):
        if not select.select([reading], [], [], patience)[0]:
            return text.decode(), False
        part = os.read(reading, 2**16)
        if not part:
            break
        text += part
    return text.decode(), True


def _be_child(work: Callable[[Callable[[], None]], Ended], limit: int | float, writing: int) -> None:
    """Work, write the result down, and end without a trace."""

    def beat() -> None:
        os.write(writing, b".")
        signal.setitimer(signal.ITIMER_PROF, limit)

    end: Ended = {"end": "crash"}
    try:
        os.setsid()
        _silence()
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (_size() + MEMORY,) * 2)
        end = work(beat)
    except MemoryError:
        end = {"end": "memory"}
    finally:
        os.write(writing, json.dumps(end).encode() + b"\n")
        os._exit(0)


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)


def _size() -> int:
    """Return the bytes of address space that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
