"""The grades of a term, over the results folders of its exercises: `txgrade course`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from txgrade.authoring.exercise import without_variant
from txgrade.files import write_atomically
from txgrade.pages.exports import csv_text, plain_number
from txgrade.pages.page import page
from txgrade.pages.statistics import item_statistics
from txgrade.records.gradebook import Gradebook
from txgrade.records.people import Roster, person, read_rows, text_of
from txgrade.records.result import Result
from txgrade.text import plural

RETAKES = ("best", "latest")  # which of a learner's results counts, if there are several of one exercise


class CourseError(ValueError):
    """Folders, weights or options from which no table can be made."""


@dataclass
class Row:
    """One learner: the result in each folder, and the one that counts of each exercise, by their names."""

    name: str
    attempts: dict[str, Result] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    retakes: list[str] = field(default_factory=list)  # folders whose result counts instead of the exercise's first
    dropped: set[str] = field(default_factory=set)
    total: float = 0  # percent

    @property
    def late(self) -> int:
        """How many exercises lost points for being late."""
        return sum(result.penalty > 0 for result in self.results.values())

    @property
    def waiting(self) -> int:
        """How many submissions a person has to look at before the total is final."""
        return sum(result.needs_review for result in self.attempts.values())


@dataclass(frozen=True)
class Exercise:
    """One exercise: its results folder, and those of its variants."""

    folders: tuple[str, ...]  # the first graded first
    title: str
    weight: float
    max_score: int | float

    @property
    def name(self) -> str:
        """The name of the first folder."""
        return self.folders[0]


@dataclass(frozen=True)
class Course:
    """A term's grades."""

    exercises: tuple[Exercise, ...]
    rows: tuple[Row, ...]
    drop_lowest: int = 0
    retake: str = "best"

    def missing(self, row: Row) -> list[str]:
        """Return the exercises that a learner did not hand in."""
        return [exercise.name for exercise in self.exercises if exercise.name not in row.results]


@dataclass(frozen=True)
class _Folder:
    """What a results folder holds."""

    name: str
    assignment: str
    title: str
    started: str
    results: list[Result]

    @property
    def exercise(self) -> str:
        return without_variant(self.assignment)

    @property
    def tasks(self) -> set[str]:
        return {task.id for result in self.results for task in result.tasks}


def read_course(
    folders: Sequence[Path],
    roster: Roster | None = None,
    weights: Path | None = None,
    drop_lowest: int = 0,
    retake: str = "best",
) -> Course:
    """Return the grades of a term. What was not handed in counts as 0, and may be among those that are dropped.

    The folders of an exercise and of its variants, for a retake or dealt, are one exercise. Of a learner's results in
    them the best counts, by its fraction of the points, or the `latest`: a retake is later than the exercise itself,
    else the folder that was first graded later.

    Every exercise weighs as much as its points, unless `weights`, a table with the columns `exercise` and `weight`,
    says otherwise; `drop_lowest` leaves out so many of each learner's exercises, those with the smallest fraction.

    Raises:
        CourseError: no folders, two of one name, wrong weights, or nothing left after dropping.
        GradebookError: a folder is no results folder.
    """
    if gone := [str(folder) for folder in folders if not folder.exists()]:
        raise CourseError(f"no folder {gone[0]}: give the results folder of each exercise, such as results/*/")
    folders = [folder for folder in folders if folder.is_dir()]  # results/* has the files beside them as well
    names = [folder.resolve().name for folder in folders]
    if not folders or len(set(names)) < len(names):
        raise CourseError("give the results folder of each exercise once, such as results/*/, each by its own name")
    if retake not in RETAKES:
        raise CourseError(f"--retake {retake}: choose {' or '.join(RETAKES)}")
    groups = _exercises([_read(name, folder) for name, folder in zip(names, folders, strict=True)])
    if not 0 <= drop_lowest < len(groups):
        raise CourseError(f"--drop-lowest {drop_lowest}: choose 0 to {len(groups) - 1} of {len(groups)} exercises")
    by_name = _weights(weights, [group[0].name for group in groups]) if weights else {}
    exercises = []
    rows: dict[str, Row] = {}
    for one in roster.people if roster else ():
        rows[f"roster {one.row}"] = Row(one.label or one.name)
    for group in groups:
        names_of = tuple(folder.name for folder in group)
        most = max((result.max_score for folder in group for result in folder.results), default=0)
        exercises.append(Exercise(names_of, group[0].title, by_name.get(group[0].name, float(most)), most))
        for folder in group:
            for result in folder.results:
                _row(rows, result, folder.name, roster).attempts[folder.name] = result
    for row in rows.values():
        _choose(row, exercises, retake)
        _add_up(row, exercises, drop_lowest)
    learners = sorted(rows.values(), key=lambda row: person(row.name))
    return Course(tuple(exercises), tuple(learners), drop_lowest, retake)


def _read(name: str, folder: Path) -> _Folder:
    with Gradebook(folder / "gradebook.sqlite", create=False) as book:
        return _Folder(name, book.assignment_name(), book.title(), book.first_started(), book.latest())


