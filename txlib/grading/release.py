"""`txlib release solutions/03_attention.py`: the exercise that a learner opens, without answers, with recordings."""

import copy
import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txlib.grading.exercise import (
    Exercise,
    ExerciseError,
    is_answer,
    is_check,
    is_mistakes,
    is_parameters,
    read_exercise,
    strip_hidden,
    strip_solution,
)
from txlib.grading.progress_file import write_atomically
from txlib.grading.record import RecordingError, record_evidence
from txlib.grading.recordings import first_difference, pack, same, unpack
from txlib.grading.verdict import MIME, is_stub

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LOAD = '''from txlib.grading import check

# What the checks compare your answers with: numbers recorded from right and from wrong answers, no solutions.
check.load("""
{packed}
""")'''
LOADED = re.compile(r'check\.load\("""\n(.*?)\n"""\)', re.DOTALL)
QUIET = ["--log-level=ERROR"]      # a kernel otherwise warns that local sockets aren't encrypted
FEWEST_MISTAKES = 3


@dataclass(frozen=True)
class Released:
    """What `release` wrote, and what an author may want to improve."""

    exercise: Path
    solution: Path | None
    tasks: int
    points: int | float
    warnings: tuple[str, ...] = ()


def release(source: Path | str, out: Path | str | None = None, *, run_solution: bool = True) -> Released:
    """Write `exercises/NN_name.ipynb` for learners, and the executed `solutions/NN_name.ipynb` beside the source.

    Without `out`, the exercise goes to the folder `exercises` next to the source's folder. Nothing is written
    unless everything is right; the same source gives the same bytes.

    Raises:
        FileNotFoundError: no such source.
        ExerciseError: the reference fails, an alternative differs, a mistake equals the reference or another
            mistake, points don't add, ids repeat, a check lacks its solution, or a task has under 3 mistakes.
    """
    source = Path(source)
    exercise = read_exercise(source)
    recordings, warnings = make_recordings(exercise)
    target = (Path(out) if out else source.parent.resolve().parent / "exercises") / f"{exercise.name}.ipynb"
    if target.resolve() == source.resolve() or target.parent.resolve() == source.parent.resolve():
        raise ExerciseError(exercise.name, [f"the exercise would be written beside its solution, in {target.parent}"])
    learner = learner_notebook(exercise, recordings)
    solution = solution_notebook(exercise, recordings) if run_solution else None
    target.parent.mkdir(parents=True, exist_ok=True)
    write_notebook(target, learner)
    if solution is not None:
        write_notebook(source.with_suffix(".ipynb"), solution)
    return Released(target, source.with_suffix(".ipynb") if run_solution else None, len(exercise.tasks),
                    exercise.points, tuple(warnings))


def make_recordings(exercise: Exercise) -> tuple[dict, list[str]]:
    """Run the reference and every known answer on the public seed; refuse what can't be released."""
    try:
        result = record_evidence(exercise.path, [exercise.seed])
    except RecordingError as reason:
        raise ExerciseError(exercise.name, [f"the reference fails: {reason}"]) from reason
    evidence = result["open"][str(exercise.seed)]
    problems = []
    for task in exercise.tasks:
        problems += [f"task {task.id}: {problem}" for problem in task_problems(task.id, evidence)]
        if not is_stub(result["stub"][task.id]):
            problems.append(f"task {task.id}: its check does not notice that the answer is still empty")
    if problems:
        raise ExerciseError(exercise.name, problems)
    warnings = [f"Run All stops while the answers are empty: {stop}" for stop in result["stops"]]
    return recordings_of(exercise, evidence, exercise.seed), warnings


def task_problems(task: str, evidence: dict) -> list[str]:
    """What makes a task's evidence unfit for release."""
    reference = evidence["reference"][task]
    known = [each for each in evidence["known"] if each["task"] == task]
    mistakes = [each for each in known if each["sentence"]]
    problems = []
    if reference["error"]:
        problems.append(f"the reference fails: {reference['error']['error']}: {reference['error']['message']}")
    if not reference["shown"]:
        problems.append("its check shows nothing")
    if len(mistakes) < FEWEST_MISTAKES:
        problems.append(f"{len(mistakes)} known mistakes, at least {FEWEST_MISTAKES} are needed")
    for each in known:
        difference = first_difference(each["bundle"], reference)
        if each["sentence"] is None and difference:
            problems.append(f"an alternative differs from the reference: {difference[1]}")
        if each["sentence"] and same(each["bundle"], reference):
            problems.append(f'a mistake can\'t be told from the reference: "{each["sentence"]}"')
    for i, one in enumerate(mistakes):
        for other in mistakes[i + 1:]:
            if same(one["bundle"], other["bundle"]):
                problems.append(f'two mistakes can\'t be told apart: "{one["sentence"]}" and "{other["sentence"]}"')
    return problems


def recordings_of(exercise: Exercise, evidence: dict, seed: int) -> dict:
    """What travels with the notebook (see `txlib.grading.recordings`)."""
    tasks = [
        {"id": task.id, "title": task.title, "points": task.points, "reference": evidence["reference"][task.id],
         "mistakes": [{"evidence": _without_messages(each["bundle"]), "sentence": each["sentence"]}
                      for each in evidence["known"] if each["task"] == task.id and each["sentence"]]}
        for task in exercise.tasks
    ]
    return {"version": 1, "exercise": exercise.name, "title": exercise.title, "seed": seed, "tasks": tasks}


