"""A small course of nbgrader's, and its learners: what the tests compare our grading with."""

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat

NAME = "sums"
TIMEOUT = 6  # seconds a cell
ABSENT = None  # in `STUDENTS`: the cell is deleted


def cell(kind: str, source: str, id: str | None = None, role: str = "", points: int | float | None = None) -> Any:
    """A notebook cell; `role` is solution, tests, manual, task or read-only."""
    made = getattr(nbformat.v4, f"new_{kind}_cell")(source)
    if role:
        meta = {
            "schema_version": 3,
            "grade_id": id,
            "task": role == "task",
            "grade": role in ("tests", "manual"),
            "solution": role in ("solution", "manual"),
            "locked": role in ("tests", "task", "read-only"),
        }
        made.metadata["nbgrader"] = meta | ({} if points is None else {"points": points})
    return made


def source_notebook() -> Any:
    """Every kind of cell that nbgrader knows."""
    notebook = nbformat.v4.new_notebook(
        cells=[
            cell("markdown", "# Sums\n\nSome numbers."),
            cell("code", "import sys", "setup", "read-only"),
            cell("markdown", "## Problem 1: squares"),
            cell(
                "code",
                'def squares(n):\n    """The first n squares."""\n    ### BEGIN SOLUTION\n'
                "    if n < 1:\n        raise ValueError('n must be at least 1')\n"
                "    return [i ** 2 for i in range(1, n + 1)]\n    ### END SOLUTION",
                "squares",
                "solution",
            ),
            cell("code", "assert squares(1) == [1]\nassert squares(3) == [1, 4, 9]", "test-squares", "tests", 1),
            cell(
                "code",
                "try:\n    squares(0)\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError\n"
                "### BEGIN HIDDEN TESTS\nassert squares(5)[-1] == 25\n### END HIDDEN TESTS",
                "test-squares-hidden",
                "tests",
                2.5,
            ),
            cell("markdown", "## Problem 2: their sum"),
            cell("code", "def total(n):\n    return sum(squares(n))", "total", "solution"),
            cell("code", "assert total(2) == 5", "test-total", "tests", 2),
            cell("markdown", "## Problem 3: a mean, part by part"),
            cell(
                "code",
                "def mean(xs):\n    # BEGIN SOLUTION ###\n    return sum(xs) / len(xs) if xs else 0\n"
                "    # END SOLUTION ###\n",
                "mean",
                "solution",
            ),
            cell(
                "code",
                "points = 0\npoints += mean([1, 2]) == 1.5\nif mean([1, 2]) == 1.5:\n    points += .5\n"
                "try:\n    points += 1.5 * (mean([]) == 0)\nexcept ZeroDivisionError:\n    pass\npoints",
                "test-mean",
                "tests",
                3,
            ),
            cell("markdown", "## Problem 4: constants"),
            cell(
                "code",
                "### BEGIN SOLUTION\nanswer = 42\n### END SOLUTION\n\n# and one more\n### BEGIN SOLUTION\n"
                "other = -1\n### END SOLUTION",
                "constants",
                "solution",
            ),
            cell("code", 'assert answer == 42\n"well done"', "test-answer", "tests", 1),
            cell("code", "if other != -1:\n    print('not -1', file=sys.stderr)", "test-other", "tests", 1),
            cell("code", "assert other < 0\nother", "test-sign", "tests", 1),
            cell("markdown", "## In words"),
            cell("markdown", "A square grows faster than a line.", "words", "manual", 2),
            cell("code", "print('a drawing')", "drawing", "manual", 1),
            cell(
                "markdown",
                "Draw something.\n\n### BEGIN MARK SCHEME\nOne point for effort.\n### END MARK SCHEME",
                "effort",
                "task",
                3,
            ),
        ]
    )
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return notebook


