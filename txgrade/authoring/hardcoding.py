"""What hard-coded answers earn: they compute nothing, but look up values that a notebook or feedback page showed.

A check draws its inputs anew for each grading. Where it draws from too little, the values that were recorded on the
public seed are right again, and a table of them passes. `txgrade validate` tries such tables on fresh seeds.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from txgrade.authoring.exercise import Exercise, Task, read_exercise
from txgrade.authoring.record import RecordingError, check_run, in_fresh_process, reference_run
from txgrade.evidence.compare import name as kind_of
from txgrade.evidence.compare import spell
from txgrade.evidence.recordings import compared, share

FRESH_SEEDS = tuple(range(101, 121))


def hardcoded_shares(path: Path | str, *, variant: int | None = None) -> dict[str, list[dict]]:
    """Return what hard-coded public values earn, by task: `{"seed", "how", "share", "value"}` of each table
    that earns anything.

    Runs in its own process, on the FRESH_SEEDS, with the hidden tests, as the grader does.

    Raises:
        RecordingError: where the source's own code fails.
    """
    return in_fresh_process("txgrade.authoring.hardcoding", path, {"seeds": FRESH_SEEDS}, variant)


def hardcoding_problems(earning: list[dict]) -> list[str]:
    """Return a task's line for the author: which table earns most, how often, and what to do; none where none earns."""
    if not earning:
        return []
    seeds = {table["seed"] for table in earning}
    best = max(earning, key=lambda table: table["share"])
    often = f"on {len(seeds)} of {len(FRESH_SEEDS)} fresh seeds values seen before earn points"
    what = f"{best['how']}, up to {best['share']:.0%}, such as {best['value']} on seed {best['seed']}"
    return [f"{often}: {what}. Let its inputs vary more from seed to seed"]


def _try_all(exercise: Exercise, seeds: list[int]) -> dict[str, list[dict]]:
    namespace, public, _ = reference_run(exercise, exercise.seed, hidden=False)
    tables = {task.id: _tables(exercise, task, namespace) for task in exercise.tasks}
    earning: dict[str, list[dict]] = {task.id: [] for task in exercise.tasks}
    earlier: list[dict] = []
    for seed in seeds:
        namespace, fresh, _ = reference_run(exercise, seed, hidden=True)
        for task in exercise.tasks:
            expected = fresh[task.id]
            tried = list(_from_values(public[task.id], expected))
            tried += list(_from_arguments(exercise, task, namespace, tables[task.id]))
            tried += [("those of another seed, as a page of feedback tells them", run[task.id]) for run in earlier]
            for how, bundle in tried:
                if earned := share(bundle, expected):
                    earning[task.id].append(
                        {"seed": seed, "how": how, "share": earned} | {"value": _repeated(bundle, expected)}
                    )
        earlier.append(reference_run(exercise, seed, hidden=False)[1])  # pages quote no hidden test
    return earning


def _repeated(bundle: dict, expected: dict) -> str:
    """Return the first value that was right again, with its label."""
    for (label, right, _), result in zip(compared(bundle, expected).parts, expected["shown"], strict=True):
        if right:
            value = result["value"]
            if "values" in value:
                first = ", ".join(map(spell, value["values"][:4])) + ", …" * (len(value["values"]) > 4)
                return f"{kind_of(value)} ({first}) for “{label}”"
            return f"{spell(value['value']) if 'value' in value else kind_of(value)} for “{label}”"
    return "an error"


def _from_values(public: dict, expected: dict) -> Iterator[tuple[str, dict]]:
    """Yield bundles made of the public one: replayed, exchanged, chosen by label, and each value everywhere."""
    shown, wanted = public["shown"], expected["shown"]
    if not shown or public["error"]:
        yield "the public result", public
        return

    def made(values: list) -> dict:
        results = [{"label": None, "value": value, "points": None} for value in values]
        return expected | {"shown": results, "error": None}

    values = [result["value"] for result in shown]
    by_label = {result["label"]: result["value"] for result in shown}
    count = len(wanted)
    for shift in range(len(values)):
        name = "the public values in their order" if shift == 0 else f"the public values, moved by {shift}"
        yield name, made([values[(index + shift) % len(values)] for index in range(count)])
    yield (
        "the public value of the same label",
        made([by_label.get(result["label"], values[index % len(values)]) for index, result in enumerate(wanted)]),
    )
    different = {json.dumps(value, sort_keys=True): value for value in values}
    for value in different.values():
        yield "one public value everywhere", made([value] * count)


def _tables(exercise: Exercise, task: Task, namespace: dict) -> dict[str, dict]:
    """Return what each function of the task gave for which arguments, and in which order, on the public seed."""
    tables: dict[str, dict] = {}

    def recording(name: str, function: Callable) -> Callable:
        table = tables[name] = {"by arguments": {}, "in order": []}

        def noted(*args: Any, **kwargs: Any) -> Any:
            key = _key(args, kwargs)
            value = function(*args, **kwargs)
            table["by arguments"][key] = value
            table["in order"].append(value)
            return value

        return noted

    with_answers(exercise, task, namespace, recording, hidden=False)
    return {name: table for name, table in tables.items() if table["in order"]}


def _from_arguments(exercise: Exercise, task: Task, namespace: dict, tables: dict) -> Iterator[tuple[str, dict]]:
    """Yield the bundle of answers that look up their arguments; unknown ones are answered in the public order."""
    if not tables:
        return

    def looking_up(name: str, function: Callable) -> Callable:
        table, calls = tables.get(name), iter(range(10**6))
        if table is None:
            return function

        def answer(*args: Any, **kwargs: Any) -> Any:
            index = next(calls) % len(table["in order"])
            return table["by arguments"].get(_key(args, kwargs), table["in order"][index])

        return answer

    yield (
        "a table from public arguments to public values",
        with_answers(exercise, task, namespace, looking_up, hidden=True),
    )


def with_answers(
    exercise: Exercise, task: Task, namespace: dict, wrap: Callable[[str, Callable], Callable], hidden: bool
) -> dict:
    """Return a run of the check with the task's functions wrapped. Classes stay: they would have to be written."""
    originals = {name: namespace[name] for name in task.names}
    functions = {
        name: function for name, function in originals.items() if callable(function) and not isinstance(function, type)
    }
    namespace.update({name: wrap(name, function) for name, function in functions.items()})
    try:
        bundle, _ = check_run(exercise, task, namespace, hidden)
    finally:
        namespace.update(originals)
    return bundle


def _key(args: tuple, kwargs: dict) -> str:
    """Return the arguments as a text, equal for equal values; a tensor becomes its type, shape and numbers."""
    import torch

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return [str(value.dtype), list(value.shape), value.detach().flatten().tolist()]
        if isinstance(value, dict):
            return [[plain(key), plain(item)] for key, item in value.items()]
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value if isinstance(value, (int, float, str, bool, type(None))) else type(value).__qualname__

    return json.dumps([plain(args), plain(kwargs)])


def _main(request: str, answer: str) -> None:
    arguments = json.loads(Path(request).read_text())
    try:
        result: Any = _try_all(read_exercise(arguments["path"], arguments["variant"]), arguments["seeds"])
    except RecordingError as reason:
        result = {"failure": str(reason)}
    Path(answer).write_text(json.dumps(result))


if __name__ == "__main__":
    _main(*sys.argv[1:])
