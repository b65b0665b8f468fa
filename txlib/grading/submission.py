"""What learners hand in: found in a folder, read without trusting a byte of it.

`read_submission` never raises for anything in a file: what is wrong becomes a status, with a sentence for the
learner. Only the answers' sources are taken, by their cells' `grade_id`; everything else unusual becomes a note.
"""

import hashlib
import json
import os
import stat
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from txlib.grading.assignment import Assignment
from txlib.grading.result import Note

MAX_BYTES = 10 * 2**20        # of a file
MAX_ANSWER = 200_000          # characters
MAX_NAME = 100                # bytes of a name in UTF-8
RECEIPT = ".receipt.json"     # ends the name of what `txlib submit` leaves beside a notebook

# Each status but `graded`, and what a learner should do about it.
STATUSES = {
    "no notebook": "There is no notebook in your folder: hand in the exercise's .ipynb file.",
    "several notebooks": "There are several notebooks in your folder: leave the one that counts.",
    "link": "What you handed in is a link, not a file: hand in the notebook itself.",
    "unreadable": "Your file could not be read: hand it in again.",
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
    submitted: str | None = None      # UTC, ISO 8601


class Unreadable(Exception):
    """Carries a status."""


def find_submissions(folder: Path | str, assignment: str | None = None) -> list[Found]:
    """The submissions in a folder, by name: `NAME.ipynb`, or `NAME/anything.ipynb`.

    Of a learner's folder with several notebooks the one named like the assignment counts. Hidden files are left
    out, and no link is followed.
    """
    found: dict[str, Found] = {}
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.startswith(".") or entry.name.endswith(RECEIPT):
            continue
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            each = _in_folder(entry.name, path, assignment)
        elif path.suffix == ".ipynb":
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
        data, submitted = _read_file(found.path)
        digest = hashlib.sha256(data).hexdigest()
        answers, notes = _answers(_cells(_notebook(data)), assignment)
    except Unreadable as reason:
        return Submission(found.name, str(reason), {}, (), digest, submitted)
    return Submission(found.name, "graded", answers, tuple(notes), digest, _received(found.path, digest) or submitted)


def safe_name(name: str) -> str:
    """A name for files and tables: readable in any language, without what a path or a terminal would act on."""
    name = unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode("utf-8"))
    kept = "".join("_" if unicodedata.category(c)[0] in "CZ" and c != " " or c in '/\\:*?"<>|' else c for c in name)
    kept = kept.strip(" .") or "_"
    while len(kept.encode()) > MAX_NAME:
        kept = kept[:-1]
    return kept


def _unique(name: str, taken: dict[str, Any]) -> str:
    """The name, or the name with a number where another one is the same but for capitals."""
    number, unique = 1, name
    while unique.casefold() in taken:
        number += 1
        unique = f"{name}-{number}"
    return unique


def _in_folder(name: str, folder: Path, assignment: str | None) -> Found:
    try:
        entries = [entry for entry in os.scandir(folder)
                   if entry.name.endswith(".ipynb") and not entry.name.startswith(".")]
    except OSError:
        return Found(name, folder, "unreadable")
    if len(entries) > 1 and assignment:
        entries = [entry for entry in entries if Path(entry.name).stem == assignment] or entries
    if not entries:
        return Found(name, folder, "no notebook")
    if len(entries) > 1:
        return Found(name, folder, "several notebooks")
    problem = "link" if entries[0].is_symlink() else None
    return Found(name, Path(entries[0].path), problem)


def _read_file(path: Path) -> tuple[bytes, str]:
    """The bytes of a plain file, and when it was last written. A link, a pipe or a device is never opened."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise Unreadable("unreadable")
            if status.st_size > MAX_BYTES:
                raise Unreadable("too large")
            data = file.read(MAX_BYTES + 1)
    except OSError as reason:
        raise Unreadable("unreadable") from reason
    if len(data) > MAX_BYTES:
        raise Unreadable("too large")
    return data, datetime.fromtimestamp(status.st_mtime, UTC).isoformat(timespec="seconds")


def _notebook(data: bytes) -> dict:
    """The JSON of a notebook, of any format version that nbformat can lift to 4."""
    if not data.strip():
        raise Unreadable("empty")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as reason:
        raise Unreadable("not text") from reason
    try:
        notebook = json.loads(text)
    except RecursionError as reason:
        raise Unreadable("not a notebook") from reason
    except ValueError as reason:      # also an integer of too many digits
        cut_off = text.lstrip().startswith("{") and not text.rstrip().endswith("}")
        raise Unreadable("truncated" if cut_off else "not json") from reason
    if not isinstance(notebook, dict):
        raise Unreadable("not a notebook")
    if isinstance(notebook.get("worksheets"), list):
        notebook = _lifted(notebook)
    return notebook


def _lifted(notebook: dict) -> dict:
    """A notebook of format 3, which kept its cells in worksheets."""
    import nbformat

    try:
        return nbformat.convert(nbformat.from_dict(notebook), 4)
    except Exception as reason:      # nbformat raises many kinds
        raise Unreadable("not a notebook") from reason


def _cells(notebook: dict) -> list[dict]:
    cells = notebook.get("cells")
    if not isinstance(cells, list):
        raise Unreadable("not a notebook")
    language = _language(notebook.get("metadata"))
    if language and language != "python":
        raise Unreadable("other language")
    cells = [cell for cell in cells if isinstance(cell, dict)]
    if not cells:
        raise Unreadable("no cells")
    return cells


def _language(metadata: Any) -> str:
    """What the notebook says that its code is, in lower case; nothing where it doesn't say."""
    for key, name in (("kernelspec", "language"), ("language_info", "name")):
        part = metadata.get(key) if isinstance(metadata, dict) else None
        said = part.get(name) if isinstance(part, dict) else None
        if isinstance(said, str) and said:
            return said.lower().removesuffix("3").removesuffix("2")
    return ""


