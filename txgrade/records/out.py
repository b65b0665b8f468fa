"""The results folder, `--out`: it is apart from what is graded, and nothing is written through a link in it."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from txgrade.files import Folder, write_together
from txgrade.records.people import file_name, read_name

FOLDERS = ("feedback", "junit")
FILES = re.compile(
    r"(grades|review|changes|statistics|mistakes|canvas|moodle|gradescope|.*-left-out)\.csv|.*\.zip|summary\.html|gradebook\..*"
)
PRIVATE = 0o700  # of a folder; without the right to enter it, of a file


def need_apart(out: Path, inbox: Path, assignment: Path) -> None:
    """Refuse a results folder that holds what is graded, or is where learners submit.

    Raises:
        ValueError: it is a file, the inbox, in it or around it, or the assignment's own folder.
    """
    elsewhere = "choose one of its own, such as --out results/"
    if os.path.exists(out) and not os.path.isdir(out):
        raise ValueError(f"--out {out} is a file: give a folder")
    if _same(out, inbox):
        raise ValueError(f"--out {out} is the folder of submissions: {elsewhere}")
    if _holds(inbox, out):
        raise ValueError(f"--out {out} is inside the folder of submissions, {inbox}: {elsewhere}")
    if _holds(out, inbox):
        raise ValueError(f"--out {out} holds the folder of submissions, {inbox}: {elsewhere}")
    if _same(out, assignment.parent):
        raise ValueError(f"--out {out} is the assignment's folder: {elsewhere}")


def open_out(out: Path) -> None:
    """Make the results folder if it is missing, closed to others, and check that what is in it is our own.

    Raises:
        ValueError: it can't be made or written in, or holds a link where a file of ours belongs.
    """
    try:
        out.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    except OSError as reason:
        raise ValueError(f"--out {out} can't be made ({reason.strerror}): choose another folder") from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise ValueError(f"you may not write in --out {out}: choose another folder")
    need_no_links(out)


def need_no_links(out: Path) -> None:
    """Refuse a results folder with a link, a pipe or a device in place of a file or a folder of ours.

    Raises:
        ValueError: there is one; names it.
    """
    for folder in (out, *(out / name for name in FOLDERS)):
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                if folder != out or entry.name in FOLDERS or FILES.fullmatch(entry.name):
                    _need_plain(entry)


def write(out: Path, name: str, text: str | bytes, mode: int = PRIVATE) -> None:
    """Write `feedback/Ada.html` or the like, whole or not at all, for those whom `mode` lets into its folder."""
    with _folder_of(out, name, mode) as (folder, file):
        data = text.encode() if isinstance(text, str) else text
        write_together([(folder, file, data)], mode & 0o666, sync=False)


def allow(out: Path, name: str, mode: int) -> None:
    """Let those read a file whom `mode` lets into its folder."""
    with _folder_of(out, name, mode) as (folder, file):
        handle = folder.file(file)
        try:
            os.fchmod(handle, mode & 0o666)
        finally:
            os.close(handle)


@contextlib.contextmanager
def _folder_of(out: Path, name: str, mode: int) -> Iterator[tuple[Folder, str]]:
    """Open the folder of a file, made if it is missing; give it with the file's name in it."""
    *parents, file = name.split("/")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(Folder(out))
        for parent in parents:
            folder = stack.enter_context(folder.folder(file_name(parent), make=True))
            folder.set_mode(mode)
        yield folder, file_name(file)


def path_in(out: Path, name: str) -> Path:
    """Return where `write` writes a file."""
    return out / file_name(name)


def _need_plain(entry: os.DirEntry) -> None:
    is_folder = entry.is_dir(follow_symlinks=False)
    if is_folder or entry.is_file(follow_symlinks=False) and entry.name not in FOLDERS:
        return
    what = "a link" if entry.is_symlink() else "no folder" if entry.name in FOLDERS else "no plain file"
    raise ValueError(
        f"{read_name(entry.path)} is {what}, so nothing is written there: remove it, or choose another --out"
    )


def _holds(outer: Path, inner: Path) -> bool:
    inner = Path(os.path.realpath(inner))
    return any(_same(outer, folder) for folder in (inner, *inner.parents))


def _same(one: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samefile(one, other)
    return os.path.realpath(one) == os.path.realpath(other)
