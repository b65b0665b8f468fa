"""Attacks by way of the notebook: cells, metadata, markers and magics, and files that are no notebooks."""

import copy
import json
from typing import Any

import nbformat

from attacks import RIGHT, WRONG, attack, filled

ANSWERS = RIGHT | {"target": WRONG}


def cell(notebook: Any, id: str) -> Any:
    return next(each for each in notebook.cells if each.id == id)


@attack()
def nbval_markers() -> str:
    """Tells nbval to skip its cells and not to look at their output."""
    return "# NBVAL_SKIP\n# NBVAL_IGNORE_OUTPUT\n# PYTEST_VALIDATE_IGNORE_OUTPUT\n# NBVAL_RAISES_EXCEPTION" + WRONG


@attack(knows=("released",))
def tags(released: Any) -> Any:
    """Tags all cells for papermill, nbclient and nbval: skip, raises, parameters."""
    notebook = filled(released, ANSWERS)
    for each in notebook.cells:
        each.metadata["tags"] = [
            "skip-execution",
            "raises-exception",
            "nbval-skip",
            "nbval-ignore-output",
            "parameters",
            "injected-parameters",
            "remove_cell",
            "mistakes",
        ]
        each.metadata["papermill"] = {"status": "completed", "exception": False}
    return notebook


@attack(knows=("released",))
def tests_deleted(released: Any) -> Any:
    """Deletes all checks."""
    notebook = filled(released, ANSWERS)
    notebook.cells = [each for each in notebook.cells if not each.id.startswith("check")]
    return notebook


@attack(knows=("released",))
def tests_edited(released: Any) -> Any:
    """Edits the checks, so that they show what is expected or nothing at all."""
    notebook = filled(released, ANSWERS)
    for each in notebook.cells:
        if each.id.startswith("check"):
            each.source = 'with check("target") as show:\n    pass'
    return notebook


@attack(knows=("released",))
def metadata_edited(released: Any) -> Any:
    """Gives the answer points, and the check none; locks nothing, and calls the answer a check."""
    notebook = filled(released, ANSWERS)
    answer, check = cell(notebook, "target"), cell(notebook, "check-target")
    answer.metadata.nbgrader.update(grade=True, points=1000, locked=False, task=True)
    check.metadata.nbgrader.update(points=-5, solution=True, grade=False)
    return notebook


@attack(knows=("released",))
def ids_swapped(released: Any) -> Any:
    """Gives its wrong answer the name of the task before, and the right answer of that task its own."""
    notebook = filled(released, ANSWERS)
    one, other = cell(notebook, "before"), cell(notebook, "target")
    one.source, other.source = other.source, one.source
    one.metadata.nbgrader.grade_id, other.metadata.nbgrader.grade_id = "target", "before"
    return notebook


@attack(knows=("released",))
def right_one_after_the_check(released: Any) -> Any:
    """Puts a cell that makes the answer right, or the check blind, between its answer and its check."""
    notebook = filled(released, ANSWERS)
    at = notebook.cells.index(cell(notebook, "check-target"))
    extra = nbformat.v4.new_code_cell(RIGHT["target"] + "\ncheck = None\n")
    extra.metadata["nbgrader"] = {
        "grade_id": "extra",
        "solution": True,
        "grade": False,
        "locked": False,
        "schema_version": 3,
    }
    notebook.cells.insert(at, extra)
    return notebook


@attack(knows=("released",))
def setup_cell_edited(released: Any) -> Any:
    """Defines the answer's functions, and patches the library, in the cells that were given."""
    notebook = filled(released, ANSWERS)
    for each in notebook.cells:
        if each.cell_type == "code" and each.source.startswith("import torch"):
            each.source += "\ntorch.allclose = torch.equal = lambda *given: True\n" + RIGHT["target"]
        if "parameters" in each.metadata.get("tags", []):
            each.source = "seed = 0\ncheck = None"
    return notebook


@attack(knows=("released",))
def answer_in_markdown(released: Any) -> Any:
    """Keeps its answer in a markdown cell, and a code cell of the same name elsewhere."""
    notebook = filled(released, ANSWERS)
    at = notebook.cells.index(cell(notebook, "target"))
    text = nbformat.v4.new_markdown_cell(WRONG, metadata=copy.deepcopy(notebook.cells[at].metadata))
    notebook.cells[at] = text
    return notebook


@attack(knows=("released",))
def wrong_twice(released: Any) -> Any:
    """Has two cells of the same name, both wrong: one runs, one is shown."""
    notebook = filled(released, ANSWERS)
    at = notebook.cells.index(cell(notebook, "target"))
    again = copy.deepcopy(notebook.cells[at])
    again.id = "again"
    again.source = WRONG.replace("return 0", "return 2")
    notebook.cells.insert(at, again)
    return notebook


@attack(knows=("released",))
def outputs_kept(released: Any) -> Any:
    """Brings outputs along, as if the checks had been right."""
    notebook = filled(released, ANSWERS)
    right = {"task": "target", "kind": "right", "points": 5, "max_points": 5, "title": "", "lines": []}
    for each in notebook.cells:
        if each.cell_type == "code":
            each.execution_count = 1
            each.outputs = [
                nbformat.v4.new_output(
                    "display_data",
                    data={
                        "application/vnd.txgrade.verdict+json": right,
                        "application/vnd.txgrade.evidence+json": right,
                    },
                )
            ]
    return notebook