def _answers(cells: list[dict], assignment: Assignment) -> tuple[dict[str, str], list[Note]]:
    """The answers by grade_id, and what is unusual about the cells."""
    reference = {cell.id: cell for cell in assignment.notebook.cells}
    expected = list(assignment.stubs)
    tasks = {id: task.id for task in assignment.tasks for id in (*task.answers, task.check)}
    answers: dict[str, str] = {}
    notes, places, extra, seen = [], [], 0, set()
    for cell in cells:
        id, tagged = _grade_id(cell, reference)
        if id is None:
            extra += _is_code_of_their_own(cell, reference)
            continue
        if id in seen:
            notes.append(Note("duplicated", f"the cell `{id}` is there twice: the first counts", tasks.get(id)))
            continue
        seen.add(id)
        source = _source(cell)
        if id not in assignment.stubs:
            if id in tasks and source.strip() != _released(reference[id]).strip():
                notes.append(Note("changed check", f"the check `{id}` is changed: the original was run", tasks[id]))
            continue
        places.append(expected.index(id))
        if not tagged:
            notes.append(Note("retagged", f"the cell `{id}` has lost its grade_id: known by its id", tasks.get(id)))
        if cell.get("cell_type") != reference[id].cell_type:
            notes.append(Note("retagged", f"the cell `{id}` is of type {str(cell.get('cell_type'))[:20]}, not "
                              f"{reference[id].cell_type}", tasks.get(id)))
        if len(source) > MAX_ANSWER:
            notes.append(Note("too long", f"the cell `{id}` has {len(source):,} characters: not run", tasks.get(id)))
            continue
        answers[id] = source
    if not places:
        raise Unreadable("other exercise" if _has_grade_ids(cells) else "no answers")
    if places != sorted(places):
        notes.append(Note("moved", "answer cells are in another order: the original order was run"))
    for id in expected:
        if id not in seen:
            notes.append(Note("missing", f"the cell `{id}` is not there", tasks.get(id)))
    for task in assignment.tasks:
        if task.kind != "written" and task.check not in seen:
            notes.append(Note("changed check", f"the check `{task.check}` is deleted: the original was run", task.id))
    if extra:
        notes.append(Note("extra code", f"{extra} code cells of their own, which were not run: helpers belong into "
                          "the answer's cell"))
    return answers, notes


def _grade_id(cell: dict, reference: dict) -> tuple[str | None, bool]:
    """A cell's grade_id, if it is one of the assignment's; by its metadata, or else by its id."""
    metadata = cell.get("metadata")
    nbgrader = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    id = nbgrader.get("grade_id") if isinstance(nbgrader, dict) else None
    if isinstance(id, str) and id in reference:
        return id, True
    id = cell.get("id")
    known = isinstance(id, str) and id in reference and "nbgrader" in reference[id].metadata
    return (id, False) if known else (None, False)


def _is_code_of_their_own(cell: dict, reference: dict) -> bool:
    """Whether it is a filled code cell that the exercise doesn't have."""
    source = _source(cell).strip()
    given = {str(each.source).strip() for each in reference.values()}
    shipped = cell.get("id") in reference or source in given
    return cell.get("cell_type") == "code" and bool(source) and not shipped


def _released(cell: Any) -> str:
    from txlib.grading.exercise import strip_hidden

    return strip_hidden(cell.source)


def _has_grade_ids(cells: list[dict]) -> bool:
    for cell in cells:
        metadata = cell.get("metadata")
        nbgrader = metadata.get("nbgrader") if isinstance(metadata, dict) else None
        if isinstance(nbgrader, dict) and nbgrader.get("solution") is True:
            return True
    return False


def _source(cell: dict) -> str:
    """A cell's source as text, which may be kept as a list of lines; without what no file could hold."""
    source = cell.get("source")
    if isinstance(source, list):
        source = "".join(each for each in source if isinstance(each, str))
    return source.encode("utf-8", "replace").decode("utf-8") if isinstance(source, str) else ""


def _received(path: Path, digest: str) -> str | None:
    """When the receipt beside a notebook says that it was handed in, if it is this notebook's."""
    receipt = path.with_name(path.stem + RECEIPT)
    try:
        if receipt.is_symlink() or receipt.stat().st_size > 10_000:
            return None
        said = json.loads(receipt.read_text(encoding="utf-8"))
        if said["sha256"] != digest:
            return None
        return datetime.fromisoformat(said["submitted"]).astimezone(UTC).isoformat(timespec="seconds")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
