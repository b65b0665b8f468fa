"""What the evidence of one run says of a task, in a process that student code never enters."""

import math
import re
from dataclasses import dataclass, field, replace
from functools import partial

from txgrade.authoring.assignment import Assignment, GradedTask
from txgrade.checking.failed_cells import failure_of, names_defined
from txgrade.checking.verdict import verdict_of
from txgrade.evidence.mistakes import measured_mistake
from txgrade.judging.execute import Executed
from txgrade.judging.replay import Checked
from txgrade.records.result import Part
from txgrade.seeds import kernel_seed

MISSING_NAME = re.compile(r"`NameError`: name '(\w+)' is not defined")
NO_PASS = "The judge's report has no pass for this check."
STEPS = 20  # of a measured share that leaves a run with hidden tests


@dataclass(frozen=True)
class Reference:
    """What the reference and the known mistakes show; made by `txgrade.judging.reference`."""

    notebooks: dict[int, str]  # by seed: the reference's executed notebook, as JSON
    recordings: dict[int, dict[str, dict]] = field(default_factory=dict)  # by seed and task, hidden tests included
    open: dict[int, dict[str, dict]] = field(default_factory=dict)  # the same without them, of the seed that is quoted
    private_values: dict[int, dict[str, list]] = field(
        default_factory=dict
    )  # by seed and task: what `show.private` has drawn


@dataclass(frozen=True)
class Run:
    """One execution of a rebuilt notebook: the whole of it, or `only` one task."""

    seed: int
    executed: Executed
    only: str | None = None
    shares: dict[str, tuple[float, str]] = field(default_factory=dict)  # measured tasks: share and sentence
    secret: bool = False  # whether hidden tests were in its kernel
    answers: dict[str, str] = field(default_factory=dict)  # the submission's, by grade_id


@dataclass(frozen=True)
class Outcome:
    """What one run says of one task, read from nbval's comparison of its evidence."""

    verdict: str
    points: int | float = 0
    lines: tuple[str, ...] = ()
    matrices: tuple[dict, dict] | None = None
    parts: tuple[Part, ...] = ()
    known: bool = False  # one known mistake explains all of it: its first line is the author's sentence
    sentences: tuple[str, ...] = ()  # of the author's, all that apply
    operators: tuple[str, ...] = ()  # what its check was seen to call
    malformed: str = ""  # what is wrong with its evidence, for a person: an attempt, or an accident


def checked(task: GradedTask, run: Run) -> Checked:
    """Return what the check of a task displayed, for nbval to compare, and how it passes if no reference decides."""
    decide = None
    if task.kind == "measured":
        decide = partial(_measured_words, task, run)
    elif task.kind == "tests":
        decide = partial(_tests_words, task, run)
    item = f"{task.id}, alone" if run.only else task.id
    return Checked(run.executed.outputs.get(task.check), task.id, kernel_seed(run.seed), task.check, item, decide)


def outcome(assignment: Assignment, task: GradedTask, run: Run, reference: Reference, check: Checked) -> Outcome:
    """What a run says of a task. Of a run that held a secret only points and the author's words are left."""
    outcome = _outcome(task, run, reference, check)
    if outcome.verdict == "right" and not check.passed:
        outcome = Outcome("invalid", lines=(NO_PASS,), malformed=NO_PASS)
    outcome = replace(outcome, points=min(outcome.points, task.points))
    return _redact(task, outcome) if run.secret else _caused(assignment, task, run, outcome)


def quoted_outcome(assignment: Assignment, task: GradedTask, run: Run, reference: Reference) -> Outcome:
    """What a run without secrets, by which nothing is judged, says of a task: the words for its page."""
    check = checked(task, run)
    check.passed = True
    if check.outputs is not None and not check.decide:
        check.compare(_recording(task, run, reference)["reference"])
    return outcome(assignment, task, run, reference, check)


def _recording(task: GradedTask, run: Run, reference: Reference) -> dict:
    recordings = reference.recordings if run.secret or not reference.open else reference.open
    return recordings[run.seed][task.id]


def _outcome(task: GradedTask, run: Run, reference: Reference, check: Checked) -> Outcome:
    executed = run.executed
    if executed.stopped_at in (task.check, *task.answers):
        why = f"Its cell ended the run: {executed.stopped}."
        return Outcome("timeout" if executed.late else "error", lines=(why,))
    if check.outputs is None:
        return Outcome("stopped", lines=(f"Not reached: {executed.stopped}.",) if executed.stopped else ())
    if task.kind == "tests":
        return _in_kernel(task, check.outputs)
    if check.problem or check.bundle is None:
        return Outcome("invalid", lines=(_sentence(check.problem),), malformed=check.problem or NO_PASS)
    bundle, recording = check.bundle, _recording(task, run, reference)
    operators = tuple(bundle["operators"] or ())
    if task.kind == "measured":
        return replace(_measured(task, bundle, run, recording), operators=operators)
    if check.comparison is None:
        return Outcome("invalid", lines=(NO_PASS,), malformed=NO_PASS)
    verdict = verdict_of(recording, bundle, check.comparison)
    return Outcome(
        verdict.kind,
        verdict.points,
        verdict.lines,
        verdict.matrices,
        tuple(Part(label, right, points if right else 0, points) for label, right, points in check.comparison.parts),
        verdict.known,
        verdict.sentences,
        operators,
    )


