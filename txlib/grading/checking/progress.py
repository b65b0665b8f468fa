"""What a learner has solved so far, in one small JSON file beside the course."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from txlib.files import locked, write_atomically
from txlib.grading.text import plural, titled
from txlib.root import is_course

VERSION = 1


@dataclass
class Row:
    """One task: the best result so far, and when it was reached (UTC; None before the first try)."""

    exercise: str
    title: str
    task: str
    points: int | float
    max_points: int | float
    when: str | None = None


@dataclass
class Progress:
    """The rows of the progress file; a notebook shows them as a table."""

    rows: list[Row] = field(default_factory=list)
    notice: str = ""  # what was wrong with the file, if anything
    exercises: int | None = None  # how many the course has

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        lines = [f"{row.exercise}: {titled(row.title, f'{row.points:g} of {row.max_points:g}')}" for row in self.rows]
        lines = lines or ["Nothing checked yet: open an exercise, fill in a task and run its check."]
        return "\n".join([*lines, self.notice] if self.notice else lines)

    def _repr_markdown_(self) -> str:
        notice = f"\n\n{self.notice}" if self.notice else ""
        if not self.rows:
            return repr(Progress()) + notice
        lines = ["| Exercise | Task | Points | |", "| :--- | :--- | ---: | :--- |"]
        for row in self.rows:
            state = "✓ done" if row.points >= row.max_points else "○ not tried" if row.when is None else "✗ not yet"
            lines.append(f"| {row.exercise} | {row.title} | {row.points:g} of {row.max_points:g} | {state} |")
        points, best = sum(row.points for row in self.rows), sum(row.max_points for row in self.rows)
        begun = len({row.exercise for row in self.rows})
        of_all = f", in {begun} of the course's {plural(self.exercises, 'exercise')}" if self.exercises else ""
        lines.append(f"| **Together{of_all}** | | **{points:g} of {best:g}** | |")
        return "\n".join(lines) + notice


def progress() -> Progress:
    """The learner's results so far, in the order of the exercises."""
    course, found = _course(), _read(progress_path())
    return replace(found, exercises=len(list(course.glob("exercises/*.ipynb"))) if course else None)


def progress_path() -> Path:
    """`$TXLIB_HOME/progress.json`; else `.txlib/` in the course's folder; else `~/.txlib/`."""
    if home := os.environ.get("TXLIB_HOME"):
        return Path(home).expanduser() / "progress.json"
    return (_course() or Path.home()) / ".txlib" / "progress.json"


def _course() -> Path | None:
    """The course's folder, if this is in it."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if is_course(folder)), None)


def keep(rows: list[Row]) -> str:
    """Keep each row's best result in the progress file. Returns a notice where that went wrong, else ''.

    A row with `when=None` only announces a task. Never raises: a full disk must not stop a lesson.
    """
    path = progress_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):
            known = _read(path, set_aside=True)
            merged = {(row.exercise, row.task): row for row in known}
            before = {key: asdict(row) for key, row in merged.items()}
            for row in rows:
                merged[row.exercise, row.task] = _better(merged.get((row.exercise, row.task)), row)
            if {key: asdict(row) for key, row in merged.items()} != before:
                _write(path, sorted(merged.values(), key=lambda row: row.exercise))
            return known.notice
    except OSError as reason:
        return f"Your progress could not be saved in {path.parent}: {reason.strerror or reason}."


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _better(old: Row | None, new: Row) -> Row:
    if old is None:
        return new
    if new.when and (old.when is None or new.points > old.points):
        return new
    return Row(old.exercise, new.title, old.task, old.points, new.max_points, old.when)


def _read(path: Path, set_aside: bool = False) -> Progress:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Progress([Row(**row) for row in data["rows"]])
    except FileNotFoundError:
        return Progress()
    except OSError as reason:
        return Progress(notice=f"Your progress in {path} could not be read: {reason.strerror or reason}.")
    except (ValueError, KeyError, TypeError):
        notice = f"The progress file {path} is damaged"
        if not set_aside:
            return Progress(notice=f"{notice}; the next check keeps it aside and starts a new one.")
        aside = next(each for i in range(1, 1000) if not (each := path.with_suffix(f".damaged-{i}.json")).exists())
        os.replace(path, aside)
        return Progress(notice=f"{notice}. It is kept as {aside.name}, and a new one is started.")


def _write(path: Path, rows: list[Row]) -> None:
    text = json.dumps({"version": VERSION, "rows": [asdict(row) for row in rows]}, indent=1, ensure_ascii=False)
    write_atomically(path, text + "\n")
