"""Starts the outer sandbox with the zygote in it, and requests kernels from it."""

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

from txgrade.sandbox import filter, groups, leftovers, proc, view
from txgrade.sandbox.limits import Limits

START_SECONDS = 60  # to import torch on a slow disk


class SandboxError(ValueError):
    """The sandbox could not be made. The message says what to do."""


class Zygote:
    """A zygote for sealed kernels. Dies with the process that made it, and all kernels with it.

    Make it in a thread that stays: Linux counts a thread's end as the parent's death.

    Raises:
        SandboxError: bubblewrap is missing, or namespaces are refused, as Ubuntu 24.04 may.
    """

    def __init__(self, modules: Iterable[str] = (), data: Mapping[str, Path] | None = None):
        self.modules = list(modules)
        self.data = dict(data or {})  # an assignment's, by its path as seen from where a kernel starts
        self.folder = Path()
        self._groups: list[Path] = []
        self._process: subprocess.Popen | None = None

    @property
    def address(self) -> Path:
        """Return the socket on which kernels are requested: what `$TXGRADE_ZYGOTE` is set to."""
        return self.folder / "control"

    def __enter__(self) -> "Zygote":
        self.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        leftovers.sweep()
        program = shutil.which("bwrap")
        if program is None:
            raise SandboxError("bubblewrap is not installed: apt install bubblewrap, or dnf install bubblewrap")
        try:
            filter.check()
        except OSError as reason:
            raise SandboxError(reason.strerror) from reason
        self.folder = leftovers.make_folder("/tmp")  # short: a socket's path has 107 characters
        (self.folder / "groups").mkdir()
        self._groups = groups.make_groups()
        for number in range(len(self._groups)):
            (self.folder / "groups" / str(number)).mkdir()
        (self.folder / "data").mkdir()
        for number, path in enumerate(self.data.values()):
            target = self.folder / "data" / str(number)
            target.mkdir() if path.is_dir() else target.touch()
        (self.folder / "passwd").write_text(view.PASSWD)
        proc.prepare(self.folder / "proc")
        log = open(self.folder / "log", "w+")  # noqa: SIM115, the process keeps it
        with log:
            self._process = subprocess.Popen([program, *self._command()], stdin=subprocess.PIPE, stdout=log, stderr=log)
        began = time.monotonic()
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() - began > START_SECONDS:
                last_words = (self.folder / "log").read_text(errors="replace").strip()[-300:]
                self.stop()
                raise SandboxError(f"bubblewrap can't make a sandbox here: {last_words or 'it took too long'}")
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process = None
        for group in self._groups:
            groups.remove_group(group)
        self._groups = []
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.address))
            return True
        return False

    def _command(self) -> list[str]:
        root = os.getuid() == 0
        binds = view.binds()
        settings = {
            "root": root,
            "modules": self.modules,
            "data_paths": list(self.data),
            "tmp_holds_binds": any(path.is_relative_to("/tmp") for path in binds),
        }
        return [
            *view.arguments(self.folder, self._groups, list(self.data.values()), binds, root),
            sys.executable,
            "-m",
            "txgrade.sandbox.zygote_process",
            json.dumps(settings),
        ]


def cpu_seconds(address: Path | str, name: str) -> float | None:
    """Return the processor time that a kernel and all that it started have used; None if it has ended.

    Its last message (`{"ended": …, "cpu": …}` on its lease) says what it used in all.
    """
    with Lease.ask(address, {"cpu": name}) as lease:
        return (lease.read(START_SECONDS) or {}).get("cpu")


def waited_seconds(address: Path | str, name: str) -> float:
    """Return the most seconds that a thread of a kernel waited for a processor; 0 if the kernel has ended."""
    with Lease.ask(address, {"cpu": name}) as lease:
        return (lease.read(START_SECONDS) or {}).get("waited") or 0.0


class Lease:
    """A connection to a zygote. As long as it is open, the kernel may live."""

    def __init__(self, client: socket.socket):
        self._client, self._received = client, b""

    @classmethod
    def ask(cls, address: Path | str, request: dict, pipes: tuple[int, ...] = ()) -> "Lease":
        """Send one request, and the pipes that go with it.

        Raises:
            SandboxError: nobody answers at that address.
        """
        client = socket.socket(socket.AF_UNIX)
        try:
            client.connect(str(address))
            socket.send_fds(client, [json.dumps(request).encode() + b"\n"], pipes)
        except OSError as reason:
            client.close()
            raise SandboxError(f"no zygote answers at {address}: {reason}") from reason
        return cls(client)

    def read(self, timeout: int | float) -> dict | None:
        """Return the next message, or None if none comes in so many seconds."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._received:
            ready, _, _ = select.select([self._client], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                return None
            data = self._client.recv(1 << 16)
            if not data:
                return {"ended": "the zygote is gone"}
            self._received += data
        line, self._received = self._received.split(b"\n", 1)
        return json.loads(line)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def start_kernel(address: Path | str, kind: str, name: str, limits: Limits, pipes: tuple[int, int]) -> Lease:
    """Ask for a kernel of two pipes ("cells"), or for a probe with two files: one to read, one to write.

    Raises:
        SandboxError: it could not be made.
    """
    lease = Lease.ask(address, {kind: name, "limits": limits.to_json()}, pipes)
    answer = lease.read(START_SECONDS)
    if not answer or "started" not in answer:
        lease.close()
        raise SandboxError(f"no sealed kernel: {answer['ended'] if answer else 'the zygote does not answer'}")
    return lease
