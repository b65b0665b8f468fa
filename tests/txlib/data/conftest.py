"""The scripts that made the bundled data, and the lessons whose long runs they record."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

DATA = Path(__file__).parents[3] / "data"


@pytest.fixture
def script(monkeypatch):
    """The names that data/NAME/build.py defines. It puts the folder above, which has its helpers, on Python's search
    path.
    """

    def run(name: str) -> SimpleNamespace:
        monkeypatch.syspath_prepend(DATA)
        monkeypatch.delitem(sys.modules, "packages", raising=False)
        return SimpleNamespace(**runpy.run_path(str(DATA / name / "build.py")))

    yield run
    sys.modules.pop("packages", None)


@pytest.fixture(scope="module")
def lesson(request):
    """The names of the lesson whose runs are recorded by the script that the test module imports: rumors.py for
    test_rumors.py.
    """
    return getattr(request.module, request.path.stem.removeprefix("test_")).RUNS.lesson()
