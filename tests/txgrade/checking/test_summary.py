"""The end of an exercise names the next step."""

import nbformat
import pytest

from txgrade.checking.summary import Summary, next_lesson
from txgrade.checking.verdict import Verdict

EXERCISE = {"exercise": "03_attention", "title": "Exercise 03 · Attention", "tasks": []}


@pytest.fixture
def lessons(tmp_path, monkeypatch):
    """A course's notebooks/, as seen from exercises/."""
    for folder in ("notebooks", "exercises"):
        (tmp_path / folder).mkdir()
    for name, title in {"03_attention": "# Attention", "05_positions": "# Where & when\n\nText", "07_x": "No"}.items():
        cells = [nbformat.v4.new_markdown_cell(title)]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "notebooks" / f"{name}.ipynb")
    monkeypatch.chdir(tmp_path / "exercises")


@pytest.mark.usefixtures("lessons")
@pytest.mark.parametrize(
    ("exercise", "found"),
    [
        ("02_recurrent", ("Attention", "../notebooks/03_attention.ipynb")),
        ("03_attention", ("Where & when", "../notebooks/05_positions.ipynb")),
        ("05_positions", ("07_x", "../notebooks/07_x.ipynb")),
        ("07_x", None),
    ],
)
def test_the_next_lesson(exercise, found):
    assert next_lesson(exercise) == found


@pytest.mark.usefixtures("lessons")
def test_a_learner_is_told_what_to_do_next(monkeypatch):
    summary = Summary(EXERCISE, {}, learner=True)
    assert "\nNext: Where & when\nIf somebody marks it: save" in repr(summary)
    page = summary._repr_html_()
    assert "<a href='../notebooks/05_positions.ipynb'>Where &amp; when</a>" in page
    assert "<code>%submit --to FOLDER</code>" in page
    monkeypatch.setenv("TXGRADE_SUBMIT_TO", "inbox")
    assert "<code>%submit</code>" in summary._repr_html_()
    assert repr(Summary(EXERCISE, {})) == "Exercise 03 · Attention: 0 of 0 points"  # in a solution, say


@pytest.mark.usefixtures("lessons")
def test_the_worked_solution_opens_after_an_attempt_unless_it_is_withheld(tmp_path):
    tried = {"a": Verdict("a", "A", "wrong", 0, 1)}
    untried = {"a": Verdict("a", "A", "unanswered", 0, 1)}
    pages = [Summary(EXERCISE, each, learner=True)._repr_html_() for each in (tried, untried)]
    assert not any("solution" in page for page in pages)
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "03_attention.ipynb").touch()
    after, before = (Summary(EXERCISE, each, learner=True) for each in (tried, untried))
    assert "<a href='../solutions/03_attention.ipynb'>a worked solution</a>" in after._repr_html_()
    assert "To compare: ../solutions/03_attention.ipynb" in repr(after)
    assert "solution" not in before._repr_html_() + repr(before)
    assert "solution" not in Summary(EXERCISE, tried)._repr_html_()


def test_outside_a_course_there_is_no_next_lesson(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert next_lesson("03_attention") is None
