"""Decides, in a process that student code never enters, what a submission's evidence is worth.

Each check of each run is one pytest item, collected by nbval from the reference's executed notebook. A check
passes only when its item is among those that pytest reports as passed; everything else is words for the page.
"""

import io
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

from txlib.grading.authoring.assignment import Assignment, GradedTask, digest
from txlib.grading.judging.outcome import Outcome, Reference, Run
from txlib.grading.judging.replay import Replay, bundles
from txlib.grading.records.result import TaskResult

HIDDEN = "In a test that is not shown, your answer gives something else."
JUNIT_VARIABLE = re.compile(r' (?:time|timestamp|hostname)="[^"]*"')  # what differs from run to run


def judge(assignment: Assignment, reference: Reference, runs: list[Run], outcomes: dict) -> tuple[dict, str]:
    """The outcomes of the runs, by (task, seed, alone or not), as far as pytest confirms them; and the JUnit report."""
    items: dict[int, list] = {}
    names: dict[tuple[str, str], tuple] = {}
    tasks = {task.id: task for task in assignment.tasks}
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
    return {key: _confirmed(each, key in right, tasks[key[0]]) for key, each in outcomes.items()}, junit


def task_result(
    task: GradedTask, outcomes: dict[tuple, Outcome], answer: str, quoted: Outcome | None = None, needs: Sequence = ()
) -> TaskResult:
    """One task's result over all seeds: on each of them it has to be right.

    `quoted` is what a run without hidden tests says, where the others had some; `needs` are the tasks that have to be
    right before this one can be judged alone.
    """
    sequence = _worst([each for (id, _, alone), each in outcomes.items() if id == task.id and not alone])
    apart = [each for (id, _, alone), each in outcomes.items() if id == task.id and alone]
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
        shown = replace(
            shown,
            verdict="mistake",
            lines=(*alone.lines[:1], *shown.lines),
            sentences=alone.sentences or shown.sentences,
        )
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
        sentences=shown.sentences,
    )


def _quoting(judged: Outcome, quoted: Outcome) -> Outcome:
    """The points of the runs with hidden tests, in the words of the one without."""
    if judged.verdict == "right":
        return replace(judged, parts=quoted.parts)
    sentence = judged.lines[: judged.known]
    if quoted.verdict == "right":
        return replace(judged, lines=(*sentence, HIDDEN), parts=quoted.parts)
    lines = quoted.lines if quoted.known else (*sentence, *quoted.lines)
    sentences = quoted.sentences if quoted.known else tuple(dict.fromkeys((*sentence, *quoted.sentences)))
    verdict = "partial" if judged.points else "mistake" if judged.known else quoted.verdict
    verdict = "wrong" if verdict == "partial" and not judged.points else verdict
    return replace(
        quoted,
        verdict=verdict,
        points=judged.points,
        lines=lines,
        known=judged.known or quoted.known,
        sentences=sentences,
    )


def answer_hash(answer: str) -> str:
    """Of an answer without blanks at line ends: what a mark of a written answer hangs on."""
    return digest("\n".join(line.rstrip() for line in answer.strip().splitlines()))


def _confirmation(task: GradedTask, seed: int, outcome: Outcome) -> Callable[[list], str | None]:
    """What the pytest item calls with the outputs that nbval read of the reference: None to pass, words to fail.

    It passes only what was found to be right by evidence of the same task and seed as the reference's.
    """

    def confirm(outputs: list) -> str | None:
        expected = bundles(outputs)
        if task.kind != "tests" and [(each["task"], each["seed"]) for each in expected] != [(task.id, seed)]:
            return "the reference displayed no evidence of this task and seed"
        return None if outcome.verdict == "right" else " ".join(outcome.lines) or outcome.verdict

    return confirm


def _confirmed(outcome: Outcome, passed: bool, task: GradedTask) -> Outcome:
    """Full points for what pytest passed, and only for that; shares of sub-checks where it did not."""
    if passed:
        return replace(outcome, verdict="right", points=task.points)
    if outcome.verdict == "right":
        return replace(outcome, verdict="invalid", points=0, lines=("The judge's report has no pass for this check.",))
    return replace(outcome, points=min(outcome.points, task.points) if outcome.verdict == "partial" else 0)


def _worst(outcomes: list[Outcome]) -> Outcome:
    if not outcomes:
        return Outcome("stopped")
    return min(outcomes, key=lambda each: (each.points, each.verdict == "right"))


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
        printed = io.StringIO()
        with _only_our_plugins(), redirect_stdout(printed), redirect_stderr(printed):
            pytest.main(arguments, plugins=[replay])
        if not report.is_file():
            raise RuntimeError(f"pytest made no report: {printed.getvalue()[-500:]}")
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