RIGHT = {
    "squares": "def squares(n):\n    if n < 1:\n        raise ValueError(n)\n"
    "    return [i * i for i in range(1, n + 1)]",
    "total": "def total(n):\n    return n * (n + 1) * (2 * n + 1) // 6",
    "mean": "def mean(xs):\n    return sum(xs) / max(len(xs), 1)",
    "constants": "answer, other = 42, -1",
    "words": "It grows faster.",
    "drawing": "print('mine')",
}
# What each learner changes in the released notebook, by grade_id.
STUDENTS = {
    "right": RIGHT,
    "empty": {},
    "partly": RIGHT
    | {
        "squares": RIGHT["squares"].replace("n + 1)]", "min(n, 4) + 1)]"),  # a hidden test sees it
        "mean": "def mean(xs):\n    return sum(xs) / len(xs)",
        "constants": "answer, other = 41, 7",
    },
    "rests-on-wrong": RIGHT
    | {
        "squares": "def squares(n):\n    return [1, 5]",
        "total": "def total(n):\n    print('n', n)\n    return sum(squares(n))",
    },
    "syntax": RIGHT
    | {
        "squares": "def squares(n)\n    return 1",
        "mean": "class Odd:\n    def __eq__(self, other):\n        return self\n"  # the tests' value: not a number
        "    def __radd__(self, other):\n        return self\n    __rmul__ = __add__ = __radd__\n"
        "    def __repr__(self):\n        return 'odd'\ndef mean(xs):\n    return Odd()",
    },
    "warns": RIGHT
    | {
        "total": "def total(n):\n    print('hm', file=sys.stderr)\n    return sum(squares(n))",
        "mean": "class Odd:\n    def __eq__(self, other):\n        return -5\n"  # below 0
        "def mean(xs):\n    return Odd()",
    },
    "edits-tests": {
        "squares": "def squares(n):\n    return []",
        "test-squares": "assert True",
        "test-squares-hidden": "pass",
        "test-mean": "3",
        "setup": "import sys\nimport os",
    },
    "deletes": RIGHT | {"test-squares-hidden": ABSENT, "test-mean": ABSENT, "squares": ABSENT},
    "quiet": RIGHT
    | {  # errors are no longer shown, but the kernel reports them
        "squares": "get_ipython().showtraceback = lambda *arguments, **more: None\ndef squares(n):\n    return []"
    },
    "loops": RIGHT | {"total": "def total(n):\n    while True:\n        pass"},
}


def with_answers(notebook: Any, changes: dict[str, str | None]) -> Any:
    """A learner's notebook: the released one with some cells rewritten or deleted."""
    notebook = copy.deepcopy(notebook)
    kept = []
    for each in notebook.cells:
        id = each.metadata.get("nbgrader", {}).get("grade_id")
        if id in changes and changes[id] is ABSENT:
            continue
        each.source = changes.get(id, each.source)
        kept.append(each)
    notebook.cells = kept
    return notebook


def downgraded(notebook: Any, version: int) -> Any:
    """The same notebook in an older schema of nbgrader's metadata, which had no task cells."""
    notebook = copy.deepcopy(notebook)
    notebook.cells = [each for each in notebook.cells if not each.metadata.get("nbgrader", {}).get("task")]
    for each in notebook.cells:
        meta = each.metadata.get("nbgrader")
        if meta:
            del meta["task"]
            meta["schema_version"] = version
            if version == 0:  # the first release wrote points as text, and flags only where they were true
                del meta["schema_version"]
                for flag in ("grade", "solution", "locked"):
                    if not meta[flag]:
                        del meta[flag]
                if "points" in meta:
                    meta["points"] = str(meta["points"])
    return notebook


class Course:
    """A course folder in which nbgrader itself works."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "nbgrader_config.py").write_text(f"c = get_config()\nc.Execute.timeout = {TIMEOUT}\n")

    def run(self, *words: str, check: bool = True) -> str:
        """`nbgrader WORD…`; returns what it said."""
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            [sys.executable, "-m", "nbgrader", *words],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if check and done.returncode:
            raise RuntimeError(f"nbgrader {' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done.stdout + done.stderr

    def add(self, name: str, notebook: Any) -> Path:
        """Write a source notebook; returns its path."""
        path = self.folder / "source" / name / f"{name}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, path)
        return path

    def release(self, name: str) -> Any:
        """The learner's notebook that nbgrader makes."""
        self.run("generate_assignment", name, "--create", "--force")
        return nbformat.read(self.folder / "release" / name / f"{name}.ipynb", as_version=4)

    def accepts(self, name: str) -> bool:
        """Whether nbgrader makes a learner's notebook of the source. Quicker than the command, once a course is."""
        from nbgrader.apps import NbGraderAPI
        from nbgrader.coursedir import CourseDirectory

        return NbGraderAPI(CourseDirectory(root=str(self.folder))).generate_assignment(name)["success"]

    def submit(self, name: str, student: str, notebook: Any) -> Path:
        path = self.folder / "submitted" / student / name / f"{name}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, path)
        return path

    def autograde(self, name: str) -> dict[str, dict[str, float | None]]:
        """nbgrader's automatic score of each cell, by student; None where it has none."""
        from nbgrader.api import Gradebook

        self.run("autograde", name, "--create", "--force", check=False)
        scores = {}
        with Gradebook(f"sqlite:///{self.folder / 'gradebook.db'}") as book:
            for submission in book.assignment_submissions(name):
                scores[submission.student.id] = {
                    grade.name: grade.auto_score for notebook in submission.notebooks for grade in notebook.grades
                }
        return scores
