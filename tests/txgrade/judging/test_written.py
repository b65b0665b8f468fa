"""Which written answers wait for a person: those with something in them."""

import pytest

from txgrade.authoring.assignment import GradedTask
from txgrade.judging.job import _answered

STUB = "Your answer here."


@pytest.mark.parametrize(
    ("answers", "waits"),
    [
        ({"why": "Because."}, True),
        ({"why": f"{STUB} Because."}, True),
        ({"why": STUB}, False),
        ({"why": f"{STUB}  \n\n"}, False),
        ({"why": ""}, False),
        ({"why": " \n\t\n"}, False),
        ({}, False),
        ({"why": "", "more": "x = 1"}, True),
        ({"why": STUB, "more": STUB}, True),  # a stub of another cell is something that was written
    ],
)
def test_an_empty_answer_waits_for_nobody(answers, waits):
    task = GradedTask("why", "Why?", 2, "written", "why", ("why", "more"))
    assert _answered(task, answers, {"why": STUB, "more": "..."}) == waits
