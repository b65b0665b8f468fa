"""Processes that work together: those that a notebook starts, and how any of them fail."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

from txlib.training.processes import run_ranks


def summed(rank: int, more: int):
    """The sum over the ranks, by an all-reduce, and a random number."""
    number = torch.tensor([float(rank + more)], requires_grad=True)
    (number * number).sum().backward()
    dist.all_reduce(number.grad)
    return number.grad.item(), torch.rand(1).item()


@pytest.mark.parametrize("forked", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_function_runs_in_several_processes(forked, monkeypatch):
    if not forked:
        pytest.importorskip("cloudpickle")
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    here = os.getpid()
    torch.manual_seed(3)
    before = torch.get_rng_state()

    def of_a_notebook(rank, more):
        assert os.getpid() != here and torch.get_num_threads() == 1 and dist.get_world_size() == 3
        return rank, summed(rank, more)

    found = run_ranks(of_a_notebook, 3, 10)
    assert torch.equal(torch.get_rng_state(), before)
    assert found == [(rank, (2 * (10 + 11 + 12), torch.rand(1, generator=seeded(3)).item())) for rank in range(3)]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_one_process_needs_no_other():
    assert run_ranks(summed, 1, 5)[0][0] == 10
    with pytest.raises(ValueError, match="world_size=0 processes can't be started; start at least 1"):
        run_ranks(summed, 0)


def fails(rank: int, how: str):
    """Rank 1 comes to an end; the others wait for it."""
    if rank == 1 and how == "raise":
        raise ValueError("no such corpus")
    if rank == 1 and how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1 and how == "exit":
        os._exit(7)
    dist.barrier()


@pytest.mark.parametrize(
    "how, words",
    [
        ("raise", r"^rank 1 of 3: ValueError: no such corpus\b"),
        ("kill", "^rank 1 of 3 was killed by SIGKILL$"),
        ("exit", "^rank 1 of 3 ended with status 7$"),
    ],
)
def test_one_that_fails_is_named_and_stops_the_others(how, words):
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=words) as failed:
        run_ranks(fails, 3, how)
    assert time.monotonic() - started < 60  # not the two hours that ranks wait for each other
    assert how != "raise" or "in fails" in failed.value.__notes__[0]


def started(*command: str, port: int, world: int = 2, starting: int = 2) -> list[subprocess.Popen]:
    """The command in the first of several processes, as `torchrun` would start them."""
    names = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    every = os.environ | {name: str(value) for name, value in names.items()}
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env=every | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(starting)
    ]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options, words",
    [
        (["--resume"], "holds no run to resume; start one without resume"),
        (["--parallel", "zero"], "parallel='zero' is unknown; choose 'ddp' or 'fsdp' or 'tp'"),
        (["--minute", "3"], "No such option: --minute"),
    ],
)
def test_what_all_of_them_find_wrong_is_said_once(options, words, tmp_path):
    command = ["-m", "txlib", "train", "shakespeare", "--steps", "1", "--out", str(tmp_path / "out"), *options]
    processes = started(*command, port=free_port())
    said = [process.communicate(timeout=300)[1] for process in processes]
    assert all(process.returncode for process in processes)
    assert "".join(said).count(words) == 1 and "Traceback" not in "".join(said), said
    assert not (tmp_path / "out").exists()


JOINS = "from txlib.training.processes import *\nwith process_group() as context: print(context)"


@pytest.mark.slow
def test_a_port_in_use_is_said():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        [process] = started("-c", JOINS, port=port, starting=1)
        said = process.communicate(timeout=300)[1]
    assert f"ValueError: port {port}, at which the processes meet, is in use; choose another MASTER_PORT" in said


@pytest.mark.slow
def test_more_processes_than_gpus_are_refused_once():
    fewer = f"import torch\ntorch.cuda.device_count = lambda: 1\n{JOINS}"
    processes = started("-c", fewer, port=free_port())
    said = "".join(process.communicate(timeout=300)[1] for process in processes)
    assert said.count("ValueError: 2 processes were started for 1 GPUs: torchrun --nproc-per-node 1") == 1, said


@pytest.mark.slow
def test_a_process_that_is_told_to_end_while_it_waits_ends():
    joins = JOINS.replace("context)", "context, flush=True)")
    waits = f"{joins}; context.barrier() if context.is_main else time.sleep(600)"
    first, second = started("-c", waits, port=free_port())
    try:
        assert first.stdout.readline() == "DistributedContext(rank=0, world_size=2)\n"
        time.sleep(0.5)  # now it waits
        first.terminate()
        said = first.communicate(timeout=100)[1]
        assert first.returncode == 128 + signal.SIGTERM and said.startswith("txlib: this run was asked to end"), said
    finally:
        second.kill()
