"""The course in JupyterLab."""

import os
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from txcourse.copies import PARTS, Copies
from txcourse.paths import course_folder
from txgrade.authoring.check_notebook import NotebookError, read_notebook

SETTINGS = "lab"  # the folder with JupyterLab's settings for the course; in it, those for authors


def start(arguments: Sequence[str] = (), author: bool = False) -> None:
    """Open JupyterLab on a learner's copies of the course, until it is shut down. `arguments` are `jupyter lab`'s.

    An author gets the course itself, and sources paired with their notebooks.

    Raises:
        FileNotFoundError: txcourse was not installed from a clone of the course.
    """
    prepare(author)
    from jupyterlab.labapp import LabApp

    LabApp.launch_instance(argv=list(arguments))


def prepare(author: bool = False) -> None:
    """Let a JupyterLab that this process starts find the course's settings, and open on its folder.

    The settings come after the reader's own: theirs win where both say something.
    """
    course = course_folder("txcourse lab")
    trust(course)
    settings = [course / SETTINGS]
    if author:
        settings.insert(0, course / SETTINGS / "author")
        os.chdir(course)
    else:
        copies = Copies(course)
        for line in copies.refresh():
            print(line, flush=True)
        os.chdir(copies.folder)
    before = os.environ.get("JUPYTER_CONFIG_PATH")
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join([*map(str, settings), *([before] if before else [])])


def trust(course: Path) -> None:
    """Sign the course's own notebooks, as `jupyter trust` does, so that the views in their outputs can be touched.

    JupyterLab knows a notebook by its content: a copy is trusted as long as nobody has changed it, and what a learner
    has from elsewhere is not.
    """
    from jupyter_core.paths import jupyter_data_dir
    from nbformat.sign import NotebookNotary

    data = Path(jupyter_data_dir())
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        notary = NotebookNotary(data_dir=str(data))
        with closing(notary.store):
            for path in (path for part in PARTS for path in course.glob(f"{part}/*.ipynb")):
                with suppress(NotebookError):  # a broken one opens no better
                    notary.sign(read_notebook(path))
    except OSError as reason:
        print(
            f"The course's notebooks can't be trusted ({reason}): run a cell, and its view can be touched", flush=True
        )
