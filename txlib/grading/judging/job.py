"""Grades one submission: the job that a process of this machine, or of a cluster, is given."""

import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from txlib.grading.authoring.assignment import Assignment, GradedTask, rebuild, rests_on_others
from txlib.grading.judging.execute import execute
from txlib.grading.judging.judge import Outcome, Reference, Run, answer_hash, displayed, judge, outcome, task_result
from txlib.grading.judging.replay import bundles
from txlib.grading.records.result import Note, Result, TaskResult
from txlib.grading.sandbox.limits import Limits


@dataclass(frozen=True)
class Job:
    """All that grading one submission takes; plain data, so that it can travel."""

    assignment: Assignment
    reference: Reference
    submission: Any  # a `txlib.grading.submitting.reading.Submission`
    seeds: tuple[int, ...]
    limits: Limits
    isolation: str
    environment: str
    source: str  # the text of the assignment's file, for measured tasks
    trust: bool = False  # whether less than a sealed sandbox is allowed


def grade_submission(job: Job) -> Result:
    """Execute a submission on every seed, each time in a fresh sandbox, and judge it."""
    assignment, submission = job.assignment, job.submission
    result = Result(
        submission.name,
        submission.status,
        0,
        assignment.points,
        job.isolation,
        job.seeds,
        submission.hash,
        assignment.hash,
        job.environment,
        notes=tuple(submission.notes),
        submitted=submission.submitted,
    )
    if submission.status != "graded":
        return result
    seeds = job.seeds if job.reference.recordings else job.seeds[:1]  # asserts know no seed
    runs = [_run(job, seed) for seed in seeds]
    for task in assignment.tasks:
        if _wants_alone(job, task, runs):
            runs += [_run(job, seed, task.id) for seed in seeds]
    outcomes, junit = judge(assignment, job.reference, runs)
    outputs = displayed(assignment, runs[0].executed)
    tasks = tuple(
        replace(_graded(job, task, outcomes, runs), outputs=outputs.get(task.id, ())) for task in assignment.tasks
    )
    notes = (*submission.notes, *_forbidden_calls(job, outcomes), *_disagreements(assignment, outcomes))
    return _with_lateness(
        replace(result, tasks=tasks, notes=notes, junit=junit, score=round(sum(task.points for task in tasks), 6)),
        assignment,
    )


def _run(job: Job, seed: int, only: str | None = None) -> Run:
    notebook = rebuild(job.assignment, job.submission.answers, only)
    recorded = bool(job.reference.recordings)
    limits = replace(job.limits, cell_seconds=max(job.limits.cell_seconds, job.assignment.timeout))
    executed = execute(notebook, seed if recorded else None, limits)
    return Run(seed, executed, only, _shares(job, executed, seed, only))


def _wants_alone(job: Job, task: GradedTask, runs: list[Run]) -> bool:
    """Whether a task that isn't right in sequence may owe that to other cells of the submission."""
    if task.kind in ("tests", "written") or not _answered(job, task):
        return False
    found = [outcome(task, run, job.reference) for run in runs if run.only is None]
    if all(each.verdict == "right" for each in found):
        return False
    if rests_on_others(job.assignment, task, job.submission.answers):
        return True
    others = any(_answered(job, each) for each in job.assignment.tasks if each.id != task.id)
    return others and not all(each.known for each in found)


def _answered(job: Job, task: GradedTask) -> bool:
    """Whether the submission has something else than the stub."""
    answers, stubs = job.submission.answers, job.assignment.stubs
    return any(id in answers and answer_hash(answers[id]) != answer_hash(stubs.get(id, "")) for id in task.answers)


def _graded(job: Job, task: GradedTask, outcomes: dict, runs: list[Run]) -> TaskResult:
    answer = "\n\n".join(job.submission.answers.get(id, "") for id in task.answers).strip()
    if task.kind == "written":
        # A task cell of nbgrader's has no answer cell: the answer stands in cells that the learner added.
        verdict = "pending" if _answered(job, task) or not task.answers else "unanswered"
        return TaskResult(
            task.id, task.title, task.kind, verdict, 0, task.points, answer=answer, answer_hash=answer_hash(answer)
        )
    result = task_result(task, outcomes, runs, answer)
    if not any(id in job.submission.answers for id in task.answers) and not result.points and task.answers:
        return replace(result, verdict="missing", lines=("Its cell is not in your notebook.",), matrices=None)
    return result


def _shares(job: Job, executed: Any, seed: int, only: str | None) -> dict[str, tuple[float, str]]:
    """Measure what measured tasks have shown, with the author's code, in a process of its own."""
    from txlib.grading.evidence.valid import valid_bundle

    requests = []
    for task in job.assignment.tasks:
        if task.kind == "measured" and only in (None, task.id):
            found = bundles(executed.outputs.get(task.check, []))
            if len(found) == 1 and not valid_bundle(found[0], task.id, seed) and not found[0]["error"]:
                requests.append({"task": task.id, "seed": seed, "bundle": found[0]})
    if not requests:
        return {}
    from txlib.grading.authoring.measure import measure

    measured = measure(_local_source(job), requests)
    if wrong := [each["error"] for each in measured if "error" in each]:
        raise ValueError(f"{job.assignment.name}: {wrong[0]}")  # the author's error, not the learner's
    return {
        request["task"]: (each["share"], each.get("sentence") or "")
        for request, each in zip(requests, measured, strict=True)
    }


def _local_source(job: Job) -> Path:
    """The assignment's file; written anew where this machine doesn't have it."""
    path = job.assignment.path
    if path.is_file() and path.read_text(encoding="utf-8") == job.source:
        return path
    return _written(path.name, job.source)


@cache
def _written(name: str, source: str) -> Path:
    path = Path(tempfile.mkdtemp(prefix="txlib-"), name)
    path.write_text(source, encoding="utf-8")
    return path


def _forbidden_calls(job: Job, outcomes: dict[tuple, Outcome]) -> list[Note]:
    """Flags for a person: what an answer calls although its task says not to. It proves nothing."""
    from txlib.grading.authoring.calls import forbidden_names

    notes = []
    for task in job.assignment.tasks:
        answer = "\n".join(job.submission.answers.get(id, "") for id in task.answers)
        named = forbidden_names(answer, [each for each in task.forbidden if not each.startswith("aten.")])
        ran = {
            name
            for (id, _, alone), found in outcomes.items()
            if id == task.id and not alone
            for name in found.operators
        }
        called = sorted({*named, *(ran & set(task.forbidden))})
        if called:
            notes.append(Note("forbidden call", f"calls {', '.join(called)}", task.id))
    return notes


def _disagreements(assignment: Assignment, outcomes: dict[tuple, Outcome]) -> list[Note]:
    """Tasks that are right on one seed and not on another: chance, or an answer that guesses."""
    notes = []
    for task in assignment.tasks:
        verdicts = {found.verdict for (id, _, alone), found in outcomes.items() if id == task.id and not alone}
        if "right" in verdicts and len(verdicts) > 1:
            notes.append(Note("seeds disagree", "right on one seed, not on another", task.id))
    return notes


def _with_lateness(result: Result, assignment: Assignment) -> Result:
    if not assignment.due or not result.submitted:
        return result
    from txlib.grading.records.lateness import late

    share, words = late(assignment.due, result.submitted)
    if not share:
        return result
    penalty = round(result.score * share, 6)
    note = Note("late", words, review=False)
    return replace(result, penalty=penalty, score=round(result.score - penalty, 6), notes=(*result.notes, note))
