"""Grades one submission: the job that a process of this machine, or of a cluster, is given."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from txgrade.authoring.assignment import Assignment, GradedTask, rebuild, rebuild_alone, rests_on
from txgrade.checking.failed_cells import BEFORE as NOT_RUN
from txgrade.judging.displayed import displayed
from txgrade.judging.execute import LEAST_CPU_SHARE, Executed, execute
from txgrade.judging.judge import answer_hash, judge, one_report, task_result
from txgrade.judging.outcome import Outcome, Reference, Run, quoted_outcome
from txgrade.judging.replay import bundles
from txgrade.records.lateness import with_lateness
from txgrade.records.result import ARRIVAL, Note, Result, TaskResult
from txgrade.sandbox.limits import Limits
from txgrade.seeds import kernel_seed

MEASURE_SECONDS = 600  # that the author's code may take to measure what one run has shown
NOTHING_WRITTEN = "Nothing was written."
LEAST_CPU_SHARE_BY_ITSELF = 1 / 10  # with less while nothing else is graded, the machine is too busy to grade


@dataclass(frozen=True)
class Job:
    """All that grading one submission takes; plain data, so that it can be sent to another process."""

    assignment: Assignment
    reference: Reference
    submission: Any  # a `txgrade.submitting.reading.Submission`
    seeds: tuple[int, ...]
    limits: Limits
    isolation: str
    environment: str
    source: str  # the text of the assignment's file, for measured tasks
    trust: bool = False  # whether less than a sealed sandbox is allowed
    by_itself: bool = False  # whether nothing else is graded meanwhile

    def result(self, status: str, *notes: Note) -> Result:
        """Return a result without points: of a submission that can't be graded, or to be filled in."""
        submission = self.submission
        return Result(
            submission.name,
            status,
            0,
            self.assignment.points,
            self.isolation,
            self.seeds,
            submission.hash,
            self.assignment.hash,
            self.environment,
            notes=(*submission.notes, *notes),
            variant=submission.variant,
            **{name: getattr(submission, name) for name in ARRIVAL},
        )


class Preempted(RuntimeError):
    """A time-out that others may have caused: the kernel waited for a processor. Grade it again by itself."""


def grade_submission(job: Job, begin: Callable[[int | float], None] = lambda seconds: None) -> Result:
    """Execute a submission on every seed, each time in a fresh sandbox, and judge it.

    `begin(seconds)` is called before each part of the work, with the time that this part may take.

    Raises:
        Preempted, NoKernel: it was the machine, and not the submission.
    """
    result = job.result(job.submission.status)
    return _Grading(job, begin).fill_in(result) if result.status == "graded" else result


