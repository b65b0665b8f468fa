"""A learner's best results, kept in one small JSON file next to the exercises."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from txgrade.files import locked, write_atomically
from txgrade.paths import current_course
from txgrade.text import stub_digest, titled

VERSION = 1


@dataclass
class Row:
    """One task: the best result so far, and when it was reached (UTC; None before the first try).

    A task whose points others give has `max_points` 0: it is done once there is something to hand in.
    """

    exercise: str
    title: str
    task: str
    points: int | float
    max_points: int | float
    when: str | None = None

    @property
    def done(self) -> bool:
        return self.points >= self.max_points and (self.max_points > 0 or self.when is not None)


@dataclass
class Progress:
    """The rows of the progress file; a notebook shows them as a table."""

    rows: list[Row] = field(default_factory=list)
    notice: str = ""  # what was wrong with the file, if anything

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        lines = [f"{row.exercise}: {titled(row.title, _score(row))}" for row in self.rows]
        lines = lines or ["Nothing checked yet: open an exercise, fill in a task and run its check."]
        return "\n".join([*lines, self.notice] if self.notice else lines)

    def _repr_markdown_(self) -> str:
        notice = f"\n\n{self.notice}" if self.notice else ""
        if not self.rows:
            return repr(Progress()) + notice
        lines = ["| Exercise | Task | Points | |", "| :--- | :--- | ---: | :--- |"]
        for row in self.rows:
            state = "✓ done" if row.done else "○ not tried" if row.when is None else "✗ not yet"
            lines.append(f"| {row.exercise} | {row.title} | {_score(row)} | {state} |")
        points, best = sum(row.points for row in self.rows), sum(row.max_points for row in self.rows)
        lines.append(f"| **Together** | | **{points:g} of {best:g}** | |")
        return "\n".join(lines) + notice


def _score(row: Row) -> str:
    return f"{row.points:g} of {row.max_points:g}" if row.max_points else "by others"


def progress() -> Progress:
    """Return the learner's results so far, in the order of the exercises."""
    course, saved = current_course(), _read(progress_path())
    if course is None:
        return saved
    return replace(saved, rows=[_with_written(row, course / "exercises") for row in saved.rows])


def _with_written(row: Row, folder: Path) -> Row:
    """Return the row, with the time of the saved notebook if that holds a written answer."""
    if row.max_points or row.when:
        return row
    path = folder / f"exercise_{row.exercise}.ipynb"
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        cell = next(cell for cell in cells if cell["metadata"].get("nbgrader", {}).get("grade_id") == row.task)
        source, stub = "".join(cell["source"]), cell["metadata"]["txgrade"]["stub"]
        written = cell["metadata"]["nbgrader"]["grade"] and source.strip() and stub_digest(source) != stub
        when = datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="seconds")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration):
        return row
    return replace(row, when=when) if written else row


def progress_path(course: Path | None = None) -> Path:
    """Return `$TXGRADE_HOME/progress.json`; else `.txgrade/` in the course's folder; else `~/.txgrade/`."""
    if home := os.environ.get("TXGRADE_HOME"):
        return Path(home).expanduser() / "progress.json"
    return (course or current_course() or Path.home()) / ".txgrade" / "progress.json"


def keep(rows: list[Row]) -> str:
    """Keep each row's best result in the progress file. Return a notice if that went wrong, else ''.

    A row with `when=None` only announces a task. Never raises: a full disk must not stop a lesson.
    """
    path = progress_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):
            saved = _read(path, set_aside=True)
            merged = {(row.exercise, row.task): row for row in saved}
            for row in rows:
                merged[row.exercise, row.task] = _better(merged.get((row.exercise, row.task)), row)
            if list(merged.values()) != saved.rows:
                _write(path, sorted(merged.values(), key=lambda row: row.exercise))
            return saved.notice
    except OSError as reason:
        return f"Your progress could not be saved in {path.parent}: {reason.strerror or reason}."


def follow_tasks(course: Path, tasks: dict[str, set[str]]) -> None:
    """Give each row of a course's progress file the exercise that has its task now.

    Args:
        tasks: the ids of each exercise's tasks.
    """
    path = progress_path(course)
    if not path.exists():
        return
    with locked(path.with_suffix(".lock")):
        saved = _read(path).rows
        merged: dict[tuple[str, str], Row] = {}
        for row in saved:
            siblings = {other.task for other in saved if other.exercise == row.exercise}
            row = replace(row, exercise=home_of(row.task, row.exercise, siblings, tasks) or row.exercise)
            merged[row.exercise, row.task] = _better(merged.get((row.exercise, row.task)), row)
        if list(merged.values()) != saved:
            _write(path, sorted(merged.values(), key=lambda row: row.exercise))


def home_of(task: str, exercise: str, siblings: set[str], tasks: dict[str, set[str]]) -> str | None:
    """Return the exercise that has a task now: its own, or the one with most of the tasks that were next to it."""
    if task in tasks.get(exercise, ()):
        return exercise
    homes = [name for name, ids in tasks.items() if task in ids]
    return max(homes, key=lambda name: len(tasks[name] & siblings), default=None)


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
            return Progress(notice=f"{notice}; the next check sets it aside and starts a new one.")
        candidates = (path.with_suffix(f".damaged-{i}.json") for i in range(1, 1000))
        aside = next(candidate for candidate in candidates if not candidate.exists())
        os.replace(path, aside)
        return Progress(notice=f"{notice}. It is kept as {aside.name}, and a new one is started.")


def _write(path: Path, rows: list[Row]) -> None:
    text = json.dumps({"version": VERSION, "rows": [asdict(row) for row in rows]}, indent=1, ensure_ascii=False)
    write_atomically(path, text + "\n")
