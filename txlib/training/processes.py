"""Starting and ending the processes of a run, which `torchrun` or a notebook starts."""

import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from txlib.training.distributed import PROCESS_GROUP_TIMEOUT, DistributedContext

LOST_MESSAGE = "another process of this run was killed, or ended without an error message"
TERMINATED_MESSAGE = "this run was asked to end (SIGTERM), by you or because another of its processes was killed"
RESUME_HINT = "start all processes again with resume (--resume), and the run continues from its last checkpoint"


class ProcessLost(ConnectionError):
    """Another process of the run has ended, and this one can't continue."""


@contextmanager
def process_group() -> Iterator[DistributedContext]:
    """Inside, processes that `torchrun` has started form torch's process group. Any other process is a single one.

    When one of them fails, all end, and one gives the reason: an error leaves this block in one process only, and the
    others exit with status 1.

    Raises:
        ProcessLost: when another process was killed.
        ValueError: when there are more processes than GPUs here, or the port of the rendezvous is in use.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield DistributedContext.current()
        return
    reporter = ErrorReporter(rendezvous_store())
    with reporter.handling_sigterm():
        try:
            init_process_group(reporter.store, torch.cuda.device_count())
            yield DistributedContext.current()
            dist.destroy_process_group()
        except Exception as error:
            if not reporter.claim():
                sys.exit(1)
            if isinstance(error, dist.DistError) or "gloo/transport" in str(error):
                raise ProcessLost(f"{LOST_MESSAGE}; {RESUME_HINT}") from None
            raise


def rendezvous_store() -> dist.Store:
    """Return the store through which the processes find each other; torchrun's outlives all of them.

    Raises:
        ValueError: when its port is in use.
    """
    try:
        return next(dist.rendezvous("env://", timeout=PROCESS_GROUP_TIMEOUT))[0]
    except dist.DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        port = os.environ["MASTER_PORT"]
        raise ValueError(
            f"port {port}, at which the processes meet, is in use; choose another MASTER_PORT, or let torchrun "
            "find one: torchrun --standalone"
        ) from None


def init_process_group(store: dist.Store, gpus: int) -> None:
    """Initialize torch's process group: gloo for tensors on the CPU, NCCL for those on GPUs.

    Raises:
        ValueError: when there are more processes on this machine than GPUs.
    """
    rank, world_size, local_rank, local_world_size = (
        int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    )
    if gpus and local_world_size > gpus:
        raise ValueError(
            f"{local_world_size} processes were started for {gpus} GPUs: torchrun --nproc-per-node {gpus}; or hide the "
            "GPUs from them: CUDA_VISIBLE_DEVICES="
        )
    if gpus:
        torch.cuda.set_device(local_rank)
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=PROCESS_GROUP_TIMEOUT)


class ErrorReporter:
    """Lets one of the processes report why they end: the first that has an error.

    Args:
        store: shared by all processes.
    """

    def __init__(self, store: dist.Store):
        self.store, self.claimed = store, False

    def claim(self) -> bool:
        """Claim the report for this process, and return whether it has it."""
        name = f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
        try:
            self.claimed = self.claimed or self.store.compare_set("failed", "", name).decode() == name
        except dist.DistError:  # the process that held the store has ended
            self.claimed = True
        if self.claimed:
            sys.stderr = sys.__stderr__  # see __main__.py
        return self.claimed

    @contextmanager
    def handling_sigterm(self) -> Iterator[None]:
        """Inside, SIGTERM, which torchrun sends to the remaining processes, ends the process even while it waits for
        another one inside a library, where no exception can be raised. One of the processes reports what happened.
        """
        if threading.current_thread() is not threading.main_thread() or os.name == "nt":
            yield
            return

        def listen() -> None:
            while byte := os.read(reader, 1):
                if byte[0] == signal.SIGTERM and not self.claimed:  # else this process is about to report its error
                    if self.claim():
                        print(f"txlib: {TERMINATED_MESSAGE}; {RESUME_HINT}", file=sys.stderr, flush=True)
                    os._exit(128 + signal.SIGTERM)

        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        handler = signal.signal(signal.SIGTERM, lambda *_: None)
        wakeup = signal.set_wakeup_fd(writer)
        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        yield
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGTERM, handler)
        os.close(writer)
        listener.join()
        os.close(reader)


def run_ranks(function: Callable[..., Any], world_size: int, *arguments: Any) -> list[Any]:
    """Return the results of `function(rank, *arguments)` in several processes on this machine, in the order of ranks.

    The processes form a process group on the CPU, as under `torchrun`. Each has one thread, and starts with this
    process's random state. Results are pickled. The function may be defined in a notebook.

    Raises:
        RuntimeError: when a rank fails or is killed, with the rank and the reason; the others are stopped.
    """
    if world_size < 1:
        raise ValueError(f"world_size={world_size} processes can't be started; start at least 1")
    # Forked processes start fast and have everything in memory, but where there is a GPU, autograd has threads for it
    # from the first backward pass on, which no fork survives.
    fork = os.name == "posix" and not torch.accelerator.is_available()
    context: Any = get_context("fork" if fork else "spawn")
    work: Any = (function, arguments)
    if not fork:
        import cloudpickle  # it also pickles what a notebook defines

        work = cloudpickle.dumps(work)
    with tempfile.TemporaryDirectory() as folder:
        receivers, processes = [], []
        for rank in range(world_size):
            receiver, sender = context.Pipe(duplex=False)
            task = (rank, world_size, f"file://{folder}/store", work, torch.get_rng_state(), sender)
            processes.append(context.Process(target=_run_rank, args=task, daemon=True))
            receivers.append(receiver)
            processes[-1].start()
            sender.close()
        try:
            return _results(receivers, processes)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _run_rank(rank: int, world_size: int, store: str, work: Any, rng_state: torch.Tensor, sender: Connection) -> None:
    """Run the function of `run_ranks` in one of its processes, and send the result or the error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C stops the process that waits for this one
    torch.set_num_threads(1)
    torch.set_rng_state(rng_state)
    try:
        function, arguments = pickle.loads(work) if isinstance(work, bytes) else work
        dist.init_process_group(
            "gloo", init_method=store, rank=rank, world_size=world_size, timeout=PROCESS_GROUP_TIMEOUT
        )
        message = pickle.dumps((True, function(rank, *arguments)))
        dist.barrier()  # a process that ends closes its connections
        dist.destroy_process_group()
    except BaseException as error:
        message = pickle.dumps((False, (f"{type(error).__name__}: {error}", traceback.format_exc())))
    sender.send_bytes(message)


