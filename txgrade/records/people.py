"""Whose a submission is: one person has one name, however it is written, and a roster says who is who.

Wherever names are compared (inbox, gradebook, tables for other systems, roster), `person` of them is compared. If a
whole folder was downloaded from Canvas or Moodle, `numbers_in` returns the number in each file's name.
"""

import csv
import io
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Container, Iterable, Set
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

MAX_NAME = 100  # bytes of a name in UTF-8
MAX_ROSTER = 10 * 2**20  # bytes

# How the bulk downloads of Canvas and Moodle name a learner's files. In the learner's part Moodle leaves no underscore,
# and Canvas none of those that people's names have: what learners call their files comes after the number.
CANVAS_FILE = re.compile("(?P<learner>[^_]+)_(?:LATE_)?(?P<number>[0-9]+)_(?P<file>[0-9]+)_.", re.DOTALL)
MOODLE_FILE = re.compile("(?P<learner>[^_]+)_(?P<number>[0-9]+)_assignsubmission_")
FORMS = {"Canvas": CANVAS_FILE, "Moodle": MOODLE_FILE}
NEARLY_ALL = 0.8  # of a folder's names have an LMS's form where it was downloaded from there
PLAIN = re.compile("[A-Za-z0-9_ .@+-]*")  # nothing in it is ever replaced
TEST_STUDENT = "Student, Test"  # whom Canvas puts into every course


class RosterError(ValueError):
    """A file that is not a roster."""


def safe_name(name: str) -> str:
    """Return a name for files and tables: readable in any language, without what a path or a terminal would act on."""
    name = unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode("utf-8"))
    if PLAIN.fullmatch(name):
        return short_name(name.strip(" .")) or "_"
    return short_name(name.translate(_SAFE).strip(" .")) or "_"


class _Safe(dict[int, str]):
    """The replacement of each character in a name, worked out when it is first needed."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        kind = unicodedata.category(character)[0]
        self[code] = " " if kind == "Z" else "_" if kind == "C" or character in '/\\:*?"<>|' else character
        return self[code]


_SAFE = _Safe()


def short_name(name: str, most: int = MAX_NAME) -> str:
    """Return the part of a name that fits into so many bytes, in whole characters."""
    return name.encode()[:most].decode(errors="ignore").strip(" .")


@lru_cache(50_000)
def person(name: str) -> str:
    """Return what a name is compared by: without case, extra blanks and differences of Unicode's forms (NFKC)."""
    before = None
    for _ in range(10):  # folding may leave what another form or a cut changes again; twice was always enough
        before, name = name, " ".join(safe_name(unicodedata.normalize("NFKC", safe_name(name)).casefold()).split())
        if name == before:
            break
    return name


def lms_of(name: str) -> str:
    """Return "Canvas" or "Moodle" if a name has the form that they give a learner's file, else ""."""
    return next((lms for lms, form in FORMS.items() if form.match(name)), "")


def unlike_a_file(name: str) -> str:
    """Return a name without the form of an LMS's file: what such a name says of the learner."""
    for form in FORMS.values():
        if match := form.match(name):
            name = f"{match['learner']}-{match['number']}"
    return name.replace("_", "-") if lms_of(f"{name}-1") else name


def numbers_in(names: Iterable[str], folders: Container[str] = ()) -> dict[str, str]:
    """Return the learner's number in each name that Canvas or Moodle made, if nearly all names of a folder are theirs.

    The form alone proves nothing: learners may name a file so, or a whole class `ada_2026_03_attention`. In a download
    a number belongs to one learner's name, and a file's number to one learner. Canvas makes no folders, so their names
    are never its own.
    """
    names = set(names)
    for lms, form in FORMS.items():
        matches = {name: match.groupdict() for name in names if (match := form.match(name))}
        if lms == "Canvas":
            matches = {name: parts for name, parts in matches.items() if name not in folders}
        learners, owners = defaultdict(set), defaultdict(set)
        for name, parts in matches.items():
            learners[parts["number"]].add(person(parts["learner"]))
            owners[parts.get("file", name)].add(parts["number"])
        numbers = {
            name: parts["number"].lstrip("0") or "0"
            for name, parts in matches.items()
            if len(learners[parts["number"]]) == len(owners[parts.get("file", name)]) == 1
        }
        if numbers and len(numbers) >= NEARLY_ALL * len(names):
            return numbers
    return {}


def read_name(name: str) -> str:
    """Return a name from the system (a file's, a login, an argument), read as UTF-8 whatever the locale."""
    return os.fsencode(name).decode("utf-8", "surrogateescape")


def file_name(name: str) -> str:
    """Return a name as the system's functions take it, so that a file's is UTF-8 whatever the locale."""
    return os.fsdecode(name.encode("utf-8", "surrogateescape"))


