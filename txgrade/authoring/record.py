"""Runs an exercise's reference, its known answers and its stubs, in a process of their own, and writes the evidence."""

import ast
import contextlib
import json
import linecache
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from txgrade.authoring.called_names import forbidden_names
from txgrade.authoring.cells import (
    check_body,
    is_check,
    is_mistakes,
    is_parameters,
    stays_home,
    strip_hidden,
    stub,
)
from txgrade.authoring.contract import measured_leaks, own_counters, unshown_costs
from txgrade.authoring.declarations import Declarations
from txgrade.authoring.exercise import Exercise, Task, read_exercise
from txgrade.authoring.fresh_process import Failed, run_fresh
from txgrade.evidence.recordings import same
from txgrade.notebook_runner import environment
from txgrade.seeds import kernel_seed

GRADING_SEED = "__grading_seed__"  # in the names of a run in the author's own process


class RecordingError(RuntimeError):
    """The exercise's own code fails. The message names the cell and the line."""


def record_evidence(
    path: Path | str,
    seeds: list[int],
    hidden_seeds: list[int] | None = None,
    *,
    variant: int | None = None,
) -> dict:
    """Return the evidence of the answers of an exercise, or of a variant of it, on each seed, made in a fresh process.

    On the `hidden_seeds` the checks run with their hidden tests, which a released notebook doesn't have.
    Returns `{"open": {"0": {"reference": {task: bundle}, "known": [{"task", "sentence" | None, "bundle"}]}},
    "hidden": {the same}, "stub": {task: bundle}, "stops": [cells that raise while the answers are empty],
    "forbidden": [{"task", "names", "operators"}], "broken": {task: [what the reference calls of these]},
    "measured": [tasks], "due": what `due` noted, "seconds": {task: a run of its check},
    "leaks": {task: [what its check does although an answer could use it]}, "counters": [the same of given cells]}`.
    Each seed's run holds as well `"private_values": {task: what show.private drew}`.

    Raises:
        RecordingError: where the source's own code fails, or takes longer than 10 minutes.
    """
    request = {"open": seeds, "hidden": hidden_seeds or []}
    return in_fresh_process("txgrade.authoring.record", path, request, variant)


def in_fresh_process(
    module: str, path: Path | str, arguments: dict, variant: int | None = None, timeout: int | float = 600
) -> Any:
    """Have a module's `_main` work on a source in a process of its own: JSON in, JSON out, its folder as in the course.

    Raises:
        RecordingError: it fails, or takes longer than `timeout` seconds.
    """
    path = Path(path).resolve()
    request = {"path": str(path), "variant": variant, **arguments}
    with tempfile.TemporaryDirectory() as home:
        try:
            result = run_fresh(module, request, path.parent, environment(TXGRADE_HOME=home, MPLBACKEND="agg"), timeout)
        except Failed as reason:
            raise RecordingError(str(reason)) from reason
    if isinstance(result, dict) and "failure" in result:
        raise RecordingError(result["failure"])
    return result


def _record(exercise: Exercise, seeds: list[int], hidden_seeds: list[int]) -> dict:
    result: dict = {"open": {}, "hidden": {}}
    for key, hidden in ("open", False), ("hidden", True):
        for seed in seeds if key == "open" else hidden_seeds:
            result[key][str(seed)], about = _seed_run(exercise, seed, hidden)
            about["leaks"] = {id: result.get("leaks", {}).get(id, []) + lines for id, lines in about["leaks"].items()}
            result |= about
    bundles, stops = _stub_run(exercise)
    leaks = {id: list(dict.fromkeys(lines)) for id, lines in result["leaks"].items()}
    return result | {"stub": bundles, "stops": stops, "leaks": leaks, "counters": own_counters(exercise)}


