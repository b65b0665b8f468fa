"""What the probe tries from inside: each attempt that succeeds is a hole. It gets a list of targets, gives a list of
holes, both as JSON files. Where the targets are canaries, it gives the folders in which it sees one.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import platform
import socket
from collections.abc import Callable
from pathlib import Path

from txgrade.sandbox.syscall_numbers import numbers

GET_KEYRING_ID, SESSION_KEYRING = 0, -3  # <linux/keyctl.h>


def serve(requests: int, messages: int) -> None:
    """Try what the first file says, and write into the second what could be done; both by their descriptors."""
    with open(requests, encoding="utf-8") as file:
        targets = json.load(file)
    if "canaries" in targets:
        reached = [where for where, paths in targets["canaries"].items() if any(map(os.path.lexists, paths))]
    else:
        reached = [words for words, attempt in attempts(targets) if _succeeds(attempt)]
    with open(messages, "w", encoding="utf-8") as file:
        json.dump(reached, file)


def attempts(targets: dict) -> list[tuple[str, Callable[[], object]]]:
    """What must fail in a sealed sandbox, each in words that say what is open if it doesn't."""
    return [
        ("the machine's network is open", lambda: socket.create_connection(tuple(targets["listener"]), 1).close()),
        ("the machine's abstract sockets are open", lambda: _connect(targets["abstract"])),
        ("files of the user who grades can be read", lambda: Path(targets["marker"]).read_text()),
        ("the course's solutions can be listed", lambda: os.listdir(targets["solutions"])),
        ("the grader's home can be read", lambda: Path(targets["private"]).read_text()),
        ("the Python environment can be changed", lambda: _write(targets["prefix"])),
        ("txgrade can be changed", lambda: _write(targets["package"])),
        ("the machine's processes can be seen", lambda: _sees(targets["process"])),
        ("the machine's processes can be signalled", lambda: os.kill(targets["process"]["pid"], 0)),
        ("system calls are not filtered", _is_unfiltered),
        ("keyrings can be used", _use_keyring),
        ("files can be locked that other sandboxes see, too", lambda: _lock_twice(targets["locked"])),
        ("the machine's state can be read", lambda: Path("/proc/sys/fs/file-nr").read_text()),
        ("pages that other sandboxes share can be counted", lambda: Path("/proc/self/smaps").read_text()),
        ("processes can be traced or users changed", lambda: os.setuid(0)),
    ]


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except Exception:
        return False
    return True


def _connect(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + name)


def _write(folder: str) -> None:
    path = Path(folder, ".written-by-the-probe")
    path.write_text("")
    path.unlink()


def _sees(process: dict) -> None:
    """Whether a process of the grader's, known by the words it was started with, is there."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended since
            if process["words"] in Path("/proc", name, "cmdline").read_text(errors="replace"):
                return
    raise ProcessLookupError(process["words"])


def _is_unfiltered() -> None:
    if "Seccomp:\t2" in Path("/proc/self/status").read_text():
        raise PermissionError("there is a filter")


def _use_keyring() -> None:
    if ctypes.CDLL(None).syscall(numbers(platform.machine())["keyctl"], GET_KEYRING_ID, SESSION_KEYRING, 0) < 0:
        raise PermissionError("no keyrings")


def _lock_twice(path: str) -> None:
    """A lock that is really taken can't be taken by another descriptor."""
    with open(path) as one, open(path) as other:
        fcntl.flock(one, fcntl.LOCK_EX)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
    raise PermissionError("a lock that locks nothing")
