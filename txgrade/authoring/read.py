"""Reads what is to be graded: an exercise of ours, or a source notebook of nbgrader's."""

from pathlib import Path

from txgrade.authoring.assignment import Assignment, GradedTask, digest
from txgrade.authoring.cells import HIDDEN_TESTS, has_region, is_answer, stays_home, strip_hidden, stub
from txgrade.authoring.data import digest_of
from txgrade.authoring.exercise import Exercise, ExerciseError, read_exercise
from txgrade.authoring.nbgrader import read_nbgrader
from txgrade.authoring.notebooks import plain_notebook


def read_assignment(
    path: Path | str, variant: int | None = None, *, dealt: bool = False, due: str | None = None
) -> Assignment:
    """Read what is to be graded: an exercise of ours (`solutions/NN_name.py`), or a source notebook of nbgrader's.

    With `variant` it is that variant of an exercise (see `read_exercise`).

    Raises:
        FileNotFoundError: no such file.
        ExerciseError: all that is wrong with its form.
    """
    path = Path(path)
    if path.suffix == ".ipynb" and _is_nbgraders(path):
        if variant is not None:
            raise ExerciseError(path.stem, ["is nbgrader's, and has no variants: leave out --variant or --secret"])
        return read_nbgrader(path)
    return _from_exercise(read_exercise(path, variant, dealt=dealt, due=due))


def _from_exercise(exercise: Exercise) -> Assignment:
    notebook = plain_notebook(exercise)
    everything = [f"{cell.cell_type}\n{cell.metadata}\n{cell.source}" for cell in notebook.cells]
    stubs = {cell.id: stub(cell) for cell in notebook.cells if is_answer(cell)}
    cells = exercise.notebook.cells
    tasks = []
    for task in exercise.tasks:
        source = cells[task.check].source
        tasks.append(
            GradedTask(
                task.id,
                task.title,
                task.points,
                "evidence",
                notebook.cells[task.check].id,
                (notebook.cells[task.answer].id,),
                task.prompt,
                visible=strip_hidden(source) if has_region(source, HIDDEN_TESTS) else None,
            )
        )
    for written in exercise.written:
        id = notebook.cells[written.cell].id
        tasks.append(
            GradedTask(written.id, written.title, written.points, "written", id, (id,), written.prompt, written.rubric)
        )
    order = [cell.id for cell in notebook.cells]
    tasks.sort(key=lambda task: order.index(task.check))
    notebook.cells = [cell for cell in notebook.cells if not stays_home(cell)]
    return Assignment(
        exercise.name,
        exercise.title,
        exercise.path,
        notebook,
        tuple(tasks),
        digest(*everything, *digest_of(exercise.data), *[str(exercise.due)] * (exercise.variant is not None)),
        due=exercise.due,
        stubs=stubs,
        data=exercise.data,
        variant=exercise.variant,
    )


def _is_nbgraders(path: Path) -> bool:
    """Return whether a notebook's checks are asserts, rather than ours, which call `check`."""
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise
    except Exception as reason:
        raise ExerciseError(path.stem, [f"can't be read as a notebook: {type(reason).__name__}"]) from reason
    return not any("with check(" in cell.source for cell in notebook.cells if cell.cell_type == "code")
