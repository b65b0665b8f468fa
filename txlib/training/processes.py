"""Where the processes of a run come from, and how they end: `torchrun` has started them, or a notebook does."""

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
from typing import Any

import torch
import torch.distributed as dist

from txlib.training.distributed import PROCESS_GROUP_TIMEOUT, DistributedContext

LOST = "another process of this run was killed, or ended without a word"
TOLD = "this run was told to end (SIGTERM), by you or since another of its processes was killed"
AGAIN = "start all of them again with resume (--resume), and the run goes on from its last checkpoint"


class ProcessLost(ConnectionError):
    """A process of the run is gone, and the others can't go on."""


@contextmanager
def process_group() -> Iterator[DistributedContext]:
    """Inside, processes that `torchrun` has started know of each other; any other process is alone.

    When one of them fails, all end, and one says why: an error leaves this block in one process only, and the others
    exit with status 1.

    Raises:
        ProcessLost: when another one was killed.
        ValueError: when there are more processes than GPUs here, or the port through which they meet is in use.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or dist.is_initialized():
        yield DistributedContext.current()
        return
    voice = ErrorReporter(meeting_point())
    with voice.heard():
        try:
            join(voice.store, torch.cuda.device_count())
            yield DistributedContext.current()
            dist.destroy_process_group()
        except Exception as error:
            if not voice.claimed():
                sys.exit(1)
            if isinstance(error, dist.DistError) or "gloo/transport" in str(error):
                raise ProcessLost(f"{LOST}; {AGAIN}") from None
            raise


def meeting_point() -> dist.Store:
    """Through which the processes find each other; torchrun's, which outlives them all, where that has started them.

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
            f"port {port}, where the processes are to meet, is in use; choose another MASTER_PORT, or let torchrun "
            "find one: torchrun --standalone"
        ) from None


def join(store: dist.Store, gpus: int) -> None:
    """Make the process group: CPU tensors travel by gloo, those of GPUs by NCCL.

    Raises:
        ValueError: when there are more processes here than GPUs.
    """
    rank, world, own, here = (
        int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    )
    if gpus and here > gpus:
        raise ValueError(
            f"{here} processes were started for {gpus} GPUs: torchrun --nproc-per-node {gpus}; or hide the GPUs from "
            "them: CUDA_VISIBLE_DEVICES="
        )
    if gpus:
        torch.cuda.set_device(own)
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=PROCESS_GROUP_TIMEOUT)


class ErrorReporter:
    """Which of the processes says why they end: the first that has something to say, and no other.

    Args:
        store: that all of them have.
    """

    def __init__(self, store: dist.Store):
        self.store, self.mine = store, False

    def claimed(self) -> bool:
        """Whether this process is the one, from now on."""
        own = f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
        try:
            self.mine = self.mine or self.store.compare_set("failed", "", own).decode() == own
        except dist.DistError:  # the store is gone with the process that had it
            self.mine = True
        if self.mine:
            sys.stderr = sys.__stderr__  # see __main__.py
        return self.mine

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Inside, SIGTERM, which torchrun sends to those that are left, ends the process even while it waits for
        another one inside of a library, where no exception can be raised; one of them says what happened. After an
        error the process ends anyhow.
        """
        if threading.current_thread() is not threading.main_thread() or os.name == "nt":
            yield
            return

        def listen() -> None:
            while byte := os.read(ours, 1):
                if byte[0] == signal.SIGTERM and not self.mine:  # else this process is about to say something better
                    if self.claimed():
                        print(f"txlib: {TOLD}; {AGAIN}", file=sys.stderr, flush=True)
                    os._exit(128 + signal.SIGTERM)

        ours, theirs = os.pipe()
        os.set_blocking(theirs, False)
        handler = signal.signal(signal.SIGTERM, lambda *_: None)
        wakeup = signal.set_wakeup_fd(theirs)
        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        yield
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGTERM, handler)
        os.close(theirs)
        listener.join()
        os.close(ours)


def run_ranks(function: Callable[..., Any], world: int, *arguments: Any) -> list[Any]:
    """What `function(rank, *arguments)` gives in each of `world` processes on this machine, in the order of ranks.

    The processes are joined as `torchrun` would, on the CPU, with one thread each, and the same random numbers, those
    that come next here. What they give back is pickled. The function may be a notebook's own.

    Raises:
        RuntimeError: when a rank fails or is killed; it says which and why, and the others are stopped.
    """
    if world < 1:
        raise ValueError(f"world={world} processes can't be started; start at least 1")
    # Forked processes start at once and know all that is here, but can't go on with a GPU's threads.
    fork = os.name == "posix" and not torch.cuda.is_initialized()
    context: Any = get_context("fork" if fork else "spawn")
    work: Any = (function, arguments)
    if not fork:
        import cloudpickle  # it takes along what is defined in a notebook

        work = cloudpickle.dumps(work)
    with tempfile.TemporaryDirectory() as folder:
        ends, processes = [], []
        for rank in range(world):
            ours, theirs = context.Pipe(duplex=False)
            task = (rank, world, f"file://{folder}/store", work, torch.get_rng_state(), theirs)
            processes.append(context.Process(target=_one_rank, args=task, daemon=True))
            ends.append(ours)
            processes[-1].start()
            theirs.close()
        try:
            return _results(ends, processes)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _one_rank(rank: int, world: int, store: str, work: Any, random: torch.Tensor, end: Connection) -> None:
    """What a process of `run_ranks` does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C stops the process that waits for this one
    torch.set_num_threads(1)
    torch.set_rng_state(random)
    try:
        function, arguments = pickle.loads(work) if isinstance(work, bytes) else work
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=PROCESS_GROUP_TIMEOUT)
        message = pickle.dumps((True, function(rank, *arguments)))
        dist.barrier()  # a process that leaves takes its connections with it
        dist.destroy_process_group()
    except BaseException as error:
        message = pickle.dumps((False, (f"{type(error).__name__}: {error}", traceback.format_exc())))
    end.send_bytes(message)


def _results(ends: list[Connection], processes: list[Any]) -> list[Any]:
    """What the processes send."""
    world, results, open_ends = len(ends), {}, dict(enumerate(ends))
    while open_ends:
        for rank in [rank for rank, end in open_ends.items() if end in wait(open_ends.values())]:
            try:
                good, result = pickle.loads(open_ends.pop(rank).recv_bytes())
            except EOFError:
                good, result = False, None
            if not good:
                time.sleep(0.2)  # others lose touch with a killed process before it can be seen to be dead
                for number, process in enumerate(processes):
                    process.join(0.1)
                    if process.exitcode:
                        raise RuntimeError(f"rank {number} of {world} {_how_it_ended(process.exitcode)}")
                why, trace = result
                error = RuntimeError(f"rank {rank} of {world}: {why}")
                error.add_note(trace)  # as it stands in that process
                raise error
            results[rank] = result
    return [results[rank] for rank in range(world)]


def _how_it_ended(status: int) -> str:
    """In words."""
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
