"""The answers in a learner's notebook: read out of it, and put into a fresh one."""

from typing import Any

from txgrade.authoring.cells import is_answer, is_stub
from txgrade.authoring.notebooks import LOADED


def read_answers(notebook: Any) -> dict[str, str]:
    """The sources, by grade_id, of the answer cells of a released exercise that are no longer as they were released.

    A solution, a lesson or any other notebook has none.
    """
    if not any(LOADED.search(cell.source) for cell in notebook.cells if cell.cell_type == "code"):
        return {}
    answers: dict[str, str] = {}
    for cell in notebook.cells:
        if is_answer(cell) and not is_stub(cell):
            answers.setdefault(cell.metadata["nbgrader"]["grade_id"], cell.source)
    return answers


def put_answers(notebook: Any, answers: dict[str, str]) -> list[str]:
    """Put answers into a fresh notebook's cells; returns the grade_ids for which it has none."""
    cells = {cell.metadata["nbgrader"]["grade_id"]: cell for cell in notebook.cells if is_answer(cell)}
    for id in answers.keys() & cells.keys():
        cells[id].source = answers[id]
    return [id for id in answers if id not in cells]
