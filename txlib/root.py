"""Where the course's own folder is, with its lessons: the clone that txlib was installed from. Without one, as from a
wheel, the data sets and trained models are there all the same."""

import json
import tomllib
from importlib import metadata
from pathlib import Path

PACKAGES = Path(__file__).parents[1]  # the folder that txlib is imported from: the clone, or site-packages
INSIDE = PACKAGES / "txlib" / "embedded"
DATA = INSIDE if INSIDE.is_dir() else PACKAGES / "data"
"""The data sets that come along: a wheel has them inside `txlib`."""


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


def install(extra: str) -> str:
    """The command that adds an extra to this installation: from the clone or the wheel that it came from."""
    try:
        origin = json.loads(metadata.distribution("txlib-course").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    if is_course(PACKAGES):
        return f'pip install -e "{PACKAGES}[{extra}]"'
    where = f" @ {origin['url']}" if "url" in origin else " @ file:///path/to/the/wheel"
    return f'pip install "txlib-course[{extra}]{where}"'
