"""The command `txlib`: what users type, and one line for what they mistype."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from txlib.cli import LICENSES


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["train", "translation", "--preset", "huge"], "choose one of tiny, course, paper, small, base, big"),
        (["train", "translation", "--data", "poems"], "choose from wesnoth"),
        (["train", "translation", "--pair", "de-xx"], "choose from de-en"),
        (["train", "translation", "--device", "abacus"], "choose auto or cpu"),
        (["train", "translation", "--minutes", "1", "--steps", "2"], "give one"),
        (["train", "translation", "--resume"], "start one"),
        (["translate", "--model", "nowhere", "Hallo."], "no folder here"),
        (["serve", "--model", "nowhere"], "no folder here"),
        (["serve", "--model", "verses", "--max-running", "0"], "max_running=0 must be at least 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_one_line_with_a_remedy(txlib, tmp_path, monkeypatch, words, remedy):
    monkeypatch.chdir(tmp_path)
    status, out, err = txlib(*words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("txlib: ") and remedy in err
    assert not list(tmp_path.iterdir()), "something half-written stayed behind"


def test_an_unknown_command_is_no_traceback(txlib):
    status, _, err = txlib("trian")
    assert status == 2 and "train" in err and "Traceback" not in err


@pytest.mark.slow
def test_data_lists_sizes_that_are_true(txlib):
    from txlib.data import translation

    status, out, _ = txlib("data")
    wesnoth = next(line for line in out.splitlines() if re.match(r"wesnoth +de-en", line))
    sizes = [int(number.replace(",", "")) for number in wesnoth.split()[2:5]]
    assert status == 0 and sizes == [len(split) for split in translation("wesnoth", "de-en")]


@pytest.mark.slow
def test_train_then_translate(txlib, tmp_path, monkeypatch):
    status, out, _ = txlib(
        "train",
        "translation",
        "--data",
        "freedroidrpg",
        "--preset",
        "tiny",
        "--steps",
        2,
        "--device",
        "cpu",
        "--out",
        tmp_path / "run",
    )
    assert status == 0 and re.search(r"^bleu +\d+\.\d+$", out, re.MULTILINE)
    assert re.search(r"^BLEU on the test sentences, with beams of 4 and greedy$", out, re.MULTILINE)
    status, of_arguments, _ = txlib("translate", "--model", tmp_path / "run", "Guten Morgen!", "", "Hallo.")
    assert status == 0 and of_arguments.count("\n") == 3
    monkeypatch.setattr(sys, "stdin", io.StringIO("Guten Morgen!\n\nHallo.\n"))
    assert txlib("translate", "--model", tmp_path / "run")[:2] == (0, of_arguments)
    status, _, err = txlib("train", "translation", "--preset", "tiny", "--out", tmp_path / "run")
    assert status == 2 and "--resume" in err


def test_without_typer_it_says_what_to_install():
    code = "import sys; sys.modules['typer'] = None; import txlib.cli"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.returncode == 1 and said.stderr.startswith("txlib: ") and "[train]" in said.stderr
    assert "Traceback" not in said.stderr


def test_licenses_are_those_of_the_data():
    readme = (Path(__file__).parents[2] / "data" / "README.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `(\w+)/` .*\| ([^|]+) \|$", readme, re.MULTILINE)
    assert dict(table) == {name: license for name, license in LICENSES.items() if name != "multi30k"}
