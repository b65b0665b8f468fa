"""The submissions in a folder, and whose they are."""

import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from txgrade.authoring.notebooks import released_name
from txgrade.records.people import (
    MAX_NAME,
    Roster,
    account,
    is_marked_late,
    lms_of,
    numbers_in,
    person,
    read_name,
    safe_name,
    short_name,
    unlike_a_file,
)
from txgrade.records.result import Note
from txgrade.submitting.notebook import RECEIPT
from txgrade.text import printable

MAX_ENTRIES = 10_000  # files of a learner's folder that are looked at
NUMBER_BYTES = 7  # of a name, for a number behind it
ONLINE_TEXT = "_assignsubmission_onlinetext_"  # ends the name of a Moodle folder that never holds a file
WHOSE = ("owner", "roster", "same person")  # kinds of notes that depend on the other submissions as well


@dataclass(frozen=True)
class SubmissionFile:
    """One submission in the folder, not yet read. `problem` is a status if there is nothing to read."""

    name: str  # that it is graded under
    path: Path
    problem: str | None = None
    notes: tuple[Note, ...] = ()  # on whose it is
    file_name: str = ""  # in the folder, without a notebook's ending; read as UTF-8, whatever the locale
    number: str = ""  # the learner's, if Canvas or Moodle put it into the file's name
    marked_late: bool | None = None  # by Canvas, in the file's name; None if Canvas didn't name it
    learner: str = ""  # as the roster calls them
    known_as: tuple[str, ...] = ()  # all that the roster calls them
    owner: int = 0  # of the file, or of the learner's folder
    notebook_owner: int | None = None  # of the notebook in a learner's folder
    is_folder: bool = False


def find_submissions(
    folder: Path | str, assignment: str | None = None, roster: Roster | None = None
) -> list[SubmissionFile]:
    """Return the submissions in a folder, by name: `NAME.ipynb`, or `NAME/anything.ipynb`.

    Of several notebooks in a learner's folder the one named like the assignment counts, and none that was submitted as
    another one's. Hidden files are left out, and no link below the folder is followed. If several are one person's, by
    their names (see `people.person`), by the number in a download's name, or by the roster, the one in this person's
    own account gets the name; if none is, nobody gets it, and each gets a name of its own and a note. No two names are
    the same, whatever their case.
    """
    files = _with_numbers(list(_files(Path(folder).resolve(), assignment)))
    people = [_who(file, roster) for file in files]
    accounts = _accounts(files)
    notes = _notes_on_accounts(files, people, accounts, roster)
    names = [_own_name(file) for file in files]
    free = _FreeNames({*map(person, names), *(roster.names if roster else ())})
    for group in _duplicates(people):
        own = [index for index in group if _is_own(files[index], accounts[index], roster)]
        keeper = own[0] if len(own) == 1 else None
        base = names[group[0] if keeper is None else keeper]
        for index in group:
            if index != keeper:
                names[index] = free.like(base)
                notes[index].append(_same_person(files, group, index, keeper))
    for group in _duplicates(map(person, names)):  # two people's, by their numbers
        for index in group:
            names[index] = free.like(names[index])
            notes[index].append(_same_person(files, group, index, None))
    named = [
        replace(file, name=name, notes=tuple(file_notes), **_learner(file, roster))
        for file, name, file_notes in zip(files, names, notes, strict=True)
    ]
    return sorted(named, key=lambda file: file.name)


def _files(folder: Path, assignment: str | None) -> Iterator[SubmissionFile]:
    for entry in sorted(os.scandir(folder), key=lambda entry: os.fsencode(entry.name)):
        if entry.name.startswith("."):
            continue
        path = Path(entry.path)
        is_notebook = path.suffix.lower() == ".ipynb"
        try:
            if entry.is_dir(follow_symlinks=False):
                yield _in_folder(entry, assignment)
            elif (is_notebook or entry.is_symlink()) and not entry.name.endswith(RECEIPT):
                name = read_name(path.stem if is_notebook else entry.name)
                owner = entry.stat(follow_symlinks=False).st_uid
                problem = "link" if entry.is_symlink() else None
                yield SubmissionFile(name, path, problem, file_name=name, owner=owner)
        except FileNotFoundError:  # it was taken away meanwhile
            continue


