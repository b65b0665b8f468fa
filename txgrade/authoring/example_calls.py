"""Calls of the reference that its checks make on a seed, with what they return: what to ask a learner to work out."""

import copy
import inspect
import json
import sys
from pathlib import Path
from typing import Any

from txgrade.authoring.exercise import Exercise, read_exercise
from txgrade.authoring.record import check_run, in_fresh_process, reference_names

BY_HAND = 12  # numbers, at most, that a person works out or reads in one argument
TIMEOUT = 600  # seconds


def example_calls(path: Path | str, seed: int, variant: int | None = None) -> dict[str, dict[str, str]]:
    """Return the easiest call of each task of an exercise, or of a variant: `call` and `value` as text, and its `kind`.

    Of kind `value` the result can be worked out by hand; of kind `shape`, arguments are named and given by shapes.

    Raises:
        RecordingError: the reference fails.
    """
    return in_fresh_process("txgrade.authoring.example_calls", path, {"seed": seed}, variant, TIMEOUT)


def _calls(exercise: Exercise, seed: int) -> dict[str, dict[str, str]]:
    names = reference_names(exercise, seed)
    chosen = {}
    for task in exercise.tasks:
        recorded: list[dict[str, str]] = []
        originals = {name: names[name] for name in task.names}
        names.update({name: _recording(name, answer, recorded) for name, answer in originals.items()})
        check_run(exercise, task, names, hidden=False)
        names.update(originals)
        by_hand = [call for call in recorded if call["kind"] == "value"]
        if calls := by_hand or recorded:
            chosen[task.id] = min(calls, key=lambda call: len(call["call"]))
    return chosen


def _recording(name: str, answer: Any, recorded: list[dict[str, str]]) -> Any:
    """Return a function that notes each call; anything else, such as a class, as it is."""
    if isinstance(answer, type) or not callable(answer):
        return answer

    def call(*arguments: Any, **keywords: Any) -> Any:
        before = copy.deepcopy((arguments, keywords)) if _is_plain((arguments, keywords)) else None
        value = answer(*arguments, **keywords)
        if before is not None:
            recorded.extend(_described(name, answer, *before, value))
        return value

    return call


def _described(name: str, answer: Any, arguments: tuple, keywords: dict, value: Any) -> list[dict[str, str]]:
    words = [_exact(argument) for argument in arguments]
    words += [f"{key}={text}" if (text := _exact(argument)) else "" for key, argument in keywords.items()]
    if all(words) and (result := _exact(value)):
        return [{"kind": "value", "call": f"{name}({', '.join(words)})", "value": result}]
    named = inspect.signature(answer).bind(*arguments, **keywords).arguments
    words = [f"`{key}` {text}" if (text := _shape(argument)) else "" for key, argument in named.items()]
    if all(words) and (result := _shape(value)):
        return [{"kind": "shape", "call": f"`{name}` gets {', '.join(words)}", "value": result}]
    return []


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, bool | int | float | str) or hasattr(value, "shape")


def _exact(value: Any) -> str:
    """Return a value as a person reads it from paper; nothing if it is too much, or has too many decimals."""
    if hasattr(value, "tolist"):
        return _exact(value.tolist()) if value.numel() <= BY_HAND and not value.is_complex() else ""
    if isinstance(value, float):
        return f"{value:g}" if value in (float("inf"), float("-inf")) or float(f"{value:.2f}") == value else ""
    if isinstance(value, tuple | list):
        parts = [_exact(part) for part in value]
        brackets = "()" if isinstance(value, tuple) else "[]"
        return brackets[0] + ", ".join(parts) + brackets[1] if all(parts) and len(parts) <= BY_HAND else ""
    text = repr(value) if value is None or isinstance(value, bool | int | str) else ""
    return text if len(text) <= 60 else ""


def _shape(value: Any) -> str:
    """Return a tensor's shape, or a plain value; nothing if it is neither."""
    if hasattr(value, "shape"):
        return f"of shape {tuple(value.shape)}" if value.shape else "with one number"
    if isinstance(value, tuple):
        parts = [_shape(part) for part in value]
        return ", ".join(parts) if all(parts) and len(parts) < 5 else ""
    return _exact(value)


def _main(request: str, answer: str) -> None:
    arguments = json.loads(Path(request).read_text())
    Path(answer).write_text(
        json.dumps(_calls(read_exercise(arguments["path"], arguments["variant"]), arguments["seed"]))
    )


if __name__ == "__main__":
    _main(*sys.argv[1:])
