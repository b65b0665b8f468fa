"""Every notebook opens in JupyterLab as `txcourse lab` configures it, whichever of its files is newer."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

pytestmark = pytest.mark.slow
COURSE = Path(__file__).parents[2]
PARTS = ("notebooks", "exercises", "solutions", "lab")
# What JupyterLab's own server finds below its folder, and what its contents manager says to each notebook.
ASK = """
import asyncio, json, sys
from jupyterlab.labapp import LabApp
from txcourse.lab import prepare

prepare(author=sys.argv[1] == "author")
server = LabApp.initialize_server(argv=["--ServerApp.port=0", "--ServerApp.open_browser=False"])

async def ask():
    manager, found, trusted = server.contents_manager, {}, []
    for folder in ("notebooks", "exercises", "solutions"):
        for each in (await manager.get(folder))["content"]:
            try:
                model = await manager.get(each["path"])
                code = [cell["metadata"] for cell in model["content"]["cells"] if cell["cell_type"] == "code"]
                if all(metadata["trusted"] for metadata in code):
                    trusted.append(each["path"])
                if "save" in sys.argv:
                    await manager.save(model, each["path"])
                found[each["path"]] = len(model["content"]["cells"])
            except Exception as reason:
                found[each["path"]] = str(reason)
    return found, trusted

found, trusted = asyncio.run(ask())
kernels = sorted(server.kernel_spec_manager.find_kernel_specs())
print(json.dumps({"found": found, "kernels": kernels, "trusted": sorted(trusted)}))
"""


@pytest.fixture
def course(tmp_path):
    """A copy of the course, whose notebooks may be touched."""
    folder = tmp_path / "course"
    for part in PARTS:
        shutil.copytree(COURSE / part, folder / part)
    for part in ("txlib", "txgrade", "txcourse", "data"):
        (folder / part).symlink_to(COURSE / part)
    shutil.copy(COURSE / "pyproject.toml", folder)
    return folder


@pytest.fixture
def ask(course, tmp_path):
    """Start Lab's server in a process of its own and ask it: `ask("learner")`."""

    def ask(*words):
        for part in ("config", "data", "runtime"):
            (tmp_path / part).mkdir(exist_ok=True)
        private = {f"JUPYTER_{part.upper()}_DIR": str(tmp_path / part) for part in ("config", "data", "runtime")}
        environment = os.environ | private | {"PYTHONPATH": str(course)}
        done = subprocess.run(
            [sys.executable, "-c", ASK, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.splitlines()[-1])

    return ask


def age(course, older: str) -> None:
    """Let all files of one kind be a day older than the others."""
    for path in (path for part in PARTS for path in (course / part).rglob("*.*")):
        when = path.stat().st_mtime - 86400 * (path.suffix == older)
        os.utime(path, (when, when))


def cells(course):
    """The notebooks of the course, as a server names them, with the number of their cells."""
    paths = sorted(path for part in PARTS[:3] for path in (course / part).glob("*.ipynb"))
    return {path.relative_to(course).as_posix(): len(nbformat.read(path, as_version=4).cells) for path in paths}


@pytest.mark.parametrize("older", [".py", ".ipynb"])
def test_a_learners_notebooks_open(course, ask, older):
    age(course, older)
    answer = ask("learner")
    assert answer["found"] == cells(course)
    assert answer["kernels"] == ["python3"], "the grader's kernel keeps no progress"
    for path in (course / "my_work").rglob("*.ipynb"):
        os.utime(path, (0, 0) if older == ".ipynb" else None)
    assert ask("learner", "save")["found"] == cells(course)
    assert not list((course / "my_work").rglob("*.py"))


def test_the_courses_notebooks_are_trusted_but_none_that_somebody_changed(course, ask):
    assert ask("learner")["trusted"] == list(cells(course))
    changed, own = (course / "my_work/notebooks" / name for name in ("03_attention.ipynb", "own.ipynb"))
    notebook = nbformat.read(changed, as_version=4)
    output = next(output for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output)
    output.data["text/html"] = "<script>alert()</script>"
    for path in (changed, own):
        nbformat.write(notebook, path)
    assert ask("learner")["trusted"] == [name for name in cells(course) if name != "notebooks/03_attention.ipynb"]


@pytest.mark.parametrize("older", [".py", ".ipynb"])
def test_an_authors_notebooks_open_and_are_saved_with_their_sources(course, ask, older):
    texts = {path: path.read_text(encoding="utf-8") for part in PARTS for path in (course / part).glob("[0-9]*.py")}
    age(course, older)
    before = {path: path.stat().st_mtime_ns for path in texts}
    found = ask("author", "save")["found"]
    assert {name: found[name] for name in cells(course)} == cells(course)
    assert texts and {path: path.read_text(encoding="utf-8") for path in texts} == texts
    assert all(path.stat().st_mtime_ns > before[path] for path in texts), "a source is not written with its notebook"
