"""Where grading jobs run: processes of this machine, or the workers of a Dask cluster.

Both give the same stream: `(job, None)` when a job begins, as far as it is known, and `(job, result)` when it is
done. Where it was the machine that failed, a job is tried once more; then it is `Failed`, and the others go on.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from txlib.grading.judging.job import Disturbed, Job, grade_submission
from txlib.grading.records.result import Result
from txlib.grading.running.workspace import workspace
from txlib.grading.sandbox.kernel import NoKernel
from txlib.grading.sandbox.warm import required_isolation, warm_kernels

if TYPE_CHECKING:
    from distributed import Client
    from distributed.security import Security

TRIES = 2
TLS_OPTIONS = {"tls_ca_file": "--tls-ca-file", "tls_client_cert": "--tls-cert", "tls_client_key": "--tls-key"}
OWN, MEASURE = 120, 600  # seconds that the grader itself may need for one run, and for measuring one task


@dataclass(frozen=True)
class Failed:
    """The grader itself failed on a job."""

    reason: str


Progress = Iterator[tuple[Job, Result | Failed | None]]


def on_this_machine(jobs: list[Job], processes: int) -> Progress:
    """Grade by so many processes at once.

    A job whose process dies, or outlives its deadline, or that was held up by others, is tried once more when all
    others are done: by itself. Where that fails too it was not the submission, and nothing is written down.
    """
    waiting, again = list(enumerate(jobs)), []
    for index, found in _in_a_pool(waiting, processes):
        if isinstance(found, Failed):
            again.append((index, _by_itself(jobs[index])))
        else:
            yield jobs[index], found
    for index, found in _in_a_pool(again, 1):
        yield jobs[index], found


def _by_itself(job: Job) -> Job:
    return replace(job, by_itself=True) if isinstance(job, Job) else job


def start_early() -> None:
    """Start the process that the pool's processes are forked from; it imports meanwhile what they need."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["txlib.grading.judging.job"])
    forkserver.ensure_running()


