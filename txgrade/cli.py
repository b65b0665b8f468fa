"""The command `txgrade`: each subcommand is a thin function over the grader."""

import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from txgrade.author_cli import release, validate
from txgrade.grade_cli import grade
from txgrade.terminal import new_app, run, stopping

app = new_app(
    "txgrade", "Exercises that tell a learner what is wrong, and a grader that trusts nothing in a submission."
)

Out = Annotated[Path, typer.Option(metavar="FOLDER", help="The folder that the grading run wrote.")]


app.command()(release)
app.command()(validate)


def main() -> None:
    """Run the command `txgrade`."""
    run(app, "txgrade")


@app.command()
def check(
    notebooks: Annotated[
        list[Path], typer.Argument(metavar="NOTEBOOK…", help="e.g. exercises/exercise_03_attention.ipynb")
    ],
) -> None:
    """Run exercises and list their verdicts.

    Each notebook is run from top to bottom. Exit status 1: some answer is not right. What the grader measures or a
    person marks is listed, but not counted.
    """
    from txgrade.authoring.check_notebook import check_notebook
    from txgrade.checking.summary import score
    from txgrade.checking.verdict import DEFERRED

    right = True
    for notebook in map(find_copy, notebooks):
        verdicts = check_notebook(notebook)
        counted = [verdict for verdict in verdicts if not verdict.deferred]
        points, best = sum(verdict.points for verdict in counted), sum(verdict.max_points for verdict in counted)
        more = sum(verdict.max_points for verdict in verdicts if verdict.deferred)
        print(f"{notebook}: {score(points, best, more)}")
        right &= all(verdict.right or verdict.kind in DEFERRED for verdict in verdicts)
        for verdict in verdicts:
            print("  " + repr(verdict).replace("\n", "\n  "))
    if not right:
        raise typer.Exit(1)


@app.command()
def submit(
    notebook: Annotated[
        Path | None, typer.Argument(metavar="NOTEBOOK", help="e.g. exercises/exercise_03_attention.ipynb")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", readable=False, help="The shared folder; by default $TXGRADE_SUBMIT_TO."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Whose answers they are; by default your login name.")] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Hand it in although no answer is filled in.")] = False,
    verify: Annotated[
        Path | None, typer.Option(metavar="RECEIPT", help="Instead: compare a receipt with what was kept.")
    ] = None,
) -> None:
    """Hand in an exercise, and get a receipt.

    What counts is the saved file. Earlier versions are kept.
    """
    from txgrade.records.people import read_name
    from txgrade.submitting import submit as handing_in

    if (notebook is None) == (verify is None):
        raise ValueError("txgrade submit needs a notebook, or --verify RECEIPT; see txgrade submit --help")
    if verify is not None:
        print(handing_in.verify(verify))
    elif notebook is not None:
        name = None if name is None else read_name(name)
        print(handing_in.submit(find_copy(notebook), to, name=name, anyway=anyway))


@app.command()
def collect(
    system: Annotated[str, typer.Argument(metavar="SYSTEM", help="canvas, moodle, gradescope or nbgrader.")],
    archive: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.zip", help="All submissions, as you downloaded them; nbgrader: course/source/NAME."
        ),
    ],
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="The inbox; a learner's newest notebook counts.")],
    roster: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Who is who: Canvas' gradebook, Moodle's worksheet, or a column `name`."),
    ] = None,
    times: Annotated[
        Path | None, typer.Option(metavar="CSV", help="When: columns name and submitted, if the system doesn't tell.")
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="Of times that name none, such as Europe/Zurich.")
    ] = None,
) -> None:
    """Make an inbox of a download from Canvas, Moodle or Gradescope, or of a course of nbgrader's.

    It has the roster's names and true times.
    """
    from txgrade.records.people import read_roster
    from txgrade.submitting.collect import collect, describe

    people = read_roster(roster) if roster else None
    if system == "nbgrader":
        from txgrade.submitting.nbgrader_course import collect_nbgrader

        if times or timezone:
            raise ValueError("nbgrader's timestamp.txt has the times: leave out --times and --timezone")
        collected, assignment = collect_nbgrader(archive, to, people)
        print(f"To grade: txgrade grade --assignment {assignment} --submissions {to} --out RESULTS")
    elif people is None:
        raise ValueError("txgrade collect needs --roster, to know who is who; see txgrade collect --help")
    else:
        collected = collect(system, archive, to, people, times=times, timezone=timezone)
    line, remarks = describe(collected, to)
    print(line)
    for remark in remarks:
        print(f"txgrade: {remark}", file=sys.stderr)


def find_copy(notebook: Path) -> Path:
    """Return the learner's copy of a notebook if the course keeps copies, and report it on stderr.

    A course names its function in the entry point group `txgrade.learner_copy`.
    """
    for hook in entry_points(group="txgrade.learner_copy"):
        copy = hook.load()(notebook)
        if copy != notebook:
            print(f"txgrade: taking your copy, {copy}", file=sys.stderr)
            return copy
    return notebook


app.command()(grade)


@app.command()
def explain(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A submission, as grades.csv names it.")],
    out: Out = Path("."),
) -> None:
    """Say how a grade came about: every run, its seeds, its hashes, its verdicts."""
    from txgrade.records.explain import explain
    from txgrade.records.gradebook import Gradebook
    from txgrade.records.people import read_name

    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        print(explain(book, read_name(name)))


