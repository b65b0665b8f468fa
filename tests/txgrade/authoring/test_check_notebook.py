"""A learner's notebook in a real kernel: `txgrade check`."""

import json

import nbformat
import pytest

from txgrade import notebook_runner, progress
from txgrade.authoring.assignment import BEGIN
from txgrade.authoring.check_notebook import NotebookError, check_notebook
from txgrade.evidence.values import MIME

pytestmark = pytest.mark.slow

DAMAGED = nbformat.v4.new_code_cell('check.load("""\nAAAA\n""")')


@pytest.fixture
def answered(notebook, tmp_path):
    def write(**answers):
        for cell in notebook.cells:
            cell.source = answers.get(cell.id.replace("-", "_"), cell.source)
        path = tmp_path / "mine.ipynb"
        nbformat.write(notebook, path)
        return path

    return write


def test_a_notebook_is_run_and_judged(answered):
    path = answered(
        causal_mask="def causal_mask(n):\n    return torch.ones(n, n).tril().bool()",
        attention="def attention(q, k, v, mask):\n    return (q @ k.T).softmax(-1).oops",
    )
    before, seen = path.read_bytes(), []
    mask, attention = check_notebook(path, on_cell=lambda number, count: seen.append((number, count)))
    assert mask.right and mask.points == 2
    assert attention.kind == "error" and attention.points == 0
    assert "In `attention`, line 2: `return (q @ k.T).softmax(-1).oops`" in attention.lines
    assert path.read_bytes() == before
    assert len(seen) == seen[0][1]
    assert [row.points for row in progress()] == [2, 0]


@pytest.mark.slow
def test_tasks_that_are_not_reached_are_unknown(answered):
    path = answered(causal_mask="import os; os._exit(3)")
    verdicts = check_notebook(path)
    assert [each.kind for each in verdicts] == ["unknown", "unknown"]
    assert "the kernel died" in verdicts[0].lines[0]


@pytest.mark.slow
def test_a_changed_check_cell_is_unknown(answered):
    verdicts = check_notebook(answered(check_causal_mask="pass"))
    assert [each.kind for each in verdicts] == ["unknown", "unanswered"]
    assert "missing or changed" in verdicts[0].lines[0]


@pytest.mark.slow
def test_grading_mode_in_a_kernel_shows_evidence_only(notebook, tmp_path):
    """As papermill does it: a cell after the parameters sets another seed, and the grader's own takes it."""
    injected = nbformat.v4.new_code_cell(f"seed = 11\n{BEGIN}")
    at = next(i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
    notebook.cells.insert(at + 1, injected)
    notebook_runner.run(notebook, tmp_path, TXGRADE_HOME=str(tmp_path))
    outputs = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    for task in ("causal-mask", "attention"):
        (output,) = outputs[f"check-{task}"]
        assert list(output.data) == [MIME]
        assert output.data[MIME]["seed"] == 11 and output.data[MIME]["task"] == task
    assert outputs[notebook.cells[-1].id] == []
    assert not (tmp_path / "progress.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no notebook at"),
        ("", "its JSON breaks off at line 1"),
        ('{"cells": [\n', "its JSON breaks off at line 2"),
        ("[1, 2]", "is not a notebook"),
        ('{"cells": 3, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}', "is not a notebook"),
        (b"\xff\xfe\x00", "is not a notebook"),
        (json.dumps(nbformat.v4.new_notebook()), "has no recorded checks"),
        (json.dumps(nbformat.v4.new_notebook(cells=[DAMAGED])), "damaged"),
    ],
)
def test_broken_notebooks_are_one_line(tmp_path, text, message):
    path = tmp_path / "mine.ipynb"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(NotebookError, match=message) as refused:
        check_notebook(path)
    assert "\n" not in str(refused.value)
