"""Grades as tables: for people, and in the forms that Canvas, Moodle and Gradescope import."""

import csv
import io
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from txgrade.records.changes import Change
from txgrade.records.out import need_no_links, path_in, write
from txgrade.records.people import Roster, canvas_names, lms_of, moodle_names, numbers_in, read_table, text_of
from txgrade.records.requests import Request
from txgrade.records.result import VERDICTS, Result, TaskResult
from txgrade.submitting.releases import EARLIER, earlier_releases
from txgrade.text import printable

COLUMNS = ("submission", "score", "max_score", "status", "isolation", "needs_review", "seeds")
FORMATS = ("canvas", "moodle", "gradescope")
IN_DOUBT = ("owner", "same person")  # kinds of notes which, if they need a look, leave open whose a grade is
STARTS_A_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # in a spreadsheet


class ExportError(ValueError):
    """The export can't be written: an unknown format, or a file that is not a roster."""


@dataclass(frozen=True)
class Exported:
    """The files that were written, and the submissions that are in none of them, with the reasons."""

    files: list[Path]
    left_out: list[tuple[str, str]]


def grades_csv(results: Iterable[Result]) -> str:
    """Return one row per submission, by name, with a column for each task. The same results give the same text."""
    results = sorted(results, key=lambda result: result.submission)
    tasks = list(dict.fromkeys(task.id for result in results for task in result.tasks))
    rows = [[*COLUMNS, *tasks]]
    for result in results:
        points = {task.id: _number(task.points) for task in result.tasks}
        rows.append(
            [
                result.submission,
                _number(result.score),
                _number(result.max_score),
                result.status,
                result.isolation,
                "yes" if result.needs_review else "no",
                " ".join(map(str, result.seeds)),
                *(points.get(task, "") for task in tasks),
            ]
        )
    return _table(rows)


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
    rows += [["", "", "regrade request", problem] for problem in problems]
    rows += [[request.submission, request.task, "regrade request", request.reason] for request in requests]
    for result in sorted(results, key=lambda result: result.submission):
        if result.status != "graded":
            rows.append([result.submission, "", "not graded", result.status])
        rows += [[result.submission, note.task or "", note.kind, note.text] for note in result.notes if note.review]
        rows += [
            [result.submission, task.id, "written answer", "to be marked with txgrade review"]
            for task in result.tasks
            if task.verdict == "pending"
        ]
    rows += [[name, "", "missing", "no submission"] for name in missing]
    return _table(rows)


def changes_csv(changes: Iterable[Change]) -> str:
    """Return each change of points that an earlier run gave, the newest first."""
    rows = [["name", "task", "old", "new", "why", "time"]]
    for change in sorted(changes, key=lambda change: change.time, reverse=True):
        rows.append([change.submission, change.task, _number(change.old), _number(change.new), change.why, change.time])
    return _table(rows)