class _Grading:
    """The grading of one submission: its runs, their outcomes, and the time that is left on each seed."""

    def __init__(self, job: Job, begin: Callable[[int | float], None]):
        self.job, self.assignment, self.answers = job, job.assignment, job.submission.answers
        self.begin = begin
        self.seeds = job.seeds if job.reference.recordings else job.seeds[:1]  # asserts know no seed
        self.secret = any(task.hidden for task in self.assignment.tasks)
        self.left = dict.fromkeys(self.seeds, job.limits.notebook_seconds)
        self.outcomes: dict[tuple, Outcome] = {}  # by task, seed, and whether alone
        self.waits_for: dict[str, list[GradedTask]] = {}  # by task: those to be right before it is judged alone

    def fill_in(self, result: Result) -> Result:
        quoted = None
        if self.secret:
            quoted = self._run(self.seeds[0], rebuild(self.assignment, self.answers, hidden=False))
            self.left[self.seeds[0]] = self.job.limits.notebook_seconds  # nothing is judged by it
        whole = [self._run(seed, rebuild(self.assignment, self.answers), secret=self.secret) for seed in self.seeds]
        reports = [self._judge(whole)]
        reports += [self._judge(runs) for task in self.assignment.tasks if (runs := self._runs_alone(task))]
        outcomes, junit = self.outcomes, one_report(reports)
        shown = quoted or whole[0]
        outputs = displayed(self.assignment, shown.executed)
        tasks = tuple(
            replace(self._task(task, outcomes, quoted), outputs=outputs.get(task.id, ()))
            for task in self.assignment.tasks
        )
        notes = (
            *result.notes,
            *self._forbidden_calls(outcomes),
            *self._flags(tasks, whole[0]),
            *self._invalid(),
            *self._disagreements(outcomes),
            *self._unjudged(tasks),
        )
        return with_lateness(replace(result, tasks=tasks, notes=notes, junit=junit), self.assignment.due)

    def _run(self, seed: int, notebook: Any, only: str | None = None, secret: bool = False) -> Run:
        """Execute a notebook in what is left of the seed's time: the limit is one, however many runs there are."""
        job = self.job
        limits = replace(job.limits, cell_seconds=max(job.limits.cell_seconds, self.assignment.timeout))
        if self.left[seed] <= 0:
            late = f"the notebook took longer than {limits.notebook_seconds:g} s"
            return Run(seed, Executed({}, late, late=True), only, {}, secret, self.answers)
        self.begin(self.left[seed])
        executed = execute(
            notebook,
            seed if job.reference.recordings else None,
            limits,
            self.left[seed],
            LEAST_CPU_SHARE_BY_ITSELF if job.by_itself else LEAST_CPU_SHARE,
            job.reference.private_values.get(seed),
        )
        if executed.preempted:
            raise Preempted("it ran out of time while its kernel waited for a processor")
        self.left[seed] -= executed.seconds
        self.begin(MEASURE_SECONDS if any(task.kind == "measured" for task in self.assignment.tasks) else 0)
        return Run(seed, executed, only, _shares(job, executed, seed, only), secret, self.answers)

    def _judge(self, runs: list[Run]) -> str:
        """Take in the outcomes of some runs; returns the JUnit report."""
        outcomes, junit = judge(self.assignment, self.job.reference, runs)
        self.outcomes |= outcomes
        return junit

    def _runs_alone(self, task: GradedTask) -> list[Run]:
        """Run a task by itself, once a seed, if other cells of the submission may be why it isn't right.

        The tasks that it uses bring the submission's own cells. Until those are right, the task is not judged alone.
        """
        if (
            task.kind in ("tests", "written")
            or not _answered(task, self.answers, self.assignment.stubs)
            or self._is_right(task)
        ):
            return []
        used = rests_on(self.assignment, task, self.answers)
        if wrong := [other for other in used if not self._is_right(other)]:
            self.waits_for[task.id] = wrong
            return []
        others = [
            other
            for other in self.assignment.tasks
            if other.id != task.id and _answered(other, self.answers, self.assignment.stubs)
        ]
        suspects = [other for other in others if other.kind != "written" and not self._is_explained(other)]
        if not others or self._is_explained(task) and not suspects:
            return []
        cells = {id: self.answers.get(id, self.assignment.stubs[id]) for other in used for id in other.answers}
        notebook = rebuild_alone(self.assignment, task, self.answers, cells)
        return [self._run(seed, notebook, task.id, secret=self.secret) for seed in self.seeds]

    def _is_explained(self, task: GradedTask) -> bool:
        """Return whether a task is right, or one known mistake explains what is wrong with it in sequence."""
        return self._is_right(task) or all(self.outcomes[task.id, seed, False].known for seed in self.seeds)

    def _is_right(self, task: GradedTask) -> bool:
        """Return whether a task is right on every seed, in sequence or alone."""
        outcomes = [[self.outcomes.get((task.id, seed, alone)) for seed in self.seeds] for alone in (False, True)]
        return any(all(outcome and outcome.verdict == "right" for outcome in way) for way in outcomes)

    def _task(self, task: GradedTask, outcomes: dict, quoted: Run | None) -> TaskResult:
        answer = "\n\n".join(self.answers.get(id, "") for id in task.answers).strip()
        if task.kind == "written":
            # A task cell of nbgrader's has no answer cell: the answer stands in cells that the learner added.
            waits = _answered(task, self.answers, self.assignment.stubs) or not task.answers
            return TaskResult(
                task.id,
                task.title,
                task.kind,
                "pending" if waits else "unanswered",
                0,
                task.points,
                lines=() if waits else (NOTHING_WRITTEN,),
                answer=answer,
                answer_hash=answer_hash(answer),
            )
        words = quoted_outcome(self.assignment, task, quoted, self.job.reference) if quoted else None
        result = task_result(task, outcomes, answer, words, self.waits_for.get(task.id, ()))
        if not any(id in self.answers for id in task.answers) and not result.points and task.answers:
            return replace(result, verdict="missing", lines=("Its cell is not in your notebook.",), matrices=None)
        return result

    def _forbidden_calls(self, outcomes: dict[tuple, Outcome]) -> list[Note]:
        """Flags for a person: what an answer calls although its task says not to. It proves nothing."""
        from txgrade.authoring.called_names import forbidden_names

        notes = []
        for task in self.assignment.tasks:
            names = [name for name in task.forbidden if not name.startswith("aten.")]
            named = {name for id in task.answers for name in forbidden_names(self.answers.get(id, ""), names)}
            judged = [outcome for (id, _, alone), outcome in outcomes.items() if id == task.id and not alone]
            ran = {name for outcome in judged for name in outcome.operators} & set(task.forbidden)
            open_to_all = named if self.secret else named | ran
            if open_to_all:
                notes.append(Note("forbidden call", f"calls {', '.join(sorted(open_to_all))}", task.id))
            if rest := sorted(ran - open_to_all):  # seen beside hidden tests, of which the page must not tell
                notes.append(Note("call in hidden tests", f"calls {', '.join(rest)}", task.id))
        return notes

    def _flags(self, tasks: tuple[TaskResult, ...], run: Run) -> list[Note]:
        """What a person should look at in the answers' sources (see `authoring.flags`)."""
        from txgrade.authoring.flags import source_notes

        outputs = run.executed.outputs
        ran = {id for id in outputs if not any(output.get("ename") in NOT_RUN for output in outputs[id])}
        for task, result in zip(self.assignment.tasks, tasks, strict=True):
            ran.update(task.answers if result.points else ())
        return source_notes(self.assignment, self.answers, ran)

    def _invalid(self) -> list[Note]:
        """Tasks whose evidence is not well formed in some run: an attempt, or an accident that a person should see."""
        malformed = {id: outcome.malformed for (id, _, _), outcome in self.outcomes.items() if outcome.malformed}
        return [Note("invalid evidence", why, id) for id, why in malformed.items()]

    def _disagreements(self, outcomes: dict[tuple, Outcome]) -> list[Note]:
        """Tasks that are right on one seed and not on another: chance, or an answer that guesses."""
        notes = []
        for task in self.assignment.tasks:
            verdicts = {outcome.verdict for (id, _, alone), outcome in outcomes.items() if id == task.id and not alone}
            if "right" in verdicts and len(verdicts) > 1:
                notes.append(Note("seeds disagree", "right on one seed, not on another", task.id))
        return notes

    def _unjudged(self, tasks: tuple[TaskResult, ...]) -> list[Note]:
        """Return notes on tasks that were not judged by themselves, since they rest on others that are wrong."""
        notes = []
        for task in tasks:
            if task.points < task.max_points and task.id in self.waits_for:
                titles = " and ".join(other.title for other in self.waits_for[task.id])
                notes.append(Note("not judged alone", f"rests on {titles}: judged when that is right", task.id))
        return notes


