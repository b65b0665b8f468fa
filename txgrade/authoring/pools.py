"""Pools of tasks: the cells of each alternative, of which one stays in the notebook."""

import re
from typing import Any

from txgrade.authoring.cells import HEADING, is_answer, is_check, stays_home
from txgrade.authoring.choices import Choice


def deal_pools(notebook: Any, pools: list[tuple[Choice, int]]) -> list[str]:
    """Leave one alternative of each pool in the notebook; return what is wrong with the others."""
    problems: list[str] = []
    dropped: set[int] = set()
    for choice, dealt in pools:
        tasks = [option[0] for option in choice.options]
        sections = [_section(notebook.cells, task) for task in tasks]
        for task, section in zip(tasks, sections, strict=True):
            answers = [i for i in section if is_answer(notebook.cells[i])]
            if len(answers) != 1:
                problems.append(
                    f"pool: task {task!r} needs its own `### Task` heading, and below it one solution cell, its own"
                )
        points = [sum(_points(notebook.cells[i]) for i in section) for section in sections]
        if len(set(points)) > 1:
            problems.append(
                f"pool: {', '.join(tasks)} give {', '.join(map(str, points))} points: choose the same for all"
            )
        dropped |= {i for index, section in enumerate(sections) if index != dealt for i in section}
    if not problems:
        notebook.cells = [cell for i, cell in enumerate(notebook.cells) if i not in dropped]
    return problems


def _points(cell: Any) -> int | float:
    points = cell.metadata.get("nbgrader", {}).get("points", 0)
    return points if isinstance(points, int | float) else 0


def _section(cells: list, task: str) -> list[int]:
    """Return the cells of a task: from its heading to the last that belongs to an answer, before the next heading."""
    answer = next((i for i, cell in enumerate(cells) if is_answer(cell) and _id(cell) == task), None)
    if answer is None:
        return []
    begin = answer
    while begin > 0 and not (cells[begin].cell_type == "markdown" and HEADING.search(cells[begin].source)):
        begin -= 1
    end = begin + 1
    for i in range(begin + 1, len(cells)):
        if cells[i].cell_type == "markdown" and re.search(r"^#+ ", cells[i].source, re.MULTILINE):
            break
        if is_answer(cells[i]) or is_check(cells[i]) or stays_home(cells[i]):
            end = i + 1
    return list(range(begin, end))


def _id(cell: Any) -> str:
    return str(cell.metadata["nbgrader"].get("grade_id", ""))
