import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from txgrade.evidence.compare import compare
from txgrade.evidence.values import MAX_DEPTH, MAX_VALUES, TooLarge, evidence

scalars = st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=12,
)


def alike(a, b):
    """Equal in value and in type, NaN with NaN: the naive definition."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, dict):
        return {(type(k), k) for k in a} == {(type(k), k) for k in b} and all(alike(a[k], b[k]) for k in a)
    return a == b or (a != a and b != b)


@given(values, values)
def test_compare_agrees_with_equality(a, b):
    a_evidence, b_evidence = (json.loads(json.dumps(evidence(each), allow_nan=False)) for each in (a, b))
    assert compare(a_evidence, a_evidence) is None
    assert (compare(a_evidence, b_evidence, rtol=0, atol=0) is None) == alike(a, b)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
    ],
)
def test_tensors_keep_every_number(dtype):
    value = torch.randn(2, 3, 4, dtype=torch.complex64) if dtype.is_complex else (torch.randn(2, 3, 4) * 5).to(dtype)
    found = json.loads(json.dumps(evidence(value)))
    assert (found["kind"], found["shape"]) == ("tensor", [2, 3, 4])
    back = torch.tensor(found["values"], dtype=torch.float32 if dtype.is_complex else dtype)
    back = torch.view_as_complex(back.view(2, 3, 4, 2)) if dtype.is_complex else back.view(2, 3, 4)
    assert torch.equal(back, value)


@pytest.mark.parametrize(
    ("found", "expected", "words"),
    [
        (1, True, "expected a bool, yours is an int"),
        (True, 1, "expected an int, yours is a bool"),
        (1, 1.0, "expected a float, yours is an int"),
        (None, torch.ones(2), "expected a tensor of shape (2,), yours is None. Is a `return` missing?"),
        ([1.0, 1.0], torch.ones(2), "expected a tensor of shape (2,), yours is a list of 2"),
        (np.ones(2), torch.ones(2), "expected a tensor of shape (2,), yours is a NumPy array of shape (2,)"),
        (torch.ones(2, 3), torch.ones(3, 2), "the shape differs: expected (3, 2), yours is (2, 3)"),
        (torch.ones(2), torch.ones(2).bool(), "the dtype differs: expected bool, yours is float32"),
        (torch.ones(2).half(), torch.ones(2), "the dtype differs: expected float32, yours is float16"),
        (
            torch.tensor([[1, 2], [3, 5], [0, 0]]),
            torch.tensor([[1, 2], [3, 4], [0, 1]]),
            "the first difference is at [1, 1]: expected 4, yours is 5 (2 of 6 values differ)",
        ),
        (torch.tensor(math.nan), torch.tensor(0.0), "the first difference is: expected 0, yours is nan"),
        (
            torch.tensor([0.0, math.inf]),
            torch.tensor([0.0, -math.inf]),
            "the first difference is at [1]: expected -inf, yours is inf (1 of 2 values differ)",
        ),
        ("ab", "abc", "expected 'abc', yours is 'ab'"),
        ((1, [2]), (1, [3]), "in item 1: in item 0: expected 3, yours is 2"),
        ({"a": 1.0}, {"a": 2.0}, "in ['a']: expected 2, yours is 1"),
        ({"a": 1}, {"b": 1}, "expected the keys 'b', yours are 'a'"),
        ([1], [1, 2], "expected 2 items, yours are 1"),
        (object(), 1, "expected an int, yours is of type object"),
    ],
)
def test_differences_are_said_in_words(found, expected, words):
    assert compare(evidence(found), evidence(expected)) == words


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (torch.ones(2).double(), torch.ones(2)),  # precision is not the question
        (torch.ones(2).int(), torch.ones(2).long()),
        (torch.tensor([math.nan]), torch.tensor([math.nan])),
        (np.float64(0.5), 0.5),
        (torch.ones(3).requires_grad_() * 1, torch.ones(3)),
        (torch.eye(2).T, torch.eye(2)),
        (torch.tensor([100.0, 1e-6]), torch.tensor([100.009, 0.0])),
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}),
    ],
)
def test_values_that_count_as_the_same(found, expected):
    assert compare(evidence(found), evidence(expected)) is None


def test_tolerance_is_relative_to_the_expected_value():
    found, expected = evidence(torch.tensor(110.0)), evidence(torch.tensor(100.0))
    assert compare(found, expected, rtol=0.1, atol=0) is None
    assert compare(found, expected, rtol=0.099, atol=0) is not None
    assert compare(found, expected, rtol=0, atol=10) is None


def test_dataclasses_are_records():
    @dataclass
    class Output:
        logits: torch.Tensor
        loss: float

    found = evidence(Output(torch.zeros(2), 0.25))
    assert compare(found, evidence(Output(torch.zeros(2), 0.25))) is None
    assert "in ['loss']" in compare(found, evidence(Output(torch.zeros(2), 0.5)))
    assert compare(found, evidence({"logits": torch.zeros(2), "loss": 0.25})) is not None


def nested(depth):
    return [nested(depth - 1)] if depth else 0


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(MAX_VALUES + 1),
        [0] * (MAX_VALUES + 1),
        nested(MAX_DEPTH + 1),
        "x" * 10_001,
        1 << 300,
        [torch.zeros(MAX_VALUES // 2)] * 3,
    ],
)
def test_evidence_has_bounds(value):
    with pytest.raises(TooLarge, match="the answer"):
        evidence(value)


def test_a_list_that_holds_itself_ends():
    value = []
    value.append(value)
    with pytest.raises(TooLarge, match="levels deep"):
        evidence(value)


@pytest.mark.parametrize(
    "found",
    [
        None,
        3,
        {},
        {"kind": "nothing"},
        {"kind": []},
        {"kind": "tensor"},
        {"kind": "tensor", "shape": [2]},
        {"kind": "tensor", "shape": [2], "dtype": "float32", "values": "ab"},
    ],
)
def test_what_is_no_evidence_equals_nothing(found):
    assert compare(found, evidence(torch.zeros(2))) is not None
