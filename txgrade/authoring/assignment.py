"""An assignment as the grader sees it: a notebook of the instructor's, and the tasks in it that give points."""

import ast
import copy
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbformat.v4 import new_code_cell

from txgrade.authoring.cells import check_body, definitions, is_parameters
from txgrade.source import imported_modules, names_bound, names_used


@dataclass(frozen=True)
class GradedTask:
    """One task that gives points.

    `kind` is `evidence` (a check cell shows what the answer returns), `measured` (it shows weights or tokens, which
    are measured elsewhere), `tests` (nbgrader's asserts, run in the kernel: the weaker kind) or `written`.
    """

    id: str  # what a result's column is called
    title: str
    points: int | float
    kind: str
    check: str  # id of the cell that is judged; of a written task, of the answer itself
    answers: tuple[str, ...]  # grade_ids of the solution cells that belong to it
    prompt: str = ""  # markdown
    rubric: str = ""  # for the person who marks a written answer
    forbidden: tuple[str, ...] = ()  # names and operators that an answer must not call
    visible: str | None = None  # its check without the hidden tests, where it has some

    @property
    def hidden(self) -> bool:
        """Whether its check holds hidden tests."""
        return self.visible is not None


@dataclass(frozen=True)
class Assignment:
    """What is graded. `notebook` is the reference: every cell that is executed in grading, with its solutions.

    A cell's id is its `grade_id`, or `cell-N`. Cells that only the author may see (known mistakes, rubrics,
    measures) are not in it.
    """

    name: str
    title: str
    path: Path
    notebook: Any
    tasks: tuple[GradedTask, ...]
    hash: str  # of all that decides a grade: cells, points, tolerances, known mistakes
    timeout: int | float = 0  # seconds that a cell may take at least, whatever the grader's limit
    due: dict | None = None  # the rule for late submissions (see `txgrade.authoring.declarations.due`)
    stubs: dict[str, str] = field(default_factory=dict)  # the released source of each solution cell, by grade_id
    # What its cells read (see `txgrade.authoring.data`): each path as they name it, and where the file is.
    data: tuple[tuple[str, Path], ...] = ()
    variant: int | None = None  # its number, if it is a variant of what its file holds

    @property
    def points(self) -> int | float:
        return sum(task.points for task in self.tasks)

    @property
    def has_checks(self) -> bool:
        """Whether evidence decides, of inputs drawn from a seed; else nbgrader's asserts do, which know none."""
        return any(task.kind not in ("tests", "written") for task in self.tasks)

    @property
    def has_private_values(self) -> bool:
        """Whether the grader draws values for its checks, `show.private(…)`, before any kernel runs."""
        checks = {task.check for task in self.tasks}
        return any("show.private(" in cell.source for cell in self.notebook.cells if cell.id in checks)

    @property
    def imports(self) -> tuple[str, ...]:
        """What the released cells import, as `module` or `module:name`: neither solutions nor hidden tests."""
        released = self.stubs | {task.check: task.visible for task in self.tasks if task.visible is not None}
        code = (cell for cell in self.notebook.cells if cell.cell_type == "code")
        return imported_modules(released.get(cell.id, cell.source) for cell in code)

    def task(self, id: str) -> GradedTask | None:
        return next((task for task in self.tasks if task.id == id), None)


def digest(*parts: str) -> str:
    """Return one hash of several texts."""
    hash = hashlib.sha256()
    for part in parts:
        hash.update(f"{len(part)}:".encode() + part.encode("utf-8", "surrogatepass"))
    return hash.hexdigest()


def rebuild(assignment: Assignment, answers: dict[str, str], *, hidden: bool = True) -> Any:
    """Return the instructor's notebook with a submission's answers in it; nothing else of the submission.

    A solution cell without an answer gets its stub. Without `hidden` the checks have no hidden tests.

    Before each check the given definitions above it run again, whatever answers have made of their names; the check
    itself is a function, so that its names end with it. After the parameters `check.begin` takes the seed.

    Cells may fail without ending the run, and their sources can't steer papermill or nbval: markers in comments are
    read by neither, tags are the instructor's.
    """
    notebook = copy.deepcopy(assignment.notebook)
    visible = {} if hidden else {task.check: task.visible for task in assignment.tasks if task.hidden}
    for cell in notebook.cells:
        if cell.id in assignment.stubs:
            cell.source = answers.get(cell.id, assignment.stubs[cell.id])
        cell.source = visible.get(cell.id, cell.source)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    if assignment.has_checks:
        notebook.cells = _guarded(assignment, notebook.cells)
    return notebook


def _guarded(assignment: Assignment, cells: list) -> list:
    """Return the cells of a rebuilt notebook, with what keeps a check independent of what answers have named."""
    checks = {task.check for task in assignment.tasks if task.kind in ("evidence", "measured")}
    guarded: list = []
    provided: list[str] = []
    for cell in cells:
        guarded.append(cell)
        if cell.id in checks:
            cell.source = "\n\n".join([*provided, ast.unparse(check_body(cell.source))])
        elif is_parameters(cell):
            guarded.append(new_code_cell(BEGIN, id="begin"))
        elif cell.cell_type == "code" and cell.id not in assignment.stubs:
            provided.append(definitions(cell.source))
    return guarded


# After papermill's parameters. It binds no name.
BEGIN = '__import__("txgrade").check.begin(seed, globals().pop("private_values", None))'


def rebuild_alone(assignment: Assignment, task: GradedTask, answers: dict[str, str], others: dict[str, str]) -> Any:
    """Return the instructor's notebook with one task's answer and check, to test it alone.

    Of other tasks it holds `others`, the submission's own solution cells by their id, and nothing else: no check, no
    stub and no line of the reference.
    """
    notebook = rebuild(assignment, answers | others)
    other_tasks = [other for other in assignment.tasks if other.id != task.id]
    dropped = {other.check for other in other_tasks} | {
        id for other in other_tasks for id in other.answers if id not in others
    }
    notebook.cells = [cell for cell in notebook.cells if cell.id not in dropped - set(task.answers)]
    return notebook


def solved(assignment: Assignment) -> Any:
    """Return the assignment's notebook with its own answers."""
    return rebuild(assignment, {cell.id: cell.source for cell in assignment.notebook.cells})


def rests_on(assignment: Assignment, task: GradedTask, answers: dict[str, str]) -> tuple[GradedTask, ...]:
    """Return the earlier tasks whose functions an answer or its check uses, and those that these use in turn."""
    check = next((cell.source for cell in assignment.notebook.cells if cell.id == task.check), "")
    used = names_used(check).union(*(names_used(answers.get(id, "")) for id in task.answers))
    needed: list[GradedTask] = []
    for earlier in reversed(assignment.tasks[: assignment.tasks.index(task)]):
        if used & set().union(*(names_bound(assignment.stubs[id]) for id in earlier.answers)):
            needed.insert(0, earlier)
            used |= set().union(*(names_used(answers.get(id, "")) for id in earlier.answers))
    return tuple(needed)
