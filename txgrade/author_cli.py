"""The author's commands of `txgrade`: release and validate."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def release(
    sources: Annotated[list[Path], typer.Argument(metavar="SOURCE…", help="e.g. solutions/03_attention.py")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the exercises; by default exercises/ next to solutions/.")
    ] = None,
    variant: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="With other numbers or tasks, for a retake.")
    ] = None,
    due: Annotated[
        str | None,
        typer.Option(metavar="TIME", help='With --variant: when it is due, such as "2027-01-20 23:59"; else never.'),
    ] = None,
    roster: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Deal variants: a notebook for each person in it, into --out.")
    ] = None,
    secret: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With it: the course's secret; by default people.secret."),
    ] = None,
    withhold: Annotated[
        bool, typer.Option("--withhold", help="Write no worked solution for learners; delete the one from before.")
    ] = False,
) -> None:
    """Make exercises from their solutions.

    A learner's notebook holds no answers, but recordings of what right and wrong answers give: its checks compare
    with them.
    """
    from txgrade.authoring.release import release
    from txgrade.text import plural

    need_variant(due, variant)
    if roster is not None:
        if variant is not None or out is None:
            raise ValueError("--roster deals variants to everybody: give it --out FOLDER, and no --variant")
        _deal(sources, out, roster, secret)
        return
    if secret is not None:
        raise ValueError("--secret is for --roster, to deal variants to everybody on it")
    for source in sources:
        released = release(source, out, variant=variant, due=due, withhold=withhold)
        varied = f"; {released.varied}" if released.varied else ""
        print(f"{released.exercise}: {plural(released.tasks, 'task')}, {plural(released.points, 'point')}{varied}")
        for warning in released.warnings:
            print(f"  {warning}")


def _deal(sources: list[Path], out: Path, roster: Path, secret: Path | None) -> None:
    from txgrade.authoring.deal import secret_path
    from txgrade.authoring.release_dealt import release_dealt
    from txgrade.records.people import read_roster
    from txgrade.text import plural

    secret = secret or secret_path(roster)
    for source in sources:
        is_new = not secret.exists()
        released = release_dealt(source, out, read_roster(roster), secret)
        print(f"{out}/: {plural(released.learners, 'notebook')}, of {released.varied}")
        if is_new:
            print(f"{secret}: the secret of the course. Keep it: without it nobody's variant can be worked out.")
        for warning in released.warnings:
            print(f"  {warning}")


def validate(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="SOURCE…", help="e.g. solutions/03_attention.py, or a source notebook of nbgrader's."),
    ],
    variant: Annotated[int | None, typer.Option(metavar="NUMBER", help="That variant, for a retake.")] = None,
    variants: Annotated[
        bool, typer.Option("--variants", help="Instead: all variants, and that none answers another.")
    ] = False,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Instead: change the reference as people slip; does each check notice?")
    ] = False,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="With --mutants: also write every mutant there.")
    ] = None,
) -> None:
    """Prove exercises before learners are graded by them.

    The reference gets all points on 5 seeds, alternatives pass, each mistake is told its sentence, the stub gets
    nothing; and the reference passes in the sandbox that grades. Exit status 1: some source has a problem.
    """
    if mutants:
        from txgrade.authoring.mutants import report

        raise typer.Exit(report(sources, json))
    if json:
        raise ValueError("--json is for txgrade validate --mutants")
    if variants:
        _validate_variants(sources)
        return
    from txgrade.authoring.exercise import ExerciseError
    from txgrade.authoring.validate import validate
    from txgrade.judging.rehearsal import rehearse
    from txgrade.text import plural

    problems = []
    for source in sources:
        try:
            validation = validate(source, variant)
        except ExerciseError as reason:
            problems += str(reason).splitlines()
            continue
        tasks, points = len(validation.assignment.tasks), validation.assignment.points
        print(f"{source}: {plural(tasks, 'task')}, {plural(points, 'point')}")
        print("  " + validation.table().replace("\n", "\n  "))
        wrong = validation.problems or rehearse(validation.assignment)
        problems += [f"{validation.assignment.name}: {problem}" for problem in wrong]
    _fail_with(problems)


def need_variant(due: str | None, variant: int | None) -> None:
    if due is not None and variant is None:
        raise ValueError("--due is for a variant: the deadline of an exercise is due(…) in its source")


def _validate_variants(sources: list[Path]) -> None:
    from txgrade.authoring.exercise import ExerciseError
    from txgrade.authoring.variant_proof import prove_variants

    problems = []
    for source in sources:
        print(source)
        try:
            proof = prove_variants(source, lambda number, words: print(f"  variant {number}: {words}", flush=True))
        except ExerciseError as reason:
            problems += str(reason).splitlines()
            continue
        print(f"  {proof.varied}")
        problems += [f"{source.stem}: {problem}" for problem in proof.problems]
    _fail_with(problems)


def _fail_with(problems: list[str]) -> None:
    for problem in problems:
        print(f"txgrade: {problem}", file=sys.stderr)
    if problems:
        raise typer.Exit(1)
