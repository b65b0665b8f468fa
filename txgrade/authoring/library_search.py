"""The process that looks for calls of torch which return a reference's values (see `library_calls`).

The arguments of the reference's own calls, and what these returned, are taken down on two seeds while the checks run.
Then torch's functions and operators are called with the same tensors and numbers. A match holds for every call of a
function, on both seeds.
"""

import contextlib
import inspect
import json
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from txgrade.authoring.called_names import forbidden_names
from txgrade.authoring.declarations import Declarations
from txgrade.authoring.exercise import Exercise, Task, read_exercise
from txgrade.authoring.hardcoding import with_answers
from txgrade.authoring.record import RecordingError, author_declarations, check_run, reference_names
from txgrade.authoring.torch_calls import Filling, TorchCall, fillings, torch_library
from txgrade.checking.operators import Operators

MOST_CALLS = 12  # of a function that are taken down on each seed
MOST_NUMBERS = 20_000  # in the tensors of a call that is taken down
MOST_REFUSED = 100  # fillings in a row that a callable refuses; then it is left
CPU_SECONDS = 2  # of processor time that one callable may take with all its fillings
WALL_SECONDS = 60  # of the clock's time, likewise
MEMORY = 2 * 2**30  # bytes that the process which tries them may grow by
RESTARTS = 200  # after so many callables that crashed or hung, the search ends
VIEWS = frozenset(  # and copies: operators that compute nothing
    f"aten.{name}"
    for name in (
        *("alias", "as_strided", "clone", "detach", "expand", "lift_fresh", "permute", "select", "slice", "squeeze"),
        *("t", "transpose", "unsqueeze", "view", "_unsafe_view", "_to_copy", "_local_scalar_dense"),
    )
)


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a reference's function: its tensors and its numbers in their order, and the first value it returned."""

    tensors: tuple[Tensor, ...]
    numbers: tuple[Any, ...]  # bools, integers, floats, and tuples of integers
    wanted: Tensor
    rtol: float
    atol: float

    @cached_property
    def says_something(self) -> bool:
        """Whether its value is neither constant nor one of its own arguments."""
        if self.wanted.numel() < 2 or bool((self.wanted == self.wanted.flatten()[0]).all()):
            return False
        return not any(self.is_equal(tensor) for tensor in self.tensors)

    def is_returned_by(self, function: Callable, filling: Filling) -> bool | None:
        """Return whether a torch function returns the value, alone or among others; None if it can't be called so."""
        try:
            value = filling.call(function, self.tensors, self.numbers)
            return any(self.is_equal(part) for part in (value if isinstance(value, (tuple, list)) else (value,)))
        except Exception:  # sparse and nested tensors can't be compared
            return None

    def is_equal(self, value: Any) -> bool:
        """Return whether a value is the wanted one, but for axes of length 1 in front."""
        if not isinstance(value, Tensor) or value.numel() != self.wanted.numel() or _kind(value) != _kind(self.wanted):
            return False
        front = value.dim() - self.wanted.dim()
        if front < 0 or value.shape[front:] != self.wanted.shape:
            return False
        value = value.detach().reshape(self.wanted.shape).to(self.wanted.dtype)
        return bool(torch.isclose(value, self.wanted, self.rtol, self.atol, equal_nan=True).all())


@dataclass(frozen=True)
class Match:
    """A callable that returns a function's values, the names it can be called by, and the operators that it runs."""

    function: str
    names: tuple[str, ...]
    operators: tuple[str, ...]


def _search(exercise: Exercise, other_seed: int) -> dict[str, list[dict]]:
    runs = [reference_names(exercise, seed) for seed in (exercise.seed, other_seed)]
    declared = author_declarations(exercise, runs[0])
    uncovered = {}
    for task in exercise.tasks:
        if task.id in declared.measured:
            continue
        matches = []
        calls = [recorded_calls(exercise, task, namespace) for namespace in runs]
        for function in calls[0].keys() & calls[1].keys():
            matches += matches_of(function, [calls[0][function], calls[1][function]])
        if matches:
            own = _own(exercise, task, runs[0])
            uncovered[task.id] = [
                vars(match) | {"operators": _telling(match, own[1])}
                for match in matches
                if not _is_covered(match, task, declared, *own)
            ]
    return uncovered