def _seed_run(exercise: Exercise, seed: int, hidden: bool) -> tuple[dict, dict]:
    """Return evidence of the reference and of each known answer on one seed, and what the author's cells declare."""
    import torch

    runs: list = []
    collected: list = []
    for number in range(2):  # again, from other random numbers: a check may only use its private generator
        torch.manual_seed(number)
        runs.append(reference_run(exercise, seed, hidden, collected.append))
    namespace, reference, seconds = runs[0]
    private_values = {id: values for check in collected for id, values in check.private_values.items()}
    declared = author_declarations(exercise, namespace)
    for task in exercise.tasks:
        if other := re.search(r'"kind": "other", "type": "([^"]*)"', json.dumps(reference[task.id]["shown"])):
            raise RecordingError(
                f"task {task.id}: its check shows a value of type {other[1]}, which can't be "
                "compared; show tensors, numbers, texts or lists"
            )
        if task.id in declared.measured:
            continue
        if kinds := {result["value"]["kind"] for result in reference[task.id]["shown"]} & {"weights", "tokens"}:
            raise RecordingError(
                f'task {task.id}: its check shows {kinds.pop()}; say by measured("{task.id}", …) what they are worth'
            )
        again, _ = check_run(exercise, task, namespace, hidden)
        if not same(reference[task.id], again) or not same(reference[task.id], runs[1][1][task.id]):
            raise RecordingError(
                f"task {task.id}: its check shows other values when it runs again. Draw all inputs from `show`, "
                "and don't let later cells change what the check uses"
            )
    answers = []
    for answer in declared.answers:
        task = exercise.task(answer.task)
        originals = {name: namespace[name] for name in task.names}
        namespace.update(_stand_ins(task, answer.answer))
        bundle, _ = check_run(exercise, task, namespace, hidden)
        namespace.update(originals)
        answers.append({"task": task.id, "sentence": answer.sentence, "bundle": bundle})
    about = {
        "forbidden": [vars(rule) for rule in declared.forbidden],
        "measured": sorted(declared.measured),
        "due": declared.due,
        "seconds": seconds,
        "broken": _broken(exercise, declared, namespace),
    }
    about["leaks"] = {
        task.id: _leaks(exercise, task, namespace, reference, answers, declared) for task in exercise.tasks
    }
    return {"reference": reference, "known": answers, "private_values": private_values}, about


def _leaks(
    exercise: Exercise, task: Task, namespace: dict, reference: dict, answers: list[dict], declared: Declarations
) -> list[str]:
    """Return what a task's check does although an answer could use it: a line each (see `contract`)."""
    if task.id in declared.measured:
        bundles = [answer["bundle"] for answer in answers if answer["task"] == task.id]
        return measured_leaks(exercise, task, [reference[task.id], *bundles])
    return unshown_costs(reference[task.id], lambda: check_run(exercise, task, namespace, hidden=True)[0])


def author_declarations(exercise: Exercise, namespace: dict) -> Declarations:
    """Run the author's cells after the reference, which gave `namespace`; in them, names go on meaning it.

    Raises:
        RecordingError: a cell fails, or speaks of a task that does not exist.
    """
    from txgrade.authoring.declarations import collect_declarations

    author = dict(namespace)
    with collect_declarations() as declared:
        for number, cell in enumerate(exercise.notebook.cells, 1):
            if cell.cell_type == "code" and is_mistakes(cell):
                _execute(cell.source, f"cell {number}", author)
    declared.forbidden, declared.allowed = _by_task(exercise, declared.forbidden), _by_task(exercise, declared.allowed)
    named = [("a known answer", declaration.task) for declaration in declared.answers]
    named += [("allow(…)", declaration.task) for declaration in declared.allowed]
    named += [("forbid(…)", declaration.task) for declaration in declared.forbidden] + [
        ("measured(…)", id) for id in declared.measured
    ]
    for kind, id in named:
        if id not in {task.id for task in exercise.tasks}:
            raise RecordingError(f"{kind} is for the task {id!r}, which does not exist")
    return declared


def _by_task(exercise: Exercise, rules: list) -> list:
    """Return rules with one for each task instead of one for "*"."""
    ids = [task.id for task in exercise.tasks]
    return [replace(rule, task=id) for rule in rules for id in (ids if rule.task == "*" else [rule.task])]


def _broken(exercise: Exercise, declared: Declarations, namespace: dict) -> dict[str, list[str]]:
    """Return what the reference itself calls although its task forbids it."""
    broken: dict[str, list[str]] = {}
    for rule in declared.forbidden:
        task = exercise.task(rule.task)
        called = forbidden_names(exercise.notebook.cells[task.answer].source, rule.names)
        if rule.operators:
            bundle, _ = check_run(exercise, task, namespace, hidden=True, operators=True)
            called += sorted(set(bundle["operators"] or ()) & set(rule.operators))
        if called:
            broken[task.id] = broken.get(task.id, []) + called
    return broken


def reference_run(
    exercise: Exercise, seed: int, hidden: bool, on_collected: Callable[[Any], None] = lambda collected: None
) -> tuple[dict, dict, dict]:
    """Return the whole source from the top; returns its names, each task's bundle, and each check's seconds."""
    reference, seconds = {}, {}

    def run_check(number: int, namespace: dict) -> None:
        task = next(task for task in exercise.tasks if task.check == number)
        began = time.perf_counter()
        collected = check_runs(exercise, task, namespace, hidden)
        reference[task.id], seconds[task.id] = collected.bundles[0], time.perf_counter() - began
        on_collected(collected)

    return reference_names(exercise, seed, run_check), reference, seconds


