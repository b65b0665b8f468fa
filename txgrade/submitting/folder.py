"""The learner's folder in the shared one: made by nobody else, and closed to everybody but the grader."""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from txgrade.files import Folder
from txgrade.records.people import account

FULL = (errno.ENOSPC, errno.EDQUOT)


class SubmitError(ValueError):
    """Why a notebook is not handed in; one line."""


@contextlib.contextmanager
def own_folder(shared: Path, name: str) -> Iterator[Folder]:
    """The learner's folder in the shared one, locked; made by nobody else, and open to nobody but the grader.

    Where the shared folder hands its group on (setgid), this group may read what is handed in; elsewhere only the
    learner and root may.
    """
    with (
        Folder(shared) as outer,
        _umask(_closed_to(outer.stat().st_mode & stat.S_ISGID)),
        made(outer, name) as own,
        _umask(_need_closed(own, outer)),
        own.locked(".lock"),
    ):
        yield own


@contextlib.contextmanager
def made(outer: Folder, name: str) -> Iterator[Folder]:
    """A folder in another, made where it is missing; refused where somebody else has made it, or put a link there."""
    try:
        inner = outer.folder(name, make=True)
    except NotADirectoryError:
        maker = account(outer.stat(name).st_uid) if hasattr(os, "geteuid") else "somebody"
        raise SubmitError(
            f"{outer.path / name} is a link, or a file, made by {maker}: ask whoever looks after {outer.path}"
        ) from None
    except PermissionError:  # closed to us, where a system opens no folder without reading it
        with contextlib.suppress(FileNotFoundError):
            _need_ours(outer.stat(name), outer, outer.path / name)
        raise
    with inner:
        _need_ours(inner.stat(), outer, inner.path)
        yield inner


def _need_ours(own: os.stat_result, outer: Folder, path: Path) -> None:
    owner = own.st_uid
    if hasattr(os, "geteuid") and owner != os.geteuid() and owner != _known_as(outer):
        raise SubmitError(
            f"{path} was made by {account(owner)}, not by you: tell your instructor. "
            "Until then hand in with --name and another name; whose account it came from is seen"
        )


def _known_as(folder: Folder) -> int | None:
    """Our number in a file system that knows its users by other ones, as shared folders of other machines may."""
    name = f".{secrets.token_hex(8)}"
    try:
        with folder.folder(name, make=True) as ours:
            return ours.stat().st_uid
    except OSError:
        return None
    finally:
        with contextlib.suppress(OSError):
            folder.remove(name)


def _need_closed(own: Folder, outer: Folder) -> int:
    """See that only whom the shared folder names may read in the learner's own; returns the umask for what is in it."""
    ours, theirs = own.stat(), outer.stat()
    group_reads = ours.st_mode & stat.S_ISGID or theirs.st_mode & stat.S_ISGID and ours.st_gid == theirs.st_gid
    closed = _closed_to(group_reads)
    if not hasattr(os, "geteuid"):
        return closed
    if not group_reads and theirs.st_uid not in (0, ours.st_uid):
        raise SubmitError(
            f"whoever looks after {outer.path} could not read what you hand in, unless everybody could: "
            "ask for `chgrp staff` and `chmod 3773` on it"
        )
    if ours.st_mode & (closed if group_reads else 0o022):  # to close it would take it from the group that reads
        raise SubmitError(
            f"others may read or write in {own.path} (its mode is {stat.S_IMODE(ours.st_mode):o}): remove it, or give "
            "it another name, and hand in again"
        )
    if ours.st_mode & closed:
        own.set_mode(0o700)
    return closed


def _closed_to(group_reads: object) -> int:
    """The umask that lets only the owner, and perhaps the group's readers, see a file."""
    return 0o027 if group_reads else 0o077


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def plain_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as reason:
        if reason.errno in FULL:
            raise SubmitError(f"no room is left in {folder}: nothing was handed in; tell your instructor") from None
        if isinstance(reason, PermissionError) or reason.errno == errno.EROFS:
            raise SubmitError(
                f"you may not write in {folder}: tell your instructor, or is --name somebody else's?"
            ) from None
        raise SubmitError(f"{folder}: {reason.strerror or reason}; nothing was handed in") from None
