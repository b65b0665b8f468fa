"""Processes that run a module of the grader's on JSON: each is new, and on Linux none imports torch once more.

There one process has imported what all of them need, and forks: a fork starts in milliseconds. Elsewhere each is
started as any other.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any

from txgrade.notebook_runner import environment

PRELOADED = ("torch", "jupytext", "IPython.display", "txgrade.authoring.record", "txgrade.checking.checks")


class Failed(RuntimeError):
    """The process ended otherwise than by its answer; the message says how."""


def run_fresh(module: str, request: dict, folder: Path, variables: dict[str, str], timeout: int | float) -> Any:
    """Have `module._main(request file, answer file)` work in a folder, in a process of its own; return its answer.

    Raises:
        Failed: it fails, or takes longer than `timeout` seconds.
    """
    with tempfile.TemporaryDirectory() as private:
        files = [str(Path(private, name)) for name in ("request.json", "answer.json", "errors")]
        Path(files[0]).write_text(json.dumps(request))
        work = {"module": module, "files": files, "folder": str(folder), "environment": variables}
        code = _forked(work, timeout) if sys.platform == "linux" else _started(work, timeout)
        if code is None:
            raise Failed(f"took longer than {timeout:g} s")
        if code:
            said = Path(files[2]).read_text(errors="replace").strip() if Path(files[2]).exists() else ""
            raise Failed(f"its process ended with {code}: {said[-500:]}")
        return json.loads(Path(files[1]).read_text())


def _started(work: dict, timeout: int | float) -> int | None:
    """Return the exit status of a process that is started for this work; None if it takes too long."""
    command = [sys.executable, "-m", work["module"], *work["files"][:2]]
    with open(work["files"][2], "w") as errors, contextlib.suppress(subprocess.TimeoutExpired):
        return subprocess.run(
            command,
            cwd=work["folder"],
            env=work["environment"],
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        ).returncode
    return None


class _Parent:
    """The process that forks, as its client sees it. It ends with its client."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-m", "txgrade.authoring.fresh_process"]
        self.owner, pipe = os.getpid(), subprocess.PIPE
        self._process = subprocess.Popen(
            command,
            env=environment(MPLBACKEND="agg"),
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )

    def run(self, work: dict, timeout: int | float) -> int | None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(work).encode() + b"\n")
        child = self._number()
        if child is None:
            raise Failed("its process could not be started")
        try:
            code = self._number(timeout)
        except BaseException:
            self._kill(child)
            raise
        if code is None:
            self._kill(child)
            self._number()
        return code

    def _number(self, timeout: int | float | None = None) -> int | None:
        """Return the next line; None if none comes in time, or the process is gone."""
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], timeout)[0]:
            return None
        line = self._process.stdout.readline()
        return int(line) if line else None

    def _kill(self, child: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


_parent: _Parent | None = None
_one_at_a_time = threading.Lock()


def _forked(work: dict, timeout: int | float) -> int | None:
    """Return the exit status of a fork that does this work; None if it takes too long."""
    global _parent
    with _one_at_a_time:
        if _parent is None or _parent.owner != os.getpid():
            _parent = _Parent()
        try:
            return _parent.run(work, timeout)
        except BaseException:  # what it says next would belong to this work
            _parent.end()
            _parent = None
            raise


# In the process that forks.


def _serve() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its client decides
    started_with = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for module in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    for line in sys.stdin.buffer:
        if not (child := os.fork()):
            _work(json.loads(line), started_with)
        _say(child)
        _, status = os.waitpid(child, 0)
        _say(os.waitstatus_to_exitcode(status))


def _say(number: int) -> None:
    os.write(1, b"%d\n" % number)


def _work(work: dict, started_with: list[str]) -> None:
    """Be as a process that was started for this work; end without a trace."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        nothing = os.open(os.devnull, os.O_RDWR)
        errors = os.open(work["files"][2], os.O_WRONLY | os.O_CREAT, 0o600)
        for stream, file in enumerate((nothing, nothing, errors)):
            os.dup2(file, stream)
        os.environ.clear()
        os.environ.update(work["environment"])
        os.chdir(work["folder"])
        added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:] = [work["folder"], *added, *(path for path in sys.path if path not in started_with)]
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        _reseed()
        importlib.import_module(work["module"])._main(*work["files"][:2])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _reseed() -> None:
    """Draw other random numbers than the forks before and after this one."""
    import random

    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()


if __name__ == "__main__":
    _serve()
