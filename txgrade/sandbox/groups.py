"""Control groups (cgroups) for kernels, where the system gives us any: bounds on memory, shares of the processor.

A control group counts all that a kernel's processes take, files in memory included, and nothing gets past its limit.
However many processes a kernel starts, together they weigh as one when the processor is short.

Outside, `zygote.py` makes a group in each hierarchy (one in version 2 of control groups, several in version 1), in
which each kernel gets one; the zygote does the rest. Where there is none, `watching.py` looks instead.
"""

import contextlib
import os
import secrets
import signal
import time
from pathlib import Path

from txgrade.sandbox.limits import Limits
from txgrade.sandbox.owners import is_gone, own_tag, owner

SYSTEM = Path("/sys/fs/cgroup")
PREFIX = "txgrade-"
# The limit's file, a limit that counts swap too, and where kills are counted, in versions 2 and 1 of control groups.
MEMORY = (
    ("memory.max", "memory.swap.max", "memory.events"),
    ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control"),
)
# The file of the weight among neighbours, and what an ordinary process weighs, in versions 2 and 1.
WEIGHTS = {"cpu.weight": 100, "cpu.shares": 1024}
MAX_WEIGHT = 10_000  # the most that `cpu.weight` may be
USED = ("cpu.stat", "cpuacct.usage")  # processor time, in versions 2 and 1


def make_groups() -> list[Path]:
    """Groups of this process's own, one in each hierarchy that it may use; an ordinary user needs delegated ones."""
    made = []
    for parent in _parents():
        group = parent / f"{PREFIX}{own_tag()}-{secrets.token_hex(3)}"
        with contextlib.suppress(OSError):
            group.mkdir()
            for controller in ("memory", "cpu"):
                with contextlib.suppress(OSError):
                    (group / "cgroup.subtree_control").write_text(f"+{controller}")
            trial = group / "trial"
            trial.mkdir()
            useful = any((trial / file).exists() for file in (*(limit for limit, _, _ in MEMORY), *WEIGHTS, *USED))
            trial.rmdir()
            if useful:
                made.append(group)
            else:
                group.rmdir()
    return made


def sweep() -> None:
    """Remove the groups of graders that were killed, and what still runs in them.

    Another grader may sweep at the same time: what it has removed is gone while we look at it.
    """
    for parent in _parents():
        for left in parent.glob(f"{PREFIX}*"):
            if is_gone(owner(left.name.removeprefix(PREFIX))):
                with contextlib.suppress(OSError):
                    _kill_processes(left)
                remove_group(left)


def _kill_processes(group: Path) -> None:
    for processes in list(group.rglob("cgroup.procs")):
        with contextlib.suppress(OSError):
            for process in processes.read_text().split():
                os.kill(int(process), signal.SIGKILL)


def remove_group(group: Path) -> None:
    """Waits a second for the last of its processes. What stays is removed by a later grader."""
    end = time.monotonic() + 1
    while group.exists():
        with contextlib.suppress(OSError):
            for path in [*group.glob("*/"), group]:
                with contextlib.suppress(OSError):
                    path.rmdir()
        if time.monotonic() > end:
            return
        time.sleep(0.01)


def weigh(groups: list[Path], kernels: int) -> None:
    """Let all kernels together weigh as much against other programs as so many processes do."""
    for group in groups:
        for file, weight in WEIGHTS.items():
            with contextlib.suppress(OSError):
                if (group / file).exists():
                    (group / file).write_text(str(min(weight * max(kernels, 1), MAX_WEIGHT)))


class Group:
    """The control groups of one kernel. Memory counts from when it was forked: the zygote's is not its own.

    Raises:
        OSError: none can be made.
    """

    def __init__(self, parents: list[Path], name: str, limits: Limits):
        self.paths: list[Path] = []
        self._kills: Path | None = None
        self._used: Path | None = None
        try:
            for parent in parents:
                (parent / name).mkdir()
                self.paths.append(parent / name)
            self._bound_memory(limits)
            self._used = self._find(USED)
        except OSError:
            self.remove()
            raise

    @property
    def bounds_memory(self) -> bool:
        return self._kills is not None

    @property
    def shares_processor(self) -> bool:
        return self._find(WEIGHTS) is not None

    @property
    def does_everything(self) -> bool:
        return self.bounds_memory and self.shares_processor and self._used is not None

    def join(self) -> None:
        """Put the process that calls this, and all that it will start, into the groups."""
        for path in self.paths:
            (path / "cgroup.procs").write_text("0")

    def overrun(self) -> bool:
        """Whether the limit was hit, and a process killed for it."""
        if self._kills is None:
            return False
        with contextlib.suppress(OSError):
            lines = self._kills.read_text().splitlines()
            return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in lines)
        return False

    def cpu_seconds(self) -> float | None:
        """Processor time that all processes have used, those that have ended included; None where nobody counts."""
        with contextlib.suppress(OSError):
            if self._used is not None and self._used.name == "cpuacct.usage":
                return int(self._used.read_text()) / 1e9
            if self._used is not None:  # its first line: usage_usec 1234
                return int(self._used.read_text().split()[1]) / 1e6
        return None

    def remove(self) -> None:
        for path in self.paths:
            with contextlib.suppress(OSError):
                path.rmdir()

    def _find(self, files: tuple[str, ...] | dict[str, int]) -> Path | None:
        return next((path / file for path in self.paths for file in files if (path / file).exists()), None)

    def _bound_memory(self, limits: Limits) -> None:
        most = (limits.memory_mb + limits.disk_mb) * 2**20
        for limit, swap, kills in MEMORY:
            bound = self._find((limit,))
            if bound is None:
                continue
            bound.write_text(str(most))
            self._kills = bound.parent / kills
            with contextlib.suppress(OSError):  # no swap, or not counted
                (bound.parent / swap).write_text("0" if swap == "memory.swap.max" else str(most))


def _parents() -> list[Path]:
    """Where this process may look for room: beside its own group (version 2), or in it (version 1)."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    groups = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        own = path.lstrip("/")
        if {"memory", "cpu", "cpuacct"} & set(controllers.split(",")):
            groups.append(SYSTEM / controllers / own)
        elif not controllers:  # a group that holds processes can't hold groups, unless it is the first
            groups.append((SYSTEM / own).parent if own else SYSTEM)
    return [path for path in groups if (path / "cgroup.procs").exists()]
