"""Finding and reading what learners hand in: every broken file has its status, and an honest answer stays as it is."""

import base64
import copy
import hashlib
import json
import os
import socket
import tempfile
import time
import unicodedata
import zlib
from pathlib import Path

import nbformat
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from txgrade.authoring.read import read_assignment
from txgrade.records.people import safe_name
from txgrade.submitting.finding import SubmissionFile, find_submissions
from txgrade.submitting.notebook import MAX_BYTES, STATUSES, read_file
from txgrade.submitting.reading import read_submission

ANSWERS = {
    "causal-mask": "def causal_mask(n):\n    return torch.ones(n, n).tril().bool()",
    "attention": "def attention(q, k, v, mask):\n    return v      # λ, 注意, \u2028 and a tab\t",
}
TASKS = list(ANSWERS)


@pytest.fixture(scope="module")
def assignment(course):
    return read_assignment(course.source)


@pytest.fixture(scope="module")
def filled(course):
    """The released notebook with both answers filled in, as JSON data."""
    notebook = nbformat.read(course.exercise, as_version=4)
    for cell in notebook.cells:
        cell.source = ANSWERS.get(cell.id, cell.source)
    return json.loads(json.dumps(notebook))


@pytest.fixture
def edited(filled):
    """A copy to be changed, and its cells by id."""
    notebook = copy.deepcopy(filled)
    return notebook, {cell["id"]: cell for cell in notebook["cells"]}


@pytest.fixture
def read(assignment, tmp_path):
    """Read bytes, text or JSON data as a submission."""

    def read(content):
        path = tmp_path / "ada.ipynb"
        if not isinstance(content, bytes):
            content = (content if isinstance(content, str) else json.dumps(content)).encode()
        path.write_bytes(content)
        return read_submission(SubmissionFile("ada", path), assignment)

    return read


def kinds(submission, review=True):
    return [note.kind for note in submission.notes if note.review == review]


# What is in a file


def test_an_honest_submission(read, filled):
    text = json.dumps(filled)
    submission = read(text)
    assert (submission.name, submission.status, submission.notes) == ("ada", "graded", ())
    assert submission.answers == ANSWERS
    assert submission.hash == hashlib.sha256(text.encode()).hexdigest()
    assert submission.submitted is None, "a file's own time says when somebody copied it"


def test_what_may_be_edited_and_deleted_is_no_matter(read, edited):
    notebook, cells = edited
    for cell in cells.values():
        assert cell["metadata"].pop("deletable", None) is not None or cell["cell_type"] == "code"
        cell["metadata"] = {key: value for key, value in cell["metadata"].items() if key not in ("editable", "txgrade")}
    submission = read(notebook)
    assert (submission.status, submission.answers, submission.notes) == ("graded", ANSWERS, ())


def test_the_executed_release_with_its_stubs_is_nothing_unusual(read, course):
    submission = read(course.exercise.read_bytes())
    assert (submission.status, submission.notes) == ("graded", ())
    assert all("your turn" in source for source in submission.answers.values())


