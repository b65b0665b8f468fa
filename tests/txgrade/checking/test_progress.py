import json
import os
from pathlib import Path

import pytest

from txgrade import progress
from txgrade.checking.progress import Row, keep, progress_path
from txgrade.text import stub_digest


def row(points=0.0, when=None, task="a", exercise="03_x"):
    return Row(exercise, "The mask", task, float(points), 2.0, when)


def test_the_best_result_stays(home):
    assert len(progress()) == 0
    assert "Nothing checked yet" in repr(progress())
    for each in (row(), row(0, "1"), row(2, "2"), row(0, "3"), row(2, "4"), row()):
        assert keep([each]) == ""
    assert list(progress()) == [row(2, "2")]
    assert list(home.glob("*.tmp")) == []


def test_exercises_come_in_order(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keep([row(exercise="07_y"), row(task="b")])
    keep([row(task="a", when="1")])
    assert [(each.exercise, each.task) for each in progress()] == [("03_x", "b"), ("03_x", "a"), ("07_y", "a")]
    table = progress()._repr_markdown_()
    assert "✗ not yet" in table and "○ not tried" in table and "**0 of 6**" in table


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rows": 3}', '{"rows": [{"no": 1}]}', "\x00\xff", '{"version": 1}'])
def test_a_damaged_file_is_kept_aside(home, text):
    home.mkdir()
    (home / "progress.json").write_text(text, encoding="latin-1")
    assert "damaged" in progress().notice
    notice = keep([row(1, "1")])
    assert "kept as progress.damaged-1.json" in notice
    assert (home / "progress.damaged-1.json").read_text(encoding="latin-1") == text
    assert list(progress()) == [row(1, "1")]
    (home / "progress.json").write_text("again")
    keep([row(1, "1")])
    assert (home / "progress.damaged-2.json").exists() and (home / "progress.damaged-1.json").exists()


def test_an_unwritable_place_is_a_notice(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TXGRADE_HOME", str(tmp_path / "file" / "below"))
    assert "could not be saved" in keep([row(1, "1")])
    assert len(progress()) == 0


def test_a_full_disk_loses_nothing(home, monkeypatch):
    keep([row(1, "1")])
    before = (home / "progress.json").read_bytes()

    def full(*given, **folders):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert "No space left" in keep([row(2, "2")])
    assert (home / "progress.json").read_bytes() == before
    assert list(home.glob("*.tmp")) == []


def test_the_place_of_the_file(tmp_path, monkeypatch):
    monkeypatch.delenv("TXGRADE_HOME")
    course = tmp_path / "course"
    (course / "exercises").mkdir(parents=True)
    (course / "pyproject.toml").write_text("[tool.txgrade]\n")
    monkeypatch.chdir(course / "exercises")
    assert progress_path() == course / ".txgrade" / "progress.json"
    (course / "pyproject.toml").write_text('[project]\nname = "another"\n')
    assert progress_path() == Path.home() / ".txgrade" / "progress.json"
    monkeypatch.setenv("TXGRADE_HOME", "~/elsewhere")
    assert progress_path() == Path.home() / "elsewhere" / "progress.json"


def test_checks_write_progress(study, home):
    right = "def causal_mask(n):\n    return torch.ones(n, n).tril().bool()"
    study({"causal-mask": right})
    study({})  # a stub later takes nothing back
    rows = {each["task"]: each for each in json.loads((home / "progress.json").read_text())["rows"]}
    assert rows["causal-mask"]["points"] == 2 and rows["causal-mask"]["when"]
    assert rows["attention"]["points"] == 0 and rows["attention"]["when"] is None
    assert rows["attention"]["title"] == "Scaled dot-product attention"


def test_a_notebook_shows_a_table(home):
    keep([row(2, "1"), row(1, "1", task="b")])
    assert "| **Together** | | **3 of 4** |" in progress()._repr_markdown_()


def test_a_written_answer_is_done_once_the_saved_notebook_holds_it(tmp_path, monkeypatch):
    """A task that others mark has no points at home; the saved notebook tells whether it was answered."""
    course = tmp_path / "course"
    (course / "exercises").mkdir(parents=True)
    (course / "pyproject.toml").write_text("[tool.txgrade]\n")
    monkeypatch.chdir(course / "exercises")
    keep([row(2, "1"), Row("03_x", "Investigate", "why", 0, 0)])
    metadata = {
        "nbgrader": {"grade_id": "why", "solution": True, "grade": True},
        "txgrade": {"stub": stub_digest("Answer.")},
    }

    def done(source):
        cell = {"cell_type": "markdown", "source": [source], "metadata": metadata}
        Path("exercise_03_x.ipynb").write_text(json.dumps({"cells": [cell]}))
        return [row.done for row in progress()]

    assert done("Answer.\n") == [True, False]
    assert done("Because of the softmax.") == [True, True]
    assert done("") == [True, False]


def test_a_measured_task_is_done_when_it_is_gathered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keep([Row("03_x", "Fit", "fit", 0, 0)])
    assert "○ not tried" in progress()._repr_markdown_()
    keep([Row("03_x", "Fit", "fit", 0, 0, "1")])
    assert "✓ done" in progress()._repr_markdown_()
