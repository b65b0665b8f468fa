"""What authors say besides mistakes: what is forbidden, when it is due, how it is measured."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txgrade.authoring.called_names import forbidden_names
from txgrade.authoring.declarations import collect_declarations, due, forbid, measured
from txgrade.records.lateness import late

ZURICH = {"when": "2026-12-01 23:59", "timezone": "Europe/Zurich", "grace_minutes": 10, "per_day": 0.1, "at_most": 0.5}


@pytest.mark.parametrize(
    ("rule", "submitted", "share"),
    [
        ({}, "2026-12-01T22:59:00+00:00", 0),  # 23:59 there
        ({}, "2026-12-01T23:09:00+00:00", 0),  # within the grace
        ({}, "2026-12-01T23:09:01+00:00", 0.1),
        ({}, "2026-12-02T00:09:00+01:00", 0),  # any zone will do
        ({}, "2026-12-01T23:10:00", 0.1),  # none is UTC
        ({}, "2026-12-02T22:59:00Z", 0.1),  # the grace does not move the days
        ({}, "2026-12-02T22:59:01Z", 0.2),
        ({}, "2026-12-06T22:59:00Z", 0.5),
        ({}, "2027-12-06T22:59:00Z", 0.5),
        ({"grace_minutes": 3 * 24 * 60}, "2026-12-04T23:00:00Z", 0.4),
        # 2026-03-29 has 23 hours there, 2026-10-25 has 25.
        ({"when": "2026-03-28 23:59"}, "2026-03-28T22:59:00Z", 0),
        ({"when": "2026-03-28 23:59"}, "2026-03-29T21:59:00Z", 0.1),
        ({"when": "2026-03-28 23:59"}, "2026-03-29T21:59:01Z", 0.2),
        ({"when": "2026-10-24 23:59"}, "2026-10-24T21:59:00Z", 0),
        ({"when": "2026-10-24 23:59"}, "2026-10-25T22:59:00Z", 0.1),
        ({"when": "2026-10-24 23:59"}, "2026-10-25T22:59:01Z", 0.2),
        ({"when": "2026-10-25 02:30", "grace_minutes": 0}, "2026-10-25T01:30:00Z", 0),  # 02:30 is there twice
        ({"when": "2026-10-25 02:30", "grace_minutes": 0}, "2026-10-25T01:30:01Z", 0.1),
        ({"when": "2026-03-29 02:30", "grace_minutes": 0}, "2026-03-29T01:30:00Z", 0),  # and here not at all
        ({"per_day": 0.0}, "2027-01-01T00:00:00Z", 0),
    ],
)
def test_lateness(rule, submitted, share):
    lateness = late(ZURICH | rule, submitted)
    assert lateness.fraction == pytest.approx(share)
    assert bool(lateness.words) == (lateness.fraction > 0 or rule.get("per_day") == 0)


def test_lateness_in_words():
    assert late(ZURICH, "2026-12-01T23:30:00Z").words == "1 day late (due 2026-12-01 23:59, Europe/Zurich): 10% off"
    assert late(ZURICH, "2026-12-03T23:30:00Z").words.startswith("3 days late")
    with pytest.raises(ValueError, match="isoformat"):
        late(ZURICH, "yesterday")


@given(
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 6, 1)),
    st.integers(0, 20 * 24 * 60),
    st.sampled_from(["UTC", "Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]),
)
def test_days_are_counted_by_the_clock_on_the_wall(when, minutes, zone):
    """The slow way: try each day's end, later of the two where the clock shows it twice."""
    when = when.replace(second=0, microsecond=0)
    rule = {
        "when": when.strftime("%Y-%m-%d %H:%M"),
        "timezone": zone,
        "grace_minutes": 0,
        "per_day": 0.01,
        "at_most": 1,
    }
    ends = [
        max((when + timedelta(days=day)).replace(tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC) for fold in (0, 1))
        for day in range(30)
    ]
    submitted = ends[0] + timedelta(minutes=minutes)
    days = next(day for day, end in enumerate(ends) if submitted <= end)
    assert late(rule, submitted.isoformat()).fraction == pytest.approx(0.01 * days)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"when": "1 December"}, "give date and time like"),
        ({"when": "2026-02-30 10:00"}, "give date and time like"),
        ({"timezone": "Europe/Zuerich"}, "not a time zone"),
        ({"timezone": "../etc"}, "not a time zone"),
        ({"timezone": ""}, "not a time zone"),
        ({"grace_minutes": -1}, "0 or more"),
        ({"grace_minutes": float("nan")}, "0 or more"),
        ({"per_day": 10}, r"per_day=10\): give a fraction"),
        ({"at_most": -0.5}, r"at_most=-0.5\): give a fraction"),
        ({"per_day": float("nan")}, "give a fraction"),
    ],
)
def test_dates_are_refused(arguments, message):
    given = ZURICH | arguments
    with collect_declarations() as notes, pytest.raises(ValueError, match=message):
        due(given.pop("when"), **given)
    assert notes.due is None


