"""Exercises and executed solutions are those that `txgrade release` makes today."""

import shutil
from pathlib import Path

import nbformat
import pytest

from txgrade.authoring.notebooks import released_name, same_notebook
from txgrade.authoring.release import release

COURSE = Path(__file__).parents[2]
SOLUTIONS = sorted((COURSE / "solutions").glob("[0-9]*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("source", SOLUTIONS, ids=lambda path: path.stem)
def test_exercise_is_a_fresh_release(source, tmp_path):
    (tmp_path / "solutions").mkdir()
    fresh = release(shutil.copy(source, tmp_path / "solutions"))
    assert fresh.exercise.parent == tmp_path / "exercises"
    pairs = {fresh.exercise: COURSE / "exercises" / fresh.exercise.name, fresh.solution: source.with_suffix(".ipynb")}
    for new, old in pairs.items():
        if not old.is_file() or not same_notebook(nbformat.read(new, as_version=4), nbformat.read(old, as_version=4)):
            pytest.fail(f"{old.relative_to(COURSE)} is not a fresh release: `make exercises` and commit", pytrace=False)


def test_every_exercise_has_a_solution():
    exercises = sorted((COURSE / "exercises").glob("*.ipynb"))
    assert [path.name for path in exercises] == [released_name(path.stem) for path in SOLUTIONS]
