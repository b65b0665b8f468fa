"""The scripts that made the shipped data."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

DATA = Path(__file__).parents[3] / "data"


@pytest.fixture
def script(monkeypatch):
    """What data/NAME/build.py defines. It puts the folder above, which has its helpers, on Python's search path."""

    def run(name: str) -> SimpleNamespace:
        monkeypatch.syspath_prepend(DATA)
        monkeypatch.delitem(sys.modules, "packages", raising=False)
        return SimpleNamespace(**runpy.run_path(str(DATA / name / "build.py")))

    yield run
    sys.modules.pop("packages", None)
