"""What learners hand in: found in a folder, read without trusting a byte of it.

`read_submission` never raises for anything in a file: what is wrong becomes a status, with a sentence for the
learner. Only the answers' sources are taken, by their cells' `grade_id`; everything else unusual becomes a note.
"""

import errno
import hashlib
import itertools
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from txlib.files import Folder
from txlib.grading.authoring.assignment import Assignment
from txlib.grading.authoring.nbgrader import HIDDEN_TESTS, cut
from txlib.grading.records.people import MAX_NAME, Roster, account, person, safe_name, short_name
from txlib.grading.records.result import Note
from txlib.grading.source import names_given, names_used
from txlib.grading.text import printable

MAX_BYTES = 10 * 2**20  # of a file
MAX_RECEIPT = 10_000  # bytes
MAX_ANSWER = 50_000  # characters; the syntax tree of so many takes up to 50 MB, and a tenth of a second
MAX_OWN = 50_000  # characters of a learner's own cells that are looked into, together
MAX_DIGITS = 1000  # of an integer; Python refuses to read one of more than 4300
MAX_ENTRIES = 10_000  # files of a learner's folder that are looked at
RECEIPT = ".receipt.json"  # ends the name of what `txlib submit` leaves beside a notebook
LAST_SECOND = datetime(9999, 12, 31, tzinfo=UTC).timestamp()  # what a date can hold; a file's time can be later
MAGIC = ("%submit", "%load_ext txlib.grading", "#")  # a line of a cell that hands the notebook in

WHOSE = ("owner", "roster", "same person")  # kinds of notes that depend on the other submissions, too

# Each status but `graded`, and what a learner should do about it.
STATUSES = {
    "no notebook": "There is no notebook in your folder: hand in the exercise's .ipynb file.",
    "several notebooks": "There are several notebooks in your folder: leave the one that counts.",
    "link": "What you handed in is a link, not a file: hand in the notebook itself.",
    "unreadable": "What you handed in is not a file that can be read: hand in the exercise's .ipynb file.",
    "too much": "Your file holds too much to be read: clear its outputs (Edit, Clear Outputs of All Cells), take out "
    "what isn't the exercise's, save it, and hand it in again.",
    "too large": f"Your file is larger than {MAX_BYTES // 2**20} MB: clear its outputs (Edit, Clear Outputs of All "
    "Cells), save it, and hand it in again.",
    "empty": "Your file is empty: save the notebook, and hand it in again.",
    "not text": "Your file is not text in UTF-8: hand in the .ipynb file as JupyterLab saved it.",
    "truncated": "Your file breaks off in the middle: hand it in again, it may not have been copied to its end.",
    "not json": "Your file is not a notebook: hand in the .ipynb file, not an export of it.",
    "not a notebook": "Your file has not the form of a notebook: hand in the .ipynb file as JupyterLab saved it.",
    "other language": "Your notebook is for another language than Python: start from the exercise that was released.",
    "no cells": "Your notebook has no cells: hand in the exercise with your answers.",
    "no answers": "None of this exercise's answer cells is in your notebook: start from the exercise that was "
    "released, and write into its cells.",
    "other exercise": "Your notebook holds answers, but to another exercise than this one.",
    "not graded": "The grader itself failed on your notebook. Your instructor knows.",
}


@dataclass(frozen=True)
class Found:
    """One submission in the folder, not yet read. `problem` is a status where there is nothing to read."""

    name: str
    path: Path
    problem: str | None = None
    notes: tuple[Note, ...] = ()  # about whose it is
    given: str = ""  # what it is called in the folder


@dataclass(frozen=True)
class Submission:
    """What is left of a submission once it has been read: `status` is `graded` where it can be."""

    name: str
    status: str
    answers: dict[str, str]
    notes: tuple[Note, ...] = ()
    hash: str = ""
    submitted: str | None = None  # UTC, ISO 8601


class Unreadable(Exception):
    """Carries a status, and perhaps a note."""

    def __init__(self, status: str, *notes: Note):
        super().__init__(status)
        self.status, self.notes = status, notes


def find_submissions(folder: Path | str, assignment: str | None = None, roster: Roster | None = None) -> list[Found]:
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
    found = [
        Found(name, entry.path, entry.problem, tuple(noted), entry.name)
        for name, entry, noted in zip(names, entries, notes, strict=True)
    ]
    return sorted(found, key=lambda each: each.name)


def read_submission(found: Found, assignment: Assignment) -> Submission:
    """Read one submission. Whatever is in the file, it comes back with a status."""
    digest, submitted = "", None
    try:
        if found.problem:
            raise Unreadable(found.problem)
        data, submitted = read_file(found.path)
        digest = hashlib.sha256(data).hexdigest()
        answers, notes = _answers(read_cells(data), assignment)
    except Unreadable as reason:
        return Submission(found.name, reason.status, {}, (*found.notes, *reason.notes), digest, submitted)
    received = _received(found.path, digest) or submitted
    return Submission(found.name, "graded", answers, (*found.notes, *notes), digest, received)


