"""What happened to a submission's grade after its first page: changes, and answers to requests."""

from collections.abc import Iterable
from dataclasses import dataclass

from txgrade.records.changes import Change
from txgrade.records.requests import Decision


@dataclass(frozen=True)
class History:
    """The changes of one submission's points, and the answers to requests about it, oldest first."""

    changes: tuple[Change, ...] = ()
    decisions: tuple[Decision, ...] = ()


def histories_of(changes: Iterable[Change], decisions: Iterable[Decision]) -> dict[str, History]:
    """Return the history of each submission that has one."""
    changes, decisions = list(changes), list(decisions)
    return {
        name: History(
            tuple(change for change in changes if change.submission == name),
            tuple(decision for decision in decisions if decision.submission == name),
        )
        for name in {change.submission for change in changes} | {decision.submission for decision in decisions}
    }
