"""The source of an exercise, `solutions/NN_name.py`, read and checked for form. docs/exercises.md describes it."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txlib.grading.verdict import STUB

BEGIN_SOLUTION, END_SOLUTION = "### BEGIN SOLUTION", "### END SOLUTION"
BEGIN_HIDDEN, END_HIDDEN = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"
GRADE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")      # also what a notebook's cell id may be
HEADING = re.compile(r"^#+ *Task[^·]*·(?P<title>.*)$", re.MULTILINE)


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
    answer: int                 # numbers of the cells in the notebook
    check: int
    names: tuple[str, ...]      # the functions and classes that the answer defines
    difficulty: int | None = None      # of 5
    minutes: int | None = None
    prompt: str = ""            # the markdown above the answer


@dataclass(frozen=True)
class Exercise:
    """A whole exercise. `notebook` holds every cell of the source, solutions and mistakes included."""

    name: str
    title: str
    path: Path
    seed: int                   # the public one, on which the recordings are made
    notebook: Any
    tasks: tuple[Task, ...]

    @property
    def points(self) -> int | float:
        return sum(task.points for task in self.tasks)

    def task(self, id: str) -> Task | None:
        return next((task for task in self.tasks if task.id == id), None)


def read_exercise(path: Path | str) -> Exercise:
    """Read a source, py:percent or a notebook.

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
    return _Reader(path, notebook).read()


def is_mistakes(cell: Any) -> bool:
    return "mistakes" in cell.metadata.get("tags", [])


def is_parameters(cell: Any) -> bool:
    return "parameters" in cell.metadata.get("tags", [])


def is_answer(cell: Any) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get("solution"))


def is_check(cell: Any) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get("grade")) and not is_answer(cell)


def strip_solution(source: str) -> str:
    """Replace each marked solution by `raise NotImplementedError("your turn")`, as deep as it stood."""
    return _replace_regions(source, BEGIN_SOLUTION, END_SOLUTION, f'raise NotImplementedError("{STUB}")')


def strip_hidden(source: str) -> str:
    """Remove the marked hidden tests."""
    return _replace_regions(source, BEGIN_HIDDEN, END_HIDDEN, None)


def _replace_regions(source: str, begin: str, end: str, stub: str | None) -> str:
    lines, inside = [], False
    for line in source.splitlines():
        text = line.strip()
        if text in (begin, end):
            if inside == (text == begin):
                raise ValueError(f"{text} without its {end if text == begin else begin}")
            inside = not inside
            if inside and stub:
                lines.append(line[:len(line) - len(line.lstrip())] + stub)
        elif not inside:
            lines.append(line)
    if inside:
        raise ValueError(f"{begin} without its {end}")
    return "\n".join(lines)


