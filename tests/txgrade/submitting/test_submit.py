"""Handing in: whole files or none, nothing lost, clear words; and `%submit` in a real kernel."""

import errno
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
from datetime import UTC, datetime

import nbformat
import pytest

from txgrade import notebook_runner
from txgrade.authoring.read import read_assignment
from txgrade.submitting.finding import find_submissions
from txgrade.submitting.folder import SubmitError
from txgrade.submitting.reading import read_submission
from txgrade.submitting.submit import submit, verify

ANSWER = "def causal_mask(n):\n    return torch.ones(n, n).tril().bool()      # {}"


@pytest.fixture(scope="module")
def assignment(course):
    return read_assignment(course.source)


@pytest.fixture
def answer(course, tmp_path):
    """Write the exercise with an answer to its first task; returns its path."""
    path = tmp_path / "work" / "exercise_03_sample.ipynb"
    path.parent.mkdir()

    def answer(words="first", source=ANSWER):
        notebook = nbformat.read(course.exercise, as_version=4)
        next(cell for cell in notebook.cells if cell.id == "causal-mask").source = source.format(words)
        nbformat.write(notebook, path)
        return path

    return answer


@pytest.fixture
def inbox(tmp_path):
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


def visible(folder):
    return sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))


def versions(folder):
    return sorted((folder / ".versions").iterdir())


def test_a_first_submission(answer, inbox, assignment):
    path = answer()
    os.utime(path, (1_700_000_000, 1_700_000_000))
    receipt = submit(path, inbox, name="Ada Lovelace")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (receipt.exercise, receipt.name, receipt.sha256) == ("03_sample", "Ada Lovelace", digest)
    assert (receipt.answers, receipt.open) == (1, ("Scaled dot-product attention",))
    assert receipt.saved == "2023-11-14T22:13:20+00:00"
    assert abs((datetime.now(UTC) - datetime.fromisoformat(receipt.submitted)).total_seconds()) < 60

    own = inbox / "Ada Lovelace"
    assert visible(own) == ["03_sample.ipynb", "03_sample.receipt.json"]
    [version] = versions(own)
    when = datetime.fromisoformat(receipt.submitted)
    assert version.name == f"03_sample-{when:%Y-%m-%dT%H%M%SZ}-{digest[:8]}.ipynb"
    assert version.read_bytes() == (own / "03_sample.ipynb").read_bytes() == path.read_bytes()
    assert stat.S_IMODE((own / "03_sample.ipynb").stat().st_mode) & 0o600 == 0o600
    assert json.loads(receipt.path.read_text())["sha256"] == digest

    [found] = find_submissions(inbox, "03_sample")
    submission = read_submission(found, assignment)
    assert (submission.name, submission.status, submission.notes) == ("Ada Lovelace", "graded", ())
    assert (submission.submitted, submission.hash) == (receipt.submitted, digest)
    assert submission.answers["causal-mask"] == ANSWER.format("first")


def test_the_newest_counts_and_earlier_ones_stay(answer, inbox, assignment):
    texts = []
    for words in ("one", "two", "one"):  # back to the first again
        texts.append(answer(words).read_bytes())
        last = submit(answer(words), inbox, name="ada")
    own = inbox / "ada"
    assert (own / "03_sample.ipynb").read_bytes() == texts[-1]
    assert {version.read_bytes() for version in versions(own)} == set(texts)
    [found] = find_submissions(inbox, "03_sample")
    assert read_submission(found, assignment).submitted == last.submitted


def test_the_same_file_again_changes_nothing(answer, inbox):
    first = submit(answer(), inbox, name="ada")
    before = {path: path.stat().st_mtime_ns for path in (inbox / "ada").rglob("03_*")}
    again = submit(answer(), inbox, name="ada")
    assert again.repeated and not first.repeated and again.submitted == first.submitted
    assert str(again).startswith("Already handed in: 03_sample, by ada, ")
    assert {path: path.stat().st_mtime_ns for path in (inbox / "ada").rglob("03_*")} == before


def test_several_exercises_side_by_side(answer, inbox, assignment):
    submit(answer(), inbox, name="ada")
    other = submit("exercises/exercise_03_attention.ipynb", inbox, name="ada", anyway=True)
    assert other.answers == 0 and other.open
    [found] = find_submissions(inbox, "03_sample")
    assert found.path.name == "03_sample.ipynb" and read_submission(found, assignment).status == "graded"
    [found] = find_submissions(inbox, "03_attention")
    assert found.path.name == "03_attention.ipynb"


