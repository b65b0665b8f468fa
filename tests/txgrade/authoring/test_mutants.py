"""`txgrade validate --mutants`: which changes of an answer its check does not notice."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from txgrade import equivalent
from txgrade.authoring.check_notebook import read_notebook, recordings_in
from txgrade.authoring.mutant_runs import in_child
from txgrade.authoring.mutants import TaskMutants, mutants_of
from txgrade.authoring.mutations import mutations
from txgrade.authoring.notebooks import released_name
from txgrade.cli import app

HEADER = """# %% [markdown]
# # Tiny
#
# # %% tags=["parameters"]

# %% tags=["parameters"]
seed = 0

# %%
import os

import torch

from txgrade import check, equivalent, mistake
"""


def task(id, signature, solution, check, notes=""):
    """The cells of one task. The first line of its solution is the fourth below its head."""
    indented = "\n".join(f"    {line}" for line in solution.splitlines())
    checked = "\n".join(f"    {line}" for line in check.splitlines())
    return f'''
# %% nbgrader={{"grade_id": "{id}", "solution": true, "grade": false, "locked": false, "schema_version": 3}}
def {signature}:
    """What it does."""
    ### BEGIN SOLUTION
{indented}
    ### END SOLUTION

# %% nbgrader={{"grade_id": "check-{id}", "grade": true, "points": 1, "solution": false, "schema_version": 3}}
with check("{id}") as show:
{checked}

# %% tags=["mistakes"]
{notes}
'''


def changes(solution, signature="answer(x, n)"):
    """What is changed in a solution: kind and change of each mutant."""
    source = f"def {signature}:\n    ### BEGIN SOLUTION\n"
    source += "\n".join(f"    {line}" for line in solution.splitlines()) + "\n    ### END SOLUTION"
    return {(mutant.kind, mutant.change) for mutant in mutations(source)}


CASES = {
    "return x < 5": [("comparison", "x < 5 → x <= 5"), ("comparison", "x < 5 → x > 5"), ("number", "x < 5 → x < 6")],
    "return x == n": [("comparison", "x == n → x != n")],
    "return x - n": [("term", "x - n → x"), ("arguments", "x - n → n - x"), ("operation", "x - n → x + n")],
    "return x * n": [("factor", "x * n → x"), ("factor", "x * n → n"), ("operation", "x * n → x / n")],
    "return x // n": [("operation", "x // n → x / n"), ("factor", "x // n → x")],
    "return x @ n": [("arguments", "x @ n → n @ x")],
    "return x ** 2": [("power", "x ** 2 → x"), ("number", "x ** 2 → x ** 3")],
    "return -x": [("sign", "-x → x")],
    "return ~x": [("logic", "~x → x")],
    "return x and n": [("logic", "x and n → x or n"), ("term", "x and n → n")],
    "return x & n": [("operation", "x & n → x | n"), ("term", "x & n → x")],
    "return 0.5 + x": [("number", "0.5 + x → 1.0 + x"), ("number", "0.5 + x → -0.5 + x")],
    "return x.sum(dim=-1)": [
        ("axis", "x.sum(dim=-1) → x.sum(dim=-2)"),
        ("axis", "x.sum(dim=-1) → x.sum(dim=0)"),
        ("axis", "x.sum(dim=-1) → x.sum()"),
        ("function", "x.sum(dim=-1) → x.mean(dim=-1)"),
    ],
    "return torch.cumsum(x, 1)": [("axis", "torch.cumsum(x, 1) → torch.cumsum(x, 0)")],
    "return x.amax(1, keepdim=True)": [("truth", "keepdim=True → keepdim=False")],
    "return x.shape[-1]": [("axis", "x.shape[-1] → x.shape[-2]")],
    "return x[:, None]": [("axis", "x[:, None] → x[None, :]")],
    "return x.T": [("transpose", "x.T → x")],
    "return x.transpose(1, 2)": [("transpose", "x.transpose(1, 2) → x")],
    "return x.clamp(0, n)": [
        ("clamp", "x.clamp(0, n) → x"),
        ("clamp", "x.clamp(0, n) → x.clamp(min=0)"),
        ("clamp", "x.clamp(0, n) → x.clamp(max=n)"),
    ],
    "return min(x, n)": [("clamp", "min(x, n) → x"), ("clamp", "min(x, n) → n"), ("function", "min(x, n) → max(x, n)")],
    "return x.sqrt()": [("function", "x.sqrt() → x")],
    "return x.argmax(0)": [("function", "x.argmax(0) → x.argmin(0)")],
    "return f(x, n)": [("arguments", "f(x, n) → f(n, x)"), ("argument", "f(x, n) → f(x)")],
    "return f(x, key=n)": [("argument", "f(x, key=n) → f(x)")],
    "return torch.where(c, x, n)": [("arguments", "torch.where(c, x, n) → torch.where(c, n, x)")],
    "return F.pad(x, (0, 1))": [("arguments", "F.pad(x, (0, 1)) → F.pad(x, (1, 0))")],
    "return x.masked_fill(n, -torch.inf)": [
        ("mask", "x.masked_fill(n, -torch.inf) → x"),
        ("mask", "x.masked_fill(n, -torch.inf) → x.masked_fill(~n, -torch.inf)"),
        ("number", "-torch.inf → 0.0"),
        ("sign", "-torch.inf → torch.inf"),
    ],
    "return x[1:n]": [
        ("slice", "x[1:n] → x[2:n]"),
        ("slice", "x[1:n] → x[0:n]"),
        ("slice", "x[1:n] → x[:n]"),
        ("slice", "x[1:n] → x[1:n - 1]"),
        ("slice", "x[1:n] → x[1:]"),
    ],
    "return x[n:]": [("slice", "x[n:] → x[-n:]")],
    "return x[x < n]": [("clamp", "x[x < n] → x"), ("clamp", "x[x < n] → x.clamp(max=n - 1)")],
    "return [i + 1 for i in x if 0 <= i + 1 < n]": [
        ("clamp", "[i + 1 for i in x if 0 <= i + 1 < n] → [min(max(i + 1, 0), n - 1) for i in x]")
    ],
    "for i in range(n):\n    if not 0 <= i < 9:\n        continue\n    x += i\nreturn x": [
        ("loop", "range(n) → range(n - 1)"),
        ("loop", "range(n) → range(1, n)"),
        ("loop", "continue → break"),
        ("statement", "x += i → (deleted)"),
        ("operation", "x += i → x -= i"),
        ("condition", "if not 0 <= i < 9: → if True"),
        ("clamp", "if not 0 <= i < 9: → i = min(max(i, 0), 8)"),
    ],
    "if n:\n    x = 1\nelse:\n    x = 3\nreturn x": [("condition", "if n: → (no else)"), ("number", "x = 1 → x = 0")],
    "return x if n else 0": [("condition", "x if n else 0 → x"), ("condition", "x if n else 0 → 0")],
    "return x, n": [("return", "return (x, n) → return (n, x)")],
    "x, n = n, x + n\nreturn x": [("statement", "x, n = (n, x + n) → x, n = (n, n)")],
}


@pytest.mark.parametrize("solution", CASES, ids=lambda text: text.splitlines()[0].removeprefix("return "))
def test_an_operator(solution):
    assert set(CASES[solution]) <= changes(solution)


def test_only_the_solution_changes_and_no_text_type_assert_or_message():
    source = '''
def answer(x: int = 1, n=2):
    """Adds 1."""
    y = x + 1
    ### BEGIN SOLUTION
    """At least 1."""
    z: "Float[Tensor, '3 4']" = "5"
    assert x > 6
    if x:
        raise ValueError(f"not {7 + 8}")
    ### END SOLUTION
    return y - 1
'''
    assert {mutant.change for mutant in mutations(source)} == {
        "if x: → if True",
        "if x: → if False",
        "if x: → (deleted)",
        "raise ValueError(f'not {7 + 8}') → (deleted)",
    }


def test_each_change_has_a_text_of_its_own_and_its_line():
    lines = ["def f(x):", "### BEGIN SOLUTION", "y = x.sum() + 1", "z = x.sum() + 1", "y = x + 1", "### END SOLUTION"]
    source = "\n    ".join(lines)
    made = mutations(source)
    texts = [mutant.change for mutant in made]
    assert len(texts) == len(set(texts)) == len({mutant.source for mutant in made})
    assert {(3, "y = x.sum() + 1 → y = x.mean() + 1"), (4, "z = x.sum() + 1 → z = x.mean() + 1")} <= {
        (mutant.line, mutant.change) for mutant in made
    }


def test_the_same_axis_counted_otherwise_is_tried_where_a_task_is_for_any_number_of_axes():
    changed = ("axis", "x.sum(dim=-1) → x.sum(dim=1)")
    assert changed not in changes("return x.sum(dim=-1)", 'f(x: Float[Tensor, "n d"])')
    assert changed in changes("return x.sum(dim=-1)", 'f(x: Float[Tensor, "*batch n d"])')


def endless(beat):
    beat()
    while True:
        pass


def asleep(beat):
    beat()
    time.sleep(600)


def hog(beat):
    beat()
    return {"end": "survives", "size": len(bytearray(2**40))}


def leave(beat):
    os._exit(0)


def die(beat):
    os.kill(os.getpid(), signal.SIGKILL)


def deep(beat):
    return deep(beat)


@pytest.mark.parametrize(
    ("work", "end"), [(endless, "time"), (hog, "memory"), (leave, "crash"), (die, "crash"), (deep, "crash")]
)
def test_a_mutant_that_must_be_stopped(work, end):
    assert in_child(work, limit=0.2) == {"end": end}


def test_a_mutant_that_waits_for_ever_is_stopped(monkeypatch):
    monkeypatch.setattr("txgrade.authoring.mutant_runs.GRACE_SECONDS", 0)
    assert in_child(asleep, limit=0.1) == {"end": "time"}


def test_a_mutant_is_heard(capfd):
    def work(beat):
        for _ in range(3):
            beat()
            os.write(1, b"said")
            os.write(2, b"said")
        return {"end": "survives", "words": ["ein.\n"]}

    assert in_child(work, limit=5) == {"end": "survives", "words": ["ein.\n"]}
    assert capfd.readouterr() == ("", "")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A source with holes, with an equivalent change, and with mutants that take their process with them."""
    source = tmp_path_factory.mktemp("tiny") / "01_tiny.py"
    holes = 'equivalent("inside", "n - 1 → n - 2", "Not really.")\nequivalent("inside", "n → m", "There is no m.")\n'
    holes += 'mistake("inside", lambda i, n: 0, "Always 0.")'
    source.write_text(
        HEADER
        + task(
            "inside",
            "inside(i, n)",
            "return max(i, 0) if i < n else n - 1",
            "show(inside(3, show.random_size(4, 9)))",
            holes,
        )
        + task(
            "down",
            "down(n)",
            "while n:\n    n = None\nif n:\n    os._exit(3)\nreturn len(bytearray(8 * 10**13 // 10**13))",
            "show(down(show.random_size(3, 9)), 'a label')",
        )
    )
    return source