def recorded_calls(exercise: Exercise, task: Task, namespace: dict) -> dict[str, list[Call]]:
    """Return the calls of a task's functions in its check, as far as they take tensors and return numbers."""
    noted: dict[str, list[tuple]] = {}

    def recording(name: str, function: Callable) -> Callable:
        def noted_call(*args: Any, **kwargs: Any) -> Any:
            tensors, numbers = _arguments(function, args, kwargs)
            value = function(*args, **kwargs)
            with contextlib.suppress(TypeError, ValueError, RuntimeError):
                wanted = _first_value(value)
                everything = (*tensors, wanted)
                plain = all(tensor.layout == torch.strided and tensor.device.type == "cpu" for tensor in everything)
                if tensors and plain and sum(tensor.numel() for tensor in everything) <= MOST_NUMBERS:
                    noted.setdefault(name, []).append((tensors, numbers, wanted))
            return value

        return noted_call

    bundle = with_answers(exercise, task, namespace, recording, hidden=True)
    rtol, atol = bundle["rtol"], bundle["atol"]
    return {
        name: [Call(tensors, numbers, wanted, rtol, atol) for tensors, numbers, wanted in calls[:MOST_CALLS]]
        for name, calls in noted.items()
    }


def _arguments(function: Callable, args: tuple, kwargs: dict) -> tuple[tuple[Tensor, ...], tuple]:
    """Return copies of the tensors among arguments, also of those in lists; and the numbers."""
    try:
        values: Sequence[Any] = tuple(inspect.signature(function).bind(*args, **kwargs).arguments.values())
    except (TypeError, ValueError):
        values = (*args, *kwargs.values())
    tensors, numbers = [], []
    for value in values:
        inner = value if isinstance(value, (list, tuple)) else (value,)
        tensors += [part.detach().clone() for part in inner if isinstance(part, Tensor)]
        integers = isinstance(value, tuple) and all(type(part) is int for part in value)
        if integers or isinstance(value, (bool, int, float)):
            numbers.append(value)
    return tuple(tensors), tuple(numbers)


def _first_value(value: Any) -> Tensor:
    """Return what a function returned, or the first of several tensors; numbers become a tensor.

    Raises:
        TypeError, ValueError: these are no numbers.
    """
    if isinstance(value, (tuple, list)) and value and isinstance(value[0], Tensor):
        value = value[0]
    return value.detach().clone() if isinstance(value, Tensor) else torch.tensor(value)


def matches_of(function: str, calls: Sequence[Sequence[Call]]) -> list[Match]:
    """Return the torch calls that give the values of all calls of a function, on one seed and on another."""
    all_calls = [call for seed in calls for call in seed]
    different = {str(call.wanted.tolist()) for call in all_calls}
    informative = [call for call in all_calls if call.says_something]
    if not (all(any(call.says_something for call in seed) for seed in calls) or len(different) >= MOST_CALLS / 2):
        return []
    first = min(informative or all_calls, key=_size)  # most candidates fail on it, the fastest
    all_calls.remove(first)

    def attempt(candidate: TorchCall) -> tuple[str, ...] | None:
        refused = 0
        for filling in fillings(candidate, first.tensors, first.numbers):
            returned = first.is_returned_by(candidate.function, filling)
            if returned and all(call.is_returned_by(candidate.function, filling) for call in all_calls):
                with Operators() as watched:
                    filling.call(candidate.function, first.tensors, first.numbers)
                return tuple(sorted(watched.names))
            refused = refused + 1 if returned is None else 0
            if refused == MOST_REFUSED:
                return None
        return None

    return _merged(
        Match(function, candidate.names, operators) for candidate, operators in _tried(torch_library(), attempt)
    )


