"""The gradebook: a ledger in one SQLite file that says of every grade when, from what and how it came about.

Rows are only ever added; triggers in the file refuse everything else. A submission is one transaction, so the file is
sound whenever its writer dies. One process writes at a time; reading is always possible.
"""

import json
import secrets
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sql

from txlib.grading.records.lateness import late
from txlib.grading.records.ledger import GradebookError, Ledger
from txlib.grading.records.people import person
from txlib.grading.records.result import Result, TaskResult, result_from
from txlib.grading.records.tables import (
    ANSWERS,
    ASSIGNMENTS,
    FINISHED,
    RESULTS,
    REVIEWS,
    RUNS,
    SEEDS,
)


@dataclass(frozen=True)
class Review:
    """What a person gave for one answer: whoever handed it in, or one submission alone."""

    assignment: str  # its name
    task: str
    answer_hash: str
    submission: str | None
    points: int | float
    comment: str
    by: str
    time: str


@dataclass(frozen=True)
class LedgerEntry:
    """One graded submission as it was written down; reviews are not in `result`."""

    id: int
    run: int
    time: str
    path: str  # the assignment's
    result: Result


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


class Gradebook(Ledger):
    """The ledger and what is in it; use it in a `with` block.

    With `create` (a grading run) the file is made where it is missing, and no other process can write to it for the
    length of the block. Without, it has to exist; it is locked from the first review that is written.

    Raises:
        GradebookError: no such file, in use, damaged, or not a gradebook of this version.
    """

    def __enter__(self) -> "Gradebook":
        return self

    # What a grading run writes

    def seeds(self, assignment_hash: str, count: int, fresh: bool = True) -> tuple[int, ...]:
        """The seeds to grade on: those drawn last, so that a run which was stopped goes on with them.

        With `fresh` they are drawn anew once anybody may have read a page about them, that is, after the end of a run
        which graded on them: a page says what was expected, and an answer handed in later could be made of that.
        """
        query = sql.select(SEEDS.c.seeds).where(SEEDS.c.assignment_hash == assignment_hash).order_by(SEEDS.c.id)
        with self._transaction() as connection:
            known = list(connection.execute(query).scalars())
            read = connection.execute(
                sql.select(RESULTS.c.id)
                .join(FINISHED, FINISHED.c.run >= RESULTS.c.run)
                .where(RESULTS.c.seeds.in_(known[-1:]))
            ).first()
        last = tuple(json.loads(known[-1])) if known else ()
        if len(last) == count and not (fresh and read):
            return last
        used = {seed for row in known for seed in json.loads(row)}
        drawn: list[int] = []
        while len(drawn) < count:
            seed = secrets.randbelow(2**31)
            drawn += [seed] * (seed not in used and seed not in drawn)
        with self._transaction(write=True) as connection:
            connection.execute(
                sql.insert(SEEDS).values(time=_now(), assignment_hash=assignment_hash, seeds=_json(drawn))
            )
        return tuple(drawn)

    def start_run(self, assignment: Any, environment: str, isolation: str, seeds: tuple[int, ...]) -> int:
        """Write down that a run begins, and by which `Assignment` it grades; returns the run's number."""
        source = assignment.path.read_text(encoding="utf-8") if assignment.path.is_file() else ""
        tasks = [asdict(task) for task in assignment.tasks]
        data = {
            "name": assignment.name,
            "title": assignment.title,
            "tasks": tasks,
            "due": assignment.due,
            "source": source,
        }
        with self._transaction(write=True) as connection:
            known = sql.select(ASSIGNMENTS.c.hash).where(ASSIGNMENTS.c.hash == assignment.hash)
            if connection.execute(known).first() is None:
                connection.execute(
                    sql.insert(ASSIGNMENTS).values(
                        hash=assignment.hash, name=assignment.name, time=_now(), data=_json(data)
                    )
                )
            return connection.execute(
                sql.insert(RUNS).values(
                    time=_now(),
                    assignment_hash=assignment.hash,
                    path=str(assignment.path.absolute()),
                    environment=environment,
                    isolation=isolation,
                    seeds=_json(seeds),
                )
            ).inserted_primary_key[0]

    def finish_run(self, run: int) -> None:
        """Write down that a run has come to its end: from now on its pages may be in anybody's hands."""
        with self._transaction(write=True) as connection:
            connection.execute(sql.insert(FINISHED).values(run=run, time=_now()))

    def add(self, run: int, result: Result) -> None:
        """Write down one graded submission, whole or not at all."""
        with self._transaction(write=True) as connection:
            id = connection.execute(
                sql.insert(RESULTS).values(
                    run=run,
                    time=_now(),
                    submission=result.submission,
                    submission_hash=result.submission_hash,
                    assignment_hash=result.assignment_hash,
                    environment=result.environment,
                    isolation=result.isolation,
                    seeds=_json(result.seeds),
                    status=result.status,
                    score=result.score,
                    max_score=result.max_score,
                    data=_json(result.data()),
                )
            ).inserted_primary_key[0]
            answers = [
                {"result": id, "task": task.id, "answer_hash": task.answer_hash, "max_points": task.max_points}
                for task in result.tasks
            ]
            if answers:
                connection.execute(sql.insert(ANSWERS), answers)

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
        """Give points for an answer, instead of what it has: for every submission that holds exactly this answer.

        With `submission` it is for this one alone, and goes before one for all. It holds for the assignment of a name,
        by default the one graded last, in each of its versions. Earlier reviews are kept; the newest counts.

        Raises:
            GradebookError: nobody gave this answer, or the points are not within the task's.
        """
        assignment = assignment or self._name(self._last_assignment())
        wanted = [ASSIGNMENTS.c.name == assignment, ANSWERS.c.task == task, ANSWERS.c.answer_hash == answer_hash]
        wanted += [RESULTS.c.submission == submission] * (submission is not None)
        query = (
            sql.select(ANSWERS.c.max_points)
            .join(RESULTS, RESULTS.c.id == ANSWERS.c.result)
            .join(ASSIGNMENTS, ASSIGNMENTS.c.hash == RESULTS.c.assignment_hash)
            .where(*wanted)
        )
        with self._transaction() as connection:
            most = connection.execute(query.order_by(ANSWERS.c.result.desc())).scalars().first()
        if most is None:
            raise GradebookError(f"no submission in {self.path} has this answer to task {task!r}")
        if isinstance(points, bool) or not 0 <= points <= most:  # NaN is not either
            raise GradebookError(f"{points} points for task {task!r}: give 0 to {most:g}")
        with self._transaction(write=True) as connection:
            connection.execute(
                sql.insert(REVIEWS).values(
                    time=_now(),
                    assignment=assignment,
                    task=task,
                    answer_hash=answer_hash,
                    submission=submission,
                    points=points,
                    comment=comment,
                    by=by,
                )
            )

    def override(self, submission: str, task: str, points: int | float, reason: str, by: str = "") -> None:
        """Give one submission other points for a task, for a reason that its page says, as long as its answer stands.

        Raises:
            GradebookError: no such submission or task, no reason, or points that are not within the task's.
        """
        if not reason.strip():
            raise GradebookError("say why: --reason TEXT stands on the learner's page")
        results = {result.submission: result for result in self.latest()}
        if submission not in results:
            raise GradebookError(self.nobody(submission))
        tasks = {each.id: each for each in results[submission].tasks}
        if task not in tasks:
            raise GradebookError(f"{submission} has no task {task!r}; it has {', '.join(tasks) or 'none: not graded'}")
        self.review(task, tasks[task].answer_hash, points, reason, by, submission=submission)

    # What reports read

    def find(
        self,
        submission: str,
        submission_hash: str,
        assignment_hash: str,
        environment: str,
        seeds: int | tuple[int, ...],
        isolation: str,
    ) -> Result | None:
        """The grade of exactly this file under exactly these conditions, without reviews; None where there is none.

        `seeds` are the seeds themselves, or just how many. A file that could not be read (no hash) is never the same.
        """
        if not submission_hash:
            return None
        wanted = {
            "submission": submission,
            "submission_hash": submission_hash,
            "assignment_hash": assignment_hash,
            "environment": environment,
            "isolation": isolation,
        }
        same = [RESULTS.c[name] == value for name, value in wanted.items()]
        same.append(
            sql.func.json_array_length(RESULTS.c.seeds) == seeds
            if isinstance(seeds, int)
            else RESULTS.c.seeds == _json(seeds)
        )
        query = sql.select(RESULTS.c.data).where(*same)
        with self._transaction() as connection:
            data = connection.execute(query.order_by(RESULTS.c.id.desc())).scalars().first()
        return None if data is None else result_from(json.loads(data))

    def latest(self, assignment_hash: str | None = None) -> list[Result]:
        """The newest grade of each submission, by name, with reviews; by default of the assignment graded last."""
        assignment_hash = assignment_hash or self._last_assignment()
        newest = sql.select(sql.func.max(RESULTS.c.id)).where(RESULTS.c.assignment_hash == assignment_hash)
        query = sql.select(RESULTS.c.data).where(RESULTS.c.id.in_(newest.group_by(RESULTS.c.submission)))
        with self._transaction() as connection:
            found = [result_from(json.loads(data)) for data in connection.execute(query).scalars()]
        return [self.with_reviews(result) for result in sorted(found, key=lambda result: result.submission)]

    def history(self, submission: str) -> list[LedgerEntry]:
        """All that was ever written down about a submission, oldest first."""
        query = (
            sql.select(RESULTS.c.id, RESULTS.c.run, RESULTS.c.time, RUNS.c.path, RESULTS.c.data)
            .join(RUNS, RUNS.c.id == RESULTS.c.run)
            .where(RESULTS.c.submission == submission)
            .order_by(RESULTS.c.id)
        )
        with self._transaction() as connection:
            return [
                LedgerEntry(row.id, row.run, row.time, row.path, result_from(json.loads(row.data)))
                for row in connection.execute(query)
            ]

    def names(self) -> list[str]:
        """Every submission that has an entry."""
        with self._transaction() as connection:
            query = sql.select(RESULTS.c.submission).distinct().order_by(RESULTS.c.submission)
            return list(connection.execute(query).scalars())

    def title(self) -> str:
        """Of the assignment that was graded last."""
        return self._assignment(self._last_assignment()).get("title", "")

    def reviews(self, task: str, answer_hash: str, result: Result | None = None) -> list[Review]:
        """All reviews of an answer, oldest first: the last counts.

        They are those of the assignment that was graded last; with a result, those that hold for it: of its assignment,
        and last those of this submission alone.
        """
        hash = result.assignment_hash if result else self._last_assignment()
        found = self._reviews(self._name(hash), {answer_hash}, result.submission if result else None)
        return [review for review in found if review.task == task]

    def with_reviews(self, result: Result) -> Result:
        """A result with the points that people gave for its answers, its lateness taken off anew."""
        hashes = {task.answer_hash for task in result.tasks}
        found = self._reviews(self._name(result.assignment_hash), hashes, result.submission)
        given = {(review.task, review.answer_hash): review for review in found}
        newest = {task.id: given[key] for task in result.tasks if (key := (task.id, task.answer_hash)) in given}
        if not newest:
            return result
        tasks = tuple(_reviewed(task, newest[task.id]) if task.id in newest else task for task in result.tasks)
        notes = tuple(replace(note, review=False) if note.task in newest else note for note in result.notes)
        points = sum(task.points for task in tasks)
        penalty = round(points * self._lateness(result), 6)
        return replace(result, tasks=tasks, notes=notes, penalty=penalty, score=round(points - penalty, 6))

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
        """The written answers that wait for points, each text once, in the order of the tasks."""
        hash = self._last_assignment()
        asked = {each["id"]: each for each in self._assignment(hash).get("tasks", ())}
        holders: dict[tuple[str, str], list[tuple[str, TaskResult]]] = {}
        for result in self.latest(hash):
            for each in result.tasks:
                if each.verdict == "pending" and task in (None, each.id):
                    holders.setdefault((each.id, each.answer_hash), []).append((result.submission, each))
        order = list(asked)
        found = [
            Pending(
                id,
                held[0][1].title,
                hash,
                held[0][1].answer,
                held[0][1].max_points,
                asked.get(id, {}).get("prompt", ""),
                asked.get(id, {}).get("rubric", ""),
                tuple(name for name, _ in held),
            )
            for (id, hash), held in holders.items()
        ]
        return sorted(
            found, key=lambda each: (order.index(each.task) if each.task in order else len(order), each.submissions)
        )

    def nobody(self, name: str) -> str:
        """That there is no submission of a name, and which there are."""
        names = self.names()
        names = [each for each in names if person(each) == person(name)] or names
        some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        return f"no submission {name!r} in {self.path}; it has {some or 'none yet'}"

    # What both need

    def _last_assignment(self) -> str:
        with self._transaction() as connection:
            query = sql.select(RUNS.c.assignment_hash).order_by(RUNS.c.id.desc())
            return connection.execute(query).scalars().first() or ""

    def _name(self, hash: str) -> str:
        """Of an assignment: what stays when it is changed."""
        with self._transaction() as connection:
            query = sql.select(ASSIGNMENTS.c.name).where(ASSIGNMENTS.c.hash == hash)
            return connection.execute(query).scalars().first() or ""

    def _assignment(self, hash: str) -> dict:
        with self._transaction() as connection:
            query = sql.select(ASSIGNMENTS.c.data).where(ASSIGNMENTS.c.hash == hash)
            data = connection.execute(query).scalars().first()
        return json.loads(data) if data else {}

    def _lateness(self, result: Result) -> int | float:
        due = self._assignment(result.assignment_hash).get("due")
        if not due or not result.submitted:
            return 0
        return late(due, result.submitted)[0]


def _reviewed(task: TaskResult, review: Review) -> TaskResult:
    lines = tuple(line for line in review.comment.splitlines() if line.strip())
    points = min(review.points, task.max_points)  # a task's points may have been lowered since
    return replace(task, verdict="reviewed", points=points, lines=lines or task.lines, matrices=None, parts=())


def _json(data: Any) -> str:
    """ASCII, so that no text of a submission can fail to be written."""
    return json.dumps(data, separators=(",", ":"))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
