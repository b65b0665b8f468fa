"""Starts the outer sandbox with the warm parent in it, and asks it for kernels."""

import contextlib
import json
import os
import select
import shutil
import site
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from txlib.grading.sandbox import enclosure, filter, memory, proc
from txlib.grading.sandbox.limits import Limits

PACKAGE = Path(__file__).resolve().parents[2]
START = 60  # seconds to import torch on a slow disk
CAPABILITIES = ("SYS_ADMIN", "SETUID", "SETGID", "SETPCAP", "CHOWN", "DAC_OVERRIDE", "KILL", "SYS_PTRACE")
PASSWD = "root:x:0:0:root:/:/bin/false\n" + (
    f"learner:x:{os.getuid()}:{os.getgid()}:learner:{enclosure.HOME}:/bin/false\n" if os.getuid() else ""
)


class SandboxError(ValueError):
    """The sandbox could not be made. The message says what to do."""


class Nursery:
    """A warm parent for sealed kernels. Dies with the process that made it, and all kernels with it.

    Make it in a thread that stays: Linux counts a thread's end as the parent's death.

    Raises:
        SandboxError: bubblewrap is missing, or namespaces are refused, as Ubuntu 24.04 may.
    """

    def __init__(self, modules: Iterable[str] = (), read_only: Iterable[Path | str] = ()):
        self.modules, self.read_only = list(modules), [Path(path) for path in read_only]
        self.folder = Path()
        self._group: Path | None = None
        self._process: subprocess.Popen | None = None

    @property
    def address(self) -> Path:
        """Where kernels are asked for: what `$TXLIB_NURSERY` is set to."""
        return self.folder / "control"

    def __enter__(self) -> "Nursery":
        self.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        program = shutil.which("bwrap")
        if program is None:
            raise SandboxError("bubblewrap is not installed: apt install bubblewrap, or dnf install bubblewrap")
        try:
            filter.check()
        except OSError as reason:
            raise SandboxError(reason.strerror) from reason
        self.folder = Path(tempfile.mkdtemp(prefix="tx-", dir="/tmp"))  # short: a socket's path has 107 characters
        (self.folder / "kernels").mkdir()
        (self.folder / "group").mkdir()
        self._group = memory.make_group()
        (self.folder / "passwd").write_text(PASSWD)
        proc.prepare(self.folder / "proc")
        log = open(self.folder / "log", "w+")  # noqa: SIM115, the process keeps it
        with log:
            self._process = subprocess.Popen(
                [program, *self._arguments()], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        began = time.monotonic()
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() - began > START:
                said = (self.folder / "log").read_text(errors="replace").strip()[-300:]
                self.stop()
                raise SandboxError(f"bubblewrap can't make a sandbox here: {said or 'it took too long'}")
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._group is not None:
            memory.remove_group(self._group)
            self._group = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def preload(self, modules: Iterable[str]) -> int:
        """Import more modules for the kernels to come; returns how many could be."""
        with Lease.ask(self.address, {"preload": list(modules)}) as lease:
            return lease.read(START)["preloaded"]

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.address))
            return True
        return False

    def _arguments(self) -> list[str]:
        """bubblewrap's command line: what exists inside, and nothing else does."""
        root = os.getuid() == 0
        binds = self._binds()
        settings = {
            "root": root,
            "modules": self.modules,
            "tmp_holds_binds": any(path.is_relative_to("/tmp") for path in binds),
        }
        arguments = [
            "--die-with-parent",
            "--new-session",
            "--unshare-pid",
            "--unshare-ipc",
            "--unshare-net",
            "--unshare-uts",
            "--hostname",
            "sandbox",
            "--clearenv",
        ]
        if root:
            arguments += ["--cap-drop", "ALL"]
            for name in CAPABILITIES:
                arguments += ["--cap-add", f"CAP_{name}"]
        else:
            arguments += ["--unshare-user"]
        arguments += ["--ro-bind", "/usr", "/usr", "--perms", "1777", "--tmpfs", "/tmp"]
        for path in map(Path, ("/bin", "/sbin", "/lib", "/lib32", "/lib64")):
            if path.is_symlink():
                arguments += ["--symlink", os.readlink(path), str(path)]
            elif path.exists():
                arguments += ["--ro-bind", str(path), str(path)]
        # bubblewrap makes missing folders for its own user only; a throwaway user has to pass through them.
        for folder in sorted({Path("/etc"), Path("/run"), *(parent for path in binds for parent in path.parents)}):
            arguments += ["--perms", "0755", "--dir", str(folder)] if folder != Path("/") else []
        for path in ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives", "/etc/fonts"):
            arguments += ["--ro-bind-try", path, path]
        arguments += [
            "--ro-bind",
            str(self.folder / "passwd"),
            "/etc/passwd",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--dir",
            enclosure.HOME,
            "--dir",
            enclosure.KERNEL,
            "--bind",
            str(self.folder),
            enclosure.RUN,
        ]
        if self._group is not None:
            arguments += ["--bind", str(self._group), f"{enclosure.RUN}/group"]
        for path in binds:
            arguments += ["--ro-bind", str(path), str(path)]
        arguments += ["--remount-ro", "/", "--remount-ro", "/dev"]  # an ordinary user would own them
        for name, value in self._environment().items():
            arguments += ["--setenv", name, value]
        return [
            *arguments,
            "--chdir",
            "/",
            sys.executable,
            "-m",
            "txlib.grading.sandbox.warm_parent",
            json.dumps(settings),
        ]

    def _binds(self) -> list[Path]:
        """The Python environment, txlib, and the data it reads: outer folders first."""
        wanted = {
            Path(sys.prefix),
            Path(sys.base_prefix),
            Path(sys.executable).resolve().parents[1],
            PACKAGE,
            *map(Path, site.getsitepackages()),
            *self.read_only,
        }
        if (PACKAGE.parent / "pyproject.toml").is_file():  # a checkout: its data, but nothing else of it
            wanted.add(PACKAGE.parent / "data")
        found = {path for path in wanted if path.exists() and not path.is_relative_to("/usr")}
        return sorted(path for path in found if not found & set(path.parents))

    def _environment(self) -> dict[str, str]:
        home = enclosure.HOME
        return {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": home,
            "TXLIB_HOME": home,
            "IPYTHONDIR": f"{home}/.ipython",
            "JUPYTER_PLATFORM_DIRS": "1",
            "MPLCONFIGDIR": f"{home}/.matplotlib",
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
            "PYTHONPATH": str(PACKAGE.parent),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "LANG": "C.UTF-8",
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }


class Lease:
    """A connection to a warm parent. As long as it is open, the kernel may live."""

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
            raise SandboxError(f"no warm parent answers at {address}: {reason}") from reason
        return cls(client)

    def read(self, timeout: int | float) -> dict | None:
        """The next message, or None where none comes in so many seconds."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._received:
            ready, _, _ = select.select([self._client], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                return None
            data = self._client.recv(1 << 16)
            if not data:
                return {"ended": "the warm parent is gone"}
            self._received += data
        line, self._received = self._received.split(b"\n", 1)
        return json.loads(line)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def start_kernel(address: Path | str, request: str, name: str, limits: Limits, pipes: tuple[int, ...] = ()) -> Lease:
    """Ask for a kernel: a "kernel" (or a "probe") with files in the folder `kernels/name`, or "cells" with two pipes.

    Raises:
        SandboxError: it could not be made.
    """
    lease = Lease.ask(address, {request: name, "limits": limits.to_json()}, pipes)
    said = lease.read(START)
    if not said or "started" not in said:
        lease.close()
        raise SandboxError(f"no sealed kernel: {said['ended'] if said else 'the warm parent does not answer'}")
    return lease