def _results(receivers: list[Connection], processes: list[Any]) -> list[Any]:
    """Return what the processes send.

    Raises:
        RuntimeError: when one of them failed or was killed.
    """
    results, waiting = {}, dict(enumerate(receivers))
    while waiting:
        for rank in [rank for rank, receiver in waiting.items() if receiver in wait(waiting.values())]:
            try:
                succeeded, result = pickle.loads(waiting.pop(rank).recv_bytes())
            except EOFError:
                succeeded, result = False, None
            if not succeeded:
                _raise_failure(rank, result, processes)
            results[rank] = result
    return [results[rank] for rank in range(len(receivers))]


def _raise_failure(rank: int, failure: tuple[str, str] | None, processes: list[Any]) -> NoReturn:
    """Raise the error of a rank, or that of a killed one, which may have caused it.

    Raises:
        RuntimeError: always.
    """
    time.sleep(0.2)  # other ranks lose their connection to a killed process before its end can be seen
    for number, process in enumerate(processes):
        process.join(0.1)
        if process.exitcode:
            raise RuntimeError(f"rank {number} of {len(processes)} {_ending(process.exitcode)}")
    assert failure is not None
    reason, trace = failure
    error = RuntimeError(f"rank {rank} of {len(processes)}: {reason}")
    error.add_note(trace)  # of that process
    raise error


def _ending(status: int) -> str:
    """Return how a process with an exit status ended, in words."""
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
