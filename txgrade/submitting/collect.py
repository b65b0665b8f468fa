"""`txgrade collect canvas FILE.zip --to inbox/ --roster people.csv`: make an inbox of an LMS's download.

    inbox/Ada Lovelace/exercise_14_bert.ipynb            the newest
    inbox/Ada Lovelace/exercise_14_bert.collected.json   when it was submitted, if that is known, and its name there
    inbox/Ada Lovelace/.versions/                        what it has replaced

Only notebooks are unpacked, under names that are made here; everything that is left out is listed.
"""

import glob
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from txgrade.files import Folder, write_together
from txgrade.records.lateness import zone_of
from txgrade.records.people import (
    NAMES,
    NEARLY_ALL,
    Person,
    Roster,
    choices,
    file_name,
    name_in,
    person,
    read_name,
    read_rows,
    safe_name,
    short_name,
    text_of,
)
from txgrade.submitting.archive import Archive, ArchiveError, DamagedError
from txgrade.submitting.downloads import READERS, DownloadedFile, NoZoneError, Submitter, read_time
from txgrade.submitting.notebook import COLLECTED, MAX_BYTES, MAX_RECEIPT

MAX_STEM = 80  # bytes of a notebook's name
NOTEBOOK = ".ipynb"
ONLINE_TEXT = "onlinetext.html"  # what Moodle adds for everybody if the assignment takes texts as well
COPY = re.compile(r"(-[1-9]\d?| \([1-9]\d?\))$")  # what Canvas or a browser adds to the name of a second file
RELEASED = "exercise_"  # begins the name of every exercise that learners get
SIMILAR = re.compile(r"[\W_]+")  # what Canvas and Moodle leave out of names
TITLES = {"canvas": "Canvas", "moodle": "Moodle", "gradescope": "Gradescope"}


class CollectError(ValueError):
    """Why nothing is collected; one sentence."""


@dataclass
class Collected:
    """What was collected, and what was not."""

    learners: int = 0
    notebooks: int = 0
    stems: set[str] = field(default_factory=set)  # of the notebooks' names
    times: int = 0  # how many of the notebooks have one
    on_time: int = 0  # of those without a time, by the system's mark
    marked_late: list[str] = field(default_factory=list)  # of those without a time: the learners
    left_out: list[tuple[str, str]] = field(default_factory=list)  # path in the zip file, and why
    remarks: list[str] = field(default_factory=list)  # what a person should know
    missing: list[str] = field(default_factory=list)  # on the roster, without a file


@dataclass(frozen=True)
class LearnerNotebook:
    """One notebook of one learner."""

    file: DownloadedFile
    stem: str  # of the name that the learner gave it
    data: bytes
    submitted: datetime | None


def collect(
    system: str,
    archive: Path | str,
    to: Path | str,
    roster: Roster,
    *,
    times: Path | None = None,
    timezone: str | None = None,
) -> Collected:
    """Put each learner's newest notebook of a download into the folder `to`, under the roster's name.

    `times` is a CSV file of times of submission, for a system that doesn't tell them; `timezone` the zone of times
    that name none.

    Raises:
        CollectError, ArchiveError: not such a download, or it can't be read.
        RosterError, ValueError: a table that makes no sense.
    """
    if system not in READERS:
        raise CollectError(f"no system {system!r} to collect from; choose {', '.join(READERS)} or nbgrader")
    zone = zone_of(timezone, '--timezone "{}"') if timezone else None
    recorded = _read_times(times, roster, zone) if times else {}
    collected = Collected()
    with Archive(archive) as opened:
        files = _read(system, opened, {one.group for one in roster.people} - {""})
        collected.left_out = opened.left_out
        groups = _by_learner(files, roster, collected)
        _need_zone(groups, roster, recorded, zone)
        Path(to).mkdir(mode=0o700, parents=True, exist_ok=True)
        with Folder(to) as inbox:
            for label, own in sorted(groups.items()):
                time_of = _Times(recorded, roster, zone, collected, label)
                notebooks = _notebooks(opened, own, time_of, collected)
                write_notebooks(inbox, label, notebooks, collected, system)
                collected.learners += bool(notebooks)
                if not notebooks:
                    collected.remarks.append(f"{label}: no notebook in what was handed in")
    here = [label for label in groups] + _collected_earlier(Path(to), collected.stems)
    collected.missing = roster.missing((label, "") for label in here)
    return collected