@app.command()
def questions(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A submission, as grades.csv or the roster names it.")],
    out: Out = Path("."),
) -> None:
    """Print three questions for a short talk about a submission, and what to expect as answers.

    They are made from its own right answers, and stay the same as long as these do. Others with the same answers are
    asked differently.
    """
    from txgrade.judging.questions import questions
    from txgrade.records.gradebook import Gradebook
    from txgrade.records.people import read_name
    from txgrade.text import printable

    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        for number, question in enumerate(questions(book, read_name(name)), 1):
            print(printable(f"{number}. {question.title}\n   {question.text}\n   Expect: {question.expect}\n"))


@app.command()
def review(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One submission, to change its points for --task.")
    ] = None,
    out: Out = Path("."),
    task: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    points: Annotated[float | None, typer.Option(help="With NAME: the points it has instead.")] = None,
    reason: Annotated[str, typer.Option(help="With NAME: why. The learner's page shows it.")] = "",
    by: Annotated[str, typer.Option(help="Who gives the points; by default your login name.")] = "",
    page: Annotated[
        bool, typer.Option("--page", help="Mark on a page in your browser, several people at once.")
    ] = False,
    port: Annotated[int, typer.Option(help="With --page: the port of 127.0.0.1; by default any free one.")] = 0,
    share: Annotated[
        str, typer.Option(metavar="K/N", help="Only a part of the answers, such as 1/2 for one reviewer of two.")
    ] = "1/1",
    names: Annotated[bool, typer.Option("--names", help="Show the learners' names instead of pseudonyms.")] = False,
    alike: Annotated[
        bool,
        typer.Option(
            "--alike", help="With NAME: also for all with the same answer and the same points, if it is more."
        ),
    ] = False,
) -> None:
    """Give points for the written answers that wait; or, with NAME, change one submission's points for a task.

    Your points are kept when the folder is graded again, as long as the answer stays the same. Several people may mark
    at once, while a grading run goes on.
    """
    from txgrade.marking.desk import override, read_share
    from txgrade.records.out import need_no_links
    from txgrade.records.people import read_name

    need_no_links(out)
    if name is None:
        if points is not None or reason or alike:
            raise ValueError(
                "--points, --reason and --alike change one submission's points: name it, as grades.csv does"
            )
        with stopping("stopped. What you saved is kept."):
            if page:
                from txgrade.marking.server import serve

                serve(out, task=task, by=by, share=read_share(share), names=names, port=port)
            else:
                from txgrade.marking.terminal import review_at_terminal

                review_at_terminal(out, task=task, by=by, share=read_share(share), names=names)
    elif task is None or points is None:
        raise ValueError(f"txgrade review {name} needs --task, --points and --reason")
    else:
        print(override(out, read_name(name), task, points, reason, by, also_alike=alike))


@app.command()
def course(
    results: Annotated[list[Path], typer.Argument(metavar="RESULTS…", help="The results of each exercise: results/*/")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For course.csv and course.html.")],
    roster: Annotated[Path | None, typer.Option(metavar="CSV", help="Who takes part, as for grade.")] = None,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Columns exercise (its folder's name), weight; else its points."),
    ] = None,
    drop_lowest: Annotated[int, typer.Option(help="Leave out so many of each learner's exercises.")] = 0,
    retake: Annotated[str, typer.Option(metavar="best|latest", help="Which result counts after a retake.")] = "best",
) -> None:
    """Add up a term: a row for each learner, a column for each exercise."""
    from txgrade.pages.course import course_remarks, read_course, write_course
    from txgrade.records.people import read_roster

    people = None if roster is None else read_roster(roster)
    term = read_course(results, people, weights, drop_lowest, retake)
    for path in write_course(term, out):
        print(path)
    for remark in course_remarks(term):
        print(f"txgrade: {remark}")


@app.command("return")
def give_back(
    system: Annotated[str, typer.Argument(metavar="SYSTEM", help="canvas, moodle or gradescope.")],
    out: Out = Path("."),
    roster: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Canvas' gradebook, Moodle's worksheet, or a table with emails.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(metavar="TITLE", help="Canvas' column, if its title is not the exercise's.")
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Although answers wait for a person, or marks are newer than pages.")
    ] = False,
) -> None:
    """Write scores and pages as Canvas, Moodle or Gradescope take them back."""
    from txgrade.pages.returning import give_back
    from txgrade.text import plural, printable

    returned = give_back(system, out, roster, column=column, anyway=anyway)
    for path in returned.files:
        print(path)
    pages = "" if system == "gradescope" else f" and {plural(returned.pages, 'page')}"
    print(f"{plural(returned.grades, 'grade')}{pages} to return")
    remarks = list(returned.remarks)
    if returned.absent:
        remarks.append(f"no grade for {len(returned.absent)} on the roster: {'; '.join(returned.absent)}")
    if left_out := returned.left_out:
        names = "; ".join(f"{name} ({why})" for name, why in left_out[:5])
        more = f"; and {len(left_out) - 5} more" if len(left_out) > 5 else ""
        remarks.append(f"{plural(len(left_out), 'submission')} left out, see {system}-left-out.csv: {names}{more}")
    for remark in remarks:
        print(f"txgrade: {printable(remark)}", file=sys.stderr)