class _Process:
    """A process of the pool, and the job that it is at."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, os.getpid(), dict(os.environ)), daemon=True)
        self._process.start()
        theirs.close()
        self.index, self.deadline = -1, 0.0

    def give(self, index: int, job: Job) -> None:
        self.index, self.deadline = index, time.monotonic() + patience(job)
        with contextlib.suppress(OSError):  # it died: that is seen when its answer is asked for
            self.connection.send((grade_submission, job))

    def take(self) -> Result | Failed:
        """What came of the job; where nothing has come, the process is ended."""
        try:
            if self.connection.poll():
                return self.connection.recv()
            reason = "its process outlived its deadline"
        except (EOFError, OSError):
            reason = "its process died"
        self.end()
        return Failed(reason)

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()

    @property
    def ended(self) -> bool:
        return self.connection.closed


def patience(job: Job) -> int | float:
    """The seconds that a process may take for a job: the limits of its notebook, and what the grader itself needs."""
    if not isinstance(job, Job):
        return OWN
    measured = sum(task.kind == "measured" for task in job.assignment.tasks)
    return (1 + len(job.seeds)) * (job.limits.notebook_seconds + OWN + measured * MEASURE)


def _in_a_pool(jobs: list[tuple[int, Job]], processes: int) -> Iterator[tuple[int, Result | Failed | None]]:
    """Work off the list by so many processes. No more is begun than runs, so that Ctrl-C ends soon."""
    waiting, idle, busy = list(jobs), [], {}
    start_early()
    try:
        while waiting or busy:
            while waiting and len(busy) < processes:
                worker = idle.pop() if idle else _Process()
                index, job = waiting.pop(0)
                worker.give(index, job)
                busy[worker.connection] = worker
                yield index, None
            soonest = min(worker.deadline for worker in busy.values())
            ready = wait(list(busy), max(0.0, soonest - time.monotonic()))
            late = [each for each, worker in busy.items() if worker.deadline <= time.monotonic()]
            for connection in dict.fromkeys([*ready, *late]):
                worker = busy.pop(connection)
                found = worker.take()
                if not worker.ended:
                    idle.append(worker)
                yield worker.index, found
    finally:
        for worker in (*idle, *busy.values()):
            worker.end()


def _work(jobs: Connection, parent: int, environment: dict[str, str]) -> None:
    """In a process of the pool: grade what comes, until nobody asks any more."""
    _begin(parent, environment)
    while True:
        try:
            function, job = jobs.recv()
        except EOFError:
            return
        except Exception as reason:
            jobs.send(Failed(_words(reason)))
            continue
        try:
            jobs.send(function(job))
        except Exception as reason:
            jobs.send(Failed(_words(reason)))


@dataclass(frozen=True)
class Network:
    """How a scheduler is reached: by TLS with these files, or unencrypted on a network that is trusted."""

    tls_ca_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    trust: bool = False

    def security(self, address: str) -> "Security":
        """What a client of this address needs.

        Raises:
            ValueError: a file is missing, or the address is another machine's and unencrypted.
        """
        from distributed.security import Security

        files = {"tls_ca_file": self.tls_ca_file, "tls_client_cert": self.tls_cert, "tls_client_key": self.tls_key}
        given = {name: str(path) for name, path in files.items() if path is not None}
        for path in given.values():
            if not Path(path).is_file():
                raise ValueError(f"--scheduler {address}: no file {path}")
        if address.startswith("tls://"):
            security = Security(**given, require_encryption=True)  # what isn't given stands in Dask's own settings
            lacking = [option for name, option in TLS_OPTIONS.items() if getattr(security, name) is None]
            if lacking:
                raise ValueError(f"--scheduler {address} needs {', '.join(lacking)}")
            return security
        if given:
            raise ValueError(f"--scheduler {address} is unencrypted, and the TLS options need tls://HOST:PORT")
        if not self.trust and not _is_here(address):
            raise ValueError(
                f"--scheduler {address} is another machine's, and unencrypted: whoever reaches it runs code as you, "
                "and whoever listens reads the solutions. Use tls://HOST:PORT with --tls-ca-file, --tls-cert and "
                "--tls-key, or give --trust-network if you know everyone on that network"
            )
        return Security()


def cluster(address: str, network: Network) -> "Client":
    """A client of the Dask scheduler at an address, e.g. `tls://10.0.0.5:8786`; close it when done.

    Raises:
        ValueError: dask.distributed is not installed, the address is not to be trusted, or no scheduler answers.
    """
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise ValueError('--scheduler needs dask.distributed: pip install "distributed"') from None
    security = network.security(address)
    try:
        return Client(address, timeout=10, security=security)
    except (OSError, ValueError) as reason:
        raise ValueError(f"--scheduler {address}: no scheduler answers there ({reason})") from None


def _is_here(address: str) -> bool:
    """Whether an address is this machine's own, which no other reaches."""
    import ipaddress
    import socket
    from urllib.parse import urlsplit

    if address.startswith("inproc://"):
        return True
    try:
        host = urlsplit(address if "://" in address else f"tcp://{address}").hostname
        found = {ipaddress.ip_address(place[0].partition("%")[0]) for *_, place in socket.getaddrinfo(host, None)}
    except (OSError, ValueError):
        return False
    return all(each.is_loopback for each in found)


def on_cluster(jobs: list[Job], client: "Client") -> Progress:
    """Grade by the workers of a Dask cluster."""
    from distributed import as_completed

    futures = {
        client.submit(grade_on_cluster, job, pure=False, retries=TRIES - 1): index for index, job in enumerate(jobs)
    }
    for future in as_completed(futures):
        job = jobs[futures[future]]
        yield job, future.result() if future.status == "finished" else Failed(_words(future.exception()))


def grade_on_cluster(job: Job) -> Result:
    """The job as a cluster's worker does it: one at a time in its process, with a warm parent of its own for kernels.

    Raises:
        ValueError: this machine has no sealed sandbox, and the submissions are not to be trusted.
    """
    with _one_at_a_time:
        isolation = required_isolation(job.trust)
        _keep_warm(job, isolation)
        job = replace(job, isolation=isolation)
        try:
            return grade_submission(job)
        except (Disturbed, NoKernel):
            return grade_submission(_by_itself(job))


_one_at_a_time = threading.Lock()  # pytest works in one thread of a process at a time
_warm: threading.Thread | None = None


def _keep_warm(job: Job, isolation: str) -> None:
    """Start the warm parent, in a thread that stays: on Linux it dies with the thread that started it."""
    global _warm
    if _warm is not None:
        return
    started, errors = threading.Event(), []

    def hold() -> None:
        try:
            with workspace(), warm_kernels(job.assignment.imports, job.limits, isolation, job.trust):
                started.set()
                threading.Event().wait()
        except Exception as reason:
            errors.append(reason)
            started.set()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    started.wait()
    if errors:
        raise errors[0]
    _warm = thread


def _begin(parent: int, environment: dict[str, str]) -> None:
    """In a new process: take over the settings, leave Ctrl-C to the parent, and don't outlive it, however it dies."""
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while _alive(parent):
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _words(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"[:300]
