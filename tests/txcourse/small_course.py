"""What a small course is made of, and what a learner does in it."""

from pathlib import Path

import nbformat

from txgrade import notebook_runner
from txgrade.authoring.exercise import read_exercise
from txgrade.authoring.notebooks import learner_notebook

SAMPLE = Path(__file__).parents[1] / "txgrade" / "sample" / "03_sample.py"
LESSON, EXERCISE, SOLUTION = "notebooks/03_small.ipynb", "exercises/exercise_03_sample.ipynb", "solutions/03_s.ipynb"
ANSWER = "def causal_mask(n):\n    return torch.ones(n, n).tril().bool()"


def write_lesson(path: Path, *sources: str) -> None:
    cells = [nbformat.v4.new_code_cell(source, id=f"cell-{number}") for number, source in enumerate(sources)]
    notebook_runner.write_notebook(path, nbformat.v4.new_notebook(cells=cells, metadata=notebook_runner.metadata()))


def write_exercise(path: Path, *replacements: tuple[str, str], without: str = "") -> None:
    """The sample as it is released, with some text replaced, or without a cell."""
    source = path.parents[1] / "03_sample.py"
    text = SAMPLE.read_text(encoding="utf-8")
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    source.write_text(text, encoding="utf-8")
    exercise = read_exercise(source)
    source.unlink()
    recordings = {"version": 1, "exercise": exercise.name, "title": exercise.title, "seed": 0, "tasks": []}
    notebook = learner_notebook(exercise, recordings)
    notebook.cells = [cell for cell in notebook.cells if cell.id != without]
    notebook_runner.write_notebook(path, notebook)


def sources(path: Path) -> dict[str, str]:
    return {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells}


def change(path: Path, id: str, source: str | None = None) -> None:
    """What a learner does in Lab: type into a cell, run it, save."""
    notebook = nbformat.read(path, as_version=4)
    cell = next(cell for cell in notebook.cells if cell.id == id)
    cell.source = cell.source if source is None else source
    cell.execution_count, cell.outputs = 1, [nbformat.v4.new_output("stream", text="ran\n")]
    nbformat.write(notebook, path)
