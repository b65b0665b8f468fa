"""Several mistakes at once: each result is matched by itself, and nothing is said that may be chance."""

import pytest
import torch

from txgrade.checking.verdict import verdict_of
from txgrade.evidence.values import evidence

RIGHT = [torch.arange(6.0) + 0.5, torch.arange(8.0) * 0.3, torch.arange(5.0) - 0.1]
DOUBLED, NEGATED, SHIFTED = "It is *doubled*.", "It is negated.", "It is one too large."
WRONG = {DOUBLED: lambda x: 2 * x, NEGATED: lambda x: -x, SHIFTED: lambda x: x + 1}


def bundle(values, error=None):
    shown = [{"label": f"case {i}", "value": evidence(value), "points": None} for i, value in enumerate(values, 1)]
    return {"task": "t", "seed": 0, "rtol": 1e-4, "atol": 1e-5, "shown": shown, "error": error, "operators": None}


def recording(right=RIGHT, wrong=WRONG):
    mistakes = [
        {"evidence": bundle([function(x) for x in right]), "sentence": text} for text, function in wrong.items()
    ]
    return {"id": "t", "title": "Task", "points": 2, "reference": bundle(right), "mistakes": mistakes}


def told(values, error=None, **how):
    return verdict_of(recording(**how), bundle(values, error))


def test_one_mistake_everywhere_is_told_as_ever():
    verdict = told([2 * x for x in RIGHT])
    assert (verdict.kind, verdict.known, verdict.lines[0]) == ("mistake", True, DOUBLED)
    assert verdict.lines[1].startswith("Result 1 of 3 (case 1): the first difference")


def test_two_known_mistakes_are_both_told():
    a, b, c = RIGHT
    verdict = told([2 * a, -b, 2 * c])
    assert verdict.lines == (f"Results 1 and 3 of 3: {DOUBLED}", f"Result 2 of 3 (case 2): {NEGATED}")
    assert (verdict.kind, verdict.known, verdict.sentences) == ("mistake", False, (DOUBLED, NEGATED))


def test_a_known_and_an_unknown_mistake():
    a, b, c = RIGHT
    verdict = told([2 * a, 2 * b, c[:-1]])
    assert verdict.lines == (
        f"Results 1 and 2 of 3: {DOUBLED}",
        "There is another mistake. Result 3 of 3 (case 3): the shape differs: expected (5,), yours is (4,).",
        "It is right except for a missing entry, the last.",
    )


def test_a_known_mistake_and_an_error():
    verdict = told([2 * RIGHT[0]], {"error": "TypeError", "message": "no"})
    assert verdict.lines == (
        f"Result 1 of 3 (case 1): {DOUBLED}",
        "There is another mistake. Your answer raised `TypeError`: no",
    )


def test_a_mistake_is_not_made_where_a_result_is_right_that_it_gets_wrong():
    a, b, c = RIGHT
    verdict = told([2 * a, b, 3 * c])
    assert verdict.kind == "wrong" and not verdict.sentences
    assert verdict.lines[0].startswith("Result 1 of 3")


def test_what_may_be_chance_is_not_told():
    """One `False` says nothing; nor does a value that two mistakes share."""
    right = [torch.tensor([[True]]), torch.ones(3, 3).tril().bool(), torch.ones(4, 4).tril().bool()]
    wrong = {"Inverted.": lambda x: ~x}
    strange = torch.zeros(9, 9).bool()
    assert told([~right[0], strange, strange], right=right, wrong=wrong).kind == "wrong"
    assert told([~right[0], ~right[1], strange], right=right, wrong=wrong).sentences == ("Inverted.",)
    both = wrong | {"Inverted, but for the smallest.": lambda x: ~x if len(x) < 4 else x}
    assert told([~right[0], ~right[1], strange], right=right, wrong=both).kind == "wrong"


def test_partial_credit_names_them_too():
    task = recording()
    for each in task["reference"]["shown"]:
        each["points"] = 1
    task["mistakes"] = [
        {"evidence": bundle([RIGHT[0], 2 * RIGHT[1], RIGHT[2]]), "sentence": DOUBLED},
        {"evidence": bundle([RIGHT[0], RIGHT[1], -RIGHT[2]]), "sentence": NEGATED},
    ]
    verdict = verdict_of(task, bundle([RIGHT[0], 2 * RIGHT[1], -RIGHT[2]]))
    assert verdict.kind == "partial" and verdict.points == pytest.approx(2 / 3)
    assert verdict.lines == (
        "1 of 3 results are right.",
        f"Result 2 of 3 (case 2): {DOUBLED}",
        f"Result 3 of 3 (case 3): {NEGATED}",
    )


def test_in_a_notebook(study):
    """Right without a mask's help, a known mistake with one: both of the sample's results are looked at."""
    answers = {
        "causal-mask": "def causal_mask(n):\n    return torch.ones(n, n).tril().bool()",
        "attention": "def attention(q, k, v, mask):\n    scores = q @ k.T\n    if mask.all():\n"
        "        return (scores / q.shape[-1] ** 0.5).softmax(0) @ v\n"
        "    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v",
    }
    lines = study(answers)["check-attention"].splitlines()
    assert lines[1] == (
        "  Result 1 of 2 (everything visible): "
        "The softmax runs over the queries. Each query's weights must add up to 1."
    )
    assert lines[2] == "  Result 2 of 2 (causal): The scores are not divided by √d_k."
