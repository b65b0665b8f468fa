"""The command `txgrade grade`."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer

from txgrade.author_cli import need_variant
from txgrade.terminal import stopping

NEARLY_ALL = 0.8  # of the submissions are late only where a deadline is wrong


def grade(
    assignment: Annotated[
        Path | None, typer.Option(help="e.g. solutions/03_attention.py, or a source notebook of nbgrader's.")
    ] = None,
    submissions: Annotated[Path | None, typer.Option(help="Folder of NAME.ipynb, or of NAME/anything.ipynb.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for grades, pages and the gradebook.")] = None,
    variant: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="That variant of the assignment, for a retake.")
    ] = None,
    due: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --variant: when it was due, as at its release; else never.")
    ] = None,
    secret: Annotated[
        Path | None, typer.Option(metavar="FILE", help="By which variants were dealt; by default people.secret.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes at once; by default two more than cores.")] = None,
    seeds: Annotated[int, typer.Option(help="On how many seeds every answer has to be right.")] = 2,
    on_seeds: Annotated[
        str | None,
        typer.Option(metavar="SEED,…", help="On exactly these seeds, to repeat a grade; `txgrade explain` names them."),
    ] = None,
    roster: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Who is who: Canvas' or Moodle's export, or a column `name`.")
    ] = None,
    extensions: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Later deadlines: columns name, until or days, exercise.")
    ] = None,
    term: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="With the results of all exercises: slip days used there are spent."),
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
    if assignment is None or submissions is None or out is None:
        options = {"--assignment": assignment, "--submissions": submissions, "--out": out}
        missing = next(option for option, value in options.items() if value is None)
        raise ValueError(f"txgrade grade needs {missing}; see txgrade grade --help")
    need_variant(due, variant)
    with stopping("stopped. What is graded is kept; the same command goes on."):
        from txgrade.running.workspace import workspace
        from txgrade.sandbox import probe

        with workspace(), ThreadPoolExecutor(1) as meanwhile:  # the sandbox is tried while the grader is loaded
            meanwhile.submit(probe)
            from txgrade.records.people import read_roster
            from txgrade.running.cluster import Network
            from txgrade.running.display import Display
            from txgrade.running.grader import grade

        people = None if roster is None else read_roster(roster)
        deal = None if variant is not None else read_deal(assignment, secret, roster, people)
        with Display() as display:
            graded = grade(
                assignment,
                submissions,
                out,
                variant=variant,
                due=due,
                jobs=jobs,
                scheduler=scheduler,
                network=Network(tls_ca_file, tls_cert, tls_key, trust_network),
                deal=deal,
                roster=people,
                extensions=extensions,
                term=term,
                pages_for=pages_for,
                trust=trust_submissions,
                seeds=seeds if on_seeds is None else read_seeds(on_seeds),
                watch=display,
            )
    _print_graded(graded, out)
    if deal is not None and (late := deal.without_notebook()):
        names = ", ".join(late[:5]) + (", …" if len(late) > 5 else "")
        print(
            f"txgrade: {len(late)} of the roster joined after the release and have no notebook: {names}; "
            "release again to make theirs",
            file=sys.stderr,
        )


def read_deal(assignment: Path, secret: Path | None, roster: Path | None, people: Any) -> Any:
    """Return which variant each learner has, if the assignment's were dealt; None if not."""
    if roster is None:
        if secret is not None:
            raise ValueError("--secret needs --roster: variants are worked out from both")
        return None
    from txgrade.authoring.deal import open_deal, secret_path

    path = secret or secret_path(roster)
    return open_deal(assignment, path, people) if secret or path.exists() else None


def _print_graded(graded: Any, out: Path) -> None:
    from txgrade.text import plural

    results = graded.results
    print(
        f"{plural(len(results), 'submission')}, {graded.fresh} graded now; isolation: {graded.isolation}; "
        f"seeds: {', '.join(map(str, graded.seeds))}"
    )
    if graded.missing:
        print(f"{len(graded.missing)} of the roster handed in nothing: see {out / 'review.csv'}")
    late = sum(result.penalty > 0 for result in results)
    if late >= max(3, NEARLY_ALL * len(results)):
        print(
            f"txgrade: {late} of {len(results)} submissions lose points for being late: is the deadline right, "
            f"{graded.assignment.due['when']}, {graded.assignment.due['timezone']}?",
            file=sys.stderr,
        )
    if waiting := sum(result.waiting for result in results):
        print(f"{plural(waiting, 'written answer')} to mark: txgrade review --out {out}")
    flagged = sum(result.needs_look for result in results)
    if flagged:
        need = "needs" if flagged == 1 else "need"
        print(f"{flagged} of {plural(len(results), 'submission')} {need} a look: see {out / 'review.csv'}")
    if graded.changes:
        print(f"{plural(len(graded.changes), 'change')} of points that an earlier run gave: see {out / 'changes.csv'}")
    if graded.requests:
        print(f"{plural(len(graded.requests), 'regrade request')} to answer: txgrade review --out {out}")
    print(f"Grades: {out / 'grades.csv'}; overview: {out / 'summary.html'}; pages: {out / 'feedback'}")


def read_seeds(text: str) -> tuple[int, ...]:
    """Read seeds as `txgrade explain` prints them.

    Raises:
        ValueError: these are no seeds.
    """
    from txgrade.seeds import GRADING_SEEDS

    seeds = [word.strip() for word in text.split(",")]
    if not all(seed.isdecimal() and int(seed) < GRADING_SEEDS for seed in seeds) or len(set(seeds)) < len(seeds):
        raise ValueError(f"--on-seeds {text}: give different whole numbers below {GRADING_SEEDS}, such as 17,42")
    return tuple(map(int, seeds))
