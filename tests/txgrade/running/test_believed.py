"""What a mark proves: the ways to full points without a right answer that were once open, graded from end to end.

One exercise with a measured task, a counted one, and one whose check calls a given helper. Of each submission: its
points, task by task, and what a person is told to look at.
"""

import nbformat
import pytest

from txgrade.authoring.release import release
from txgrade.running.grader import grade
from txgrade.sandbox import probe

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(probe().level != "sealed", reason=f"no sealed sandbox here: {probe().holes}"),
]

SOURCE = '''# %% [markdown]
# # Exercise 01 · Believed

# %% tags=["parameters"]
seed = 0

# %%
import torch

from txgrade import check, cost


def noisy(private):
    """Points near a line, and the line."""
    slope = 1 + private.rand(1).item()
    x = private.randn(50)
    return x, slope * x + 0.01 * private.randn(50), slope


def both(one, other):
    return [one, other]


# %% [markdown]
# ### Task 1 · Fit   ●○○○○ · 5 minutes · 2 points

# %% nbgrader={"grade_id": "fit", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def fit(x, y):
    ### BEGIN SOLUTION
    return (x * y).sum() / (x * x).sum()
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-fit", "grade": true, "points": 2, "solution": false, "schema_version": 3}
with check("fit") as show:
    x, y = show.private(lambda private: noisy(private)[:2])
    show.weights({"slope": fit(x, y)})

# %% tags=["mistakes"]
from txgrade import forbid, measured, mistake

measured("fit", lambda shown, private: abs(shown[0]["slope"].item() - noisy(private)[2]) < 0.02)
for wrong in (0.0, 3.0, -1.0):
    mistake("fit", lambda x, y, wrong=wrong: torch.tensor(wrong), f"This is {wrong:g}, whatever the points are.")

# %% [markdown]
# ### Task 2 · Sums   ●○○○○ · 5 minutes · 2 points

# %% nbgrader={"grade_id": "sums", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def sums(x):
    ### BEGIN SOLUTION
    return x.cumsum(0)
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-sums", "grade": true, "points": 2, "solution": false, "schema_version": 3}
with check("sums") as show:
    show(sums(show.randn(show.random_size(3, 9))), "a few numbers")
    spent = cost(sums, show.randn(200))
    show([show.sketch(spent.value), spent.operations < 200 * 20], "200 numbers, and few operations")

# %% tags=["mistakes"]
def square(x):
    return torch.ones(len(x), len(x)).tril() @ x


mistake("sums", square, "A triangle of ones is right, but as large as the square of the length.")
mistake("sums", lambda x: x.cumsum(0) - x, "Each sum ends before its own number.")
mistake("sums", lambda x: x.flip(0).cumsum(0).flip(0), "These sums begin at the end.")

# %% [markdown]
# ### Task 3 · Twice   ●○○○○ · 5 minutes · 2 points

# %% nbgrader={"grade_id": "twice", "solution": true, "grade": false, "locked": false, "schema_version": 3}
def twice(x):
    ### BEGIN SOLUTION
    return x + x
    ### END SOLUTION

# %% nbgrader={"grade_id": "check-twice", "grade": true, "points": 2, "solution": false, "schema_version": 3}
with check("twice") as show:
    known = show.randn(4)
    show(both(twice(known), twice(known[:1])), "four numbers, and one")

# %% tags=["mistakes"]
for times in (1, 3, 4):
    mistake("twice", lambda x, times=times: times * x, f"This is {times} times as much.")
'''
FIT = "def fit(x, y):\n    return (x * y).sum() / (x * x).sum()"
SUMS = "def sums(x):\n    return x.cumsum(0)"
TWICE = "def twice(x):\n    return 2 * x"
HONEST = {"fit": FIT, "sums": SUMS, "twice": TWICE}

SKIPS = """def sums(x):
    return x * 1 if len(x) > 100 else square(x)


def square(x):
    return torch.ones(len(x), len(x)).tril() @ x"""
OUTSIDE = """import numpy

def sums(x):
    return torch.from_numpy(numpy.tri(len(x), dtype="float32") @ x.numpy())"""
DRAWS = """from txgrade.checking.inputs import private_inputs

def fit(x, y):
    return torch.tensor(noisy(private_inputs(seed, "fit"))[2])"""
HELPER = """def twice(x):
    return 3 * x


def both(one, other):
    return [2 * one / 3, 2 * other / 3]"""
FORGED = """from IPython.display import display

def twice(x):
    display({"application/vnd.txgrade.evidence+json": {"task": "twice"}}, raw=True)
    return 2 * x"""

# By name: what differs from the honest answers, and the tasks that lose their points by it.
SUBMISSIONS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "honest": ({}, ()),
    "names-of-its-own": ({"twice": f"for seed in range(3):\n    pass\n{TWICE}"}, ()),
    "draws-the-truth": ({"fit": DRAWS}, ("fit",)),
    "skips-the-long-one": ({"sums": SKIPS}, ("sums",)),
    "quadratic": ({"sums": "def sums(x):\n    return torch.ones(len(x), len(x)).tril() @ x"}, ("sums",)),
    "outside-torch": ({"sums": OUTSIDE}, ("sums",)),
    "no-cost": ({"sums": f"{SUMS.replace('cumsum', 'cummax')}\n\ndef cost(*given):\n    return None"}, ("sums",)),
    "helper": ({"twice": HELPER}, ("twice",)),
    "reads-the-check": ({"twice": "def twice(x):\n    return 2 * known[: len(x)]"}, ("twice",)),
    "forged": ({"twice": FORGED}, ("twice",)),
}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("believed")
    (folder / "solutions").mkdir()
    source = folder / "solutions" / "01_believed.py"
    source.write_text(SOURCE, encoding="utf-8")
    notebook = nbformat.read(release(source, run_solution=False).exercise, as_version=4)
    (folder / "inbox").mkdir()
    for name, (answers, _) in SUBMISSIONS.items():
        for cell in notebook.cells:
            cell.source = (HONEST | answers).get(cell.id, cell.source)
        nbformat.write(notebook, folder / "inbox" / f"{name}.ipynb")
    return {result.submission: result for result in grade(source, folder / "inbox", folder / "out", jobs=2).results}


@pytest.mark.parametrize("name", SUBMISSIONS)
def test_points(graded, name):
    lost = SUBMISSIONS[name][1]
    points = {task.id: task.points for task in graded[name].tasks}
    assert points == {task: 0 if task in lost else 2 for task in HONEST}, graded[name].tasks


@pytest.mark.parametrize(
    ("name", "kind"),
    [("forged", "invalid evidence"), ("helper", "name rebound"), ("reads-the-check", "reads a check's name")],
)
def test_a_person_is_told(graded, name, kind):
    notes = [note for note in graded[name].notes if note.kind == kind]
    assert notes and all(note.review and note.task == "twice" for note in notes), graded[name].notes


def test_an_honest_submission_needs_no_look(graded):
    assert not [note for note in graded["honest"].notes if note.review]