def _measured_words(task: GradedTask, run: Run, check: Checked) -> str | None:
    """Why a measured task does not pass; None where it is worth all its points."""
    if check.look():
        return check.problem
    share, sentence = run.shares.get(task.id, (0.0, "nothing to measure was shown"))
    return None if share == 1 else sentence or f"it is worth {share:g} of the points"


def _tests_words(task: GradedTask, run: Run, check: Checked) -> str | None:
    """Why nbgrader's tests do not pass; None where they do."""
    outcome = _in_kernel(task, check.outputs or [])
    return None if outcome.verdict == "right" else " ".join(outcome.lines) or outcome.verdict


def _caused(assignment: Assignment, task: GradedTask, run: Run, outcome: Outcome) -> Outcome:
    """The outcome, led by the answer's cell that failed to run, where one did: this task's, or one that it calls."""
    if outcome.points or outcome.verdict in ("right", "timeout", "stopped"):
        return outcome
    match = MISSING_NAME.search(" ".join(outcome.lines[:1]))
    missing = match[1] if match else ""
    for other in (task, *assignment.tasks):
        for id in other.answers:
            source = run.answers.get(id, "")
            errors = [output for output in run.executed.outputs.get(id, ()) if output.get("output_type") == "error"]
            follows = missing in names_defined(source)
            if errors and (follows or other is task):
                failure = failure_of(source, str(errors[0].get("ename")), str(errors[0].get("evalue")))
                words = failure.words(f"your answer{'' if other is task else f' to *{other.title}*'}")
                if follows:  # of what is not there, no check says anything
                    outcome = replace(outcome, lines=(), matrices=None, parts=())
                return replace(outcome, verdict="error", lines=(words, *outcome.lines), known=False)
    return outcome


def _redact(task: GradedTask, outcome: Outcome) -> Outcome:
    """What may leave a run that held a secret: the points, and which of the author's sentences applies, if one does.

    Nothing else that student code can choose: not how it failed, where, with which values or names, or how late. So
    of one task there are at most `messages` different ones.
    """
    if outcome.verdict == "right":
        return Outcome("right", outcome.points, operators=outcome.operators)
    points = outcome.points
    if task.kind == "measured":  # a share may be any number
        points = math.floor(STEPS * points / task.points) * task.points / STEPS
    return Outcome(
        "partial" if points else "mistake" if outcome.known else "wrong",
        points,
        outcome.lines[: outcome.known],
        known=outcome.known,
        sentences=outcome.lines[: outcome.known],
        operators=outcome.operators,
        malformed=outcome.malformed,
    )


def messages(task: GradedTask, recording: dict) -> int:
    """How many different things a run that held a secret can say of a task.

    Each possible sum of points but the full one may come with one of the author's sentences or without; right comes
    without.
    """
    if task.kind == "measured":
        return STEPS + 1
    sums = {0.0}
    for value in recording["reference"]["shown"]:
        sums |= {earned + (value["points"] or 0) for earned in sums}
    sentences = {mistake["sentence"] for mistake in recording["mistakes"]}
    return 1 + max(1, len(sums) - 1) * (1 + len(sentences))


def _in_kernel(task: GradedTask, outputs: list) -> Outcome:
    from txgrade.authoring.nbgrader import autograded

    points = autograded(outputs, task)
    errors = [output for output in outputs if output.get("output_type") == "error"]
    lines = tuple(f"`{output.get('ename')}`: {str(output.get('evalue'))[:300]}" for output in errors[:1])
    right = points == task.points and not (errors and not points)  # a cell may be worth nothing, and fail
    return Outcome("right" if right else "partial" if points else "wrong", points, lines)


def _measured(task: GradedTask, bundle: dict, run: Run, recording: dict) -> Outcome:
    if task.id not in run.shares:
        error = bundle["error"]
        words = f"`{error['error']}`: {error['message']}" if error else "nothing to measure was shown"
        unanswered = bool(error) and error["error"] == "NotImplementedError"
        return Outcome("unanswered" if unanswered else "error", lines=() if unanswered else (f"{words}.",))
    share, sentence = run.shares[task.id]
    measured = (sentence,) if sentence else ()
    if share == 1:
        return Outcome("right", task.points, measured)
    # In a run with hidden tests a share is counted out already: not one thing more is told.
    known = None if run.secret else measured_mistake(bundle, recording)
    sentences = (known,) if known else ()
    verdict = "partial" if share else "mistake" if known else "wrong"
    return Outcome(verdict, share * task.points, (*sentences, *measured), known=bool(known), sentences=sentences)


def _sentence(words: str | None) -> str:
    return f"{words[0].upper()}{words[1:]}." if words else "Its evidence is not well formed."