def test_what_is_printed(answer, inbox):
    receipt = submit(answer(), inbox, name="ada")
    words = str(receipt)
    assert re.match(r"Handed in: 03_sample, by ada, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\n", words)
    assert "1 of 2; still empty: Scaled dot-product attention" in words
    assert receipt.sha256 in words and str(inbox / "ada" / "03_sample.receipt.json") in words
    assert "save and hand in again" in words


# Refusals


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"{", "breaks off"),
        (b"print(1)", "is not a notebook"),
        ("{}".encode("utf-16"), "UTF-8"),
        (b"[]", "form of a notebook"),
        (b'{"cells": []}', "no cells"),
        (b'{"cells": [{}]}', "holds no exercise"),
        (b" " * (10 * 2**20 + 1), "larger than 10 MB"),
        (b'{"cells": [{}], "metadata": {"kernelspec": {"language": "R"}}}', "another language"),
        (b'{"cells": [{"cell_type": "code", "source": "check.load(\\"\\"\\"\\nAAAA\\n\\"\\"\\")"}]}', "are damaged"),
    ],
)
def test_what_is_no_exercise(inbox, tmp_path, content, words):
    path = tmp_path / "exercise_03_sample.ipynb"
    path.write_bytes(content)
    with pytest.raises(SubmitError, match=words) as reason:
        submit(path, inbox, name="ada")
    assert "03_sample.ipynb" in str(reason.value) and "\n" not in str(reason.value)
    assert not list(inbox.iterdir())


def test_stubs_are_refused(course, inbox):
    with pytest.raises(SubmitError, match="holds no answer, as it was saved .* save it, or say --anyway"):
        submit(course.exercise, inbox, name="ada")
    assert not list(inbox.iterdir())
    assert submit(course.exercise, inbox, name="ada", anyway=True).answers == 0


@pytest.mark.parametrize("source", ["", "   \n", 'raise NotImplementedError("your turn")', "Your answer here."])
def test_what_counts_as_empty(answer, inbox, source):
    with pytest.raises(SubmitError, match="holds no answer"):
        submit(answer(source=source), inbox, name="ada")


@pytest.mark.parametrize(
    "name", ["exercise_03_sample-Copy1.ipynb", "03_sample.ipynb", "exercise_03_sample.json", "solution"]
)
def test_another_name(answer, inbox, name):
    path = answer().rename(answer().with_name(name))
    with pytest.raises(SubmitError, match="rename it to exercise_03_sample.ipynb"):
        submit(path, inbox, name="ada")


def test_paths(answer, inbox, tmp_path):
    path = answer()
    with pytest.raises(SubmitError, match="no notebook at .*nowhere.ipynb"):
        submit(tmp_path / "nowhere.ipynb", inbox, name="ada")
    with pytest.raises(SubmitError, match="not a file that can be read"):
        submit(path.parent, inbox, name="ada")
    with pytest.raises(SubmitError, match="missing is not there"):
        submit(path, tmp_path / "missing", name="ada")
    with pytest.raises(SubmitError, match="is not a folder"):
        submit(path, path, name="ada")
    link = tmp_path / "exercise_03_sample.ipynb"
    link.symlink_to(path)  # the learner's own file, wherever it is
    assert submit(link, inbox, name="ada").answers == 1


def test_the_folder_may_stand_in_the_environment(answer, inbox, monkeypatch):
    monkeypatch.delenv("TXGRADE_SUBMIT_TO", raising=False)
    with pytest.raises(SubmitError, match="--to FOLDER, or set TXGRADE_SUBMIT_TO"):
        submit(answer(), name="ada")
    monkeypatch.setenv("TXGRADE_SUBMIT_TO", str(inbox))
    assert submit(answer(), name="ada").path.is_file()


