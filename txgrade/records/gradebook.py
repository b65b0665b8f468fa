"""The gradebook: a ledger in one SQLite file that tells when, from what and how every grade came about.

`Ledger` is the file, `Grades` what the grader wrote into it. This module adds reviews: points that people gave for
written answers, or instead of the grader's.
"""

from dataclasses import dataclass, replace

import sqlalchemy as sql

from txgrade.records.grades import Grades, insert
from txgrade.records.lateness import with_lateness
from txgrade.records.ledger import GradebookError
from txgrade.records.result import Result, TaskResult
from txgrade.records.tables import ANSWERS, ASSIGNMENTS, RESULTS, REVIEWS
from txgrade.text import plural


@dataclass(frozen=True)
class Review:
    """Points that a person gave for one answer, in every submission that holds it or in one submission only."""

    assignment: str  # its name
    task: str
    answer_hash: str
    submission: str | None
    points: int | float
    comment: str
    by: str
    time: str


@dataclass(frozen=True)
class Pending:
    """A written answer that waits for a person, with everyone who gave exactly this one."""

    task: str
    title: str
    answer_hash: str
    answer: str
    max_points: int | float
    prompt: str
    rubric: str
    submissions: tuple[str, ...]


class Gradebook(Grades):
    """The ledger and what is in it; use it in a `with` block.

    With `create` (a grading run) the file is made where it is missing, and no other process can write to it for the
    length of the block. Without, it has to exist; it is locked from the first review that is written.

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
        submission: str | None = None,
        assignment: str | None = None,
    ) -> None:
        """Give points for an answer, instead of those that it has, in every submission that holds exactly this answer.

        With `submission` the review is for this one only, and overrides one for all. It holds in each version of an
        assignment, by default of the one graded last. Earlier reviews are kept; the newest counts.

        Raises:
            GradebookError: nobody gave this answer, or the points are not within the task's.
        """
        assignment = assignment or self._name(self._last_assignment())
        conditions = [ASSIGNMENTS.c.name == assignment, ANSWERS.c.task == task, ANSWERS.c.answer_hash == answer_hash]
        conditions += [RESULTS.c.submission == submission] * (submission is not None)
        query = (
            sql.select(ANSWERS.c.max_points)
            .join(RESULTS, RESULTS.c.id == ANSWERS.c.result)
            .join(ASSIGNMENTS, ASSIGNMENTS.c.hash == RESULTS.c.assignment_hash)
            .where(*conditions)
        )
        with self._transaction() as connection:
            max_points = connection.execute(query.order_by(ANSWERS.c.result.desc())).scalars().first()
        if max_points is None:
            raise GradebookError(f"no submission in {self.path} has this answer to task {task!r}")
        if isinstance(points, bool) or not 0 <= points <= max_points:  # false for NaN as well
            raise GradebookError(f"{plural(points, 'point')} for task {task!r}: give 0 to {max_points:g}")
        with self._transaction(write=True) as connection:
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
            )

    def override(self, submission: str, task: str, points: int | float, reason: str, by: str = "") -> None:
        """Give one submission other points for a task, with a reason for its page, as long as its answer is the same.

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
        self.review(task, tasks[task].answer_hash, points, reason, by, submission=submission)

    def latest(self, assignment_hash: str | None = None) -> list[Result]:
        """Return the newest grade of each submission, by name, with reviews; by default of the last assignment."""
        return [self.with_reviews(result) for result in self.newest(assignment_hash)]

    def reviews(self, task: str, answer_hash: str, result: Result | None = None) -> list[Review]:
        """Return all reviews of an answer, oldest first: the last counts.

        They are of the assignment that was graded last; with a result, of its assignment, and at the end those of this
        submission only.
        """
        hash = result.assignment_hash if result else self._last_assignment()
        reviews = self._reviews(self._name(hash), {answer_hash}, result.submission if result else None)
        return [review for review in reviews if review.task == task]

    def with_reviews(self, result: Result) -> Result:
        """Return a result with the points that people gave for its answers, and its late penalty worked out anew."""
        hashes = {task.answer_hash for task in result.tasks}
        reviews = self._reviews(self._name(result.assignment_hash), hashes, result.submission)
        by_answer = {(review.task, review.answer_hash): review for review in reviews}
        newest = {task.id: by_answer[key] for task in result.tasks if (key := (task.id, task.answer_hash)) in by_answer}
        if not newest:
            return result
        tasks = tuple(_reviewed(task, newest[task.id]) if task.id in newest else task for task in result.tasks)
        notes = tuple(replace(note, review=False) if note.task in newest else note for note in result.notes)
        due = self._assignment(result.assignment_hash).get("due")
        return with_lateness(replace(result, tasks=tasks, notes=notes), due)

    def _reviews(self, assignment: str, hashes: set[str], submission: str | None) -> list[Review]:
        query = sql.select(REVIEWS).where(
            REVIEWS.c.assignment == assignment,
            REVIEWS.c.answer_hash.in_(hashes),
            sql.or_(REVIEWS.c.submission.is_(None), REVIEWS.c.submission == submission),
        )
        with self._transaction() as connection:
            rows = connection.execute(query.order_by(REVIEWS.c.submission.is_not(None), REVIEWS.c.id))
            return [
                Review(
                    row.assignment, row.task, row.answer_hash, row.submission, row.points, row.comment, row.by, row.time
                )
                for row in rows
            ]

    def pending(self, task: str | None = None) -> list[Pending]:
        """Return the written answers that wait for points, each text once, in the order of the tasks."""
        hash = self._last_assignment()
        graded_tasks = {graded_task["id"]: graded_task for graded_task in self._assignment(hash).get("tasks", ())}
        holders: dict[tuple[str, str], list[tuple[str, TaskResult]]] = {}
        for result in self.latest(hash):
            for answered in result.tasks:
                if answered.verdict == "pending" and task in (None, answered.id):
                    holders.setdefault((answered.id, answered.answer_hash), []).append((result.submission, answered))
        order = {id: index for index, id in enumerate(graded_tasks)}
        pending = [
            Pending(
                id,
                group[0][1].title,
                answer_hash,
                group[0][1].answer,
                group[0][1].max_points,
                graded_tasks.get(id, {}).get("prompt", ""),
                graded_tasks.get(id, {}).get("rubric", ""),
                tuple(name for name, _ in group),
            )
            for (id, answer_hash), group in holders.items()
        ]
        return sorted(pending, key=lambda answer: (order.get(answer.task, len(order)), answer.submissions))


def _reviewed(task: TaskResult, review: Review) -> TaskResult:
    lines = tuple(line for line in review.comment.splitlines() if line.strip())
    points = min(review.points, task.max_points)  # a task's points may have been lowered since
    return replace(task, verdict="reviewed", points=points, lines=lines or task.lines, matrices=None, parts=())
