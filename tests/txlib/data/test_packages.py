"""The bundled data sets: their hashes, their sources and licenses, and the rules that made them from packages."""

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

DATA = Path(__file__).parents[3] / "data"
FOLDERS = sorted(path.parent.name for path in DATA.glob("*/SHA256SUMS"))
LARGEST_BYTES = {"digits": 5e6, "fashion": 5e6}  # of a folder, else 2 MB


@pytest.mark.parametrize("folder", FOLDERS)
def test_hashes_match_the_files(folder):
    sums = dict(reversed(line.split()) for line in (DATA / folder / "SHA256SUMS").read_text().splitlines())
    own = {"SHA256SUMS", "LICENSE", "SOURCE.md", "build.py"}
    files = {path.name: path for path in (DATA / folder).iterdir() if path.is_file() and path.name not in own}
    assert sums == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    assert sum(path.stat().st_size for path in files.values()) < LARGEST_BYTES.get(folder, 2e6)


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_says_where_it_comes_from_and_whose_it_is(folder):
    assert f"python data/{folder}/build.py" in (DATA / folder / "SOURCE.md").read_text(encoding="utf-8")
    assert re.search("licen[cs]e", (DATA / folder / "LICENSE").read_text().lower())
    assert f"`{folder}/`" in (DATA / "README.md").read_text(encoding="utf-8")


PLAY = """# Hamlet

## ACT I

### SCENE I. Elsinore. A platform.

_FRANCISCO at his post. Enter to him
BERNARDO_

**Bernardo**  
Who's _\\[Aside]_ there?

_Enter Ghost_

Long live the king!

**FRANCISCO**  
_\\[Within]_  
He ____.

**FRANCISCO**  
Goes on.

**GHOST**  
_Exit_
"""  # noqa: W291


def test_a_play_becomes_plain(script):
    expected = "BERNARDO:\nWho's there?\nLong live the king!\n\nFRANCISCO:\nHe .\nGoes on.\n"
    assert script("shakespeare").plain(PLAY) == expected


def test_verses_are_read_without_running_the_module(script, tmp_path):
    archaic = "In the beginning [it] was so: and it was.", "It was so."
    modern = "First  it was `so` then.", "It was so."  # the second verse is the same in both: no pair
    for version, verses in (("kjv", archaic), ("web", modern)):
        ends = {1001001: len(verses[0]), 1001002: len(" ".join(verses))}
        starts = {1001001: 0, 1001002: len(verses[0]) + 1}
        with zipfile.ZipFile(tmp_path / f"pythonbible_{version}-0.0.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr(
                f"pythonbible_{version}/plain_text_readers_bible.py",
                f"raise SystemExit('was run')\nBible(Version.X, {' '.join(verses)!r}, {starts}, {ends}, {{}})\n",
            )
    expected = "Genesis 1:1\tIn the beginning it was so: and it was.\tFirst it was 'so' then.\n"
    assert script("verses").make(tmp_path) == {"kjv-web.tsv.gz": expected}


@pytest.mark.parametrize("folder", ["chorales", "digits", "fashion", "reviews", "shakespeare", "verses"])
def test_a_missing_package_is_one_line(folder, tmp_path):
    option = "--from" if folder == "fashion" else "--wheels"
    command = [sys.executable, DATA / folder / "build.py", option, tmp_path, "--out", tmp_path]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode and run.stderr.count("\n") == 1 and "Traceback" not in run.stderr
    assert not list(tmp_path.iterdir())
