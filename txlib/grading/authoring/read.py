"""Reads what is to be graded: an exercise of ours, or a source notebook of nbgrader's."""

import operator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from txlib.grading.authoring.assignment import Assignment, GradedTask, digest
from txlib.grading.authoring.cells import is_answer, stays_home, stub
from txlib.grading.authoring.exercise import Exercise, ExerciseError, read_exercise
from txlib.grading.authoring.nbgrader import read_nbgrader
from txlib.grading.authoring.notebooks import plain_notebook
from txlib.grading.source import names_bound, names_used


def read_assignment(path: Path | str) -> Assignment:
    """Read what is to be graded: an exercise of ours (`solutions/NN_name.py`), or a source notebook of nbgrader's.

    Raises:
        FileNotFoundError: no such file.
        ExerciseError: all that is wrong with its form.
    """
    path = Path(path)
    if path.suffix == ".ipynb" and _is_nbgraders(path):
        assignment = read_nbgrader(path)
    else:
        assignment = _from_exercise(read_exercise(path))
    after = accumulate((task.hidden for task in assignment.tasks), operator.or_)
    tasks = (replace(task, after_hidden=hidden) for task, hidden in zip(assignment.tasks, after, strict=True))
    return replace(assignment, tasks=tuple(tasks))


def _from_exercise(exercise: Exercise) -> Assignment:
    notebook = plain_notebook(exercise)
    everything = [f"{cell.cell_type}\n{cell.metadata}\n{cell.source}" for cell in notebook.cells]
    stubs = {cell.id: stub(cell) for cell in notebook.cells if is_answer(cell)}
    cells = exercise.notebook.cells
    bound = {task.id: names_bound(cells[task.answer].source) for task in exercise.tasks}
    used = {
        task.id: names_used(cells[task.answer].source) | names_used(cells[task.check].source) for task in exercise.tasks
    }
    tasks = []
    for task in exercise.tasks:
        depends, new = set(), {task.id}
        while new:
            new = {each for one in new for each in bound if each not in depends | {task.id} and used[one] & bound[each]}
            depends |= new
        tasks.append(
            GradedTask(
                task.id,
                task.title,
                task.points,
                "evidence",
                notebook.cells[task.check].id,
                (notebook.cells[task.answer].id,),
                tuple(each for each in bound if each in depends),
                task.prompt,
                hidden="BEGIN HIDDEN TESTS" in cells[task.check].source,
            )
        )
    for each in exercise.written:
        id = notebook.cells[each.cell].id
        tasks.append(GradedTask(each.id, each.title, each.points, "written", id, (id,), (), each.prompt, each.rubric))
    order = [cell.id for cell in notebook.cells]
    tasks.sort(key=lambda task: order.index(task.check))
    notebook.cells = [cell for cell in notebook.cells if not stays_home(cell)]
    return Assignment(
        exercise.name, exercise.title, exercise.path, notebook, tuple(tasks), digest(*everything), stubs=stubs
    )


def _is_nbgraders(path: Path) -> bool:
    """Whether a notebook's checks are asserts, rather than ours, which call `check`."""
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise
    except Exception as reason:
        raise ExerciseError(path.stem, [f"can't be read as a notebook: {type(reason).__name__}"]) from reason
    return not any("with check(" in cell.source for cell in notebook.cells if cell.cell_type == "code")
