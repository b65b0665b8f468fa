"""The gradebook: a ledger in one SQLite file that tells when, from what and how every grade came about.

`Ledger` is the file, `Grades` what the grader wrote into it. This module adds reviews: points that people gave for
written answers, or instead of the grader's, by themselves or by the items of a rubric.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import sqlalchemy as sql

from txgrade.records.grades import Grades, as_json, insert
from txgrade.records.lateness import with_lateness
from txgrade.records.ledger import GradebookError
from txgrade.records.result import Result, TaskResult
from txgrade.records.tables import ANSWERS, ASSIGNMENTS, RESULTS, REVIEWS, RUBRIC
from txgrade.text import plural, printable

LINE = re.compile(r"(?:^|(?<=\s))([-−+]?\d+(?:[.,]\d+)?) points?: ")  # begins a line of an author's rubric


@dataclass(frozen=True)
class RubricItem:
    """A reason to give or take points, which every review that names it shares; its newest version counts."""

    task: str
    number: int  # counts from 1 in each task
    version: int  # the row; a later version has a higher one
    points: int | float  # negative to take points off
    text: str  # empty: deleted


@dataclass(frozen=True)
class Review:
    """Points that a person gave for one answer, in every submission that holds it or in one submission only."""

    assignment: str  # its name
    task: str
    answer_hash: str
    submission: str | None
    points: int | float  # those of the items and `extra`, at least 0
    comment: str
    by: str
    time: str
    id: int = 0  # a later review has a higher one
    extra: int | float = 0  # points besides those of the items
    items: tuple[RubricItem, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """What the learner reads: the items, then the lines of the comment."""
        items = [f"{item.text} ({item.points:+g})" for item in self.items]
        return (*items, *(line for line in self.comment.splitlines() if line.strip()))


class Superseded(GradebookError):
    """Somebody else has marked the answer since it was shown."""

    def __init__(self, review: Review):
        comment = f": {review.comment}" if review.comment else ""
        super().__init__(f"{review.by or 'somebody'} gave {plural(review.points, 'point')} meanwhile{comment}")
        self.review = review


@dataclass(frozen=True)
class WrittenAnswer:
    """A written answer, with everyone who gave exactly this one."""

    task: str
    title: str
    answer_hash: str
    answer: str
    max_points: int | float
    prompt: str
    rubric: str
    submissions: tuple[str, ...]
    review: Review | None = None  # the newest for everybody with this answer
    waits: bool = True  # for a person, in at least one of the submissions


class Gradebook(Grades):
    """The ledger and what is in it; use it in a `with` block.

    With `create` (a grading run) the file is made where it is missing, and no other run can use it for the length of
    the block. Without, it has to exist. People may write reviews at any time.

    Raises:
        GradebookError: no such file, in use, damaged, or not a gradebook of this version.
    """

    def __enter__(self) -> "Gradebook":
        return self

    def review(
        self,
        task: str,
        answer_hash: str,
        points: int | float,
        comment: str = "",
        by: str = "",
        *,
        items: Iterable[int] = (),
        submission: str | None = None,
        assignment: str | None = None,
        after: int | None = None,
    ) -> None:
        """Give points for an answer, instead of those that it has, in every submission that holds exactly this answer.

        With `items`, numbers of rubric items, `points` are what is given besides theirs, or taken off if negative.
        With `submission` the review is for this one only, and overrides one for all. It holds in each version of an
        assignment, by default of the one graded last. Earlier reviews are kept; the newest counts. `after` is the id
        of the newest review that the person has seen, 0 if none: if there is another since, nothing is written.

        Raises:
            GradebookError: nobody gave this answer, there is no such item, or the points are not within the task's.
            Superseded: another person has marked it since.
            Busy: others wrote for too long.
        """
        assignment, items = assignment or self.assignment_name(), tuple(items)
        comment, by = printable(comment), printable(by)  # half of a character can't be written
        with self.transaction(write=True) as connection:
            self._check_review(connection, assignment, task, answer_hash, submission, points, items)
            earlier = self._reviews(connection, assignment, {answer_hash}, submission)
            last = next((review for review in reversed(earlier) if review.task == task), None)
            if last is not None and after is not None and last.id != after:
                mine = (points, comment, by, items)
                if (last.extra, last.comment, last.by, tuple(item.number for item in last.items)) == mine:
                    return  # sent twice
                raise Superseded(last)
            insert(
                connection,
                REVIEWS,
                assignment=assignment,
                task=task,
                answer_hash=answer_hash,
                submission=submission,
                points=points,
                comment=comment,
                by=by,
                items=as_json(items),
            )

    def _check_review(
        self,
        connection: sql.Connection,
        assignment: str,
        task: str,
        answer_hash: str,
        submission: str | None,
        points: int | float,
        items: tuple[int, ...],
    ) -> None:
        conditions = [ASSIGNMENTS.c.name == assignment, ANSWERS.c.task == task, ANSWERS.c.answer_hash == answer_hash]
        conditions += [RESULTS.c.submission == submission] * (submission is not None)
        query = (
            sql.select(ANSWERS.c.max_points)
            .join(RESULTS, RESULTS.c.id == ANSWERS.c.result)
            .join(ASSIGNMENTS, ASSIGNMENTS.c.hash == RESULTS.c.assignment_hash)
            .where(*conditions)
        )
        max_points = connection.execute(query.order_by(ANSWERS.c.result.desc())).scalars().first()
        if max_points is None:
            raise GradebookError(f"no submission in {self.path} has this answer to task {task!r}")
        lowest = -max_points if items else 0
        if isinstance(points, bool) or not lowest <= points <= max_points:  # false for NaN as well
            raise GradebookError(f"{plural(points, 'point')} for task {task!r}: give {lowest:g} to {max_points:g}")
        if unknown := set(items) - {item.number for item in self._rubric(connection, assignment) if item.task == task}:
            raise GradebookError(f"task {task!r} has no rubric item {min(unknown)} (any more)")

    # The rubric

    def rubric(self, task: str) -> list[RubricItem]:
        """Return the items of a task, of the assignment graded last, in the order in which they were written."""
        name = self.assignment_name()
        with self.transaction() as connection:
            return [item for item in self._rubric(connection, name) if item.task == task]

    def _rubric(self, connection: sql.Connection, assignment: str) -> list[RubricItem]:
        newest = sql.select(sql.func.max(RUBRIC.c.id)).where(RUBRIC.c.assignment == assignment)
        newest = newest.group_by(RUBRIC.c.task, RUBRIC.c.item)
        query = sql.select(RUBRIC).where(RUBRIC.c.id.in_(newest)).order_by(RUBRIC.c.task, RUBRIC.c.item)
        rows = connection.execute(query)
        return [RubricItem(row.task, row.item, row.id, row.points, row.text) for row in rows if row.text]

    def write_item(
        self,
        task: str,
        points: int | float,
        text: str,
        by: str = "",
        *,
        number: int | None = None,
        version: int | None = None,
    ) -> int:
        """Add a rubric item, or change one in every review that names it; an empty text deletes it. Return its number.

        To add one that is there already adds nothing.
        `version` is that of the item which the person has seen.

        Raises:
            GradebookError: no text, points that are no number or beyond the task's, or somebody else changed it.
        """
        text, assignment = " ".join(text.split()), self.assignment_name()
        tasks = {graded["id"]: graded for graded in self._assignment(self._last_assignment()).get("tasks", ())}
        if task not in tasks:
            raise GradebookError(f"no task {task!r}; there are {', '.join(tasks)}")
        most = tasks[task]["points"]
        if not -most <= points <= most:
            raise GradebookError(f"{points:g} for a rubric item of task {task!r}: give {-most:g} to {most:g}")
        if number is None and not text:
            raise GradebookError("a rubric item needs words: the learner's page shows them")
        with self.transaction(write=True) as connection:
            same = (RUBRIC.c.assignment == assignment, RUBRIC.c.task == task)
            rows = list(connection.execute(sql.select(RUBRIC).where(*same).order_by(RUBRIC.c.id)))
            if number is None:
                newest = {row.item: (row.points, row.text) for row in rows}
                if equal := [item for item, words in newest.items() if words == (points, text)]:
                    return equal[0]
                number = 1 + max(newest, default=0)
            else:
                last = next((row for row in reversed(rows) if row.item == number), None)
                if last is None or version is not None and version != last.id:
                    now = f"“{last.text}” ({last.points:+g})" if last and last.text else "deleted"
                    raise GradebookError(f"the rubric item was changed meanwhile: it is {now} now")
            values = {"assignment": assignment, "task": task, "item": number, "points": points, "text": text, "by": by}
            insert(connection, RUBRIC, **values)
        return number

    def take_over_rubrics(self) -> None:
        """Make items of the lines in the author's rubrics, each once: a deleted or changed item doesn't come back."""
        with self.transaction(write=True) as connection:
            query = sql.select(RUBRIC).where(RUBRIC.c.assignment == self.assignment_name())
            present = {(row.task, row.points, row.text) for row in connection.execute(query)}
            for task in self._assignment(self._last_assignment()).get("tasks", ()):
                for points, text in rubric_lines(task["rubric"]):
                    if (task["id"], points, text) not in present and abs(points) <= task["points"]:
                        self.write_item(task["id"], points, text)

    def override(
        self, submission: str, task: str, points: int | float, reason: str, by: str = "", also: Iterable[str] = ()
    ) -> None:
        """Give one submission other points for a task, with a reason for its page, as long as its answer is the same.

        `also` are others with this answer, which get the same.

        Raises:
            GradebookError: no such submission or task, no reason, or points that are not within the task's.
        """
        if not reason.strip():
            raise GradebookError("say why with --reason TEXT: the learner's page shows it")
        submission = self.submission_named(submission)
        results = {result.submission: result for result in self.latest()}
        if submission not in results:
            raise GradebookError(self.nobody(submission))
        tasks = {task_result.id: task_result for task_result in results[submission].tasks}
        if task not in tasks:
            raise GradebookError(f"{submission} has no task {task!r}; it has {', '.join(tasks) or 'none: not graded'}")
        with self.transaction(write=True):
            for name in (submission, *also):
                self.review(task, tasks[task].answer_hash, points, reason, by, submission=name)

    def latest(self, assignment_hash: str | None = None) -> list[Result]:
        """Return the newest grade of each submission, by name, with reviews; by default of the last assignment."""
        return self.all_with_reviews(self.newest(assignment_hash))

    def reviews(self, task: str, answer_hash: str, result: Result | None = None) -> list[Review]:
        """Return all reviews of an answer, oldest first: the last counts.

        They are of the assignment that was graded last; with a result, of its assignment, and at the end those of this
        submission only.
        """
        name = self.assignment_name(result.assignment_hash if result else None)
        with self.transaction() as connection:
            reviews = self._reviews(connection, name, {answer_hash}, result.submission if result else None)
        return [review for review in reviews if review.task == task]

    def with_reviews(self, result: Result) -> Result:
        """Return a result with the points that people gave for its answers, and its late penalty worked out anew."""
        return self.all_with_reviews([result])[0]

    def all_with_reviews(self, results: list[Result]) -> list[Result]:
        """Return results of one assignment, each `with_reviews`."""
        if not results:
            return []
        name = self.assignment_name(results[0].assignment_hash)
        hashes = {task.answer_hash for task in results[0].tasks} if len(results) == 1 else None
        with self.transaction() as connection:
            reviews = self._reviews(connection, name, hashes)
        newest = {(review.task, review.answer_hash, review.submission): review for review in reviews}
        due = self._assignment(results[0].assignment_hash).get("due") if newest else None
        return [_with(result, newest, due) for result in results]

    def _reviews(
        self, connection: sql.Connection, assignment: str, hashes: set[str] | None = None, submission: str | None = ""
    ) -> list[Review]:
        """Return the reviews of these answers, by default of all: for everybody, then those for one submission.

        The latter are of a given submission, of none (None), or of all ('').
        """
        conditions = [REVIEWS.c.assignment == assignment]
        conditions += [REVIEWS.c.answer_hash.in_(hashes)] if hashes is not None else []
        if submission != "":
            conditions.append(sql.or_(REVIEWS.c.submission.is_(None), REVIEWS.c.submission == submission))
        query = sql.select(REVIEWS).where(*conditions).order_by(REVIEWS.c.submission.is_not(None), REVIEWS.c.id)
        rubric = {(item.task, item.number): item for item in self._rubric(connection, assignment)}
        reviews = []
        for row in connection.execute(query):
            numbers = [(row.task, number) for number in json.loads(row.items)]
            items = tuple(rubric[number] for number in numbers if number in rubric)  # the others are deleted
            points = max(0, row.points + sum(item.points for item in items))
            about = (row.assignment, row.task, row.answer_hash, row.submission)
            reviews.append(Review(*about, points, row.comment, row.by, row.time, row.id, row.points, items))
        return reviews

    def pending(self, task: str | None = None) -> list[WrittenAnswer]:
        """Return the written answers that wait for points, each text once, in the order of the tasks."""
        return [answer for answer in self.written(task) if answer.waits]

    def written(self, task: str | None = None) -> list[WrittenAnswer]:
        """Return the written answers, each text once, in the order of the tasks."""
        hash = self._last_assignment()
        graded_tasks = {graded_task["id"]: graded_task for graded_task in self._assignment(hash).get("tasks", ())}
        with self.transaction() as connection:
            reviews = self._reviews(connection, self.assignment_name(hash))
        newest = {(review.task, review.answer_hash, review.submission): review for review in reviews}
        holders: dict[tuple[str, str], list[tuple[str, TaskResult]]] = {}
        for result in self.newest(hash):
            for answered in result.tasks:
                if answered.kind == "written" and task in (None, answered.id):
                    holders.setdefault((answered.id, answered.answer_hash), []).append((result.submission, answered))
        order = {id: index for index, id in enumerate(graded_tasks)}
        written = [
            WrittenAnswer(
                id,
                group[0][1].title,
                answer_hash,
                group[0][1].answer,
                group[0][1].max_points,
                graded_tasks.get(id, {}).get("prompt", ""),
                graded_tasks.get(id, {}).get("rubric", ""),
                tuple(name for name, _ in group),
                review := newest.get((id, answer_hash, None)),
                review is None
                and any(task.verdict == "pending" and (id, answer_hash, name) not in newest for name, task in group),
            )
            for (id, answer_hash), group in holders.items()
        ]
        return sorted(written, key=lambda answer: (order.get(answer.task, len(order)), answer.submissions))


def rubric_lines(rubric: str) -> list[tuple[int | float, str]]:
    """Return points and words of each line of an author's rubric, such as `1 point: a table of three sizes.`"""
    _, *parts = LINE.split(" ".join(rubric.split()))
    lines = []
    for number, words in zip(parts[::2], parts[1::2], strict=True):
        points, words = float(number.replace(",", ".").replace("−", "-")), words.strip(" -*.;")
        if words:
            lines.append((int(points) if points.is_integer() else points, words[0].upper() + words[1:]))
    return lines


def _with(result: Result, reviews: dict[tuple[str, str, str | None], Review], due: dict | None) -> Result:
    newest = {}
    for task in result.tasks:
        for whose in (None, result.submission):
            if (key := (task.id, task.answer_hash, whose)) in reviews:
                newest[task.id] = reviews[key]
    if not newest:
        return result
    tasks = tuple(_reviewed(task, newest[task.id]) if task.id in newest else task for task in result.tasks)
    notes = tuple(replace(note, review=False) if note.task in newest else note for note in result.notes)
    return with_lateness(replace(result, tasks=tasks, notes=notes), due)


def _reviewed(task: TaskResult, review: Review) -> TaskResult:
    points = min(review.points, task.max_points)  # a task's points may have been lowered since
    return replace(task, verdict="reviewed", points=points, lines=review.lines or task.lines, matrices=None, parts=())