BROKEN = {
    "empty": [b"", b" \n\t "],
    "not text": [
        "{}".encode("utf-16"),
        "{}".encode("utf-32"),
        b'{"cells": ["\xe9"]}',
        b"\xff\xd8\xff\xe0 a picture",
        b"PK\x03\x04\xff",
    ],
    "truncated": [b"{", b'{"cells": [{"cell_type": "co', b'{"cells": [], "metadata": {}, "nbformat": 4,'],
    "not json": [
        b"print('hello')",
        b"<html></html>",
        b"{'cells': []}",
        b'{"cells": []} {}',
        b"\x00" * 100,
        b'{"cells": [], }',
    ],
    "not a notebook": [
        b"[]",
        b"1",
        b'"text"',
        b"null",
        b"NaN",
        b"{}",
        b'{"cells": {}}',
        b'{"cells": null}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"worksheets": [], "nbformat": "three"}',
        b'{"worksheets": [1], "nbformat": 3}',
        b'{"worksheets": [{"cells": 1}], "nbformat": 3}',
    ],
    "no cells": [b'{"cells": []}', b'{"cells": [null, 3, "code", []]}'],
    "no answers": [
        b'{"cells": [{}]}',
        b'{"cells": [{"cell_type": "code", "source": "1"}]}',
        b'{"cells": [{"id": ["causal-mask"], "metadata": {"nbgrader": {"grade_id": {}}}}]}',
        b'{"cells": [{"metadata": {"nbgrader": []}}, {"metadata": 1}]}',
    ],
    "other language": [
        b'{"cells": [{}], "metadata": {"kernelspec": {"name": "ir", "language": "R"}}}',
        b'{"cells": [{}], "metadata": {"language_info": {"name": "julia"}, "kernelspec": 3}}',
    ],
}


@pytest.mark.parametrize(
    ("status", "content"),
    [(status, each) for status, all in BROKEN.items() for each in all],
    ids=lambda value: value if isinstance(value, str) else repr(value[:24]),
)
def test_broken_files(read, status, content):
    submission = read(content)
    assert (submission.status, submission.answers) == (status, {})
    assert submission.hash == hashlib.sha256(content).hexdigest()
    assert STATUSES[status].endswith(".")


def test_a_large_file_is_not_even_read(read, assignment, tmp_path):
    path = tmp_path / "bob.ipynb"
    with path.open("wb") as file:
        file.truncate(50 * 2**20)
    start = time.process_time()
    assert read_submission(SubmissionFile("bob", path), assignment).status == "too large"
    assert time.process_time() - start < 0.05
    assert read(b"[" + b" " * (MAX_BYTES - 2) + b"]").status == "not a notebook"
    assert read(b"[" + b" " * (MAX_BYTES - 1) + b"]").status == "too large"


def test_a_byte_order_mark_is_no_matter(read, filled):
    assert read(b"\xef\xbb\xbf" + json.dumps(filled).encode()).answers == ANSWERS


@pytest.mark.parametrize(
    "value", ["1" * 5000, "-" + "9" * 100_000, "NaN", "-Infinity", "1e99999", '"\\ud800"', "[" * 300 + "]" * 300]
)
def test_strange_values_elsewhere_are_no_matter(read, filled, value):
    text = json.dumps(filled | {"metadata": {"strange": "VALUE"}, "nbformat_minor": "VALUE"}).replace('"VALUE"', value)
    assert read(text).answers == ANSWERS


def test_of_two_keys_the_last_counts(read, filled):
    text = json.dumps(filled)
    assert read('{"cells": [], ' + text[1:]).answers == ANSWERS
    assert read(text[:-1] + ', "cells": []}').status == "no cells"


@pytest.mark.parametrize(
    "change",
    [
        {"nbformat": 5},
        {"nbformat": "4"},
        {"nbformat": None},
        {"nbformat_minor": None},
        {"nbformat_minor": 99},
        {"metadata": None},
        {"metadata": []},
        {"metadata": {"kernelspec": []}},
        {"metadata": {"language_info": 3}},
        {"metadata": {"kernelspec": {"language": 3}}},
        {"metadata": {"kernelspec": {"language": "Python3"}}},
        {"metadata": {"language_info": {"name": "ipython"}}},
        {"worksheets": {}},
    ],
)
def test_formats_of_other_versions(read, filled, change):
    assert read(filled | change).answers == ANSWERS


@pytest.mark.parametrize("key", ["nbformat", "nbformat_minor", "metadata"])
def test_formats_with_missing_parts(read, edited, key):
    notebook, _ = edited
    del notebook[key]
    assert read(notebook).answers == ANSWERS


