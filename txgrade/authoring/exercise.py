"""The source of an exercise, `solutions/NN_name.py`, read and checked for form. docs/exercises.md describes it."""

import ast
import math
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txgrade.authoring.cells import (
    HEADING,
    MARK_SCHEME,
    SOLUTION,
    has_region,
    is_answer,
    is_check,
    is_mistakes,
    is_parameters,
    is_rubric,
    is_written,
    region_text,
    strip_region,
    stub,
)
from txgrade.authoring.data import Data, find_data
from txgrade.authoring.declarations import read_due
from txgrade.authoring.variants import Variants, settle
from txgrade.records.lateness import deadline

GRADE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")  # also what a notebook's cell id may be


class ExerciseError(ValueError):
    """What is wrong with an exercise: one line a problem, each naming its task."""

    def __init__(self, name: str, problems: list[str]):
        self.problems = problems
        super().__init__("\n".join(f"{name}: {problem}" for problem in problems))


@dataclass(frozen=True)
class Task:
    """One task: an answer cell and the check cell that calls it."""

    id: str
    title: str
    points: int | float
    answer: int  # numbers of the cells in the notebook
    check: int
    names: tuple[str, ...]  # the functions and classes that the answer defines
    difficulty: int | None = None  # of 5
    minutes: int | None = None
    prompt: str = ""  # the markdown above the answer


@dataclass(frozen=True)
class Written:
    """A written answer: a cell that a person marks."""

    id: str
    title: str
    points: int | float
    cell: int  # its number in the notebook
    rubric: str = ""  # for the person who marks it, markdown; never released
    prompt: str = ""  # the markdown above it


@dataclass(frozen=True)
class Exercise:
    """A whole exercise. `notebook` holds every cell of the source, solutions and mistakes included."""

    name: str
    title: str
    path: Path
    seed: int  # the public one, on which the recordings are made
    notebook: Any
    tasks: tuple[Task, ...]  # those with a check
    written: tuple[Written, ...] = ()
    data: Data = ()  # files and folders that its cells read
    variant: int | None = None  # its number, if it is a variant
    variants: Variants = Variants()  # all that there are
    due: dict | None = None  # the rule for late submissions (see `txgrade.authoring.declarations.due`)

    @property
    def points(self) -> int | float:
        return sum(task.points for task in self.tasks) + sum(task.points for task in self.written)

    def task(self, id: str) -> Task:
        """
        Raises:
            KeyError: there is none of this id.
        """
        return {task.id: task for task in self.tasks}[id]


def read_exercise(
    path: Path | str, variant: int | None = None, *, dealt: bool = False, due: str | None = None
) -> Exercise:
    """Read a source, py:percent or a notebook; with `variant`, that variant of it.

    A variant's name and title contain its number, unless it is `dealt`, one of several that are graded together. The
    source's deadline is past by then: a variant that is not dealt has none, or is `due` then, by the same rule.

    Raises:
        FileNotFoundError: no such file.
        ExerciseError: all that is wrong with its form, by task.
    """
    import jupytext

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no exercise at {path}: give the source, e.g. solutions/03_attention.py")
    try:
        notebook = jupytext.read(path, fmt="py:percent" if path.suffix == ".py" else None)
    except Exception as reason:
        raise ExerciseError(path.stem, [f"can't be read as a notebook: {reason}"]) from reason
    return _Reader(path, notebook, variant, dealt, due).read()