def _collected_earlier(inbox: Path, stems: set[str]) -> list[str]:
    """Return whose notebook of the same exercise is in an inbox."""
    exercises = {stem for stem in stems if stem.startswith(RELEASED)} or stems
    return [
        read_name(path.parent.name) for stem in exercises for path in inbox.glob(f"*/{glob.escape(stem)}{COLLECTED}")
    ]


def _need_zone(
    groups: dict[str, list[DownloadedFile]], roster: Roster, times: dict[str, datetime], zone: ZoneInfo | None
) -> None:
    """Refuse times that name no zone before anything is written.

    Raises:
        CollectError: a time names no zone, and none was given.
    """
    for label, files in groups.items():
        for words in () if person(label) in times else _words_of_times(files, roster, label):
            try:
                read_time(words, zone)
            except NoZoneError as reason:
                raise CollectError(f"{label}: {reason}; nothing was collected") from reason
            except ValueError:  # `_Times` says so
                continue


def _words_of_times(files: list[DownloadedFile], roster: Roster, label: str) -> list[str]:
    """Return the times of a learner's files in the system's words, by the download or by the roster."""
    matches = roster.find(label)
    in_roster = matches[0].submitted if len(matches) == 1 else ""
    words = (file.submitted or in_roster for file in files)
    return [text for text in words if text not in ("", "-")]


def _read(system: str, archive: Archive, groups: set[str]) -> list[DownloadedFile]:
    """Return the files of a download.

    Raises:
        ArchiveError: it is another system's, or none.
    """
    before = list(archive.left_out)
    files = READERS[system](archive, groups)
    if files and len(files) >= NEARLY_ALL * len(archive.entries) - 1:
        return files
    archive.left_out[:] = before
    for other, read in READERS.items():
        if other != system and len(read(archive)) >= max(1, NEARLY_ALL * len(archive.entries) - 1):
            raise ArchiveError(f"{archive.path} is a download from {TITLES[other]}: txgrade collect {other} …")
    raise ArchiveError(
        f"{archive.path} is no download from {TITLES[system]}: {len(files)} of its {len(archive.entries)} files are "
        f"named as {TITLES[system]} names them"
    )


def _by_learner(files: list[DownloadedFile], roster: Roster, collected: Collected) -> dict[str, list[DownloadedFile]]:
    """Return the files of each learner, by the roster's name for them; each member of a group has the group's."""
    groups: dict[str, list[DownloadedFile]] = defaultdict(list)
    names: dict[str, set[str]] = defaultdict(set)
    for file in files:
        for submitter in file.submitters:
            names[submitter.id].add(submitter.name)
    unknown: dict[str, str] = {}
    teams: dict[str, str] = {}
    for file in files:
        for submitter in file.submitters or (Submitter("nobody"),):
            if submitter.id and len(names[submitter.id]) > 1:
                collected.left_out.append((file.entry.path, f"two learners have the number {submitter.id}"))
                continue
            people = _people(submitter, roster)
            for one in people:
                if file not in groups[one.label]:
                    groups[one.label].append(file)
            if len(people) > 1:
                teams[submitter.name] = ", ".join(one.label for one in people)
            if not people:
                label = _label(submitter, roster)
                groups[label].append(file)
                unknown[label] = _unknown(submitter, roster)
    if len(unknown) == len(groups):
        raise CollectError(
            f"nobody in the download is on the roster (the first is {next(iter(unknown), 'missing')}): give the roster "
            "that the same system exports"
        )
    collected.remarks += [f"{label}: {why}; collected under this name" for label, why in unknown.items()]
    collected.remarks += [f"the group {name} is {members}" for name, members in teams.items()]
    return groups


def _people(submitter: Submitter, roster: Roster) -> list[Person]:
    """Return the people that a submission is of: one, or the members of a group; none if it isn't certain."""
    named = [one for one in roster.people if _is_called(one, submitter.name)]
    owners = roster.with_id(submitter.id)
    team = [one for one in roster.people if one.group and _similar(one.group) == _similar(submitter.name)]
    if team and not (owners and owners[0] in named):
        return team
    if submitter.id and roster.has_ids:
        return owners
    for key, column in ((submitter.email, "email"), (submitter.student_id, "student_id")):
        if key and any(getattr(one, column) for one in roster.people):
            if len(matches := roster.find(key)) == 1:
                return matches
            named = []  # who has another address is somebody else of that name
    return named if len(named) == 1 else []


