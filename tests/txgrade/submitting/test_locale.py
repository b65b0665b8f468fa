"""Names in a locale that knows ASCII only: whoever is Zoë there is Zoë."""

import json
import os
import subprocess
import sys

import nbformat
import pytest

LOCALES = {
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "POSIX": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "UTF-8": {"LC_ALL": "C.UTF-8"},
}
FIND = r"""
import json, sys
from txgrade.records.people import Roster
from txgrade.submitting.finding import find_submissions
roster = Roster.of(["Zo\u00eb", "zo"], ["\u540d\u524d"], ["Bob"])
files = find_submissions(sys.argv[1], "03_sample", roster)
kinds = {file.name: [note.kind for note in file.notes] for file in files}
names = [(file.name, file.file_name, file.path.read_text("utf-8"), kinds[file.name]) for file in files]
missing = roster.missing((file.file_name, file.number) for file in files)
print(json.dumps([names, missing, sys.getfilesystemencoding()]))
"""
WRITE = r"""
import sys
from pathlib import Path
from txgrade.records.out import allow, path_in, write
write(Path(sys.argv[1]), "feedback/Zo\u00eb.html", "page", 0o755)
allow(Path(sys.argv[1]), "feedback/Zo\u00eb.html", 0o700)
assert path_in(Path(sys.argv[1]), "feedback/Zo\u00eb.html").read_text() == "page"
"""


def run(locale, *command):
    done = subprocess.run(
        [sys.executable, *map(os.fsencode, command)], capture_output=True, env=os.environ | LOCALES[locale]
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize("locale", LOCALES)
def test_who_handed_in_is_the_same(tmp_path, locale):
    for name in ("Zoë.ipynb", "名前.ipynb", "ö ohne.ipynb"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    (tmp_path / os.fsdecode(b"latin-\xeb.ipynb")).write_text("latin")
    status, said, error = run(locale, "-c", FIND, tmp_path)
    assert status == 0, error
    found, missing, encoding = json.loads(said)
    assert (encoding == "utf-8") == (locale == "UTF-8")
    assert [name for name, *_ in found] == ["Zoë", "latin-_", "ö ohne", "名前"]
    assert {given for _, given, _, _ in found} >= {"Zoë", "名前", "ö ohne"} and missing == ["Bob"]
    assert {name: kinds for name, _, _, kinds in found}["Zoë"] == []


@pytest.mark.parametrize("locale", LOCALES)
def test_files_of_results_are_the_same(tmp_path, locale):
    assert run(locale, "-c", WRITE, tmp_path) == (0, "", "")
    assert (tmp_path / "feedback" / "Zoë.html").stat().st_mode & 0o777 == 0o600


def test_handing_in_is_the_same(course, tmp_path):
    notebook = nbformat.read(course.exercise, as_version=4)
    next(cell for cell in notebook.cells if cell.id == "causal-mask").source = "def causal_mask(n):\n    return n"
    path, inbox = tmp_path / course.exercise.name, tmp_path / "übung"
    nbformat.write(notebook, path)
    inbox.mkdir()
    options = ("-m", "txgrade", "submit", path, "--to", inbox, "--name", "Zoë")
    said = [run(locale, *options) for locale in ("C", "UTF-8", "POSIX")]
    assert [status for status, *_ in said] == [0, 0, 0], said
    first, *again = [words for _, words, _ in said]
    assert first.startswith("Handed in: 03_sample, by Zoë, ") and f"receipt: {inbox}/Zoë/" in first
    assert all(words.startswith("Already handed in: 03_sample, by Zoë, ") for words in again)
    assert [folder.name for folder in inbox.iterdir()] == ["Zoë"]
    for locale in LOCALES:
        status, words, error = run(
            locale, "-m", "txgrade", "submit", "--verify", inbox / "Zoë" / "03_sample.receipt.json"
        )
        assert status == 0 and "it is what lies there now" in words, error
