"""`txlib validate`: an author's own check of what learners will be graded by."""

import tempfile
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from txlib.grading.assignment import Assignment, read_assignment, rebuild, solved
from txlib.grading.exercise import ExerciseError, is_parameters
from txlib.grading.nbgrader_format import autograded
from txlib.grading.record import RecordingError
from txlib.grading.release import QUIET, kernel_environment
from txlib.grading.verify import TaskReport, verify


@dataclass(frozen=True)
class Validated:
    """What was found of one source."""

    assignment: Assignment
    reports: tuple[TaskReport, ...]      # of the tasks that are not marked by a person
    seconds: dict[str, float]            # by task: its answer's and its check's cells, in a kernel

    @property
    def problems(self) -> list[str]:
        return [f"task {report.task}: {problem}" for report in self.reports for problem in report.problems]

    def table(self) -> str:
        """A line a task."""
        row = "{:<28} {:>6}  {:<9}  {:>12}  {:>8}  {:>4}  {:>7}".format
        lines = [row("task", "points", "reference", "alternatives", "mistakes", "stub", "seconds")]
        for each in self.reports:
            lines.append(row(
                each.task, f"{each.points:g}", "passes" if each.reference else "FAILS", _share(each.alternatives),
                _share(each.mistakes), f"{each.stub_points:g}", f"{self.seconds[each.task]:.3f}"))
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
    graded = [task for task in assignment.tasks if task.kind != "written"]
    outputs, seconds = _run(assignment, solved(assignment))
    if all(task.kind == "tests" for task in graded):
        stub, _ = _run(assignment, rebuild(assignment, {}))
        reports = [_report(task, outputs[task.check], stub[task.check]) for task in graded]
    else:
        try:
            reports = verify(source)
        except RecordingError as reason:
            raise ExerciseError(assignment.name, [f"the reference fails: {reason}"]) from reason
        reports = [_with_errors(each, assignment, outputs) for each in reports]
    times = {task.id: sum(seconds[id] for id in (*task.answers, task.check)) for task in graded}
    return Validated(assignment, tuple(reports), times)


def _report(task: Any, reference: list, stub: list) -> TaskReport:
    points, stub_points = autograded(reference, task), autograded(stub, task)
    problems = []
    if points != task.points:
        errors = [each for each in reference if each["output_type"] == "error"]
        said = f": {errors[0]['ename']}: {errors[0]['evalue']}" if errors else ""
        problems.append(f"the reference gets {points:g} of {task.points:g} points{said}".splitlines()[0])
    if stub_points:
        problems.append(f"the empty stub gets {stub_points:g} points")
    return TaskReport(task.id, task.points, points == task.points, (), (), stub_points, tuple(problems))


def _with_errors(report: TaskReport, assignment: Assignment, outputs: dict[str, list]) -> TaskReport:
    """A report that also holds what goes wrong in a kernel only, such as a cell that takes too long."""
    task = assignment.task(report.task)
    errors = [each for id in (*task.answers, task.check) for each in outputs[id] if each["output_type"] == "error"]
    problems = [f"in a kernel its cell fails: {each['ename']}: {each['evalue']}".splitlines()[0] for each in errors]
    return replace(report, problems=(*report.problems, *problems))


def _run(assignment: Assignment, notebook: Any) -> tuple[dict[str, list], dict[str, float]]:
    """Run in a plain kernel, errors and all; returns each code cell's outputs and seconds."""
    from nbclient import NotebookClient
    from nbclient.exceptions import DeadKernelError

    for cell in notebook.cells:
        if is_parameters(cell):
            cell.source += '\nmode = "grade"'
    client = NotebookClient(
        notebook, timeout=assignment.timeout, interrupt_on_timeout=True, allow_errors=True, kernel_name="python3",
        error_on_timeout={"ename": "Timeout", "evalue": f"longer than {assignment.timeout:g} s", "traceback": []},
        extra_arguments=QUIET, resources={"metadata": {"path": str(assignment.path.parent)}})
    with tempfile.TemporaryDirectory() as home:
        try:
            client.execute(env=kernel_environment(TXLIB_HOME=home, MPLBACKEND="agg"))
        except DeadKernelError as reason:
            raise ExerciseError(assignment.name, ["its kernel died"]) from reason
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return {cell.id: cell.outputs for cell in cells}, {cell.id: _seconds(cell) for cell in cells}


def _seconds(cell: Any) -> float:
    times = cell.metadata.get("execution", {})
    began, ended = times.get("iopub.execute_input"), times.get("iopub.status.idle")
    if not (began and ended):
        return 0.0
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()


def _share(found: tuple[bool, ...]) -> str:
    return f"{sum(found)} of {len(found)}" if found else "–"
