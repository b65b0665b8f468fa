"""What Canvas, Moodle and Gradescope take back: each learner's grade and page, by the system's own ids."""

import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import time
import zipfile
from dataclasses import replace

import lms
import pytest
from sample_results import ADA, ASSIGNMENT, BROKEN, NAMAE, RESULTS, ZOFIA

from txgrade import cli
from txgrade.marking.desk import override
from txgrade.pages import gradescope, returning
from txgrade.pages.exports import csv_text
from txgrade.pages.returning import ReturnError, give_back
from txgrade.records.gradebook import Gradebook
from txgrade.records.grades import now
from txgrade.records.ledger import GradebookError
from txgrade.records.people import RosterError, delimiter_of, has_decimal_commas, read_roster, read_table
from txgrade.records.result import Note
from txgrade.submitting.collect import collect
from txgrade.submitting.downloads import CANVAS as CANVAS_NAME
from txgrade.submitting.downloads import MOODLE as MOODLE_NAME
from txgrade.submitting.finding import find_submissions
from txgrade.submitting.reading import _arrival

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


def canvas_csv(results, roster, title, column=None):
    table, _, returned = returning.canvas_csv(results, roster, title, column)
    return table, returned.left_out


def moodle_csv(results, roster):
    table, _, returned = returning.moodle_csv(results, roster)
    return table, returned.left_out


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


def test_canvas_makes_a_column_where_it_has_none():
    table, _ = canvas_csv([ADA], CANVAS.replace(" (4711)", ""), "Another")
    assert rows(table)[0][-1] == "Another"


def test_twins_in_the_roster_are_left_to_a_person():
    twins = CANVAS + '"Lovelace, Ada",1005,,,B,,\n'
    _, left_out = canvas_csv([ADA], twins, TITLE)
    (why,) = [why for name, why in left_out if name == "Ada Lovelace"]
    assert why.startswith("several people on the roster: Ada Lovelace (") and why.endswith("name with its brackets")


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
    with pytest.raises((ReturnError, RosterError), match=words):
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
    with pytest.raises(ReturnError, match="Moodle has 100 .* the gradebook has 12: set it in Moodle"):
        moodle_csv([ADA], MOODLE.replace("12.00", "100.00"))
    with pytest.raises(ReturnError, match="no column 'Last modified"):
        moodle_csv([ADA], "Identifier,Grade\nParticipant 1,\n")


@pytest.mark.parametrize(
    ("header", "wanted", "words"),
    [
        ("Exercise 03 - Attention (4711)", TITLE, r"one of: 'Exercise 03 - Attention \(4711\)'"),
        (f"{TITLE} (4711),{TITLE} (4712)", TITLE, r"\(4711\)', .*\(4712\)'"),
        (f"{TITLE} (4711)", "exercise 3 attention", "one of: "),
    ],
)
def test_canvas_columns_that_are_nearly_called_so_are_listed(header, wanted, words):
    with pytest.raises(ReturnError, match=words):
        canvas_csv([ADA], CANVAS.replace(f'"{TITLE} (4711)"', header), TITLE, wanted)


@pytest.mark.parametrize("column", ["Week 9 (815)", "Week 9"])
def test_the_canvas_column_can_be_chosen(column):
    roster = CANVAS.replace(f'"{TITLE} (4711)"', "Week 9 (815)")
    assert rows(canvas_csv([ADA], roster, TITLE, column)[0])[0][-1] == "Week 9 (815)"
    _, _, returned = returning.canvas_csv([ADA], roster, TITLE)
    assert returned.remarks == [f"Canvas has no column {TITLE!r}, and will ask to make it; or choose one by --column"]


# Gradescope


def test_gradescope_s_results():
    data = gradescope.results(replace(ZOFIA, notes=(Note("late", "1 day late", review=False),)))
    assert data["score"] == 2.8 and "1 day late" in data["output"] and data["visibility"] == "visible"
    assert "in a sealed sandbox. Gradescope ran none of your code" in data["output"]
    assert "not in a sealed sandbox" in gradescope.results(replace(ZOFIA, isolation="limits-only"))["output"]
    assert [(test["name"], test["score"], test["max_score"], test.get("status")) for test in data["tests"]] == [
        ("Scores", 0, 2, "failed"),
        ("The causal mask", 0, 2, "failed"),
        ("Attention with a mask", 3, 3, "passed"),
        ("A picture", 0.5, 1, "failed"),
        ("Why the root?", 0, 4, None),
    ]
    assert "This lets each query see the *future*" in data["tests"][1]["output"]
    assert {test["visibility"] for test in data["tests"]} == {"visible"}


