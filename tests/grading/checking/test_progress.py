import json
import os
from pathlib import Path

import pytest

from txlib.grading import progress
from txlib.grading.checking.progress import Row, keep, progress_path


def row(points=0.0, when=None, task="a", exercise="03_x"):
    return Row(exercise, "The mask", task, float(points), 2.0, when)


def test_the_best_result_stays(home):
    assert len(progress()) == 0
    assert "Nothing checked yet" in repr(progress())
    for each in (row(), row(0, "1"), row(2, "2"), row(0, "3"), row(2, "4"), row()):
        assert keep([each]) == ""
    assert list(progress()) == [row(2, "2")]
    assert list(home.glob("*.tmp")) == []


def test_exercises_come_in_order(home):
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
    monkeypatch.setenv("TXLIB_HOME", str(tmp_path / "file" / "below"))
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
    monkeypatch.delenv("TXLIB_HOME")
    course = tmp_path / "course"
    (course / "exercises").mkdir(parents=True)
    (course / "pyproject.toml").write_text('[project]\nname = "txlib-course"\n')
    monkeypatch.chdir(course / "exercises")
    assert progress_path() == course / ".txlib" / "progress.json"
    (course / "pyproject.toml").write_text('[project]\nname = "another"\n')
    assert progress_path() == Path.home() / ".txlib" / "progress.json"
    monkeypatch.setenv("TXLIB_HOME", "~/elsewhere")
    assert progress_path() == Path.home() / "elsewhere" / "progress.json"


def test_checks_write_progress(study, home):
    right = "def causal_mask(n):\n    return torch.ones(n, n).tril().bool()"
    study({"causal-mask": right})
    study({})  # a stub later takes nothing back
    rows = {each["task"]: each for each in json.loads((home / "progress.json").read_text())["rows"]}
    assert rows["causal-mask"]["points"] == 2 and rows["causal-mask"]["when"]
    assert rows["attention"]["points"] == 0 and rows["attention"]["when"] is None
    assert rows["attention"]["title"] == "Scaled dot-product attention"


def test_the_sum_says_of_how_many_exercises_it_is(tmp_path, monkeypatch):
    (tmp_path / "exercises").mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "txlib-course"\n')
    for number in range(3):
        (tmp_path / "exercises" / f"exercise_{number}.ipynb").touch()
    monkeypatch.chdir(tmp_path.parent)
    keep([row(2, "1"), row(1, "1", task="b")])
    assert "| **Together** | | **3 of 4** |" in progress()._repr_markdown_()
    monkeypatch.chdir(tmp_path / "exercises")
    assert "| **Together, in 1 of the course's 3 exercises** | | **3 of 4** |" in progress()._repr_markdown_()
