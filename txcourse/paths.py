"""Where the course's own folder is: the clone that txcourse was installed from."""

from pathlib import Path

from txgrade.paths import course_table

COURSE = Path(__file__).parents[1]  # the folder that txcourse is imported from: the clone, or site-packages


def course_folder(who: str) -> Path:
    """Return the clone's folder, for a command that needs it: `course_folder("txcourse lab")`.

    Raises:
        FileNotFoundError: txcourse was not installed from a clone.
    """
    if course_table(COURSE) is None:
        raise FileNotFoundError(
            f"{who} needs the course's folder, and this txcourse, in {COURSE}, was installed without it: "
            "clone the course and run `make lab` in its folder"
        )
    return COURSE
