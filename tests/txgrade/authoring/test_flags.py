"""An answer that binds or reads names of other cells is shown to a person; an honest one is not."""

import ast
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from nbgrader_course import source_notebook

from txgrade.authoring.cells import is_mistakes
from txgrade.authoring.exercise import read_exercise
from txgrade.authoring.flags import source_notes
from txgrade.authoring.read import read_assignment
from txgrade.authoring.release import release
from txgrade.running.grader import grade
from txgrade.sandbox import Limits, probe
from txgrade.source import names_used

SOLUTIONS = sorted((Path(__file__).parents[3] / "solutions").glob("*.py"))
CHECK = '"grade": true, "points": 1, "solution": false, "locked": true, "schema_version": 3'
SOURCE = """# %% [markdown]
# # Names

# %% tags=["parameters"]
seed = 0

# %%
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from txgrade import check

LIMIT = 3


def two_heads(x):
    return x


# %% nbgrader={"grade_id": "first", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def first(x: Tensor) -> Tensor:
    ### BEGIN SOLUTION
    scores = two_heads(x)
    return scores
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-first", CHECK}
with check("first") as show:
    knows, _ = show.randn(3), None
    for n in (1, 2):
        scores = first(show.randn(n))
        show(sum([scores.sum(), two_heads(LIMIT)]))
    lowest = min(map(float, knows))
    ### BEGIN HIDDEN TESTS
    secret = show.randn(4)
    show(first(secret))
    ### END HIDDEN TESTS

# %% nbgrader={"grade_id": "second", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def second(x: Tensor) -> Tensor:
    ### BEGIN SOLUTION
    return first(x) + 1
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-second", CHECK}
with check("second") as show:
    show(second(show.randn(3)))
"""


@pytest.fixture(scope="module")
def assignment(tmp_path_factory):
    path = tmp_path_factory.mktemp("names") / "names.py"
    path.write_text(SOURCE.replace("CHECK", CHECK), encoding="utf-8")
    assignment = read_assignment(path)
    return replace(assignment, tasks=tuple(replace(task, forbidden=("softmax",)) for task in assignment.tasks))


def kinds(assignment, source, cell="first", ran=True):
    notes = source_notes(assignment, {cell: source}, [cell] * ran)
    assert all(note.review and note.task == cell for note in notes)
    return {note.kind: note.text for note in notes}


FIRST = "def first(x):\n    return x\n"


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ("def two_heads(x):\n    return None", "two_heads"),
        ("two_heads = first", "two_heads"),
        ("LIMIT = 10**9", "LIMIT"),
        ("LIMIT += 1", "LIMIT"),
        ("LIMIT: int = 4", "LIMIT"),
        ("for seed in range(3):\n    pass", "seed"),
        ("with open('x') as check:\n    pass", "check"),
        ("class second:\n    pass", "second"),  # another task's answer
        ("def sum(values):\n    return 0", "sum"),  # what a check reads without binding it
        ("import numpy as torch", "torch"),
        ("from math import tau as two_heads", "two_heads"),
        ("(two_heads := first)", "two_heads"),
        ("[two_heads := f for f in (first,)]", "two_heads"),
        ("del two_heads", "two_heads"),
        ("def f():\n    global two_heads\n    two_heads = None", "two_heads"),
        ("def f():\n    global two_heads\n    def two_heads(x): pass", "two_heads"),
        ("globals()['two_heads'] = None", "two_heads"),
        ("if first:\n    two_heads = None", "two_heads"),
        ("try:\n    pass\nexcept ValueError as two_heads:\n    pass", "two_heads"),
        ("match 1:\n    case two_heads:\n        pass", "two_heads"),
        ("match 1:\n    case [*two_heads]:\n        pass", "two_heads"),
        ("a, (b, *two_heads) = 1, (2, 3)", "two_heads"),
        ("%time two_heads = None", "two_heads"),
        ("%%time\ntwo_heads = None", "two_heads"),
        ("%%capture two_heads\n1", "two_heads"),
        (">>> two_heads = None", "two_heads"),
        ("torch.allclose = lambda *a: True", "torch.allclose"),
        ("F.softmax = None", "F.softmax"),
        ("two_heads.calls = 0", "two_heads.calls"),
    ],
)
def test_a_bound_name_of_another_cell_is_flagged(assignment, more, name):
    source = more if more.startswith(("%%", ">>>")) else f"{FIRST}{more}\n"
    assert f"`{name}`" in kinds(assignment, source)["name rebound"]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("return knows", "knows"),
        ("return [k for k in knows]", "knows"),
        ("return [knows for _ in x]", "knows"),
        ("return (lambda: lowest)()", "lowest"),
        ("def inner():\n        return knows\n    return inner()", "knows"),
        ("class A:\n        value = knows\n    return A.value", "knows"),
        ("global knows\n    return knows", "knows"),
        ("return globals()['knows']", "knows"),
        ("return _", "_"),
        ("return __", "__"),
        ("return _12", "_12"),
        ("return Out[3]", "Out"),
        ("return In[-1]", "In"),
        ("return _ih", "_ih"),
        ("return get_ipython().user_ns['knows']", "get_ipython"),
        ("return n", "n"),  # a loop variable that a check leaves behind
        ("return check.exercise", "check"),
        ("return globals().get('kn' + 'ows')", "globals"),
        ("import sys\n    return sys._getframe(1).f_locals", "sys._getframe"),
        ("import inspect\n    return inspect.stack()", "inspect.stack"),
        ("import inspect\n    return inspect.currentframe()", "inspect.currentframe"),
        ("import gc\n    return gc.get_objects()", "gc.get_objects"),
        ("import __main__\n    return __main__.knows", "__main__"),
        (
            "from torch.utils._python_dispatch import _disable_current_modes",
            "torch.utils._python_dispatch._disable_current_modes",
        ),
        ("return TorchDispatchMode", "TorchDispatchMode"),
        ("import sys\n    return sys.modules['__main__']", "__main__"),
        ("return __import__('__main__')", "__main__"),
        ("return two_heads.__globals__['knows']", "two_heads.__globals__"),
        ("return two_heads.__closure__[0].cell_contents", "two_heads.__closure__"),
    ],
)
def test_a_read_name_of_a_check_is_flagged(assignment, body, name):
    assert f"`{name}`" in kinds(assignment, f"def first(x):\n    {body}\n")["reads a check's name"]


