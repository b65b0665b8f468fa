"""The zygote inside the outer sandbox: it imports what kernels need once, then forks a child for each of them.

It never computes: after an operation with two threads a fork would hang. Its clients, the grader's processes, talk to
it over a socket, one JSON line each way:

    {"cells": "ab12", "limits": "{…}"}  ->  {"started": true}, later {"ended": "the limit of 300 s", "cpu": 1.23}; with
                                            the request come two pipes for a kernel of `cells.py`
    {"probe": "ab12", "limits": "{…}"}  ->  the same, with two files for `probe_inside.py`, which runs instead
    {"cpu": "ab12"}                     ->  {"cpu": 1.23, "waited": 0.4}, seconds of processor time that it has used,
                                            and that one thread has waited for at most; None where it has ended

The connection is a lease: where it closes, the kernel is killed with everything that it started.
"""

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from txgrade.sandbox import filter, groups, jail, watching
from txgrade.sandbox.fork import Plan, fork
from txgrade.sandbox.limits import Limits

POLL_SECONDS = 0.1  # between two looks at the kernels' memory
# What every kernel imports until its first cell has run, and to show a first error.
KERNEL = (
    "txgrade.sandbox.cells",
    "IPython.core.completerlib",
    "IPython.core.crashhandler",
    "IPython.core.logger",
    "IPython.core.magics",
    "IPython.core.oinspect",
    "executing.executing",
    "numpy.random",
    "pexpect",
    "pygments.formatters.html",
    "pygments.formatters.terminal256",
    "pygments.lexers.python",
    "pygments.styles.default",
    "stack_data",
)
GRACE_SECONDS = 5  # that a notebook may run over, since the client has its own clock


@dataclass
class Kernel:
    """One child: the process that waits for it, and the first process inside its namespace, by our numbers."""

    name: str
    waiter: int
    init: int
    limits: Limits
    lease: socket.socket
    watched: watching.Watched
    group: groups.Group | None
    deadline: float
    reason: str = ""

    def cpu_seconds(self) -> float:
        counted = self.group.cpu_seconds() if self.group is not None else None
        return self.watched.cpu_seconds() if counted is None else counted

    def excess(self) -> str:
        """Return the limit that it has exceeded, in words; the system's own limits don't see all of it."""
        limits, group = self.limits, self.group
        if group is None or not group.does_everything:
            self.watched.look()
        if group is None or not group.shares_processor:
            self.watched.give_way()
        if group is not None and group.bounds_memory:
            too_much = group.overrun()
        else:
            too_much = self.watched.taken(limits.memory_mb * 2**20) > limits.memory_mb * 2**20
        if too_much:
            return f"the memory limit of {limits.memory_mb} MB"
        if self.cpu_seconds() > limits.cpu_seconds:
            return f"the limit of {limits.cpu_seconds:g} s of processor time"
        return f"the limit of {limits.notebook_seconds:g} s" if time.monotonic() > self.deadline else ""


