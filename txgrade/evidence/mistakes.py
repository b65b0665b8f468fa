"""Which known mistakes an answer makes: all of it, or some of its results one and some another."""

import base64

import numpy as np

from txgrade.evidence.compare import compare
from txgrade.evidence.recordings import Comparison, first_difference

ENOUGH = 4  # whole numbers or bools that two answers rarely share by chance


def exact_mistake(bundle: dict, recording: dict) -> str | None:
    """Return the sentence of the known mistake that shows just what the bundle shows."""
    sentences = (
        mistake["sentence"]
        for mistake in recording["mistakes"]
        if first_difference(bundle, mistake["evidence"]) is None
    )
    return next(sentences, None)


def mistakes_by_result(bundle: dict, recording: dict, comparison: Comparison) -> dict[str, tuple[int, ...]]:
    """Return sentences of known mistakes, and the numbers of the wrong results that each explains.

    A mistake is not made where a result is right that it gets wrong. What several explain equally well is explained
    by none of them; and a result that two answers may share by chance, such as a single `False`, explains nothing.
    """
    right = [is_right for _, is_right, _ in comparison.parts]
    shown = [value["value"] for value in bundle["shown"][: len(right)]]
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
        unexplained = {sentence: wrong - seen for sentence, wrong in explained.items()}
        explained = {
            sentence: wrong for sentence, wrong in unexplained.items() if any(_is_telling(shown[i]) for i in wrong)
        }
    return dict(sorted(chosen.items(), key=lambda sentence: sentence[1]))


def measured_mistake(bundle: dict, recording: dict) -> str | None:
    """Return the sentence of the known mistake that made the same weights or tokens."""
    rtol, atol = recording["reference"]["rtol"], recording["reference"]["atol"]
    for mistake in recording["mistakes"]:
        recorded = mistake["evidence"]
        if recorded["error"] or len(recorded["shown"]) != len(bundle["shown"]):
            continue
        pairs = zip(bundle["shown"], recorded["shown"], strict=True)
        if all(_same_made(yours["value"], expected["value"], rtol, atol) for yours, expected in pairs):
            return mistake["sentence"]
    return None


def _same_made(yours: dict, recorded: dict, rtol: int | float, atol: int | float) -> bool:
    if yours["kind"] != recorded["kind"]:
        return False
    if yours["kind"] == "tokens":
        return yours["rows"] == recorded["rows"]
    if yours["kind"] != "weights":
        return not compare(yours, recorded, rtol, atol)
    tensors, recorded_tensors = ({tensor["name"]: tensor for tensor in value["tensors"]} for value in (yours, recorded))
    return tensors.keys() == recorded_tensors.keys() and all(
        tensors[name]["shape"] == recorded_tensors[name]["shape"]
        and np.allclose(_weights(tensors[name]), _weights(recorded_tensors[name]), rtol, atol)
        for name in tensors
    )


def _weights(tensor: dict) -> np.ndarray:
    return np.frombuffer(base64.b64decode(tensor["float32"]), "<f4")


def _same_results(shown: list[dict], recorded: dict, reference: dict) -> set[int]:
    """Return the numbers of the values that are those of a known answer."""
    rtol, atol = reference["rtol"], reference["atol"]
    pairs = zip(shown, recorded["shown"], strict=False)
    return {index for index, (value, result) in enumerate(pairs) if not compare(value, result["value"], rtol, atol)}


def _is_telling(value: dict) -> bool:
    """Return whether a value holds enough that another answer would rarely show the same."""
    numbers = _numbers(value)
    return len(numbers) >= ENOUGH or any(type(number) is str or number != int(number) for number in numbers)


def _numbers(value: dict) -> list:
    """Return all that a value holds: numbers, and texts. NaN and the infinities, which are words in evidence, are 0."""
    if "items" in value:
        return [number for item in value["items"] for number in _numbers(item)]
    if value["kind"] == "str":
        return [value["value"]]
    numbers = value.get("values", [value["value"]] if "value" in value else [])
    return [0 if isinstance(number, str) else number for number in numbers]
