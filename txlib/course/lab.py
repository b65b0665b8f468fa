"""The course in JupyterLab."""

import os
from collections.abc import Sequence
from pathlib import Path

COURSE = Path(__file__).parents[2]
CONFIG = "lab"  # the folder with JupyterLab's settings for the course


def start(arguments: Sequence[str] = ()) -> None:
    """Open JupyterLab on the course, until it is shut down. `arguments` are those of `jupyter lab`.

    The course's settings come after the reader's own: theirs win where both say something.

    Raises:
        FileNotFoundError: txlib was not installed from a clone of the course.
    """
    if not (COURSE / CONFIG).is_dir():
        raise FileNotFoundError(f"no course at {COURSE}: clone the course and run `make lab` in its folder")
    from jupyterlab.labapp import LabApp

    os.chdir(COURSE)
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(
        [str(COURSE / CONFIG), *filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])]
    )
    LabApp.launch_instance(argv=list(arguments))