def read_file(path: Path, most: int = MAX_BYTES) -> tuple[bytes, str]:
    """The bytes of a plain file, and when it was last written (UTC). A link, a pipe or a device is never read.

    Raises:
        Unreadable: link, unreadable or too large.
    """
    try:
        with Folder(path.parent, follow=False) as folder:
            data, status = folder.read(path.name, most)
    except NotADirectoryError as reason:  # what Linux says of a link where a folder is wanted
        raise Unreadable("link") from reason
    except OSError as reason:
        raise Unreadable({errno.ELOOP: "link", errno.EFBIG: "too large"}.get(reason.errno, "unreadable")) from reason
    seconds = min(max(status.st_mtime, 0), LAST_SECOND)
    return data, datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def read_cells(data: bytes) -> list[dict]:
    """The cells of a Python notebook; of any format version that nbformat can lift to 4.

    Raises:
        Unreadable: with the status that says what is wrong.
    """
    notebook = _notebook(data)
    cells = notebook.get("cells")
    if not isinstance(cells, list):
        raise Unreadable("not a notebook")
    if "python" not in (_language(notebook.get("metadata")) or "python"):
        raise Unreadable("other language")
    cells = [cell for cell in cells if isinstance(cell, dict)]
    if not cells:
        raise Unreadable("no cells")
    return cells


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


# Whose it is


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


def _notebook(data: bytes) -> dict:
    """The JSON of a notebook of format 4, if it is one."""
    if not data.strip():
        raise Unreadable("empty")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as reason:
        cut_off = reason.reason == "unexpected end of data" and data.lstrip().startswith(b"{")
        raise Unreadable("truncated" if cut_off else "not text") from reason
    try:
        notebook = json.loads(text, parse_int=_integer)
    except RecursionError as reason:
        raise Unreadable("not a notebook") from reason
    except MemoryError as reason:
        raise Unreadable("too much") from reason
    except ValueError as reason:
        raise Unreadable("truncated" if _breaks_off(text, reason) else "not json") from reason
    if not isinstance(notebook, dict):
        raise Unreadable("not a notebook")
    if isinstance(notebook.get("worksheets"), list):
        notebook = _lifted(notebook)
    return notebook


def _breaks_off(text: str, reason: ValueError) -> bool:
    """Whether JSON fails at its very end: where something has to follow, in a text, or in a word."""
    text = text.rstrip()
    if not isinstance(reason, json.JSONDecodeError):
        return False
    at_end = reason.pos >= len(text) or reason.msg.startswith("Unterminated") or text[reason.pos :].isalpha()
    return text.lstrip().startswith("{") and at_end and reason.msg != "Extra data"


def _integer(digits: str) -> int:
    return int(digits[:MAX_DIGITS])  # no answer depends on it


def _lifted(notebook: dict) -> dict:
    """A notebook of format 3, which kept its cells in worksheets."""
    import nbformat

    try:
        return nbformat.convert(nbformat.from_dict(notebook), 4)
    except Exception as reason:  # nbformat raises many kinds
        raise Unreadable("not a notebook") from reason


def _language(metadata: Any) -> str:
    """What the notebook says that its code is, in lower case; nothing where it doesn't say."""
    for key, name in (("kernelspec", "language"), ("language_info", "name")):
        part = metadata.get(key) if isinstance(metadata, dict) else None
        said = part.get(name) if isinstance(part, dict) else None
        if isinstance(said, str) and said:
            return said.lower()
    return ""


def _answers(cells: list[dict], assignment: Assignment) -> tuple[dict[str, str], list[Note]]:
    """The answers by grade_id, and what is unusual about the cells."""
    reference = {cell.id: cell for cell in assignment.notebook.cells}
    expected = {id: place for place, id in enumerate(assignment.stubs)}
    tasks = {id: task.id for task in assignment.tasks for id in (*task.answers, task.check)}
    tagged = [grade_id_of(cell) for cell in cells]
    ids = set(tagged)
    answers: dict[str, str] = {}
    notes, places, own, seen = [], [], [], set()
    for cell, grade_id in zip(cells, tagged, strict=True):
        id = grade_id if grade_id in reference else _by_cell_id(cell, reference, ids)
        if id is None:
            own.append(cell)
            continue
        if id in seen:
            notes.append(Note("duplicated", f"the cell `{id}` is there twice: the first counts", tasks.get(id)))
            continue
        seen.add(id)
        source = source_of(cell)
        if id not in expected:
            if id in tasks and not _same(source, _released(reference[id])):
                notes.append(Note("changed check", f"the check `{id}` is changed: the original was run", tasks[id]))
            continue
        places.append(expected[id])
        if grade_id != id:
            notes.append(Note("retagged", f"the cell `{id}` has lost its grade_id: known by its id", tasks.get(id)))
        if cell.get("cell_type") != reference[id].cell_type:
            notes.append(
                Note(
                    "retagged",
                    f"the cell `{id}` is no longer a {reference[id].cell_type} cell, but was taken for one",
                    tasks.get(id),
                )
            )
        if len(source) > MAX_ANSWER:
            notes.append(Note("too long", f"the cell `{id}` has {len(source):,} characters: not run", tasks.get(id)))
            continue
        answers[id] = source
    _need_this_exercise(cells, assignment, len(places))
    if places != sorted(places):
        notes.append(Note("moved", "answer cells are in another order: the original order was run"))
    for id in expected:
        if id not in seen:
            notes.append(Note("missing", f"the cell `{id}` is not there", tasks.get(id)))
    for task in assignment.tasks:
        if task.kind != "written" and task.check not in seen:
            notes.append(Note("changed check", f"the check `{task.check}` is deleted: the original was run", task.id))
    notes += _notes_on_other_cells(own, reference, answers)
    return answers, list(dict.fromkeys(notes))


