"""Decides, in a process that student code never enters, what a submission's evidence is worth.

Each check of each run is one pytest item, collected by nbval from the reference's executed notebook. A check
passes only when its item is among those that pytest reports as passed; everything else is words for the page.
"""

import io
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path

from txlib.grading.authoring.assignment import Assignment, GradedTask, digest
from txlib.grading.checking.stand_in import NotKnown
from txlib.grading.checking.verdict import verdict_of
from txlib.grading.evidence.recordings import compared
from txlib.grading.evidence.valid import valid_bundle
from txlib.grading.evidence.values import MIME
from txlib.grading.judging.execute import Executed
from txlib.grading.judging.replay import Replay, bundles
from txlib.grading.records.result import Part, TaskResult

HIDDEN = "In a test that is not shown, your answer gives something else."
STEPS = 20  # of a measured share that leaves a run with hidden tests
MAX_TEXT, MAX_PNG, MAX_OUTPUTS = 20_000, 2_000_000, 20  # of what a feedback page shows of one task
JUNIT_VARIABLE = re.compile(r' (?:time|timestamp|hostname)="[^"]*"')  # what differs from run to run


@dataclass(frozen=True)
class Reference:
    """What the reference and the known mistakes show; made by `txlib.grading.judging.reference`."""

    notebooks: dict[int, str]  # by seed: the reference's executed notebook, as JSON
    recordings: dict[int, dict[str, dict]] = field(default_factory=dict)  # by seed and task, hidden tests included
    open: dict[int, dict[str, dict]] = field(default_factory=dict)  # the same without them, of the seed that is quoted
    # By seed, task, and the task that it uses: what stands in for that one's functions (see `checking.stand_in`).
    by_heart: dict[int, dict[str, dict[str, dict[str, str]]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One execution of a rebuilt notebook: the whole of it, or `only` one task."""

    seed: int
    executed: Executed
    only: str | None = None
    shares: dict[str, tuple[float, str]] = field(default_factory=dict)  # measured tasks: share and sentence
    secret: bool = False  # whether hidden tests or values of the reference were in its kernel


@dataclass(frozen=True)
class Outcome:
    """What one run says of one task: computed once, and confirmed by pytest."""

    verdict: str
    points: int | float = 0
    lines: tuple[str, ...] = ()
    matrices: tuple[dict, dict] | None = None
    parts: tuple[Part, ...] = ()
    known: bool = False  # a known mistake: its first line is the author's sentence
    operators: tuple[str, ...] = ()  # what its check was seen to call
    unknown: bool = False  # it called another task's function as the reference never does


def outcome(task: GradedTask, run: Run, reference: Reference) -> Outcome:
    """What a run's evidence says of a task. Of a run that held a secret only points and the author's words are left."""
    found = _outcome(task, run, reference)
    return _told(task, found) if run.secret else found


def outcomes_of(assignment: Assignment, run: Run, reference: Reference) -> dict[tuple, Outcome]:
    """What a run says of each of its tasks, by (task, seed, alone or not)."""
    judged = (task for task in assignment.tasks if task.kind != "written" and run.only in (None, task.id))
    return {(task.id, run.seed, run.only is not None): outcome(task, run, reference) for task in judged}


def _outcome(task: GradedTask, run: Run, reference: Reference) -> Outcome:
    executed = run.executed
    if executed.stopped_at in (task.check, *task.answers):
        verdict = "timeout" if executed.late else "error"
        return Outcome(verdict, lines=(f"Its cell ended the run: {executed.stopped}.",))
    outputs = executed.outputs.get(task.check)
    if outputs is None:
        return Outcome("stopped", lines=(f"Not reached: {executed.stopped}.",) if executed.stopped else ())
    if task.kind == "tests":
        return _in_kernel(task, outputs)
    recordings = reference.recordings if run.secret or not reference.open else reference.open
    recording = recordings[run.seed][task.id]
    found = bundles(outputs)
    if len(found) != 1:
        problem = f"its check displayed {len(found)} bundles of evidence instead of one"
    else:
        problem = valid_bundle(found[0], task.id, run.seed)
    if problem:
        return Outcome("invalid", lines=(_sentence(problem),))
    bundle = found[0]
    operators = tuple(bundle["operators"] or ())
    if task.kind == "measured":
        return replace(_measured(task, bundle, run), operators=operators)
    comparison = compared(bundle, recording["reference"])
    said = verdict_of(recording, bundle, comparison)
    scored = tuple(Part(label, right, points if right else 0, points) for label, right, points in comparison.parts)
    unknown = run.only is not None and (bundle["error"] or {}).get("error") == NotKnown.__name__
    return Outcome(said.kind, said.points, said.lines, said.matrices, scored, said.known, operators, unknown)


def _told(task: GradedTask, found: Outcome) -> Outcome:
    """What may leave a run that held a secret: the points, and which of the author's sentences applies, if one does.

    Nothing else that student code can choose: not how it failed, where, with which values or names, or how late. So
    of one task there are at most `messages` different ones.
    """
    if found.verdict == "right":
        return Outcome("right", found.points, operators=found.operators)
    points = found.points
    if task.kind == "measured":  # a share may be any number
        points = math.floor(STEPS * points / task.points) * task.points / STEPS
    return Outcome(
        "partial" if points else "mistake" if found.known else "wrong",
        points,
        found.lines[: found.known],
        known=found.known,
        operators=found.operators,
        unknown=found.unknown and not points,
    )


def messages(task: GradedTask, recording: dict) -> int:
    """How many different things a run that held a secret can say of a task.

    Each possible sum of points but the full one may come with one of the author's sentences or without; right comes
    without; and none, with the remark that the answer calls what it rests on in a way of its own.
    """
    if task.kind == "measured":
        return STEPS + 1
    sums = {0.0}
    for each in recording["reference"]["shown"]:
        sums |= {earned + (each["points"] or 0) for earned in sums}
    sentences = {each["sentence"] for each in recording["mistakes"]}
    return 1 + max(1, len(sums) - 1) * (1 + len(sentences)) + 1


def judge(assignment: Assignment, reference: Reference, runs: list[Run], outcomes: dict) -> tuple[dict, str]:
    """The outcomes of the runs, by (task, seed, alone or not), as far as pytest confirms them; and the JUnit report."""
    items, names = {}, {}
    for run in runs:
        for task in assignment.tasks:
            key = (task.id, run.seed, run.only is not None)
            if run.only in (None, task.id) and key in outcomes:
                name = f"{task.id}, alone" if run.only else task.id
                names[f"seed-{run.seed}", name] = key
                items.setdefault(run.seed, []).append((name, task.check, _confirmation(task, run.seed, outcomes[key])))
    if not items:
        return outcomes, ""
    passed, junit = _pytest(reference, items)
    right = {names[each] for each in passed if each in names}
    return {key: _confirmed(found, key in right, assignment.task(key[0])) for key, found in outcomes.items()}, junit


def task_result(
    task: GradedTask, outcomes: dict[tuple, Outcome], answer: str, quoted: Outcome | None = None, needs: Sequence = ()
) -> TaskResult:
    """One task's result over all seeds: on each of them it has to be right.

    `quoted` is what a run without hidden tests says, where the others had some; `needs` are the tasks that have to be
    right before this one can be judged alone.
    """
    sequence = _worst([found for (id, _, alone), found in outcomes.items() if id == task.id and not alone])
    apart = [found for (id, _, alone), found in outcomes.items() if id == task.id and alone]
    alone = _worst(apart) if apart else sequence
    shown = sequence if quoted is None else _quoting(sequence, quoted)
    if alone.points > sequence.points:
        words = (
            "Right by itself, with right answers to the tasks it rests on."
            if alone.verdict == "right"
            else ("Partly right by itself, with right answers to the tasks it rests on.")
        )
        shown = replace(
            alone, lines=(words, *(f"In your notebook: {line}" for line in shown.lines[:1])), parts=(), matrices=None
        )
    elif apart and alone.known and not sequence.known:  # only the author's own words leave that run
        shown = replace(shown, verdict="mistake", lines=(*alone.lines[:1], *shown.lines))
    if needs and shown.verdict != "right":
        titles = " and ".join(f"*{each.title}*" for each in needs)
        shown = replace(shown, lines=(*shown.lines, f"It rests on {titles}: it is judged once that is right."))
    return TaskResult(
        task.id,
        task.title,
        task.kind,
        shown.verdict,
        shown.points,
        task.points,
        sequence.points,
        max(alone.points, sequence.points),
        shown.lines,
        shown.matrices,
        shown.parts,
        answer,
        answer_hash(answer),
    )


def _quoting(judged: Outcome, quoted: Outcome) -> Outcome:
    """The points of the runs with hidden tests, in the words of the one without."""
    if judged.verdict == "right":
        return replace(judged, parts=quoted.parts)
    sentence = judged.lines[: judged.known]
    if quoted.verdict == "right":
        return replace(judged, lines=(*sentence, HIDDEN), parts=quoted.parts)
    lines = quoted.lines if quoted.known else (*sentence, *quoted.lines)
    verdict = "partial" if judged.points else "mistake" if judged.known else quoted.verdict
    verdict = "wrong" if verdict == "partial" and not judged.points else verdict
    return replace(quoted, verdict=verdict, points=judged.points, lines=lines, known=judged.known or quoted.known)


def answer_hash(answer: str) -> str:
    """Of an answer without blanks at line ends: what a mark of a written answer hangs on."""
    return digest("\n".join(line.rstrip() for line in answer.strip().splitlines()))


def displayed(assignment: Assignment, executed: Executed) -> dict[str, tuple[dict, ...]]:
    """What a page shows of a run without secrets, by task: prints, values, figures of its cells and those below it."""
    shown: dict[str, list[dict]] = {}
    checks = {task.check for task in assignment.tasks}
    answers = {id: task.id for task in assignment.tasks for id in task.answers}
    task = None
    for cell in assignment.notebook.cells:
        task = answers.get(cell.id, task)
        if cell.cell_type != "code" or cell.id not in executed.outputs:
            continue
        if task is not None:
            figures_only = cell.id in checks
            found = [each for output in executed.outputs[cell.id] if (each := _shown(output, figures_only))]
            shown.setdefault(task, []).extend(found)
    return {id: tuple(each[:MAX_OUTPUTS]) for id, each in shown.items() if each}


def _in_kernel(task: GradedTask, outputs: list) -> Outcome:
    from txlib.grading.authoring.nbgrader import autograded

    points = autograded(outputs, task)
    errors = [output for output in outputs if output.get("output_type") == "error"]
    lines = tuple(f"`{each.get('ename')}`: {str(each.get('evalue'))[:300]}" for each in errors[:1])
    right = points == task.points and not (errors and not points)  # a cell may be worth nothing, and fail
    return Outcome("right" if right else "partial" if points else "wrong", points, lines)


def _measured(task: GradedTask, bundle: dict, run: Run) -> Outcome:
    if task.id not in run.shares:
        error = bundle["error"]
        said = f"`{error['error']}`: {error['message']}" if error else "nothing to measure was shown"
        unanswered = bool(error) and error["error"] == "NotImplementedError"
        return Outcome("unanswered" if unanswered else "error", lines=() if unanswered else (f"{said}.",))
    share, sentence = run.shares[task.id]
    verdict = "right" if share == 1 else "partial" if share else "wrong"
    return Outcome(verdict, share * task.points, (sentence,) if sentence else ())


def _confirmation(task: GradedTask, seed: int, found: Outcome) -> Callable[[list], str | None]:
    """What the pytest item calls with the outputs that nbval read of the reference: None to pass, words to fail.

    It passes only what was found to be right by evidence of the same task and seed as the reference's.
    """

    def confirm(outputs: list) -> str | None:
        expected = bundles(outputs)
        if task.kind != "tests" and [(each["task"], each["seed"]) for each in expected] != [(task.id, seed)]:
            return "the reference displayed no evidence of this task and seed"
        return None if found.verdict == "right" else " ".join(found.lines) or found.verdict

    return confirm


def _confirmed(found: Outcome, passed: bool, task: GradedTask) -> Outcome:
    """Full points for what pytest passed, and only for that; shares of sub-checks where it did not."""
    if passed:
        return replace(found, verdict="right", points=task.points)
    if found.verdict == "right":
        return replace(found, verdict="invalid", points=0, lines=("The judge's report has no pass for this check.",))
    return replace(found, points=min(found.points, task.points) if found.verdict == "partial" else 0)


def _worst(found: list[Outcome]) -> Outcome:
    if not found:
        return Outcome("stopped")
    return min(found, key=lambda each: (each.points, each.verdict == "right"))


def _pytest(reference: Reference, items: dict[int, list]) -> tuple[set[tuple[str, str]], str]:
    """Run one pytest session over the seeds' reference notebooks; returns the passed items and the JUnit report."""
    import pytest

    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for seed, tests in items.items():
            path = Path(folder, f"seed-{seed}.ipynb").resolve()
            path.write_text(reference.notebooks[seed], encoding="utf-8")
            paths[path] = tests
        replay, report = Replay(paths), Path(folder, "junit.xml")
        arguments = [
            *map(str, paths),
            f"--junitxml={report}",
            "--color=no",
            "--tb=short",
            "-q",
            "-c",
            "/dev/null",
            f"--rootdir={folder}",
            "--noconftest",
            "-o",
            "junit_family=xunit2",
            "-p",
            "nbval.plugin",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:unraisableexception",
        ]  # 0.1 s
        said = io.StringIO()
        with _only_our_plugins(), redirect_stdout(said), redirect_stderr(said):
            pytest.main(arguments, plugins=[replay])
        if not report.is_file():
            raise RuntimeError(f"pytest made no report: {said.getvalue()[-500:]}")
        return replay.passed, JUNIT_VARIABLE.sub("", report.read_text(encoding="utf-8"))


@contextmanager
def _only_our_plugins() -> Iterator[None]:
    """pytest loads nbval and us, whatever else is installed or set."""
    before = {name: os.environ.pop(name, None) for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")}
    before["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _shown(output: dict, figures_only: bool) -> dict | None:
    data = output.get("data") or {}
    png = data.get("image/png")
    if isinstance(png, str) and len(png) <= MAX_PNG:
        return {"png": png}
    if figures_only or MIME in data:
        return None
    text = output.get("text") if output.get("output_type") == "stream" else data.get("text/plain")
    if output.get("output_type") == "error":
        text = f"{output.get('ename')}: {output.get('evalue')}"
    return {"text": str(text)[:MAX_TEXT]} if text else None


def _sentence(words: str | None) -> str:
    return f"{words[0].upper()}{words[1:]}." if words else "Its evidence is not well formed."
