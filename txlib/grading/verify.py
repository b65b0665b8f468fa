"""The author's proof of an exercise: what the tests hold for each, on the public seed and on others."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from txlib.grading.exercise import Task, read_exercise
from txlib.grading.record import record_evidence
from txlib.grading.recordings import first_difference, same, share
from txlib.grading.release import measured_shares, recordings_of, share_problems, stub_problems, task_problems
from txlib.grading.verdict import judge

OTHER_SEEDS = (1, 2, 3, 4)


@dataclass(frozen=True)
class TaskReport:
    """What was found of one task that has a check. The lists have an entry a known answer."""

    task: str
    points: int | float
    reference: bool  # right on every seed
    alternatives: tuple[bool, ...]  # each one right on every seed
    mistakes: tuple[bool, ...]  # each one wrong on every seed, with its own sentence on the public one
    stub_points: int | float
    problems: tuple[str, ...] = field(default=())
    mistake_points: tuple[int | float, ...] = ()  # the most that each mistake earns on any seed
    measured: tuple[float, ...] = ()  # a measured task: the reference's share of the points, seed by seed
    seconds: float = 0.0  # one run of the check with the reference

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(source: Path | str, seeds: tuple[int, ...] = OTHER_SEEDS) -> list[TaskReport]:
    """Prove an exercise: reference and alternatives right, each mistake caught, the stub worth nothing.

    Hidden tests are included, as the grader runs them. On the public seed each mistake must also be told its own
    sentence, by the recordings that a learner's notebook holds. Of a measured task the reference is worth all points
    on every seed, and each mistake less.

    Raises:
        ExerciseError: the source's form is wrong.
        RecordingError: its own code fails.
    """
    exercise = read_exercise(source)
    public = exercise.seed
    result = record_evidence(exercise.path, [public], sorted({public, *seeds}))
    opened, hidden = result["open"][str(public)], {int(seed): run for seed, run in result["hidden"].items()}
    recordings = {each["id"]: each for each in recordings_of(exercise, opened, public, result["measured"])["tasks"]}
    shares = measured_shares(exercise, result["measured"], hidden)
    reports = []
    for task in exercise.tasks:
        if task.id in result["measured"]:
            found = _measured(task, opened, {seed: shares[task.id, seed] for seed in hidden})
        else:
            found = _compared(task, opened, hidden, recordings[task.id])
        stub = judge(recordings[task.id], result["stub"][task.id])
        problems = [*found.problems, *stub_problems(result["stub"][task.id])]
        problems += [
            f"the reference itself calls {name}, which the task forbids" for name in result["broken"].get(task.id, ())
        ]
        reports.append(
            replace(
                found,
                stub_points=stub.points,
                seconds=result["seconds"][task.id],
                problems=tuple(dict.fromkeys(problems)),
            )
        )
    return reports


def _compared(task: Task, opened: dict, hidden: dict[int, dict], recording: dict) -> TaskReport:
    problems = task_problems(task.id, opened, measured=False)
    known = [each for each in opened["known"] if each["task"] == task.id]
    right = judge(recording, opened["reference"][task.id]).right
    passes = [judge(recording, each["bundle"]).right for each in known]
    sentences = [judge(recording, each["bundle"]).lines[:1] == (each["sentence"],) for each in known]
    earned = [0.0] * len(known)
    for seed, run in hidden.items():
        reference = run["reference"][task.id]
        right &= reference["error"] is None
        for i, each in enumerate(each for each in run["known"] if each["task"] == task.id):
            earned[i] = max(earned[i], share(each["bundle"], reference))
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
    if not right:
        problems.append("the reference does not pass")
    rows = list(zip(known, passes, sentences, earned, strict=True))
    mistakes = [row for row in rows if row[0]["sentence"] is not None]
    return TaskReport(
        task.id,
        task.points,
        right,
        tuple(row[1] for row in rows if row[0]["sentence"] is None),
        tuple(row[2] for row in mistakes),
        0,
        tuple(problems),
        tuple(row[3] * task.points for row in mistakes),
    )


def _measured(task: Task, opened: dict, shares: dict[int, list[dict]]) -> TaskReport:
    known = [each for each in opened["known"] if each["task"] == task.id]
    problems = task_problems(task.id, opened, measured=True)
    problems += [
        f"on seed {seed}: {problem}"
        for seed, found in shares.items()
        for problem in share_problems(task.id, opened, found)
    ]
    worth = [[each.get("share", math.nan) for each in found[:-1]] for found in shares.values()]  # seeds, answers
    reference, *others = zip(*worth, strict=True)
    alternatives = [each for each, answer in zip(others, known, strict=True) if answer["sentence"] is None]
    mistakes = [each for each, answer in zip(others, known, strict=True) if answer["sentence"] is not None]
    return TaskReport(
        task.id,
        task.points,
        set(reference) == {1.0},
        tuple(set(each) == {1.0} for each in alternatives),
        tuple(max(each) < 1 for each in mistakes),
        0,
        tuple(problems),
        tuple(max(each) * task.points for each in mistakes),
        reference,
    )