def test_what_runs_with_the_cell_is_searched_too(assignment):
    assert "`knows`" in kinds(assignment, f"{FIRST}kept = knows\n", "second")["reads a check's name"]
    assert "`vars`" in kinds(assignment, f"{FIRST}kept = dict(vars())\n", "second")["reads a check's name"]


@pytest.mark.parametrize(
    "source",
    [
        "def first(x):\n    scores = x + 1\n    return scores",
        "def first(knows, n=1):\n    return knows + n",
        "def first(x):\n    return [n for n in x] + [scores for scores in x if scores]",
        "def first(x):\n    return {knows: lowest for knows, lowest in x}",
        "def first(x):\n    def g():\n        nonlocal lowest\n        lowest = 2\n    lowest = 1\n    return lowest",
        "def first(x):\n    for _ in range(3):\n        _, n = x.max(0)\n    return n",
        "def first(x):\n    if (n := len(x)) > 1:\n        return n",
        "def first(x):\n    return [y for row in x if (lowest := row) for y in row] + [lowest]",
        "def first(x):\n    two_heads = x\n    sum = 0\n    seed = 1\n    return two_heads + sum + seed",
        "def first(x):\n    with open('f') as check:\n        pass\n    return vars()",
        "def first(x):\n    import numpy as torch\n    return torch",
        "def first(x):\n    torch.manual_seed(seed)\n    return x",
        "def first(x):\n    match x:\n        case [knows, *lowest]:\n            return knows, lowest",
        "def first(x):\n    try:\n        return 1\n    except ValueError as knows:\n        raise E from knows",
        "def scores(x):\n    return x\ndef first(x):\n    return scores(x)",  # a helper, named like a check's variable
        "n = 4\ndef first(x):\n    return x + n",
        "import math\nimport torch\nfrom torch import Tensor\nfrom torch.nn import functional as F",
        "class Own:\n    lowest = 1\n    def f(self, knows):\n        self.n = knows\n        return self.lowest",
        "first = lambda x: two_heads(x)",
        "%matplotlib inline\ndef first(x):\n    return x\n%timeit first(1)\nfirst?",
        "%%time\ndef first(x):\n    return x",
        "    def first(x):\n        return x",
        "def first(x):\n    return display(x)",
        "def first(x):\n    return max(map(sum, x)) + second(x)",
        "def first(x):\n    x.scores = 1\n    self = x\n    self.knows = 2\n    return x",
        "def first(x):\n    return x._",
        "def first(x):\n    gc = x.stack()\n    return gc.sum(), torch.stack([x])",
    ],
)
def test_an_honest_answer_is_not_flagged(assignment, source):
    assert kinds(assignment, source) == {}


def test_hidden_tests_flag_nothing_of_their_own(assignment):
    """A page shows these notes, so they may not tell which names hidden tests use."""
    assert kinds(assignment, "def first(x):\n    return secret") == {}


def test_stubs_and_written_answers_are_not_looked_at(assignment):
    assert source_notes(assignment, dict(assignment.stubs), assignment.stubs) == []


