"""`txgrade release solutions/03_attention.py`: the exercise that a learner opens, without answers, with recordings."""

import os
from dataclasses import dataclass
from pathlib import Path

from txgrade import notebook_runner
from txgrade.authoring.answers import read_answers
from txgrade.authoring.check_notebook import read_notebook
from txgrade.authoring.data import hand_out
from txgrade.authoring.exercise import Exercise, ExerciseError, read_exercise
from txgrade.authoring.measure import measured_shares
from txgrade.authoring.notebooks import learner_notebook, released_name, solution_notebook
from txgrade.authoring.problems import share_problems, stub_problems, task_problems
from txgrade.authoring.record import RecordingError, record_evidence


@dataclass(frozen=True)
class Released:
    """What `release` wrote, and what an author may want to improve."""

    exercise: Path
    solution: Path | None
    tasks: int
    points: int | float
    warnings: tuple[str, ...] = ()
    varied: str = ""  # what a variant has, e.g. "WIDTH = 8"


def release(
    source: Path | str,
    out: Path | str | None = None,
    *,
    variant: int | None = None,
    due: str | None = None,
    run_solution: bool = True,
    withhold: bool = False,
) -> Released:
    """Write `exercises/exercise_NN_name.ipynb` for learners, and the executed `solutions/NN_name.ipynb` at the source.

    With `variant` it is that variant of the exercise, for everybody, and `due` its deadline; its files' names have its
    number.

    Without `out`, the exercise goes to the folder `exercises` next to the source's folder. Nothing is written
    unless everything is right; the same source gives the same bytes. With `withhold` there is no executed solution, and
    one from before is deleted: without it, the exercise leads to none.

    Raises:
        FileNotFoundError: no such source.
        ExerciseError: the reference fails or calls what its task forbids, an alternative differs, a mistake equals
            the reference or another mistake, points don't add, ids repeat, a check lacks its solution, or a task has
            under 3 mistakes; the file that would be overwritten holds a learner's answers.
    """
    source = Path(source)
    exercise = read_exercise(source, variant, due=due)
    target = (Path(out) if out else source.parent.resolve().parent / "exercises") / released_name(exercise.name)
    if target.resolve() == source.resolve() or target.parent.resolve() == source.parent.resolve():
        raise ExerciseError(exercise.name, [f"the exercise would be written next to its solution, in {target.parent}"])
    need_no_answers(exercise, target)
    recordings, warnings = make_recordings(exercise)
    learner = learner_notebook(exercise, recordings)
    shown = source.with_name(f"{exercise.name}.ipynb")
    way = os.path.relpath(target.resolve(), shown.parent.resolve()).replace(os.sep, "/")
    solution = solution_notebook(exercise, recordings, way) if run_solution and not withhold else None
    target.parent.mkdir(parents=True, exist_ok=True)
    notebook_runner.write_notebook(target, learner)
    warnings += hand_out(exercise.data, target.parent)
    if solution is not None:
        notebook_runner.write_notebook(shown, solution)
    if withhold:
        shown.unlink(missing_ok=True)
    return Released(
        target,
        shown if solution is not None else None,
        len(exercise.tasks) + len(exercise.written),
        exercise.points,
        tuple(warnings),
        exercise.variants.words(variant) if variant is not None else "",
    )


def need_no_answers(exercise: Exercise, target: Path) -> None:
    """Refuse to overwrite an exercise that holds answers."""
    if target.exists() and (answers := read_answers(read_notebook(target))):
        raise ExerciseError(
            exercise.name, [f"{target} holds answers ({', '.join(answers)}): rename it, then release again"]
        )


def make_recordings(exercise: Exercise) -> tuple[dict, list[str]]:
    """Run the reference and every known answer on the public seed; refuse what can't be released."""
    try:
        result = record_evidence(exercise.path, [exercise.seed], variant=exercise.variant)
        run = result["open"][str(exercise.seed)]
        shares = measured_shares(exercise, result["measured"], {exercise.seed: run})
    except RecordingError as reason:
        raise ExerciseError(exercise.name, [f"the reference fails: {reason}"]) from reason
    problems = list(result["counters"])
    for task in exercise.tasks:
        lines = task_problems(task.id, run, task.id in result["measured"])
        if task.id in result["measured"]:
            lines += share_problems(task.id, run, shares[task.id, exercise.seed])
        lines += stub_problems(result["stub"][task.id])
        lines += [
            f"the reference itself calls {name}, which the task forbids" for name in result["broken"].get(task.id, ())
        ]
        lines += result["leaks"][task.id]
        problems += [f"task {task.id}: {problem}" for problem in lines]
    if problems:
        raise ExerciseError(exercise.name, problems)
    warnings = [f"Run All stops while the answers are empty: {stop}" for stop in result["stops"]]
    warnings += [
        f"task {written.id}: no rubric says how to mark it" for written in exercise.written if not written.rubric
    ]
    return recordings_of(exercise, run, exercise.seed, result["measured"]), warnings


def recordings_of(exercise: Exercise, evidence: dict, seed: int, measured: list[str]) -> dict:
    """Return what travels with the notebook (see `txgrade.evidence.recordings`)."""
    tasks = []
    for task in exercise.tasks:
        reference = evidence["reference"][task.id]
        recording = {"id": task.id, "title": task.title, "points": task.points, "names": list(task.names)}
        if task.id in measured:
            tasks.append(recording | {"measured": True, "reference": _kinds_only(reference), "mistakes": []})
            continue
        mistakes = [
            {"evidence": _short(_without_messages(answer["bundle"])), "sentence": answer["sentence"]}
            for answer in evidence["known"]
            if answer["task"] == task.id and answer["sentence"]
        ]
        tasks.append(recording | {"reference": _short(reference), "mistakes": mistakes})
    written = [{"id": task.id, "title": task.title, "points": task.points} for task in exercise.written]
    recordings = {"version": 1, "exercise": exercise.name, "title": exercise.title, "seed": seed, "tasks": tasks}
    return recordings | ({"written": written} if written else {}) | ({"due": exercise.due} if exercise.due else {})


def _without_messages(bundle: dict) -> dict:
    """Drop error messages, which could quote an answer; only the type is compared."""
    error = bundle["error"] and {"error": bundle["error"]["error"], "message": ""}
    return bundle | {"error": error}


def _short(bundle: dict) -> dict:
    """Return a bundle without what says nothing."""
    shown = [{key: value for key, value in result.items() if key != "points" or value} for result in bundle["shown"]]
    return {key: value for key, value in bundle.items() if key != "operators"} | {"shown": shown}


def _kinds_only(bundle: dict) -> dict:
    """Keep only the kind of each value that a measured task asks for."""
    shown = [{"label": result["label"], "value": {"kind": result["value"]["kind"]}} for result in bundle["shown"]]
    return _short(bundle) | {"shown": shown}
