"""What claims to be evidence is looked at before anything else touches it."""

import base64
import copy
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from txgrade.checking.checks import Checks, collecting
from txgrade.evidence.compare import compare
from txgrade.evidence.recordings import compared, share
from txgrade.evidence.validation import bundle_problem
from txgrade.evidence.values import MAX_DEPTH, MAX_MEASURED, Recorder, TooLarge, evidence

SEED = 5


def bundle(*values, points=None, error=None):
    shown = [{"label": f"n = {i}", "value": evidence(value), "points": points} for i, value in enumerate(values)]
    return {"task": "t", "seed": SEED, "rtol": 1e-4, "atol": 0, "shown": shown, "error": error, "operators": None}


def problem(data):
    return bundle_problem(json.loads(json.dumps(data)), "t", SEED)


VALUES = [
    None,
    True,
    3,
    -(2**200),
    0.5,
    math.nan,
    -math.inf,
    "word",
    "\ud800 half a letter",
    [1, [2.0, ("a",)]],
    {"a": 1, 2: None},
    torch.randn(2, 3),
    torch.zeros(0, 4),
    torch.tensor(1),
    torch.ones(2).bool(),
    torch.ones(2, dtype=torch.complex64),
    torch.ones(2).half(),
    torch.ones(3, dtype=torch.uint8),
    torch.tensor([math.nan, math.inf]),
    np.ones((2, 2)),
    np.float64(1),
    object(),
    torch.ones(2).short(),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_whatever_a_check_writes_is_well_formed(value):
    assert problem(bundle(value, points=0.5)) is None


def test_the_checks_own_bundle_is_well_formed():
    with collecting(operators=True) as collected, Checks()("t", atol=0) as show:
        show.call(torch.softmax, torch.ones(3), -1, label="softmax", points=2)
        show.call(torch.ones, "no size", points=1)
        show.weights(nn.Linear(2, 3), "weights")
        show.tokens([[1, 2], []])
        raise KeyError("\udcff")
    data = json.loads(json.dumps(collected.bundles[0]))
    assert bundle_problem(data, "t", 0) is None
    assert "aten._softmax" in data["operators"] and data["error"]["error"] == "KeyError"
    assert bundle_problem(data, "other", 0) == "the evidence is of another task"
    assert bundle_problem(data, "t", 1) == "the evidence is of another seed"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([2**5000, "nan"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["task", "seed", "shown", "kind", "value", "shape", "values", "dtype", "items", "keys"])
            | st.text(max_size=3),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


def nested(depth):
    value = {"kind": "none"}
    for _ in range(depth):
        value = {"kind": "list", "items": [value]}
    return value


@given(json_values)
def test_any_json_value_is_answered_in_words(value):
    whole = bundle(1)
    assert isinstance(bundle_problem(value, "t", SEED), str)
    for key in whole:
        found = bundle_problem(whole | {key: value}, "t", SEED)
        assert found is None or isinstance(found, str)
    for key in whole["shown"][0]:
        found = bundle_problem(whole | {"shown": [whole["shown"][0] | {key: value}]}, "t", SEED)
        assert found is None or isinstance(found, str)


def test_no_depth_is_too_deep():
    value = nested(100_000)
    assert bundle_problem(value, "t", SEED) == "the evidence hasn't exactly the keys that it should have"
    assert bundle_problem(shown(value), "t", SEED) == "the evidence is nested too deep"


GOOD = bundle(True, 1, 0.5, "a", [1, (2,)], {"k": 1}, torch.ones(2, 2), ValueError)


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in children:
        yield from places(each, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    value = copy.copy(value)
    value[path[0]] = replaced(value[path[0]], path[1:], new)
    return value


@given(
    st.sampled_from([path for path in places(GOOD) if path]),
    st.sampled_from(
        [None, True, 1, 0, -1, 1.0, math.nan, math.inf, 2**5000, "", "nan", [], {}, [1], {"kind": "none"}, nested(20)]
    ),
)
def test_one_changed_place_is_refused_or_can_be_compared(path, new):
    """The judge goes on with what passes, so that must never raise there."""
    changed = replaced(GOOD, path, new)
    if bundle_problem(changed, "t", SEED) is None:
        assert 0 <= share(changed, GOOD) <= 1
        assert len(compared(changed, GOOD).parts) == len(GOOD["shown"])


def with_value(**changes):
    value = evidence(torch.ones(2, 3)) | changes
    return bundle() | {"shown": [{"label": None, "value": value, "points": None}]}


def shown(value, **extra):
    return bundle() | {"shown": [{"label": None, "value": value, "points": None} | extra]}


@pytest.mark.parametrize(
    "data",
    [
        bundle() | {"extra": 1},
        {key: value for key, value in bundle().items() if key != "operators"},
        bundle() | {"seed": True},
        bundle() | {"seed": 5.0},
        bundle() | {"rtol": math.nan},
        bundle() | {"atol": -1},
        bundle() | {"rtol": 2**5000},
        bundle() | {"shown": {}},
        bundle() | {"shown": [None]},
        bundle() | {"error": {"error": "E"}},
        bundle() | {"error": {"error": "E", "message": "m", "line": 1}},
        bundle() | {"error": {"error": "E" * 201, "message": ""}},
        bundle() | {"operators": "aten.mm"},
        bundle() | {"operators": ["<b>"]},
        bundle() | {"operators": ["a"] * 3000},
        bundle(1, points=True),
        bundle(1, points=0),
        bundle(1, points=math.inf),
        bundle(1) | {"shown": bundle(1)["shown"] * 1001},
        shown({"kind": "none"}, label=1),
        shown({"kind": "none"}, label="x" * 10_001),
        shown({"kind": "none"}, more=1),
        shown({"kind": "int", "value": True}),
        shown({"kind": "int", "value": 1.0}),
        shown({"kind": "int", "value": 2**257}),
        shown({"kind": "bool", "value": 1}),
        shown({"kind": "float", "value": "infinity"}),
        shown({"kind": "float", "value": True}),
        shown({"kind": "float", "value": math.nan}),
        shown({"kind": "float", "value": 2**2000}),
        shown({"kind": "str", "value": "\ud800"}),
        shown({"kind": "str", "value": "x" * 10_001}),
        shown({"kind": "none", "value": None}),
        shown({"kind": "Tensor"}),
        shown({"kind": ["none"]}),
        shown({"kind": "list", "items": {"0": {"kind": "none"}}}),
        shown({"kind": "dict", "keys": ["a", "a"], "items": [{"kind": "none"}] * 2}),
        shown({"kind": "dict", "keys": [True], "items": [{"kind": "none"}]}),
        shown({"kind": "dict", "keys": ["a"], "items": []}),
        shown({"kind": "record", "keys": [1], "items": [{"kind": "none"}]}),
        shown(nested(MAX_DEPTH + 1)),
        with_value(shape=[3, 3]),
        with_value(shape=[-2, -3]),
        with_value(shape=[True, 6]),
        with_value(shape=[2.0, 3]),
        with_value(shape=6),
        with_value(shape=[2**40, 0]),
        with_value(shape=[6] + [1] * 64),
        with_value(dtype="float"),
        with_value(dtype=None),
        with_value(dtype="float32\n"),
        with_value(dtype="bool"),
        with_value(dtype="int64"),
        with_value(dtype="complex64"),
        with_value(values=[1.0] * 5),
        with_value(values=[True] * 6),
        with_value(values="111111"),
        with_value(values=[[1.0] * 6]),
        with_value(extra=0),
        shown({"kind": "tokens", "rows": [1, [2]]}),
        shown({"kind": "tokens", "rows": [-1]}),
        shown({"kind": "tokens", "rows": [True]}),
        shown({"kind": "tokens", "rows": [[[1]]]}),
        shown({"kind": "tokens", "rows": [2**31]}),
    ],
)
def test_what_is_refused(data):
    found = bundle_problem(data, "t", SEED)
    assert isinstance(found, str) and len(found) < 100


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [2, 3]},
        {"shape": [3, 3, 0]},
        {"float32": "AAAA"},
        {"float32": "?" * 16},
        {"float32": 3},
        {"float32": "\u00e9" * 16},
        {"name": 1},
        {"name": "x" * 201},
        {"more": 1},
    ],
)
def test_weights_are_strict(change):
    """Three float32 numbers are 12 bytes, 16 characters."""
    good = {"name": "w", "shape": [3, 1], "float32": base64.b64encode(bytes(12)).decode()}
    value = lambda *tensors: shown({"kind": "weights", "tensors": list(tensors)})  # noqa: E731
    assert bundle_problem(value(good), "t", SEED) is None
    assert bundle_problem(value(good | change), "t", SEED)
    assert bundle_problem(value(good, good), "t", SEED) == "a weight is there twice"


