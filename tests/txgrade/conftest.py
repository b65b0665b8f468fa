"""One sample exercise, released once; a plain way to run a learner's notebook in this process."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from txgrade.authoring import record
from txgrade.authoring.exercise import read_exercise
from txgrade.authoring.release import release

SAMPLE = Path(__file__).parent / "sample" / "03_sample.py"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """No test touches a real learner's progress."""
    monkeypatch.setenv("TXGRADE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def course(tmp_path_factory):
    """A small course folder with the sample released in it."""
    folder = tmp_path_factory.mktemp("course")
    (folder / "solutions").mkdir()
    source = Path(shutil.copy(SAMPLE, folder / "solutions"))
    released = release(source)
    return SimpleNamespace(
        folder=folder, source=source, exercise=released.exercise, solution=released.solution, released=released
    )


@pytest.fixture
def in_process(monkeypatch):
    """Many small releases: run the sources here instead of in a fresh process each."""

    def run(path, seeds, hidden_seeds=(), *, variant=None):
        return record._record(read_exercise(path, variant), seeds, list(hidden_seeds))

    monkeypatch.setattr("txgrade.authoring.release.record_evidence", run)
    monkeypatch.setattr("txgrade.authoring.validate.record_evidence", run)


@pytest.fixture
def notebook(course):
    return nbformat.read(course.exercise, as_version=4)


@pytest.fixture
def variant(tmp_path):
    """Write the sample with some text replaced; returns the new source."""

    def write(*replacements: tuple[str, str], name: str = "03_sample") -> Path:
        text = SAMPLE.read_text(encoding="utf-8")
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        folder = tmp_path / "course" / "solutions"
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / f"{name}.py"
        source.write_text(text, encoding="utf-8")
        return source

    return write


@pytest.fixture
def graded_checks(monkeypatch):
    """Make `check` of a notebook that is graded on a seed, with what the grader has drawn for it."""
    from txgrade.checking.checks import Checks

    monkeypatch.setattr("txgrade.checking.operators._graded", False)

    def graded(seed: int, private_values: str | None = None) -> Checks:
        checks = Checks()
        checks.begin(seed, private_values)
        return checks

    return graded


@pytest.fixture
def study(notebook, capsys):
    """Run the released notebook with some answers filled in; returns the words of each check, by task."""

    def run(answers: dict[str, str]) -> dict[str, str]:
        namespace, words = {"__name__": "__main__"}, {}
        for cell in notebook.cells:
            if cell.cell_type != "code":
                continue
            capsys.readouterr()
            source = answers.get(cell.id, cell.source)
            exec(compile(source, f"<cell {cell.id}>", "exec"), namespace)
            words[cell.id] = capsys.readouterr().out
        return words

    return run
