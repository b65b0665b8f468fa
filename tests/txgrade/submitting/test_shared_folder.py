"""Handing in beside learners who mean harm: three real users in one folder, links, pipes, and other people's names."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import stat
import tempfile
import traceback
from pathlib import Path

import nbformat
import pytest

from txgrade.authoring.read import read_assignment
from txgrade.submitting.finding import find_submissions
from txgrade.submitting.folder import SubmitError
from txgrade.submitting.reading import read_submission
from txgrade.submitting.submit import submit, verify

ANSWER = "def causal_mask(n):\n    return torch.ones(n, n).tril().bool()      # {}"
ADA, MALLORY, BOB, STAFF, TEACHER = 61001, 61002, 61003, 61004, 61005  # users of nobody else, and a group

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


@pytest.fixture(scope="module")
def assignment(course):
    return read_assignment(course.source)


@pytest.fixture
def open_folder():
    """A folder that every user may enter, as pytest's own may not be."""
    folder = Path(tempfile.mkdtemp(prefix="txlib-test-", dir="/tmp"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def inbox(open_folder):
    """As docs/grading.md has it: `chgrp staff inbox; chmod 3773 inbox`."""
    folder = open_folder / "inbox"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, TEACHER, STAFF)
    folder.chmod(0o3773)
    return folder


@pytest.fixture
def answer(course, open_folder):
    """Write the exercise with an answer to its first task, readable by everybody; returns its path."""

    def answer(words="first"):
        path = open_folder / words / "exercise_03_sample.ipynb"
        path.parent.mkdir(exist_ok=True)
        notebook = nbformat.read(course.exercise, as_version=4)
        next(cell for cell in notebook.cells if cell.id == "causal-mask").source = ANSWER.format(words)
        nbformat.write(notebook, path)
        return path

    return answer


@pytest.fixture(autouse=True)
def imported(answer, tmp_path, assignment):
    """Hand in once as whoever runs the tests: other users may not be allowed to read Python's own files."""
    submit(answer("rehearsal"), tmp_path, name="me")
    for found in find_submissions(tmp_path):
        read_submission(found, assignment)


def as_user(uid, call, group=None, seconds=20):
    """What a call returns (JSON), or its error's type and words, in a process of another user."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(group or uid)
            os.setuid(uid)
            signal.alarm(seconds)
            try:
                reply = [call(), None]
            except Exception as error:
                reply = [None, f"{type(error).__name__}: {error}"]
            os.write(write, json.dumps(reply).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        reply = pipe.read()
    _, status = os.waitpid(child, 0)
    assert not os.WIFSIGNALED(status), f"killed by signal {os.WTERMSIG(status)}: it waits for ever"
    return json.loads(reply)


def handed_in(uid, path, to, name):
    """The words of a receipt, or of a refusal."""
    said, error = as_user(uid, lambda: str(submit(path, to, name=name)))
    return said or error


# Three real users


@as_root
def test_the_folder_that_the_docs_describe(answer, inbox, assignment):
    """Learners hand in, twice; staff reads; learners read neither each other's work nor who else is there."""
    for words in ("first", "second"):
        assert handed_in(ADA, answer(words), inbox, "ada").startswith("Handed in: 03_sample, by ada")
        assert handed_in(MALLORY, answer(words), inbox, "mallory").startswith("Handed in: 03_sample, by mallory")
    assert handed_in(ADA, answer("second"), inbox, "ada").startswith("Already handed in")

    def read():
        return {each.name: read_submission(each, assignment).status for each in find_submissions(inbox, "03_sample")}

    assert as_user(TEACHER, read, STAFF) == [{"ada": "graded", "mallory": "graded"}, None]
    paths = [inbox / "ada" / "03_sample.ipynb", *(inbox / "ada" / ".versions").iterdir()]
    for path in paths:
        assert "PermissionError" in as_user(MALLORY, path.read_text)[1]
    assert "PermissionError" in as_user(MALLORY, lambda: os.listdir(inbox))[1]
    assert "PermissionError" in as_user(MALLORY, lambda: (inbox / "ada").rename(inbox / "mine"))[1]


@as_root
def test_the_command_takes_a_folder_that_learners_may_not_list(answer, inbox):
    from txgrade.cli import app

    options = ["submit", str(answer()), "--to", str(inbox), "--name", "ada"]
    assert as_user(ADA, lambda: app(options, standalone_mode=False)) == [None, None]
    assert (inbox / "ada" / "03_sample.ipynb").is_file()


@as_root
def test_a_folder_that_somebody_else_made_is_refused(answer, inbox):
    """Mallory makes Ada's folder before her, open to all, to read and to replace what she hands in."""

    def make():
        (inbox / "ada").mkdir()
        (inbox / "ada").chmod(0o777)

    as_user(MALLORY, make)
    said = handed_in(ADA, answer(), inbox, "ada")
    assert "was made by uid 61002, not by you" in said and "--name" in said
    assert not list((inbox / "ada").iterdir())
    assert handed_in(ADA, answer(), inbox, "ada 2").startswith("Handed in")


@as_root
@pytest.mark.parametrize("mode", [0o700, 0o2750, 0])
def test_a_closed_folder_that_somebody_else_made_is_refused(answer, inbox, mode):
    """Nothing in it can be seen, but whose it is can."""

    def make():
        (inbox / "ada").mkdir()
        (inbox / "ada").chmod(mode)

    as_user(MALLORY, make)
    said = handed_in(ADA, answer(), inbox, "ada")
    assert said.startswith(f"SubmitError: {inbox / 'ada'} was made by uid 61002, not by you: tell your instructor")


@as_root
def test_a_link_says_who_made_it(answer, inbox):
    as_user(MALLORY, lambda: (inbox / "ada").symlink_to("/tmp"))
    assert "is a link, or a file, made by uid 61002" in handed_in(ADA, answer(), inbox, "ada")


@as_root
def test_a_folder_that_others_may_write_in_is_refused(answer, inbox):
    def make():
        (inbox / "ada").mkdir()
        (inbox / "ada").chmod(0o777)

    as_user(ADA, make)
    assert "others may read or write in" in handed_in(ADA, answer(), inbox, "ada")


@as_root
def test_where_only_everybody_could_read_nothing_is_handed_in(answer, open_folder):
    """A shared folder without a group of readers: whoever looks after it reads what all may read, or nothing."""
    shared = open_folder / "shared"
    shared.mkdir()
    os.chown(shared, TEACHER, TEACHER)
    shared.chmod(0o1777)
    said = handed_in(ADA, answer(), shared, "ada")
    assert "could not read what you hand in" in said and "chmod 3773" in said
    os.chown(shared, 0, 0)  # root reads what is Ada's alone
    shared.chmod(0o1777)
    assert handed_in(ADA, answer(), shared, "ada").startswith("Handed in")
    assert "PermissionError" in as_user(MALLORY, (shared / "ada" / "03_sample.ipynb").read_text)[1]


@as_root
def test_handing_in_as_somebody_else_is_seen(answer, inbox, assignment):
    assert "account: uid 61002, which your instructor sees too" in handed_in(MALLORY, answer("mine"), inbox, "ada")
    assert handed_in(MALLORY, answer("mine"), inbox, "mallory").startswith("Handed in")
    assert handed_in(BOB, answer(), inbox, "bob").startswith("Handed in")
    notes = {each.name: each.notes for each in find_submissions(inbox, "03_sample")}
    assert [(note.kind, note.review) for note in notes["ada"]] == [("owner", True)]
    assert "uid 61002" in notes["ada"][0].text


# Links, pipes and devices where files belong; planted by whoever could write there


def planted(inbox, where, make):
    """Ada's folder, with something in the place of one of its files."""
    own = inbox / "ada"
    (own / ".versions").mkdir(parents=True)
    for folder in (own, own / ".versions"):
        folder.chmod(0o2750)
    make(own / where)
    return own


@pytest.mark.parametrize("where", [".lock", "03_sample.ipynb", "03_sample.receipt.json"])
def test_a_link_is_not_followed(answer, inbox, open_folder, where):
    """With a plain `open(path, "w")` a lock that is a link empties the file that it points to."""
    own_file = open_folder / "thesis.tex"
    own_file.write_text("three years of work")
    planted(inbox, where, lambda path: path.symlink_to(own_file))
    with contextlib.suppress(SubmitError):
        submit(answer(), inbox, name="ada")
    assert own_file.read_text() == "three years of work"
    assert where == ".lock" or not (inbox / "ada" / where).is_symlink()


@pytest.mark.parametrize("where", [".lock", "03_sample.ipynb", "03_sample.receipt.json"])
def test_a_pipe_is_not_waited_for(answer, inbox, where):
    planted(inbox, where, os.mkfifo)

    def call():
        return str(submit(answer(), inbox, name="ada"))

    said, error = as_user(os.geteuid(), call, os.getegid()) if os.geteuid() == 0 else [call(), None]
    assert (said and said.startswith("Handed in")) or "not a plain file" in error
    assert where == ".lock" or stat.S_ISREG((inbox / "ada" / where).stat().st_mode)


def test_nothing_is_written_outside(answer, inbox, open_folder):
    elsewhere = open_folder / "elsewhere"
    elsewhere.mkdir()
    for where in ("ada", "bob/.versions"):
        (inbox / where).parent.mkdir(exist_ok=True)
        (inbox / where).symlink_to(elsewhere)
    (inbox / "bob").chmod(0o2750)
    for name in ("ada", "bob"):
        with pytest.raises(SubmitError, match="is a link"):
            submit(answer(), inbox, name=name)
    assert not list(elsewhere.iterdir())


def test_a_folder_that_becomes_a_link_while_it_is_written_to(answer, inbox, open_folder, monkeypatch):
    """Between the check and the writing nobody can lead it elsewhere: it is held open."""
    elsewhere = open_folder / "elsewhere"
    (elsewhere / ".versions").mkdir(parents=True)
    sync = os.fsync

    def swap(handle):
        if not (inbox / "ada").is_symlink():
            (inbox / "ada").rename(inbox / "away")
            (inbox / "ada").symlink_to(elsewhere)
        sync(handle)

    monkeypatch.setattr(os, "fsync", swap)
    submit(answer(), inbox, name="ada")
    assert [path for path in elsewhere.rglob("*") if path.is_file()] == []
    assert (inbox / "away" / "03_sample.ipynb").is_file()


# Receipts


def test_a_forged_receipt_is_believed_by_nobody(answer, inbox):
    """Ada puts another notebook where her first was, and a receipt of an earlier date beside it."""
    receipt = submit(answer("first"), inbox, name="ada")
    own = inbox / "ada"
    forged = json.loads(receipt.path.read_text())
    other = answer("other").read_bytes()
    forged |= {"sha256": hashlib.sha256(other).hexdigest(), "submitted": "2020-01-01T00:00:00+00:00"}
    (own / "03_sample.ipynb").write_bytes(other)
    (own / ".versions" / forged["version"]).write_bytes(other)
    receipt.path.write_text(json.dumps(forged))
    said = verify(receipt.path)
    assert "unchanged" not in said and "counts" not in said
    assert said.startswith("the receipt says") and "aren't signed" in said and "can change it" in said