def learner_notebook(exercise: Exercise, recordings: dict) -> Any:
    """The notebook without solutions, mistakes and hidden tests, with the recordings in its first code cell."""
    notebook = plain_notebook(exercise)
    notebook.cells = [cell for cell in notebook.cells if not is_mistakes(cell)]
    for cell in notebook.cells:
        if is_answer(cell):
            cell.source = strip_solution(cell.source)
        if is_check(cell):
            cell.source = strip_hidden(cell.source)
        if is_parameters(cell):
            cell.source = f"{cell.source}\n\n{LOAD.format(packed=pack(recordings))}"
            cell.metadata["jupyter"] = {"source_hidden": True}
    return notebook


def solution_notebook(exercise: Exercise, recordings: dict, timeout: int | float = 600) -> Any:
    """The whole source, executed; its checks show that the reference passes (hidden tests are shown, but not run).

    Raises:
        ExerciseError: where a cell fails, or a check isn't right.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError

    notebook = plain_notebook(exercise)
    for cell in notebook.cells:
        if is_check(cell):
            cell.source = strip_hidden(cell.source)
    client = NotebookClient(notebook, timeout=timeout, kernel_name="python3", record_timing=False,
                            extra_arguments=QUIET, resources={"metadata": {"path": str(exercise.path.parent)}})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "recordings.json")
        path.write_text(json.dumps(recordings))
        try:
            client.execute(env=kernel_environment(TXLIB_HOME=folder, TXLIB_RECORDINGS=str(path)))
        except (CellExecutionError, CellTimeoutError) as reason:
            last = str(reason).strip().splitlines()[-1]
            raise ExerciseError(exercise.name, [f"the solution notebook fails: {last}"]) from reason
    notebook.metadata = type(notebook.metadata)(_metadata())
    for cell, original in zip(notebook.cells, exercise.notebook.cells, strict=True):
        cell.source = original.source
    kinds = {output.data[MIME]["task"]: output.data[MIME]["kind"] for cell in notebook.cells
             for output in cell.get("outputs", ()) if MIME in output.get("data", {})}
    problems = [f"task {task.id}: in a kernel the reference is {kinds.get(task.id, 'not checked')}, not right"
                for task in exercise.tasks if kinds.get(task.id) != "right"]
    if problems:
        raise ExerciseError(exercise.name, problems)
    return notebook


def same_notebook(one: Any, other: Any) -> bool:
    """Whether two released notebooks are the same but for outputs and the last digits of recorded numbers.

    Another processor rounds differently, so recordings count as the same where their evidence does.
    """
    if len(one.cells) != len(other.cells) or one.metadata.get("kernelspec") != other.metadata.get("kernelspec"):
        return False
    return all(_same_cell(mine, theirs) for mine, theirs in zip(one.cells, other.cells, strict=True))


def write_notebook(path: Path, notebook: Any) -> None:
    """Write a notebook in one piece, in nbformat's own layout."""
    import nbformat

    nbformat.validate(notebook)
    write_atomically(path, nbformat.writes(notebook) + "\n")


def kernel_environment(**extra: str) -> dict[str, str]:
    """This process's environment for a kernel, in which the same txlib can be imported."""
    folders = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(folders)} | extra


def plain_notebook(exercise: Exercise) -> Any:
    """A copy of the source's notebook with steady ids and metadata, and no outputs."""
    notebook = copy.deepcopy(exercise.notebook)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = type(notebook.metadata)(_metadata())
    for number, cell in enumerate(notebook.cells, 1):
        cell.metadata.pop("lines_to_next_cell", None)      # jupytext's note on blank lines in the source
        nbgrader = cell.metadata.get("nbgrader")
        cell.id = nbgrader["grade_id"] if nbgrader else f"cell-{number}"
        if nbgrader is not None:      # nbgrader's schema 3, whole
            cell.metadata["nbgrader"] = {"task": False} | nbgrader
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def _metadata() -> dict:
    return {"kernelspec": dict(KERNEL), "language_info": {"name": "python"}}


def _without_messages(bundle: dict) -> dict:
    """Error messages could quote an answer; only the type is compared."""
    error = bundle["error"] and {"error": bundle["error"]["error"], "message": ""}
    return bundle | {"error": error}


def _same_cell(one: Any, other: Any) -> bool:
    keys = ("cell_type", "metadata", "id")
    if any(one.get(key) != other.get(key) for key in keys):
        return False
    if LOADED.sub("", one.source) != LOADED.sub("", other.source):
        return False
    packed, fresh = LOADED.findall(one.source), LOADED.findall(other.source)
    return len(packed) == len(fresh) and all(
        same_recordings(unpack(mine), unpack(theirs)) for mine, theirs in zip(packed, fresh, strict=True))


def same_recordings(one: dict, other: dict) -> bool:
    """Whether two recordings hold the same tasks, sentences and evidence."""
    if _frame(one) != _frame(other):
        return False
    for mine, theirs in zip(one["tasks"], other["tasks"], strict=True):
        pairs = [(mine["reference"], theirs["reference"])]
        pairs += [(a["evidence"], b["evidence"]) for a, b in zip(mine["mistakes"], theirs["mistakes"], strict=True)]
        if not all(same(a, b) for a, b in pairs):
            return False
    return True


def _frame(recordings: dict) -> dict:
    """Recordings without their evidence."""
    tasks = [{key: task[key] for key in ("id", "title", "points")} |
             {"sentences": [each["sentence"] for each in task["mistakes"]]} for task in recordings["tasks"]]
    return recordings | {"tasks": tasks}
