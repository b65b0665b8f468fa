"""A learner's progress on a map of the course: every lesson, its exercise's points, and what is next."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from txgrade.checking.progress import Progress, Row
from txgrade.checking.progress import progress as recorded_progress
from txgrade.paths import current_course

MAP = Path("notebooks/00_start_here.ipynb")  # its table names the lessons, and how long each takes
ROW = re.compile(r"^\|.*\| \[([^]]+)\]\((\w+)\.ipynb\) \| \[exercise\].*\| (\d+) \+ (\d+) \|$", re.MULTILINE)


@dataclass
class Lesson:
    """A lesson of the course, and what the learner has reached in its exercise."""

    title: str
    name: str  # of the notebook, without its ending; of the exercise as well
    reading: int  # minutes
    practice: int  # minutes
    rows: list[Row] = field(default_factory=list)

    @property
    def minutes_left(self) -> int | float:
        """The minutes left: reading counts until the first try, practice in proportion to the points still open."""
        if not any(row.when for row in self.rows):
            return self.reading + self.practice
        if all(row.done for row in self.rows):
            return 0
        earned = sum(min(row.points, row.max_points) for row in self.rows)
        best = sum(row.max_points for row in self.rows)
        open_tasks = sum(not row.done for row in self.rows) / len(self.rows)
        return self.practice * (1 - earned / best if earned < best else open_tasks)


@dataclass
class CourseMap:
    """A learner's progress; a notebook shows it as a map of the lessons, or as a table where no lessons are found."""

    progress: Progress
    lessons: list[Lesson]

    def __repr__(self) -> str:
        return repr(self.progress)

    def _repr_markdown_(self) -> str:
        if not self.lessons:
            return self.progress._repr_markdown_()
        current = self._current()
        lines = ["| | Lesson | Exercise | Minutes |", "| :--- | :--- | :--- | ---: |"]
        for lesson in self.lessons:
            marker = " **← you are here**" if lesson is current else ""
            points = f"[{_points(lesson.rows) or 'not begun'}](../exercises/exercise_{lesson.name}.ipynb)"
            title = f"[{lesson.title}](../notebooks/{lesson.name}.ipynb){marker}"
            lines.append(f"| {_state(lesson.rows)} | {title} | {points} | {lesson.reading} + {lesson.practice} |")
        names = {lesson.name for lesson in self.lessons}
        for exercise in dict.fromkeys(row.exercise for row in self.progress if row.exercise not in names):
            rows = [row for row in self.progress if row.exercise == exercise]
            lines.append(f"| {_state(rows)} | {exercise} | {_points(rows)} | |")
        notice = ["", self.progress.notice] if self.progress.notice else []
        return "\n".join([*lines, "", self._next(current), *notice])

    def _current(self) -> Lesson | None:
        """Return the lesson whose exercise was tried last."""
        tried = [row for row in self.progress if row.when]
        last = max(tried, key=lambda row: row.when or "").exercise if tried else None
        return next((lesson for lesson in self.lessons if lesson.name == last), None)

    def _next(self, current: Lesson | None) -> str:
        """Return what to do next, and how many hours the course has left."""
        hours = round(sum(lesson.minutes_left for lesson in self.lessons) / 60)
        whole = f"\n\nThe whole course has about {hours} hours left."
        if current and current.minutes_left:
            still = " · ".join(row.title for row in current.rows if not row.done)
            path = f"../exercises/exercise_{current.name}.ipynb"
            about = f"about {current.minutes_left:.0f} minutes. Still open: {still}"
            return f"**Next:** [the exercise of {current.title}]({path}), {about}{whole}"
        after = self.lessons[self.lessons.index(current) + 1 :] if current else self.lessons
        lesson = next((lesson for lesson in [*after, *self.lessons] if lesson.minutes_left), None)
        if lesson is None:
            return "**You have done the whole course.**"
        link = f"[{lesson.title}](../notebooks/{lesson.name}.ipynb)"
        return f"**Next:** {link}, about {lesson.minutes_left:.0f} minutes with its exercise.{whole}"


def progress() -> CourseMap:
    """Return the learner's results so far on the map of the course."""
    recorded, course = recorded_progress(), current_course()
    lessons = [] if course is None else read_lessons(course / MAP)
    for lesson in lessons:
        lesson.rows = [row for row in recorded if row.exercise == lesson.name]
    return CourseMap(recorded, lessons)


def read_lessons(start: Path) -> list[Lesson]:
    """Return the lessons in the table of the first notebook; none if it can't be read."""
    try:
        cells = json.loads(start.read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    except (OSError, ValueError, LookupError, TypeError):
        return []
    return [Lesson(title, name, int(reading), int(practice)) for title, name, reading, practice in ROW.findall(text)]


def next_steps(exercise: str) -> list[tuple[str, str]]:
    """Return titles and paths of the lesson after an exercise and of the map, as seen from the exercise's folder."""
    lessons = sorted(Path("../notebooks").glob("*.ipynb"))
    path = next((path for path in lessons if path.stem > exercise), None)
    if path is None:
        return []
    steps = [(_heading(path) or path.stem, path.as_posix())]
    start = Path("..") / MAP
    return [*steps, ("where you are in the course", start.as_posix())] if start.is_file() else steps


def _heading(path: Path) -> str:
    """Return the title of a notebook; nothing if it has none."""
    try:
        first = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    heading = re.match(r"# +(.+)", first)
    return heading[1].strip() if heading else ""


def _state(rows: list[Row]) -> str:
    begun = any(row.when for row in rows)
    return "✓ done" if rows and all(row.done for row in rows) else "◐ begun" if begun else "○"


def _points(rows: list[Row]) -> str:
    """Return the points so far, in words; nothing before the first try."""
    if not any(row.when for row in rows):
        return ""
    return f"{sum(row.points for row in rows):g} of {sum(row.max_points for row in rows):g} points"
