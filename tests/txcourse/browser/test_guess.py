"""Guesses in Chromium: chosen with mouse and keyboard, kept by the browser, shown again, counted on the map."""

import nbformat
import pytest

from txcourse.guess import mark, script
from txcourse.lesson import predict, predicted

pytestmark = pytest.mark.slow

QUESTION = predict(
    "leak", "What does the training loss do without the mask?", "falls to almost 0", "stays", 'rises "<b>"'
)
RESULT = predicted("leak", "falls to almost 0", "The model reads the answer.")
MAP = mark(["leak", "unmade"]) + script()


@pytest.fixture
def visit(chromium, tmp_path):
    """Opens pages of one browser that share what it keeps: `visit(html, …)` -> the page of these outputs."""
    context = chromium.new_context(offline=True, viewport={"width": 390, "height": 700})
    wrong = []

    def visit(*outputs: str):
        (tmp_path / "page.html").write_text(f"<!DOCTYPE html><meta charset=utf-8><body>{''.join(outputs)}")
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"file://{tmp_path}/page.html")
        return page

    yield visit
    context.close()
    assert not wrong


def html(*shown) -> str:
    return "".join(each._repr_html_() for each in shown)


def test_a_guess_is_kept_and_shown_next_to_the_result(visit):
    page = visit(html(QUESTION, RESULT), MAP)
    group = page.get_by_role("group", name="Guess: What does the training loss do without the mask?")
    assert group.get_by_role("radio").count() == 3
    line = page.get_by_role("status").last
    assert line.inner_text() == "Right: falls to almost 0. (You made no guess.) The model reads the answer."
    assert page.locator("[data-guesses]").inner_text() == "0 of 2 guesses"
    group.get_by_label('rises "<b>"').click()
    assert line.inner_text() == 'You guessed: rises "<b>". Right: falls to almost 0. The model reads the answer.'
    assert "Noted in this browser" in page.get_by_role("status").first.inner_text()
    assert page.locator("[data-guesses]").inner_text() == "1 of 2 guesses"
    again = visit(html(QUESTION, RESULT))
    assert again.get_by_label('rises "<b>"').is_checked()
    again.get_by_label("falls to almost 0").click()
    assert again.get_by_role("status").last.inner_text().startswith("You guessed right: falls to almost 0.")
    page.wait_for_function("document.body.innerText.includes('You guessed right')")  # in the other window


def test_the_keyboard_chooses_and_its_keys_stay_here(visit):
    page = visit(html(QUESTION, RESULT))
    page.evaluate("window.heard = 0; document.addEventListener('keydown', () => window.heard++)")
    page.get_by_label("falls to almost 0").focus()
    for key in ("ArrowDown", "Enter"):
        page.keyboard.press(key)
    assert page.get_by_label("stays").is_checked() and page.url.endswith("page.html")
    assert "You guessed: stays." in page.get_by_role("status").last.inner_text()
    assert page.evaluate("window.heard") == 0


def test_the_same_question_twice_agrees(visit):
    page = visit(html(QUESTION, QUESTION))
    page.get_by_label("stays").nth(1).click()
    assert [radio.is_checked() for radio in page.get_by_label("stays").all()] == [True, True]


def test_a_browser_that_keeps_nothing_remembers_until_the_page_closes(visit):
    refuse = "<script>Object.defineProperty(window, 'localStorage', {get() { throw new Error('no') }})</script>"
    page = visit(refuse, html(QUESTION, RESULT))
    page.get_by_label("stays").click()
    assert "You guessed: stays." in page.get_by_role("status").last.inner_text()


def test_without_scripts_both_are_text(shown):
    class Output:
        def __init__(self, html):
            self.html = html

        def _repr_mimebundle_(self):
            return {"text/html": self.html}, {}

    page = shown(Output(html(QUESTION)), Output(html(RESULT)), Output(MAP), scripts=False)
    text = page.locator("body").inner_text()
    assert "Guess: What does the training loss do" in text and page.get_by_role("listitem").count() == 3
    assert "Right: falls to almost 0. The model reads the answer." in text and "2 guesses" in text
    assert page.get_by_role("radio").count() == 0


QUESTION_CODE = """from txcourse.lesson import predict, predicted
predict("leak", "What does the loss do?", "falls", "stays")"""


@pytest.fixture(scope="module")
def lesson(course):
    """A notebook of the course, there before Lab makes the learner's copies."""
    cells = [
        nbformat.v4.new_code_cell(QUESTION_CODE, id="question"),
        nbformat.v4.new_code_cell('predicted("leak", "falls")', id="result"),
        nbformat.v4.new_markdown_cell("The end.", id="end"),
    ]
    spec = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path = course / "notebooks" / "99_guess.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=spec), path)
    return f"notebooks/{path.name}"


def test_a_guess_in_jupyterlab(lesson, notebook, page, screenshots):
    opened = notebook(lesson)
    assert opened.run_all()
    shown = page.locator(".jp-Notebook:visible")
    shown.get_by_label("falls").click()
    page.keyboard.press("ArrowDown")
    page.screenshot(path=screenshots / "guess.png")
    assert shown.get_by_label("stays").is_checked()
    assert shown.get_by_role("status").last.inner_text() == "You guessed: stays. Right: falls."
    assert len(opened.cells()) == 3, "a key has reached the notebook"
    opened.save()
    again = notebook(lesson)
    assert page.locator(".jp-Notebook:visible").get_by_label("stays").is_checked(), "no kernel has run anything"
    page.evaluate(f"""() => {again.CURRENT}.content.widgets.forEach(cell => cell.model.trusted = false)""")
    shown.get_by_text("Right: falls.", exact=True).wait_for()
    assert shown.get_by_role("radio").count() == 0 and shown.get_by_role("listitem").count() == 2
