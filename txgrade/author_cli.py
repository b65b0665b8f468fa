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
    for source in sources:
        released = release(source, out, variant=variant, due=due, withhold=withhold)
        varied = f"; {released.varied}" if released.varied else ""
        print(f"{released.exercise}: {plural(released.tasks, 'task')}, {plural(released.points, 'point')}{varied}")
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