def _in_folder(folder: os.DirEntry, assignment: str | None) -> SubmissionFile:
    """Return the notebook in a learner's folder; the folder itself, with a problem, if no single one counts."""
    name, owner = read_name(folder.name), folder.stat(follow_symlinks=False).st_uid
    file = SubmissionFile(name, Path(folder.path), file_name=name, owner=owner, is_folder=True)
    try:
        with os.scandir(folder.path) as entries:
            inside = list(itertools.islice(entries, MAX_ENTRIES))
        notebooks = [
            entry
            for entry in inside
            if entry.name.lower().endswith(".ipynb")
            and not entry.name.startswith(".")
            and not entry.is_dir(follow_symlinks=False)
        ]
    except OSError:
        return replace(file, problem="unreadable")
    if len(notebooks) > 1 and assignment:
        others = {entry.name.removesuffix(RECEIPT) for entry in inside if entry.name.endswith(RECEIPT)} - {assignment}
        notebooks = [entry for entry in notebooks if Path(entry.name).stem not in others]
        for own in (assignment, Path(released_name(assignment)).stem):
            notebooks = [entry for entry in notebooks if Path(entry.name).stem == own] or notebooks
    if len(notebooks) != 1:
        return replace(file, problem="several notebooks" if notebooks else "no notebook")
    (notebook,) = notebooks
    problem = "link" if notebook.is_symlink() else None
    notebook_owner = notebook.stat(follow_symlinks=False).st_uid
    return replace(file, path=Path(notebook.path), problem=problem, notebook_owner=notebook_owner)


def _with_numbers(files: list[SubmissionFile]) -> list[SubmissionFile]:
    """Fill in the learners' numbers, and drop Moodle's folders with an online text if the learner submitted a file."""
    numbers = numbers_in((file.file_name for file in files), {file.file_name for file in files if file.is_folder})
    files = [
        replace(file, number=number, marked_late=is_marked_late(file.file_name) if number else None)
        for file in files
        for number in [numbers.get(file.file_name, "")]
    ]
    is_text = [file.is_folder and file.file_name.endswith(ONLINE_TEXT) for file in files]
    with_file = {file.number for file, text in zip(files, is_text, strict=True) if not text} - {""}
    return [
        file
        for file, text in zip(files, is_text, strict=True)
        if not (text and file.problem == "no notebook" and file.number in with_file)
    ]


def _who(file: SubmissionFile, roster: Roster | None) -> Hashable:
    """Return what stands for the person that a submission's name means."""
    matches = roster.find(file.file_name, file.number) if roster else []
    return matches[0].row if len(matches) == 1 else file.number or person(file.file_name)


def _learner(file: SubmissionFile, roster: Roster | None) -> dict[str, Any]:
    """Return what the roster calls the one person that a submission's name means."""
    matches = roster.find(file.file_name, file.number) if roster else []
    return {"learner": matches[0].label, "known_as": tuple(sorted(matches[0].names))} if len(matches) == 1 else {}


def _own_name(file: SubmissionFile) -> str:
    """Return a submission's name by its file's; if that is too long, a download's keeps the learner's number."""
    name = safe_name(file.file_name)
    if file.number and not lms_of(name):
        learner, _, rest = file.file_name.partition("_")
        name = safe_name(f"{short_name(learner, MAX_NAME // 2)}_{rest}")
    return name