def _size(call: Call) -> int:
    return sum(tensor.numel() for tensor in (*call.tensors, call.wanted))


def _merged(matches: Iterator[Match]) -> list[Match]:
    """Return one match for each name: an operator and the function around it are the same to an author."""
    merged: dict[str, Match] = {}
    for match in matches:
        last = match.names[0].rpartition(".")[2]
        old = merged.get(last, match)
        names = tuple(dict.fromkeys((*old.names, *match.names)))
        merged[last] = Match(match.function, names, tuple(sorted({*old.operators, *match.operators})))
    return list(merged.values())


def _tried(candidates: Sequence[TorchCall], attempt: Callable[[TorchCall], Any]) -> Iterator[tuple[TorchCall, Any]]:
    """Yield each candidate for which an attempt gives something; one that crashes or hangs is left out.

    The attempts are made in forked processes, where the system has them.
    """
    if sys.platform != "linux":
        for candidate in candidates:
            if (result := attempt(candidate)) is not None:
                yield candidate, result
        return
    context, begin = multiprocessing.get_context("fork"), 0
    for _ in range(RESTARTS):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_attempts, args=(candidates, begin, attempt, sender))
        process.start()
        sender.close()
        with contextlib.suppress(EOFError):
            while True:
                begin, result = receiver.recv()
                if result is not None:
                    yield candidates[begin], result
        process.join()
        begin += 1
        if begin >= len(candidates):
            return


def _attempts(candidates: Sequence[TorchCall], begin: int, attempt: Callable, sender: Any) -> None:
    """Try the candidates from one on; before each, say which it is."""
    import resource

    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    with torch.no_grad():
        for index in range(begin, len(candidates)):
            sender.send((index, None))
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # its signal ends the process
            signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
            if (result := attempt(candidates[index])) is not None:
                sender.send((index, result))
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)


def _telling(match: Match, operators: frozenset[str]) -> list[str]:
    """Return those of a match's operators by which it can be told from the reference."""
    return sorted(set(match.operators) - operators - VIEWS)


def _own(exercise: Exercise, task: Task, namespace: dict) -> tuple[str, frozenset[str]]:
    """Return a reference's source, and the operators that run in its check."""
    bundle, _ = check_run(exercise, task, namespace, hidden=True, operators=True)
    return exercise.notebook.cells[task.answer].source, frozenset(bundle["operators"] or ())


def _is_covered(match: Match, task: Task, declared: Declarations, source: str, operators: frozenset[str]) -> bool:
    """Return whether the author speaks of it, or the reference itself calls it."""
    short = {name.rpartition(".")[2] for name in match.names}
    if forbidden_names(source, short):
        return True
    if (working := set(match.operators) - VIEWS) <= operators and len(working) <= 1:
        return True
    rules = [rule for rule in declared.forbidden if rule.task == task.id]
    if set(match.operators) & {name for rule in rules for name in rule.operators}:
        return True
    allowed = {name for rule in declared.allowed if rule.task == task.id for name in rule.names}
    if allowed & {*match.names, *short}:
        return True
    named = [name for rule in rules for name in rule.names]
    public = [name for name in match.names if not name.startswith("torch.ops.")]
    return bool(public) and all(forbidden_names(f"import torch\n{name}", named) for name in public)


def _kind(value: Tensor) -> str:
    return "bool" if value.dtype == torch.bool else "float" if value.is_floating_point() else str(value.is_complex())


def _main(request: str, answer: str) -> None:
    arguments = json.loads(Path(request).read_text())
    torch.set_num_threads(1)
    try:
        result: Any = _search(read_exercise(arguments["path"], arguments["variant"]), arguments["seed"])
    except RecordingError as reason:
        result = {"failure": str(reason)}
    Path(answer).write_text(json.dumps(result))


if __name__ == "__main__":
    _main(*sys.argv[1:])
