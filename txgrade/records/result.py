"""The result of grading a submission: plain data that the gradebook keeps and every report is made from."""

import dataclasses
from dataclasses import dataclass
from typing import Any

# What a task's verdict may be, and what a page says of it.
VERDICTS = {
    "right": "right",
    "partial": "partly right",
    "mistake": "not yet",  # a known wrong answer, with its sentence
    "wrong": "not yet",
    "error": "not yet",  # the answer raised
    "unanswered": "not answered",
    "missing": "its cell is missing",
    "timeout": "took too long",
    "stopped": "not reached: an earlier cell ended the run",
    "invalid": "gave no valid evidence",  # none, several, too much, or not of this check
    "pending": "waiting to be marked",  # a written answer without points yet
    "reviewed": "marked by a person",
}


# What a result takes over from its submission, and what may change without grading again.
ARRIVAL = ("submitted", "marked_late", "origin", "learner", "known_as", "allowance")


@dataclass(frozen=True)
class Note:
    """A remark on a submission that a person should read, on one task or on the whole.

    `kind` is a fixed word (`duplicated`, `missing`, `moved`, `retagged`, `changed check`, `extra code`,
    `other variant`, `forbidden call`, `late`, `time unknown`, …); `review` is whether a person has to look before
    the grade is final.
    """

    kind: str
    text: str
    task: str | None = None
    review: bool = True


@dataclass(frozen=True)
class Allowance:
    """What a learner is allowed: another deadline, and slip days that are left, each of which pays for a late day."""

    until: str = ""  # in the form and the zone of the exercise's deadline
    slip_days: int = 0


@dataclass(frozen=True)
class Part:
    """One sub-check: a value that the check cell showed."""

    label: str
    right: bool
    points: int | float = 0
    max_points: int | float = 0


@dataclass(frozen=True)
class TaskResult:
    """One task of one submission. `points` is what counts: the better of `in_sequence` and `alone`."""

    id: str
    title: str
    kind: str  # evidence, measured, tests (in-kernel), written
    verdict: str  # a key of VERDICTS
    points: int | float
    max_points: int | float
    in_sequence: int | float = 0  # with the submission's own answers to earlier tasks
    alone: int | float = 0  # without the submission's own wrong ones
    lines: tuple[str, ...] = ()  # the diagnosis, markdown: `code` and *emphasis*
    matrices: tuple[dict, dict] | None = None  # the answer's and the expected evidence, if small enough to look at
    parts: tuple[Part, ...] = ()
    answer: str = ""  # the source that was graded
    answer_hash: str = ""  # of the answer without blanks at line ends
    outputs: tuple[dict, ...] = ()  # what the answer's cell displayed: {"text": …} or {"png": base64}
    sentences: tuple[str, ...] = ()  # of its author's about known mistakes, all that apply


@dataclass(frozen=True)
class Result:
    """One submission, graded. Two runs with the same hashes, seeds and isolation give the same result."""

    submission: str  # the learner's name: the file's or folder's
    status: str  # "graded", or why not (see `txgrade.submitting.reading`)
    score: int | float  # after the late penalty
    max_score: int | float
    isolation: str  # sealed, limits-only or none
    seeds: tuple[int, ...]
    submission_hash: str  # sha256 of the file; "" where it can't be read
    assignment_hash: str
    environment: str  # versions of Python, torch, numpy, txgrade
    tasks: tuple[TaskResult, ...] = ()
    notes: tuple[Note, ...] = ()
    penalty: int | float = 0  # points taken off for being late
    submitted: str | None = None  # UTC, ISO 8601; None if nobody knows
    junit: str = ""  # the judge's report, XML
    learner: str = ""  # as the roster calls them
    known_as: tuple[str, ...] = ()  # all that the roster calls them, addresses and logins too, as `person` gives it
    marked_late: bool | None = None  # by the system that it was downloaded from; None if it marks nothing
    origin: str = ""  # its name in the download that it was collected from
    allowance: Allowance = Allowance()
    slip_days_used: int = 0
    variant: int | None = None  # of the assignment, by which it was judged

    @property
    def name(self) -> str:
        """The learner's name, as a page shows it."""
        return self.learner or self.submission

    @property
    def waiting(self) -> int:
        """How many written answers wait to be marked."""
        return sum(task.verdict == "pending" for task in self.tasks)

    @property
    def fraction(self) -> float | None:
        """The score as a part of the points of what is marked; None if nothing is."""
        most = self.max_score - sum(task.max_points for task in self.tasks if task.verdict == "pending")
        return self.score / most if most > 0 else None

    @property
    def needs_look(self) -> bool:
        """Whether a person should look at it, besides marking what is written."""
        return self.status != "graded" or any(note.review for note in self.notes)

    @property
    def needs_review(self) -> bool:
        return self.waiting > 0 or self.needs_look

    def data(self) -> dict:
        """Return it as JSON can hold it."""
        return dataclasses.asdict(self)


def result_from(data: dict[str, Any]) -> Result:
    """Return the result that `Result.data` was made from."""
    tasks = []
    for task in data["tasks"]:
        parts = tuple(Part(**part) for part in task["parts"])
        matrices = tuple(task["matrices"]) if task["matrices"] else None
        tasks.append(
            TaskResult(
                **task
                | {
                    "parts": parts,
                    "matrices": matrices,
                    "lines": tuple(task["lines"]),
                    "outputs": tuple(task["outputs"]),
                    "sentences": tuple(task.get("sentences", ())),
                }
            )
        )
    return Result(
        **data
        | {
            "tasks": tuple(tasks),
            "notes": tuple(Note(**note) for note in data["notes"]),
            "seeds": tuple(data["seeds"]),
            "known_as": tuple(data.get("known_as", ())),
            "allowance": Allowance(**data.get("allowance", {})),
        }
    )
