"""Works out what a late submission loses, from the deadline, the time of submission, extensions and slip days."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from txgrade.records.result import Allowance, Note, Result
from txgrade.text import number, plural

DATE = "%Y-%m-%d %H:%M"
LATEST = datetime(9000, 1, 1, tzinfo=UTC)  # a file may say any time, and days after 9999 do not exist
UNKNOWN = "time unknown"
KINDS = ("late", UNKNOWN)  # of the notes that say what the time of a submission costs


@dataclass(frozen=True)
class Lateness:
    """The fraction of the points that a submission loses, why, and how many slip days it takes."""

    fraction: float = 0.0
    words: str = ""
    slip_days: int = 0


def late(due: dict, submitted: str, allowance: Allowance | None = None) -> Lateness:
    """Return what a submission loses; no words if it came in time.

    `due` is what `txgrade.due` noted, `submitted` a time in ISO 8601, UTC unless it names a zone. A day ends at the
    same time of day in the zone where the exercise is due, even if the clocks change in between. An extension moves
    the deadline; slip days pay for the first days after it.

    Raises:
        ValueError: `submitted` is not a time.
    """
    allowance = allowance or Allowance()
    at = datetime.fromisoformat(submitted)
    at = min((at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC), LATEST)
    if allowance.until:
        due = due | {"when": allowance.until}
    if at <= deadline(due) + timedelta(minutes=due["grace_minutes"]):
        return Lateness()
    days = max(1, (at - deadline(due)).days)  # never too many: a day has at most one hour more
    while deadline(due, days) < at:
        days += 1
    slip_days = min(days, allowance.slip_days)
    fraction = round(float(min(due["per_day"] * (days - slip_days), due["at_most"])), 12)
    slips = f" with {plural(slip_days, 'slip day')}" if slip_days else ""
    extended = "extended to" if allowance.until else "due"
    words = f"{plural(days, 'day')} late ({extended} {due['when']}, {due['timezone']}){slips}: {fraction:.0%} off"
    return Lateness(fraction, words, slip_days)


def with_lateness(result: Result, due: dict | None) -> Result:
    """Return a graded result with its penalty worked out from its tasks' points, and with a note that says why.

    Nothing is taken off if nobody knows when it was submitted; then a person has to look, unless the system that it
    was downloaded from marks late submissions, and hasn't marked this one.
    """
    points = round(sum(task.points for task in result.tasks), 6)
    if not due:
        return replace(result, penalty=0, score=points)
    lateness, note = Lateness(), None
    if result.submitted:
        lateness = late(due, result.submitted, result.allowance)
        note = Note("late", lateness.words, review=False) if lateness.words else None
    elif result.marked_late:
        words = "it is marked as late, but not by how much, so nothing is taken off: give its time with --times"
        note = Note("late", words)
    elif result.marked_late is None:
        note = Note(UNKNOWN, "nobody knows when it was submitted, so nothing is taken off for being late")
    penalty = round(points * lateness.fraction, 6)
    notes = tuple(other for other in result.notes if other.kind not in KINDS)
    return replace(
        result,
        penalty=penalty,
        score=round(points - penalty, 6),
        slip_days_used=lateness.slip_days,
        notes=(*notes, note) if note else notes,
    )


def without_times(results: list[Result]) -> list[Result]:
    """Return results; if nobody's time is known, nobody has to look at each: it is one line for the class."""
    graded = [result for result in results if result.status == "graded"]
    if len(graded) < 2 or not all(any(note.kind == UNKNOWN for note in result.notes) for result in graded):
        return results
    notes = [tuple(replace(note, review=note.review and note.kind != UNKNOWN) for note in one.notes) for one in results]
    return [replace(result, notes=own) for result, own in zip(results, notes, strict=True)]


def nobody_s_time(results: Iterable[Result]) -> list[str]:
    """Return the line for the class `without_times`."""
    if not any(note.kind == UNKNOWN and not note.review for result in results for note in result.notes):
        return []
    return ["nobody's time of submission is known, so nothing is taken off for being late: collect with --times"]


def deadline(due: dict, days: int = 0) -> datetime:
    """Return the deadline, UTC, `days` later by the clock on the wall."""
    try:
        when = datetime.strptime(due["when"], DATE)
    except ValueError as reason:
        raise ValueError(f'due("{due["when"]}"): give date and time like "2026-12-01 23:59"') from reason
    zone = zone_of(due["timezone"], 'due(…, timezone="{}")')
    local = when.replace(tzinfo=zone) + timedelta(days=days)
    # When the clocks go back, a time of day comes twice: the later one counts, for the learner.
    return max(local.replace(fold=fold).astimezone(UTC) for fold in (0, 1))


def zone_of(name: str, where: str = "{}") -> ZoneInfo:
    """Return a time zone by its name.

    Raises:
        ValueError: there is no such zone; `where` says where the name was given.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as reason:
        raise ValueError(f'{where.format(name)}: not a time zone; give e.g. "Europe/Zurich"') from reason


def describe_deadline(due: dict) -> str:
    """Return the deadline and what being late costs, in words for a learner."""
    grace = f", with {number(due['grace_minutes'])} minutes of grace" if due["grace_minutes"] else ""
    cost = "Being late costs nothing."
    if due["per_day"] and due["at_most"]:
        most = "" if due["at_most"] >= 1 else f", at most {due['at_most']:.0%}"
        cost = f"Each day late, once it has begun, costs {due['per_day']:.0%} of the points earned{most}."
    return f"{due['when']}, {due['timezone']}{grace}. {cost}"