@pytest.mark.parametrize("name", ["../evil", "a/b", "", ".", "..", "a\nb", "a" * 200, "a\u202eb", ".hidden", " ada"])
def test_names_that_no_folder_can_have(answer, inbox, name):
    with pytest.raises(SubmitError, match="--name"):
        submit(answer(), inbox, name=name)
    assert not list(inbox.iterdir())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("y_102_5_exercise", "looks like a file's of Canvas"),
        ("rosebob_LATE_102_5_x", "looks like a file's of Canvas"),
        ("Bob Rose_502_assignsubmission_file_", "looks like a file's of Moodle"),
        ("y＿102＿5＿exercise", "looks like a file's of Canvas"),
        ("ada.receipt.json", "is a receipt's: give e.g. --name 'ada'"),
        ("Ada.Receipt.JSON", "is a receipt's: give e.g. --name 'Ada'"),
    ],
)
def test_names_that_would_be_taken_for_something_else(answer, inbox, monkeypatch, name, words):
    with pytest.raises(SubmitError, match=words) as reason:
        submit(answer(), inbox, name=name)
    assert "--name" in str(reason.value) and "\n" not in str(reason.value)
    monkeypatch.setenv("JUPYTERHUB_USER", name)
    with pytest.raises(SubmitError, match=words):
        submit(answer(), inbox)
    assert not list(inbox.iterdir())
    assert submit(answer(), inbox, name="inf_2026_17").answers == 1  # a login, of which nothing makes a file's name


def test_whose_it_is(answer, inbox, monkeypatch):
    for variable in ("JUPYTERHUB_USER", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("LOGNAME", "jovyan")
    with pytest.raises(SubmitError, match="say who you are: --name"):
        submit(answer(), inbox)
    monkeypatch.setenv("LOGNAME", "bob")
    assert submit(answer(), inbox).name == "bob"
    monkeypatch.setenv("JUPYTERHUB_USER", "王小明")
    assert submit(answer(), inbox).name == "王小明"
    assert sorted(each.name for each in find_submissions(inbox)) == ["bob", "王小明"]


def test_links_in_the_shared_folder_are_refused(answer, inbox, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (inbox / "ada").symlink_to(elsewhere)
    (inbox / "bob").mkdir()
    (inbox / "bob" / ".versions").symlink_to(elsewhere)
    for name in ("ada", "bob"):
        with pytest.raises(SubmitError, match="is a link"):
            submit(answer(), inbox, name=name)
    assert not [path for path in elsewhere.rglob("*") if path.is_file()]


# Nothing by halves


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "no room is left"),
        (errno.EDQUOT, "no room is left"),
        (errno.EROFS, "may not write"),
        (errno.EIO, "nothing was handed in"),
    ],
)
def test_a_disk_that_takes_no_more(answer, inbox, monkeypatch, code, words):
    submit(answer("first"), inbox, name="ada")
    before = {path: path.read_bytes() for path in (inbox / "ada").rglob("*.*") if path.is_file()}
    path, synced = answer("second"), []

    def sync(handle):
        synced.append(handle)
        if len(synced) == 3:  # of the three files the last
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(SubmitError, match=words):
        submit(path, inbox, name="ada")
    assert {path: path.read_bytes() for path in (inbox / "ada").rglob("*.*") if path.is_file()} == before


