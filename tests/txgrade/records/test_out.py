"""The results folder: apart from what is graded, and never written into through a link."""

import os
from pathlib import Path

import pytest
from sample_results import ADA, ASSIGNMENT

from txgrade.pages.feedback import feedback_page, is_page_of
from txgrade.records.out import allow, need_apart, need_no_links, open_out, write
from txgrade.running.grader import grade, write_submission


@pytest.fixture
def inbox(tmp_path):
    folder = tmp_path / "inbox"
    folder.mkdir()
    (folder / "ada.ipynb").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("inbox", "is the folder of submissions"),
        ("inbox/", "is the folder of submissions"),
        ("inbox/../inbox", "is the folder of submissions"),
        ("link", "is the folder of submissions"),
        ("inbox/results", "is inside the folder of submissions"),
        ("inbox/new/results", "is inside the folder of submissions"),
        ("link/results", "is inside the folder of submissions"),
        (".", "holds the folder of submissions"),
        ("solutions", "is the assignment's folder"),
        ("inbox/ada.ipynb", "is a file: give a folder"),
        ("inbox/ada.ipynb/results", "can't be made|is inside the folder"),
        ("loop", r"can't be made \(File exists\)"),
        ("file/results", r"can't be made \(Not a directory\)"),
    ],
)
def test_where_results_may_not_lie(course, inbox, tmp_path, monkeypatch, where, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(inbox)
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "solutions").symlink_to(course.source.parent)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=words) as reason:
        grade(course.source, inbox, where)
    assert "\n" not in str(reason.value) and where.rstrip("/") in str(reason.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_where_they_may(course, inbox, tmp_path):
    for out in (tmp_path / "results", tmp_path / "new" / "results", course.source.parent / "results"):
        need_apart(out, inbox, course.source)
    open_out(tmp_path / "new" / "results")
    assert (tmp_path / "new" / "results").stat().st_mode & 0o777 == 0o700


def test_where_we_may_not_write(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(ValueError, match="you may not write in --out .*: choose another folder"):
        open_out(tmp_path)
    with pytest.raises(ValueError, match=r"--out /proc/results can't be made .*: choose another folder"):
        open_out(Path("/proc/results"))


LINKS = [
    "feedback",
    "junit",
    "gradescope.csv",
    "grades.csv",
    "review.csv",
    "summary.html",
    "canvas-left-out.csv",
    "gradebook.sqlite",
    "gradebook.sqlite.lock",
    "gradebook.sqlite-journal",
    "feedback/ada.html",
    "junit/ada.xml",
    "canvas-feedback.zip",
]


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("target", ["folder", "file", "nowhere"])
def test_a_link_is_never_followed(course, inbox, tmp_path, name, target):
    out, elsewhere = tmp_path / "results", tmp_path / target
    if target == "folder":
        elsewhere.mkdir(mode=0o751)
        (elsewhere / ".thesis.tmp").write_text("mine")
    elif target == "file":
        elsewhere.write_text("mine")
        elsewhere.chmod(0o644)
    (out / name).parent.mkdir(parents=True)
    (out / name).symlink_to(elsewhere)
    with pytest.raises(ValueError, match=f"results/{name} is a link, so nothing is written there: remove it") as reason:
        grade(course.source, inbox, out)
    assert "\n" not in str(reason.value)
    if target == "folder":
        assert [path.read_text() for path in elsewhere.iterdir()] == ["mine"]
        assert elsewhere.stat().st_mode & 0o777 == 0o751
    elif target == "file":
        assert (elsewhere.read_text(), elsewhere.stat().st_mode & 0o777) == ("mine", 0o644)
    else:
        assert not elsewhere.exists()


@pytest.mark.parametrize("name", ["grades.csv", "gradebook.sqlite", "feedback/Ada.html"])
def test_a_pipe_is_not_waited_for(tmp_path, name):
    (tmp_path / "feedback").mkdir()
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=f"{name} is no plain file"):
        need_no_links(tmp_path)
    assert not is_page_of(tmp_path / name, ADA, ASSIGNMENT)


def test_a_page_that_is_a_link_is_made_anew(tmp_path):
    (tmp_path / "mine.html").write_text(feedback_page(ADA, ASSIGNMENT), encoding="utf-8")
    assert is_page_of(tmp_path / "mine.html", ADA, ASSIGNMENT)
    (tmp_path / "feedback").mkdir()
    page = tmp_path / "feedback" / f"{ADA.submission}.html"
    page.symlink_to(tmp_path / "mine.html")
    (tmp_path / "mine.html").chmod(0o640)
    write_submission(tmp_path, ADA, ASSIGNMENT, "all")
    assert not page.is_symlink() and page.stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "mine.html").stat().st_mode & 0o777 == 0o640


def test_a_file_where_a_folder_belongs(tmp_path):
    (tmp_path / "feedback").touch()
    with pytest.raises(ValueError, match="feedback is no folder"):
        need_no_links(tmp_path)


def test_other_links_are_whose_folder_it_is(tmp_path):
    """The folder itself, and what txlib has nothing to do with."""
    (tmp_path / "real").mkdir()
    (tmp_path / "results").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "roster.csv").symlink_to(tmp_path / "nowhere")
    open_out(tmp_path / "results")
    write(tmp_path / "results", "grades.csv", "submission")
    assert (tmp_path / "real" / "grades.csv").read_text() == "submission"


def test_a_folder_that_becomes_a_link_meanwhile(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o751)
    (elsewhere / "ada.html").write_text("mine")
    (tmp_path / "feedback").symlink_to(elsewhere)
    for call in (
        lambda: write(tmp_path, "feedback/ada.html", "page"),
        lambda: allow(tmp_path, "feedback/ada.html", 0o755),
    ):
        with pytest.raises(OSError):
            call()
    assert (elsewhere / "ada.html").read_text() == "mine" and elsewhere.stat().st_mode & 0o777 == 0o751


def test_too_many_seeds(course, inbox, tmp_path):
    with pytest.raises(ValueError, match="--seeds 101: .* 100 seeds at most"):
        grade(course.source, inbox, tmp_path / "out", seeds=101)