@attack("target", "after", knows=("released",))
def two_tasks_in_one_cell(released: Any) -> Any:
    """Leaves a task's cell out, and answers it in another's, which is taken out where tasks are tested alone."""
    notebook = filled(released, ANSWERS | {"target": WRONG + "\n\ndef doubled(x):\n    return 3 * x\n"})
    notebook.cells.remove(cell(notebook, "after"))
    return notebook


@attack()
def capture() -> str:
    """Begins with a cell magic that keeps all output to itself."""
    return "%%capture kept\n" + WRONG


@attack()
def javascript() -> str:
    """Is JavaScript, which would run where the page is read."""
    return "%%javascript\nalert('CANARY' + '-javascript')\n"


@attack()
def magics() -> str:
    """Uses magics: reloading, shells, files, macros, timers and history."""
    return (
        WRONG
        + """
%load_ext autoreload
%autoreload 2
!cat /etc/passwd
%env PYTEST_ADDOPTS=-p evil
%cd /
%logstart history.log
%history -g
%alias show echo
%xmode Minimal
%matplotlib agg
%store seed
%config InlineBackend.close_figures = False
%pdb on
"""
    )


@attack()
def reset() -> str:
    """Resets the notebook's names, so that `seed` is gone."""
    return WRONG + "\nfrom IPython import get_ipython\nget_ipython().user_ns.pop('seed')\n"


@attack()
def debugger() -> str:
    """Stops in the debugger, which waits for somebody to type."""
    return "def spread(x):\n    breakpoint()\n    return x\n\n\nwinners = spread\n"


@attack()
def solution_marks() -> str:
    """Holds the marks of solutions and hidden tests, in the wrong order."""
    return "### END SOLUTION\n### BEGIN HIDDEN TESTS" + WRONG + "### BEGIN SOLUTION\n### END HIDDEN TESTS\n"


@attack(knows=("released",))
def other_kernel(released: Any) -> Any:
    """Names a kernel of its own choice, by a path."""
    notebook = filled(released, ANSWERS)
    notebook.metadata["kernelspec"] = {"name": "../../../tmp/evil", "language": "python", "display_name": "evil"}
    notebook.metadata["papermill"] = {"parameters": {"seed": 0}, "output_path": "/tmp/evil", "input_path": "/etc/hosts"}
    return notebook


@attack(knows=("released",))
def metadata_of_the_wrong_type(released: Any) -> bytes:
    """Has lists and numbers where metadata are dicts, in every cell."""
    notebook = json.loads(nbformat.writes(filled(released, ANSWERS)))
    for number, each in enumerate(notebook["cells"]):
        each["metadata"] = (
            [],
            {"nbgrader": 7},
            {"nbgrader": {"grade_id": ["target"], "solution": "x"}},
            None,
            {"nbgrader": {"grade_id": {"a": 1}}, "tags": 7},
        )[number % 5]
    return json.dumps(notebook).encode()


@attack("target", status=None, knows=("released",))
def sources_of_the_wrong_type(released: Any) -> bytes:
    """Has lists of numbers where the sources are."""
    notebook = json.loads(nbformat.writes(filled(released, ANSWERS)))
    for each in notebook["cells"]:
        if each["id"] == "target":
            each["source"] = [1, {"x": 2}, None, ["spread"]]
    return json.dumps(notebook).encode()


@attack("before", "target", "after", "rests", status=None)
def nested_file() -> bytes:
    """Is JSON of lists in lists, 200,000 deep."""
    return b'{"nbformat": 4, "cells": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@attack(knows=("released",))
def numbers_of_10000_digits(released: Any) -> bytes:
    """Holds numbers that Python refuses to read."""
    return nbformat.writes(filled(released, ANSWERS)).replace('"nbformat": 4', '"nbformat": ' + "4" * 10_000).encode()


@attack(knows=("released",))
def bare_nan(released: Any) -> bytes:
    """Holds bare NaN and Infinity, which are no JSON."""
    notebook = filled(released, ANSWERS)
    notebook.metadata |= {"a": float("nan"), "b": float("-inf")}
    return json.dumps(notebook).encode()


@attack("before", "target", "after", "rests", status=None)
def not_text() -> bytes:
    """Is bytes of no encoding."""
    return bytes(range(256)) * 100


@attack("before", "target", "after", "rests", status=None)
def pickled() -> bytes:
    """Is a pickle, that runs a command where it is read."""
    return b"cos\nsystem\n(S'touch /tmp/CANARY-pickle'\ntR."


@attack("before", "target", "after", "rests", status=None)
def cells_as_a_dict() -> bytes:
    """Has a dict where the cells are."""
    return b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": {"0": {"cell_type": "code"}}}'


@attack("before", "target", "after", "rests", status=None)
def a_hundred_thousand_cells() -> bytes:
    """Has a hundred thousand empty cells."""
    one = b'{"cell_type": "code", "metadata": {}, "source": "", "outputs": [], "execution_count": null}'
    return b'{"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": [' + b",".join([one] * 100_000) + b"]}"
