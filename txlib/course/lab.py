"""The course in JupyterLab."""

import os
from collections.abc import Sequence

from txlib.course.copies import Copies
from txlib.root import course_folder

SETTINGS = "lab"  # the folder with JupyterLab's settings for the course; in it, those for authors


def start(arguments: Sequence[str] = (), author: bool = False) -> None:
    """Open JupyterLab on a learner's copies of the course, until it is shut down. `arguments` are `jupyter lab`'s.

    An author gets the course itself, and sources paired with their notebooks.

    Raises:
        FileNotFoundError: txlib was not installed from a clone of the course.
    """
    prepare(author)
    from jupyterlab.labapp import LabApp

    LabApp.launch_instance(argv=list(arguments))


def prepare(author: bool = False) -> None:
    """Let a JupyterLab that this process starts find the course's settings, and open on its folder.

    The settings come after the reader's own: theirs win where both say something.
    """
    course = course_folder("txlib lab")
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
