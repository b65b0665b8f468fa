"""Record runs that take too long for a lesson: the common part of scripts such as rumors.py and flocks.py.

Each script runs those cells of its lesson that are tagged `recorded`, so the models are the lesson's own, and writes
the results into its folder. After an interruption it continues with the missing runs.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jupytext

from txlib.files import write_atomically


@dataclass(frozen=True)
class Runs:
    """The runs of one lesson.

    Args:
        script: the file that makes them; they are kept in its .json.
        of: the lesson's name.
    """

    script: str
    of: str

    @property
    def file(self) -> Path:
        return Path(self.script).with_suffix(".json")

    def lesson(self) -> dict[str, Any]:
        """The names that the lesson's tagged cells define."""
        names: dict[str, Any] = {"__name__": "lesson"}
        for cell in jupytext.read(Path(self.script).parents[1] / "notebooks" / f"{self.of}.py").cells:
            if "recorded" in cell.metadata.get("tags", ()):
                exec(cell.source, names)
        return names

    def kept(self) -> dict[str, Any]:
        """What was recorded, by the names of each run, one inside the other; the last is its seed."""
        return json.loads(self.file.read_text()) if self.file.is_file() else {}

    def has(self, *names: str) -> bool:
        """Whether this run is there."""
        found = self.kept()
        for name in names:
            found = found.get(name, {})
        return found != {}

    def keep(self, result: Any, *names: str) -> None:
        """Add a run."""
        print(*names, result, flush=True)
        place = runs = self.kept()
        for name in names[:-1]:
            place = place.setdefault(name, {})
        place[names[-1]] = result
        write_atomically(self.file, json.dumps(runs, indent=1) + "\n")


def record_seeds(record: Callable[[int], None]) -> None:
    """For each seed that the command names."""
    for each in sys.argv[1:]:
        record(int(each))
