"""Links that open a notebook elsewhere, from a fork's own address, and the cell that installs the course there."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from html import unescape
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from txcourse.site.opening import for_colab, github, opening, put_opening, put_questions

COURSE = Path(__file__).parents[3]
FORK = "https://github.com/Ada-L/my.txlib"
NAME = "notebooks/03_attention.ipynb"


def test_links_lead_to_a_fork():
    line = opening(NAME, FORK)
    assert "github/Ada-L/my.txlib/blob/gh-pages/colab/notebooks/03_attention.ipynb)" in line
    assert "mybinder.org/v2/gh/Ada-L/my.txlib/HEAD?labpath=notebooks/03_attention.ipynb)" in line
    assert github(FORK + ".git") == github(FORK + "/") == ("Ada-L", "my.txlib")


def test_without_an_address_nothing_leads_away():
    line = opening(NAME)
    assert "colab" not in line.lower() and "binder" not in line.lower()
    assert "http://localhost:8888/lab/tree/notebooks/03_attention.ipynb" in line


@pytest.mark.parametrize("address", ["github.com/a/b", "https://github.com/a", "https://gitlab.com/a/b", "a/b"])
def test_an_address_that_is_none_is_named(address):
    with pytest.raises(ValueError, match="is no address like https://github.com/somebody/txlib") as error:
        github(address)
    assert address in str(error.value)


def test_the_line_stands_below_the_title():
    notebook = new_notebook(cells=[new_markdown_cell("# 03 · Attention\n\nWhat you will learn.")])
    put_opening(NAME, notebook, "")
    title, line, rest = (part for part in notebook.cells[0].source.split("\n") if part)
    assert (title, rest) == ("# 03 · Attention", "What you will learn.") and line.startswith("*Run it:*")


def test_each_section_ends_with_a_form_that_knows_it():
    cells = [
        new_markdown_cell("# 03 · Attention\n\nWhat you will learn."),
        new_markdown_cell("## 1 A lookup\n\n### 1.1 Hard & soft\n\nText."),
        new_code_cell("## no heading"),
        new_markdown_cell("Between.\n\n## 2 Scores\n\n```\n## no heading\n```"),
        new_code_cell("1"),
    ]
    notebook = new_notebook(cells=cells)
    put_questions(NAME, notebook, FORK + ".git/")
    nbformat.validate(notebook)
    text = "\n".join(cell.source for cell in notebook.cells)
    assert text.count("Something wrong here?") == 2
    first, second = re.findall(r'href="([^"]+)"', text)
    assert text.index(first) < text.index("## 2 Scores") < text.index("```\n## no") < text.index(second)
    assert first.startswith(f"{FORK}/issues/new?template=lesson.yml&amp;")
    asked = parse_qs(urlsplit(unescape(second)).query)
    assert asked["where"] == [f"{NAME}, section 2 Scores"] and asked["title"] == ["03 · Attention: 2 Scores"]
    form = (COURSE / ".github/ISSUE_TEMPLATE/lesson.yml").read_text("utf-8")
    assert "id: where" in form


def test_the_first_cell_in_colab_installs_the_fork():
    lesson = nbformat.read(COURSE / NAME, as_version=4)
    copied = for_colab(lesson, f"git+{FORK}")
    nbformat.validate(copied)
    source = copied.cells[0].source
    assert f'"txlib-course[train,plots] @ git+{FORK}" "txgrade @ git+{FORK}#subdirectory=txgrade"' in source
    assert copied.cells[1:] == lesson.cells and len(lesson.cells) + 1 == len(copied.cells)


@pytest.fixture
def shell():
    """IPython's, for one test: where a shell is left behind, all later tests of this process display in it."""
    interactive = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
    yield interactive.instance()
    interactive.clear_instance()


def test_the_cell_does_nothing_at_home(shell, monkeypatch):
    monkeypatch.setattr(shell, "run_line_magic", lambda *asked, **_: pytest.fail(f"it ran {asked}"))
    done = shell.run_cell(for_colab(new_notebook(), "git+https://example.org").cells[0].source)
    assert done.success


@pytest.mark.slow
def test_the_cell_installs_where_the_course_is_missing(tmp_path):
    """papermill, in an environment with all packages of this one but ours; a clone on disk stands for GitHub's."""
    clone, environment = tmp_path / "clone", tmp_path / "venv"
    leave = shutil.ignore_patterns("__pycache__", "*.pyc")
    for part in ("txlib", "txgrade", "txcourse", "data", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (COURSE / part).is_dir() else shutil.copy
        copy(COURSE / part, clone / part, **({"ignore": leave} if copy is shutil.copytree else {}))
    git = ["git", "-C", clone, "-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "The course"]):
        subprocess.run([*git, *words], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    here = Path(sysconfig.get_path("purelib"))
    there = environment / here.relative_to(sys.prefix)
    leave = shutil.ignore_patterns("*txlib*", "*txgrade*", "*txcourse*", "*.pyc")
    shutil.copytree(here, there, ignore=leave, copy_function=os.link, dirs_exist_ok=True)

    code = "import txlib, txgrade, txcourse; print(txlib.__file__); print(len(txlib.data.verses().train))"
    notebook = for_colab(new_notebook(cells=[new_code_cell(code)]), f"git+{FORK}")
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, tmp_path / "in.ipynb")
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TX", "JUPYTER"))}
    bare |= {
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{clone.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": FORK,
        "JUPYTER_DATA_DIR": str(tmp_path / "jupyter"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    python = environment / "bin" / "python"
    subprocess.run([python, "-m", "ipykernel", "install", "--sys-prefix"], env=bare, check=True, capture_output=True)
    run = [
        python,
        "-m",
        "papermill",
        "--no-progress-bar",
        "--cwd",
        tmp_path,
        tmp_path / "in.ipynb",
        tmp_path / "out.ipynb",
    ]
    said = subprocess.run(run, env=bare, cwd=tmp_path, capture_output=True, text=True)
    cells = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
    install, use = (cell for cell in cells if cell.cell_type == "code")
    assert said.returncode == 0, [output.get("text", "") for output in install.outputs]
    where, pairs = "".join(output.text for output in use.outputs).split()
    assert Path(where).is_relative_to(there) and pairs == "15427"
