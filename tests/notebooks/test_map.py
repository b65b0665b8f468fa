"""What lessons say of themselves is true, and the tables of lesson 00 and of the README are made from it."""

import re
from pathlib import Path

import pytest

from txcourse.build import build, read_lesson
from txcourse.lessons import practice_minutes, problems, read_lessons, reading_minutes, tracks, with_tables

COURSE = Path(__file__).parents[2]
SOURCES = sorted((COURSE / "notebooks").glob("[0-9]*.py"))
SOLUTIONS = sorted((COURSE / "solutions").glob("[0-9]*.py"))
LONGEST = 65  # minutes of reading


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_lesson_says_what_is_true_of_it(source):
    assert list(problems(COURSE, source.stem, read_lesson(source))) == []


@pytest.mark.parametrize("source", SOLUTIONS, ids=lambda path: path.stem)
def test_an_exercise_takes_as_long_as_its_tasks(source):
    prose = re.sub("^# ?", "", source.read_text(encoding="utf-8"), flags=re.MULTILINE)
    claim = re.search(r"about (\d+) minutes", re.sub(r"\s+", " ", prose))
    assert claim, f"its first cell says how long it takes: about {practice_minutes(prose)} minutes"
    assert int(claim[1]) == practice_minutes(prose)


def test_no_lesson_is_too_long():
    assert [lesson.name for lesson in read_lessons(COURSE) if lesson.reading > LONGEST] == []


@pytest.mark.parametrize("name", ["README.md", "notebooks/00_start_here.py"])
def test_tables_are_those_of_today(name):
    files = with_tables(COURSE)
    text = (COURSE / name).read_text(encoding="utf-8")
    assert files[COURSE / name] == text, "run `make notebooks` and commit"
    assert name != "README.md" or all(f"{source.stem}.ipynb)" in text for source in SOURCES[1:])


def test_minutes_are_words_and_lines_that_are_shown():
    folded = {"jupyter": {"source_hidden": True}}
    cells = [("markdown", "word " * 1800, {}), ("code", "x = 1\n\n" * 75, {}), ("code", "y\n" * 500, folded)]
    assert reading_minutes(cells) == 20  # 10 for the words, 10 for the lines
    assert practice_minutes("### Task 1 · A   ●○○○○ · 8 minutes\n\n### Task 2 · B   ●○○○○ · 9 minutes · 1 point") == 15


def test_a_track_has_the_hours_of_its_lessons():
    lessons = read_lessons(COURSE)
    chosen = [lesson for lesson in lessons if lesson.number in {"03", "04", "05", "06", "08"}]
    row = next(line for line in tracks(lessons).splitlines() if line.startswith("| Attention |"))
    reading, practice = (sum(getattr(lesson, kind) for lesson in chosen) / 60 for kind in ("reading", "practice"))
    assert row.endswith(f"| {reading:.0f} | {reading + practice:.0f} |")


@pytest.mark.parametrize(
    ("first", "rest", "problem"),
    [
        ("# Small", "", r"notebooks/01_small.py has no front matter"),
        (
            ' lesson={"part": "I", "builds": "it"}\n# # 01 · Small\n#\n# It takes about 90 minutes.',
            "",
            "claims .*90.* minutes; write “about 5",
        ),
        (
            ' lesson={"part": "", "builds": "it"}\n# # Small',
            "# %% [markdown]\n# See [this](02_gone.ipynb)\n",
            "01_small.py, cell 2: links to 02_gone.ipynb",
        ),
    ],
)
def test_the_build_names_the_place_of_what_is_wrong(tmp_path, first, rest, problem):
    source = tmp_path / "notebooks" / "01_small.py"
    source.parent.mkdir()
    source.write_text(
        f"# %% [markdown]{first if first.startswith(' ') else chr(10) + '# ' + first}\n\n{rest}", encoding="utf-8"
    )
    with pytest.raises(ValueError, match=problem):
        build(source)
    assert not source.with_suffix(".ipynb").exists()
