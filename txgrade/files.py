"""Files that others may read or write concurrently: written whole or not at all, by one writer at a time.

A name in a folder that is held open can't be redirected, whatever others rename or link meanwhile. Where a
system has no handles of folders (Windows), paths are used.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HANDLES = os.open in os.supports_dir_fd and hasattr(os, "O_DIRECTORY")
# No link, no waiting for a pipe's other end, and no child keeps it.
FILE_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
# To pass through a folder is enough: who hands in may not be allowed to list it.
FOLDER_FLAGS = getattr(os, "O_PATH", 0) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)


class Folder:
    """A folder held open; use it in a `with` block.

    Raises:
        OSError: it isn't there, or is no folder; without `follow`, which is for the path's last part, also a link.
    """

    def __init__(self, path: Path | str, follow: bool = True, inside: "Folder | None" = None):
        self.path, self._handle = Path(path), None
        target, where = (path, {}) if inside is None else inside._at(self.path.name)
        if HANDLES:
            self._handle = os.open(target, FOLDER_FLAGS | (0 if follow else os.O_NOFOLLOW), **where)

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, *reason: object) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def folder(self, name: str, make: bool = False) -> "Folder":
        """Open a folder in it that is not a link; `make` creates it if nothing has this name."""
        if make:
            target, where = self._at(name)
            with contextlib.suppress(FileExistsError):
                os.mkdir(target, **where)
        return Folder(self.path / name, follow=False, inside=self)

    def stat(self, name: str = ".") -> os.stat_result:
        """Return the status of the folder, which may be closed to us, or of what is in it; of a link itself."""
        if name == "." and self._handle is not None:
            return os.fstat(self._handle)
        target, where = self._at(name)
        return os.stat(target, follow_symlinks=False, **where)

    def set_mode(self, mode: int) -> None:
        target, where = self._at(".")
        os.chmod(target, mode, dir_fd=where.get("dir_fd"))

    def file(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Open a plain file in it; returns its descriptor. A link, a pipe or a device is never opened.

        Raises:
            OSError: it can't be opened; ELOOP for a link, EINVAL for what else is no file.
        """
        target, where = self._at(name)
        with contextlib.suppress(FileNotFoundError):
            _need_plain(os.stat(target, follow_symlinks=False, **where), name)
        handle = os.open(target, flags | FILE_FLAGS, 0o666, **where)
        try:
            _need_plain(os.fstat(handle), name)  # it may have become another
        except OSError:
            os.close(handle)
            raise
        return handle

    def read(self, name: str, most: int) -> tuple[bytes, os.stat_result]:
        """Read a plain file in it.

        Raises:
            OSError: as `file`; EFBIG where it has more than so many bytes.
        """
        with os.fdopen(self.file(name), "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(most + 1) if status.st_size <= most else b""
        if status.st_size > most or len(data) > most:
            raise OSError(errno.EFBIG, "too large", name)
        return data, status

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Make others who lock this file waits (where the system has file locks)."""
        lock = self.file(name, os.O_RDWR | os.O_CREAT)
        try:
            with contextlib.suppress(ImportError, OSError):  # some network file systems have none
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def rename(self, name: str, new: str) -> None:
        """Give a file in it another name, instead of what bears it."""
        (old, where), (target, there) = self._at(name), self._at(new)
        os.replace(old, target, **({"src_dir_fd": where["dir_fd"], "dst_dir_fd": there["dir_fd"]} if where else {}))

    def remove(self, name: str) -> None:
        """Remove a file or an empty folder in it, if it exists."""
        target, where = self._at(name)
        with contextlib.suppress(FileNotFoundError):
            (os.rmdir if stat.S_ISDIR(self.stat(name).st_mode) else os.unlink)(target, **where)

    def sync(self) -> None:
        """Let new names survive a power cut, where the system can."""
        target, where = self._at(".")
        with contextlib.suppress(OSError):
            handle = os.open(target, os.O_RDONLY, **where)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def _at(self, name: str) -> tuple[Any, dict[str, int]]:
        """Return the arguments by which the functions of `os` find something in it."""
        return (self.path / name, {}) if self._handle is None else (name, {"dir_fd": self._handle})


def write_together(files: Iterable[tuple[Folder, str, bytes]], mode: int | None = None, sync: bool = True) -> None:
    """Write several files, each whole or not at all; on a full disk, none of them.

    Each is written into a temporary neighbour first, then renamed. Without a mode the umask says who may read them.
    With `sync` they survive a power cut.
    """
    written = [(folder, f".{name}.{secrets.token_hex(4)}.tmp", name, data) for folder, name, data in files]
    try:
        for folder, temporary, _, data in written:
            with os.fdopen(folder.file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                if mode is not None and hasattr(os, "fchmod"):
                    os.fchmod(file.fileno(), mode)
                file.write(data)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
        for folder, temporary, name, _ in written:
            folder.rename(temporary, name)
        for folder in {id(folder): folder for folder, *_ in written}.values() if sync else ():
            folder.sync()
    finally:
        for folder, temporary, *_ in written:
            folder.remove(temporary)


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a whole file or nothing, for those to read whom the mode names, whatever the umask."""
    with Folder(path.parent) as folder:
        write_together([(folder, path.name, text.encode())], mode, sync=False)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Make others who lock this path waits (where the system has file locks)."""
    with Folder(path.parent) as folder, folder.locked(path.name):
        yield


def _need_plain(status: os.stat_result, name: str) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "a link", name)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a plain file", name)
