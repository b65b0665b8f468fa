"""What being late costs: with extensions, with slip days, and if nobody knows when it was."""

from dataclasses import replace

import pytest
from sample_results import ADA, ASSIGNMENT, ZOFIA

from txgrade.pages.exports import review_csv
from txgrade.records.extensions import read_allowances
from txgrade.records.gradebook import Gradebook
from txgrade.records.lateness import describe_deadline, late, with_lateness, without_times
from txgrade.records.people import read_roster
from txgrade.records.result import Allowance

DUE = {"when": "2026-12-01 23:59", "timezone": "Europe/Zurich", "grace_minutes": 0, "per_day": 0.1, "at_most": 0.5}
ROSTER = "name,email,id,slip_days\nAda Lovelace,ada@example.org,7,3\nBo Li,bo@example.org,8,\n"


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("submitted", "allowance", "fraction", "used"),
    [
        ("2026-12-03T12:00:00Z", Allowance(), 0.2, 0),
        ("2026-12-03T10:59:00Z", Allowance("2026-12-03 12:00"), 0, 0),  # 11:59 there
        ("2026-12-03T11:01:00Z", Allowance("2026-12-03 12:00"), 0.1, 0),
        ("2026-12-03T12:00:00Z", Allowance(slip_days=1), 0.1, 1),
        ("2026-12-03T12:00:00Z", Allowance(slip_days=3), 0, 2),
        ("2026-12-01T12:00:00Z", Allowance(slip_days=3), 0, 0),
        ("2026-12-04T12:00:00Z", Allowance("2026-12-03 12:00", 1), 0.1, 1),
        ("2026-12-09T12:00:00Z", Allowance(slip_days=2), 0.5, 2),
    ],
)
def test_what_is_allowed(submitted, allowance, fraction, used):
    lateness = late(DUE, submitted, allowance)
    assert lateness.fraction == pytest.approx(fraction) and lateness.slip_days == used
    assert bool(lateness.words) == bool(fraction or used)


def test_nothing_is_taken_off_if_nobody_knows_when():
    unknown = with_lateness(replace(ZOFIA, submitted=None), DUE)
    assert (unknown.penalty, unknown.score) == (0, 3.5)
    assert [(note.kind, note.review) for note in unknown.notes if note.kind in ("late", "time unknown")] == [
        ("time unknown", True)
    ]
    on_time = with_lateness(replace(ZOFIA, submitted=None, marked_late=False), DUE)
    assert not on_time.penalty and not [note for note in on_time.notes if note.kind in ("late", "time unknown")]
    marked = with_lateness(replace(ZOFIA, submitted=None, marked_late=True), DUE)
    assert marked.penalty == 0 and [note.review for note in marked.notes if note.kind == "late"] == [True]
    known = with_lateness(replace(marked, submitted="2026-12-02T08:00:00+00:00"), DUE)
    assert known.penalty == pytest.approx(0.35)
    assert [note.review for note in known.notes if note.kind == "late"] == [False]
    assert with_lateness(known, DUE) == known


def test_a_class_without_times_is_one_line():
    results = [with_lateness(replace(ZOFIA, submission=name, submitted=None), DUE) for name in ("ada", "bo")]
    table = review_csv(without_times(results))
    assert table.count("time unknown") == 1 and "nobody's time of submission is known" in table
    assert "nobody's time" not in review_csv(without_times([results[0], with_lateness(ZOFIA, DUE)]))


def test_a_table_of_extensions(tmp_path):
    roster = read_roster(written(tmp_path / "people.csv", ROSTER))
    table = written(
        tmp_path / "extensions.csv",
        "Name,Exercise,Until,Days\nada@example.org,14_bert,2026-12-03 12:00,\nBo Li,,,2\nBo Li,12_other,,9\n",
    )
    allowances = read_allowances("14_bert", DUE, extensions=table, roster=roster)
    assert allowances.of("Ada Lovelace") == Allowance("2026-12-03 12:00", 3)
    assert allowances.of("bo li") == Allowance("2026-12-03 23:59", 0)
    assert allowances.of("nobody") == Allowance()
    without = read_allowances("14_bert", DUE, extensions=written(table, "name,until\nx,2026-12-03T11:00Z\n"))
    assert without.of("", "X").until == "2026-12-03 12:00", "a time with a zone is the same moment"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("who,until\n", "no table of extensions"),
        ("name,until\nAda Lovelace,tomorrow\n", "line 2: until is 'tomorrow'"),
        ("name,days\nAda Lovelace,-1\n", "whole number of days"),
        ("name,until\nAda Lovelace,2026-11-01 12:00\n", "before the deadline"),
        ("name,until\nMallory,2026-12-03 12:00\n", "'Mallory' is not on the roster"),
    ],
)
def test_a_table_that_makes_no_sense(tmp_path, text, words):
    roster = read_roster(written(tmp_path / "people.csv", ROSTER))
    with pytest.raises(ValueError, match=words):
        read_allowances("14_bert", DUE, extensions=written(tmp_path / "extensions.csv", text), roster=roster)


def test_an_extension_needs_a_deadline_and_slip_days_a_number(tmp_path):
    table = written(tmp_path / "extensions.csv", "name,days\nada,1\n")
    with pytest.raises(ValueError, match="which has none"):
        read_allowances("14_bert", None, extensions=table)
    people = read_roster(written(tmp_path / "people.csv", "name,slip_days\nada,some\n"))
    with pytest.raises(ValueError, match="'some' slip days"):
        read_allowances("14_bert", DUE, roster=people)


def test_slip_days_that_were_used_elsewhere_are_spent(tmp_path):
    roster = read_roster(written(tmp_path / "people.csv", ROSTER))
    for name in ("09", "11"):
        (tmp_path / name).mkdir()
        with Gradebook(tmp_path / name / "gradebook.sqlite") as book:
            run = book.start_run(ASSIGNMENT, "Python", "sealed", (1, 2))
            book.add(run, replace(ADA, submission="ada@example.org", learner="Ada Lovelace", slip_days_used=2))
    left = read_allowances("14_bert", DUE, roster=roster, term=tmp_path, out=tmp_path / "11")
    assert left.of("Ada Lovelace").slip_days == 1, "its own are not counted again"
    assert read_allowances("12", DUE, roster=roster, term=tmp_path).of("ada lovelace").slip_days == 0


def test_a_deadline_in_words():
    assert describe_deadline(DUE) == (
        "2026-12-01 23:59, Europe/Zurich. "
        "Each day late, once it has begun, costs 10% of the points earned, at most 50%."
    )
    assert "10 minutes of grace. Being late costs nothing." in describe_deadline(
        DUE | {"grace_minutes": 10, "per_day": 0}
    )
