"""What a run said otherwise than the run before: one line each, with its reason, in the table and on the page."""

from dataclasses import replace

import pytest
from sample_results import ADA, ASSIGNMENT, HOSTILE, ZOFIA, result, task

from txgrade.pages.exports import changes_csv
from txgrade.pages.feedback import feedback_page
from txgrade.records.changes import PENALTY, Publication
from txgrade.records.gradebook import Gradebook
from txgrade.records.history import histories_of
from txgrade.records.lateness import with_lateness
from txgrade.records.result import Allowance

DUE = {"when": "2026-12-01 23:59", "timezone": "UTC", "per_day": 0.2, "at_most": 1, "grace_minutes": 0}


@pytest.fixture
def publish(tmp_path):
    """`publish(results)` is what a run does at its end; returns task, old, new and why of its changes."""
    with Gradebook(tmp_path / "gradebook.sqlite") as book:

        def run(*results, assignment=ASSIGNMENT):
            number = book.start_run(assignment, "Python", "sealed", (1, 2))
            for one in results:
                book.add(number, replace(one, assignment_hash=assignment.hash))
            publication = Publication(book, book.latest())
            publication.write(number)
            return [(change.task, change.old, change.new, change.why) for change in publication.changes]

        run.book = book
        yield run


def test_a_first_page_and_the_same_again_change_nothing(publish):
    assert publish(ADA, ZOFIA) == publish(ADA, ZOFIA) == []


def test_a_corrected_exercise(publish):
    wrong = result("a", task("scores"), task("causal-mask", "wrong"))
    publish(wrong)
    right = result("a", task("scores"), task("causal-mask"))
    corrected = replace(ASSIGNMENT, hash="b" * 64)
    assert publish(right, assignment=corrected) == [("causal-mask", 0, 2, "the exercise was corrected")]
    assert publish(right, assignment=corrected) == []


def test_other_seeds_and_another_hand_in(publish):
    publish(result("a", task("scores")))
    assert publish(result("a", task("scores", "wrong"))) == [
        ("scores", 2, 0, "graded again, on other seeds or with other versions")
    ]
    again = replace(result("a", task("scores")), submission_hash="other")
    assert publish(again) == [("scores", 0, 2, "handed in again")]
    broken = replace(result("a", status="truncated"), submission_hash="third")
    assert publish(broken) == [("scores", 2, 0, "handed in again, not graded: truncated")]
    assert publish(replace(broken, status="not graded", submission_hash="fourth")) == []


def test_marks_by_people(publish):
    essay = result("a", task("scores"), task("essay", "pending"))
    publish(essay)
    hash = essay.tasks[-1].answer_hash
    item = publish.book.write_item("essay", 2, "Derives it.")
    publish.book.review("essay", hash, 0, "Clear.", items=[item])
    assert publish(essay) == [], "a first mark is no change"
    publish.book.write_item("essay", 3, "Derives it.", number=item)
    assert publish(essay) == [("essay", 2, 3, "marked by a person: Derives it. (+3) Clear.")]
    publish.book.override("a", "scores", 1, "Half of it is the neighbor's.")
    assert publish(essay) == [("scores", 2, 1, "marked by a person: Half of it is the neighbor's.")]
    other = result("a", task("scores", answer="another"), task("essay", "pending"))
    assert publish(other)[0][:3] == ("scores", 1, 2)


LATE = replace(result("a", task("scores")), penalty=0.4, score=1.6, submitted="2026-12-02T08:00:00+00:00")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"submitted": None}, "time of submission unknown: no late penalty"),
        ({"submitted": "2026-12-01T07:30:12+00:00"}, "time of submission corrected: 2026-12-01 07:30 UTC"),
        ({"allowance": Allowance("2026-12-03 12:00")}, "deadline extended to 2026-12-03 12:00"),
        ({"slip_days_used": 1}, "1 slip day used"),
        ({}, "the deadline or the time of submission counts differently"),
    ],
)
def test_a_penalty(publish, other, why):
    publish(LATE)
    assert publish(replace(LATE, penalty=0, score=2, **other)) == [(PENALTY, 0.4, 0, why)]


def test_a_time_that_becomes_known_and_unknown_again_is_the_reason_in_the_table_and_on_the_page(publish):
    unknown = with_lateness(replace(LATE, submitted=None), DUE)
    publish(unknown)
    known = "time of submission known now: 2026-12-02 08:00 UTC"
    for one, why in ((LATE, known), (unknown, "time of submission unknown: no late penalty")):
        assert [change[3] for change in publish(one)] == [why]
        earlier = Publication(publish.book, publish.book.latest()).earlier
        assert why in changes_csv(earlier)
        page = feedback_page(one, ASSIGNMENT, histories_of(earlier, [])["a"])
        assert page.lower().count(why.lower()) == 1


def test_the_table_and_the_page_tell_all_changes(publish):
    for verdict in ("right", "wrong", "right"):
        publish(result("a", task("scores", verdict)))
    earlier = Publication(publish.book, publish.book.latest()).earlier
    rows = changes_csv(earlier).splitlines()
    assert rows[0] == "name,task,old,new,why,time" and len(rows) == 3
    assert {row.split(",")[:4][2] for row in rows[1:]} == {"0", "2"}
    page = feedback_page(result("a", task("scores")), ASSIGNMENT, histories_of(earlier, [])["a"])
    assert page.count("Changed from ") == 1 and "Changed from 0 to 2 points on 20" in page


def test_what_a_person_said_is_on_the_page_once(publish):
    publish(result("a", task("scores")))
    publish.book.override("a", "scores", 1, "Half of it.\nThe shape is *right*.")
    publish(result("a", task("scores")))
    (one,), earlier = publish.book.latest(), Publication(publish.book, publish.book.latest()).earlier
    page = feedback_page(one, ASSIGNMENT, histories_of(earlier, [])["a"])
    assert page.count("Half of it.") == 1 and "marked by a person</bdi>" in page
    assert "marked by a person: Half of it. The shape is *right*." in changes_csv(earlier)


def test_a_run_that_is_killed_before_it_wrote_down_its_changes_finds_them_again(publish):
    publish(result("a", task("scores")))
    publish.book.add(1, result("a", task("scores", "wrong")))
    for _ in range(2):
        assert len(Publication(publish.book, publish.book.latest()).changes) == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_reason_is_text(publish, text):
    publish(result("a", task("scores")))
    publish.book.override("a", "scores", 1, text)
    publish(result("a", task("scores")))
    earlier = Publication(publish.book, publish.book.latest()).earlier
    page = feedback_page(ADA, ASSIGNMENT, histories_of(earlier, [])["a"])
    for made in (page, changes_csv(earlier)):
        assert not set("\x1b\x07\u202e\ud800") & set(made)
    assert not any(tag in page for tag in ("<script", "<img src=x", "<svg onload", "<base"))
