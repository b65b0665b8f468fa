"""Grades as tables, for people and for spreadsheets."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable

from txgrade.records.changes import Change
from txgrade.records.lateness import UNKNOWN, nobody_s_time
from txgrade.records.requests import Request
from txgrade.records.result import Result
from txgrade.submitting.releases import EARLIER, earlier_releases
from txgrade.text import printable

COLUMNS = ("submission", "score", "max_score", "status", "isolation", "needs_review", "seeds")
STARTS_A_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # in a spreadsheet


def grades_csv(results: Iterable[Result]) -> str:
    """Return one row per submission, by name, with a column for each task. The same results give the same text."""
    results = sorted(results, key=lambda result: result.submission)
    tasks = list(dict.fromkeys(task.id for result in results for task in result.tasks))
    rows = [[*COLUMNS, *tasks]]
    for result in results:
        points = {task.id: plain_number(task.points) for task in result.tasks}
        rows.append(
            [
                result.submission,
                plain_number(result.score),
                plain_number(result.max_score),
                result.status,
                result.isolation,
                "yes" if result.needs_review else "no",
                " ".join(map(str, result.seeds)),
                *(points.get(task, "") for task in tasks),
            ]
        )
    return csv_text(rows)


def review_csv(
    results: Iterable[Result],
    missing: Iterable[str] = (),
    requests: Iterable[Request] = (),
    problems: Iterable[str] = (),
) -> str:
    """Return what a person has to look at, one row for each reason, and who on the roster submitted nothing.

    Rows without a submission are about the class. `problems` are requests that can't be understood.
    """
    results = list(results)
    rows = [["submission", "task", "kind", "text"]]
    rows += [["", task or "", EARLIER, text] for task, text in earlier_releases(results)]
    rows += [["", "", UNKNOWN, text] for text in nobody_s_time(results)]
    pending = Counter(task.id for result in results for task in result.tasks if task.verdict == "pending")
    rows += [["", task, "written answer", f"{count} to mark with txgrade review"] for task, count in pending.items()]
    rows += [["", "", "regrade request", problem] for problem in problems]
    rows += [[request.submission, request.task, "regrade request", request.reason] for request in requests]
    for result in sorted(results, key=lambda result: result.submission):
        if result.status != "graded":
            rows.append([result.submission, "", "not graded", result.status])
        rows += [[result.submission, note.task or "", note.kind, note.text] for note in result.notes if note.review]
    rows += [[name, "", "missing", "no submission"] for name in missing]
    return csv_text(rows)


def changes_csv(changes: Iterable[Change]) -> str:
    """Return each change of points that an earlier run gave, the newest first."""
    rows = [["name", "task", "old", "new", "why", "time"]]
    for change in sorted(changes, key=lambda change: change.time, reverse=True):
        rows.append(
            [
                change.submission,
                change.task,
                plain_number(change.old),
                plain_number(change.new),
                change.why,
                change.time,
            ]
        )
    return csv_text(rows)


def csv_text(rows: list[list], delimiter: str = ",") -> str:
    """Return rows as CSV (RFC 4180). Text that a spreadsheet would run as a formula gets an apostrophe in front."""
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(
        [_harmless(cell) for cell in row] for row in rows
    )
    return text.getvalue()


def _harmless(cell: str) -> str:
    cell = printable(cell)
    if cell.lstrip(" ").startswith(STARTS_A_FORMULA) and not re.fullmatch(r"-?\d*([.,]\d+)?", cell):
        return f"'{cell}"
    return cell


def plain_number(value: int | float) -> str:
    return f"{round(value, 6):.10g}"
