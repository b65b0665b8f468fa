"""Points for each part of a check."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txgrade.checking.checks import Checks, collecting
from txgrade.checking.verdict import verdict_of
from txgrade.evidence.recordings import compared, share
from txgrade.evidence.values import evidence

POINTS = {"double": 1, "total": 2}


def bundle(values, points, error=None):
    shown = [
        {"label": None, "value": evidence(value), "points": each} for value, each in zip(values, points, strict=True)
    ]
    return {"task": "t", "seed": 0, "rtol": 0, "atol": 0, "shown": shown, "error": error, "operators": None}


def run(block):
    with collecting() as collected, Checks()("t") as show:
        block(show)
    return collected.bundles[0]


def test_an_error_is_the_evidence_of_its_own_call():
    def block(show):
        show.call(lambda: 1 / 0, label="first", points=1)
        show.call(abs, -3, label="second", points=2)

    found = run(block)
    assert found["error"] is None
    assert [each["value"]["kind"] for each in found["shown"]] == ["error", "int"]
    assert [(each["label"], each["points"]) for each in found["shown"]] == [("first", 1), ("second", 2)]


def test_an_empty_answer_ends_the_block():
    def stub():
        raise NotImplementedError("your turn")

    def block(show):
        show.call(abs, -3, points=1)
        show.call(stub, points=1)
        show.call(abs, -4, points=1)

    found = run(block)
    assert found["error"] == {"error": "NotImplementedError", "message": "your turn"}
    assert len(found["shown"]) == 1


def test_a_value_that_is_too_large_costs_its_own_part_only():
    def block(show):
        show.call(lambda: [0] * 200_000, points=1)
        show.call(abs, -3, points=1)

    kinds = [each["value"] for each in run(block)["shown"]]
    assert kinds[0]["error"] == "TooLarge" and kinds[1] == {"kind": "int", "value": 3}


@pytest.mark.parametrize("points", [0, -1, True, float("inf"), float("nan")])
def test_points_are_above_zero(points):
    error = run(lambda show: show(1, points=points))["error"]
    assert error["error"] == "ValueError" and "give a number above 0" in error["message"]
    assert run(lambda show: show.call(abs, 1, points=points))["error"] is not None


def test_parts_follow_the_expected_bundle():
    expected = bundle([1, 2, 3], [1, 2, None])
    assert compared(bundle([1, 5, 3], [9, 9, 9]), expected).parts == (
        ("result 1", True, 1),
        ("result 2", False, 2),
        ("result 3", True, 0),
    )
    assert compared(bundle([1], [1]), expected).parts == (
        ("result 1", True, 1),
        ("result 2", False, 2),
        ("result 3", False, 0),
    )


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5)), min_size=1, max_size=6))
def test_the_share_is_that_of_the_right_points(rows):
    expected = bundle([0] * len(rows), [points for _, points in rows])
    found = bundle([0 if right else 1 for right, _ in rows], [7] * len(rows))
    whole = sum(points for _, points in rows)
    assert share(found, expected) == pytest.approx(sum(points for right, points in rows if right) / whole)


def test_without_points_it_is_all_or_nothing():
    expected = bundle([1, 2], [None, None])
    assert share(bundle([1, 2], [5, 5]), expected) == 1
    assert share(bundle([1, 3], [5, 5]), expected) == 0


def test_a_bundle_gives_itself_nothing():
    """Points, more values, an error after the last: only the expected bundle's count."""
    expected = bundle([1, 2], [1, 1])
    assert share(bundle([1, 3], [100, 1]), expected) == 0.5
    assert share(bundle([1, 3, 1, 1, 1], [1] * 5), expected) == 0.5
    assert share(bundle([1, 2, 3], [1] * 3), expected) == 0
    assert share(bundle([1, 2], [1, 1], {"error": "E", "message": ""}), expected) == 0
    assert share(bundle([1], [1], {"error": "E", "message": ""}), expected) == 0.5


def recording(expected, *mistakes):
    return {
        "id": "t",
        "title": "T",
        "points": 3,
        "reference": expected,
        "mistakes": [{"evidence": each, "sentence": "Sorry."} for each in mistakes],
    }


def test_the_learner_is_told_what_is_right():
    expected = bundle([1, 2, 3], [1, 1, 1])
    verdict = verdict_of(recording(expected), bundle([1, 5, 3], [1, 1, 1]))
    assert (verdict.kind, verdict.points) == ("partial", 2)
    assert repr(verdict) == (
        "◐ T: partly right (2 of 3 points)\n  2 of 3 results are right.\n  Result 2 of 3: expected 2, yours is 5."
    )
    known = verdict_of(recording(expected, bundle([1, 5, 3], [1, 1, 1])), bundle([1, 5, 3], [1, 1, 1]))
    assert (known.kind, known.known, known.points, known.lines[0]) == ("partial", True, 2, "Sorry.")


def test_half_an_answer_counts():
    expected = bundle([1, 2], [1, 2])
    error = {"error": "NotImplementedError", "message": "your turn", "function": "total", "line": 2, "code": ""}
    verdict = verdict_of(recording(expected), bundle([1], [1], error))
    assert (verdict.kind, verdict.points) == ("partial", 1)
    assert "`total` still says" in verdict.lines[-1]
    assert verdict_of(recording(expected), bundle([], [], error)).kind == "unanswered"


def test_old_recordings_have_no_points():
    old = bundle([1, 2], [None, None])
    for each in old["shown"]:
        del each["points"]
    del old["operators"]
    assert verdict_of(recording(old), bundle([1, 2], [None, None])).right
    assert verdict_of(recording(old), bundle([1, 3], [None, None])).kind == "wrong"
