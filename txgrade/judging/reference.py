"""What answers are compared with: the reference and the known mistakes, run on the seeds before anybody else."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from txgrade.authoring.assignment import Assignment, solved
from txgrade.authoring.record import RecordingError, record_evidence
from txgrade.evidence.recordings import first_difference
from txgrade.judging.execute import Executed
from txgrade.judging.outcome import Reference
from txgrade.judging.replay import bundles

DATA = (
    ". In the sandbox cells can read what comes with the course, and what is named as data and readable for all: "
    'data=["numbers.txt"] in the metadata of the parameters cell'
)


class FailingReference(ValueError):
    """The instructor's own notebook does not stand its tests: nobody is graded by it."""


def record_known(assignment: Assignment, seeds: tuple[int, ...]) -> dict | None:
    """The evidence of the reference and of the known mistakes, made in a plain process; None where asserts decide.

    Raises:
        FailingReference: the author's own code fails.
    """
    if not assignment.has_checks:
        return None
    quoted = list(seeds[:1]) if any(task.hidden for task in assignment.tasks) else []
    try:
        return record_evidence(assignment.path, quoted, list(seeds), variant=assignment.variant)
    except RecordingError as reason:
        raise FailingReference(f"{assignment.name}: the reference fails: {reason}") from reason


def make_reference(
    assignment: Assignment,
    seeds: tuple[int, ...],
    run: Callable[..., Executed],
    read_recorded: Callable[[], dict | None],
) -> tuple[Assignment, Reference]:
    """Run the reference on every seed, in kernels of its own; `run(notebook, seed, private_values=…)` executes one.

    `read_recorded` gives what `record_known` found, which may still be at work.

    Returns the assignment with what only its own code can say (which tasks are measured, which calls are forbidden,
    the rule for late submissions), and the reference.

    Raises:
        FailingReference: the reference fails, or shows other values in a kernel than in a plain process.
    """
    seeded = assignment.has_checks
    private_values: dict[int, dict[str, list]] = {}
    if assignment.has_private_values and (recorded := read_recorded()):
        private_values = {seed: recorded["hidden"][str(seed)]["private_values"] for seed in seeds}
    runs = {
        seed: run(solved(assignment), seed if seeded else None, private_values=private_values.get(seed))
        for seed in seeds
    }
    recorded = read_recorded()
    if recorded:
        assignment = _completed(assignment, recorded)
    notebooks = {}
    for seed, executed in runs.items():
        if problems := failures(assignment, executed, recorded, seed):
            raise FailingReference(f"{assignment.name}, seed {seed}: {problems[0]}")
        notebooks[seed] = _judged_cells(assignment, executed)
    if not recorded:
        return assignment, Reference(notebooks)
    hidden = {seed: recorded["hidden"][str(seed)] for seed in seeds}
    return assignment, Reference(
        notebooks,
        {seed: _recordings(assignment, evidence) for seed, evidence in hidden.items()},
        {int(seed): _recordings(assignment, evidence) for seed, evidence in recorded["open"].items()},
        private_values,
    )


def failures(
    assignment: Assignment, executed: Executed, recorded: dict | None = None, seed: int | None = None
) -> list[str]:
    """What keeps the executed reference from being a standard for others: a line each, or the one cause, if known.

    `recorded` is what `record_known` found, where its values are to be compared, too.
    """
    if executed.stopped:
        return [f"the reference did not come to its end: {executed.stopped}"]
    problems = [
        f"task {task.id}: {problem}"
        for task in assignment.tasks
        if (problem := _problem(task, executed.outputs.get(task.check, []), recorded, seed))
    ]
    cause = _failed_cell(assignment, executed) if problems else None
    return [cause] if cause else problems


def _failed_cell(assignment: Assignment, executed: Executed) -> str | None:
    """The first cell above the checks' own that raised, with its line and what may help."""
    checks = {task.check for task in assignment.tasks}
    for cell in assignment.notebook.cells:
        errors = [output for output in executed.outputs.get(cell.id, ()) if output["output_type"] == "error"]
        if errors and cell.id not in checks:
            error, message = errors[0]["ename"], errors[0]["evalue"][:300]
            return f"its cell {cell.id} ended with {error}: {message}{_remedy(error)}"
    return None


def _remedy(error: str) -> str:
    """What an author can do about an error that only a sandbox makes."""
    return DATA if error in ("FileNotFoundError", "PermissionError", "NotADirectoryError", "OSError") else ""


def _completed(assignment: Assignment, recorded: dict) -> Assignment:
    measured = {entry["task"] if isinstance(entry, dict) else entry for entry in recorded.get("measured", ())}
    forbidden: dict[str, tuple[str, ...]] = {}
    for entry in recorded.get("forbidden", ()):
        forbidden[entry["task"]] = (*forbidden.get(entry["task"], ()), *entry["names"], *entry["operators"])
    tasks = tuple(
        replace(task, kind="measured" if task.id in measured else task.kind, forbidden=forbidden.get(task.id, ()))
        for task in assignment.tasks
    )
    return replace(assignment, tasks=tasks)


def _problem(task: Any, outputs: list, recorded: dict | None, seed: int | None) -> str | None:
    """What keeps a task of the executed reference from being a standard for others."""
    if task.kind == "written":
        return None
    if task.kind == "tests":
        from txgrade.authoring.nbgrader import autograded

        if errors := [output for output in outputs if output["output_type"] == "error"]:
            return f"its own tests fail: {errors[0]['ename']}: {errors[0]['evalue'][:300]}"
        points = autograded(outputs, task)
        return None if points == task.points else f"its own tests give it {points:g} of {task.points:g} points"
    displayed = bundles(outputs)
    if len(displayed) != 1:
        errors = [output.get("evalue") for output in outputs if output["output_type"] == "error"]
        return f"its check displayed {len(displayed)} bundles of evidence instead of one {errors}"
    if error := displayed[0]["error"]:
        return f"the reference fails: {error['error']}: {error['message']}{_remedy(error['error'])}"
    if task.kind == "evidence" and recorded:
        differs = first_difference(displayed[0], recorded["hidden"][str(seed)]["reference"][task.id])
        return differs and f"in a kernel the reference shows something else than in a plain process: {differs[1]}"
    return None


def _recordings(assignment: Assignment, evidence: dict) -> dict[str, dict]:
    """The recording of each task, of what the reference and the known mistakes show on one seed."""
    return {
        task.id: {
            "id": task.id,
            "title": task.title,
            "points": task.points,
            "reference": evidence["reference"][task.id],
            "mistakes": [
                {"evidence": answer["bundle"], "sentence": answer["sentence"]}
                for answer in evidence["known"]
                if answer["task"] == task.id and answer["sentence"]
            ],
        }
        for task in assignment.tasks
        if task.kind in ("evidence", "measured")
    }


def _judged_cells(assignment: Assignment, executed: Executed) -> str:
    """The executed reference as nbval reads it: its check cells and what they displayed."""
    checks = {task.check for task in assignment.tasks if task.kind != "written"}
    cells = [
        {
            "cell_type": "code",
            "id": cell.id,
            "metadata": {},
            "source": cell.source,
            "execution_count": 1,
            "outputs": executed.outputs[cell.id],
        }
        for cell in assignment.notebook.cells
        if cell.id in checks
    ]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells})
