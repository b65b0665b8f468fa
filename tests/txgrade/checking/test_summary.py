"""The end of an exercise names the next step."""

from types import SimpleNamespace

import pytest

from txgrade.checking.summary import Summary
from txgrade.checking.verdict import Verdict

EXERCISE = {"exercise": "03_attention", "title": "Exercise 03 · Attention", "tasks": []}


@pytest.fixture
def exercises(tmp_path, monkeypatch):
    """A course's exercises/ as the current folder."""
    (tmp_path / "exercises").mkdir()
    monkeypatch.chdir(tmp_path / "exercises")


@pytest.mark.usefixtures("exercises")
def test_a_learner_is_told_what_to_do_next(monkeypatch):
    steps = [("Where & when", "../notebooks/05_positions.ipynb"), ("The map", "../notebooks/00_map.ipynb")]
    hooks = {"txgrade.next_steps": [SimpleNamespace(load=lambda: lambda exercise: steps)]}
    monkeypatch.setattr("txgrade.checking.summary.entry_points", lambda group: hooks[group])
    summary = Summary(EXERCISE, {}, learner=True)
    assert "\nNext: Where & when\nTo hand it in: save" in repr(summary)
    page = summary._repr_html_()
    assert (
        "<a href='../notebooks/05_positions.ipynb'>Where &amp; when</a> · <a href='../notebooks/00_map.ipynb'>" in page
    )
    assert "<code>%submit --to FOLDER</code>" in page
    monkeypatch.setenv("TXGRADE_SUBMIT_TO", "inbox")
    assert "<code>%submit</code>" in summary._repr_html_()
    assert repr(Summary(EXERCISE, {})) == "Exercise 03 · Attention: 0 of 0 points"  # in a solution, say


@pytest.mark.usefixtures("exercises")
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
