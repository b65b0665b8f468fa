"""`txgrade submit exercises/exercise_03_attention.ipynb --to FOLDER`: hand an exercise in.

    FOLDER/NAME/03_attention.ipynb             the newest, which counts
    FOLDER/NAME/03_attention.receipt.json      when it came, and its sha256
    FOLDER/NAME/.versions/03_attention-2026-11-21T120000Z-1a2b3c4d.ipynb       each that was handed in

The folder is a shared one. With `chgrp staff` and `chmod 3773` learners may hand in, and only they themselves and the
group may read it. In a folder of their own learners may change what is there, dates and receipts included.
"""

import contextlib
import getpass
import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from txgrade.authoring.cells import STUBS
from txgrade.authoring.notebooks import LOADED, released_name
from txgrade.evidence.recordings import unpack
from txgrade.files import Folder, write_together
from txgrade.records.lateness import describe_deadline, late
from txgrade.records.people import account, file_name, lms_of, person, read_name, safe_name
from txgrade.submitting.folder import SubmitError, made, own_folder, plain_errors
from txgrade.submitting.notebook import (
    MAX_BYTES,
    MAX_RECEIPT,
    RECEIPT,
    STATUSES,
    Unreadable,
    grade_id_of,
    read_cells,
    read_file,
    source_of,
)
from txgrade.text import printable

TO = "TXGRADE_SUBMIT_TO"  # names the folder where none is given
NOBODY = ("", "jovyan", "root")  # what everybody is called in a container
PROVES_NOTHING = "Receipts aren't signed: whoever holds one can change it, and in their own folder what it names."
NO_RECEIPT = f"{{}} is not a receipt: give the …{RECEIPT} that txgrade submit wrote"


@dataclass(frozen=True)
class Receipt:
    """What was handed in, and when. Printed, it is what a learner should know."""

    exercise: str
    name: str
    account: str  # from which it was handed in: its login name
    submitted: str  # UTC, ISO 8601
    sha256: str  # of the file
    saved: str  # when the notebook was last saved, UTC
    answers: int  # how many tasks have an answer
    open: tuple[str, ...]  # titles of those that have none
    folder: str
    version: str  # name of the copy that stays
    due: str = ""  # the deadline, what being late costs, and whether this came in time; in words
    repeated: bool = False  # whether the same file was handed in before; then nothing was done

    @property
    def path(self) -> Path:
        return Path(file_name(self.folder), self.exercise + RECEIPT)

    @property
    def _by_another_name(self) -> bool:
        return self.account not in NOBODY and person(self.account) != person(self.name)

    def __str__(self) -> str:
        empty = f"; still empty: {', '.join(self.open)}" if self.open else ""
        return "\n".join(
            [
                f"{'Already handed in' if self.repeated else 'Handed in'}: {self.exercise}, by {self.name}, "
                f"{date(self.submitted)}",
                *([f"  account: {self.account}, which your instructor sees too"] if self._by_another_name else []),
                f"  answers: {self.answers} of {self.answers + len(self.open)}{empty}",
                f"  saved:   {date(self.saved)}; if you have typed since, save and hand in again",
                *([f"  due:     {self.due}"] if self.due else []),
                f"  sha256:  {self.sha256}",
                f"  receipt: {self.path}",
            ]
        )


def submit(
    notebook: Path | str, to: Path | str | None = None, *, name: str | None = None, anyway: bool = False
) -> Receipt:
    """Hand in a notebook, as it was last saved, to the folder `to` (or `$TXGRADE_SUBMIT_TO`).

    Earlier versions are kept. Nothing changes unless everything could be written; the same file again gives the same
    receipt again. `name` says whose it is: by default the login name. `anyway` allows a notebook without answers.

    Raises:
        SubmitError: it can't be read, isn't an exercise of that name, or holds no answer; no such folder, no right to
            write there, or no room.
    """
    path, folder = Path(notebook), _folder(to)
    data, saved = read_saved(path)
    recordings, answered, left = _answers(path, data)
    exercise = recordings["exercise"]
    if not answered and not anyway:
        raise SubmitError(f"{path} holds no answer, as it was saved {date(saved)}: save it, or say --anyway")
    name = _name(name)
    now = datetime.now(UTC)
    digest = hashlib.sha256(data).hexdigest()
    receipt = Receipt(
        exercise,
        name,
        _account(),
        now.isoformat(timespec="seconds"),
        digest,
        saved,
        len(answered),
        tuple(left),
        read_name(str((folder / file_name(name)).absolute())),
        f"{exercise}-{now:%Y-%m-%dT%H%M%SZ}-{digest[:8]}.ipynb",
        _due(recordings.get("due"), now),
    )
    with plain_errors(folder), own_folder(folder, file_name(name)) as own:
        if before := _before(own, exercise, digest):
            return before
        words = json.dumps({key: value for key, value in asdict(receipt).items() if key != "repeated"}, indent=1)
        with made(own, ".versions") as versions:
            write_together(
                [
                    (versions, receipt.version, data),
                    (own, f"{exercise}.ipynb", data),
                    (own, exercise + RECEIPT, (words + "\n").encode()),
                ]
            )
    return receipt