def test_format_3_is_lifted(read, assignment):
    cells = [{"cell_type": "heading", "level": 1, "source": "Old", "metadata": {}}]
    cells += [
        {
            "cell_type": "code",
            "language": "python",
            "input": source,
            "outputs": [],
            "collapsed": False,
            "prompt_number": 3,
            "metadata": {"nbgrader": {"grade_id": id, "solution": True}},
        }
        for id, source in ANSWERS.items()
    ]
    old = {
        "nbformat": 3,
        "nbformat_minor": 0,
        "metadata": {"name": ""},
        "worksheets": [{"cells": cells, "metadata": {}}],
    }
    submission = read(old)
    assert submission.status == "graded" and submission.answers == ANSWERS


def test_lone_surrogates_can_be_written_down(read, edited):
    notebook, cells = edited
    cells["attention"]["source"] = "x = '\ud800'"
    cells["causal-mask"]["cell_type"] = "\ud800" + "\x1b[2J" * 9
    submission = read(notebook)
    assert submission.answers["attention"] == "x = '?'"
    json.dumps([note.text for note in submission.notes], ensure_ascii=False).encode()
    assert "\x1b" not in str(submission.notes)


# What was done to the cells


def test_a_source_may_be_a_list_of_lines(read, edited):
    notebook, cells = edited
    for cell in cells.values():
        cell["source"] = cell["source"].splitlines(keepends=True)
    submission = read(notebook)
    assert submission.answers == ANSWERS and submission.notes == ()


@pytest.mark.parametrize("source", [None, 3, {}, [1, None, []], True])
def test_a_cell_without_text_is_an_empty_answer(read, edited, source):
    notebook, cells = edited
    cells["attention"]["source"] = source
    assert read(notebook).answers == ANSWERS | {"attention": ""}
    del cells["attention"]["source"]
    assert read(notebook).answers == ANSWERS | {"attention": ""}


def test_ids_are_not_needed(read, edited):
    notebook, cells = edited
    for cell in cells.values():
        del cell["id"]
    submission = read(notebook)
    assert submission.answers == ANSWERS and submission.notes == ()
    for cell in cells.values():
        cell["id"] = "same"
    assert read(notebook).answers == ANSWERS


@pytest.mark.parametrize("metadata", [None, [], {}, {"nbgrader": None}, {"nbgrader": {"grade_id": 3}}])
def test_lost_metadata(read, edited, metadata):
    notebook, cells = edited
    cells["attention"]["metadata"] = metadata
    submission = read(notebook)
    assert submission.answers == ANSWERS
    assert [(note.kind, note.task) for note in submission.notes] == [("retagged", "attention")]


def test_a_missing_answer(read, edited):
    notebook, cells = edited
    notebook["cells"].remove(cells["attention"])
    submission = read(notebook)
    assert submission.answers == {"causal-mask": ANSWERS["causal-mask"]}
    assert [(note.kind, note.task) for note in submission.notes] == [("missing", "attention")]


def test_of_two_the_first_counts(read, edited):
    notebook, cells = edited
    for number in range(30):
        notebook["cells"].append(cells["attention"] | {"source": f"other {number}", "id": f"copy-{number}"})
    submission = read(notebook)
    assert submission.answers == ANSWERS
    assert [(note.kind, note.task) for note in submission.notes] == [("duplicated", "attention")]


def test_a_copy_without_metadata_is_not_taken_for_the_answer(read, edited):
    notebook, cells = edited
    notebook["cells"].insert(0, {"cell_type": "code", "id": "attention", "metadata": {}, "source": "nonsense = 1"})
    assert read(notebook).answers == ANSWERS


def test_another_order(read, edited):
    notebook, cells = edited
    places = [notebook["cells"].index(cells[id]) for id in TASKS]
    for place, id in zip(places, reversed(TASKS), strict=True):
        notebook["cells"][place] = cells[id]
    submission = read(notebook)
    assert submission.answers == ANSWERS and kinds(submission) == ["moved"]


