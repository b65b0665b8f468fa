"""`txlib release solutions/03_attention.py`: the exercise that a learner opens, without answers, with recordings."""

import base64
import copy
import json
import math
import re
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txlib import kernels
from txlib.grading.authoring.exercise import (
    Exercise,
    ExerciseError,
    is_check,
    is_parameters,
    read_exercise,
    stays_home,
    strip_hidden,
    stub,
)
from txlib.grading.authoring.measure import measure
from txlib.grading.authoring.record import RecordingError, record_evidence
from txlib.grading.checking.verdict import MIME, is_stub
from txlib.grading.evidence.recordings import first_difference, pack, same, unpack

LOAD = '''from txlib.grading import check

# What the checks compare your answers with: numbers recorded from right and from wrong answers, no solutions.
check.load("""
{packed}
""")'''
LOADED = re.compile(r'check\.load\("""\n(.*?)\n"""\)', re.DOTALL)
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
        ExerciseError: the reference fails or calls what its task forbids, an alternative differs, a mistake equals
            the reference or another mistake, points don't add, ids repeat, a check lacks its solution, or a task has
            under 3 mistakes.
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
    kernels.write_notebook(target, learner)
    if solution is not None:
        kernels.write_notebook(source.with_suffix(".ipynb"), solution)
    return Released(
        target,
        source.with_suffix(".ipynb") if run_solution else None,
        len(exercise.tasks),
        exercise.points,
        tuple(warnings),
    )


def make_recordings(exercise: Exercise) -> tuple[dict, list[str]]:
    """Run the reference and every known answer on the public seed; refuse what can't be released."""
    try:
        result = record_evidence(exercise.path, [exercise.seed])
        run = result["open"][str(exercise.seed)]
        shares = measured_shares(exercise, result["measured"], {exercise.seed: run})
    except RecordingError as reason:
        raise ExerciseError(exercise.name, [f"the reference fails: {reason}"]) from reason
    problems = []
    for task in exercise.tasks:
        found = task_problems(task.id, run, task.id in result["measured"])
        if task.id in result["measured"]:
            found += share_problems(task.id, run, shares[task.id, exercise.seed])
        found += stub_problems(result["stub"][task.id])
        found += [
            f"the reference itself calls {name}, which the task forbids" for name in result["broken"].get(task.id, ())
        ]
        problems += [f"task {task.id}: {problem}" for problem in found]
    if problems:
        raise ExerciseError(exercise.name, problems)
    warnings = [f"Run All stops while the answers are empty: {stop}" for stop in result["stops"]]
    warnings += [f"task {each.id}: no rubric says how to mark it" for each in exercise.written if not each.rubric]
    return recordings_of(exercise, run, exercise.seed, result["measured"]), warnings


def measured_shares(
    exercise: Exercise, measured: list[str], runs: dict[int, dict]
) -> dict[tuple[str, int], list[dict]]:
    """What the measured tasks' answers are worth, by (task, seed): the reference's, each known answer's, and last what
    comes of absurd weights.

    An answer whose check ends in an error is worth 0.
    """
    bundles = {}
    for task in measured:
        for seed, run in runs.items():
            known = [each["bundle"] for each in run["known"] if each["task"] == task]
            bundles[task, seed] = [run["reference"][task], *known, _absurd(run["reference"][task])]
    requests = [
        {"task": task, "seed": seed, "bundle": bundle}
        for (task, seed), each in bundles.items()
        for bundle in each
        if not bundle["error"]
    ]
    found = iter(measure(exercise.path, requests) if requests else ())
    failed = {"share": 0.0, "sentence": "Its check ends in an error."}
    return {key: [failed if bundle["error"] else next(found) for bundle in each] for key, each in bundles.items()}


def _absurd(bundle: dict) -> dict:
    """A bundle with weights so large that every number made of them is infinite or NaN; nothing, where it has none."""
    shown, huge = [], struct.pack("<ff", 3e38, -3e38)
    for each in bundle["shown"]:
        if each["value"]["kind"] == "weights":
            sizes = [math.prod(tensor["shape"]) for tensor in each["value"]["tensors"]]
            tensors = [
                tensor | {"float32": base64.b64encode((huge * size)[: 4 * size]).decode()}
                for tensor, size in zip(each["value"]["tensors"], sizes, strict=True)
            ]
            shown.append(each | {"value": {"kind": "weights", "tensors": tensors}})
    return bundle | {"shown": shown}


