"""Record runs that take too long for a lesson: the common part of scripts such as rumors.py and flocks.py.

Each script executes the cells of its lesson that are tagged `recorded`, so that the models are the lesson's, and writes
the results next to itself. After an interruption it continues with the missing runs.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jupytext

from txlib.files import write_atomically


@dataclass(frozen=True)
class Runs:
    """The recorded runs of one lesson.

    Args:
        script: the file that records them, into a .json of the same name.
        lesson_name: e.g. "19_universal".
    """

    script: str
    lesson_name: str

    @property
    def file(self) -> Path:
        return Path(self.script).with_suffix(".json")

    def lesson(self) -> dict[str, Any]:
        """Return the names that the lesson's tagged cells define."""
        names: dict[str, Any] = {"__name__": "lesson"}
        lesson = jupytext.read(Path(self.script).resolve().parents[1] / "notebooks" / f"{self.lesson_name}.py")
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # as a build does
            sys.path.insert(0, folder)  # where a cell may write a module and import it
            for cell in lesson.cells:
                if "recorded" in cell.metadata.get("tags", ()):
                    exec(cell.source, names)
            sys.path.remove(folder)
        return names

    def kept(self) -> dict[str, Any]:
        """Return what was recorded, nested by the names of each run; the last name is its seed."""
        return json.loads(self.file.read_text()) if self.file.is_file() else {}

    def record(self, run: Callable[[], Any], *names: Any) -> None:
        """Store what `run` returns under these names, numbers with 4 decimals, unless that has been done."""
        branch = runs = self.kept()
        *path, last = map(str, names)
        for name in path:
            branch = branch.setdefault(name, {})
        if last in branch:
            return
        branch[last] = rounded(run())
        print(*names, branch[last], flush=True)
        write_atomically(self.file, json.dumps(runs, indent=1) + "\n")


def rounded(result: Any) -> Any:
    """Return the result with its floats, however nested, rounded to 4 decimals."""
    if isinstance(result, dict):
        return {name: rounded(value) for name, value in result.items()}
    if isinstance(result, list | tuple):
        return list(map(rounded, result))
    return round(result, 4) if isinstance(result, float) else result


def record_seeds(record: Callable[[int], None]) -> None:
    """Record the runs of each seed that the command names."""
    for seed in sys.argv[1:]:
        record(int(seed))