# From the gradebook


@pytest.fixture
def out(tmp_path):
    with Gradebook(tmp_path / "gradebook.sqlite") as book:
        run = book.start_run(ASSIGNMENT, "Python", "sealed", (1, 2))
        for each in RESULTS:
            book.add(run, each)
        book.finish_run(run)
    (tmp_path / "feedback").mkdir()
    for each in RESULTS:
        (tmp_path / "feedback" / f"{each.submission}.html").write_text(f"<p>{each.submission}</p>", encoding="utf-8")
    return tmp_path


@pytest.fixture
def roster(tmp_path):
    def write(text):
        (tmp_path / "roster.csv").write_text(text, encoding="utf-8")
        return tmp_path / "roster.csv"

    return write


def test_return_writes_files(out, roster):
    returned = give_back("canvas", out, roster(CANVAS), anyway=True)
    assert returned.files == [out / "canvas.csv", out / "canvas-feedback.zip", out / "canvas-left-out.csv"]
    assert ("mallory", "nobody on the roster has this name") in returned.left_out
    assert ["mallory", "nobody on the roster has this name"] in rows((out / "canvas-left-out.csv").read_text("utf-8"))
    assert any("no feedback file for 3 submissions" in remark for remark in returned.remarks)
    assert out / "moodle.csv" in give_back("moodle", out, roster(MOODLE), anyway=True).files
    with zipfile.ZipFile(out / "moodle-feedback.zip") as archive:
        assert archive.namelist() == [
            f"{name}_{number}_assignsubmission_file_/feedback.html"
            for number, name in ((501, "Ada Lovelace"), (502, "Žofia Nováková"), (503, "名前"))
        ]


def test_answers_that_wait_hold_everything_back(out, roster):
    for system, text in (("canvas", CANVAS), ("moodle", MOODLE)):
        with pytest.raises(ReturnError, match="1 answer of 1 learner waits for a person: .* txgrade review .*--anyway"):
            give_back(system, out, roster(text))
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        book.review("essay", ZOFIA.tasks[-1].answer_hash, 3)
    with pytest.raises(ReturnError, match="marks in .* are newer than its pages: grade again"):
        give_back("canvas", out, roster(CANVAS))
    with Gradebook(out / "gradebook.sqlite") as book:
        book.finish_run(book.start_run(ASSIGNMENT, "Python", "sealed", (1, 2)))
    give_back("canvas", out, roster(CANVAS))


def test_a_mark_given_while_a_run_writes_its_pages_holds_them_back(out, roster):
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        run, marks_read = book.start_run(ASSIGNMENT, "Python", "sealed", (1, 2)), now()
        time.sleep(0.01)
        book.review("essay", ZOFIA.tasks[-1].answer_hash, 3)
        book.finish_run(run, marks_read)
    with pytest.raises(ReturnError, match="marks in .* are newer than its pages: grade again"):
        give_back("canvas", out, roster(CANVAS))


@pytest.mark.parametrize("kept", [False, True])
def test_the_points_of_one_learner_hold_the_old_pages_back(out, roster, kept):
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        book.review("essay", ZOFIA.tasks[-1].answer_hash, 3)
        book.finish_run(book.start_run(ASSIGNMENT, "Python", "sealed", (1, 2)))
    give_back("canvas", out, roster(CANVAS))
    (out / "requests").mkdir()
    (out / "requests" / "Ada Lovelace.md").write_text("# scores\nPlease look.\n", encoding="utf-8")
    override(out, "Ada Lovelace", "scores", 2 if kept else 1, "As it is.")
    with pytest.raises(ReturnError, match="marks in .* are newer than its pages: grade again"):
        give_back("canvas", out, roster(CANVAS))


def test_who_is_absent_is_said_and_when_there_is_nothing(out, roster, capsys):
    more = MOODLE + "Participant 504,Nobody New,new@example.edu,No submission,,12.00,-,\n"
    cli.give_back("moodle", out, roster(more), anyway=True)
    said = capsys.readouterr()
    assert "3 grades and 3 pages to return\n" in said.out
    assert "txgrade: no grade for 1 on the roster: Nobody New\n" in said.err
    header, *_, last = more.splitlines()
    cli.give_back("moodle", out, roster(f"{header}\n{last}\n"), anyway=True)
    assert "0 grades and 0 pages to return\n" in capsys.readouterr().out
    cli.give_back("canvas", out, roster(CANVAS), anyway=True)
    said = capsys.readouterr()
    assert "3 grades and 0 pages to return\n" in said.out and "no grade for" not in said.err


