"""Works out what a late submission loses."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

DATE = "%Y-%m-%d %H:%M"
LATEST = datetime(9000, 1, 1, tzinfo=UTC)  # a file may say any time, and days after 9999 do not exist


def late(due: dict, submitted: str) -> tuple[float, str]:
    """Return the fraction of the points that a submission loses, and why; (0, "") if it came in time.

    `due` is what `txgrade.due` noted, `submitted` a time in ISO 8601, UTC unless it names a zone. A day ends at the
    same time of day in the zone where the exercise is due, even if the clocks change in between.

    Raises:
        ValueError: `submitted` is not a time.
    """
    at = datetime.fromisoformat(submitted)
    at = min((at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC), LATEST)
    if at <= deadline(due) + timedelta(minutes=due["grace_minutes"]):
        return 0.0, ""
    days = max(1, (at - deadline(due)).days)  # never too many: a day has at most one hour more
    while deadline(due, days) < at:
        days += 1
    fraction = round(float(min(due["per_day"] * days, due["at_most"])), 12)
    return fraction, (
        f"{days} {'day' if days == 1 else 'days'} late (due {due['when']}, {due['timezone']}): {fraction:.0%} off"
    )


def deadline(due: dict, days: int = 0) -> datetime:
    """Return the deadline, UTC, `days` later by the clock on the wall."""
    try:
        when = datetime.strptime(due["when"], DATE)
    except ValueError as reason:
        raise ValueError(f'due("{due["when"]}"): give date and time like "2026-12-01 23:59"') from reason
    try:
        zone = ZoneInfo(due["timezone"])
    except (KeyError, ValueError, OSError) as reason:
        raise ValueError(
            f'due(…, timezone="{due["timezone"]}"): not a time zone; give e.g. "Europe/Zurich"'
        ) from reason
    local = when.replace(tzinfo=zone) + timedelta(days=days)
    # When the clocks go back, a time of day comes twice: the later one counts, for the learner.
    return max(local.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
