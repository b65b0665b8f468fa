"""What a grading run said otherwise than the run before: a line for each change, with its reason."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import sqlalchemy as sql

from txgrade.records.gradebook import Gradebook
from txgrade.records.grades import as_json, insert
from txgrade.records.result import Result
from txgrade.records.tables import PUBLISHED
from txgrade.text import minute, plural

PENALTY = "late penalty"  # what a change of it is called, instead of a task's id


@dataclass(frozen=True)
class Change:
    """Points of a submission's task that differ from what its page said before."""

    submission: str
    task: str
    old: int | float
    new: int | float
    why: str
    time: str  # UTC, ISO 8601


class Publication:
    """What a run is about to say about each submission, compared with what was said before."""

    def __init__(self, book: Gradebook, results: list[Result]):
        self._book, self._name = book, book.assignment_name()
        with book.transaction() as connection:
            newest = sql.select(sql.func.max(PUBLISHED.c.id)).where(PUBLISHED.c.assignment == self._name)
            query = sql.select(PUBLISHED).where(PUBLISHED.c.id.in_(newest.group_by(PUBLISHED.c.submission)))
            before = {row.submission: json.loads(row.data) for row in connection.execute(query)}
            query = sql.select(PUBLISHED.c.changes).where(PUBLISHED.c.assignment == self._name)
            rows = list(connection.execute(query.order_by(PUBLISHED.c.id)).scalars())
        self.earlier = [Change(**change) for row in rows for change in json.loads(row)]  # oldest first
        self._new: list[tuple[str, dict, list[Change]]] = []
        for result in results:
            if result.status == "not graded":  # the grader failed, and remembers nothing
                continue
            data = _data(result)
            old = before.get(result.submission)
            if data != old:
                self._new.append((result.submission, data, [] if old is None else list(_changes(old, data, result))))

    @property
    def changes(self) -> list[Change]:
        """The changes of this run."""
        return [change for _, _, changes in self._new for change in changes]

    def write(self, run: int) -> None:
        """Write down what the pages say, once they are written."""
        with self._book.transaction(write=True) as connection:
            for submission, data, changes in self._new:
                about = {"run": run, "assignment": self._name, "submission": submission, "data": as_json(data)}
                insert(connection, PUBLISHED, **about, changes=as_json([asdict(change) for change in changes]))


def _data(result: Result) -> dict:
    tasks = {
        task.id: {"points": None if task.verdict == "pending" else task.points}
        | ({"said": list(task.lines)} if task.verdict == "reviewed" else {})
        for task in result.tasks
    }
    return {
        "file": result.submission_hash,
        "assignment": result.assignment_hash,
        "status": result.status,
        "penalty": result.penalty,
        "submitted": result.submitted,
        "until": result.allowance.until,
        "slip_days": result.slip_days_used,
        "tasks": tasks,
    }


def _changes(old: dict, new: dict, result: Result) -> Iterator[Change]:
    """Yield each task whose points differ. A first mark for an answer that waited is no change."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    for id in {**old["tasks"], **new["tasks"]}:
        was, is_now = (data["tasks"].get(id, {"points": 0}) for data in (old, new))
        if None not in (was["points"], is_now["points"]) and was["points"] != is_now["points"]:
            why = _why(old, new, was, is_now)
            yield Change(result.submission, id, was["points"], is_now["points"], why, now)
    if old["penalty"] != new["penalty"]:
        yield Change(result.submission, PENALTY, old["penalty"], new["penalty"], _why_penalty(old, new), now)


def _why(old: dict, new: dict, was: dict, is_now: dict) -> str:
    if "said" in is_now and is_now["said"] != was.get("said"):
        return " ".join(["marked by a person:", *is_now["said"]]) if is_now["said"] else "marked by a person"
    if new["file"] != old["file"]:
        return "handed in again" if new["status"] == "graded" else f"handed in again, not graded: {new['status']}"
    if "said" in is_now or "said" in was:
        return "marked by a person" if "said" in is_now else "the mark belonged to another answer"
    if new["assignment"] != old["assignment"]:
        return "the exercise was corrected"
    return "graded again, on other seeds or with other versions"


def _why_penalty(old: dict, new: dict) -> str:
    if new["file"] != old["file"]:
        return "handed in again"
    has_times = "submitted" in old  # pages of earlier versions don't say
    if has_times and new["submitted"] != old["submitted"]:
        if new["submitted"] is None:
            return "time of submission unknown: no late penalty"
        return (
            f"time of submission {'known now' if old['submitted'] is None else 'corrected'}: {minute(new['submitted'])}"
        )
    if has_times and new["until"] != old["until"]:
        return f"deadline extended to {new['until']}" if new["until"] else "no extension any more"
    if has_times and new["slip_days"] != old["slip_days"]:
        return f"{plural(new['slip_days'], 'slip day')} used"
    before, now = ([task["points"] for task in data["tasks"].values()] for data in (old, new))
    if before != now:
        return "it is a part of the points, which changed"
    return "the deadline or the time of submission counts differently"
