"""Tables that other programs read: each is read back by something that we did not write."""

import csv
import io
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_results import ADA, ASSIGNMENT, BROKEN, HOSTILE, NAMAE, RESULTS, ZOFIA, result, task

from txgrade import cli
from txgrade.marking.terminal import review_at_terminal
from txgrade.pages.exports import (
    ExportError,
    canvas_csv,
    export,
    grades_csv,
    gradescope_json,
    moodle_csv,
    review_csv,
)
from txgrade.records.gradebook import Gradebook
from txgrade.records.ledger import GradebookError
from txgrade.records.people import RosterError
from txgrade.records.result import Note

HEADER = ["submission", "score", "max_score", "status", "isolation", "needs_review", "seeds"]
TITLE = "Exercise 03 · Attention"
CANVAS = (
    "\ufeff"
    + f'''Student,ID,SIS User ID,SIS Login ID,Section,"{TITLE} (4711)",Final Score
    Points Possible,,,,,12.00,(read only)
"Lovelace, Ada",1001,S1,ada@example.edu,"Section ""A""",,90
"Nováková, Žofia",1002,S2,zofia,A,3,
名前,1003,S3,namae,A,,
"Student, Test",1004,,,A,,
'''
)
MOODLE = """\
Identifier,Full name,Email address,Status,Grade,Maximum grade,Last modified (grade),Feedback comments
Participant 501,Ada Lovelace,ada@example.edu,Submitted,,12.00,-,
Participant 502,Z\u030cofia Nova\u0301kova\u0301,zofia@example.edu,Submitted,1.00,12.00,"Monday, 2 November 2026",old
Participant 503,名前,namae@example.edu,No submission,,12.00,-,
"""


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
    assert ["Žofia Nováková", "essay", "written answer", "to be marked with txgrade review"] in body
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
    assert json.loads(gradescope_json(found))["tests"][0]["score"] == 0
    grades_csv([found]).encode("utf-8")


# Canvas


@pytest.mark.parametrize(
    "name",
    [
        "ada@example.edu",
        "ADA",
        "s1",
        "1001",
        "Lovelace, Ada",
        "ada lovelace",
        "lovelaceada_1001_99887_03_attention",
        "lovelaceada_LATE_1001_99887_03_attention-2",
    ],
)
def test_canvas_knows_a_learner_by(name):
    table, left_out = canvas_csv([named(name)], CANVAS, TITLE)
    assert rows(table) == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", f"{TITLE} (4711)"],
        ["    Points Possible", "", "", "", "", "12"],
        ["Lovelace, Ada", "1001", "S1", "ada@example.edu", 'Section "A"', "12"],
    ]
    assert not left_out


def test_canvas_gets_one_grade_a_person_and_we_hear_who_is_missing():
    several = [ADA, ZOFIA, NAMAE, named("namae"), named("nobody"), BROKEN]
    table, left_out = canvas_csv(several, CANVAS, TITLE)
    assert [(row[0], row[-1]) for row in rows(table)[2:]] == [("Lovelace, Ada", "12"), ("Nováková, Žofia", "2.8")]
    assert left_out == [
        ("boris", "not graded: truncated"),
        ("namae", "several submissions of one person"),
        ("nobody", "nobody on the roster has this name"),
        ("名前", "several submissions of one person"),
    ]


def test_a_name_goes_before_a_number_in_a_file_s_name():
    """Mallory hands in a file named as Canvas names Ada's: Ada keeps her grade, and we hear of the other."""
    table, left_out = canvas_csv([ADA, named("x_1001_1_y", BROKEN), named("z_1001_2_y", ZOFIA)], CANVAS, TITLE)
    assert [(row[0], row[-1]) for row in rows(table)[2:]] == [("Lovelace, Ada", "12")]
    assert [name for name, _ in left_out] == ["x_1001_1_y", "z_1001_2_y"]
    files = [f"lovelaceada_1001_{number}_y" for number in (1, 2)] + ["novakovazofia_1002_3_y", "namae_1003_4_y"]
    table, left_out = canvas_csv([ADA, *map(named, files)], CANVAS, TITLE)  # hers, put beside a download by hand
    assert [row[0] for row in rows(table)[2:]] == ["Lovelace, Ada", "Nováková, Žofia", "名前"]
    assert left_out == [(name, "several submissions of one person") for name in files[:2]]