def reference_names(exercise: Exercise, seed: int, on_check: Callable[[int, dict], None] | None = None) -> dict:
    """Return the names that the source defines, run from the top. Checks go to `on_check`, with the names so far."""
    namespace = _namespace()
    for number, cell in enumerate(exercise.notebook.cells, 1):
        if cell.cell_type != "code" or stays_home(cell):
            continue
        if not is_check(cell):
            _execute(cell.source, f"cell {number}", namespace)
        elif on_check:
            on_check(number - 1, namespace)
        if is_parameters(cell):
            _set_parameters(namespace, seed)
    return namespace


def _stub_run(exercise: Exercise) -> tuple[dict, list[str]]:
    """Return the released cells as they come: each task's bundle, and the cells that stop Run All."""
    namespace, bundles, stops = _namespace(), {}, []
    for number, cell in enumerate(exercise.notebook.cells, 1):
        if cell.cell_type != "code" or stays_home(cell):
            continue
        if is_check(cell):
            task = next(task for task in exercise.tasks if task.check == number - 1)
            bundles[task.id], _ = check_run(exercise, task, namespace, hidden=False)
            continue
        try:
            _execute(stub(cell), f"cell {number}", namespace)
        except RecordingError as reason:
            stops.append(str(reason))
        if is_parameters(cell):
            _set_parameters(namespace, exercise.seed)
    return bundles, stops


def _set_parameters(namespace: dict, seed: int) -> None:
    """Return what papermill sets in a notebook that is graded on this seed; the seed itself stays with the grader."""
    namespace.update({"seed": kernel_seed(seed), GRADING_SEED: seed})


def check_run(
    exercise: Exercise, task: Task, namespace: dict, hidden: bool, operators: bool = False
) -> tuple[dict, float]:
    """Return the bundle that a check shows, and how many seconds it took."""
    began = time.perf_counter()
    collected = check_runs(exercise, task, namespace, hidden, operators)
    return collected.bundles[0], time.perf_counter() - began


def check_runs(exercise: Exercise, task: Task, namespace: dict, hidden: bool, operators: bool = False) -> Any:
    """Return what a run of a check hands over (see `checking.checks.Collection`): one bundle.

    Raises:
        RecordingError: it ran several checks, or none.
    """
    from txgrade.checking.checks import collecting

    source = exercise.notebook.cells[task.check].source
    body = check_body(source if hidden else strip_hidden(source))
    with collecting(operators, namespace.get(GRADING_SEED, exercise.seed)) as collected:
        _execute(source, f"check of {task.id}", namespace, body)
    if len(collected.bundles) != 1:
        raise RecordingError(f"task {task.id}: its check cell ran {len(collected.bundles)} checks instead of one")
    return collected


def _stand_ins(task: Task, answer: Any) -> dict[str, Any]:
    if len(task.names) == 1 and not isinstance(answer, dict):
        return {task.names[0]: answer}
    if isinstance(answer, dict) and answer and set(answer) <= set(task.names):
        return answer
    names = ", ".join(task.names)
    raise RecordingError(
        f"task {task.id}: its solution defines {names}; a known answer must be a dict from these names"
    )


def _namespace() -> dict:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.suppress(ImportError):
        from IPython.display import display

        namespace["display"] = display
    return namespace


def _execute(source: str, name: str, namespace: dict, body: ast.Module | None = None) -> None:
    """Run a source, or what was made of it, `body`; its lines are what an error quotes."""
    file = f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    try:
        exec(compile(source if body is None else body, file, "exec"), namespace)
    except Exception as reason:
        trace, line = reason.__traceback__, 0
        while trace is not None:
            line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == file else line
            trace = trace.tb_next
        code = linecache.getline(file, line).strip()
        raise RecordingError(f"{name}, line {line}: {type(reason).__name__}: {reason} ({code})") from reason


def _main(request: str, answer: str) -> None:
    arguments = json.loads(Path(request).read_text())
    try:
        result = _record(read_exercise(arguments["path"], arguments["variant"]), arguments["open"], arguments["hidden"])
    except RecordingError as reason:
        result = {"failure": str(reason)}
    Path(answer).write_text(json.dumps(result))


if __name__ == "__main__":
    _main(*sys.argv[1:])