def _similar(name: str) -> str:
    return SIMILAR.sub("", person(name))


def _is_called(one: Person, name: str) -> bool:
    """Return whether a name is a person's as Canvas or Moodle write it into a file's name."""
    words = one.label.split()
    orders = ("".join(words[index:] + words[:index]) for index in range(len(words)))
    return _similar(name) in {_similar(one.name), *map(_similar, orders)}


def _unknown(submitter: Submitter, roster: Roster) -> str:
    called = [one for one in roster.people if _is_called(one, submitter.name)]
    if not submitter.id and len(called) > 1:
        return choices(called)
    if submitter.id and not roster.has_ids:
        return "not certain on the roster, which has no ids: give the export of your gradebook"
    return "not on the roster"


def _label(submitter: Submitter, roster: Roster) -> str:
    """Return a name that nobody on the roster has."""
    more = submitter.id or submitter.email or submitter.student_id
    label = safe_name(f"{short_name(submitter.name.replace('_', ' '), 50)}{f' ({more})' if more else ''}")
    while roster.find(label):
        label = safe_name(f"unknown {label}")
    return label


def _notebooks(
    archive: Archive,
    files: list[DownloadedFile],
    time_of: Callable[[DownloadedFile], datetime | None],
    collected: Collected,
) -> list[LearnerNotebook]:
    """Return a learner's notebooks, the newest first."""
    notebooks = []
    has_notebook = any(file.name.lower().endswith(NOTEBOOK) for file in files)
    for file in files:
        path = file.entry.path
        if not file.name.lower().endswith(NOTEBOOK):
            if not (has_notebook and file.name == ONLINE_TEXT):
                packed = file.name.lower().endswith((".zip", ".gz", ".7z", ".rar", ".tar"))
                why = "it is a packed file: ask for the notebook itself" if packed else "it is no notebook"
                collected.left_out.append((path, why))
            continue
        try:
            data = archive.read(file.entry, MAX_BYTES)
        except DamagedError as reason:
            collected.left_out.append((path, str(reason)))
            continue
        if len(data) > MAX_BYTES:
            collected.remarks.append(f"{path} is larger than {MAX_BYTES // 2**20} MB, which is not graded")
        stem = safe_name(file.name[: -len(NOTEBOOK)]).lstrip(".")
        notebooks.append(LearnerNotebook(file, short_name(stem, MAX_STEM) or "notebook", data, time_of(file)))
    return sorted(notebooks, key=lambda notebook: (notebook.file.attempt, notebook.file.version), reverse=True)


class _Times:
    """When the files of one learner were submitted."""

    def __init__(
        self, times: dict[str, datetime], roster: Roster, zone: ZoneInfo | None, collected: Collected, label: str
    ):
        self._time, self._roster, self._zone = times.get(person(label)), roster, zone
        self._collected, self._label = collected, label

    def __call__(self, file: DownloadedFile) -> datetime | None:
        words = _words_of_times([file], self._roster, self._label)
        if self._time or not words:
            return self._time
        try:
            return read_time(words[0], self._zone)
        except ValueError as reason:
            self._collected.remarks.append(f"{self._label}: {reason}; its time is unknown")
            return None


def _read_times(path: Path, roster: Roster, zone: ZoneInfo | None) -> dict[str, datetime]:
    """Return the time of submission of each person that a CSV file names."""
    columns, rows = read_rows(text_of(path))
    if "submitted" not in columns or not columns & {*NAMES}:
        raise CollectError(f"{path} is no table of times: give the columns name and submitted")
    times = {}
    for number, cells in enumerate(rows, 2):
        name = name_in(cells)
        if not name or not cells["submitted"]:
            continue
        try:
            times[person(roster.one(name).label)] = read_time(cells["submitted"], zone)
        except ValueError as reason:
            raise CollectError(f"{path}, line {number}: {reason}") from None
    return times