def test_a_number_in_a_name_gives_nobody_a_grade():
    """Žofia, 1002 in Canvas and 502 in Moodle, handed in nothing; somebody's hand-in is called like a file of hers."""
    for_canvas, for_moodle = named("y_1002_5_exercise", NAMAE), named("y_502_assignsubmission_file_", NAMAE)
    table, left_out = canvas_csv([ADA, NAMAE, for_canvas], CANVAS, TITLE)
    assert [row[0] for row in rows(table)[2:]] == ["Lovelace, Ada", "名前"]
    [(name, why)] = left_out
    assert name == for_canvas.submission and why.endswith("are not named as Canvas names files")
    table, left_out = moodle_csv([ADA, NAMAE, for_moodle], MOODLE)
    assert [row[4] for row in rows(table)[1:]] == ["12", "1.00", "0"]
    assert [name for name, _ in left_out] == [for_moodle.submission]


@pytest.mark.parametrize("kind", ["owner", "same person"])
def test_whose_it_is_has_to_be_sure(kind):
    note = Note(kind, "handed in from the account `mallory`")
    doubtful = replace(NAMAE, submission="zofia", notes=(note,))
    table, left_out = canvas_csv([ADA, doubtful], CANVAS, TITLE)
    assert [row[0] for row in rows(table)[2:]] == ["Lovelace, Ada"] and left_out == [("zofia", note.text)]
    table, left_out = moodle_csv([ADA, doubtful], MOODLE)
    assert [row[4] for row in rows(table)[1:]] == ["12", "1.00", ""] and left_out == [("zofia", note.text)]
    noted = replace(ZOFIA, notes=(replace(note, review=False),))  # where learners give their full names
    assert canvas_csv([noted], CANVAS, TITLE)[1] == []


def test_who_is_missing_is_listed():
    assert rows(review_csv([], ["Rose, Bob", "=x"]))[1:] == [
        ["Rose, Bob", "", "missing", "no submission"],
        ["'=x", "", "missing", "no submission"],
    ]


def test_canvas_makes_a_column_where_it_has_none():
    table, _ = canvas_csv([ADA], CANVAS.replace(" (4711)", ""), "Another")
    assert rows(table)[0][-1] == "Another"


def test_twins_in_the_roster_are_left_to_a_person():
    twins = CANVAS + '"Lovelace, Ada",1005,,,B,,\n'
    _, left_out = canvas_csv([ADA], twins, TITLE)
    assert left_out == [("Ada Lovelace", "several people on the roster have this name")]


@pytest.mark.parametrize(
    "roster, words",
    [
        ("", "no column 'Student'"),
        ("a,b\n1,2\n", "no column 'Student'"),
        ('Student,ID\n"x', "is not a CSV file"),
        ("\x00\x01", "no column|not a CSV"),
        (CANVAS.replace("12.00", "100.0"), "Canvas has 100 .* the gradebook has 12"),
    ],
)
def test_a_bad_roster_is_refused(roster, words):
    with pytest.raises((ExportError, RosterError), match=words):
        canvas_csv([ADA], roster, TITLE)


# Moodle


@pytest.mark.parametrize(
    "name",
    [
        "Žofia Nováková",
        "zofia",
        "ZOFIA@example.edu",
        "502",
        "Participant 502",
        "Žofia Nováková_502_assignsubmission_file",
        "Žofia Nováková_502_assignsubmission_file_",
    ],
)
def test_moodle_knows_a_learner_by(name):
    table, left_out = moodle_csv([named(name, ZOFIA)], MOODLE)
    before, after = (list(csv.DictReader(io.StringIO(text))) for text in (MOODLE, table))
    assert not left_out and rows(table)[0] == rows(MOODLE)[0]
    assert after[0] == before[0] and after[2] == before[2]
    assert after[1].pop("Grade") == "2.8"
    comment = after[1].pop("Feedback comments")
    assert "Scores: 0 of 2, not yet" in comment and "Late: 0.7 taken off" in comment
    assert after[1].items() <= before[1].items()


def test_moodle_with_other_points_is_refused():
    with pytest.raises(ExportError, match="Moodle has 100 .* the gradebook has 12: set it in Moodle"):
        moodle_csv([ADA], MOODLE.replace("12.00", "100.00"))
    with pytest.raises(ExportError, match="no column 'Last modified"):
        moodle_csv([ADA], "Identifier,Grade\nParticipant 1,\n")


# Gradescope


