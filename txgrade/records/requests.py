"""Regrade requests: files in the results folder's `requests/`, and the answers to them.

`requests/NAME.md` holds a heading for each task, `# TASK` by its id or title, and the reason below it.
`requests/ANY.csv` has the columns `name` (or `email`, `login`, `id`), `task` and `reason`; without a name, the file's
counts. A name is a submission's, or what the roster knows its learner by.
Nothing in such a file is believed: it only asks a person to look.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import sqlalchemy as sql

from txgrade.files import Folder
from txgrade.records.gradebook import Gradebook
from txgrade.records.grades import insert
from txgrade.records.ledger import GradebookError
from txgrade.records.people import name_in, read_rows
from txgrade.records.result import Result, TaskResult
from txgrade.records.tables import DECISIONS
from txgrade.text import plural, printable

FOLDER = "requests"
MAX_FILE, MAX_REASON = 200_000, 5_000  # bytes; characters
HEADING = re.compile(r"#{1,6}[ \t]+(.*?)[ \t#]*")


@dataclass(frozen=True)
class Decision:
    """The answer to a request."""

    submission: str
    task: str
    key: str
    request: str
    old: int | float
    new: int | float
    reason: str
    by: str
    time: str


@dataclass(frozen=True)
class Request:
    """A wish that one task of a submission be looked at again."""

    submission: str
    task: str
    reason: str
    result: TaskResult  # as it counts now
    alike: tuple[str, ...] = ()  # other submissions with the same answer and points
    decision: Decision | None = None

    @property
    def key(self) -> str:
        text = "\0".join((self.submission, self.task, self.reason))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read_requests(out: Path, book: Gradebook, results: list[Result] | None = None) -> tuple[list[Request], list[str]]:
    """Return the requests in a results folder, each once, and a line for each that can't be understood.

    They are about `results`, by default the newest ones.
    """
    problems: list[str] = []
    entries = list(_entries(out, problems))
    if not entries:
        return [], list(map(printable, problems))
    by_name = {result.submission: result for result in (book.latest() if results is None else results)}
    decisions = {(decision.submission, decision.task, decision.key): decision for decision in decisions_of(book)}
    requests: dict[str, Request] = {}
    for source, name, wanted, text in entries:
        try:
            result = by_name.get(book.submission_named(name))
        except GradebookError as reason:
            problems.append(f"{source}: {reason}")
            continue
        if result is None:
            problems.append(f"{source}: the submission of {name[:80]!r} is gone")
            continue
        ids = {task.id: task for task in result.tasks} | {task.title.casefold(): task for task in result.tasks}
        task = ids.get(wanted) or ids.get(wanted.casefold())
        if task is None:
            have = ", ".join(task.id for task in result.tasks) or "no graded task"
            problems.append(f"{source}: {name} has no task {wanted[:80]!r}; it has {have}")
            continue
        request = Request(result.submission, task.id, text, task, alike(by_name.values(), result.submission, task))
        decision = decisions.get((request.submission, request.task, request.key))
        requests[request.key] = replace(request, decision=decision)
    return list(requests.values()), list(map(printable, problems))


def alike(results: Iterable[Result], submission: str, task: TaskResult) -> tuple[str, ...]:
    """Return the other submissions with the same answer to a task and the same points for it."""
    same = (task.id, task.answer_hash, task.points)
    return tuple(
        result.submission
        for result in results
        if result.submission != submission
        and any((other.id, other.answer_hash, other.points) == same for other in result.tasks)
    )


def decide(
    book: Gradebook,
    requests: Sequence[Request],
    points: int | float,
    reason: str,
    by: str = "",
    also: Iterable[str] = (),
) -> None:
    """Answer requests about a task, all or nothing: it has these points, and so has that of `also`, with this answer.

    Raises:
        GradebookError: no reason, or points that are not within the task's.
    """
    name, first = book.assignment_name(), requests[0]
    with book.transaction(write=True) as connection:
        if points != first.result.points:
            book.override(first.submission, first.task, points, reason, by, also)
        for request in requests:
            insert(
                connection,
                DECISIONS,
                assignment=name,
                submission=request.submission,
                task=request.task,
                key=request.key,
                request=printable(request.reason),
                old=request.result.points,
                new=points,
                reason=printable(reason),
                by=printable(by),
            )


def decisions_of(book: Gradebook) -> list[Decision]:
    """Return the answers to all requests about the assignment that was graded last, oldest first."""
    name = book.assignment_name()
    with book.transaction() as connection:
        rows = connection.execute(sql.select(DECISIONS).where(DECISIONS.c.assignment == name).order_by(DECISIONS.c.id))
        return [
            Decision(row.submission, row.task, row.key, row.request, row.old, row.new, row.reason, row.by, row.time)
            for row in rows
        ]


def _entries(out: Path, problems: list[str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield each request's file, name, task and reason. A link, or what is no text, is a problem."""
    try:
        with Folder(out) as results, results.folder(FOLDER) as folder:
            for name in sorted(os.listdir(out / FOLDER)):
                stem, dot, ending = name.rpartition(".")
                if not stem or ending not in ("md", "csv"):
                    continue
                source = f"{FOLDER}/{name}"
                try:
                    text = folder.read(name, MAX_FILE)[0].decode("utf-8-sig")
                    rows = list(_of_csv(text, stem) if ending == "csv" else _of_markdown(text, stem))
                except (OSError, ValueError) as reason:
                    problems.append(f"{source} can't be read: {reason}")
                    continue
                if not rows:
                    problems.append(f"{source} asks for nothing: it needs `# TASK`, and the reason below")
                for who, task, words in rows:
                    left = len(words) - MAX_REASON
                    more = f" … and {plural(left, 'more character')}" if left > 0 else ""
                    yield source, who, task, words[:MAX_REASON] + more
    except FileNotFoundError:
        return
    except OSError as reason:
        problems.append(f"{out / FOLDER} can't be read: {reason.strerror}")


def _of_csv(text: str, stem: str) -> Iterator[tuple[str, str, str]]:
    columns, rows = read_rows(text)
    if missing := {"task", "reason"} - columns:
        raise ValueError(f"it has no column `{min(missing)}`")
    for row in rows:
        yield name_in(row) or stem, row["task"], row["reason"]


def _of_markdown(text: str, stem: str) -> Iterator[tuple[str, str, str]]:
    task, lines = "", []
    for line in [*text.splitlines(), "# "]:
        heading = HEADING.fullmatch(line)
        if heading is None:
            lines.append(line)
            continue
        if task:
            yield stem, task, "\n".join(lines).strip()
        task, lines = heading[1].strip(" `"), []
