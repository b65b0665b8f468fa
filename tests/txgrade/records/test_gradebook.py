"""The gradebook keeps everything, changes nothing, and survives its writer's death."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_results import ADA, ASSIGNMENT, RESULTS, ZOFIA, result, task

from txgrade.records import claims
from txgrade.records.changes import Publication
from txgrade.records.explain import explain
from txgrade.records.gradebook import Gradebook, Superseded
from txgrade.records.ledger import Busy, GradebookError
from txgrade.records.requests import Request, decide
from txgrade.records.result import VERDICTS, Note, Part, Result, TaskResult, result_from
from txgrade.records.tables import TABLES

ENVIRONMENT, SEEDS = "Python 3.11", (1204871, 998244353)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "gradebook.sqlite"


@pytest.fixture
def book(path):
    with Gradebook(path) as book:
        yield book


@pytest.fixture
def run(book):
    return book.start_run(ASSIGNMENT, ENVIRONMENT, "sealed", SEEDS)


@pytest.fixture
def full(book, run):
    """A gradebook with every kind of result."""
    for each in RESULTS:
        book.add(run, each)
    book.finish_run(run)
    return book


def essay(name: str, text: str, **more: object) -> Result:
    return result(name, task("scores"), task("essay", "pending", answer=text), **more)


# Seeds


def test_a_stopped_run_goes_on_with_its_seeds(path):
    with Gradebook(path) as book:
        drawn = book.seeds(ASSIGNMENT.hash, 2)
        book.add(book.start_run(ASSIGNMENT, ENVIRONMENT, "sealed", drawn), replace(ADA, seeds=drawn))
    with Gradebook(path) as book:
        assert book.seeds(ASSIGNMENT.hash, 2) == drawn
        assert len(set(drawn)) == 2 and all(2**31 <= seed < 2**62 for seed in drawn)
        assert not set(book.seeds("another", 5)) & set(drawn)


def test_seeds_that_pages_tell_about_are_used_no_more(book):
    drawn = book.seeds(ASSIGNMENT.hash, 2)
    book.finish_run(book.start_run(ASSIGNMENT, ENVIRONMENT, "sealed", drawn))
    assert book.seeds(ASSIGNMENT.hash, 2) == drawn, "nobody was graded on them"
    run = book.start_run(ASSIGNMENT, ENVIRONMENT, "sealed", drawn)
    book.add(run, replace(ADA, seeds=drawn))
    assert book.seeds(ASSIGNMENT.hash, 2) == drawn, "this run may have been stopped"
    book.finish_run(run)
    assert book.seeds(ASSIGNMENT.hash, 2, fresh=False) == drawn, "nobody is to be graded"
    assert not set(book.seeds(ASSIGNMENT.hash, 2)) & set(drawn)


def test_another_number_of_seeds_is_drawn_anew(book):
    two = book.seeds("one", 2)
    assert len(book.seeds("one", 3)) == 3 and not set(book.seeds("one", 3)) & set(two)


# Adding and finding


def test_a_result_comes_back_as_it_was(full):
    found = [
        full.find(
            each.submission, each.submission_hash, each.assignment_hash, each.environment, each.seeds, each.isolation
        )
        for each in RESULTS
    ]
    assert found == list(RESULTS)


@pytest.mark.parametrize(
    "change",
    [
        {"submission": "someone else"},
        {"submission_hash": "x"},
        {"assignment_hash": "x"},
        {"environment": "x"},
        {"seeds": (1204871,)},
        {"isolation": "none"},
    ],
)
def test_whatever_changed_is_graded_again(full, change):
    same = {
        name: getattr(ADA, name)
        for name in ("submission", "submission_hash", "assignment_hash", "environment", "seeds", "isolation")
    }
    assert full.find(**same) == ADA
    assert full.find(**same | change) is None


def test_seeds_can_be_asked_for_by_their_number(full):
    same = {
        name: getattr(ADA, name)
        for name in ("submission", "submission_hash", "assignment_hash", "environment", "isolation")
    }
    assert full.find(**same, seeds=len(ADA.seeds)) == ADA
    assert full.find(**same, seeds=len(ADA.seeds) + 1) is None


def test_the_newest_entry_counts_and_all_are_kept(book, run):
    for score in (1, 5, 3):
        book.add(run, replace(ADA, score=score))
    book.add(run, ZOFIA)
    assert [(each.submission, each.score) for each in book.latest(ASSIGNMENT.hash)] == [
        ("Ada Lovelace", 3),
        ("Žofia Nováková", 2.8),
    ]
    assert [entry.result.score for entry in book.history("Ada Lovelace")] == [1, 5, 3]
    assert book.latest() == book.latest(ASSIGNMENT.hash) and book.latest("another") == []
    assert book.names() == ["Ada Lovelace", "Žofia Nováková"]


def test_a_failing_add_leaves_nothing(full, path):
    count = len(full.history("Ada Lovelace"))
    twice = replace(ADA, tasks=(*ADA.tasks, ADA.tasks[0]))  # the second row of answers is refused
    with pytest.raises(GradebookError):
        full.add(1, twice)
    with pytest.raises(GradebookError):
        full.add(99, ADA)  # no such run
    assert len(full.history("Ada Lovelace")) == count
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


# Append-only


@pytest.mark.parametrize("table", sorted(TABLES.tables))
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE {0} SET {1} = {1}",
        "DELETE FROM {0}",
        "INSERT OR REPLACE INTO {0} SELECT * FROM {0}",
        "INSERT OR IGNORE INTO {0} SELECT * FROM {0}",
    ],
)
def test_no_row_is_ever_changed(full, path, table, statement):
    full.seeds("one", 2)
    full.review("essay", ZOFIA.tasks[-1].answer_hash, 2)
    full.write_item("essay", 1, "Clear.")
    claims.claim(full, "essay", ZOFIA.tasks[-1].answer_hash, "Dr B")
    Publication(full, [ADA]).write(1)
    decide(full, [Request(ADA.submission, "scores", "Please.", ADA.tasks[0])], 2, "No.")
    outside = sqlite3.connect(path, isolation_level=None)
    before = outside.execute(f"SELECT * FROM {table}").fetchall()
    column = TABLES.tables[table].columns.keys()[-1]
    assert before
    with pytest.raises(sqlite3.IntegrityError, match="the gradebook is a ledger"):
        outside.execute(statement.format(table, f'"{column}"'))
    assert outside.execute(f"SELECT * FROM {table}").fetchall() == before


# Reviews


def test_reviews_give_points_and_the_newest_counts(full):
    hash = ZOFIA.tasks[-1].answer_hash
    for points, comment in ((1, "hm"), (3.5, "Good.\n\nMore on the gradient.")):
        full.review("essay", hash, points, comment, "Dr B")
    reviewed = full.with_reviews(ZOFIA)
    assert reviewed.tasks[-1].verdict == "reviewed" and reviewed.tasks[-1].points == 3.5
    assert reviewed.tasks[-1].lines == ("Good.", "More on the gradient.")
    assert full.with_reviews(reviewed) == reviewed
    assert [review.points for review in full.reviews("essay", hash)] == [1, 3.5]
    assert (
        full.find(
            ZOFIA.submission, ZOFIA.submission_hash, ZOFIA.assignment_hash, ZOFIA.environment, ZOFIA.seeds, "sealed"
        )
        == ZOFIA
    ), "the ledger itself is as it was"


def test_reviews_outlive_grading_again_and_cover_the_same_text_elsewhere(book, run):
    book.add(run, essay("a", "because"))
    book.review("essay", essay("a", "because").tasks[-1].answer_hash, 3)
    again = book.start_run(replace(ASSIGNMENT, hash="new"), ENVIRONMENT, "sealed", SEEDS)
    for each in (essay("a", "because"), essay("b", "because"), essay("c", "no idea")):
        book.add(again, replace(each, assignment_hash="new"))
    assert [(each.submission, each.score) for each in book.latest("new")] == [("a", 5), ("b", 5), ("c", 2)]


def test_a_review_can_override_a_verdict_and_settles_its_notes(full):
    attention = ZOFIA.tasks[2]
    full.review(attention.id, attention.answer_hash, 0, "You were to write this yourself.")
    reviewed = full.with_reviews(ZOFIA)
    assert reviewed.tasks[2].points == 0 and reviewed.tasks[2].verdict == "reviewed"
    assert {note.kind: note.review for note in reviewed.notes} == {
        "late": False,
        "forbidden call": False,
        "duplicated": True,
    }


def test_lateness_is_taken_off_after_reviews(book):
    due = {"when": "2026-12-01 23:59", "timezone": "UTC", "grace_minutes": 0, "per_day": 0.2, "at_most": 1}
    run = book.start_run(replace(ASSIGNMENT, due=due), ENVIRONMENT, "sealed", SEEDS)
    late = essay("a", "because", submitted="2026-12-02T02:59:00+00:00")
    late = replace(late, penalty=0.4, score=1.6)
    book.add(run, late)
    book.review("essay", late.tasks[-1].answer_hash, 3)
    (found,) = book.latest()
    assert found.score == pytest.approx((2 + 3) * 0.8) and found.penalty == pytest.approx(1.0)


@pytest.mark.parametrize("points", [-0.5, 4.01, float("nan"), float("inf"), True])
def test_points_out_of_range_are_refused(full, points):
    with pytest.raises(GradebookError, match="give 0 to 4"):
        full.review("essay", ZOFIA.tasks[-1].answer_hash, points)
    assert full.reviews("essay", ZOFIA.tasks[-1].answer_hash) == []


def test_a_review_of_nobodys_answer_is_refused(full):
    with pytest.raises(GradebookError, match="no submission .* has this answer to task 'essay'"):
        full.review("essay", "not there", 1)


def test_each_waiting_text_is_listed_once_with_all_who_gave_it(book, run):
    for name, text in (("c", "other"), ("a", "same"), ("b", "same")):
        book.add(run, essay(name, text))
    waiting = book.pending()
    assert [(each.answer, each.submissions) for each in waiting] == [("same", ("a", "b")), ("other", ("c",))]
    assert waiting[0].rubric.startswith("2 points for the variance") and "own words" in waiting[0].prompt
    book.review("essay", waiting[0].answer_hash, 4)
    assert [each.answer for each in book.pending("essay")] == ["other"] and book.pending("scores") == []


def test_reviews_belong_to_an_assignment(book, run):
    """Two assignments in one gradebook, with the same answer to tasks of one name: 4 points here are none there."""
    book.add(run, essay("a", "because"))
    hash = essay("a", "because").tasks[-1].answer_hash
    book.review("essay", hash, 4)
    other = replace(ASSIGNMENT, name="04_other", hash="other", tasks=(replace(ASSIGNMENT.tasks[-1], points=1),))
    again = book.start_run(other, ENVIRONMENT, "sealed", SEEDS)
    small = result("a", replace(task("essay", "pending", answer="because"), max_points=1))
    book.add(again, replace(small, max_score=1, assignment_hash="other"))
    (found,) = book.latest("other")
    assert found.score == 0 and found.tasks[0].verdict == "pending"
    with pytest.raises(GradebookError, match="give 0 to 1"):
        book.review("essay", hash, 4)
    book.review("essay", hash, 1)
    assert book.latest("other")[0].score == 1 and book.latest(ASSIGNMENT.hash)[0].score == 2 + 4


def test_points_that_were_lowered_bound_earlier_reviews(book, run):
    book.add(run, essay("a", "because"))
    book.review("essay", essay("a", "because").tasks[-1].answer_hash, 4)
    lowered = replace(ASSIGNMENT, hash="lowered")
    book.start_run(lowered, ENVIRONMENT, "sealed", SEEDS)
    small = result("a", replace(task("essay", "pending", answer="because"), max_points=1))
    assert book.with_reviews(replace(small, assignment_hash="lowered")).tasks[0].points == 1


def test_one_grade_is_changed_with_a_reason(book, run):
    for name in ("a", "b"):
        book.add(run, essay(name, "because"))
    book.review("essay", essay("a", "because").tasks[-1].answer_hash, 1, by="Dr B")
    book.override("b", "scores", 0.5, "Half of it was your neighbour's.", "Dr B")
    book.override("b", "essay", 3, "Said so in class.")
    book.review("essay", essay("a", "because").tasks[-1].answer_hash, 2)  # for all, and so not for b
    again = book.start_run(replace(ASSIGNMENT, hash="new"), ENVIRONMENT, "sealed", SEEDS)
    for name in ("a", "b"):
        book.add(again, replace(essay(name, "because"), assignment_hash="new"))
    a, b = book.latest()
    assert (a.score, b.score) == (2 + 2, 0.5 + 3)
    assert b.tasks[0].verdict == "reviewed" and b.tasks[0].lines == ("Half of it was your neighbour's.",)
    assert "by Dr B, for this submission only: 0.5 of 2: Half of it was your neighbour's." in explain(book, "b")
    assert "neighbour" not in explain(book, "a")
    other = replace(essay("b", "an answer of another hand-in"), assignment_hash="new")
    book.add(again, other)
    assert [each.verdict for each in book.latest()[1].tasks] == ["reviewed", "pending"]


def test_a_name_is_one_however_it_is_written(full):
    assert full.submission_named(" ADA  lovelace") == "Ada Lovelace"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"submission": "nobody"}, "no submission 'nobody'"),
        ({"task": "nothing"}, "no task 'nothing'; it has scores"),
        ({"reason": " "}, "say why with --reason"),
        ({"points": 2.5}, "give 0 to 2"),
        ({"points": float("nan")}, "give 0 to 2"),
    ],
)
def test_a_change_that_makes_no_sense(full, change, words):
    given = {"submission": "Ada Lovelace", "task": "scores", "points": 1, "reason": "so"} | change
    with pytest.raises(GradebookError, match=words):
        full.override(**given)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_it_is_for_whoever_grades_alone(tmp_path, umask):
    before = os.umask(umask)
    try:
        with Gradebook(tmp_path / "gradebook.sqlite") as book:
            book.seeds("one", 2)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


# One grading run, many people


def test_one_grading_run_and_reviews_meanwhile(full, path):
    script = (
        "import sys; from txgrade.records.gradebook import Gradebook, GradebookError\n"
        "try: Gradebook(sys.argv[1]); print('both grade')\n"
        "except GradebookError as error: print(error)\n"
        "with Gradebook(sys.argv[1], create=False) as book:\n"
        "    print(len(book.latest()))\n"
        "    book.review('essay', sys.argv[2], 1)\n"
        "    print(len(book.pending()))\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", script, path, ZOFIA.tasks[-1].answer_hash], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    busy = f"{path} is in use by another grading run; wait until it ends, or choose another folder"
    assert said == [busy, str(len(RESULTS)), "0"]
    assert full.pending() == []
    with pytest.raises(GradebookError, match="in use"):
        Gradebook(path)


def test_a_transaction_within_another_is_a_part_of_it(full, path):
    def fail():
        with full.transaction(write=True):
            full.review("essay", ADA.tasks[-1].answer_hash, 1, "Half.")
            full.override(ADA.submission, "scores", 1, "Half.")
            assert len(full.reviews("scores", ADA.tasks[0].answer_hash, ADA)) == 1
            full.override(ADA.submission, "scores", 99, "Too much.")

    with pytest.raises(GradebookError, match="99 points"):
        fail()
    with sqlite3.connect(path) as outside:
        assert outside.execute("SELECT count(*) FROM reviews").fetchone() == (0,)
    full.override(ADA.submission, "scores", 1, "Half.")
    assert len(full.reviews("scores", ADA.tasks[0].answer_hash, ADA)) == 1


def test_a_writer_who_takes_too_long_is_named_and_nothing_is_half_written(full, path, monkeypatch):
    monkeypatch.setattr("txgrade.records.ledger.WAIT_SECONDS", 0)
    outside = sqlite3.connect(path, isolation_level=None)
    outside.execute("BEGIN IMMEDIATE")
    with Gradebook(path, create=False) as book:
        with pytest.raises(Busy, match=r"is in use by others .*: try again"):
            book.review("essay", ZOFIA.tasks[-1].answer_hash, 1)
        assert len(book.latest()) == len(RESULTS), "reading goes on"
        outside.execute("ROLLBACK")
        book.review("essay", ZOFIA.tasks[-1].answer_hash, 1)
        assert [review.points for review in book.reviews("essay", ZOFIA.tasks[-1].answer_hash)] == [1]


def test_a_mark_does_not_replace_one_that_its_author_has_not_seen(full):
    hash = ZOFIA.tasks[-1].answer_hash
    full.review("essay", hash, 1, "hm", "Ann", after=0)
    full.review("essay", hash, 1, "hm", "Ann", after=0)  # sent twice
    with pytest.raises(Superseded, match="Ann gave 1 point meanwhile: hm") as raised:
        full.review("essay", hash, 3, "good", "Ben", after=0)
    full.review("essay", hash, 3, "good", "Ben", after=raised.value.review.id)
    assert [(review.by, review.points) for review in full.reviews("essay", hash)] == [("Ann", 1), ("Ben", 3)]


# Rubric items


def test_rubric_items_apply_to_every_answer_that_has_them_also_later(book, run):
    for name in ("a", "b"):
        book.add(run, essay(name, f"because {name}"))
    hashes = [essay(name, f"because {name}").tasks[-1].answer_hash for name in ("a", "b")]
    variance = book.write_item("essay", 2, "Derives  the\nvariance.")
    copied = book.write_item("essay", -1, "Copies the prompt.")
    book.review("essay", hashes[0], 0.5, "And more.", items=[variance])
    book.review("essay", hashes[1], 0, items=[variance, copied])
    assert [result.score for result in book.latest()] == [2 + 2.5, 2 + 1]
    assert book.latest()[0].tasks[-1].lines == ("Derives the variance. (+2)", "And more.")
    version = book.rubric("essay")[0].version
    book.write_item("essay", 4, "Derives the variance, step by step.", number=variance, version=version)
    assert [result.score for result in book.latest()] == [2 + 4, 2 + 3], "at most the task's points"
    assert "step by step" in book.latest()[1].tasks[-1].lines[0]
    with pytest.raises(GradebookError, match="changed meanwhile: it is “Derives the variance, step by step.” .*now"):
        book.write_item("essay", 1, "Mine.", number=variance, version=version)
    book.write_item("essay", 0, "", number=variance)
    assert [result.score for result in book.latest()] == [2 + 0.5, 2 + 0], "never below 0"
    assert [item.number for item in book.rubric("essay")] == [copied]
    assert book.write_item("essay", 1, "New.") == 3, "a number is not used again"


def test_an_item_that_is_there_already_is_not_added_twice(full):
    first = full.write_item("essay", 2, "Derives it")
    assert full.write_item("essay", 2, " Derives\nit") == first and full.write_item("essay", 1, "Derives it") != first
    full.write_item("essay", 0, "", number=first)
    assert full.write_item("essay", 2, "Derives it") != first, "what was deleted is added anew"


def test_the_author_s_lines_become_items_once(path):
    rubric = (
        "Read them first.\n\n1 point: a table of\nthree sizes. 1.5 points: the reason; -1 point: copied. 9 points: all."
    )
    assignment = replace(ASSIGNMENT, tasks=(replace(ASSIGNMENT.task("essay"), rubric=rubric),))
    with Gradebook(path) as book:
        for _ in range(2):
            book.start_run(assignment, "Python", "sealed", (1, 2))
            book.take_over_rubrics()
        items = [(item.number, item.points, item.text) for item in book.rubric("essay")]
        assert items == [(1, 1, "A table of three sizes"), (2, 1.5, "The reason"), (3, -1, "Copied")]
        book.write_item("essay", 0, "", number=1)
        book.write_item("essay", 2, "The reason", number=2)
        book.take_over_rubrics()
        assert [item.number for item in book.rubric("essay")] == [2, 3]


@pytest.mark.parametrize(
    ("task", "points", "text", "words"),
    [
        ("essay", 5, "x", "give -4 to 4"),
        ("essay", float("nan"), "x", "give -4 to 4"),
        ("essay", 1, "  ", "needs words"),
        ("nothing", 1, "x", "no task 'nothing'; there are scores"),
    ],
)
def test_a_rubric_item_that_makes_no_sense(full, task, points, text, words):
    with pytest.raises(GradebookError, match=words):
        full.write_item(task, points, text)
    with pytest.raises(GradebookError, match="no rubric item 7"):
        full.review("essay", ZOFIA.tasks[-1].answer_hash, 1, items=[7])


def test_a_gradebook_of_the_version_before_is_read_and_goes_on(full, path):
    full.review("essay", ZOFIA.tasks[-1].answer_hash, 3, "Good.", "Dr B")
    before = full.latest()
    full.close()
    old = sqlite3.connect(path)
    old.executescript(
        "DROP TABLE rubric; DROP TABLE claims; DROP TABLE decisions; DROP TABLE published;"
        "ALTER TABLE reviews DROP COLUMN items; PRAGMA user_version = 3"
    )
    old.close()
    with Gradebook(path, create=False) as book:
        assert book.latest() == before
        item = book.write_item("essay", 1, "Clear.")
        book.review("essay", ZOFIA.tasks[-1].answer_hash, 0, items=[item])
        assert book.with_reviews(ZOFIA).tasks[-1].points == 1
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (4,)


def test_the_lock_ends_with_the_block_and_not_with_a_child(path):
    with Gradebook(path) as book:
        child = os.fork()
        if not child:  # holds what it inherited until it is killed
            time.sleep(60)
            os._exit(0)
        assert book.path == path
    try:
        Gradebook(path).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


KILLED = """
import sys
from dataclasses import replace
from sample_results import ADA, ASSIGNMENT
from txgrade.records.gradebook import Gradebook, Superseded
with Gradebook(sys.argv[1]) as book:
    run = book.start_run(ASSIGNMENT, "Python", "sealed", (1, 2))
    for i in range(10**6):
        book.add(run, replace(ADA, submission=f"{run}-{i}", junit="x" * 200_000))
        print(f"{run}-{i}", flush=True)
