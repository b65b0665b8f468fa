"""Files that others may read or write at the same time: whole or not at all, and one writer at a time."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file or nothing: into a temporary neighbour first, then renamed."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Within the block, whoever else locks this path waits (where the system has file locks)."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(path, "w") as file:
        with contextlib.suppress(OSError):  # some network file systems have none
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