@pytest.mark.parametrize("kind", ["markdown", "raw", "", None, 3, ["code"]])
def test_another_type_of_cell(read, edited, kind):
    notebook, cells = edited
    cells["causal-mask"]["cell_type"] = kind
    submission = read(notebook)
    assert submission.answers == ANSWERS and kinds(submission) == ["retagged"]


def test_an_edited_and_a_deleted_check(read, edited):
    notebook, cells = edited
    cells["check-attention"]["source"] = "print('all right')"
    notebook["cells"].remove(cells["check-causal-mask"])
    submission = read(notebook)
    assert submission.answers == ANSWERS
    assert [(note.kind, note.task) for note in submission.notes] == [
        ("changed check", "attention"),
        ("changed check", "causal-mask"),
    ]


def test_blanks_and_line_ends_are_no_change(read, edited):
    notebook, cells = edited
    for id in ("check-attention", "check-causal-mask"):
        cells[id]["source"] = cells[id]["source"].replace("\n", "  \r\n") + "\n\n"
    assert read(notebook).notes == ()


def test_helper_cells_and_changed_cells(read, edited):
    notebook, cells = edited
    imports = next(cell for cell in notebook["cells"] if cell["source"].startswith("import torch"))
    imports["source"] += "\nimport math"
    for source, kind in (
        ("def helper(): pass", "code"),
        ("2 + 2", "code"),
        ("My notes", "markdown"),
        ("", "code"),
        ("# only a comment", "code"),
        ("%submit --to inbox", "code"),
    ):
        notebook["cells"].insert(3, {"cell_type": kind, "id": source[:5], "metadata": {}, "source": source})
    submission = read(notebook)
    assert submission.answers == ANSWERS
    assert kinds(submission) == ["changed cell"] and kinds(submission, review=False) == ["extra code"]
    assert "2 code cells" in str(submission.notes)


@pytest.mark.parametrize(
    ("own", "missed"),
    [
        ("def helper(v):\n    return v", "`helper`"),
        ("import math as helper", "`helper`"),
        ("helper = 3", "`helper`"),
        ("from operator import mul as helper", "`helper`"),
        ("def other(): pass", ""),
        ("import torch", ""),
        ("def causal_mask(n): return helper", ""),
        ("def (", ""),
        ("v = mask = 1\nhelper(v)", ""),
        ("x = '\0'", ""),
    ],
)
def test_a_helper_outside_the_answers_is_looked_at(read, edited, own, missed):
    """The cell isn't run; whoever wonders why an answer fails should know. Trying things out is nobody's business."""
    notebook, cells = edited
    cells["attention"]["source"] = (
        "def attention(q, k, v, mask):\n    import warnings\n    return causal_mask(3) + helper(torch.exp(v))"
    )
    notebook["cells"].insert(4, {"cell_type": "code", "metadata": {}, "source": own})
    (note,) = read(notebook).notes
    assert note.kind == "extra code" and note.review == bool(missed) and missed in note.text


def test_an_executed_solution_needs_no_look_for_its_known_mistakes(read, course):
    """An author who tries the grader on the solution; its hidden tests are what learners should not have."""
    submission = read(course.solution.read_bytes())
    assert submission.status == "graded"
    assert kinds(submission) == ["changed check"] and kinds(submission, review=False) == ["extra code"]


def test_an_answer_that_is_too_long(read, edited):
    notebook, cells = edited
    cells["attention"]["source"] = "x" * 200_001
    submission = read(notebook)
    assert submission.answers == {"causal-mask": ANSWERS["causal-mask"]} and kinds(submission) == ["too long"]


