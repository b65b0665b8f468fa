"""The grades that the grader gave: runs, the seeds that were drawn for them, and every grade of each submission.

Rows are only added; triggers in the file refuse everything else. A submission is one transaction, so the file is sound
whenever its writer dies.
"""

import json
import secrets
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sql

from txgrade.records.ledger import GradebookError, Ledger
from txgrade.records.people import person, read_name, turned
from txgrade.records.result import Result, result_from
from txgrade.records.tables import ANSWERS, ASSIGNMENTS, FINISHED, MARKS, RESULTS, RUNS, SEEDS
from txgrade.seeds import GRADING_SEEDS, PUBLIC_SEEDS


@dataclass(frozen=True)
class LedgerEntry:
    """One graded submission as it was written down; reviews are not in `result`."""

    id: int
    run: int
    time: str
    path: str  # the assignment's
    result: Result


class Grades(Ledger):
    """The grades in the ledger, as the grader gave them: `Gradebook` adds what people have changed."""

    _newest: tuple[str, int | None, list[Result]] = ("", None, [])  # read last: assignment, newest row, results

    # What a grading run writes

    def seeds(self, assignment_hash: str, count: int, fresh: bool = True) -> tuple[int, ...]:
        """Return the seeds to grade on: those drawn last, so that a run which was stopped goes on with them.

        With `fresh` they are drawn anew once anybody may have read a page about them, that is, after the end of a run
        which graded on them: a page says what was expected, and a later answer could be made from that.
        """
        query = sql.select(SEEDS.c.seeds).where(SEEDS.c.assignment_hash == assignment_hash).order_by(SEEDS.c.id)
        with self.transaction() as connection:
            rows = list(connection.execute(query).scalars())
            read = connection.execute(
                sql.select(RESULTS.c.id)
                .join(FINISHED, FINISHED.c.run >= RESULTS.c.run)
                .where(RESULTS.c.seeds.in_(rows[-1:]))
            ).first()
        last = tuple(json.loads(rows[-1])) if rows else ()
        if len(last) == count and not (fresh and read):
            return last
        used = {seed for row in rows for seed in json.loads(row)}
        drawn: list[int] = []
        while len(drawn) < count:
            seed = PUBLIC_SEEDS + secrets.randbelow(GRADING_SEEDS - PUBLIC_SEEDS)
            drawn += [seed] * (seed not in used and seed not in drawn)
        with self.transaction(write=True) as connection:
            insert(connection, SEEDS, assignment_hash=assignment_hash, seeds=as_json(drawn))
        return tuple(drawn)

    def start_run(
        self,
        assignment: Any,
        environment: str,
        isolation: str,
        seeds: tuple[int, ...],
        cells: dict[str, list[str]] | None = None,
    ) -> int:
        """Write down that a run begins, and by which `Assignment` it grades; return the run's number.

        `cells` are the hashes of its released cells, by id.
        """
        source = assignment.path.read_text(encoding="utf-8") if assignment.path.is_file() else ""
        tasks = [asdict(task) for task in assignment.tasks]
        data = {
            "name": assignment.name,
            "title": assignment.title,
            "tasks": tasks,
            "due": assignment.due,
            "source": source,
            "cells": cells or {},
        }
        with self.transaction(write=True) as connection:
            same = sql.select(ASSIGNMENTS.c.hash).where(ASSIGNMENTS.c.hash == assignment.hash)
            if connection.execute(same).first() is None:
                insert(connection, ASSIGNMENTS, hash=assignment.hash, name=assignment.name, data=as_json(data))
            return insert(
                connection,
                RUNS,
                assignment_hash=assignment.hash,
                path=read_name(str(assignment.path.absolute())),
                environment=environment,
                isolation=isolation,
                seeds=as_json(seeds),
            )

    def earlier_cells(self, assignment: Any) -> set[tuple[str, str]]:
        """Return id and hash of the released cells in all graded versions of an `Assignment`."""
        with self.transaction() as connection:
            query = sql.select(ASSIGNMENTS.c.data).where(ASSIGNMENTS.c.name == assignment.name)
            versions = [json.loads(data) for data in connection.execute(query).scalars()]
        cells = (cell for version in versions for cell in version.get("cells", {}).items())
        return {(id, hash) for id, hashes in cells for hash in hashes}

    def as_graded(self, assignment: Any) -> Any:
        """Return the `Assignment` with what its reference said of it in an earlier run; None if no run got so far."""
        data = self._assignment(assignment.hash)
        if not data:
            return None
        stored = {task["id"]: task for task in data["tasks"]}
        tasks = tuple(
            replace(task, kind=stored[task.id]["kind"], forbidden=tuple(stored[task.id]["forbidden"]))
            for task in assignment.tasks
        )
        return replace(assignment, tasks=tasks, due=data["due"])

    def finish_run(self, run: int, marks_read: str | None = None) -> None:
        """Write down that a run has ended: from now on anybody may have read its pages.

        They show the marks given until `marks_read`; by default until now.
        """
        with self.transaction(write=True) as connection:
            insert(connection, FINISHED, run=run, time=marks_read or now())

    def add(self, run: int, result: Result) -> None:
        """Write down one graded submission, whole or not at all."""
        with self.transaction(write=True) as connection:
            id = insert(
                connection,
                RESULTS,
                run=run,
                submission=result.submission,
                submission_hash=result.submission_hash,
                assignment_hash=result.assignment_hash,
                environment=result.environment,
                isolation=result.isolation,
                seeds=as_json(result.seeds),
                status=result.status,
                score=result.score,
                max_score=result.max_score,
                data=as_json(result.data()),
            )
            answers = [
                {"result": id, "task": task.id, "answer_hash": task.answer_hash, "max_points": task.max_points}
                for task in result.tasks
            ]
            if answers:
                connection.execute(sql.insert(ANSWERS), answers)

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
        """Return the grade of exactly this file under exactly these conditions, without reviews; None if there is none.

        `seeds` are the seeds themselves, or only how many. What could not be read has an empty hash.
        """
        conditions = {
            "submission": submission,
            "submission_hash": submission_hash,
            "assignment_hash": assignment_hash,
            "environment": environment,
            "isolation": isolation,
        }
        same = [RESULTS.c[name] == value for name, value in conditions.items()]
        same.append(
            sql.func.json_array_length(RESULTS.c.seeds) == seeds
            if isinstance(seeds, int)
            else RESULTS.c.seeds == as_json(seeds)
        )
        query = sql.select(RESULTS.c.data).where(*same)
        with self.transaction() as connection:
            data = connection.execute(query.order_by(RESULTS.c.id.desc())).scalars().first()
        return None if data is None else result_from(json.loads(data))

    def newest(self, assignment_hash: str | None = None) -> list[Result]:
        """Return the newest grade of each submission, by name, without reviews; by default of the last assignment."""
        assignment_hash = assignment_hash or self._last_assignment()
        graded = RESULTS.c.assignment_hash == assignment_hash
        last = sql.select(sql.func.max(RESULTS.c.id)).where(graded).group_by(RESULTS.c.submission)
        with self.transaction() as connection:
            version = connection.execute(sql.select(sql.func.max(RESULTS.c.id)).where(graded)).scalar()
            if self._newest[:2] != (assignment_hash, version):
                rows = connection.execute(sql.select(RESULTS.c.data).where(RESULTS.c.id.in_(last))).scalars()
                results = sorted((result_from(json.loads(data)) for data in rows), key=lambda result: result.submission)
                self._newest = (assignment_hash, version, results)
            return list(self._newest[2])

    def history(self, submission: str) -> list[LedgerEntry]:
        """Return all entries of a submission, oldest first."""
        query = (
            sql.select(RESULTS.c.id, RESULTS.c.run, RESULTS.c.time, RUNS.c.path, RESULTS.c.data)
            .join(RUNS, RUNS.c.id == RESULTS.c.run)
            .where(RESULTS.c.submission == submission)
            .order_by(RESULTS.c.id)
        )
        with self.transaction() as connection:
            return [
                LedgerEntry(row.id, row.run, row.time, row.path, result_from(json.loads(row.data)))
                for row in connection.execute(query)
            ]

    def names(self) -> list[str]:
        """Return the names of all submissions that have an entry."""
        with self.transaction() as connection:
            query = sql.select(RESULTS.c.submission).distinct().order_by(RESULTS.c.submission)
            return list(connection.execute(query).scalars())

    def first_started(self) -> str:
        """Return when the first run began; "" if there was none."""
        with self.transaction() as connection:
            return connection.execute(sql.select(sql.func.min(RUNS.c.time))).scalar() or ""

    def last_finished(self) -> str:
        """Return until when the pages of the last run that came to its end show what people gave."""
        with self.transaction() as connection:
            return connection.execute(sql.select(sql.func.max(FINISHED.c.time))).scalar() or ""

    def last_marked(self) -> str:
        """Return when a person last gave points, changed a rubric or answered a request; '' if nobody has."""
        name = self.assignment_name()
        with self.transaction() as connection:
            latest = (sql.select(sql.func.max(table.c.time)).where(table.c.assignment == name) for table in MARKS)
            return max(connection.execute(query).scalar() or "" for query in latest)

    def submission_named(self, name: str) -> str:
        """Return the submission of a name: its own, or what the roster knows its learner by, as an address or a login.

        Raises:
            GradebookError: there is none, or there are several.
        """
        names = self.names()
        if name in names:
            return name
        wanted, results = {person(name), person(turned(name))}, self.newest()
        named = {result.submission for result in results if person(result.submission) in wanted}
        named = named or {result.submission for result in results if wanted & {person(result.name), *result.known_as}}
        if len(named) == 1:
            return named.pop()
        if named:
            several = ", ".join(sorted(named)[:5])
            raise GradebookError(f"{name!r} means several submissions: {several}; give one of these names")
        raise GradebookError(self.nobody(name))

    def title(self) -> str:
        """Return the title of the assignment that was graded last."""
        return self._assignment(self._last_assignment()).get("title", "")

    def task_data(self, id: str) -> dict:
        """Return what is known of a task of the assignment that was graded last: prompt, rubric, points; {} if none."""
        tasks = self._assignment(self._last_assignment()).get("tasks", ())
        return next((task for task in tasks if task["id"] == id), {})

    def nobody(self, name: str) -> str:
        """Return a sentence that says that there is no submission of a name, and which there are."""
        names = self.names()
        shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        return f"no submission {name!r} in {self.path}; it has {shown or 'none yet'}"

    def _last_assignment(self) -> str:
        with self.transaction() as connection:
            query = sql.select(RUNS.c.assignment_hash).order_by(RUNS.c.id.desc())
            return connection.execute(query).scalars().first() or ""

    def assignment_name(self, hash: str | None = None) -> str:
        """Return an assignment's name, by default of the last one: it stays when the assignment is changed."""
        hash = self._last_assignment() if hash is None else hash
        with self.transaction() as connection:
            query = sql.select(ASSIGNMENTS.c.name).where(ASSIGNMENTS.c.hash == hash)
            return connection.execute(query).scalars().first() or ""

    def _assignment(self, hash: str) -> dict:
        with self.transaction() as connection:
            query = sql.select(ASSIGNMENTS.c.data).where(ASSIGNMENTS.c.hash == hash)
            data = connection.execute(query).scalars().first()
        return json.loads(data) if data else {}


def now() -> str:
    """Return the time as the gradebook has it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def insert(connection: sql.Connection, table: sql.Table, **values: Any) -> Any:
    """Write down a row, with the time; return its key."""
    key = connection.execute(sql.insert(table).values({"time": now()} | values)).inserted_primary_key
    assert key is not None
    return key[0]


def as_json(data: Any) -> str:
    """Return data as JSON in ASCII, so that any text of a submission can be written."""
    return json.dumps(data, separators=(",", ":"))
