"""Tables that other programs read: each is read back by something that we did not write."""

import csv
import io
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_results import ADA, ASSIGNMENT, HOSTILE, RESULTS, ZOFIA, result, task

from txgrade.marking.terminal import review_at_terminal
from txgrade.pages import gradescope
from txgrade.pages.exports import grades_csv, review_csv
from txgrade.records.gradebook import Gradebook
from txgrade.records.result import Note
from txgrade.running.display import line

HEADER = ["submission", "score", "max_score", "status", "isolation", "needs_review", "seeds"]


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline=""), strict=True))


def named(name: str, found=ADA):
    return replace(found, submission=name)


# Our own tables


def test_grades():
    header, *body = rows(grades_csv(RESULTS))
    assert header[:7] == HEADER
    assert header[7:] == [task.id for task in ASSIGNMENT.tasks]
    assert [row[0] for row in body] == sorted(each.submission for each in RESULTS)
    assert body[-2] == [
        "Žofia Nováková",
        "2.8",
        "12",
        "graded",
        "sealed",
        "yes",
        "1204871 998244353",
        "0",
        "0",
        "3",
        "0.5",
        "0",
    ]
    assert ["boris", "0", "12", "truncated", "sealed", "yes", "1204871 998244353", *[""] * 5] in body


def test_the_same_results_give_the_same_table():
    assert grades_csv(RESULTS) == grades_csv(RESULTS[::-1])
    assert rows(grades_csv([])) == [HEADER]
    assert grades_csv([]) == "submission,score,max_score,status,isolation,needs_review,seeds\n"


def test_what_needs_a_look():
    body = rows(review_csv(RESULTS))
    assert body[0] == ["submission", "task", "kind", "text"]
    assert [row for row in body if row[2] == "written answer"] == [
        ["", "essay", "written answer", "1 to mark with txgrade review"]
    ], "one row for the class"
    assert [
        "Žofia Nováková",
        "attention",
        "forbidden call",
        "calls torch.nn.functional.scaled_dot_product_attention",
    ] in body
    assert not [row for row in body if row[2] == "late"], "nothing to look at"


@pytest.mark.parametrize("start", ["=", "+", "-", "@", " =", "\t=", "\n=", "\r=", "＝", "-1+"])
def test_no_text_is_a_formula(start):
    found = result(f"{start}cmd|' /C calc'!A0", task("scores"), notes=(Note("x", f"{start}1+1"),))
    for table in (grades_csv([found]), review_csv([found])):
        for row in rows(table):
            for cell in row:
                assert not cell.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\n", "\r", "＝"))
    assert rows(grades_csv([named("=x")]))[1][0] == "'=x"


@given(st.lists(st.text(st.characters(), max_size=12), min_size=1, max_size=5, unique=True))
def test_any_name_gives_one_row(names):
    body = rows(grades_csv([named(name) for name in names]))
    assert len(body) == len(names) + 1 and {len(row) for row in body} == {7 + len(ADA.tasks)}


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_in_its_cell(text):
    found = result(text, task("scores", "error", lines=(text,)), notes=(Note("other", text),))
    assert [len(row) for row in rows(review_csv([found]))] == [4, 4]
    assert json.loads(json.dumps(gradescope.results(found)))["tests"][0]["score"] == 0
    grades_csv([found]).encode("utf-8")


def test_who_is_missing_is_listed():
    assert rows(review_csv([], ["Rose, Bob", "=x"]))[1:] == [
        ["Rose, Bob", "", "missing", "no submission"],
        ["'=x", "", "missing", "no submission"],
    ]


@pytest.fixture
def out(tmp_path):
    with Gradebook(tmp_path / "gradebook.sqlite") as book:
        run = book.start_run(ASSIGNMENT, "Python", "sealed", (1, 2))
        for each in RESULTS:
            book.add(run, each)
    return tmp_path


# Marking at the terminal


def marked(out, typed: str, monkeypatch, capsys, **options) -> str:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    review_at_terminal(out, **options)
    return capsys.readouterr().out


def test_answers_are_marked_at_the_terminal(out, monkeypatch, capsys):
    said = marked(out, "5\nnan\nthree\n3,5 clear, but why the root?\n", monkeypatch, capsys, by="Dr B")
    assert "Explain in your own words" in said and "2 points for the variance" in said and "saturates" in said
    assert said.count("is not a number from 0 to 4") == 3 and "1 marked, 0 left" in said
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        (review,) = book.reviews("essay", ZOFIA.tasks[-1].answer_hash)
        assert (review.points, review.comment, review.by) == (3.5, "clear, but why the root?", "Dr B")
    assert "No written answer waits" in marked(out, "", monkeypatch, capsys)


@pytest.mark.parametrize("typed", ["", "q\n", "\n", "5\n"])
def test_an_answer_can_wait(out, monkeypatch, capsys, typed):
    assert "0 marked, 1 left" in marked(out, typed, monkeypatch, capsys)
    assert "No written answer waits in task scores" in marked(out, typed, monkeypatch, capsys, task="scores")


def test_an_answer_steers_no_terminal(tmp_path, monkeypatch, capsys):
    with Gradebook(tmp_path / "gradebook.sqlite") as book:
        run = book.start_run(ASSIGNMENT, "Python", "sealed", (1, 2))
        book.add(run, result("a\x1b[2J", task("essay", "pending", answer="\x1b[2J\x07 \ud800 \u202e")))
    said = marked(tmp_path, "4\x1b[2J\n4\n", monkeypatch, capsys)
    assert not set("\x1b\x07\ud800\u202e") & set(said) and "1 marked" in said


def test_what_waits_for_a_mark_is_told_from_what_needs_a_look():
    waiting = result("waits", task("scores"), task("essay", "pending"))
    assert line(waiting) == "· waits  2 of 12  1 to mark"
    flagged = replace(waiting, notes=(Note("deleted check", "a check is gone", review=True),))
    assert line(flagged) == "· waits  2 of 12  1 to mark  needs a look"
    assert waiting.needs_review and not waiting.needs_look and flagged.needs_look