def stub_problems(bundle: dict) -> list[str]:
    """What is wrong with what a check shows of an empty answer."""
    if not is_stub(bundle):
        return ["its check does not notice that the answer is still empty"]
    if any(each["points"] for each in bundle["shown"]):
        return ["its check gives points before it calls the answer"]
    return []


def task_problems(task: str, evidence: dict, measured: bool) -> list[str]:
    """What makes a task's evidence unfit for release."""
    reference = evidence["reference"][task]
    known = [each for each in evidence["known"] if each["task"] == task]
    mistakes = [each for each in known if each["sentence"]]
    problems = []
    if reference["error"]:
        problems.append(f"the reference fails: {reference['error']['error']}: {reference['error']['message']}")
    if not reference["shown"]:
        problems.append("its check shows nothing")
    if len({each["points"] is None for each in reference["shown"]}) > 1:
        problems.append("its check gives points to some of the values that it shows; give them to all or to none")
    if len(mistakes) < FEWEST_MISTAKES:
        problems.append(f"{len(mistakes)} known mistakes, at least {FEWEST_MISTAKES} are needed")
    if measured:
        return problems
    for each in known:
        difference = first_difference(each["bundle"], reference)
        if each["sentence"] is None and difference:
            problems.append(f"an alternative differs from the reference: {difference[1]}")
        if each["sentence"] and same(each["bundle"], reference):
            problems.append(f'a mistake can\'t be told from the reference: "{each["sentence"]}"')
    for i, one in enumerate(mistakes):
        for other in mistakes[i + 1 :]:
            if same(one["bundle"], other["bundle"]):
                problems.append(f'two mistakes can\'t be told apart: "{one["sentence"]}" and "{other["sentence"]}"')
    return problems


def share_problems(task: str, evidence: dict, shares: list[dict]) -> list[str]:
    """What is wrong with what a measured task's answers are worth (see `measured_shares`)."""
    known = [each for each in evidence["known"] if each["task"] == task]
    problems = [each["error"] for each in shares if "error" in each]
    if problems:
        return problems
    reference, *others, absurd = shares
    if absurd["share"] >= 1:
        problems.append(
            "absurd weights, ±3e38, are worth all of the points: does the measure take NaN for good? "
            "max(0, min(share, 1)) makes 0 of it"
        )
    if reference["share"] < 1:
        problems.append(
            f"the reference is worth {reference['share']:g} of the points, not all of them. "
            f"{reference['sentence']}".rstrip()
        )
    for share, each in zip(others, known, strict=True):
        if each["sentence"] is None and share["share"] < 1:
            problems.append(f"an alternative is worth {share['share']:g} of the points, not all of them")
        if each["sentence"] and share["share"] >= 1:
            problems.append(f'a mistake is worth all of the points: "{each["sentence"]}"')
    return problems


def recordings_of(exercise: Exercise, evidence: dict, seed: int, measured: list[str]) -> dict:
    """What travels with the notebook (see `txlib.grading.evidence.recordings`)."""
    tasks = []
    for task in exercise.tasks:
        reference = evidence["reference"][task.id]
        recording = {"id": task.id, "title": task.title, "points": task.points}
        if task.id in measured:
            tasks.append(recording | {"measured": True, "reference": _kinds_only(reference), "mistakes": []})
            continue
        mistakes = [
            {"evidence": _short(_without_messages(each["bundle"])), "sentence": each["sentence"]}
            for each in evidence["known"]
            if each["task"] == task.id and each["sentence"]
        ]
        tasks.append(recording | {"reference": _short(reference), "mistakes": mistakes})
    written = [{"id": each.id, "title": each.title, "points": each.points} for each in exercise.written]
    found = {"version": 1, "exercise": exercise.name, "title": exercise.title, "seed": seed, "tasks": tasks}
    return found | {"written": written} if written else found


def learner_notebook(exercise: Exercise, recordings: dict) -> Any:
    """The notebook without solutions, mistakes and hidden tests, with the recordings in its first code cell."""
    notebook = plain_notebook(exercise)
    notebook.cells = [cell for cell in notebook.cells if not stays_home(cell)]
    for cell in notebook.cells:
        cell.source = stub(cell)
        if is_parameters(cell):
            cell.source = f"{cell.source}\n\n{LOAD.format(packed=pack(recordings))}"
            cell.metadata["jupyter"] = {"source_hidden": True}
    return notebook


