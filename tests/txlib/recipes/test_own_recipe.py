"""`txlib train my_recipe.py`: the guide's example runs, and a wrong file is one sentence."""

import json
import multiprocessing
import re
import signal
import sys
from pathlib import Path

import pytest
import tiny

from txlib.models import GPT
from txlib.models.pretrained import load_pretrained
from txlib.recipes import RECIPES, Recipe, option, run
from txlib.recipes.own import load_recipe

GUIDE = Path(__file__).parents[3] / "docs" / "own_recipe.md"
BASE = "from txlib.recipes import Recipe\n"


@pytest.fixture
def reverse(tmp_path, monkeypatch):
    """The file of the guide, in the current folder."""
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[1]
    assert len(code.splitlines()) <= 41
    (tmp_path / "reverse.py").write_text(code)
    return tmp_path / "reverse.py"


def test_the_guides_recipe_runs_with_options_and_help(reverse, txlib):
    status, out, _ = txlib("train", "reverse.py", "--help")
    assert status == 0 and "Train a GPT to reverse a row of digits." in out
    for words in ("--digits", "Length of the row.", "[default: 6]", "--steps", "--resume"):
        assert words in out
    options = ("--digits", 2, "--steps", 120, "--device", "cpu")
    status, out, error = txlib("train", "reverse.py", *options)
    assert status == 0 and "\naccuracy         " in out and "The model is in runs/reverse/model" in out, error
    result = json.loads(Path("runs/reverse/model/result.json").read_text())
    assert result["recipe"] == "train reverse" and result["digits"] == 2 and result["accuracy"] > 0.9
    assert isinstance(load_pretrained("runs/reverse/model"), GPT)
    status, _, error = txlib("train", "reverse.py", *options)
    assert status == 2 and "already holds a run; resume it (--resume)" in error
    assert txlib("train", "reverse.py", *options, "--resume")[0] == 0
    assert "train reverse" not in RECIPES  # it is not a command of txlib


def test_a_finished_run_is_extended_and_started_from(reverse, txlib):
    def train(*options) -> dict:
        status, _, error = txlib("train", "reverse.py", "--digits", 2, "--device", "cpu", *options)
        assert status == 0, error
        folder = dict(zip(options, options[1:], strict=False)).get("--out", "runs/reverse")
        return json.loads(Path(folder, "model", "result.json").read_text())

    first = train("--steps", 60)
    again = train("--steps", 1, "--out", "runs/again", "--start-from", "runs/reverse")
    assert again["steps"] == 1 and again["start_from"] == "runs/reverse"
    assert again["validation_loss"] == pytest.approx(first["validation_loss"], rel=0.2)  # from scratch it is 2.3
    longer = train("--steps", 90, "--extend")
    assert longer["steps"] == 90 and longer["validation_loss"] < first["validation_loss"]
    assert train("--steps", 90, "--resume") == longer  # its length is now the new one
    before = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    reverse.write_text(reverse.read_text().replace("layers=2", "layers=1"))
    for options, sentence in (
        (["--steps", 30, "--extend"], "runs/reverse has been trained for 90 steps; steps=30 must be more"),
        (["--extend"], "runs/reverse can only be extended to a longer run; give the new steps or minutes, in all"),
        (["--steps", 9, "--extend", "--out", "runs/none"], "runs/none holds no run to resume"),
        (["--steps", 9, "--out", "runs/new", "--start-from", "nowhere"], "nowhere holds no finished run to start from"),
        (["--resume", "--start-from", "runs/again"], "was started with start_from=None, not start_from=runs/again"),
        (["--steps", 9, "--out", "runs/new", "--start-from", "runs/reverse"], "which the model lacks (0 missing, "),
    ):
        status, _, error = txlib("train", "reverse.py", "--digits", 2, "--device", "cpu", *options)
        assert status == 2 and error.count("\n") == 1 and sentence in error, error
    assert {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()} == before


