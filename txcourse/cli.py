"""The command `txcourse`: the course in JupyterLab, and a learner's copies of it."""

from pathlib import Path
from typing import Annotated

import typer

from txcourse.paths import course_folder
from txgrade.terminal import new_app, run

app = new_app("txcourse", "The course on Transformers: open it, update it, get a fresh copy of a notebook.")


def main() -> None:
    """Run the command `txcourse`."""
    run(app, "txcourse")


@app.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
def lab(
    options: Annotated[list[str] | None, typer.Argument(metavar="[OPTION]…")] = None,
    author: Annotated[bool, typer.Option("--author")] = False,
) -> None:
    """Open your copy of the course, my_work/, in JupyterLab; with --author the course itself.

    Takes the options of `jupyter lab`, e.g. --no-browser.
    """
    from txcourse.lab import start

    start(options or (), author)


@app.command()
def update() -> None:
    """Bring in the newest version of the course. What you have done stays."""
    from txcourse.update import update

    for line in update(course_folder("txcourse update")):
        print(line)


@app.command()
def fresh(
    notebooks: Annotated[
        list[str], typer.Argument(metavar="NOTEBOOK…", help="e.g. exercises/exercise_03_attention.ipynb")
    ],
    keep_answers: Annotated[
        bool, typer.Option("--keep-answers", help="Put an exercise's answers into the fresh copy.")
    ] = False,
) -> None:
    """Get a fresh copy of a lesson or an exercise. The old one is kept aside."""
    from txcourse.copies import Copies

    for notebook in notebooks:
        for line in Copies(course_folder("txcourse fresh")).renew(notebook, keep_answers):
            print(line)


@app.command()
def publish(
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="The learners' repository; created if it is missing.")],
    site: Annotated[bool, typer.Option("--site", help="Build its website, too, in build/learners-site/html.")] = False,
) -> None:
    """Make the learners' repository from this one, or bring it up to date: without solutions, and what needs them.

    Refuses if an answer of any exercise is found in what learners would get.
    """
    from txcourse.publish import publish

    course = course_folder("txcourse publish")
    for line in publish(course, to):
        print(line, flush=True)
    if site:
        from txcourse.site.__main__ import build_or_exit

        build_or_exit(to.resolve(), course / "build" / "learners-site")


if __name__ == "__main__":
    main()
