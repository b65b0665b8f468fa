"""Exercises that tell a learner what is wrong, and a grader that trusts nothing in a submission.

In a notebook: `from txgrade import check`. How to write an exercise is in docs/exercises.md, how grading
works in docs/grading.md, what it withstands in docs/grading_security.md. The packages, each of which imports only those
further down:

    running      a whole run: which submissions, by which processes
    marking      what people do: written answers, requests, at the terminal or on a page
    pages        what people and other programs read of results
    judging      one submission: run in a sealed kernel, judged outside it
    submitting   handing in, and reading what was handed in
    authoring    exercises and assignments: read, recorded, released, proved
    checking     what runs in a learner's kernel: checks, verdicts, progress
    sandbox      the sealed kernel
    records      results, and the gradebook that keeps them
    evidence     what an answer returned, as plain values
"""

import sys
import time
from collections import deque
from importlib import import_module
from typing import Any

_HOME = {
    "allow": "authoring.declarations",
    "Inputs": "checking.inputs",
    "alternative": "authoring.declarations",
    "check": "checking.checks",
    "cost": "checking.cost",
    "due": "authoring.declarations",
    "equivalent": "authoring.declarations",
    "forbid": "authoring.declarations",
    "measured": "authoring.declarations",
    "mistake": "authoring.declarations",
    "pool": "authoring.variants",
    "progress": "checking.progress",
    "variant": "authoring.variants",
}
__all__ = sorted(_HOME)
__version__: str


def __getattr__(name: str) -> object:
    """Load a name where it is first used: the grader itself runs without torch, and starts sooner for it."""
    if name == "__version__":
        return import_module("importlib.metadata").version("txgrade")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "check" and (ipython := sys.modules.get("IPython")) and (shell := ipython.get_ipython()):
        load_ipython_extension(shell)
    return getattr(import_module(f"txgrade.{_HOME[name]}"), name)


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook the magic `%submit`: `%load_ext txgrade` does it, and so does importing `check`.

    From then on it is noted which cells run, when, and which of them fail: `%submit` refuses a file that is older
    than they are, and a check names the cell that failed.
    """
    if "submit" in shell.magics_manager.magics["line"]:
        return
    from txgrade.checking.failed_cells import cells

    runs: deque[tuple[float, str]] = deque(maxlen=1000)
    shell.events.register("pre_run_cell", lambda info: runs.append((time.time(), info.raw_cell)))
    cells.watch(shell)

    def submit(line: str) -> None:
        """Hand in this notebook, as it was last saved: %submit [NOTEBOOK] [--to FOLDER] [--name NAME] [--anyway]"""
        from txgrade.submitting.magic import submit_line

        submit_line(line, shell, list(runs)[:-1])  # the last is this one

    shell.register_magic_function(submit, "line", "submit")
