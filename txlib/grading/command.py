"""`txlib grade`: grading for instructors, at the terminal."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Grade a folder of notebooks; nothing in them is trusted.", no_args_is_help=True, invoke_without_command=True
)

Out = Annotated[Path, typer.Option(metavar="FOLDER", help="The folder that the grading run wrote.")]


@app.callback()
def grade(
    context: typer.Context,
    assignment: Annotated[
        Path | None, typer.Option(help="e.g. solutions/03_attention.py, or a source notebook of nbgrader's.")
    ] = None,
    submissions: Annotated[Path | None, typer.Option(help="Folder of NAME.ipynb, or of NAME/anything.ipynb.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for grades, pages and the gradebook.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes at once; by default two more than cores.")] = None,
    seeds: Annotated[int, typer.Option(help="On how many seeds every answer has to be right.")] = 2,
    on_seeds: Annotated[
        str | None,
        typer.Option(
            metavar="SEED,…", help="On exactly these seeds, to repeat a grade; `txlib grade explain` names them."
        ),
    ] = None,
    roster: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Who is who: Canvas' or Moodle's export, or a column `name`.")
    ] = None,
    pages_for: Annotated[
        str, typer.Option("--pages-for", metavar="me|group|all", help="Who on this machine may read feedback/.")
    ] = "me",
    scheduler: Annotated[str | None, typer.Option(help="Address of a Dask scheduler whose workers grade.")] = None,
    tls_ca_file: Annotated[
        Path | None, typer.Option(metavar="PEM", help="With --scheduler tls://…: who vouches for it.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="PEM", help="With it: this machine's certificate.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="PEM", help="With it: this machine's key.")] = None,
    trust_network: Annotated[
        bool, typer.Option("--trust-network", help="Reach a scheduler on another machine without TLS.")
    ] = False,
    trust_submissions: Annotated[
        bool, typer.Option("--trust-submissions", help="Grade although the sandbox here is not sealed.")
    ] = False,
) -> None:
    """Grade a folder of notebooks. Stopped at any moment, the same command goes on."""
    if context.invoked_subcommand is not None:
        return
    if assignment is None or submissions is None or out is None:
        options = {"--assignment": assignment, "--submissions": submissions, "--out": out}
        missing = next(option for option, value in options.items() if value is None)
        raise ValueError(f"txlib grade needs {missing}; see txlib grade --help")
    from txlib.grading.running.workspace import workspace
    from txlib.grading.sandbox import probe

    with workspace(), ThreadPoolExecutor(1) as meanwhile:  # the sandbox is tried while the grader is loaded
        meanwhile.submit(probe)
        from txlib.grading.records.people import read_roster
        from txlib.grading.running.cluster import Network
        from txlib.grading.running.display import Display
        from txlib.grading.running.grader import grade
        from txlib.grading.text import plural

    with Display() as display:
        try:
            graded = grade(
                assignment,
                submissions,
                out,
                jobs=jobs,
                scheduler=scheduler,
                network=Network(tls_ca_file, tls_cert, tls_key, trust_network),
                roster=None if roster is None else read_roster(roster),
                pages_for=pages_for,
                trust=trust_submissions,
                seeds=seeds if on_seeds is None else read_seeds(on_seeds),
                watch=display,
            )
        except KeyboardInterrupt:
            print("txlib: stopped. What is graded is kept; the same command goes on.", file=sys.stderr)
            raise typer.Exit(130) from None
    results = graded.results
    print(
        f"{plural(len(results), 'submission')}, {graded.fresh} graded now; isolation: {graded.isolation}; "
        f"seeds: {', '.join(map(str, graded.seeds))}"
    )
    if graded.missing:
        print(f"{len(graded.missing)} of the roster handed in nothing: see {out / 'review.csv'}")
    look = sum(result.needs_review for result in results)
    if look:
        need = "needs" if look == 1 else "need"
        print(f"{look} of {plural(len(results), 'submission')} {need} a look: see {out / 'review.csv'}")
    print(f"Grades: {out / 'grades.csv'}; overview: {out / 'summary.html'}; pages: {out / 'feedback'}")


def read_seeds(words: str) -> tuple[int, ...]:
    """Seeds as `txlib grade explain` prints them.

    Raises:
        ValueError: these are no seeds.
    """
    from txlib.grading.seeds import GRADING_SEEDS

    seeds = [word.strip() for word in words.split(",")]
    if not all(seed.isdecimal() and int(seed) < GRADING_SEEDS for seed in seeds) or len(set(seeds)) < len(seeds):
        raise ValueError(f"--on-seeds {words}: give different whole numbers below {GRADING_SEEDS}, such as 17,42")
    return tuple(map(int, seeds))


@app.command()
def explain(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A submission, as grades.csv names it.")],
    out: Out = Path("."),
) -> None:
    """Say how a grade came about: every run, its seeds, its hashes, its verdicts."""
    from txlib.grading.records.explain import explain
    from txlib.grading.records.gradebook import Gradebook
    from txlib.grading.records.people import read_name

    with Gradebook(out / "gradebook.sqlite", create=False) as book:
        print(explain(book, read_name(name)))


@app.command()
def review(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One submission, to change its points for --task.")
    ] = None,
    out: Out = Path("."),
    task: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    points: Annotated[float | None, typer.Option(help="With NAME: the points it has instead.")] = None,
    reason: Annotated[str, typer.Option(help="With NAME: why. It stands on the learner's page.")] = "",
    by: Annotated[str, typer.Option(help="Who gives the points.")] = "",
) -> None:
    """Give points for the written answers that wait; or, with NAME, change one submission's points for a task.

    What you give is kept when the folder is graded again, as long as the answer stands.
    """
    from txlib.grading.records.out import need_no_links
    from txlib.grading.records.people import read_name
    from txlib.grading.records.reviewing import override, review_at_terminal

    need_no_links(out)
    if name is None:
        if points is not None or reason:
            raise ValueError("--points and --reason change one submission's points: name it, as grades.csv does")
        review_at_terminal(out, task=task, by=by)
    elif task is None or points is None:
        raise ValueError(f"txlib grade review {name} needs --task, --points and --reason")
    else:
        print(override(out, read_name(name), task, points, reason, by))


@app.command()
def export(
    to: Annotated[str, typer.Argument(metavar="FORMAT", help="canvas, moodle or gradescope.")],
    out: Out = Path("."),
    roster: Annotated[Path | None, typer.Option(help="The CSV that Canvas or Moodle exported: who is who.")] = None,
) -> None:
    """Write the grades as another system imports them."""
    from txlib.grading.pages.exports import export
    from txlib.grading.text import plural, printable

    exported = export(out, to, roster)
    for path in exported.files:
        print(path)
    if left_out := exported.left_out:
        some = "; ".join(f"{name} ({why})" for name, why in left_out[:5])
        more = f"; and {len(left_out) - 5} more" if len(left_out) > 5 else ""
        words = f"{plural(len(left_out), 'submission')} left out, see {to}-left-out.csv: {some}{more}"
        print(f"txlib: {printable(words)}", file=sys.stderr)
