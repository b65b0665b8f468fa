"""A zip file that others have filled, read without trusting a byte of it: nothing is unpacked to where it says."""

import lzma
import stat
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

MAX_ENTRIES = 20_000
MAX_TOTAL = 4 * 2**30  # bytes that are read from one zip file
DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError, RuntimeError, EOFError, ValueError)
SYSTEMS_OWN = ("__MACOSX", ".DS_Store", ".ipynb_checkpoints")  # what a computer adds to a folder by itself


class ArchiveError(ValueError):
    """Why a zip file can't be read; one sentence."""


class DamagedError(ValueError):
    """Why one file in a zip file can't be read; one sentence."""


@dataclass(frozen=True)
class Entry:
    """One plain file in a zip file."""

    path: str  # with slashes
    info: zipfile.ZipInfo


class Archive:
    """The plain files in a zip file, and what else is in it; use it in a `with` block.

    Raises:
        ArchiveError: it is not a zip file, or holds too many files.
    """

    def __init__(self, path: Path | str):
        self.path, self._read = Path(path), 0
        if self.path.is_dir():
            raise ArchiveError(f"{path} is a folder: give the zip file; if your browser unpacked it, compress it again")
        if not self.path.is_file():
            raise ArchiveError(f"no file at {path}: give the zip file that you downloaded")
        try:
            self._zip = zipfile.ZipFile(self.path)
        except (*DAMAGED, OSError) as reason:
            raise ArchiveError(f"{path} is not a zip file, or not a whole one: download it again") from reason
        infos = self._zip.infolist()
        if len(infos) > MAX_ENTRIES:
            self._zip.close()
            raise ArchiveError(f"{path} holds {len(infos):,} files, more than {MAX_ENTRIES:,}: is this the download?")
        self.entries: list[Entry] = []
        self.left_out: list[tuple[str, str]] = []  # path in the zip file, and why
        for info in infos:
            self._sort_in(info)

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *reason: object) -> None:
        self._zip.close()

    def read(self, entry: Entry, most: int) -> bytes:
        """Return up to `most` + 1 bytes of a file, so that one more tells that it is too large.

        Raises:
            DamagedError: it is damaged.
            ArchiveError: more was read than any download holds.
        """
        try:
            with self._zip.open(entry.info) as file:
                data = file.read(most + 1)
        except (*DAMAGED, OSError) as reason:
            raise DamagedError("it is damaged, or compressed in an unknown way") from reason
        self._read += len(data)
        if self._read > MAX_TOTAL:
            raise ArchiveError(f"{self.path} holds more than {MAX_TOTAL // 2**30} GB: is this the download?")
        return data

    def _sort_in(self, info: zipfile.ZipInfo) -> None:
        path = _path(info)
        parts = path.split("/")
        if info.is_dir() or not parts[-1] or {*SYSTEMS_OWN} & {*parts} or parts[-1].startswith("._"):
            return
        kind = stat.S_IFMT(info.external_attr >> 16)
        why = ""
        if path.startswith("/") or ".." in parts or path[1:2] == ":":
            why = "its path leads out of the zip file"
        elif kind not in (0, stat.S_IFREG):
            why = "a link" if kind == stat.S_IFLNK else "not a plain file"
        elif info.flag_bits & 1:
            why = "it is encrypted"
        if why:
            self.left_out.append((path, why))
        else:
            self.entries.append(Entry(path, info))


def _path(info: zipfile.ZipInfo) -> str:
    """Return a file's path. Many programs write UTF-8 without saying so, which zipfile reads as code page 437."""
    path = info.filename
    if not info.flag_bits & 0x800:
        try:
            path = path.encode("cp437").decode("utf-8")
        except UnicodeError:
            path = info.filename
    return path.replace("\\", "/")