@pytest.fixture(scope="module")
def tried(tiny):
    return mutants_of(tiny)


def test_holes(tiny, tried):
    lines = tiny.read_text().splitlines()
    inside = tried.tasks[0]
    holes = {mutant.change: mutant for mutant in inside.survivors}
    assert {"max(i, 0) → i", "i < n → i <= n", "max(i, 0) → max(i, 1)"} <= holes.keys()
    assert all(lines[hole.line - 1] == "    return max(i, 0) if i < n else n - 1" for hole in holes.values())
    assert "n - 1 → n - 2" not in holes  # it is said to be equivalent
    assert inside.stale == ["n → m"]
    assert f"{tiny}:{holes['max(i, 0) → i'].line}  max(i, 0) → i" in tried.lists()


def test_what_is_killed_and_what_is_said_to_it(tried):
    ends = {mutant.change: mutant for task in tried.tasks for mutant in task.mutants}
    told = ends["max(i, 0) → 0"]
    assert (told.end, told.sentences) == ("result", ("Always 0.",))
    assert told not in tried.tasks[0].silent
    assert ends["max(i, 0) if i < n else n - 1 → n - 1"].sentences == ()
    assert ends["n = None → (deleted)"].end == "time"
    assert ends["if n: → if True"].end == "crash"
    assert ends["8 * 10 ** 13 // 10 ** 13 → 8 * 10 ** 13"].end == "memory"


