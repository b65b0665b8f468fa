"""A learner's progress on a map of the course: every lesson, its exercise's points, and what is next."""

from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from txcourse.guess import mark, script
from txcourse.lessons import START, Lesson, read_lessons, title_of
from txcourse.paths import COURSE
from txgrade.checking.progress import Progress, Row
from txgrade.checking.progress import progress as recorded_progress
from txgrade.paths import current_course


@dataclass
class LessonProgress:
    """What the learner has reached in the exercise of a lesson: a row per task."""

    lesson: Lesson
    rows: list[Row]

    @property
    def minutes_left(self) -> int | float:
        """The minutes left: reading counts until the first try, practice in proportion to the points still open."""
        if not any(row.when for row in self.rows):
            return self.lesson.reading + self.lesson.practice
        if all(row.done for row in self.rows):
            return 0
        earned = sum(min(row.points, row.max_points) for row in self.rows)
        best = sum(row.max_points for row in self.rows)
        open_tasks = sum(not row.done for row in self.rows) / len(self.rows)
        return self.lesson.practice * (1 - earned / best if earned < best else open_tasks)


@dataclass
class CourseMap:
    """A learner's progress; a notebook shows it as a map of the lessons, or as a table where no lessons are found."""

    progress: Progress
    lessons: list[LessonProgress]

    def __repr__(self) -> str:
        return repr(self.progress)

    def _repr_markdown_(self) -> str:
        if not self.lessons:
            return self.progress._repr_markdown_()
        current = self._current()
        lines = ["| | Lesson | Exercise | Minutes |", "| :--- | :--- | :--- | ---: |"]
        part = ""
        for member in self.lessons:
            lesson = member.lesson
            if lesson.part != part:
                part = lesson.part
                lines.append(f"| | **{part}** | | |")
            marker = " **← you are here**" if member is current else ""
            points = f"[{_points(member.rows) or 'not begun'}](../exercises/exercise_{lesson.name}.ipynb)"
            guesses = f" · {mark(lesson.guesses)}" if lesson.guesses else ""
            title = f"[{lesson.title}](../notebooks/{lesson.name}.ipynb){guesses}{marker}"
            lines.append(f"| {_state(member.rows)} | {title} | {points} | {lesson.reading} + {lesson.practice} |")
        names = {member.lesson.name for member in self.lessons}
        for exercise in dict.fromkeys(row.exercise for row in self.progress if row.exercise not in names):
            rows = [row for row in self.progress if row.exercise == exercise]
            lines.append(f"| {_state(rows)} | {exercise} | {_points(rows)} | |")
        notice = ["", self.progress.notice] if self.progress.notice else []
        return "\n".join([*lines, "", self._next(current), *notice])

    def _repr_html_(self) -> str:
        """Return the same, with a script that counts the guesses that this browser keeps."""
        table = MarkdownIt("commonmark", {"html": True}).enable("table").render(self._repr_markdown_())
        return f"<div>{table}</div>\n{script()}"

    def _current(self) -> LessonProgress | None:
        """Return the lesson whose exercise was tried last."""
        tried = [row for row in self.progress if row.when]
        last = max(tried, key=lambda row: row.when or "").exercise if tried else None
        return next((member for member in self.lessons if member.lesson.name == last), None)

    def _next(self, current: LessonProgress | None) -> str:
        """Return what to do next, and how many hours the course has left."""
        hours = round(sum(member.minutes_left for member in self.lessons) / 60)
        whole = f"\n\nThe whole course has about {hours} hours left."
        if current and current.minutes_left:
            still = " · ".join(row.title for row in current.rows if not row.done)
            path = f"../exercises/exercise_{current.lesson.name}.ipynb"
            about = f"about {current.minutes_left:.0f} minutes. Still open: {still}"
            return f"**Next:** [the exercise of {current.lesson.title}]({path}), {about}{whole}"
        after = self.lessons[self.lessons.index(current) + 1 :] if current else self.lessons
        following = next((member for member in [*after, *self.lessons] if member.minutes_left), None)
        if following is None:
            return "**You have done the whole course.**"
        link = f"[{following.lesson.title}](../notebooks/{following.lesson.name}.ipynb)"
        return f"**Next:** {link}, about {following.minutes_left:.0f} minutes with its exercise.{whole}"


def progress() -> CourseMap:
    """Return the learner's results so far on the map of the course."""
    recorded = recorded_progress()
    recorded.rows = [row for row in recorded if row.exercise[:2] != START[:2]]  # the tour's check counts nowhere
    lessons = read_lessons(current_course() or COURSE)
    return CourseMap(
        recorded,
        [LessonProgress(lesson, [row for row in recorded if row.exercise == lesson.name]) for lesson in lessons],
    )


def next_steps(exercise: str) -> list[tuple[str, str]]:
    """Return titles and paths of the lesson after an exercise and of the map, as seen from the exercise's folder."""
    lessons = sorted(Path("../notebooks").glob("*.ipynb"))
    path = next((path for path in lessons if path.stem > exercise), None)
    if path is None:
        return []
    steps = [(title_of(path) or path.stem, path.as_posix())]
    start = Path("../notebooks", f"{START}.ipynb")
    return [*steps, ("where you are in the course", start.as_posix())] if start.is_file() else steps


def _state(rows: list[Row]) -> str:
    begun = any(row.when for row in rows)
    return "✓ done" if rows and all(row.done for row in rows) else "◐ begun" if begun else "○"


def _points(rows: list[Row]) -> str:
    """Return the points so far, in words; nothing before the first try."""
    if not any(row.when for row in rows):
        return ""
    return f"{sum(row.points for row in rows):g} of {sum(row.max_points for row in rows):g} points"
