"""A whole grading run, as an instructor starts it: `txgrade grade` on a folder."""

import csv
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import lms
import nbformat
import psutil
import pytest

from txgrade.authoring.release import release
from txgrade.records.gradebook import Gradebook
from txgrade.records.people import read_roster
from txgrade.sandbox import probe
from txgrade.submitting.collect import collect

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(probe().level != "sealed", reason=f"no sealed sandbox here: {probe().holes}"),
]

RIGHT = {
    "causal-mask": "def causal_mask(n):\n    return torch.ones(n, n).tril().bool()",
    "attention": "def attention(q, k, v, mask):\n    score = q @ k.T / q.shape[-1] ** 0.5\n"
    "    return score.masked_fill(~mask, -torch.inf).softmax(-1) @ v",
}
INVERTED = RIGHT | {"causal-mask": "def causal_mask(n):\n    return torch.ones(n, n).triu(1).bool()"}


def fill(course, path, answers):
    notebook = nbformat.read(course.exercise, as_version=4)
    for cell in notebook.cells:
        cell.source = answers.get(cell.id, cell.source)
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


@pytest.fixture(scope="module")
def inbox(course, tmp_path_factory):
    """Two good, one with a mistake, one empty, one that ends its kernel, one that isn't a notebook."""
    folder = tmp_path_factory.mktemp("inbox")
    fill(course, folder / "ada.ipynb", RIGHT)
    fill(course, folder / "Žofia Nováková" / "hausaufgabe.ipynb", RIGHT)
    fill(course, folder / "bob.ipynb", INVERTED)
    fill(course, folder / "empty.ipynb", {})
    fill(course, folder / "exit.ipynb", RIGHT | {"causal-mask": "import os; os._exit(0)"})
    (folder / "broken.ipynb").write_text('{"cells": [', encoding="utf-8")
    return folder


def command(course, inbox, out, *more):
    return [
        sys.executable,
        "-m",
        "txgrade",
        "grade",
        "--assignment",
        str(course.source),
        "--submissions",
        str(inbox),
        "--out",
        str(out),
        *more,
    ]


