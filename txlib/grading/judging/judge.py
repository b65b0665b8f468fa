"""Decides, in a process that student code never enters, what a submission's evidence is worth.

Each check of each run is one pytest item, collected by nbval from the reference's executed notebook. A check
passes only when its item is among those that pytest reports as passed; everything else is words for the page.
"""

import builtins
import io
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from txlib.grading.authoring.assignment import Assignment, GradedTask, digest
from txlib.grading.checking.verdict import verdict_of
from txlib.grading.evidence.recordings import first_difference, parts
from txlib.grading.evidence.valid import valid_bundle
from txlib.grading.evidence.values import MIME
from txlib.grading.judging.execute import Executed
from txlib.grading.judging.replay import Replay, bundles, difference
from txlib.grading.records.result import Part, TaskResult

HIDDEN = "In a test that is not shown, your answer gives something else."
MAX_TEXT, MAX_PNG, MAX_OUTPUTS = 20_000, 2_000_000, 20  # of what a feedback page shows of one task
JUNIT_VARIABLE = re.compile(r' (?:time|timestamp|hostname)="[^"]*"')  # what differs from run to run


@dataclass(frozen=True)
class Reference:
    """What the reference and the known mistakes show, by seed and task; made by `txlib.grading.judging.reference`.

    `recordings[seed][task]` is a recording (see `txlib.grading.evidence.recordings`); `visible[seed][task]` counts its
    shown values that are not hidden tests'; `notebooks[seed]` is the reference's executed notebook, as JSON.
    """

    recordings: dict[int, dict[str, dict]]
    visible: dict[int, dict[str, int]]
    notebooks: dict[int, str]


@dataclass(frozen=True)
class Run:
    """One execution of a rebuilt notebook: the whole of it, or `only` one task with the reference's others."""

    seed: int
    executed: Executed
    only: str | None = None
    shares: dict[str, tuple[float, str]] = field(default_factory=dict)  # measured tasks: share and sentence


@dataclass(frozen=True)
class Outcome:
    """What one run says of one task."""

    verdict: str
    points: int | float = 0
    lines: tuple[str, ...] = ()
    matrices: tuple[dict, dict] | None = None
    parts: tuple[Part, ...] = ()
    known: bool = False  # a known mistake: its first line is the author's sentence
    operators: tuple[str, ...] = ()  # what its check was seen to call


def outcome(task: GradedTask, run: Run, reference: Reference) -> Outcome:
    """What a run's evidence says of a task. Points are given only in `judge`, where pytest has the last word."""
    executed = run.executed
    own = executed.stopped_at in (task.check, *task.answers)
    if own:
        late = "longer" in (executed.stopped or "")
        return Outcome("timeout" if late else "error", lines=(f"Its cell ended the run: {executed.stopped}.",))
    outputs = executed.outputs.get(task.check)
    if outputs is None:
        return Outcome("stopped", lines=(f"Not reached: {executed.stopped}.",) if executed.stopped else ())
    if task.kind == "tests":
        return _in_kernel(task, outputs)
    found = bundles(outputs)
    recording = reference.recordings[run.seed][task.id]
    problem = difference(found, recording["reference"])
    if len(found) != 1 or valid_bundle(found[0], task.id, run.seed):
        return Outcome("invalid", lines=(_sentence(problem),))
    bundle = found[0]
    operators = tuple(bundle.get("operators") or ())
    if task.kind == "measured":
        return replace(_measured(task, bundle, run), operators=operators)
    said = verdict_of(recording, bundle)
    scored = tuple(
        Part(label, right, points if right else 0, points)
        for label, right, points in parts(bundle, recording["reference"])
    )
    lines, matrices = said.lines, said.matrices
    visible = reference.visible[run.seed][task.id]
    differs = first_difference(bundle, recording["reference"])
    if differs and differs[0] >= visible and said.kind != "unanswered":
        lines, matrices = (*said.lines[: said.known], HIDDEN), None
    elif differs and task.after_hidden and said.kind != "unanswered":
        lines, matrices = (*said.lines[: said.known], _unquoted(bundle, recording["reference"], differs[0])), None
    scored = tuple(
        part if i < visible else replace(part, label="a test that is not shown") for i, part in enumerate(scored)
    )
    return Outcome(said.kind, said.points, lines, matrices, scored, said.known, operators)