def test_another_exercise_is_named(read, edited):
    notebook, cells = edited
    for id in TASKS:
        cells[id]["metadata"]["nbgrader"]["grade_id"] = cells[id]["id"] = f"other-{id}"
    cells["cell-1"]["source"] = "# Exercise 09 · Beams\n\nText"
    submission = read(notebook)
    assert submission.status == "other exercise"
    assert "Exercise 09 · Beams" in submission.notes[0].text

    heads = Path("exercises/exercise_04_heads.ipynb").read_text(encoding="utf-8")
    block = read_assignment("solutions/06_block.py")
    path = Path(os.environ["TXGRADE_HOME"]).with_name("heads.ipynb")
    path.write_text(heads.replace("unfuse", block.tasks[0].id), encoding="utf-8")
    submission = read_submission(SubmissionFile("eve", path), block)  # both have a task of that name
    assert submission.status == "other exercise" and "Heads" in submission.notes[0].text.title()


@pytest.mark.slow
def test_a_notebook_of_many_cells_is_read_soon(read, filled):
    own = {"cell_type": "code", "source": "x", "metadata": {}, "id": "cell-3"}
    many = json.dumps(filled | {"cells": [own] * 40_000 + filled["cells"]})
    start = time.process_time()
    submission = read(many)
    assert time.process_time() - start < 8  # 1 s; 100 times as much if it grew with the square
    assert submission.answers == ANSWERS and len(submission.notes) < 10


def test_wherever_a_notebook_breaks_off(read, course):
    """A full disk, a lost connection: also within a character of several bytes, a word, or after a bracket."""
    whole = course.exercise.read_text(encoding="utf-8").replace("Exercise", "演習 é true", 1).strip().encode()
    assert read(whole).status == "graded"
    ends = [*range(1, 200), *range(200, len(whole) - 100, 197), *range(len(whole) - 100, len(whole))]
    assert {read(whole[:end]).status for end in ends} == {"truncated"}
    assert read(whole + b"x").status == read(whole.replace(b'"cells"', b"cells")).status == "not json"


# Names and folders


@pytest.mark.parametrize(
    ("given", "safe"),
    [
        ("ada", "ada"),
        ("Ada Lovelace", "Ada Lovelace"),
        ("Łukasz Żółć", "Łukasz Żółć"),
        ("王小明", "王小明"),
        ("محمد", "محمد"),
        ("ประยุทธ์", "ประยุทธ์"),
        ("e\u0301", "é"),
        ("..", "_"),
        (".", "_"),
        ("", "_"),
        ("a/b\\c", "a_b_c"),
        ("a\nb\x00\x1b[31m", "a_b__[31m"),
        ("a\u202egnp.exe", "a_gnp.exe"),
        ("\udcff", "_"),
        ("<b>", "_b_"),
        ("a" * 300, "a" * 100),
        ("ü" * 60, "ü" * 50),
        ("あ" * 60, "あ" * 33),
        (" . ", "_"),
    ],
)
def test_names(given, safe):
    assert safe_name(given) == safe


@given(st.text(max_size=300))
def test_any_name_is_safe(name):
    safe = safe_name(name)
    assert 0 < len(safe.encode()) <= 100
    assert not set(safe) & set("/\\\0\n\r") and safe not in (".", "..") and not safe.startswith(".")
    assert all(unicodedata.category(each)[0] != "C" for each in safe)
    assert safe_name(safe) == safe


def test_names_are_unique_whatever_the_capitals(tmp_path):
    names = ["Ada", "ada", "ADA", "ada-2", "x" * 200, "x" * 150, "stra\u00dfe", "STRASSE"]
    for name in names:
        (tmp_path / f"{name}.ipynb").write_text("{}")
    (tmp_path / "Ada").mkdir()
    found = [each.name for each in find_submissions(tmp_path)]
    assert len({name.casefold() for name in found}) == len(names) + 1
    assert all(len(name.encode()) <= 100 for name in found)


