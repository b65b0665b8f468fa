"""The proof of an exercise, `txgrade validate`: what its tests make of each known answer, on several seeds."""

import math
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from txgrade import notebook_runner
from txgrade.authoring.assignment import Assignment, rebuild, solved
from txgrade.authoring.exercise import Exercise, ExerciseError, Task, read_exercise
from txgrade.authoring.hardcoding import hardcoded_shares, hardcoding_problems
from txgrade.authoring.library_calls import library_calls, library_problems
from txgrade.authoring.measure import measured_shares
from txgrade.authoring.nbgrader import autograded
from txgrade.authoring.problems import share_problems, stub_problems, task_problems
from txgrade.authoring.read import read_assignment
from txgrade.authoring.record import RecordingError, record_evidence
from txgrade.authoring.release import recordings_of
from txgrade.checking.verdict import verdict_of
from txgrade.evidence.recordings import first_difference, same, share

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
    measured: tuple[float, ...] = ()  # a measured task: the reference's fraction of the points, seed by seed
    seconds: float = 0.0  # one run of the check with the reference

    @property
    def ok(self) -> bool:
        return not self.problems


def prove(source: Path | str, seeds: tuple[int, ...] = OTHER_SEEDS, *, variant: int | None = None) -> list[TaskReport]:
    """Prove an exercise or a variant: reference and alternatives right, each mistake caught, the stub worth nothing.

    Hidden tests are included, as the grader runs them. On the public seed each mistake must also be told its own
    sentence, by the recordings that a learner's notebook holds. Of a measured task the reference is worth all points
    on every seed, and each mistake less; of the others, values seen on other seeds are worth nothing, and a call of
    torch's that returns the reference's values is forbidden or allowed.

    Raises:
        ExerciseError: the source's form is wrong, or it counts costs where an answer can reach the counter.
        RecordingError: its own code fails.
    """
    exercise = read_exercise(source, variant)
    result = record_evidence(exercise.path, [exercise.seed], sorted({exercise.seed, *seeds}), variant=variant)
    if result["counters"]:
        raise ExerciseError(exercise.name, result["counters"])
    lookups = hardcoded_shares(exercise.path, variant=variant)
    library = library_calls(exercise.path, variant=variant)
    reports = []
    for report in evidence_reports(exercise, result):
        if report.task not in result["measured"]:
            more = [*hardcoding_problems(lookups[report.task]), *library_problems(library.get(report.task, []))]
            report = replace(report, problems=(*report.problems, *more))
        reports.append(report)
    return reports


def evidence_reports(exercise: Exercise, result: dict) -> list[TaskReport]:
    """Return what the evidence of an exercise says of each task; `result` is what `record_evidence` returned."""
    public = exercise.seed
    opened, hidden = result["open"][str(public)], {int(seed): run for seed, run in result["hidden"].items()}
    recordings = {task["id"]: task for task in recordings_of(exercise, opened, public, result["measured"])["tasks"]}
    shares = measured_shares(exercise, result["measured"], hidden)
    reports = []
    for task in exercise.tasks:
        if task.id in result["measured"]:
            report = _measured(task, opened, {seed: shares[task.id, seed] for seed in hidden})
        else:
            report = _compared(task, opened, hidden, recordings[task.id])
        stub = verdict_of(recordings[task.id], result["stub"][task.id])
        problems = [*report.problems, *stub_problems(result["stub"][task.id]), *result["leaks"][task.id]]
        problems += [
            f"the reference itself calls {name}, which the task forbids" for name in result["broken"].get(task.id, ())
        ]
        reports.append(
            replace(
                report,
                stub_points=stub.points,
                seconds=result["seconds"][task.id],
                problems=tuple(dict.fromkeys(problems)),
            )
        )
    return reports


