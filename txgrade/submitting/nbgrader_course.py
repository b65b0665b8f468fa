"""`txgrade collect nbgrader course/source/ps1 --to inbox/`: an assignment of nbgrader's, and its submissions.

    course/txgrade/ps1/ps1.ipynb     the source, with its data; several notebooks become one, run one after the other
    course/txgrade/ps1/people.csv    the students in gradebook.db
    course/txgrade/ps1/scores.csv    the points that nbgrader gave, cell by cell
    inbox/Ada Lovelace/ps1.ipynb     of each student, merged in the same way, with the time in timestamp.txt

The facts are those of nbgrader 0.9.6.
"""

import contextlib
import csv
import io
import json
import shutil
import sqlite3
import zipfile
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from txgrade.authoring.exercise import ExerciseError
from txgrade.authoring.nbgrader import read_nbgrader
from txgrade.files import Folder, write_atomically
from txgrade.records.people import Roster, read_roster
from txgrade.submitting.archive import Entry
from txgrade.submitting.collect import NOTEBOOK, Collected, CollectError, LearnerNotebook, write_notebooks
from txgrade.submitting.downloads import DownloadedFile, read_time
from txgrade.submitting.notebook import MAX_BYTES

LEFT_BY_SYSTEMS = ("timestamp.txt", ".ipynb_checkpoints", "__pycache__")
STUDENTS = "SELECT id, first_name, last_name, email FROM student ORDER BY id"
DUE = "SELECT duedate FROM assignment WHERE name = ?"
SCORES = """
    SELECT submitted_assignment.student_id, notebook.name, base_cell.name, grade.auto_score, grade.manual_score,
           grade.extra_credit, COALESCE(grade_cells.max_score, task_cells.max_score)
    FROM grade
    JOIN submitted_notebook ON submitted_notebook.id = grade.notebook_id
    JOIN submitted_assignment ON submitted_assignment.id = submitted_notebook.assignment_id
    JOIN assignment ON assignment.id = submitted_assignment.assignment_id
    JOIN notebook ON notebook.id = submitted_notebook.notebook_id
    JOIN base_cell ON base_cell.id = grade.cell_id
    LEFT JOIN grade_cells ON grade_cells.id = base_cell.id
    LEFT JOIN task_cells ON task_cells.id = base_cell.id
    WHERE assignment.name = ? ORDER BY 1, 2, 3"""


def collect_nbgrader(source: Path, to: Path, roster: Roster | None = None) -> tuple[Collected, Path]:
    """Convert the assignment in the folder `source`, and collect `submitted/`; also return its new source.

    Raises:
        CollectError: `source` is no folder of a course of nbgrader's, or it can't be converted: a line a problem.
    """
    source = source.resolve()
    course, name = source.parents[1], source.name
    notebooks = sorted(source.glob(f"*{NOTEBOOK}"))
    if source.parent.name != "source" or not notebooks:
        raise CollectError(f"{source} is no assignment of nbgrader's: give its folder, such as course/source/ps1")
    book = course / "gradebook.db"
    due = _due(book, name)
    renamed = _shared_ids(notebooks)
    assignment = _write_source(course / "txgrade" / name, notebooks, renamed, due)
    people = _write_people(assignment.parent / "people.csv", book)
    _write_scores(assignment.parent / "scores.csv", book, name, renamed)
    roster = roster or people
    collected = Collected()
    submitted = sorted(path for path in (course / "submitted").glob(f"*/{name}") if path.is_dir())
    stems = [path.stem for path in notebooks]
    to.mkdir(mode=0o700, parents=True, exist_ok=True)
    with Folder(to) as inbox:
        labels = [_collect_one(folder, inbox, stems, renamed, roster, collected) for folder in submitted]
    collected.learners = len(labels)
    collected.missing = roster.missing([(label, "") for label in labels]) if roster else []
    if due:
        collected.remarks.append(f"{name} was due {due['when']} UTC; being late costs nothing here, and is noted")
    return collected, assignment


def _collect_one(
    folder: Path, inbox: Folder, stems: list[str], renamed: set[str], roster: Roster | None, collected: Collected
) -> str:
    """Put one student's notebooks into the inbox, as one, and return the name that they are under."""
    student, name = folder.parent.name, folder.name
    matches = roster.find(student) if roster else []
    label = matches[0].label if len(matches) == 1 else student
    if roster and len(matches) != 1:
        collected.remarks.append(f"{student} is not on the roster; collected under this name")
    present = [folder / f"{stem}{NOTEBOOK}" for stem in stems if (folder / f"{stem}{NOTEBOOK}").is_file()]
    absent = [stem for stem in stems if folder / f"{stem}{NOTEBOOK}" not in present]
    collected.remarks += [f"{label}: no {stem}{NOTEBOOK}" for stem in absent]
    others = [path for path in folder.iterdir() if path not in present and path.name not in LEFT_BY_SYSTEMS]
    notebooks = [path.name for path in others if path.suffix == NOTEBOOK]
    collected.left_out += [(f"{student}/{name}/{other}", "the assignment has no such notebook") for other in notebooks]
    try:
        data = present[0].read_bytes() if len(stems) == 1 and present else _merged_bytes(present, renamed)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        collected.left_out.append((f"{student}/{name}", "one of its notebooks is broken"))
        return label
    if present:
        path = f"{student}/{name}/{name}{NOTEBOOK}"
        file = DownloadedFile(Entry(path, zipfile.ZipInfo(path)), f"{name}{NOTEBOOK}", ())
        notebook = LearnerNotebook(file, name, data, _time(folder / "timestamp.txt", label, collected))
        write_notebooks(inbox, label, [notebook], collected, "nbgrader")
    return label


