"""Which learner has which variant: worked out from the course's secret and the roster's ids, by a keyed hash.

The secret stays in a file beside the roster, `people.secret`, which no notebook and no kernel ever sees. Without it
nobody can compute a learner's variant, from another's or from the roster. The file also records what was dealt from
it, so that a changed exercise is noticed before anybody is graded by other numbers.
"""

import hmac
import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txgrade.authoring.assignment import digest
from txgrade.authoring.exercise import Exercise, read_exercise
from txgrade.authoring.variants import Variants
from txgrade.files import write_atomically
from txgrade.records.people import Person, Roster


class DealError(ValueError):
    """A deal that can't be made or repeated."""


@dataclass(frozen=True)
class Deal:
    """The variants of one exercise, dealt to the people of a roster."""

    secret: bytes = field(repr=False)
    exercise: str  # its name
    variants: Variants
    roster: Roster
    learners: tuple[str, ...] = ()  # ids of those for whom notebooks were made

    @property
    def fingerprint(self) -> str:
        """What tells one secret from another, and reveals neither."""
        return self._hash("fingerprint")[:16]

    def variant(self, learner: Person) -> int:
        """Return the number of a learner's variant."""
        return int(self._hash(f"variant/{self.exercise}/{id_of(learner)}"), 16) % self.variants.count

    def mark(self, learner: Person) -> str:
        """Return what a learner's notebook bears, and nobody else's."""
        return self._hash(f"copy/{self.exercise}/{id_of(learner)}")[:16]

    def made_for(self, mark: str) -> str:
        """Return whom a notebook was made for."""
        labels = [one.label or one.name for one in self.roster.people if self.mark(one) == mark]
        return labels[0] if labels else "nobody on the roster"

    def without_notebook(self) -> list[str]:
        """Return who is on the roster and has no notebook: it has grown since."""
        return [one.label or one.name for one in self.roster.people if id_of(one) not in self.learners]

    def _hash(self, text: str) -> str:
        return hmac.digest(self.secret, text.encode(), "sha256").hex()


def id_of(learner: Person) -> str:
    """Return what a learner's variant is drawn by."""
    return learner.id or learner.student_id


def secret_path(roster: Path) -> Path:
    """Return where the secret of a roster's course is, if nothing else is said."""
    return roster.with_suffix(".secret")


def make_deal(source: Path, path: Path, roster: Roster) -> Deal:
    """Deal an exercise's variants; the secret is made if there is none, and what is dealt is recorded with it.

    Raises:
        DealError: somebody on the roster has no id of their own, or the file is no secret.
        ExerciseError: the source's form is wrong.
    """
    _need_ids(roster)
    exercise = read_exercise(source)
    stored: dict[str, Any] = _read(path) if path.exists() else {"secret": secrets.token_hex(32), "exercises": {}}
    learners = tuple(map(id_of, roster.people))
    stored["exercises"][exercise.name] = {"choices": _choices(exercise), "learners": learners}
    write_atomically(path, json.dumps(stored, indent=1) + "\n", 0o600)
    return Deal(bytes.fromhex(stored["secret"]), exercise.name, exercise.variants, roster, learners)


def open_deal(source: Path, path: Path, roster: Roster) -> Deal | None:
    """Return the deal that was made of an exercise; None if none was made by this secret.

    Raises:
        DealError: what varies in the exercise has changed since, or somebody has no id.
    """
    stored = _read(path)
    dealt = stored["exercises"].get(source.stem)
    if dealt is None:
        return None
    _need_ids(roster)
    exercise = read_exercise(source)
    if _choices(exercise) != dealt["choices"]:
        raise DealError(
            f"{source.name}: what varies has changed since it was released to learners, so their variants would be "
            "others: undo that change, or release it again to everybody"
        )
    learners = tuple(dealt["learners"])
    return Deal(bytes.fromhex(stored["secret"]), exercise.name, exercise.variants, roster, learners)


def _choices(exercise: Exercise) -> str:
    """Return a hash of all that may vary."""
    return digest(*(json.dumps([choice.names, choice.options]) for choice in exercise.variants.choices))


def _need_ids(roster: Roster) -> None:
    ids: dict[str, str] = {}
    for one in roster.people:
        if not id_of(one):
            raise DealError(
                f"the roster has no id for {one.name}: variants are dealt by a column `id` that never changes, such "
                "as the student number"
            )
        if other := ids.get(id_of(one)):
            raise DealError(f"the roster has the id {id_of(one)} for {other} and {one.name}: an id is one person's")
        ids[id_of(one)] = one.name


def _read(path: Path) -> dict[str, Any]:
    lost = f"no secret of the course at {path}: put back the one that `txgrade release --roster` made, or name it with"
    if not path.is_file():
        raise DealError(f"{lost} --secret FILE")
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if len(bytes.fromhex(stored["secret"])) < 16 or not isinstance(stored["exercises"], dict):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise DealError(f"{path} is not a secret that `txgrade release --roster` made: put that one back") from None
    return stored