def test_who_is_left_out_is_said(out, roster, capsys):
    """Also where an earlier return gave it to somebody."""
    cli.give_back("moodle", out, roster(MOODLE), anyway=True)
    assert "Žofia" not in capsys.readouterr().err
    with Gradebook(out / "gradebook.sqlite") as book:
        run = book.start_run(ASSIGNMENT, "Python", "sealed", (1, 2))
        book.add(run, replace(ZOFIA, notes=(Note("owner", "handed in from the account `mallory`"),)))
    for system, text in (("moodle", MOODLE), ("canvas", CANVAS)):
        cli.give_back(system, out, roster(text), anyway=True)
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.startswith("txgrade: ") and f"left out, see {system}-left-out.csv" in said
        assert "Žofia Nováková (handed in from the account `mallory`)" in said
        assert "mallory" in (out / f"{system}-left-out.csv").read_text("utf-8")
    with zipfile.ZipFile(out / "moodle-feedback.zip") as archive:
        assert not any("502" in name for name in archive.namelist())


@pytest.mark.parametrize("name", ["canvas.csv", "canvas-left-out.csv", "gradebook.sqlite", "moodle-feedback.zip"])
def test_nothing_is_returned_through_a_link(out, tmp_path, roster, name):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    if (out / name).exists():
        (out / name).rename(elsewhere)
    (out / name).symlink_to(elsewhere)
    for system in ("canvas", "moodle"):
        with pytest.raises(ValueError, match=f"{name} is a link"):
            give_back(system, out, roster(CANVAS), anyway=True)


def test_a_page_that_is_a_link_is_not_returned(out, tmp_path, roster):
    (tmp_path / "secret").write_text("secret")
    page = out / "feedback" / "Ada Lovelace.html"
    page.unlink()
    page.symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match="is a link"):
        give_back("moodle", out, roster(MOODLE), anyway=True)
    page.unlink()
    returned = give_back("moodle", out, roster(MOODLE), anyway=True)
    assert any("Ada Lovelace gets no page" in remark for remark in returned.remarks)


@pytest.mark.parametrize(
    "system, text, words",
    [
        ("excel", None, "choose canvas, moodle, gradescope"),
        ("canvas", None, "needs --roster: the CSV of Canvas"),
        ("moodle", None, "needs --roster: the worksheet"),
        ("gradescope", None, "needs --roster: a table with emails"),
        ("gradescope", b"name\nada\n", "no column `email` or `sid`"),
        ("canvas", b"\xff\xfe\x00", "is not text in UTF-8"),
    ],
)
def test_return_says_what_it_lacks(out, tmp_path, system, text, words):
    if text:
        (tmp_path / "roster.csv").write_bytes(text)
    with pytest.raises((ReturnError, RosterError), match=words):
        give_back(system, out, tmp_path / "roster.csv" if text else None, anyway=True)


def test_return_without_a_gradebook(tmp_path):
    with pytest.raises(GradebookError, match="no gradebook"):
        give_back("gradescope", tmp_path, tmp_path / "roster.csv")


# There and back


def went_round(tmp_path, system, uploads, roster_text):
    """Collect uploads, give each a made-up grade, and return the grades; gives the results folder and the points."""
    makers = {"canvas": lms.canvas_zip, "moodle": lms.moodle_zip, "gradescope": lms.gradescope_zip}
    makers[system](tmp_path / "submissions.zip", uploads)
    (tmp_path / "people.csv").write_text(roster_text, encoding="utf-8")
    people = read_roster(tmp_path / "people.csv")
    collect(system, tmp_path / "submissions.zip", tmp_path / "inbox", people)
    out, points = tmp_path / "results", {}
    (out / "feedback").mkdir(parents=True)
    with Gradebook(out / "gradebook.sqlite") as book:
        run = book.start_run(ASSIGNMENT, "Python", "sealed", (1, 2))
        for number, file in enumerate(find_submissions(tmp_path / "inbox", "03_attention", people)):
            digest = hashlib.sha256(file.path.read_bytes()).hexdigest()
            points[file.path.read_bytes().decode()] = number + 0.5
            graded = replace(ADA, submission=file.name, learner=file.learner, score=number + 0.5)
            book.add(run, replace(graded, submission_hash=digest, origin=_arrival(file, digest).origin))
            (out / "feedback" / f"{file.name}.html").write_bytes(file.path.read_bytes())
        book.finish_run(run)
    returned = give_back(system, out, tmp_path / "people.csv")
    assert not returned.left_out and not returned.remarks
    return out, points


