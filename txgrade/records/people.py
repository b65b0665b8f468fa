"""Whose a submission is: one person has one name, however it is written, and a roster says who is who.

Wherever names are compared (inbox, gradebook, tables for other systems, roster), `person` of them is compared. If a
whole folder was downloaded from Canvas or Moodle, `numbers_in` returns the number in each file's name.
"""

import csv
import io
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

MAX_NAME = 100  # bytes of a name in UTF-8
MAX_ROSTER = 10 * 2**20  # bytes

# How the bulk downloads of Canvas and Moodle name a learner's files. In the learner's part Moodle leaves no underscore,
# and Canvas none of those that people's names have: what learners call their files comes after the number.
CANVAS_FILE = re.compile("(?P<learner>[^_]+)_(?P<late>LATE_)?(?P<number>[0-9]+)_(?P<file>[0-9]+)_.", re.DOTALL)
MOODLE_FILE = re.compile("(?P<learner>[^_]+)_(?P<number>[0-9]+)_assignsubmission_")
FORMS = {"Canvas": CANVAS_FILE, "Moodle": MOODLE_FILE}
NEARLY_ALL = 0.8  # of a folder's names have an LMS's form where it was downloaded from there
PLAIN = re.compile("[A-Za-z0-9_ .@+-]*")  # nothing in it is ever replaced
NAMES = ("name", "email", "login", "id", "sid")  # columns that say who a row is about
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


def is_marked_late(name: str) -> bool | None:
    """Return whether Canvas marked a file as late when it named it; None if Canvas didn't name it."""
    match = CANVAS_FILE.match(name)
    return bool(match["late"]) if match else None


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
    label: str = ""  # the name in natural order, which no other person on the roster has
    id: str = ""  # in the system that the roster is from
    email: str = ""
    student_id: str = ""
    group: str = ""
    slip_days: str = ""  # of the whole term
    submitted: str = ""  # as Moodle's worksheet says it


class Roster:
    """Who takes part.

    >>> roster = Roster.of(["Ada Lovelace", "ada", "1001"], ["Bob Rose", "bob"])
    >>> [one.name for one in roster.find("ADA")]
    ['Ada Lovelace']
    """

    def __init__(self, people: Iterable[Person]):
        self.people = _labeled(people)
        self._by_name: dict[str, list[Person]] = {}
        self._by_id: dict[str, list[Person]] = {}
        for one in self.people:
            for name in one.names:
                self._by_name.setdefault(name, []).append(one)
            if one.id:
                self._by_id.setdefault(one.id, []).append(one)

    @classmethod
    def of(cls, *people: Iterable[str]) -> "Roster":
        """Return a roster of people by their names, of which the first is what they are called."""
        return cls(person_named(names, row) for row, names in enumerate(people))

    @property
    def names(self) -> Set[str]:
        """Return all names in it, as `person` gives them."""
        return self._by_name.keys()

    @property
    def has_ids(self) -> bool:
        return bool(self._by_id)

    def find(self, name: str, number: str = "", learner: str = "") -> list[Person]:
        """Return everybody with a name; a file's own name goes before the number that an LMS put into it, and both
        before the name that the learner had when the submission was graded.
        """
        people = self._by_name.get(person(name)) or self._by_name.get(number)
        return people or (self.find(learner) if learner else [])

    def one(self, name: str) -> Person:
        """Return the person with a name, an email address, a login or an id.

        Raises:
            RosterError: there is none, or there are several.
        """
        matches = self.find(name)
        if not matches:
            raise RosterError(f"{name!r} is not on the roster")
        if len(matches) > 1:
            raise RosterError(f"{name!r} is {choices(matches)}")
        return matches[0]

    def with_id(self, id: str) -> list[Person]:
        """Return everybody with an id of the system that the roster is from."""
        return self._by_id.get(id, [])

    def missing(self, names: Iterable[tuple[str, str]]) -> list[str]:
        """Return who has none of these names and numbers (of an LMS, or ''), by their labels, in the roster's order."""
        present = {one.row for name, number in names for one in self.find(name, number)}
        return [one.label for one in self.people if one.row not in present]


def choices(people: Iterable[Person]) -> str:
    """Return who people of one name are, and how to say which of them is meant."""
    names = "; ".join(
        f"{one.label}{f', {one.email}' if one.email and one.email not in one.label else ''}" for one in people
    )
    return f"several people on the roster: {names}; give an email address, or the name with its brackets"


def _labeled(people: Iterable[Person]) -> tuple[Person, ...]:
    """Return people with a label each; somebody who is there twice, with the same names, only once."""
    people = list({one.names or one.row: one for one in reversed(list(people))}.values())[::-1]
    labels = [safe_name(turned(one.name)) for one in people]
    counts = Counter(map(person, labels))
    labeled = []
    for one, label in zip(people, labels, strict=True):
        if counts[person(label)] > 1:
            label = safe_name(f"{short_name(label, MAX_NAME // 2)} ({one.id or one.email or f'row {one.row + 1}'})")
        labeled.append(replace(one, label=label, names=one.names | {person(label)} if one.names else one.names))
    return tuple(labeled)


def person_named(names: Iterable[str], row: int = 0, columns: dict[str, str] | None = None) -> Person:
    """Return a person by the names on a roster, of which the first is the usual one; empty ones don't count."""
    names = [name.strip() for name in names if name.strip()]
    ways = {*names, *(name.partition("@")[0] for name in names), *map(turned, names)}
    details: dict[str, Any] = {key: value.strip() for key, value in (columns or {}).items()}
    return Person(names[0] if names else "", frozenset(map(person, ways)) if names else frozenset(), row, **details)


