"""Views where they are read: in JupyterLab, trusted, not trusted or just run, and on a page of nbconvert."""

import base64
import json

import nbformat
import pytest
from exploring import said

from txcourse import explore
from txlib.attention import causal, sliding_window

pytestmark = pytest.mark.slow

SOURCE = """from txlib.attention import causal, sliding_window
from txcourse import explore
explore.masks(causal() & sliding_window(2), 12)"""


def a_notebook() -> nbformat.NotebookNode:
    data, metadata = explore.masks(causal() & sliding_window(2), 12)._repr_mimebundle_()
    data["image/png"] = base64.b64encode(data["image/png"]).decode()
    output = nbformat.v4.new_output("display_data", data=data, metadata=metadata)
    cell = nbformat.v4.new_code_cell(SOURCE, outputs=[output], id="view")
    spec = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return nbformat.v4.new_notebook(cells=[cell, nbformat.v4.new_markdown_cell("The end.", id="end")], metadata=spec)


@pytest.fixture(scope="module", autouse=True)
def lesson(course):
    nbformat.write(a_notebook(), course / "notebooks" / "99_view.ipynb")


def trust(notebook, trusted: bool) -> None:
    notebook.page.evaluate(f"""() => {notebook.CURRENT}.content.widgets.forEach(
        cell => cell.model.trusted = {json.dumps(trusted)})""")


def touched(notebook, page) -> None:
    """Keys move the slider, and not the notebook; a click reaches its control; what is typed stays with the view."""
    view = page.locator(".jp-Notebook:visible")
    active = f"() => {notebook.CURRENT}.content.activeCellIndex"
    slider = view.get_by_label("look at query")
    slider.scroll_into_view_if_needed()
    slider.focus()
    before = page.evaluate(active)
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    assert slider.input_value() == "4"
    assert "Query 4 sees 3 keys: 2, 3, 4." in said(view)
    assert page.evaluate(active) == before
    view.get_by_label("radius").click()
    page.keyboard.press("Control+A")
    page.keyboard.type("1")
    view.get_by_label("rule 1", exact=True).locator("select").select_option("full")
    assert view.locator("code:visible").last.inner_text() == "full() & sliding_window(1)"
    assert len(notebook.cells()) == 2, "a key has reached the notebook"


def test_what_is_not_trusted_is_a_picture(notebook, page, screenshots):
    lesson = notebook("notebooks/99_view.ipynb")
    trust(lesson, False)
    view = page.locator(".jp-Notebook:visible .jp-OutputArea")
    page.screenshot(path=screenshots / "untrusted.png")
    assert view.get_by_role("img").bounding_box()["width"] > 100
    assert view.locator("input, select, button").count() == 0
    assert "explore(" not in view.inner_text()


def test_what_is_trusted_can_be_touched(notebook, page, screenshots):
    lesson = notebook("notebooks/99_view.ipynb")
    trust(lesson, True)
    touched(lesson, page)
    page.screenshot(path=screenshots / "trusted.png")


def test_what_has_run_can_be_touched(notebook, page, screenshots):
    lesson = notebook("notebooks/99_view.ipynb")
    trust(lesson, False)
    assert lesson.run_all()
    touched(lesson, page)
    page.screenshot(path=screenshots / "run.png")


def test_a_page_of_nbconvert_can_be_touched(chromium, tmp_path):
    from nbconvert import HTMLExporter

    body, _ = HTMLExporter(template_name="basic").from_notebook_node(a_notebook())
    (tmp_path / "page.html").write_text(body, encoding="utf-8")
    page = chromium.new_context(offline=True).new_page()
    page.goto(f"file://{tmp_path}/page.html")
    page.get_by_label("radius").press("ArrowUp")
    assert page.locator("code").last.inner_text() == "causal() & sliding_window(3)"
    assert "Query 6 sees 4 keys: 3, 4, 5, 6." in said(page)
    page.context.close()
