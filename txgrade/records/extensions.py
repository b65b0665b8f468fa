"""Extensions and slip days: who may submit later, from a table of extensions and a column of the roster.

A table of extensions is a CSV file with the columns `name` (or `email`, `login`, `id`), `until` (`2026-12-03 12:00`) or
`days`, and perhaps `exercise`; without an exercise a row holds for all. Slip days are for a whole term: those that a
learner has spent are in the gradebooks of the other exercises.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

from txgrade.records.gradebook import Gradebook
from txgrade.records.lateness import DATE, deadline, zone_of
from txgrade.records.people import NAMES, Roster, RosterError, name_in, person, read_rows, text_of
from txgrade.records.result import Allowance

FORM = "give the columns name, until or days, and perhaps exercise"


class Allowances:
    """What each learner is allowed for one exercise."""

    def __init__(self, extensions: dict[str, str], slip_days: dict[str, int]):
        self._extensions, self._slip_days = extensions, slip_days

    def of(self, *names: str) -> Allowance:
        """Return what somebody is allowed who has these names."""
        keys = [person(name) for name in names if name]
        until = max((self._extensions[key] for key in keys if key in self._extensions), default="")
        return Allowance(until, max((self._slip_days.get(key, 0) for key in keys), default=0))


def read_allowances(
    exercise: str,
    due: dict | None,
    *,
    extensions: Path | None = None,
    roster: Roster | None = None,
    term: Path | None = None,
    out: Path | None = None,
) -> Allowances:
    """Return what learners are allowed for an exercise.

    `term` is the folder that holds the results of all exercises: slip days that were used in another one than `out`
    are no longer left.

    Raises:
        ValueError: a table that makes no sense, an exercise without a deadline, or somebody not on the roster.
    """
    granted = _read_extensions(extensions, exercise, due, roster) if extensions else {}
    if roster is None:
        return Allowances(granted, {})
    used = _used_slip_days(term, out, roster) if term else {}
    left = {}
    for one in roster.people:
        if one.slip_days:
            if not one.slip_days.isdecimal():
                raise ValueError(f"the roster gives {one.name} {one.slip_days!r} slip days: give a whole number")
            left[person(one.label)] = max(0, int(one.slip_days) - used.get(one.row, 0))
    return Allowances(granted, left)


def _read_extensions(path: Path, exercise: str, due: dict | None, roster: Roster | None) -> dict[str, str]:
    """Return the extended deadline of each person, by name."""
    columns, rows = read_rows(text_of(path))
    if not columns & set(NAMES) or not columns & {"until", "days"}:
        raise ValueError(f"{path} is no table of extensions: {FORM}")
    granted: dict[str, str] = {}
    for number, cells in enumerate(rows, 2):
        if cells.get("exercise") not in (None, "", exercise):
            continue
        if due is None:
            raise ValueError(f"{path} extends the deadline of {exercise}, which has none: write due(…) in its source")
        name = name_in(cells)
        where = f"{path}, line {number}: "
        key = person(name)
        if roster is not None:
            try:
                key = person(roster.one(name).label)
            except RosterError as reason:
                raise ValueError(f"{where}{reason}") from None
        granted[key] = max(granted.get(key, ""), _until(cells, due, where))
    return granted


def _until(cells: dict[str, str], due: dict, where: str) -> str:
    """Return an extended deadline in the form and the zone of the exercise's own."""
    until, days = cells.get("until", ""), cells.get("days", "")
    zone = zone_of(due["timezone"])
    if days and not until:
        if not days.isdecimal():
            raise ValueError(f"{where}days is {days!r}: give a whole number of days")
        return (datetime.strptime(due["when"], DATE) + timedelta(days=int(days))).strftime(DATE)
    try:
        when = datetime.fromisoformat(until)
    except ValueError:
        raise ValueError(f"{where}until is {until!r}: give date and time like 2026-12-03 12:00") from None
    local = (when.astimezone(zone) if when.tzinfo else when).strftime(DATE)
    if deadline(due | {"when": local}) < deadline(due):
        raise ValueError(f"{where}{until} is before the deadline itself, {due['when']} {due['timezone']}")
    return local


def _used_slip_days(term: Path, out: Path | None, roster: Roster) -> dict[int, int]:
    """Return the slip days that each person has used in the other exercises of a term, by the roster's row."""
    used: dict[int, int] = {}
    for path in _gradebooks(term):
        if out is not None and path.parent.resolve() == out.resolve():
            continue
        with Gradebook(path, create=False) as book:
            for result in book.latest():
                matches = roster.find(result.learner or result.submission)
                if len(matches) == 1:
                    used[matches[0].row] = used.get(matches[0].row, 0) + result.slip_days_used
    return used


def _gradebooks(term: Path) -> Iterable[Path]:
    if not term.is_dir():
        raise ValueError(f"--term {term}: give the folder that holds the results of all exercises")
    return sorted(term.glob("*/gradebook.sqlite"))
