"""`txgrade check exercises/exercise_03_attention.ipynb`: run a learner's notebook and list its verdicts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from txgrade import notebook_runner
from txgrade.authoring.data import missing_data
from txgrade.authoring.notebooks import LOADED
from txgrade.checking.verdict import MIME, Verdict
from txgrade.evidence.recordings import unpack


class NotebookError(ValueError):
    """A notebook that can't be checked; the message is one line."""


def check_notebook(
    path: Path | str,
    *,
    timeout: int | float = notebook_runner.TIMEOUT,
    on_cell: Callable[[int, int], None] | None = None,
) -> list[Verdict]:
    """Run a learner's notebook from top to bottom and return the verdict of each task, in order.

    The notebook file is not changed; the learner's progress is. `on_cell(number, count)` is called before each cell.
    A task whose check cell is missing, or was not reached within `timeout` seconds a cell, is `unknown`.

    Raises:
        NotebookError: no such file, not a notebook, no checks in it, or data that it reads are not there.
    """
    path = Path(path)
    notebook = read_notebook(path)
    recordings = recordings_in(path, notebook)
    if missing := missing_data(notebook, path.parent):
        raise NotebookError(
            f"{path} reads {', '.join(missing)}, which does not exist relative to its folder: get it with the exercise"
        )
    stopped = ""
    try:
        notebook_runner.run(
            notebook,
            path.resolve().parent,
            timeout=timeout,
            keep_going=True,
            on_cell=on_cell,
            TXGRADE_RECORDINGS="",
            JPY_SESSION_NAME="",  # no %submit in passing
        )
    except notebook_runner.Stopped as reason:
        stopped = str(reason)
    displayed = {verdict.task: verdict for verdict in _verdicts(notebook)}
    unseen = f"Not reached: {stopped}." if stopped else "Its check cell is missing or changed."
    verdicts = [
        displayed.get(task["id"])
        or Verdict(
            task["id"], task["title"], "unknown", 0, task["points"], (unseen,), deferred=bool(task.get("measured"))
        )
        for task in recordings["tasks"]
    ]
    return verdicts + [
        Verdict(answer["id"], answer["title"], "written", 0, answer["points"], deferred=True)
        for answer in recordings.get("written", ())
    ]


def read_notebook(path: Path) -> Any:
    """Read a notebook file.

    Raises:
        NotebookError: no such file, or not a notebook.
    """
    import nbformat

    if not path.is_file():
        raise NotebookError(f"no notebook at {path}: give e.g. exercises/exercise_03_attention.ipynb")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        notebook = nbformat.reads(json.dumps(data), as_version=4)
        nbformat.validate(notebook)
    except json.JSONDecodeError as reason:
        raise NotebookError(
            f"{path} is not a notebook: its JSON breaks off at line {reason.lineno}; open a fresh copy of the exercise"
        ) from reason
    except Exception as reason:  # nbformat raises many kinds, most with long messages
        raise NotebookError(
            f"{path} is not a notebook ({type(reason).__name__}); give an exercise's .ipynb file"
        ) from reason
    return notebook


def recordings_in(path: Path, notebook: Any) -> dict:
    """Return the recordings that travel with a released notebook.

    Raises:
        NotebookError: it has none, or they are damaged.
    """
    for cell in notebook.cells:
        if cell.cell_type == "code" and (packed := LOADED.search(cell.source)):
            try:
                return unpack(packed[1])
            except ValueError as reason:
                raise NotebookError(f"{path}: {reason}") from reason
    raise NotebookError(f"{path} has no recorded checks: give an exercise made by `txgrade release`")


def _verdicts(notebook: Any) -> list[Verdict]:
    verdicts = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if data := output.get("data", {}).get(MIME):
                verdicts.append(Verdict(**data | {"lines": tuple(data["lines"])}))
    return verdicts
