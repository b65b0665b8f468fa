"""Forks a kernel off the zygote in three steps: a child that makes the namespaces and waits; the first process in
them, which reaps what dies there; and from that, without any rights, the kernel.
"""

import contextlib
import fcntl
import os
import socket
import sys
from pathlib import Path
from typing import NamedTuple

from txgrade.sandbox import filter, groups, jail, proc
from txgrade.sandbox.limits import Limits


class Forked(NamedTuple):
    """The child that waits for a kernel, and the first process of its namespace, by the zygote's numbers."""

    waiter: int
    init: int
    grouped: bool  # whether they are in the control group


class Plan(NamedTuple):
    """The kind of kernel to fork, and its settings."""

    kind: str  # "cells" or "probe"
    root: bool  # whether the zygote is root's
    uid: int  # whose the kernel will be
    limits: Limits
    group: groups.Group | None
    pipes: list[int]  # two: its requests and its messages
    tmp_holds_binds: bool
    data_paths: list[str]  # of the assignment's data, as its cells name them


def fork(plan: Plan) -> Forked:
    """Fork a kernel.

    Raises:
        OSError: the system refused it something.
    """
    reading, writing = os.pipe()
    waiter = os.fork()
    if waiter == 0:
        os.close(reading)
        _wait_outside(plan, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        report = pipe.readline()
    if not report.startswith("pid "):
        os.waitpid(waiter, 0)
        raise OSError(report.strip() or "the child died")
    _, init, bound = report.split()
    return Forked(waiter, int(init), bound == "grouped")


def _wait_outside(plan: Plan, writing: int) -> None:
    """Make the namespaces in the first child, start their first process, wait for it. Never return."""
    status = 1
    try:
        jail.die_with_parent()
        bound = "watched"
        if plan.group is not None:
            with contextlib.suppress(OSError):
                plan.group.join()
                bound = "grouped"
        jail.unshare(plan.root)
        jail.make_mounts(plan.uid, plan.limits, plan.tmp_holds_binds, plan.data_paths)
        init = os.fork()
        if init == 0:
            os.close(writing)
            _first_process(plan)
        os.write(writing, f"pid {init} {bound}\n".encode())
        for descriptor in (writing, *plan.pipes):
            os.close(descriptor)
        status = _wait_for(init)
    except BaseException as reason:
        with contextlib.suppress(OSError):
            os.write(writing, f"{reason}\n".encode())
    finally:
        os._exit(status)


def _first_process(plan: Plan) -> None:
    """Be process 1 of the new namespace: start the kernel, reap what it leaves behind. Never return."""
    status = 1
    try:
        jail.die_with_parent()
        pipes = _close_everything_but(plan.pipes)
        stand_in = os.open("/proc", os.O_PATH)
        jail.mount("proc", "/proc", "proc", jail.MS_NOSUID | jail.MS_NODEV | jail.MS_NOEXEC)
        os.setsid()
        jail.leave_keyring()
        with contextlib.suppress(OSError):  # where the machine runs out of memory, this goes first
            Path("/proc/self/oom_score_adj").write_text("1000")
        ours, theirs = socket.socketpair()
        kernel = os.fork()
        if kernel == 0:
            ours.close()
            os.close(stand_in)
            jail.give_up_rights(plan.root, plan.uid)
            os.chdir(jail.start_folder(plan.data_paths))
            _reseed()
            jail.set_limits(plan.limits)
            filter.install(jail.libc)
            _run(plan.kind, theirs, pipes)
        for descriptor in (theirs.detach(), *pipes):
            os.close(descriptor)
        if ours.recv(1):  # it has all that it needs of the machine, and has run nothing yet
            proc.uncover(stand_in)
            ours.send(b"!")
        os.close(stand_in)
        status = _wait_for(kernel)
    finally:
        os._exit(status)


def _run(kind: str, supervisor: socket.socket, pipes: list[int]) -> None:
    """Become a kernel. Never return."""
    status = 1
    try:
        if kind == "probe":
            from txgrade.sandbox.probe_inside import serve
        else:
            from txgrade.sandbox.cells import serve
        supervisor.send(b"!")
        if supervisor.recv(1):
            supervisor.close()
            serve(*pipes)
        status = 0
    except SystemExit as reason:
        status = reason.code if isinstance(reason.code, int) else 0
    finally:
        os._exit(status)


def _close_everything_but(pipes: list[int]) -> list[int]:
    """Close every file, socket and terminal of the zygote, such as its log and other kernels' leases."""
    nothing = os.open(os.devnull, os.O_RDWR)
    copies = [fcntl.fcntl(pipe, fcntl.F_DUPFD, 100) for pipe in pipes]
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    free = 3
    for number in (*sorted(copies), os.sysconf("SC_OPEN_MAX")):
        os.closerange(free, number)
        free = number + 1
    return copies


def _reseed() -> None:
    """Seed anew, since children must not share their parent's random numbers, and use one thread."""
    import random

    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
        sys.modules["torch"].seed()


def _wait_for(process: int) -> int:
    """Wait for this child and for orphans that we inherit meanwhile. Return its exit status as a shell would."""
    while True:
        ended, status = os.wait()
        if ended == process:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
