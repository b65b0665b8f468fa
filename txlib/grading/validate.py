"""`txlib validate`: an author's own check of what learners will be graded by."""

import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from txlib.grading.assignment import Assignment, read_assignment, rebuild, solved
from txlib.grading.exercise import ExerciseError
from txlib.grading.nbgrader_format import autograded
from txlib.grading.record import RecordingError
from txlib.grading.release import QUIET, kernel_environment
from txlib.grading.verify import TaskReport, verify


@dataclass(frozen=True)
class Validated:
    """What was found of one source."""

    assignment: Assignment
    reports: tuple[TaskReport, ...]  # of the tasks that are not marked by a person

    @property
    def problems(self) -> list[str]:
        return [f"task {report.task}: {problem}" for report in self.reports for problem in report.problems]

    def table(self) -> str:
        """A line a task."""
        row = "{:<28} {:>6}  {:<9}  {:>12}  {:>8}  {:>4}  {:>7}".format
        lines = [row("task", "points", "reference", "alternatives", "mistakes", "stub", "seconds")]
        for each in self.reports:
            lines.append(
                row(
                    each.task,
                    f"{each.points:g}",
                    "passes" if each.reference else "FAILS",
                    _share(each.alternatives),
                    _share(each.mistakes),
                    f"{each.stub_points:g}",
                    f"{each.seconds:.3f}",
                )
            )
        by_hand = [task.id for task in self.assignment.tasks if task.kind == "written"]
        return "\n".join(lines + [f"marked by a person: {', '.join(by_hand)}"] * bool(by_hand))


def validate(source: Path | str) -> Validated:
    """Prove a source: the reference gets all points, the stub none; of an exercise of ours, what `verify` proves too.

    A source of nbgrader's has neither known mistakes nor seeds: its tests run once on its own solutions, and once
    on the released stubs.

    Raises:
        FileNotFoundError: no such source.
        ExerciseError: its form is wrong, or its own code fails.
    """
    assignment = read_assignment(source)
    if assignment.tasks and all(task.kind in ("tests", "written") for task in assignment.tasks):
        return Validated(assignment, tuple(_tested(assignment)))
    try:
        return Validated(assignment, tuple(verify(source)))
    except RecordingError as reason:
        raise ExerciseError(assignment.name, [f"the reference fails: {reason}"]) from reason


def _tested(assignment: Assignment) -> list[TaskReport]:
    """nbgrader's tests on the assignment's own solutions and on the stubs."""
    reference, stub = _run(assignment, solved(assignment)), _run(assignment, rebuild(assignment, {}))
    reports = []
    for task in assignment.tasks:
        if task.kind != "tests":
            continue
        outputs = reference[task.check].outputs
        points, stub_points = autograded(outputs, task), autograded(stub[task.check].outputs, task)
        problems = []
        if points != task.points:
            errors = [f": {each['ename']}: {each['evalue']}" for each in outputs if each["output_type"] == "error"]
            said = f"the reference gets {points:g} of {task.points:g} points{''.join(errors[:1])}"
            problems.append(said.splitlines()[0])
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
                seconds=_seconds(reference[task.check]),
            )
        )
    return reports


def _run(assignment: Assignment, notebook: Any) -> dict[str, Any]:
    """Run in a plain kernel, errors and all; returns the code cells by id."""
    from nbclient import NotebookClient
    from nbclient.exceptions import DeadKernelError

    client = NotebookClient(
        notebook,
        timeout=assignment.timeout,
        interrupt_on_timeout=True,
        allow_errors=True,
        kernel_name="python3",
        error_on_timeout={"ename": "Timeout", "evalue": f"longer than {assignment.timeout:g} s", "traceback": []},
        extra_arguments=QUIET,
        resources={"metadata": {"path": str(assignment.path.parent)}},
    )
    with tempfile.TemporaryDirectory() as home:
        try:
            client.execute(env=kernel_environment(TXLIB_HOME=home))
        except DeadKernelError as reason:
            raise ExerciseError(assignment.name, ["its kernel died"]) from reason
    return {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}


def _seconds(cell: Any) -> float:
    times = cell.metadata.get("execution", {})
    began, ended = times.get("iopub.execute_input"), times.get("iopub.status.idle")
    if not (began and ended):
        return 0.0
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()


def _share(found: tuple[bool, ...]) -> str:
    return f"{sum(found)} of {len(found)}" if found else "–"
