"""The submissions in a folder, and whose each of them is."""

import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from txgrade.records.people import (
    MAX_NAME,
    Roster,
    account,
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
ROOM = 7  # bytes of a name for a number behind it
ONLINE_TEXT = "_assignsubmission_onlinetext_"  # ends a folder of Moodle's that never holds a file
WHOSE = ("owner", "roster", "same person")  # kinds of notes that depend on the other submissions, too


@dataclass(frozen=True)
class HandedIn:
    """One submission in the folder, not yet read. `problem` is a status where there is nothing to read."""

    name: str
    path: Path
    problem: str | None = None
    notes: tuple[Note, ...] = ()  # about whose it is
    given: str = ""  # what it is called in the folder
    number: str = ""  # the learner's, where Canvas or Moodle put it into the name


def find_submissions(folder: Path | str, assignment: str | None = None, roster: Roster | None = None) -> list[HandedIn]:
    """The submissions in a folder, by name: `NAME.ipynb`, or `NAME/anything.ipynb`.

    Of a learner's folder with several notebooks the one named like the assignment counts, and none that was handed
    in as another one's. Hidden files are left out, and no link below the folder is followed. Where several are
    somebody's, by their names (see `people.person`), by the number in a download's, or by the roster, the one that
    lies in this person's account has the name; where none does, nobody has it, and each gets a name of its own and a
    note. No two names are the same, whatever their case.
    """
    entries = list(_entries(Path(folder).resolve(), assignment))
    numbers = numbers_in((entry.name for entry in entries), {entry.name for entry in entries if entry.is_folder})
    entries = list(_without_online_texts(entries, numbers))
    people = [_who(entry, roster, numbers) for entry in entries]
    accounts = _accounts(entries)
    notes = _notes_on_accounts(entries, people, accounts, roster, numbers)
    names = [_own_name(entry, numbers) for entry in entries]
    free = _FreeNames({*map(person, names), *(roster.names if roster else ())})
    for several in _alike(people):
        own = [index for index in several if _is_own(entries[index], accounts[index], roster, numbers)]
        keeps = own[0] if len(own) == 1 else None
        base = names[several[0] if keeps is None else keeps]
        for index in several:
            if index != keeps:
                names[index] = free.like(base)
                notes[index].append(_same_person(entries, several, index, keeps, numbers))
    for several in _alike(map(person, names)):  # two people's, by their numbers
        for index in several:
            names[index] = free.like(names[index])
            notes[index].append(_same_person(entries, several, index, None, numbers))
    handed_in = [
        HandedIn(name, entry.path, entry.problem, tuple(noted), entry.name, numbers.get(entry.name, ""))
        for name, entry, noted in zip(names, entries, notes, strict=True)
    ]
    return sorted(handed_in, key=lambda each: each.name)


@dataclass(frozen=True)
class _Entry:
    """What lies in the folder under one name: the notebook, and to whom it and its learner's folder belong."""

    name: str  # read as UTF-8, whatever the locale
    path: Path
    problem: str | None
    owner: int  # of the file, or of the learner's folder
    inner: int | None = None  # of the notebook in a learner's folder
    is_folder: bool = False


def _entries(folder: Path, assignment: str | None) -> Iterator[_Entry]:
    for entry in sorted(os.scandir(folder), key=lambda entry: os.fsencode(entry.name)):
        if entry.name.startswith("."):
            continue
        path = Path(entry.path)
        notebook = path.suffix.lower() == ".ipynb"
        name = read_name(path.stem if notebook else entry.name)
        try:
            if entry.is_dir(follow_symlinks=False):
                yield _in_folder(entry, assignment)
            elif (notebook or entry.is_symlink()) and not entry.name.endswith(RECEIPT):
                owner = entry.stat(follow_symlinks=False).st_uid
                yield _Entry(name, path, "link" if entry.is_symlink() else None, owner)
        except FileNotFoundError:  # it was taken away meanwhile
            continue


def _in_folder(folder: os.DirEntry, assignment: str | None) -> _Entry:
    name, path, owner = read_name(folder.name), Path(folder.path), folder.stat(follow_symlinks=False).st_uid
    try:
        with os.scandir(path) as all:
            inside = list(itertools.islice(all, MAX_ENTRIES))
        entries = [
            entry
            for entry in inside
            if entry.name.lower().endswith(".ipynb")
            and not entry.name.startswith(".")
            and not entry.is_dir(follow_symlinks=False)
        ]
    except OSError:
        return _Entry(name, path, "unreadable", owner, is_folder=True)
    if len(entries) > 1 and assignment:
        others = {entry.name.removesuffix(RECEIPT) for entry in inside if entry.name.endswith(RECEIPT)} - {assignment}
        entries = [entry for entry in entries if Path(entry.name).stem not in others]
        entries = [entry for entry in entries if Path(entry.name).stem == assignment] or entries
    if not entries:
        return _Entry(name, path, "no notebook", owner, is_folder=True)
    if len(entries) > 1:
        return _Entry(name, path, "several notebooks", owner, is_folder=True)
    problem = "link" if entries[0].is_symlink() else None
    inner = entries[0].stat(follow_symlinks=False).st_uid
    return _Entry(name, Path(entries[0].path), problem, owner, inner, is_folder=True)


def _without_online_texts(entries: list[_Entry], numbers: dict[str, str]) -> Iterator[_Entry]:
    """All but the folders of Moodle's with a text typed online, where the same learner has handed in a file, too."""
    texts = [entry.is_folder and entry.name.endswith(ONLINE_TEXT) for entry in entries]
    filed = {numbers.get(entry.name) for entry, is_text in zip(entries, texts, strict=True) if not is_text} - {None}
    for entry, is_text in zip(entries, texts, strict=True):
        if not (is_text and entry.problem == "no notebook" and numbers.get(entry.name) in filed):
            yield entry


def _who(entry: _Entry, roster: Roster | None, numbers: dict[str, str]) -> Hashable:
    """What stands for the person that a submission's name means."""
    number = numbers.get(entry.name, "")
    known = roster.find(entry.name, number) if roster else []
    return known[0].row if len(known) == 1 else number or person(entry.name)


def _own_name(entry: _Entry, numbers: dict[str, str]) -> str:
    """A submission's name by its file's; where this has no room, a download's keeps the learner's number."""
    name = safe_name(entry.name)
    if entry.name in numbers and not lms_of(name):
        learner, _, rest = entry.name.partition("_")
        name = safe_name(f"{short_name(learner, MAX_NAME // 2)}_{rest}")
    return name


def _alike(keys: Iterable[Hashable]) -> list[list[int]]:
    """The places of each key that is there more than once."""
    places: dict[Hashable, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        places[key].append(index)
    return [several for several in places.values() if len(several) > 1]


def _accounts(entries: list[_Entry]) -> list[str]:
    """The login name of each submission's owner; nothing where an owner says nothing about the learner.

    That is so of what whoever grades, or root, has put there, and where everything belongs to one: it was copied, or
    all learners work in containers under the same user.
    """
    uids = {entry.owner for entry in entries}
    silent = {os.geteuid(), 0} if len(uids) > 1 or len(entries) == 1 else uids
    names = {uid: account(uid) for uid in uids - silent}
    return [names.get(entry.owner, "") for entry in entries]


def _is_own(entry: _Entry, login: str, roster: Roster | None, numbers: dict[str, str]) -> bool:
    """Whether a submission lies in the account of whom its name means."""
    if not login:
        return False
    if roster and (known := roster.find(entry.name, numbers.get(entry.name, ""))):
        return len(known) == 1 and known == roster.find(login)
    return person(entry.name) == person(login)


def _notes_on_accounts(
    entries: list[_Entry],
    people: list[Hashable],
    accounts: list[str],
    roster: Roster | None,
    numbers: dict[str, str],
) -> list[list[Note]]:
    """For each submission what its owner, and the roster, give reason to say.

    Another account than the name's needs a look where names are accounts' in this folder, or the roster says whose
    either is, or one account holds several people's: else learners may have been asked for their full names.
    """
    own = [_is_own(entry, login, roster, numbers) for entry, login in zip(entries, accounts, strict=True)]
    by_login = any(own)
    held = Counter(login for login, _ in set(zip(accounts, people, strict=True)))
    notes: list[list[Note]] = []
    for entry, login, is_own in zip(entries, accounts, own, strict=True):
        noted = []
        if entry.inner not in (None, entry.owner, os.geteuid(), 0):
            noted.append(Note("owner", "the notebook does not belong to whom its folder belongs"))
        known = roster.find(entry.name, numbers.get(entry.name, "")) if roster else []
        if login and not is_own:
            look = by_login or held[login] > 1 or bool(roster and (known or roster.find(login)))
            noted.append(Note("owner", f"handed in from the account `{printable(login)}`", review=look))
        if roster and len(known) != 1:
            noted.append(Note("roster", "several in the roster have this name" if known else "not in the roster"))
        notes.append(noted)
    return notes


def _same_person(
    entries: list[_Entry], several: list[int], index: int, keeps: int | None, numbers: dict[str, str]
) -> Note:
    others = several[:4] if keeps is None else [keeps]
    names = [
        entries[each].name if entries[each].is_folder else read_name(entries[each].path.name)
        for each in others
        if each != index
    ]
    shown = ", ".join(f"`{printable(name)[:MAX_NAME]}`" for name in names[:3])
    number = numbers.get(entries[index].name)
    same = f"the same learner's (number {number}) as {shown}" if number else f"the same name as {shown}"
    if keeps is not None:
        return Note("same person", f"{same}, which counts: it lies in this person's own account")
    more = " and others" if len(several) > 4 else ""
    return Note("same person", f"{same}{more}: none of them counts until one is left")


class _FreeNames:
    """Names with a number behind that nobody has, and that nothing takes for a file's of Canvas' or Moodle's."""

    def __init__(self, taken: set[str]):
        self._taken = taken
        self._last: Counter[str] = Counter()  # number behind a name

    def like(self, name: str) -> str:
        """Such a name, each time another one."""
        name = short_name(unlike_a_file(name), MAX_NAME - ROOM)
        compared = person(f"{name}-1")
        if not compared.endswith("-1") or len(compared.encode()) > MAX_NAME - ROOM + 2:  # no room for the number
            name = short_name(unlike_a_file(person(name)), MAX_NAME - ROOM)
        known = person(name)
        for number in range(self._last[known] + 1, self._last[known] + len(self._taken) + 2):
            free = f"{name}-{number}"
            if person(free) not in self._taken:
                break
        self._last[known] = number
        self._taken.add(person(free))
        return free
