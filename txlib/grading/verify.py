"""The author's proof of an exercise: what the tests hold for each, on the public seed and on others."""

from dataclasses import dataclass, field
from pathlib import Path

from txlib.grading.exercise import read_exercise
from txlib.grading.record import record_evidence
from txlib.grading.recordings import first_difference, same
from txlib.grading.release import recordings_of, task_problems
from txlib.grading.verdict import judge

OTHER_SEEDS = (1, 2, 3, 4)


@dataclass(frozen=True)
class TaskReport:
    """What was found of one task. Each list has one entry a seed and known answer."""

    task: str
    points: int | float
    reference: bool                       # right on every seed
    alternatives: tuple[bool, ...]        # each one right on every seed
    mistakes: tuple[bool, ...]            # each one wrong on every seed, with its own sentence on the public one
    stub_points: int | float
    problems: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(source: Path | str, seeds: tuple[int, ...] = OTHER_SEEDS) -> list[TaskReport]:
    """Prove an exercise: reference and alternatives right, each mistake caught, the stub worth nothing.

    Hidden tests are included, as the grader runs them. On the public seed each mistake must also be told its own
    sentence, by the recordings that a learner's notebook holds.

    Raises:
        ExerciseError: the source's form is wrong.
        RecordingError: its own code fails.
    """
    exercise = read_exercise(source)
    public = exercise.seed
    result = record_evidence(exercise.path, [public], sorted({public, *seeds}))
    evidence = result["open"][str(public)]
    recordings = {each["id"]: each for each in recordings_of(exercise, evidence, public)["tasks"]}
    reports = []
    for task in exercise.tasks:
        recording = recordings[task.id]
        problems = task_problems(task.id, evidence)
        known = [each for each in evidence["known"] if each["task"] == task.id]
        right = judge(recording, evidence["reference"][task.id]).right
        passes = [judge(recording, each["bundle"]).right for each in known]
        sentences = [judge(recording, each["bundle"]).lines[:1] == (each["sentence"],) for each in known]
        for seed, run in result["hidden"].items():
            reference = run["reference"][task.id]
            right &= reference["error"] is None
            for i, each in enumerate(each for each in run["known"] if each["task"] == task.id):
                if each["sentence"] is None:
                    passes[i] &= first_difference(each["bundle"], reference) is None
                elif same(each["bundle"], reference):
                    sentences[i] = False
                    problems.append(f'on seed {seed} a mistake can\'t be told from the reference: "{each["sentence"]}"')
        for each, passed, told in zip(known, passes, sentences, strict=True):
            if each["sentence"] is None and not passed:
                problems.append("an alternative is not accepted")
            if each["sentence"] is not None and not told:
                problems.append(f'a mistake is not told its sentence: "{each["sentence"]}"')
        stub = judge(recording, result["stub"][task.id])
        if not right:
            problems.append("the reference does not pass")
        if stub.points:
            problems.append(f"the empty stub gets {stub.points:g} points")
        reports.append(TaskReport(
            task.id, task.points, right,
            tuple(passed for each, passed in zip(known, passes, strict=True) if each["sentence"] is None),
            tuple(told for each, told in zip(known, sentences, strict=True) if each["sentence"] is not None),
            stub.points, tuple(dict.fromkeys(problems))))
    return reports
