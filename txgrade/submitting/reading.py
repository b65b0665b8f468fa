"""What learners hand in, read: the answers, and notes on what is unusual.

`read_submission` never raises for anything in a file: what is wrong becomes a status, with a sentence for the
learner. Only the answers' sources are taken, by their cells' `grade_id`; everything else unusual becomes a note.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from txgrade.authoring.assignment import Assignment
from txgrade.authoring.nbgrader import HIDDEN_TESTS, cut
from txgrade.authoring.variants import copy_of, variant_of
from txgrade.records.result import Allowance, Note
from txgrade.source import names_given, names_used
from txgrade.submitting.finding import SubmissionFile
from txgrade.submitting.notebook import (
    COLLECTED,
    MAGIC,
    MAX_RECEIPT,
    RECEIPT,
    Unreadable,
    grade_id_of,
    is_solution,
    read_cells,
    read_file,
    source_of,
)
from txgrade.text import printable

MAX_ANSWER = 50_000  # characters; the syntax tree of so many takes up to 50 MB, and a tenth of a second
MAX_ORIGIN = 1000  # characters of a name in a download
MAX_OWN = 50_000  # characters of a learner's own cells that are looked into, together


@dataclass(frozen=True)
class Submission:
    """What is left of a submission once it has been read: `status` is `graded` where it can be."""

    name: str
    status: str
    answers: dict[str, str]
    notes: tuple[Note, ...] = ()
    hash: str = ""
    learner: str = ""  # as the roster calls them
    known_as: tuple[str, ...] = ()  # all that the roster calls them
    submitted: str | None = None  # UTC, ISO 8601; None if nobody knows
    marked_late: bool | None = None  # by the system that it was downloaded from; None if it marks nothing
    origin: str = ""  # its name in the download that it was collected from
    allowance: Allowance = Allowance()
    variant: int | None = None  # of the assignment, by which it is read and judged
    copy: str = ""  # the mark of the learner that the notebook was made for
    changed: dict[str, str] = field(default_factory=dict)  # hash of each cell of the exercise that is another, by id


def read_submission(file: SubmissionFile, assignment: Assignment) -> Submission:
    """Read one submission. Whatever is in the file, it comes back with a status."""
    digest, arrival = "", _Arrival()
    status = "graded"
    answers: dict[str, str] = {}
    notes: list[Note] = []
    changed: dict[str, str] = {}
    copy = ""
    try:
        if file.problem:
            raise Unreadable(file.problem)
        data = read_file(file.path)[0]
        digest = hashlib.sha256(data).hexdigest()
        arrival = _arrival(file, digest)
        cells = read_cells(data)
        copy = copy_of(cell.get("metadata") for cell in cells)
        answers, notes = _answers(cells, assignment, changed)
    except Unreadable as reason:
        status, notes = reason.status, list(reason.notes)
    about = vars(arrival) | {"changed": changed, "variant": assignment.variant, "copy": copy}
    return Submission(file.name, status, answers, (*file.notes, *notes), digest, file.learner, file.known_as, **about)


def cell_hashes(assignments: Iterable[Assignment]) -> dict[str, list[str]]:
    """Return the hashes of each cell that a learner does not fill in, as it was released in each variant, by its id."""
    hashes: dict[str, set[str]] = {}
    for assignment in assignments:
        for cell in assignment.notebook.cells:
            if cell.id not in assignment.stubs:
                hashes.setdefault(cell.id, set()).add(_hash(_released(cell)))
    return {id: sorted(of_cell) for id, of_cell in hashes.items()}


def _hash(source: str) -> str:
    return hashlib.sha256(_plain(source).encode("utf-8", "surrogatepass")).hexdigest()


def _answers(cells: list[dict], assignment: Assignment, changed: dict[str, str]) -> tuple[dict[str, str], list[Note]]:
    """The answers by grade_id, and what is unusual about the cells; fills in which cells are `changed`."""
    reference = {cell.id: cell for cell in assignment.notebook.cells}
    expected = {id: index for index, id in enumerate(assignment.stubs)}
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
                changed[id] = _hash(source)
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
    notes += _notes_on_other_cells(own, reference, answers, changed)
    notes += _other_variant(cells, assignment)
    return answers, list(dict.fromkeys(notes))


def _need_this_exercise(cells: list[dict], assignment: Assignment, answer_count: int) -> None:
    """Refuse a notebook that answers another exercise; some ids may be the same in both."""
    others = {id for cell in cells if is_solution(cell) and (id := grade_id_of(cell)) not in assignment.stubs}
    title = _title(cells)
    if len(others) > answer_count and (not answer_count or title != assignment.title):
        seems = [Note("other exercise", f"it seems to be “{title}”")] if title else []
        raise Unreadable("other exercise", *seems)
    if not answer_count:
        raise Unreadable("no answers")


def _other_variant(cells: list[dict], assignment: Assignment) -> list[Note]:
    """Return a note if a notebook was made with other numbers than those that it is judged by."""
    submitted = variant_of(cell.get("metadata") for cell in cells)
    expected = variant_of(cell.metadata for cell in assignment.notebook.cells)
    if submitted == expected:
        return []
    made, judged = (
        "the first numbers" if variant is None else f"variant {str(variant)[:20]}" for variant in (submitted, expected)
    )
    return [Note("other variant", f"the notebook was made with {made}, and is judged by {judged}")]


def _notes_on_other_cells(
    cells: list[dict], reference: dict, answers: dict[str, str], changed: dict[str, str]
) -> list[Note]:
    """Return notes on cells without a grade_id: those of the exercise, and those that the learner added.

    Learners should try things out in cells that they add. A person has to look only if an answer uses what such a cell
    defines: the cell was not run, so the answer fails.
    """
    released = {_plain(_released(cell)) for cell in reference.values()}
    extra, notes = [], []
    for cell in cells:
        source = _plain(source_of(cell))
        is_released = source in released or "check.load(" in source  # the recordings, which release puts into a cell
        if (
            cell.get("cell_type") != "code"
            or is_released
            or all(line.startswith(MAGIC) for line in source.splitlines())
        ):
            continue
        id = cell.get("id")
        if isinstance(id, str) and id in reference:
            notes.append(Note("changed cell", f"the cell `{id}` is changed: the original was run"))
            changed[id] = _hash(source)
        else:
            extra.append(source)
    if extra:
        defined = set().union(*map(names_given, (*released, *answers.values())))
        defined_elsewhere = set().union(*map(names_given, _first(extra, MAX_OWN))) - defined
        missed = sorted(defined_elsewhere & set().union(*map(names_used, answers.values())))
        count = "a code cell" if len(extra) == 1 else f"{len(extra)} code cells"
        uses = f" An answer uses {', '.join(f'`{name[:40]}`' for name in missed[:5])} from there." if missed else ""
        notes.append(
            Note(
                "extra code",
                f"{count} of their own, not run: helpers belong into an answer's cell.{uses}",
                review=bool(missed),
            )
        )
    return notes


def _first(sources: list[str], most: int) -> Iterator[str]:
    """Yield the first sources that together have at most so many characters."""
    for source in sources:
        most -= len(source) + 1
        if most >= 0:
            yield source


def _by_cell_id(cell: dict, reference: dict, tagged: set) -> str | None:
    """Return the grade_id of a cell that has lost its metadata, by its id; unless another cell bears this grade_id."""
    id = cell.get("id")
    if isinstance(id, str) and id in reference and "nbgrader" in reference[id].metadata and id not in tagged:
        return id
    return None


def _title(cells: list[dict]) -> str:
    """Return the first heading."""
    for cell in cells:
        source = source_of(cell).lstrip()
        if cell.get("cell_type") == "markdown" and source.startswith("# "):
            return printable(source.splitlines()[0][2:].strip()[:100])
    return ""


def _released(cell: Any) -> str:
    """Return the source of a cell of the reference as it was released, without the answer."""
    try:
        return cut(cell.source, HIDDEN_TESTS)[0]
    except ValueError:
        return cell.source


def _same(one: str, other: str) -> bool:
    return _plain(one) == _plain(other)


def _plain(source: str) -> str:
    """Return a source without what an editor may change by itself."""
    return "\n".join(line.rstrip() for line in source.splitlines()).strip()


@dataclass(frozen=True)
class _Arrival:
    """What is known of when and how a notebook came."""

    submitted: str | None = None  # UTC, ISO 8601
    marked_late: bool | None = None
    origin: str = ""


def _arrival(file: SubmissionFile, digest: str) -> _Arrival:
    """Return what the receipt beside a notebook says, if it is this notebook's.

    The file's own time says nothing: it is when a person unpacked or copied it.
    """
    for ending in (COLLECTED, RECEIPT):
        try:
            receipt = json.loads(read_file(file.path.with_name(file.path.stem + ending), MAX_RECEIPT)[0])
            if receipt["sha256"] != digest:
                continue
            marked_late = receipt["late"] if isinstance(receipt.get("late"), bool) else None
            origin = str(receipt.get("origin", ""))[:MAX_ORIGIN]
            if receipt["submitted"] is None and ending == COLLECTED:
                return _Arrival(None, marked_late, printable(origin))
            when = datetime.fromisoformat(receipt["submitted"])
            if when.tzinfo is not None:
                return _Arrival(when.astimezone(UTC).isoformat(timespec="seconds"), marked_late, printable(origin))
        except (Unreadable, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
    return _Arrival(marked_late=file.marked_late)
