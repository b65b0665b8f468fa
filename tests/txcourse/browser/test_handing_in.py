"""Handing in from JupyterLab: the magic finds the notebook that it stands in."""

import pytest
from test_lab import RIGHT

pytestmark = pytest.mark.slow


def test_submit_from_a_notebook(notebook, course, tmp_path, screenshots):
    exercise = notebook("exercises/exercise_03_attention.ipynb")
    exercise.type("prefix-mask", RIGHT)
    last = exercise.cells()[-1]["id"]
    exercise.type(last, f"%load_ext txgrade\n%submit --to {tmp_path} --name ada")
    unsaved = exercise.run(last)
    assert "Not handed in: " in unsaved and "holds no answer, as it was saved" in unsaved
    exercise.save()
    said = exercise.run(last)
    exercise.page.screenshot(path=screenshots / "submit.png")
    assert "Handed in: 03_attention, by ada, " in said and "answers: 1 of 6" in said
    handed_in = (tmp_path / "ada" / "03_attention.ipynb").read_bytes()
    assert handed_in == (course / "my_work" / "exercises" / "exercise_03_attention.ipynb").read_bytes()
