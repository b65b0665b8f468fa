"""The grades of a term, over the results folders of its exercises: `txgrade course`."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from txgrade.files import write_atomically
from txgrade.pages.exports import csv_text, plain_number
from txgrade.pages.page import page
from txgrade.pages.statistics import item_statistics
from txgrade.records.gradebook import Gradebook
from txgrade.records.people import Roster, person
from txgrade.records.result import Result


class CourseError(ValueError):
    """Folders, weights or options from which no table can be made."""


@dataclass
class Row:
    """One learner: the result of each exercise, by its folder's name."""

    name: str
    results: dict[str, Result] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    total: float = 0  # percent

    @property
    def late(self) -> int:
        """How many exercises lost points for being late."""
        return sum(result.penalty > 0 for result in self.results.values())

    @property
    def waiting(self) -> int:
        """How many exercises a person has to look at before their grades are final."""
        return sum(result.needs_review for result in self.results.values())


@dataclass(frozen=True)
class Exercise:
    """One results folder."""

    name: str
    title: str
    weight: float
    max_score: int | float


@dataclass(frozen=True)
class Course:
    """A term's grades."""

    exercises: tuple[Exercise, ...]
    rows: tuple[Row, ...]
    drop_lowest: int = 0

    def missing(self, row: Row) -> list[str]:
        """Return the exercises that a learner did not hand in."""
        return [exercise.name for exercise in self.exercises if exercise.name not in row.results]


def read_course(
    folders: Sequence[Path], roster: Roster | None = None, weights: Path | None = None, drop_lowest: int = 0
) -> Course:
    """Return the grades of a term. What was not handed in counts as 0, and may be among those that are dropped.

    Every exercise weighs as much as its points, unless `weights`, a table with the columns `exercise` and `weight`,
    says otherwise; `drop_lowest` leaves out so many of each learner's exercises, those with the smallest fraction.

    Raises:
        CourseError: no folders, two of one name, wrong weights, or nothing left after dropping.
        GradebookError: a folder is no results folder.
    """
    names = [folder.resolve().name for folder in folders]
    if not folders or len(set(names)) < len(names):
        raise CourseError("give the results folder of each exercise once, such as results/*/, each by its own name")
    if not 0 <= drop_lowest < len(folders):
        raise CourseError(f"--drop-lowest {drop_lowest}: choose 0 to {len(folders) - 1} of {len(folders)} exercises")
    given = _weights(weights, names) if weights else {}
    exercises = []
    rows: dict[str, Row] = {}
    for one in roster.people if roster else ():
        rows[f"roster {one.row}"] = Row(one.label or one.name)
    for name, folder in zip(names, folders, strict=True):
        with Gradebook(folder / "gradebook.sqlite", create=False) as book:
            results, title = book.latest(), book.title()
        most = max((result.max_score for result in results), default=0)
        exercises.append(Exercise(name, title, given.get(name, float(most)), most))
        for result in results:
            _row(rows, result, name, roster).results[name] = result
    for row in rows.values():
        _add_up(row, exercises, drop_lowest)
    return Course(tuple(exercises), tuple(sorted(rows.values(), key=lambda row: person(row.name))), drop_lowest)


def _row(rows: dict[str, Row], result: Result, exercise: str, roster: Roster | None) -> Row:
    """Return the row of a result's learner; one of its own if the learner's has a result of this exercise already."""
    people = roster.find(result.submission) if roster else []
    people = people or (roster.find(result.learner) if roster and result.learner else [])
    key = f"roster {people[0].row}" if len(people) == 1 else person(result.name)
    if key in rows and exercise in rows[key].results:
        key = f"submission {result.submission}"
    return rows.setdefault(key, Row(result.submission if key.startswith("submission") else result.name))


def _add_up(row: Row, exercises: list[Exercise], drop_lowest: int) -> None:
    fractions = {exercise.name: _fraction(row, exercise) for exercise in exercises}
    row.dropped = set(sorted(fractions, key=lambda name: fractions[name])[:drop_lowest])
    counted = [exercise for exercise in exercises if exercise.name not in row.dropped]
    whole = sum(exercise.weight for exercise in counted)
    points = sum(exercise.weight * fractions[exercise.name] for exercise in counted)
    row.total = 100 * points / whole if whole else 0.0


def _fraction(row: Row, exercise: Exercise) -> float:
    result = row.results.get(exercise.name)
    return result.score / result.max_score if result and result.max_score else 0.0


def _weights(path: Path, names: list[str]) -> dict[str, float]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        weights = {row["exercise"].strip(): float(row["weight"]) for row in rows}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CourseError(f"{path} must have the columns exercise and weight, a number each") from None
    if unknown := [name for name in weights if name not in names]:
        raise CourseError(f"{path} weighs {unknown[0]!r}, but the folders are {', '.join(names)}")
    if min(weights.values(), default=0) < 0 or not sum(weights.values()) < float("inf"):
        raise CourseError(f"{path}: a weight is a number from 0 on")
    return weights


def course_csv(course: Course) -> str:
    """Return a row per learner, with a column for each exercise; one that was not handed in stays empty."""
    names = [exercise.name for exercise in course.exercises]
    rows = [["learner", *names, "total %", "dropped", "late", "waiting", "missing"]]
    for row in course.rows:
        scores = [plain_number(row.results[name].score) if name in row.results else "" for name in names]
        dropped = " ".join(name for name in names if name in row.dropped)
        counts = [str(row.late), str(row.waiting), " ".join(course.missing(row))]
        rows.append([row.name, *scores, f"{row.total:.2f}", dropped, *counts])
    return csv_text(rows)


def course_page(course: Course) -> str:
    """Return the page for the instructor: one HTML file."""
    tasks = []
    for exercise in course.exercises:
        results = [row.results[exercise.name] for row in course.rows if exercise.name in row.results]
        graded = [result for result in results if result.status == "graded" and result.max_score]
        mean = fmean(result.score / result.max_score for result in graded) if graded else None
        marked = [item for item in item_statistics(results) if item.difficulty is not None]
        hardest = min(marked, key=lambda item: item.difficulty or 0, default=None)
        tasks.append({"exercise": exercise, "count": len(results), "mean": mean, "hardest": hardest})
    whole = sum(exercise.weight for exercise in course.exercises)
    return page(
        "course.html",
        {
            "course": course,
            "exercises": tasks,
            "whole": whole,
            "absent": [row for row in course.rows if not row.results],
            "some_missing": [(row.name, course.missing(row)) for row in course.rows if course.missing(row)],
        },
    )


def write_course(course: Course, out: Path) -> list[Path]:
    """Write `course.csv` and `course.html`; return their paths."""
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = {out / "course.csv": course_csv(course), out / "course.html": course_page(course)}
    for path, text in files.items():
        write_atomically(path, text, 0o600)
    return list(files)
