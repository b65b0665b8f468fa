"""A cell that failed to run is named by the checks that feel it: in a kernel, as a learner runs it."""

import nbformat
import pytest

from txgrade import notebook_runner
from txgrade.authoring.check_notebook import check_notebook
from txgrade.checking.failed_cells import Cells, failure_of, names_defined

RIGHT = "def causal_mask(n):\n    return torch.ones(n, n).tril().bool()"


@pytest.fixture
def told(notebook, tmp_path):
    """Fill in answers, add cells after others, run it all in a kernel; the lines of each check's verdicts, in order."""

    def run(answers, after=None):
        made = []
        for cell in notebook.cells:
            cell.source = answers.get(cell.id, cell.source)
            made += [cell, *(nbformat.v4.new_code_cell(source) for source in (after or {}).get(cell.id, ()))]
        notebook.cells = made
        path = tmp_path / "03_sample.ipynb"
        nbformat.write(notebook, path)
        return {verdict.task: verdict for verdict in check_notebook(path)}

    return run


def test_an_answer_that_is_not_python_is_named_and_not_the_name_error(told):
    verdicts = told({"causal-mask": "def causal_mask(n):\n    rows = (1\n    return rows"})
    assert verdicts["causal-mask"].kind == "error"
    assert verdicts["causal-mask"].lines == (
        "The cell of `causal_mask` ended with `SyntaxError`: '(' was never closed, in line 2: `rows = (1`",
        "So there is nothing to check yet.",
    )


@pytest.mark.slow
def test_a_cell_that_fails_names_its_line(told):
    verdicts = told({"causal-mask": f"{RIGHT}\n\nprint(causal_mask('3'))"})
    assert verdicts["causal-mask"].kind == "right"
    words, rest = verdicts["causal-mask"].lines
    assert words.startswith("The cell of `causal_mask` ended with `TypeError`: ones()")
    assert words.endswith("in line 4: `print(causal_mask('3'))`")
    assert rest == "The lines below that one did not run."


@pytest.mark.slow
def test_an_older_version_is_called_so(notebook, tmp_path):
    """The right answer was run; then it was broken, and the check run again."""
    cells = {cell.id: cell for cell in notebook.cells}
    place = notebook.cells.index(cells["check-causal-mask"]) + 1
    again = nbformat.v4.new_code_cell(cells["check-causal-mask"].source)
    broken, mended = (nbformat.v4.new_code_cell(each) for each in (RIGHT + "\n   oops", RIGHT))
    cells["causal-mask"].source = RIGHT
    notebook.cells[place:place] = [broken, again, mended, nbformat.v4.new_code_cell(again.source)]
    notebook_runner.run(notebook, tmp_path, keep_going=True)
    first, second, third = (notebook.cells[i].outputs[0].data["text/plain"] for i in (place - 1, place + 1, place + 3))
    assert first == third == "✓ The causal mask: right (2 of 2 points)"
    assert second.splitlines()[1:] == [
        "  The cell of `causal_mask` ended with `IndentationError`: "
        "unindent does not match any outer indentation level, in line 3: `oops`",
        "  None of it ran, so this checks an older version.",
    ]


@pytest.mark.slow
def test_a_task_that_rests_on_a_broken_one_says_so(told):
    verdicts = told(
        {
            "causal-mask": "def causal_mask(n)\n    return 1",
            "attention": "def attention(q, k, v, mask):\n    return q @ k.T",
        }
    )
    assert verdicts["attention"].kind == "error"
    assert "`SyntaxError`: expected ':', in line 1: `def causal_mask(n)`" in verdicts["attention"].lines[0]


def test_what_a_cell_would_define():
    assert names_defined("import a.b as c, d.e\nx = 1\ndef f(y):\n    z = 2") == {"c", "d", "x", "f"}
    assert names_defined("def f(y:\n    z = 2\nclass G\n    def h(self): 1") == {"f", "G"}


def test_a_failure_is_forgotten_when_the_cell_runs():
    cells = Cells()
    cells.end("def f(:\n  1", failure_of("def f(:\n  1", "SyntaxError", "invalid syntax (<cell>, line 1)"))
    cells.begin("with check('t') as show: show(f(1))")
    name, failure = cells.cause()
    assert (name, failure.line, failure.code) == ("f", 1, "def f(:")
    cells.end("def f(): 1", None)
    assert cells.cause() is None
