"""`txgrade collect nbgrader`: the folders, the times and the gradebook of a course of nbgrader's, without nbgrader."""

import csv
import json
import sqlite3

import nbformat
import pytest
from nbgrader_course import RIGHT, cell, source_notebook, with_answers

from txgrade.authoring.read import read_assignment
from txgrade.records.people import read_roster

# What nbgrader 0.9.6 makes, as far as it is read.
SCHEMA = """
CREATE TABLE assignment (id VARCHAR(32), name VARCHAR(128), duedate DATETIME);
CREATE TABLE student (id VARCHAR(128), first_name VARCHAR(128), last_name VARCHAR(128), email VARCHAR(128));
CREATE TABLE submitted_assignment (id VARCHAR(32), assignment_id VARCHAR(32), student_id VARCHAR(128));
CREATE TABLE notebook (id VARCHAR(32), name VARCHAR(128));
CREATE TABLE submitted_notebook (id VARCHAR(32), assignment_id VARCHAR(32), notebook_id VARCHAR(32));
CREATE TABLE base_cell (id VARCHAR(32), name VARCHAR(128));
CREATE TABLE grade_cells (id VARCHAR(32), max_score FLOAT);
CREATE TABLE task_cells (id VARCHAR(32), max_score FLOAT);
CREATE TABLE grade (notebook_id VARCHAR(32), cell_id VARCHAR(32), auto_score FLOAT, manual_score FLOAT,
                    extra_credit FLOAT);
INSERT INTO assignment VALUES ('a', 'ps1', '2026-11-20 18:00:00.000000');
INSERT INTO student VALUES ('ada', 'Ada', 'Lovelace', 'ada@example.org'), ('bob', 'Bob', 'Builder', NULL),
                           ('cyd', NULL, NULL, NULL);
INSERT INTO submitted_assignment VALUES ('s', 'a', 'ada');
INSERT INTO notebook VALUES ('n', 'second');
INSERT INTO submitted_notebook VALUES ('sn', 's', 'n');
INSERT INTO base_cell VALUES ('c', 'test-squares');
INSERT INTO grade_cells VALUES ('c', 1);
INSERT INTO grade VALUES ('sn', 'c', 1, NULL, NULL);
"""
STAMPS = {"ada": "2026-11-20 16:00:00 UTC", "bob": "2026-11-22 09:30:00.123456 UTC"}


def second_notebook():
    """A notebook that uses a grade_id of the first one, and reads a file."""
    cells = [
        cell("markdown", "# More"),
        cell("code", "def cube(n):\n    return n**3", "squares", "solution"),
        cell("code", "assert cube(2) == int(open('eight.txt').read())", "test-squares", "tests", 1),
    ]
    return nbformat.v4.new_notebook(cells=cells)


@pytest.fixture
def course(tmp_path):
    folder = tmp_path / "course"
    for place in ("source/ps1", "submitted/ada/ps1", "submitted/bob/ps1"):
        (folder / place).mkdir(parents=True)
    nbformat.write(source_notebook(), folder / "source" / "ps1" / "first.ipynb")
    nbformat.write(second_notebook(), folder / "source" / "ps1" / "second.ipynb")
    (folder / "source" / "ps1" / "eight.txt").write_text("8")
    for student, stamp in STAMPS.items():
        own = folder / "submitted" / student / "ps1"
        nbformat.write(with_answers(source_notebook(), RIGHT), own / "first.ipynb")
        (own / "timestamp.txt").write_text(stamp)
    nbformat.write(second_notebook(), folder / "submitted" / "ada" / "ps1" / "second.ipynb")
    with sqlite3.connect(folder / "gradebook.db") as connection:
        connection.executescript(SCHEMA)
    connection.close()
    return folder


def ids(path):
    cells = nbformat.read(path, as_version=4).cells
    return [id for each in cells if (id := each.metadata.get("nbgrader", {}).get("grade_id"))]


def table(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_several_notebooks_are_one_assignment(course, tmp_path, txgrade):
    status, said, err = txgrade("collect", "nbgrader", course / "source" / "ps1", "--to", tmp_path / "inbox")
    made = course / "txgrade" / "ps1"
    assert status == 0 and f"--assignment {made / 'ps1.ipynb'}" in said and "2 with their times" in said
    assert "Bob Builder: no second.ipynb" in err and "not handed in (1): cyd" in err
    assignment = read_assignment(made / "ps1.ipynb")
    assert assignment.points == read_assignment(course / "source" / "ps1" / "first.ipynb").points + 1
    assert assignment.due["when"] == "2026-11-20 18:00" and [name for name, _ in assignment.data] == ["eight.txt"]
    ada = tmp_path / "inbox" / "Ada Lovelace" / "ps1.ipynb"
    assert ids(ada) == ids(made / "ps1.ipynb") and len(set(ids(ada))) == len(ids(ada))
    assert {"first-squares", "second-squares", "second-test-squares", "total"} <= set(ids(ada))
    assert not any(id.startswith("second-") for id in ids(tmp_path / "inbox" / "Bob Builder" / "ps1.ipynb"))
    record = json.loads((ada.parent / "ps1.collected.json").read_text())
    assert record["submitted"] == "2026-11-20T16:00:00+00:00"
    assert [row["name"] for row in table(made / "people.csv")] == ["Ada Lovelace", "Bob Builder", "cyd"]
    (score,) = table(made / "scores.csv")
    assert (score["login"], score["task"], float(score["auto_score"])) == ("ada", "second-test-squares", 1)


def test_the_csv_of_nbgraders_students_is_a_roster(tmp_path):
    path = tmp_path / "students.csv"
    path.write_text("id,last_name,first_name,email\nada,Lovelace,Ada,ada@example.org\n")
    (one,) = read_roster(path).people
    assert one.name == "Ada Lovelace" and one.email == "ada@example.org"


def no_course(course):
    return course / "submitted", "is no assignment of nbgrader's: give its folder, such as course/source/ps1"


def another_language(course):
    path = course / "source" / "ps1" / "first.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata["kernelspec"] = {"name": "ir", "display_name": "R", "language": "R"}
    nbformat.write(notebook, path)
    return course / "source" / "ps1", "ps1: its language is R; only Python is graded here"


def broken_source(course):
    (course / "source" / "ps1" / "second.ipynb").write_text("{")
    return course / "source" / "ps1", "second.ipynb can't be read as a notebook of format 4"


def no_gradebook(course):
    (course / "gradebook.db").write_text("name\nada\n")
    return course / "source" / "ps1", "gradebook.db is no gradebook of nbgrader's"


@pytest.mark.parametrize("spoil", [no_course, another_language, broken_source, no_gradebook])
def test_what_cannot_be_converted_is_listed(course, tmp_path, txgrade, spoil):
    source, problem = spoil(course)
    status, _, err = txgrade("collect", "nbgrader", source, "--to", tmp_path / "inbox")
    assert status == 2 and problem in err and "Traceback" not in err and not (tmp_path / "inbox").exists()


@pytest.mark.parametrize("text", ["{", '{"cells": 5}', '{"cells": [{"metadata": 3}]}', "[" * 5000])
def test_a_broken_submission_is_left_out_and_the_others_collected(course, tmp_path, txgrade, text):
    (course / "submitted" / "bob" / "ps1" / "first.ipynb").write_text(text)
    status, said, err = txgrade("collect", "nbgrader", course / "source" / "ps1", "--to", tmp_path / "inbox")
    assert status == 0 and "1 notebook of" in said and "left out: bob/ps1: one of its notebooks is broken" in err