def account(uid: int) -> str:
    """Return the login name of a user of this machine."""
    import pwd

    try:
        return read_name(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return f"uid {uid}"


@dataclass(frozen=True)
class Person:
    """A person on a roster: how it writes the name, and all that this person's submission may be called."""

    name: str
    names: frozenset[str]  # as `person` gives them
    row: int = 0  # in the roster, from 0


class Roster:
    """Who takes part.

    >>> roster = Roster.of(["Ada Lovelace", "ada", "1001"], ["Bob Rose", "bob"])
    >>> [one.name for one in roster.find("ADA")]
    ['Ada Lovelace']
    """

    def __init__(self, people: Iterable[Person]):
        self.people = tuple(people)
        self._by_name: dict[str, list[Person]] = {}
        for one in self.people:
            for name in one.names:
                self._by_name.setdefault(name, []).append(one)

    @classmethod
    def of(cls, *people: Iterable[str]) -> "Roster":
        """Return a roster of people by their names, of which the first is what they are called."""
        return cls(person_named(names, row) for row, names in enumerate(people))

    @property
    def names(self) -> Set[str]:
        """Return all names in it, as `person` gives them."""
        return self._by_name.keys()

    def find(self, name: str, number: str = "") -> list[Person]:
        """Return everybody with a name; a file's own name goes before the number that an LMS put into it."""
        return self._by_name.get(person(name)) or self._by_name.get(number) or []

    def missing(self, names: Iterable[tuple[str, str]]) -> list[str]:
        """Return who has none of these names and numbers (of an LMS, or ''), as the roster calls them, in its order."""
        present = {one.row for name, number in names for one in self.find(name, number)}
        return [one.name for one in self.people if one.row not in present]


def person_named(names: Iterable[str], row: int = 0) -> Person:
    """Return a person by the names on a roster, of which the first is the usual one; empty ones don't count."""
    names = [name.strip() for name in names if name.strip()]
    ways = {*names, *(name.partition("@")[0] for name in names), *map(turned, names)}
    return Person(names[0] if names else "", frozenset(map(person, ways)) if names else frozenset(), row)


def turned(name: str) -> str:
    """Return `Lovelace, Ada` as `Ada Lovelace`."""
    last, comma, first = name.partition(",")
    return f"{first.strip()} {last.strip()}" if comma else name


def read_roster(path: Path | str) -> Roster:
    """Read a roster: Canvas' gradebook export, Moodle's grading worksheet, or a CSV with a column `name`.

    Of one's own, the columns `name`, `login`, `email` and `id` count, whatever else is there.

    Raises:
        FileNotFoundError: no such file.
        RosterError: it is not text in UTF-8, not a CSV file, or has no column of names.
    """
    header, rows = read_table(text_of(path))
    if {"Student", "ID"} <= set(header):
        people = [
            canvas_names(row) for row in rows if row["ID"].strip().isdigit() and row["Student"].strip() != TEST_STUDENT
        ]
    elif "Identifier" in header:
        people = [moodle_names(row) for row in rows]
    else:
        lower = [name.strip().lower() for name in header]
        if "name" not in lower:
            raise RosterError(f"{path} has no column `name` (nor is it an export of Canvas' or Moodle's)")
        wanted = [header[lower.index(name)] for name in ("name", "login", "email", "id") if name in lower]
        people = [[row[name] for name in wanted] for row in rows]
    return Roster.of(*(names for names in people if any(name.strip() for name in names)))


def canvas_names(row: dict[str, str]) -> list[str]:
    """Return what a person in Canvas' export may be called."""
    return [row["Student"], row["ID"], row.get("SIS Login ID", ""), row.get("SIS User ID", "")]


def moodle_names(row: dict[str, str]) -> list[str]:
    """Return what a person in Moodle's worksheet may be called, including the number of "Participant 1234"."""
    identifier = row["Identifier"]
    return [
        row.get("Full name", "") or identifier,
        identifier,
        re.sub(r"\D", "", identifier),
        row.get("Email address", ""),
        row.get("ID number", ""),
    ]


def text_of(path: Path | str) -> str:
    """Return the text of a roster.

    Raises:
        RosterError: it is too large, or not text in UTF-8.
    """
    with open(path, "rb") as file:  # it may be a pipe, whose size is unknown
        data = file.read(MAX_ROSTER + 1)
    if len(data) > MAX_ROSTER:
        raise RosterError(f"{path} is larger than {MAX_ROSTER // 2**20} MB: is this the roster?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as reason:
        raise RosterError(f"{path} is not text in UTF-8; export it again") from reason


def read_table(text: str) -> tuple[list[str], list[dict[str, str]]]:
    """Return the header and the rows of a CSV file.

    Raises:
        RosterError: it is not a CSV file.
    """
    try:
        rows = list(csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True))
    except csv.Error as reason:
        raise RosterError(f"the roster is not a CSV file: {reason}") from reason
    header = rows[0] if rows else []
    full = [row + [""] * (len(header) - len(row)) for row in rows[1:] if any(row)]
    return header, [dict(zip(header, row, strict=False)) for row in full]