def test_what_was_said_is_noted():
    with collect_declarations() as notes:
        due("2026-12-01 23:59")
        forbid("t", "softmax", operators=("aten._softmax",))
        forbid("t", ("torch.nn.Softmax", "exp"))
        measured("t", max)
        with pytest.raises(ValueError, match="there twice"):
            due("2026-12-01 23:59")
        with pytest.raises(ValueError, match="there twice"):
            measured("t", min)
    assert notes.due == {
        "when": "2026-12-01 23:59",
        "timezone": "UTC",
        "grace_minutes": 0,
        "per_day": 0.1,
        "at_most": 1,
    }
    assert [(each.names, each.operators) for each in notes.forbidden] == [
        (("softmax",), ("aten._softmax",)),
        (("torch.nn.Softmax", "exp"), ()),
    ]
    assert notes.measured == {"t": max}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "names nothing"),
        (("torch.soft max",), "is not a name"),
        (((), "softmax"), "is not an operator"),
        (((), "aten::softmax"), "is not an operator"),
    ],
)
def test_forbid_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        forbid("t", *arguments)


@pytest.mark.parametrize(
    ("source", "bare", "dotted"),  # found by "softmax"; by "torch.nn.functional.softmax"
    [
        ("x.softmax(-1)", True, True),
        ("torch.softmax(x, -1)", True, True),  # where torch comes from, this source doesn't say
        ("F.softmax(x, -1)", True, True),
        ("import torch\ntorch.nn.functional.softmax(x)", True, True),
        ("import torch\ntorch.softmax(x)", True, False),
        ("import torch.nn.functional as G\nG.softmax(x)", True, True),
        ("from torch.nn import functional as G\nG.softmax(x)", True, True),
        ("from torch.nn.functional import softmax", True, True),
        ("from torch.nn.functional import softmax as s\ns(x)", True, True),
        ("from torch.nn.functional import *\nsoftmax(x)", True, True),
        ("from scipy.special import softmax\nsoftmax(x)", True, False),
        ("import numpy as np\nnp.softmax(x)", True, False),
        ("f = torch.softmax\nf(x)", True, True),
        ("map(torch.softmax, x)", True, True),
        ("getattr(torch, 'softmax')(x)", True, True),
        ("operator.methodcaller('softmax', -1)(x)", True, True),
        ("torch.__dict__['softmax'](x)", True, True),
        ("vars(torch)['softmax'](x)", True, True),
        ("x.softmax", True, True),
        ("%time x.softmax(-1)\ny = x.softmax(-1)", True, True),
        ("softmax(x)", True, True),  # imported in an earlier cell
        ("def softmax(x):\n    return x\nsoftmax(x)", False, False),
        ("class A:\n    def softmax(self): return 1\n    def b(self): return self.softmax()", False, False),
        ("def f(softmax):\n    return softmax", False, False),
        ("softmax = x.exp()\nsoftmax / softmax.sum()", False, False),
        ("x.log_softmax(-1)", False, False),
        ("# softmax\n'softmax'\nd['softmax']", False, False),
        ("raise ValueError('softmax')", False, False),
        ("def broken(:\n  softmax", False, False),
        ("\0", False, False),
        ("(" * 5000, False, False),
        ("", False, False),
    ],
)
def test_names_are_found(source, bare, dotted):
    assert forbidden_names(source, ["softmax"]) == ["softmax"] * bare
    assert forbidden_names(source, ["torch.nn.functional.softmax"]) == ["torch.nn.functional.softmax"] * dotted


def test_a_module_can_be_forbidden():
    names = ["torch.linalg", "numpy"]
    assert forbidden_names("import torch\ntorch.linalg.svd(x)", names) == ["torch.linalg"]
    assert forbidden_names("from torch.linalg import svd", names) == ["torch.linalg"]
    assert forbidden_names("import numpy.linalg as l", names) == ["numpy"]
    assert forbidden_names("import torch\ntorch.svd(x)", names) == []
