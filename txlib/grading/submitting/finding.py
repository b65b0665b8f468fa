"""The submissions in a folder, and whose each of them is."""

import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from txlib.grading.records.people import MAX_NAME, Roster, account, person, safe_name, short_name
from txlib.grading.records.result import Note
from txlib.grading.submitting.notebook import RECEIPT
from txlib.grading.text import printable

MAX_ENTRIES = 10_000  # files of a learner's folder that are looked at
WHOSE = ("owner", "roster", "same person")  # kinds of notes that depend on the other submissions, too


@dataclass(frozen=True)
class HandedIn:
    """One submission in the folder, not yet read. `problem` is a status where there is nothing to read."""

    name: str
    path: Path
    problem: str | None = None
    notes: tuple[Note, ...] = ()  # about whose it is
    given: str = ""  # what it is called in the folder


def find_submissions(folder: Path | str, assignment: str | None = None, roster: Roster | None = None) -> list[HandedIn]:
    """The submissions in a folder, by name: `NAME.ipynb`, or `NAME/anything.ipynb`.

    Of a learner's folder with several notebooks the one named like the assignment counts, and none that was handed
    in as another one's. Hidden files are left out, and no link below the folder is followed. Where several are
    somebody's, by their names (see `people.person`) or by the roster, the one that lies in this person's account has
    the name; where none does, nobody has it, and each gets a name of its own and a note.
    """
    entries = list(_entries(Path(folder).resolve(), assignment))
    people = [_who(entry, roster) for entry in entries]
    accounts = _accounts(entries)
    notes = _notes_on_accounts(entries, people, accounts, roster)
    of_one: dict[str, list[int]] = defaultdict(list)
    for index, who in enumerate(people):
        of_one[who].append(index)
    names = [safe_name(entry.name) for entry in entries]
    taken = {person(name) for name in names} | set(people)
    for several in of_one.values():
        if len(several) == 1:
            continue
        own = [index for index in several if _is_own(entries[index], accounts[index], roster)]
        keeps = own[0] if len(own) == 1 else None
        others = [index for index in several if index != keeps]
        base = names[several[0] if keeps is None else keeps]
        for name, index in zip(_free_names(base, taken), others, strict=False):
            names[index] = name
            notes[index].append(_same_person(entries, several, index, keeps))
    handed_in = [
        HandedIn(name, entry.path, entry.problem, tuple(noted), entry.name)
        for name, entry, noted in zip(names, entries, notes, strict=True)
    ]
    return sorted(handed_in, key=lambda each: each.name)


@dataclass(frozen=True)
class _Entry:
    """What lies in the folder under one name: the notebook, and to whom it and its learner's folder belong."""

    name: str
    path: Path
    problem: str | None
    owner: int  # of the file, or of the learner's folder
    inner: int | None = None  # of the notebook in a learner's folder


def _entries(folder: Path, assignment: str | None) -> Iterator[_Entry]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.startswith(".") or entry.name.endswith(RECEIPT):
            continue
        path = Path(entry.path)
        notebook = path.suffix.lower() == ".ipynb"
        try:
            if entry.is_dir(follow_symlinks=False):
                yield _in_folder(entry, assignment)
            elif notebook or entry.is_symlink():
                owner = entry.stat(follow_symlinks=False).st_uid
                yield _Entry(path.stem if notebook else entry.name, path, "link" if entry.is_symlink() else None, owner)
        except FileNotFoundError:  # it was taken away meanwhile
            continue


def _in_folder(folder: os.DirEntry, assignment: str | None) -> _Entry:
    name, path, owner = folder.name, Path(folder.path), folder.stat(follow_symlinks=False).st_uid
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
        return _Entry(name, path, "unreadable", owner)
    if len(entries) > 1 and assignment:
        others = {entry.name.removesuffix(RECEIPT) for entry in inside if entry.name.endswith(RECEIPT)} - {assignment}
        entries = [entry for entry in entries if Path(entry.name).stem not in others]
        entries = [entry for entry in entries if Path(entry.name).stem == assignment] or entries
    if not entries:
        return _Entry(name, path, "no notebook", owner)
    if len(entries) > 1:
        return _Entry(name, path, "several notebooks", owner)
    problem = "link" if entries[0].is_symlink() else None
    return _Entry(name, Path(entries[0].path), problem, owner, entries[0].stat(follow_symlinks=False).st_uid)


def _who(entry: _Entry, roster: Roster | None) -> str:
    """What stands for the person that a submission's name means."""
    known = roster.find(entry.name) if roster else []
    return f"row {known[0].row}" if len(known) == 1 else person(entry.name)


def _accounts(entries: list[_Entry]) -> list[str]:
    """The login name of each submission's owner; nothing where an owner says nothing about the learner.

    That is so of what whoever grades, or root, has put there, and where everything belongs to one: it was copied, or
    all learners work in containers under the same user.
    """
    uids = {entry.owner for entry in entries}
    silent = {os.geteuid(), 0} if len(uids) > 1 or len(entries) == 1 else uids
    names = {uid: account(uid) for uid in uids - silent}
    return [names.get(entry.owner, "") for entry in entries]


def _is_own(entry: _Entry, login: str, roster: Roster | None) -> bool:
    """Whether a submission lies in the account of whom its name means."""
    if not login:
        return False
    if roster and (known := roster.find(entry.name)):
        return len(known) == 1 and known == roster.find(login)
    return person(entry.name) == person(login)


def _notes_on_accounts(
    entries: list[_Entry], people: list[str], accounts: list[str], roster: Roster | None
) -> list[list[Note]]:
    """For each submission what its owner, and the roster, give reason to say.

    Another account than the name's needs a look where names are accounts' in this folder, or the roster says whose
    either is, or one account holds several people's: else learners may have been asked for their full names.
    """
    own = [_is_own(entry, login, roster) for entry, login in zip(entries, accounts, strict=True)]
    by_login = any(own)
    held = Counter(login for login, _ in set(zip(accounts, people, strict=True)))
    notes: list[list[Note]] = []
    for entry, login, is_own in zip(entries, accounts, own, strict=True):
        noted = []
        if entry.inner not in (None, entry.owner, os.geteuid(), 0):
            noted.append(Note("owner", "the notebook does not belong to whom its folder belongs"))
        known = roster.find(entry.name) if roster else []
        if login and not is_own:
            look = by_login or held[login] > 1 or bool(roster and (known or roster.find(login)))
            noted.append(Note("owner", f"handed in from the account `{printable(login)}`", review=look))
        if roster and len(known) != 1:
            noted.append(Note("roster", "several in the roster have this name" if known else "not in the roster"))
        notes.append(noted)
    return notes


def _same_person(entries: list[_Entry], several: list[int], index: int, keeps: int | None) -> Note:
    others = several[:4] if keeps is None else [keeps]
    names = [entries[each].name if entries[each].inner else entries[each].path.name for each in others if each != index]
    shown = ", ".join(f"`{printable(name)[:MAX_NAME]}`" for name in names[:3])
    if keeps is not None:
        return Note("same person", f"the same name as {shown}, which counts: it lies in this person's own account")
    more = " and others" if len(several) > 4 else ""
    return Note("same person", f"the same name as {shown}{more}: none of them counts for it until one is left")


def _free_names(name: str, taken: set[str]) -> Iterator[str]:
    """The name with a number, each time another one that nobody has."""
    for number in itertools.count(1):
        free = f"{short_name(name, MAX_NAME - len(str(number)) - 1)}-{number}"
        if person(free) not in taken:
            taken.add(person(free))
            yield free
