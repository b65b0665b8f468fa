"""`python -m txcourse.site`: the same as `make site`. An argument is the address of the course on GitHub."""

import shutil
import subprocess
import sys
from pathlib import Path

from txcourse.paths import course_folder
from txcourse.site.checks import look_over
from txcourse.site.opening import github
from txcourse.site.stage import NotReady, stage, write_for_colab


def build(course: Path, out: Path, repository: str = "") -> list[str]:
    """Make the site in `out`/html, with links to where the course is hosted, if it is.

    Returns what is wrong with it, a line each place; nothing if all is well.
    """
    try:
        stage(course, out / "source", repository)
    except NotReady as error:
        return error.problems
    if not (out / "html" / "searchindex.js").exists():  # nothing there, or a build was stopped: begin anew
        shutil.rmtree(out / "doctrees", ignore_errors=True)
    options = ["-W", "--keep-going", "-n", "-q", "-j", "auto", "-c", course / "docs", "-d", out / "doctrees"]
    command = [sys.executable, "-m", "sphinx", *map(str, options), str(out / "source"), str(out / "html")]
    if subprocess.run(command).returncode:
        return ["Sphinx has warned, see above"]
    if repository:
        write_for_colab(course, out / "html", repository)
        (out / "html" / ".nojekyll").touch()  # GitHub Pages would leave out folders like _static
    return look_over(out / "html")


def main(arguments: list[str]) -> None:
    repository = arguments[0] if arguments else ""
    if repository:
        try:
            github(repository)
        except ValueError as error:
            sys.exit(str(error))
    course = course_folder("`make site`")
    build_or_exit(course, course / "build" / "site", repository)


def build_or_exit(course: Path, out: Path, repository: str = "") -> None:
    """Build the site of a course, and say where it is or what is wrong with it."""
    if problems := build(course, out, repository):
        sys.exit("\n".join([*problems, f"The site is not ready: {len(problems)} problems"]))
    print(f"Open {out / 'html' / 'index.html'}")


if __name__ == "__main__":
    main(sys.argv[1:])