def test_counts_are_bounded_before_they_are_decoded():
    huge = {"name": "w", "shape": [2**20, 2], "float32": ""}
    assert "too many weights" in bundle_problem(shown({"kind": "weights", "tensors": [huge]}), "t", SEED)
    long = shown({"kind": "tensor", "dtype": "bool", "shape": [100_001], "values": [True] * 100_001})
    assert "too many" in bundle_problem(long, "t", SEED)
    with pytest.raises(TooLarge, match="2,000,000 weights"):
        Recorder().weights({"w": torch.zeros(MAX_MEASURED + 1)})
    with pytest.raises(TooLarge, match="10,000"):
        Recorder().weights({str(i): torch.zeros(0) for i in range(10_001)})
    largest = Recorder().weights({"w": torch.zeros(MAX_MEASURED)})
    assert bundle_problem(shown(largest), "t", SEED) is None


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(3, 4),
        torch.randn(4, 3).T,
        torch.tensor(2.5),
        torch.zeros(0, 2),
        torch.randn(5).double(),
        torch.arange(6),
        torch.randn(3).bfloat16(),
    ],
)
def test_weights_keep_every_bit(value):
    found = Recorder().weights({"w": value})["tensors"][0]
    numbers = np.frombuffer(base64.b64decode(found["float32"]), "<f4").reshape(found["shape"])
    assert torch.equal(torch.from_numpy(numbers.copy()), value.float())