def turned(name: str) -> str:
    """Return `Lovelace, Ada` as `Ada Lovelace`."""
    last, comma, first = name.partition(",")
    return f"{first.strip()} {last.strip()}" if comma else name


def read_roster(path: Path | str) -> Roster:
    """Read a roster: Canvas' gradebook export, Moodle's grading worksheet, or a CSV with a column `name`.

    Of one's own, and of Gradescope's roster, the columns `name` (or `first name` and `last name`), `login`, `email`,
    `id`, `sid`, `group` and `slip_days` count, whatever else is there.

    Raises:
        FileNotFoundError: no such file.
        RosterError: it is not text in UTF-8, not a CSV file, has no column of names, or one id for two people.
    """
    header, rows = read_table(text_of(path))
    if {"Student", "ID"} <= set(header):
        people = [
            canvas_person(row) for row in rows if row["ID"].strip().isdigit() and row["Student"].strip() != TEST_STUDENT
        ]
    elif "Identifier" in header:
        people = [moodle_person(row) for row in rows]
    else:
        people = [_own_person(row) for row in rows]
        if not {"name", "full name", "last name"} & {name.strip().lower().replace("_", " ") for name in header}:
            raise RosterError(
                f"{path} has no column `name`, nor is it an export of Canvas' or Moodle's; if it is one in another "
                "language, export it in English"
            )
    roster = Roster(replace(one, row=row) for row, one in enumerate(one for one in people if one.names))
    for one in roster.people:
        if len(several := roster.with_id(one.id)) > 1:
            names = " and ".join(sorted({other.name for other in several}))
            raise RosterError(f"{path} has the id {one.id} for {names}: an id belongs to one person")
    return roster


def _own_person(row: dict[str, str]) -> Person:
    columns = {key.strip().lower().replace("_", " "): value for key, value in row.items()}
    name = columns.get("name") or columns.get("full name") or ""
    name = name or f"{columns.get('first name', '')} {columns.get('last name', '')}"
    names = [name, *(columns.get(key, "") for key in ("login", "email", "id", "sid"))]
    return person_named(names, columns=_columns(row, columns.get("id", "")))


def _columns(row: dict[str, str], id: str) -> dict[str, str]:
    """Return what a row says of a person besides the names, whatever the case of its header."""
    columns = {key.strip().lower(): value for key, value in row.items()}
    return {
        "id": id,
        "email": columns.get("email") or columns.get("email address") or columns.get("sis login id") or "",
        "student_id": columns.get("sid") or columns.get("id number") or columns.get("sis user id") or "",
        "group": columns.get("group") or "",
        "slip_days": columns.get("slip_days") or columns.get("slip days") or "",
        "submitted": columns.get("last modified (submission)") or "",
    }


def canvas_person(row: dict[str, str]) -> Person:
    """Return the person in a row of Canvas' export."""
    names = [row["Student"], row["ID"], row.get("SIS Login ID", ""), row.get("SIS User ID", "")]
    return person_named(names, columns=_columns(row, row["ID"]))


def moodle_person(row: dict[str, str]) -> Person:
    """Return the person in a row of Moodle's worksheet, who may be called by the number of "Participant 1234"."""
    identifier, number = row["Identifier"], participant(row)
    names = [row.get("Full name", "") or identifier, identifier, number]
    return person_named([*names, row.get("Email address", ""), row.get("ID number", "")], columns=_columns(row, number))


def participant(row: dict[str, str]) -> str:
    """Return the number of "Participant 1234" in a row of Moodle's worksheet."""
    return re.sub(r"\D", "", row["Identifier"])


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


def delimiter_of(text: str) -> str:
    """Return what separates a table's cells, by its header: a comma, a semicolon or a tab."""
    header = re.sub('"[^"]*"', "", text).partition("\n")[0]
    match = re.search("[,;\t]", header)  # no table's first column has one of them in its name
    return match[0] if match else ","


def has_decimal_commas(text: str) -> bool:
    """Return whether a table writes 1,5 points for 1.5."""
    return delimiter_of(text) != "," and bool(re.search(r"(?<![^;\t\n\"])\d+,\d+(?![^;\t\r\n\"])", text))


def read_table(text: str) -> tuple[list[str], list[dict[str, str]]]:
    """Return the header and the rows of a CSV file.

    Raises:
        RosterError: it is not a CSV file.
    """
    try:
        stream = io.StringIO(text.removeprefix("\ufeff"), newline="")
        rows = list(csv.reader(stream, delimiter=delimiter_of(text), strict=True))
    except csv.Error as reason:
        raise RosterError(f"it is not a CSV file: {reason}") from reason
    header = rows[0] if rows else []
    full = [row + [""] * (len(header) - len(row)) for row in rows[1:] if any(row)]
    return header, [dict(zip(header, row, strict=False)) for row in full]


def read_rows(text: str) -> tuple[set[str], list[dict[str, str]]]:
    """Return the columns, in lower case, and the rows of a CSV file that a person wrote, without blanks around cells.

    Raises:
        RosterError: it is not a CSV file.
    """
    header, rows = read_table(text)
    cells = [{name.strip().lower(): cell.strip() for name, cell in row.items()} for row in rows]
    return {name.strip().lower() for name in header}, cells


def name_in(row: dict[str, str]) -> str:
    """Return who a row is about: the first of NAMES that it has."""
    return next((row[name] for name in NAMES if row.get(name)), "")