def test_a_folder(tmp_path, assignment, filled):
    text = json.dumps(filled)

    def put(path, content=text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)

    put("ada.ipynb")
    put("bob/notebook.ipynb")
    put("bob/.ipynb_checkpoints/notebook-checkpoint.ipynb")
    put("bob/.versions/03_sample-2026-01-01T000000Z-00000000.ipynb")
    put("bob/notebook.receipt.json")
    put("bob/data.csv")
    put("cy/03_sample.ipynb")
    put("cy/04_other.ipynb", "{}")
    put("dan/one.ipynb")
    put("dan/two.ipynb")
    put("eve/notes.txt")
    put("fay/inner/deeper.ipynb")
    put("gus.IPYNB")
    put(".ipynb_checkpoints/ada-checkpoint.ipynb")
    put(".hidden.ipynb")
    put("ada.receipt.json")
    put("grades.csv")
    (tmp_path / "hal.ipynb").mkdir()
    (tmp_path / "ivy" / "folder.ipynb").mkdir(parents=True)
    put("ivy/real.ipynb")
    statuses = {
        found.name: read_submission(found, assignment).status for found in find_submissions(tmp_path, "03_sample")
    }
    assert statuses == {
        "ada": "graded",
        "bob": "graded",
        "cy": "graded",
        "dan": "several notebooks",
        "eve": "no notebook",
        "fay": "no notebook",
        "gus": "graded",
        "hal.ipynb": "no notebook",
        "ivy": "graded",
    }


def test_what_was_handed_in_as_another_exercise_never_counts(tmp_path):
    def named(assignment):
        (found,) = find_submissions(tmp_path, assignment)
        return found.problem or found.path.name

    (tmp_path / "ada").mkdir()
    for name in ("03_sample", "05_other"):
        (tmp_path / "ada" / f"{name}.ipynb").write_text("{}")
        (tmp_path / "ada" / f"{name}.receipt.json").write_text("{}")
    assert [named(name) for name in ("03_sample", "05_other", "04_none")] == [
        "03_sample.ipynb",
        "05_other.ipynb",
        "no notebook",
    ]
    (tmp_path / "ada" / "by hand.ipynb").write_text("{}")
    assert [named(name) for name in ("03_sample", "04_none")] == ["03_sample.ipynb", "by hand.ipynb"]


def test_links_are_not_followed(tmp_path, assignment, filled):
    secret = tmp_path / "solution.ipynb"
    secret.write_text(json.dumps(filled))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "solution.ipynb").write_text(json.dumps(filled))
    inbox = tmp_path / "inbox"
    (inbox / "bob").mkdir(parents=True)
    (inbox / "ada.ipynb").symlink_to(secret)
    (inbox / "bob" / "x.ipynb").symlink_to(secret)
    (inbox / "cy").symlink_to(outside)
    (inbox / "dan.ipynb").symlink_to(tmp_path / "nowhere")
    (inbox / "eve.ipynb").symlink_to(inbox / "eve.ipynb")
    found = find_submissions(inbox)
    assert [each.name for each in found] == ["ada", "bob", "cy", "dan", "eve"]
    assert {read_submission(each, assignment).status for each in found} == {"link"}


def test_links_made_after_the_folder_was_searched(tmp_path, assignment, filled):
    outside, inbox = tmp_path / "outside", tmp_path / "inbox"
    for folder in (outside, inbox / "ada"):
        folder.mkdir(parents=True)
        (folder / "x.ipynb").write_text(json.dumps(filled))
    (inbox / "bob.ipynb").write_text(json.dumps(filled))
    linked = tmp_path / "linked"
    linked.symlink_to(inbox)
    ada, bob = find_submissions(linked)  # the folder itself may be a link: the instructor chose it
    assert read_submission(ada, assignment).status == read_submission(bob, assignment).status == "graded"
    (inbox / "ada").rename(tmp_path / "away")
    (inbox / "ada").symlink_to(outside)
    (inbox / "bob.ipynb").unlink()
    (inbox / "bob.ipynb").symlink_to(outside / "x.ipynb")
    assert [read_submission(each, assignment).status for each in (ada, bob)] == ["link", "link"]