def solution_notebook(exercise: Exercise, recordings: dict) -> Any:
    """The whole source, executed; its checks show that the reference passes (hidden tests are shown, but not run).

    Raises:
        ExerciseError: where a cell fails, or a check isn't right.
    """
    notebook = plain_notebook(exercise)
    for cell in notebook.cells:
        if is_check(cell):
            cell.source = strip_hidden(cell.source)
    with tempfile.TemporaryDirectory() as home:
        path = Path(home, "recordings.json")
        path.write_text(json.dumps(recordings))
        try:
            kernels.run(notebook, exercise.path.parent, TXLIB_HOME=home, TXLIB_RECORDINGS=str(path))
        except kernels.Stopped as reason:
            raise ExerciseError(exercise.name, [f"the solution notebook fails: {reason}"]) from reason
    notebook.metadata = kernels.metadata()
    for cell, original in zip(notebook.cells, exercise.notebook.cells, strict=True):
        cell.source = original.source
    kinds = {
        output.data[MIME]["task"]: output.data[MIME]["kind"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if MIME in output.get("data", {})
    }
    problems = [
        f"task {each['id']}: in a kernel the reference is {kinds.get(each['id'], 'not checked')}, not right"
        for each in recordings["tasks"]
        if kinds.get(each["id"]) != ("gathered" if each.get("measured") else "right")
    ]
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


def plain_notebook(exercise: Exercise) -> Any:
    """A copy of the source's notebook with steady ids and metadata, and no outputs."""
    notebook = copy.deepcopy(exercise.notebook)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = kernels.metadata()
    for number, cell in enumerate(notebook.cells, 1):
        cell.metadata.pop("lines_to_next_cell", None)  # jupytext's note on blank lines in the source
        nbgrader = cell.metadata.get("nbgrader")
        cell.id = nbgrader["grade_id"] if nbgrader else f"cell-{number}"
        if nbgrader is not None:  # nbgrader's schema 3, whole
            cell.metadata["nbgrader"] = {"task": False} | nbgrader
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def _without_messages(bundle: dict) -> dict:
    """Error messages could quote an answer; only the type is compared."""
    error = bundle["error"] and {"error": bundle["error"]["error"], "message": ""}
    return bundle | {"error": error}


def _short(bundle: dict) -> dict:
    """A bundle without what says nothing."""
    shown = [{key: value for key, value in each.items() if key != "points" or value} for each in bundle["shown"]]
    return {key: value for key, value in bundle.items() if key != "operators"} | {"shown": shown}


def _kinds_only(bundle: dict) -> dict:
    """Of a measured task nothing leaves but what kind of thing is asked for."""
    shown = [{"label": each["label"], "value": {"kind": each["value"]["kind"]}} for each in bundle["shown"]]
    return _short(bundle) | {"shown": shown}


def _same_cell(one: Any, other: Any) -> bool:
    keys = ("cell_type", "metadata", "id")
    if any(one.get(key) != other.get(key) for key in keys):
        return False
    if LOADED.sub("", one.source) != LOADED.sub("", other.source):
        return False
    packed, fresh = LOADED.findall(one.source), LOADED.findall(other.source)
    return len(packed) == len(fresh) and all(
        same_recordings(unpack(mine), unpack(theirs)) for mine, theirs in zip(packed, fresh, strict=True)
    )


def same_recordings(one: dict, other: dict) -> bool:
    """Whether two recordings hold the same tasks, sentences and evidence."""
    if _frame(one) != _frame(other):
        return False
    for mine, theirs in zip(one["tasks"], other["tasks"], strict=True):
        if mine.get("measured") or theirs.get("measured"):
            if mine != theirs:
                return False
            continue
        pairs = [(mine["reference"], theirs["reference"])]
        pairs += [(a["evidence"], b["evidence"]) for a, b in zip(mine["mistakes"], theirs["mistakes"], strict=True)]
        if not all(same(a, b) for a, b in pairs):
            return False
    return True


def _frame(recordings: dict) -> dict:
    """Recordings without their evidence."""
    tasks = [
        {key: task[key] for key in ("id", "title", "points")}
        | {"sentences": [each["sentence"] for each in task["mistakes"]]}
        for task in recordings["tasks"]
    ]
    return recordings | {"tasks": tasks}
