"""Which known mistakes an answer makes: all of it, or some of its results one and some another."""

import base64

import numpy as np

from txgrade.evidence.compare import compare
from txgrade.evidence.recordings import Comparison, first_difference

ENOUGH = 4  # whole numbers, or bools, that two answers hardly share by chance


def exact_mistake(bundle: dict, recording: dict) -> str | None:
    """Return the sentence of the known mistake that shows just what the bundle shows."""
    same = (each["sentence"] for each in recording["mistakes"] if first_difference(bundle, each["evidence"]) is None)
    return next(same, None)


def mistakes_by_result(bundle: dict, recording: dict, comparison: Comparison) -> dict[str, tuple[int, ...]]:
    """Return sentences of known mistakes, and the numbers of the wrong results that each explains.

    A mistake is not made where a result is right that it gets wrong. What several explain equally well is explained
    by none of them; and a result that two answers may share by chance, such as a single `False`, explains nothing.
    """
    right = [each for _, each, _ in comparison.parts]
    shown = [each["value"] for each in bundle["shown"][: len(right)]]
    explained: dict[str, set[int]] = {}
    for mistake in recording["mistakes"]:
        same = _same_results(shown, mistake["evidence"], recording["reference"])
        if same.issuperset(index for index in range(len(shown)) if right[index]):
            wrong = {index for index in same if not right[index]}
            if any(_is_telling(shown[index]) for index in wrong):
                explained[mistake["sentence"]] = wrong
    chosen: dict[str, tuple[int, ...]] = {}
    while explained:
        most = max(map(len, explained.values()))
        best = {sentence: wrong for sentence, wrong in explained.items() if len(wrong) == most}
        for sentence, wrong in best.items():
            if not any(wrong & others for other, others in best.items() if other != sentence):
                chosen[sentence] = tuple(sorted(wrong))
        seen = set().union(*best.values())
        left = {sentence: wrong - seen for sentence, wrong in explained.items()}
        explained = {sentence: wrong for sentence, wrong in left.items() if any(_is_telling(shown[i]) for i in wrong)}
    return dict(sorted(chosen.items(), key=lambda each: each[1]))


def measured_mistake(bundle: dict, recording: dict) -> str | None:
    """Return the sentence of the known mistake that made the same weights or tokens."""
    rtol, atol = recording["reference"]["rtol"], recording["reference"]["atol"]
    for mistake in recording["mistakes"]:
        known = mistake["evidence"]
        if known["error"] or len(known["shown"]) != len(bundle["shown"]):
            continue
        pairs = zip(bundle["shown"], known["shown"], strict=True)
        if all(_same_made(mine["value"], its["value"], rtol, atol) for mine, its in pairs):
            return mistake["sentence"]
    return None


def _same_made(yours: dict, known: dict, rtol: int | float, atol: int | float) -> bool:
    if yours["kind"] != known["kind"]:
        return False
    if yours["kind"] == "tokens":
        return yours["rows"] == known["rows"]
    if yours["kind"] != "weights":
        return not compare(yours, known, rtol, atol)
    mine, its = ({each["name"]: each for each in value["tensors"]} for value in (yours, known))
    return mine.keys() == its.keys() and all(
        mine[name]["shape"] == its[name]["shape"] and np.allclose(_weights(mine[name]), _weights(its[name]), rtol, atol)
        for name in mine
    )


def _weights(tensor: dict) -> np.ndarray:
    return np.frombuffer(base64.b64decode(tensor["float32"]), "<f4")


def _same_results(shown: list[dict], known: dict, reference: dict) -> set[int]:
    """Return the numbers of the values that are those of a known answer."""
    rtol, atol = reference["rtol"], reference["atol"]
    pairs = zip(shown, known["shown"], strict=False)
    return {index for index, (mine, its) in enumerate(pairs) if not compare(mine, its["value"], rtol, atol)}


def _is_telling(value: dict) -> bool:
    """Return whether a value holds enough that another answer would hardly show the same."""
    numbers = _numbers(value)
    return len(numbers) >= ENOUGH or any(type(each) is str or each != int(each) for each in numbers)


def _numbers(value: dict) -> list:
    """Return all that a value holds: numbers, and texts. NaN and the infinities, which are words in evidence, are 0."""
    if "items" in value:
        return [each for item in value["items"] for each in _numbers(item)]
    if value["kind"] == "str":
        return [value["value"]]
    numbers = value.get("values", [value["value"]] if "value" in value else [])
    return [0 if isinstance(each, str) else each for each in numbers]