def _answered(task: GradedTask, answers: dict[str, str], stubs: dict[str, str]) -> bool:
    """Whether the submission has something else than the stub, or nothing."""
    return any(
        answer_hash(answers.get(id, "")) not in (answer_hash(""), answer_hash(stubs.get(id, ""))) for id in task.answers
    )


def _shares(job: Job, executed: Any, seed: int, only: str | None) -> dict[str, tuple[float, str]]:
    """Measure what measured tasks have shown, with the author's code, in a process of its own."""
    from txgrade.evidence.validation import bundle_problem

    requests = []
    for task in job.assignment.tasks:
        if task.kind == "measured" and only in (None, task.id):
            shown = bundles(executed.outputs.get(task.check, []))
            if len(shown) == 1 and not bundle_problem(shown[0], task.id, kernel_seed(seed)) and not shown[0]["error"]:
                requests.append({"task": task.id, "seed": seed, "bundle": shown[0]})
    if not requests:
        return {}
    from txgrade.authoring.measure import measure

    measured = measure(
        _local_source(job),
        requests,
        variant=job.assignment.variant,
        timeout=MEASURE_SECONDS,
        memory_mb=job.limits.memory_mb,
    )
    if wrong := [result["error"] for result in measured if "error" in result]:
        raise ValueError(f"{job.assignment.name}: {wrong[0]}")  # the author's error, not the learner's
    return {
        request["task"]: (result["share"], result.get("sentence") or "")
        for request, result in zip(requests, measured, strict=True)
    }


def _local_source(job: Job) -> Path:
    """The assignment's file; written anew where this machine doesn't have it."""
    path = job.assignment.path
    if path.is_file() and path.read_text(encoding="utf-8") == job.source:
        return path
    return _written(path.name, job.source)


@cache
def _written(name: str, source: str) -> Path:
    path = Path(tempfile.mkdtemp(prefix="txgrade-"), name)
    path.write_text(source, encoding="utf-8")
    return path
