"""Where txgrade is imported from, and the course that the work takes place in."""

import tomllib
from pathlib import Path
from typing import Any

PACKAGES = Path(__file__).parents[1]  # a clone, or site-packages


def current_course() -> Path | None:
    """Return the course's folder if the current one is in it."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if course_table(folder) is not None), None)


def course_table(folder: Path) -> dict[str, Any] | None:
    """Return the table `[tool.txgrade]` of a folder's pyproject.toml; None if the folder is not a course.

    Its key `packages` names what answers may import or read from that folder: packages, and folders of data.
    """
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return project.get("tool", {}).get("txgrade")