def _compared(task: Task, opened: dict, hidden: dict[int, dict], recording: dict) -> TaskReport:
    problems = task_problems(task.id, opened, measured=False)
    answers = [answer for answer in opened["known"] if answer["task"] == task.id]
    right = verdict_of(recording, opened["reference"][task.id]).right
    passes = [verdict_of(recording, answer["bundle"]).right for answer in answers]
    sentences = [verdict_of(recording, answer["bundle"]).lines[:1] == (answer["sentence"],) for answer in answers]
    earned = [0.0] * len(answers)
    for seed, run in hidden.items():
        reference = run["reference"][task.id]
        right &= reference["error"] is None
        for i, answer in enumerate(answer for answer in run["known"] if answer["task"] == task.id):
            earned[i] = max(earned[i], share(answer["bundle"], reference))
            if answer["sentence"] is None:
                passes[i] &= first_difference(answer["bundle"], reference) is None
            elif same(answer["bundle"], reference):
                sentences[i] = False
                problems.append(f'on seed {seed} a mistake can\'t be told from the reference: "{answer["sentence"]}"')
    for answer, passed, has_sentence in zip(answers, passes, sentences, strict=True):
        if answer["sentence"] is None and not passed:
            problems.append("an alternative is not accepted")
        if answer["sentence"] is not None and not has_sentence:
            problems.append(f'a mistake does not get its sentence: "{answer["sentence"]}"')
    if not right:
        problems.append("the reference does not pass")
    rows = list(zip(answers, passes, sentences, earned, strict=True))
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
    answers = [answer for answer in opened["known"] if answer["task"] == task.id]
    problems = task_problems(task.id, opened, measured=True)
    problems += [
        f"on seed {seed}: {problem}"
        for seed, worth in shares.items()
        for problem in share_problems(task.id, opened, worth)
    ]
    worth = [[answer.get("share", math.nan) for answer in run[:-1]] for run in shares.values()]  # seeds, answers
    reference, *others = zip(*worth, strict=True)
    alternatives = [fractions for fractions, answer in zip(others, answers, strict=True) if answer["sentence"] is None]
    mistakes = [fractions for fractions, answer in zip(others, answers, strict=True) if answer["sentence"] is not None]
    return TaskReport(
        task.id,
        task.points,
        set(reference) == {1.0},
        tuple(set(fractions) == {1.0} for fractions in alternatives),
        tuple(max(fractions) < 1 for fractions in mistakes),
        0,
        tuple(problems),
        tuple(max(fractions) * task.points for fractions in mistakes),
        reference,
    )


@dataclass(frozen=True)
class Validation:
    """What was found of one source."""

    assignment: Assignment
    reports: tuple[TaskReport, ...]  # of the tasks that are not marked by a person

    @property
    def problems(self) -> list[str]:
        return [f"task {report.task}: {problem}" for report in self.reports for problem in report.problems]

    def table(self) -> str:
        """Return a line a task."""
        row = "{:<28} {:>6}  {:<9}  {:>12}  {:>8}  {:>4}  {:>7}".format
        lines = [row("task", "points", "reference", "alternatives", "mistakes", "stub", "seconds")]
        for report in self.reports:
            lines.append(
                row(
                    report.task,
                    f"{report.points:g}",
                    "passes" if report.reference else "FAILS",
                    _share(report.alternatives),
                    _share(report.mistakes),
                    f"{report.stub_points:g}",
                    f"{report.seconds:.3f}",
                )
            )
        by_hand = [task.id for task in self.assignment.tasks if task.kind == "written"]
        return "\n".join(lines + [f"marked by a person: {', '.join(by_hand)}"] * bool(by_hand))


def validate(source: Path | str, variant: int | None = None) -> Validation:
    """Prove a source or a variant of it: the reference gets all points, the stub none; and what `prove` proves.

    A source of nbgrader's has neither known mistakes nor seeds: its tests run once on its own solutions, and once
    on the released stubs.

    Raises:
        FileNotFoundError: no such source.
        ExerciseError: its form is wrong, or its own code fails.
    """
    assignment = read_assignment(source, variant)
    if assignment.tasks and all(task.kind in ("tests", "written") for task in assignment.tasks):
        return Validation(assignment, tuple(_tested(assignment)))
    try:
        return Validation(assignment, tuple(prove(source, variant=variant)))
    except RecordingError as reason:
        raise ExerciseError(assignment.name, [f"the reference fails: {reason}"]) from reason


def _tested(assignment: Assignment) -> list[TaskReport]:
    """nbgrader's tests on the assignment's own solutions and on the stubs."""
    reference, seconds = _run(assignment, solved(assignment))
    stub, _ = _run(assignment, rebuild(assignment, {}))
    reports = []
    for task in assignment.tasks:
        if task.kind != "tests":
            continue
        outputs = reference[task.check]
        points, stub_points = autograded(outputs, task), autograded(stub[task.check], task)
        problems = []
        if points != task.points:
            errors = [
                f": {output['ename']}: {output['evalue']}" for output in outputs if output["output_type"] == "error"
            ]
            problem = f"the reference gets {points:g} of {task.points:g} points{''.join(errors[:1])}"
            problems.append(problem.splitlines()[0])
        if stub_points:
            problems.append(f"the empty stub gets {stub_points:g} points")
        reports.append(
            TaskReport(
                task.id,
                task.points,
                points == task.points,
                (),
                (),
                stub_points,
                tuple(problems),
                seconds=seconds.get(task.check, 0.0),
            )
        )
    return reports


def _run(assignment: Assignment, notebook: Any) -> tuple[dict[str, list], dict[str, float]]:
    """Run in a plain kernel, errors and all; returns the code cells' outputs and seconds, by id."""
    with tempfile.TemporaryDirectory() as home:
        try:
            seconds = notebook_runner.run(
                notebook,
                assignment.path.parent,
                timeout=assignment.timeout,
                keep_going=True,
                interrupt=True,
                TXGRADE_HOME=home,
            )
        except notebook_runner.Stopped as reason:
            raise ExerciseError(assignment.name, [str(reason)]) from reason
    return {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}, seconds


def _share(flags: tuple[bool, ...]) -> str:
    return f"{sum(flags)} of {len(flags)}" if flags else "–"
