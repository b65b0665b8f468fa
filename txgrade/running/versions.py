"""The versions of an assignment that one run grades by: one for everybody, or each learner's variant."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from txgrade.authoring.assignment import Assignment, digest
from txgrade.authoring.data import digest_of
from txgrade.authoring.deal import Deal, DealError
from txgrade.authoring.read import read_assignment
from txgrade.records.result import Note
from txgrade.submitting.finding import WHOSE, SubmissionFile
from txgrade.submitting.reading import Submission

MOST = 0.5  # of the submissions are dealt copies only where something was dealt


@dataclass
class Versions:
    """An assignment, in as many variants as were dealt.

    `whole` is the class's: it has the tasks of all variants, and the hash by which the gradebook knows them all.
    """

    whole: Assignment
    deal: Deal | None = None
    read: dict[int | None, Assignment] = field(default_factory=dict)  # by variant

    def of(self, variant: int | None) -> Assignment:
        """Return a variant, with what references said of its tasks."""
        if self.deal is None:
            return self.whole
        if variant not in self.read:
            number = 0 if variant is None else variant
            self.read[variant] = replace(
                read_assignment(self.whole.path, number, dealt=True), hash=self.whole.hash, variant=variant
            )
        version = self.read[variant]
        complete = {task.id: task for task in self.whole.tasks}
        tasks = tuple(
            replace(task, kind=complete[task.id].kind, forbidden=complete[task.id].forbidden) for task in version.tasks
        )
        return replace(version, tasks=tasks)

    def all(self) -> list[Assignment]:
        """Return all versions that there are."""
        return [self.whole] if self.deal is None else [self.of(number) for number in range(self.deal.variants.count)]

    def learn(self, completed: Iterable[Assignment]) -> None:
        """Take over what references said of their tasks."""
        learned = {task.id: task for assignment in completed for task in assignment.tasks}
        tasks = tuple(
            replace(task, kind=learned[task.id].kind, forbidden=learned[task.id].forbidden)
            if task.id in learned
            else task
            for task in self.whole.tasks
        )
        self.whole = replace(self.whole, tasks=tasks)

    def variant(self, file: SubmissionFile) -> int | None:
        """Return by which variant a file is judged: the learner's own, whatever it says of itself."""
        if self.deal is None:
            return self.whole.variant
        learners = self.deal.roster.find(file.file_name, file.number)
        return self.deal.variant(learners[0]) if len(learners) == 1 else None

    def checked(self, file: SubmissionFile, submission: Submission) -> Submission:
        """Return a submission with what its mark says: whose copy it is, and that nobody knows its variant."""
        if self.deal is None:
            return submission
        learners = self.deal.roster.find(file.file_name, file.number)
        if len(learners) != 1:
            notes = tuple(note for note in submission.notes if note.kind in WHOSE)  # it is compared with no variant
            return replace(submission, status="unknown learner", answers={}, variant=None, notes=notes)
        if submission.copy in ("", self.deal.mark(learners[0])):
            return submission
        note = Note("other copy", f"the notebook was made for {self.deal.made_for(submission.copy)}")
        return replace(submission, notes=(*submission.notes, note))

    def need_secret(self, submissions: list[Submission]) -> None:
        """Refuse to judge dealt copies by one and the same numbers.

        Raises:
            DealError: most notebooks are dealt copies, and there is no secret to tell their variants.
        """
        marked = sum(bool(submission.copy) for submission in submissions)
        if self.deal is None and marked > MOST * len(submissions):
            raise DealError(
                f"{marked} of {len(submissions)} notebooks were made for one learner each, of different variants: give "
                "--roster, and --secret with the file that `txgrade release --roster` made"
            )


def dealt_versions(path: Path, deal: Deal) -> Versions:
    """Return the versions of an exercise whose variants were dealt."""
    source = path.read_text(encoding="utf-8")
    first = read_assignment(path, 0, dealt=True)
    samples = [read_assignment(path, number, dealt=True) for number in range(deal.variants.diagonal)]
    tasks = {task.id: task for sample in samples for task in sample.tasks}
    stubs = {id: stub for sample in samples for id, stub in sample.stubs.items()}
    whole = replace(
        first,
        tasks=tuple(sorted(tasks.values(), key=lambda task: source.find(f'"grade_id": "{task.answers[0]}"'))),
        stubs=stubs,
        hash=digest("dealt", deal.fingerprint, source, *digest_of(first.data)),
        variant=None,
    )
    return Versions(whole, deal)
