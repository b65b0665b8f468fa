"""Reads an assignment of nbgrader's, `source/NAME/NAME.ipynb`, and gives its tests nbgrader's points.

The facts are those of nbgrader 0.9.6: its cell metadata (schemas 0 to 3), its marks, its grading of a tests cell.
"""

import copy
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from txgrade.authoring.assignment import Assignment, GradedTask, digest
from txgrade.authoring.data import digest_of, find_data
from txgrade.authoring.exercise import GRADE_ID, ExerciseError
from txgrade.source import names_bound, names_used

SCHEMA = 3
FLAGS = ("grade", "solution", "locked")
KEYS = ("schema_version", *FLAGS, "task", "grade_id", "points")  # the keys that matter to a grader
CODE_STUB = "# YOUR CODE HERE\nraise NotImplementedError()"
TEXT_STUB = "YOUR ANSWER HERE"
SOLUTION, HIDDEN_TESTS, MARK_SCHEME = "SOLUTION", "HIDDEN TESTS", "MARK SCHEME"
AUTOTEST = re.compile(r"^\s*#.*\bAUTOTEST\b", re.MULTILINE)
TIMEOUT = 30  # seconds a cell, as nbgrader has it


def read_nbgrader(path: Path | str) -> Assignment:
    """Read a source notebook of nbgrader's.

    A tests cell becomes a task of kind `tests`, a manually graded cell one of kind `written`: an answer (code or
    markdown), or a task cell, whose answer is in cells that the learner adds. A tests cell belongs to the
    solution cells that define what it uses, or else to those before it.

    Raises:
        FileNotFoundError: no such file.
        ExerciseError: all that nbgrader would refuse, and what can't be graded here.
    """
    import nbformat

    path = Path(path)
    try:
        notebook = nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise FileNotFoundError(f"no assignment at {path}: give nbgrader's source notebook") from None
    except Exception as reason:
        raise ExerciseError(path.stem, [f"can't be read as a notebook: {type(reason).__name__}"]) from reason
    return _Reader(path, notebook).read()


def autograded(outputs: list, task: GradedTask) -> int | float:
    """Return the points of an executed tests cell, by the rules of nbgrader's `determine_grade`.

    The first output that says something decides: an error, or anything on stderr, gives 0; the cell's value gives
    that many points if it is a number from 0 to the task's points, and all points if it is no number or below 0.
    Where no output says anything: all points. Where nbgrader itself fails, at a number above the task's points and
    at a value without text, the points are 0; so they are at what is no finite number.
    """
    for output in outputs:
        kind = output.get("output_type")
        if kind == "error" or kind == "stream" and output.get("name") == "stderr":
            return 0
        if kind == "execute_result":
            return _partial(output.get("data", {}).get("text/plain"), task.points)
    return task.points


def upgraded(metadata: dict) -> dict | None:
    """Return a cell's nbgrader metadata in schema 3, converted as nbgrader does; None where it says nothing.

    Raises:
        ValueError: points of schema 0 that are no number, or a schema that isn't known.
    """
    meta: dict[str, Any] = dict(metadata)
    version = meta.get("schema_version", 0)
    if version not in range(SCHEMA + 1):
        raise ValueError(f"schema_version {version!r} is not known; nbgrader's are 0 to {SCHEMA}")
    if version == 0:
        meta = {flag: False for flag in FLAGS} | meta
        if not any(meta[flag] for flag in FLAGS):
            return None
        points = meta.pop("points", "")
        if meta["grade"]:
            try:
                meta["points"] = max(float(points), 0.0) if points != "" else 0.0
            except (TypeError, ValueError):
                raise ValueError(f"points = {points!r} is not a number") from None
    meta["schema_version"] = SCHEMA
    return {key: meta[key] for key in KEYS if key in meta}


def cut(source: str, mark: str, stub: str | None = None) -> tuple[str, str]:
    """Cut the lines from each `BEGIN mark` to its `END mark`; returns what is left, and what was cut.

    A stub goes where a region began, as deep as its mark stood. Like nbgrader, takes any line that holds the mark's
    words for a mark.

    Raises:
        ValueError: a region within another, or one that doesn't end.
    """
    kept: list[str] = []
    removed: list[str] = []
    inside = False
    for line in source.split("\n"):
        if f"BEGIN {mark}" in line:
            if inside:
                raise ValueError(f"BEGIN {mark} within another one")
            inside = True
            indent = line[: len(line) - len(line.lstrip())]
            kept += [indent + stub_line for stub_line in stub.split("\n")] if stub else []
        elif f"END {mark}" in line:
            inside = False
        else:
            (removed if inside else kept).append(line)
    if inside:
        raise ValueError(f"BEGIN {mark} without its END {mark}")
    return "\n".join(kept), "\n".join(removed)