@tiny.forks
@pytest.mark.parametrize("length", [{"steps": 60}, {"minutes": 0.03}], ids=["steps", "minutes"])
def test_an_extension_that_was_killed_before_its_first_checkpoint_goes_on(reverse, tmp_path, length):
    recipe, module, out = load_recipe(reverse), sys.modules["txlib.recipes.run"], tmp_path / "out"
    run(recipe, out, minutes=0.001, quiet=True, digits=2)
    trained = json.loads((out / "model" / "result.json").read_text())["steps"]

    def die() -> None:
        module.train = tiny.dies_in(2, signal.SIGKILL)
        run(recipe, out, extend=True, quiet=True, **length)

    process = multiprocessing.get_context("fork").Process(target=die)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL and len(list(out.glob("checkpoints/*"))) == 1
    steps = run(recipe, out, resume=True, quiet=True)["steps"]
    assert steps == length.get("steps", steps) > trained
    assert run(recipe, out, resume=True, quiet=True, **length)["steps"] == steps  # it is extended once


def test_a_recipe_may_change_one_of_txlibs_and_import_its_neighbors(tmp_path):
    (tmp_path / "neighbor_of_recipe.py").write_text("DATA = 'digits'")
    path = tmp_path / "mine.py"
    path.write_text(
        "from neighbor_of_recipe import DATA\nfrom txlib.recipes.vision import Vision\n"
        "class Mine(Vision):\n    data: str = DATA\n"
    )
    recipe = load_recipe(path)
    assert recipe.__name__ == "Mine" and recipe().data == "digits" and RECIPES["train vision"] is not recipe


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1", "mine.py defines no recipe; add a subclass of txlib.recipes.Recipe, see docs/own_recipe.md"),
        (
            f"{BASE}class A(Recipe): pass\nclass B(Recipe): pass",
            "mine.py defines 2 recipes, A and B; leave one and move the others to files",
        ),
        ("x = 1\ny = x / 0", "mine.py, line 2 raises ZeroDivisionError: division by zero; fix it"),
        ("x = 1\n\ndef f(:\n", "mine.py, line 3 raises SyntaxError: "),
        ("import not_there_at_all", "mine.py, line 1 raises ModuleNotFoundError: No module named 'not_there_at_all'"),
        (f'{BASE}class A(Recipe):\n    command = "train bert"', "are both `txlib train bert`; choose another command"),
        (
            f"{BASE}class A(Recipe): pass",
            "A lacks make_model and make_batches and loss; define what every recipe needs",
        ),
    ],
    ids=["none", "two", "raises", "syntax", "import", "taken", "incomplete"],
)
def test_a_wrong_file_is_one_sentence(txlib, tmp_path, monkeypatch, code, message):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(code)
    status, out, error = txlib("train", "mine.py", "--steps", 1, "--device", "cpu")
    assert (status, out, error.count("\n")) == (2, "", 1) and message in error, error
    assert not Path("runs").exists()


def test_a_missing_file_and_a_misspelled_recipe_are_named(txlib):
    assert "nowhere.py is not there; give the path of a Python file" in txlib("train", "nowhere.py")[2]
    assert "`txlib train visoin` is unknown; did you mean 'vision'?" in txlib("train", "visoin")[2]
    assert "`txlib train zebra` is unknown; choose one of " in txlib("train", "zebra")[2]
    error = txlib("train", "translation", "--model", "transfomer", "--steps", 1)[2]
    assert "model 'transfomer' is unknown; choose one of rnn-plain" in error and "did you mean 'transformer'?" in error


def test_a_subclass_is_a_dataclass_with_a_command():
    class Lines(Recipe):
        """Nothing but options."""

        times: int = option(3, "How often.")

    assert Lines(times=4).times == 4 and Lines().seed == 0 and Lines.command == "train lines"
    assert Lines() == Lines() and Lines.command not in RECIPES
    with pytest.raises(TypeError, match="times_"):
        Lines(times_=3)
