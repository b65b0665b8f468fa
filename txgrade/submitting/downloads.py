"""How Canvas, Moodle and Gradescope name what learners submitted, when an instructor downloads it.

- Canvas, *Download Submissions*: files `lovelaceada_LATE_1001_99887_name.ipynb`: the sortable name in small letters,
  LATE if it is, the user's id, the file's id, and the learner's name for it, with `-1` if it was submitted again.
  https://github.com/instructure/canvas-lms/blob/master/lib/content_zipper.rb (2026)
- Moodle, *Download all submissions*: a folder `Ada Lovelace_501_assignsubmission_file` for each participant, which ends
  in `_` before Moodle 4.1; without folders this begins each file's name. A team's has the team's name and id.
  https://github.com/moodle/moodle/blob/main/mod/assign/classes/downloader.php (since 3.1)
- Gradescope, *Export Submissions*: folders `submission_123456`, and `submission_metadata.yml` with names, emails,
  student ids and times. Gradescope documents no version of it; this is the form of exports from 2021 to 2026.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from txgrade.submitting.archive import Archive, ArchiveError, DamagedError, Entry

CANVAS = re.compile(
    r"(?:(?P<learner>.+?)_)??(?P<late>LATE_)?(?:anon_(?P<anonymous>[A-Za-z0-9]+)|(?P<id>[0-9]+))_"
    r"(?:(?P<file>[0-9]+)_(?P<name>.+)|(?P<typed>(?:text|link)\.html))",
    re.DOTALL,
)
MOODLE = re.compile(
    r"(?P<learner>[^_]+)(?:_(?P<id>[0-9]+))?_assignsubmission_(?P<plugin>[a-z]+)(?:_(?P<name>.*))?", re.DOTALL
)
METADATA = "submission_metadata.yml"
MAX_METADATA = 64 * 2**20  # bytes
MOODLE_TIMES = ("%A, %d %B %Y, %I:%M %p", "%A, %B %d, %Y, %I:%M %p", "%A, %d %B %Y, %H:%M", "%A, %B %d, %Y, %H:%M")
TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ]\s*(\d\d:\d\d)(:\d\d)?(?:\.\d+)?\s*(?:([Zz]|UTC|GMT)|([+-]\d\d):?(\d\d)?)?", re.ASCII
)


class NoZoneError(ValueError):
    """A time that names no zone, where none was given."""


@dataclass(frozen=True)
class Submitter:
    """A person, or a team, as the system knows them."""

    name: str
    id: str = ""
    email: str = ""
    student_id: str = ""


@dataclass(frozen=True)
class DownloadedFile:
    """One file that was submitted, and by whom."""

    entry: Entry
    name: str  # as the learner calls it; without folders
    submitters: tuple[Submitter, ...]
    version: int = 0  # of a file that was submitted several times: greater if it is newer
    attempt: int = 0  # of everything submitted together, likewise
    late: bool | None = None  # as the system marks it; None if it marks nothing
    submitted: str = ""  # in the system's words


def canvas_files(archive: Archive, groups: Iterable[str] = ()) -> list[DownloadedFile]:
    """Return the files of a download; as Canvas does, take the name of a group off before looking for numbers."""
    prefixes = sorted((re.sub(r"\W", "", name.lower()) for name in groups), key=len, reverse=True)
    files = []
    for entry in archive.entries:
        name = entry.path.rpartition("/")[2]
        group = next((prefix for prefix in prefixes if prefix and name.startswith(f"{prefix}_")), "")
        match = CANVAS.fullmatch(name.removeprefix(f"{group}_") if group else name)
        if match is None:
            archive.left_out.append((entry.path, "it is not named as Canvas names files"))
            continue
        learner = group or match["learner"] or f"anonymous {match['anonymous'] or match['id']}"
        files.append(
            DownloadedFile(
                entry,
                match["name"] or match["typed"],
                (Submitter(learner, match["id"] or ""),),
                version=int(match["file"] or 0),
                late=bool(match["late"]),
            )
        )
    return files


def moodle_files(archive: Archive, groups: Iterable[str] = ()) -> list[DownloadedFile]:
    files = []
    for entry in archive.entries:
        parts = entry.path.split("/")
        for index, part in enumerate(parts):
            if match := MOODLE.fullmatch(part):
                names = [match["name"] or "", *parts[index + 1 :]]
                name = "_".join(filter(None, names)) or f"{match['plugin']}.html"
                files.append(DownloadedFile(entry, name, (Submitter(match["learner"], match["id"] or ""),)))
                break
        else:
            archive.left_out.append((entry.path, "it is not named as Moodle names files"))
    return files


def gradescope_files(archive: Archive, groups: Iterable[str] = ()) -> list[DownloadedFile]:
    """Return the files of an export.

    Raises:
        ArchiveError: the metadata can't be read.
    """
    tables = [entry for entry in archive.entries if entry.path.rpartition("/")[2] == METADATA]
    if not tables:
        return []
    metadata = min(tables, key=lambda entry: entry.path.count("/"))
    root = metadata.path.removesuffix(METADATA)
    submissions = _read_metadata(archive, metadata)
    files = []
    for entry in archive.entries:
        if entry is metadata:
            continue
        folder, _, rest = entry.path.removeprefix(root).partition("/")
        submission = submissions.get(folder)
        if submission is None or not entry.path.startswith(root):
            archive.left_out.append((entry.path, f"{METADATA} says nothing of it"))
            continue
        number = int(re.sub(r"\D", "", folder)[:18] or 0)
        files.append(
            DownloadedFile(
                entry,
                "_".join((rest or folder).split("/")),
                tuple(_submitter(one) for one in _list(submission, "submitters")),
                attempt=number,
                submitted=_text(submission, "created_at"),
            )
        )
    with_files = {file.entry.path.removeprefix(root).partition("/")[0] for file in files}
    archive.left_out += [(name, "it holds no file") for name in submissions if name not in with_files]
    return files


READERS = {"canvas": canvas_files, "moodle": moodle_files, "gradescope": gradescope_files}


def _read_metadata(archive: Archive, entry: Entry) -> dict[str, dict]:
    """Return each submission's part of the metadata. All values are texts: a student id may begin with 0."""
    import yaml

    try:
        data = archive.read(entry, MAX_METADATA)
    except DamagedError as reason:
        raise ArchiveError(f"{entry.path}: {reason}; export the submissions again") from reason
    if len(data) > MAX_METADATA:
        raise ArchiveError(f"{entry.path} is larger than {MAX_METADATA // 2**20} MB: is this Gradescope's export?")
    try:
        read = yaml.load(data, getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except (yaml.YAMLError, RecursionError, ValueError) as reason:
        raise ArchiveError(f"{entry.path} is not as Gradescope writes it: export the submissions again") from reason
    if not isinstance(read, dict) or not all(isinstance(value, dict) for value in read.values()):
        raise ArchiveError(f"{entry.path} is not as Gradescope writes it: export the submissions again")
    return {str(key): value for key, value in read.items()}


def _submitter(values: Any) -> Submitter:
    name, email, sid = (_text(values, key) for key in ("name", "email", "sid"))
    return Submitter(name or email or sid, "", email, sid)


def _text(values: Any, key: str) -> str:
    """Return a text of the metadata, whose keys are Ruby's symbols."""
    value = (values.get(f":{key}") or values.get(key)) if isinstance(values, dict) else None
    return value.strip() if isinstance(value, str) and value.strip() not in ("null", "~") else ""


def _list(values: dict, key: str) -> list:
    value = values.get(f":{key}") or values.get(key)
    return value if isinstance(value, list) else []


def read_time(text: str, zone: ZoneInfo | None) -> datetime:
    """Return a time in UTC, as Gradescope, Moodle's worksheet in English, or ISO 8601 write it.

    Raises:
        NoZoneError: it names no time zone, and `zone` is None.
        ValueError: it is none.
    """
    plain = " ".join(text.split())  # some write a narrow blank before PM
    if match := TIME.fullmatch(plain):
        day, minute, second, utc, hours, minutes = match.groups()
        offset = "+00:00" if utc else f"{hours}:{minutes or '00'}" if hours else ""
        when = datetime.fromisoformat(f"{day}T{minute}{second or ':00'}{offset}")
    else:
        when = _english_time(plain)
    if when.tzinfo is None:
        if zone is None:
            raise NoZoneError(f"the time {plain!r} names no zone: say --timezone, e.g. Europe/Zurich")
        when = when.replace(tzinfo=zone)
    return when.astimezone(UTC)


def _english_time(text: str) -> datetime:
    for form in MOODLE_TIMES:
        try:
            return datetime.strptime(text, form)
        except ValueError:
            continue
    raise ValueError(f"{text[:60]!r} is not a time: give e.g. 2026-12-01 23:59, or Moodle's worksheet in English")