def _partial(text: object, points: int | float) -> int | float:
    if not isinstance(text, str) or not text:
        return 0
    try:
        value = float(text)
    except ValueError:
        return points
    if value > points or not math.isfinite(value):
        return 0
    return value if value >= 0 else points


class _Reader:
    """Reads one notebook and gathers every problem."""

    def __init__(self, path: Path, notebook: Any):
        self.path, self.notebook = path, copy.deepcopy(notebook)
        self.problems: list[str] = []

    def read(self) -> Assignment:
        language = self.notebook.metadata.get("kernelspec", {}).get("language", "python")
        if str(language).lower() != "python":
            raise ExerciseError(self.path.stem, [f"its language is {language}; only Python is graded here"])
        self._metadata()
        for number, cell in enumerate(self.notebook.cells, 1):
            self._form(number, cell)
        data, wrong = find_data(self.notebook, self.path)
        self.problems += wrong
        if self.problems:
            raise ExerciseError(self.path.stem, self.problems)
        everything = [f"{cell.cell_type}\n{cell.metadata}\n{cell.source}" for cell in self.notebook.cells]
        self._name_cells()
        self._clean()
        tasks = self._tasks()
        if not tasks:
            raise ExerciseError(self.path.stem, ["no cell in it gives points"])
        return Assignment(
            self.path.stem,
            self._title(),
            self.path,
            self.notebook,
            tuple(tasks),
            digest(*everything, *digest_of(data)),
            timeout=TIMEOUT,
            due=self.notebook.metadata.get("txgrade", {}).get("due"),  # as `txgrade collect nbgrader` wrote it
            stubs=self.stubs,
            data=data,
        )

    def _metadata(self) -> None:
        """Return every cell's metadata in schema 3; none where nbgrader has nothing to do with the cell."""
        for number, cell in enumerate(self.notebook.cells, 1):
            try:
                meta = upgraded(cell.metadata.get("nbgrader", {}))
            except (ValueError, TypeError) as reason:
                self._problem(number, cell, str(reason))
                meta = None
            cell.metadata.pop("nbgrader", None)
            if meta is not None:
                cell.metadata["nbgrader"] = meta

    def _form(self, number: int, cell: Any) -> None:
        """Return what nbgrader refuses when it makes the learners' version."""
        meta = _meta(cell)
        wrong = [flag for flag in FLAGS if meta and not isinstance(meta.get(flag), bool)]
        if wrong:
            self._problem(number, cell, f"its metadata has no true or false for {', '.join(wrong)}")
            return
        if any(meta.get(flag) for flag in (*FLAGS, "task")):
            self._id(number, cell)
        points = meta.get("points")
        if _gives_points(cell) and not (
            isinstance(points, int | float) and not isinstance(points, bool) and math.isfinite(points) and points >= 0
        ):
            self._problem(number, cell, f"points = {points!r}; write a number, 0 or more")
        if meta.get("task") and cell.cell_type != "markdown":
            self._problem(number, cell, "a task cell must be markdown")
        if _is_tests(cell) and cell.cell_type != "code":
            self._problem(number, cell, "a tests cell must be code; mark a written answer as a solution too")
        if meta.get("solution") and not meta.get("grade") and cell.cell_type == "markdown":
            self._problem(number, cell, "this written answer gives no points; mark it as graded as well")
        if cell.cell_type == "code" and AUTOTEST.search(cell.source):
            self._problem(number, cell, "AUTOTEST lines become tests in nbgrader only; write the asserts")
        self._marks(number, cell)

    def _marks(self, number: int, cell: Any) -> None:
        """Return the marks in nbgrader's order; what a cleared solution takes with it is not looked at."""
        meta, source = _meta(cell), cell.source
        try:
            if meta.get("solution"):
                source = _released(cell)[0]
            fits = {
                SOLUTION: ("solution", False),
                HIDDEN_TESTS: ("tests", meta.get("grade")),
                MARK_SCHEME: ("task", meta.get("task")),
            }
            for mark, (kind, allowed) in fits.items():
                if f"BEGIN {mark}" in source and not allowed:
                    self._problem(number, cell, f"BEGIN {mark} in a cell that is no {kind} cell")
                source = cut(source, mark)[0]
        except ValueError as reason:
            self._problem(number, cell, str(reason))

    def _id(self, number: int, cell: Any) -> None:
        id = _meta(cell).get("grade_id")
        if not id:
            self._problem(number, cell, "has no grade_id")
        elif not isinstance(id, str) or not GRADE_ID.fullmatch(id):
            self._problem(number, cell, "a grade_id may hold at most 64 letters, digits, - and _")
        elif any(_meta(other).get("grade_id") == id for other in self.notebook.cells[: number - 1]):
            self._problem(number, cell, "the grade_id is used twice")

    def _problem(self, number: int, cell: Any, problem: str) -> None:
        id = dict(cell.metadata.get("nbgrader") or {}).get("grade_id")
        self.problems.append(f"cell {number}{f' ({id})' if id else ''}: {problem}")

    def _name_cells(self) -> None:
        taken = {_meta(cell).get("grade_id") for cell in self.notebook.cells}
        self.notebook.nbformat, self.notebook.nbformat_minor = 4, 5
        for number, cell in enumerate(self.notebook.cells, 1):
            plain = f"cell-{number}"
            cell.id = _meta(cell).get("grade_id") or (f"{plain}-plain" if plain in taken else plain)

    def _clean(self) -> None:
        """Keeps the released sources, and takes out what isn't executed: outputs, mark schemes."""
        self.stubs, self.rubrics = {}, {}
        for cell in self.notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
            if _meta(cell).get("solution"):
                released, self.rubrics[cell.id] = _released(cell)
                self.stubs[cell.id] = cut(released, HIDDEN_TESTS)[0]
            elif _meta(cell).get("task"):
                cell.source, self.rubrics[cell.id] = cut(cell.source, MARK_SCHEME)

    def _tasks(self) -> list[GradedTask]:
        cells, closed = self.notebook.cells, False
        tasks: list[GradedTask] = []
        above: list[Any] = []
        near: list[Any] = []  # answers since the last tests
        for number, cell in enumerate(cells):
            if _meta(cell).get("solution") and cell.cell_type == "code":
                near, closed = ([] if closed else near) + [cell], False
                above.append(cell)
            if not _gives_points(cell):
                continue
            answers = [cell] if _meta(cell)["solution"] else []
            if _is_tests(cell):
                closed, used = True, names_used(cell.source)
                answers = (
                    [answer for answer in near if names_bound(answer.source) & used]
                    or [answer for answer in above if names_bound(answer.source) & used]
                    or near
                )
            first = cells.index(answers[0]) if answers else number
            prompt = cell.source if _meta(cell).get("task") else self._prompt(first)
            tasks.append(
                GradedTask(
                    cell.id,
                    _heading(prompt) or cell.id,
                    _meta(cell)["points"],
                    "tests" if _is_tests(cell) else "written",
                    cell.id,
                    tuple(answer.id for answer in answers),
                    prompt=prompt,
                    rubric=self.rubrics.get(cell.id, ""),
                    visible=cut(cell.source, HIDDEN_TESTS)[0] if f"BEGIN {HIDDEN_TESTS}" in cell.source else None,
                )
            )
        titles = [task.title for task in tasks]
        return [
            replace(task, title=f"{task.title} · {task.id}") if titles.count(task.title) > 1 else task for task in tasks
        ]

    def _prompt(self, answer: int) -> str:
        """Return the nearest text above an answer, up to the answer or the tests before it."""
        for cell in reversed(self.notebook.cells[:answer]):
            if _meta(cell).get("solution") or _gives_points(cell):
                break
            if cell.cell_type == "markdown":
                return cell.source
        return ""

    def _title(self) -> str:
        texts = (cell.source for cell in self.notebook.cells if cell.cell_type == "markdown")
        return next(filter(None, map(_heading, texts)), self.path.stem)


def _released(cell: Any) -> tuple[str, str]:
    """Return a solution cell's source with stubs for its solutions, and the solutions; unmarked, the whole cell."""
    stub = CODE_STUB if cell.cell_type == "code" else TEXT_STUB
    if f"BEGIN {SOLUTION}" not in cell.source:
        return stub, cell.source
    return cut(cell.source, SOLUTION, stub)


def _meta(cell: Any) -> dict:
    return cell.metadata.get("nbgrader", {})


def _gives_points(cell: Any) -> bool:
    return bool(_meta(cell).get("grade") or _meta(cell).get("task"))


def _is_tests(cell: Any) -> bool:
    """Return whether its points come from running it."""
    return bool(_meta(cell).get("grade") and not _meta(cell).get("solution") and not _meta(cell).get("task"))


def _heading(text: str) -> str:
    heading = re.search(r"^#+ +(.+?)[ #]*$", text, re.MULTILINE)
    return heading[1] if heading else ""
