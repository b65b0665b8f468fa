"""The wheels of the four projects work without the clone: their contents, and (slow) installations that use them."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

import nbformat
import pytest

import txlib
from txgrade.sandbox import probe

COURSE = Path(__file__).parents[3]
FOLDERS = {"txlib_course": ".", "txgrade": "txgrade", "txcourse": "txcourse", "txlib_course_data": "data"}
PACKAGES = {"txlib_course": "txlib", "txgrade": "txgrade", "txcourse": "txcourse", "txlib_course_data": "txlib_data"}
SAMPLE = COURSE / "tests" / "txgrade" / "sample" / "03_sample.py"
LEFT_BEHIND = ("__pycache__", "*.pyc", ".DS_Store")


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """The wheel of each project, by the distribution's name, built from a copy of the course."""
    pytest.importorskip("hatchling")
    pytest.importorskip("pip")
    clone, out = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("wheels")
    for folder in ("txlib", "txgrade", "txcourse", "data"):
        shutil.copytree(COURSE / folder, clone / folder, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(COURSE / file, clone)
    projects = [clone / folder for folder in FOLDERS.values()]
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, *projects)
    return {path.name.partition("-")[0]: path for path in out.glob("*.whl")}


def pip(*arguments: object) -> None:
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def files(folder: Path) -> set[str]:
    """The files of a package, as its wheel should hold them."""
    ignored = shutil.ignore_patterns(*LEFT_BEHIND)
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not ignored("", path.parts)
    }


def about(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return BytesParser().parsebytes(archive.read(next(n for n in archive.namelist() if n.endswith("/METADATA"))))


@pytest.mark.parametrize("name", FOLDERS)
def test_a_wheel_holds_its_package_and_nothing_else(wheels, name):
    package = PACKAGES[name]
    with zipfile.ZipFile(wheels[name]) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    inside = {each.removeprefix(f"{package}/") for each in names if each.startswith(f"{package}/")}
    assert inside == files(COURSE / "data" if name == "txlib_course_data" else COURSE / package)
    rest = {each.split("/")[0] for each in names} - {package}
    assert rest == {f"{name}-{txlib.__version__}.dist-info"}


def test_the_library_is_small_and_free_of_the_data_licenses(wheels):
    assert wheels["txlib_course"].stat().st_size < 1e6
    assert about(wheels["txlib_course"])["License-Expression"] == "MIT"
    assert about(wheels["txgrade"])["License-Expression"] == "MIT"


def test_the_data_bring_their_licenses(wheels):
    with zipfile.ZipFile(wheels["txlib_course_data"]) as archive:
        kept = {name.partition("/licenses/")[2] for name in archive.namelist() if "/licenses/" in name}
    data = {name for name in files(COURSE / "data") if name.endswith("LICENSE") or name.startswith("GPL-")}
    assert kept == data and len(data) > 8
    assert {"MIT", "GPL-2.0-or-later", "GPL-3.0-or-later"} <= set(
        about(wheels["txlib_course_data"])["License-Expression"].split()
    )


def environment(folder: Path, *wheels: Path) -> Path:
    """Make an environment that has all packages of this one, but ours from wheels; return its `bin`."""
    here = Path(sysconfig.get_path("purelib"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    there = folder / here.relative_to(sys.prefix)
    leave = shutil.ignore_patterns("*txlib*", "*txgrade*", "*txcourse*", *LEFT_BEHIND)
    try:
        shutil.copytree(here, there, ignore=leave, copy_function=os.link, dirs_exist_ok=True)
    except (OSError, shutil.Error) as reason:
        pytest.skip(f"packages cannot be linked into {there}: {str(reason)[:200]}")
    pip("--python", folder / "bin" / "python", "install", "--no-deps", "--no-index", *wheels)
    return folder / "bin"


@pytest.fixture(scope="module")
def installed(wheels, tmp_path_factory):
    return environment(tmp_path_factory.mktemp("environment") / "venv", *wheels.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["txlib_course", "txgrade"])
def test_each_works_alone(wheels, tmp_path, name):
    bin = environment(tmp_path / "venv", wheels[name])
    outside = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TX"))}

    def run(*words: object) -> subprocess.CompletedProcess:
        return subprocess.run([*map(str, words)], cwd=tmp_path, env=outside, capture_output=True, text=True)

    if name == "txgrade":
        (tmp_path / "solutions").mkdir()
        shutil.copy(SAMPLE, tmp_path / "solutions")
        done = run(bin / "txgrade", "release", "solutions/03_sample.py")
        assert "5 points" in done.stdout, done.stderr
        return
    code = "import txlib; print(txlib.attention.causal().pairs(4)); txlib.data.translation('games')"
    done = run(bin / "python", "-c", code)
    assert done.stdout.strip() == "10"
    assert "it is in txlib-course-data, which is not installed; pip install" in done.stderr.splitlines()[-1]


@pytest.fixture
def run(installed, tmp_path):
    """A command of that environment, run in a folder that is no clone; returns what it prints."""

    def run(program: str, *arguments: object, status: int = 0) -> str:
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TX"))}
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
    said = run("txcourse", "lab", status=2)
    assert said.count("\n") == 1 and "clone the course" in said
    missing = "import sys; sys.modules['typer'] = None; import txlib.cli"
    said = run("python", "-c", missing, status=1)
    assert said.count("\n") == 1 and 'pip install "txlib-course[train] @ file://' in said


@pytest.mark.slow
@pytest.mark.skipif(probe().level != "sealed", reason=f"no sealed sandbox here: {probe().holes}")
def test_an_exercise_of_ones_own_is_released_and_graded(run, tmp_path):
    (tmp_path / "solutions").mkdir()
    shutil.copy(SAMPLE, tmp_path / "solutions")
    assert "5 points" in run("txgrade", "validate", "solutions/03_sample.py")
    run("txgrade", "release", "solutions/03_sample.py")
    exercise = nbformat.read(tmp_path / "exercises" / "exercise_03_sample.ipynb", as_version=4)
    answer = next(cell for cell in exercise.cells if cell.metadata.get("nbgrader", {}).get("grade_id") == "causal-mask")
    answer.source = "def causal_mask(n):\n    return torch.ones(n, n).tril().bool()"
    (tmp_path / "inbox").mkdir()
    nbformat.write(exercise, tmp_path / "inbox" / "ada.ipynb")
    run("txgrade", "grade", "--assignment", "solutions/03_sample.py", "--submissions", "inbox", "--out", "results")
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
