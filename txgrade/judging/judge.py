"""Decides, in a process that student code never enters, what a submission's evidence is worth.

Each check of each run is one pytest item, collected by nbval from the reference's executed notebook, and nbval's
comparison of the two cells' outputs decides: a check passes only where its item is reported as passed.
"""

import io
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from txgrade.authoring.assignment import Assignment, GradedTask, digest
from txgrade.judging.outcome import Outcome, Reference, Run, checked, outcome
from txgrade.judging.replay import Checked, Replay
from txgrade.records.result import TaskResult

HIDDEN = "In a test that is not shown, your answer gives something else."
JUNIT_VARIABLE = re.compile(r' (?:time|timestamp|hostname)="[^"]*"')  # what differs from run to run


def judge(assignment: Assignment, reference: Reference, runs: list[Run]) -> tuple[dict[tuple, Outcome], str]:
    """Return the outcomes of the runs, by (task, seed, alone or not), and the JUnit report."""
    judged = [
        (task, run, checked(task, run))
        for run in runs
        for task in assignment.tasks
        if task.kind != "written" and run.only in (None, task.id)
    ]
    by_seed: dict[int, list[Checked]] = {}
    for _, run, check in judged:
        by_seed.setdefault(run.seed, []).append(check)
    junit = _pytest(reference, by_seed) if by_seed else ""
    return {
        (task.id, run.seed, run.only is not None): outcome(assignment, task, run, reference, check)
        for task, run, check in judged
    }, junit


def one_report(reports: Sequence[str]) -> str:
    """Return several JUnit reports as one."""
    reports = [report for report in reports if report]
    if len(reports) < 2:
        return "".join(reports)
    first, *more = map(ElementTree.fromstring, reports)
    for report in more:
        first.extend(list(report))
    return ElementTree.tostring(first, encoding="unicode", xml_declaration=True)


def task_result(
    task: GradedTask,
    outcomes: dict[tuple, Outcome],
    answer: str,
    quoted: Outcome | None = None,
    waits_for: Sequence[GradedTask] = (),
) -> TaskResult:
    """Return one task's result over all seeds: on each of them it has to be right.

    `quoted` is what a run without hidden tests says, if the others had some; `waits_for` are the tasks that have to be
    right before this one can be judged alone.
    """
    sequence = _worst([outcome for (id, _, is_alone), outcome in outcomes.items() if id == task.id and not is_alone])
    ran_alone = [outcome for (id, _, is_alone), outcome in outcomes.items() if id == task.id and is_alone]
    alone = _worst(ran_alone) if ran_alone else sequence
    shown = sequence if quoted is None else _quoting(sequence, quoted)
    if alone.points > sequence.points:
        how = "Right" if alone.verdict == "right" else "Partly right"
        words = f"{how} when it runs by itself: another cell of your notebook gets in its way."
        shown = replace(
            alone, lines=(words, *(f"In your notebook: {line}" for line in shown.lines[:1])), parts=(), matrices=None
        )
    elif ran_alone and alone.known and not sequence.known:  # only the author's own words leave that run
        shown = replace(
            shown,
            verdict="mistake",
            lines=(*alone.lines[:1], *shown.lines),
            sentences=alone.sentences or shown.sentences,
        )
    if waits_for and shown.verdict != "right":
        titles = " and ".join(f"*{other.title}*" for other in waits_for)
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
    """Return the points of the runs with hidden tests, in the words of the one without."""
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
    """Return the hash of an answer without blanks at line ends, by which marks of written answers are kept."""
    return digest("\n".join(line.rstrip() for line in answer.strip().splitlines()))


def _worst(outcomes: list[Outcome]) -> Outcome:
    if not outcomes:
        return Outcome("stopped")
    return min(outcomes, key=lambda outcome: (outcome.points, outcome.verdict == "right"))


def _pytest(reference: Reference, by_seed: dict[int, list[Checked]]) -> str:
    """Run one pytest session over the seeds' reference notebooks; return the JUnit report."""
    import pytest

    with tempfile.TemporaryDirectory() as folder:
        checks = {}
        for seed, of_seed in by_seed.items():
            path = Path(folder, f"seed-{seed}.ipynb").resolve()
            path.write_text(reference.notebooks[seed], encoding="utf-8")
            checks[path] = of_seed
        report = Path(folder, "junit.xml")
        arguments = [
            *map(str, checks),
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
            pytest.main(arguments, plugins=[Replay(checks)])
        if not report.is_file():
            raise RuntimeError(f"pytest made no report: {printed.getvalue()[-500:]}")
        return JUNIT_VARIABLE.sub("", report.read_text(encoding="utf-8"))


@contextmanager
def _only_our_plugins() -> Iterator[None]:
    """Within the block, pytest loads nbval and us, whatever else is installed or set."""
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
