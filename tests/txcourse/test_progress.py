"""The map of the course that lesson 00 draws."""

import json
from importlib.metadata import entry_points
from pathlib import Path

import nbformat
import pytest

from txcourse.lessons import WORDS_PER_MINUTE
from txcourse.progress import next_steps, progress
from txgrade.checking.progress import Row, keep


def write(path, cells):
    """Write a notebook of texts, each with its cell's metadata."""
    path.parent.mkdir(exist_ok=True)
    made = [
        {"cell_type": "markdown", "source": text.splitlines(keepends=True), "metadata": meta} for text, meta in cells
    ]
    path.write_text(json.dumps({"cells": made}))


def row(points=0.0, when=None, task="a", exercise="03_x"):
    return Row(exercise, "The mask", task, float(points), 2.0, when)


@pytest.fixture
def mapped(tmp_path, monkeypatch):
    """Keep rows, and return what lesson 00 of a course of three lessons shows: `mapped(row, …)`."""
    monkeypatch.setenv("TXGRADE_HOME", str(tmp_path / "home"))  # no test touches a real learner's progress
    (tmp_path / "pyproject.toml").write_text("[tool.txgrade]\n")
    for name, title, part, reading, practice in (
        ("00_start_here", "Start", "", 5, 0),
        ("01_text", "01 · Text", "I One", 60, 40),
        ("02_nets", "02 · Nets", "I One", 70, 80),
        ("03_wall", "03 · Wall", "II Two", 50, 60),
    ):
        facts = {"lesson": {"part": part, "builds": "it"}}
        prose = " ".join(["word"] * (WORDS_PER_MINUTE * reading - 2))
        write(tmp_path / "notebooks" / f"{name}.ipynb", [(f"# {title}", facts), (prose, {})])
        if practice:
            tasks = [(f"### Task 1 · One   ●●○○○ · {practice} minutes · 2 points", {})]
            write(tmp_path / "exercises" / f"exercise_{name}.ipynb", tasks)
    monkeypatch.chdir(tmp_path / "notebooks")

    def shown(*rows, show="_repr_markdown_"):
        keep(list(rows))
        return getattr(progress(), show)()

    return shown


def test_the_map_begins_at_the_first_lesson(mapped):
    shown = mapped()
    assert (
        "| ○ | [01 Text](../notebooks/01_text.ipynb) | [not begun](../exercises/exercise_01_text.ipynb) | 60 + 40 |"
        in shown
    )
    assert "you are here" not in shown and "Start" not in shown
    assert shown.count("| | **I One** | | |") == shown.count("| | **II Two** | | |") == 1
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


def test_the_map_says_how_many_guesses_a_lesson_asks_for(mapped, tmp_path):
    mapped()
    path = tmp_path / "notebooks" / "01_text.ipynb"
    notebook = json.loads(path.read_text())
    code = 'predict("a", "What?", "b", "c")\npredict("d", "And?", "e", "f")'
    notebook["cells"].append({"cell_type": "code", "source": [code], "metadata": {}})
    path.write_text(json.dumps(notebook))
    assert '[01 Text](../notebooks/01_text.ipynb) · <span data-guesses="a d">2 guesses</span> |' in mapped()
    assert mapped().count("guesses") == 2  # in no other row


def test_the_map_is_a_table_in_html_too(mapped):
    html = mapped(row(2, "1", exercise="01_text"), show="_repr_html_").partition("<script>")[0]
    assert html.count("<tr>") == 6 and "<strong>← you are here</strong>" in html
    assert '<a href="../notebooks/03_wall.ipynb">03 Wall</a>' in html


def test_the_check_of_the_tour_moves_nobody(mapped):
    shown = mapped(row(2, "1", "a", "02_nets"), row(1, "2", "a", "00_causal_mask"))
    assert "[02 Nets](../notebooks/02_nets.ipynb) **← you are here**" in shown and "00_causal" not in shown


def test_an_exercise_from_elsewhere_is_on_the_map_too(mapped):
    assert "| ◐ begun | 99_own | 1 of 2 points | |" in mapped(row(1, "1", "a", "99_own"))


def test_every_exercise_of_the_course_is_on_the_map(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    exercises = [path.stem for path in sorted(Path("exercises").glob("*.ipynb"))]
    assert [f"exercise_{member.lesson.name}" for member in progress().lessons] == exercises


def test_outside_the_course_it_is_a_table(mapped, tmp_path, monkeypatch):
    mapped(row(2, "1"), row(1, "1", task="b"))
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setattr("txcourse.progress.COURSE", tmp_path.parent)  # txcourse was installed without the course
    assert "| **Together** | | **3 of 4** |" in progress()._repr_markdown_()


def test_the_map_waits_for_the_written_answer(mapped):
    """A task that others mark has no points at home; it is done once the saved notebook holds an answer."""
    rows = [row(2, "1", exercise="01_text"), Row("01_text", "Investigate", "why", 0, 0)]
    shown = mapped(*rows)
    assert "| ◐ begun | [01 Text]" in shown and "Still open: Investigate" in shown
    assert "| ✓ done | [01 Text]" in mapped(Row("01_text", "Investigate", "why", 0, 0, "2"))


def test_a_damaged_file_is_named_under_the_map(mapped, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "progress.json").write_text("{")
    assert "is damaged" in progress()._repr_markdown_()


def test_the_lesson_after_an_exercise_is_next(tmp_path, monkeypatch):
    """Paths are as seen from the exercise's folder."""
    for folder in ("notebooks", "exercises"):
        (tmp_path / folder).mkdir()
    titles = {"03_attention": "# Attention", "05_positions": "# Where & when\n\nText", "07_x": "No"}
    for name, title in titles.items():
        cells = [nbformat.v4.new_markdown_cell(title)]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "notebooks" / f"{name}.ipynb")
    monkeypatch.chdir(tmp_path / "exercises")
    assert next_steps("02_recurrent") == [("Attention", "../notebooks/03_attention.ipynb")]
    assert next_steps("03_attention") == [("Where & when", "../notebooks/05_positions.ipynb")]
    assert next_steps("05_positions") == [("07_x", "../notebooks/07_x.ipynb")]
    assert next_steps("07_x") == []
    (tmp_path / "notebooks" / "00_start_here.ipynb").touch()
    assert ("where you are in the course", "../notebooks/00_start_here.ipynb") in next_steps("03_attention")
    monkeypatch.chdir(tmp_path)
    assert next_steps("03_attention") == []


def test_exercises_ask_the_course_for_what_is_next():
    assert [hook.load() for hook in entry_points(group="txgrade.next_steps")] == [next_steps]