def test_at_the_terminal(tiny, tried, tmp_path, monkeypatch):
    monkeypatch.setattr("txgrade.authoring.mutants.mutants_of", lambda *_: tried)
    done = CliRunner().invoke(app, ["validate", "--mutants", str(tiny), "--json", str(tmp_path / "all.json")])
    assert done.exit_code == 1
    assert "These changes earn all points:" in done.stdout
    assert "txgrade: 01_tiny: task inside: no surviving mutant is equivalent('inside', 'n → m', …)" in done.stderr
    [written] = json.loads((tmp_path / "all.json").read_text())
    assert [task["task"] for task in written["tasks"]] == ["inside", "down"]


def test_json_alone_is_refused(tiny):
    done = CliRunner().invoke(app, ["validate", str(tiny), "--json", "all.json"])
    assert done.exit_code and "--mutants" in str(done.exception)


def test_a_note_of_a_mutant_that_was_left_out_is_not_stale():
    task = TaskMutants("slow", 2, (), {"x → y": "Why.", "y → x": "Why."}, "slow", ("x → y",))
    assert task.stale == ["y → x"]


def test_an_equivalent_change_needs_a_reason():
    with pytest.raises(ValueError, match="needs a reason"):
        equivalent("inside", "n - 1 → n - 2", " ")


SOLUTIONS = sorted((Path(__file__).parents[3] / "solutions").glob("[0-9]*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("source", SOLUTIONS, ids=lambda path: path.stem)
def test_no_slip_earns_points(source):
    """A hole is mended in the check, or noted in the source: docs/exercises.md, Mutants."""
    released = source.parents[1] / "exercises" / released_name(source.stem)
    tried = mutants_of(source, recordings=recordings_in(released, read_notebook(released)))
    assert not tried.problems, "\n".join([*tried.problems, tried.lists()])