def test_things_that_are_no_files(tmp_path, assignment):
    os.mkfifo(tmp_path / "pipe.ipynb")
    (tmp_path / "cy").mkdir()
    os.mkfifo(tmp_path / "cy" / "03_sample.ipynb")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s.ipynb"))
        found = find_submissions(tmp_path)
        assert [each.name for each in found] == ["cy", "pipe", "s"]
        assert {read_submission(each, assignment).status for each in found} == {"unreadable"}
    assert read_submission(SubmissionFile("zero", Path("/dev/zero")), assignment).status == "unreadable"
    assert read_submission(SubmissionFile("gone", tmp_path / "gone.ipynb"), assignment).status == "unreadable"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read(tmp_path, assignment):
    (tmp_path / "ada.ipynb").write_text("{}")
    (tmp_path / "ada.ipynb").chmod(0)
    (tmp_path / "bob").mkdir(mode=0)
    assert {read_submission(each, assignment).status for each in find_submissions(tmp_path)} == {"unreadable"}


# When it was handed in


def test_a_receipt_says_when(tmp_path, assignment, filled):
    text = json.dumps(filled)
    digest = hashlib.sha256(text.encode()).hexdigest()
    path = tmp_path / "ada.ipynb"
    receipt = tmp_path / "ada.receipt.json"
    path.write_text(text)
    os.utime(path, (1_000_000_000, 1_000_000_000))

    def submitted():
        return read_submission(SubmissionFile("ada", path), assignment).submitted

    assert submitted() is None, "a file's own time says when somebody copied it"
    receipt.write_text(json.dumps({"sha256": digest, "submitted": "2026-11-21T13:00:00+01:00"}))
    assert submitted() == "2026-11-21T12:00:00+00:00"
    for content in (
        "",
        "{",
        "[]",
        "3",
        '{"sha256": 3}',
        "[" * 9000,
        "\ud800".encode("utf-8", "replace").decode(),
        json.dumps({"sha256": "0" * 64, "submitted": "2026-11-21T13:00:00+01:00"}),
        json.dumps({"sha256": digest, "submitted": "2026-11-21T13:00:00"}),
        json.dumps({"sha256": digest, "submitted": 3}),
        json.dumps({"sha256": digest, "submitted": "0001-01-01T00:00:00+14:00"}),
        json.dumps({"sha256": digest, "submitted": "2026-11-21T13:00:00+01:00"}) + " " * 20_000,
    ):
        receipt.write_text(content)
        assert submitted() is None, content[:100]
    receipt.unlink()
    os.mkfifo(receipt)
    assert submitted() is None


@pytest.mark.parametrize(
    ("seconds", "said"), [(-(10**9), "1970-01-01T00:00:00+00:00"), (10**12, "9999-12-31T00:00:00+00:00")]
)
def test_dates_that_no_calendar_has(filled, tmp_path, seconds, said):
    memory = Path("/dev/shm")  # a file system in memory keeps any date
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        path = Path(folder, "ada.ipynb")
        path.write_text(json.dumps(filled))
        os.utime(path, (seconds, seconds))
        if path.stat().st_mtime != seconds:
            pytest.skip("this file system keeps no such date")
        assert read_file(path)[1] == said


# Anything at all

HUGE = "an integer of 5000 digits"  # Python neither writes nor reads one; see `text_of`
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.just([]),
    st.just({}),
    st.sampled_from(["\ud800", "A" * 100_000, 10**400, HUGE, ["a", ["b"]], {"nbgrader": {"grade_id": "attention"}}]),
)


def places(data, path=()):
    """The path of every value in JSON data."""
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def text_of(notebook):
    return json.dumps(notebook).replace(json.dumps(HUGE), "7" * 5000)