def verify(path: Path | str) -> str:
    """Compare a receipt with what is kept; returns what to say. It is not signed, so it proves nothing.

    Raises:
        SubmitError: it is no receipt, or what it names is gone or changed.
    """
    path = Path(path)
    receipt = _read_receipt(path)
    words = printable(f"{receipt.exercise} of {receipt.name}, handed in {date(receipt.submitted)}")
    beside = (path.parent / ".versions" / receipt.version).is_file()
    folder = path.parent if beside else receipt.path.parent
    try:
        kept = hashlib.sha256(read_file(folder / ".versions" / receipt.version)[0]).hexdigest()
    except Unreadable:
        raise SubmitError(f"{words}: it is no longer in {folder / '.versions'}") from None
    if kept != receipt.sha256:
        raise SubmitError(f"{words}: what is in {folder / '.versions'} is not what the receipt names")
    try:
        newest = hashlib.sha256(read_file(folder / f"{receipt.exercise}.ipynb")[0]).hexdigest()
    except Unreadable:
        newest = ""
    now = "it is what lies there now" if newest == kept else "something else lies there now"
    return f"the receipt says: {words}. A copy of that file is in {folder / '.versions'}, and {now}.\n{PROVES_NOTHING}"


def _folder(to: Path | str | None) -> Path:
    to = to or os.environ.get(TO)
    if not to:
        raise SubmitError(f"say where to hand it in: --to FOLDER, or set {TO}")
    folder = Path(to).expanduser()
    if not folder.is_dir():
        raise SubmitError(
            f"{folder} is {'not a folder' if folder.exists() else 'not there'}: "
            "give --to the folder that your instructor named"
        )
    return folder


def _name(name: str | None) -> str:
    if name is None:
        name = os.environ.get("JUPYTERHUB_USER", "")
        with contextlib.suppress(KeyError, OSError, ImportError):  # a user without a login name
            name = name or getpass.getuser()
        if name in NOBODY:
            raise SubmitError('say who you are: --name "Ada Lovelace"')
        name = read_name(name)
    if name != safe_name(name):
        raise SubmitError(f"the name {name!r} can't be a folder's: give e.g. --name {safe_name(name)!r}")
    if lms := lms_of(name) or lms_of(person(name)):
        raise SubmitError(
            f"the name {name!r} looks like a file's of {lms}, with somebody's number: give your own, e.g. "
            '--name "Ada Lovelace"'
        )
    if person(name).endswith(RECEIPT):
        better = safe_name(name[: -len(RECEIPT)])
        raise SubmitError(f"the name {name!r} is a receipt's: give e.g. --name {better!r}")
    return name


def _account() -> str:
    return account(os.geteuid()) if hasattr(os, "geteuid") else ""


def read_saved(path: Path) -> tuple[bytes, str]:
    if not path.exists():
        raise SubmitError(f"no notebook at {path}: give e.g. exercises/exercise_03_attention.ipynb")
    try:
        return read_file(path.resolve())
    except Unreadable as reason:
        raise SubmitError(f"{path}: {STATUSES[reason.status]}") from None


def _due(rule: dict | None, now: datetime) -> str:
    """Return the deadline in words, and whether it is past."""
    try:
        if not rule:
            return ""
        words = late(rule, now.isoformat()).words
        return f"{describe_deadline(rule)} {f'Now: {words}' if words else 'You are in time'}"
    except (
        ValueError,
        KeyError,
        TypeError,
        OverflowError,
    ):  # the notebook is the learner's; the grader goes by its own deadline
        return ""


def _answers(path: Path, data: bytes) -> tuple[dict, list[str], list[str]]:
    """Return the recordings, and the titles of the tasks that have an answer and that have none."""
    try:
        cells = read_cells(data)
    except Unreadable as reason:
        raise SubmitError(f"{path}: {STATUSES[reason.status]}") from None
    packed = next((match[1] for cell in cells if (match := LOADED.search(source_of(cell)))), None)
    if packed is None:
        raise SubmitError(
            f"{path} holds no exercise: give one that was released, e.g. exercises/exercise_03_attention.ipynb"
        )
    try:
        recordings = unpack(packed)
    except ValueError as reason:
        raise SubmitError(f"{path}: {reason}") from None
    exercise = recordings["exercise"]
    if path.name != released_name(exercise):
        raise SubmitError(
            f"{path} holds the exercise {exercise}, but is not named so: rename it to {released_name(exercise)}"
        )
    sources: dict[str, str] = {}
    for cell in cells:
        sources.setdefault(grade_id_of(cell) or str(cell.get("id"))[:100], source_of(cell))
    answered: list[str] = []
    left: list[str] = []
    for task in (*recordings["tasks"], *recordings.get("written", ())):
        text = sources.get(task["id"], "")
        (answered if text.strip() and not any(stub in text for stub in STUBS) else left).append(task["title"])
    return recordings, answered, left


def _before(own: Folder, exercise: str, digest: str) -> Receipt | None:
    """The receipt of the newest, if it is the same file."""
    try:
        name = exercise + RECEIPT
        receipt = _receipt(own.read(name, MAX_RECEIPT)[0], own.path / name)
        newest = hashlib.sha256(own.read(f"{exercise}.ipynb", MAX_BYTES)[0]).hexdigest()
    except (SubmitError, OSError):
        return None
    return replace(receipt, repeated=True) if newest == receipt.sha256 == digest else None


def _read_receipt(path: Path) -> Receipt:
    try:
        return _receipt(read_file(path.absolute(), MAX_RECEIPT)[0], path)
    except Unreadable as reason:
        raise SubmitError(NO_RECEIPT.format(path)) from reason


def _receipt(data: bytes, path: Path) -> Receipt:
    try:
        fields = json.loads(data)
        receipt = Receipt(**fields | {"open": tuple(fields["open"])})
        datetime.fromisoformat(receipt.submitted)
        if Path(receipt.version).name != receipt.version:
            raise ValueError(receipt.version)
        file_name(receipt.folder)  # has to be a name
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as reason:
        raise SubmitError(NO_RECEIPT.format(path)) from reason
    return receipt


def date(iso: str) -> str:
    return f"{datetime.fromisoformat(iso).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