def judge(assignment: Assignment, reference: Reference, runs: list[Run]) -> tuple[dict[tuple, Outcome], str]:
    """The outcome of each (task, seed, alone or not), with the points that pytest confirms, and the JUnit report."""
    outcomes, items, names = {}, {}, {}
    for run in runs:
        for task in assignment.tasks:
            if task.kind == "written" or run.only not in (None, task.id):
                continue
            found = outcome(task, run, reference)
            key = (task.id, run.seed, run.only is not None)
            name = f"{task.id}, alone" if run.only else task.id
            outcomes[key] = found
            names[f"seed-{run.seed}", name] = key
            items.setdefault(run.seed, []).append((name, task.check, _decision(task, run, found)))
    if not items:
        return outcomes, ""
    passed, junit = _pytest(reference, items)
    right = {names[each] for each in passed if each in names}
    return {key: _confirmed(found, key in right, assignment.task(key[0])) for key, found in outcomes.items()}, junit


def task_result(task: GradedTask, outcomes: dict[tuple, Outcome], runs: list[Run], answer: str) -> TaskResult:
    """One task's result over all seeds: on each of them it has to be right."""
    sequence = _worst([found for (id, _, alone), found in outcomes.items() if id == task.id and not alone])
    apart = [found for (id, _, alone), found in outcomes.items() if id == task.id and alone]
    alone = _worst(apart) if apart else sequence
    shown = sequence
    if alone.points > sequence.points:
        words = (
            "Right by itself, with right answers to the tasks it rests on."
            if alone.verdict == "right"
            else ("Partly right by itself, with right answers to the tasks it rests on.")
        )
        shown = replace(
            alone, lines=(words, *(f"In your notebook: {line}" for line in sequence.lines[:1])), matrices=None
        )
    elif apart and alone.known and not sequence.known:  # only the author's own words leave that run
        shown = replace(sequence, verdict="mistake", lines=(*alone.lines[:1], *sequence.lines))
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


def answer_hash(answer: str) -> str:
    """Of an answer without blanks at line ends: what a mark of a written answer hangs on."""
    return digest("\n".join(line.rstrip() for line in answer.strip().splitlines()))


def displayed(assignment: Assignment, executed: Executed) -> dict[str, tuple[dict, ...]]:
    """What a page may show of a run, by task: prints, values and figures of its cells and those below it.

    Nothing after a hidden test has run, since from then on student code may know its inputs.
    """
    shown: dict[str, list[dict]] = {}
    checks = {task.check: task for task in assignment.tasks}
    answers = {id: task.id for task in assignment.tasks for id in task.answers}
    task = None
    for cell in assignment.notebook.cells:
        task = answers.get(cell.id, task)
        if cell.cell_type != "code" or cell.id not in executed.outputs:
            continue
        if cell.id in checks and checks[cell.id].hidden:
            break
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
    if task.after_hidden:
        lines = ("A test in its cell fails.",) if errors else ()
    right = points == task.points and not (errors and not points)  # a cell may be worth nothing, and fail
    return Outcome("right" if right else "partial" if points else "wrong", points, lines)


def _unquoted(bundle: dict, expected: dict, index: int) -> str:
    """Where a bundle differs, in words that are none of its own: an answer may have read the hidden tests."""
    if index < min(len(bundle["shown"]), len(expected["shown"])):
        label = expected["shown"][index]["label"]
        return f"Result {index + 1}{f' ({label})' if label else ''} is something else."
    return _raised(bundle["error"]) if bundle["error"] else "It does not show what its check asks for."


def _raised(error: dict) -> str:
    """An error by its type alone, and only by one that Python has."""
    known = hasattr(builtins, error["error"])
    return f"Your answer raised `{error['error']}`." if known else "Your answer raised an error."


def _measured(task: GradedTask, bundle: dict, run: Run) -> Outcome:
    if task.id not in run.shares:
        error = bundle["error"]
        said = f"`{error['error']}`: {error['message']}" if error else "nothing to measure was shown"
        if error and task.after_hidden:
            said = _raised(error).removesuffix(".")
        unanswered = bool(error) and error["error"] == "NotImplementedError"
        return Outcome("unanswered" if unanswered else "error", lines=() if unanswered else (f"{said}.",))
    share, sentence = run.shares[task.id]
    verdict = "right" if share == 1 else "partial" if share else "wrong"
    return Outcome(verdict, share * task.points, (sentence,) if sentence else ())


def _decision(task: GradedTask, run: Run, found: Outcome) -> Any:
    """What the pytest item calls with nbval's reference outputs: None to pass, words to fail."""
    if found.verdict in ("timeout", "stopped") or task.check not in run.executed.outputs:
        return lambda reference: f"not executed: {run.executed.stopped}"
    if task.kind == "evidence" and run.executed.stopped_at != task.check:
        outputs = run.executed.outputs[task.check]
        return lambda reference: difference(bundles(outputs), bundles(reference)[0])
    return lambda reference: None if found.verdict == "right" else " ".join(found.lines) or found.verdict


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