@pytest.mark.parametrize("step", [1, 2, 3])
def test_stopped_between_two_files(answer, inbox, assignment, monkeypatch, step):
    """Whichever renames were done when the power failed, the grader reads a whole notebook, and the next try mends."""
    texts = [answer(words).read_bytes() for words in ("first", "second")]
    submit(answer("first"), inbox, name="ada")
    rename, done = os.replace, []

    def replace(source, target, **folders):
        done.append(target)
        if len(done) == step:
            raise KeyboardInterrupt
        rename(source, target, **folders)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        submit(answer("second"), inbox, name="ada")
    monkeypatch.undo()
    [found] = find_submissions(inbox, "03_sample")
    submission = read_submission(found, assignment)
    assert found.path.read_bytes() == texts[step > 2] and submission.status == "graded"

    receipt = submit(answer("second"), inbox, name="ada")
    assert not receipt.repeated and found.path.read_bytes() == texts[1]
    assert read_submission(found, assignment).submitted == receipt.submitted
    assert not list((inbox / "ada").rglob("*.tmp"))
    assert "it is what lies there now" in verify(receipt.path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_somebody_else(answer, inbox):
    inbox.chmod(0o555)
    with pytest.raises(SubmitError, match="you may not write in"):
        submit(answer(), inbox, name="ada")


HAND_IN = """
import sys
from pathlib import Path
from txgrade.submitting.submit import submit
folder, to, who = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
path = folder / who / "exercise_03_sample.ipynb"
path.parent.mkdir()
text = (folder / "exercise_03_sample.ipynb").read_text()
for number in range(20):
    path.write_text(text.replace("first", f"{who} {number}"))
    submit(path, to, name="ada")
"""


@pytest.mark.parametrize(
    ("folder", "umask", "readers"),
    [(0o3773, 0o022, {0o640}), (0o3773, 0o077, {0o640}), (0o755, 0o022, {0o600}), (0o755, 0o002, {0o600})],
)
def test_who_may_read_it(answer, inbox, folder, umask, readers):
    """A folder that hands its group on is read by this group alone; what is in another one, by nobody else."""
    inbox.chmod(folder)
    before = os.umask(umask)
    try:
        own = submit(answer(), inbox, name="ada").path.parent
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    files = [path for path in own.rglob("*.*") if path.is_file() and path.name != ".lock"]
    assert len(files) == 3 and {path.stat().st_mode & 0o777 for path in files} == readers
    assert own.stat().st_mode & 0o7777 == (0o2750 if folder & 0o2000 else 0o700)


def test_two_at_once_both_survive(answer, inbox, tmp_path):
    """Two windows of the same learner, each handing in twenty times."""
    folder = answer("first").parent
    workers = [subprocess.Popen([sys.executable, "-c", HAND_IN, folder, inbox, who]) for who in ("one", "two")]
    assert [worker.wait(120) for worker in workers] == [0, 0]
    kept = [path.read_text() for path in versions(inbox / "ada")]
    found = {(who, number) for text in kept for who, number in re.findall(r"# (one|two) (\d+)", text)}
    assert found == {(who, str(number)) for who in ("one", "two") for number in range(20)}
    newest = (inbox / "ada" / "03_sample.ipynb").read_text()
    assert newest in kept
    receipt = json.loads((inbox / "ada" / "03_sample.receipt.json").read_text())
    assert receipt["sha256"] == hashlib.sha256(newest.encode()).hexdigest()
    assert not list((inbox / "ada").rglob("*.tmp"))


# Receipts


def test_verify(answer, inbox, tmp_path):
    first = submit(answer("first"), inbox, name="ada")
    copy = tmp_path / "my.receipt.json"
    copy.write_bytes(first.path.read_bytes())
    assert verify(first.path) == verify(copy)
    assert re.match(
        r"the receipt says: 03_sample of ada, handed in .* UTC\. .* and it is what lies there now\.", verify(copy)
    )
    submit(answer("second"), inbox, name="ada")
    assert "something else lies there now" in verify(copy)
    version = inbox / "ada" / ".versions" / first.version
    version.write_text(version.read_text() + " ")
    with pytest.raises(SubmitError, match="is not what the receipt names"):
        verify(copy)
    version.unlink()
    with pytest.raises(SubmitError, match="no longer in"):
        verify(copy)


def test_a_moved_folder_still_verifies(answer, inbox):
    receipt = submit(answer(), inbox, name="ada")
    moved = inbox.rename(inbox.with_name("elsewhere"))
    assert "it is what lies there now" in verify(moved / receipt.path.relative_to(inbox))


@pytest.mark.parametrize("content", ["", "{}", "[]", "3", "{", '{"open": 3}', "[" * 5000])
def test_what_is_no_receipt(tmp_path, content):
    path = tmp_path / "x.receipt.json"
    path.write_text(content)
    with pytest.raises(SubmitError, match="is not a receipt"):
        verify(path)
    with pytest.raises(SubmitError, match="is not a receipt"):
        verify(tmp_path / "missing.json")


def test_a_receipt_leads_nowhere_else(answer, inbox, tmp_path):
    receipt = submit(answer(), inbox, name="ada")
    said = json.loads(receipt.path.read_text())
    for change in ({"version": "../03_sample.ipynb"}, {"version": "/etc/passwd"}, {"submitted": "yesterday"}):
        (tmp_path / "x.json").write_text(json.dumps(said | change))
        with pytest.raises(SubmitError, match="is not a receipt"):
            verify(tmp_path / "x.json")
    receipt.path.write_text(json.dumps(said | {"name": "ada\x1b[2J"}))
    assert "\x1b" not in verify(receipt.path)


# At the terminal, and in a notebook


def command(*options):
    return subprocess.run(
        [sys.executable, "-m", "txgrade", "submit", *map(str, options)],
        capture_output=True,
        text=True,
        env=os.environ | {"TXGRADE_SUBMIT_TO": ""},
    )


def test_the_command(answer, inbox):
    run = command(answer(), "--to", inbox, "--name", "ada")
    assert run.returncode == 0 and run.stdout.startswith("Handed in: 03_sample, by ada, "), run.stderr
    assert command("--verify", inbox / "ada" / "03_sample.receipt.json").stdout.endswith("what it names.\n")
    for options in ((), (answer(),), (answer(), "--to", inbox / "missing"), ("--verify", answer())):
        run = command(*options)
        assert run.returncode == 2 and run.stderr.startswith("txgrade: ") and run.stderr.count("\n") == 1, run.stderr


def in_a_kernel(*sources, **environment):
    """What each cell prints, in one fresh kernel."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    notebook_runner.run(notebook, ".", keep_going=True, **environment)
    return ["".join(output.get("text", output.get("evalue", "")) for output in cell.outputs) for cell in notebook.cells]


@pytest.mark.slow
def test_the_magic(answer, inbox, tmp_path):
    """JUPYTER sets JPY_SESSION_NAME for the kernels that it starts."""
    path = answer()
    imported, first, again, other, wrong, named, quoted, unclosed = in_a_kernel(
        "from txgrade import check",
        "%submit --name ada",
        "%submit --name ada",
        f"%submit --name ada --to {tmp_path}/missing",
        "%submit --nome ada",
        f"%submit {tmp_path}/nowhere.ipynb --name ada",
        "%submit --name 'Ada Lovelace'",
        "%submit --name 'Ada",
        JPY_SESSION_NAME=str(path),
        TXGRADE_SUBMIT_TO=str(inbox),
    )
    assert imported == ""
    assert first.startswith("Handed in: 03_sample, by ada, ") and again.startswith("Already handed in: 03_sample")
    assert other.startswith("Not handed in: ") and "missing is not there" in other
    assert wrong.startswith("Not handed in: %submit --nome ada: unrecognized arguments") and wrong.count("\n") == 1
    assert "no notebook at" in named and quoted.startswith("Handed in: 03_sample, by Ada Lovelace")
    assert unclosed.startswith("Not handed in: ") and unclosed.count("\n") == 1
    assert (inbox / "ada" / "03_sample.ipynb").read_bytes() == path.read_bytes()


def test_the_magic_where_the_path_is_not_known(answer, inbox, tmp_path):
    loaded, unknown, given, gone = in_a_kernel(
        "%load_ext txgrade",
        "%submit --name ada",
        f"%submit {answer()} --name ada",
        f"import os; os.environ['JPY_SESSION_NAME'] = '{tmp_path}/old.ipynb'\n%submit --name ada",
        JPY_SESSION_NAME="",
        TXGRADE_SUBMIT_TO=str(inbox),
    )
    assert loaded == ""
    assert "doesn't know its notebook: write %submit exercise_03_attention.ipynb" in unknown
    assert given.startswith("Handed in: 03_sample, by ada")
    assert "old.ipynb is gone" in gone


@pytest.mark.slow
def test_the_magic_asks_to_save_first(answer, inbox):
    """What the file lacks although it ran, it lacks because nobody saved; the kernel can't know what never ran."""
    path = answer()
    known = json.loads(path.read_text(encoding="utf-8"))["cells"][2]["source"]
    save = "import os, pathlib, time\ntime.sleep(0.1)\nos.utime(os.environ['JPY_SESSION_NAME'])"
    _, _, unchanged, _, older, anyway, _, saved = in_a_kernel(
        "from txgrade import check",
        "".join(known),
        "%submit --name ada",
        "typed = 'not saved'",
        "%submit --name bob",
        "%submit --name bob --anyway",
        save,
        "%submit --name cy",
        JPY_SESSION_NAME=str(path),
        TXGRADE_SUBMIT_TO=str(inbox),
    )
    assert unchanged.startswith("Handed in: 03_sample, by ada")
    assert older.startswith("Not handed in: exercise_03_sample.ipynb was last saved") and "save it (Ctrl+S)" in older
    assert older.count("\n") == 1
    assert anyway.startswith("Handed in: 03_sample, by bob") and saved.startswith("Handed in: 03_sample, by cy")


def test_the_magic_costs_nothing_until_it_is_used():
    code = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
before = set(sys.modules)
import txgrade
txgrade.load_ipython_extension(shell)
new = {name.split(".")[0] for name in set(sys.modules) - before}
assert "submit" in shell.magics_manager.magics["line"]
assert new <= {"txgrade"}, new
"""
    subprocess.run([sys.executable, "-c", code], check=True)
