"""A small course with one lesson, one exercise and one solution, and a learner's copies of it."""

import pytest
from small_course import EXERCISE, LESSON, SOLUTION, write_exercise, write_lesson

from txcourse.copies import Copies


@pytest.fixture
def course(tmp_path):
    """The folder of the course."""
    folder = tmp_path / "course"
    for name in (LESSON, EXERCISE, SOLUTION):
        (folder / name).parent.mkdir(parents=True)
    (folder / "pyproject.toml").write_text("[tool.txgrade]\n")
    (folder / "HELP.md").write_text("# Help\n")
    (folder / LESSON).with_suffix(".py").write_text("# %%\nprint(1)\n")
    write_lesson(folder / LESSON, "print(1)")
    write_lesson(folder / SOLUTION, "print('solved')")
    write_exercise(folder / EXERCISE)
    return folder


@pytest.fixture
def copies(course):
    """The learner's copies, taken once."""
    made = Copies(course)
    assert made.refresh() == []
    return made