class _Reader:
    """Reads one source and gathers every problem, so that an author sees all of them at once."""

    def __init__(self, path: Path, notebook: Any, variant: int | None, dealt: bool, due: str | None):
        self.path, self.notebook, self.variant = path, notebook, variant
        self.name, self.addition, self.due = path.stem, "", due  # the addition is to the title
        if variant is not None and not dealt:
            self.name, self.addition = variant_name(path.stem, variant), f" · variant {variant}"
        self.problems: list[str] = []

    def read(self) -> Exercise:
        for number, cell in enumerate(self.notebook.cells, 1):
            if broken := cell.metadata.get("incorrectly_encoded_metadata"):  # as jupytext calls it
                self.problems.append(f"cell {number}: the text after its # %% is not JSON: {broken}")
            if cell.cell_type == "code":
                self._syntax(cell, f"cell {number}")
            elif not is_answer(cell):
                self._marks(cell, f"cell {number}")
        variants = Variants() if self.problems else self._settle()
        if self.problems:
            raise ExerciseError(self.name, self.problems)
        cells = self.notebook.cells
        seed = self._seed()
        self._ids()
        answers = {
            self._id(cell): i
            for i, cell in enumerate(cells)
            if is_answer(cell) and not is_written(cell) and cell.cell_type == "code"
        }
        checks: dict[str, int] = {}
        for i, cell in enumerate(cells):
            if is_check(cell) and (id := self._checked(cell)):
                if id not in answers:
                    self.problems.append(f'task {id}: its check "{self._id(cell)}" has no solution cell "{id}"')
                elif id in checks:
                    self.problems.append(f"task {id}: more than one check cell")
                checks.setdefault(id, i)
        for id in answers:
            if id not in checks:
                self.problems.append(f'task {id}: no check cell calls check("{id}")')
        tasks = [self._task(id, answers[id], i) for id, i in checks.items() if id in answers]
        written = [self._written(i) for i, cell in enumerate(cells) if is_written(cell)]
        self._rubrics(cells)
        if not checks and not written:
            self.problems.append("no check cells: nothing in it is an exercise")
        title = self._title()
        self._total([*tasks, *written])
        due = self._due()
        data, wrong = find_data(self.notebook, self.path)
        self.problems += wrong
        if self.problems:
            raise ExerciseError(self.name, self.problems)
        return Exercise(
            self.name,
            title,
            self.path,
            seed,
            self.notebook,
            tuple(tasks),
            tuple(written),
            data,
            self.variant,
            variants,
            due,
        )

    def _settle(self) -> Variants:
        """Put the variant into the notebook; its recordings are made on another public seed."""
        settled = settle(self.notebook, self.variant)
        self.problems += settled.problems
        if self.variant is not None:
            for cell in self.notebook.cells:
                if is_parameters(cell):
                    cell.metadata["variant"] = self.variant
                    seed = zlib.crc32(variant_name(self.path.stem, self.variant).encode())
                    cell.source = re.sub(r"^(seed\s*=\s*)\d+", rf"\g<1>{seed}", cell.source, flags=re.M)
            first = next(cell for cell in self.notebook.cells if cell.cell_type == "markdown")
            first.source = re.sub(r"^(# .+)$", rf"\1{self.addition}", first.source, count=1, flags=re.M)
        return settled.variants

    def _syntax(self, cell: Any, where: str) -> None:
        try:
            ast.parse(cell.source)
        except SyntaxError as reason:
            text = (reason.text or "").strip()
            self.problems.append(f"{where}, line {reason.lineno}: not plain Python, {reason.msg}: {text}")

    def _marks(self, cell: Any, where: str) -> bool:
        try:
            stub(cell)
        except ValueError as reason:
            self.problems.append(f"{where}: {reason}")
            return False
        return True

    def _seed(self) -> int:
        cells = [cell for cell in self.notebook.cells if is_parameters(cell)]
        if len(cells) == 1:
            values = {
                target.id: statement.value
                for statement in ast.parse(cells[0].source).body
                if isinstance(statement, ast.Assign)
                for target in statement.targets
                if isinstance(target, ast.Name)
            }
            constants = {name: getattr(value, "value", None) for name, value in values.items()}
            seed = constants.get("seed")
            if type(seed) is int:
                return seed
        self.problems.append('needs one cell tagged "parameters" that says: seed = 0')
        return 0

    def _id(self, cell: Any) -> str:
        return str(cell.metadata.nbgrader.get("grade_id", ""))

    def _ids(self) -> None:
        seen = set()
        for cell in self.notebook.cells:
            if "nbgrader" not in cell.metadata:
                continue
            id = self._id(cell)
            if not GRADE_ID.fullmatch(id):
                self.problems.append(f"grade_id {id!r} may only hold letters, digits, - and _")
            if id in seen:
                self.problems.append(f"task {id}: the grade_id is used twice")
            seen.add(id)
            if is_answer(cell) and not is_written(cell) and cell.cell_type != "code":
                self.problems.append(f'task {id}: an answer must be a code cell; a written one says "grade": true')

    def _checked(self, cell: Any) -> str:
        calls = [
            node
            for node in ast.walk(ast.parse(cell.source))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "check"
        ]
        ids = [call.args[0].value for call in calls if call.args and isinstance(call.args[0], ast.Constant)]
        if len(ids) == 1:
            return str(ids[0])
        self.problems.append(f'check cell {self._id(cell)}: needs exactly one `with check("task") as show:`')
        return ""

    def _task(self, id: str, answer: int, check: int) -> Task:
        cells = self.notebook.cells
        names = self._names(id, cells[answer].source)
        for number in (answer, check):
            self._marks(cells[number], f"task {id}")
        if check < answer:
            self.problems.append(f"task {id}: its check comes before its solution")
        prompt = self._prompt(answer)
        points = self._points(id, cells[check], prompt)
        heading = HEADING.search(prompt)
        minutes = _number(prompt, "minute")
        return Task(
            id,
            _task_title(prompt, id),
            points,
            answer,
            check,
            names,
            heading and heading["title"].count("●") or None,
            int(minutes) if minutes else None,
            prompt,
        )

    def _written(self, number: int) -> Written:
        cells = self.notebook.cells
        id, prompt = self._id(cells[number]), self._prompt(number)
        rubric = [region_text(cells[number].source, MARK_SCHEME)] if self._marks(cells[number], f"task {id}") else []
        for cell in cells[number + 1 :]:
            if is_answer(cell):
                break
            rubric += [cell.source] if is_rubric(cell) else []
        points = self._points(id, cells[number], prompt)
        return Written(id, _task_title(prompt, id), points, number, "\n\n".join(filter(None, rubric)), prompt)

    def _points(self, id: str, cell: Any, prompt: str) -> int | float:
        points = cell.metadata.nbgrader.get("points")
        where = "its cell" if is_written(cell) else "its check cell"
        if isinstance(points, bool) or not isinstance(points, int | float) or not 0 < points < math.inf:
            self.problems.append(f"task {id}: {where} gives points = {points!r}; choose a number above 0")
            return 0
        promised = _number(prompt, "point")
        if promised is not None and promised != points:
            self.problems.append(f"task {id}: the prompt says {promised:g} points, {where} {points:g}")
        return points

    def _rubrics(self, cells: list) -> None:
        written = None
        for number, cell in enumerate(cells, 1):
            if is_answer(cell):
                written = is_written(cell)
            elif is_rubric(cell) and not written:
                self.problems.append(f"cell {number}: a rubric must come below its written answer")

    def _names(self, id: str, source: str) -> tuple[str, ...]:
        lines = source.splitlines()
        begin = next((line for line in lines if has_region(line, SOLUTION)), None)
        if begin is None:
            self.problems.append(f"task {id}: no ### BEGIN {SOLUTION} in its solution cell")
        elif begin == begin.lstrip():
            self.problems.append(
                f"task {id}: put the solution inside a function or class; a stub at top level would end Run All"
            )
        names = [
            node.name
            for node in ast.parse(source).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
        ]
        if not names:
            self.problems.append(f"task {id}: its solution cell defines no function or class")
        return tuple(names)

    def _prompt(self, answer: int) -> str:
        """Return the nearest markdown cell above the answer that has a Task heading."""
        for cell in reversed(self.notebook.cells[:answer]):
            if cell.cell_type == "markdown" and HEADING.search(cell.source):
                return strip_region(cell.source, MARK_SCHEME)
            if is_answer(cell):
                break
        return ""

    def _title(self) -> str:
        first = next((cell.source for cell in self.notebook.cells if cell.cell_type == "markdown"), "")
        heading = re.search(r"^# +(.+)$", first, re.MULTILINE)
        return heading[1].strip() if heading else self.path.stem

    def _due(self) -> dict | None:
        try:
            rule = read_due(cell.source for cell in self.notebook.cells if is_mistakes(cell))
            if self.name == self.path.stem or self.due is None:
                return rule if self.name == self.path.stem else None
            if rule is None:
                raise ValueError(f"--due {self.due}: its source has no due(…) whose rule would hold")
            rule |= {"when": self.due}
            deadline(rule)
            return rule
        except ValueError as reason:
            self.problems.append(str(reason))
            return None

    def _total(self, tasks: list[Task | Written]) -> None:
        first = next((cell.source for cell in self.notebook.cells if cell.cell_type == "markdown"), "")
        total = _number(first, "point") if not HEADING.search(first) else None
        points = sum(task.points for task in tasks)
        if total is not None and total != points:
            self.problems.append(f"the title cell says {total:g} points, the check cells give {points:g} together")


def variant_name(exercise: str, variant: int) -> str:
    """Return the name of an exercise's variant."""
    return f"{exercise}_variant_{variant}"


def without_variant(name: str) -> str:
    """Return the name of the exercise that an assignment is, or is a variant of."""
    return re.sub(r"_variant_\d+$", "", name)


def _task_title(prompt: str, otherwise: str) -> str:
    heading = HEADING.search(prompt)
    return re.split(r" {2,}|\s[·●]", heading["title"].strip())[0].strip() if heading else otherwise


def _number(text: str, unit: str) -> float | None:
    number = re.search(rf"(\d+(?:\.\d+)?) {unit}s?\b", text)
    return float(number[1]) if number else None
