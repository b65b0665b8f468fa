"""What the probe tries from inside: each attempt that succeeds is a hole. It gets a list of targets, gives a list of
holes, both as JSON files in one folder.
"""

import contextlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path


def main(folder: str) -> None:
    targets = json.loads(Path(folder, "targets.json").read_text())
    holes = [words for words, attempt in attempts(targets) if _succeeds(attempt)]
    Path(folder, "holes.json").write_text(json.dumps(holes))


def attempts(targets: dict) -> list[tuple[str, Callable[[], object]]]:
    """What must fail in a sealed sandbox, each in words that say what is open if it doesn't."""
    return [
        ("the machine's network is open", lambda: socket.create_connection(tuple(targets["listener"]), 1).close()),
        ("the machine's abstract sockets are open", lambda: _connect(targets["abstract"])),
        ("files of the user who grades can be read", lambda: Path(targets["marker"]).read_text()),
        ("the course's solutions can be listed", lambda: os.listdir(targets["solutions"])),
        ("the grader's home can be read", lambda: Path(targets["private"]).read_text()),
        ("the Python environment can be changed", lambda: _write(targets["prefix"])),
        ("txlib can be changed", lambda: _write(targets["package"])),
        ("the machine's processes can be seen", lambda: _sees(targets["process"])),
        ("the machine's processes can be signalled", lambda: os.kill(targets["process"]["pid"], 0)),
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


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
