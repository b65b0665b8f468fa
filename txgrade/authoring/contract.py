"""What a check may not do, because an answer could use it: refused by `txgrade release`, with the line and the remedy.

A measured task's check draws nothing that an answer could draw as well, and its evidence carries answers only. The
value of a counted call is shown. Counters are the grader's own, out of an answer's reach.
"""

import ast
import json
import sys
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from txgrade.authoring.cells import is_answer, stays_home
from txgrade.authoring.exercise import Exercise, Task
from txgrade.evidence.recordings import same

PUBLIC_DRAWS = ("random_size", "randn", "rand", "randint", "choice", "permutation", "fill")
OTHER_DRAWS = ("randperm", "manual_seed", "normal", "uniform", "default_rng", "RandomState", "shuffle", "random")
COUNTING_MODES = ("TorchDispatchMode", "TorchFunctionMode", "FlopCounterMode")
DRAW_PRIVATELY = "draw it inside show.private(…), which the grader calls with its own seed"


def own_counters(exercise: Exercise) -> list[str]:
    """Return a line for each class of a given cell that counts what torch does, where an answer can reach it."""
    lines = []
    for number, cell in enumerate(exercise.notebook.cells, 1):
        if cell.cell_type != "code" or stays_home(cell) or is_answer(cell):
            continue
        for node in ast.walk(ast.parse(cell.source)):
            bases = (
                {ast.unparse(base).rpartition(".")[2] for base in node.bases} if isinstance(node, ast.ClassDef) else ()
            )
            if not set(bases).isdisjoint(COUNTING_MODES):
                lines.append(
                    f"cell {number}, line {node.lineno}: class {node.name} counts where an answer can reach it: "  # type: ignore[attr-defined]
                    "use cost(answer, *inputs) of txgrade"
                )
    return lines


def measured_leaks(exercise: Exercise, task: Task, bundles: list[dict]) -> list[str]:
    """Return a line for each thing that a measured task's check lets an answer know, or takes from its evidence.

    `bundles` is what the check showed of the reference and of the known answers.
    """
    source = exercise.notebook.cells[task.check].source
    lines = [
        f"line {line} of its check uses {name}, which an answer can use as well: {DRAW_PRIVATELY}"
        for line, name in _public(source)
    ]
    shown = [list(_entries(bundle)) for bundle in bundles if not bundle["error"]]
    if len(shown) > 1 and len({json.dumps(entries) for entries in shown}) > 1:
        common = set.intersection(*({json.dumps(entry) for entry in entries} for entries in shown))
        for name, value in shown[0]:
            if json.dumps([name, value]) in common:
                lines.append(
                    f"its check shows {name}, the same of every answer: evidence carries answers only. "
                    "What the measure has to know it draws again, from its second argument"
                )
    return lines


def _public(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each draw in a check that follows from the kernel's seed."""
    tree = ast.parse(source)
    inside = [
        node
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "private"
        for argument in call.args
        for node in ast.walk(argument)
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "seed":
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and node not in inside and _draws(ast.unparse(node)):
            yield node.lineno, ast.unparse(node)


def _draws(name: str) -> bool:
    """Return whether a dotted name is a way to draw what follows from the kernel's seed."""
    source, _, method = name.rpartition(".")
    if source == "show":
        return method in PUBLIC_DRAWS
    return source in ("torch", "random", "np.random", "numpy.random") and method in (*PUBLIC_DRAWS, *OTHER_DRAWS)


def _entries(bundle: dict) -> Iterator[list]:
    """Yield name and value of all that a bundle shows; of weights, each tensor by itself."""
    for number, shown in enumerate(bundle["shown"], 1):
        if shown["value"]["kind"] == "weights":
            yield from (
                [f"`{tensor['name']}`", [tensor["shape"], tensor["float32"]]] for tensor in shown["value"]["tensors"]
            )
        else:
            yield [f"result {number}", shown["value"]]


def unshown_costs(reference: dict, run: Callable[[], dict]) -> list[str]:
    """Return a line for each counted call of a check whose value is not shown; `run()` gives the check's bundle.

    Each counted call in turn returns something else than its answer did: then the check has to show something else.
    """
    if "txgrade.checking.cost" not in sys.modules:  # no cell imports `cost`
        return []
    from txgrade.checking.cost import returning

    values: list = []

    def noted(value: Any) -> Any:
        values.append(value)
        return value

    with returning(noted):
        run()
    lines = []
    for chosen in range(len(values)):
        with returning(_spoiling(chosen)):
            bundle = run()
        if same(reference, bundle):
            lines.append(
                f"its check counts what call {chosen + 1} of cost(…) takes, and does not show what it returns: "
                "show(….value), or show(show.sketch(….value)) where that is large"
            )
    return lines


def _spoiling(chosen: int) -> Callable[[Any], Any]:
    """Return a function that gives back each value that it gets, but the chosen one spoiled."""
    calls = count()
    return lambda value: spoiled(value) if next(calls) == chosen else value


def spoiled(value: Any) -> Any:
    """Return a value of the same kind that is not the same."""
    import torch

    if isinstance(value, torch.Tensor):
        return ~value if value.dtype == torch.bool else value + 1
    if isinstance(value, list | tuple):
        return type(value)(map(spoiled, value))
    if isinstance(value, dict):
        return {key: spoiled(item) for key, item in value.items()}
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else value