def mutate(notebook, draw):
    """One random change."""
    cells = notebook.get("cells")
    kind = draw(st.sampled_from(["delete", "duplicate", "move", "retag", "value", "drop", "insert"]))
    if kind in ("value", "drop") or not isinstance(cells, list) or not cells:
        paths = [each for each in places(notebook) if each]
        of_cells = [each for each in paths if each[0] == "cells" and len(each) == 3]  # an id, a source …
        path = draw(st.sampled_from(of_cells if of_cells and draw(st.booleans()) else paths))
        target = notebook
        for key in path[:-1]:
            target = target[key]
        if kind == "drop":
            del target[path[-1]]
        else:
            target[path[-1]] = draw(LEAVES)
        return
    number = draw(st.integers(0, len(cells) - 1))
    if kind == "delete":
        del cells[number]
    elif kind == "duplicate":
        twin = copy.deepcopy(cells[number])
        if isinstance(twin, dict) and draw(st.booleans()):
            twin["source"] = "other"
        cells.insert(draw(st.integers(0, len(cells))), twin)
    elif kind == "move":
        cells.insert(draw(st.integers(0, len(cells) - 1)), cells.pop(number))
    elif kind == "retag" and isinstance(cells[number], dict):
        cells[number]["cell_type"] = draw(st.sampled_from(["code", "markdown", "raw", "heading", "\ud800"]))
    else:
        cells.insert(number, draw(LEAVES))


def surviving(notebook):
    """An oracle: answers that stand, untouched, in the first cell that has their grade_id."""
    found, seen = {}, set()
    for cell in notebook["cells"] if isinstance(notebook.get("cells"), list) else ():
        try:
            id, source = cell["metadata"]["nbgrader"]["grade_id"], cell["source"]
        except (TypeError, KeyError, IndexError):
            continue
        if not isinstance(id, str) or id in seen:
            continue
        seen.add(id)
        if id in ANSWERS and source == ANSWERS[id]:
            found[id] = source
    return found


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
@pytest.mark.slow
def test_random_changes_never_raise_and_leave_untouched_answers_alone(read, filled, data):
    notebook = copy.deepcopy(filled)
    notebook.update({"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": {"language": "python"}}})
    for _ in range(data.draw(st.integers(1, 8))):
        mutate(notebook, data.draw)
    submission = read(text_of(notebook))
    assert submission.status in STATUSES or submission.status == "graded"
    json.dumps([submission.answers, [vars(note) for note in submission.notes]], ensure_ascii=False).encode()
    metadata = notebook.get("metadata")
    assume(metadata == {"kernelspec": {"language": "python"}} and "worksheets" not in notebook)
    for id, source in surviving(notebook).items():
        assert submission.answers[id] == source, submission.status


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_bytes_never_raise(read, filled, data):
    text = bytearray(json.dumps(filled).encode())
    if data.draw(st.booleans()):
        del text[data.draw(st.integers(0, len(text))) :]
    for _ in range(data.draw(st.integers(0, 20))):
        if text:
            text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    submission = read(bytes(text))
    assert submission.status in STATUSES or submission.status == "graded"
    json.dumps([submission.answers, [vars(note) for note in submission.notes]], ensure_ascii=False).encode()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.recursive(
        LEAVES,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "cells",
                        "metadata",
                        "nbgrader",
                        "grade_id",
                        "id",
                        "source",
                        "cell_type",
                        "worksheets",
                        "nbformat",
                        "kernelspec",
                        "language",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=30,
    )
)
def test_random_json_never_raises(read, value):
    assert read(text_of(value)).status in STATUSES


def test_a_packed_bomb_is_not_unpacked(read, edited):
    """Recordings in a submission are read by nobody."""
    notebook, _ = edited
    bomb = base64.b64encode(zlib.compress(b"\0" * 2**28)).decode()
    notebook["cells"][1]["source"] = f'check.load("""\n{bomb}\n""")'
    start = time.process_time()
    assert read(notebook).answers == ANSWERS
    assert time.process_time() - start < 0.5
