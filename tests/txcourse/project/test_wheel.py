"""The wheel works without the clone: its contents, and (slow) an installation elsewhere that uses them."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from email.parser import BytesParser
from pathlib import Path

import nbformat
import pytest

import txlib
from txgrade.sandbox import probe

COURSE = Path(__file__).parents[3]
PARTS = ("txlib", "data", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
SAMPLE = COURSE / "tests" / "txgrade" / "sample" / "03_sample.py"
LEFT_BEHIND = ("__pycache__", "*.pyc")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The wheel of a copy of the course, in which an earlier build has left something."""
    pytest.importorskip("setuptools", minversion="77")
    pytest.importorskip("pip")
    clone, out = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("wheel")
    for part in PARTS:
        if (COURSE / part).is_dir():
            shutil.copytree(COURSE / part, clone / part, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
        else:
            shutil.copy(COURSE / part, clone)
    stale = clone / "build" / "lib" / "txlib" / "renamed_since.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, clone)
    (found,) = out.glob("*.whl")
    return found


def pip(*arguments: object) -> None:
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def files(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and path.name != ".DS_Store"
    }


def test_it_holds_the_library_the_data_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    inside = {name.removeprefix("txlib/") for name in names if name.startswith("txlib/")}
    embedded = {name.removeprefix("embedded/") for name in inside if name.startswith("embedded/")}
    assert embedded == files(COURSE / "data")
    assert {name for name in inside if not name.startswith("embedded/")} == files(COURSE / "txlib")
    rest = {name.split("/")[0].removeprefix(f"txlib_course-{txlib.__version__}.") for name in names}
    assert rest == {"txlib", "dist-info"}
    assert wheel.stat().st_size < 40e6


def test_licences_come_along(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        about = BytesParser().parsebytes(archive.read(next(name for name in names if name.endswith("/METADATA"))))
    kept = {name.partition("/licenses/")[2] for name in names if "/licenses/" in name}
    data = {f"data/{name}" for name in files(COURSE / "data") if name.endswith("LICENSE") or name.startswith("GPL-")}
    assert kept == {"LICENSE", *data} and len(data) > 8
    assert {"MIT", "GPL-2.0-or-later", "GPL-3.0-or-later"} <= set(about["License-Expression"].split())


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The `bin` folder of an environment that has all packages of this one, but txlib from the wheel."""
    environment, here = tmp_path_factory.mktemp("environment") / "venv", Path(sysconfig.get_path("purelib"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    there = environment / here.relative_to(sys.prefix)
    leave = shutil.ignore_patterns("*txlib*", *LEFT_BEHIND)
    try:
        shutil.copytree(here, there, ignore=leave, copy_function=os.link, dirs_exist_ok=True)
    except (OSError, shutil.Error) as reason:
        pytest.skip(f"packages cannot be linked into {there}: {str(reason)[:200]}")
    pip("--python", environment / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    return environment / "bin"


@pytest.fixture
def run(installed, tmp_path):
    """A command of that environment, run in a folder that is no clone; returns what it prints."""

    def run(program: str, *arguments: object, status: int = 0) -> str:
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TXLIB"))}
        outside |= {"TXGRADE_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
        command = [installed / program, *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, env=outside, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr

    return run


@pytest.mark.slow
def test_the_library_and_its_data(run, installed):
    code = "import txlib; print(txlib.__file__, txlib.__version__, len(txlib.data.translation('games').train))"
    where, version, pairs = run("python", "-c", code).split()
    assert Path(where).is_relative_to(installed.parent) and version == txlib.__version__ and int(pairs) > 10_000
    assert run("txlib", "--version").split()[1] == txlib.__version__
    listed = run("txlib", "data")
    assert "wesnoth" in listed and "games-de-en" in listed


@pytest.mark.slow
def test_models_come_along_and_are_trained(run):
    assert "king" in run("txlib", "translate", "--model", "games-de-en", "Der König schläft.").lower()
    written = run("txlib", "generate", "--model", "glassllm-en", "--greedy", "Alice was")
    assert " ".join(written.split()).startswith("Alice was going to see")
    run("txlib", "train", "shakespeare", "--steps", 2, "--device", "cpu", "--out", "run")
    assert run("txlib", "generate", "--model", "run", "--max-new-tokens", 5, "ROMEO:").startswith("ROMEO:")


@pytest.mark.slow
def test_the_clone_is_asked_for_in_one_line(run):
    said = run("txlib", "lab", status=2)
    assert said.count("\n") == 1 and "clone the course" in said
    missing = "import sys; sys.modules['typer'] = None; import txlib.cli"
    said = run("python", "-c", missing, status=1)
    assert said.count("\n") == 1 and 'pip install "txlib-course[train] @ file://' in said


@pytest.mark.slow
@pytest.mark.skipif(probe().level != "sealed", reason=f"no sealed sandbox here: {probe().holes}")
def test_an_exercise_of_ones_own_is_released_and_graded(run, tmp_path):
    (tmp_path / "solutions").mkdir()
    shutil.copy(SAMPLE, tmp_path / "solutions")
    assert "5 points" in run("txlib", "validate", "solutions/03_sample.py")
    run("txlib", "release", "solutions/03_sample.py")
    exercise = nbformat.read(tmp_path / "exercises" / "exercise_03_sample.ipynb", as_version=4)
    answer = next(cell for cell in exercise.cells if cell.metadata.get("nbgrader", {}).get("grade_id") == "causal-mask")
    answer.source = "def causal_mask(n):\n    return torch.ones(n, n).tril().bool()"
    (tmp_path / "inbox").mkdir()
    nbformat.write(exercise, tmp_path / "inbox" / "ada.ipynb")
    run("txlib", "grade", "--assignment", "solutions/03_sample.py", "--submissions", "inbox", "--out", "results")
    assert "ada,2,5,graded,sealed" in (tmp_path / "results" / "grades.csv").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(probe().level != "sealed", reason=f"no sealed sandbox here: {probe().holes}")
def test_the_sealed_kernel_runs(run):
    code = """
from txgrade.sandbox import Limits
from txgrade.sandbox.kernel import Cell, Kernel
with Kernel(Limits()) as kernel:
    kernel.run("import os, txlib; print(os.getcwd(), len(txlib.data.verses().train))", 0, 60, cell := Cell())
print(*(output["text"] for output in cell.outputs), sep="", end="")
"""
    assert run("python", "-c", code) == "/learner 15427\n"