class ZygoteProcess:
    """The loop that serves requests, watches kernels, and reaps them."""

    def __init__(self, root: bool, tmp_holds_binds: bool, data_paths: list[str]):
        self.root, self.tmp_holds_binds, self.data_paths = root, tmp_holds_binds, data_paths
        self.kernels: dict[int, Kernel] = {}  # by waiter
        self.groups = sorted(Path(jail.RUN, "groups").iterdir())
        self.next_uid = jail.FIRST_UID + int.from_bytes(os.urandom(3), "big")
        self.selector = selectors.DefaultSelector()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(f"{jail.RUN}/control")
        self.listener.listen(64)
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(sys.stdin, selectors.EVENT_READ)  # which the grader holds, and never writes to

    def serve(self) -> None:
        while True:
            for key, _ in self.selector.select(POLL_SECONDS if self.kernels else 1):
                if key.fileobj is self.listener:
                    client, _ = self.listener.accept()
                    self.selector.register(client, selectors.EVENT_READ, bytearray())
                elif key.fileobj is sys.stdin:  # the grader is gone, and was before it could be said to die with it
                    os._exit(1)
                elif isinstance(key.fileobj, socket.socket):
                    self._read(key.fileobj, key.data)
            self._reap()
            for kernel in self.kernels.values():
                if reason := kernel.excess():
                    self._kill(kernel, reason)

    def _read(self, client: socket.socket, received: bytearray) -> None:
        try:
            data, pipes, _, _ = socket.recv_fds(client, 1 << 16, 2)
        except OSError:
            data, pipes = b"", []
        if not data:
            self._end_lease(client)
            return
        received += data
        if received.endswith(b"\n"):
            line = bytes(received)
            received.clear()
            try:
                self._answer(client, json.loads(line), pipes)
            except (LookupError, OSError, TypeError, ValueError) as reason:  # one client's mistake hurts no other
                _send(client, {"ended": f"the zygote could not do it: {reason}"})
        for pipe in pipes:
            os.close(pipe)

    def _answer(self, client: socket.socket, request: dict, pipes: list[int]) -> None:
        if "cpu" in request:
            kernel = next((kernel for kernel in self.kernels.values() if kernel.name == request["cpu"]), None)
            _send(client, {"cpu": kernel and kernel.cpu_seconds(), "waited": kernel and kernel.watched.waited()})
            return
        limits = Limits.from_json(request["limits"])
        try:
            kernel = self._fork(client, request, limits, pipes)
        except OSError as reason:
            _send(client, {"ended": f"no namespace of its own could be made: {reason}"})
            return
        self.kernels[kernel.waiter] = kernel
        groups.weigh(self.groups, len(self.kernels))
        _send(client, {"started": True})

    def _fork(self, client: socket.socket, request: dict, limits: Limits, pipes: list[int]) -> Kernel:
        kind = "probe" if "probe" in request else "cells"
        name = request[kind]
        if len(pipes) != 2:
            raise ValueError(f"{len(pipes)} pipes or files came with it, not 2")
        uid = os.getuid()
        if self.root:
            self.next_uid += 1
            uid = self.next_uid
        group = None
        with contextlib.suppress(OSError):
            group = groups.Group(self.groups, name, limits) if self.groups else None
        forked = fork(Plan(kind, self.root, uid, limits, group, pipes, self.tmp_holds_binds, self.data_paths))
        if group is not None and not forked.grouped:
            group.remove()
            group = None
        watched = watching.Watched(watching.process_namespace(forked.init))
        deadline = time.monotonic() + limits.notebook_seconds + GRACE_SECONDS
        return Kernel(name, forked.waiter, forked.init, limits, client, watched, group, deadline)

    def _kill(self, kernel: Kernel, reason: str) -> None:
        kernel.reason = kernel.reason or reason
        with contextlib.suppress(ProcessLookupError):
            os.kill(kernel.init, signal.SIGKILL)  # with it everything in its namespace

    def _reap(self) -> None:
        while self.kernels:
            try:
                waiter, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not waiter:
                return
            if kernel := self.kernels.pop(waiter, None):
                used = kernel.cpu_seconds()
                if kernel.group is not None:
                    if kernel.group.overrun():
                        kernel.reason = f"the memory limit of {kernel.limits.memory_mb} MB"
                    kernel.group.remove()
                    groups.weigh(self.groups, len(self.kernels))
                reason = kernel.reason or _words(os.waitstatus_to_exitcode(status))
                _send(kernel.lease, {"ended": reason, "cpu": round(used, 3)})

    def _end_lease(self, client: socket.socket) -> None:
        self.selector.unregister(client)
        for kernel in self.kernels.values():
            if kernel.lease is client:
                self._kill(kernel, "its client left")
        client.close()


def _preload(modules: list[str]) -> None:
    """Import all modules that can be imported, for the children to have.

    `module:name` is `from module import name`, since packages may load their parts only on request.
    """
    for imported in modules:
        module, _, name = imported.partition(":")
        with contextlib.suppress(Exception):  # it will fail in the notebook, which shows the error
            getattr(importlib.import_module(module), name or "__name__")
    gc.collect()
    gc.freeze()  # a child's collector would write to all that it looks at, and so copy it


def _words(code: int) -> str:
    """Return how a kernel ended by itself."""
    if code - 128 in (signal.SIGXCPU, signal.SIGKILL):
        return "the limit on processor time, or a signal"
    return f"it ended itself (exit status {code})"


def _send(client: socket.socket, message: dict) -> None:
    with contextlib.suppress(OSError):
        client.sendall(json.dumps(message).encode() + b"\n")


def main(arguments: list[str]) -> None:
    jail.die_with_parent()
    jail.leave_keyring()
    filter.compiled()  # once, for all kernels
    settings = json.loads(arguments[0])
    _preload([*KERNEL, *settings["modules"]])
    ZygoteProcess(settings["root"], settings["tmp_holds_binds"], settings["data_paths"]).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