def _duplicates(keys: Iterable[Hashable]) -> list[list[int]]:
    """Return the indices of each key that is there more than once."""
    indices: dict[Hashable, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        indices[key].append(index)
    return [group for group in indices.values() if len(group) > 1]


def _accounts(files: list[SubmissionFile]) -> list[str]:
    """Return the login name of each submission's owner; '' where an owner says nothing about the learner.

    That is so of what root or the person who grades has put there, and if everything belongs to one user: it was
    copied, or all learners work in containers under the same user.
    """
    uids = {file.owner for file in files}
    silent = {os.geteuid(), 0} if len(uids) > 1 or len(files) == 1 else uids
    logins = {uid: account(uid) for uid in uids - silent}
    return [logins.get(file.owner, "") for file in files]


def _is_own(file: SubmissionFile, login: str, roster: Roster | None) -> bool:
    """Return whether a submission lies in the account of the person that its name means."""
    if not login:
        return False
    if roster and (matches := roster.find(file.file_name, file.number)):
        return len(matches) == 1 and matches == roster.find(login)
    return person(file.file_name) == person(login)


def _notes_on_accounts(
    files: list[SubmissionFile], people: list[Hashable], accounts: list[str], roster: Roster | None
) -> list[list[Note]]:
    """Return for each submission the notes that its owner and the roster give reason for.

    Another account than the name's needs a look if names are accounts' in this folder, or the roster says whose
    either is, or one account holds several people's: else learners may have been asked for their full names.
    """
    own = [_is_own(file, login, roster) for file, login in zip(files, accounts, strict=True)]
    by_login = any(own)
    people_of = Counter(login for login, _ in set(zip(accounts, people, strict=True)))
    notes: list[list[Note]] = []
    for file, login, is_own in zip(files, accounts, own, strict=True):
        file_notes = []
        if file.notebook_owner not in (None, file.owner, os.geteuid(), 0):
            file_notes.append(Note("owner", "the notebook and its folder belong to different accounts"))
        matches = roster.find(file.file_name, file.number) if roster else []
        if login and not is_own:
            look = by_login or people_of[login] > 1 or bool(roster and (matches or roster.find(login)))
            file_notes.append(Note("owner", f"submitted from the account `{printable(login)}`", review=look))
        if roster and len(matches) != 1:
            text = "several people in the roster have this name" if matches else "not in the roster"
            file_notes.append(Note("roster", text))
        notes.append(file_notes)
    return notes


def _same_person(files: list[SubmissionFile], group: list[int], index: int, keeper: int | None) -> Note:
    others = [files[other] for other in (group[:4] if keeper is None else [keeper]) if other != index]
    names = [file.file_name if file.is_folder else read_name(file.path.name) for file in others]
    shown = ", ".join(f"`{printable(name)[:MAX_NAME]}`" for name in names[:3])
    number = files[index].number
    same = f"the same learner's (number {number}) as {shown}" if number else f"the same name as {shown}"
    if keeper is not None:
        return Note("same person", f"{same}, which counts: it lies in this person's own account")
    more = " and others" if len(group) > 4 else ""
    return Note("same person", f"{same}{more}: none of them counts until only one is left")


class _FreeNames:
    """Names with a number behind that nobody has, and that nothing mistakes for a file's of Canvas or Moodle."""

    def __init__(self, taken: set[str]):
        self._taken = taken
        self._last: Counter[str] = Counter()  # number behind a name

    def like(self, name: str) -> str:
        """Return such a name, another one each time."""
        name = short_name(unlike_a_file(name), MAX_NAME - NUMBER_BYTES)
        numbered = person(f"{name}-1")
        if not numbered.endswith("-1") or len(numbered.encode()) > MAX_NAME - NUMBER_BYTES + 2:  # no room for it
            name = short_name(unlike_a_file(person(name)), MAX_NAME - NUMBER_BYTES)
        base = person(name)
        for number in range(self._last[base] + 1, self._last[base] + len(self._taken) + 2):
            free = f"{name}-{number}"
            if person(free) not in self._taken:
                break
        self._last[base] = number
        self._taken.add(person(free))
        return free
