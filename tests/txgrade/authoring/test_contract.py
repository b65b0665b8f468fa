"""What release refuses because an answer could use it, and how a rebuilt notebook keeps checks to themselves."""

import nbformat
import pytest

from txgrade.authoring.assignment import rebuild, solved
from txgrade.authoring.cells import check_body, definitions
from txgrade.authoring.exercise import ExerciseError
from txgrade.authoring.read import read_assignment
from txgrade.authoring.release import release

HEADER = """# %% [markdown]
# # Exercise 01 · Counted

# %% tags=["parameters"]
seed = 0

# %%
import torch

from txgrade import check, cost

RADIUS = 2


def given(x):
    return x + RADIUS


# %% [markdown]
# ### Task 1 · Double   ●○○○○ · 5 minutes · 2 points

# %% nbgrader={"grade_id": "double", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def double(x):
    ### BEGIN SOLUTION
    return x + x
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-double", "grade": true, "points": 2, "solution": false, "schema_version": 3}
"""
MISTAKES = """
# %% tags=["mistakes"]
from txgrade import measured, mistake

for number in (3, 4, 5):
    mistake("double", lambda x, number=number: number * x, f"This is {number} times as much.")
"""
SHOWN = """with check("double") as show:
    spent = cost(double, show.randn(30))
    show(spent.value, "the value")
    show(spent.operations, "operations")
"""
NOT_SHOWN = """with check("double") as show:
    show(double(show.randn(3)), "the value")
    show(cost(double, show.randn(30)).operations <= 30, "operations")
"""
OWN_COUNTER = HEADER.replace(
    "RADIUS = 2",
    """from torch.utils._python_dispatch import TorchDispatchMode


class Counting(TorchDispatchMode):
    numbers = 0
""",
)
MEASURED = (
    MISTAKES
    + """
measured("double", lambda shown, private: float((shown[0]["y"] == 2 * private.randn(3)).all()))
"""
)
FROM_GIVEN = """with check("double") as show:
    show.weights({"y": double(show.private(lambda private: private.randn(3)))})
"""


@pytest.fixture
def written(tmp_path):
    def write(check: str, mistakes: str = MISTAKES, header: str = HEADER):
        folder = tmp_path / "solutions"
        folder.mkdir(exist_ok=True)
        source = folder / "01_counted.py"
        source.write_text(header + check + mistakes, encoding="utf-8")
        return source

    return write


def refused(source) -> list[str]:
    with pytest.raises(ExerciseError) as refusal:
        release(source, run_solution=False)
    return refusal.value.problems


def test_what_keeps_the_contract_is_released(written):
    release(written(SHOWN), run_solution=False)
    release(written(FROM_GIVEN, MEASURED), run_solution=False)


def test_a_counted_call_shows_its_value(written):
    [problem] = refused(written(NOT_SHOWN))
    assert problem.startswith("task double: its check counts what call 1 of cost(…) takes, and does not show")


def test_counters_are_the_graders(written):
    [problem] = refused(written(SHOWN, header=OWN_COUNTER))
    assert problem.startswith("cell 3, line 8: class Counting counts where an answer can reach it: use cost(")


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("show.private(lambda private: private.randn(3))", "show.randn(3)", "line 2 of its check uses show.randn,"),
        ("show.private(lambda private: private.randn(3))", "torch.randn(3)", "line 2 of its check uses torch.randn,"),
        ("private.randn(3)", "private.randn(seed + 3)", "line 2 of its check uses seed,"),
        ('"y": ', '"bottom": torch.ones(2), "y": ', "its check shows `bottom`, the same of every answer"),
    ],
)
def test_a_measured_check_tells_nothing(written, old, new, name):
    problems = refused(written(FROM_GIVEN.replace(old, new), MEASURED))
    assert any(problem.startswith(f"task double: {name}") for problem in problems), problems


def test_a_rebuilt_notebook_runs_given_definitions_before_each_check(written):
    """An answer that redefines a given function, a constant or the check's import changes nothing."""
    check = SHOWN.replace("show(spent.value", "show(given(spent.value)")
    assignment = read_assignment(written(check))
    answer = (
        "def double(x):\n    return x + x\n\n\ndef given(x):\n    return None\n\n\nRADIUS, cost, spent = 9, None, 7"
    )
    shown = []
    for notebook in (rebuild(assignment, {"double": answer}), solved(assignment)):
        names: dict = {"__name__": "__main__"}
        for cell in notebook.cells:
            if cell.cell_type == "code" and cell.id != "begin":
                with _collecting() as collected:
                    exec(cell.source, names)
                shown += collected.bundles
    assert shown[0] == shown[1]
    assert shown[0]["error"] is None
    assert "show" not in names and names.get("spent", 7) == 7  # the names of a check end with it


def _collecting():
    from txgrade.checking.checks import collecting

    return collecting()


def test_begin_follows_the_parameters(written):
    notebook = solved(read_assignment(written(SHOWN)))
    ids = [cell.id for cell in notebook.cells]
    parameters = next(i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
    assert ids[parameters + 1] == "begin"
    nbformat.validate(notebook)


def test_definitions_are_what_computes_nothing():
    source = "import os\nx = 3\ny: int = 4\nz = f(3)\nprint(x)\nfor i in range(3):\n    w = i\n"
    source += "def f(): return 1\nclass A: pass"
    found = definitions(source)
    assert [line for line in found.splitlines() if line] == [
        "import os",
        "x = 3",
        "y: int = 4",
        "def f():",
        "    return 1",
        "class A:",
        "    pass",
    ]


def test_a_check_keeps_its_lines():
    body = check_body("a = 1\nwith open('x') as f:\n    b = 1 / 0")
    assert body.body[0].body[1].body[0].lineno == 3
