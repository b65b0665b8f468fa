"""Where the course's own folder is, with its lessons and data: the clone that txlib was installed from."""

import tomllib
from pathlib import Path

PACKAGES = Path(__file__).parents[2]  # the folder that txlib is imported from: the clone, or site-packages


def course_folder(who: str) -> Path:
    """The clone's folder, for somebody who can't do without: `course_folder("txlib lab")`.

    Raises:
        FileNotFoundError: txlib was not installed from a clone.
    """
    if not is_course(PACKAGES):
        raise FileNotFoundError(
            f"{who} needs the course's folder, and this txlib, in {PACKAGES}, was installed without: "
            "clone the course and run `make lab` in its folder"
        )
    return PACKAGES


def is_course(folder: Path) -> bool:
    """Whether a folder is the course's, or a clone of it."""
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return project.get("project", {}).get("name") == "txlib-course"
