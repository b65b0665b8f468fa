"""Keeps kernels in bounds where no control group does: by looking at their processes ten times a second.

Looking sees what processes map and hold open, and misses shared memory that is hidden from both; when that fills the
machine, Linux ends the kernel first (`oom_score_adj`, in `fork.py`). It misses processes that live shorter than
a look takes to come round again.
"""

import contextlib
import math
import os
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
STEP = 1.25  # by how much a process weighs less for each step of its nice value
NICEST = 19


class Watched:
    """The processes of one process namespace, and the processor time that they were seen to have used."""

    def __init__(self, namespace: str):
        self.namespace = namespace
        self.members: list[int] = []
        self._own: dict[tuple[int, int], float] = {}  # seconds by process and when it started, also of those that ended
        self._most = 0.0
        self._nice = 0

    def look(self) -> None:
        """Find the processes, and add up their time."""
        everybody = map(int, filter(str.isdigit, os.listdir("/proc")))
        self.members = [process for process in everybody if process_namespace(process) == self.namespace]
        with_children = 0.0
        for member in self.members:
            if fields := _stat(f"/proc/{member}/stat"):
                own, children, started = sum(map(int, fields[11:13])), sum(map(int, fields[13:15])), int(fields[19])
                self._own[member, started] = own / TICK
                with_children += (own + children) / TICK
        self._most = max(self._most, with_children, sum(self._own.values()))

    def cpu_seconds(self) -> float:
        return self._most

    def waited(self) -> float:
        """The most seconds that one of the threads would have run, had a processor been free: sleep is no waiting."""
        self.look()
        most = 0
        for path in (
            path for member in self.members for path in Path("/proc", str(member), "task").glob("*/schedstat")
        ):
            with contextlib.suppress(OSError, ValueError, IndexError):
                most = max(most, int(path.read_text().split()[1]))
        return most / 1e9

    def taken(self, at_least: int) -> int:
        """Bytes of memory that the processes take, if more than `at_least`; else less than that.

        The quick sum counts pages that processes share once for each; it is only refined where it matters.
        """
        files = sum(map(_memory_files, self.members))
        quick = sum(_bytes(f"/proc/{member}/status", ("RssAnon:", "RssShmem:")) for member in self.members)
        if quick + files <= at_least:
            return quick + files
        shared = sum(_bytes(f"/proc/{member}/smaps_rollup", ("Pss_Anon:", "Pss_Shmem:")) for member in self.members)
        return shared + files

    def give_way(self) -> None:
        """Let all of them together weigh as little as one: the more want to run, the nicer they become, for good."""
        threads = [path for member in self.members for path in _list(f"/proc/{member}/task")]
        running = sum(_stat(f"{path}/stat")[:1] == ["R"] for path in threads)
        self._nice = max(self._nice, min(NICEST, math.ceil(math.log(max(running, 1), STEP))))
        if self._nice:
            for path in threads:
                with contextlib.suppress(OSError):
                    if os.getpriority(os.PRIO_PROCESS, thread := int(path.rpartition("/")[2])) < self._nice:
                        os.setpriority(os.PRIO_PROCESS, thread, self._nice)


def process_namespace(process: int) -> str:
    try:
        return os.readlink(f"/proc/{process}/ns/pid")
    except OSError:
        return ""


def _stat(path: str) -> list[str]:
    """The fields after the name, state first (`man proc_pid_stat` numbers it 3); nothing where it has ended."""
    with contextlib.suppress(OSError):
        return Path(path).read_text(errors="replace").rpartition(") ")[2].split()
    return []


def _list(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return [f"{folder}/{name}" for name in os.listdir(folder)]
    return []


def _bytes(path: str, starts: tuple[str, ...]) -> int:
    """The sum of the lines that start so, which are in kB."""
    with contextlib.suppress(OSError, ValueError):
        lines = Path(path).read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(starts)) * 1024
    return 0


def _memory_files(process: int) -> int:
    """Bytes in memory files that a process holds open."""
    total = 0
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{process}/fd"):
            path = f"/proc/{process}/fd/{name}"
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith("/memfd:"):
                    total += os.stat(path).st_blocks * 512
    return total
