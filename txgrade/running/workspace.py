"""Where everything temporary of a grading process lies: a private folder, swept at the next start if it is killed.

Executed references, connection files and sockets lie there: with expected values, and keys of kernels. A folder is
its process's as long as its lock is held; the system lets go of a lock however a process ends. Folders of sandboxes say
by their names whose they are (`sandbox.leftovers`); here that would not do: containers share a home, and to one of them
the number of another's process says nothing.
"""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from multiprocessing.util import Finalize
from pathlib import Path

LAST = -1000  # at the end of a process, after multiprocessing has removed a folder of its own in ours (at -100)
LONGEST = 60  # bytes of its path: a socket's has at most 107, and lies three folders deeper
TRIES = 10  # a folder may be swept by another start before it is locked
_ours: dict[int, tuple[Path, int]] = {}  # by process: the folder, and its lock's descriptor


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """Within the block, keep temporary files of this process and its children in a private folder.

    The folder stays until the process ends: what outlives a block, such as multiprocessing's server, has files there.
    """
    folder = _folder()
    before = {name: os.environ.get(name) for name in ("TMPDIR", "JUPYTER_RUNTIME_DIR")}, tempfile.tempdir
    os.environ["TMPDIR"], os.environ["JUPYTER_RUNTIME_DIR"] = str(folder), str(folder / "jupyter")
    tempfile.tempdir = str(folder)
    try:
        yield folder
    finally:
        settings, tempfile.tempdir = before
        for name, value in settings.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _folder() -> Path:
    """Return this process's folder; the first call sweeps those of processes that are gone, and makes it."""
    if os.getpid() not in _ours:
        home = _home()
        if home is not None:
            _sweep(home)
        _ours[os.getpid()] = (_new(home) if home is not None else None) or _unswept()
        Finalize(None, _leave, exitpriority=LAST)
    return _ours[os.getpid()][0]


def _home() -> Path | None:
    """Return a folder that only this user can enter, on this machine: of the session, else in the cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for parent in filter(None, (os.environ.get("XDG_RUNTIME_DIR"), cache)):
        home = Path(parent, "txgrade").absolute()
        if len(os.fsencode(home)) > LONGEST - 9:
            continue
        with contextlib.suppress(OSError):
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = os.lstat(home)
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                home.chmod(0o700)
                return home
    return None


def _new(home: Path) -> tuple[Path, int] | None:
    """Return a new folder and the descriptor that holds the lock next to it; None if there are no locks."""
    for _ in range(TRIES):
        name = os.urandom(4).hex()
        path = home / f"{name}.lock"
        with contextlib.suppress(FileExistsError):
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            if _lock(lock) and _is(path, lock):  # not swept before it was locked
                (home / name).mkdir(mode=0o700)
                return home / name, lock
            os.close(lock)
            path.unlink(missing_ok=True)
    return None


def _unswept() -> tuple[Path, int]:
    """Return a folder that is never swept, if no folder is this user's alone or its file system has no locks."""
    folder = Path(tempfile.mkdtemp(prefix="tx-"))
    return folder, os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _sweep(home: Path) -> None:
    """Remove the folders whose processes are gone."""
    for path in home.glob("*.lock"):
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if _lock(lock) and _is(path, lock):
                    shutil.rmtree(path.with_suffix(""), ignore_errors=True)
                    if not path.with_suffix("").exists():  # a child of its process may still be dying
                        path.unlink()
            finally:
                os.close(lock)


def _leave() -> None:
    folder, lock = _ours.pop(os.getpid())
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_suffix(".lock").unlink(missing_ok=True)
    os.close(lock)


def _lock(descriptor: int) -> bool:
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is(path: Path, descriptor: int) -> bool:
    """Return whether the path still names the open file."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    return False