def _time(path: Path, label: str, collected: Collected) -> datetime | None:
    """Return when a submission was made, as nbgrader's exchange wrote it down."""
    try:
        return read_time(path.read_text(encoding="utf-8").strip(), None)
    except FileNotFoundError:
        return None
    except ValueError as reason:
        collected.remarks.append(f"{label}: {reason}; its time is unknown")
        return None


def _write_source(folder: Path, notebooks: list[Path], renamed: set[str], due: dict | None) -> Path:
    """Write the assignment's source, and its data to the same folder; return the source's path.

    Raises:
        CollectError: something in it can't be graded here; each problem is a line.
    """
    name, original = folder.name, notebooks[0].parent
    data = sorted(path for path in original.iterdir() if path not in notebooks and path.name not in LEFT_BY_SYSTEMS)
    merged = _merge([json.loads(path.read_text(encoding="utf-8")) for path in notebooks], notebooks, renamed)
    if data:
        merged["cells"][0]["metadata"]["data"] = [path.name for path in data]
    if due:
        merged["metadata"]["txgrade"] = {"due": due}
    folder.mkdir(parents=True, exist_ok=True)
    for path in data:
        shutil.copytree(path, folder / path.name, dirs_exist_ok=True) if path.is_dir() else shutil.copy(path, folder)
    assignment = folder / f"{name}{NOTEBOOK}"
    write_atomically(assignment, json.dumps(merged, indent=1) + "\n")
    try:
        read_nbgrader(assignment)
    except ExerciseError as reason:
        raise CollectError(f"{name} can't be converted:\n{reason}") from reason
    return assignment


def _shared_ids(notebooks: list[Path]) -> set[str]:
    """Return the grade_ids that several notebooks of an assignment use: those get the notebook's name in front."""
    counts: Counter[str] = Counter()
    for path in notebooks:
        try:
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            counts.update({id for cell in cells if (id := cell["metadata"].get("nbgrader", {}).get("grade_id"))})
        except (ValueError, LookupError, TypeError, AttributeError):
            raise CollectError(f"{path} can't be read as a notebook of format 4") from None
    return {id for id, count in counts.items() if count > 1}


def _merged_bytes(paths: list[Path], renamed: set[str]) -> bytes:
    """Return a student's notebooks as one.

    Raises:
        ValueError: one is too large, or not JSON; others where it is no notebook.
    """
    if any(path.stat().st_size > MAX_BYTES for path in paths):
        raise ValueError("too large")
    read = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return json.dumps(_merge(read, paths, renamed)).encode()


def _merge(notebooks: list[dict], paths: list[Path], renamed: set[str]) -> dict[str, Any]:
    """Return several notebooks as one, their cells one after the other."""
    if not notebooks:
        return {}
    cells = []
    for notebook, path in zip(notebooks, paths, strict=True):
        for number, cell in enumerate(notebook["cells"]):
            meta = cell["metadata"].get("nbgrader", {})
            if meta.get("grade_id") in renamed:
                meta["grade_id"] = task_id(path.stem, meta["grade_id"], renamed)
            cells.append(cell | {"id": f"{path.stem}-{number}"[-64:].replace(" ", "-")})
    return notebooks[0] | {"cells": cells, "nbformat": 4, "nbformat_minor": 5}


def task_id(notebook: str, id: str, renamed: Iterable[str]) -> str:
    """Return what a cell of one of several notebooks is called in the merged one."""
    return f"{notebook.replace(' ', '-')}-{id}" if id in renamed else id


def _rows(book: Path, query: str, *values: str) -> list[tuple]:
    """Return what nbgrader's gradebook says; nothing if there is none.

    Raises:
        CollectError: it can't be read.
    """
    if not book.is_file():
        return []
    try:
        with contextlib.closing(sqlite3.connect(f"{book.as_uri()}?mode=ro", uri=True)) as connection:
            return list(connection.execute(query, values))
    except sqlite3.Error as reason:
        raise CollectError(f"{book} is no gradebook of nbgrader's: {reason}") from reason


def _due(book: Path, name: str) -> dict | None:
    when = next((row[0] for row in _rows(book, DUE, name) if row[0]), None)
    if when is None:
        return None
    at = datetime.fromisoformat(when).replace(tzinfo=UTC)
    return {"when": f"{at:%Y-%m-%d %H:%M}", "timezone": "UTC", "grace_minutes": 0, "per_day": 0, "at_most": 0}


def _write_people(path: Path, book: Path) -> Roster | None:
    rows = _rows(book, STUDENTS)
    if not rows:
        return None
    people = [(f"{first or ''} {last or ''}".strip() or id, id, email or "") for id, first, last, email in rows]
    _write_table(path, ("name", "login", "email"), people)
    return read_roster(path)


def _write_scores(path: Path, book: Path, name: str, renamed: set[str]) -> None:
    rows = [
        (student, task_id(notebook, cell, renamed), *("" if score is None else score for score in scores))
        for student, notebook, cell, *scores in _rows(book, SCORES, name)
    ]
    if rows:
        _write_table(path, ("login", "task", "auto_score", "manual_score", "extra_credit", "max_score"), rows)


def _write_table(path: Path, header: tuple[str, ...], rows: list[tuple]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([header, *rows])
    write_atomically(path, text.getvalue(), 0o600)