def write_notebooks(
    inbox: Folder, label: str, notebooks: list[LearnerNotebook], collected: Collected, system: str
) -> None:
    """Write a learner's notebooks into a folder of the learner's; what they replace is kept in `.versions`."""
    with inbox.folder(file_name(label), make=True) as own, own.folder(".versions", make=True) as versions:
        stems = {notebook.stem for notebook in notebooks} | _stems_in(own)
        current: dict[str, LearnerNotebook] = {}
        for notebook in notebooks:
            plain = COPY.sub("", notebook.stem)
            stem = plain if plain in stems or plain.startswith(RELEASED) else notebook.stem
            newer = current.get(stem) or next(iter(current.values()), notebook)
            if stem in current or newer.file.attempt > notebook.file.attempt:
                _keep(versions, stem, notebook.data)
                collected.remarks.append(
                    f"{label}: {newer.file.entry.path} counts, not the earlier {notebook.file.entry.path}"
                )
            else:
                current[stem] = notebook
        if len(current) > 1:
            collected.remarks.append(f"{label}: {len(current)} notebooks, {_which_counts(list(current))}")
        for stem, notebook in current.items():
            has_time = _write_one(own, versions, stem, notebook, system)
            collected.notebooks += 1
            collected.stems.add(stem)
            collected.times += has_time
            collected.on_time += not has_time and notebook.file.late is False
            if notebook.file.late and not has_time:
                collected.marked_late.append(label)


def _which_counts(stems: list[str]) -> str:
    names = ", ".join(f"{stem}{NOTEBOOK}" for stem in stems)
    match [stem for stem in stems if stem.startswith(RELEASED)]:
        case []:
            return f"{names}: none is named like an exercise, so delete those that don't count"
        case [stem]:
            return f"{names}: {stem}{NOTEBOOK} counts; delete it if another should"
        case _:
            return f"{names}: each counts for the exercise that it is named after"


def _stems_in(own: Folder) -> set[str]:
    """Return the names of the notebooks that were collected earlier."""
    return {path.name.removesuffix(COLLECTED) for path in own.path.glob(f"*{COLLECTED}")}


def _write_one(own: Folder, versions: Folder, stem: str, notebook: LearnerNotebook, system: str) -> bool:
    """Write a notebook and its record; return whether its time of submission is known."""
    digest = hashlib.sha256(notebook.data).hexdigest()
    name, record_name = stem + NOTEBOOK, stem + COLLECTED
    submitted = notebook.submitted.isoformat(timespec="seconds") if notebook.submitted else None
    try:
        before = own.read(name, MAX_BYTES + 1)[0]
        if hashlib.sha256(before).hexdigest() != digest:
            _keep(versions, stem, before)
        elif submitted is None:  # an earlier collection may have known the time
            submitted = json.loads(own.read(record_name, MAX_RECEIPT)[0]).get("submitted")
    except (OSError, ValueError, AttributeError):  # there was none
        pass
    record = {
        "system": system,
        "origin": notebook.file.entry.path.rpartition("/")[2],
        "submitted": submitted,
        "late": notebook.file.late,
        "sha256": digest,
    }
    words = json.dumps(record, indent=1) + "\n"
    write_together([(own, name, notebook.data), (own, record_name, words.encode())])
    return submitted is not None


def _keep(versions: Folder, stem: str, data: bytes) -> None:
    write_together([(versions, f"{stem}-{hashlib.sha256(data).hexdigest()[:8]}{NOTEBOOK}", data)])


def describe(collected: Collected, to: Path | str) -> tuple[str, list[str]]:
    """Return what was collected in one line, and everything that a person should know."""
    from txgrade.text import plural, printable

    late = list(dict.fromkeys(collected.marked_late))
    unknown = collected.notebooks - collected.times - collected.on_time - len(collected.marked_late)
    times = [f"{collected.times} with their times"] * bool(collected.times)
    times += [f"{collected.on_time} on time"] * bool(collected.on_time)
    times += [f"{len(collected.marked_late)} marked late without a time"] * bool(late)
    times += [f"{unknown} whose time is unknown"] * bool(unknown)
    line = f"{plural(collected.notebooks, 'notebook')} of {plural(collected.learners, 'learner')} in {to}"
    line += f": {', '.join(times)}" if times else ""
    left_out = dict.fromkeys(collected.left_out)
    remarks = [f"left out: {path}: {why}" for path, why in left_out] + collected.remarks
    if collected.on_time:
        remarks.append("Canvas tells no times: what it doesn't mark as late is on time, by Canvas' own deadline")
    if late:
        remarks.append(f"marked late, so collect with --times to take points off ({len(late)}): {'; '.join(late)}")
    if collected.missing:
        remarks.append(f"not handed in ({len(collected.missing)}): {'; '.join(collected.missing)}")
    return line, [printable(remark) for remark in remarks]
