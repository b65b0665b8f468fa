"""What learners hand in: found in a folder, read without trusting a byte of it.

`read_submission` never raises for anything in a file: what is wrong becomes a status, with a sentence for the
learner. Only the answers' sources are taken, by their cells' `grade_id`; everything else unusual becomes a note.
"""

import ast
import errno
import hashlib
import json
import os
import stat
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from txlib.grading.authoring.assignment import Assignment
from txlib.grading.authoring.nbgrader import HIDDEN_TESTS, cut
from txlib.grading.records.result import Note
from txlib.grading.source import names_used
from txlib.grading.text import printable

MAX_BYTES = 10 * 2**20  # of a file
MAX_RECEIPT = 10_000  # bytes
MAX_ANSWER = 200_000  # characters
MAX_EXTRA = 100  # cells of a learner's own that are looked into
MAX_DIGITS = 1000  # of an integer; Python refuses to read one of more than 4300
MAX_NAME = 100  # bytes of a name in UTF-8
RECEIPT = ".receipt.json"  # ends the name of what `txlib submit` leaves beside a notebook
LAST_SECOND = datetime(9999, 12, 31, tzinfo=UTC).timestamp()  # what a date can hold; a file's time can be later
MAGIC = ("%submit", "%load_ext txlib.grading", "#")  # a line of a cell that hands the notebook in

# Each status but `graded`, and what a learner should do about it.
STATUSES = {
    "no notebook": "There is no notebook in your folder: hand in the exercise's .ipynb file.",
    "several notebooks": "There are several notebooks in your folder: leave the one that counts.",
    "link": "What you handed in is a link, not a file: hand in the notebook itself.",
    "unreadable": "What you handed in is not a file that can be read: hand in the exercise's .ipynb file.",
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


def find_submissions(folder: Path | str, assignment: str | None = None) -> list[Found]:
    """The submissions in a folder, by name: `NAME.ipynb`, or `NAME/anything.ipynb`.

    Of a learner's folder with several notebooks the one named like the assignment counts, and none that was handed
    in as another one's. Hidden files are left out, and no link below the folder is followed.
    """
    found: dict[str, Found] = {}
    for entry in sorted(os.scandir(Path(folder).resolve()), key=lambda entry: entry.name):
        if entry.name.startswith(".") or entry.name.endswith(RECEIPT):
            continue
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            each = _in_folder(entry.name, path, assignment)
        elif path.suffix.lower() == ".ipynb":
            each = Found(path.stem, path, "link" if entry.is_symlink() else None)
        elif entry.is_symlink():
            each = Found(entry.name, path, "link")
        else:
            continue
        name = _unique(safe_name(each.name), found)
        found[name.casefold()] = Found(name, each.path, each.problem)
    return sorted(found.values(), key=lambda each: each.name)


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
        return Submission(found.name, reason.status, {}, reason.notes, digest, submitted)
    return Submission(found.name, "graded", answers, tuple(notes), digest, _received(found.path, digest) or submitted)


def read_file(path: Path, most: int = MAX_BYTES) -> tuple[bytes, str]:
    """The bytes of a plain file, and when it was last written (UTC). A link, a pipe or a device is never read.

    Raises:
        Unreadable: link, unreadable or too large.
    """
    try:
        handle = _open(path)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise Unreadable("unreadable")
            if status.st_size > most:
                raise Unreadable("too large")
            with open(handle, "rb", closefd=False) as file:
                data = file.read(most + 1)
        finally:
            os.close(handle)
    except OSError as reason:  # ELOOP: the folder or the file has become a link since it was found
        raise Unreadable("link" if reason.errno == errno.ELOOP else "unreadable") from reason
    if len(data) > most:
        raise Unreadable("too large")
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


def safe_name(name: str) -> str:
    """A name for files and tables: readable in any language, without what a path or a terminal would act on."""
    name = unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode("utf-8"))
    kept = "".join("_" if unicodedata.category(c)[0] in "CZ" and c != " " or c in '/\\:*?"<>|' else c for c in name)
    return _short(kept.strip(" .")) or "_"


def _short(name: str, most: int = MAX_NAME) -> str:
    """What of a name fits into so many bytes, in whole characters."""
    return name.encode()[:most].decode(errors="ignore").strip(" .")


def _unique(name: str, taken: dict[str, Any]) -> str:
    """The name, or the name with a number where another one is the same but for capitals."""
    number, unique = 1, name
    while unique.casefold() in taken:
        number += 1
        unique = f"{_short(name, MAX_NAME - len(str(number)) - 1)}-{number}"
    return unique


def _in_folder(name: str, folder: Path, assignment: str | None) -> Found:
    try:
        inside = list(os.scandir(folder))
        entries = [
            entry
            for entry in inside
            if entry.name.lower().endswith(".ipynb")
            and not entry.name.startswith(".")
            and not entry.is_dir(follow_symlinks=False)
        ]
    except OSError:
        return Found(name, folder, "unreadable")
    if len(entries) > 1 and assignment:
        others = {entry.name.removesuffix(RECEIPT) for entry in inside if entry.name.endswith(RECEIPT)} - {assignment}
        entries = [entry for entry in entries if Path(entry.name).stem not in others]
        entries = [entry for entry in entries if Path(entry.name).stem == assignment] or entries
    if not entries:
        return Found(name, folder, "no notebook")
    if len(entries) > 1:
        return Found(name, folder, "several notebooks")
    problem = "link" if entries[0].is_symlink() else None
    return Found(name, Path(entries[0].path), problem)


def _open(path: Path) -> int:
    """Open a file for reading, if neither it nor its folder is a link, without waiting for a pipe's other end."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if os.open not in os.supports_dir_fd:
        return os.open(path, flags)
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except NotADirectoryError as reason:  # what Linux says of a link
        raise OSError(errno.ELOOP, "link") from reason
    try:
        return os.open(path.name, flags, dir_fd=folder)
    finally:
        os.close(folder)


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
    except (RecursionError, MemoryError) as reason:
        raise Unreadable("not a notebook") from reason
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
    answers: dict[str, str] = {}
    notes, places, own, seen = [], [], [], set()
    for cell, grade_id in zip(cells, tagged, strict=True):
        id = grade_id if grade_id in reference else _by_cell_id(cell, reference, tagged)
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
        ours = set().union(*map(_names_given, (*given, *answers.values())))
        theirs = set().union(*map(_names_given, extra[:MAX_EXTRA])) - ours
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


def _names_given(source: str) -> set[str]:
    """The names that a cell defines, imports, assigns or takes as an argument, wherever in it."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return (
        {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        | {node.arg for node in nodes if isinstance(node, ast.arg)}
        | {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        | {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    )


def grade_id_of(cell: dict) -> str | None:
    """The grade_id in a cell's metadata."""
    id = _nbgrader(cell).get("grade_id")
    return id if isinstance(id, str) else None


def _by_cell_id(cell: dict, reference: dict, tagged: list) -> str | None:
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
