"""An assignment as the grader sees it: a notebook of the instructor's, and the tasks in it that give points."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class GradedTask:
    """One task that gives points.

    `kind` is `evidence` (a check cell shows what the answer returns), `measured` (it shows weights or tokens, which
    are measured elsewhere), `tests` (nbgrader's asserts, run in the kernel: the weaker kind) or `written`.
    """

    id: str                         # what a result's column is called
    title: str
    points: int | float
    kind: str
    check: str                      # id of the cell that is judged; of a written task, of the answer itself
    answers: tuple[str, ...]        # grade_ids of the solution cells that belong to it
    depends: tuple[str, ...] = ()   # ids of the tasks whose answers its reference uses
    prompt: str = ""                # markdown
    rubric: str = ""                # for whoever marks a written answer
    forbidden: tuple[str, ...] = () # names and operators that an answer must not call
    hidden: bool = False            # whether its check holds hidden tests


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
    hash: str                       # of all that decides a grade: cells, points, tolerances, known mistakes
    timeout: int | float = 60       # seconds a cell
    due: dict | None = None         # the rule for late submissions (see `txlib.grading.known.due`)
    stubs: dict[str, str] = field(default_factory=dict)      # the released source of each solution cell, by grade_id

    @property
    def points(self) -> int | float:
        return sum(task.points for task in self.tasks)

    def task(self, id: str) -> GradedTask | None:
        return next((task for task in self.tasks if task.id == id), None)


def digest(*parts: str) -> str:
    """One hash of several texts."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(f"{len(part)}:".encode() + part.encode("utf-8", "surrogatepass"))
    return whole.hexdigest()
