"""Whose is it? Names of folders and control groups say which process made them, so that the next start may sweep what a
killed one has left, and never what a living one uses.

A process is known by its number, when it started (numbers come again), and the namespace of that number (a container's
own numbers mean nothing outside).
"""

import os
from pathlib import Path
from typing import NamedTuple


class Owner(NamedTuple):
    """A process."""

    number: int
    started: int  # in clock ticks since the machine was
    namespace: int


def own_tag() -> str:
    """To be put into a name by this process."""
    return "-".join(map(str, (os.getpid(), _started(os.getpid()), _namespace())))


def owner(name: str) -> Owner | None:
    """Whose tag a name begins with; None where it begins with none."""
    parts = name.split("-")[:3]
    return Owner(*map(int, parts)) if len(parts) == 3 and all(part.isdecimal() for part in parts) else None


def is_gone(process: Owner | None) -> bool:
    """Whether the owner has ended for certain."""
    if process is None or process.namespace != _namespace():
        return False
    return _started(process.number) != process.started


def _started(process: int) -> int:
    """When a process was started, in clock ticks since the machine was; 0 where there is none."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(") ")[2].split()[19])
    except OSError:
        return 0


def _namespace() -> int:
    """The number of our process namespace; 0 where there are none."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
