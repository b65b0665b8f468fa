"""A ledger in one SQLite file, which is sound whenever a writer dies.

Each write is a short transaction, so several people and a grading run can write by turns; only one grading run at a
time is allowed.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sql

from txgrade.records.tables import APPLICATION, TABLES, UPGRADABLE, VERSION, create, upgrade

WAIT_SECONDS = 30  # that readers and writers wait for each other


class GradebookError(ValueError):
    """The gradebook is in use, damaged, or not one of ours; or what is to be written makes no sense."""


class Busy(GradebookError):
    """Another process wrote for too long; a second try may succeed."""


class Ledger:
    """The gradebook's file, as transactions; use it in a `with` block.

    With `create` (a grading run) the file is made where it is missing, and no other run can use it for the length of
    the block. Without, it has to exist. A file of an earlier version gets the tables that it lacks.

    Raises:
        GradebookError: no such file, in use, damaged, or not a gradebook of this version.
    """

    def __init__(self, path: Path | str, create: bool = True):
        self.path = Path(path)
        self._lock: int | None = None  # the lock file's descriptor
        self._open = threading.local()  # the transaction of each thread
        if not create and not self.path.is_file():
            raise GradebookError(f"no gradebook at {self.path}; give the folder that `txgrade grade --out` wrote")
        if not self.path.parent.is_dir():
            raise GradebookError(f"no folder {self.path.parent} to keep a gradebook in")
        # A connection lives as long as its transaction: none is open when processes fork.
        self._engine = sql.create_engine(
            sql.URL.create("sqlite", database=str(self.path)),
            poolclass=sql.NullPool,
            connect_args={"timeout": WAIT_SECONDS},
        )
        sql.event.listen(self._engine, "connect", _connected)
        try:
            if create:
                self._take_lock()
                with contextlib.suppress(FileExistsError):  # SQLite would let others read it; its journals follow it
                    os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                self._create()
            self._check()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *reason: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other grading runs begin."""
        self._engine.dispose()
        if self._lock is not None:
            _LOCKED.discard(self.path.resolve())
            os.close(self._lock)
            self._lock = None

    @contextlib.contextmanager
    def transaction(self, write: bool = False) -> Iterator[sql.Connection]:
        """Write all that the block does, or nothing. No other process writes between what it reads and writes.

        A transaction within another is a part of it.

        Raises:
            Busy: others wrote for longer than WAIT_SECONDS.
            GradebookError: the file is damaged, or can't be written.
        """
        if (outer := getattr(self._open, "connection", None)) is not None:
            yield outer
            return
        try:
            with self._engine.begin() as connection:
                connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
                self._open.connection = connection
                try:
                    yield connection
                finally:
                    self._open.connection = None
        except sql.exc.DBAPIError as reason:
            error = str(reason.orig)
            raise (Busy if "locked" in error else GradebookError)(self._words(error)) from reason

    def _words(self, error: str) -> str:
        if "not a database" in error:
            return f"{self.path} is not a gradebook: it is not an SQLite file"
        if "malformed" in error:
            return f"{self.path} is damaged ({error}); move it away and grade again, or restore a copy of it"
        if "locked" in error:
            return f"{self.path} is in use by others for {WAIT_SECONDS} seconds already: try again"
        if "readonly" in error or "unable to open" in error:
            return f"{self.path} can't be written: {error}"
        return f"{self.path}: {error}"

    def _take_lock(self) -> None:
        """Become the one grading run, by a lock that ends with this process, however it ends; no child inherits it."""
        import fcntl

        path = self.path.resolve()
        busy = f"{self.path} is in use by another grading run; wait until it ends, or choose another folder"
        if path in _LOCKED:
            raise GradebookError(busy)
        try:
            lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as reason:
            raise GradebookError(f"{self.path} can't be locked: {reason.strerror}") from reason
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as reason:
            os.close(lock)
            raise GradebookError(busy) from reason
        self._lock = lock
        _LOCKED.add(path)

    def _create(self) -> None:
        """Make the tables in an empty file, in one transaction, so that nobody sees half of them."""
        with self.transaction(write=True) as connection:
            if not connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar():
                create(connection, TABLES.sorted_tables)

    def _check(self) -> None:
        with self.transaction() as connection:
            version = self._version(connection)
            if (damage := connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()) != "ok":
                raise GradebookError(self._words(f"malformed: {' '.join(damage.split())}"))
        if version in UPGRADABLE:
            with self.transaction(write=True) as connection:
                if self._version(connection) in UPGRADABLE:  # no other process was faster
                    upgrade(connection)

    def _version(self, connection: sql.Connection) -> int:
        application = connection.exec_driver_sql("PRAGMA application_id").scalar_one()
        version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
        if application != APPLICATION:
            raise GradebookError(f"{self.path} is not a gradebook of txgrade's; choose another folder")
        if version not in (VERSION, *UPGRADABLE):
            age = "a newer txgrade: update this one" if version > VERSION else "an older txgrade: choose a new folder"
            raise GradebookError(f"{self.path} was written by {age} (its version is {version}, ours {VERSION})")
        return version


_LOCKED: set[Path] = set()  # by this process, which the system's lock would not keep out


def _connected(connection: Any, record: object) -> None:
    connection.isolation_level = None  # SQLAlchemy begins and ends transactions, not Python's sqlite3
    connection.execute("PRAGMA foreign_keys = ON")