def test_a_module_is_its_state_dict():
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    found = Recorder().weights(module)
    assert found == Recorder().weights(module.state_dict())
    assert [each["name"] for each in found["tensors"]] == list(module.state_dict())


@pytest.mark.parametrize("value", [None, 3, "weights", [torch.ones(2)], {"a": 1}, {1: torch.ones(1)}])
def test_what_is_no_weights_shows_as_what_it_is(value):
    assert Recorder().weights(value) == evidence(value)


@pytest.mark.parametrize(
    ("ids", "rows"),
    [
        ([1, 2], [1, 2]),
        ((3,), [3]),
        (torch.tensor([1, 2]), [1, 2]),
        (torch.tensor([[1], [2]]), [[1], [2]]),
        ([torch.tensor([1, 2]), torch.tensor([3])], [[1, 2], [3]]),
        ([[1], []], [[1], []]),
        ([], []),
        (np.arange(3), [0, 1, 2]),
    ],
)
def test_tokens(ids, rows):
    assert Recorder().tokens(ids) == {"kind": "tokens", "rows": rows}


@pytest.mark.parametrize("ids", [None, [-1], [1.0], [True], torch.ones(2), "12", [[1], 2], torch.ones(1, 1, 1).long()])
def test_what_is_no_tokens_shows_as_what_it_is(ids):
    assert Recorder().tokens(ids) == evidence(ids)


def test_weights_are_measured_not_compared():
    value = Recorder().weights({"w": torch.ones(1)})
    assert compare(value, value) is not None


@pytest.mark.parametrize("module", ["judging.job", "judging.replay", "authoring.validate", "running.grader"])
def test_the_judge_needs_no_torch_and_no_grammar_of_addresses(module):
    """Each would cost every process of a run a second or two."""
    slow = ["torch", "lark"]
    code = f"import sys, txgrade.{module}; print([each for each in {slow} if each in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "[]\n", run.stderr
