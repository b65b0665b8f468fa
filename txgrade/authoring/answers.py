"""The answers in a learner's notebook: read out of it, and put into a fresh one."""

from typing import Any

from txgrade.authoring.cells import is_answer, is_stub
from txgrade.authoring.notebooks import LOADED


def read_answers(notebook: Any) -> dict[str, str]:
    """Return the sources, by grade_id, of the answer cells that have changed since the exercise was released.

    A notebook that is not a released exercise has none.
    """
    if not any(LOADED.search(cell.source) for cell in notebook.cells if cell.cell_type == "code"):
        return {}
    answers: dict[str, str] = {}
    for cell in notebook.cells:
        if is_answer(cell) and not is_stub(cell):
            answers.setdefault(cell.metadata["nbgrader"]["grade_id"], cell.source)
    return answers


def put_answers(notebook: Any, answers: dict[str, str]) -> list[str]:
    """Put answers into a fresh notebook's cells, and return the grade_ids for which it has no cell."""
    cells = {cell.metadata["nbgrader"]["grade_id"]: cell for cell in notebook.cells if is_answer(cell)}
    for id in answers.keys() & cells.keys():
        cells[id].source = answers[id]
    return [id for id in answers if id not in cells]


def read_tasks(notebook: Any) -> set[str]:
    """Return the grade_ids of a notebook's answer cells."""
    return {cell.metadata["nbgrader"]["grade_id"] for cell in notebook.cells if is_answer(cell)}
