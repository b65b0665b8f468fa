"""Figures as they come with the course, before anything has run: a screen reader finds each with its text."""

import json

import pytest

pytestmark = pytest.mark.slow

LESSON = "notebooks/03_attention.ipynb"


@pytest.fixture(scope="module")
def elsewhere(course, lab):
    """The lesson as it would come from elsewhere, so that JupyterLab does not trust it."""
    notebook = json.loads((course / LESSON).read_text(encoding="utf-8"))
    notebook["cells"].append({"cell_type": "markdown", "id": "new", "metadata": {}, "source": "Somebody was here."})
    path = course / "my_work/notebooks/elsewhere.ipynb"
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return "notebooks/elsewhere.ipynb"


def alternative_texts(notebook) -> list[str]:
    metadata = [output["metadata"] for cell in notebook.cells() for output in cell["outputs"] if "data" in output]
    return [each["image/png"]["alt"] for each in metadata if "image/png" in each]


@pytest.mark.parametrize("trusted", [True, False])
def test_a_screen_reader_finds_every_figure(trusted, elsewhere, notebook, page, screenshots):
    lesson = notebook(LESSON if trusted else elsewhere)
    figures = page.locator(".jp-Notebook:visible figure")
    figures.first.scroll_into_view_if_needed()
    page.screenshot(path=screenshots / f"figures-{trusted}.png")
    trusts = page.evaluate(f"""() => {lesson.CURRENT}.content.widgets
        .filter(cell => cell.model.outputs?.length).map(cell => cell.model.trusted)""")
    assert set(trusts) == {trusted}
    texts = alternative_texts(lesson)
    assert len(texts) >= 3 and figures.count() == len(texts)
    for text in texts:
        assert page.locator(".jp-Notebook:visible").get_by_role("img", name=text, exact=True).count() == 1


def test_figures_stand_on_their_own_ground_on_a_dark_page(notebook, page, screenshots):
    notebook(LESSON)
    page.evaluate("() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    page.wait_for_function("() => document.body.dataset.jpThemeLight == 'false'")
    figure = page.locator(".jp-Notebook:visible figure").first
    figure.scroll_into_view_if_needed()
    page.screenshot(path=screenshots / "figures-dark.png")
    assert figure.evaluate("figure => getComputedStyle(figure).backgroundColor") == "rgb(255, 255, 255)"
    page.evaluate("() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Light'})")
    page.wait_for_function("() => document.body.dataset.jpThemeLight == 'true'")
