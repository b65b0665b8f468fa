"""`txgrade validate`: right sources pass, each problem of a wrong one is a line."""

import nbformat
import pytest
from nbgrader_course import source_notebook
from typer.testing import CliRunner

from txgrade.authoring.validate import validate
from txgrade.cli import app


def run(*sources):
    return CliRunner().invoke(app, ["validate", *map(str, sources)])


@pytest.mark.slow
def test_an_exercise(course):
    found = validate(course.source)
    assert found.problems == []
    assert [each.task for each in found.reports] == [task.id for task in found.assignment.tasks]
    assert all(0 < each.seconds < 60 for each in found.reports)
    assert all(each.reference and all(each.alternatives) and all(each.mistakes) for each in found.reports)


@pytest.mark.slow
def test_each_problem_of_an_exercise_is_a_line(variant):
    """A right answer among the mistakes."""
    source = variant(
        (
            'mistake("causal-mask", lambda n: torch.ones(n, n).triu().bool()',
            'mistake("causal-mask", lambda n: torch.ones(n, n).tril().bool()',
        )
    )
    done = run(source)
    assert done.exit_code == 1
    lines = done.stderr.splitlines()
    assert lines and all(line.startswith("txgrade: 03_sample: task causal-mask: ") for line in lines)
    assert any("can't be told from the reference" in line for line in lines)


@pytest.mark.slow
def test_a_source_of_nbgraders(tmp_path):
    path = tmp_path / "sums.ipynb"
    nbformat.write(source_notebook(), path)
    done = run(path)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "sums.ipynb: 10 tasks, 17.5 points" in done.stdout
    assert "marked by a person: words, drawing, effort" in done.stdout


@pytest.mark.slow
def test_each_problem_of_a_source_of_nbgraders_is_a_line(tmp_path):
    """Tests that the reference fails, tests that the stub passes, and a file that is no notebook beside them."""
    notebook = source_notebook()
    cells = {cell.metadata.get("nbgrader", {}).get("grade_id"): cell for cell in notebook.cells}
    cells["test-total"].source = "assert total(2) == 6, 'not 6'"
    cells["test-mean"].source = "1.5"
    cells["test-sign"].source = "assert True"
    path, broken = tmp_path / "sums.ipynb", tmp_path / "broken.ipynb"
    nbformat.write(notebook, path)
    broken.write_text("{")
    done = run(broken, path)
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        "txgrade: broken: can't be read as a notebook: NotJSONError",
        "txgrade: sums: task test-total: the reference gets 0 of 2 points: AssertionError: not 6",
        "txgrade: sums: task test-mean: the reference gets 1.5 of 3 points",
        "txgrade: sums: task test-mean: the empty stub gets 1.5 points",
        "txgrade: sums: task test-sign: the empty stub gets 1 points",
    ]