def _exercises(folders: list[_Folder]) -> list[list[_Folder]]:
    """Return the folders of each exercise: those of one name, unless they have no task in common.

    The exercise itself comes before its variants, and each in the order in which it was first graded.
    """
    groups: list[list[_Folder]] = []
    for folder in folders:
        same = (group for group in groups if folder.exercise and group[0].exercise == folder.exercise)
        tasks = folder.tasks
        group = next((group for group in same if not tasks or any(tasks & other.tasks for other in group)), None)
        if group is None:
            groups.append([folder])
        else:
            group.append(folder)
    return [sorted(group, key=lambda one: (one.assignment != one.exercise, one.started)) for group in groups]


def _choose(row: Row, exercises: list[Exercise], retake: str) -> None:
    """Choose which of a learner's results counts for each exercise; of equally good ones, the earliest."""
    for exercise in exercises:
        attempts = [name for name in exercise.folders if name in row.attempts]
        if attempts:
            chosen = attempts[-1] if retake == "latest" else max(attempts, key=lambda name: _part(row.attempts[name]))
            row.results[exercise.name] = row.attempts[chosen]
            row.retakes += [chosen] * (chosen != exercise.name)


def _row(rows: dict[str, Row], result: Result, folder: str, roster: Roster | None) -> Row:
    """Return the row of a result's learner; one of its own if the learner's has a result of this folder already."""
    people = roster.find(result.submission, learner=result.learner) if roster else []
    key = f"roster {people[0].row}" if len(people) == 1 else person(result.name)
    if key in rows and folder in rows[key].attempts:
        key = f"submission {result.submission}"
    return rows.setdefault(key, Row(result.submission if key.startswith("submission") else result.name))


def _add_up(row: Row, exercises: list[Exercise], drop_lowest: int) -> None:
    fractions = {exercise.name: _part(row.results.get(exercise.name)) for exercise in exercises}
    row.dropped = set(sorted(fractions, key=lambda name: fractions[name])[:drop_lowest])
    counted = [exercise for exercise in exercises if exercise.name not in row.dropped]
    whole = sum(exercise.weight for exercise in counted)
    points = sum(exercise.weight * fractions[exercise.name] for exercise in counted)
    row.total = 100 * points / whole if whole else 0.0


def _part(result: Result | None) -> float:
    """Return the fraction of the points; 0 for what was not handed in."""
    return result.score / result.max_score if result and result.max_score else 0.0


def _weights(path: Path, names: list[str]) -> dict[str, float]:
    _, rows = read_rows(text_of(path))
    try:
        weights = {row["exercise"]: float(row["weight"].replace(",", ".")) for row in rows}
    except (KeyError, ValueError):
        raise CourseError(f"{path} must have the columns exercise and weight, a number each") from None
    if unknown := [name for name in weights if name not in names]:
        raise CourseError(f"{path} weighs {unknown[0]!r}, but the exercises are {', '.join(names)}")
    if min(weights.values(), default=0) < 0 or not sum(weights.values()) < float("inf"):
        raise CourseError(f"{path}: a weight is a number from 0 on")
    return weights


def course_csv(course: Course) -> str:
    """Return a row per learner, with a column for each exercise; one that was not handed in stays empty."""
    names = [exercise.name for exercise in course.exercises]
    rows = [["learner", *names, "total %", "retakes", "dropped", "late", "waiting", "missing"]]
    for row in course.rows:
        scores = [plain_number(row.results[name].score) if name in row.results else "" for name in names]
        dropped = " ".join(name for name in names if name in row.dropped)
        counts = [str(row.late), str(row.waiting), " ".join(course.missing(row))]
        rows.append([row.name, *scores, f"{row.total:.2f}", " ".join(row.retakes), dropped, *counts])
    return csv_text(rows)


def course_page(course: Course) -> str:
    """Return the page for the instructor: one HTML file."""
    tasks = []
    for exercise in course.exercises:
        results = [row.results[exercise.name] for row in course.rows if exercise.name in row.results]
        fractions = [result.fraction for result in results if result.status == "graded" and result.fraction is not None]
        mean = fmean(fractions) if fractions else None
        hard = [item for item in item_statistics(results) if item.difficulty is not None and item.difficulty < 1]
        hardest = min(hard, key=lambda item: item.difficulty or 0, default=None)
        waiting = sum(result.waiting for result in results)
        tasks.append(
            {"exercise": exercise, "count": len(results), "mean": mean, "waiting": waiting, "hardest": hardest}
        )
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


def course_remarks(course: Course) -> list[str]:
    """Return a line for each exercise that has several folders, and one if anybody did not hand in everything."""
    lines = [
        f"{', '.join(exercise.folders)}: one exercise, each learner's {course.retake} result counts"
        for exercise in course.exercises
        if len(exercise.folders) > 1
    ]
    if absent := sum(bool(course.missing(row)) for row in course.rows):
        lines.append(f"{plural(absent, 'learner')} did not hand in every exercise: see course.csv")
    return lines


def write_course(course: Course, out: Path) -> list[Path]:
    """Write `course.csv` and `course.html`; return their paths."""
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = {out / "course.csv": course_csv(course), out / "course.html": course_page(course)}
    for path, text in files.items():
        write_atomically(path, text, 0o600)
    return list(files)
