"""Keeps a kernel's memory in bounds: by a control group (cgroup) where the system gives us one, else by looking.

A control group counts all that a kernel's processes take, files in memory included, and nothing gets past its limit.
Looking ten times a second sees what processes map and hold open, and misses shared memory that is hidden from both;
when that fills the machine, Linux ends the kernel first (`oom_score_adj`, see `warm_parent.py`).

Outside, `nursery.py` makes a group in which each kernel gets one; the warm parent does the rest.
"""

import contextlib
import os
import secrets
import time
from pathlib import Path

from txlib.grading.sandbox.limits import Limits

SYSTEM = Path("/sys/fs/cgroup")
# The limit's file, a limit that counts swap too, and where kills are counted, in versions 2 and 1 of control groups.
VERSIONS = (
    ("memory.max", "memory.swap.max", "memory.events"),
    ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control"),
)


def make_group() -> Path | None:
    """A control group of this process's own; None where it may make none. An ordinary user needs a delegated one."""
    for parent in _parents():
        for left in parent.glob("txlib-*-*"):
            if not Path("/proc", left.name.split("-")[1]).exists():  # its grader was killed
                remove_group(left, patience=0)
        group = parent / f"txlib-{os.getpid()}-{secrets.token_hex(3)}"
        with contextlib.suppress(OSError):
            group.mkdir()
            with contextlib.suppress(OSError):
                (group / "cgroup.subtree_control").write_text("+memory")
            trial = group / "trial"
            trial.mkdir()
            able = any((trial / limit).exists() for limit, _, _ in VERSIONS)
            trial.rmdir()
            if able:
                return group
            group.rmdir()
    return None


def remove_group(group: Path, patience: int | float = 1) -> None:
    """Waits up to `patience` seconds for the last of its processes. What stays is removed by a later grader."""
    end = time.monotonic() + patience
    while group.exists():
        for path in (*group.glob("*/"), group):
            with contextlib.suppress(OSError):
                path.rmdir()
        if time.monotonic() > end:
            return
        time.sleep(0.01)


class Group:
    """The control group of one kernel. Memory counts from when it was forked: the warm parent's is not its own.

    Raises:
        OSError: none can be made.
    """

    def __init__(self, path: Path, limits: Limits):
        self.path = path
        path.mkdir()
        found = [version for version in VERSIONS if (path / version[0]).exists()]
        if not found:
            self.remove()
            raise OSError(f"{path} is no control group")
        limit, swap, self._kills = found[0]
        most = (limits.memory_mb + limits.disk_mb) * 2**20
        (path / limit).write_text(str(most))
        with contextlib.suppress(OSError):  # no swap, or not counted
            (path / swap).write_text("0" if swap == "memory.swap.max" else str(most))

    def join(self) -> None:
        """Put the process that calls this, and all that it will start, into the group."""
        (self.path / "cgroup.procs").write_text("0")

    def overrun(self) -> bool:
        """Whether the limit was hit, and a process killed for it."""
        with contextlib.suppress(OSError):
            lines = (self.path / self._kills).read_text().splitlines()
            return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in lines)
        return False

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.rmdir()


def taken(namespace: str, at_least: int) -> int:
    """Bytes of memory that the processes of a process namespace take, if more than `at_least`; else less than that.

    The quick sum counts pages that processes share once for each; it is only refined where it matters.
    """
    members = [name for name in filter(str.isdigit, os.listdir("/proc")) if process_namespace(int(name)) == namespace]
    files = sum(map(_memory_files, members))
    quick = sum(_bytes(f"/proc/{member}/status", ("RssAnon:", "RssShmem:")) for member in members)
    if quick + files <= at_least:
        return quick + files
    return sum(_bytes(f"/proc/{member}/smaps_rollup", ("Pss_Anon:", "Pss_Shmem:")) for member in members) + files


def process_namespace(process: int) -> str:
    try:
        return os.readlink(f"/proc/{process}/ns/pid")
    except OSError:
        return ""


def _parents() -> list[Path]:
    """Where this process may look for room: beside its own group (version 2), or in it (version 1)."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        own = path.lstrip("/")
        if controllers == "memory":
            found.append(SYSTEM / "memory" / own)
        elif not controllers:  # a group that holds processes can't hold groups, unless it is the first
            found.append((SYSTEM / own).parent if own else SYSTEM)
    return found


def _bytes(path: str, starts: tuple[str, ...]) -> int:
    """The sum of the lines that start so, which are in kB."""
    with contextlib.suppress(OSError, ValueError):
        lines = Path(path).read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(starts)) * 1024
    return 0


def _memory_files(process: str) -> int:
    """Bytes in memory files that a process holds open."""
    total = 0
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{process}/fd"):
            path = f"/proc/{process}/fd/{name}"
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith("/memfd:"):
                    total += os.stat(path).st_blocks * 512
    return total
