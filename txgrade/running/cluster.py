"""Grades on other machines: the workers of a Dask cluster.

It yields what `pool.on_this_machine` does, but not when a job begins. Ending a worker that hangs is up to the cluster.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txgrade.judging.job import Job, Preempted, grade_submission
from txgrade.records.result import Result
from txgrade.running.pool import Failed, Progress, in_words
from txgrade.running.workspace import workspace
from txgrade.sandbox.kernel import NoKernel
from txgrade.sandbox.warm import required_isolation, warm_kernels

if TYPE_CHECKING:
    from distributed import Client
    from distributed.security import Security

QUEUED_PER_WORKER, MIN_QUEUED = 3, 16  # jobs that the scheduler holds
TLS_OPTIONS = {"tls_ca_file": "--tls-ca-file", "tls_client_cert": "--tls-cert", "tls_client_key": "--tls-key"}


@dataclass(frozen=True)
class Network:
    """How a scheduler is reached: by TLS with these files, or unencrypted on a network that is trusted."""

    tls_ca_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    trust: bool = False

    def security(self, address: str) -> "Security":
        """Return what a client of this address needs.

        Raises:
            ValueError: a file is missing, or the address is another machine's and unencrypted.
        """
        from distributed.security import Security

        files = {"tls_ca_file": self.tls_ca_file, "tls_client_cert": self.tls_cert, "tls_client_key": self.tls_key}
        options = {name: str(path) for name, path in files.items() if path is not None}
        for path in options.values():
            if not Path(path).is_file():
                raise ValueError(f"--scheduler {address}: no file {path}")
        if address.startswith("tls://"):
            security = Security(**options, require_encryption=True)  # Dask's own settings may name the others
            missing = [option for name, option in TLS_OPTIONS.items() if getattr(security, name) is None]
            if missing:
                raise ValueError(f"--scheduler {address} needs {', '.join(missing)}")
            return security
        if options:
            raise ValueError(f"--scheduler {address} is unencrypted, and the TLS options need tls://HOST:PORT")
        if not self.trust and not _is_here(address):
            raise ValueError(
                f"--scheduler {address} is on another machine and unencrypted: anybody who reaches it runs code as "
                "you, and anybody who listens reads the solutions. Use tls://HOST:PORT with --tls-ca-file, --tls-cert "
                "and --tls-key, or give --trust-network if you know everyone on that network"
            )
        return Security()


def cluster(address: str, network: Network) -> "Client":
    """Return a client of the Dask scheduler at an address, e.g. `tls://10.0.0.5:8786`; close it when done.

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
    """Return whether an address is this machine's own, which no other machine reaches."""
    import ipaddress
    import socket
    from urllib.parse import urlsplit

    if address.startswith("inproc://"):
        return True
    try:
        host = urlsplit(address if "://" in address else f"tcp://{address}").hostname
        addresses = [str(info[0]).partition("%")[0] for *_, info in socket.getaddrinfo(host, None)]
        return all(ipaddress.ip_address(one).is_loopback for one in addresses)
    except (OSError, ValueError):
        return False


def on_cluster(jobs: list[Job], client: "Client") -> Progress:
    """Grade with the workers of a Dask cluster.

    A job whose worker is lost goes to another one. If that happens again and again, or a worker failed on it, it is
    retried by itself when all others are done, as on this machine.
    """
    retries: list[tuple[int, Job]] = []
    for index, result in _by_workers(list(enumerate(jobs)), client):
        if isinstance(result, Failed):
            retries.append((index, replace(jobs[index], by_itself=True)))
        else:
            yield jobs[index], result
    for retry in retries:
        for index, result in _by_workers([retry], client):
            yield jobs[index], result


def _by_workers(jobs: list[tuple[int, Job]], client: "Client") -> Iterator[tuple[int, Result | Failed]]:
    """Grade the list; the scheduler holds only enough jobs, each with its reference, to keep all workers busy."""
    from distributed import as_completed

    waiting = iter(jobs)
    running: dict[Any, int] = {}

    def submit(count: int) -> list:
        new = {client.submit(grade_on_cluster, job, pure=False): index for index, job in islice(waiting, count)}
        running.update(new)
        return list(new)

    completed = as_completed(submit(MIN_QUEUED))
    for future in completed:
        yield (
            running.pop(future),
            future.result() if future.status == "finished" else Failed(in_words(future.exception())),
        )
        completed.update(submit(max(MIN_QUEUED, QUEUED_PER_WORKER * len(client.nthreads())) - len(running)))


def grade_on_cluster(job: Job) -> Result:
    """Grade one submission as a cluster's worker does: one at a time in its process, with its own zygote.

    Raises:
        ValueError: this machine has no sealed sandbox, and the submissions are not to be trusted.
    """
    with _one_at_a_time:
        isolation = required_isolation(job.trust)
        _keep_warm(job, isolation)
        job = replace(job, isolation=isolation)
        try:
            return grade_submission(job)
        except (Preempted, NoKernel):
            return grade_submission(replace(job, by_itself=True))


_one_at_a_time = threading.Lock()  # pytest works in one thread of a process at a time
_warm: tuple[threading.Thread, tuple] | None = None  # and the data of the assignment that it serves


def _keep_warm(job: Job, isolation: str) -> None:
    """Start the zygote in a thread that stays, since on Linux it dies with the thread that started it."""
    global _warm
    assignment = job.assignment
    if _warm is not None:
        if _warm[1] != assignment.data:
            raise ValueError("this worker serves an assignment with other data: start a new one")
        return
    settings = (assignment.imports, job.limits, isolation, job.trust, (), dict(assignment.data))
    started, errors = threading.Event(), []

    def hold() -> None:
        try:
            with workspace(), warm_kernels(*settings):
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
    _warm = thread, assignment.data