def grade(course, inbox, out, *more):
    run = subprocess.run(command(course, inbox, out, *more), capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return run


def rows(out):
    with open(out / "grades.csv", encoding="utf-8", newline="") as file:
        return {row["submission"]: row for row in csv.DictReader(file)}


def files(out):
    """Every report of a run by name; the gradebook holds times."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and not path.name.startswith("gradebook")
    }


def ledger(out):
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        return {name: len(book.history(name)) for name in rows(out)}


@pytest.fixture(scope="module")
def seeded(course, tmp_path_factory):
    """A results folder in which the seeds are drawn and nothing is graded, so that runs can be compared."""
    out = tmp_path_factory.mktemp("seeded")
    grade(course, tmp_path_factory.mktemp("nobody"), out)
    return out


@pytest.fixture(scope="module")
def graded(course, inbox, seeded, tmp_path_factory):
    out = tmp_path_factory.mktemp("results") / "out"
    shutil.copytree(seeded, out)
    return out, grade(course, inbox, out)


def test_everybody_gets_a_grade(graded):
    out, run = graded
    found = rows(out)
    assert list(next(iter(found.values()))) == [
        "submission",
        "score",
        "max_score",
        "status",
        "isolation",
        "needs_review",
        "seeds",
        "causal-mask",
        "attention",
    ]
    assert {name: row["score"] for name, row in found.items()} == {
        "ada": "5",
        "Žofia Nováková": "5",
        "bob": "0",  # its second task is right, but its check uses the mask
        "empty": "0",
        "exit": "0",
        "broken": "0",
    }
    assert {row["isolation"] for row in found.values()} == {"sealed"}
    assert {name for name, row in found.items() if row["status"] == "graded"} == {
        "ada",
        "Žofia Nováková",
        "bob",
        "empty",
        "exit",
    }
    assert len({row["seeds"] for row in found.values()}) == 1
    assert "6 submissions, 6 graded now; isolation: sealed" in run.stdout
    for name in found:
        assert (out / "feedback" / f"{name}.html").is_file()
    assert (out / "junit" / "ada.xml").read_text(encoding="utf-8").count("<testcase") == 4
    assert "feedback/broken.html" in (out / "summary.html").read_text(encoding="utf-8")


def test_a_learner_is_told_the_mistake(graded):
    page = (graded[0] / "feedback" / "bob.html").read_text(encoding="utf-8")
    assert "mask is inverted" in page or "see the" in page
    assert "position[:, None]" not in page  # the solution


def test_the_same_run_again_grades_nobody(course, inbox, graded):
    out, _ = graded
    before, entries = files(out), ledger(out)
    run = grade(course, inbox, out)
    assert "6 submissions, 0 graded now" in run.stdout
    assert files(out) == before and ledger(out) == entries


def test_after_a_review_only_its_page_is_made_anew(course, inbox, graded, tmp_path, monkeypatch):
    """No sandbox, no reference: what it said is known."""
    from txgrade.running import grader

    out = Path(shutil.copytree(graded[0], tmp_path / "out", copy_function=shutil.copy2))
    pages = {path.name: path.stat().st_mtime_ns for path in (out / "feedback").iterdir()}
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        book.override("bob", "causal-mask", 1, "Half of it stands.")
    monkeypatch.setattr(grader, "make_reference", lambda *given: pytest.fail("the reference ran again"))
    again = grader.grade(course.source, inbox, out)
    assert again.fresh == 0
    (bob,) = (each for each in again.results if each.submission == "bob")
    assert [task.points for task in bob.tasks] == [1, 0]
    changed = {path.name for path in (out / "feedback").iterdir() if path.stat().st_mtime_ns != pages[path.name]}
    assert changed == {"bob.html"}
    assert "Half of it stands." in (out / "feedback" / "bob.html").read_text(encoding="utf-8")


def test_who_handed_in_no_notebook_is_looked_at_once(course, inbox, graded, tmp_path, monkeypatch):
    from txgrade.running import grader

    out, more = (Path(shutil.copytree(each, tmp_path / each.name)) for each in (graded[0], inbox))
    (more / "nothing").mkdir()
    (more / "two").mkdir()
    for name in ("a.ipynb", "b.ipynb"):
        shutil.copy(inbox / "ada.ipynb", more / "two" / name)
    assert grader.grade(course.source, more, out).fresh == 2
    assert (rows(out)["nothing"]["status"], rows(out)["two"]["status"]) == ("no notebook", "several notebooks")
    monkeypatch.setattr(grader, "make_reference", lambda *given: pytest.fail("the reference ran again"))
    assert grader.grade(course.source, more, out).fresh == 0 and ledger(out)["nothing"] == 1
    (more / "two" / "b.ipynb").unlink()
    with pytest.raises(pytest.fail.Exception, match="the reference ran again"):
        grader.grade(course.source, more, out)


def test_a_withdrawn_submission_s_page_goes_and_its_grade_stays(course, inbox, graded, tmp_path):
    from txgrade.running.grader import grade

    out, left = (Path(shutil.copytree(each, tmp_path / each.name)) for each in (graded[0], inbox))
    (left / "bob.ipynb").unlink()
    grade(course.source, left, out)
    assert not (out / "feedback" / "bob.html").exists() and (out / "feedback" / "ada.html").exists()
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        assert book.history("bob")


def test_only_what_changed_is_graded_again(course, inbox, graded, tmp_path):
    out, changed = tmp_path / "out", tmp_path / "inbox"
    shutil.copytree(graded[0], out)
    shutil.copytree(inbox, changed, copy_function=shutil.copy2)
    fill(course, changed / "bob.ipynb", RIGHT)
    assert "6 submissions, 1 graded now" in grade(course, changed, out).stdout
    assert rows(out)["bob"]["score"] == "5"
    assert ledger(out)["bob"] == 2  # the earlier grade is kept
    read = set(rows(graded[0])["bob"]["seeds"].split())
    assert not read & set(rows(out)["bob"]["seeds"].split()), "what bob read on his page must not help him now"
    assert rows(out)["ada"] == rows(graded[0])["ada"]


def test_a_grade_is_repeated_elsewhere(course, inbox, graded, tmp_path):
    seeds = rows(graded[0])["bob"]["seeds"].split()
    grade(course, inbox, tmp_path / "out", "--on-seeds", ",".join(seeds))
    assert files(tmp_path / "out") == files(graded[0])


def test_killed_at_any_moment_it_ends_in_the_same_results(course, inbox, seeded, graded, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(seeded, out)
    moments = random.Random(0)
    for _ in range(3):
        process = subprocess.Popen(command(course, inbox, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(moments.uniform(2, 9))
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(signal.SIGKILL)
        process.wait()
        _, alive = psutil.wait_procs(family, timeout=15)
        assert not alive, [each.cmdline() for each in alive]
    grade(course, inbox, out)
    again, once = files(out), files(graded[0])
    assert again.keys() == once.keys()
    for name in once:
        assert again[name] == once[name], name
    assert set(ledger(out).values()) == {1}  # nobody was graded twice


def test_ctrl_c_says_how_to_go_on(course, inbox, seeded, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(seeded, out)
    process = subprocess.Popen(command(course, inbox, out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list((out / "feedback").glob("*.html")):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 130 and "the same command goes on" in words and "Traceback" not in words


def test_a_failing_reference_stops_before_anybody_gets_0(variant, inbox, tmp_path):
    source = variant(("position[:, None] >= position[None, :]", "position[:, None] >= positions[None, :]"))
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "txgrade",
            "grade",
            "--assignment",
            str(source),
            "--submissions",
            str(inbox),
            "--out",
            str(tmp_path / "out"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 2 and "reference" in run.stderr and "Traceback" not in run.stderr
    assert not (tmp_path / "out" / "grades.csv").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--seeds", "0"], "at least 1 seed"),
        (["--on-seeds", "7,seven"], "different whole numbers"),
        (["--jobs", "0"], "at least 1 process"),
        (["--submissions", "nowhere"], "no folder of submissions at nowhere"),
        (["--assignment", "nothing.py"], "nothing.py"),
        (["--scheduler", "tcp://127.0.0.1:9"], "no scheduler answers"),
    ],
)
def test_wrong_options_are_one_line(course, inbox, tmp_path, options, words):
    run = subprocess.run(
        command(course, inbox, tmp_path / "out", *options), capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 2 and words in run.stderr and "Traceback" not in run.stderr


def modes(out):
    return {str(path.relative_to(out)).partition("/")[0]: path.stat().st_mode & 0o777 for path in out.rglob("*")}


def test_who_may_read_the_results(course, inbox, graded, tmp_path):
    """Whoever grades, alone, whatever the umask; the learners' pages whoever is named."""
    out = tmp_path / "out"
    shutil.copytree(graded[0], out)
    assert {mode & 0o077 for mode in modes(out).values()} == {0}
    before = os.umask(0)
    try:
        grade(course, inbox, tmp_path / "new" / "out", "--on-seeds", rows(out)["bob"]["seeds"].replace(" ", ","))
    finally:
        os.umask(before)
    new = tmp_path / "new" / "out"
    assert {path.stat().st_mode & 0o077 for path in (new, *new.rglob("*"))} == {0}
    grade(course, inbox, new, "--pages-for", "all")
    found = {path.relative_to(new).parts[0]: path.stat().st_mode & 0o777 for path in new.rglob("*") if path.is_file()}
    assert found.pop("feedback") == 0o644 and set(found.values()) == {0o600}
    assert (new / "feedback").stat().st_mode & 0o777 == 0o755 and new.stat().st_mode & 0o777 == 0o711


def test_a_roster_says_who_is_missing(course, inbox, graded, tmp_path):
    out, roster = tmp_path / "out", tmp_path / "roster.csv"
    shutil.copytree(graded[0], out)
    names = ["ada", "bob", "ŽOFIA NOVÁKOVÁ", "empty", "exit", "broken", "Rose Late"]
    roster.write_text("\n".join(["name", *names]), encoding="utf-8")
    run = grade(course, inbox, out, "--roster", roster)
    assert "1 of the roster handed in nothing" in run.stdout and "0 graded now" in run.stdout
    assert "Rose Late,,missing,no submission" in (out / "review.csv").read_text(encoding="utf-8")
    assert "Rose Late" in (out / "summary.html").read_text(encoding="utf-8")


def test_a_killed_run_leaves_nothing_behind(course, inbox, seeded, tmp_path, monkeypatch):
    """Executed references, sources, sockets and connection files: they lie in a private folder, and the next start
    sweeps it, but never that of a run which lives."""
    place = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))  # short, as a socket's path must be
    for name in ("XDG_RUNTIME_DIR", "TMPDIR", "JUPYTER_RUNTIME_DIR"):
        (place / name).mkdir(mode=0o700)
        monkeypatch.setenv(name, str(place / name))
    out = tmp_path / "out"
    shutil.copytree(seeded, out)
    private = place / "XDG_RUNTIME_DIR" / "txgrade"
    try:
        for seconds in (0.5, 2):
            process = subprocess.Popen(
                command(course, inbox, out), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
            while process.poll() is None and not any(path.is_dir() for path in private.glob("*")):
                time.sleep(0.05)  # until it has made its folder
            time.sleep(seconds)
            family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.kill()
            process.wait()
            psutil.wait_procs(family, timeout=15)
        left = sorted(private.iterdir())
        living = os.open(private / "living.lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(living, fcntl.LOCK_EX)
        (private / "living").mkdir()
        assert private.stat().st_mode & 0o777 == 0o700
        grade(course, inbox, out)
        assert left and not set(left) & set(private.iterdir())
        assert sorted(path.name for path in private.iterdir()) == ["living", "living.lock"]
        os.close(living)
        assert [path for name in ("TMPDIR", "JUPYTER_RUNTIME_DIR") for path in (place / name).iterdir()] == []
        assert not list(out.rglob(".*.tmp")) and set(ledger(out).values()) == {1}
    finally:
        shutil.rmtree(place)


def test_a_grade_is_explained(graded):
    run = subprocess.run(
        [sys.executable, "-m", "txgrade", "explain", "bob", "--out", str(graded[0])],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0 and "causal-mask" in run.stdout and "sealed" in run.stdout
    assert rows(graded[0])["bob"]["seeds"].split()[0] in run.stdout


def test_junit_is_readable(graded):
    import xml.etree.ElementTree as xml

    cases = list(xml.parse(graded[0] / "junit" / "bob.xml").getroot().iter("testcase"))
    failed = {case.get("name") for case in cases if case.find("failure") is not None}
    passed = {case.get("name") for case in cases} - failed
    # The second check uses the mask: it is not judged alone until the mask is right.
    assert (failed, passed) == ({"causal-mask", "causal-mask, alone", "attention"}, set())


def test_a_corrected_check_flags_nobody_and_says_what_changed(course, tmp_path):
    """The first source's check asks for what no answer gives; corrected, everybody is graded anew."""
    source = tmp_path / "course" / "solutions" / course.source.name
    source.parent.mkdir(parents=True)
    text = course.source.read_text(encoding="utf-8")
    source.write_text(text.replace('show(causal_mask(n), f"n = {n}")', 'show(causal_mask(n) & True, f"n = {n}")'))
    assert source.read_text() != text
    changed = type(course)(folder=source.parents[1], source=source, exercise=release(source).exercise)
    right, out = tmp_path / "inbox", tmp_path / "out"
    fill(changed, right / "ada.ipynb", RIGHT)
    fill(changed, right / "bob.ipynb", INVERTED)
    grade(changed, right, out)
    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        book.override("bob", "causal-mask", 1, "Half.")
    source.write_text(text, encoding="utf-8")
    run = grade(changed, right, out)
    review = (out / "review.csv").read_text(encoding="utf-8")
    assert "changed check" not in review and "ada" not in review
    assert review.count("in 2 submissions the cell `check-causal-mask` is that of an earlier release") == 1
    assert "1 change of points that an earlier run gave" in run.stdout
    assert "bob,causal-mask,0,1,marked by a person: Half." in (out / "changes.csv").read_text(encoding="utf-8")
    assert "Changed from 0 to 1 points" in (out / "feedback" / "bob.html").read_text(encoding="utf-8")
    before = files(out)
    grade(changed, right, out)
    assert files(out) == before


def test_a_time_that_comes_later_changes_the_penalty_and_grades_nothing_again(course, tmp_path):
    """From Canvas' download, which tells no time, to a table of times and an extension."""
    (tmp_path / "solutions").mkdir()
    source = tmp_path / "solutions" / course.source.name
    mistakes = '# %% tags=["mistakes"]\n'
    due = 'from txgrade import due\ndue("2026-12-01 23:59", per_day=0.2)\n'
    source.write_text(course.source.read_text("utf-8").replace(mistakes, mistakes + due, 1), encoding="utf-8")
    fill(course, tmp_path / "ada.ipynb", RIGHT)
    data = (tmp_path / "ada.ipynb").read_bytes()
    lms.canvas_zip(tmp_path / "all.zip", [lms.Upload(one, data, late=one is lms.JOERG) for one in lms.CLASS[:3]])
    tables = {
        "gradebook.csv": lms.canvas_gradebook(),
        "times.csv": "email,submitted\njm@example.edu,2026-12-02T10:00Z\nzofia@example.edu,2026-12-01T10:00Z\n",
        "extensions.csv": "name,days\n" + '"Müller, Jörg",1\n',
    }
    for name, text in tables.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    inbox, out, roster = tmp_path / "inbox", tmp_path / "out", tmp_path / "gradebook.csv"

    def run(*more, times=None):
        people = read_roster(roster)
        collect("canvas", tmp_path / "all.zip", inbox, people, times=times)
        here = SimpleNamespace(source=source)
        said = grade(here, inbox, out, "--seeds", "1", "--roster", str(roster), *more).stdout
        notes = {row["submission"]: row["kind"] for row in csv.DictReader((out / "review.csv").open(encoding="utf-8"))}
        return said, {name: float(row["score"]) for name, row in rows(out).items()}, notes

    said, scores, notes = run()
    ada, joerg, zofia = "Ada Lovelace", "Jörg Müller", "Žofia Nováková"
    full = scores[ada]
    assert "3 graded now" in said and scores == {ada: full, joerg: full, zofia: full}
    assert notes[joerg] == "late" and ada not in notes and zofia not in notes
    said, scores, notes = run(times=tmp_path / "times.csv")
    assert "0 graded now" in said and scores == {ada: full, joerg: pytest.approx(0.8 * full), zofia: full}
    assert not {ada, joerg, zofia} & notes.keys()
    page = (out / "feedback" / f"{joerg}.html").read_text(encoding="utf-8")
    assert "1 day late" in page and "<strong><bdi>Jörg Müller</bdi></strong>" in page and "Due 2026-12-01 23:59" in page
    said, scores, _ = run("--extensions", str(tmp_path / "extensions.csv"))
    assert "0 graded now" in said and scores[joerg] == full
    assert "extended to 2026-12-02 23:59" in (out / "feedback" / f"{joerg}.html").read_text(encoding="utf-8")