def test_gradescope():
    data = json.loads(gradescope_json(ZOFIA))
    assert data["score"] == 2.8 and "Late: 0.7" in data["output"] and data["visibility"] == "visible"
    assert [(test["name"], test["score"], test["max_score"], test.get("status")) for test in data["tests"]] == [
        ("Scores", 0, 2, "failed"),
        ("The causal mask", 0, 2, "failed"),
        ("Attention with a mask", 3, 3, "passed"),
        ("A picture", 0.5, 1, "failed"),
        ("Why the root?", 0, 4, None),
    ]
    assert "This lets each query see the *future*" in data["tests"][1]["output"]
    assert {test["visibility"] for test in data["tests"]} == {"visible"}
    assert json.loads(gradescope_json(BROKEN))["output"] == "Not graded: truncated"


# From the gradebook


@pytest.fixture
def out(tmp_path):
    with Gradebook(tmp_path / "gradebook.sqlite") as book:
        run = book.start_run(ASSIGNMENT, "Python", "sealed", (1, 2))
        for each in RESULTS:
            book.add(run, each)
    return tmp_path


def test_export_writes_files(out, tmp_path):
    (tmp_path / "roster.csv").write_text(CANVAS, encoding="utf-8")
    exported = export(out, "canvas", tmp_path / "roster.csv")
    assert exported.files == [out / "canvas.csv", out / "canvas-left-out.csv"]
    assert ("mallory", "nobody on the roster has this name") in exported.left_out
    assert ["mallory", "nobody on the roster has this name"] in rows((out / "canvas-left-out.csv").read_text("utf-8"))
    (tmp_path / "roster.csv").write_text(MOODLE, encoding="utf-8")
    assert out / "moodle.csv" in export(out, "moodle", tmp_path / "roster.csv").files
    files = export(out, "gradescope").files
    assert {json.loads(file.read_text())["score"] for file in files} == {12, 2.8, 0, 2}
    assert out / "gradescope" / "名前" / "results.json" in files


def test_who_is_left_out_is_said(out, tmp_path, capsys):
    """Also where an earlier export gave it to somebody."""
    roster = tmp_path / "roster.csv"
    roster.write_text(CANVAS, encoding="utf-8")
    cli.export("gradescope", out)
    assert (out / "gradescope" / "Žofia Nováková" / "results.json").is_file() and not capsys.readouterr().err
    with Gradebook(out / "gradebook.sqlite") as book:
        run = book.start_run(ASSIGNMENT, "Python", "sealed", (1, 2))
        book.add(run, replace(ZOFIA, notes=(Note("owner", "handed in from the account `mallory`"),)))
    for to in ("gradescope", "canvas"):
        cli.export(to, out, roster)
        said = capsys.readouterr().err
        assert said.startswith("txgrade: ") and f"left out, see {to}-left-out.csv" in said and said.count("\n") == 1
        assert "Žofia Nováková (handed in from the account `mallory`)" in said
        assert "mallory" in (out / f"{to}-left-out.csv").read_text("utf-8")
    assert not (out / "gradescope" / "Žofia Nováková" / "results.json").exists()
    with Gradebook(out / "gradebook.sqlite") as book:
        book.add(run, ZOFIA)
    cli.export("gradescope", out)
    assert not capsys.readouterr().err and not (out / "gradescope-left-out.csv").exists()


@pytest.mark.parametrize("name", ["canvas.csv", "canvas-left-out.csv", "gradebook.sqlite", "gradescope"])
def test_an_export_follows_no_link(out, tmp_path, name):
    (tmp_path / "roster.csv").write_text(CANVAS, encoding="utf-8")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir() if name == "gradescope" else elsewhere.write_text("mine")
    if (out / name).exists():
        (out / name).rename(elsewhere)
    (out / name).symlink_to(elsewhere)
    for to in ("canvas", "gradescope"):
        with pytest.raises(ValueError, match=f"{name} is a link"):
            export(out, to, tmp_path / "roster.csv")
    assert not elsewhere.is_dir() or not list(elsewhere.iterdir())


@pytest.mark.parametrize(
    "to, roster, words",
    [
        ("excel", None, "choose canvas, moodle, gradescope"),
        ("canvas", None, "needs --roster: the CSV of Canvas"),
        ("moodle", None, "needs --roster: the worksheet"),
        ("canvas", b"\xff\xfe\x00", "is not text in UTF-8"),
    ],
)
def test_export_says_what_it_lacks(out, tmp_path, to, roster, words):
    if roster:
        (tmp_path / "roster.csv").write_bytes(roster)
    with pytest.raises((ExportError, RosterError), match=words):
        export(out, to, tmp_path / "roster.csv" if roster else None)


def test_export_without_a_gradebook(tmp_path):
    with pytest.raises(GradebookError, match="no gradebook"):
        export(tmp_path, "gradescope")


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
