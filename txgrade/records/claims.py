"""Who is marking what right now, and what they have typed: nobody marks the same answer, and no draft is lost.

A claim ends when its answer is marked or left, when its reviewer goes to the list, or by itself after CLAIM_MINUTES, so
that a reviewer at lunch blocks nobody. Drafts stay.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import sqlalchemy as sql

from txgrade.records.gradebook import Gradebook
from txgrade.records.grades import as_json, insert
from txgrade.records.tables import CLAIMS

CLAIM_MINUTES = 30  # since a person last opened or saved something there


@dataclass(frozen=True)
class Claim:
    """The last that a person did about one answer or request."""

    task: str
    key: str  # the answer's hash, or the request's
    by: str
    time: str
    draft: dict = field(default_factory=dict)  # what was typed and not saved as a mark
    released: bool = False

    def holds(self, now: datetime) -> bool:
        """Return whether others keep off."""
        return not self.released and now - datetime.fromisoformat(self.time) < timedelta(minutes=CLAIM_MINUTES)


def holder(claims: Iterable[Claim], by: str) -> Claim | None:
    """Return the claim of another person who has an answer now; `claims` are those on it, the newest first."""
    now = datetime.now(UTC)
    newest = next((claim for claim in claims if claim.holds(now)), None)
    return None if newest is None or newest.by == by else newest


def claims_of(book: Gradebook) -> list[Claim]:
    """Return each person's newest claim on each answer of the assignment graded last; the newest first."""
    name = book.assignment_name()
    with book.transaction() as connection:
        return _newest(connection, name)


def claim(book: Gradebook, task: str, key: str, by: str, *, anyway: bool = False) -> Claim | None:
    """Claim an answer and return None; if somebody else holds it, only `anyway`, otherwise return their claim."""
    name = book.assignment_name()
    with book.transaction(write=True) as connection:
        about = _newest(connection, name, task, key)
        other = holder(about, by)
        if other is not None and not anyway:
            return other
        draft = next((claim.draft for claim in about if claim.by == by), {})
        _write(connection, name, Claim(task, key, by, "", draft))
    return None


def release(book: Gradebook, by: str) -> None:
    """End all claims of a person; drafts stay."""
    name, now = book.assignment_name(), datetime.now(UTC)
    mine = [claim for claim in claims_of(book) if claim.by == by and claim.holds(now)]
    if mine:
        with book.transaction(write=True) as connection:
            for claim in mine:
                _write(connection, name, replace(claim, released=True))


def keep_draft(book: Gradebook, task: str, key: str, by: str, draft: dict, *, released: bool = False) -> None:
    """Keep what a person has typed about an answer; `released` lets others mark it, as it is if another has it now."""
    name = book.assignment_name()
    with book.transaction(write=True) as connection:
        about = _newest(connection, name, task, key)
        mine = next((claim for claim in about if claim.by == by), None)
        released = released or holder(about, by) is not None
        if mine is None or released or mine.draft != draft or mine.released:
            _write(connection, name, Claim(task, key, by, "", draft, released))


def _write(connection: sql.Connection, assignment: str, claim: Claim) -> None:
    insert(
        connection,
        CLAIMS,
        assignment=assignment,
        task=claim.task,
        key=claim.key,
        by=claim.by,
        draft=as_json(claim.draft),
        released=int(claim.released),
    )


def _newest(
    connection: sql.Connection, assignment: str, task: str | None = None, key: str | None = None
) -> list[Claim]:
    about = [CLAIMS.c.assignment == assignment]
    about += [CLAIMS.c.task == task, CLAIMS.c.key == key] if key is not None else []
    newest = sql.select(sql.func.max(CLAIMS.c.id)).where(*about).group_by(CLAIMS.c.task, CLAIMS.c.key, CLAIMS.c.by)
    rows = connection.execute(sql.select(CLAIMS).where(CLAIMS.c.id.in_(newest)).order_by(CLAIMS.c.id.desc()))
    return [Claim(row.task, row.key, row.by, row.time, json.loads(row.draft), bool(row.released)) for row in rows]
