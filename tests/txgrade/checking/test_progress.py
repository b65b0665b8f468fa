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


TABLE = """| Part | Lesson | | Minutes |
| --- | --- | --- | --- |
| I One | [01 Text](01_text.ipynb) | [exercise](../exercises/exercise_01_text.ipynb) | 60 + 40 |
| | [02 Nets](02_nets.ipynb) | [exercise](../exercises/exercise_02_nets.ipynb) | 70 + 80 |
| II Two | [03 Wall](03_wall.ipynb) | [exercise](../exercises/exercise_03_wall.ipynb) | 50 + 60 |
| | 04 to come | coming | |"""


@pytest.fixture
def mapped(home, tmp_path, monkeypatch):
    """What a learner sees in lesson 00 of a course of three lessons: `mapped(rows)`."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "exercises").mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.txgrade]\n")
    cells = [{"cell_type": "markdown", "source": TABLE.splitlines(keepends=True)}]
    (tmp_path / "notebooks" / "00_start_here.ipynb").write_text(json.dumps({"cells": cells}))
    monkeypatch.chdir(tmp_path / "notebooks")

    def show(*rows):
        keep(list(rows))
        return progress()._repr_markdown_()

    return show


def test_the_map_begins_at_the_first_lesson(mapped):
    shown = mapped()
    assert (
        "| ○ | [01 Text](../notebooks/01_text.ipynb) | [not begun](../exercises/exercise_01_text.ipynb) | 60 + 40 |"
        in shown
    )
    assert "you are here" not in shown and "04" not in shown
    assert "**Next:** [01 Text](../notebooks/01_text.ipynb), about 100 minutes with its exercise." in shown
    assert "about 6 hours left" in shown


def test_the_map_says_where_the_learner_is_what_is_next_and_how_long(mapped):
    begun = mapped(row(2, "1", "a", "02_nets"), row(0, None, "b", "02_nets"))
    assert "| ◐ begun | [02 Nets](../notebooks/02_nets.ipynb) **← you are here** | [2 of 4 points]" in begun
    here = "**Next:** [the exercise of 02 Nets](../exercises/exercise_02_nets.ipynb)"
    assert f"{here}, about 40 minutes. Still open: The mask\n" in begun
    assert "about 4 hours left" in begun  # 100 + 40 + 110 minutes
    done = mapped(row(2, "2", "b", "02_nets"))
    assert "| ✓ done | [02 Nets](../notebooks/02_nets.ipynb) **← you are here** | [4 of 4 points]" in done
    assert "**Next:** [03 Wall](../notebooks/03_wall.ipynb), about 110 minutes" in done
    skipped = mapped(row(2, "3", "a", "03_wall"))
    assert "**Next:** [01 Text]" in skipped
    assert "**You have done the whole course.**" in mapped(row(2, "4", "a", "01_text"))


def test_an_exercise_from_elsewhere_is_on_the_map_too(mapped):
    assert "| ◐ begun | 99_own | 1 of 2 points | |" in mapped(row(1, "1", "a", "99_own"))


def test_the_courses_own_table_is_read(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[3])
    lessons = [path.stem for path in sorted(Path("exercises").glob("*.ipynb"))]
    assert [f"exercise_{stop.lesson}" for stop in progress().stops] == lessons


def test_outside_the_course_it_is_a_table(mapped, tmp_path, monkeypatch):
    mapped(row(2, "1"), row(1, "1", task="b"))
    monkeypatch.chdir(tmp_path.parent)
    assert "| **Together** | | **3 of 4** |" in progress()._repr_markdown_()


def test_done_needs_the_written_answer_too(tmp_path, monkeypatch):
    """A task that others mark has no points at home; the saved notebook tells whether it was answered."""
    course = tmp_path / "course"
    (course / "exercises").mkdir(parents=True)
    (course / "notebooks").mkdir()
    (course / "pyproject.toml").write_text("[tool.txgrade]\n")
    lesson = "| ○ | [X](03_x.ipynb) | [exercise](../exercises/exercise_03_x.ipynb) | 30 + 20 |"
    cells = [{"cell_type": "markdown", "source": [lesson], "metadata": {}}]
    (course / "notebooks" / "00_start_here.ipynb").write_text(json.dumps({"cells": cells}))
    monkeypatch.chdir(course / "exercises")
    keep([row(2, "1"), Row("03_x", "Investigate", "why", 0, 0)])
    noted = {
        "nbgrader": {"grade_id": "why", "solution": True, "grade": True},
        "txgrade": {"stub": stub_digest("Answer.")},
    }

    def after(source):
        cell = {"cell_type": "markdown", "source": [source], "metadata": noted}
        Path("exercise_03_x.ipynb").write_text(json.dumps({"cells": [cell]}))
        return progress()._repr_markdown_()

    assert "◐ begun" in after("Answer.\n") and "Still open: Investigate" in after("Answer.\n")
    assert "✓ done" in after("Because of the softmax.") and "You have done the whole course" in after("Because.")
    assert "◐ begun" in after("")


def test_a_measured_task_is_done_when_it_is_gathered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keep([Row("03_x", "Fit", "fit", 0, 0)])
    assert "○ not tried" in progress()._repr_markdown_()
    keep([Row("03_x", "Fit", "fit", 0, 0, "1")])
    assert "✓ done" in progress()._repr_markdown_()
