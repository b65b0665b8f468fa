"""An assignment as the grader sees it: a notebook of the instructor's, and the tasks in it that give points."""

import copy
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txlib.grading.source import imported_modules, names_bound, names_used


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
    depends: tuple[str, ...] = ()  # ids of the tasks whose answers its reference uses
    prompt: str = ""  # markdown
    rubric: str = ""  # for whoever marks a written answer
    forbidden: tuple[str, ...] = ()  # names and operators that an answer must not call
    hidden: bool = False  # whether its check holds hidden tests
    after_hidden: bool = False  # whether its check, or one above it, does: what it shows may tell of them


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
    timeout: int | float = 60  # seconds a cell
    due: dict | None = None  # the rule for late submissions (see `txlib.grading.authoring.notes.due`)
    stubs: dict[str, str] = field(default_factory=dict)  # the released source of each solution cell, by grade_id

    @property
    def points(self) -> int | float:
        return sum(task.points for task in self.tasks)

    @property
    def imports(self) -> tuple[str, ...]:
        """What the assignment's own cells import, as `module` or `module:name`."""
        return imported_modules(cell.source for cell in self.notebook.cells if cell.cell_type == "code")

    def task(self, id: str) -> GradedTask | None:
        return next((task for task in self.tasks if task.id == id), None)


def digest(*parts: str) -> str:
    """One hash of several texts."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(f"{len(part)}:".encode() + part.encode("utf-8", "surrogatepass"))
    return whole.hexdigest()


def rebuild(assignment: Assignment, answers: dict[str, str], only: str | None = None) -> Any:
    """The instructor's notebook with a submission's answers in it; nothing else of the submission.

    A solution cell without an answer gets its stub. With `only`, the notebook tests this one task alone: the tasks
    that it rests on keep the reference's answers, those of all others are left out, with their checks.

    Cells may fail without ending the run, and their sources can't steer papermill or nbval: markers in comments are
    read by neither, tags are the instructor's.
    """
    notebook = copy.deepcopy(assignment.notebook)
    task = assignment.task(only) if only else None
    given = set(_rests_on(assignment, task, answers)) if task else set()
    for cell in notebook.cells:
        id = cell.id
        if id in assignment.stubs and id not in given:
            cell.source = answers.get(id, assignment.stubs[id])
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    if task:
        others = [each for each in assignment.tasks if each.id != task.id]
        dropped = {each.check for each in others}
        dropped |= {id for each in others for id in each.answers if id not in given} - set(task.answers)
        notebook.cells = [cell for cell in notebook.cells if cell.id not in dropped]
    return notebook


def solved(assignment: Assignment) -> Any:
    """The assignment's notebook with its own answers."""
    return rebuild(assignment, {cell.id: cell.source for cell in assignment.notebook.cells})


def rests_on_others(assignment: Assignment, task: GradedTask, answers: dict[str, str]) -> bool:
    """Whether the task, as answered, uses other tasks' answers."""
    return bool(_rests_on(assignment, task, answers))


def _rests_on(assignment: Assignment, task: GradedTask, answers: dict[str, str]) -> list[str]:
    """The solution cells whose reference stands in when a task is tested alone.

    They are those of the tasks that its reference uses, and of earlier tasks whose names the answer uses. Never of
    later ones: their reference may hold this task's solution.
    """
    order = [each.id for each in assignment.tasks]
    earlier = assignment.tasks[: order.index(task.id)]
    used = set().union(*(names_used(answers.get(id, "")) for id in task.answers))
    cells = {cell.id: cell.source for cell in assignment.notebook.cells}
    wanted = set(task.depends)
    for each in reversed(earlier):
        if used & set().union(*(names_bound(cells[id]) for id in each.answers)):
            wanted |= {each.id, *each.depends}
    return [id for each in assignment.tasks if each.id in wanted for id in each.answers]
