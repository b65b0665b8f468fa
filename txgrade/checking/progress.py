"""What a learner has solved so far, in one small JSON file beside the course."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from txgrade.files import locked, write_atomically
from txgrade.paths import course_table
from txgrade.text import stub_digest, titled

VERSION = 1
MAP = Path("notebooks/00_start_here.ipynb")  # its table names the lessons, and how long each takes
STOP = re.compile(r"^\|.*\| \[([^]]+)\]\((\w+)\.ipynb\) \| \[exercise\].*\| (\d+) \+ (\d+) \|$", re.MULTILINE)


@dataclass
class Row:
    """One task: the best result so far, and when it was reached (UTC; None before the first try).

    A task whose points others give has `max_points` 0: it is done when there is something to hand over.
    """

    exercise: str
    title: str
    task: str
    points: int | float
    max_points: int | float
    when: str | None = None


@dataclass(frozen=True)
class Stop:
    """A lesson and its exercise on the map of the course."""

    title: str
    lesson: str  # the notebook's name, without its ending; the exercise's, too
    reading: int  # minutes
    practice: int


@dataclass
class Progress:
    """The rows of the progress file; a notebook shows them as a map of the course, or, outside it, as a table."""

    rows: list[Row] = field(default_factory=list)
    notice: str = ""  # what was wrong with the file, if anything
    stops: list[Stop] = field(default_factory=list)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        lines = [f"{row.exercise}: {titled(row.title, _of(row))}" for row in self.rows]
        lines = lines or ["Nothing checked yet: open an exercise, fill in a task and run its check."]
        return "\n".join([*lines, self.notice] if self.notice else lines)

    def _repr_markdown_(self) -> str:
        notice = f"\n\n{self.notice}" if self.notice else ""
        if self.stops:
            return self._map() + notice
        if not self.rows:
            return repr(Progress()) + notice
        lines = ["| Exercise | Task | Points | |", "| :--- | :--- | ---: | :--- |"]
        for row in self.rows:
            state = "✓ done" if _done(row) else "○ not tried" if row.when is None else "✗ not yet"
            lines.append(f"| {row.exercise} | {row.title} | {_of(row)} | {state} |")
        points, best = sum(row.points for row in self.rows), sum(row.max_points for row in self.rows)
        lines.append(f"| **Together** | | **{points:g} of {best:g}** | |")
        return "\n".join(lines) + notice

    def _map(self) -> str:
        """Every lesson with what its exercise has brought; then where the learner is, what is next, and how long."""
        tasks = {stop: [row for row in self.rows if row.exercise == stop.lesson] for stop in self.stops}
        tried = [row for row in self.rows if row.when]
        last = max(tried, key=lambda row: row.when or "").exercise if tried else None
        here = next((stop for stop in self.stops if stop.lesson == last), None)
        lines = ["| | Lesson | Exercise | Minutes |", "| :--- | :--- | :--- | ---: |"]
        for stop, rows in tasks.items():
            place = " **← you are here**" if stop == here else ""
            points = f"[{_points(rows) or 'not begun'}](../exercises/exercise_{stop.lesson}.ipynb)"
            lesson = f"[{stop.title}](../notebooks/{stop.lesson}.ipynb){place}"
            lines.append(f"| {_state(rows)} | {lesson} | {points} | {stop.reading} + {stop.practice} |")
        for exercise in dict.fromkeys(row.exercise for row in self.rows):
            if not any(stop.lesson == exercise for stop in self.stops):
                rows = [row for row in self.rows if row.exercise == exercise]
                lines.append(f"| {_state(rows)} | {exercise} | {_points(rows)} | |")
        left = {stop: _minutes_left(stop, rows) for stop, rows in tasks.items()}
        return "\n".join([*lines, "", self._next(here, tasks, left)])

    def _next(self, here: Stop | None, tasks: dict[Stop, list[Row]], left: dict[Stop, int | float]) -> str:
        whole = f"\n\nThe whole course has about {round(sum(left.values()) / 60)} hours left."
        if here and left[here]:
            still = " · ".join(row.title for row in tasks[here] if not _done(row))
            path = f"../exercises/exercise_{here.lesson}.ipynb"
            about = f"about {left[here]:.0f} minutes. Still open: {still}"
            return f"**Next:** [the exercise of {here.title}]({path}), {about}{whole}"
        after = self.stops[self.stops.index(here) + 1 :] if here else self.stops
        stop = next((stop for stop in [*after, *self.stops] if left[stop]), None)
        if stop is None:
            return "**You have done the whole course.**"
        first = f"[{stop.title}](../notebooks/{stop.lesson}.ipynb), about {left[stop]:.0f} minutes with its exercise"
        return f"**Next:** {first}.{whole}"


def _of(row: Row) -> str:
    return f"{row.points:g} of {row.max_points:g}" if row.max_points else "by others"


def _done(row: Row) -> bool:
    return row.points >= row.max_points and (row.max_points > 0 or row.when is not None)


def _state(rows: list[Row]) -> str:
    begun = any(row.when for row in rows)
    return "✓ done" if rows and all(map(_done, rows)) else "◐ begun" if begun else "○"


def _points(rows: list[Row]) -> str:
    """How many there are by now; nothing before the first try."""
    if not any(row.when for row in rows):
        return ""
    return f"{sum(row.points for row in rows):g} of {sum(row.max_points for row in rows):g} points"


def _minutes_left(stop: Stop, rows: list[Row]) -> int | float:
    """Who has tried a task has read the lesson; tasks take the share of the exercise's time that their points are."""
    if not any(row.when for row in rows):
        return stop.reading + stop.practice
    if all(map(_done, rows)):
        return 0
    earned, best = sum(min(row.points, row.max_points) for row in rows), sum(row.max_points for row in rows)
    open_share = sum(not _done(row) for row in rows) / len(rows)
    return stop.practice * (1 - earned / best if earned < best else open_share)


def progress() -> Progress:
    """The learner's results so far, in the order of the exercises; on the map of the course, if this is in it."""
    course, known = _course(), _read(progress_path())
    if course is None:
        return known
    rows = [_with_written(row, course / "exercises") for row in known.rows]
    return replace(known, rows=rows, stops=_stops(course / MAP))


def _with_written(row: Row, folder: Path) -> Row:
    """A row, done where it is a written answer that the saved notebook holds."""
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


def progress_path() -> Path:
    """`$TXGRADE_HOME/progress.json`; else `.txgrade/` in the course's folder; else `~/.txgrade/`."""
    if home := os.environ.get("TXGRADE_HOME"):
        return Path(home).expanduser() / "progress.json"
    return (_course() or Path.home()) / ".txgrade" / "progress.json"


def _course() -> Path | None:
    """The course's folder, if this is in it."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if course_table(folder) is not None), None)


def _stops(start: Path) -> list[Stop]:
    """The lessons in the table of the first notebook; none where it can't be read."""
    try:
        cells = json.loads(start.read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    except (OSError, ValueError, LookupError, TypeError):
        return []
    return [Stop(title, lesson, int(reading), int(practice)) for title, lesson, reading, practice in STOP.findall(text)]


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
