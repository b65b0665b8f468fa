"""Where a page's notebook can be opened, in JupyterLab or elsewhere, and where to say that something in it is wrong."""

import copy
import re
from html import escape
from typing import Any
from urllib.parse import urlencode

from txcourse.site.places import headed

BRANCH = "gh-pages"  # where .github/workflows/site.yml puts the finished site, and in it the notebooks for Colab
FOLDER = "colab"
LAB = "http://localhost:8888/lab/tree"  # where `make lab` opens, unless that port is taken
PROJECTS = {  # what a notebook needs: the name, with extras, and the folder of each project
    "txlib-course[train,plots]": "",
    "txgrade": "txgrade",
    "txlib-course-data": "data",
}
BESIDE = "cloudpickle"  # of txcourse, which has no dependencies here: Colab has a JupyterLab of its own kind


def github(repository: str) -> tuple[str, str]:
    """The owner and the name in an address: ("somebody", "txlib") for "https://github.com/somebody/txlib".

    Raises:
        ValueError: it is no such address.
    """
    match = re.fullmatch(r"https://github\.com/([\w.-]+)/([\w.-]+?)(?:\.git)?/?", repository)
    if not match:
        raise ValueError(f"REPOSITORY={repository!r} is no address like https://github.com/somebody/txlib")
    return match[1], match[2]


def opening(name: str, repository: str = "") -> str:
    """A line for the top of a page: how to run its notebook, e.g. "notebooks/03_attention.ipynb"."""
    places = [f"`make lab`, then [in JupyterLab]({LAB}/{name})"]
    if repository:
        owner, project = github(repository)
        colab = f"https://colab.research.google.com/github/{owner}/{project}/blob/{BRANCH}/{FOLDER}/{name}"
        places += [
            f"[in Colab]({colab})",
            f"[in Binder](https://mybinder.org/v2/gh/{owner}/{project}/HEAD?labpath={name})",
        ]
    return f"*Run it:* {' · '.join(places)}"


def put_opening(name: str, notebook: Any, repository: str) -> None:
    """Write that line below the notebook's title."""
    title, _, rest = notebook.cells[0].source.partition("\n")
    notebook.cells[0].source = f"{title}\n\n{opening(name, repository)}\n{rest}"


def put_questions(name: str, notebook: Any, repository: str) -> None:
    """End each section of a notebook that is hosted on GitHub with a link to a form for mistakes, filled in."""
    from nbformat.v4 import new_markdown_cell

    title, section = notebook.cells[0].source.partition("\n")[0].removeprefix("# "), ""
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        lines: list[str] = []
        for line, heading in headed(cell.source):
            if heading and heading[0] == 2:
                if section:
                    lines += [question(repository, name, title, section), ""]
                section = heading[1]
            lines.append(line)
        cell.source = "\n".join(lines)
    if section:
        notebook.cells.append(new_markdown_cell(question(repository, name, title, section), id="question"))


def question(repository: str, name: str, title: str, section: str) -> str:
    """A line with a link to the form of .github/ISSUE_TEMPLATE/lesson.yml."""
    owner, project = github(repository)
    filled = {"template": "lesson.yml", "title": f"{title}: {section}", "where": f"{name}, section {section}"}
    url = f"https://github.com/{owner}/{project}/issues/new?{urlencode(filled)}"
    return f'<p class="question"><a href="{escape(url)}">Something wrong here?</a></p>'


def for_colab(notebook: Any, source: str) -> Any:
    """A copy that begins with a cell that installs the course where it is missing, and does nothing at home.

    Args:
        source: what pip takes: "git+https://github.com/somebody/txlib".
    """
    from nbformat.v4 import new_code_cell

    folders = {project: f"#subdirectory={folder}" if folder else "" for project, folder in PROJECTS.items()}
    projects = " ".join(f'"{project} @ {source}{folder}"' for project, folder in folders.items())
    install = new_code_cell(
        "# Installs the course where it is missing, as in Colab. At home nothing happens.\n"
        "import importlib.util\n\n"
        'if importlib.util.find_spec("txlib") is None:\n'
        f"    %pip install -q {projects} {BESIDE}\n"
        f'    %pip install -q --no-deps "txcourse @ {source}#subdirectory=txcourse"',
        id="install",
    )
    copied = copy.deepcopy(notebook)
    copied.cells.insert(0, install)
    return copied
