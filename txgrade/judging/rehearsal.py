"""An assignment's own answers in the sandbox that will grade it: what works at its author's desk may not work there."""

from functools import partial

from txgrade.authoring.assignment import Assignment, solved
from txgrade.judging.execute import execute
from txgrade.judging.reference import failures, record_known
from txgrade.sandbox import Limits, probe
from txgrade.sandbox.warm import warm_kernels

SEED = 0


def rehearse(assignment: Assignment) -> list[str]:
    """What keeps the assignment's own answers from passing where it is graded, a line each.

    They run sealed, as submissions will; where no sandbox can be made, under limits, since they are the author's own.
    """
    limits, isolation = Limits(), probe().level
    hidden = (assignment.path.parent,)
    with warm_kernels(assignment.imports, limits, isolation, True, hidden, dict(assignment.data)):
        run = partial(execute, limits=limits)
        seed = SEED if assignment.has_checks else None
        recorded = record_known(assignment, (SEED,)) if assignment.has_private_values else None
        private_values = recorded["hidden"][str(SEED)]["private_values"] if recorded else None
        return failures(assignment, run(solved(assignment), seed, private_values=private_values))