def _need_this_exercise(cells: list[dict], assignment: Assignment, known: int) -> None:
    """Refuse a notebook that answers another exercise; some ids may be the same in both."""
    others = {id for cell in cells if _is_solution(cell) and (id := grade_id_of(cell)) not in assignment.stubs}
    title = _title(cells)
    if len(others) > known and (not known or title != assignment.title):
        seems = [Note("other exercise", f"it seems to be “{title}”")] if title else []
        raise Unreadable("other exercise", *seems)
    if not known:
        raise Unreadable("no answers")


def _notes_on_other_cells(cells: list[dict], reference: dict, answers: dict[str, str]) -> list[Note]:
    """Notes on cells without a grade_id: those that the exercise gives, and the learner's own.

    To try things out in cells of their own is what learners should do. Only where an answer uses what such a cell
    defines has somebody to look: the cell was not run, so the answer fails.
    """
    given = {_plain(_released(each)) for each in reference.values()}
    extra, notes = [], []
    for cell in cells:
        source = _plain(source_of(cell))
        ours = source in given or "check.load(" in source  # the recordings, which release puts into a cell
        if cell.get("cell_type") != "code" or ours or all(line.startswith(MAGIC) for line in source.splitlines()):
            continue
        id = cell.get("id")
        if isinstance(id, str) and id in reference:
            notes.append(Note("changed cell", f"the cell `{id}` is changed: the original was run"))
        else:
            extra.append(source)
    if extra:
        ours = set().union(*map(names_given, (*given, *answers.values())))
        theirs = set().union(*map(names_given, _first(extra, MAX_OWN))) - ours
        missed = sorted(theirs & set().union(*map(names_used, answers.values())))
        cells = "a code cell" if len(extra) == 1 else f"{len(extra)} code cells"
        uses = f" An answer uses {', '.join(f'`{name[:40]}`' for name in missed[:5])} from there." if missed else ""
        notes.append(
            Note(
                "extra code",
                f"{cells} of their own, not run: helpers belong into an answer's cell.{uses}",
                review=bool(missed),
            )
        )
    return notes


def _first(sources: list[str], most: int) -> Iterator[str]:
    """The sources from the first on that have so many characters together."""
    for source in sources:
        most -= len(source) + 1
        if most >= 0:
            yield source


def grade_id_of(cell: dict) -> str | None:
    """The grade_id in a cell's metadata."""
    id = _nbgrader(cell).get("grade_id")
    return id if isinstance(id, str) else None


def _by_cell_id(cell: dict, reference: dict, tagged: set) -> str | None:
    """The grade_id of a cell that has lost its metadata, by its id; unless another cell bears this grade_id."""
    id = cell.get("id")
    if isinstance(id, str) and id in reference and "nbgrader" in reference[id].metadata and id not in tagged:
        return id
    return None


def _is_solution(cell: dict) -> bool:
    return _nbgrader(cell).get("solution") is True


def _nbgrader(cell: dict) -> dict:
    metadata = cell.get("metadata")
    found = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def _title(cells: list[dict]) -> str:
    """The first heading."""
    for cell in cells:
        source = source_of(cell).lstrip()
        if cell.get("cell_type") == "markdown" and source.startswith("# "):
            return printable(source.splitlines()[0][2:].strip()[:100])
    return ""


def _released(cell: Any) -> str:
    """A cell of the reference as learners were given it. No answer."""
    try:
        return cut(cell.source, HIDDEN_TESTS)[0]
    except ValueError:
        return cell.source


def _same(one: str, other: str) -> bool:
    return _plain(one) == _plain(other)


def _plain(source: str) -> str:
    """A source without what an editor may change by itself."""
    return "\n".join(line.rstrip() for line in source.splitlines()).strip()


def source_of(cell: dict) -> str:
    """A cell's source as text, which may be kept as a list of lines; without what no file could hold."""
    source = cell.get("source")
    if isinstance(source, list):
        source = "".join(each for each in source if isinstance(each, str))
    return source.encode("utf-8", "replace").decode("utf-8") if isinstance(source, str) else ""


def _received(path: Path, digest: str) -> str | None:
    """When the receipt beside a notebook says that it was handed in, if it is this notebook's."""
    try:
        said = json.loads(read_file(path.with_name(path.stem + RECEIPT), MAX_RECEIPT)[0])
        when = datetime.fromisoformat(said["submitted"])
        if said["sha256"] != digest or when.tzinfo is None:
            return None
        return when.astimezone(UTC).isoformat(timespec="seconds")
    except (Unreadable, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
