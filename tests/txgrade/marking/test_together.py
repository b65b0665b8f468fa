"""Several people mark at once, each in a process, while results still come: nothing is lost, and nothing double."""

import io
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sample_results import essays

from txgrade.marking.desk import read_share
from txgrade.marking.terminal import review_at_terminal
from txgrade.records.claims import claim
from txgrade.records.gradebook import Gradebook

ANSWERS = 60
GRADING = """
import sys, time
from dataclasses import replace
from sample_results import ADA, ASSIGNMENT
from txgrade.records.gradebook import Gradebook
with Gradebook(sys.argv[1]) as book:
    run = book.start_run(ASSIGNMENT, "Python", "sealed", (1, 2))
    print("began", flush=True)
    for i in range(10**6):
        book.add(run, replace(ADA, submission=f"late {i}"))
        print(i, flush=True)
        time.sleep(0.3)
"""


def reviewer(out, by: str, lines: int) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-m", "txgrade", "review", "--out", out, "--by", by],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    process.stdin.write(f"3 by {by}\n" * lines)
    process.stdin.close()
    return process


def words_of(process: subprocess.Popen) -> str:
    words = process.stdout.read()
    process.wait()
    return words


def reviews(out) -> list[tuple[str, str]]:
    """The reviewer and the comment of each mark that was ever written."""
    with sqlite3.connect(out / "gradebook.sqlite") as connection:
        return connection.execute("SELECT by, comment FROM reviews").fetchall()


@pytest.mark.slow
def test_three_reviewers_mark_60_answers_while_a_run_goes_on_and_one_is_killed(tmp_path):
    essays(tmp_path, ANSWERS)
    code = [sys.executable, "-c", GRADING, tmp_path / "gradebook.sqlite"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    grading = subprocess.Popen(code, stdout=subprocess.PIPE, text=True, env=environment)
    assert grading.stdout.readline() == "began\n"
    people = {name: reviewer(tmp_path, name, ANSWERS) for name in ("Ann", "Ben", "Eve")}
    while sum(by == "Eve" for by, _ in reviews(tmp_path)) < 3 and people["Eve"].poll() is None:
        time.sleep(0.01)
    people["Eve"].kill()
    said = [words_of(person) for person in people.values()]
    assert grading.poll() is None, "it goes on"
    said.append(words_of(reviewer(tmp_path, "Eve", ANSWERS)))  # what she had open is still hers
    grading.kill()
    graded = words_of(grading).split()
    assert "Traceback" not in "".join(said)
    marks = reviews(tmp_path)
    assert len(marks) == ANSWERS and all(comment == f"by {by}" for by, comment in marks)
    assert {by for by, _ in marks} == {"Ann", "Ben", "Eve"}
    with Gradebook(tmp_path / "gradebook.sqlite", create=False) as book:
        marked = [answer.review.points for answer in book.written() if answer.review]
        assert book.pending() == [] and marked == [3] * ANSWERS
        assert len(graded) > 1 and {f"late {i}" for i in graded} <= set(book.names())
    assert sqlite3.connect(tmp_path / "gradebook.sqlite").execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.fixture
def at_terminal(out, monkeypatch, capsys):
    """`at_terminal("3 good", before=…)` types lines; `before` is called when the first is asked for."""

    def run(*lines: str, before=lambda: None, **options) -> str:
        class Keyboard(io.StringIO):
            def readline(self) -> str:
                first.pop()() if first else None
                return super().readline()

        first = [before]
        monkeypatch.setattr("sys.stdin", Keyboard("".join(f"{line}\n" for line in lines)))
        review_at_terminal(out, **options)
        return capsys.readouterr().out

    return run


def test_a_mark_that_others_gave_meanwhile_is_shown_and_what_was_typed(out, at_terminal):
    def faster():
        with Gradebook(out / "gradebook.sqlite", create=False) as book:
            (first,) = [answer for answer in book.written() if answer.answer_hash == sorted_hashes(book)[0]]
            book.review("essay", first.answer_hash, 1, "Mine.", "Ben")

    said = at_terminal("3 good", "2 together", "q", before=faster, by="Ann")
    assert "Ben gave 1 point meanwhile: Mine. You typed: 3 good." in said and "1 marked, 2 left" in said
    assert reviews(out) == [("Ben", "Mine."), ("Ann", "together")]


def test_a_mark_that_can_not_be_written_is_asked_for_again(out, at_terminal, monkeypatch):
    monkeypatch.setattr("txgrade.records.ledger.WAIT_SECONDS", 0)
    outside = sqlite3.connect(out / "gradebook.sqlite", isolation_level=None)
    original, refused = Gradebook.review, []

    def review(self, *arguments, **options):
        if not refused:
            refused.append(outside.execute("BEGIN IMMEDIATE"))
            try:
                return original(self, *arguments, **options)
            finally:
                outside.execute("ROLLBACK")
        return original(self, *arguments, **options)

    monkeypatch.setattr(Gradebook, "review", review)
    said = at_terminal("3 good", "", "q", by="Ann")
    assert "try again. Not kept yet: 3 good" in said and reviews(out) == [("Ann", "good")]


def test_what_others_have_open_is_left_to_them(out, at_terminal):
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        for hash in sorted_hashes(book)[:2]:
            claim(book, "essay", hash, "Ben")
    assert "1 marked, 2 left (2 of them with other reviewers)" in at_terminal("3 a", "3 b", "3 c", by="Ann")


def test_rubric_items_and_pseudonyms_at_the_terminal(out, at_terminal):
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        book.write_item("essay", 2, "Variance")
        book.write_item("essay", -1, "Copied")
    said = at_terminal("#1 #2 0.5 well", "#1", "#9 x", "4", by="Ann")
    assert "#2  -1  Copied" in said and "no rubric item 9" in said and "3 marked" in said
    assert "l000" not in said and "learner " in said
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        assert sorted(answer.review.points for answer in book.written()) == [1.5, 2, 4]
    assert "No written answer waits" in at_terminal(by="Ann", names=True)


def test_an_item_where_there_is_none_is_a_sentence(out, at_terminal):
    said = at_terminal("#1 ok", "3 ok", "q", by="Ann")
    assert "#1 is a rubric item, and this task has none yet (txgrade review --page makes some). Type points" in said
    assert reviews(out) == [("Ann", "ok")]


@pytest.mark.parametrize("share", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_a_share_that_makes_no_sense(share):
    assert read_share(" 2/3 ") == (2, 3)
    with pytest.raises(ValueError, match="give a part of all answers, such as 1/2"):
        read_share(share)


def sorted_hashes(book) -> list[str]:
    return sorted(answer.answer_hash for answer in book.written())
