"""The notebooks that are made of an exercise: the learner's, the executed solution, and the plain one beneath both."""

import copy
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from txgrade import notebook_runner
from txgrade.authoring.cells import (
    is_answer,
    is_check,
    is_parameters,
    mark_stub,
    stays_home,
    strip_hidden,
    stub,
)
from txgrade.authoring.exercise import Exercise, ExerciseError
from txgrade.authoring.variants import is_variant
from txgrade.checking.verdict import MIME
from txgrade.evidence.recordings import pack, same, unpack
from txgrade.records.lateness import describe_deadline

LOAD = '''from txgrade import check

# What the checks compare your answers with: numbers recorded from right and from wrong answers, no solutions.
check.load("""
{packed}
""")'''
LOADED = re.compile(r'check\.load\("""\n(.*?)\n"""\)', re.DOTALL)


def released_name(exercise: str) -> str:
    """Return the name of the file for learners. It differs from the lesson's, so that tabs in JupyterLab differ."""
    return f"exercise_{exercise}.ipynb"


def learner_notebook(exercise: Exercise, recordings: dict) -> Any:
    """Return the notebook without solutions, mistakes and hidden tests, with the recordings in its first code cell.

    A deadline stands below the title.
    Prompts, checks and recordings can't be edited by accident, nor deleted; answers can't be deleted.
    """
    notebook = plain_notebook(exercise)
    notebook.cells = [cell for cell in notebook.cells if not stays_home(cell)]
    if exercise.due:
        title = next(cell for cell in notebook.cells if cell.cell_type == "markdown")
        title.source = f"{title.source.rstrip()}\n\n**Due:** {describe_deadline(exercise.due)}"
    for cell in notebook.cells:
        cell.source = stub(cell)
        if is_parameters(cell):
            cell.source = f"{cell.source}\n\n{LOAD.format(packed=pack(recordings))}"
            cell.metadata["jupyter"] = {"source_hidden": True}
        if is_answer(cell):
            mark_stub(cell)
            cell.metadata["deletable"] = False
        elif cell.cell_type == "markdown" or is_check(cell) or is_parameters(cell) or is_variant(cell):
            cell.metadata |= {"editable": False, "deletable": False}
    return notebook


def solution_notebook(exercise: Exercise, recordings: dict, way: str) -> Any:
    """Return the whole source, executed; its checks show that the reference passes. Hidden tests are not run.

    At its end it leads back to the exercise, along `way`.

    Raises:
        ExerciseError: where a cell fails, or a check isn't right.
    """
    notebook = plain_notebook(exercise)
    for cell in notebook.cells:
        if is_check(cell):
            cell.source = strip_hidden(cell.source)
    with tempfile.TemporaryDirectory() as home:
        path = Path(home, "recordings.json")
        path.write_text(json.dumps(recordings))
        try:
            notebook_runner.run(notebook, exercise.path.parent, TXGRADE_HOME=home, TXGRADE_RECORDINGS=str(path))
        except notebook_runner.Stopped as reason:
            raise ExerciseError(exercise.name, [f"the solution notebook fails: {reason}"]) from reason
    notebook.metadata = notebook_runner.metadata()
    for cell, original in zip(notebook.cells, exercise.notebook.cells, strict=True):
        cell.source = original.source
    kinds = {
        output.data[MIME]["task"]: output.data[MIME]["kind"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if MIME in output.get("data", {})
    }
    problems = [
        f"task {recording['id']}: in a kernel the reference is {kinds.get(recording['id'], 'not checked')}, not right"
        for recording in recordings["tasks"]
        if kinds.get(recording["id"]) != ("gathered" if recording.get("measured") else "right")
    ]
    if problems:
        raise ExerciseError(exercise.name, problems)
    notebook.cells.append(way_back(exercise.title, way))
    return notebook


def way_back(title: str, way: str) -> Any:
    """Return the last cell of a worked solution."""
    import nbformat

    text = f"This was a worked solution. Yours may be another, and right: go back to [{title}]({way})."
    return nbformat.v4.new_markdown_cell(text, id="way-back")


def same_notebook(one: Any, other: Any) -> bool:
    """Return whether two released notebooks are the same but for outputs and the last digits of recorded numbers.

    Another processor rounds differently, so recordings count as the same where their evidence does.
    """
    if len(one.cells) != len(other.cells) or one.metadata.get("kernelspec") != other.metadata.get("kernelspec"):
        return False
    return all(_same_cell(cell, other_cell) for cell, other_cell in zip(one.cells, other.cells, strict=True))


def plain_notebook(exercise: Exercise) -> Any:
    """Return a copy of the source's notebook with steady ids and metadata, and no outputs."""
    notebook = copy.deepcopy(exercise.notebook)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = notebook_runner.metadata()
    for number, cell in enumerate(notebook.cells, 1):
        cell.metadata.pop("lines_to_next_cell", None)  # jupytext's note on blank lines in the source
        nbgrader = cell.metadata.get("nbgrader")
        cell.id = nbgrader["grade_id"] if nbgrader else f"cell-{number}"
        if nbgrader is not None:  # nbgrader's schema 3, whole
            cell.metadata["nbgrader"] = {"task": False} | nbgrader
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def _same_cell(one: Any, other: Any) -> bool:
    keys = ("cell_type", "metadata", "id")
    if any(one.get(key) != other.get(key) for key in keys):
        return False
    if LOADED.sub("", one.source) != LOADED.sub("", other.source):
        return False
    packed, fresh = LOADED.findall(one.source), LOADED.findall(other.source)
    return len(packed) == len(fresh) and all(
        same_recordings(unpack(mine), unpack(theirs)) for mine, theirs in zip(packed, fresh, strict=True)
    )


def same_recordings(one: dict, other: dict) -> bool:
    """Return whether two recordings hold the same tasks, sentences and evidence."""
    if _frame(one) != _frame(other):
        return False
    for task, other_task in zip(one["tasks"], other["tasks"], strict=True):
        if task.get("measured") or other_task.get("measured"):
            if task != other_task:
                return False
            continue
        pairs = [(task["reference"], other_task["reference"])]
        pairs += [(a["evidence"], b["evidence"]) for a, b in zip(task["mistakes"], other_task["mistakes"], strict=True)]
        if not all(same(a, b) for a, b in pairs):
            return False
    return True


def _frame(recordings: dict) -> dict:
    """Return recordings without their evidence."""
    tasks = [
        {key: task[key] for key in ("id", "title", "points")}
        | {"sentences": [mistake["sentence"] for mistake in task["mistakes"]]}
        for task in recordings["tasks"]
    ]
    return recordings | {"tasks": tasks}