@pytest.mark.parametrize(
    ("source", "ran", "flagged"),
    [
        ("def first(x:\n    return", False, False),  # an honest slip
        ("def first(x:\n    return", True, True),  # a cell that nobody can read, and yet it ran
        ("x = " + "-" * 5000 + "1", False, True),
        ("%x\n" * 2000, False, True),
        ("x = " + "a.b(" * 60 + ")" * 60, False, False),
        ("f(" * 90 + ")" * 90 + ".x = 1", False, False),
        ("eval(input())", True, True),
        ("import subprocess", True, True),
        ("from torch import *", True, True),
        ("model.eval()", True, False),
    ],
)
def test_what_cannot_be_searched_is_flagged(assignment, source, ran, flagged):
    assert ("can't be searched" in kinds(assignment, source, ran=ran)) == flagged


def test_operators_called_directly_are_flagged(assignment):
    found = kinds(assignment, "def first(x):\n    return torch.ops.aten._softmax(x, -1, False)")
    assert found == {"forbidden call": "calls `torch.ops.aten._softmax`"}
    free = replace(assignment, tasks=tuple(replace(task, forbidden=()) for task in assignment.tasks))
    assert kinds(free, "def first(x):\n    return torch.ops.aten.add(x, eval('1'))") == {}


def test_a_source_of_nbgraders(tmp_path):
    """Its stubs bind nothing, and its answers may be variables."""
    notebook = source_notebook()
    path = tmp_path / "sums.ipynb"
    nbformat.write(notebook, path)
    assignment = read_assignment(path)
    cells = {cell.id: cell.source for cell in assignment.notebook.cells if cell.id in assignment.stubs}
    assert source_notes(assignment, cells, cells) == []


@pytest.mark.slow
@pytest.mark.skipif(probe().level != "sealed", reason=f"no sealed sandbox here: {probe().holes}")
def test_flags_stand_beside_a_grade(variant, tmp_path):
    """Right values, and a person is asked to look; what does not run asks nobody."""
    source = variant(("alternative, mistake", 'alternative, forbid, mistake\n\nforbid("*", "txlib")'))
    exercise = release(source, run_solution=False).exercise
    answers = {
        "ada": "def causal_mask(n):\n    return torch.ones(n, n).tril().bool()",
        "bob": "    seed = 3\n    def causal_mask(n):\n        return torch.ones(eval(str(n)), n).tril().bool()",
        "cy": "def causal_mask(n:\n    return eval(str(n))",
    }
    (tmp_path / "inbox").mkdir()
    for name, answer in answers.items():
        notebook = nbformat.read(exercise, as_version=4)
        next(cell for cell in notebook.cells if cell.id == "causal-mask").source = answer
        nbformat.write(notebook, tmp_path / "inbox" / f"{name}.ipynb")
    graded = grade(source, tmp_path / "inbox", tmp_path / "out", jobs=1, seeds=(7,), limits=Limits())
    kinds = {result.submission: [note.kind for note in result.notes] for result in graded.results}
    assert {result.submission: result.score for result in graded.results} == {"ada": 2, "bob": 2, "cy": 0}
    assert kinds == {"ada": [], "bob": ["can't be searched", "name rebound"], "cy": []}


def _alternatives(exercise):
    """The task and a source of each alternative of an author's: its definition, and all that it uses."""
    statements = []
    for cell in exercise.notebook.cells:
        for statement in ast.parse(cell.source).body if cell.cell_type == "code" and is_mistakes(cell) else ():
            call = getattr(statement, "value", None)
            if not (isinstance(call, ast.Call) and getattr(call.func, "id", "") == "alternative"):
                statements.append(statement)
                continue
            task, answer = exercise.task(call.args[0].value), call.args[1]
            pairs = (
                [(key.value, value) for key, value in zip(answer.keys, answer.values, strict=True)]
                if isinstance(answer, ast.Dict)
                else [(task.names[0], answer)]
            )
            source = "\n".join(f"{name} = {ast.unparse(value)}" for name, value in pairs)
            for earlier in reversed(statements):
                if _bound(earlier) & names_used(source):
                    source = f"{ast.unparse(earlier)}\n{source}"
            yield task.id, source


def _bound(statement):
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in statement.names}
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


@pytest.mark.parametrize("path", SOLUTIONS, ids=[path.stem for path in SOLUTIONS])
def test_no_answer_of_the_course_is_flagged(path):
    """Every reference, stub and alternative, as if each task ruled something out."""
    assignment, exercise = read_assignment(path), read_exercise(path)
    tasks = tuple(replace(task, forbidden=("txlib",)) for task in assignment.tasks)
    assignment = replace(assignment, tasks=tasks)
    cells = {cell.id: cell.source for cell in assignment.notebook.cells if cell.id in assignment.stubs}
    changed = replace(assignment, stubs={id: f"{stub}\npass" for id, stub in assignment.stubs.items()})
    assert source_notes(assignment, cells, cells) == []
    assert source_notes(changed, dict(assignment.stubs), cells) == []
    for task, source in _alternatives(exercise):
        answer = assignment.task(task).answers[0]
        assert source_notes(assignment, {answer: source}, cells) == [], source
