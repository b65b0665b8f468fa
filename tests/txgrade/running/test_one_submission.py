"""The quick way through the whole grader: one notebook in, a grade and a page out. The rest is in `test_grader.py`."""

import csv

import nbformat
import pytest

from txgrade.running.grader import grade
from txgrade.sandbox import Limits, probe

pytestmark = pytest.mark.slow

MASK = "def causal_mask(n):\n    return torch.ones(n, n).tril().bool()"


@pytest.mark.skipif(probe().level != "sealed", reason=f"no sealed sandbox here: {probe().holes}")
def test_from_a_notebook_to_a_grade_and_a_page(course, notebook, tmp_path):
    for cell in notebook.cells:
        cell.source = MASK if cell.id == "causal-mask" else cell.source
    (tmp_path / "inbox").mkdir()
    nbformat.write(notebook, tmp_path / "inbox" / "ada.ipynb")
    graded = grade(course.source, tmp_path / "inbox", tmp_path / "out", jobs=1, seeds=(7,), limits=Limits())
    (ada,) = graded.results
    assert {task.id: task.verdict for task in ada.tasks} == {"causal-mask": "right", "attention": "unanswered"}
    assert (ada.score, ada.isolation, graded.fresh) == (2, "sealed", 1)
    with open(tmp_path / "out" / "grades.csv", encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["submission"], row["score"]) == ("ada", "2")
    assert "ada" in (tmp_path / "out" / "feedback" / "ada.html").read_text(encoding="utf-8")
