"""The course in JupyterLab."""

import os
from collections.abc import Sequence

from txlib.root import course_folder

CONFIG = "lab"  # the folder with JupyterLab's settings for the course


def start(arguments: Sequence[str] = ()) -> None:
    """Open JupyterLab on the course, until it is shut down. `arguments` are those of `jupyter lab`.

    The course's settings come after the reader's own: theirs win where both say something.

    Raises:
        FileNotFoundError: txlib was not installed from a clone of the course.
    """
    course = course_folder("txlib lab")
    from jupyterlab.labapp import LabApp

    os.chdir(course)
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(
        [str(course / CONFIG), *filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])]
    )
    LabApp.launch_instance(argv=list(arguments))
