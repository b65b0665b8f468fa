"""Exercises and executed solutions are those that `txlib release` makes today."""

import shutil
from pathlib import Path

import nbformat
import pytest

from txlib.grading.release import release, same_notebook

COURSE = Path(__file__).parents[2]
SOLUTIONS = sorted((COURSE / "solutions").glob("[0-9]*.py"))


@pytest.mark.parametrize("source", SOLUTIONS, ids=lambda path: path.stem)
def test_exercise_is_a_fresh_release(source, tmp_path):
    (tmp_path / "solutions").mkdir()
    fresh = release(shutil.copy(source, tmp_path / "solutions"))
    assert fresh.exercise.parent == tmp_path / "exercises"
    for new, old in (fresh.exercise, COURSE / "exercises" / fresh.exercise.name), (fresh.solution, source):
        committed = nbformat.read(old.with_suffix(".ipynb"), as_version=4)
        assert same_notebook(nbformat.read(new, as_version=4), committed), f"run `make exercises` and commit {old.name}"


def test_every_exercise_has_a_solution():
    exercises = sorted((COURSE / "exercises").glob("*.ipynb"))
    assert [path.stem for path in exercises] == [path.stem for path in SOLUTIONS]