UPLOADS = [lms.Upload(one, one.email.encode(), late=one is lms.JOERG) for one in lms.CLASS]


def test_there_and_back_with_canvas(tmp_path):
    out, points = went_round(tmp_path, "canvas", UPLOADS, lms.canvas_gradebook(title=f"{ASSIGNMENT.title} (4711)"))
    table = list(csv.DictReader(io.StringIO((out / "canvas.csv").read_text("utf-8"))))[1:]
    by_id = {int(row["ID"]): float(row[f"{ASSIGNMENT.title} (4711)"]) for row in table}
    assert by_id == {one.id: points[one.email] for one in lms.CLASS}
    files = {f"{upload.number or number}": upload for number, upload in enumerate(UPLOADS, 99_001)}
    with zipfile.ZipFile(out / "canvas-feedback.zip") as archive:
        assert len(archive.namelist()) == len(lms.CLASS)
        for name in archive.namelist():  # as Canvas reads it: the first two parts that are numbers
            user, file = [part for part in name.split("_") if part.isdigit()][:2]
            assert CANVAS_NAME.fullmatch(name) and name.endswith("_feedback.html")
            assert files[file].learner.id == int(user)
            assert archive.read(name) == files[file].data


def test_there_and_back_with_moodle(tmp_path):
    out, points = went_round(tmp_path, "moodle", UPLOADS, lms.moodle_worksheet())
    table = list(csv.DictReader(io.StringIO((out / "moodle.csv").read_text("utf-8"))))
    assert {row["Identifier"]: float(row["Grade"]) for row in table} == {
        f"Participant {one.participant}": points[one.email] for one in lms.CLASS
    }
    emails = {one.participant: one.email for one in lms.CLASS}
    with zipfile.ZipFile(out / "moodle-feedback.zip") as archive:
        assert len(archive.namelist()) == len(lms.CLASS)
        for name in archive.namelist():  # as Moodle reads it: the second of at most five parts
            folder, page = name.split("/")
            parts = folder.split("_", 4)
            assert MOODLE_NAME.fullmatch(folder) and parts[2:4] == ["assignsubmission", "file"] and page
            assert archive.read(name).decode() == emails[int(parts[1])]


def test_there_and_back_with_gradescope(tmp_path):
    out, points = went_round(tmp_path, "gradescope", UPLOADS, lms.gradescope_roster())
    table = list(csv.DictReader(io.StringIO((out / "gradescope.csv").read_text("utf-8"))))
    assert {(row["Email"], row["SID"].lstrip("'")): float(row["Total Score"]) for row in table} == {
        (one.email, one.sid): points[one.email] for one in lms.CLASS
    }
    with zipfile.ZipFile(out / "gradescope-autograder.zip") as archive:
        assert all(archive.getinfo(name).external_attr >> 16 & 0o100 for name in gradescope.PROGRAMS)
        for upload in UPLOADS:
            shown = autograded(tmp_path / upload.learner.sid, archive, upload.learner.email.upper(), upload.data)
            assert shown["score"] == points[upload.learner.email]
        again = autograded(tmp_path / "again", archive, lms.ADA.email, b"a newer version")
        assert again["score"] == 0 and "not graded yet" in again["output"]
        assert (
            "not graded yet"
            in autograded(tmp_path / "other", archive, "mallory@example.org", UPLOADS[0].data)["output"]
        )


def autograded(root, archive, email, notebook):
    """What Gradescope's container would show of a submission."""
    archive.extractall(root / "source")
    (root / "submission").mkdir()
    (root / "submission" / "exercise.ipynb").write_bytes(notebook)
    (root / "submission_metadata.json").write_text(json.dumps({"id": 1, "users": [{"email": email, "name": "x"}]}))
    program = root / "source" / "run_autograder"
    subprocess.run([sys.executable, program], env=os.environ | {"AUTOGRADER_ROOT": str(root)}, check=True)
    return json.loads((root / "results" / "results.json").read_text())


def test_a_gradebook_with_semicolons_is_returned_in_its_form():
    roster = 'Student;ID;"Heads; again (1)"\n    Points Possible;;"12,00"\n"Lovelace, Ada";1001;"1,5"\n'
    assert read_table(roster)[1][1] == {"Student": "Lovelace, Ada", "ID": "1001", "Heads; again (1)": "1,5"}
    assert delimiter_of(roster) == ";" and has_decimal_commas(roster)
    assert not has_decimal_commas("name,a\n1,2\n") and delimiter_of("name\n") == ","
    assert csv_text([["a", "-1,5"]], ";") == "a;-1,5\n"