def canvas_csv(results: Iterable[Result], roster: str, title: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the gradebook file that Canvas imports, and the submissions that are left out, with the reasons.

    `roster` is the text of the CSV that Canvas exports (Grades, Export). A submission belongs to the row whose SIS
    login id, SIS user id, id or name it has, or whose id Canvas put into the name of the downloaded file; if notes
    leave open whose it is, it is left out. Only rows with a grade are written. If the export has a column for the
    assignment, `title (number)`, that name is used, and Canvas fills that column; else it offers to make one.

    Columns and the row "Points Possible" are as Canvas' importer reads them:
    https://github.com/instructure/canvas-lms/blob/master/lib/gradebook_importer.rb

    Raises:
        ExportError: the roster has no columns `Student` and `ID`, or other points for the assignment.
    """

    header, rows = _table_of(roster, ("Student", "ID"), "Canvas' gradebook export")
    own = [name for name in ("Student", "ID", "SIS User ID", "SIS Login ID", "Section") if name in header]
    column = next((name for name in header if re.fullmatch(rf"{re.escape(title)} \(\d+\)", name)), title)
    people = [row for row in rows if row["ID"].strip().isdigit()]
    matched, left_out = _matched(results, people, Roster.of(*map(canvas_names, people)))
    most = {_number(result.max_score) for _, result in matched}
    for row in rows:
        if row["Student"].strip() == "Points Possible":
            _same_points(row.get(column, ""), most, "Canvas")
    written = [[*own, column], ["    Points Possible", *[""] * (len(own) - 1), *most]]
    written += [[*(row[name] for name in own), _number(result.score)] for row, result in matched]
    return _table(written), left_out


def moodle_csv(results: Iterable[Result], roster: str) -> tuple[str, list[tuple[str, str]]]:
    """Return Moodle's offline grading worksheet, filled in, and the submissions that are left out, with the reasons.

    `roster` is the text of the worksheet from Moodle (Download grading worksheet). All its columns and rows are kept,
    since Moodle refuses a file without `Identifier`, `Grade` and `Last modified (grade)`; `Grade` and `Feedback
    comments` are filled in. A submission belongs to the row whose email address (or its part before the @),
    identifier, ID number or full name it has, or whose number Moodle put into the name of the downloaded folder.

    The worksheet is as Moodle reads it:
    https://github.com/moodle/moodle/blob/main/mod/assign/feedback/offline/importgradeslib.php

    Raises:
        ExportError: the roster is not such a worksheet in English, or its highest grade is another one.
    """

    needed = ("Identifier", "Grade", "Last modified (grade)")
    header, rows = _table_of(roster, needed, "the grading worksheet that Moodle gives in English")
    matched, left_out = _matched(results, rows, Roster.of(*map(moodle_names, rows)))
    for row, result in matched:
        _same_points(row.get("Maximum grade", ""), {_number(result.max_score)}, "Moodle")
        row["Grade"] = _number(result.score)
        if "Feedback comments" in header:
            row["Feedback comments"] = _comment(result)
    return _table([list(header), *([row[name] for name in header] for row in rows)]), left_out


def gradescope_json(result: Result) -> str:
    """Return one submission as Gradescope's `results.json`.

    The format: https://gradescope-autograders.readthedocs.io/en/latest/specs/#output-format
    """
    tests = [
        {
            "name": printable(task.title or task.id),
            "number": str(number),
            "score": task.points,
            "max_score": task.max_points,
            "output": _diagnosis(task),
            "output_format": "text",
            "visibility": "visible",
            **_gradescope_status(task),
        }
        for number, task in enumerate(result.tasks, 1)
    ]
    output = _comment(result) if result.status != "graded" or result.penalty else ""
    data = {
        "score": result.score,
        "output": output,
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": tests,
        "extra_data": {
            "isolation": result.isolation,
            "seeds": list(result.seeds),
            "submission_hash": result.submission_hash,
            "assignment_hash": result.assignment_hash,
        },
    }
    return json.dumps(data, indent=1) + "\n"


def export(out: Path | str, to: str, roster: Path | str | None = None) -> Exported:
    """Write the newest grades in a run's folder as another system imports them.

    Raises:
        ExportError: an unknown format, or no roster for a format that needs one.
        RosterError: the roster can't be read.
        GradebookError: no gradebook in the folder.
        ValueError: there is a link in place of a file.
    """
    from txgrade.records.gradebook import Gradebook

    out = Path(out)
    if to not in FORMATS:
        raise ExportError(f"no format {to!r} to export; choose {', '.join(FORMATS)}")
    if to != "gradescope" and roster is None:
        which = {
            "canvas": "the CSV of Canvas' gradebook (Grades, Export)",
            "moodle": "the worksheet that Moodle gives (Download grading worksheet)",
        }[to]
        raise ExportError(f"{to} needs --roster: {which}")
    need_no_links(out)
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        results, title = book.latest(), book.title()
    if roster is None or to == "gradescope":
        sure, left_out = _sure(results)
        texts = {f"gradescope/{result.submission}/results.json": gradescope_json(result) for result in sure}
        stale = [f"gradescope/{name}/results.json" for name, _ in left_out]
    else:
        people = text_of(roster)
        table, left_out = canvas_csv(results, people, title) if to == "canvas" else moodle_csv(results, people)
        texts, stale = {f"{to}.csv": table}, []
    if left_out:
        texts[f"{to}-left-out.csv"] = _table([["submission", "why"], *map(list, left_out)])
    else:
        stale.append(f"{to}-left-out.csv")
    for name in stale:  # of an earlier export
        path_in(out, name).unlink(missing_ok=True)
    for name, text in texts.items():
        write(out, name, text)
    return Exported([path_in(out, name) for name in texts], left_out)


def _table(rows: list[list]) -> str:
    """Return rows as CSV (RFC 4180). Text that a spreadsheet would run as a formula gets an apostrophe in front."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_harmless(cell) for cell in row] for row in rows)
    return text.getvalue()


def _harmless(cell: str) -> str:
    cell = printable(cell)
    if cell.lstrip(" ").startswith(STARTS_A_FORMULA) and not re.fullmatch(r"-?\d*(\.\d+)?", cell):
        return f"'{cell}"
    return cell


def _number(value: int | float) -> str:
    return f"{round(value, 6):.10g}"


def _table_of(text: str, needed: tuple[str, ...], what: str) -> tuple[list[str], list[dict[str, str]]]:
    header, rows = read_table(text)
    missing = [name for name in needed if name not in header]
    if missing:
        raise ExportError(f"the roster has no column {missing[0]!r}: it should be {what}")
    return header, rows


def _same_points(theirs: str, ours: set[str], system: str) -> None:
    """Refuse to write 10 of 12 points where 10 would be read as 10 of 100."""
    try:
        most = _number(float(theirs.replace(",", ".")))
    except ValueError:
        return  # it has no number
    if ours and ours != {most}:
        raise ExportError(
            f"{system} has {most} as the points possible, the gradebook has "
            f"{', '.join(sorted(ours))}: set it in {system}, then export the roster again"
        )


def _matched(
    results: Iterable[Result], rows: list[dict], roster: Roster
) -> tuple[list[tuple[dict, Result]], list[tuple[str, str]]]:
    """Return each graded result with its row, in the rows' order, and the others with the reasons.

    Of several that are one person's, the one with this person's name goes before one with the number of an LMS; two
    of a kind are left to a person.
    """
    sure, left_out = _sure(results)
    numbers = numbers_in(result.submission for result in sure)
    claimed: dict[int, list[Result]] = {}
    for result in sure:
        people = roster.find(result.submission, numbers.get(result.submission, ""))
        if result.status != "graded":
            left_out.append((result.submission, f"not graded: {result.status}"))
        elif len(people) == 1:
            claimed.setdefault(people[0].row, []).append(result)
        else:
            left_out.append((result.submission, _unknown(result.submission, len(people), numbers)))
    matched = []
    for row, several in sorted(claimed.items()):
        named = [result for result in several if result.submission not in numbers] or several
        if len(named) == 1:
            matched.append((rows[row], named[0]))
        left_out += [
            (result.submission, "several submissions of one person")
            for result in several
            if len(named) > 1 or result is not named[0]
        ]
    return matched, sorted(left_out)


def _sure(results: Iterable[Result]) -> tuple[list[Result], list[tuple[str, str]]]:
    """Return the results whose owners are certain, and the others with the notes that say why not."""
    sure: list[Result] = []
    left_out = []
    for result in results:
        doubts = [note.text for note in result.notes if note.kind in IN_DOUBT and note.review]
        if doubts:
            left_out.append((result.submission, "; ".join(doubts)))
        else:
            sure.append(result)
    return sure, left_out


def _unknown(name: str, matches: int, numbers: dict[str, str]) -> str:
    if matches:
        return "several people on the roster have this name"
    lms = "" if name in numbers else lms_of(name)
    but = f"; its number doesn't count, since most other files are not named as {lms} names files" if lms else ""
    return f"nobody on the roster has this name{but}"


def _comment(result: Result) -> str:
    """Return a grade in a few lines of plain text."""
    if result.status != "graded":
        return f"Not graded: {result.status}"
    lines = [
        f"{task.title or task.id}: {_number(task.points)} of {_number(task.max_points)}, {VERDICTS[task.verdict]}"
        for task in result.tasks
    ]
    if result.penalty:
        lines.append(f"Late: {_number(result.penalty)} taken off")
    return printable("\n".join(lines))


def _diagnosis(task: TaskResult) -> str:
    parts = [f"{'right' if part.right else 'not yet'}: {part.label}" for part in task.parts]
    return printable("\n".join([VERDICTS[task.verdict], *task.lines, *parts]))


def _gradescope_status(task: TaskResult) -> dict[str, str]:
    if task.verdict == "pending":
        return {}
    return {"status": "passed" if task.points >= task.max_points else "failed"}