class _Reader:
    """Reads one source and gathers every problem, so that an author sees all of them at once."""

    def __init__(self, path: Path, notebook: Any):
        self.path, self.notebook, self.problems = path, notebook, []

    def read(self) -> Exercise:
        cells = self.notebook.cells
        for number, cell in enumerate(cells, 1):
            if cell.cell_type == "code":
                self._syntax(cell, f"cell {number}")
        if self.problems:
            raise ExerciseError(self.path.stem, self.problems)
        seed = self._seed()
        self._ids()
        answers = {self._id(cell): i for i, cell in enumerate(cells) if is_answer(cell) and cell.cell_type == "code"}
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
        if not checks:
            self.problems.append("no check cells: nothing in it is an exercise")
        title = self._title()
        self._total(tasks)
        if self.problems:
            raise ExerciseError(self.path.stem, self.problems)
        return Exercise(self.path.stem, title, self.path, seed, self.notebook, tuple(tasks))

    def _syntax(self, cell: Any, what: str) -> None:
        try:
            ast.parse(cell.source)
        except SyntaxError as reason:
            text = (reason.text or "").strip()
            self.problems.append(f"{what}, line {reason.lineno}: not plain Python, {reason.msg}: {text}")

    def _seed(self) -> int:
        cells = [cell for cell in self.notebook.cells if is_parameters(cell)]
        if len(cells) == 1:
            values = {target.id: statement.value for statement in ast.parse(cells[0].source).body
                      if isinstance(statement, ast.Assign) for target in statement.targets
                      if isinstance(target, ast.Name)}
            constants = {name: getattr(value, "value", None) for name, value in values.items()}
            if type(constants.get("seed")) is int and constants.get("mode") == "learn":
                return constants["seed"]
        self.problems.append('needs one cell tagged "parameters" that says: seed = 0; mode = "learn"')
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
            if is_answer(cell) and cell.metadata.nbgrader.get("grade"):
                self.problems.append(f"task {id}: a cell is a solution or a check, not both")
            if is_answer(cell) and cell.cell_type != "code":
                self.problems.append(f"task {id}: an answer must be a code cell")

    def _checked(self, cell: Any) -> str:
        calls = [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)
                 and isinstance(node.func, ast.Name) and node.func.id == "check"]
        ids = [call.args[0].value for call in calls if call.args and isinstance(call.args[0], ast.Constant)]
        if len(ids) == 1:
            return str(ids[0])
        self.problems.append(f'check cell {self._id(cell)}: needs exactly one `with check("task") as show:`')
        return ""

    def _task(self, id: str, answer: int, check: int) -> Task:
        cells = self.notebook.cells
        names = self._names(id, cells[answer].source)
        for number in (answer, check):
            try:
                strip_hidden(strip_solution(cells[number].source))
            except ValueError as reason:
                self.problems.append(f"task {id}: {reason}")
        if check < answer:
            self.problems.append(f"task {id}: its check stands before its solution")
        points = cells[check].metadata.nbgrader.get("points")
        if isinstance(points, bool) or not isinstance(points, int | float) or points <= 0:
            self.problems.append(f"task {id}: its check cell gives points = {points!r}; choose a number above 0")
            points = 0
        prompt = self._prompt(answer)
        said = _number(prompt, "point")
        if points and said is not None and said != points:
            self.problems.append(f"task {id}: the prompt says {said:g} points, its check cell {points:g}")
        heading = HEADING.search(prompt)
        title = re.split(r" {2,}|\s[·●]", heading["title"].strip())[0].strip() if heading else id
        minutes = _number(prompt, "minute")
        return Task(id, title, points, answer, check, names, heading and heading["title"].count("●") or None,
                    int(minutes) if minutes else None, prompt)

    def _names(self, id: str, source: str) -> tuple[str, ...]:
        lines = source.splitlines()
        begin = next((line for line in lines if line.strip() == BEGIN_SOLUTION), None)
        if begin is None:
            self.problems.append(f"task {id}: no {BEGIN_SOLUTION} in its solution cell")
        elif begin == begin.lstrip():
            self.problems.append(f"task {id}: put the solution inside a function or class; a stub at top level "
                                 "would end Run All")
        names = [node.name for node in ast.parse(source).body
                 if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")]
        if not names:
            self.problems.append(f"task {id}: its solution cell defines no function or class")
        return tuple(names)

    def _prompt(self, answer: int) -> str:
        """The nearest markdown cell above the answer that has a Task heading."""
        for cell in reversed(self.notebook.cells[:answer]):
            if cell.cell_type == "markdown" and HEADING.search(cell.source):
                return cell.source
            if is_answer(cell):
                break
        return ""

    def _title(self) -> str:
        first = next((cell.source for cell in self.notebook.cells if cell.cell_type == "markdown"), "")
        heading = re.search(r"^# +(.+)$", first, re.MULTILINE)
        return heading[1].strip() if heading else self.path.stem

    def _total(self, tasks: list[Task]) -> None:
        first = next((cell.source for cell in self.notebook.cells if cell.cell_type == "markdown"), "")
        total = _number(first, "point") if not HEADING.search(first) else None
        points = sum(task.points for task in tasks)
        if total is not None and total != points:
            self.problems.append(f"the title cell says {total:g} points, the check cells give {points:g} together")


def _number(text: str, unit: str) -> float | None:
    found = re.search(rf"(\d+(?:\.\d+)?) {unit}s?\b", text)
    return float(found[1]) if found else None
