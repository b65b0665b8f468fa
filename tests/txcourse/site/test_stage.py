"""What is not fit to be published stops the site, and says which notebook and cell."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from txcourse.site.stage import NotReady, prepare, stage, unfinished

SILENT = {"image/png": "AAAA", "text/html": '<figure><img alt="" src="data:image/png;base64,AAAA"></figure>'}
SPEAKING = {
    "image/png": "AAAA",
    "text/html": '<figure><img alt="two curves" src="data:image/png;base64,AAAA"></figure>',
}


def lesson(*outputs, run=1):
    return new_notebook(
        cells=[new_markdown_cell("# 01"), new_code_cell("x = 1\nx", execution_count=run, outputs=[*outputs])]
    )


@pytest.mark.parametrize(
    "notebook, problem",
    [
        (lesson(run=None), "cell 2, 'x = 1' has not been run: make notebooks"),
        (lesson(new_output("display_data", SILENT)), "cell 2, 'x = 1' shows a picture without an alternative text"),
        (lesson(new_output("display_data", {"image/png": "A"})), "shows a picture without an alternative text"),
        (lesson(new_output("error", ename="ValueError", evalue="", traceback=[])), "ends with ValueError"),
    ],
)
def test_an_unfinished_lesson(notebook, problem):
    (found,) = unfinished(notebook)
    assert found.endswith(problem)


def test_a_finished_lesson():
    assert not list(unfinished(lesson(new_output("display_data", SPEAKING))))
    assert not list(unfinished(new_notebook(cells=[new_code_cell(" ")])))


def test_no_page_is_made_of_an_unfinished_course(tmp_path):
    (tmp_path / "notebooks").mkdir()
    nbformat.write(lesson(run=None), tmp_path / "notebooks/01_text.ipynb")
    with pytest.raises(NotReady, match="notebooks/01_text.ipynb: cell 2, 'x = 1' has not been run"):
        stage(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_links_of_outputs_lead_to_pages():
    data = {
        "text/markdown": "[01](../notebooks/01_text.ipynb)",
        "text/html": '<a href="../notebooks/01_text.ipynb">01</a>',
    }
    notebook = lesson(new_output("display_data", data))
    prepare(notebook)
    shown = notebook.cells[1].outputs[0].data
    assert shown["text/markdown"] == "[01](../notebooks/01_text.html)"
    assert shown["text/html"] == '<a href="../notebooks/01_text.html">01</a>'