"""


@pytest.mark.slow
def test_killed_at_any_moment_the_file_is_sound(path):
    waits = (0.0, 0.013, 0.05, 0.081, 0.12)  # an add takes about 10 ms
    promised = set()
    for wait in waits:
        writer = subprocess.Popen(
            [sys.executable, "-c", KILLED, path],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        )
        promised.add(writer.stdout.readline().strip())  # it is at work
        time.sleep(wait)
        writer.kill()
        promised |= {line.strip() for line in writer.stdout if line.endswith("\n")}
        writer.wait()
        with Gradebook(path) as book:
            kept = set(book.names())
            assert promised <= kept and len(kept) - len(promised) <= len(waits)
            assert all(each.tasks == ADA.tasks for each in book.latest())
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        answers = connection.execute("SELECT count(*) FROM answers").fetchone()[0]
        assert answers == len(kept) * len(ADA.tasks)
        connection.close()
    assert len(promised) > len(waits)


# Files that are no gradebooks


def test_no_file_no_folder(path, tmp_path):
    with pytest.raises(GradebookError, match="no gradebook at .*gradebook.sqlite"):
        Gradebook(path, create=False)
    assert not list(tmp_path.glob("gradebook*"))
    with pytest.raises(GradebookError, match="no folder"):
        Gradebook(tmp_path / "missing" / "gradebook.sqlite")


def test_an_empty_file_becomes_a_gradebook(path):
    path.touch()
    with Gradebook(path) as book:
        assert book.latest() == [] and book.pending() == []


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda path: path.write_bytes(b"not a database at all" * 100), "is not a gradebook: it is not an SQLite file"),
        (
            lambda path: sqlite3.connect(path).executescript("CREATE TABLE grades (x)"),
            "is not a gradebook of txgrade's",
        ),
        (
            lambda path: sqlite3.connect(_gradebook(path)).executescript("PRAGMA user_version = 99"),
            "by a newer txgrade",
        ),
        (
            lambda path: sqlite3.connect(_gradebook(path)).executescript("PRAGMA user_version = 0"),
            "by an older txgrade",
        ),
        (lambda path: path.write_bytes(_gradebook(path).read_bytes()[:9000]), "is damaged"),
        (lambda path: path.write_bytes(_scratched(_gradebook(path).read_bytes())), "is damaged"),
    ],
    ids=["no SQLite", "foreign", "newer", "older", "cut", "scratched"],
)
@pytest.mark.parametrize("create", [True, False])
def test_a_file_that_is_no_gradebook_gets_one_clear_line(path, make, words, create):
    make(path)
    before = path.read_bytes()
    with pytest.raises(GradebookError, match=words) as raised, Gradebook(path, create) as book:
        book.latest()
    assert "\n" not in str(raised.value) and str(path) in str(raised.value)
    assert path.read_bytes() == before


def _gradebook(path):
    with Gradebook(path) as book:
        run = book.start_run(ASSIGNMENT, ENVIRONMENT, "sealed", SEEDS)
        for each in RESULTS:
            book.add(run, each)
    return path


def _scratched(data: bytes) -> bytes:
    return data[:4096] + bytes(255 for _ in range(4096 * 3)) + data[4096 * 4 :]


# Explaining


def test_a_grade_is_explained(full):
    full.review("essay", ZOFIA.tasks[-1].answer_hash, 3, "Good.", "Dr B")
    words = explain(full, "Žofia Nováková")
    for part in (
        ZOFIA.submission_hash,
        ZOFIA.assignment_hash,
        "1204871, 998244353",
        "sealed",
        ZOFIA.environment,
        "causal-mask (evidence): not yet, 0 of 2",
        "3 of 3 (0 in sequence, 3 alone)",
        "This lets each query see the *future*",
        "by Dr B: 3 of 4: Good.",
        "forbidden call",
        "needs a look",
        "txgrade grade --assignment",
        "--on-seeds 1204871,998244353",
        ZOFIA.submitted,
    ):
        assert part in words
    with pytest.raises(GradebookError, match="no submission 'nobody' .* it has .*Ada Lovelace"):
        explain(full, "nobody")


def test_an_explanation_steers_no_terminal(book, run):
    book.add(run, result("a", task("scores", "error", lines=("Your answer raised `\x1b[2J\x07\u202eX`: \ud800\r",))))
    words = explain(book, "a")
    assert not set("\x1b\x07\u202e\ud800\r") & set(words) and words.encode()


# Results survive JSON

TEXT = st.text(st.characters(), max_size=20)  # halves of characters included
POINTS = st.one_of(st.integers(0, 100), st.floats(0, 100, allow_nan=False).map(lambda x: round(x, 6)))
MATRIX = st.fixed_dictionaries({"kind": st.just("tensor"), "values": st.lists(st.one_of(st.floats(-9, 9), TEXT))})
TASKS = st.builds(
    TaskResult,
    TEXT,
    TEXT,
    st.sampled_from(["evidence", "measured", "tests", "written"]),
    st.sampled_from(sorted(VERDICTS)),
    POINTS,
    POINTS,
    POINTS,
    POINTS,
    st.lists(TEXT, max_size=3).map(tuple),
    st.none() | st.tuples(MATRIX, MATRIX),
    st.lists(st.builds(Part, TEXT, st.booleans(), POINTS, POINTS), max_size=2).map(tuple),
    TEXT,
    TEXT,
    st.lists(st.dictionaries(st.sampled_from(["text", "png"]), TEXT), max_size=2).map(tuple),
)
ALL_RESULTS = st.builds(
    Result,
    TEXT,
    TEXT,
    POINTS,
    POINTS,
    TEXT,
    st.lists(st.integers(0, 2**31), max_size=3).map(tuple),
    TEXT,
    TEXT,
    TEXT,
    st.lists(TASKS, max_size=3).map(tuple),
    st.lists(st.builds(Note, TEXT, TEXT, st.none() | TEXT, st.booleans()), max_size=3).map(tuple),
    POINTS,
    st.none() | TEXT,
    TEXT,
)


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # beartype does, where it looks into lists
@given(ALL_RESULTS)
def test_a_result_survives_json(result):
    again = result_from(json.loads(json.dumps(result.data())))
    assert again == result and again.data() == result.data() and again.needs_review == result.needs_review
