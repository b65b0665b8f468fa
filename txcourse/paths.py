"""Where the course's own folder is: the clone that txcourse was installed from."""

import tomllib
from pathlib import Path

FOLDER = Path(__file__).parents[1]  # the folder that txcourse is imported from: the clone, or site-packages


def course_folder(who: str) -> Path:
    """Return the clone's folder, for a command that needs it: `course_folder("txcourse lab")`.

    Raises:
        FileNotFoundError: txcourse was not installed from a clone.
    """
    if not is_course(FOLDER):
        raise FileNotFoundError(
            f"{who} needs the course's folder, and this txcourse, in {FOLDER}, was installed without it: "
            "clone the course and run `make lab` in its folder"
        )
    return FOLDER


def is_course(folder: Path) -> bool:
    """Whether a folder is the course's, or a clone of it."""
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return project.get("project", {}).get("name") == "txlib-course"
